/*
 * A zone: a piece of memory shared by processes that holds keyed objects.
 *
 * All of it but a header and tables is units of one size.  An object is a head
 * unit, found by its key, and chains of further units.  Because every request
 * is for one unit, nothing fragments.
 *
 * A process may die at any instruction.  So what the structure rests on changes
 * by one store of one word, bytes before what makes them visible; all else
 * (free list, ends and lengths of chains, the order of use) is rebuilt by
 * agent_zone_recover(), which the next holder of the lock calls when it finds
 * that the last one died inside.  The order of stores is that of the program:
 * the kernel ends a process between instructions, and what it had stored is
 * seen by all.
 *
 * Locking is the caller's: every function here is called with the zone's lock
 * held unless it says otherwise.  None blocks, does I/O or allocates, and all
 * but recover, copy and reset take a bounded number of steps.
 */

#ifndef AGENT_ZONE_H
#define AGENT_ZONE_H

#include "agent_base.h"

#define AGENT_ZONE_UNIT   1024
#define AGENT_ZONE_KEY    16
#define AGENT_ZONE_CHAINS 4
#define AGENT_ZONE_LISTS  4
#define AGENT_ZONE_EXTRA  32768 /* bytes in the header for the zone's user */

/* The number of a unit; 0: none. */
typedef uint32_t agent_unit_t;

/*
 * At the start of an object's head unit.  Only key, hash, chain, joining, list and
 * stamp are trusted after a death; the rest is rebuilt from them.
 */
typedef struct {
    unsigned char key[AGENT_ZONE_KEY];
    agent_unit_t hash; /* the next object of the bucket */
    agent_unit_t chain[AGENT_ZONE_CHAINS];
    agent_unit_t tail[AGENT_ZONE_CHAINS];
    uint32_t count[AGENT_ZONE_CHAINS]; /* units in each chain */
    agent_unit_t prev;                 /* of its list */
    agent_unit_t next;
    uint32_t list;    /* 0 to AGENT_ZONE_LISTS - 1 */
    uint32_t joining; /* the chain that is being put behind chain 0 */
    uint64_t stamp;   /* order within the list: lower is older */
} agent_object_t;

typedef struct {
    agent_unit_t first; /* the oldest */
    agent_unit_t last;
    uint32_t count;
} agent_zone_list_t;

typedef struct {
    uint64_t magic; /* written last */
    uint32_t layout;
    uint32_t unit_size;
    uint32_t nunits; /* number 0 is not used */
    uint32_t nbuckets;
    uint64_t busy;    /* who is inside, 0: nobody */
    uint64_t counter; /* versions: never repeats, never goes back */
    uint64_t last_ms; /* the newest generation given out */
    uint64_t secret[2];
    uint32_t superseded; /* a newer zone has taken over */
    agent_unit_t free;
    uint32_t nfree;
    uint32_t nobjects;
    agent_zone_list_t lists[AGENT_ZONE_LISTS];
    uint64_t evictions; /* counted by the user */
    uint64_t recoveries;
    uint64_t resets;
    char extra[AGENT_ZONE_EXTRA];
} agent_zone_head_t;

/* A process's view of a zone; by itself it owns nothing. */
typedef struct {
    agent_zone_head_t *head;
    agent_unit_t *buckets;
    agent_unit_t *next;   /* of each unit: in a chain or the free list */
    unsigned char *marks; /* of agent_zone_recover() */
    char *units;
} agent_zone_t;

/*
 * Makes a new zone in "size" bytes at "mem", aligned to 64; "layout" is a
 * number of its user, "secret" 16 random bytes that clients cannot know (they
 * choose keys, but must not choose buckets), "now" milliseconds since the
 * epoch.  AGENT_TOO_LARGE: there is no room for even 16 units.
 */
agent_rc_t agent_zone_create(agent_zone_t *z, void *mem, size_t size,
                             uint32_t layout, const void *secret, uint64_t now);

/* The view of a zone that exists.  AGENT_INVALID: it is none, or of another
 * layout or size. */
agent_rc_t agent_zone_attach(agent_zone_t *z, void *mem, size_t size,
                             uint32_t layout);

/* Empties the zone.  Counters, versions, generations and "extra" stay. */
void agent_zone_reset(agent_zone_t *z, uint64_t now);

