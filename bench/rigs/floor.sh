RIG_DESC="the floor: micro/floor.c, a bare C epoll AG-UI translator, 1 process (not a real server)"
RIG_URL=http://127.0.0.1:17251/ag-ui
rig_start() { spawn "$OUT/floor" 17251 $STUB_PORT; wait_port 17251; }
