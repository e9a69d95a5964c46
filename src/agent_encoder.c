#include "agent_encoder.h"
#include "agent_code.h"
#include "agent_json.h"
#include "agent_output.h"

#define AGENT_ENCODER_DELTA (256 * 1024)

/* The two kinds of messages that are spoken piece by piece. */
enum { AGENT_VOICE_TEXT, AGENT_VOICE_REASONING };

/* What a call of agent_encoder_close() closes. */
#define AGENT_CLOSE_TEXT      1u
#define AGENT_CLOSE_REASONING 2u
#define AGENT_CLOSE_CALLS     4u
#define AGENT_CLOSE_ALL       7u

static const struct {
    agent_event_type_t start;
    agent_event_type_t content;
    agent_event_type_t end;
    agent_str_t role;
    const char *kind; /* of its id */
    unsigned closes;  /* what it cannot stand beside */
} agent_voices[] = {
    {AGENT_EV_TEXT_MESSAGE_START, AGENT_EV_TEXT_MESSAGE_CONTENT,
     AGENT_EV_TEXT_MESSAGE_END, agent_str("assistant"), "msg",
     AGENT_CLOSE_REASONING | AGENT_CLOSE_CALLS},
    {AGENT_EV_REASONING_MESSAGE_START, AGENT_EV_REASONING_MESSAGE_CONTENT,
     AGENT_EV_REASONING_MESSAGE_END, agent_str("reasoning"), "rsm",
     AGENT_CLOSE_TEXT},
};

typedef struct {
    size_t msg;     /* the open message, AGENT_OUTPUT_NONE: none */
    agent_str_t id; /* in "space" */
    agent_output_id_t space;
} agent_voice_t;

/* Where events go: to the run's log, or as a prelude to one reader. */
typedef struct {
    agent_event_pt emit;
    void *ctx;
    agent_buf_t json; /* the event being made */
} agent_sink_t;

/*
 * A state changes only after emit has taken the event that announces it: an
 * event that was refused has not happened, and a prelude asked for inside emit
 * stands for what came before the event at hand.
 */
struct agent_encoder_s {
    agent_sink_t log;
    agent_output_t output;
    size_t max_delta;

    /* what is open */
    agent_voice_t voices[2];
    size_t span;      /* number of the reasoning span, 0: none */
    size_t nopen;     /* tool calls */
    size_t open_from; /* tool calls before it are closed */

    size_t group;    /* the message that the next tool call belongs to */
    size_t nnumbers; /* numbers of tool calls that have been used */
    int started;
    agent_fault_t fault;
};

/* --- events --------------------------------------------------------------- */

static agent_rc_t
agent_encoder_emit(agent_sink_t *s, agent_event_type_t type, agent_str_t id)
{
    const agent_event_t ev = {
        .type = type, .id = id, .body = agent_buf_str(&s->json)};

    if (!agent_buf_ok(&s->json)) {
        return AGENT_NOMEM;
    }

    return s->emit(s->ctx, &ev);
}

static agent_rc_t
agent_encoder_send_json(agent_sink_t *s, agent_event_type_t type)
{
    return agent_encoder_emit(s, type, AGENT_STR(""));
}

/* The first member is the id of what the event opens or closes. */
static agent_rc_t
agent_encoder_send(agent_sink_t *s, agent_event_type_t type,
                   const agent_output_pair_t *members, size_t n)
{
    agent_output_begin(&s->json, type, members, n);
    agent_buf_add_char(&s->json, '}');

    return agent_encoder_emit(s, type, members[0].value);
}

/* An event that says nothing but an id. */
static agent_rc_t
agent_encoder_mark(agent_sink_t *s, agent_event_type_t type, const char *key,
                   agent_str_t id)
{
    const agent_output_pair_t member = {key, id};

    return agent_encoder_send(s, type, &member, 1);
}

static agent_rc_t
agent_encoder_send_voice(const agent_encoder_t *e, agent_sink_t *s, int which)
{
    const agent_output_pair_t members[] = {
        {"messageId", e->voices[which].id},
        {"role", agent_voices[which].role},
    };

    return agent_encoder_send(s, agent_voices[which].start, members, 2);
}

