/* agent_encoder.c, agent_output.c */

#include "agent_encoder.h"
#include "agent_json.h"
#include "tap.h"

#include <stdlib.h>
#include <time.h>

/* The sanitizers take four times as long. */
#ifdef __SANITIZE_ADDRESS__
#define SLOWER 5
#else
#define SLOWER 1
#endif

/* Allocations left before all fail, -1: none fails; those that are live. */
static long budget = -1, live, allocations;

static void *
test_resize(void *ctx, void *p, size_t size)
{
    void *q;

    (void) ctx;

    if (size == 0) {
        live -= p != NULL;
        free(p);
        return NULL;
    }

    if (budget == 0) {
        return NULL;
    }

    budget -= budget > 0;
    allocations++;

    q = realloc(p, size);
    live += p == NULL;

    return q;
}

static const agent_alloc_t test_alloc = {test_resize, NULL};

static unsigned
rnd(unsigned *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;

    return *seed;
}

/* --- what a run emits ----------------------------------------------------- */

#define EVENTS 4096

/* A recorder of events, as JSON text. */
typedef struct {
    char *events[EVENTS];
    agent_event_type_t types[EVENTS];
    size_t n;
    long fail_at; /* this event is refused, once; -1: none */

    /* a prelude asked for inside emit, before each event */
    agent_encoder_t *encoder;
    struct recorder_s *preludes;
    size_t max_body; /* of the longest delta */
} recorder_t;

typedef struct recorder_s {
    recorder_t r;
} prelude_t;

static agent_str_t input_messages;

static agent_rc_t
record(void *ctx, const agent_event_t *ev)
{
    agent_buf_t b;
    recorder_t *r = ctx;

    if (r->fail_at == (long) r->n) {
        r->fail_at = -1;
        return AGENT_ABORTED;
    }

    if (r->preludes != NULL) {
        agent_encoder_prelude(r->encoder, input_messages, 0, record,
                              &r->preludes[r->n].r);
    }

    if (agent_event_is_delta(ev->type) && ev->body.len > r->max_body) {
        r->max_body = ev->body.len;
    }

    agent_buf_init(&b, &agent_alloc_libc);
    agent_event_json(&b, ev);
    agent_buf_add_char(&b, '\0');

    r->types[r->n] = ev->type;
    r->events[r->n++] = b.data;

    return AGENT_OK;
}

static void
recorder_init(recorder_t *r)
{
    r->n = 0;
    r->fail_at = -1;
    r->encoder = NULL;
    r->preludes = NULL;
    r->max_body = 0;
}

static void
recorder_free(recorder_t *r)
{
    while (r->n > 0) {
        free(r->events[--r->n]);
    }
}

static agent_encoder_t *
create(recorder_t *r, size_t max_delta, size_t max_output)
{
    agent_encoder_conf_t conf = {
        .thread_id = agent_str("t1"),
        .run_id = agent_str("r1"),
        .seed = agent_str("s"),
        .provider = agent_str("openai"),
        .model = agent_str("m"),
        .max_delta = max_delta,
        .max_output = max_output,
    };

    recorder_init(r);
    r->encoder = agent_encoder_create(&conf, record, r, &test_alloc);

    return r->encoder;
}

/* --- the verifier of AG-UI 1.0, rules V1 to V13 --------------------------- */

enum { NO_RUN, RUNNING, FINISHED, FAILED };

typedef struct {
    int state;
    json_t *texts;
    json_t *calls;
    json_t *reasonings;
    json_t *spans;
} verifier_t;

static void
verifier_init(verifier_t *v)
{
    v->state = NO_RUN;
    v->texts = json_object();
    v->calls = json_object();
    v->reasonings = json_object();
    v->spans = json_object();
}

static void
verifier_free(verifier_t *v)
{
    json_decref(v->texts);
    json_decref(v->calls);
    json_decref(v->reasonings);
    json_decref(v->spans);
}

static int
has_null(const json_t *v)
{
    size_t i;
    json_t *m;
    const char *key;

    if (json_is_array(v)) {
        for (i = 0; i < json_array_size(v); i++) {
            if (has_null(json_array_get(v, i))) {
                return 1;
            }
        }
    } else if (json_is_object(v)) {
        json_object_foreach((json_t *) v, key, m)
        {
            if (has_null(m)) {
                return 1;
            }
        }
    }

    return json_is_null(v);
}

/* type; members: "+" required string, "?" optional, "!" an id that opens, "*"
 * one that goes on, "#" one that closes */
static const struct {
    const char *type;
    const char *members;
} shapes[] = {
    {"RUN_STARTED", "+threadId +runId +protocolVersion ?parentRunId"},
    {"RUN_FINISHED", "+threadId +runId ?outcome ?metadata ?usage"},
    {"RUN_ERROR", "+message +code ?usage"},
    {"TEXT_MESSAGE_START", "!messageId +role"},
    {"TEXT_MESSAGE_CONTENT", "*messageId +delta"},
    {"TEXT_MESSAGE_END", "#messageId"},
    {"TOOL_CALL_START", "!toolCallId +toolCallName +parentMessageId"},
    {"TOOL_CALL_ARGS", "*toolCallId +delta"},
    {"TOOL_CALL_END", "#toolCallId"},
    {"REASONING_START", "!messageId"},
    {"REASONING_END", "#messageId"},
    {"REASONING_MESSAGE_START", "!messageId +role"},
    {"REASONING_MESSAGE_CONTENT", "*messageId +delta"},
    {"REASONING_MESSAGE_END", "#messageId"},
    {"MESSAGES_SNAPSHOT", "?messages"},
};

static json_t *
verifier_set(verifier_t *v, const char *type)
{
    if (strncmp(type, "TEXT_", 5) == 0) {
        return v->texts;
    }

    if (strncmp(type, "TOOL_", 5) == 0) {
        return v->calls;
    }

    if (strncmp(type, "REASONING_MESSAGE_", 18) == 0) {
        return v->reasonings;
    }

    return strncmp(type, "REASONING_", 10) == 0 ? v->spans : NULL;
}

/* NULL, or the rule that the event breaks. */
static const char *
verify_members(verifier_t *v, json_t *ev, const char *type, const char *p)
{
    char key[32], kind;
    size_t n, known = 1;
    json_t *m, *set = verifier_set(v, type);
    const char *id;

    while (*p != '\0') {
        kind = *p++;
        n = strcspn(p, " ");
        memcpy(key, p, n);
        key[n] = '\0';
        p += n + (p[n] == ' ');

        m = json_object_get(ev, key);
        known += m != NULL;

        if (kind == '?') {
            continue;
        }

        if (!json_is_string(m)) {
            return "a member is missing";
        }

        if (strcmp(key, "delta") == 0 && json_string_length(m) == 0) {
            return "empty delta";
        }

        id = json_string_value(m);

        if (kind == '!') {
            if (json_object_get(set, id) != NULL) {
                return "V6/V8: open already";
            }
            json_object_set_new(set, id, json_true());

        } else if (kind == '*' || kind == '#') {
            if (json_object_get(set, id) == NULL) {
                return "V7/V8: not open";
            }
            if (kind == '#') {
                json_object_del(set, id);
            }
        }
    }

    return known == json_object_size(ev) ? NULL : "unknown member";
}

