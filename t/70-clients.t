#!/usr/bin/perl

# The real AG-UI client (t/npm/client.mjs, @ag-ui/client from build/npm) against
# the module.  Its own verifier and schemas judge; its warnings fail.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentReplay;
use AgentTest;
use File::Copy qw(copy);
use Mojo::JSON qw(decode_json);
use Test::More;

my $npm = $ENV{AGENT_NPM} || "$FindBin::Bin/../build/npm";
-d "$npm/node_modules/\@ag-ui/client"
    or die "no \@ag-ui/client in $npm: run make npm-deps\n";

my $t = AgentTest->new;
my ($http, $locations) = agent_blocks(
    text   => 'words,n=12',
    tools  => script('tool', args => '{"city":"Paris"}'),
    reason => 'reason',
    slow   => 'words,n=2000,delay=0.05',
    busy   => 'status,code=429,retry=7',
    late   => 'status,code=500,wait=2',
    cut    => 'cut,at=content',
    beat   => {
        script   => 'slowhead,ms=2500',
        location => 'agent_heartbeat 1s;',
    },
    plan  => { script => 'plan', agent => 'replay_zone runs;' },
    tight => { script => 'plan', agent => 'replay_zone tight;' },
);

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 2;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    agent_replay_zone runs:4m;
    agent_replay_zone tight:1m max_run=32k;
$http
    server {
        listen 127.0.0.1:%%PORT%% reuseport;
$locations
    }
}
CONF
$t->start;

# Node finds packages from where the script is.
my $script = "$npm/client-$$.mjs";
copy("$FindBin::Bin/npm/client.mjs", $script) or die "$script: $!";

# The class of docs/resume.md.
my $class = $script =~ s/client-/resuming-/r;
open my $docs, '<', "$FindBin::Bin/../docs/resume.md" or die "resume.md: $!";
my ($code) = join('', <$docs>)
    =~ m{^(    import \{ HttpAgent \}.*?^    \}\n)}ms or die 'resume.md has no class';
open my $fh, '>', $class or die "$class: $!";
print $fh $code, "export { ResumingAgent };\n";
close $fh;
END { unlink $script, $class if $script && $t && $$ == $t->{owner} }

sub client {
    my ($mode, $path, @args) = @_;
    my $url = 'http://127.0.0.1:' . $t->port . $path;
    open my $out, '-|', 'node', $script, $mode, $url, @args
        or die "node: $!";
    my $line = join '', <$out>;
    close $out;
    my $result = eval { decode_json($line) } // {};
    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok($result->{ok}, "$mode @args$path") or diag($line);
    return $result;
}

my $words = join ' ', map {"w$_"} 1 .. 12;
my $r = client('text', '/text');
is_deeply($r->{texts}, [ $words, $words ], 'text of two turns');
is_deeply(
    [ map { $_->{role} } @{ ($t->upstream->requests)[1]{json}{messages} } ],
    [qw(user assistant user)], 'the second has the first');

$r = client('text', '/reason');
is_deeply($r->{texts}, [ ('Hello, world!') x 2 ], 'text after reasoning');

$r = client('text', '/beat');
is($r->{texts}[0], 'Hello, world!', 'text after heartbeats');

$r = client('tools', '/tools');
is($r->{city}, 'Paris', 'tool arguments');
is($r->{text}, 'The tool said: sunny.', 'the answer to the result');

$t->upstream->forget;
$r = client('abort', '/slow');
like($r->{partial}, qr/\Aw1 w2 w3/, 'partial text');
ok($t->upstream->wait_closed(2, 10), 'an aborted run ends the model call');

client('error', '/busy', 429, 'upstream_rate_limited');
client('late', '/late', 'upstream_error');
$r = client('late', '/cut', 'upstream_truncated');
is($r->{text}, 'Hello, ', 'text before the cut');

# Each kind of prelude, to clients that hold nothing, or their own messages.
my @cases = (
    [ 'gate a; text 2',                                         0 ],
    [ 'text 3; gate b; text 2',                                 3 ],
    [ 'reason 3; gate c; reason 1; text 2',                     3 ],
    [ 'reason 2; text 2; gate d; text 2',                       6 ],
    [ 'text 2; call 0 2; gate e; call 0 3',                     5 ],
    [ 'call 0 2; call 1 2; gate f; call 1 1; call 0 1; call 2 1', 5 ],
    [ 'text 1; call 0 2; text 2; gate g; text 2; call 1 1',     5 ],
    [ 'text 3; gate h; cut',                       4, 'RUN_ERROR' ],
    [ 'text 2; call 0 2; gate i; cut',             6, 'RUN_ERROR' ],
);
$r = client('resume', '/plan', $t->dir,
    map { (@$_[ 0, 1 ], $_->[2] // 'RUN_FINISHED') } @cases);
is($r->{clients}, 24 * @cases, 'preludes');
$r = client('resume', '/tight', $t->dir,
    'text 50 1000; wait 0.2; text 50 1000; wait 0.2; text 50 1000; gate j;'
        . 'text 2', 151, 'RUN_FINISHED');
is($r->{clients}, 24, '... that stand for events which have gone');

$t->done;
