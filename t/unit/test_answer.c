/* What an answer is taken for, and what its errors mean. */

#include "collect.h"
#include "tap.h"

#define SSE   "text/event-stream"
#define JSON  "application/json"
#define HTML  "text/html"
#define CHUNK "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}"
#define STOP  "{\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}"
#define WHOLE                                                                  \
    "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","          \
    "\"content\":\"a\"},\"finish_reason\":\"length\"}]}"
#define NOT_ONE                                                                \
    "upstream_error: the model server's answer is not an event stream"
#define BAD   "upstream_error: the model server sent bad JSON"
#define EMPTY "upstream_truncated: the model server's answer is empty"
#define EARLY "upstream_truncated: the model server's answer ended early"
#define NOTHING                                                                \
    "upstream_truncated: the model server's answer ended before it began"

static const struct {
    const char *name;
    unsigned status;
    const char *type;
    const char *body;
    const char *want; /* the text and finish, or the error */
    int reset;
} cases[] = {

    /* 2xx: media type and first bytes */

    {"SSE", 200, SSE, "data: " CHUNK "\n\ndata: " STOP "\n\n", "a stop", 0},
    {"SSE, parameters and case", 200, "Text/Event-Stream ;charset=utf-8",
     "data: " CHUNK "\n\ndata: [DONE]\n\n", "a stop", 0},
    {"SSE called JSON", 200, JSON, "data: " CHUNK "\n\ndata: [DONE]\n\n",
     "a stop", 0},
    {"SSE without a type", 200, "", ": hi\n\ndata: " CHUNK "\n\ndata: [DONE]\n",
     "a stop", 0},
    {"SSE begins with a field", 200, "text/plain",
     "event: x\ndata: " CHUNK "\n\ndata: [DONE]\n\n", "a stop", 0},
    {"SSE behind blank lines", 200, "",
     "\n\r\n \n\nid: 1\ndata: " CHUNK "\n\ndata: [DONE]\n\n", "a stop", 0},
    {"SSE, a blank makes a field unknown", 200, SSE,
     "\n\n data: " CHUNK "\n\ndata: [DONE]\n\n", " stop", 0},
    {"SSE with a BOM", 200, "",
     "\xef\xbb\xbf"
     "data: " CHUNK "\n\ndata: [DONE]\n\n",
     "a stop", 0},
    {"SSE, status 201", 201, SSE, "data: " CHUNK "\n\ndata: [DONE]\n\n",
     "a stop", 0},
    {"SSE, reset after the finish", 200, SSE,
     "data: " CHUNK "\n\ndata: " STOP "\n\ndata: {\"cho", "a stop", 1},
    {"SSE, clean end inside an event behind the finish", 200, SSE,
     "data: " STOP "\n\ndata: {\"choices\":[", " stop", 0},
    {"SSE, clean end inside [DONE]", 200, SSE,
     "data: " CHUNK "\n\ndata: " STOP "\n\ndata: [DO", "a stop", 0},
    {"SSE, clean end inside an event", 200, SSE,
     "data: " CHUNK "\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"",
     EARLY, 0},
    {"SSE, reset behind an event without its blank line", 200, SSE,
     "data: " CHUNK "\n\ndata: " STOP "\n", EARLY, 1},
    {"SSE, comments only", 200, SSE, ": OPENROUTER PROCESSING\n\n", NOTHING, 0},
    {"empty", 200, SSE, "", EMPTY, 0},
    {"empty, reset", 200, JSON, "", EMPTY, 1},
    {"blank", 200, SSE, "\n\n\r\n", EMPTY, 0},
    {"a cut BOM", 200, "", "\xef\xbb", NOT_ONE, 0},
    {"a cut field", 200, "", "dat", NOT_ONE, 0},
    {"a cut field, reset", 200, "", "dat", EARLY, 1},

    {"JSON", 200, JSON, WHOLE, "a length", 0},
    {"JSON called SSE", 200, SSE, "\n\n" WHOLE "\n", "a length", 0},
    {"JSON without a type", 200, "", WHOLE, "a length", 0},
    {"JSON with a BOM", 200, JSON, "\xef\xbb\xbf" WHOLE, "a length", 0},
    {"JSON behind blank lines", 200, JSON, "\n\n\n   " WHOLE, "a length", 0},
    {"JSON and [DONE]", 200, SSE, WHOLE "\n\ndata: [DONE]\n\n", "a length", 0},
    {"JSON and [DONE] at once", 200, SSE, WHOLE "data:[DONE]", "a length", 0},
    {"JSON, reset behind it", 200, JSON, WHOLE, "a length", 1},
    {"JSON, no reason", 200, JSON,
     "{\"choices\":[{\"message\":{\"content\":\"a\"}}]}", "a stop", 0},
    {"JSON of legacy completions", 200, JSON,
     "{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}", "a stop",
     0},
    {"JSON cut", 200, JSON, "{\"choices\":[{\"message\":{\"content\":\"a",
     EARLY, 0},
    {"JSON cut, reset", 200, JSON, "{\"choices\":[{\"message\":{}", EARLY, 1},
    {"bad JSON", 200, JSON, "{\"choices\":[}]}", EARLY, 0},
    {"bad JSON of whole brackets", 200, JSON, "{\"choices\":[nope]}", BAD, 0},
    {"JSON error", 200, JSON, "{\"error\":{\"message\":\"m\",\"code\":503}}",
     "upstream_overloaded: m", 0},
    {"JSON error called SSE, [DONE]", 200, SSE,
     "{\"error\":{\"message\":\"m\"}}\n\ndata: [DONE]\n\n", "upstream_error: m",
     0},
    {"JSON error string", 200, JSON, "{\"error\":\"m\"}", "upstream_error: m",
     0},
    {"JSON array of an error", 200, JSON, "[{\"error\":{\"message\":\"m\"}}]",
     "upstream_error: m", 0},
    {"other JSON", 200, JSON, "{\"ok\":true}", NOT_ONE, 0},
    {"JSON without choices", 200, JSON, "{\"choices\":[]}", NOT_ONE, 0},
    {"an empty array", 200, JSON, "[]", NOT_ONE, 0},

    {"JSON lines", 200, "application/x-ndjson", CHUNK "\n\n" STOP "\n",
     "a stop", 0},
    {"JSON lines, the last not ended", 200, "application/x-ndjson",
     CHUNK "\r\n" STOP, "a stop", 0},
    {"JSON lines, an error", 200, "application/x-ndjson; charset=utf-8",
     CHUNK "\n{\"error\":\"m\"}\n", "upstream_error: m", 0},
    {"JSON lines, cut", 200, "application/x-ndjson", CHUNK "\n{\"choi", EARLY,
     0},

    {"HTML", 200, HTML, "<!DOCTYPE html><html></html>", NOT_ONE, 0},
    {"HTML called SSE", 200, SSE, "\n<html></html>", NOT_ONE, 0},
    {"text", 200, "text/plain", "Hello", NOT_ONE, 0},
    {"text called SSE", 200, SSE, "Hello\n", NOTHING, 0},

    /* other statuses */

    {"400", 400, JSON, "{\"error\":{\"message\":\"m\"}}",
     "upstream_rejected: m", 0},
    {"404 without a type", 404, "", "{\"error\":{\"message\":\"m\"}}",
     "upstream_rejected: m", 0},
    {"422 detail", 422, JSON, "{\"detail\":[{\"loc\":[1],\"msg\":\"m\"}]}",
     "upstream_rejected: m", 0},
    {"422 message.detail", 422, JSON,
     "{\"message\":{\"detail\":[{\"msg\":\"m\"}]}}", "upstream_rejected: m", 0},
    {"400 detail string", 400, JSON, "{\"detail\":\"m\"}",
     "upstream_rejected: m", 0},
    {"400 message", 400, JSON, "{\"message\":\"m\"}", "upstream_rejected: m",
     0},
    {"400 flat", 400, JSON, "{\"object\":\"error\",\"message\":\"m\"}",
     "upstream_rejected: m", 0},
    {"400 error first", 400, JSON, "{\"message\":\"x\",\"error\":\"m\"}",
     "upstream_rejected: m", 0},
    {"400 without a message", 400, JSON, "{\"error\":{}}",
     "upstream_rejected: the model server answered with HTTP 400", 0},
    {"400 empty", 400, JSON, "",
     "upstream_rejected: the model server answered with HTTP 400", 0},
    {"400 cut", 400, JSON, "{\"error\":{\"message\":\"m\"",
     "upstream_rejected: HTTP 400: {\"error\":{\"message\":\"m\"", 1},
    {"401", 401, JSON, "{\"error\":{\"message\":\"bad key sk-123\"}}",
     "upstream_auth: the model server refused the credentials (HTTP 401)", 0},
    {"403", 403, JSON, "{\"error\":{\"message\":\"not here\"}}",
     "upstream_auth: the model server refused the credentials (HTTP 403)", 0},
    {"402", 402, JSON, "{\"error\":{\"message\":\"m\"}}", "upstream_quota: m",
     0},
    {"429", 429, JSON, "{\"error\":{\"message\":\"m\"}}",
     "upstream_rate_limited: m", 0},
    {"429 insufficient_quota", 429, JSON,
     "{\"error\":{\"message\":\"m\",\"type\":\"insufficient_quota\"}}",
     "upstream_quota: m", 0},
    {"429 credit_balance_exhausted", 429, JSON,
     "{\"error\":{\"message\":\"m\",\"code\":\"credit_balance_exhausted\"}}",
     "upstream_quota: m", 0},
    {"429 org_spend_limit_exceeded", 429, JSON,
     "{\"error\":{\"message\":\"m\",\"code\":\"org_spend_limit_exceeded\"}}",
     "upstream_quota: m", 0},
    {"429 team_usage_limit_exceeded", 429, JSON,
     "{\"error\":{\"message\":\"m\",\"code\":\"team_usage_limit_exceeded\"}}",
     "upstream_quota: m", 0},
    {"429 rate_limit_exceeded", 429, JSON,
     "{\"error\":{\"message\":\"m\",\"code\":\"rate_limit_exceeded\"}}",
     "upstream_rate_limited: m", 0},
    {"400 insufficient_quota", 400, JSON,
     "{\"error\":{\"message\":\"m\",\"type\":\"insufficient_quota\"}}",
     "upstream_rejected: m", 0},
    {"500", 500, JSON, "{\"error\":{\"message\":\"m\"}}", "upstream_error: m",
     0},
    {"501", 501, JSON, "{\"error\":{\"message\":\"m\"}}", "upstream_error: m",
     0},
    {"503", 503, "text/plain", "no  healthy\nupstream\n",
     "upstream_overloaded: HTTP 503: no healthy upstream", 0},
    {"529", 529, JSON, "{\"type\":\"error\",\"error\":{\"message\":\"m\"}}",
     "upstream_overloaded: m", 0},
    {"502 HTML", 502, HTML, "<html>\n<title>502 Bad Gateway</title></html>",
     "upstream_error: the model server answered with HTTP 502", 0},
    {"301", 301, HTML, "<html></html>",
     "upstream_error: the server answers with a redirect (HTTP 301)", 0},
    {"304", 304, "", "",
     "upstream_error: the server answers with a redirect (HTTP 304)", 0},
    {"100", 100, "", "",
     "upstream_error: the model server answered with HTTP 100", 0},
    {"binary", 500, "", "\x1f\x8b\x08\xff\xfe\xfd\xfc\xfb",
     "upstream_error: the model server answered with HTTP 500", 0},
    {"a control character", 400, JSON,
     "{\"error\":{\"message\":\"\\u0000 a\\u001b[1m\\r\\n\\u0085b\\u00a0 \"}}",
     "upstream_rejected: a [1m b\xc2\xa0", 0},
};

