#include "agent_event.h"

#include <string.h>

static const agent_str_t agent_event_names[AGENT_EV_COUNT] = {
    [AGENT_EV_RUN_STARTED] = agent_str("RUN_STARTED"),
    [AGENT_EV_RUN_FINISHED] = agent_str("RUN_FINISHED"),
    [AGENT_EV_RUN_ERROR] = agent_str("RUN_ERROR"),
    [AGENT_EV_TEXT_MESSAGE_START] = agent_str("TEXT_MESSAGE_START"),
    [AGENT_EV_TEXT_MESSAGE_CONTENT] = agent_str("TEXT_MESSAGE_CONTENT"),
    [AGENT_EV_TEXT_MESSAGE_END] = agent_str("TEXT_MESSAGE_END"),
    [AGENT_EV_TOOL_CALL_START] = agent_str("TOOL_CALL_START"),
    [AGENT_EV_TOOL_CALL_ARGS] = agent_str("TOOL_CALL_ARGS"),
    [AGENT_EV_TOOL_CALL_END] = agent_str("TOOL_CALL_END"),
    [AGENT_EV_TOOL_CALL_RESULT] = agent_str("TOOL_CALL_RESULT"),
    [AGENT_EV_REASONING_START] = agent_str("REASONING_START"),
    [AGENT_EV_REASONING_MESSAGE_START] = agent_str("REASONING_MESSAGE_START"),
    [AGENT_EV_REASONING_MESSAGE_CONTENT] =
        agent_str("REASONING_MESSAGE_CONTENT"),
    [AGENT_EV_REASONING_MESSAGE_END] = agent_str("REASONING_MESSAGE_END"),
    [AGENT_EV_REASONING_END] = agent_str("REASONING_END"),
    [AGENT_EV_REASONING_ENCRYPTED_VALUE] =
        agent_str("REASONING_ENCRYPTED_VALUE"),
    [AGENT_EV_MESSAGES_SNAPSHOT] = agent_str("MESSAGES_SNAPSHOT"),
    [AGENT_EV_STATE_SNAPSHOT] = agent_str("STATE_SNAPSHOT"),
    [AGENT_EV_CUSTOM] = agent_str("CUSTOM"),
    [AGENT_EV_RAW] = agent_str("RAW"),
};

static const agent_str_t agent_event_text =
    agent_str("{\"type\":\"TEXT_MESSAGE_CONTENT\",\"messageId\":\"");
static const agent_str_t agent_event_args =
    agent_str("{\"type\":\"TOOL_CALL_ARGS\",\"toolCallId\":\"");
static const agent_str_t agent_event_reasoning =
    agent_str("{\"type\":\"REASONING_MESSAGE_CONTENT\",\"messageId\":\"");
static const agent_str_t agent_event_middle = agent_str("\",\"delta\":\"");
static const agent_str_t agent_event_tail = agent_str("\"}");

agent_str_t
agent_event_name(agent_event_type_t type)
{
    if ((unsigned) type >= AGENT_EV_COUNT ||
        agent_event_names[type].data == NULL) {
        return AGENT_STR("");
    }

    return agent_event_names[type];
}

int
agent_event_is_terminal(agent_event_type_t type)
{
    return type == AGENT_EV_RUN_FINISHED || type == AGENT_EV_RUN_ERROR;
}

/* What stands before the id of a delta; NULL for other types. */
static const agent_str_t *
agent_event_head(agent_event_type_t type)
{
    switch (type) {
    case AGENT_EV_TEXT_MESSAGE_CONTENT:
        return &agent_event_text;
    case AGENT_EV_TOOL_CALL_ARGS:
        return &agent_event_args;
    case AGENT_EV_REASONING_MESSAGE_CONTENT:
        return &agent_event_reasoning;
    default:
        return NULL;
    }
}

int
agent_event_is_delta(agent_event_type_t type)
{
    return agent_event_head(type) != NULL;
}

size_t
agent_event_json_len(const agent_event_t *ev)
{
    const agent_str_t *head = agent_event_head(ev->type);

    if (head == NULL) {
        return ev->body.len;
    }

    return head->len + ev->id.len + agent_event_middle.len + ev->body.len +
           agent_event_tail.len;
}

