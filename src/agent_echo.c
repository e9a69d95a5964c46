#include "agent_echo.h"
#include "agent_json.h"

#include <string.h>
#include <strings.h>

#define AGENT_ECHO_RATE      50 /* tokens per second */
#define AGENT_ECHO_MAX_RATE  1000000
#define AGENT_ECHO_MAX_CALLS 8
#define AGENT_ECHO_MAX_TOKEN 24 /* bytes of a word: not all scripts have any */
#define AGENT_ECHO_MAX_DEPTH 8  /* of a made-up argument */

/* Names of tools are looked for in that much of a question, and arguments grow
 * to that: what a request costs must not be the product of its parts. */
#define AGENT_ECHO_MAX_QUESTION 4096
#define AGENT_ECHO_MAX_ARGS     ((size_t) 64 << 10)

typedef struct {
    agent_str_t name; /* borrowed from the body */
    size_t end;       /* of its arguments in e->text */
} agent_echo_call_t;

struct agent_echo_s {
    const agent_alloc_t *alloc;
    json_t *root; /* the body, owned */
    agent_str_t model;
    unsigned rate;

    /* the answer: a text, or the arguments of calls one behind the other */
    agent_buf_t text;
    agent_echo_call_t calls[AGENT_ECHO_MAX_CALLS];
    unsigned ncalls;

    /* what has been said of it */
    size_t pos;
    unsigned call;       /* the one being said */
    unsigned opened : 1; /* its name has been */
    unsigned begun : 1;
    unsigned done : 1;

    size_t nmessages; /* makes ids of calls unique in a conversation */
    uint64_t input;   /* words */
    uint64_t output;  /* tokens */
};

static inline int
agent_echo_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static inline int
agent_echo_is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static agent_str_t
agent_echo_trim(agent_str_t s)
{
    while (s.len != 0 && agent_echo_is_space(s.data[0])) {
        s.data++;
        s.len--;
    }

    while (s.len != 0 && (agent_echo_is_space(s.data[s.len - 1]) ||
                          memchr(".?!", s.data[s.len - 1], 3) != NULL)) {
        s.len--;
    }

    return s;
}

/* Where "words" last stands in s, in any case; NULL: nowhere. */
static const char *
agent_echo_find(agent_str_t s, const char *words)
{
    size_t n = strlen(words), i;

    for (i = s.len >= n ? s.len - n + 1 : 0; i-- > 0; /* void */) {
        if (strncasecmp(s.data + i, words, n) == 0) {
            return s.data + i;
        }
    }

    return NULL;
}

/* --- the conversation ----------------------------------------------------- */

static int
agent_echo_has_role(const json_t *message, const char *role)
{
    agent_str_t s, want = {role, strlen(role)};

    return agent_json_str(message, "role", &s) && agent_str_eq(s, want);
}

/* Adds the text of a message: its content, or that of its parts. */
static void
agent_echo_add_text(agent_buf_t *b, const json_t *message)
{
    size_t i;
    agent_str_t s;
    const json_t *content = json_object_get(message, "content");

    if (agent_json_str(message, "content", &s)) {
        agent_buf_add_str(b, s);
        return;
    }

    for (i = 0; i < json_array_size(content); i++) {
        if (agent_json_str(json_array_get(content, i), "text", &s)) {
            agent_buf_add_str(b, s);
        }
    }
}

static uint64_t
agent_echo_words(agent_str_t s)
{
    size_t i;
    uint64_t n = 0;
    int space = 1;

    for (i = 0; i < s.len; i++) {
        n += space && !agent_echo_is_space(s.data[i]);
        space = agent_echo_is_space(s.data[i]);
    }

    return n;
}

/* X of the last "My name is X." in s. */
static int
agent_echo_name(agent_str_t s, agent_str_t *name)
{
    static const char words[] = "my name is ";
    const char *p, *end = s.data + s.len;

    p = agent_echo_find(s, words);
    if (p == NULL) {
        return 0;
    }

    p += sizeof(words) - 1;

    name->data = p;

    while (p < end && strchr(".!?,;\n", *p) == NULL) {
        p++;
    }

    name->len = (size_t) (p - name->data);
    *name = agent_echo_trim(*name);

    return name->len != 0;
}

