#include "agent_event.h"

#include <string.h>

/* An item in "items": this, then the id. */
typedef struct {
    uint32_t type; /* of the START */
    uint32_t len;
} agent_open_item_t;

static const struct {
    agent_event_type_t start;
    agent_event_type_t end;
    const char *key;
} agent_open_kinds[] = {
    {AGENT_EV_TEXT_MESSAGE_START, AGENT_EV_TEXT_MESSAGE_END, "messageId"},
    {AGENT_EV_TOOL_CALL_START, AGENT_EV_TOOL_CALL_END, "toolCallId"},
    {AGENT_EV_REASONING_START, AGENT_EV_REASONING_END, "messageId"},
    {AGENT_EV_REASONING_MESSAGE_START, AGENT_EV_REASONING_MESSAGE_END,
     "messageId"},
};

#define AGENT_OPEN_KINDS                                                       \
    (sizeof(agent_open_kinds) / sizeof(agent_open_kinds[0]))

void
agent_open_init(agent_open_t *o, const agent_alloc_t *alloc)
{
    agent_buf_init(&o->items, alloc);
}

void
agent_open_free(agent_open_t *o)
{
    agent_buf_free(&o->items);
}

static void
agent_open_remove(agent_open_t *o, agent_event_type_t start, agent_str_t id)
{
    size_t at, size;
    agent_open_item_t item;

    for (at = 0; at < o->items.len; at += size) {
        memcpy(&item, o->items.data + at, sizeof(item));
        size = sizeof(item) + item.len;

        if (item.type == (uint32_t) start && item.len == id.len &&
            memcmp(o->items.data + at + sizeof(item), id.data, id.len) == 0) {
            memmove(o->items.data + at, o->items.data + at + size,
                    o->items.len - at - size);
            o->items.len -= size;
            return;
        }
    }
}

agent_rc_t
agent_open_note(agent_open_t *o, const agent_event_t *ev)
{
    size_t i;
    agent_open_item_t item;

    for (i = 0; i < AGENT_OPEN_KINDS; i++) {
        if (ev->type == agent_open_kinds[i].end) {
            agent_open_remove(o, agent_open_kinds[i].start, ev->id);
            return AGENT_OK;
        }

        if (ev->type != agent_open_kinds[i].start) {
            continue;
        }

        item.type = (uint32_t) ev->type;
        item.len = (uint32_t) ev->id.len;

        if (agent_buf_reserve(&o->items, sizeof(item) + ev->id.len) !=
            AGENT_OK) {
            return AGENT_NOMEM;
        }

        agent_buf_add(&o->items, &item, sizeof(item));
        agent_buf_add_str(&o->items, ev->id);

        return AGENT_OK;
    }

    return AGENT_OK;
}

static agent_rc_t
agent_open_end(agent_buf_t *json, const agent_open_item_t *item, agent_str_t id,
               agent_event_pt emit, void *ctx)
{
    size_t i;
    agent_event_t ev;

    for (i = 0; i < AGENT_OPEN_KINDS; i++) {
        if ((uint32_t) agent_open_kinds[i].start != item->type) {
            continue;
        }

        ev.type = agent_open_kinds[i].end;

        agent_buf_reset(json);
        agent_buf_add_lit(json, "{\"type\":\"");
        agent_buf_add_str(json, agent_event_name(ev.type));
        agent_buf_add_lit(json, "\",\"");
        agent_buf_add(json, agent_open_kinds[i].key,
                      strlen(agent_open_kinds[i].key));
        agent_buf_add_lit(json, "\":\"");
        agent_buf_add_str(json, id);
        agent_buf_add_lit(json, "\"}");

        if (!agent_buf_ok(json)) {
            return AGENT_NOMEM;
        }

        ev.id = id;
        ev.body = agent_buf_str(json);

        return emit(ctx, &ev);
    }

    return AGENT_OK;
}

agent_rc_t
agent_open_close(agent_open_t *o, agent_event_pt emit, void *ctx)
{
    size_t at, last;
    agent_rc_t rc = AGENT_OK;
    agent_str_t id;
    agent_buf_t json;
    agent_open_item_t item;

    agent_buf_init(&json, o->items.alloc);

    while (o->items.len != 0 && rc == AGENT_OK) {
        last = 0;

        for (at = 0; at < o->items.len; at += sizeof(item) + item.len) {
            memcpy(&item, o->items.data + at, sizeof(item));
            last = at;
        }

        memcpy(&item, o->items.data + last, sizeof(item));
        id.data = o->items.data + last + sizeof(item);
        id.len = item.len;

        rc = agent_open_end(&json, &item, id, emit, ctx);

        o->items.len = last;
    }

    agent_buf_free(&json);

    return rc;
}
