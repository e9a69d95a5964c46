#!/usr/bin/perl

# Memory runs out while nginx reads its configuration: it says so, or it did not
# need that memory; it never dies of it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use AgentFault;
use AgentTest;
use Test::More;
use Time::HiRes qw(time);

my $t = AgentTest->new(level => 'info');
my $fault = AgentFault->new($t);

# nginx itself leaves what it has when it cannot go on.
$ENV{ASAN_OPTIONS} .= ':detect_leaks=0';
$ENV{AGENT_FAULT_KEY} = 'sk-from-the-environment';
$t->write_file('key', "sk-from-a-file\n", 0600);

my $conf = <<'CONF';
%%GLOBALS%%
env AGENT_FAULT_KEY;
events { worker_connections 64; }
http {
    %%GLOBALS_HTTP%%
    log_format agent "$agent_run_id $agent_status $agent_finish_reason";
    access_log %%DIR%%/agent.log agent;
    agent_heartbeat 10s;
    agent_owner $http_x_user;

    agent_model main {
        provider openai;
        url https://localhost:%%PORT9%%/v1;
        model stub-1;
        key file:%%DIR%%/key;
        header X-Team blue;
        header X-Secret env:AGENT_FAULT_KEY;
        set temperature 0.25;
        set stop '["a", {"b": null}]';
        connect_timeout 5s;
        first_byte_timeout 1m;
        idle_timeout 1m;
        max_inflight 256 queue=64 timeout=30s;
        ssl_verify on;
        ssl_trusted_certificate %%CA%%;
    }
    agent_model echo { provider echo; set tokens_per_second 0; }

    agent main {
        model main;
        memory off;
        system "You are terse.";
        accept_roles user assistant tool system;
        allow_override temperature max_tokens;
        on_disconnect cancel after=5s;
        max_run_time 10m;
    }
    agent echo { model echo; memory off; }

    server {
        listen 127.0.0.1:%%PORT%%;
        resolver 127.0.0.1:%%DNS%% ipv6=off;
        location /a {
            agent_pass main;
            agent_thread $arg_thread;
            agent_cors https://app.example.com http://localhost:3000;
            agent_intercept_errors on;
        }
        location = /b { agent_pass echo; agent_owner off; }
        location ~ ^/c/(\w+)$ { agent_pass echo; agent_owner "$1"; }
    }
}
CONF

my ($rc, $out) = $t->test_conf($conf);
is($rc, 0, 'the configuration is good') or diag($out);

# How many there are, and then some of them, all sooner or later: each run of
# the test begins somewhere else.
$fault->arm(0, 1e15, 1);
$t->test_conf($conf);
my $all = $fault->disarm->{seen};
my $samples = 100 * ($ENV{AGENT_SCALE} || 1);
my $step = int($all / $samples) || 1;
my $first = 1 + $$ % $step;
my (@bad, %codes);
my $start = time;

for my $fail (1, 1e9) {
    for (my $n = $first; $n <= $all && @bad < 10; $n += $step) {
        $fault->arm(0, $n - 1, $fail);
        my ($code, $said) = $t->test_conf($conf);
        my $signal = $? & 127;
        my $failed = $fault->disarm->{failed};

        # nginx 1.22 frees what it could not make
        if ($said =~ /in ngx_regex_cleanup /) {
            $codes{'of nginx itself'}++;
            next;
        }

        $codes{"exit $code"}++;
        push @bad, "allocation $n: exit $code, signal $signal\n$said"
            if $signal || $code > 1 || $said =~ /Sanitizer|runtime error:/
            || $code == 1 && $said !~ /\[(?:emerg|alert|crit|error)\]|failed/
            || !$failed && $code != 0;
    }
}

ok(!@bad, "each of $all allocations of nginx -t may fail") or diag(@bad);
note(sprintf 'every %d. from %d on, %.1f s; %s', $step, $first, time - $start,
    join ', ', map {"$codes{$_} times $_"} sort keys %codes);

$t->done;
