#!/bin/bash
# Gets the source of the installed nginx from Debian, patches applied, for the
# sanitizer build.  usage: nginx-source.sh OUT      -> OUT/nginx/
#
# The package sources of this machine are asked for source packages too, in
# files of our own below OUT: the machine's configuration stays as it is.
set -euo pipefail

out=$1
version=$(dpkg-query -W -f '${source:Version}' nginx)

if [ -f "$out/version" ] && [ "$(cat "$out/version")" = "$version" ]; then
    exit 0
fi

rm -rf "$out"
mkdir -p "$out/parts" "$out/lists/partial"
out=$(cd "$out" && pwd)

for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -f "$f" ] || continue
    sed -nE 's/^deb(-src)?([[:space:]])/deb-src\2/p' "$f" | grep -i debian \
        > "$out/parts/$(basename "$f" .list).list" || true
done

for f in /etc/apt/sources.list.d/*.sources; do
    [ -f "$f" ] && grep -qi 'debian' "$f" || continue
    sed -E 's/^Types:.*/Types: deb-src/' "$f" > "$out/parts/$(basename "$f")"
done

cd "$out"

apt=(-q -q -o Dir::Etc::sourcelist=/dev/null
     -o Dir::Etc::sourceparts="$out/parts" -o Dir::State::lists="$out/lists"
     -o APT::Sandbox::User=root)

apt-get "${apt[@]}" update > source.log 2>&1 || { cat source.log >&2; exit 1; }

# the exact version first; a mirror may lack it, then another revision of the
# same upstream version serves as well
upstream=${version%-*}
versions=$(apt-cache "${apt[@]}" showsrc nginx |
    awk -v v="$version" -v u="$upstream-" '
        $1 == "Version:" && $2 != v && index($2, u) == 1 { print $2 }')

for v in $version $versions; do
    if apt-get "${apt[@]}" source "nginx=$v" > source.log 2>&1; then
        mv nginx-*/ nginx
        rm -rf lists
        echo "$version" > version
        exit 0
    fi
done

echo "$0: no source of nginx $upstream can be had from Debian:" >&2
cat source.log >&2
exit 1
