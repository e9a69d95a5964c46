#!/usr/bin/perl

# P/runs/{id}/events: the log of a run as typed rows.  Each row is checked
# against the rules of the format, then all of them against the stream.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Mojo::JSON qw(decode_json encode_json);
use Test::More;

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(
    text   => 'words,n=40',
    tools  => script('tool', args => '{"city":"Paris"}'),
    reason => 'reason',
    bad    => 'cut,at=content',
    slow   => 'words,n=2000,delay=0.02',
    long   => 'words,n=8000',
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 2;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    access_log off;
    keepalive_requests 100000;
    agent_replay_zone runs:4m max_run=32k;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
$locations
        location /of { agent_resume text; agent_owner off; }
    }
}
CONF
$t->start;

my %class = map { ($_ => 'delta') } qw(TEXT_MESSAGE_CONTENT TOOL_CALL_ARGS
    REASONING_MESSAGE_CONTENT);
my %payload = (
    RUN_STARTED => [], RUN_FINISHED => [], RUN_ERROR => [],
    TEXT_MESSAGE_START => [qw(messageId contentId role)],
    TEXT_MESSAGE_CONTENT => [qw(messageId)],
    TEXT_MESSAGE_END => [qw(messageId)],
    TOOL_CALL_START => [qw(toolCallId toolCallName parentMessageId)],
    TOOL_CALL_ARGS => [qw(toolCallId)], TOOL_CALL_END => [qw(toolCallId)],
    REASONING_START => [qw(messageId)], REASONING_END => [qw(messageId)],
    REASONING_MESSAGE_START => [qw(messageId)],
    REASONING_MESSAGE_CONTENT => [qw(messageId)],
    REASONING_MESSAGE_END => [qw(messageId)],
);

