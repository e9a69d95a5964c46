/*
 * The built-in model "echo": deterministic answers for demos and tests, no
 * network.  It reads a chat-completions request body and gives the bytes of a
 * chat-completions SSE stream, so that it runs through the same path as a real
 * model.
 */

#ifndef AGENT_ECHO_H
#define AGENT_ECHO_H

#include "agent_base.h"

typedef struct agent_echo_s agent_echo_t;

/*
 * "body": the request of the openai codec.  Its member "tokens_per_second" (a
 * number, 0: as fast as possible, default 50) sets the pace that the caller
 * keeps.  NULL: memory ran out or the body is not such a request.
 *
 * The answer: "What is my name?" -> "Your name is X." when an earlier user
 * message said "My name is X.", else "I do not know your name."; a question
 * that names an offered tool ("call get_weather ...") -> a call of that tool
 * with arguments made from its schema's required properties; after tool
 * results -> a text that quotes them; anything else -> "You said: ...".
 */
agent_echo_t *agent_echo_create(agent_str_t body, const agent_alloc_t *alloc);
void agent_echo_destroy(agent_echo_t *e);

/* Tokens per second to keep, 0: no pace. */
unsigned agent_echo_rate(const agent_echo_t *e);

/* Adds the SSE bytes of up to n further tokens (words).  AGENT_OK while there
 * are more, AGENT_DONE when this was the last (usage, finish and [DONE]
 * included), AGENT_NOMEM. */
agent_rc_t agent_echo_next(agent_echo_t *e, unsigned n, agent_buf_t *out);

#endif /* AGENT_ECHO_H */
