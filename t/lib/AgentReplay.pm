package AgentReplay;

# What the tests of replay need beyond AgentTest: connections to a particular
# worker process, a model that does as the user's message says, and the messages
# that a client holds in the end.
#
#     my $w = AgentReplay->new($t);             # needs "location /who"
#     my ($here, $there) = $w->workers;
#     my $s = $w->post($here, 'text 3; gate a; text 2', path => '/chat');
#     my $r = $w->get($there, "/chat/runs/$s->{id}/stream");
#     $w->open_gate('a');
#
# The plan is the first line of the last user message, steps separated by ";":
#
#     text N [SIZE]    N pieces of text (of SIZE characters)
#     reason N [SIZE]  of reasoning
#     call I N [SIZE]  call number I begins or goes on, with N pieces
#     calls N          N calls, each with an id of 40 characters
#     callid N         a call with an id of N characters
#     gate NAME        silence until open_gate(NAME)
#     wait S           silence
#     hang, cut        silence for good; the connection is closed
#     fail CODE        that status instead of an answer (as the first step)
#
# The end is "stop", or "tool_calls" when there were calls.

use strict;
use warnings;
use feature 'current_sub';

use AgentClient;
use AgentTest;
use AgentUpstream;
use Mojo::JSON qw(decode_json encode_json);
use Time::HiRes qw(sleep time);

# --- the model ----------------------------------------------------------------

