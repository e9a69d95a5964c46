/*
 * The hot path of the chat decoder: one pass over a chunk that only carries
 * text.  No tree, no copy.
 */

#ifndef AGENT_CHAT_SCAN_H
#define AGENT_CHAT_SCAN_H

#include "agent_base.h"

typedef struct {
    agent_str_t text;      /* escaped text, borrowed from the chunk */
    agent_str_t reasoning; /* likewise; at most one of the two is not empty */
} agent_chat_scan_t;

/*
 * AGENT_OK when "data" is valid JSON of exactly this shape: one choice of index
 * 0 whose delta has nothing but text or reasoning, not finished, no usage, no
 * error; other members only where their values are scalars.  AGENT_DECLINED for
 * anything else: the general path decides.
 */
agent_rc_t agent_chat_scan(agent_str_t data, agent_chat_scan_t *scan);

#endif /* AGENT_CHAT_SCAN_H */
