/*
 * The run encoder: neutral deltas become AG-UI 1.0 events in an order that is
 * always legal, with exactly one terminal event.  It also keeps what the run
 * has said so far, for the JSON answer and for readers that lost their place.
 */

#ifndef AGENT_ENCODER_H
#define AGENT_ENCODER_H

#include "agent_base.h"
#include "agent_delta.h"
#include "agent_event.h"

typedef struct agent_encoder_s agent_encoder_t;

typedef struct {
    agent_str_t thread_id; /* plain UTF-8, copied */
    agent_str_t run_id;
    agent_str_t parent_run_id; /* empty: none */
    agent_str_t seed;     /* plain characters; minted ids are unique with it */
    agent_str_t provider; /* for usage, empty: omitted */
    agent_str_t model;
    int legacy;        /* the client is of AG-UI 0.0.5x: it fails at a member
                          that it does not know (pendingToolCallIds) and takes
                          "success" for "no tool call is open", so a run that
                          leaves calls to the client ends without outcome */
    size_t max_delta;  /* bytes of escaped text in one event, 0: 256 KB */
    size_t max_output; /* bytes of output kept, 0: 4 MB; of more, the head of
                          the longest kept item is dropped */
} agent_encoder_conf_t;

/* NULL when memory ran out.  The caller owns it and calls destroy. */
agent_encoder_t *agent_encoder_create(const agent_encoder_conf_t *conf,
                                      agent_event_pt emit, void *ctx,
                                      const agent_alloc_t *alloc);
void agent_encoder_destroy(agent_encoder_t *e);

/* RUN_STARTED; always the first call. */
agent_rc_t agent_encoder_start(agent_encoder_t *e);

/*
 * One delta.  TEXT, REASONING, REFUSAL and TOOL_* open and close what they
 * need.  FINISH closes everything and emits RUN_FINISHED; ERROR emits
 * RUN_ERROR.  After the terminal event every call does nothing and returns
 * AGENT_DONE.
 *
 * Order: reasoning closes before text begins, text closes before a tool call
 * begins, text after a tool call is a new message.  A tool call with empty
 * arguments gets "{}".  Every tool call names the assistant message it belongs
 * to (parentMessageId).  A tool call id that this run has used, or that is no
 * id for agent_input_parse(), is replaced by a minted one.
 *
 * AGENT_INVALID: TOOL_ARGS of a call that has not started, a gap in the
 * numbers, text that is no escaped text.  AGENT_TOO_LARGE: more than 10,000
 * messages and calls.  The run goes on; end it with agent_encoder_error().
 */
agent_rc_t agent_encoder_delta(agent_encoder_t *e, const agent_delta_t *d);

/* Closes everything open, RUN_FINISHED with outcome cancelled. */
agent_rc_t agent_encoder_cancel(agent_encoder_t *e);

/* RUN_ERROR with the fault's code and message. */
agent_rc_t agent_encoder_error(agent_encoder_t *e, const agent_fault_t *fault);

typedef enum {
    AGENT_RUN_RUNNING = 0,
    AGENT_RUN_FINISHED,
    AGENT_RUN_CANCELLED,
    AGENT_RUN_ERROR
} agent_run_outcome_t;

agent_run_outcome_t agent_encoder_outcome(const agent_encoder_t *e);
agent_finish_t agent_encoder_finish(const agent_encoder_t *e);
const agent_usage_t *agent_encoder_usage(const agent_encoder_t *e);
const agent_fault_t *agent_encoder_fault(const agent_encoder_t *e);

/* Adds the run's messages so far as AG-UI messages: a JSON array without its
 * brackets ("" when there are none).  Reasoning messages come where they were
 * said.  agent_encoder_text: the assistant text as one escaped text. */
void agent_encoder_messages(const agent_encoder_t *e, agent_buf_t *b);
void agent_encoder_text(const agent_encoder_t *e, agent_buf_t *b);

/* 1 when max_output was passed: what is kept is not all that was said. */
int agent_encoder_trimmed(const agent_encoder_t *e);

/*
 * The JSON answer of a run that ended well: {"threadId","runId","status",
 * "text","messages":[...],"finishReason","outcome":{"type"},"usage"}; absent
 * members are omitted.
 */
void agent_encoder_answer(const agent_encoder_t *e, agent_buf_t *b);

/*
 * The prelude for a reader that joins a running run at its present end:
 * RUN_STARTED (unless "inplace"), MESSAGES_SNAPSHOT of "input" (a JSON array
 * of messages without brackets, may be empty) and the output so far, then the
 * opening events of what is open.  Goes to "emit".
 *
 * In place, the caller first sends the END of whatever this reader holds open:
 * it may have ended in the gap, and nothing may be opened twice.  Before
 * RUN_STARTED there is no prelude, after the terminal event nothing is opened.
 * Called inside the encoder's emit it stands for what came before that event.
 */
agent_rc_t agent_encoder_prelude(const agent_encoder_t *e, agent_str_t input,
                                 int inplace, agent_event_pt emit, void *ctx);

#endif /* AGENT_ENCODER_H */
