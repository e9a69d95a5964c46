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

/*
 * The chunks of one answer differ in their text and in nothing else.  A form is
 * what stood around the text of a chunk that agent_chat_scan() has accepted; a
 * chunk with the same bytes around its text is accepted for the same reasons.
 */
#define AGENT_CHAT_FORM 640

typedef struct {
    size_t head; /* bytes before the text; 0: nothing is known */
    size_t tail; /* bytes behind it */
    int reasoning;
    char bytes[AGENT_CHAT_FORM]; /* head, tail */
} agent_chat_form_t;

/* Remembers the form of "data", which gave "scan"; forgets what it knew. */
void agent_chat_form_learn(agent_chat_form_t *form, agent_str_t data,
                           const agent_chat_scan_t *scan);

/* AGENT_OK with *scan as agent_chat_scan() would set it, or AGENT_DECLINED. */
agent_rc_t agent_chat_form_match(const agent_chat_form_t *form,
                                 agent_str_t data, agent_chat_scan_t *scan);

#endif /* AGENT_CHAT_SCAN_H */
