#include "agent_json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AGENT_REPLACEMENT "\xef\xbf\xbd"

#define AGENT_TREE_DEPTH  128 /* deeper texts are jansson's */
#define AGENT_TREE_NUMBER 64
#define AGENT_TREE_ASK    65536 /* bytes; the errors of longer texts are ours */

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

/* --- UTF-8 ---------------------------------------------------------------- */

/*
 * The sequence at p < end, whose first byte is not ASCII: its length, or 0
 * when it is invalid, with the bytes that one U+FFFD stands for in *bad.
 */
static inline size_t
agent_utf8_sequence(const unsigned char *p, const unsigned char *end,
                    size_t *bad)
{
    unsigned char lo = 0x80, hi = 0xbf;
    size_t i, n;

    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        n = 2;

    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        n = 3;
        lo = p[0] == 0xe0 ? 0xa0 : 0x80; /* no overlong forms */
        hi = p[0] == 0xed ? 0x9f : 0xbf; /* no surrogates */

    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        n = 4;
        lo = p[0] == 0xf0 ? 0x90 : 0x80;
        hi = p[0] == 0xf4 ? 0x8f : 0xbf; /* not beyond U+10FFFF */

    } else {
        *bad = 1;
        return 0;
    }

    for (i = 1; i < n; i++) {
        if (p + i == end || p[i] < lo || p[i] > hi) {
            *bad = i;
            return 0;
        }

        lo = 0x80;
        hi = 0xbf;
    }

    return n;
}

/* Bytes at p that one U+FFFD stands for; p is at an invalid sequence. */
static size_t
agent_utf8_bad(const unsigned char *p, const unsigned char *end)
{
    size_t bad = 1;

    (void) agent_utf8_sequence(p, end, &bad);

    return bad;
}

size_t
agent_utf8_valid(agent_str_t s)
{
    const unsigned char *p = agent_start(s), *end = p + s.len;
    size_t n, bad;

    while (p < end) {
        while (end - p >= 8 && (agent_load64(p) & AGENT_HIGH) == 0) {
            p += 8;
        }

        while (p < end && *p < 0x80) {
            p++;
        }

        /* scripts other than Latin come in runs */

        while (p < end && *p >= 0x80) {
            n = agent_utf8_sequence(p, end, &bad);
            if (n == 0) {
                return agent_between(agent_start(s), p);
            }

            p += n;
        }
    }

    return s.len;
}

void
agent_utf8_sanitize(agent_buf_t *b, agent_str_t s)
{
    size_t n, bad;

    for (;;) {
        n = agent_utf8_valid(s);
        agent_buf_add(b, s.data, n);

        if (n == s.len) {
            return;
        }

        s.data += n;
        s.len -= n;

        bad = agent_utf8_bad(agent_start(s), agent_start(s) + s.len);
        agent_buf_add_lit(b, AGENT_REPLACEMENT);

        s.data += bad;
        s.len -= bad;
    }
}

static size_t
agent_utf8_encode(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char) c;
        return 1;
    }

    if (c < 0x800) {
        out[0] = (char) (0xc0 | c >> 6);
        out[1] = (char) (0x80 | (c & 0x3f));
        return 2;
    }

    if (c < 0x10000) {
        out[0] = (char) (0xe0 | c >> 12);
        out[1] = (char) (0x80 | (c >> 6 & 0x3f));
        out[2] = (char) (0x80 | (c & 0x3f));
        return 3;
    }

    out[0] = (char) (0xf0 | c >> 18);
    out[1] = (char) (0x80 | (c >> 12 & 0x3f));
    out[2] = (char) (0x80 | (c >> 6 & 0x3f));
    out[3] = (char) (0x80 | (c & 0x3f));

    return 4;
}

/* --- strings -------------------------------------------------------------- */

/* ASCII that stands for itself in a JSON string. */
static inline int
agent_json_is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* Behind the longest run at p that stands for itself in a JSON string: valid
 * UTF-8 without quotes, backslashes and control characters. */