static void
test_cases(void)
{
    size_t i, step;
    collect_t c;
    collect_head_t head;
    char told[512];
    int good;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(&head, 0, sizeof(collect_head_t));
        head.status = cases[i].status;
        head.type = cases[i].type;
        head.reset = cases[i].reset;

        for (step = 0, good = 1; good && step < 4; step++) {
            good = collect_answer(&c, &head, cases[i].body,
                                  strlen(cases[i].body), step) == AGENT_DONE;

            if (c.nerror != 0) {
                snprintf(told, sizeof(told), "%s: %s",
                         agent_code_name(c.fault.code), c.fault.message);
            } else {
                snprintf(told, sizeof(told), "%.*s %s", (int) c.text.len,
                         c.text.data != NULL ? c.text.data : "",
                         agent_finish_name(c.finish));
            }

            good = good && c.nwrong == 0 && c.nerror + c.nfinish == 1 &&
                   strcmp(told, cases[i].want) == 0;

            if (!good) {
                printf("# got  %s\n# want %s\n", told, cases[i].want);
            }

            collect_free(&c);
        }

        ok(good, "%s", cases[i].name);
    }
}

/* --- messages ------------------------------------------------------------- */

static void
test_long_message(void)
{
    agent_buf_t b;
    collect_t c;
    collect_head_t head;
    size_t i;

    memset(&head, 0, sizeof(collect_head_t));
    head.status = 400;
    head.type = JSON;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_lit(&b, "{\"error\":{\"message\":\"");

    for (i = 0; i < 300; i++) {
        agent_buf_add_char(&b, 'x');
    }

    agent_buf_add_lit(&b, "\"}}");

    (void) collect_answer(&c, &head, b.data, b.len, 0);
    ok(strlen(c.fault.message) == 200, "a message is cut at 200 characters");
    collect_free(&c);

    agent_buf_reset(&b);
    agent_buf_add_lit(&b, "{\"error\":{\"message\":\"");

    for (i = 0; i < 300; i++) {
        agent_buf_add_lit(&b, "\xe4\xbd\xa0");
    }

    agent_buf_add_lit(&b, "\"}}");

    (void) collect_answer(&c, &head, b.data, b.len, 0);
    ok(strlen(c.fault.message) % 3 == 0 && strlen(c.fault.message) > 240,
       "a cut does not split a character");
    collect_free(&c);

    /* more than is collected: it must not be waited for */

    agent_buf_reset(&b);

    for (i = 0; i < 30000; i++) {
        agent_buf_add_lit(&b, "\xe4\xbd\xa0 ");
    }

    head.type = "text/plain";

    for (i = 0; i < 3; i++) {
        (void) collect_answer(&c, &head, b.data, b.len - i, 1000);
        ok(c.nerror == 1 && strstr(c.fault.message, "\xe4\xbd\xa0") != NULL,
           "120 KB of error");
        collect_free(&c);
    }

    agent_buf_free(&b);
}

