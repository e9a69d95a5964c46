#include "agent_record.h"

#include <string.h>

/* Units looked at in one call: more than the largest event has. */
#define AGENT_REPLAY_WALK 1200

/* --- reading -------------------------------------------------------------- */

void
agent_window_init(agent_window_t *w, const agent_alloc_t *alloc)
{
    memset(w, 0, sizeof(agent_window_t));
    w->alloc = alloc;
    agent_buf_init(&w->body, alloc);
}

void
agent_window_free(agent_window_t *w)
{
    agent_free(w->alloc, w->data);
    agent_free(w->alloc, w->numbers);
    agent_buf_free(&w->body);
    agent_window_init(w, w->alloc);
}

agent_rc_t
agent_window_reserve(agent_window_t *w, size_t n)
{
    void *p;
    size_t room = w->n + n;

    if (room <= w->room) {
        return AGENT_OK;
    }

    p = w->alloc->resize(w->alloc->ctx, w->data, room * AGENT_ZONE_UNIT);

    if (p == NULL) {
        return AGENT_NOMEM;
    }

    w->data = p;

    p = w->alloc->resize(w->alloc->ctx, w->numbers,
                         room * sizeof(agent_unit_t));

    if (p == NULL) {
        return AGENT_NOMEM;
    }

    w->numbers = p;
    w->room = room;

    return AGENT_OK;
}

/*
 * Finds the unit where the entry place->seq begins.  A unit is the right one
 * when the next has a later seq; the walk goes on from where it was.
 */
static agent_rc_t
agent_replay_seek(const agent_replay_t *r, const agent_record_t *rec,
                  agent_place_t *place)
{
    unsigned i;
    agent_unit_t unit, next, first = rec->object.chain[AGENT_CHAIN_LOG];
    const agent_chunk_t *c;

    if (first == 0) {
        return AGENT_DECLINED;
    }

    if (place->unit == 0 || place->number < agent_chunk(r, first)->number) {
        place->unit = first;
        place->number = agent_chunk(r, first)->number;
    }

    unit = place->unit;

    for (i = 0, next = r->zone.next[unit]; next != 0;
         i++, next = r->zone.next[next]) {
        c = agent_chunk(r, next);

        if (c->seq > place->seq) {
            break;
        }

        if (c->first < c->used) {
            unit = next;
        }

        if (i == AGENT_REPLAY_WALK) {
            place->unit = unit;
            place->number = agent_chunk(r, unit)->number;
            return AGENT_DONE;
        }
    }

    place->unit = unit;
    place->number = agent_chunk(r, unit)->number;

    c = agent_chunk(r, unit);

    place->at = c->first;
    place->id_at = 0;
    place->id_len = 0;
    place->time = c->time;

    return AGENT_OK;
}

/* An offset of no entry: agent_replay_read() has to look the place up. */
#define AGENT_PLACE_UNKNOWN UINT32_MAX

agent_rc_t
agent_replay_read(agent_replay_t *r, const agent_run_ref_t *ref,
                  agent_place_t *place, agent_window_t *w, int more)
{
    size_t n, i;
    agent_rc_t rc;
    agent_unit_t unit = agent_replay_find(r, ref), piece;
    agent_record_t *rec;
    const agent_chunk_t *first;
    agent_place_t found;

    if (!more) {
        w->n = 0;
    }

    if (unit == 0) {
        return AGENT_ABORTED;
    }

    rec = agent_record(r, unit);

    if (rec->gone) {
        return AGENT_ABORTED;
    }

    if (place->seq < rec->first_seq) {
        return AGENT_DECLINED;
    }

    if (place->generation != rec->generation) {
        place->generation = rec->generation;
        place->unit = 0;
    }

    w->started = rec->started;
    w->end = rec->next_seq;

    if (place->seq >= rec->next_seq) {
        return AGENT_OK;
    }

    piece = rec->object.chain[AGENT_CHAIN_LOG];

    if (piece == 0) {
        return AGENT_INVALID;
    }

    first = agent_chunk(r, piece);

    if (place->unit == 0 || place->at == AGENT_PLACE_UNKNOWN ||
        place->number < first->number) {
        /* the entries between are passed over by agent_window_event() */

        found = *place;
        rc = agent_replay_seek(r, rec, &found);

        if (rc != AGENT_OK) {
            place->unit = found.unit;
            place->number = found.number;
            place->at = AGENT_PLACE_UNKNOWN;
            return rc;
        }

        found.seq = place->seq;
        *place = found;
        w->n = 0;
    }

    piece = w->n != 0 ? r->zone.next[w->numbers[w->n - 1]] : place->unit;

    for (n = 0; piece != 0 && w->n < w->room &&
                n + AGENT_ZONE_UNIT <= AGENT_REPLAY_SLICE;
         piece = r->zone.next[piece]) {
        i = sizeof(agent_chunk_t) + agent_chunk(r, piece)->used;

        memcpy(w->data + w->n * AGENT_ZONE_UNIT, agent_chunk(r, piece), i);
        w->numbers[w->n++] = piece;
        n += i;
    }

    return AGENT_OK;
}

