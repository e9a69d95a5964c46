package AgentUpstream;

# A scripted model server for the tests: one forked process with a select
# loop that speaks OpenAI chat completions, well or badly.
#
# What it does is chosen by the first segment of the path, so a configuration
# has one agent per behaviour:
#
#     url http://127.0.0.1:%%UPSTREAM%%/words,n=50,delay=0.02/v1;
#
# The scripts are the subs named script_* below.  Parameters of all of them:
#
#     wait=S          seconds before the response head
#     times=N         only the first N requests of this path; then like "ok"
#     frame=chunked|length|close    how the body is delimited
#     eol=lf|crlf|cr  line ends of the event stream
#     gap=S           seconds between the pieces of a body
#
# and where a script breaks (at=...):
#
#     first    before any byte of the response
#     head     after the response head
#     role     after the first event, which has no content
#     content  after some whole events with content
#     mid      in the middle of an event after content
#     args     in the middle of a tool call's arguments
#     finish   after finish_reason, before usage and [DONE]
#
# It records what it sees in a file of JSON lines; the parent reads it through
# requests(), connections() and counts().  Values with "," or "/" or "%" in a
# path are %-encoded.

use strict;
use warnings;
use feature 'current_sub';

use Errno qw(EAGAIN EWOULDBLOCK EINTR);
use IO::Handle;
use IO::Socket::INET;
use Mojo::JSON qw(decode_json encode_json);
use POSIX ();
use Socket qw(IPPROTO_TCP SOL_SOCKET SO_LINGER TCP_NODELAY inet_aton);
use Time::HiRes qw(sleep time);

use constant CHUNK => 65536;

my %CERTS = (
    good    => { names => [ 'model.test', 'localhost' ] },
    wrong   => { names => ['other.test'] },
    expired => { names => [ 'model.test', 'localhost' ], expired => 1 },
);

# --- the parent's side --------------------------------------------------------

sub new {
    my ($class, %o) = @_;

    my $self = bless {
        dir    => $o{dir},
        corpus => $o{corpus} // $ENV{AGENT_CORPUS} // '../shared/corpus',
        log    => "$o{dir}/upstream.log",
        seen   => [],
        pos    => 0,
    }, $class;

    # Bound here and not in the child: the ports are known at once and held.
    $self->{listen}{plain} = _listener();

    if ($o{tls}) {
        $self->_make_certs;
        $self->{listen}{$_} = _listener() for keys %CERTS;
    }

    $self->{dns_sock} = IO::Socket::INET->new(
        Proto     => 'udp',
        LocalAddr => '127.0.0.1',
    ) or die "no UDP socket: $!";

    $self->{ports}{$_} = $self->{listen}{$_}->sockport
        for keys %{ $self->{listen} };
    $self->{ports}{dns} = $self->{dns_sock}->sockport;

    $self->_make_hang_port;
    $self->dns;

    open my $fh, '>', $self->{log} or die "$self->{log}: $!";
    close $fh;

    my $parent = $$;
    $self->{owner} = $parent;
    $self->{pid} = fork() // die "fork: $!";

    if ($self->{pid} == 0) {
        # Nothing of the test may run or stay open here: END blocks would stop
        # the parent's nginx, an open stdout would keep prove waiting.
        $SIG{$_} = 'DEFAULT' for qw(TERM HUP ALRM CHLD);
        $SIG{INT} = 'IGNORE';
        open STDIN,  '<', '/dev/null';
        open STDOUT, '>', '/dev/null';
        open STDERR, '>>', "$self->{dir}/upstream.err";
        STDERR->autoflush(1);
        eval { $self->_serve($parent); 1 } or print STDERR $@;
        POSIX::_exit(1);
    }

    $_->close for values %{ $self->{listen} }, $self->{dns_sock};

    return $self;
}

