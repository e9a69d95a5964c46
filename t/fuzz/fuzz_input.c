/*
 * The input of a run: what is refused has a reason, what is accepted is as
 * agent_message.h promises, and the body made from it is JSON that a provider
 * can take and the built-in model answers.
 *
 * The input: a line of options, numbers in the low six bits of its bytes, then
 * the body.  The first has a bit for each role that may not enter, the second
 * the bits of OPTION_*.
 */

#include "agent_codec.h"
#include "agent_echo.h"
#include "agent_message.h"
#include "collect.h"

#include <assert.h>
#include <stdint.h>

enum {
    OPTION_NO_ACTIVITY = 1,
    OPTION_NO_TOOLS = 2,
    OPTION_FEW = 4,
    OPTION_SYSTEM = 8
};

#define MAX_ECHO 2048 /* bytes of a body that the model echo is asked */

/* As agent_json_load() reads: an integer of more than 64 bits makes reals of
 * all. */
static json_t *
load(agent_str_t s, size_t flags)
{
    json_t *v;
    json_error_t error;

    flags |= JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    v = json_loadb(s.data, s.len, flags, &error);

    if (v == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        v = json_loadb(s.data, s.len, flags | JSON_DECODE_INT_AS_REAL, NULL);
    }

    return v;
}

/* "raw" is the JSON of a value of the tree. */
static int
stands_for(agent_str_t raw, const json_t *value)
{
    json_t *v = load(raw, JSON_DECODE_ANY);
    int yes = json_equal(v, value);

    json_decref(v);

    if (!yes) {
        /* the integer that made reals of all may be elsewhere */

        v = load(raw, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL);
        yes = json_equal(v, value);
        json_decref(v);
    }

    return yes;
}

static void
check_refusal(agent_rc_t rc, const agent_fault_t *fault)
{
    size_t i;
    agent_str_t s = {fault->message, strlen(fault->message)};

    assert(rc == AGENT_INVALID || rc == AGENT_TOO_LARGE);
    assert(fault->code == (rc == AGENT_INVALID ? AGENT_CODE_BAD_REQUEST
                                               : AGENT_CODE_TOO_LARGE));
    assert(s.len != 0 && s.len < sizeof(fault->message));
    assert(agent_utf8_valid(s) == s.len);

    for (i = 0; i < s.len; i++) {
        assert((unsigned char) s.data[i] >= 0x20);
    }
}

/* --- messages ------------------------------------------------------------- */

static int
is_one_of(const char *s, const char *const *words)
{
    while (*words != NULL && strcmp(*words, s) != 0) {
        words++;
    }

    return *words != NULL;
}

static int
is_id(const json_t *v)
{
    agent_str_t s = {json_string_value(v), json_string_length(v)};

    return json_is_string(v) && agent_id_check(s) == NULL;
}

static void
check_calls(const json_t *calls)
{
    size_t i;
    const json_t *call, *function;

    assert(json_is_array(calls) && json_array_size(calls) != 0);

    for (i = 0; i < json_array_size(calls); i++) {
        call = json_array_get(calls, i);
        function = json_object_get(call, "function");

        assert(is_id(json_object_get(call, "id")));
        assert(strcmp(json_string_value(json_object_get(call, "type")),
                      "function") == 0);
        assert(json_string_length(json_object_get(function, "name")) != 0);
        assert(json_is_string(json_object_get(function, "arguments")));
        assert(json_object_size(function) == 2);
    }
}

static void
check_parts(const json_t *parts)
{
    size_t i;
    const char *type;
    const json_t *part, *source;
    static const char *const types[] = {"text",  "image",    "audio",
                                        "video", "document", NULL};
    static const char *const sources[] = {"data", "url", "file", NULL};

    for (i = 0; i < json_array_size(parts); i++) {
        part = json_array_get(parts, i);
        type = json_string_value(json_object_get(part, "type"));
        source = json_object_get(part, "source");

        assert(type != NULL && is_one_of(type, types));

        if (strcmp(type, "text") == 0) {
            assert(json_is_string(json_object_get(part, "text")));
        } else {
            type = json_string_value(json_object_get(source, "type"));
            assert(type != NULL && is_one_of(type, sources));
            assert(json_is_string(json_object_get(source, "value")));
        }
    }
}

