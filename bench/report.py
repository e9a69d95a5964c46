#!/usr/bin/env python3
"""Tables from results/RIG.WORKLOAD.json: medians over rounds, per upstream token, with ratios to an anchor."""
import json, glob, os, sys, statistics as st
D = sys.argv[1] if len(sys.argv) > 1 else sys.exit('usage: report.py results/DATE')
ANCHOR = os.environ.get('ANCHOR', 'nginx-proxy-1w-ka')
TOK = {'W0': 3, 'W1': 500, 'W1b': 500, 'W2l': 50, 'W2a': 50, 'W2b': 50, 'W2c': 50, 'W3': 10, 'W6': 3}
ORDER = ['direct', 'nginx-proxy-1w', 'nginx-proxy-1w-ka', 'floor', 'agent']
R = {}
for f in glob.glob(D + '/*.W*.json'):
    rig, w = os.path.basename(f)[:-5].rsplit('.', 1)
    R.setdefault(w, {})[rig] = [json.loads(l) for l in open(f) if l.strip()]
key = lambda r: (ORDER.index(r) if r in ORDER else -1, r)
def med(rows, fn): return st.median(fn(d) for d in rows)
def rng(rows, fn): v = [fn(d) for d in rows]; return '' if len(v) < 2 else ' (%s-%s)' % (sig(min(v)), sig(max(v)))
def sig(x): return '%.0f' % x if abs(x) >= 100 else '%.1f' % x if abs(x) >= 10 else '%.2f' % x
def table(head, rows):
    print('| ' + ' | '.join(head) + ' |\n|' + ' --- |' * len(head))
    for r in rows: print('| ' + ' | '.join(r) + ' |')
    print()
# What design and README ask for, a line each: every rig's figure, and its ratio (or what it adds) to the anchor's.
cpu_token = lambda w: lambda d: d['server']['cpu_s'] * 1e6 / (d['ok'] * TOK[w]) if d['ok'] else 0
cpu_request = lambda d: d['server']['cpu_us_per_request']
first = lambda d: d['first_content']['p50'] * 1000
idle = lambda d: (d['server']['rss_idle_kib'] - d['server']['rss_before_kib']) / d['peak_active']
def added(w, rig, base, fn):
    # of the same round where there are as many
    a, b = R[w][rig], R[w][base]
    return st.median(fn(x) - fn(y) for x, y in zip(a, b)) if len(a) == len(b) else med(a, fn) - med(b, fn)
rigs = [r for r in sorted({r for w in R for r in R[w]}, key=key) if r != 'direct']
def line(what, w, fn, unit, ratio=1):
    if w not in R: return
    def cell(r):
        if r not in R[w]: return '-'
        x = sig(med(R[w][r], fn)) + ' ' + unit if unit else '%d' % med(R[w][r], fn)
        if r == ANCHOR or ANCHOR not in R[w]: return x
        a = med(R[w][ANCHOR], fn)
        return x + (' (%sx)' % sig(med(R[w][r], fn) / a) if ratio and a else '')
    summary.append([what] + [cell(r) for r in rigs])
summary = []
for base in ('direct', ANCHOR):
    if base not in R.get('W0', {}): continue
    summary.append(['W0, first token, added to %s (%s us)' % (base, sig(med(R['W0'][base], first)))]
                   + ['%+.0f us' % added('W0', r, base, first) if r in R['W0'] and r != base else '-' for r in rigs])
for w in ('W1', 'W1b', 'W2a'): line(w + ', CPU per token', w, cpu_token(w), 'us')
for w in ('W2a', 'W2c'):
    line(w + ', failures', w, lambda d: d['failed'], '', 0)
    for p in ('p50', 'p99'): line('%s, event latency %s' % (w, p), w, lambda d: d['latency'][p], 'ms', 0)
line('W3, CPU per request', 'W3', cpu_request, 'us')
line('W6, memory of a silent stream', 'W6', idle, 'KiB')
if summary: table(['workload'] + rigs, summary)
for w in ('W0', 'W1', 'W1b', 'W2l', 'W2a', 'W2b', 'W2c', 'W3'):
    if w not in R: continue
    cpu = lambda d: d['server']['cpu_s'] * 1e6 / (d['ok'] * TOK[w]) if d['ok'] else 0
    a = R[w].get(ANCHOR); ac = med(a, cpu) if a else None
    rate = lambda d: d['ok'] * TOK[w] / d['wall_s']
    ar = med(a, rate) if a else None
    print('### %s\n' % w)
    rows = []
    for rig in sorted(R[w], key=key):
        x = R[w][rig]; c = med(x, cpu)
        row = [rig, str(len(x)), '%d / %d' % (sum(d['ok'] for d in x), sum(d['failed'] for d in x)), sig(med(x, rate) / 1000) + ' k' + rng(x, lambda d: rate(d) / 1000)]
        if w in ('W0', 'W3'): row += [sig(med(x, lambda d: d['requests_per_s'])), sig(med(x, lambda d: d['server']['cpu_us_per_request']))]
        else: row += [sig(c) + rng(x, cpu)]
        row += [(sig(c / ac) + 'x' if ac and c else '')]
        if w == 'W0': row += [sig(1000 * med(x, lambda d: d['first_content'][p])) for p in ('p50', 'p90', 'p99')] + [sig(added(w, rig, b, first)) if b in R[w] else '' for b in ('direct', ANCHOR)]
        elif w in ('W1', 'W1b', 'W3'): row += [sig(med(x, lambda d: d['first_content']['p50'])), sig(med(x, lambda d: d['total']['p50'])), sig(med(x, lambda d: d['total']['p99']))]
        else: row += [sig(med(x, lambda d: d['latency']['p50'])), sig(med(x, lambda d: d['latency']['p99'])), sig(med(x, lambda d: d['latency']['p999'])), sig(med(x, lambda d: d['total']['p50']))]
        row += [sig(med(x, lambda d: d['server']['rss_per_stream_kib'])), '%.1f' % med(x, lambda d: d['machine']['noise_s'] / d['wall_s'])]
        rows.append(row)
    head = ['rig', 'runs', 'ok / failed', 'tokens/s']
    head += ['requests/s', 'CPU us/request'] if w in ('W0', 'W3') else ['CPU-s per M tokens']
    head += ['CPU vs ' + ANCHOR]
    head += ['first token p50 us', 'p90 us', 'p99 us', 'p50 added to direct us', 'to ' + ANCHOR] if w == 'W0' else ['first token p50 ms', 'whole p50 ms', 'whole p99 ms'] if w in ('W1', 'W1b', 'W3') else ['event latency p50 ms', 'p99 ms', 'p99.9 ms', 'whole p50 ms']
    head += ['RSS KiB/stream', 'noise cores']
    table(head, rows)
if 'W6' in R:
    print('### W6 idle memory\n')
    table(['rig', 'open streams', 'RSS before MiB', 'RSS idle MiB', 'KiB per idle stream'],
          [[r, str(R['W6'][r][-1]['peak_active']), sig(med(R['W6'][r], lambda d: d['server']['rss_before_kib'] / 1024)), sig(med(R['W6'][r], lambda d: d['server']['rss_idle_kib'] / 1024)),
            sig(med(R['W6'][r], lambda d: (d['server']['rss_idle_kib'] - d['server']['rss_before_kib']) / d['peak_active']))] for r in sorted(R['W6'], key=key)])
