
/*
 * The replay store without a replay zone: the record is shared, the events
 * stay in the memory of the worker that owns the run.  What every reader has
 * passed is freed; of what none has, at most NGX_AGENT_LOCAL_MAX is kept.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"


#define NGX_AGENT_LOCAL_MAX     (4 * 1024 * 1024)
#define NGX_AGENT_LOCAL_CHUNK   4096
#define NGX_AGENT_LOCAL_SPARE   64
#define NGX_AGENT_LOCAL_NOTE    100     /* ms between news for the record */


/* an entry: this, the id and the body, next to each other */

typedef struct {
    uint32_t                 id_len;
    uint32_t                 body_len;
    uint32_t                 type;
    uint64_t                 time;
} ngx_agent_entry_t;


struct ngx_agent_chunk_s {
    ngx_agent_chunk_t       *next;
    uint64_t                 first;       /* seq of the first entry */
    size_t                   size;
    size_t                   used;
    u_char                   data[1];
};


struct ngx_agent_log_s {
    ngx_agent_zone_t        *zone;
    agent_run_ref_t          ref;
    ngx_msec_t               noted;
    unsigned                 content:1;
    unsigned                 over:1;
    uint64_t                 next_seq;
    ngx_agent_chunk_t       *head;
    ngx_agent_chunk_t       *tail;
    size_t                   bytes;
    ngx_queue_t              readers;     /* of ngx_agent_reader_t */
    uint64_t                 lost;        /* events before this seq are gone */
};


static ngx_agent_chunk_t  *ngx_agent_spare;
static ngx_uint_t          ngx_agent_nspare;


static ngx_agent_chunk_t *
ngx_agent_chunk_alloc(size_t size)
{
    ngx_agent_chunk_t  *chunk;

    if (size <= NGX_AGENT_LOCAL_CHUNK) {
        size = NGX_AGENT_LOCAL_CHUNK;

        if (ngx_agent_spare) {
            chunk = ngx_agent_spare;
            ngx_agent_spare = chunk->next;
            ngx_agent_nspare--;

            goto found;
        }
    }

    chunk = ngx_alloc(offsetof(ngx_agent_chunk_t, data) + size,
                      ngx_cycle->log);
    if (chunk == NULL) {
        return NULL;
    }

found:

    chunk->next = NULL;
    chunk->size = size;
    chunk->used = 0;

    return chunk;
}


static void
ngx_agent_chunk_free(ngx_agent_chunk_t *chunk)
{
    if (NGX_AGENT_KEEP_FREE && chunk->size == NGX_AGENT_LOCAL_CHUNK
        && ngx_agent_nspare < NGX_AGENT_LOCAL_SPARE)
    {
        chunk->next = ngx_agent_spare;
        ngx_agent_spare = chunk;
        ngx_agent_nspare++;

        return;
    }

    ngx_free(chunk);
}


void
ngx_agent_local_exit_process(void)
{
    ngx_agent_chunk_t  *chunk;

    while (ngx_agent_spare) {
        chunk = ngx_agent_spare;
        ngx_agent_spare = chunk->next;

        ngx_free(chunk);
    }

    ngx_agent_nspare = 0;
}


static void
ngx_agent_local_drop_head(ngx_agent_log_t *log)
{
    ngx_agent_chunk_t  *chunk;

    chunk = log->head;

    log->head = chunk->next;
    log->bytes -= chunk->size;

    if (log->head) {
        log->lost = log->head->first;

    } else {
        log->tail = NULL;
        log->lost = log->next_seq;
    }

    ngx_agent_chunk_free(chunk);
}