/* The names of called tools by the ids of their calls: a new reference, NULL
 * when memory ran out. */
static json_t *
agent_echo_called(const json_t *messages)
{
    size_t i, j;
    json_t *names = json_object(), *calls, *call, *name;
    const char *id;

    for (i = 0; i < json_array_size(messages); i++) {
        calls = json_object_get(json_array_get(messages, i), "tool_calls");

        for (j = 0; j < json_array_size(calls); j++) {
            call = json_array_get(calls, j);
            id = json_string_value(json_object_get(call, "id"));
            name = json_object_get(json_object_get(call, "function"), "name");

            if (id != NULL && json_is_string(name) &&
                json_object_set(names, id, name) != 0) {
                json_decref(names);
                return NULL;
            }
        }
    }

    return names;
}

/* --- answers -------------------------------------------------------------- */

static void
agent_echo_answer_name(agent_echo_t *e, const json_t *messages)
{
    size_t i;
    agent_buf_t b;
    agent_str_t name;
    const json_t *message;

    agent_buf_init(&b, e->alloc);

    for (i = json_array_size(messages); i-- > 0; /* void */) {
        message = json_array_get(messages, i);

        if (!agent_echo_has_role(message, "user")) {
            continue;
        }

        b.len = 0;
        agent_echo_add_text(&b, message);

        if (agent_echo_name(agent_buf_str(&b), &name)) {
            agent_buf_add_lit(&e->text, "Your name is ");
            agent_buf_add_str(&e->text, name);
            agent_buf_add_char(&e->text, '.');
            break;
        }
    }

    if (e->text.len == 0) {
        agent_buf_add_lit(&e->text, "I do not know your name.");
    }

    e->text.failed |= b.failed;
    agent_buf_free(&b);
}

static void
agent_echo_answer_results(agent_echo_t *e, const json_t *messages)
{
    size_t i, n = json_array_size(messages), first = n;
    json_t *names = agent_echo_called(messages);
    agent_str_t id, name;
    const json_t *message;

    e->text.failed |= names == NULL;

    while (first > 0 &&
           agent_echo_has_role(json_array_get(messages, first - 1), "tool")) {
        first--;
    }

    for (i = first; i < n; i++) {
        message = json_array_get(messages, i);

        if (!agent_json_str(message, "tool_call_id", &id)) {
            id = AGENT_STR("");
        }

        if (i != first) {
            agent_buf_add_char(&e->text, ' ');
        }

        if (!agent_json_str(names, id.data, &name)) {
            name = AGENT_STR("tool");
        }

        agent_buf_add_str(&e->text, name);
        agent_buf_add_lit(&e->text, " says: ");
        agent_echo_add_text(&e->text, message);
    }

    json_decref(names);
}

static void
agent_echo_dump(agent_buf_t *b, const json_t *value)
{
    size_t n = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);

    if (n == 0 || agent_buf_reserve(b, n) != AGENT_OK ||
        json_dumpb(value, b->data + b->len, n,
                   JSON_COMPACT | JSON_ENCODE_ANY) != n) {
        b->failed = 1; /* an allocation of jansson's */
        return;
    }

    b->len += n;
}

static agent_str_t
agent_echo_type(const json_t *schema)
{
    agent_str_t s = AGENT_STR("string");
    const json_t *type = json_object_get(schema, "type");

    if (json_is_array(type)) {
        type = json_array_get(type, 0);
    }

    if (json_is_string(type)) {
        s.data = json_string_value(type);
        s.len = json_string_length(type);

    } else if (json_is_object(json_object_get(schema, "properties"))) {
        s = AGENT_STR("object");
    }

    return s;
}

static void agent_echo_value(agent_buf_t *b, const json_t *schema,
                             agent_str_t words, unsigned depth);