static inline const unsigned char *
agent_json_run(const unsigned char *p, const unsigned char *end)
{
    uint64_t x;
    size_t n, bad;

    for (;;) {
        while (end - p >= 8) {
            x = agent_load64(p);

            if ((x | agent_any_below(x, 0x20) | agent_any_is(x, '"') |
                 agent_any_is(x, '\\')) &
                AGENT_HIGH) {
                break;
            }

            p += 8;
        }

        while (p < end && agent_json_is_plain(*p)) {
            p++;
        }

        if (p == end || *p < 0x80) {
            return p;
        }

        do {
            n = agent_utf8_sequence(p, end, &bad);
            if (n == 0) {
                return p;
            }

            p += n;
        } while (p < end && *p >= 0x80);
    }
}

static int
agent_json_hex4(const unsigned char *p, const unsigned char *end, uint32_t *v)
{
    unsigned i, c;

    if (end - p < 4) {
        return 0;
    }

    for (*v = 0, i = 0; i < 4; i++) {
        c = p[i];

        if (c >= '0' && c <= '9') {
            c -= '0';
        } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
            c = (c | 0x20) - 'a' + 10;
        } else {
            return 0;
        }

        *v = *v << 4 | c;
    }

    return 1;
}

/*
 * The escape at p (a backslash): its length, 12 for a surrogate pair, and the
 * character it stands for; 0 when it is invalid, unfinished or lone.
 */
static size_t
agent_json_escaped_char(const unsigned char *p, const unsigned char *end,
                        uint32_t *c)
{
    uint32_t low;

    if (end - p < 2) {
        return 0;
    }

    switch (p[1]) {
    case '"':
    case '\\':
    case '/':
        *c = p[1];
        return 2;
    case 'b':
        *c = '\b';
        return 2;
    case 'f':
        *c = '\f';
        return 2;
    case 'n':
        *c = '\n';
        return 2;
    case 'r':
        *c = '\r';
        return 2;
    case 't':
        *c = '\t';
        return 2;
    case 'u':
        break;
    default:
        return 0;
    }

    if (!agent_json_hex4(p + 2, end, c)) {
        return 0;
    }

    if ((*c & 0xf800) != 0xd800) {
        return 6;
    }

    if (*c >= 0xdc00 || end - p < 12 || p[6] != '\\' || p[7] != 'u' ||
        !agent_json_hex4(p + 8, end, &low) || (low & 0xfc00) != 0xdc00) {
        return 0;
    }

    *c = 0x10000 + ((*c & 0x3ff) << 10) + (low & 0x3ff);

    return 12;
}

/* Length of the longest prefix that is escaped text. */
static inline size_t
agent_json_escaped_prefix(const unsigned char *start, const unsigned char *end)
{
    const unsigned char *p = start;
    uint32_t c;
    size_t n;

    for (;;) {
        p = agent_json_run(p, end);

        if (p == end || *p != '\\') {
            return agent_between(start, p);
        }

        do {
            n = agent_json_escaped_char(p, end, &c);
            if (n == 0) {
                return agent_between(start, p);
            }

            p += n;
        } while (p < end && *p == '\\');
    }
}

int
agent_json_is_escaped(agent_str_t s)
{
    const unsigned char *p = agent_start(s);

    return agent_json_escaped_prefix(p, p + s.len) == s.len;
}

size_t
agent_json_cut(agent_str_t s, size_t max)
{
    const unsigned char *p = agent_start(s);

    if (s.len <= max) {
        return s.len;
    }

    /* what a cut at max would split is invalid at the end of the prefix */

    return agent_json_escaped_prefix(p, p + max);
}

/* The escape of a quote, backslash or control character; at most 6 bytes. */
static size_t
agent_json_control(char *out, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";

    out[0] = '\\';

    switch (c) {
    case '"':
    case '\\':
        out[1] = (char) c;
        return 2;
    case '\b':
        out[1] = 'b';
        return 2;
    case '\f':
        out[1] = 'f';
        return 2;
    case '\n':
        out[1] = 'n';
        return 2;
    case '\r':
        out[1] = 'r';
        return 2;
    case '\t':
        out[1] = 't';
        return 2;
    default:
        memcpy(out + 1, "u00", 3);
        out[4] = hex[c >> 4];
        out[5] = hex[c & 15];
        return 6;
    }
}

