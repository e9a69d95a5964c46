#include "agent_fold.h"
#include "agent_json.h"
#include "agent_output.h"

#include <string.h>

/* A START whose END has not come, in "open": this, the id, the JSON. */
typedef struct {
    uint32_t type;
    uint32_t id_len;
    uint32_t json_len;
} agent_fold_open_t;

struct agent_fold_s {
    agent_output_t output;
    agent_buf_t started; /* the JSON of RUN_STARTED */
    agent_buf_t seed;
    agent_buf_t names; /* provider and model */
    agent_buf_t open;
    agent_buf_t text; /* scratch */
    size_t voices[2]; /* the open text and reasoning message */
};

agent_fold_t *
agent_fold_create(agent_str_t thread_id, agent_str_t run_id,
                  const agent_alloc_t *alloc)
{
    agent_fold_t *f;
    agent_encoder_conf_t conf;

    f = agent_calloc(alloc, sizeof(agent_fold_t));
    if (f == NULL) {
        return NULL;
    }

    memset(&conf, 0, sizeof(conf));
    conf.thread_id = thread_id;
    conf.run_id = run_id;

    agent_buf_init(&f->started, alloc);
    agent_buf_init(&f->seed, alloc);
    agent_buf_init(&f->names, alloc);
    agent_buf_init(&f->open, alloc);
    agent_buf_init(&f->text, alloc);
    f->voices[0] = AGENT_OUTPUT_NONE;
    f->voices[1] = AGENT_OUTPUT_NONE;

    if (agent_output_init(&f->output, &conf, alloc) != AGENT_OK) {
        agent_fold_destroy(f);
        return NULL;
    }

    return f;
}

void
agent_fold_destroy(agent_fold_t *f)
{
    const agent_alloc_t *alloc;

    if (f == NULL) {
        return;
    }

    alloc = f->open.alloc;

    agent_output_free(&f->output);
    agent_buf_free(&f->started);
    agent_buf_free(&f->seed);
    agent_buf_free(&f->names);
    agent_buf_free(&f->open);
    agent_buf_free(&f->text);
    agent_free(alloc, f);
}

/* --- messages ------------------------------------------------------------- */

/*
 * A message by its minted id, "<kind>_<seed>_<number>": messages come in the
 * order of their numbers.
 */
static agent_rc_t
agent_fold_new_msg(agent_fold_t *f, int reasoning, agent_str_t id, size_t *msg)
{
    size_t end = id.len;
    agent_rc_t rc;
    agent_str_t want;
    agent_output_id_t minted;

    if (f->seed.len == 0) {
        while (end > 4 && id.data[end - 1] != '_') {
            end--;
        }

        if (end < 6) {
            return AGENT_INVALID;
        }

        agent_buf_add(&f->seed, id.data + 4, end - 5);

        if (!agent_buf_ok(&f->seed)) {
            return AGENT_NOMEM;
        }

        f->output.seed = agent_buf_str(&f->seed);
    }

    want = agent_output_id(&f->output, minted, reasoning ? "rsm" : "msg",
                           f->output.counts[reasoning] + 1);

    if (!agent_str_eq(id, want)) {
        return AGENT_INVALID;
    }

    rc = agent_output_stage_msg(&f->output);

    if (rc == AGENT_OK) {
        *msg = agent_output_add_msg(&f->output, reasoning);
    }

    return rc;
}

static agent_rc_t
agent_fold_speak(agent_fold_t *f, int reasoning, agent_str_t id)
{
    agent_rc_t rc = agent_fold_new_msg(f, reasoning, id, &f->voices[reasoning]);

    if (rc == AGENT_OK) {
        f->output.msgs[f->voices[reasoning]].spoken = 1;
    }

    return rc;
}

/* The message of an id, made when it is the next one. */
static agent_rc_t
agent_fold_msg(agent_fold_t *f, agent_str_t id, size_t *msg)
{
    size_t i;
    agent_output_id_t minted;

    for (i = f->output.nmsgs; i != 0; i--) {
        if (!f->output.msgs[i - 1].reasoning &&
            agent_str_eq(id, agent_output_id(&f->output, minted, "msg",
                                             f->output.msgs[i - 1].n))) {
            *msg = i - 1;
            return AGENT_OK;
        }
    }

    return agent_fold_new_msg(f, 0, id, msg);
}

/* A string member of an event, as escaped text. */
static agent_rc_t
agent_fold_member(const agent_event_t *ev, agent_str_t key, agent_str_t *value)
{
    if (agent_json_find(ev->body, key, value) != AGENT_OK || value->len < 2 ||
        value->data[0] != '"') {
        return AGENT_INVALID;
    }

    value->data++;
    value->len -= 2;

    return AGENT_OK;
}

