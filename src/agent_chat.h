/*
 * OpenAI chat completions and what calls itself compatible with them: the
 * codecs "openai" and "echo".  agent_codec.h has the contracts.
 */

#ifndef AGENT_CHAT_H
#define AGENT_CHAT_H

#include "agent_codec.h"

/*
 * Members in the order model, messages, stream, stream_options, tools, then
 * "set" and "overrides".
 */
agent_rc_t agent_chat_request(agent_buf_t *body, const agent_request_t *req,
                              agent_fault_t *fault);

/* Keys that neither "set" nor an override may touch. */
extern const char *const agent_chat_reserved[];

void *agent_chat_open(agent_delta_pt emit, void *ctx, agent_str_t seed,
                      const agent_alloc_t *alloc);
void agent_chat_close(void *dec);
agent_rc_t agent_chat_event(void *dec, const agent_sse_event_t *ev);
agent_rc_t agent_chat_json(void *dec, json_t *root);
agent_rc_t agent_chat_end(void *dec, int clean);

/* agent_chat_event() without the scanner: tests hold the two equal. */
agent_rc_t agent_chat_event_tree(void *dec, const agent_sse_event_t *ev);

#endif /* AGENT_CHAT_H */
