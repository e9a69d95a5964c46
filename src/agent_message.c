#include "agent_message.h"
#include "agent_json.h"

#include <stdio.h>
#include <string.h>

static const agent_str_t agent_role_names[] = {
    [AGENT_ROLE_SYSTEM] = agent_str("system"),
    [AGENT_ROLE_DEVELOPER] = agent_str("developer"),
    [AGENT_ROLE_USER] = agent_str("user"),
    [AGENT_ROLE_ASSISTANT] = agent_str("assistant"),
    [AGENT_ROLE_TOOL] = agent_str("tool"),
    [AGENT_ROLE_REASONING] = agent_str("reasoning"),
    [AGENT_ROLE_ACTIVITY] = agent_str("activity"),
    [AGENT_ROLE_UNKNOWN] = agent_str(""),
};

/* AG-UI 1.0, what may stand in a message: of every role, then by role */

#define AGENT_MESSAGE                                                          \
    AGENT_MAY("id", ID), AGENT_MUST("role", ANY),                              \
        AGENT_MAY("subagentRunId", STRING), AGENT_MAY("metadata", OBJECT),     \
        AGENT_MAY("encryptedValue", STRING)

static const agent_member_t agent_system_members[] = {
    AGENT_MESSAGE, AGENT_MUST("content", STRING), AGENT_MAY("name", STRING),
    AGENT_END};

static const agent_member_t agent_user_members[] = {
    AGENT_MESSAGE, AGENT_MUST("content", TEXT), AGENT_MAY("name", STRING),
    AGENT_END};

static const agent_member_t agent_assistant_members[] = {
    AGENT_MESSAGE, AGENT_MAY("content", STRING), AGENT_MAY("toolCalls", ARRAY),
    AGENT_MAY("name", STRING), AGENT_END};

static const agent_member_t agent_tool_members[] = {
    AGENT_MESSAGE,
    AGENT_MUST("content", TEXT),
    {"toolCallId", AGENT_MEMBER_ID, 1, "tool_call_id"},
    AGENT_MAY("error", STRING),
    AGENT_END};

static const agent_member_t agent_reasoning_members[] = {
    AGENT_MESSAGE, AGENT_MUST("content", STRING), AGENT_END};

static const agent_member_t agent_activity_members[] = {
    AGENT_MESSAGE, AGENT_MUST("content", OBJECT),
    AGENT_MUST("activityType", STRING), AGENT_END};

static const agent_member_t *const agent_role_members[] = {
    [AGENT_ROLE_SYSTEM] = agent_system_members,
    [AGENT_ROLE_DEVELOPER] = agent_system_members,
    [AGENT_ROLE_USER] = agent_user_members,
    [AGENT_ROLE_ASSISTANT] = agent_assistant_members,
    [AGENT_ROLE_TOOL] = agent_tool_members,
    [AGENT_ROLE_REASONING] = agent_reasoning_members,
    [AGENT_ROLE_ACTIVITY] = agent_activity_members,
};

static const agent_member_t agent_call_members[] = {
    AGENT_MUST("id", ID),           AGENT_MAY("type", STRING),
    AGENT_MUST("function", OBJECT), AGENT_MAY("encryptedValue", STRING),
    AGENT_MAY("metadata", OBJECT),  AGENT_END};

static const agent_member_t agent_function_members[] = {
    AGENT_MUST("name", NAME), AGENT_MUST("arguments", STRING), AGENT_END};

static const agent_member_t agent_text_members[] = {
    AGENT_MUST("type", STRING), AGENT_MUST("text", STRING),
    AGENT_MAY("id", STRING), AGENT_MAY("metadata", ANY), AGENT_END};

static const agent_member_t agent_media_members[] = {
    AGENT_MUST("type", STRING), AGENT_MUST("source", OBJECT),
    AGENT_MAY("id", STRING), AGENT_MAY("metadata", ANY), AGENT_END};

/* the part of 0.x that became the four media parts */
static const agent_member_t agent_binary_members[] = {
    AGENT_MUST("type", STRING),
    AGENT_MUST("mimeType", STRING),
    AGENT_MAY("data", STRING),
    AGENT_MAY("url", STRING),
    AGENT_MAY("id", STRING),
    AGENT_MAY("filename", STRING),
    AGENT_END};

