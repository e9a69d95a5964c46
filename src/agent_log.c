#include "agent_record.h"

#include <string.h>

/* --- entries -------------------------------------------------------------- */

size_t
agent_varint_put(char *p, size_t n)
{
    size_t len = 0;

    for (; n > 0x7f; n >>= 7) {
        p[len++] = (char) (n | 0x80);
    }

    p[len++] = (char) n;

    return len;
}

/* NULL: it does not end before "end" or in 32 bits. */
static const char *
agent_varint_get(const char *p, const char *end, uint32_t *n)
{
    unsigned shift;
    uint32_t v = 0;
    unsigned char c;

    for (shift = 0; p < end && shift < 7 * AGENT_VARINT_MAX; shift += 7) {
        c = (unsigned char) *p++;
        v |= (uint32_t) (c & 0x7f) << shift;

        if (c < 0x80) {
            *n = v;
            return p;
        }
    }

    return NULL;
}

int
agent_entry_get(const char *data, uint32_t at, uint32_t used, agent_entry_t *e)
{
    uint32_t dt;
    unsigned flags;
    const char *p = data + at, *end = data + used;

    if (p >= end) {
        return 0;
    }

    flags = (unsigned char) *p++;
    e->type = flags & AGENT_ENTRY_TYPE;

    if (flags & AGENT_ENTRY_TIME) {
        p = agent_varint_get(p, end, &dt);

        if (p == NULL) {
            return 0;
        }

        e->time += dt;
    }

    if (!(flags & AGENT_ENTRY_SAME)) {
        p = agent_varint_get(p, end, &e->id_len);

        if (p == NULL || e->id_len > (size_t) (end - p)) {
            return 0;
        }

        e->id_at = (uint32_t) (p - data);
        p += e->id_len;
    }

    p = agent_varint_get(p, end, &e->body_len);

    if (p == NULL || e->id_at + e->id_len > used) {
        return 0;
    }

    e->body_at = (uint32_t) (p - data);

    return 1;
}

/* --- events on their way into the log ------------------------------------- */

/* An event in a stage: this, the id, the body. */
typedef struct {
    uint64_t time;
    uint32_t type;
    uint32_t id_len;
    uint32_t body_len;
} agent_staged_t;

void
agent_stage_init(agent_stage_t *s, const agent_alloc_t *alloc)
{
    memset(s, 0, sizeof(agent_stage_t));
    agent_buf_init(&s->bytes, alloc);
}

void
agent_stage_free(agent_stage_t *s)
{
    agent_buf_free(&s->bytes);
}

void
agent_stage_drop(agent_stage_t *s)
{
    agent_buf_reset(&s->bytes);
    s->done = 0;
    s->partial = 0;
}

agent_rc_t
agent_stage_add(agent_stage_t *s, const agent_event_t *ev, uint64_t now)
{
    agent_staged_t head;

    if (ev->id.len > AGENT_REPLAY_SLICE || ev->body.len > UINT32_MAX) {
        return AGENT_TOO_LARGE;
    }

    if (agent_buf_reserve(&s->bytes, sizeof(head) + ev->id.len +
                                         ev->body.len) != AGENT_OK) {
        s->bytes.failed = 0;
        return AGENT_NOMEM;
    }

    memset(&head, 0, sizeof(head));
    head.time = now;
    head.type = (uint32_t) ev->type;
    head.id_len = (uint32_t) ev->id.len;
    head.body_len = (uint32_t) ev->body.len;

    agent_buf_add(&s->bytes, &head, sizeof(head));
    agent_buf_add_str(&s->bytes, ev->id);
    agent_buf_add_str(&s->bytes, ev->body);
    s->seq++;

    return AGENT_OK;
}

/* A checkpoint is of no use when events behind its place are gone. */
void
agent_replay_outdated(agent_replay_t *r, agent_unit_t unit)
{
    agent_record_t *rec = agent_record(r, unit);

    if (rec->check_seq != 0 && rec->check_seq < rec->first_seq) {
        agent_zone_set(rec->check_seq, 0);
        agent_zone_clear(&r->zone, unit, AGENT_CHAIN_CHECK);
    }
}

