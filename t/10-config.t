#!/usr/bin/perl

# Every mistake of a configuration that "nginx -t" has to find, and every use
# that it has to accept.  A mistake ends with exit code 1 and one [emerg] line
# that names the right file and line and says what to do.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use Test::More;

# Never seen in any output, wherever a case puts it.
my $SECRET = 'sk-SECRET-7f3a';

my $t = AgentTest->new;
my $dir = $t->dir;

# A lookup that nobody answers is not to take long.
$ENV{RES_OPTIONS} = 'timeout:1 attempts:1';
delete @ENV{qw(AGENT_T_UNSET)};
$ENV{AGENT_T_EMPTY} = '';
$ENV{AGENT_T_KEY} = $SECRET;
$ENV{AGENT_T_LF} = "$SECRET\nX-Injected: 1";
$ENV{AGENT_T_LONG} = $SECRET x 1000;

$t->write_file(@$_) for (
    [ 'key',         "$SECRET\n",                 0600 ],
    [ 'key-crlf',    "$SECRET \t\r\n\r\n",        0600 ],
    [ 'key-open',    "$SECRET\n",                 0644 ],
    [ 'key-group',   "$SECRET\n",                 0640 ],
    [ 'key-empty',   '',                          0600 ],
    [ 'key-blank',   " \r\n\n",                   0600 ],
    [ 'key-lines',   "$SECRET\nX-Injected: 1\n",  0600 ],
    [ 'key-nul',     "$SECRET\0\n",               0600 ],
    [ 'key-large',   $SECRET x 1000,              0600 ],
    [ 'system',      "Be kind. \xc3\xa9\n" ],
    [ 'latin1',      "Be kind. \xe9\n" ],
    [ 'large',       'x' x (1024 * 1024 + 1) ],
    [ 'largest',     'x' x (1024 * 1024) ],
    [ 'empty',       '' ],
    [ 'not.pem',     "not a certificate\n" ],
);
POSIX::mkfifo("$dir/fifo", 0600) or die "mkfifo: $!";

{
    my $out = qx{openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 \\
        -nodes -subj /CN=test -days 2 -keyout $dir/cert.key \\
        -out $dir/cert.pem 2>&1};
    die "openssl: $out" if $?;
    $out = qx{openssl ec -in $dir/cert.key -aes128 -passout pass:x \\
        -out $dir/locked.key 2>&1};
    die "openssl: $out" if $?;
}

# --- how a case is run --------------------------------------------------------
#
# A case changes pieces of one configuration: main, events_end (behind http),
# http, model, models (whole blocks), agent, agents, server, location (what
# stands in location /chat), locations (whole ones instead of it).  "#!" marks
# the line that the message has to name; without it, it is the first line of the
# case's only piece.  files: to be included, name => text.

my %base = (
    main      => '',
    end       => '',
    http      => '',
    model     => 'provider echo;',
    agent     => 'model m;',
    server    => '',
    location  => "agent_pass a;\nagent_owner off;",
);

sub conf {
    my (%p) = @_;
    my $models = $p{models} // "agent_model m {\n$p{model}\n}";
    my $agents = $p{agents} // "agent a {\n$p{agent}\n}";
    my $locations = $p{locations} // "location /chat {\n$p{location}\n}";

    return <<"EOF";
%%GLOBALS%%
$p{main}
events { }
http {
%%GLOBALS_HTTP%%
$p{http}
$models
$agents
server {
listen 127.0.0.1:%%PORT%%;
$p{server}
$locations
}
}
$p{end}
