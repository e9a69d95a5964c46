#include "agent_message.h"
#include "agent_json.h"

#include <string.h>

static const agent_member_t agent_body_members[] = {
    {"threadId", AGENT_MEMBER_ID, 0, "thread_id"},
    {"runId", AGENT_MEMBER_ID, 0, "run_id"},
    {"parentRunId", AGENT_MEMBER_ID, 0, "parent_run_id"},
    {"forwardedProps", AGENT_MEMBER_ANY, 0, "forwarded_props"},
    AGENT_MAY("protocolVersion", STRING),
    AGENT_MUST("messages", ARRAY),
    AGENT_MAY("tools", ARRAY),
    AGENT_MAY("context", ARRAY),
    AGENT_MAY("state", ANY),
    AGENT_MAY("resume", ARRAY),
    AGENT_END};

static const agent_member_t agent_offer_members[] = {
    AGENT_MUST("name", NAME), AGENT_MAY("description", STRING),
    AGENT_MAY("parameters", ANY), AGENT_MAY("metadata", OBJECT), AGENT_END};

static const agent_member_t agent_context_members[] = {
    AGENT_MUST("description", STRING), AGENT_MUST("value", STRING), AGENT_END};

/* Members that are used as they came. */
enum {
    AGENT_RAW_MESSAGES = 0,
    AGENT_RAW_TOOLS,
    AGENT_RAW_STATE,
    AGENT_RAW_PROPS,
    AGENT_RAW_PROPS_ALIAS,
    AGENT_RAW_KEYS
};

static const agent_str_t agent_raw_keys[AGENT_RAW_KEYS] = {
    agent_str("messages"), agent_str("tools"), agent_str("state"),
    agent_str("forwardedProps"), agent_str("forwarded_props")};

agent_rc_t
agent_input_add(agent_input_t *in, agent_role_t role, json_t *json)
{
    size_t cap;
    agent_message_t *m;

    if (json == NULL) {
        return AGENT_NOMEM;
    }

    if (in->sent != NULL && json_array_append(in->sent, json) != 0) {
        json_decref(json);
        return AGENT_NOMEM;
    }

    if (in->refused & AGENT_ROLE_BIT(role)) {
        in->stripped++;
        json_decref(json);
        return AGENT_OK;
    }

    /* the array has room for a power of two */

    if ((in->nmessages & (in->nmessages - 1)) == 0) {
        cap = in->nmessages != 0 ? in->nmessages * 2 : 1;

        m = in->alloc->resize(in->alloc->ctx, in->messages,
                              cap * sizeof(agent_message_t));
        if (m == NULL) {
            json_decref(json);
            return AGENT_NOMEM;
        }

        in->messages = m;
    }

    m = &in->messages[in->nmessages++];
    m->role = role;
    m->json = json;
    m->id.data = "";
    m->id.len = 0;
    (void) agent_json_str(json, "id", &m->id);

    return AGENT_OK;
}

void
agent_input_free(agent_input_t *in)
{
    size_t i;

    for (i = 0; i < in->nmessages; i++) {
        json_decref(in->messages[i].json);
    }

    agent_free(in->alloc, in->messages);
    agent_free(in->alloc, in->tools);
    agent_free(in->alloc, in->context);
    json_decref(in->sent);
    json_decref(in->root);

    memset(in, 0, sizeof(agent_input_t));
}

static agent_rc_t
agent_input_shape(const agent_reader_t *r, json_t *json, agent_role_t role,
                  const agent_where_t *where)
{
    json_t *v = json_object_get(json, "parts");
    agent_str_t s = {"", 0};

    if (v != NULL && !json_is_null(v) && role != AGENT_ROLE_ACTIVITY) {
        (void) agent_json_str(json, "content", &s);
        v = json_object_get(json, "content");

        /* AI SDKs may send both; the parts of a message with content are
         * unknown members of an AG-UI message */

        if (v == NULL || json_is_null(v) || (json_is_string(v) && s.len == 0)) {
            return agent_reader_parts(r, json, role, where);
        }
    }

    return agent_reader_message(r, json, role, where, "content");
}