static const struct {
    const char *secret;
    const char *message;
    const char *want;
} secrets[] = {
    {NULL, "key sk-abcdefghijklmnop is bad", "key sk-abcdefghijklmnop is bad"},
    {"sk-abcdefghijklmnop", "key sk-abcdefghijklmnop is bad", "key *** is bad"},
    {"sk-abcdefghijklmnop", "sk-abcdefghijklmnop,sk-abcdefghijklmnop.",
     "***,***."},
    {"sk-abcdefghijklmnop", "key sk-abcdefgh... is bad", "key ***... is bad"},
    {"sk-abcdefghijklmnop", "ends with ijklmnop", "ends with ***"},
    {"sk-abcdefghijklmnop", "ends with jklmnop", "ends with jklmnop"},
    {"sk-abcdefghijklmnop", "key sk-abc**************nop, sorry",
     "key *** sorry"},
    {"short", "a short key", "a *** key"},
    {"k\xc3\xa9y-\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9",
     "x\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9y", "x***y"},
};

static void
test_secrets(void)
{
    size_t i;
    collect_t c;
    collect_head_t head;
    char body[512];

    for (i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
        memset(&head, 0, sizeof(collect_head_t));
        head.status = 400;
        head.type = JSON;
        head.secret = secrets[i].secret;

        snprintf(body, sizeof(body), "{\"error\":{\"message\":\"%s\"}}",
                 secrets[i].message);

        (void) collect_answer(&c, &head, body, strlen(body), 0);
        ok(strcmp(c.fault.message, secrets[i].want) == 0, "masked: %s",
           c.fault.message);
        collect_free(&c);

        /* the same inside a stream */

        head.status = 200;
        head.type = SSE;
        snprintf(body, sizeof(body), "event: error\ndata: %s\n\n",
                 secrets[i].message);

        (void) collect_answer(&c, &head, body, strlen(body), 0);
        ok(strcmp(c.fault.message, secrets[i].want) == 0,
           "masked in a stream: %s", c.fault.message);
        collect_free(&c);
    }
}

