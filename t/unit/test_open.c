/* What a reader holds open: agent_open_*. */

#include "tap.h"

#include "agent_event.h"

typedef struct {
    char text[1024];
    size_t len;
} said_t;

static agent_rc_t
say(void *ctx, const agent_event_t *ev)
{
    said_t *said = ctx;

    memcpy(said->text + said->len, ev->body.data, ev->body.len);
    said->len += ev->body.len;
    said->text[said->len++] = '\n';

    return AGENT_OK;
}

static agent_rc_t
refuse(void *ctx, const agent_event_t *ev)
{
    (void) ctx;
    (void) ev;

    return AGENT_ABORTED;
}

static agent_rc_t
note(agent_open_t *o, agent_event_type_t type, const char *id)
{
    agent_event_t ev = {.type = type, .id = {id, strlen(id)}};

    return agent_open_note(o, &ev);
}

static void *
no_memory(void *ctx, void *p, size_t size)
{
    (void) ctx;
    (void) p;
    (void) size;

    return NULL;
}

int
main(void)
{
    said_t said = {{0}, 0};
    agent_open_t o;
    agent_str_t got;
    const agent_alloc_t none = {no_memory, NULL};

    agent_open_init(&o, &agent_alloc_libc);

    ok(agent_open_close(&o, say, &said) == AGENT_OK && said.len == 0,
       "nothing open, nothing to close");

    note(&o, AGENT_EV_RUN_STARTED, "");
    note(&o, AGENT_EV_REASONING_START, "s");
    note(&o, AGENT_EV_REASONING_MESSAGE_START, "x");
    note(&o, AGENT_EV_REASONING_MESSAGE_CONTENT, "x");
    note(&o, AGENT_EV_REASONING_MESSAGE_END, "x");
    note(&o, AGENT_EV_REASONING_END, "s");
    note(&o, AGENT_EV_TEXT_MESSAGE_START, "m1");
    note(&o, AGENT_EV_TOOL_CALL_START, "m1");
    note(&o, AGENT_EV_TOOL_CALL_START, "c2");
    note(&o, AGENT_EV_TEXT_MESSAGE_END, "m1");
    note(&o, AGENT_EV_TEXT_MESSAGE_START, "m\\u00e9");
    note(&o, AGENT_EV_TEXT_MESSAGE_END, "unknown");

    ok(agent_open_close(&o, say, &said) == AGENT_OK, "closes");

    got.data = said.text;
    got.len = said.len;

    is_str(got,
           "{\"type\":\"TEXT_MESSAGE_END\",\"messageId\":\"m\\u00e9\"}\n"
           "{\"type\":\"TOOL_CALL_END\",\"toolCallId\":\"c2\"}\n"
           "{\"type\":\"TOOL_CALL_END\",\"toolCallId\":\"m1\"}\n",
           "what was open, the last first, kinds apart");

    said.len = 0;
    ok(agent_open_close(&o, say, &said) == AGENT_OK && said.len == 0,
       "and forgets it");

    note(&o, AGENT_EV_TEXT_MESSAGE_START, "a");
    ok(agent_open_close(&o, refuse, NULL) == AGENT_ABORTED,
       "passes on what emit says");
    agent_open_free(&o);

    agent_open_init(&o, &none);
    ok(note(&o, AGENT_EV_TEXT_MESSAGE_START, "a") == AGENT_NOMEM,
       "no memory is said");
    ok(note(&o, AGENT_EV_TEXT_MESSAGE_CONTENT, "a") == AGENT_OK,
       "a delta needs none");
    agent_open_free(&o);

    return done_testing();
}
