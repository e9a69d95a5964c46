/*
 * The reader of event streams: the events do not depend on how the bytes come,
 * and are those that a reader finds who has all the time in the world.
 *
 * The input: a line whose bytes are numbers in their low six bits ("A" is 1,
 * "@" is 0), then the stream.  The first number is the limit of an event (0:
 * none), the others are the lengths of slices, over and over.
 */

#include "agent_sse.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What came of a stream. */
typedef struct {
    agent_buf_t events; /* as bytes */
    size_t n;
    size_t stop_at; /* the event at which the handler stops, 0: none */
    agent_rc_t rc;
    int pending; /* before the end */
    int has_retry;
    uint64_t retry;
} reading_t;

static int
has(agent_str_t s, char c)
{
    return s.len != 0 && memchr(s.data, c, s.len) != NULL;
}

static void
add(agent_buf_t *b, agent_str_t s)
{
    agent_buf_add(b, &s.len, sizeof(s.len));
    agent_buf_add_str(b, s);
}

static agent_rc_t
note(void *ctx, const agent_sse_event_t *ev)
{
    reading_t *r = ctx;

    if (++r->n == r->stop_at) {
        return AGENT_ABORTED;
    }

    assert(!has(ev->data, '\r') && (!ev->error || !has(ev->data, '\n')));
    assert(!has(ev->type, '\r') && !has(ev->type, '\n'));
    assert(!has(ev->id, '\r') && !has(ev->id, '\n') && !has(ev->id, '\0'));

    add(&r->events, ev->type);
    add(&r->events, ev->data);
    add(&r->events, ev->id);
    agent_buf_add_char(&r->events, (char) ev->error);

    return AGENT_OK;
}

/* A slice in a block of its own that is gone afterwards: ASan sees a byte too
 * far and what is held too long. */
static agent_rc_t
feed(agent_sse_t *s, const char *p, size_t n)
{
    agent_rc_t rc;
    char *copy = malloc(n != 0 ? n : 1);

    assert(copy != NULL);

    if (n != 0) {
        memcpy(copy, p, n);
    }

    rc = agent_sse_feed(s, copy, n);
    free(copy);

    return rc;
}

/* No lengths: whole. */
static void
read_stream(reading_t *r, agent_str_t stream, size_t limit, agent_str_t lengths,
            size_t stop_at)
{
    size_t i, n, k = 0;
    agent_rc_t rc = AGENT_OK;
    agent_sse_t s;

    memset(r, 0, sizeof(reading_t));
    r->stop_at = stop_at;
    agent_buf_init(&r->events, &agent_alloc_libc);
    agent_sse_init(&s, limit, note, r, &agent_alloc_libc);

    for (i = 0; rc == AGENT_OK && i < stream.len; i += n) {
        n = stream.len - i;

        if (lengths.len != 0) {
            n = lengths.data[k++ % lengths.len] & 0x3f;

            if (n == 0) {
                rc = feed(&s, stream.data + i, 0);
                assert(rc == AGENT_OK);
                n = 1;
            }

            n = n < stream.len - i ? n : stream.len - i;
        }

        rc = feed(&s, stream.data + i, n);
    }

    if (rc == AGENT_OK) {
        r->pending = agent_sse_pending(&s);
        rc = agent_sse_end(&s);
        assert(rc != AGENT_OK || !agent_sse_pending(&s));
    }

    assert(rc == AGENT_OK || (rc == AGENT_TOO_LARGE && limit != 0) ||
           (rc == AGENT_ABORTED && r->n == stop_at && stop_at != 0));

    r->rc = rc;
    r->retry = s.retry;
    r->has_retry = s.has_retry;

    agent_sse_free(&s);
}

/* --- the slow reader: WHATWG HTML, section 9.2.6, word by word ------------ */

typedef struct {
    reading_t *r;
    agent_buf_t data;
    agent_buf_t type;
    agent_buf_t id;
    int has_data;
} slow_t;

static void
slow_report(slow_t *s, agent_str_t data, int error)
{
    agent_sse_event_t ev;

    ev.type = agent_buf_str(&s->type);
    ev.data = data;
    ev.id = agent_buf_str(&s->id);
    ev.error = error;

    (void) note(s->r, &ev);
}

static void
slow_dispatch(slow_t *s)
{
    if (s->has_data) {
        s->data.len--; /* the last LF */
        slow_report(s, agent_buf_str(&s->data), 0);
    }

    s->has_data = 0;
    s->data.len = 0;
    s->type.len = 0;
}

static void
slow_retry(slow_t *s, agent_str_t value)
{
    size_t i;
    uint64_t n = 0;

    for (i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9' ||
            __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, value.data[i] - '0', &n)) {
            return;
        }
    }

    if (value.len != 0) {
        s->r->retry = n;
        s->r->has_retry = 1;
    }
}