static void
ngx_agent_local_claim(ngx_agent_store_t *store, const u_char *key,
    ngx_str_t *thread, ngx_agent_claim_pt cb, void *data)
{
    ngx_int_t              rc;
    ngx_agent_log_t       *log;
    ngx_agent_run_info_t   info;

    log = ngx_calloc(sizeof(ngx_agent_log_t), ngx_cycle->log);

    if (log == NULL) {
        cb(data, NGX_ERROR, NULL, NULL);
        return;
    }

    log->zone = store->zone;
    ngx_memcpy(log->ref.key, key, NGX_AGENT_KEY_LEN);
    ngx_queue_init(&log->readers);

    rc = ngx_agent_registry_claim(store->zone, &log->ref, thread, &info);

    if (rc != NGX_OK) {
        ngx_free(log);
        cb(data, rc, NULL, &info);
        return;
    }

    cb(data, NGX_OK, log, NULL);
}


static void
ngx_agent_local_status(ngx_agent_store_t *store, const u_char *key,
    ngx_agent_info_pt cb, void *data)
{
    ngx_int_t             rc;
    ngx_agent_run_info_t  info;

    rc = ngx_agent_registry_info(store->zone, key, &info);

    cb(data, rc, &info);
}


static void
ngx_agent_local_cancel(ngx_agent_store_t *store, const u_char *key,
    ngx_agent_cancel_pt cb, void *data)
{
    cb(data, ngx_agent_registry_cancel(store->zone, key));
}


static ngx_agent_log_t *
ngx_agent_local_open(ngx_agent_store_t *store, const u_char *key,
    uint64_t generation)
{
    return NULL;
}


/* the run keeps them, and is here */

static void
ngx_agent_local_keep(ngx_agent_log_t *log, ngx_str_t *messages)
{
}


static ngx_int_t
ngx_agent_local_append(ngx_agent_log_t *log, const agent_event_t *ev)
{
    size_t              size;
    u_char             *p;
    ngx_agent_chunk_t  *chunk;
    ngx_agent_entry_t   entry;

    size = ngx_align(sizeof(ngx_agent_entry_t) + ev->id.len + ev->body.len, 4);

    chunk = log->tail;

    if (chunk == NULL || chunk->size - chunk->used < size) {

        chunk = ngx_agent_chunk_alloc(size);
        if (chunk == NULL) {
            return NGX_ERROR;
        }

        chunk->first = log->next_seq;

        if (log->tail) {
            log->tail->next = chunk;

        } else {
            log->head = chunk;
        }

        log->tail = chunk;
        log->bytes += chunk->size;

        while (log->bytes > NGX_AGENT_LOCAL_MAX && log->head != log->tail) {
            ngx_agent_local_drop_head(log);
        }
    }

    entry.id_len = (uint32_t) ev->id.len;
    entry.body_len = (uint32_t) ev->body.len;
    entry.type = ev->type;
    entry.time = ngx_agent_now();

    p = ngx_cpymem(chunk->data + chunk->used, &entry, sizeof(entry));
    p = ngx_cpymem(p, ev->id.data, ev->id.len);
    ngx_memcpy(p, ev->body.data, ev->body.len);

    chunk->used += size;
    log->next_seq++;

    return NGX_OK;
}


static void
ngx_agent_local_set_status(ngx_agent_log_t *log, ngx_uint_t status)
{
    ngx_agent_zone_lock(log->zone);

    (void) agent_replay_status(&log->zone->replay, &log->ref,
                               (unsigned) status);

    ngx_agent_zone_unlock(log->zone);
}


/* "next": how many events there were before the terminal one */

static void
ngx_agent_local_end(ngx_agent_log_t *log, ngx_agent_run_info_t *info,
    uint64_t next)
{
    uint64_t  now;

    if (log->over) {
        return;
    }

    log->over = 1;
    now = ngx_agent_now();

    ngx_agent_zone_lock(log->zone);

    agent_replay_note(&log->zone->replay, &log->ref, next, info->content);
    (void) agent_replay_finish(&log->zone->replay, &log->ref, info, NULL, now);
    (void) agent_replay_end(&log->zone->replay, &log->ref, now);

    ngx_agent_zone_unlock(log->zone);
}


