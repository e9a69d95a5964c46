/*
 * JSON below the tree: escaping, repairing, limits, and a scanner that finds
 * raw values without building anything.  RFC 8259.
 *
 * "Escaped text" is the inside of a JSON string as it stands between the
 * quotes: valid UTF-8, no raw control characters, only valid escapes, no lone
 * surrogate.  Deltas travel in that form from provider to client, so the hot
 * path never decodes and encodes again.
 */

#ifndef AGENT_JSON_H
#define AGENT_JSON_H

#include "agent_base.h"
#include "agent_code.h"

#include <jansson.h>

/* Adds s (UTF-8; invalid sequences become U+FFFD) as escaped text, without the
 * quotes.  Escapes only what RFC 8259 section 7 demands. */
void agent_json_escape(agent_buf_t *b, agent_str_t s);

/* The same with the quotes. */
void agent_json_quote(agent_buf_t *b, agent_str_t s);

/* Adds the UTF-8 that escaped text stands for.  AGENT_INVALID when "s" is not
 * escaped text as defined above. */
agent_rc_t agent_json_unescape(agent_buf_t *b, agent_str_t s);

/* 1 when "s" is escaped text as defined above. */
int agent_json_is_escaped(agent_str_t s);

/*
 * The longest prefix of escaped text that has at most "max" bytes and cuts
 * neither a UTF-8 character nor an escape nor a surrogate pair.  Returns its
 * length; 0 only when s is empty or max is too small for one unit (12 bytes
 * always suffice).
 */
size_t agent_json_cut(agent_str_t s, size_t max);

/* Adds s with each invalid UTF-8 sequence replaced by U+FFFD (WHATWG Encoding,
 * section 4.6.1: maximal subpart). */
void agent_utf8_sanitize(agent_buf_t *b, agent_str_t s);

/* Length of the longest valid UTF-8 prefix. */
size_t agent_utf8_valid(agent_str_t s);

/*
 * Repairs what real servers send and jansson refuses: invalid UTF-8 and lone
 * surrogate escapes become U+FFFD, raw control characters inside strings are
 * escaped, NaN, Infinity and -Infinity become null.  Adds the result to b.
 */
void agent_json_sanitize(agent_buf_t *b, agent_str_t s);

typedef struct {
    size_t max_depth;  /* nesting of arrays and objects, 0: no limit */
    size_t max_values; /* values of any kind in the whole text, 0: no limit */
} agent_json_limits_t;

/* 1 when the text, if it is JSON, is within the limits; else 0 with *fault. */
int agent_json_within(agent_str_t text, const agent_json_limits_t *limits,
                      agent_fault_t *fault);

/*
 * Parses one JSON text, refusing duplicate object keys and what passes the
 * limits (checked before a tree is built, in one pass over the bytes).
 * NUL characters ("\u0000") are allowed in values.  Returns a new reference,
 * or NULL with *fault set (bad_request with line and column, too_large, or
 * internal when memory ran out).
 */
json_t *agent_json_load(agent_str_t text, const agent_json_limits_t *limits,
                        agent_fault_t *fault);

/*
 * Parses what a provider sent: as is, else sanitized, else with integers read
 * as reals.  Duplicate keys: the last wins.  Returns a new reference, NULL when
 * it is no JSON object or array (or memory ran out: *nomem = 1).
 */
json_t *agent_json_load_lenient(agent_str_t text, const agent_alloc_t *alloc,
                                int *nomem);

/*
 * Raw values.  These trust that "p" is valid JSON (it has been parsed before)
 * but never read past "end".
 *
 * agent_json_skip: p at the first byte of a value (leading space allowed);
 * returns the byte behind it, NULL when it is not a whole value.
 *
 * agent_json_find: the raw bytes of the value of a key of an object.  Keys are
 * compared after unescaping.  AGENT_OK or AGENT_DECLINED (absent, not an
 * object).
 *
 * agent_json_members: the same for n keys in one pass; a value that is absent
 * becomes empty.
 *
 * agent_json_next: iterates an array: *cursor starts as NULL; gives the next
 * element's raw bytes; AGENT_OK, or AGENT_DONE behind the last.
 */
const char *agent_json_skip(const char *p, const char *end);
agent_rc_t agent_json_find(agent_str_t object, agent_str_t key,
                           agent_str_t *value);
void agent_json_members(agent_str_t object, const agent_str_t *keys,
                        agent_str_t *values, size_t n);
agent_rc_t agent_json_next(agent_str_t array, const char **cursor,
                           agent_str_t *value);

/* A string member of an object as bytes borrowed from the tree.  1 when it is
 * there and a string. */
int agent_json_str(const json_t *object, const char *key, agent_str_t *value);

#endif /* AGENT_JSON_H */
