/* Collects what an answer or a codec emits, and checks its order. */

#ifndef COLLECT_H
#define COLLECT_H

#include "agent_codec.h"
#include "agent_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECT_CALLS 160

typedef struct {
    agent_buf_t text; /* unescaped */
    agent_buf_t reasoning;
    agent_buf_t refusal;
    struct {
        agent_buf_t id;
        agent_buf_t name;
        agent_buf_t args;
    } calls[COLLECT_CALLS];
    unsigned ncalls;
    unsigned ndeltas;
    unsigned nfinish;
    unsigned nerror;
    unsigned nwrong; /* breaches of the contract of agent_delta.h */
    agent_finish_t finish;
    agent_fault_t fault;
    int has_usage;
    agent_usage_t usage;
    unsigned abort_at; /* emit stops at this delta, 0: never */
    char order[128];   /* a letter per delta, repeated ones once */
} collect_t;

static inline void
collect_init(collect_t *c)
{
    memset(c, 0, sizeof(collect_t));
    agent_buf_init(&c->text, &agent_alloc_libc);
    agent_buf_init(&c->reasoning, &agent_alloc_libc);
    agent_buf_init(&c->refusal, &agent_alloc_libc);
    agent_usage_init(&c->usage);
}

static inline void
collect_free(collect_t *c)
{
    unsigned i;

    agent_buf_free(&c->text);
    agent_buf_free(&c->reasoning);
    agent_buf_free(&c->refusal);

    for (i = 0; i < c->ncalls; i++) {
        agent_buf_free(&c->calls[i].id);
        agent_buf_free(&c->calls[i].name);
        agent_buf_free(&c->calls[i].args);
    }

    collect_init(c);
}

static inline void
collect_add(collect_t *c, agent_buf_t *b, agent_str_t escaped)
{
    if (escaped.len == 0 || agent_json_unescape(b, escaped) != AGENT_OK) {
        c->nwrong++;
    }
}

static inline void
collect_start(collect_t *c, const agent_delta_t *d)
{
    unsigned i = c->ncalls;

    if (d->call != i || d->id.len == 0 || d->name.len == 0 ||
        i == COLLECT_CALLS) {
        c->nwrong++;
        return;
    }

    agent_buf_init(&c->calls[i].id, &agent_alloc_libc);
    agent_buf_init(&c->calls[i].name, &agent_alloc_libc);
    agent_buf_init(&c->calls[i].args, &agent_alloc_libc);
    agent_buf_add_str(&c->calls[i].id, d->id);
    agent_buf_add_str(&c->calls[i].name, d->name);
    c->ncalls++;
}

static inline agent_rc_t
collect_emit(void *ctx, const agent_delta_t *d)
{
    collect_t *c = ctx;
    size_t n = strlen(c->order);
    static const char letters[] = "trxSaFE";

    if (++c->ndeltas == c->abort_at) {
        return AGENT_ABORTED;
    }

    if (c->nfinish + c->nerror != 0) {
        c->nwrong++; /* FINISH and ERROR are the last */
    }

    if (n < sizeof(c->order) - 1 &&
        (n == 0 || c->order[n - 1] != letters[d->type])) {
        c->order[n] = letters[d->type];
    }

    switch (d->type) {
    case AGENT_DELTA_TEXT:
        collect_add(c, &c->text, d->text);
        break;
    case AGENT_DELTA_REASONING:
        collect_add(c, &c->reasoning, d->text);
        break;
    case AGENT_DELTA_REFUSAL:
        collect_add(c, &c->refusal, d->text);
        break;
    case AGENT_DELTA_TOOL_START:
        collect_start(c, d);
        break;
    case AGENT_DELTA_TOOL_ARGS:
        if (d->call < c->ncalls) {
            collect_add(c, &c->calls[d->call].args, d->text);
        } else {
            c->nwrong++;
        }
        break;
    case AGENT_DELTA_FINISH:
        c->nfinish++;
        c->finish = d->finish;
        break;
    case AGENT_DELTA_ERROR:
        c->nerror++;
        c->fault = *d->fault;
        c->nwrong += d->fault->code == AGENT_CODE_OK;
        break;
    }

    if (d->usage != NULL) {
        c->has_usage = 1;
        c->usage = *d->usage;
    }

    return AGENT_OK;
}

static inline int
collect_same_buf(const agent_buf_t *a, const agent_buf_t *b)
{
    return agent_str_eq(agent_buf_str(a), agent_buf_str(b));
}

