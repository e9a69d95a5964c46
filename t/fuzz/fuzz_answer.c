/*
 * The answer to a model call, from its bytes to what readers of the run get:
 * one last delta, the same deltas in any slicing, events in an order that
 * AG-UI allows, and readers that join in the middle miss nothing.
 *
 * The input: three lines, then the body.  The bytes of the first two are
 * numbers in their low six bits ("A" is 1, "@" is 0).
 *
 *   lengths of slices, over and over
 *   OPTION_* bits, max_event, max_body, max_delta, max_output, the event at
 *       which others join, retry_after; 0 and what is missing: the default
 *   status, a space and the media type
 */

#define _GNU_SOURCE /* memmem */

#include "agent_encoder.h"
#include "collect.h"

#include <assert.h>
#include <stdint.h>

enum { OPTION_RESET = 1, OPTION_LEGACY = 2, OPTION_SECRET = 4 };

#define SECRET   "sk-fuzz-0123456789abcdef"
#define FRAGMENT 8 /* bytes of a secret that no message may hold */

/* Of more blanks before the first byte it depends on the slicing whether they
 * are too many. */
#define MAX_BLANK 4000

typedef struct {
    agent_str_t lengths;
    unsigned options;
    unsigned status;
    unsigned retry_after;
    agent_answer_limits_t limits;
    size_t max_delta;
    size_t max_output;
    size_t join_at;
    agent_str_t type;
    agent_str_t body;
} input_t;

/* --- the input ------------------------------------------------------------ */

/* Takes a line; 0 when there is none. */
static int
take_line(agent_str_t *rest, agent_str_t *line)
{
    const char *eol = rest->len ? memchr(rest->data, '\n', rest->len) : NULL;

    if (eol == NULL) {
        return 0;
    }

    line->data = rest->data;
    line->len = (size_t) (eol - rest->data);
    rest->data = eol + 1;
    rest->len -= line->len + 1;

    return 1;
}

static unsigned
number(agent_str_t line, size_t i)
{
    return i < line.len ? line.data[i] & 0x3fu : 0;
}

static int
read_input(input_t *in, agent_str_t all)
{
    agent_str_t numbers, head;

    memset(in, 0, sizeof(input_t));

    if (!take_line(&all, &in->lengths) || !take_line(&all, &numbers) ||
        !take_line(&all, &head)) {
        return 0;
    }

    in->options = number(numbers, 0);
    in->limits.max_event = number(numbers, 1) * 8;
    in->limits.max_body = number(numbers, 2) * 64;
    in->max_delta = number(numbers, 3);
    in->max_output = number(numbers, 4) * 4;
    in->join_at = number(numbers, 5);
    in->retry_after = number(numbers, 6);

    if (in->options & OPTION_SECRET) {
        in->limits.secret = AGENT_STR(SECRET);
    }

    while (head.len != 0 && *head.data >= '0' && *head.data <= '9') {
        in->status = (in->status * 10 + (unsigned) (*head.data - '0')) % 1000;
        head.data++;
        head.len--;
    }

    if (head.len != 0 && *head.data == ' ') {
        head.data++;
        head.len--;
    }

    in->type = head;
    in->body = all;

    return 1;
}

/* 1 when slicing must make no difference. */
static int
is_sliceable(const input_t *in)
{
    size_t n = 0;

    while (n < in->body.len && memchr(" \t\r\n", in->body.data[n], 4) != NULL) {
        n++;
    }

    return n < MAX_BLANK &&
           (in->limits.max_body == 0 || in->body.len <= in->limits.max_body);
}

/* --- a reader of the run: verifier and reducer ---------------------------- */

enum { NO_RUN, RUNNING, FINISHED, FAILED };

typedef struct {
    int state;
    json_t *texts; /* what is open, by id */
    json_t *calls;
    json_t *reasonings;
    json_t *spans;
    json_t *messages;
    agent_open_t open;
} reader_t;

static void
reader_init(reader_t *r)
{
    r->state = NO_RUN;
    r->texts = json_object();
    r->calls = json_object();
    r->reasonings = json_object();
    r->spans = json_object();
    r->messages = json_array();
    agent_open_init(&r->open, &agent_alloc_libc);
}

static void
reader_free(reader_t *r)
{
    json_decref(r->texts);
    json_decref(r->calls);
    json_decref(r->reasonings);
    json_decref(r->spans);
    json_decref(r->messages);
    agent_open_free(&r->open);
}

