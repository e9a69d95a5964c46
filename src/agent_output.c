#include "agent_output.h"
#include "agent_json.h"
#include "agent_message.h"

#include <stdio.h>
#include <string.h>

#define AGENT_OUTPUT_MAX (4 * 1024 * 1024)

/* Larger token counts are refused by clients (JavaScript's safe integers). */
#define AGENT_OUTPUT_COUNT INT64_C(9007199254740991)

agent_rc_t
agent_output_init(agent_output_t *o, const agent_encoder_conf_t *conf,
                  const agent_alloc_t *alloc)
{
    const agent_str_t from[] = {conf->thread_id,     conf->run_id,
                                conf->parent_run_id, conf->seed,
                                conf->provider,      conf->model};
    agent_str_t *to[] = {&o->thread_id, &o->run_id,   &o->parent_run_id,
                         &o->seed,      &o->provider, &o->model};
    size_t i, start;

    memset(o, 0, sizeof(agent_output_t));
    o->alloc = alloc;
    o->legacy = conf->legacy;
    o->max = conf->max_output != 0 ? conf->max_output : AGENT_OUTPUT_MAX;

    if (o->max < AGENT_OUTPUT_UNIT * 2) {
        o->max = AGENT_OUTPUT_UNIT * 2;
    }

    agent_usage_init(&o->usage);
    agent_buf_init(&o->strings, alloc);
    (void) agent_buf_reserve(&o->strings, 128);

    for (i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        start = o->strings.len;
        agent_json_escape(&o->strings, from[i]);
        to[i]->len = o->strings.len - start;
    }

    if (!agent_buf_ok(&o->strings)) {
        return AGENT_NOMEM;
    }

    /* only now: the buffer moves while it grows */

    for (i = 0, start = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        to[i]->data = o->strings.data + start;
        start += to[i]->len;
    }

    o->seed.len = agent_json_cut(o->seed, AGENT_OUTPUT_SEED);

    return AGENT_OK;
}

void
agent_output_free(agent_output_t *o)
{
    size_t i;

    for (i = 0; i < o->nmsgs; i++) {
        agent_buf_free(&o->msgs[i].text);
    }

    for (i = 0; i < o->ncalls; i++) {
        agent_buf_free(&o->calls[i].names);
        agent_buf_free(&o->calls[i].args);
    }

    agent_free(o->alloc, o->msgs);
    agent_free(o->alloc, o->calls);
    agent_buf_free(&o->strings);
}

/* --- messages and calls --------------------------------------------------- */

/* Room for one more element of "size" bytes behind n of them. */
static agent_rc_t
agent_output_grow(agent_output_t *o, void **array, size_t size, size_t n,
                  size_t *cap)
{
    void *p;
    size_t want;

    if (o->nmsgs + o->ncalls >= AGENT_OUTPUT_ITEMS) {
        return AGENT_TOO_LARGE;
    }

    if (n < *cap) {
        return AGENT_OK;
    }

    want = *cap ? *cap * 2 : 2;

    p = o->alloc->resize(o->alloc->ctx, *array, want * size);
    if (p == NULL) {
        return AGENT_NOMEM;
    }

    *array = p;
    *cap = want;

    return AGENT_OK;
}

agent_str_t
agent_output_id(const agent_output_t *o, agent_output_id_t id, const char *kind,
                size_t n)
{
    int len;
    agent_str_t s;

    len = snprintf(id, sizeof(agent_output_id_t), "%s_%.*s_%zu", kind,
                   (int) o->seed.len, o->seed.data, n);

    s.data = id;
    s.len = (size_t) len;

    return s;
}

agent_rc_t
agent_output_stage_msg(agent_output_t *o)
{
    void *p = o->msgs;
    agent_rc_t rc;

    rc = agent_output_grow(o, &p, sizeof(agent_output_msg_t), o->nmsgs,
                           &o->msgs_cap);
    o->msgs = p;

    return rc;
}

