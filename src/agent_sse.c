#include "agent_sse.h"

#include <string.h>

#define AGENT_SSE_DECIDED 7 /* of agent_sse_t.bom */
#define AGENT_SSE_NAME    7 /* the longest "name: " before a value of ours */

static const char agent_sse_bom[] = {'\xef', '\xbb', '\xbf'};

/* One call of feed or end. */
typedef struct {
    agent_sse_t *s;
    const char *end;
    const char *lf;   /* next line feed at or behind the line's start, or end */
    const char *cr;   /* next carriage return, likewise */
    agent_str_t held; /* a data line not yet copied to s->data */
    int holds;
} agent_sse_feed_t;

void
agent_sse_init(agent_sse_t *s, size_t max_event, agent_sse_pt handler,
               void *ctx, const agent_alloc_t *alloc)
{
    memset(s, 0, sizeof(agent_sse_t));

    s->handler = handler;
    s->ctx = ctx;
    s->max_event = max_event;

    agent_buf_init(&s->line, alloc);
    agent_buf_init(&s->data, alloc);
    agent_buf_init(&s->type, alloc);
    agent_buf_init(&s->id, alloc);
}

void
agent_sse_free(agent_sse_t *s)
{
    agent_buf_free(&s->line);
    agent_buf_free(&s->data);
    agent_buf_free(&s->type);
    agent_buf_free(&s->id);
}

static agent_str_t
agent_sse_str(const agent_buf_t *b)
{
    return b->len != 0 ? agent_buf_str(b) : AGENT_STR("");
}

static agent_rc_t
agent_sse_set(agent_sse_t *s, agent_buf_t *b, agent_str_t value)
{
    if (s->max_event != 0 && value.len > s->max_event) {
        return AGENT_TOO_LARGE;
    }

    agent_buf_reset(b);
    agent_buf_add_str(b, value);

    return agent_buf_ok(b) ? AGENT_OK : AGENT_NOMEM;
}

/* Adds a line to the event's data, each with its LF. */
static agent_rc_t
agent_sse_add(agent_sse_t *s, agent_str_t value)
{
    agent_buf_add_str(&s->data, value);
    agent_buf_add_char(&s->data, '\n');

    if (!agent_buf_ok(&s->data)) {
        return AGENT_NOMEM;
    }

    if (s->max_event != 0 && s->data.len - 1 > s->max_event) {
        return AGENT_TOO_LARGE;
    }

    return AGENT_OK;
}

/* What has been held must move before its bytes go away. */
static agent_rc_t
agent_sse_unhold(agent_sse_feed_t *f)
{
    if (!f->holds) {
        return AGENT_OK;
    }

    f->holds = 0;

    return agent_sse_add(f->s, f->held);
}

static agent_rc_t
agent_sse_data(agent_sse_feed_t *f, agent_str_t value)
{
    agent_rc_t rc;
    agent_sse_t *s = f->s;

    if (s->max_event != 0 && value.len > s->max_event) {
        return AGENT_TOO_LARGE;
    }

    if (!s->has_data) {
        s->has_data = 1;
        f->holds = 1;
        f->held = value;
        return AGENT_OK;
    }

    rc = agent_sse_unhold(f);

    return rc == AGENT_OK ? agent_sse_add(s, value) : rc;
}

static agent_rc_t
agent_sse_report(agent_sse_t *s, agent_str_t type, agent_str_t data, int error)
{
    agent_sse_event_t ev;

    ev.type = type;
    ev.data = data;
    ev.id = agent_sse_str(&s->id);
    ev.error = error;

    return s->handler(s->ctx, &ev);
}

/* A field named error is an event of its own and leaves the one begun alone. */
static agent_rc_t
agent_sse_error(agent_sse_t *s, agent_str_t value)
{
    if (s->max_event != 0 && value.len > s->max_event) {
        return AGENT_TOO_LARGE;
    }

    return agent_sse_report(s, agent_sse_str(&s->type), value, 1);
}

static void
agent_sse_retry(agent_sse_t *s, agent_str_t value)
{
    size_t i;
    uint64_t digit, n = 0;

    for (i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9') {
            return;
        }

        digit = (uint64_t) (value.data[i] - '0');

        if (n > (UINT64_MAX - digit) / 10) {
            return;
        }

        n = n * 10 + digit;
    }

    if (value.len != 0) {
        s->retry = n;
        s->has_retry = 1;
    }
}

/* The blank line. */
static agent_rc_t
agent_sse_dispatch(agent_sse_feed_t *f)
{
    agent_str_t type, data;
    agent_sse_t *s = f->s;

    type = agent_sse_str(&s->type);
    s->type.len = 0;

    if (!s->has_data) {
        return AGENT_OK;
    }

    if (f->holds) {
        data = f->held;
    } else {
        data.data = s->data.data;
        data.len = s->data.len - 1;
    }

    f->holds = 0;
    s->has_data = 0;
    s->data.len = 0;

    return agent_sse_report(s, type, data, 0);
}

/* 1 when the line is the field of that name; its value without the one space
 * that may follow the colon. */
static inline int
agent_sse_field(agent_str_t line, agent_str_t name, agent_str_t *value)
{
    const char *p = line.data + name.len, *end = line.data + line.len;

    if (line.len < name.len || memcmp(line.data, name.data, name.len) != 0) {
        return 0;
    }

    if (p < end) {
        if (*p++ != ':') {
            return 0;
        }

        if (p < end && *p == ' ') {
            p++;
        }
    }

    value->data = p;
    value->len = (size_t) (end - p);

    return 1;
}

