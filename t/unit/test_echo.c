/* The built-in model "echo", read back by the decoder of its codec. */

#include "agent_echo.h"
#include "collect.h"
#include "tap.h"

#include <time.h>

/* Its whole answer, n tokens at a time. */
static agent_rc_t
echo(collect_t *c, const char *body, unsigned n, unsigned *steps)
{
    agent_rc_t rc;
    agent_buf_t b;
    agent_echo_t *e;
    agent_answer_t *a;
    collect_head_t head;
    agent_str_t s = {body, strlen(body)};

    memset(&head, 0, sizeof(collect_head_t));
    collect_init(c);
    *steps = 0;

    e = agent_echo_create(s, &agent_alloc_libc);
    if (e == NULL) {
        return AGENT_INVALID;
    }

    a = collect_open(c, &head);
    agent_buf_init(&b, &agent_alloc_libc);

    do {
        b.len = 0;
        rc = agent_echo_next(e, n, &b);
        (*steps)++;

        if (agent_answer_body(a, b.data, b.len) !=
            (rc == AGENT_DONE ? AGENT_DONE : AGENT_OK)) {
            c->nwrong++;
        }
    } while (rc == AGENT_OK);

    b.len = 0;
    c->nwrong += agent_echo_next(e, n, &b) != AGENT_DONE || b.len != 0;

    agent_buf_free(&b);
    agent_answer_destroy(a);
    agent_echo_destroy(e);

    return rc;
}

#define BODY(messages) "{\"model\":\"echo\",\"messages\":[" messages "]}"
#define USER(text)     "{\"role\":\"user\",\"content\":\"" text "\"}"

static const struct {
    const char *body;
    const char *text;
} texts[] = {
    {BODY(USER("Hello there")), "You said: Hello there"},
    {BODY(USER(" a  b\\n\\tc \\n ")), "You said:  a  b\n\tc \n "},
    {BODY(USER("")), "You said: "},
    {BODY(USER("\\\"q\\\" \\u0001 \xe4\xbd\xa0\xe5\xa5\xbd")),
     "You said: \"q\" \x01 \xe4\xbd\xa0\xe5\xa5\xbd"},
    {BODY(USER("\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0"
               "\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0"
               "\xe4\xbd\xa0\xe4\xbd\xa0")),
     "You said: \xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0"
     "\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0\xe4\xbd\xa0"
     "\xe4\xbd\xa0"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"a\"},{\"type\":\"image_url\"},{\"type\":\"text\",\"text\":"
     "\"b\"}]}]}",
     "You said: ab"},
    {BODY("{\"role\":\"system\",\"content\":\"x\"}," USER(
         "a") ","
              "{\"role\":\"assistant\",\"content\":\"b\"}," USER("c")),
     "You said: c"},

    {BODY(USER("What is my name?")), "I do not know your name."},
    {BODY(USER("My name is Sam.") "," USER("What is my name?")),
     "Your name is Sam."},
    {BODY(USER("Hi, MY NAME IS Ann Lee, hello!") ","
                                                 "{\"role\":\"assistant\","
                                                 "\"content\":\"My name is "
                                                 "Bot.\"}," USER(
                                                     "so, what's my name")),
     "Your name is Ann Lee."},
    {BODY(USER("my name is Sam") "," USER("My name is Max!") "," USER(
         "what is my name?")),
     "Your name is Max."},
    {BODY(USER("my name is .") "," USER("what is my name?")),
     "I do not know your name."},

    {BODY("{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":"
          "{\"name\":\"f\"}},{\"id\":\"d\",\"function\":{\"name\":\"g\"}}]},"
          "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"18 C\"},"
          "{\"role\":\"tool\",\"tool_call_id\":\"d\",\"content\":\"noon\"}"),
     "f says: 18 C g says: noon"},
};

