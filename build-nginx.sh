#!/bin/bash
# Configures and builds the module against nginx-dev (the installed nginx) or,
# with a third argument, against an nginx source tree.  Out of tree, no root.
#
#   build-nginx.sh configure|make OUT [NGINX_SRC]
set -euo pipefail

what=$1 out=$2 src=${3:-}
here=$(cd "$(dirname "$0")" && pwd)

die() { echo "$0: $*" >&2; exit 1; }

if [ -n "$src" ]; then
    [ -f "$src/src/core/nginx.h" ] \
        || die "NGINX_SRC=$src is no nginx source tree"
    src=$(cd "$src" && pwd)
    configure=$src/auto/configure
    [ -x "$configure" ] || configure=$src/configure
else
    src=/usr/share/nginx/src
    configure=$src/configure
    [ -x "$configure" ] \
        || die "$src is not there: run \"make deps\" (Debian package" \
               "nginx-dev), or give an nginx source tree: make NGINX_SRC=dir"
fi

case $what in
configure)
    mkdir -p "$out"
    flags=(--with-compat --with-threads --with-http_ssl_module
           --with-http_v2_module)
    cflags="-O2 -g" ldflags=
    if [ -f "$src/conf_flags" ]; then
        # bash: defines NGX_CONF_FLAGS, the flags of the installed binary
        . "$src/conf_flags"
        flags=("${NGX_CONF_FLAGS[@]}")
        export DEB_BUILD_MAINT_OPTIONS=hardening=+all
        cflags="$(dpkg-buildflags --get CFLAGS) -fPIC"
        cflags+=" $(dpkg-buildflags --get CPPFLAGS)"
        cflags=${cflags//-ffile-prefix-map=*=. /}
        ldflags="$(dpkg-buildflags --get LDFLAGS) -fPIC"
    fi
    cflags+=" ${AGENT_CFLAGS:-}"
    ldflags+=" ${AGENT_LDFLAGS:-}"
    cd "$src"
    "$configure" --with-cc-opt="$cflags" --with-ld-opt="$ldflags" \
        "${flags[@]}" --add-dynamic-module="$here" --builddir="$out" \
        > "$out/configure.log" 2>&1 \
        || { tail -n 5 "$out/configure.log" >&2
             die "what is missing \"make deps\" installs;" \
                 "the whole log is $out/configure.log"; }
    ;;
make)
    MAKEFLAGS='' make -j"$(nproc)" --no-print-directory -s -C "$src" \
        -f "$out/Makefile" modules
    ;;
esac
