package AgentTest;

# The test harness: a real nginx with the module, a scripted model server
# behind it (AgentUpstream), and a client on raw sockets in front.
#
#     use Test::More;
#     use AgentTest;
#
#     my $t = AgentTest->new;
#     my ($http, $locations) = agent_blocks(chat => 'words,n=5');
#     $t->conf(<<"EOF");
#     %%GLOBALS%%
#     events { }
#     http {
#         %%GLOBALS_HTTP%%
#         $http
#         server { listen 127.0.0.1:%%PORT%%; $locations }
#     }
#     EOF
#     $t->start;
#     my $r = $t->post_run({}, path => '/chat');
#     check_run($r->events, text => 'w1 w2 w3 w4 w5');
#     $t->done;
#
# In a configuration: %%GLOBALS%% (main context), %%GLOBALS_HTTP%%, %%DIR%% (the
# test's own directory), %%PORT%% %%PORT1%% ... (free ports), %%UPSTREAM%%
# %%HANG%% %%DNS%% %%TLS_GOOD%% %%TLS_WRONG%% %%TLS_EXPIRED%% (ports of
# AgentUpstream) and %%CA%% (a file).
#
# Environment: AGENT_MODULE (the .so), AGENT_STATIC=1 (no load_module),
# TEST_NGINX_BINARY, AGENT_KEEP=1 (keep the directory), AGENT_LOG (level),
# AGENT_TEST_TIMEOUT (seconds for a whole file, default 300 * AGENT_SCALE).

use strict;
use warnings;

use AgentUpstream;
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use File::Path qw(rmtree);
use File::Spec;
use File::Temp qw(tempdir);
use IO::Socket::INET;
use Mojo::JSON qw(decode_json encode_json);
use POSIX ();
use Scalar::Util qw(weaken);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(agent_blocks check_run run_input script);

my $ROOT = abs_path(dirname(__FILE__) . '/../..');
my $ALARM = qr/^\S+\ \S+\ \[(?:alert|emerg|crit)\]
    |exited\ on\ signal|Sanitizer|runtime\ error:|core\ dumped/x;
my %alive;
my $next_port;
my $last_id = 0;

# --- set-up and the end -------------------------------------------------------

sub new {
    my ($class, %o) = @_;

    $o{dir} //= tempdir('agent-XXXXXX', TMPDIR => 1);

    my $self = bless {
        nginx   => $ENV{TEST_NGINX_BINARY} || _find_nginx(),
        module  => $ENV{AGENT_MODULE} || "$ROOT/build/ngx_http_agent_module.so",
        owner   => $$,
        ports   => {},
        expect  => [],
        log_pos => {},
        %o,
    }, $class;

    chmod 0755, $self->{dir};
    $self->{module} = undef if $ENV{AGENT_STATIC};
    $self->{module} = File::Spec->rel2abs($self->{module}) if $self->{module};
    $self->{version} = `$self->{nginx} -V 2>&1`;
    $self->{level} //= $ENV{AGENT_LOG}
        || ($self->{version} =~ /--with-debug/ ? 'debug' : 'info');
    weaken($alive{$self} = $self);

    return $self;
}

