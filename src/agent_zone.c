#include "agent_zone.h"

#include <string.h>

#define AGENT_ZONE_MAGIC         UINT64_C(0x61676e745a4f4e31)
#define AGENT_ZONE_MIN           16
#define AGENT_ZONE_VERSION_SHIFT 20

#ifdef AGENT_ZONE_HOOK
void (*agent_zone_hook)(void);
void (*agent_zone_look)(const agent_zone_head_t *head);
#endif

_Static_assert(sizeof(agent_object_t) <= 128, "an object leaves room to use");

/* --- the memory ----------------------------------------------------------- */

static size_t
agent_zone_align(size_t n)
{
    return (n + 63) & ~(size_t) 63;
}

/*
 * The header, buckets, the table of next units, marks, then the units.  Bytes
 * for n units.
 */
static size_t
agent_zone_layout(agent_zone_t *z, char *mem, size_t n, size_t nbuckets)
{
    size_t at = agent_zone_align(sizeof(agent_zone_head_t));

    z->head = (agent_zone_head_t *) (void *) mem;
    z->buckets = (agent_unit_t *) (void *) (mem + at);
    at += agent_zone_align(nbuckets * sizeof(agent_unit_t));
    z->next = (agent_unit_t *) (void *) (mem + at);
    at += agent_zone_align(n * sizeof(agent_unit_t));
    z->marks = (unsigned char *) (mem + at);
    at += agent_zone_align(n);
    z->units = mem + at;

    return at + n * AGENT_ZONE_UNIT;
}

/* One bucket for two units: a run has four or more. */
static size_t
agent_zone_buckets(size_t n)
{
    size_t buckets = 16;

    while (buckets < n / 2 && buckets < (1u << 24)) {
        buckets *= 2;
    }

    return buckets;
}

static size_t
agent_zone_fit(agent_zone_t *z, char *mem, size_t size)
{
    size_t low = 0, high = size / AGENT_ZONE_UNIT, n;

    if (high > UINT32_MAX - 1) {
        high = UINT32_MAX - 1;
    }

    while (low < high) {
        n = high - (high - low) / 2;

        if (agent_zone_layout(z, mem, n, agent_zone_buckets(n)) <= size) {
            low = n;
        } else {
            high = n - 1;
        }
    }

    return low;
}

void
agent_zone_reset(agent_zone_t *z, uint64_t now)
{
    agent_unit_t i;
    agent_zone_head_t *h = z->head;

    memset(z->buckets, 0, h->nbuckets * sizeof(agent_unit_t));
    memset(h->lists, 0, sizeof(h->lists));

    /* the units in their order, so that a zone little used touches little */

    for (i = 1; i < h->nunits; i++) {
        z->next[i] = i + 1 < h->nunits ? i + 1 : 0;
    }

    h->free = 1;
    h->nfree = h->nunits - 1;
    h->nobjects = 0;
    h->superseded = 0;

    if (h->counter < now << AGENT_ZONE_VERSION_SHIFT) {
        h->counter = now << AGENT_ZONE_VERSION_SHIFT;
    }
}

agent_rc_t
agent_zone_create(agent_zone_t *z, void *mem, size_t size, uint32_t layout,
                  const void *secret, uint64_t now)
{
    size_t n = agent_zone_fit(z, mem, size);
    agent_zone_head_t *h;

    if (n <= AGENT_ZONE_MIN) {
        return AGENT_TOO_LARGE;
    }

    (void) agent_zone_layout(z, mem, n, agent_zone_buckets(n));

    h = z->head;
    memset(h, 0, sizeof(agent_zone_head_t));

    memcpy(h->secret, secret, sizeof(h->secret));
    h->secret[0] |= 1;
    h->secret[1] |= 1;
    h->layout = layout;
    h->unit_size = AGENT_ZONE_UNIT;
    h->nunits = (uint32_t) n;
    h->nbuckets = (uint32_t) agent_zone_buckets(n);

    agent_zone_reset(z, now);
    agent_zone_set(h->magic, AGENT_ZONE_MAGIC);

    return AGENT_OK;
}

