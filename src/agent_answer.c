#include "agent_codec.h"
#include "agent_json.h"

#include <string.h>
#include <strings.h>

#define AGENT_ANSWER_MAX_EVENT ((size_t) 4 << 20)
#define AGENT_ANSWER_MAX_BODY  ((size_t) 256 << 20)
#define AGENT_ANSWER_MAX_ERROR ((size_t) 64 << 10)
#define AGENT_ANSWER_MAX_BLANK 4096 /* of one line before the first byte */

/* of one event or JSON text, so that it does not hold the loop */
#define AGENT_ANSWER_MAX_DEPTH  512
#define AGENT_ANSWER_MAX_VALUES 32768

#define AGENT_ANSWER_BOM "\xef\xbb\xbf"

/* What an answer is waiting for. */
typedef enum {
    AGENT_ANSWER_SNIFF = 0, /* the first bytes, which tell what it is */
    AGENT_ANSWER_SSE,
    AGENT_ANSWER_LINES,   /* one JSON text a line */
    AGENT_ANSWER_JSON,    /* the end of one JSON text */
    AGENT_ANSWER_REFUSED, /* the end of the body of a bad status */
    AGENT_ANSWER_DONE,    /* nothing: the last delta has been emitted */
    AGENT_ANSWER_BROKEN   /* nothing: memory ran out or emit stopped it */
} agent_answer_state_t;

typedef enum {
    AGENT_MEDIA_OTHER = 0,
    AGENT_MEDIA_SSE,
    AGENT_MEDIA_LINES
} agent_media_t;

struct agent_answer_s {
    const agent_codec_t *codec;
    const agent_alloc_t *alloc;
    void *dec; /* of the codec, owned */
    agent_delta_pt emit;
    void *ctx;
    agent_answer_limits_t limits;
    agent_answer_state_t state;
    agent_media_t media;
    agent_rc_t rc; /* why it is broken */
    unsigned status;
    unsigned retry_after;
    size_t total; /* body bytes so far */
    agent_sse_t sse;
    agent_buf_t body; /* first bytes, a JSON text or an error body */
    unsigned content : 1;
    unsigned last : 1;    /* FINISH or ERROR has been emitted */
    unsigned stopped : 1; /* by emit */
    unsigned ending : 1;  /* the transfer is over */
    unsigned midline : 1; /* AGENT_ANSWER_LINES: inside a line */
};

static inline int
agent_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static agent_str_t
agent_trim(agent_str_t s)
{
    while (s.len != 0 && agent_is_space(s.data[0])) {
        s.data++;
        s.len--;
    }

    while (s.len != 0 && agent_is_space(s.data[s.len - 1])) {
        s.len--;
    }

    return s;
}

static int
agent_is_media(agent_str_t s, const char *type)
{
    return s.len == strlen(type) && strncasecmp(s.data, type, s.len) == 0;
}

/* --- the way out ---------------------------------------------------------- */

static agent_rc_t
agent_answer_emit(void *ctx, const agent_delta_t *delta)
{
    agent_answer_t *a = ctx;
    agent_delta_t d = *delta;
    agent_fault_t fault;
    agent_rc_t rc;

    if (a->last) {
        return AGENT_DONE;
    }

    if (d.type == AGENT_DELTA_ERROR) {
        fault = *d.fault;
        agent_codec_mask(&fault, a->limits.secret);

        if (a->retry_after != 0 &&
            (fault.code == AGENT_CODE_UPSTREAM_RATE_LIMITED ||
             fault.code == AGENT_CODE_UPSTREAM_OVERLOADED)) {
            fault.retry_after = a->retry_after;
        }

        d.fault = &fault;
        a->last = 1;

    } else if (d.type == AGENT_DELTA_FINISH) {
        a->last = 1;

    } else {
        a->content = 1;
    }

    rc = a->emit(a->ctx, &d);
    a->stopped = rc != AGENT_OK;

    return rc;
}

static agent_rc_t
agent_answer_fail(agent_answer_t *a, const agent_fault_t *fault)
{
    agent_delta_t d;
    agent_rc_t rc;

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = AGENT_DELTA_ERROR;
    d.fault = fault;

    rc = agent_answer_emit(a, &d);

    a->state = rc == AGENT_OK ? AGENT_ANSWER_DONE : AGENT_ANSWER_BROKEN;
    a->rc = rc;

    return rc == AGENT_OK ? AGENT_DONE : rc;
}

