
/* The transport of the built-in model: time and bytes, no network. */

#include "ngx_http_agent.h"
#include "ngx_agent_transfer.h"

#include "agent_echo.h"


#define NGX_AGENT_ECHO_BATCH  64


struct ngx_agent_transfer_s {
    const ngx_agent_transfer_handlers_t *handlers;
    void                                *data;
    agent_echo_t                        *echo;
    agent_buf_t                          out;
    ngx_event_t                          event;
    ngx_msec_t                           started;
    ngx_uint_t                           tokens;
    unsigned                             head:1;
    unsigned                             done:1;
};


static ngx_int_t ngx_agent_echo_init_process(ngx_cycle_t *cycle);
static void ngx_agent_echo_exit_process(ngx_cycle_t *cycle);
static ngx_agent_transfer_t *ngx_agent_echo_start(
    ngx_agent_transfer_request_t *req);
static void ngx_agent_echo_cancel(ngx_agent_transfer_t *t);
static void ngx_agent_echo_handler(ngx_event_t *ev);


const ngx_agent_transport_t  ngx_agent_echo_transport = {
    ngx_agent_echo_init_process,
    ngx_agent_echo_exit_process,
    ngx_agent_echo_start,
    ngx_agent_echo_cancel,
    ngx_agent_echo_cancel
};


static ngx_int_t
ngx_agent_echo_init_process(ngx_cycle_t *cycle)
{
    return NGX_OK;
}


/* transfers have ended with their runs */

static void
ngx_agent_echo_exit_process(ngx_cycle_t *cycle)
{
}


static ngx_agent_transfer_t *
ngx_agent_echo_start(ngx_agent_transfer_request_t *req)
{
    ngx_agent_transfer_t  *t;

    t = ngx_calloc(sizeof(ngx_agent_transfer_t), ngx_cycle->log);
    if (t == NULL) {
        return NULL;
    }

    t->echo = agent_echo_create(agent_buf_str(&req->body), &agent_alloc_libc);

    if (t->echo == NULL) {
        ngx_free(t);
        return NULL;
    }

    agent_buf_free(&req->body);
    agent_buf_init(&t->out, &agent_alloc_libc);

    t->handlers = req->handlers;
    t->data = req->data;
    t->started = ngx_current_msec;

    t->event.handler = ngx_agent_echo_handler;
    t->event.data = t;
    t->event.log = ngx_cycle->log;
    t->event.cancelable = 1;

    ngx_post_event(&t->event, &ngx_posted_events);

    return t;
}


/* the handler below may be on the stack: it is freed by an event of its own */

static void
ngx_agent_echo_cancel(ngx_agent_transfer_t *t)
{
    t->handlers = NULL;

    if (t->event.timer_set) {
        ngx_del_timer(&t->event);
    }

    if (!t->event.posted) {
        ngx_post_event(&t->event, &ngx_posted_events);
    }
}


static void
ngx_agent_echo_free(ngx_agent_transfer_t *t)
{
    if (t->event.timer_set) {
        ngx_del_timer(&t->event);
    }

    if (t->event.posted) {
        ngx_delete_posted_event(&t->event);
    }

    agent_echo_destroy(t->echo);
    agent_buf_free(&t->out);
    ngx_free(t);
}


/* how many tokens are due now */

static ngx_uint_t
ngx_agent_echo_due(ngx_agent_transfer_t *t)
{
    ngx_uint_t  rate, due;

    rate = agent_echo_rate(t->echo);

    if (rate == 0) {
        return NGX_AGENT_ECHO_BATCH;
    }

    due = 1 + (ngx_current_msec - t->started) * rate / 1000;

    return due > t->tokens ? due - t->tokens : 0;
}


static void
ngx_agent_echo_handler(ngx_event_t *ev)
{
    ngx_agent_transfer_t *t = ev->data;

    void                                 *data;
    agent_rc_t                            rc;
    ngx_uint_t                            n, rate;
    const ngx_agent_transfer_handlers_t  *handlers;

    static ngx_str_t  type = ngx_string("text/event-stream");

    if (t->handlers == NULL) {
        ngx_agent_echo_free(t);
        return;
    }

    if (!t->head) {
        t->head = 1;
        t->handlers->head(t->data, NGX_HTTP_OK, &type, 0);
    }

    n = ngx_agent_echo_due(t);
    n = ngx_min(n, NGX_AGENT_ECHO_BATCH);

    rc = AGENT_OK;

    if (n) {
        agent_buf_reset(&t->out);
        rc = agent_echo_next(t->echo, (unsigned) n, &t->out);
        t->tokens += n;

        if (rc >= 0 && t->out.len) {
            (void) t->handlers->body(t->data, (u_char *) t->out.data,
                                     t->out.len);
        }
    }

    if (t->handlers == NULL) {
        return;                   /* cancelled meanwhile: its event is posted */
    }

    if (rc != AGENT_OK) {
        handlers = t->handlers;
        data = t->data;

        ngx_agent_echo_free(t);

        if (rc == AGENT_DONE) {
            handlers->done(data, NGX_AGENT_TRANSFER_OK, "", NULL);

        } else {
            handlers->done(data, NGX_AGENT_TRANSFER_FAILED, "no memory",
                           NULL);
        }

        return;
    }

    rate = agent_echo_rate(t->echo);

    if (rate == 0) {

        /* other requests have their turn between two batches */

        ngx_post_event(&t->event, &ngx_posted_next_events);
        return;
    }

    ngx_add_timer(&t->event, ngx_max(1000 / rate, 1));
}
