#include "agent_codec.h"
#include "agent_chat.h"
#include "agent_json.h"

#include <string.h>

#define AGENT_ERROR_CHARS     200 /* of a server's message that are shown */
#define AGENT_SECRET_FRAGMENT 8   /* bytes of a secret that give it away */
#define AGENT_RETRY_MAX       3600

#define agent_countof(array) (sizeof(array) / sizeof((array)[0]))

static const agent_codec_t agent_codec_openai = {
    .name = agent_str("openai"),
    .url = agent_str("https://api.openai.com/v1"),
    .model = agent_str("gpt-5.4-nano"),
    .path = agent_str("/chat/completions"),
    .auth = agent_str("Authorization: Bearer "),
    .reserved = agent_chat_reserved,
    .request = agent_chat_request,
    .open = agent_chat_open,
    .close = agent_chat_close,
    .event = agent_chat_event,
    .json = agent_chat_json,
    .end = agent_chat_end,
};

/* Answered by agent_echo.h instead of a server. */
static const agent_codec_t agent_codec_echo = {
    .name = agent_str("echo"),
    .url = agent_str(""),
    .model = agent_str("echo"),
    .path = agent_str(""),
    .auth = agent_str(""),
    .reserved = agent_chat_reserved,
    .request = agent_chat_request,
    .open = agent_chat_open,
    .close = agent_chat_close,
    .event = agent_chat_event,
    .json = agent_chat_json,
    .end = agent_chat_end,
};

const agent_codec_t *const agent_codecs[] = {
    &agent_codec_openai,
    &agent_codec_echo,
    NULL,
};

const agent_codec_t *
agent_codec_find(agent_str_t name)
{
    size_t i;

    for (i = 0; agent_codecs[i] != NULL; i++) {
        if (agent_str_eq(agent_codecs[i]->name, name)) {
            return agent_codecs[i];
        }
    }

    return NULL;
}

/* --- Retry-After ---------------------------------------------------------- */

/* A decimal number of parts, "unit" of which are one second; rounded up to
 * whole seconds and capped.  0 for anything else. */
static unsigned
agent_retry_seconds(agent_str_t s, unsigned unit)
{
    size_t i;
    unsigned n = 0, limit = AGENT_RETRY_MAX * unit;
    int fraction = 0, dot = 0;

    while (s.len != 0 && (s.data[0] == ' ' || s.data[0] == '\t')) {
        s.data++;
        s.len--;
    }

    while (s.len != 0 &&
           (s.data[s.len - 1] == ' ' || s.data[s.len - 1] == '\t')) {
        s.len--;
    }

    if (s.len == 0 || s.data[0] == '.') {
        return 0;
    }

    for (i = 0; i < s.len; i++) {
        if (s.data[i] == '.' && !dot) {
            dot = 1;
            continue;
        }

        if (s.data[i] < '0' || s.data[i] > '9') {
            return 0;
        }

        if (dot) {
            fraction |= s.data[i] != '0';
        } else if (n < limit) {
            n = n * 10 + (unsigned) (s.data[i] - '0');
        }
    }

    if (n >= limit) {
        return AGENT_RETRY_MAX;
    }

    n = (n + (unsigned) fraction + unit - 1) / unit;

    return n < AGENT_RETRY_MAX ? n : AGENT_RETRY_MAX;
}

unsigned
agent_retry_after(agent_str_t value, agent_str_t value_ms)
{
    unsigned n = agent_retry_seconds(value_ms, 1000);

    return n != 0 ? n : agent_retry_seconds(value, 1);
}

/* --- what a server's error means ------------------------------------------ */

static const struct {
    unsigned status;
    agent_code_t code;
} agent_error_statuses[] = {
    {401, AGENT_CODE_UPSTREAM_AUTH},
    {402, AGENT_CODE_UPSTREAM_QUOTA},
    {403, AGENT_CODE_UPSTREAM_AUTH},
    {429, AGENT_CODE_UPSTREAM_RATE_LIMITED},
    {503, AGENT_CODE_UPSTREAM_OVERLOADED},
    {529, AGENT_CODE_UPSTREAM_OVERLOADED},
};

/* Parts of the words that stand in "code", "type" and "status"; what comes
 * first here counts first. */
