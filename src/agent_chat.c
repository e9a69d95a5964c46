#include "agent_chat.h"
#include "agent_chat_call.h"
#include "agent_chat_scan.h"
#include "agent_json.h"

#include <string.h>
#include <strings.h>

typedef struct {
    agent_delta_pt emit;
    void *ctx;
    const agent_alloc_t *alloc;
    agent_buf_t text; /* scratch */
    agent_chat_calls_t calls;
    agent_chat_form_t form; /* of the last text chunk */

    int64_t choice;        /* the one that is followed */
    agent_usage_t usage;   /* the last one given */
    agent_fault_t fault;   /* of a finish reason that is an error */
    agent_finish_t finish; /* the last reason given */
    unsigned has_choice : 1;
    unsigned has_finish : 1;
    unsigned has_usage : 1; /* a "usage", not only one of x_groq */
    unsigned content : 1;   /* text of any kind has been emitted */
    unsigned done : 1;      /* the last delta has been emitted */
} agent_chat_t;

static const struct {
    const char *reason;
    agent_finish_t finish;
    agent_code_t code; /* of those that are errors */
} agent_chat_reasons[] = {
    {"stop", AGENT_FINISH_STOP, AGENT_CODE_OK},
    {"eos", AGENT_FINISH_STOP, AGENT_CODE_OK},
    {"end", AGENT_FINISH_STOP, AGENT_CODE_OK},
    {"end_turn", AGENT_FINISH_STOP, AGENT_CODE_OK},
    {"stop_sequence", AGENT_FINISH_STOP, AGENT_CODE_OK},
    {"length", AGENT_FINISH_LENGTH, AGENT_CODE_OK},
    {"max_tokens", AGENT_FINISH_LENGTH, AGENT_CODE_OK},
    {"model_length", AGENT_FINISH_LENGTH, AGENT_CODE_OK},
    {"tool_calls", AGENT_FINISH_TOOL_CALLS, AGENT_CODE_OK},
    {"tool_call", AGENT_FINISH_TOOL_CALLS, AGENT_CODE_OK},
    {"tool_use", AGENT_FINISH_TOOL_CALLS, AGENT_CODE_OK},
    {"function_call", AGENT_FINISH_TOOL_CALLS, AGENT_CODE_OK},
    {"content_filter", AGENT_FINISH_CONTENT_FILTER, AGENT_CODE_OK},
    {"safety", AGENT_FINISH_CONTENT_FILTER, AGENT_CODE_OK},
    {"error", AGENT_FINISH_UNKNOWN, AGENT_CODE_UPSTREAM_ERROR},
    {"abort", AGENT_FINISH_UNKNOWN, AGENT_CODE_UPSTREAM_ERROR},
    {"insufficient_system_resource", AGENT_FINISH_UNKNOWN,
     AGENT_CODE_UPSTREAM_OVERLOADED},
};

/* --- deltas --------------------------------------------------------------- */

static agent_rc_t
agent_chat_fail(agent_chat_t *c, const agent_fault_t *fault)
{
    agent_delta_t d;
    agent_rc_t rc;

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = AGENT_DELTA_ERROR;
    d.fault = fault;
    d.usage = agent_usage_given(&c->usage) ? &c->usage : NULL;

    c->done = 1;

    rc = c->emit(c->ctx, &d);

    return rc == AGENT_OK ? AGENT_DONE : rc;
}

static agent_rc_t
agent_chat_broken(agent_chat_t *c, const char *what)
{
    agent_fault_t f;

    agent_fault_set(&f, AGENT_CODE_UPSTREAM_ERROR, "the model server sent %s",
                    what);

    return agent_chat_fail(c, &f);
}

/* --- text ----------------------------------------------------------------- */

