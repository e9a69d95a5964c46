#!/usr/bin/perl

# Memory runs out in the requests about runs: status, cancel, capabilities, a
# second POST of a runId, a preflight.

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
    ok      => 'ok',
    hang    => 'hang,at=content',
    several => 'words,n=6,delay=0.01',
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
        location /cors {
            agent_pass echo;
            agent_owner off;
            agent_cors https://app.example.com;
        }
    }
}
CONF

$t->start;

my $run = $t->post_run({}, path => '/ok');
my $id = $run->{input}{runId};

# A run of the model server that is in the middle of its answer; "hang" says no
# more after its second word.
sub begin {
    my ($path, $word) = @_;
    my $s = $t->post_run({}, path => $path, stream => 1);
    $s->{path} = $path;
    $fault->knows($s);
    $s->read_until(sub { ($_[0]{data}{delta} // '') eq $word }, 10);
    return $s;
}

sub stop {
    my ($s, $how) = @_;
    my $verdict;
    $s->finish(5) || $s->{eof} or return 'the stream of the run did not end';
    $verdict = verdict($s);
    return $verdict =~ $how ? '' : "the run: $verdict";
}

for my $fail (1, 2, 1e9) {
    my $name = $fail == 1 ? ''
        : $fail == 2 ? ', and the one after it' : ', and all after it';

    $fault->every("a status$name", fail => $fail,
        json => sub { $_[0]{status} eq 'finished' && $_[0]{runId} eq $id },
        act  => sub { $t->request('GET', "/ok/runs/$id", {}, undef,
            { timeout => 5 }) });

    $fault->every("of a run that is none$name", fail => $fail, status => 404,
        act  => sub { $t->request('GET', "/ok/runs/none", {}, undef,
            { timeout => 5 }) });

    $fault->every("capabilities$name", fail => $fail,
        json => sub { $_[0]{transport}{streaming} },
        act  => sub { $t->request('GET', '/ok/capabilities', {}, undef,
            { timeout => 5 }) });

    $fault->every("a preflight$name", fail => $fail, status => 204,
        act => sub { $t->request('OPTIONS', '/cors', [
            Origin                           => 'https://app.example.com',
            'Access-Control-Request-Method'  => 'POST',
            'Access-Control-Request-Headers' => 'content-type',
        ], undef, { timeout => 5 }) },
        after => sub {
            my ($value, $s) = @_;
            return '' if ($s->{status} // 0) != 204;
            return join ' ', 'without', grep { !$s->header($_) }
                map {"access-control-allow-$_"} qw(origin methods headers)
                if grep { !$s->header("access-control-allow-$_") }
                qw(origin methods headers);
            return '';
        });

    # A cancel that failed is asked for again.
    $fault->every("a cancel$name", fail => $fail, status => 202,
        before => sub { begin('/hang', ', ') },
        act    => sub {
            my ($s) = @_;
            return $t->request('DELETE', "/hang/runs/$s->{input}{runId}", {},
                undef, { timeout => 5 });
        },
        after => sub {
            my ($s, $answer) = @_;
            my $again = $t->request('DELETE',
                "/hang/runs/$s->{input}{runId}");
            return "the second cancel: $again->{status}"
                if $again->{status} !~ /^20[24]$/;
            return stop($s, qr/^(?:cancelled|cut|internal)$/);
        });

    # The second reader may fail, the first must not notice.
    $fault->every("a second POST of a run$name", fail => $fail,
        before => sub { begin('/hang', ', ') },
        act    => sub {
            my ($s) = @_;
            my $second = $t->post_run($s->{input}, path => '/hang',
                stream => 1);
            $second->read_event(5);
            return $second;
        },
        check => sub { '' },
        after => sub {
            my ($s, $second) = @_;
            $t->request('DELETE', "/hang/runs/$s->{input}{runId}");
            return stop($s, qr/^cancelled$/) || do {
                $second->finish(5);
                AgentFault::wrong($second, text => 'w1 w2 w3 w4 w5 w6');
            };
        });
}

$fault->every("a second POST of a run, as JSON",
    before => sub { begin('/several', 'w1') },
    act    => sub {
        my ($s) = @_;
        return $t->post_run($s->{input}, path => '/several', timeout => 5,
            accept => 'application/json');
    },
    json  => sub { $_[0]{text} eq 'w1 w2 w3 w4 w5 w6' },
    after => sub { stop($_[0], qr/^(?:complete|cut|internal)$/) });

$fault->check_runs;

ok($t->wait_for(sub { $t->upstream->counts->{open} <= 2 }),
    'connections to the model') or diag($t->upstream->counts->{open});

$t->done;
