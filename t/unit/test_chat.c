/* The chat-completions decoder and its scanner, on streams of our own. */

#include "agent_chat.h"
#include "agent_chat_scan.h"
#include "collect.h"
#include "tap.h"

#include <dirent.h>
#include <time.h>

#define MUTATIONS 250000

/* --- small streams -------------------------------------------------------- */

/* A stream is given as its data lines; this makes events of them. */
static void
stream(agent_buf_t *b, const char *lines)
{
    size_t n;

    agent_buf_init(b, &agent_alloc_libc);

    while (*lines != '\0') {
        n = strcspn(lines, "\n");

        if (n != 0 && strncmp(lines, "event:", 6) != 0 &&
            strncmp(lines, "error:", 6) != 0) {
            agent_buf_add_lit(b, "data: ");
        }

        agent_buf_add(b, lines, n);
        agent_buf_add_char(b, '\n');

        if (strncmp(lines, "event:", 6) != 0) {
            agent_buf_add_char(b, '\n');
        }

        lines += n;
        lines += *lines == '\n';
    }
}

/* What was told, as one line. */
static void
tell(const collect_t *c, agent_buf_t *b)
{
    unsigned i;

    agent_buf_init(b, &agent_alloc_libc);

    if (c->reasoning.len != 0) {
        agent_buf_add_lit(b, "think(");
        agent_buf_add_str(b, agent_buf_str(&c->reasoning));
        agent_buf_add_lit(b, ") ");
    }

    if (c->text.len != 0) {
        agent_buf_add_lit(b, "say(");
        agent_buf_add_str(b, agent_buf_str(&c->text));
        agent_buf_add_lit(b, ") ");
    }

    if (c->refusal.len != 0) {
        agent_buf_add_lit(b, "refuse(");
        agent_buf_add_str(b, agent_buf_str(&c->refusal));
        agent_buf_add_lit(b, ") ");
    }

    for (i = 0; i < c->ncalls; i++) {
        agent_buf_add_str(b, agent_buf_str(&c->calls[i].id));
        agent_buf_add_char(b, ':');
        agent_buf_add_str(b, agent_buf_str(&c->calls[i].name));
        agent_buf_add_char(b, '(');
        agent_buf_add_str(b, agent_buf_str(&c->calls[i].args));
        agent_buf_add_lit(b, ") ");
    }

    if (c->has_usage) {
        agent_buf_add_lit(b, "usage ");
        agent_buf_add_uint(b, (uint64_t) c->usage.input);
        agent_buf_add_char(b, '+');
        agent_buf_add_uint(b, (uint64_t) c->usage.output);
        agent_buf_add_char(b, '=');
        agent_buf_add_uint(b, (uint64_t) c->usage.total);
        agent_buf_add_char(b, ' ');
    }

    if (c->nerror != 0) {
        agent_buf_add(b, agent_code_name(c->fault.code),
                      strlen(agent_code_name(c->fault.code)));
        agent_buf_add_lit(b, ": ");
        agent_buf_add(b, c->fault.message, strlen(c->fault.message));
    } else {
        agent_buf_add_lit(b, "finish ");
        agent_buf_add(b, agent_finish_name(c->finish),
                      strlen(agent_finish_name(c->finish)));
    }
}

#define DELTA(delta) "{\"choices\":[{\"index\":0,\"delta\":{" delta "}}]}\n"
#define CALLS(calls) DELTA("\"tool_calls\":[" calls "]")
#define STOP(reason)                                                           \
    "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"" reason      \
    "\"}]}\n"
#define DONE "[DONE]\n"