size_t
agent_output_add_msg(agent_output_t *o, int reasoning)
{
    agent_output_msg_t *m = &o->msgs[o->nmsgs];

    memset(m, 0, sizeof(agent_output_msg_t));
    m->n = ++o->counts[reasoning];
    m->reasoning = reasoning != 0;
    m->first_call = AGENT_OUTPUT_NONE;
    m->last_call = AGENT_OUTPUT_NONE;
    agent_buf_init(&m->text, o->alloc);

    return o->nmsgs++;
}

static unsigned
agent_output_hash(agent_str_t s)
{
    size_t i;
    unsigned h = 2166136261u; /* FNV-1a */

    for (i = 0; i < s.len; i++) {
        h = (h ^ (unsigned char) s.data[i]) * 16777619u;
    }

    return h;
}

/* Walks all calls: AGENT_OUTPUT_ITEMS bounds their number. */
static int
agent_output_id_used(const agent_output_t *o, agent_str_t id, unsigned hash)
{
    size_t i;

    for (i = 0; i < o->ncalls; i++) {
        if (o->calls[i].hash == hash &&
            agent_str_eq(agent_output_call_id(&o->calls[i]), id)) {
            return 1;
        }
    }

    return 0;
}

agent_rc_t
agent_output_stage_call(agent_output_t *o, agent_str_t id, agent_str_t name)
{
    void *p = o->calls;
    size_t n = o->ncalls;
    agent_rc_t rc;
    agent_buf_t *b;
    agent_output_id_t minted;
    agent_output_call_t *c;

    rc = agent_output_grow(o, &p, sizeof(agent_output_call_t), o->ncalls,
                           &o->calls_cap);
    o->calls = p;

    if (rc != AGENT_OK) {
        return rc;
    }

    c = &o->calls[o->ncalls];

    memset(c, 0, sizeof(agent_output_call_t));
    agent_buf_init(&c->names, o->alloc);
    agent_buf_init(&c->args, o->alloc);

    b = &c->names;

    if (agent_id_check(id) == NULL) {
        agent_json_escape(b, id);
    }

    c->hash = agent_output_hash(agent_buf_str(b));

    /*
     * The reducer would add the arguments of a second call of the same id to
     * those of the first; a minted id may be the provider's too.
     */

    while (b->len == 0 || agent_output_id_used(o, agent_buf_str(b), c->hash)) {
        if (!agent_buf_ok(b)) {
            break;
        }

        agent_buf_reset(b);
        agent_buf_add_str(b, agent_output_id(o, minted, "call", ++n));

        c->hash = agent_output_hash(agent_buf_str(b));
    }

    c->id_len = b->len;
    agent_json_escape(b, name);

    if (!agent_buf_ok(b)) {
        agent_buf_free(b);
        return AGENT_NOMEM;
    }

    return AGENT_OK;
}

size_t
agent_output_add_call(agent_output_t *o, size_t msg)
{
    agent_output_msg_t *m = &o->msgs[msg];
    agent_output_call_t *c = &o->calls[o->ncalls];

    c->msg = msg;
    c->open = 1;
    c->next_call = AGENT_OUTPUT_NONE;

    if (m->last_call == AGENT_OUTPUT_NONE) {
        m->first_call = o->ncalls;
    } else {
        o->calls[m->last_call].next_call = o->ncalls;
    }

    m->last_call = o->ncalls;

    return o->ncalls++;
}

void
agent_output_drop_call(agent_output_t *o)
{
    agent_buf_free(&o->calls[o->ncalls].names);
}

/* --- texts ---------------------------------------------------------------- */

/* Bytes to drop from the head of s: at least n, but no part of a unit. */
static size_t
agent_output_head(agent_str_t s, size_t n)
{
    size_t cut;

    if (s.len < AGENT_OUTPUT_UNIT || n > s.len - AGENT_OUTPUT_UNIT) {
        return s.len;
    }

    cut = agent_json_cut(s, n + AGENT_OUTPUT_UNIT - 1);

    return cut >= n ? cut : s.len;
}

