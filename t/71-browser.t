#!/usr/bin/perl

# The page of docs/resume.md in a real browser (headless Chromium), behind a
# proxy that cuts its stream three times, also in the middle of an event; and a
# bare EventSource that leaves stopping to the server.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentBrowser;
use AgentTest;
use IO::Socket::INET;
use Mojo::JSON qw(decode_json encode_json);
use POSIX ();
use Test::More;
use Time::HiRes qw(time);

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(chat => 'words,n=60,delay=0.05');

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 2;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    agent_replay_zone runs:4m;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
        default_type text/html;
$locations
    }
}
CONF
$t->start;

# --- the proxy ----------------------------------------------------------------

# One request a connection.  A stream whose URL is listed is cut after so many
# bytes, once for each number.  It tells the browser to come back in 0.2 s.
sub proxy {
    my ($listen, $to, $dir, @cut) = @_;
    my (%conn, %pair);
    my $log = sub {
        open my $fh, '>>', "$dir/proxy.log";
        syswrite $fh, encode_json({@_}) . "\n";
    };
    my $drop = sub {
        my ($c) = @_;
        for my $s (grep {$_} delete @$c{qw(client server)}) {
            delete $conn{ fileno $s };
            close $s;
        }
    };

    while (1) {
        my $r = '';
        vec($r, $_, 1) = 1 for fileno $listen, keys %conn;
        select $r, undef, undef, 5;

        if (vec $r, fileno $listen, 1) {
            my $s = $listen->accept;
            $conn{ fileno $s } = { client => $s, in => '' };
        }

        for my $fd (grep { vec $r, $_, 1 } keys %conn) {
            my $c = $conn{$fd} or next;
            my $from = fileno($c->{client}) == $fd ? 'client' : 'server';
            my $n = sysread $c->{$from}, my $data, 65536;

            if (!$n) {
                syswrite $c->{client}, "0\r\n\r\n"
                    if $from eq 'server' && $c->{stream};
                $drop->($c);
                next;
            }

            if ($from eq 'client') {
                $c->{in} .= $data;
                next if $c->{server} || $c->{in} !~ /\A(.*?)\r\n\r\n(.*)/s;
                my ($head, $body) = ($1, $2);
                next if $head =~ /^content-length: (\d+)/im
                    && length $body < $1;
                ($c->{path}) = $head =~ /\A\S+ (\S+)/;
                ($c->{last}) = $head =~ /^last-event-id: (\S+)/im;

                if ($c->{path} eq '/result') {
                    open my $fh, '>', "$dir/result.new";
                    print $fh $body;
                    close $fh;
                    rename "$dir/result.new", "$dir/result";
                    $drop->($c);
                    next;
                }

                # 1.0: the body ends with the connection, to be cut anywhere
                $head =~ s{ HTTP/1.1\r}{ HTTP/1.0\r};
                $head =~ s/^connection:.*?$/Connection: close\r/im;
                $c->{server} = IO::Socket::INET->new(
                    PeerAddr => "127.0.0.1:$to") or die "connect: $!";
                $conn{ fileno $c->{server} } = $c;
                syswrite $c->{server}, "$head\r\n\r\n$body";
                next;
            }

            if (!$c->{status}) {
                $c->{head} .= $data;
                next if $c->{head} !~ /\A(.*?)\r\n\r\n(.*)/s;
                (my $head, $data) = ($1, $2);
                ($c->{status}) = $head =~ m{\A\S+ (\d+)};
                $head =~ s{\AHTTP/1.0}{HTTP/1.1};
                $c->{stream} = $head =~ m{text/event-stream};
                $head .= "\r\nTransfer-Encoding: chunked" if $c->{stream};
                syswrite $c->{client}, "$head\r\n\r\n";
                $data = "retry: 200\n\n$data" if $c->{stream};

                if ($c->{path} =~ /stream/) {
                    my $which = $c->{path} =~ /mode=join/ ? 'join' : 'page';
                    ($c->{cut}) = grep { $_->{path} eq $which
                        && !$_->{done} } @cut;
                    $c->{cut}{done} = 1 if $c->{cut};
                    $log->(map { ($_ => $c->{$_}) } qw(path last status));
                }
            }

            my $left = $c->{cut} ? $c->{cut}{after} - ($c->{sent} // 0) : 1e9;
            $data = substr $data, 0, $left;
            $c->{sent} += length $data;
            syswrite $c->{client}, $c->{stream}
                ? sprintf("%x\r\n%s\r\n", length $data, $data) : $data
                if length $data;
            $drop->($c) if length $data == $left;
        }
    }
}

my $listen = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1')
    or die "listen: $!";
my $port = $listen->sockport;
my @children;

sub child {
    my ($code) = @_;
    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        POSIX::setsid();
        $SIG{$_} = 'DEFAULT' for qw(TERM INT ALRM);
        $code->();
        POSIX::_exit(1);
    }

    push @children, $pid;
}