static const agent_member_t agent_data_members[] = {
    AGENT_MUST("type", STRING), AGENT_MUST("value", STRING),
    AGENT_MUST("mimeType", STRING), AGENT_END};

static const agent_member_t agent_url_members[] = {
    AGENT_MUST("type", STRING), AGENT_MUST("value", STRING),
    AGENT_MAY("mimeType", STRING), AGENT_END};

static const agent_member_t agent_file_members[] = {
    AGENT_MUST("type", STRING), AGENT_MUST("value", STRING),
    AGENT_MAY("mimeType", STRING), AGENT_MAY("provider", STRING), AGENT_END};

static const struct {
    const char *type;
    const agent_member_t *members;
} agent_sources[] = {
    {"data", agent_data_members},
    {"url", agent_url_members},
    {"file", agent_file_members},
};

/* --- roles and ids -------------------------------------------------------- */

agent_str_t
agent_role_name(agent_role_t role)
{
    return agent_role_names[(unsigned) role < AGENT_ROLE_UNKNOWN
                                ? role
                                : AGENT_ROLE_UNKNOWN];
}

agent_role_t
agent_role_parse(agent_str_t name)
{
    unsigned i;

    for (i = 0; i < AGENT_ROLE_UNKNOWN; i++) {
        if (agent_str_eq(agent_role_names[i], name)) {
            break;
        }
    }

    return (agent_role_t) i;
}

int
agent_id_is_plain(agent_str_t id)
{
    size_t i;
    char c;

    if (id.len == 0 || id.len > AGENT_ID_MAX) {
        return 0;
    }

    for (i = 0; i < id.len; i++) {
        c = id.data[i];

        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
            !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != ':' &&
            c != '-') {
            return 0;
        }
    }

    return 1;
}

const char *
agent_id_check(agent_str_t id)
{
    size_t i, n = 0;
    unsigned char c, before = 0;

    if (id.len > AGENT_ID_MAX * 4) {
        return "must have at most 128 characters";
    }

    if (agent_utf8_valid(id) != id.len) {
        return "must be UTF-8";
    }

    for (i = 0; i < id.len && n <= AGENT_ID_MAX; i++) {
        c = (unsigned char) id.data[i];

        /* C0, DEL, and C1, which UTF-8 writes as C2 80 to C2 9F */

        if (c < 0x20 || c == 0x7f || (before == 0xc2 && c < 0xa0)) {
            return "must not hold control characters";
        }

        n += (c & 0xc0) != 0x80;
        before = c;
    }

    if (n == 0) {
        return "must not be empty";
    }

    return n > AGENT_ID_MAX ? "must have at most 128 characters" : NULL;
}

/* --- checking against tables ---------------------------------------------- */

static size_t
agent_where_print(const agent_where_t *where, char *buf, size_t size)
{
    int n;
    size_t len = 0;

    if (where == NULL) {
        return 0;
    }

    len = agent_where_print(where->up, buf, size);

    if (where->key != NULL) {
        n = snprintf(buf + len, size - len, "%s%s", len != 0 ? "." : "",
                     where->key);
    } else {
        n = snprintf(buf + len, size - len, "[%zu]", where->index);
    }

    len += (size_t) n;

    return len < size ? len : size - 1;
}

agent_rc_t
agent_reader_refuse(const agent_reader_t *r, const agent_where_t *where,
                    const char *key, const char *what)
{
    char path[160];
    size_t len;
    agent_where_t member = {where, key, 0};

    len = agent_where_print(key != NULL ? &member : where, path, sizeof(path));

    agent_fault_set(r->fault, AGENT_CODE_BAD_REQUEST, "%.*s %s",
                    len != 0 ? (int) len : 8, len != 0 ? path : "the body",
                    what);

    return AGENT_INVALID;
}

