/*
 * The recorded streams, quirks and error bodies of the corpus, in every cutting
 * and framing: the result must not depend on either.
 */

#include "collect.h"
#include "sha256.h"
#include "tap.h"

#include <dirent.h>

#define MAX_COLUMNS 32
#define CUTTINGS    50

static char corpus[1024];

static uint64_t seed = 0x9e3779b97f4a7c15;

static size_t
rnd(size_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;

    return below != 0 ? (size_t) (seed % below) : 0;
}

static int
slurp(agent_buf_t *b, const char *folder, const char *name)
{
    char path[2048], block[65536];
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s/%s", corpus, folder, name);

    f = fopen(path, "rb");
    if (f == NULL) {
        printf("# cannot read %s\n", path);
        return 0;
    }

    while ((n = fread(block, 1, sizeof(block), f)) > 0) {
        agent_buf_add(b, block, n);
    }

    fclose(f);

    return 1;
}

/* --- variants ------------------------------------------------------------- */

typedef struct {
    const char *name;
    collect_head_t head;
    const char *data;
    size_t len;
    const collect_t *want; /* of the whole body */
    unsigned failed;
} subject_t;

static void
check(subject_t *s, collect_t *got, const char *variant, size_t detail)
{
    if (!collect_same(got, s->want)) {
        if (s->failed++ == 0) {
            printf("# %s: %s %zu differs\n", s->name, variant, detail);
            collect_print(got);
        }
    }

    collect_free(got);
}

static void
feed_split(subject_t *s, size_t at)
{
    collect_t got;
    agent_rc_t rc;
    agent_answer_t *a;

    collect_init(&got);

    a = collect_open(&got, &s->head);
    rc = agent_answer_body(a, s->data, at);

    if (rc == AGENT_OK) {
        rc = agent_answer_body(a, s->data + at, s->len - at);
    }

    got.nwrong += rc < 0 || agent_answer_end(a, !s->head.reset) != AGENT_DONE;
    agent_answer_destroy(a);

    check(s, &got, "split at", at);
}

static void
feed_random(subject_t *s, size_t max)
{
    collect_t got;
    size_t i, n;
    agent_rc_t rc = AGENT_OK;
    agent_answer_t *a;

    collect_init(&got);

    a = collect_open(&got, &s->head);

    for (i = 0; i < s->len && rc == AGENT_OK; i += n) {
        n = 1 + rnd(max);
        n = n < s->len - i ? n : s->len - i;
        rc = agent_answer_body(a, s->data + i, n);
    }

    got.nwrong += rc < 0 || agent_answer_end(a, !s->head.reset) != AGENT_DONE;
    agent_answer_destroy(a);

    check(s, &got, "pieces of at most", max);
}

static void
feed_buf(subject_t *s, agent_buf_t *b, const char *variant)
{
    static const size_t steps[] = {0, 1, 7, 4096};
    collect_t got;
    size_t i;

    for (i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (steps[i] == 1 && b->len > 100000) {
            continue;
        }

        (void) collect_answer(&got, &s->head, b->data, b->len, steps[i]);
        check(s, &got, variant, steps[i]);
    }

    agent_buf_free(b);
}

/* The body with each line end (LF, or CRLF) as "eol". */
static void
feed_eol(subject_t *s, const char *eol, const char *variant)
{
    size_t i;
    agent_buf_t b;

    agent_buf_init(&b, &agent_alloc_libc);

    for (i = 0; i < s->len; i++) {
        if (s->data[i] == '\r' && i + 1 < s->len && s->data[i + 1] == '\n') {
            continue;
        }

        if (s->data[i] == '\n') {
            agent_buf_add(&b, eol, strlen(eol));
        } else {
            agent_buf_add_char(&b, s->data[i]);
        }
    }

    feed_buf(s, &b, variant);
}

static void
feed_comments(subject_t *s)
{
    size_t i;
    agent_buf_t b;
    int blank = 1;

    agent_buf_init(&b, &agent_alloc_libc);

    for (i = 0; i < s->len; i++) {
        agent_buf_add_char(&b, s->data[i]);

        if (s->data[i] == '\n') {
            if (blank) {
                agent_buf_add_lit(&b, ": \xe2\x98\x83 comment {\n:\n");
            }

            blank = 1;

        } else if (s->data[i] != '\r') {
            blank = 0;
        }
    }

    feed_buf(s, &b, "comments");
}

