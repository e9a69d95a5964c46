/*
 * The log of runs in a zone: who runs what, and every event of each.
 *
 * A run is an object of the zone.  Its head unit is the record; its chains are
 * the log, a reserve of units for its last words, the client's messages and a
 * checkpoint.  All functions are called with the zone's lock held unless they
 * say otherwise; time is milliseconds since the epoch, handed in.
 *
 * The log is bytes over a chain of units.  An entry is
 *
 *     type and flags (1 byte); with AGENT_ENTRY_TIME the milliseconds since
 *     the last time in this unit (varint); unless AGENT_ENTRY_SAME an id:
 *     length (varint) and bytes; length of the body (varint) and the body
 *
 * where only a body goes on in the next unit.  SAME: the id of the entry before
 * in this unit.  So reading can begin in any unit.  Varints are LEB128.
 */

#ifndef AGENT_REPLAY_H
#define AGENT_REPLAY_H

#include "agent_code.h"
#include "agent_delta.h"
#include "agent_event.h"
#include "agent_zone.h"

#define AGENT_REPLAY_LAYOUT 2
#define AGENT_REPLAY_THREAD 512 /* bytes of a thread id */
#define AGENT_REPLAY_SLOTS  256 /* process slots that can be rung */

/* Bytes copied in one holding of the lock. */
#define AGENT_REPLAY_SLICE 16384

typedef enum {
    AGENT_STATUS_QUEUED = 0, /* numbers are stored: only append here */
    AGENT_STATUS_RUNNING,
    AGENT_STATUS_FINISHING,
    AGENT_STATUS_FINISHED, /* from here on the run is over */
    AGENT_STATUS_CANCELLED,
    AGENT_STATUS_ERROR,
    AGENT_STATUS_INTERRUPTED
} agent_status_t;

#define agent_status_over(s) ((s) >= AGENT_STATUS_FINISHED)

/* "queued" and so on. */
const char *agent_status_name(unsigned status);

/* The lists of the zone; what is evicted first comes first. */
enum {
    AGENT_LIST_GONE = 0, /* only the record is left, to say so */
    AGENT_LIST_OVER,
    AGENT_LIST_LIVE
};

typedef struct {
    unsigned status;
    uint64_t generation;
    uint64_t first_seq; /* the oldest event kept */
    uint64_t next_seq;  /* of the next event: last + 1 */
    uint64_t check_seq; /* the checkpoint stands for the events before, 0: none
                           */
    uint64_t started;
    uint64_t finished; /* 0: not yet */
    agent_usage_t usage;
    unsigned code;         /* agent_code_t of an error */
    unsigned content : 1;  /* something was said */
    unsigned gone : 1;     /* expired or evicted: only this is left */
    unsigned replaced : 1; /* the id has had a generation before */
    unsigned input : 1;    /* the client's messages are kept */
    uint64_t owner;        /* of a live run: the worker's number and slot */
    unsigned slot;
    size_t thread_len;
    unsigned char thread[AGENT_REPLAY_THREAD];
} agent_run_info_t;

/* Which run: what is done to it later is refused unless all of it matches. */
typedef struct {
    unsigned char key[AGENT_ZONE_KEY];
    uint64_t generation;
    uint64_t owner;
} agent_run_ref_t;

typedef struct {
    agent_zone_t zone;
    uint64_t retain;    /* how long an ended run is kept, and then remembered */
    uint32_t max_units; /* of one log; at least 8 */
    uint32_t reserve;   /* units, 0 for a zone without events */
    unsigned trimmed : 1; /* out: a live run lost events for want of room */
} agent_replay_t;

/* As agent_zone_check_pt for agent_zone_recover(); ctx is the agent_replay_t.
 */
agent_rc_t agent_replay_check(agent_zone_t *z, agent_unit_t unit, void *ctx);

/*
 * Claims a key for ref->owner and sets ref->generation: a new run, queued.
 * AGENT_DECLINED: there is one already, "info" tells of it (an ended one that
 * said nothing is replaced instead).  AGENT_NOMEM: nothing is free and nothing
 * can be evicted.  AGENT_TOO_LARGE: the thread id.
 */