static const char *
string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* Members: "+" a string, "?" optional, "!" an id that opens something, "*" one
 * of something open, "#" one that closes it. */
static const char *const shapes[AGENT_EV_COUNT] = {
    [AGENT_EV_RUN_STARTED] = "+threadId +runId +protocolVersion",
    [AGENT_EV_RUN_FINISHED] = "+threadId +runId ?outcome ?metadata ?usage",
    [AGENT_EV_RUN_ERROR] = "+message +code ?usage",
    [AGENT_EV_TEXT_MESSAGE_START] = "!messageId +role",
    [AGENT_EV_TEXT_MESSAGE_CONTENT] = "*messageId +delta",
    [AGENT_EV_TEXT_MESSAGE_END] = "#messageId",
    [AGENT_EV_TOOL_CALL_START] = "!toolCallId +toolCallName +parentMessageId",
    [AGENT_EV_TOOL_CALL_ARGS] = "*toolCallId +delta",
    [AGENT_EV_TOOL_CALL_END] = "#toolCallId",
    [AGENT_EV_REASONING_START] = "!messageId",
    [AGENT_EV_REASONING_END] = "#messageId",
    [AGENT_EV_REASONING_MESSAGE_START] = "!messageId +role",
    [AGENT_EV_REASONING_MESSAGE_CONTENT] = "*messageId +delta",
    [AGENT_EV_REASONING_MESSAGE_END] = "#messageId",
    [AGENT_EV_MESSAGES_SNAPSHOT] = "?messages",
};

static json_t *
opened_by(reader_t *r, agent_event_type_t type)
{
    switch (type) {
    case AGENT_EV_TEXT_MESSAGE_START:
    case AGENT_EV_TEXT_MESSAGE_CONTENT:
    case AGENT_EV_TEXT_MESSAGE_END:
        return r->texts;
    case AGENT_EV_TOOL_CALL_START:
    case AGENT_EV_TOOL_CALL_ARGS:
    case AGENT_EV_TOOL_CALL_END:
        return r->calls;
    case AGENT_EV_REASONING_MESSAGE_START:
    case AGENT_EV_REASONING_MESSAGE_CONTENT:
    case AGENT_EV_REASONING_MESSAGE_END:
        return r->reasonings;
    default:
        return r->spans;
    }
}

static void
verify_members(reader_t *r, const agent_event_t *ev, const json_t *json)
{
    char key[32], kind;
    size_t n, known = 1;
    const char *p = shapes[ev->type], *id;
    const json_t *v;
    json_t *open = opened_by(r, ev->type);

    assert(p != NULL);

    while (*p != '\0') {
        kind = *p++;
        n = strcspn(p, " ");
        memcpy(key, p, n);
        key[n] = '\0';
        p += n + (p[n] == ' ');

        v = json_object_get(json, key);
        known += v != NULL;

        if (kind == '?') {
            assert(!json_is_null(v));
            continue;
        }

        assert(json_is_string(v));
        assert(strcmp(key, "delta") != 0 || json_string_length(v) != 0);

        if (kind == '+') {
            continue;
        }

        /* ids have no NUL: agent_id_check() */

        id = json_string_value(v);
        assert(strlen(id) == json_string_length(v) && *id != '\0');
        assert((json_object_get(open, id) != NULL) == (kind != '!'));

        if (kind == '!') {
            json_object_set_new(open, id, json_true());
        } else if (kind == '#') {
            json_object_del(open, id);
        }
    }

    assert(known == json_object_size(json)); /* no other members */
}

/* What must be closed before something is opened. */
static void
verify_order(const reader_t *r, agent_event_type_t type)
{
    switch (type) {
    case AGENT_EV_TEXT_MESSAGE_START:
    case AGENT_EV_RUN_FINISHED:
        assert(json_object_size(r->calls) == 0);
        assert(json_object_size(r->reasonings) == 0);
        assert(json_object_size(r->spans) == 0);
        assert(json_object_size(r->texts) == 0);
        break;
    case AGENT_EV_REASONING_MESSAGE_START:
        assert(json_object_size(r->spans) == 1);
        assert(json_object_size(r->texts) == 0);
        break;
    case AGENT_EV_TOOL_CALL_START:
    case AGENT_EV_REASONING_START:
        assert(json_object_size(r->texts) == 0);
        break;
    default:
        break;
    }
}