int
agent_replay_shift(agent_replay_t *r, agent_unit_t unit)
{
    agent_unit_t first, next;
    agent_record_t *rec = agent_record(r, unit);

    first = rec->object.chain[AGENT_CHAIN_LOG];

    if (first == 0 || first == rec->write) {
        return 0;
    }

    next = r->zone.next[first];

    agent_zone_set(rec->first_seq,
                   next != 0 ? agent_chunk(r, next)->seq : rec->next_seq);
    agent_zone_shift(&r->zone, unit, AGENT_CHAIN_LOG);
    agent_replay_outdated(r, unit);

    return 1;
}

/* Another unit at the end of the log; 0: there is none, not even of its own. */
static agent_unit_t
agent_replay_extend(agent_replay_t *r, agent_unit_t unit)
{
    agent_unit_t piece = 0;
    agent_chunk_t *c;
    agent_record_t *rec = agent_record(r, unit);

    while (rec->object.count[AGENT_CHAIN_LOG] >= r->max_units &&
           agent_replay_shift(r, unit)) {
        /* the log has its size */
    }

    while (piece == 0) {
        piece = agent_replay_unit(r);

        if (piece != 0) {
            break;
        }

        r->trimmed = 1;

        if (rec->object.count[AGENT_CHAIN_CHECK] != 0) {
            agent_zone_set(rec->check_seq, 0);
            agent_zone_clear(&r->zone, unit, AGENT_CHAIN_CHECK);

        } else if (rec->object.count[AGENT_CHAIN_INPUT] != 0) {
            agent_zone_set(rec->input, 0);
            agent_zone_clear(&r->zone, unit, AGENT_CHAIN_INPUT);

        } else if (!agent_replay_shift(r, unit)) {
            return 0;
        }
    }

    c = agent_chunk(r, piece);
    memset(c, 0, sizeof(agent_chunk_t));

    /* a reader's place in a unit that went must not look like one in a new
     * unit, whatever became of the log between */

    agent_zone_set(rec->number, rec->number + 1);
    c->number = rec->number;

    agent_zone_push(&r->zone, unit, AGENT_CHAIN_LOG, piece);

    return piece;
}

void
agent_replay_hole(agent_replay_t *r, agent_unit_t unit, uint64_t next)
{
    agent_record_t *rec = agent_record(r, unit);

    agent_zone_set(rec->first_seq, next);
    agent_zone_set(rec->next_seq, next);
    agent_zone_clear(&r->zone, unit, AGENT_CHAIN_LOG);
    agent_replay_outdated(r, unit);

    rec->write = 0;
    rec->write_at = 0;
    rec->partial = 0;
}

void
agent_replay_cut(agent_replay_t *r, agent_unit_t unit)
{
    agent_unit_t piece;
    agent_record_t *rec = agent_record(r, unit);
    agent_object_t *o = &rec->object;

    if (rec->write == 0) {
        agent_zone_clear(&r->zone, unit, AGENT_CHAIN_LOG);
        rec->partial = 0;
        return;
    }

    while (r->zone.next[rec->write] != 0) {
        piece = r->zone.next[rec->write];
        agent_zone_set(r->zone.next[rec->write], r->zone.next[piece]);
        agent_zone_free(&r->zone, piece);
        o->count[AGENT_CHAIN_LOG]--;
    }

    o->tail[AGENT_CHAIN_LOG] = rec->write;
    agent_chunk(r, rec->write)->used = (uint16_t) rec->write_at;
    rec->partial = 0;
}

/*
 * Begins an entry: its head goes to the end of the log.  0: there is no room.
 * "write" stays at the end of the last whole entry.
 */
