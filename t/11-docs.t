#!/usr/bin/perl

# The pages and examples say what the module is: every example passes
# "nginx -t", every directive, variable and error code has its place in docs/
# and nothing else is named there, and no link leads nowhere.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentTest;
use File::Basename qw(basename dirname);
use Test::More;

my $root = "$FindBin::Bin/..";
my $t = AgentTest->new;
my $dir = $t->dir;

sub slurp {
    my ($file) = @_;
    open my $fh, '<', $file or die "$file: $!";
    local $/;
    return scalar <$fh>;
}

# nginx -t finds nothing to say about the text.
sub passes {
    my ($name, $text) = @_;

    # the example stays a plain nginx.conf; what is ours comes around it
    $text =~ s/^http\s*\{\n\K/%%GLOBALS_HTTP%%\n/m;
    my ($code, $out) = $t->test_conf("%%GLOBALS%%\n$text");

    # but for what comes from the machine: no root, few files
    my @says = grep {
        !/the "user" directive makes sense only|exceed open file resource limit/
    } $out =~ /^nginx: (\[.*)/mg;

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    ok($code == 0 && !@says, $name) or diag("exit code $code\n$out");
}

# --- examples -----------------------------------------------------------------

my @examples = glob "$root/examples/*.conf";
ok(@examples >= 4, 'there are examples');

# what stands beside them: users, prompts
for my $file (grep { -f && !/\.(?:conf|sh)$/ } glob "$root/examples/*") {
    $t->write_file(basename($file), slurp($file), 0600);
}

for my $file (@examples) {
    my $text = slurp($file);
    local @ENV{ $text =~ /\benv:(\w+)/g } = ('dummy') x 99;

    # keys of the machine it is meant for
    $text =~ s{\bfile:(/\S+?)(?=;)}{
        $t->write_file('dummy', "dummy\n", 0600);
        "file:$dir/dummy"
    }ge;
    passes('examples/' . basename($file), $text);
}

# --- directives ---------------------------------------------------------------

my %WHERE = (
    NGX_HTTP_MAIN_CONF   => 'http',
    NGX_HTTP_SRV_CONF    => 'server',
    NGX_HTTP_LOC_CONF    => 'location',
    NGX_HTTP_LIF_CONF    => 'if in location',
    NGX_HTTP_LMT_CONF    => 'limit_except',
    NGX_AGENT_MODEL_CONF => 'agent_model',
    NGX_AGENT_AGENT_CONF => 'agent',
);

# The command tables: "name in contexts".
my @commands;

for my $file (sort glob "$root/ngx_agent_module/*.c") {
    my $text = slurp($file);

    while ($text =~ /^static ngx_command_t\s+\w+\[\] = \{\n(.*?)^\};/msg) {
        my $table = $1;

        while ($table =~ /\{\s*ngx_string\("(\w+)"\),\s*([\w|\s]+),/g) {
            my ($name, @flags) = ($1, split /\s*\|\s*/, $2);
            push @commands,
                "$name in " . join ', ', grep { defined } @WHERE{@flags};
        }
    }
}

ok(@commands > 25, 'the command tables are found');

# The cards.  Each has its section, its three lines and its examples.
my $page = slurp("$root/docs/directives.md");
my ($contents, @sections) = split /^## /m, $page;
my (@cards, %card);

for my $section (@sections) {
    my ($title, @parts) = split /^### /m, $section;
    next if $title !~ /^In (.+)/;
    my $place = $1;
    my ($listed) = $contents =~ /^- \[\Q$place\E\]\([^)]*\):(.*?)(?=^-|\z)/ms;

    for my $part (@parts) {
        my ($heading, $body) = split /\n\n/, $part, 2;
        my ($syntax, $default, $context);
        $body =~ s/^\ {4}Syntax:\ +(\S.*)\n\ {4}Default:\ +(\S.*)\n
            \ {4}Context:\ +(\S.*)\n+//x
            and ($syntax, $default, $context) = ($1, $2, $3);
        my @blocks = map { s/^ {4}//mgr }
            $body =~ /((?:^ {4}.*\n(?:\n(?= {4}))?)+)/mg;

        ok(defined $context, "$heading: Syntax, Default and Context")
            or next;

        for my $name (split /, /, $heading) {
            like($syntax, qr/(?:^|; )\Q$name\E [^;]*(?:;|\{ \.\.\. \}$)/,
                "$name: Syntax");
            like($default, qr/^(?:- ?|the |\Q$name\E \S.*;$)/,
                "$name: Default");
            like($listed // '', qr/`\Q$name\E(?: \{ \})?`/,
                "$name: in the list of $place");
            push @cards, "$name in $context";
            push @{ $card{$place} }, [ $name, @blocks ];
        }
    }
}

is_deeply([ sort @cards ], [ sort @commands ],
    'a card for each directive and no other');

# --- examples on the cards ----------------------------------------------------

# The lines of a block of the configuration, but for those of a directive that
# the example gives itself.
sub lines_for {
    my ($example, @lines) = @_;
    return join "\n", (grep {
        my ($name) = /^(\w+(?: \w+(?= \{))?)/;
        $example !~ /^\s*\Q$name\E\b/m;
    } @lines), $example;
}

$t->write_file('secret', "x\n", 0600);

for my $place (sort keys %card) {
    for my $c (@{ $card{$place} }) {
        my ($name, @blocks) = @$c;

        # lines of one directive may be alternatives
        @blocks = map { /\A(?:\s*\Q$name\E .*\n)+\z/ ? split /(?<=\n)/ : $_ }
            @blocks;

        for my $block (@blocks) {
            my ($http, $model, $agent, $server, $location) = ('') x 5;
            my $text = $block =~ s{\b(?:file:\S+?|env:\w+)(?=;)}{file:secret}gr;
            my @location = ('agent_pass assistant;', 'agent_owner off;');

            if ($place eq 'http') {
                $http = $text;

            } elsif ($place eq 'agent_model') {
                $model = lines_for($text, 'provider openai;', 'model x;',
                    'url http://127.0.0.1/v1;');

            } elsif ($place eq 'agent') {
                $agent = lines_for($text, 'model gpt;');

            } elsif ($text =~ /^location /) {
                $server = $text;

            } else {
                $location = lines_for($text, @location);
            }

            $model ||= 'provider echo;';
            $agent ||= 'model gpt;';

            # of $remote_user somebody else has checked the password
            passes("$name: its example", <<"EOF");
events { }
http {
resolver 127.0.0.1;
@{[ ($http // '') =~ /agent_replay_zone/ ? '' : 'agent_replay_zone runs:1m;' ]}
@{[ lines_for($http, "agent_model gpt { $model\n}",
    "agent assistant { $agent\n}") ]}
server {
listen 127.0.0.1:%%PORT%%;
auth_basic x;
auth_basic_user_file users;
set \$user x;
$server
location /other { $location
}
}
}
EOF
        }
    }
}

# --- variables ----------------------------------------------------------------

my ($variables) = grep {/^Variables$/m} @sections;
my @documented = map { /\$(\w+)/g } $variables =~ /^\| (`\$.*?) \|/mg;
my @made = slurp("$root/ngx_agent_module/ngx_agent_variables.c")
    =~ /ngx_agent_variable\("(\w+)"/g;
is_deeply([ sort @documented ], [ sort @made ],
    'a row for each variable and no other');

# --- error codes --------------------------------------------------------------

# What belongs to parts that do not exist yet, though code for it is there.
my %later;

my $codes = slurp("$root/src/agent_code.c");
my $source = join '', map { slurp($_) }
    grep { !/agent_code\.c$/ } glob "$root/{src,ngx_agent_module}/*.c";
my (%status, %emitted);

while ($codes =~ /\[(AGENT_CODE_\w+)\] = \{"(\w+)", (\d+)\}/g) {
    my ($constant, $code) = ($1, $2);
    $status{$code} = $3;
    $emitted{$code} = 1 if $code ne 'ok' && $source =~ /\b$constant\b/;
}

ok(keys %emitted > 20, 'the codes are found');

my %row = reverse
    slurp("$root/docs/errors.md") =~ /^\| (\d+|stream|-) \| `(\w+)` \| \S/mg;
my @missing = grep { !exists $row{$_} && !$later{$_} } sort keys %emitted;
my @unknown = grep { !exists $status{$_} } sort keys %row;
my @wrong = grep {
    $row{$_} =~ m{^\d} && exists $status{$_} && $row{$_} != $status{$_}
} sort keys %row;

is("@missing", '', 'docs/errors.md has each code that can be seen');
is("@unknown", '', 'docs/errors.md has no other code');
is("@wrong", '', 'docs/errors.md has the right status of each');

# --- links --------------------------------------------------------------------

# The anchors that GitHub makes of a page's headings.
sub anchors {
    my ($text) = @_;
    return map { (lc s/[^\w\- ]//gr =~ tr/ /-/r) => 1 } $text =~ /^#+ (.*)/mg;
}

for my $file (glob "$root/README.md $root/docs/*.md") {
    my $text = slurp($file);
    my @dead;

    while ($text =~ /\]\(([^)\s]+)\)/g) {
        my $link = $1;
        next if $link =~ m{^(?:\w+:)};
        my ($path, $anchor) = $link =~ /^([^#]*)#?(.*)/;
        my $target = $path eq '' ? $file : dirname($file) . "/$path";
        my $dead = !-e $target;

        if (!$dead && $anchor ne '' && $target =~ /\.md$/) {
            my %anchor = anchors(slurp($target));
            $dead = !$anchor{$anchor};
        }

        push @dead, $link if $dead;
    }

    is("@dead", '', basename($file) . ': its links lead somewhere');
}

$t->done;
