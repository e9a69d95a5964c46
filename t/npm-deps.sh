#!/bin/bash
#
# t/npm-deps.sh DIR OUT: node_modules of DIR's lock file, made in OUT.  Does
# nothing while the lock file is the one that OUT was made of.

set -eu

dir=$1
out=$2

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    "$(dirname "$0")/deps.sh" nodejs npm
fi

major=$(node -p 'process.versions.node.split(".")[0]')

if [ "$major" -lt 18 ]; then
    echo "t/npm-deps.sh: Node 18 or later is needed, not $(node -v)" >&2
    exit 1
fi

mkdir -p "$out"
stamp="$out/.stamp"
want=$(cat "$dir/package.json" "$dir/package-lock.json" | sha256sum)

if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

rm -f "$stamp"
cp "$dir/package.json" "$dir/package-lock.json" "$out/"
(cd "$out" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
printf '%s\n' "$want" >"$stamp"