static const struct {
    const char *name;
    const char *lines;
    const char *want;
    const char *order; /* NULL: not looked at */
} cases[] = {

    /* text */

    {"text",
     DELTA("\"content\":\"a\"") DELTA("\"content\":\"b\"") STOP("stop") DONE,
     "say(ab) finish stop", "tF"},
    {"text with escapes",
     DELTA("\"content\":\"\\u00e9\\n\\\"\\ud83d\\ude00\"") STOP("stop") DONE,
     "say(\xc3\xa9\n\"\xf0\x9f\x98\x80) finish stop", NULL},
    {"NUL in text", DELTA("\"content\":\"a\\u0000\"") STOP("stop") DONE, NULL,
     NULL},
    {"content of a finished chunk",
     "{\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":"
     "\"length\"}]}\n",
     "say(a) finish length", "tF"},
    {"text of legacy completions",
     "{\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":null}]}\n"
     "{\"choices\":[{\"index\":0,\"text\":\"b\",\"finish_reason\":\"stop\"}]}"
     "\n" DONE,
     "say(ab) finish stop", NULL},
    {"a message beside no delta is cumulative",
     "{\"choices\":[{\"message\":{\"content\":\"ab\"},\"finish_reason\":"
     "\"stop\"}]}\n" DONE,
     "finish stop", NULL},
    {"parts",
     DELTA("\"content\":[\"a\",{\"type\":\"text\",\"text\":\"b\"},"
           "{\"type\":\"reference\",\"reference_ids\":[1]},7,[\"x\"]]")
         DELTA("\"content\":{\"type\":\"text\",\"text\":\"c\"}") STOP("stop"),
     "say(abc) finish stop", NULL},
    {"thinking parts",
     DELTA("\"content\":[{\"type\":\"thinking\",\"thinking\":\"a\"},"
           "{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\","
           "\"text\":\"b\"}]},{\"type\":\"text\",\"text\":\"c\"}]")
         STOP("stop"),
     "think(ab) say(c) finish stop", "rtF"},
    {"reasoning under each name",
     DELTA("\"reasoning_content\":\"a\"") DELTA("\"reasoning\":\"b\"")
         DELTA("\"reasoning_text\":\"c\"")
             DELTA("\"reasoning\":\"d\",\"reasoning_content\":\"d\"") DELTA(
                 "\"reasoning\":\"e\",\"reasoning_content\":\"\"") STOP("stop"),
     "think(abcde) finish stop", NULL},
    {"reasoning and text in one delta",
     DELTA("\"content\":\"b\",\"reasoning\":\"a\"") STOP("stop"),
     "think(a) say(b) finish stop", "rtF"},
    {"refusal", DELTA("\"refusal\":\"no\"") STOP("stop") DONE,
     "refuse(no) finish stop", "xF"},
    {"raw control characters and invalid UTF-8",
     DELTA("\"content\":\"a\tb\xff\"") STOP("stop"),
     "say(a\tb\xef\xbf\xbd) finish stop", NULL},

    /* choices */

    {"the lowest choice",
     "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}},"
     "{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n"
     "{\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":"
     "\"length\"}]}\n" STOP("stop"),
     "say(a) finish stop", NULL},
    {"a lower choice comes before anything was said",
     "{\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\"}}]}\n" DELTA(
         "\"content\":\"a\"") "{\"choices\":[{\"index\":1,\"delta\":{"
                              "\"content\":\"x\"}}]}\n" STOP("stop"),
     "say(a) finish stop", NULL},
    {"only choice 1",
     "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"}}]}\n"
     "{\"choices\":[{\"index\":1,\"delta\":{},\"finish_reason\":\"stop\"}]}\n",
     "say(a) finish stop", NULL},

    /* tool calls */

    {"fragments",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"\"}}")
         CALLS("{\"index\":0,\"function\":{\"arguments\":\"{\\\"x\\\"\"}}")
             CALLS("{\"index\":0,\"function\":{\"arguments\":\":1}\"}}")
                 STOP("tool_calls") DONE,
     "a:f({\"x\":1}) finish tool_calls", "SaF"},
    {"tools decide, not the reason",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"{}\"}}") STOP("stop") DONE,
     "a:f({}) finish tool_calls", NULL},
    {"no reason, only the end",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\"}}") DONE,
     "a:f() finish tool_calls", "SF"},
    {"length stays length",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"{\"}}") STOP("length") DONE,
     "a:f({) finish length", NULL},
    {"tool_calls without calls is stop", STOP("tool_calls") DONE, "finish stop",
     NULL},
    {"19 index missing",
     CALLS("{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"1\"}}")
         CALLS("{\"id\":\"b\",\"function\":{\"name\":\"g\",\"arguments\":"
               "\"2\"}}")
             CALLS("{\"id\":\"a\",\"function\":{\"arguments\":\"3\"}}")
                 CALLS("{\"function\":{\"arguments\":\"4\"}}") STOP("stop"),
     "a:f(13) b:g(24) finish tool_calls", NULL},
    {"19 index and id missing",
     CALLS("{\"function\":{\"name\":\"f\",\"arguments\":\"1\"}},"
           "{\"function\":{\"name\":\"g\",\"arguments\":\"2\"}}") STOP("stop"),
     "call_seed_0:f(1) call_seed_1:g(2) finish tool_calls", NULL},
    {"20 every index 0",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"1\"}}")
         CALLS("{\"index\":0,\"id\":\"b\",\"function\":{\"name\":\"f\","
               "\"arguments\":\"2\"}}")
             CALLS("{\"index\":0,\"function\":{\"arguments\":\"3\"}}")
                 STOP("stop"),
     "a:f(1) b:f(23) finish tool_calls", NULL},
    {"20 every index 0, no ids",
     CALLS("{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"1\"}},"
           "{\"index\":0,\"function\":{\"name\":\"g\",\"arguments\":\"2\"}}")
         STOP("stop"),
     "call_seed_0:f(1) call_seed_1:g(2) finish tool_calls", NULL},
    {"21 one index several times in a chunk",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\"}},"
           "{\"index\":0,\"function\":{\"arguments\":\"1\"}},"
           "{\"index\":0,\"function\":{\"arguments\":\"2\"}}") STOP("stop"),
     "a:f(12) finish tool_calls", NULL},
    {"22 id empty",
     CALLS("{\"index\":0,\"id\":\"\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"1\"}}")
         CALLS("{\"index\":0,\"id\":\"\",\"function\":{\"arguments\":\"2\"}}")
             STOP("stop"),
     "call_seed_0:f(12) finish tool_calls", NULL},
    {"23 id null on continuation",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\"}}")
         CALLS("{\"index\":0,\"id\":null,\"function\":{\"name\":null,"
               "\"arguments\":\"1\"}}") STOP("stop"),
     "a:f(1) finish tool_calls", NULL},
    {"23 id later",
     CALLS("{\"index\":0,\"id\":null,\"function\":{\"name\":\"f\"}}")
         CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"arguments\":"
               "\"1\"}}") STOP("stop"),
     "a:f(1) finish tool_calls", NULL},
    {"23 id too late stays minted",
     CALLS("{\"index\":0,\"function\":{\"name\":\"f\",\"arguments\":\"1\"}}")
         CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
               "\"arguments\":\"2\"}}") STOP("stop"),
     "call_seed_0:f(12) finish tool_calls", NULL},
    {"24 name and id repeated",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"\"}}")
         CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
               "\"arguments\":\"1\"}}")
             CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
                   "\"arguments\":\"2\"}}") STOP("stop"),
     "a:f(12) finish tool_calls", NULL},
    {"24 name in pieces",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"get_\"}}")
         CALLS("{\"index\":0,\"function\":{\"name\":\"time\"}}")
             CALLS("{\"index\":0,\"function\":{\"name\":\"\",\"arguments\":"
                   "\"1\"}}") STOP("stop"),
     "a:get_time(1) finish tool_calls", NULL},
    {"24 name behind the arguments",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"arguments\":\"1\"}}")
         CALLS("{\"index\":0,\"function\":{\"name\":\"f\"}}") STOP("stop"),
     "a:f(1) finish tool_calls", NULL},
    {"no name at all is no call",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"arguments\":\"1\"}}")
         STOP("tool_calls"),
     "finish stop", NULL},
    {"25 26 arguments empty, null, object",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":null}},"
           "{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"g\","
           "\"arguments\":{\"lat\": 48.8575, \"s\":\"\\u00e9\"}}},"
           "{\"index\":2,\"id\":\"c\",\"function\":{\"name\":\"h\","
           "\"arguments\":{\"x\":0.30000000000000004}}},"
           "{\"index\":3,\"id\":\"d\",\"function\":{\"name\":\"i\","
           "\"arguments\":\"\"}}") STOP("stop"),
     "a:f() b:g({\"lat\":48.8575,\"s\":\"\xc3\xa9\"}) "
     "c:h({\"x\":0.30000000000000004}) d:i() finish tool_calls",
     NULL},
    {"27 indices as they like",
     CALLS("{\"index\":-7,\"id\":\"a\",\"function\":{\"name\":\"f\"}},"
           "{\"index\":1000000000000,\"id\":\"b\",\"function\":{\"name\":"
           "\"g\"}},{\"index\":-7,\"function\":{\"arguments\":\"1\"}},"
           "{\"index\":1.0,\"id\":\"c\",\"function\":{\"name\":\"h\"}}")
         STOP("stop"),
     "a:f(1) b:g() c:h() finish tool_calls", NULL},
    {"an id twice",
     CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\","
           "\"arguments\":\"1\"}},{\"index\":1,\"id\":\"a\",\"function\":{"
           "\"name\":\"f\",\"arguments\":\"2\"}}") STOP("stop"),
     "a:f(1) call_seed_1:f(2) finish tool_calls", NULL},
    {"text, call, text",
     DELTA("\"content\":\"x\"")
         CALLS("{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\"}}")
             DELTA("\"content\":\"y\"") STOP("stop"),
     "say(xy) a:f() finish tool_calls", "tStF"},
    {"function_call",
     DELTA("\"function_call\":{\"name\":\"f\",\"arguments\":\"\"}")
         DELTA("\"function_call\":{\"arguments\":\"1\"}") STOP("function_call"),
     "call_seed_0:f(1) finish tool_calls", NULL},

    /* usage */

    {"the last usage counts",
     "{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,"
     "\"total_tokens\":2}}\n" STOP(
         "stop") "{\"choices\":[],\"usage\":{\"prompt_tokens\":1.0,"
                 "\"completion_tokens\":"
                 "2e0,\"total_tokens\":3}}\n" DONE,
     "usage 1+2=3 finish stop", NULL},
    {"usage of x_groq",
     STOP("stop") "{\"choices\":[],\"x_groq\":{\"usage\":{\"prompt_tokens\":1,"
                  "\"completion_tokens\":2,\"total_tokens\":3}}}\n" DONE,
     "usage 1+2=3 finish stop", NULL},
    {"usage beside x_groq",
     STOP("stop") "{\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_"
                  "tokens\":5,"
                  "\"total_tokens\":9},\"x_groq\":{\"usage\":{\"prompt_"
                  "tokens\":1,"
                  "\"completion_tokens\":2,\"total_tokens\":3}}}\n"
                  "{\"choices\":[],\"x_groq\":{\"usage\":{\"prompt_tokens\":1}}"
                  "}\n" DONE,
     "usage 4+5=9 finish stop", NULL},
    {"no usage in an empty one",
     STOP("stop") "{\"choices\":[],\"usage\":{\"prompt_tokens\":-1,"
                  "\"completion_tokens\":"
                  "\"3\",\"total_tokens\":1.5}}\n" DONE,
     "finish stop", NULL},
    {"an error has the usage",
     "{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{"
     "\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\n"
     "{\"error\":\"bad\"}\n",
     "say(a) usage 1+2=3 upstream_error: bad", NULL},
    {"usage in the error chunk",
     "{\"error\":{\"message\":\"bad\"},\"usage\":{\"prompt_tokens\":1,"
     "\"completion_tokens\":2,\"total_tokens\":3}}\n",
     "usage 1+2=3 upstream_error: bad", NULL},

    /* the end */

    {"a null does not undo a reason",
     STOP("length") "{\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_"
                    "reason\":null}]}\n"
                    "{\"choices\":[{\"delta\":{},\"finish_reason\":\"\"}]}"
                    "\n" DONE,
     "finish length", NULL},
    {"[DONE] alone", DELTA("\"content\":\"a\"") "[DONE] \n",
     "say(a) finish stop", NULL},
    {"nothing after [DONE]",
     STOP("stop") DONE DELTA("\"content\":\"a\"") "{\"error\":\"x\"}\n",
     "finish stop", NULL},
    {"content and no end", DELTA("\"content\":\"a\""),
     "say(a) upstream_truncated: the model server's answer ended early", NULL},
    {"no content and no end", "{\"choices\":[]}\n" DELTA("\"content\":\"\""),
     "upstream_truncated: the model server's answer ended before it began",
     NULL},
    {"empty data and scalars", "\n\"x\"\n7\nnull\n" STOP("stop"), "finish stop",
     NULL},
    {"reasons of others", STOP("STOP") STOP("eos") STOP("end_turn") DONE,
     "finish stop", NULL},
    {"model_length", STOP("model_length") DONE, "finish length", NULL},
    {"content_filter", STOP("content_filter") DONE, "finish content_filter",
     NULL},
    {"an unknown reason", STOP("sunset") DONE, "finish ", NULL},
    {"reason error", DELTA("\"content\":\"a\"") STOP("error") DONE,
     "say(a) upstream_error: the model server ended the answer with \"error\"",
     NULL},
    {"reason abort, no [DONE]", STOP("abort"),
     "upstream_error: the model server ended the answer with \"abort\"", NULL},
    {"reason insufficient_system_resource",
     STOP("insufficient_system_resource") DONE,
     "upstream_overloaded: the model server ended the answer with "
     "\"insufficient_system_resource\"",
     NULL},
    {"reason error, then the error",
     STOP("error") "{\"error\":{\"message\":\"bad\",\"code\":502}}\n" DONE,
     "upstream_error: bad", NULL},
    {"error inside the choice",
     "{\"choices\":[{\"delta\":{},\"finish_reason\":\"error\",\"error\":{"
     "\"code\":429,\"message\":\"slow\"}}]}\n" DONE,
     "upstream_rate_limited: slow", NULL},

    /* errors */

    {"errors that are none",
     "{\"error\":null,\"choices\":[]}\n{\"error\":false}\n{\"error\":\"\"}\n"
     "{\"error\":{}}\n{\"error\":[]}\n{\"error\":0}\n" STOP("stop"),
     "finish stop", NULL},
    {"error true", "{\"error\":true}\n",
     "upstream_error: the model server reported an error", NULL},
    {"rate limit",
     "{\"error\":{\"message\":\"m\",\"type\":\"tokens\",\"code\":"
     "\"rate_limit_exceeded\"}}\n",
     "upstream_rate_limited: m", NULL},
    {"quota",
     "{\"error\":{\"message\":\"m\",\"type\":\"insufficient_quota\"}}\n",
     "upstream_quota: m", NULL},
    {"overloaded",
     "{\"error\":{\"message\":\"m\",\"type\":\"overloaded_error\"}}\n",
     "upstream_overloaded: m", NULL},
    {"code 503", "{\"error\":{\"message\":\"m\",\"code\":503}}\n",
     "upstream_overloaded: m", NULL},
    {"code \"429\"", "{\"error\":{\"message\":\"m\",\"code\":\"429\"}}\n",
     "upstream_rate_limited: m", NULL},
    {"code 400", "{\"error\":{\"message\":\"m\",\"code\":400}}\n",
     "upstream_error: m", NULL},
    {"credentials",
     "{\"error\":{\"message\":\"key sk-123\",\"code\":\"invalid_api_key\"}}\n",
     "upstream_auth: the model server refused the credentials", NULL},
    {"Google's array",
     "[{\"error\":{\"message\":\"m\",\"status\":\"RESOURCE_EXHAUSTED\"}}]\n",
     "upstream_rate_limited: m", NULL},
    {"flat error", "{\"object\":\"error\",\"message\":\"m\",\"code\":40301}\n",
     "upstream_error: m", NULL},
    {"an event named error", "event: error\n{\"message\":\"m\"}\n",
     "upstream_error: m", NULL},
    {"an event named error, text", "event: error\nno  such\tthing\n",
     "upstream_error: no such thing", NULL},
    {"a field named error", "error: {\"code\":503,\"message\":\"m\"}\n",
     "upstream_overloaded: m", NULL},
    {"bad JSON", DELTA("\"content\":\"a\"") "{\"choices\":\n" DONE,
     "say(a) upstream_error: the model server sent bad JSON", NULL},
    {"text for JSON", "Internal Server Error\n",
     "upstream_error: the model server sent bad JSON", NULL},
    {"NaN",
     "{\"choices\":[{\"delta\":{\"content\":\"a\"},\"logprobs\":{\"x\":"
     "NaN}}]}\n" STOP("stop"),
     "say(a) finish stop", NULL},
    {"a lone surrogate",
     DELTA("\"content\":\"a\\ud83d\"") DELTA("\"content\":\"\\ude00b\"")
         STOP("stop"),
     "say(a\xef\xbf\xbd\xef\xbf\xbd"
     "b) finish stop",
     NULL},
};