static agent_rc_t
agent_answer_error(agent_answer_t *a, agent_code_t code, const char *what)
{
    agent_fault_t f;

    agent_fault_set(&f, code, "the model server%s", what);

    return agent_answer_fail(a, &f);
}

static agent_rc_t
agent_answer_not_ours(agent_answer_t *a)
{
    return agent_answer_error(a, AGENT_CODE_UPSTREAM_ERROR,
                              "'s answer is not an event stream");
}

/* Every step ends here: "rc" of a decoder or reader becomes a state. */
static agent_rc_t
agent_answer_result(agent_answer_t *a, agent_rc_t rc)
{
    if (rc == AGENT_OK) {
        return rc;
    }

    if (!a->stopped) {
        switch (rc) {
        case AGENT_DONE:
            a->state = AGENT_ANSWER_DONE;
            return rc;

        case AGENT_TOO_LARGE:
            return agent_answer_error(a, AGENT_CODE_UPSTREAM_ERROR,
                                      " sent too much at once");

        case AGENT_INVALID:
            return agent_answer_error(a, AGENT_CODE_UPSTREAM_ERROR,
                                      " sent bad JSON");

        default:
            break;
        }
    }

    a->state = AGENT_ANSWER_BROKEN;
    a->rc = rc;

    return rc;
}

/* --- life ----------------------------------------------------------------- */

/*
 * A cut leaves the beginning of an event.  It must not be mistaken for a server
 * that sends bad JSON, nor undo a finish that has been seen.
 */
static int
agent_answer_is_whole(agent_str_t data)
{
    data = agent_trim(data);

    if (data.len == 0 || (data.data[0] != '{' && data.data[0] != '[')) {
        return 1;
    }

    return agent_json_skip(data.data, data.data + data.len) != NULL;
}

/* Each value has a byte and a separator at least: short texts pass unread. */
static int
agent_answer_is_simple(agent_str_t text)
{
    agent_fault_t fault;
    static const agent_json_limits_t limits = {AGENT_ANSWER_MAX_DEPTH,
                                               AGENT_ANSWER_MAX_VALUES};

    return text.len <= AGENT_ANSWER_MAX_VALUES ||
           agent_json_within(text, &limits, &fault);
}

static agent_rc_t
agent_answer_event(void *ctx, const agent_sse_event_t *ev)
{
    agent_answer_t *a = ctx;

    if (!agent_answer_is_simple(ev->data)) {
        return AGENT_TOO_LARGE;
    }

    if (a->ending && !agent_answer_is_whole(ev->data)) {
        return AGENT_OK;
    }

    return a->codec->event(a->dec, ev);
}

agent_answer_t *
agent_answer_create(const agent_codec_t *codec, agent_delta_pt emit, void *ctx,
                    agent_str_t seed, const agent_answer_limits_t *limits,
                    const agent_alloc_t *alloc)
{
    agent_answer_t *a;

    a = agent_calloc(alloc, sizeof(agent_answer_t));
    if (a == NULL) {
        return NULL;
    }

    a->codec = codec;
    a->alloc = alloc;
    a->emit = emit;
    a->ctx = ctx;
    a->status = 200;

    if (limits != NULL) {
        a->limits = *limits;
    }

    if (a->limits.max_event == 0) {
        a->limits.max_event = AGENT_ANSWER_MAX_EVENT;
    }

    if (a->limits.max_body == 0) {
        a->limits.max_body = AGENT_ANSWER_MAX_BODY;
    }

    agent_buf_init(&a->body, alloc);
    agent_sse_init(&a->sse, a->limits.max_event, agent_answer_event, a, alloc);

    a->dec = codec->open(agent_answer_emit, a, seed, alloc);
    if (a->dec == NULL) {
        agent_answer_destroy(a);
        return NULL;
    }

    return a;
}

void
agent_answer_destroy(agent_answer_t *a)
{
    if (a == NULL) {
        return;
    }

    if (a->dec != NULL) {
        a->codec->close(a->dec);
    }

    agent_sse_free(&a->sse);
    agent_buf_free(&a->body);
    agent_free(a->alloc, a);
}

