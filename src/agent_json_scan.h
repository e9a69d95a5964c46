/*
 * What agent_json.c and agent_tree.c share: scanning words of eight bytes,
 * strings and numbers.  Private to them.
 */

#ifndef AGENT_JSON_SCAN_H
#define AGENT_JSON_SCAN_H

#include "agent_json.h"

#include <string.h>

/*
 * Eight bytes at a time: in the results a byte has its high bit set where the
 * byte of x (ASCII) is below n, or is c.  A borrow may add wrong marks, but
 * only above a right one: "is there any" is exact, the place is found bytewise.
 */
#define AGENT_ONES UINT64_C(0x0101010101010101)
#define AGENT_HIGH UINT64_C(0x8080808080808080)

static inline uint64_t
agent_any_below(uint64_t x, unsigned char n)
{
    return x - AGENT_ONES * n;
}

static inline uint64_t
agent_any_is(uint64_t x, unsigned char c)
{
    return (x ^ AGENT_ONES * c) - AGENT_ONES;
}

static inline uint64_t
agent_load64(const unsigned char *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));

    return x;
}

static inline const unsigned char *
agent_start(agent_str_t s)
{
    return (const unsigned char *) (s.data != NULL ? s.data : "");
}

static inline size_t
agent_between(const unsigned char *p, const unsigned char *q)
{
    return (size_t) (q - p);
}

static inline int
agent_json_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline const char *
agent_json_space(const char *p, const char *end)
{
    while (p < end && agent_json_is_space(*p)) {
        p++;
    }

    return p;
}

/* Writes at most 4 bytes; returns how many. */
size_t agent_utf8_encode(char *out, uint32_t c);

/*
 * The escape at p (a backslash): its length, 12 for a surrogate pair, and the
 * character it stands for; 0 when it is invalid, unfinished or lone.
 */
size_t agent_json_escaped_char(const unsigned char *p, const unsigned char *end,
                               uint32_t *c);

/* Length of the longest prefix that is escaped text. */
size_t agent_json_escaped_prefix(const unsigned char *start,
                                 const unsigned char *end);

/* p behind an opening quote; returns behind the closing one, or NULL. */
const char *agent_json_string_end(const char *p, const char *end);

/* Behind the number, literal or junk at p. */
const char *agent_json_scalar_end(const char *p, const char *end);

#endif /* AGENT_JSON_SCAN_H */