static agent_rc_t
agent_encoder_send_span(const agent_encoder_t *e, agent_sink_t *s,
                        agent_event_type_t type, size_t n)
{
    agent_output_id_t id;

    return agent_encoder_mark(s, type, "messageId",
                              agent_output_id(&e->output, id, "rsn", n));
}

/* parent: the number of the message that the call belongs to. */
static agent_rc_t
agent_encoder_send_call(const agent_encoder_t *e, agent_sink_t *s,
                        const agent_output_call_t *c, size_t parent)
{
    agent_output_id_t id;
    const agent_output_pair_t members[] = {
        {"toolCallId", agent_output_call_id(c)},
        {"toolCallName", agent_output_call_name(c)},
        {"parentMessageId", agent_output_id(&e->output, id, "msg", parent)},
    };

    return agent_encoder_send(s, AGENT_EV_TOOL_CALL_START, members, 3);
}

/* The hot path: text of something open, in pieces of at most max_delta. */
static agent_rc_t
agent_encoder_say(agent_encoder_t *e, agent_event_type_t type, agent_str_t id,
                  agent_buf_t *kept, agent_str_t text)
{
    agent_rc_t rc;
    agent_event_t ev;

    ev.type = type;
    ev.id = id;

    while (text.len != 0) {
        ev.body = text;

        if (text.len > e->max_delta) {
            ev.body.len = agent_json_cut(text, e->max_delta);

            if (ev.body.len == 0) {
                return AGENT_INVALID;
            }
        }

        if ((rc = agent_output_room(&e->output, kept, ev.body.len)) !=
                AGENT_OK ||
            (rc = e->log.emit(e->log.ctx, &ev)) != AGENT_OK) {
            return rc;
        }

        agent_output_keep(&e->output, kept, ev.body);

        text.data += ev.body.len;
        text.len -= ev.body.len;
    }

    return AGENT_OK;
}

/* --- closing -------------------------------------------------------------- */

static agent_rc_t
agent_encoder_close_voice(agent_encoder_t *e, int which)
{
    agent_rc_t rc;
    agent_voice_t *v = &e->voices[which];

    if (v->msg == AGENT_OUTPUT_NONE) {
        return AGENT_OK;
    }

    rc = agent_encoder_mark(&e->log, agent_voices[which].end, "messageId",
                            v->id);
    if (rc == AGENT_OK) {
        v->msg = AGENT_OUTPUT_NONE;
    }

    return rc;
}

static agent_rc_t
agent_encoder_close_calls(agent_encoder_t *e)
{
    agent_rc_t rc;
    agent_output_call_t *c;

    for (; e->nopen != 0; e->open_from++) {
        c = &e->output.calls[e->open_from];

        if (!c->open) {
            continue;
        }

        if (!c->said) {
            rc = agent_encoder_say(e, AGENT_EV_TOOL_CALL_ARGS,
                                   agent_output_call_id(c), &c->args,
                                   AGENT_STR("{}"));
            if (rc != AGENT_OK) {
                return rc;
            }

            c->said = 1;
            c->filled = 1;
        }

        rc = agent_encoder_mark(&e->log, AGENT_EV_TOOL_CALL_END, "toolCallId",
                                agent_output_call_id(c));
        if (rc != AGENT_OK) {
            return rc;
        }

        c->open = 0;
        e->nopen--;
    }

    return AGENT_OK;
}

static agent_rc_t
agent_encoder_close(agent_encoder_t *e, unsigned what)
{
    agent_rc_t rc = AGENT_OK;

    if (what & AGENT_CLOSE_TEXT) {
        rc = agent_encoder_close_voice(e, AGENT_VOICE_TEXT);
    }

    if (rc == AGENT_OK && (what & AGENT_CLOSE_REASONING)) {
        rc = agent_encoder_close_voice(e, AGENT_VOICE_REASONING);

        if (rc == AGENT_OK && e->span != 0) {
            rc = agent_encoder_send_span(e, &e->log, AGENT_EV_REASONING_END,
                                         e->span);
            e->span = rc == AGENT_OK ? 0 : e->span;
        }
    }

    if (rc == AGENT_OK && (what & AGENT_CLOSE_CALLS)) {
        rc = agent_encoder_close_calls(e);
    }

    return rc;
}

/* --- deltas --------------------------------------------------------------- */

