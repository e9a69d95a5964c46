
#include "ngx_agent_curl.h"
#include "ngx_agent_zone.h"

#if (NGX_OPENSSL)
#include <openssl/err.h>
#endif


static int ngx_agent_multi_socket(CURL *easy, curl_socket_t fd, int what,
    void *data, void *socketp);
static int ngx_agent_multi_timer(CURLM *handle, long ms, void *data);
static void ngx_agent_multi_timer_handler(ngx_event_t *ev);
static void ngx_agent_multi_socket_handler(ngx_event_t *ev);


ngx_agent_multi_full_pt  ngx_agent_multi_full;

static ngx_queue_t              ngx_agent_multis;
static ngx_agent_multi_done_pt  ngx_agent_multi_done;


ngx_int_t
ngx_agent_multi_init(ngx_agent_multi_done_pt done)
{
    ngx_queue_init(&ngx_agent_multis);
    ngx_agent_multi_done = done;

    return NGX_OK;
}


/* every easy handle has been removed before */

void
ngx_agent_multi_cleanup(void)
{
    ngx_queue_t        *q;
    ngx_agent_multi_t  *m;

    while (!ngx_queue_empty(&ngx_agent_multis)) {
        q = ngx_queue_head(&ngx_agent_multis);
        m = ngx_queue_data(q, ngx_agent_multi_t, queue);

        ngx_queue_remove(q);

        if (m->timer.timer_set) {
            ngx_del_timer(&m->timer);
        }

        if (m->kick.posted) {
            ngx_delete_posted_event(&m->kick);
        }

        /* pooled connections are closed without asking us about them */

        curl_multi_setopt(m->handle, CURLMOPT_SOCKETFUNCTION, NULL);
        curl_multi_setopt(m->handle, CURLMOPT_TIMERFUNCTION, NULL);

        curl_multi_cleanup(m->handle);
        ngx_free(m);
    }
}