/* Short pieces are gathered: text may be dense with what is to be escaped. */
void
agent_json_escape(agent_buf_t *b, agent_str_t s)
{
    const unsigned char *p = agent_start(s), *end = p + s.len, *run;
    char out[512];
    size_t len, n = 0;

    for (;;) {
        run = p;
        p = agent_json_run(p, end);
        len = agent_between(run, p);

        if (n + len + 6 > sizeof(out)) {
            agent_buf_add(b, out, n);
            n = 0;
        }

        if (len + 6 > sizeof(out)) {
            agent_buf_add(b, run, len);
        } else {
            memcpy(out + n, run, len);
            n += len;
        }

        if (p == end) {
            agent_buf_add(b, out, n);
            return;
        }

        if (*p < 0x80) {
            n += agent_json_control(out + n, *p++);

        } else {
            memcpy(out + n, AGENT_REPLACEMENT, 3);
            n += 3;
            p += agent_utf8_bad(p, end);
        }
    }
}

void
agent_json_quote(agent_buf_t *b, agent_str_t s)
{
    agent_buf_add_char(b, '"');
    agent_json_escape(b, s);
    agent_buf_add_char(b, '"');
}

agent_rc_t
agent_json_unescape(agent_buf_t *b, agent_str_t s)
{
    const unsigned char *p = agent_start(s), *end = p + s.len, *run;
    size_t n, len = b->len;
    uint32_t c;
    char utf8[4];

    for (;;) {
        run = p;
        p = agent_json_run(p, end);
        agent_buf_add(b, run, agent_between(run, p));

        if (p == end) {
            return agent_buf_ok(b) ? AGENT_OK : AGENT_NOMEM;
        }

        n = *p == '\\' ? agent_json_escaped_char(p, end, &c) : 0;
        if (n == 0) {
            b->len = len;
            return AGENT_INVALID;
        }

        p += n;
        agent_buf_add(b, utf8, agent_utf8_encode(utf8, c));
    }
}

/* --- repair --------------------------------------------------------------- */

/* What jansson refuses outside strings; at p, adds null and returns the bytes
 * it replaces, else 0. */
static size_t
agent_json_sanitize_number(agent_buf_t *b, const unsigned char *p,
                           const unsigned char *end)
{
    static const agent_str_t words[] = {
        agent_str("NaN"),
        agent_str("Infinity"),
        agent_str("-Infinity"),
    };
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (agent_between(p, end) >= words[i].len &&
            memcmp(p, words[i].data, words[i].len) == 0) {
            agent_buf_add_lit(b, "null");
            return words[i].len;
        }
    }

    return 0;
}

/* Plain bytes between strings. */
static void
agent_json_sanitize_outside(agent_buf_t *b, const unsigned char *p,
                            const unsigned char *end)
{
    const unsigned char *run = p;
    size_t n;

    while (p < end) {
        if (*p != 'N' && *p != 'I' && *p != '-') {
            p++;
            continue;
        }

        agent_buf_add(b, run, agent_between(run, p));
        run = p;
        n = agent_json_sanitize_number(b, p, end);
        run += n;
        p += n ? n : 1;
    }

    agent_buf_add(b, run, agent_between(run, p));
}

/* The escape at p inside a string; returns the bytes it took. */
static size_t
agent_json_sanitize_escape(agent_buf_t *b, const unsigned char *p,
                           const unsigned char *end)
{
    size_t n;
    uint32_t c;

    n = agent_json_escaped_char(p, end, &c);

    if (n == 0) {
        if (end - p > 1 && p[1] == 'u' && agent_json_hex4(p + 2, end, &c)) {
            agent_buf_add_lit(b, "\\ufffd"); /* a lone surrogate */
            return 6;
        }

        /* not ours to guess: what follows stays raw, so it is still invalid */

        n = end - p > 1 && p[1] < 0x80 ? 2 : 1;
    }

    agent_buf_add(b, p, n);

    return n;
}

void
agent_json_sanitize(agent_buf_t *b, agent_str_t s)
{
    const unsigned char *p = agent_start(s), *end = p + s.len, *run;
    int string = 0;
    size_t n;
    char esc[6];

    for (;;) {
        run = p;
        p = agent_json_run(p, end);

        if (string) {
            agent_buf_add(b, run, agent_between(run, p));
        } else {
            agent_json_sanitize_outside(b, run, p);
        }

        if (p == end) {
            return;
        }

        if (*p >= 0x80) {
            agent_buf_add_lit(b, AGENT_REPLACEMENT);
            n = agent_utf8_bad(p, end);

        } else if (*p == '"' || !string) {
            string ^= *p == '"';
            agent_buf_add(b, p, 1);
            n = 1;

        } else if (*p == '\\') {
            n = agent_json_sanitize_escape(b, p, end);

        } else {
            agent_buf_add(b, esc, agent_json_control(esc, *p));
            n = 1;
        }

        p += n;
    }
}

