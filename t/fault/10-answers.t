#!/usr/bin/perl

# Memory runs out in the middle of a POST: as a stream and as a JSON answer,
# through the built-in model and through a model server, with a large body of
# tools and tool results.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/../lib";

use AgentFault;
use AgentTest;
use Test::More;

my $t = AgentTest->new(level => 'info');
my $fault = AgentFault->new($t);
my ($http, $locations) = agent_blocks(
    ok   => 'ok',
    tool => script('tool', args => '{"city":"Paris"}'),
);

# Few connections: one that is lost with each failure is missed soon.
$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 64; }
http {
    %%GLOBALS_HTTP%%
    client_max_body_size 8m;
$http
    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; memory off; }
    server {
        listen 127.0.0.1:%%PORT%%;
$locations
        location /plain { agent_pass echo; agent_owner off; }
        location /echo { agent_pass echo; agent_owner off; }
    }
}
CONF

$t->start;

sub post {
    my ($path, $input, $accept) = @_;
    my $s = $t->post_run($input, path => $path, timeout => 3,
        accept => $accept);
    $s->{path} = $path;
    return $s;
}

my $JSON = 'application/json';

sub text { my ($text) = @_; return sub { $_[0]{text} eq $text } }

for my $fail (1, 1e9) {
    my $name = $fail > 1 ? ', and all after it' : '';

    $fault->every("a stream$name", fail => $fail, text => 'Hello, world!',
        act => sub { post('/ok') });
    $fault->every("a JSON answer$name", fail => $fail,
        json => text('Hello, world!'), act => sub { post('/ok', {}, $JSON) });
    $fault->every("a stream of the built-in model$name", fail => $fail,
        text => 'You said: a b c',
        act => sub { post('/echo', { text => 'a b c' }) });
    $fault->every("a JSON answer of the built-in model$name", fail => $fail,
        json => text('You said: a b c'),
        act => sub { post('/echo', { text => 'a b c' }, $JSON) });
}

my %tools = (
    tools => [ map { {
        name        => "get_weather$_",
        description => 'The weather of a city ' x 5,
        parameters  => {
            type       => 'object',
            properties => { city => { type => 'string' } },
        },
    } } '', 1 .. 2 ],
    messages => [
        { id => 'u', role => 'user', content => 'weather ' x 6000 },
        {   id        => 'a',
            role      => 'assistant',
            toolCalls => [ map { {
                id       => "call-$_",
                type     => 'function',
                function => { name => 'get_weather', arguments => '{}' },
            } } 1 .. 2 ],
        },
        (map { {
            id         => "t$_",
            role       => 'tool',
            toolCallId => "call-$_",
            content    => "sunny$_ " x 4000,
        } } 1 .. 2),
    ],
);

$fault->every('tools, their results and 100 KB',
    act => sub { post('/tool', {%tools}) });
$fault->every('tools, their results and 100 KB, as JSON', step => 3,
    act => sub { post('/tool', {%tools}, $JSON) });
$fault->every('a call of a tool',
    act => sub { post('/tool', { tools => $tools{tools} }) });

$fault->check_runs;
cmp_ok($t->upstream->counts->{open}, '<=', 2, 'connections to the model');

$t->done;
