#!/usr/bin/perl

# A run through provider openai: the stream's head and bytes, the order of its
# events, ids, usage, reasoning, client tools, the JSON answer, what reaches the
# model, and what is refused before anything starts.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Mojo::JSON qw(decode_json encode_json);
use Test::More;
use Time::HiRes qw(time);

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(
    ok      => 'ok',
    long    => 'ok,finish=length',
    filter  => 'ok,finish=content_filter',
    words   => 'words,n=20,delay=0.1',
    endless => 'words,n=100000,delay=0.02',
    silent  => 'hang,at=first',
    reason  => 'reason',
    usage   => 'usage',
    tool    => script('tool', args => '{"city":"Paris"}'),
    tools   => 'tool,n=3,text=Wait%20a%20moment.',
    bytes   => 'bytewise',
    big     => 'big,kb=2500,delta=3000000',
    many    => 'words,n=2000',
    slow    => 'slowhead,ms=2500',
    beat    => {
        script   => 'slowhead,ms=3500',
        location => 'agent_heartbeat 1s;',
    },
    json    => 'json',
    terse   => {
        script => 'ok',
        agent  => 'system "You are terse.";',
        model  => "set temperature 0.25;\n header X-Team blue;",
    },
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 512; }
http {
    %%GLOBALS_HTTP%%
    log_format agent '\$uri|\$agent_run_id|\$agent_thread_id|\$agent_name|'
        '\$agent_model|\$agent_status|\$agent_finish_reason|'
        '\$agent_input_tokens|\$agent_output_tokens|'
        '\$agent_first_token_time|\$agent_events';
    access_log %%DIR%%/agent.log agent;
    client_max_body_size 8m;

$http
    server {
        listen 127.0.0.1:%%PORT%%;
$locations
    }
}
CONF

$t->start;
my $u = $t->upstream;

