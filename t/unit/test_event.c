/* agent_event.c and agent_delta.c: JSON and frames byte for byte, cursors. */

#include "agent_delta.h"
#include "agent_event.h"
#include "agent_json.h"
#include "tap.h"

#include <stdlib.h>

/* --- names ---------------------------------------------------------------- */

static void
test_names(void)
{
    static const char *const names[] = {
        "RUN_STARTED",
        "RUN_FINISHED",
        "RUN_ERROR",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "REASONING_ENCRYPTED_VALUE",
        "MESSAGES_SNAPSHOT",
        "STATE_SNAPSHOT",
        "CUSTOM",
        "RAW",
    };
    unsigned i, terminal = 0, delta = 0;
    agent_str_t name;

    ok(sizeof(names) / sizeof(names[0]) + 1 == AGENT_EV_COUNT,
       "the numbers of the types stay");

    for (i = 1; i < AGENT_EV_COUNT; i++) {
        name = agent_event_name((agent_event_type_t) i);
        is_str(name, names[i - 1], names[i - 1]);
        terminal += agent_event_is_terminal((agent_event_type_t) i) != 0;
        delta += agent_event_is_delta((agent_event_type_t) i) != 0;
    }

    ok(terminal == 2 && agent_event_is_terminal(AGENT_EV_RUN_FINISHED) &&
           agent_event_is_terminal(AGENT_EV_RUN_ERROR),
       "two types are terminal");
    ok(delta == 3 && agent_event_is_delta(AGENT_EV_TEXT_MESSAGE_CONTENT) &&
           agent_event_is_delta(AGENT_EV_TOOL_CALL_ARGS) &&
           agent_event_is_delta(AGENT_EV_REASONING_MESSAGE_CONTENT),
       "three types are deltas");

    name = agent_event_name((agent_event_type_t) 0);
    is_str(name, "", "type 0 has no name");
    name = agent_event_name((agent_event_type_t) 1000);
    is_str(name, "", "type 1000 has no name");
}

/* --- JSON and frames ------------------------------------------------------ */

typedef struct {
    const char *name;
    agent_event_t ev;
    const char *json;
} event_case_t;

static const event_case_t events[] = {
    {"text",
     {AGENT_EV_TEXT_MESSAGE_CONTENT, agent_str("m1"), agent_str("Hi")},
     "{\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"m1\","
     "\"delta\":\"Hi\"}"},
    {"empty text",
     {AGENT_EV_TEXT_MESSAGE_CONTENT, agent_str("m1"), {NULL, 0}},
     "{\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"m1\",\"delta\":\"\"}"},
    {"empty id",
     {AGENT_EV_TEXT_MESSAGE_CONTENT, {NULL, 0}, agent_str("x")},
     "{\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"\",\"delta\":\"x\"}"},
    {"args",
     {AGENT_EV_TOOL_CALL_ARGS, agent_str("c1"),
      agent_str("{\\\"q\\\":\\\"x\\\"}")},
     "{\"type\":\"TOOL_CALL_ARGS\",\"toolCallId\":\"c1\","
     "\"delta\":\"{\\\"q\\\":\\\"x\\\"}\"}"},
    {"reasoning",
     {AGENT_EV_REASONING_MESSAGE_CONTENT, agent_str("x1"),
      agent_str("\xe2\x80\xa6")},
     "{\"type\":\"REASONING_MESSAGE_CONTENT\",\"messageId\":\"x1\","
     "\"delta\":\"\xe2\x80\xa6\"}"},
    {"others are their body",
     {AGENT_EV_RUN_STARTED,
      {NULL, 0},
      agent_str("{\"type\":\"RUN_STARTED\",\"threadId\":\"t1\","
                "\"runId\":\"r1\",\"protocolVersion\":\"1.0\"}")},
     "{\"type\":\"RUN_STARTED\",\"threadId\":\"t1\",\"runId\":\"r1\","
     "\"protocolVersion\":\"1.0\"}"},
    {"even an empty one", {AGENT_EV_CUSTOM, {NULL, 0}, {NULL, 0}}, ""},
};