static void
feed_bom(subject_t *s)
{
    agent_buf_t b;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_lit(&b, "\xef\xbb\xbf");
    agent_buf_add(&b, s->data, s->len);

    feed_buf(s, &b, "BOM");
}

static void
feed_unterminated(subject_t *s)
{
    agent_buf_t b;
    size_t n = s->len;

    agent_buf_init(&b, &agent_alloc_libc);

    while (n > 0 && (s->data[n - 1] == '\n' || s->data[n - 1] == '\r')) {
        n--;
    }

    agent_buf_add(&b, s->data, n);
    feed_buf(s, &b, "no line end at the end");

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add(&b, s->data, n);
    agent_buf_add_lit(&b, "\n");
    feed_buf(s, &b, "no blank line at the end");
}

static int
contains(const char *data, size_t n, const char *what)
{
    size_t i, m = strlen(what);

    for (i = 0; i + m <= n; i++) {
        if (memcmp(data + i, what, m) == 0) {
            return 1;
        }
    }

    return 0;
}

/* A cut answer is an error, unless the server had said that it is done. */
static void
feed_cut(subject_t *s)
{
    unsigned i;
    size_t at;
    collect_t got;
    collect_head_t head;
    int marked, done;

    for (i = 0; i < 20; i++) {
        at = rnd(s->len);
        head = s->head;
        head.reset = i & 1;

        marked = contains(s->data, at, "\"finish_reason\":\"") ||
                 contains(s->data, at, "\"finish_reason\": \"") ||
                 contains(s->data, at, "[DONE]");
        done = contains(s->data, at, "[DONE]\n\n");

        (void) collect_answer(&got, &head, s->data, at, 0);

        if (got.nwrong != 0 || got.nfinish + got.nerror != 1 ||
            (got.nfinish != 0 && !marked) ||
            (done && got.nfinish != s->want->nfinish)) {
            if (s->failed++ == 0) {
                printf("# %s: cut at %zu, reset %d\n", s->name, at, i & 1);
                collect_print(&got);
            }
        }

        collect_free(&got);
    }
}

static void
feed_all(subject_t *s)
{
    static const size_t maxima[] = {7, 60, 1400, 16384};
    size_t i, n;
    collect_t got;
    int sse = s->len != 0 && s->data[0] != '{' && s->data[0] != '[' &&
              s->data[0] != '<' && s->head.status < 300;

    (void) collect_answer(&got, &s->head, s->data, s->len, 1);
    check(s, &got, "byte by byte", 0);

    if (s->len < 4096) {
        for (i = 0; i <= s->len; i++) {
            feed_split(s, i);
        }
    }

    n = 1 + 3000000 / (s->len + 1);
    n = n < CUTTINGS ? n : CUTTINGS;

    for (i = 0; i < n; i++) {
        feed_random(s, maxima[i % 4]);
    }

    if (s->head.status < 300) {
        feed_eol(s, "\r\n", "CRLF");
        feed_bom(s);
        feed_unterminated(s);
    }

    if (sse) {
        feed_eol(s, "\r", "CR");
        feed_comments(s);
        feed_cut(s);
    }
}

/* --- expectations --------------------------------------------------------- */

static int
expect_sha(const agent_buf_t *b, const char *sha, const char *name,
           const char *what)
{
    char hex[65];

    sha256_hex(b->data, b->len, hex);

    if (sha[0] == '\0' ? b->len != 0 : strcmp(hex, sha) != 0) {
        printf("# %s: %s is %zu bytes, %s, not %s\n", name, what, b->len, hex,
               sha);
        return 0;
    }

    return 1;
}

static int
expect_buf(const agent_buf_t *b, const json_t *want, const char *name,
           const char *what)
{
    size_t n = json_string_length(want);

    if (b->len != n || memcmp(n != 0 ? b->data : "",
                              n != 0 ? json_string_value(want) : "", n) != 0) {
        printf("# %s: %s is [%.*s], not [%s]\n", name, what, (int) b->len,
               b->data != NULL ? b->data : "",
               n != 0 ? json_string_value(want) : "");
        return 0;
    }

    return 1;
}