/* The required members. */
static void
agent_echo_object(agent_buf_t *b, const json_t *schema, agent_str_t words,
                  unsigned depth)
{
    size_t i, n = 0;
    agent_str_t key;
    const json_t *required = json_object_get(schema, "required"), *name;
    const json_t *properties = json_object_get(schema, "properties");

    agent_buf_add_char(b, '{');

    for (i = 0; depth > 0 && i < json_array_size(required) &&
                b->len < AGENT_ECHO_MAX_ARGS;
         i++) {
        name = json_array_get(required, i);
        key.data = json_string_value(name);
        key.len = json_string_length(name);

        if (key.data != NULL) {
            if (n++ != 0) {
                agent_buf_add_lit(b, ", ");
            }

            agent_json_quote(b, key);
            agent_buf_add_lit(b, ": ");
            agent_echo_value(b, json_object_get(properties, key.data), words,
                             depth - 1);
        }
    }

    agent_buf_add_char(b, '}');
}

/* A value that the schema accepts: what it names itself, else something plain;
 * strings are "words". */
static void
agent_echo_value(agent_buf_t *b, const json_t *schema, agent_str_t words,
                 unsigned depth)
{
    static const struct {
        const char *type;
        const char *value;
    } plain[] = {
        {"integer", "1"},    {"number", "1"},  {"array", "[]"},
        {"boolean", "true"}, {"null", "null"},
    };
    size_t i;
    agent_str_t type = agent_echo_type(schema);
    const json_t *given = json_array_get(json_object_get(schema, "enum"), 0);

    if (given == NULL) {
        given = json_object_get(schema, "const");
    }

    if (given == NULL) {
        given = json_object_get(schema, "default");
    }

    if (given == NULL) {
        given = json_object_get(schema, "minimum");
    }

    if (given != NULL) {
        agent_echo_dump(b, given);
        return;
    }

    if (agent_str_eq(type, AGENT_STR("object"))) {
        agent_echo_object(b, schema, words, depth);
        return;
    }

    for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        if (type.len == strlen(plain[i].type) &&
            memcmp(type.data, plain[i].type, type.len) == 0) {
            agent_buf_add(b, plain[i].value, strlen(plain[i].value));
            return;
        }
    }

    agent_json_quote(b, words);
}

/* Where the tool's name stands in the text as a word of its own. */
static const char *
agent_echo_names(agent_str_t text, agent_str_t tool)
{
    size_t i;
    const char *p, *end = text.data + text.len;

    for (i = 0; tool.len != 0 && i + tool.len <= text.len; i++) {
        p = text.data + i;

        if (memcmp(p, tool.data, tool.len) == 0 &&
            (i == 0 || !agent_echo_is_name(p[-1])) &&
            (p + tool.len == end || !agent_echo_is_name(p[tool.len]))) {
            return p + tool.len;
        }
    }

    return NULL;
}

/* "Berlin" of "call get_weather for Berlin, please." */
static agent_str_t
agent_echo_subject(agent_str_t text, const char *behind)
{
    const char *end = text.data + text.len, *p = behind;
    agent_str_t s;
    size_t n;

    while (p < end && *p != ',' && *p != '\n') {
        p++;
    }

    s.data = behind;
    s.len = (size_t) (p - behind);
    s = agent_echo_trim(s);

    if ((s.len > 4 && memcmp(s.data, "for ", 4) == 0) ||
        (s.len > 3 && memcmp(s.data, "in ", 3) == 0)) {
        n = s.data[0] == 'f' ? 4 : 3;
        s.data += n;
        s.len -= n;
    }

    return s.len != 0 ? s : AGENT_STR("example");
}

/* A call of each tool that the text names. */
static void
agent_echo_answer_calls(agent_echo_t *e, agent_str_t text)
{
    size_t i;
    agent_str_t name;
    const char *behind;
    const json_t *tools = json_object_get(e->root, "tools");
    const json_t *function, *schema;
    agent_echo_call_t *call;

    if (text.len > AGENT_ECHO_MAX_QUESTION) {
        text.len = AGENT_ECHO_MAX_QUESTION;
        text.len = agent_utf8_valid(text);
    }

    for (i = 0; i < json_array_size(tools); i++) {
        function = json_object_get(json_array_get(tools, i), "function");

        if (!agent_json_str(function, "name", &name)) {
            continue;
        }

        behind = agent_echo_names(text, name);

        if (behind == NULL || e->ncalls == AGENT_ECHO_MAX_CALLS) {
            continue;
        }

        call = &e->calls[e->ncalls++];
        call->name = name;
        schema = json_object_get(function, "parameters");

        if (agent_str_eq(agent_echo_type(schema), AGENT_STR("object"))) {
            agent_echo_value(&e->text, schema, agent_echo_subject(text, behind),
                             AGENT_ECHO_MAX_DEPTH);
        } else {
            agent_buf_add_lit(&e->text, "{}");
        }

        call->end = e->text.len;
    }
}

