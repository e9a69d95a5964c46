/* agent_sse.c: rules one by one, the corpus in every slicing, a slow reader
 * beside the fast one, and every allocation failing once. */

#define _POSIX_C_SOURCE 200809L

#include "agent_json.h"
#include "agent_sse.h"
#include "tap.h"

#include <dirent.h>
#include <stdlib.h>

/* --- helpers -------------------------------------------------------------- */

static uint64_t seed = 1;

static uint64_t
rnd(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;

    return n ? seed % n : 0;
}

/* Bytes in a block of exactly their length, so that ASan sees a byte too far.
 */
static char *
exact(agent_str_t s, size_t at, size_t n)
{
    char *copy = malloc(n ? n : 1);

    if (n != 0) {
        memcpy(copy, s.data + at, n);
    }

    return copy;
}

/* Fails the allocation number "left" and counts the live blocks. */
typedef struct {
    long left;
    long live;
    long calls;
    int fired;
} flaky_t;

static void *
flaky_resize(void *ctx, void *p, size_t size)
{
    flaky_t *f = ctx;

    if (size == 0) {
        f->live -= p != NULL;
        free(p);
        return NULL;
    }

    f->calls++;

    if (f->left-- == 0) {
        f->fired = 1;
        return NULL;
    }

    f->live += p == NULL;

    return realloc(p, size);
}

/* --- events as text ------------------------------------------------------- */

static void
write_event(agent_buf_t *b, agent_str_t type, agent_str_t data, agent_str_t id,
            int error)
{
    if (error) {
        agent_buf_add_lit(b, "!");
    }

    if (type.len == 0) {
        agent_buf_add_lit(b, "message");
    }

    agent_utf8_sanitize(b, type);
    agent_buf_add_lit(b, "<");
    agent_utf8_sanitize(b, data);
    agent_buf_add_lit(b, ">");
    agent_utf8_sanitize(b, id);
    agent_buf_add_lit(b, ";");
}

static agent_rc_t
collect(void *ctx, const agent_sse_event_t *ev)
{
    write_event(ctx, ev->type, ev->data, ev->id, ev->error);

    return AGENT_OK;
}

/* What a reading gave. */
typedef struct {
    agent_rc_t rc;
    agent_buf_t events; /* before the end */
    agent_buf_t after;  /* reported by agent_sse_end() */
    int pending;
    int has_retry;
    uint64_t retry;
} reading_t;

static void
reading_free(reading_t *r)
{
    agent_buf_free(&r->events);
    agent_buf_free(&r->after);
}

/* Feeds pieces that end at the given offsets (ascending), then the rest. */
static void
read_cut(reading_t *r, agent_str_t in, const size_t *cuts, size_t ncuts,
         size_t max_event, const agent_alloc_t *alloc)
{
    size_t i, at = 0, to;
    char *piece;
    agent_sse_t s;

    memset(r, 0, sizeof(*r));
    agent_buf_init(&r->events, &agent_alloc_libc);
    agent_buf_init(&r->after, &agent_alloc_libc);
    agent_sse_init(&s, max_event, collect, &r->events, alloc);

    for (i = 0; i <= ncuts && r->rc == AGENT_OK; i++) {
        to = i < ncuts ? cuts[i] : in.len;
        piece = exact(in, at, to - at);
        r->rc = agent_sse_feed(&s, piece, to - at);

        /* what the reader has not copied by now is lost */

        memset(piece, '#', to - at);
        free(piece);
        at = to;
    }

    if (r->rc == AGENT_OK) {
        r->pending = agent_sse_pending(&s);
        s.ctx = &r->after;
        r->rc = agent_sse_end(&s);
    }

    r->retry = s.retry;
    r->has_retry = s.has_retry;

    agent_sse_free(&s);
}

static int
same(const reading_t *a, const reading_t *b)
{
    return a->rc == b->rc && a->pending == b->pending &&
           a->has_retry == b->has_retry && a->retry == b->retry &&
           agent_str_eq(agent_buf_str(&a->events), agent_buf_str(&b->events)) &&
           agent_str_eq(agent_buf_str(&a->after), agent_buf_str(&b->after));
}

static int
same_or_tell(const reading_t *got, const reading_t *want)
{
    if (same(got, want)) {
        return 1;
    }

    printf("#  got rc %d pending %d retry %d %llu: %.*s | %.*s\n"
           "# want rc %d pending %d retry %d %llu: %.*s | %.*s\n",
           got->rc, got->pending, got->has_retry,
           (unsigned long long) got->retry, (int) got->events.len,
           got->events.data ? got->events.data : "", (int) got->after.len,
           got->after.data ? got->after.data : "", want->rc, want->pending,
           want->has_retry, (unsigned long long) want->retry,
           (int) want->events.len, want->events.data ? want->events.data : "",
           (int) want->after.len, want->after.data ? want->after.data : "");

    return 0;
}