/* Of all texts the i-th: those of messages, then arguments. */
static agent_buf_t *
agent_output_nth(const agent_output_t *o, size_t i)
{
    return i < o->nmsgs ? &o->msgs[i].text : &o->calls[i - o->nmsgs].args;
}

/* Bytes left when every text is cut to "level". */
static size_t
agent_output_below(const agent_output_t *o, size_t level)
{
    size_t i, n, sum = 0;

    for (i = 0; i < o->nmsgs + o->ncalls; i++) {
        n = agent_output_nth(o, i)->len;
        sum += n < level ? n : level;
    }

    return sum;
}

/*
 * Cuts the longest texts, all to the same level, until at most "keep" bytes
 * are left.  A quarter of "max" goes each time (agent_output_room), which pays
 * for the walks and the moves.
 */
static void
agent_output_trim(agent_output_t *o, size_t keep)
{
    size_t i, n, low = 0, high = keep, level;
    agent_buf_t *text;

    while (low < high) {
        level = high - (high - low) / 2;

        if (agent_output_below(o, level) <= keep) {
            low = level;
        } else {
            high = level - 1;
        }
    }

    for (i = 0; i < o->nmsgs + o->ncalls; i++) {
        text = agent_output_nth(o, i);

        if (text->len > low) {
            n = agent_output_head(agent_buf_str(text), text->len - low);
            memmove(text->data, text->data + n, text->len - n);
            text->len -= n;
            o->bytes -= n;
        }
    }
}

agent_rc_t
agent_output_room(agent_output_t *o, agent_buf_t *text, size_t n)
{
    size_t keep;
    agent_rc_t rc;

    if (n > o->max) {
        n = o->max;
    }

    if (n > o->max - o->bytes) {
        keep = o->max - o->max / 4;
        o->trimmed = 1;
        agent_output_trim(o, keep > n ? keep - n : 0);
    }

    rc = agent_buf_reserve(text, n);

    /* a failed buffer would stay mute after memory has come back */

    text->failed = 0;

    return rc;
}

void
agent_output_keep(agent_output_t *o, agent_buf_t *text, agent_str_t s)
{
    size_t n;

    if (s.len > o->max) {
        n = agent_output_head(s, s.len - o->max);
        s.data += n;
        s.len -= n;
    }

    agent_buf_add_str(text, s);
    o->bytes += s.len;
}

/* --- as JSON -------------------------------------------------------------- */

void
agent_output_set_usage(agent_output_t *o, const agent_usage_t *usage)
{
    size_t i;
    int64_t *counts[] = {&o->usage.input,  &o->usage.output,
                         &o->usage.total,  &o->usage.reasoning,
                         &o->usage.cached, &o->usage.cache_write};

    if (usage == NULL) {
        return;
    }

    o->usage = *usage;

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (*counts[i] > AGENT_OUTPUT_COUNT) {
            *counts[i] = -1;
        }
    }
}

static void
agent_output_member(agent_buf_t *b, const char *key, agent_str_t value)
{
    agent_buf_add_lit(b, ",\"");
    agent_buf_add(b, key, strlen(key));
    agent_buf_add_lit(b, "\":\"");
    agent_buf_add_str(b, value);
    agent_buf_add_char(b, '"');
}

void
agent_output_begin(agent_buf_t *b, agent_event_type_t type,
                   const agent_output_pair_t *members, size_t n)
{
    size_t i;

    agent_buf_reset(b);
    agent_buf_add_lit(b, "{\"type\":\"");
    agent_buf_add_str(b, agent_event_name(type));
    agent_buf_add_char(b, '"');

    for (i = 0; i < n; i++) {
        agent_output_member(b, members[i].key, members[i].value);
    }
}