static void
test_texts(void)
{
    size_t i;
    unsigned n, steps;
    collect_t c;
    int good;

    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (n = 1, good = 1; n < 4; n++) {
            good = good && echo(&c, texts[i].body, n, &steps) == AGENT_DONE &&
                   c.nwrong == 0 && c.nfinish == 1 &&
                   c.finish == AGENT_FINISH_STOP && c.ncalls == 0 &&
                   c.text.len == strlen(texts[i].text) &&
                   memcmp(c.text.data, texts[i].text, c.text.len) == 0 &&
                   steps == (unsigned) (c.usage.output + n - 1) / n &&
                   c.usage.total == c.usage.input + c.usage.output;

            if (!good) {
                collect_print(&c);
            }

            collect_free(&c);
        }

        ok(good, "%s",
           texts[i].text[0] != 'Y' || strlen(texts[i].text) > 30
               ? "text"
               : texts[i].body + 28);
    }

    (void) echo(&c, BODY(USER("one two three") "," USER("four five")), 1,
                &steps);
    ok(c.usage.input == 5 && c.usage.output == 4, "usage counts words");
    collect_free(&c);
}

#define TOOL(name, parameters)                                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name                    \
    "\",\"parameters\":" parameters "}}"
#define ASK(text, tools) "{\"messages\":[" USER(text) "],\"tools\":[" tools "]}"
#define WEATHER                                                                \
    TOOL("get_weather",                                                        \
         "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}" \
         ",\"unit\":{\"type\":\"string\",\"enum\":[\"C\",\"F\"]},\"days\":{"   \
         "\"type\":\"integer\",\"minimum\":2}},\"required\":[\"city\","        \
         "\"unit\",\"days\"]}")

static const struct {
    const char *body;
    unsigned ncalls;
    const char *name;
    const char *args; /* of the first call */
} calls[] = {
    {ASK("call get_weather for Berlin, please", WEATHER), 1, "get_weather",
     "{\"city\": \"Berlin\", \"unit\": \"C\", \"days\": 2}"},
    {ASK("get_weather", WEATHER), 1, "get_weather",
     "{\"city\": \"example\", \"unit\": \"C\", \"days\": 2}"},
    {ASK("get_weather2 forget_weather", WEATHER), 0, NULL, NULL},
    {ASK("call f and g", TOOL("f", "{}") "," TOOL("g", "{}")), 2, "f", "{}"},
    {ASK("call f", TOOL("f", "null")), 1, "f", "{}"},
    {ASK("call f",
         TOOL("f",
              "{\"properties\":{\"a\":{\"type\":[\"null\",\"string\"]},"
              "\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":\"array\"},"
              "\"d\":{\"type\":\"object\",\"properties\":{\"e\":{\"type\":"
              "\"number\"}},\"required\":[\"e\"]},\"f\":{\"const\":{\"x\":1}},"
              "\"g\":{\"default\":null}},\"required\":[\"a\",\"b\",\"c\",\"d\","
              "\"f\",\"g\",\"h\",7]}")),
     1, "f",
     "{\"a\": null, \"b\": true, \"c\": [], \"d\": {\"e\": 1}, "
     "\"f\": {\"x\":1}, \"g\": null, \"h\": \"example\"}"},
};

static void
test_calls(void)
{
    size_t i;
    unsigned n, steps;
    collect_t c;
    json_t *args;
    int good;

    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (n = 1, good = 1; n < 4; n++) {
            good = good && echo(&c, calls[i].body, n, &steps) == AGENT_DONE &&
                   c.nwrong == 0 && c.nfinish == 1 &&
                   c.ncalls == calls[i].ncalls;

            if (good && c.ncalls != 0) {
                args = json_loadb(c.calls[0].args.data, c.calls[0].args.len, 0,
                                  NULL);
                good = json_is_object(args) && c.text.len == 0 &&
                       c.finish == AGENT_FINISH_TOOL_CALLS &&
                       c.calls[0].args.len == strlen(calls[i].args) &&
                       memcmp(c.calls[0].args.data, calls[i].args,
                              c.calls[0].args.len) == 0 &&
                       c.calls[0].name.len == strlen(calls[i].name) &&
                       memcmp(c.calls[0].name.data, calls[i].name,
                              c.calls[0].name.len) == 0;
                json_decref(args);
            }

            if (!good) {
                collect_print(&c);
            }

            collect_free(&c);
        }

        ok(good, "calls %zu", i);
    }
}

static void
test_ids(void)
{
    unsigned steps;
    collect_t one, two;

    (void) echo(&one, ASK("call f", TOOL("f", "{}")), 1, &steps);
    (void) echo(&two,
                "{\"messages\":[" USER("a") "," USER(
                    "call f") "],\"tools\":[" TOOL("f", "{}") "]}",
                1, &steps);

    ok(one.ncalls == 1 && two.ncalls == 1 &&
           !collect_same_buf(&one.calls[0].id, &two.calls[0].id),
       "ids of calls differ within a conversation");

    collect_free(&one);
    collect_free(&two);
}

