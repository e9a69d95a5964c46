/*
 * What a run has said, folded from the events of its log: for a reader that is
 * not in the process that runs it.  Gives the same bytes as the run's encoder
 * at the same place.
 */

#ifndef AGENT_FOLD_H
#define AGENT_FOLD_H

#include "agent_encoder.h"
#include "agent_event.h"

typedef struct agent_fold_s agent_fold_t;

/* ids: plain UTF-8, copied; for the answer.  NULL when memory ran out.  The
 * caller owns it and calls destroy. */
agent_fold_t *agent_fold_create(agent_str_t thread_id, agent_str_t run_id,
                                const agent_alloc_t *alloc);
void agent_fold_destroy(agent_fold_t *f);

/* The next event of the log, from its first on.  AGENT_OK; AGENT_INVALID: this
 * is no log of the run encoder; AGENT_NOMEM, AGENT_TOO_LARGE. */
agent_rc_t agent_fold_event(agent_fold_t *f, const agent_event_t *ev);

/* As agent_encoder_prelude(), _answer() and _trimmed(). */
agent_rc_t agent_fold_prelude(const agent_fold_t *f, agent_str_t input,
                              int inplace, agent_event_pt emit, void *ctx);
void agent_fold_answer(const agent_fold_t *f, agent_buf_t *b);
int agent_fold_trimmed(const agent_fold_t *f);

/* Why a run ended, of a RUN_FINISHED's JSON. */
agent_finish_t agent_fold_reason(agent_str_t json);

/* The message and code of a RUN_ERROR's JSON.  AGENT_OK or AGENT_INVALID. */
agent_rc_t agent_fold_fault(agent_str_t json, agent_fault_t *fault,
                            const agent_alloc_t *alloc);

#endif /* AGENT_FOLD_H */