static int
try_cuts(agent_str_t in, const size_t *cuts, size_t n, size_t max_event,
         const reading_t *want)
{
    int fine;
    reading_t r;

    read_cut(&r, in, cuts, n, max_event, &agent_alloc_libc);
    fine = same_or_tell(&r, want);
    reading_free(&r);

    return fine;
}

static int
try_whole(agent_str_t in, const reading_t *want)
{
    return try_cuts(in, NULL, 0, 0, want);
}

static int
try_bytes(agent_str_t in, size_t max_event, const reading_t *want)
{
    int fine;
    size_t i, *cuts = malloc((in.len + 1) * sizeof(size_t));

    for (i = 0; i < in.len; i++) {
        cuts[i] = i + 1;
    }

    fine = try_cuts(in, cuts, in.len, max_event, want);
    free(cuts);

    return fine;
}

static int
try_splits(agent_str_t in, const reading_t *want)
{
    size_t i;

    for (i = 0; i <= in.len; i++) {
        if (!try_cuts(in, &i, 1, 0, want)) {
            return 0;
        }
    }

    return 1;
}

static int
by_size(const void *a, const void *b)
{
    size_t x = *(const size_t *) a, y = *(const size_t *) b;

    return (x > y) - (x < y);
}

static int
try_random(agent_str_t in, int rounds, const reading_t *want)
{
    size_t i, n, cuts[16];

    while (rounds-- > 0) {
        n = 1 + rnd(16);

        for (i = 0; i < n; i++) {
            cuts[i] = rnd(in.len + 1);
        }

        qsort(cuts, n, sizeof(size_t), by_size);

        if (!try_cuts(in, cuts, n, 0, want)) {
            return 0;
        }
    }

    return 1;
}

/* A rewritten input, in a few slicings; frees it. */
static int
try_rewritten(agent_buf_t *b, const reading_t *want)
{
    agent_str_t in = agent_buf_str(b);
    int fine;

    fine = try_whole(in, want) && try_bytes(in, 0, want) &&
           try_random(in, 10, want);
    agent_buf_free(b);

    return fine;
}

/* --- rewriting ------------------------------------------------------------ */

/* Every CRLF and LF becomes "eol" (CRLF or CR; a lone CR stays). */
static void
rewrite_eol(agent_buf_t *b, agent_str_t in, const char *eol)
{
    size_t i;

    agent_buf_init(b, &agent_alloc_libc);

    for (i = 0; i < in.len; i++) {
        if (in.data[i] == '\r' && i + 1 < in.len && in.data[i + 1] == '\n') {
            continue;
        }

        if (in.data[i] == '\n') {
            agent_buf_add(b, eol, strlen(eol));
        } else {
            agent_buf_add_char(b, in.data[i]);
        }
    }
}

