#!/bin/bash
# Runs nginx in the foreground with examples/demo.conf, all its files below
# build/run; as root or not.  usage: run.sh BUILD [CONF]
set -euo pipefail

build=$1
here=$(cd "$(dirname "$0")" && pwd)
conf=${2:-$here/demo.conf}
run=$build/run

mkdir -p "$run/temp"
nginx=$(PATH=$PATH:/usr/sbin command -v nginx) \
    || { echo "nginx is not installed: run \"make deps\"" >&2; exit 1; }

globals="load_module $build/ngx_http_agent_module.so;"
globals+=" pid $run/nginx.pid; error_log stderr notice; daemon off;"
if [ "$(id -u)" = 0 ]; then
    globals+=" user root;"
fi

# the example stays a plain nginx.conf; what is ours comes around it
{
    awk -v run="$run" '
        { print }
        /^http[ \t]*[{]/ {
            print "    access_log off;"
            n = split("client_body proxy fastcgi uwsgi scgi", t, " ")
            for (i = 1; i <= n; i++)
                print "    " t[i] "_temp_path " run "/temp/" t[i] ";"
        }' "$conf"
} > "$run/nginx.conf"

url=$(awk '/^ *listen /  { gsub(/;/, "", $2); listen = $2 }
           /^ *location / { path = $2 }
           END { print "http://" listen path }' "$conf")

cat <<EOT

  The agent answers at $url  (Ctrl-C stops it).  Try:

  curl -N -H 'Content-Type: application/json' $url \\
       -d '{"messages":[{"id":"1","role":"user","content":"Hello!"}]}'

EOT

exec "$nginx" -p "$run" -c "$run/nginx.conf" -e stderr -g "$globals"
