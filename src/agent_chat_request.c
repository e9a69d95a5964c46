#include "agent_chat.h"
#include "agent_json.h"

#include <string.h>
#include <strings.h>

#define AGENT_CHAT_NAME_MAX 64 /* of a tool */

const char *const agent_chat_reserved[] = {"messages", "stream", "tools", NULL};

/* Members that have a place and a default of their own. */
static const char *const agent_chat_defaults[] = {"model", "stream_options",
                                                  NULL};

static int
agent_chat_is_one_of(agent_str_t key, const char *const *names)
{
    for (/* void */; *names != NULL; names++) {
        if (key.len == strlen(*names) &&
            memcmp(key.data, *names, key.len) == 0) {
            return 1;
        }
    }

    return 0;
}

/* The first member of any object or array is written after '{' or '['. */
static void
agent_chat_comma(agent_buf_t *b)
{
    char last = b->len != 0 ? b->data[b->len - 1] : '\0';

    if (last != '{' && last != '[') {
        agent_buf_add_char(b, ',');
    }
}

/* --- parameters ----------------------------------------------------------- */

static const agent_param_t *
agent_chat_param(const agent_param_t *params, size_t n, agent_str_t key)
{
    while (n-- > 0) {
        if (agent_str_eq(params[n].key, key)) {
            return &params[n];
        }
    }

    return NULL;
}

/* What counts for a key: the last override, else the last setting. */
static const agent_param_t *
agent_chat_effective(const agent_request_t *req, agent_str_t key)
{
    const agent_param_t *p;

    p = agent_chat_param(req->overrides, req->noverrides, key);

    return p != NULL ? p : agent_chat_param(req->set, req->nset, key);
}

static void
agent_chat_add_param(agent_buf_t *b, const agent_param_t *param)
{
    if (agent_str_eq(param->value, AGENT_STR("null"))) {
        return; /* removes the key */
    }

    agent_chat_comma(b);
    agent_json_quote(b, param->key);
    agent_buf_add_char(b, ':');
    agent_buf_add_str(b, param->value);
}

/* One of agent_chat_defaults: 1 when the request says something about it. */
static int
agent_chat_add_default(agent_buf_t *b, const agent_request_t *req,
                       const char *name)
{
    agent_str_t key = {name, strlen(name)};
    const agent_param_t *param = agent_chat_effective(req, key);

    if (param == NULL) {
        return 0;
    }

    agent_chat_add_param(b, param);

    return 1;
}

/* Members of one list, each with the value that counts, except those written
 * before or to be written later in the list. */
static void
agent_chat_add_params(agent_buf_t *b, const agent_request_t *req,
                      const agent_param_t *params, size_t n)
{
    size_t i;
    agent_str_t key;

    for (i = 0; i < n; i++) {
        key = params[i].key;

        if (agent_chat_is_one_of(key, agent_chat_reserved) ||
            agent_chat_is_one_of(key, agent_chat_defaults) ||
            agent_chat_param(params + i + 1, n - i - 1, key) != NULL) {
            continue;
        }

        if (params == req->overrides &&
            agent_chat_param(req->set, req->nset, key) != NULL) {
            continue;
        }

        agent_chat_add_param(b, agent_chat_effective(req, key));
    }
}

/* --- parts ---------------------------------------------------------------- */

static void
agent_chat_add_member(agent_buf_t *b, const char *name, agent_str_t value)
{
    agent_str_t key = {name, strlen(name)};

    agent_chat_comma(b);
    agent_json_quote(b, key);
    agent_buf_add_char(b, ':');
    agent_json_quote(b, value);
}

/* The quoted "data:" URL of a data source. */
static void
agent_chat_add_data_url(agent_buf_t *b, agent_str_t mime, agent_str_t data)
{
    agent_buf_add_lit(b, "\"data:");
    agent_json_escape(b, mime);
    agent_buf_add_lit(b, ";base64,");
    agent_json_escape(b, data);
    agent_buf_add_char(b, '"');
}