static size_t
bom_len(agent_str_t in)
{
    return in.len >= 3 && memcmp(in.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* A comment before every line, a comment and a blank line between events. */
static void
rewrite_comments(agent_buf_t *b, agent_str_t in)
{
    size_t i = bom_len(in), line = i;
    int blank;

    agent_buf_init(b, &agent_alloc_libc);
    agent_buf_add(b, in.data, i);
    agent_buf_add_lit(b, ": first\n");

    while (i < in.len) {
        if (in.data[i] != '\n' && in.data[i] != '\r') {
            i++;
            continue;
        }

        blank = i == line;
        i += in.data[i] == '\r' && i + 1 < in.len && in.data[i + 1] == '\n';
        i++;

        agent_buf_add(b, in.data + line, i - line);
        agent_buf_add_lit(b, ":data: x\r\n:\n");
        line = i;

        if (blank) {
            agent_buf_add_lit(b, ": keep-alive\n\n");
        }
    }

    agent_buf_add(b, in.data + line, in.len - line);
}

static void
rewrite_bom(agent_buf_t *b, agent_str_t in)
{
    agent_buf_init(b, &agent_alloc_libc);

    if (bom_len(in) == 0) {
        agent_buf_add_lit(b, "\xef\xbb\xbf");
    }

    agent_buf_add_str(b, in);
}

static void
check_rewritten(agent_str_t in, const reading_t *want, const char *name)
{
    agent_buf_t b;

    rewrite_eol(&b, in, "\r\n");
    ok(try_rewritten(&b, want), "%s: with CRLF", name);
    rewrite_eol(&b, in, "\r");
    ok(try_rewritten(&b, want), "%s: with CR", name);
    rewrite_comments(&b, in);
    ok(try_rewritten(&b, want), "%s: with comments", name);
    rewrite_bom(&b, in);
    ok(try_rewritten(&b, want), "%s: with a BOM", name);
}

/* --- the corpus ----------------------------------------------------------- */

enum {
    VECTORS = 33,           /* at least that many */
    CHECKS_OF_A_VECTOR = 8, /* see check_vector() */
    CHECKS_OF_STREAMS = 3
};

static int
slurp(agent_buf_t *b, const char *path)
{
    char tmp[65536];
    size_t n;
    FILE *f = fopen(path, "rb");

    agent_buf_init(b, &agent_alloc_libc);
    agent_buf_reserve(b, 1);

    if (f == NULL) {
        return 0;
    }

    while ((n = fread(tmp, 1, sizeof(tmp), f)) > 0) {
        agent_buf_add(b, tmp, n);
    }

    fclose(f);

    return 1;
}

static agent_str_t
member(const json_t *object, const char *key)
{
    agent_str_t s = AGENT_STR("");

    (void) agent_json_str(object, key, &s);

    return s;
}

/* "pending_at_eof" says what the standard drops and agent_sse_end() reports,
 * all but its id. */
static void
expect_pending(reading_t *want, const json_t *pending)
{
    agent_str_t data, line;
    agent_buf_t joined;

    if (!json_is_object(pending)) {
        return;
    }

    data = member(pending, "data");
    line = member(pending, "unterminated_line");

    agent_buf_init(&joined, &agent_alloc_libc);
    agent_buf_add_str(&joined, data);

    if (line.len > 5 && memcmp(line.data, "data:", 5) == 0) {
        agent_buf_add(&joined, line.data + 5, line.len - 5);
    }

    want->pending = 1;
    agent_buf_add_lit(&want->after, "message<");
    agent_buf_add_str(&want->after, agent_buf_str(&joined));
    agent_buf_add_lit(&want->after, ">");
    agent_buf_free(&joined);
}

static void
expect_vector(reading_t *want, const json_t *root)
{
    size_t i;
    json_t *ev;
    const json_t *retry = json_object_get(root, "retry");

    memset(want, 0, sizeof(*want));
    agent_buf_init(&want->events, &agent_alloc_libc);
    agent_buf_init(&want->after, &agent_alloc_libc);

    json_array_foreach(json_object_get(root, "events"), i, ev)
    {
        write_event(&want->events, member(ev, "event"), member(ev, "data"),
                    member(ev, "last_event_id"), 0);
    }

    expect_pending(want, json_object_get(root, "pending_at_eof"));

    if (json_is_integer(retry)) {
        want->has_retry = 1;
        want->retry = (uint64_t) json_integer_value(retry);
    }
}

static void
check_vector(agent_str_t in, const json_t *root, const char *name)
{
    size_t n;
    reading_t want, got;

    expect_vector(&want, root);

    read_cut(&got, in, NULL, 0, 0, &agent_alloc_libc);

    /* what the expectation leaves open is what the first reading gave */

    if (json_object_get(root, "retry") == NULL) {
        want.has_retry = got.has_retry;
        want.retry = got.retry;
    }

    n = want.after.len;

    if (n != 0 && got.after.len > n) {
        agent_buf_add(&want.after, got.after.data + n, got.after.len - n);
    }

    ok(same_or_tell(&got, &want), "%s: whole", name);
    ok(try_bytes(in, 0, &want), "%s: byte by byte", name);
    ok(try_splits(in, &want), "%s: every split", name);
    ok(try_random(in, 200, &want), "%s: 200 random cuts", name);
    check_rewritten(in, &want, name);

    reading_free(&got);
    reading_free(&want);
}

static int
is_vector(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return n > 4 && strcmp(e->d_name + n - 4, ".sse") == 0;
}

static void
check_vectors(const char *corpus)
{
    int i, n;
    char path[4096];
    json_t *root;
    agent_buf_t in;
    struct dirent **names;

    snprintf(path, sizeof(path), "%s/sse-vectors", corpus);
    n = scandir(path, &names, is_vector, alphasort);
    ok(n >= VECTORS, "the corpus has its vectors");

    for (i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/sse-vectors/%.*s.expect.json", corpus,
                 (int) strlen(names[i]->d_name) - 4, names[i]->d_name);
        root = json_load_file(path, JSON_ALLOW_NUL, NULL);

        snprintf(path, sizeof(path), "%s/sse-vectors/%s", corpus,
                 names[i]->d_name);

        if (slurp(&in, path) && root != NULL) {
            check_vector(agent_buf_str(&in), root, names[i]->d_name);
        } else {
            ok(0, "%s can be read", path);
        }

        agent_buf_free(&in);
        json_decref(root);
        free(names[i]);
    }

    if (n >= 0) {
        free(names);
    }
}

/* Recordings: the slicing must not show. */
static int
check_stream(const char *path)
{
    int fine;
    agent_buf_t in, b;
    agent_str_t s;
    reading_t want;

    if (!slurp(&in, path)) {
        return 0;
    }

    s = agent_buf_str(&in);
    read_cut(&want, s, NULL, 0, 0, &agent_alloc_libc);
    fine = want.rc == AGENT_OK && try_bytes(s, 0, &want) &&
           try_random(s, 20, &want);

    rewrite_eol(&b, s, "\r\n");
    fine = try_rewritten(&b, &want) && fine;
    rewrite_comments(&b, s);
    fine = try_rewritten(&b, &want) && fine;

    if (!fine) {
        printf("# in %s\n", path);
    }

    reading_free(&want);
    agent_buf_free(&in);

    return fine;
}

static int
not_dot(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Checks the recordings below a folder; returns how many were wrong. */
static int
check_folder(const char *folder, int *count)
{
    int i, n, bad = 0;
    char path[4096];
    struct dirent **names;

    n = scandir(folder, &names, not_dot, alphasort);

    for (i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);

        if (is_vector(names[i])) {
            (*count)++;
            bad += !check_stream(path);
        } else if (strchr(names[i]->d_name, '.') == NULL) {
            bad += check_folder(path, count);
        }

        free(names[i]);
    }

    if (n >= 0) {
        free(names);
    }

    return bad;
}

static void
check_streams(const char *corpus)
{
    int count = 0;
    char path[4096];

    snprintf(path, sizeof(path), "%s/streams", corpus);
    ok(check_folder(path, &count) == 0, "streams: the slicing does not show");
    snprintf(path, sizeof(path), "%s/quirks", corpus);
    ok(check_folder(path, &count) == 0, "quirks: the slicing does not show");
    ok(count > 0, "the corpus has recordings");
}

static void
test_corpus(void)
{
    char path[4096];
    const char *corpus = getenv("AGENT_CORPUS");
    DIR *dir;

    if (corpus == NULL || *corpus == '\0') {
        corpus = "../shared/corpus";
    }

    snprintf(path, sizeof(path), "%s/sse-vectors", corpus);
    dir = opendir(path);

    if (dir == NULL) {
        printf("# corpus not found at %s, %d checks left out\n", corpus,
               VECTORS * CHECKS_OF_A_VECTOR + CHECKS_OF_STREAMS + 1);

        if (getenv("CI") != NULL) {
            ok(0, "CI has the corpus");
        }

        return;
    }

    closedir(dir);
    check_vectors(corpus);
    check_streams(corpus);
}

/* --- rules ---------------------------------------------------------------- */

typedef struct {
    const char *name;
    agent_str_t in;
    const char *events;
    const char *after;
    int pending;
} rule_t;

static const rule_t rules[] = {
    {"nothing", agent_str(""), "", "", 0},
    {"blank lines", agent_str("\n\r\n\r\r\n"), "", "", 0},
    {"a space after the colon goes", agent_str("data: a\n\n"), "message<a>;",
     "", 0},
    {"only one", agent_str("data:  a \n\n"), "message< a >;", "", 0},
    {"a tab stays", agent_str("data:\ta\n\n"), "message<\ta>;", "", 0},
    {"no colon", agent_str("data\n\n"), "message<>;", "", 0},
    {"bare data:", agent_str("data:\n\n"), "message<>;", "", 0},
    {"lines join", agent_str("data: a\ndata:\ndata: b\n\n"), "message<a\n\nb>;",
     "", 0},
    {"two empty lines join", agent_str("data\ndata\n\n"), "message<\n>;", "",
     0},
    {"colons in data", agent_str("data: a:b: c\n\n"), "message<a:b: c>;", "",
     0},
    {"mixed ends", agent_str("data: a\rdata: b\r\ndata: c\n\r\ndata: d\r\r"),
     "message<a\nb\nc>;message<d>;", "", 0},
    {"CR LF CR is two ends", agent_str("data: a\r\n\rdata: b\n\n"),
     "message<a>;message<b>;", "", 0},
    {"CR CR LF is two ends", agent_str("data: a\r\r\ndata: b\n\n"),
     "message<a>;message<b>;", "", 0},
    {"LF CR is two ends", agent_str("data: a\n\rdata: b\n\n"),
     "message<a>;message<b>;", "", 0},
    {"other separators", agent_str("data: a\xc2\x85z\xe2\x80\xa8y\x0b\x0c\n\n"),
     "message<a\xc2\x85z\xe2\x80\xa8y\x0b\x0c>;", "", 0},
    {"comments", agent_str(":\n: x\n:data: x\ndata: a\n:y\ndata: b\n\n"),
     "message<a\nb>;", "", 0},
    {"an unfinished comment", agent_str("data: a\n\n: keep"), "message<a>;", "",
     0},
    {"a type", agent_str("event: t\ndata: a\n\ndata: b\n\n"),
     "t<a>;message<b>;", "", 0},
    {"the last type counts", agent_str("event: t\ndata: a\nevent: u\n\n"),
     "u<a>;", "", 0},
    {"an empty type", agent_str("event: t\nevent\ndata: a\n\n"), "message<a>;",
     "", 0},
    {"a type without data goes", agent_str("event: t\n\ndata: a\n\n"),
     "message<a>;", "", 0},
    {"ids persist", agent_str("id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n"),
     "message<a>1;message<b>1;message<c>;", "", 0},
    {"an id without data", agent_str("id: 1\n\ndata: a\n\n"), "message<a>1;",
     "", 0},
    {"an id with NUL", agent_str("id: 1\nid: 2\0\ndata: a\n\n"), "message<a>1;",
     "", 0},
    {"unknown fields",
     agent_str("Data: x\n data: x\ndata : x\ndat: x\ndatax\nfoo\nevents: x\n"
               "data: a\n\n"),
     "message<a>;", "", 0},
    {"a BOM goes",
     agent_str("\xef\xbb\xbf"
               "data: a\n\n"),
     "message<a>;", "", 0},
    {"only at the start",
     agent_str("\n\xef\xbb\xbf"
               "data: a\n\ndata: b\n\n"),
     "message<b>;", "", 0},
    {"only one",
     agent_str("\xef\xbb\xbf\xef\xbb\xbf"
               "data: a\n\n"),
     "", "", 0},
    {"half a BOM is a name",
     agent_str("\xef\xbb"
               "data: a\ndata: b\n\n"),
     "message<b>;", "", 0},
    {"half a BOM, then an end", agent_str("\xef\ndata: b\n\n"), "message<b>;",
     "", 0},
    {"nothing but half a BOM", agent_str("\xef\xbb"), "", "", 0},
    {"a missing blank line", agent_str("data: a\n\nevent: t\ndata: b\n"),
     "message<a>;", "t<b>;", 1},
    {"a missing end of line", agent_str("data: a\ndata: b"), "",
     "message<a\nb>;", 1},
    {"a blank line of half a CRLF", agent_str("data: a\r\n\r"), "message<a>;",
     "", 0},
    {"a last bare data", agent_str("data"), "", "message<>;", 1},
    {"a last half name", agent_str("data: a\ndat"), "", "message<a>;", 1},
    {"a last type alone", agent_str("event: t\n"), "", "", 1},
    {"a field error", agent_str("error: {\"a\":1}\n\ndata: b\n\n"),
     "!message<{\"a\":1}>;message<b>;", "", 0},
    {"it leaves data alone", agent_str("data: a\nerror: e\ndata: b\n\n"),
     "!message<e>;message<a\nb>;", "", 0},
    {"it may come last", agent_str("id: 1\nevent: t\nerror: e"), "", "!t<e>1;",
     1},
    {"errors is no error", agent_str("errors: e\nError: e\n\n"), "", "", 0},
    {"invalid UTF-8", agent_str("data: \xff\xc3(\n\n"),
     "message<\xef\xbf\xbd\xef\xbf\xbd(>;", "", 0},
};

static void
test_rules(void)
{
    size_t i;
    reading_t want;

    for (i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const rule_t *r = &rules[i];

        memset(&want, 0, sizeof(want));
        agent_buf_init(&want.events, &agent_alloc_libc);
        agent_buf_init(&want.after, &agent_alloc_libc);
        agent_buf_add(&want.events, r->events, strlen(r->events));
        agent_buf_add(&want.after, r->after, strlen(r->after));
        want.pending = r->pending;

        ok(try_whole(r->in, &want) && try_bytes(r->in, 0, &want) &&
               try_splits(r->in, &want) && try_random(r->in, 50, &want),
           "%s", r->name);

        reading_free(&want);
    }
}

static void
test_retry(void)
{
    static const struct {
        agent_str_t in;
        int has;
        uint64_t n;
    } cases[] = {
        {agent_str("retry: 0\n"), 1, 0},
        {agent_str("retry:0200\n"), 1, 200},
        {agent_str("retry: 18446744073709551615\n"), 1, UINT64_MAX},
        {agent_str("retry: 18446744073709551616\n"), 0, 0},
        {agent_str("retry\n"), 0, 0},
        {agent_str("retry: -1\n"), 0, 0},
        {agent_str("retry:  1\n"), 0, 0},
        {agent_str("retry: 1 \n"), 0, 0},
        {agent_str("retry: 1\0\n"), 0, 0},
        {agent_str("retry: 5\nretry: x\n"), 1, 5},
        {agent_str("retry: 7"), 1, 7},
    };
    size_t i;
    reading_t r;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        read_cut(&r, cases[i].in, NULL, 0, 0, &agent_alloc_libc);
        ok(r.has_retry == cases[i].has && r.retry == cases[i].n,
           "retry case %zu", i);
        reading_free(&r);
    }
}

