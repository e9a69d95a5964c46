
/*
 * The replay store of an agent_replay_zone: records and events in shared
 * memory.  The owner collects the events of a turn of the loop and puts them
 * into the zone at its end; readers, in whatever worker, copy them out.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"


/* units copied out at a time: what one holding of the lock copies */
#define NGX_AGENT_WINDOW  (AGENT_REPLAY_SLICE / AGENT_ZONE_UNIT)

/* bytes of collected events that stay allocated */
#define NGX_AGENT_SHARED_STAGE  512


typedef struct {
    ngx_agent_zone_t        *zone;
    agent_run_ref_t          ref;         /* owner 0: of a reader */
    agent_stage_t            stage;       /* of the owner */
    ngx_str_t               *messages;    /* the run's, as long as it lives */
    uint64_t                 next_seq;    /* of a reader: last seen */
    ngx_uint_t               nreaders;
    unsigned                 over:1;
    size_t                   thread_len;  /* of the owner */
    u_char                   thread[1];
} ngx_agent_shared_log_t;


/* what is copied out, used by one read at a time */

static agent_window_t  ngx_agent_window;


void
ngx_agent_shared_exit_process(void)
{
    if (ngx_agent_window.alloc) {
        agent_window_free(&ngx_agent_window);
    }
}


static ngx_agent_shared_log_t *
ngx_agent_shared_log(ngx_agent_log_t *log)
{
    return (ngx_agent_shared_log_t *) log;
}


static ngx_agent_shared_log_t *
ngx_agent_shared_create(ngx_agent_store_t *store, const u_char *key,
    ngx_str_t *thread)
{
    ngx_agent_shared_log_t  *sl;

    sl = ngx_calloc(sizeof(ngx_agent_shared_log_t) + thread->len,
                    ngx_cycle->log);

    if (sl == NULL) {
        return NULL;
    }

    sl->thread_len = thread->len;
    ngx_memcpy(sl->thread, thread->data, thread->len);

    sl->zone = store->zone;
    ngx_memcpy(sl->ref.key, key, NGX_AGENT_KEY_LEN);
    agent_stage_init(&sl->stage, &agent_alloc_libc);

    return sl;
}


static void
ngx_agent_shared_claim(ngx_agent_store_t *store, const u_char *key,
    ngx_str_t *thread, ngx_agent_claim_pt cb, void *data)
{
    ngx_int_t                rc;
    ngx_agent_run_info_t     info;
    ngx_agent_shared_log_t  *sl;

    sl = ngx_agent_shared_create(store, key, thread);

    if (sl == NULL) {
        cb(data, NGX_ERROR, NULL, NULL);
        return;
    }

    rc = ngx_agent_registry_claim(store->zone, &sl->ref, thread, &info);

    if (rc != NGX_OK) {
        ngx_free(sl);
        cb(data, rc, NULL, &info);
        return;
    }

    cb(data, NGX_OK, (ngx_agent_log_t *) sl, NULL);
}


static void
ngx_agent_shared_status(ngx_agent_store_t *store, const u_char *key,
    ngx_agent_info_pt cb, void *data)
{
    ngx_int_t             rc;
    ngx_agent_run_info_t  info;

    rc = ngx_agent_registry_info(store->zone, key, &info);

    cb(data, rc, &info);
}


static void
ngx_agent_shared_cancel(ngx_agent_store_t *store, const u_char *key,
    ngx_agent_cancel_pt cb, void *data)
{
    cb(data, ngx_agent_registry_cancel(store->zone, key));
}


static ngx_agent_log_t *
ngx_agent_shared_open(ngx_agent_store_t *store, const u_char *key,
    uint64_t generation)
{
    ngx_str_t                none;
    ngx_agent_shared_log_t  *sl;

    ngx_str_set(&none, "");

    sl = ngx_agent_shared_create(store, key, &none);

    if (sl) {
        sl->ref.generation = generation;
        sl->over = 1;
    }

    return (ngx_agent_log_t *) sl;
}


/* --- of the owner ------------------------------------------------------- */

/* in slices, each its own holding of the lock; NGX_ERROR: there is no room */

static ngx_int_t
ngx_agent_shared_put(ngx_agent_shared_log_t *sl, int checkpoint,
    const char *p, size_t len)
{
    size_t      n;
    agent_rc_t  rc;

    while (len) {
        n = ngx_min(len, AGENT_REPLAY_SLICE);

        ngx_agent_zone_lock(sl->zone);

        rc = agent_replay_keep(&sl->zone->replay, &sl->ref, checkpoint, p, n);

        ngx_agent_zone_unlock(sl->zone);

        if (rc != AGENT_OK) {
            return NGX_ERROR;
        }

        p += n;
        len -= n;
    }

    return NGX_OK;
}