/*
 * Called right after the lock was taken and right before it is given back;
 * "who" is not 0.  agent_zone_enter() returns 1 when the last holder died
 * inside: then agent_zone_recover() comes first.
 */
int agent_zone_enter(agent_zone_t *z, uint64_t who);
void agent_zone_leave(agent_zone_t *z);

/*
 * Verifies all and rebuilds what can be rebuilt.  "check" sees each object once
 * its chains are known to be sound: it mends what its user keeps in it and
 * returns AGENT_OK, AGENT_DECLINED to have it removed, or AGENT_INVALID.
 * AGENT_INVALID: it cannot be mended, reset it.
 */
typedef agent_rc_t (*agent_zone_check_pt)(agent_zone_t *z, agent_unit_t unit,
                                          void *ctx);
agent_rc_t agent_zone_recover(agent_zone_t *z, agent_zone_check_pt check,
                              void *ctx);

static inline void *
agent_zone_at(const agent_zone_t *z, agent_unit_t unit)
{
    return z->units + (size_t) unit * AGENT_ZONE_UNIT;
}

static inline agent_object_t *
agent_zone_object(const agent_zone_t *z, agent_unit_t unit)
{
    return agent_zone_at(z, unit);
}

/* A version: larger than all before. */
uint64_t agent_zone_version(agent_zone_t *z);

/* A generation: max(now, the last one + 1). */
uint64_t agent_zone_generation(agent_zone_t *z, uint64_t now);

/* 0 when nothing is free. */
agent_unit_t agent_zone_alloc(agent_zone_t *z);
void agent_zone_free(agent_zone_t *z, agent_unit_t unit);

/* The object of a key, 0: none. */
agent_unit_t agent_zone_find(const agent_zone_t *z, const void *key);

/*
 * Makes "unit", whose bytes behind agent_object_t are ready, an object: the
 * newest of "list".  Its key must not be in the zone.
 */
void agent_zone_insert(agent_zone_t *z, agent_unit_t unit, const void *key,
                       uint32_t list);

/* Removes the object and frees all its units. */
void agent_zone_remove(agent_zone_t *z, agent_unit_t unit);

/* Makes the object the newest of "list". */
void agent_zone_move(agent_zone_t *z, agent_unit_t unit, uint32_t list);

/* Appends "unit", ready, to a chain of the object; frees the first unit of a
 * chain; frees a whole chain. */
void agent_zone_push(agent_zone_t *z, agent_unit_t object, unsigned chain,
                     agent_unit_t unit);
void agent_zone_shift(agent_zone_t *z, agent_unit_t object, unsigned chain);
void agent_zone_clear(agent_zone_t *z, agent_unit_t object, unsigned chain);

/* Puts a chain behind chain 0, all at once. */
void agent_zone_join(agent_zone_t *z, agent_unit_t object, unsigned chain);

/* Takes the first unit out of a chain without freeing it; 0: it is empty. */
agent_unit_t agent_zone_take(agent_zone_t *z, agent_unit_t object,
                             unsigned chain);

/*
 * Copies the objects of "from" that "want" accepts (AGENT_OK), the newest of
 * each list first, until "to" is full; their order and counters are kept.
 * Both are locked, or nobody else can see "to".  Returns their number.
 */
size_t agent_zone_copy(agent_zone_t *to, agent_zone_t *from,
                       agent_zone_check_pt want, void *ctx);

/*
 * In builds with AGENT_ZONE_HOOK every store that others may see calls
 * agent_zone_hook first, so that a test can end the process between any two,
 * and agent_zone_look sees the header before the lock is given back.
 */
#ifdef AGENT_ZONE_HOOK
extern void (*agent_zone_hook)(void);
extern void (*agent_zone_look)(const agent_zone_head_t *head);
#define agent_zone_point()                                                     \
    do {                                                                       \
        if (agent_zone_hook != NULL) {                                         \
            agent_zone_hook();                                                 \
        }                                                                      \
    } while (0)
#else
#define agent_zone_point() (void) 0
#endif

/* A store that comes after all before it and before all after it. */
#define agent_zone_set(var, value)                                             \
    do {                                                                       \
        agent_zone_point();                                                    \
        __atomic_signal_fence(__ATOMIC_SEQ_CST);                               \
        (var) = (value);                                                       \
        __atomic_signal_fence(__ATOMIC_SEQ_CST);                               \
    } while (0)

#endif /* AGENT_ZONE_H */
