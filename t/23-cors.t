#!/usr/bin/perl

# Browsers: preflights, the headers of agent_cors on every response, and the
# refusal of what another site sends.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Mojo::JSON qw(decode_json encode_json);
use Test::More;

my $t = AgentTest->new;
my ($http) = agent_blocks(
    chat    => 'words,n=20,delay=0.02',
    broken  => 'status,code=500',
);

$t->write_file('users', "ann:{PLAIN}secret\n");

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    limit_req_zone \$server_port zone=slow:1m rate=1r/m;

$http
    server {
        listen 127.0.0.1:%%PORT%%;
        agent_owner off;

        location /plain { agent_pass chat; }
        location /off { agent_pass chat; agent_cors off; }
        location /basic {
            auth_basic realm;
            auth_basic_user_file %%DIR%%/users;
            agent_pass chat;
            agent_owner \$remote_user;
        }

        location /cors/ {
            agent_cors https://app.example.com http://Localhost:3000
                       https://app.example.com:8443;

            location /cors/chat { agent_pass chat; }
            location /cors/off { agent_pass chat; agent_cors off; }
            location /cors/broken { agent_pass broken; }
            location /cors/tiny {
                client_max_body_size 100;
                agent_pass chat;
            }
            location /cors/basic {
                auth_basic realm;
                auth_basic_user_file %%DIR%%/users;
                agent_pass chat;
                agent_owner \$remote_user;
            }
            location /cors/denied { deny all; agent_pass chat; }
            location /cors/auth { auth_request /no; agent_pass chat; }
            location /cors/slow { limit_req zone=slow; agent_pass chat; }
            location /cors/limit {
                limit_except GET { deny all; }
                agent_pass chat;
            }
            location /cors/if {
                if (\$arg_x) { set \$y 1; }
                agent_pass chat;
            }
            location /cors/return {
                if (\$arg_x) { return 403; }
                agent_pass chat;
            }
            location /cors/page {
                agent_pass broken;
                agent_intercept_errors on;
                error_page 502 /oops.html;
            }
            location /cors/static { }
        }

        location = /no { return 401; }
        location = /oops.html { }
    }
}
CONF

$t->write_file('oops.html', "sorry\n");
$t->start;
my $u = $t->upstream;

my $app = 'https://app.example.com';
my @json = ('Content-Type' => 'application/json');
my @ann = (Authorization => 'Basic YW5uOnNlY3JldA==');

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