static void
ngx_agent_shared_keep(ngx_agent_log_t *log, ngx_str_t *messages)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    sl->messages = messages;

    (void) ngx_agent_shared_put(sl, 0, (char *) messages->data,
                                messages->len);
}


static ngx_int_t
ngx_agent_shared_checkpoint(ngx_agent_log_t *log, agent_str_t events)
{
    agent_rc_t               rc;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (ngx_agent_shared_put(sl, 1, events.data, events.len) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_agent_zone_lock(sl->zone);

    rc = agent_replay_checked(&sl->zone->replay, &sl->ref, sl->stage.seq);

    ngx_agent_zone_unlock(sl->zone);

    return rc == AGENT_OK ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_agent_shared_append(ngx_agent_log_t *log, const agent_event_t *ev)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    return agent_stage_add(&sl->stage, ev, ngx_agent_now()) == AGENT_OK
           ? NGX_OK : NGX_ERROR;
}


static void
ngx_agent_shared_set_status(ngx_agent_log_t *log, ngx_uint_t status)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    ngx_agent_zone_lock(sl->zone);

    (void) agent_replay_status(&sl->zone->replay, &sl->ref, (unsigned) status);

    ngx_agent_zone_unlock(sl->zone);
}


/*
 * The zone was emptied under a live run: its log begins anew, behind what was
 * said; the checkpoint that is asked for then tells what that was.
 */

static ngx_int_t
ngx_agent_shared_reopen(ngx_agent_shared_log_t *sl)
{
    agent_rc_t   rc;
    agent_str_t  thread;

    thread.data = (char *) sl->thread;
    thread.len = sl->thread_len;

    agent_stage_drop(&sl->stage);

    ngx_agent_zone_lock(sl->zone);

    rc = agent_replay_reopen(&sl->zone->replay, &sl->ref,
                             (unsigned) ngx_process_slot, thread,
                             sl->stage.seq, ngx_agent_now());

    ngx_agent_zone_unlock(sl->zone);

    if (rc != AGENT_OK) {
        return NGX_ERROR;
    }

    if (sl->messages) {
        (void) ngx_agent_shared_put(sl, 0, (char *) sl->messages->data,
                                    sl->messages->len);
    }

    return NGX_OK;
}


/* what was collected goes into the zone; 1 when a checkpoint is wanted */

static ngx_uint_t
ngx_agent_shared_flush(ngx_agent_shared_log_t *sl, ngx_uint_t content)
{
    agent_rc_t       rc;
    ngx_uint_t       wanted;
    agent_waiters_t  waiters;
    agent_replay_t  *replay;

    replay = &sl->zone->replay;
    replay->trimmed = 0;

    do {
        ngx_agent_zone_lock(sl->zone);

        rc = agent_replay_append(replay, &sl->ref, &sl->stage);

        if (content) {
            agent_replay_note(replay, &sl->ref, 0, 1);
        }

        wanted = (rc == AGENT_DONE
                  && agent_replay_wants_check(replay, &sl->ref));

        agent_replay_waiters(replay, &sl->ref, &waiters);

        ngx_agent_zone_unlock(sl->zone);

        ngx_agent_bell_ring(sl->ref.key, &waiters, NGX_ERROR);

    } while (rc == AGENT_OK);

    /* a silent run keeps no room for what it said in one turn */

    if (sl->stage.bytes.len == 0
        && sl->stage.bytes.cap > NGX_AGENT_SHARED_STAGE)
    {
        agent_buf_free(&sl->stage.bytes);
    }

    if (rc == AGENT_ABORTED && ngx_agent_shared_reopen(sl) == NGX_OK) {
        wanted = 1;
    }

    if (replay->trimmed) {
        ngx_agent_zone_full(sl->zone, "runs lose their oldest events before "
                            "their time");
    }

    return wanted;
}


static ngx_int_t
ngx_agent_shared_finish(ngx_agent_log_t *log, ngx_agent_run_info_t *info,
    const agent_event_t *ev)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    uint64_t         now;
    agent_rc_t       rc;
    agent_event_t    small;
    agent_waiters_t  waiters;

    static const agent_str_t  full = agent_str(
        "{\"type\":\"RUN_ERROR\",\"message\":\"the last event of the run had "
        "no room\",\"code\":\"zone_full\"}");

    if (sl->over) {
        return NGX_OK;
    }

    sl->over = 1;
    now = ngx_agent_now();

    (void) ngx_agent_shared_flush(sl, info->content);

    small.type = AGENT_EV_RUN_ERROR;
    small.id.data = NULL;
    small.id.len = 0;
    small.body = full;

    ngx_agent_zone_lock(sl->zone);

    rc = agent_replay_finish(&sl->zone->replay, &sl->ref, info,
                             ev ? ev : &small, now);

    if (rc == AGENT_TOO_LARGE) {

        /* what the readers are told is how it ended */

        info->status = NGX_AGENT_RUN_ERROR;
        info->code = AGENT_CODE_ZONE_FULL;

        rc = agent_replay_finish(&sl->zone->replay, &sl->ref, info, &small,
                                 now);
    }

    if (rc == AGENT_OK) {
        rc = agent_replay_end(&sl->zone->replay, &sl->ref, now);
    }

    agent_replay_waiters(&sl->zone->replay, &sl->ref, &waiters);

    ngx_agent_zone_unlock(sl->zone);

    sl->stage.seq++;

    ngx_agent_bell_ring(sl->ref.key, &waiters, NGX_ERROR);

    return rc == AGENT_OK ? NGX_OK : NGX_ERROR;
}