my $owner = $$;
END {
    if ($$ == $owner) {
        local $?;
        for my $pid (@children) {
            kill 'KILL', -$pid, $pid;
            waitpid $pid, 0;
        }
    }
}

child(sub {
    proxy($listen, $t->port, $t->dir,
        (map { { path => 'page', after => $_ } } 900, 1501, 2002),
        (map { { path => 'join', after => $_ } } 1203));
});
close $listen;

# --- the page -----------------------------------------------------------------

open my $fh, '<', "$FindBin::Bin/../docs/resume.md" or die "resume.md: $!";
my ($page) = join('', <$fh>) =~ m{^(    <pre id="out">.*?^    </script>\n)}ms;
ok($page, 'docs/resume.md has a page') or BAIL_OUT('it has none');
$page =~ s/^    //mg;

$t->write_file('page.html', <<"HTML");
<!doctype html><meta charset="utf-8"><title>runs</title>
<link rel="icon" href="data:,">
<script>
const made = [], faults = [];
window.onerror = (m) => faults.push(String(m));
window.EventSource = class extends EventSource {
    constructor(url) {
        super(url);
        const s = { source: this, url, opens: 0, ends: 0, ids: [] };
        made.push(s);
        this.addEventListener('open', () => s.opens++);
        this.addEventListener('message', (m) => {
            s.ids.push(m.lastEventId);
            const { type } = JSON.parse(m.data);
            s.first ??= type;
            if (/^RUN_(FINISHED|ERROR)\$/.test(type)) s.ends++;
        });
    }
};
</script>
$page
<script>
let bare;
const timer = setInterval(() => {
    if (!source) return;
    bare ??= new EventSource(url + '?mode=join');
    if (made.length < 2 || made.some((s) => s.ends === 0)
        || bare.readyState !== 2) return;
    clearInterval(timer);
    setTimeout(() => fetch('/result', { method: 'POST', body: JSON.stringify({
        text: out.textContent, faults,
        made: made.map(({ source, ...s }) =>
            ({ ...s, state: source.readyState })) }) }), 1500);
}, 20);
</script>
HTML

my $browser = AgentBrowser->new($t)->open("http://127.0.0.1:$port/page.html");
my $then = time;
my $seen = $t->wait_for(sub { -e $t->dir . "/result" }, 60);
ok($seen, 'the page is done') or diag substr $t->_slurp('browser.log'), -2000;
note sprintf '%.1f s', time - $then;

my $result = decode_json($t->_slurp('result') || '{}');
my @asked = map { decode_json($_) } split /\n/, $t->_slurp('proxy.log');
my @page = grep { $_->{path} !~ /join/ } @asked;
my @join = grep { $_->{path} =~ /join/ } @asked;
my ($one, $two) = @{ $result->{made} // [] };
my $last = $one->{ids}[-1];

is($result->{text}, join(' ', map {"w$_"} 1 .. 60), 'the text is whole');
is_deeply($result->{faults}, [], 'nothing went wrong in the page');
is($one->{ends}, 1, 'the page: one end');
is($one->{opens}, 4, '... it was connected four times');
is($one->{state}, 2, '... and closed its source');
is_deeply([ map { $_->{status} } @page ], [ (200) x 4 ],
    '... it was not back after the end');
is_deeply([ map { s/^\d+-//r } @{ $one->{ids} } ], [ 0 .. $#{ $one->{ids} } ],
    '... each event came once');
is($page[0]{last}, undef, '... its first request has no cursor');
is(scalar(grep { ($_->{last} // '') =~ /^\d+-\d+$/ } @page), 3,
    '... each other one has');

is($two->{first}, 'RUN_STARTED', 'a bare source with mode=join');
is($two->{ends}, 1, '... one end');
is_deeply([ map { $_->{status} } @join ], [ 200, 200, 204 ],
    '... cut, back, and stopped by a 204');
is($join[-1]{last}, $last, '... at the end');
is($two->{state}, 2, '... for good');
my %times;
$times{$_}++ for grep {length} @{ $two->{ids} };
is(scalar(grep { $_ > 1 } values %times), 0, '... no event came twice');
is($t->upstream->requests, 1, 'the model was called once');

undef $browser;
$t->done;