/* Only known members, each of its type. */
static void
check_members(const agent_message_t *m)
{
    json_t *v;
    const char *key;
    const json_t *content = json_object_get(m->json, "content");
    static const char *const members[] = {
        "id",   "role",      "subagentRunId", "metadata", "encryptedValue",
        "name", "toolCalls", "toolCallId",    "error",    "activityType",
        NULL};

    json_object_foreach(m->json, key, v)
    {
        assert(!json_is_null(v));

        if (strcmp(key, "content") == 0) {
            continue;
        }

        assert(is_one_of(key, members));

        if (strcmp(key, "toolCalls") == 0) {
            assert(m->role == AGENT_ROLE_ASSISTANT);
            check_calls(v);
        } else if (strcmp(key, "toolCallId") == 0) {
            assert(m->role == AGENT_ROLE_TOOL && is_id(v));
        } else {
            assert(strcmp(key, "metadata") == 0 ? json_is_object(v)
                                                : json_is_string(v));
        }
    }

    switch (m->role) {
    case AGENT_ROLE_USER:
    case AGENT_ROLE_TOOL:
        assert(json_is_string(content) || json_is_array(content));
        assert(m->role == AGENT_ROLE_TOOL || json_is_string(content) ||
               json_array_size(content) != 0);
        assert(m->role == AGENT_ROLE_USER ||
               json_object_get(m->json, "toolCallId") != NULL);
        check_parts(content);
        break;
    case AGENT_ROLE_ACTIVITY:
        assert(json_is_object(content));
        break;
    case AGENT_ROLE_ASSISTANT:
        assert(content == NULL || json_is_string(content));
        break;
    default:
        assert(json_is_string(content));
    }
}

static void
check_message(const agent_message_t *m, unsigned roles)
{
    agent_str_t s;
    const json_t *id = json_object_get(m->json, "id");

    assert(m->role < AGENT_ROLE_UNKNOWN && (roles & AGENT_ROLE_BIT(m->role)));
    assert(agent_json_str(m->json, "role", &s));
    assert(agent_str_eq(s, agent_role_name(m->role)));

    if (id != NULL) {
        assert(is_id(id) && m->id.data == json_string_value(id));
        assert(m->id.len == json_string_length(id));
    } else {
        assert(m->id.len == 0);
    }

    check_members(m);
}

/* --- pairs ---------------------------------------------------------------- */

/* What every provider demands, of AG-UI messages and of those of a body: each
 * call is answered right behind it, nothing else is. */
static void
check_pairs(const json_t *messages, const char *calls_key, const char *id_key)
{
    size_t i, k;
    const char *role, *last = "", *id;
    json_t *open = json_object(), *m, *calls, *n;

    for (i = 0; i < json_array_size(messages); i++) {
        m = json_array_get(messages, i);
        role = json_string_value(json_object_get(m, "role"));
        assert(role != NULL);

        if (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0) {
            last = role;
        }

        if (strcmp(role, "tool") == 0) {
            id = json_string_value(json_object_get(m, id_key));
            assert(id != NULL);
            n = json_object_get(open, id);
            assert(n != NULL); /* a call waits for it */

            json_integer_set(n, json_integer_value(n) - 1);
            if (json_integer_value(n) == 0) {
                json_object_del(open, id);
            }

            continue;
        }

        assert(json_object_size(open) == 0);
        calls = json_object_get(m, calls_key);

        for (k = 0; k < json_array_size(calls); k++) {
            id = json_string_value(
                json_object_get(json_array_get(calls, k), "id"));
            assert(id != NULL);
            n = json_object_get(open, id);

            json_object_set_new(
                open, id,
                json_integer(n != NULL ? json_integer_value(n) + 1 : 1));
        }
    }

    assert(json_object_size(open) == 0);
    assert(strcmp(last, "user") == 0 || strcmp(last, "tool") == 0);

    json_decref(open);
}

/* A new reference. */
static json_t *
messages_of(const agent_input_t *in)
{
    size_t i;
    json_t *list = json_array();

    for (i = 0; i < in->nmessages; i++) {
        json_array_append(list, in->messages[i].json);
    }

    return list;
}

static size_t
count_role(const agent_input_t *in, agent_role_t role)
{
    size_t i, n = 0;

    for (i = 0; i < in->nmessages; i++) {
        n += in->messages[i].role == role;
    }

    return n;
}

