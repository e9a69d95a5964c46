package AgentHook;

# Workers that die inside a zone: the other side of t/hook/hook.c, which is in
# build/hook and in the sanitizer build only.
#
#     my $hook = AgentHook->new;                # before nginx starts
#     my $t = AgentTest->new($hook->nginx);
#     $hook->arm($pid, 17);                     # its 18th store is not made
#     my $pid = $hook->died;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Temp qw(tempfile);

my $ROOT = abs_path(dirname(__FILE__) . '/../..');
my @FIELDS = qw(pid pass armed seen died mute ring);
my @ZONE = qw(nunits nfree nobjects evictions recoveries resets);
my $ZONES = 8;

sub new {
    my ($class) = @_;
    my ($fh, $file) = tempfile('agent-hook-XXXXXX', TMPDIR => 1, UNLINK => 1);

    binmode $fh;
    syswrite $fh, "\0" x (8 * (@FIELDS + $ZONES * @ZONE));
    chmod 0666, $file;
    $ENV{AGENT_HOOK} = $file;

    return bless { fh => $fh, file => $file }, $class;
}

# What AgentTest->new needs to run the build that has it.
sub nginx {
    return () if $ENV{AGENT_STATIC};
    return (module => "$ROOT/build/hook/ngx_http_agent_module.so");
}

sub _put {
    my ($self, $name, $value) = @_;
    my ($i) = grep { $FIELDS[$_] eq $name } 0 .. $#FIELDS;

    sysseek $self->{fh}, 8 * $i, 0;
    syswrite $self->{fh}, pack 'Q', $value;
}

sub _get {
    my ($self) = @_;
    my %v;

    sysseek $self->{fh}, 0, 0;
    sysread $self->{fh}, my $bytes, 8 * (@FIELDS + $ZONES * @ZONE);
    (@v{@FIELDS}, my @zones) = unpack 'Q*', $bytes;

    while (my @z = splice @zones, 0, scalar @ZONE) {
        my %z;
        @z{@ZONE} = @z;
        push @{ $v{zones} }, \%z if $z{nunits};
    }

    return \%v;
}

# After "pass" stores of this process (0: of all) one dies.
sub arm {
    my ($self, $pid, $pass) = @_;

    $self->_put(armed => 0);
    $self->_put($_->[0] => $_->[1])
        for [ seen => 0 ], [ died => 0 ], [ pid => $pid ], [ pass => $pass ];
    $self->_put(armed => 1);
}

sub disarm { $_[0]->_put($_ => 0) for qw(armed ring) }
sub seen   { return $_[0]->_get->{seen} }
sub died   { return $_[0]->_get->{died} }

# So many bells are not heard.
sub mute   { $_[0]->_put(mute => $_[1]) }
sub muted  { return $_[0]->_get->{mute} }

# This process dies when it has said that it rings and before it does.
sub ring   { $_[0]->_put(died => 0); $_[0]->_put(ring => $_[1]) }

# The numbers of the zone that is not the registry, which is the largest.
sub zone {
    my ($self) = @_;
    my @z = sort { $a->{nunits} <=> $b->{nunits} } @{ $self->_get->{zones} };
    return $z[0];
}

# A mapping of before is looked at by nobody else.
sub forget {
    my ($self) = @_;
    sysseek $self->{fh}, 8 * @FIELDS, 0;
    syswrite $self->{fh}, "\0" x (8 * $ZONES * @ZONE);
}

1;