/* "text" is escaped. */
static agent_rc_t
agent_chat_say_escaped(agent_chat_t *c, agent_delta_type_t type,
                       agent_str_t text)
{
    agent_delta_t d;
    agent_rc_t rc;

    if (text.len == 0) {
        return AGENT_OK;
    }

    rc = agent_chat_calls_start(&c->calls);
    if (rc != AGENT_OK) {
        return rc;
    }

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = type;
    d.text = text;

    c->content = 1;

    return c->emit(c->ctx, &d);
}

static agent_rc_t
agent_chat_say(agent_chat_t *c, agent_delta_type_t type, const json_t *value)
{
    agent_str_t s = {json_string_value(value), json_string_length(value)};

    if (s.len == 0) {
        return AGENT_OK;
    }

    agent_buf_reset(&c->text);
    agent_json_escape(&c->text, s);

    if (!agent_buf_ok(&c->text)) {
        return AGENT_NOMEM;
    }

    return agent_chat_say_escaped(c, type, agent_buf_str(&c->text));
}

/*
 * Content: a string, or parts of text and thinking (whose thinking again is a
 * string or parts of text).
 */
static agent_rc_t
agent_chat_content(agent_chat_t *c, agent_delta_type_t type,
                   const json_t *content, unsigned depth)
{
    size_t i;
    agent_rc_t rc;
    const json_t *thinking, *text;

    if (json_is_string(content)) {
        return agent_chat_say(c, type, content);
    }

    if (json_is_object(content)) {
        thinking = json_object_get(content, "thinking");
        text = json_object_get(content, "text");

        return thinking == NULL ? agent_chat_say(c, type, text)
               : depth == 0
                   ? agent_chat_content(c, AGENT_DELTA_REASONING, thinking, 1)
                   : AGENT_OK;
    }

    for (i = 0; i < json_array_size(content); i++) {
        if (json_is_array(json_array_get(content, i))) {
            continue;
        }

        rc = agent_chat_content(c, type, json_array_get(content, i), depth);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return AGENT_OK;
}

/* One text has several names; servers in change send it under two at once. */
static const json_t *
agent_chat_reasoning(const json_t *delta)
{
    static const char *const names[] = {"reasoning_content", "reasoning",
                                        "reasoning_text"};
    size_t i;
    const json_t *value;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        value = json_object_get(delta, names[i]);

        if (json_string_length(value) != 0) {
            return value;
        }
    }

    return NULL;
}

static agent_rc_t
agent_chat_delta(agent_chat_t *c, const json_t *delta)
{
    agent_rc_t rc;

    rc = agent_chat_say(c, AGENT_DELTA_REASONING, agent_chat_reasoning(delta));

    if (rc == AGENT_OK) {
        rc = agent_chat_content(c, AGENT_DELTA_TEXT,
                                json_object_get(delta, "content"), 0);
    }

    if (rc == AGENT_OK) {
        rc = agent_chat_say(c, AGENT_DELTA_REFUSAL,
                            json_object_get(delta, "refusal"));
    }

    if (rc == AGENT_OK) {
        rc = agent_chat_calls_add(&c->calls, delta);

        if (rc == AGENT_TOO_LARGE && c->calls.over != NULL) {
            return agent_chat_broken(c, c->calls.over);
        }
    }

    return rc;
}

/* --- chunks --------------------------------------------------------------- */

static void
agent_chat_reason(agent_chat_t *c, const json_t *choice)
{
    size_t i;
    agent_str_t s;
    const char *reason;

    if (!agent_json_str(choice, "finish_reason", &s) || s.len == 0) {
        return;
    }

    c->has_finish = 1;
    c->finish = AGENT_FINISH_UNKNOWN;
    c->fault.code = AGENT_CODE_OK;

    for (i = 0; i < sizeof(agent_chat_reasons) / sizeof(agent_chat_reasons[0]);
         i++) {
        reason = agent_chat_reasons[i].reason;

        if (s.len != strlen(reason) ||
            strncasecmp(s.data, reason, s.len) != 0) {
            continue;
        }

        c->finish = agent_chat_reasons[i].finish;

        if (agent_chat_reasons[i].code != AGENT_CODE_OK) {
            agent_fault_set(&c->fault, agent_chat_reasons[i].code,
                            "the model server ended the answer with \"%s\"",
                            reason);
        }
    }

    if (json_is_object(json_object_get(choice, "error"))) {
        agent_codec_fault(&c->fault, 0, choice);
    }
}

