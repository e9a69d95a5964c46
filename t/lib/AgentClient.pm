package AgentClient;

# Clients that AgentTest has not: TLS, and HTTP/2 with every frame in the test's
# own hands (windows, resets, order), with or without TLS.
#
#     my $r = $t->post_run({}, path => '/chat', tls => {}, port => $p);
#     my $c = AgentClient->http2($t, port => $p, tls => {}, window => 100);
#     my $s = $c->run({ text => 'Hi' }, '/chat');     # a stream of its own
#     $s->finish;  check_run($s->events);
#
# A stream of HTTP/2 is an AgentTest::Stream: status, headers, body, chunks and
# the methods that read.  "reset" is the error code of a RST_STREAM that came.

use strict;
use warnings;

use AgentTest;
use IO::Socket::INET;
use IO::Socket::SSL;
use Mojo::JSON qw(encode_json);
use Protocol::HTTP2::HeaderCompression qw(headers_decode);
use Socket qw(SOL_SOCKET SO_RCVBUF IPPROTO_TCP TCP_NODELAY);
use Time::HiRes qw(time);

# Frame types and flags.
use constant {
    DATA         => 0,
    HEADERS      => 1,
    RST_STREAM   => 3,
    SETTINGS     => 4,
    PING         => 6,
    GOAWAY       => 7,
    WINDOW       => 8,
    CONTINUATION => 9,

    END_STREAM  => 1,
    ACK         => 1,
    END_HEADERS => 4,
    PADDED      => 8,

    CANCEL => 8,
};

my $context;

# A connected socket: rcvbuf (bytes, set before it connects), tls (options of
# IO::Socket::SSL).
sub connect {
    my ($class, $t, %o) = @_;

    my $sock = IO::Socket::INET->new(Proto => 'tcp') or die "socket: $!";
    setsockopt($sock, SOL_SOCKET, SO_RCVBUF, $o{rcvbuf}) if $o{rcvbuf};
    $sock->connect(Socket::pack_sockaddr_in($o{port} // $t->port,
        Socket::inet_aton('127.0.0.1'))) or die "connect: $!";
    setsockopt $sock, IPPROTO_TCP, TCP_NODELAY, 1;

    if ($o{tls}) {
        IO::Socket::SSL->start_SSL(
            $sock,
            SSL_hostname => 'localhost',
            %{ $o{tls} } ? (SSL_verify_mode => SSL_VERIFY_NONE, %{ $o{tls} })
            : (SSL_reuse_ctx => $context //= IO::Socket::SSL::SSL_Context->new(
                SSL_verify_mode => SSL_VERIFY_NONE)),
        ) or die "TLS: $IO::Socket::SSL::SSL_ERROR\n";
    }

    return $sock;
}

# The requests of AgentTest take these options, too: rcvbuf, tls, and "on", the
# stream of an earlier answer whose connection is used again.
{
    no warnings 'redefine';
    my $connect = \&AgentTest::_connect;

    *AgentTest::_connect = sub {
        my ($t, $o) = @_;

        if (my $s = $o->{on}) {
            my $sock = $s->{sock};
            my $in = $s->{in};
            %$s = (%{ ref($s)->new($sock) }, in => $in);
            return $s;
        }

        return $connect->(@_) if !$o->{rcvbuf} && !$o->{tls};
        return AgentClient::Plain->new(AgentClient->connect($t, %$o));
    };
}

# Reads several streams at a time, of HTTP/1 and HTTP/2, to their ends; true when
# all are complete.
sub read_all {
    my ($class, $timeout, @s) = @_;
    my $end = time + $timeout;

    while (my @open = grep { !$_->{complete} && !$_->{eof} } @s) {
        last if time > $end;
        my $r = '';
        vec($r, fileno($_->{conn} ? $_->{conn}{sock} : $_->{sock}), 1) = 1
            for @open;
        select $r, undef, undef, 0.02;
        $_->_fill(time + 0.0005)
            for grep { !$_->{complete} && !$_->{eof} } @open;
    }

    return !grep { !$_->{complete} } @s;
}

