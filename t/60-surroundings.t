#!/usr/bin/perl

# What nginx does around an agent_pass location works as around any other:
# access, limits, redirects, subrequests, headers, pages; and whoever forges an
# identity gets nobody's runs.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentClient;
use AgentTest;
use IO::Socket::SSL::Utils;
use MIME::Base64 qw(encode_base64);
use Mojo::JSON qw(decode_json encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

# thousands of requests: a debug log of them would take long to read
my $t = AgentTest->new(level => $ENV{AGENT_LOG} || 'info');
my $dir = $t->dir;
my ($http) = agent_blocks(
    chat    => 'words,n=100000,delay=0.05',
    ok      => 'ok',
    words   => 'words,n=15,delay=0.05',
    usage   => 'usage',
    fail    => 'status,code=500',
    limited => 'status,code=429,retry=7',
    cut     => 'cut,at=content',
);

my %password = (ann => 'secret', bob => 'hunter');
$t->write_file('users', join '', map {"$_:{PLAIN}$password{$_}\n"}
        sort keys %password);
$t->write_file('users.a', "ann:{PLAIN}in-a\n");
$t->write_file('users.b', "ann:{PLAIN}in-b\nbob:{PLAIN}hunter\n");
mkdir "$dir/$_" for qw(page files files/sub);
$t->write_file('page/oops.html', "sorry\n");
$t->write_file('files/here.txt', "a file\n");
$t->write_file('files/ssi.html',
    "[<!--# include virtual=\"/ok\" -->|<!--# include virtual=\"$_\" -->]")
    for '/ok/capabilities';
$t->write_file('files/plain.html', "plain\n");

# certificates of clients, one of them of another CA but with ann's name
{
    my $write = sub { $t->write_file(@_, 0600) };
    my @ca = map {
        [ CERT_create(CA => 1, key => KEY_create_ec(),
            subject => { commonName => "clients $_" }) ]
    } 1, 2;
    $write->('clients.pem', PEM_cert2string($ca[0][0]));

    for my $c ([ ann => 0 ], [ bob => 0 ], [ mallory => 1, 'ann' ],
        [ sly => 0, 'bob,CN=ann' ]) {
        my ($file, $ca, $cn) = @$c;
        my ($cert, $key) = CERT_create(
            subject => { commonName => $cn // $file },
            key     => KEY_create_ec(),
            issuer  => $ca[$ca],
            purpose => 'client',
        );
        $write->("$file.pem", PEM_cert2string($cert) . PEM_key2string($key));
    }
}

$t->upstream(tls => 1);

my $added = $t->{version} =~ /http_addition_module/
    ? 'addition_types *; add_after_body /ok; add_before_body /ok/capabilities;'
    : '';

# what two servers include
$t->write_file('realm.conf', <<'EOF');
location /realm {
    auth_basic "a realm";
    auth_basic_user_file $realm_users;
    agent_pass chat;
    agent_owner "$server_name/$remote_user";
}
location /shared { agent_pass chat; agent_owner "the same"; }
EOF

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 512; }
http {
    %%GLOBALS_HTTP%%
    log_format agent '\$request_uri|\$status|\$agent_run_id|\$agent_name|'
        '\$agent_status|\$agent_finish_reason';
    access_log %%DIR%%/agent.log agent;
    auth_basic_user_file %%DIR%%/users;

    map \$cookie_session \$who { default ""; s-ann ann; s-bob bob; }
    map \$cookie_session \$nobody { default 0; s-nobody 1; }
    map "\$ssl_client_verify:\$ssl_client_s_dn" \$cert_user {
        default "";
        ~^SUCCESS:CN=(?<cn>[a-z]+)\$ \$cn;
    }
    map \$server_name \$realm_users {
        default %%DIR%%/users.a;
        b.test  %%DIR%%/users.b;
    }

    limit_req_zone \$server_port zone=minute:1m rate=1r/m;
    limit_req_zone \$agent_name zone=agent:1m rate=1r/m;
    limit_conn_zone \$binary_remote_addr zone=conn:1m;
    limit_conn_zone \$http_x_key zone=key:1m;
    proxy_cache_path %%DIR%%/cache keys_zone=cache:1m;

$http

    # who a session belongs to
    server {
        listen 127.0.0.1:%%PORT9%%;
        location / {
            if (\$nobody) { return 204; }
            if (\$who = "") { return 401; }
            add_header X-User \$who;
            return 204;
        }
        location /forbidden { return 403; }
        location /error { return 500; }
        location /take-over {
            add_header X-Accel-Redirect \@agent;
            return 204;
        }
        location /take-over-uri {
            add_header X-Accel-Redirect /inside/capabilities;
            return 204;
        }
    }

    server {
        listen 127.0.0.1:%%PORT%%;
        listen 127.0.0.1:%%PORT5%% http2;
        agent_owner off;
        root %%DIR%%/files;

        location = /auth {
            internal;
            proxy_pass http://127.0.0.1:%%PORT9%%/;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }
        location = /auth-403 {
            internal;
            proxy_pass http://127.0.0.1:%%PORT9%%/forbidden;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }
        location = /auth-500 {
            internal;
            proxy_pass http://127.0.0.1:%%PORT9%%/error;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
        }

        # --- owners
        location /basic {
            auth_basic realm;
            agent_pass chat;
            agent_owner \$remote_user;
        }
        location /request {
            auth_request /auth;
            auth_request_set \$user \$upstream_http_x_user;
            agent_pass chat;
            agent_owner \$user;
        }
        location /forged { agent_pass chat; agent_owner \$http_x_user; }

        # --- access
        location /request-403 { auth_request /auth-403; agent_pass ok; }
        location /request-500 { auth_request /auth-500; agent_pass ok; }
        location /request-page {
            auth_request /auth;
            error_page 401 = \@login;
            agent_pass ok;
        }
        location \@login { return 302 https://login.example/; }
        location /any {
            satisfy any;
            deny all;
            auth_basic realm;
            agent_pass chat;
            agent_owner \$remote_user;
        }
        location /any/request {
            satisfy any;
            deny all;
            auth_request /auth;
            auth_request_set \$user \$upstream_http_x_user;
            agent_pass chat;
            agent_owner \$user;
        }
        location /any/allowed {
            satisfy any;
            allow all;
            auth_request /auth;
            auth_request_set \$user \$upstream_http_x_user;
            agent_pass chat;
            agent_owner \$user;
        }
        location /all {
            satisfy all;
            allow 127.0.0.1;
            deny all;
            auth_basic realm;
            agent_pass chat;
            agent_owner \$remote_user;
        }
        location /all/denied { deny all; auth_basic realm; agent_pass ok; }
        location /allow { allow 127.0.0.1; deny all; agent_pass ok; }
        location /deny { deny 127.0.0.1; allow all; agent_pass ok; }
        location /inside { internal; agent_pass ok; }
        location /to-inside { rewrite ^/to-inside(.*)\$ /inside\$1 last; }

        # --- limits
        location /minute { limit_req zone=minute; agent_pass ok; }
        location /minute-429 {
            limit_req zone=minute;
            limit_req_status 429;
            agent_pass ok;
        }
        location /by-agent {
            location /by-agent/ok { limit_req zone=agent; agent_pass ok; }
            location /by-agent/usage { limit_req zone=agent; agent_pass usage; }
        }
        location /conn { limit_conn conn 1; agent_pass words; }
        location /conn-key { limit_conn key 2; agent_pass chat; }
        location /small {
            client_max_body_size 100;
            error_page 413 = \@small;
            agent_pass ok;
        }
        location \@small { return 413 "too much\\n"; }

        # --- pages
        location /page/on {
            agent_pass fail;
            agent_intercept_errors on;
            error_page 502 /page/oops.html;
        }
        location /page/off { agent_pass fail; error_page 502 /page/oops.html; }
        location /page/nginx {
            auth_basic realm;
            error_page 401 /page/oops.html;
            agent_pass ok;
        }
        location /page/chain {
            agent_intercept_errors on;
            recursive_error_pages on;
            error_page 502 = \@second;
            agent_pass fail;
        }
        location \@second {
            agent_intercept_errors on;
            recursive_error_pages on;
            error_page 429 = \@third;
            agent_pass limited;
        }
        location \@third { agent_pass ok; }
        location /page/loop {
            agent_intercept_errors on;
            error_page 404 405 = /page/loop/capabilities;
            agent_pass ok;
        }
        location /page/late {
            agent_pass cut;
            agent_intercept_errors on;
            error_page 500 502 503 /page/oops.html;
        }
        location = /page/oops.html { internal; root %%DIR%%; }

        # --- rewriting, places
        location /if {
            if (\$request_method = OPTIONS) { return 204; }
            if (\$http_x_block) { return 403 "blocked\\n"; }
            if (\$http_x_agent = usage) { agent_pass usage; break; }
            if (\$http_x_header) { add_header X-In-If yes; }
            set \$y \$agent_name;
            agent_pass ok;
        }
        location /except {
            limit_except POST { deny all; }
            agent_pass ok;
        }
        location /except-auth {
            limit_except GET {
                auth_basic realm;
            }
            agent_pass ok;
        }
        location /v1/ { rewrite ^/v1/(\\w+)(.*)\$ /\$1\$2 last; }
        location /broken-off { rewrite ^ /elsewhere break; agent_pass ok; }
        location /moved { return 308 /ok; }
        location ~ ^/users/(\\w+)/chat\$ { agent_pass ok; }
        location ~* \\.(php|html)/agent\$ { agent_pass ok; }
        location ^~ /ok { agent_pass ok; }
        location /words { agent_pass words; }
        location /tries { try_files \$uri \$uri/ \@agent; }
        location /tries/404 { try_files \$uri =404; agent_pass ok; }
        location /tries/uri { try_files \$uri /ok; }
        location \@agent { agent_pass ok; }
        location /index { index here.txt; autoindex on; agent_pass ok; }
        location /alias { alias %%DIR%%/files/; agent_pass ok; }
        location /outer {
            agent_pass ok;
            location /outer/inner { agent_pass usage; }
            location ~ ^/outer/re/ { agent_pass words; }
            location /outer/runs/x { return 403; }
        }

        # --- subrequests
        location = /ssi.html { ssi on; }
        location /sub/auth { auth_request /ok/capabilities; }
        location /sub/auth-run { auth_request /ok; proxy_pass
            http://127.0.0.1:%%PORT9%%/; }
        location /sub/mirror {
            mirror /ok;
            mirror /sub/mirrored;
            agent_pass usage;
        }
        location /sub/mirrored { internal; agent_pass ok; }
        location /sub/mirror-static {
            mirror /ok;
            proxy_pass http://127.0.0.1:%%PORT9%%/;
        }
        location /sub/added {
            alias %%DIR%%/files/plain.html;
            $added
        }
        location /take-over { proxy_pass http://127.0.0.1:%%PORT9%%; }

        # --- headers
        location /headers {
            add_header X-Sometimes yes;
            add_header X-Always \$agent_name-\$agent_run_id always;
            expires 1h;
            agent_pass ok;

            location /headers/fail {
                add_header X-Sometimes yes;
                add_header X-Always \$agent_name-\$agent_run_id always;
                add_header Cache-Control public always;
                agent_pass fail;
            }
            location /headers/trailer {
                add_header Trailer X-End;
                add_trailer X-End "the end";
                agent_pass words;
            }
        }

        # --- another nginx in front
        location /front/ { proxy_pass http://127.0.0.1:%%PORT%%/; }
        location /cached/ {
            proxy_cache cache;
            proxy_cache_valid any 1h;
            proxy_cache_key \$uri;
            proxy_cache_methods GET HEAD POST;
            add_header X-Cache \$upstream_cache_status always;
            proxy_pass http://127.0.0.1:%%PORT%%/;
        }

        # --- browsers
        location /app/ {
            agent_cors https://app.example.com;
            location /app/basic {
                auth_basic realm;
                agent_pass chat;
                agent_owner \$remote_user;
            }
            location /app/request {
                auth_request /auth;
                auth_request_set \$user \$upstream_http_x_user;
                agent_pass chat;
                agent_owner \$user;
            }
        }
    }

    # the names of one port, and of TLS
    server {
        listen 127.0.0.1:%%PORT3%% default_server;
        server_name a.test;
        include %%DIR%%/realm.conf;
    }
    server {
        listen 127.0.0.1:%%PORT3%%;
        server_name b.test;
        include %%DIR%%/realm.conf;
    }
    server {
        listen 127.0.0.1:%%PORT1%% ssl;
        ssl_certificate %%DIR%%/good.pem;
        ssl_certificate_key %%DIR%%/good.pem;
        ssl_client_certificate %%DIR%%/clients.pem;
        ssl_verify_client optional;
        location /cert { agent_pass chat; agent_owner \$cert_user; }
    }
    server {
        listen 127.0.0.1:%%PORT2%% ssl;
        ssl_certificate %%DIR%%/good.pem;
        ssl_certificate_key %%DIR%%/good.pem;
        ssl_client_certificate %%DIR%%/clients.pem;
        ssl_verify_client optional_no_ca;
        location /cert { agent_pass chat; agent_owner \$cert_user; }
    }
    server {
        listen 127.0.0.1:%%PORT4%%;
        return 503 "closed\\n";
        location /ok { agent_pass ok; agent_owner off; }
    }
    server {
        listen 127.0.0.1:%%PORT6%%;
        if (\$http_x_open = "") { return 503 "closed\\n"; }
        rewrite ^/old(.*)\$ /ok\$1;
        location /ok { agent_pass ok; agent_owner off; }
    }
}
CONF

$t->start;
my $u = $t->upstream;
my @json = ('Content-Type' => 'application/json');

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

sub post {
    my ($path, %o) = @_;
    return $t->post_run(delete $o{input} // {}, path => $path, %o);
}

sub good {
    my ($path, $name, %o) = @_;
    my $r = post($path, %o);
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($r->{status}, 200, "$name: status") or return diag $r->{body};
    return check_run($r->events, text => 'Hello, world!', name => '... run');
}

# Nothing of this reaches a model.
sub silent {
    my ($name, $do) = @_;
    $u->forget;
    $do->();
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is(scalar($u->requests), 0, "$name: no model is called");
}

sub basic {
    my ($user, $password) = @_;
    return (Authorization => 'Basic '
        . encode_base64("$user:" . ($password // $password{$user}), ''));
}

# --- identities ---------------------------------------------------------------

# The TLS of a client with this certificate; a context is costly, so it is kept.
my %context;

sub with {
    my ($name) = @_;
    return { SSL_reuse_ctx => $context{$name} //=
        IO::Socket::SSL::SSL_Context->new(SSL_verify_mode => 0,
            $name ? (SSL_cert_file => "$dir/$name.pem",
                SSL_key_file => "$dir/$name.pem") : ()) };
}

# How each idiom is proved by, and how it is reached: path, options, headers.
my %idiom = (
    basic   => {
        path => '/basic',
        as   => sub { ([ basic($_[0]) ], {}) },
    },
    request => {
        path => '/request',
        as   => sub { ([ Cookie => "session=s-$_[0]" ], {}) },
    },
    cert    => {
        path => '/cert',
        none => { port => $t->port(1), tls => with('') },
        as   => sub { ([], { port => $t->port(1), tls => with($_[0]) }) },
    },
    realm   => {
        path => '/realm',
        none => { port => $t->port(3) },
        host => 'b.test',
        as   => sub { ([ Host => 'b.test', basic($_[0],
            $_[0] eq 'ann' ? 'in-b' : 'hunter') ], { port => $t->port(3) }) },
    },
);

# What can be claimed without proof.
my %claim = (
    authorization => [
        [ basic('ann', 'wrong') ],
        [ basic('ann', '') ],
        [ Authorization => 'Bearer ann' ],
        [ Authorization => 'Basic ' . encode_base64('ann', '') ],
        [ Authorization => 'ann' ],
        [ 'Proxy-Authorization' => (basic('ann'))[1] ],
    ],
    header   => [ [ 'X-User' => 'ann', 'X-Remote-User' => 'ann', User => 'ann',
        'X-Forwarded-User' => 'ann', Remote_User => 'ann', From => 'ann' ] ],
    cookie   => [
        [ Cookie => 'user=ann; remote_user=ann; session=ann; who=ann' ],
        [ Cookie => 'session=s-ann2' ],
    ],
    argument => [
        '?user=ann&remote_user=ann&who=ann&owner=ann&session=s-ann&cn=ann',
    ],
    cert     => [
        [ 'X-SSL-Client-Verify' => 'SUCCESS', 'X-SSL-Client-S-DN' => 'CN=ann',
            'SSL-Client-Cert' => 'x' ],
    ],
);

# Every combination of claims: [headers, query].
sub combinations {
    my @out = ([ [], '' ]);

    for my $kind (sort keys %claim) {
        push @out, map {
            my ($h, $q) = @$_;
            map { ref $_ ? [ [ @$h, @$_ ], $q ] : [ $h, $_ ] } @{ $claim{$kind} }
        } @out;
    }

    return @out;
}

# What somebody tries on a run, as "POST run 401", and the answers.
sub attempts {
    my ($path, $id, $what, $headers, $query, $o) = @_;
    my %way = (
        run    => [ 'POST',   '' ],
        status => [ 'GET',    "/runs/$id" ],
        end    => [ 'DELETE', "/runs/$id" ],
        cancel => [ 'POST',   "/runs/$id/cancel" ],
    );
    my @out;

    for my $name (@$what) {
        my ($method, $tail) = @{ $way{$name} };

        # without a thread of its own it would join any
        my @run = $name eq 'run' ? (\@json, encode_json(run_input(
            runId => $id, threadId => undef))) : ([]);
        my $s = $t->open_stream($method, "$path$tail$query",
            [ @$headers, @{ $run[0] } ], $run[1], $o);
        my $is = $s->read_head(10) // '-';

        if ($name eq 'run' && $is == 200) {
            $s->read_event(5);
            $is = $s->header('x-agent-attached') ? 'attached' : 'new';

        } else {
            $s->finish(5);
        }

        push @out, { is => "$name $is", answer => $s };
        $s->close;
    }

    return @out;
}

subtest 'forged identities' => sub {
    my @combinations = combinations();
    cmp_ok(scalar @combinations, '>=', 160, @combinations . ' combinations');
    my @all = qw(run status end cancel);

    # the control: where the owner is what a header says, the forger gets it
    my $hers = post('/forged', headers => [ 'X-User' => 'ann' ], stream => 1);
    is($hers->read_head(10), 200, 'a careless location');
    my @got = attempts('/forged', $hers->{input}{runId}, \@all,
        [ 'X-User' => 'ann' ], '', {});
    is(join(', ', map { $_->{is} } @got),
        'run attached, status 200, end 202, cancel 204',
        '... the attempts succeed there');
    like($got[0]{answer}{body}, qr/"threadId":"$hers->{input}{threadId}"/,
        '... and show what is hers');
    $hers->close;

    for my $name (sort keys %idiom) {
        my $i = $idiom{$name};
        my $path = $i->{path};
        my ($headers, $o) = $i->{as}->('ann');

        # one that bob asks about, one whose id he uses for a run of his own
        my @hers = map {
            my $s = post($path, headers => $headers, stream => 1, %$o,
                input => { runId => "hers-$name-$_",
                    threadId => "of-ann-$name" });
            $s->read_until('TEXT_MESSAGE_CONTENT', 10);
            $s
        } 1, 2;
        is(join(' ', map { $_->{status} // '-' } @hers), '200 200',
            "$name: ann has two runs");
        my ($asked, $same) = map { $_->{input}{runId} } @hers;
        my @host = $i->{host} ? (Host => $i->{host}) : ();
        my ($proof, $bo) = $i->{as}->('bob');
        my (%count, @bad, @leaks);

        for my $n (0 .. $#combinations) {
            my ($forged, $query) = @{ $combinations[$n] };

            # nobody; and bob, whose proof comes before or behind the claims
            my %try = (
                nobody => [ [ @host, @$forged ], $i->{none} // {} ],
                first  => [ [ @$proof, @$forged ], $bo ],
                last   => [ [ @$forged, @$proof ], $bo ],
            );
            delete $try{last} if "@$forged" !~ /\b(?:Authorization|Cookie)\b/;

            for my $who (sort keys %try) {
                my ($h, $opts) = @{ $try{$who} };
                my @what = $n < 8 || $n % 8 == 0 ? @all : $n % 2 ? 'status'
                    : 'run';

                for my $a (map { attempts($path, $_ eq 'run' ? $same : $asked,
                    [$_], $h, $query, $opts) } @what) {
                    my ($is, $r) = @$a{qw(is answer)};
                    my $fine = $who eq 'nobody' ? qr/ 401$/
                        : $is =~ /^run/ ? qr/ (new|410|400|401)$/
                        : qr/ (404|400|401)$/;
                    $count{ $who eq 'nobody' ? $who : 'bob' }{$is}++;
                    push @bad, "$who: $is with @$forged $query"
                        if $is !~ $fine;
                    push @leaks, "$who: $is with @$forged $query"
                        if "$r->{head}$r->{body}" =~ /of-ann/;
                }
            }
        }

        is(join("\n", splice @bad, 0, 5), '', '... nobody else gets at them');
        is(join("\n", splice @leaks, 0, 5), '', '... or sees her thread');
        ok($count{bob}{'status 404'} && $count{bob}{'run new'},
            '... bob is let in as bob');
        note join ', ', map { my $who = $_; map {
            "$who: $_ x $count{$who}{$_}" } sort keys %{ $count{$who} } }
            sort keys %count;

        for my $s (@hers) {
            my $id = $s->{input}{runId};
            my $r = $t->request('GET', "$path/runs/$id", $headers, undef, $o);
            is($r->json->{status}, 'running', '... it runs on');
            ok(scalar $s->read_until('TEXT_MESSAGE_CONTENT', 5),
                '... and is read');
            is($t->request('DELETE', "$path/runs/$id", $headers, undef, $o)
                ->{status}, 202, '... until she stops it');
            $s->close;
        }
    }
};

subtest 'certificates' => sub {
    my $with = sub { (port => $_[1], tls => with($_[0])) };
    my ($strict, $lax) = map { $t->port($_) } 1, 2;
    my $hers = post('/cert', $with->('ann', $lax), stream => 1);
    $hers->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $path = "/cert/runs/$hers->{input}{runId}";
    my $status = sub { $t->request('GET', $path, [], undef, {@_}) };

    is($status->($with->('ann', $strict))->json->{status}, 'running',
        'ann\'s, of the right CA');
    is(outcome($status->($with->('bob', $lax))), '404 not_found', 'bob\'s');
    is($status->($with->('mallory', $strict))->{status}, 400,
        'ann\'s name, another CA: ssl_verify_client optional');
    is(outcome($status->($with->('mallory', $lax))), '401 unauthorized',
        '... optional_no_ca');
    is(outcome($status->($with->('sly', $lax))), '401 unauthorized',
        'a name that contains hers');
    is(outcome($status->($with->('', $lax))), '401 unauthorized', 'none');
    $hers->close;
};

subtest 'realms' => sub {
    my $port = $t->port(3);
    my $as = sub {
        my ($host, $user, $password) = @_;
        return [ Host => $host, basic($user, $password) ];
    };
    my $s = post('/realm', headers => $as->('a.test', 'ann', 'in-a'),
        port => $port, stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    is($s->{status}, 200, 'ann of one realm');
    my $path = "/realm/runs/$s->{input}{runId}";
    my $status = sub { outcome($t->request('GET', $path, $as->(@_), undef,
        { port => $port })) };
    is($status->('a.test', 'ann', 'in-a'), '200', '... sees her run');
    is($status->('b.test', 'ann', 'in-b'), '404 not_found',
        'ann of the other does not');
    is($status->('a.test', 'ann', 'in-b'), '401',
        'nor with a name of the first as Host');
    is($status->('other.test', 'ann', 'in-b'), '401', '... or any other');
    my ($auth) = (basic('ann', 'in-b'))[1];
    my $got = $t->raw("GET http://a.test$path HTTP/1.1\r\nHost: b.test\r\n"
        . "Authorization: $auth\r\nConnection: close\r\n\r\n", 5,
        { port => $port });
    like($got, qr{\AHTTP/1\.1 401 }, '... or an absolute URI');
    $got = $t->raw("GET http://b.test$path HTTP/1.1\r\nHost: a.test\r\n"
        . "Authorization: $auth\r\nConnection: close\r\n\r\n", 5,
        { port => $port });
    like($got, qr{\AHTTP/1\.1 404 }, '... the other way round, too');
    $s->close;

    # one location in two servers is one place where the owner is the same
    $s = post('/shared', headers => [ Host => 'a.test' ], port => $port,
        stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $r = $t->request('GET', "/shared/runs/$s->{input}{runId}",
        [ Host => 'b.test' ], undef, { port => $port });
    is($r->json->{status}, 'running', 'an owner that both servers share');
    $s->close;
};

subtest 'auth_request' => sub {
    my $as = sub { [ @_ ? (Cookie => "session=$_[0]") : () ] };

    # on one connection the user changes from request to request
    my $s = post('/request', headers => $as->('s-ann'), stream => 1,
        input => { runId => 'ar-1' });
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $c = $t->open_stream('GET', '/request/runs/ar-1', $as->('s-ann'));
    my @got;

    for my $session (undef, 's-bob', 's-ann', 's-nobody', 's-bob', 's-ann', 'x') {
        $c->finish(5);
        push @got, outcome($c);
        $t->open_stream('GET', '/request/runs/ar-1',
            $as->($session // ()), undef, { on => $c });
    }

    $c->finish(5);
    push @got, outcome($c);
    is(join(', ', @got), '200, 401, 404 not_found, 200, 401 unauthorized, '
        . '404 not_found, 200, 401', 'each request has its own owner');
    $_->close for $s, $c;

    # many at the same time
    my @s = map { my $who = $_ % 2 ? 'ann' : 'bob';
        post('/request', headers => $as->("s-$who"), stream => 1,
            input => { runId => 'ar-same', threadId => "ar-$who" })
    } 1 .. 10;
    $_->read_event(10) for @s;
    is(join(' ', map { $_->header('x-agent-thread-id') } @s),
        join(' ', ('ar-ann', 'ar-bob') x 5), 'many at once');
    is(scalar(grep { $_->header('x-agent-attached') } @s), 8,
        '... two runs, the others join');
    $_->close for @s;

    silent('refused', sub {
        is(post('/request')->{status}, 401, 'no session');
        is(outcome(post('/request', headers => $as->('s-nobody'))),
            '401 unauthorized', 'allowed, but nobody');
        is(post('/request-403')->{status}, 403, 'forbidden');
        is(post('/request-500')->{status}, 500, 'the service fails');
        my $r = post('/request-page');
        is($r->{status} . ' ' . $r->header('location'),
            '302 https://login.example/', 'a login page');
    });
};

subtest 'satisfy' => sub {
    silent('refused', sub {
        is(post('/any')->{status}, 401, 'any: no password');
        is(post('/any', headers => [ basic('ann', 'wrong') ])->{status}, 401,
            '... a wrong one');
        is(post('/any/request')->{status}, 401, '... no session');
        is(outcome(post('/any/allowed')), '401 unauthorized',
            'any: the address lets in, but names nobody');
        is(post('/all')->{status}, 401, 'all: no password');
        is(post('/all/denied', headers => [ basic('ann') ])->{status}, 403,
            'all: a password does not help against deny');
        is(post('/all/denied')->{status}, 403, '... nor does none');
    });

    for my $c ([ '/any', [ basic('ann') ] ], [ '/all', [ basic('ann') ] ],
        [ '/any/request', [ Cookie => 'session=s-ann' ] ]) {
        my ($path, $headers) = @$c;
        my $s = post($path, headers => $headers, stream => 1);
        is($s->read_head(10), 200, "$path: with proof");
        is(outcome($t->request('GET', "$path/runs/$s->{input}{runId}",
            $headers)), '200', '... her run');
        $s->close;
    }
};

subtest 'allow, deny, internal' => sub {
    good('/allow', 'allow');
    silent('refused', sub {
        is(post('/deny')->{status}, 403, 'deny');
        is($t->request($_, '/deny/runs/x')->{status}, 403, "deny: $_")
            for qw(GET DELETE);
        is(post('/inside')->{status}, 404, 'internal');
        is($t->request('GET', '/inside/capabilities')->{status}, 404,
            '... below it');

        # the body of a refused request does not become the next one
        my $body = "GET /deny HTTP/1.1\r\nHost: x\r\n\r\n" x 20;
        my $got = $t->raw("POST /deny HTTP/1.1\r\nHost: x\r\nContent-Length: "
            . length($body) . "\r\n\r\n$body"
            . "GET /inside HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        is(join(' ', $got =~ m{^HTTP/1.1 (\d+)}mg), '403 404',
            'a refused body is skipped');
    });
    good('/to-inside', 'internal: by a rewrite');
    is($t->request('GET', '/to-inside/capabilities')->json->{identity}{name},
        'ok', '... below it');
    good('/take-over', 'X-Accel-Redirect to a named location');
    is($t->request('GET', '/take-over-uri')->json->{identity}{name}, 'ok',
        'X-Accel-Redirect to a path');
};

subtest 'limit_req' => sub {
    good('/minute', 'the first');
    silent('refused', sub {
        is(post('/minute')->{status}, 503, 'the second');
        is(post('/minute-429')->{status}, 429, 'limit_req_status');
        is($t->request('GET', '/minute/capabilities')->{status}, 503,
            'other requests count, too');
    });
    good('/by-agent/ok', 'by $agent_name');
    is(post('/by-agent/ok')->{status}, 503, '... the second');
    is(post('/by-agent/usage')->{status}, 200, '... another agent');
};

subtest 'limit_conn' => sub {
    my $s = post('/conn', stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    is(post('/conn')->{status}, 503, 'a second stream');
    is($t->request('GET', '/conn/capabilities')->{status}, 503,
        '... a second request');
    good('/ok', '... elsewhere');
    ok($s->finish(10), 'the first goes on');
    check_run($s->events, text => join ' ', map {"w$_"} 1 .. 15);
    is($t->request('GET', '/conn/capabilities')->{status}, 200,
        'at its end the place is free');
    $s->close;

    # by a key; whoever leaves makes place, whichever way
    my @key = (headers => [ 'X-Key' => 'k' ]);
    my $c = AgentClient->http2($t, port => $t->port(5));

    for my $how (qw(close reset cancel finish)) {
        my @s = map { post('/conn-key', @key, stream => 1) } 1, 2;
        $_->read_until('TEXT_MESSAGE_CONTENT', 10) for @s;
        is(post('/conn-key', @key)->{status}, 503, "$how: the third");
        my $third = $c->run({}, '/conn-key', headers => [ 'x-key' => 'k' ]);
        $third->finish(5);
        is($third->{status}, 503, '... by HTTP/2');

        if ($how =~ /cancel|finish/) {
            $t->request('DELETE', "/conn-key/runs/$s[0]{input}{runId}");
            $s[0]->finish(5);

        } else {
            $s[0]->$how;
        }

        my $again;
        ok($t->wait_for(sub {
            $again = post('/conn-key', @key, stream => 1);
            return 1 if $again->read_head(5) == 200;
            $again->close;
            return 0;
        }, 3), '... its place is free') ;
        $_->close for @s, $again;
        ok($t->wait_for(sub { $t->request('GET', '/conn-key/capabilities',
            [ 'X-Key' => 'k' ])->{status} == 200 }, 3), '... and the others');
    }

    my @h2 = map { $c->run({}, '/conn-key', headers => [ 'x-key' => 'h2' ]) }
        1 .. 3;
    $c->wait(0.3);
    is(join(' ', map { $_->{status} // '-' } @h2), '200 200 503',
        'streams of one HTTP/2 connection count');
    $h2[0]->cancel;
    $c->wait(0.2);
    my $more = $c->run({}, '/conn-key', headers => [ 'x-key' => 'h2' ]);
    is($more->read_head(5), 200, '... one that is reset makes place');
    $c->close;
};

subtest 'error_page' => sub {
    my $r = post('/page/on');
    is("$r->{status} $r->{body}", "502 sorry\n", 'agent_intercept_errors on');
    $r = post('/page/off');
    is(outcome($r), '502 upstream_error', 'off');
    $r = post('/page/nginx');
    is("$r->{status} $r->{body}", "401 sorry\n", 'nginx\'s own 401: off');
    good('/page/nginx', '... with a password', headers => [ basic('ann') ]);
    good('/page/chain', 'three agents, each the page of the one before');
    $r = $t->request('GET', '/page/loop/nothing');
    is($r->json->{identity}{name}, 'ok', 'a page that is another route');
    $r = $t->request('PUT', '/page/loop', \@json, '{}');
    is($r->json->{identity}{name}, 'ok', '... whose method becomes GET')
        or diag $r->{body};
    $r = post('/page/late');
    check_run($r->events, code => 'upstream_truncated', text => 'Hello, ',
        name => 'too late for a page');
    $r = post('/small');
    is("$r->{status} $r->{body}", "413 too much\n", 'a page for 413');
};

subtest 'rewriting' => sub {
    is($t->request('OPTIONS', '/if')->{status}, 204, 'if: return 204');
    my $r = post('/if', headers => [ 'X-Block' => 1 ]);
    is("$r->{status} $r->{body}", "403 blocked\n", 'if: return 403');
    $r = post('/if', headers => [ 'X-Header' => 1 ]);
    is($r->header('x-in-if'), 'yes', 'if: add_header');
    check_run($r->events, text => 'Hello, world!', name => '... the run');
    $r = post('/if', headers => [ 'X-Agent' => 'usage' ]);
    is(check_run($r->events)->{usage}[0]{totalTokens}, 140, 'if: agent_pass');
    is($t->request('GET', '/if/capabilities', [ 'X-Agent' => 'usage' ])
        ->json->{identity}{name}, 'usage', '... its capabilities');

    good('/except', 'limit_except');
    is($t->request('GET', '/except/capabilities')->{status}, 403,
        '... others are denied');
    is($t->request('GET', '/except-auth/capabilities')->{status}, 200,
        'limit_except with auth_basic: GET');
    is(post('/except-auth')->{status}, 401, '... POST');
    good('/except-auth', '... with a password', headers => [ basic('ann') ]);

    good('/v1/ok', 'rewrite last');
    is($t->request('GET', '/v1/ok/capabilities')->json->{identity}{name}, 'ok',
        '... below it');
    is(outcome(post('/broken-off')), '404 not_found',
        'rewrite break to a path outside of the location');
    $r = post('/moved');
    is("$r->{status} " . ($r->header('location') =~ s/.*(\/)/$1/r), '308 /ok',
        'return 308');
    good($_, $_) for '/users/ann/chat', '/x.php/agent', '/X.HTML/agent';
    good('/tries/nothing', 'try_files: a named location');
    good('/tries/uri/x', 'try_files: a path');
    is(outcome(post('/tries/404')), '404', 'try_files =404');
    is($t->request('GET', '/tries/../here.txt')->{body}, "a file\n",
        'a file beside them');
    good('/index/', 'index and autoindex');
    good('/alias', 'alias');
    is($t->request('GET', '/alias/here.txt')->{status}, 404,
        '... serves no files');

    my $server = sub {
        my ($port, @h) = @_;
        my $r = post('/ok', port => $t->port($port), headers => \@h);
        return $r->{status} . ' ' . ($r->{body} =~ /RUN_FINISHED/ ? 'a run'
            : $r->{body} =~ s/\n//r);
    };
    silent('closed', sub {
        is($server->(4), '503 closed', 'return in the server');
        is($server->(6), '503 closed', 'if in the server');
    });
    is($server->(6, 'X-Open' => 1), '200 a run', '... open');
    $r = $t->request('GET', '/old/capabilities', [ 'X-Open' => 1 ], undef,
        { port => $t->port(6) });
    is($r->json->{identity}{name}, 'ok', 'rewrite in the server');
};

subtest 'nested locations' => sub {
    good('/outer', 'the outer one');
    my $r = post('/outer/inner');
    is(check_run($r->events)->{usage}[0]{totalTokens}, 140, 'the inner one');
    is(outcome($t->request('GET', '/outer/inner/runs/' . $r->{input}{runId})),
        '200', '... its run');
    is(outcome($t->request('GET', '/outer/runs/' . $r->{input}{runId})),
        '404 not_found', '... which is not the outer one\'s');
    is($t->request('GET', "/outer$_->[0]/capabilities")->json->{identity}{name},
        $_->[1], "/outer$_->[0]")
        for [ '', 'ok' ], [ '/inner', 'usage' ];
    is(outcome(post('/outer/else')), '404 not_found', 'nothing else');
    $r = post('/outer/re/x');
    check_run($r->events, text => join(' ', map {"w$_"} 1 .. 15),
        name => 'a regex inside');
    is($t->request('GET', '/outer/runs/x')->{status}, 403,
        'a location over one of its routes');
};

subtest 'subrequests' => sub {
    silent('all', sub {
        my $r = $t->request('GET', '/ssi.html');
        like($r->{body}, qr/\A\[.*404.*\|.*404.*\]\z/s, 'ssi');
        unlike($r->{body}, qr/identity/, '... shows nothing');
        is($t->request('GET', '/sub/auth')->{status}, 500, 'auth_request');
        is(post('/sub/auth-run')->{status}, 500, '... of a run');
        is(post('/sub/mirror-static')->{status}, 401, 'mirror');
        $r = $t->request('GET', '/sub/added');
        is($r->{status}, 200, 'addition');
        like($r->{body}, qr/^plain$/m, '... the file');
        unlike($r->{body}, qr/identity|RUN_/, '... and nothing of agents');
    });

    $u->forget;
    my $r = post('/sub/mirror');
    is(check_run($r->events)->{usage}[0]{totalTokens}, 140,
        'an agent that is mirrored to agents');
    is(scalar($u->requests), 1, '... runs once');
    my $line;
    $t->wait_for(sub { ($line) = $t->_slurp('agent.log')
        =~ m{^/sub/mirror\|(.*)}m }, 5);
    is($line, "200|$r->{input}{runId}|usage|finished|stop",
        '... and has its own variables');
};

subtest 'headers' => sub {
    my $r = post('/headers');
    check_run($r->events, text => 'Hello, world!');
    is($r->header('x-sometimes'), 'yes', 'add_header on a stream');
    is($r->header('x-always'), "ok-$r->{input}{runId}", '... with variables');
    is(join(', ', @{ $r->{headers}{'content-type'} }), 'text/event-stream',
        '... one type');
    $r = post('/headers', accept => 'application/json');
    is($r->header('x-sometimes'), 'yes', '... on a JSON answer');

    $r = post('/headers/fail');
    is(outcome($r), '502 upstream_error', 'an error');
    is($r->header('x-sometimes'), undef, '... without what is for success');
    is($r->header('x-always'), "fail-$r->{input}{runId}", '... with always');
    $r = $t->request('GET', '/headers/fail/runs/none');
    is($r->header('x-sometimes'), undef, 'a 404');
    like($r->header('x-always') // '', qr/^fail-/, '... with always');

    my $s = $t->open_stream('POST', '/headers/trailer', [ @json,
        TE => 'trailers' ], encode_json(run_input()));
    $s->{raw} = 1;
    my $end = time + 2;
    1 while $s->_fill($end);
    like($s->{in}, qr/"RUN_FINISHED"[^\n]*\n\n\r\n0\r\nX-End: the end\r\n\r\n\z/,
        'add_trailer');
    $s->close;
};

subtest 'nginx in front' => sub {
    for my $way (qw(front cached)) {
        my $s = post("/$way/words", stream => 1);
        $s->finish(10);
        check_run($s->events, text => join(' ', map {"w$_"} 1 .. 15),
            name => "$way: a run");
        my %at = map { (int($_->[0] * 20) => 1) } @{ $s->{chunks} };
        cmp_ok(scalar keys %at, '>=', 5, '... events come one by one');
        $s->close;
        is(outcome(post("/$way/page/off")), '502 upstream_error',
            '... an error');
    }

    $u->forget;
    my @r = map { $t->request('GET', '/cached/ok/capabilities') } 1, 2;
    is(join(' ', map { $_->header('x-cache') } @r), 'MISS MISS',
        'a cache keeps no capabilities');
    @r = map { post('/cached/ok') } 1, 2;
    is(join(' ', map { $_->header('x-cache') } @r), 'MISS MISS', '... no runs');
    is(scalar($u->requests), 2, '... each is a run');
    @r = map { post('/cached/ok', accept => 'application/json') } 1, 2;
    is(join(' ', map { $_->header('x-cache') } @r), 'MISS MISS',
        '... no JSON answers');
    @r = map { $t->request('GET', '/cached/ok/runs/none') } 1, 2;
    is(join(' ', map { $_->header('x-cache') } @r), 'MISS MISS',
        '... no errors');

    my $s = post('/front/conn-key', stream => 1, headers => [ 'X-Key' => 'f' ]);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    my $id = $s->{input}{runId};
    $s->close;
    ok($t->wait_for(sub { ($t->request('GET', "/conn-key/runs/$id")
        ->json->{status} // '') eq 'cancelled' }, 3),
        'who leaves the nginx in front leaves the run');
};

# --- browsers -----------------------------------------------------------------

my $app = 'https://app.example.com';

# What fetch() of a page does: asks first unless the request is a simple one,
# and shows the page only what it may see.  Returns the stream with "seen", or a
# text, why the page got nothing; "sent" counts what reached the server.
my %sent;

sub fetch {
    my ($origin, $method, $path, %o) = @_;
    my %h = %{ $o{headers} // {} };
    my $type = $h{'Content-Type'} // '';
    my @names = sort map { lc } grep {
        !/^(accept|accept-language)$/i
            && !(/^content-type$/i && $type =~ m{^(text/plain|multipart/form-data
                |application/x-www-form-urlencoded)}x)
    } keys %h;
    my $simple = $method =~ /^(GET|HEAD|POST)$/ && !@names;

    if (!$simple) {
        $sent{preflight}++;
        my $p = $t->request('OPTIONS', $path, [
            Origin                          => $origin,
            'Access-Control-Request-Method' => $method,
            @names ? ('Access-Control-Request-Headers' => join ',', @names) : (),
        ]);
        return "preflight $p->{status}" if $p->{status} !~ /^2/;
        my $may = may_see($p, $origin);
        return "preflight: $may" if $may;
        my %methods = map { ($_ => 1) } split /\s*,\s*/,
            $p->header('access-control-allow-methods') // '';
        return "preflight: no $method"
            if !$methods{$method} && $method !~ /^(GET|HEAD|POST)$/;
        my %headers = map { (lc $_ => 1) } split /\s*,\s*/,
            $p->header('access-control-allow-headers') // '';
        my @not = grep { !$headers{$_} } @names;
        return "preflight: no @not" if @not;
    }

    $sent{request}++;
    my $s = $t->open_stream($method, $path, [ Origin => $origin,
        'Sec-Fetch-Site' => 'cross-site', %h,
        $o{cookie} ? (Cookie => $o{cookie}) : () ], $o{body});
    $s->read_head(10);
    my $may = may_see($s, $origin);

    if ($may) {
        $s->finish(5);
        $s->close;
        return "$s->{status}: $may";
    }

    my %shown = map { (lc $_ => 1) } split /\s*,\s*/,
        $s->header('access-control-expose-headers') // '';
    $s->{seen}{$_} = $s->header($_) for grep { $shown{$_} }
        keys %{ $s->{headers} };

    return $s;
}

# undef, or why a page of that origin, with credentials, may not see this.
sub may_see {
    my ($r, $origin) = @_;
    my $allow = $r->{headers}{'access-control-allow-origin'} // [];
    return 'no Allow-Origin' if !@$allow;
    return "several Allow-Origin" if @$allow > 1;
    return "Allow-Origin $allow->[0]" if $allow->[0] ne $origin;
    return 'no Allow-Credentials'
        if ($r->header('access-control-allow-credentials') // '') ne 'true';
    return undef;
}

subtest 'a page of another origin' => sub {
    for my $c ([ '/app/basic', { basic('ann') }, undef ],
        [ '/app/request', {}, 'session=s-ann' ]) {
        my ($path, $proof, $cookie) = @$c;
        my %run = (
            headers => { 'Content-Type' => 'application/json',
                Accept => 'text/event-stream', %$proof },
            cookie  => $cookie,
            body    => encode_json(run_input()),
        );
        my %plain = (headers => $proof, cookie => $cookie);

        my $s = fetch($app, 'POST', $path, %run);
        ok(ref $s, "$path: a run") or diag($s), next;
        is($s->{status}, 200, '... status');
        my $id = $s->{seen}{'x-agent-run-id'};
        ok($id, '... its id can be seen');
        my @e = $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        is($e[-1]{data}{delta}, 'w1', '... and its events');
        my $r = fetch($app, 'GET', "$path/runs/$id", %plain);
        $r->finish(5);
        is($r->json->{status}, 'running', '... its status');
        $r = fetch($app, 'DELETE', "$path/runs/$id", %plain);
        is($r->{status}, 202, '... its end');
        $s->finish(5);
        check_run($s->events, outcome => 'cancelled', name => '... it ends');
        $s->close;

        # what nginx says is seen, too
        $r = fetch($app, 'POST', $path, %run,
            headers => { 'Content-Type' => 'application/json' },
            cookie => undef);
        is(ref $r ? $r->{status} : $r, 401, '... a refusal can be read');

        # the same from a page that is not listed
        %sent = ();
        $u->forget;
        my $evil = 'https://evil.example';
        is(fetch($evil, 'POST', $path, %run), 'preflight: no Allow-Origin',
            '... another page: no run');
        is(fetch($evil, 'DELETE', "$path/runs/$id", %plain),
            'preflight: no Allow-Origin', '... no end');
        is($sent{request}, undef, '... nothing was sent');

        # what needs no preflight is sent with her cookie, and refused
        is(fetch($evil, 'POST', $path, %run, headers =>
            { 'Content-Type' => 'text/plain', %$proof }),
            %$proof ? 'preflight: no Allow-Origin' : '403: no Allow-Origin',
            '... no simple request');
        is(fetch($evil, 'POST', "$path/runs/$id/cancel", cookie => $cookie),
            ($cookie ? 403 : 401) . ': no Allow-Origin', '... no cancel');
        is(fetch($evil, 'GET', "$path/runs/$id", cookie => $cookie),
            ($cookie ? 200 : 401) . ': no Allow-Origin',
            '... what it gets it cannot read');
        is(scalar($u->requests), 0, '... no model is called');
    }
};

$t->done;