static const char *
verify(verifier_t *v, json_t *ev)
{
    size_t i = 0;
    const char *type, *role, *wrong;

    type = json_string_value(json_object_get(ev, "type"));

    if (type == NULL || has_null(ev)) {
        return "no event, or a null";
    }

    if (strcmp(type, "RUN_STARTED") == 0) {
        if (v->state == RUNNING) {
            return "V2: started twice";
        }
        verifier_free(v);
        verifier_init(v);
        v->state = RUNNING;

    } else if (strcmp(type, "RUN_ERROR") == 0) {
        if (v->state == FAILED) {
            return "V4: after RUN_ERROR";
        }
        v->state = FAILED;

    } else if (v->state != RUNNING) {
        return "V1/V3: no run";
    }

    if (strcmp(type, "RUN_FINISHED") == 0) {
        if (json_object_size(v->texts) + json_object_size(v->calls) +
                json_object_size(v->reasonings) + json_object_size(v->spans) !=
            0) {
            return "V12: something is open";
        }
        v->state = FINISHED;
    }

    while (i < sizeof(shapes) / sizeof(shapes[0]) &&
           strcmp(shapes[i].type, type) != 0) {
        i++;
    }

    if (i == sizeof(shapes) / sizeof(shapes[0])) {
        return "unknown type";
    }

    wrong = verify_members(v, ev, type, shapes[i].members);
    role = json_string_value(json_object_get(ev, "role"));

    if (wrong == NULL && role != NULL &&
        strcmp(role, type[0] == 'T' ? "assistant" : "reasoning") != 0) {
        return "role";
    }

    return wrong;
}

/* --- the reducer of AG-UI 1.0 --------------------------------------------- */

static json_t *
message_by_id(json_t *messages, const char *id)
{
    size_t i;
    json_t *m;

    for (i = 0; i < json_array_size(messages); i++) {
        m = json_array_get(messages, i);

        if (strcmp(json_string_value(json_object_get(m, "id")), id) == 0) {
            return m;
        }
    }

    return NULL;
}

static json_t *
call_by_id(json_t *messages, const char *id)
{
    size_t i, k;
    json_t *calls, *call;

    for (i = 0; i < json_array_size(messages); i++) {
        calls = json_object_get(json_array_get(messages, i), "toolCalls");

        for (k = 0; k < json_array_size(calls); k++) {
            call = json_array_get(calls, k);

            if (strcmp(json_string_value(json_object_get(call, "id")), id) ==
                0) {
                return json_object_get(call, "function");
            }
        }
    }

    return NULL;
}

static void
append_to(json_t *object, const char *key, const char *delta)
{
    const char *old = json_string_value(json_object_get(object, key));

    json_object_set_new(object, key, json_sprintf("%s%s", old, delta));
}

static int
any_reasoning(json_t *messages)
{
    size_t i;

    for (i = 0; i < json_array_size(messages); i++) {
        if (strcmp(json_string_value(
                       json_object_get(json_array_get(messages, i), "role")),
                   "reasoning") == 0) {
            return 1;
        }
    }

    return 0;
}

static void
reduce_snapshot(json_t *messages, json_t *snapshot)
{
    size_t i = 0;
    json_t *m, *other;
    const char *role, *id;
    int reasoning = any_reasoning(snapshot);

    while (i < json_array_size(messages)) {
        m = json_array_get(messages, i);
        id = json_string_value(json_object_get(m, "id"));
        role = json_string_value(json_object_get(m, "role"));
        other = message_by_id(snapshot, id);

        if (other != NULL) {
            json_array_set_new(messages, i++, json_deep_copy(other));
        } else if (strcmp(role, "reasoning") == 0 && !reasoning) {
            i++;
        } else {
            json_array_remove(messages, i);
        }
    }

    for (i = 0; i < json_array_size(snapshot); i++) {
        m = json_array_get(snapshot, i);
        id = json_string_value(json_object_get(m, "id"));

        if (message_by_id(messages, id) == NULL) {
            json_array_append_new(messages, json_deep_copy(m));
        }
    }
}

static void
reduce(json_t *messages, json_t *ev)
{
    json_t *m, *call;
    const char *type, *id, *call_id, *parent, *role, *delta;

    type = json_string_value(json_object_get(ev, "type"));
    id = json_string_value(json_object_get(ev, "messageId"));
    role = json_string_value(json_object_get(ev, "role"));
    delta = json_string_value(json_object_get(ev, "delta"));
    call_id = json_string_value(json_object_get(ev, "toolCallId"));
    parent = json_string_value(json_object_get(ev, "parentMessageId"));

    if (strcmp(type, "TEXT_MESSAGE_START") == 0 ||
        strcmp(type, "REASONING_MESSAGE_START") == 0) {
        if (message_by_id(messages, id) == NULL) {
            json_array_append_new(messages,
                                  json_pack("{s:s,s:s,s:s}", "id", id, "role",
                                            role, "content", ""));
        }

    } else if (strcmp(type, "TEXT_MESSAGE_CONTENT") == 0 ||
               strcmp(type, "REASONING_MESSAGE_CONTENT") == 0) {
        append_to(message_by_id(messages, id), "content", delta);

    } else if (strcmp(type, "TOOL_CALL_START") == 0) {
        call = call_by_id(messages, call_id);

        if (call == NULL) {
            m = message_by_id(messages, parent);

            if (m == NULL ||
                strcmp(json_string_value(json_object_get(m, "role")),
                       "assistant") != 0) {
                m = json_pack("{s:s,s:s}", "id", m == NULL ? parent : call_id,
                              "role", "assistant");
                json_array_append_new(messages, m);
            }

            if (json_object_get(m, "toolCalls") == NULL) {
                json_object_set_new(m, "toolCalls", json_array());
            }

            call = json_pack("{s:s,s:s}", "name", "", "arguments", "");
            json_array_append_new(json_object_get(m, "toolCalls"),
                                  json_pack("{s:s,s:s,s:o}", "id", call_id,
                                            "type", "function", "function",
                                            call));
        }

        json_object_set(call, "name", json_object_get(ev, "toolCallName"));

    } else if (strcmp(type, "TOOL_CALL_ARGS") == 0) {
        append_to(call_by_id(messages, call_id), "arguments", delta);

    } else if (strcmp(type, "MESSAGES_SNAPSHOT") == 0) {
        reduce_snapshot(messages, json_object_get(ev, "messages"));
    }
}

/* Verifies and reduces events [from, to).  NULL, or what is wrong. */
static const char *
run_events(verifier_t *v, json_t *messages, const recorder_t *r, size_t from,
           size_t to)
{
    json_t *ev;
    const char *wrong = NULL;

    for (; from < to && wrong == NULL; from++) {
        ev = json_loads(r->events[from], JSON_REJECT_DUPLICATES, NULL);
        wrong = ev == NULL ? "no JSON" : verify(v, ev);

        if (wrong == NULL) {
            reduce(messages, ev);
        }

        json_decref(ev);
    }

    return wrong;
}