/* The newest call of an id; NULL: there is none. */
static agent_output_call_t *
agent_fold_find(agent_fold_t *f, agent_str_t id)
{
    size_t i;

    for (i = f->output.ncalls; i != 0; i--) {
        if (agent_str_eq(id, agent_output_call_id(&f->output.calls[i - 1]))) {
            return &f->output.calls[i - 1];
        }
    }

    return NULL;
}

static agent_rc_t
agent_fold_call(agent_fold_t *f, const agent_event_t *ev)
{
    size_t msg, id_len;
    agent_rc_t rc;
    agent_str_t name, parent, id, plain;

    if (agent_fold_find(f, ev->id) != NULL) {
        return AGENT_OK; /* opened once more, for further arguments */
    }

    if (agent_fold_member(ev, AGENT_STR("toolCallName"), &name) != AGENT_OK ||
        agent_fold_member(ev, AGENT_STR("parentMessageId"), &parent) !=
            AGENT_OK) {
        return AGENT_INVALID;
    }

    rc = agent_fold_msg(f, parent, &msg);
    if (rc != AGENT_OK) {
        return rc;
    }

    agent_buf_reset(&f->text);

    if (agent_json_unescape(&f->text, ev->id) != AGENT_OK) {
        return AGENT_INVALID;
    }

    id_len = f->text.len;

    if (agent_json_unescape(&f->text, name) != AGENT_OK) {
        return AGENT_INVALID;
    }

    if (!agent_buf_ok(&f->text)) {
        return AGENT_NOMEM;
    }

    id.data = f->text.data;
    id.len = id_len;
    plain.data = f->text.data + id_len;
    plain.len = f->text.len - id_len;

    rc = agent_output_stage_call(&f->output, id, plain);

    if (rc == AGENT_OK) {
        (void) agent_output_add_call(&f->output, msg);
    }

    return rc;
}

static agent_rc_t
agent_fold_keep(agent_fold_t *f, agent_buf_t *text, agent_str_t s)
{
    agent_rc_t rc = agent_output_room(&f->output, text, s.len);

    if (rc == AGENT_OK) {
        agent_output_keep(&f->output, text, s);
    }

    return rc;
}

static agent_rc_t
agent_fold_voice(agent_fold_t *f, int reasoning, agent_str_t text)
{
    agent_output_msg_t *m;

    if (f->voices[reasoning] == AGENT_OUTPUT_NONE) {
        return AGENT_INVALID;
    }

    m = &f->output.msgs[f->voices[reasoning]];

    return agent_fold_keep(f, &m->text, text);
}

static agent_rc_t
agent_fold_args(agent_fold_t *f, const agent_event_t *ev)
{
    agent_output_call_t *c = agent_fold_find(f, ev->id);

    return c != NULL ? agent_fold_keep(f, &c->args, ev->body) : AGENT_INVALID;
}

/* --- what is open --------------------------------------------------------- */

static agent_rc_t
agent_fold_begin(agent_fold_t *f, const agent_event_t *ev)
{
    agent_fold_open_t o = {(uint32_t) ev->type, (uint32_t) ev->id.len,
                           (uint32_t) ev->body.len};

    if (agent_buf_reserve(&f->open, sizeof(o) + ev->id.len + ev->body.len) !=
        AGENT_OK) {
        return AGENT_NOMEM;
    }

    agent_buf_add(&f->open, &o, sizeof(o));
    agent_buf_add_str(&f->open, ev->id);
    agent_buf_add_str(&f->open, ev->body);

    return AGENT_OK;
}

static void
agent_fold_close(agent_fold_t *f, agent_event_type_t start, agent_str_t id)
{
    size_t at, size;
    agent_fold_open_t o;

    for (at = 0; at < f->open.len; at += size) {
        memcpy(&o, f->open.data + at, sizeof(o));
        size = sizeof(o) + o.id_len + o.json_len;

        if (o.type == (uint32_t) start && o.id_len == id.len &&
            memcmp(f->open.data + at + sizeof(o), id.data, id.len) == 0) {
            memmove(f->open.data + at, f->open.data + at + size,
                    f->open.len - at - size);
            f->open.len -= size;
            return;
        }
    }
}

/* --- the end -------------------------------------------------------------- */

