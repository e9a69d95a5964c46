#!/usr/bin/perl

# nginx's processes and the runs in them: reload, quit, stop, a new binary, log
# files reopened, worker counts that change, and what an administrator does to
# a process.  What has to be scaled is in 81-storm.t.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentProcess;
use AgentTest;
use AgentUpstream;
use Mojo::JSON qw(decode_json encode_json);
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

# Everything here looks at times, and the machine has other things to do.
use constant SLACK => 10;

my @agents = (
    ok      => 'ok',
    words   => 'words,n=40,delay=0.05',
    brief   => 'words,n=8,delay=0.03',
    endless => 'words,n=100000,delay=0.05',
    slow    => 'words,n=100000,delay=0.5',
    silent  => 'hang,at=first',
    big     => 'big,kb=3000',
    fail    => 'status,code=500,wait=0.5',
    faillate => 'status,code=500,wait=1.5',
    stay    => {
        script => 'words,n=60,delay=0.05',
        agent  => 'on_disconnect continue;',
    },
    forever => {
        script => 'words,n=100000,delay=0.05',
        agent  => 'on_disconnect continue;',
    },
    hang    => {
        url   => 'http://127.0.0.1:%%HANG%%/v1',
        model => 'connect_timeout 1m;',
    },
    name    => {
        url      => 'http://slow.test/v1',
        location => 'resolver 127.0.0.1:%%DNS%%; resolver_timeout 1m;',
    },
    two     => {
        script => 'words,n=100000,delay=0.05',
        model  => 'max_inflight 2 queue=4 timeout=1m;',
    },
);

my $base = AgentTest->new;
my $u = $base->upstream;    # one model server for all of them
$u->dns('slow.test' => 'timeout');