static ngx_int_t
ngx_agent_local_finish(ngx_agent_log_t *log, ngx_agent_run_info_t *info,
    const agent_event_t *ev)
{
    uint64_t  next;

    if (log->over) {
        return NGX_OK;
    }

    next = log->next_seq;

    if (ev && ngx_agent_local_append(log, ev) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_agent_local_end(log, info, ev || next == 0 ? next : next - 1);

    return NGX_OK;
}


static ngx_uint_t
ngx_agent_local_publish(ngx_agent_log_t *log, ngx_uint_t content)
{
    /* other workers only see how far it is, which costs them all a lock */

    if (log->over
        || (content == log->content
            && ngx_current_msec - log->noted < NGX_AGENT_LOCAL_NOTE))
    {
        return 0;
    }

    log->noted = ngx_current_msec;
    log->content = (content != 0);

    ngx_agent_zone_lock(log->zone);

    agent_replay_note(&log->zone->replay, &log->ref, log->next_seq,
                      (int) content);

    ngx_agent_zone_unlock(log->zone);

    return 0;
}


static ngx_int_t
ngx_agent_local_checkpoint(ngx_agent_log_t *log, agent_str_t events)
{
    return NGX_DECLINED;
}


static ngx_uint_t
ngx_agent_local_incomplete(ngx_agent_log_t *log)
{
    return 0;
}


static ngx_uint_t
ngx_agent_local_cancelled(ngx_agent_log_t *log)
{
    ngx_uint_t  cancelled;

    if (log->over) {
        return 0;
    }

    ngx_agent_zone_lock(log->zone);

    cancelled = agent_replay_cancelled(&log->zone->replay, &log->ref);

    ngx_agent_zone_unlock(log->zone);

    return cancelled;
}


static void
ngx_agent_local_close(ngx_agent_log_t *log)
{
    ngx_agent_run_info_t  info;

    /* the claim is given back: nothing ever came of the run */

    ngx_memzero(&info, sizeof(ngx_agent_run_info_t));
    agent_usage_init(&info.usage);
    info.status = NGX_AGENT_RUN_ERROR;
    info.code = AGENT_CODE_INTERNAL;

    ngx_agent_local_end(log, &info, 0);

    while (log->head) {
        ngx_agent_local_drop_head(log);
    }

    ngx_free(log);
}


static void
ngx_agent_local_subscribe(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    uint64_t seq)
{
    reader->chunk = NULL;
    reader->offset = 0;
    reader->gap = (seq < log->lost);
    reader->seq = ngx_min(ngx_max(seq, log->lost), log->next_seq);

    ngx_queue_insert_tail(&log->readers, &reader->queue);
}


static void
ngx_agent_local_unsubscribe(ngx_agent_log_t *log, ngx_agent_reader_t *reader)
{
    ngx_queue_remove(&reader->queue);
}


static void
ngx_agent_local_seek(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    uint64_t seq)
{
    reader->chunk = NULL;
    reader->seq = ngx_min(ngx_max(seq, log->lost), log->next_seq);
    reader->gap = 0;
}


static size_t
ngx_agent_entry_size(ngx_agent_chunk_t *chunk, size_t offset)
{
    ngx_agent_entry_t  entry;

    ngx_memcpy(&entry, chunk->data + offset, sizeof(entry));

    return ngx_align(sizeof(entry) + entry.id_len + entry.body_len, 4);
}


/* finds the chunk and offset of reader->seq, which is kept and not the end */

static void
ngx_agent_reader_find(ngx_agent_log_t *log, ngx_agent_reader_t *reader)
{
    uint64_t            seq;
    ngx_agent_chunk_t  *chunk;

    chunk = log->head;

    while (chunk->next && chunk->next->first <= reader->seq) {
        chunk = chunk->next;
    }

    reader->offset = 0;

    for (seq = chunk->first; seq < reader->seq; seq++) {
        reader->offset += ngx_agent_entry_size(chunk, reader->offset);
    }

    reader->chunk = chunk;
}


/*
 * A reader's chunk pointer is only good while reader->seq is in that chunk:
 * trim() frees what all have passed.  So it moves on at once when a chunk is
 * read to its end, and is NULL at the end of the log.
 */

static ngx_int_t
ngx_agent_local_read(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    ngx_agent_read_pt cb, void *data)
{
    u_char             *p;
    agent_event_t       ev;
    ngx_agent_chunk_t  *chunk;
    ngx_agent_entry_t   entry;

    if (reader->seq < log->lost) {
        reader->chunk = NULL;
        return NGX_DECLINED;
    }

    while (reader->seq < log->next_seq) {

        if (reader->chunk == NULL) {
            ngx_agent_reader_find(log, reader);
        }

        chunk = reader->chunk;

        p = chunk->data + reader->offset;
        ngx_memcpy(&entry, p, sizeof(entry));
        p += sizeof(entry);

        ev.type = entry.type;
        ev.time = entry.time;
        ev.id.data = (char *) p;
        ev.id.len = entry.id_len;
        ev.body.data = (char *) p + entry.id_len;
        ev.body.len = entry.body_len;

        if (cb(data, log->ref.generation, reader->seq, &ev) != AGENT_OK) {
            break;
        }

        reader->seq++;
        reader->offset += ngx_align(sizeof(entry) + entry.id_len
                                    + entry.body_len, 4);

        if (reader->offset == chunk->used) {
            reader->chunk = chunk->next;
            reader->offset = 0;
        }
    }

    return NGX_OK;
}


static ngx_int_t
ngx_agent_local_kept(ngx_agent_log_t *log, uint64_t checkpoint,
    agent_buf_t *out)
{
    return NGX_DECLINED;
}


static void
ngx_agent_local_trim(ngx_agent_log_t *log)
{
    uint64_t             passed, end;
    ngx_queue_t         *q;
    ngx_agent_reader_t  *reader;

    /*
     * With no reader all is kept, one may come back at once; and of a run that
     * is over, which goes with its last reader, so that a new one finds the
     * terminal event.
     */

    if (log->head == NULL || log->over
        || ngx_queue_empty(&log->readers))
    {
        return;
    }

    passed = log->next_seq;

    for (q = ngx_queue_head(&log->readers);
         q != ngx_queue_sentinel(&log->readers);
         q = ngx_queue_next(q))
    {
        reader = ngx_queue_data(q, ngx_agent_reader_t, queue);
        passed = ngx_min(passed, reader->seq);
    }

    while (log->head) {
        end = log->head->next ? log->head->next->first : log->next_seq;

        if (end > passed) {
            break;
        }

        ngx_agent_local_drop_head(log);
    }
}


static uint64_t
ngx_agent_local_first_seq(ngx_agent_log_t *log)
{
    return log->lost;
}


static uint64_t
ngx_agent_local_next_seq(ngx_agent_log_t *log)
{
    return log->next_seq;
}


static uint64_t
ngx_agent_local_generation(ngx_agent_log_t *log)
{
    return log->ref.generation;
}


ngx_agent_store_t  ngx_agent_local_store = {
    ngx_agent_local_claim,
    ngx_agent_local_status,
    ngx_agent_local_cancel,
    ngx_agent_local_open,
    ngx_agent_local_keep,
    ngx_agent_local_append,
    ngx_agent_local_set_status,
    ngx_agent_local_finish,
    ngx_agent_local_publish,
    ngx_agent_local_checkpoint,
    ngx_agent_local_incomplete,
    ngx_agent_local_cancelled,
    ngx_agent_local_close,
    ngx_agent_local_subscribe,
    ngx_agent_local_unsubscribe,
    ngx_agent_local_read,
    ngx_agent_local_seek,
    ngx_agent_local_kept,
    ngx_agent_local_trim,
    ngx_agent_local_first_seq,
    ngx_agent_local_next_seq,
    ngx_agent_local_generation,
    NULL
};