/* What is wrong with a value of that type, NULL: nothing. */
static const char *
agent_member_wrong(agent_member_type_t type, const json_t *v)
{
    agent_str_t s;

    switch (type) {
    case AGENT_MEMBER_OBJECT:
        return json_is_object(v) ? NULL : "must be an object";
    case AGENT_MEMBER_ARRAY:
        return json_is_array(v) ? NULL : "must be an array";
    case AGENT_MEMBER_TEXT:
        return json_is_string(v) || json_is_array(v)
                   ? NULL
                   : "must be a string or an array";
    case AGENT_MEMBER_STRING:
    case AGENT_MEMBER_NAME:
    case AGENT_MEMBER_ID:
        break;
    case AGENT_MEMBER_ANY:
    default:
        return NULL;
    }

    if (!json_is_string(v)) {
        return "must be a string";
    }

    s.data = json_string_value(v);
    s.len = json_string_length(v);

    if (type == AGENT_MEMBER_ID) {
        return agent_id_check(s);
    }

    return type == AGENT_MEMBER_NAME && s.len == 0 ? "must not be empty" : NULL;
}

static agent_rc_t
agent_reader_alias(const agent_reader_t *r, json_t *json,
                   const agent_where_t *where, const agent_member_t *m)
{
    json_t *v = json_object_get(json, m->alias);
    const json_t *canonical = json_object_get(json, m->key);
    const char *what;

    if (v == NULL || json_is_null(v) ||
        (canonical != NULL && !json_is_null(canonical))) {
        return AGENT_OK;
    }

    what = agent_member_wrong(m->type, v);
    if (what != NULL) {
        return agent_reader_refuse(r, where, m->alias, what);
    }

    if (json_object_set(json, m->key, v) != 0) {
        return AGENT_NOMEM;
    }

    json_object_del(json, m->alias);

    return AGENT_OK;
}

agent_rc_t
agent_reader_members(const agent_reader_t *r, json_t *json,
                     const agent_where_t *where, const agent_member_t *members)
{
    void *next;
    json_t *v;
    agent_rc_t rc;
    const char *key, *what;
    const agent_member_t *m;

    if (!json_is_object(json)) {
        return agent_reader_refuse(r, where, NULL, "must be an object");
    }

    for (m = members; m->key != NULL; m++) {
        if (m->alias != NULL) {
            rc = agent_reader_alias(r, json, where, m);
            if (rc != AGENT_OK) {
                return rc;
            }
        }
    }

    json_object_foreach_safe(json, next, key, v)
    {
        m = members;

        while (m->key != NULL && strcmp(m->key, key) != 0) {
            m++;
        }

        if (m->key == NULL || json_is_null(v)) {
            r->in->stripped += !json_is_null(v);
            json_object_del(json, key);
            continue;
        }

        what = agent_member_wrong(m->type, v);
        if (what != NULL) {
            return agent_reader_refuse(r, where, key, what);
        }
    }

    for (m = members; m->key != NULL; m++) {
        if (m->required && json_object_get(json, m->key) == NULL) {
            return agent_reader_refuse(r, where, m->key, "is missing");
        }
    }

    return AGENT_OK;
}

/* --- content parts -------------------------------------------------------- */

static int
agent_has_prefix(agent_str_t s, const char *prefix)
{
    size_t n = strlen(prefix);

    return s.len >= n && memcmp(s.data, prefix, n) == 0;
}

static const char *
agent_media_kind(agent_str_t mime)
{
    if (agent_has_prefix(mime, "image/")) {
        return "image";
    }

    if (agent_has_prefix(mime, "audio/")) {
        return "audio";
    }

    return agent_has_prefix(mime, "video/") ? "video" : "document";
}

/* A media part; mime and filename may be NULL.  NULL: memory ran out. */
static json_t *
agent_media_new(const char *kind, const char *source, json_t *value,
                json_t *mime, json_t *filename)
{
    json_t *part;

    part = json_pack("{s:s,s:{s:s,s:O}}", "type", kind, "source", "type",
                     source, "value", value);
    if (part == NULL) {
        return NULL;
    }

    if ((mime != NULL &&
         json_object_set(json_object_get(part, "source"), "mimeType", mime)) ||
        (filename != NULL &&
         json_object_set_new(part, "metadata",
                             json_pack("{s:O}", "filename", filename)))) {
        json_decref(part);
        return NULL;
    }

    return part;
}

