#!/usr/bin/perl

# agent_run_log: one line of JSON for each run, however and wherever it ends.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use List::Util qw(sum0);
use Mojo::JSON qw(decode_json);
use Test::More;
use Time::HiRes qw(sleep time);

my $scale = $ENV{AGENT_SCALE} || 1;

my @MEMBERS = sort qw(time agent model runId threadId status finishReason code
    inputTokens outputTokens firstTokenTime runTime events readers detached);

my @agents = (
    ok      => 'ok',
    usage   => 'usage',
    tool    => script('tool', name => 'get_weather', args => '{}'),
    length  => script('words', n => 5, finish => 'length'),
    words   => 'words,n=20,delay=0.05',
    late    => 'slowhead,ms=700',
    endless => 'words,n=100000,delay=0.05',
    fail    => 'status,code=500',
    cut     => 'cut,at=content',
    silent  => 'hang,at=first',
    stay    => {
        script => 'words,n=20,delay=0.05',
        agent  => 'on_disconnect continue;',
    },
    grace   => {
        script => 'words,n=100000,delay=0.05',
        agent  => 'on_disconnect cancel after=300ms;',
    },
    limit   => { script => 'hang,at=first', agent => 'max_run_time 500ms;' },
    one     => { script => 'words,n=20,delay=0.05', model => 'max_inflight 1;' },
    own     => { script => 'ok', location => 'agent_run_log own.log;' },
    none    => { script => 'ok', location => 'agent_run_log off;' },
    full    => { script => 'ok', location => 'agent_run_log /dev/full;' },
);

sub nginx {
    my ($workers, $main) = @_;
    my $t = AgentTest->new;
    my ($http, $locations) = agent_blocks(@agents);

    $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes $workers;
$main
events { worker_connections 1024; }
http {
    %%GLOBALS_HTTP%%
    log_format agent '\$agent_run_id|\$agent_thread_id|\$agent_name|'
        '\$agent_model|\$agent_status|\$agent_finish_reason|'
        '\$agent_input_tokens|\$agent_output_tokens|\$agent_first_token_time|'
        '\$agent_events|\$request_time';
    access_log %%DIR%%/agent.log agent;
    agent_run_log run.log;
    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; }
$http
    server {
        listen 127.0.0.1:%%PORT%%;
        location /echo { agent_pass echo; agent_owner \$http_x_user; }
$locations
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        agent_run_log other.log;
        location /echo { agent_pass echo; agent_owner off; }
        location /again {
            agent_run_log run.log;
            limit_except GET { allow all; }
            location /again/inner { agent_pass echo; agent_owner off; }
        }
    }
    server {
        listen 127.0.0.1:%%PORT2%%;
        agent_run_log off;
        location /echo { agent_pass echo; agent_owner off; }
    }
}
CONF
    $t->start;

    return $t;
}

my $t = nginx(1, '');

