#include "agent_json_scan.h"

#define AGENT_REPLACEMENT "\xef\xbf\xbd"

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

size_t
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

size_t
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

size_t
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

/* --- raw values ----------------------------------------------------------- */

const char *
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

const char *
agent_json_scalar_end(const char *p, const char *end)
{
    while (p < end && !agent_json_is_space(*p) && *p != ',' && *p != ':' &&
           *p != ']' && *p != '}' && *p != '[' && *p != '{' && *p != '"') {
        p++;
    }

    return p;
}

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