# A configuration; opts: workers, main, server, http, agents, echo (words per
# second), what (replaces these agents).
sub config {
    my ($t, %o) = @_;
    my ($http, $locations) =
        agent_blocks(@{ $o{what} // \@agents }, @{ $o{agents} // [] });
    my ($workers, $rate) = ($o{workers} // 1, $o{echo} // 20);
    my %l = map { ($_ => $o{$_} // '') } qw(main http server);
    my %port = (UPSTREAM => $u->port, HANG => $u->hang_port,
        DNS => $u->dns_port);

    s/%%(UPSTREAM|HANG|DNS)%%/$port{$1}/g for $http, $locations;
    return $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes $workers;
$l{main}
events { worker_connections 1024; }
http {
    %%GLOBALS_HTTP%%
    $l{http}
$http
    agent_model echo { provider echo; set tokens_per_second $rate; }
    agent echo { model echo; }
    agent talk { model echo; on_disconnect continue; }
    server {
        listen 127.0.0.1:%%PORT%%;
        add_header X-Worker \$pid always;
        $l{server}
        location /echo { agent_pass echo; agent_owner off; }
        location /talk { agent_pass talk; agent_owner off; }
        location /pid { return 200 "\$pid"; }
$locations
    }
}
CONF
}

sub nginx {
    my (%o) = @_;
    my $t = AgentTest->new(level => $o{level} // 'info');
    my $n = $o{workers} // 1;
    my $start = $o{start} // sub { $_[0]->start };

    config($t, %o);
    $start->($t) or return undef;
    $t->wait_for(sub { $t->workers == $n }) or die "not $n workers\n";
    return $t;
}

# A stream whose run goes on and on, read to its first word.
sub begin {
    my ($t, $path, %o) = @_;
    my $s = $t->post_run({}, path => $path, stream => 1, %o);
    @$s{qw(path id)} = ($path, $s->{input}{runId});
    begun($t, $s) or diag "$path does not begin";
    return $s;
}

# The end of one: it stops when it is told to, and its log is quiet.
sub quiet {
    my ($t, @expected) = @_;
    $t->expect_log(@expected);
    $t->stop;
    my @bad = above_warn($t);
    ok(!@bad, 'nothing above warn in the log') or diag join "\n", @bad;
    is($u->errors, '', 'the model server had no errors');
}

my $words = join ' ', map {"w$_"} 1 .. 40;
my $said = "You said: $words";

# Streams that last two seconds, one half of them from echo.
sub short {
    my ($t, $n) = @_;
    return map {
        my $path = $_ % 2 ? '/words' : '/echo';
        my $s = $t->post_run($path eq '/echo' ? { text => $words } : {},
            path => $path, stream => 1);
        @$s{qw(path id want)} = ($path, $s->{input}{runId},
            $path eq '/echo' ? $said : $words);
        $s;
    } 1 .. $n;
}

# Streams without an end.
sub long {
    my ($t, $n, %o) = @_;
    my $text = 'and so on ' x 2000;
    return map {
        my $path = $_ % 2 ? $o{path} // '/endless' : '/echo';
        my $s = $t->post_run($path eq '/echo' ? { text => $text } : {},
            path => $path, stream => 1);
        @$s{qw(path id)} = ($path, $s->{input}{runId});
        $s;
    } 1 .. $n;
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
    return { %{ $r->json }, http => $r->{status},
        worker => $r->header('x-worker') };
}

sub status_of { return run_of(@_)->{status} // '-' }

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

sub whole { return tally(sub { verdict($_[0], $_[0]{want}) }, @_) }

sub ends { return tally(\&verdict, @_) }

sub close_all { $_->close for @_ }

# How long after that time it ended.
sub after { my ($s, $then) = @_; return $s->{start} + $s->{end_time} - $then }

subtest 'HUP' => sub {
    my $t = nginx();
    my ($old) = $t->workers;
    my @s = short($t, 30);
    my $stay = $t->post_run({}, path => '/stay', stream => 1);
    my $json = $t->post_run({}, path => '/words', stream => 1,
        accept => 'application/json');
    my $idle = $t->open_stream('GET', '/pid');
    $idle->finish(SLACK);
    is($idle->{body}, $old, 'a connection that is kept alive');
    my $big = $t->post_run({}, path => '/big', stream => 1);
    my $body = encode_json(run_input());
    my $half = $t->open_stream('POST', '/ok', [
        'Content-Type' => 'application/json',
        'Content-Length' => length $body ], substr $body, 0, 40);
    ok(begun($t, @s, $stay), 'thirty streams have begun');
    my $detached = $stay->{input}{runId};
    $stay->close;
    sleep 0.2;

    ok($t->reload, 'reload');
    my $start = time;
    my ($new) = $t->workers;
    isnt($new, $old, 'another worker');
    is_deeply([ $t->workers('old') ], [$old], '... the old one stays');

    # what the new one can tell of the old one's runs
    my $run = run_of($t, '/words', $s[0]{id});
    is($run->{worker}, $new, 'the new one answers');
    is($run->{status}, 'running', '... a run of the old one is running');
    like($run->{lastEventId} // '', qr/^\d+-\d+$/, '... has a last event');
    my $again = $t->post_run({ runId => $s[0]{id},
        threadId => $s[0]{input}{threadId} }, path => '/words');
    is(outcome($again), '409 run_id_in_use', '... cannot be joined');
    is(status_of($t, '/stay', $detached), 'running', 'a detached run, too');

    for my $i (1, 2) {
        my $s = $s[$i];
        my $asked = time;
        my $how = $i == 1 ? [ 'DELETE', "$s->{path}/runs/$s->{id}" ]
            : [ 'POST', "$s->{path}/runs/$s->{id}/cancel" ];
        my $r = $t->request(@$how);
        is($r->{status}, 202, "$how->[0] from the new worker");
        is($r->header('x-worker'), $new, '... it is that one');
        $s->finish(SLACK);
        is(verdict($s), 'cancelled', '... the stream ends');
        cmp_ok(after($s, $asked), '<', 2, '... soon');
        is(status_of($t, $s->{path}, $s->{id}), 'cancelled', '... status');
        is($t->request(@$how)->{status}, 204, '... once more');
    }

    # the old one's connections
    $half->send(substr $body, 40);
    $half->finish(SLACK);
    is(verdict($half), 'complete', 'a request that ends late');
    is($half->header('x-worker'), $old, '... says the old one');
    $idle->send("GET /pid HTTP/1.1\r\nHost: x\r\n\r\n");
    $idle->{$_} = undef for qw(complete status);
    $idle->_fill(time + 2);
    ok($idle->{eof} && !$idle->{status}, 'an idle connection is closed');

    # new ones
    my @new = short($t, 4);
    is($_->read_head(SLACK) && $_->header('x-worker'), $new,
        'a new stream is in the new worker') for @new;

    ok(read_all([ @s, @new, $json ], SLACK), 'all streams end');
    is_deeply(whole(@s), { complete => 28, cancelled => 2 }, '... as a whole');
    is_deeply(whole(@new), { complete => 4 }, '... the new ones');
    check_run($s[0]->events, name => '... legal');
    is($json->json->{text}, $words, '... and a JSON answer');
    ok($s[3]->{eof} || !$s[3]->_fill(time + 3) && $s[3]->{eof},
        'the old worker keeps no connection');
    is(status_of($t, '/words', $s[0]{id}), 'finished',
        'the new one knows that they are finished');
    $run = run_of($t, '/echo', $s[3]{id});
    is($run->{status}, 'finished', '... of echo, too');
    ok($run->{usage} && $run->{finishedAt}, '... with usage and time');
    my $big_id = $big->{input}{runId};
    is(status_of($t, '/big', $big_id), 'finished',
        'what a slow client has not read');
    ok(read_all([$big], SLACK), '... still comes');
    is(verdict($big, 'x' x (3000 * 1024)), 'complete', '... as a whole');
    close_all(@s, @new, $idle, $half, $json, $big);
    ok(alive($old) || status_of($t, '/stay', $detached) eq 'finished',
        'a detached run holds the old worker');
    ok($t->wait_for(sub { status_of($t, '/stay', $detached) eq 'finished' },
        SLACK), '... until it is finished');
    my $finished = time;
    ok(gone($t, 5, $old), '... which leaves then');
    note sprintf 'gone after %.2f s', time - $finished;
    is(status_of($t, '/stay', $detached), 'finished', '... the status stays');
    quiet($t);
};

subtest 'QUIT' => sub {
    my $t = nginx();
    my $pid = $t->pid;
    my @s = short($t, 30);
    my $stay = $t->post_run({}, path => '/stay', stream => 1);
    my $late = $t->post_run({}, path => '/fail', stream => 1);
    ok(begun($t, @s, $stay), 'thirty streams have begun');
    $stay->close;
    my $asked = time;
    $t->signal('QUIT');
    ok($t->wait_for(sub { !IO::Socket::INET->new(PeerAddr => '127.0.0.1',
        PeerPort => $t->port) }), 'no new connection');
    ok(read_all([ @s, $late ], SLACK), 'all streams end');
    is_deeply(whole(@s), { complete => 30 }, '... as a whole');
    is(verdict($late), 'upstream_error', '... and one that fails meanwhile');
    is($late->{status}, 502, '... with its status');
    close_all(@s, $late);
    ok(alive($pid), 'a detached run holds nginx');
    ok(gone($t, SLACK, $pid), '... until it is over');
    cmp_ok(time - $asked, '>', 2, '... not before');
    cmp_ok(time - $asked, '<', 3 + SLACK, '... and soon after');
    quiet($t, qr/agent run failed: upstream_error/);
};

# What of each kind of run becomes when the time is over.  A child that reads
# along does the long one meanwhile.
my %cut = (1 => 0.5, 2 => 1, 30 => 29);

sub shutdown_case {
    my ($t, $timeout, $signal) = @_;
    my ($old) = $t->workers;
    my $path = $timeout > 10 ? '/slow' : '/endless';
    my @s = long($t, 30, path => $path);
    my @two = map { $t->post_run({}, path => '/two', stream => 1) } 1, 2;
    my $forever = $t->post_run({}, path => '/forever', stream => 1);
    my $json = $t->post_run({}, path => $path, stream => 1,
        accept => 'application/json');
    my @quiet = map { $t->post_run({}, path => $_, stream => 1) }
        qw(/silent /hang /name);
    my %got;
    begun($t, @s, @two, $forever) or $got{begun} = 'not';
    my $detached = $forever->{input}{runId};
    $forever->close;

    # these have no head yet when the signal comes
    my $waits = $t->post_run({}, path => '/two', stream => 1);
    my @brief = map { $t->post_run({}, path => '/brief', stream => 1) } 1 .. 4;
    begun($t, @brief) or $got{begun} = 'not';
    my $master = $t->pid;

    if ($signal eq 'USR2') {
        kill 'USR2', $master;
        $t->wait_for(sub { -s $t->dir . '/nginx.pid.oldbin'
            && $t->workers == 2 });
        new_master($t);
    }

    my $asked = time;
    kill $signal eq 'USR2' ? 'QUIT' : $signal, $master;
    read_all([ @s, @two, $json, @quiet, $waits, @brief ],
        $timeout + SLACK);

    my @took = sort { $a <=> $b } map { after($_, $asked) }
        grep { $_->{end_time} } @s, @two;
    $got{streams} = ends(@s, @two);
    $got{brief} = ends(@brief);
    $got{others} = ends($json, @quiet, $waits);
    $got{statuses} = join ' ', map { $_->{status} // '-' } $json, $waits;
    $got{took} = [ @took[ 0, -1 ] ];
    close_all(@s, @two, $json, @quiet, $waits, @brief);
    $got{gone} = gone($t, 5, $old);
    $got{left} = time - $asked;
    waitpid $master, 0 if $signal eq 'USR2';
    $got{run} = run_of($t, '/forever', $detached) if $signal eq 'HUP';

    return \%got;
}

sub shutdown_checks {
    my ($name, $timeout, $signal, $got) = @_;
    my $min = $cut{$timeout};

    is($got->{begun}, undef, "$name: the streams have begun");
    is_deeply($got->{streams}, { worker_shutdown => 32 },
        '... each is told, none is cut') or diag explain $got;
    is_deeply($got->{brief}, { complete => 4 }, '... those that end do so');
    is_deeply($got->{others}, { worker_shutdown => 5 },
        '... a JSON answer, runs without a word, one that waits, too')
        or diag explain $got;
    my ($first, $last) = @{ $got->{took} };
    cmp_ok($first // 0, '>', $min - 0.2, '... not earlier than it must');
    cmp_ok($last // 99, '<', $timeout + 0.3, '... before the cut');
    note sprintf '%.2f to %.2f s after the signal, worker gone at %.2f s',
        $first // 0, $last // 0, $got->{left};
    ok($got->{gone}, '... the old worker leaves');
    cmp_ok($got->{left}, '<', ($last // 0) + 3, '... soon after that');
    return if $signal ne 'HUP';
    is($got->{run}{status}, 'error', '... a detached run ends like this');
    is($got->{run}{code}, 'worker_shutdown', '... with this code');
}

my ($t30, $from30, $pid30);

{
    $t30 = nginx(main => 'worker_shutdown_timeout 30s;');
    pipe $from30, my $to or die "pipe: $!";
    $pid30 = fork() // die "fork: $!";

    if ($pid30 == 0) {
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP ALRM);
        close $from30;
        my $got = eval { shutdown_case($t30, 30, 'HUP') } // { died => "$@" };
        syswrite $to, encode_json($got);
        POSIX::_exit(0);
    }

    close $to;
}

for my $timeout (1, 2) {
    subtest "worker_shutdown_timeout ${timeout}s" => sub {
        for my $signal (qw(HUP QUIT USR2)) {
            my $t = nginx(main => "worker_shutdown_timeout ${timeout}s;",
                start => $signal eq 'USR2' ? \&start_daemon : undef) or next;
            my $got = shutdown_case($t, $timeout, $signal);
            shutdown_checks($signal, $timeout, $signal, $got);
            quiet($t);
        }
    };
}

subtest 'TERM' => sub {
    my $t = nginx(workers => 2);
    my @workers = $t->workers;
    my $pid = $t->pid;
    my @s = (long($t, 30), short($t, 4));
    push @s, $t->post_run({}, path => '/silent', stream => 1),
        $t->post_run({}, path => '/endless', stream => 1,
            accept => 'application/json');
    ok(begun($t, @s[ 0 .. 33 ]), 'the streams have begun');
    my $asked = time;
    $t->signal('TERM');
    read_all(\@s, 5);
    ok(gone($t, 5, @workers), 'the workers leave');
    cmp_ok(time - $asked, '<', 3, '... at once');
    my $status;
    ok($t->wait_for(sub { waitpid($pid, POSIX::WNOHANG()) == $pid
        and $status = $?, 1 }), '... and the master');
    is($status, 0, '... as it should');
    delete $t->{pid};
    is(scalar(grep { $_->{eof} || $_->{complete} } @s), scalar @s,
        'no client is left hanging');
    close_all(@s);
    quiet($t);

    # one of two workers: the other one can tell what became of its runs
    $t = nginx(workers => 2);
    for my $signal (qw(TERM QUIT)) {
        my @s = short($t, 24);
        ok(begun($t, @s), "$signal to one worker");
        my $one = $s[0]->header('x-worker');
        my @hit = grep { $_->header('x-worker') == $one } @s;
        my @other = grep { $_->header('x-worker') != $one } @s;
        kill $signal, $one;
        ok(read_all(\@s, SLACK), '... all streams end');
        is_deeply(whole(@other), @other ? { complete => scalar @other } : {},
            '... those of the other are whole');
        close_all(@s);
        ok(gone($t, 5, $one), '... it leaves');
        ok($t->wait_for(sub { $t->workers == 2 }, 5), '... another one comes');

        if ($signal eq 'QUIT') {
            is_deeply(whole(@hit), { complete => scalar @hit },
                '... its streams are whole, too');
            next;
        }

        my %status;
        for my $s (@hit) {
            my $run = run_of($t, $s->{path}, $s->{id});
            $status{"$run->{status} " . ($run->{code} // '')}++;
        }
        is_deeply(\%status, { 'error worker_shutdown' => scalar @hit },
            '... its runs are over') or diag explain \%status;
    }
    my @new = short($t, 8);
    ok(read_all(\@new, SLACK), 'new streams end');
    is_deeply(whole(@new), { complete => 8 }, '... as a whole');
    close_all(@new);
    quiet($t);
};

subtest 'USR1' => sub {
    my $t = nginx(workers => 2);
    my $dir = $t->dir;
    my @old = short($t, 10);
    my $late = $t->post_run({}, path => '/faillate', stream => 1);
    ok(begun($t, @old), 'streams');
    ok($t->reload, '... of workers that are leaving');
    my @s = short($t, 20);
    my $fail = $t->post_run({}, path => '/fail', stream => 1);
    ok(begun($t, @s), '... and of new ones');
    my %fds = map { ($_ => fds($_)) } $t->pid, $t->workers;
    my @pids = ($t->pid, $t->workers, $t->workers('old'));

    for my $name (qw(error.log access.log)) {
        rename "$dir/$name", "$dir/$name.1" or die "$name: $!";
    }
    $t->signal('USR1');
    ok($t->wait_for(sub { -e "$dir/error.log" && -e "$dir/access.log" }),
        'the files are there again');
    ok($t->wait_for(sub {
        my %open;
        for my $pid (@pids) {
            for my $fd (glob "/proc/$pid/fd/*") {
                $open{$pid}++ if (readlink $fd // '') =~ m{/error\.log\.1$};
            }
        }
        !%open }), '... and everybody writes to the new ones');

    ok(read_all([ @old, @s, $fail, $late ], SLACK), 'all streams end');
    is_deeply(whole(@old, @s), { complete => 30 }, '... as a whole');
    is(verdict($_), 'upstream_error', 'a run that fails') for $fail, $late;
    close_all(@old, @s, $fail, $late);
    ok($t->wait_for(sub { !$t->workers('old') }), 'the old workers leave');
    my $failed = () = $t->log =~ /agent run failed: upstream_error/g;
    is($failed, 2, 'both failures are in the new file');
    unlike($t->_slurp('error.log.1'), qr/agent run failed/,
        '... none in the old one');
    my $lines = () = $t->access_log =~ m{"POST /(?:words|echo) }g;
    is($lines, 30, 'the access log has all streams');
    ok($t->wait_for(sub {
        !grep { ($fds{$_} // 0) < fds($_) } $t->pid }, 5), 'fds of the master')
        or diag "$fds{$t->{pid}} before, " . fds($t->pid);
    quiet($t, qr/agent run failed: upstream_error/);
};

subtest 'USR2' => sub {
    my $t = nginx(workers => 2, start => \&start_daemon)
        or return fail('a process that can adopt daemons (subreaper)');
    my $old = $t->pid;
    my @old = $t->workers;
    my $dir = $t->dir;
    my @s = short($t, 30);
    ok(begun($t, @s), 'thirty streams of a daemon');

    kill 'USR2', $old;
    ok($t->wait_for(sub { -s "$dir/nginx.pid.oldbin"
        && $t->workers == 4 }), 'another master and its workers');
    my $new = new_master($t);
    isnt($new, $old, '... in the pid file');
    my %old = map { ($_ => 1) } @old;
    my @new = grep { !$old{$_} } $t->workers;
    is(fd_kinds($new)->{memfd}, 1, '... with a file of slots of its own');
    kill 'QUIT', $old;
    ok($t->wait_for(sub { $t->workers == 2 }), 'the old one quits');
    my @later = short($t, 8);
    my %served;
    $served{ $_->header('x-worker') // '-' }++
        for grep { $_->read_head(SLACK) } @later;
    ok(!(grep { $old{$_} } keys %served), 'the new one serves');

    # it knows nothing of the old one's runs: their zone is another one
    my $mine = grep { alive($_) } @old;
    ok($mine, 'the old workers are still there');
    is(run_of($t, $s[0]{path}, $s[0]{id})->{http}, 404,
        'their runs are not known');

    ok(read_all([ @s, @later ], SLACK), 'all streams end');
    is_deeply(whole(@s, @later), { complete => 38 }, '... as a whole');
    close_all(@s, @later);
    my $reaped;
    ok($t->wait_for(sub { $reaped ||= waitpid $old, POSIX::WNOHANG();
        $reaped && !grep { alive($_) } $old, @old }),
        'the old processes leave');
    is($reaped == $old ? $? : -1, 0, '... as they should');
    is_deeply([ sort $t->workers ], [ sort @new ], 'the new ones stay');

    # and back: the new binary does not please
    @old = @new;
    %old = map { ($_ => 1) } @old;
    $old = $t->pid;
    @s = short($t, 20);
    my $long = begin($t, '/endless');
    ok(begun($t, @s), 'streams');
    kill 'USR2', $old;
    ok($t->wait_for(sub { -s "$dir/nginx.pid.oldbin"
        && $t->workers == 4 }), 'a third binary');
    $new = new_master($t);
    kill 'WINCH', $old;
    ok($t->wait_for(sub { $t->workers('old') == 2 }),
        'the workers of the second one are told to leave');
    @later = short($t, 8);
    ok(begun($t, @later), '... streams of the third');
    ok(!(grep { $old{ $_->header('x-worker') } } @later), '... are elsewhere');
    kill 'HUP', $old;
    ok($t->wait_for(sub { $t->workers == 4 }), 'the second one starts anew');
    kill 'QUIT', $new;
    ok($t->wait_for(sub { $t->workers == 2 }), 'the third one quits');
    is(status_of($t, '/endless', $long->{id}), 'running',
        'the second one knows its runs');
    is($t->request('DELETE', "/endless/runs/$long->{id}")->{status}, 202,
        '... and stops one');
    ok(read_all([ @s, @later, $long ], SLACK), 'all streams end');
    is_deeply(whole(@s, @later), { complete => 28 }, '... as a whole');
    is(verdict($long), 'cancelled', '... the one, too');
    close_all(@s, @later, $long);
    ok(gone($t, 5, $new), 'the third binary is gone');
    $t->{pid} = $old;
    ok($t->wait_for(sub { $t->_slurp('nginx.pid') eq "$old\n" }),
        'the pid file is the second one\'s');
    ok($t->wait_for(sub { !$t->workers('old') }), 'no old worker is left');
    my @last = short($t, 4);
    ok(read_all(\@last, SLACK), 'streams');
    is_deeply(whole(@last), { complete => 4 }, '... as a whole');
    close_all(@last);
    quiet($t);
};

# A model call that is still connecting ends in every way without a trace.
subtest 'a run that is connecting' => sub {
    my $t = nginx(main => 'worker_shutdown_timeout 1s;', agents => [
        timeout => {
            url   => 'http://127.0.0.1:%%HANG%%/v1',
            model => 'connect_timeout 500ms;',
        },
        limit => {
            url   => 'http://127.0.0.1:%%HANG%%/v1',
            agent => 'max_run_time 500ms;',
        },
    ]);
    my ($old) = $t->workers;
    my @s = map { my $s = $t->post_run({}, path => $_, stream => 1);
        $s->{id} = $s->{input}{runId}; $s }
        qw(/hang /hang /name /name /timeout /limit /hang /name);
    ok($t->wait_for(sub { !grep { status_of($t, @$_) ne 'running' }
        [ '/hang', $s[0]{id} ], [ '/name', $s[2]{id} ] }), 'calls');
    $s[$_]->close for 0, 2;
    $t->request('DELETE', "/hang/runs/$s[1]{id}");
    $t->request('DELETE', "/name/runs/$s[3]{id}");
    ok(read_all([ @s[ 1, 3, 4, 5 ] ], SLACK), '... end');
    is(join(' ', map { verdict($_) } @s[ 1, 3, 4, 5 ]),
        'cancelled cancelled upstream_timeout run_timeout',
        '... stopped, out of time');
    ok($t->wait_for(sub { !grep { status_of($t, @$_) ne 'cancelled' }
        [ '/hang', $s[0]{id} ], [ '/name', $s[2]{id} ] }), '... or alone');
    $t->reload;
    ok(read_all(\@s, SLACK), 'the others end');
    is(verdict($_), 'worker_shutdown', '... by shutdown') for @s[ 6, 7 ];
    close_all(@s);
    ok(gone($t, 5, $old), 'the old worker leaves');
    quiet($t, qr/agent run failed: upstream_timeout/);
};

subtest 'many reloads' => sub {
    my $t = nginx(workers => 2);
    my (%before, @s);

    # the first ones make what is made once
    for my $i (0 .. 20) {
        push @s, my @new = short($t, 2);
        begun($t, @new);
        my ($one) = $t->workers;
        $t->reload or last;

        if ($i == 2 || $i == 20) {
            ok(read_all(\@s, SLACK), "streams of reload $i end");
            close_all(@s);
            ok($t->wait_for(sub { !$t->workers('old') }),
                '... the old workers leave');
            my @n = map { $t->post_run({}, path => '/brief', stream => 1) }
                1, 2;
            read_all(\@n, SLACK);
            close_all(@n);
            my ($worker) = $t->workers;
            my %now = (master => fd_kinds($t->pid),
                worker => fd_kinds($worker));
            if (!%before) { %before = %now; next }
            is_deeply($now{master}, $before{master}, 'fds of the master')
                or diag explain \%before, \%now;
            is($now{worker}{$_} // 0, $before{worker}{$_} // 0,
                "fds of a worker: $_") for qw(eventpoll memfd eventfd file);

            # some are of the model calls that this worker happened to get
            cmp_ok(($now{worker}{socket} // 0)
                - ($before{worker}{socket} // 0), '<=', 8, '... socket')
                or diag explain \%before, \%now;
        }
    }

    # one upon the other
    for (1 .. 15) {
        push @s, short($t, 1);
        $t->signal('HUP');
        sleep 0.03;
    }

    ok(read_all(\@s, SLACK), 'the streams of a salvo end');
    close_all(@s);
    is(scalar @s, 57, 'all reloads');
    is_deeply(whole(@s), { complete => 57 }, 'all streams are whole');
    ok($t->wait_for(sub { !$t->workers('old') && $t->workers == 2 }),
        'two workers are left');
    quiet($t);
};

subtest 'worker_processes' => sub {
    my $t = nginx(workers => 1);
    my (@s, %status);
    my $first = begin($t, '/endless');

    for my $n (4, 16, 1) {
        push @s, short($t, 12);
        config($t, workers => $n);
        my %before = map { ($_->[0] => 1) } $t->_processes;
        $t->signal('HUP');
        push @s, short($t, 6);
        ok($t->wait_for(sub {
            my @now = $t->workers;
            return @now == $n && !grep { $before{$_} } @now;
        }), "$n workers");
        push @s, short($t, 12);
        ok(begun($t, @s[ -12 .. -1 ]), '... serve');
        $status{$n} = status_of($t, '/endless', $first->{id});
    }

    is_deeply(\%status, { 4 => 'running', 16 => 'running', 1 => 'running' },
        'a run of the first worker is known throughout');
    is($t->request('DELETE', "/endless/runs/$first->{id}")->{status}, 202,
        '... and stopped from the last one');
    ok(read_all([ @s, $first ], SLACK), 'all streams end');
    is_deeply(whole(@s), { complete => 90 }, '... as a whole');
    is(verdict($first), 'cancelled', '... and the first one');
    close_all(@s, $first);
    ok($t->wait_for(sub { !$t->workers('old') }), 'the old workers leave');
    quiet($t);
};

subtest 'the master is killed' => sub {
    my $t = nginx(workers => 2);
    my @workers = $t->workers;
    my @s = short($t, 20);
    my $stay = $t->post_run({}, path => '/stay', stream => 1);
    ok(begun($t, @s, $stay), 'streams');
    kill 'KILL', $t->pid;
    waitpid $t->pid, 0;
    delete $t->{pid};
    my @later = short($t, 4);
    ok(read_all([ @s, @later ], SLACK), 'its workers go on');
    is_deeply(whole(@s, @later), { complete => 24 }, '... with all streams');
    is($t->request('DELETE', "/stay/runs/$stay->{input}{runId}")->{status},
        202, '... stop a run');
    close_all(@s, @later);
    @s = short($t, 8);
    begun($t, @s);
    kill 'QUIT', @workers;
    ok(read_all([ @s, $stay ], SLACK), 'asked to quit, the streams end');
    is_deeply(whole(@s), { complete => 8 }, '... as a whole');
    close_all(@s, $stay);
    ok(gone($t, 5, @workers), '... and they leave')
        or kill 'KILL', @workers;
    quiet($t);
};

subtest 'a worker is stopped for a while' => sub {
    my $t = nginx(agents => [
        limit => {
            script => 'words,n=100000,delay=0.05',
            agent  => 'max_run_time 6s;',
        },
        idle  => {
            script => 'words,n=100,delay=0.05',
            model  => 'idle_timeout 2s;',
        },
        first => {
            script => 'slowhead,ms=500',
            model  => 'first_byte_timeout 2s;',
        },
        after => {
            script => 'words,n=100000,delay=0.05',
            agent  => 'on_disconnect cancel after=6s;',
        },
    ]);
    my ($worker) = $t->workers;
    my $start = time;
    my @limit = map { $t->post_run({}, path => '/limit', stream => 1) } 1 .. 10;
    my @s = short($t, 20);
    my @idle = map { $t->post_run({}, path => '/idle', stream => 1) } 1 .. 5;
    my $after = $t->post_run({}, path => '/after', stream => 1);
    my $beat = $t->post_run({}, path => '/silent', stream => 1);
    ok(begun($t, @limit, @s, @idle, $after), 'streams');
    $after->close;
    my @first = map { $t->post_run({}, path => '/first', stream => 1) } 1 .. 5;
    sleep 0.2;
    kill 'STOP', $worker;
    sleep 3;
    kill 'CONT', $worker;
    my $woken = time;

    ok(read_all([ @s, @idle, @first ], SLACK), 'the streams go on and end');
    is_deeply(whole(@s), { complete => 20 }, '... as a whole');

    # as proxy_read_timeout: nginx looks at its clock before it reads
    my %shorter = (%{ ends(@idle) }, %{ ends(@first) });
    delete @shorter{qw(complete upstream_timeout)};
    is_deeply(\%shorter, {}, 'a timeout of the model may be over')
        or diag explain \%shorter;
    is(status_of($t, '/after', $after->{input}{runId}), 'running',
        'on_disconnect cancel after=: not yet') if time - $start < 5.5;
    is(status_of($t, '/silent', $beat->{input}{runId}), 'running',
        'a silent run goes on');
    ok(read_all(\@limit, SLACK), 'the runs with a limit end');
    is_deeply(ends(@limit), { run_timeout => 10 }, '... as they must');
    my @took = sort { $a <=> $b } map { after($_, $start) } @limit;
    cmp_ok($took[0], '>', 5.8, '... not earlier');
    cmp_ok($took[-1], '<', 9, '... and not much later');
    note sprintf '%.2f to %.2f s, woken at %.2f s', @took[ 0, -1 ],
        $woken - $start;
    ok($t->wait_for(sub { status_of($t, '/after', $after->{input}{runId})
        eq 'cancelled' }), 'on_disconnect cancel after=: now');
    close_all(@s, @idle, @first, @limit, $beat);
    quiet($t, qr/agent run failed: upstream_timeout/);
};

# A short time leaves less than a tick of the module's clock.
subtest 'worker_shutdown_timeout below a second' => sub {
    for my $timeout (qw(100ms 200ms 500ms)) {
        my $t = nginx(main => "worker_shutdown_timeout $timeout;");
        my ($old) = $t->workers;
        my @s = long($t, 10);
        ok(begun($t, @s), "$timeout: streams");
        $t->signal('HUP');
        read_all(\@s, SLACK);
        is_deeply(ends(@s), { worker_shutdown => 10 },
            '... are told before the cut') or diag explain ends(@s);
        close_all(@s);
        ok(gone($t, 5, $old), '... the old worker leaves');
        quiet($t);
    }
};

# Requests whose body is complete when the worker is on its way out already.
subtest 'late requests' => sub {
    my $t = nginx(main => 'worker_shutdown_timeout 4s;');
    my ($old) = $t->workers;
    my $open = sub {
        my ($path) = @_;
        my $body = encode_json(run_input());
        my $s = $t->open_stream('POST', $path, [
            'Content-Type' => 'application/json',
            'Content-Length' => length $body ], substr $body, 0, 40);
        $s->{rest} = substr $body, 40;
        return $s;
    };
    my ($brief, $endless, $last) = map { $open->($_) }
        qw(/brief /endless /endless);
    sleep 0.2;
    ok($t->reload, 'reload');
    my $then = time;
    is_deeply([ $t->workers('old') ], [$old], 'requests hold the old worker');
    sleep 2.3;
    $_->send($_->{rest}) for $brief, $endless;
    ok($brief->finish(SLACK), 'a request ends late');
    is(verdict($brief), 'complete', '... it is served');
    is($brief->header('x-worker'), $old, '... by the old worker');
    sleep 0.1 while time - $then < 3.5;
    $last->send($last->{rest});
    read_all([ $endless, $last ], SLACK);
    is(verdict($endless), 'worker_shutdown', 'one without an end is told');
    my $took = $endless->{end_time} ? after($endless, $then) : 99;
    cmp_ok($took, '<', 4.2, '... in time');
    is(outcome($last), '503 draining', 'one that is too late is refused')
        or diag verdict($last);
    close_all($brief, $endless, $last);
    ok(gone($t, 5, $old), 'the old worker leaves');
    quiet($t);
};

subtest 'another configuration' => sub {
    my @one = (fast => 'words,n=40,delay=0.05');
    my $t = nginx(agents => \@one, echo => 20);
    my $begin = sub {
        my @s = map { $t->post_run({}, path => '/fast', stream => 1) } 1 .. 4;
        $_->{want} = $words for @s;
        push @s, grep { $_->{path} eq '/echo' } short($t, 8);
        ok(begun($t, @s), 'streams');
        return @s;
    };
    my @s = $begin->();
    my $other = begin($t, '/endless');

    # model, url, pace and owner
    my $what = 'agent_owner $arg_user;';
    config($t, echo => 1000, agents => [
        fast => {
            script => 'words,n=5',
            agent  => 'on_disconnect continue; max_run_time 1m;',
        },
    ], server => "location /mine { agent_pass endless; $what }");
    ok($t->reload, 'reload: another url, pace, owner');
    my $r = $t->post_run({}, path => '/fast');
    is(verdict($r, 'w1 w2 w3 w4 w5'), 'complete', 'a run of the new url');
    my $start = time;
    $r = $t->post_run({ text => $words }, path => '/echo');
    is(verdict($r, $said), 'complete', 'a run of the new pace');
    cmp_ok(time - $start, '<', 1, '... which is quick');
    is(run_of($t, '/mine', $other->{id})->{http}, 401, 'nobody');
    $r = $t->request('GET', "/mine/runs/$other->{id}?user=eve");
    is($r->{status}, 404, 'a run from before is nobody else\'s');
    $r = $t->request('DELETE', "/mine/runs/$other->{id}?user=eve");
    is($r->{status}, 404, '... to stop, too');
    is(status_of($t, '/endless', $other->{id}), 'running',
        '... its own location knows it');
    ok(read_all(\@s, SLACK), 'the streams end');
    is_deeply(whole(@s), { complete => 8 }, '... as they began');
    close_all(@s);

    # no agent at all, and back: the zone is given up in between
    @s = short($t, 6);
    ok(begun($t, @s), 'streams');
    my $fds = fds($t->pid);
    $t->conf(<<'CONF');
%%GLOBALS%%
events { }
http {
    %%GLOBALS_HTTP%%
    server { listen 127.0.0.1:%%PORT%%; return 204; }
}
CONF
    ok($t->reload, 'reload: no agent');
    is($t->request('GET', '/')->{status}, 204, '... at all');
    config($t);
    ok($t->reload, 'reload: as before');
    is(run_of($t, '/endless', $other->{id})->{http}, 404,
        'runs of then are unknown');
    $r = $t->post_run({ runId => $other->{id},
        threadId => $other->{input}{threadId} }, path => '/ok');
    is(verdict($r, 'Hello, world!'), 'complete', 'a run');
    ok(read_all(\@s, SLACK), 'the streams of then end');
    is_deeply(whole(@s), { complete => 6 }, '... as a whole');
    $other->_fill(time + 0.1);
    ok(!$other->{eof} && !$other->{complete}, '... or go on');
    close_all(@s, $other);
    ok($t->wait_for(sub { !$t->workers('old') }), 'the old workers leave');
    ok($t->wait_for(sub { fds($t->pid) <= $fds }), 'fds of the master')
        or diag fds($t->pid) . ", $fds before";
    quiet($t, qr/forged/);
};

subtest 'a broken configuration' => sub {
    my $t = nginx(workers => 2);
    my $good = $t->{conf};
    my $up = $u->port;
    my %broken = (
        'no agent'  => [ qr/unknown agent "nobody"/, sub {
            s/agent_pass ok;/agent_pass nobody;/ } ],
        'no model'  => [ qr/nothere/, sub { s/model ok;/model nothere;/ } ],
        'no brace'  => [ qr/unexpected end of file/, sub { s/\}\s*\z// } ],
        'no key'    => [ qr/nofile/, sub {
            s/model stub-1;/model stub-1; key file:nofile;/ } ],
        'no port'   => [ qr/bind\(\).*failed|still could not bind/, sub {
            s/(listen [^;]+;)/$1 listen 127.0.0.1:$up;/ } ],
        'a zone'    => [ qr/ngx_agent_registry|zone/, sub {
            s{(server \{)}{limit_req_zone \$uri zone=ngx_agent_registry:1m
                rate=1r/s; $1};
        } ],
    );
    my @workers = sort $t->workers;
    my $long = begin($t, '/endless');
    my $kinds;

    for my $round (1, 2) {
        my @s = short($t, 30);
        ok(begun($t, @s), "round $round: streams");

        for my $name (sort keys %broken) {
            next if $name eq 'no port' && $round == 2;    # takes its time
            my ($re, $edit) = @{ $broken{$name} };
            local $_ = $good;
            $edit->();
            isnt($_, $good, "$name: changed");
            $t->write_file('nginx.conf', $_);
            my $seen = length $t->log;
            $t->signal('HUP');
            ok($t->wait_for(sub {
                substr($t->log, $seen) =~ /\[emerg\].*(?:$re)/ }),
                '... refused') or diag substr $t->log, $seen;
        }

        # binding is tried for some seconds
        ok($t->wait_for(sub { $t->log =~ /could not bind/ }), 'all refused');
        ok(read_all(\@s, SLACK), 'the streams end');
        is_deeply(whole(@s), { complete => 30 }, '... as a whole');
        close_all(@s);
        is_deeply([ sort $t->workers ], \@workers, 'the workers are the same');
        is(scalar($t->workers('old')), 0, '... and none is leaving');
        sleep 1;
        my $now = [ map { fd_kinds($_) } $t->pid ];
        is_deeply($now, $kinds, 'fds of the master') or diag explain $now
            if $kinds;
        $kinds //= $now;
    }

    is(status_of($t, '/endless', $long->{id}), 'running', 'a run goes on');
    $t->write_file('nginx.conf', $good);
    ok($t->reload, 'the good one again');
    is($t->request('DELETE', "/endless/runs/$long->{id}")->{status}, 202,
        '... stops the run');
    $long->finish(SLACK);
    is(verdict($long), 'cancelled', '... which ends');
    my @s = short($t, 4);
    ok(read_all(\@s, SLACK), 'streams');
    is_deeply(whole(@s), { complete => 4 }, '... as a whole');
    close_all(@s, $long);
    quiet($t, qr/\[emerg\]/);
};

subtest 'nginx -t beside it' => sub {
    my $t = nginx(workers => 2);
    my @s = short($t, 10);
    my $long = begin($t, '/endless');
    ok(begun($t, @s), 'streams');
    my @pids = sort { $a <=> $b } $t->_session;
    my %fds = map { ($_ => fds($_)) } @pids;
    my $file = $t->_slurp('nginx.pid');

    for (1 .. 5) {
        my $out = qx{$t->{nginx} -t -p ${\$t->dir}/ -c ${\$t->dir}/nginx.conf \\
                     -e ${\$t->dir}/test.log 2>&1 </dev/null};
        is($?, 0, 'nginx -t') or diag $out;
    }

    is($t->_slurp('nginx.pid'), $file, 'the pid file is as it was');
    is_deeply([ sort { $a <=> $b } $t->_session ], \@pids, '... and processes');
    is(status_of($t, '/endless', $long->{id}), 'running', 'a run is known');
    ok(read_all(\@s, SLACK), 'the streams end');
    is_deeply(whole(@s), { complete => 10 }, '... as a whole');
    is($t->request('DELETE', "/endless/runs/$long->{id}")->{status}, 202,
        '... and one is stopped');
    $long->finish(SLACK);
    is(verdict($long), 'cancelled', '... which ends');
    close_all(@s, $long);
    ok($t->wait_for(sub { !grep { fds($_) > $fds{$_} } @pids }), 'fds')
        or diag explain \%fds, { map { ($_ => fds($_)) } @pids };
    quiet($t);
};

subtest 'one process' => sub {
    my $t = AgentTest->new(level => 'info');
    config($t);
    start_single($t);
    my @s = short($t, 20);
    my $long = begin($t, '/endless');
    ok(begun($t, @s), 'master_process off: streams');
    is($long->header('x-worker'), $t->pid, '... of that process');
    is(status_of($t, '/endless', $long->{id}), 'running', 'a run is known');
    my $two = $t->post_run({ runId => $long->{id},
        threadId => $long->{input}{threadId} }, path => '/endless',
        stream => 1);
    is($two->read_head(SLACK), 200, '... can be joined');
    is($t->request('DELETE', "/endless/runs/$long->{id}")->{status}, 202,
        '... and stopped');
    ok(read_all([ @s, $long, $two ], SLACK), 'the streams end');
    is_deeply(whole(@s), { complete => 20 }, '... as a whole');
    is(verdict($_), 'cancelled', '... the stopped one') for $long, $two;
    close_all(@s, $long, $two);
    my ($code, $out) = command($t, 'reopen');
    is($code, 0, 'nginx -s reopen') or diag $out;
    @s = long($t, 6);
    ok(begun($t, @s), 'streams');
    quiet($t);
    read_all(\@s, 2);
    is(scalar(grep { $_->{eof} || $_->{complete} } @s), 6,
        'no client is left hanging');
    close_all(@s);
};

subtest 'nginx -s' => sub {
    my $t = nginx(start => \&start_daemon)
        or return fail('a process that can adopt daemons (subreaper)');
    my @s = short($t, 10);
    ok(begun($t, @s), 'streams of a daemon');
    my ($old) = $t->workers;
    my ($code, $out) = command($t, 'reload');
    is($code, 0, 'nginx -s reload') or diag $out;
    ok($t->wait_for(sub { my ($new) = $t->workers;
        $new && $new != $old }), '... another worker');
    is(status_of($t, $s[0]{path}, $s[0]{id}), 'running', '... knows the run');
    ok(read_all(\@s, SLACK), 'the streams end');
    is_deeply(whole(@s), { complete => 10 }, '... as a whole');
    close_all(@s);

    @s = short($t, 10);
    ok(begun($t, @s), 'streams');
    my $pid = $t->pid;
    ($code, $out) = command($t, 'quit');
    is($code, 0, 'nginx -s quit') or diag $out;
    ok(read_all(\@s, SLACK), '... the streams end');
    is_deeply(whole(@s), { complete => 10 }, '... as a whole');
    close_all(@s);
    ok($t->wait_for(sub { waitpid $pid, POSIX::WNOHANG() }), '... it leaves');
    is($?, 0, '... as it should');
    delete $t->{pid};
    ok($t->wait_for(sub { !$t->_session }), '... with all processes');

    my $again = nginx(start => \&start_daemon);
    @s = long($again, 10);
    ok(begun($again, @s), 'streams of another one');
    $pid = $again->pid;
    ($code, $out) = command($again, 'stop');
    is($code, 0, 'nginx -s stop') or diag $out;
    ok($t->wait_for(sub { waitpid $pid, POSIX::WNOHANG() }), '... it leaves');
    is($?, 0, '... as it should');
    delete $again->{pid};
    ok($t->wait_for(sub { !$again->_session }), '... with all processes');
    close_all(@s);
    quiet($_) for $t, $again;
};

# A connection of HTTP/2 stays while it has a stream, and may ask for more.
subtest 'HTTP/2' => sub {
    return fail('node is installed')
        if !grep { -x "$_/node" } split /:/, $ENV{PATH};
    my $t = nginx(main => 'worker_shutdown_timeout 4s;', server =>
        'listen 127.0.0.1:%%PORT1%% http2;');
    my ($old) = $t->workers;
    my $file = $t->write_file('h2.mjs', <<'JS');
import http2 from 'node:http2';
import readline from 'node:readline';
const s = http2.connect(`http://127.0.0.1:${process.argv[2]}`);
const say = (...a) => console.log(...a);
s.on('error', e => say('session', e.code));
let gone = false;
s.on('goaway', () => { gone = true; say('goaway'); });
s.on('close', () => { say('closed'); process.exit(0); });
const post = (path, name) => {
    if (s.closed || s.destroyed || gone) return say(name, 'goaway');
    const r = s.request({ ':method': 'POST', ':path': path,
        'content-type': 'application/json', accept: 'text/event-stream' });
    let body = '', status = 0, begun = false;
    r.on('response', h => { status = h[':status']; });
    r.on('data', d => {
        body += d;
        if (begun || !/CONTENT/.test(body)) return;
        begun = true;
        say(name, 'begun');
    });
    r.on('error', e => say(name, e.code));
    r.on('end', () => say(name, status,
        (body.match(/"type":"RUN_(FINISHED|ERROR)"/g) || []).length,
        (body.match(/"code":"(\w+)"/) || [])[1] || 'whole'));
    r.end(JSON.stringify({ messages:
        [{ id: '1', role: 'user', content: 'Hi' }] }));
};
post('/words', 'first');
post('/endless', 'second');
readline.createInterface({ input: process.stdin })
    .on('line', () => post('/ok', 'third'));
JS
    require IPC::Open2;
    my $pid = IPC::Open2::open2(my $from, my $to, 'node', $file, $t->port(1));
    my %seen;
    my $wait = sub {
        my ($re) = @_;
        my $end = time + SLACK;
        while (!grep { /$re/ } keys %seen) {
            my $r = '';
            vec($r, fileno $from, 1) = 1;
            return 0 if time > $end || select($r, undef, undef, 1) < 0;
            next if !vec $r, fileno $from, 1;
            defined(my $line = readline $from) or return 0;
            chomp $line;
            $seen{$line}++;
        }
        return 1;
    };
    ok($wait->(qr/first begun/) && $wait->(qr/second begun/), 'two streams');
    ok($t->reload, 'reload');
    my $then = time;
    syswrite $to, "more\n";
    ok($wait->(qr/^(third|goaway)/), 'a third on the same connection')
        or diag explain \%seen;
    ok($seen{'third 503 0 draining'} || $seen{goaway}, '... is refused')
        or diag explain \%seen;
    note join ', ', sort keys %seen;
    ok($wait->(qr/^first 200 1 whole/), 'the first ends as a whole')
        or diag explain \%seen;
    ok($wait->(qr/^second 200 1 worker_shutdown/), 'the second is told')
        or diag explain \%seen;
    ok($wait->(qr/^closed/), 'the connection is closed') or diag explain \%seen;
    cmp_ok(time - $then, '<', 4 + SLACK, '... in time');
    ok(gone($t, 5, $old), 'the old worker leaves');
    close $to;
    close $from;
    kill 'KILL', $pid;
    waitpid $pid, 0;
    quiet($t);
};

subtest 'worker_shutdown_timeout 30s' => sub {
    local $/;
    my $got = decode_json(<$from30>);
    waitpid $pid30, 0;
    shutdown_checks('HUP', 30, 'HUP', $got);
    quiet($t30);
    $t30 = undef;
};

$base->done;