static const agent_chunk_t *
agent_window_chunk(const agent_window_t *w, size_t i)
{
    return (const agent_chunk_t *) (const void *) (w->data +
                                                   i * AGENT_ZONE_UNIT);
}

static const char *
agent_window_data(const agent_window_t *w, size_t i)
{
    return w->data + i * AGENT_ZONE_UNIT + sizeof(agent_chunk_t);
}

/* One entry on from (i, at): where its body ends.  "e" is in force before and
 * after.  AGENT_TOO_LARGE: it ends behind the window. */
static agent_rc_t
agent_window_entry(const agent_window_t *w, size_t *i, uint32_t *at,
                   agent_entry_t *e)
{
    size_t left, here;
    const agent_chunk_t *c = agent_window_chunk(w, *i);

    /* a unit that is used up goes on in the next */

    while (*at >= c->used) {
        if (*i + 1 == w->n) {
            return AGENT_DONE;
        }

        c = agent_window_chunk(w, ++*i);
        *at = c->first;
        e->id_at = 0;
        e->id_len = 0;
        e->time = c->time;
    }

    if (!agent_entry_get(agent_window_data(w, *i), *at, c->used, e)) {
        return *i + 1 == w->n ? AGENT_DONE : AGENT_INVALID;
    }

    left = e->body_len;
    here = c->used - e->body_at;
    *at = e->body_at;

    while (left > here) {
        left -= here;

        if (*i + 1 == w->n) {
            return AGENT_TOO_LARGE;
        }

        c = agent_window_chunk(w, ++*i);
        *at = 0;
        here = c->used;
    }

    *at += (uint32_t) left;

    return AGENT_OK;
}

/* The body from (i, at) on, in one piece. */
static agent_rc_t
agent_window_body(agent_window_t *w, size_t i, uint32_t at, size_t len,
                  agent_str_t *body)
{
    size_t here = agent_window_chunk(w, i)->used - at;

    if (len <= here) {
        body->data = agent_window_data(w, i) + at;
        body->len = len;
        return AGENT_OK;
    }

    agent_buf_reset(&w->body);

    if (agent_buf_reserve(&w->body, len) != AGENT_OK) {
        return AGENT_NOMEM;
    }

    while (len != 0) {
        here = agent_window_chunk(w, i)->used - at;
        here = here < len ? here : len;

        agent_buf_add(&w->body, agent_window_data(w, i) + at, here);
        len -= here;
        at = 0;
        i++;
    }

    *body = agent_buf_str(&w->body);

    return AGENT_OK;
}

agent_rc_t
agent_window_event(agent_window_t *w, agent_place_t *place,
                   agent_place_t *after, agent_event_t *ev)
{
    size_t i, begin;
    uint32_t at, start;
    uint64_t seq;
    agent_rc_t rc;
    agent_entry_t e = {0};

    if (w->n == 0 || place->seq >= w->end) {
        return AGENT_DONE;
    }

    for (i = 0; i < w->n && w->numbers[i] != place->unit; i++) {
        /* where the place is */
    }

    if (i == w->n) {
        return AGENT_DONE;
    }

    at = place->at;
    e.id_at = place->id_at;
    e.id_len = place->id_len;
    e.time = place->time;

    /*
     * At the start of a unit that was looked up the entries before the one
     * wanted are passed over.
     */

    seq = place->seq;

    if (at == agent_window_chunk(w, i)->first) {
        seq = agent_window_chunk(w, i)->seq;
    }

    for (;; seq++) {
        begin = i;
        start = at;
        rc = agent_window_entry(w, &i, &at, &e);

        if (rc != AGENT_OK) {
            return rc;
        }

        if (seq == place->seq) {
            break;
        }

        if (i != begin) {
            e.id_at = 0;
            e.id_len = 0;
        }
    }

    (void) start;

    /* the entry may have begun in a unit behind "begin" */

    while (agent_window_chunk(w, begin)->used <= start) {
        start = agent_window_chunk(w, ++begin)->first;
    }

    ev->type = (agent_event_type_t) e.type;
    ev->id.data = agent_window_data(w, begin) + e.id_at;
    ev->id.len = e.id_len;
    ev->time = w->started + e.time;

    rc = agent_window_body(w, begin, e.body_at, e.body_len, &ev->body);

    if (rc != AGENT_OK) {
        return rc;
    }

    after->seq = place->seq + 1;
    after->generation = place->generation;
    after->unit = w->numbers[i];
    after->number = agent_window_chunk(w, i)->number;
    after->at = at;
    after->id_at = i == begin ? e.id_at : 0;
    after->id_len = i == begin ? e.id_len : 0;
    after->time = e.time;

    return AGENT_OK;
}
