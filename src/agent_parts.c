/*
 * Messages in "parts" shape, as AI SDKs and Veryfront send them: {role, parts}
 * where a part is text, a file, a tool call or its result.
 */

#include "agent_message.h"
#include "agent_json.h"

#include <string.h>

static const agent_member_t agent_parts_members[] = {
    AGENT_MAY("id", ID),
    AGENT_MUST("role", ANY),
    AGENT_MAY("name", STRING),
    AGENT_MAY("metadata", OBJECT),
    AGENT_MAY("content", ANY),
    AGENT_MUST("parts", ARRAY),
    {"toolCallId", AGENT_MEMBER_ID, 0, "tool_call_id"},
    AGENT_END};

/*
 * One such message becomes several: the results of calls are messages of
 * their own, and so is what an assistant says behind them.
 */
typedef struct {
    const agent_reader_t *r;
    const agent_where_t *where;
    agent_role_t role;
    json_t *base;     /* the message as it came; becomes the first one */
    agent_buf_t text; /* of the message being made */
    json_t *calls;
} agent_parts_t;

static json_t *
agent_parts_either(const json_t *part, const char *one, const char *two)
{
    json_t *v = json_object_get(part, one);

    return v != NULL && !json_is_null(v) ? v : json_object_get(part, two);
}

/* A new reference: a string as it is, anything else as JSON text. */
static json_t *
agent_parts_string(json_t *v, const char *otherwise)
{
    char *text;
    json_t *s;
    json_free_t release;

    if (v == NULL || json_is_null(v)) {
        return json_string(otherwise);
    }

    if (json_is_string(v)) {
        return json_incref(v);
    }

    text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text == NULL) {
        return NULL;
    }

    s = json_string(text);

    json_get_alloc_funcs(NULL, &release);
    release(text);

    return s;
}

/* Adds the message of the parts so far. */
static agent_rc_t
agent_parts_flush(agent_parts_t *p)
{
    int bad = 0;
    agent_rc_t rc;

    if (p->text.len == 0 && json_array_size(p->calls) == 0) {
        return AGENT_OK;
    }

    if (p->base == NULL) {
        p->base = json_pack("{s:s}", "role", "assistant");
    }

    if (p->text.len != 0) {
        bad = json_object_set_new(
            p->base, "content",
            json_stringn_nocheck(p->text.data, p->text.len));
    }

    if (json_array_size(p->calls) != 0) {
        bad |= json_object_set_new(p->base, "toolCalls", p->calls);
        p->calls = json_array();
    }

    if (bad || p->calls == NULL) {
        return AGENT_NOMEM;
    }

    rc = agent_reader_message(p->r, p->base, p->role, p->where, "parts");

    agent_buf_reset(&p->text);
    json_decref(p->base);
    p->base = NULL;

    return rc;
}

static agent_rc_t
agent_parts_result(agent_parts_t *p, json_t *id, json_t *value)
{
    json_t *content, *json;
    agent_rc_t rc;

    rc = agent_parts_flush(p);
    if (rc != AGENT_OK) {
        return rc;
    }

    content = agent_parts_string(value, "");
    json = json_pack("{s:s,s:O,s:O}", "role", "tool", "toolCallId", id,
                     "content", content);
    json_decref(content);

    return agent_input_add(p->r->in, AGENT_ROLE_TOOL, json);
}

static agent_rc_t
agent_parts_call(agent_parts_t *p, const json_t *part, json_t *id,
                 const char *name)
{
    json_t *args, *call, *output;

    args = agent_parts_string(agent_parts_either(part, "args", "input"), "{}");
    call = json_pack("{s:O,s:s,s:{s:s,s:O}}", "id", id, "type", "function",
                     "function", "name", name, "arguments", args);
    json_decref(args);

    if (call == NULL || json_array_append_new(p->calls, call) != 0) {
        return AGENT_NOMEM;
    }

    output = agent_parts_either(part, "output", "errorText");

    return output != NULL && !json_is_null(output)
               ? agent_parts_result(p, id, output)
               : AGENT_OK;
}