/* --- limits and trees ----------------------------------------------------- */

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

/* p behind an opening quote; returns behind the closing one, or NULL. */
static const char *
agent_json_string_end(const char *p, const char *end)
{
    uint64_t x, quote, slash;

    for (;;) {
        while (end - p >= 8) {
            x = agent_load64((const unsigned char *) p);
            quote = agent_any_is(x, '"');
            slash = agent_any_is(x, '\\');

            if ((quote | slash) & ~x & AGENT_HIGH) {
                break;
            }

            p += 8;
        }

        while (p < end && *p != '"' && *p != '\\') {
            p++;
        }

        if (p == end) {
            return NULL;
        }

        if (*p == '"') {
            return p + 1;
        }

        if (end - p < 2) {
            return NULL;
        }

        p += 2;
    }
}

/* Behind the number, literal or junk at p. */
static const char *
agent_json_scalar_end(const char *p, const char *end)
{
    while (p < end && !agent_json_is_space(*p) && *p != ',' && *p != ':' &&
           *p != ']' && *p != '}' && *p != '[' && *p != '{' && *p != '"') {
        p++;
    }

    return p;
}

/*
 * Counts as the bytes come.  In text that is no JSON the counts mean nothing,
 * but up to its first error they are right, and the parser stops there.
 */
int
agent_json_within(agent_str_t text, const agent_json_limits_t *limits,
                  agent_fault_t *fault)
{
    const char *p = text.data, *end = p + text.len;
    size_t depth = 0, values = 0;

    while (p != NULL && (p = agent_json_space(p, end)) < end) {
        switch (*p) {
        case '{':
        case '[':
            depth++;
            values++;
            p++;
            break;
        case '}':
        case ']':
            depth -= depth > 0;
            p++;
            break;
        case ',':
            p++;
            break;
        case ':':
            values -= values > 0; /* the string before it was a key */
            p++;
            break;
        case '"':
            values++;
            p = agent_json_string_end(p + 1, end);
            break;
        default:
            values++;
            p = agent_json_scalar_end(p, end);
        }

        if (limits->max_depth != 0 && depth > limits->max_depth) {
            agent_fault_set(fault, AGENT_CODE_TOO_LARGE,
                            "the body is nested deeper than %zu levels",
                            limits->max_depth);
            return 0;
        }

        if (limits->max_values != 0 && values > limits->max_values) {
            agent_fault_set(fault, AGENT_CODE_TOO_LARGE,
                            "the body holds more than %zu JSON values",
                            limits->max_values);
            return 0;
        }
    }

    return 1;
}

/*
 * A parser for what is expected to be good: jansson reads a byte at a time and
 * is several times slower.  What is rare is left to jansson, and so are the
 * words for what is wrong, unless the text is so long that it should not be
 * gone through once more.
 */
typedef struct {
    const unsigned char *p; /* at the error */
    const unsigned char *end;
    const char *wrong; /* NULL: nothing, this only cannot do it */
    unsigned depth;
    int reject;    /* duplicate keys */
    char *scratch; /* a key, or a string without its escapes */
    size_t size;   /* of scratch */
    json_malloc_t alloc;
    json_free_t release;
} agent_tree_t;

static json_t *agent_tree_value(agent_tree_t *t);

/* The next character that is no space; 0 at the end. */
static inline unsigned char
agent_tree_peek(agent_tree_t *t)
{
    while (t->p < t->end && agent_json_is_space((char) *t->p)) {
        t->p++;
    }

    return t->p < t->end ? *t->p : 0;
}

/* The string at p, a quote: its inside. */
static int
agent_tree_string(agent_tree_t *t, agent_str_t *s)
{
    const unsigned char *start = t->p + 1;
    size_t n = agent_json_escaped_prefix(start, t->end);

    if (start + n == t->end || start[n] != '"') {
        t->p = start + n;

        if (t->p == t->end) {
            t->wrong = "premature end of input";
        } else if (*t->p == '\\') {
            t->wrong = "invalid escape";
        } else if (*t->p < 0x20) {
            t->wrong = "control character in a string";
        } else {
            t->wrong = "invalid UTF-8";
        }

        return 0;
    }

    s->data = (const char *) start;
    s->len = n;
    t->p = start + n + 1;

    return 1;
}