static agent_rc_t
agent_encoder_open_voice(agent_encoder_t *e, int which)
{
    size_t n = e->output.counts[which] + 1;
    agent_rc_t rc;
    agent_voice_t *v = &e->voices[which];

    if ((rc = agent_encoder_close(e, agent_voices[which].closes)) != AGENT_OK ||
        (rc = agent_output_stage_msg(&e->output)) != AGENT_OK) {
        return rc;
    }

    if (which == AGENT_VOICE_REASONING && e->span == 0) {
        rc = agent_encoder_send_span(e, &e->log, AGENT_EV_REASONING_START, n);
        if (rc != AGENT_OK) {
            return rc;
        }

        e->span = n;
    }

    v->id = agent_output_id(&e->output, v->space, agent_voices[which].kind, n);

    rc = agent_encoder_send_voice(e, &e->log, which);
    if (rc != AGENT_OK) {
        return rc;
    }

    v->msg = agent_output_add_msg(&e->output, which == AGENT_VOICE_REASONING);
    e->output.msgs[v->msg].spoken = 1;

    if (which == AGENT_VOICE_TEXT) {
        e->group = v->msg;

    } else if (e->nopen == 0) {
        /*
         * Providers want what was thought between a text and a call to stand
         * between them, so the call gets a message of its own behind this
         * one; calls that run in parallel stay together.
         */

        e->group = AGENT_OUTPUT_NONE;
    }

    return AGENT_OK;
}

static agent_rc_t
agent_encoder_speak(agent_encoder_t *e, int which, agent_str_t text)
{
    agent_rc_t rc;
    agent_voice_t *v = &e->voices[which];

    if (text.len == 0) {
        return AGENT_OK;
    }

    if (v->msg == AGENT_OUTPUT_NONE) {
        rc = agent_encoder_open_voice(e, which);
        if (rc != AGENT_OK) {
            return rc;
        }
    }

    return agent_encoder_say(e, agent_voices[which].content, v->id,
                             &e->output.msgs[v->msg].text, text);
}

static agent_rc_t
agent_encoder_call_start(agent_encoder_t *e, const agent_delta_t *d)
{
    size_t i, parent;
    agent_rc_t rc;
    agent_output_t *o = &e->output;

    if (d->call > e->nnumbers) {
        return AGENT_INVALID;
    }

    rc = agent_encoder_close(e, AGENT_CLOSE_TEXT | AGENT_CLOSE_REASONING);

    if (rc != AGENT_OK || (rc = agent_output_stage_msg(o)) != AGENT_OK ||
        (rc = agent_output_stage_call(o, d->id, d->name)) != AGENT_OK) {
        return rc;
    }

    parent = e->group != AGENT_OUTPUT_NONE ? o->msgs[e->group].n
                                           : o->counts[AGENT_VOICE_TEXT] + 1;

    rc = agent_encoder_send_call(e, &e->log, &o->calls[o->ncalls], parent);
    if (rc != AGENT_OK) {
        agent_output_drop_call(o);
        return rc;
    }

    if (e->group == AGENT_OUTPUT_NONE) {
        e->group = agent_output_add_msg(o, 0);
    }

    i = agent_output_add_call(o, e->group);
    e->nopen++;

    /* a number that comes again is another model answer's */

    o->calls[d->call].latest = i;

    if (d->call == e->nnumbers) {
        e->nnumbers++;
    }

    return AGENT_OK;
}

static agent_rc_t
agent_encoder_call_args(agent_encoder_t *e, const agent_delta_t *d)
{
    size_t i;
    agent_rc_t rc;
    agent_output_call_t *c;

    if (d->call >= e->nnumbers) {
        return AGENT_INVALID;
    }

    i = e->output.calls[d->call].latest;
    c = &e->output.calls[i];

    if (d->text.len == 0 || c->filled) {
        return AGENT_OK;
    }

    if (!c->open) {
        /* a text came between two halves of the arguments: opened again */

        if ((rc = agent_encoder_close(e, AGENT_CLOSE_TEXT)) != AGENT_OK ||
            (rc = agent_encoder_send_call(
                 e, &e->log, c, e->output.msgs[c->msg].n)) != AGENT_OK) {
            return rc;
        }

        c->open = 1;
        e->nopen++;

        if (i < e->open_from) {
            e->open_from = i;
        }
    }

    rc = agent_encoder_say(e, AGENT_EV_TOOL_CALL_ARGS, agent_output_call_id(c),
                           &c->args, d->text);

    if (c->args.len != 0) {
        c->said = 1;
    }

    return rc;
}

