
/*
 * A request that reads a run: a cursor and a socket, no queue of its own.  A
 * slow client costs a cursor; each wake writes a bounded amount and waits for
 * the socket.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_BLOCK        16384
#define NGX_AGENT_SPARE        64
#define NGX_AGENT_WAKE_BYTES   (64 * 1024)
#define NGX_AGENT_HEAD_DELAY   1000
#define NGX_AGENT_PRELUDES     (64 * 1024 * 1024)


typedef struct {
    ngx_agent_subscriber_t  *subscriber;
    u_char                  *pos;
    u_char                  *end;
    size_t                   need;      /* of an event larger than a block */
} ngx_agent_fill_t;


typedef struct {
    agent_buf_t             *out;
    agent_open_t            *open;      /* NULL: these events close it */
    size_t                   last;      /* where the last frame begins */
} ngx_agent_prelude_t;


static void ngx_agent_subscriber_cleanup(void *data);
static void ngx_agent_subscriber_detach(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_finalize(ngx_agent_subscriber_t *s,
    ngx_int_t rc);
static ngx_int_t ngx_agent_subscriber_head(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_subscriber_attached(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_answer(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_write(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_stream(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_subscriber_next(ngx_agent_subscriber_t *s,
    ngx_chain_t **out);
static ngx_int_t ngx_agent_subscriber_prelude(ngx_agent_subscriber_t *s,
    ngx_uint_t inplace);
static void ngx_agent_subscriber_last_word(ngx_agent_subscriber_t *s,
    agent_code_t code, const char *message);
static void ngx_agent_subscriber_drop_prelude(ngx_agent_subscriber_t *s);
static void ngx_agent_subscriber_write_handler(ngx_http_request_t *r);
static void ngx_agent_subscriber_timer_handler(ngx_event_t *ev);
static void ngx_agent_subscriber_more_handler(ngx_event_t *ev);
static void ngx_agent_subscriber_heartbeat(ngx_agent_subscriber_t *s);


/* bytes of preludes on their way, in this worker */

static size_t  ngx_agent_preludes;


/* --- blocks: memory of the bytes on their way, given back when sent ----- */

static u_char      *ngx_agent_blocks;
static ngx_uint_t   ngx_agent_nblocks;


static u_char *
ngx_agent_block_alloc(size_t size)
{
    u_char  *p;

    if (size <= NGX_AGENT_BLOCK && ngx_agent_blocks) {
        p = ngx_agent_blocks;
        ngx_memcpy(&ngx_agent_blocks, p, sizeof(u_char *));
        ngx_agent_nblocks--;

        return p;
    }

    return ngx_alloc(ngx_max(size, NGX_AGENT_BLOCK), ngx_cycle->log);
}


static void
ngx_agent_block_free(ngx_buf_t *b)
{
    if (b->start == NULL) {
        return;
    }

    if (b->end - b->start == NGX_AGENT_BLOCK
        && ngx_agent_nblocks < NGX_AGENT_SPARE)
    {
        ngx_memcpy(b->start, &ngx_agent_blocks, sizeof(u_char *));
        ngx_agent_blocks = b->start;
        ngx_agent_nblocks++;

    } else {
        ngx_free(b->start);
    }

    b->start = NULL;
    b->pos = NULL;
    b->last = NULL;
    b->end = NULL;
}


static ngx_chain_t *
ngx_agent_subscriber_buf(ngx_agent_subscriber_t *s, size_t size)
{
    u_char       *p;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ngx_chain_get_free_buf(s->request->pool, &s->free);
    if (cl == NULL) {
        return NULL;
    }

    p = ngx_agent_block_alloc(size);

    if (p == NULL) {
        cl->next = s->free;
        s->free = cl;
        return NULL;
    }

    b = cl->buf;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = p;
    b->pos = p;
    b->last = p;
    b->end = p + ngx_max(size, NGX_AGENT_BLOCK);
    b->temporary = 1;
    b->flush = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_agent_module;

    return cl;
}


static void
ngx_agent_subscriber_recycle(ngx_agent_subscriber_t *s, ngx_chain_t **out)
{
    ngx_chain_t  *cl;

    ngx_chain_update_chains(s->request->pool, &s->free, &s->busy, out,
                            (ngx_buf_tag_t) &ngx_http_agent_module);

    for (cl = s->free; cl && cl->buf->start; cl = cl->next) {
        ngx_agent_block_free(cl->buf);
    }
}


/* --- attach, detach ----------------------------------------------------- */

void
ngx_agent_subscriber_attach(ngx_http_request_t *r, ngx_agent_run_t *run,
    ngx_uint_t json, ngx_uint_t attached)
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
    s->run = run;
    s->lcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);
    s->json = json;
    s->attached = attached;
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
     * Two ends: the request's, when it must leave the run, and its pool's,
     * when no filter refers to the blocks any more.
     */

    cln->handler = (ngx_http_cleanup_pt) ngx_agent_subscriber_detach;
    cln->data = s;

    pcln->handler = ngx_agent_subscriber_cleanup;
    pcln->data = s;

    ctx->subscriber = s;
    ctx->model = run->model;

    ngx_agent_run_join(run, s);

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

    if (json) {
        ngx_agent_run_wake(run);
        return;
    }

    run->store->subscribe(run->events, &s->reader, 0);
    s->reading = 1;

    ngx_add_timer(&s->timer, NGX_AGENT_HEAD_DELAY);

    if (attached) {
        ngx_agent_run_wake(run);
    }
}


/* keeps what the variables show */

static void
ngx_agent_subscriber_keep(ngx_agent_subscriber_t *s)
{
    ngx_agent_run_t       *run;
    const agent_usage_t   *usage;
    ngx_http_agent_ctx_t  *ctx;

    run = s->run;
    ctx = s->ctx;
    usage = agent_encoder_usage(run->encoder);

    ctx->input_tokens = usage->input;
    ctx->output_tokens = usage->output;
    ctx->events = run->store->next_seq(run->events);

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


static void
ngx_agent_subscriber_detach(ngx_agent_subscriber_t *s)
{
    ngx_agent_run_t  *run;

    run = s->run;

    if (run == NULL) {
        return;
    }

    ngx_agent_subscriber_keep(s);

    s->run = NULL;
    s->ctx->subscriber = NULL;

    if (s->timer.timer_set) {
        ngx_del_timer(&s->timer);
    }

    if (s->more.posted) {
        ngx_delete_posted_event(&s->more);
    }

    if (s->reading) {
        run->store->unsubscribe(run->events, &s->reader);
        s->reading = 0;
    }

    ngx_agent_run_leave(run, s);
}


static void
ngx_agent_subscriber_drop_prelude(ngx_agent_subscriber_t *s)
{
    ngx_agent_preludes -= s->prelude.cap;

    agent_buf_free(&s->prelude);
    s->prelude_sent = 0;
}


static void
ngx_agent_subscriber_cleanup(void *data)
{
    ngx_agent_subscriber_t *s = data;

    ngx_chain_t  *cl;

    for (cl = s->busy; cl; cl = cl->next) {
        if (cl->buf->tag == (ngx_buf_tag_t) &ngx_http_agent_module) {
            ngx_agent_block_free(cl->buf);
        }
    }

    for (cl = s->free; cl; cl = cl->next) {
        ngx_agent_block_free(cl->buf);
    }

    ngx_agent_subscriber_drop_prelude(s);
    agent_open_free(&s->open);
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

    if (s->json) {
        if (s->run->state == NGX_AGENT_OVER) {
            ngx_agent_subscriber_answer(s);
        }

        return;
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

    run = s->run;
    r = s->request;

    if (run->state == NGX_AGENT_OVER && run->status == NGX_AGENT_RUN_ERROR
        && !run->has_first)
    {
        fault = agent_encoder_fault(run->encoder);

        if (fault == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_agent_subscriber_keep(s);

        rc = ngx_http_agent_error(r, fault);

        ngx_agent_subscriber_finalize(s, rc);

        return NGX_DONE;
    }

    if (run->store->next_seq(run->events) <= 1 && !s->waited
        && run->state != NGX_AGENT_OVER)
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

    if (ngx_agent_subscriber_attached(s) != NGX_OK) {
        return NGX_ERROR;
    }

    s->head = 1;

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

    if (!s->attached) {
        return NGX_OK;
    }

    return ngx_http_agent_add_header(s->request, "X-Agent-Attached", &value);
}


static void
ngx_agent_subscriber_answer(ngx_agent_subscriber_t *s)
{
    ngx_int_t             rc;
    agent_buf_t           b;
    ngx_agent_run_t      *run;
    const agent_fault_t  *fault;

    run = s->run;

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
                break;
            }

            n += out->buf->last - out->buf->pos;
            s->run->turn += out->buf->last - out->buf->pos;
        }

        rc = ngx_http_output_filter(r, out);

        if (rc == NGX_ERROR) {
            ngx_agent_subscriber_recycle(s, &out);
            ngx_agent_subscriber_finalize(s, NGX_ERROR);
            return;
        }

        ngx_agent_subscriber_recycle(s, &out);

        if (s->terminal) {

            /* nginx itself sends what is still buffered */

            ngx_agent_subscriber_finalize(s, rc);
            return;
        }

        if (s->busy) {
            break;
        }

        s->sent = ngx_current_msec;

        if (n >= NGX_AGENT_WAKE_BYTES) {

            /* others have their turn first */

            if (!s->more.posted) {
                ngx_post_event(&s->more, &ngx_posted_next_events);
            }

            break;
        }
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


/* one event of the log: its frame, if it still fits */

static agent_rc_t
ngx_agent_subscriber_frame(void *data, uint64_t generation, uint64_t seq,
    const agent_event_t *ev)
{
    ngx_agent_fill_t *fill = data;

    size_t  len;

    len = agent_frame_agui_len(ev);

    if (len > (size_t) (fill->end - fill->pos)) {
        fill->need = len;
        return AGENT_ABORTED;
    }

    if (!agent_event_is_delta(ev->type)
        && agent_open_note(&fill->subscriber->open, ev) != AGENT_OK)
    {
        return AGENT_NOMEM;
    }

    fill->pos = (u_char *) agent_frame_agui((char *) fill->pos, generation,
                                            seq, ev);

    if (agent_event_is_terminal(ev->type)) {
        fill->subscriber->terminal = 1;
    }

    return AGENT_OK;
}


/* the next buffer to send: what is left of a prelude, else events */

static ngx_int_t
ngx_agent_subscriber_next(ngx_agent_subscriber_t *s, ngx_chain_t **out)
{
    size_t             n;
    ngx_int_t          rc;
    ngx_buf_t         *b;
    ngx_chain_t       *cl;
    ngx_agent_run_t   *run;
    ngx_agent_fill_t   fill;

    run = s->run;

    if (s->reader.gap) {
        s->reader.gap = 0;

        if (ngx_agent_subscriber_prelude(s, s->begun) != NGX_OK) {
            return NGX_ERROR;
        }
    }

again:

    n = s->prelude.len - s->prelude_sent;

    if (n) {
        cl = ngx_agent_subscriber_buf(s, NGX_AGENT_BLOCK);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        n = ngx_min(n, NGX_AGENT_BLOCK);

        cl->buf->last = ngx_cpymem(cl->buf->last,
                                   s->prelude.data + s->prelude_sent, n);
        s->prelude_sent += n;

        if (s->prelude_sent == s->prelude.len) {
            ngx_agent_subscriber_drop_prelude(s);

            if (s->last_word) {
                s->terminal = 1;
                cl->buf->last_buf = 1;
                cl->buf->last_in_chain = 1;
            }
        }

        *out = cl;

        return NGX_OK;
    }

    if (s->reader.seq == run->store->next_seq(run->events)) {

        if (run->state != NGX_AGENT_OVER) {
            return NGX_OK;
        }

        /* over without a terminal event in the log */

        ngx_agent_subscriber_last_word(s, AGENT_CODE_INTERNAL,
                                       "the run ended without its last event");
        goto again;
    }

    fill.need = NGX_AGENT_BLOCK;

    for ( ;; ) {
        cl = ngx_agent_subscriber_buf(s, fill.need);
        if (cl == NULL) {
            return NGX_ERROR;
        }

        b = cl->buf;

        fill.subscriber = s;
        fill.pos = b->last;
        fill.end = b->end;
        fill.need = 0;

        rc = run->store->read(run->events, &s->reader,
                              ngx_agent_subscriber_frame, &fill);

        b->last = fill.pos;

        if (b->last != b->pos) {
            break;
        }

        ngx_agent_block_free(b);
        cl->next = s->free;
        s->free = cl;

        if (rc == NGX_DECLINED) {

            /* overtaken while the client was slow */

            if (ngx_agent_subscriber_prelude(s, s->begun) != NGX_OK) {
                return NGX_ERROR;
            }

            goto again;
        }

        if (fill.need == 0) {
            return NGX_OK;
        }
    }

    s->begun = 1;

    if (s->terminal) {
        b->last_buf = 1;
        b->last_in_chain = 1;
    }

    *out = cl;

    return NGX_OK;
}


/* --- readers that lost their place -------------------------------------- */

static agent_rc_t
ngx_agent_prelude_frame(void *data, const agent_event_t *ev)
{
    ngx_agent_prelude_t *p = data;

    if (p->open && agent_open_note(p->open, ev) != AGENT_OK) {
        return AGENT_NOMEM;
    }

    p->last = p->out->len;

    agent_buf_add_lit(p->out, "data: ");
    agent_event_json(p->out, ev);
    agent_buf_add_lit(p->out, "\n\n");

    return agent_buf_ok(p->out) ? AGENT_OK : AGENT_NOMEM;
}


/*
 * What was lost is told as a snapshot that stands for the present end of the
 * log; the id of that place goes with its last frame.
 */

static ngx_int_t
ngx_agent_subscriber_prelude(ngx_agent_subscriber_t *s, ngx_uint_t inplace)
{
    char                  cursor[AGENT_CURSOR_MAX];
    size_t                n, tail;
    uint64_t              seq;
    agent_rc_t            rc;
    agent_str_t           input;
    agent_buf_t           out;
    ngx_agent_run_t      *run;
    ngx_agent_prelude_t   p;

    run = s->run;

    if (ngx_agent_run_input(run, &input) != NGX_OK) {
        ngx_agent_subscriber_last_word(s, AGENT_CODE_GAP,
                                       "events were lost and the request was "
                                       "too large to be kept for a snapshot");
        return NGX_OK;
    }

    if (ngx_agent_preludes > NGX_AGENT_PRELUDES) {
        ngx_agent_subscriber_last_word(s, AGENT_CODE_GAP,
                                       "events were lost and too many readers "
                                       "wait for a snapshot");
        return NGX_OK;
    }

    seq = run->store->next_seq(run->events);

    if (run->state == NGX_AGENT_OVER) {
        seq--;                                  /* the terminal event */
    }

    agent_buf_init(&out, &agent_alloc_libc);

    p.out = &out;
    p.open = NULL;
    p.last = 0;

    rc = agent_open_close(&s->open, ngx_agent_prelude_frame, &p);

    if (rc == AGENT_OK) {
        p.open = &s->open;

        rc = agent_encoder_prelude(run->encoder, input, (int) inplace,
                                   ngx_agent_prelude_frame, &p);
    }

    if (rc != AGENT_OK || seq == 0) {
        agent_buf_free(&out);
        return NGX_ERROR;
    }

    if (out.len) {
        n = agent_cursor_print(cursor, run->store->generation(run->events),
                               seq - 1);

        /* "id: " goes in front of the last frame */

        tail = out.len - p.last;

        agent_buf_reserve(&out, n + 5);

        if (!agent_buf_ok(&out)) {
            agent_buf_free(&out);
            return NGX_ERROR;
        }

        ngx_memmove(out.data + p.last + n + 5, out.data + p.last, tail);
        ngx_memcpy(out.data + p.last, "id: ", 4);
        ngx_memcpy(out.data + p.last + 4, cursor, n);
        out.data[p.last + 4 + n] = LF;
        out.len += n + 5;
    }

    ngx_agent_subscriber_drop_prelude(s);

    s->prelude = out;
    s->begun = 1;

    ngx_agent_preludes += out.cap;
    run->turn += out.len;

    run->store->seek(run->events, &s->reader, seq);

    return NGX_OK;
}


/* a terminal event of this reader only: it is not in the log */

static void
ngx_agent_subscriber_last_word(ngx_agent_subscriber_t *s, agent_code_t code,
    const char *message)
{
    agent_str_t  text;

    ngx_agent_subscriber_drop_prelude(s);

    agent_buf_add_lit(&s->prelude,
                      "data: {\"type\":\"RUN_ERROR\",\"message\":");

    text.data = message;
    text.len = ngx_strlen(message);
    agent_json_quote(&s->prelude, text);

    agent_buf_add_lit(&s->prelude, ",\"code\":");

    text.data = agent_code_name(code);
    text.len = ngx_strlen(text.data);
    agent_json_quote(&s->prelude, text);

    agent_buf_add_lit(&s->prelude, "}\n\n");

    ngx_agent_preludes += s->prelude.cap;

    s->last_word = 1;
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

    ngx_agent_run_t  *run;

    run = s->run;

    ngx_agent_subscriber_pump(s);

    /* what was read can be freed, and the run, if this was its last reader */

    ngx_agent_run_wake(run);
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

    ngx_add_timer(&s->timer, s->lcf->heartbeat);

    /* a client that still has bytes to take needs no more of them */

    if (s->busy) {
        return;
    }

    r = s->request;

    cl = ngx_agent_subscriber_buf(s, NGX_AGENT_BLOCK);
    if (cl == NULL) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    cl->buf->last = ngx_cpymem(cl->buf->last, ping, sizeof(ping) - 1);

    rc = ngx_http_output_filter(r, cl);

    ngx_agent_subscriber_recycle(s, &cl);

    if (rc == NGX_ERROR) {
        ngx_agent_subscriber_finalize(s, NGX_ERROR);
        return;
    }

    s->sent = ngx_current_msec;

    ngx_agent_subscriber_stream(s);
}
