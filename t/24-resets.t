#!/usr/bin/perl

# Clients that reset their connection right behind a request, of every route:
# the answer cannot be sent, and nothing may touch the request afterwards.  The
# harness fails on "http request count is zero" and on a sanitizer's report.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use IO::Socket::INET;
use Mojo::JSON qw(encode_json);
use Socket qw(SOL_SOCKET SO_LINGER);
use Test::More;

my $t = AgentTest->new;

$t->conf(<<'CONF');
%%GLOBALS%%
worker_processes 1;
events { worker_connections 512; }
http {
    %%GLOBALS_HTTP%%
    agent_model m { provider echo; set tokens_per_second 0; }
    agent a { model m; }

    server {
        listen 127.0.0.1:%%PORT%%;
        location /a { agent_pass a; agent_owner off; }
    }
}
CONF

$t->start;

my $n = 200 * ($ENV{AGENT_SCALE} || 1);
my $body = encode_json({ runId => 'over',
    messages => [ { id => 'u', role => 'user', content => 'x' } ] });

is($t->post_run({ runId => 'over' }, path => '/a')->{status}, 200, 'a run');

sub post {
    my ($path, $text, $accept) = @_;
    return "POST $path HTTP/1.1\r\nHost: x\r\n"
        . "Content-Type: application/json\r\nAccept: $accept\r\n"
        . 'Content-Length: ' . length($text) . "\r\n\r\n$text";
}

(my $fresh = $body) =~ s/"runId":"over",?//;
$fresh =~ s/,}/}/;

my %request = (
    'GET of an unknown run'    => "GET /a/runs/no HTTP/1.1\r\nHost: x\r\n\r\n",
    'DELETE of an unknown run' =>
        "DELETE /a/runs/no HTTP/1.1\r\nHost: x\r\n\r\n",
    'GET of a run'       => "GET /a/runs/over HTTP/1.1\r\nHost: x\r\n\r\n",
    'DELETE of a run'    => "DELETE /a/runs/over HTTP/1.1\r\nHost: x\r\n\r\n",
    'cancel'             => post('/a/runs/no/cancel', '{}', '*/*'),
    'capabilities'       => "GET /a/capabilities HTTP/1.1\r\nHost: x\r\n\r\n",
    'not JSON'           => post('/a', '{nope}', '*/*'),
    'a run that is over' => post('/a', $body, '*/*'),
    'a stream'           => post('/a', $fresh, 'text/event-stream'),
    'a JSON answer'      => post('/a', $fresh, 'application/json'),
    'half a body'        => substr(post('/a', $fresh, '*/*'), 0, -20),
);

my ($worker) = $t->workers;

for my $kind (sort keys %request) {
    for (1 .. $n) {
        my $s = IO::Socket::INET->new(PeerAddr => '127.0.0.1',
            PeerPort => $t->port, Timeout => 10) or next;
        syswrite $s, $request{$kind};
        setsockopt $s, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0);
        close $s;
    }

    is(($t->workers)[0], $worker, "$kind: $n resets, the worker lives");
}

is($t->post_run({}, path => '/a')->{status}, 200, 'it still works');

$t->done;