/* The name that input_audio has for a media type. */
static agent_str_t
agent_chat_audio_format(agent_str_t mime)
{
    static const struct {
        const char *mime;
        const char *format;
    } formats[] = {
        {"audio/mpeg", "mp3"},     {"audio/mpga", "mp3"},
        {"audio/wave", "wav"},     {"audio/x-wav", "wav"},
        {"audio/vnd.wave", "wav"}, {"audio/mp4", "m4a"},
        {"audio/x-m4a", "m4a"},
    };
    size_t i;
    const char *p;
    agent_str_t s = mime;

    p = s.len != 0 ? memchr(s.data, ';', s.len) : NULL;

    if (p != NULL) {
        s.len = (size_t) (p - s.data);
    }

    while (s.len != 0 && s.data[s.len - 1] == ' ') {
        s.len--;
    }

    for (i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (s.len == strlen(formats[i].mime) &&
            strncasecmp(s.data, formats[i].mime, s.len) == 0) {
            s.data = formats[i].format;
            s.len = strlen(s.data);
            return s;
        }
    }

    p = s.len != 0 ? memchr(s.data, '/', s.len) : NULL;

    if (p != NULL) {
        s.len -= (size_t) (p + 1 - s.data);
        s.data = p + 1;
    }

    return s;
}

static void
agent_chat_add_image(agent_buf_t *b, agent_str_t kind, agent_str_t value,
                     agent_str_t mime)
{
    agent_chat_comma(b);
    agent_buf_add_lit(b, "{\"type\":\"image_url\",\"image_url\":{\"url\":");

    if (agent_str_eq(kind, AGENT_STR("data"))) {
        agent_chat_add_data_url(b, mime, value);
    } else {
        agent_json_quote(b, value);
    }

    agent_buf_add_lit(b, "}}");
}

static void
agent_chat_add_document(agent_buf_t *b, const json_t *part, agent_str_t value,
                        agent_str_t mime)
{
    agent_str_t name;

    if (!agent_json_str(json_object_get(part, "metadata"), "filename", &name) ||
        name.len == 0) {
        name = AGENT_STR("file");
    }

    agent_chat_comma(b);
    agent_buf_add_lit(b, "{\"type\":\"file\",\"file\":{\"file_data\":");
    agent_chat_add_data_url(b, mime, value);
    agent_chat_add_member(b, "filename", name);
    agent_buf_add_lit(b, "}}");
}

/* A part; one that has no form here is left out. */
static void
agent_chat_add_part(agent_buf_t *b, const json_t *part)
{
    agent_str_t type, text, kind, value, mime;
    const json_t *source = json_object_get(part, "source");

    if (!agent_json_str(part, "type", &type)) {
        return;
    }

    if (agent_str_eq(type, AGENT_STR("text"))) {
        if (agent_json_str(part, "text", &text)) {
            agent_chat_comma(b);
            agent_buf_add_lit(b, "{\"type\":\"text\"");
            agent_chat_add_member(b, "text", text);
            agent_buf_add_char(b, '}');
        }

        return;
    }

    if (!agent_json_str(source, "type", &kind) ||
        !agent_json_str(source, "value", &value)) {
        return;
    }

    if (!agent_json_str(source, "mimeType", &mime)) {
        mime = AGENT_STR("application/octet-stream");
    }

    if (agent_str_eq(kind, AGENT_STR("file"))) {
        agent_chat_comma(b);
        agent_buf_add_lit(b, "{\"type\":\"file\",\"file\":{\"file_id\":");
        agent_json_quote(b, value);
        agent_buf_add_lit(b, "}}");

    } else if (agent_str_eq(type, AGENT_STR("image"))) {
        agent_chat_add_image(b, kind, value, mime);

    } else if (!agent_str_eq(kind, AGENT_STR("data"))) {
        return; /* only images are fetched by their URLs */

    } else if (agent_str_eq(type, AGENT_STR("audio"))) {
        agent_chat_comma(b);
        agent_buf_add_lit(b, "{\"type\":\"input_audio\",\"input_audio\":{");
        agent_chat_add_member(b, "data", value);
        agent_chat_add_member(b, "format", agent_chat_audio_format(mime));
        agent_buf_add_lit(b, "}}");

    } else if (agent_str_eq(type, AGENT_STR("document"))) {
        agent_chat_add_document(b, part, value, mime);
    }
}

/* --- messages ------------------------------------------------------------- */

static void
agent_chat_add_role(agent_buf_t *b, const char *role)
{
    agent_str_t s = {role, strlen(role)};

    agent_chat_comma(b);
    agent_buf_add_char(b, '{');
    agent_chat_add_member(b, "role", s);
}