static void
test_cases(void)
{
    size_t i, step;
    agent_buf_t b, told;
    collect_t c;
    collect_head_t head;
    int good;

    memset(&head, 0, sizeof(collect_head_t));

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        stream(&b, cases[i].lines);
        good = 1;

        for (step = 0; step < 3; step++) {
            (void) collect_answer(&c, &head, b.data, b.len, step);
            tell(&c, &told);

            good = good && c.nwrong == 0 &&
                   (cases[i].want == NULL ||
                    (told.len == strlen(cases[i].want) &&
                     memcmp(told.data, cases[i].want, told.len) == 0)) &&
                   (cases[i].order == NULL ||
                    strcmp(cases[i].order, c.order) == 0);

            if (!good) {
                printf("# got  %.*s %s\n# want %s %s\n", (int) told.len,
                       told.data, c.order,
                       cases[i].want != NULL ? cases[i].want : "",
                       cases[i].order != NULL ? cases[i].order : "");
                step = 3;
            }

            agent_buf_free(&told);
            collect_free(&c);
        }

        ok(good, "%s", cases[i].name);
        agent_buf_free(&b);
    }
}

static void
test_limits(void)
{
    unsigned i;
    agent_buf_t b;
    collect_t c;
    collect_head_t head;
    char *piece;

    memset(&head, 0, sizeof(collect_head_t));

    agent_buf_init(&b, &agent_alloc_libc);

    for (i = 0; i < 129; i++) {
        agent_buf_add_lit(&b, "data: {\"choices\":[{\"delta\":{\"tool_calls\":["
                              "{\"function\":{\"name\":\"f\"}}]}}]}\n\n");
    }

    (void) collect_answer(&c, &head, b.data, b.len, 0);
    ok(c.ncalls == 128 && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_ERROR && c.nwrong == 0,
       "129 tool calls: %s", c.fault.message);
    collect_free(&c);
    agent_buf_free(&b);

    piece = malloc(1 << 20);
    memset(piece, 'x', 1 << 20);

    agent_buf_init(&b, &agent_alloc_libc);

    for (i = 0; i < 5; i++) {
        agent_buf_add_lit(&b, "data: {\"choices\":[{\"delta\":{\"tool_calls\":["
                              "{\"index\":0,\"function\":{\"name\":\"f\","
                              "\"arguments\":\"");
        agent_buf_add(&b, piece, 1 << 20);
        agent_buf_add_lit(&b, "\"}}]}}]}\n\n");
    }

    (void) collect_answer(&c, &head, b.data, b.len, 65536);
    ok(c.ncalls == 1 && c.calls[0].args.len == 4 << 20 && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_ERROR && c.nwrong == 0,
       "5 MB of arguments: %s", c.fault.message);
    collect_free(&c);
    agent_buf_free(&b);
    free(piece);
}

