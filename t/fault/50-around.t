#!/usr/bin/perl

# Memory runs out among what surrounds a run: an owner and a thread made of
# variables, a log of ours, gzip, a subrequest, error pages, TLS to the model.
# Not HTTP/2: nginx 1.22 itself crashes in ngx_http_v2_construct_request_line()
# and forgets the stream in ngx_http_v2_header_filter().

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
    tls => {
        url   => 'https://model.test:%%TLS_GOOD%%/ok/v1',
        model => 'ssl_trusted_certificate %%CA%%;',
        location => 'resolver 127.0.0.1:%%DNS%% ipv6=off;',
    },
    page => {
        script   => 'status,code=500',
        location => 'agent_intercept_errors on;
            agent_cors https://app.example.com;
            error_page 502 = @page;',
    },
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 64; }
http {
    %%GLOBALS_HTTP%%
    log_format agent '\$uri|\$agent_run_id|\$agent_thread_id|\$agent_name|'
        '\$agent_model|\$agent_status|\$agent_finish_reason|'
        '\$agent_input_tokens|\$agent_output_tokens|'
        '\$agent_first_token_time|\$agent_events|\$agent_resume';
    access_log %%DIR%%/agent.log agent;
$http
    agent_model echo { provider echo; set tokens_per_second 0; }
    agent echo { model echo; memory off; }
    server {
        listen 127.0.0.1:%%PORT%%;
$locations
        location /plain { agent_pass echo; agent_owner off; }
        location /around {
            agent_pass echo;
            agent_owner "\$http_x_user/\$server_name";
            agent_thread "of-\$http_x_user";
            agent_cors https://app.example.com;
            auth_request /auth;
            add_header X-Run \$agent_run_id;
            gzip on;
            gzip_types text/event-stream application/json;
            gzip_min_length 0;
        }
        location = /auth { internal; return 204; }
        location \@page { return 502 "a page of ours, \$agent_run_id\\n"; }
    }
}
CONF

$t->upstream->dns('model.test' => '127.0.0.1');
$t->start;

my $JSON = 'application/json';

sub post {
    my ($path, %o) = @_;
    my $s = $t->post_run(delete $o{input} // {}, path => $path, timeout => 10,
        %o);
    $s->{path} = $path;
    return $s;
}

for my $fail (1, 2, 1e9) {
    for my $accept ('text/event-stream', $JSON) {
        $fault->every("much around it, $accept, $fail", fail => $fail,
            text => 'You said: Hello.',
            json => sub { $_[0]{text} eq 'You said: Hello.' },
            act  => sub {
                my $s = post('/around', accept => $accept,
                    input => { threadId => undef }, headers => [
                        'X-User' => 'ann',
                        Origin   => 'https://app.example.com',
                    ]);
                delete $s->{path};
                return $s;
            });
    }

    $fault->every("gzip, $fail", fail => $fail, check => sub {
            my ($s) = @_;
            return $s->{complete} || $s->{eof} ? '' : 'nothing came';
        },
        act => sub {
            my $s = post('/around', input => { threadId => undef }, headers =>
                [ 'X-User' => 'ann', 'Accept-Encoding' => 'gzip' ]);
            delete $s->{path};
            return $s;
        });

    $fault->every("TLS to the model, $fail", fail => $fail,
        text => 'Hello, world!', act => sub { post('/tls') });

    $fault->every("an error page, $fail", fail => $fail,
        status => '502|503',
        act => sub { post('/page', headers =>
            [ Origin => 'https://app.example.com' ]) });
}

$fault->check_runs;

ok($t->wait_for(sub { $t->upstream->counts->{open} <= 4 }),
    'connections to the model') or diag($t->upstream->counts->{open});

$t->done;
