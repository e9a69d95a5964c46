/*
 * The scanner of chunks against the general path: a chunk that the scanner
 * takes means the same to both, alone and behind other chunks, and so does one
 * that is taken for the form of another.
 *
 * The input: chunks, a line each; also all of it as one chunk.
 */

#include "agent_chat.h"
#include "agent_chat_scan.h"
#include "collect.h"

#include <assert.h>
#include <stdint.h>

static const agent_codec_t *
codec(void)
{
    const agent_codec_t *c = agent_codec_find(AGENT_STR("openai"));

    assert(c != NULL && c->event == agent_chat_event);

    return c;
}

static agent_sse_event_t
event(agent_str_t chunk)
{
    agent_sse_event_t ev;

    memset(&ev, 0, sizeof(agent_sse_event_t));
    ev.data = chunk;

    return ev;
}

/* The general path says this text and nothing else. */
static void
check_meaning(agent_str_t chunk, const agent_chat_scan_t *scan)
{
    void *dec;
    agent_rc_t rc;
    agent_buf_t text, reasoning;
    agent_sse_event_t ev = event(chunk);
    collect_t c;

    collect_init(&c);
    agent_buf_init(&text, &agent_alloc_libc);
    agent_buf_init(&reasoning, &agent_alloc_libc);

    dec = codec()->open(collect_emit, &c, AGENT_STR("s"), &agent_alloc_libc);
    assert(dec != NULL);

    rc = agent_json_unescape(&text, scan->text);
    assert(rc == AGENT_OK);
    rc = agent_json_unescape(&reasoning, scan->reasoning);
    assert(rc == AGENT_OK);
    assert(text.len == 0 || reasoning.len == 0);

    rc = agent_chat_event_tree(dec, &ev);
    assert(rc == AGENT_OK && c.ndeltas == (text.len + reasoning.len != 0));

    /* the end tells whether it had taken note of a reason or of usage */

    rc = codec()->end(dec, 1);
    assert(rc == AGENT_DONE && c.nerror == 1 && !c.has_usage && c.nwrong == 0);
    assert(c.fault.code == AGENT_CODE_UPSTREAM_TRUNCATED);
    assert(c.ncalls == 0 && c.refusal.len == 0);
    assert(collect_same_buf(&c.text, &text));
    assert(collect_same_buf(&c.reasoning, &reasoning));

    codec()->close(dec);
    agent_buf_free(&text);
    agent_buf_free(&reasoning);
    collect_free(&c);
}

/* What the form of a chunk before lets pass is what the scanner says. */
static void
check_form(const agent_chat_form_t *form, agent_str_t chunk, agent_rc_t rc,
           const agent_chat_scan_t *scan)
{
    agent_chat_scan_t known;

    if (agent_chat_form_match(form, chunk, &known) == AGENT_OK) {
        assert(rc == AGENT_OK);
        assert(agent_str_eq(known.text, scan->text));
        assert(agent_str_eq(known.reasoning, scan->reasoning));
    }
}

/* A copy of exactly that size: ASan sees a byte too far. */
static void
check_chunk(agent_chat_form_t *form, agent_str_t chunk)
{
    char *copy = malloc(chunk.len != 0 ? chunk.len : 1);
    agent_rc_t rc;
    agent_str_t s = {copy, chunk.len};
    json_t *root;
    agent_chat_scan_t scan;

    assert(copy != NULL);

    if (chunk.len != 0) {
        memcpy(copy, chunk.data, chunk.len);
    }

    rc = agent_chat_scan(s, &scan);
    assert(rc == AGENT_OK || rc == AGENT_DECLINED);
    check_form(form, s, rc, &scan);

    if (rc == AGENT_OK) {
        agent_chat_form_learn(form, s, &scan);
        check_form(form, s, rc, &scan);

        root = json_loadb(s.data, s.len,
                          JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
        assert(json_is_object(root));
        json_decref(root);

        check_meaning(s, &scan);
    }

    free(copy);
}

/* All lines through a decoder; how it answered each is added to "answers". */
static void
decode(collect_t *c, agent_buf_t *answers, agent_str_t lines, int tree)
{
    void *dec;
    agent_rc_t rc = AGENT_OK;
    const char *eol;
    agent_str_t line;
    agent_sse_event_t ev;

    collect_init(c);
    agent_buf_init(answers, &agent_alloc_libc);

    dec = codec()->open(collect_emit, c, AGENT_STR("s"), &agent_alloc_libc);
    assert(dec != NULL);

    while (lines.len != 0) {
        line = lines;
        eol = memchr(lines.data, '\n', lines.len);

        if (eol != NULL) {
            line.len = (size_t) (eol - line.data);
        }

        lines.data += line.len + (eol != NULL);
        lines.len -= line.len + (eol != NULL);

        ev = event(line);
        rc = tree ? agent_chat_event_tree(dec, &ev) : codec()->event(dec, &ev);
        assert(rc == AGENT_OK || rc == AGENT_DONE);
        assert((rc == AGENT_DONE) == (c->nfinish + c->nerror != 0));
        agent_buf_add_char(answers, (char) rc);
    }

    rc = codec()->end(dec, 1);
    assert(rc == AGENT_DONE && c->nfinish + c->nerror == 1);

    codec()->close(dec);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n;
    const char *eol;
    agent_str_t all = {(const char *) data, size}, line, rest = all;
    collect_t fast, slow;
    agent_buf_t one, two;
    agent_chat_form_t form;

    memset(&form, 0, sizeof(agent_chat_form_t));
    check_chunk(&form, all);

    while (rest.len != 0 && (eol = memchr(rest.data, '\n', rest.len)) != NULL) {
        n = (size_t) (eol - rest.data);
        line.data = rest.data;
        line.len = n;
        check_chunk(&form, line);
        rest.data += n + 1;
        rest.len -= n + 1;
    }

    decode(&fast, &one, all, 0);
    decode(&slow, &two, all, 1);

    assert(collect_same(&fast, &slow) && collect_same_buf(&one, &two));

    collect_free(&fast);
    collect_free(&slow);
    agent_buf_free(&one);
    agent_buf_free(&two);

    return 0;
}