/* Tools are objects of id, name, args, or arrays of these three. */
static int
expect_tools(const collect_t *c, const json_t *tools, const char *name)
{
    size_t i;
    int ok = json_array_size(tools) == c->ncalls;
    const json_t *tool, *id, *fn, *args;

    for (i = 0; ok && i < c->ncalls; i++) {
        tool = json_array_get(tools, i);
        id = json_is_array(tool) ? json_array_get(tool, 0)
                                 : json_object_get(tool, "id");
        fn = json_is_array(tool) ? json_array_get(tool, 1)
                                 : json_object_get(tool, "name");
        args = json_is_array(tool) ? json_array_get(tool, 2)
                                   : json_object_get(tool, "args");

        ok = expect_buf(&c->calls[i].name, fn, name, "tool name") &&
             expect_buf(&c->calls[i].args, args, name, "tool arguments");

        /* a call without an id gets one of ours */

        if (json_string_length(id) == 0 ||
            strcmp(json_string_value(id), "*") == 0) {
            ok = ok && c->calls[i].id.len > 10 &&
                 memcmp(c->calls[i].id.data, "call_seed_", 10) == 0;
        } else {
            ok = ok && expect_buf(&c->calls[i].id, id, name, "tool id");
        }
    }

    if (!ok) {
        printf("# %s: tools differ\n", name);
    }

    return ok;
}

static int64_t
usage_count(const json_t *usage, const char *member)
{
    const json_t *v = json_object_get(usage, member);

    return json_is_number(v) ? (int64_t) json_number_value(v) : -1;
}

static int
expect_usage(const collect_t *c, const json_t *usage, const char *name)
{
    if (!json_is_object(usage)
            ? c->has_usage
            : c->usage.input != usage_count(usage, "prompt_tokens") ||
                  c->usage.output != usage_count(usage, "completion_tokens") ||
                  c->usage.total != usage_count(usage, "total_tokens")) {
        printf("# %s: usage differs\n", name);
        return 0;
    }

    return 1;
}

static agent_finish_t
finish_of(const char *raw, unsigned ncalls)
{
    if (strcmp(raw, "length") == 0) {
        return AGENT_FINISH_LENGTH;
    }

    if (strcmp(raw, "content_filter") == 0) {
        return AGENT_FINISH_CONTENT_FILTER;
    }

    return ncalls != 0 ? AGENT_FINISH_TOOL_CALLS : AGENT_FINISH_STOP;
}

static int
expect_finish(const collect_t *c, const char *raw, const char *name)
{
    if (c->nfinish != 1 || c->finish != finish_of(raw, c->ncalls)) {
        printf("# %s: finish differs from %s\n", name, raw);
        return 0;
    }

    return 1;
}

/* "message" or its first 120 bytes are in the fault. */
static int
expect_error(const collect_t *c, unsigned status, const char *message,
             const char *name)
{
    char part[121];
    const char *p;

    snprintf(part, sizeof(part), "%s",
             status == 401 || status == 403 ? "refused the credentials"
                                            : message);

    for (p = c->fault.message; *p != '\0'; p++) {
        if ((unsigned char) *p < 0x20) {
            break;
        }
    }

    if (c->nerror != 1 || *p != '\0' ||
        strstr(c->fault.message, part) == NULL) {
        printf("# %s: error [%s] is without [%s]\n", name, c->fault.message,
               part);
        return 0;
    }

    return 1;
}

/* --- streams -------------------------------------------------------------- */

static unsigned
columns(char *line, char **column)
{
    unsigned n = 0;
    char *p = line;

    line[strcspn(line, "\n")] = '\0';

    for (;;) {
        column[n++] = p;
        p = strchr(p, '\t');

        if (p == NULL || n == MAX_COLUMNS) {
            return n;
        }

        *p++ = '\0';
    }
}

/* A value of an INDEX.tsv by the name of its column. */
static const char *
value(char **names, char **row, unsigned n, const char *name)
{
    unsigned i;

    for (i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0) {
            return row[i];
        }
    }

    printf("# no column %s\n", name);

    return "";
}

#define COLUMN(name) value(names, row, n, name)

