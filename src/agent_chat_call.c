#include "agent_chat_call.h"
#include "agent_json.h"

#include <string.h>

#define AGENT_CHAT_MAX_CALLS 128
#define AGENT_CHAT_MAX_ARGS  ((size_t) 4 << 20)

/* Slots of calls that came without an index. */
#define AGENT_CHAT_NO_INDEX INT64_MIN
#define AGENT_CHAT_LEGACY   (INT64_MIN + 1) /* delta.function_call */

struct agent_chat_call_s {
    int64_t index;
    unsigned number; /* of a started one, 0 for the first */
    unsigned started : 1;
    unsigned minted : 1; /* the id is ours */
    agent_buf_t id;      /* empty: none has come */
    agent_buf_t name;
    agent_buf_t args; /* held back until the start */
    size_t nargs;     /* bytes of arguments so far */
};

static agent_rc_t
agent_chat_emit_args(agent_chat_calls_t *c, const agent_chat_call_t *call,
                     agent_str_t args)
{
    agent_delta_t d;

    if (args.len == 0) {
        return AGENT_OK;
    }

    agent_buf_reset(&c->text);
    agent_json_escape(&c->text, args);

    if (!agent_buf_ok(&c->text)) {
        return AGENT_NOMEM;
    }

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = AGENT_DELTA_TOOL_ARGS;
    d.call = call->number;
    d.text = agent_buf_str(&c->text);

    return c->emit(c->ctx, &d);
}

/* Ids identify a call for the client, but not all servers make them unique. */
static agent_rc_t
agent_chat_mint(agent_chat_calls_t *c, agent_chat_call_t *call)
{
    unsigned i;
    const agent_chat_call_t *other;

    if (call->id.len != 0) {
        for (i = 0; i < c->ncalls; i++) {
            other = &c->calls[i];

            if (other->started && agent_str_eq(agent_buf_str(&other->id),
                                               agent_buf_str(&call->id))) {
                break;
            }
        }

        if (i == c->ncalls) {
            return AGENT_OK;
        }
    }

    call->minted = 1;

    agent_buf_reset(&call->id);
    agent_buf_add_lit(&call->id, "call_");
    agent_buf_add_str(&call->id, agent_buf_str(&c->seed));
    agent_buf_add_char(&call->id, '_');
    agent_buf_add_uint(&call->id, call->number);

    return agent_buf_ok(&call->id) ? AGENT_OK : AGENT_NOMEM;
}

static agent_rc_t
agent_chat_start(agent_chat_calls_t *c, agent_chat_call_t *call)
{
    agent_delta_t d;
    agent_rc_t rc;

    call->number = c->nstarted;

    rc = agent_chat_mint(c, call);
    if (rc != AGENT_OK) {
        return rc;
    }

    call->started = 1;
    c->nstarted++;

    memset(&d, 0, sizeof(agent_delta_t));
    d.type = AGENT_DELTA_TOOL_START;
    d.call = call->number;
    d.id = agent_buf_str(&call->id);
    d.name = agent_buf_str(&call->name);

    rc = c->emit(c->ctx, &d);

    if (rc == AGENT_OK) {
        rc = agent_chat_emit_args(c, call, agent_buf_str(&call->args));
        agent_buf_free(&call->args);
    }

    return rc;
}

agent_rc_t
agent_chat_calls_start(agent_chat_calls_t *c)
{
    unsigned i;
    agent_rc_t rc;

    for (i = 0; c->nstarted != c->ncalls && i < c->ncalls; i++) {
        if (!c->calls[i].started && c->calls[i].name.len != 0) {
            rc = agent_chat_start(c, &c->calls[i]);
            if (rc != AGENT_OK) {
                return rc;
            }
        }
    }

    return AGENT_OK;
}