/* --- limits --------------------------------------------------------------- */

static void
test_limits(void)
{
    static const struct {
        const char *name;
        agent_str_t in;
        size_t max;
        agent_rc_t rc;
    } cases[] = {
        {"data of the limit", agent_str("data: 12345678\n\n"), 8, AGENT_OK},
        {"data beyond", agent_str("data: 123456789\n\n"), 8, AGENT_TOO_LARGE},
        {"data beyond, no space", agent_str("data:123456789\n\n"), 8,
         AGENT_TOO_LARGE},
        {"an endless line", agent_str("data: 12345678901234567890"), 8,
         AGENT_TOO_LARGE},
        {"joined of the limit", agent_str("data: 1234\ndata: 123\n\n"), 8,
         AGENT_OK},
        {"joined beyond", agent_str("data: 1234\ndata: 1234\n\n"), 8,
         AGENT_TOO_LARGE},
        {"many empty lines", agent_str("data\ndata\ndata\ndata\n"), 2,
         AGENT_TOO_LARGE},
        {"a type of the limit", agent_str("event: 12345678\n"), 8, AGENT_OK},
        {"a type beyond", agent_str("event:123456789\n"), 8, AGENT_TOO_LARGE},
        {"an id beyond", agent_str("id:123456789\n"), 8, AGENT_TOO_LARGE},
        {"an error beyond", agent_str("error:123456789\n"), 8, AGENT_TOO_LARGE},
        {"a last line beyond", agent_str("data:123456789"), 8, AGENT_TOO_LARGE},
        {"comments have no limit", agent_str(": 12345678901234567890\n\n"), 8,
         AGENT_OK},
        {"unknown fields have", agent_str("x: 12345678901234567890\n\n"), 8,
         AGENT_TOO_LARGE},
    };
    size_t i;
    reading_t r;

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        read_cut(&r, cases[i].in, NULL, 0, cases[i].max, &agent_alloc_libc);
        ok(r.rc == cases[i].rc && try_bytes(cases[i].in, cases[i].max, &r),
           "limit: %s", cases[i].name);
        reading_free(&r);
    }
}

