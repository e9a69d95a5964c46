#!/bin/bash
# run.sh RIG WORKLOAD... : starts the stub and the rig, proves the rig's answers, measures, stops all.
# Results: results/RIG.WORKLOAD.json (one line of JSON per round). ROUNDS=3 repeats each measurement.
cd "$(dirname "$0")" && . ./lib.sh && . ./workloads.sh
RIG=$1; shift
. "rigs/$RIG.sh" || exit 1
start_stub n50 || exit 1
kill -0 $STUB_PID 2>/dev/null || { echo "the stub did not start: is port $STUB_PORT taken?" >&2; exit 1; }
trap 'rig_stop; kill $STUB_PID 2>/dev/null; wait $STUB_PID 2>/dev/null' EXIT
rig_start || { echo "$RIG: did not start" >&2; tail -5 "$OUT/run/$RIG.log" >&2; exit 1; }
HO=(); for h in "${RIG_HDRS[@]}"; do HO+=(-H "$h"); done
load() { $NICE $RTL taskset -c $KIT_CORE "$OUT/sseload" -u "$RIG_URL" -b "$RIG_BODY" "${HO[@]}" -t "$RIG_TERM" -f "$RIG_FIRST" -d "$RIG_DKEY" ${RIG_BAD:+-x "$RIG_BAD"} ${RIG_OPT} "$@"; }
# Proof and warm-up: every byte of 400 answers.
stub_set n200-s6-b16
load -c 50 -n ${WARM_N:-400} -S 200,6 > "$OUT"/run/$RIG.verify.json || { echo "$RIG: VERIFY FAILED $(cut -c1-400 "$OUT"/run/$RIG.verify.json)" >&2; [ -n "$FORCE" ] || exit 1; }
# The latency workloads leave both cores partly idle; there the kit and the server get real-time priority, so
# that a neighbour's time slices are not measured as the server's latency (RT=0: off).
rt() { # -r 1 | -o 0
    [ "${RT:-1}" = 1 ] || return 0
    for p in $(rig_pids) $STUB_PID; do chrt -a ${1} -p $2 $p 2>/dev/null; done
    [ $1 = -r ] && RTL="chrt -r 1" || RTL=
}
# Waits (at most 10 s) until the machine is quiet: less than a third of a core busy over half a second.
quiet() {
    local a b i
    for i in $(seq ${QUIET:-20}); do
        a=$(awk '/^cpu /{print $2+$3+$4+$7+$8}' /proc/stat); sleep 0.5
        b=$(awk '/^cpu /{print $2+$3+$4+$7+$8}' /proc/stat); [ $((b - a)) -lt 17 ] && return
    done
}
for W in "$@"; do
    case " $RIG_SKIP " in *" $W "*) continue ;; esac
    workload $W || exit 1
    stub_set $W_STUB
    for r in $(seq ${ROUNDS:-1}); do
        if [ "$W" = W6 ]; then       # idle memory: on a fresh server that has answered a little
            rig_stop; rig_start || exit 1; stub_set n5; load -c 8 -n 64 >/dev/null; stub_set $W_STUB
        fi
        quiet
        case $W in W0|W2l|W2a|W2c) rt -r 1 ;; esac
        load -N "$RIG $W" -c $W_C -n $W_N "${W_OPT[@]}" -p "$(rig_pids | paste -sd,)" -q $STUB_PID -W ${LIMIT:-110} > "$OUT"/run/out.$$.json
        rt -o 0
        cat "$OUT"/run/out.$$.json >> "$RESULTS/$RIG.$W.json"
        python3 - "$OUT"/run/out.$$.json <<'P'
import json,sys
d=json.load(open(sys.argv[1])); s=d['server']
print('%-22s ok %d fail %d  %.0f ev/s %.1f req/s  cpu/M %.2f (u%.2f s%.2f)  us/req %.0f  rss/str %.1f KiB idle %d  first p50 %.3f  total p50 %.1f p99 %.1f  lat p50 %.3f p99 %.3f  wall %.1f noise %.2f'%(d['name'],d['ok'],d['failed'],d['events_per_s'],d['requests_per_s'],s['cpu_s_per_m_events'],s['cpu_user_s'],s['cpu_sys_s'],s['cpu_us_per_request'],s['rss_per_stream_kib'],s['rss_idle_kib'],d['first_content']['p50'],d['total']['p50'],d['total']['p99'],d['latency']['p50'],d['latency']['p99'],d['wall_s'],d['machine']['noise_s']))
P
    done
done
