
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


/* frames being made */

typedef struct {
    agent_buf_t              out;
    agent_buf_t             *marks;     /* NULL: not wanted */
    size_t                   last;      /* where the last frame begins */
} ngx_agent_prelude_t;


/* events being folded */

typedef struct {
    agent_fold_t            *fold;
    ngx_agent_subscriber_t  *answer;    /* NULL: up to the terminal event */
    size_t                   folded;
    unsigned                 again:1;
    agent_rc_t               rc;
} ngx_agent_fold_ctx_t;


static ngx_int_t ngx_agent_prelude_here(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_prelude_elsewhere(ngx_agent_subscriber_t *s);
static ngx_int_t ngx_agent_prelude_checked(ngx_agent_subscriber_t *s);


/* bytes of preludes that are kept, in this worker */

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

    if (code == AGENT_CODE_GAP) {
        ngx_agent_stat_add(gaps, 1);
    }

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

    if (ngx_agent_common(s->feed) == NULL) {
        return NGX_ERROR;
    }

    return s->feed->run ? ngx_agent_prelude_here(s)
                        : ngx_agent_prelude_elsewhere(s);
}


/* --- frames ------------------------------------------------------------- */

static agent_rc_t
ngx_agent_prelude_frame(void *data, const agent_event_t *ev)
{
    ngx_agent_prelude_t *p = data;

    ngx_agent_checked_t  mark;

    if (p->marks) {
        mark.type = ev->type;
        mark.id_len = (uint32_t) ev->id.len;
        mark.body_len = 0;

        agent_buf_add(p->marks, &mark, sizeof(ngx_agent_checked_t));
        agent_buf_add_str(p->marks, ev->id);

        if (!agent_buf_ok(p->marks)) {
            return AGENT_NOMEM;
        }
    }

    p->last = p->out.len;

    agent_buf_add_lit(&p->out, "data: ");
    agent_event_json(&p->out, ev);
    agent_buf_add_lit(&p->out, "\n\n");

    return agent_buf_ok(&p->out) ? AGENT_OK : AGENT_NOMEM;
}


/* of a prelude for a whole run only its first event */

static agent_rc_t
ngx_agent_prelude_first(void *data, const agent_event_t *ev)
{
    agent_rc_t  rc;

    rc = ngx_agent_prelude_frame(data, ev);

    return rc == AGENT_OK ? AGENT_DONE : rc;
}


static void
ngx_agent_prelude_init(ngx_agent_prelude_t *p, agent_buf_t *marks)
{
    agent_buf_init(&p->out, &agent_alloc_libc);

    p->marks = marks;
    p->last = 0;
}


/* the last frame gets the id of the place that all of it stands for */

static ngx_int_t
ngx_agent_prelude_id(ngx_agent_prelude_t *p, ngx_agent_feed_t *feed,
    uint64_t seq)
{
    char    cursor[AGENT_CURSOR_MAX];
    size_t  n, tail;

    if (p->out.len == 0 || seq == 0) {
        return NGX_OK;
    }

    n = agent_cursor_print(cursor, feed->store->generation(feed->events),
                           seq - 1);

    tail = p->out.len - p->last;

    agent_buf_reserve(&p->out, n + 5);

    if (!agent_buf_ok(&p->out)) {
        return NGX_ERROR;
    }

    ngx_memmove(p->out.data + p->last + n + 5, p->out.data + p->last, tail);
    ngx_memcpy(p->out.data + p->last, "id: ", 4);
    ngx_memcpy(p->out.data + p->last + 4, cursor, n);
    p->out.data[p->last + 4 + n] = LF;
    p->out.len += n + 5;

    return NGX_OK;
}


/* --- the part that all readers at one place share ----------------------- */

static void
ngx_agent_snapshot_free(ngx_agent_snapshot_t *snapshot)
{
    if (snapshot->bytes) {
        ngx_agent_bytes_release(snapshot->bytes);
        snapshot->bytes = NULL;
    }

    agent_buf_free(&snapshot->marks);
}


void
ngx_agent_prelude_forget(ngx_agent_feed_t *feed)
{
    ngx_agent_common_t  *common;

    common = feed->common;

    agent_fold_destroy(common->fold);
    common->fold = NULL;

    ngx_agent_snapshot_free(&common->snapshot);
}


static ngx_uint_t
ngx_agent_snapshot_is(ngx_agent_feed_t *feed, uint64_t seq)
{
    return feed->common->snapshot.bytes && feed->common->snapshot.seq == seq;
}


/* what was made becomes the feed's snapshot of what was before "seq" */

static ngx_int_t
ngx_agent_prelude_keep(ngx_agent_feed_t *feed, ngx_agent_prelude_t *p,
    agent_buf_t *marks, agent_rc_t rc, uint64_t seq)
{
    ngx_agent_snapshot_t  *snapshot;

    snapshot = &feed->common->snapshot;

    ngx_agent_snapshot_free(snapshot);

    if (rc != AGENT_OK || ngx_agent_prelude_id(p, feed, seq) != NGX_OK) {
        goto failed;
    }

    snapshot->bytes = ngx_agent_bytes_create(p->out.data, p->out.len,
                                             &ngx_agent_preludes);

    if (snapshot->bytes == NULL) {
        goto failed;
    }

    snapshot->seq = seq;
    snapshot->marks = *marks;

    agent_buf_free(&p->out);

    return NGX_OK;

failed:

    agent_buf_free(&p->out);
    agent_buf_free(marks);

    return NGX_ERROR;
}