agent_rc_t
agent_zone_attach(agent_zone_t *z, void *mem, size_t size, uint32_t layout)
{
    size_t n = agent_zone_fit(z, mem, size);
    const agent_zone_head_t *h;

    if (n <= AGENT_ZONE_MIN) {
        return AGENT_INVALID;
    }

    (void) agent_zone_layout(z, mem, n, agent_zone_buckets(n));

    h = z->head;

    return h->magic == AGENT_ZONE_MAGIC && h->layout == layout &&
                   h->unit_size == AGENT_ZONE_UNIT && h->nunits == n
               ? AGENT_OK
               : AGENT_INVALID;
}

int
agent_zone_enter(agent_zone_t *z, uint64_t who)
{
    int died = z->head->busy != 0;

    agent_zone_set(z->head->busy, who);

    return died;
}

void
agent_zone_leave(agent_zone_t *z)
{
#ifdef AGENT_ZONE_HOOK
    if (agent_zone_look != NULL) {
        agent_zone_look(z->head);
    }
#endif

    agent_zone_set(z->head->busy, 0);
}

uint64_t
agent_zone_version(agent_zone_t *z)
{
    agent_zone_set(z->head->counter, z->head->counter + 1);

    return z->head->counter;
}

uint64_t
agent_zone_generation(agent_zone_t *z, uint64_t now)
{
    agent_zone_head_t *h = z->head;

    agent_zone_set(h->last_ms, now > h->last_ms ? now : h->last_ms + 1);

    return h->last_ms;
}

/* --- units ---------------------------------------------------------------- */

agent_unit_t
agent_zone_alloc(agent_zone_t *z)
{
    agent_unit_t unit = z->head->free;

    if (unit != 0) {
        agent_zone_set(z->head->free, z->next[unit]);
        z->head->nfree--;
    }

    return unit;
}

void
agent_zone_free(agent_zone_t *z, agent_unit_t unit)
{
    agent_zone_set(z->next[unit], z->head->free);
    agent_zone_set(z->head->free, unit);
    z->head->nfree++;
}

/* --- lists: rebuilt, so without an order of stores ------------------------ */

static void
agent_zone_unlist(agent_zone_t *z, agent_object_t *o)
{
    agent_zone_list_t *list = &z->head->lists[o->list];

    if (o->prev != 0) {
        agent_zone_object(z, o->prev)->next = o->next;
    } else {
        list->first = o->next;
    }

    if (o->next != 0) {
        agent_zone_object(z, o->next)->prev = o->prev;
    } else {
        list->last = o->prev;
    }

    list->count--;
}

static void
agent_zone_enlist(agent_zone_t *z, agent_unit_t unit)
{
    agent_object_t *o = agent_zone_object(z, unit);
    agent_zone_list_t *list = &z->head->lists[o->list];

    o->prev = list->last;
    o->next = 0;

    if (list->last != 0) {
        agent_zone_object(z, list->last)->next = unit;
    } else {
        list->first = unit;
    }

    list->last = unit;
    list->count++;
}

void
agent_zone_move(agent_zone_t *z, agent_unit_t unit, uint32_t list)
{
    agent_object_t *o = agent_zone_object(z, unit);

    agent_zone_unlist(z, o);

    agent_zone_set(o->stamp, agent_zone_version(z));
    agent_zone_set(o->list, list);

    agent_zone_enlist(z, unit);
}

/* --- objects -------------------------------------------------------------- */

static agent_unit_t *
agent_zone_bucket(const agent_zone_t *z, const void *key)
{
    uint64_t n[2];
    const agent_zone_head_t *h = z->head;

    memcpy(n, key, sizeof(n));

    n[0] = (n[0] * h->secret[0] + n[1] * h->secret[1]) >> 32;

    return &z->buckets[n[0] & (h->nbuckets - 1)];
}

