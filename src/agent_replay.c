#include "agent_record.h"

#include <string.h>

#define AGENT_REPLAY_STEPS 4  /* of housekeeping in one call */
#define AGENT_REPLAY_EVICT 32 /* of eviction for one unit */

const char *
agent_status_name(unsigned status)
{
    static const char *const names[] = {"queued",     "running",   "finishing",
                                        "finished",   "cancelled", "error",
                                        "interrupted"};

    return status <= AGENT_STATUS_INTERRUPTED ? names[status] : "error";
}

/* --- making room ---------------------------------------------------------- */

/* Only the record is left. */
static void
agent_replay_drop(agent_replay_t *r, agent_unit_t unit)
{
    unsigned i;
    agent_record_t *rec = agent_record(r, unit);

    agent_zone_set(rec->gone, 1);

    for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
        agent_zone_clear(&r->zone, unit, i);
    }

    agent_zone_move(&r->zone, unit, AGENT_LIST_GONE);
}

/* The run's time may be up: AGENT_DECLINED, it is forgotten. */
static agent_rc_t
agent_replay_expire(agent_replay_t *r, agent_unit_t unit, uint64_t now)
{
    const agent_record_t *rec = agent_record(r, unit);

    if (!agent_status_over(rec->status) || now < rec->finished + r->retain) {
        return AGENT_OK;
    }

    if (now >= rec->finished + 2 * r->retain) {
        agent_zone_remove(&r->zone, unit);
        return AGENT_DECLINED;
    }

    if (!rec->gone) {
        agent_replay_drop(r, unit);
    }

    return AGENT_OK;
}

static void
agent_replay_clean(agent_replay_t *r, uint64_t now)
{
    unsigned i, list;
    agent_unit_t unit;
    const agent_record_t *rec;

    for (list = AGENT_LIST_GONE; list <= AGENT_LIST_OVER; list++) {
        for (i = 0; i < AGENT_REPLAY_STEPS; i++) {
            unit = r->zone.head->lists[list].first;

            if (unit == 0) {
                break;
            }

            rec = agent_record(r, unit);

            if (now < rec->finished + r->retain * (rec->gone ? 2 : 1)) {
                break;
            }

            (void) agent_replay_expire(r, unit, now);
        }
    }
}

agent_unit_t
agent_replay_unit(agent_replay_t *r)
{
    unsigned i;
    agent_unit_t unit, old;
    agent_zone_head_t *h = r->zone.head;

    for (i = 0; i < AGENT_REPLAY_EVICT; i++) {
        unit = agent_zone_alloc(&r->zone);

        if (unit != 0) {
            return unit;
        }

        old = h->lists[AGENT_LIST_GONE].first;

        if (old != 0) {
            agent_zone_remove(&r->zone, old);
            continue;
        }

        old = h->lists[AGENT_LIST_OVER].first;

        if (old == 0) {
            return 0;
        }

        h->evictions++;
        agent_replay_drop(r, old);
    }

    return 0;
}

/* --- the registry --------------------------------------------------------- */

static void
agent_replay_tell(const agent_record_t *rec, agent_run_info_t *info)
{
    memset(info, 0, sizeof(agent_run_info_t) - sizeof(info->thread));

    info->status = rec->status;
    info->generation = rec->generation;
    info->first_seq = rec->first_seq;
    info->next_seq = rec->next_seq;
    info->check_seq = rec->check_seq;
    info->started = rec->started;
    info->finished = agent_status_over(rec->status) ? rec->finished : 0;
    info->usage = rec->usage;
    info->code = rec->code;
    info->content = rec->content != 0;
    info->gone = rec->gone != 0;
    info->replaced = rec->replaced != 0;
    info->input = rec->input != 0;
    info->owner = rec->owner;
    info->slot = rec->slot;
    info->thread_len = rec->thread_len;
    memcpy(info->thread, rec->thread, rec->thread_len);
}