/* "whole": the choice of an answer that is no stream. */
static agent_rc_t
agent_chat_choice(agent_chat_t *c, const json_t *choice, int whole)
{
    agent_rc_t rc;
    const json_t *delta = json_object_get(choice, "delta");

    if (!json_is_object(delta) && whole) {
        delta = json_object_get(choice, "message");
    }

    /* "text" is of legacy completions, or repeats the delta */

    rc = json_is_object(delta)
             ? agent_chat_delta(c, delta)
             : agent_chat_say(c, AGENT_DELTA_TEXT,
                              json_object_get(choice, "text"));

    if (rc == AGENT_OK) {
        agent_chat_reason(c, choice);
    }

    return rc;
}

static int64_t
agent_chat_count(const json_t *object, const char *name)
{
    int64_t n;

    return agent_chat_integer(json_object_get(object, name), &n) && n >= 0 ? n
                                                                           : -1;
}

static void
agent_chat_usage(agent_chat_t *c, const json_t *root)
{
    agent_usage_t u;
    const json_t *usage = json_object_get(root, "usage"), *input, *output;
    int own = json_is_object(usage);

    if (!own) {
        usage = json_object_get(json_object_get(root, "x_groq"), "usage");

        if (c->has_usage || !json_is_object(usage)) {
            return;
        }
    }

    input = json_object_get(usage, "prompt_tokens_details");
    output = json_object_get(usage, "completion_tokens_details");

    u.input = agent_chat_count(usage, "prompt_tokens");
    u.output = agent_chat_count(usage, "completion_tokens");
    u.total = agent_chat_count(usage, "total_tokens");
    u.reasoning = agent_chat_count(output, "reasoning_tokens");
    u.cached = agent_chat_count(input, "cached_tokens");
    u.cache_write = agent_chat_count(input, "cache_write_tokens");

    if (u.cached < 0) {
        u.cached = agent_chat_count(usage, "prompt_cache_hit_tokens");
    }

    if (agent_usage_given(&u)) {
        c->usage = u;
        c->has_usage = own != 0;
    }
}

static int64_t
agent_chat_index(const json_t *choice)
{
    int64_t n;

    return agent_chat_integer(json_object_get(choice, "index"), &n) ? n : 0;
}

/* The lowest index is followed; once it has spoken it cannot be taken back. */
static int
agent_chat_follows(agent_chat_t *c, int64_t index)
{
    if (!c->has_choice ||
        (index < c->choice && !c->content && c->calls.ncalls == 0)) {
        c->has_choice = 1;
        c->choice = index;
    }

    return c->choice == index;
}

/* {"error":...}, or the flat {"object":"error",...} of older servers. */
static int
agent_chat_is_error(const json_t *root)
{
    agent_str_t object;
    const json_t *error = json_object_get(root, "error");

    if (agent_json_str(root, "object", &object) &&
        agent_str_eq(object, AGENT_STR("error"))) {
        return 1;
    }

    return json_object_size(error) != 0 || json_array_size(error) != 0 ||
           json_string_length(error) != 0 || json_is_true(error) ||
           json_number_value(error) != 0;
}