agent_unit_t
agent_zone_find(const agent_zone_t *z, const void *key)
{
    agent_unit_t unit = *agent_zone_bucket(z, key);
    const agent_object_t *o;

    while (unit != 0) {
        o = agent_zone_object(z, unit);

        if (memcmp(o->key, key, AGENT_ZONE_KEY) == 0) {
            return unit;
        }

        unit = o->hash;
    }

    return 0;
}

void
agent_zone_insert(agent_zone_t *z, agent_unit_t unit, const void *key,
                  uint32_t list)
{
    agent_object_t *o = agent_zone_object(z, unit);
    agent_unit_t *bucket = agent_zone_bucket(z, key);

    memset(o, 0, sizeof(agent_object_t));
    memcpy(o->key, key, AGENT_ZONE_KEY);
    o->hash = *bucket;
    o->list = list;
    o->stamp = agent_zone_version(z);

    agent_zone_set(*bucket, unit);

    z->head->nobjects++;
    agent_zone_enlist(z, unit);
}

void
agent_zone_remove(agent_zone_t *z, agent_unit_t unit)
{
    unsigned i;
    agent_object_t *o = agent_zone_object(z, unit);
    agent_unit_t *p = agent_zone_bucket(z, o->key);

    while (*p != unit) {
        p = &agent_zone_object(z, *p)->hash;
    }

    agent_zone_set(*p, o->hash);

    z->head->nobjects--;
    agent_zone_unlist(z, o);

    for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
        agent_zone_clear(z, unit, i);
    }

    agent_zone_free(z, unit);
}

/* --- chains --------------------------------------------------------------- */

void
agent_zone_push(agent_zone_t *z, agent_unit_t object, unsigned chain,
                agent_unit_t unit)
{
    agent_object_t *o = agent_zone_object(z, object);

    agent_zone_set(z->next[unit], 0);

    if (o->chain[chain] == 0) {
        agent_zone_set(o->chain[chain], unit);
    } else {
        agent_zone_set(z->next[o->tail[chain]], unit);
    }

    o->tail[chain] = unit;
    o->count[chain]++;
}

agent_unit_t
agent_zone_take(agent_zone_t *z, agent_unit_t object, unsigned chain)
{
    agent_object_t *o = agent_zone_object(z, object);
    agent_unit_t unit = o->chain[chain];

    if (unit != 0) {
        agent_zone_set(o->chain[chain], z->next[unit]);
        o->count[chain]--;
    }

    return unit;
}

void
agent_zone_join(agent_zone_t *z, agent_unit_t object, unsigned chain)
{
    agent_object_t *o = agent_zone_object(z, object);
    agent_unit_t first = o->chain[chain], last = o->tail[chain];

    if (first == 0) {
        return;
    }

    /* for a moment the units are in two chains, recovery must know */

    agent_zone_set(o->joining, chain);

    if (o->chain[0] == 0) {
        agent_zone_set(o->chain[0], first);
    } else {
        agent_zone_set(z->next[o->tail[0]], first);
    }

    agent_zone_set(o->chain[chain], 0);
    agent_zone_set(o->joining, 0);

    o->tail[0] = last;
    o->count[0] += o->count[chain];
    o->count[chain] = 0;
}

void
agent_zone_shift(agent_zone_t *z, agent_unit_t object, unsigned chain)
{
    agent_unit_t unit = agent_zone_take(z, object, chain);

    if (unit != 0) {
        agent_zone_free(z, unit);
    }
}

/* The chain as a whole goes in front of the free list, whatever its length. */
void
agent_zone_clear(agent_zone_t *z, agent_unit_t object, unsigned chain)
{
    agent_object_t *o = agent_zone_object(z, object);
    agent_unit_t first = o->chain[chain], last = o->tail[chain];

    if (first == 0) {
        return;
    }

    agent_zone_set(o->chain[chain], 0);
    agent_zone_set(z->next[last], z->head->free);
    agent_zone_set(z->head->free, first);

    z->head->nfree += o->count[chain];
    o->count[chain] = 0;
}

