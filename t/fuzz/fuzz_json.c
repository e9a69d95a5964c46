/* JSON below the tree, with jansson as the second opinion on any bytes. */

#include "agent_json.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* As the endpoint has them; this also bounds the memory that jansson takes. */
static const agent_json_limits_t limits = {128, 1000000};

#define MAX_FINDS 64 /* members looked for in one object */
#define MAX_WALK  20000

static json_t *
load(agent_str_t s, size_t flags)
{
    return json_loadb(s.len != 0 ? s.data : "", s.len, flags | JSON_ALLOW_NUL,
                      NULL);
}

static int
same(const json_t *a, const json_t *b)
{
    return a == NULL ? b == NULL : json_equal(a, b);
}

static int
within(agent_str_t outer, agent_str_t inner)
{
    return inner.data >= outer.data &&
           inner.data + inner.len <= outer.data + outer.len;
}

/* --- strings -------------------------------------------------------------- */

/* jansson on s between quotes: a new reference, NULL when it is no string. */
static json_t *
quoted(agent_str_t s)
{
    agent_buf_t b;
    json_t *v;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_char(&b, '"');
    agent_buf_add_str(&b, s);
    agent_buf_add_char(&b, '"');
    v = load(agent_buf_str(&b), JSON_DECODE_ANY);
    agent_buf_free(&b);

    return v;
}

static void
check_cut(agent_str_t s, size_t max)
{
    size_t n = agent_json_cut(s, max), i;
    agent_str_t head = {s.data, n}, tail = {s.data + n, s.len - n};

    assert(n <= max && n <= s.len);
    assert(n != 0 || s.len == 0 || max < 12);
    assert(agent_json_is_escaped(head) && agent_json_is_escaped(tail));

    /* the longest: no cut behind it is legal */

    for (i = n + 1; i <= max && i <= s.len; i++) {
        head.len = i;
        tail.data = s.data + i;
        tail.len = s.len - i;
        assert(!agent_json_is_escaped(head) || !agent_json_is_escaped(tail));
    }
}

/* Any bytes as if they were escaped text. */
static void
check_escaped(agent_str_t s)
{
    size_t i;
    agent_rc_t rc;
    agent_buf_t b;
    agent_str_t plain;
    json_t *v = quoted(s);
    int escaped = agent_json_is_escaped(s);
    static const size_t sizes[] = {0, 1, 3, 5, 11, 12, 13};

    assert(escaped == json_is_string(v));

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_char(&b, 'x');
    rc = agent_json_unescape(&b, s);

    assert(rc == (escaped ? AGENT_OK : AGENT_INVALID));
    assert(b.len >= 1 && b.data[0] == 'x' && (escaped || b.len == 1));

    if (escaped && s.len != 0) { /* "s" of an empty buffer is NULL */
        plain.data = b.data + 1;
        plain.len = b.len - 1;
        assert(plain.len == json_string_length(v));
        assert(memcmp(plain.data, json_string_value(v), plain.len) == 0);
        assert(agent_utf8_valid(plain) == plain.len);

        for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            check_cut(s, sizes[i]);
        }

        check_cut(s, s.len / 2);
        check_cut(s, s.len != 0 ? s.len - 1 : 0);
        check_cut(s, s.len);
    }

    json_decref(v);
    agent_buf_free(&b);
}

/* Lines alone: one that is wrong does not hide the next. */
static void
check_lines(agent_str_t s)
{
    const char *eol;
    agent_str_t line;

    while (s.len != 0 && (eol = memchr(s.data, '\n', s.len)) != NULL) {
        line.data = s.data;
        line.len = (size_t) (eol - s.data);
        check_escaped(line);

        s.data += line.len + 1;
        s.len -= line.len + 1;
    }
}

