#!/bin/bash
#
# Rules of the code that no other tool checks.  Prints file:line and the rule
# for every hit; exits 1 when there is one.

set -u

cd "$(dirname "$0")/.."
shopt -s nullglob

core=(src/*.[ch])
glue=(ngx_agent_module/*.[ch])

status=0

# src/ is plain C11: it can be built and tested without nginx.
foreign='^ *# *include *[<"](ngx_|nginx|curl|hiredis)'

if [ ${#core[@]} -gt 0 ] && grep -nHE "$foreign" "${core[@]}" |
    sed 's/$/  (src is to know nothing of nginx, curl or hiredis)/' | grep .
then
    status=1
fi

# nginx's own style, for which there is no formatter.
if [ ${#glue[@]} -gt 0 ]; then
    perl -CSD - "${glue[@]}" <<'PERL' || status=1
use strict;
use warnings;

my $hits = 0;

sub hit {
    my ($file, $line, $what) = @_;
    print "$file:$line: $what\n";
    $hits++;
}

# Same length and lines, with comments, strings and characters blanked; the
# second value has // comments left in.
sub blank {
    my ($text) = @_;

    $text =~ s{
        ( /\*.*?\*/ | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    }{ my $s = $1; $s =~ s/[^\n]/ /g; $s }gsxe;
    my $slashes = $text;
    $text =~ s{(//[^\n]*)}{' ' x length $1}ge;

    return ($text, $slashes);
}

for my $file (@ARGV) {
    open my $fh, '<', $file or die "$file: $!\n";
    my $text = do { local $/; <$fh> } // '';
    my ($code, $slashes) = blank($text);
    my ($n, @slashes) = (0, split /\n/, $slashes);

    for my $line (split /\n/, $text) {
        hit($file, $n + 1, 'a tab') if $line =~ /\t/;
        hit($file, $n + 1, 'over 80 columns') if length $line > 80;
        hit($file, $n + 1, 'trailing space') if $line =~ /\s$/;
        hit($file, $n + 1, 'a // comment') if ($slashes[$n] // '') =~ m{//};
        $n++;
    }

    # Several nginx macros are two statements, so braces are not decoration.
    $code =~ s/\\\n/ \n/g;
    my $parens = qr/(?<p>\((?:[^()]++|(?&p))*\))/;

    while ($code =~ /(^[ \t]*#[^\n]*)|\bif\b\s*(?:$parens)?|\belse\b/gm) {
        next if defined $1;
        my ($start, $end) = ($-[0], $+[0]);
        my $word = substr $code, $start, 2;
        my $next = substr($code, $end) =~ /\A\s*(\{|if\b)?/ ? $1 // '' : '';
        next if $next eq '{' || $word eq 'el' && $next eq 'if';
        my $line = 1 + (substr($code, 0, $start) =~ tr/\n//);
        hit($file, $line, ($word eq 'el' ? 'else' : 'if') . ' without braces');
    }
}

exit($hits ? 1 : 0);
PERL
fi

exit $status