static json_t *
encoder_messages(const agent_encoder_t *e, agent_str_t before)
{
    json_t *list;
    agent_buf_t b;

    agent_buf_init(&b, &agent_alloc_libc);
    agent_buf_add_char(&b, '[');
    agent_buf_add_str(&b, before);
    if (before.len != 0) {
        agent_buf_add_char(&b, ',');
    }
    agent_encoder_messages(e, &b);
    if (b.data[b.len - 1] == ',') {
        b.len--;
    }
    agent_buf_add_char(&b, ']');
    list = json_loadb(b.data, b.len, JSON_REJECT_DUPLICATES, NULL);
    agent_buf_free(&b);

    return list;
}

/* --- sequences of calls --------------------------------------------------- */

enum {
    OP_TEXT,
    OP_REASONING,
    OP_REFUSAL,
    OP_START,
    OP_ARGS,
    OP_FINISH,
    OP_ERROR,
    OP_CANCEL,
    OP_FAULT,
    OP_BEGIN,
    OP_COUNT
};

typedef struct {
    unsigned op;
    unsigned call;
    unsigned id;
    unsigned text;
} op_t;

static const agent_str_t op_texts[] = {
    agent_str(""),
    agent_str("a"),
    agent_str("hello "),
    agent_str("\\n\\\"\\\\"),
    agent_str("\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80"),
    agent_str("\\ud83d\\ude00\\u00e9"),
    agent_str("a text that is longer than a delta may be, always"),
    agent_str("\xf0\x9f\x98\x80\xf0\x9f\x98\x80\\ud83d\\ude00\\ud83d\\ude00"
              "\xf0\x9f\x98\x80\xf0\x9f\x98\x80\\\\\\\\\\\\\\\\\\\\\\\\\\\\x"),
};

static const agent_str_t op_ids[] = {
    agent_str("c1"),
    agent_str("c2"),
    agent_str("call \"quoted\""),
    agent_str("call_s_1"),
    agent_str("a\rb"),
    agent_str(""),
    agent_str("a long id a long id a long id a long id a long id a long id "
              "a long id a long id a long id a long id a long id a long id "
              "a long id a long id"),
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static agent_rc_t
apply(agent_encoder_t *e, const op_t *op)
{
    agent_delta_t d;
    agent_usage_t usage;
    agent_fault_t fault;
    static const agent_delta_type_t types[] = {
        AGENT_DELTA_TEXT,       AGENT_DELTA_REASONING, AGENT_DELTA_REFUSAL,
        AGENT_DELTA_TOOL_START, AGENT_DELTA_TOOL_ARGS, AGENT_DELTA_FINISH,
        AGENT_DELTA_ERROR};

    agent_usage_init(&usage);
    usage.input = 10;
    usage.output = (int64_t) op->text;
    agent_fault_set(&fault, AGENT_CODE_UPSTREAM_ERROR, "it \"broke\"\n");

    switch (op->op) {
    case OP_CANCEL:
        return agent_encoder_cancel(e);
    case OP_FAULT:
        return agent_encoder_error(e, op->text % 2 ? &fault : NULL);
    case OP_BEGIN:
        return agent_encoder_start(e);
    default:
        break;
    }

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = types[op->op];
    d.call = op->call;
    d.text = op_texts[op->text % COUNT(op_texts)];
    d.id = op_ids[op->id % COUNT(op_ids)];
    d.name = AGENT_STR("tool \"x\"");
    d.finish = (agent_finish_t) (op->id % 5);
    d.usage = op->call % 2 ? &usage : NULL;
    d.fault = op->call % 3 ? &fault : NULL;

    return agent_encoder_delta(e, &d);
}

/* A sequence that leaves the run running. */
static size_t
random_ops(op_t *ops, size_t max, unsigned *seed)
{
    size_t i, n = rnd(seed) % (max + 1);
    unsigned calls = 0;

    for (i = 0; i < n; i++) {
        ops[i].op = rnd(seed) % 12;
        ops[i].id = rnd(seed) % COUNT(op_ids);
        ops[i].text = rnd(seed) % COUNT(op_texts);
        ops[i].call = 0;

        if (ops[i].op >= OP_FINISH) {
            ops[i].op = ops[i].op % 2 ? OP_ARGS : OP_START;
        }

        if (ops[i].op == OP_START) {
            /* mostly the next number, at times an old one or a gap */
            ops[i].call = rnd(seed) % 8 ? calls : rnd(seed) % (calls + 2);
            calls += ops[i].call == calls;

        } else if (ops[i].op == OP_ARGS && calls != 0) {
            ops[i].call = rnd(seed) % 8 ? calls - 1 : rnd(seed) % (calls + 1);
        }
    }

    return n;
}

static recorder_t rec;

/* Plays ops and one that ends the run; NULL, or what went wrong. */
static const char *
play(const op_t *ops, size_t n, const op_t *end, long fail_at, unsigned *seed)
{
    size_t i, terminals = 0, events;
    json_t *messages = json_array(), *own;
    op_t more;
    agent_rc_t rc;
    verifier_t v;
    const char *wrong = NULL;
    agent_encoder_t *e;

    e = create(&rec, 12 + rnd(seed) % 29, 0);
    rec.fail_at = fail_at;

    for (i = 0; i < n; i++) {
        rc = apply(e, &ops[i]);

        if (rc != AGENT_OK && rc != AGENT_ABORTED &&
            (rc != AGENT_INVALID ||
             (ops[i].op != OP_START && ops[i].op != OP_ARGS))) {
            wrong = "a strange answer";
        }
    }

    rc = apply(e, end);

    if (rc == AGENT_ABORTED) {
        rc = apply(e, end);
    }

    if (rc != AGENT_OK || agent_encoder_outcome(e) == AGENT_RUN_RUNNING) {
        wrong = "the run did not end";
    }

    events = rec.n;

    for (more.op = 0; more.op < OP_COUNT; more.op++) {
        more.call = 0;
        more.id = rnd(seed);
        more.text = rnd(seed);

        if (apply(e, &more) != AGENT_DONE) {
            wrong = "a call after the end is not AGENT_DONE";
        }
    }

    if (rec.n != events) {
        wrong = "an event after the end";
    }

    for (i = 0; i < rec.n; i++) {
        terminals += agent_event_is_terminal(rec.types[i]) != 0;
    }

    if (terminals != 1) {
        wrong = "not one terminal event";
    }

    if (wrong == NULL) {
        verifier_init(&v);
        wrong = run_events(&v, messages, &rec, 0, rec.n);

        own = encoder_messages(e, AGENT_STR(""));
        if (wrong == NULL && !json_equal(own, messages)) {
            wrong = "the encoder's messages are not the reducer's";
        }

        json_decref(own);
        verifier_free(&v);
    }

    json_decref(messages);
    agent_encoder_destroy(e);

    return wrong;
}

static void
print_ops(const op_t *ops, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        printf("# op %u call %u id %u text %u\n", ops[i].op, ops[i].call,
               ops[i].id, ops[i].text);
    }

    for (i = 0; i < rec.n; i++) {
        printf("# %s\n", rec.events[i]);
    }
}

