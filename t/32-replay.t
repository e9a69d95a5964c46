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

# A connection of HTTP/2 to that worker.
sub h2 {
    my ($pid, %o) = @_;

    for (1 .. 200) {
        my $c = AgentClient->http2($t, port => $t->port(2), %o);
        my $s = $c->request('GET', '/who');
        $s->finish(10);
        return $c if $s->header('x-worker') == $pid;
        $c->close;
    }

    die "no connection to worker $pid\n";
}

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

    # an EventSource comes back to the same URL, and has to be told to stop
    my $back = sub { $w->get($there, "$s->{url}/stream?mode=join",
        'Last-Event-ID' => "$gen-$_[0]") };
    is_tail($back->(7), $s, 7, 'mode=join, the header wins');
    is($back->($last)->{status}, 204, '... at the end');

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
        ok($w->wait_seq($there, $s, $before =~ /^(?:call 0 0)?$/ ? 0 : 3),
            "$name: it runs");

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
            error => 'text 2; call 0 2; cut',
            before_content => 'wait 1.3; cut' }
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
        . 'wait 0.02; text 5 1000;' x 20
        . 'gate g2; text 20 20; gate g3; text 3';
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

# A reader that takes nothing while more than max_run is said: the END of what
# it has open, a snapshot, what is open now; no second RUN_STARTED.
subtest 'a live reader is overtaken' => sub {
    my $burst = 'wait 0.02; text 5 1000;' x 20;
    my %plan = (
        'text goes on'    => "text 5 500; $burst gate %s; text 2",
        'a call between'  => "reason 2 500; text 5 500; call 0 2; $burst"
            . 'gate %s; call 1 2; text 2',
        'open elsewhere'  => "reason 2 1500; reason 1; $burst call 0 3;"
            . 'call 1 1; gate %s; call 1 1; call 0 1',
        'over meanwhile'  => "text 5 500; $burst text 1",
        'failed meanwhile' => "text 5 500; $burst cut",
    );
    my (%s, %r, @conn);
    my $i = 0;

    for my $name (sort keys %plan) {
        my $s = $s{$name} = $w->post($here, undef, path => '/small',
            input => { messages => [ @input, { id => 'o', role => 'user',
                content => $plan{$name} =~ s/%s/o$i/r } ] });
        $i++;
        $s->read_until(sub { ($_[0]{id} // '') =~ /-2$/ }, 10);

        for my $where (qw(here there)) {
            push @conn, h2($both{$where}, window => 2000, auto => 0);
            my $r = $r{"$name, $where"} = $conn[-1]->request('GET',
                "$s->{url}/stream");
            $r->{start} = $conn[-1];
            $r->read_event(10);
        }
    }

    AgentClient->read_all(5, $s{'over meanwhile'}, $s{'failed meanwhile'});
    ok($w->wait_seq($there, $s{$_}, 100), "$_: it runs") for sort keys %s;
    is(scalar(grep { length($_->{body}) > 2100 } values %r), 0,
        'readers that take nothing');
    $w->open_gate("o$_") for 0 .. $i - 1;
    AgentClient->read_all(10, values %s);

    for my $c (@conn) {
        $c->{auto} = 1;
        $c->credit($_, 1_000_000) for keys %{ $c->{streams} };
        $c->flush;
    }

    AgentClient->read_all(10, values %r);

    for my $key (sort keys %r) {
        my ($name) = split /, /, $key;
        my ($r, $s) = ($r{$key}, $s{$name});
        my $run = check_run($r->events, $name =~ /^failed/
            ? (code => 'upstream_truncated') : (outcome => 'success'),
            name => "$key: legal");
        my @types = @{ $run->{types} };
        is(scalar(grep { $_ eq 'RUN_STARTED' } @types), 1, '... one start');
        is(scalar(grep { $_ eq 'MESSAGES_SNAPSHOT' } @types), 1,
            '... one snapshot, in place');
        is_same($r, $s, '... the same messages', 1);
        is($r->events->[-1]{raw}, $s->events->[-1]{raw}, '... the same end');
    }

    is(join('', map { $_->faults } @conn), '', 'HTTP/2');
    $_->close for @conn, values %s;
};

# Readers that come at any moment, from any cursor, also a stale one, and leave.
subtest 'at any moment' => sub {
    my $scale = $ENV{AGENT_SCALE} || 1;
    my $n = 40 * $scale;
    my $plan = join ';', map { ('wait 0.004', 'text 2 30', $_ % 5 ? ()
        : "call $_ 2 40", $_ % 7 ? () : 'reason 1 50') } 1 .. 120;

    for my $path ('/chat', '/small') {
        my $s = $w->post($here, $plan . (';text 30 900' x ($path eq '/small')),
            path => $path);
        $s->read_event(10);
        my ($gen, @r, %bad) = $s->events->[0]{id} =~ /^(\d+)/;

        for my $i (1 .. $n) {
            $s->_fill(time + 1.2 / $n);
            my $seq = @{ $s->events } - 1;
            my $from = int rand $seq + 1;
            my $how = (qw(join header after start unknown again))[ $i % 6 ];
            my $pid = ($here, $there, $third)[ rand 3 ];
            my $r = $how eq 'again' ? $w->again($pid, $s, whole => 0)
                : $w->open($pid, 'GET', "$s->{url}/stream" . ({
                    join => '?mode=join', after => "?after=$gen-$from",
                    unknown => "?after=3-$from" }->{$how} // ''),
                    { $how eq 'header' ? ('Last-Event-ID' => "$gen-$from")
                        : () });
            @$r{qw(how from)} = ($how, $from);

            if ($i % 4) {
                push @r, $r;
            } else {
                $r->_fill(time + 0.002);
                $r->close;
            }
        }

        AgentClient->read_all(30, $s, @r);
        my @all = @{ $s->events };
        my $want = encode_json($w->messages($s->{input}{messages}, @all));
        my %raw = map { ($_->{id} => $_->{raw}) } grep { $_->{id} } @all;

        for my $r (@r) {
            my @e = @{ $r->events };
            my $what = "$r->{how} from $r->{from} of $#all, $r->{status}";
            next if $r->{how} eq 'header' && $r->{status} == 204
                && $r->{from} == $#all;
            my @had = $r->{how} =~ /^(?:header|after)$/
                && $r->header('x-agent-resume') eq 'complete'
                ? @all[ 0 .. $r->{from} ] : ();
            my $got = encode_json($w->messages($s->{input}{messages}, @had,
                @e));
            $bad{"$what: cut"}++ if !$r->{complete};
            $bad{"$what: other messages"}++ if $got ne $want;
            $bad{"$what: other bytes"}++ if grep { $_->{id} && $raw{ $_->{id} }
                && $_->{data}{type} !~ /SNAPSHOT|_START$/
                && $_->{raw} ne $raw{ $_->{id} } } @e;
            my @seq = map { ($_->{id} // '') =~ /-(\d+)$/ ? $1 : () } @e;
            $bad{"$what: not in order"}++ if grep { $seq[$_] <= $seq[ $_ - 1 ] }
                1 .. $#seq;
            $bad{"$what: no end"}++ if !@e
                || $e[-1]{data}{type} ne 'RUN_FINISHED';
        }

        check_run(\@all, outcome => 'success', name => "$path: the run");
        is_deeply(\%bad, {}, '... ' . @r . ' readers') or diag explain \%bad;
        $_->close for $s, @r;
    }
};

# The messages of a request are kept up to 256k; a larger one leaves nothing to
# make a snapshot of.
subtest 'large requests' => sub {
    for my $kb (200, 300) {
        my $s = $w->post($here, undef, input => { messages => [
            { id => 'big', role => 'user', content => 'y' x ($kb * 1024) },
            { id => 'plan', role => 'user',
                content => "text 5; gate l$kb; text 2" } ] });
        ok($w->wait_seq($there, $s, 6), "$kb KB: it runs");
        my %live = map { ($_ => $w->open($both{$_}, 'GET',
            "$s->{url}/stream?mode=join")) } keys %both;
        $_->read_until('TEXT_MESSAGE_START', 10) for values %live;
        $w->open_gate("l$kb");
        AgentClient->read_all(10, $s, values %live);
        my %all = map { ("live, $_" => $live{$_}, "over, $_" =>
            $w->get($both{$_}, "$s->{url}/stream?mode=join")) } keys %both;

        for my $key (sort keys %all) {
            my $r = $all{$key};

            if ($kb == 300) {
                is_tail($r, $s, -1, "$key: the whole run");
                next;
            }

            check_run($r->events, outcome => 'success', name => "$key: legal");
            check_prelude($r, $s, 'complete', '...');
            is_same($r, $s, '... the same messages');
        }

        $_->close for $s, values %live;

        # and their beginning is lost
        $s = $w->post($here, undef, path => '/small', input => { messages => [
            { id => 'big', role => 'user', content => 'y' x ($kb * 1024) },
            { id => 'plan', role => 'user', content => 'text 10 1000;'
                . 'wait 0.05; text 10 1000;' x 9 . "gate m$kb; text 2" } ] });
        ok($w->wait_seq($there, $s, 101), '... it runs in 32k');
        my $slow = $w->open($there, 'GET', "$s->{url}/stream?after=100");
        %live = map { ($_ => $w->open($both{$_}, 'GET', "$s->{url}/stream")) }
            keys %both;

        if ($kb == 300) {
            $_->finish(10) for values %live;
        } else {
            $_->read_until('MESSAGES_SNAPSHOT', 10) for values %live;
        }

        is($w->status($there, $s), 'running', '... and goes on');
        $w->open_gate("m$kb");
        AgentClient->read_all(10, $s, $slow, values %live);
        is_tail($slow, $s, 100, '... what is kept is served');
        check_run($s->events, outcome => 'success', name => '... the run');

        for my $where (sort keys %live) {
            my $r = $live{$where};
            is($r->header('x-agent-resume'), 'gap', "$where: a gap");
            check_run($r->events, $kb == 300 ? (code => 'gap')
                : (outcome => 'success'), name => '... is told');
            is_same($r, $s, '... the same messages') if $kb != 300;
            $r = $w->get($both{$where}, "$s->{url}/stream?after=3");
            check_run($r->events, $kb == 300 ? (code => 'gap')
                : (outcome => 'success'), name => '... also when it is over');
        }

        $_->close for $s, $slow, values %live;
    }
};

subtest 'POST of the same runId' => sub {
    my $s = $w->post($here, 'text 3; gate p; call 0 2; text 2');
    ok($w->wait_seq($there, $s, 4), 'it runs');
    my (%sse, %json);

    for my $where (qw(here there)) {
        $sse{$where} = $w->again($both{$where}, $s, whole => 0);
        $json{$where} = $w->again($both{$where}, $s, whole => 0,
            accept => 'application/json');
        is(outcome($w->again($both{$where}, $s,
            input => { threadId => 'another' })), '409 run_id_in_use',
            "$where: another thread");
        my $r = $w->again($both{$where}, $s, whole => 0,
            input => { threadId => undef, messages => [ { id => 'x',
                role => 'user', content => 'text 1' } ] });
        is($r->read_head(10), 200, '... none');
        is($r->header('x-agent-thread-id'), $s->{input}{threadId},
            '... is the run\'s own');
        $r->close;
    }

    $u->forget;
    $w->open_gate('p');
    AgentClient->read_all(10, $s, values %sse, values %json);
    my $answer = $json{here}->json;
    is($answer->{status}, 'finished', 'a JSON answer');
    is($answer->{text}, join('', map {"$_," . 'x' x 6} 1 .. 3, 6, 7),
        '... its text');

    my $same = sub {
        my ($r, $name) = @_;
        is($r->{status}, 200, $name);
        is($r->header('x-agent-attached'), 1, '... X-Agent-Attached');
        is($r->header('x-agent-resume'), undef, '... no X-Agent-Resume');
        is($r->header('x-agent-run-id'), $s->{id}, '... X-Agent-Run-Id');

        if (($r->header('content-type') // '') eq 'application/json') {
            is_deeply($r->json, $answer, '... the same answer');
        } else {
            is($r->{body}, $s->{body}, '... the same bytes');
        }
    };

    for my $where (qw(here there)) {
        $same->($sse{$where}, "live, $where");
        $same->($json{$where}, "live, $where, JSON");
        $same->($w->again($both{$where}, $s), "over, $where");
        $same->($w->again($both{$where}, $s, accept => 'application/json'),
            "over, $where, JSON");
        is(outcome($w->again($both{$where}, $s,
            input => { threadId => 'another' })), '409 run_id_in_use',
            '... another thread');
    }

    is(scalar($u->requests), 0, 'the model is not called again');
    $_->close for $s, values %sse, values %json;

    # other ends, with content
    for my $end (qw(cancelled error)) {
        my $s = $w->post($here, $end eq 'error' ? 'text 3; cut'
            : 'text 3; hang');
        $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        $w->request($there, 'DELETE', $s->{url}) if $end eq 'cancelled';
        $s->finish(10);

        for my $where (qw(here there)) {
            my $r = $w->again($both{$where}, $s);
            is($r->{status}, 200, "$end, $where");
            is($r->{body}, $s->{body}, '... the same bytes');
            $r = $w->again($both{$where}, $s, accept => 'application/json');
            is($r->header('x-agent-attached'), 1, '... JSON');

            if ($end eq 'cancelled') {
                is("$r->{status} $r->{json}{status}", '200 cancelled',
                    '... its status') if $r->json;
            } else {
                is(outcome($r), '502 upstream_truncated', '... its error');
            }
        }

        $s->close;
    }
};

# It said nothing: the next POST of its id is a run of its own.
subtest 'replaced' => sub {
    for my $where (qw(here there)) {
        my $s = $w->post($here, 'fail 500', whole => 1);
        is(outcome($s), '502 upstream_error', "$where: a failure at once");
        my $status = $w->get($there, $s->{url})->json;
        is("$status->{status} $status->{code}", 'error upstream_error',
            '... known');
        my ($old) = $status->{lastEventId} =~ /^(\d+)-1$/;

        # somebody reads it, so its worker keeps a place for it
        my $r = $w->get($there, "$s->{url}/stream");
        is($r->events->[0]{id}, "$old-0", '... to be read');
        is($w->get($there, "$s->{url}/stream?after=0")->events->[0]{id},
            "$old-1", '... also by a number');

        my @m = (messages => [ { id => 'again', role => 'user',
            content => 'text 3; gate r' . $where . '; text 1' } ]);
        my $again = $w->again($both{$where}, $s, whole => 0, input => {@m});
        is($again->read_head(10), 200, '... begins anew');
        is($again->header('x-agent-attached'), undef, '... not attached');
        ok($w->wait_seq($third, $again, 4), '... runs');
        my %live = map { ($_ => $w->open($both{$_}, 'GET',
            "$again->{url}/stream", { 'Last-Event-ID' => "$old-1" })) }
            keys %both;

        for my $pid ($here, $there) {
            is(outcome($w->get($pid, "$s->{url}/stream?after=$_")),
                '400 bad_cursor', "... after=$_ could mean two") for 0, 1, 99;
            is(outcome($w->get($pid, "$s->{url}/stream",
                'Last-Event-ID' => 1)), '400 bad_cursor', '... nor a header');
        }

        $_->read_until('TEXT_MESSAGE_START', 10) for values %live;
        $w->open_gate("r$where");
        AgentClient->read_all(10, $again, values %live);
        check_run($again->events, outcome => 'success', name => '... ends');
        my ($new) = $again->events->[0]{id} =~ /^(\d+)-0$/;
        cmp_ok($new, '>', $old, '... with a larger generation');

        for my $l (sort keys %live) {
            check_prelude($live{$l}, $again, 'unknown',
                "... $l, an old cursor");
            is_same($live{$l}, $again, '... the same messages');
        }

        is(outcome($w->get($there, "$s->{url}/stream?after=1")),
            '400 bad_cursor', '... a number, when it is over');
        is_tail($w->get($there, "$s->{url}/stream?after=$new-1"), $again, 1,
            '... but a whole id');
        is_tail($w->get($there, "$s->{url}/stream"), $again, -1, '... or none');
        $_->close for $again, values %live;
    }

    # a reader of the one before still has its place there
    my $s = $w->post($here, 'hang');
    $s->read_head(10);
    my $old = h2($there, window => 0);
    my $held = $old->request('GET', "$s->{url}/stream");
    $held->read_head(10);
    is($w->request($there, 'DELETE', $s->{url})->{status}, 202, 'cancelled');
    $s->finish(10);
    my $again = $w->again($here, $s, whole => 0, input => { messages =>
        [ { id => 'a', role => 'user',
            content => 'text 3; gate h; text 1' } ] });
    ok($w->wait_seq($there, $again, 4), 'begun anew');
    my %join = map { ($_ => $w->again($both{$_}, $s, whole => 0)) } keys %both;
    $_->read_until('TEXT_MESSAGE_CONTENT', 5) for values %join;
    $w->open_gate('h');
    AgentClient->read_all(10, $again, values %join);
    is($_->{body}, $again->{body}, '... a POST joins the new one')
        for values %join;
    is($w->again($there, $s)->{body}, $again->{body}, '... when it is over');
    $old->credit($held->{id}, 100_000)->flush;
    $held->finish(10);
    like(types($held), qr/^RUN_STARTED (?:RUN_ERROR|RUN_FINISHED)$/,
        '... the old reader is told of an end');
    $_->close for $s, $again, values %join, $old;
};

subtest 'stopping' => sub {
    for my $how (['DELETE', ''], ['POST', '/cancel']) {
        for my $where (qw(here there)) {
            $u->forget;
            my $s = $w->post($here, 'text 2; hang');
            $s->read_until('TEXT_MESSAGE_CONTENT', 10);
            my $r = $w->open($there, 'GET', "$s->{url}/stream");
            my $json = $w->again($third, $s, whole => 0,
                accept => 'application/json');
            $r->read_until('TEXT_MESSAGE_CONTENT', 10);
            my $cancel = sub { $w->request($both{$where}, $how->[0],
                "$s->{url}$how->[1]") };
            my $then = time;
            my $c = $cancel->();
            is("$c->{status} $c->{body}", qq(202 {"accepted":true}\n),
                "$how->[0] $where: 202");
            ok($u->wait_closed(1, 2), '... the call is closed at once');
            AgentClient->read_all(5, $s, $r, $json);
            check_run($s->events, outcome => 'cancelled',
                name => '... the run');
            is($r->{body}, $s->{body}, '... its readers see it');
            is($json->json->{status}, 'cancelled', '... also as JSON');
            my ($e) = $u->connections;
            cmp_ok($e->{early} - $then, '<', 2, '... in time');

            for my $pid ($here, $there, $third) {
                for my $m (['DELETE', ''], ['POST', '/cancel']) {
                    $c = $w->request($pid, $m->[0], "$s->{url}$m->[1]");
                    is("$c->{status}$c->{body}", 204, "... $m->[0]: 204");
                }
                is($w->status($pid, $s), 'cancelled', '... the status');
            }

            $_->close for $s, $r, $json;
        }
    }

    # before it said anything
    my $s = $w->post($here, 'hang');
    ok($w->wait_status($there, $s, 'running'), 'a silent one');
    is($w->request($there, 'DELETE', $s->{url})->{status}, 202, '... 202');
    $s->finish(5);
    check_run($s->events, outcome => 'cancelled', text => '');
    $s->close;
};

subtest 'the client leaves' => sub {
    $u->forget;
    my $s = $w->post($here, 'text 2; gate c; text 2');
    my $c = $w->post($here, 'text 2; hang', path => '/cancel');
    $_->read_until('TEXT_MESSAGE_CONTENT', 10) for $s, $c;
    my ($gen) = $s->events->[0]{id} =~ /^(\d+)/;
    my $far = $w->open($there, 'GET', "$c->{url}/stream");
    $far->read_until('TEXT_MESSAGE_CONTENT', 10);
    $_->close for $s, $c;
    ok($w->wait_status($there, $c, 'cancelled'), 'on_disconnect cancel');
    $far->finish(5);
    check_run($far->events, outcome => 'cancelled',
        name => '... also under readers of other workers');
    ok($u->wait_closed(1, 5), '... its call is closed');
    is($w->status($there, $s), 'running', 'continue is the default');
    $w->open_gate('c');
    ok($w->wait_status($there, $s, 'finished'), '... it ends');
    is($u->counts->{early}, 1, '... its call was read to its end');

    for my $pid ($here, $there) {
        my $r = $w->get($pid, "$s->{url}/stream?after=$gen-3");
        check_run([ @{ $w->get($pid, "$s->{url}/stream")->events }[ 0 .. 3 ],
            @{ $r->events } ], outcome => 'success',
            text => join('', map {"$_,xxxxxx"} 1 .. 4), name => '... is kept');
    }

    # and so does its reader, RST
    $s = $w->post($here, 'text 2; gate d; text 2');
    my $r = $w->open($there, 'GET', "$s->{url}/stream");
    $_->read_until('TEXT_MESSAGE_CONTENT', 10), $_->reset for $r, $s;
    $w->open_gate('d');
    ok($w->wait_status($there, $s, 'finished'), 'RST');
    $_->close for $far;
};

# retain=1s: read for a second, gone for another, then unknown.
subtest 'expiry' => sub {
    my $s = $w->post($here, 'text 3', path => '/brief', whole => 1);
    my $e = $w->post($here, 'fail 500', path => '/brief', whole => 1);
    my $ended = time;
    is_tail($w->get($there, "$s->{url}/stream"), $s, -1, 'kept');
    my @all = (
        sub { $w->get($_[0], $s->{url}) },
        sub { $w->get($_[0], "$s->{url}/stream") },
        sub { $w->get($_[0], "$s->{url}/stream", 'Last-Event-ID' =>
            $s->events->[-1]{id}) },
        sub { $w->get($_[0], "$s->{url}/stream?mode=join") },
        sub { $w->request($_[0], 'DELETE', $s->{url}) },
        sub { $w->request($_[0], 'POST', "$s->{url}/cancel") },
        sub { $w->again($_[0], $s) },
        sub { $w->again($_[0], $s, accept => 'application/json') },
    );
    my $are = sub {
        my (%got);
        for my $pid ($here, $there) {
            $got{ outcome($_->($pid)) }++ for @_;
        }
        return join ', ', sort keys %got;
    };

    $t->wait_for(sub { $w->status($there, $s) eq 410 }, 5);
    my $gone = time - $ended;
    my $got = $are->(@all);
    is($got, '410 gone', 'gone, whatever is asked') if time - $ended < 1.9;
    cmp_ok($gone, '>', 0.9, '... after a second');
    $t->wait_for(sub { $w->status($there, $s) eq 404 }, 5);
    cmp_ok(time - $ended, '>', 1.9, 'forgotten after two');
    is($are->(@all[ 0 .. 5 ]), '404 not_found', '... whatever is asked');
    my $r = $w->again($there, $s);
    is($r->header('x-agent-attached'), undef, '... its id may be used again');
    check_run($r->events, outcome => 'success');
    isnt($r->events->[0]{id}, $s->events->[0]{id}, '... by another run');
};

subtest 'owners' => sub {
    my $long = "\x{1f600}" x 128;
    my @ids = ('plain', 'a:b', 'a*b', '/../', '..', '/', 'a/stream', '%2F', '%',
        'a b', '+', 'a?b#c', "\x{e9}", 'runs', 'stream', "' or 1", '{id}',
        '"\\', $long);
    my $to = sub { "/of/runs/" . join '', map {
        /[A-Za-z0-9_]/ ? $_ : sprintf '%%%02X', ord } split //, $_[0] };
    my @as = map { [ 'X-Owner' => $_ ] } qw(ann bob);
    my $said = sub {
        my ($r) = @_;
        return join "\n", $r->{status}, $r->{body}, map { "$_: "
            . join ',', @{ $r->{headers}{$_} } }
            grep { !/^(?:date|x-worker)$/ } sort keys %{ $r->{headers} };
    };
    my $ask = sub {
        my ($url, $as) = @_;
        return [ map {
            my ($pid, $method, $rest) = @$_;
            $said->($w->request($pid, $method, "$url$rest", $as));
        } map { my $pid = $_; map { [ $pid, @$_ ] } ['GET', ''],
            ['GET', '/stream'], ['GET', '/stream?after=1-1'],
            ['GET', '/stream?mode=join'], ['DELETE', ''], ['POST', '/cancel']
        } $here, $there ];
    };

    for my $id (@ids) {
        my $bytes = $id;
        utf8::encode($bytes);
        (my $shown = substr $bytes, 0, 20) =~ s/[^ -~]/?/g;
        my $url = $to->($bytes);
        my $unknown = $ask->($url, $as[1]);

        # nginx takes these paths apart
        my $none = $id =~ m{^\.\.$|^/} ? 400 : 404;
        is(scalar(grep { !/^$none\n/ } @$unknown), 0, "$shown: $none");

        my $s = $w->post($here, 'text 1; gate own', path => '/of/',
            headers => $as[0], input => { runId => $id });
        $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        is($s->header('x-agent-run-id'), $id =~ /^[A-Za-z0-9._:-]+$/ ? $id
            : undef, '... X-Agent-Run-Id');
        my $live;

        if ($none == 404) {
            my $r = $w->get($there, $url, @{ $as[0] });
            is($r->json->{runId}, $id, '... its owner\'s');
            is($r->json->{status}, 'running', '... runs');
            $live = $w->open($there, 'GET', "$url/stream", $as[0]);
        }

        is_deeply($ask->($url, $as[1]), $unknown,
            '... another gets the same as of no run');
        is($w->get($here, "/chat/runs/" . ($url =~ s{.*/}{}r))->{status},
            $none, '... nor without an owner');

        # the same id is another's to use
        my $other = $w->post($there, 'text 2', path => '/of/', whole => 1,
            headers => $as[1], input => { runId => $id });
        is($other->header('x-agent-attached'), undef, '... it is free to use');
        check_run($other->events, outcome => 'success',
            text => '1,xxxxxx2,xxxxxx');

        if ($none == 404) {
            is($w->request($there, 'DELETE', $url, $as[0])->{status}, 202,
                '... and not stopped by the other');
            AgentClient->read_all(5, $s, $live);
            is($live->{body}, $s->{body}, '... read elsewhere');
            $live->close;

        } else {
            is($w->again($there, $s, headers => $as[0],
                whole => 0)->read_head(5), 200, '... but a POST finds it');
        }

        $s->close;
    }

    $w->open_gate('own');
    is(outcome($w->get($there, "/of/runs/$_", @{ $as[0] })), '404 not_found',
        "id \"$_\"") for 'x%0A', '%0Ax', 'x%0D%0AX-A:%20b', '%01', '%7F',
        'x' x 600, '%FF%FE';
    is(outcome($w->get($there, "/of/runs/$_", @{ $as[0] })), $_ =~ m{^/|%2E}
        ? '400 bad_request' : '404 not_found', "path \"$_\"")
        for '', '/', '/stream', '%2E%2E', '%2E%2E/stream';
    is(outcome($w->get($there, '/of/runs/plain')), '401 unauthorized',
        'nobody');
};

subtest 'agent_resume' => sub {
    my $s = $w->post($here, 'text 2; gate s; text 2');
    ok($w->wait_seq($there, $s, 3), 'it runs');
    my %live = map { ($_ => $w->open($both{$_}, 'GET',
        "/streams/$s->{id}/stream")) } keys %both;
    my $url = "/streams/$s->{id}";
    is($w->get($there, $url)->json->{status}, 'running', 'its status');
    is(outcome($w->get($there, "/mine/$s->{id}", 'X-Owner' => 'ann')),
        '404 not_found', 'another owner');
    is(outcome($w->get($there, "/mine/$s->{id}")), '401 unauthorized', 'none');
    my $p = $w->post($there, 'text 1', path => '/streams/', whole => 1);
    is(outcome($p), '404 not_found', 'runs are not started here');
    is(outcome($w->get($there, "/streams/$_")), '404 not_found', "no \"$_\"")
        for '', 'capabilities', "runs/$s->{id}", "$s->{id}/rows",
        "runs/$s->{id}/stream";
    my $r = $w->request($there, 'POST', $url, [], '{}');
    is(outcome($r), '405 method_not_allowed', 'POST of a run');
    is($r->header('allow'), 'GET, HEAD, DELETE', '... Allow');
    $w->open_gate('s');
    AgentClient->read_all(10, $s, values %live);

    for my $where (sort keys %both) {
        is_tail($live{$where}, $s, -1, "$where: the stream");
        is_tail($w->get($both{$where}, "$url/stream", 'Last-Event-ID' =>
            $s->events->[2]{id}), $s, 2, '... resumed');
        is($w->request($both{$where}, 'DELETE', $url)->{status}, 204,
            '... DELETE');
        is($w->request($both{$where}, 'POST', "$url/cancel")->{status}, 204,
            '... cancel');
    }

    $_->close for $s, values %live;
    $s = $w->post($here, 'text 2; hang');
    ok($w->wait_seq($there, $s, 3), 'another');
    is($w->request($there, 'DELETE', "/streams/$s->{id}")->{status}, 202,
        '... is stopped');
    $s->finish(5);
    check_run($s->events, outcome => 'cancelled');
    my $m = $w->post($here, 'text 1', path => '/of/', whole => 1,
        headers => [ 'X-Owner' => 'ann' ]);
    is_tail($w->get($there, "/mine/$m->{id}/stream", 'X-Owner' => 'ann'), $m,
        -1, 'of an owner');
    $s->close;
};

subtest 'the status' => sub {
    my $s = $w->post($here, 'text 2; gate t; text 1');
    ok($w->wait_seq($there, $s, 3), 'it runs');
    my $time = qr/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
    my ($gen) = $s->read_event(5)->{id} =~ /^(\d+)/;

    for my $pid ($here, $there) {
        my $j = $w->get($pid, $s->{url})->json;
        is_deeply([ sort keys %$j ],
            [qw(lastEventId runId startedAt status threadId)], 'its members');
        is_deeply([ @$j{qw(runId threadId status lastEventId)} ],
            [ @{ $s->{input} }{qw(runId threadId)}, 'running', "$gen-3" ],
            '... their values');
        like($j->{startedAt}, $time, '... a time');
    }

    $w->open_gate('t');
    $s->finish(10);
    my $last = @{ $s->events } - 1;

    for my $pid ($here, $there) {
        my $r = $w->get($pid, $s->{url});
        my $j = $r->json;
        is_deeply([ sort keys %$j ], [qw(finishedAt lastEventId runId startedAt
            status threadId usage)], 'over: its members');
        is("$j->{status} $j->{lastEventId}", "finished $gen-$last",
            '... their values');
        is_deeply($j->{usage}, { inputTokens => 9, outputTokens => 4,
            totalTokens => 13 }, '... usage');
        like($j->{finishedAt}, $time, '... a time');
        like($r->header('cache-control'), qr/no-store/, '... not to be stored');
    }

    is($w->get($there, '/chat/capabilities')->json->{transport}{resumable},
        Mojo::JSON->true, 'resumable');
    is($w->get($there, '/local/capabilities')->json->{transport}{resumable},
        Mojo::JSON->false, '... not without a zone');

    # two zones, none named: none is taken
    my $l = $w->post($here, 'text 1; hang', path => '/local');
    $l->read_until('TEXT_MESSAGE_CONTENT', 10);
    is(outcome($w->get($there, "$l->{url}/stream")), '404 not_found',
        '... its stream is elsewhere');
    is(outcome($w->again($there, $l)), '409 run_id_in_use', '... POST');
    $l->close;
    ok($w->wait_status($there, $l, 'cancelled'), '... on_disconnect cancel');
    $s->close;
};

subtest 'clients' => sub {
    my $s = $w->post($here, 'text 20 2000; gate v; text 20 20000; wait 0.7;'
        . 'text 2', path => '/beat');
    ok($w->wait_seq($there, $s, 21), 'it runs');
    my (%r, %h2);

    for my $where (qw(here there)) {
        my $pid = $both{$where};
        my $get = sub {
            my ($q, $h, %o) = @_;
            return $w->open($pid, 'GET', "$s->{url}/stream$q", $h, undef, %o);
        };
        $r{"$where plain"} = $get->('?after=4', []);
        $h2{$where} = h2($pid);
        $r{"$where h2"} = $h2{$where}->request('GET',
            "$s->{url}/stream?after=4");
    }

    # these ports are not any worker's own
    $r{"$_ window"} = $w->open(0, 'GET', "$s->{url}/stream?after=4", {}, undef,
        port => $t->port(1), rcvbuf => 1) for 1 .. 4;
    $r{"$_ 1.0"} = $w->open(0, 'GET', "$s->{url}/stream?after=4", {}, undef,
        port => $t->port, version => '1.0') for 1 .. 4;
    my $h2slow = h2($there, window => 1, auto => 'stream');
    $h2slow->{auto} = 0;
    $r{'h2 slow'} = $h2slow->request('GET', "$s->{url}/stream?after=4");
    $r{'h2 slow'}->read_head(10);
    $_->read_head(10) for values %r;
    $w->open_gate('v');
    AgentClient->read_all(30, $s, grep { $_ != $r{'h2 slow'} } values %r);
    is($w->status($there, $s), 'finished', 'nobody slows it down');
    $h2slow->credit($r{'h2 slow'}{id}, 10_000_000)->flush;
    $h2slow->credit(0, 10_000_000)->flush;
    $r{'h2 slow'}->finish(20);
    my $pings = grep { defined $_->{comment} } @{ $r{'here plain'}->frames };
    cmp_ok($pings, '>=', 1, 'heartbeats');

    for my $key (sort keys %r) {
        is_tail($r{$key}, $s, 4, $key);
        is(scalar(grep { defined $_->{comment} && defined $_->{id} }
            @{ $r{$key}->frames }), 0, '... heartbeats have no id');
        is($r{$key}{mode}, 'close', '... until the connection closes')
            if $key =~ /1\.0/;
    }

    is($_->faults, '', 'HTTP/2') for values %h2, $h2slow;

    # gzip, live and over
    my $z = $w->post($here, 'text 20; gate z; text 5');
    ok($w->wait_seq($there, $z, 21), 'another');
    my $url = $z->{url} =~ s{^/chat}{/zip}r;
    my %z = map { ($_ => $w->open($both{$_}, 'GET', "$url/stream?after=4",
        { 'Accept-Encoding' => 'gzip' })) } keys %both;
    $_->read_head(10) for values %z;
    ok($t->wait_for(sub { $_->_fill(0) for values %z;
        !grep { !length $_->{body} } values %z }), 'gzip: at once');
    $w->open_gate('z');
    AgentClient->read_all(10, $z, values %z);

    for my $where (sort keys %both) {
        for my $r ($z{$where}, $w->get($both{$where}, "$url/stream?after=4",
            'Accept-Encoding' => 'gzip')) {
            is($r->header('content-encoding'), 'gzip', "$where: gzip");
            $r->{body} = Compress::Zlib::memGunzip($r->{body});
            is_tail($r, $z, 4, '... the stream');
        }
    }

    $_->close for $s, $z, values %z, values %h2, $h2slow;
};

subtest 'the access log' => sub {
    my $s = $w->post($here, 'text 3; gate w; text 2');
    ok($w->wait_seq($there, $s, 4), 'it runs');
    my %live = map { ($_ => $w->open($both{$_}, 'GET', "$s->{url}/stream"))
    } keys %both;
    my $leaves = $w->open($there, 'GET', "$s->{url}/stream?after=2");
    $leaves->read_event(5);
    $leaves->close;
    $w->open_gate('w');
    AgentClient->read_all(10, $s, values %live);
    my $n = @{ $s->events };
    my $last = $s->events->[-1]{id};

    for my $where (sort keys %both) {
        my $pid = $both{$where};
        $w->get($pid, "$s->{url}/stream?after=2");
        $w->get($pid, "$s->{url}/stream?after=1-1");
        $w->get($pid, "$s->{url}/stream", 'Last-Event-ID' => $last);
    }

    my $id = quotemeta $s->{id};
    my $end = "status=finished reason=stop in=9 out=4 events=$n";
    my %want = (
        "POST 200 resume=- $end"        => 1,
        "GET 200 resume=complete $end"  => 4,
        "GET 200 resume=unknown $end"   => 2,
        'GET 204 resume=complete' => 2,
        'detached' => 1,
    );
    my %got;
    $t->wait_for(sub {
        %got = ();
        for ($t->access_log =~ /^$id (.*resume=.*)$/mg) {
            next if /^GET 200 resume=- /;
            $got{ /status=detached/ ? 'detached' : /^(GET 204 \S+)/ ? $1
                : $_ }++;
        }
        my $n = 0;
        $n += $_ for values %got;
        return $n >= 10;
    }, 5);
    is_deeply(\%got, \%want, 'its lines') or diag explain \%got;
    $_->close for $s, values %live;
};

# Ids of calls are the model's; no event of theirs is lost.
subtest 'long ids' => sub {
    for my $n (60, 500, 1000, 4000) {
        my $s = $w->post($here, "text 2; callid $n; text 1", whole => 1);
        my $r = $w->get($there, "$s->{url}/stream");
        my $run = check_run($r->events, outcome => 'success',
            finish => 'tool_calls', name => "$n characters");
        is($r->{body}, $s->{body}, '... the same bytes');
        is(scalar(grep {/SNAPSHOT/} @{ $run->{types} }), 0, '... nothing lost');
    }
};

# The last event of a run with many calls names them all.
subtest 'a long end' => sub {
    for my $n (80, 128) {
        my $s = $w->post($here, "calls $n", whole => 1);
        my $run = check_run($s->events, outcome => 'success',
            finish => 'tool_calls', name => "$n calls");
        is(scalar @{ $run->{last}{outcome}{pendingToolCallIds} // [] }, $n,
            '... all are told of');
        is_tail($w->get($there, "$s->{url}/stream"), $s, -1, '... elsewhere');
        is($w->status($there, $s), 'finished', '... the status');
    }
};

subtest 'a reload' => sub {
    my $s = $w->post($here, 'text 3; call 0 2; gate reload; call 0 1; text 2');
    my $stop = $w->post($here, 'text 3; hang');
    $s->read_until('TOOL_CALL_ARGS', 10);
    $stop->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $far = $w->open($there, 'GET', "$s->{url}/stream");
    $far->read_event(10);
    ok($t->reload, 'reload');
    $w->forget;
    my ($new) = $w->workers;
    my %live = (
        tail => $w->open($new, 'GET', "$s->{url}/stream?after=2"),
        join => $w->open($new, 'GET', "$s->{url}/stream?mode=join"),
        post => $w->again($new, $s, whole => 0),
        json => $w->again($new, $s, whole => 0, accept => 'application/json'),
    );
    $live{join}->read_until('TOOL_CALL_START', 10);
    is($w->status($new, $s), 'running', 'a new worker knows the run');
    is($w->request($new, 'DELETE', $stop->{url})->{status}, 202,
        '... stops one');
    $stop->finish(5);
    check_run($stop->events, outcome => 'cancelled');
    $w->open_gate('reload');
    AgentClient->read_all(10, $s, $far, values %live);
    check_run($s->events, outcome => 'success', name => 'the run ends');
    is($far->{body}, $s->{body}, '... for readers of other old workers');
    is_tail($live{tail}, $s, 2, '... for those of new ones');
    check_prelude($live{join}, $s, 'complete', '... joined');
    is_same($live{join}, $s, '... the same messages');
    is($live{post}{body}, $s->{body}, '... by a POST');
    is($live{json}->json->{status}, 'finished', '... as JSON');
    $_->close for $s, $stop, $far, values %live;
    ok($t->wait_for(sub { !$t->workers('old') }, 10), 'the old workers leave');
    is_tail($w->get($new, "$s->{url}/stream"), $s, -1, '... their runs do not');
};

subtest 'a worker dies' => sub {
    my ($victim, $there, $third) = $w->workers;
    $t->expect_log(qr/exited on signal 9/, qr/were lost with their worker/);
    my $s = $w->post($victim, 'text 3; call 0 2; hang');
    my $other = $w->post($there, 'text 3; gate dies; text 2');
    $s->read_until('TOOL_CALL_ARGS', 10);
    $other->read_until('TEXT_MESSAGE_CONTENT', 10);
    ok($w->wait_seq($there, $s, 7), 'it runs');
    my %live = (
        start => $w->open($there, 'GET', "$s->{url}/stream"),
        join  => $w->open($third, 'GET', "$s->{url}/stream?mode=join"),
        json  => $w->again($third, $s, whole => 0,
            accept => 'application/json'),
    );
    $live{join}->read_until('TOOL_CALL_START', 10);
    $live{start}->read_until('TOOL_CALL_START', 10);
    my $bystander = $w->open($third, 'GET', "$other->{url}/stream");
    my $then = time;
    kill 'KILL', $victim;
    AgentClient->read_all(10, values %live);
    cmp_ok(time - $then, '<', 10, 'its readers are told');
    check_run($live{$_}->events, code => 'worker_lost', name => "... $_")
        for qw(start join);
    is(outcome($live{json}), '500 worker_lost', '... as JSON')
        or diag $live{json}{body};
    is($live{start}->header('x-agent-resume'), 'complete', '... what was said');
    is(scalar(grep { $_->{data}{type} eq 'TOOL_CALL_ARGS' }
        @{ $live{start}->events }), 2, '... is kept');
    ok($t->wait_for(sub {
        3 == grep { $_ != $victim } $t->workers }, 10), 'another worker');
    $w->forget;

    for my $pid ($w->workers) {
        my $r = $w->get($pid, "$s->{url}/stream");
        is($r->{body}, $live{start}{body}, 'the stream, over');
        is($w->get($pid, "$s->{url}/stream", 'Last-Event-ID' =>
            $r->events->[-1]{id})->{status}, 204, '... its end');
        is($w->again($pid, $s)->{body}, $r->{body}, '... by a POST');
        is($w->request($pid, 'DELETE', $s->{url})->{status}, 204, '... DELETE');
    }

    $w->open_gate('dies');
    AgentClient->read_all(10, $other, $bystander);
    check_run($other->events, outcome => 'success', name => 'another run');
    is($bystander->{body}, $other->{body}, '... and its reader elsewhere');
    $_->close for $s, $other, $bystander, values %live;
};

$t->done;