static void
test_secret_at_the_cut(void)
{
    collect_t c;
    collect_head_t head;
    char body[512];
    unsigned n;
    int good = 1;
    static const char secret[] = "sk-abcdefghijklmnopqrstuvwxyz";

    for (n = 150; n < 210; n++) {
        memset(&head, 0, sizeof(collect_head_t));
        head.status = 400;
        head.type = JSON;
        head.secret = secret;

        snprintf(body, sizeof(body), "{\"error\":{\"message\":\"%0*u%s\"}}",
                 (int) n, 0, secret);

        (void) collect_answer(&c, &head, body, strlen(body), 0);
        good = good && strstr(c.fault.message, "sk-abcde") == NULL;
        collect_free(&c);
    }

    ok(good, "a secret that the cut splits");
}

/* --- retry ---------------------------------------------------------------- */

static const struct {
    const char *value;
    const char *ms;
    unsigned want;
} retries[] = {
    {"2", "", 2},
    {" 2 ", "", 2},
    {"0", "", 0},
    {"0.2", "", 1},
    {"1.0", "", 1},
    {"1.0001", "", 2},
    {"", "1532", 2},
    {"2", "1532", 2},
    {"9", "1000", 1},
    {"9", "0.5", 1},
    {"1", "0", 1},
    {"1", "x", 1},
    {"3600", "", 3600},
    {"3601", "", 3600},
    {"86400", "", 3600},
    {"99999999999999999999999999", "", 3600},
    {"", "99999999999999999999999999", 3600},
    {"Wed, 21 Oct 2015 07:28:00 GMT", "", 0},
    {"-1", "", 0},
    {"+1", "", 0},
    {"1e3", "", 0},
    {".5", "", 0},
    {"1.2.3", "", 0},
    {"", "", 0},
};

