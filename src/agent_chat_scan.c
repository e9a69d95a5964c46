#include "agent_chat_scan.h"
#include "agent_json.h"

#include <string.h>

/*
 * Eight bytes at a time: the high bit of a byte is set where the byte of x is
 * below n or equals c.  A borrow may mark a byte above a right one; the lowest
 * mark is always right.
 */
#define AGENT_ONES        UINT64_C(0x0101010101010101)
#define AGENT_HIGH        UINT64_C(0x8080808080808080)
#define AGENT_BELOW(x, n) ((x) -AGENT_ONES * (n))
#define AGENT_IS(x, c)    AGENT_BELOW((x) ^ (AGENT_ONES * (c)), 1)

/* Digits of a number that surely neither overflows an integer read as a real
 * nor a real. */
#define AGENT_SCAN_DIGITS 40

typedef struct {
    const char *p;
    const char *end;
    agent_chat_scan_t *scan;
} agent_scanner_t;

/* What a member may hold. */
typedef enum {
    AGENT_SCAN_SCALAR = 0, /* any scalar, for keys that nobody looks at */
    AGENT_SCAN_NOTHING,    /* null or "" */
    AGENT_SCAN_ZERO,       /* the integer 0 */
    AGENT_SCAN_TEXT,       /* null or a string */
    AGENT_SCAN_REASONING,
    AGENT_SCAN_OBJECT,  /* a string that does not say "error" */
    AGENT_SCAN_CHOICES, /* an array of one choice */
    AGENT_SCAN_DELTA    /* a delta object */
} agent_scan_kind_t;

typedef struct {
    const char *name;
    size_t len;
    agent_scan_kind_t kind;
} agent_scan_key_t;

#define agent_scan_key(name, kind)                                             \
    {                                                                          \
        (name), sizeof(name) - 1, (kind)                                       \
    }
#define agent_scan_end                                                         \
    {                                                                          \
        NULL, 0, AGENT_SCAN_SCALAR                                             \
    }

/* Every key that the general path looks at is in one of these tables. */

static const agent_scan_key_t agent_scan_chunk[] = {
    agent_scan_key("choices", AGENT_SCAN_CHOICES),
    agent_scan_key("usage", AGENT_SCAN_NOTHING),
    agent_scan_key("error", AGENT_SCAN_NOTHING),
    agent_scan_key("x_groq", AGENT_SCAN_NOTHING),
    agent_scan_key("object", AGENT_SCAN_OBJECT),
    agent_scan_end,
};

static const agent_scan_key_t agent_scan_choice[] = {
    agent_scan_key("index", AGENT_SCAN_ZERO),
    agent_scan_key("delta", AGENT_SCAN_DELTA),
    agent_scan_key("finish_reason", AGENT_SCAN_NOTHING),
    agent_scan_key("text", AGENT_SCAN_NOTHING),
    agent_scan_key("message", AGENT_SCAN_NOTHING),
    agent_scan_key("error", AGENT_SCAN_NOTHING),
    agent_scan_end,
};

static const agent_scan_key_t agent_scan_delta[] = {
    agent_scan_key("content", AGENT_SCAN_TEXT),
    agent_scan_key("reasoning_content", AGENT_SCAN_REASONING),
    agent_scan_key("reasoning", AGENT_SCAN_REASONING),
    agent_scan_key("reasoning_text", AGENT_SCAN_REASONING),
    agent_scan_key("refusal", AGENT_SCAN_NOTHING),
    agent_scan_key("tool_calls", AGENT_SCAN_NOTHING),
    agent_scan_key("function_call", AGENT_SCAN_NOTHING),
    agent_scan_end,
};

static int agent_scan_object(agent_scanner_t *s, const agent_scan_key_t *keys,
                             agent_scan_kind_t required);

static inline int
agent_scan_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Skips blanks; 1 when the next byte is c, which is skipped too. */
static inline int
agent_scan_byte(agent_scanner_t *s, char c)
{
    if (s->p < s->end && *s->p == c) {
        s->p++;
        return 1;
    }

    while (s->p < s->end && agent_scan_is_space(*s->p)) {
        s->p++;
    }

    if (s->p == s->end || *s->p != c) {
        return 0;
    }

    s->p++;

    return 1;
}

