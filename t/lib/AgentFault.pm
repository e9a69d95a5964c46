package AgentFault;

# Failing allocations in a running worker (or in "nginx -t"): the other side of
# t/fault/fault.c, which only the sanitizer build has.
#
#     my $f = AgentFault->new($t);        # before nginx starts
#     $t->start;
#     $f->every('a run', act => sub { $t->post_run({}, path => '/chat') });
#
# It lets the 1st, 2nd, 3rd ... allocation that a request makes fail, until
# there are no more, and looks each time whether the answer is one that a client
# can understand, and whether the next request is served as if nothing had been.

use strict;
use warnings;

use AgentProcess;
use Mojo::JSON qw(decode_json);
use Test::More;
use Time::HiRes qw(sleep time);

my @FIELDS = qw(pid pass fail seen failed trace);

sub new {
    my ($class, $t) = @_;
    my $file = $t->write_file('fault', "\0" x (8 * @FIELDS));

    open my $fh, '+<:raw', $file or die "$file: $!";
    $ENV{AGENT_FAULT} = $file;

    # What a failure leaves behind is looked for at the end of the worker.
    $ENV{ASAN_OPTIONS} = join ':', grep { defined }
        $ENV{ASAN_OPTIONS}, 'detect_leaks=1';

    $t->expect_log(qr/\[emerg\] .*(?:malloc|memalign)\(.*\) failed/);

    return bless { t => $t, fh => $fh, runs => {} }, $class;
}