/* A stream of one kind of byte: time and memory stay linear. */
static void
test_large(void)
{
    size_t i, n = 4 << 20;
    char *p = malloc(n);
    const char *kinds = "\r\n:x";
    flaky_t flaky = {-1, 0, 0, 0};
    agent_alloc_t alloc = {flaky_resize, &flaky};
    agent_sse_t s;

    for (; *kinds != '\0'; kinds++) {
        memset(p, *kinds, n);
        agent_sse_init(&s, *kinds == 'x' ? 1000 : 0, collect, NULL, &alloc);
        ok(agent_sse_feed(&s, p, n) ==
               (*kinds == 'x' ? AGENT_TOO_LARGE : AGENT_OK),
           "4 MB of 0x%02x", *kinds);
        agent_sse_free(&s);
    }

    flaky.calls = 0;
    memset(p, 'x', n);
    p[0] = ':';
    agent_sse_init(&s, 1000, collect, NULL, &alloc);

    for (i = 0; i < n; i += 1024) {
        (void) agent_sse_feed(&s, p + i, 1024);
    }

    ok(s.line.cap <= 64 && agent_sse_end(&s) == AGENT_OK,
       "a long comment is not kept");
    agent_sse_free(&s);
    ok(flaky.live == 0, "nothing leaks");
    free(p);
}

