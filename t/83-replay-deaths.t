#!/usr/bin/perl

# Workers that are killed while runs are kept in a replay zone: who runs, who
# reads, who holds the zone's lock, who rings.  AGENT_SCALE makes it longer.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentHook;
use AgentProcess;
use AgentStorm;
use AgentTest;
use List::Util qw(max min shuffle);
use Test::More;
use Time::HiRes qw(sleep time);

use constant SLACK => 20;

my $scale = $ENV{AGENT_SCALE} || 1;
my @killed = (qr/exited on signal 9/, qr/zone "\w+" was locked by/,
    qr/runs were lost with their worker process/);

# Waits until that many workers serve.
sub all_back {
    my ($t, $n) = @_;
    return $t->wait_for(sub { $t->workers == $n }, SLACK);
}

# A reader of the run in a worker that satisfies the condition; undef after many.
sub reader_in {
    my ($t, $run, $seq, $cond) = @_;

    for (1 .. 60) {
        my $s = resume($t, $run, $seq);
        $s->read_head(SLACK);
        return $s if $cond->($s->header('x-worker') // 0);
        $s->close;
    }

    return undef;
}

subtest 'the worker that runs, the worker that reads' => sub {
    my $rounds = max(4, min(300, 6 * $scale));
    my $t = replay_nginx(workers => 2, listen => 'reuseport');
    my (%bad, %took);
    my ($lost, $told) = (0, 0);
    $t->expect_log(@killed);

    for my $round (1 .. $rounds) {
        my @runs = map { begin($t, '/slow', 60 + int rand 60) } 1 .. 10;
        read_all(\@runs, SLACK, sub { !grep { !cursors($_)
            || $_->{newest} < 4 } @runs });
        my ($victim) = shuffle map { $_->header('x-worker') } @runs;
        my (@its, @others);

        for my $run (@runs) {
            my $here = $run->header('x-worker');
            my $from = int(rand 5) - 1;
            $run->{r} = reader_in($t, $run, $from, sub { $_[0] != $here })
                // die 'no reader elsewhere';
            push @{ $here == $victim ? \@its : \@others }, $run;
        }

        # every other time one that leaves: nobody follows it in its place

        if ($round % 2 == 0) {
            $t->reload(SLACK) or $bad{'no reload'}++;

            for my $run (@its) {
                my $r = $run->{r};
                my %old = map { ($_ => 1) } $t->workers('old');
                $run->{r} = reader_in($t, $run, $r->{seq},
                    sub { !$old{ $_[0] } }) // die 'no reader elsewhere';
                $r->close;
            }
        }

        kill 'KILL', $victim;
        my $then = time;
        my @hear = map { $_->{r} } @its;
        read_all(\@hear, SLACK);
        $lost += @its;

        for my $run (@its) {
            my $r = $run->{r};
            $bad{'not told: ' . verdict($r)}++, next if !$r->{complete};
            $told++;
            my $took = $r->{start} + ($r->{end_time} // 1e9) - $then;
            $bad{"told late: $took"}++ if $took > 10;
            $took{max} = $took if $took > ($took{max} // 0);
            my $whole = whole_of($t, $run);
            my $v = verdict($whole->{stream});
            $bad{"its run: $v"}++ if $v ne 'worker_lost';
            my $is = same($whole, $r);
            $bad{"a reader of its run: $is"}++ if $is;

            # what the one who began it had until then
            my $mine = told($run);
            $bad{'other bytes than before'}++
                if $mine ne substr $whole->{bytes}, 0, length $mine
                and length $mine <= length $whole->{bytes};
            my $status = run_of($t, $run->{path}, $run->{id});
            $bad{"status $status"}++ if $status ne 'error worker_lost';
            my $last = @{ $whole->{at} } - 2;
            my $again = resume($t, $run, $last, after => 0);
            $again->finish;
            $bad{"at its end: $again->{status}"}++ if $again->{status} != 204;
            $again->close;
            $again = $t->request('DELETE', "$run->{path}/runs/$run->{id}");
            $bad{"DELETE: $again->{status}"}++ if $again->{status} != 204;
            $again = $t->post_run({ runId => $run->{id},
                threadId => $run->{input}{threadId} }, path => $run->{path});
            $again->{seq} = -1;
            $is = $again->header('x-agent-attached') ? same($whole, $again)
                : 'not attached';
            $bad{"POST: $is"}++ if $is;
        }

        # who read in the worker that died comes again, elsewhere

        for my $run (@others) {
            my $r = $run->{r};
            read_all([$r], SLACK);
            $bad{'a reader in the dead worker: ' . verdict($r)}++
                if $r->{complete};
            my $next = cursors($r) ? $r->{newest} : $r->{seq};
            $run->{again} = resume($t, $run, $next);
        }

        read_all([ map { ($_, $_->{again}) } @others ], SLACK);

        for my $run (@others) {
            my $whole = whole_of($t, $run);
            my $v = verdict($run, $run->{want});
            $bad{"another's run: $v"}++ if $v ne 'complete';
            $run->{r}{may_be_cut} = 1;
            $run->{seq} = -1;

            for my $r ($run, @$run{qw(r again)}) {
                my $is = same($whole, $r);
                $bad{"a reader of another's run: $is"}++ if $is;
            }
        }

        $_->close for map { ($_, @$_{qw(r)}, $_->{again} // ()) } @runs;
        all_back($t, 2) or $bad{'no other worker'}++;
    }

    is_deeply(\%bad, {}, "$rounds workers killed, $lost runs lost")
        or diag explain \%bad;
    cmp_ok($told, '>=', $rounds / 2, '... and their readers told');
    note sprintf 'told after %.2f s at most', $took{max} // 0;
    quiet($t);
};

# Runs of every length, resumed, stopped and repeated, until somebody dies.
my $serial = 0;

subtest 'the worker that holds the lock' => sub {
    my $deaths = max(36, min(300, 36 * $scale));
    my $hook = AgentHook->new;
    my $t = replay_nginx(workers => 2, listen => 'reuseport', zone => '1m',
        params => 'retain=2s max_run=64k', test => { $hook->nginx },
        agents => { fast => 400, slow => 60 });
    my (@open, @runs, %bad, %did);
    $t->expect_log(@killed, qr/zone "runs" is full/);

    $t->request('GET', '/fast/runs/none');
    my $before = $hook->zone;
    my $dead = 0;

    my $load = sub {
        my ($n) = @_;

        while (@runs < $n) {
            my $s = begin($t, '/fast', 1 + int rand 150);
            $s->{since} = time;
            push @runs, $s;
        }

        for my $run (@runs) {
            next if !cursors($run) || rand 8 > 1 || @open > 30;
            push @open, my $s = resume($t, $run,
                int(rand($run->{newest} + 2)) - 1);
            $s->{until} = time + rand 0.3;
            $s->{run} = $run;
        }

        if (rand 10 < 1 && @runs) {
            my $run = $runs[ rand @runs ];
            push @open, my $s = $t->open_stream(rand 2 < 1 ? 'DELETE' : 'GET',
                "$run->{path}/runs/$run->{id}");
            $s->{until} = time + 1;
            $run->{stopped} = 1 if $s->{method} eq 'DELETE';
        }

        read_some(0.01, @open, @runs);
        my @still;

        for my $s (@open) {
            if (!$s->{complete} && !$s->{eof} && time < $s->{until}) {
                push @still, $s;
                next;
            }
            $s->close;
            push @{ $s->{run}{readers} }, $s if $s->{run};
            delete $s->{run};
        }

        @open = @still;
    };

    # What has ended is right: read again as a whole, where it is still kept.
    my $look = sub {
        my ($victim, $all) = @_;
        my @still;

        for my $run (@runs) {
            my $over = $run->{complete} || $run->{eof};
            my $hit = ($run->header('x-worker') // 0) == $victim
                || !$run->{status};

            if (!$over && !$hit && time - $run->{since} > SLACK) {
                $bad{'a run without an end'}++;
                $over = 1;
            }

            if (!$over && !$hit) {
                push @still, $run;
                next;
            }

            my $v = verdict($run, $run->{want});
            my $fits = $hit ? $v =~ /^(?:cut|complete|cancelled)$/
                : $v eq 'complete' || $v eq 'cancelled' && $run->{stopped};
            $bad{ 'a stream: ' . $v . ($hit ? ' of the dead' : '') }++
                if !$fits;
            $did{$v}++;
            $run->close;
            cursors($run) or next;
            my $whole = whole_of($t, $run);
            my $s = $whole->{stream};
            $did{"again $s->{status}"}++;
            next if $s->{status} =~ /^(?:404|410)$/;
            my $w = verdict($s);
            my $may = $v eq 'cut' ? qr/^(?:worker_lost|complete|cancelled)$/
                : qr/^\Q$v\E$/;
            $bad{"again: $w, first $v"}++ if $w !~ $may;
            $run->{seq} = -1;
            $run->{may_be_cut} = 1;
            next if ($s->header('x-agent-resume') // '') ne 'complete';

            for my $r ($run, @{ $run->{readers} // [] }) {
                next if ($r->{status} // 0) != 200
                    || ($r->header('x-agent-resume') // 'complete')
                    ne 'complete';
                $r->{may_be_cut} = 1;
                my $is = same($whole, $r) || next;
                next if told($r) =~ /MESSAGES_SNAPSHOT|"code":"gap"/;
                $bad{"a reader: $is"}++;
            }
        }

        @runs = @still;
    };

    while ($dead < $deaths) {
        $load->(10) for 1 .. 3 + rand 10;
        my @w = $t->workers;
        $hook->arm(rand 3 < 1 ? 0 : $w[ rand @w ], int rand(rand 2 < 1 ? 60 : 900));
        my $end = time + SLACK;
        $load->(10) while !$hook->died && time < $end;
        my $victim = $hook->died;
        $hook->disarm;
        $victim or $bad{'nobody died'}++, last;
        $dead++;
        $t->wait_for(sub { !alive($victim) }) or $bad{'it dies'}++;
        all_back($t, 2) or $bad{'no other worker'}++;
        my $r = $t->post_run({ text => 'one two' }, path => '/fast',
            timeout => 10);
        my $v = verdict($r, 'You said: one two');
        $bad{"a new run: $v"}++ if $v ne 'complete';
        $look->($victim);
    }

    my $end = time + SLACK;
    while (@runs && time < $end) { $load->(0); $look->(0) }
    $_->close for @open, @runs;
    is_deeply(\%bad, {}, "$dead deaths, nobody else noticed")
        or diag explain \%bad;
    note join ', ', map {"$_: $did{$_}"} sort keys %did;
    my $mended = () = $t->log =~ /zone "\w+" was mended/g;
    cmp_ok($mended, '>', $deaths / 3, "$mended times a zone was mended");
    my $after;
    ok($t->wait_for(sub {
        $t->request('GET', '/fast/runs/none') for 1 .. 4;
        $after = $hook->zone;
        $after->{nobjects} == 0;
    }, SLACK), 'all runs are over and forgotten');
    is($after->{nfree}, $before->{nfree}, '... with all their memory');
    is($after->{resets}, 0, '... and no zone was emptied');
    quiet($t);
};

# A zone that was replaced by one of another size is no longer the master's, who
# would give back the lock of a dead worker; it is that of the old ones still.
subtest 'the lock of a zone that was replaced' => sub {
    my $rounds = max(2, min(40, $scale));
    my $hook = AgentHook->new;
    my %bad;

    for my $round (1 .. $rounds) {
        my %agents = (agents => { slow => 40 }, listen => 'reuseport');
        my $t = replay_nginx(workers => 3, zone => '1m', %agents,
            test => { $hook->nginx });
        $t->expect_log(@killed);
        my @runs = map { begin($t, '/slow', 120) } 1 .. 9;
        my %of;
        read_all(\@runs, SLACK, sub { !grep { !cursors($_) } @runs });
        $of{ $_->header('x-worker') }++ for @runs;
        replay_conf($t, workers => 1, zone => '2m', %agents);
        AgentStorm::as_nobody($t);
        $t->reload(SLACK) or $bad{'no reload'}++;
        my ($victim) = shuffle keys %of;

        # until it dies with the lock, not beside it
        $hook->arm($victim, 7);
        $t->wait_for(sub { $hook->died }) or $bad{'it does not die'}++;
        $hook->disarm;
        my @others = grep { $_->header('x-worker') != $victim } @runs;
        read_all(\@others, SLACK);
        $bad{ 'another\'s run: ' . verdict($_, $_->{want}) }++
            for grep { verdict($_, $_->{want}) ne 'complete' } @others;
        $_->close for @runs;
        gone($t, 10, keys %of) or $bad{'an old worker does not leave'}++;
        quiet($t);
    }

    is_deeply(\%bad, {}, 'the others go on') or diag explain \%bad;
};

subtest 'a bell that is not rung' => sub {
    my $hook = AgentHook->new;
    my $t = replay_nginx(workers => 2, listen => 'reuseport',
        test => { $hook->nginx }, http => 'agent_model words {
            provider openai; model stub; max_inflight 9;
            url http://127.0.0.1:%%UPSTREAM%%/words,n=3,delay=4/v1;
        }
        agent words { model words; memory off; }',
        server => 'location /words { agent_pass words; agent_owner off; }');
    my $run = begin($t, '/words', 1);
    $run->{want} = "w1 w2 w3";
    read_all([$run], SLACK, sub { cursors($run) });
    my $here = $run->header('x-worker');
    my $r = reader_in($t, $run, -1, sub { $_[0] != $here });
    ok($r, 'a reader elsewhere') or return;
    $r->read_until('TEXT_MESSAGE_CONTENT', SLACK);
    $hook->mute(1);
    read_all([ $run, $r ], SLACK);
    is(verdict($_, $run->{want}), 'complete', 'all comes') for $run, $r;
    is($hook->muted, 0, '... with one bell not heard');
    $_->close for $run, $r;
    $t->stop;
    like($t->log, qr/nobody had told them of, \d+ times/,
        '... which was counted');
};

# Between the flag that keeps others quiet and the descriptor that wakes.
subtest 'the worker that rings' => sub {
    my $rounds = max(3, min(100, 3 * $scale));
    my $hook = AgentHook->new;
    my $t = replay_nginx(workers => 3, listen => 'reuseport',
        test => { $hook->nginx }, agents => { fast => 20, slow => 20 });
    my (%bad, $heard);
    $t->expect_log(@killed);

    for my $round (1 .. $rounds) {
        my %of;
        my @runs = map { begin($t, '/slow', 80) } 1 .. 8;
        read_all(\@runs, SLACK, sub { !grep { !cursors($_) } @runs });
        push @{ $of{ $_->header('x-worker') } }, $_ for @runs;
        my ($one, $two, $reader) = shuffle $t->workers;
        my @heard = map { reader_in($t, $_, -1, sub { $_[0] == $reader }) }
            @{ $of{$two} // [] };
        my ($run) = @{ $of{$one} // [] };
        my $last = $run && reader_in($t, $run, -1, sub { $_[0] == $reader });

        # the next store of the one that runs is to be one of a bell
        $hook->ring($one) if $last && @heard;
        read_all(\@heard, 10);
        $heard += @heard;
        $hook->disarm;
        $bad{"not heard: $_"}++ for grep { $_ ne 'complete' }
            map { verdict($_, $runs[0]{want}) } @heard;

        # a heartbeat would find what nobody tells of
        my $pings = max(0, map { scalar(() = $_->{body} =~ /: ping/g) } @heard);
        $bad{"$pings heartbeats"}++ if $pings > 1;
        $_->close for @runs, @heard, $last // ();
        all_back($t, 3);
    }

    is_deeply(\%bad, {}, 'others are heard') or diag explain \%bad;
    cmp_ok($heard, '>', 0, "... $heard of them");
    quiet($t);
};

done_testing();