static const struct {
    const char *value;
    unsigned rate;
} rates[] = {
    {"null", 50},         {"0", 0},     {"7", 7},
    {"0.5", 1},           {"20.0", 20}, {"-1", 50},
    {"\"9\"", 50},        {"1e9", 50},  {"true", 50},
    {"1000000", 1000000},
};

static void
test_rates(void)
{
    size_t i;
    char body[200];
    agent_str_t s;
    agent_echo_t *e;

    for (i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        snprintf(body, sizeof(body),
                 "{\"messages\":[" USER("a") "],\"tokens_per_second\":%s}",
                 rates[i].value);
        s.data = body;
        s.len = strlen(body);

        e = agent_echo_create(s, &agent_alloc_libc);
        ok(e != NULL && agent_echo_rate(e) == rates[i].rate,
           "tokens_per_second %s", rates[i].value);
        agent_echo_destroy(e);
    }
}

static void
test_bad_bodies(void)
{
    static const char *const bodies[] = {
        "", "{", "[]", "7", "{}", "{\"messages\":[]}", "{\"messages\":{}}",
    };
    size_t i;
    agent_str_t s;
    unsigned steps;
    collect_t c;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        s.data = bodies[i];
        s.len = strlen(bodies[i]);
        ok(agent_echo_create(s, &agent_alloc_libc) == NULL, "no request: %s",
           bodies[i]);
    }

    ok(echo(&c,
            "{\"messages\":[7,{\"role\":1,\"content\":{}}],\"tools\":[7,"
            "{\"function\":{}}],\"model\":7}",
            1, &steps) == AGENT_DONE &&
           c.nfinish == 1 && c.nwrong == 0,
       "a request of odd members");
    collect_free(&c);

    agent_echo_destroy(NULL);
}

static void
test_bytes(void)
{
    agent_buf_t b;
    agent_echo_t *e;

    agent_buf_init(&b, &agent_alloc_libc);
    e = agent_echo_create(AGENT_STR(BODY(USER("a"))), &agent_alloc_libc);

    ok(agent_echo_next(e, 1, &b) == AGENT_OK, "more to come");
    is_str(agent_buf_str(&b),
           "data: {\"id\":\"echo\",\"object\":\"chat.completion.chunk\","
           "\"created\":0,\"model\":\"echo\",\"choices\":[{\"index\":0,"
           "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
           "\"finish_reason\":null}]}\n\n"
           "data: {\"id\":\"echo\",\"object\":\"chat.completion.chunk\","
           "\"created\":0,\"model\":\"echo\",\"choices\":[{\"index\":0,"
           "\"delta\":{\"content\":\"You\"},\"finish_reason\":null}]}\n\n",
           "the first token");

    b.len = 0;
    ok(agent_echo_next(e, 0, &b) == AGENT_OK && b.len == 0, "no token");
    ok(agent_echo_next(e, 100, &b) == AGENT_DONE, "the rest");
    ok(b.len > 14 && memcmp(b.data + b.len - 14, "data: [DONE]\n\n", 14) == 0,
       "[DONE]");

    agent_echo_destroy(e);
    agent_buf_free(&b);
}