static inline char *
agent_event_copy(char *p, agent_str_t s)
{
    if (s.len != 0) {
        memcpy(p, s.data, s.len);
    }

    return p + s.len;
}

static char *
agent_event_write(char *p, const agent_event_t *ev)
{
    const agent_str_t *head = agent_event_head(ev->type);

    if (head == NULL) {
        return agent_event_copy(p, ev->body);
    }

    p = agent_event_copy(p, *head);
    p = agent_event_copy(p, ev->id);
    p = agent_event_copy(p, agent_event_middle);
    p = agent_event_copy(p, ev->body);

    return agent_event_copy(p, agent_event_tail);
}

void
agent_event_json(agent_buf_t *b, const agent_event_t *ev)
{
    size_t n = agent_event_json_len(ev);

    if (n == 0 || agent_buf_reserve(b, n) != AGENT_OK) {
        return;
    }

    (void) agent_event_write(b->data + b->len, ev);
    b->len += n;
}

/* Reads 1*DIGIT at *p without a leading zero, within 64 bits. */
static agent_rc_t
agent_cursor_number(const char **p, const char *end, uint64_t *n)
{
    const char *s = *p;
    uint64_t v = 0;

    for (; s < end && *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t) (*s - '0');

        /* v is 0 behind the first digit only after a leading zero */

        if ((s > *p && v == 0) || v > (UINT64_MAX - digit) / 10) {
            return AGENT_INVALID;
        }

        v = v * 10 + digit;
    }

    if (s == *p) {
        return AGENT_INVALID;
    }

    *p = s;
    *n = v;

    return AGENT_OK;
}

agent_rc_t
agent_cursor_parse(agent_str_t s, agent_cursor_t *c)
{
    agent_cursor_t v = {0, 0, 1};
    const char *p = s.data, *end;

    if (s.len == 0 || s.len > AGENT_CURSOR_MAX) {
        return AGENT_INVALID;
    }

    end = p + s.len;

    if (agent_cursor_number(&p, end, &v.seq) != AGENT_OK) {
        return AGENT_INVALID;
    }

    if (p < end && *p == '-') {
        p++;
        v.bare = 0;
        v.generation = v.seq;

        if (agent_cursor_number(&p, end, &v.seq) != AGENT_OK) {
            return AGENT_INVALID;
        }
    }

    if (p != end) {
        return AGENT_INVALID;
    }

    *c = v;

    return AGENT_OK;
}

static char *
agent_cursor_digits(char *p, uint64_t n)
{
    static const char pairs[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334"
        "3536373839404142434445464748495051525354555657585960616263646566676869"
        "707172737475767778798081828384858687888990919293949596979899";
    char tmp[20], *first = tmp + sizeof(tmp);
    size_t len;

    /* every frame has a cursor, so this counts */

    while (n >= 100) {
        first -= 2;
        memcpy(first, pairs + n % 100 * 2, 2);
        n /= 100;
    }

    if (n >= 10) {
        first -= 2;
        memcpy(first, pairs + n * 2, 2);
    } else {
        *--first = (char) ('0' + n);
    }

    len = (size_t) (tmp + sizeof(tmp) - first);
    memcpy(p, first, len);

    return p + len;
}

size_t
agent_cursor_print(char *buf, uint64_t generation, uint64_t seq)
{
    char *p = agent_cursor_digits(buf, generation);

    *p++ = '-';
    p = agent_cursor_digits(p, seq);

    return (size_t) (p - buf);
}

static const agent_str_t agent_frame_id = agent_str("id: ");
static const agent_str_t agent_frame_data = agent_str("\ndata: ");
static const agent_str_t agent_frame_end = agent_str("\n\n");

size_t
agent_frame_agui_len(const agent_event_t *ev)
{
    return agent_frame_id.len + AGENT_CURSOR_MAX + agent_frame_data.len +
           agent_event_json_len(ev) + agent_frame_end.len;
}

char *
agent_frame_agui(char *p, uint64_t generation, uint64_t seq,
                 const agent_event_t *ev)
{
    p = agent_event_copy(p, agent_frame_id);
    p += agent_cursor_print(p, generation, seq);
    p = agent_event_copy(p, agent_frame_data);
    p = agent_event_write(p, ev);

    return agent_event_copy(p, agent_frame_end);
}