static void
agent_fold_counts(agent_fold_t *f, const agent_event_t *ev)
{
    size_t i;
    const char *cursor = NULL, *p;
    agent_str_t list, usage, value;
    const struct {
        agent_str_t key;
        int64_t *n;
    } counts[] = {
        {agent_str("inputTokens"), &f->output.usage.input},
        {agent_str("outputTokens"), &f->output.usage.output},
        {agent_str("totalTokens"), &f->output.usage.total},
        {agent_str("reasoningTokens"), &f->output.usage.reasoning},
        {agent_str("cachedInputTokens"), &f->output.usage.cached},
        {agent_str("cacheWriteInputTokens"), &f->output.usage.cache_write},
    };
    const struct {
        agent_str_t key;
        agent_str_t *s;
    } names[] = {{agent_str("provider"), &f->output.provider},
                 {agent_str("model"), &f->output.model}};

    if (agent_json_find(ev->body, AGENT_STR("usage"), &list) != AGENT_OK ||
        agent_json_next(list, &cursor, &usage) != AGENT_OK) {
        return;
    }

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (agent_json_find(usage, counts[i].key, &value) != AGENT_OK) {
            continue;
        }

        *counts[i].n = 0;

        for (p = value.data; p < value.data + value.len; p++) {
            *counts[i].n = *counts[i].n * 10 + (*p - '0');
        }
    }

    /* the event's bytes do not stay */

    for (i = 0; i < 2; i++) {
        if (agent_json_find(usage, names[i].key, &value) != AGENT_OK ||
            value.len < 2) {
            continue;
        }

        names[i].s->len = value.len - 2;
        agent_buf_add(&f->names, value.data + 1, value.len - 2);
    }

    if (!agent_buf_ok(&f->names)) {
        f->output.provider.len = 0;
        f->output.model.len = 0;
        return;
    }

    f->output.model.data = f->names.data + f->names.len - f->output.model.len;
    f->output.provider.data = f->output.model.data - f->output.provider.len;
}

agent_finish_t
agent_fold_reason(agent_str_t json)
{
    int i;
    agent_str_t value, word;
    agent_event_t in = {.type = AGENT_EV_RUN_FINISHED};

    if (agent_json_find(json, AGENT_STR("metadata"), &in.body) != AGENT_OK ||
        agent_fold_member(&in, AGENT_STR("finishReason"), &word) != AGENT_OK) {
        return AGENT_FINISH_UNKNOWN;
    }

    for (i = AGENT_FINISH_STOP; i <= AGENT_FINISH_CONTENT_FILTER; i++) {
        value.data = agent_finish_name((agent_finish_t) i);
        value.len = strlen(value.data);

        if (agent_str_eq(word, value)) {
            return (agent_finish_t) i;
        }
    }

    return AGENT_FINISH_UNKNOWN;
}

static void
agent_fold_finished(agent_fold_t *f, const agent_event_t *ev)
{
    agent_str_t value, word;
    agent_event_t in = *ev;

    f->output.outcome = AGENT_RUN_FINISHED;

    if (agent_json_find(ev->body, AGENT_STR("outcome"), &value) == AGENT_OK) {
        in.body = value;

        if (agent_fold_member(&in, AGENT_STR("type"), &word) == AGENT_OK &&
            agent_str_eq(word, AGENT_STR("cancelled"))) {
            f->output.outcome = AGENT_RUN_CANCELLED;
        }
    }

    f->output.finish = agent_fold_reason(ev->body);

    agent_fold_counts(f, ev);
}

agent_rc_t
agent_fold_fault(agent_str_t json, agent_fault_t *fault,
                 const agent_alloc_t *alloc)
{
    int i;
    agent_str_t code, message, name;
    agent_buf_t plain;
    const agent_event_t ev = {.type = AGENT_EV_RUN_ERROR, .body = json};

    if (agent_fold_member(&ev, AGENT_STR("code"), &code) != AGENT_OK ||
        agent_fold_member(&ev, AGENT_STR("message"), &message) != AGENT_OK) {
        return AGENT_INVALID;
    }

    agent_buf_init(&plain, alloc);

    if (agent_json_unescape(&plain, message) != AGENT_OK ||
        !agent_buf_ok(&plain)) {
        agent_buf_free(&plain);
        return AGENT_INVALID;
    }

    for (i = AGENT_CODE_COUNT - 1; i > AGENT_CODE_OK; i--) {
        name.data = agent_code_name((agent_code_t) i);
        name.len = strlen(name.data);

        if (agent_str_eq(code, name)) {
            break;
        }
    }

    agent_fault_set(fault, i != 0 ? (agent_code_t) i : AGENT_CODE_INTERNAL,
                    "%.*s", (int) plain.len, plain.data);
    agent_buf_free(&plain);

    return AGENT_OK;
}

