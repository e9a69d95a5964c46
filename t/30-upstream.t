#!/usr/bin/perl

# Trouble with a model: every kind of it is an HTTP status with a JSON error
# while the response head has not left, RUN_ERROR with the same code after, and
# in both cases the only end of the run.  The key is nowhere to be seen.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Test::More;
use Time::HiRes qw(sleep);

my %key = (
    file => 'sk-canary-from-file-8d1f7c2a',
    env  => 'sk-canary-from-env-5b90e3d4',
    head => 'canary-in-a-header-77c1aa09',
);
$ENV{AGENT_TEST_KEY}    = $key{env};
$ENV{AGENT_TEST_HEADER} = $key{head};

my $t = AgentTest->new;
$t->write_file('key', "$key{file}\n", 0600);

# Before any content.  Three requests for each: a stream; a stream whose model
# waits until the head has left ("late"); a JSON answer from that one.
#
#     script or url, status, code, and what else the model's block says
my @early = (
    [ 'reset,at=first',    502, 'upstream_truncated' ],
    [ 'reset,at=head',     502, 'upstream_truncated' ],
    [ 'reset,at=role',     502, 'upstream_truncated' ],
    [ 'cut,at=head',       502, 'upstream_truncated' ],
    [ 'cut,at=role',       502, 'upstream_truncated' ],
    [ 'truncate,at=first', 502, 'upstream_truncated' ],
    [ 'truncate,at=head',  502, 'upstream_truncated' ],
    [ 'truncate,at=role',  502, 'upstream_truncated' ],
    [ 'truncate,at=role,frame=close',  502, 'upstream_truncated' ],
    [ 'truncate,at=role,frame=length', 502, 'upstream_truncated' ],
    [ 'empty',                502, 'upstream_truncated' ],
    [ 'empty,frame=length',   502, 'upstream_truncated' ],
    [ 'comments',             502, 'upstream_truncated' ],
    [ 'status,code=400',      502, 'upstream_rejected' ],
    [ 'status,code=401',      502, 'upstream_auth' ],
    [ 'status,code=401,body=key',   502, 'upstream_auth' ],
    [ 'status,code=401,body=empty', 502, 'upstream_auth' ],
    [ 'status,code=403',      502, 'upstream_auth' ],
    [ 'status,code=404',      502, 'upstream_rejected' ],
    [ 'status,code=404,body=html',  502, 'upstream_rejected' ],
    [ 'status,code=422',      502, 'upstream_rejected' ],
    [ 'status,code=429,retry=7',       429, 'upstream_rate_limited', 7 ],
    [ 'status,code=429,retry_ms=1500', 429, 'upstream_rate_limited', 2 ],
    [ 'status,code=429',      429, 'upstream_rate_limited', qr/^\d+$/ ],
    [ 'status,code=429,body=quota', 503, 'upstream_quota', qr/^\d+$/ ],
    [ 'status,code=500',      502, 'upstream_error' ],
    [ 'status,code=500,body=empty', 502, 'upstream_error' ],
    [ 'status,code=500,body=text',  502, 'upstream_error' ],
    [ 'status,code=502,body=html',  502, 'upstream_error' ],
    [ 'status,code=503',      503, 'upstream_overloaded', qr/^\d+$/ ],
    [ 'status,code=529',      503, 'upstream_overloaded', qr/^\d+$/ ],
    [ 'html',                 502, 'upstream_error' ],
    [ 'status,code=200',      502, 'upstream_error' ],
    [ 'status,code=200,body=text',  502, 'upstream_error' ],
    [ 'error200,at=role',     502, 'upstream_error' ],
    [ script('status', code => 302, location => 'http://127.0.0.1:1/moved'),
        502, 'upstream_error' ],
    [ script('status', code => 307, location => '/ok/v1/chat/completions'),
        502, 'upstream_error' ],
);

# After content: the head has left, it can only be RUN_ERROR; a JSON answer has
# its status all the same.
my @mid = map {
    my $at = $_;
    ([ "reset,at=$at", 502, 'upstream_truncated' ],
        [ "cut,at=$at", 502, 'upstream_truncated' ],
        [ "cut,at=$at,frame=length", 502, 'upstream_truncated' ],
        map { [ "truncate,at=$at,frame=$_", 502, 'upstream_truncated' ] }
            qw(chunked close length))
} qw(content mid args);
push @mid, [ 'error200,at=content', 502, 'upstream_error' ];
push @mid, map {
    [ "hang,at=$_", 504, 'upstream_timeout', undef, 'idle_timeout 1500ms;' ]
} qw(content mid args);

# Time-outs before content: quick ones, and ones after the head has left.
my $hang = 'http://127.0.0.1:%%HANG%%/v1';
my @time = (
    [ $hang,            'connect_timeout 500ms;',    'connect_timeout 2s;' ],
    [ 'hang,at=first',  'first_byte_timeout 500ms;', 'first_byte_timeout 2s;' ],
    [ 'hang,at=head',
        'first_byte_timeout 500ms; idle_timeout 500ms;',
        'first_byte_timeout 2s; idle_timeout 2s;' ],
    [ 'hang,at=role',   'idle_timeout 500ms;',       'idle_timeout 2s;' ],
);