static void
test_retry(void)
{
    size_t i;
    agent_str_t value, ms;

    for (i = 0; i < sizeof(retries) / sizeof(retries[0]); i++) {
        value.data = retries[i].value;
        value.len = strlen(value.data);
        ms.data = retries[i].ms;
        ms.len = strlen(ms.data);

        ok(agent_retry_after(value, ms) == retries[i].want,
           "retry after [%s] [%s]: %u", value.data, ms.data, retries[i].want);
    }
}

static void
test_retry_of_answers(void)
{
    static const struct {
        unsigned status;
        unsigned head;
        const char *body;
        unsigned want;
    } answers[] = {
        {429, 7, "{\"error\":{\"message\":\"m\"}}", 7},
        {503, 7, "", 7},
        {529, 7, "", 7},
        {500, 7, "", 0},
        {400, 7, "", 0},
        {429, 0, "{\"error\":{\"message\":\"m\"}}", 0},
        {429, 7, "{\"error\":{\"type\":\"insufficient_quota\"}}", 0},
        {429, 0,
         "{\"error\":{\"message\":\"m\",\"details\":[{},{\"retryDelay\":"
         "\"33.2s\"}]}}",
         34},
        {200, 0, "data: {\"error\":{\"message\":\"m\",\"code\":429}}\n\n", 0},
    };
    size_t i;
    collect_t c;
    collect_head_t head;

    for (i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        memset(&head, 0, sizeof(collect_head_t));
        head.status = answers[i].status;
        head.retry_after = answers[i].head;

        (void) collect_answer(&c, &head, answers[i].body,
                              strlen(answers[i].body), 0);
        ok(c.nerror == 1 && c.fault.retry_after == answers[i].want,
           "HTTP %u: retry after %u", head.status, c.fault.retry_after);
        collect_free(&c);
    }
}

/* --- limits --------------------------------------------------------------- */

static agent_rc_t
limited(collect_t *c, size_t max_event, size_t max_body, const char *type,
        const char *body)
{
    agent_rc_t rc;
    agent_answer_t *a;
    agent_answer_limits_t limits;
    agent_str_t s = {type, strlen(type)};

    memset(&limits, 0, sizeof(agent_answer_limits_t));
    limits.max_event = max_event;
    limits.max_body = max_body;

    collect_init(c);

    a = agent_answer_create(agent_codec_find(AGENT_STR("echo")), collect_emit,
                            c, AGENT_STR("s"), &limits, &agent_alloc_libc);
    agent_answer_head(a, 200, s, 0);

    rc = agent_answer_body(a, body, strlen(body));

    if (rc == AGENT_OK) {
        rc = agent_answer_end(a, 1);
    }

    ok(agent_answer_body(a, "x", 1) == AGENT_DONE &&
           agent_answer_end(a, 1) == AGENT_DONE && c->nwrong == 0,
       "nothing after the last delta");

    agent_answer_destroy(a);

    return rc;
}

