#!/usr/bin/perl

# The provider's own url behind a resolver, which lowers the letters of names in
# place, and hosts written with capitals.  The name of the provider does not
# resolve here: nothing leaves this machine.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Test::More;

my $t = AgentTest->new;
$t->write_file('key', "sk-none\n");
chmod 0600, $t->dir . '/key';

$t->conf(<<'CONF');
%%GLOBALS%%
worker_processes 1;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    resolver 127.0.0.1:%%DNS%% ipv6=off;
    resolver_timeout 2s;

    agent_model own     { provider openai; key file:%%DIR%%/key; }
    agent_model capital { provider openai; url http://Model.TEST:%%UPSTREAM%%/ok/v1; model m; }
    agent own     { model own; }
    agent capital { model capital; }
    agent_owner off;

    server {
        listen 127.0.0.1:%%PORT%%;
        location /own     { agent_pass own; }
        location /capital { agent_pass capital; }
    }
}
CONF

my $u = $t->upstream;
$u->dns('api.openai.com' => 'nxdomain', 'model.test' => '127.0.0.1');
$t->start;

my ($worker) = $t->workers;

for (1 .. 3) {
    my $r = $t->post_run({}, path => '/own');
    is($r->{status}, 502, 'the default url');
    is(($r->json->{error} // {})->{code}, 'upstream_unreachable', '... code');
}

is(($t->workers)[0], $worker, 'the worker lives');

my $r = $t->post_run({}, path => '/capital');
is($r->{status}, 200, 'a host with capitals');
check_run($r->events, text => 'Hello, world!', name => '... answers');

$t->done;