static void
test_frame(const event_case_t *c, uint64_t generation, uint64_t seq)
{
    size_t n, bound = agent_frame_agui_len(&c->ev);
    char *frame = malloc(bound), *end, want[1024], name[128];

    end = agent_frame_agui(frame, generation, seq, &c->ev);
    n = (size_t) (end - frame);

    snprintf(want, sizeof(want), "id: %llu-%llu\ndata: %s\n\n",
             (unsigned long long) generation, (unsigned long long) seq,
             c->json);
    snprintf(name, sizeof(name), "%s: frame", c->name);

    is_bytes(frame, n, want, strlen(want), name);
    ok(n <= bound, "%s: frame of %zu within %zu", c->name, n, bound);
    free(frame);
}

static void
test_events(void)
{
    size_t i;
    agent_buf_t b;
    json_t *parsed;

    for (i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        const event_case_t *c = &events[i];

        agent_buf_init(&b, &agent_alloc_libc);
        agent_event_json(&b, &c->ev);
        is_bytes(b.data, b.len, c->json, strlen(c->json), c->name);
        ok(agent_event_json_len(&c->ev) == strlen(c->json), "%s: length",
           c->name);

        parsed = b.len != 0 ? json_loadb(b.data, b.len, 0, NULL) : NULL;
        ok(b.len == 0 || parsed != NULL, "%s: is JSON", c->name);
        json_decref(parsed);

        agent_buf_add_char(&b, ',');
        agent_event_json(&b, &c->ev);
        ok(b.len == 2 * strlen(c->json) + 1, "%s: is appended", c->name);
        agent_buf_free(&b);

        test_frame(c, 0, 0);
        test_frame(c, 1, 4711);
        test_frame(c, UINT64_MAX, UINT64_MAX);
    }
}

static void *
no_memory(void *ctx, void *p, size_t size)
{
    (void) ctx;
    (void) p;
    (void) size;

    return NULL;
}

static void
test_memory(void)
{
    const agent_alloc_t none = {no_memory, NULL};
    agent_buf_t b;

    agent_buf_init(&b, &none);
    agent_event_json(&b, &events[0].ev);
    ok(!agent_buf_ok(&b) && b.len == 0, "no memory shows in the buffer");
    agent_buf_free(&b);
}

/* --- cursors -------------------------------------------------------------- */

typedef struct {
    agent_str_t in;
    int good;
    agent_cursor_t want;
} cursor_case_t;

static const cursor_case_t cursors[] = {
    {agent_str("0"), 1, {0, 0, 1}},
    {agent_str("1"), 1, {0, 1, 1}},
    {agent_str("1-2"), 1, {1, 2, 0}},
    {agent_str("0-0"), 1, {0, 0, 0}},
    {agent_str("10-100"), 1, {10, 100, 0}},
    {agent_str("18446744073709551615"), 1, {0, UINT64_MAX, 1}},
    {agent_str("18446744073709551615-18446744073709551615"),
     1,
     {UINT64_MAX, UINT64_MAX, 0}},
    {agent_str(""), 0, {0, 0, 0}},
    {agent_str("01"), 0, {0, 0, 0}},
    {agent_str("00"), 0, {0, 0, 0}},
    {agent_str("0-01"), 0, {0, 0, 0}},
    {agent_str("01-1"), 0, {0, 0, 0}},
    {agent_str("-1"), 0, {0, 0, 0}},
    {agent_str("1-"), 0, {0, 0, 0}},
    {agent_str("-"), 0, {0, 0, 0}},
    {agent_str("1--1"), 0, {0, 0, 0}},
    {agent_str("1-2-3"), 0, {0, 0, 0}},
    {agent_str("1-2-"), 0, {0, 0, 0}},
    {agent_str("+1"), 0, {0, 0, 0}},
    {agent_str("1-+2"), 0, {0, 0, 0}},
    {agent_str(" 1"), 0, {0, 0, 0}},
    {agent_str("1 "), 0, {0, 0, 0}},
    {agent_str("1 -2"), 0, {0, 0, 0}},
    {agent_str("1- 2"), 0, {0, 0, 0}},
    {agent_str("1\0"), 0, {0, 0, 0}},
    {agent_str("\0"), 0, {0, 0, 0}},
    {agent_str("1-2\0"), 0, {0, 0, 0}},
    {agent_str("1\n"), 0, {0, 0, 0}},
    {agent_str("x"), 0, {0, 0, 0}},
    {agent_str("1x"), 0, {0, 0, 0}},
    {agent_str("0x1"), 0, {0, 0, 0}},
    {agent_str("1.5"), 0, {0, 0, 0}},
    {agent_str("1e3"), 0, {0, 0, 0}},
    {agent_str("\xd9\xa1"), 0, {0, 0, 0}}, /* a digit, but not ASCII */
    {agent_str("1:2"), 0, {0, 0, 0}},
    {agent_str("/"), 0, {0, 0, 0}},
    {agent_str("18446744073709551616"), 0, {0, 0, 0}},
    {agent_str("18446744073709551620"), 0, {0, 0, 0}},
    {agent_str("99999999999999999999"), 0, {0, 0, 0}},
    {agent_str("100000000000000000000"), 0, {0, 0, 0}},
    {agent_str("18446744073709551616-0"), 0, {0, 0, 0}},
    {agent_str("0-18446744073709551616"), 0, {0, 0, 0}},
};