# What a stream of a run must look like on the wire, byte for byte.
sub check_stream {
    my ($r, $name) = @_;
    my (@bad, $generation);
    my $seq = 0;

    for my $f (@{ $r->frames }) {
        next if $f->{raw} =~ /\A(?::[^\n]*\n)+\n\z/;
        $f->{raw} =~ /\Aid: ([1-9]\d*)-(0|[1-9]\d*)\ndata: (\{.*\})\n\n\z/
            or push(@bad, "frame $f->{raw}"), next;
        my $json = $3;
        $generation //= $1;
        push @bad, "generation $1 after $generation" if $1 != $generation;
        push @bad, "seq $2, not $seq" if $2 != $seq++;
        $json =~ s/"[^"\\]*+(?:\\.[^"\\]*+)*+"//g;
        push @bad, "white space in $f->{json}" if $json =~ /\s/;
    }

    push @bad, 'a CR' if $r->{body} =~ /\r/;
    push @bad, '[DONE]' if $r->{body} =~ /\[DONE\]/;
    push @bad, 'the body did not end' if !$r->{complete};
    ok(!@bad, "$name: frames") or diag(map {"$_\n"} @bad);

    return $generation;
}

subtest 'a stream' => sub {
    $u->forget;
    my $r = $t->post_run({ text => 'Hi there.' }, path => '/ok');
    my $in = $r->{input};

    is($r->{status}, 200, 'status');
    is($r->header('content-type'), 'text/event-stream', 'Content-Type');
    is($r->header('cache-control'), 'no-cache, no-store, no-transform',
        'Cache-Control');
    is($r->header('x-accel-buffering'), 'no', 'X-Accel-Buffering');
    is($r->header('x-agent-run-id'), $in->{runId}, 'X-Agent-Run-Id');
    is($r->header('x-agent-thread-id'), $in->{threadId}, 'X-Agent-Thread-Id');
    is($r->header('content-length'), undef, 'no Content-Length');
    is($r->header('x-agent-attached'), undef, 'not attached');

    my $generation = check_stream($r, 'ok');
    ok(abs($generation / 1000 - time) < 86400, 'the generation is a time');

    my $run = check_run($r->events,
        text     => 'Hello, world!',
        finish   => 'stop',
        outcome  => 'success',
        threadId => $in->{threadId},
        runId    => $in->{runId},
    );
    is_deeply($run->{types}, [
        'RUN_STARTED', 'TEXT_MESSAGE_START', ('TEXT_MESSAGE_CONTENT') x 4,
        'TEXT_MESSAGE_END', 'RUN_FINISHED'
    ], 'the events');
    my @data = map { $_->{data} } @{ $r->events };
    is($data[0]{protocolVersion}, '1.0', 'protocolVersion');
    is($data[1]{role}, 'assistant', 'role');
    ok(length $data[1]{messageId}, 'a message id');
    is($data[-1]{threadId}, $in->{threadId}, 'RUN_FINISHED has the ids');

    my @req = $u->requests;
    is(@req, 1, 'one model call');
    is("$req[0]{method} $req[0]{path}", 'POST /ok/v1/chat/completions',
        '... to its place');
    like($req[0]{headers}{'content-type'}, qr{^application/json}, '... JSON');
    is($req[0]{headers}{authorization}, undef, '... no key, none sent');
    my $sent = $req[0]{json};
    is($sent->{model}, 'stub-1', '... model');
    ok($sent->{stream}, '... stream');
    ok($sent->{stream_options}{include_usage}, '... with usage');
    is_deeply([ map { [ $_->{role}, $_->{content} ] } @{ $sent->{messages} } ],
        [ [ 'user', 'Hi there.' ] ], '... the message');
    ok(!exists $sent->{tools}, '... no tools');
};

subtest 'ends and usage' => sub {
    check_run($t->post_run({}, path => '/long')->events,
        finish => 'length', outcome => 'success', name => 'length');
    check_run($t->post_run({}, path => '/filter')->events,
        finish => 'content_filter', name => 'content_filter');
    my $run = check_run($t->post_run({}, path => '/usage')->events,
        finish => 'stop');
    my $use = $run->{usage}[0];
    is(@{ $run->{usage} // [] }, 1, 'usage: one entry');
    is($use->{inputTokens},       100, 'inputTokens');
    is($use->{outputTokens},      40,  'outputTokens');
    is($use->{totalTokens},       140, 'totalTokens');
    is($use->{cachedInputTokens}, 64,  'cachedInputTokens');
    is($use->{reasoningTokens},   16,  'reasoningTokens');
    is($use->{model}, 'stub-1', 'model');
    $run = check_run($t->post_run({}, path => '/json')->events,
        text => 'Hello, world!', finish => 'stop',
        name => 'a model that answers with JSON');
    is($run->{usage}[0]{totalTokens}, 13, '... usage');
};

subtest 'reasoning' => sub {
    my $r = $t->post_run({}, path => '/reason');
    my $run = check_run($r->events, text => 'Hello, world!',
        reasoning => 'Let me think.', finish => 'stop');
    my $order = join ' ', @{ $run->{types} };
    like($order, qr/\ARUN_STARTED\ REASONING_START\ REASONING_MESSAGE_START
        (?:\ REASONING_MESSAGE_CONTENT)+\ REASONING_MESSAGE_END
        \ REASONING_END\ TEXT_MESSAGE_START\ /x, 'it closes before the text');
    my ($start) = grep { $_->{type} eq 'REASONING_MESSAGE_START' }
        map { $_->{data} } @{ $r->events };
    my ($text) = grep { $_->{type} eq 'TEXT_MESSAGE_START' }
        map { $_->{data} } @{ $r->events };
    isnt($start->{messageId}, $text->{messageId}, 'ids differ');
};

my $weather = {
    name        => 'get_weather',
    description => 'The weather of a city',
    parameters  => {
        type       => 'object',
        properties => { city => { type => 'string' } },
    },
};

subtest 'a client tool' => sub {
    $u->forget;
    my $r = $t->post_run({ tools => [$weather], text => 'Weather?' },
        path => '/tool');
    my $run = check_run($r->events, finish => 'tool_calls',
        outcome => 'success', text => '');
    is(@{ $run->{calls} }, 1, 'one call');
    my $call = $run->{calls}[0];
    is($call->{name}, 'get_weather', 'name');
    is($call->{args}, '{"city":"Paris"}', 'arguments');
    ok(length $call->{parent}, 'parentMessageId');
    is_deeply($run->{last}{outcome}{pendingToolCallIds}, [ $call->{id} ],
        'pendingToolCallIds');

    my ($req) = $u->requests;
    is_deeply($req->{json}{tools},
        [ { type => 'function', function => $weather } ],
        'the model knows the tool');

    $u->forget;
    my @messages = (
        @{ $r->{input}{messages} },
        {   id        => $call->{parent},
            role      => 'assistant',
            toolCalls => [ {
                id       => $call->{id},
                type     => 'function',
                function =>
                    { name => 'get_weather', arguments => $call->{args} },
            } ],
        },
        {   id         => 'result-1',
            role       => 'tool',
            toolCallId => $call->{id},
            content    => 'sunny',
        },
    );
    $r = $t->post_run({ tools => [$weather], messages => \@messages,
        threadId => $r->{input}{threadId} }, path => '/tool');
    check_run($r->events, text => 'The tool said: sunny.', finish => 'stop',
        name => 'the result goes back');
    ($req) = $u->requests;
    my @sent = @{ $req->{json}{messages} };
    is(join(' ', map { $_->{role} } @sent), 'user assistant tool', 'roles');
    is($sent[1]{tool_calls}[0]{id}, $call->{id}, 'the call');
    is($sent[1]{tool_calls}[0]{function}{arguments}, $call->{args},
        '... its arguments');
    is($sent[2]{tool_call_id}, $call->{id}, 'the result names it');
    is($sent[2]{content}, 'sunny', '... and its content');
};

subtest 'several tools after text' => sub {
    my $r = $t->post_run({ tools => [$weather] }, path => '/tools');
    my $run = check_run($r->events, text => 'Wait a moment.',
        finish => 'tool_calls');
    my @ids = map { $_->{id} } @{ $run->{calls} };
    is(@ids, 3, 'three calls');
    is_deeply($run->{last}{outcome}{pendingToolCallIds}, \@ids,
        'all are pending, in order');
    like(join(' ', @{ $run->{types} }), qr/TEXT_MESSAGE_END TOOL_CALL_START/,
        'text closes before the first call');
    my ($text) = grep { $_->{type} eq 'TEXT_MESSAGE_START' }
        map { $_->{data} } @{ $r->events };
    is($_->{parent}, $text->{messageId}, 'it belongs to the message')
        for @{ $run->{calls} };
};

subtest 'a JSON answer' => sub {
    for my $accept ('application/json', 'application/json, text/plain') {
        my $r = $t->post_run({}, path => '/usage', accept => $accept);
        my $j = $r->json;
        is($r->{status}, 200, "$accept: status");
        like($r->header('content-type'), qr{^application/json}, '... type');
        is($r->header('cache-control'), 'private, no-store', '... cache');
        like($r->header('vary'), qr/\bAccept\b/, '... Vary');
        is($r->header('x-agent-run-id'), $r->{input}{runId}, '... header');
        is($j->{threadId}, $r->{input}{threadId}, 'threadId');
        is($j->{runId},    $r->{input}{runId},    'runId');
        is($j->{status},   'finished',            'status');
        is($j->{text},     'Hello, world!',       'text');
        is(@{ $j->{messages} }, 1, 'messages: this run\'s');
        is($j->{messages}[0]{role},    'assistant',     '... role');
        is($j->{messages}[0]{content}, 'Hello, world!', '... content');
        is($j->{finishReason},         'stop',          'finishReason');
        is($j->{outcome}{type},        'success',       'outcome');
        is($j->{usage}[0]{totalTokens}, 140, 'usage');
    }

    my $r = $t->post_run({ tools => [$weather] }, path => '/tool',
        accept => 'application/json');
    is($r->json->{finishReason}, 'tool_calls', 'a call: finishReason');
    is($r->json->{messages}[0]{toolCalls}[0]{function}{name}, 'get_weather',
        '... and message');

    for my $accept ('text/event-stream', '*/*', 'text/html',
        'application/json, text/event-stream', undef) {
        my $r = $t->post_run({}, path => '/ok',
            headers => [ Accept => $accept ], accept => undef);
        is($r->header('content-type'), 'text/event-stream',
            'a stream for ' . ($accept // 'no Accept'));
    }
};

subtest 'ids' => sub {
    my $grammar = qr/\A[A-Za-z0-9._:-]{22,128}\z/;
    my %seen;

    for (1, 2) {
        my $r = $t->post_run({ threadId => undef, runId => undef },
            path => '/ok');
        my $first = $r->events->[0]{data};
        check_run($r->events, text => 'Hello, world!', name => 'minted ids');

        for my $id (qw(runId threadId)) {
            my $name = $id eq 'runId' ? 'x-agent-run-id' : 'x-agent-thread-id';
            like($first->{$id}, $grammar, "a minted $id");
            is($r->header($name), $first->{$id}, '... is in the header');
            ok(!$seen{ $first->{$id} }++, '... and unique');
        }
    }

    # never in a header, and no trouble elsewhere
    for my $id ('a b', 'sl/ash', "\x{4f60}\x{597d}", '"q"', '%41', '../..',
        "\x{2028}", "\x{1f469}" x 128) {
        my $run = substr "R$id", 0, 128;
        my $r = $t->post_run({ threadId => $id, runId => $run },
            path => '/ok');
        (my $shown = substr $id, 0, 10)
            =~ s/([^ -~])/sprintf '\\x%x', ord $1/ge;
        check_run($r->events, threadId => $id, runId => $run,
            name => "id \"$shown\"");
        check_stream($r, '... its stream');
        is($r->header('x-agent-run-id'),    undef, '... no run header');
        is($r->header('x-agent-thread-id'), undef, '... no thread header');
    }

    my $r = $t->post_run({ threadId => 'a' x 128 }, path => '/ok');
    is($r->header('x-agent-thread-id'), 'a' x 128, '128 characters');

    for my $id ('a' x 129, "\x{1f469}" x 129, '', 17, "x\r\nX-Evil: yes", "\0",
        "\x7f") {
        for my $name (qw(threadId runId)) {
            my $r = $t->post_run({ $name => $id }, path => '/ok');
            (my $shown = substr $id, 0, 10)
                =~ s/([^ -~])/sprintf '\\x%x', ord $1/ge;
            is("$r->{status} " . ($r->json->{error}{code} // ''),
                '400 bad_request', "$name \"$shown\"");
            like($r->json->{error}{message}, qr/$name/, '... is named');
            is($r->header('x-evil'), undef, '... makes no header');
        }
    }
};

subtest 'text' => sub {
    my $r = $t->post_run({}, path => '/bytes');
    check_run($r->events, finish => 'stop', text =>
        "h\x{e9}llo \x{4f60}\x{597d} \x{1f469}\x{200d}\x{1f4bb} \x{645}");
    check_stream($r, 'byte by byte');

    $r = $t->post_run({}, path => '/big');
    my $run = check_run($r->events, finish => 'stop', name => 'a huge delta');
    ok($run->{text} eq 'x' x (2500 * 1024), '... is whole');
    is(scalar(grep { length $_->{raw} > 1_100_000 } @{ $r->frames }), 0,
        '... and in pieces of at most 1 MB');
    check_stream($r, 'a huge delta');

    $r = $t->post_run({}, path => '/many');
    check_run($r->events, text => join(' ', map {"w$_"} 1 .. 2000),
        name => '2000 words');
    check_stream($r, '2000 words');
};

subtest 'time' => sub {
    my @s = map { $t->post_run({}, path => $_, stream => 1) }
        qw(/words /slow /beat);
    my ($words, $slow, $beat) = @s;

    my @e = $words->read_until('TEXT_MESSAGE_CONTENT', 10);
    ok($e[-1]{time} < 1.5, 'the first word comes at once')
        or diag $e[-1]{time};
    my @rest = $words->read_until('RUN_FINISHED', 20);
    my %at;
    $at{ int($_->{time} * 5) }++ for @rest;
    ok(keys %at >= 6, 'the others one by one');
    ok($words->finish(5), 'then the body ends');

    is($slow->read_head(10), 200, 'a slow model: the head');
    ok($slow->{head_time} > 0.7 && $slow->{head_time} < 2.3,
        '... leaves after a second') or diag $slow->{head_time};
    my $first = $slow->read_event(5);
    is($first->{data}{type}, 'RUN_STARTED', '... with RUN_STARTED');
    $slow->finish(10);
    check_run($slow->events, text => 'Hello, world!', name => '... then all');

    $beat->finish(15);
    my @comments = grep { defined $_->{comment} } @{ $beat->frames };
    ok(@comments >= 1 && @comments <= 4, 'heartbeats while waiting')
        or diag scalar @comments;
    is(scalar(grep { $_->{id} } @comments), 0, '... have no id');
    check_run($beat->events, text => 'Hello, world!', name => '... then all');
    check_stream($beat, 'with heartbeats');
    $_->close for @s;
};

subtest 'what reaches the model' => sub {
    $u->forget;
    my $r = $t->post_run({
        messages => [
            { id => 's', role => 'system',    content => 'EVIL-SYSTEM' },
            { id => 'd', role => 'developer', content => 'EVIL-DEVELOPER' },
            { id => '1', role => 'user',      content => 'one' },
            { id => '2', role => 'assistant', content => 'two' },
            { id => 'x', role => 'alien',     content => 'ALIEN' },
            {   id      => '3',
                role    => 'user',
                content => [
                    { type => 'text', text => 'three' },
                    { type => 'smell', value => 'SMELL' },
                ]
            },
        ],
        context        => [ { description => 'place', value => 'CONTEXT-42' } ],
        bogus          => { deep => [1] },
        forwardedProps => { model => 'other', temperature => 2 },
        state          => { n => 1 },
    }, path => '/terse');
    check_run($r->events, text => 'Hello, world!');
    my ($req) = $u->requests;
    my $j = $req->{json};
    unlike($req->{body}, qr/EVIL|ALIEN|SMELL|bogus/,
        'nothing a client may not say');
    like($req->{body}, qr/CONTEXT-42/, 'the context');
    like($j->{messages}[0]{role}, qr/^(system|developer)$/,
        'the system prompt is first');
    like($j->{messages}[0]{content}, qr/\AYou are terse\./, '... ours');
    my @said = grep { $_->{role} =~ /user|assistant/
        && encode_json($_) !~ /CONTEXT-42/ } @{ $j->{messages} };
    is(join(' ', map { $_->{role} } @said), 'user assistant user',
        'the conversation');
    is($said[0]{content}, 'one', '... first');
    my $three = $said[2]{content};
    is(ref $three ? $three->[0]{text} : $three, 'three', '... last');
    is($j->{model}, 'stub-1', 'forwardedProps: no other model');
    is($j->{temperature}, 0.25, 'set');
    is($req->{headers}{'x-team'}, 'blue', 'header');

    # bodies in pieces and in a file
    my $long = join ' ', map {"word$_"} 1 .. 70_000;
    $u->forget;
    $r = $t->post_run({ text => $long }, path => '/ok');
    check_run($r->events, name => 'a body of 600 KB');
    is(length(($u->requests)[0]{json}{messages}[0]{content}), length $long,
        '... arrives');
    my $body = encode_json(run_input(text => 'in chunks'));
    my $chunked = join('', map { sprintf "%x\r\n%s\r\n", length, $_ }
        unpack '(a7)*', $body) . "0\r\n\r\n";
    $r = $t->request('POST', '/ok', [ 'Content-Type' => 'application/json',
        'Transfer-Encoding' => 'chunked' ], $chunked);
    check_run($r->events, name => 'a chunked body');
    $r = $t->post_run({}, path => '/ok',
        headers => [ Expect => '100-continue' ]);
    check_run($r->events, name => 'Expect: 100-continue');
    is(($u->requests)[1]{json}{messages}[0]{content}, 'in chunks',
        'both arrive');

    $r = $t->post_run({}, path => '/ok', version => '1.0');
    is($r->{mode}, 'close', 'HTTP/1.0: no chunks');
    check_run($r->events, text => 'Hello, world!', name => '... a stream');

    my $posts = join '', map {
        my $body = encode_json(run_input());
        "POST /ok HTTP/1.1\r\nHost: localhost\r\n"
            . "Content-Type: application/json\r\nContent-Length: "
            . length($body) . "\r\n\r\n$body"
    } 1 .. 3;
    my $got = $t->raw($posts, 3);
    is(scalar(() = $got =~ m{^HTTP/1.1 200}mg), 3, 'three on one connection');
    is(scalar(() = $got =~ /RUN_FINISHED/g), 3, '... all finish');
};

subtest 'refusals' => sub {
    $u->forget;
    my $good = encode_json(run_input());
    my @json = ('Content-Type' => 'application/json');
    my $m = { id => 'u', role => 'user', content => 'x' };
    my $with = sub { encode_json(run_input(@_)) };
    my @cases = (
        [ 'no Content-Type', 415, 'unsupported_media_type', [], $good ],
        [ 'text/plain', 415, 'unsupported_media_type',
            [ 'Content-Type' => 'text/plain' ], $good ],
        [ 'a look-alike type', 415, 'unsupported_media_type',
            [ 'Content-Type' => 'application/jsonx' ], $good ],
        [ 'gzip', 415, 'unsupported_media_type',
            [ @json, 'Content-Encoding' => 'gzip' ], $good ],
        [ 'no JSON', 400, 'bad_request', \@json, '{"messages":[' ],
        [ 'an empty body', 400, 'bad_request', \@json, '' ],
        [ 'an array', 400, 'bad_request', \@json, '[]' ],
        [ 'two values', 400, 'bad_request', \@json, "$good$good" ],
        [ 'bad UTF-8', 400, 'bad_request', \@json,
            '{"messages":[{"role":"user","content":"' . "\xff" . '"}]}' ],
        [ 'no messages', 400, 'bad_request', \@json,
            $with->(messages => []) ],
        [ 'messages of the wrong kind', 400, 'bad_request', \@json,
            $with->(messages => 'x'), qr/messages/ ],
        [ 'content of the wrong kind', 400, 'bad_request', \@json,
            $with->(messages => [ { %$m, content => 17 } ]), qr/content/ ],
        [ 'tools of the wrong kind', 400, 'bad_request', \@json,
            $with->(tools => 'x'), qr/tools/ ],
        [ 'a foreign Origin', 403, 'csrf',
            [ @json, Origin => 'http://evil.example' ], $good ],
        [ 'an opaque Origin', 403, 'csrf', [ @json, Origin => 'null' ], $good ],
        [ 'a cross-site fetch', 403, 'csrf',
            [ @json, 'Sec-Fetch-Site' => 'cross-site' ], $good ],
    );

    for my $c (@cases) {
        my ($name, $status, $code, $headers, $body, $message) = @$c;
        my $r = $t->request('POST', '/ok', $headers, $body);
        is("$r->{status} " . ($r->json->{error}{code} // ''), "$status $code",
            $name);
        like($r->header('content-type') // '', qr{^application/json},
            '... JSON');
        like($r->json->{error}{message} // '', $message // qr/./,
            '... message');
        is($r->header('cache-control'), 'private, no-store', '... cache');
    }

    is(scalar($u->requests), 0, 'no model was called');

    for my $h ([ 'Content-Type' => 'application/json; charset=utf-8' ],
        [ @json, Origin => 'http://localhost' ],
        [ @json, 'Sec-Fetch-Site' => 'same-origin' ]) {
        my $r = $t->request('POST', '/ok', $h, $with->());
        is($r->{status}, 200, "fine: @$h");
    }

    for my $method (qw(GET PUT DELETE PATCH)) {
        my $r = $t->request($method, '/ok', [], undef);
        is("$r->{status} " . ($r->json->{error}{code} // ''),
            '405 method_not_allowed', "$method of the endpoint");
        like($r->header('allow') // '', qr/\bPOST\b/, '... Allow');
    }

    for my $path (qw(/ok/nonsense /ok/runs/none /ok/runs/none/nonsense)) {
        my $r = $t->request('GET', $path);
        is("$r->{status} " . ($r->json->{error}{code} // ''), '404 not_found',
            "GET $path");
    }

    is($t->request('GET', '/okay')->{status}, 404, 'not our prefix');
    my $r = $t->request('GET', '/ok/capabilities');
    is($r->{status}, 200, 'capabilities');
    is(ref $r->json, 'HASH', '... JSON');
};

subtest 'stop' => sub {
    for my $stop (sub { [ 'DELETE', "/endless/runs/$_[0]" ] },
        sub { [ 'POST', "/endless/runs/$_[0]/cancel" ] }) {
        $u->forget;
        my $s = $t->post_run({}, path => '/endless', stream => 1);
        my $id = $s->{input}{runId};
        $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        my ($method, $path) = @{ $stop->($id) };
        my $r = $t->request('GET', "/endless/runs/$id");
        is($r->json->{status}, 'running', 'it runs');
        is($r->json->{runId}, $id, '... by its id');
        is($r->json->{threadId}, $s->{input}{threadId}, '... and thread');
        $r = $t->request($method, $path);
        is($r->{status}, 202, "$method: accepted");
        is_deeply($r->json, { accepted => Mojo::JSON->true }, '... says so');
        ok($s->finish(10), 'the stream ends');
        my $run = check_run($s->events, outcome => 'cancelled',
            finish => undef);
        ok($u->wait_closed(1, 10), 'the model call, too');
        $s->close;
    }
};

subtest 'the client leaves' => sub {
    $u->forget;
    my $n = 0;

    for my $how (qw(close reset)) {
        for my $path (qw(/endless /silent)) {
            for my $accept ('text/event-stream', 'application/json') {
                my $s = $t->post_run({}, path => $path, accept => $accept,
                    stream => 1);
                ok($u->wait_requests(++$n, 10), "$path as $accept");
                $s->read_event(10)
                    if $accept ne 'application/json' && $path eq '/endless';
                $s->$how;
                ok($u->wait_closed($n, 10), "... $how ends the model call");
            }
        }
    }

    cmp_ok($u->counts->{after}, '<', 65536, 'little is sent in vain');
};

subtest 'variables' => sub {
    my $r = $t->post_run({}, path => '/usage');
    my $line;
    ok($t->wait_for(sub {
        ($line) = $t->_slurp('agent.log')
            =~ m{^(/usage\|\Q$r->{input}{runId}\E\|.*)$}m;
        return $line;
    }), 'a log line') or return;
    my @f = split /\|/, $line;
    is($f[2], $r->{input}{threadId}, '$agent_thread_id');
    is($f[3], 'usage',    '$agent_name');
    is($f[4], 'usage',    '$agent_model');
    is($f[5], 'finished', '$agent_status');
    is($f[6], 'stop',     '$agent_finish_reason');
    is($f[7], 100,        '$agent_input_tokens');
    is($f[8], 40,         '$agent_output_tokens');
    like($f[9], qr/^\d+\.\d{3}$/, '$agent_first_token_time');
    is($f[10], scalar(@{ $r->events }), '$agent_events');
};

$t->done;