static void
test_usage(void)
{
    collect_t c;
    collect_head_t head;
    static const char body[] =
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20,"
        "\"total_tokens\":30,\"prompt_tokens_details\":{\"cached_tokens\":4,"
        "\"cache_write_tokens\":5},\"completion_tokens_details\":{"
        "\"reasoning_tokens\":6}}}\n\n";

    memset(&head, 0, sizeof(collect_head_t));

    (void) collect_answer(&c, &head, body, sizeof(body) - 1, 0);
    ok(c.usage.input == 10 && c.usage.output == 20 && c.usage.total == 30 &&
           c.usage.cached == 4 && c.usage.cache_write == 5 &&
           c.usage.reasoning == 6,
       "details of usage");
    collect_free(&c);
}

/* --- emit stops the decoder ----------------------------------------------- */

static void
test_abort(void)
{
    unsigned at, good = 1;
    agent_buf_t b;
    agent_rc_t rc;
    collect_t c;
    collect_head_t head;
    agent_answer_t *a;

    memset(&head, 0, sizeof(collect_head_t));

    stream(&b, DELTA("\"reasoning\":\"r\"") DELTA("\"content\":\"a\"")
                   CALLS("{\"id\":\"a\",\"function\":{\"name\":\"f\","
                         "\"arguments\":\"1\"}},{\"id\":\"b\",\"function\":{"
                         "\"name\":\"g\"}}") DELTA("\"refusal\":\"n\"")
                       STOP("stop") DONE);

    for (at = 1; at <= 8; at++) {
        collect_init(&c);
        c.abort_at = at;

        a = collect_open(&c, &head);
        rc = agent_answer_body(a, b.data, b.len);

        good = good && rc == (at < 8 ? AGENT_ABORTED : AGENT_DONE) &&
               agent_answer_body(a, "x", 1) == rc &&
               agent_answer_end(a, 1) == rc && c.ndeltas == (at < 8 ? at : 7);

        agent_answer_destroy(a);
        collect_free(&c);
    }

    ok(good, "emit stops the answer at every delta");
    agent_buf_free(&b);
}