static ngx_uint_t
ngx_agent_shared_publish(ngx_agent_log_t *log, ngx_uint_t content)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (sl->over || sl->stage.bytes.len == 0) {
        return 0;
    }

    return ngx_agent_shared_flush(sl, content);
}


static ngx_uint_t
ngx_agent_shared_incomplete(ngx_agent_log_t *log)
{
    ngx_uint_t               incomplete;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (sl->over) {
        return 0;
    }

    (void) ngx_agent_shared_flush(sl, 0);

    ngx_agent_zone_lock(sl->zone);

    incomplete = agent_replay_needs_check(&sl->zone->replay, &sl->ref);

    ngx_agent_zone_unlock(sl->zone);

    return incomplete;
}


static ngx_uint_t
ngx_agent_shared_cancelled(ngx_agent_log_t *log)
{
    ngx_uint_t               cancelled;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (sl->over) {
        return 0;
    }

    ngx_agent_zone_lock(sl->zone);

    cancelled = agent_replay_cancelled(&sl->zone->replay, &sl->ref);

    ngx_agent_zone_unlock(sl->zone);

    return cancelled;
}


static void
ngx_agent_shared_close(ngx_agent_log_t *log)
{
    ngx_agent_run_info_t     info;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (!sl->over) {

        /* the claim is given back: nothing ever came of the run */

        ngx_memzero(&info, sizeof(ngx_agent_run_info_t));
        agent_usage_init(&info.usage);
        info.status = NGX_AGENT_RUN_ERROR;
        info.code = AGENT_CODE_INTERNAL;

        (void) ngx_agent_shared_finish(log, &info, NULL);
    }

    agent_stage_free(&sl->stage);
    ngx_free(sl);
}


/* --- of readers --------------------------------------------------------- */

static void
ngx_agent_shared_wait(ngx_agent_shared_log_t *sl, int on)
{
    /* the owner's own readers are told by the run */

    if (sl->ref.owner) {
        return;
    }

    ngx_agent_zone_lock(sl->zone);

    (void) agent_replay_wait(&sl->zone->replay, &sl->ref,
                             (unsigned) ngx_process_slot, on);

    ngx_agent_zone_unlock(sl->zone);
}


static void
ngx_agent_shared_seek(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    uint64_t seq)
{
    reader->seq = seq;
    reader->gap = 0;

    ngx_memzero(&reader->place, sizeof(agent_place_t));
    reader->place.seq = seq;
}


/* the bit is set before the first read, so no event comes unheard */

static void
ngx_agent_shared_subscribe(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    uint64_t seq)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    ngx_agent_shared_seek(log, reader, seq);

    if (sl->nreaders++ == 0) {
        ngx_agent_shared_wait(sl, 1);
    }
}


static void
ngx_agent_shared_unsubscribe(ngx_agent_log_t *log, ngx_agent_reader_t *reader)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (--sl->nreaders == 0) {
        ngx_agent_shared_wait(sl, 0);
    }
}


static agent_rc_t
ngx_agent_shared_copy(ngx_agent_shared_log_t *sl, agent_place_t *place,
    agent_window_t *w, int more)
{
    agent_rc_t  rc;

    do {
        ngx_agent_zone_lock(sl->zone);

        rc = agent_replay_read(&sl->zone->replay, &sl->ref, place, w, more);

        ngx_agent_zone_unlock(sl->zone);

    } while (rc == AGENT_DONE);

    return rc;
}


