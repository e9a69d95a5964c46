#!/usr/bin/perl

# How clients speak: HTTP/1.0, keep-alive and pipelining, HTTP/2, TLS; and what
# stands between the events and the socket: filters, limits of speed, Nagle,
# clients that read slowly, not at all, or leave.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentClient;
use AgentTest;
use AgentUpstream;
use Compress::Raw::Zlib;
use Mojo::JSON qw(decode_json encode_json);
use Socket qw(IPPROTO_TCP);
use Test::More;
use Time::HiRes qw(sleep time);

my $scale = $ENV{AGENT_SCALE} || 1;

# flood,delta=N,delay=S: without an end.
sub AgentUpstream::script_flood {
    my ($self, $r, $p) = @_;
    my $text = 'x' x ($p->{delta} // 4096);
    return AgentUpstream::_endless($r, $p,
        sub { return ([ wait => $p->{delay} // 0.004 ], $text) });
}

# a debug log of floods would take longer to read than to write
my $t = AgentTest->new(level => $ENV{AGENT_LOG} || 'info');
my ($http, $locations) = agent_blocks(
    ok      => 'ok',
    words   => 'words,n=20,delay=0.05',
    tiny    => 'words,n=3',
    ms5     => 'words,n=120,delay=0.005',
    endless => 'words,n=100000,delay=0.02',
    slow    => 'words,n=10,delay=0.1,wait=0.5',
    silent  => 'hang,at=first',
    fail    => 'status,code=500',
    cut     => 'cut,at=content',
    big     => 'big,kb=96,delta=400',
    flood   => 'flood,delta=4096,delay=0.004',
);

# with addition and sub_filter where this nginx has them
my $version = `@{[ $t->{nginx} ]} -V 2>&1`;
my %has = map { ($_ => $version =~ /--with-http_${_}_module/ ? 1 : 0) }
    qw(sub addition);

my %filter = (
    gzip     => 'gzip on; gzip_types *; gzip_min_length 0;',
    nodelay  => 'tcp_nodelay off;',
    nochunks => 'chunked_transfer_encoding off;',
    post0    => 'postpone_output 0;',
    post64k  => 'postpone_output 64k;',
    charset  => 'charset utf-8; charset_types *;',
    recode   => 'charset koi8-r; source_charset utf-8; charset_types *;',
    buffers  => 'output_buffers 1 512; sendfile on; tcp_nopush on; aio threads;',
    $has{sub} ? (
        sub      => 'sub_filter_types *; sub_filter_once off;'
            . 'sub_filter w7 SEVEN;',
        subtail  => 'sub_filter_types *; sub_filter_once off;'
            . 'sub_filter "\n\nNEVER" x;',
    ) : (),
    $has{addition} ? (
        before   => 'addition_types *; add_before_body /note.txt;',
        after    => 'addition_types *; add_after_body /note.txt;',
    ) : (),
    ssi      => 'ssi on; ssi_types *;',
    all      => 'gzip on; gzip_types *; gzip_min_length 0; charset utf-8;'
        . 'charset_types *; ssi on; ssi_types *; postpone_output 64k;'
        . ($has{sub} ? 'sub_filter_types *; sub_filter NEVER x;' : ''),
);

my $more = '';
for my $name (sort keys %filter) {
    for my $agent (qw(words slow ms5 big endless silent fail ok)) {
        $more .= "location /$name/$agent { agent_pass $agent; "
            . "agent_owner off; $filter{$name} }\n";
    }
}

$t->write_file('note.txt', ": note\n\n");
$t->upstream(tls => 1);

my $server = <<"EOF";
        agent_heartbeat 5s;
        keepalive_requests 100000;
$locations
$more
        location /rate { agent_pass big; agent_owner off; limit_rate 64k; }
        location /rate/endless {
            agent_pass endless; agent_owner off; limit_rate 1k;
        }
        location /timeout/plain {
            agent_pass flood;
            agent_owner off;
            send_timeout 1s;
        }
        location /timeout/reset {
            agent_pass flood;
            agent_owner off;
            send_timeout 1s;
            reset_timedout_connection on;
        }
        location /timeout/gzip {
            agent_pass flood;
            agent_owner off;
            send_timeout 1s;
            gzip on; gzip_types *; gzip_min_length 0; gzip_comp_level 1;
        }
        location = /note.txt { }
EOF

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 2048; }
http {
    %%GLOBALS_HTTP%%
    map \$request_uri \$tag { ~[?&]tag=(?<x>[\\w-]+) \$x; }
    log_format agent '\$tag|\$server_protocol|\$status|\$request_completion|'
        '\$agent_run_id|\$agent_status|\$agent_finish_reason|\$agent_events|'
        '\$agent_first_token_time|\$body_bytes_sent';
    access_log %%DIR%%/agent.log agent;
    charset_map koi8-r utf-8 { D0 D0BF; }

$http
    server {
        listen 127.0.0.1:%%PORT%%;
        listen 127.0.0.1:%%PORT1%% http2;
        listen 127.0.0.1:%%PORT2%% ssl;
        listen 127.0.0.1:%%PORT3%% ssl http2;
        listen 127.0.0.1:%%PORT4%% sndbuf=4k;
        ssl_certificate %%DIR%%/good.pem;
        ssl_certificate_key %%DIR%%/good.pem;
        http2_max_concurrent_streams 256;
$server
    }
}
CONF

$t->start;
my $u = $t->upstream;
my ($plain, $h2, $tls, $tls_h2, $thin) = map { $t->port($_) } '', 1 .. 4;
my @json = ('Content-Type' => 'application/json');
my $words = join ' ', map {"w$_"} 1 .. 20;

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

# An open stream of a run, read to its first content.
sub begin {
    my ($path, %o) = @_;
    my $s = $t->post_run({}, path => $path, stream => 1, %o);
    $s->read_until('TEXT_MESSAGE_CONTENT', 10) if !$o{blind};
    return $s;
}

sub status_of {
    my ($path, $s) = @_;
    return $t->request('GET', "$path/runs/$s->{input}{runId}")->json->{status}
        // '-';
}

# A run that says something of its own, so that its call can be told.
my $said = 0;
sub unique { return { text => 'This is number ' . ++$said } }

sub called {
    my ($s) = @_;
    my $text = $s->{input}{messages}[0]{content};
    return grep { $_->{json}{messages}[0]{content} eq $text } $u->requests;
}

# Seconds from then to the moment the model server lost the call of a run.
sub closed_after {
    my ($s, $then) = @_;
    my $at;
    $t->wait_for(sub {
        my %conn = map { ($_->{conn} => 1) } called($s);
        ($at) = map { $_->{early} // () } grep { $conn{ $_->{conn} } }
            $u->connections;
        return $at;
    }, 8);
    return defined $at ? $at - $then : undef;
}

# ... and that it was soon.
my $longest = 0;
sub closed_soon {
    my ($s, $then, $name) = @_;
    my $took = closed_after($s, $then);
    $longest = $took if defined $took && $took > $longest;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok(defined $took && $took < 1, $name) or diag $took // 'never';
}

# Nothing more comes on this connection.
sub nothing_follows {
    my ($s, $name, $seconds) = @_;
    my $end = time + ($seconds // 0.2);
    $s->{raw} = 1;
    1 while $s->_fill($end);
    delete $s->{raw};
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    is($s->{in}, '', $name);
}

# In how many tenths of a second something came.
sub tenths {
    my %at = map { (int($_->[0] * 10) => 1) } @_;
    return scalar keys %at;
}

# All answers in these bytes, to the letter of HTTP/1.1: { status, headers, body,
# last (how it ends) }; what is no answer comes as { garbage }.
sub answers {
    my ($bytes) = @_;
    my @r;

    while (length $bytes) {
        my $garbage = { garbage => $bytes };
        $bytes =~ s{\AHTTP/1\.1 (\d{3})[^\r\n]*\r\n((?:[\w-]+: [^\r\n]*\r\n)*)\r\n}{}
            or return (@r, $garbage);
        my %r = (status => $1, body => '', last => 'length');
        my %h;

        for (split /\r\n/, $2) {
            my ($name, $value) = split /: /, $_, 2;
            push @{ $h{ lc $name } }, $value;
        }

        my ($te, $n) = map { $h{$_} ? $h{$_}[0] : undef }
            qw(transfer-encoding content-length);
        return (@r, { garbage => 'two lengths' }) if $te && defined $n;

        if ($r{status} == 204) {
            $r{last} = 'none';
            return (@r, { garbage => '204 with a length' })
                if $te || defined $n;

        } elsif ($te) {
            $r{last} = 'chunk';

            while (1) {
                $bytes =~ s/\A([0-9a-f]+)\r\n// or return (@r, $garbage);
                my $size = hex $1;
                $r{body} .= substr $bytes, 0, $size, '';
                $bytes =~ s/\A\r\n// or return (@r, $garbage);
                last if $size == 0;
            }

        } elsif (defined $n) {
            return (@r, $garbage) if length $bytes < $n;
            $r{body} = substr $bytes, 0, $n, '';

        } else {
            $r{last} = 'close';
            $r{body} = $bytes;
            $bytes = '';
        }

        $r{headers} = \%h;
        push @r, \%r;
    }

    return @r;
}

# The line of a request in the access log, by its tag.
sub logs {
    my ($tag, %want) = @_;
    my @names = qw(tag protocol http done run status finish events first bytes);
    my $line;
    $t->wait_for(sub {
        ($line) = $t->_slurp('agent.log') =~ /^(\Q$tag\E\|.*)$/m;
        return $line;
    });
    my %f;
    @f{@names} = split /\|/, $line // '', -1;
    my @bad = map { "$_ is " . ($f{$_} // 'absent') } grep {
        ref $want{$_} ? ($f{$_} // '') !~ $want{$_}
            : ($f{$_} // '') ne $want{$_}
    } sort keys %want;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok(!@bad, "access log: $tag") or diag(join ', ', @bad);
}

my $seconds = qr/^\d+\.\d{3}$/;

subtest 'HTTP/1.0' => sub {
    my @o = (version => '1.0');
    my $s = begin('/words?tag=v10', @o, blind => 1);
    ok($s->finish(10), 'a stream: ended by the connection');
    is($s->{mode}, 'close', '... not by chunks or a length');
    is($s->{error}, undef, '... closed properly');
    is($s->header('connection'), 'close', '... said so');
    check_run($s->events, text => $words);
    cmp_ok(tenths(@{ $s->{chunks} }), '>=', 5, '... events come one by one');
    $s->close;
    logs('v10', protocol => 'HTTP/1.0', http => 200, done => 'OK',
        status => 'finished', finish => 'stop', first => $seconds,
        events => scalar @{ $s->events }, bytes => length $s->{body});

    $s = $t->post_run({}, path => '/ok', @o, accept => 'application/json');
    is($s->{mode}, 'length', 'a JSON answer has a length');
    is($s->json->{text}, 'Hello, world!', '... and text');

    # keep-alive as far as HTTP/1.0 has it
    my @alive = (headers => [ Connection => 'keep-alive' ]);
    $s = begin('/ok', @o, @alive, accept => 'application/json', blind => 1);
    $s->finish(10);
    is($s->header('connection'), 'keep-alive', 'JSON: keep-alive');
    nothing_follows($s, '... nothing follows');
    $t->post_run({}, path => '/fail', @o, @alive, on => $s, stream => 1);
    $s->finish(10);
    is(outcome($s), '502 upstream_error', '... an error on the connection');
    nothing_follows($s, '... nothing follows');
    $t->open_stream('GET', '/ok/capabilities', [ Connection => 'keep-alive' ],
        undef, { version => '1.0', on => $s });
    $s->finish(10);
    is($s->{status}, 200, '... capabilities on it');
    $t->post_run({}, path => '/tiny', @o, @alive, on => $s, stream => 1);
    ok($s->finish(10), '... a stream on it');
    check_run($s->events, text => 'w1 w2 w3');
    is($s->{mode}, 'close', '... which ends it');
    $s->close;

    $s = $t->request('POST', '/fail?tag=v10-fail', \@json,
        encode_json(run_input()), { version => '1.0' });
    is(outcome($s), '502 upstream_error', 'an error');
    ok($s->{complete}, '... whole');
    logs('v10-fail', http => 502, status => 'error',
        finish => 'upstream_error', bytes => length $s->{body});

    # no Host at all; a body of unknown length is none in HTTP/1.0
    my $body = encode_json(run_input());
    my $got = $t->raw("POST /ok HTTP/1.0\r\nContent-Type: application/json\r\n"
        . 'Content-Length: ' . length($body) . "\r\n\r\n$body", 10);
    like($got, qr{\AHTTP/1\.1 200 .*"RUN_FINISHED"[^\n]*\n\n\z}s, 'no Host');
    $got = $t->raw("POST /ok HTTP/1.0\r\nContent-Type: application/json\r\n"
        . "\r\n$body", 10);
    like($got, qr{\AHTTP/1\.1 400 .*bad_request}s, 'no length: no body');

    my $late = begin('/cut', @o, blind => 1);
    ok($late->finish(10), 'a run that fails late');
    check_run($late->events, code => 'upstream_truncated');
    $late->close;
};

subtest 'keep-alive' => sub {
    my $n = 300 * $scale;
    my $s = begin('/tiny', blind => 1);
    my ($good, @bad) = (0);
    $s->finish(10);

    for my $i (1 .. $n) {
        my $accept = $i % 3 ? 'text/event-stream' : 'application/json';
        $t->post_run({ runId => "ka-$i" }, path => '/tiny', on => $s,
            accept => $accept, stream => 1);
        $s->finish(10);
        my $is = ($s->{status} // '-') . ' ' . ($s->{complete} // '-') . ' '
            . ($s->header('x-agent-run-id') // '-') . " [$s->{in}]";
        push @bad, "$i: $is" if $is ne "200 1 ka-$i []";
        $good++ if $s->{body} =~ ($i % 3 ? qr/"RUN_FINISHED".*\n\n\z/
            : qr/"text":"w1 w2 w3".*\}\n\z/);
    }

    is("@bad", '', "$n runs on one connection");
    is($good, $n, '... all whole');
    nothing_follows($s, '... nothing follows the last');
    $s->close;
};

# A request and what it has to bring.
my $pipelined = 0;

sub pipelined {
    my ($kind) = @_;
    my $id = 'pl-' . ++$pipelined;
    my $post = sub {
        my ($path, $accept, $body) = @_;
        return "POST $path HTTP/1.1\r\nHost: localhost\r\n"
            . "Content-Type: application/json\r\nAccept: $accept\r\n"
            . 'Content-Length: ' . length($body) . "\r\n\r\n$body";
    };
    my $input = sub { encode_json(run_input(runId => $id, @_)) };
    my $line = sub { "$_[0] HTTP/1.1\r\nHost: localhost\r\n\r\n" };
    my $run = sub { 'pl-' . ($pipelined - $_[0]) };
    my $code = sub { qr/\A\{"error":\{"code":"$_[0]".*\}\}\n\z/s };
    my %is = (
        stream => [ $post->('/tiny', 'text/event-stream', $input->()),
            200, 'chunk', qr/\Aid: .*"RUN_STARTED"[^\n]*"\Q$id\E"
                .*"w1".*"\ w3".*"RUN_FINISHED"[^\n]*\n\n\z/sx ],
        json   => [ $post->('/tiny', 'application/json', $input->()),
            200, 'length', qr/\A\{.*"runId":"\Q$id\E".*"w1\ w2\ w3".*\}\n\z/sx ],
        failed => [ $post->('/fail', 'text/event-stream', $input->()),
            502, 'length', $code->('upstream_error') ],
        late   => [ $post->('/cut', 'text/event-stream', $input->()),
            200, 'chunk', qr/"RUN_ERROR".*"upstream_truncated".*\n\n\z/s ],
        bad    => [ $post->('/tiny', '*/*', "{\"n\":\"$id\""),
            400, 'length', $code->('bad_request') ],
        type   => [ $post->('/tiny', '*/*', $id)
                =~ s/application\/json/text\/plain/r,
            415, 'length', $code->('unsupported_media_type') ],
        status => [ $line->("GET /tiny/runs/$id"),
            404, 'length', $code->('not_found') ],
        caps   => [ $line->('GET /words/capabilities'),
            200, 'length', qr/\A\{"identity":\{"name":"words".*\}\n\z/s ],
        method => [ $line->('PUT /tiny'),
            405, 'length', $code->('method_not_allowed') ],
        twice  => [ $post->('/tiny', '*/*', $input->(threadId => 't')),
            200, 'chunk', qr/"RUN_FINISHED".*\n\n\z/s ],
        again  => [ $post->('/tiny', '*/*', encode_json(run_input(
                runId => $run->(1), threadId => 't'))),
            410, 'length', $code->('gone') ],
        known  => [ $line->('GET /tiny/runs/' . $run->(2)),
            200, 'length', qr/"status":"finished".*\}\n\z/s ],
        over   => [ $line->('DELETE /tiny/runs/' . $run->(3)),
            204, 'none', qr/\A\z/ ],
        static => [ $line->('GET /note.txt'), 200, 'length', qr/\A: note\n\n\z/ ],
    );
    my %one;
    @one{qw(request status last body)} = @{ $is{$kind} };

    return { kind => $kind, %one };
}

# The differences between what was asked and these answers.
sub differences {
    my ($asked, @got) = @_;
    my @bad;

    for my $i (0 .. $#got) {
        my ($a, $g) = ($asked->[$i] // last, $got[$i]);

        if (exists $g->{garbage}) {
            push @bad, "answer $i: " . substr $g->{garbage}, 0, 300;
            last;
        }

        push @bad, "$i ($a->{kind}): $g->{status} $g->{last} "
            . substr $g->{body}, 0, 200
            if $g->{status} != $a->{status} || $g->{last} ne $a->{last}
            || $g->{body} !~ $a->{body};
    }

    push @bad, @got . ' answers, not ' . @$asked if @got != @$asked;
    return @bad;
}

subtest 'pipelining' => sub {
    my @kinds = qw(stream json failed late bad type status caps method twice
        again known over static caps stream);
    my %size = (once => 1 << 20, pieces => 777, bytes => 61);

    for my $how (sort keys %size) {
        my @asked = map { pipelined($_) } (@kinds) x ($how eq 'bytes' ? 1 : 4);
        my $bytes = join '', map { $_->{request} } @asked;
        $bytes .= "GET /note.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        my $s = $t->_connect({});
        $s->{raw} = 1;

        for my $piece (unpack "(a$size{$how})*", $bytes) {
            $s->send($piece);
            sleep 0.001 if $how eq 'bytes';
        }

        my $end = time + 20;
        1 while $s->_fill($end);
        $s->close;
        my @got = answers($s->{in});
        my $last = pop @got;
        my @bad = differences(\@asked, @got);
        ok(!@bad, 'answers in order: ' . @asked . " requests at $how")
            or diag(map {"$_\n"} @bad);
        is($last->{body}, ": note\n\n", '... to the last');
        is($s->{error}, undef, '... and closed properly');
    }

    # by TLS
    my @asked = map { pipelined($_) } @kinds;
    my $s = $t->_connect({ tls => {}, port => $tls });
    $s->{raw} = 1;
    $s->send(join '', map { $_->{request} } @asked);
    my $end = time + 10;
    $s->_fill(time + 0.3) while time < $end && differences(\@asked,
        answers($s->{in}));
    my @bad = differences(\@asked, answers($s->{in}));
    ok(!@bad, 'by TLS') or diag(map {"$_\n"} @bad);
    $s->{in} = '';
    nothing_follows($s, '... nothing follows');
    $s->close;

    # requests that wait behind a stream do not hide that their client has gone
    for my $how (qw(close reset shutdown_write)) {
        my $input = run_input(%{ unique() });
        my $body = encode_json($input);
        $s = $t->_connect({});
        $s->{input} = $input;
        $s->send("POST /endless HTTP/1.1\r\nHost: x\r\nContent-Type: "
            . "application/json\r\nContent-Length: " . length($body)
            . "\r\n\r\n$body" . "GET /note.txt HTTP/1.1\r\nHost: x\r\n\r\n" x 50);
        $s->read_until('TEXT_MESSAGE_CONTENT', 10);
        my $then = time;
        $s->$how;
        closed_soon($s, $then, "$how, with requests behind it");
        $s->close if $s->{sock};
    }

    # 100-continue, once and before the answer
    my $body = encode_json(run_input());
    $s = $t->_connect({});
    $s->{raw} = 1;
    $s->send("POST /tiny HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        . "Content-Type: application/json\r\nContent-Length: " . length($body)
        . "\r\n\r\n");
    $s->_fill(time + 5);
    is($s->{in}, "HTTP/1.1 100 Continue\r\n\r\n", 'Expect: 100-continue');
    $s->{in} = '';
    $s->send($body);
    $end = time + 1;
    1 while $s->_fill($end);
    my @got = answers($s->{in});
    is(scalar @got, 1, '... then one answer');
    like($got[0]{body} // '', qr/"RUN_FINISHED".*\n\n\z/s, '... whole');
    $s->close;
};

subtest 'TLS' => sub {
    my %o = (
        'HTTP/1.1' => [ port => $tls, tls => {} ],
        'TLS 1.2'  => [ port => $tls, tls => { SSL_version => 'TLSv1_2' } ],
        'ALPN without h2' => [ port => $tls_h2,
            tls => { SSL_alpn_protocols => ['http/1.1'] } ],
        'HTTP/1.0' => [ port => $tls, tls => {}, version => '1.0' ],
    );
    my %s = map { ($_ => begin('/words', @{ $o{$_} }, blind => 1)) } keys %o;
    AgentClient->read_all(10, values %s);

    for my $name (sort keys %s) {
        ok($s{$name}{complete}, "$name: a stream ends");
        check_run($s{$name}->events, text => $words);
        cmp_ok(tenths(@{ $s{$name}{chunks} }), '>=', 5,
            '... events come one by one');
        $s{$name}->close;
    }

    my $s = begin('/big', port => $tls, tls => {}, blind => 1);
    ok($s->finish(10), 'a large one');
    is(length check_run($s->events)->{text}, 96 * 1024, '... is whole');
    nothing_follows($s, '... nothing follows');
    $t->post_run({}, path => '/ok', on => $s, stream => 1,
        accept => 'application/json');
    $s->finish(10);
    is($s->json->{text}, 'Hello, world!', 'JSON on the same connection');
    $t->post_run({}, path => '/fail?tag=tls', on => $s, stream => 1);
    $s->finish(10);
    is(outcome($s), '502 upstream_error', 'an error');
    nothing_follows($s, '... nothing follows');
    $s->close;
    logs('tls', http => 502, status => 'error', protocol => 'HTTP/1.1');

    my $c = AgentClient->http2($t, port => $tls_h2, tls => {});
    my @s = map { $c->run({}, '/words') } 1 .. 10;
    ok($c->finish(15, @s), 'ten streams of HTTP/2 by TLS');
    check_run($_->events, text => $words, name => '... one of them') for @s;
    is($c->faults, '', '... no faults');
    $c->close;
};

# Pieces of a stream that came some time after the one before.
sub apart {
    my ($s) = @_;
    my @at = map { $_->[0] } @{ $s->{chunks} };
    return scalar grep { $at[$_] - $at[ $_ - 1 ] > 0.002 } 1 .. $#at;
}

subtest 'Nagle' => sub {
    my %s = map { ($_ => $t->_connect({})) } qw(on off);
    $s{tls} = $t->_connect({ port => $tls, tls => {} });

    # the first of a connection, and a later one
    for my $turn ('first', 'second') {
        for my $name (sort keys %s) {
            $t->post_run({}, path => $name eq 'off' ? '/nodelay/ms5' : '/ms5',
                on => $s{$name}, stream => 1);
        }

        while (my @open = grep { !$_->{complete} } values %s) {
            my $r = '';
            vec($r, fileno $_->{sock}, 1) = 1 for @open;
            select $r, undef, undef, 10 or last;

            # acknowledged late (TCP_QUICKACK off), as from far away
            setsockopt $_->{sock}, IPPROTO_TCP, 12, 0 for @open;
            $_->_fill(time) for @open;
        }

        my %n = map { ($_ => apart($s{$_})) } keys %s;
        check_run($_->events, text => join(' ', map {"w$_"} 1 .. 120))
            for values %s;
        cmp_ok($n{on}, '>', 80, "the $turn stream: 5 ms apart arrive apart");
        cmp_ok($n{tls}, '>', 80, '... also by TLS');
        note "of 120 events apart: $n{on}; with tcp_nodelay off: $n{off}";
    }

    $_->close for values %s;
};

# A response's body, gzip undone as it came: [time, text] for each piece.
sub inflated {
    my ($s) = @_;
    my ($z) = Compress::Raw::Zlib::Inflate->new(-WindowBits => WANT_GZIP);
    my @out;

    for my $c (@{ $s->{chunks} }) {
        my $in = $c->[1];
        my $status = $z->inflate($in, my $text);
        push @out, [ $c->[0], $text ];
        last if $status != Z_OK && $status != Z_STREAM_END;
        $s->{inflated_end} = $status == Z_STREAM_END && $in eq '';
    }

    return @out;
}

subtest 'gzip' => sub {
    my @gzip = (headers => [ 'Accept-Encoding' => 'gzip' ]);

    # the same run, read three times
    my $s = begin('/gzip/slow', @gzip, blind => 1);
    my %same = (runId => $s->{input}{runId}, threadId => $s->{input}{threadId});
    my $two = $t->post_run(\%same, path => '/slow', stream => 1);
    my $c = AgentClient->http2($t, port => $h2);
    my $three = $c->run(\%same, '/gzip/slow', @gzip);

    ok(AgentClient->read_all(10, $s, $two, $three), 'the streams end');
    is($s->header('content-encoding'), 'gzip', 'it is compressed');
    is($two->header('content-encoding'), undef, '... the other is not');
    is($three->header('content-encoding'), 'gzip', '... by HTTP/2 it is');

    for my $r ($s, $three) {
        my @pieces = inflated($r);
        ok($r->{inflated_end}, 'the gzip stream ends as it should');
        is(join('', map { $_->[1] } @pieces), $two->{body},
            '... and says the same');
        cmp_ok(tenths(grep { length $_->[1] } @pieces), '>=', 7,
            '... event by event');
        is(scalar(grep { length $_->[1] && $_->[1] !~ /\n\n\z/ } @pieces), 0,
            '... never a half one');
    }

    is($c->faults, '', 'no faults');
    $_->close for $s, $two, $c;

    $s = $t->post_run({}, path => '/gzip/big', @gzip);
    my $text = join '', map { $_->[1] } inflated($s);
    is(length check_run([ $t->sse($text) ])->{text}, 96 * 1024, 'a large one');
    cmp_ok(length $s->{body}, '<', length($text) / 4, '... is smaller');

    # nginx compresses 200, 403 and 404
    $s = $t->request('GET', '/gzip/ok/runs/none', { @{ $gzip[1] } });
    is($s->header('content-encoding'), 'gzip', 'an error');
    like(join('', map { $_->[1] } inflated($s)),
        qr/\A\{.*not_found.*\}\n\z/, '... is whole');
    $s = $t->post_run({}, path => '/gzip/ok', @gzip,
        accept => 'application/json');
    like(join('', map { $_->[1] } inflated($s)), qr/Hello, world!.*\}\n\z/,
        'a JSON answer');

    $s = $t->post_run(unique(), path => '/gzip/endless', @gzip, stream => 1);
    $s->read_head(10);
    sleep 0.3;
    my $then = time;
    $s->reset;
    closed_soon($s, $then, 'its client leaves');
};

subtest 'filters' => sub {
    my @names = grep { $_ ne 'gzip' } sort keys %filter;
    my (%s, %h2);
    my $c = AgentClient->http2($t, port => $h2);

    for my $name (@names) {
        $s{$name} = begin("/$name/words", blind => 1);
        $h2{$name} = $c->run({}, "/$name/words");
    }

    AgentClient->read_all(6, values %s, values %h2);

    for my $name (@names) {
        for my $s ($s{$name}, $h2{$name}) {
            my $kind = $s == $s{$name} ? $name : "$name, HTTP/2";
            is($s->{status}, 200, "$kind: status");
            ok($s->{complete}, '... the body ends');
            my $text = $words;
            $text =~ s/w7/SEVEN/g if $name eq 'sub';
            check_run($s->events, text => $text, name => '... the run');
            cmp_ok(tenths(@{ $s->{chunks} }), '>=', 5,
                '... events come one by one')
                or diag join ' ', map { sprintf '%.2f', $_->[0] }
                    @{ $s->{chunks} };
            like($s->{body}, qr/\A: note\n\nid:/, '... with what goes before')
                if $name eq 'before';
            like($s->{body}, qr/"RUN_FINISHED"[^\n]*\n\n: note\n\n\z/,
                '... with what comes after') if $name eq 'after';
            like($s->header('content-type') // '', qr/^text\/event-stream\b/,
                '... type');
        }
    }

    is($s{nochunks}{mode}, 'close', 'chunked_transfer_encoding off');
    is($s{nochunks}->header('connection'), 'close', '... says so');
    is($c->faults, '', 'HTTP/2: no faults');
    $_->close for values %s, $c;

    # sizes, JSON, errors and leaving, through each of them
    for my $name (@names) {
        my $r = $t->post_run({}, path => "/$name/big", timeout => 5);
        ok($r->{complete}, "$name: a large one ends");
        is(length(check_run($r->events, name => '... the run')->{text} // ''),
            96 * 1024, '... is whole');
        $r = $t->post_run({}, path => "/$name/ok",
            accept => 'application/json', timeout => 5);
        like($r->{body}, qr/"text":"Hello, world!"/, '... a JSON answer');
        ok($r->{complete}, '... ends');
        $r = $t->post_run({}, path => "/$name/fail", timeout => 5);
        is($r->{status}, 502, '... an error');
        ok($r->{complete}, '... ends');
        like($r->{body}, qr/"code":"upstream_error"/, '... its code');

        for my $agent (qw(endless silent)) {
            my $s = $t->post_run(unique(), path => "/$name/$agent",
                stream => 1);
            $agent eq 'silent' ? $t->wait_for(sub { called($s) }, 5)
                : $s->read_until('TEXT_MESSAGE_CONTENT', 3);
            my $then = time;
            $s->close;
            closed_soon($s, $then, "... its client leaves: $agent");
        }
    }
};

subtest 'limit_rate' => sub {
    my $c = AgentClient->http2($t, port => $h2);
    my @s = (begin('/rate', blind => 1),
        begin('/rate', port => $tls, tls => {}, blind => 1), $c->run({}, '/rate'));
    my $slow = $t->post_run(unique(), path => '/rate/endless', stream => 1);
    AgentClient->read_all(15, @s);

    for my $s (@s) {
        my $size = length $s->{body};
        ok($s->{complete}, 'a stream ends');
        is(length check_run($s->events)->{text}, 96 * 1024, 'it is whole');
        cmp_ok($s->{end_time} // 0, '>', $size / 65536 - 1.2,
            '... not too fast');
        cmp_ok($s->{end_time} // 99, '<', $size / 65536 + 4,
            '... not too slow');
    }

    is($c->faults, '', 'HTTP/2: no faults');
    $_->close for @s, $c;

    # its client leaves while it has to wait
    my $then = time;
    $slow->reset;
    closed_soon($slow, $then, 'a client that leaves meanwhile');
};

subtest 'a small receive window' => sub {
    my @o = (port => $thin, rcvbuf => 1, blind => 1);
    my @s = map { begin($_, @o) } qw(/big /post64k/big /words);
    push @s, begin('/big', @o, accept => 'application/json');

    ok(AgentClient->read_all(20, @s), 'they end');

    is(length check_run($s[0]->events)->{text}, 96 * 1024, 'a large one');
    is(length check_run($s[1]->events)->{text}, 96 * 1024, '... again');
    check_run($s[2]->events, text => $words, name => '... a small one');
    is(length $s[3]->json->{text}, 96 * 1024, '... a JSON answer');
    cmp_ok(scalar @{ $s[0]{chunks} }, '>', 20, 'the window was small');
    $_->close for @s;
};

sub rss {
    my ($pid) = $t->workers;
    open my $fh, '<', "/proc/$pid/status" or return 0;
    my ($kb) = join('', <$fh>) =~ /^VmRSS:\s+(\d+) kB/m;
    return $kb / 1024;
}

subtest 'a reader that stops' => sub {
    my $before = rss();
    my $begun = time;

    # 12 x 1 MB/s without a reader
    my @s = map { begin('/flood', port => $thin, rcvbuf => 1, blind => 1) }
        1 .. 10;
    my $c = AgentClient->http2($t, port => $h2, auto => 0, window => 1000);
    push @s, map { $c->run({}, '/flood') } 1, 2;

    # send_timeout, by several ways to be stuck
    my %stuck = map { ($_ => $t->post_run(unique(),
        path => "/timeout/$_?tag=timeout-$_", port => $thin,
        rcvbuf => 1, stream => 1)) } qw(plain reset gzip);
    my $stalled = $c->run(unique(), '/timeout/plain?tag=timeout-h2');
    my $then = time;

    for my $name (sort keys %stuck) {
        my $s = $stuck{$name};
        my $took = closed_after($s, $then);
        ok(defined $took && $took > 0.8 && $took < 5,
            "send_timeout ends it: $name") or diag $took;
        logs("timeout-$name", http => 200, status => 'detached',
            done => '', first => $seconds);
        my $end = time + 3;
        1 while $s->_fill($end);
        ok($s->{eof}, '... the connection is closed');
        ok(!$s->{complete}, '... the stream is cut');
        $s->close;
    }

    my $took = closed_after($stalled, $then);
    ok(defined $took && $took > 0.8 && $took < 5, 'send_timeout of HTTP/2')
        or diag $took;
    $c->wait(0.3);
    ok(defined $stalled->{reset}, '... the stream is reset');
    ok(!$c->{eof}, '... the connection goes on');
    logs('timeout-h2', http => 200, status => 'detached',
        protocol => 'HTTP/2.0');

    my @rss;

    for my $at (5.5, 7.5) {
        my $left = $begun + $at - time;
        sleep $left if $left > 0;
        push @rss, rss();
    }

    note sprintf '%.0f MB before, %.0f, %.0f MB', $before, @rss;
    is(status_of('/flood', $s[0]), 'running', 'meanwhile the runs go on');

    SKIP: {
        skip 'a sanitizer keeps freed memory', 2 if $ENV{AGENT_STATIC};
        cmp_ok($rss[1] - $before, '<', 12 * 12, 'memory has a limit for each');
        cmp_ok($rss[1] - $rss[0], '<', 12, '... and does not grow');
    }

    # one of them comes back: it is told what it missed
    my $back = $s[0];
    $t->request('DELETE', "/flood/runs/$back->{input}{runId}");
    ok($back->finish(20), 'one that reads on comes to the end');
    my @types = map { $_->{data}{type} } @{ $back->events };
    ok((grep { $_ eq 'MESSAGES_SNAPSHOT' } @types), '... by a snapshot');
    check_run($back->events, outcome => 'cancelled', name => '... legally');

    $_->close for grep { !$_->{conn} } @s;
    $c->close;
    ok($t->wait_for(sub {
        !grep { status_of('/flood', $_) eq 'running' } @s }, 10),
        'the runs end with their readers');
};

subtest 'leaving' => sub {
    my @o = ([ plain => {} ], [ tls => { port => $tls, tls => {} } ],
        [ v10 => { version => '1.0' } ]);

    for my $o (@o) {
        my ($name, $opts) = @$o;

        for my $path (qw(/endless /silent)) {
            for my $accept ('text/event-stream', 'application/json') {
                for my $how (qw(close reset shutdown_write)) {
                    my $s = $t->post_run(unique(), path => $path, stream => 1,
                        accept => $accept, %$opts);
                    $t->wait_for(sub { called($s) });
                    $s->read_until('TEXT_MESSAGE_CONTENT', 5)
                        if $path eq '/endless' && $accept =~ /event/;
                    my $then = time;
                    $s->$how;
                    closed_soon($s, $then, "$name $path $accept: $how");
                    $s->close if $s->{sock};
                }
            }
        }
    }

    # the whole of a request and FIN in one packet
    my $input = run_input(%{ unique() });
    my $body = encode_json($input);
    my $s = $t->_connect({});
    $s->{input} = $input;
    $s->send("POST /endless HTTP/1.1\r\nHost: x\r\nContent-Type: "
        . "application/json\r\nContent-Length: " . length($body)
        . "\r\n\r\n$body");
    $s->shutdown_write;
    $s->finish(3);
    ok($s->{eof}, 'a request with FIN behind it ends');
    $s->close;
    ok($t->wait_for(sub { status_of('/endless', $s) =~ /cancelled|-/ }, 3),
        '... its run, too');
};

subtest 'HTTP/2' => sub {
    my $c = AgentClient->http2($t, port => $h2);
    my $n = 100;
    my @s = map { $c->run({ runId => "h2-$_" }, '/words', hold => 1) } 1 .. $n;
    $c->flush;
    ok($c->finish(20, @s), "$n streams on one connection");
    my @whole = grep {
        my $run = join '', map { $_->{data}{delta} // '' } @{ $_->events };
        $run eq $words && $_->{status} == 200
    } @s;
    is(scalar @whole, $n, '... all whole');
    check_run($_->events, text => $words, name => '... one of them')
        for @s[ 0, 50, 99 ];
    is($s[7]->header('x-agent-run-id'), 'h2-8', '... with its own head');
    is($s[7]->header('connection'), undef, '... no Connection');
    is($s[7]->header('transfer-encoding'), undef, '... no Transfer-Encoding');
    my @ids = map { $_->[1] } grep { $_->[0] == 0 } @{ $c->{order} };
    my $turns = grep { $ids[$_] != $ids[ $_ - 1 ] } 1 .. $#ids;
    cmp_ok($turns, '>', $n * 5, '... side by side');

    # all kinds of answers
    my %a = (
        json   => $c->run({}, '/ok', accept => 'application/json'),
        fail   => $c->run({}, '/fail?tag=h2-fail'),
        late   => $c->run({}, '/cut?tag=h2-late'),
        bad    => $c->run({}, '/ok', body => '{'),
        type   => $c->request('POST', '/ok', [], 'x'),
        none   => $c->request('POST', '/ok', \@json),
        caps   => $c->request('GET', '/ok/capabilities'),
        head   => $c->request('HEAD', '/ok/capabilities'),
        known  => $c->request('GET', '/words/runs/h2-1'),
        over   => $c->request('DELETE', '/words/runs/h2-1'),
        parts  => $c->run({}, '/ok', body => do {
            my $body = encode_json(run_input());
            [ unpack('(a7)*', $body), '' ];
        }),
    );
    ok($c->finish(10, values %a), 'answers of all kinds end');
    is($a{json}->json->{text}, 'Hello, world!', 'JSON');
    is(outcome($a{fail}), '502 upstream_error', 'an error');
    check_run($a{late}->events, code => 'upstream_truncated',
        name => 'an error in the stream');
    is(outcome($a{bad}), '400 bad_request', 'a bad body');
    is(outcome($a{type}), '415 unsupported_media_type', 'a wrong type');
    is(outcome($a{none}), '400 bad_request', 'no body');
    is($a{caps}->json->{identity}{name}, 'ok', 'capabilities');
    is("$a{head}{status} $a{head}{body}", '200 ', 'HEAD');
    is($a{head}->header('content-length'), length $a{caps}{body},
        '... its length');
    is($a{known}->json->{status}, 'finished', 'a run');
    is("$a{over}{status} $a{over}{body}", '204 ', 'DELETE');
    check_run($a{parts}->events, text => 'Hello, world!',
        name => 'a body in many frames');
    is($c->faults, '', 'nothing after an end, no padding, no second head');
    $c->close;
    logs('h2-fail', protocol => 'HTTP/2.0', http => 502, status => 'error',
        finish => 'upstream_error');
    logs('h2-late', protocol => 'HTTP/2.0', http => 200, status => 'error',
        finish => 'upstream_truncated', done => 'OK');

    my $body = encode_json(run_input());
    my $out = qx{curl -sS --http2-prior-knowledge -m 10 -N \\
        -H 'Content-Type: application/json' -d '$body' \\
        -w '%{http_version} %{http_code}' http://127.0.0.1:$h2/words 2>&1};
    like($out, qr/\Aid: .*"RUN_FINISHED"[^\n]*\n\n2 200\z/s, 'curl');
};

subtest 'HTTP/2: cancel' => sub {
    my $c = AgentClient->http2($t, port => $h2);
    my @stay = map { $c->run({}, '/words') } 1 .. 10;
    my @go = map { $c->run(unique(), "/endless?tag=h2-gone-$_") } 0 .. 2;
    my $quiet = $c->run(unique(), '/silent?tag=h2-499');
    my $gzip = $c->run(unique(), '/gzip/endless',
        headers => [ 'accept-encoding' => 'gzip' ]);
    $_->read_until('TEXT_MESSAGE_CONTENT', 10) for @go, @stay;
    $c->wait(0.1);
    my $then = time;
    $_->cancel for @go, $quiet, $gzip;
    closed_soon($_, $then, 'RST_STREAM closes the call') for @go, $quiet, $gzip;
    ok($c->finish(10, @stay), 'the others go on');
    check_run($_->events, text => $words, name => '... to their end')
        for @stay;
    logs("h2-gone-$_", protocol => 'HTTP/2.0', http => 200,
        status => 'detached', first => $seconds, events => qr/^[1-9]/)
        for 0 .. 2;
    logs('h2-499', http => 499, status => 'detached', first => '-',
        bytes => 0);

    # opened and reset in one breath
    my @quick = map {
        my $s = $c->run(unique(), '/endless', hold => 1);
        $c->cancel($s);
        $s;
    } 1 .. 60;
    $c->flush;
    my $last = $c->run({}, '/ok');
    $c->finish(10, $last);
    check_run($last->events, text => 'Hello, world!',
        name => '60 opened and reset at once, then one more');
    ok($t->wait_for(sub {
        !grep { status_of('/endless', $_) eq 'running' } @quick[ 0, 30, 59 ]
    }), '... none of them runs on');
    is($c->faults, '', 'no faults');

    # with the connection all go
    my @all = map { $c->run(unique(), '/endless') } 1 .. 5;
    $_->read_until('TEXT_MESSAGE_CONTENT', 10) for @all;
    $then = time;
    $c->reset;
    closed_soon($_, $then, 'RST of the connection closes the calls') for @all;
};

subtest 'HTTP/2: windows' => sub {

    # the smallest there are
    my $c = AgentClient->http2($t, port => $h2, window => 1);
    my $s = $c->run({}, '/tiny');
    ok($c->finish(20, $s), 'a window of one byte');
    check_run($s->events, text => 'w1 w2 w3');
    my @sizes = map { $_->[2] } grep { $_->[0] == 0 && $_->[1] == $s->{id} }
        @{ $c->{order} };
    is(scalar(grep { $_ > 1 } @sizes), 0, '... frames of one byte');
    is($c->faults, '', '... no faults');
    $c->close;

    $c = AgentClient->http2($t, port => $h2, window => 100);
    my @s = map { $c->run({}, '/big') } 1 .. 2;
    ok($c->finish(30, @s), 'windows of 100 bytes');
    is(length check_run($_->events)->{text}, 96 * 1024, '... a whole run')
        for @s;
    $c->close;

    # one without credit does not hold up the others
    $c = AgentClient->http2($t, port => $h2, window => 200);
    my $stuck = $c->run({}, '/words?tag=h2-stuck');
    $stuck->{manual} = 1;
    @s = map { $c->run({}, '/words') } 1 .. 5;
    ok($c->finish(10, @s), 'one without credit');
    check_run($_->events, text => $words, name => '... another one') for @s;
    is(length $stuck->{body}, 200, '... it waits');
    is(status_of('/words', $stuck), 'finished', '... its run has ended');
    $c->credit($stuck->{id}, 100000)->flush;
    ok($c->finish(5, $stuck), '... until it gets credit');
    check_run($stuck->events, text => $words, name => '... it is whole');
    logs('h2-stuck', http => 200, done => 'OK', status => 'finished',
        bytes => length $stuck->{body});
    is($c->faults, '', '... no faults');
    $c->close;

    # the window of the connection
    $c = AgentClient->http2($t, port => $h2, auto => 'stream', window => 40000);
    @s = map { $c->run({}, '/big') } 1 .. 3;
    my $small = $c->run({}, '/words');
    $c->wait(1);
    my $n = 0;
    $n += length $_->{body} for @s, $small;
    is($n, 65535, 'the window of the connection is used up');
    my $caps = $c->request('GET', '/ok/capabilities');
    $c->wait(0.2);
    ok(!$caps->{complete}, '... nothing else passes');
    $c->{auto} = 1;
    $c->credit(0, 65535)->flush;
    ok($c->finish(20, @s, $small, $caps), '... until there is credit');
    is(length check_run($_->events)->{text}, 96 * 1024, '... a whole run')
        for @s;
    check_run($small->events, text => $words, name => '... a small one');
    is($c->faults, '', '... no faults');
    $c->close;
};

note sprintf 'a call was closed after %.0f ms at most', 1000 * $longest;
$t->done;
