/*
 * Trees of jansson from JSON texts: limits, a parser of our own for what is
 * expected to be good, and jansson for what is rare and for its errors.
 */

#include "agent_json_scan.h"

#include <math.h>
#include <stdlib.h>

#define AGENT_TREE_DEPTH  128 /* deeper texts are jansson's */
#define AGENT_TREE_NUMBER 64
#define AGENT_TREE_ASK    65536 /* bytes; the errors of longer texts are ours */

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
