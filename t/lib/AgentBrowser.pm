package AgentBrowser;

# Headless Chromium: AgentBrowser->new($t)->open($url) lets it visit a page that
# reports by itself; nothing but 127.0.0.1 can be reached.  What it says is in
# browser.log of the test's directory.  It ends with the object.

use strict;
use warnings;

use POSIX ();

sub new {
    my ($class, $t) = @_;
    my ($browser) = grep {-x} map {"$_/chromium"} split /:/, $ENV{PATH};
    $browser or die "no chromium in PATH: run make test-deps\n";
    return bless { t => $t, browser => $browser, owner => $$ }, $class;
}

sub open {
    my ($self, $url) = @_;
    my $dir = $self->{t}->dir;
    my $pid = fork() // die "fork: $!";

    if ($pid == 0) {
        POSIX::setsid();
        $SIG{$_} = 'DEFAULT' for qw(TERM INT ALRM);
        open STDIN,  '<',  '/dev/null';
        open STDOUT, '>',  "$dir/browser.log";
        open STDERR, '>&', \*STDOUT;
        @ENV{qw(HOME XDG_CONFIG_HOME XDG_CACHE_HOME)} = ($dir) x 3;
        delete @ENV{ grep {/_proxy$/i} keys %ENV };
        exec $self->{browser}, qw(--headless --no-sandbox --disable-gpu
            --no-first-run --disable-dev-shm-usage
            --disable-background-networking --disable-component-update
            --disable-sync --disable-extensions --no-default-browser-check
            --remote-debugging-port=0),
            '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1',
            "--user-data-dir=$dir/browser", $url
            or POSIX::_exit(1);
    }

    $self->{pid} = $pid;
    return $self;
}

sub DESTROY {
    my ($self) = @_;
    return if !$self->{pid} || $self->{owner} != $$;
    local ($?, $!);
    kill 'KILL', -$self->{pid}, $self->{pid};
    waitpid $self->{pid}, 0;
}

1;
