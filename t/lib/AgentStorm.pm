package AgentStorm;

# What the tests of replay zones share: a configuration, runs of which every
# byte is known, and many readers that come, are cut off and come again.

use strict;
use warnings;

use AgentProcess;
use AgentTest;
use Exporter 'import';
use Mojo::JSON qw(decode_json);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(replay_conf replay_nginx quiet text begin resume same cursors
    whole_of run_of told read_some full_lines as_nobody said);

# opts: workers, zone (its size), params (of the zone), main, http, server,
# listen, agents (name => words per second)
sub replay_conf {
    my ($t, %o) = @_;
    my %l = map { ($_ => $o{$_} // '') } qw(main http server listen params);
    my $zone = $o{zone} // '32m';
    my %agents = %{ $o{agents} // { fast => 300, slow => 40, crawl => 2 } };
    my ($blocks, $locations) = ('', '');

    for my $name (sort keys %agents) {
        $blocks .= <<"CONF";
    agent_model $name { provider echo; set tokens_per_second $agents{$name}; }
    agent $name { model $name; memory off; }
CONF
        $locations .= <<"CONF";
        location /$name { agent_pass $name; agent_owner off; }
CONF
    }

    $t->conf(<<"CONF");
%%GLOBALS%%
worker_processes ${\($o{workers} // 2)};
worker_rlimit_nofile 20000;
$l{main}
events { worker_connections 8192; }
http {
    %%GLOBALS_HTTP%%
    access_log off;
    agent_replay_zone runs:$zone $l{params};
    $l{http}
$blocks
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096 $l{listen};
        client_max_body_size 8m;
        add_header X-Worker \$pid always;
        agent_heartbeat 1s;
        $l{server}
$locations
    }
}
CONF
}

# As it is usually run: the master is root and its workers are not.
sub replay_nginx {
    my (%o) = @_;
    my $t = AgentTest->new(level => 'info', %{ $o{test} // {} });
    my $n = $o{workers} // 2;
    my $group = getgrgid((getpwnam 'nobody')[3] // -1);

    replay_conf($t, %o);

    if ($> == 0 && $group) {
        $t->{user} = "user nobody $group;";
        as_nobody($t);
    }

    $t->start;
    $t->wait_for(sub { $t->workers == $n }) or die "not $n workers\n";
    return $t;
}

sub as_nobody {
    my ($t) = @_;
    $t->{user} or return;
    $t->{conf} =~ s/user root;/$t->{user}/;
    $t->write_file('nginx.conf', $t->{conf});
}

# The end: no line above warn, no bell was lost.
sub quiet {
    my ($t, @expected) = @_;
    $t->expect_log(@expected);
    $t->stop;
    my @bad = above_warn($t);
    ok(!@bad, 'nothing above warn in the log') or diag join "\n", @bad;
    unlike($t->log, qr/nobody had told them/, 'no bell was lost');
}

sub full_lines { my $n = () = $_[0]->log =~ /zone "runs" is full/g; return $n }

# What an echo says to n words.
sub text { return join ' ', map {"w$_"} 1 .. $_[0] }

# A run that echoes n words; returns at once.
sub begin {
    my ($t, $path, $n, %o) = @_;
    my $text = $o{text} // text($n);
    my $s = $t->post_run({ text => $text, %{ $o{input} // {} } },
        path => $path, stream => 1, headers => $o{headers});
    @$s{qw(path id want)} = ($path, $s->{input}{runId}, "You said: $text");
    return $s;
}

# The stream of a run from behind the event "seq" (-1: from its start).
sub resume {
    my ($t, $run, $seq, %o) = @_;
    my @headers = @{ $o{headers} // [] };
    my $path = "$run->{path}/runs/$run->{id}/stream";

    if ($seq >= 0) {
        my $cursor = "$run->{generation}-$seq";
        $o{after} //= rand 2 < 1;
        if ($o{after}) {
            $path .= "?after=$cursor";
        } else {
            push @headers, 'Last-Event-ID' => $cursor;
        }
    }

    my $s = $t->open_stream('GET', $path, \@headers, undef, \%o);
    @$s{qw(path id seq after)} = (@$run{qw(path id)}, $seq, $o{after});
    return $s;
}

# The generation and newest seq in what has come of a stream; false: none yet.
sub cursors {
    my ($s) = @_;
    my $i = rindex $s->{body}, "id: ";
    substr($s->{body}, $i < 0 ? 0 : $i) =~ /\Aid: (\d+)-(\d+)\n/ or return;
    @$s{qw(generation newest)} = ($1, $2);
    return 1;
}

# The events of a stream as bytes, without heartbeats.
sub told { return $_[0]{body} =~ s/^: ping\n\n//mgr }

# The whole stream of a run once more: its bytes, and where each event begins.
sub whole_of {
    my ($t, $run, %o) = @_;
    my $s = resume($t, $run, -1, %o);
    $s->finish($o{timeout} // 20);
    $s->close;
    my $bytes = told($s);
    my @at;
    push @at, $-[0] while $bytes =~ /\G.*?\n\n/gs;
    push @at, length $bytes;
    return { stream => $s, bytes => $bytes, at => \@at };
}

# What is wrong with a reader of that run: '' when it has the very bytes that
# follow its cursor, to the end if it says so.
sub same {
    my ($whole, $s) = @_;
    my $got = told($s);
    my $from = $whole->{at}[ $s->{seq} + 1 ] // return 'a cursor ahead';
    my $resume = $s->header('x-agent-resume') // 'complete';

    return '' if !$s->{status};

    # of the terminal event, once the run is over: nothing, or it again

    if ($s->{seq} == @{ $whole->{at} } - 2) {
        return '' if $s->{status} == 204 && !$s->{after};
        $from = $whole->{at}[ $s->{seq} ] if $s->{after};
    }

    return "status $s->{status}" if $s->{status} != 200;
    return "resume $resume" if $resume ne 'complete';
    return 'other bytes'
        if $got ne substr $whole->{bytes}, $from, length $got;
    return 'not the end'
        if $s->{complete} && length($got) != length($whole->{bytes}) - $from;
    return 'cut' if $s->{eof} && !$s->{complete} && !$s->{may_be_cut};
    return '';
}

# What a client has of the text of a run's messages in the end.
sub said {
    my ($s) = @_;
    my (%text, @order);

    for my $f (@{ $s->events }) {
        my $e = $f->{data} // next;
        if ($e->{type} eq 'MESSAGES_SNAPSHOT') {
            @order = ();
            %text = ();
            for my $m (grep { $_->{role} eq 'assistant' } @{ $e->{messages} }) {
                push @order, $m->{id};
                $text{ $m->{id} } = $m->{content} // '';
            }
        } elsif ($e->{type} eq 'TEXT_MESSAGE_START') {
            push @order, $e->{messageId} if !exists $text{ $e->{messageId} };
            $text{ $e->{messageId} } //= '';
        } elsif ($e->{type} eq 'TEXT_MESSAGE_CONTENT') {
            $text{ $e->{messageId} } .= $e->{delta};
        }
    }

    return join "\n", map { $text{$_} } @order;
}

sub run_of {
    my ($t, $path, $id, @headers) = @_;
    my $r = $t->request('GET', "$path/runs/$id", [@headers]);
    return join ' ', grep { defined } $r->json->{status} // $r->{status},
        $r->json->{code};
}

# Reads what is there of these streams, or waits a little.
sub read_some {
    my ($wait, @s) = @_;
    my $r = '';
    my @open = grep { $_->{sock} && !$_->{complete} && !$_->{eof} } @s;

    vec($r, fileno $_->{sock}, 1) = 1 for @open;
    select($r, undef, undef, $wait) > 0 or return;
    $_->_fill(0) for grep { vec $r, fileno $_->{sock}, 1 } @open;
}

1;