/* --- the life of a run ---------------------------------------------------- */

agent_encoder_t *
agent_encoder_create(const agent_encoder_conf_t *conf, agent_event_pt emit,
                     void *ctx, const agent_alloc_t *alloc)
{
    agent_encoder_t *e;

    e = agent_calloc(alloc, sizeof(agent_encoder_t));
    if (e == NULL) {
        return NULL;
    }

    e->log.emit = emit;
    e->log.ctx = ctx;
    e->max_delta = conf->max_delta != 0 ? conf->max_delta : AGENT_ENCODER_DELTA;
    e->group = AGENT_OUTPUT_NONE;
    e->voices[AGENT_VOICE_TEXT].msg = AGENT_OUTPUT_NONE;
    e->voices[AGENT_VOICE_REASONING].msg = AGENT_OUTPUT_NONE;
    agent_buf_init(&e->log.json, alloc);

    if (e->max_delta < AGENT_OUTPUT_UNIT) {
        e->max_delta = AGENT_OUTPUT_UNIT;
    }

    /* the second makes sure of RUN_ERROR, see agent_output_failed() */

    if (agent_output_init(&e->output, conf, alloc) != AGENT_OK ||
        agent_buf_reserve(&e->log.json, 256) != AGENT_OK) {
        agent_encoder_destroy(e);
        return NULL;
    }

    return e;
}

void
agent_encoder_destroy(agent_encoder_t *e)
{
    if (e == NULL) {
        return;
    }

    agent_output_free(&e->output);
    agent_buf_free(&e->log.json);
    agent_free(e->output.alloc, e);
}

agent_rc_t
agent_encoder_start(agent_encoder_t *e)
{
    agent_rc_t rc;

    if (e->started || e->output.outcome != AGENT_RUN_RUNNING) {
        return e->output.outcome == AGENT_RUN_RUNNING ? AGENT_OK : AGENT_DONE;
    }

    agent_output_started(&e->output, &e->log.json);

    rc = agent_encoder_send_json(&e->log, AGENT_EV_RUN_STARTED);
    if (rc == AGENT_OK) {
        e->started = 1;
    }

    return rc;
}

static agent_rc_t
agent_encoder_end(agent_encoder_t *e, agent_run_outcome_t outcome,
                  agent_finish_t finish)
{
    agent_rc_t rc;

    rc = agent_encoder_close(e, AGENT_CLOSE_ALL);
    if (rc != AGENT_OK) {
        return rc;
    }

    agent_output_finished(&e->output, &e->log.json, outcome, finish);

    /* who receives the terminal event may ask for the outcome at once */

    e->output.outcome = outcome;
    e->output.finish = finish;

    rc = agent_encoder_send_json(&e->log, AGENT_EV_RUN_FINISHED);
    if (rc != AGENT_OK) {
        e->output.outcome = AGENT_RUN_RUNNING;
        e->output.finish = AGENT_FINISH_UNKNOWN;
    }

    return rc;
}

agent_rc_t
agent_encoder_cancel(agent_encoder_t *e)
{
    agent_rc_t rc;

    rc = agent_encoder_start(e);

    return rc != AGENT_OK ? rc
                          : agent_encoder_end(e, AGENT_RUN_CANCELLED,
                                              AGENT_FINISH_UNKNOWN);
}

agent_rc_t
agent_encoder_error(agent_encoder_t *e, const agent_fault_t *fault)
{
    agent_rc_t rc;

    if (e->output.outcome != AGENT_RUN_RUNNING) {
        return AGENT_DONE;
    }

    if (fault == NULL) {
        agent_fault_set(&e->fault, AGENT_CODE_INTERNAL, "internal error");
    } else {
        e->fault = *fault;
    }

    agent_output_failed(&e->output, &e->log.json, &e->fault);

    e->output.outcome = AGENT_RUN_ERROR;

    rc = agent_encoder_send_json(&e->log, AGENT_EV_RUN_ERROR);
    if (rc != AGENT_OK) {
        e->output.outcome = AGENT_RUN_RUNNING;
    }

    return rc;
}

