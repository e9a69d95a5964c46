#!/bin/bash
#
# t/deps.sh PACKAGE ...: installs those Debian packages that are missing.
# Silent when none is.  AGENT_NO_DEPS=1 takes what there is.

set -u

[ -z "${AGENT_NO_DEPS:-}" ] || exit 0

if ! command -v dpkg-query >/dev/null; then
    echo "t/deps.sh: this is no Debian; install the equivalents of: $*" >&2
    echo "t/deps.sh: then set AGENT_NO_DEPS=1" >&2
    exit 1
fi

missing=()

for package in "$@"; do
    state=$(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null)
    grep -qx installed <<<"$state" || missing+=("$package")
done

[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null; then
        exec sudo "$0" "${missing[@]}"
    fi

    echo "t/deps.sh: not root and no sudo; run as root:" \
         "apt-get install ${missing[*]}" >&2
    exit 1
fi

# Installing nginx must not start it: the port may be taken, and a container
# may have no init.
policy=/usr/sbin/policy-rc.d

if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
echo "t/deps.sh: installing ${missing[*]}"

if ! { apt-get update -qq &&
       apt-get install -y -qq --no-install-recommends "${missing[@]}"; }; then
    echo "t/deps.sh: cannot install: ${missing[*]}" >&2
    exit 1
fi