static json_t *
any(const char *text)
{
    return text[0] != '\0' ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
}

static void
test_stream(char **names, char **row, unsigned n)
{
    const char *name = COLUMN("file");
    json_t *tools = any(COLUMN("tools")), *usage = any(COLUMN("usage"));
    json_t *error = any(COLUMN("error")), *refusal = any(COLUMN("refusal"));
    agent_buf_t body;
    collect_t want;
    subject_t s = {.name = name, .head = {.status = 200}};
    agent_str_t message;
    int good;

    agent_buf_init(&body, &agent_alloc_libc);
    good = slurp(&body, "streams", name);

    (void) collect_answer(&want, &s.head, body.data, body.len, 0);

    good = good && want.nwrong == 0 &&
           expect_sha(&want.text, COLUMN("text_sha256"), name, "text") &&
           expect_sha(&want.reasoning, COLUMN("reasoning_sha256"), name,
                      "reasoning") &&
           expect_buf(&want.refusal, refusal, name, "refusal") &&
           expect_tools(&want, tools, name) && expect_usage(&want, usage, name);

    if (agent_json_str(error, "message", &message)) {
        good = good && expect_error(&want, 200, message.data, name);
    } else {
        good = good && expect_finish(&want, COLUMN("finish"), name);
    }

    if (!good) {
        collect_print(&want);
    }

    s.data = body.data;
    s.len = body.len;
    s.want = &want;
    feed_all(&s);

    ok(good && s.failed == 0, "%s", name);

    collect_free(&want);
    agent_buf_free(&body);
    json_decref(tools);
    json_decref(usage);
    json_decref(error);
    json_decref(refusal);
}

static void
test_refusal_body(char **names, char **row, unsigned n)
{
    const char *name = COLUMN("file"), *type = COLUMN("content_type");
    agent_buf_t body;
    collect_t want;
    subject_t s = {.name = name};
    int good;

    s.head.status = (unsigned) atoi(COLUMN("status"));
    s.head.type = strcmp(type, "-") != 0 ? type : "";

    agent_buf_init(&body, &agent_alloc_libc);
    good = slurp(&body, "http-errors", name);

    (void) collect_answer(&want, &s.head, body.data, body.len, 0);

    good = good && want.nwrong == 0 &&
           expect_error(&want, s.head.status, COLUMN("message"), name) &&
           want.fault.code == (s.head.status == 401 ? AGENT_CODE_UPSTREAM_AUTH
                               : s.head.status == 429
                                   ? AGENT_CODE_UPSTREAM_RATE_LIMITED
                                   : AGENT_CODE_UPSTREAM_REJECTED);

    s.data = body.data;
    s.len = body.len;
    s.want = &want;
    feed_all(&s);

    ok(good && s.failed == 0, "%s: %s", name, want.fault.message);

    collect_free(&want);
    agent_buf_free(&body);
}

/* Calls "test" for each row; "api": only rows of that one. */
static unsigned
test_index(const char *folder, const char *api,
           void (*test)(char **names, char **row, unsigned n))
{
    agent_buf_t index;
    char *line, *next, *names[MAX_COLUMNS], *row[MAX_COLUMNS];
    unsigned n, tested = 0;

    agent_buf_init(&index, &agent_alloc_libc);

    if (!slurp(&index, folder, "INDEX.tsv")) {
        return 0;
    }

    agent_buf_add_char(&index, '\0');

    line = index.data;
    next = strchr(line, '\n') + 1;
    n = columns(line, names);

    while (*next != '\0') {
        line = next;
        next += strcspn(next, "\n");
        next += *next == '\n';

        if (columns(line, row) != n) {
            printf("# %s: a row of other length\n", folder);
            continue;
        }

        if (api == NULL || strcmp(value(names, row, n, "api"), api) == 0) {
            test(names, row, n);
            tested++;
        }
    }

    agent_buf_free(&index);

    return tested;
}

/* --- quirks --------------------------------------------------------------- */

static agent_str_t
header(const json_t *http, const char *name)
{
    agent_str_t s = AGENT_STR("");

    (void) agent_json_str(json_object_get(http, "headers"), name, &s);

    return s;
}