static void
agent_output_usage(const agent_output_t *o, agent_buf_t *b)
{
    const struct {
        const char *key;
        int64_t n;
    } counts[] = {
        {"inputTokens", o->usage.input},
        {"outputTokens", o->usage.output},
        {"totalTokens", o->usage.total},
        {"reasoningTokens", o->usage.reasoning},
        {"cachedInputTokens", o->usage.cached},
        {"cacheWriteInputTokens", o->usage.cache_write},
    };
    size_t i, start;

    if (!agent_usage_given(&o->usage)) {
        return;
    }

    agent_buf_add_lit(b, ",\"usage\":[");
    start = b->len;

    if (o->provider.len != 0) {
        agent_output_member(b, "provider", o->provider);
    }

    if (o->model.len != 0) {
        agent_output_member(b, "model", o->model);
    }

    for (i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (counts[i].n >= 0) {
            agent_buf_add_lit(b, ",\"");
            agent_buf_add(b, counts[i].key, strlen(counts[i].key));
            agent_buf_add_lit(b, "\":");
            agent_buf_add_uint(b, (uint64_t) counts[i].n);
        }
    }

    agent_buf_add_lit(b, "}]");

    if (agent_buf_ok(b)) {
        b->data[start] = '{'; /* the comma of the first member */
    }
}

void
agent_output_started(const agent_output_t *o, agent_buf_t *b)
{
    const agent_output_pair_t members[] = {
        {"threadId", o->thread_id},
        {"runId", o->run_id},
        {"protocolVersion", AGENT_STR("1.0")},
        {"parentRunId", o->parent_run_id},
    };

    agent_output_begin(b, AGENT_EV_RUN_STARTED, members,
                       o->parent_run_id.len != 0 ? 4 : 3);
    agent_buf_add_char(b, '}');
}

void
agent_output_finished(const agent_output_t *o, agent_buf_t *b,
                      agent_run_outcome_t outcome, agent_finish_t finish)
{
    size_t i;
    const char *word = agent_finish_name(finish);
    const agent_output_pair_t ids[] = {{"threadId", o->thread_id},
                                       {"runId", o->run_id}};

    agent_output_begin(b, AGENT_EV_RUN_FINISHED, ids, 2);

    if (outcome == AGENT_RUN_CANCELLED) {
        agent_buf_add_lit(b, ",\"outcome\":{\"type\":\"cancelled\"}");

    } else if (!o->legacy || o->ncalls == 0) {
        agent_buf_add_lit(b, ",\"outcome\":{\"type\":\"success\"");

        /* no call is answered within a run */

        for (i = 0; i < o->ncalls; i++) {
            if (i == 0) {
                agent_buf_add_lit(b, ",\"pendingToolCallIds\":[\"");
            } else {
                agent_buf_add_lit(b, ",\"");
            }

            agent_buf_add_str(b, agent_output_call_id(&o->calls[i]));
            agent_buf_add_char(b, '"');
        }

        if (o->ncalls != 0) {
            agent_buf_add_char(b, ']');
        }

        agent_buf_add_char(b, '}');
    }

    if (*word != '\0') {
        agent_buf_add_lit(b, ",\"metadata\":{\"finishReason\":\"");
        agent_buf_add(b, word, strlen(word));
        agent_buf_add_lit(b, "\"}");
    }

    agent_output_usage(o, b);
    agent_buf_add_char(b, '}');
}

void
agent_output_failed(const agent_output_t *o, agent_buf_t *b,
                    const agent_fault_t *fault)
{
    agent_str_t code, message;

    code.data = agent_code_name(fault->code);
    code.len = strlen(code.data);
    message.data = fault->message;
    message.len = strlen(fault->message);

    agent_output_begin(b, AGENT_EV_RUN_ERROR, NULL, 0);
    agent_buf_add_lit(b, ",\"message\":");
    agent_json_quote(b, message.len != 0 ? message : code);
    agent_output_member(b, "code", code);
    agent_output_usage(o, b);
    agent_buf_add_char(b, '}');

    if (!agent_buf_ok(b)) {
        const agent_output_pair_t pairs[] = {{"message", code}, {"code", code}};

        agent_output_begin(b, AGENT_EV_RUN_ERROR, pairs, 2);
        agent_buf_add_char(b, '}');
    }
}