/* A part about a tool.  AGENT_DECLINED: it is of no use. */
static agent_rc_t
agent_parts_tool(agent_parts_t *p, const json_t *part, const char *type)
{
    json_t *v, *id;
    agent_str_t s;

    id = agent_parts_either(part, "toolCallId", "tool_call_id");
    id = id != NULL ? id : json_object_get(part, "id");

    if (!json_is_string(id)) {
        return AGENT_DECLINED;
    }

    s.data = json_string_value(id);
    s.len = json_string_length(id);

    if (agent_id_check(s) != NULL) {
        return AGENT_DECLINED;
    }

    if (strcmp(type, "tool-result") == 0 || strcmp(type, "tool_result") == 0) {
        return agent_parts_result(p, id,
                                  agent_parts_either(part, "result", "output"));
    }

    v = agent_parts_either(part, "toolName", "name");

    if (json_is_string(v)) {
        type = json_string_value(v);
    } else if (strncmp(type, "tool-", 5) == 0 && strcmp(type, "tool-call")) {
        type += 5; /* AI SDKs: "tool-<name>" */
    } else {
        return AGENT_DECLINED;
    }

    return p->role == AGENT_ROLE_ASSISTANT && *type != '\0'
               ? agent_parts_call(p, part, id, type)
               : AGENT_DECLINED;
}

static agent_rc_t
agent_parts_add(agent_parts_t *p, const json_t *part,
                const agent_where_t *where)
{
    agent_rc_t rc = AGENT_DECLINED;
    agent_str_t type, text;

    if (!json_is_object(part)) {
        return agent_reader_refuse(p->r, where, NULL, "must be an object");
    }

    if (!agent_json_str(part, "type", &type)) {
        return agent_reader_refuse(p->r, where, "type", "must be a string");
    }

    if (agent_str_eq(type, AGENT_STR("text")) && p->role != AGENT_ROLE_TOOL) {
        if (!agent_json_str(part, "text", &text)) {
            return agent_reader_refuse(p->r, where, "text", "must be a string");
        }

        if (p->text.len != 0 && text.len != 0) {
            agent_buf_add_lit(&p->text, "\n\n");
        }

        agent_buf_add_str(&p->text, text);

        return agent_buf_ok(&p->text) ? AGENT_OK : AGENT_NOMEM;
    }

    if (p->role == AGENT_ROLE_ASSISTANT || p->role == AGENT_ROLE_TOOL) {
        if (strncmp(type.data, "tool", 4) == 0 ||
            agent_str_eq(type, AGENT_STR("dynamic-tool"))) {
            rc = agent_parts_tool(p, part, type.data);
        }
    }

    if (rc == AGENT_DECLINED) {
        p->r->in->stripped++;
        rc = AGENT_OK;
    }

    return rc;
}

/* The text of a lone text part, NULL for anything else. */
static json_t *
agent_parts_only_text(const json_t *parts)
{
    json_t *part = json_array_get(parts, 0), *text;
    const char *type = json_string_value(json_object_get(part, "type"));

    if (json_array_size(parts) != 1 || type == NULL ||
        strcmp(type, "text") != 0) {
        return NULL;
    }

    text = json_object_get(part, "text");

    return json_is_string(text) ? text : NULL;
}

agent_rc_t
agent_reader_parts(const agent_reader_t *r, json_t *json, agent_role_t role,
                   const agent_where_t *where)
{
    json_t *parts, *text;
    size_t before = r->in->nmessages;
    agent_rc_t rc;
    agent_parts_t p;
    agent_where_t list = {where, "parts", 0}, at = {&list, NULL, 0};

    rc = agent_reader_members(r, json, where, agent_parts_members);
    if (rc != AGENT_OK) {
        return rc;
    }

    parts = json_incref(json_object_get(json, "parts"));
    json_object_del(json, "parts");

    if (role == AGENT_ROLE_USER ||
        (role == AGENT_ROLE_TOOL && json_object_get(json, "toolCallId"))) {
        text = agent_parts_only_text(parts);

        if (text != NULL) {
            json_incref(text);
            json_decref(parts);
            parts = text;
        }

        if (json_object_set_new(json, "content", parts) != 0) {
            return AGENT_NOMEM;
        }

        return agent_reader_message(r, json, role, where, "parts");
    }

    memset(&p, 0, sizeof(agent_parts_t));
    p.r = r;
    p.where = where;
    p.role = role;
    p.base = json_incref(json);
    p.calls = json_array();
    agent_buf_init(&p.text, r->in->alloc);

    rc = p.calls != NULL ? AGENT_OK : AGENT_NOMEM;

    for (; rc == AGENT_OK && at.index < json_array_size(parts); at.index++) {
        rc = agent_parts_add(&p, json_array_get(parts, at.index), &at);
    }

    if (rc == AGENT_OK) {
        rc = agent_parts_flush(&p);
    }

    r->in->stripped += rc == AGENT_OK && r->in->nmessages == before;

    agent_buf_free(&p.text);
    json_decref(p.calls);
    json_decref(p.base);
    json_decref(parts);

    return rc;
}
