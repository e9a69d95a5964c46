/* The body of a chat-completions call. */

#include "agent_chat.h"
#include "collect.h"
#include "tap.h"

#define MAX 16

/* A request as the caller would hold it, made from JSON and strings. */
typedef struct {
    agent_request_t req;
    agent_message_t messages[MAX];
    json_t *json;
} request_t;

/* "messages": a JSON array of AG-UI messages, NULL for none. */
static void
request_init(request_t *r, const char *messages)
{
    size_t i;
    agent_str_t role;

    memset(r, 0, sizeof(request_t));

    r->json =
        json_loads(messages != NULL ? messages : "[]", JSON_ALLOW_NUL, NULL);
    r->req.model = AGENT_STR("m");
    r->req.messages = r->messages;
    r->req.nmessages = json_array_size(r->json);

    for (i = 0; i < r->req.nmessages && i < MAX; i++) {
        static const char *const roles[] = {
            "system", "developer", "user",    "assistant",
            "tool",   "reasoning", "activity"};
        size_t k;

        r->messages[i].json = json_array_get(r->json, i);
        r->messages[i].role = AGENT_ROLE_UNKNOWN;

        (void) agent_json_str(r->messages[i].json, "role", &role);

        for (k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
            if (role.len == strlen(roles[k]) &&
                memcmp(role.data, roles[k], role.len) == 0) {
                r->messages[i].role = (agent_role_t) k;
            }
        }
    }
}

static void
request_is(request_t *r, const char *want, const char *name)
{
    agent_buf_t b;
    agent_rc_t rc;
    agent_fault_t fault;
    json_t *json;

    agent_buf_init(&b, &agent_alloc_libc);

    rc = agent_chat_request(&b, &r->req, &fault);
    json = json_loadb(b.data, b.len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES,
                      NULL);

    ok(rc == AGENT_OK && json != NULL, "%s: a JSON object", name);
    is_bytes(b.data, b.len, want, strlen(want), name);

    json_decref(json);
    json_decref(r->json);
    agent_buf_free(&b);
}

/* Only the messages are looked at. */
static void
messages_are(const char *messages, const char *want, const char *name)
{
    request_t r;
    char whole[4096];

    request_init(&r, messages);
    snprintf(whole, sizeof(whole),
             "{\"model\":\"m\",\"messages\":[%s],\"stream\":true,"
             "\"stream_options\":{\"include_usage\":true}}",
             want);
    request_is(&r, whole, name);
}

#define USER(parts)      "[{\"id\":\"u\",\"role\":\"user\",\"content\":" parts "}]"
#define IS_USER(content) "{\"role\":\"user\",\"content\":" content "}"

static void
test_messages(void)
{
    messages_are(NULL, "", "no messages");
    messages_are(USER("\"Hi \\\"\\u0000\\u00e9\\n\""),
                 IS_USER("\"Hi \\\"\\u0000\xc3\xa9\\n\""), "user");
    messages_are("[{\"id\":\"s\",\"role\":\"system\",\"content\":\"S\"},"
                 "{\"id\":\"d\",\"role\":\"developer\",\"content\":\"D\"}]",
                 "{\"role\":\"system\",\"content\":\"S\"},"
                 "{\"role\":\"developer\",\"content\":\"D\"}",
                 "system and developer");
    messages_are("[{\"id\":\"r\",\"role\":\"reasoning\",\"content\":\"S\"},"
                 "{\"id\":\"a\",\"role\":\"activity\",\"content\":{}}]",
                 "", "reasoning and activity stay here");
    messages_are("[{\"id\":\"a\",\"role\":\"assistant\",\"content\":\"A\"}]",
                 "{\"role\":\"assistant\",\"content\":\"A\"}", "assistant");
    messages_are(
        "[{\"id\":\"a\",\"role\":\"assistant\",\"toolCalls\":[{\"id\":\"c\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"x\\\": 0.1}\"}},{\"id\":\"d\",\"type\":\"function\","
        "\"function\":{\"name\":\"g\",\"arguments\":\" \\n\"}}]},"
        "{\"id\":\"t\",\"role\":\"tool\",\"toolCallId\":\"c\",\"content\":"
        "\"R\"},{\"id\":\"t\",\"role\":\"tool\",\"toolCallId\":\"d\","
        "\"content\":\"\",\"error\":\"timeout\"}]",
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
        "\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"x\\\": 0.1}\"}},{\"id\":\"d\",\"type\":"
        "\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"R\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"d\",\"content\":\"timeout\"}",
        "tool calls and results");
    messages_are(
        "[{\"id\":\"a\",\"role\":\"assistant\",\"content\":\"A\","
        "\"toolCalls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{"
        "\"name\":\"f\",\"arguments\":\"\"}}]},{\"id\":\"t\",\"role\":\"tool\""
        ",\"toolCallId\":\"c\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
        "{\"type\":\"image\",\"source\":{\"type\":\"url\",\"value\":\"u\"}},"
        "{\"type\":\"text\",\"text\":\"y\"}],\"error\":\"e\"}]",
        "{\"role\":\"assistant\",\"content\":\"A\",\"tool_calls\":[{\"id\":"
        "\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\","
        "\"content\":\"x\\ny\"}",
        "text with a call, parts of a result");
}