/* --- handlers ------------------------------------------------------------- */

typedef struct {
    const char *start, *end;
    int inside;
    int count;
    int stop_at;
    agent_rc_t rc;
} probe_t;

static agent_rc_t
probe(void *ctx, const agent_sse_event_t *ev)
{
    probe_t *p = ctx;

    p->inside += ev->data.data >= p->start && ev->data.data <= p->end;

    return ++p->count == p->stop_at ? p->rc : AGENT_OK;
}

static void
test_handler(void)
{
    static const char in[] = "data: one\n\ndata: two\r\n\r\n: x\ndata: 3\n\n";
    static const agent_rc_t codes[] = {AGENT_DONE, AGENT_ABORTED, AGENT_INVALID,
                                       AGENT_NOMEM};
    size_t i;
    flaky_t flaky = {0, 0, 0, 0};
    agent_alloc_t alloc = {flaky_resize, &flaky};
    agent_sse_t s;
    probe_t p;

    memset(&p, 0, sizeof(p));
    p.start = in;
    p.end = in + sizeof(in);

    agent_sse_init(&s, 0, probe, &p, &alloc);
    ok(agent_sse_feed(&s, in, sizeof(in) - 1) == AGENT_OK && p.count == 3,
       "whole events");
    ok(p.inside == 3 && flaky.calls == 0, "are reported without a copy");
    ok(!agent_sse_pending(&s), "and nothing is left");
    agent_sse_free(&s);

    for (i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        p.count = 0;
        p.stop_at = 2;
        p.rc = codes[i];
        agent_sse_init(&s, 0, probe, &p, &agent_alloc_libc);
        ok(agent_sse_feed(&s, in, sizeof(in) - 1) == codes[i] && p.count == 2,
           "a handler's %d stops the feed", codes[i]);
        agent_sse_free(&s);
    }

    p.count = 0;
    p.stop_at = 1;
    agent_sse_init(&s, 0, probe, &p, &agent_alloc_libc);
    ok(agent_sse_feed(&s, "data: x", 7) == AGENT_OK && agent_sse_pending(&s) &&
           agent_sse_end(&s) == AGENT_NOMEM,
       "and the end");
    agent_sse_free(&s);
}