static void
agent_echo_answer(agent_echo_t *e)
{
    size_t i;
    agent_buf_t b;
    agent_str_t text;
    const json_t *messages = json_object_get(e->root, "messages"), *last;

    agent_buf_init(&b, e->alloc);

    for (i = 0; i < json_array_size(messages); i++) {
        b.len = 0;
        agent_echo_add_text(&b, json_array_get(messages, i));
        e->input += agent_echo_words(agent_buf_str(&b));
    }

    e->nmessages = i;

    last = json_array_get(messages, e->nmessages - 1);
    text = agent_buf_str(&b);

    if (agent_echo_has_role(last, "tool")) {
        agent_echo_answer_results(e, messages);

    } else if (agent_echo_find(text, "what is my name") != NULL ||
               agent_echo_find(text, "what's my name") != NULL) {
        agent_echo_answer_name(e, messages);

    } else {
        agent_echo_answer_calls(e, text);

        if (e->ncalls == 0) {
            agent_buf_add_lit(&e->text, "You said: ");
            agent_buf_add_str(&e->text, text);
        }
    }

    e->text.failed |= b.failed;
    agent_buf_free(&b);
}

/* --- life ----------------------------------------------------------------- */

agent_echo_t *
agent_echo_create(agent_str_t body, const agent_alloc_t *alloc)
{
    int nomem;
    double rate;
    const json_t *v;
    agent_echo_t *e;

    e = agent_calloc(alloc, sizeof(agent_echo_t));
    if (e == NULL) {
        return NULL;
    }

    e->alloc = alloc;
    e->rate = AGENT_ECHO_RATE;
    e->model = AGENT_STR("echo");
    agent_buf_init(&e->text, alloc);

    e->root = agent_json_load_lenient(body, alloc, &nomem);

    if (json_array_size(json_object_get(e->root, "messages")) == 0) {
        agent_echo_destroy(e);
        return NULL;
    }

    (void) agent_json_str(e->root, "model", &e->model);

    v = json_object_get(e->root, "tokens_per_second");
    rate = json_number_value(v);

    if (json_is_number(v) && rate >= 0 && rate <= AGENT_ECHO_MAX_RATE) {
        e->rate = (unsigned) rate;
        e->rate += e->rate < rate;
    }

    agent_echo_answer(e);

    if (!agent_buf_ok(&e->text)) {
        agent_echo_destroy(e);
        return NULL;
    }

    return e;
}

void
agent_echo_destroy(agent_echo_t *e)
{
    if (e == NULL) {
        return;
    }

    json_decref(e->root);
    agent_buf_free(&e->text);
    agent_free(e->alloc, e);
}

unsigned
agent_echo_rate(const agent_echo_t *e)
{
    return e->rate;
}

/* --- the stream ----------------------------------------------------------- */

static void
agent_echo_open_chunk(const agent_echo_t *e, agent_buf_t *out)
{
    agent_buf_add_lit(out, "data: {\"id\":\"echo\","
                           "\"object\":\"chat.completion.chunk\","
                           "\"created\":0,\"model\":");
    agent_json_quote(out, e->model);
    agent_buf_add_lit(out, ",\"choices\":[");
}

static void
agent_echo_open_delta(const agent_echo_t *e, agent_buf_t *out)
{
    agent_echo_open_chunk(e, out);
    agent_buf_add_lit(out, "{\"index\":0,\"delta\":{");
}

static void
agent_echo_close_delta(agent_buf_t *out)
{
    agent_buf_add_lit(out, "},\"finish_reason\":null}]}\n\n");
}

/* The next token before "end": a word with the blanks before it, and those
 * behind it when it is the last; a long word in pieces. */
