#include "agent_row.h"
#include "agent_json.h"

#include <string.h>

/* An item in "calls": this, the call's id, the message's. */
typedef struct {
    uint32_t call_len;
    uint32_t message_len;
} agent_row_call_t;

void
agent_rows_init(agent_rows_t *r, const agent_alloc_t *alloc)
{
    agent_buf_init(&r->calls, alloc);
}

void
agent_rows_free(agent_rows_t *r)
{
    agent_buf_free(&r->calls);
}

/* A string member of an event's JSON, as escaped text; empty: absent. */
static agent_str_t
agent_row_member(const agent_event_t *ev, agent_str_t key)
{
    agent_str_t value;

    if (agent_json_find(ev->body, key, &value) != AGENT_OK || value.len < 2 ||
        value.data[0] != '"') {
        return AGENT_STR("");
    }

    value.data++;
    value.len -= 2;

    return value;
}

agent_rc_t
agent_rows_note(agent_rows_t *r, const agent_event_t *ev)
{
    agent_str_t parent;
    agent_row_call_t call;

    if (ev->type != AGENT_EV_TOOL_CALL_START) {
        return AGENT_OK;
    }

    parent = agent_row_member(ev, AGENT_STR("parentMessageId"));

    if (agent_buf_reserve(&r->calls, sizeof(call) + ev->id.len + parent.len) !=
        AGENT_OK) {
        return AGENT_NOMEM;
    }

    call.call_len = (uint32_t) ev->id.len;
    call.message_len = (uint32_t) parent.len;

    agent_buf_add(&r->calls, &call, sizeof(call));
    agent_buf_add_str(&r->calls, ev->id);
    agent_buf_add_str(&r->calls, parent);

    return AGENT_OK;
}

/* The message of a call; empty: its start is no longer kept. */
static agent_str_t
agent_rows_parent(const agent_rows_t *r, agent_str_t id)
{
    size_t at;
    agent_str_t s, parent = {"", 0};
    agent_row_call_t call;

    for (at = 0; at < r->calls.len;
         at += sizeof(call) + call.call_len + call.message_len) {
        memcpy(&call, r->calls.data + at, sizeof(call));
        s.data = r->calls.data + at + sizeof(call);
        s.len = call.call_len;

        if (agent_str_eq(s, id)) {
            parent.data = s.data + s.len;
            parent.len = call.message_len;
        }
    }

    return parent;
}

typedef enum {
    AGENT_ROW_RUN,
    AGENT_ROW_MESSAGE,
    AGENT_ROW_TOOL
} agent_row_span_t;

static agent_row_span_t
agent_row_span(agent_event_type_t type)
{
    switch (type) {
    case AGENT_EV_TEXT_MESSAGE_START:
    case AGENT_EV_TEXT_MESSAGE_CONTENT:
    case AGENT_EV_TEXT_MESSAGE_END:
    case AGENT_EV_REASONING_START:
    case AGENT_EV_REASONING_MESSAGE_START:
    case AGENT_EV_REASONING_MESSAGE_CONTENT:
    case AGENT_EV_REASONING_MESSAGE_END:
    case AGENT_EV_REASONING_END:
        return AGENT_ROW_MESSAGE;

    case AGENT_EV_TOOL_CALL_START:
    case AGENT_EV_TOOL_CALL_ARGS:
    case AGENT_EV_TOOL_CALL_END:
    case AGENT_EV_TOOL_CALL_RESULT:
        return AGENT_ROW_TOOL;

    default:
        return AGENT_ROW_RUN;
    }
}

const char *
agent_row_class(agent_event_type_t type)
{
    return agent_event_is_delta(type) ? "delta" : "fact";
}

static void
agent_row_name(agent_buf_t *b, const char *key, const char *kind)
{
    agent_buf_add_lit(b, ",\"");
    agent_buf_add(b, key, strlen(key));
    agent_buf_add_lit(b, "\":\"");
    agent_buf_add(b, kind, strlen(kind));
}