static const struct {
    const char *word;
    agent_code_t code;
} agent_error_words[] = {
    {"insufficient_quota", AGENT_CODE_UPSTREAM_QUOTA},
    {"insufficient_balance", AGENT_CODE_UPSTREAM_QUOTA},
    {"credit_balance_exhausted", AGENT_CODE_UPSTREAM_QUOTA},
    {"spend_limit_exceeded", AGENT_CODE_UPSTREAM_QUOTA},
    {"usage_limit_exceeded", AGENT_CODE_UPSTREAM_QUOTA},
    {"billing_error", AGENT_CODE_UPSTREAM_QUOTA},
    {"rate_limit", AGENT_CODE_UPSTREAM_RATE_LIMITED},
    {"ratelimit", AGENT_CODE_UPSTREAM_RATE_LIMITED},
    {"too_many_requests", AGENT_CODE_UPSTREAM_RATE_LIMITED},
    {"resource_exhausted", AGENT_CODE_UPSTREAM_RATE_LIMITED},
    {"overloaded", AGENT_CODE_UPSTREAM_OVERLOADED},
    {"unavailable", AGENT_CODE_UPSTREAM_OVERLOADED},
    {"slow_down", AGENT_CODE_UPSTREAM_OVERLOADED},
    {"invalid_api_key", AGENT_CODE_UPSTREAM_AUTH},
    {"authentication", AGENT_CODE_UPSTREAM_AUTH},
    {"permission", AGENT_CODE_UPSTREAM_AUTH},
};

static agent_code_t
agent_error_by_status(unsigned status)
{
    size_t i;

    for (i = 0; i < agent_countof(agent_error_statuses); i++) {
        if (agent_error_statuses[i].status == status) {
            return agent_error_statuses[i].code;
        }
    }

    return status >= 400 && status < 500 ? AGENT_CODE_UPSTREAM_REJECTED
                                         : AGENT_CODE_UPSTREAM_ERROR;
}

static int
agent_error_has_word(const json_t *error, const char *member, const char *word)
{
    char lower[80];
    size_t i;
    agent_str_t s;

    if (!agent_json_str(error, member, &s)) {
        return 0;
    }

    for (i = 0; i < s.len && i < sizeof(lower) - 1; i++) {
        lower[i] = s.data[i];

        if (lower[i] >= 'A' && lower[i] <= 'Z') {
            lower[i] = (char) (lower[i] | 0x20);
        }
    }

    lower[i] = '\0';

    return strstr(lower, word) != NULL;
}

static agent_code_t
agent_error_by_words(const json_t *error)
{
    size_t i;
    const char *word;

    for (i = 0; i < agent_countof(agent_error_words); i++) {
        word = agent_error_words[i].word;

        if (agent_error_has_word(error, "code", word) ||
            agent_error_has_word(error, "type", word) ||
            agent_error_has_word(error, "status", word)) {
            return agent_error_words[i].code;
        }
    }

    return AGENT_CODE_OK;
}

/* An HTTP status inside the error, as a number or its digits; 0 for none. */
static unsigned
agent_error_status(const json_t *error)
{
    static const char *const members[] = {"code", "status", "status_code"};
    size_t i;
    agent_str_t s;
    const json_t *v;

    for (i = 0; i < agent_countof(members); i++) {
        v = json_object_get(error, members[i]);

        if (json_is_integer(v) && json_integer_value(v) >= 100 &&
            json_integer_value(v) <= 599) {
            return (unsigned) json_integer_value(v);
        }

        if (agent_json_str(error, members[i], &s) && s.len == 3 &&
            s.data[0] >= '1' && s.data[0] <= '5' && s.data[1] >= '0' &&
            s.data[1] <= '9' && s.data[2] >= '0' && s.data[2] <= '9') {
            return (unsigned) (s.data[0] - '0') * 100 +
                   (unsigned) (s.data[1] - '0') * 10 +
                   (unsigned) (s.data[2] - '0');
        }
    }

    return 0;
}

static agent_code_t
agent_error_code(unsigned status, const json_t *error)
{
    agent_code_t code, said;

    said = agent_error_by_words(error);

    if (status != 0) {
        code = agent_error_by_status(status);

        return code == AGENT_CODE_UPSTREAM_RATE_LIMITED &&
                       said == AGENT_CODE_UPSTREAM_QUOTA
                   ? said
                   : code;
    }

    if (said != AGENT_CODE_OK) {
        return said;
    }

    /* inside a stream nothing was refused: it broke */

    code = agent_error_by_status(agent_error_status(error));

    return code == AGENT_CODE_UPSTREAM_REJECTED ? AGENT_CODE_UPSTREAM_ERROR
                                                : code;
}

/* {"detail":"text"} and {"detail":[{"msg":"text"}]}. */
static int
agent_error_detail(const json_t *object, agent_str_t *message)
{
    const json_t *detail = json_object_get(object, "detail");

    return agent_json_str(object, "detail", message) ||
           agent_json_str(json_array_get(detail, 0), "msg", message);
}

static int
agent_error_message(const json_t *root, agent_str_t *message)
{
    const json_t *text = json_object_get(root, "message");

    if (json_is_string(root)) {
        message->data = json_string_value(root);
        message->len = json_string_length(root);
        return 1;
    }

    return agent_json_str(json_object_get(root, "error"), "message", message) ||
           agent_json_str(root, "error", message) ||
           agent_json_str(root, "message", message) ||
           agent_error_detail(text, message) ||
           agent_error_detail(root, message);
}