static agent_rc_t
agent_chat_new_call(agent_chat_calls_t *c, int64_t index,
                    agent_chat_call_t **call)
{
    agent_rc_t rc;
    unsigned n;
    agent_chat_call_t *p;

    rc = agent_chat_calls_start(c);
    if (rc != AGENT_OK) {
        return rc;
    }

    if (c->ncalls == AGENT_CHAT_MAX_CALLS) {
        c->over = "more than 128 tool calls";
        return AGENT_TOO_LARGE;
    }

    if (c->ncalls == c->nalloc) {
        n = c->nalloc != 0 ? c->nalloc * 2 : 4;

        p = c->alloc->resize(c->alloc->ctx, c->calls,
                             n * sizeof(agent_chat_call_t));
        if (p == NULL) {
            return AGENT_NOMEM;
        }

        c->calls = p;
        c->nalloc = n;
    }

    p = &c->calls[c->ncalls++];

    memset(p, 0, sizeof(agent_chat_call_t));
    p->index = index;
    agent_buf_init(&p->id, c->alloc);
    agent_buf_init(&p->name, c->alloc);
    agent_buf_init(&p->args, c->alloc);

    *call = p;

    return AGENT_OK;
}

static agent_str_t
agent_chat_server_id(const agent_chat_call_t *call)
{
    return call->minted ? AGENT_STR("") : agent_buf_str(&call->id);
}

/* 1 when a fragment of the same index belongs to another call: there are
 * servers that give every call the index 0. */
static int
agent_chat_is_other(const agent_chat_call_t *call, agent_str_t id,
                    agent_str_t name)
{
    agent_str_t known = agent_chat_server_id(call);

    if (name.len == 0) {
        return 0;
    }

    if (id.len != 0 && known.len != 0) {
        return !agent_str_eq(id, known);
    }

    return (call->started || call->nargs != 0) && call->name.len != 0 &&
           !agent_str_eq(name, agent_buf_str(&call->name));
}

/* The call that a fragment continues, NULL when it begins one. */
static agent_chat_call_t *
agent_chat_find(const agent_chat_calls_t *c, int64_t index, agent_str_t id,
                agent_str_t name)
{
    unsigned i;
    agent_chat_call_t *call, *last;

    last = c->ncalls != 0 ? &c->calls[c->ncalls - 1] : NULL;

    if (index == AGENT_CHAT_NO_INDEX && id.len == 0) {
        return name.len == 0 ? last : NULL;
    }

    for (i = c->ncalls; i-- > 0; /* void */) {
        call = &c->calls[i];

        if (index == AGENT_CHAT_NO_INDEX) {
            if (agent_str_eq(agent_chat_server_id(call), id)) {
                return call;
            }

        } else if (call->index == index) {
            return agent_chat_is_other(call, id, name) ? NULL : call;
        }
    }

    /* an id that comes after the beginning of its call */

    if (index == AGENT_CHAT_NO_INDEX && name.len == 0 && last != NULL &&
        agent_chat_server_id(last).len == 0) {
        return last;
    }

    return NULL;
}

static agent_rc_t
agent_chat_dump_digits(agent_buf_t *b, const json_t *value, size_t digits)
{
    size_t n, flags = JSON_COMPACT | JSON_REAL_PRECISION(digits);

    agent_buf_reset(b);

    n = json_dumpb(value, NULL, 0, flags);

    if (n == 0 || agent_buf_reserve(b, n) != AGENT_OK ||
        json_dumpb(value, b->data, n, flags) != n) {
        return AGENT_NOMEM;
    }

    b->len = n;

    return AGENT_OK;
}

/*
 * Arguments that are an object where a string should be.  15 digits print
 * numbers as they were written; where these are not enough, 17 are exact.
 */
static agent_rc_t
agent_chat_dump(agent_buf_t *b, const json_t *value)
{
    json_t *copy;
    agent_rc_t rc;
    int same;

    rc = agent_chat_dump_digits(b, value, 15);
    if (rc != AGENT_OK) {
        return rc;
    }

    copy = json_loadb(b->data, b->len, JSON_ALLOW_NUL, NULL);
    same = json_equal(copy, value);
    json_decref(copy);

    return same ? AGENT_OK : agent_chat_dump_digits(b, value, 17);
}

static agent_rc_t
agent_chat_add_args(agent_chat_calls_t *c, agent_chat_call_t *call,
                    agent_str_t args)
{
    agent_rc_t rc;

    if (args.len == 0) {
        return AGENT_OK;
    }

    if (args.len > AGENT_CHAT_MAX_ARGS - call->nargs) {
        c->over = "more than 4 MB of tool call arguments";
        return AGENT_TOO_LARGE;
    }

    call->nargs += args.len;

    if (call->name.len == 0) {
        agent_buf_add_str(&call->args, args);
        return agent_buf_ok(&call->args) ? AGENT_OK : AGENT_NOMEM;
    }

    rc = call->started ? AGENT_OK : agent_chat_start(c, call);

    return rc == AGENT_OK ? agent_chat_emit_args(c, call, args) : rc;
}