# All is well after all.
my @fine = ('json', 'json,frame=chunked', 'truncate,at=finish',
    'truncate,at=finish,frame=close', 'cut,at=finish', 'reset,at=finish',
    'ok,eol=crlf', 'ok,eol=cr', 'ok,frame=close', 'ok,frame=length');

# --- the configuration --------------------------------------------------------

my (@blocks, %row);
my $n = 0;

sub agent {
    my ($target, $model) = @_;
    my $name = 'a' . ++$n;
    my $keys = $n % 2 ? 'key file:%%DIR%%/key;' : 'key env:AGENT_TEST_KEY;';
    push @blocks, $name, {
        ($target =~ m{^https?://} ? 'url' : 'script') => $target,
        model => "$keys header X-Secret env:AGENT_TEST_HEADER; $model",
    };
    return "/$name";
}

for my $r (@early) {
    push @$r, '' while @$r < 5;
    $row{quick}{ $r->[0] } = agent($r->[0], $r->[4]);
    $row{late}{ $r->[0] } = agent("$r->[0],wait=2", $r->[4]);
}

$row{mid}{ $_->[0] } = agent($_->[0], $_->[4] // '') for @mid;
$row{fine}{$_} = agent($_, '') for @fine;
for my $r (@time) {
    $row{quick}{ $r->[0] } = agent($r->[0], $r->[1]);
    $row{late}{ $r->[0] } = agent($r->[0], $r->[2]);
}

my $refused = agent('http://127.0.0.1:%%PORT9%%/v1', '');

my $ca = 'ssl_trusted_certificate %%CA%%;';
my $url = sub { "https://model.test:%%TLS_$_[0]%%/ok/v1" };
my %tls = (
    good     => agent($url->('GOOD'),    $ca),
    wrong    => agent($url->('WRONG'),   $ca),
    expired  => agent($url->('EXPIRED'), $ca),
    unknown  => agent($url->('GOOD'),    ''),
    plain    => agent('https://127.0.0.1:%%UPSTREAM%%/ok/v1', $ca),
    careless => agent($url->('WRONG'),   'ssl_verify off;'),
);
my $named   = agent('http://model.test:%%UPSTREAM%%/ok/v1', '');
my $unnamed = agent('http://no.test:%%UPSTREAM%%/ok/v1', '');
my $lost    = agent('http://slow.test:%%UPSTREAM%%/ok/v1', '');

my ($http, $locations) = agent_blocks(@blocks);
$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 1024; }
http {
    %%GLOBALS_HTTP%%
    resolver 127.0.0.1:%%DNS%% ipv6=off;
    resolver_timeout 800ms;
    log_format agent '\$uri \$status \$agent_status \$agent_finish_reason';
    access_log %%DIR%%/agent.log agent;

$http
    server {
        listen 127.0.0.1:%%PORT%%;
$locations
    }
}
CONF

my $u = $t->upstream;
$u->dns('model.test' => '127.0.0.1', 'no.test' => 'nxdomain',
    'slow.test' => 'timeout');
$t->start;

my $seen = '';

# What came back, kept for the search for keys at the end.
sub seen {
    my ($r) = @_;
    $seen .= ($r->{head} // '') . ($r->{body} // '');
    return $r;
}

sub post {
    my ($path, %o) = @_;
    return $t->post_run({}, path => $path, stream => 1, %o);
}

# A failure as HTTP status and JSON.
sub check_status {
    my ($r, $status, $code, $retry, $name) = @_;
    seen($r);
    my $e = $r->json->{error} // {};
    is(($r->{status} // 'nothing') . ' ' . ($e->{code} // $r->{body}),
        "$status $code", $name);
    like($r->header('content-type') // '', qr{^application/json}, '... JSON');
    like($e->{message} // '', qr/\A[^\0-\x1f\x7f]+\z/, '... message');
    my $after = $r->header('retry-after');

    if (ref $retry) {
        like($after // '', $retry, '... Retry-After');

    } else {
        is($after, $retry || undef, '... Retry-After');
    }
}

# --- the rows -----------------------------------------------------------------

# All requests of a table wait at the same time.
my %open;
for my $kind (qw(quick late)) {
    for my $r (@early, @time) {
        $open{$kind}{ $r->[0] } = post($row{$kind}{ $r->[0] });
    }
}
$open{json}{ $_->[0] } =
    post($row{late}{ $_->[0] }, accept => 'application/json')
    for @early, @time;

subtest 'before the head' => sub {
    for my $r (@early) {
        my $s = $open{quick}{ $r->[0] };
        $s->finish(15);
        check_status($s, @$r[ 1, 2, 3 ], $r->[0]);
    }
};

subtest 'after the head' => sub {
    for my $r (@early) {
        my $s = $open{late}{ $r->[0] };
        $s->finish(15);
        seen($s);
        is($s->{status}, 200, "$r->[0]: the head left in time");
        my $run = check_run($s->events, code => $r->[2], text => '',
            name => '... and RUN_ERROR');
        is_deeply($run->{types}, [qw(RUN_STARTED RUN_ERROR)], '... only that');
    }
};

subtest 'a JSON answer, late' => sub {
    for my $r (@early) {
        my $s = $open{json}{ $r->[0] };
        $s->finish(15);
        check_status($s, @$r[ 1, 2, 3 ], $r->[0]);
    }
};

subtest 'time-outs' => sub {
    for my $r (@time) {
        my $s = $open{quick}{ $r->[0] };
        $s->finish(15);
        check_status($s, 504, 'upstream_timeout', undef, $r->[0]);
        $s = $open{late}{ $r->[0] };
        $s->finish(15);
        seen($s);
        check_run($s->events, code => 'upstream_timeout', name => '... late');
        $s = $open{json}{ $r->[0] };
        $s->finish(15);
        check_status($s, 504, 'upstream_timeout', undef, '... late, as JSON');
    }
};

subtest 'after content' => sub {
    my %s = map { ($_->[0] => [
        post($row{mid}{ $_->[0] }),
        post($row{mid}{ $_->[0] }, accept => 'application/json')
    ]) } @mid;

    for my $r (@mid) {
        my ($stream, $json) = @{ $s{ $r->[0] } };
        $stream->finish(15);
        seen($stream);
        is($stream->{status}, 200, $r->[0]);
        ok($stream->{complete}, '... the body ends as it should');
        check_run($stream->events, code => $r->[2], text => 'Hello, ',
            name => '... text, then RUN_ERROR');
        $json->finish(15);
        check_status($json, $r->[1], $r->[2], undef, '... as JSON');
    }
};

subtest 'no trouble' => sub {
    my %s = map { ($_ => post($row{fine}{$_})) } @fine;

    for my $script (@fine) {
        $s{$script}->finish(15);
        seen($s{$script});
        my $text = $script =~ /at=finish/ ? 'Hello, ' : 'Hello, world!';
        check_run($s{$script}->events, text => $text, finish => 'stop',
            name => $script);
    }
};

# Not again after content, and not to where a redirect points.
subtest 'model calls' => sub {
    for my $r (grep { $_->[0] =~ /location/ } @early) {
        $u->forget;
        $t->post_run({}, path => $row{quick}{ $r->[0] });
        is_deeply([ map { $_->{script} } $u->requests ], ['status'],
            "a redirect is not followed: $r->[0]");
    }

    $u->forget;
    $t->post_run({}, path => $row{mid}{'reset,at=content'});
    is(scalar($u->requests), 1, 'one call, when it broke after content');
};

subtest 'a refused connection' => sub {
    my $s = post($refused);
    $s->finish(15);
    check_status($s, 502, 'upstream_unreachable', undef, 'refused');
};

subtest 'TLS' => sub {
    my $r = seen($t->post_run({}, path => $tls{good}));
    check_run($r->events, text => 'Hello, world!', name => 'the right name');
    $r = seen($t->post_run({}, path => $tls{careless}));
    check_run($r->events, text => 'Hello, world!', name => 'ssl_verify off');

    for my $kind (qw(wrong expired unknown plain)) {
        my $s = post($tls{$kind});
        $s->finish(15);
        check_status($s, 502, 'upstream_tls', undef, $kind);
    }
};

subtest 'names' => sub {
    my $r = seen($t->post_run({}, path => $named));
    check_run($r->events, text => 'Hello, world!', name => 'a name');
    my $s = post($unnamed);
    $s->finish(15);
    check_status($s, 502, 'upstream_unreachable', undef, 'an unknown name');

    # A lookup that nobody answers holds nothing up, nor does leaving it.
    $s = post($lost);
    my $other = post($lost);
    sleep 0.1;
    $other->close;
    $r = $t->post_run({}, path => $named);
    ok($r->{time} < 0.5, 'another run meanwhile') or diag $r->{time};
    check_run($r->events, text => 'Hello, world!', name => '... is answered');
    $s->finish(15);
    check_status($s, 502, 'upstream_unreachable', undef, 'a lost lookup');
};

subtest 'keys' => sub {
    my %sent;
    $u->forget;
    $u->{pos} = 0;

    for my $r ($u->requests) {
        $sent{ $r->{headers}{authorization} // 'none' }++;
        $sent{ $r->{headers}{'x-secret'} // 'none' }++;
    }

    is_deeply([ sort keys %sent ],
        [ sort "Bearer $key{file}", "Bearer $key{env}", $key{head} ],
        'every call had its key');

    $t->stop;

    for my $where ([ 'a response', $seen ], [ 'the error log', $t->log ],
        map { [ $_, $t->_slurp($_) ] } qw(access.log agent.log stderr.log)) {
        my ($name, $text) = @$where;
        my @found = grep { index($text, $key{$_}) >= 0 } sort keys %key;
        is("@found", '', "no key in $name");
    }

    ok(length($t->log) > 1000 && length($seen) > 10_000,
        'there was something to search');
};

$t->done;
