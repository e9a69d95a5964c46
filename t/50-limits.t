#!/usr/bin/perl

# Too much of something: connections, bodies, depth, speed.  What cannot be served
# is refused, the others are served all the same, and nothing holds the worker up
# for long: a probe asks it something else all the time.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentClient;
use AgentTest;
use AgentUpstream;
use File::Temp qw(tempdir);
use IO::Handle;
use Mojo::JSON qw(decode_json encode_json);
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

# raw,name=...: the bytes of a file as the body of a stream, at once.
sub AgentUpstream::script_raw {
    my ($self, $r, $p) = @_;
    open my $fh, '<:raw', "$self->{dir}/$p->{name}" or die "$p->{name}: $!";
    my $body = do { local $/; <$fh> };

    return AgentUpstream::_response({ frame => 'close', %$p }, 200,
        [ [ 'Content-Type', $p->{type} // 'text/event-stream' ] ], $body);
}

# stay,kb=N: N KB of "x" at once, then nothing more.
sub AgentUpstream::script_stay {
    my ($self, $r, $p) = @_;
    my @steps = AgentUpstream::_stream({ frame => 'chunked' },
        AgentUpstream::_chunk({ role => 'assistant', content => '' }),
        (AgentUpstream::_text('x' x 4096)) x (($p->{kb} // 64) / 4));

    return (@steps[ 0 .. $#steps - 2 ], ['hang']);
}

# rush: deltas of 4 KB without an end, faster than anybody can read them.
sub AgentUpstream::script_rush {
    my ($self, $r, $p) = @_;
    my @steps = AgentUpstream::_stream({ frame => 'chunked' },
        AgentUpstream::_chunk({ role => 'assistant', content => '' }));
    my $piece = AgentUpstream::_http_chunk(AgentUpstream::_frame({},
        AgentUpstream::_text('x' x 4096))) x 256;
    my $more;
    $more = sub { ($piece, $more) };

    return (@steps[ 0 .. 1 ], $more);
}

my $limit = 128;                        # worker_connections

# a sanitizer build takes its time
my $slow = $ENV{AGENT_STATIC} ? 8 : 1;
my $t = AgentTest->new(level => $ENV{AGENT_LOG} || 'info');
my $dir = $t->dir;

# a model server of its own for what runs at full speed
my $fast = AgentUpstream->new(dir => tempdir('fast-XXXXXX', TMPDIR => 1,
    CLEANUP => 1));
my $flood = 'http://127.0.0.1:' . $fast->port;

my @upstream = (
    [ line   => 'x' x 20_000_000 ],
    [ lines  => "\n" x 10_000_000 ],
    [ colons => ":\n" x 5_000_000 ],
    [ empty  => "data:\n" x 3_000_000 ],
    [ deep   => 'data: ' . '[' x 1_000_000 . "\n\n" ],
    [ nested => 'data: ' . '{"a":' x 300_000 . "1\n\n" ],
    [ wide   => 'data: {"choices":[' . '1,' x 450_000 . "1]}\n\n" ],
    [ keys   => 'data: {' . join(',', map {"\"k$_\":1"} 1 .. 70_000) . "}\n\n" ],
    [ escape => 'data: {"choices":[{"delta":{"content":"' . '\\u4f60' x 160_000
        . "\"}}]}\n\n" ],
    [ many   => join('', map {
        "data: {\"choices\":[{\"delta\":{\"content\":\"$_\"}}]}\n\n"
        } 1 .. 200_000) . "data: [DONE]\n\n" ],
    [ calls  => join('', map { 'data: {"choices":[{"delta":{"tool_calls":[{'
        . "\"index\":$_,\"id\":\"c$_\",\"function\":{\"name\":\"f\","
        . '"arguments":"{}"}}]}}]}' . "\n\n" } 0 .. 20_000)
        . "data: [DONE]\n\n" ],
    [ json   => '{"choices":[{"message":{"content":"' . 'y' x 9_000_000
        . '"},"finish_reason":"stop"}]}' ],
    [ 'json-whole' => '{"choices":[{"message":{"content":"'
        . 'y\\n' x 1_300_000 . '"},"finish_reason":"stop"}]}' ],
    [ 'event-whole' => 'data: {"choices":[{"delta":{"content":"'
        . 'y\\n' x 1_300_000 . "\"}}]}\n\ndata: [DONE]\n\n" ],
    [ 'event-large' => 'data: {"choices":[{"delta":{"content":"'
        . 'y' x 4_500_000 . "\"}}]}\n\ndata: [DONE]\n\n" ],
);

# What is too large for one piece is refused, what is not is served.
my %refused = map { ($_ => 1) } qw(line wide json event-large);
my %served = map { ($_ => 1) } qw(escape many json-whole event-whole);

my ($http, $locations) = agent_blocks(
    ok     => 'ok',
    words  => 'words,n=40,delay=0.05',
    quiet  => 'hang,at=role',
    chat   => 'words,n=100000,delay=0.2',
    sink   => { url => 'http://127.0.0.1:%%PORT9%%/v1' },
    large  => { url => "$flood/big,kb=3000,delta=8000/v1" },
    rush   => { url => "$flood/rush/v1" },
    stay   => { url => "$flood/stay,kb=4000/v1" },
    map { ("up-$_->[0]" => { url => "$flood/raw,name=$_->[0]"
        . ($_->[0] =~ /^json/ ? ',type=application%2Fjson' : '') . '/v1' }) }
        @upstream,
);

for my $c (@upstream) {
    my ($name, $body) = splice @$c, 0, 2, $c->[0];
    open my $fh, '>:raw', "$fast->{dir}/$name" or die "$name: $!";
    print $fh $body;
    close $fh;
}

$t->write_file('answer', "data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}"
    . "\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
    . "data: [DONE]\n\n");

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections $limit; }
http {
    %%GLOBALS_HTTP%%
    client_max_body_size 32m;
    client_body_buffer_size 64k;
    keepalive_requests 1000000;

    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; memory off; }
$http
    server {
        listen 127.0.0.1:%%PORT%% backlog=511;
        listen 127.0.0.1:%%PORT1%% http2;
        http2_max_concurrent_streams 1000;
$locations
        location /echo { agent_pass echo; agent_owner off; }
        location = /probe { access_log off; return 200 "here\\n"; }
        location /body {
            client_max_body_size 1k;
            agent_pass ok;
            agent_owner off;
        }
    }

    # a model that reads everything and says hello
    server {
        listen 127.0.0.1:%%PORT9%%;
        location / {
            types { text/event-stream ""; }
            default_type text/event-stream;
            error_page 404 405 =200 /answer;
        }
    }
}
CONF

$t->start;
my $u = $t->upstream;
my $h2 = $t->port(1);
my @json = ('Content-Type' => 'application/json');

sub outcome {
    my ($r) = @_;
    my $code = $r->json->{error}{code};
    return join ' ', grep { defined } $r->{status} // '-', $code;
}

sub rss {
    my ($pid) = $t->workers;
    open my $fh, '<', "/proc/$pid/status" or return 0;
    my ($kb) = join('', <$fh>) =~ /^VmRSS:\s+(\d+) kB/m;
    return $kb / 1024;
}

# Is everything as it should be?
sub healthy {
    my ($name) = @_;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    my $r = $t->post_run({}, path => '/ok');
    is(outcome($r), '200', "$name: a new run");
    check_run($r->events, text => 'Hello, world!', name => '... is whole');
}

# --- connections --------------------------------------------------------------

# A refusal: 503 too_busy with Retry-After; the others are counted.
sub sort_out {
    my (@s) = @_;
    my %n;

    for my $s (@s) {
        my $is = outcome($s);
        $is .= $is =~ /^503/ ? ' ' . ($s->header('retry-after') // 'never') =~
            s/^[1-9]\d*$/later/r : '';
        $n{$is}++;
        push @{ $n{served} }, $s if $is eq '200';
    }

    return \%n;
}

subtest 'worker_connections: one HTTP/2 client' => sub {
    my @accepted;

    for my $round (1 .. 3) {
        my $c = AgentClient->http2($t, port => $h2);
        my $other = $t->post_run({}, path => '/words', stream => 1);
        $other->read_until('TEXT_MESSAGE_CONTENT', 10);
        $other->close if $round > 1;

        # all at once, then one after the other
        my @s = map { $c->run({}, '/chat', hold => 1) } 1 .. 200;
        $c->flush;
        push @s, map { my $s = $c->run({}, '/chat'); $c->wait(0.005); $s }
            1 .. 50;
        my $end = time + 5;
        $c->wait(0.05) while time < $end && grep { !$_->{status} } @s;
        $c->wait(0.2);

        my $n = sort_out(@s);
        my $served = delete($n->{served}) // [];
        is(join(', ', sort keys %$n), '200, 503 too_busy later',
            'served, or refused with Retry-After') or diag explain $n;
        cmp_ok(scalar @$served, '>=', $limit / 2, '... many are served');
        cmp_ok(scalar @$served, '<', $limit, '... as far as it goes');
        push @accepted, scalar @$served;

        # the reserve is for others
        for my $path (qw(/ok/capabilities /ok/runs/none /probe)) {
            my $r = $t->request('GET', $path);
            is($r->{status}, $path =~ /none/ ? 404 : 200, "... $path");
        }
        is(outcome($t->post_run({}, path => '/ok')), '503 too_busy',
            '... but no run');
        my $more = $c->request('GET', '/ok/capabilities');
        is($more->read_head(5), 200, '... on that connection, too');

        # a joining reader needs no model call
        my $join = $t->post_run({ runId => $s[0]{input}{runId},
            threadId => $s[0]{input}{threadId} }, path => '/chat', stream => 1);
        is($join->read_head(5), 200, '... joining a run');
        $join->close;

        my @before = map { length $_->{body} } @$served;
        $c->wait(0.5);
        is(scalar(grep { length $served->[$_]{body} <= $before[$_] }
            0 .. $#$served), 0, '... those that are served go on');

        if ($round == 1) {
            ok($other->finish(10), '... the run that was there before ends');
            check_run($other->events, text => join(' ', map {"w$_"} 1 .. 40));
            $other->close;
        }

        # half of them end: there is room at once
        $_->cancel for @$served[ 0 .. @$served / 2 ];
        $c->wait(0.3);
        healthy('when half of them have left');
        is($c->faults, '', '... no faults');
        $c->close;
        healthy('when all have left');
    }

    note "served: @accepted";
    cmp_ok(abs($accepted[2] - $accepted[0]), '<=', 3,
        'as many in each round: no connection is lost');
};

subtest 'worker_connections: many HTTP/1 clients' => sub {
    my @accepted;

    for my $round (1 .. 3) {
        my (@s, @refused);

        while (@s + @refused < $limit / 2 + 10 && @refused < 10) {
            my $s = $t->post_run({}, path => '/chat', stream => 1);
            $s->read_head(5);
            push @{ ($s->{status} // 0) == 200 ? \@s : \@refused }, $s;
        }

        $_->finish(5) for @refused;
        my $n = sort_out(@refused);
        is(join(', ', map {"$_ $n->{$_}"} sort keys %$n),
            '503 too_busy later 10', 'refused with Retry-After');
        push @accepted, scalar @s;
        cmp_ok(scalar @s, '>=', $limit / 4, '... as late as possible');
        is($t->request('GET', '/ok/capabilities')->{status}, 200,
            '... other requests are served');
        my $at = time;
        $_->read_until('TEXT_MESSAGE_CONTENT', 5) for @s[ 0, -1 ];
        cmp_ok(time - $at, '<', 3, '... the streams go on');

        # who is refused tries again
        (shift @s)->close for 1 .. 5;
        $_->close for @refused;
        ok($t->wait_for(sub {
            push @s, $t->post_run({}, path => '/chat', stream => 1);
            return ($s[-1]->read_head(5) // 0) == 200;
        }, 5), '... and succeed when others leave');

        # with RST, all at once
        $_->reset for @s;
        healthy('when all have left');
    }

    note "served: @accepted";
    cmp_ok(abs($accepted[2] - $accepted[0]), '<=', 3,
        'as many in each round: no connection is lost');
};

# Connections that only are there; nginx itself says then in its log what the
# matter is.
subtest 'worker_connections: idle clients' => sub {
    my $s = $t->post_run({}, path => '/chat', stream => 1);
    $s->read_until('TEXT_MESSAGE_CONTENT', 5);
    my @idle;

    for (1 .. $limit - 16) {
        my $i = $t->open_stream('GET', '/probe', []);
        $i->finish(5);
        push @idle, $i;
    }

    my $r = $t->post_run({}, path => '/ok');
    is(outcome($r), '503 too_busy', 'idle keep-alive clients: no run');
    $s->{body} = '';
    $s->{pos} = 0;
    ok(scalar $s->read_until('TEXT_MESSAGE_CONTENT', 5), '... a stream goes on');
    is($t->request('GET', '/ok/capabilities')->{status}, 200,
        '... a small request');
    $_->close for @idle;
    healthy('when they have left');
    is($t->request('DELETE', "/chat/runs/$s->{input}{runId}")->{status}, 202,
        'the stream is stopped');
    $s->finish(5);
    $s->close;
};

# --- bodies -------------------------------------------------------------------

subtest 'client_max_body_size' => sub {
    my $c = AgentClient->http2($t, port => $h2);
    $u->forget;
    my $of = sub {
        my ($size) = @_;
        my $body = encode_json(run_input());
        return $body . ' ' x ($size - length $body);
    };
    my $post = sub {
        my ($how, $body) = @_;

        if ($how eq 'HTTP/2') {
            my $s = $c->request('POST', '/body', \@json, $body);
            $c->finish(5, $s);
            return $s;
        }

        my @h = @json;

        if ($how eq 'chunks') {
            push @h, 'Transfer-Encoding' => 'chunked';
            $body = sprintf("%x\r\n%s\r\n0\r\n\r\n", length $body, $body);
        }

        return $t->request('POST', '/body', \@h, $body);
    };

    for my $how ('length', 'chunks', 'HTTP/2') {
        my $r = $post->($how, $of->(1024));
        is($r->{status}, 200, "$how: as large as it may be");
        check_run($r->events, text => 'Hello, world!');
        $r = $post->($how, $of->(1025));
        is($r->{status}, 413, '... a byte more');
        like($r->header('content-type') // '', qr{^text/html},
            '... nginx\'s page');
        is($post->($how, $of->(100_000))->{status}, 413, '... much more');
    }

    is(scalar($u->requests), 3, 'what is too large reaches no model');
    my $s = $t->open_stream('POST', '/body', [ @json,
        'Content-Length' => 1_000_000_000 ], '{');
    is($s->read_head(5), 413, 'refused by its length alone');
    $s->close;
    $c->close;
};

# --- the loop -----------------------------------------------------------------

# A process that asks every 2 ms and remembers the longest answer.
pipe(my $ask_r, my $ask_w) or die;
pipe(my $tell_r, my $tell_w) or die;
$_->autoflush(1) for $ask_w, $tell_w;
my $prober = fork() // die "fork: $!";

if ($prober == 0) {
    $SIG{$_} = 'DEFAULT' for qw(TERM INT ALRM);
    close $_ for $ask_w, $tell_r;
    my $longest = 0;
    my $n = 0;
    my $sock;

    while (1) {
        my $r = '';
        vec($r, fileno $ask_r, 1) = 1;

        if (select $r, undef, undef, 0.002) {
            sysread $ask_r, my $line, 100 or POSIX::_exit(0);
            syswrite $tell_w, sprintf "%.6f %d\n", $longest, $n;
            $longest = $n = 0;
        }

        $sock //= IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $t->port) or next;
        my $start = time;
        syswrite $sock, "GET /probe HTTP/1.1\r\nHost: x\r\n\r\n";
        my $in = '';

        while ($in !~ /here\n\z/) {
            next if sysread $sock, $in, 4096, length $in;
            undef $sock;
            last;
        }

        my $took = time - $start;
        $longest = $took if $took > $longest;
        $n++;
    }
}

close $_ for $ask_r, $tell_w;
END { kill 'KILL', $prober if $prober && $t && $$ == $t->{owner} }

# The longest wait since the last call.
sub longest {
    syswrite $ask_w, "?\n";
    my $line = readline $tell_r;
    return (split ' ', $line)[0];
}

my %hold;

# Milliseconds that the worker has worked so far.
sub worked {
    my ($pid) = $t->workers;
    open my $fh, '<', "/proc/$pid/schedstat" or return 0;
    return (split ' ', readline $fh)[0] / 1e6;
}

# Runs the code and asserts that the worker was not held up for long; a machine
# that has other things to do counts as little as it can be told.
sub hold {
    my ($name, $do, $max) = @_;
    longest();
    my ($start, $cpu) = (time, worked());
    my @got = $do->();
    my $took = time - $start;
    sleep 0.01;
    $cpu = worked() - $cpu;
    my $ms = 1000 * longest();
    $ms = $cpu if $cpu < $ms;
    $hold{$name} = $ms;
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    cmp_ok($ms, '<', ($max // 500) * $slow,
        "$name: others are served meanwhile");
    diag sprintf '%-32s held the loop for %4.0f ms at most, of %5.0f', $name,
        $ms, 1000 * $took;
    return @got;
}

hold('nothing at all', sub { sleep 0.5 });

subtest 'hostile bodies' => sub {
    my $user = '"messages":[{"id":"u","role":"user","content":"x"}]';
    my $message = sub { "{\"id\":\"m$_[0]\",\"role\":\"$_[1]\",\"content\":\"$_[0]\"}" };
    my $pad = sub { $_[0] x (20_000_000 / length $_[0]) };
    my @bodies = (
        [ 'a text of 20 MB', '200', sub {
            '{"messages":[{"id":"u","role":"user","content":"'
                . $pad->('hello wo') . '"}]}' } ],
        [ '20 MB of escapes', '200', sub {
            '{"messages":[{"id":"u","role":"user","content":"'
                . $pad->('\\u4f60\\n') . '"}]}' } ],
        [ '20 MB of white space', '200', sub {
            '{' . $pad->(' ') . $user . '}' } ],
        [ '20 MB of state', '200', sub {
            "{$user,\"state\":[" . join(',', ('"0123456789012345678"')
                x 900_000) . ']}' } ],
        [ 'numbers', '200', sub {
            "{$user,\"state\":[" . join(',', ('1.5e10') x 900_000) . ']}' } ],
        [ 'an image of 20 MB', '200', sub {
            '{"messages":[{"id":"u","role":"user","content":[{"type":"image",'
                . '"source":{"type":"data","mimeType":"image/png","value":"'
                . $pad->('iVBORw0K') . '"}}]}]}' } ],
        [ 'bad UTF-8 at the end', '400 bad_request', sub {
            "{$user,\"state\":\"" . $pad->('hello wo') . "\xff\"}" } ],
        [ '20 MB cut off', '400 bad_request', sub {
            "{$user,\"state\":[" . '"0123456789012345678",' x 900_000 } ],
        [ 'a million levels', '413 too_large', sub {
            "{$user,\"state\":" . '[' x 1_000_000 . ']' x 1_000_000 . '}' } ],
        [ 'a million objects', '413 too_large', sub {
            "{$user,\"state\":" . '{"a":' x 1_000_000 . '1'
                . '}' x 1_000_000 . '}' } ],
        [ 'levels without an end', '413 too_large', sub {
            "{$user,\"state\":" . '[' x 20_000_000 } ],
        [ '3 million values', '413 too_large', sub {
            "{$user,\"state\":[" . '1,' x 3_000_000 . '1]}' } ],
        [ '200,000 keys', '200', sub {
            "{$user,\"state\":{" . join(',', map {"\"key-$_\":$_"}
                1 .. 200_000) . '}}' } ],
        [ '200,000 unknown members', '200', sub {
            "{$user," . join(',', map {"\"key-$_\":$_"} 1 .. 200_000) . '}' } ],
        [ '100,000 messages', '200', sub {
            '{"messages":[' . join(',', map { $message->($_,
                $_ % 2 ? 'user' : 'assistant') } 1 .. 100_001) . ']}' } ],
        [ '100,000 with one id', '200', sub {
            '{"messages":[' . join(',', map { $message->(1, 'user') }
                1 .. 100_000) . ']}' } ],
        [ '30,000 tool calls', '200', sub {
            '{"messages":[{"id":"u","role":"user","content":"x"},{"id":"a",'
                . '"role":"assistant","toolCalls":[' . join(',', map {
                "{\"id\":\"c$_\",\"type\":\"function\",\"function\":"
                    . '{"name":"f","arguments":"{}"}}' } 1 .. 30_000)
                . ']},' . join(',', map { "{\"id\":\"t$_\",\"role\":\"tool\","
                    . "\"toolCallId\":\"c$_\",\"content\":\"r\"}" }
                    reverse 1 .. 30_000) . ']}' } ],
        [ '30,000 calls unanswered', '200', sub {
            '{"messages":[' . join(',', map { "{\"id\":\"a$_\","
                . "\"role\":\"assistant\",\"toolCalls\":[{\"id\":\"c$_\","
                . '"type":"function","function":{"name":"f","arguments":"{}"'
                . '}}]}' } 1 .. 30_000) . ',{"id":"u","role":"user",'
                . '"content":"x"}]}' } ],
        [ '30,000 tools', '200', sub {
            "{$user,\"tools\":[" . join(',', map { "{\"name\":\"f$_\","
                . '"description":"d","parameters":{"type":"object",'
                . '"properties":{"a":{"type":"string"}}}}' } 1 .. 30_000)
                . ']}' } ],
        [ '100,000 of context', '200', sub {
            "{$user,\"context\":[" . join(',', map { "{\"description\":\"d$_\","
                . '"value":"v"}' } 1 .. 100_000) . ']}' } ],
        [ '100,000 parts', '200', sub {
            '{"messages":[{"id":"u","role":"user","content":['
                . join(',', ('{"type":"text","text":"x"}') x 100_000)
                . ']}]}' } ],
        [ '60,000 of unknown roles', '400 bad_request', sub {
            '{"messages":[' . join(',', map { $message->($_, 'alien') }
                1 .. 60_000) . ']}' } ],
    );

    for my $b (@bodies) {
        my ($name, $want, $make) = @$b;
        my $body = $make->();
        my $size = sprintf '%.1f MB', length($body) / 1e6;

        # parsing is what takes its time: 70 MB/s of text at least, 10 MB/s of
        # the smallest values
        my ($r) = hold("$name ($size)", sub {
            $t->request('POST', '/sink', \@json, $body, { timeout => 30 })
        }, $name =~ /text|space|image|UTF-8|levels|objects|million values/
            ? 400 : 300 + length($body) / 10_000);
        is(outcome($r), $want, '... outcome') or diag substr $r->{body}, 0, 300;
        check_run($r->events, text => 'Hello') if $r->{status} == 200;
    }

    # smaller ones, of which nobody would think that they are large
    for my $kb (512, 1000) {
        my $n = $kb * 1000;
        my %make = (
            'a text'      => sub { '{"messages":[{"id":"u","role":"user",'
                . '"content":"' . 'hello wo' x ($n / 8) . '"}]}' },
            'messages'    => sub { '{"messages":[' . join(',', map {
                $message->($_, 'user') } 1 .. $n / 50) . ']}' },
            'state'       => sub { "{$user,\"state\":[" . '1,' x ($n / 2)
                . '1]}' },
            'tool calls'  => sub { '{"messages":[' . join(',', map {
                "{\"id\":\"a$_\",\"role\":\"assistant\",\"toolCalls\":["
                . "{\"id\":\"c$_\",\"type\":\"function\",\"function\":"
                . '{"name":"f","arguments":"{}"}}]}' } 1 .. $n / 115)
                . ',{"id":"u","role":"user","content":"x"}]}' },
        );

        for my $name (sort keys %make) {
            my $body = $make{$name}->();
            my ($r) = hold("$name of $kb KB", sub {
                $t->request('POST', '/sink', \@json, $body)
            }, $name eq 'a text' ? 30 : $kb / 4);
            is(outcome($r), '200', '... outcome');
        }
    }
};

subtest 'hostile models' => sub {
    for my $c (@upstream) {
        my ($name) = @$c;
        my ($r) = hold("model: $name", sub {
            $t->post_run({}, path => "/up-$name", timeout => 30) },
            $name =~ /whole/ ? 400 : 200);
        is($r->{status}, 200, '... served') if $served{$name};
        is(outcome($r), '502 upstream_error', '... too large at once')
            if $refused{$name};

        if ($r->{status} == 200) {
            ok($r->{complete}, '... the stream ends');
            my @types = map { $_->{data}{type} } @{ $r->events }[ 0, -1 ];
            like("@types", qr/^RUN_STARTED RUN_(FINISHED|ERROR)$/,
                '... by a terminal event');
            cmp_ok(length $r->{body}, '<', 60_000_000, '... of a sane size');

        } else {
            like(outcome($r), qr/^502 upstream_/, '... refused');
        }
    }

    healthy('after them');
};

subtest 'full speed' => sub {

    # one alone
    my ($r) = hold('3 MB at full speed', sub {
        $t->post_run({}, path => '/large', timeout => 30) });
    is(length check_run($r->events)->{text}, 3000 * 1024, '... whole');
    ($r) = hold('echo of 1 MB', sub {
        $t->post_run({ text => 'word ' x 100_000 }, path => '/echo',
            timeout => 30) });
    check_run($r->events, outcome => 'success', name => '... whole');

    # beside 30 slow ones
    my @s = map { $t->post_run({}, path => '/words', stream => 1) } 1 .. 30;
    my $reader = fork() // die "fork: $!";

    if ($reader == 0) {
        my $s = $t->post_run({}, path => '/rush', stream => 1);
        $s->{raw} = 1;
        while ($s->_fill(time + 10)) { $s->{in} = '' }
        POSIX::_exit(0);
    }

    hold('full speed beside 30 streams', sub {
        AgentClient->read_all(20, @s) });
    kill 'KILL', $reader;
    waitpid $reader, 0;
    my @gaps;

    for my $s (@s) {
        my @at = map { $_->[0] } @{ $s->{chunks} };
        push @gaps, map { $at[$_] - $at[ $_ - 1 ] } 1 .. $#at;
    }

    @gaps = sort { $a <=> $b } @gaps;
    is(scalar(grep { $_->{complete} } @s), 30, 'all 30 end');
    check_run($_->events, text => join(' ', map {"w$_"} 1 .. 40),
        name => '... whole') for @s[ 0, 29 ];
    cmp_ok($s[0]{end_time}, '<', 2 * 2.5, '... in time');
    diag sprintf 'events every 50 ms: median %.0f, 99 %% %.0f, at most %.0f ms',
        map { 1000 * $gaps[ $_ * $#gaps ] } 0.5, 0.99, 1;
    cmp_ok($gaps[ 0.99 * $#gaps ], '<', 0.3, '... 99 % of the events on time');
    cmp_ok($gaps[-1], '<', 1, '... and none late');
    $_->close for @s;
};

# Whoever joins a run of 4 MB gets 4 MB of snapshot, as long as there is memory
# for them; the others are told so.
subtest 'joining' => sub {
    my $first = $t->post_run({}, path => '/stay', stream => 1);
    my %same = (runId => $first->{input}{runId},
        threadId => $first->{input}{threadId});
    my $whole = 4_000_000;
    my $ends = sub { length $_[0]{body} > $whole || $_[0]{complete} };
    my $end = time + 10;
    $first->_fill($end) while length $first->{body} < $whole && time < $end;
    my $before = rss();
    my (@s, %n);

    my $c = AgentClient->http2($t, port => $h2, window => 1 << 24);
    $c->credit(0, 1 << 29);
    hold('40 readers join a run of 4 MB', sub {
        @s = map { $c->run(\%same, '/stay', hold => 1) } 1 .. 40;
        $c->flush;
        my $end = time + 10;
        $c->_read($end) while time < $end && grep { !$ends->($_) } @s;
    });

    for my $s (@s) {
        my ($e) = map { $_->{data} } @{ $s->events };
        $n{ length $s->{body} > $whole ? 'whole' : $s->{complete}
                ? $e->{code} // $e->{type} : 'neither' }++;
    }

    is(join(' ', sort keys %n), $n{gap} ? 'gap whole' : 'whole',
        '... each gets all of it, or the reason') or diag explain \%n;
    cmp_ok($n{whole} // 0, '>=', 10, '... several get it');
    $c->close;

    # who joins and reads nothing must not cost that much each
    for my $round (1 .. 3) {
        $c = AgentClient->http2($t, port => $h2, window => 0);
        hold("100 readers who do not read, $round", sub {
            @s = map { $c->run(\%same, '/stay', hold => 1) } 1 .. 100;
            $c->flush;
            $c->wait(0.5);
        });
        my $more = rss() - $before;

        SKIP: {
            skip 'a sanitizer keeps freed memory', 1 if $ENV{AGENT_STATIC};
            cmp_ok($more, '<', 100, '... do not cost a snapshot each');
        }

        diag sprintf '100 readers of a run of 4 MB who read nothing: %.0f MB',
            $more;
        $c->close;
    }

    # what they held is free again
    my $last = $t->post_run(\%same, path => '/stay', stream => 1);
    $end = time + 10;
    $last->_fill($end) while !$ends->($last) && time < $end;
    cmp_ok(length $last->{body}, '>', $whole, 'one more gets all of it');
    is($t->request('DELETE', "/stay/runs/$same{runId}")->{status}, 202,
        '... the run is stopped');
    $_->finish(10) for $first, $last;
    check_run($_->events, outcome => 'cancelled', name => '... it ends')
        for $first, $last;
    $_->close for $first, $last;
};

healthy('at the end');
my @worst = sort { $hold{$b} <=> $hold{$a} } keys %hold;
diag sprintf 'longest hold: %.0f ms (%s)', $hold{ $worst[0] }, $worst[0];

kill 'KILL', $prober;
waitpid $prober, 0;
undef $prober;
$fast->stop;
is($fast->errors, '', 'the fast model server had no errors');
$t->done;