/* What the inside of a string stands for, with a NUL behind it, in t->scratch;
 * *n is its length. */
static int
agent_tree_decode(agent_tree_t *t, agent_str_t s, size_t *n)
{
    const unsigned char *p = agent_start(s), *end = p + s.len, *slash;
    uint32_t c = 0;
    char *out;

    if (t->size < s.len + 1) {
        t->release(t->scratch);
        t->size = 2 * s.len + 64;
        t->scratch = t->alloc(t->size);

        if (t->scratch == NULL) {
            t->size = 0;
            return 0;
        }
    }

    out = t->scratch;

    while (p < end) {
        slash = memchr(p, '\\', agent_between(p, end));
        slash = slash != NULL ? slash : end;

        memcpy(out, p, agent_between(p, slash));
        out += slash - p;
        p = slash;

        while (p < end && *p == '\\') {
            p += agent_json_escaped_char(p, end, &c);
            out += agent_utf8_encode(out, c);
        }
    }

    *out = '\0';
    *n = (size_t) (out - t->scratch);

    return 1;
}

static json_t *
agent_tree_text(agent_tree_t *t)
{
    size_t n;
    agent_str_t s;

    if (!agent_tree_string(t, &s)) {
        return NULL;
    }

    if (memchr(s.data, '\\', s.len) == NULL) {
        return json_stringn_nocheck(s.data, s.len);
    }

    return agent_tree_decode(t, s, &n) ? json_stringn_nocheck(t->scratch, n)
                                       : NULL;
}

/* NULL, as the value that is not there. */
static json_t *
agent_tree_unexpected(agent_tree_t *t)
{
    if (t->p == t->end) {
        t->wrong = "premature end of input";
    } else if (*t->p != 0) { /* behind a number jansson accepts it (2.14) */
        t->wrong = "unexpected token";
    }

    return NULL;
}

static inline const unsigned char *
agent_tree_digits(const unsigned char *p, const unsigned char *end)
{
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }

    return p;
}

static json_t *
agent_tree_real(const unsigned char *start, size_t n)
{
    char text[AGENT_TREE_NUMBER], *behind;
    double v;

    if (n >= sizeof(text)) {
        return NULL;
    }

    memcpy(text, start, n);
    text[n] = '\0';
    v = strtod(text, &behind);

    /* not so where a locale has another decimal point */

    if (behind != text + n || v == HUGE_VAL || v == -HUGE_VAL) {
        return NULL;
    }

    return json_real(v);
}

static json_t *
agent_tree_number(agent_tree_t *t)
{
    const unsigned char *start = t->p, *p = start, *digits, *q;
    json_int_t v = 0;

    p += p < t->end && *p == '-';
    digits = p;
    p = agent_tree_digits(p, t->end);

    if (p == digits || (*digits == '0' && p - digits > 1)) {
        return agent_tree_unexpected(t);
    }

    q = p;

    if (p < t->end && *p == '.') {
        p = agent_tree_digits(q + 1, t->end);

        if (p == q + 1) {
            return agent_tree_unexpected(t);
        }
    }

    if (p < t->end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < t->end && (*p == '+' || *p == '-');
        start = t->p;
        t->p = agent_tree_digits(p, t->end);

        return t->p != p ? agent_tree_real(start, agent_between(start, t->p))
                         : agent_tree_unexpected(t);
    }

    t->p = p;

    if (p != q) {
        return agent_tree_real(start, agent_between(start, p));
    }

    if (q - digits > 18) {
        return NULL; /* may not fit */
    }

    for (p = digits; p < q; p++) {
        v = v * 10 + (*p - '0');
    }

    return json_integer(digits != start ? -v : v);
}