/* --- after a death -------------------------------------------------------- */

static int
agent_zone_mark(agent_zone_t *z, agent_unit_t unit)
{
    if (unit >= z->head->nunits || z->marks[unit] != 0) {
        return 0;
    }

    z->marks[unit] = 1;

    return 1;
}

static agent_rc_t
agent_zone_walk_object(agent_zone_t *z, agent_unit_t unit)
{
    unsigned i;
    agent_unit_t u;
    agent_object_t *o = agent_zone_object(z, unit);

    if (o->list >= AGENT_ZONE_LISTS || o->joining >= AGENT_ZONE_CHAINS) {
        return AGENT_INVALID;
    }

    for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
        o->count[i] = 0;
        o->tail[i] = 0;

        for (u = o->chain[i]; u != 0; u = z->next[u]) {
            if (!agent_zone_mark(z, u)) {
                return AGENT_INVALID;
            }

            if (i == 0 && o->joining != 0 && u == o->chain[o->joining]) {
                o->chain[o->joining] = 0;
            }

            o->tail[i] = u;
            o->count[i]++;
        }
    }

    o->joining = 0;

    return AGENT_OK;
}

/* Merges two lists linked by "next", the lower stamps first. */
static agent_unit_t
agent_zone_merge(agent_zone_t *z, agent_unit_t a, agent_unit_t b)
{
    agent_unit_t first = 0, *end = &first;

    while (a != 0 && b != 0) {
        if (agent_zone_object(z, a)->stamp <= agent_zone_object(z, b)->stamp) {
            *end = a;
            end = &agent_zone_object(z, a)->next;
            a = *end;
        } else {
            *end = b;
            end = &agent_zone_object(z, b)->next;
            b = *end;
        }
    }

    *end = a != 0 ? a : b;

    return first;
}

/* Sorts by merging piles of 1, 2, 4 ... objects. */
static void
agent_zone_sort(agent_zone_t *z, agent_unit_t unsorted)
{
    size_t i, n = 0;
    agent_unit_t unit, piles[33] = {0};
    agent_zone_head_t *h = z->head;

    while (unsorted != 0) {
        unit = unsorted;
        unsorted = agent_zone_object(z, unit)->next;
        agent_zone_object(z, unit)->next = 0;

        for (i = 0; piles[i] != 0; i++) {
            unit = agent_zone_merge(z, piles[i], unit);
            piles[i] = 0;
        }

        piles[i] = unit;
    }

    for (i = 0, unit = 0; i < sizeof(piles) / sizeof(piles[0]); i++) {
        unit = agent_zone_merge(z, piles[i], unit);
    }

    memset(h->lists, 0, sizeof(h->lists));

    for (; unit != 0; unit = unsorted) {
        unsorted = agent_zone_object(z, unit)->next;
        agent_zone_enlist(z, unit);

        if (h->counter < agent_zone_object(z, unit)->stamp) {
            h->counter = agent_zone_object(z, unit)->stamp;
        }

        n++;
    }

    h->nobjects = (uint32_t) n;
}

static void
agent_zone_collect(agent_zone_t *z)
{
    agent_unit_t i;
    agent_zone_head_t *h = z->head;

    h->free = 0;
    h->nfree = 0;

    for (i = h->nunits - 1; i != 0; i--) {
        if (z->marks[i] == 0) {
            z->next[i] = h->free;
            h->free = i;
            h->nfree++;
        }
    }
}