sub preflight {
    my ($path, $origin, %o) = @_;
    return $t->request('OPTIONS', $path, [
        Origin                           => $origin,
        'Access-Control-Request-Method'  => $o{method} // 'POST',
        'Access-Control-Request-Headers' => $o{names},
        @{ $o{headers} // [] },
    ]);
}

sub varies {
    my ($r) = @_;
    return map { lc } split /\s*,\s*/, join ',', @{ $r->{headers}{vary} // [] };
}

# What a response of a location with agent_cors has; $origin: it may be read.
sub check_cors {
    my ($r, $origin, $name) = @_;
    my %h = map { ($_ => $r->{headers}{"access-control-$_"}) }
        qw(allow-origin allow-credentials expose-headers);
    my @bad;

    push @bad, 'no Vary: Origin' if !grep { $_ eq 'origin' } varies($r);
    push @bad, "several $_" for grep { $h{$_} && @{ $h{$_} } > 1 } keys %h;
    push @bad, 'a *' if grep { /\*/ } map { @{ $_ // [] } } values %h;

    if (defined $origin) {
        push @bad, 'Allow-Origin is ' . ($h{'allow-origin'}[0] // 'absent')
            if ($h{'allow-origin'}[0] // '') ne $origin;
        push @bad, 'no Allow-Credentials'
            if ($h{'allow-credentials'}[0] // '') ne 'true';
        push @bad, "$_ is not exposed"
            for grep { ($h{'expose-headers'}[0] // '') !~ /\b\Q$_\E\b/i }
            qw(X-Agent-Run-Id X-Agent-Thread-Id X-Agent-Attached Retry-After);

    } else {
        push @bad, map {"a $_"} grep { $h{$_} } keys %h;
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok(!@bad, $name) or diag(map {"$_\n"} @bad, $r->{head} // '');
}

sub no_cors {
    my ($r, $name) = @_;
    my @names = grep {/^access-control/} keys %{ $r->{headers} };
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is("@names " . join(' ', grep { $_ eq 'origin' } varies($r)), ' ', $name);
}

subtest 'preflight' => sub {
    $u->forget;

    for my $path (qw(/cors/chat /cors/chat/runs/x /cors/chat/runs/x/cancel
        /cors/chat/anything /cors/basic /cors/denied /cors/auth /cors/slow
        /cors/slow /cors/slow /cors/limit /cors/if?x=1 /cors/broken
        /cors/tiny)) {
        my $r = preflight($path, $app, names => 'content-type, x-Thing');
        is($r->{status}, 204, "OPTIONS $path");
        check_cors($r, $app, '... headers');
        like($r->header('access-control-allow-methods') // '', qr/\b$_\b/,
            "... allows $_") for qw(GET POST DELETE);
        is(lc($r->header('access-control-allow-headers') // ''),
            'content-type, x-thing', '... echoes the names');
        like($r->header('access-control-max-age') // '', qr/^\d+$/,
            '... may be kept');
        is($r->{body} . ($r->header('content-length') // ''), '',
            '... no body');
        ok((grep { $_ eq 'access-control-request-headers' } varies($r)),
            '... Vary');
    }

    for my $origin ($app, 'https://app.example.com:8443',
        'http://localhost:3000') {
        check_cors(preflight('/cors/chat', $origin), $origin, $origin);
    }

    for my $origin ('https://evil.example', 'null', 'http://app.example.com',
        'https://app.example.com:444', 'https://app.example.com.evil.example',
        'https://evilapp.example.com', "$app/", 'app.example.com', '*',
        'http://localhost:30000', 'http://localhost', '') {
        my $r = preflight('/cors/chat', $origin);
        ok($r->{status} < 500, "preflight of \"$origin\"");
        check_cors($r, undef, '... is not allowed');
        is(join(' ', grep { /access-control-allow/ } keys %{ $r->{headers} }),
            '', '... anything');
    }

    # names that are none do not come back
    for my $names ('x: y', "a\tb", '<script>', 'x' x 2000, '*', '"') {
        my $r = preflight('/cors/chat', $app, names => $names);
        is($r->{status}, 204, 'odd names: ' . substr $names, 0, 10);
        my $allow = $r->header('access-control-allow-headers') // '';
        isnt($allow, $names, '... are not echoed');
        unlike($allow, qr/\*/, '... no *');
        like($allow, qr/\bContent-Type\b/i, '... a list of ours');
    }

    my $s = $t->open_stream('OPTIONS', '/cors/chat', [
        Origin => $app, 'Access-Control-Request-Method' => 'POST' ]);
    $s->finish(5);
    $s->{complete} = $s->{status} = 0;
    $s->send("GET /cors/chat/capabilities HTTP/1.1\r\nHost: x\r\n"
        . "Origin: $app\r\n\r\n");
    $s->finish(5);
    is($s->{status}, 200, 'the connection goes on');
    $s->close;

    for my $path (qw(/plain /off /cors/off)) {
        my $r = preflight($path, $app);
        is(outcome($r), '405 method_not_allowed', "without agent_cors: $path");
        no_cors($r, '... no headers');
    }

    my $r = preflight('/basic', $app);
    is($r->{status}, 401, 'without agent_cors the access phase comes first');
    no_cors($r, '... no headers');

    # an OPTIONS that is no preflight
    $r = $t->request('OPTIONS', '/cors/basic', [ Origin => $app ]);
    is($r->{status}, 401, 'without a method it is no preflight');
    check_cors($r, $app, '... headers');
    $r = $t->request('OPTIONS', '/cors/chat',
        [ 'Access-Control-Request-Method' => 'POST' ]);
    is($r->{status}, 405, 'nor without an Origin');
    $r = preflight('/cors/static', $app);
    isnt($r->{status}, 204, 'not for other locations');
    no_cors($r, '... no headers');
    is(scalar($u->requests), 0, 'no model was called');
};

# One answer of each kind from a location with agent_cors.
my $input = sub { encode_json(run_input(@_)) };
my @answers = (
    [ 'a stream', 200, 'POST', '/cors/chat', \@json ],
    [ 'a JSON answer', 200, 'POST', '/cors/chat',
        [ @json, Accept => 'application/json' ] ],
    [ 'behind if', 200, 'POST', '/cors/if?x=1', \@json ],
    [ 'with credentials', 200, 'POST', '/cors/basic', [ @json, @ann ] ],
    [ 'capabilities', 200, 'GET', '/cors/chat/capabilities' ],
    [ 'HEAD', 200, 'HEAD', '/cors/chat/capabilities' ],
    [ 'an unknown run', 404, 'GET', '/cors/chat/runs/none' ],
    [ 'an unknown path', 404, 'GET', '/cors/chat/none' ],
    [ 'an ambiguous path', 400, 'GET', '/cors/chat/runs//x' ],
    [ 'a wrong method', 405, 'PUT', '/cors/chat' ],
    [ 'a wrong type', 415, 'POST', '/cors/chat', [] ],
    [ 'a bad body', 400, 'POST', '/cors/chat', \@json, '{' ],
    [ 'a failed run', 502, 'POST', '/cors/broken', \@json ],
    [ 'nginx: 401', 401, 'POST', '/cors/basic', \@json ],
    [ 'nginx: 403', 403, 'POST', '/cors/denied', \@json ],
    [ 'nginx: 403 of limit_except', 403, 'POST', '/cors/limit', \@json ],
    [ 'nginx: return 403', 403, 'POST', '/cors/return?x=1', \@json ],
    [ 'nginx: 401 of auth_request', 401, 'POST', '/cors/auth', \@json ],
    [ 'nginx: 413', 413, 'POST', '/cors/tiny', \@json ],
    [ 'an error page', 502, 'POST', '/cors/page', \@json ],
);

subtest 'every response' => sub {
    for my $c (@answers) {
        my ($name, $status, $method, $path, $headers, $body) = @$c;
        my $send = sub {
            $t->request($method, $path, [ @{ $headers // [] }, @_ ],
                $method eq 'POST' ? $body // $input->() : undef);
        };

        my $r = $send->(Origin => $app);
        is($r->{status}, $status, $name) or diag $r->{body};
        check_cors($r, $app, '... for a listed origin');
        check_cors($send->(), undef, '... without an origin');
        check_cors($send->(Origin => 'https://evil.example'), undef,
            '... for another origin');
    }

    # the first of a minute passes, the next is nginx's 503
    my ($ok, $busy) = map { $t->request('POST', '/cors/slow',
        [ @json, Origin => $app ], $input->()) } 1, 2;
    is($ok->{status}, 200, 'limit_req');
    is($busy->{status}, 503, '... refuses');
    check_cors($busy, $app, '... with headers');

    my $r = $t->request('POST', '/cors/chat', [ @json, Origin => $app ],
        $input->());
    ok((grep { $_ eq 'x-agent-run-id' } keys %{ $r->{headers} }),
        'a stream has what is exposed');
    $r = $t->request('GET', '/cors/chat/capabilities', [ Origin => $app ]);
    ok((grep { $_ eq 'accept' } varies($r)), 'Vary: Accept stays');

    for my $path (qw(/plain /off /cors/off)) {
        no_cors($t->request('GET', "$path/capabilities", [ Origin => $app ]),
            "no headers: $path");
    }
};

subtest 'csrf' => sub {
    my $host = 'localhost:' . $t->port;
    my @cases = (
        [ 200, 'no Origin', [] ],
        [ 200, 'the host\'s own', [ Origin => "http://$host" ] ],
        [ 200, '... by TLS', [ Origin => "https://$host" ] ],
        [ 200, '... in capitals', [ Origin => "http://LOCALHOST:" . $t->port ] ],
        [ 403, '... without its port', [ Origin => 'http://localhost' ] ],
        [ 403, '... with another port', [ Origin => 'http://localhost:1' ] ],
        [ 403, '... as a part', [ Origin => "http://x$host" ] ],
        [ 403, '... at the end', [ Origin => "http://$host.evil.example" ] ],
        [ 403, '... as a user', [ Origin => "http://$host\@evil.example" ] ],
        [ 403, '... without a scheme', [ Origin => $host ] ],
        [ 403, 'foreign', [ Origin => 'https://evil.example' ] ],
        [ 403, 'foreign, whatever Sec-Fetch-Site says', [
            Origin => 'https://evil.example', 'Sec-Fetch-Site' => 'same-origin'
        ] ],
        [ 403, 'opaque', [ Origin => 'null' ] ],
        [ 403, 'empty', [ Origin => '' ] ],
        [ 403, 'listed elsewhere', [ Origin => $app ] ],
        [ 200, 'Sec-Fetch-Site: same-origin',
            [ 'Sec-Fetch-Site' => 'same-origin' ] ],
        [ 200, 'Sec-Fetch-Site: none', [ 'Sec-Fetch-Site' => 'none' ] ],
        [ 403, 'Sec-Fetch-Site: cross-site',
            [ 'Sec-Fetch-Site' => 'cross-site' ] ],
        [ 403, 'Sec-Fetch-Site in capitals',
            [ 'Sec-Fetch-Site' => 'Cross-Site' ] ],
    );

    $u->forget;

    for my $c (@cases) {
        my ($status, $name, $headers) = @$c;
        my @headers = (Host => $host, @$headers);
        my $want = $status == 200 ? '200' : '403 csrf';
        my $r = $t->request('POST', '/plain', [ @json, @headers ], $input->());
        is(outcome($r), $want, "POST: $name");
        is(outcome($t->request('DELETE', '/plain/runs/none', \@headers)),
            $status == 200 ? '404 not_found' : '403 csrf', '... DELETE');
        is(outcome($t->request('POST', '/plain/runs/none/cancel', \@headers)),
            $status == 200 ? '404 not_found' : '403 csrf', '... cancel');
        is($t->request('GET', '/plain/capabilities', \@headers)->{status}, 200,
            '... GET is fine');
    }

    is(scalar($u->requests), scalar(grep { $_->[0] == 200 } @cases),
        'nothing refused reaches a model');

    for my $c ([ 200, $app ], [ 200, 'http://localhost:3000' ],
        [ 200, 'HTTPS://APP.example.com' ], [ 200, "http://$host" ],
        [ 403, 'http://app.example.com' ], [ 403, 'null' ],
        [ 403, 'https://evil.example' ]) {
        my ($status, $origin) = @$c;
        my $r = $t->request('POST', '/cors/chat',
            [ @json, Host => $host, Origin => $origin ], $input->());
        is($r->{status}, $status, "agent_cors: $origin");
    }

    my $r = $t->request('POST', '/plain',
        [ @json, Origin => 'https://evil.example' ], '{');
    is(outcome($r), '403 csrf', 'before anything of the body is said');
    like($r->json->{error}{message}, qr/agent_cors/, '... with the way out');
    $r = $t->raw("POST /plain HTTP/1.0\r\nOrigin: http://localhost\r\n"
        . "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}");
    like($r, qr{^HTTP/1.1 403 }, 'no Host of its own');
    $r = $t->request('POST', '/basic', [ @json, @ann,
        Origin => 'https://evil.example' ], $input->());
    is(outcome($r), '403 csrf', 'credentials do not help');
};

$t->done;