agent_rc_t
agent_replay_claim(agent_replay_t *r, agent_run_ref_t *ref, unsigned slot,
                   agent_str_t thread, uint64_t now, agent_run_info_t *info)
{
    uint32_t i;
    unsigned replaced = 0;
    agent_unit_t unit, piece;
    agent_record_t *rec;

    if (thread.len > AGENT_REPLAY_THREAD) {
        return AGENT_TOO_LARGE;
    }

    agent_replay_clean(r, now);

    unit = agent_zone_find(&r->zone, ref->key);

    if (unit != 0 && agent_replay_expire(r, unit, now) == AGENT_OK) {
        rec = agent_record(r, unit);
        agent_replay_tell(rec, info);

        if (!agent_status_over(rec->status) || rec->content ||
            rec->status == AGENT_STATUS_FINISHED) {
            return AGENT_DECLINED;
        }

        /* it ended before it said anything: the next one replaces it */

        replaced = 1;
        agent_zone_remove(&r->zone, unit);
    }

    unit = agent_replay_unit(r);

    if (unit == 0) {
        return AGENT_NOMEM;
    }

    rec = agent_record(r, unit);
    memset(rec, 0, sizeof(agent_record_t));

    rec->generation = agent_zone_generation(&r->zone, now);
    rec->owner = ref->owner;
    rec->slot = (uint16_t) slot;
    rec->started = now;
    rec->end_seq = UINT64_MAX;
    rec->replaced = (uint8_t) replaced;
    rec->thread_len = (uint16_t) thread.len;
    agent_usage_init(&rec->usage);

    if (thread.len != 0) {
        memcpy(rec->thread, thread.data, thread.len);
    }

    ref->generation = rec->generation;

    agent_zone_insert(&r->zone, unit, ref->key, AGENT_LIST_LIVE);

    /* room for its last words */

    for (i = 0; i < r->reserve; i++) {
        piece = agent_replay_unit(r);

        if (piece == 0) {
            agent_zone_remove(&r->zone, unit);
            return AGENT_NOMEM;
        }

        agent_zone_push(&r->zone, unit, AGENT_CHAIN_END, piece);
    }

    agent_zone_set(rec->ready, 1);

    return AGENT_OK;
}

agent_rc_t
agent_replay_reopen(agent_replay_t *r, agent_run_ref_t *ref, unsigned slot,
                    agent_str_t thread, uint64_t seq, uint64_t now)
{
    agent_rc_t rc;
    agent_record_t *rec;
    agent_run_info_t info;

    rc = agent_replay_claim(r, ref, slot, thread, now, &info);

    if (rc != AGENT_OK) {
        return rc;
    }

    rec = agent_record(r, agent_zone_find(&r->zone, ref->key));

    rec->first_seq = seq;
    rec->next_seq = seq;
    rec->replaced = 1;
    rec->status = AGENT_STATUS_RUNNING;

    return AGENT_OK;
}

agent_rc_t
agent_replay_info(agent_replay_t *r, const void *key, uint64_t now,
                  agent_run_info_t *info)
{
    agent_unit_t unit;

    agent_replay_clean(r, now);

    unit = agent_zone_find(&r->zone, key);

    if (unit == 0 || agent_replay_expire(r, unit, now) != AGENT_OK) {
        return AGENT_DECLINED;
    }

    agent_replay_tell(agent_record(r, unit), info);

    return AGENT_OK;
}

agent_rc_t
agent_replay_peek(agent_replay_t *r, agent_unit_t unit, agent_run_info_t *info)
{
    agent_replay_tell(agent_record(r, unit), info);

    return AGENT_OK;
}

agent_rc_t
agent_replay_cancel(agent_replay_t *r, const void *key, uint64_t now,
                    agent_run_info_t *info)
{
    agent_rc_t rc = agent_replay_info(r, key, now, info);

    if (rc != AGENT_OK) {
        return rc;
    }

    if (info->gone) {
        return AGENT_ABORTED;
    }

    if (agent_status_over(info->status)) {
        return AGENT_DONE;
    }

    agent_record(r, agent_zone_find(&r->zone, key))->cancel = 1;

    return AGENT_OK;
}

agent_unit_t
agent_replay_find(const agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_zone_find(&r->zone, ref->key);

    if (unit != 0 && agent_record(r, unit)->generation == ref->generation) {
        return unit;
    }

    return 0;
}

agent_unit_t
agent_replay_own(const agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_find(r, ref);
    const agent_record_t *rec;

    if (unit == 0) {
        return 0;
    }

    rec = agent_record(r, unit);

    return rec->owner == ref->owner && !agent_status_over(rec->status) ? unit
                                                                       : 0;
}