static int
agent_replay_begin(agent_replay_t *r, agent_unit_t unit, uint64_t time,
                   unsigned type, agent_str_t id, size_t body_len)
{
    char *p, head[1 + 2 * AGENT_VARINT_MAX];
    size_t n, room, tail_len;
    char tail[AGENT_VARINT_MAX];
    int same = 0;
    uint32_t force;
    agent_unit_t piece;
    agent_chunk_t *c = NULL;
    agent_record_t *rec = agent_record(r, unit);

    time = time > rec->started ? time - rec->started : 0;
    time = time < UINT32_MAX ? time : UINT32_MAX;
    time = time > rec->write_time ? time : rec->write_time;

    tail_len = agent_varint_put(tail, body_len);
    piece = rec->write;
    force = rec->write_time;

    for (;;) {
        if (piece != 0) {
            c = agent_chunk(r, piece);
            p = agent_chunk_data(r, piece);
            same = c->used != 0 && c->id_len == id.len && c->id_at != 0 &&
                   (id.len == 0 || memcmp(p + c->id_at, id.data, id.len) == 0);

            n = 0;
            head[n++] = (char) (type | (same ? AGENT_ENTRY_SAME : 0u) |
                                (time != force ? AGENT_ENTRY_TIME : 0u));

            if (time != force) {
                n += agent_varint_put(head + n, (size_t) (time - force));
            }

            if (!same) {
                n += agent_varint_put(head + n, id.len);
            }

            room = AGENT_CHUNK_DATA - c->used;

            if (n + (same ? 0 : id.len) + tail_len <= room) {
                break;
            }

            if (c->used == 0) {
                return 0; /* such an id has no place in any unit */
            }
        }

        piece = agent_replay_extend(r, unit);

        if (piece == 0) {
            return 0;
        }

        c = agent_chunk(r, piece);
        c->seq = rec->next_seq;
        c->time = force;
        c->first = 0;

        /* the last whole entry ends before it; from now on it stays */

        rec->write = piece;
        rec->write_at = 0;
    }

    p = agent_chunk_data(r, piece) + c->used;
    memcpy(p, head, n);
    p += n;

    if (!same) {
        if (id.len != 0) {
            memcpy(p, id.data, id.len);
        }

        c->id_at = (uint16_t) (c->used + n);
        c->id_len = (uint16_t) id.len;
        p += id.len;
        n += id.len;
    }

    memcpy(p, tail, tail_len);
    c->used = (uint16_t) (c->used + n + tail_len);

    return 1;
}

/*
 * Adds to the body of the entry at the log's end, at most "max" bytes; returns
 * how many, SIZE_MAX: there is no room.
 */
static size_t
agent_replay_add(agent_replay_t *r, agent_unit_t unit, const char *p, size_t n,
                 size_t max)
{
    size_t part, done = 0;
    agent_unit_t piece;
    agent_chunk_t *c;
    agent_record_t *rec = agent_record(r, unit);

    if (n > max) {
        n = max;
    }

    while (done < n) {
        piece = rec->object.tail[AGENT_CHAIN_LOG];
        c = agent_chunk(r, piece);

        if (c->used == AGENT_CHUNK_DATA) {
            piece = agent_replay_extend(r, unit);

            if (piece == 0) {
                return SIZE_MAX;
            }

            c = agent_chunk(r, piece);
            c->seq = rec->next_seq + 1;
            c->first = AGENT_CHUNK_DATA;
        }

        part = AGENT_CHUNK_DATA - c->used;
        part = part < n - done ? part : n - done;

        memcpy(agent_chunk_data(r, piece) + c->used, p + done, part);
        c->used = (uint16_t) (c->used + part);
        done += part;
    }

    return done;
}

/* The entry at the log's end is whole. */
static void
agent_replay_commit(agent_replay_t *r, agent_unit_t unit, uint64_t time)
{
    agent_unit_t piece;
    agent_chunk_t *c;
    agent_record_t *rec = agent_record(r, unit);

    piece = rec->object.tail[AGENT_CHAIN_LOG];
    c = agent_chunk(r, piece);

    time = time > rec->started ? time - rec->started : 0;
    time = time < UINT32_MAX ? time : UINT32_MAX;

    if (time > rec->write_time) {
        rec->write_time = (uint32_t) time;
    }

    /* a unit that only the body's end reached: the next entry begins there */

    if (c->first == AGENT_CHUNK_DATA) {
        c->first = c->used;
        c->time = rec->write_time;
    }

    agent_zone_set(rec->next_seq, rec->next_seq + 1);

    rec->write = piece;
    rec->write_at = c->used;
    rec->partial = 0;
}