static void
test_random(void)
{
    op_t ops[24], end;
    size_t n, k, bad = 0, played = 0;
    unsigned seed = 20260917;
    const char *wrong;
    static const unsigned ends[] = {OP_FINISH, OP_ERROR, OP_CANCEL, OP_FAULT};

    while (played < 100000 / SLOWER && bad < 3) {
        n = random_ops(ops, 12, &seed);
        end.op = ends[rnd(&seed) % 4];
        end.call = rnd(&seed) % 6;
        end.id = rnd(&seed);
        end.text = rnd(&seed) % 8;

        wrong = play(ops, n, &end,
                     rnd(&seed) % 2 ? -1 : (long) (rnd(&seed) % 30), &seed);
        played++;

        if (wrong != NULL) {
            printf("# %s\n", wrong);
            print_ops(ops, n);
            bad++;
        }

        recorder_free(&rec);
    }

    ok(bad == 0, "%zu random sequences are legal", played);

    for (played = 0; played < 100 && bad < 3; played++) {
        n = random_ops(ops, 24, &seed);

        for (k = 0; k < n * 4; k++) {
            end.op = ends[k % 4];
            end.call = 1;
            end.id = 1;
            end.text = 1;

            wrong = play(ops, k / 4, &end, -1, &seed);

            if (wrong != NULL) {
                printf("# end at %zu: %s\n", k / 4, wrong);
                print_ops(ops, k / 4);
                bad++;
            }

            recorder_free(&rec);
        }
    }

    ok(bad == 0, "ends at every position of %zu sequences are legal", played);
}

/* --- preludes ------------------------------------------------------------- */

#define INPUT                                                                  \
    "{\"id\":\"u1\",\"role\":\"user\",\"content\":\"hi\"},{\"id\":\"r0\","     \
    "\"role\":\"reasoning\",\"content\":\"hm\"},{\"id\":\"a1\",\"role\":"      \
    "\"assistant\",\"content\":\"yes?\"},{\"id\":\"u2\",\"role\":\"user\","    \
    "\"content\":\"go\"}"

/* Closes what a reader holds open, as whoever sends a prelude in place must. */
static void
close_for_reader(verifier_t *v)
{
    json_object_clear(v->texts);
    json_object_clear(v->calls);
    json_object_clear(v->reasonings);
    json_object_clear(v->spans);
}

static prelude_t preludes[256];

/* Joins the recorded run at every position; NULL, or what is wrong. */
static const char *
join_everywhere(size_t *at)
{
    size_t k;
    json_t *whole, *joined, *in_place;
    verifier_t v, w, x;
    const recorder_t *p;
    const char *wrong;

    whole = json_loads("[" INPUT "]", 0, NULL);
    if (input_messages.len == 0) {
        json_array_clear(whole);
    }

    in_place = json_deep_copy(whole);

    verifier_init(&v);
    wrong = run_events(&v, whole, &rec, 0, rec.n);
    verifier_free(&v);

    verifier_init(&x); /* of a reader that is at position k */

    for (k = 0; k < rec.n && wrong == NULL; k++) {
        p = &preludes[k].r;
        *at = k;

        if (k == 0) {
            wrong = p->n != 0 ? "a prelude before the start" : NULL;
            run_events(&x, in_place, &rec, 0, 1);
            continue;
        }

        /* another reader */

        joined = json_array();
        verifier_init(&w);
        wrong = run_events(&w, joined, p, 0, p->n);

        if (wrong == NULL) {
            wrong = run_events(&w, joined, &rec, k, rec.n);
        }

        if (wrong == NULL && !json_equal(joined, whole)) {
            wrong = "other messages";
        }

        json_decref(joined);
        verifier_free(&w);

        /* the same reader, without its RUN_STARTED */

        if (wrong == NULL) {
            joined = json_deep_copy(in_place);
            verifier_init(&w);
            w.state = x.state;
            close_for_reader(&w);
            wrong = run_events(&w, joined, p, 1, p->n);

            if (wrong == NULL) {
                wrong = run_events(&w, joined, &rec, k, rec.n);
            }

            if (wrong == NULL && !json_equal(joined, whole)) {
                wrong = "in place: other messages";
            }

            json_decref(joined);
            verifier_free(&w);
        }

        run_events(&x, in_place, &rec, k, k + 1);
    }

    verifier_free(&x);
    json_decref(whole);
    json_decref(in_place);

    return wrong;
}

static void
test_preludes(void)
{
    op_t ops[16], end = {OP_FINISH, 1, 1, 1};
    size_t i, k, n, at = 0, bad = 0, runs, joins = 0;
    unsigned seed = 815;
    const char *wrong;
    agent_encoder_t *e;
    static const unsigned ends[] = {OP_FINISH, OP_ERROR, OP_CANCEL};

    for (runs = 0; runs < 1000 / SLOWER && bad < 3; runs++) {
        n = random_ops(ops, 12, &seed);
        end.op = ends[rnd(&seed) % 3];

        input_messages = AGENT_STR(INPUT);
        if (runs % 4 == 0) {
            input_messages.len = 0;
        }

        e = create(&rec, 12 + rnd(&seed) % 29, 0);

        for (i = 0; i < COUNT(preludes); i++) {
            recorder_init(&preludes[i].r);
        }
        rec.preludes = preludes;

        agent_encoder_start(e);
        for (i = 0; i < n; i++) {
            apply(e, &ops[i]);
        }
        apply(e, &end);

        joins += rec.n;
        wrong = join_everywhere(&at);

        if (wrong != NULL) {
            bad++;
            printf("# at %zu: %s\n", at, wrong);
            print_ops(ops, n);
            for (i = 0; i < preludes[at].r.n; i++) {
                printf("# prelude %s\n", preludes[at].r.events[i]);
            }
        }

        agent_encoder_destroy(e);
        recorder_free(&rec);
        for (k = 0; k < COUNT(preludes); k++) {
            recorder_free(&preludes[k].r);
        }
    }

    ok(bad == 0, "%zu joins of %zu runs are legal and lose nothing", joins,
       runs);
}

/* --- exact events --------------------------------------------------------- */

/* JSON in these tests is written with single quotes. */
static void
is_events(const char *const *want, const char *name)
{
    size_t i, k;
    char json[1024];

    for (i = 0; want[i] != NULL && i < rec.n; i++) {
        for (k = 0; want[i][k] != '\0'; k++) {
            json[k] = want[i][k] == '\'' ? '"' : want[i][k];
        }
        json[k] = '\0';

        is_bytes(rec.events[i], strlen(rec.events[i]), json, k, name);
    }

    ok(want[i] == NULL && i == rec.n, "%s: %zu events", name, i);
    recorder_free(&rec);
}

static agent_rc_t
text(agent_encoder_t *e, agent_delta_type_t type, const char *s)
{
    agent_delta_t d = {.type = type, .text = {s, strlen(s)}};

    return agent_encoder_delta(e, &d);
}

static agent_rc_t
call(agent_encoder_t *e, unsigned n, const char *id, const char *name)
{
    agent_delta_t d = {.type = AGENT_DELTA_TOOL_START,
                       .call = n,
                       .id = {id, strlen(id)},
                       .name = {name, strlen(name)}};

    return agent_encoder_delta(e, &d);
}