/* Pairs the messages; 0 when they are refused. */
static int
pair(agent_input_t *in)
{
    size_t i;
    size_t users = count_role(in, AGENT_ROLE_USER);
    size_t systems = count_role(in, AGENT_ROLE_SYSTEM);
    unsigned stripped;
    agent_rc_t rc;
    json_t *once, *twice, *sent = json_deep_copy(in->sent);
    agent_fault_t fault;

    memset(&fault, 0, sizeof(agent_fault_t));
    rc = agent_input_pair(in, &fault);

    if (rc != AGENT_OK) {
        check_refusal(rc, &fault);
        assert(users == 0);
        json_decref(sent);
        return 0;
    }

    assert(count_role(in, AGENT_ROLE_USER) == users);
    assert(count_role(in, AGENT_ROLE_SYSTEM) == systems);

    for (i = 0; i < in->nmessages; i++) {
        /* a stand-in has the role tool, whatever may enter */
        check_message(&in->messages[i], ~0u);
    }

    once = messages_of(in);
    check_pairs(once, "toolCalls", "toolCallId");

    /* what is repaired needs no repair */

    stripped = in->stripped;
    rc = agent_input_pair(in, &fault);
    assert(rc == AGENT_OK && in->stripped == stripped);

    twice = messages_of(in);
    assert(json_equal(once, twice));
    assert(json_equal(in->sent, sent)); /* nothing of this is the client's */

    json_decref(sent);
    json_decref(once);
    json_decref(twice);

    return 1;
}

/* What the client holds: all messages of known roles, those that entered among
 * them in the same order. */
static void
check_sent(const agent_input_t *in)
{
    size_t i, k = 0;
    agent_str_t role;
    agent_message_t m;

    for (i = 0; i < json_array_size(in->sent); i++) {
        memset(&m, 0, sizeof(agent_message_t));
        m.json = json_array_get(in->sent, i);
        assert(agent_json_str(m.json, "role", &role));
        m.role = agent_role_parse(role);
        assert(m.role != AGENT_ROLE_UNKNOWN);
        check_members(&m);

        k += k < in->nmessages && in->messages[k].json == m.json;
    }

    assert(k == in->nmessages);
}

/* --- the rest of the input ------------------------------------------------ */

static void
check_string(agent_str_t got, const char *key, const json_t *object)
{
    agent_str_t s = {"", 0};

    (void) agent_json_str(object, key, &s);
    assert(agent_str_eq(got, s));
}

static void
check_input(const agent_input_t *in, const agent_input_rules_t *rules)
{
    size_t i;
    json_t *v, *list = json_object_get(in->root, "tools");

    assert(in->nmessages != 0);

    for (i = 0; i < in->nmessages; i++) {
        check_message(&in->messages[i], rules->roles);
    }

    check_sent(in);

    assert(in->thread_id.len == 0 || agent_id_check(in->thread_id) == NULL);
    assert(in->run_id.len == 0 || agent_id_check(in->run_id) == NULL);
    assert(in->parent_run_id.len == 0 ||
           agent_id_check(in->parent_run_id) == NULL);

    assert(in->ntools == (rules->client_tools ? json_array_size(list) : 0));

    for (i = 0; i < in->ntools; i++) {
        v = json_array_get(list, i);
        assert(in->tools[i].name.len != 0);
        check_string(in->tools[i].name, "name", v);
        check_string(in->tools[i].description, "description", v);

        v = json_object_get(v, "parameters");
        assert((in->tools[i].parameters.len != 0) == (v != NULL));
        assert(v == NULL || stands_for(in->tools[i].parameters, v));
    }

    list = json_object_get(in->root, "context");
    assert(in->ncontext == json_array_size(list));

    for (i = 0; i < in->ncontext; i++) {
        v = json_array_get(list, i);
        check_string(in->context[i].description, "description", v);
        check_string(in->context[i].value, "value", v);
    }

    v = json_object_get(in->root, "state");
    assert((in->state.len != 0) == (v != NULL));
    assert(v == NULL || stands_for(in->state, v));

    v = json_object_get(in->root, "forwardedProps");
    assert((in->forwarded_props.len != 0) == json_is_object(v));
    assert(!json_is_object(v) || stands_for(in->forwarded_props, v));
}

/* --- the body of the model call ------------------------------------------- */

/* The built-in model answers it, and the answer is a good one. */
static void
check_echo(agent_str_t body)
{
    agent_rc_t rc;
    agent_buf_t out;
    agent_echo_t *echo = agent_echo_create(body, &agent_alloc_libc);
    collect_t c;
    collect_head_t head;

    assert(echo != NULL);
    agent_buf_init(&out, &agent_alloc_libc);

    do {
        rc = agent_echo_next(echo, 7, &out);
    } while (rc == AGENT_OK);

    assert(rc == AGENT_DONE);
    agent_echo_destroy(echo);

    memset(&head, 0, sizeof(collect_head_t));
    rc = collect_answer(&c, &head, out.data, out.len, 0);
    assert(rc == AGENT_DONE && c.nfinish == 1 && c.nwrong == 0);

    collect_free(&c);
    agent_buf_free(&out);
}