static void
agent_stage_next(agent_stage_t *s, const agent_staged_t *head)
{
    s->done += sizeof(agent_staged_t) + head->id_len + head->body_len;
    s->partial = 0;
}

agent_rc_t
agent_replay_append(agent_replay_t *r, const agent_run_ref_t *ref,
                    agent_stage_t *s)
{
    size_t n, left = AGENT_REPLAY_SLICE;
    const char *p;
    agent_str_t id;
    agent_unit_t unit = agent_replay_own(r, ref);
    agent_record_t *rec;
    agent_staged_t head;

    if (unit == 0 || agent_record(r, unit)->status == AGENT_STATUS_FINISHING) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    while (s->done < s->bytes.len) {
        p = s->bytes.data + s->done;
        memcpy(&head, p, sizeof(head));
        id.data = p + sizeof(head);
        id.len = head.id_len;
        p += sizeof(head) + head.id_len;

        if (s->partial == 0 || s->partial != rec->partial) {
            if (left < AGENT_ZONE_UNIT) {
                return AGENT_OK;
            }

            /* also when recovery has cut off what was there of it */

            agent_replay_cut(r, unit);

            s->partial = 0;

            if (!agent_replay_begin(r, unit, head.time, head.type, id,
                                    head.body_len)) {
                goto full;
            }
        }

        n = agent_replay_add(r, unit, p + s->partial,
                             head.body_len - s->partial, left);

        if (n == SIZE_MAX) {
            goto full;
        }

        left -= n < left ? n : left;

        if (s->partial + n < head.body_len) {
            s->partial += n;
            rec->partial = (uint32_t) s->partial;
            return AGENT_OK;
        }

        agent_replay_commit(r, unit, head.time);
        agent_stage_next(s, &head);

        left -= left < 32 + id.len ? left : 32 + id.len;
        continue;

    full:

        r->trimmed = 1;
        agent_replay_hole(r, unit, rec->next_seq + 1);
        agent_stage_next(s, &head);
    }

    agent_buf_reset(&s->bytes);
    s->done = 0;

    return AGENT_DONE;
}

/* --- after a death inside the lock ---------------------------------------- */

agent_rc_t
agent_replay_mend(agent_replay_t *r, agent_record_t *rec)
{
    size_t left, here;
    uint64_t seq;
    agent_unit_t piece, last = 0;
    agent_entry_t e = {0};
    agent_chunk_t *c;

    for (piece = rec->object.chain[AGENT_CHAIN_LOG]; piece != 0;
         piece = r->zone.next[piece]) {
        c = agent_chunk(r, piece);

        if (c->used > AGENT_CHUNK_DATA) {
            return AGENT_DECLINED;
        }

        if (c->seq < rec->next_seq && c->first < c->used) {
            last = piece;
        }
    }

    if (last == 0) {
        return rec->first_seq == rec->next_seq ? AGENT_OK : AGENT_DECLINED;
    }

    c = agent_chunk(r, last);
    piece = last;
    seq = c->seq;
    e.body_at = c->first;
    e.time = c->time;

    for (; seq < rec->next_seq; seq++) {
        if (!agent_entry_get(agent_chunk_data(r, piece), e.body_at, c->used,
                             &e)) {
            return AGENT_DECLINED;
        }

        for (left = e.body_len;;) {
            here = c->used - e.body_at;

            if (left <= here) {
                e.body_at += (uint32_t) left;
                break;
            }

            left -= here;
            piece = r->zone.next[piece];

            if (piece == 0) {
                return AGENT_DECLINED;
            }

            c = agent_chunk(r, piece);
            e.body_at = 0;
            e.id_at = 0;
            e.id_len = 0;
        }
    }

    rec->write = piece;
    rec->write_at = e.body_at;
    rec->write_time = e.time;
    c->id_at = (uint16_t) e.id_at;
    c->id_len = (uint16_t) e.id_len;

    if (c->first >= AGENT_CHUNK_DATA && e.body_at < AGENT_CHUNK_DATA) {
        c->first = (uint16_t) e.body_at;
        c->time = e.time;
    }

    return AGENT_OK;
}