void
agent_answer_head(agent_answer_t *a, unsigned status, agent_str_t content_type,
                  unsigned retry_after)
{
    size_t i;
    agent_str_t type = content_type;

    for (i = 0; i < type.len; i++) {
        if (type.data[i] == ';') {
            type.len = i;
        }
    }

    type = agent_trim(type);

    if (agent_is_media(type, "text/event-stream")) {
        a->media = AGENT_MEDIA_SSE;

    } else if (agent_is_media(type, "application/x-ndjson") ||
               agent_is_media(type, "application/ndjson") ||
               agent_is_media(type, "application/jsonl")) {
        a->media = AGENT_MEDIA_LINES;

    } else {
        a->media = AGENT_MEDIA_OTHER;
    }

    a->status = status;
    a->retry_after = retry_after;
    a->state = status >= 200 && status < 300 ? AGENT_ANSWER_SNIFF
                                             : AGENT_ANSWER_REFUSED;
}

int
agent_answer_has_content(const agent_answer_t *a)
{
    return a->content;
}

/* --- the body of a bad status --------------------------------------------- */

static agent_rc_t
agent_answer_refused(agent_answer_t *a)
{
    int nomem;
    agent_rc_t rc;
    size_t valid;
    json_t *root = NULL;
    agent_str_t text = agent_trim(agent_buf_str(&a->body));
    agent_fault_t f;

    if (text.len != 0 && text.data[0] != '<') {
        root = agent_json_load_lenient(text, a->alloc, &nomem);

        if (root == NULL && nomem) {
            return agent_answer_result(a, AGENT_NOMEM);
        }

        /* plain text, which the limit may have cut inside a character */

        valid = agent_utf8_valid(text);

        if (root == NULL && text.len - valid < 4) {
            root = json_stringn(text.data, valid);

            if (root == NULL) {
                return agent_answer_result(a, AGENT_NOMEM);
            }
        }
    }

    agent_codec_fault(&f, a->status, root);
    rc = agent_answer_fail(a, &f);

    json_decref(root);

    return rc;
}

static agent_rc_t
agent_answer_collect(agent_answer_t *a, const char *p, size_t n)
{
    size_t room = AGENT_ANSWER_MAX_ERROR - a->body.len;

    agent_buf_add(&a->body, p, n < room ? n : room);

    if (!agent_buf_ok(&a->body)) {
        return agent_answer_result(a, AGENT_NOMEM);
    }

    return n < room ? AGENT_OK : agent_answer_refused(a);
}

/* --- one JSON text -------------------------------------------------------- */

/* Servers that ignore "stream" may still end with the marker of a stream. */
static agent_str_t
agent_answer_unglue(agent_str_t text)
{
    static const agent_str_t tails[] = {agent_str("[DONE]"),
                                        agent_str("data:")};
    agent_str_t cut = text;
    size_t i, n;

    for (i = 0; i < 2; i++) {
        cut = agent_trim(cut);
        n = tails[i].len;

        if (cut.len < n ||
            memcmp(cut.data + cut.len - n, tails[i].data, n) != 0) {
            return text;
        }

        cut.len -= n;
    }

    return cut;
}

static agent_rc_t
agent_answer_json(agent_answer_t *a, int clean)
{
    int nomem;
    json_t *root;
    agent_rc_t rc;
    agent_str_t text;

    text = agent_answer_unglue(agent_buf_str(&a->body));

    if (!agent_answer_is_simple(text)) {
        return agent_answer_result(a, AGENT_TOO_LARGE);
    }

    root = agent_json_load_lenient(text, a->alloc, &nomem);

    if (root == NULL) {
        if (nomem) {
            return agent_answer_result(a, AGENT_NOMEM);
        }

        if (!clean || !agent_answer_is_whole(text)) {
            return agent_answer_error(a, AGENT_CODE_UPSTREAM_TRUNCATED,
                                      "'s answer ended early");
        }

        return agent_answer_result(a, AGENT_INVALID);
    }

    rc = a->codec->json(a->dec, root);

    rc = rc == AGENT_INVALID && !a->stopped ? agent_answer_not_ours(a)
                                            : agent_answer_result(a, rc);

    json_decref(root);

    return rc;
}

