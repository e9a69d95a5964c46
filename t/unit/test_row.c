/* agent_row.c: rows byte for byte, what is too large, calls of earlier pages. */

#include "agent_row.h"
#include "tap.h"

#include <stdlib.h>

static void
test_rows(void)
{
    agent_rows_t r;
    agent_buf_t b;
    agent_event_t ev;

    agent_rows_init(&r, &agent_alloc_libc);
    agent_buf_init(&b, &agent_alloc_libc);

    memset(&ev, 0, sizeof(ev));
    ev.type = AGENT_EV_TOOL_CALL_START;
    ev.id = AGENT_STR("c\\\"1");
    ev.body =
        AGENT_STR("{\"type\":\"TOOL_CALL_START\",\"toolCallId\":\"c\\\"1\","
                  "\"toolCallName\":\"n\",\"parentMessageId\":\"m\"}");
    ok(agent_rows_note(&r, &ev) == AGENT_OK, "a call is noted");

    ev.type = AGENT_EV_TOOL_CALL_ARGS;
    ev.body = AGENT_STR("{}");
    agent_rows_add(&r, &b, AGENT_STR("r\"1"), 7, AGENT_STR("T"), &ev);
    is_str(agent_buf_str(&b),
           "{\"event_id\":7,\"event_type\":\"TOOL_CALL_ARGS\",\"run_id\":"
           "\"r\\\"1\",\"event_class\":\"delta\",\"span_id\":\"tool:c\\\"1\","
           "\"parent_span_id\":\"message:m\",\"turn_id\":\"message:m\","
           "\"origin_event_type\":\"TOOL_CALL_ARGS\",\"origin_custom_name\":"
           "null,\"unrecoverable_fields\":[],\"created_at\":\"T\","
           "\"is_error\":false,\"payload\":{\"type\":\"TOOL_CALL_ARGS\","
           "\"toolCallId\":\"c\\\"1\",\"delta\":\"{}\"}}",
           "its arguments belong to its message");

    agent_buf_reset(&b);
    ev.id = AGENT_STR("other");
    agent_rows_add(&r, &b, AGENT_STR("r"), 8, AGENT_STR("T"), &ev);
    ok(strstr(b.data, "\"parent_span_id\":null,\"turn_id\":null") != NULL,
       "of a call whose start is gone nothing is known");

    agent_buf_reset(&b);
    ev.type = AGENT_EV_RUN_ERROR;
    ev.id = AGENT_STR("");
    ev.body = AGENT_STR("{\"type\":\"RUN_ERROR\",\"message\":\"x\"}");
    agent_rows_add(&r, &b, AGENT_STR("r"), 9, AGENT_STR("T"), &ev);
    is_str(agent_buf_str(&b),
           "{\"event_id\":9,\"event_type\":\"RUN_ERROR\",\"run_id\":\"r\","
           "\"event_class\":\"fact\",\"span_id\":\"run:r\",\"parent_span_id\":"
           "null,\"turn_id\":null,\"origin_event_type\":\"RUN_ERROR\","
           "\"origin_custom_name\":null,\"unrecoverable_fields\":[],"
           "\"created_at\":\"T\",\"is_error\":true,\"payload\":{\"type\":"
           "\"RUN_ERROR\",\"message\":\"x\"}}",
           "an error");

    agent_rows_free(&r);
    agent_buf_free(&b);
}

static void
test_large(void)
{
    char *text = malloc(AGENT_ROW_MAX + 100);
    agent_rows_t r;
    agent_buf_t b;
    agent_event_t ev;

    agent_rows_init(&r, &agent_alloc_libc);
    agent_buf_init(&b, &agent_alloc_libc);
    memset(text, 'x', AGENT_ROW_MAX + 100);

    memset(&ev, 0, sizeof(ev));
    ev.type = AGENT_EV_RUN_FINISHED;
    ev.body.data = text;
    ev.body.len = AGENT_ROW_MAX;
    agent_rows_add(&r, &b, AGENT_STR("r"), 1, AGENT_STR("T"), &ev);
    ok(b.len > AGENT_ROW_MAX, "the largest payload");

    agent_buf_reset(&b);
    ev.body.len++;
    agent_rows_add(&r, &b, AGENT_STR("r"), 1, AGENT_STR("T"), &ev);
    agent_buf_add_char(&b, '\0');
    ok(b.len < 1000 && strstr(b.data, "\"truncated\":true") != NULL &&
           strstr(b.data, "\"originalType\":\"RUN_FINISHED\"") != NULL,
       "one byte more is left out and says so");

    free(text);
    agent_rows_free(&r);
    agent_buf_free(&b);
}

int
main(void)
{
    test_rows();
    test_large();

    return done_testing();
}