/* Any bytes as text to escape. */
static void
check_escape(agent_str_t s)
{
    size_t valid = agent_utf8_valid(s);
    agent_buf_t clean, escaped, back;
    json_t *v;

    agent_buf_init(&clean, &agent_alloc_libc);
    agent_buf_init(&escaped, &agent_alloc_libc);
    agent_buf_init(&back, &agent_alloc_libc);

    agent_utf8_sanitize(&clean, s);
    agent_json_escape(&escaped, s);

    assert(valid <= s.len);
    assert(agent_utf8_valid(agent_buf_str(&clean)) == clean.len);
    assert((valid == s.len) == agent_str_eq(s, agent_buf_str(&clean)));

    v = json_stringn(s.len != 0 ? s.data : "", s.len);
    assert((v != NULL) == (valid == s.len));
    json_decref(v);

    assert(agent_json_is_escaped(agent_buf_str(&escaped)));
    assert(agent_json_unescape(&back, agent_buf_str(&escaped)) == AGENT_OK);
    assert(agent_str_eq(agent_buf_str(&back), agent_buf_str(&clean)));

    check_escaped(agent_buf_str(&escaped));

    agent_buf_reset(&back);
    agent_json_quote(&back, s);
    assert(back.len == escaped.len + 2 && back.data[0] == '"');
    assert(back.data[back.len - 1] == '"');
    assert(escaped.len == 0 ||
           memcmp(back.data + 1, escaped.data, escaped.len) == 0);

    agent_buf_free(&clean);
    agent_buf_free(&escaped);
    agent_buf_free(&back);
}

/* --- trees ---------------------------------------------------------------- */

/* Values of all kinds; *depth: the deepest nesting of containers. */
static size_t
measure(const json_t *v, size_t level, size_t *depth)
{
    size_t i, n = 1;
    const char *key;
    json_t *child;

    if (!json_is_object(v) && !json_is_array(v)) {
        return 1;
    }

    level++;
    *depth = level > *depth ? level : *depth;

    json_array_foreach(v, i, child)
    {
        n += measure(child, level, depth);
    }

    json_object_foreach((json_t *) (uintptr_t) v, key, child)
    {
        n += measure(child, level, depth);
    }

    return n;
}

static void
check_fault(const agent_fault_t *fault)
{
    agent_str_t s = {fault->message, strlen(fault->message)};

    assert(s.len != 0 && agent_utf8_valid(s) == s.len);
    assert(fault->code == AGENT_CODE_BAD_REQUEST ||
           fault->code == AGENT_CODE_TOO_LARGE);
}

/* The limits are met exactly. */
static void
check_limits(agent_str_t s, const json_t *want)
{
    size_t depth = 0, values = measure(want, 0, &depth);
    json_t *got;
    agent_fault_t fault;
    agent_json_limits_t l = {depth, values};

    got = agent_json_load(s, &l, &fault);
    assert(same(got, want));
    json_decref(got);

    if (depth > 1) {
        l.max_depth = depth - 1;
        assert(agent_json_load(s, &l, &fault) == NULL);
        assert(fault.code == AGENT_CODE_TOO_LARGE);
        l.max_depth = depth;
    }

    if (values > 1) {
        l.max_values = values - 1;
        assert(agent_json_load(s, &l, &fault) == NULL);
        assert(fault.code == AGENT_CODE_TOO_LARGE);
    }
}

/* A new reference to the tree, NULL when there is none. */
static json_t *
check_load(agent_str_t s)
{
    json_t *want, *got;
    agent_fault_t fault;
    json_error_t error;

    memset(&fault, 0, sizeof(agent_fault_t));
    got = agent_json_load(s, &limits, &fault);

    if (got == NULL) {
        check_fault(&fault);

        if (fault.code == AGENT_CODE_TOO_LARGE) {
            return NULL;
        }
    }

    want = json_loadb(s.len != 0 ? s.data : "", s.len,
                      JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);

    if (want == NULL &&
        json_error_code(&error) == json_error_numeric_overflow) {
        want = load(s, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL);
    }

    assert(same(want, got));
    json_decref(want);

    if (got != NULL) {
        check_limits(s, got);
    }

    return got;
}

