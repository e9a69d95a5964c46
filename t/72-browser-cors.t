#!/usr/bin/perl

# A page of another origin in a real browser (headless Chromium): what agent_cors
# lets it do with credentials, and what it does not.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::Bin/lib";

use AgentBrowser;
use AgentTest;
use Mojo::JSON qw(decode_json);
use Mojo::Util qw(url_unescape);
use Test::More;

my $t = AgentTest->new;
my ($http) = agent_blocks(chat => 'words,n=20');
my ($page, $api) = map { 'http://127.0.0.1:' . $t->port($_) } 0, 1;

$t->conf(<<"CONF");
%%GLOBALS%%
worker_processes 1;
events { worker_connections 256; }
http {
    %%GLOBALS_HTTP%%
    log_format args '\$uri \$args';
    access_log %%DIR%%/access.log args;
    agent_replay_zone runs:4m;
$http
    map \$cookie_user \$checked { sam sam; }
    server {
        listen 127.0.0.1:%%PORT%%;
        default_type text/html;
        location = /result { return 204; }
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        location /open { agent_pass chat; agent_owner \$checked;
            agent_cors $page; }
        location /closed { agent_pass chat; agent_owner off; }
        location /other { agent_pass chat; agent_owner off;
            agent_cors https://example.com; }
    }
}
CONF
$t->start;

$t->write_file('page.html', <<"HTML");
<!doctype html><meta charset="utf-8"><title>cross</title>
<link rel="icon" href="data:,">
<script>
const seen = {};
const post = (path, runId, credentials) => fetch('$api' + path, {
    method: 'POST', credentials,
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ runId, messages: [
        { id: 'u', role: 'user', content: 'Hello' } ] }) });
const types = (text) => [...text.matchAll(/"type":"([A-Z_]+)"/g)]
    .map((m) => m[1]);
const refused = (p) => p.then((r) => r.status, (e) => e.name);

async function all() {
    document.cookie = 'user=sam';
    let r = await post('/open', 'r1', 'include');
    seen.status = r.status;
    seen.header = r.headers.get('x-agent-run-id');
    seen.types = types(await r.text());

    r = await post('/open', 'r2', 'omit');
    seen.nobody = r.status + ' ' + (await r.json()).error.code;

    r = await fetch('$api/open/runs/r1', { credentials: 'include' });
    seen.info = (await r.json()).status;

    const ids = await new Promise((done) => {
        const ids = [];
        const s = new EventSource('$api/open/runs/r1/stream',
            { withCredentials: true });
        s.onmessage = (m) => {
            ids.push(m.lastEventId);
            if (/RUN_FINISHED/.test(m.data)) { s.close(); done(ids); }
        };
        s.onerror = () => { s.close(); done(ids); };
    });
    seen.ids = ids.length;
    r = await fetch('$api/open/runs/r1/stream', { credentials: 'include',
        headers: { 'Last-Event-ID': ids[ids.length - 2] } });
    seen.rest = types(await r.text());
    seen.resume = r.headers.get('x-agent-resume');
    r = await fetch('$api/open/runs/r1', { method: 'DELETE',
        credentials: 'include' });
    seen.stop = r.status;

    seen.closed = await refused(post('/closed', 'r3', 'include'));
    seen.other = await refused(post('/other', 'r4', 'include'));
    seen.plain = await refused(fetch('$api/closed', { method: 'POST',
        mode: 'no-cors', body: '{}' }));
}

all().catch((e) => seen.fault = String(e)).then(() =>
    fetch('/result?' + encodeURIComponent(JSON.stringify(seen))));
</script>
HTML

my $browser = AgentBrowser->new($t)->open("$page/page.html");
my $result;
ok($t->wait_for(sub { ($result) = $t->access_log =~ m{^/result (\S+)$}m }, 60),
    'the page is done') or diag substr $t->_slurp('browser.log'), -2000;
my $seen = decode_json(url_unescape($result // '%7B%7D'));

is($seen->{fault}, undef, 'nothing went wrong in the page');
is($seen->{status}, 200, 'a listed origin, with its cookie: a run');
is($seen->{header}, 'r1', '... whose id it can read');
is_deeply([ @{ $seen->{types} // [] }[ 0, 1, -1 ] ],
    [qw(RUN_STARTED TEXT_MESSAGE_START RUN_FINISHED)], '... and its events');
is($seen->{nobody}, '401 unauthorized', 'without the cookie it can read why');
is($seen->{info}, 'finished', 'the status');
is($seen->{ids}, scalar @{ $seen->{types} // [] },
    'an EventSource with credentials');
is_deeply($seen->{rest}, ['RUN_FINISHED'], 'Last-Event-ID is let through');
is($seen->{resume}, 'complete', '... and X-Agent-Resume can be read');
is($seen->{stop}, 204, 'DELETE');
is($seen->{closed}, 'TypeError', 'without agent_cors: nothing');
is($seen->{other}, 'TypeError', 'another origin listed: nothing');
is($t->upstream->requests, 1, 'the model was called once');

undef $browser;             # its spare connections would hold nginx up
$t->done;