static void
test_quirk(const char *name, const json_t *quirk)
{
    char file[300];
    const json_t *http = json_object_get(quirk, "http");
    const json_t *expect = json_object_get(quirk, "expect");
    const json_t *finish = json_object_get(expect, "finish");
    const json_t *error = json_object_get(expect, "error");
    agent_str_t end;
    agent_buf_t body;
    collect_t want;
    subject_t s = {.name = name};
    int good;

    s.head.status =
        (unsigned) json_integer_value(json_object_get(http, "status"));
    s.head.type = json_string_value(json_object_get(http, "content_type"));
    s.head.retry_after = agent_retry_after(header(http, "retry-after"),
                                           header(http, "retry-after-ms"));
    s.head.reset = agent_json_str(quirk, "end", &end) &&
                   agent_str_eq(end, AGENT_STR("reset"));

    snprintf(file, sizeof(file), "%s.sse", name);

    agent_buf_init(&body, &agent_alloc_libc);
    good = slurp(&body, "quirks", file);

    (void) collect_answer(&want, &s.head, body.data, body.len, 0);

    good =
        good && want.nwrong == 0 &&
        expect_buf(&want.text, json_object_get(expect, "text"), name, "text") &&
        expect_buf(&want.reasoning, json_object_get(expect, "reasoning"), name,
                   "reasoning") &&
        expect_tools(&want, json_object_get(expect, "tools"), name) &&
        expect_usage(&want, json_object_get(expect, "usage"), name);

    if (json_is_string(error)) {
        good = good && expect_error(&want, s.head.status,
                                    json_string_value(error), name);

    } else if (json_is_true(json_object_get(expect, "truncated"))) {
        good = good && want.nerror == 1 &&
               want.fault.code == AGENT_CODE_UPSTREAM_TRUNCATED;

    } else {
        good = good && expect_finish(&want, json_string_value(finish), name);
    }

    if (!good) {
        collect_print(&want);
    }

    s.data = body.data;
    s.len = body.len;
    s.want = &want;
    feed_all(&s);

    ok(good && s.failed == 0, "quirk %s", name);

    collect_free(&want);
    agent_buf_free(&body);
}

static unsigned
test_quirks(void)
{
    char path[2048], name[256];
    DIR *dir;
    struct dirent *entry;
    size_t n;
    agent_buf_t b;
    json_t *quirk;
    agent_str_t api;
    unsigned tested = 0;

    snprintf(path, sizeof(path), "%s/quirks", corpus);

    dir = opendir(path);
    if (dir == NULL) {
        return 0;
    }

    while ((entry = readdir(dir)) != NULL) {
        n = strlen(entry->d_name);

        if (n < 6 || strcmp(entry->d_name + n - 5, ".json") != 0) {
            continue;
        }

        snprintf(name, sizeof(name), "%.*s", (int) (n - 5), entry->d_name);

        agent_buf_init(&b, &agent_alloc_libc);
        (void) slurp(&b, "quirks", entry->d_name);
        quirk = json_loadb(b.data, b.len, 0, NULL);
        agent_buf_free(&b);

        if (agent_json_str(quirk, "api", &api) &&
            agent_str_eq(api, AGENT_STR("chat"))) {
            test_quirk(name, quirk);
            tested++;
        }

        json_decref(quirk);
    }

    closedir(dir);

    return tested;
}

int
main(void)
{
    const char *folder = getenv("AGENT_CORPUS");
    agent_buf_t b;
    char hex[65];

    sha256_hex("abc", 3, hex);
    ok(strncmp(hex, "ba7816bf8f01cfea", 16) == 0, "SHA-256");

    snprintf(corpus, sizeof(corpus), "%s",
             folder != NULL && folder[0] != '\0' ? folder : "../shared/corpus");

    agent_buf_init(&b, &agent_alloc_libc);

    if (!slurp(&b, "streams", "INDEX.tsv")) {
        printf("# corpus not found\n");
        ok(getenv("CI") == NULL, "the corpus is there, or this is not CI");
        return done_testing();
    }

    agent_buf_free(&b);

    ok(test_index("streams", "chat", test_stream) >= 80, "streams");
    ok(test_index("http-errors", NULL, test_refusal_body) >= 30,
       "error bodies");
    ok(test_quirks() >= 40, "quirks");

    return done_testing();
}
