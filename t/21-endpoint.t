#!/usr/bin/perl

# The HTTP API of an agent_pass location: where it can stand in a configuration,
# its routes and methods, ids in paths, bodies, owners, what reaches the model,
# errors and variables.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Mojo::JSON qw(decode_json encode_json);
use Test::More;

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(
    chat    => 'ok',
    echo    => 'echo',
    usage   => 'usage',
    tool    => script('tool', args => '{"city":"Paris"}'),
    endless => 'words,n=100000,delay=0.02',
    silent  => 'hang,at=first',
    late    => 'hang,at=role',
    broken  => 'status,code=500',
    limited => 'status,code=429,retry=7',
    cut     => 'cut,at=content',
    small   => { script => 'ok', location => 'client_body_buffer_size 1k;' },
    single  => {
        script   => 'ok',
        location => 'client_body_in_file_only clean;',
    },
    tiny    => { script => 'ok', location => 'client_max_body_size 1k;' },
    terse   => {
        script => 'ok',
        agent  => 'system "You are terse."; accept_roles user tool system;',
    },
    strict  => {
        script => 'ok',
        agent  => 'accept_roles user; client_tools off;',
    },
    free    => {
        script => 'ok',
        agent  => 'allow_override temperature model metadata;',
        model  => 'set temperature 0.2; set top_p 0.9;',
    },
    thread  => { script => 'ok', location => 'agent_thread $http_x_thread;' },
    owned   => { script => 'words,n=100,delay=0.05' },
);
$locations =~ s!(location /owned \{.*?agent_owner )off!$1\$owner!s;

$t->write_file('ssi.html', '[<!--# include virtual="/chat/capabilities" -->]');
$t->write_file('oops.html', "sorry\n");

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 512; }
http {
    %%GLOBALS_HTTP%%
    map \$request_uri \$tag { ~[?&]tag=(?<x>[\\w-]+) \$x; }
    log_format agent '\$tag|\$status|\$agent_run_id|\$agent_thread_id|'
        '\$agent_name|\$agent_model|\$agent_status|\$agent_finish_reason|'
        '\$agent_input_tokens|\$agent_output_tokens|'
        '\$agent_first_token_time|\$agent_events';
    access_log %%DIR%%/agent.log agent;
    client_max_body_size 4m;
    map \$arg_as \$owner { default \$arg_as; }

$http
    server {
        listen 127.0.0.1:%%PORT%%;
        agent_owner off;
$locations
        location /slash/ { agent_pass chat; }
        location /api { location /api/v1 { agent_pass chat; } }
        location ^~ /caret { agent_pass chat; }
        location = /exact { agent_pass chat; }

        location ~ ^/threads/(?<thread>[^/]+)/chat\$ {
            agent_thread \$thread;
            agent_pass   owned;
        }
        location ~ /regex/(\\d+)/chat\$ { agent_pass chat; }
        location ~ /regex-if/(\\d+)/chat\$ {
            if (\$arg_x) { set \$y 1; }
            agent_pass chat;
        }
        location ~ /regex-limit/(\\d+)/chat\$ {
            limit_except GET { allow all; }
            agent_pass chat;
        }

        location /try { try_files /none \@agent; }
        location /err { error_page 404 405 = \@agent; }
        location \@agent { agent_pass chat; }

        location /old/ { rewrite ^/old/(.*)\$ /chat/\$1 last; }
        location /rewritten { rewrite ^ /rewritten/runs/\$arg_id break;
                              agent_pass chat; }
        location /if {
            if (\$arg_agent = usage) { agent_pass usage; }
            if (\$arg_agent = other) { set \$y 1; }
            agent_pass chat;
        }
        location /limit {
            limit_except GET POST { deny all; }
            agent_pass chat;
        }
        location /inside { limit_except GET { agent_pass chat; } }

        location /sub-auth { auth_request /chat/capabilities; }
        location /ssi.html { ssi on; }
        location /mirror   { mirror /mirrored; agent_pass chat; }
        location /mirrored { agent_pass chat; }

        location /own { agent_pass echo; agent_owner \$owner; }
        location /all { agent_pass echo; agent_owner off; }
        location /elsewhere { agent_pass owned; agent_owner \$owner; }
        location /offline { agent_pass owned; agent_owner off; }

        location /page/broken {
            agent_pass broken;
            agent_intercept_errors on;
            error_page 502 /oops.html;
            error_page 400 = \@named;
            error_page 404 =200 /oops.html;
        }
        location /page/fallback {
            agent_pass broken;
            agent_intercept_errors on;
            error_page 502 = \@agent;
        }
        location /page/plain { agent_pass limited; agent_intercept_errors on; }
        location /page/off { agent_pass limited; error_page 429 /oops.html; }
        location \@named { return 418 "named\\n"; }
        location = /oops.html { }
    }
}
CONF

$t->start;
my $u = $t->upstream;
my @json = ('Content-Type' => 'application/json');

# "400 bad_request": the status and the code of an answer
sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