static void
test_parts(void)
{
    messages_are(
        USER("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\","
             "\"source\":{\"type\":\"url\",\"value\":\"https://x/i.png\"}},"
             "{\"type\":\"image\",\"source\":{\"type\":\"data\",\"value\":"
             "\"QUJD\",\"mimeType\":\"image/png\"}}]"),
        IS_USER("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\","
                "\"image_url\":{\"url\":\"https://x/i.png\"}},{\"type\":"
                "\"image_url\",\"image_url\":{\"url\":"
                "\"data:image/png;base64,QUJD\"}}]"),
        "text and images");
    messages_are(
        USER("[{\"type\":\"audio\",\"source\":{\"type\":\"data\",\"value\":"
             "\"QUJD\",\"mimeType\":\"audio/mpeg\"}},{\"type\":\"audio\","
             "\"source\":{\"type\":\"data\",\"value\":\"QUJD\",\"mimeType\":"
             "\"audio/wav; codecs=1\"}},{\"type\":\"audio\",\"source\":{"
             "\"type\":\"data\",\"value\":\"QUJD\",\"mimeType\":"
             "\"audio/x-wav\"}}]"),
        IS_USER("[{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"QUJD\","
                "\"format\":\"mp3\"}},{\"type\":\"input_audio\","
                "\"input_audio\":{\"data\":\"QUJD\",\"format\":\"wav\"}},"
                "{\"type\":\"input_audio\",\"input_audio\":{\"data\":\"QUJD\","
                "\"format\":\"wav\"}}]"),
        "audio");
    messages_are(
        USER("[{\"type\":\"document\",\"source\":{\"type\":\"data\",\"value\":"
             "\"QUJD\",\"mimeType\":\"application/pdf\"},\"metadata\":{"
             "\"filename\":\"a.pdf\"}},{\"type\":\"document\",\"source\":{"
             "\"type\":\"data\",\"value\":\"QUJD\",\"mimeType\":"
             "\"text/plain\"},\"metadata\":7},{\"type\":\"document\","
             "\"source\":{\"type\":\"file\",\"value\":\"file_1\"}}]"),
        IS_USER("[{\"type\":\"file\",\"file\":{\"file_data\":"
                "\"data:application/pdf;base64,QUJD\",\"filename\":\"a.pdf\"}}"
                ",{\"type\":\"file\",\"file\":{\"file_data\":"
                "\"data:text/plain;base64,QUJD\",\"filename\":\"file\"}},"
                "{\"type\":\"file\",\"file\":{\"file_id\":\"file_1\"}}]"),
        "documents");
    messages_are(
        USER("[{\"type\":\"video\",\"source\":{\"type\":\"url\",\"value\":"
             "\"u\"}},{\"type\":\"video\",\"source\":{\"type\":\"data\","
             "\"value\":\"QUJD\",\"mimeType\":\"video/mp4\"}},{\"type\":"
             "\"audio\",\"source\":{\"type\":\"url\",\"value\":\"u\"}},"
             "{\"type\":\"document\",\"source\":{\"type\":\"url\",\"value\":"
             "\"u\"}},{\"type\":\"text\"},{\"type\":\"image\"},{},7]"),
        IS_USER("\"\""), "parts that all vanish");
    messages_are(USER("[]"), IS_USER("\"\""), "no parts");
    messages_are("[{\"id\":\"u\",\"role\":\"user\"}]", IS_USER("\"\""),
                 "no content");
}

static void
test_system(void)
{
    request_t r;
    agent_context_t context[2] = {
        {agent_str("Page"), agent_str("/home\n\"x\"")},
        {agent_str("User"), agent_str("Sam")},
    };

    request_init(&r, USER("\"Hi\""));
    r.req.system = AGENT_STR("Be \"terse\".");
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"system\","
               "\"content\":\"Be \\\"terse\\\".\"},{\"role\":\"user\","
               "\"content\":\"Hi\"}],\"stream\":true,\"stream_options\":{"
               "\"include_usage\":true}}",
               "the prompt comes first");

    request_init(&r, NULL);
    r.req.system = AGENT_STR("S");
    r.req.context = context;
    r.req.ncontext = 2;
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"system\","
               "\"content\":\"S\\n\\nContext provided by the application:\\n"
               "Page: /home\\n\\\"x\\\"\\nUser: Sam\"}],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true}}",
               "prompt and context");

    request_init(&r, NULL);
    r.req.context = context + 1;
    r.req.ncontext = 1;
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[{\"role\":\"system\","
               "\"content\":\"Context provided by the application:\\n"
               "User: Sam\"}],\"stream\":true,\"stream_options\":{"
               "\"include_usage\":true}}",
               "context alone");
}

