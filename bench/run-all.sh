#!/bin/bash
# All rigs in rounds, so that each round's rigs meet the same noise; then the
# table.  RIGS, ROUNDS; results in build/bench/results/DATE.
cd "$(dirname "$0")" && make -s all || exit 1
. ./lib.sh
export RESULTS=$OUT/results/$(date +%m%d-%H%M); mkdir -p "$RESULTS"
RIGS=${RIGS-nginx-proxy-1w-ka floor agent}
for round in $(seq ${ROUNDS:-3}); do
    echo "== round $round $(date +%T)"
    for r in direct $RIGS; do ROUNDS=1 ./run.sh $r W0; done
    for r in $RIGS; do W1_N=${W1_N:-8000} ROUNDS=1 ./run.sh $r W1; ROUNDS=1 ./run.sh $r W1b W2a W3; done
done
echo "== many streams, idle memory $(date +%T)"
for r in $RIGS; do ROUNDS=1 ./run.sh $r W2c W6; done
./report.py "$RESULTS" > "$RESULTS/report.md"; cat "$RESULTS/report.md"