agent_rc_t
agent_replay_forget(agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_find(r, ref);

    if (unit == 0 || !agent_status_over(agent_record(r, unit)->status)) {
        return AGENT_ABORTED;
    }

    agent_zone_remove(&r->zone, unit);

    return AGENT_OK;
}

agent_rc_t
agent_replay_status(agent_replay_t *r, const agent_run_ref_t *ref,
                    unsigned status)
{
    agent_unit_t unit = agent_replay_own(r, ref);

    if (unit == 0 || agent_record(r, unit)->status == AGENT_STATUS_FINISHING) {
        return AGENT_ABORTED;
    }

    agent_record(r, unit)->status = (uint8_t) status;

    return AGENT_OK;
}

void
agent_replay_note(agent_replay_t *r, const agent_run_ref_t *ref,
                  uint64_t next_seq, int content)
{
    agent_unit_t unit = agent_replay_own(r, ref);
    agent_record_t *rec;

    if (unit == 0 || agent_record(r, unit)->status == AGENT_STATUS_FINISHING) {
        return;
    }

    rec = agent_record(r, unit);

    if (content) {
        rec->content = 1;
    }

    if (r->reserve == 0) {
        rec->first_seq = next_seq;
        rec->next_seq = next_seq;
    }
}

int
agent_replay_cancelled(agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_own(r, ref);

    return unit != 0 && agent_record(r, unit)->cancel;
}

agent_rc_t
agent_replay_wait(agent_replay_t *r, const agent_run_ref_t *ref, unsigned slot,
                  int on)
{
    uint64_t bit, *word;
    agent_unit_t unit = agent_replay_find(r, ref);

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    if (slot >= AGENT_REPLAY_SLOTS) {
        return AGENT_OK;
    }

    word = &agent_record(r, unit)->waiters.bits[slot / 64];
    bit = UINT64_C(1) << (slot % 64);
    *word = on ? *word | bit : *word & ~bit;

    return AGENT_OK;
}

void
agent_replay_waiters(agent_replay_t *r, const agent_run_ref_t *ref,
                     agent_waiters_t *w)
{
    agent_unit_t unit = agent_replay_find(r, ref);

    if (unit == 0) {
        memset(w, 0, sizeof(agent_waiters_t));
    } else {
        *w = agent_record(r, unit)->waiters;
    }
}

/* --- what is kept beside the log ------------------------------------------ */

agent_rc_t
agent_replay_keep(agent_replay_t *r, const agent_run_ref_t *ref, int checkpoint,
                  const char *p, size_t n)
{
    size_t room;
    unsigned chain = checkpoint ? AGENT_CHAIN_CHECK : AGENT_CHAIN_INPUT;
    agent_unit_t unit = agent_replay_own(r, ref), piece;
    agent_chunk_t *c;
    agent_record_t *rec;

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    /* an old checkpoint is none from its first new byte on */

    if (checkpoint && rec->check_seq != 0) {
        agent_zone_set(rec->check_seq, 0);
        agent_zone_clear(&r->zone, unit, chain);
    }

    while (n != 0) {
        piece = rec->object.count[chain] != 0 ? rec->object.tail[chain] : 0;

        if (piece == 0 || agent_chunk(r, piece)->used == AGENT_CHUNK_DATA) {
            piece = agent_replay_unit(r);

            if (piece == 0) {
                agent_zone_clear(&r->zone, unit, chain);
                return AGENT_NOMEM;
            }

            memset(agent_chunk(r, piece), 0, sizeof(agent_chunk_t));
            agent_zone_push(&r->zone, unit, chain, piece);
        }

        c = agent_chunk(r, piece);
        room = AGENT_CHUNK_DATA - c->used;
        room = n < room ? n : room;

        memcpy(agent_chunk_data(r, piece) + c->used, p, room);
        agent_zone_set(c->used, (uint16_t) (c->used + room));
        p += room;
        n -= room;
    }

    if (!checkpoint) {
        rec->input = 1;
    }

    return AGENT_OK;
}

