
/*
 * Frames on their way to clients: bytes that never change and are counted, so
 * that all readers of a run who stand at one place are sent the same ones.
 */

#include "ngx_agent_feed.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_FRAMES_SIZE  16384


/* where the events of one read go */

typedef struct {
    ngx_agent_feed_t    *feed;
    ngx_agent_frames_t  *frames;
    u_char              *start;
    u_char              *pos;
    u_char              *end;
    size_t               need;          /* of an event that is larger */
    ngx_uint_t           failed;
} ngx_agent_fill_t;


static u_char  ngx_agent_frames_scratch[NGX_AGENT_FRAMES_SIZE];


/* --- bytes -------------------------------------------------------------- */

ngx_agent_bytes_t *
ngx_agent_bytes_create(const void *p, size_t n, size_t *counter)
{
    ngx_agent_bytes_t  *bytes;

    bytes = ngx_alloc(offsetof(ngx_agent_bytes_t, data) + n, ngx_cycle->log);

    if (bytes == NULL) {
        return NULL;
    }

    bytes->refs = 1;
    bytes->counter = counter;
    bytes->len = n;

    if (n) {
        ngx_memcpy(bytes->data, p, n);
    }

    if (counter) {
        *counter += n;
    }

    return bytes;
}


void
ngx_agent_bytes_release(ngx_agent_bytes_t *bytes)
{
    if (--bytes->refs) {
        return;
    }

    if (bytes->counter) {
        *bytes->counter -= bytes->len;
    }

    ngx_free(bytes);
}


ngx_chain_t *
ngx_agent_bytes_chain(ngx_pool_t *pool, ngx_chain_t **free,
    ngx_agent_bytes_t *bytes)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = ngx_chain_get_free_buf(pool, free);
    if (cl == NULL) {
        return NULL;
    }

    b = cl->buf;

    ngx_memzero(b, sizeof(ngx_buf_t));

    b->start = bytes->data;
    b->pos = bytes->data;
    b->last = bytes->data + bytes->len;
    b->end = b->last;
    b->memory = 1;
    b->flush = 1;
    b->tag = (ngx_buf_tag_t) &ngx_http_agent_module;

    bytes->refs++;

    return cl;
}


void
ngx_agent_bytes_done(ngx_buf_t *b)
{
    if (b->start == NULL || b->tag != (ngx_buf_tag_t) &ngx_http_agent_module) {
        return;
    }

    ngx_agent_bytes_release((ngx_agent_bytes_t *)
                       (b->start - offsetof(ngx_agent_bytes_t, data)));

    b->start = NULL;
    b->pos = NULL;
    b->last = NULL;
    b->end = NULL;
}


/* --- frames ------------------------------------------------------------- */

/* one event of the log: its frame, if it still fits */

static agent_rc_t
ngx_agent_frames_event(void *data, uint64_t generation, uint64_t seq,
    const agent_event_t *ev)
{
    ngx_agent_fill_t *fill = data;

    size_t                len;
    agent_buf_t          *marks;
    ngx_agent_checked_t   mark;

    len = agent_frame_agui_len(ev);

    if (len > (size_t) (fill->end - fill->pos)) {
        fill->need = len;
        return AGENT_ABORTED;
    }

    if (!agent_event_is_delta(ev->type)) {

        marks = &fill->frames->marks;

        mark.type = ev->type;
        mark.id_len = (uint32_t) ev->id.len;
        mark.body_len = 0;

        /* whole or not at all: the frames before this one will be sent */

        if (agent_buf_reserve(marks,
                              sizeof(ngx_agent_checked_t) + ev->id.len)
            != AGENT_OK)
        {
            marks->failed = 0;
            fill->failed = 1;
            return AGENT_NOMEM;
        }

        agent_buf_add(marks, &mark, sizeof(ngx_agent_checked_t));
        agent_buf_add_str(marks, ev->id);
    }

    fill->pos = (u_char *) agent_frame_agui((char *) fill->pos, generation,
                                            seq, ev);

    if (agent_event_is_terminal(ev->type)) {
        fill->frames->terminal = 1;

        if (ev->type == AGENT_EV_RUN_FINISHED) {
            fill->frames->finish = agent_fold_reason(ev->body);
        }
    }

    return AGENT_OK;
}


static void
ngx_agent_frames_free(ngx_agent_frames_t *frames)
{
    if (frames->bytes) {
        ngx_agent_bytes_release(frames->bytes);
        frames->bytes = NULL;
    }

    agent_buf_free(&frames->marks);
}


ngx_agent_common_t *
ngx_agent_common(ngx_agent_feed_t *feed)
{
    if (feed->common == NULL) {
        feed->common = ngx_calloc(sizeof(ngx_agent_common_t), ngx_cycle->log);
    }

    return feed->common;
}


