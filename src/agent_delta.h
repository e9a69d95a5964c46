/*
 * Neutral deltas: what a model says, whatever its provider.
 */

#ifndef AGENT_DELTA_H
#define AGENT_DELTA_H

#include "agent_base.h"
#include "agent_code.h"

typedef enum {
    AGENT_DELTA_TEXT,
    AGENT_DELTA_REASONING,
    AGENT_DELTA_REFUSAL,    /* text of a refusal; shown as text */
    AGENT_DELTA_TOOL_START, /* call, id, name */
    AGENT_DELTA_TOOL_ARGS,  /* call, text */
    AGENT_DELTA_FINISH,     /* finish; the last delta of a good answer */
    AGENT_DELTA_ERROR       /* fault; the last delta of a bad one */
} agent_delta_type_t;

typedef enum {
    AGENT_FINISH_UNKNOWN = 0,
    AGENT_FINISH_STOP,
    AGENT_FINISH_LENGTH,
    AGENT_FINISH_TOOL_CALLS,
    AGENT_FINISH_CONTENT_FILTER
} agent_finish_t;

/* "stop", "length", "tool_calls", "content_filter"; "" for unknown. */
const char *agent_finish_name(agent_finish_t finish);

/* Token counts; -1: not given.  AG-UI TokenUsage accounting: reasoning is part
 * of output, cached and cache_write are part of input. */
typedef struct {
    int64_t input;
    int64_t output;
    int64_t total;
    int64_t reasoning;
    int64_t cached;
    int64_t cache_write;
} agent_usage_t;

void agent_usage_init(agent_usage_t *u); /* all -1 */
int agent_usage_given(const agent_usage_t *u);

typedef struct {
    agent_delta_type_t type;
    unsigned call;    /* tool call, 0 for the first, no gaps */
    agent_str_t text; /* escaped text, see agent_json.h */
    agent_str_t id;   /* tool call id, plain UTF-8, never empty */
    agent_str_t name; /* tool name, plain UTF-8, never empty */
    agent_finish_t finish;
    const agent_usage_t *usage; /* with FINISH and ERROR, NULL: none */
    const agent_fault_t *fault; /* with ERROR */
} agent_delta_t;

/* Receives deltas; strings are valid during the call only.  Anything but
 * AGENT_OK stops the decoder, which passes the value on. */
typedef agent_rc_t (*agent_delta_pt)(void *ctx, const agent_delta_t *d);

#endif /* AGENT_DELTA_H */