static agent_rc_t
args(agent_encoder_t *e, unsigned n, const char *s)
{
    agent_delta_t d = {
        .type = AGENT_DELTA_TOOL_ARGS, .call = n, .text = {s, strlen(s)}};

    return agent_encoder_delta(e, &d);
}

static agent_rc_t
finish(agent_encoder_t *e, agent_finish_t why, const agent_usage_t *usage)
{
    agent_delta_t d = {
        .type = AGENT_DELTA_FINISH, .finish = why, .usage = usage};

    return agent_encoder_delta(e, &d);
}

#define STARTED                                                                \
    "{'type':'RUN_STARTED','threadId':'t1','runId':'r1','protocolVersion':"    \
    "'1.0'}"
#define TEXT_START(id)                                                         \
    "{'type':'TEXT_MESSAGE_START','messageId':'" id "','role':'assistant'}"
#define TEXT(id, delta)                                                        \
    "{'type':'TEXT_MESSAGE_CONTENT','messageId':'" id "','delta':'" delta "'}"
#define TEXT_END(id) "{'type':'TEXT_MESSAGE_END','messageId':'" id "'}"
#define CALL_START(id, name, parent)                                           \
    "{'type':'TOOL_CALL_START','toolCallId':'" id "','toolCallName':'" name    \
    "','parentMessageId':'" parent "'}"
#define ARGS(id, delta)                                                        \
    "{'type':'TOOL_CALL_ARGS','toolCallId':'" id "','delta':'" delta "'}"
#define CALL_END(id) "{'type':'TOOL_CALL_END','toolCallId':'" id "'}"
#define SPAN_START(n)                                                          \
    "{'type':'REASONING_START','messageId':'rsn_s_" n "'}",                    \
        "{'type':'REASONING_MESSAGE_START','messageId':'rsm_s_" n              \
        "','role':'reasoning'}"
#define THOUGHT(n, delta)                                                      \
    "{'type':'REASONING_MESSAGE_CONTENT','messageId':'rsm_s_" n                \
    "','delta':'" delta "'}"
#define SPAN_END(n)                                                            \
    "{'type':'REASONING_MESSAGE_END','messageId':'rsm_s_" n "'}",              \
        "{'type':'REASONING_END','messageId':'rsn_s_" n "'}"
#define FINISHED(rest)                                                         \
    "{'type':'RUN_FINISHED','threadId':'t1','runId':'r1'," rest "}"
#define SUCCESS "'outcome':{'type':'success'}"

static void
test_exact(void)
{
    agent_buf_t b;
    agent_usage_t usage = {12, 3, INT64_MAX, 0, 4, -1};
    agent_fault_t fault;
    agent_encoder_t *e;

    static const char *const plain[] = {
        STARTED,
        TEXT_START("msg_s_1"),
        TEXT("msg_s_1", "Hi"),
        TEXT("msg_s_1", " \\n"),
        TEXT_END("msg_s_1"),
        FINISHED(SUCCESS ",'metadata':{'finishReason':'stop'},'usage':[{"
                         "'provider':'openai','model':'m','inputTokens':12,"
                         "'outputTokens':3,'reasoningTokens':0,"
                         "'cachedInputTokens':4}]"),
        NULL};
    static const char *const tools[] = {
        STARTED,
        SPAN_START("1"),
        THOUGHT("1", "hm"),
        SPAN_END("1"),
        TEXT_START("msg_s_1"),
        TEXT("msg_s_1", "Look"),
        TEXT_END("msg_s_1"),
        CALL_START("c1", "f", "msg_s_1"),
        CALL_START("c2", "g", "msg_s_1"),
        ARGS("c1", "{"),
        ARGS("c2", "[]"),
        ARGS("c1", "}"),
        CALL_START("c3", "h", "msg_s_1"),
        CALL_END("c1"),
        CALL_END("c2"),
        ARGS("c3", "{}"),
        CALL_END("c3"),
        FINISHED("'outcome':{'type':'success','pendingToolCallIds':['c1','c2',"
                 "'c3']},'metadata':{'finishReason':'tool_calls'}"),
        NULL};
    static const char *const alone[] = {
        STARTED,
        CALL_START("c1", "f", "msg_s_1"),
        ARGS("c1", "{}"),
        CALL_END("c1"),
        TEXT_START("msg_s_2"),
        TEXT("msg_s_2", "then"),
        TEXT_END("msg_s_2"),
        SPAN_START("1"),
        THOUGHT("1", "hm"),
        SPAN_END("1"),
        CALL_START("c2", "f", "msg_s_3"),
        ARGS("c2", "1"),
        CALL_END("c2"),
        FINISHED("'outcome':{'type':'cancelled'}"),
        NULL};
    static const char *const odd_ids[] = {
        STARTED,
        CALL_START("c1", "f", "msg_s_1"),
        CALL_START("call_s_2", "f", "msg_s_1"),
        CALL_START("call_s_3", "f", "msg_s_1"),
        CALL_START("call_s_4", "f", "msg_s_1"),
        "{'type':'RUN_ERROR','message':'upstream_error','code':"
        "'upstream_error'}",
        NULL};
    static const char *const late[] = {
        STARTED,
        CALL_START("c1", "f", "msg_s_1"),
        ARGS("c1", "[1"),
        CALL_END("c1"),
        TEXT_START("msg_s_2"),
        TEXT("msg_s_2", "x"),
        TEXT_END("msg_s_2"),
        CALL_START("c1", "f", "msg_s_1"),
        ARGS("c1", ",2]"),
        CALL_END("c1"),
        FINISHED("'outcome':{'type':'success','pendingToolCallIds':['c1']}"),
        NULL};
    static const char *const error[] = {
        "{'type':'RUN_ERROR','message':'no such \\"
        "'model\\"
        "'','code':'upstream_rejected','usage':[{'provider':'openai','model':"
        "'m','inputTokens':12,'outputTokens':3,'reasoningTokens':0,"
        "'cachedInputTokens':4}]}",
        NULL};

    e = create(&rec, 0, 0);
    agent_encoder_start(e);
    text(e, AGENT_DELTA_TEXT, "Hi");
    text(e, AGENT_DELTA_TEXT, "");
    text(e, AGENT_DELTA_REFUSAL, " \\n");
    finish(e, AGENT_FINISH_STOP, &usage);
    is_events(plain, "plain");
    ok(agent_encoder_outcome(e) == AGENT_RUN_FINISHED &&
           agent_encoder_finish(e) == AGENT_FINISH_STOP &&
           agent_encoder_usage(e)->input == 12 &&
           agent_encoder_usage(e)->total == -1,
       "what the encoder says of it");

    agent_buf_init(&b, &agent_alloc_libc);
    agent_encoder_answer(e, &b);
    is_str(agent_buf_str(&b),
           "{\"threadId\":\"t1\",\"runId\":\"r1\",\"status\":\"finished\","
           "\"text\":\"Hi \\n\",\"messages\":[{\"id\":\"msg_s_1\",\"role\":"
           "\"assistant\",\"content\":\"Hi \\n\"}],\"finishReason\":\"stop\","
           "\"outcome\":{\"type\":\"success\"},\"usage\":[{\"provider\":"
           "\"openai\",\"model\":\"m\",\"inputTokens\":12,\"outputTokens\":3,"
           "\"reasoningTokens\":0,\"cachedInputTokens\":4}]}",
           "answer");
    agent_encoder_destroy(e);

    e = create(&rec, 0, 0);
    agent_encoder_start(e);
    text(e, AGENT_DELTA_REASONING, "hm");
    text(e, AGENT_DELTA_TEXT, "Look");
    call(e, 0, "c1", "f");
    call(e, 1, "c2", "g");
    args(e, 0, "{");
    args(e, 1, "[]");
    args(e, 0, "}");
    call(e, 2, "c3", "h");
    finish(e, AGENT_FINISH_TOOL_CALLS, NULL);
    is_events(tools, "tools");

    agent_buf_reset(&b);
    agent_encoder_messages(e, &b);
    is_str(agent_buf_str(&b),
           "{\"id\":\"rsm_s_1\",\"role\":\"reasoning\",\"content\":\"hm\"},"
           "{\"id\":\"msg_s_1\",\"role\":\"assistant\",\"content\":\"Look\","
           "\"toolCalls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":"
           "{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"c2\",\"type\":"
           "\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"[]\"}},"
           "{\"id\":\"c3\",\"type\":\"function\",\"function\":{\"name\":\"h\","
           "\"arguments\":\"{}\"}}]}",
           "messages");
    agent_encoder_destroy(e);

    e = create(&rec, 0, 0);
    call(e, 0, "c1", "f"); /* starts by itself */
    text(e, AGENT_DELTA_TEXT, "then");
    ok(args(e, 0, "late") == AGENT_OK, "no arguments behind the \"{}\"");
    text(e, AGENT_DELTA_REASONING, "hm");
    call(e, 1, "c2", "f");
    args(e, 1, "1");
    agent_encoder_cancel(e);
    is_events(alone, "alone");

    agent_buf_reset(&b);
    agent_encoder_answer(e, &b);
    ok(strstr(b.data, "\"status\":\"cancelled\",\"text\":\"then\"") != NULL &&
           strstr(b.data, "},{\"id\":\"rsm_s_1\"") != NULL &&
           strstr(b.data, "\"outcome\":{\"type\":\"cancelled\"}}") != NULL,
       "answer of a cancelled run");
    agent_encoder_destroy(e);

    e = create(&rec, 0, 0);
    call(e, 0, "c1", "f");
    call(e, 1, "c1", "f");
    call(e, 2, "a\nb", "f");
    call(e, 3, "call_s_2", "f");
    ok(call(e, 5, "c9", "f") == AGENT_INVALID, "a gap in the numbers");
    ok(args(e, 4, "x") == AGENT_INVALID, "arguments of no call");
    memset(&fault, 0, sizeof(fault));
    fault.code = AGENT_CODE_UPSTREAM_ERROR;
    agent_encoder_error(e, &fault);
    is_events(odd_ids, "odd ids");
    ok(agent_encoder_outcome(e) == AGENT_RUN_ERROR &&
           agent_encoder_fault(e)->code == AGENT_CODE_UPSTREAM_ERROR,
       "outcome and fault");
    agent_encoder_destroy(e);

    e = create(&rec, 0, 0);
    call(e, 0, "c1", "f");
    args(e, 0, "[1");
    text(e, AGENT_DELTA_TEXT, "x");
    args(e, 0, ",2]");
    finish(e, AGENT_FINISH_UNKNOWN, NULL);
    is_events(late, "late arguments");
    agent_encoder_destroy(e);

    e = create(&rec, 0, 0);
    agent_fault_set(&fault, AGENT_CODE_UPSTREAM_REJECTED, "no such \"model\"");
    {
        agent_delta_t d = {
            .type = AGENT_DELTA_ERROR, .usage = &usage, .fault = &fault};
        agent_encoder_delta(e, &d);
    }
    is_events(error, "an error at once");
    agent_encoder_destroy(e);

    agent_buf_free(&b);
}