sub AgentUpstream::script_plan {
    my ($self, $r, $p) = @_;
    my ($user) = grep { $_->{role} eq 'user' }
        reverse @{ $r->{json}{messages} // [] };
    my ($plan) = split /\n/, AgentUpstream::_content($user->{content} // '');
    my @plan = grep {length} split /\s*;\s*/, $plan;
    my (@calls, $n);
    my $step = sub {
        my ($what, @a) = split / /, $_[0];
        my $size = $a[1] && $what ne 'call' ? $a[1] : $a[2] // 8;
        my $piece = sub {
            my $s = sprintf '%d,', ++$n;
            return $s . 'x' x ($size - length $s);
        };
        my $send = sub { AgentUpstream::_chunk($_[0]) };
        my $tool = sub {
            my ($i, %m) = @_;
            return $send->({ tool_calls => [ { index => $i, %m } ] });
        };

        return map { $send->({ content => $piece->() }) } 1 .. $a[0]
            if $what eq 'text';
        return map { $send->({ reasoning_content => $piece->() }) } 1 .. $a[0]
            if $what eq 'reason';
        return [ wait => $a[0] ] if $what eq 'wait';
        return ['hang'] if $what eq 'hang';
        return ['close'] if $what eq 'cut';

        if ($what eq 'call') {
            my $i = $a[0];
            return (
                $calls[$i]++ ? () : $tool->($i,
                    id => "call_$i" . ++$self->{last_call}, type => 'function',
                    function => { name => "f$i", arguments => '' }),
                map { $tool->($i, function => { arguments => $piece->() }) }
                    1 .. $a[1]);
        }

        if ($what eq 'callid') {
            $calls[0]++;
            return map { $tool->(0, %$_) } { id => 'c' x $a[0],
                type => 'function', function => { name => 'f',
                arguments => '' } }, map { { function =>
                { arguments => $_ } } } '{"a":', '1', '}';
        }

        if ($what eq 'calls') {
            return map { $calls[$_]++; $tool->($_,
                id => sprintf('call_%035d', ++$self->{last_call}),
                type => 'function',
                function => { name => 'f', arguments => '{}' }) }
                0 .. $a[0] - 1;
        }

        if ($what eq 'gate') {
            my $file = "$self->{dir}/gate-$a[0]";
            return sub { -e $file ? () : ([ wait => 0.01 ], __SUB__) };
        }

        die "no step \"$what\"\n";
    };

    return AgentUpstream::_status({ code => $1 }, $r)
        if ($plan[0] // '') =~ /^fail (\d+)/;

    my @events = AgentUpstream::_chunk({ role => 'assistant', content => '' });
    push @events, map { $step->($_) } @plan;
    return AgentUpstream::_stream({ %$p, frame => 'chunked' }, @events,
        AgentUpstream::_tail($r, @calls ? 'tool_calls' : 'stop'));
}

# --- workers ------------------------------------------------------------------

sub new {
    my ($class, $t) = @_;
    return bless { t => $t, spare => {}, last => 0 }, $class;
}

# The pids of the workers, as long as they are the same.
sub workers { return sort { $a <=> $b } $_[0]{t}->workers }

# A connection to that worker, over which a request was answered.
sub _conn {
    my ($self, $pid) = @_;
    my $spare = $self->{spare};

    for (1 .. 500) {
        return shift @{ $spare->{$pid} } if @{ $spare->{$pid} // [] };
        my $s = $self->{t}->open_stream('GET', '/who');
        $s->finish(10) or die "no answer to /who\n";
        push @{ $spare->{ $s->header('x-worker') } }, $s;
    }

    die "no connection to worker $pid\n";
}

sub forget { $_[0]{spare} = {} }

# An open stream of that worker; o as of AgentTest::open_stream.
sub open {
    my ($self, $pid, $method, $path, $headers, $body, %o) = @_;
    my $s = $self->{t}->open_stream($method, $path, $headers, $body,
        { %o, $o{port} ? () : (on => $self->_conn($pid)) });
    $s->{pid} = $pid;
    return $s;
}

# A whole answer of that worker.
sub request {
    my ($self, $pid, @request) = @_;
    my $s = $self->open($pid, @request);
    $s->finish(30);

    if ($s->{complete} && $s->{mode} ne 'close'
        && ($s->header('connection') // '') ne 'close') {
        push @{ $self->{spare}{$pid} },
            bless { sock => $s->{sock}, in => $s->{in} }, ref $s;
        delete $s->{sock};

    } else {
        $s->close;
    }

    return $s;
}

sub get {
    my ($self, $pid, $path, @headers) = @_;
    return $self->request($pid, 'GET', $path, \@headers);
}

# A POST of a run; plan: undef for that of "input".  o: path, input, accept,
# whole (the whole answer).
sub post {
    my ($self, $pid, $plan, %o) = @_;
    my $in = run_input(defined $plan ? (text => $plan) : (),
        %{ $o{input} // {} });
    my $call = $o{whole} ? 'request' : 'open';
    my $s = $self->$call($pid, 'POST', $o{path} // '/chat', [
        'Content-Type' => 'application/json',
        Accept => $o{accept} // 'text/event-stream', @{ $o{headers} // [] },
    ], encode_json($in));
    @$s{qw(input id path)} = ($in, $in->{runId}, $o{path} // '/chat');
    $s->{url} = "$s->{path}/runs/" . $in->{runId} =~
        s/([^A-Za-z0-9._:-])/sprintf '%%%02X', ord $1/ger;
    return $s;
}

# The same run once more.
sub again {
    my ($self, $pid, $s, %o) = @_;
    return $self->post($pid, undef, path => $s->{path}, whole => 1, %o,
        input => { messages => $s->{input}{messages},
            map({ ($_ => $s->{input}{$_}) } qw(runId threadId)),
            %{ $o{input} // {} } });
}

sub open_gate { return $_[0]{t}->write_file("gate-$_[1]", '') }

sub status {
    my ($self, $pid, $s) = @_;
    my $r = $self->get($pid, $s->{url});
    return $r->json->{status} // $r->{status};
}

# Until the run's record says so, as that worker sees it.
sub wait_status {
    my ($self, $pid, $s, $want, $timeout) = @_;
    return $self->{t}->wait_for(sub { $self->status($pid, $s) eq $want },
        $timeout);
}

# Until the status has the seq.
sub wait_seq {
    my ($self, $pid, $s, $seq, $timeout) = @_;
    return $self->{t}->wait_for(sub {
        my $r = $self->get($pid, $s->{url});
        ($r->json->{lastEventId} // '') =~ /-(\d+)$/ && $1 >= $seq;
    }, $timeout);
}

# --- what a client holds ------------------------------------------------------

# The messages after these events, begun with those of "input"; as the reducer
# of AG-UI has them.
sub messages {
    my ($self, $input, @events) = @_;
    my (@list, %msg);
    my $add = sub {
        my ($m) = @_;
        push @list, $msg{ $m->{id} } = $m if !$msg{ $m->{id} };
        return $msg{ $m->{id} };
    };
    my $call = sub {
        my ($id) = @_;
        my ($c) = grep { $_->{id} eq $id } map { @{ $_->{toolCalls} // [] } }
            @list;
        return $c;
    };

    $add->($_) for map { decode_json(encode_json($_)) } @{ $input // [] };

    for my $e (map { decode_json($_->{json}) } @events) {
        my $type = $e->{type};

        if ($type eq 'MESSAGES_SNAPSHOT') {
            my %new = map { ($_->{id} // '' => $_) } @{ $e->{messages} };
            my %role = map { ($_->{role} => 1) } @{ $e->{messages} };
            @list = grep { $new{ $_->{id} }
                || $_->{role} =~ /^(?:reasoning|activity)$/
                && !$role{ $_->{role} } } @list;
            my %had = map { ($_->{id} => 1) } @list;
            @list = map { $new{ $_->{id} } // $_ } @list;
            push @list, grep { !$had{ $_->{id} // '' } } @{ $e->{messages} };
            %msg = map { ($_->{id} // '' => $_) } @list;

        } elsif ($type =~ /^(TEXT|REASONING)_MESSAGE_START$/) {
            $add->({ id => $e->{messageId}, role => $e->{role} });

        } elsif ($type =~ /^(TEXT|REASONING)_MESSAGE_CONTENT$/) {
            $msg{ $e->{messageId} }{content} .= $e->{delta};

        } elsif ($type eq 'TOOL_CALL_START') {
            next if $call->($e->{toolCallId});
            my $m = $add->({ id => $e->{parentMessageId},
                role => 'assistant' });
            push @{ $m->{toolCalls} }, { id => $e->{toolCallId},
                type => 'function', function =>
                { name => $e->{toolCallName}, arguments => '' } };

        } elsif ($type eq 'TOOL_CALL_ARGS') {
            $call->($e->{toolCallId})->{function}{arguments} .= $e->{delta};
        }
    }

    # no content is empty content
    for my $m (@list) {
        delete $m->{content} if !length($m->{content} // '');
    }

    return \@list;
}

1;
