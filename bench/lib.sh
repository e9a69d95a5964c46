# Common parts of the kit's scripts. Sourced.
KIT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
OUT="$(dirname "$KIT")/build/bench"   # programs, servers' files, results
STUB_PORT=${STUB_PORT:-17100}
STUB_URL=http://127.0.0.1:$STUB_PORT
SRV_CORE=${SRV_CORE:-0}          # the server under test
KIT_CORE=${KIT_CORE:-1}          # llmstub and sseload
NICE="nice -n -10"              # keeps a neighbour's work from distorting the runs (empty: off)
RESULTS=${RESULTS:-$OUT/results}
mkdir -p "$RESULTS" "$OUT/run"
ulimit -n "$(ulimit -Hn)"

wait_port() { # port [seconds]
    local i
    for ((i = 0; i < ${2:-15} * 20; i++)); do (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null && return 0; sleep 0.05; done
    echo "port $1 did not open" >&2; return 1
}
tree_pids() { # pid: it and its descendants
    local p
    [ -d /proc/$1 ] || return 0
    echo $1
    for p in $(cat /proc/$1/task/*/children 2>/dev/null); do tree_pids $p; done
}
kill_tree() {
    local ps; ps=$(tree_pids $1); [ -n "$ps" ] || return 0
    kill $ps 2>/dev/null
    for _ in $(seq 40); do [ -d /proc/$1 ] || return 0; sleep 0.05; done
    kill -9 $ps 2>/dev/null; return 0
}
start_stub() { # params
    $NICE taskset -c $KIT_CORE "$OUT/llmstub" -p $STUB_PORT -P "$1" & STUB_PID=$!
    wait_port $STUB_PORT
}
stub_set() { curl -sf "$STUB_URL/set/$1" >/dev/null; }
stub_stat() { curl -s "$STUB_URL/stats"; }

# Defaults of the rig interface (see README.md); a rig overrides what differs.
RIG_DESC= RIG_URL= RIG_PIN=1 RIG_HDRS=()
RIG_BODY='{"threadId":"t{u}","runId":"r{u}","state":{},"messages":[{"id":"m{u}","role":"user","content":"Tell me something about number {i}."}],"tools":[],"context":[],"forwardedProps":{}}'
RIG_TERM=RUN_FINISHED RIG_FIRST=TEXT_MESSAGE_CONTENT RIG_DKEY='"delta":"' RIG_BAD=RUN_ERROR
RIG_SKIP=""                      # workloads that make no sense for this rig
rig_start() { :; }
rig_pids()  { tree_pids $RIG_PID; }
rig_stop()  { [ -n "$RIG_PID" ] && kill_tree $RIG_PID; wait $RIG_PID 2>/dev/null; }
# Runs a command in the background on the server's core (or on all cores with RIG_PIN=0).
spawn() {
    if [ "$RIG_PIN" = 1 ]; then $NICE taskset -c $SRV_CORE "$@" > "$OUT/run/$RIG.log" 2>&1 &
    else $NICE "$@" > "$OUT/run/$RIG.log" 2>&1 & fi
    RIG_PID=$!
}
rig_rss() { local p t=0; for p in $(rig_pids); do t=$((t + $(awk '/VmRSS/{print $2}' /proc/$p/status))); done; echo $t; }
