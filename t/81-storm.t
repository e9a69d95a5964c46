#!/usr/bin/perl

# Processes that come and go in great number: workers that are killed, and
# reloads under many streams.  AGENT_SCALE makes it longer and larger.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentProcess;
use AgentTest;
use AgentUpstream;
use List::Util qw(max min shuffle);
use Mojo::JSON qw(encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

use constant SLACK => 20;

my $scale = $ENV{AGENT_SCALE} || 1;

# Words per second of the streams: this process has to read them all.
my $rate = $scale >= 50 ? 2 : 10;
my $delay = 1 / $rate;
my $base = AgentTest->new;
my $u = $base->upstream;

# opts: workers, events, listen, http
sub config {
    my ($t, %o) = @_;
    my $workers = $o{workers} // 1;
    my %l = map { ($_ => $o{$_} // '') } qw(events listen http);
    my ($http, $locations) = agent_blocks(
        ok      => 'ok',
        (map { ("w$_" => "words,n=$_,delay=$delay") } 20, 40, 80),
        endless => 'words,n=100000,delay=0.1',
        stay    => {
            script => 'words,n=100000,delay=0.1',
            agent  => 'on_disconnect continue;',
        },
        two     => {
            script => 'words,n=20,delay=0.05',
            model  => 'max_inflight 2 queue=4 timeout=1m;',
        },
    );

    my $port = $u->port;
    $http =~ s/%%UPSTREAM%%/$port/g;
    $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes $workers;
worker_rlimit_nofile 20000;
events { worker_connections 8192; $l{events} }
http {
    %%GLOBALS_HTTP%%
    $l{http}
$http
    agent_model echo { provider echo; set tokens_per_second $rate; }
    agent_model slow { provider echo; set tokens_per_second 1; }
    agent echo { model echo; }
    agent talk { model slow; on_disconnect continue; }
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096 $l{listen};
        add_header X-Worker \$pid always;
        location /echo { agent_pass echo; agent_owner off; }
        location /talk { agent_pass talk; agent_owner off; access_log off; }
$locations
    }
}
CONF
}

sub nginx {
    my (%o) = @_;
    my $t = AgentTest->new(level => 'info');
    my $n = $o{workers} // 1;
    config($t, %o);

    # as it is usually run: the master is root and its workers are not
    my $group = getgrgid((getpwnam 'nobody')[3] // -1);

    if ($> == 0 && $group) {
        $t->{conf} =~ s/user root;/user nobody $group;/;
        $t->write_file('nginx.conf', $t->{conf});
    }

    $t->start;
    $t->wait_for(sub { $t->workers == $n }) or die "not $n workers\n";
    return $t;
}

sub quiet {
    my ($t, @expected) = @_;
    $t->expect_log(@expected);
    $t->stop;
    my @bad = above_warn($t);
    ok(!@bad, 'nothing above warn in the log') or diag join "\n", @bad;
}

# Streams of 20 to 80 words, one half of them from echo.
my $n = 0;

sub stream {
    my ($t, $length) = @_;
    $length //= (20, 40, 80)[ ++$n % 3 ];
    my $words = join ' ', map {"w$_"} 1 .. $length;
    my $echo = int(rand 2);
    my $s = $t->post_run($echo ? { text => $words } : {},
        path => $echo ? '/echo' : "/w$length", stream => 1);
    @$s{qw(path id want)} = ($echo ? '/echo' : "/w$length",
        $s->{input}{runId}, $echo ? "You said: $words" : $words);
    return $s;
}

sub begun {
    my ($t, @s) = @_;
    my $all = sub { !grep { $_->{body} !~ /"TEXT_MESSAGE_CONTENT"/ } @s };
    read_all(\@s, SLACK, $all);
    return $all->();
}

sub run_of {
    my ($t, $path, $id) = @_;
    my $r = $t->request('GET', "$path/runs/$id");
    return join ' ', grep { defined } $r->json->{status} // $r->{status},
        $r->json->{code};
}

# Locks on the file of slots: their places, which are those of the processes.
sub locked {
    my ($t) = @_;
    my ($inode) = map { (stat $_)[1] } grep {
        (readlink $_ // '') =~ /memfd:ngx_agent_slots/
    } glob "/proc/${\$t->pid}/fd/*" or return ();
    open my $fh, '<', '/proc/locks' or return ();
    return sort { $a <=> $b } map { /^\d+: POSIX .*:\Q$inode\E (\d+) \1$/
        ? $1 : () } <$fh>;
}

# Runs that nobody reads, with ids as long as they may be; false when nginx
# does not take them.
my $pad = "\x{1f600}" x 116;

sub leave_runs {
    my ($t, $from, $to, $timeout) = @_;

    for my $i ($from .. $to) {
        my $body = encode_json(run_input(text => 'and so on ' x 50,
            threadId => sprintf('%s%012d', $pad, $i), runId => "left-$i"));
        my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $t->port) or return 0;
        my $all = join "\r\n", 'POST /talk HTTP/1.1', 'Host: x',
            'Content-Type: application/json',
            'Content-Length: ' . length $body, '', $body;
        syswrite($s, $all) == length $all or return 0;
        close $s;
    }

    return $t->wait_for(sub { run_of($t, '/talk', "left-$to") eq 'running' },
        $timeout // SLACK);
}

subtest 'workers are killed' => sub {
    my $rounds = max(20, min(300, 6 * $scale));
    my $t = nginx(workers => 4, listen => 'reuseport');
    my $fds = fd_kinds($t->pid);
    my (%bad, $killed, $lost);
    my $check = sub {
        my ($what, $got, $want) = @_;
        $bad{"$what: $got, not $want"}++ if $got ne $want;
    };
    $t->expect_log(qr/exited on signal 9/,
        qr/runs were lost with their worker process/);

    for my $round (1 .. $rounds) {
        my @s = map {
            my $path = $_ <= 12 && $_ % 2 ? '/endless' : '/stay';
            my $s = $t->post_run({}, path => $path, stream => 1);
            @$s{qw(path id)} = ($path, $s->{input}{runId});
            $s;
        } 1 .. 16;
        begun($t, @s) or $bad{'the streams begin'}++;
        $_->close for @s[ 12 .. 15 ];

        my %of;
        push @{ $of{ $_->header('x-worker') } }, $_ for @s;
        my ($victim) = shuffle keys %of;
        kill 'KILL', $victim;
        my $then = time;
        my @hit = @{ $of{$victim} };
        my @other = map { @{ $of{$_} } } grep { $_ != $victim } keys %of;
        $killed++;
        $lost += @hit;

        my @open = grep { $_->{sock} } @hit;
        read_all(\@open, 2) or $bad{'its streams end at once'}++;
        $check->('its stream', verdict($_), 'cut') for @open;

        # its lock goes with it, but after its sockets
        $t->wait_for(sub { !alive($victim) }) or $bad{'it dies'}++;

        # the others go on
        $_->{seen} = length $_->{body} for @other;

        for my $s (shuffle @hit) {
            $check->('GET', run_of($t, $s->{path}, $s->{id}),
                'error worker_lost');
            my $r = $t->request('DELETE', "$s->{path}/runs/$s->{id}");
            $check->('DELETE', $r->{status}, 204);
            $r = $t->post_run({ runId => $s->{id},
                threadId => $s->{input}{threadId} }, path => $s->{path});
            $check->('POST', $r->{status}, 410);
        }

        # another worker is there, in the same place
        $t->wait_for(sub { $t->workers == 4 }, SLACK)
            or $bad{'another worker'}++;
        my %now = map { ($_ => 1) } $t->workers;
        my ($new) = grep { !$of{$_} } keys %now;

        my $r = $t->post_run({}, path => '/ok');
        $check->('a run', verdict($r, 'Hello, world!'), 'complete');

        my @live = grep { $_->{sock} } @other;
        my $flow = sub { !grep { length $_->{body} == $_->{seen} } @live };
        read_all(\@live, SLACK, $flow);
        $flow->() or $bad{'another\'s stream goes on'}++;

        for my $s (@other) {
            $check->('another\'s run', run_of($t, $s->{path}, $s->{id}),
                'running');
            my $r = $t->request('DELETE', "$s->{path}/runs/$s->{id}");
            $check->('another\'s DELETE', $r->{status}, 202);
        }

        read_all(\@live, SLACK) or $bad{'the others end'}++;
        $check->('another\'s end', verdict($_), 'cancelled') for @live;
        $_->close for @s;
    }

    is_deeply(\%bad, {}, "$rounds rounds, $lost runs were lost")
        or diag explain \%bad;
    cmp_ok($lost, '>=', $rounds, 'enough to tell of');

    # all four of them serve
    my %new;
    for (1 .. 300) {
        my $r = $t->post_run({}, path => '/ok');
        $new{ $r->header('x-worker') } += verdict($r) eq 'complete' ? 0 : 1;
        last if keys %new == 4;
    }
    is(scalar(grep { !$_ } values %new), scalar keys %new, 'new workers serve')
        or diag explain \%new;
    is_deeply([ locked($t) ], [ 0 .. 3 ], 'their slots are used again');
    is_deeply(fd_kinds($t->pid), $fds, 'fds of the master');
    quiet($t, qr/upstream_(?:truncated|error)/);
};

subtest 'max_inflight' => sub {
    my $t = nginx(workers => 1);
    $t->expect_log(qr/exited on signal 9/,
        qr/runs were lost with their worker process/);

    for my $round (1 .. 3) {
        my ($worker) = $t->workers;
        my @s = map { $t->post_run({}, path => '/two', stream => 1) } 1 .. 4;
        ok(begun($t, @s[ 0, 1 ]), "round $round: two run, two wait");
        my ($waits) = map { $_->{input}{runId} } $s[2];
        is(run_of($t, '/two', $waits), 'queued', '... says the status');
        kill 'KILL', $worker;
        read_all(\@s, 2);
        ok($t->wait_for(sub { my ($w) = $t->workers; $w && $w != $worker }),
            'another worker');
        is(run_of($t, '/two', $waits), 'error worker_lost',
            '... knows that the one who waited is lost');
        $_->close for @s;
        my @new = map { $t->post_run({}, path => '/two', stream => 1) } 1 .. 2;
        ok(begun($t, @new), '... has two places');

        # who waited has said nothing, its id may be used again
        my $again = $t->post_run({ runId => $waits,
            threadId => $s[2]{input}{threadId} }, path => '/two', stream => 1);
        ok(read_all([ @new, $again ], SLACK), '... and they end');
        is(verdict($_), 'complete', '... as they should') for @new, $again;
        $_->close for @new, $again;
    }

    quiet($t);
};

# The registry has room for some 20,000 runs.
subtest 'the registry does not fill up' => sub {
    my $t = nginx(workers => 1);
    my $each = 1500;
    my $first = 1;
    my $kinds = fd_kinds($t->pid);
    my $mem = mem($t->pid, 'VmRSS');
    $t->expect_log(qr/exited on signal 9/,
        qr/runs were lost with their worker process/);

    for my $round (1 .. 16) {
        my ($worker) = $t->workers;
        ok(leave_runs($t, $first, $first + $each - 1),
            "round $round: $each runs") or last;
        is(run_of($t, '/talk', "left-$first"), 'running', '... the first one');
        kill 'KILL', $worker;
        $t->wait_for(sub { my ($w) = $t->workers; $w && $w != $worker },
            SLACK) or last;
        is(run_of($t, '/talk', 'left-' . ($first + $_)), 'error worker_lost',
            '... lost') for 0, 700, $each - 1;
        $first += $each;
    }

    is(run_of($t, '/talk', 'left-1'), '404', 'the oldest are forgotten');
    my $r = $t->post_run({}, path => '/ok');
    is(verdict($r, 'Hello, world!'), 'complete', 'a run');
    is_deeply(fd_kinds($t->pid), $kinds, 'fds of the master');
    cmp_ok(mem($t->pid, 'VmRSS') - $mem, '<', $ENV{ASAN_OPTIONS} ? 30 : 2,
        'memory of the master');
    quiet($t);
};

# Nobody follows them in their slots.
subtest 'workers are killed while they leave' => sub {
    my $t = nginx(workers => 4);
    my @old = $t->workers;
    my $post = sub {
        my $r = $t->post_run({ threadId => "${pad}more" }, path => '/ok');
        return verdict($r, 'Hello, world!');
    };
    $t->expect_log(qr/exited on signal 9/, qr/registry is full/,
        qr/runs were lost with their worker process/);
    leave_runs($t, 1, 23_000, 1);
    is(run_of($t, '/talk', 'left-20000'), 'running', 'as many as can be');
    is($post->(), 'zone_full', 'one more');
    like($t->log, qr/\[(?:warn|error)\].*registry is full/,
        '... and a line in the log');
    my $lines = () = $t->log =~ /registry is full/g;
    cmp_ok($lines, '<', 100, '... not one for each');
    config($t, workers => 1);
    ok($t->reload, 'reload with one worker');
    is($post->(), 'zone_full', 'as before');
    kill 'KILL', @old;
    ok(gone($t, 5, @old), 'the old workers are killed');
    ok($t->wait_for(sub { $post->() eq 'complete' }, 3), 'there is room again');
    is($post->(), 'complete', 'a run') for 1 .. 5;
    is(run_of($t, '/talk', 'left-20001'), 'error worker_lost',
        'one of theirs');
    quiet($t);
};

# All that an administrator and the kernel do to processes, in no order.  A
# stream may only end badly where its worker was killed or told to stop at once.
subtest 'a bad day' => sub {
    my $t = nginx(workers => 3, listen => 'reuseport',
        http => 'proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;');
    my $good = $t->{conf};
    my $seconds = $scale >= 50 ? 300 : 10;
    my (@open, %hurt, %stopped, %bad, %did, @ids);
    my $end = time + $seconds;
    my $next = time + 1;
    my @then;    # [time, code]
    my $pick = sub { (shuffle $t->workers)[0] };
    my %act = (
        HUP    => sub { $t->signal('HUP') },
        USR1   => sub { $t->signal('USR1') },
        kill   => sub {
            my ($pid) = shuffle grep { !$stopped{$_} } $t->workers,
                $t->workers('old') or return;
            $hurt{$pid} = 1;
            kill 'KILL', $pid;
        },
        term   => sub {
            my $pid = $pick->() // return;
            $hurt{$pid} = 1;
            kill 'TERM', $pid;
        },
        quit   => sub { my $pid = $pick->() // return; kill 'QUIT', $pid },
        stop   => sub {
            my $pid = $pick->() // return;
            $stopped{$pid} = 1;
            kill 'STOP', $pid;
            push @then, [ time + 0.7, sub {
                kill 'CONT', $pid;
                delete $stopped{$pid};
            } ];
        },
        broken => sub {
            $t->write_file('nginx.conf', "nonsense on;\n$good");
            $t->signal('HUP');
            push @then, [ time + 0.5,
                sub { $t->write_file('nginx.conf', $good) } ];
        },
        cancel => sub {
            my ($s) = shuffle grep { !$_->{stopped} } @open or return;
            my $r = $t->open_stream('DELETE', "$s->{path}/runs/$s->{id}");
            $s->{stopped} = 1;
            push @then, [ time + 1, sub { $r->close } ];
        },
    );

    $t->expect_log(qr/exited on signal 9/, qr/nonsense/,
        qr/runs were lost with their worker process/);

    while (@open || time < $end) {
        while (time < $end && @open < 60) {
            push @open, stream($t);
            push @ids, $open[-1];
            last if @ids % 5 == 0;
        }

        if (time < $end && time >= $next) {
            my ($what) = shuffle keys %act;
            $act{$what}->();
            $did{$what}++;
            $next = time + 0.3;
        }

        my @due = grep { $_->[0] <= time } @then;
        @then = grep { $_->[0] > time } @then if @due;
        $_->[1]->() for @due;

        read_all(\@open, 0.02);
        my @still;

        for my $s (@open) {
            my $over = $s->{complete} || $s->{eof};

            if (!$over && time - $s->{start} < 80 * $delay + 30) {
                push @still, $s;
                next;
            }

            my $v = $over ? verdict($s, $s->{want}) : 'no end';
            my $pid = $s->header('x-worker');
            $s->{v} = $v;
            $s->{pid} = $pid // 0;
            $s->close;
            next if $v eq 'complete' || $s->{stopped} && $v eq 'cancelled';
            next if $v eq 'cut' && (!$pid || $hurt{$pid});
            $bad{ "$v, worker " . ($pid ? 'unhurt' : 'unknown') }++;
            diag "$s->{path} $s->{id}: $v, worker " . ($pid // '-');
        }

        @open = @still;
    }

    $_->[1]->() for @then;
    note join ', ', map {"$_ $did{$_}"} sort keys %did;
    is_deeply(\%bad, {}, scalar(@ids) . ' streams end as they may');

    # what is said of them afterwards
    ok($t->wait_for(sub { $t->workers == 3 && !$t->workers('old') }, SLACK),
        'three workers are left');
    my %said;
    for my $s (@ids) {
        my $is = run_of($t, $s->{path}, $s->{id});
        my $fits = $s->{v} eq 'complete' ? $is eq 'finished'
            : $s->{v} eq 'cancelled' ? $is eq 'cancelled'
            : $is =~ /^(?:error worker_(?:lost|shutdown)|cancelled)$/
                || $is eq '404' && !$s->{pid};
        $said{"$s->{v}: $is"}++ if !$fits;
    }
    is_deeply(\%said, {}, '... and know how') or diag explain \%said;
    is(scalar(my @l = locked($t)), 3, 'locks of three workers');
    my @last = map { stream($t, 20) } 1 .. 6;
    ok(read_all(\@last, 80 * $delay + SLACK), 'streams');
    is_deeply(tally(sub { verdict($_[0], $_[0]{want}) }, @last),
        { complete => 6 }, '... as a whole');
    $_->close for @last;
    quiet($t);
};

# Streams, constantly as many, while nginx is reloaded again and again.
sub storm {
    my ($t, $streams, $reloads, $every) = @_;
    my (@open, %end, %slow, $next, $started);
    my $done = 0;
    my (@master, @worker, @fds, @left);

    while (@open || $done < $reloads) {
        while ($done < $reloads && @open < $streams) {
            push @open, stream($t);
            $started++;
            last if $started % 10 == 0;
        }

        $next //= time + 2;

        if ($done < $reloads && time >= $next) {
            my @before = $t->workers;
            $t->signal('HUP');
            $done++;
            $next = time + $every;

            # look at those that are leaving: what did they come to
            my ($w) = @before;
            push @worker, mem($w, 'RssAnon');
            push @master, mem($t->pid, 'RssAnon');
            push @fds, fds($t->pid);
            push @left, scalar $t->workers('old');
        }

        my $r = '';
        vec($r, fileno $_->{sock}, 1) = 1 for @open;
        next if !@open || select($r, undef, undef, 0.02) <= 0;
        my @still;

        for my $s (@open) {
            $s->_fill(0) if vec $r, fileno $s->{sock}, 1;

            if ($s->{complete} || $s->{eof}) {
                my $v = verdict($s, $s->{want});
                $end{$v}++;
                $s->close;
                diag "$s->{path} $s->{id}: $v" if $v ne 'complete'
                    && $end{$v} < 5;

            } elsif (time - $s->{start} > 80 * $delay + 40) {
                $slow{ $s->{id} }++;
                $s->close;

            } else {
                push @still, $s;
            }
        }

        @open = @still;
    }

    return { ends => \%end, slow => \%slow, started => $started,
        master => \@master, worker => \@worker, fds => \@fds,
        left => \@left };
}

subtest 'reloads under many streams' => sub {
    my ($streams, $reloads, $every) =
        $scale >= 50 ? (1000, 200, 3) : (100, 10 * min($scale, 20), 1.2);
    my $t = nginx(workers => 2, events => 'accept_mutex on; multi_accept on;');
    my $got = storm($t, $streams, $reloads, $every);

    is_deeply($got->{ends}, { complete => $got->{started} },
        "$reloads reloads, $streams streams at a time, all are whole");
    is_deeply($got->{slow}, {}, 'none takes too long');
    ok($t->wait_for(sub { !$t->workers('old') }, SLACK),
        'the old workers leave');
    my @m = @{ $got->{master} };
    my @w = @{ $got->{worker} };
    my $third = int(@m / 3);
    my $asan = $ENV{ASAN_OPTIONS} ? 30 : 0;    # it keeps what was freed
    note 'master: ' . join ' ', map { sprintf '%.1f', $_ } @m[ 0, $third, -1 ];
    note 'workers: ' . join ' ', map { sprintf '%.1f', $_ } @w[ 0, $third, -1 ];
    note 'fds: ' . join ' ', @{ $got->{fds} }[ 0, $third, -1 ];
    note 'old workers at a time: ' . max(@{ $got->{left} });
    cmp_ok($m[-1] - $m[$third], '<', 2 + $asan, 'memory of the master is flat');
    cmp_ok($w[-1] - $w[$third], '<', 0.05 * $streams + 4 + $asan,
        '... of a worker, too');

    my @last = map { stream($t, 20) } 1 .. 4;
    ok(read_all(\@last, SLACK), 'streams');
    is_deeply(tally(sub { verdict($_[0], $_[0]{want}) }, @last),
        { complete => 4 }, '... as a whole');
    $_->close for @last;
    my ($worker) = $t->workers;
    is(fd_kinds($worker)->{eventpoll}, 1, 'one epoll in a worker');
    my $fresh = nginx(workers => 2);
    is_deeply(fd_kinds($t->pid), fd_kinds($fresh->pid),
        'the master has the fds of a fresh one');
    $fresh->stop;
    is(scalar(my @l = locked($t)), 2, 'locks of two workers');
    quiet($t);
};

$base->done;
