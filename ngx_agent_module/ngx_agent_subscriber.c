
/*
 * A request that reads a run: a cursor and a socket, no queue of its own.  A
 * slow client costs a cursor; each wake writes a bounded amount and waits for
 * the socket.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_PIECE        16384
#define NGX_AGENT_WAKE_BYTES   (64 * 1024)
#define NGX_AGENT_HEAD_DELAY   1000
#define NGX_AGENT_UNHEARD      1000
#define NGX_AGENT_LOOK_AGAIN   50


static void ngx_agent_subscriber_cleanup(void *data);
static void ngx_agent_subscriber_detach(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_keep_info(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_finalize(ngx_agent_subscriber_t *s,
    ngx_int_t rc);
static ngx_int_t ngx_agent_subscriber_head(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_subscriber_attached(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_subscriber_resumed(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_answer(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_answer_elsewhere(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_more(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_later(ngx_agent_subscriber_t *s,
    ngx_int_t rc);
static void ngx_agent_subscriber_write(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_stream(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_subscriber_next(ngx_agent_subscriber_t *s,
    ngx_chain_t **out);
static void ngx_agent_subscriber_write_handler(ngx_http_request_t *r);
static void ngx_agent_subscriber_timer_handler(ngx_event_t *ev);
static void ngx_agent_subscriber_more_handler(ngx_event_t *ev);
static void ngx_agent_subscriber_heartbeat(ngx_agent_subscriber_t *s);


static void
ngx_agent_subscriber_recycle(ngx_agent_subscriber_t *s, ngx_chain_t **out)
{
    ngx_chain_t  *cl;

    ngx_chain_update_chains(s->request->pool, &s->free, &s->busy, out,
                            (ngx_buf_tag_t) &ngx_http_agent_module);

    for (cl = s->free; cl && cl->buf->start; cl = cl->next) {
        ngx_agent_bytes_done(cl->buf);
    }
}


/* bytes to send; their reference is taken over */

static ngx_chain_t *
ngx_agent_subscriber_buf(ngx_agent_subscriber_t *s, ngx_agent_bytes_t *bytes)
{
    ngx_chain_t  *cl;

    if (bytes == NULL) {
        return NULL;
    }

    cl = ngx_agent_bytes_chain(s->request->pool, &s->free, bytes);

    ngx_agent_bytes_release(bytes);

    return cl;
}


/* --- attach, detach ----------------------------------------------------- */

void
ngx_agent_subscriber_attach(ngx_http_request_t *r, ngx_agent_feed_t *feed,
    ngx_agent_start_t *start)
{
    ngx_event_t             *rev;
    ngx_http_cleanup_t      *cln;
    ngx_pool_cleanup_t      *pcln;
    ngx_http_agent_ctx_t    *ctx;
    ngx_agent_subscriber_t  *s;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);

    s = ngx_pcalloc(r->pool, sizeof(ngx_agent_subscriber_t));
    cln = ngx_http_cleanup_add(r, 0);
    pcln = ngx_pool_cleanup_add(r->pool, 0);

    if (s == NULL || cln == NULL || pcln == NULL) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    s->request = r;
    s->ctx = ctx;
    s->feed = feed;
    s->lcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);
    s->start = *start;
    s->waited = start->at_once;
    s->sent = ngx_current_msec;
    agent_buf_init(&s->prelude, &agent_alloc_libc);
    agent_open_init(&s->open, &agent_alloc_libc);

    s->timer.handler = ngx_agent_subscriber_timer_handler;
    s->timer.data = s;
    s->timer.log = r->connection->log;

    s->more.handler = ngx_agent_subscriber_more_handler;
    s->more.data = s;
    s->more.log = r->connection->log;

    /*
     * Two ends: the request's, when it must leave the feed, and its pool's,
     * when no filter refers to the bytes any more.
     */

    cln->handler = (ngx_http_cleanup_pt) ngx_agent_subscriber_detach;
    cln->data = s;

    pcln->handler = ngx_agent_subscriber_cleanup;
    pcln->data = s;

    ctx->subscriber = s;
    ctx->model = feed->run ? feed->run->model : feed->agent->model;
    ctx->resume = start->resume;

    ngx_agent_feed_join(feed, s);

    if (!start->json) {
        ngx_agent_stat_add(streams, 1);
        ngx_agent_stat_gauge(streams, 1);
    }

    if (start->resume) {
        ngx_agent_stat_add(resumed, 1);

        if (*start->resume == 'u') {
            ngx_agent_stat_add(unknown, 1);
        }
    }

    r->write_event_handler = ngx_agent_subscriber_write_handler;
    r->read_event_handler = ngx_http_test_reading;

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    r->connection->log->action = "streaming a run";

    /* a run that is here answers from what it holds, without its log */

    if (start->json && feed->run) {
        ngx_agent_feed_wake(feed);
        return;
    }

    feed->store->subscribe(feed->events, &s->reader, start->seq);
    s->reading = 1;

    if (!start->json) {
        ngx_add_timer(&s->timer, NGX_AGENT_HEAD_DELAY);
    }

    if (start->attached || start->at_once) {
        ngx_agent_feed_wake(feed);
    }
}