agent_rc_t
agent_zone_recover(agent_zone_t *z, agent_zone_check_pt check, void *ctx)
{
    uint32_t i;
    agent_rc_t rc;
    agent_unit_t unit, all = 0, drop = 0, *p;
    agent_object_t *o;
    agent_zone_head_t *h = z->head;

    memset(z->marks, 0, h->nunits);

    /* units first: what "check" does may free some of them */

    for (i = 0; i < h->nbuckets; i++) {
        for (unit = z->buckets[i]; unit != 0; unit = o->hash) {
            if (!agent_zone_mark(z, unit)) {
                return AGENT_INVALID;
            }

            o = agent_zone_object(z, unit);

            if (agent_zone_bucket(z, o->key) != &z->buckets[i] ||
                agent_zone_walk_object(z, unit) != AGENT_OK) {
                return AGENT_INVALID;
            }
        }
    }

    agent_zone_collect(z);

    for (i = 0; i < h->nbuckets; i++) {
        p = &z->buckets[i];

        while (*p != 0) {
            unit = *p;
            o = agent_zone_object(z, unit);
            rc = check(z, unit, ctx);

            if (rc == AGENT_DECLINED) {
                *p = o->hash;
                o->next = drop;
                drop = unit;
                continue;
            }

            if (rc != AGENT_OK) {
                return AGENT_INVALID;
            }

            o->next = all;
            all = unit;
            p = &o->hash;
        }
    }

    agent_zone_sort(z, all);

    for (; drop != 0; drop = unit) {
        unit = agent_zone_object(z, drop)->next;

        for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
            agent_zone_clear(z, drop, i);
        }

        agent_zone_free(z, drop);
    }

    h->recoveries++;

    return AGENT_OK;
}

/* --- into another zone ---------------------------------------------------- */

/* AGENT_NOMEM: "to" has not enough units left. */
static agent_rc_t
agent_zone_copy_object(agent_zone_t *to, const agent_zone_t *from,
                       agent_unit_t unit)
{
    unsigned i;
    uint64_t stamp;
    size_t need = 1;
    agent_unit_t u, copy, piece;
    const agent_object_t *o = agent_zone_object(from, unit);

    for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
        need += o->count[i];
    }

    if (need > to->head->nfree) {
        return AGENT_NOMEM;
    }

    copy = agent_zone_alloc(to);
    memcpy(agent_zone_at(to, copy), o, AGENT_ZONE_UNIT);
    stamp = o->stamp;

    agent_zone_insert(to, copy, o->key, o->list);
    agent_zone_object(to, copy)->stamp = stamp;

    for (i = 0; i < AGENT_ZONE_CHAINS; i++) {
        for (u = o->chain[i]; u != 0; u = from->next[u]) {
            piece = agent_zone_alloc(to);
            memcpy(agent_zone_at(to, piece), agent_zone_at(from, u),
                   AGENT_ZONE_UNIT);
            agent_zone_push(to, copy, i, piece);
        }
    }

    return AGENT_OK;
}

size_t
agent_zone_copy(agent_zone_t *to, agent_zone_t *from, agent_zone_check_pt want,
                void *ctx)
{
    size_t n = 0;
    uint32_t i;
    agent_unit_t unit, all = 0;
    agent_zone_head_t *h = to->head;

    for (i = 0; i < AGENT_ZONE_LISTS; i++) {
        for (unit = from->head->lists[i].last; unit != 0;
             unit = agent_zone_object(from, unit)->prev) {
            if (want(from, unit, ctx) != AGENT_OK) {
                continue;
            }

            if (agent_zone_copy_object(to, from, unit) != AGENT_OK) {
                break;
            }

            n++;
        }
    }

    if (h->counter < from->head->counter) {
        h->counter = from->head->counter;
    }

    if (h->last_ms < from->head->last_ms) {
        h->last_ms = from->head->last_ms;
    }

    /* they came newest first */

    for (i = 0; i < h->nbuckets; i++) {
        for (unit = to->buckets[i]; unit != 0;
             unit = agent_zone_object(to, unit)->hash) {
            agent_zone_object(to, unit)->next = all;
            all = unit;
        }
    }

    agent_zone_sort(to, all);

    return n;
}
