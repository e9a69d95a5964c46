#!/usr/bin/perl

# Memory runs out while a run goes on: an answer in many reads, one that fails,
# one whose client leaves, a reader that lost its place, a name to resolve.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use AgentFault;
use AgentProcess;
use AgentTest;
use Test::More;

my $t = AgentTest->new(level => 'info');
my $fault = AgentFault->new($t);
my ($http, $locations) = agent_blocks(
    words    => 'words,n=8,delay=0.005',
    bytes    => 'bytewise',
    reason   => 'reason',
    long     => 'big,kb=40,delta=3000',
    edge     => 'ok,text=' . 'x' x 3670,    # the end needs another chunk
    broken   => 'status,code=500',
    late     => 'error200,at=content',
    cut      => 'cut,at=mid',
    none     => { url => 'http://127.0.0.1:%%PORT9%%/v1' },
    hang     => 'hang,at=content',
    leave    => {
        script => 'hang,at=content',
        agent  => 'on_disconnect cancel;',
    },
    named    => {
        url      => 'http://model.test:%%UPSTREAM%%/ok/v1',
        location => 'resolver 127.0.0.1:%%DNS%% ipv6=off valid=1s;',
    },
    one      => { script => 'ok', model => 'max_inflight 1 queue=5;' },
    queue    => {
        script => 'hang,at=content',
        model  => 'max_inflight 1 queue=5;',
    },
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 64; }
http {
    %%GLOBALS_HTTP%%
$http
    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; memory off; }
    server {
        listen 127.0.0.1:%%PORT%%;
$locations
        location /plain { agent_pass echo; agent_owner off; }
    }
}
CONF

$t->upstream->dns('model.test' => '127.0.0.1');
$t->start;

sub post {
    my ($path, %o) = @_;
    my $s = $t->post_run({}, path => $path, timeout => 10, %o);
    $s->{path} = $path;
    return $s;
}

my %expect = (
    words  => 'w1 w2 w3 w4 w5 w6 w7 w8',
    bytes  => undef,
    reason => 'Hello, world!',
    long   => undef,
    edge   => 'x' x 3670,
    broken => undef,
    late   => undef,
    cut    => undef,
    none   => undef,
    named  => 'Hello, world!',
    one    => 'Hello, world!',
);

for my $path (sort keys %expect) {
    my $text = $expect{$path};

    for my $json (0, 1) {
        $fault->every("/$path" . ($json ? ', as JSON' : ''), text => $text,
            json => sub { !defined $text || $_[0]{text} eq $text },
            act  => sub { post("/$path",
                $json ? (accept => 'application/json') : ()) });
    }

    $fault->every("/$path, several failures", text => $text, fail => 3,
        act => sub { post("/$path") });
    $fault->every("/$path, all fail", text => $text, fail => 1e9,
        act => sub { post("/$path") });
}

# What a run does after its client has left belongs to it too.
for my $fail (1, 3, 1e9) {
    $fault->every("a client that leaves, $fail", fail => $fail,
        check => sub { '' },
        act   => sub {
            my $s = post('/leave', stream => 1);
            $s->read_until('TEXT_MESSAGE_CONTENT', 5);
            $s->reset;
            $fault->settle;
            return $s;
        },
        after => sub {
            my ($value, $s) = @_;
            my $is;
            $t->wait_for(sub {
                $is = $fault->status($s->{input}{runId}, '/leave');
                $is !~ /^(?:running|queued)$/;
            }, 10);
            return $is =~ /^(?:cancelled|error|not_found)$/ ? ''
                : "the run is $is";
        });
}

# The second of two runs waits for the first, which is cancelled.
for my $fail (1, 2, 1e9) {
    my $cancel = sub {
        my ($s) = @_;
        return $t->request('DELETE', "/queue/runs/$s->{input}{runId}", {},
            undef, { timeout => 5 });
    };

    $fault->every("a run that waits for a place, $fail", fail => $fail,
        step => $fail > 1 ? 3 : 1,
        before => sub {
            my $s = post('/queue', stream => 1);
            $fault->knows($s);
            $s->read_until('TEXT_MESSAGE_CONTENT', 5);
            return $s;
        },
        act => sub {
            my ($first) = @_;
            my $s = post('/queue', stream => 1);
            $fault->settle;
            $cancel->($first);
            $fault->settle;
            return $s;
        },
        check => sub { '' },
        after => sub {
            my ($first, $s) = @_;

            # where nothing failed, the second has begun by now
            my $again = $cancel->($first)->{status};
            return "the first cancelled again: $again"
                if $again !~ /^20[24]$/;
            $first->finish(5) || $first->{eof} or return 'the first goes on';
            my $is = $fault->status($s->{input}{runId}, '/queue');
            $cancel->($s);
            $s->finish(5) || $s->{eof} or return "the second goes on: $is";
            return AgentFault::wrong($s);
        });
}

{
    my $s = post('/queue', stream => 1);
    my @e = $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    is($e[-1]{data}{type}, 'TEXT_MESSAGE_CONTENT', 'the place is free');
    $s->close;
}

$fault->check_runs;

# Every place of max_inflight is free again, every connection that a cancelled
# call had is closed.
is(verdict(post('/one')), 'complete', 'a place is free') for 1 .. 3;
ok($t->wait_for(sub { $t->upstream->counts->{open} <= 4 }),
    'connections to the model') or diag($t->upstream->counts->{open});

$t->done;