static void
slow_field(slow_t *s, agent_str_t name, agent_str_t value)
{
    if (agent_str_eq(name, AGENT_STR("data"))) {
        agent_buf_add_str(&s->data, value);
        agent_buf_add_char(&s->data, '\n');
        s->has_data = 1;

    } else if (agent_str_eq(name, AGENT_STR("event"))) {
        s->type.len = 0;
        agent_buf_add_str(&s->type, value);

    } else if (agent_str_eq(name, AGENT_STR("id")) && !has(value, '\0')) {
        s->id.len = 0;
        agent_buf_add_str(&s->id, value);

    } else if (agent_str_eq(name, AGENT_STR("retry"))) {
        slow_retry(s, value);

    } else if (agent_str_eq(name, AGENT_STR("error"))) {
        slow_report(s, value, 1); /* not of the standard */
    }
}

static void
slow_line(slow_t *s, agent_str_t line)
{
    const char *colon;
    agent_str_t value = {"", 0};

    if (line.len == 0) {
        slow_dispatch(s);
        return;
    }

    colon = memchr(line.data, ':', line.len);

    if (colon != NULL) {
        value.data = colon + 1;
        value.len = line.len - (size_t) (value.data - line.data);
        line.len = (size_t) (colon - line.data);

        if (value.len != 0 && value.data[0] == ' ') {
            value.data++;
            value.len--;
        }
    }

    slow_field(s, line, value); /* a comment has no name */
}

static void
read_slowly(reading_t *r, agent_str_t in)
{
    slow_t s;
    agent_str_t line;

    memset(r, 0, sizeof(reading_t));
    memset(&s, 0, sizeof(slow_t));
    agent_buf_init(&r->events, &agent_alloc_libc);
    agent_buf_init(&s.data, &agent_alloc_libc);
    agent_buf_init(&s.type, &agent_alloc_libc);
    agent_buf_init(&s.id, &agent_alloc_libc);
    s.r = r;

    if (in.len >= 3 && memcmp(in.data, "\xef\xbb\xbf", 3) == 0) {
        in.data += 3;
        in.len -= 3;
    }

    while (in.len != 0) {
        line.data = in.data;
        line.len = 0;

        while (line.len < in.len && line.data[line.len] != '\n' &&
               line.data[line.len] != '\r') {
            line.len++;
        }

        slow_line(&s, line);

        in.data += line.len;
        in.len -= line.len;

        if (in.len > 1 && in.data[0] == '\r' && in.data[1] == '\n') {
            in.data++;
            in.len--;
        }

        if (in.len != 0) {
            in.data++;
            in.len--;
        }
    }

    slow_dispatch(&s); /* also beyond the standard */

    agent_buf_free(&s.data);
    agent_buf_free(&s.type);
    agent_buf_free(&s.id);
}

static int
same(const reading_t *a, const reading_t *b)
{
    return a->rc == b->rc && a->n == b->n && a->pending == b->pending &&
           a->has_retry == b->has_retry && a->retry == b->retry &&
           agent_str_eq(agent_buf_str(&a->events), agent_buf_str(&b->events));
}

static void
check(const reading_t *want, agent_str_t stream, size_t limit,
      agent_str_t lengths)
{
    reading_t r;

    read_stream(&r, stream, limit, lengths, want->stop_at);
    assert(same(want, &r));
    agent_buf_free(&r.events);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *eol = size != 0 ? memchr(data, '\n', size) : NULL;
    size_t limit = 0;
    agent_str_t lengths = {(const char *) data, 0}, stream = lengths;
    reading_t whole, part;

    if (eol == NULL) {
        return 0;
    }

    lengths.len = (size_t) (eol - data);
    stream.data = (const char *) eol + 1;
    stream.len = size - lengths.len - 1;

    if (lengths.len != 0) {
        limit = lengths.data[0] & 0x3f;
        lengths.data++;
        lengths.len--;
    }

    read_stream(&whole, stream, limit, AGENT_STR(""), 0);
    check(&whole, stream, limit, lengths);
    check(&whole, stream, limit, AGENT_STR("A"));

    if (limit == 0) {
        read_slowly(&part, stream);
        part.pending = whole.pending;
        assert(same(&part, &whole));
        agent_buf_free(&part.events);
    }

    /* an event that the handler refuses is the last one */

    if (whole.n != 0) {
        read_stream(&part, stream, limit, AGENT_STR(""), (whole.n + 1) / 2);
        assert(part.rc == AGENT_ABORTED && part.events.len < whole.events.len);
        assert(part.events.len == 0 ||
               memcmp(part.events.data, whole.events.data, part.events.len) ==
                   0);
        check(&part, stream, limit, lengths);
        agent_buf_free(&part.events);
    }

    agent_buf_free(&whole.events);

    return 0;
}