agent_rc_t agent_replay_claim(agent_replay_t *r, agent_run_ref_t *ref,
                              unsigned slot, agent_str_t thread, uint64_t now,
                              agent_run_info_t *info);

/*
 * A live run whose zone was reset opens its log anew: as claim, but running,
 * and its events go on at "seq"; those before are gone.
 */
agent_rc_t agent_replay_reopen(agent_replay_t *r, agent_run_ref_t *ref,
                               unsigned slot, agent_str_t thread, uint64_t seq,
                               uint64_t now);

/* AGENT_OK or AGENT_DECLINED: unknown. */
agent_rc_t agent_replay_info(agent_replay_t *r, const void *key, uint64_t now,
                             agent_run_info_t *info);

/* What stands in the head unit of a run, whatever its time. */
agent_rc_t agent_replay_peek(agent_replay_t *r, agent_unit_t unit,
                             agent_run_info_t *info);

/* Asks a run to stop.  AGENT_OK; AGENT_DONE: it is over; AGENT_ABORTED: it is
 * gone; AGENT_DECLINED: unknown. */
agent_rc_t agent_replay_cancel(agent_replay_t *r, const void *key, uint64_t now,
                               agent_run_info_t *info);

/* Forgets a run that is over, with its log. */
agent_rc_t agent_replay_forget(agent_replay_t *r, const agent_run_ref_t *ref);

/* --- of the owner: AGENT_ABORTED when the run is not its own any more ----- */

agent_rc_t agent_replay_status(agent_replay_t *r, const agent_run_ref_t *ref,
                               unsigned status);

/* Notes that something was said and, in a zone without events, how many there
 * have been. */
void agent_replay_note(agent_replay_t *r, const agent_run_ref_t *ref,
                       uint64_t next_seq, int content);

/* 1 when somebody asked it to stop. */
int agent_replay_cancelled(agent_replay_t *r, const agent_run_ref_t *ref);

/*
 * Adds to the client's messages (chain 0) or to a new checkpoint (1), at most
 * AGENT_REPLAY_SLICE bytes a call.  AGENT_NOMEM: there is no room, what was
 * added is dropped.  agent_replay_checked() makes the checkpoint valid: it
 * stands for the events before "seq".
 */
agent_rc_t agent_replay_keep(agent_replay_t *r, const agent_run_ref_t *ref,
                             int checkpoint, const char *p, size_t n);
agent_rc_t agent_replay_checked(agent_replay_t *r, const agent_run_ref_t *ref,
                                uint64_t seq);

/* 1 when a new checkpoint should be written before events have to go. */
int agent_replay_wants_check(agent_replay_t *r, const agent_run_ref_t *ref);

/* 1 when events have gone and no checkpoint stands for them: before the end one
 * should be written. */
int agent_replay_needs_check(agent_replay_t *r, const agent_run_ref_t *ref);

/* Drops the checkpoint and what was added to a new one. */
void agent_replay_uncheck(agent_replay_t *r, const agent_run_ref_t *ref);

/*
 * Events on their way into the log.  agent_stage_add() works without the lock;
 * agent_replay_append() takes over at most about AGENT_REPLAY_SLICE bytes of
 * them and is called until it returns AGENT_DONE; AGENT_OK: call it again.
 * What does not fit at all is dropped, readers find a gap there.
 */
typedef struct {
    agent_buf_t bytes;
    size_t done;    /* bytes that are in the log */
    size_t partial; /* of the event there: bytes of its body in the log */
    uint64_t seq;   /* of the next event added */
} agent_stage_t;

void agent_stage_init(agent_stage_t *s, const agent_alloc_t *alloc);
void agent_stage_free(agent_stage_t *s);
agent_rc_t agent_stage_add(agent_stage_t *s, const agent_event_t *ev,
                           uint64_t now);

/* Forgets what has not been taken over; the numbers go on. */
void agent_stage_drop(agent_stage_t *s);

agent_rc_t agent_replay_append(agent_replay_t *r, const agent_run_ref_t *ref,
                               agent_stage_t *s);

