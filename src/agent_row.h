/*
 * Typed rows: an event of a run's log as a row of a table, the form in which
 * Veryfront's clients read the events of a run page by page.
 *
 *   {"event_id","event_type","run_id","event_class","span_id",
 *    "parent_span_id","turn_id","origin_event_type","origin_custom_name",
 *    "unrecoverable_fields","created_at","is_error","payload":{"type",...}}
 *
 * Spans: "run:<id>" for the run itself, "message:<id>" for texts and
 * reasoning, "tool:<id>" for calls, whose parent and turn is their message.
 */

#ifndef AGENT_ROW_H
#define AGENT_ROW_H

#include "agent_event.h"

/* A payload may have this many bytes; what is larger is left out and says so.
 */
#define AGENT_ROW_MAX (240 * 1024)

/*
 * Which message each tool call belongs to: only the event that starts a call
 * says so, rows of a later page need it too.
 */
typedef struct {
    agent_buf_t calls; /* lengths and bytes of call and message ids */
} agent_rows_t;

void agent_rows_init(agent_rows_t *r, const agent_alloc_t *alloc);
void agent_rows_free(agent_rows_t *r);

/* Sees every event in the order of the log, those before a page too.  AGENT_OK
 * or AGENT_NOMEM. */
agent_rc_t agent_rows_note(agent_rows_t *r, const agent_event_t *ev);

/* "fact", or "delta" for the pieces of a text. */
const char *agent_row_class(agent_event_type_t type);

/* Adds the row of an event that has been noted.  run_id: plain UTF-8;
 * created_at: as it is to stand there, without quotes. */
void agent_rows_add(const agent_rows_t *r, agent_buf_t *b, agent_str_t run_id,
                    uint64_t seq, agent_str_t created_at,
                    const agent_event_t *ev);

#endif /* AGENT_ROW_H */
