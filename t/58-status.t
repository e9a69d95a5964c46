#!/usr/bin/perl

# agent_status: what it counts is what happened, in both formats, over workers,
# a reload and the death of a worker.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Mojo::JSON qw(decode_json);
use Test::More;

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(
    ok   => 'words,n=10',
    slow => 'words,n=2000,delay=0.02',
    bad  => 'status,code=401',
);

sub conf {
    my ($workers) = @_;
    $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes $workers;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    access_log off;
    agent_replay_zone runs:2m;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        location = /status { agent_status; }
        location = /metrics { agent_status prometheus; }
        location = /json { agent_status json; }
$locations
    }
}
CONF
}

conf(3);
$t->start;
$t->expect_log(qr/upstream_auth/, qr/exited on signal 9/,
    qr/runs were lost with their worker process/, qr/was locked by/);

sub status { return $t->request('GET', '/status')->json }

# name{labels} => value; Python's own parser has to accept it all
sub metrics {
    my $r = $t->request('GET', '/metrics');
    is($r->{status}, 200, 'metrics');
    is($r->header('content-type'), 'text/plain; version=0.0.4; charset=utf-8',
        '... of the exposition format');
    my $file = $t->write_file('metrics', $r->{body});
    my $out = qx{/usr/bin/python3 - $file 2>&1 <<'P'
import sys
from prometheus_client.parser import text_string_to_metric_families
names = set()
for f in text_string_to_metric_families(open(sys.argv[1]).read()):
    assert f.documentation and f.type != 'unknown', f.name
    assert f.name.startswith('nginx_agent_') and f.name not in names, f.name
    names.add(f.name)
    for s in f.samples:
        print(s.name, ','.join('%s=%s' % l for l in sorted(s.labels.items())),
              '%g' % s.value, sep='|')
P
};
    is($?, 0, '... which a parser of Prometheus reads') or diag $out;
    return { map { /^(.*)\|(.*)\|(.*)$/ ? ("$1\{$2}" => $3) : () }
        split /\n/, $out };
}

subtest 'nothing yet' => sub {
    my $s = status();
    is($s->{workers}, 3, 'workers');
    is_deeply([ map { "$_->{name} $_->{kind}" } @{ $s->{zones} } ],
        [ 'ngx_agent_registry core', 'runs replay' ], 'zones');
    is_deeply($s->{runs}, { started => 0, active => 0, finished => 0,
        cancelled => 0, errors => {} }, 'runs');
    is_deeply($s->{refused}, {}, 'refused');
    metrics();
    is($t->request('GET', '/json')->json->{workers}, 3, 'json by name');
    is($t->request('HEAD', '/status')->{status}, 200, 'HEAD');
    is($t->request('HEAD', '/status')->{body}, '', '... has no body');
    is($t->request('POST', '/status')->{status}, 405, 'not POST');
};

my $bytes = 0;

