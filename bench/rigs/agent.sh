RIG_DESC="ngx_agent_module, 1 worker"
RIG_URL=http://127.0.0.1:17271/run
RIG_HDRS=("Content-Type: application/json")
rig_start() {
    local d="$OUT/run/$RIG.d"; mkdir -p "$d"
    cat > "$d/nginx.conf" <<C
load_module ${AGENT_MODULE:-$(dirname "$KIT")/build/ngx_http_agent_module.so};
user root; daemon off; pid $d/pid; error_log $d/error.log warn;
worker_processes 1; worker_rlimit_nofile 40000;
events { worker_connections 32000; multi_accept on; }
http {
    access_log off; tcp_nodelay on; keepalive_requests 1000000; keepalive_timeout 300s;
    client_body_temp_path $d/b; proxy_temp_path $d/p; fastcgi_temp_path $d/f; uwsgi_temp_path $d/u; scgi_temp_path $d/s;
    $AGENT_ZONE
    agent_model stub { provider openai; url http://127.0.0.1:$STUB_PORT/v1; model stub; }
    agent stub { model stub; }
    server {
        listen 127.0.0.1:17271 backlog=4096;
        location /run { agent_pass stub; agent_owner off; client_body_buffer_size 16k; }
    }
}
C
    spawn nginx -c "$d/nginx.conf"
    wait_port 17271
}

# one run of COUNT events, GAP ms apart, the first after WAIT ms
fan_start() { # id count gap wait
    stub_set n$2-d$3-f$4-t1-s78
    curl -sN -m 1 http://127.0.0.1:17271/run -H 'Content-Type: application/json' \
        -d '{"threadId":"t'$1'","runId":"'$1'","messages":[{"id":"m","role":"user","content":"go"}]}' > /dev/null
}
fan_url() { echo http://127.0.0.1:17271/run/runs/$1/stream; }