ngx_agent_multi_t *
ngx_agent_multi_get(void)
{
    ngx_queue_t        *q;
    ngx_agent_multi_t  *m;

    for (q = ngx_queue_head(&ngx_agent_multis);
         q != ngx_queue_sentinel(&ngx_agent_multis);
         q = ngx_queue_next(q))
    {
        m = ngx_queue_data(q, ngx_agent_multi_t, queue);

        if (m->active < NGX_AGENT_MULTI_MAX) {
            return m;
        }
    }

    m = ngx_calloc(sizeof(ngx_agent_multi_t), ngx_cycle->log);
    if (m == NULL) {
        return NULL;
    }

    m->handle = curl_multi_init();

    if (m->handle == NULL) {
        ngx_free(m);
        return NULL;
    }

    m->timer.handler = ngx_agent_multi_timer_handler;
    m->timer.data = m;
    m->timer.log = ngx_cycle->log;
    m->timer.cancelable = 1;     /* runs hold the worker, not idle caches */

    m->kick.handler = ngx_agent_multi_timer_handler;
    m->kick.data = m;
    m->kick.log = ngx_cycle->log;

    curl_multi_setopt(m->handle, CURLMOPT_SOCKETFUNCTION,
                      ngx_agent_multi_socket);
    curl_multi_setopt(m->handle, CURLMOPT_SOCKETDATA, m);
    curl_multi_setopt(m->handle, CURLMOPT_TIMERFUNCTION,
                      ngx_agent_multi_timer);
    curl_multi_setopt(m->handle, CURLMOPT_TIMERDATA, m);
    curl_multi_setopt(m->handle, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    curl_multi_setopt(m->handle, CURLMOPT_MAXCONNECTS,
                      (long) NGX_AGENT_MULTI_CACHE);

    ngx_queue_insert_tail(&ngx_agent_multis, &m->queue);

    return m;
}


void
ngx_agent_multi_drive(ngx_agent_multi_t *m, curl_socket_t fd, int mask)
{
    int       running, left;
    CURLMsg  *msg;

    if (m->driving) {
        return;
    }

    m->driving = 1;

    (void) curl_multi_socket_action(m->handle, fd, mask, &running);

    for ( ;; ) {
        msg = curl_multi_info_read(m->handle, &left);

        if (msg == NULL) {
            break;
        }

        if (msg->msg == CURLMSG_DONE) {
            ngx_agent_multi_done(m, msg->easy_handle, msg->data.result);
        }
    }

    m->driving = 0;

#if (NGX_OPENSSL)

    /* what curl leaves in the thread's queue, nginx would take for an error of
     * the next connection it works on */

    ERR_clear_error();

#endif
}


static void
ngx_agent_multi_timer_handler(ngx_event_t *ev)
{
    ngx_agent_multi_t *m = ev->data;

    ngx_agent_multi_drive(m, CURL_SOCKET_TIMEOUT, 0);
}


/* curl arms its timer anew all the time, so it is deleted first: nginx does
 * not move a timer by less than 300 ms */

static int
ngx_agent_multi_timer(CURLM *handle, long ms, void *data)
{
    ngx_agent_multi_t *m = data;

    if (m->timer.timer_set) {
        ngx_del_timer(&m->timer);
    }

    if (ms < 0) {
        return 0;
    }

    if (ms == 0) {

        /* curl has read its share and wants more: others have their turn
         * first, or a fast server would have the worker for itself */

        if (!m->kick.posted) {
            ngx_post_event(&m->kick, &ngx_posted_next_events);
        }

        return 0;
    }

    ngx_add_timer(&m->timer, (ngx_msec_t) ms);

    return 0;
}


static void
ngx_agent_multi_socket_handler(ngx_event_t *ev)
{
    ngx_connection_t   *c;
    ngx_agent_multi_t  *m;

    c = ev->data;
    m = c->data;

    ngx_agent_multi_drive(m, c->fd, ev->write ? CURL_CSELECT_OUT
                                              : CURL_CSELECT_IN);
}


static ngx_int_t
ngx_agent_multi_watch(ngx_event_t *ev, ngx_int_t event, ngx_uint_t on)
{
    if (on && !ev->active) {

        /* level-triggered: that is the contract of curl_multi_socket_action */

        return ngx_add_event(ev, event, NGX_LEVEL_EVENT);
    }

    if (!on && ev->active) {
        return ngx_del_event(ev, event, 0);
    }

    return NGX_OK;
}


/*
 * A socket that never connected is closed by curl before it tells us; the
 * kernel has then forgotten it already.
 */

static void
ngx_agent_multi_unwatch(ngx_connection_t *c, curl_socket_t fd)
{
    ngx_uint_t  flags;

    flags = (fcntl(fd, F_GETFD) == -1) ? NGX_CLOSE_EVENT : 0;

    if (c->read->active) {
        (void) ngx_del_event(c->read, NGX_READ_EVENT, flags);
    }

    if (c->write->active) {
        (void) ngx_del_event(c->write, NGX_WRITE_EVENT, flags);
    }
}


/*
 * Always returns 0: anything else makes curl end all transfers of this multi,
 * and 7.88 then crashes.
 */

static int
ngx_agent_multi_socket(CURL *easy, curl_socket_t fd, int what, void *data,
    void *socketp)
{
    ngx_agent_multi_t *m = data;

    ngx_connection_t  *c;

    c = socketp;

    if (what == CURL_POLL_REMOVE) {

        if (c == NULL) {
            return 0;
        }

        ngx_agent_multi_unwatch(c, fd);

        if (c->read->posted) {
            ngx_delete_posted_event(c->read);
        }

        if (c->write->posted) {
            ngx_delete_posted_event(c->write);
        }

        curl_multi_assign(m->handle, fd, NULL);

        /* the descriptor is curl's to close */

        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;

        ngx_agent_stat_gauge(connections, -1);

        return 0;
    }

    if (c == NULL) {
        c = ngx_get_connection(fd, ngx_cycle->log);

        if (c == NULL) {
            ngx_agent_multi_full(easy);
            return 0;
        }

        c->data = m;
        c->log = ngx_cycle->log;
        c->read->log = ngx_cycle->log;
        c->write->log = ngx_cycle->log;
        c->read->handler = ngx_agent_multi_socket_handler;
        c->write->handler = ngx_agent_multi_socket_handler;

        /* exempt from the sweep and the alert of a worker that shuts down:
         * runs end by their own rules */

        c->read->resolver = 1;

        curl_multi_assign(m->handle, fd, c);

        ngx_agent_stat_gauge(connections, 1);
    }

    if (ngx_agent_multi_watch(c->read, NGX_READ_EVENT, what & CURL_POLL_IN)
        != NGX_OK
        || ngx_agent_multi_watch(c->write, NGX_WRITE_EVENT,
                                 what & CURL_POLL_OUT)
           != NGX_OK)
    {
        ngx_agent_multi_full(easy);
    }

    return 0;
}