/* The configured prompt and what the application tells, as one message. */
static void
agent_chat_add_system(agent_buf_t *b, const agent_request_t *req)
{
    size_t i;

    if (req->system.len == 0 && req->ncontext == 0) {
        return;
    }

    agent_chat_add_role(b, "system");
    agent_buf_add_lit(b, ",\"content\":\"");
    agent_json_escape(b, req->system);

    if (req->ncontext != 0) {
        if (req->system.len != 0) {
            agent_buf_add_lit(b, "\\n\\n");
        }

        agent_buf_add_lit(b, "Context provided by the application:");

        for (i = 0; i < req->ncontext; i++) {
            agent_buf_add_lit(b, "\\n");
            agent_json_escape(b, req->context[i].description);
            agent_buf_add_lit(b, ": ");
            agent_json_escape(b, req->context[i].value);
        }
    }

    agent_buf_add_lit(b, "\"}");
}

/* The content of a system, developer or tool message: a string, or the texts
 * of its parts, a line each. */
static void
agent_chat_add_text(agent_buf_t *b, const json_t *content)
{
    size_t i, n = 0;
    agent_str_t s;

    agent_buf_add_lit(b, ",\"content\":\"");

    if (json_is_string(content)) {
        s.data = json_string_value(content);
        s.len = json_string_length(content);
        agent_json_escape(b, s);
    }

    for (i = 0; i < json_array_size(content); i++) {
        if (agent_json_str(json_array_get(content, i), "text", &s)) {
            if (n++ != 0) {
                agent_buf_add_lit(b, "\\n");
            }

            agent_json_escape(b, s);
        }
    }

    agent_buf_add_char(b, '"');
}

static void
agent_chat_add_user(agent_buf_t *b, const json_t *message)
{
    size_t i, start;
    const json_t *content = json_object_get(message, "content");

    agent_chat_add_role(b, "user");

    if (!json_is_array(content)) {
        agent_chat_add_text(b, content);
        agent_buf_add_char(b, '}');
        return;
    }

    start = b->len;

    agent_buf_add_lit(b, ",\"content\":[");

    for (i = 0; i < json_array_size(content); i++) {
        agent_chat_add_part(b, json_array_get(content, i));
    }

    if (agent_buf_ok(b) && b->data[b->len - 1] == '[') {
        b->len = start;
        agent_buf_add_lit(b, ",\"content\":\"\"}");
        return;
    }

    agent_buf_add_lit(b, "]}");
}

static int
agent_chat_is_blank(agent_str_t s)
{
    while (s.len != 0 && strchr(" \t\r\n", s.data[s.len - 1]) != NULL &&
           s.data[s.len - 1] != '\0') {
        s.len--;
    }

    return s.len == 0;
}

static void
agent_chat_add_call(agent_buf_t *b, const json_t *call)
{
    agent_str_t id = AGENT_STR(""), name = AGENT_STR(""), args;
    const json_t *function = json_object_get(call, "function");

    (void) agent_json_str(call, "id", &id);
    (void) agent_json_str(function, "name", &name);

    if (!agent_json_str(function, "arguments", &args) ||
        agent_chat_is_blank(args)) {
        args = AGENT_STR("{}");
    }

    agent_chat_comma(b);
    agent_buf_add_char(b, '{');
    agent_chat_add_member(b, "id", id);
    agent_buf_add_lit(b, ",\"type\":\"function\",\"function\":{");
    agent_chat_add_member(b, "name", name);
    agent_chat_add_member(b, "arguments", args);
    agent_buf_add_lit(b, "}}");
}

static void
agent_chat_add_assistant(agent_buf_t *b, const json_t *message)
{
    size_t i;
    const json_t *calls = json_object_get(message, "toolCalls");
    const json_t *content = json_object_get(message, "content");

    agent_chat_add_role(b, "assistant");

    if (json_array_size(calls) != 0 && json_string_length(content) == 0) {
        agent_buf_add_lit(b, ",\"content\":null");
    } else {
        agent_chat_add_text(b, content);
    }

    if (json_array_size(calls) != 0) {
        agent_buf_add_lit(b, ",\"tool_calls\":[");

        for (i = 0; i < json_array_size(calls); i++) {
            agent_chat_add_call(b, json_array_get(calls, i));
        }

        agent_buf_add_char(b, ']');
    }

    agent_buf_add_char(b, '}');
}