static void
verify(reader_t *r, const agent_event_t *ev, const json_t *json)
{
    const char *role = string(json, "role");

    if (ev->type == AGENT_EV_RUN_STARTED) {
        assert(r->state == NO_RUN);
        r->state = RUNNING;

    } else if (ev->type == AGENT_EV_RUN_ERROR) {
        /* a run may fail before it starts */
        assert(r->state == NO_RUN || r->state == RUNNING);
        r->state = FAILED;

    } else {
        assert(r->state == RUNNING);
    }

    if (ev->type == AGENT_EV_RUN_FINISHED) {
        r->state = FINISHED;
    }

    verify_order(r, ev->type);
    verify_members(r, ev, json);

    assert(role == NULL || strcmp(role, ev->type == AGENT_EV_TEXT_MESSAGE_START
                                            ? "assistant"
                                            : "reasoning") == 0);
}

static json_t *
message_by_id(const json_t *messages, const char *id)
{
    size_t i;
    json_t *m;

    for (i = json_array_size(messages); i-- > 0; /* void */) {
        m = json_array_get(messages, i);

        if (strcmp(string(m, "id"), id) == 0) {
            return m;
        }
    }

    return NULL;
}

/* The function of a call. */
static json_t *
call_by_id(const json_t *messages, const char *id)
{
    size_t i;
    json_t *call;

    for (i = 0; i < json_array_size(messages); i++) {
        call = message_by_id(
            json_object_get(json_array_get(messages, i), "toolCalls"), id);

        if (call != NULL) {
            return json_object_get(call, "function");
        }
    }

    return NULL;
}

/* Appends the delta of an event; a text may hold NULs. */
static void
append(json_t *object, const char *key, const json_t *json)
{
    agent_buf_t b;
    agent_str_t s;

    agent_buf_init(&b, &agent_alloc_libc);
    assert(agent_json_str(object, key, &s));
    agent_buf_add_str(&b, s);
    assert(agent_json_str(json, "delta", &s));
    agent_buf_add_str(&b, s);
    json_object_set_new(object, key, json_stringn(b.data, b.len));
    agent_buf_free(&b);
}

static void
reduce_call(json_t *messages, const json_t *json)
{
    json_t *m, *call, *name = json_object_get(json, "toolCallName");
    const char *id = string(json, "toolCallId");
    const char *parent = string(json, "parentMessageId");

    call = call_by_id(messages, id);

    if (call != NULL) { /* it goes on */
        assert(json_equal(json_object_get(call, "name"), name));
        return;
    }

    m = message_by_id(messages, parent);

    if (m == NULL) {
        m = json_pack("{s:s,s:s}", "id", parent, "role", "assistant");
        json_array_append_new(messages, m);
    }

    assert(strcmp(string(m, "role"), "assistant") == 0);

    if (json_object_get(m, "toolCalls") == NULL) {
        json_object_set_new(m, "toolCalls", json_array());
    }

    json_array_append_new(json_object_get(m, "toolCalls"),
                          json_pack("{s:s,s:s,s:{s:O,s:s}}", "id", id, "type",
                                    "function", "function", "name", name,
                                    "arguments", ""));
}

static void
reduce(reader_t *r, const agent_event_t *ev, const json_t *json)
{
    json_t *m;
    const char *id = string(json, "messageId");

    switch (ev->type) {
    case AGENT_EV_TEXT_MESSAGE_START:
    case AGENT_EV_REASONING_MESSAGE_START:
        if (message_by_id(r->messages, id) == NULL) {
            json_array_append_new(
                r->messages, json_pack("{s:s,s:s,s:s}", "id", id, "role",
                                       string(json, "role"), "content", ""));
        }
        break;

    case AGENT_EV_TEXT_MESSAGE_CONTENT:
    case AGENT_EV_REASONING_MESSAGE_CONTENT:
        m = message_by_id(r->messages, id);
        assert(m != NULL);
        append(m, "content", json);
        break;

    case AGENT_EV_TOOL_CALL_START:
        reduce_call(r->messages, json);
        break;

    case AGENT_EV_TOOL_CALL_ARGS:
        m = call_by_id(r->messages, string(json, "toolCallId"));
        assert(m != NULL);
        append(m, "arguments", json);
        break;

    case AGENT_EV_MESSAGES_SNAPSHOT:
        /* it has all that this run has said, and nothing came before it */

        json_decref(r->messages);
        r->messages = json_deep_copy(json_object_get(json, "messages"));
        assert(json_is_array(r->messages));
        break;

    default:
        break;
    }
}