static int
agent_tree_member(agent_tree_t *t, json_t *object)
{
    size_t n, before = json_object_size(object);
    json_t *v;
    agent_str_t key;

    if (agent_tree_peek(t) != '"') {
        return agent_tree_unexpected(t) != NULL;
    }

    if (!agent_tree_string(t, &key)) {
        return 0;
    }

    if (agent_tree_peek(t) != ':') {
        return agent_tree_unexpected(t) != NULL;
    }

    t->p++;

    v = agent_tree_value(t);
    if (v == NULL) {
        return 0;
    }

    if (!agent_tree_decode(t, key, &n) || strlen(t->scratch) != n) {
        json_decref(v);
        return 0;
    }

    if (json_object_set_new_nocheck(object, t->scratch, v) != 0) {
        return 0;
    }

    if (t->reject && json_object_size(object) == before) {
        t->wrong = "duplicate object key";
        return 0;
    }

    return 1;
}

/* p at the opening bracket */
static json_t *
agent_tree_nested(agent_tree_t *t)
{
    int object = *t->p == '{', good;
    unsigned char c, close = object ? '}' : ']';
    json_t *json, *v;

    if (++t->depth > AGENT_TREE_DEPTH) {
        return NULL;
    }

    json = object ? json_object() : json_array();

    if (json == NULL) {
        return NULL;
    }

    t->p++;
    c = agent_tree_peek(t);

    while (c != close) {
        if (object) {
            good = agent_tree_member(t, json);
        } else {
            v = agent_tree_value(t);
            good = v != NULL && json_array_append_new(json, v) == 0;
        }

        if (!good) {
            json_decref(json);
            return NULL;
        }

        c = agent_tree_peek(t);

        if (c == ',') {
            t->p++;

            if (agent_tree_peek(t) != close) {
                continue;
            }
        }

        if (c != close) {
            json_decref(json);
            return agent_tree_unexpected(t);
        }
    }

    t->p++;
    t->depth--;

    return json;
}

static json_t *
agent_tree_word(agent_tree_t *t, agent_str_t word, json_t *v)
{
    if (agent_between(t->p, t->end) < word.len ||
        memcmp(t->p, word.data, word.len) != 0) {
        return agent_tree_unexpected(t);
    }

    t->p += word.len;

    return v;
}

static json_t *
agent_tree_value(agent_tree_t *t)
{
    switch (agent_tree_peek(t)) {
    case '{':
    case '[':
        return agent_tree_nested(t);
    case '"':
        return agent_tree_text(t);
    case 't':
        return agent_tree_word(t, AGENT_STR("true"), json_true());
    case 'f':
        return agent_tree_word(t, AGENT_STR("false"), json_false());
    case 'n':
        return agent_tree_word(t, AGENT_STR("null"), json_null());
    default:
        return agent_tree_number(t);
    }
}

/* What is wrong with a text that is too long to ask jansson. */
static void
agent_tree_fault(const agent_tree_t *t, agent_str_t text, agent_fault_t *fault)
{
    const unsigned char *p = agent_start(text), *eol;
    size_t line = 1;

    for (;;) {
        eol = memchr(p, '\n', agent_between(p, t->p));

        if (eol == NULL) {
            break;
        }

        p = eol + 1;
        line++;
    }

    agent_fault_set(fault, AGENT_CODE_BAD_REQUEST,
                    "the body is not valid JSON: %s at line %zu, column %zu",
                    t->wrong, line, agent_between(p, t->p) + 1);
}

/* An object or array.  NULL: it is none where t->wrong is set, else jansson is
 * to be asked. */
static json_t *
agent_json_tree(agent_tree_t *t, agent_str_t text, int reject)
{
    json_t *root = NULL;
    unsigned char c;

    memset(t, 0, sizeof(agent_tree_t));
    t->p = agent_start(text);
    t->end = t->p + text.len;
    t->reject = reject;
    json_get_alloc_funcs(&t->alloc, &t->release);

    c = agent_tree_peek(t);

    if (c == '{' || c == '[') {
        root = agent_tree_nested(t);
    } else {
        (void) agent_tree_unexpected(t);
    }

    if (root != NULL && (agent_tree_peek(t), t->p != t->end)) {
        json_decref(root);
        root = agent_tree_unexpected(t);
    }

    t->release(t->scratch);
    t->scratch = NULL;

    return root;
}

static int
agent_json_out_of_memory(const json_error_t *error)
{
    /* jansson says nothing at all when most of its allocations fail */

    return error->text[0] == '\0' ||
           json_error_code(error) == json_error_out_of_memory;
}