/*
 * The end, in two steps: finish keeps the terminal event in the record and
 * makes the status "finishing"; end puts it into the log, the first to do so
 * wins.  AGENT_TOO_LARGE: use a smaller event.
 */
agent_rc_t agent_replay_finish(agent_replay_t *r, const agent_run_ref_t *ref,
                               const agent_run_info_t *info,
                               const agent_event_t *ev, uint64_t now);
agent_rc_t agent_replay_end(agent_replay_t *r, const agent_run_ref_t *ref,
                            uint64_t now);

/*
 * A survivor ends the run of a worker that has died: with the event kept by
 * finish, else with "ev" and info's status and code.
 */
agent_rc_t agent_replay_lost(agent_replay_t *r, const agent_run_ref_t *ref,
                             const agent_run_info_t *info,
                             const agent_event_t *ev, uint64_t now);

/* --- of readers ----------------------------------------------------------- */

/* Whom to ring when events come; the bits are set by readers' workers. */
typedef struct {
    uint64_t bits[AGENT_REPLAY_SLOTS / 64];
} agent_waiters_t;

/* AGENT_ABORTED: there is no such run any more. */
agent_rc_t agent_replay_wait(agent_replay_t *r, const agent_run_ref_t *ref,
                             unsigned slot, int on);
void agent_replay_waiters(agent_replay_t *r, const agent_run_ref_t *ref,
                          agent_waiters_t *w);

/* A place in a log: before the event "seq". */
typedef struct {
    uint64_t seq;
    uint64_t generation; /* of the log that the rest is about */
    agent_unit_t unit;   /* 0: to be looked up */
    uint32_t number;     /* of the unit in its log */
    uint32_t at;         /* offset in the unit's data */
    uint32_t id_at;      /* the id in force there */
    uint32_t id_len;
    uint32_t time; /* the time in force, after the run's start */
} agent_place_t;

/* Units copied out of a log; owned by its user, who calls free. */
typedef struct {
    const agent_alloc_t *alloc;
    char *data; /* of "room" units */
    agent_unit_t *numbers;
    size_t room;
    size_t n;
    uint64_t started; /* of the run, in ms since the epoch */
    uint64_t end;     /* events before it are whole */
    agent_buf_t body; /* of an event that spans units */
} agent_window_t;

void agent_window_init(agent_window_t *w, const agent_alloc_t *alloc);
void agent_window_free(agent_window_t *w);

/* Without the lock: room for n more units.  AGENT_OK or AGENT_NOMEM. */
agent_rc_t agent_window_reserve(agent_window_t *w, size_t n);

/*
 * Copies what follows "place", at most AGENT_REPLAY_SLICE bytes and w->room
 * units; with "more", what follows the units in w.  Sets w->end.
 *
 * AGENT_OK: w->n units are there (0: nothing new).  AGENT_DONE: the place is
 * far, go on with another call.  AGENT_DECLINED: its event is no longer kept,
 * AGENT_ABORTED: nor is the run.
 */
agent_rc_t agent_replay_read(agent_replay_t *r, const agent_run_ref_t *ref,
                             agent_place_t *place, agent_window_t *w, int more);

/*
 * Without the lock: the event at "place"; agent_window_step() then moves the
 * place behind it.  The strings are w's.  "time" is milliseconds after the
 * run's start.  AGENT_DONE: no further event is in w; AGENT_TOO_LARGE: more
 * units have to be read first; AGENT_INVALID: damaged; AGENT_NOMEM.
 */
agent_rc_t agent_window_event(agent_window_t *w, agent_place_t *place,
                              agent_place_t *after, agent_event_t *ev);

/*
 * Reads the client's messages or the checkpoint from "offset" on, at most
 * AGENT_REPLAY_SLICE bytes and what "size" allows; *n is their number, 0 at the
 * end.  "seq" must be the checkpoint's, or AGENT_DECLINED is returned.
 */
agent_rc_t agent_replay_kept(agent_replay_t *r, const agent_run_ref_t *ref,
                             int checkpoint, uint64_t seq, size_t offset,
                             char *p, size_t size, size_t *n);

#endif /* AGENT_REPLAY_H */