/* --- failing allocations -------------------------------------------------- */

static unsigned json_calls, json_fail_at;

static void *
failing_json_malloc(size_t size)
{
    return ++json_calls == json_fail_at ? NULL : malloc(size);
}

static int
test_nomem_of(const char *name, const char *body, size_t n, const char *type)
{
    unsigned i;
    agent_rc_t rc;
    collect_t want, c;
    failing_t f;
    agent_alloc_t alloc = {failing_resize, &f};
    collect_head_t head;
    int good = 1, failed = 0;

    memset(&head, 0, sizeof(collect_head_t));
    head.type = type;

    (void) collect_answer(&want, &head, body, n, 13);

    head.alloc = &alloc;

    for (i = 1; i < 100000; i++) {
        memset(&f, 0, sizeof(failing_t));
        f.fail_at = i;

        rc = collect_answer(&c, &head, body, n, 13);

        good = good && f.live == 0 &&
               (rc == AGENT_NOMEM || collect_same(&want, &c));
        failed += rc == AGENT_NOMEM;

        collect_free(&c);

        if (f.calls < i) {
            break;
        }
    }

    good = good && failed > 0;
    head.alloc = NULL;

    for (i = 1; i < 100000; i++) {
        json_calls = 0;
        json_fail_at = i;
        json_set_alloc_funcs(failing_json_malloc, free);

        rc = collect_answer(&c, &head, body, n, 13);

        json_set_alloc_funcs(malloc, free);

        /* jansson's lexer drops a byte when its buffer cannot grow, so that
           not everything that it misses becomes a failure */

        good = good && c.nwrong == 0 && c.nfinish + c.nerror <= 1 &&
               (rc == AGENT_NOMEM || rc == AGENT_DONE);

        collect_free(&c);

        if (json_calls < i) {
            break;
        }
    }

    collect_free(&want);

    return ok(good, "allocations fail: %s", name);
}

static void
test_nomem(void)
{
    agent_buf_t b;
    static const char whole[] =
        "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
        "\"content\":\"Hello\",\"tool_calls\":[{\"id\":\"a\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"{}\"}}]},\"finish_reason\":\"stop\"}],"
        "\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n";

    stream(&b, DELTA("\"content\":\"hello \"") DELTA("\"content\":\"\\u00e9\"")
                   DELTA("\"content\":[{\"type\":\"text\",\"text\":\"x\"}]")
                       STOP("stop") DONE);
    test_nomem_of("text", b.data, b.len, NULL);
    agent_buf_free(&b);

    stream(&b, CALLS("{\"index\":0,\"function\":{\"arguments\":\"1\"}}")
                   CALLS("{\"index\":0,\"function\":{\"name\":\"f\"}}") CALLS(
                       "{\"index\":1,\"id\":\"b\",\"function\":{"
                       "\"name\":\"g\",\"arguments\":{\"x\":0}}}")
                       STOP("tool_calls") "{\"choices\":[],\"usage\":{\"prompt_"
                                          "tokens\":"
                                          "1,\"completion_tokens\":2}}\n" DONE);
    test_nomem_of("tool calls", b.data, b.len, NULL);
    agent_buf_free(&b);

    stream(&b, DELTA("\"content\":\"a\\ud83d\"") "event: error\nbad thing\n");
    test_nomem_of("repair and error event", b.data, b.len, NULL);
    agent_buf_free(&b);

    test_nomem_of("a whole answer", whole, sizeof(whole) - 1,
                  "application/json");
    test_nomem_of("JSON lines", "{\"choices\":[{\"text\":\"a\"}]}\n[DONE]\n",
                  strlen("{\"choices\":[{\"text\":\"a\"}]}\n[DONE]\n"),
                  "application/x-ndjson");
}