static inline int
agent_scan_word(agent_scanner_t *s, const char *word, size_t len)
{
    if ((size_t) (s->end - s->p) < len || memcmp(s->p, word, len) != 0) {
        return 0;
    }

    s->p += len;

    return 1;
}

/* The first byte at p that is not plain ASCII of a string, or "end". */
static inline const char *
agent_scan_plain(const char *p, const char *end)
{
    uint64_t x, stop;

    while (end - p >= 8) {
        memcpy(&x, p, sizeof(x));

        stop = x | AGENT_BELOW(x, 0x20) | AGENT_IS(x, '"') | AGENT_IS(x, '\\');
        stop &= AGENT_HIGH;

        if (stop != 0) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            return p + (__builtin_ctzll(stop) >> 3);
#else
            break;
#endif
        }

        p += 8;
    }

    while (p < end && (unsigned char) *p < 0x80 && (unsigned char) *p >= 0x20 &&
           *p != '"' && *p != '\\') {
        p++;
    }

    return p;
}

/*
 * A string whose opening quote has been skipped.  Plain ASCII is checked on the
 * way; a string with anything else (none if "plain") is handed to the checker
 * of escaped text once its end is known.
 */
static inline int
agent_scan_string(agent_scanner_t *s, agent_str_t *value, int plain)
{
    const char *p = s->p, *end = s->end;
    int rich = 0;

    for (;;) {
        p = agent_scan_plain(p, end);

        if (p == end || (unsigned char) *p < 0x20) {
            return 0;
        }

        if (*p == '"') {
            break;
        }

        if (plain || end - p < 2) {
            return 0;
        }

        rich = 1;
        p += *p == '\\' ? 2 : 1;
    }

    value->data = s->p;
    value->len = (size_t) (p - s->p);
    s->p = p + 1;

    return !rich || agent_json_is_escaped(*value);
}

static int
agent_scan_number(agent_scanner_t *s)
{
    const char *p = s->p, *digits;

    if (p < s->end && *p == '-') {
        p++;
    }

    digits = p;

    while (p < s->end && *p >= '0' && *p <= '9') {
        p++;
    }

    if (p == digits || (*digits == '0' && p - digits > 1)) {
        return 0;
    }

    if (p < s->end && *p == '.') {
        p++;

        if (p == s->end || *p < '0' || *p > '9') {
            return 0;
        }

        while (p < s->end && *p >= '0' && *p <= '9') {
            p++;
        }
    }

    if (p == s->end || p - digits > AGENT_SCAN_DIGITS || *p == 'e' ||
        *p == 'E') {
        return 0;
    }

    s->p = p;

    return 1;
}

static inline int
agent_scan_scalar(agent_scanner_t *s)
{
    agent_str_t value;

    if (s->p == s->end) {
        return 0;
    }

    switch (*s->p) {
    case '"':
        s->p++;
        return agent_scan_string(s, &value, 0);
    case 'n':
        return agent_scan_word(s, "null", 4);
    case 't':
        return agent_scan_word(s, "true", 4);
    case 'f':
        return agent_scan_word(s, "false", 5);
    default:
        return agent_scan_number(s);
    }
}

/* null leaves *value empty. */
static inline int
agent_scan_string_or_null(agent_scanner_t *s, agent_str_t *value)
{
    value->len = 0;

    if (s->p < s->end && *s->p == '"') {
        s->p++;
        return agent_scan_string(s, value, 0);
    }

    return agent_scan_word(s, "null", 4);
}

static int
agent_scan_value(agent_scanner_t *s, agent_scan_kind_t kind)
{
    agent_str_t value;

    while (s->p < s->end && agent_scan_is_space(*s->p)) {
        s->p++;
    }

    switch (kind) {
    case AGENT_SCAN_NOTHING:
        return agent_scan_string_or_null(s, &value) && value.len == 0;

    case AGENT_SCAN_ZERO:
        return agent_scan_word(s, "0", 1) && s->p < s->end && *s->p != '.' &&
               *s->p != 'e' && *s->p != 'E';

    case AGENT_SCAN_TEXT:
        return agent_scan_string_or_null(s, &s->scan->text);

    case AGENT_SCAN_REASONING:
        if (!agent_scan_string_or_null(s, &value)) {
            return 0;
        }

        if (value.len == 0) {
            return 1;
        }

        if (s->scan->reasoning.len != 0) {
            return 0; /* under two names: not for here to choose */
        }

        s->scan->reasoning = value;
        return 1;

    case AGENT_SCAN_OBJECT:
        return agent_scan_word(s, "\"", 1) && agent_scan_string(s, &value, 1) &&
               !agent_str_eq(value, AGENT_STR("error"));

    case AGENT_SCAN_CHOICES:
        return agent_scan_byte(s, '[') && agent_scan_byte(s, '{') &&
               agent_scan_object(s, agent_scan_choice, AGENT_SCAN_DELTA) &&
               agent_scan_byte(s, ']');

    case AGENT_SCAN_DELTA:
        return agent_scan_byte(s, '{') &&
               agent_scan_object(s, agent_scan_delta, AGENT_SCAN_SCALAR);

    case AGENT_SCAN_SCALAR:
    default:
        return agent_scan_scalar(s);
    }
}