/* What has been repaired needs no repair; good JSON needs none. */
static void
check_repair(agent_str_t s)
{
    int nomem;
    agent_buf_t once, twice;
    json_t *raw, *one, *two, *lenient;

    agent_buf_init(&once, &agent_alloc_libc);
    agent_buf_init(&twice, &agent_alloc_libc);

    agent_json_sanitize(&once, s);
    agent_json_sanitize(&twice, agent_buf_str(&once));

    assert(agent_str_eq(agent_buf_str(&once), agent_buf_str(&twice)));
    assert(agent_utf8_valid(agent_buf_str(&once)) == once.len);

    raw = load(s, 0);
    one = load(agent_buf_str(&once), 0);
    two = load(agent_buf_str(&twice), 0);

    assert(same(one, two));
    assert(raw == NULL || agent_str_eq(s, agent_buf_str(&once)));

    lenient = agent_json_load_lenient(s, &agent_alloc_libc, &nomem);
    assert(!nomem);
    assert(one == NULL || same(one, lenient));

    json_decref(raw);
    json_decref(one);
    json_decref(two);
    json_decref(lenient);
    agent_buf_free(&once);
    agent_buf_free(&twice);
}

/* --- raw values ----------------------------------------------------------- */

/* Of any bytes: nothing outside them is given. */
static void
check_bounds(agent_str_t s, agent_str_t key)
{
    size_t n = 0;
    agent_str_t v;
    const char *end, *cursor = NULL, *before;

    if (s.len == 0) {
        return;
    }

    end = agent_json_skip(s.data, s.data + s.len);
    assert(end == NULL || (end > s.data && end <= s.data + s.len));

    if (agent_json_find(s, key, &v) == AGENT_OK) {
        assert(v.len != 0 && within(s, v));
        assert(agent_json_skip(v.data, v.data + v.len) == v.data + v.len);
    }

    for (;;) {
        before = cursor;

        if (agent_json_next(s, &cursor, &v) != AGENT_OK) {
            break;
        }

        assert(v.len != 0 && within(s, v));
        assert(cursor == v.data + v.len);
        assert(before == NULL || cursor > before);
        assert(++n <= s.len);
    }
}

/* Scalars are compared; of containers, what is in them. */
static void
check_values(agent_str_t raw, const json_t *tree, size_t *steps)
{
    size_t i = 0;
    const char *key, *cursor = NULL;
    agent_str_t v, name;
    json_t *child;

    assert(agent_json_skip(raw.data, raw.data + raw.len) == raw.data + raw.len);

    if (++*steps > MAX_WALK) {
        return;
    }

    if (json_is_object(tree)) {
        assert(raw.data[0] == '{' && raw.data[raw.len - 1] == '}');

        json_object_foreach((json_t *) (uintptr_t) tree, key, child)
        {
            if (i++ == MAX_FINDS) {
                break;
            }

            name.data = key;
            name.len = strlen(key);
            assert(agent_json_find(raw, name, &v) == AGENT_OK);
            assert(within(raw, v));
            check_values(v, child, steps);
        }

        return;
    }

    if (json_is_array(tree)) {
        assert(raw.data[0] == '[' && raw.data[raw.len - 1] == ']');

        json_array_foreach(tree, i, child)
        {
            assert(agent_json_next(raw, &cursor, &v) == AGENT_OK);
            assert(within(raw, v));
            check_values(v, child, steps);
        }

        assert(agent_json_next(raw, &cursor, &v) == AGENT_DONE);
        return;
    }

    child = load(raw, JSON_DECODE_ANY);

    if (!same(child, tree)) {
        json_decref(child); /* one integer is too large: all are reals */
        child = load(raw, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL);
    }

    assert(same(child, tree));
    json_decref(child);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t steps = 0;
    const char *behind;
    agent_str_t s = {(const char *) data, size}, key = {NULL, 0};
    json_t *tree;

    check_escaped(s);
    check_lines(s);
    check_escape(s);
    check_repair(s);

    key.data = s.data;
    key.len = size < 3 ? size : 3;
    check_bounds(s, AGENT_STR("a"));
    check_bounds(s, key);

    tree = check_load(s);

    if (tree != NULL) {
        behind = agent_json_skip(s.data, s.data + s.len);
        assert(behind != NULL);

        while (s.data[0] != '{' && s.data[0] != '[') {
            s.data++;
        }

        s.len = (size_t) (behind - s.data);
        check_values(s, tree, &steps);
        json_decref(tree);
    }

    return 0;
}