static agent_rc_t
agent_reader_binary(const agent_reader_t *r, json_t *part,
                    const agent_where_t *where, json_t **out)
{
    json_t *value;
    agent_rc_t rc;
    agent_str_t mime;
    const char *source = "data";

    rc = agent_reader_members(r, part, where, agent_binary_members);
    if (rc != AGENT_OK) {
        return rc;
    }

    value = json_object_get(part, "data");

    if (value == NULL) {
        source = "url";
        value = json_object_get(part, "url");
    }

    if (value == NULL) {
        return AGENT_DECLINED; /* an id of a file that only the peer knew */
    }

    (void) agent_json_str(part, "mimeType", &mime);

    *out = agent_media_new(agent_media_kind(mime), source, value,
                           json_object_get(part, "mimeType"),
                           json_object_get(part, "filename"));

    return *out != NULL ? AGENT_OK : AGENT_NOMEM;
}

/* The file and image parts of AI SDKs: url, mediaType, filename. */
static agent_rc_t
agent_reader_upload(const json_t *part, agent_str_t type, json_t **out)
{
    json_t *mime, *filename, *data, *head;
    agent_str_t url, m = {"", 0};
    const char *comma, *kind;

    mime = json_object_get(part, "mediaType");
    filename = json_object_get(part, "filename");
    filename = json_is_string(filename) ? filename : NULL;

    if (!agent_json_str(part, "url", &url) || url.len == 0) {
        return AGENT_DECLINED;
    }

    if (!json_is_string(mime)) {
        mime = json_object_get(part, "mimeType");
        mime = json_is_string(mime) ? mime : NULL;
    }

    if (mime != NULL) {
        m.data = json_string_value(mime);
        m.len = json_string_length(mime);
    }

    kind =
        agent_str_eq(type, AGENT_STR("image")) ? "image" : agent_media_kind(m);

    if (!agent_has_prefix(url, "data:")) {
        *out = agent_media_new(kind, "url", json_object_get(part, "url"), mime,
                               filename);
        return *out != NULL ? AGENT_OK : AGENT_NOMEM;
    }

    comma = memchr(url.data, ',', url.len);

    if (comma == NULL || comma - url.data < 12 ||
        memcmp(comma - 7, ";base64", 7) != 0) {
        return AGENT_DECLINED;
    }

    m.data = url.data + 5;
    m.len = strcspn(m.data, ";,");

    if (mime == NULL && kind[0] != 'i') {
        kind = agent_media_kind(m);
    }

    comma++;
    data = json_stringn_nocheck(comma, url.len - (size_t) (comma - url.data));
    head = json_stringn_nocheck(m.data, m.len);

    if (data != NULL && head != NULL) {
        *out = agent_media_new(kind, "data", data, mime != NULL ? mime : head,
                               filename);
    }

    json_decref(data);
    json_decref(head);

    return *out != NULL ? AGENT_OK : AGENT_NOMEM;
}

/* AGENT_OK, with *out when another part takes this one's place (a new
 * reference), or AGENT_DECLINED: drop it. */
static agent_rc_t
agent_reader_part(const agent_reader_t *r, json_t *part,
                  const agent_where_t *where, int loose, json_t **out)
{
    size_t i;
    agent_rc_t rc;
    agent_str_t type;
    agent_where_t source = {where, "source", 0};
    const json_t *v;
    static const agent_member_t any[] = {AGENT_MUST("type", STRING), AGENT_END};

    v = json_object_get(part, "type");

    if (!json_is_object(part) || !json_is_string(v)) {
        return agent_reader_members(r, part, where, any);
    }

    (void) agent_json_str(part, "type", &type);

    if (agent_str_eq(type, AGENT_STR("text"))) {
        return agent_reader_members(r, part, where, agent_text_members);
    }

    if (agent_str_eq(type, AGENT_STR("binary"))) {
        return agent_reader_binary(r, part, where, out);
    }

    if (loose && json_object_get(part, "source") == NULL &&
        (agent_str_eq(type, AGENT_STR("file")) ||
         agent_str_eq(type, AGENT_STR("image")))) {
        return agent_reader_upload(part, type, out);
    }

    if (!agent_str_eq(type, AGENT_STR("image")) &&
        !agent_str_eq(type, AGENT_STR("audio")) &&
        !agent_str_eq(type, AGENT_STR("video")) &&
        !agent_str_eq(type, AGENT_STR("document"))) {
        return AGENT_DECLINED;
    }

    rc = agent_reader_members(r, part, where, agent_media_members);
    if (rc != AGENT_OK) {
        return rc;
    }

    part = json_object_get(part, "source");
    v = json_object_get(part, "type");

    for (i = 0; json_is_string(v) && i < 3; i++) {
        if (strcmp(json_string_value(v), agent_sources[i].type) == 0) {
            return agent_reader_members(r, part, &source,
                                        agent_sources[i].members);
        }
    }

    return json_is_string(v) ? AGENT_DECLINED
                             : agent_reader_members(r, part, &source, any);
}

