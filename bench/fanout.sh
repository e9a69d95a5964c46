#!/bin/bash
# fanout.sh RIG... : W4, one run read by many as it goes, and W5, an ended one of
# 2,000 events fetched by 500 clients.  For rigs with fan_start and fan_url; nchan
# needs Debian's libnginx-mod-nchan.  Results as of run.sh.
cd "$(dirname "$0")" && . ./lib.sh
show() {
    python3 - "$OUT"/run/out.$$.json <<'P'
import json, sys
d = json.load(open(sys.argv[1])); s = d['server']
print('%-26s ok %d fail %d  events %d  cpu %.2f us/delivery  lat p50 %.1f p99 %.1f ms  rss %+d KiB  wall %.1f noise %.2f' % (
    d['name'], d['ok'], d['failed'], d['events'], s['cpu_s_per_m_events'], d['latency']['p50'], d['latency']['p99'],
    s['rss_peak_kib'] - s['rss_before_kib'], d['wall_s'], d['machine']['noise_s']))
P
    cat "$OUT"/run/out.$$.json >> "$RESULTS/$RIG.$1.json"
}
load() { $NICE taskset -c $KIT_CORE "$OUT/sseload" -E -L -t RUN_FINISHED -p "$(rig_pids | paste -sd,)" -q $STUB_PID -W 100 "$@" > "$OUT"/run/out.$$.json; }
for RIG in "$@"; do
    . ./lib.sh; . "rigs/$RIG.sh" || exit 1
    start_stub n50 || exit 1
    trap 'rig_stop; kill $STUB_PID 2>/dev/null; wait $STUB_PID 2>/dev/null' EXIT
    rig_start || exit 1
    # readers : events : ms between them (about what nchan can follow on this kit)
    for set in ${FAN_SETS:-1000:500:5 5000:200:36}; do
        IFS=: read n m gap <<< $set; id=f$n$RANDOM
        fan_start $id $m $gap 4000; sleep 0.2
        load -N "$RIG W4 ${n} x ${m}" -u "$(fan_url $id)" -c $n -n $n -r 2000 -l; show W4
    done
    m=${REPLAY_EVENTS:-2000}; n=${REPLAY_CLIENTS:-500}; id=r$RANDOM; r0=$(rig_rss)
    fan_start $id $m 0 0; sleep 3; r1=$(rig_rss)
    for i in 1 2; do load -N "$RIG W5 ${n} x ${m}" -u "$(fan_url $id)" -c $n -n $n; show W5; done
    echo "$RIG: $((r1 - r0)) KiB more for $m stored events"
    rig_stop; kill $STUB_PID; wait $STUB_PID 2>/dev/null; trap - EXIT
done