/* Clients of AG-UI 0.0.5x. */
static void
test_legacy(void)
{
    agent_encoder_t *e;
    agent_encoder_conf_t conf = {.thread_id = agent_str("t1"),
                                 .run_id = agent_str("r1"),
                                 .seed = agent_str("s"),
                                 .legacy = 1};
    static const char *const calls[] = {STARTED,
                                        CALL_START("c1", "f", "msg_s_1"),
                                        ARGS("c1", "{}"),
                                        CALL_END("c1"),
                                        FINISHED("'metadata':{'finishReason':"
                                                 "'tool_calls'}"),
                                        NULL};
    static const char *const none[] = {STARTED, FINISHED(SUCCESS), NULL};

    recorder_init(&rec);
    e = agent_encoder_create(&conf, record, &rec, &test_alloc);
    call(e, 0, "c1", "f");
    finish(e, AGENT_FINISH_TOOL_CALLS, NULL);
    is_events(calls, "legacy, calls");
    agent_encoder_destroy(e);

    e = agent_encoder_create(&conf, record, &rec, &test_alloc);
    finish(e, AGENT_FINISH_UNKNOWN, NULL);
    is_events(none, "legacy, no calls");
    agent_encoder_destroy(e);
}

static void
test_strings(void)
{
    agent_encoder_t *e;
    agent_encoder_conf_t conf;
    static const char *const want[] = {
        "{'type':'RUN_STARTED','threadId':'a\\r\\n\\\\','runId':'\xef\xbf\xbd',"
        "'protocolVersion':'1.0','parentRunId':'p'}",
        NULL};
    char seed[300];

    memset(seed, 'x', sizeof(seed));
    memset(&conf, 0, sizeof(conf));
    conf.thread_id = AGENT_STR("a\r\n\\");
    conf.run_id = AGENT_STR("\xff");
    conf.parent_run_id = AGENT_STR("p");
    conf.seed.data = seed;
    conf.seed.len = sizeof(seed);

    recorder_init(&rec);
    e = agent_encoder_create(&conf, record, &rec, &test_alloc);
    agent_encoder_start(e);
    is_events(want, "client ids are escaped");
    text(e, AGENT_DELTA_TEXT, "x");
    ok(strlen(rec.events[0]) < 200, "a long seed is cut");
    recorder_free(&rec);
    agent_encoder_destroy(e);
}