sub post {
    my ($path, $input, @headers) = @_;
    return $t->post_run($input // {}, path => $path, headers => \@headers);
}

sub good {
    my ($path, $name, @more) = @_;
    my $r = post($path, @more);
    is($r->{status}, 200, "$name: status") or return diag $r->{body};
    return check_run($r->events, text => 'Hello, world!', name => "$name: run");
}

sub show {
    my ($s) = @_;
    $s = substr($s, 0, 24) . '...' if length $s > 27;
    $s =~ s/([^ -~])/sprintf '\\x%x', ord $1/ge;
    return $s;
}

sub escaped {
    my ($s) = @_;
    utf8::encode($s);
    $s =~ s/([^A-Za-z0-9._~-])/sprintf '%%%02X', ord $1/ge;
    return $s;
}

subtest 'places' => sub {
    good($_, $_) for qw(/chat /chat/ /chat?x=1 /slash/ /api/v1 /api/v1/ /caret
        /exact /regex/17/chat /regex-if/17/chat /regex-if/17/chat?x=1
        /regex-limit/17/chat /try /try/any/thing /err /old/ /limit /inside
        /if /if?agent=other /ch%61t);

    my $r = post('/if?agent=usage');
    is(check_run($r->events)->{usage}[0]{totalTokens}, 140,
        'agent_pass in if');

    for my $p (qw(/chat /slash /api/v1 /caret /if /if?agent=other /limit)) {
        my ($path, $query) = split /\?/, $p;
        $query = $query ? "?$query" : '';
        my $r = $t->request('GET', "$path/capabilities$query");
        is($r->{status}, 200, "$p: capabilities");
        is($r->json->{identity}{name}, 'chat', '... of the agent');
        is(outcome($t->request('GET', "$path/runs/none$query")),
            '404 not_found', '... a run');
        is(outcome($t->request('POST', "$path/runs/none/cancel$query")),
            '404 not_found', '... its cancel');
        is(outcome($t->request('GET', "$path/nonsense$query")),
            '404 not_found', '... nonsense');
    }

    is(outcome($t->request('GET', "/old/capabilities")), '200',
        'rewrite: capabilities');
    is(outcome(post('/exact/')), '404', 'location = has nothing below');
    is(outcome($t->request('GET', '/exact/capabilities')), '404',
        '... no capabilities');
    is(outcome(post('/chatter')), '404 not_found', 'another word');
    is(outcome(post('/chat.html')), '404 not_found', 'a suffix');
    is(outcome(post('/slash')), '404', 'outside of /slash/');
    is($t->request('DELETE', '/limit/runs/x')->{status}, 403, 'limit_except');
    is($t->request('GET', '/inside')->{status}, 404,
        'agent_pass in limit_except only');
    is(outcome($t->request('GET', '/try/capabilities')),
        '405 method_not_allowed', 'a named location has only P');
    is(outcome($t->request('GET', '/regex/17/chat')),
        '405 method_not_allowed', 'a regex location, too');

    # after a rewrite the id comes from the new URI
    my $run = $t->post_run({ runId => 'rw 1' }, path => '/chat');
    $r = $t->request('GET', '/old/runs/rw%201');
    is($r->{status}, 200, 'an id behind rewrite last') or diag $r->{body};
    is($r->json->{runId}, 'rw 1', '... is decoded');
    post('/chat', { runId => 'rw-2' });
    $r = $t->request('GET', '/rewritten?id=rw-2');
    is($r->json->{runId}, 'rw-2', 'rewrite break');
};

subtest 'routes' => sub {
    my $id = post('/chat')->{input}{runId};
    my %routes = (
        '/chat'                  => 'POST',
        '/chat/'                 => 'POST',
        '/chat/capabilities'     => 'GET HEAD',
        '/chat/capabilities/'    => 'GET HEAD',
        "/chat/runs/$id"         => 'DELETE GET HEAD',
        "/chat/runs/$id/"        => 'DELETE GET HEAD',
        "/chat/runs/$id/cancel"  => 'POST',
        "/chat/runs/$id/cancel/" => 'POST',
    );

    for my $path (sort keys %routes) {
        my %allowed = map { ($_ => 1) } split / /, $routes{$path};

        for my $method (qw(GET HEAD POST PUT DELETE PATCH OPTIONS)) {
            my $r = $t->request($method, $path, \@json,
                $method eq 'POST' ? encode_json(run_input()) : undef);

            if ($allowed{$method}) {
                ok($r->{status} < 300, "$method $path")
                    or diag "$r->{status} $r->{body}";
                next;
            }

            is($method eq 'HEAD' ? "$r->{status} " : outcome($r),
                $method eq 'HEAD' ? '405 ' : '405 method_not_allowed',
                "not $method $path");
            my $allow = join ' ', sort grep { $_ ne 'OPTIONS' }
                split /,\s*/, $r->header('allow') // '';
            is($allow, $routes{$path}, "$method $path: Allow");
        }
    }

    unlike($t->request('OPTIONS', '/chat')->header('allow'), qr/OPTIONS/,
        'Allow of a refused OPTIONS does not list it');

    for my $path (qw(/chat/runs /chat/runs/ /chat/threads /chat/run/x
        /chat/capabilities/x /chat/runs/x/y /chat/runs/x/cancel/y
        /chat/Runs/x /chat/RUNS/x /chat/runs/x/stream /chat/runs/x/resume),
        "/chat/runs/$id/stream", "/chat/runs/$id/cancel2") {
        is(outcome($t->request('GET', $path)), '404 not_found', "GET $path");
    }

    my ($get, $head) = map { $t->request($_, '/chat/capabilities') }
        qw(GET HEAD);
    is($head->header('content-length'), length $get->{body},
        'HEAD: Content-Length');
    is($head->{in} . $head->{body}, '', '... and no body');
    like($head->header('content-type'), qr{^application/json}, '... type');
    is($head->header('cache-control'), 'private, no-store', '... cache');
};

subtest 'ambiguous paths' => sub {
    $u->forget;

    for my $path ('/chat//', '/chat/./', '/chat/runs/..', '/chat/runs/../',
        '/chat/runs/x/../..', '/chat/runs/%2e%2e', '/chat/runs/%2E%2E/',
        '/chat/%2F', '/chat/x/..', '/chat/..%2Fchat', '/chat/../chat/runs/..') {
        my $r = post($path);
        is(outcome($r), '400 bad_request', "POST $path");
    }

    for my $path ('/chat//runs/x', '/chat/runs//x', '/chat/runs/x//',
        '/chat/runs/./x', '/chat/./runs/x', '/chat/runs/x/../y',
        '/chat/runs/a%2F..%2Fb', '/chat/runs/a%2F%2Fb', '/chat/runs/%2Fx',
        '/chat/runs/x/..%2F..%2Fcapabilities', '/chat/runs/x/../../capabilities',
        '/chat/runs/.', '/chat/runs/%2E', '/chat%2Fruns%2Fx',
        '/chat/runs%2Fx', '/chat/runs/..%2Fcapabilities') {
        my $r = $t->request('GET', $path);
        like(outcome($r), qr/^(400 bad_request|404 not_found)$/, "GET $path");
    }

    # an id that ends like a route
    my $s = $t->post_run({ runId => 'x' }, path => '/endless', stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $r = $t->request('POST', '/endless/runs/x%2Fcancel');
    like(outcome($r), qr/^40[05] /, 'x%2Fcancel is not the cancel of x');
    is($t->request('GET', '/endless/runs/x')->json->{status}, 'running',
        '... it runs on');
    is($t->request('DELETE', '/endless/runs/%78')->{status}, 202,
        'an escaped letter is that letter');
    $s->finish(10);
    $s->close;

    is(($t->request('GET', '/chat/runs/%00'))->{status}, 400, '%00');
    is(($t->request('GET', '/chat/runs/%'))->{status}, 400, 'half an escape');
    is(scalar($u->requests(qr/^\/ok/)), 0, 'no model was called');
};

subtest 'ids in paths' => sub {
    for my $id ('plain', 'sl/ash', 'a/b/c', 'trail/', 'runs/x', 'x/cancel',
        'a b', "\x{4f60}\x{597d}", '"q"', "it's", '%41', '%2F', 'a?b', 'a#b',
        'a\\b', 'a+b', 'a&b=c', 'a;b', '.', '..', '...', '-', '<i>', '{}',
        "\x{2028}", 'a' x 128, "\x{1f469}" x 128, '%' x 128) {
        my $shown = show($id);
        my $r = post('/chat', { runId => $id });
        is($r->{status}, 200, "a run \"$shown\"") or next;
        check_run($r->events, runId => $id, name => '... says so');
        my $path = '/chat/runs/' . escaped($id);
        $path =~ s/\.(?=\.|$)/%2E/g if $id =~ /^\.\.?$/;
        my $s = $t->request('GET', $path);

        if ($id =~ /^\.\.?$/) {
            is(outcome($s), '400 bad_request', '... cannot be addressed');
            next;
        }

        is($s->{status}, 200, '... its status') or diag "$path: $s->{body}";
        is($s->json->{runId}, $id, '... is of that run');
        is($s->json->{status}, 'finished', '... finished');
        is($s->header('x-agent-run-id'), $id =~ /^[\w.:-]+\z/a ? $id : undef,
            '... header');
        is($t->request('POST', "$path/cancel")->{status},
            $id =~ m{/\z} ? 400 : 204, '... cancelled too late');
        is($t->request('DELETE', $path)->{status}, 204, '... deleted, too');
    }

    is(outcome($t->request('GET', '/chat/runs/' . 'a' x $_)),
        '404 not_found', "$_ characters") for 129, 512, 513, 3000;
    is(outcome($t->request('GET', '/chat/runs/' . escaped($_))),
        '404 not_found', 'unknown: ' . show($_))
        for "\n", "\r\n", "a\tb", "\x7f", '"', "\x{1f469}" x 129;
    is(outcome($t->request('GET', '/chat/runs/%FF%FE')), '404 not_found',
        'no UTF-8');
    is($t->request('GET', '/chat/runs/x%0D%0AX-Evil:%20yes')
        ->header('x-evil'), undef, 'an id makes no header');
};

subtest 'media types' => sub {
    $u->forget;
    my $good = sub { encode_json(run_input()) };
    my $code = '415 unsupported_media_type';

    for my $type (undef, '', 'text/plain', 'application/x-www-form-urlencoded',
        'multipart/form-data; boundary=x', 'application/jsonx',
        'application/json-patch+json', 'application/vnd.api+json', 'text/json',
        'application/jso', 'json', '*/*', ' ') {
        my $r = $t->request('POST', '/chat', [ 'Content-Type' => $type ],
            $good->());
        is(outcome($r), $code, 'Content-Type: ' . ($type // 'absent'));
    }

    for my $type ('application/json', 'Application/JSON',
        'application/json; charset=utf-8', 'application/json;charset=UTF-8',
        'application/json ;charset=utf-8') {
        my $r = $t->request('POST', '/chat', [ 'Content-Type' => $type ],
            $good->());
        is($r->{status}, 200, "Content-Type: $type");
    }

    for my $coding (qw(gzip deflate br GZIP), 'gzip, identity') {
        my $r = $t->request('POST', '/chat',
            [ @json, 'content-encoding' => $coding ], $good->());
        is(outcome($r), $code, "Content-Encoding: $coding");
    }

    # the body of a refused request does not become the next request
    my $body = "GET /chat/capabilities HTTP/1.1\r\nHost: x\r\n\r\n";
    my $got = $t->raw("POST /chat HTTP/1.1\r\nHost: x\r\n"
        . 'Content-Length: ' . length($body) . "\r\n\r\n$body"
        . "GET /chat/runs/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    is(join(' ', $got =~ m{^HTTP/1.1 (\d+)}mg), '415 404',
        'a refused body is skipped');
};

subtest 'Accept' => sub {
    my $sse = qr{^text/event-stream$};
    my $json = qr{^application/json};
    my @cases = (
        [ $sse ],
        [ $sse, '' ],
        [ $sse, '*/*' ],
        [ $sse, 'text/html, */*;q=0.8' ],
        [ $sse, 'application/*' ],
        [ $sse, 'text/event-stream' ],
        [ $sse, 'application/json, text/event-stream' ],
        [ $sse, 'application/json;q=1, text/event-stream;q=0.1' ],
        [ $sse, 'application/json', 'text/event-stream' ],
        [ $sse, 'text/event-stream', 'application/json' ],
        [ $sse, 'application/jsonp' ],
        [ $sse, 'application/json-seq' ],
        [ $sse, 'x/application/json' ],
        [ $json, 'application/json' ],
        [ $json, 'Application/Json' ],
        [ $json, 'application/json;q=0.9' ],
        [ $json, 'application/json; charset=utf-8, */*' ],
        [ $json, 'text/html,application/json' ],
        [ $json, 'text/html', 'application/json' ],
        [ $json, '*/*;q=0.1,application/json' ],
        [ $json, "text/html\t,\tapplication/json" ],
    );

    for my $c (@cases) {
        my ($type, @accept) = @$c;
        my $r = $t->request('POST', '/chat',
            [ @json, map { (Accept => $_) } @accept ],
            encode_json(run_input()));
        like($r->header('content-type') // '', $type,
            'Accept: ' . (join(' | ', @accept) || 'absent'));
    }

    my $r = $t->post_run({}, path => '/limited', accept => 'text/event-stream');
    like($r->header('content-type'), $json, 'errors are JSON for everybody');
    like($r->header('vary') // '', qr/\bAccept\b/, '... with Vary');
};

subtest 'bodies' => sub {
    my $post = sub {
        my ($body, $path, @more) = @_;
        return $t->request('POST', $path // '/chat', [ @json, @more ], $body);
    };
    my $user = '"messages":[{"id":"u","role":"user","content":"x"}]';
    my @bad = (
        [ 'empty',              '' ],
        [ 'white space',        " \n\t" ],
        [ 'null',               'null' ],
        [ 'a number',           '17' ],
        [ 'a string',           '"x"' ],
        [ 'an array',           "[{$user}]" ],
        [ 'cut',                "{$user" ],
        [ 'two values',         "{$user}{$user}" ],
        [ 'more behind it',     "{$user} x" ],
        [ 'a BOM',              "\xef\xbb\xbf{$user}" ],
        [ 'UTF-16',             "{\0\"\0}\0" ],
        [ 'single quotes',      "{'messages':[]}" ],
        [ 'a trailing comma',   "{$user,}" ],
        [ 'a comment',          "{$user/**/}" ],
        [ 'NaN',                "{$user,\"state\":NaN}" ],
        [ 'bad UTF-8',          "{$user,\"state\":\"\xc3\"}" ],
        [ 'an overlong slash',  "{$user,\"state\":\"\xc0\xaf\"}" ],
        [ 'a surrogate',        "{$user,\"state\":\"\xed\xa0\x80\"}" ],
        [ 'a lone escape',      "{$user,\"state\":\"\\ud800\"}" ],
        [ 'a raw newline',      "{$user,\"state\":\"a\nb\"}" ],
        [ 'a raw NUL',          "{$user,\"state\":\"a\0b\"}" ],
        [ 'twice the messages', "{$user,$user}" ],
        [ 'twice the runId',    "{$user,\"runId\":\"a\",\"runId\":\"b\"}" ],
        [ 'a deep duplicate',   "{$user,\"state\":{\"a\":[{\"b\":1,\"b\":2}]}}" ],
        [ 'an escaped duplicate',
            "{$user,\"runId\":\"a\",\"run\\u0049d\":\"b\"}" ],
        [ 'NUL in a key',       "{$user,\"a\\u0000b\":1}" ],
    );

    $u->forget;

    for my $c (@bad) {
        my $r = $post->($c->[1]);
        is(outcome($r), '400 bad_request', $c->[0]);
        ok(length($r->json->{error}{message} // ''), '... with a message');
    }

    is(scalar($u->requests), 0, 'no model was called');

    my $deep = sub { '[' x $_[0] . ']' x $_[0] };
    is($post->("{$user,\"state\":" . $deep->(100) . '}')->{status}, 200,
        '100 levels');
    is(outcome($post->("{$user,\"state\":" . $deep->($_) . '}')),
        '413 too_large', "$_ levels") for 128, 200, 100_000;
    is(outcome($post->("{$user,\"state\":[" . '1,' x 1_000_000 . '1]}')),
        '413 too_large', 'a million values');

    my $long = join ' ', 1 .. 180_000;
    my $big = encode_json(run_input(text => $long));
    ok(length $big > 1_000_000, 'a body of 1 MB');

    for my $c ([ 'in memory', '/chat' ], [ 'in a file', '/small' ],
        [ 'in a file of its own', '/single' ]) {
        $u->forget;
        my $input = run_input(text => $long);
        check_run($post->(encode_json($input), $c->[1])->events,
            name => "$c->[0]");
        my ($req) = $u->requests;
        ok(($req->{json}{messages}[0]{content} // '') eq $long,
            '... arrives whole');

        $u->forget;
        my $body = encode_json(run_input(text => $long));
        my $chunked = join('', map { sprintf "%x\r\n%s\r\n", length, $_ }
            unpack '(a60000)*', $body) . "0\r\n\r\n";
        my $r = $t->request('POST', $c->[1],
            [ @json, 'Transfer-Encoding' => 'chunked' ], $chunked);
        check_run($r->events, name => "$c->[0], in chunks");
        ($req) = $u->requests;
        ok(($req->{json}{messages}[0]{content} // '') eq $long,
            '... arrives whole');

        $u->forget;
        $r = $t->open_stream('POST', $c->[1],
            [ @json, 'Content-Length' => length $big, Expect => '100-continue' ]
        );
        ok($t->wait_for(sub { $r->_fill(Time::HiRes::time() + 0.05);
            $r->{in} =~ /100 Continue/ || $r->{head} }), 'Expect: 100');
        $r->send($big);
        $r->finish(10);
        check_run($r->events, name => "$c->[0], after 100 Continue");
        $r->close;
        ($req) = $u->requests;
        ok(($req->{json}{messages}[0]{content} // '') eq $long,
            '... arrives whole');
    }

    # byte by byte, in parts of every size around the buffer's
    my $s = $t->open_stream('POST', '/small',
        [ @json, 'Content-Length' => length "{$user}" ]);
    for my $c (split //, "{$user}") {
        $s->send($c);
        select undef, undef, undef, 0.002;
    }
    $s->finish(10);
    check_run($s->events, name => 'byte by byte');
    $s->close;

    for my $n (900 .. 904, 1023 .. 1026, 2047 .. 2049) {
        my $rest = $n - length "{$user,\"state\":\"\"}";
        my $r = $post->("{$user,\"state\":\"" . 'y' x $rest . '"}', '/small');
        is($r->{status}, 200, "a body of $n bytes");
    }

    my $r = $post->(encode_json(run_input(text => 'x' x 2000)), '/tiny');
    is($r->{status}, 413, 'client_max_body_size');
    like($r->header('content-type'), qr{^text/html}, '... nginx\'s page');
    $r = $t->request('POST', '/tiny',
        [ @json, 'Transfer-Encoding' => 'chunked' ],
        "800\r\n" . 'x' x 2048 . "\r\n0\r\n\r\n");
    is($r->{status}, 413, '... in chunks');
    is(outcome($t->request('POST', '/chat',
        [ @json, 'Transfer-Encoding' => 'chunked' ], "0\r\n\r\n")),
        '400 bad_request', 'an empty chunked body');
    is(outcome($t->request('POST', '/chat', [@json])), '400 bad_request',
        'no body at all');
};

# Every known member of a wrong type is refused by its name.
subtest 'wrong types' => sub {
    my %odd = (
        string => [ 17, \1, {}, [] ],
        array  => [ 17, 'x', {}, \0 ],
        object => [ 17, 'x', [], \1 ],
        text   => [ 17, {}, \1 ],
        id     => [ 17, {}, '', 'a' x 129, "a\nb", "\x7f", "\x{85}" ],
    );
    my $user = { id => 'u', role => 'user', content => 'x' };
    my $call = {
        id       => 'c',
        type     => 'function',
        function => { name => 'f', arguments => '{}' },
    };
    my $as = { id => 'a', role => 'assistant', toolCalls => [$call] };
    my $tool = { id => 't', role => 'tool', toolCallId => 'c', content => 'y' };
    my $part = sub { +{ %$user, content => [ $_[0] ] } };
    my $media = sub { $part->({ type => 'image', source => $_[0] }) };
    my $with = sub { +{ messages => [@_] } };
    my $first = sub { $with->($_[0], $user) };
    my @cases = (
        [ 'threadId',        'id',     sub { +{ threadId => $_[0] } } ],
        [ 'runId',           'id',     sub { +{ runId => $_[0] } } ],
        [ 'parentRunId',     'id',     sub { +{ parentRunId => $_[0] } } ],
        [ 'protocolVersion', 'string', sub { +{ protocolVersion => $_[0] } } ],
        [ 'messages',        'array',  sub { +{ messages => $_[0] } } ],
        [ 'tools',           'array',  sub { +{ tools => $_[0] } } ],
        [ 'context',         'array',  sub { +{ context => $_[0] } } ],
        [ 'resume',          'array',  sub { +{ resume => $_[0] } } ],
        [ 'messages[0]',     'object', sub { $with->($_[0]) } ],
        [ 'messages[0].role', 'string', sub { $with->({ %$user, role => $_[0] }) } ],
        [ 'messages[0].id',  'id',     sub { $with->({ %$user, id => $_[0] }) } ],
        [ 'messages[0].content', 'text',
            sub { $with->({ %$user, content => $_[0] }) } ],
        [ 'messages[0].name', 'string',
            sub { $with->({ %$user, name => $_[0] }) } ],
        [ 'messages[0].metadata', 'object',
            sub { $with->({ %$user, metadata => $_[0] }) } ],
        [ 'messages[0].encryptedValue', 'string',
            sub { $with->({ %$user, encryptedValue => $_[0] }) } ],
        [ 'messages[1].content', 'text',
            sub { $with->($user, { %$user, content => $_[0] }) } ],
        [ 'messages[0].content[0]', 'object', sub { $with->($part->($_[0])) } ],
        [ 'messages[0].content[0].type', 'string',
            sub { $with->($part->({ type => $_[0], text => 'x' })) } ],
        [ 'messages[0].content[0].text', 'string',
            sub { $with->($part->({ type => 'text', text => $_[0] })) } ],
        [ 'messages[0].content[0].source', 'object',
            sub { $with->($media->($_[0])) } ],
        [ 'messages[0].content[0].source.type', 'string',
            sub { $with->($media->({ type => $_[0], value => 'x' })) } ],
        [ 'messages[0].content[0].source.value', 'string',
            sub { $with->($media->({ type => 'url', value => $_[0] })) } ],
        [ 'messages[0].content[0].source.mimeType', 'string',
            sub { $with->($media->({ type => 'data', value => 'eA==',
                mimeType => $_[0] })) } ],
        [ 'messages[0].parts', 'array', sub {
            $with->({ id => 'p', role => 'user', parts => $_[0] }) } ],
        [ 'messages[0].parts[0]', 'object', sub {
            $with->({ id => 'p', role => 'user', parts => [ $_[0] ] }) } ],
        [ 'messages[0].content', 'string',
            sub { $first->({ %$as, content => $_[0] }) } ],
        [ 'messages[0].toolCalls', 'array',
            sub { $first->({ %$as, toolCalls => $_[0] }) } ],
        [ 'messages[0].toolCalls[0]', 'object',
            sub { $first->({ %$as, toolCalls => [ $_[0] ] }) } ],
        [ 'messages[0].toolCalls[0].id', 'id', sub {
            $first->({ %$as, toolCalls => [ { %$call, id => $_[0] } ] }) } ],
        [ 'messages[0].toolCalls[0].type', 'string', sub {
            $first->({ %$as, toolCalls => [ { %$call, type => $_[0] } ] }) } ],
        [ 'messages[0].toolCalls[0].function', 'object', sub {
            $first->({ %$as,
                toolCalls => [ { %$call, function => $_[0] } ] }) } ],
        [ 'messages[0].toolCalls[0].function.name', 'string', sub {
            $first->({ %$as, toolCalls => [ { %$call,
                function => { name => $_[0], arguments => '{}' } } ] }) } ],
        [ 'messages[0].toolCalls[0].function.arguments', 'string', sub {
            $first->({ %$as, toolCalls => [ { %$call,
                function => { name => 'f', arguments => $_[0] } } ] }) } ],
        [ 'messages[1].toolCallId', 'id',
            sub { $with->($as, { %$tool, toolCallId => $_[0] }) } ],
        [ 'messages[1].content', 'text',
            sub { $with->($as, { %$tool, content => $_[0] }) } ],
        [ 'messages[1].error', 'string',
            sub { $with->($as, { %$tool, error => $_[0] }) } ],
        [ 'tools[0]', 'object', sub { +{ tools => [ $_[0] ] } } ],
        [ 'tools[0].name', 'string',
            sub { +{ tools => [ { name => $_[0], parameters => {} } ] } } ],
        [ 'tools[0].description', 'string', sub {
            +{ tools => [ { name => 'f', description => $_[0] } ] } } ],
        [ 'tools[0].metadata', 'object', sub {
            +{ tools => [ { name => 'f', metadata => $_[0] } ] } } ],
        [ 'context[0]', 'object', sub { +{ context => [ $_[0] ] } } ],
        [ 'context[0].description', 'string', sub {
            +{ context => [ { description => $_[0], value => 'x' } ] } } ],
        [ 'context[0].value', 'string', sub {
            +{ context => [ { description => 'x', value => $_[0] } ] } } ],
    );

    $u->forget;

    for my $c (@cases) {
        my ($name, $kind, $make) = @$c;

        for my $v (@{ $odd{$kind} }) {
            my $r = post('/chat', $make->($v));
            my $said = $r->json->{error}{message} // '';
            is(outcome($r), '400 bad_request', "$name = "
                . show(ref $v ? encode_json([$v]) : $v));
            like($said, qr/\A\Q$name\E /, '... is named');
        }
    }

    my @missing = (
        [ 'messages', { messages => undef } ],
        [ 'messages[0].role',    $with->({ id => 'u', content => 'x' }) ],
        [ 'messages[0].content', $with->({ id => 'u', role => 'user' }) ],
        [ 'messages[0].content[0].type', $with->($part->({ text => 'x' })) ],
        [ 'messages[0].content[0].text', $with->($part->({ type => 'text' })) ],
        [ 'messages[0].content[0].source',
            $with->($part->({ type => 'image' })) ],
        [ 'messages[1].toolCallId',
            $with->($as, { role => 'tool', content => 'x' }) ],
        [ 'tools[0].name',          { tools => [ {} ] } ],
        [ 'context[0].value',       { context => [ { description => 'x' } ] } ],
        [ 'context[0].description', { context => [ { value => 'x' } ] } ],
    );

    for my $c (@missing) {
        my $r = post('/chat', $c->[1]);
        is(outcome($r), '400 bad_request', "without $c->[0]");
        like($r->json->{error}{message} // '', qr/\A\Q$c->[0]\E /,
            '... is named');
    }

    is(outcome(post('/chat', { tools => [ { name => $_ } ] })),
        '400 bad_request', 'a tool "' . show($_) . '"')
        for '', 'a b', 'x' x 65, "\x{e9}";
    is(outcome(post('/chat', $_)), '400 bad_request', 'nobody to answer')
        for { messages => [] }, $with->($as),
        $with->({ role => 'system', content => 'x' }),
        $with->({ role => 'alien', content => 'x' });
    is(scalar($u->requests), 0, 'no model was called');

    # null is absent
    my $in = run_input();
    $in->{$_} = undef for qw(parentRunId resume protocolVersion tools threadId);
    my $r = $t->request('POST', '/chat', \@json, encode_json($in));
    is($r->{status}, 200, 'null is absent') or diag $r->{body};
    like($r->header('x-agent-thread-id') // '', qr/^[\w-]{22}$/a,
        '... and an id is made');

    good('/chat', "forwardedProps = " . encode_json([$_]),
        { forwardedProps => $_ }) for 17, 'x', [], \1;
    good('/chat', "state = " . encode_json([$_]), { state => $_ })
        for 17, 'x', [], \1;
};

subtest 'what reaches the model' => sub {
    my $sent = sub {
        my ($path, $input) = @_;
        $u->forget;
        my $r = post($path, $input);
        is($r->{status}, 200, "$path: status") or diag $r->{body};
        my ($req) = $u->requests;
        return $req->{json} // {};
    };
    my $all = [
        map { { id => $_, role => $_, content => "a $_" } }
            qw(system developer user assistant reasoning alien)
    ];
    push @$all, { id => 'u2', role => 'user', content => 'again' };
    my %roles = (
        '/chat'   => 'user assistant user',
        '/terse'  => 'system system user user',
        '/strict' => 'user user',
    );

    for my $path (sort keys %roles) {
        my $j = $sent->($path, { messages => $all });
        is(join(' ', map { $_->{role} } @{ $j->{messages} }), $roles{$path},
            "$path: roles");
    }

    my $j = $sent->('/terse', {
        messages => $all,
        context  => [
            { description => 'place', value => "the \"moon\"\n" },
            { description => 'time',  value => 'now' },
        ],
    });
    my $first = $j->{messages}[0]{content};
    like($first, qr/\AYou are terse\./, 'the system prompt is first');
    like($first, qr/place: the "moon"\n.*time: now/s, '... then the context');
    is($j->{messages}[1]{content}, 'a system', '... then the client\'s');

    my @tools = map { +{ name => "f$_", description => "d$_",
        parameters => { type => 'object', properties => {} } } } 1 .. 3;
    $j = $sent->('/chat', { tools => \@tools });
    is_deeply([ map { $_->{function} } @{ $j->{tools} } ], \@tools, 'tools');
    $j = $sent->('/strict', { tools => \@tools });
    ok(!exists $j->{tools}, 'client_tools off');
    my $caps = $t->request('GET', '/strict/capabilities');
    is($caps->json->{tools}{clientProvided}, Mojo::JSON->false,
        '... is a capability');
    is($t->request('GET', '/chat/capabilities')->json->{tools}{clientProvided},
        Mojo::JSON->true, '... client_tools on, too');

    # numbers as they were written
    my $schema = '{"minimum":1.0,"maximum":1e3,"multipleOf":0.10,'
        . '"const":9007199254740993,"default":-0.0,"x":1E+2}';
    my $body = encode_json(run_input());
    $body =~ s/"tools":\[\]/"tools":[{"name":"f","parameters":$schema}]/;
    $u->forget;
    $t->request('POST', '/chat', \@json, $body);
    my ($req) = $u->requests;
    like($req->{body}, qr/"parameters":\Q$schema\E/, 'numbers of a schema');

    # the largest of 64 bits without a sign, which schema generators write
    $body = encode_json(run_input());
    $body =~ s/"tools":\[\]/"tools":[{"name":"f","parameters":
        {"maximum":18446744073709551615}}]/;
    $u->forget;
    my $r = $t->request('POST', '/chat', \@json, $body);
    is($r->{status}, 200, 'a large number') or diag $r->{body};
    ($req) = $u->requests;
    like($req->{body} // '', qr/18446744073709551615/, '... arrives');

    # overrides
    $j = $sent->('/free', { forwardedProps => { top_p => 0.1, seed => 4,
        temperature => 1.5, model => 'mine', stream => \0, messages => [],
        tools => [ 1 ], metadata => { a => [ 1, { b => undef } ] } } });
    is($j->{temperature}, 1.5,    'allow_override');
    is($j->{model},       'mine', '... also of the model');
    is_deeply($j->{metadata}, { a => [ 1, { b => undef } ] }, '... an object');
    is($j->{top_p}, 0.9, 'set stays where nothing is allowed');
    ok(!exists $j->{seed}, '... and what is not allowed does not enter');
    ok($j->{stream}, '... nor what the module makes');
    is(@{ $j->{messages} }, 1, '... messages');
    ok(!exists $j->{tools}, '... tools');
    $j = $sent->('/free', {});
    is($j->{temperature}, 0.2, 'no override');
    $j = $sent->('/chat', { forwardedProps => { temperature => 1 } });
    ok(!exists $j->{temperature}, 'nothing by default');

    # parts
    my $png = 'iVBORw0KGgo=';
    $j = $sent->('/chat', { messages => [ { id => 'u', role => 'user',
        content => [
            { type => 'text', text => "look \x{1f440}" },
            { type => 'image', source =>
                { type => 'data', value => $png, mimeType => 'image/png' } },
            { type => 'image', source =>
                { type => 'url', value => 'https://example.com/a.png' } },
            { type => 'audio', source =>
                { type => 'data', value => 'AAAA', mimeType => 'audio/wav' } },
            { type => 'document', source => { type => 'data',
                value => 'JVBERi0=', mimeType => 'application/pdf' } },
            { type => 'binary', mimeType => 'image/gif', data => 'R0lGODdh' },
            { type => 'smell', source => { type => 'data', value => 'x' } },
        ] } ] });
    my @parts = @{ $j->{messages}[0]{content} };
    is(join(' ', map { $_->{type} } @parts),
        'text image_url image_url input_audio file image_url', 'parts');
    is($parts[0]{text}, "look \x{1f440}", '... text');
    is($parts[1]{image_url}{url}, "data:image/png;base64,$png", '... image');
    is($parts[2]{image_url}{url}, 'https://example.com/a.png', '... its URL');
    is_deeply($parts[3]{input_audio}, { data => 'AAAA', format => 'wav' },
        '... audio');
    is($parts[4]{file}{file_data}, 'data:application/pdf;base64,JVBERi0=',
        '... document');
    is($parts[5]{image_url}{url}, 'data:image/gif;base64,R0lGODdh',
        '... binary');

    $j = $sent->('/chat', { messages => [
        { role => 'user', parts => [ { type => 'text', text => 'in parts' } ] }
    ] });
    is($j->{messages}[0]{content}, 'in parts', 'a message in parts');

    # what the run keeps of strings
    my $odd = "\x{0}\x{1}\x{7f}\x{2028}\x{fffd}\"\\\x{1f469}";
    $j = $sent->('/chat', { text => $odd });
    is($j->{messages}[0]{content}, $odd, 'odd characters');
};

subtest 'owners' => sub {
    my $start = sub {
        my ($as, $id, $path) = @_;
        my $s = $t->post_run({ runId => $id, threadId => "of-$as" },
            path => ($path // '/owned') . "?as=$as", stream => 1);
        $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        return $s;
    };

    for my $c ([ 'POST', '/owned' ], [ 'GET', '/owned/runs/x' ],
        [ 'DELETE', '/owned/runs/x' ], [ 'POST', '/owned/runs/x/cancel' ],
        [ 'GET', '/owned/capabilities' ], [ 'POST', '/owned?as=' ],
        [ 'GET', '/owned/nonsense' ]) {
        my $r = $t->request(@$c[ 0, 1 ], \@json,
            $c->[0] eq 'POST' ? encode_json(run_input()) : undef);
        is(outcome($r), '401 unauthorized', "nobody: @$c");
    }

    my $ann = $start->('ann', 'shared-id');
    my $bob = $start->('bob', 'shared-id');
    is($bob->header('x-agent-attached'), undef, 'an independent run');
    is($bob->header('x-agent-thread-id'), 'of-bob', '... with its thread');
    my $only = $start->('ann', 'only-ann');

    for my $c ([ 'GET', '' ], [ 'DELETE', '' ], [ 'POST', '/cancel' ]) {
        my ($method, $tail) = @$c;
        my @r = map { $t->request($method, "/owned/runs/$_$tail?as=bob") }
            qw(only-ann only-nil);
        is(outcome($r[0]), '404 not_found', "$method of another's run");
        is($r[0]{body} =~ s/only-ann/ID/gr, $r[1]{body} =~ s/only-nil/ID/gr,
            '... looks like an unknown one');
        is_deeply([ sort keys %{ $r[0]{headers} } ],
            [ sort keys %{ $r[1]{headers} } ], '... also in its headers');
    }

    is($t->request('GET', '/owned/runs/shared-id?as=ann')->json->{threadId},
        'of-ann', 'each sees the own one');
    is($t->request('GET', '/owned/runs/shared-id?as=bob')->json->{threadId},
        'of-bob', '... and the other');
    is($t->request('GET', '/elsewhere/runs/shared-id?as=ann')->{status}, 200,
        'one agent, one owner, another location: the same run');
    is($t->request('GET', '/offline/runs/shared-id')->{status}, 404,
        'not without an owner');
    is($t->request('GET', '/own/runs/shared-id?as=ann')->{status}, 404,
        'not of another agent');
    is($t->request('DELETE', '/owned/runs/shared-id?as=bob')->{status}, 202,
        'bob stops his');
    $bob->finish(10);
    check_run($bob->events, outcome => 'cancelled', name => '... it ends');
    is($t->request('GET', '/owned/runs/shared-id?as=ann')->json->{status},
        'running', '... hers goes on');
    $_->close for $ann, $bob, $only;

    # "off" is no string
    my $off = $t->post_run({ runId => 'off-1' }, path => '/all');
    is($off->{status}, 200, 'agent_owner off');
    is($t->request('GET', '/all/runs/off-1')->{status}, 200, '... its run');
    is($t->request('GET', "/own/runs/off-1?as=$_")->{status}, 404,
        "... is not of \"$_\"") for qw(off 0 1 - *);
};

subtest 'agent_thread' => sub {
    my $r = post('/thread', { threadId => undef }, 'X-Thread' => 't-1');
    check_run($r->events, threadId => 't-1', name => 'from a header');
    $r = post('/thread', { threadId => 't-2' }, 'X-Thread' => 't-2');
    check_run($r->events, threadId => 't-2', name => 'the same in the body');
    is(outcome(post('/thread', { threadId => 't-3' }, 'X-Thread' => 't-4')),
        '400 bad_request', 'another in the body');
    check_run(post('/thread', { threadId => 't-5' })->events,
        threadId => 't-5', name => 'empty: the body\'s');
    $r = post('/thread', { threadId => undef });
    like($r->events->[0]{data}{threadId}, qr/^[\w-]{22}$/a, 'none: a new one');
    is(outcome(post('/thread', { threadId => undef }, 'X-Thread' => $_)),
        '400 bad_request', 'too long') for 'a' x 129;
    $r = post('/thread', { threadId => undef }, 'X-Thread' => 'a b/"c');
    check_run($r->events, threadId => 'a b/"c', name => 'outside the grammar');
    is($r->header('x-agent-thread-id'), undef, '... not in the header');

    my $path = sub { '/threads/' . $_[0] . '/chat' };
    is(outcome(post($path->('%0A'), { threadId => undef })), '400 bad_request',
        'a control character');
    is(outcome(post($path->('%FF'), { threadId => undef })), '400 bad_request',
        'no UTF-8');
    is(outcome(post($path->('a' . '%80' x 600), { threadId => undef })),
        '400 bad_request', 'many bytes that are no characters');
    my $s = $t->post_run({ threadId => undef, runId => 'in-a' },
        path => $path->('%E4%BD%A0'), stream => 1);
    my $first = $s->read_event(10);
    is($first->{data}{threadId}, "\x{4f60}", 'from the URL');
    is(outcome(post($path->('b'), { threadId => undef, runId => 'in-a' })),
        '409 run_id_in_use', 'the run of another thread of the URL');
    my $same = $t->post_run({ threadId => undef, runId => 'in-a' },
        path => $path->('%E4%BD%A0'), stream => 1);
    is($same->read_head(10), 200, 'the same thread');
    is($same->header('x-agent-attached'), 1, '... attaches');
    $_->close for $s, $same;
};

subtest 'subrequests' => sub {
    $u->forget;
    my $r = $t->request('GET', '/sub-auth');
    is($r->{status}, 500, 'auth_request: its 404 lets nobody in');
    like($t->request('GET', '/ssi.html')->{body}, qr/\A\[.*404.*\]/s,
        'ssi: 404');
    good('/mirror', 'mirror');
    is(scalar($u->requests), 1, '... only the request itself runs');
};

subtest 'agent_intercept_errors' => sub {
    my $r = post('/page/broken');
    is($r->{status}, 502, 'error_page: status');
    is($r->{body}, "sorry\n", '... page');
    $r = post('/page/broken', { messages => 17 });
    is("$r->{status} $r->{body}", "418 named\n", 'a named location')
        or diag $r->{head};
    $r = $t->request('GET', '/page/broken/runs/none');
    is("$r->{status} $r->{body}", "200 sorry\n", 'another status');
    good('/page/fallback', 'another agent takes over');
    $r = post('/page/plain');
    is($r->{status}, 429, 'without error_page: status');
    like($r->header('content-type'), qr{^text/html}, '... nginx\'s page');
    is($r->header('retry-after'), 7, '... Retry-After stays');
    $r = $t->request('GET', '/page/plain');
    is($r->{status}, 405, 'a wrong method');
    like($r->header('allow') // '', qr/POST/, '... Allow stays');
    is(outcome($t->request('POST', '/page/plain', [], '{}')), '415', 'a wrong type');
    $r = $t->post_run({}, path => '/page/plain', accept => 'application/json');
    is($r->{status}, 429, 'for a JSON answer, too');
    $r = post('/page/off');
    is(outcome($r), '429 upstream_rate_limited', 'off: our JSON');
};

# The line of a request in the access log, by its tag.
sub logged {
    my ($tag) = @_;
    my $line;
    $t->wait_for(sub {
        ($line) = $t->_slurp('agent.log') =~ /^(\Q$tag\E\|.*)$/m;
        return $line;
    });
    my @names = qw(tag http run thread name model status finish in out first
        events);
    my %f;
    @f{@names} = split /\|/, $line // '', -1;
    return \%f;
}

sub logs {
    my ($tag, %want) = @_;
    my $f = logged($tag);
    my %got = map { ($_ => $f->{$_}) } grep { !ref $want{$_} } keys %want;
    my %plain = map { ($_ => $want{$_}) } keys %got;
    is_deeply(\%got, \%plain, "variables: $tag") or diag explain $f;
    like($f->{$_}, $want{$_}, "... $_") for grep { ref $want{$_} } keys %want;
}

subtest 'variables' => sub {
    my $seconds = qr/^\d+\.\d{3}$/;
    my %none = (status => '-', in => '-', out => '-', first => '-',
        events => '-', model => '-');

    my $r = post('/usage?tag=finished', { threadId => 'vt' });
    logs('finished', http => 200, run => $r->{input}{runId}, thread => 'vt',
        name => 'usage', model => 'usage', status => 'finished',
        finish => 'stop', in => 100, out => 40, first => $seconds,
        events => scalar @{ $r->events });

    $r = $t->post_run({}, path => '/usage?tag=json',
        accept => 'application/json');
    logs('json', http => 200, status => 'finished', finish => 'stop',
        in => 100, first => $seconds, events => qr/^\d+$/);

    $r = post('/tool?tag=tool', { tools => [ { name => 'get_weather' } ] });
    logs('tool', finish => 'tool_calls', status => 'finished');

    $r = post('/chat?tag=odd', { runId => 'o d', threadId => "\x{e9}" });
    logs('odd', run => '-', thread => '-', status => 'finished');

    $r = post('/broken?tag=error');
    logs('error', http => 502, run => $r->{input}{runId}, name => 'broken',
        model => 'broken', status => 'error', finish => 'upstream_error',
        in => '-', out => '-', first => '-');

    $r = post('/cut?tag=late-error');
    check_run($r->events, code => 'upstream_truncated');
    logs('late-error', http => 200, status => 'error',
        finish => 'upstream_truncated', first => $seconds,
        events => scalar @{ $r->events });

    my $s = $t->post_run({}, path => '/endless?tag=cancelled', stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    $t->request('DELETE', "/endless/runs/$s->{input}{runId}?tag=delete");
    $s->finish(10);
    $s->close;
    logs('cancelled', http => 200, status => 'cancelled',
        finish => 'cancelled', first => $seconds);
    logs('delete', http => 202, run => $s->{input}{runId}, name => 'endless');

    $s = $t->post_run({}, path => '/endless?tag=detached', stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    $s->close;
    logs('detached', run => $s->{input}{runId}, status => 'detached',
        first => $seconds, events => qr/^\d+$/);

    $s = $t->post_run({}, path => '/silent?tag=gone', stream => 1);
    $u->wait_requests(1, 10, qr/^\/hang,at=first/);
    $s->close;
    logs('gone', status => 'detached', first => '-');

    post('/chat?tag=refused', { messages => 17 });
    logs('refused', http => 400, name => 'chat', finish => 'bad_request',
        %none);
    $t->request('POST', '/chat?tag=media', [], '{}');
    logs('media', http => 415, finish => 'unsupported_media_type', %none);
    post('/owned?tag=nobody');
    logs('nobody', http => 401, finish => 'unauthorized', name => 'owned');
    $t->request('GET', '/chat/runs/none?tag=unknown');
    logs('unknown', http => 404, finish => 'not_found', %none);

    # they outlive the way through error_page
    for my $c ([ '/page/broken', 'uri', 502 ], [ '/page/plain', 'none', 429 ]) {
        my ($path, $tag, $status) = @$c;
        $r = post("$path?tag=page-$tag");
        logs("page-$tag", http => $status, run => $r->{input}{runId},
            status => 'error', finish => qr/^upstream_/);
    }
    post('/page/broken?tag=page-named', { messages => 17 });
    logs('page-named', http => 418, finish => 'bad_request');
};

# Preconditions are about an ETag or a date, and a run has neither: nginx's
# filter would answer 304 or 412 and forget the request's context.
subtest 'preconditions' => sub {
    for my $h (['if-match' => '"x"'], ['if-none-match' => '*'],
        ['if-unmodified-since' => 'Mon, 01 Jan 2001 00:00:00 GMT'],
        ['if-modified-since' => 'Mon, 01 Jan 2001 00:00:00 GMT'],
        [range => 'bytes=0-5'])
    {
        my $r = $t->post_run({}, path => '/chat', headers => [@$h]);
        is($r->{status}, 200, "$h->[0]: a stream");
        check_run($r->events, name => "... whole");
        $r = $t->post_run({}, path => '/chat', accept => 'application/json',
            headers => [@$h]);
        is($r->{status}, 200, '... a JSON answer');
        is($r->json->{status}, 'finished', '... whole');
        $r = $t->request(GET => '/chat/capabilities', [@$h], '');
        is($r->{status}, 200, '... capabilities');
    }
};

$t->done;
