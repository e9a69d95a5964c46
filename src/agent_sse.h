/*
 * Reader of Server-Sent Events: bytes in any slicing become events.
 * WHATWG HTML, section 9.2.6 (interpreting an event stream).
 *
 * Lines end with LF, CRLF or CR, mixed at will; one leading BOM is dropped;
 * comments are skipped; data lines are joined with LF.  Bytes are not decoded:
 * invalid UTF-8 passes through (see agent_json_sanitize()).
 *
 * One thing goes beyond the standard: a field named "error" (llama.cpp before
 * September 2025, llama-box) is kept and reported, see agent_sse_event_t.error.
 */

#ifndef AGENT_SSE_H
#define AGENT_SSE_H

#include "agent_base.h"

typedef struct {
    agent_str_t type; /* the event field, empty for "message" */
    agent_str_t data; /* empty string for a bare "data:" */
    agent_str_t id;   /* last event id so far (persists, WHATWG) */
    int error;        /* "data" is the value of a field named error */
} agent_sse_event_t;

/*
 * Called for each event; its strings are valid during the call only.  Anything
 * but AGENT_OK stops the feed, which returns that value.
 */
typedef agent_rc_t (*agent_sse_pt)(void *ctx, const agent_sse_event_t *ev);

typedef struct {
    agent_sse_pt handler;
    void *ctx;
    size_t max_event; /* bytes of one event's data, type or id */
    agent_buf_t line; /* the unfinished line */
    agent_buf_t data; /* data lines so far, each with its LF */
    agent_buf_t type;
    agent_buf_t id;
    uint64_t retry;   /* last valid retry field, milliseconds */
    unsigned bom : 3; /* BOM bytes matched at offset 0; 7: decided */
    unsigned cr : 1;  /* the last byte was CR: swallow one LF */
    unsigned has_data : 1;
    unsigned has_retry : 1;
} agent_sse_t;

/*
 * The caller owns the reader and calls agent_sse_free().  max_event 0 is no
 * limit.
 */
void agent_sse_init(agent_sse_t *s, size_t max_event, agent_sse_pt handler,
                    void *ctx, const agent_alloc_t *alloc);
void agent_sse_free(agent_sse_t *s);

/*
 * Feeds n bytes.  An event that arrives whole within the bytes and has one
 * data line is reported without being copied.  Returns AGENT_OK, what the
 * handler returned, AGENT_TOO_LARGE when an event passes max_event, or
 * AGENT_NOMEM.  After anything but AGENT_OK the reader is not fed again.
 */
agent_rc_t agent_sse_feed(agent_sse_t *s, const char *p, size_t n);

/*
 * The stream ended cleanly.  An event that lacks only its blank line (or the
 * end of its last line) is reported although the standard discards it:
 * providers do end that way.  Returns as agent_sse_feed().
 */
agent_rc_t agent_sse_end(agent_sse_t *s);

/* 1 when an event has been begun and not yet reported. */
int agent_sse_pending(const agent_sse_t *s);

#endif /* AGENT_SSE_H */