/* --- a slow reader as a second opinion ------------------------------------ */

typedef struct {
    agent_buf_t out, data, type, id;
    int has_data;
} slow_t;

static void
slow_dispatch(slow_t *w)
{
    if (w->has_data) {
        w->data.len--;
        write_event(&w->out, agent_buf_str(&w->type), agent_buf_str(&w->data),
                    agent_buf_str(&w->id), 0);
    }

    w->has_data = 0;
    w->data.len = 0;
    w->type.len = 0;
}

static int
is_named(agent_str_t name, const char *want)
{
    return name.len == strlen(want) && memcmp(name.data, want, name.len) == 0;
}

static void
slow_line(slow_t *w, agent_str_t line)
{
    size_t i = 0;
    agent_str_t name = line, value = AGENT_STR("");

    if (line.len == 0) {
        slow_dispatch(w);
        return;
    }

    while (i < line.len && line.data[i] != ':') {
        i++;
    }

    name.len = i;

    if (i < line.len) {
        i += i + 1 < line.len && line.data[i + 1] == ' ' ? 2 : 1;
        value.data = line.data + i;
        value.len = line.len - i;
    }

    if (is_named(name, "data")) {
        agent_buf_add_str(&w->data, value);
        agent_buf_add_char(&w->data, '\n');
        w->has_data = 1;
    } else if (is_named(name, "event")) {
        w->type.len = 0;
        agent_buf_add_str(&w->type, value);
    } else if (is_named(name, "id")) {
        if (value.len == 0 || memchr(value.data, 0, value.len) == NULL) {
            w->id.len = 0;
            agent_buf_add_str(&w->id, value);
        }
    } else if (is_named(name, "error")) {
        write_event(&w->out, agent_buf_str(&w->type), value,
                    agent_buf_str(&w->id), 1);
    }
}