static void
agent_json_fault(const json_error_t *error, agent_fault_t *fault)
{
    const char *cut;
    int n;

    if (agent_json_out_of_memory(error)) {
        agent_fault_set(fault, AGENT_CODE_INTERNAL, "out of memory");
        return;
    }

    /* messages are logged: jansson's quotations of the input are left out */

    cut = strstr(error->text, " near '");

    if (strncmp(error->text, "invalid Unicode", 15) == 0) {
        cut = strstr(error->text, " '");
    }

    n = (int) (cut != NULL ? (size_t) (cut - error->text)
                           : strlen(error->text));

    agent_fault_set(fault, AGENT_CODE_BAD_REQUEST,
                    "the body is not valid JSON: %.*s at line %d, column %d", n,
                    error->text, error->line, error->column);
}

json_t *
agent_json_load(agent_str_t text, const agent_json_limits_t *limits,
                agent_fault_t *fault)
{
    json_t *root;
    agent_tree_t t;
    json_error_t error;

    if (text.len == 0) {
        agent_fault_set(fault, AGENT_CODE_BAD_REQUEST, "the body is empty");
        return NULL;
    }

    if (limits != NULL && !agent_json_within(text, limits, fault)) {
        return NULL;
    }

    root = agent_json_tree(&t, text, 1);
    if (root != NULL) {
        return root;
    }

    if (t.wrong != NULL && text.len > AGENT_TREE_ASK) {
        agent_tree_fault(&t, text, fault);
        return NULL;
    }

    root = json_loadb(text.data, text.len,
                      JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    /* an integer beyond 64 bits is JSON all the same */

    if (root == NULL &&
        json_error_code(&error) == json_error_numeric_overflow) {
        root = json_loadb(text.data, text.len,
                          JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL |
                              JSON_DECODE_INT_AS_REAL,
                          &error);
    }

    if (root == NULL) {
        agent_json_fault(&error, fault);
    }

    return root;
}

/* By our own parser or, when it cannot tell, by jansson. */
static json_t *
agent_json_either(agent_str_t text, json_error_t *error)
{
    json_t *root;
    agent_tree_t t;

    memset(error, 0, sizeof(json_error_t));
    error->text[0] = 'x'; /* no sign of lacking memory */

    root = agent_json_tree(&t, text, 0);
    if (root != NULL || t.wrong != NULL) {
        return root;
    }

    root = json_loadb(text.data, text.len, JSON_ALLOW_NUL, error);

    if (root == NULL && json_error_code(error) == json_error_numeric_overflow) {
        root = json_loadb(text.data, text.len,
                          JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, error);
    }

    return root;
}

json_t *
agent_json_load_lenient(agent_str_t text, const agent_alloc_t *alloc,
                        int *nomem)
{
    json_t *root;
    agent_buf_t b;
    json_error_t error;

    *nomem = 0;

    if (text.len >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0) {
        text.data += 3; /* a byte order mark */
        text.len -= 3;
    }

    while (text.len != 0 && agent_json_is_space(*text.data)) {
        text.data++;
        text.len--;
    }

    if (text.len == 0) {
        return NULL;
    }

    root = agent_json_either(text, &error);
    if (root != NULL) {
        return root;
    }

    agent_buf_init(&b, alloc);
    agent_json_sanitize(&b, text);

    if (agent_buf_ok(&b)) {
        root = agent_json_either(agent_buf_str(&b), &error);
    }

    if (root == NULL) {
        *nomem = !agent_buf_ok(&b) || agent_json_out_of_memory(&error);
    }

    agent_buf_free(&b);

    return root;
}

int
agent_json_str(const json_t *object, const char *key, agent_str_t *value)
{
    const json_t *v = json_object_get(object, key);

    if (!json_is_string(v)) {
        return 0;
    }

    value->data = json_string_value(v);
    value->len = json_string_length(v);

    return 1;
}

/* --- raw values ----------------------------------------------------------- */

/*
 * p at an opening bracket.  The kinds of the innermost 64 open brackets are
 * checked, one bit each; further out only the depth counts.
 */
static const char *
agent_json_skip_nested(const char *p, const char *end)
{
    size_t depth = 0;
    uint64_t kinds = 0;
    unsigned known = 0;

    while (p < end) {
        switch (*p) {
        case '"':
            p = agent_json_string_end(p + 1, end);
            if (p == NULL) {
                return NULL;
            }

            continue;

        case '{':
        case '[':
            kinds = kinds << 1 | (*p == '{');
            known += known < 64;
            depth++;
            break;

        case '}':
        case ']':
            if (known > 0) {
                if ((kinds & 1) != (*p == '}')) {
                    return NULL;
                }

                kinds >>= 1;
                known--;
            }

            if (--depth == 0) {
                return p + 1;
            }

            break;

        default:
            break;
        }

        p++;
    }

    return NULL;
}

const char *
agent_json_skip(const char *p, const char *end)
{
    const char *q;

    p = agent_json_space(p, end);

    if (p == end) {
        return NULL;
    }

    if (*p == '"') {
        return agent_json_string_end(p + 1, end);
    }

    if (*p == '{' || *p == '[') {
        return agent_json_skip_nested(p, end);
    }

    q = agent_json_scalar_end(p, end);

    return q != p ? q : NULL;
}

/* The value at *p, without the space before it; moves *p behind it. */
static int
agent_json_value(const char **p, const char *end, agent_str_t *value)
{
    const char *start = agent_json_space(*p, end);
    const char *behind = agent_json_skip(start, end);

    if (behind == NULL) {
        return 0;
    }

    value->data = start;
    value->len = (size_t) (behind - start);
    *p = behind;

    return 1;
}

/* Skips space and the character c; 0 when something else comes. */
static int
agent_json_expect(const char **p, const char *end, char c)
{
    *p = agent_json_space(*p, end);

    if (*p == end || **p != c) {
        return 0;
    }

    (*p)++;

    return 1;
}

/* Compares the inside of a raw key with plain UTF-8. */
static int
agent_json_key_eq(agent_str_t raw, agent_str_t key)
{
    const unsigned char *p = agent_start(raw), *end = p + raw.len;
    size_t n, i = 0;
    uint32_t c;
    char utf8[4];

    /* an escape is never shorter than what it stands for */

    if (raw.len < key.len) {
        return 0;
    }

    if (memchr(p, '\\', raw.len) == NULL) {
        return agent_str_eq(raw, key);
    }

    while (p < end) {
        if (*p != '\\') {
            utf8[0] = (char) *p++;
            n = 1;

        } else {
            n = agent_json_escaped_char(p, end, &c);
            if (n == 0) {
                return 0;
            }

            p += n;
            n = agent_utf8_encode(utf8, c);
        }

        if (key.len - i < n || memcmp(key.data + i, utf8, n) != 0) {
            return 0;
        }

        i += n;
    }

    return i == key.len;
}

void
agent_json_members(agent_str_t object, const agent_str_t *keys,
                   agent_str_t *values, size_t n)
{
    const char *p, *end;
    agent_str_t name, v;
    size_t i, found = 0;

    for (i = 0; i < n; i++) {
        values[i].data = "";
        values[i].len = 0;
    }

    p = object.len != 0 ? object.data : "";
    end = p + object.len;

    if (!agent_json_expect(&p, end, '{')) {
        return;
    }

    do {
        if (!agent_json_value(&p, end, &name) || name.data[0] != '"' ||
            !agent_json_expect(&p, end, ':') ||
            !agent_json_value(&p, end, &v)) {
            return;
        }

        name.data++;
        name.len -= 2;

        for (i = 0; i < n; i++) {
            if (values[i].len == 0 && agent_json_key_eq(name, keys[i])) {
                values[i] = v;
                found++;
                break;
            }
        }
    } while (found < n && agent_json_expect(&p, end, ','));
}

agent_rc_t
agent_json_find(agent_str_t object, agent_str_t key, agent_str_t *value)
{
    agent_str_t v;

    agent_json_members(object, &key, &v, 1);

    if (v.len == 0) {
        return AGENT_DECLINED;
    }

    *value = v;

    return AGENT_OK;
}

agent_rc_t
agent_json_next(agent_str_t array, const char **cursor, agent_str_t *value)
{
    const char *p, *end;
    char before = ',';

    p = array.len != 0 ? array.data : "";
    end = p + array.len;

    if (*cursor != NULL) {
        p = *cursor;
    } else {
        before = '[';
    }

    if (!agent_json_expect(&p, end, before) ||
        !agent_json_value(&p, end, value)) {
        return AGENT_DONE;
    }

    *cursor = p;

    return AGENT_OK;
}