/* --- events --------------------------------------------------------------- */

agent_rc_t
agent_fold_event(agent_fold_t *f, const agent_event_t *ev)
{
    agent_rc_t rc = AGENT_OK;

    switch (ev->type) {
    case AGENT_EV_RUN_STARTED:
        agent_buf_reset(&f->started);
        agent_buf_add_str(&f->started, ev->body);
        return agent_buf_ok(&f->started) ? AGENT_OK : AGENT_NOMEM;

    case AGENT_EV_TEXT_MESSAGE_CONTENT:
        return agent_fold_voice(f, 0, ev->body);

    case AGENT_EV_REASONING_MESSAGE_CONTENT:
        return agent_fold_voice(f, 1, ev->body);

    case AGENT_EV_TOOL_CALL_ARGS:
        return agent_fold_args(f, ev);

    case AGENT_EV_TEXT_MESSAGE_START:
        rc = agent_fold_speak(f, 0, ev->id);
        break;

    case AGENT_EV_REASONING_MESSAGE_START:
        rc = agent_fold_speak(f, 1, ev->id);
        break;

    case AGENT_EV_TOOL_CALL_START:
        rc = agent_fold_call(f, ev);
        break;

    case AGENT_EV_REASONING_START:
        break;

    case AGENT_EV_TEXT_MESSAGE_END:
        f->voices[0] = AGENT_OUTPUT_NONE;
        agent_fold_close(f, AGENT_EV_TEXT_MESSAGE_START, ev->id);
        return AGENT_OK;

    case AGENT_EV_REASONING_MESSAGE_END:
        f->voices[1] = AGENT_OUTPUT_NONE;
        agent_fold_close(f, AGENT_EV_REASONING_MESSAGE_START, ev->id);
        return AGENT_OK;

    case AGENT_EV_TOOL_CALL_END:
        agent_fold_close(f, AGENT_EV_TOOL_CALL_START, ev->id);
        return AGENT_OK;

    case AGENT_EV_REASONING_END:
        agent_fold_close(f, AGENT_EV_REASONING_START, ev->id);
        return AGENT_OK;

    case AGENT_EV_RUN_FINISHED:
        agent_fold_finished(f, ev);
        return AGENT_OK;

    case AGENT_EV_RUN_ERROR:
        f->output.outcome = AGENT_RUN_ERROR;
        return AGENT_OK;

    default:
        return AGENT_OK;
    }

    return rc == AGENT_OK ? agent_fold_begin(f, ev) : rc;
}

agent_rc_t
agent_fold_prelude(const agent_fold_t *f, agent_str_t input, int inplace,
                   agent_event_pt emit, void *ctx)
{
    size_t at;
    agent_rc_t rc = AGENT_OK;
    agent_buf_t json;
    agent_event_t ev;
    agent_fold_open_t o;

    if (f->started.len == 0) {
        return AGENT_OK; /* what is to come is the whole run */
    }

    ev.id = AGENT_STR("");

    if (!inplace) {
        ev.type = AGENT_EV_RUN_STARTED;
        ev.body = agent_buf_str(&f->started);
        rc = emit(ctx, &ev);
    }

    if (rc == AGENT_OK && (input.len != 0 || f->output.nmsgs != 0)) {
        agent_buf_init(&json, f->open.alloc);
        agent_output_snapshot(&f->output, &json, input);

        ev.type = AGENT_EV_MESSAGES_SNAPSHOT;
        ev.body = agent_buf_str(&json);
        rc = agent_buf_ok(&json) ? emit(ctx, &ev) : AGENT_NOMEM;

        agent_buf_free(&json);
    }

    if (f->output.outcome != AGENT_RUN_RUNNING) {
        return rc;
    }

    for (at = 0; rc == AGENT_OK && at < f->open.len;
         at += sizeof(o) + o.id_len + o.json_len) {
        memcpy(&o, f->open.data + at, sizeof(o));

        ev.type = (agent_event_type_t) o.type;
        ev.id.data = f->open.data + at + sizeof(o);
        ev.id.len = o.id_len;
        ev.body.data = ev.id.data + o.id_len;
        ev.body.len = o.json_len;

        rc = emit(ctx, &ev);
    }

    return rc;
}

void
agent_fold_answer(const agent_fold_t *f, agent_buf_t *b)
{
    agent_output_answer(&f->output, b);
}

int
agent_fold_trimmed(const agent_fold_t *f)
{
    return f->output.trimmed;
}
