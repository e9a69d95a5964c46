/*
 * The tool calls of a chat-completions answer: fragments in, deltas out.
 *
 * A call is started (its TOOL_START emitted) when its name must be complete:
 * with its first arguments, when something else begins, or at the end.  Until
 * then id and name may still come in, as some servers send them late or in
 * pieces.  A call that never gets a name is never started.
 */

#ifndef AGENT_CHAT_CALL_H
#define AGENT_CHAT_CALL_H

#include "agent_base.h"
#include "agent_delta.h"

#include <jansson.h>

typedef struct agent_chat_call_s agent_chat_call_t;

typedef struct {
    agent_delta_pt emit;
    void *ctx;
    const agent_alloc_t *alloc;
    agent_buf_t seed;
    agent_buf_t text;         /* scratch */
    agent_chat_call_t *calls; /* owned */
    unsigned ncalls;
    unsigned nalloc;
    unsigned nstarted;
    const char *over; /* the limit that was passed, else NULL */
} agent_chat_calls_t;

/* The owner calls agent_chat_calls_free(), also after a failure
 * (AGENT_NOMEM). */
agent_rc_t agent_chat_calls_init(agent_chat_calls_t *c, agent_delta_pt emit,
                                 void *ctx, agent_str_t seed,
                                 const agent_alloc_t *alloc);
void agent_chat_calls_free(agent_chat_calls_t *c);

/* The tool_calls or the function_call of a delta.  AGENT_OK, AGENT_NOMEM,
 * AGENT_TOO_LARGE with c->over set, or what emit returned. */
agent_rc_t agent_chat_calls_add(agent_chat_calls_t *c, const json_t *delta);

/* Starts the calls that have been waiting for more of their names. */
agent_rc_t agent_chat_calls_start(agent_chat_calls_t *c);

/* An integer, or a real that is one.  0 for anything else. */
int agent_chat_integer(const json_t *value, int64_t *n);

#endif /* AGENT_CHAT_CALL_H */