/* --- the scanner ---------------------------------------------------------- */

static const char typical[] =
    "{\"id\":\"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT\",\"object\":"
    "\"chat.completion.chunk\",\"created\":1741569952,\"model\":"
    "\"gpt-4.1-2025-04-14\",\"service_tier\":\"default\","
    "\"system_fingerprint\":\"fp_b376dfbbd5\",\"choices\":[{\"index\":0,"
    "\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":"
    "null}],\"usage\":null}";

static const struct {
    const char *chunk;
    const char *text; /* NULL: declined */
} scans[] = {
    {typical, " word"},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}", "a"},
    {" {\n \"choices\" : [ { \"delta\" : { \"content\" : \"a\" } } ] } \r\n",
     "a"},
    {"{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"a\"}"
     "}]}",
     ""},
    {"{\"choices\":[{\"delta\":{\"content\":\"\",\"role\":\"assistant\","
     "\"refusal\":null,\"tool_calls\":null},\"index\":0,\"finish_reason\":"
     "null}],\"error\":null,\"seed\":13950026667594240001,\"t\":-0.5}",
     ""},
    {"{\"choices\":[{\"delta\":{}}]}", ""},
    {"{\"choices\":[{\"delta\":{\"content\":\"\xe4\xbd\xa0\\u00e9\\\\\"}}]}",
     "\xe4\xbd\xa0\\u00e9\\\\"},

    /* another shape */

    {"", NULL},
    {"[DONE]", NULL},
    {"{}", NULL},
    {"{\"choices\":[]}", NULL},
    {"{\"choices\":null}", NULL},
    {"{\"choices\":[{}]}", NULL},
    {"{\"choices\":[{\"delta\":null}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}},{\"index\":1}]}", NULL},
    {"{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"}}]}", NULL},
    {"{\"choices\":[{\"index\":0.0,\"delta\":{\"content\":\"a\"}}]}", NULL},
    {"{\"choices\":[{\"index\":null,\"delta\":{\"content\":\"a\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]"
     "}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{}}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"error\":\"x\"}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"object\":\"error\"}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x_groq\":{}}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"text\":\"a\"}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[]}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\",\"refusal\":\"b\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\",\"reasoning\":\"b\"}}]}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"reasoning\":\"a\",\"reasoning_content\":"
     "\"a\"}}]}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":[\"a\"]}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"unknown\":[]}", NULL},

    /* duplicates and disguises */

    {"{\"choices\":[{\"delta\":{\"content\":\"a\",\"content\":\"b\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\",\"c\\u006fntent\":\"b\"}}]}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"error\":null,"
     "\"err\\u006fr\":\"x\"}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"object\":"
     "\"err\\u006fr\"}",
     NULL},

    /* not JSON */

    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}]", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}]},", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"},}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\" \"b\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\\ud83d\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\\ude00\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\\x\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\\u12\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\xff\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"\xed\xa0\x80\"}}]}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":\"\xc0\xaf\"}",
     NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":01}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":1e400}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":-}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":1.}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":NaN}", NULL},
    {"{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"x\":nul}", NULL},
};

static void
test_scans(void)
{
    size_t i;
    agent_chat_scan_t scan;
    agent_str_t chunk;
    agent_rc_t rc;
    int good;
    char *copy;

    for (i = 0; i < sizeof(scans) / sizeof(scans[0]); i++) {
        /* a copy without a NUL: the sanitizer sees what reads behind it */

        chunk.len = strlen(scans[i].chunk);
        copy = malloc(chunk.len + 1);
        memcpy(copy, scans[i].chunk, chunk.len);
        copy = realloc(copy, chunk.len != 0 ? chunk.len : 1);
        chunk.data = copy;

        rc = agent_chat_scan(chunk, &scan);

        good = scans[i].text == NULL
                   ? rc == AGENT_DECLINED
                   : rc == AGENT_OK && scan.text.len == strlen(scans[i].text) &&
                         memcmp(scan.text.len != 0 ? scan.text.data : "",
                                scans[i].text, scan.text.len) == 0;

        ok(good, "scan %zu: %.60s", i,
           scans[i].chunk + (scans[i].chunk[0] == ' ' ? 4 : 0));
        free(copy);
    }
}

static void
test_speed(void)
{
    struct timespec from, to;
    agent_chat_scan_t scan;
    agent_str_t chunk = agent_str(typical);
    unsigned i, n = 200000, good = 0;
    double ns;

    (void) timespec_get(&from, TIME_UTC);

    for (i = 0; i < n; i++) {
        good += agent_chat_scan(chunk, &scan) == AGENT_OK;
    }

    (void) timespec_get(&to, TIME_UTC);

    ns = (double) (to.tv_sec - from.tv_sec) * 1e9 +
         (double) (to.tv_nsec - from.tv_nsec);

    ok(good == n, "scan %u chunks of %zu bytes", n, chunk.len);
    printf("# %.0f ns each\n", ns / n);
}

/* --- scanner and tree say the same ---------------------------------------- */

static uint64_t seed = 88172645463325252;

static size_t
rnd(size_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;

    return (size_t) (seed % below);
}

static const char *const handmade[] = {
    typical,
    "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}",
    "{\"choices\":[{\"delta\":{\"content\":\"\\ud83d\\ude00 \\u00e9\\n\"}}]}",
    "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xe4\xbd\xa0\xe5\xa5"
    "\xbd \xf0\x9f\x98\x80\",\"role\":\"assistant\"},\"finish_reason\":null}]}",
    "{\"choices\":[{\"delta\":{\"content\":null,\"reasoning_content\":\"hm\","
    "\"tool_calls\":null},\"index\":0}],\"usage\":null,\"error\":null}",
    "{\"id\":\"\",\"created\":1.5,\"n\":-3,\"choices\":[{\"delta\":{"
    "\"reasoning\":\"x\",\"refusal\":\"\"},\"logprobs\":null}]}",
};

