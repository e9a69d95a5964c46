#!/bin/bash
# Checks the stub and the load client against each other and against curl, with faults that must be noticed.
cd "$(dirname "$0")"; . ./lib.sh; P=9198; U=http://127.0.0.1:$P/v1/chat/completions; pass=0; fail=0
"$OUT/llmstub" -p $P & STUB=$!; trap 'kill $STUB' EXIT; sleep 0.3
jq_() { python3 -c "import json,sys; d=json.load(sys.stdin); print(eval(sys.argv[1]))" "$1"; }
check() { # name, expected, got
  if [ "$2" = "$3" ]; then pass=$((pass+1)); else fail=$((fail+1)); echo "FAIL $1: expected '$2', got '$3'"; fi; }
B() { echo "{\"model\":\"$1\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"${2:-hi}\"}]}"; }
L() { "$OUT/sseload" -d '"content":"' -t '[DONE]' "$@" 2>/dev/null; }
# 1 every byte of every delta, for several sizes, bursts and chunkings
for m in n500-s6-b16 n500-s2-b1 n50-s300-b0 n2000-s9-b0-c0 n7-s1024-b3; do
  n=$(echo $m | sed 's/n\([0-9]*\).*/\1/'); s=$(echo $m | sed 's/.*-s\([0-9]*\).*/\1/')
  r=$(L -u $U -c 50 -n 300 -b "$(B stub-$m)" -S $n,$s); check "verify $m" "(300, 0, $((300*(n+4))))" "$(echo $r | jq_ "(d['ok'],d['failed'],d['events'])")"
  r=$(L -k -u $U -c 20 -n 300 -b "$(B stub-$m)" -S $n,$s); check "keepalive $m" "(300, 0)" "$(echo $r | jq_ "(d['ok'],d['failed'])")"
done
# 2 a wrong expectation must fail
r=$(L -u $U -c 5 -n 5 -b "$(B stub-n50-s6)" -S 50,7); check "wrong size noticed" "(0, 5)" "$(echo $r | jq_ "(d['ok'],d['failures']['mismatch'])")"
r=$(L -u $U -c 5 -n 5 -b "$(B stub-n50-s6)" -S 51,6); check "missing token noticed" 5 "$(echo $r | jq_ "d['failures']['mismatch']")"
r=$(L -u $U -c 5 -n 5 -b "$(B stub-n50-s6)" -t NOPE); check "missing terminal noticed" 5 "$(echo $r | jq_ "d['failures']['no_terminal']")"
r=$(L -u $U -c 5 -n 5 -b "$(B stub-n50-s6)" -t '"index":0'); check "terminal must be last" 5 "$(echo $r | jq_ "d['failures']['no_terminal']")"
# 3 injected faults
r=$(L -u $U -c 5 -n 5 -b "$(B stub-x503)"); check "status noticed" 5 "$(echo $r | jq_ "d['failures']['status']")"
r=$(L -u $U -c 5 -n 5 -b "$(B stub-n50-q20)"); check "cut stream noticed" 5 "$(echo $r | jq_ "d['failures']['truncated']")"
r=$(L -T 1 -u $U -c 5 -n 5 -b "$(B stub-f3000)"); check "timeout noticed" 5 "$(echo $r | jq_ "d['failures']['timeout']")"
check "aborts counted by stub" "True" "$(curl -s localhost:$P/stats | jq_ "d['aborted']>=5")"
# 4 echo, unicode, escapes, per-request text
r=$(L -u $U -c 20 -n 200 -b "$(B stub-e1 'wörld \"{i}\" \ud83d\ude00 你好 {c}')" -X 'echo:1:wörld "{i}" 😀 你好 {c}'); check "echo text" "(200, 0)" "$(echo $r | jq_ "(d['ok'],d['failed'])")"
# 5 the same through another reader: curl and python
check "curl events" 54 "$(curl -sN $U -d "$(B stub-n50)" | grep -c '^data: ')"
check "python json" "True" "$(curl -sN $U -d "$(B stub-n200-s6)" | python3 -c "
import sys,json
t='';u=None
for l in sys.stdin:
    if not l.startswith('data: ') or '[DONE]' in l: continue
    d=json.loads(l[6:]); u=d.get('usage') or u
    for c in d['choices']: t+=c['delta'].get('content','')
print(len(t)==1200 and u['completion_tokens']==200 and t.startswith(' 0abcd 1bcde'))")"
# 6 pacing: 20 tokens, 50 ms apart after 200 ms -> about 1.2 s, gaps about 50 ms
r=$(L -u $U -c 100 -n 100 -b "$(B stub-n20-f200-d50-t1)" -l -f '"content":"~'); check "pacing" "True" "$(echo $r | jq_ "1.10<d['total']['p50']/1000<1.30 and 195<d['first_content']['p50']<265 and 45<d['gap']['p90']<56 and d['latency']['n']==2000 and d['latency']['p50']<2")"
# 7 HTTP/1.0, chunked request body, JSON reply, embeddings
check "http/1.0" 54 "$(curl -sN -0 $U -d "$(B stub-n50)" | grep -c '^data: ')"
check "chunked body" 54 "$(curl -sN -H 'Transfer-Encoding: chunked' $U -d "$(B stub-n50)" | grep -c '^data: ')"
check "json reply" 300 "$(curl -s $U -d '{"model":"stub-n50-s6","messages":[]}' | jq_ "len(d['choices'][0]['message']['content'])")"
check "embeddings" "(3, 8, True)" "$(curl -s localhost:$P/v1/embeddings -d '{"input":["a b","b a","c"],"dimensions":8}' | jq_ "(len(d['data']),len(d['data'][0]['embedding']),d['data'][0]['embedding']==d['data'][1]['embedding'])")"
# 8 non-SSE through sseload, and Content-Length bodies
r=$("$OUT/sseload" -k -u http://127.0.0.1:$P/health -c 4 -n 100); check "plain GET" "(100, 0)" "$(echo $r | jq_ "(d['ok'],d['failed'])")"
# 9 CPU accounting: the stub's own CPU as seen by -p against the kernel's total
a=$(awk '{print $14+$15}' /proc/$STUB/stat); r=$(L -p $STUB -u $U -c 100 -n 2000 -b "$(B stub-n500)"); b=$(awk '{print $14+$15}' /proc/$STUB/stat)
check "cpu accounting" True "$(echo $r | jq_ "abs(d['server']['cpu_s']-($b-$a)/100)<0.05")"
echo "$pass passed, $fail failed"; [ $fail = 0 ]