static agent_rc_t
reader_event(void *ctx, const agent_event_t *ev)
{
    reader_t *r = ctx;
    agent_buf_t b;
    json_t *json;
    agent_str_t type;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_event_json(&b, ev);
    assert(b.len == agent_event_json_len(ev));

    json = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                      NULL);
    assert(agent_json_str(json, "type", &type));
    assert(agent_str_eq(type, agent_event_name(ev->type)));

    verify(r, ev, json);
    reduce(r, ev, json);
    assert(agent_open_note(&r->open, ev) == AGENT_OK);

    json_decref(json);
    agent_buf_free(&b);

    return AGENT_OK;
}

/* The END of something open, which agent_open_close() takes off its list. */
static agent_rc_t
reader_close(void *ctx, const agent_event_t *ev)
{
    reader_t *r = ctx;
    agent_rc_t rc;
    agent_open_t open = r->open;

    agent_open_init(&r->open, &agent_alloc_libc);
    rc = reader_event(r, ev);
    agent_open_free(&r->open);
    r->open = open;

    return rc;
}

/* --- a run ---------------------------------------------------------------- */

typedef struct {
    const input_t *in;
    collect_t deltas;
    agent_encoder_t *encoder; /* NULL: only the deltas are wanted */
    reader_t first;           /* from the start */
    reader_t late;            /* joins in the middle */
    reader_t lost;            /* is given a snapshot in place there */
    size_t nevents;
} run_t;

/* An event; before the one of that number the others join. */
static agent_rc_t
run_event(void *ctx, const agent_event_t *ev)
{
    run_t *run = ctx;
    agent_rc_t rc;

    if (run->nevents++ == run->in->join_at) {
        rc = agent_encoder_prelude(run->encoder, AGENT_STR(""), 0, reader_event,
                                   &run->late);
        assert(rc == AGENT_OK);

        rc = agent_open_close(&run->lost.open, reader_close, &run->lost);
        assert(rc == AGENT_OK && run->lost.open.items.len == 0);

        rc = agent_encoder_prelude(run->encoder, AGENT_STR(""), 1, reader_event,
                                   &run->lost);
        assert(rc == AGENT_OK);
    }

    if (run->nevents > run->in->join_at) {
        reader_event(&run->late, ev);
    }

    reader_event(&run->lost, ev);

    return reader_event(&run->first, ev);
}

static agent_rc_t
run_delta(void *ctx, const agent_delta_t *d)
{
    run_t *run = ctx;
    agent_rc_t rc;

    rc = collect_emit(&run->deltas, d);
    assert(rc == AGENT_OK && run->deltas.nwrong == 0);

    if (run->encoder != NULL) {
        rc = agent_encoder_delta(run->encoder, d);
        assert(rc == AGENT_OK);
    }

    return AGENT_OK;
}

static void
run_encoder(run_t *run)
{
    agent_encoder_conf_t conf;

    memset(&conf, 0, sizeof(agent_encoder_conf_t));
    conf.thread_id = AGENT_STR("t");
    conf.run_id = AGENT_STR("r");
    conf.seed = AGENT_STR("s");
    conf.provider = AGENT_STR("openai");
    conf.model = AGENT_STR("m");
    conf.legacy = (run->in->options & OPTION_LEGACY) != 0;
    conf.max_delta = run->in->max_delta;
    conf.max_output = run->in->max_output;

    run->encoder =
        agent_encoder_create(&conf, run_event, run, &agent_alloc_libc);
    assert(run->encoder != NULL);

    reader_init(&run->first);
    reader_init(&run->late);
    reader_init(&run->lost);
}

static json_t *
encoder_json(void (*add)(const agent_encoder_t *, agent_buf_t *),
             const agent_encoder_t *e, const char *before, const char *behind)
{
    json_t *json;
    agent_buf_t b;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add(&b, before, strlen(before));
    add(e, &b);
    agent_buf_add(&b, behind, strlen(behind));
    json = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL,
                      NULL);
    assert(json != NULL);
    agent_buf_free(&b);

    return json;
}