static void
test_prelude(void)
{
    size_t k;
    recorder_t *p = &preludes[0].r;
    agent_encoder_t *e;
    agent_str_t none = {"", 0};

    e = create(&rec, 0, 0);

    recorder_init(p);
    ok(agent_encoder_prelude(e, AGENT_STR(INPUT), 0, record, p) == AGENT_OK &&
           p->n == 0,
       "before the start there is none");

    agent_encoder_start(e);
    agent_encoder_prelude(e, none, 0, record, p);
    ok(p->n == 1 && p->types[0] == AGENT_EV_RUN_STARTED, "no empty snapshot");
    agent_encoder_prelude(e, none, 1, record, p);
    ok(p->n == 1, "nothing at all in place");
    agent_encoder_prelude(e, AGENT_STR(INPUT), 1, record, p);
    ok(p->n == 2 && p->types[1] == AGENT_EV_MESSAGES_SNAPSHOT,
       "in place only the snapshot");
    recorder_free(p);

    text(e, AGENT_DELTA_REASONING, "hm");
    agent_encoder_prelude(e, none, 0, record, p);
    ok(p->n == 4 && p->types[2] == AGENT_EV_REASONING_START &&
           p->types[3] == AGENT_EV_REASONING_MESSAGE_START,
       "reasoning is opened again, span and message");
    recorder_free(p);

    call(e, 0, "c1", "f");
    args(e, 0, "[");
    call(e, 1, "c2", "f");
    text(e, AGENT_DELTA_REASONING, "hm");
    agent_encoder_prelude(e, none, 1, record, p);
    ok(p->n == 5 && p->types[3] == AGENT_EV_TOOL_CALL_START &&
           p->types[4] == AGENT_EV_TOOL_CALL_START,
       "open calls too");

    for (k = 0; k < 5; k++) {
        recorder_free(p);
        p->fail_at = (long) k;
        ok(agent_encoder_prelude(e, none, 1, record, p) == AGENT_ABORTED &&
               p->n == k,
           "a refusal of event %zu is passed on", k);
    }

    recorder_free(p);
    agent_encoder_error(e, NULL);
    agent_encoder_prelude(e, none, 0, record, p);
    ok(p->n == 2, "after an error nothing is opened again");

    recorder_free(p);
    recorder_free(&rec);
    agent_encoder_destroy(e);
}

/* --- sizes ---------------------------------------------------------------- */

static void
test_split(void)
{
    size_t i, max, wrong = 0, which;
    agent_buf_t whole;
    agent_encoder_t *e;
    json_t *ev, *delta;
    agent_str_t escaped;
    static const char *const units[] = {
        "a",   "\xc3\xa9", "\xe6\x97\xa5",   "\xf0\x9f\x98\x80",
        "\\n", "\\u00e9",  "\\ud83d\\ude00", "\\\\",
        "\\\""};
    unsigned seed = 99;
    char in[4096];

    agent_buf_init(&whole, &agent_alloc_libc);

    for (max = 1; max <= 40; max++) {
        for (which = 0; which < 3; which++) {
            for (in[0] = '\0', i = 0; i < 250; i++) {
                strcat(in, units[rnd(&seed) % COUNT(units)]);
            }

            e = create(&rec, max, 0);
            agent_encoder_start(e);

            if (which == 0) {
                text(e, AGENT_DELTA_TEXT, in);
            } else if (which == 1) {
                text(e, AGENT_DELTA_REASONING, in);
            } else {
                call(e, 0, "c", "f");
                args(e, 0, in);
            }

            agent_buf_reset(&whole);

            for (i = 0; i < rec.n; i++) {
                if (!agent_event_is_delta(rec.types[i])) {
                    continue;
                }

                ev = json_loads(rec.events[i], 0, NULL);
                delta = json_object_get(ev, "delta");
                escaped.data = strstr(rec.events[i], "\"delta\":\"") + 9;
                escaped.len = strlen(escaped.data) - 2;

                wrong += ev == NULL || !json_is_string(delta);
                wrong +=
                    escaped.len == 0 || escaped.len > (max < 12 ? 12 : max);
                agent_buf_add_str(&whole, escaped);
                json_decref(ev);
            }

            wrong += whole.len != strlen(in) ||
                     memcmp(whole.data, in, whole.len) != 0;

            recorder_free(&rec);
            agent_encoder_destroy(e);
        }
    }

    ok(wrong == 0, "long deltas are split at every size from 1 to 40");

    e = create(&rec, 12, 0);
    ok(text(e, AGENT_DELTA_TEXT, "\\q this is no escaped text") ==
           AGENT_INVALID,
       "what cannot be split is refused");
    recorder_free(&rec);
    agent_encoder_destroy(e);

    agent_buf_free(&whole);
}

/* What is kept of a message must be a tail of what was said. */
static int
is_tail(const char *whole, const char *kept)
{
    size_t n = strlen(whole), m = strlen(kept);

    return m <= n && strcmp(whole + n - m, kept) == 0;
}

static void
test_kept(void)
{
    op_t ops[40];
    size_t i, k, n, max, bytes, wrong = 0, cut = 0;
    unsigned seed = 31337, runs;
    json_t *all, *own, *a, *b;
    agent_encoder_t *e;
    verifier_t v;
    agent_str_t escaped;
    agent_buf_t buf;

    agent_buf_init(&buf, &agent_alloc_libc);

    for (runs = 0; runs < 2000; runs++) {
        max = 24 + rnd(&seed) % 200;
        e = create(&rec, 12 + rnd(&seed) % 60, max);
        agent_encoder_start(e);
        n = random_ops(ops, 40, &seed);

        for (i = 0; i < n; i++) {
            apply(e, &ops[i]);
        }

        all = json_array();
        verifier_init(&v);
        wrong += run_events(&v, all, &rec, 0, rec.n) != NULL;
        verifier_free(&v);

        own = encoder_messages(e, AGENT_STR(""));
        wrong += own == NULL || json_array_size(own) != json_array_size(all);

        for (bytes = 0, i = 0; i < json_array_size(all); i++) {
            a = json_array_get(all, i);
            b = json_array_get(own, i);

            if (json_object_get(a, "content") != NULL) {
                wrong +=
                    !is_tail(json_string_value(json_object_get(a, "content")),
                             json_string_value(json_object_get(b, "content")));
                escaped.data = json_string_value(json_object_get(b, "content"));
                bytes += strlen(escaped.data);
                cut += !json_equal(json_object_get(a, "content"),
                                   json_object_get(b, "content"));
            }

            for (k = 0; k < json_array_size(json_object_get(a, "toolCalls"));
                 k++) {
                escaped.data = json_string_value(json_object_get(
                    json_object_get(
                        json_array_get(json_object_get(b, "toolCalls"), k),
                        "function"),
                    "arguments"));
                wrong += !is_tail(
                    json_string_value(json_object_get(
                        json_object_get(
                            json_array_get(json_object_get(a, "toolCalls"), k),
                            "function"),
                        "arguments")),
                    escaped.data);
                bytes += strlen(escaped.data);
            }
        }

        wrong += bytes > max; /* unescaped, so a lower bound */

        json_decref(all);
        json_decref(own);
        recorder_free(&rec);
        agent_encoder_destroy(e);
    }

    ok(wrong == 0 && cut > 100, "of %zu long messages one tail is kept", cut);

    agent_buf_free(&buf);
}

static agent_rc_t
count_event(void *ctx, const agent_event_t *ev)
{
    *(size_t *) ctx += ev->body.len;

    return AGENT_OK;
}