/* Google says when to come back in details[].retryDelay: "34s". */
static unsigned
agent_error_delay(const json_t *error)
{
    size_t i;
    agent_str_t s, none = {NULL, 0};
    const json_t *details = json_object_get(error, "details");

    for (i = 0; i < json_array_size(details); i++) {
        if (agent_json_str(json_array_get(details, i), "retryDelay", &s) &&
            s.len > 1 && s.data[s.len - 1] == 's') {
            s.len--;
            return agent_retry_after(s, none);
        }
    }

    return 0;
}

/* Valid UTF-8 as one line of at most AGENT_ERROR_CHARS characters. */
static void
agent_error_clean(char *out, size_t size, agent_str_t s)
{
    size_t i, n, len = 0, chars = 0;
    unsigned char c;
    int space = 0;

    for (i = 0; i < s.len && chars < AGENT_ERROR_CHARS; i += n) {
        c = (unsigned char) s.data[i];
        n = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

        if (n > s.len - i || len + n + 2 > size) {
            break;
        }

        if (c <= 0x20 || c == 0x7f ||
            (c == 0xc2 && (unsigned char) s.data[i + 1] < 0xa0)) {
            space = len != 0;
            continue;
        }

        if (space) {
            out[len++] = ' ';
            chars++;
            space = 0;
        }

        memcpy(out + len, s.data + i, n);
        len += n;
        chars++;
    }

    out[len] = '\0';
}

void
agent_codec_fault(agent_fault_t *f, unsigned status, const json_t *root)
{
    char text[sizeof(f->message)];
    agent_str_t message;
    agent_code_t code;
    const json_t *error;

    if (json_is_array(root)) {
        root = json_array_get(root, 0);
    }

    error = json_object_get(root, "error");

    if (!json_is_object(error)) {
        error = root;
    }

    code = agent_error_code(status, error);
    text[0] = '\0';

    if (agent_error_message(root, &message)) {
        agent_error_clean(text, sizeof(text), message);
    }

    if (code == AGENT_CODE_UPSTREAM_AUTH) {
        if (status != 0) {
            agent_fault_set(
                f, code, "the model server refused the credentials (HTTP %u)",
                status);
        } else {
            agent_fault_set(f, code,
                            "the model server refused the credentials");
        }

    } else if (status >= 300 && status < 400) {
        agent_fault_set(f, code, "the server answers with a redirect (HTTP %u)",
                        status);

    } else if (text[0] == '\0' && status != 0) {
        agent_fault_set(f, code, "the model server answered with HTTP %u",
                        status);

    } else if (text[0] == '\0') {
        agent_fault_set(f, code, "the model server reported an error");

    } else if (json_is_string(root) && status != 0) {
        agent_fault_set(f, code, "HTTP %u: %s", status, text);

    } else {
        agent_fault_set(f, code, "%s", text);
    }

    if (code == AGENT_CODE_UPSTREAM_RATE_LIMITED ||
        code == AGENT_CODE_UPSTREAM_OVERLOADED) {
        f->retry_after = agent_error_delay(error);
    }
}

/* Length of the longest run at p that the secret also has. */
static size_t
agent_secret_run(agent_str_t secret, const char *p)
{
    size_t i, n, longest = 0;

    for (i = 0; i < secret.len; i++) {
        n = 0;

        while (i + n < secret.len && p[n] != '\0' &&
               p[n] == secret.data[i + n]) {
            n++;
        }

        longest = n > longest ? n : longest;
    }

    return longest;
}

/*
 * Bytes to mask at p: a piece of the secret, or a word that the server has
 * masked itself, for it may have left a good part readable.
 */
static size_t
agent_secret_at(agent_str_t secret, const char *p, int word)
{
    const char *stars;
    size_t n;

    n = agent_secret_run(secret, p);

    if (n < AGENT_SECRET_FRAGMENT && n < secret.len) {
        n = 0;
    }

    if (word) {
        stars = strstr(p, "***");

        if (stars != NULL && (size_t) (stars - p) < strcspn(p, " ")) {
            n = strcspn(p, " ");
        }
    }

    return n;
}

void
agent_codec_mask(agent_fault_t *f, agent_str_t secret)
{
    static const char mask[] = "***";
    char out[sizeof(f->message)];
    const char *p = f->message;
    size_t n, len = 0;
    agent_str_t s;

    if (secret.len == 0) {
        return;
    }

    while (*p != '\0' && len < sizeof(out) - sizeof(mask)) {
        n = agent_secret_at(secret, p, p == f->message || p[-1] == ' ');

        if (n != 0) {
            memcpy(out + len, mask, sizeof(mask) - 1);
            len += sizeof(mask) - 1;
            p += n;

        } else {
            out[len++] = *p++;
        }
    }

    /* what has been cut out need not have been whole characters */

    s.data = out;
    s.len = len;
    len = agent_utf8_valid(s);

    memcpy(f->message, out, len);
    f->message[len] = '\0';
}