/* keeps what the variables show */

static void
ngx_agent_subscriber_keep(ngx_agent_subscriber_t *s)
{
    ngx_agent_run_t       *run;
    const agent_usage_t   *usage;
    ngx_http_agent_ctx_t  *ctx;

    run = s->feed->run;
    ctx = s->ctx;

    ctx->events = s->feed->store->next_seq(s->feed->events);

    if (run == NULL) {
        ngx_agent_subscriber_keep_info(s);
        return;
    }

    usage = agent_encoder_usage(run->encoder);

    ctx->input_tokens = usage->input;
    ctx->output_tokens = usage->output;

    if (run->has_first) {
        ctx->first_token = (ngx_msec_int_t) run->first_token;
    }

    if (run->state != NGX_AGENT_OVER) {
        ctx->status = "detached";
        return;
    }

    ctx->status = ngx_agent_status_name(run->status);
    ctx->finish_reason = ngx_agent_run_reason(run);
}


/* the same of a run that is not here: what its record says */

static void
ngx_agent_subscriber_keep_info(ngx_agent_subscriber_t *s)
{
    agent_run_info_t       info;
    ngx_agent_feed_t      *feed;
    ngx_http_agent_ctx_t  *ctx;

    feed = s->feed;
    ctx = s->ctx;

    if (!s->terminal
        || ngx_agent_registry_info(feed->store->zone, feed->key, &info)
           != NGX_OK)
    {
        ctx->status = "detached";
        return;
    }

    ctx->input_tokens = info.usage.input;
    ctx->output_tokens = info.usage.output;
    ctx->status = ngx_agent_status_over(info.status)
                  ? ngx_agent_status_name(info.status) : "detached";

    if (info.status == NGX_AGENT_RUN_CANCELLED) {
        ctx->finish_reason = "cancelled";

    } else if (info.status == NGX_AGENT_RUN_ERROR) {
        ctx->finish_reason = agent_code_name(info.code);

    } else {
        ctx->finish_reason = agent_finish_name(s->finish);
    }
}


static void
ngx_agent_subscriber_detach(ngx_agent_subscriber_t *s)
{
    ngx_agent_feed_t  *feed;

    feed = s->feed;

    if (feed == NULL) {
        return;
    }

    ngx_agent_subscriber_keep(s);

    if (!s->start.json) {
        ngx_agent_stat_gauge(streams, -1);
    }

    s->feed = NULL;
    s->ctx->subscriber = NULL;

    if (s->timer.timer_set) {
        ngx_del_timer(&s->timer);
    }

    if (s->more.posted) {
        ngx_delete_posted_event(&s->more);
    }

    if (s->more.timer_set) {
        ngx_del_timer(&s->more);
    }

    if (s->reading) {
        feed->store->unsubscribe(feed->events, &s->reader);
        s->reading = 0;
    }

    ngx_agent_feed_leave(feed, s);
}


