#!/usr/bin/perl

# The harness itself, without the module: every script of the model server
# breaks where it says, the client sees it, check_run finds faults, and nginx is
# started, reloaded and stopped as the other files rely on.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use IO::Select;
use IO::Socket::INET;
use Mojo::JSON qw(encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

my $t = AgentTest->new(module => undef);
my $u = $t->upstream(tls => 1, corpus => $t->dir);
my $n = 0;

# A request to the model server, as a codec would send it.
sub call {
    my ($script, %o) = @_;
    my $body = encode_json({
        model          => 'm',
        stream         => \1,
        stream_options => { include_usage => \1 },
        messages => $o{messages} // [ { role => 'user', content => 'Hi' } ],
    });
    my $do = $o{stream} ? 'open_stream' : 'request';
    return $t->$do(
        'POST',
        "/$script/v1/chat/completions",
        [   'Content-Type'  => 'application/json',
            'Authorization' => 'Bearer sk-test',
            @{ $o{headers} // [] },
        ],
        $body,
        { port => $u->port, %o }
    );
}

# What a reader of chat completions makes of the body.
sub said {
    my ($r) = @_;
    my %said = (text => '', reasoning => '', done => 0);

    for my $f ($t->sse($r->{body})) {
        my $json = $f->{json} // next;
        $said{done}++ if $json eq '[DONE]';
        my $d = $f->{data} or next;
        $said{error} = $d->{error} if $d->{error};
        $said{usage} = $d->{usage} if $d->{usage};
        my $c = $d->{choices}[0] or next;
        $said{text} .= $c->{delta}{content} // '';
        $said{reasoning} .= $c->{delta}{reasoning_content} // '';
        $said{finish} = $c->{finish_reason} // $said{finish};

        for my $call (@{ $c->{delta}{tool_calls} // [] }) {
            my $k = $said{calls}[ $call->{index} ] //= { args => '' };
            $k->{id} //= $call->{id};
            $k->{name} //= $call->{function}{name};
            $k->{args} .= $call->{function}{arguments} // '';
        }
    }

    return \%said;
}

subtest 'good answers' => sub {
    my $r = call('ok');
    my $said = said($r);
    is($r->{status}, 200, 'ok: status');
    is($r->header('content-type'), 'text/event-stream; charset=utf-8',
        'ok: type');
    ok($r->{complete}, 'ok: complete');
    is($said->{text}, 'Hello, world!', 'ok: text');
    is($said->{finish}, 'stop', 'ok: finish');
    is($said->{usage}{total_tokens}, 13, 'ok: usage');
    is($said->{done}, 1, 'ok: [DONE]');
    ok(@{ $r->{chunks} } >= 7, 'ok: an event is a chunk');

    my $req = ($u->requests)[-1];
    is($req->{method}, 'POST', 'recorded: method');
    is($req->{path}, '/ok/v1/chat/completions', 'recorded: path');
    is($req->{headers}{authorization}, 'Bearer sk-test', 'recorded: header');
    is($req->{json}{messages}[0]{content}, 'Hi', 'recorded: body');

    is(said(call('ok,finish=length'))->{finish}, 'length', 'finish=');
    my $text = "caf\x{e9} \x{4f60}, a/b;";
    is(said(call(script('ok', text => $text)))->{text}, $text, 'text=');
    is(said(call('words,n=4'))->{text}, 'w1 w2 w3 w4', 'words');

    $r = call('words,n=5,delay=0.1');
    ok($r->{time} > 0.35, 'words: delay') or diag $r->{time};
    ok($r->{chunks}[1][0] < $r->{time} - 0.25, 'words: the first come first');

    $r = call('slowhead,ms=400');
    ok($r->{head_time} > 0.35, 'slowhead');
    is(said($r)->{text}, 'Hello, world!', 'slowhead: text');
    ok(call('ok,wait=0.3')->{head_time} > 0.25, 'wait=');

    $r = call('bytewise');
    is(said($r)->{done}, 1, 'bytewise');
    is(scalar(grep { length $_->[1] > 1 } @{ $r->{chunks} }), 0,
        'bytewise: single bytes');
    like(said($r)->{text}, qr/\x{1f469}\x{200d}\x{1f4bb}/, 'bytewise: text');

    $r = call('big,kb=300');
    is(length said($r)->{text}, 300 * 1024, 'big');
    is(length said(call('big,kb=300,delta=1000000'))->{text}, 300 * 1024,
        'big: one delta');

    $said = said(call('usage'));
    is($said->{usage}{completion_tokens_details}{reasoning_tokens}, 16,
        'usage');
    $said = said(call('reason'));
    is($said->{reasoning}, 'Let me think.', 'reason: reasoning');
    is($said->{text}, 'Hello, world!', 'reason: text');

    $said = said(call(script('tool', name => 'f', args => '{"a":"/,%"}')));
    is($said->{calls}[0]{name}, 'f', 'tool: name');
    is($said->{calls}[0]{args}, '{"a":"/,%"}', 'tool: args');
    is($said->{finish}, 'tool_calls', 'tool: finish');
    is(@{ said(call('tool,n=3'))->{calls} }, 3, 'tool: three');
    $said = said(call('tool', messages => [
        { role => 'tool', content => 'one' },
        { role => 'tool', content => 'two' }
    ]));
    is($said->{text}, 'The tool said: one and two.', 'tool: results');

    my $echo = said(call('echo', headers => [ 'X-Mine' => 'yes' ]));
    like($echo->{text}, qr/"x-mine":"yes"/, 'echo');

    $r = call('json');
    is($r->header('content-type'), 'application/json', 'json: type');
    is($r->json->{choices}[0]{message}{content}, 'Hello, world!', 'json');

    $t->write_file('some.sse', "data: 1\r\n\r\ndata: 2");
    $r = call('file,path=some.sse');
    is($r->{body}, "data: 1\r\n\r\ndata: 2", 'file');
    $r = call('file,path=some.sse,slice=5');
    is(join('|', map { $_->[1] } @{ $r->{chunks} }),
        "data:| 1\r\n\r|\ndata|: 2", 'file: slices');

    like(call('ok,eol=crlf')->{body}, qr/\}\r\n\r\ndata/, 'eol=crlf');
    like(call('ok,eol=cr')->{body}, qr/\}\r\rdata/, 'eol=cr');
    $r = call('ok,frame=length');
    is($r->header('content-length'), length $r->{body}, 'frame=length');
    $r = call('ok,frame=close');
    ok($r->{complete} && $r->{eof}, 'frame=close');
    is($r->{mode}, 'close', 'frame=close: no other framing');
    is(said($r)->{text}, 'Hello, world!', 'frame=close: text');
};

subtest 'errors' => sub {
    my $r = call('status,code=429,retry=7');
    is($r->{status}, 429, 'status');
    is($r->header('retry-after'), 7, 'retry');
    is($r->json->{error}{code}, 'rate_limit_exceeded', 'body');
    $r = call('status,code=429,body=quota');
    is($r->json->{error}{code}, 'insufficient_quota', 'quota');
    is(call("status,code=$_")->{status}, $_, "status $_")
        for 400, 401, 404, 500, 503;
    like(call('status,code=401,body=key')->json->{error}{message},
        qr/sk-test/, 'body=key');
    $r = call(script('status', code => 302, location => 'http://x/y'));
    is($r->header('location'), 'http://x/y', 'location');
    $r = call('html');
    is("$r->{status} " . $r->header('content-type'), '200 text/html', 'html');
    is(call('html,code=502')->{status}, 502, 'html: code');
    $r = call('empty');
    ok($r->{status} == 200 && $r->{complete} && $r->{body} eq '', 'empty');
    like(call('comments')->{body}, qr/\A(: processing\n\n){3}\z/, 'comments');
    is(call('nonsense')->{status}, 404, 'an unknown script');

    for my $at (qw(role content)) {
        my $said = said(call("error200,at=$at"));
        is($said->{error}{message}, 'the model broke', "error200 at $at");
        is($said->{text}, $at eq 'role' ? '' : 'Hello, ', '... and text');
    }

    is(call('status,code=500,times=2')->{status}, $_, 'times=')
        for 500, 500, 200;
};

subtest 'broken answers' => sub {
    my %text = (first => '', head => '', role => '', content => 'Hello, ',
        mid => 'Hello, ', args => 'Hello, ', finish => 'Hello, ');

    for my $at (qw(first head role content mid args finish)) {
        my $r = call("reset,at=$at");
        like($r->{error}, qr/reset by peer/i, "reset at $at");
        is($r->{status}, $at eq 'first' ? undef : 200, '... head');
        is(said($r)->{text}, $text{$at}, '... text');

        $r = call("cut,at=$at");
        ok($r->{eof} && !$r->{error} && !$r->{complete}, "cut at $at");
        is(said($r)->{text}, $text{$at}, '... text');

        next if $at eq 'first';

        for my $frame (qw(chunked length close)) {
            $r = call("truncate,at=$at,frame=$frame");
            ok($r->{complete} && !$r->{error}, "truncate at $at, $frame");
            is(said($r)->{text}, $text{$at}, '... text');
            is(said($r)->{done}, 0, '... no terminal marker');
        }

        $r = call("hang,at=$at", timeout => 0.4);
        ok(!$r->{complete} && !$r->{eof} && !$r->{error}, "hang at $at");
        is(said($r)->{text}, $text{$at}, '... text');
    }

    my $r = call('cut,at=content,frame=length');
    ok($r->{eof} && !$r->{complete}, 'cut with a length');
    is(call('truncate,at=first')->{status}, undef, 'truncate at first');
    is(call('hang,at=first', timeout => 0.3)->{status}, undef, 'hang at first');
    like(call('truncate,at=mid')->{body}, qr/data: \{"choices"[^\n]*\z/,
        'mid is inside an event');

    my $s = IO::Socket::INET->new(
        PeerAddr => '127.0.0.1',
        PeerPort => $u->hang_port,
        Timeout  => 0.5
    );
    ok(!$s, 'hang in connect');
};

subtest 'connections' => sub {
    ok($u->wait_closed($u->counts->{early}), 'settled');
    $u->forget;

    my $s = call('words,n=1000,delay=0.01', stream => 1);
    is($s->read_head(5), 200, 'a long answer');
    sleep 0.1;
    is($u->counts->{open}, 1, 'one is open');
    is($u->counts->{early}, 0, 'nobody left');
    my $when = time;
    $s->close;
    ok($u->wait_closed(1, 5), 'the client leaves early');
    my ($c) = grep { $_->{early} } $u->connections;
    ok(abs($c->{early} - $when) < 1, 'at the right time');
    ok($c->{sent} > 500, 'after some bytes');

    $s = call('hang,at=mid', stream => 1);
    $s->read_head(5);
    $s->reset;
    ok($u->wait_closed(2, 5), 'a reset counts, too');
    ok($t->wait_for(sub { !$u->counts->{open} }), 'all are gone');

    # two requests on one connection
    my $req = "POST /ok/v1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    my $got = $t->raw($req . $req, 1, { port => $u->port });
    is(scalar(() = $got =~ /^HTTP.*?\[DONE\].*?\r\n0\r\n\r\n/msg), 2,
        'raw: all bytes');
    is(scalar($u->requests), 4, 'keep-alive');
    is(($u->connections)[-1]{requests}, 2, 'two requests on a connection');

    $got = call('echo', headers => [ Expect => '100-continue' ]);
    is($got->{status}, 200, '100-continue');
    $got = $t->request('POST', '/echo/v1',
        { 'Transfer-Encoding' => 'chunked' },
        "5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n", { port => $u->port });
    is(said($got)->{text}, encode_json({
        method  => 'POST', path => '/echo/v1', json => { a => 1 },
        headers => { host => 'localhost', 'transfer-encoding' => 'chunked' },
    }), 'a chunked request');

    my @many = map { call('hang,at=content', stream => 1) } 1 .. 300;
    is(scalar(grep { ($_->read_head(10) // 0) == 200 } @many), 300,
        '300 at a time');
    $_->close for @many;
    ok($u->wait_closed(302, 10), '... and gone');
};

subtest 'TLS' => sub {
    require IO::Socket::SSL;
    my $connect = sub {
        my ($kind) = @_;
        return IO::Socket::SSL->new(
            PeerAddr            => '127.0.0.1',
            PeerPort            => $u->tls_port($kind),
            SSL_ca_file         => $u->ca_file,
            SSL_hostname        => 'model.test',
            SSL_verifycn_name   => 'model.test',
            SSL_verifycn_scheme => 'http',
            Timeout             => 5,
        );
    };
    my $s = $connect->('good');
    ok($s, 'the right name') or diag $IO::Socket::SSL::SSL_ERROR;
    print $s "POST /ok,frame=close/v1 HTTP/1.1\r\nHost: model.test\r\n"
        . "Content-Length: 2\r\n\r\n{}";
    like(join('', <$s>), qr/Hello.*\[DONE\]/s, 'an answer');
    ok(!$connect->('wrong'), 'the wrong name');
    like($IO::Socket::SSL::SSL_ERROR, qr/hostname/, '... is why');
    ok(!$connect->('expired'), 'expired');
    like($IO::Socket::SSL::SSL_ERROR, qr/certificate verify failed/,
        '... is why');
};

subtest 'DNS' => sub {
    $u->dns('model.test' => '127.0.0.7', 'two.test' => [ '1.2.3.4', '1.2.3.5' ],
        'slow.test' => 'timeout', 'no.test' => 'nxdomain');
    my $ask = sub {
        my ($name, $type) = @_;
        my $s = IO::Socket::INET->new(Proto => 'udp', PeerAddr => '127.0.0.1',
            PeerPort => $u->dns_port);
        my $q = join '', map { pack 'C/a*', $_ } split /\./, $name;
        $s->send(pack('n6', 77, 0x100, 1, 0, 0, 0) . "$q\0"
            . pack('n2', $type // 1, 1));
        return undef if !IO::Select->new($s)->can_read(0.5);
        $s->recv(my $a, 512);
        my ($id, $flags, undef, $count) = unpack 'n4', $a;
        my @ips = map { join '.', unpack 'C4', substr $a, -4 - 16 * $_, 4 }
            reverse 0 .. $count - 1;
        return join ' ', $id, $flags & 15, @ips;
    };
    is($ask->('model.test'), '77 0 127.0.0.7', 'an address');
    is($ask->('MODEL.test'), '77 0 127.0.0.7', '... in any case');
    is($ask->('two.test'), '77 0 1.2.3.4 1.2.3.5', 'two addresses');
    is($ask->('model.test', 28), '77 0', 'no AAAA');
    is($ask->('no.test'), '77 3', 'nxdomain');
    is($ask->('other.test'), '77 3', 'a name it was not told');
    is($ask->('slow.test'), undef, 'no answer');
    ok((grep { $_ eq 'slow.test' } $u->dns_queries), 'queries are recorded');
};

subtest 'frames' => sub {
    my @f = $t->sse("id: 1-0\ndata: {\"type\":\"A\"}\n\n: ping\n\n"
        . "data: {\ndata: \"a\":1}\n\ndata: x\n\nid: 5");
    is($f[0]{id}, '1-0', 'id');
    is_deeply($f[0]{data}, { type => 'A' }, 'data');
    is($f[0]{raw}, "id: 1-0\ndata: {\"type\":\"A\"}\n\n", 'raw');
    is($f[1]{comment}, 'ping', 'a comment');
    is_deeply($f[2]{data}, { a => 1 }, 'two data lines');
    ok($f[3]{bad}, 'no JSON');
    ok($f[4]{partial}, 'a cut frame');

    my $s = call('words,n=3,delay=0.2', stream => 1);
    my $e = $s->read_event(5);
    ok($e->{time} < 0.15, 'read_event is live');
    $s->read_event(5);
    ok(!$s->read_event(0), 'read_event with no time');
    my @rest = $s->read_until(sub { ($_[0]{json} // '') eq '[DONE]' }, 5);
    is($rest[-1]{json}, '[DONE]', 'read_until');
    is($s->read_event(5), undef, 'the end');
    ok($s->{complete}, '... is complete');
};

# Test lines of check_run that have to fail are caught here.
sub faults {
    my (@events) = @_;
    my %e = ref $events[-1] eq 'ARRAY' ? @{ pop @events } : ();
    my $out = '';
    my $tb = Test::Builder->create;
    $tb->output(\$out);
    $tb->failure_output(\$out);
    $tb->todo_output(\$out);
    no warnings 'redefine';
    local *AgentTest::ok = sub { $tb->ok(@_) };
    local *AgentTest::diag = sub { $tb->diag(@_) };
    my $run = check_run(\@events, %e);
    return $run->{ok} ? '' : $out;
}

subtest 'check_run' => sub {
    my @start = { type => 'RUN_STARTED', threadId => 't', runId => 'r' };
    my @end = {
        type     => 'RUN_FINISHED',
        threadId => 't',
        runId    => 'r',
        metadata => { finishReason => 'stop' }
    };
    my @error = { type => 'RUN_ERROR', message => 'm', code => 'internal' };
    my $e = sub { my ($type, %m) = @_; return { type => $type, %m } };
    my $text = sub {
        my ($id, @deltas) = @_;
        my @id = (messageId => $id);
        return (
            $e->('TEXT_MESSAGE_START', @id, role => 'assistant'),
            (map { $e->('TEXT_MESSAGE_CONTENT', @id, delta => $_) } @deltas),
            $e->('TEXT_MESSAGE_END', @id)
        );
    };
    my @tool = (
        $e->('TOOL_CALL_START', toolCallId => 'c', toolCallName => 'f'),
        $e->('TOOL_CALL_ARGS', toolCallId => 'c', delta => '{}'),
        $e->('TOOL_CALL_END', toolCallId => 'c'),
    );
    my @reason = (
        $e->('REASONING_START', messageId => 's'),
        $e->('REASONING_MESSAGE_START', messageId => 'x', role => 'reasoning'),
        $e->('REASONING_MESSAGE_CONTENT', messageId => 'x', delta => 'hm'),
        $e->('REASONING_MESSAGE_END', messageId => 'x'),
        $e->('REASONING_END', messageId => 's'),
    );

    my $run = check_run(
        [ @start, @reason, $text->('m', 'a', 'b'), @tool, $text->('n', 'c'),
            @end ],
        text => "ab\nc", reasoning => 'hm', finish => 'stop', threadId => 't',
        outcome => 'success', name => 'a legal run'
    );
    is_deeply($run->{calls}, [ { id => 'c', name => 'f', args => '{}',
        parent => undef } ], 'its calls');
    check_run([ @start, ($text->('m', 'a'))[ 0, 1 ], @error ],
        code => 'internal', text => 'a', name => 'a legal failure');
    check_run([@error], code => 'internal', name => 'RUN_ERROR alone');

    my @cases = (
        [ qr/no events/ ],
        [ qr/no terminal event/, @start ],
        [ qr/first event has to be/, @end ],
        [ qr/started already/, @start, @start, @end ],
        [ qr/may follow the terminal/, @start, @end, @end ],
        [ qr/may follow the terminal/, @start, @error, @end ],
        [ qr/ended with RUN_ERROR internal: m/, @start, @error ],
        [ qr/m is open already/, @start, ($text->('m'))[ 0, 0, 1 ], @end ],
        [ qr/m is not open/, @start, ($text->('m', 'a'))[1], @end ],
        [ qr/m is not open/, @start, ($text->('m'))[1], @end ],
        [ qr/c is not open/, @start, $tool[1], @end ],
        [ qr/x is not open/, @start, @reason[ 0, 2, 4 ], @end ],
        [ qr/s is not open/, @start, $reason[4], @end ],
        [ qr/still open: TEXT_MESSAGE m/, @start, ($text->('m'))[0], @end ],
        [ qr/still open: REASONING s/, @start, $reason[0], @end ],
        [ qr/still open: TOOL_CALL c/, @start, $tool[0], @end ],
        [ qr/role is not/, @start, $reason[0],
            { %{ $reason[1] }, role => 'assistant' }, @reason[ 2 .. 4 ], @end ],
        [ qr/empty delta/, @start, $text->('m', ''), @end ],
        [ qr/parentRunId is null/, { %{ $start[0] }, parentRunId => undef },
            @end ],
        [ qr/messageId is missing/, @start, $e->('TEXT_MESSAGE_START'), @end ],
        [ qr/unknown type/, @start, $e->('THINKING_START'), @end ],
        [ qr/timestamp/, @start, { %{ $end[0] }, timestamp => 1.5 } ],
        [ qr/differ in runId/, @start, { %{ $end[0] }, runId => 'q' } ],
        [ qr/finish is stop, not length/, @start, @end,
            [ finish => 'length' ] ],
        [ qr/text is absent|text is a, not b/, @start, $text->('m', 'a'), @end,
            [ text => 'b' ] ],
        [ qr/code is absent/, @start, @end, [ code => 'internal' ] ],
        [ qr/cut frame/, { raw => 'id', partial => 1 }, @start, @end ],
    );

    for my $case (@cases) {
        my ($re, @events) = @$case;
        like(faults(@events), $re, "finds: $re");
    }
};

# Where nobody reaps orphans a dead worker stays as a zombie.
sub running {
    my ($pid) = @_;
    open my $fh, '<', "/proc/$pid/stat" or return 0;
    return <$fh> !~ /\) Z /;
}

subtest 'nginx' => sub {
    my $g = AgentTest->new(module => undef);
    $g->conf(<<'CONF');
%%GLOBALS%%
worker_processes 2;
events { worker_connections 128; }
http {
    %%GLOBALS_HTTP%%
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%UPSTREAM%%;
            proxy_buffering off;
        }
        location /static { return 200 "%%PORT1%%"; }
    }
    server { listen 127.0.0.1:%%PORT1%%; return 204; }
}
CONF
    $g->start;
    is(scalar($g->workers), 2, 'two workers');
    isnt($g->port, $g->port(1), 'two ports');
    is($g->request('GET', '/static')->{body}, $g->port(1), 'a request');
    is($g->request('GET', '/', [], undef, { port => $g->port(1) })->{status},
        204, 'the other port');
    my $r = $g->post_run({ text => 'Hi' }, path => '/words,n=3/v1');
    is($r->{status}, 200, 'post_run');
    is(($g->upstream->requests)[0]{json}{messages}[0]{content}, 'Hi',
        '... sends a RunAgentInput');
    is(($g->upstream->requests)[0]{json}{threadId}, $r->{input}{threadId},
        '... which it returns');
    # written after the answer
    ok($g->wait_for(sub { $g->access_log =~ m{POST /words} }), 'access log');

    my ($code, $out) = $g->test_conf("%%GLOBALS%%\nevents { }\nnonsense on;\n");
    ok($code != 0 && $out =~ /unknown directive "nonsense"/, 'a bad text');
    ($code) = $g->test_conf("%%GLOBALS%%\nevents { }\n");
    is($code, 0, 'a good text');

    my @before = sort $g->workers;
    my $s = $g->open_stream('POST', '/hang,at=content/v1', {}, '{}');
    $s->read_head(5);
    ok($g->reload, 'reload');
    my @after = sort $g->workers;
    is(@after, 2, '... two workers again');
    isnt("@before", "@after", '... others');
    ok($g->wait_for(sub { $g->workers('old') == 1 }),
        '... one with a request is still there');
    $s->close;
    ok($g->wait_for(sub { !$g->workers('old') }), '... until that is over');
    is_deeply([ $g->bad_log_lines ], [], 'no alarm so far');

    kill 'KILL', $after[0];
    ok($g->wait_for(sub { $g->workers == 2
        && !grep { $_ == $after[0] } $g->workers }), 'a worker is replaced');
    my @bad = $g->bad_log_lines;
    like("@bad", qr/\[alert\].*exited on signal 9/, 'its death is an alarm');
    $g->{log_pos} = {};
    $g->expect_log(qr/exited on signal 9/);
    is_deeply([ $g->bad_log_lines ], [], '... unless it is expected');

    my $pid = $g->pid;
    my $dir = $g->dir;
    $g->stop;
    ok(!kill(0, $pid), 'the master is gone');
    is($g->{upstream}->errors, '', 'no errors');

    # the way out of a test that died
    $g->start;
    my @all = $g->_session;
    is(@all, 3, 'started again');
    undef $g;
    ok($t->wait_for(sub { !grep { running($_) } @all }),
        'an object that goes ends it');

    # ... and one that is killed, too
    pipe my $from, my $to or die $!;
    my $child = fork() // die $!;

    if ($child == 0) {
        my $k = AgentTest->new(module => undef, dir => $t->dir . '/killed');
        mkdir $k->dir;
        $k->conf("%%GLOBALS%%\nevents { }\nhttp { %%GLOBALS_HTTP%% }\n");
        $k->upstream;
        $k->start;
        syswrite $to, join(' ', $k->_session, $k->upstream->pid) . "\n";
        sleep 30;
    }

    @all = split ' ', <$from>;
    kill 'KILL', $child;
    waitpid $child, 0;
    is(@all, 3, 'a test that is killed');
    ok($t->wait_for(sub { !grep { running($_) } @all }),
        '... leaves nothing running');

    # a configuration that cannot start says why
    my $bad = AgentTest->new(module => undef);
    $bad->conf("%%GLOBALS%%\nevents { }\nnonsense on;\n");
    ok(!eval { $bad->start; 1 }, 'a bad start');
    like($@, qr/unknown directive "nonsense"/, '... says why');
    local $ENV{AGENT_STATIC};
    my $none = AgentTest->new(module => '/nonexistent.so');
    $none->conf("%%GLOBALS%%\nevents { }\n");
    ok(!eval { $none->start; 1 }, 'no module');
    like($@, qr/run make/, '... says what to do');
};

$t->done;