/* What an answer costs is no product of what was sent. */
static void
test_cost(void)
{
    size_t i, k, n = 10000;
    clock_t start = clock();
    agent_buf_t b;
    agent_echo_t *e;

    /* eight levels that require a member twenty times: 20^8 values */

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_lit(
        &b, "{\"messages\":[" USER(
                "call f") "],\"tools\":[{"
                          "\"function\":{\"name\":\"f\",\"parameters\":");

    for (i = 0; i < 8; i++) {
        agent_buf_add_lit(&b, "{\"required\":[\"a\"");

        for (k = 1; k < 20; k++) {
            agent_buf_add_lit(&b, ",\"a\"");
        }

        agent_buf_add_lit(&b, "],\"properties\":{\"a\":");
    }

    agent_buf_add_lit(&b, "7}}}}}}}}}}}}}}}}}}]}");

    e = agent_echo_create(agent_buf_str(&b), &agent_alloc_libc);
    agent_buf_reset(&b);
    k = e != NULL && agent_echo_next(e, 1000000, &b) == AGENT_DONE;
    ok(k == 1 && b.len > 65536 && b.len < ((size_t) 10 << 20),
       "arguments that would not end: %zu bytes", b.len);
    agent_echo_destroy(e);

    /* many results, each of another call */

    agent_buf_reset(&b);
    agent_buf_add_lit(&b, "{\"messages\":[{\"tool_calls\":[{}");

    for (i = 0; i < n; i++) {
        agent_buf_add_lit(&b, ",{\"id\":\"");
        agent_buf_add_uint(&b, i);
        agent_buf_add_lit(&b, "\",\"function\":{\"name\":\"f\"}}");
    }

    agent_buf_add_lit(&b, "]}");

    for (i = 0; i < n; i++) {
        agent_buf_add_lit(&b, ",{\"role\":\"tool\",\"tool_call_id\":\"");
        agent_buf_add_uint(&b, i);
        agent_buf_add_lit(&b, "\"}");
    }

    agent_buf_add_lit(&b, "]}");

    e = agent_echo_create(agent_buf_str(&b), &agent_alloc_libc);
    ok(e != NULL, "%zu results", n);
    agent_echo_destroy(e);

    /* tools that a long question may name */

    agent_buf_reset(&b);
    agent_buf_add_lit(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"");

    for (i = 0; i < 50 * n; i++) {
        agent_buf_add_char(&b, 'f');
    }

    agent_buf_add_lit(&b, "\"}],\"tools\":[{}");

    for (i = 0; i < n; i++) {
        agent_buf_add_lit(&b, ",{\"function\":{\"name\":\"ffffffg\"}}");
    }

    agent_buf_add_lit(&b, "]}");

    e = agent_echo_create(agent_buf_str(&b), &agent_alloc_libc);
    ok(e != NULL, "%zu tools and a long question", n);
    agent_echo_destroy(e);

    agent_buf_free(&b);

    ok(clock() - start < 10 * CLOCKS_PER_SEC, "in %.2f s",
       (double) (clock() - start) / CLOCKS_PER_SEC);
}

static unsigned json_calls, json_fail_at;

static void *
failing_json_malloc(size_t size)
{
    return ++json_calls == json_fail_at ? NULL : malloc(size);
}

static void
test_nomem(void)
{
    static const char body[] = ASK("call get_weather for Berlin", WEATHER);
    agent_str_t s = {body, sizeof(body) - 1};
    failing_t f;
    agent_alloc_t alloc = {failing_resize, &f};
    agent_buf_t b;
    agent_echo_t *e;
    agent_rc_t rc = AGENT_NOMEM;
    unsigned i;
    int good = 1;

    for (i = 1; i < 1000 && rc != AGENT_DONE; i++) {
        memset(&f, 0, sizeof(failing_t));
        f.fail_at = i;

        e = agent_echo_create(s, &alloc);

        if (e != NULL) {
            agent_buf_init(&b, &alloc);
            rc = agent_echo_next(e, 1000, &b);
            agent_buf_free(&b);
            good = good && (rc == AGENT_NOMEM || rc == AGENT_DONE);
        }

        agent_echo_destroy(e);
        good = good && f.live == 0;
    }

    ok(good && rc == AGENT_DONE && i > 5, "allocations fail");

    for (i = 1, good = 1; i < 10000; i++) {
        json_calls = 0;
        json_fail_at = i;
        json_set_alloc_funcs(failing_json_malloc, free);

        e = agent_echo_create(s, &agent_alloc_libc);

        if (e != NULL) {
            agent_buf_init(&b, &agent_alloc_libc);
            good = good && agent_echo_next(e, 1000, &b) == AGENT_DONE;
            agent_buf_free(&b);
        }

        agent_echo_destroy(e);
        json_set_alloc_funcs(malloc, free);

        if (json_calls < i) {
            break;
        }
    }

    ok(good, "allocations of jansson fail");
}

int
main(void)
{
    test_texts();
    test_calls();
    test_ids();
    test_rates();
    test_bad_bodies();
    test_bytes();
    test_cost();
    test_nomem();

    return done_testing();
}
