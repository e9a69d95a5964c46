package AgentProcess;

# What the tests of nginx's processes need beyond AgentTest: other ways to start
# it, a look into /proc, many streams at a time, and a sharper eye on the log.

use strict;
use warnings;

use Exporter 'import';
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(read_all verdict tally alive gone fds fd_kinds mem above_warn
    start_daemon start_single new_master command);

# --- many streams -------------------------------------------------------------

# Reads these AgentTest::Streams side by side until each has ended, the code
# says so, or the time is over; true when all have ended.
sub read_all {
    my ($streams, $timeout, $until) = @_;
    my $end = time + $timeout;

    while (1) {
        my @open = grep { $_->{sock} && !$_->{complete} && !$_->{eof} }
            @$streams;
        return 1 if !@open;
        return 0 if time > $end || $until && $until->();
        my $r = '';
        vec($r, fileno $_->{sock}, 1) = 1 for @open;
        next if select($r, undef, undef, 0.05) <= 0;
        $_->_fill(0) for grep { vec $r, fileno $_->{sock}, 1 } @open;
    }
}

# What became of a stream, in a word or two: "complete" (of this text, if one is
# given), "cancelled", the code of a RUN_ERROR or of an error in JSON, "cut"
# (without a terminal event), or what is wrong with it.
sub verdict {
    my ($s, $text) = @_;
    my $type = $s->header('content-type') // '';

    if ($type eq 'application/json') {
        return 'cut' if !$s->{complete};
        return $s->json->{error}{code} // $s->json->{status} // '?';
    }

    my @e = map { $_->{data} // () } @{ $s->events };
    my @end = grep { ($_->{type} // '') =~ /^RUN_(?:FINISHED|ERROR)$/ } @e;

    return 'cut' if !@end;
    return @end . ' terminal events' if @end > 1;
    return 'events after the end' if $end[0] != $e[-1];
    return 'an end without the end of the body' if !$s->{complete};
    return "status $s->{status}" if $s->{status} != 200;
    return $end[0]{code} // 'no code' if $end[0]{type} eq 'RUN_ERROR';

    my $outcome = $end[0]{outcome}{type} // 'success';
    return $outcome if $outcome ne 'success';
    return 'complete' if !defined $text;

    my $said = join '', map { $_->{delta} }
        grep { $_->{type} eq 'TEXT_MESSAGE_CONTENT' } @e;
    return $said eq $text ? 'complete' : 'another text';
}

# How many streams came to which end: { complete => 30 }.
sub tally {
    my ($verdict, @s) = @_;
    my %n;
    $n{ $verdict->($_) }++ for @s;
    return \%n;
}

# --- /proc --------------------------------------------------------------------

sub alive {
    my ($pid) = @_;
    open my $fh, '<', "/proc/$pid/stat" or return 0;
    return (<$fh> // ') Z ') !~ /\) [ZX] /;
}

sub gone {
    my ($t, $timeout, @pids) = @_;
    return $t->wait_for(sub { !grep { alive($_) } @pids }, $timeout);
}

sub fds { return scalar(my @all = glob "/proc/$_[0]/fd/*") }

# kind => number, e.g. { socket => 9, eventpoll => 1, memfd => 1 }
sub fd_kinds {
    my ($pid) = @_;
    my %n;

    for my $fd (glob "/proc/$pid/fd/*") {
        my $to = readlink $fd // next;
        $n{ $to =~ /(eventpoll|eventfd|memfd)|^(socket|pipe):/
            ? $1 // $2 : 'file' }++;
    }

    return \%n;
}

# MB of that kind: VmRSS, RssAnon, VmHWM.
sub mem {
    my ($pid, $what) = @_;
    open my $fh, '<', "/proc/$pid/status" or return 0;
    my ($kb) = join('', <$fh>) =~ /^$what:\s+(\d+) kB/m;
    return ($kb // 0) / 1024;
}

# --- the log ------------------------------------------------------------------

# Lines above warn that none of these expects.
sub above_warn {
    my ($t, @expected) = @_;
    my @bad = grep {
        my $line = $_;
        !grep { $line =~ $_ } @expected, @{ $t->{expect} };
    } $t->log =~ /^(\S+ \S+ \[(?:error|crit|alert|emerg)\] .*)$/mg;

    return @bad > 10 ? (@bad[ 0 .. 9 ], '...') : @bad;
}

# --- other ways to start ------------------------------------------------------

# Who daemonizes has another parent than us.  As a subreaper this process gets
# its orphans, so AgentTest can wait for them.
sub _subreaper {
    my %prctl = (x86_64 => 157, aarch64 => 167);
    my $nr = $prctl{ (POSIX::uname())[4] } // return 0;
    return syscall($nr, 36, 1, 0, 0, 0) == 0;
}

# A test that is killed outright cannot end what has left it; this does.
sub _guard {
    my ($t) = @_;
    my $parent = $$;
    my $pid = fork() // die "fork: $!";

    return if $pid;
    $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP ALRM);
    open STDIN,  '<', '/dev/null';
    open STDOUT, '>', '/dev/null';
    open STDERR, '>', '/dev/null';

    while (getppid() == $parent) {
        POSIX::_exit(0) if !-d $t->dir;
        sleep 0.5;
    }

    kill 'KILL', $t->_session;
    POSIX::_exit(0);
}

sub _spawn {
    my ($t, @args) = @_;
    my $dir = $t->dir;
    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        POSIX::setsid();
        open STDIN,  '<',  '/dev/null';
        open STDOUT, '>>', "$dir/stderr.log";
        open STDERR, '>&', \*STDOUT;
        { exec $t->{nginx}, '-p', "$dir/", '-c', "$dir/nginx.conf", '-e',
                "$dir/error.log", @args; }
        POSIX::_exit(127);
    }

    return $pid;
}

sub _listens {
    my ($t) = @_;
    return $t->wait_for(sub {
        IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $t->port);
    });
}

sub _change {
    my ($t, $from, $to) = @_;
    $t->{conf} =~ s/\Q$from\E/$to/ or die "no \"$from\" in the configuration\n";
    $t->write_file('nginx.conf', $t->{conf});
}

# "daemon on", as packages start it; what start() knows is set afterwards.
# False where this system cannot do it.
sub start_daemon {
    my ($t) = @_;

    _subreaper() or return 0;
    _change($t, 'daemon off;', 'daemon on;');
    waitpid _spawn($t), 0;
    $? == 0 or die "nginx did not start:\n" . substr($t->log, -2000) . "\n";
    new_master($t);
    $t->{sid} = $t->pid;
    _guard($t);
    _listens($t) or die "nginx does not answer\n";

    return 1;
}

# The master is now the one in the pid file.
sub new_master {
    my ($t) = @_;
    $t->wait_for(sub { -s $t->dir . '/nginx.pid' });
    ($t->{pid}) = $t->_slurp('nginx.pid') =~ /^(\d+)$/m or die "no pid file\n";
    return $t->{pid};
}

# "master_process off": one process that is all.
sub start_single {
    my ($t) = @_;

    _change($t, 'master_process on;', 'master_process off;');
    $t->{pid} = $t->{sid} = _spawn($t);
    _guard($t);
    _listens($t) or die "nginx does not answer\n" . $t->log;
}

# nginx -s ...: its exit code and what it said.
sub command {
    my ($t, $signal) = @_;
    my $dir = $t->dir;
    my $out = qx{$t->{nginx} -s $signal -p $dir/ -c $dir/nginx.conf \\
                 -e $dir/error.log 2>&1 </dev/null};
    return ($? >> 8, $out);
}

1;