/* An object whose brace has been skipped.  "required": a kind that must occur,
 * AGENT_SCAN_SCALAR for none. */
static int
agent_scan_object(agent_scanner_t *s, const agent_scan_key_t *keys,
                  agent_scan_kind_t required)
{
    unsigned seen = 0, bit;
    agent_str_t name;
    const agent_scan_key_t *key;
    int found = required == AGENT_SCAN_SCALAR;

    if (agent_scan_byte(s, '}')) {
        return found;
    }

    do {
        /* a key with an escape may be one of the table's in disguise */

        if (!agent_scan_byte(s, '"') || !agent_scan_string(s, &name, 1) ||
            !agent_scan_byte(s, ':')) {
            return 0;
        }

        for (key = keys, bit = 1; key->name != NULL; key++, bit <<= 1) {
            if (key->len == name.len && key->name[0] == name.data[0] &&
                memcmp(key->name, name.data, name.len) == 0) {
                break;
            }
        }

        if (key->name != NULL) {
            if (seen & bit) {
                return 0;
            }

            seen |= bit;
            found |= key->kind == required;
        }

        if (!agent_scan_value(s, key->kind)) {
            return 0;
        }

    } while (agent_scan_byte(s, ','));

    return agent_scan_byte(s, '}') && found;
}

agent_rc_t
agent_chat_scan(agent_str_t data, agent_chat_scan_t *scan)
{
    agent_scanner_t s;

    memset(scan, 0, sizeof(agent_chat_scan_t));

    if (data.len == 0) {
        return AGENT_DECLINED;
    }

    s.p = data.data;
    s.end = data.data + data.len;
    s.scan = scan;

    if (!agent_scan_byte(&s, '{') ||
        !agent_scan_object(&s, agent_scan_chunk, AGENT_SCAN_CHOICES)) {
        return AGENT_DECLINED;
    }

    while (s.p < s.end && agent_scan_is_space(*s.p)) {
        s.p++;
    }

    if (s.p < s.end || (scan->text.len != 0 && scan->reasoning.len != 0)) {
        return AGENT_DECLINED;
    }

    return AGENT_OK;
}

void
agent_chat_form_learn(agent_chat_form_t *form, agent_str_t data,
                      const agent_chat_scan_t *scan)
{
    const agent_str_t *text;

    form->head = 0;
    form->reasoning = scan->text.len == 0;

    text = form->reasoning ? &scan->reasoning : &scan->text;

    if (text->len == 0 || data.len - text->len > AGENT_CHAT_FORM) {
        return;
    }

    form->head = (size_t) (text->data - data.data);
    form->tail = data.len - text->len - form->head;

    memcpy(form->bytes, data.data, form->head);
    memcpy(form->bytes + form->head, text->data + text->len, form->tail);
}

agent_rc_t
agent_chat_form_match(const agent_chat_form_t *form, agent_str_t data,
                      agent_chat_scan_t *scan)
{
    agent_str_t text;

    if (form->head == 0 || data.len < form->head + form->tail ||
        memcmp(data.data, form->bytes, form->head) != 0 ||
        memcmp(data.data + data.len - form->tail, form->bytes + form->head,
               form->tail) != 0) {
        return AGENT_DECLINED;
    }

    text.data = data.data + form->head;
    text.len = data.len - form->head - form->tail;

    if (!agent_json_is_escaped(text)) {
        return AGENT_DECLINED;
    }

    memset(scan, 0, sizeof(agent_chat_scan_t));

    if (form->reasoning) {
        scan->reasoning = text;
    } else {
        scan->text = text;
    }

    return AGENT_OK;
}