/* What a mutation inserts. */
static const char *const snippets[] = {
    "\"error\":null,",
    "\"error\":\"x\",",
    "\"content\":\"x\",",
    "\"content\":null,",
    "\"reasoning\":\"y\",",
    "\"finish_reason\":\"stop\",",
    "\"finish_reason\":null,",
    "\"usage\":{\"prompt_tokens\":1},",
    "\"usage\":null,",
    "\"index\":1,",
    "\"index\":0,",
    "\"tool_calls\":[{\"function\":{\"name\":\"f\"}}],",
    "\"refusal\":\"n\",",
    "\"text\":\"t\",",
    "\"object\":\"error\",",
    "\"x\":1,",
    "\"x\":{},",
    "\"x\":\"\",",
    "\\u0000",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\\ud83d\\ude00",
    "\\n",
    "\\\"",
    "\\u006f",
    "\\",
    "\"",
    ",",
    "{",
    "}",
    "[",
    "]",
    ":",
    "\t",
    "\n",
    " ",
    "0",
    "9",
    "1e5",
    "E",
    ".",
    "-",
    "null",
    "true",
    "NaN",
    "-Infinity",
    "123456789012345678901234567890",
    "\xc3\xa9",
    "\xe2\x82",
    "\xff",
    "\xed\xa0\x80",
    "\xf0\x9f\x98\x80",
};

static void
mutate(agent_buf_t *b, const agent_buf_t *chunks, size_t nchunks)
{
    const agent_buf_t *other = &chunks[rnd(nchunks)];
    const char *snippet;
    size_t at, n, from;
    agent_buf_t copy;

    at = rnd(b->len + 1);

    switch (rnd(6)) {
    case 0: /* a byte changes */
        if (at < b->len) {
            b->data[at] =
                (char) (rnd(2) ? b->data[at] ^ (1 << rnd(8)) : (int) rnd(256));
        }
        return;

    case 1: /* bytes go */
        if (at < b->len) {
            n = 1 + rnd(rnd(4) ? 3 : 40);
            n = n < b->len - at ? n : b->len - at;
            memmove(b->data + at, b->data + at + n, b->len - at - n);
            b->len -= n;
        }
        return;

    case 2: /* it ends early */
        if (rnd(8) == 0) {
            b->len = at;
        }
        return;

    case 3: /* some of another chunk comes in */
        from = rnd(other->len);
        n = 1 + rnd(60);
        n = n < other->len - from ? n : other->len - from;
        snippet = other->data + from;
        break;

    default:
        snippet = snippets[rnd(sizeof(snippets) / sizeof(snippets[0]))];
        n = strlen(snippet);

        /* members mostly where members stand */

        if (n > 3 && snippet[n - 1] == ',' && rnd(4) != 0) {
            while (at < b->len && b->data[at] != '{') {
                at++;
            }

            at += at < b->len;
        }
    }

    agent_buf_init(&copy, &agent_alloc_libc);
    agent_buf_add(&copy, b->data, at);
    agent_buf_add(&copy, snippet, n);
    agent_buf_add(&copy, b->data + at, b->len - at);
    agent_buf_free(b);
    *b = copy;
}

/* 1 when the general path makes the same of the chunk and nothing else. */
static int
agrees(agent_str_t chunk, const agent_chat_scan_t *scan)
{
    void *dec;
    agent_sse_event_t ev;
    agent_buf_t text, reasoning;
    collect_t c;
    int good;

    memset(&ev, 0, sizeof(agent_sse_event_t));
    ev.data = chunk;

    collect_init(&c);
    agent_buf_init(&text, &agent_alloc_libc);
    agent_buf_init(&reasoning, &agent_alloc_libc);

    dec = agent_chat_open(collect_emit, &c, AGENT_STR("s"), &agent_alloc_libc);

    /* the end tells whether it had taken note of a reason or of usage */

    good = agent_json_unescape(&text, scan->text) == AGENT_OK &&
           agent_json_unescape(&reasoning, scan->reasoning) == AGENT_OK &&
           agent_chat_event_tree(dec, &ev) == AGENT_OK && c.nerror == 0 &&
           agent_chat_end(dec, 1) == AGENT_DONE && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_TRUNCATED && !c.has_usage &&
           c.nwrong == 0 && c.ncalls == 0 && c.refusal.len == 0 &&
           collect_same_buf(&c.text, &text) &&
           collect_same_buf(&c.reasoning, &reasoning);

    agent_chat_close(dec);
    agent_buf_free(&text);
    agent_buf_free(&reasoning);
    collect_free(&c);

    return good;
}

#define MAX_CHUNKS 4000

/* Adds the first chunks of each recorded stream of a folder. */
static size_t
recorded(agent_buf_t *chunks, size_t n, const char *folder)
{
    char path[2048], *line;
    DIR *dir = opendir(folder);
    struct dirent *entry;
    FILE *f;
    unsigned taken;
    static char block[1 << 20];

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (strstr(entry->d_name, ".sse") == NULL) {
            continue;
        }

        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        f = fopen(path, "rb");

        for (taken = 0; f != NULL && taken < 40 && n < MAX_CHUNKS; /* void */) {
            line = fgets(block, sizeof(block), f);

            if (line == NULL) {
                break;
            }

            if (strncmp(line, "data: {", 7) == 0 && strlen(line) < 2000) {
                agent_buf_init(&chunks[n], &agent_alloc_libc);
                agent_buf_add(&chunks[n], line + 6, strcspn(line + 6, "\r\n"));
                taken++;
                n++;
            }
        }

        if (f != NULL) {
            fclose(f);
        }
    }

    if (dir != NULL) {
        closedir(dir);
    }

    return n;
}