agent_rc_t
agent_replay_checked(agent_replay_t *r, const agent_run_ref_t *ref,
                     uint64_t seq)
{
    agent_unit_t unit = agent_replay_own(r, ref);
    agent_record_t *rec;

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    if (rec->object.count[AGENT_CHAIN_CHECK] == 0) {
        return AGENT_NOMEM; /* dropped meanwhile */
    }

    rec->checked = rec->write != 0 ? agent_chunk(r, rec->write)->number : 0;
    agent_zone_set(rec->check_seq, seq);

    return AGENT_OK;
}

/* Asked when three quarters are full: what is trimmed then is older. */
int
agent_replay_wants_check(agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_own(r, ref);
    const agent_record_t *rec;

    if (unit == 0) {
        return 0;
    }

    rec = agent_record(r, unit);

    return rec->write != 0 &&
           rec->object.count[AGENT_CHAIN_LOG] > r->max_units / 4 * 3 &&
           (rec->check_seq == 0 ||
            agent_chunk(r, rec->write)->number - rec->checked >
                r->max_units / 2);
}

/* What is gone by the end is missing for good. */
int
agent_replay_needs_check(agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_own(r, ref);
    const agent_record_t *rec;

    if (unit == 0) {
        return 0;
    }

    rec = agent_record(r, unit);

    return rec->first_seq != 0 && rec->check_seq == 0;
}

void
agent_replay_uncheck(agent_replay_t *r, const agent_run_ref_t *ref)
{
    agent_unit_t unit = agent_replay_own(r, ref);

    if (unit != 0) {
        agent_zone_set(agent_record(r, unit)->check_seq, 0);
        agent_zone_clear(&r->zone, unit, AGENT_CHAIN_CHECK);
    }
}

agent_rc_t
agent_replay_kept(agent_replay_t *r, const agent_run_ref_t *ref, int checkpoint,
                  uint64_t seq, size_t offset, char *p, size_t size, size_t *n)
{
    size_t part;
    unsigned chain = checkpoint ? AGENT_CHAIN_CHECK : AGENT_CHAIN_INPUT;
    agent_unit_t unit = agent_replay_find(r, ref), piece;
    const agent_chunk_t *c;
    const agent_record_t *rec;

    *n = 0;

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    if (checkpoint ? rec->check_seq == 0 || rec->check_seq != seq
                   : !rec->input) {
        return AGENT_DECLINED;
    }

    if (size > AGENT_REPLAY_SLICE) {
        size = AGENT_REPLAY_SLICE;
    }

    for (piece = rec->object.chain[chain]; piece != 0 && *n < size;
         piece = r->zone.next[piece]) {
        c = agent_chunk(r, piece);

        if (offset >= c->used) {
            offset -= c->used;
            continue;
        }

        part = c->used - offset;
        part = part < size - *n ? part : size - *n;

        memcpy(p + *n, agent_chunk_data(r, piece) + offset, part);
        *n += part;
        offset = 0;
    }

    return AGENT_OK;
}

/* --- the end -------------------------------------------------------------- */

/* A terminal event that is larger than the reserve is worth the room, up to what
 * one holding of the lock copies. */
static agent_rc_t
agent_replay_reserve(agent_replay_t *r, agent_unit_t unit, size_t size)
{
    agent_unit_t piece;
    agent_object_t *o = agent_zone_object(&r->zone, unit);

    if (size > AGENT_REPLAY_END) {
        return AGENT_TOO_LARGE;
    }

    while (size > o->count[AGENT_CHAIN_END] * AGENT_CHUNK_DATA) {
        piece = agent_replay_unit(r);

        if (piece != 0) {
            agent_zone_push(&r->zone, unit, AGENT_CHAIN_END, piece);
            continue;
        }

        r->trimmed = 1;

        if (!agent_replay_shift(r, unit)) {
            return AGENT_TOO_LARGE;
        }
    }

    return AGENT_OK;
}

/*
 * The terminal event becomes an entry in the reserve, in units of its own, so
 * that its publication needs nothing.
 */