static ngx_int_t
ngx_agent_shared_read(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
    ngx_agent_read_pt cb, void *data)
{
    size_t                   n;
    ngx_int_t                rc;
    agent_rc_t               arc;
    agent_event_t            ev;
    agent_place_t            after;
    agent_window_t          *w;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    w = &ngx_agent_window;

    if (w->alloc == NULL) {
        agent_window_init(w, &agent_alloc_libc);
    }

    rc = NGX_OK;

    for ( ;; ) {

        w->n = 0;

        if (agent_window_reserve(w, NGX_AGENT_WINDOW) != AGENT_OK) {
            return NGX_ERROR;
        }

        arc = ngx_agent_shared_copy(sl, &reader->place, w, 0);

        if (arc == AGENT_DECLINED) {
            rc = NGX_DECLINED;
            break;
        }

        if (arc != AGENT_OK) {
            rc = NGX_ABORT;
            break;
        }

        if (w->end > sl->next_seq) {
            sl->next_seq = w->end;
        }

        if (w->n == 0) {
            break;
        }

        for ( ;; ) {
            arc = agent_window_event(w, &reader->place, &after, &ev);

            if (arc != AGENT_TOO_LARGE) {
                break;
            }

            /* an event that is longer than what was copied */

            n = w->n;

            if (agent_window_reserve(w, NGX_AGENT_WINDOW) != AGENT_OK) {
                return NGX_ERROR;
            }

            arc = ngx_agent_shared_copy(sl, &reader->place, w, 1);

            if (arc == AGENT_OK && w->n <= n) {
                arc = AGENT_INVALID;
            }

            if (arc != AGENT_OK) {
                break;
            }
        }

        while (arc == AGENT_OK) {

            if (cb(data, sl->ref.generation, reader->place.seq, &ev)
                != AGENT_OK)
            {
                goto done;
            }

            reader->place = after;
            reader->seq = after.seq;

            arc = agent_window_event(w, &reader->place, &after, &ev);
        }

        if (arc == AGENT_NOMEM) {
            rc = NGX_ERROR;
            break;
        }

        if (arc == AGENT_DECLINED) {
            rc = NGX_DECLINED;
            break;
        }

        if (arc == AGENT_INVALID || arc == AGENT_ABORTED) {
            rc = NGX_ABORT;
            break;
        }

        if (reader->seq >= w->end) {
            break;
        }
    }

done:

    /* the room of a large event is given back */

    if (w->room > 4 * NGX_AGENT_WINDOW) {
        agent_window_free(w);
    }

    return rc;
}


static ngx_int_t
ngx_agent_shared_kept(ngx_agent_log_t *log, uint64_t checkpoint,
    agent_buf_t *out)
{
    size_t                   n, offset;
    agent_rc_t               rc;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    for (offset = 0; /* void */ ; offset += n) {

        if (agent_buf_reserve(out, AGENT_REPLAY_SLICE) != AGENT_OK) {
            return NGX_ERROR;
        }

        ngx_agent_zone_lock(sl->zone);

        rc = agent_replay_kept(&sl->zone->replay, &sl->ref, checkpoint != 0,
                               checkpoint, offset, out->data + out->len,
                               AGENT_REPLAY_SLICE, &n);

        ngx_agent_zone_unlock(sl->zone);

        if (rc != AGENT_OK) {
            return NGX_DECLINED;
        }

        if (n == 0) {
            return NGX_OK;
        }

        out->len += n;
    }
}


static void
ngx_agent_shared_trim(ngx_agent_log_t *log)
{
}


static uint64_t
ngx_agent_shared_first_seq(ngx_agent_log_t *log)
{
    agent_run_info_t         info;
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    if (ngx_agent_registry_info(sl->zone, sl->ref.key, &info) != NGX_OK
        || info.gone || info.generation != sl->ref.generation)
    {
        return (uint64_t) -1;
    }

    return info.first_seq;
}


static uint64_t
ngx_agent_shared_next_seq(ngx_agent_log_t *log)
{
    ngx_agent_shared_log_t  *sl = ngx_agent_shared_log(log);

    return sl->ref.owner ? sl->stage.seq : sl->next_seq;
}


static uint64_t
ngx_agent_shared_generation(ngx_agent_log_t *log)
{
    return ngx_agent_shared_log(log)->ref.generation;
}


ngx_agent_store_t  ngx_agent_shared_store = {
    ngx_agent_shared_claim,
    ngx_agent_shared_status,
    ngx_agent_shared_cancel,
    ngx_agent_shared_open,
    ngx_agent_shared_keep,
    ngx_agent_shared_append,
    ngx_agent_shared_set_status,
    ngx_agent_shared_finish,
    ngx_agent_shared_publish,
    ngx_agent_shared_checkpoint,
    ngx_agent_shared_incomplete,
    ngx_agent_shared_cancelled,
    ngx_agent_shared_close,
    ngx_agent_shared_subscribe,
    ngx_agent_shared_unsubscribe,
    ngx_agent_shared_read,
    ngx_agent_shared_seek,
    ngx_agent_shared_kept,
    ngx_agent_shared_trim,
    ngx_agent_shared_first_seq,
    ngx_agent_shared_next_seq,
    ngx_agent_shared_generation,
    NULL
};