static void
agent_output_calls(const agent_output_t *o, const agent_output_msg_t *m,
                   agent_buf_t *b)
{
    size_t i;
    const agent_output_call_t *c;

    if (m->first_call == AGENT_OUTPUT_NONE) {
        return;
    }

    agent_buf_add_lit(b, ",\"toolCalls\":[");

    for (i = m->first_call; i != AGENT_OUTPUT_NONE; i = c->next_call) {
        c = &o->calls[i];

        if (i != m->first_call) {
            agent_buf_add_char(b, ',');
        }

        agent_buf_add_lit(b, "{\"id\":\"");
        agent_buf_add_str(b, agent_output_call_id(c));
        agent_buf_add_lit(b, "\",\"type\":\"function\",\"function\":{"
                             "\"name\":\"");
        agent_buf_add_str(b, agent_output_call_name(c));
        agent_buf_add_lit(b, "\",\"arguments\":\"");
        agent_buf_add_str(b, agent_buf_str(&c->args));
        agent_buf_add_lit(b, "\"}}");
    }

    agent_buf_add_char(b, ']');
}

void
agent_output_messages(const agent_output_t *o, agent_buf_t *b)
{
    size_t i;
    agent_role_t role;
    agent_output_id_t id;
    const agent_output_msg_t *m;

    for (i = 0; i < o->nmsgs; i++) {
        m = &o->msgs[i];
        role = m->reasoning ? AGENT_ROLE_REASONING : AGENT_ROLE_ASSISTANT;

        if (i > 0) {
            agent_buf_add_char(b, ',');
        }

        agent_buf_add_lit(b, "{\"id\":\"");
        agent_buf_add_str(
            b, agent_output_id(o, id, m->reasoning ? "rsm" : "msg", m->n));
        agent_buf_add_char(b, '"');
        agent_output_member(b, "role", agent_role_name(role));

        if (m->spoken) {
            agent_output_member(b, "content", agent_buf_str(&m->text));
        }

        agent_output_calls(o, m, b);
        agent_buf_add_char(b, '}');
    }
}

void
agent_output_snapshot(const agent_output_t *o, agent_buf_t *b,
                      agent_str_t input)
{
    agent_output_begin(b, AGENT_EV_MESSAGES_SNAPSHOT, NULL, 0);
    agent_buf_add_lit(b, ",\"messages\":[");
    agent_buf_add_str(b, input);

    if (input.len != 0 && o->nmsgs != 0) {
        agent_buf_add_char(b, ',');
    }

    agent_output_messages(o, b);
    agent_buf_add_lit(b, "]}");
}

void
agent_output_text(const agent_output_t *o, agent_buf_t *b)
{
    size_t i;

    for (i = 0; i < o->nmsgs; i++) {
        if (!o->msgs[i].reasoning) {
            agent_buf_add_str(b, agent_buf_str(&o->msgs[i].text));
        }
    }
}

void
agent_output_answer(const agent_output_t *o, agent_buf_t *b)
{
    static const char *status[] = {"running", "finished", "cancelled", "error"};
    agent_str_t s = {status[o->outcome], strlen(status[o->outcome])};
    const char *word = agent_finish_name(o->finish);

    agent_buf_add_lit(b, "{\"threadId\":\"");
    agent_buf_add_str(b, o->thread_id);
    agent_buf_add_char(b, '"');
    agent_output_member(b, "runId", o->run_id);
    agent_output_member(b, "status", s);
    agent_buf_add_lit(b, ",\"text\":\"");
    agent_output_text(o, b);
    agent_buf_add_lit(b, "\",\"messages\":[");
    agent_output_messages(o, b);
    agent_buf_add_char(b, ']');

    if (*word != '\0') {
        s.data = word;
        s.len = strlen(word);
        agent_output_member(b, "finishReason", s);
    }

    if (o->outcome == AGENT_RUN_FINISHED) {
        agent_buf_add_lit(b, ",\"outcome\":{\"type\":\"success\"}");
    } else if (o->outcome == AGENT_RUN_CANCELLED) {
        agent_buf_add_lit(b, ",\"outcome\":{\"type\":\"cancelled\"}");
    }

    agent_output_usage(o, b);
    agent_buf_add_char(b, '}');
}