/*
 * The reader's own part: the END of what its client holds open, it may have
 * come in the gap, and RUN_STARTED for a client that has not seen it.  Then it
 * takes the feed's snapshot and stands behind it.
 */

static ngx_int_t
ngx_agent_prelude_take(ngx_agent_subscriber_t *s, ngx_agent_prelude_t *p,
    agent_rc_t rc)
{
    char                  *pos, *end;
    uint64_t               seq;
    agent_event_t          ev;
    ngx_agent_feed_t      *feed;
    ngx_agent_checked_t    mark;
    ngx_agent_snapshot_t  *snapshot;

    feed = s->feed;
    snapshot = &feed->common->snapshot;
    seq = snapshot->seq;

    pos = snapshot->marks.data;
    end = pos + snapshot->marks.len;

    ngx_memzero(&ev, sizeof(agent_event_t));

    while (rc == AGENT_OK && pos < end) {
        ngx_memcpy(&mark, pos, sizeof(ngx_agent_checked_t));
        pos += sizeof(ngx_agent_checked_t);

        ev.type = mark.type;
        ev.id.data = pos;
        ev.id.len = mark.id_len;
        pos += mark.id_len;

        rc = agent_open_note(&s->open, &ev);
    }

    /* nothing was said and nothing sent: the id goes to RUN_STARTED */

    if (rc != AGENT_OK
        || (snapshot->bytes->len == 0
            && ngx_agent_prelude_id(p, feed, seq) != NGX_OK))
    {
        agent_buf_free(&p->out);
        return NGX_ERROR;
    }

    ngx_agent_prelude_drop(s);

    s->prelude = p->out;

    ngx_agent_preludes += p->out.cap;
    feed->turn += p->out.len + snapshot->bytes->len;

    if (snapshot->bytes->len) {
        s->snapshot = snapshot->bytes;
        s->snapshot->refs++;
        s->snapshot_sent = 0;
    }

    if (p->out.len || snapshot->bytes->len) {
        s->begun = 1;
    }

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
    agent_buf_t           marks;
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
                               feed->store->first_seq(feed->events) == 0);
    }

    seq = feed->store->next_seq(feed->events);

    if (run->state == NGX_AGENT_OVER) {
        seq--;                                  /* the terminal event */
    }

    if (!ngx_agent_snapshot_is(feed, seq)) {

        agent_buf_init(&marks, &agent_alloc_libc);
        ngx_agent_prelude_init(&p, &marks);

        arc = agent_encoder_prelude(run->encoder, input, 1,
                                    ngx_agent_prelude_frame, &p);

        if (ngx_agent_prelude_keep(feed, &p, &marks, arc, seq) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_agent_prelude_init(&p, NULL);

    arc = agent_open_close(&s->open, ngx_agent_prelude_frame, &p);

    if (arc == AGENT_OK && !s->begun) {
        arc = agent_encoder_prelude(run->encoder, input, 0,
                                    ngx_agent_prelude_first, &p);

        arc = (arc == AGENT_DONE) ? AGENT_OK : arc;
    }

    return ngx_agent_prelude_take(s, &p, arc);
}


/* --- of a run that is not ----------------------------------------------- */

static agent_rc_t
ngx_agent_prelude_fold_event(void *data, uint64_t generation, uint64_t seq,
    const agent_event_t *ev)
{
    ngx_agent_fold_ctx_t *f = data;

    ngx_agent_subscriber_t  *s;

    s = f->answer;

    if (agent_event_is_terminal(ev->type) && s == NULL) {
        return AGENT_ABORTED;
    }

    if (f->folded > NGX_AGENT_PRELUDE_FOLD) {
        f->again = 1;
        return AGENT_ABORTED;
    }

    f->folded += ev->id.len + ev->body.len + 64;

    f->rc = agent_fold_event(f->fold, ev);

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


static ngx_int_t
ngx_agent_prelude_read(ngx_agent_feed_t *feed, agent_fold_t **fold,
    ngx_agent_reader_t *reader, ngx_agent_subscriber_t *answer)
{
    ngx_int_t              rc;
    ngx_agent_fold_ctx_t   f;

    if (*fold == NULL) {
        *fold = agent_fold_create(ngx_agent_str(&feed->thread),
                                  ngx_agent_str(&feed->id),
                                  &agent_alloc_libc);
        if (*fold == NULL) {
            return NGX_ERROR;
        }

        feed->store->seek(feed->events, reader, 0);
    }

    ngx_memzero(&f, sizeof(ngx_agent_fold_ctx_t));

    f.fold = *fold;
    f.answer = answer;

    rc = feed->store->read(feed->events, reader, ngx_agent_prelude_fold_event,
                           &f);

    if (f.rc != AGENT_OK || rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED || rc == NGX_ABORT) {
        return NGX_DECLINED;
    }

    return f.again ? NGX_AGAIN : NGX_OK;
}


ngx_int_t
ngx_agent_prelude_answer(ngx_agent_subscriber_t *s)
{
    return ngx_agent_prelude_read(s->feed, &s->fold, &s->reader, s);
}


/* the feed's fold goes on from where the last reader needed it */

static ngx_int_t
ngx_agent_prelude_elsewhere(ngx_agent_subscriber_t *s)
{
    uint64_t              seq;
    ngx_int_t             rc;
    agent_rc_t            arc;
    agent_buf_t           kept, input, marks;
    ngx_agent_feed_t     *feed;
    ngx_agent_common_t   *common;
    ngx_agent_prelude_t   p;

    feed = s->feed;
    common = feed->common;
    common->folded = ngx_current_msec;

    rc = ngx_agent_prelude_read(feed, &common->fold, &common->reader, NULL);

    if (rc == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    if (rc != NGX_OK) {
        ngx_agent_prelude_forget(feed);

        return rc == NGX_DECLINED ? ngx_agent_prelude_checked(s) : rc;
    }

    seq = common->reader.seq;

    if (seq == 0) {

        /* what is to come is the whole run, and its messages may not all have
         * been kept yet */

        feed->store->seek(feed->events, &s->reader, 0);
        return NGX_OK;
    }

    if (!ngx_agent_snapshot_is(feed, seq)) {

        agent_buf_init(&kept, &agent_alloc_libc);
        agent_buf_init(&input, &agent_alloc_libc);

        rc = feed->store->kept(feed->events, 0, &kept);

        if (rc == NGX_OK) {
            rc = ngx_agent_kept_input(agent_buf_str(&kept), &input);
        }

        agent_buf_free(&kept);

        if (rc != NGX_OK) {
            agent_buf_free(&input);
            ngx_agent_prelude_forget(feed);

            return rc == NGX_DECLINED ? ngx_agent_prelude_whole(s, 1) : rc;
        }

        agent_buf_init(&marks, &agent_alloc_libc);
        ngx_agent_prelude_init(&p, &marks);

        arc = agent_fold_prelude(common->fold, agent_buf_str(&input), 1,
                                 ngx_agent_prelude_frame, &p);

        agent_buf_free(&input);

        if (ngx_agent_prelude_keep(feed, &p, &marks, arc, seq) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_agent_prelude_init(&p, NULL);

    arc = agent_open_close(&s->open, ngx_agent_prelude_frame, &p);

    if (arc == AGENT_OK && !s->begun) {
        arc = agent_fold_prelude(common->fold, AGENT_STR(""), 0,
                                 ngx_agent_prelude_first, &p);

        arc = (arc == AGENT_DONE) ? AGENT_OK : arc;
    }

    return ngx_agent_prelude_take(s, &p, arc);
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


/* reads the events of a checkpoint: RUN_STARTED or what follows it */

static agent_rc_t
ngx_agent_prelude_replay(agent_buf_t *kept, ngx_uint_t started,
    ngx_agent_prelude_t *p)
{
    char                 *pos, *end;
    agent_rc_t            rc;
    agent_event_t         ev;
    ngx_agent_checked_t   c;

    rc = AGENT_OK;
    pos = kept->data;
    end = pos + kept->len;

    while (rc == AGENT_OK && pos < end) {

        ngx_memcpy(&c, pos, sizeof(c));
        pos += sizeof(c);

        ev.type = c.type;
        ev.id.data = pos;
        ev.id.len = c.id_len;
        ev.body.data = pos + c.id_len;
        ev.body.len = c.body_len;

        pos += c.id_len + c.body_len;

        if ((ev.type == AGENT_EV_RUN_STARTED) == started) {
            rc = ngx_agent_prelude_frame(p, &ev);
        }
    }

    return rc;
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
    ngx_int_t             rc;
    agent_rc_t            arc;
    agent_buf_t           kept, marks;
    agent_run_info_t      info;
    ngx_agent_feed_t     *feed;
    ngx_agent_prelude_t   p;

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

    if (!ngx_agent_snapshot_is(feed, info.check_seq)) {

        agent_buf_init(&marks, &agent_alloc_libc);
        ngx_agent_prelude_init(&p, &marks);

        arc = ngx_agent_prelude_replay(&kept, 0, &p);

        if (ngx_agent_prelude_keep(feed, &p, &marks, arc, info.check_seq)
            != NGX_OK)
        {
            agent_buf_free(&kept);
            return NGX_ERROR;
        }
    }

    ngx_agent_prelude_init(&p, NULL);

    arc = agent_open_close(&s->open, ngx_agent_prelude_frame, &p);

    if (arc == AGENT_OK && !s->begun) {
        arc = ngx_agent_prelude_replay(&kept, 1, &p);
    }

    agent_buf_free(&kept);

    return ngx_agent_prelude_take(s, &p, arc);
}