# --- HTTP/2 -------------------------------------------------------------------

# window: SETTINGS_INITIAL_WINDOW_SIZE; auto: whether what was read is credited
# at once (1), on the stream only ("stream"), or when the test says so (0).
sub http2 {
    my ($class, $t, %o) = @_;

    my $self = bless {
        t       => $t,
        next_id => 1,
        auto    => $o{auto} // 1,
        in      => '',
        streams => {},
        order   => [],
        sock    => $class->connect($t, %o,
            $o{tls} ? (tls => { SSL_alpn_protocols => ['h2'], %{ $o{tls} } })
                : ()),
        context => {
            max_ht_size  => 4096,
            ht_size      => 0,
            header_table => [],
            settings     => { 1 => 4096 },
        },
    }, 'AgentClient::HTTP2';

    if ($o{tls}) {
        my $got = $self->{sock}->alpn_selected // 'nothing';
        die "ALPN gave $got\n" if $got ne 'h2';
    }

    $self->{sock}->blocking(0);
    $self->{plain} = AgentClient::Plain->new($self->{sock});
    $self->{plain}{raw} = 1;
    $self->{out} = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    $self->frame(SETTINGS, 0, 0,
        pack('n N', 2, 0) . (defined $o{window} ? pack('n N', 4, $o{window}) : ''));

    return $self;
}

package AgentClient::HTTP2;

use strict;
use warnings;

use AgentTest;
use Mojo::JSON qw(encode_json);
use Time::HiRes qw(time);

BEGIN {
    no strict 'refs';
    *{"$_"} = \&{"AgentClient::$_"}
        for qw(DATA HEADERS RST_STREAM SETTINGS PING GOAWAY WINDOW CONTINUATION
        END_STREAM ACK END_HEADERS PADDED CANCEL);
    *headers_decode = \&Protocol::HTTP2::HeaderCompression::headers_decode;
}

# Puts a frame into the output; flush sends it.
sub frame {
    my ($self, $type, $flags, $id, $payload) = @_;
    my $n = length $payload;
    $self->{out} .= pack('C n C C N', $n >> 16, $n & 0xffff, $type, $flags, $id)
        . $payload;
    return $self;
}

sub flush {
    my ($self) = @_;
    my $out = $self->{out};
    $self->{out} = '';
    return length $out ? $self->{plain}->send($out) : 1;
}

# Literals without indexing, names and values as they are.
sub _fields {
    my $out = '';

    while (my ($name, $value) = splice @_, 0, 2) {
        next if !defined $value;
        $out .= "\0" . join '', map { _number(length) . $_ } lc $name, $value;
    }

    return $out;
}

sub _number {
    my ($n) = @_;
    return pack 'C', $n if $n < 127;
    my $out = pack 'C', 127;
    $n -= 127;

    while ($n >= 128) {
        $out .= pack 'C', $n & 127 | 128;
        $n >>= 7;
    }

    return $out . pack 'C', $n;
}