sub _write {
    my ($self, %v) = @_;
    my $bytes = pack 'Q*', map { $v{$_} // 0 } @FIELDS;

    sysseek $self->{fh}, 0, 0;
    syswrite($self->{fh}, $bytes) == length $bytes or die "fault: $!";
}

# After "pass" allocations of this process "fail" of them fail in a row.
sub arm {
    my ($self, $pid, $pass, $fail) = @_;
    $self->_write(pid => $pid, pass => $pass, fail => $fail,
        trace => $ENV{AGENT_FAULT_TRACE} ? 1 : 0);
}

# Ends it; what happened meanwhile: { seen, failed, ... }.
sub disarm {
    my ($self) = @_;
    my %v;

    sysseek $self->{fh}, 0, 0;
    sysread $self->{fh}, my $bytes, 8 * @FIELDS;
    @v{@FIELDS} = unpack 'Q*', $bytes;
    $self->_write;

    return \%v;
}

# Until the worker allocates no more: what it does by itself is done.
sub settle {
    my ($self) = @_;
    my ($seen, $now) = (-1, 0);

    while ($seen != $now) {
        $seen = $now;
        sleep 0.005;
        sysseek $self->{fh}, 8 * 3, 0;
        sysread $self->{fh}, my $bytes, 8;
        $now = unpack 'Q', $bytes;
    }
}

# What is wrong with an answer: '' when nothing is.  A request may be answered
# as always, by an error, or by a closed connection; but what says that it is
# whole has to be whole.  expect: text (of a run), status (of an answer that is
# none; may be several: "502|503"), json (code for a decoded 200).
sub wrong {
    my ($s, %e) = @_;
    my $type = $s->header('content-type') // '';
    my $status = $s->{status} // 0;
    my $good = $e{status} // 200;

    return 'nothing came' if !$s->{complete} && !$s->{eof};
    return '' if !$status;

    if ($type eq 'text/event-stream') {
        my $v = verdict($s, $e{text});
        my ($n, $generation) = (0);

        return "status $status of a stream" if $status != 200;

        for my $f (@{ $s->frames }) {
            next if defined $f->{comment};
            return "a bad frame: $f->{bad}" if $f->{bad};
            return "a cut frame: $f->{raw}" if $f->{partial} && $s->{complete};
            next if !defined $f->{id};
            return "the id $f->{id}" if $f->{id} !~ /^(\d+)-(\d+)$/;
            return 'two generations' if ($generation //= $1) != $1;
            return "seq $2, not $n"
                if $s->header('x-agent-attached') ? $2 < $n : $2 != $n;
            $n = $2 + 1;
        }

        return '' if $v eq 'cut' && !$s->{complete};
        return '' if $v eq 'complete' || $v =~ /^[a-z][a-z_]+$/;
        return $v;
    }

    # less than its Content-Length says
    return '' if !$s->{complete};

    if ($type eq 'application/json') {
        my $json = eval { decode_json($s->{body}) };
        return "no JSON: $s->{body}" if ref $json ne 'HASH';

        if ($status >= 400) {
            my $error = $json->{error};
            return "an error without code: $s->{body}"
                if ref $error ne 'HASH' || !$error->{code}
                || !$error->{message};
            return '';
        }

        return "status $status" if $status !~ /^(?:$good)$/;
        return "not all of the answer: $s->{body}"
            if $e{json} && !$e{json}->($json);
        return '';
    }

    return '' if $status == 500 && $type =~ m{^text/html};
    return '' if $status =~ /^(?:$good)$/;
    return "status $status, type $type";
}

# An answer that is whole must have ended as the run's record says.
sub _differs {
    my ($self, $s) = @_;
    my $type = $s->header('content-type') // '';

    return '' if !$s->{complete} || $s->{status} != 200;

    my $v = $type eq 'text/event-stream' ? verdict($s) : 'complete';
    my $is = $v eq 'complete' ? 'finished' : $v eq 'cancelled' ? $v : 'error';
    my $got = $self->status($s->{input}{runId}, $s->{path});

    return $got eq $is ? '' : "the answer ended with $v, the record with $got";
}

sub status {
    my ($self, $id, $path) = @_;
    my $s = $self->{t}->request('GET', "$path/runs/$id");
    return 'not_found' if $s->{status} == 404;
    return $s->json->{status} // $s->json->{error}{code} // "($s->{status})";
}

# The next request, with all memory there is.
sub _plain {
    my ($self) = @_;
    my $s = $self->{t}->post_run({ text => 'one two' }, path => '/plain',
        timeout => 10);
    my $v = verdict($s, 'You said: one two');

    return $v eq 'complete' ? '' : "the next run: $v ($s->{body})";
}

# check_runs() is to ask for the run of this stream too; "path" is its location.
sub knows {
    my ($self, $s) = @_;
    $self->{runs}{ $s->{input}{runId} } = $s->{path};
}

# One test: for n = 1, 1 + step, ... the n-th allocation of "act" fails, alone
# ("fail" in a row), until none does.  before() gives a value that the others
# get; act() returns the stream to look at, or nothing; after(value, stream)
# says what is wrong.  The rest is for wrong().
sub every {
    my ($self, $name, %o) = @_;
    my $t = $self->{t};
    my ($pid) = $t->workers or return fail("$name: no worker");
    my $step = $o{step} // 1;
    my (@bad, $seen, %answers);
    my $tried = 0;
    my $start = time;

    local $Test::Builder::Level = $Test::Builder::Level + 1;

    for (my $n = 1; @bad < 10; $n += $step) {
        my $value = $o{before} ? $o{before}->() : undef;
        my ($log) = -s $t->dir . '/error.log';

        $self->arm($pid, $n - 1, $o{fail} // 1);
        my $s = $o{act}->($value);
        my $did = $self->disarm;

        $self->knows($s) if $s && $s->{path};

        my $what = $o{check} ? $o{check}->($s) : $s ? wrong($s, %o) : '';
        $what ||= $o{after}->($value, $s) if $o{after};
        $what ||= $self->_differs($s) if $s && $s->{path};
        $what ||= kill(0, $pid) ? $self->_plain : 'the worker died';

        if ($s) {
            $answers{ !$s->{status} ? 'closed'
                : !$s->{complete} ? 'cut'
                : ($s->header('content-type') // '') eq 'text/event-stream'
                ? verdict($s) : $s->{status} }++;
        }

        push @bad, "allocation $n: $what\n"
            . ($ENV{AGENT_FAULT_TRACE} ? $self->_log_since($log) : '')
            if $what;
        $tried++;
        $seen = $did->{seen};
        last if !$did->{failed} || !kill 0, $pid;
    }

    push @bad, 'no allocation came by' if !$seen;
    ok(!@bad, "$name: each of $seen allocations may fail") or diag(@bad);
    note(sprintf '%d times, %.1f s; %s', $tried, time - $start,
        join ', ', map {"$answers{$_} $_"} sort keys %answers);
}

sub _log_since {
    my ($self, $pos) = @_;
    return substr $self->{t}->log, $pos, 6000;
}

# Every run that was begun has come to an end, for everybody.
sub check_runs {
    my ($self) = @_;
    my $t = $self->{t};
    my @open;

    $t->wait_for(sub {
        @open = map {
            my $is = $self->status($_, $self->{runs}{$_});
            $is =~ /^(?:finished|cancelled|error|not_found|gone)$/
                ? () : "$_ $is";
        } sort keys %{ $self->{runs} };
        !@open;
    }, 20);

    is(join("\n", @open), '', 'every run came to an end');
}

1;