# tls_port('good' | 'wrong' | 'expired'): by the certificate it shows; all are
# signed by ca_file, "good" is for model.test and localhost.
sub port      { $_[0]{ports}{plain} }
sub tls_port  { $_[0]{ports}{ $_[1] // 'good' } }
sub dns_port  { $_[0]{ports}{dns} }
sub hang_port { $_[0]{ports}{hang} }
sub ca_file   { "$_[0]{dir}/ca.pem" }
sub pid       { $_[0]{pid} }

# dns(name => '127.0.0.1' | [addresses] | 'timeout' | 'nxdomain', ...): what the
# DNS server says from now on.  Names it was not told are nxdomain.
sub dns {
    my ($self, %names) = @_;

    $self->{names}{ lc $_ } = $names{$_} for keys %names;
    my $file = "$self->{dir}/dns.json";
    open my $fh, '>', "$file.new" or die "$file.new: $!";
    print $fh encode_json($self->{names} // {});
    close $fh or die "$file.new: $!";
    rename "$file.new", $file or die "$file: $!";
}

sub _read_log {
    my ($self) = @_;

    open my $fh, '<', $self->{log} or die "$self->{log}: $!";
    seek $fh, $self->{pos}, 0;

    while (my $line = <$fh>) {
        last if $line !~ /\n\z/;
        $self->{pos} += length $line;
        push @{ $self->{seen} }, decode_json($line);
    }

    return $self->{seen};
}

# Forget what was seen so far: the next questions are about what comes.
sub forget {
    my ($self) = @_;

    $self->_read_log;
    $self->{seen} = [];
}

# The requests, in order of arrival: conn, time, method, path, script, headers
# (lower case name => last value), body (bytes), json (the body decoded).
# requests(qr/.../) gives those whose path matches.
sub requests {
    my ($self, $re) = @_;
    my @out;

    for my $r (grep { $_->{ev} eq 'request' } @{ $self->_read_log }) {
        next if $re && $r->{path} !~ $re;
        utf8::downgrade($r->{body}, 1);
        $r->{json} //= eval { decode_json($r->{body}) };
        push @out, $r;
    }

    return @out;
}

# One hash per connection: conn, port, opened, requests, sent (bytes), early
# (when the client closed in the middle of a response), after (bytes the kernel
# still took after that), ended.
sub connections {
    my ($self) = @_;
    my (%c, @order);

    for my $e (@{ $self->_read_log }) {
        my $c = $c{ $e->{conn} // next };

        if (!$c) {
            $c = $c{ $e->{conn} } = { conn => $e->{conn}, requests => 0 };
            push @order, $c;
        }

        if ($e->{ev} eq 'open') {
            @$c{qw(opened port)} = @$e{qw(time port)};

        } elsif ($e->{ev} eq 'request') {
            $c->{requests}++;

        } elsif ($e->{ev} eq 'early') {
            @$c{qw(early sent)} = @$e{qw(time sent)};

        } elsif ($e->{ev} eq 'tls_failed') {
            $c->{tls_failed} = $e->{error};

        } elsif ($e->{ev} eq 'end') {
            @$c{qw(ended sent after)} = @$e{qw(time sent after)};
        }
    }

    return @order;
}

sub counts {
    my ($self) = @_;
    my @c = $self->connections;
    my $after = 0;

    $after += $_->{after} // 0 for @c;

    return {
        opened   => scalar(grep { $_->{opened} } @c),
        open     => scalar(grep { !$_->{ended} } @c),
        early    => scalar(grep { $_->{early} } @c),
        requests => scalar($self->requests),
        after    => $after,
    };
}

sub _wait {
    my ($timeout, $cond) = @_;
    my $end = time + ($timeout // 10);

    until ($cond->()) {
        return 0 if time > $end;
        sleep 0.02;
    }

    return 1;
}

# Until n connections were closed by the client in the middle of a response.
sub wait_closed {
    my ($self, $n, $timeout) = @_;
    return _wait($timeout, sub { $self->counts->{early} >= $n });
}

sub wait_requests {
    my ($self, $n, $timeout, $re) = @_;
    return _wait($timeout, sub { $self->requests($re) >= $n });
}

sub stop {
    my ($self) = @_;
    my $pid = delete $self->{pid};

    return unless $pid && $self->{owner} == $$;
    local $?;
    kill 'KILL', $pid;
    waitpid $pid, 0;
    close $_ for @{ $self->{hang} // [] };
}

# What the server process had to complain about; empty when all is well.
sub errors {
    my ($self) = @_;
    open my $fh, '<', "$self->{dir}/upstream.err" or return '';
    local $/;
    return <$fh> // '';
}

sub DESTROY { $_[0]->stop }

sub _listener {
    return IO::Socket::INET->new(
        Listen    => 4096,
        LocalAddr => '127.0.0.1',
        LocalPort => 0,
    ) // die "cannot listen: $!";
}

# A port where connecting neither succeeds nor fails: the queue of a socket
# that nobody accepts from is full, so the kernel drops further SYNs.
sub _make_hang_port {
    my ($self) = @_;

    socket(my $s, Socket::PF_INET(), Socket::SOCK_STREAM(), 0)
        or die "socket: $!";
    bind($s, Socket::pack_sockaddr_in(0, inet_aton('127.0.0.1')))
        or die "bind: $!";
    listen($s, 0) or die "listen: $!";
    my $addr = getsockname $s;
    ($self->{ports}{hang}) = Socket::unpack_sockaddr_in($addr);
    $self->{hang} = [$s];

    for (1 .. 4) {
        my $c = IO::Socket->new;
        $c->socket(Socket::PF_INET(), Socket::SOCK_STREAM(), 0);
        $c->blocking(0);
        connect($c, $addr);
        push @{ $self->{hang} }, $c;
    }
}

sub _make_certs {
    my ($self) = @_;

    require IO::Socket::SSL;
    require IO::Socket::SSL::Utils;
    my $day = 86400;
    my $write = sub {
        my ($file, @pem) = @_;
        open my $fh, '>', "$self->{dir}/$file" or die "$file: $!";
        print $fh @pem;
        close $fh;
    };
    my $key = IO::Socket::SSL::Utils::KEY_create_ec();
    my ($ca) = IO::Socket::SSL::Utils::CERT_create(
        CA         => 1,
        subject    => { commonName => 'agent test CA' },
        key        => $key,
        not_before => time - 400 * $day,
        not_after  => time + 400 * $day,
    );
    $write->('ca.pem', IO::Socket::SSL::Utils::PEM_cert2string($ca));

    for my $kind (keys %CERTS) {
        my $c = $CERTS{$kind};
        my ($cert, $k) = IO::Socket::SSL::Utils::CERT_create(
            subject         => { commonName => $c->{names}[0] },
            subjectAltNames => [ map { [ DNS => $_ ] } @{ $c->{names} } ],
            key             => IO::Socket::SSL::Utils::KEY_create_ec(),
            issuer          => [ $ca, $key ],
            purpose         => 'server',
            not_before      => time - 30 * $day,
            not_after       => time + ($c->{expired} ? -1 : 30) * $day,
        );
        $write->(
            "$kind.pem",
            IO::Socket::SSL::Utils::PEM_cert2string($cert),
            IO::Socket::SSL::Utils::PEM_key2string($k)
        );
    }
}

# --- the server's side: connections -------------------------------------------
#
# A connection is a hash.  "steps" is what remains of the answer: strings to
# send, and [control, value]:
#
#     [wait => S]  [hang]  [reset]  [close]  [next]   (next: keep-alive)
#
# or a code reference that returns more steps, for bodies too large to hold.

sub _log {
    my ($self, %e) = @_;
    $e{time} = time;
    syswrite $self->{log_fh}, encode_json(\%e) . "\n";
}

sub _serve {
    my ($self, $parent) = @_;
    my %conns;

    open $self->{log_fh}, '>>', $self->{log} or die "$self->{log}: $!";
    $_->blocking(0) for values %{ $self->{listen} };
    local $SIG{PIPE} = 'IGNORE';

    while (getppid() == $parent) {
        my ($rd, $wr, $wake) = ('', '', 1);
        my $now = time;

        vec($rd, fileno $_, 1) = 1
            for values %{ $self->{listen} }, $self->{dns_sock};

        for my $c (values %conns) {
            vec($rd, $c->{fd}, 1) = 1 if !$c->{eof};
            vec($wr, $c->{fd}, 1) = 1 if $c->{want_write};

            if ($c->{wake}) {
                my $left = $c->{wake} - $now;
                $wake = $left < 0 ? 0 : $left if $left < $wake;
            }
        }

        my $n = select($rd, $wr, undef, $wake);
        next if $n < 0 && $! == EINTR;
        $now = time;

        for my $name (keys %{ $self->{listen} }) {
            my $l = $self->{listen}{$name};
            next unless vec($rd, fileno $l, 1);
            $self->_accept($l, $name, \%conns);
        }

        $self->_dns_query if vec($rd, fileno $self->{dns_sock}, 1);

        for my $c (values %conns) {
            my $due = $c->{wake} && $c->{wake} <= $now;
            my $read = vec($rd, $c->{fd}, 1);
            next unless $due || $read || vec($wr, $c->{fd}, 1);
            $c->{wake} = undef if $due;
            $self->_handshake($c) if $c->{handshake};
            $self->_read($c) if $read && !$c->{handshake};
            $self->_pump($c) if !$c->{handshake} && !$c->{gone};
            delete $conns{ $c->{id} } if $c->{gone};
        }
    }
}

sub _accept {
    my ($self, $listener, $name, $conns) = @_;

    while (my $sock = $listener->accept) {
        $sock->blocking(0);
        setsockopt $sock, IPPROTO_TCP, TCP_NODELAY, 1;
        my $id = ++$self->{last_id};
        my $c = {
            id    => $id,
            sock  => $sock,
            fd    => fileno $sock,
            in    => '',
            out   => '',
            steps => [],
            sent  => 0,
            after => 0,
        };

        if ($name ne 'plain') {
            IO::Socket::SSL->start_SSL(
                $sock,
                SSL_server         => 1,
                SSL_cert_file      => "$self->{dir}/$name.pem",
                SSL_key_file       => "$self->{dir}/$name.pem",
                SSL_startHandshake => 0,
            );
            $c->{tls} = $c->{handshake} = 1;
        }

        $conns->{$id} = $c;
        $self->_log(ev => 'open', conn => $id, port => $name);
    }
}

sub _handshake {
    my ($self, $c) = @_;

    if ($c->{sock}->accept_SSL) {
        $c->{handshake} = 0;
        $c->{want_write} = 0;
        $self->_read($c);
        return;
    }

    no warnings 'once';
    if ($! == EAGAIN || $! == EWOULDBLOCK) {
        $c->{want_write} =
            $IO::Socket::SSL::SSL_ERROR == IO::Socket::SSL::SSL_WANT_WRITE();
        return;
    }

    $self->_log(
        ev    => 'tls_failed',
        conn  => $c->{id},
        error => "$IO::Socket::SSL::SSL_ERROR"
    );
    $self->_drop($c);
}

sub _read {
    my ($self, $c) = @_;

    while (!$c->{gone}) {
        my $n = sysread $c->{sock}, $c->{in}, CHUNK, length $c->{in};

        if (!defined $n) {
            return if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
            $n = 0;
        }

        if ($n == 0) {
            # In a response, bytes go on being written to count what the kernel
            # takes; a script that only hangs is over.
            $c->{eof} = 1;
            $self->_left($c);
            $self->_drop($c) if !$c->{busy} || $c->{hang};
            return;
        }
    }
}

# The client has gone; early, if it was owed something.
sub _left {
    my ($self, $c) = @_;

    return if !$c->{busy} || $c->{early}++;
    $self->_log(ev => 'early', conn => $c->{id}, sent => $c->{sent});
}

sub _drop {
    my ($self, $c, $reset) = @_;

    return if $c->{gone};
    setsockopt $c->{sock}, SOL_SOCKET, SO_LINGER, pack('II', 1, 0) if $reset;

    # After a failed handshake it is a plain socket again.
    $c->{tls} && !$c->{handshake}
        ? $c->{sock}->close(SSL_no_shutdown => $reset ? 1 : 0)
        : close $c->{sock};
    $c->{gone} = 1;
    $self->_log(
        ev    => 'end',
        conn  => $c->{id},
        sent  => $c->{sent},
        after => $c->{after}
    );
}

# Sends what can be sent; takes the next request when the answer is over.
sub _pump {
    my ($self, $c) = @_;

    while (1) {
        if (length $c->{out}) {
            my $n = syswrite $c->{sock}, $c->{out}, CHUNK;

            if (!defined $n) {
                if ($! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR) {
                    $c->{want_write} = 1;
                    return;
                }

                $self->_left($c);
                return $self->_drop($c);
            }

            $c->{sent} += $n;
            $c->{after} += $n if $c->{early};
            substr $c->{out}, 0, $n, '';
            next;
        }

        $c->{want_write} = 0;
        return if $c->{wake} || $c->{hang};

        if (!@{ $c->{steps} }) {
            return if $c->{busy} || !$self->_request($c);
            next;
        }

        my $step = shift @{ $c->{steps} };

        if (!ref $step) {
            $c->{out} = $step;

        } elsif (ref $step eq 'CODE') {
            unshift @{ $c->{steps} }, $step->();

        } elsif ($step->[0] eq 'wait') {
            $c->{wake} = time + $step->[1];

        } elsif ($step->[0] eq 'hang') {
            return $self->_drop($c) if $c->{eof};
            $c->{hang} = 1;

        } elsif ($step->[0] eq 'next') {
            return $self->_drop($c) if $c->{eof};
            $c->{busy} = 0;

        } else {
            return $self->_drop($c, $step->[0] eq 'reset');
        }
    }
}

# Takes one whole request off the input and fills in the steps of its answer.
sub _request {
    my ($self, $c) = @_;
    my $r = $c->{req};

    if (!$r) {
        # a TLS client on the plain port, told as nginx tells it
        if ($c->{in} =~ /\A\x16/) {
            $c->{in} = '';
            $c->{steps} =
                [ _response({ frame => 'close' }, 400, [], "no TLS here\n") ];
            return 1;
        }

        return 0 unless $c->{in} =~ s/\A(.*?)\r\n\r\n//s;
        my ($line, @lines) = split /\r\n/, $1;
        my ($method, $path) = split / /, $line;
        $r = { method => $method, path => $path, headers => {}, body => '' };

        for (@lines) {
            my ($name, $value) = split /:\s*/, $_, 2;
            $r->{headers}{ lc $name } = $value;
        }

        $c->{req} = $r;

        if (($r->{headers}{expect} // '') =~ /100-continue/i) {
            $c->{out} = "HTTP/1.1 100 Continue\r\n\r\n";
            return 1;
        }
    }

    if (($r->{headers}{'transfer-encoding'} // '') =~ /chunked/i) {
        while ($c->{in} =~ /\A([0-9a-fA-F]+)[^\r\n]*\r\n/) {
            my ($head, $n) = ($+[0], hex $1);
            return 0 if length $c->{in} < $head + $n + 2;
            $r->{body} .= substr $c->{in}, $head, $n;
            substr $c->{in}, 0, $head + $n + 2, '';
            $r->{done} = $n == 0 and last;
        }

        return 0 unless $r->{done};

    } else {
        my $n = $r->{headers}{'content-length'} // 0;
        return 0 if length $c->{in} < $n;
        $r->{body} = substr $c->{in}, 0, $n, '';
    }

    delete $c->{req};
    $c->{busy} = 1;
    $c->{sent} = 0;

    my ($segment) = $r->{path} =~ m{^/([^/?]*)};
    my ($script, @params) = split /,/, $segment // '';
    my %p = map { my ($k, $v) = split /=/, $_, 2; ($k => _decode($v)) } @params;

    $self->_log(
        ev     => 'request',
        conn   => $c->{id},
        script => $script,
        %$r
    );

    my $count = ++$self->{served}{ $r->{path} };
    $script = 'ok' if defined $p{times} && $count > $p{times};
    $r->{json} = eval { decode_json($r->{body}) } // {};
    $c->{steps} = [ $self->_script($script // '', $r, \%p) ];

    return 1;
}

sub _decode {
    my ($s) = @_;
    $s //= '';
    $s =~ s/%([0-9a-fA-F]{2})/chr hex $1/ge;
    return $s;
}

# --- the scripts --------------------------------------------------------------

sub _script {
    my ($self, $name, $r, $p) = @_;
    my $code = $self->can("script_$name") || \&_unknown;
    my @steps = eval { $code->($self, $r, $p) };

    if ($@) {
        print STDERR "script $name: $@";
        @steps = _response($p, 500, [], $@);
    }

    unshift @steps, [ wait => $p->{wait} ] if $p->{wait};
    return @steps;
}

sub _unknown { return _status({ %{ $_[2] }, code => 404 }) }

# A whole response: pieces are body bytes, or controls as in "steps".  Each
# piece is one chunk, so what a reader gets at once is decided here.
sub _response {
    my ($p, $code, $headers, @pieces) = @_;
    my $frame = $p->{frame} // 'chunked';
    my @h = @$headers;
    my @end = ['next'];

    if ($frame eq 'length') {
        my $n = $p->{lack} // 0;
        $n += length $_ for grep { !ref } @pieces;
        push @h, [ 'Content-Length', $n ];

    } elsif ($frame eq 'close') {
        push @h, [ 'Connection', 'close' ];
        @end = ['close'];

    } else {
        push @h, [ 'Transfer-Encoding', 'chunked' ];
        @pieces = map {
            ref $_ ? $_ : length ? _http_chunk($_) : ()
        } @pieces;
        unshift @end, "0\r\n\r\n";
    }

    if ($p->{gap}) {
        @pieces = map { ($_, [ wait => $p->{gap} ]) } @pieces;
    }

    my $reason = $code < 300 ? 'OK' : $code < 400 ? 'Moved' : 'Error';
    my $head = join "\r\n", "HTTP/1.1 $code $reason",
        (map {"$_->[0]: $_->[1]"} @h), '', '';

    return ($head, @pieces, @end);
}

my @SSE_HEADERS = ([ 'Content-Type', 'text/event-stream; charset=utf-8' ]);

# Events (JSON texts or [control]) as a response of type text/event-stream.
sub _stream {
    my ($p, @events) = @_;
    return _response($p, 200, \@SSE_HEADERS, map { _frame($p, $_) } @events);
}

sub _frame {
    my ($p, $event) = @_;
    return $event if ref $event;
    my %eol = (lf => "\n", crlf => "\r\n", cr => "\r");
    my $eol = $eol{ $p->{eol} // 'lf' };
    return "data: $event$eol$eol";
}

sub _chunk {
    my ($delta, $finish) = @_;
    return encode_json({
        id      => 'chatcmpl-1',
        object  => 'chat.completion.chunk',
        created => 1700000000,
        model   => 'stub-1',
        choices =>
            [ { index => 0, delta => $delta, finish_reason => $finish } ],
    });
}

# The end of an answer: finish_reason, usage when it was asked for, [DONE].
sub _tail {
    my ($r, $finish, $usage) = @_;
    my @out = _chunk({}, $finish);

    if (eval { $r->{json}{stream_options}{include_usage} }) {
        push @out, encode_json({
            id      => 'chatcmpl-1',
            object  => 'chat.completion.chunk',
            created => 1700000000,
            model   => 'stub-1',
            choices => [],
            usage   => $usage // {
                prompt_tokens     => 9,
                completion_tokens => 4,
                total_tokens      => 13,
            },
        });
    }

    return (@out, '[DONE]');
}

my $ROLE = _chunk({ role => 'assistant', content => '' });

# A good answer of these text pieces (characters, not bytes).
sub _answer {
    my ($r, $p, @texts) = @_;
    return _stream(
        $p, $ROLE,
        (map { ref $_ ? $_ : _text($_) } @texts),
        _tail($r, $p->{finish} // 'stop')
    );
}

sub _texts {
    my ($p) = @_;
    return ('Hello', ', ', 'world', '!') unless defined $p->{text};
    utf8::decode(my $text = $p->{text});
    return $text =~ /\G(\s*\S+\s*)/g;
}

# ok[,text=...][,finish=stop|length|...]: a good answer, "Hello, world!".
sub script_ok { my ($self, $r, $p) = @_; return _answer($r, $p, _texts($p)) }

# words,n=50,delay=0.02: "w1 w2 ... w50", an event each, S seconds apart.
sub script_words {
    my ($self, $r, $p) = @_;
    my ($n, $delay) = ($p->{n} // 10, $p->{delay});
    my $i = 0;

    return _endless($r, $p, sub {
        return if ++$i > $n;
        return ($i > 1 && $delay ? [ wait => $delay ] : (),
            $i == 1 ? 'w1' : " w$i");
    });
}

# A good answer, always in chunks, made while it is sent: next returns texts
# and [wait], until it returns nothing.
sub _endless {
    my ($r, $p, $next) = @_;
    my @steps = _stream({ %$p, frame => 'chunked' },
        $ROLE, _tail($r, $p->{finish} // 'stop'));

    # after the head and the first event
    splice @steps, 2, 0, sub {
        my @pieces = $next->() or return;
        return (
            (map { ref $_ ? $_ : _http_chunk(_frame($p, _text($_))) } @pieces),
            __SUB__
        );
    };

    return @steps;
}

sub _text { return _chunk({ content => $_[0] }) }

sub _http_chunk { return sprintf "%x\r\n%s\r\n", length $_[0], $_[0] }

# status,code=429[,retry=7][,retry_ms=N][,location=URL][,body=...]: an error
# as OpenAI says it.  body: json (default), quota, html, text, empty, and key,
# which repeats the key it was given, as careless servers do.
sub script_status { my ($self, $r, $p) = @_; return _status($p, $r) }

sub _status {
    my ($p, $r) = @_;
    my $code = $p->{code} // 500;
    my $body = $p->{body} // 'json';
    my %word = (
        400 => [ 'invalid_request_error', 'invalid_value',    'bad value' ],
        401 => [ 'invalid_request_error', 'invalid_api_key',  'bad key' ],
        403 => [ 'invalid_request_error', 'forbidden',        'not allowed' ],
        404 => [ 'invalid_request_error', 'model_not_found',  'no such model' ],
        429 => [ 'requests', 'rate_limit_exceeded', 'too many requests' ],
    );
    my ($type, $err, $message) =
        @{ $word{$code} // [ 'server_error', 'server_error', 'it broke' ] };
    my @h = [ 'Content-Type', 'application/json' ];

    if ($body eq 'quota') {
        ($type, $err) = ('insufficient_quota', 'insufficient_quota');
        $message = 'You exceeded your current quota.';
    }

    if ($body eq 'key') {
        $message = 'Incorrect API key provided: '
            . ($r->{headers}{authorization} // 'none');
    }

    my $text = encode_json({
        error => {
            message => $message,
            type    => $type,
            param   => undef,
            code    => $err,
        }
    });

    if ($body eq 'html') {
        @h = [ 'Content-Type', 'text/html' ];
        $text = "<html><body><h1>$code</h1></body></html>\n";

    } elsif ($body eq 'text') {
        @h = [ 'Content-Type', 'text/plain' ];
        $text = "upstream connect error\n";

    } elsif ($body eq 'empty') {
        @h = ();
        $text = '';
    }

    push @h, [ 'Retry-After', $p->{retry} ] if defined $p->{retry};
    push @h, [ 'Retry-After-Ms', $p->{retry_ms} ] if defined $p->{retry_ms};
    push @h, [ 'Location', $p->{location} ] if defined $p->{location};

    return _response({ frame => 'length', %$p }, $code, \@h, $text);
}

# Everything up to the place "at", without an end: the list of steps and
# whether the response head is among them.
sub _until {
    my ($r, $p) = @_;
    my $at = $p->{at} // 'content';

    return if $at eq 'first';
    my @events = ($ROLE, map { _text($_) } 'Hello', ', ');
    my $half;

    if ($at eq 'head') {
        @events = ();

    } elsif ($at eq 'role') {
        $#events = 0;

    } elsif ($at eq 'mid') {
        $half = substr _frame($p, _chunk({ content => 'world' })), 0, 40;

    } elsif ($at eq 'args') {
        push @events, _chunk({
            tool_calls => [ {
                index    => 0,
                id       => 'call_cut',
                type     => 'function',
                function => { name => 'get_weather', arguments => '{"city":' },
            } ]
        });

    } elsif ($at eq 'finish') {
        push @events, _chunk({}, 'stop');

    } elsif ($at ne 'content') {
        die "no place \"$at\"\n";
    }

    my @pieces = map { _frame($p, $_) } @events;
    push @pieces, $half if defined $half;

    # without the final chunk and the [next]
    my @steps = _response($p, 200, \@SSE_HEADERS, @pieces);
    $#steps -= ($p->{frame} // 'chunked') eq 'chunked' ? 2 : 1;

    return @steps;
}

# reset,at=...: RST.  The pause lets the reader take what came before.
sub script_reset {
    my ($self, $r, $p) = @_;
    return (_until($r, $p), [ wait => 0.1 ], ['reset']);
}

# hang,at=...: silence, until the client leaves.  A hang in connect() is
# hang_port.
sub script_hang { my ($self, $r, $p) = @_; return (_until($r, $p), ['hang']) }

# cut,at=...: FIN in the middle of the body: no last chunk, or fewer bytes than
# Content-Length says.
sub script_cut {
    my ($self, $r, $p) = @_;
    return (_until($r, { lack => 100, %$p }), ['close']);
}

# truncate,at=...: the framing is complete, the terminal marker never came.
sub script_truncate {
    my ($self, $r, $p) = @_;
    my @steps = _until($r, $p);
    my $frame = $p->{frame} // 'chunked';

    return (@steps, ['close']) if !@steps || $frame eq 'close';
    return (@steps, $frame eq 'chunked' ? "0\r\n\r\n" : (), ['next']);
}

# html[,code=502]: what a proxy in front of the model says.
sub script_html {
    my ($self, $r, $p) = @_;
    return _status({ code => 200, body => 'html', %$p });
}

# empty: 200 and no byte of body.
sub script_empty { my ($self, $r, $p) = @_; return _stream($p) }

# comments: 200 and nothing but comments.
sub script_comments {
    my ($self, $r, $p) = @_;
    return _response($p, 200, \@SSE_HEADERS, (": processing\n\n") x 3);
}

# json: a server that ignored "stream".
sub script_json {
    my ($self, $r, $p) = @_;
    my $text = join '', _texts($p);

    return _response(
        { frame => 'length', %$p },
        200,
        [ [ 'Content-Type', 'application/json' ] ],
        encode_json({
            id      => 'chatcmpl-1',
            object  => 'chat.completion',
            created => 1700000000,
            model   => 'stub-1',
            choices => [ {
                index         => 0,
                message       => { role => 'assistant', content => $text },
                finish_reason => $p->{finish} // 'stop',
            } ],
            usage => {
                prompt_tokens     => 9,
                completion_tokens => 4,
                total_tokens      => 13,
            },
        })
    );
}

# error200,at=role|content: an error object inside a 200 stream, before or after
# content.
sub script_error200 {
    my ($self, $r, $p) = @_;
    my @events = $ROLE;

    push @events, map { _text($_) } 'Hello', ', '
        if ($p->{at} // 'content') eq 'content';

    return _stream(
        $p, @events,
        encode_json({
            error => {
                message => 'the model broke',
                type    => 'server_error',
                param   => undef,
                code    => undef,
            }
        }),
        '[DONE]'
    );
}

# tool,name=...,args=...[,n=1][,text=...]: calls a tool (n times, in parallel);
# when the request ends with results, answers with them as text.
sub script_tool {
    my ($self, $r, $p) = @_;
    my @messages = @{ $r->{json}{messages} // [] };
    my @results;

    unshift @results, pop @messages
        while @messages && $messages[-1]{role} eq 'tool';

    if (@results) {
        my $said = join ' and ', map { _content($_->{content}) } @results;
        return _answer($r, $p, 'The tool said: ', $said, '.');
    }

    my $name = $p->{name} // 'get_weather';
    my $args = $p->{args} // '{"city":"Paris"}';
    my @events = $ROLE;

    if (defined $p->{text}) {
        push @events, map { _text($_) } _texts($p);
    }

    for my $i (0 .. ($p->{n} // 1) - 1) {
        my $id = 'call_' . ++$self->{last_call};
        push @events, _chunk({
            tool_calls => [ {
                index    => $i,
                id       => $id,
                type     => 'function',
                function => { name => $name, arguments => '' },
            } ]
        });
        utf8::decode(my $text = $args);
        push @events, map {
            _chunk({
                tool_calls =>
                    [ { index => $i, function => { arguments => $_ } } ]
            })
        } $text =~ /(.{1,5})/gs;
    }

    return _stream($p, @events, _tail($r, 'tool_calls'));
}

sub _content {
    my ($c) = @_;
    return ref $c ? join '', map { $_->{text} // '' } @$c : $c;
}

# reason[,gap=S]: reasoning_content, then text.
sub script_reason {
    my ($self, $r, $p) = @_;
    return _stream(
        $p, $ROLE,
        (map { _chunk({ reasoning_content => $_ }) } 'Let ', 'me ', 'think.'),
        (map { _text($_) } _texts($p)),
        _tail($r, 'stop')
    );
}

# usage: a good answer whose usage has all details.
sub script_usage {
    my ($self, $r, $p) = @_;
    return _stream(
        $p, $ROLE,
        (map { _text($_) } _texts($p)),
        _tail(
            $r, 'stop',
            {
                prompt_tokens             => 100,
                completion_tokens         => 40,
                total_tokens              => 140,
                prompt_tokens_details     => { cached_tokens => 64 },
                completion_tokens_details => { reasoning_tokens => 16 },
            }
        )
    );
}

# slowhead,ms=...: a good answer whose head comes late.
sub script_slowhead {
    my ($self, $r, $p) = @_;
    return ([ wait => ($p->{ms} // 1000) / 1000 ], _answer($r, $p, _texts($p)));
}

# bytewise: a good answer, each byte its own chunk and write.
sub script_bytewise {
    my ($self, $r, $p) = @_;
    my $text = $p->{text} // "h\xc3\xa9llo \xe4\xbd\xa0\xe5\xa5\xbd "
        . "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xd9\x85";
    my @events = (
        $ROLE,
        (map { _text($_) } _texts({ text => $text })),
        _tail($r, 'stop')
    );
    my $body = join '', map { _frame($p, $_) } @events;
    return _response($p, 200, \@SSE_HEADERS, split //, $body);
}

# big,kb=...[,delta=4096]: KB of "x" in deltas of that many characters.
sub script_big {
    my ($self, $r, $p) = @_;
    my ($left, $delta) = (($p->{kb} // 64) * 1024, $p->{delta} // 4096);

    return _endless($r, $p, sub {
        return if $left <= 0;
        my $n = $left < $delta ? $left : $delta;
        $left -= $n;
        return 'x' x $n;
    });
}

# count,kb=...[,delta=4096]: KB of "00000000 00000009 ...", each number the place
# where it stands, so that any piece of it says whether it is whole.
sub script_count {
    my ($self, $r, $p) = @_;
    my ($all, $delta) = (($p->{kb} // 64) * 1024, $p->{delta} // 4096);
    my ($at, $text) = (0, '');

    return _endless($r, $p, sub {
        while ($at < $all && length $text < $delta) {
            $text .= sprintf '%08d ', $at;
            $at += 9;
        }
        return length $text ? substr $text, 0, $delta, '' : ();
    });
}

# file,path=...[,slice=N]: the bytes of a recorded stream of the corpus, whole
# or in slices of N.
sub script_file {
    my ($self, $r, $p) = @_;
    my $path = $p->{path} // '';

    die "path \"$path\" leaves the corpus\n" if $path =~ m{(^|/)\.\.(/|$)};
    open my $fh, '<:raw', "$self->{corpus}/$path"
        or die "$self->{corpus}/$path: $!\n";
    my $body = do { local $/; <$fh> };
    my $n = $p->{slice} || length($body) || 1;

    return _response($p, 200, \@SSE_HEADERS, unpack "(a$n)*", $body);
}

# echo: the request it got, as JSON, is the text of the answer.
sub script_echo {
    my ($self, $r, $p) = @_;
    my %seen = map { ($_ => $r->{$_}) } qw(method path headers json);
    my $text = encode_json(\%seen);
    utf8::decode($text);
    return _answer($r, $p, $text =~ /(.{1,1000})/gs);
}

# --- DNS ----------------------------------------------------------------------

sub _dns_query {
    my ($self) = @_;
    my $peer = recv $self->{dns_sock}, my $query, 4096, 0;

    return unless defined $peer && length $query > 12;
    my ($id, $flags) = unpack 'n2', $query;
    my ($pos, @labels) = (12);

    while ((my $n = ord substr $query, $pos, 1)) {
        push @labels, substr $query, $pos + 1, $n;
        $pos += 1 + $n;
        return if $pos >= length $query;
    }

    my $type = unpack 'n', substr $query, $pos + 1, 2;
    my $question = substr $query, 12, $pos + 5 - 12;
    my $name = lc join '.', @labels;
    open my $fh, '<', "$self->{dir}/dns.json" or return;
    my $is = decode_json(do { local $/; <$fh> })->{$name} // 'nxdomain';

    $self->_log(ev => 'dns', name => $name, type => $type);
    return if $is eq 'timeout';

    # A query for AAAA of a name that exists gets an empty answer.
    my @ips = $is eq 'nxdomain' || $type != 1 ? () : ref $is ? @$is : $is;
    my $answer = join '',
        map { pack 'n3 N n a4', 0xc00c, 1, 1, 5, 4, inet_aton($_) } @ips;

    send $self->{dns_sock},
        pack('n6', $id, 0x8180 | ($is eq 'nxdomain' ? 3 : 0),
            1, scalar @ips, 0, 0) . $question . $answer,
        0, $peer;
}

# The names asked for, in order.
sub dns_queries {
    my ($self) = @_;
    return map { $_->{name} } grep { $_->{ev} eq 'dns' } @{ $self->_read_log };
}

1;