static void
test_tools(void)
{
    request_t r;
    agent_buf_t b;
    agent_fault_t fault;
    size_t i;
    agent_tool_t tools[2] = {
        {agent_str("get_weather-2"), agent_str("says \"it\""),
         agent_str("{ \"type\": \"object\", \"minimum\": 0.10 }")},
        {agent_str("f"), agent_str(""), agent_str("")},
    };
    static const agent_str_t names[] = {
        agent_str(""),
        agent_str("a b"),
        agent_str("a.b"),
        agent_str("\xc3\xa9"),
        agent_str("a\0b"),
        agent_str("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                  "aaaaa")};

    request_init(&r, NULL);
    r.req.tools = tools;
    r.req.ntools = 2;
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true},\"tools\":[{"
               "\"type\":\"function\",\"function\":{\"name\":\"get_weather-2\""
               ",\"description\":\"says \\\"it\\\"\",\"parameters\":"
               "{ \"type\": \"object\", \"minimum\": 0.10 }}},{\"type\":"
               "\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
               "\"type\":\"object\",\"properties\":{}}}}]}",
               "tools");

    request_init(&r, NULL);
    r.req.tools = tools;
    r.req.ntools = 2;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        tools[1].name = names[i];
        agent_buf_init(&b, &agent_alloc_libc);

        ok(agent_chat_request(&b, &r.req, &fault) == AGENT_INVALID &&
               fault.code == AGENT_CODE_BAD_REQUEST &&
               strncmp(fault.message, "tools[1].name ", 14) == 0,
           "bad name: %s", fault.message);

        agent_buf_free(&b);
    }

    json_decref(r.json);
}

static void
test_params(void)
{
    request_t r;
    static const agent_param_t set[] = {
        {agent_str("temperature"), agent_str("0.2")},
        {agent_str("stop"), agent_str("[\"a\"]")},
        {agent_str("temperature"), agent_str("0.30")},
        {agent_str("seed"), agent_str("1")},
        {agent_str("user"), agent_str("null")},
    };
    static const agent_param_t overrides[] = {
        {agent_str("seed"), agent_str("null")},
        {agent_str("max_tokens"), agent_str("1")},
        {agent_str("max_tokens"), agent_str("5")},
        {agent_str("temperature"), agent_str("1")},
        {agent_str("model"), agent_str("\"big\"")},
        {agent_str("messages"), agent_str("[]")},
        {agent_str("stream"), agent_str("false")},
        {agent_str("tools"), agent_str("[]")},
        {agent_str("q\"u"), agent_str("{}")},
    };
    static const agent_param_t options[] = {
        {agent_str("stream_options"), agent_str("null")},
        {agent_str("tokens_per_second"), agent_str("0")},
    };

    request_init(&r, NULL);
    r.req.set = set;
    r.req.nset = 5;
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true},\"stop\":[\"a\"],"
               "\"temperature\":0.30,\"seed\":1}",
               "set");

    request_init(&r, NULL);
    r.req.set = set;
    r.req.nset = 5;
    r.req.overrides = overrides;
    r.req.noverrides = 9;
    request_is(&r,
               "{\"model\":\"big\",\"messages\":[],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true},\"stop\":[\"a\"],"
               "\"temperature\":1,\"max_tokens\":5,\"q\\\"u\":{}}",
               "overrides replace, null removes, reserved keys stay");

    request_init(&r, NULL);
    r.req.set = options;
    r.req.nset = 2;
    request_is(&r,
               "{\"model\":\"m\",\"messages\":[],\"stream\":true,"
               "\"tokens_per_second\":0}",
               "null removes a default");

    request_init(&r, NULL);
    r.req.set = options;
    r.req.nset = 1;
    r.req.overrides = (const agent_param_t[]){
        {agent_str("stream_options"), agent_str("{\"x\":1}")},
        {agent_str("model"), agent_str("null")}};
    r.req.noverrides = 2;
    request_is(&r,
               "{\"messages\":[],\"stream\":true,\"stream_options\":{\"x\":1}}",
               "an override of a removed default");
}

static void
test_nomem(void)
{
    request_t r;
    agent_buf_t b;
    agent_fault_t fault;
    failing_t f;
    agent_alloc_t alloc = {failing_resize, &f};
    unsigned i;
    int good = 1;
    agent_rc_t rc = AGENT_NOMEM;

    request_init(&r, USER("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
                          "\"image\",\"source\":{\"type\":\"url\",\"value\":"
                          "\"https://x/i.png\"}}]"));
    r.req.system = AGENT_STR("Be terse.");

    for (i = 1; i < 100 && rc == AGENT_NOMEM; i++) {
        memset(&f, 0, sizeof(failing_t));
        f.fail_at = i;

        agent_buf_init(&b, &alloc);
        rc = agent_chat_request(&b, &r.req, &fault);
        agent_buf_free(&b);

        good = good && f.live == 0;
    }

    ok(good && rc == AGENT_OK && i > 3, "allocations fail");
    json_decref(r.json);
}

int
main(void)
{
    test_messages();
    test_parts();
    test_system();
    test_tools();
    test_params();
    test_nomem();

    return done_testing();
}
