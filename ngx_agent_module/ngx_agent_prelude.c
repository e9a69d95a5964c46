
/*
 * What a reader that lost its place is told first: a snapshot that stands for
 * what was before, then what is open.  A run that is here gives it from its
 * encoder.  Of one elsewhere it is folded from the log or, when the log's
 * beginning is gone, the checkpoint that its owner has left.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_PRELUDES      (64 * 1024 * 1024)
#define NGX_AGENT_PRELUDE_FOLD  (256 * 1024)    /* bytes in one turn */
#define NGX_AGENT_CHECK_LARGE   (256 * 1024)
#define NGX_AGENT_CHECK_WAIT    5000            /* of a reader for one */


typedef struct {
    agent_buf_t             *out;
    agent_open_t            *open;      /* NULL: these events close it */
    size_t                   last;      /* where the last frame begins */
} ngx_agent_prelude_t;


typedef struct {
    ngx_agent_subscriber_t  *subscriber;
    ngx_uint_t               end;       /* the terminal event too */
    unsigned                 again:1;
    unsigned                 stopped:1;
    agent_rc_t               rc;
} ngx_agent_fold_ctx_t;


/* an event in a checkpoint: this, the id, the body */

typedef struct {
    uint32_t                 type;
    uint32_t                 id_len;
    uint32_t                 body_len;
} ngx_agent_checked_t;