static void
ngx_agent_subscriber_cleanup(void *data)
{
    ngx_agent_subscriber_t *s = data;

    ngx_chain_t  *cl;

    for (cl = s->busy; cl; cl = cl->next) {
        ngx_agent_bytes_done(cl->buf);
    }

    for (cl = s->free; cl; cl = cl->next) {
        ngx_agent_bytes_done(cl->buf);
    }

    ngx_agent_prelude_drop(s);
    agent_open_free(&s->open);
    agent_fold_destroy(s->fold);

    if (s->snapshot) {
        ngx_agent_bytes_release(s->snapshot);
    }
}


static void
ngx_agent_subscriber_finalize(ngx_agent_subscriber_t *s, ngx_int_t rc)
{
    ngx_http_request_t  *r;

    r = s->request;

    ngx_agent_subscriber_detach(s);

    ngx_http_finalize_request(r, rc);
}


/* --- writing ------------------------------------------------------------ */

/*
 * Called from events that are not the request's own, where nobody else gives
 * subrequests their turn: a filter may have posted one and the stream waits for
 * it.
 */

void
ngx_agent_subscriber_pump(ngx_agent_subscriber_t *s)
{
    ngx_connection_t  *c;

    c = s->request->connection;

    ngx_agent_subscriber_write(s);

    /* the request may be gone, its connection says so */

    ngx_http_run_posted_requests(c);
}