static void
check_body(agent_str_t body, const agent_request_t *req)
{
    size_t i, n = req->system.len != 0 || req->ncontext != 0;
    json_t *root, *messages;

    for (i = 0; i < req->nmessages; i++) {
        n += req->messages[i].role < AGENT_ROLE_REASONING;
    }

    root = load(body, 0);
    assert(json_is_object(root));

    messages = json_object_get(root, "messages");
    assert(json_array_size(messages) == n);
    check_pairs(messages, "tool_calls", "tool_call_id");

    assert(json_is_true(json_object_get(root, "stream")));
    assert(json_array_size(json_object_get(root, "tools")) == req->ntools);

    json_decref(root);

    if (body.len <= MAX_ECHO) {
        check_echo(body);
    }
}

/* A name of a tool that providers take. */
static int
is_tool_name(agent_str_t s)
{
    size_t i;
    static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

    for (i = 0; i < s.len; i++) {
        if (memchr(chars, s.data[i], sizeof(chars) - 1) == NULL) {
            return 0;
        }
    }

    return s.len != 0 && s.len <= 64;
}

static void
check_request(const agent_input_t *in, int has_system)
{
    size_t i;
    agent_rc_t rc;
    agent_buf_t body;
    agent_fault_t fault;
    agent_param_t overrides[8];
    agent_request_t req;
    static const agent_str_t keys[] = {
        agent_str("model"),  agent_str("temperature"),
        agent_str("stop"),   agent_str("stream_options"),
        agent_str("stream"), agent_str("messages"),
        agent_str("tools"),  agent_str("tokens_per_second")};
    static const agent_param_t set[] = {
        {agent_str("temperature"), agent_str("0.5")},
        {agent_str("stop"), agent_str("[\"x\"]")}};

    memset(&req, 0, sizeof(agent_request_t));
    memset(&fault, 0, sizeof(agent_fault_t));

    req.model = AGENT_STR("m");
    req.system = has_system ? AGENT_STR("You \"are\".\n") : AGENT_STR("");
    req.messages = in->messages;
    req.nmessages = in->nmessages;
    req.tools = in->tools;
    req.ntools = in->ntools;
    req.context = in->context;
    req.ncontext = in->ncontext;
    req.set = set;
    req.nset = sizeof(set) / sizeof(set[0]);
    req.overrides = overrides;

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (agent_json_find(in->forwarded_props, keys[i],
                            &overrides[req.noverrides].value) == AGENT_OK) {
            overrides[req.noverrides++].key = keys[i];
        }
    }

    agent_buf_init(&body, &agent_alloc_libc);
    rc = agent_codec_find(AGENT_STR("openai"))->request(&body, &req, &fault);

    for (i = 0; i < in->ntools && is_tool_name(in->tools[i].name);) {
        i++;
    }

    if (rc == AGENT_OK) {
        assert(i == in->ntools);
        check_body(agent_buf_str(&body), &req);
    } else {
        assert(i < in->ntools);
        check_refusal(rc, &fault);
    }

    agent_buf_free(&body);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *eol = size != 0 ? memchr(data, '\n', size) : NULL;
    unsigned options = 0;
    agent_rc_t rc;
    agent_str_t body;
    agent_fault_t fault;
    agent_input_t in;
    agent_input_rules_t rules = {0x7f, 1, 128, 1000000, 0}; /* the endpoint's */

    if (eol == NULL) {
        return 0;
    }

    if (eol > data) {
        rules.roles ^= data[0] & 0x3fu;
    }

    if (eol > data + 1) {
        options = data[1];
    }

    if (options & OPTION_NO_ACTIVITY) {
        rules.roles ^= AGENT_ROLE_BIT(AGENT_ROLE_ACTIVITY);
    }

    rules.client_tools = !(options & OPTION_NO_TOOLS);
    rules.max_messages = options & OPTION_FEW ? 3 : 0;

    body.data = (const char *) eol + 1;
    body.len = size - (size_t) (eol - data) - 1;

    rc = agent_input_parse(&in, body, &rules, &agent_alloc_libc, &fault);

    if (rc != AGENT_OK) {
        check_refusal(rc, &fault);

    } else {
        check_input(&in, &rules);

        if (pair(&in)) {
            check_request(&in, (options & OPTION_SYSTEM) != 0);
        }
    }

    agent_input_free(&in);

    return 0;
}
