/* agent_fold.c: at every event of random runs it gives what the encoder gives. */

#include "agent_encoder.h"
#include "agent_fold.h"
#include "agent_json.h"
#include "tap.h"

#include <stdlib.h>

static unsigned long rnd = 7;

static unsigned
pick(unsigned n)
{
    rnd = rnd * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned) (rnd >> 33) % n;
}

static agent_encoder_t *encoder;
static agent_fold_t *fold;
static unsigned long events, differ, failed;

static agent_rc_t
note(void *ctx, const agent_event_t *ev)
{
    agent_buf_t *b = ctx;

    agent_buf_add_uint(b, (uint64_t) ev->type);
    agent_buf_add_char(b, ' ');
    agent_buf_add_str(b, ev->id);
    agent_buf_add_char(b, ' ');
    agent_event_json(b, ev);
    agent_buf_add_char(b, '\n');

    return AGENT_OK;
}

/* Items may be opened again in another order, so lines are compared sorted. */
static int
by_line(const void *a, const void *b)
{
    return strcmp(*(char *const *) a, *(char *const *) b);
}

static size_t
lines(agent_buf_t *b, char **line)
{
    size_t n = 0;
    char *p;

    agent_buf_add_char(b, '\0');

    for (p = strtok(b->data, "\n"); p != NULL && n < 500;
         p = strtok(NULL, "\n")) {
        line[n++] = p;
    }

    qsort(line, n, sizeof(char *), by_line);

    return n;
}

static int
same(agent_buf_t *a, agent_buf_t *b)
{
    size_t i, n, m;
    static char *left[500], *right[500];

    n = lines(a, left);
    m = lines(b, right);

    for (i = 0; i < n && i < m; i++) {
        if (strcmp(left[i], right[i]) != 0) {
            break;
        }
    }

    if (n == m && i == n) {
        return 1;
    }

    if (differ++ < 3) {
        printf("# encoder: %s\n#    fold: %s\n", i < n ? left[i] : "(none)",
               i < m ? right[i] : "(none)");
    }

    return 0;
}

/* Before the event at hand: what the encoder would tell a reader. */
static agent_rc_t
on_event(void *ctx, const agent_event_t *ev)
{
    int inplace = (int) pick(2);
    agent_buf_t want, got;
    const agent_str_t input =
        pick(2) ? AGENT_STR("{\"id\":\"u\",\"role\":\"user\"}") : AGENT_STR("");

    (void) ctx;

    agent_buf_init(&want, &agent_alloc_libc);
    agent_buf_init(&got, &agent_alloc_libc);

    (void) agent_encoder_prelude(encoder, input, inplace, note, &want);
    (void) agent_fold_prelude(fold, input, inplace, note, &got);

    /* at RUN_ERROR the encoder knows that what is open stays so */

    if (ev->type != AGENT_EV_RUN_ERROR) {
        (void) same(&want, &got);
    }

    agent_buf_free(&want);
    agent_buf_free(&got);

    events++;

    if (agent_fold_event(fold, ev) != AGENT_OK) {
        failed++;
        printf("# refused: %.*s\n", (int) ev->body.len, ev->body.data);
    }

    return AGENT_OK;
}

static const char *const texts[] = {
    "a",     "hello ", "\\u00e9\\n", "\\\"", "\xf0\x9f\x91\xa9",
    "x\\\\", "_1_2",   "{}"};

static agent_str_t
some_text(void)
{
    agent_str_t s;

    s.data = texts[pick(8)];
    s.len = strlen(s.data);

    return s;
}