/* --- one JSON text a line ------------------------------------------------- */

/* Each line becomes an event for the reader of event streams. */
static agent_rc_t
agent_answer_lines(agent_answer_t *a, const char *p, size_t n)
{
    const char *end = p + n, *eol;
    agent_rc_t rc = AGENT_OK;

    while (p < end && rc == AGENT_OK) {
        if (!a->midline) {
            rc = agent_sse_feed(&a->sse, "data: ", 6);
            a->midline = 1;
            continue;
        }

        eol = memchr(p, '\n', (size_t) (end - p));

        if (eol == NULL) {
            return agent_sse_feed(&a->sse, p, (size_t) (end - p));
        }

        rc = agent_sse_feed(&a->sse, p, (size_t) (eol - p));

        if (rc == AGENT_OK) {
            rc = agent_sse_feed(&a->sse, "\n\n", 2);
        }

        a->midline = 0;
        p = eol + 1;
    }

    return rc;
}

/* --- the first bytes ------------------------------------------------------ */

typedef enum {
    AGENT_FIRST_UNKNOWN = 0, /* more are wanted */
    AGENT_FIRST_FIELD,       /* of an event stream */
    AGENT_FIRST_JSON,
    AGENT_FIRST_OTHER
} agent_first_t;

/* Length of the byte order mark that s begins with. */
static size_t
agent_answer_bom(agent_str_t s)
{
    return s.len >= 3 && memcmp(s.data, AGENT_ANSWER_BOM, 3) == 0 ? 3 : 0;
}

/* What has come so far without that mark and blanks. */
static agent_str_t
agent_answer_gist(const agent_answer_t *a)
{
    agent_str_t s = agent_buf_str(&a->body);
    size_t bom = agent_answer_bom(s);

    if (bom != 0) { /* data is NULL while nothing has come */
        s.data += bom;
        s.len -= bom;
    }

    return agent_trim(s);
}

/* 1 when s begins with a field of an event stream, -1 when it still may. */
static int
agent_answer_is_field(agent_str_t s)
{
    static const char *const fields[] = {
        "data:", "event:", "id:", "retry:", "error:", ":"};
    size_t i, len, n;
    int may = 0;

    for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        len = strlen(fields[i]);
        n = s.len < len ? s.len : len;

        if (memcmp(s.data, fields[i], n) == 0) {
            if (n == len) {
                return 1;
            }

            may = -1;
        }
    }

    return may;
}

static agent_first_t
agent_answer_first(const agent_answer_t *a)
{
    agent_str_t s = agent_answer_gist(a);
    int field;

    if (s.len < 3 && s.len != 0 &&
        memcmp(s.data, AGENT_ANSWER_BOM, s.len) == 0) {
        return AGENT_FIRST_UNKNOWN;
    }

    if (s.len == 0) {
        return a->body.len > AGENT_ANSWER_MAX_BLANK ? AGENT_FIRST_OTHER
                                                    : AGENT_FIRST_UNKNOWN;
    }

    if (s.data[0] == '{' || s.data[0] == '[') {
        return AGENT_FIRST_JSON;
    }

    if (s.data[0] == '<') {
        return AGENT_FIRST_OTHER; /* HTML, whatever it is called */
    }

    if (a->media == AGENT_MEDIA_SSE) {
        return AGENT_FIRST_FIELD;
    }

    field = agent_answer_is_field(s);

    return field > 0   ? AGENT_FIRST_FIELD
           : field < 0 ? AGENT_FIRST_UNKNOWN
                       : AGENT_FIRST_OTHER;
}

/*
 * Blank lines before the first byte (some servers send them while they think)
 * are not kept.  The blanks of the last line are: one makes a field unknown.
 */
static void
agent_answer_drop_blank(agent_answer_t *a)
{
    agent_buf_t *b = &a->body;
    size_t bom = agent_answer_bom(agent_buf_str(b)), i, eol = 0;

    for (i = bom; i < b->len && agent_is_space(b->data[i]); i++) {
        if (b->data[i] == '\n' || b->data[i] == '\r') {
            eol = i + 1;
        }
    }

    if (eol > bom + 1) {
        b->data[bom] = '\n';
        memmove(b->data + bom + 1, b->data + eol, b->len - eol);
        b->len -= eol - bom - 1;
    }
}