static void
slow_read(slow_t *w, agent_str_t in)
{
    size_t i = bom_len(in), start = i;
    agent_str_t line;

    memset(w, 0, sizeof(*w));
    agent_buf_init(&w->out, &agent_alloc_libc);
    agent_buf_init(&w->data, &agent_alloc_libc);
    agent_buf_init(&w->type, &agent_alloc_libc);
    agent_buf_init(&w->id, &agent_alloc_libc);

    for (; i < in.len; i++) {
        if (in.data[i] != '\n' && in.data[i] != '\r') {
            continue;
        }

        line.data = in.data + start;
        line.len = i - start;
        slow_line(w, line);
        i += in.data[i] == '\r' && i + 1 < in.len && in.data[i + 1] == '\n';
        start = i + 1;
    }

    line.data = in.data + start;
    line.len = in.len - start;

    if (line.len != 0) {
        slow_line(w, line);
    }

    slow_dispatch(w);
}

static void
slow_free(slow_t *w)
{
    agent_buf_free(&w->out);
    agent_buf_free(&w->data);
    agent_buf_free(&w->type);
    agent_buf_free(&w->id);
}

static void
random_stream(agent_buf_t *b)
{
    static const agent_str_t words[] = {
        agent_str("\n"),     agent_str("\r"),       agent_str("\r\n"),
        agent_str("\n\n"),   agent_str("data:"),    agent_str("data: "),
        agent_str("data"),   agent_str("event:"),   agent_str("id: "),
        agent_str("error:"), agent_str("retry:1"),  agent_str(":"),
        agent_str(" "),      agent_str("x"),        agent_str("\0"),
        agent_str("\xef"),   agent_str("\xbb\xbf"), agent_str("\xef\xbb\xbf"),
    };
    size_t n = rnd(40);

    agent_buf_init(b, &agent_alloc_libc);
    agent_buf_reserve(b, 1);

    while (n-- > 0) {
        agent_buf_add_str(b, words[rnd(sizeof(words) / sizeof(words[0]))]);
    }
}

static void
test_random(void)
{
    int i, fine = 1;
    slow_t w;
    reading_t r;
    agent_buf_t in, all;
    agent_str_t s;

    for (i = 0; i < 20000 && fine; i++) {
        random_stream(&in);
        s = agent_buf_str(&in);

        slow_read(&w, s);
        read_cut(&r, s, NULL, 0, 0, &agent_alloc_libc);

        agent_buf_init(&all, &agent_alloc_libc);
        agent_buf_add_str(&all, agent_buf_str(&r.events));
        agent_buf_add_str(&all, agent_buf_str(&r.after));

        fine = agent_str_eq(agent_buf_str(&all), agent_buf_str(&w.out)) &&
               try_bytes(s, 0, &r) && try_random(s, 3, &r);

        if (!fine) {
            is_bytes(all.data, all.len, w.out.data, w.out.len, "random");
        }

        agent_buf_free(&all);
        reading_free(&r);
        slow_free(&w);
        agent_buf_free(&in);
    }

    ok(fine, "random streams read as by the slow reader, in any slicing");
}

/* --- memory --------------------------------------------------------------- */

static void
test_memory(void)
{
    static const agent_str_t in = agent_str(
        "\xef\xbb"
        "junk\nevent: a type longer than the first block of a buffer, which "
        "has 64 bytes\nid: 1\ndata: one\ndata: two, a line longer than the "
        "first block of a buffer, which has 64 bytes\n\nerror: e\n\nda");
    static const size_t cuts[] = {1, 2, 9, 30, 100, 105, 120, 180};
    long n, fired = 0;
    int fine = 1;
    flaky_t flaky;
    agent_alloc_t alloc = {flaky_resize, &flaky};
    reading_t r, want;

    read_cut(&want, in, cuts, sizeof(cuts) / sizeof(cuts[0]), 0,
             &agent_alloc_libc);
    ok(want.rc == AGENT_OK && want.events.len > 0, "with enough memory");

    for (n = 0;; n++) {
        memset(&flaky, 0, sizeof(flaky));
        flaky.left = n;
        read_cut(&r, in, cuts, sizeof(cuts) / sizeof(cuts[0]), 0, &alloc);

        fine = fine && flaky.live == 0 &&
               (flaky.fired ? r.rc == AGENT_NOMEM : same(&r, &want));
        reading_free(&r);

        if (!flaky.fired) {
            break;
        }

        fired++;
    }

    ok(fine, "each allocation that fails is AGENT_NOMEM, nothing leaks");
    ok(fired >= 6, "%ld allocations failed", fired);
    reading_free(&want);
}

int
main(void)
{
    test_rules();
    test_retry();
    test_limits();
    test_large();
    test_handler();
    test_random();
    test_memory();
    test_corpus();

    return done_testing();
}
