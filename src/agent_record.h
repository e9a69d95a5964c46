/*
 * How a run is stored: private to agent_replay.c, agent_log.c and
 * agent_window.c.
 */

#ifndef AGENT_RECORD_H
#define AGENT_RECORD_H

#include "agent_replay.h"

#define AGENT_CHAIN_LOG   0
#define AGENT_CHAIN_END   1 /* the reserve, then the terminal event */
#define AGENT_CHAIN_INPUT 2
#define AGENT_CHAIN_CHECK 3

#define AGENT_ENTRY_TYPE 0x1f
#define AGENT_ENTRY_SAME 0x20
#define AGENT_ENTRY_TIME 0x40

#define AGENT_VARINT_MAX 5

/* At the start of every unit of a log. */
typedef struct {
    uint64_t seq; /* of the first entry that begins here; when none does, of the
                     next to begin */
    uint32_t number; /* in its log */
    uint32_t time;   /* in force at the start */
    uint16_t first;  /* where that entry begins */
    uint16_t used;
    uint16_t id_at; /* the id in force at the end, for the writer */
    uint16_t id_len;
} agent_chunk_t;

#define AGENT_CHUNK_DATA (AGENT_ZONE_UNIT - sizeof(agent_chunk_t))

typedef struct {
    agent_object_t object;
    uint64_t generation;
    uint64_t owner;
    uint64_t first_seq;
    uint64_t next_seq;
    uint64_t end_seq; /* of the terminal event, once status is finishing */
    uint64_t check_seq;
    uint64_t started;
    uint64_t finished;
    agent_usage_t usage;
    agent_waiters_t waiters;
    agent_unit_t write; /* where the next entry goes, 0: into a new unit */
    uint32_t write_at;
    uint32_t write_time;
    uint32_t partial; /* bytes behind write_at of an entry not yet whole */
    uint32_t checked; /* number of the unit at the last checkpoint */
    uint32_t number;  /* of the newest unit; never goes back */
    uint16_t slot;
    uint16_t thread_len;
    uint8_t status;
    uint8_t end_status;
    uint8_t code;
    uint8_t content;
    uint8_t cancel;
    uint8_t gone;
    uint8_t replaced;
    uint8_t input;
    uint8_t ready; /* the claim was completed */
    unsigned char thread[AGENT_REPLAY_THREAD];
} agent_record_t;

_Static_assert(sizeof(agent_record_t) <= AGENT_ZONE_UNIT,
               "a record is one unit");

static inline agent_record_t *
agent_record(const agent_replay_t *r, agent_unit_t unit)
{
    return agent_zone_at(&r->zone, unit);
}

static inline agent_chunk_t *
agent_chunk(const agent_replay_t *r, agent_unit_t unit)
{
    return agent_zone_at(&r->zone, unit);
}

static inline char *
agent_chunk_data(const agent_replay_t *r, agent_unit_t unit)
{
    return (char *) agent_zone_at(&r->zone, unit) + sizeof(agent_chunk_t);
}

/* The head of an entry that begins in one unit. */
typedef struct {
    unsigned type;
    uint32_t time;  /* in force with it */
    uint32_t id_at; /* in the unit's data */
    uint32_t id_len;
    uint32_t body_at;
    uint32_t body_len;
} agent_entry_t;

/* Writes at most AGENT_VARINT_MAX bytes of a number below 2^32; returns how
 * many. */
size_t agent_varint_put(char *p, size_t n);

/*
 * The entry at "at" of a unit's data, of which "used" bytes are there.  id_at,
 * id_len and time come in as they are in force.  0: it is damaged, or ends
 * behind "used".
 */
int agent_entry_get(const char *data, uint32_t at, uint32_t used,
                    agent_entry_t *e);

/* A unit, if need be one of a run that is over; 0: only live ones are left. */
agent_unit_t agent_replay_unit(agent_replay_t *r);

/* The unit of a run by key and generation, 0: it is not there any more. */
agent_unit_t agent_replay_find(const agent_replay_t *r,
                               const agent_run_ref_t *ref);

/* The same of a live run of this owner. */
agent_unit_t agent_replay_own(const agent_replay_t *r,
                              const agent_run_ref_t *ref);

/* What is behind the last whole entry goes. */
void agent_replay_cut(agent_replay_t *r, agent_unit_t unit);

/* The checkpoint goes if it no longer reaches to what is kept. */
void agent_replay_outdated(agent_replay_t *r, agent_unit_t unit);

/* Nothing of the log is left but what comes; readers find a gap. */
void agent_replay_hole(agent_replay_t *r, agent_unit_t unit, uint64_t next);

/*
 * Finds where the last whole entry of a live run ends, from the last unit that
 * one begins in.  AGENT_DECLINED: the log is not to be read.
 */
agent_rc_t agent_replay_mend(agent_replay_t *r, agent_record_t *rec);

#endif /* AGENT_RECORD_H */
