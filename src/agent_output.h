/*
 * What a run has said so far: messages and tool calls in the order in which
 * the reducer of an AG-UI client creates them, and how the run ended.  Private
 * to the run encoder.
 *
 * Texts are kept as escaped text.  Once all of them pass "max" bytes, the
 * longest lose their heads; of each, one contiguous tail stays.
 *
 * Additions come in two steps, so that nothing can fail between an event and
 * its record: a step that allocates, then, when the event has been taken, one
 * that cannot fail.
 */

#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

#include "agent_base.h"
#include "agent_encoder.h"

#define AGENT_OUTPUT_NONE ((size_t) -1)

/* Messages and tool calls of one run; more end it with AGENT_TOO_LARGE. */
#define AGENT_OUTPUT_ITEMS 10000

/* The longest unit of escaped text: a surrogate pair as two escapes. */
#define AGENT_OUTPUT_UNIT 12

/* Of a longer seed only the head goes into ids. */
#define AGENT_OUTPUT_SEED 64

/* Space for a minted id: kind, seed, number, two underscores and a NUL. */
typedef char agent_output_id_t[AGENT_OUTPUT_SEED + 28];

typedef struct {
    size_t n; /* number in its id, from 1: among those of its kind */
    unsigned reasoning : 1;
    unsigned spoken : 1; /* has content, if only "" */
    agent_buf_t text;
    size_t first_call; /* AGENT_OUTPUT_NONE: none */
    size_t last_call;
} agent_output_msg_t;

typedef struct {
    agent_buf_t names; /* id and tool name, escaped text */
    size_t id_len;
    unsigned hash; /* of the id */
    unsigned open : 1;
    unsigned said : 1;   /* has got arguments */
    unsigned filled : 1; /* they are the "{}" of a call without any */
    agent_buf_t args;
    size_t msg;       /* the message it belongs to */
    size_t next_call; /* of that message */
    size_t latest;    /* in calls[n]: the newest call of number n */
} agent_output_call_t;

typedef struct {
    const agent_alloc_t *alloc;

    agent_buf_t strings; /* owns the next six, all escaped text */
    int legacy;
    int trimmed; /* something has been dropped for max */
    agent_str_t thread_id;
    agent_str_t run_id;
    agent_str_t parent_run_id;
    agent_str_t seed;
    agent_str_t provider;
    agent_str_t model;

    agent_output_msg_t *msgs;
    size_t nmsgs;
    size_t msgs_cap;
    agent_output_call_t *calls;
    size_t ncalls;
    size_t calls_cap;
    size_t counts[2]; /* messages that are not, and that are reasoning */
    size_t bytes;     /* of all texts and arguments */
    size_t max;

    agent_run_outcome_t outcome;
    agent_finish_t finish;
    agent_usage_t usage;
} agent_output_t;

/* AGENT_OK or AGENT_NOMEM; either way the caller calls free. */
agent_rc_t agent_output_init(agent_output_t *o,
                             const agent_encoder_conf_t *conf,
                             const agent_alloc_t *alloc);
void agent_output_free(agent_output_t *o);

static inline agent_str_t
agent_output_call_id(const agent_output_call_t *c)
{
    agent_str_t s = {c->names.data, c->id_len};
    return s;
}

static inline agent_str_t
agent_output_call_name(const agent_output_call_t *c)
{
    agent_str_t s = {c->names.data + c->id_len, c->names.len - c->id_len};
    return s;
}

/* Makes the id "<kind>_<seed>_<n>"; kind: "msg", "rsm", "rsn" or "call". */
agent_str_t agent_output_id(const agent_output_t *o, agent_output_id_t id,
                            const char *kind, size_t n);

/* A message: room for one, then the message.  Returns its index. */
agent_rc_t agent_output_stage_msg(agent_output_t *o);
size_t agent_output_add_msg(agent_output_t *o, int reasoning);

/*
 * A tool call: stage prepares calls[ncalls], add makes it a call of message
 * "msg", drop forgets it.  An id that the run has used, or that a client could
 * not send back (agent_id_check), is replaced by a minted one.
 */
agent_rc_t agent_output_stage_call(agent_output_t *o, agent_str_t id,
                                   agent_str_t name);
size_t agent_output_add_call(agent_output_t *o, size_t msg);
void agent_output_drop_call(agent_output_t *o);

/* Text: room for n bytes in "text", then the bytes. */
agent_rc_t agent_output_room(agent_output_t *o, agent_buf_t *text, size_t n);
void agent_output_keep(agent_output_t *o, agent_buf_t *text, agent_str_t s);

/* NULL: nothing new is known.  Counts that clients refuse are left out. */
void agent_output_set_usage(agent_output_t *o, const agent_usage_t *usage);

/* Empties b and starts an event; members with escaped text. */
typedef struct {
    const char *key;
    agent_str_t value;
} agent_output_pair_t;

void agent_output_begin(agent_buf_t *b, agent_event_type_t type,
                        const agent_output_pair_t *members, size_t n);

/* Whole events: RUN_STARTED, RUN_FINISHED, RUN_ERROR (in 256 bytes if memory
 * runs out), MESSAGES_SNAPSHOT. */
void agent_output_started(const agent_output_t *o, agent_buf_t *b);
void agent_output_finished(const agent_output_t *o, agent_buf_t *b,
                           agent_run_outcome_t outcome, agent_finish_t finish);
void agent_output_failed(const agent_output_t *o, agent_buf_t *b,
                         const agent_fault_t *fault);
void agent_output_snapshot(const agent_output_t *o, agent_buf_t *b,
                           agent_str_t input);

/* See agent_encoder_messages(), _text() and _answer(). */
void agent_output_messages(const agent_output_t *o, agent_buf_t *b);
void agent_output_text(const agent_output_t *o, agent_buf_t *b);
void agent_output_answer(const agent_output_t *o, agent_buf_t *b);

#endif /* AGENT_OUTPUT_H */
