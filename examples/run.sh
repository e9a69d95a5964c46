#!/bin/bash
# Runs nginx in the foreground with examples/demo.conf, or another example, all
# its files below BUILD/run; as root or not.  usage: run.sh BUILD [CONF]
set -euo pipefail

die() { echo "$0: $*" >&2; exit 1; }

[ $# -gt 0 ] || die "usage: $0 BUILD [CONF]"
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
conf=${2:-$here/demo.conf}
run=$build/run
module=$build/ngx_http_agent_module.so

[ -f "$conf" ] || die "there is no $conf"
[ -f "$module" ] || die "there is no $module: run \"make\""
nginx=$(PATH=$PATH:/usr/sbin command -v nginx) \
    || die "nginx is not installed: run \"make deps\""

# the first listen, and the path of the first agent_pass
read -r listen url auth < <(awk '
    $1 == "listen" && !listen          { sub(/;.*/, "", $2); listen = $2 }
    $1 == "location"                   { path = $2 }
    $1 == "auth_basic_user_file"       { auth = "-u sam:change-me" }
    $1 == "agent_pass" && !url         { url = path }
    END { print listen, "http://" listen url, auth }' "$conf")

if (: <"/dev/tcp/${listen%:*}/${listen##*:}") 2>/dev/null; then
    die "$listen is taken, perhaps by another \"make run\": stop that," \
        "or change \"listen\" in $conf"
fi

mkdir -p "$run/temp"
cp "$here/users" "$run/"

globals="load_module $module; pid $run/nginx.pid;"
globals+=" error_log stderr warn; daemon off;"
if [ "$(id -u)" = 0 ]; then
    globals+=" user root;"
fi

# the example stays a plain nginx.conf; what is ours comes around it
awk -v run="$run" '
    { print }
    /^http[ \t]*[{]/ {
        print "    access_log off;"
        n = split("client_body proxy fastcgi uwsgi scgi", t, " ")
        for (i = 1; i <= n; i++)
            print "    " t[i] "_temp_path " run "/temp/" t[i] ";"
    }' "$conf" > "$run/nginx.conf"

"$nginx" -t -q -p "$run" -c "$run/nginx.conf" -e stderr -g "$globals"

cat <<EOT

  The agent answers at $url  (Ctrl-C stops it).  Try:

  curl -N -H 'Content-Type: application/json' ${auth:+$auth }$url \\
       -d '{"messages":[{"id":"1","role":"user","content":"Hello!"}]}'

EOT

exec "$nginx" -p "$run" -c "$run/nginx.conf" -e stderr -g "$globals"