static void
test_limits(void)
{
    collect_t c;
    static const char body[] = "data: " CHUNK "\n\ndata: [DONE]\n\n";

    ok(limited(&c, 100, 1000, SSE, body) == AGENT_DONE && c.nfinish == 1,
       "within the limits");
    collect_free(&c);

    ok(limited(&c, 20, 1000, SSE, body) == AGENT_DONE && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_ERROR,
       "an event too large: %s", c.fault.message);
    collect_free(&c);

    ok(limited(&c, 20, 1000, JSON, WHOLE) == AGENT_DONE && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_ERROR,
       "a JSON answer too large: %s", c.fault.message);
    collect_free(&c);

    ok(limited(&c, 100, 30, SSE, body) == AGENT_DONE && c.nerror == 1 &&
           c.fault.code == AGENT_CODE_UPSTREAM_ERROR,
       "a body too large: %s", c.fault.message);
    collect_free(&c);
}

/* before, n times the unit, behind */
static char *
repeated(const char *before, const char *unit, size_t n, const char *behind)
{
    size_t len = strlen(before), size = strlen(unit);
    char *s = malloc(len + n * size + strlen(behind) + 1);

    memcpy(s, before, len);

    for (; n > 0; n--, len += size) {
        memcpy(s + len, unit, size);
    }

    strcpy(s + len, behind);

    return s;
}

/* What would hold the loop, were it made a tree. */
static void
test_values(void)
{
    static const struct {
        const char *type, *before, *unit;
        size_t n;
        const char *behind;
        int error;
    } bodies[] = {
        {SSE, "data: {\"x\":[", "1,", 30000, "1]}\n\n", 0},
        {SSE, "data: {\"x\":[", "1,", 33000, "1]}\n\n", 1},
        {SSE, "data: {\"x\":\"", "1,", 90000, "\"}\n\n", 0},
        {SSE, "data: {\"x\":", "[", 40000, "\n\n", 1},
        {JSON, "{\"choices\":[{\"message\":{\"content\":\"", "[,", 90000,
         "\"},\"finish_reason\":\"stop\"}]}", 0},
        {JSON, "{\"x\":[", "1,", 33000, "1]}", 1},
        {JSON, "{\"x\":\"", "abcdefgh", 600000, "\"}", 1},
    };
    size_t i;
    char *body, *text;
    collect_t c;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        text = repeated(bodies[i].before, bodies[i].unit, bodies[i].n,
                        bodies[i].behind);
        body = repeated(
            text, bodies[i].type[0] == 't' ? "data: [DONE]\n\n" : "", 1, "");
        (void) limited(&c, 0, 0, bodies[i].type, body);

        ok((c.nerror == 1 && strstr(c.fault.message, "too much at once") !=
                                 NULL) == bodies[i].error,
           "%zu times %s: %s", bodies[i].n, bodies[i].unit,
           c.nerror != 0 ? c.fault.message : "no error");
        collect_free(&c);
        free(text);
        free(body);
    }
}

static void
test_content(void)
{
    collect_t c;
    collect_head_t head;
    agent_answer_t *a;
    static const char one[] =
        "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
    static const char two[] = "data: " CHUNK "\n\n";

    memset(&head, 0, sizeof(collect_head_t));

    collect_init(&c);

    a = collect_open(&c, &head);
    (void) agent_answer_body(a, one, sizeof(one) - 1);
    ok(!agent_answer_has_content(a), "no content yet");
    (void) agent_answer_body(a, two, sizeof(two) - 1);
    ok(agent_answer_has_content(a), "content");
    agent_answer_destroy(a);

    /* an answer may be given up at any time */

    a = collect_open(&c, &head);
    (void) agent_answer_body(a, "data: {\"cho", 11);
    agent_answer_destroy(a);
    agent_answer_destroy(NULL);

    ok(c.nerror + c.nfinish == 0, "given up");
    collect_free(&c);
}

int
main(void)
{
    test_cases();
    test_long_message();
    test_secrets();
    test_secret_at_the_cut();
    test_retry();
    test_retry_of_answers();
    test_limits();
    test_values();
    test_content();

    return done_testing();
}