subtest 'what happened is counted' => sub {
    my $events = 0;

    for (1 .. 12) {
        my $r = $t->post_run({}, path => '/ok');
        $events += @{ $r->events };
        $bytes += length $r->{body};
    }

    for (1 .. 3) {
        is($t->post_run({}, path => '/bad')->{status}, 502, 'a run that fails');
        $events += 2;
    }

    is($t->request('POST', '/ok', [ 'Content-Type' => 'text/plain' ],
        'x')->{status}, 415, 'a refused request');
    is($t->request('GET', '/ok/runs/none')->{status}, 404, 'another')
        for 1 .. 2;

    my @slow = map { $t->post_run({}, path => '/slow', stream => 1) } 1 .. 4;
    $_->read_until('TEXT_MESSAGE_CONTENT', 10) for @slow;

    my $s = status();
    is($s->{runs}{active}, 4, 'runs that go on');
    is($s->{streams}{active}, 4, 'streams');
    is($s->{upstream}{active}, 4, 'calls');
    cmp_ok($s->{upstream}{connections}, '>=', 4, 'connections');

    for my $r (@slow) {
        my $path = "/slow/runs/$r->{input}{runId}";
        is($t->request('DELETE', $path)->{status}, 202, 'one is stopped');
        $r->finish(10);
        my @e = @{ $r->events };
        $events += @e;
        $bytes += length $r->{body};

        my $again = $t->request('GET', "$path/stream",
            [ 'Last-Event-ID' => $e[-2]{id} ]);
        is($again->{status}, 200, '... its end is read again');
        $bytes += length $again->{body};
        my $lost = $t->request('GET', "$path/stream",
            [ 'Last-Event-ID' => '17-1' ]);
        is($lost->header('x-agent-resume'), 'unknown', '... and a cursor lost');
        $bytes += length $lost->{body};
    }

    ok($t->wait_for(sub { status()->{streams}{active} == 0 }, 10), 'all over');
    $s = status();
    is_deeply($s->{runs}, { started => 19, active => 0, finished => 12,
        cancelled => 4, errors => { upstream_auth => 3 } }, 'runs');
    is_deeply($s->{refused}, { unsupported_media_type => 1, not_found => 2 },
        'refused');
    is($s->{events}, $events, 'events');
    is($s->{bytes}, $bytes, 'bytes');
    is($s->{streams}{resumed}, 8, 'resumed');
    is($s->{streams}{unknown}, 4, '... unknown');
    is($s->{upstream}{started}, 19, 'calls');
    is($s->{upstream}{failures}, 3, '... that failed');
    is($s->{upstream}{active}, 0, '... under way');
    is($s->{runTime}{count}, 19, 'times of runs');
    is($s->{runTime}{le}[-1]{count}, 19, '... in the last bucket');
    is($s->{firstToken}{count}, 16, 'first tokens');
    is($s->{bells_lost}, 0, 'no bell was lost');
    my ($zone) = grep { $_->{name} eq 'runs' } @{ $s->{zones} };
    is($zone->{runs}, 19, 'runs that the zone knows');
    cmp_ok($zone->{free}, '<', $zone->{pages}, '... take some of its pages');

    my $m = metrics();
    is($m->{'nginx_agent_runs_started_total{}'}, 19, 'the same for Prometheus');
    is($m->{'nginx_agent_runs_failed_total{code=upstream_auth}'}, 3,
        '... by code');
    is($m->{'nginx_agent_events_total{}'}, $events, '... events');
    is($m->{'nginx_agent_run_seconds_count{}'}, 19, '... times');
    is($m->{'nginx_agent_run_seconds_bucket{le=+Inf}'}, 19, '... buckets');
    is($m->{'nginx_agent_zone_runs{kind=replay,zone=runs}'}, 19, '... zones');
};

subtest 'a reload keeps the counters' => sub {
    conf(1);
    ok($t->reload, 'reload');
    ok($t->wait_for(sub { status()->{workers} == 1 }, 10), 'one worker');
    is(status()->{runs}{started}, 19, 'runs');
    is(status()->{bytes}, $bytes, 'bytes');
};

subtest 'a worker dies' => sub {
    my @slow = map { $t->post_run({}, path => '/slow', stream => 1) } 1 .. 3;
    $_->read_until('TEXT_MESSAGE_CONTENT', 10) for @slow;
    is(status()->{streams}{active}, 3, 'three streams');
    my ($worker) = $t->workers;
    kill 'KILL', $worker;
    ok($t->wait_for(sub { my ($w) = $t->workers; $w && $w != $worker }, 10),
        'another worker');
    ok($t->wait_for(sub { status()->{runs}{active} == 0 }, 10),
        'no run is active');
    my $s = status();
    is($s->{streams}{active}, 0, 'no stream is');
    is($s->{upstream}{active}, 0, 'no call is');
    is($s->{runs}{errors}{worker_lost}, 3, 'three were lost');
    $_->close for @slow;
};

$t->done;