sub lines {
    my ($nginx, $name) = @_;
    return split /(?<=\n)/, $nginx->_slurp($name // 'run.log');
}

# The lines of a run, decoded, once there is one.
sub entries {
    my ($id, $file, $nginx) = @_;
    my @found;

    ($nginx // $t)->wait_for(sub {
        @found = grep { $_->{runId} eq $id }
            map { eval { decode_json($_) } // () } lines($nginx // $t, $file);
    }, 10);

    return @found;
}

# Exactly one line, with these members.
sub logged {
    my ($name, $id, %want) = @_;
    my $file = delete $want{file};
    my $nginx = delete $want{nginx};
    my @e = entries($id, $file, $nginx);
    my $e = $e[0] // {};
    my @bad;

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(scalar @e, 1, "$name: one line");
    is(join(' ', sort keys %$e), "@MEMBERS", '... with all members')
        or return $e;

    push @bad, "time $e->{time}"
        if $e->{time} !~ /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
    push @bad, 'detached' if ref $e->{detached} ne 'JSON::PP::Boolean';

    for my $k (qw(runTime events readers)) {
        push @bad, "$k $e->{$k}" if $e->{$k} !~ /^\d+(?:\.\d+)?$/;
    }

    for my $k (sort keys %want) {
        my ($is, $want) = map { $_ // 'null' } $e->{$k}, $want{$k};
        $is = $is ? 1 : 0 if $k eq 'detached';
        push @bad, "$k is $is, not $want"
            if ref $want ? $is !~ $want : $is ne $want;
    }

    is(join(', ', @bad), '', '... and right values');
    return $e;
}

sub begin {
    my ($path, $input, $nginx) = @_;
    my $s = ($nginx // $t)->post_run($input // {}, path => $path, stream => 1);
    $s->{id} = $s->{input}{runId};
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    return $s;
}

# --- how runs end -------------------------------------------------------------

my %ok = (status => 'finished', finishReason => 'stop', code => undef,
    detached => 0, readers => 1);

subtest 'an end' => sub {
    my $r = $t->post_run({}, path => '/ok');
    my $e = logged('finished', $r->{input}{runId}, %ok, agent => 'ok',
        model => 'ok', threadId => $r->{input}{threadId},
        events => scalar @{ $r->events }, firstTokenTime => qr/^\d/,
        runTime => qr/^\d/);
    cmp_ok($e->{firstTokenTime}, '<=', $e->{runTime}, '... in that order');

    $r = $t->post_run({}, path => '/length');
    logged('length', $r->{input}{runId}, %ok, finishReason => 'length');
    $r = $t->post_run({}, path => '/tool');
    logged('a tool call', $r->{input}{runId}, %ok,
        finishReason => 'tool_calls');
    $r = $t->post_run({}, path => '/late');
    $e = logged('a slow one', $r->{input}{runId}, %ok);
    cmp_ok($e->{firstTokenTime}, '>=', 0.6, '... its first token');
    cmp_ok($e->{firstTokenTime}, '<', 10, '... is in seconds');
    $r = $t->post_run({}, path => '/ok', accept => 'application/json');
    is($r->{status}, 200, 'as JSON');
    logged('as JSON', $r->{input}{runId}, %ok);
    $r = $t->post_run({ runId => undef, threadId => undef }, path => '/ok');
    my ($started) = map { $_->{data} } @{ $r->events };
    logged('minted ids', $started->{runId}, %ok,
        threadId => $started->{threadId});
};

subtest 'errors' => sub {
    my %error = (status => 'error', readers => 1, detached => 0);
    my %want = (
        fail   => 'upstream_error',
        cut    => 'upstream_truncated',
        limit  => 'run_timeout',
    );

    for my $path (sort keys %want) {
        my $r = $t->post_run({}, path => "/$path");
        my $said = $path eq 'cut';
        logged($path, $r->{input}{runId}, %error, code => $want{$path},
            finishReason => $want{$path},
            firstTokenTime => $said ? qr/^\d/ : undef,
            inputTokens => undef, outputTokens => undef);
    }

    my $s = begin('/one');
    my $r = $t->post_run({}, path => '/one');
    is($r->{status}, 503, 'no place among the calls');
    logged('no place', $r->{input}{runId}, %error, code => 'too_busy',
        events => 2);
    $s->finish(10);
    logged('... the other', $s->{id}, %ok);
};

subtest 'cancelled' => sub {
    my %cancelled = (status => 'cancelled', finishReason => 'cancelled',
        code => undef);
    my $s = begin('/endless');
    $t->request('DELETE', "/endless/runs/$s->{id}");
    ok($s->finish(10), 'DELETE');
    logged('DELETE', $s->{id}, %cancelled, detached => 0);

    $s = begin('/endless');
    $s->close;
    logged('a closed connection', $s->{id}, %cancelled, detached => 1);
    $s = begin('/grace');
    $s->close;
    logged('... and time to come back', $s->{id}, %cancelled, detached => 1);

    $s = $t->post_run({}, path => '/silent', stream => 1);
    ok($t->wait_for(sub {
        $t->request('GET', "/silent/runs/$s->{input}{runId}")->{status} == 200
    }), 'before the first event');
    $s->reset;
    logged('before the first event', $s->{input}{runId}, %cancelled,
        detached => 1, firstTokenTime => undef);
};

subtest 'without readers' => sub {
    my $s = begin('/stay');
    $s->close;
    sleep 0.2;
    is(scalar(grep {/"\Q$s->{id}\E"/} lines($t)), 0, 'no line while it runs');
    my $e = logged('detached', $s->{id}, %ok, detached => 1);
    cmp_ok($e->{runTime}, '>=', 0.8, '... to its end');
    cmp_ok($e->{events}, '>=', 20, '... to its last event');

    $s = begin('/words');
    my @more = map { $t->post_run({ runId => $s->{id},
        threadId => $s->{input}{threadId} }, path => '/words', stream => 1)
        } 1 .. 3;
    $more[0]->read_head(5);
    $more[0]->close;
    ok($_->finish(10), 'a reader beside others')
        for $s, @more[ 1, 2 ];
    logged('joined', $s->{id}, %ok, readers => 4);
};

subtest 'what is no run' => sub {
    my @before = map { scalar lines($t, $_) } qw(run.log other.log own.log);
    my @json = ('Content-Type' => 'application/json');
    is($t->request('POST', '/ok', \@json, '{')->{status}, 400, 'no JSON');
    is($t->request('POST', '/ok', [], '{}')->{status}, 415, 'no type');
    is($t->request('GET', '/ok')->{status}, 405, 'no POST');
    is($t->post_run({}, path => '/echo')->{status}, 401, 'no owner');
    is($t->post_run({ runId => "a\nb" }, path => '/ok')->{status}, 400,
        'no id');
    my $s = begin('/words');
    my $r = $t->post_run({ runId => $s->{id} }, path => '/words');
    is($r->{status}, 409, 'an id in use');
    $s->finish(10);
    my %again = (runId => $s->{id}, threadId => $s->{input}{threadId});
    is($t->post_run(\%again, path => '/words')->{status}, 410, 'one that is over');
    logged('only that', $s->{id}, %ok);
    my @after = map { scalar lines($t, $_) } qw(run.log other.log own.log);
    $before[0]++;
    is("@after", "@before", 'no other line');
};

# --- what stands in them ------------------------------------------------------

subtest 'as in the access log' => sub {
    my %usage = ();
    my @runs;

    for my $path (qw(ok usage tool length late fail cut limit)) {
        push @runs, $t->post_run({}, path => "/$path")->{input}{runId};
    }

    for my $id (@runs) {
        my $line;
        $t->wait_for(sub {
            ($line) = $t->_slurp('agent.log') =~ /^(\Q$id\E\|.*)/m });
        my %v;
        @v{qw(runId threadId agent model status finishReason inputTokens
            outputTokens firstTokenTime events request)} = split /\|/, $line;
        my $time = delete $v{request};
        my ($e) = entries($id);
        $usage{ $e->{agent} } = $e->{inputTokens};

        for my $k (sort keys %v) {
            my $is = $e->{$k} // '-';
            my $want = $v{$k};
            is($k =~ /Time/ && $want ne '-' ? $is + 0 : $is,
                $k =~ /Time/ && $want ne '-' ? $want + 0 : $want,
                "$e->{agent}: $k");
        }

        cmp_ok(abs($e->{runTime} - $time), '<', 0.5, '... and the time');
    }

    like($usage{usage}, qr/^\d+$/, 'usage that was given');
};

subtest 'hostile ids' => sub {
    my @ids = ('"', '\\', '"}\u000a{"', "\x{2028}\x{2029}\x{85}", "\x{1f600}",
        '%00%0a', '</script>', "\x{e9}" x 128, '\\n', ' ', "a\tb",
        '{"runId":"x"}', "\x{feff}x", ',"status":"finished"');

    for my $id (@ids) {
        my %ids = (runId => "r$id" =~ s/^r(?=.{128})//r,
            threadId => "t$id" =~ s/^t(?=.{128})//r);
        my $before = () = lines($t);
        my $r = $t->post_run(\%ids, path => '/ok');
        my $shown = join ' ', map { sprintf '%x', ord } split //,
            substr $id, 0, 8;

        if ($r->{status} != 200) {
            is($r->{status}, 400, "$shown: refused");
            is(scalar(my @l = lines($t)), $before, '... no line');
            next;
        }

        my $e = logged($shown, $ids{runId}, %ok, threadId => $ids{threadId});
        is(scalar(my @l = lines($t)), $before + 1, '... one line more');
        like($l[-1], qr/\A[^\x00-\x1f\x7f]+\n\z/, '... of printable bytes');
    }
};

subtest 'what does not stand in them' => sub {
    my $r = $t->post_run({ text => 'Sesame, open.' }, path => '/echo',
        headers => [ 'X-User' => 'ali.baba@example.com' ]);
    check_run($r->events, text => 'You said: Sesame, open.');
    logged('of an owner', $r->{input}{runId}, %ok, model => 'echo');
    unlike($t->_slurp('run.log'), qr/baba|Sesame|127\.0\.0\.1/,
        'neither the owner, nor the text, nor addresses');
};

# --- where they stand ---------------------------------------------------------

subtest 'inheritance' => sub {
    my %where = (
        'run.log'   => [ [ '/ok', 0 ], [ '/again/inner', 1 ] ],
        'own.log'   => [ [ '/own', 0 ] ],
        'other.log' => [ [ '/echo', 1 ] ],
        none        => [ [ '/none', 0 ], [ '/echo', 2 ] ],
    );
    my %runs;

    for my $file (sort keys %where) {
        for my $w (@{ $where{$file} }) {
            my $r = $t->post_run({}, path => $w->[0], port => $t->port($w->[1]));
            is($r->{status}, 200, "$w->[0] of server $w->[1]");
            logged("... in $file", $r->{input}{runId}, %ok, file => $file)
                if $file ne 'none';
            $runs{$file}{ $r->{input}{runId} } = 1;
        }
    }

    for my $file (qw(run.log own.log other.log)) {
        my $text = $t->_slurp($file);
        my @strange = grep { $text =~ /"\Q$_\E"/ }
            map { keys %{ $runs{$_} } } grep { $_ ne $file } keys %runs;
        is("@strange", '', "$file: nothing of others");
    }
};

subtest 'a full disk' => sub {
    my $re = qr{\[alert\] .*write\(\) to "/dev/full" failed \(28: .*agent: "full"};
    $t->expect_log($re);
    is($t->post_run({}, path => '/full')->{status}, 200, 'a run') for 1 .. 3;
    my $s = sum0(map { /$re/ ? 1 : 0 } split /\n/, $t->log);
    is($s, 1, 'one alert a minute');
};

subtest 'USR1' => sub {
    my $s = begin('/stay');
    my $dir = $t->dir;
    my $old = () = lines($t);
    rename "$dir/run.log", "$dir/run.log.1" or die "rename: $!";
    my $r = $t->post_run({}, path => '/ok');
    logged('renamed: still there', $r->{input}{runId}, %ok,
        file => 'run.log.1');
    $t->signal('USR1');
    ok($t->wait_for(sub {
        grep { (readlink $_ // '') eq "$dir/run.log" }
            map { glob "/proc/$_/fd/*" } $t->workers;
    }), 'reopened by the worker');
    $r = $t->post_run({}, path => '/ok');
    logged('in the new file', $r->{input}{runId}, %ok);
    $s->finish(10);
    logged('... also a run of before', $s->{id}, %ok);
    is(scalar(my @l = lines($t, 'run.log.1')), $old + 1,
        'nothing more in the old one');
};

# --- workers that go ----------------------------------------------------------

subtest 'reload' => sub {
    my @s = map { begin($_) } qw(/words /stay /stay);
    $s[2]->close;
    ok($t->reload, 'a new worker');
    ok($_->finish(10), 'the run ends') for @s[ 0, 1 ];
    logged('... in the old one', $_->{id}, %ok) for @s[ 0, 1 ];
    logged('... without readers', $s[2]{id}, %ok, detached => 1);
    ok($t->wait_for(sub { !$t->workers('old') }), 'the old worker leaves');
    is(scalar(entries($_->{id})), 1, '... and says no more') for @s;
};

subtest 'a worker that is told to leave at once' => sub {
    my $s = begin('/endless');
    my $gone = begin('/stay');
    $gone->close;
    sleep 0.2;
    my ($pid) = $t->workers;
    kill 'TERM', $pid;
    my %shut = (status => 'error', code => 'worker_shutdown',
        finishReason => 'worker_shutdown');
    logged('SIGTERM', $s->{id}, %shut);
    logged('... without readers', $gone->{id}, %shut, detached => 1);
    ok($t->wait_for(sub { ($t->workers)[0] // $pid != $pid }),
        'another worker');
    $s->close;
};

# --- many ---------------------------------------------------------------------

my $m = nginx(4, 'worker_shutdown_timeout 3s;');

subtest 'a storm' => sub {
    my (%want, @s, @rest);
    my @kinds = qw(ok usage fail cut words close stay delete late limit);
    my $n = 12 * @kinds * ($scale > 5 ? 5 : $scale);

    for my $i (0 .. $n - 1) {
        my $kind = $kinds[ $i % @kinds ];
        my $path = { close => 'endless', delete => 'endless' }->{$kind} // $kind;
        my $s = $m->post_run({}, path => "/$path", stream => 1);
        my $id = $s->{id} = $s->{input}{runId};
        $want{$id} = $kind =~ /^(?:close|delete)$/ ? 'cancelled'
            : $kind =~ /^(?:fail|cut|limit)$/ ? 'error' : 'finished';
        $s->{kind} = $kind;
        push @s, $s;

        # some at once, some together
        next if @s < 40 && $i < $n - 1;

        for my $s (@s) {
            next if $s->{kind} !~ /^(?:close|delete|stay)$/;
            $s->read_until('TEXT_MESSAGE_CONTENT', 20);
            $m->request('DELETE', "/endless/runs/$s->{id}")
                if $s->{kind} eq 'delete';
            $s->close if $s->{kind} =~ /^(?:close|stay)$/;
        }

        for my $s (@s) {
            $s->finish(20) if $s->{sock};
            $s->close;
        }

        @s = ();
    }

    ok($m->wait_for(sub { lines($m) >= $n }, 20), 'each run has a line');
    sleep 0.3;
    my @lines = lines($m);
    is(scalar @lines, $n, '... and one only');
    my (%seen, @bad);

    for my $line (@lines) {
        my $e = eval { decode_json($line) };
        push(@bad, $line), next if !$e;
        push @bad, $line if $seen{ $e->{runId} }++;
        push @bad, $line
            if ($want{ $e->{runId} } // 'none') ne $e->{status};
    }

    is(join('', @bad), '', '... that tells of its end');

    # the rest is ended by the shutdown
    @rest = map { begin('/endless', {}, $m) } 1 .. 8;
    push @rest, map { begin('/stay', {}, $m) } 1 .. 4;
    $_->close for @rest[ 8 .. 11 ];
    $m->signal('QUIT');
    ok($m->wait_for(sub { lines($m) >= $n + 12 }, 20),
        'a line of each that the shutdown ends');
    my %code;
    $code{ decode_json($_)->{code} // 'none' }++
        for (lines($m))[ $n .. $n + 11 ];
    is_deeply(\%code, { worker_shutdown => 8, none => 4 }, '... with its code');
    $_->close for @rest;
};

$m->stop;
is(scalar(my @l = grep { !eval { decode_json($_) } } lines($m)), 0,
    'no line that is no JSON');
$t->done;
