#!/usr/bin/perl

# Memory runs out around a replay zone: while events are appended and read, a
# run that is over is opened again, folded for a snapshot or an answer, or given
# as the checkpoint of what is gone.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use AgentFault;
use AgentHook;
use AgentProcess;
use AgentTest;
use Test::More;

my $hook = AgentHook->new;
my $t = AgentTest->new(level => 'info');
my $fault = AgentFault->new($t);

$t->conf(<<'CONF');
%%GLOBALS%%
worker_processes 1;
events { worker_connections 64; }
http {
    %%GLOBALS_HTTP%%
    agent_replay_zone runs:4m max_run=32k retain=3s;
    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; memory off; }
    server {
        listen 127.0.0.1:%%PORT%%;
        client_max_body_size 1m;
        location /plain { agent_pass echo; agent_owner off; }
    }
}
CONF

$t->start;

my $SSE = 'text/event-stream';
my $JSON = 'application/json';
my $long = join ' ', map {"word$_"} 1 .. 6000;
my %text = (short => 'one two three', long => $long);

sub post {
    my (%o) = @_;
    my $s = $t->post_run({ text => $text{ $o{text} // 'short' },
        %{ $o{input} // {} } }, path => '/plain', timeout => 20,
        accept => $o{accept} // $SSE);
    $s->{path} = '/plain';
    return $s;
}

# A run that is over and no longer in the worker's memory.
sub ended {
    my ($text) = @_;
    my $s = post(text => $text);
    $fault->knows($s);
    my ($cursor) = $s->{body} =~ /^id: (\d+-)\d+$/m;
    return { id => $s->{input}{runId}, thread => $s->{input}{threadId},
        text => $text, cursor => $cursor };
}

sub at { return $_[0] =~ s/%s/$_[1]{cursor}/r }

sub get {
    my ($run, $query, @headers) = @_;
    return $t->request('GET', "/plain/runs/$run->{id}/stream$query",
        [@headers], undef, { timeout => 20 });
}

$t->request('GET', '/plain/runs/none');
my $before = $hook->zone;

for my $fail (1, 2, 1e9) {
    for my $accept ($SSE, $JSON) {
        $fault->every("a run, $accept, $fail", fail => $fail,
            text => "You said: $text{short}",
            json => sub { $_[0]{text} eq "You said: $text{short}" },
            act  => sub { post(accept => $accept) });
    }

    # its log loses events while it is written
    $fault->every("a long run, $fail", fail => $fail, step => 3,
        check => sub {
            my ($s) = @_;
            return 'nothing came' if !$s->{complete} && !$s->{eof};
            my $type = $s->header('content-type') // '';
            return wrong_json($s) if $type eq $JSON;
            my $v = $s->{status} && $type eq $SSE ? verdict($s) : 'cut';
            return $v =~ /^(?:complete|cut|internal|gap)$/ ? '' : $v;
        },
        act => sub { post(text => 'long') });

    my %case = (
        'from its start'   => [ short => '' ],
        'from an event'    => [ short => '?after=%s2' ],
        'as a snapshot'    => [ short => '?mode=join' ],
        'after a gap'      => [ long  => '?after=%s2' ],
        'a long snapshot'  => [ long  => '?mode=join' ],
    );

    for my $name (sort keys %case) {
        my ($text, $query) = @{ $case{$name} };
        my ($want, $run);

        $fault->every("an ended run $name, $fail", fail => $fail,
            before => sub {
                $run = ended($text);
                $want = get($run, at($query, $run))->{body};
            },
            act   => sub { get($run, at($query, $run)) },
            check => sub {
                my ($s) = @_;
                my $type = $s->header('content-type') // '';
                return 'nothing came' if !$s->{complete} && !$s->{eof};
                return '' if !$s->{complete} || $s->{status} == 500;
                return wrong_json($s) if $type eq $JSON;
                return "status $s->{status}" if $s->{status} != 200;
                return $s->{body} eq $want
                    || $s->{body} =~ /"code":"(?:internal|gap)"\}\n\n\z/
                    ? '' : "other events: $s->{body}, not $want";
            });
    }

    for my $accept ($SSE, $JSON) {
        my $run;

        $fault->every("an ended run is begun again, $accept, $fail",
            fail   => $fail,
            before => sub { $run = ended('short') },
            text   => "You said: $text{short}",
            json   => sub { $_[0]{text} eq "You said: $text{short}" },
            act    => sub {
                post(accept => $accept, input => { runId => $run->{id},
                    threadId => $run->{thread} });
            });
    }
}

sub wrong_json {
    my ($s) = @_;
    return '' if !$s->{complete};
    return $s->{status} >= 400 && $s->json->{error}{code} ? ''
        : "an answer: $s->{status} $s->{body}";
}

$fault->check_runs;

ok($t->wait_for(sub {
    $t->request('GET', '/plain/runs/none') for 1 .. 8;
    $hook->zone->{nobjects} == 0;
}, 20), 'all runs are forgotten');
is($hook->zone->{nfree}, $before->{nfree}, '... with all their memory');
is($hook->zone->{resets}, 0, '... and the zone was never emptied');

$t->expect_log(qr/zone "runs" is full/);
$t->done;