/* "kind" and escaped text; null when there is none. */
static void
agent_row_ref(agent_buf_t *b, const char *key, const char *kind, agent_str_t id)
{
    if (id.len == 0) {
        agent_buf_add_lit(b, ",\"");
        agent_buf_add(b, key, strlen(key));
        agent_buf_add_lit(b, "\":null");
        return;
    }

    agent_row_name(b, key, kind);
    agent_buf_add_str(b, id);
    agent_buf_add_char(b, '"');
}

static void
agent_row_spans(const agent_rows_t *r, agent_buf_t *b, agent_str_t run_id,
                const agent_event_t *ev)
{
    agent_str_t id = ev->id;
    agent_str_t none = {"", 0};

    switch (agent_row_span(ev->type)) {
    case AGENT_ROW_MESSAGE:
        agent_row_ref(b, "span_id", "message:", id);
        agent_row_ref(b, "parent_span_id", "", none);
        agent_row_ref(b, "turn_id", "message:", id);
        break;

    case AGENT_ROW_TOOL:
        agent_row_ref(b, "span_id", "tool:", id);
        id = agent_rows_parent(r, id);
        agent_row_ref(b, "parent_span_id", "message:", id);
        agent_row_ref(b, "turn_id", "message:", id);
        break;

    case AGENT_ROW_RUN:
    default:
        agent_row_name(b, "span_id", "run:");
        agent_json_escape(b, run_id);
        agent_buf_add_char(b, '"');
        agent_row_ref(b, "parent_span_id", "", none);
        agent_row_ref(b, "turn_id", "", none);
    }
}

static void
agent_row_payload(agent_buf_t *b, const agent_event_t *ev)
{
    size_t len = agent_event_json_len(ev);

    if (len > AGENT_ROW_MAX) {
        agent_buf_add_lit(b, "{\"type\":\"");
        agent_buf_add_str(b, agent_event_name(ev->type));
        agent_buf_add_lit(
            b, "\",\"name\":\"conversation-run-event-omitted\","
               "\"truncated\":true,\"note\":\"Conversation-run event payload "
               "exceeded the size limit and was omitted.\","
               "\"originalType\":\"");
        agent_buf_add_str(b, agent_event_name(ev->type));
        agent_buf_add_lit(b, "\"}");
        return;
    }

    agent_event_json(b, ev);

    /* a text has one content, which has the id of its message */

    if (ev->type == AGENT_EV_TEXT_MESSAGE_START && agent_buf_ok(b)) {
        b->len--;
        agent_buf_add_lit(b, ",\"contentId\":\"");
        agent_buf_add_str(b, ev->id);
        agent_buf_add_lit(b, "\"}");
    }
}

void
agent_rows_add(const agent_rows_t *r, agent_buf_t *b, agent_str_t run_id,
               uint64_t seq, agent_str_t created_at, const agent_event_t *ev)
{
    agent_str_t type = agent_event_name(ev->type);
    const char *class = agent_row_class(ev->type);

    agent_buf_add_lit(b, "{\"event_id\":");
    agent_buf_add_uint(b, seq);
    agent_buf_add_lit(b, ",\"event_type\":\"");
    agent_buf_add_str(b, type);
    agent_buf_add_lit(b, "\",\"run_id\":");
    agent_json_quote(b, run_id);
    agent_row_name(b, "event_class", class);
    agent_buf_add_char(b, '"');
    agent_row_spans(r, b, run_id, ev);
    agent_buf_add_lit(b, ",\"origin_event_type\":\"");
    agent_buf_add_str(b, type);
    agent_buf_add_lit(b, "\",\"origin_custom_name\":null,"
                         "\"unrecoverable_fields\":[],\"created_at\":\"");
    agent_buf_add_str(b, created_at);

    if (ev->type == AGENT_EV_RUN_ERROR) {
        agent_buf_add_lit(b, "\",\"is_error\":true,\"payload\":");
    } else {
        agent_buf_add_lit(b, "\",\"is_error\":false,\"payload\":");
    }

    agent_row_payload(b, ev);
    agent_buf_add_char(b, '}');
}