/* One chunk, or a "whole" answer. */
static agent_rc_t
agent_chat_chunk(agent_chat_t *c, const json_t *root, int whole)
{
    size_t i;
    agent_rc_t rc;
    agent_fault_t f;
    const json_t *choice, *choices = json_object_get(root, "choices");

    agent_chat_usage(c, root);

    if (agent_chat_is_error(root)) {
        agent_codec_fault(&f, 0, root);
        return agent_chat_fail(c, &f);
    }

    for (i = 0; i < json_array_size(choices); i++) {
        choice = json_array_get(choices, i);

        if (json_is_object(choice)) {
            (void) agent_chat_follows(c, agent_chat_index(choice));
        }
    }

    for (i = 0; i < json_array_size(choices); i++) {
        choice = json_array_get(choices, i);

        if (!json_is_object(choice) ||
            !agent_chat_follows(c, agent_chat_index(choice))) {
            continue;
        }

        rc = agent_chat_choice(c, choice, whole);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return AGENT_OK;
}

/* --- the end -------------------------------------------------------------- */

static agent_rc_t
agent_chat_finish(agent_chat_t *c)
{
    agent_delta_t d;
    agent_rc_t rc;

    if (c->fault.code != AGENT_CODE_OK) {
        return agent_chat_fail(c, &c->fault);
    }

    rc = agent_chat_calls_start(&c->calls);
    if (rc != AGENT_OK) {
        return rc;
    }

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = AGENT_DELTA_FINISH;
    d.finish = c->has_finish ? c->finish : AGENT_FINISH_STOP;
    d.usage = agent_usage_given(&c->usage) ? &c->usage : NULL;

    /* servers disagree about the reason when there are calls: these decide */

    if (d.finish == AGENT_FINISH_STOP || d.finish == AGENT_FINISH_TOOL_CALLS) {
        d.finish = c->calls.nstarted != 0 ? AGENT_FINISH_TOOL_CALLS
                                          : AGENT_FINISH_STOP;
    }

    c->done = 1;

    rc = c->emit(c->ctx, &d);

    return rc == AGENT_OK ? AGENT_DONE : rc;
}

agent_rc_t
agent_chat_end(void *dec, int clean)
{
    agent_chat_t *c = dec;
    agent_fault_t f;

    (void) clean; /* a terminal marker counts more than the framing */

    if (c->done) {
        return AGENT_DONE;
    }

    if (c->has_finish) {
        return agent_chat_finish(c);
    }

    agent_fault_set(&f, AGENT_CODE_UPSTREAM_TRUNCATED,
                    c->content || c->calls.ncalls != 0
                        ? "the model server's answer ended early"
                        : "the model server's answer ended before it began");

    return agent_chat_fail(c, &f);
}

/* --- events --------------------------------------------------------------- */

/* An event or field named error: JSON of some shape, or text. */
static agent_rc_t
agent_chat_error(agent_chat_t *c, agent_str_t data)
{
    int nomem;
    json_t *root;
    agent_rc_t rc;
    agent_fault_t f;

    root = agent_json_load_lenient(data, c->alloc, &nomem);

    if (root == NULL && nomem) {
        return AGENT_NOMEM;
    }

    if (root == NULL) {
        data.len = agent_utf8_valid(data);
        root = json_stringn(data.len != 0 ? data.data : "", data.len);
    }

    agent_chat_usage(c, root);
    agent_codec_fault(&f, 0, root);
    rc = agent_chat_fail(c, &f);

    json_decref(root);

    return rc;
}

/* Text that is neither an object nor an array. */
static agent_rc_t
agent_chat_stray(agent_chat_t *c, agent_str_t data)
{
    json_t *value;

    value = json_loadb(data.data, data.len, JSON_DECODE_ANY, NULL);

    if (value != NULL) {
        json_decref(value); /* a scalar says nothing */
        return AGENT_OK;
    }

    return agent_chat_broken(c, "bad JSON");
}

agent_rc_t
agent_chat_event_tree(void *dec, const agent_sse_event_t *ev)
{
    int nomem;
    json_t *root;
    agent_rc_t rc;
    agent_str_t data = ev->data;
    agent_chat_t *c = dec;

    if (c->done) {
        return AGENT_DONE;
    }

    if (ev->error || agent_str_eq(ev->type, AGENT_STR("error"))) {
        return agent_chat_error(c, data);
    }

    while (data.len != 0 && (data.data[0] == ' ' || data.data[0] == '\n')) {
        data.data++;
        data.len--;
    }

    if (data.len == 0) {
        return AGENT_OK;
    }

    if (data.len >= 6 && memcmp(data.data, "[DONE]", 6) == 0) {
        return agent_chat_finish(c);
    }

    root = agent_json_load_lenient(data, c->alloc, &nomem);

    if (root == NULL) {
        return nomem ? AGENT_NOMEM : agent_chat_stray(c, data);
    }

    /* an array is an error of Google's */

    rc = agent_chat_chunk(
        c, json_is_array(root) ? json_array_get(root, 0) : root, 0);

    json_decref(root);

    return rc;
}

agent_rc_t
agent_chat_event(void *dec, const agent_sse_event_t *ev)
{
    agent_chat_t *c = dec;
    agent_chat_scan_t scan;

    if (c->done || ev->error || ev->type.len != 0) {
        return agent_chat_event_tree(c, ev);
    }

    if (agent_chat_form_match(&c->form, ev->data, &scan) != AGENT_OK) {
        if (agent_chat_scan(ev->data, &scan) != AGENT_OK) {
            return agent_chat_event_tree(c, ev);
        }

        agent_chat_form_learn(&c->form, ev->data, &scan);
    }

    if (!agent_chat_follows(c, 0)) {
        return AGENT_OK;
    }

    return scan.text.len != 0
               ? agent_chat_say_escaped(c, AGENT_DELTA_TEXT, scan.text)
               : agent_chat_say_escaped(c, AGENT_DELTA_REASONING,
                                        scan.reasoning);
}

/* 1 when it is a chat completion, or an error that stands for one. */
static int
agent_chat_is_answer(const json_t *root)
{
    size_t i;
    const json_t *choices = json_object_get(root, "choices"), *choice;

    if (agent_chat_is_error(root)) {
        return 1;
    }

    for (i = 0; i < json_array_size(choices); i++) {
        choice = json_array_get(choices, i);

        if (json_is_object(json_object_get(choice, "message")) ||
            json_is_object(json_object_get(choice, "delta")) ||
            json_is_string(json_object_get(choice, "text"))) {
            return 1;
        }
    }

    return 0;
}

agent_rc_t
agent_chat_json(void *dec, json_t *root)
{
    agent_chat_t *c = dec;
    agent_rc_t rc;

    if (c->done) {
        return AGENT_DONE;
    }

    if (json_is_array(root)) {
        root = json_array_get(root, 0);
    }

    if (!agent_chat_is_answer(root)) {
        return AGENT_INVALID;
    }

    rc = agent_chat_chunk(c, root, 1);

    return rc == AGENT_OK ? agent_chat_finish(c) : rc;
}

/* --- life ----------------------------------------------------------------- */

void *
agent_chat_open(agent_delta_pt emit, void *ctx, agent_str_t seed,
                const agent_alloc_t *alloc)
{
    agent_chat_t *c;

    c = agent_calloc(alloc, sizeof(agent_chat_t));
    if (c == NULL) {
        return NULL;
    }

    c->emit = emit;
    c->ctx = ctx;
    c->alloc = alloc;

    agent_usage_init(&c->usage);
    agent_buf_init(&c->text, alloc);

    if (agent_chat_calls_init(&c->calls, emit, ctx, seed, alloc) != AGENT_OK) {
        agent_chat_close(c);
        return NULL;
    }

    return c;
}

void
agent_chat_close(void *dec)
{
    agent_chat_t *c = dec;

    agent_chat_calls_free(&c->calls);
    agent_buf_free(&c->text);
    agent_free(c->alloc, c);
}
