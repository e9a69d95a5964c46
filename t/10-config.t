#!/usr/bin/perl

# Every mistake of a configuration that "nginx -t" has to find, and every use
# that it has to accept.  A mistake ends with exit code 1 and one [emerg] line
# that names the right file and line and says what to do.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use POSIX ();
use Test::More;

# Never seen in any output, wherever a case puts it.
my $SECRET = 'sk-Zq7f3aXw9';

my $t = AgentTest->new;
my $dir = $t->dir;

# A lookup that nobody answers is not to take long.
$ENV{RES_OPTIONS} = 'timeout:1 attempts:1';
delete $ENV{AGENT_T_UNSET};
$ENV{AGENT_T_EMPTY} = '';
$ENV{AGENT_T_KEY} = $SECRET;
$ENV{AGENT_T_LF} = "$SECRET\nX-Injected: 1";
$ENV{AGENT_T_LONG} = $SECRET x 1000;

$t->write_file(@$_) for (
    [ 'key',       "$SECRET\n",                0600 ],
    [ 'key-crlf',  "$SECRET \t\r\n\r\n",       0600 ],
    [ 'key-open',  "$SECRET\n",                0644 ],
    [ 'key-group', "$SECRET\n",                0640 ],
    [ 'key-empty', '',                         0600 ],
    [ 'key-blank', " \r\n\n",                  0600 ],
    [ 'key-lines', "$SECRET\nX-Injected: 1\n", 0600 ],
    [ 'key-nul',   "$SECRET\0\n",              0600 ],
    [ 'key-large', $SECRET x 1000,             0600 ],
    [ 'system',    "Be kind. \xc3\xa9\n" ],
    [ 'latin1',    "Be kind. \xe9\n" ],
    [ 'large',     'x' x (1024 * 1024 + 1) ],
    [ 'largest',   'x' x (1024 * 1024) ],
    [ 'empty',     '' ],
    [ 'not.pem',   "not a certificate\n" ],
);
POSIX::mkfifo("$dir/fifo", 0600) or die "mkfifo: $!";

for my $args ("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    . " -subj /CN=test -days 2 -keyout $dir/cert.key -out $dir/cert.pem",
    "ec -in $dir/cert.key -aes128 -passout pass:x -out $dir/locked.key") {
    my $out = qx{openssl $args 2>&1};
    die "openssl $args: $out" if $?;
}

# --- how a case is run --------------------------------------------------------
#
# A case changes pieces of one configuration: main, end (behind http), http,
# model, models (whole blocks), agent, agents, server, location (what stands in
# location /chat), locations (whole ones instead of it); files are to be
# included, name => text.  "#!" marks the line that the message has to name;
# without it, it is the first line of the case's only piece.

my %base = (
    main     => '',
    end      => '',
    http     => '',
    model    => 'provider echo;',
    agent    => 'model m;',
    server   => '',
    location => "agent_pass a;\nagent_owner off;",
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
EOF
}

# file:line of the mark
sub marked {
    for my $name (@_) {
        open my $fh, '<', "$dir/$name" or die "$dir/$name: $!";

        while (my $line = <$fh>) {
            return "$dir/$name:$." if $line =~ /#!/;
        }
    }

    return '(no mark)';
}