static void
ngx_agent_subscriber_write(ngx_agent_subscriber_t *s)
{
    ngx_int_t  rc;

    if (s->start.json) {

        if (s->feed->run == NULL) {
            ngx_agent_subscriber_answer_elsewhere(s);

        } else if (s->feed->run->state == NGX_AGENT_OVER) {
            ngx_agent_subscriber_answer(s);
        }

        return;
    }

    if (s->start.prelude) {

        /* its place is known when it is made, and the head tells it */

        rc = ngx_agent_prelude(s);

        if (rc == NGX_AGAIN || rc == NGX_BUSY) {
            ngx_agent_subscriber_later(s, rc);
            return;
        }

        if (rc == NGX_ERROR) {
            ngx_agent_subscriber_finalize(s, s->head ? NGX_ERROR
                                          : NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }

        s->start.prelude = 0;
        s->start.seq = s->reader.seq;

        if (rc == NGX_OK && *s->start.resume == 'g') {
            ngx_agent_stat_add(gaps, 1);
        }
    }

    if (!s->head) {
        rc = ngx_agent_subscriber_head(s);

        if (rc == NGX_AGAIN || rc == NGX_DONE) {
            return;
        }

        if (rc != NGX_OK) {
            ngx_agent_subscriber_finalize(s, rc);
            return;
        }
    }

    ngx_agent_subscriber_stream(s);
}


/*
 * NGX_OK with *fault: the run failed before it said anything, and whoever
 * posted it hears of that as an HTTP status; NGX_DECLINED: not so, NGX_AGAIN:
 * not known yet, NGX_ERROR.
 */

static ngx_int_t
ngx_agent_subscriber_failed(ngx_agent_subscriber_t *s,
    const agent_fault_t **fault)
{
    ngx_int_t          rc;
    agent_run_info_t   info;
    ngx_agent_run_t   *run;
    ngx_agent_feed_t  *feed;

    feed = s->feed;
    run = feed->run;

    if (s->start.at_once) {
        return NGX_DECLINED;
    }

    if (run) {
        if (run->state != NGX_AGENT_OVER || run->has_first
            || run->status != NGX_AGENT_RUN_ERROR)
        {
            return NGX_DECLINED;
        }

        *fault = agent_encoder_fault(run->encoder);

        return *fault ? NGX_OK : NGX_ERROR;
    }

    /* of a run elsewhere the record knows that, and the log why */

    if (ngx_agent_registry_info(feed->store->zone, feed->key, &info) != NGX_OK
        || info.generation != feed->store->generation(feed->events))
    {
        return NGX_DECLINED;
    }

    if (!ngx_agent_status_over(info.status)) {
        return (info.next_seq > 1 || s->waited) ? NGX_DECLINED : NGX_AGAIN;
    }

    if (info.status != NGX_AGENT_RUN_ERROR || info.content) {
        return NGX_DECLINED;
    }

    rc = ngx_agent_prelude_answer(s);

    if (rc != NGX_OK) {
        return rc;
    }

    *fault = s->fault;

    return s->fault ? NGX_OK : NGX_ERROR;
}


/*
 * The head leaves with the first event after RUN_STARTED or after a second of
 * waiting; a failure before that is a real HTTP status.
 *
 * NGX_OK: it has left; NGX_AGAIN: not yet; NGX_DONE: the request was answered
 * and finalized; else what to finalize it with.
 */

static ngx_int_t
ngx_agent_subscriber_head(ngx_agent_subscriber_t *s)
{
    ngx_int_t                  rc;
    ngx_str_t                  value;
    ngx_agent_run_t           *run;
    const agent_fault_t       *fault;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_str_t  no_cache = ngx_string("no-cache, no-store, "
                                            "no-transform");

    run = s->feed->run;
    r = s->request;

    rc = ngx_agent_subscriber_failed(s, &fault);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    if (rc == NGX_OK) {
        ngx_agent_subscriber_keep(s);

        rc = ngx_http_agent_error(r, fault);

        ngx_agent_subscriber_finalize(s, rc);

        return NGX_DONE;
    }

    if (run && run->state != NGX_AGENT_OVER && !s->waited
        && s->feed->store->next_seq(s->feed->events) <= 1)
    {
        return NGX_AGAIN;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    /* small writes must not wait for the client's acknowledgement */

    if (clcf->tcp_nodelay && !ngx_agent_is_multiplexed(r)
        && ngx_tcp_nodelay(r->connection) != NGX_OK)
    {
        return NGX_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;

    ngx_str_set(&r->headers_out.content_type, "text/event-stream");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_http_clear_content_length(r);
    ngx_http_clear_accept_ranges(r);

    ngx_str_set(&value, "no");

    if (ngx_http_agent_add_header(r, "Cache-Control", &no_cache) != NGX_OK
        || ngx_http_agent_add_header(r, "X-Accel-Buffering", &value) != NGX_OK
        || ngx_http_agent_id_headers(r) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_agent_subscriber_attached(s) != NGX_OK
        || ngx_agent_subscriber_resumed(s) != NGX_OK)
    {
        return NGX_ERROR;
    }

    s->head = 1;
    s->head_kept = 1;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        ngx_agent_subscriber_finalize(s, rc);
        return NGX_DONE;
    }

    if (s->timer.timer_set) {
        ngx_del_timer(&s->timer);
    }

    if (s->lcf->heartbeat) {
        ngx_add_timer(&s->timer, s->lcf->heartbeat);
    }

    return NGX_OK;
}


static ngx_int_t
ngx_agent_subscriber_attached(ngx_agent_subscriber_t *s)
{
    ngx_str_t  value = ngx_string("1");

    if (!s->start.attached) {
        return NGX_OK;
    }

    return ngx_http_agent_add_header(s->request, "X-Agent-Attached", &value);
}


/* of a stream that was asked for by a cursor: where it begins */

static ngx_int_t
ngx_agent_subscriber_resumed(ngx_agent_subscriber_t *s)
{
    u_char     cursor[AGENT_CURSOR_MAX];
    ngx_str_t  value;

    if (s->start.resume == NULL) {
        return NGX_OK;
    }

    value.data = (u_char *) s->start.resume;
    value.len = ngx_strlen(s->start.resume);

    if (ngx_http_agent_add_header(s->request, "X-Agent-Resume", &value)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (s->start.seq == 0) {
        return NGX_OK;
    }

    value.len = agent_cursor_print((char *) cursor,
                              s->feed->store->generation(s->feed->events),
                              s->start.seq - 1);

    value.data = ngx_pnalloc(s->request->pool, value.len);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(value.data, cursor, value.len);

    return ngx_http_agent_add_header(s->request, "X-Agent-Last-Event-ID",
                                     &value);
}


/* a JSON answer of a run that is not here: folded from its log */

static void
ngx_agent_subscriber_answer_elsewhere(ngx_agent_subscriber_t *s)
{
    ngx_int_t    rc;
    agent_buf_t  b;

    rc = ngx_agent_prelude_answer(s);

    if (rc == NGX_AGAIN) {
        ngx_agent_subscriber_more(s);
        return;
    }

    if (rc == NGX_DECLINED) {
        rc = ngx_http_agent_code(s->request, AGENT_CODE_GONE,
                                 "not all of the run's events are kept");

    } else if (rc == NGX_ERROR) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;

    } else if (!s->terminal) {
        return;

    } else if (ngx_agent_subscriber_attached(s) != NGX_OK) {
        rc = NGX_ERROR;

    } else if (s->fault) {
        rc = ngx_http_agent_error(s->request, s->fault);

    } else if (agent_fold_trimmed(s->fold)) {
        rc = ngx_http_agent_code(s->request, AGENT_CODE_UPSTREAM_ERROR,
                                 "the answer is too large for a JSON answer, "
                                 "ask for a stream");

    } else {
        agent_buf_init(&b, &agent_alloc_libc);
        agent_fold_answer(s->fold, &b);

        rc = agent_buf_ok(&b)
             ? ngx_http_agent_json(s->request, NGX_HTTP_OK, agent_buf_str(&b))
             : NGX_HTTP_INTERNAL_SERVER_ERROR;

        agent_buf_free(&b);
    }

    ngx_agent_subscriber_finalize(s, rc);
}


static void
ngx_agent_subscriber_answer(ngx_agent_subscriber_t *s)
{
    ngx_int_t             rc;
    agent_buf_t           b;
    ngx_agent_run_t      *run;
    const agent_fault_t  *fault;

    run = s->feed->run;

    if (ngx_agent_subscriber_attached(s) != NGX_OK) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    if (run->status == NGX_AGENT_RUN_ERROR) {
        fault = agent_encoder_fault(run->encoder);

        if (fault == NULL) {
            ngx_agent_subscriber_finalize(s, NGX_HTTP_INTERNAL_SERVER_ERROR);
            return;
        }

        ngx_agent_subscriber_keep(s);
        rc = ngx_http_agent_error(s->request, fault);
        ngx_agent_subscriber_finalize(s, rc);
        return;
    }

    if (agent_encoder_trimmed(run->encoder)) {
        ngx_agent_subscriber_keep(s);
        rc = ngx_http_agent_code(s->request, AGENT_CODE_UPSTREAM_ERROR,
                                 "the answer is too large for a JSON answer, "
                                 "ask for a stream");
        ngx_agent_subscriber_finalize(s, rc);
        return;
    }

    agent_buf_init(&b, &agent_alloc_libc);
    agent_encoder_answer(run->encoder, &b);

    if (agent_buf_ok(&b)) {
        rc = ngx_http_agent_json(s->request, NGX_HTTP_OK, agent_buf_str(&b));

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    agent_buf_free(&b);

    ngx_agent_subscriber_finalize(s, rc);
}


/* goes on in the next turn of the loop: others come first */

static void
ngx_agent_subscriber_more(ngx_agent_subscriber_t *s)
{
    if (!s->more.posted) {
        ngx_post_event(&s->more, &ngx_posted_next_events);
    }
}


/* NGX_AGAIN of a prelude: in the next turn; NGX_BUSY: in a while */

static void
ngx_agent_subscriber_later(ngx_agent_subscriber_t *s, ngx_int_t rc)
{
    if (rc == NGX_AGAIN) {
        ngx_agent_subscriber_more(s);

    } else if (!s->more.timer_set) {
        ngx_add_timer(&s->more, NGX_AGENT_LOOK_AGAIN);
    }
}


static void
ngx_agent_subscriber_stream(ngx_agent_subscriber_t *s)
{
    off_t                      sent;
    size_t                     n;
    ngx_int_t                  rc;
    ngx_chain_t               *out;
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_core_loc_conf_t  *clcf;

    r = s->request;
    c = r->connection;
    wev = c->write;
    sent = c->sent;
    n = 0;

    for ( ;; ) {

        out = NULL;

        if (s->busy == NULL) {

            if (ngx_agent_subscriber_next(s, &out) != NGX_OK) {
                ngx_agent_subscriber_finalize(s, NGX_ERROR);
                return;
            }

            if (out == NULL) {

                /* nginx keeps a head back until something follows it */

                if (s->head_kept) {
                    s->head_kept = 0;

                    if (ngx_http_send_special(r, NGX_HTTP_FLUSH) == NGX_ERROR)
                    {
                        ngx_agent_subscriber_finalize(s, NGX_ERROR);
                        return;
                    }
                }

                break;
            }

            s->head_kept = 0;

            n += out->buf->last - out->buf->pos;
            s->feed->turn += out->buf->last - out->buf->pos;
        }

        rc = ngx_http_output_filter(r, out);

        if (rc == NGX_ERROR) {
            ngx_agent_subscriber_recycle(s, &out);
            ngx_agent_subscriber_finalize(s, NGX_ERROR);
            return;
        }

        ngx_agent_subscriber_recycle(s, &out);

        if (s->terminal) {

            ngx_agent_stat_add(bytes, n);

            /* nginx itself sends what is still buffered */

            ngx_agent_subscriber_finalize(s, rc);
            return;
        }

        if (s->busy) {
            break;
        }

        s->sent = ngx_current_msec;

        if (n >= NGX_AGENT_WAKE_BYTES) {

            ngx_agent_subscriber_more(s);
            break;
        }
    }

    if (n) {
        ngx_agent_stat_add(bytes, n);
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (s->busy || c->buffered) {

        /* the clock of a client that takes nothing is not set back by news */

        if (!wev->delayed && (!wev->timer_set || c->sent != sent)) {
            ngx_add_timer(wev, clcf->send_timeout);
        }

        if (ngx_handle_write_event(wev, clcf->send_lowat) != NGX_OK) {
            ngx_agent_subscriber_finalize(s, NGX_ERROR);
        }

        return;
    }

    if (wev->timer_set && !wev->delayed) {
        ngx_del_timer(wev);
    }
}


/* a piece of the snapshot that all readers at this place share */

static ngx_chain_t *
ngx_agent_subscriber_snapshot(ngx_agent_subscriber_t *s)
{
    size_t              n;
    ngx_chain_t        *cl;
    ngx_agent_bytes_t  *bytes;

    bytes = s->snapshot;

    cl = ngx_agent_bytes_chain(s->request->pool, &s->free, bytes);
    if (cl == NULL) {
        return NULL;
    }

    n = ngx_min(bytes->len - s->snapshot_sent, NGX_AGENT_PIECE);

    cl->buf->pos = bytes->data + s->snapshot_sent;
    cl->buf->last = cl->buf->pos + n;

    s->snapshot_sent += n;

    if (s->snapshot_sent == bytes->len) {
        s->snapshot = NULL;
        ngx_agent_bytes_release(bytes);
    }

    return cl;
}


/* the terminal event, of a run that is here and whose log is gone; NULL: no
 * memory */

static ngx_agent_bytes_t *
ngx_agent_subscriber_last(ngx_agent_subscriber_t *s)
{
    char               *p;
    agent_event_t       ev;
    ngx_agent_run_t    *run;
    ngx_agent_feed_t   *feed;
    ngx_agent_bytes_t  *bytes;

    feed = s->feed;
    run = feed->run;

    ngx_memzero(&ev, sizeof(agent_event_t));

    ev.type = run->last_type;
    ev.body = agent_buf_str(&run->last);

    p = ngx_alloc(agent_frame_agui_len(&ev), ngx_cycle->log);
    if (p == NULL) {
        return NULL;
    }

    bytes = ngx_agent_bytes_create(p,
                agent_frame_agui(p, feed->store->generation(feed->events),
                                 s->reader.seq, &ev)
                - p, NULL);

    ngx_free(p);

    return bytes;
}


/* the next buffer to send: what is left of a prelude, else events */

static ngx_int_t
ngx_agent_subscriber_next(ngx_agent_subscriber_t *s, ngx_chain_t **out)
{
    size_t              n;
    ngx_int_t           rc;
    ngx_uint_t          terminal;
    ngx_chain_t        *cl;
    ngx_agent_run_t    *run;
    ngx_agent_feed_t   *feed;
    ngx_agent_bytes_t  *bytes;

    feed = s->feed;
    run = feed->run;

    if (s->reader.gap) {
        s->reader.gap = 0;
        s->lost = 1;
    }

again:

    if (s->lost) {
        rc = ngx_agent_prelude(s);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_AGAIN || rc == NGX_BUSY) {
            ngx_agent_subscriber_later(s, rc);
            return NGX_OK;
        }

        s->lost = 0;

        if (rc == NGX_OK) {
            ngx_agent_stat_add(gaps, 1);
        }
    }

    n = s->prelude.len - s->prelude_sent;

    if (n == 0 && s->snapshot) {
        cl = ngx_agent_subscriber_snapshot(s);

        if (cl == NULL) {
            return NGX_ERROR;
        }

        goto found;
    }

    if (n) {
        n = ngx_min(n, NGX_AGENT_PIECE);

        cl = ngx_agent_subscriber_buf(s,
                  ngx_agent_bytes_create(s->prelude.data + s->prelude_sent, n,
                                         NULL));

        if (cl == NULL) {
            return NGX_ERROR;
        }

        s->prelude_sent += n;

        if (s->prelude_sent == s->prelude.len) {
            ngx_agent_prelude_drop(s);

            s->terminal = s->last_word;
        }

        goto found;
    }

    if (run && s->reader.seq == feed->store->next_seq(feed->events)) {

        if (run->state != NGX_AGENT_OVER) {
            return NGX_OK;
        }

        /* over without a terminal event in the log */

        if (ngx_agent_prelude_last_word(s, AGENT_CODE_INTERNAL,
                                        "the run ended without its last event")
            == NGX_ERROR)
        {
            return NGX_ERROR;
        }

        goto again;
    }

    rc = ngx_agent_frames_read(feed, &s->reader, &s->open, &bytes, &terminal,
                               &s->finish);

    switch (rc) {

    case NGX_OK:
        break;

    case NGX_DONE:
        return NGX_OK;

    case NGX_DECLINED:

        /* overtaken while the client was slow */

        s->lost = 1;
        goto again;

    case NGX_ABORT:

        /* the run is here and over, and its log had to make room */

        if (run && run->last.len && agent_buf_ok(&run->last)) {

            if (s->reader.seq + 1 < feed->store->next_seq(feed->events)) {
                s->lost = 1;
                goto again;
            }

            bytes = ngx_agent_subscriber_last(s);
            terminal = 1;

            break;
        }

        if (ngx_agent_prelude_last_word(s, AGENT_CODE_GAP,
                                        "the events of the run are no longer "
                                        "kept")
            == NGX_ERROR)
        {
            return NGX_ERROR;
        }

        goto again;

    default:
        return NGX_ERROR;
    }

    cl = ngx_agent_subscriber_buf(s, bytes);

    if (cl == NULL) {
        return NGX_ERROR;
    }

    s->begun = 1;
    s->terminal = (terminal != 0);

found:

    if (s->terminal) {
        cl->buf->last_buf = 1;
        cl->buf->last_in_chain = 1;
    }

    *out = cl;

    return NGX_OK;
}


/* --- events of the client's connection ---------------------------------- */

static void
ngx_agent_subscriber_write_handler(ngx_http_request_t *r)
{
    ngx_event_t               *wev;
    ngx_connection_t          *c;
    ngx_http_agent_ctx_t      *ctx;
    ngx_agent_subscriber_t    *s;
    ngx_http_core_loc_conf_t  *clcf;

    c = r->connection;
    wev = c->write;

    ctx = ngx_http_agent_find_ctx(r);

    if (ctx == NULL || ctx->subscriber == NULL) {
        return;
    }

    s = ctx->subscriber;

    if (wev->timedout) {
        ngx_log_error(NGX_LOG_INFO, c->log, NGX_ETIMEDOUT,
                      "client timed out");
        c->timedout = 1;

        ngx_agent_subscriber_finalize(s, NGX_HTTP_REQUEST_TIME_OUT);
        return;
    }

    if (wev->delayed) {
        clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

        if (ngx_handle_write_event(wev, clcf->send_lowat) != NGX_OK) {
            ngx_agent_subscriber_finalize(s, NGX_ERROR);
        }

        return;
    }

    if (s->head) {
        ngx_agent_subscriber_stream(s);
    }
}


static void
ngx_agent_subscriber_more_handler(ngx_event_t *ev)
{
    ngx_agent_subscriber_t *s = ev->data;

    ngx_agent_feed_t  *feed;

    feed = s->feed;

    ngx_agent_subscriber_pump(s);

    /* what was read can be freed, and the feed, if this was its last reader */

    ngx_agent_feed_wake(feed);
}


static void
ngx_agent_subscriber_timer_handler(ngx_event_t *ev)
{
    ngx_agent_subscriber_t *s = ev->data;

    ngx_connection_t  *c;

    c = s->request->connection;

    if (s->head) {
        ngx_agent_subscriber_heartbeat(s);

    } else {
        s->waited = 1;
        ngx_agent_subscriber_write(s);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * Events of a run elsewhere that no bell told of must not be.  Its owner may
 * just be about to ring, so they count when they are still there a second
 * later.  NGX_AGAIN: look then.
 */

static ngx_int_t
ngx_agent_subscriber_unheard(ngx_agent_subscriber_t *s)
{
    ngx_agent_feed_t      *feed;
    ngx_agent_run_info_t   info;

    feed = s->feed;

    if (feed->run || s->lost || s->dirty || s->more.posted || feed->wake.posted
        || ngx_agent_registry_info(feed->store->zone, feed->key, &info)
           != NGX_OK
        || info.generation != feed->store->generation(feed->events)
        || info.next_seq <= s->reader.seq
        || ngx_agent_bell_pending())
    {
        s->unheard = 0;
        return NGX_OK;
    }

    if (s->unheard != s->reader.seq + 1) {
        s->unheard = s->reader.seq + 1;
        return NGX_AGAIN;
    }

    s->unheard = 0;

    (void) ngx_atomic_fetch_add(&ngx_agent_shared->bells_lost, 1);

    return NGX_OK;
}


static void
ngx_agent_subscriber_heartbeat(ngx_agent_subscriber_t *s)
{
    ngx_int_t            rc;
    ngx_msec_t           idle;
    ngx_chain_t         *cl;
    ngx_http_request_t  *r;

    static const u_char  ping[] = ": ping\n\n";

    idle = ngx_current_msec - s->sent;

    if (idle < s->lcf->heartbeat) {
        ngx_add_timer(&s->timer, s->lcf->heartbeat - idle);
        return;
    }

    /*
     * A client that still has bytes to take needs no more of them, and a frame
     * of a prelude may be on its way in pieces.
     */

    if (s->busy || s->prelude_sent || s->snapshot) {
        ngx_add_timer(&s->timer, s->lcf->heartbeat);
        return;
    }

    if (ngx_agent_subscriber_unheard(s) == NGX_AGAIN) {
        ngx_add_timer(&s->timer, NGX_AGENT_UNHEARD);
        return;
    }

    ngx_add_timer(&s->timer, s->lcf->heartbeat);

    r = s->request;

    cl = ngx_agent_subscriber_buf(s, ngx_agent_bytes_create(ping,
                                                          sizeof(ping) - 1,
                                                          NULL));
    if (cl == NULL) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    rc = ngx_http_output_filter(r, cl);

    ngx_agent_subscriber_recycle(s, &cl);

    if (rc == NGX_ERROR) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    s->sent = ngx_current_msec;

    ngx_agent_subscriber_stream(s);
}