static ngx_int_t ngx_agent_prelude_here(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_prelude_elsewhere(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_prelude_checked(ngx_agent_subscriber_t *s);


/* bytes of preludes on their way, in this worker */

static size_t  ngx_agent_preludes;


void
ngx_agent_prelude_drop(ngx_agent_subscriber_t *s)
{
    ngx_agent_preludes -= s->prelude.cap;

    agent_buf_free(&s->prelude);
    s->prelude_sent = 0;
}


ngx_int_t
ngx_agent_prelude_last_word(ngx_agent_subscriber_t *s, agent_code_t code,
    const char *message)
{
    agent_str_t  text;

    ngx_agent_prelude_drop(s);

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

    if (!agent_buf_ok(&s->prelude)) {
        return NGX_ERROR;
    }

    s->last_word = 1;

    return NGX_DECLINED;
}


ngx_int_t
ngx_agent_prelude(ngx_agent_subscriber_t *s)
{
    if (ngx_agent_preludes > NGX_AGENT_PRELUDES) {
        return ngx_agent_prelude_last_word(s, AGENT_CODE_GAP,
                                       "events were lost and too many readers "
                                       "wait for a snapshot");
    }

    return s->feed->run ? ngx_agent_prelude_here(s)
                        : ngx_agent_prelude_elsewhere(s);
}


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


/* first the END of what the client holds open: it may have come in the gap */

static agent_rc_t
ngx_agent_prelude_begin(ngx_agent_subscriber_t *s, ngx_agent_prelude_t *p,
    agent_buf_t *out)
{
    agent_rc_t  rc;

    agent_buf_init(out, &agent_alloc_libc);

    p->out = out;
    p->open = NULL;
    p->last = 0;

    rc = agent_open_close(&s->open, ngx_agent_prelude_frame, p);

    p->open = &s->open;

    return rc;
}


/*
 * The frames are there and stand for the events before "seq": the id of that
 * place goes with the last of them.
 */

static ngx_int_t
ngx_agent_prelude_done(ngx_agent_subscriber_t *s, ngx_agent_prelude_t *p,
    agent_rc_t rc, uint64_t seq)
{
    char               cursor[AGENT_CURSOR_MAX];
    size_t             n, tail;
    agent_buf_t       *out;
    ngx_agent_feed_t  *feed;

    out = p->out;
    feed = s->feed;

    if (rc != AGENT_OK) {
        agent_buf_free(out);
        return NGX_ERROR;
    }

    if (out->len && seq) {
        n = agent_cursor_print(cursor, feed->store->generation(feed->events),
                               seq - 1);

        /* "id: " goes in front of the last frame */

        tail = out->len - p->last;

        agent_buf_reserve(out, n + 5);

        if (!agent_buf_ok(out)) {
            agent_buf_free(out);
            return NGX_ERROR;
        }

        ngx_memmove(out->data + p->last + n + 5, out->data + p->last, tail);
        ngx_memcpy(out->data + p->last, "id: ", 4);
        ngx_memcpy(out->data + p->last + 4, cursor, n);
        out->data[p->last + 4 + n] = LF;
        out->len += n + 5;

        s->begun = 1;
    }

    ngx_agent_prelude_drop(s);

    s->prelude = *out;

    ngx_agent_preludes += out->cap;
    feed->turn += out->len;

    feed->store->seek(feed->events, &s->reader, seq);

    return NGX_OK;
}


/*
 * Without the request's messages a snapshot would delete them on the client.
 * One that has seen nothing of this stream can be given the whole run.
 */

static ngx_int_t
ngx_agent_prelude_whole(ngx_agent_subscriber_t *s, ngx_uint_t kept)
{
    ngx_agent_feed_t  *feed;

    feed = s->feed;

    if (kept && !s->begun) {
        feed->store->seek(feed->events, &s->reader, 0);
        return NGX_OK;
    }

    return ngx_agent_prelude_last_word(s, AGENT_CODE_GAP,
                                       "events were lost and the request was "
                                       "too large to be kept for a snapshot");
}


/* --- of a run that is here ---------------------------------------------- */

static ngx_int_t
ngx_agent_prelude_here(ngx_agent_subscriber_t *s)
{
    uint64_t              seq;
    ngx_int_t             rc;
    agent_rc_t            arc;
    agent_str_t           input;
    agent_buf_t           out;
    agent_run_info_t      info;
    ngx_agent_run_t      *run;
    ngx_agent_feed_t     *feed;
    ngx_agent_prelude_t   p;

    feed = s->feed;
    run = feed->run;

    rc = ngx_agent_run_input(run, &input);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        return ngx_agent_prelude_whole(s,
                    feed->store != &ngx_agent_local_store
                    && ngx_agent_registry_info(feed->store->zone, feed->key,
                                               &info)
                       == NGX_OK
                    && info.first_seq == 0);
    }

    seq = feed->store->next_seq(feed->events);

    if (run->state == NGX_AGENT_OVER) {
        seq--;                                  /* the terminal event */
    }

    arc = ngx_agent_prelude_begin(s, &p, &out);

    if (arc == AGENT_OK) {
        arc = agent_encoder_prelude(run->encoder, input, (int) s->begun,
                                    ngx_agent_prelude_frame, &p);
    }

    return ngx_agent_prelude_done(s, &p, arc, seq);
}


/* --- of a run that is not ----------------------------------------------- */

static agent_rc_t
ngx_agent_prelude_fold_event(void *data, uint64_t generation, uint64_t seq,
    const agent_event_t *ev)
{
    ngx_agent_fold_ctx_t *f = data;

    ngx_agent_subscriber_t  *s;

    s = f->subscriber;

    if (agent_event_is_terminal(ev->type) && !f->end) {
        f->stopped = 1;
        return AGENT_ABORTED;
    }

    if (s->folded > NGX_AGENT_PRELUDE_FOLD) {
        f->again = 1;
        return AGENT_ABORTED;
    }

    s->folded += ev->id.len + ev->body.len + 64;

    f->rc = agent_fold_event(s->fold, ev);

    if (f->rc != AGENT_OK) {
        return AGENT_ABORTED;
    }

    if (agent_event_is_terminal(ev->type)) {
        s->terminal = 1;

        if (ev->type == AGENT_EV_RUN_FINISHED) {
            s->finish = agent_fold_reason(ev->body);

        } else {
            s->fault = ngx_pcalloc(s->request->pool, sizeof(agent_fault_t));

            if (s->fault == NULL
                || agent_fold_fault(ev->body, s->fault, &agent_alloc_libc)
                   != AGENT_OK)
            {
                f->rc = AGENT_NOMEM;
                return AGENT_ABORTED;
            }
        }
    }

    return AGENT_OK;
}


ngx_int_t
ngx_agent_prelude_fold(ngx_agent_subscriber_t *s, ngx_uint_t end)
{
    ngx_int_t              rc;
    ngx_agent_feed_t      *feed;
    ngx_agent_fold_ctx_t   f;

    feed = s->feed;

    if (s->fold == NULL) {
        s->fold = agent_fold_create(ngx_agent_str(&feed->thread),
                                    ngx_agent_str(&feed->id),
                                    &agent_alloc_libc);
        if (s->fold == NULL) {
            return NGX_ERROR;
        }

        feed->store->seek(feed->events, &s->reader, 0);
    }

    ngx_memzero(&f, sizeof(ngx_agent_fold_ctx_t));

    f.subscriber = s;
    f.end = end;
    s->folded = 0;

    rc = feed->store->read(feed->events, &s->reader,
                           ngx_agent_prelude_fold_event, &f);

    if (f.rc != AGENT_OK || rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED || rc == NGX_ABORT) {
        return NGX_DECLINED;
    }

    return f.again ? NGX_AGAIN : NGX_OK;
}


static void
ngx_agent_prelude_unfold(ngx_agent_subscriber_t *s)
{
    agent_fold_destroy(s->fold);
    s->fold = NULL;
}


static ngx_int_t
ngx_agent_prelude_elsewhere(ngx_agent_subscriber_t *s)
{
    ngx_int_t             rc;
    agent_rc_t            arc;
    agent_buf_t           kept, input, out;
    ngx_agent_feed_t     *feed;
    ngx_agent_prelude_t   p;

    feed = s->feed;

    rc = ngx_agent_prelude_fold(s, 0);

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    if (rc != NGX_OK) {
        ngx_agent_prelude_unfold(s);

        return rc == NGX_DECLINED ? ngx_agent_prelude_checked(s) : rc;
    }

    if (s->reader.seq == 0) {

        /* what is to come is the whole run, and its messages may not all have
         * been kept yet */

        ngx_agent_prelude_unfold(s);
        return NGX_OK;
    }

    agent_buf_init(&kept, &agent_alloc_libc);
    agent_buf_init(&input, &agent_alloc_libc);

    rc = feed->store->kept(feed->events, 0, &kept);

    if (rc == NGX_OK) {
        rc = ngx_agent_kept_input(agent_buf_str(&kept), &input);
    }

    agent_buf_free(&kept);

    if (rc != NGX_OK) {
        agent_buf_free(&input);
        ngx_agent_prelude_unfold(s);

        return rc == NGX_DECLINED ? ngx_agent_prelude_whole(s, 1) : rc;
    }

    arc = ngx_agent_prelude_begin(s, &p, &out);

    if (arc == AGENT_OK) {
        arc = agent_fold_prelude(s->fold, agent_buf_str(&input),
                                 (int) s->begun, ngx_agent_prelude_frame, &p);
    }

    agent_buf_free(&input);
    ngx_agent_prelude_unfold(s);

    return ngx_agent_prelude_done(s, &p, arc, s->reader.seq);
}


/* --- checkpoints -------------------------------------------------------- */

static agent_rc_t
ngx_agent_prelude_check_event(void *data, const agent_event_t *ev)
{
    agent_buf_t *b = data;

    ngx_agent_checked_t  c;

    c.type = ev->type;
    c.id_len = (uint32_t) ev->id.len;
    c.body_len = (uint32_t) ev->body.len;

    agent_buf_add(b, &c, sizeof(c));
    agent_buf_add_str(b, ev->id);
    agent_buf_add_str(b, ev->body);

    return agent_buf_ok(b) ? AGENT_OK : AGENT_NOMEM;
}


/* it costs as much as was said so far, so the large ones are not made often */

void
ngx_agent_prelude_checkpoint(ngx_agent_run_t *run, ngx_uint_t now)
{
    ngx_msec_t   wait;
    agent_str_t  input;
    agent_buf_t  b;

    wait = run->check_len > NGX_AGENT_CHECK_LARGE ? 1000 : 100;

    if (!now && run->check_len && ngx_current_msec - run->checked < wait) {
        run->check_due = 1;
        return;
    }

    run->check_due = 0;

    if (ngx_agent_run_input(run, &input) != NGX_OK) {
        return;
    }

    agent_buf_init(&b, &agent_alloc_libc);

    if (agent_encoder_prelude(run->encoder, input, 0,
                              ngx_agent_prelude_check_event, &b)
        == AGENT_OK)
    {
        run->feed.store->checkpoint(run->feed.events, agent_buf_str(&b));
    }

    run->checked = ngx_current_msec;
    run->check_len = b.len;

    agent_buf_free(&b);
}


/*
 * The checkpoint is being written anew, or events have gone since: the next one
 * is not far, unless the run has no room for any.
 */

static ngx_int_t
ngx_agent_prelude_wait(ngx_agent_subscriber_t *s, ngx_uint_t hope)
{
    if (!s->waiting) {
        s->waiting = 1;
        s->waits = ngx_current_msec;
    }

    if (hope && ngx_current_msec - s->waits < NGX_AGENT_CHECK_WAIT) {
        return NGX_BUSY;
    }

    s->waiting = 0;

    return ngx_agent_prelude_last_word(s, AGENT_CODE_GAP,
                                       "events were lost and no snapshot of "
                                       "the run is kept");
}


static ngx_int_t
ngx_agent_prelude_checked(ngx_agent_subscriber_t *s)
{
    char                 *p, *end;
    ngx_int_t             rc;
    agent_rc_t            arc;
    agent_buf_t           kept, out;
    agent_event_t         ev;
    agent_run_info_t      info;
    ngx_agent_feed_t     *feed;
    ngx_agent_prelude_t   prelude;
    ngx_agent_checked_t   c;

    feed = s->feed;

    agent_buf_init(&kept, &agent_alloc_libc);

    if (ngx_agent_registry_info(feed->store->zone, feed->key, &info) != NGX_OK
        || info.gone
        || info.generation != feed->store->generation(feed->events))
    {
        return ngx_agent_prelude_wait(s, 0);
    }

    /* what follows a checkpoint must be kept, or it leads nowhere */

    rc = (info.check_seq == 0 || info.check_seq < info.first_seq)
         ? NGX_DECLINED
         : feed->store->kept(feed->events, info.check_seq, &kept);

    if (rc != NGX_OK) {
        agent_buf_free(&kept);

        return rc == NGX_ERROR
               ? NGX_ERROR
               : ngx_agent_prelude_wait(s, info.input
                                        && !ngx_agent_status_over(info.status));
    }

    s->waiting = 0;

    arc = ngx_agent_prelude_begin(s, &prelude, &out);

    p = kept.data;
    end = p + kept.len;

    while (arc == AGENT_OK && p < end) {

        ngx_memcpy(&c, p, sizeof(c));
        p += sizeof(c);

        ev.type = c.type;
        ev.id.data = p;
        ev.id.len = c.id_len;
        ev.body.data = p + c.id_len;
        ev.body.len = c.body_len;

        p += c.id_len + c.body_len;

        if (ev.type == AGENT_EV_RUN_STARTED && s->begun) {
            continue;
        }

        arc = ngx_agent_prelude_frame(&prelude, &ev);
    }

    agent_buf_free(&kept);

    return ngx_agent_prelude_done(s, &prelude, arc, info.check_seq);
}