# level: 'ok', 'warn' or 'emerg', with one line that says "what".
sub check {
    my ($level, $name, $pieces, $what) = @_;
    my %p = %$pieces;
    my %files = %{ delete $p{files} // {} };
    my ($only) = keys %p;

    if ($level ne 'ok' && join('', values %p, values %files) !~ /#!/) {
        die "$name: no mark" if keys %p != 1;
        $p{$only} =~ s/$/ #!/m;
    }

    $t->write_file($_, $files{$_}) for keys %files;
    unlink "$dir/test.log";
    my ($code, $out) = $t->test_conf(conf(%base, %p));
    my $log = do {
        local (@ARGV, $/) = "$dir/test.log";
        -e $ARGV[0] ? <> : '';
    } // '';

    my @emerg = $out =~ /^nginx: \[(?:emerg|alert|crit|error)\] (.*)/mg;
    my @warn = $out =~ /^nginx: \[warn\] (.*)/mg;
    my @bad;

    # without root nginx has to say that it cannot change its user
    @warn = grep { !/^the "user" directive makes sense only/ } @warn;

    push @bad, "exit code $code" if $code != ($level eq 'emerg');
    push @bad, 'a secret was printed' if "$out$log" =~ /7f3axw9/i;
    push @bad, 'a sanitizer spoke' if $out =~ /Sanitizer|runtime error:/;
    push @bad, @emerg . ' emergencies, ' . @warn . ' warnings'
        if @emerg != ($level eq 'emerg') || @warn != ($level eq 'warn');

    if (!@bad && $level ne 'ok') {
        my ($line) = (@emerg, @warn);
        my $where = marked('test.conf', sort keys %files);
        push @bad, "it does not say $what" if $line !~ $what;
        push @bad, "it does not end with \"in $where\""
            if $line !~ /\bin \Q$where\E$/;
    }

    local $Test::Builder::Level = $Test::Builder::Level + 2;
    $name =~ s/([^ -~])/sprintf '\x%02x', ord $1/ge;
    ok(!@bad, "$level: $name") or diag(map {"$_\n"} @bad, $out);
}

sub good   { check('ok',    @_[ 0, 1 ]) }
sub warned { check('warn',  @_) }
sub bad    { check('emerg', @_) }

# Pieces for a model behind an API; the lines come after its url.
sub api {
    my ($url, $lines, %more) = @_;
    return { model => "provider openai;\nmodel x;\n$url\n" . ($lines // ''),
        %more };
}

my $LOCAL = 'url http://127.0.0.1:9/v1;';

sub local_api { return api($LOCAL, @_) }

# Many good uses at a time, each in a block of its own; the first has the name
# that the others refer to.
sub models {
    my $name = 'm';
    return { models => join "\n", map {
        "agent_model @{[ $name++ ]} { provider openai; model x; $_ }"
    } @_ };
}

sub agents {
    my $name = 'a';
    return { agents => join "\n",
        map {"agent @{[ $name++ ]} { model m; $_ }"} @_ };
}

sub locations {
    my $name = 'chat';
    return { locations => join "\n",
        map {"location /@{[ $name++ ]} { agent_pass a; $_ }"} @_ };
}

# --- blocks -------------------------------------------------------------------

good('the smallest configuration', {});

bad('no provider', { models => "agent_model m { #!\nmodel x;\n}" },
    qr/agent_model "m" has no "provider"/);
bad('unknown provider', { model => 'provider anthropic;' },
    qr/unknown provider "anthropic", there are "openai", "echo"/);
bad('empty provider', { model => 'provider "";' }, qr/unknown provider ""/);
good('openai has a model of its own',
    { models => "agent_model m {\nprovider openai;\n$LOCAL\n}" });
bad('agent without model', { agents => "agent a { #!\nsystem x;\n}" },
    qr/agent "a" has no "model"/);
bad('unknown model', { agent => 'model none;' },
    qr/unknown model "none" of agent "a".*no "agent_model none \{ \}"/);
bad('unknown model of an agent that nobody uses',
    { agents => "agent a { model m; }\nagent b {\nmodel none; #!\n}" },
    qr/unknown model "none" of agent "b"/);
bad('empty model of an agent', { agent => 'model "";' },
    qr/"model" directive must not be empty/);
bad('duplicate agent_model',
    { http => 'agent_model m { provider echo; }',
        models => "\nagent_model m { #!\nprovider echo;\n}" },
    qr/duplicate agent_model "m", the first is in \S+test\.conf:\d+/);
bad('duplicate agent',
    { http => 'agent a { model m; }', agents => "\nagent a { #!\nmodel m;\n}" },
    qr/duplicate agent "a", the first is in \S+test\.conf:\d+/);
good('names that differ in case, or are in both kinds',
    { http => "agent_model M { provider echo; }\nagent A { model M; }\n"
        . 'agent m { model M; }' });
good('a location before its agent, an agent before its model',
    { http => "server { listen 127.0.0.1:%%PORT1%%;\n"
        . 'location / { agent_pass a; agent_owner off; } }',
        models => 'agent a { model z; }',
        agents => 'agent_model z { provider echo; }' });
good('several agents and servers', { http => <<'EOF' });
agent_model n { provider echo; set tokens_per_second 0; }
agent b { model n; }
agent c { model m; }
server {
    listen 127.0.0.1:%%PORT1%%;
    agent_owner off;
    location /b { agent_pass b; }
    location /c { agent_pass c; location /c/b { agent_pass b; } }
}
EOF
good('blocks that nobody uses', { locations => '' });
good('the module not in use',
    { models => '', agents => '', locations => 'location / { return 204; }' });

bad("name $_->[0]", { models => "agent_model $_->[0] { provider echo; }" },
    $_->[1])
    for (
        [ 'a/b',    qr{invalid name "a/b", use letters, digits, "_"} ],
        [ '"a b"',  qr/invalid name "a b"/ ],
        [ '$a',     qr/invalid name "\$a"/ ],
        [ 'é',      qr/invalid name/ ],
        [ '""',     qr/a name must have 1 to 64 characters/ ],
        [ 'x' x 65, qr/a name must have 1 to 64 characters/ ],
    );
bad('agent name', { agents => 'agent a:b { model m; }' },
    qr/invalid name "a:b", use letters, digits/);
bad('agent without a name', { agents => "agent {\nmodel m;\n}" },
    qr/invalid number of arguments in "agent" directive/);
bad('agent with two names', { agents => "agent a b {\nmodel m;\n}" },
    qr/invalid number of arguments in "agent" directive/);
bad('agent_model that is no block', { http => 'agent_model m;' },
    qr/directive "agent_model" has no opening "\{"/);
good('the longest name',
    { http => 'agent_model ' . 'A.b_c-1x' x 8 . ' { provider echo; }' });

# --- duplicates ---------------------------------------------------------------

bad("duplicate $_->[0]", local_api("$_->[0] $_->[1];\n$_->[0] $_->[2]; #!"),
    qr/"$_->[0]" directive is duplicate/)
    for (
        [ key                     => 'file:key', 'file:key' ],
        [ connect_timeout         => '1s',       '1s' ],
        [ first_byte_timeout      => '1s',       '2s' ],
        [ idle_timeout            => '1s',       '1s' ],
        [ max_inflight            => '1',        '2 queue=1' ],
        [ ssl_verify              => 'on',       'on' ],
        [ ssl_trusted_certificate => 'cert.pem', 'cert.pem' ],
        [ ssl_certificate         => 'cert.pem', 'cert.pem' ],
        [ ssl_certificate_key     => 'cert.key', 'cert.key' ],
    );
bad('duplicate provider', { model => "provider echo;\nprovider echo; #!" },
    qr/"provider" directive is duplicate/);
bad('duplicate model', { model => "provider echo;\nmodel x;\nmodel x; #!" },
    qr/"model" directive is duplicate/);
bad('duplicate url', local_api('url http://127.0.0.1:10/v1; #!'),
    qr/duplicate "url": several peers for one model are not supported yet/);
bad("duplicate $_->[0] in agent",
    { agent => "model m;\n$_->[0] $_->[1];\n$_->[0] $_->[2]; #!" },
    qr/"$_->[0]" directive is duplicate/)
    for (
        [ system         => 'x',      'x' ],
        [ memory         => 'off',    'off' ],
        [ accept_roles   => 'user',   'user' ],
        [ client_tools   => 'on',     'off' ],
        [ max_run_time   => '1m',     '1m' ],
        [ on_disconnect  => 'cancel', 'continue' ],
        [ allow_override => 'top_p',  'seed' ],
    );
bad('duplicate model in agent', { agent => "model m;\nmodel m; #!" },
    qr/"model" directive is duplicate/);
bad("duplicate $_->[0], $_->[1] and $_->[2]",
    { location => "agent_pass a;\nagent_owner off;\n$_->[0] $_->[1];\n"
        . "$_->[0] $_->[2]; #!" },
    qr/"$_->[0]" directive is duplicate/)
    for (
        [ agent_thread           => '$arg_a',           '$arg_a' ],
        [ agent_heartbeat        => 'off',              'off' ],
        [ agent_heartbeat        => '1s',               'off' ],
        [ agent_cors             => 'http://localhost', 'off' ],
        [ agent_cors             => 'off',              'http://localhost' ],
        [ agent_intercept_errors => 'on',               'off' ],
        [ agent_run_log          => 'run.log',          'off' ],
    );
bad('duplicate agent_pass',
    { location => "agent_owner off;\nagent_pass a;\nagent_pass a; #!" },
    qr/"agent_pass" directive is duplicate/);
bad("duplicate agent_owner, $_->[0] and $_->[1]",
    { location => "agent_pass a;\nagent_owner $_->[0];\n"
        . "agent_owner $_->[1]; #!" },
    qr/"agent_owner" directive is duplicate/)
    for ([ 'off', 'off' ], [ '$host', 'off' ], [ 'off', '$host' ]);

# --- agent_pass and its locations ---------------------------------------------

bad('unknown agent',
    { location => "agent_owner off;\n\nagent_pass nobody; #!" },
    qr/unknown agent "nobody" in "agent_pass".*"agent nobody \{ \}"/);
bad('a variable for an agent',
    { location => "agent_owner off;\nagent_pass \$x; #!" },
    qr/unknown agent "\$x"/);
bad('a model for an agent',
    { location => "agent_owner off;\nagent_pass m; #!" },
    qr/unknown agent "m" in "agent_pass"/);
bad('empty agent_pass', { location => "agent_owner off;\nagent_pass \"\"; #!" },
    qr/"agent_pass" directive needs the name of an agent/);
bad("agent_pass$_", { location => "agent_owner off;\nagent_pass$_; #!" },
    qr/invalid number of arguments in "agent_pass" directive/)
    for '', ' a b';
bad('another handler behind agent_pass',
    { location => "agent_owner off;\nagent_pass a; #!\n"
        . 'proxy_pass http://127.0.0.1:9;' },
    qr/a directive behind "agent_pass" takes its location over/);
bad('another handler before agent_pass',
    { location => "agent_owner off;\nproxy_pass http://127.0.0.1:9;\n"
        . 'agent_pass a; #!' },
    qr/a directive before "agent_pass" answers in this location already/);
good('another handler in an if inside',
    { location => "agent_owner off;\nagent_pass a;\n"
        . 'if ($request_method = GET) { proxy_pass http://127.0.0.1:9; }' });
warned('location =',
    { locations => "location = /chat {\nagent_pass a; #!\n"
        . "agent_owner off;\n}" },
    qr{"location = /chat" reaches only the start of.*use "location /chat"});
good('regex location', { locations => <<'EOF' });
location ~ ^/threads/(?<thread>[^/]+)/chat$ {
    agent_thread $thread;
    agent_pass a;
    agent_owner off;
}
EOF
good('named and nested locations', { locations => <<'EOF' });
agent_owner off;
location / { try_files $uri @chat; }
location @chat { agent_pass a; }
location /x { location /x/y { agent_pass a; } }
EOF

# --- if and limit_except ------------------------------------------------------

good('if and limit_except inherit', { location => <<'EOF' });
agent_pass a;
agent_owner off;
if ($arg_x) { set $y 1; }
limit_except POST { deny all; }
EOF
good('an agent of its own in if and in limit_except',
    { http => 'agent b { model m; }', location => <<'EOF' });
agent_pass a;
agent_owner off;
if ($arg_x) { agent_pass b; agent_owner $host; agent_thread $arg_x; }
limit_except POST { agent_pass b; }
EOF
good('agent_pass only in if',
    { location => "agent_owner off;\nif (\$arg_x) { agent_pass a; }" });
good('agent_pass only in limit_except',
    { location => "agent_owner off;\nlimit_except POST { agent_pass a; }" });
bad("unknown agent in $_",
    { location => "agent_pass a;\nagent_owner off;\n$_ {\n"
        . "agent_pass none; #!\n}" },
    qr/unknown agent "none"/)
    for 'if ($arg_x)', 'limit_except GET';
bad("agent_pass in $_ without agent_owner",
    { location => "$_ {\nagent_pass a; #!\n}" },
    qr/"agent_pass" needs "agent_owner"/)
    for 'if ($arg_x)', 'limit_except GET';
bad('agent_owner only in if',
    { location => "agent_pass a; #!\nif (\$arg_x) { agent_owner off; }" },
    qr/"agent_pass" needs "agent_owner"/);
bad("$_->[1] in $_->[0]",
    { location => "agent_pass a;\nagent_owner off;\n$_->[0] {\n"
        . "$_->[1] off; #!\n}" },
    qr/"$_->[1]" directive is not allowed here/)
    for (
        [ 'if ($arg_x)',      'agent_cors' ],
        [ 'if ($arg_x)',      'agent_heartbeat' ],
        [ 'if ($arg_x)',      'agent_intercept_errors' ],
        [ 'if ($arg_x)',      'agent_run_log' ],
        [ 'limit_except GET', 'agent_owner' ],
        [ 'limit_except GET', 'agent_thread' ],
        [ 'limit_except GET', 'agent_cors' ],
    );

# --- agent_owner --------------------------------------------------------------

sub owner {
    my ($value, $more) = @_;
    return { location => "agent_pass a;\nagent_owner $value; #!\n"
            . ($more // '') };
}

my $AUTH = "auth_basic x;\nauth_basic_user_file users;\n";

bad('agent_pass without agent_owner', { location => 'agent_pass a;' },
    qr/"agent_pass" needs "agent_owner": the identity.*"agent_owner off;"/);
bad('empty agent_owner', owner('""'),
    qr/"agent_owner" directive must not be empty, use "off"/);
bad('agent_owner without a value', owner(''),
    qr/invalid number of arguments in "agent_owner" directive/);
bad('agent_owner with two values', owner('$host x'),
    qr/invalid number of arguments in "agent_owner" directive/);
good('agent_owner off in http, a value in server',
    { http => 'agent_owner off;', server => 'agent_owner $server_name;',
        location => 'agent_pass a;' });

my $FORGED = qr/can be forged: the client sends it, use an identity/;

warned("agent_owner $_", owner($_),
    qr{"agent_owner \Q$_\E" $FORGED that nginx has.* in location "/chat"})
    for qw($http_x_user $arg_user $cookie_session a-$arg_x-b $HTTP_X_USER
    $host/$cookie_x $remote_user$arg_x);
warned('agent_owner ${http_x}', owner('${http_x}'), $FORGED);
warned('agent_owner "a${arg_x}"', owner('"a${arg_x}"'), $FORGED);
warned("agent_owner $_, with auth_basic", owner($_, $AUTH),
    qr/"agent_owner \Q$_\E" $FORGED/)
    for qw($http_x_user $remote_user/$arg_x);
good('owners of which a client has no say',
    locations(map {"agent_owner $_;"}
        qw($remote_addr $upstream_http_x_user $server_name http_x
        $sent_http_x everybody)));
warned('agent_owner $http_x of http',
    { http => 'agent_owner $http_x; #!', location => 'agent_pass a;' },
    $FORGED);
good('agent_owner $http_x where no agent is',
    { locations => 'location / { agent_owner $http_x; return 204; }' });
good('agent_owner $http_x that a location overrides',
    { server => 'agent_owner $http_x;',
        location => "agent_pass a;\nagent_owner off;" });
warned('a forged owner in an if that inherits agent_pass',
    { location => "agent_pass a;\nagent_owner off;\nif (\$arg_x) {\n"
        . "agent_owner \$http_x; #!\n}" },
    $FORGED);

my $UNCHECKED = qr{can be forged: "auth_basic" does not check it in location }
    . qr{"/chat"};
my $SATISFY = qr/can be forged: "satisfy any" lets it pass unchecked/;

warned("$_ without auth_basic", owner($_), $UNCHECKED)
    for qw($remote_user "${remote_user}" $server_name/$remote_user
    $Remote_User-x);
good('a variable whose name begins like it',
    { server => 'set $remote_user_id x;', %{ owner('$remote_user_id') } });
good('$remote_user with auth_basic', owner('$remote_user', $AUTH));
good('$remote_user with auth_basic of a variable',
    owner('$remote_user', "auth_basic \$host;\nauth_basic_user_file users;"));
good('auth_basic inherited from server',
    { server => $AUTH, %{ owner('$remote_user') } });
good('auth_basic inherited from http',
    { http => $AUTH, %{ owner('$remote_user') } });
warned('auth_basic off in the location',
    { server => $AUTH, %{ owner('$remote_user', 'auth_basic off;') } },
    $UNCHECKED);
warned('auth_basic with satisfy any',
    owner('$remote_user', "$AUTH satisfy any;"), $SATISFY);
warned('satisfy any inherited',
    { server => "$AUTH satisfy any;", %{ owner('$remote_user') } }, $SATISFY);
good('satisfy all in the location',
    { server => "$AUTH satisfy any;",
        %{ owner('$remote_user', 'satisfy all;') } });
warned('auth_basic off in limit_except',
    owner('$remote_user', "$AUTH limit_except GET { auth_basic off; }"),
    $UNCHECKED);
warned('one warning for a location with blocks inside',
    owner('$remote_user', "if (\$arg_x) { set \$y 1; }\n"
        . 'limit_except POST { deny all; }'),
    $UNCHECKED);
warned('the location that lacks auth_basic',
    { server => 'agent_owner $remote_user; #!', locations =>
        "location / { agent_pass a; $AUTH }\nlocation /open { agent_pass a; }"
    },
    qr{"auth_basic" does not check it in location "/open"});

# --- secrets ------------------------------------------------------------------

sub key { return local_api("key $_[0]; #!", @_[ 1 .. $#_ ]) }

good('key in a file', models(map {"$LOCAL key file:$_;"}
        "$dir/key", qw(key key-crlf key-group)));
warned('key that everybody can read', key('file:key-open'),
    qr{the secret in "$dir/key-open" can be read by everybody.*chmod 600});
bad('missing key file', key("file:$dir/none"),
    qr{open\(\) "$dir/none" failed \(2: No such file});
bad('missing relative key file', key('file:none'),
    qr{open\(\) "$dir/none" failed});
bad('key file without a path', key('file:'), qr/"file:" needs a path behind/);
bad('key file that is a directory', key("file:$dir"),
    qr/"$dir" is not a regular file/);
bad('key file that is a pipe', key('file:fifo'),
    qr{"$dir/fifo" is not a regular file});
bad('empty key file', key('file:key-empty'),
    qr{the secret in "$dir/key-empty" is empty});
bad('blank key file', key('file:key-blank'),
    qr{the secret in "$dir/key-blank" is empty});
bad('two lines in the key file', key('file:key-lines'),
    qr/control characters are not allowed in a secret.*must be one line/);
bad('NUL in the key file', key('file:key-nul'),
    qr/control characters are not allowed/);
bad('too large key file', key('file:key-large'),
    qr{"$dir/key-large" is larger than 8192 bytes});
bad('key given literally', key($SECRET),
    qr/a secret must be given as "file:path" or "env:NAME"/);
bad('key given literally, as a variable', key("\$$SECRET"),
    qr/a secret must be given as "file:path" or "env:NAME"/);
bad('key given literally, in two words', key("Bearer $SECRET"),
    qr/invalid number of arguments in "key" directive/);
bad('empty key', key('""'), qr/a secret must be given as/);

bad('unset variable', key('env:AGENT_T_UNSET'),
    qr/the environment variable "AGENT_T_UNSET" is not set, set it for the/);
bad('empty variable', key('env:AGENT_T_EMPTY'),
    qr/the environment variable "AGENT_T_EMPTY" is empty, set it/);
bad('variable without a name', key('env:'),
    qr/"env:" needs a variable's name behind it/);
bad('variable of two lines', key('env:AGENT_T_LF'),
    qr/control characters are not allowed/);
bad('too long variable', key('env:AGENT_T_LONG'),
    qr/the environment variable "AGENT_T_LONG" is longer than 8192 bytes/);

my $LOST = qr/"env:AGENT_T_KEY" is lost at a binary upgrade.*"env AGENT_T_KEY/;

warned('env without "env NAME;"', key('env:AGENT_T_KEY'), $LOST);
good('env with "env NAME;"',
    key('env:AGENT_T_KEY', main => 'env AGENT_T_KEY;'));
good('env with "env NAME;" behind http',
    key('env:AGENT_T_KEY', end => 'env AGENT_T_KEY;'));
good('env with "env NAME=value;"',
    key('env:AGENT_T_KEY', main => 'env AGENT_T_KEY=other;'));
warned('"env" of another name',
    key('env:AGENT_T_KEY', main => "env AGENT_T_KEYS;\nenv AGENT_T;"), $LOST);
warned('env in a header', local_api('header X-Key env:AGENT_T_KEY; #!'), $LOST);

# --- url ----------------------------------------------------------------------

sub url { return api("url $_[0]; #!", '', @_[ 1 .. $#_ ]) }

good('urls', models(map {"url $_;"}
    qw(http://127.0.0.1 http://127.0.0.1/ http://127.0.0.1:8000/v1
    https://127.0.0.1/v1/ HTTP://127.0.0.1/v1 http://127.0.0.1:65535
    http://127.0.0.1:1/v1 http://[::1]:8000/v1 http://[::1] https://[::1]/v1
    http://[::ffff:127.0.0.1]/v1 http://localhost:8000/v1
    http://127.0.0.1/openai/deployments/d?api-version=2024-10-21
    http://127.0.0.1?a=b http://127.0.0.1/a%20b/@cf/meta)));

bad("url $_", url($_),
    qr{invalid url "\Q$_\E", it must begin with "http://" or "https://"})
    for qw(127.0.0.1:8000/v1 localhost //127.0.0.1/v1 ftp://127.0.0.1/
    http:127.0.0.1 http:/127.0.0.1 http:// https:// ws://127.0.0.1);
bad('empty url', url('""'), qr/invalid url "", it must begin with/);
bad("url $_", url($_), qr/credentials in a url are refused, use "key"/)
    for "http://u:$SECRET\@127.0.0.1/v1", "https://$SECRET\@127.0.0.1",
    "http://$SECRET:\@127.0.0.1:8000/v1?x=y", 'http://@127.0.0.1';
bad("url $_->[0]", url($_->[0]), $_->[1])
    for (
        [ "u:$SECRET\@127.0.0.1/v1",       qr/it must begin with/ ],
        [ "ftp://u:$SECRET\@127.0.0.1",    qr/it must begin with/ ],
        [ "http://u:/$SECRET\@127.0.0.1/", qr/invalid port in url "\.\.\."/ ],
        [ "http:///v1?key=$SECRET",        qr{no host in url "http:///v1"} ],
        [ "http://x:y/v1?key=$SECRET",     qr{invalid port in .*x:y/v1"} ],
        [ "127.0.0.1/v1?key=$SECRET",      qr{invalid url "127.0.0.1/v1"} ],
    );
bad("url $_", url($_), qr{(?:no|invalid) host in url "\Q$_\E"})
    for qw(http:///v1 https:/// http://:8000/v1 http://[::1/v1);
bad('url http://?x', url('http://?x'), qr{no host in url "http://"});
bad("url $_", url($_), qr{invalid port in url "\Q$_\E"})
    for qw(http://127.0.0.1:0/v1 http://127.0.0.1:65536/v1 http://127.0.0.1:/v1
    http://127.0.0.1:x/v1 http://127.0.0.1:80:90/v1 http://127.0.0.1:-1
    https://127.0.0.1:99999999999999999999/ http://[::1]:/v1
    http://[::1]:70000/v1 http://::1/v1);
bad("url $_", url($_), qr{(?:no|invalid) \S.* in url "\Q$_\E"})
    for qw(http://[::1]x/v1 http://[x]/v1 http://[]/v1 http://[1.2.3.4]/v1);
bad("url $_", url($_), qr/unix sockets are not supported in "url"/)
    for qw(http://unix:/run/x.sock http://unix:/run/x.sock:/v1 https://UNIX:x);
bad("url $_", url($_), qr/invalid character in url, spaces, "#", "\\"/)
    for '"http://127.0.0.1/a b"', 'http://127.0.0.1/#x',
    '"http://127.0.0.1\\\\v1"', "'http://127.0.0.1/\t'", 'http://127.0.0.1/é',
    'http://é.example/', 'http://127.0.0.1/<x>', q('http://127.0.0.1/"');
bad("url $_", url($_), qr/variables are not supported in "url"/)
    for 'http://$backend/v1', 'http://127.0.0.1:$port/v1',
    'http://127.0.0.1/${x}';
bad("url $_", url($_), qr{invalid character "." in the host of url "\Q$_\E"})
    for 'http://a,b/v1', 'http://*/v1', 'http://a%2eb/', 'http://(a)/';
bad('url with a host of 254 characters',
    url('http://' . 'a.' x 127 . '/', http => 'resolver 127.0.0.1;'),
    qr/the host in url is longer than 253 characters/);
bad('url with parameters', url('http://127.0.0.1/v1 weight=2'),
    qr/invalid number of arguments in "url" directive/);

# Names: looked up now, or by a resolver at the time of each run.

my $NAME = 'http://agent-test.invalid/v1';
my $LATER = qr{host not found in url "\Q$NAME\E", and a location that uses }
    . qr{agent_model "m" has no "resolver" to ask later};

bad('a name that does not resolve', url("$NAME?key=$SECRET"), $LATER);
good('with a resolver in http', url($NAME, http => 'resolver 127.0.0.1;'));
good('with a resolver in server', url($NAME, server => 'resolver 127.0.0.1;'));
good('with a resolver in the location',
    url($NAME, location => "agent_pass a;\nagent_owner off;\n"
        . 'resolver 127.0.0.1;'));
bad('with a resolver in one of two locations',
    url($NAME, server => "agent_owner off;\nlocation / { agent_pass a; }",
        location => "agent_pass a;\nresolver 127.0.0.1;"),
    $LATER);
bad('with a resolver in another location',
    url($NAME, server => 'location / { resolver 127.0.0.1; }'), $LATER);
good('a name that no location needs', url($NAME, locations => ''));
good('a name that another agent needs, with a resolver',
    url($NAME, agents => "agent a { model e; }\nagent b { model m; }\n"
        . 'agent_model e { provider echo; }',
        server => "location /b { agent_pass b; agent_owner off;\n"
        . 'resolver 127.0.0.1; }'));

warned("the provider's url without a key",
    { models => "agent_model m { #!\nprovider openai;\nmodel x;\n}",
        http => 'resolver 127.0.0.1;' },
    qr/agent_model "m" uses the provider's own "url" but has no "key"/);
good("the provider's url with a key",
    { model => "provider openai;\nmodel x;\nkey file:key;",
        http => 'resolver 127.0.0.1;' });
bad("echo with $_", { models => "agent_model m { #!\nprovider echo;\n$_\n}" },
    qr/agent_model "m": the built-in provider takes no "url", "key", "header"/)
    for $LOCAL, 'key file:key;', 'header X y;',
    'ssl_trusted_certificate cert.pem;', 'ssl_certificate cert.pem;';

# --- the other directives of agent_model --------------------------------------

for my $name (qw(connect_timeout first_byte_timeout idle_timeout)) {
    bad("$name $_", local_api("$name $_; #!"),
        qr/invalid time "\Q$_\E" in "$name", use for example "500ms", "30s"/)
        for qw(x 5x -1s 1.5s 5m5h 99999999999999999999s);
    bad("$name $_", local_api("$name $_; #!"),
        qr/"$name" must be between 1ms and 7d, not "$_"/)
        for qw(0 0ms 8d 604801s);
    good($name, models(map {"$LOCAL $name $_;"} qw(1ms 5 7d 1m30s)));
}

bad('empty connect_timeout', local_api('connect_timeout ""; #!'),
    qr/invalid time ""/);
bad('connect_timeout without a value', local_api('connect_timeout; #!'),
    qr/invalid number of arguments in "connect_timeout" directive/);

bad("max_inflight $_", local_api("max_inflight $_; #!"),
    qr/"max_inflight" must be a number from 1, not "$_"/)
    for qw(0 -1 x 1x 99999999999999999999);
bad("max_inflight 1 $_", local_api("max_inflight 1 $_; #!"),
    qr/invalid parameter "\Q$_\E", use "queue=N" or "timeout=time"/)
    for qw(queue= queue=-1 queue=x timeout= timeout=0 timeout=x timeout=-1s
    Queue=1 2 burst=3);
bad('max_inflight 1 queue=1 x', local_api('max_inflight 1 queue=1 x; #!'),
    qr/invalid parameter "x"/);
bad('max_inflight with too much',
    local_api('max_inflight 1 queue=1 timeout=1s x; #!'),
    qr/invalid number of arguments in "max_inflight" directive/);
good('max_inflight', models(map {"$LOCAL max_inflight $_;"}
        '1', '32 queue=256', '32 queue=0', '32 queue=256 timeout=1m',
        '32 timeout=500ms queue=9'));

bad("set $_", local_api("set $_ x; #!"),
    qr/"$_" is made by the module and cannot be set/)
    for qw(messages stream tools);
bad('set twice', local_api("set top_p 1;\nset top_p 1; #!"),
    qr/duplicate "set top_p"/);
bad("set x $_", local_api("set x $_; #!"),
    qr/the value of "set x" is not valid JSON, put JSON in single quotes/)
    for q('["END"'), q('{"a":}'), q('{"a":1,"a":2}'), '1.2.3', '-', '01',
    q('"a'), '""', '[1,2,]', q('1 2');
bad('set before provider',
    { models => "agent_model m {\nset temperature 1; #!\nprovider echo;\n}" },
    qr/"provider" must come before "set"/);
bad('set without a value', local_api('set temperature; #!'),
    qr/invalid number of arguments in "set" directive/);
bad('set without a name', local_api('set "" 1; #!'),
    qr/"set" needs a member's name/);
bad("set tokens_per_second $_",
    { model => "provider echo;\nset tokens_per_second $_; #!" },
    qr/"set tokens_per_second" must be a number from 0, not/)
    for qw(fast -1 true), q('"50"');
good('set', local_api(<<'EOF'));
set a 0.2;
set b '["END"]';
set c null;
set d true;
set e low;
set f '"low"';
set g '{"x":{"y":[1,-2e5,null]}}';
set h "two words";
set i -1;
set tokens_per_second x;
set é ü;
EOF
good('set of the built-in model',
    { model => "provider echo;\nmodel e;\nset tokens_per_second 0.5;" });

bad("header $_", local_api("header $_ x; #!"),
    qr/header "$_" is made by the module and cannot be set/)
    for qw(Host content-length Transfer-Encoding Connection Content-Type ACCEPT
    Accept-Encoding Content-Encoding Expect Upgrade TE Trailer);
bad("header $_", local_api("header $_ x; #!"),
    qr/invalid header name.*name and value as two words: header Name value/)
    for 'X:', '"X: y"', '"X y"', '""', 'Xé', 'X()', '$x';
bad('header without a value', local_api('header X; #!'),
    qr/invalid number of arguments in "header" directive/);
bad("header with $_->[0]", local_api("header X '${\ $_->[1]}'; #!"),
    qr/control characters are not allowed in a secret or header value/)
    for (
        [ CRLF => 'a\r\nInjected: 1' ],
        [ CR   => 'a\rb' ],
        [ LF   => 'a\nb' ],
        [ raw  => "a\nb" ],
        [ TAB  => "a\tb" ],
        [ DEL  => "a\x7fb" ],
    );
bad('header from a file of two lines', local_api('header X file:key-lines; #!'),
    qr/control characters are not allowed/);
bad('header from a missing file', local_api('header X file:none; #!'),
    qr{open\(\) "$dir/none" failed});
bad('header from an unset variable',
    local_api('header X env:AGENT_T_UNSET; #!'),
    qr/the environment variable "AGENT_T_UNSET" is not set/);
warned('header from a file that everybody can read',
    local_api('header X file:key-open; #!'), qr/can be read by everybody/);
good('header', local_api(<<'EOF'));
header X y;
header X z;
header OpenAI-Organization "org 123";
header api-key file:key;
header X-Empty "";
header Authorization "Basic eA==";
EOF
bad('key and header Authorization',
    { models => "agent_model m { #!\nprovider openai;\nmodel x;\n$LOCAL\n"
        . "key file:key;\nheader authorization x;\n}" },
    qr/"key" and "header Authorization" are the same, give one of them/);

bad('empty model name', { model => "provider echo;\nmodel \"\"; #!" },
    qr/"model" directive must not be empty/);
bad('model name of two lines', { model => "provider echo;\nmodel 'a\\nb'; #!" },
    qr/"model" directive must not contain control characters/);

bad('ssl_verify maybe', local_api('ssl_verify maybe; #!'),
    qr/invalid value "maybe" in "ssl_verify" directive, it must be "on" or/);

for my $name (qw(ssl_trusted_certificate ssl_certificate ssl_certificate_key)) {
    bad("$name missing", local_api("$name none.pem; #!"),
        qr{open\(\) "$dir/none.pem" failed \(2: No such file});
    bad("$name empty", local_api("$name \"\"; #!"),
        qr/"$name" directive must not be empty/);
}

bad("$_->[0] $_->[1]", local_api("$_->[0] $_->[1]; #!"),
    qr{"$dir/\Q$_->[1]\E" holds no $_->[2]})
    for (
        [ ssl_trusted_certificate => 'not.pem',    'certificate in PEM form' ],
        [ ssl_trusted_certificate => 'empty',      'certificate in PEM form' ],
        [ ssl_trusted_certificate => 'cert.key',   'certificate in PEM form' ],
        [ ssl_certificate         => 'not.pem',    'certificate in PEM form' ],
        [ ssl_certificate_key     => 'cert.pem',   'private key without a' ],
        [ ssl_certificate_key     => 'locked.key', 'private key without a' ],
    );
bad("$_ alone",
    { models => "agent_model m { #!\nprovider openai;\nmodel x;\n$LOCAL\n"
        . "$_;\n}" },
    qr/"ssl_certificate" and "ssl_certificate_key" go together/)
    for 'ssl_certificate cert.pem', 'ssl_certificate_key cert.key';
good('ssl', api('url https://127.0.0.1/v1;', <<"EOF"));
ssl_verify off;
ssl_trusted_certificate cert.pem;
ssl_certificate $dir/cert.pem;
ssl_certificate_key cert.key;
EOF

# --- the directives of agent --------------------------------------------------

sub agent { return { agent => "model m;\n$_[0]; #!" } }

bad('system file missing', agent('system file:none'),
    qr{open\(\) "$dir/none" failed \(2: No such file});
bad('system file not UTF-8', agent('system file:latin1'),
    qr/the system prompt is not valid UTF-8/);
bad('system file too large', agent('system file:large'),
    qr{"$dir/large" is larger than 1048576 bytes});
bad('system file empty', agent('system file:empty'),
    qr/the system prompt is empty, leave "system" out/);
bad('system file without a path', agent('system file:'),
    qr/"file:" needs a path behind it/);
bad('system file a directory', agent("system file:$dir"),
    qr/"$dir" is not a regular file/);
bad('system empty', agent('system ""'), qr/the system prompt is empty/);
bad('system not UTF-8', agent("system \"\xe9\""),
    qr/the system prompt is not valid UTF-8/);
bad('system of two words', agent('system Be kind'),
    qr/invalid number of arguments in "system" directive/);
good('system', agents(map {"system $_;"}
        'x', '"Answer with $5. \"Quoted\"\nlines"', '"é"', 'file:system',
        "file:$dir/system", 'file:largest', 'env:AGENT_T_UNSET'));

bad("accept_roles $_->[0]", agent("accept_roles $_->[0]"), $_->[1])
    for (
        [ 'user robot',    qr/unknown role "robot", there are "user", "tool"/ ],
        [ 'user activity', qr/unknown role "activity"/ ],
        [ 'User',          qr/unknown role "User"/ ],
        [ 'user,tool',     qr/unknown role "user,tool"/ ],
        [ 'off',           qr/unknown role "off"/ ],
        [ 'tool',          qr/"accept_roles" directive must list "user"/ ],
        [ '',              qr/invalid number of arguments in "accept_roles"/ ],
    );

bad("max_run_time $_", agent("max_run_time $_"),
    qr/invalid time "$_" in "max_run_time"/)
    for qw(x off 5x);
bad("max_run_time $_", agent("max_run_time $_"),
    qr/"max_run_time" must be between 1ms and 7d, not "$_"/)
    for qw(0 8d);

bad("on_disconnect $_", agent("on_disconnect $_"),
    qr/invalid value "\w*", use "continue" or "cancel \[after=time\]"/)
    for 'off', 'Cancel', '""', 'stop after=1s';
bad("on_disconnect $_", agent("on_disconnect $_"),
    qr/invalid parameter "\S+", use "on_disconnect cancel after=time"/)
    for 'cancel after=', 'cancel after=x', 'cancel after=-1s', 'cancel 5s',
    'continue after=5s';
bad('on_disconnect without a value', agent('on_disconnect'),
    qr/invalid number of arguments in "on_disconnect" directive/);
good('on_disconnect', agents(map {"on_disconnect $_;"}
        'continue', 'cancel', 'cancel after=0', 'cancel after=10s'));

bad("client_tools $_", agent("client_tools $_"),
    qr/invalid value "$_" in "client_tools" directive, it must be "on" or/)
    for qw(yes 1);

bad("allow_override $_", agent("allow_override temperature $_"),
    qr/"$_" is made by the module, "allow_override" cannot name it/)
    for qw(messages stream tools);
bad('allow_override without a name', agent('allow_override'),
    qr/invalid number of arguments in "allow_override" directive/);
good('the rest of agent', agents('client_tools off;', 'memory off;',
        'max_run_time 7d;', 'allow_override temperature max_tokens model;',
        'accept_roles developer system reasoning assistant tool user user;'));

bad("memory $_", agent("memory $_"),
    qr/"memory \w+" is not supported yet, only "memory off" is/)
    for 'buffer', 'buffer max_messages=50', 'conversation', 'on';
bad('memory off x', agent('memory off x'), qr/only "memory off" is/);

# --- directives of http, server and location ----------------------------------

sub location {
    return { location => "agent_pass a;\nagent_owner off;\n$_[0]; #!" };
}

bad("agent_heartbeat $_", location("agent_heartbeat $_"),
    qr/"agent_heartbeat" must be a time between 100ms and 1h, or "off", not/)
    for qw(0 99ms 3601s 2h x -1s on), '""';

bad("agent_cors $_", location("agent_cors $_"),
    qr/"agent_cors \*" is refused.*list the origins/)
    for '*', 'http://a.example *';
bad('agent_cors without an origin', location('agent_cors'),
    qr/invalid number of arguments in "agent_cors" directive/);
bad("agent_cors $_", location("agent_cors $_"),
    qr{invalid origin "[^"]*", write it as a browser sends it: scheme://host})
    for 'a.example', 'http://a.example/', 'http://a.example/x', 'http://',
    '://a.example', 'http://*.example', 'http://u:p@a.example',
    'http://a.example?x', 'http://a.example#x', 'http://a.example,',
    'http://a.example,http://b.example', 'null', '$http_origin', 'http://$host',
    'http://a.example:', 'http://a.example:0', 'http://a.example:65536',
    'http://a.example:x', 'http://:80', 'http://[::1', 'http://é.example',
    '"http://a.example http://b.example"', 'off http://a.example',
    'http://a.example off', 'http://a.example nonsense', '""';
good('agent_cors', locations(map {"agent_owner off; agent_cors $_;"}
    qw(off http://localhost:3000 HTTPS://App.Example.COM http://[::1]:3000
    https://app.example.com:443 capacitor://localhost
    chrome-extension://abcdefghijklmnop http://my_host.example:65535),
    'http://a.example http://b.example http://a.example'));

bad("agent_intercept_errors $_", location("agent_intercept_errors $_"),
    qr/invalid value "$_" in "agent_intercept_errors" directive, it must be/)
    for qw(yes 1 404);
bad("agent_run_log $_", location("agent_run_log $_"),
    qr/"agent_run_log" must be the path of a file, without variables, or "off"/)
    for 'on', '""', 'syslog:server=127.0.0.1', '$host.log', 'run-${host}.log';
bad("agent_run_log$_", location("agent_run_log$_"),
    qr/invalid number of arguments in "agent_run_log" directive/)
    for '', ' run.log buffer=32k', ' off off';
good('agent_run_log', locations(map {"agent_owner off; agent_run_log $_;"}
        'off', 'run.log', '%%DIR%%/run.log', '/dev/null', '"a log"'));
good('the rest of location', locations(map {"agent_owner off; $_;"}
        'agent_intercept_errors on', 'agent_thread $arg_thread-$host',
        'agent_thread ""', map {"agent_heartbeat $_"} qw(off 100ms 15 1h)));
bad('agent_thread without a value', location('agent_thread'),
    qr/invalid number of arguments in "agent_thread" directive/);

my $ALL = "agent_owner off;\nagent_thread \$host;\nagent_heartbeat 5s;\n"
    . "agent_cors http://localhost;\nagent_intercept_errors on;\n"
    . "agent_run_log run.log;\n";

good('all in http',   { http   => $ALL, location => 'agent_pass a;' });
good('all in server', { server => $ALL, location => 'agent_pass a;' });
good('all in each',
    { http => $ALL, server => $ALL, location => "$ALL agent_pass a;" });
good('the variables', { http => <<'EOF' });
log_format agent '$agent_run_id $agent_thread_id $agent_name $agent_model '
    '$agent_status $agent_finish_reason $agent_input_tokens '
    '$agent_output_tokens $agent_first_token_time $agent_events $agent_resume';
EOF

# --- wrong places -------------------------------------------------------------

my $NOT_HERE = qr/directive is not allowed here/;

bad("$_->[1] in $_->[0]", { $_->[0] => "$_->[2]; #!" }, qr/"$_->[1]" $NOT_HERE/)
    for (
        [ main     => agent_owner        => 'agent_owner off' ],
        [ http     => agent_pass         => 'agent_pass a' ],
        [ server   => agent_pass         => 'agent_pass a' ],
        [ http     => provider           => 'provider echo' ],
        [ http     => system             => 'system x' ],
        [ http     => first_byte_timeout => 'first_byte_timeout 1s' ],
        [ server   => url                => 'url http://127.0.0.1' ],
        [ server   => max_inflight       => 'max_inflight 1' ],
        [ agent    => url                => "model m;\nurl http://127.0.0.1" ],
        [ agent    => provider           => "model m;\nprovider echo" ],
        [ agent    => key                => "model m;\nkey file:key" ],
        [ agent    => agent_pass         => "model m;\nagent_pass a" ],
        [ agent    => agent_owner        => "model m;\nagent_owner off" ],
        [ agent    => listen             => "model m;\nlisten 80" ],
        [ model    => agent_pass         => "provider echo;\nagent_pass a" ],
        [ model    => system             => "provider echo;\nsystem x" ],
        [ model    => memory             => "provider echo;\nmemory off" ],
        [ model    => resolver           => "provider echo;\nresolver ::1" ],
        [ location => model              => 'model m' ],
        [ location => key                => 'key file:key' ],
    );
bad("block $_->[1] in $_->[0]", { $_->[0] => "$_->[1] x { #!\n}" },
    qr/"$_->[1]" $NOT_HERE/)
    for (
        [ main     => 'agent_model' ],
        [ main     => 'agent' ],
        [ server   => 'agent_model' ],
        [ server   => 'agent' ],
        [ location => 'agent_model' ],
        [ location => 'agent' ],
        [ model    => 'agent' ],
        [ model    => 'agent_model' ],
        [ agent    => 'agent_model' ],
        [ agent    => 'server' ],
    );
bad('agent_pass in if of a server',
    { server => "if (\$host) {\nagent_pass a; #!\n}" },
    qr/"agent_pass" $NOT_HERE/);

# What does not exist yet must not be accepted in silence.
bad("$_->[1] in $_->[0]", { $_->[0] => "$_->[2] #!" },
    qr/unknown directive "$_->[1]"/)
    for (
        [ http     => agent_memory_zone => 'agent_memory_zone z:1m;' ],
        [ http     => agent_redis       => 'agent_redis r { }' ],
        [ server   => agent_csrf        => 'agent_csrf on;' ],
        [ location => agent_wire        => 'agent_wire anvia;' ],
        [ location => agent_audit_log   => 'agent_audit_log a.log;' ],
        [ location => agent_chat        => 'agent_chat;' ],
        [ location => agent_pas         => 'agent_pas a;' ],
        [ model    => fallback          => 'fallback other;' ],
        [ model    => retry             => 'retry 1;' ],
        [ model    => proxy             => 'proxy http://127.0.0.1;' ],
        [ model    => pass_header       => 'pass_header X;' ],
        [ model    => api_key           => 'api_key file:key;' ],
        [ agent    => tool              => 'tool name { }' ],
        [ agent    => delegate          => 'delegate b "x";' ],
        [ agent    => memory_zone       => 'memory_zone z;' ],
        [ agent    => turns             => 'turns queue;' ],
        [ agent    => max_steps         => 'max_steps 3;' ],
        [ agent    => client_history    => 'client_history server;' ],
        [ agent    => input             => 'input { }' ],
    );

# --- agent_replay_zone, replay_zone, agent_resume -----------------------------

bad("agent_replay_zone $_", { http => "agent_replay_zone $_; #!" },
    qr/zone "\Q@{[ s{ .*}{}r ]}\E" has no size, use for example "[^"]*:64m"/)
    for 'runs', 'runs retain=1m', 'a.b';
bad("agent_replay_zone $_", { http => "agent_replay_zone $_; #!" },
    qr/invalid size of zone "\Q$_\E", use at least 256k, for example "z:64m"/)
    for 'z:', 'z:0', 'z:-1', 'z:255k', 'z:1000', 'z:m', 'z:64mb', 'z:1t', 'z:1m:',
    'z:1m:2m', 'z:99999999999999999999', 'z:99999999999999999g', 'z:1.5m';
bad("agent_replay_zone $_->[0]", { http => "agent_replay_zone $_->[0]; #!" },
    $_->[1])
    for [ ':1m', qr/name/ ], [ '"a b:1m"', qr/name/ ], [ '"a\"b:1m"', qr/name/ ];
bad("agent_replay_zone z:1m $_", { http => "agent_replay_zone z:1m $_; #!" },
    qr/invalid parameter "\Q@{[ s{.* }{}r ]}\E", there are "retain=time" and/)
    for 'retain', 'max=1m', 'redis=r', 'x', 'Retain=1m', 'max_runs=1m',
    'retain=1m retain=1m', 'max_run=1m max_run=1m';
bad("agent_replay_zone z:1m $_", { http => "agent_replay_zone z:1m $_; #!" },
    qr/"\Q$_\E" must be a time between 1ms and 30d/)
    for 'retain=', 'retain=0', 'retain=0s', 'retain=-1', 'retain=31d',
    'retain=1x', 'retain=x', 'retain=1y', 'retain=99999999999999999999';
bad("agent_replay_zone z:1m $_", { http => "agent_replay_zone z:1m $_; #!" },
    qr/"\Q$_\E" must be a size of at least 32k/)
    for 'max_run=', 'max_run=0', 'max_run=31k', 'max_run=-1', 'max_run=x',
    'max_run=1h', 'max_run=99999999999999999999';
bad("agent_replay_zone$_", { http => "agent_replay_zone$_; #!" },
    qr/invalid number of arguments in "agent_replay_zone" directive/)
    for '', ' z:1m retain=1m max_run=1m x';
bad('duplicate agent_replay_zone',
    { http => "agent_replay_zone z:1m;\nagent_replay_zone z:$_; #!" },
    qr/duplicate zone "z"|"z" conflicts/) for '1m', '2m';
bad('a zone of another module',
    { http => "limit_req_zone \$host zone=z:1m rate=1r/s;\n"
        . 'agent_replay_zone z:1m; #!' }, qr/"z" is already/);
bad("the registry's name, $_",
    { http => "agent_replay_zone ngx_agent_registry:$_; #!" },
    qr/"ngx_agent_registry" is the module's own zone/) for '1m', '20m';
bad('agent_replay_zone in server', { server => 'agent_replay_zone z:1m; #!' },
    qr/"agent_replay_zone" directive is not allowed here/);
good('agent_replay_zone', { http => join "\n", map {"agent_replay_zone $_;"}
    'a:256k', 'b:1m retain=1ms', 'c:1024k max_run=32k', 'd:1m retain=30d',
    'e:1M max_run=4m retain=10m', 'f-1_x:300000 max_run=1024m' });
good('agent_replay_zone and no agent_pass',
    { http => 'agent_replay_zone z:1m;', location => 'return 200;' });

bad("replay_zone $_", { agent => "model m;\nreplay_zone $_; #!" },
    qr/there is no "agent_replay_zone \Q$_\E:size;"/) for 'none', 'm', 'a', '$x';
bad("replay_zone $_ for zone", { http => 'agent_replay_zone zone:1m;',
    agent => "model m;\nreplay_zone $_; #!" },
    qr/there is no "agent_replay_zone $_:size;"/) for 'zon', 'zones', 'Zone';
bad('empty replay_zone', { agent => "model m;\nreplay_zone \"\"; #!" },
    qr/"replay_zone" directive needs the name of an "agent_replay_zone"/);
bad('duplicate replay_zone', { http => 'agent_replay_zone z:1m;',
    agent => "model m;\nreplay_zone z;\nreplay_zone z; #!" },
    qr/"replay_zone" directive is duplicate/);
bad("replay_zone$_", { agent => "model m;\nreplay_zone$_; #!" },
    qr/invalid number of arguments in "replay_zone" directive/)
    for '', ' a b';
good('replay_zone', { http => "agent_replay_zone y:1m;\nagent_replay_zone z:1m;",
    agent => "model m;\nreplay_zone z;" });
good('replay_zone before its zone', { agents =>
    "agent a {\nmodel m;\nreplay_zone z;\n}\nagent_replay_zone z:1m;" });
good('two zones, none named',
    { http => "agent_replay_zone y:1m;\nagent_replay_zone z:1m;" });

my $RESUME = "agent_owner off;\nagent_resume a;";

good('agent_resume', { locations => <<'EOF' });
location / { agent_owner off; agent_pass a; }
location /streams/ { agent_owner off; agent_resume a; }
location ^~ /s { agent_owner $remote_addr; agent_resume a;
    limit_except GET { deny all; } if ($arg_x) { agent_owner $host; } }
EOF
good('agent_resume alone', { location => $RESUME });
bad('agent_resume of an unknown agent',
    { location => "agent_owner off;\nagent_resume none; #!" },
    qr/unknown agent "none" in "agent_resume"/);
bad('agent_resume without agent_owner', { location => 'agent_resume a; #!' },
    qr/"agent_resume" needs "agent_owner"/);
bad('empty agent_resume',
    { location => "agent_owner off;\nagent_resume \"\"; #!" },
    qr/"agent_resume" directive needs the name of an agent/);
bad("agent_resume$_", { location => "agent_owner off;\nagent_resume$_; #!" },
    qr/invalid number of arguments in "agent_resume" directive/)
    for '', ' a b';
bad("agent_resume in $_", { locations =>
    "location $_ {\nagent_owner off;\nagent_resume a; #!\n}" },
    qr/"agent_resume" needs a prefix location/)
    for '~ ^/s', '~* /s/(.*)', '@s', '= /s';
bad('agent_resume in an if of a regex location', { locations =>
    "location ~ ^/s {\nagent_owner off;\nif (\$arg_x) {\n"
        . "agent_resume a; #!\n}\n}" },
    qr/"agent_resume" needs a prefix location/);
bad("$_->[1] beside $_->[0]", { location =>
    "agent_owner off;\n$_->[0] a;\n$_->[1] a; #!" },
    qr/cannot stand beside the other of "agent_pass" and "agent_resume"/)
    for [ 'agent_pass', 'agent_resume' ], [ 'agent_resume', 'agent_pass' ];
bad('duplicate agent_resume', { location =>
    "agent_owner off;\nagent_resume a;\nagent_resume a; #!" },
    qr/"agent_resume" directive is duplicate/);
bad('another handler behind agent_resume', { location =>
    "agent_owner off;\nagent_resume a; #!\nproxy_pass http://127.0.0.1:9;" },
    qr/a directive behind "agent_resume" takes its location over/);
bad('another handler before agent_resume', { location =>
    "agent_owner off;\nproxy_pass http://127.0.0.1:9;\nagent_resume a; #!" },
    qr/a directive before "agent_resume" answers in this location already/);
bad("agent_resume in $_", { $_ => 'agent_resume a; #!' },
    qr/"agent_resume" directive is not allowed here/) for qw(http server);
warned('a forged owner of agent_resume',
    { location => "agent_resume a;\nagent_owner \$http_x; #!" }, $FORGED);

# --- syntax and included files ------------------------------------------------

bad('a block that is not closed',
    { models => "agent_model m {\nprovider echo;\n",
        agents => "agent a { #!\nmodel m;\n}" },
    qr/"agent" $NOT_HERE/);
bad('a line that is not closed',
    { models => "agent_model m {\nprovider echo\n} #!" }, qr/unexpected "\}"/);
good('included blocks', {
    models => 'include in-http.conf;',
    files  => {
        'in-http.conf'  => "agent_model m {\ninclude in-model.conf;\n}\n",
        'in-model.conf' => "provider openai;\nmodel x;\n$LOCAL\n"
            . "include in-[k]*.conf;\n",
        'in-key.conf' => "key file:key;\n",
    },
});
bad('a mistake in an included file', {
    models => 'include in-http.conf;',
    files  => {
        'in-http.conf'  => "agent_model m {\n\ninclude in-model.conf;\n}\n",
        'in-model.conf' => "provider echo;\n\n\nconnect_timeout x; #!\n",
    },
}, qr/invalid time "x"/);
bad('a mistake in an included file that is found later', {
    models => 'include in-http.conf;',
    files  => {
        'in-http.conf'  => "agent_model m {\ninclude in-model.conf;\n}\n",
        'in-model.conf' => "provider openai;\nmodel x;\n\n"
            . "url http://127.0.0.1:x; #!\n",
    },
}, qr/invalid port/);
bad('an unknown model in an included file', {
    agents => 'include in-agent.conf;',
    files  => { 'in-agent.conf' => "agent a {\nmodel none; #!\n}\n" },
}, qr/unknown model "none"/);
bad('an unknown agent in an included file', {
    location => "agent_owner off;\ninclude in-location.conf;",
    files    => { 'in-location.conf' => "\n\nagent_pass none; #!\n" },
}, qr/unknown agent "none"/);
bad('a block without provider in an included file', {
    models => 'include in-http.conf;',
    files  => { 'in-http.conf' => "\nagent_model m { #!\nmodel x;\n}\n" },
}, qr/has no "provider"/);
warned('a forged owner in an included file', {
    location => "agent_pass a;\ninclude in-owner.conf;",
    files    => { 'in-owner.conf' => "\nagent_owner \$http_x; #!\n" },
}, $FORGED);
warned('"env:" in an included file', {
    model => "provider openai;\nmodel x;\n$LOCAL\ninclude in-env.conf;",
    files => { 'in-env.conf' => "\nkey env:AGENT_T_KEY; #!\n" },
}, $LOST);

# --- agent_status -------------------------------------------------------------

bad('an unknown format of agent_status',
    { location => 'agent_status xml; #!' }, qr/unknown format "xml"/);
bad('agent_status twice',
    { location => "agent_status;\nagent_status; #!" },
    qr/"agent_status" directive is duplicate/);
bad('agent_status behind agent_pass',
    { location => "agent_pass a;\nagent_owner off;\nagent_status; #!" },
    qr/answers in this location already/);
good('agent_status', { location => 'agent_status prometheus;' });

$t->done;