/* A chunk that a form accepts is one that the scanner accepts, alike. */
static int
form_agrees(const agent_chat_form_t *form, agent_str_t data, size_t *matched)
{
    agent_chat_scan_t a, b;

    if (agent_chat_form_match(form, data, &a) != AGENT_OK) {
        return 1;
    }

    ++*matched;

    return agent_chat_scan(data, &b) == AGENT_OK &&
           agent_str_eq(a.text, b.text) &&
           agent_str_eq(a.reasoning, b.reasoning);
}

/* Chunks around a form: its own with another text, and what mutations make. */
static void
test_form(const agent_buf_t *chunks, size_t n)
{
    static const char *const texts[] = {"",
                                        "x",
                                        "\\n",
                                        "\\",
                                        "\"",
                                        "\\\"",
                                        "\\u00e9",
                                        "\\ud83d",
                                        "\\ude00",
                                        "\\ud83d\\ude00",
                                        "\xc3\xa9",
                                        "\xc3",
                                        "\x01",
                                        "\",\"x\":\"",
                                        "\"}}],\"a\":[{\"b\":{\"c\":\"",
                                        "\\u12",
                                        "\\x"};
    size_t i, k, forms = 0, matched = 0, wrong = 0;
    agent_buf_t b;
    agent_str_t data, text;
    agent_chat_scan_t scan;
    agent_chat_form_t form;

    for (i = 0; i < n; i++) {
        data = agent_buf_str(&chunks[i]);

        if (agent_chat_scan(data, &scan) != AGENT_OK) {
            continue;
        }

        agent_chat_form_learn(&form, data, &scan);

        if (form.head == 0) {
            continue;
        }

        forms++;
        text = scan.text.len != 0 ? scan.text : scan.reasoning;

        for (k = 0; k < sizeof(texts) / sizeof(texts[0]) + 20; k++) {
            agent_buf_init(&b, &agent_alloc_libc);

            if (k < sizeof(texts) / sizeof(texts[0])) {
                agent_buf_add(&b, data.data, (size_t) (text.data - data.data));
                agent_buf_add(&b, texts[k], strlen(texts[k]));
                agent_buf_add(&b, text.data + text.len,
                              (size_t) (data.data + data.len - text.data) -
                                  text.len);

            } else {
                agent_buf_add_str(&b, data);
                mutate(&b, chunks, n);
            }

            if (!form_agrees(&form, agent_buf_str(&b), &matched) &&
                wrong++ < 5) {
                printf("# form differs: %.*s\n", (int) b.len, b.data);
            }

            agent_buf_free(&b);
        }
    }

    ok(wrong == 0 && forms > 0 && matched > forms * 5,
       "forms agree with the scanner: %zu forms, %zu matches", forms, matched);
}

static void
test_differential(void)
{
    static const char *const folders[] = {
        "openai_chat", "azure_openai", "deepseek",    "groq",
        "mistral",     "ollama_v1",    "openrouter",  "snowflake",
        "together",    "xai_chat",     "alibaba_qwen"};
    static agent_buf_t chunks[MAX_CHUNKS];
    const char *corpus = getenv("AGENT_CORPUS");
    char folder[1024];
    size_t n = 0, i, j, accepted = 0, wrong = 0, plain = 0;
    agent_chat_scan_t scan;
    agent_buf_t b;

    for (i = 0; i < sizeof(handmade) / sizeof(handmade[0]); i++, n++) {
        agent_buf_init(&chunks[n], &agent_alloc_libc);
        agent_buf_add(&chunks[n], handmade[i], strlen(handmade[i]));
    }

    for (i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        snprintf(folder, sizeof(folder), "%s/streams/%s",
                 corpus != NULL && corpus[0] != '\0' ? corpus
                                                     : "../shared/corpus",
                 folders[i]);
        n = recorded(chunks, n, folder);
    }

    if (n == sizeof(handmade) / sizeof(handmade[0])) {
        printf("# corpus not found\n");
        ok(getenv("CI") == NULL, "the corpus is there, or this is not CI");
    }

    for (i = 0; i < n; i++) {
        plain += agent_chat_scan(agent_buf_str(&chunks[i]), &scan) == AGENT_OK;
    }

    for (i = 0; i < MUTATIONS; i++) {
        const agent_buf_t *from =
            &chunks[rnd(3) != 0 ? rnd(n)
                                : rnd(sizeof(handmade) / sizeof(handmade[0]))];

        agent_buf_init(&b, &agent_alloc_libc);
        agent_buf_add(&b, from->data, from->len);

        for (j = rnd(4); j-- > 0; /* void */) {
            mutate(&b, chunks, n);
        }

        if (b.len != 0 &&
            agent_chat_scan(agent_buf_str(&b), &scan) == AGENT_OK) {
            accepted++;

            if (!agrees(agent_buf_str(&b), &scan) && wrong++ < 5) {
                printf("# differs: %.*s\n", (int) b.len, b.data);
            }
        }

        agent_buf_free(&b);
    }

    ok(wrong == 0 && accepted > MUTATIONS / 10,
       "scanner and tree agree on %d mutated chunks, %zu accepted", MUTATIONS,
       accepted);
    printf("# %zu of %zu chunks are for the scanner\n", plain, n);

    test_form(chunks, n);

    for (i = 0; i < n; i++) {
        agent_buf_free(&chunks[i]);
    }
}

static void
test_codecs(void)
{
    ok(agent_codec_find(AGENT_STR("openai")) == agent_codecs[0] &&
           agent_codec_find(AGENT_STR("echo")) == agent_codecs[1] &&
           agent_codec_find(AGENT_STR("ech")) == NULL &&
           agent_codec_find(AGENT_STR("")) == NULL,
       "codecs by name");
    is_str(agent_codecs[0]->path, "/chat/completions", "path");
    is_str(agent_codecs[1]->model, "echo", "model of echo");
}

int
main(void)
{
    test_codecs();
    test_cases();
    test_limits();
    test_usage();
    test_abort();
    test_nomem();
    test_scans();
    test_speed();
    test_differential();

    return done_testing();
}