static agent_str_t
agent_echo_token(agent_echo_t *e, size_t end)
{
    size_t p = e->pos, word;
    agent_str_t s;

    while (p < end && agent_echo_is_space(e->text.data[p])) {
        p++;
    }

    word = p;

    while (p < end && !agent_echo_is_space(e->text.data[p])) {
        if (p - word >= AGENT_ECHO_MAX_TOKEN &&
            ((unsigned char) e->text.data[p] & 0xc0) != 0x80) {
            break;
        }

        p++;
    }

    for (word = p; word < end && agent_echo_is_space(e->text.data[word]);
         word++) {
        /* void */
    }

    if (word == end) {
        p = end;
    }

    s.data = e->text.data + e->pos;
    s.len = p - e->pos;
    e->pos = p;

    return s;
}

static void
agent_echo_say_call(agent_echo_t *e, agent_buf_t *out)
{
    const agent_echo_call_t *call = &e->calls[e->call];

    agent_echo_open_delta(e, out);
    agent_buf_add_lit(out, "\"tool_calls\":[{\"index\":");
    agent_buf_add_uint(out, e->call);

    if (!e->opened) {
        agent_buf_add_lit(out, ",\"id\":\"call_echo_");
        agent_buf_add_uint(out, e->nmessages);
        agent_buf_add_char(out, '_');
        agent_buf_add_uint(out, e->call);
        agent_buf_add_lit(out, "\",\"type\":\"function\",\"function\":"
                               "{\"name\":");
        agent_json_quote(out, call->name);
        agent_buf_add_lit(out, ",\"arguments\":\"\"}}]");
        e->opened = 1;

    } else {
        agent_buf_add_lit(out, ",\"function\":{\"arguments\":");
        agent_json_quote(out, agent_echo_token(e, call->end));
        agent_buf_add_lit(out, "}}]");
    }

    agent_echo_close_delta(out);

    if (e->pos == call->end) {
        e->opened = 0;
        e->call++;
    }
}

static void
agent_echo_say_text(agent_echo_t *e, agent_buf_t *out)
{
    agent_echo_open_delta(e, out);
    agent_buf_add_lit(out, "\"content\":");
    agent_json_quote(out, agent_echo_token(e, e->text.len));
    agent_echo_close_delta(out);
}

static void
agent_echo_say_end(const agent_echo_t *e, agent_buf_t *out)
{
    agent_echo_open_chunk(e, out);
    agent_buf_add_lit(out, "{\"index\":0,\"delta\":{},\"finish_reason\":");

    if (e->ncalls != 0) {
        agent_buf_add_lit(out, "\"tool_calls\"}]}\n\n");
    } else {
        agent_buf_add_lit(out, "\"stop\"}]}\n\n");
    }

    agent_echo_open_chunk(e, out);
    agent_buf_add_lit(out, "],\"usage\":{\"prompt_tokens\":");
    agent_buf_add_uint(out, e->input);
    agent_buf_add_lit(out, ",\"completion_tokens\":");
    agent_buf_add_uint(out, e->output);
    agent_buf_add_lit(out, ",\"total_tokens\":");
    agent_buf_add_uint(out, e->input + e->output);
    agent_buf_add_lit(out, "}}\n\ndata: [DONE]\n\n");
}

agent_rc_t
agent_echo_next(agent_echo_t *e, unsigned n, agent_buf_t *out)
{
    if (e->done) {
        return AGENT_DONE;
    }

    if (!e->begun) {
        e->begun = 1;
        agent_echo_open_delta(e, out);
        agent_buf_add_lit(out, "\"role\":\"assistant\",\"content\":\"\"");
        agent_echo_close_delta(out);
    }

    while (n-- > 0 && e->pos < e->text.len) {
        e->output++;

        if (e->ncalls != 0) {
            agent_echo_say_call(e, out);
        } else {
            agent_echo_say_text(e, out);
        }
    }

    if (e->pos == e->text.len) {
        e->done = 1;
        agent_echo_say_end(e, out);
    }

    if (!agent_buf_ok(out)) {
        return AGENT_NOMEM;
    }

    return e->done ? AGENT_DONE : AGENT_OK;
}
