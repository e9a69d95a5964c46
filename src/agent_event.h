/*
 * AG-UI 1.0 events as the run's log holds them, and their wire frames.
 *
 * An event is one compact JSON object.  The frequent ones (text, reasoning and
 * argument deltas) differ only in id and delta; they are carried as these two
 * parts and become JSON when read, always the same bytes.
 */

#ifndef AGENT_EVENT_H
#define AGENT_EVENT_H

#include "agent_base.h"

typedef enum {
    AGENT_EV_RUN_STARTED = 1, /* numbers may be stored: only append here */
    AGENT_EV_RUN_FINISHED,
    AGENT_EV_RUN_ERROR,
    AGENT_EV_TEXT_MESSAGE_START,
    AGENT_EV_TEXT_MESSAGE_CONTENT,
    AGENT_EV_TEXT_MESSAGE_END,
    AGENT_EV_TOOL_CALL_START,
    AGENT_EV_TOOL_CALL_ARGS,
    AGENT_EV_TOOL_CALL_END,
    AGENT_EV_TOOL_CALL_RESULT,
    AGENT_EV_REASONING_START,
    AGENT_EV_REASONING_MESSAGE_START,
    AGENT_EV_REASONING_MESSAGE_CONTENT,
    AGENT_EV_REASONING_MESSAGE_END,
    AGENT_EV_REASONING_END,
    AGENT_EV_REASONING_ENCRYPTED_VALUE,
    AGENT_EV_MESSAGES_SNAPSHOT,
    AGENT_EV_STATE_SNAPSHOT,
    AGENT_EV_CUSTOM,
    AGENT_EV_RAW,
    AGENT_EV_COUNT
} agent_event_type_t;

/* "TEXT_MESSAGE_CONTENT" and so on. */
agent_str_t agent_event_name(agent_event_type_t type);

/* 1 for RUN_FINISHED and RUN_ERROR. */
int agent_event_is_terminal(agent_event_type_t type);

/* 1 for the types carried as id and delta: TEXT_MESSAGE_CONTENT,
 * TOOL_CALL_ARGS, REASONING_MESSAGE_CONTENT. */
int agent_event_is_delta(agent_event_type_t type);

typedef struct {
    agent_event_type_t type;
    agent_str_t id; /* messageId or toolCallId, escaped text, of a delta and of
                         what opens or closes something; else empty */
    agent_str_t body; /* deltas: the delta, escaped text; else the JSON */
    uint64_t time;    /* of an event read from a log: ms since the epoch */
} agent_event_t;

/*
 * What a reader of a run holds open.  A reader that is given a snapshot in the
 * middle must first be told the end of all of it, or the opening events behind
 * the snapshot would open something twice.
 */
typedef struct {
    agent_buf_t items; /* type of the START, length of the id, the id */
} agent_open_t;

void agent_open_init(agent_open_t *o, const agent_alloc_t *alloc);
void agent_open_free(agent_open_t *o);

/* Notes an event that the reader gets.  AGENT_OK or AGENT_NOMEM. */
agent_rc_t agent_open_note(agent_open_t *o, const agent_event_t *ev);

/* Receives events; strings are valid during the call only.  Anything but
 * AGENT_OK stops the caller, which passes the value on. */
typedef agent_rc_t (*agent_event_pt)(void *ctx, const agent_event_t *ev);

/* Emits the END of all that is open, the last opened first, and forgets it. */
agent_rc_t agent_open_close(agent_open_t *o, agent_event_pt emit, void *ctx);

/* Adds the event's compact JSON. */
void agent_event_json(agent_buf_t *b, const agent_event_t *ev);

/* Length of what agent_event_json() adds. */
size_t agent_event_json_len(const agent_event_t *ev);

/*
 * A position in a run's log: the generation of the run's log and the sequence
 * number of an event in it, from 0.  On the wire "<generation>-<seq>" in
 * decimal (also the id of an entry of a Redis stream).
 */
typedef struct {
    uint64_t generation;
    uint64_t seq;
    int bare; /* a bare integer: seq only */
} agent_cursor_t;

#define AGENT_CURSOR_MAX 41 /* two 64-bit numbers and the dash */

/* AGENT_OK, or AGENT_INVALID for anything but 1*DIGIT ["-" 1*DIGIT] in 64 bits
 * without leading zeros. */
agent_rc_t agent_cursor_parse(agent_str_t s, agent_cursor_t *c);

/* Writes at most AGENT_CURSOR_MAX bytes, no NUL; returns their number. */
size_t agent_cursor_print(char *buf, uint64_t generation, uint64_t seq);

/*
 * The AG-UI SSE frame: "id: <cursor>\ndata: <json>\n\n".  agent_frame_agui_len
 * is an upper bound of what agent_frame_agui writes at p; it returns the byte
 * behind the frame.
 */
size_t agent_frame_agui_len(const agent_event_t *ev);
char *agent_frame_agui(char *p, uint64_t generation, uint64_t seq,
                       const agent_event_t *ev);

#endif /* AGENT_EVENT_H */