sub _find_nginx {
    for my $dir (split(/:/, $ENV{PATH} // ''), '/usr/sbin') {
        return "$dir/nginx" if -x "$dir/nginx";
    }

    die "no nginx in PATH or /usr/sbin; set TEST_NGINX_BINARY\n";
}

# A test that hangs or is interrupted still ends what it started, also when
# whoever read its output has gone.  (Of one that is killed outright nginx hears
# through setpriv, the model server through its parent's pid.)
{
    my $owner = $$;
    $SIG{PIPE} = 'IGNORE';
    $SIG{$_} //= sub { exit 1 }
        for qw(INT TERM HUP);
    $SIG{ALRM} = sub { diag("$0 took too long"); exit 1 };
    alarm($ENV{AGENT_TEST_TIMEOUT} || 300 * ($ENV{AGENT_SCALE} || 1));

    END {
        if ($$ == $owner) {
            my $failed = $?;
            local $?;
            $_ && $_->_kill($failed) for values %alive;
        }
    }
}

sub DESTROY {
    my ($self) = @_;
    return if $$ != $self->{owner};
    local $?;
    $self->_kill;
    delete $alive{$self};
}

# Ends everything at once: the way out of a test that died.
sub _kill {
    my ($self, $failed) = @_;

    if ($self->{pid}) {
        kill 'KILL', $self->{pid}, $self->_session;
        waitpid delete $self->{pid}, 0;
    }

    $self->{upstream}->stop if $self->{upstream};
    my $dir = delete $self->{dir} or return;

    if ($ENV{AGENT_KEEP} || $failed || !Test::More->builder->is_passing) {
        diag("kept $dir");

    } else {
        rmtree($dir);
    }
}

sub dir { $_[0]{dir} }
sub pid { $_[0]{pid} }

# The n-th free port of this test.  The number comes from the pid, so files that
# run side by side do not meet; binding it tells whether it is free.
sub port {
    my ($self, $n) = @_;
    $n ||= 0;

    while (!$self->{ports}{$n}) {
        $next_port //= 10000 + $$ % 1000 * 20;
        my $port = $next_port++;
        $next_port = 10000 if $next_port >= 30000;
        my $s = IO::Socket::INET->new(
            Listen    => 1,
            LocalAddr => '127.0.0.1',
            LocalPort => $port,
            ReuseAddr => 1,
        ) or next;
        close $s;
        $self->{ports}{$n} = $port;
    }

    return $self->{ports}{$n};
}

# The model server; made when a configuration or a test first needs it.
sub upstream {
    my ($self, %o) = @_;
    return $self->{upstream} //= AgentUpstream->new(dir => $self->{dir}, %o);
}

# script('tool', name => 'f', args => '{}'): a path segment for AgentUpstream.
sub script {
    my ($name, %p) = @_;

    for my $v (values %p) {
        utf8::encode($v);
        $v =~ s/([^A-Za-z0-9._-])/sprintf '%%%02X', ord $1/ge;
    }

    return join ',', $name, map {"$_=$p{$_}"} sort keys %p;
}

# agent_blocks(name => SCRIPT | { script, url, model, agent, location }, ...):
# an agent_model, an agent and a location /name for each, as two texts, for http
# and for server.  The last three members are lines to add to each block.
sub agent_blocks {
    my ($http, $locations) = ('', '');

    while (my ($name, $o) = splice @_, 0, 2) {
        $o = { script => $o } if !ref $o;
        my %l = map { ($_ => $o->{$_} // '') } qw(model agent location);
        my $url = $o->{url} // "http://127.0.0.1:%%UPSTREAM%%/$o->{script}/v1";
        $http .= <<"EOF";
    agent_model $name {
        provider openai;
        url $url;
        model stub-1;
        $l{model}
    }
    agent $name {
        model $name;
        memory off;
        $l{agent}
    }
EOF
        $locations .= <<"EOF";
        location /$name {
            agent_pass $name;
            agent_owner off;
            $l{location}
        }
EOF
    }

    return ($http, $locations);
}

sub _expand {
    my ($self, $text, $log) = @_;
    my $dir = $self->{dir};
    my @temp = grep { $self->{version} !~ /--without-http_${_}_module/ }
        qw(proxy fastcgi uwsgi scgi);
    my %var = (
        DIR     => $dir,
        GLOBALS => join("\n",
            $self->{module} ? "load_module $self->{module};" : '',
            'daemon off;',
            'master_process on;',
            "pid $dir/nginx.pid;",
            "error_log $dir/$log $self->{level};",
            $> == 0 ? 'user root;' : ''),
        GLOBALS_HTTP => join("\n",
            "access_log $dir/access.log;",
            "root $dir;",
            "client_body_temp_path $dir/client_body_temp;",
            map {"${_}_temp_path $dir/${_}_temp;"} @temp),
    );

    $self->upstream(tls => 1) if $text =~ /%%(?:TLS_|CA%%)/;
    $text =~ s/%%(GLOBALS(?:_HTTP)?|DIR)%%/$var{$1}/g;
    $text =~ s/%%PORT(\d*)%%/$self->port($1)/ge;
    $text =~ s/%%UPSTREAM%%/$self->upstream->port/ge;
    $text =~ s/%%HANG%%/$self->upstream->hang_port/ge;
    $text =~ s/%%DNS%%/$self->upstream->dns_port/ge;
    $text =~ s/%%TLS_(\w+)%%/$self->upstream->tls_port(lc $1)/ge;
    $text =~ s/%%CA%%/$self->upstream->ca_file/ge;
    $text =~ /(%%\w*%%)/ and die "unknown $1 in the configuration\n";

    return $text;
}

sub write_file {
    my ($self, $name, $content, $mode) = @_;
    my $file = "$self->{dir}/$name";
    open my $fh, '>', $file or die "$file: $!";
    print $fh $content;
    close $fh or die "$file: $!";
    chmod $mode, $file if defined $mode;
    return $file;
}

sub conf {
    my ($self, $text) = @_;
    $self->{conf} = $self->_expand($text, 'error.log');
    $self->write_file('nginx.conf', $self->{conf});
    return $self;
}

# nginx -t on a text: exit code and what it said.
sub test_conf {
    my ($self, $text) = @_;
    my $dir = $self->{dir};

    $self->write_file('test.conf', $self->_expand($text, 'test.log'));
    my $out = qx{$self->{nginx} -t -p $dir/ -c $dir/test.conf \\
                 -e $dir/test.log 2>&1 </dev/null};

    return ($? >> 8, $out);
}

sub start {
    my ($self) = @_;
    my $dir = $self->{dir};

    if ($self->{module} && !-e $self->{module}) {
        die "$self->{module} does not exist: run make\n";
    }

    $self->{pid} = fork() // die "fork: $!";

    if ($self->{pid} == 0) {
        # A session of its own: whoever is in it later is ours, whatever its
        # parent has become.
        POSIX::setsid();
        open STDIN,  '<',  '/dev/null';
        open STDOUT, '>>', "$dir/stderr.log";
        open STDERR, '>&', \*STDOUT;
        my @tie = -x '/usr/bin/setpriv'
            ? ('/usr/bin/setpriv', '--pdeathsig', 'TERM') : ();
        { exec @tie, $self->{nginx}, '-p', "$dir/", '-c', "$dir/nginx.conf",
                '-e', "$dir/error.log"; }
        POSIX::_exit(127);
    }

    $self->{sid} = $self->{pid};
    my @ports = $self->{conf} =~ /listen\s+127\.0\.0\.1:(\d+)/g;
    my ($workers) = $self->{conf} =~ /^\s*worker_processes\s+(\d+);/m;
    $workers ||= 1;

    for (1 .. 500) {
        if (waitpid($self->{pid}, POSIX::WNOHANG()) > 0) {
            delete $self->{pid};
            my $why = $self->log . $self->_slurp('stderr.log');
            die "nginx did not start:\n" . substr($why, -2000) . "\n";
        }

        @ports = grep {
            !IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $_)
        } @ports;
        return $self if !@ports && -s "$dir/nginx.pid"
            && $self->workers >= $workers;
        sleep 0.02;
    }

    die "nginx does not answer on @ports\n";
}

# Live processes of this nginx: [pid, title], from /proc.
sub _processes {
    my ($self) = @_;
    my @out;

    for my $dir (glob '/proc/[0-9]*') {
        open my $fh, '<', "$dir/stat" or next;
        my $stat = <$fh> // next;
        my ($state, undef, undef, $sid) = split ' ', $stat =~ s/^.*\) //sr;
        next if $sid != $self->{sid} || $state eq 'Z';
        open my $cmd, '<', "$dir/cmdline" or next;
        push @out, [ $dir =~ /(\d+)$/, scalar(<$cmd>) // '' ];
    }

    return @out;
}

sub _session { return map { $_->[0] } $_[0]->_processes }

# The pids of the workers; workers('old') those that are shutting down.
sub workers {
    my ($self, $old) = @_;
    my $title = qr/^nginx: worker process/;

    return map { $_->[0] } grep {
        $_->[1] =~ $title && ($_->[1] =~ /shutting down/ ? $old : !$old)
    } $self->_processes;
}

sub signal {
    my ($self, $name) = @_;
    kill $name, $self->{pid} or die "kill $name $self->{pid}: $!";
}

# Until the condition is true; its value, or false after the time.
sub wait_for {
    my ($self, $cond, $timeout) = @_;
    my $end = time + ($timeout // 10);
    my $got;

    while (!($got = $cond->())) {
        return 0 if time > $end;
        sleep 0.02;
    }

    return $got;
}

# HUP; true when as many new workers run and the old ones know they are old.
sub reload {
    my ($self, $timeout) = @_;
    my %before = map { ($_ => 1) } $self->workers;

    $self->signal('HUP');

    return $self->wait_for(sub {
        my @now = $self->workers;
        return @now && !grep { $before{$_} } @now;
    }, $timeout);
}

sub stop {
    my ($self, %o) = @_;
    my $pid = $self->{pid} or return;
    my $status = 'none';
    my $how = 'QUIT';

    for my $step ([ QUIT => $o{timeout} // 30 ], [ TERM => 5 ], [ KILL => 5 ]) {
        $how = $step->[0];
        kill $how, $pid;
        my $gone = $self->wait_for(sub {
            my $got = waitpid $pid, POSIX::WNOHANG();
            $status = $? if $got == $pid;
            return $got != 0;
        }, $step->[1]);
        last if $gone;
    }

    delete $self->{pid};
    ok($how eq 'QUIT' && $status eq '0', 'nginx stopped when asked to')
        or diag("it took $how; its status was $status");

    # A worker may need a moment longer than the master to be gone.
    my @left;
    $self->wait_for(sub { !(@left = $self->_processes) }, 2);
    ok(!@left, 'no process is left behind')
        or diag(map {"$_->[0] $_->[1]\n"} @left);
    kill 'KILL', map { $_->[0] } @left;

    my @bad = $self->bad_log_lines;
    ok(!@bad, 'the error log has no alarm')
        or diag(@bad > 20 ? (@bad[ 0 .. 19 ], "...\n") : @bad);
}

# The last call of a test file.
sub done {
    my ($self) = @_;

    $self->stop;

    if ($self->{upstream}) {
        $self->{upstream}->stop;
        is($self->{upstream}->errors, '', 'the model server had no errors');
    }

    done_testing();
}

sub _slurp {
    my ($self, $name) = @_;
    open my $fh, '<:raw', "$self->{dir}/$name" or return '';
    local $/;
    return <$fh> // '';
}

sub log        { return $_[0]->_slurp('error.log') }
sub access_log { return $_[0]->_slurp('access.log') }

# Alarms that belong to the test, e.g. qr/exited on signal 9/.
sub expect_log { my ($self, @re) = @_; push @{ $self->{expect} }, @re }

# Alarms since the last call that nobody expects.
sub bad_log_lines {
    my ($self) = @_;
    my @bad;

    for my $file (qw(error.log stderr.log)) {
        open my $fh, '<:raw', "$self->{dir}/$file" or next;
        seek $fh, $self->{log_pos}{$file} // 0, 0;

        while (my $line = <$fh>) {
            next if $line !~ $ALARM;
            next if grep { $line =~ $_ } @{ $self->{expect} };
            push @bad, $line;
        }

        $self->{log_pos}{$file} = tell $fh;
    }

    return @bad;
}

# --- the client ---------------------------------------------------------------

# Sends a request and returns at once an AgentTest::Stream.  headers: a hash or
# a list of pairs.  opts: port, version ("1.0"), timeout (of connecting).
sub open_stream {
    my ($self, $method, $path, $headers, $body, $opts) = @_;
    my @pairs = ref $headers eq 'HASH' ? %$headers : @{ $headers // [] };
    my %has;

    for (my $i = 0; $i < @pairs; $i += 2) {
        $has{ lc $pairs[$i] } = 1;
    }

    push @pairs, 'Host', 'localhost' if !$has{host};
    push @pairs, 'Content-Length', length $body
        if defined $body
        && !$has{'content-length'}
        && !$has{'transfer-encoding'};

    my $head = "$method $path HTTP/" . ($opts->{version} // '1.1') . "\r\n";
    while (my ($name, $value) = splice @pairs, 0, 2) {
        $head .= "$name: $value\r\n" if defined $value;
    }

    my $s = $self->_connect($opts);
    $s->{method} = $method;
    $s->send("$head\r\n" . ($body // ''));

    return $s;
}

sub _connect {
    my ($self, $opts) = @_;
    my $port = $opts->{port} // $self->port;
    my $sock = IO::Socket::INET->new(
        PeerAddr => '127.0.0.1',
        PeerPort => $port,
        Timeout  => $opts->{timeout} // 10,
    ) or die "connect to port $port: $!\n";

    return AgentTest::Stream->new($sock);
}

# The whole answer: an AgentTest::Stream that was read to its end.  opts also:
# timeout (of the whole, 30 s).
sub request {
    my ($self, $method, $path, $headers, $body, $opts) = @_;
    my $s = $self->open_stream($method, $path, $headers, $body, $opts);

    $s->finish($opts->{timeout});
    $s->close;

    return $s;
}

# Sends bytes as they are, reads until the peer closes or the time is over.
sub raw {
    my ($self, $bytes, $timeout, $opts) = @_;
    my $s = $self->_connect($opts);
    my $end = time + ($timeout // 5);

    $s->{raw} = 1;
    $s->send($bytes);
    1 while $s->_fill($end);
    $s->close;

    return $s->{in};
}

# A RunAgentInput as client 1.0 sends it: the defaults, with members replaced or
# (undef) left out.  "text" is the content of its one user message.
sub run_input {
    my (%in) = @_;
    my $n = ++$last_id;
    my $text = delete $in{text} // 'Hello.';
    my %input = (
        threadId        => "t-$$-$n",
        runId           => "r-$$-$n",
        protocolVersion => '1.0',
        state           => {},
        messages => [ { id => "u-$n", role => 'user', content => $text } ],
        tools           => [],
        context         => [],
        forwardedProps  => {},
        %in,
    );

    delete @input{ grep { !defined $input{$_} } keys %input };

    return \%input;
}

# POST of a run; input as for run_input, opts: path, accept, headers (pairs),
# body (instead of input), stream (return at once), and those of request.
sub post_run {
    my ($self, $input, %o) = @_;
    my $in = run_input(%{ $input // {} });
    my @headers = (
        'Content-Type' => 'application/json',
        Accept         => $o{accept} // 'text/event-stream',
        @{ $o{headers} // [] },
    );
    my $call = $o{stream} ? 'open_stream' : 'request';
    my $s = $self->$call(
        'POST', $o{path} // '/agent', \@headers,
        $o{body} // encode_json($in), \%o
    );
    $s->{input} = $in;

    return $s;
}

# Frames of a body of type text/event-stream: see AgentTest::Stream::frames.
sub sse {
    my ($self, $body) = @_;
    my @frames;

    while ($body =~ /\G(.*?\n\n)/gcs) {
        push @frames, _frame($1);
    }

    my $rest = substr $body, pos($body) // 0;
    push @frames, { raw => $rest, partial => 1 } if length $rest;

    return @frames;
}

# One frame: raw (bytes), id, event, comment, json (the data), data (decoded),
# bad (why it is none).
sub _frame {
    my ($raw) = @_;
    my %f = (raw => $raw);

    for my $line (split /\n/, $raw) {
        if ($line =~ /^:\s?(.*)/s) {
            $f{comment} = $1;

        } elsif ($line =~ /^(id|event|data|retry): ?(.*)/s) {
            my ($name, $value) = ($1 eq 'data' ? 'json' : $1, $2);
            $f{$name} = defined $f{$name} ? "$f{$name}\n$value" : $value;

        } else {
            $f{bad} = "odd line \"$line\"";
        }
    }

    if (defined $f{json}) {
        $f{data} = eval { decode_json($f{json}) };
        $f{bad} = "no JSON: $f{json}" if !ref $f{data};
    }

    return \%f;
}

# --- the rules of AG-UI -------------------------------------------------------

# Required members by type: s string, a array, any: the key must be there.
my %REQUIRED = (
    RUN_STARTED                => { threadId => 's', runId => 's' },
    RUN_FINISHED               => { threadId => 's', runId => 's' },
    RUN_ERROR                  => { message => 's' },
    STEP_STARTED               => { stepName => 's' },
    STEP_FINISHED              => { stepName => 's' },
    TEXT_MESSAGE_START         => { messageId => 's' },
    TEXT_MESSAGE_CONTENT       => { messageId => 's', delta => 's' },
    TEXT_MESSAGE_END           => { messageId => 's' },
    TOOL_CALL_START            => { toolCallId => 's', toolCallName => 's' },
    TOOL_CALL_ARGS             => { toolCallId => 's', delta => 's' },
    TOOL_CALL_END              => { toolCallId => 's' },
    TOOL_CALL_RESULT           => { messageId => 's', toolCallId => 's' },
    REASONING_START            => { messageId => 's' },
    REASONING_END              => { messageId => 's' },
    REASONING_MESSAGE_START    => { messageId => 's', role => 's' },
    REASONING_MESSAGE_CONTENT  => { messageId => 's', delta => 's' },
    REASONING_MESSAGE_END      => { messageId => 's' },
    REASONING_ENCRYPTED_VALUE  =>
        { subtype => 's', entityId => 's', encryptedValue => 's' },
    STATE_SNAPSHOT             => { snapshot => 'any' },
    STATE_DELTA                => { delta => 'a' },
    MESSAGES_SNAPSHOT          => { messages => 'a' },
    CUSTOM                     => { name => 's', value => 'any' },
    RAW                        => { event => 'any' },
);

# Members whose value is somebody else's JSON, where null is theirs to say.
my %OPAQUE = map { ($_ => 1) }
    qw(snapshot value event rawEvent result metadata parameters payload input);

sub _null {
    my ($v, $path) = @_;

    if (ref $v eq 'HASH') {
        for my $k (sort keys %$v) {
            return "$path.$k" if !defined $v->{$k} && !$OPAQUE{$k};
            my $found = $OPAQUE{$k} ? undef : _null($v->{$k}, "$path.$k");
            return $found if $found;
        }

    } elsif (ref $v eq 'ARRAY') {
        for my $i (0 .. $#$v) {
            return "$path\[$i\]" if !defined $v->[$i];
            my $found = _null($v->[$i], "$path\[$i\]");
            return $found if $found;
        }
    }

    return undef;
}

# One test: the events of one run are legal AG-UI, written apart from the
# module and from any AG-UI library.  events: frames or decoded events.  expect:
# name, threadId, runId, text, reasoning, finish, outcome, code (then the run
# has to end in RUN_ERROR).  Returns what the run said: text, texts (of each
# message), reasoning, calls [{id, name, args, parent}], results, finish,
# outcome, usage, error, types, last, ok.
sub check_run {
    my ($events, %e) = @_;
    my $run = { text => '', texts => [], reasoning => '', calls => [],
        results => [], types => [] };
    my (@bad, %open, %text, %call);
    my $terminal;
    my @ev = map { exists $_->{raw} ? $_->{data} // () : $_ } @$events;
    my %kind = (TEXT_MESSAGE => 'messageId', REASONING_MESSAGE => 'messageId',
        TOOL_CALL => 'toolCallId', REASONING => 'messageId',
        STEP => 'stepName');

    push @bad, map { $_->{bad} // () } grep { exists $_->{raw} } @$events;
    push @bad, 'a cut frame' if grep { $_->{partial} } @$events;
    push @bad, 'no events' if !@ev;

    for my $i (0 .. $#ev) {
        my $ev = $ev[$i];
        my $type = $ev->{type} // '';
        my $at = "event $i ($type)";
        my $need = $REQUIRED{$type};
        my $null = _null($ev, $type);

        push @{ $run->{types} }, $type;
        push @bad, "$at: unknown type" if !$need;
        push @bad, "$at: $null is null" if $null;

        for my $m (sort keys %{ $need // {} }) {
            my $v = $ev->{$m};
            my $want = $need->{$m};
            push @bad, "$at: $m is missing or of the wrong kind"
                if !exists $ev->{$m}
                || $want eq 's' && (!defined $v || ref $v)
                || $want eq 'a' && ref $v ne 'ARRAY';
        }

        push @bad, "$at: timestamp is no integer"
            if exists $ev->{timestamp} && $ev->{timestamp} !~ /^-?\d+$/;
        push @bad, "$at: nothing may follow the terminal event" if $terminal;
        push @bad, "$at: the first event has to be RUN_STARTED"
            if $i == 0 && $type !~ /^RUN_(STARTED|ERROR)$/;
        push @bad, "$at: the run has started already"
            if $i > 0 && $type eq 'RUN_STARTED';

        if ($type =~ /^(\w+?)_(STARTED|START|CONTENT|ARGS|END|FINISHED)$/
            && $kind{$1}) {
            my ($k, $phase) = ($1, $2);
            my $id = $ev->{ $kind{$k} } // '';
            my $key = "$k $id";

            if ($phase =~ /^START/) {
                push @bad, "$at: $id is open already" if $open{$key}++;

            } else {
                push @bad, "$at: $id is not open" if !$open{$key};
            }

            delete $open{$key} if $phase =~ /^(END|FINISHED)$/;

            if ($k eq 'TEXT_MESSAGE' && $phase eq 'START') {
                push @bad, "$at: role \"$ev->{role}\""
                    if defined $ev->{role}
                    && $ev->{role} !~ /^(assistant|user|system|developer)$/;
                push @{ $run->{texts} }, '' if !exists $text{$id};
                $text{$id} //= \$run->{texts}[-1];

            } elsif ($k eq 'TEXT_MESSAGE' && $phase eq 'CONTENT') {
                push @bad, "$at: empty delta" if ($ev->{delta} // '') eq '';
                ${ $text{$id} //= \my $lost } .= $ev->{delta} // '';

            } elsif ($k eq 'REASONING_MESSAGE' && $phase eq 'START') {
                push @bad, "$at: role is not \"reasoning\""
                    if ($ev->{role} // '') ne 'reasoning';

            } elsif ($k eq 'REASONING_MESSAGE' && $phase eq 'CONTENT') {
                push @bad, "$at: empty delta" if ($ev->{delta} // '') eq '';
                $run->{reasoning} .= $ev->{delta} // '';

            } elsif ($k eq 'TOOL_CALL' && $phase eq 'START') {
                push @bad, "$at: no id or name"
                    if $id eq '' || ($ev->{toolCallName} // '') eq '';
                $call{$id} = {
                    id     => $id,
                    name   => $ev->{toolCallName},
                    parent => $ev->{parentMessageId},
                    args   => '',
                };
                push @{ $run->{calls} }, $call{$id};

            } elsif ($k eq 'TOOL_CALL' && $phase eq 'ARGS') {
                $call{$id}{args} .= $ev->{delta} // '';
            }
        }

        push @{ $run->{results} }, $ev if $type eq 'TOOL_CALL_RESULT';

        if ($type =~ /^RUN_(FINISHED|ERROR)$/) {
            $terminal = $ev;
            push @bad, "$at: still open: " . join(', ', sort keys %open)
                if $type eq 'RUN_FINISHED' && %open;
        }
    }

    if (!$terminal) {
        push @bad, 'no terminal event' if @ev;
        $terminal = {};
    }

    $run->{text} = join "\n", @{ $run->{texts} };
    $run->{last} = $terminal;
    $run->{usage} = $terminal->{usage};

    if (($terminal->{type} // '') eq 'RUN_ERROR') {
        $run->{error} = $terminal;

    } else {
        $run->{finish} = $terminal->{metadata}{finishReason}
            if ref $terminal->{metadata} eq 'HASH';
        $run->{outcome} = $terminal->{outcome}{type} // 'success'
            if !exists $terminal->{outcome}
            || ref $terminal->{outcome} eq 'HASH';

        for my $id (qw(threadId runId)) {
            push @bad, "RUN_STARTED and RUN_FINISHED differ in $id"
                if @ev && $terminal->{$id}
                && ($ev[0]{$id} // '') ne $terminal->{$id};
        }
    }

    my %got = (%$run, code => $run->{error}{code});
    delete $run->{error} if !%{ $run->{error} // {} };
    @got{qw(threadId runId)} = @{ $ev[0] // {} }{qw(threadId runId)};

    if ($run->{error} && !exists $e{code}) {
        push @bad, 'it ended with RUN_ERROR '
            . join ': ', map { $_ // '-' } @{ $run->{error} }{qw(code message)};
    }

    for my $k (qw(threadId runId text reasoning finish outcome code)) {
        next if !exists $e{$k} || ($e{$k} // '') eq ($got{$k} // '');
        push @bad, "$k is " . ($got{$k} // 'absent') . ', not '
            . ($e{$k} // 'absent');
    }

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    $run->{ok} = ok(!@bad, $e{name} // 'the events of the run');
    diag(map {"$_\n"} @bad > 10 ? (@bad[ 0 .. 9 ], '...') : @bad) if @bad;
    diag(join ' ', @{ $run->{types} }) if @bad && @{ $run->{types} } < 60;

    return $run;
}

# --- an answer as it arrives --------------------------------------------------
#
# Members: status, reason, headers (lower case name => [values]), body (without
# chunking), chunks [[time, bytes], ...], head_time; complete (its framing ended
# as it should), error (errno text of a reset), eof.  Times are seconds since
# the request was sent.

package AgentTest::Stream;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use Mojo::JSON qw(decode_json);
use Socket qw(SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

sub new {
    my ($class, $sock) = @_;
    $sock->blocking(0);
    return bless {
        sock   => $sock,
        start  => time,
        in     => '',
        body   => '',
        chunks => [],
        pos    => 0,
    }, $class;
}

sub send {
    my ($self, $data) = @_;
    my $end = time + 30;

    while (length $data) {
        my $n = syswrite $self->{sock}, $data, 65536;

        if (defined $n) {
            substr $data, 0, $n, '';
            next;
        }

        # The peer may have answered and closed without reading all.
        return 0 if $! != EAGAIN && $! != EINTR || time > $end;
        my $w = '';
        vec($w, fileno $self->{sock}, 1) = 1;
        select undef, $w, undef, 0.1;
    }

    return 1;
}

# Reads what is there: 1, or 0 at the end or when the time is over.
sub _fill {
    my ($self, $end) = @_;

    while (!$self->{eof} && $self->{sock}) {
        my $left = $end - time;
        my $r = '';
        vec($r, fileno $self->{sock}, 1) = 1;

        if (select($r, undef, undef, $left > 0 ? $left : 0) <= 0) {
            next if $left > 0;
            return 0;
        }

        my $n = sysread $self->{sock}, my $data, 65536;

        if (!defined $n) {
            next if $! == EAGAIN || $! == EINTR;
            $self->{error} = "$!";
            $n = 0;
        }

        if ($n == 0) {
            $self->{eof} = 1;
            $self->{complete} = 1
                if ($self->{mode} // '') eq 'close' && !$self->{error};
            return 0;
        }

        $self->{in} .= $data;
        $self->_parse if !$self->{raw};
        return 1;
    }

    return 0;
}

sub _parse {
    my ($self) = @_;

    while (!$self->{status}) {
        return if $self->{in} !~ s/\A(.*?)\r\n\r\n//s;
        $self->{head} = $1;
        my ($line, @lines) = split /\r\n/, $1;
        my ($status, $reason) = $line =~ m{^HTTP/1\.[01] (\d{3}) ?(.*)}
            or return $self->{error} = "no HTTP: $line";
        next if $status < 200;

        for (@lines) {
            my ($name, $value) = split /:\s*/, $_, 2;
            push @{ $self->{headers}{ lc $name } }, $value // '';
        }

        $self->{status} = $status;
        $self->{reason} = $reason;
        $self->{head_time} = time - $self->{start};
        my $n = $self->header('content-length');

        if (($self->{method} // '') eq 'HEAD' || $status == 204
            || $status == 304) {
            $n = 0;
        }

        if (($self->header('transfer-encoding') // '') =~ /chunked/i) {
            $self->{mode} = 'chunked';

        } elsif (defined $n) {
            $self->{mode} = 'length';
            $self->{left} = $n;
            $self->{complete} = 1 if $n == 0;

        } else {
            $self->{mode} = 'close';
        }
    }

    if ($self->{mode} ne 'chunked') {
        $self->_take($self->{mode} eq 'close' ? length $self->{in}
            : $self->{left});
        $self->{complete} = 1
            if $self->{mode} eq 'length' && $self->{left} == 0;
        return;
    }

    while (!$self->{complete}) {
        if (!$self->{left}) {
            return if $self->{in} !~ /\A(?:\r\n)?([0-9a-fA-F]+)[^\r\n]*\r\n/;
            my ($all, $n) = ($+[0], hex $1);

            # the last chunk with its trailer
            if ($n == 0) {
                return if $self->{in}
                    !~ s/\A(?:\r\n)?0+\r\n(?:[^\r\n]+\r\n)*\r\n//;
                $self->{complete} = 1;
                $self->{end_time} = time - $self->{start};
                return;
            }

            substr $self->{in}, 0, $all, '';
            $self->{left} = $n;
        }

        $self->_take($self->{left}) or return;
    }
}

sub _take {
    my ($self, $n) = @_;
    my $data = substr $self->{in}, 0, $n, '';

    return 0 if $data eq '';
    $self->{left} -= length $data if $self->{mode} ne 'close';
    $self->{body} .= $data;
    push @{ $self->{chunks} }, [ time - $self->{start}, $data ];
    return 1;
}

# The first value of a header, or undef.
sub header {
    my ($self, $name) = @_;
    my $values = $self->{headers}{ lc $name };
    return $values ? $values->[0] : undef;
}

sub json {
    my ($self) = @_;
    return $self->{json} //= eval { decode_json($self->{body}) } // {};
}

# The status once the head is here.
sub read_head {
    my ($self, $timeout) = @_;
    my $end = time + ($timeout // 30);

    while (!$self->{status}) {
        $self->_fill($end) or last;
    }

    return $self->{status};
}

# Reads to the end; true when the body is complete.
sub finish {
    my ($self, $timeout) = @_;
    my $end = time + ($timeout // 30);

    while (!$self->{complete}) {
        $self->_fill($end) or last;
    }

    $self->{time} = time - $self->{start};
    return $self->{complete};
}

# All frames of the body so far, and those of them that are events.
sub frames { return [ AgentTest->sse($_[0]{body}) ] }

sub events {
    return [ grep { defined $_->{json} || $_->{partial} } @{ $_[0]->frames } ];
}

# The next frame, comments included; undef at the end or when the time is over
# (complete and eof tell which).
sub read_frame {
    my ($self, $timeout) = @_;
    my $end = time + ($timeout // 30);

    while (1) {
        my $i = index $self->{body}, "\n\n", $self->{pos};

        if ($i >= 0) {
            my $raw = substr $self->{body}, $self->{pos}, $i + 2 - $self->{pos};
            $self->{pos} = $i + 2;
            my $frame = AgentTest::_frame($raw);
            $frame->{time} = time - $self->{start};
            return $frame;
        }

        return undef if $self->{complete} || !$self->_fill($end);
    }
}

# The next event: as read_frame, without the comments.
sub read_event {
    my ($self, $timeout) = @_;
    my $end = time + ($timeout // 30);

    while (my $frame = $self->read_frame($end - time)) {
        return $frame if defined $frame->{json};
    }

    return undef;
}

# Events up to one of that type, or for which the code says so.
sub read_until {
    my ($self, $what, $timeout) = @_;
    my $end = time + ($timeout // 30);
    my @out;

    while (my $ev = $self->read_event($end - time)) {
        push @out, $ev;
        last if ref $what ? $what->($ev) : ($ev->{data}{type} // '') eq $what;
    }

    return @out;
}

sub close {
    my ($self) = @_;
    my $sock = delete $self->{sock} or return;
    CORE::close $sock;
}

# RST instead of FIN.
sub reset {
    my ($self) = @_;
    my $sock = delete $self->{sock} or return;
    setsockopt $sock, SOL_SOCKET, SO_LINGER, pack 'II', 1, 0;
    CORE::close $sock;
}

sub shutdown_write { return shutdown $_[0]{sock}, 1 }

1;