static int
agent_sse_too_long(const agent_sse_t *s, size_t len)
{
    return s->max_event != 0 && len > AGENT_SSE_NAME &&
           len - AGENT_SSE_NAME > s->max_event;
}

static agent_rc_t
agent_sse_line(agent_sse_feed_t *f, agent_str_t line)
{
    agent_str_t value;
    agent_sse_t *s = f->s;

    if (line.len == 0) {
        return agent_sse_dispatch(f);
    }

    if (line.data[0] == ':') {
        return AGENT_OK;
    }

    if (agent_sse_too_long(s, line.len)) {
        return AGENT_TOO_LARGE;
    }

    if (agent_sse_field(line, AGENT_STR("data"), &value)) {
        return agent_sse_data(f, value);
    }

    if (agent_sse_field(line, AGENT_STR("event"), &value)) {
        return agent_sse_set(s, &s->type, value);
    }

    if (agent_sse_field(line, AGENT_STR("error"), &value)) {
        return agent_sse_error(s, value);
    }

    if (agent_sse_field(line, AGENT_STR("id"), &value)) {
        if (memchr(value.data, '\0', value.len) != NULL) {
            return AGENT_OK;
        }

        return agent_sse_set(s, &s->id, value);
    }

    if (agent_sse_field(line, AGENT_STR("retry"), &value)) {
        agent_sse_retry(s, value);
    }

    return AGENT_OK;
}

static inline const char *
agent_sse_find(const char *p, const char *end, char c)
{
    const char *q = memchr(p, c, (size_t) (end - p));

    return q != NULL ? q : end;
}

/* The end of the line at p, or f->end.  Both searches go on from where they
 * were, so that no byte is looked at twice for the same character. */
static inline const char *
agent_sse_eol(agent_sse_feed_t *f, const char *p)
{
    if (f->lf < p) {
        f->lf = agent_sse_find(p, f->end, '\n');
    }

    if (f->cr < p) {
        f->cr = agent_sse_find(p, f->end, '\r');
    }

    return f->lf < f->cr ? f->lf : f->cr;
}

/* Adds to the unfinished line.  Of a comment only the colon is kept. */
static agent_rc_t
agent_sse_keep(agent_sse_t *s, const char *p, const char *end)
{
    if (p == end) {
        return AGENT_OK;
    }

    if (s->line.len != 0 ? s->line.data[0] == ':' : *p == ':') {
        end = s->line.len != 0 ? p : p + 1;
    }

    agent_buf_add(&s->line, p, (size_t) (end - p));

    if (!agent_buf_ok(&s->line)) {
        return AGENT_NOMEM;
    }

    if (agent_sse_too_long(s, s->line.len)) {
        return AGENT_TOO_LARGE;
    }

    return AGENT_OK;
}

/* Drops a BOM at the very start; returns where the first line begins. */
static const char *
agent_sse_skip_bom(agent_sse_t *s, const char *p, const char *end)
{
    while (p < end && *p == agent_sse_bom[s->bom]) {
        p++;

        if (++s->bom == sizeof(agent_sse_bom)) {
            s->bom = AGENT_SSE_DECIDED;
            return p;
        }
    }

    if (p < end) {
        /* only the beginning of one: these bytes begin the first line */

        agent_buf_add(&s->line, agent_sse_bom, s->bom);
        s->bom = AGENT_SSE_DECIDED;
    }

    return p;
}

static agent_rc_t
agent_sse_lines(agent_sse_feed_t *f, const char *p)
{
    agent_rc_t rc;
    const char *eol;
    agent_str_t line;
    agent_sse_t *s = f->s;

    while (p < f->end) {
        if (s->cr) {
            s->cr = 0;

            if (*p == '\n') {
                p++;
                continue;
            }
        }

        eol = agent_sse_eol(f, p);

        if (eol == f->end) {
            break;
        }

        line.data = p;
        line.len = (size_t) (eol - p);

        s->cr = *eol == '\r';
        p = eol + 1;

        if (s->line.len != 0) {
            rc = agent_sse_keep(s, line.data, eol);
            if (rc != AGENT_OK) {
                return rc;
            }

            /* held data may point there: the bytes stay until the feed ends */

            line = agent_buf_str(&s->line);
            s->line.len = 0;
        }

        rc = agent_sse_line(f, line);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    rc = agent_sse_unhold(f);

    return rc == AGENT_OK ? agent_sse_keep(s, p, f->end) : rc;
}

agent_rc_t
agent_sse_feed(agent_sse_t *s, const char *p, size_t n)
{
    agent_sse_feed_t f;

    if (n == 0) {
        return AGENT_OK;
    }

    memset(&f, 0, sizeof(agent_sse_feed_t));

    f.s = s;
    f.end = p + n;

    if (s->bom != AGENT_SSE_DECIDED) {
        p = agent_sse_skip_bom(s, p, f.end);

        if (!agent_buf_ok(&s->line)) {
            return AGENT_NOMEM;
        }
    }

    f.lf = agent_sse_find(p, f.end, '\n');
    f.cr = agent_sse_find(p, f.end, '\r');

    return agent_sse_lines(&f, p);
}

agent_rc_t
agent_sse_end(agent_sse_t *s)
{
    agent_rc_t rc;
    agent_str_t line;
    agent_sse_feed_t f;

    memset(&f, 0, sizeof(agent_sse_feed_t));
    f.s = s;

    if (s->line.len != 0) {
        line = agent_buf_str(&s->line);
        s->line.len = 0;

        rc = agent_sse_line(&f, line);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return agent_sse_dispatch(&f);
}

int
agent_sse_pending(const agent_sse_t *s)
{
    return s->has_data || s->type.len != 0 ||
           (s->line.len != 0 && s->line.data[0] != ':');
}