static void
test_cursor(const cursor_case_t *c)
{
    /* a block of exactly its length: ASan sees a byte too far */

    char *copy = malloc(c->in.len ? c->in.len : 1);
    agent_str_t in = {copy, c->in.len};
    agent_cursor_t got = {7, 7, 7};
    agent_rc_t rc;

    memcpy(copy, c->in.data, c->in.len);
    rc = agent_cursor_parse(in, &got);

    if (c->good) {
        ok(rc == AGENT_OK && got.generation == c->want.generation &&
               got.seq == c->want.seq && got.bare == c->want.bare,
           "cursor \"%s\"", c->in.data);
    } else {
        ok(rc == AGENT_INVALID && got.seq == 7, "no cursor, %zu bytes: \"%s\"",
           c->in.len,
           c->in.data[0] == '1' && c->in.data[1] == '\n' ? "1, LF"
                                                         : c->in.data);
    }

    free(copy);
}

static void
test_cursors(void)
{
    size_t i, n;
    char *long_one, buf[AGENT_CURSOR_MAX];
    agent_str_t in = {NULL, 0};
    agent_cursor_t c;

    for (i = 0; i < sizeof(cursors) / sizeof(cursors[0]); i++) {
        test_cursor(&cursors[i]);
    }

    ok(agent_cursor_parse(in, &c) == AGENT_INVALID, "no bytes at all");

    long_one = malloc(65536);
    in.data = long_one;
    in.len = 65536;
    memset(long_one, '1', in.len);
    ok(agent_cursor_parse(in, &c) == AGENT_INVALID, "64 KB of digits");
    memset(long_one, '0', in.len);
    ok(agent_cursor_parse(in, &c) == AGENT_INVALID, "64 KB of zeros");
    free(long_one);

    for (i = 0; i < 64; i++) {
        uint64_t g = UINT64_MAX >> i, s = UINT64_C(1) << i;

        n = agent_cursor_print(buf, g, s);
        in.data = buf;
        in.len = n;

        if (n > AGENT_CURSOR_MAX || agent_cursor_parse(in, &c) != AGENT_OK ||
            c.bare || c.generation != g || c.seq != s) {
            break;
        }
    }

    ok(i == 64, "what is printed can be parsed");
    ok(agent_cursor_print(buf, UINT64_MAX, UINT64_MAX) == AGENT_CURSOR_MAX,
       "the longest cursor fits");
}

/* --- deltas --------------------------------------------------------------- */

static void
test_usage(void)
{
    size_t i;
    agent_usage_t u;
    int64_t *const all[] = {&u.input,     &u.output, &u.total,
                            &u.reasoning, &u.cached, &u.cache_write};

    agent_usage_init(&u);
    ok(!agent_usage_given(&u), "no usage");

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        agent_usage_init(&u);
        *all[i] = 0;
        ok(agent_usage_given(&u), "usage member %zu, even 0", i);
    }
}

static void
test_finish(void)
{
    static const struct {
        agent_finish_t finish;
        const char *name;
    } cases[] = {
        {AGENT_FINISH_UNKNOWN, ""},
        {AGENT_FINISH_STOP, "stop"},
        {AGENT_FINISH_LENGTH, "length"},
        {AGENT_FINISH_TOOL_CALLS, "tool_calls"},
        {AGENT_FINISH_CONTENT_FILTER, "content_filter"},
        {(agent_finish_t) 99, ""},
    };
    size_t i;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ok(strcmp(agent_finish_name(cases[i].finish), cases[i].name) == 0,
           "finish %d is \"%s\"", cases[i].finish, cases[i].name);
    }
}

int
main(void)
{
    test_names();
    test_events();
    test_memory();
    test_cursors();
    test_usage();
    test_finish();

    return done_testing();
}