/* What the readers and the encoder make of a run that is over. */
static void
check_readers(run_t *run)
{
    int finished = run->deltas.nfinish != 0, joined;
    json_t *own, *answer;
    const agent_encoder_t *e = run->encoder;

    assert(agent_encoder_outcome(e) ==
           (finished ? AGENT_RUN_FINISHED : AGENT_RUN_ERROR));
    assert(run->first.state == (finished ? FINISHED : FAILED));
    assert(run->lost.state == run->first.state);

    joined = run->nevents > run->in->join_at;
    assert(run->late.state == (joined ? run->first.state : NO_RUN));

    own = encoder_json(agent_encoder_messages, e, "[", "]");
    answer = encoder_json(agent_encoder_answer, e, "", "");
    assert(json_equal(json_object_get(answer, "messages"), own));

    /* a small max_output keeps only tails */

    if (run->in->max_output == 0) {
        assert(json_equal(run->first.messages, own));
        assert(json_equal(run->lost.messages, own));
        assert(!joined || json_equal(run->late.messages, own));
    }

    assert(agent_encoder_cancel(run->encoder) == AGENT_DONE);

    json_decref(own);
    json_decref(answer);
    reader_free(&run->first);
    reader_free(&run->late);
    reader_free(&run->lost);
    agent_encoder_destroy(run->encoder);
}

static void
check_fault(const input_t *in, const agent_fault_t *f)
{
    size_t i;
    agent_str_t s = {f->message, strnlen(f->message, sizeof(f->message))};

    assert(s.len != 0 && s.len < sizeof(f->message));
    assert(agent_utf8_valid(s) == s.len);
    assert(strncmp(agent_code_name(f->code), "upstream_", 9) == 0);
    assert(f->retry_after <= 3600);

    for (i = 0; i < s.len; i++) {
        assert((unsigned char) s.data[i] >= 0x20 && s.data[i] != 0x7f);
    }

    if (!(in->options & OPTION_SECRET)) {
        return;
    }

    for (i = 0; i + FRAGMENT < sizeof(SECRET); i++) {
        assert(memmem(s.data, s.len, &SECRET[i], FRAGMENT) == NULL);
    }
}

/* A piece of the body in a block of its own, for ASan. */
static agent_rc_t
body(agent_answer_t *a, const char *p, size_t n)
{
    agent_rc_t rc;
    char *copy = malloc(n != 0 ? n : 1);

    assert(copy != NULL);

    if (n != 0) {
        memcpy(copy, p, n);
    }

    rc = agent_answer_body(a, copy, n);
    free(copy);

    return rc;
}

/* No lengths: whole. */
static void
play(run_t *run, const input_t *in, agent_str_t lengths)
{
    size_t i, n, k = 0;
    agent_rc_t rc;
    agent_answer_t *a;
    const collect_t *c = &run->deltas;

    a = agent_answer_create(agent_codec_find(AGENT_STR("openai")), run_delta,
                            run, AGENT_STR("seed"), &in->limits,
                            &agent_alloc_libc);
    assert(a != NULL);
    agent_answer_head(a, in->status, in->type, in->retry_after);

    /* also behind the last delta: what comes then is ignored */

    for (i = 0; i < in->body.len; i += n) {
        n = in->body.len - i;

        if (lengths.len != 0) {
            n = lengths.data[k++ % lengths.len] & 0x3f;

            if (n == 0) {
                (void) body(a, in->body.data + i, 0);
                n = 1;
            }

            n = n < in->body.len - i ? n : in->body.len - i;
        }

        rc = body(a, in->body.data + i, n);
        assert(rc == (c->nfinish + c->nerror != 0 ? AGENT_DONE : AGENT_OK));
    }

    rc = agent_answer_end(a, !(in->options & OPTION_RESET));
    assert(rc == AGENT_DONE && c->nfinish + c->nerror == 1);
    assert(agent_answer_has_content(a) ==
           (c->text.len + c->reasoning.len + c->refusal.len + c->ncalls != 0));

    if (c->nerror != 0) {
        check_fault(in, &c->fault);
    }

    agent_answer_destroy(a);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    agent_str_t all = {(const char *) data, size};
    input_t in;
    static run_t sliced, whole; /* too large for a stack */

    if (!read_input(&in, all)) {
        return 0;
    }

    memset(&sliced, 0, sizeof(run_t));
    sliced.in = &in;
    collect_init(&sliced.deltas);
    run_encoder(&sliced);
    play(&sliced, &in, in.lengths);
    check_readers(&sliced);

    if (is_sliceable(&in)) {
        memset(&whole, 0, sizeof(run_t));
        whole.in = &in;
        collect_init(&whole.deltas);
        play(&whole, &in, AGENT_STR(""));
        assert(collect_same(&sliced.deltas, &whole.deltas));
        assert(sliced.deltas.fault.retry_after ==
               whole.deltas.fault.retry_after);
        collect_free(&whole.deltas);
    }

    collect_free(&sliced.deltas);

    return 0;
}