static agent_rc_t agent_answer_more(agent_answer_t *a, const char *p, size_t n);

static agent_rc_t
agent_answer_sniff(agent_answer_t *a)
{
    agent_buf_t first;
    agent_rc_t rc;
    size_t bom;

    agent_answer_drop_blank(a);

    bom = agent_answer_bom(agent_buf_str(&a->body));

    switch (agent_answer_first(a)) {
    case AGENT_FIRST_UNKNOWN:
        return AGENT_OK;

    case AGENT_FIRST_FIELD:
        a->state = AGENT_ANSWER_SSE;
        bom = 0; /* its reader takes one off itself */
        break;

    case AGENT_FIRST_JSON:
        a->state = a->media == AGENT_MEDIA_LINES ? AGENT_ANSWER_LINES
                                                 : AGENT_ANSWER_JSON;
        break;

    case AGENT_FIRST_OTHER:
    default:
        return agent_answer_not_ours(a);
    }

    first = a->body;
    agent_buf_init(&a->body, a->alloc);

    rc = agent_answer_more(a, first.data + bom, first.len - bom);

    agent_buf_free(&first);

    return rc;
}

static agent_rc_t
agent_answer_more(agent_answer_t *a, const char *p, size_t n)
{
    switch (a->state) {
    case AGENT_ANSWER_SSE:
        return agent_answer_result(a, agent_sse_feed(&a->sse, p, n));

    case AGENT_ANSWER_LINES:
        return agent_answer_result(a, agent_answer_lines(a, p, n));

    case AGENT_ANSWER_REFUSED:
        return agent_answer_collect(a, p, n);

    case AGENT_ANSWER_JSON:
        if (n > a->limits.max_event - a->body.len) {
            return agent_answer_result(a, AGENT_TOO_LARGE);
        }

        agent_buf_add(&a->body, p, n);
        return agent_buf_ok(&a->body) ? AGENT_OK
                                      : agent_answer_result(a, AGENT_NOMEM);

    case AGENT_ANSWER_SNIFF:
        agent_buf_add(&a->body, p, n);
        return agent_buf_ok(&a->body) ? agent_answer_sniff(a)
                                      : agent_answer_result(a, AGENT_NOMEM);

    case AGENT_ANSWER_BROKEN:
        return a->rc;

    case AGENT_ANSWER_DONE:
    default:
        return AGENT_DONE;
    }
}

agent_rc_t
agent_answer_body(agent_answer_t *a, const char *p, size_t n)
{
    if (a->state < AGENT_ANSWER_DONE) {
        if (n > a->limits.max_body - a->total) {
            return agent_answer_error(a, AGENT_CODE_UPSTREAM_ERROR,
                                      " sent too much");
        }

        a->total += n;
    }

    return agent_answer_more(a, p, n);
}

agent_rc_t
agent_answer_end(agent_answer_t *a, int clean)
{
    agent_rc_t rc = AGENT_OK;

    a->ending = 1;

    switch (a->state) {
    case AGENT_ANSWER_SSE:
    case AGENT_ANSWER_LINES:
        if (clean) {
            rc = agent_sse_end(&a->sse);
        }

        if (rc == AGENT_OK) {
            rc = a->codec->end(a->dec, clean);
        }

        return agent_answer_result(a, rc);

    case AGENT_ANSWER_JSON:
        return agent_answer_json(a, clean);

    case AGENT_ANSWER_REFUSED:
        return agent_answer_refused(a);

    case AGENT_ANSWER_SNIFF:
        if (agent_answer_gist(a).len == 0) {
            return agent_answer_error(a, AGENT_CODE_UPSTREAM_TRUNCATED,
                                      "'s answer is empty");
        }

        return clean ? agent_answer_not_ours(a)
                     : agent_answer_error(a, AGENT_CODE_UPSTREAM_TRUNCATED,
                                          "'s answer ended early");

    case AGENT_ANSWER_BROKEN:
        return a->rc;

    case AGENT_ANSWER_DONE:
    default:
        return AGENT_DONE;
    }
}