void
ngx_agent_common_free(ngx_agent_feed_t *feed)
{
    ngx_uint_t  i;

    if (feed->common == NULL) {
        return;
    }

    for (i = 0; i < NGX_AGENT_FRAMES; i++) {
        ngx_agent_frames_free(&feed->common->frames[i]);
    }

    ngx_agent_prelude_forget(feed);

    ngx_free(feed->common);
    feed->common = NULL;
}


/* of a kept one only what holds beyond one reader: chunks come and go */

static void
ngx_agent_frames_move(ngx_agent_reader_t *to, ngx_agent_reader_t *from)
{
    to->seq = from->seq;
    to->place = from->place;
    to->chunk = NULL;
    to->offset = 0;
}


static ngx_int_t
ngx_agent_frames_make(ngx_agent_feed_t *feed, ngx_agent_reader_t *reader,
    ngx_agent_frames_t *frames)
{
    ngx_int_t          rc;
    ngx_agent_fill_t   fill;

    agent_buf_init(&frames->marks, &agent_alloc_libc);

    frames->first = reader->seq;
    frames->finish = AGENT_FINISH_UNKNOWN;
    frames->terminal = 0;

    fill.feed = feed;
    fill.frames = frames;
    fill.start = ngx_agent_frames_scratch;
    fill.end = fill.start + NGX_AGENT_FRAMES_SIZE;

    for ( ;; ) {
        fill.pos = fill.start;
        fill.need = 0;
        fill.failed = 0;

        rc = feed->store->read(feed->events, reader, ngx_agent_frames_event,
                               &fill);

        if (fill.pos != fill.start) {
            frames->bytes = ngx_agent_bytes_create(fill.start,
                                                   fill.pos - fill.start, NULL);

            rc = frames->bytes ? NGX_OK : NGX_ERROR;
            break;
        }

        if (rc != NGX_OK) {
            break;
        }

        if (fill.failed) {

            /* nothing would wake this reader for the same event again */

            rc = NGX_ERROR;
            break;
        }

        if (fill.need == 0) {
            rc = NGX_DONE;
            break;
        }

        /* room for one large event */

        if (fill.start != ngx_agent_frames_scratch) {
            ngx_free(fill.start);
        }

        fill.start = ngx_alloc(fill.need, ngx_cycle->log);

        if (fill.start == NULL) {
            fill.start = ngx_agent_frames_scratch;
            rc = NGX_ERROR;
            break;
        }

        fill.end = fill.start + fill.need;
    }

    if (fill.start != ngx_agent_frames_scratch) {
        ngx_free(fill.start);
    }

    ngx_agent_frames_move(&frames->after, reader);

    if (rc != NGX_OK) {
        ngx_agent_frames_free(frames);
    }

    return rc;
}


ngx_int_t
ngx_agent_frames_read(ngx_agent_feed_t *feed, ngx_agent_reader_t *reader,
    agent_open_t *open, ngx_agent_bytes_t **bytes, ngx_uint_t *terminal,
    agent_finish_t *finish)
{
    char                 *p, *end;
    ngx_int_t             rc;
    ngx_uint_t            i;
    agent_event_t         ev;
    ngx_agent_common_t   *common;
    ngx_agent_frames_t    own, *frames;
    ngx_agent_checked_t   mark;

    frames = NULL;
    ngx_memzero(&own, sizeof(ngx_agent_frames_t));

    /* kept only where others may come by */

    common = (feed->nsubscribers > 1) ? ngx_agent_common(feed) : NULL;

    if (common) {
        for (i = 0; i < NGX_AGENT_FRAMES; i++) {
            if (common->frames[i].bytes
                && common->frames[i].first == reader->seq)
            {
                frames = &common->frames[i];
                ngx_agent_frames_move(reader, &frames->after);
                break;
            }
        }
    }

    if (frames == NULL) {

        if (common) {
            frames = &common->frames[common->next++ % NGX_AGENT_FRAMES];
            ngx_agent_frames_free(frames);

        } else {
            frames = &own;
        }

        rc = ngx_agent_frames_make(feed, reader, frames);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    rc = NGX_OK;

    p = frames->marks.data;
    end = p + frames->marks.len;

    ngx_memzero(&ev, sizeof(agent_event_t));

    while (p < end) {
        ngx_memcpy(&mark, p, sizeof(ngx_agent_checked_t));
        p += sizeof(ngx_agent_checked_t);

        ev.type = mark.type;
        ev.id.data = p;
        ev.id.len = mark.id_len;
        p += mark.id_len;

        if (agent_open_note(open, &ev) != AGENT_OK) {
            rc = NGX_ERROR;
            break;
        }
    }

    *bytes = frames->bytes;
    *terminal = frames->terminal;
    *finish = frames->finish;

    (*bytes)->refs++;

    if (frames == &own) {
        ngx_agent_frames_free(&own);
    }

    if (rc != NGX_OK) {
        ngx_agent_bytes_release(*bytes);
    }

    return rc;
}
