/* Cursors: what parses prints as it was, what is printed parses; a frame keeps
 * to its announced length. */

#include "agent_event.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* 1 when s is a number of 64 bits as the grammar has it, by comparing digits
 * instead of counting them up. */
static int
is_number(agent_str_t s)
{
    size_t i;
    static const char max[] = "18446744073709551615";

    for (i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9') {
            return 0;
        }
    }

    if (s.len == 0 || (s.data[0] == '0' && s.len > 1)) {
        return 0;
    }

    return s.len < sizeof(max) - 1 ||
           (s.len == sizeof(max) - 1 && memcmp(s.data, max, s.len) <= 0);
}

static int
is_cursor(agent_str_t s)
{
    const char *dash = s.len != 0 ? memchr(s.data, '-', s.len) : NULL;
    agent_str_t left = s, right;

    if (dash == NULL) {
        return is_number(s);
    }

    left.len = (size_t) (dash - s.data);
    right.data = dash + 1;
    right.len = s.len - left.len - 1;

    return is_number(left) && is_number(right);
}

static void
check_text(agent_str_t s)
{
    char buf[AGENT_CURSOR_MAX];
    size_t n, skip;
    agent_rc_t rc;
    agent_cursor_t c = {1, 2, 3}, again;

    rc = agent_cursor_parse(s, &c);

    assert(rc == AGENT_OK || rc == AGENT_INVALID);
    assert((rc == AGENT_OK) == is_cursor(s));

    if (rc != AGENT_OK) {
        assert(c.generation == 1 && c.seq == 2 && c.bare == 3);
        return;
    }

    n = agent_cursor_print(buf, c.generation, c.seq);
    assert(n <= sizeof(buf));

    /* a bare one is printed with a generation before it */

    assert(!c.bare || c.generation == 0);
    skip = c.bare ? 2 : 0;
    assert(n - skip == s.len && memcmp(buf + skip, s.data, s.len) == 0);

    s.data = buf;
    s.len = n;
    assert(agent_cursor_parse(s, &again) == AGENT_OK && !again.bare);
    assert(again.generation == c.generation && again.seq == c.seq);
}

/* Two numbers, a type of event, and the rest as its id and body. */
static void
check_frame(const uint8_t *data, size_t size)
{
    uint64_t numbers[2] = {0, 0};
    char *frame, *end, buf[AGENT_CURSOR_MAX];
    size_t n, max;
    agent_str_t s;
    agent_cursor_t c;
    agent_event_t ev;

    n = size < sizeof(numbers) ? size : sizeof(numbers);
    memcpy(numbers, data, n);
    data += n;
    size -= n;

    s.data = buf;
    s.len = agent_cursor_print(buf, numbers[0], numbers[1]);
    assert(s.len <= sizeof(buf));
    assert(agent_cursor_parse(s, &c) == AGENT_OK && !c.bare);
    assert(c.generation == numbers[0] && c.seq == numbers[1]);

    if (size == 0) {
        return;
    }

    ev.type = (agent_event_type_t) (*data % AGENT_EV_COUNT);
    ev.id.data = (const char *) data + 1;
    ev.id.len = (size - 1) / 2;
    ev.body.data = ev.id.data + ev.id.len;
    ev.body.len = size - 1 - ev.id.len;

    max = agent_frame_agui_len(&ev);
    frame = malloc(max); /* of that size: ASan sees what goes beyond */
    assert(frame != NULL);

    end = agent_frame_agui(frame, numbers[0], numbers[1], &ev);
    n = (size_t) (end - frame);

    assert(n <= max && n >= s.len + 12);
    assert(memcmp(frame, "id: ", 4) == 0);
    assert(memcmp(frame + 4, s.data, s.len) == 0);
    assert(memcmp(frame + 4 + s.len, "\ndata: ", 7) == 0);
    assert(memcmp(end - 2, "\n\n", 2) == 0);
    assert(n == 4 + s.len + 7 + agent_event_json_len(&ev) + 2);

    free(frame);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    agent_str_t s = {(const char *) data, size};

    check_text(s);
    check_frame(data, size);

    return 0;
}