static agent_rc_t
agent_input_message(const agent_reader_t *r, json_t *json,
                    const agent_where_t *where)
{
    unsigned refused = r->in->refused, stripped = r->in->stripped;
    agent_rc_t rc;
    agent_role_t role;
    agent_str_t s = {"", 0};
    static const agent_member_t any[] = {AGENT_MUST("role", STRING), AGENT_END};

    if (!json_is_object(json) || !agent_json_str(json, "role", &s)) {
        return agent_reader_members(r, json, where, any);
    }

    role = agent_role_parse(s);

    if (role == AGENT_ROLE_UNKNOWN) {
        r->in->stripped++;
        return AGENT_OK;
    }

    if (!(refused & AGENT_ROLE_BIT(role))) {
        return agent_input_shape(r, json, role, where);
    }

    /* nothing of it enters, whatever its parts are; and it is not judged */

    r->in->refused = ~0u;
    rc = agent_input_shape(r, json, role, where);
    r->in->refused = refused;
    r->in->stripped = stripped + 1;

    if (rc == AGENT_INVALID) {
        memset(r->fault, 0, sizeof(agent_fault_t));
        return AGENT_OK;
    }

    return rc;
}

static agent_rc_t
agent_input_messages(const agent_reader_t *r, json_t *list)
{
    size_t max = r->rules->max_messages;
    agent_rc_t rc;
    agent_where_t where = {NULL, "messages", 0}, at = {&where, NULL, 0};

    if (max != 0 && json_array_size(list) > max) {
        agent_fault_set(r->fault, AGENT_CODE_TOO_LARGE,
                        "messages holds more than %zu messages", max);
        return AGENT_TOO_LARGE;
    }

    for (at.index = 0; at.index < json_array_size(list); at.index++) {
        rc = agent_input_message(r, json_array_get(list, at.index), &at);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    if (r->in->nmessages == 0) {
        return agent_reader_refuse(
            r, NULL, "messages",
            json_array_size(list) == 0
                ? "must not be empty"
                : "holds no message of an accepted role");
    }

    return AGENT_OK;
}

static int
agent_input_is_given(agent_str_t raw)
{
    return raw.len != 0 && !agent_str_eq(raw, AGENT_STR("null"));
}

/* "raw" are the bytes of the list. */
static agent_rc_t
agent_input_tools(const agent_reader_t *r, json_t *list, agent_str_t raw)
{
    json_t *json;
    size_t n = json_array_size(list);
    agent_rc_t rc;
    agent_str_t one;
    const char *cursor = NULL;
    agent_tool_t *tool;
    agent_where_t where = {NULL, "tools", 0}, at = {&where, NULL, 0};

    if (!r->rules->client_tools) {
        r->in->stripped += (unsigned) n;
        return AGENT_OK;
    }

    if (n == 0) {
        return AGENT_OK;
    }

    r->in->tools = agent_calloc(r->in->alloc, n * sizeof(agent_tool_t));
    if (r->in->tools == NULL) {
        return AGENT_NOMEM;
    }

    for (at.index = 0; at.index < n; at.index++) {
        json = json_array_get(list, at.index);

        rc = agent_reader_members(r, json, &at, agent_offer_members);
        if (rc != AGENT_OK) {
            return rc;
        }

        tool = &r->in->tools[r->in->ntools++];
        (void) agent_json_str(json, "name", &tool->name);
        (void) agent_json_str(json, "description", &tool->description);

        if (agent_json_next(raw, &cursor, &one) == AGENT_OK &&
            agent_json_find(one, AGENT_STR("parameters"), &one) == AGENT_OK &&
            agent_input_is_given(one)) {
            tool->parameters = one;
        }
    }

    return AGENT_OK;
}

static agent_rc_t
agent_input_context(const agent_reader_t *r, json_t *list)
{
    json_t *json;
    size_t n = json_array_size(list);
    agent_rc_t rc;
    agent_context_t *c;
    agent_where_t where = {NULL, "context", 0}, at = {&where, NULL, 0};

    if (n == 0) {
        return AGENT_OK;
    }

    r->in->context = agent_calloc(r->in->alloc, n * sizeof(agent_context_t));
    if (r->in->context == NULL) {
        return AGENT_NOMEM;
    }

    for (at.index = 0; at.index < n; at.index++) {
        json = json_array_get(list, at.index);

        rc = agent_reader_members(r, json, &at, agent_context_members);
        if (rc != AGENT_OK) {
            return rc;
        }

        c = &r->in->context[r->in->ncontext++];
        (void) agent_json_str(json, "description", &c->description);
        (void) agent_json_str(json, "value", &c->value);
    }

    return AGENT_OK;
}

agent_rc_t
agent_input_parse(agent_input_t *in, agent_str_t body,
                  const agent_input_rules_t *rules, const agent_alloc_t *alloc,
                  agent_fault_t *fault)
{
    agent_rc_t rc;
    agent_reader_t r = {in, rules, fault};
    agent_json_limits_t limits = {rules->max_depth, rules->max_values};
    agent_str_t raw[AGENT_RAW_KEYS];

    memset(in, 0, sizeof(agent_input_t));
    memset(fault, 0, sizeof(agent_fault_t));
    in->alloc = alloc;
    in->refused = ~rules->roles;

    in->sent = json_array();
    if (in->sent == NULL) {
        return AGENT_NOMEM;
    }

    in->root = agent_json_load(body, &limits, fault);

    if (in->root == NULL) {
        return fault->code == AGENT_CODE_INTERNAL    ? AGENT_NOMEM
               : fault->code == AGENT_CODE_TOO_LARGE ? AGENT_TOO_LARGE
                                                     : AGENT_INVALID;
    }

    agent_json_members(body, agent_raw_keys, raw, AGENT_RAW_KEYS);

    rc = agent_reader_members(&r, in->root, NULL, agent_body_members);

    if (rc == AGENT_OK) {
        rc = agent_input_messages(&r, json_object_get(in->root, "messages"));
    }

    if (rc == AGENT_OK) {
        rc = agent_input_tools(&r, json_object_get(in->root, "tools"),
                               raw[AGENT_RAW_TOOLS]);
    }

    if (rc == AGENT_OK) {
        rc = agent_input_context(&r, json_object_get(in->root, "context"));
    }

    if (rc != AGENT_OK) {
        return rc;
    }

    (void) agent_json_str(in->root, "threadId", &in->thread_id);
    (void) agent_json_str(in->root, "runId", &in->run_id);
    (void) agent_json_str(in->root, "parentRunId", &in->parent_run_id);

    in->legacy = json_object_get(in->root, "protocolVersion") == NULL &&
                 json_object_get(in->root, "tools") != NULL &&
                 json_object_get(in->root, "context") != NULL;

    in->list = raw[AGENT_RAW_MESSAGES];

    if (agent_input_is_given(raw[AGENT_RAW_STATE])) {
        in->state = raw[AGENT_RAW_STATE];
    }

    if (agent_input_is_given(raw[AGENT_RAW_PROPS])) {
        in->forwarded_props = raw[AGENT_RAW_PROPS];
    } else if (agent_input_is_given(raw[AGENT_RAW_PROPS_ALIAS])) {
        in->forwarded_props = raw[AGENT_RAW_PROPS_ALIAS];
    }

    if (in->forwarded_props.len != 0 && in->forwarded_props.data[0] != '{') {
        in->forwarded_props.len = 0;
        in->stripped++;
    }

    return AGENT_OK;
}

/* --- pairs of calls and results ------------------------------------------- */

#define AGENT_PAIR_NONE ((size_t) -1)

typedef struct {
    size_t first; /* of an assistant message: its first call in calls[] */
    size_t end;
    size_t result; /* its first result, AGENT_PAIR_NONE: none */
    size_t last;   /* its last one */
    size_t next;   /* of a result: the next one */
    size_t owner;  /* whose result this is */
} agent_pair_t;

typedef struct {
    json_t *id;
    size_t owner;
    size_t hidden; /* the open call of the same id before it */
    int answered;
} agent_pair_call_t;

/*
 * Ids are unique within a turn at best, so results are looked for from one
 * user message to the next, and the newest call of an id is answered first.
 */
typedef struct {
    agent_input_t *in;
    agent_pair_t *pairs; /* for each message */
    agent_pair_call_t *calls;
    size_t ncalls;
    json_t *open; /* id -> index of the newest open call */
    json_t *role; /* of stand-ins, NULL: there were none */
    json_t *content;
} agent_pairing_t;

static agent_rc_t
agent_pair_calls(agent_pairing_t *p, size_t i)
{
    json_t *list, *id, *old;
    size_t k;
    agent_pair_call_t *c;

    list = json_object_get(p->in->messages[i].json, "toolCalls");

    for (k = 0; k < json_array_size(list); k++) {
        id = json_object_get(json_array_get(list, k), "id");
        if (!json_is_string(id)) {
            continue;
        }

        old = json_object_get(p->open, json_string_value(id));

        c = &p->calls[p->ncalls];
        c->id = id;
        c->owner = i;
        c->answered = 0;
        c->hidden =
            old != NULL ? (size_t) json_integer_value(old) : AGENT_PAIR_NONE;

        if (json_object_set_new_nocheck(p->open, json_string_value(id),
                                        json_integer((json_int_t) p->ncalls)) !=
            0) {
            return AGENT_NOMEM;
        }

        p->ncalls++;
    }

    return AGENT_OK;
}

static agent_rc_t
agent_pair_result(agent_pairing_t *p, size_t i)
{
    json_t *v;
    agent_str_t id;
    agent_pair_t *owner;
    agent_pair_call_t *c;

    if (!agent_json_str(p->in->messages[i].json, "toolCallId", &id)) {
        return AGENT_OK;
    }

    v = json_object_get(p->open, id.data);
    if (v == NULL) {
        return AGENT_OK;
    }

    c = &p->calls[json_integer_value(v)];
    c->answered = 1;

    if (c->hidden == AGENT_PAIR_NONE) {
        json_object_del(p->open, id.data);
    } else if (json_integer_set(v, (json_int_t) c->hidden) != 0) {
        return AGENT_NOMEM;
    }

    owner = &p->pairs[c->owner];
    p->pairs[i].owner = c->owner;

    if (owner->result == AGENT_PAIR_NONE) {
        owner->result = i;
    } else {
        p->pairs[owner->last].next = i;
    }

    owner->last = i;

    return AGENT_OK;
}

/* Finds the owner of every result.  *end: behind the last message that a model
 * can be asked to answer. */
static agent_rc_t
agent_pair_match(agent_pairing_t *p, size_t *end)
{
    size_t i;
    agent_rc_t rc = AGENT_OK;
    agent_pair_t *pair;

    *end = 0;

    for (i = 0; rc == AGENT_OK && i < p->in->nmessages; i++) {
        pair = &p->pairs[i];
        pair->first = p->ncalls;
        pair->result = AGENT_PAIR_NONE;
        pair->next = AGENT_PAIR_NONE;
        pair->owner = AGENT_PAIR_NONE;

        switch (p->in->messages[i].role) {
        case AGENT_ROLE_USER:
            if (json_object_size(p->open) != 0) {
                json_object_clear(p->open);
            }

            *end = i + 1;
            break;
        case AGENT_ROLE_ASSISTANT:
            rc = agent_pair_calls(p, i);
            break;
        case AGENT_ROLE_TOOL:
            rc = agent_pair_result(p, i);
            *end = pair->owner != AGENT_PAIR_NONE ? i + 1 : *end;
            break;
        default:
            break;
        }

        pair->end = p->ncalls;
    }

    return rc;
}

/* The result of a call that has none.  There may be thousands. */
static json_t *
agent_pair_stand_in(agent_pairing_t *p, json_t *id)
{
    json_t *json;

    if (p->role == NULL) {
        p->role = json_string("tool");
        p->content = json_string("No result: the call was not answered.");
    }

    json = json_object();

    if (json_object_set(json, "role", p->role) != 0 ||
        json_object_set(json, "toolCallId", id) != 0 ||
        json_object_set(json, "content", p->content) != 0) {
        json_decref(json);
        return NULL;
    }

    return json;
}

/* An assistant message, its results, and stand-ins for those that lack. */
static agent_rc_t
agent_pair_emit(agent_pairing_t *p, size_t i, agent_input_t *out)
{
    size_t k;
    agent_rc_t rc;
    agent_message_t *m = p->in->messages;

    rc = agent_input_add(out, m[i].role, json_incref(m[i].json));

    for (k = p->pairs[i].result; rc == AGENT_OK && k != AGENT_PAIR_NONE;
         k = p->pairs[k].next) {
        rc = agent_input_add(out, m[k].role, json_incref(m[k].json));
    }

    for (k = p->pairs[i].first; rc == AGENT_OK && k < p->pairs[i].end; k++) {
        if (!p->calls[k].answered) {
            rc = agent_input_add(out, AGENT_ROLE_TOOL,
                                 agent_pair_stand_in(p, p->calls[k].id));
        }
    }

    return rc;
}

/*
 * A message with calls moves down to the last of their results: what was said
 * in between then stands before it, as if it had been said together with it.
 */
static agent_rc_t
agent_pair_order(agent_pairing_t *p, size_t end, agent_input_t *out)
{
    size_t i, owner;
    agent_rc_t rc = AGENT_OK;
    agent_role_t role;

    for (i = 0; rc == AGENT_OK && i < p->in->nmessages; i++) {
        role = p->in->messages[i].role;
        owner = p->pairs[i].owner;

        if (role == AGENT_ROLE_TOOL) {
            if (owner == AGENT_PAIR_NONE) {
                out->stripped++;
            } else if (p->pairs[owner].last == i) {
                rc = agent_pair_emit(p, owner, out);
            }

        } else if (i >= end && role != AGENT_ROLE_SYSTEM &&
                   role != AGENT_ROLE_DEVELOPER) {
            out->stripped++;

        } else if (p->pairs[i].result == AGENT_PAIR_NONE) {
            rc = agent_pair_emit(p, i, out);
        }
    }

    return rc;
}

agent_rc_t
agent_input_pair(agent_input_t *in, agent_fault_t *fault)
{
    size_t i, n = 0, end = 0;
    agent_rc_t rc = AGENT_NOMEM;
    agent_input_t out, old = *in;
    agent_pairing_t p = {in, NULL, NULL, 0, NULL, NULL, NULL};

    for (i = 0; i < in->nmessages; i++) {
        n +=
            json_array_size(json_object_get(in->messages[i].json, "toolCalls"));
    }

    p.pairs = agent_calloc(in->alloc, in->nmessages * sizeof(agent_pair_t));
    p.calls = agent_calloc(in->alloc, n * sizeof(agent_pair_call_t));
    p.open = json_object();

    if (p.pairs != NULL && p.calls != NULL && p.open != NULL) {
        rc = agent_pair_match(&p, &end);
    }

    if (rc == AGENT_OK && end == 0) {
        agent_fault_set(fault, AGENT_CODE_BAD_REQUEST,
                        "messages holds no user or tool message");
        rc = AGENT_INVALID;
    }

    memset(&out, 0, sizeof(agent_input_t));
    out.alloc = in->alloc;

    if (rc == AGENT_OK) {
        rc = agent_pair_order(&p, end, &out);
    }

    if (rc == AGENT_OK) {
        in->messages = out.messages;
        in->nmessages = out.nmessages;
        in->stripped += out.stripped;

        out.messages = old.messages;
        out.nmessages = old.nmessages;
    }

    agent_free(in->alloc, p.pairs);
    agent_free(in->alloc, p.calls);
    json_decref(p.open);
    json_decref(p.role);
    json_decref(p.content);
    agent_input_free(&out);

    return rc;
}