# what is wrong with a row; %$calls: the message of each call
sub wrong {
    my ($row, $run, $calls) = @_;
    my $type = $row->{event_type};
    my $p = $row->{payload};
    my @keys = qw(event_id event_type run_id event_class span_id parent_span_id
        turn_id origin_event_type origin_custom_name unrecoverable_fields
        created_at is_error payload);
    return 'keys' if join(' ', sort keys %$row) ne join ' ', sort @keys;
    return 'type' if !$payload{$type} || $type ne $row->{origin_event_type}
        || $p->{type} ne $type;
    return 'class' if $row->{event_class} ne ($class{$type} // 'fact');
    return 'run' if $row->{run_id} ne $run;
    return 'time'
        if $row->{created_at} !~ /^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
    return 'nulls' if defined $row->{origin_custom_name}
        || encode_json($row->{unrecoverable_fields}) ne '[]';
    return 'error' if !!$row->{is_error} != ($type eq 'RUN_ERROR');
    return "payload: $_" for grep { !length($p->{$_} // '') } @{ $payload{$type} };
    return 'delta' if $class{$type} && !defined $p->{delta};

    my ($span, $parent) = ("run:$run", undef);
    my $turn;

    if (my $id = $p->{toolCallId}) {
        $calls->{$id} = $p->{parentMessageId} if $type eq 'TOOL_CALL_START';
        $span = "tool:$id";
        $parent = $turn = "message:$calls->{$id}";

    } elsif ($p->{messageId}) {
        $span = $turn = "message:$p->{messageId}";
    }

    return 'span' if $row->{span_id} ne $span;
    return 'parent' if ($row->{parent_span_id} // '') ne ($parent // '');
    return 'turn' if ($row->{turn_id} // '') ne ($turn // '');
    return '';
}

sub rows {
    my ($url) = @_;
    my $r = $t->request('GET', $url);
    return $r->{status} == 200 ? $r->json : { status => $r->{status},
        code => $r->json->{error}{code} };
}

# all pages from here; the rows, and what was wrong
sub walk {
    my ($url, $run, $calls) = @_;
    my (@rows, $pages, $bad);

    while ($url && ++$pages < 1000) {
        my $page = rows($url);
        return ([], "status $page->{status}") if $page->{status};

        for my $row (@{ $page->{data} }) {
            my $w = wrong($row, $run, $calls);
            $bad //= "row $row->{event_id}: $w" if $w;
            push @rows, $row;
        }

        $url = $page->{page_info}{next};
    }

    return (\@rows, $bad // '');
}

for my $name (qw(text tools reason bad)) {
    subtest $name => sub {
        my $s = $t->post_run({}, path => "/$name");
        my $run = $s->{input}{runId};
        my @events = map { decode_json($_->{json}) } @{ $s->events };

        for my $limit (1, 2, 3, 7, 100, 1000) {
            my %calls;
            my ($rows, $bad) = walk("/$name/runs/$run/events?limit=$limit",
                $run, \%calls);
            is($bad, '', "pages of $limit: rows as they must be");
            is(join(' ', map { $_->{event_id} } @$rows),
                join(' ', 0 .. $#events), '... each once, in order');
            my @p = map { my %p = %{ $_->{payload} };
                delete $p{contentId}; \%p } @$rows;
            is_deeply(\@p, \@events, '... the payloads are the events');
        }

        # the page in the middle knows what came before it
        for my $i (0 .. $#events - 1) {
            my %calls = map { ($_->{toolCallId} => $_->{parentMessageId}) }
                grep { $_->{type} eq 'TOOL_CALL_START' } @events;
            my ($rows, $bad) = walk("/$name/runs/$run/events?after=$i", $run,
                \%calls);
            next if $bad eq '' && @$rows == @events - $i - 1
                && $rows->[0]{event_id} == $i + 1;
            fail("after $i: $bad, " . @$rows . ' rows');
        }
    };
}

subtest 'what is asked for' => sub {
    my $s = $t->post_run({}, path => '/text');
    my $u = "/text/runs/$s->{input}{runId}/events";
    my $last = $s->events->[-1]{id};
    my ($gen, $n) = split /-/, $last;

    is(@{ rows($u)->{data} }, $n + 1, 'all');
    is(rows("$u?format=typed&limit=5")->{page_info}{next},
        "$u?format=typed&limit=5&after=$gen-4", 'the next page');
    is(rows("$u?limit=5&after=$gen-4")->{page_info}{self},
        "$u?format=typed&limit=5&after=$gen-4", '... itself');
    is_deeply(rows("$u?after=$last"), { data => [],
        page_info => { self => "$u?format=typed&limit=100&after=$last",
            next => undef } }, 'behind the last');
    is(@{ rows("$u?limit=5000")->{data} }, $n + 1, 'a limit is capped');
    is(rows("$u?limit=$_")->{code}, 'bad_request', "limit=$_")
        for '0', '-1', 'x', '', '1.5', '99999999999999999999';
    is(rows("$u?format=$_")->{code}, 'bad_request', "format=$_")
        for 'x', '', 'typed2';
    is(rows("$u?after=$_")->{code}, 'bad_cursor', "after=$_")
        for 'x', '-1', '1-', "$last-1", '01';
    is(rows('/text/runs/none/events')->{code}, 'not_found', 'no run');
    is($t->request('POST', $u)->header('allow'), 'GET, HEAD', 'not POST');
    is($t->request('HEAD', $u)->{status}, 200, 'HEAD');
    my $r = $t->request('GET', "$u?after=17-3");
    is($r->header('x-agent-resume'), 'unknown', 'another generation');
    is(@{ $r->json->{data} }, $n + 1, '... all rows');
    is(@{ rows("/of/$s->{input}{runId}/events")->{data} }, $n + 1,
        'agent_resume');
    is($t->request('GET', $u)->header('cache-control'), 'private, no-store',
        'not to be kept');
};

subtest 'a run that goes on' => sub {
    my $s = $t->post_run({}, path => '/slow', stream => 1);
    my $run = $s->{input}{runId};
    $s->read_until('TEXT_MESSAGE_CONTENT', 10);
    my ($last, $bad) = (-1, '');

    # both workers, again and again: no row twice, none missing
    my $more = sub {
        my $page = rows("/slow/runs/$run/events?limit=3"
            . ($last < 0 ? '' : "&after=$last"));

        for my $row (@{ $page->{data} }) {
            $bad ||= "$last, then $row->{event_id}"
                if $row->{event_id} != $last + 1;
            $last = $row->{event_id};
        }

        return $last > 60;
    };

    ok($t->wait_for($more, 20), 'rows come as the run goes on');
    is($bad, '', 'they follow each other');
    is($t->request('DELETE', "/slow/runs/$run")->{status}, 202, 'stop');
    $s->finish(10);
    $s->close;
    my ($rows) = walk("/slow/runs/$run/events?after=$last", $run, {});
    is($rows->[-1]{event_type}, 'RUN_FINISHED', 'the last one');
};

subtest 'a long run has lost its beginning' => sub {
    my $s = $t->post_run({}, path => '/long');
    my $u = "/long/runs/$s->{input}{runId}/events";
    my $n = @{ $s->events };
    my $r = $t->request('GET', "$u?after=3");
    is($r->header('x-agent-resume'), 'gap', 'the page says so');
    my $first = $r->json->{data}[0]{event_id};
    cmp_ok($first, '>', 4, 'it begins with what is kept');
    my ($rows, $bad) = walk("$u?limit=1000", $s->{input}{runId}, {});
    is($bad, '', 'rows as they must be');
    is(join(' ', map { $_->{event_id} } @$rows), join(' ', $first .. $n - 1),
        '... to the end');
    $r = $t->request('GET', "$u?after=" . ($n - 5));
    is($r->header('x-agent-resume'), undef, 'the end is whole');
    is(@{ $r->json->{data} }, 4, '... and read');
};

$t->done;
