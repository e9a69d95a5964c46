RIG_DESC="nchan, memory store, 1 worker"
rig_start() {
    local d="$OUT/run/$RIG.d"; mkdir -p "$d"
    cat > "$d/nginx.conf" <<C
load_module /usr/lib/nginx/modules/ngx_nchan_module.so;
user root; daemon off; pid $d/pid; error_log $d/error.log warn;
worker_processes 1; worker_rlimit_nofile 20000;
events { worker_connections 32000; multi_accept on; }
http {
    access_log off; tcp_nodelay on; keepalive_requests 1000000; keepalive_timeout 300s;
    client_body_temp_path $d/b; proxy_temp_path $d/p; fastcgi_temp_path $d/f; uwsgi_temp_path $d/u; scgi_temp_path $d/s;
    nchan_shared_memory_size 256M; nchan_message_buffer_length 5000; nchan_message_timeout 30m;
    server {
        listen 127.0.0.1:17241 backlog=4096;
        location ~ ^/pub/(\w+)\$ { nchan_publisher; nchan_channel_id \$1; }
        location ~ ^/sub/(\w+)\$ { nchan_subscriber eventsource; nchan_channel_id \$1; nchan_subscriber_first_message oldest; }
    }
}
C
    spawn nginx -c "$d/nginx.conf"
    wait_port 17241
}
# COUNT messages of the size of our events on a channel, GAP ms apart, after WAIT ms
fan_start() { # channel count gap wait
    $NICE taskset -c $KIT_CORE python3 - "$@" <<'P' &
import socket, sys, time
ch, n, gap, wait = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) / 1000, int(sys.argv[4]) / 1000
s = socket.create_connection(('127.0.0.1', 17241)); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def post(body):
    s.sendall(('POST /pub/%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s' % (ch, len(body), body)).encode())
    s.recv(65536)
time.sleep(wait); t = time.time()
for i in range(n):
    post('{"type":"TEXT_MESSAGE_CONTENT","messageId":"m1","delta":"~%016x~%s"}' % (time.clock_gettime_ns(time.CLOCK_MONOTONIC), 'x' * 60))
    t += gap; time.sleep(max(0, t - time.time()))
post('{"type":"RUN_FINISHED","threadId":"t1","runId":"r1"}')
P
}
fan_url() { echo http://127.0.0.1:17241/sub/$1; }