static void
agent_chat_add_tool_result(agent_buf_t *b, const json_t *message)
{
    agent_str_t id = AGENT_STR("");
    const json_t *content = json_object_get(message, "content");

    (void) agent_json_str(message, "toolCallId", &id);

    if (json_string_length(content) == 0 && json_array_size(content) == 0) {
        content = json_object_get(message, "error");
    }

    agent_chat_add_role(b, "tool");
    agent_chat_add_member(b, "tool_call_id", id);
    agent_chat_add_text(b, content);
    agent_buf_add_char(b, '}');
}

static void
agent_chat_add_message(agent_buf_t *b, const agent_message_t *m)
{
    switch (m->role) {
    case AGENT_ROLE_SYSTEM:
    case AGENT_ROLE_DEVELOPER:
        agent_chat_add_role(b, m->role == AGENT_ROLE_SYSTEM ? "system"
                                                            : "developer");
        agent_chat_add_text(b, json_object_get(m->json, "content"));
        agent_buf_add_char(b, '}');
        break;

    case AGENT_ROLE_USER:
        agent_chat_add_user(b, m->json);
        break;

    case AGENT_ROLE_ASSISTANT:
        agent_chat_add_assistant(b, m->json);
        break;

    case AGENT_ROLE_TOOL:
        agent_chat_add_tool_result(b, m->json);
        break;

    case AGENT_ROLE_REASONING:
    case AGENT_ROLE_ACTIVITY:
    case AGENT_ROLE_UNKNOWN:
    default:
        break; /* not for a model */
    }
}

/* --- tools ---------------------------------------------------------------- */

static int
agent_chat_is_tool_name(agent_str_t name)
{
    size_t i;
    char c;

    for (i = 0; i < name.len; i++) {
        c = name.data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c >= '0' && c <= '9') || c == '_' || c == '-')) {
            return 0;
        }
    }

    return name.len != 0 && name.len <= AGENT_CHAT_NAME_MAX;
}

static void
agent_chat_add_tool(agent_buf_t *b, const agent_tool_t *tool)
{
    agent_chat_comma(b);
    agent_buf_add_lit(b, "{\"type\":\"function\",\"function\":{");
    agent_chat_add_member(b, "name", tool->name);

    if (tool->description.len != 0) {
        agent_chat_add_member(b, "description", tool->description);
    }

    agent_buf_add_lit(b, ",\"parameters\":");

    if (tool->parameters.len != 0) {
        agent_buf_add_str(b, tool->parameters);
    } else {
        agent_buf_add_lit(b, "{\"type\":\"object\",\"properties\":{}}");
    }

    agent_buf_add_lit(b, "}}");
}

agent_rc_t
agent_chat_request(agent_buf_t *body, const agent_request_t *req,
                   agent_fault_t *fault)
{
    size_t i;

    for (i = 0; i < req->ntools; i++) {
        if (!agent_chat_is_tool_name(req->tools[i].name)) {
            agent_fault_set(fault, AGENT_CODE_BAD_REQUEST,
                            "tools[%zu].name must be 1 to %d characters of "
                            "A-Z, a-z, 0-9, _ and -",
                            i, AGENT_CHAT_NAME_MAX);
            return AGENT_INVALID;
        }
    }

    agent_buf_add_char(body, '{');

    if (!agent_chat_add_default(body, req, "model")) {
        agent_chat_add_member(body, "model", req->model);
    }

    agent_chat_comma(body);
    agent_buf_add_lit(body, "\"messages\":[");
    agent_chat_add_system(body, req);

    for (i = 0; i < req->nmessages; i++) {
        agent_chat_add_message(body, &req->messages[i]);
    }

    agent_buf_add_lit(body, "],\"stream\":true");

    if (!agent_chat_add_default(body, req, "stream_options")) {
        agent_buf_add_lit(body, ",\"stream_options\":{\"include_usage\":true}");
    }

    if (req->ntools != 0) {
        agent_buf_add_lit(body, ",\"tools\":[");

        for (i = 0; i < req->ntools; i++) {
            agent_chat_add_tool(body, &req->tools[i]);
        }

        agent_buf_add_char(body, ']');
    }

    agent_chat_add_params(body, req, req->set, req->nset);
    agent_chat_add_params(body, req, req->overrides, req->noverrides);

    agent_buf_add_char(body, '}');

    return agent_buf_ok(body) ? AGENT_OK : AGENT_NOMEM;
}