static agent_rc_t
agent_replay_keep_end(agent_replay_t *r, agent_unit_t unit,
                      const agent_event_t *ev, uint64_t now)
{
    char head[2 + 3 * AGENT_VARINT_MAX];
    size_t n = 0, done = 0, part;
    uint64_t time;
    agent_unit_t piece, next;
    agent_chunk_t *c;
    agent_record_t *rec = agent_record(r, unit);

    time = now > rec->started ? now - rec->started : 0;
    time = time < UINT32_MAX ? time : UINT32_MAX;
    time = time > rec->write_time ? time - rec->write_time : 0;

    head[n++] = (char) ((unsigned) ev->type | AGENT_ENTRY_TIME);
    n += agent_varint_put(head + n, (size_t) time);
    head[n++] = 0; /* no id */
    n += agent_varint_put(head + n, ev->body.len);

    if (agent_replay_reserve(r, unit, n + ev->body.len) != AGENT_OK) {
        return AGENT_TOO_LARGE;
    }

    for (piece = rec->object.chain[AGENT_CHAIN_END]; piece != 0;
         piece = r->zone.next[piece]) {
        c = agent_chunk(r, piece);
        memset(c, 0, sizeof(agent_chunk_t));
        c->time = rec->write_time;

        if (n != 0) {
            memcpy(agent_chunk_data(r, piece), head, n);
        } else {
            c->first = AGENT_CHUNK_DATA;
        }

        part = AGENT_CHUNK_DATA - n;
        part = part < ev->body.len - done ? part : ev->body.len - done;

        if (part != 0) {
            memcpy(agent_chunk_data(r, piece) + n, ev->body.data + done, part);
        }

        c->used = (uint16_t) (n + part);
        done += part;
        n = 0;

        if (done == ev->body.len) {
            break;
        }
    }

    /* what it does not need */

    while (piece != 0 && r->zone.next[piece] != 0) {
        next = r->zone.next[piece];
        agent_zone_set(r->zone.next[piece], r->zone.next[next]);
        agent_zone_free(&r->zone, next);
        rec->object.count[AGENT_CHAIN_END]--;
    }

    rec->object.tail[AGENT_CHAIN_END] = piece;

    return AGENT_OK;
}