/* 1 when both were told the same, however it was cut. */
static inline int
collect_same(const collect_t *a, const collect_t *b)
{
    unsigned i;

    if (!collect_same_buf(&a->text, &b->text) ||
        !collect_same_buf(&a->reasoning, &b->reasoning) ||
        !collect_same_buf(&a->refusal, &b->refusal) || a->ncalls != b->ncalls ||
        a->nfinish != b->nfinish || a->nerror != b->nerror ||
        a->finish != b->finish || a->nwrong != 0 || b->nwrong != 0 ||
        a->has_usage != b->has_usage ||
        memcmp(&a->usage, &b->usage, sizeof(agent_usage_t)) != 0 ||
        a->fault.code != b->fault.code ||
        strcmp(a->fault.message, b->fault.message) != 0) {
        return 0;
    }

    for (i = 0; i < a->ncalls; i++) {
        if (!collect_same_buf(&a->calls[i].id, &b->calls[i].id) ||
            !collect_same_buf(&a->calls[i].name, &b->calls[i].name) ||
            !collect_same_buf(&a->calls[i].args, &b->calls[i].args)) {
            return 0;
        }
    }

    return 1;
}

static inline void
collect_print(const collect_t *c)
{
    unsigned i;

    printf("#   text %zu [%.*s] reasoning %zu refusal %zu calls %u\n",
           c->text.len, (int) (c->text.len > 200 ? 200 : c->text.len),
           c->text.data != NULL ? c->text.data : "", c->reasoning.len,
           c->refusal.len, c->ncalls);

    for (i = 0; i < c->ncalls; i++) {
        printf("#   call %.*s %.*s %.*s\n", (int) c->calls[i].id.len,
               c->calls[i].id.data, (int) c->calls[i].name.len,
               c->calls[i].name.data, (int) c->calls[i].args.len,
               c->calls[i].args.data != NULL ? c->calls[i].args.data : "");
    }

    printf("#   finish %u %s error %u %s: %s wrong %u usage %d %d %d\n",
           c->nfinish, agent_finish_name(c->finish), c->nerror,
           agent_code_name(c->fault.code), c->fault.message, c->nwrong,
           (int) c->usage.input, (int) c->usage.output, (int) c->usage.total);
}

/* --- one answer ----------------------------------------------------------- */

typedef struct {
    unsigned status;  /* 0: 200 */
    const char *type; /* NULL: text/event-stream */
    unsigned retry_after;
    const char *secret;
    int reset; /* the transfer broke off */
    const agent_alloc_t *alloc;
} collect_head_t;

static inline agent_answer_t *
collect_open(collect_t *c, const collect_head_t *h)
{
    agent_answer_t *a;
    agent_answer_limits_t limits;
    agent_str_t type = AGENT_STR("text/event-stream");

    memset(&limits, 0, sizeof(agent_answer_limits_t));

    if (h->secret != NULL) {
        limits.secret.data = h->secret;
        limits.secret.len = strlen(h->secret);
    }

    a = agent_answer_create(agent_codec_find(AGENT_STR("openai")), collect_emit,
                            c, AGENT_STR("seed"), &limits,
                            h->alloc != NULL ? h->alloc : &agent_alloc_libc);
    if (a == NULL) {
        return NULL;
    }

    if (h->type != NULL) {
        type.data = h->type;
        type.len = strlen(h->type);
    }

    agent_answer_head(a, h->status != 0 ? h->status : 200, type,
                      h->retry_after);

    return a;
}

/* A body in pieces of "step" bytes, 0: whole. */
static inline agent_rc_t
collect_answer(collect_t *c, const collect_head_t *h, const char *body,
               size_t n, size_t step)
{
    size_t i, m;
    agent_rc_t rc = AGENT_OK;
    agent_answer_t *a;

    collect_init(c);

    a = collect_open(c, h);
    if (a == NULL) {
        return AGENT_NOMEM;
    }

    for (i = 0; i < n && rc == AGENT_OK; i += m) {
        m = step != 0 && step < n - i ? step : n - i;
        rc = agent_answer_body(a, body + i, m);
    }

    if (rc >= 0) {
        rc = agent_answer_end(a, !h->reset);
    }

    agent_answer_destroy(a);

    return rc;
}

/* --- an allocator that fails ---------------------------------------------- */

typedef struct {
    unsigned calls;
    unsigned fail_at; /* the allocation that fails, 0: none */
    int live;
} failing_t;

static inline void *
failing_resize(void *ctx, void *p, size_t size)
{
    failing_t *f = ctx;

    if (size == 0) {
        f->live -= p != NULL;
        free(p);
        return NULL;
    }

    if (++f->calls == f->fail_at) {
        return NULL;
    }

    f->live += p == NULL;

    return realloc(p, size);
}

#endif /* COLLECT_H */
