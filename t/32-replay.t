#!/usr/bin/perl

# A run in a replay zone: read, resumed, joined and stopped on the worker that
# runs it and on another one, while it goes on and after its end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentClient;
use AgentReplay;
use AgentTest;
use Compress::Zlib ();
use Mojo::JSON qw(decode_json encode_json);
use Test::More;
use Time::HiRes qw(sleep time);

my $t = AgentTest->new;
my $u = $t->upstream;

sub agents {
    my ($http, $locations) = agent_blocks(map {
        my ($name, $zone, $agent, $location) = @$_;
        ($name => {
            script   => "plan,for=$name",
            agent    => ($zone ? "replay_zone $zone;" : '') . ($agent // ''),
            location => $location // '',
        })
    } @_);
    return ($http, $locations);
}

my ($http, $locations) = agents(
    [ 'chat',   'runs' ],
    [ 'small',  'small' ],
    [ 'brief',  'brief' ],
    [ 'cancel', 'runs', 'on_disconnect cancel;' ],
    [ 'beat',   'runs', '', 'agent_heartbeat 200ms;' ],
    [ 'local',  '' ],
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 3;
events { worker_connections 1024; }
http {
    %%GLOBALS_HTTP%%
    log_format run '\$agent_run_id \$request_method \$status '
        'resume=\$agent_resume status=\$agent_status '
        'reason=\$agent_finish_reason in=\$agent_input_tokens '
        'out=\$agent_output_tokens events=\$agent_events';
    access_log %%DIR%%/access.log run;
    client_max_body_size 4m;
    client_body_buffer_size 1m;
    keepalive_requests 100000;
    agent_replay_zone runs:8m retain=1m;
    agent_replay_zone small:2m retain=1m max_run=32k;
    agent_replay_zone brief:1m retain=1s;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        listen 127.0.0.1:%%PORT1%% reuseport sndbuf=8k;
        listen 127.0.0.1:%%PORT2%% reuseport http2;
        add_header X-Worker \$pid always;
        location = /who { return 204; }
$locations
        location /zip {
            agent_pass chat;
            agent_owner off;
            gzip on;
            gzip_types text/event-stream;
            gzip_min_length 1;
        }
        location /of/ { agent_pass chat; agent_owner \$arg_who\$http_x_owner; }
        location /streams/ { agent_resume chat; agent_owner off; }
        location /mine/ { agent_resume chat; agent_owner \$http_x_owner; }
    }
}
CONF
$t->start;

my $w = AgentReplay->new($t);
my ($here, $there, $third) = $w->workers;
my %both = (here => $here, there => $there);

sub outcome {
    my ($r) = @_;
    return join ' ', grep { defined } $r->{status} // '-',
        ref $r->json eq 'HASH' ? $r->json->{error}{code} : undef;
}

# One test: this answer is the tail of "all" that begins behind the cursor.
sub is_tail {
    my ($r, $all, $seq, $name) = @_;
    my @all = @{ $all->events };
    my ($generation) = $all[0]{id} =~ /^(\d+)-0$/;
    my $want = join '', map { $_->{raw} } @all[ $seq + 1 .. $#all ];
    my @bad;

    push @bad, "status $r->{status}" if $r->{status} != 200;
    push @bad, 'cut' if !$r->{complete};
    push @bad, 'other bytes' if $r->{body} =~ s/^: ping\n\n//mgr ne $want;
    my %want = (
        'content-type'          => 'text/event-stream',
        'x-agent-resume'        => 'complete',
        'x-agent-last-event-id' => $seq < 0 ? undef : "$generation-$seq",
        'x-agent-run-id'        => $all->header('x-agent-run-id'),
        'x-agent-thread-id'     => $all->header('x-agent-thread-id'),
        'cache-control'         => 'no-cache, no-store, no-transform',
        'x-accel-buffering'     => 'no',
        'x-agent-attached'      => undef,
    );

    for my $h (sort keys %want) {
        my $got = $r->header($h);
        push @bad, "$h: " . ($got // '-')
            if ($got // '-') ne ($want{$h} // '-');
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return ok(!@bad, $name)
        || diag join "\n", @bad, length $r->{body}, substr $r->{body}, 0, 300;
}

subtest 'every cursor' => sub {
    my $s = $w->post($here, 'reason 3; text 5 40; call 0 3; call 1 3; gate a;'
        . 'call 0 1; text 5 3000; gate b; text 3');
    $s->finish(0.2);
    ok($w->wait_seq($there, $s, 10), 'it runs');
    my ($gen, $now) = $w->get($there, $s->{url})->json->{lastEventId}
        =~ /^(\d+)-(\d+)$/;
    my (%live, @bare);

    for my $seq (-1 .. $now) {
        for my $where (qw(here there)) {
            $live{"$where $seq"} = $w->open($both{$where}, 'GET',
                "$s->{url}/stream",
                $seq < 0 ? {} : { 'Last-Event-ID' => "$gen-$seq" });
        }
    }

    $_->read_head(10) for values %live;
    is(join(' ', grep { ($live{$_}{head_time} // 99) > 8 } sort keys %live), '',
        'their heads come at once, also where nothing follows');
    $w->open_gate('a');
    $w->open_gate('b');
    $s->finish(10);
    AgentClient->read_all(20, values %live);
    check_run($s->events, outcome => 'success', name => 'the run');
    ok(is_tail($live{$_}, $s, (split)[1], "live, $_")) for sort keys %live;
    $_->close for values %live, $s;

    my $last = @{ $s->events } - 1;

    for my $seq (0 .. $last) {
        my $id = $s->events->[$seq]{id};
        is($id, "$gen-$seq", 'ids count') if $id ne "$gen-$seq";

        for my $where (qw(here there)) {
            my $get = sub {
                my ($q, @h) = @_;
                return $w->get($both{$where}, "$s->{url}/stream$q", @h);
            };

            if ($seq == $last) {
                my $r = $get->('', 'Last-Event-ID' => $id);
                is("$r->{status}$r->{body}", 204, "$where, the end: 204");
                is($r->header('x-agent-resume'), 'complete', '... complete');
                is($get->('?after=0', 'Last-Event-ID' => $seq)->{status}, 204,
                    '... a bare number, the header wins');
                $r = $get->("?after=$id");
                is_tail($r, $s, $seq - 1, '... after=: once more');
                $r = $get->("?after=$seq");
                is_tail($r, $s, $seq - 1, '... a bare number');
                next;
            }

            is_tail($get->('', 'Last-Event-ID' => $id), $s, $seq,
                "$where, Last-Event-ID $seq");
            is_tail($get->("?after=$id"), $s, $seq, "$where, after=$seq");
            is_tail($get->('?after=3', 'last-event-id' => $seq), $s, $seq,
                "$where, the header wins, a bare number");
        }
    }

    is_tail($w->get($there, "$s->{url}/stream$_"), $s, -1, "no cursor: \"$_\"")
        for '', '?after=', '?other=5-5';
};

$t->done;
