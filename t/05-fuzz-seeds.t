#!/usr/bin/perl

# Every seed of the fuzz targets (t/fuzz), once, with gcc's sanitizers and
# without libFuzzer: what fuzzing has found stays found.

use strict;
use warnings;

use File::Basename qw(basename);
use FindBin;
use Test::More;

my $root  = "$FindBin::Bin/..";
my $build = "$root/build/fuzz-seeds";

# What a command says, and whether it went well.
sub run {
    my $pid = open(my $out, '-|') // die "fork: $!";
    if (!$pid) {
        open STDERR, '>&', \*STDOUT or die "stderr: $!";
        exec @_ or die "$_[0]: $!";
    }
    my $said = join '', <$out>;
    close $out;
    return ($? == 0, $said);
}

my ($ok, $said) = run($ENV{MAKE} // 'make', '-s', '-C', $root, 'fuzz-seeds');
ok($ok, 'build') or BAIL_OUT($said);

my @targets = map { basename($_, '.c') } sort glob "$root/t/fuzz/fuzz_*.c";
ok(@targets > 0, 'there are targets');

for my $target (@targets) {
    my @seeds = sort glob "$root/t/fuzz/corpus/$target/*";
    ok(@seeds > 0, "$target has seeds") or next;
    ($ok, $said) = run("$build/$target", @seeds);
    ok($ok, "$target: " . @seeds . ' seeds') or diag($said);
}

done_testing();
