#!/bin/bash
#
# t/fuzz.sh DIR SECONDS [TARGET ...]: runs the fuzz targets in DIR (built by
# "make fuzz"), two at a time, each for that long.  What they learn stays in
# DIR/corpus, what they find goes to DIR/found.  Exits 1 when one found
# something; to see it again: DIR/TARGET FILE

set -u

dir=$1
seconds=$2
shift 2

cd "$(dirname "$0")/.."

if [ $# -eq 0 ]; then
    for source in t/fuzz/fuzz_*.c; do
        name=${source##*/}
        set -- "$@" "${name%.c}"
    done
fi

# The words of the formats: the literals of the sources, the keys of the seeds.
mkdir -p "$dir/corpus" "$dir/found"
export LC_ALL=C
cat src/*.c t/fuzz/corpus/*/* | grep -aoE '"[A-Za-z_]{2,24}"' | sort -u \
    >"$dir/words.dict"

run() {
    local name=$1 log="$dir/$1.log" found

    mkdir -p "$dir/corpus/$name"

    if "$dir/$name" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
        -rss_limit_mb=2048 -print_final_stats=1 -dict="$dir/words.dict" \
        -artifact_prefix="$dir/found/$name-" \
        "$dir/corpus/$name" "t/fuzz/corpus/$name" >"$log" 2>&1
    then
        awk -v name="$name" '
            / cov: / {
                for (i = 1; i < NF; i++) {
                    if ($i == "cov:") cov = $(i + 1)
                    if ($i == "ft:") ft = $(i + 1)
                }
            }
            /^stat::number_of_executed_units:/ { n = $2 }
            /^stat::average_exec_per_sec:/ { rate = $2 }
            END {
                printf "ok      %-12s %d runs, %d a second, cov %d, ft %d\n",
                    name, n, rate, cov, ft
            }' "$log"
        return 0
    fi

    # the stack stands before the summary, the bytes behind it
    found=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    printf 'FAILED  %-12s %s\n' "$name" "${found:-see $log}"
    grep -v '^#' "$log" | tail -n 60 | cut -c 1-200 | sed 's/^/        /'

    return 1
}

failed=0
running=0

for name in "$@"; do
    if [ "$running" -eq 2 ]; then
        wait -n || failed=1
        running=1
    fi

    run "$name" &
    running=$((running + 1))
done

while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done

exit "$failed"