# Starts a request and returns its stream.  headers: pairs.  o: hold (nothing
# is sent yet), parts (the body is an array of DATA frames), open (no END_STREAM).
sub request {
    my ($self, $method, $path, $headers, $body, %o) = @_;
    my @parts = ref $body ? @$body : defined $body ? $body : ();
    my $id = $self->{next_id};
    $self->{next_id} += 2;

    my $s = bless {
        conn   => $self,
        id     => $id,
        method => $method,
        start  => time,
        body   => '',
        chunks => [],
        pos    => 0,
        in     => '',
    }, 'AgentClient::Stream';
    $self->{streams}{$id} = $s;

    $self->frame(HEADERS, END_HEADERS | (@parts || $o{open} ? 0 : END_STREAM),
        $id, _fields(':method', $method, ':path', $path, ':scheme', 'http',
            ':authority', 'localhost', @{ $headers // [] }));

    for my $i (0 .. $#parts) {
        my $last = $i == $#parts && !$o{open};

        while (length $parts[$i] > 16384) {
            $self->frame(DATA, 0, $id, substr $parts[$i], 0, 16384, '');
        }

        $self->frame(DATA, $last ? END_STREAM : 0, $id, $parts[$i]);
    }

    $self->flush if !$o{hold};

    return $s;
}

# A POST of a run, as AgentTest::post_run; returns at once.
sub run {
    my ($self, $input, $path, %o) = @_;
    my $in = run_input(%{ $input // {} });
    my $s = $self->request('POST', $path, [
        'content-type' => 'application/json',
        accept         => $o{accept} // 'text/event-stream',
        @{ $o{headers} // [] },
    ], $o{body} // encode_json($in), %o);
    $s->{input} = $in;

    return $s;
}

sub credit {
    my ($self, $id, $n) = @_;
    return $self->frame(WINDOW, 0, $id, pack 'N', $n);
}

sub cancel {
    my ($self, $s, $code) = @_;
    $s->{gone} = 1;
    $self->frame(RST_STREAM, 0, $s->{id}, pack 'N', $code // CANCEL);
    return $self;
}

# Reads what comes until the time is over: 1 when frames came.
sub _read {
    my ($self, $end) = @_;
    my $p = $self->{plain};

    $self->flush;
    my $more = $p->_fill($end);
    $self->{in} .= $p->{in};
    $p->{in} = '';

    while (length $self->{in} >= 9) {
        my ($hi, $lo, $type, $flags, $id) = unpack 'C n C C N', $self->{in};
        my $n = $hi << 16 | $lo;
        last if length $self->{in} < 9 + $n;
        my $payload = substr $self->{in}, 9, $n;
        substr $self->{in}, 0, 9 + $n, '';
        $self->_frame($type, $flags, $id & 0x7fffffff, $payload);
    }

    $self->flush;

    if ($p->{eof}) {
        $self->{eof} = 1;
        $_->{eof} = 1 for values %{ $self->{streams} };
    }

    return $more;
}

sub _frame {
    my ($self, $type, $flags, $id, $payload) = @_;
    my $s = $self->{streams}{$id};

    push @{ $self->{order} }, [ $type, $id, length $payload, time ];

    if ($type == SETTINGS) {
        $self->frame(SETTINGS, ACK, 0, '') if !($flags & ACK);
        return;
    }

    if ($type == PING) {
        $self->frame(PING, ACK, 0, $payload) if !($flags & ACK);
        return;
    }

    if ($type == GOAWAY) {
        (undef, $self->{goaway}) = unpack 'N N', $payload;
        return;
    }

    return if $type == WINDOW;
    my $bad = sub { push @{ $self->{bad} }, "$_[0] of stream $id" };
    return $bad->("frame $type") if !$s;

    if ($type == RST_STREAM) {
        my $code = unpack 'N', $payload;

        # "no error": the answer is whole, the rest of the request not wanted
        return if $s->{complete} && $code == 0;
        $s->{reset} = $code;
        $s->{eof} = 1;
    }

    $bad->("frame $type after its end") if $s->{complete} || $s->{over};
    $s->{over} = 1 if defined $s->{reset};
    return if $s->{over};

    $s->{complete} = 1
        if $flags & END_STREAM && ($type == DATA || $type == HEADERS);
    $s->{end_time} = time - $s->{start} if $s->{complete};

    if ($type == HEADERS) {
        $bad->('a second head') if $s->{status};
        $bad->('a head in pieces') if !($flags & END_HEADERS);
        $self->{context}{emitted_headers} = [];
        headers_decode($self, \$payload, 0, length $payload, $id);
        my @h = @{ $self->{context}{emitted_headers} };

        while (my ($name, $value) = splice @h, 0, 2) {
            if ($name eq ':status') {
                $s->{status} = $value;
            } else {
                push @{ $s->{headers}{$name} }, $value;
            }
        }

        $s->{head_time} = time - $s->{start};
        return;
    }

    return $bad->("frame $type") if $type != DATA;
    my $n = length $payload;
    $bad->('padding') if $flags & PADDED;
    $bad->('data before the head') if !$s->{status};
    $s->{body} .= $payload;
    push @{ $s->{chunks} }, [ time - $s->{start}, $payload ] if $n;

    if ($n && $self->{auto} && !$s->{manual}) {
        $self->credit($id, $n) if !$s->{complete};
        $self->credit(0, $n) if $self->{auto} ne 'stream';
    } elsif ($n && $s->{manual} && $self->{auto} eq '1') {
        $self->credit(0, $n);
    }
}

# for the decoder of Protocol::HTTP2
sub decode_context { return $_[0]{context} }
sub error { push @{ $_[0]{bad} }, "HPACK: $_[1]"; return }
sub stream_error { push @{ $_[0]{bad} }, "HPACK: stream $_[1]"; return }

# Reads for some seconds.
sub wait {
    my ($self, $seconds) = @_;
    my $end = time + $seconds;
    1 while !$self->{eof} && time < $end && ($self->_read($end), 1);
    return $self;
}

# Reads until all of these streams have ended.
sub finish {
    my ($self, $timeout, @streams) = @_;
    my $end = time + $timeout;

    while (grep { !$_->{complete} && !$_->{eof} && !$_->{gone} } @streams) {
        last if $self->{eof} || time > $end;
        $self->_read($end);
    }

    return !grep { !$_->{complete} } @streams;
}

# What the peer did against the protocol.
sub faults { return join '; ', @{ $_[0]{bad} // [] } }

sub close { return $_[0]{plain}->close }
sub reset { return $_[0]{plain}->reset }

package AgentClient::Stream;

use strict;
use warnings;

use Time::HiRes qw(time);

our @ISA = ('AgentTest::Stream');

sub _fill {
    my ($self, $end) = @_;
    return 0 if $self->{complete} || $self->{eof} || $self->{conn}{eof};
    return 0 if time > $end;
    return $self->{conn}->_read($end);
}

sub cancel { my ($self, $code) = @_; $self->{conn}->cancel($self, $code)->flush }
sub close  { return }

package AgentClient::Plain;

use strict;
use warnings;

use Errno qw(EAGAIN EINTR);
use Time::HiRes qw(time);

our @ISA = ('AgentTest::Stream');

# As AgentTest's, and TLS may hold bytes that select does not see.
sub _fill {
    my ($self, $end) = @_;
    my $sock = $self->{sock} or return 0;
    return $self->SUPER::_fill($end) if !$sock->isa('IO::Socket::SSL');

    while (!$self->{eof}) {
        my $n = $sock->sysread(my $data, 65536);

        if (defined $n && $n > 0) {
            $self->{in} .= $data;
            $self->_parse if !$self->{raw};
            return 1;
        }

        if (defined $n
            || $IO::Socket::SSL::SSL_ERROR != IO::Socket::SSL::SSL_WANT_READ())
        {
            $self->{error} = "$IO::Socket::SSL::SSL_ERROR" if !defined $n;
            $self->{eof} = 1;
            $self->{complete} = 1
                if ($self->{mode} // '') eq 'close' && !$self->{error};
            return 0;
        }

        my $left = $end - time;
        my $r = '';
        vec($r, fileno $sock, 1) = 1;
        return 0 if $left <= 0;
        select $r, undef, undef, $left;
    }

    return 0;
}

sub send {
    my ($self, $data) = @_;
    my $sock = $self->{sock};
    return $self->SUPER::send($data) if !$sock->isa('IO::Socket::SSL');
    my $end = time + 30;

    while (length $data && time < $end) {
        my $n = $sock->syswrite($data);

        if (defined $n) {
            substr $data, 0, $n, '';
            next;
        }

        return 0
            if $IO::Socket::SSL::SSL_ERROR != IO::Socket::SSL::SSL_WANT_WRITE()
            && $IO::Socket::SSL::SSL_ERROR != IO::Socket::SSL::SSL_WANT_READ();
        my $w = '';
        vec($w, fileno $sock, 1) = 1;
        select undef, $w, undef, 0.1;
    }

    return 1;
}

1;