static void
one_run(unsigned n)
{
    char id[32];
    unsigned calls = 0;
    agent_buf_t want, got;
    agent_delta_t d;
    agent_usage_t usage;
    agent_fault_t fault;
    agent_encoder_conf_t conf;

    memset(&conf, 0, sizeof(conf));
    conf.thread_id = AGENT_STR("thread \"1\"");
    conf.run_id = AGENT_STR("run_\xc3\xa9");
    conf.seed = n % 3 ? AGENT_STR("s_e-e_d") : AGENT_STR("seed");
    conf.provider = AGENT_STR("openai");
    conf.model = AGENT_STR("m\"odel");
    conf.max_delta = 40;

    encoder = agent_encoder_create(&conf, on_event, NULL, &agent_alloc_libc);
    fold = agent_fold_create(conf.thread_id, conf.run_id, &agent_alloc_libc);
    agent_encoder_start(encoder);

    for (n = pick(40); n != 0; n--) {
        memset(&d, 0, sizeof(d));
        d.text = some_text();

        switch (pick(6)) {
        case 0:
        case 1:
            d.type = AGENT_DELTA_TEXT;
            break;
        case 2:
            d.type = AGENT_DELTA_REASONING;
            break;
        case 3:
            d.type = AGENT_DELTA_TOOL_START;
            d.call = calls++;
            sprintf(id, pick(3) ? "call_%u" : "c \"%u\"", pick(30));
            d.id.data = id;
            d.id.len = strlen(id);
            d.name = AGENT_STR("na\"me\xc3\xa9");
            break;
        default:
            if (calls == 0) {
                continue;
            }
            d.type = AGENT_DELTA_TOOL_ARGS;
            d.call = pick(3) ? calls - 1 : pick(calls);
        }

        (void) agent_encoder_delta(encoder, &d);
    }

    switch (pick(4)) {
    case 0:
        agent_encoder_cancel(encoder);
        break;
    case 1:
        agent_fault_set(&fault, AGENT_CODE_UPSTREAM_ERROR, "it \"broke\"");
        agent_encoder_error(encoder, &fault);
        break;
    default:
        memset(&d, 0, sizeof(d));
        d.type = AGENT_DELTA_FINISH;
        d.finish = (agent_finish_t) pick(5);
        agent_usage_init(&usage);

        if (pick(2)) {
            usage.input = pick(1000);
            usage.output = 0;
            usage.cached = 12345678901234;
            d.usage = &usage;
        }

        agent_encoder_delta(encoder, &d);
    }

    agent_buf_init(&want, &agent_alloc_libc);
    agent_buf_init(&got, &agent_alloc_libc);

    if (agent_encoder_outcome(encoder) != AGENT_RUN_ERROR) {
        agent_encoder_answer(encoder, &want);
        agent_fold_answer(fold, &got);

        if (!agent_str_eq(agent_buf_str(&want), agent_buf_str(&got)) &&
            differ++ < 3) {
            printf("# encoder: %.*s\n#    fold: %.*s\n", (int) want.len,
                   want.data, (int) got.len, got.data);
        }
    }

    agent_buf_free(&want);
    agent_buf_free(&got);
    agent_encoder_destroy(encoder);
    agent_fold_destroy(fold);
}

static void
test_fault(void)
{
    agent_fault_t f;

    ok(agent_fold_fault(AGENT_STR("{\"type\":\"RUN_ERROR\",\"message\":\"a "
                                  "\\\"b\\\"\",\"code\":\"upstream_auth\"}"),
                        &f, &agent_alloc_libc) == AGENT_OK &&
           f.code == AGENT_CODE_UPSTREAM_AUTH &&
           strcmp(f.message, "a \"b\"") == 0,
       "the fault of a RUN_ERROR");
    ok(agent_fold_fault(AGENT_STR("{\"type\":\"RUN_ERROR\"}"), &f,
                        &agent_alloc_libc) == AGENT_INVALID,
       "an event without one");
}

int
main(void)
{
    unsigned i;

    for (i = 0; i < 3000; i++) {
        one_run(i);
    }

    ok(events > 30000, "%lu events of 3000 runs", events);
    ok(failed == 0, "none was refused");
    ok(differ == 0, "at each the same prelude, at the end the same answer");

    test_fault();

    return done_testing();
}