static agent_rc_t
agent_reader_content(const agent_reader_t *r, json_t *parts,
                     const agent_where_t *where, const char *key)
{
    size_t kept = 0;
    json_t *part, *other;
    agent_rc_t rc;
    agent_where_t list = {where, key, 0}, at = {&list, NULL, 0};

    for (at.index = 0; at.index < json_array_size(parts); at.index++) {
        part = json_array_get(parts, at.index);
        other = NULL;

        rc = agent_reader_part(r, part, &at, strcmp(key, "parts") == 0, &other);

        if (rc == AGENT_DECLINED) {
            r->in->stripped++;
            continue;
        }

        if (rc != AGENT_OK) {
            return rc;
        }

        if (other != NULL) {
            json_array_set_new(parts, kept, other);
        } else if (kept != at.index) {
            json_array_set(parts, kept, part);
        }

        kept++;
    }

    while (json_array_size(parts) > kept) {
        json_array_remove(parts, json_array_size(parts) - 1);
    }

    return AGENT_OK;
}

/* --- messages ------------------------------------------------------------- */

static agent_rc_t
agent_reader_calls(const agent_reader_t *r, json_t *calls,
                   const agent_where_t *where)
{
    json_t *call;
    agent_rc_t rc;
    agent_str_t type;
    agent_where_t list = {where, "toolCalls", 0}, at = {&list, NULL, 0};
    agent_where_t function = {&at, "function", 0};

    for (at.index = 0; at.index < json_array_size(calls); at.index++) {
        call = json_array_get(calls, at.index);

        rc = agent_reader_members(r, call, &at, agent_call_members);

        if (rc == AGENT_OK) {
            rc = agent_reader_members(r, json_object_get(call, "function"),
                                      &function, agent_function_members);
        }

        if (rc != AGENT_OK) {
            return rc;
        }

        if (!agent_json_str(call, "type", &type)) {
            if (json_object_set_new(call, "type", json_string("function"))) {
                return AGENT_NOMEM;
            }

        } else if (!agent_str_eq(type, AGENT_STR("function"))) {
            return agent_reader_refuse(r, &at, "type", "must be \"function\"");
        }
    }

    return AGENT_OK;
}

agent_rc_t
agent_reader_message(const agent_reader_t *r, json_t *json, agent_role_t role,
                     const agent_where_t *where, const char *key)
{
    json_t *v;
    agent_rc_t rc;

    rc = agent_reader_members(r, json, where, agent_role_members[role]);
    if (rc != AGENT_OK) {
        return rc;
    }

    v = json_object_get(json, "content");

    if (json_is_array(v)) {
        rc = agent_reader_content(r, v, where, key);
        if (rc != AGENT_OK) {
            return rc;
        }

        if (role == AGENT_ROLE_USER && json_array_size(v) == 0) {
            r->in->stripped++; /* providers refuse a message without content */
            return AGENT_OK;
        }
    }

    v = json_object_get(json, "toolCalls");

    if (v != NULL && json_array_size(v) == 0) {
        json_object_del(json, "toolCalls"); /* providers refuse it empty */

    } else if (v != NULL) {
        rc = agent_reader_calls(r, v, where);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return agent_input_add(r->in, role, json_incref(json));
}
