/*
 * Provider codecs: a model call's body from neutral messages, and neutral
 * deltas from its answer.  A provider is one agent_codec_t in the array
 * agent_codecs (agent_codec.c).
 */

#ifndef AGENT_CODEC_H
#define AGENT_CODEC_H

#include "agent_base.h"
#include "agent_delta.h"
#include "agent_message.h"
#include "agent_sse.h"

/* A member to merge into the request body: a directive "set", or what
 * forwardedProps may override.  "value" is raw JSON; null removes the key. */
typedef struct {
    agent_str_t key;
    agent_str_t value;
} agent_param_t;

typedef struct {
    agent_str_t model;
    agent_str_t system; /* prompt of the configuration, empty: none */
    const agent_message_t *messages;
    size_t nmessages;
    const agent_tool_t *tools;
    size_t ntools;
    const agent_context_t *context;
    size_t ncontext;
    const agent_param_t *set; /* directives, applied first */
    size_t nset;
    const agent_param_t *overrides; /* of this request, applied after */
    size_t noverrides;
} agent_request_t;

typedef struct agent_decoder_s agent_decoder_t;

typedef struct {
    agent_str_t name;  /* of the directive "provider" */
    agent_str_t url;   /* default API base, empty: none */
    agent_str_t model; /* default model, empty: must be given */
    agent_str_t path;  /* appended to the base */
    agent_str_t auth;  /* header that carries the key, up to the key itself:
                          "Authorization: Bearer " */

    /* Keys that "set" and allow_override may not touch; NULL-terminated. */
    const char *const *reserved;

    /* Adds the request body.  AGENT_OK, AGENT_NOMEM, or AGENT_INVALID with
     * *fault (a message that this provider cannot be given). */
    agent_rc_t (*request)(agent_buf_t *body, const agent_request_t *req,
                          agent_fault_t *fault);

    /* The stream decoder.  "seed" (plain characters) makes minted tool call
     * ids unique.  NULL when memory ran out. */
    void *(*open)(agent_delta_pt emit, void *ctx, agent_str_t seed,
                  const agent_alloc_t *alloc);
    void (*close)(void *dec);

    /* One event of the stream.  AGENT_OK, AGENT_DONE after the terminal marker
     * or an error (the last delta has been emitted), or a failure. */
    agent_rc_t (*event)(void *dec, const agent_sse_event_t *ev);

    /* A whole answer that is one JSON text (a server that ignored "stream").
     * As event(); AGENT_INVALID when it is no answer of this provider. */
    agent_rc_t (*json)(void *dec, json_t *root);

    /* The body ended: emits the last delta if it is still owed.  "clean": the
     * framing was complete. */
    agent_rc_t (*end)(void *dec, int clean);
} agent_codec_t;

extern const agent_codec_t *const agent_codecs[]; /* NULL-terminated */
const agent_codec_t *agent_codec_find(agent_str_t name);

/*
 * For codecs: the fault that a server's error means.  "root" is what it said
 * (an object or array in any of the known shapes, a string, or NULL), "status"
 * the HTTP status, 0 inside a stream.  Other text is cleaned; what refuses the
 * credentials never quotes the server.
 */
void agent_codec_fault(agent_fault_t *f, unsigned status, const json_t *root);

/* Masks in the message what it has in common with the secret. */
void agent_codec_mask(agent_fault_t *f, agent_str_t secret);

/*
 * The answer to one model call: status, media type and body bytes in, deltas
 * out; emits exactly one FINISH or ERROR, always the last delta, unless memory
 * ran out or emit stopped it.
 *
 *   create -> head -> body* -> end -> destroy
 *
 * Media type and first bytes decide what the body is (SSE, JSON, HTML), not
 * what was asked for.  Bodies of a status other than 2xx are collected up to
 * 64 KB and become one ERROR whose message is the server's own, cleaned of
 * control characters and cut to 200 characters.
 */
typedef struct agent_answer_s agent_answer_t;

typedef struct {
    size_t max_event;   /* bytes of one SSE event or JSON answer, 0: 4 MB */
    size_t max_body;    /* bytes of the whole body, 0: 256 MB */
    agent_str_t secret; /* masked in messages when not empty; outlives the
                           answer */
} agent_answer_limits_t;

agent_answer_t *agent_answer_create(const agent_codec_t *codec,
                                    agent_delta_pt emit, void *ctx,
                                    agent_str_t seed,
                                    const agent_answer_limits_t *limits,
                                    const agent_alloc_t *alloc);
void agent_answer_destroy(agent_answer_t *a);

/* Response head.  retry_after: seconds, 0 when the server named none. */
void agent_answer_head(agent_answer_t *a, unsigned status,
                       agent_str_t content_type, unsigned retry_after);

/* AGENT_OK; AGENT_DONE once the last delta has been emitted (more bytes are
 * ignored); AGENT_NOMEM; or what emit returned. */
agent_rc_t agent_answer_body(agent_answer_t *a, const char *p, size_t n);

/* The transfer is over.  clean: 1 when the framing was complete, 0 after a
 * reset or a cut.  Emits FINISH or ERROR if still owed.  A body without a
 * terminal marker is ERROR upstream_truncated, so is an empty 2xx. */
agent_rc_t agent_answer_end(agent_answer_t *a, int clean);

/* 1 once text, reasoning, a refusal or a tool call has been emitted. */
int agent_answer_has_content(const agent_answer_t *a);

/* Seconds from a Retry-After value (delta-seconds, fractions rounded up;
 * an HTTP date counts as "now" = 0), capped at 3600.  0: unusable. */
unsigned agent_retry_after(agent_str_t value, agent_str_t value_ms);

#endif /* AGENT_CODEC_H */
