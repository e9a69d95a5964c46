#!/usr/bin/perl

# The life of a run beside its clients: when the head leaves, heartbeats, joining
# a live run, stopping it, what happens when clients leave or are slow, limits,
# and workers that quit, reload or die.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use AgentUpstream;
use Mojo::JSON qw(decode_json encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

# flow,n=,size=[,delay=][,hold=S][,kind=text|reason|tool]: numbered pieces of
# that size, of which every place can be told: "0000000,xxx0000001,xxx...".  S
# seconds of silence stand before the last ten.
sub piece {
    my ($i, $size) = @_;
    my $s = sprintf '%07d,', $i;
    return $s . 'x' x ($size - length $s);
}

sub AgentUpstream::script_flow {
    my ($self, $r, $p) = @_;
    my ($n, $size, $i) = ($p->{n} // 10, $p->{size} // 16, 0);
    my $kind = $p->{kind} // 'text';
    my $hold = $p->{hold};
    my $args = sub {
        return { tool_calls => [ { index => 0,
            function => { arguments => $_[0] } } ] };
    };
    my $delta = $kind eq 'reason' ? sub { { reasoning_content => $_[0] } }
        : $kind eq 'tool' ? $args : sub { { content => $_[0] } };
    my @before = AgentUpstream::_chunk({ role => 'assistant', content => '' });
    my @after;

    if ($kind eq 'tool') {
        push @before, AgentUpstream::_chunk({ tool_calls => [ { index => 0,
            id => 'call_flow', type => 'function',
            function => { name => 'get_weather', arguments => '{"a":"' } } ] });
        push @after, AgentUpstream::_chunk($args->('"}'));
    }

    my @steps = AgentUpstream::_stream({ %$p, frame => 'chunked' }, @before,
        @after, AgentUpstream::_tail($r, $kind eq 'tool' ? 'tool_calls'
            : 'stop'));
    my ($head, $tail) = split /PIECE/, AgentUpstream::_frame($p,
        AgentUpstream::_chunk($delta->('PIECE')));
    my $len = sprintf '%x', $size + length "$head$tail";
    my $more;
    $more = sub {
        return if $i == $n;
        my $s = '';

        if ($hold && $i == $n - 10) {
            $hold = 0;
            return ([ wait => $p->{hold} ], $more);
        }

        for (1 .. ($p->{delay} ? 1 : 50)) {
            last if $i == $n || $i == $n - 10 && $hold;
            $s .= "$len\r\n$head" . piece($i++, $size) . "$tail\r\n";
        }

        return ($s, $p->{delay} ? [ wait => $p->{delay} ] : (), $more);
    };
    splice @steps, 1 + @before, 0, $more;

    return @steps;
}

my @agents = (
    ok      => 'ok',
    words   => 'words,n=20,delay=0.05',
    tick    => 'words,n=40,delay=0.05',
    endless => 'words,n=100000,delay=0.02',
    silent  => 'hang,at=first',
    role    => 'hang,at=role',
    late    => 'slowhead,ms=2500',
    slow    => 'slowhead,ms=500',
    fail    => 'status,code=500,wait=0.5',
    faillate => 'status,code=500,wait=2',
    again   => 'status,code=500,times=1',
    beat    => {
        script   => 'hang,at=first',
        location => 'agent_heartbeat 200ms;',
    },
    pause   => {
        script   => 'hang,at=content',
        location => 'agent_heartbeat 200ms;',
    },
    still   => {
        script   => 'hang,at=content',
        location => 'agent_heartbeat off;',
    },
    text    => 'flow,n=80,size=200,delay=0.03',
    reason  => 'flow,n=80,size=200,delay=0.03,kind=reason',
    tool    => 'flow,n=80,size=200,delay=0.03,kind=tool',
    after   => {
        script => 'words,n=60,delay=0.05',
        agent  => 'on_disconnect cancel after=1s;',
    },
    stay    => {
        script => 'words,n=40,delay=0.05',
        agent  => 'on_disconnect continue;',
    },
    one     => {
        script => 'words,n=15,delay=0.1',
        model  => 'max_inflight 1 queue=1 timeout=5s;',
    },
    brief   => {
        script => 'words,n=100,delay=0.1',
        model  => 'max_inflight 1 queue=1 timeout=500ms;',
    },
    limit   => { script => 'hang,at=first', agent => 'max_run_time 500ms;' },
    limit2  => {
        script => 'words,n=1000,delay=0.05',
        agent  => 'max_run_time 1500ms;',
    },
    big     => 'flow,n=5000,size=4096',
    many    => 'flow,n=120000,size=16,hold=5',
);

# A configuration with these agents: main, what the server has, and workers.
sub nginx {
    my ($workers, $main, $listen, $server) = @_;
    my $t = AgentTest->new;
    my ($http, $locations) = agent_blocks(@agents);

    $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes $workers;
$main
events { worker_connections 512; }
http {
    %%GLOBALS_HTTP%%
    client_max_body_size 8m;
$http
    server {
        listen 127.0.0.1:%%PORT%% $listen;
        listen 127.0.0.1:%%PORT1%% sndbuf=64k;
        add_header X-Worker \$pid always;
        $server
$locations
    }
}
CONF
    $t->start;

    return $t;
}

my $t = nginx(1, '', '', '');
my $u = $t->upstream;
my @json = ('Content-Type' => 'application/json');

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

# An open stream of a run, read to its first content.
sub begin {
    my ($path, $input, %o) = @_;
    my $s = $t->post_run($input // {}, path => $path, stream => 1, %o);
    $s->{id} = $s->{input}{runId};
    $s->{got} = [ $s->read_until(qw(TEXT_MESSAGE_CONTENT), 10) ]
        if !$o{blind};
    return $s;
}

# The same run once more.
sub join_run {
    my ($s, $path, %o) = @_;
    return $t->post_run({ runId => $s->{input}{runId},
        threadId => $s->{input}{threadId} }, path => $path, stream => 1, %o);
}

# Model calls of that script which the module has closed.
sub closed {
    my ($script) = @_;
    my %conn = map { ($_->{conn} => 1) } $u->requests(qr{^/\Q$script\E[,/]});
    return scalar grep { $conn{ $_->{conn} } && $_->{early} } $u->connections;
}

sub status_of {
    my ($path, $id) = @_;
    return $t->request('GET', "$path/runs/$id")->json->{status} // '-';
}

# The messages that a client of AG-UI holds after these events (agui.md 4.3).
sub reduce {
    my (@events) = @_;
    my (@list, %msg);
    my $add = sub {
        my ($m) = @_;
        push @list, $msg{ $m->{id} } = $m if !$msg{ $m->{id} };
        return $msg{ $m->{id} };
    };
    my $call = sub {
        my ($id) = @_;
        my ($c) = grep { $_->{id} eq $id } map { @{ $_->{toolCalls} // [] } }
            @list;
        return $c;
    };

    for my $e (map { decode_json($_->{json}) } @events) {
        my $type = $e->{type};

        if ($type eq 'MESSAGES_SNAPSHOT') {
            my %new = map { ($_->{id} // '' => $_) } @{ $e->{messages} };
            my %role = map { ($_->{role} => 1) } @{ $e->{messages} };
            @list = grep { $new{ $_->{id} }
                || $_->{role} =~ /^(?:reasoning|activity)$/
                && !$role{ $_->{role} } } @list;
            my %had = map { ($_->{id} => 1) } @list;
            @list = map { $new{ $_->{id} } // $_ } @list;
            push @list, grep { !$had{ $_->{id} // '' } } @{ $e->{messages} };
            %msg = map { ($_->{id} // '' => $_) } @list;

        } elsif ($type =~ /^(TEXT|REASONING)_MESSAGE_START$/) {
            $add->({ id => $e->{messageId}, role => $e->{role}, content => '' });

        } elsif ($type =~ /^(TEXT|REASONING)_MESSAGE_CONTENT$/) {
            $msg{ $e->{messageId} }{content} .= $e->{delta};

        } elsif ($type eq 'TOOL_CALL_START') {
            next if $call->($e->{toolCallId});
            my $m = $add->({ id => $e->{parentMessageId},
                role => 'assistant' });
            push @{ $m->{toolCalls} }, { id => $e->{toolCallId}, function =>
                { name => $e->{toolCallName}, arguments => '' } };

        } elsif ($type eq 'TOOL_CALL_ARGS') {
            $call->($e->{toolCallId})->{function}{arguments} .= $e->{delta};
        }
    }

    return @list;
}

# All that the run said, of each kind, as the client holds it at the end; the
# client's own messages have short ids.
sub said {
    my (@events) = @_;
    my %said = (text => '', reason => '', tool => '');

    for my $m (grep { $_->{id} =~ /^(msg|rsm)_/ } reduce(@events)) {
        $said{text} .= $m->{content} // '' if $m->{role} eq 'assistant';
        $said{reason} .= $m->{content} // '' if $m->{role} eq 'reasoning';
        $said{tool} .= $_->{function}{arguments} for @{ $m->{toolCalls} // [] };
    }

    return \%said;
}

sub flow_text {
    my ($from, $n, $size) = @_;
    return join '', map { piece($_, $size) } $from .. $n - 1;
}

subtest 'the head' => sub {
    my %s = map { ($_ => begin("/$_", {}, blind => 1)) }
        qw(words late fail faillate);
    my $json = $t->post_run({}, path => '/late', stream => 1,
        accept => 'application/json');

    is($s{words}->read_head(10), 200, 'a quick model');
    ok($s{words}{head_time} < 0.7, '... its head leaves at once')
        or diag $s{words}{head_time};
    is($s{fail}->read_head(10), 502, 'a failure after half a second');
    ok($s{fail}{head_time} < 0.95, '... is a status at once')
        or diag $s{fail}{head_time};
    is($s{late}->read_head(10), 200, 'a slow model');
    ok($s{late}{head_time} > 0.8 && $s{late}{head_time} < 2,
        '... its head leaves after a second') or diag $s{late}{head_time};
    is($s{late}->read_event(1)->{data}{type}, 'RUN_STARTED',
        '... with RUN_STARTED');
    is($s{faillate}->read_head(10), 200, 'a failure after two seconds');

    $_->finish(10) for values %s, $json;
    is(outcome($s{fail}), '502 upstream_error', 'the early failure');
    check_run($s{faillate}->events, code => 'upstream_error',
        name => 'the late failure');
    check_run($s{late}->events, text => 'Hello, world!', name => 'slow');
    is($json->{status}, 200, 'a JSON answer of a slow model');
    ok($json->{head_time} > 2, '... its head leaves at the end');
    $_->close for values %s, $json;
};

subtest 'heartbeats' => sub {
    my %s = map { ($_ => begin("/$_", {}, blind => 1)) } qw(beat pause still);
    my $end = time + 3;

    for my $s (values %s) {
        1 while $s->_fill($end);
    }

    my %n = map { my $s = $s{$_};
        ($_ => [ grep { defined $_->{comment} } @{ $s->frames } ]) } keys %s;
    cmp_ok(@{ $n{beat} }, '>=', 4, 'before the first byte of the model');
    cmp_ok(@{ $n{beat} }, '<=', 16, '... not too many');
    cmp_ok(@{ $n{pause} }, '>=', 6, 'in the middle of its answer');
    is(scalar @{ $n{still} }, 0, 'agent_heartbeat off');
    is_deeply([ map { $_->{data}{type} } @{ $s{beat}->events } ],
        ['RUN_STARTED'], 'no other event comes');
    $_->close for values %s;
};

# Each of the three kinds of items is open when a second reader comes.
subtest 'joining' => sub {
    my @messages = (
        { id => 'sys', role => 'system',    content => 'from the client' },
        { id => 'u-1', role => 'user',      content => 'first' },
        { id => 'th',  role => 'reasoning', content => 'a thought' },
        { id => 'a-1', role => 'assistant', content => 'second' },
        { id => 'act', role => 'activity',  content => { n => 1 },
            activityType => 'PLAN' },
        { id => 'u-2', role => 'user',      content => 'third' },
    );
    my %type = (text => 'TEXT_MESSAGE', reason => 'REASONING_MESSAGE',
        tool => 'TOOL_CALL');
    my (%first, %second, %json);

    for my $kind (sort keys %type) {
        $first{$kind} = begin("/$kind", { messages => \@messages },
            blind => 1);
    }

    # enough for the first events to be freed
    for my $kind (sort keys %type) {
        my $n = 0;
        $first{$kind}->read_until(sub {
            $_[0]{data}{type} =~ /CONTENT$|ARGS$/ && ++$n == 50 }, 20);
        $second{$kind} = join_run($first{$kind}, "/$kind");
        $json{$kind} = join_run($first{$kind}, "/$kind",
            accept => 'application/json');
    }

    $_->finish(20) for values %first, values %second, values %json;

    for my $kind (sort keys %type) {
        my ($one, $two, $json) = ($first{$kind}, $second{$kind}, $json{$kind});
        my @e = @{ $two->events };
        my @types = map { $_->{data}{type} } @e;
        my $want = flow_text(0, 80, 200);
        $want = "{\"a\":\"$want\"}" if $kind eq 'tool';

        is($two->{status}, 200, "$kind: a second reader");
        is($two->header('x-agent-attached'), 1, '... X-Agent-Attached');
        is($two->header('x-agent-run-id'), $one->{id}, '... of that run');
        check_run(\@e, outcome => 'success', name => '... a legal stream');
        is("@types[0, 1]", 'RUN_STARTED MESSAGES_SNAPSHOT', '... the prelude');
        is(scalar(grep { $_ eq "$type{$kind}_START" } @types), 1,
            '... opens what is open');
        like($types[-2] // '', qr/_END$/, '... closes it');
        cmp_ok(scalar(grep { /CONTENT$|ARGS$/ } @types), '<', 79,
            '... the rest only');
        ok(said(@{ $one->events })->{$kind} eq $want, '... the first has all');
        ok(said(@e)->{$kind} eq $want, '... the second has all')
            or diag length said(@e)->{$kind};

        my $held = { json => encode_json(
            { type => 'MESSAGES_SNAPSHOT', messages => \@messages }) };
        my %left = map { ($_->{id} => 1) } reduce($held, @e);
        is(join(' ', grep { !$left{$_} } map { $_->{id} } @messages), '',
            '... the client loses none of its messages');
        my @id = map { $_->{id} } @e;
        is(scalar(grep { defined && !/^\d+-\d+\z/ } @id), 0, '... ids');
        my ($last) = grep { defined $id[$_] } 0 .. $#id;
        my %seq = map { ($_->{id} => $_->{json}) } grep { defined $_->{id} }
            @{ $one->events };
        is(scalar(grep { $_->{json} ne ($seq{ $_->{id} } // '') }
            grep { defined $_->{id} } @e[ $last + 1 .. $#e ]), 0,
            '... events have the ids and bytes that the first reader saw');

        is($json->{status}, 200, "$kind: a JSON answer of the same run");
        is($json->header('x-agent-attached'), 1, '... X-Agent-Attached');
        is($json->json->{status}, 'finished', '... its end');
        is($json->json->{text}, $kind eq 'text' ? $want : '', '... its text');
        $_->close for $one, $two, $json;
    }

    # at once, before the model said anything: the same frames
    my $s = begin('/slow', {}, blind => 1);
    my $two = join_run($s, '/slow');
    $_->finish(10) for $s, $two;
    is($two->header('x-agent-attached'), 1, 'early: attached');
    check_run($two->events, text => 'Hello, world!', name => '... the run');
    is_deeply([ map { $_->{raw} } @{ $two->events } ],
        [ map { $_->{raw} } @{ $s->events } ], '... the same frames');
    $_->close for $s, $two;
};

subtest 'joining: ids' => sub {
    my $s = begin('/endless');
    my $again = sub {
        return $t->post_run({ runId => $s->{id}, @_ }, path => '/endless',
            stream => 1);
    };
    my $other = $again->(threadId => 'another');
    $other->finish(10);
    is(outcome($other), '409 run_id_in_use', 'another thread');
    my $none = $again->(threadId => undef);
    is($none->read_head(10), 200, 'no thread: the run\'s own');
    is($none->header('x-agent-thread-id'), $s->{input}{threadId}, '... said');
    my $bad = $again->(messages => 17);
    $bad->finish(10);
    is(outcome($bad), '400 bad_request', 'a bad body is one all the same');
    $none->close;

    is(status_of('/endless', $s->{id}), 'running', 'it still runs');
    $t->request('DELETE', "/endless/runs/$s->{id}");
    $s->finish(10);
    $s->close;
    my $r = $t->post_run({ runId => $s->{id},
        threadId => $s->{input}{threadId} }, path => '/endless');
    is(outcome($r), '410 gone', 'a cancelled run with content');

    $r = $t->post_run({}, path => '/ok');
    my @same = (runId => $r->{input}{runId},
        threadId => $r->{input}{threadId});
    is(outcome($t->post_run({@same}, path => '/ok')), '410 gone',
        'a finished run');
    is(outcome($t->post_run({@same}, path => '/ok',
        accept => 'application/json')), '410 gone', '... as JSON');

    # nothing was said
    $r = $t->post_run({}, path => '/again');
    is(outcome($r), '502 upstream_error', 'a run that failed at once');
    @same = (runId => $r->{input}{runId}, threadId => $r->{input}{threadId});
    is(status_of('/again', $r->{input}{runId}), 'error', '... its status');
    $r = $t->post_run({@same}, path => '/again');
    is($r->{status}, 200, '... may be posted again');
    is($r->header('x-agent-attached'), undef, '... as a new run');
    check_run($r->events, text => 'Hello, world!');
    is(status_of('/again', $r->{input}{runId}), 'finished', '... its status');

    # a failure before the head, with two readers
    my @two = map { $t->post_run({ runId => 'f-1', threadId => 'f-1' },
        path => '/fail', stream => 1) } 1, 2;
    $_->finish(10) for @two;
    is(outcome($_), '502 upstream_error', 'both readers get the status')
        for @two;
    $_->close for @two;

    # messages that the client sent without ids, and one made for it
    $s = $t->post_run({ messages => [
        { role => 'user', content => 'one' },
        { role => 'assistant', toolCalls => [ { id => 'c1', type => 'function',
            function => { name => 'f', arguments => '{}' } } ] },
        { role => 'user', content => 'two' },
    ] }, path => '/text', stream => 1);
    my $read = 0;
    $s->read_until(sub {
        $_[0]{data}{type} eq 'TEXT_MESSAGE_CONTENT' && ++$read == 50 }, 20);
    my $late = join_run($s, '/text');
    my ($snapshot) = map { $_->{data} } $late->read_until('MESSAGES_SNAPSHOT');
    is($snapshot->{type}, 'RUN_STARTED', 'a prelude');
    ($snapshot) = map { $_->{data} } $late->read_until('TEXT_MESSAGE_START');
    my @e = map { $_->{data} } grep { $_->{data}{type} eq 'MESSAGES_SNAPSHOT' }
        @{ $late->events };
    my %ids;
    $ids{ $_->{id} // '' }++ for @{ $e[0]{messages} // [] };
    cmp_ok(scalar keys %ids, '>=', 3, '... with messages');
    ok(!$ids{''}, '... each has an id') or diag encode_json(\@e);
    ok(!(grep { $_ > 1 } values %ids), '... of its own');
    $_->close for $s, $late;

    # a request too large to be kept
    $s = $t->post_run({ text => 'y' x 300_000 }, path => '/text', stream => 1);
    my $n = 0;
    $s->read_until(sub {
        $_[0]{data}{type} eq 'TEXT_MESSAGE_CONTENT' && ++$n == 50 }, 20);
    my $gap = join_run($s, '/text');
    $gap->finish(10);
    check_run($gap->events, code => 'gap', name => 'nothing to tell it from');
    $s->finish(10);
    check_run($s->events, outcome => 'success', name => '... the run goes on');
    $_->close for $s, $gap;
};

subtest 'stopping' => sub {
    my $stop = sub { $t->request('POST', "$_[0]/runs/$_[1]/cancel") };

    $u->forget;
    my $s = begin('/endless');
    my $start = time;
    my $r = $stop->('/endless', $s->{id});
    is($r->{status}, 202, 'cancel');
    is($r->json->{accepted}, Mojo::JSON->true, '... accepted');
    $r = $stop->('/endless', $s->{id});
    is($r->{status}, 204, '... once');
    is($r->{body}, '', '... no body');
    is($t->request('DELETE', "/endless/runs/$s->{id}")->{status}, 204,
        'DELETE, too');
    ok($u->wait_closed(1, 5), 'the model call is closed');
    $s->finish(5);
    cmp_ok(time - $start, '<', 3, '... quickly');
    check_run($s->events, outcome => 'cancelled', finish => undef,
        name => 'the stream');
    is(status_of('/endless', $s->{id}), 'cancelled', 'the status');
    $s->close;

    # before the model said anything
    for my $path (qw(/silent /role)) {
        $u->forget;
        my $s = begin($path, {}, blind => 1);
        ok($u->wait_requests(1), "$path: it is called");
        is($stop->($path, $s->{id})->{status}, 202, '... cancelled');
        $s->finish(5);
        is($s->{status}, 200, '... status');
        my $run = check_run($s->events, outcome => 'cancelled', text => '');
        is("@{ $run->{types} }", 'RUN_STARTED RUN_FINISHED', '... events');
        ok($u->wait_closed(1, 5), '... the call is closed');
        $s->close;
        my $r = $t->post_run({ runId => $s->{id},
            threadId => $s->{input}{threadId} }, path => $path, stream => 1);
        is($r->read_head(5), 200, '... and may be posted again');
        is($r->header('x-agent-attached'), undef, '... as a new run');
        $stop->($path, $s->{id});
        $r->finish(5);
        $r->close;
    }

    # a JSON answer; with a body, a wrong type and chunks, which nobody reads
    my $json = $t->post_run({}, path => '/endless', stream => 1,
        accept => 'application/json');
    my $id = $json->{input}{runId};
    ok($t->wait_for(sub { status_of('/endless', $id) eq 'running' }),
        'a JSON answer');
    sleep 0.3;
    $r = $t->request('POST', "/endless/runs/$id/cancel",
        [ 'Content-Type' => 'text/plain', 'Transfer-Encoding' => 'chunked' ],
        "3\r\nabc\r\n0\r\n\r\n");
    is($r->{status}, 202, '... cancelled');
    $json->finish(5);
    is($json->{status}, 200, '... status');
    is($json->json->{status}, 'cancelled', '... says so');
    is($json->json->{outcome}{type}, 'cancelled', '... outcome');
    like($json->json->{text}, qr/^w1 /, '... with the text so far');
    is($json->json->{finishReason}, undef, '... no finishReason');
    $json->close;
};

subtest 'the client leaves' => sub {
    $u->forget;
    my %s = map { ($_ => begin("/$_")) } qw(endless after stay);
    my $back = begin('/after');
    $_->close for values %s, $back;
    my $left = time;

    # comes back in time
    sleep 0.4;
    my $again = join_run($back, '/after');
    is($again->read_head(10), 200, 'cancel after=1s: back in time');
    is($again->header('x-agent-attached'), 1, '... attached');
    ok($u->wait_closed(1, 5), 'cancel: the call is closed');
    is(status_of('/endless', $s{endless}{id}), 'cancelled', '... status');
    is(status_of('/after', $s{after}{id}), 'running', 'after=1s: not yet')
        if time - $left < 0.9;
    ok($t->wait_for(sub {
        status_of('/after', $s{after}{id}) eq 'cancelled' }, 5), '... but then');
    ok($u->wait_closed(2, 5), '... the call is closed');
    ok($t->wait_for(sub { status_of('/stay', $s{stay}{id}) eq 'finished' }, 10),
        'continue: it finishes');
    $again->finish(10);
    check_run($again->events, outcome => 'success', name => '... a legal stream');
    is(said(@{ $again->events })->{text}, join(' ', map {"w$_"} 1 .. 60),
        '... of the whole text');
    is(closed('words,n=40'), 0, '... its call was read to its end');
    $again->close;

    # one of two readers
    my $one = begin('/tick');
    my $two = join_run($one, '/tick');
    $two->read_event(5);
    $one->close;
    $two->finish(10);
    check_run($two->events, outcome => 'success',
        name => 'another reader holds the run');
    $two->close;
};

subtest 'max_inflight' => sub {
    my $one = begin('/one');
    my $two = begin('/one', {}, blind => 1);
    ok($t->wait_for(sub { status_of('/one', $two->{id}) eq 'queued' }),
        'the second waits');
    my $start = time;
    my $three = $t->post_run({}, path => '/one');
    is(outcome($three), '503 too_busy', 'the third is refused');
    like($three->header('retry-after') // '', qr/^[1-9]\d*$/, '... Retry-After');
    cmp_ok(time - $start, '<', 1, '... at once');
    $one->finish(10);
    my $ended = time;
    $two->finish(10);
    check_run($one->events, outcome => 'success');
    check_run($two->events, outcome => 'success',
        text => join(' ', map {"w$_"} 1 .. 15), name => 'the second, then');
    $_->close for $one, $two;

    # one that waits leaves, or is cancelled: its place is free
    $one = begin('/one');
    for my $how (qw(close reset cancel)) {
        $two = begin('/one', {}, blind => 1);
        ok($t->wait_for(sub { status_of('/one', $two->{id}) eq 'queued' }),
            "$how: it waits");

        if ($how eq 'cancel') {
            is($t->request('DELETE', "/one/runs/$two->{id}")->{status}, 202,
                '... cancelled');
            $two->finish(5);
            my $run = check_run($two->events, outcome => 'cancelled');
            is("@{ $run->{types} }", 'RUN_STARTED RUN_FINISHED',
                '... events');
            is($two->{status}, 200, '... status');

        } else {
            $two->$how;
        }

        ok($t->wait_for(sub {
            status_of('/one', $two->{id}) eq 'cancelled' }), '... it is over');
    }
    my $last = begin('/one', {}, blind => 1);
    ok($t->wait_for(sub { status_of('/one', $last->{id}) eq 'queued' }),
        'its place is free');
    $last->finish(10);
    check_run($last->events, outcome => 'success');
    $_->close for $one, $last;

    # waited out
    $one = begin('/brief');
    $two = begin('/brief', {}, blind => 1);
    $two->finish(5);
    is(outcome($two), '503 too_busy', 'timeout of the queue');
    like($two->header('retry-after') // '', qr/^[1-9]\d*$/, '... Retry-After');
    ok($two->{time} > 0.4 && $two->{time} < 2, '... in time')
        or diag $two->{time};
    is(status_of('/brief', $one->{id}), 'running', '... the first goes on');
    $_->close for $one, $two;
};

subtest 'max_run_time' => sub {
    $u->forget;
    my $r = $t->post_run({}, path => '/limit');
    is(outcome($r), '504 run_timeout', 'before the head');
    $r = $t->post_run({}, path => '/limit2');
    check_run($r->events, code => 'run_timeout', name => 'after it');
    ok($r->{time} > 1.3 && $r->{time} < 4, '... in time') or diag $r->{time};
    $r = $t->post_run({}, path => '/limit2', accept => 'application/json');
    is(outcome($r), '504 run_timeout', 'a JSON answer');
    ok($u->wait_closed(3, 5), 'the calls are closed');
};

sub rss {
    my ($pid, $what) = @_;
    open my $fh, '<', "/proc/$pid/status" or return 0;
    my ($kb) = join('', <$fh>) =~ /^$what:\s+(\d+) kB/m;
    return $kb / 1024;
}

# The text ends with all pieces up to the last one, from some place on.
sub check_tail {
    my ($text, $n, $size, $name) = @_;
    my ($first) = $text =~ /^x*?(\d{7}),/;
    my $want = defined $first ? flow_text($first, $n, $size) : '-';
    ok(substr($text, -length $want) eq $want
        && length($text) - length($want) < $size, $name)
        or diag 'begins with ' . substr($text, 0, 40)
            . ', ends with ' . substr($text, -40);
    return $first;
}

# Of /many the text is still open when the reader is overtaken, of /big it has
# been closed.
subtest 'a slow reader' => sub {
    my ($pid) = $t->workers;
    my $before = rss($pid, 'VmRSS');
    my %c = (big => [ 5000, 4096 ], many => [ 120_000, 16 ]);
    my %s = map { ($_ => $t->post_run({}, path => "/$_", stream => 1,
        port => $t->port(1))) } keys %c;
    my $quick = $t->post_run({}, path => '/many', stream => 1);
    my $end = time + 3;
    1 while $quick->_fill($end);
    is(status_of('/big', $s{big}{input}{runId}), 'finished',
        'a slow reader does not slow the run down');
    is(status_of('/many', $s{many}{input}{runId}), 'running', 'this one waits');

    for my $name (sort keys %s) {
        my ($n, $size) = @{ $c{$name} };
        my $s = $s{$name};
        ok($s->finish(30), "$name: the stream ends");
        my @e = grep { $_->{data} } @{ $s->events };
        my @types = map { $_->{data}{type} } @e;
        check_run(\@e, outcome => 'success', name => '... a legal stream');
        is(scalar(grep { $_ eq 'RUN_STARTED' } @types), 1,
            '... one RUN_STARTED');
        is(scalar(grep { /^RUN_(FINISHED|ERROR)$/ } @types), 1, '... one end');
        ok(scalar(grep { $_ eq 'MESSAGES_SNAPSHOT' } @types),
            '... a snapshot in place') or diag scalar @types;
        my $text = said(@e)->{text};
        my $first = check_tail($text, $n, $size,
            '... the text is whole up to its end');

        if ($name eq 'many') {
            is($first, '0000000', '... and from its beginning');
        } else {
            cmp_ok(length $text, '>', 2_000_000, '... most of what is kept');
        }

        $s->close;
    }

    $quick->finish(30);
    check_run($quick->events, outcome => 'success', name => 'a quick reader');
    ok(said(@{ $quick->events })->{text} eq flow_text(0, @{ $c{many} }),
        '... has all');
    $quick->close;
    cmp_ok(rss($pid, 'VmHWM') - $before, '<', 80,
        'the memory of the worker is bounded');
    note "$before MB before, at most " . rss($pid, 'VmHWM');
};

subtest 'connections' => sub {
    $u->forget;

    # RST, FIN, half close, in the middle of a run and of a body
    for my $how (qw(reset close)) {
        my $s = begin('/endless');
        $s->$how;
        ok($t->wait_for(sub {
            status_of('/endless', $s->{id}) eq 'cancelled' }), $how);
    }

    ok($u->wait_closed(2, 5), '... the calls are closed');
    my $s = begin('/words');
    $s->shutdown_write;
    ok($s->finish(10) || $t->wait_for(sub {
        status_of('/words', $s->{id}) =~ /^(cancelled|finished)$/ }),
        'half close: it ends');
    $s->close;

    my $body = encode_json(run_input());
    $u->forget;
    for my $how (qw(close reset shutdown_write)) {
        my $s = $t->open_stream('POST', '/ok', [ @json,
            'Content-Length' => length $body ], substr $body, 0, -10);
        sleep 0.05;
        $s->$how;
        $s->finish(5) if $s->{sock};
    }
    is($t->request('GET', '/ok/capabilities')->{status}, 200,
        'half a body: nothing happens');
    is(scalar($u->requests), 0, '... no model is called');

    my $r = $t->post_run({}, path => '/ok', version => '1.0');
    is($r->{mode}, 'close', 'HTTP/1.0: until the connection closes');
    is($r->header('transfer-encoding'), undef, '... no chunks');
    check_run($r->events, text => 'Hello, world!');
    $r = $t->post_run({}, path => '/ok', version => '1.0',
        headers => [ Connection => 'keep-alive' ]);
    check_run($r->events, text => 'Hello, world!', name => '... keep-alive');
    $r = $t->post_run({}, path => '/ok', headers => [ Connection => 'close' ]);
    is($r->header('connection'), 'close', 'Connection: close');
    check_run($r->events, text => 'Hello, world!');

    # one connection: a stream, JSON, an error, a status, a stream
    my $post = sub {
        my ($path, $accept, $json) = @_;
        my $body = $json // encode_json(run_input());
        return "POST $path HTTP/1.1\r\nHost: localhost\r\n"
            . "Content-Type: application/json\r\nAccept: $accept\r\n"
            . 'Content-Length: ' . length($body) . "\r\n\r\n$body";
    };
    my $all = sub { (
        $post->('/words', 'text/event-stream'),
        $post->('/ok', 'application/json'),
        $post->('/ok', 'text/event-stream', '{'),
        "GET /ok/runs/none HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "DELETE /ok/runs/none HTTP/1.1\r\nHost: localhost\r\n\r\n",
        $post->('/ok', 'text/event-stream'),
    ) };
    my $want = '200 200 400 404 404 200';
    my $got = $t->raw(join('', $all->(),
        "GET /ok/runs/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 10);
    is(join(' ', $got =~ m{^HTTP/1.1 (\d+)}mg), "$want 404", 'pipelined');
    is(scalar(() = $got =~ /RUN_FINISHED/g), 2, '... both streams end');

    $s = $t->_connect;
    my @status;
    for my $request ($all->()) {
        $s->{complete} = $s->{status} = $s->{left} = 0;
        $s->{body} = '';
        $s->{headers} = {};
        $s->send($request);
        $s->finish(10);
        push @status, $s->{status};
    }
    is("@status", $want, 'one after the other');
    $s->close;

    # many at once
    my @many = map { $t->post_run({}, path => '/words', stream => 1) } 1 .. 60;
    $_->finish(20) for @many;
    is(scalar(grep { $_->{body} =~ /"RUN_FINISHED"/ } @many), 60,
        'many at a time');
    $_->close for @many;
};

subtest 'reload' => sub {
    my @old = map { begin('/tick') } 1 .. 5;
    my $silent = $t->post_run({}, path => '/late', stream => 1);
    my $json = $t->post_run({}, path => '/tick', stream => 1,
        accept => 'application/json');
    sleep 0.2;
    ok($t->reload, 'reload');
    my $new = begin('/tick');
    my $again = $t->post_run({ runId => $old[0]{id},
        threadId => $old[0]{input}{threadId} }, path => '/tick');
    is(outcome($again), '409 run_id_in_use',
        'the new worker cannot join a run of the old one');
    is(status_of('/tick', $old[0]{id}), 'running', '... but tell of it');
    is($t->request('DELETE', "/tick/runs/$old[1]{id}")->{status}, 202,
        '... and stop it');
    $_->finish(10) for @old, $new, $silent, $json;
    check_run($_->events, outcome => $_ == $old[1] ? 'cancelled' : 'success',
        name => 'a stream across a reload') for @old;
    check_run($new->events, outcome => 'success', name => 'a new one');
    check_run($silent->events, outcome => 'success', name => 'a slow one');
    is($json->json->{status}, 'finished', 'a JSON answer');
    $_->close for @old, $new, $silent, $json;
    ok($t->wait_for(sub { !$t->workers('old') }, 10), 'the old worker leaves');
    is(status_of('/tick', $old[0]{id}), 'finished', 'the end is known');

    # and QUIT, with runs in flight
    @old = map { begin('/tick') } 1 .. 3;
    $silent = $t->post_run({}, path => '/late', stream => 1);
    sleep 0.2;
    $t->signal('QUIT');
    $_->finish(10) for @old, $silent;
    check_run($_->events, outcome => 'success', name => 'a stream across QUIT')
        for @old, $silent;
    $_->close for @old, $silent;
    $t->stop;
    $u->stop;
};

subtest 'worker_shutdown_timeout' => sub {
    $t = nginx(1, 'worker_shutdown_timeout 2s;', '', '');
    my @s = map { begin("/$_") } qw(endless endless);
    my $silent = begin('/silent', {}, blind => 1);
    $silent->read_head(5);
    my $start = time;
    $t->signal('QUIT');
    $_->finish(10) for @s, $silent;

    for my $s (@s, $silent) {
        check_run($s->events, code => 'worker_shutdown',
            name => 'told before the cut');
        ok($s->{complete}, '... the body ends');
        my $took = $s->{end_time} + $s->{start} - $start;
        ok($took > 0.7 && $took < 1.95, '... in time') or diag $took;
        $s->close;
    }

    $t->stop;
    cmp_ok(time - $start, '<', 8, 'nginx is gone soon');
    $t->upstream->stop;
};

subtest 'four workers' => sub {
    $t = nginx(4, '', 'reuseport', '');
    $u = $t->upstream;
    my @pids = $t->workers;
    my $here = sub { $_[0]->header('x-worker') };

    # from every worker: a status, and a POST of the same id
    my $s = begin('/endless');
    my (%status, %post);
    for (1 .. 200) {
        last if keys %status == 4 && keys %post == 4;
        my $r = $t->request('GET', "/endless/runs/$s->{id}");
        $status{ $here->($r) }{ $r->json->{status} // '-' }++;
        $r = join_run($s, '/endless');
        $r->read_head(5);
        my $is = $r->{status};
        if ($is != 200) { $r->finish(5); $is = outcome($r) }
        $post{ $here->($r) }{$is}++;
        $r->close;
    }
    is_deeply([ sort keys %status ], [ sort @pids ], 'every worker answered');
    is(join(' ', map { keys %$_ } values %status),
        'running running running running', 'the status is known everywhere');
    my $owner = $here->($s);
    for my $pid (@pids) {
        is(join(' ', keys %{ $post{$pid} }),
            $pid == $owner ? '200' : '409 run_id_in_use',
            $pid == $owner ? 'its own worker joins' : 'another does not');
    }

    # cancel from every worker
    my %cancelled;
    for (1 .. 60) {
        last if keys %cancelled == 4;
        my $r = $t->request('DELETE', "/endless/runs/$s->{id}");
        my $from = $here->($r);
        is($r->{status}, 202, 'cancel from '
            . ($from == $here->($s) ? 'its own' : 'another') . ' worker')
            if !$cancelled{$from}++;
        $s->finish(5);
        check_run($s->events, outcome => 'cancelled', name => '... it ends')
            if $cancelled{$from} == 1;
        $s->close;
        $s = begin('/endless');
    }
    is(scalar keys %cancelled, 4, 'from every worker');
    $s->close;

    # a worker dies
    my (%run, @extra);
    for (1 .. 60) {
        last if keys %run == 4;
        my $s = begin('/tick');
        $run{ $here->($s) } //= $s;
        push @extra, $s;
    }
    my ($dead, @alive) = sort keys %run;
    $t->expect_log(qr/exited on signal 9/);
    kill 'KILL', $dead;
    my $lost = $run{$dead};
    $lost->finish(5);
    ok(!$lost->{complete}, 'a worker is killed: its stream is cut');
    ok($t->wait_for(sub { $t->log =~ /exited on signal 9/ }),
        '... the log says so');
    ok($t->wait_for(sub { $t->workers == 4 }), '... another one starts');

    my %new;
    for (1 .. 200) {
        last if keys %new == 4;
        my $r = $t->post_run({}, path => '/ok');
        $new{ $here->($r) }{ $r->{body} =~ /RUN_FINISHED/ ? 1 : 0 }++;
    }
    is(scalar(grep { $_->{1} && !$_->{0} } values %new), 4,
        '... new runs work in every worker');

    for my $pid (@alive) {
        $run{$pid}->finish(10);
        check_run($run{$pid}->events, outcome => 'success',
            name => '... a run of another worker goes on');
    }

    $t->wait_for(sub { status_of('/tick', $lost->{id}) ne 'running' }, 5);
    my $r = $t->request('GET', "/tick/runs/$lost->{id}");
    is($r->json->{status}, 'error', '... the lost run is no longer running');
    is($r->json->{code}, 'worker_lost', '... worker_lost');
    $r = $t->request('DELETE', "/tick/runs/$lost->{id}");
    is($r->{status}, 204, '... nothing is left to stop');
    $r = $t->post_run({ runId => $lost->{id},
        threadId => $lost->{input}{threadId} }, path => '/tick');
    is(outcome($r), '410 gone', '... its id is gone');
    $_->close for @extra;
};

$t->done;