/* A fragment: "function" has the name and arguments. */
static agent_rc_t
agent_chat_call(agent_chat_calls_t *c, int64_t index, agent_str_t id,
                const json_t *function)
{
    agent_rc_t rc;
    agent_buf_t dump;
    agent_str_t name = AGENT_STR(""), args = AGENT_STR("");
    const json_t *arguments = json_object_get(function, "arguments");
    agent_chat_call_t *call;

    (void) agent_json_str(function, "name", &name);
    (void) agent_json_str(function, "arguments", &args);

    call = agent_chat_find(c, index, id, name);

    if (call == NULL) {
        rc = agent_chat_new_call(c, index, &call);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    if (!call->started) {
        if (call->id.len == 0) {
            agent_buf_add_str(&call->id, id);
        }

        /* a name comes in pieces, or whole in every fragment */

        if (!agent_str_eq(name, agent_buf_str(&call->name))) {
            agent_buf_add_str(&call->name, name);
        }

        if (!agent_buf_ok(&call->id) || !agent_buf_ok(&call->name)) {
            return AGENT_NOMEM;
        }
    }

    if (!json_is_object(arguments) && !json_is_array(arguments)) {
        return agent_chat_add_args(c, call, args);
    }

    agent_buf_init(&dump, c->alloc);

    rc = agent_chat_dump(&dump, arguments);

    if (rc == AGENT_OK) {
        rc = agent_chat_add_args(c, call, agent_buf_str(&dump));
    }

    agent_buf_free(&dump);

    return rc;
}

int
agent_chat_integer(const json_t *value, int64_t *n)
{
    double d;

    if (json_is_integer(value)) {
        *n = json_integer_value(value);
        return 1;
    }

    d = json_real_value(value);

    if (!json_is_real(value) || d < -9007199254740992.0 ||
        d > 9007199254740992.0 || d != (double) (int64_t) d) {
        return 0;
    }

    *n = (int64_t) d;

    return 1;
}

agent_rc_t
agent_chat_calls_add(agent_chat_calls_t *c, const json_t *delta)
{
    size_t i;
    int64_t index;
    agent_str_t id;
    agent_rc_t rc;
    const json_t *calls = json_object_get(delta, "tool_calls");
    const json_t *function = json_object_get(delta, "function_call"), *call;

    if (json_array_size(calls) == 0) {
        return json_is_object(function)
                   ? agent_chat_call(c, AGENT_CHAT_LEGACY, AGENT_STR(""),
                                     function)
                   : AGENT_OK;
    }

    for (i = 0; i < json_array_size(calls); i++) {
        call = json_array_get(calls, i);

        if (!json_is_object(call)) {
            continue;
        }

        if (!agent_chat_integer(json_object_get(call, "index"), &index) ||
            index <= AGENT_CHAT_LEGACY) {
            index = AGENT_CHAT_NO_INDEX;
        }

        if (!agent_json_str(call, "id", &id)) {
            id = AGENT_STR("");
        }

        rc = agent_chat_call(c, index, id, json_object_get(call, "function"));
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return AGENT_OK;
}

agent_rc_t
agent_chat_calls_init(agent_chat_calls_t *c, agent_delta_pt emit, void *ctx,
                      agent_str_t seed, const agent_alloc_t *alloc)
{
    memset(c, 0, sizeof(agent_chat_calls_t));

    c->emit = emit;
    c->ctx = ctx;
    c->alloc = alloc;

    agent_buf_init(&c->text, alloc);
    agent_buf_init(&c->seed, alloc);
    agent_buf_add_str(&c->seed, seed);

    return agent_buf_ok(&c->seed) ? AGENT_OK : AGENT_NOMEM;
}

void
agent_chat_calls_free(agent_chat_calls_t *c)
{
    unsigned i;

    for (i = 0; i < c->ncalls; i++) {
        agent_buf_free(&c->calls[i].id);
        agent_buf_free(&c->calls[i].name);
        agent_buf_free(&c->calls[i].args);
    }

    agent_free(c->alloc, c->calls);
    agent_buf_free(&c->text);
    agent_buf_free(&c->seed);
}