agent_rc_t
agent_replay_finish(agent_replay_t *r, const agent_run_ref_t *ref,
                    const agent_run_info_t *info, const agent_event_t *ev,
                    uint64_t now)
{
    agent_rc_t rc;
    agent_unit_t unit = agent_replay_own(r, ref);
    agent_record_t *rec;

    if (unit == 0 || agent_record(r, unit)->status == AGENT_STATUS_FINISHING) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    if (ev != NULL && r->reserve != 0) {
        agent_replay_cut(r, unit);

        rc = agent_replay_keep_end(r, unit, ev, now);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    rec->usage = info->usage;
    rec->code = (uint8_t) info->code;
    rec->content = info->content;
    rec->finished = now;
    rec->end_status = (uint8_t) info->status;
    rec->end_seq = rec->next_seq;

    if (ev == NULL && r->reserve != 0) {
        rec->end_seq = UINT64_MAX;
    }

    agent_zone_set(rec->status, AGENT_STATUS_FINISHING);

    return AGENT_OK;
}

/* Puts what keep_end() has made behind the log. */
static void
agent_replay_join_end(agent_replay_t *r, agent_unit_t unit)
{
    size_t len;
    agent_unit_t piece, first;
    agent_chunk_t *c, *w;
    agent_record_t *rec = agent_record(r, unit);

    first = rec->object.chain[AGENT_CHAIN_END];
    c = agent_chunk(r, first);

    /* into the unit that entries are added to, if it fits there */

    if (rec->write != 0 && r->zone.next[first] == 0) {
        w = agent_chunk(r, rec->write);
        len = c->used;

        if (len <= AGENT_CHUNK_DATA - w->used) {
            memcpy(agent_chunk_data(r, rec->write) + w->used,
                   agent_chunk_data(r, first), len);

            agent_zone_set(w->used, (uint16_t) (w->used + len));
            agent_zone_set(rec->next_seq, rec->next_seq + 1);
            agent_zone_clear(&r->zone, unit, AGENT_CHAIN_END);
            return;
        }
    }

    for (piece = first; piece != 0; piece = r->zone.next[piece]) {
        c = agent_chunk(r, piece);
        agent_zone_set(rec->number, rec->number + 1);
        c->number = rec->number;
        c->seq = rec->next_seq + (c->first != 0);
    }

    agent_zone_join(&r->zone, unit, AGENT_CHAIN_END);
    agent_zone_set(rec->next_seq, rec->next_seq + 1);
}

/* Of a run that is finishing, with or without a terminal event kept. */
static void
agent_replay_close(agent_replay_t *r, agent_unit_t unit)
{
    agent_record_t *rec = agent_record(r, unit);

    if (rec->next_seq == rec->end_seq) {
        if (r->reserve != 0 && rec->object.count[AGENT_CHAIN_END] != 0) {
            agent_replay_join_end(r, unit);

        } else {
            agent_zone_set(rec->first_seq, rec->next_seq + 1);
            agent_zone_set(rec->next_seq, rec->next_seq + 1);
        }
    }

    agent_zone_clear(&r->zone, unit, AGENT_CHAIN_END);
    agent_zone_set(rec->status, rec->end_status);
    agent_zone_move(&r->zone, unit, AGENT_LIST_OVER);
}

agent_rc_t
agent_replay_end(agent_replay_t *r, const agent_run_ref_t *ref, uint64_t now)
{
    agent_unit_t unit = agent_replay_own(r, ref);
    agent_record_t *rec;

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    if (rec->status != AGENT_STATUS_FINISHING) {
        return AGENT_ABORTED;
    }

    agent_replay_close(r, unit);
    agent_replay_clean(r, now);

    return AGENT_OK;
}

agent_rc_t
agent_replay_lost(agent_replay_t *r, const agent_run_ref_t *ref,
                  const agent_run_info_t *info, const agent_event_t *ev,
                  uint64_t now)
{
    agent_rc_t rc;
    agent_run_info_t end;
    agent_unit_t unit = agent_replay_own(r, ref);

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    if (agent_record(r, unit)->status != AGENT_STATUS_FINISHING) {
        end = *info;
        end.content = agent_record(r, unit)->content != 0 || info->content;
        end.usage = agent_record(r, unit)->usage;

        rc = agent_replay_finish(r, ref, &end, ev, now);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    agent_replay_close(r, unit);

    return AGENT_OK;
}

/* --- after a death inside the lock ---------------------------------------- */

agent_rc_t
agent_replay_check(agent_zone_t *z, agent_unit_t unit, void *ctx)
{
    agent_replay_t *r = ctx;
    agent_record_t *rec = agent_zone_at(z, unit);

    if (rec->status > AGENT_STATUS_INTERRUPTED ||
        rec->end_status > AGENT_STATUS_INTERRUPTED ||
        rec->thread_len > AGENT_REPLAY_THREAD || rec->slot >= UINT16_MAX) {
        return AGENT_INVALID;
    }

    if (z->head->last_ms < rec->generation) {
        z->head->last_ms = rec->generation;
    }

    if (rec->object.count[AGENT_CHAIN_INPUT] == 0) {
        rec->input = 0;
    }

    if (rec->object.count[AGENT_CHAIN_CHECK] == 0) {
        rec->check_seq = 0;
    }

    agent_replay_outdated(r, unit);

    if (rec->gone) {
        unsigned i;

        for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
            agent_zone_clear(z, unit, i);
        }

        rec->object.list = AGENT_LIST_GONE;
        return AGENT_OK;
    }

    if (agent_status_over(rec->status)) {
        agent_zone_clear(z, unit, AGENT_CHAIN_END);
        rec->object.list = AGENT_LIST_OVER;
        return AGENT_OK;
    }

    if (!rec->ready) {
        return AGENT_DECLINED;
    }

    rec->object.list = AGENT_LIST_LIVE;

    if (rec->next_seq < rec->first_seq) {
        rec->next_seq = rec->first_seq;
    }

    rec->write = 0;
    rec->write_at = 0;

    /* the units of a terminal event that was just joined have all they need,
     * and cut() would free them */

    if (rec->status == AGENT_STATUS_FINISHING && r->reserve != 0 &&
        rec->end_seq != UINT64_MAX && rec->object.count[AGENT_CHAIN_END] == 0) {
        rec->next_seq = rec->end_seq + 1;
        return AGENT_OK;
    }

    if (agent_replay_mend(r, rec) != AGENT_OK) {
        rec->write = 0;
        agent_replay_hole(r, unit, rec->next_seq);
        return AGENT_OK;
    }

    agent_replay_cut(r, unit);

    return AGENT_OK;
}
