#!/usr/bin/perl

# A run in a replay zone: read, resumed, joined and stopped on the worker that
# runs it and on another one, while it goes on and after its end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentClient;
use AgentReplay;
use AgentTest;
use Compress::Zlib ();
use Mojo::JSON qw(decode_json encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

my $t = AgentTest->new;
my $u = $t->upstream;

sub agents {
    my ($http, $locations) = agent_blocks(map {
        my ($name, $zone, $agent, $location) = @$_;
        ($name => {
            script   => "plan,for=$name",
            agent    => ($zone ? "replay_zone $zone;" : '') . ($agent // ''),
            location => $location // '',
        })
    } @_);
    return ($http, $locations);
}

my ($http, $locations) = agents(
    [ 'chat',   'runs' ],
    [ 'small',  'small' ],
    [ 'brief',  'brief' ],
    [ 'cancel', 'runs', 'on_disconnect cancel;' ],
    [ 'beat',   'runs', '', 'agent_heartbeat 200ms;' ],
    [ 'local',  '' ],
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 3;
events { worker_connections 1024; }
http {
    %%GLOBALS_HTTP%%
    log_format run '\$agent_run_id \$request_method \$status '
        'resume=\$agent_resume status=\$agent_status '
        'reason=\$agent_finish_reason in=\$agent_input_tokens '
        'out=\$agent_output_tokens events=\$agent_events';
    access_log %%DIR%%/access.log run;
    client_max_body_size 4m;
    client_body_buffer_size 1m;
    keepalive_requests 100000;
    agent_replay_zone runs:8m retain=1m;
    agent_replay_zone small:2m retain=1m max_run=32k;
    agent_replay_zone brief:1m retain=1s;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        listen 127.0.0.1:%%PORT1%% reuseport sndbuf=8k;
        listen 127.0.0.1:%%PORT2%% reuseport http2;
        add_header X-Worker \$pid always;
        location = /who { return 204; }
$locations
        location /zip {
            agent_pass chat;
            agent_owner off;
            gzip on;
            gzip_types text/event-stream;
            gzip_min_length 1;
        }
        location /of/ { agent_pass chat; agent_owner \$arg_who\$http_x_owner; }
        location /streams/ { agent_resume chat; agent_owner off; }
        location /mine/ { agent_resume chat; agent_owner \$http_x_owner; }
    }
}
CONF
$t->start;

my $w = AgentReplay->new($t);
my ($here, $there, $third) = $w->workers;
my %both = (here => $here, there => $there);

sub outcome {
    my ($r) = @_;
    return join ' ', grep { defined } $r->{status} // '-',
        ref $r->json eq 'HASH' ? $r->json->{error}{code} : undef;
}

# One test: this answer is the tail of "all" that begins behind the cursor.
sub is_tail {
    my ($r, $all, $seq, $name) = @_;
    my @all = @{ $all->events };
    my ($generation) = $all[0]{id} =~ /^(\d+)-0$/;
    my $want = join '', map { $_->{raw} } @all[ $seq + 1 .. $#all ];
    my @bad;

    push @bad, "status $r->{status}" if $r->{status} != 200;
    push @bad, 'cut' if !$r->{complete};
    push @bad, 'other bytes' if $r->{body} =~ s/^: ping\n\n//mgr ne $want;
    my %want = (
        'content-type'          => 'text/event-stream',
        'x-agent-resume'        => 'complete',
        'x-agent-last-event-id' => $seq < 0 ? undef : "$generation-$seq",
        'x-agent-run-id'        => $all->header('x-agent-run-id'),
        'x-agent-thread-id'     => $all->header('x-agent-thread-id'),
        'cache-control'         => 'no-cache, no-store, no-transform',
        'x-accel-buffering'     => 'no',
        'x-agent-attached'      => undef,
    );

    for my $h (sort keys %want) {
        my $got = $r->header($h);
        push @bad, "$h: " . ($got // '-')
            if ($got // '-') ne ($want{$h} // '-');
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return ok(!@bad, $name)
        || diag join "\n", @bad, length $r->{body}, substr $r->{body}, 0, 300;
}

subtest 'every cursor' => sub {
    my $s = $w->post($here, 'reason 3; text 5 40; call 0 3; call 1 3; gate a;'
        . 'call 0 1; text 5 3000; gate b; text 3');
    $s->finish(0.2);
    ok($w->wait_seq($there, $s, 10), 'it runs');
    my ($gen, $now) = $w->get($there, $s->{url})->json->{lastEventId}
        =~ /^(\d+)-(\d+)$/;
    my (%live, @bare);

    for my $seq (-1 .. $now) {
        for my $where (qw(here there)) {
            $live{"$where $seq"} = $w->open($both{$where}, 'GET',
                "$s->{url}/stream",
                $seq < 0 ? {} : { 'Last-Event-ID' => "$gen-$seq" });
        }
    }

    $_->read_head(10) for values %live;
    is(join(' ', grep { ($live{$_}{head_time} // 99) > 8 } sort keys %live), '',
        'their heads come at once, also where nothing follows');
    $w->open_gate('a');
    $w->open_gate('b');
    $s->finish(10);
    AgentClient->read_all(20, values %live);
    check_run($s->events, outcome => 'success', name => 'the run');
    ok(is_tail($live{$_}, $s, (split)[1], "live, $_")) for sort keys %live;
    $_->close for values %live, $s;

    my $last = @{ $s->events } - 1;

    for my $seq (0 .. $last) {
        my $id = $s->events->[$seq]{id};
        is($id, "$gen-$seq", 'ids count') if $id ne "$gen-$seq";

        for my $where (qw(here there)) {
            my $get = sub {
                my ($q, @h) = @_;
                return $w->get($both{$where}, "$s->{url}/stream$q", @h);
            };

            if ($seq == $last) {
                my $r = $get->('', 'Last-Event-ID' => $id);
                is("$r->{status}$r->{body}", 204, "$where, the end: 204");
                is($r->header('x-agent-resume'), 'complete', '... complete');
                is($get->('?after=0', 'Last-Event-ID' => $seq)->{status}, 204,
                    '... a bare number, the header wins');
                $r = $get->("?after=$id");
                is_tail($r, $s, $seq - 1, '... after=: once more');
                $r = $get->("?after=$seq");
                is_tail($r, $s, $seq - 1, '... a bare number');
                next;
            }

            is_tail($get->('', 'Last-Event-ID' => $id), $s, $seq,
                "$where, Last-Event-ID $seq");
            is_tail($get->("?after=$id"), $s, $seq, "$where, after=$seq");
            is_tail($get->('?after=3', 'last-event-id' => $seq), $s, $seq,
                "$where, the header wins, a bare number");
        }
    }

    is_tail($w->get($there, "$s->{url}/stream$_"), $s, -1, "no cursor: \"$_\"")
        for '', '?after=', '?other=5-5';
};

subtest 'bad cursors' => sub {
    my $s = $w->post($here, 'text 2', whole => 1);
    my ($gen) = $s->events->[0]{id} =~ /^(\d+)/;
    my $huge = '99999999999999999999999999';
    my @bad = ('-', '-1', "$gen-", "-$gen", "$gen--1", "$gen-1-1", "$gen-01",
        '01', '00', '0x1', '1.0', '1e3', '+1', "$gen-+1", 'abc', "$gen-1x",
        '18446744073709551616', "$gen-18446744073709551616", $huge,
        "$huge-1", "1-$huge", '1' x 500, '1,2', "$gen 1", "$gen- 1", '*',
        "\xc3\xa9", "\xff", '"1"', '1;1', "1\t1");

    for my $c (@bad) {
        my $r = $w->get($there, "$s->{url}/stream", 'Last-Event-ID' => $c);
        my $shown = $c =~ s/[^ -~]/?/gr;
        is(outcome($r), '400 bad_cursor', "Last-Event-ID: $shown");
        is($r->header('content-type'), 'application/json', '... JSON')
            if $c eq '-';
        my $q = $c =~ s/([^0-9A-Za-z.-])/sprintf '%%%02X', ord $1/ger;
        $r = $w->get($here, "$s->{url}/stream?after=$q");
        is(outcome($r), '400 bad_cursor', "after=$q");
    }

    for my $q ('1%2D1', '%31', '1%00', '1&mode=', "1&mode=tail",
        '1&mode=joined', '1&mode=Join', '1&mode=j%6Fin') {
        is(outcome($w->get($here, "$s->{url}/stream?after=$q")),
            '400 bad_cursor', "after=$q");
    }

    # a header that is none, and one that is not looked at
    is_tail($w->get($here, "$s->{url}/stream", 'Last-Event-ID' => $_->[0]), $s,
        $_->[1], "Last-Event-ID: \"$_->[0]\"")
        for [ '', -1 ], [ ' ', -1 ], [ ' 1', 1 ], [ "$gen-1  ", 1 ];
    is_tail($w->get($here, "$s->{url}/stream?after=x",
        'Last-Event-ID' => "$gen-1"), $s, 1, 'a bad after= under a header');
    is(outcome($w->get($here, "$s->{url}/stream?after=1",
        'Last-Event-ID' => 'x')), '400 bad_cursor', 'a bad header over after=');
    is(outcome($w->get($here, '/chat/runs/none/stream?after=x')),
        '400 bad_cursor', 'of an unknown run');
    is(outcome($w->request($here, $_, "$s->{url}/stream", {},
        $_ eq 'POST' ? '{}' : undef)), '405 method_not_allowed', $_)
        for qw(POST DELETE);
};

# A client that gets "r" and holds nothing, or its own messages, ends with the
# same ones as the client that saw all.
sub is_same {
    my ($r, $all, $name, $held) = @_;
    my $input = $all->{input}{messages};
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return is_deeply($w->messages($held ? $input : [], @{ $r->events }),
        $w->messages($input, @{ $all->events }), $name);
}

sub types { return join ' ', map { $_->{data}{type} } @{ $_[0]->events } }

# A stream that begins with a prelude: the seq it stands for.
sub check_prelude {
    my ($r, $all, $resume, $name) = @_;
    my @e = @{ $r->events };
    my @all = @{ $all->events };
    my ($gen, $seq) = ($r->header('x-agent-last-event-id') // '')
        =~ /^(\d+)-(\d+)$/;
    my @bad;
    local $Test::Builder::Level = $Test::Builder::Level + 1;

    push @bad, 'X-Agent-Resume: ' . ($r->header('x-agent-resume') // '-')
        if ($r->header('x-agent-resume') // '') ne $resume;
    push @bad, 'no X-Agent-Last-Event-ID' if !defined $seq;
    push @bad, 'cut' if !$r->{complete};
    my ($first) = grep { defined $e[$_]{id} } 0 .. $#e;
    push @bad, 'the first id is ' . ($e[$first]{id} // '-')
        if ($e[ $first // 0 ]{id} // '') ne "$gen-$seq";
    push @bad, "begins with $e[0]{data}{type} $e[1]{data}{type}"
        if "$e[0]{data}{type} $e[1]{data}{type}"
        ne 'RUN_STARTED MESSAGES_SNAPSHOT';
    push @bad, 'RUN_STARTED differs' if $e[0]{json} ne $all[0]{json};
    # "all" may have been overtaken itself
    my %raw = map { ($_->{id} => $_->{raw}) } grep { defined $_->{id} } @all;
    my @rest = grep { defined $_->{id} } @e[ $first + 1 .. $#e ];
    push @bad, 'events are missing' if join(' ', map { $_->{id} } @rest)
        ne join ' ', map {"$gen-$_"} $seq + 1 .. ($all[-1]{id} =~ /-(\d+)/)[0];
    push @bad, 'what follows differs'
        if grep { $_->{raw} ne ($raw{ $_->{id} } // $_->{raw}) } @rest;
    ok(!@bad, "$name: the prelude") or diag join "\n", @bad, types($r);
    return $seq;
}

my @open = (
    [ 'nothing said yet'   => '',                   'text 2' ],
    [ 'text open'          => 'text 3',             'text 2' ],
    [ 'reasoning open'     => 'reason 3',           'reason 2; text 2' ],
    [ 'reasoning closed'   => 'reason 3; text 1',   'text 2' ],
    [ 'a call open'        => 'text 2; call 0 2',   'call 0 3' ],
    [ 'a call without arguments' => 'call 0 0',     'call 0 3' ],
    [ 'several calls open' => 'call 0 2; call 1 2; call 2 0',
        'call 1 2; call 0 1; call 2 3' ],
    [ 'text after calls'   => 'text 1; call 0 2; call 1 1; text 2',
        'text 2; call 1 2' ],
    [ 'all at once'        => 'reason 2; text 2; call 0 2; reason 1',
        'reason 2; call 0 2; text 1' ],
);
my @input = (
    { id => 'sys', role => 'system',    content => 'from the client' },
    { id => 'u-1', role => 'user',      content => "fir\"st\n\x{1f600}" },
    { id => 'th',  role => 'reasoning', content => 'a thought' },
    { id => 'a-1', role => 'assistant', content => 'second' },
);

subtest 'mode=join' => sub {
    my (%s, %live);

    for my $i (0 .. $#open) {
        my ($name, $before, $after) = @{ $open[$i] };
        my $s = $s{$name} = $w->post($here, undef, input => { messages => [
            @input, { id => "q-$i", role => 'user',
                content => "$before; gate j$i; $after" } ] });
        ok($w->wait_seq($there, $s, $before =~ /^(?:call 0 0)?$/ ? 0 : 3), "$name: it runs");

        for my $where (qw(here there)) {
            my $get = sub {
                my ($q, @h) = @_;
                return $w->open($both{$where}, 'GET', "$s->{url}/stream$q",
                    [@h]);
            };
            $live{"$name, $where, join"} = $get->('?mode=join');
            $live{"$name, $where, unknown"} = $get->('?after=1-1');
            $live{"$name, $where, ahead"} =
                $get->('', 'Last-Event-ID' => 5000);
        }
    }

    $_->read_until(sub { $_[0]{data}{type} eq 'MESSAGES_SNAPSHOT' }, 10)
        for values %live;
    $w->open_gate("j$_") for 0 .. $#open;
    AgentClient->read_all(20, values %s, values %live);

    for my $key (sort keys %live) {
        my ($name, $where, $how) = split /, /, $key;
        my ($r, $s) = ($live{$key}, $s{$name});
        check_run($r->events, outcome => 'success', name => "$key: legal");
        check_prelude($r, $s, $how eq 'join' ? 'complete' : 'unknown', $key);
        is_same($r, $s, "$key: the same messages");
    }

    # after the end
    for my $name (map { $_->[0] } @open) {
        my $s = $s{$name};
        my $last = @{ $s->events } - 1;

        for my $where (qw(here there)) {
            my $r = $w->get($both{$where}, "$s->{url}/stream?mode=join");
            check_run($r->events, outcome => 'success',
                name => "$name, $where, over: legal");
            is(check_prelude($r, $s, 'complete', $name), $last - 1,
                '... of all but the terminal event');
            is_same($r, $s, '... the same messages');
            like(types($r), qr/^RUN_STARTED MESSAGES_SNAPSHOT RUN_FINISHED$/,
                '... nothing else');
        }
    }

    $_->close for values %live, values %s;
};

subtest 'mode=join after other ends' => sub {
    for my $end (qw(cancelled error before_content)) {
        my $plan = { cancelled => 'text 2; call 0 2; hang',
            error => 'text 2; call 0 2; cut', before_content => 'wait 1.3; cut' }
            ->{$end};
        my $s = $w->post($here, $plan);

        if ($end eq 'cancelled') {
            $s->read_until('TOOL_CALL_ARGS', 10);
            is($w->request($there, 'DELETE', $s->{url})->{status}, 202,
                'cancelled');
        }

        $s->finish(10);
        my $terminal = $s->events->[-1];

        for my $where (qw(here there)) {
            my $r = $w->get($both{$where}, "$s->{url}/stream?mode=join");
            check_run($r->events, $end eq 'cancelled'
                ? (outcome => 'cancelled') : (code => 'upstream_truncated'),
                name => "$end, $where: legal");
            is($r->events->[-1]{raw}, $terminal->{raw}, '... the same end');
            is_same($r, $s, '... the same messages');
            is_tail($w->get($both{$where}, "$s->{url}/stream"), $s, -1,
                '... all of it');
            is($w->get($both{$where}, "$s->{url}/stream",
                'Last-Event-ID' => $terminal->{id})->{status}, 204,
                '... 204');
        }

        $s->close;
    }
};

# More than max_run: the log's beginning goes, a checkpoint stands for it.
subtest 'the beginning is gone' => sub {
    my $plan = 'text 20 1000; gate g1;'
        . 'wait 0.02; text 5 1000;' x 20 . 'gate g2; text 20 20; gate g3; text 3';
    my $s = $w->post($here, undef, path => '/small', input => { messages => [
        @input, { id => 'g', role => 'user', content => $plan } ] });
    ok($w->wait_seq($there, $s, 21), 'it runs');
    my %slow = map { ($_ => $w->open($both{$_}, 'GET', "$s->{url}/stream")) }
        keys %both;
    $_->read_event(10) for values %slow;
    $w->open_gate('g1');
    ok($w->wait_seq($there, $s, 121), '... on');
    my ($gen) = $w->get($there, $s->{url})->json->{lastEventId} =~ /^(\d+)/;
    my %live;

    for my $where (qw(here there)) {
        my $get = sub {
            my ($q, @h) = @_;
            return $w->open($both{$where}, 'GET', "$s->{url}/stream$q", [@h]);
        };
        $live{"$where start"} = $get->('');
        $live{"$where 0"} = $get->('', 'Last-Event-ID' => "$gen-0");
        $live{"$where 5"} = $get->("?after=$gen-5");
        $live{"$where join"} = $get->('?mode=join');
        $live{"$where unknown"} = $get->('?after=7-7');
        $live{"$where 121"} = $get->("?after=$gen-121");
    }

    for my $key (sort keys %live) {
        next if $key =~ /121/;
        my @e = $live{$key}->read_until('MESSAGES_SNAPSHOT', 10);
        is(scalar @e, 2, "$key: a snapshot comes at once");
    }

    $w->open_gate('g2');
    ok($w->wait_seq($there, $s, 141), '... on');
    $w->open_gate('g3');
    AgentClient->read_all(20, $s, values %live, values %slow);
    check_run($s->events, outcome => 'success', name => 'the run');

    for my $key (sort keys %live) {
        my ($r, $how) = ($live{$key}, $key =~ s/^\w+ //r);

        if ($how eq '121') {
            is_tail($r, $s, 121, $key);
            next;
        }

        check_run($r->events, outcome => 'success', name => "$key: legal");
        check_prelude($r, $s, $how eq 'join' ? 'complete'
            : $how eq 'unknown' ? 'unknown' : 'gap', $key);
        is_same($r, $s, '... the same messages');
    }

    for my $where (sort keys %slow) {
        check_run($slow{$where}->events, outcome => 'success',
            name => "$where, a reader from before");
        is_same($slow{$where}, $s, '... the same messages', 1);
    }

    # over, and its worker has forgotten it
    $_->close for values %live, values %slow, $s;
    my $last = @{ $s->events } - 1;

    for my $where (qw(here there)) {
        for my $q ('', '?after=0', "?after=$gen-5", '?mode=join', '?after=7-7')
        {
            my $r = $w->get($both{$where}, "$s->{url}/stream$q");
            check_run($r->events, outcome => 'success',
                name => "over, $where, \"$q\"");
            check_prelude($r, $s, $q =~ /join/ ? 'complete'
                : $q =~ /7-7/ ? 'unknown' : 'gap', '...');
            is_same($r, $s, '... the same messages');
        }

        is_tail($w->get($both{$where}, "$s->{url}/stream?after=$gen-"
            . ($last - 2)), $s, $last - 2, "over, $where, what is kept");
    }
};

# In no time, so that no checkpoint may have been made on the way.
subtest 'a fast run loses its beginning' => sub {
    my $s = $w->post($here, 'text 400 1000; gate f1; text 2', path => '/small');
    ok($w->wait_seq($there, $s, 401), 'it runs');
    my %live = map { ($_ => $w->open($both{$_}, 'GET',
        "$s->{url}/stream?mode=join")) } keys %both;
    $_->read_until('TEXT_MESSAGE_START', 5) for values %live;
    cmp_ok(length $live{there}{body}, '<', 2_000_000, 'no flood')
        or diag length $live{there}{body};
    $w->open_gate('f1');
    AgentClient->read_all(10, $s, values %live);
    $_->close for $s, values %live;
    my %over = map { ($_ => $w->get($both{$_}, "$s->{url}/stream?mode=join")) }
        keys %both;

    for my $r (map { ("live, $_" => $live{$_}, "over, $_" => $over{$_}) }
        sort keys %both) {
        if (!ref $r) { note $r; next }
        check_run($r->events, outcome => 'success', name => 'legal');
        check_prelude($r, $s, 'complete', '...');
        is_same($r, $s, '... the same messages');
    }

    # and one that ends at once
    $s = $w->post($here, 'text 400 1000', path => '/small', whole => 1);
    for my $where (qw(here there)) {
        my $r = $w->get($both{$where}, "$s->{url}/stream");
        check_run($r->events, outcome => 'success', name => "$where: legal");
        check_prelude($r, $s, 'gap', '...');
        is_same($r, $s, '... the same messages');
    }
};

$t->done;
