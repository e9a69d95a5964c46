#!/usr/bin/perl

# Runs in a replay zone and many readers that come, are cut off and come again,
# on all workers, through reloads and in zones that are too small.  AGENT_SCALE
# makes it longer and larger.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentProcess;
use AgentStorm;
use AgentTest;
use List::Util qw(max min shuffle);
use Test::More;
use Time::HiRes qw(sleep time);

use constant SLACK => 20;

my $scale = $ENV{AGENT_SCALE} || 1;
my $asan = $ENV{ASAN_OPTIONS} ? 40 : 0;    # MB: it keeps what was freed

# Runs that stream and readers that come back, until there were so many resumes.
# opts: runs and readers at a time, resumes, words, path, tick (called often),
# quota (resumes of one run), seconds, may_go (logs may be lost).  Returns what
# was seen.
sub race {
    my ($t, %o) = @_;
    my ($runs, $readers) = ($o{runs} // 12, $o{readers} // 40);
    my $quota = $o{quota} // 40;
    my (@runs, @open, %bad, %worker, %gone);
    my ($n, $bytes, $complete) = (0, 0, 0);
    my $stop = time + ($o{seconds} // 1e9);
    my $more = sub { $n < $o{resumes} && time < $stop };

    while ($more->() || @open || @runs) {
        $o{tick}->() if $o{tick};

        while ($more->() && @runs < $runs) {
            my $s = begin($t, $o{path} // '/fast', $o{words} // 450);
            push @runs, { s => $s, path => $s->{path}, id => $s->{id},
                since => time, left => $quota, open => 0, readers => [],
                detach => rand 4 < 1 };
        }

        cursors($_->{s}) && ($_->{generation} //= $_->{s}{generation})
            for @runs;

        # one in four is soon without the request that began it
        for my $run (grep { $_->{detach} && $_->{generation} } @runs) {
            my $s = resume($t, $run, -1);
            @$s{qw(input want)} = @{ $run->{s} }{qw(input want)};
            $run->{s}->close;
            $run->{post} = $run->{s};
            $run->{s} = $s;
            $run->{detach} = 0;
        }

        my @ready = grep { $_->{generation} && $_->{left} > 0 } @runs;

        while ($more->() && @open < $readers && @ready) {
            my $run = $ready[ rand @ready ];
            my $newest = $run->{s}{newest} // 0;
            my $seq = rand 3 < 1 ? $newest : int rand($newest + 2) - 1;
            my $s = resume($t, $run, $seq);
            $s->{run} = $run;
            $s->{limit} = rand 4 < 1 ? 1e9 : int rand 12000;
            $s->{until} = time + ($s->{limit} > 1e8 ? 60 : rand 1.5);
            push @open, $s;
            $run->{open}++;
            $run->{left}--;
            $n++;
        }

        read_some(0.02, @open, map { $_->{s} } @runs);
        my @still;

        for my $s (@open) {
            my $over = $s->{complete} || $s->{eof};
            my $cut = length $s->{body} >= $s->{limit} || time > $s->{until};

            if (!$over && !$cut) {
                push @still, $s;
                next;
            }

            $bad{'a reader does not come to the end'}++
                if !$over && $s->{limit} > 1e8;
            rand 2 < 1 ? $s->close : $s->reset;
            $s->{run}{open}--;
            $bytes += length $s->{body};
            $complete++ if $s->{complete};
            my $w = $s->header('x-worker') // 0;
            $worker{$w}++;
            push @{ (delete $s->{run})->{readers} }, $s;
        }

        @open = @still;
        @still = ();

        for my $run (@runs) {
            my $s = $run->{s};
            my $over = $s->{complete} || $s->{eof};

            if (!$over && time - $run->{since} > 60) {
                $bad{'a run without an end'}++;
                $over = 1;
                $_->{until} = 0 for grep { $_->{run} == $run } @open;
            }

            if (!$over || $run->{open} || $more->() && $run->{left} > 0) {
                push @still, $run;
                next;
            }

            # all that was read of it against the whole of it
            my $whole = whole_of($t, $run);
            my $gone = $whole->{stream}{status} =~ /^(?:404|410)$/;
            $gone{ $whole->{stream}{status} }++ if $gone;
            my $v = verdict($gone && $o{may_go} ? $s : $whole->{stream},
                $s->{want});
            $bad{"a run: $v"}++ if $v ne 'complete';
            $s->{seq} = -1;
            $_->close for $s;

            for my $r ($s, $run->{post} // (), @{ $run->{readers} }) {
                $r->{seq} //= -1;
                next if $o{may_go}
                    && ($gone || ($r->{status} // '') =~ /^(?:404|410)$/);
                my $is = same($whole, $r) || next;
                diag "$run->{id} from $r->{seq}: $is" if keys %bad < 5;
                $bad{$is}++;
            }
        }

        @runs = @still;
    }

    return { bad => \%bad, worker => \%worker, resumes => $n, bytes => $bytes,
        complete => $complete, gone => \%gone };
}

sub race_checks {
    my ($got, $name) = @_;
    is_deeply($got->{bad}, {}, "$name: $got->{resumes} resumes, none lost, "
        . 'doubled or out of order') or diag explain $got->{bad};
    note sprintf '%d to the end, %.1f MB', $got->{complete},
        $got->{bytes} / 1e6;
}

subtest 'resumes while a run is written' => sub {
    for my $workers (2, 4) {
        my $t = replay_nginx(workers => $workers, listen => 'reuseport');
        my $start = time;
        my $got = race($t, resumes => 1000 * $scale);
        race_checks($got, "$workers workers");
        cmp_ok(scalar keys %{ $got->{worker} }, '>=', $workers,
            '... on all of them');
        note sprintf '%.1f s', time - $start;
        quiet($t);
    }
};

subtest 'reloads' => sub {
    my ($streams, $reloads, $every) =
        $scale >= 50 ? (1000, 200, 3) : (100, 10 * min($scale, 20), 0.6);
    my $t = replay_nginx(workers => 2);
    my (@master, @fds, $next, $old);
    my $done = 0;
    my $got = race($t, path => '/slow', words => 60, runs => $streams * 0.3,
        readers => $streams * 0.7, quota => 20, resumes => 1e9,
        seconds => $reloads * $every + 1,
        tick => sub {
            $next //= time + 1;
            return if time < $next || $done == $reloads;
            $t->signal('HUP');
            $done++;
            $next = time + $every;
            push @master, mem($t->pid, 'RssAnon');
            push @fds, fds($t->pid);
            $old = max($old // 0, scalar $t->workers('old'));
        });

    race_checks($got, "$done reloads");
    cmp_ok(scalar keys %{ $got->{worker} }, '>', 2 * $done,
        '... in workers old and new');
    ok($t->wait_for(sub { !$t->workers('old') }, SLACK),
        'the old workers leave');
    note "$old old workers at a time";
    my $third = int(@master / 3);
    cmp_ok($master[-1] - $master[$third], '<', 2 + $asan,
        'memory of the master is flat') or diag "@master";
    my $fresh = replay_nginx(workers => 2);
    is_deeply(fd_kinds($t->pid), fd_kinds($fresh->pid),
        'the master has the fds of a fresh one');
    $fresh->stop;
    quiet($t);
};

subtest 'more and fewer workers' => sub {
    my $t = replay_nginx(workers => 1);
    my @counts = (8, 2, 1, 16, 3);
    my $next;
    my $got = race($t, path => '/slow', words => 80, runs => 12,
        readers => 30, resumes => 1e9, seconds => 5,
        tick => sub {
            $next //= time + 0.6;
            return if time < $next || !@counts;
            replay_conf($t, workers => shift @counts);
            as_nobody($t);
            $t->signal('HUP');
            $next = time + 0.8;
        });
    race_checks($got, 'one worker, eight, two, one, sixteen, three');
    ok($t->wait_for(sub { $t->workers == 3 && !$t->workers('old') }, SLACK),
        'three are left');
    quiet($t);
};

# Runs of a worker that leaves, read in one that stays.
subtest 'the end of a worker' => sub {
    for my $how (qw(TERM QUIT HUP)) {
        my $t = replay_nginx(workers => 2, listen => 'reuseport',
            main => 'worker_shutdown_timeout 2s;');
        my @runs = map { begin($t, '/crawl', 100) } 1 .. 12;
        read_all(\@runs, SLACK, sub { !grep { !cursors($_) } @runs });
        my ($one, $two) = $t->workers;
        my @its = grep { $_->header('x-worker') == $one } @runs;
        my (@r, %bad);
        my $elsewhere = sub {
            my ($not) = @_;
            for my $run (@its) {
                for (1 .. 60) {
                    my $s = resume($t, $run, -1);
                    $s->read_head(SLACK);
                    $s->{run} = $run;
                    push @r, $s and last if !$not->{ $s->header('x-worker') };
                    $s->close;
                }
            }
        };

        if ($how eq 'HUP') {
            my %old = map { ($_ => 1) } $one, $two;
            $t->reload(SLACK);
            $elsewhere->(\%old);
        } else {
            $elsewhere->({ $one => 1 });
            kill $how, $one;
        }

        my $asked = time;
        is(scalar @r, scalar @its, "$how: readers in another worker");
        ok(read_all(\@r, SLACK), '... come to an end');
        my ($last) = sort { $b <=> $a }
            map { $_->{start} + ($_->{end_time} // 1e9) } @r;
        note sprintf 'after %.2f s', $last - $asked;

        for my $r (@r) {
            my $run = $r->{run};
            my $v = verdict($r);
            $bad{"a reader: $v"}++ if $v ne 'worker_shutdown';
            my $whole = whole_of($t, $run);
            my $is = same($whole, $r);
            $bad{"a reader: $is"}++ if $is;
            $is = run_of($t, $run->{path}, $run->{id});
            $bad{"status $is"}++ if $is ne 'error worker_shutdown';
            read_all([$run], 5);
            $v = verdict($run);
            $bad{"its own: $v"}++
                if $v ne ($how eq 'TERM' ? 'cut' : 'worker_shutdown');
        }

        is_deeply(\%bad, {}, '... the same one that all are told')
            or diag explain \%bad;
        $_->close for @r, @runs;
        ok(gone($t, SLACK, $one), 'the worker leaves');
        my %rest;
        $rest{ run_of($t, $_->{path}, $_->{id}) }++
            for grep { $_->header('x-worker') != $one } @runs;
        my $left = @runs - @its;
        is_deeply(\%rest, !$left ? {} : { $how eq 'HUP'
            ? ('error worker_shutdown' => $left) : (running => $left) },
            "the other's runs") or diag explain \%rest;
        quiet($t);
    }
};

# A reader of a run that loses events: what it has in the end, or what is wrong.
sub what_of {
    my ($run, $r, $whole) = @_;
    my $v = verdict($r);
    my $resume = $r->header('x-agent-resume') // 'complete';
    return "status $r->{status}" if ($r->{status} // 0) != 200;
    return 'gap' if $v eq 'gap';
    return $v if $v ne 'complete';
    return 'snapshot' if said($r) eq $run->{want} && $r->{body} =~ /SNAPSHOT/;
    return $resume eq 'complete' && same($whole, $r) eq '' ? 'whole'
        : 'another text';
}

subtest 'a zone that is too small' => sub {
    my %did;

    for my $size (qw(2m 512k)) {
        my $t = replay_nginx(workers => 2, listen => 'reuseport',
            zone => $size, agents => { slow => 50, crawl => 1 });
        my $n = $size eq '2m' ? 200 : 50;
        my $text = join ' ', map { sprintf 'w%03d%s', $_, 'x' x 30 } 1 .. 75;
        my (%bad, %did, @readers);
        my @runs = map { begin($t, '/slow', 0, text => $text) } 1 .. $n;
        my $start = time;
        my $next = time + 1;

        read_all(\@runs, 60, sub {
            if (time > $next && time - $start < 6) {
                for (1 .. 4) {
                    my $run = $runs[ rand @runs ];
                    cursors($run) or next;
                    push @readers, my $r = resume($t, $run,
                        rand 2 < 1 ? -1 : int rand $run->{newest} + 1);
                    $r->{run} = $run;
                }
                $next = time + 0.2;
            }
            $_->_fill(0) for grep { !$_->{complete} && !$_->{eof} } @readers;
            return 0;
        });
        my $ends = tally(sub {
            my $v = verdict($_[0]);
            return $v eq 'complete' && said($_[0]) ne $_[0]{want}
                ? 'another text' : $v;
        }, @runs);

        # but those that were not let in; one that was evicted right at its
        # end has told it to its own reader all the same

        my $none = delete $ends->{zone_full} // 0;
        is_deeply($ends, { complete => $n - $none },
            "$size: $n runs go on to their end");
        cmp_ok($none, '<', $n / 5, '... but for few');
        read_all(\@readers, SLACK);

        for my $r (@readers) {
            my $run = delete $r->{run};
            my $bytes = told($run);
            my @at;
            push @at, $-[0] while $bytes =~ /\G.*?\n\n/gs;
            my $what = what_of($run, $r,
                { bytes => $bytes, at => [ @at, length $bytes ] });
            $did{$what}++;
            $bad{$what}++ if $what !~ /^(?:whole|gap|snapshot)$/;
        }

        is_deeply(\%bad, {}, '... a hole is never silent')
            or diag explain \%bad;
        note join ', ', map {"$_ $did{$_}"} sort keys %did;
        my %kept;
        $kept{ $t->request('GET', "$_->{path}/runs/$_->{id}/stream")
            ->{status} }++ for @runs[ 0 .. 20 ];
        delete @kept{qw(200 410 404)};
        is_deeply(\%kept, {}, 'what is kept of them');
        $_->close for @runs, @readers;

        # nobody can go when all are alive
        my (@live, $full);

        while (@live < 500 && !$full) {
            my $s = begin($t, '/crawl', 100);
            $s->read_head(SLACK) == 200 ? push @live, $s : ($full = $s);
        }

        ok($full, scalar(@live) . ' live runs fill it') or next;
        read_all([$full], 5);
        is("$full->{status} " . verdict($full), '503 zone_full',
            '... one more is refused');
        ok($full->header('retry-after'), '... for a while');
        my $post = sub {
            verdict($t->post_run({ text => 'hi' }, path => '/slow'),
                'You said: hi');
        };
        is($post->(), 'zone_full', '... whoever asks') for 1 .. 3;

        # each ends once, for all
        my @hear = map { resume($t, $_, -1) }
            grep { cursors($_) } @live[ 0 .. 9 ];
        my %ends;
        $t->request('DELETE', "$_->{path}/runs/$_->{id}") for @live[ 0 .. 9 ];
        read_all([ @live[ 0 .. 9 ], @hear ], SLACK);
        is_deeply(tally(\&verdict, @live[ 0 .. 9 ]), { cancelled => 10 },
            'ten are stopped');
        %ends = %{ tally(\&verdict, @hear) };
        delete @ends{qw(cancelled gap)};
        is_deeply(\%ends, {}, '... readers hear of it');
        is($post->(), 'complete', '... there is room again') for 1 .. 5;
        $t->request('DELETE', "$_->{path}/runs/$_->{id}")
            for @live[ 10 .. $#live ];
        read_all(\@live, SLACK);
        is_deeply(tally(\&verdict, @live), { cancelled => scalar @live },
            '... and the others');
        $_->close for @live, @hear, $full;
        my $lines = full_lines($t);
        ok($lines >= 1 && $lines <= 2, 'a line in the log of each worker')
            or diag $lines;
        quiet($t, qr/zone "runs" is full/);
    }
};

subtest 'a zone of another size' => sub {
    my $t = replay_nginx(workers => 2, zone => '2m');
    my @ended = map { begin($t, '/fast', 20 + $_) } 1 .. 20;
    read_all(\@ended, SLACK);
    cursors($_), $_->close for @ended;
    my @sizes = qw(4m 512k 2m 1m);
    my ($next, %kept);
    my $kept = sub {
        my %n;
        for my $run (@ended) {
            my $whole = whole_of($t, $run);
            my $s = $whole->{stream};
            $run->{seq} = -1;
            $n{ $s->{status} == 200 ? same($whole, $run) || 'whole'
                : $s->{status} }++;
        }
        return \%n;
    };
    my $got = race($t, path => '/slow', words => 80, runs => 10,
        readers => 30, resumes => 1e9, seconds => 4.5, may_go => 1,
        tick => sub {
            $next //= time + 0.7;
            return if time < $next || !@sizes;
            my $size = shift @sizes;
            replay_conf($t, zone => $size);
            as_nobody($t);
            $t->reload(SLACK);
            $kept{$size} = $kept->();
            $next = time + 0.6;
        });
    race_checks($got, 'four sizes');
    is_deeply($kept{'4m'}, { whole => 20 }, 'ended runs are in the larger one');
    my %other = map { %$_ } values %kept;
    delete @other{qw(whole 404 410)};
    is_deeply(\%other, {}, '... and as a whole or not at all in the others')
        or diag explain \%kept;
    note join ', ', map {"$_ $got->{gone}{$_}"} sort keys %{ $got->{gone} };
    my $n = () = $t->log =~ /has another size, \d+ ended runs were copied/g;
    is($n, 4, 'lines in the log');
    ok($t->wait_for(sub { !$t->workers('old') }, SLACK),
        'the old workers leave');
    quiet($t, qr/zone "runs" is full/);
};

# Who one is comes from a header here: two people with the same ids.
subtest 'two owners' => sub {
    my $pairs = 20 * $scale;
    my $t = replay_nginx(workers => 2, listen => 'reuseport', zone => '512k',
        params => 'retain=5s', server => 'location /own {
            agent_pass fast; agent_owner $http_x_user; }');
    my ($n, %bad, %did, @open) = (0);

    while ($n < $pairs || @open) {
        while ($n < $pairs && @open < 60) {
            $n++;

            for my $who (qw(ann bob)) {
                my $s = begin($t, '/own', 0, headers => [ 'X-User' => $who ],
                    text => join(' ', map {"<$who$n>$_"} 1 .. 10 + rand 200),
                    input => { runId => "p-$n", threadId => "t-$n" });
                @$s{qw(who n since)} = ($who, $n, time);
                push @open, $s;
            }
        }

        for (1 .. 4) {
            my $i = max(1, $n - int rand 12);
            my $who = (qw(ann bob bob ann carl))[ rand 5 ];
            my ($known) = shuffle grep { $_->{n} && $_->{n} == $i
                && cursors($_) } @open;
            my $run = { path => '/own', id => "p-$i",
                generation => $known ? $known->{generation} : 1 };
            push @open, my $s = resume($t, $run, rand 3 < 1 ? -1
                : int rand(($known ? $known->{newest} : 5) + 2),
                headers => [ 'X-User' => $who ]);
            @$s{qw(who since reader)} = ($who, time, 1);
        }

        read_some(0.02, @open);
        my @still;

        for my $s (@open) {
            my $over = $s->{complete} || $s->{eof};
            my $cut = $s->{reader} && time - $s->{since} > rand 0.6;

            if (!$over && !$cut) {
                $bad{'no end'}++, next if time - $s->{since} > 30;
                push @still, $s;
                next;
            }

            $s->close;
            my %seen;
            $seen{$1}++ while $s->{body} =~ /<(ann|bob)\d+>/g;
            delete $seen{ $s->{who} };
            $bad{"$s->{who} sees $_"}++ for keys %seen;
            my $status = $s->{status} // 'none';
            $did{$status}++;
            $bad{"carl gets $status"}++
                if $s->{who} eq 'carl' && $status !~ /^(?:404|none)$/;
            next if $s->{reader};
            my $v = verdict($s, $s->{want});
            $bad{"a run: $v"}++ if $v ne 'complete' && $v ne 'zone_full';
        }

        @open = @still;
    }

    is_deeply(\%bad, {}, "$pairs pairs of runs, none sees the other's")
        or diag explain \%bad;
    note join ', ', map {"$_ $did{$_}"} sort keys %did;
    quiet($t, qr/zone "runs" is full/, qr/can be forged/);
};

# A kilobyte of what came.
sub sip {
    my ($s) = @_;
    my $data;
    $s->{in} .= $data if sysread $s->{sock}, $data, 1024;
}

# Ten megabytes for clients that take ten kilobytes a second, where the run is and
# elsewhere.
subtest 'slow readers of a long run' => sub {
    my $mb = $scale >= 50 ? 100 : 10;
    my $t = replay_nginx(workers => 2, listen => 'reuseport sndbuf=32k',
        zone => '8m', params => 'max_run=1m', http => "agent_model long {
            provider openai; model stub;
            url http://127.0.0.1:%%UPSTREAM%%/count,kb=${\($mb * 1024)}/v1;
        }
        agent long { model long; memory off; }",
        server => 'location /long { agent_pass long; agent_owner off; }');
    my %before = map { ($_ => mem($_, 'RssAnon')) } $t->workers;
    my $run = begin($t, '/long', 1);
    $run->{want} = join '', map { sprintf '%08d ', $_ * 9 }
        0 .. int(($mb * 1024 * 1024 + 8) / 9) - 1;
    read_all([$run], SLACK, sub { cursors($run) });
    my (%r, %bad);

    for (1 .. 60) {
        my $s = resume($t, $run, -1);
        $s->read_head(SLACK);
        my $w = $s->header('x-worker');
        $r{$w} ? $s->close : ($r{$w} = $s);
        last if keys %r == 2;
    }

    is(scalar keys %r, 2, 'readers in both workers');
    my (%peak, $next);
    read_all([$run], 60 * ($scale >= 50 ? 10 : 1), sub {
        return 0 if time < ($next // 0);
        $next = time + 0.1;
        $peak{$_} = max($peak{$_} // 0, mem($_, 'RssAnon')) for $t->workers;
        sip($_) for values %r;
        return 0;
    });
    is(verdict($run), 'complete', 'the run ends');

    for (1 .. 20) {
        sleep 0.1;
        sip($_) for values %r;
        $peak{$_} = max($peak{$_} // 0, mem($_, 'RssAnon')) for $t->workers;
    }

    # what the run itself has of its answer is bounded, too
    for my $w (keys %r) {
        cmp_ok($peak{$w} - $before{$w}, '<', 32 + 4 * $asan,
            ($w == $run->header('x-worker') ? 'memory where the run is'
                : 'memory elsewhere'));
        note sprintf '%.1f MB, %.1f before', $peak{$w}, $before{$w};
    }

    # they take the rest at once

    $_->_parse for values %r;
    ok(read_all([ values %r ], 60), 'they come to the end');

    for my $r ($run, values %r) {
        my $v = verdict($r);
        my $text = said($r);
        my $whole = $v eq 'gap' ? substr $run->{want}, 0, length $text
            : substr $run->{want}, -length $text;
        note "$v, " . length $text;
        $bad{"$v, " . length $text}++
            if $v !~ /^(?:gap|complete)$/ || $text ne $whole;
    }

    is_deeply(\%bad, {}, '... with a piece of the text that has no hole')
        or diag explain \%bad;
    $_->close for $run, values %r;
    quiet($t);
};

subtest 'a stop that races with the end' => sub {
    my $runs = min(10_000, 300 * $scale);
    my $t = replay_nginx(workers => 2, listen => 'reuseport',
        agents => { fast => 1000 }, params => 'retain=1m');
    my ($n, %bad, %did, @open) = (0);

    while ($n < $runs || @open) {
        while ($n < $runs && @open < 24) {
            my $words = 5 + int rand 20;
            my $s = begin($t, '/fast', $words);
            $s->{stop} = time + rand($words) / 1000;
            push @open, $s;
            $n++;
        }

        read_some(0.001, @open, map { $_->{del} // () } @open);
        my @still;

        for my $s (@open) {
            if (!$s->{del} && time >= $s->{stop}) {
                $s->{del} = $t->open_stream('DELETE',
                    "$s->{path}/runs/$s->{id}");
                $s->{r} = resume($t, { %$s, generation => 0 }, -1);
            }

            my $all = $s->{del} && !grep { !$_->{complete} && !$_->{eof} }
                $s, @$s{qw(del r)};

            if (!$all && time - $s->{start} < 20) {
                $s->{r}->_fill(0)
                    if $s->{r} && !$s->{r}{complete} && !$s->{r}{eof};
                push @still, $s;
                next;
            }

            my $v = verdict($s, undef);
            my $is = run_of($t, $s->{path}, $s->{id});
            my $del = $s->{del}{status} // 'none';
            $did{"$del $v"}++;
            $bad{"$v, its status $is"}++
                if $is ne ($v eq 'complete' ? 'finished' : $v)
                || $v !~ /^(?:complete|cancelled)$/;
            $bad{"DELETE $del, then $v"}++
                if $del !~ /^20[24]$/ || $del == 204 && $v eq 'cancelled';
            my $r = $s->{r};
            $bad{"a reader: status $r->{status}, " . verdict($r)}++
                if ($r->{status} // 0) != 404 && told($r) ne told($s);
            $_->close for $s, @$s{qw(del r)};
        }

        @open = @still;
    }

    is_deeply(\%bad, {}, "$runs runs, each has one end")
        or diag explain \%bad;
    note join ', ', map {"$_: $did{$_}"} sort keys %did;
    quiet($t);
};

done_testing();