agent_rc_t
agent_encoder_delta(agent_encoder_t *e, const agent_delta_t *d)
{
    agent_rc_t rc;

    if (e->output.outcome != AGENT_RUN_RUNNING) {
        return AGENT_DONE;
    }

    if (d->type != AGENT_DELTA_ERROR &&
        (rc = agent_encoder_start(e)) != AGENT_OK) {
        return rc;
    }

    switch (d->type) {
    case AGENT_DELTA_TEXT:
    case AGENT_DELTA_REFUSAL:
        return agent_encoder_speak(e, AGENT_VOICE_TEXT, d->text);

    case AGENT_DELTA_REASONING:
        return agent_encoder_speak(e, AGENT_VOICE_REASONING, d->text);

    case AGENT_DELTA_TOOL_START:
        return agent_encoder_call_start(e, d);

    case AGENT_DELTA_TOOL_ARGS:
        return agent_encoder_call_args(e, d);

    case AGENT_DELTA_FINISH:
        agent_output_set_usage(&e->output, d->usage);
        return agent_encoder_end(e, AGENT_RUN_FINISHED, d->finish);

    case AGENT_DELTA_ERROR:
        agent_output_set_usage(&e->output, d->usage);
        return agent_encoder_error(e, d->fault);
    }

    return AGENT_INVALID;
}

/* --- what has been said --------------------------------------------------- */

int
agent_encoder_trimmed(const agent_encoder_t *e)
{
    return e->output.trimmed;
}

agent_run_outcome_t
agent_encoder_outcome(const agent_encoder_t *e)
{
    return e->output.outcome;
}

agent_finish_t
agent_encoder_finish(const agent_encoder_t *e)
{
    return e->output.finish;
}

const agent_usage_t *
agent_encoder_usage(const agent_encoder_t *e)
{
    return &e->output.usage;
}

const agent_fault_t *
agent_encoder_fault(const agent_encoder_t *e)
{
    return &e->fault;
}

void
agent_encoder_messages(const agent_encoder_t *e, agent_buf_t *b)
{
    agent_output_messages(&e->output, b);
}

void
agent_encoder_text(const agent_encoder_t *e, agent_buf_t *b)
{
    agent_output_text(&e->output, b);
}

void
agent_encoder_answer(const agent_encoder_t *e, agent_buf_t *b)
{
    agent_output_answer(&e->output, b);
}

static agent_rc_t
agent_encoder_reopen(const agent_encoder_t *e, agent_sink_t *s)
{
    int which;
    size_t i, n;
    agent_rc_t rc = AGENT_OK;
    const agent_output_call_t *c;

    if (e->span != 0) {
        rc = agent_encoder_send_span(e, s, AGENT_EV_REASONING_START, e->span);
    }

    for (which = 0; rc == AGENT_OK && which < 2; which++) {
        if (e->voices[which].msg != AGENT_OUTPUT_NONE) {
            rc = agent_encoder_send_voice(e, s, which);
        }
    }

    for (i = e->open_from, n = e->nopen; rc == AGENT_OK && n != 0; i++) {
        c = &e->output.calls[i];

        if (c->open) {
            rc = agent_encoder_send_call(e, s, c, e->output.msgs[c->msg].n);
            n--;
        }
    }

    return rc;
}

agent_rc_t
agent_encoder_prelude(const agent_encoder_t *e, agent_str_t input, int inplace,
                      agent_event_pt emit, void *ctx)
{
    agent_rc_t rc = AGENT_OK;
    agent_sink_t s = {emit, ctx, {0}};

    if (!e->started) {
        return AGENT_OK; /* what is to come is the whole run */
    }

    agent_buf_init(&s.json, e->output.alloc);

    if (!inplace) {
        agent_output_started(&e->output, &s.json);
        rc = agent_encoder_send_json(&s, AGENT_EV_RUN_STARTED);
    }

    if (rc == AGENT_OK && (input.len != 0 || e->output.nmsgs != 0)) {
        agent_output_snapshot(&e->output, &s.json, input);
        rc = agent_encoder_send_json(&s, AGENT_EV_MESSAGES_SNAPSHOT);
    }

    /* to what a failed run left open nothing will be added */

    if (rc == AGENT_OK && e->output.outcome == AGENT_RUN_RUNNING) {
        rc = agent_encoder_reopen(e, &s);
    }

    agent_buf_free(&s.json);

    return rc;
}