/* n deltas through an output that keeps 64 KB, spread over items. */
static double
stream(size_t n, unsigned items)
{
    size_t i, bytes = 0;
    clock_t start;
    agent_buf_t b;
    agent_encoder_t *e;
    agent_encoder_conf_t conf;
    char id[32];

    memset(&conf, 0, sizeof(conf));
    conf.seed = AGENT_STR("s");
    conf.max_output = 65536;

    e = agent_encoder_create(&conf, count_event, &bytes, &test_alloc);
    start = clock();

    for (i = 0; i < items; i++) {
        snprintf(id, sizeof(id), "c%zu", i);
        call(e, (unsigned) i, id, "f");
    }

    for (i = 0; i < n; i++) {
        if (items == 0) {
            text(e, AGENT_DELTA_TEXT, "twenty bytes of text");
        } else {
            args(e, (unsigned) (i % items), "twenty bytes of text");
        }
    }

    agent_buf_init(&b, &agent_alloc_libc);
    agent_encoder_messages(e, &b);
    ok(b.len < 65536 + 200 + 200 * items && bytes >= 20 * n,
       "%zu deltas of %u calls: %zu bytes are kept", n, items, b.len);
    agent_buf_free(&b);
    agent_encoder_destroy(e);

    return (double) (clock() - start) / CLOCKS_PER_SEC;
}

static void
test_amortised(void)
{
    double one, few, many;

    one = stream(1000000, 0);
    few = stream(1000000, 10);
    many = stream(1000000, 1000);

    ok(one < 5 && few < 5 && many < 10,
       "a million deltas beyond the limit: %.3f s, %.3f s, %.3f s", one, few,
       many);
}

static void
test_items(void)
{
    size_t i;
    agent_rc_t rc = AGENT_OK;
    agent_encoder_t *e;
    agent_encoder_conf_t conf;
    size_t bytes = 0;

    memset(&conf, 0, sizeof(conf));
    conf.seed = AGENT_STR("s");
    e = agent_encoder_create(&conf, count_event, &bytes, &test_alloc);

    for (i = 0; rc == AGENT_OK && i < 20000; i++) {
        rc = call(e, (unsigned) i, "same", "f");
    }

    ok(rc == AGENT_TOO_LARGE && i > 5000, "%zu tool calls are too many", i);
    ok(text(e, AGENT_DELTA_TEXT, "x") == AGENT_TOO_LARGE,
       "then no message either");
    ok(agent_encoder_error(e, NULL) == AGENT_OK, "but an end");
    agent_encoder_destroy(e);
}

/* --- failing allocations -------------------------------------------------- */

static void
test_hot_path(void)
{
    size_t i, bytes = 0, wrong = 0;
    long before;
    agent_encoder_t *e;
    agent_encoder_conf_t conf;

    memset(&conf, 0, sizeof(conf));
    conf.seed = AGENT_STR("s");
    e = agent_encoder_create(&conf, count_event, &bytes, &test_alloc);
    agent_encoder_start(e);
    text(e, AGENT_DELTA_TEXT, "x");

    budget = 0;
    for (i = 0; i < 60; i++) {
        wrong += text(e, AGENT_DELTA_TEXT, "y") != AGENT_OK;
    }
    ok(wrong == 0, "a delta allocates nothing");

    wrong += text(e, AGENT_DELTA_TEXT, "a text that the buffer cannot hold") !=
             AGENT_NOMEM;
    budget = -1;
    wrong += text(e, AGENT_DELTA_TEXT, "a text that the buffer cannot hold") !=
             AGENT_OK;
    ok(wrong == 0, "but what the kept output grows by");

    before = allocations;
    for (i = 0; i < 10000; i++) {
        text(e, AGENT_DELTA_TEXT, "0123456789");
    }
    ok(allocations - before < 20, "which is rare");

    agent_encoder_destroy(e);
}

static void
test_nomem(void)
{
    long n, start = live, failed = 0;
    size_t i, wrong = 0;
    unsigned seed = 77, runs;
    agent_rc_t rc;
    agent_encoder_t *e;
    op_t ops[24];
    json_t *messages;
    verifier_t v;
    const char *broken;

    for (runs = 0; runs < 60; runs++) {
        size_t nops = random_ops(ops, 24, &seed);

        for (n = 0;; n++) {
            budget = n;
            e = create(&rec, 20, 100);

            if (e == NULL) {
                budget = -1;
                failed++;
                continue;
            }

            for (i = 0; i < nops; i++) {
                rc = apply(e, &ops[i]);
                wrong +=
                    rc != AGENT_OK && rc != AGENT_NOMEM && rc != AGENT_INVALID;
            }

            /* nothing is left, but the run must end */

            i = budget == 0;
            rc = agent_encoder_error(e, NULL);
            wrong += rc != AGENT_OK;
            budget = -1;

            messages = json_array();
            verifier_init(&v);
            broken = run_events(&v, messages, &rec, 0, rec.n);
            if (broken != NULL) {
                wrong++;
                printf("# %s\n", broken);
                print_ops(ops, nops);
            }
            verifier_free(&v);
            json_decref(messages);

            recorder_free(&rec);
            agent_encoder_destroy(e);

            if (i == 0) {
                break;
            }

            failed++;
        }
    }

    ok(wrong == 0, "%ld times memory runs out: a legal run, an end", failed);
    ok(live == start, "and no leak");

    e = create(&rec, 0, 0);
    agent_encoder_start(e);
    text(e, AGENT_DELTA_TEXT, "x");
    i = rec.n;
    budget = 0;
    ok(agent_encoder_prelude(e, AGENT_STR(INPUT), 0, record, &rec) ==
               AGENT_NOMEM &&
           rec.n == i,
       "no memory for a prelude");
    budget = -1;
    recorder_free(&rec);
    agent_encoder_destroy(e);
}

static void
test_last_words(void)
{
    size_t i;
    agent_buf_t b;
    agent_fault_t fault;
    agent_encoder_t *e;

    e = create(&rec, 0, 1);
    text(e, AGENT_DELTA_TEXT, "one");
    call(e, 0, "c", "f");
    text(e, AGENT_DELTA_TEXT, "two");

    agent_buf_init(&b, &agent_alloc_libc);
    agent_encoder_text(e, &b);
    is_str(agent_buf_str(&b), "onetwo", "the text of a run");
    agent_buf_free(&b);

    fault.code = AGENT_CODE_RUN_TIMEOUT;
    fault.retry_after = 0;
    memset(fault.message, 1, sizeof(fault.message) - 1);
    fault.message[sizeof(fault.message) - 1] = '\0';

    i = rec.n;
    budget = 0;
    ok(agent_encoder_error(e, &fault) == AGENT_OK && rec.n == i + 1,
       "a failure with too much to say and no memory");
    budget = -1;
    ok(strcmp(rec.events[i],
              "{\"type\":\"RUN_ERROR\",\"message\":\"run_timeout\",\"code\":"
              "\"run_timeout\"}") == 0,
       "says its code");

    recorder_free(&rec);
    agent_encoder_destroy(e);
    agent_encoder_destroy(NULL);
}

int
main(void)
{
    test_exact();
    test_legacy();
    test_strings();
    test_prelude();
    test_split();
    test_kept();
    test_amortised();
    test_items();
    test_hot_path();
    test_nomem();
    test_last_words();
    test_preludes();
    test_random();

    ok(live == 0, "nothing is left");

    return done_testing();
}
