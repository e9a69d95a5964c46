
#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"
#include "ngx_agent_transfer.h"


#define NGX_AGENT_TICK          100
#define NGX_AGENT_MAX_EVENT     (224 * 1024)   /* a row takes 240 KB */


static void ngx_agent_run_call(ngx_agent_run_t *run);
static void ngx_agent_run_over(ngx_agent_run_t *run);
static void ngx_agent_run_stop_call(ngx_agent_run_t *run, ngx_uint_t reuse);
static void ngx_agent_run_tick(ngx_event_t *ev);
static void ngx_agent_run_clock(ngx_event_t *ev);
static void ngx_agent_model_next(ngx_agent_model_t *model);
static void ngx_agent_run_log_fault(ngx_agent_run_t *run,
    const agent_fault_t *fault, const char *detail);
static void ngx_agent_run_fail_detail(ngx_agent_run_t *run,
    const agent_fault_t *fault, const char *detail);
static void ngx_agent_run_last_resort(ngx_agent_run_t *run,
    const agent_fault_t *fault);

static agent_rc_t ngx_agent_run_delta(void *data, const agent_delta_t *d);
static agent_rc_t ngx_agent_run_event(void *data, const agent_event_t *ev);
static void ngx_agent_run_head(void *data, ngx_uint_t status, ngx_str_t *type,
    ngx_uint_t retry_after);
static ngx_int_t ngx_agent_run_body(void *data, u_char *p, size_t n);
static void ngx_agent_run_done(void *data, ngx_agent_transfer_e rc,
    const char *reason, const char *detail);
static u_char *ngx_agent_run_log_handler(ngx_log_t *log, u_char *buf,
    size_t len);


static const ngx_agent_transfer_handlers_t  ngx_agent_run_handlers = {
    ngx_agent_run_head,
    ngx_agent_run_body,
    ngx_agent_run_done
};


/* of this worker process */

static ngx_queue_t  ngx_agent_runs;
static ngx_event_t  ngx_agent_ticker;
static ngx_event_t  ngx_agent_clock;         /* notes when exiting began */
static ngx_msec_t   ngx_agent_tick;
static ngx_msec_t   ngx_agent_shutdown;      /* after this time of exiting */
static ngx_msec_t   ngx_agent_exiting_since;
static ngx_uint_t   ngx_agent_shutdown_passed;


ngx_int_t
ngx_agent_run_init_process(ngx_cycle_t *cycle)
{
    ngx_msec_t        t;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    /* runs end before nginx itself cuts their clients off */

    t = ccf->shutdown_timeout;

    ngx_agent_shutdown = (t > 2000) ? t - 1000 : t / 2;
    ngx_agent_tick = NGX_AGENT_TICK;

    if (t && t < 4 * NGX_AGENT_TICK) {
        ngx_agent_tick = ngx_max(t / 4, 1);
    }

    /* not by the ticker: a run may come when the worker is leaving already */

    if (ngx_agent_shutdown) {
        ngx_memzero(&ngx_agent_clock, sizeof(ngx_event_t));

        ngx_agent_clock.handler = ngx_agent_run_clock;
        ngx_agent_clock.log = cycle->log;
        ngx_agent_clock.data = &ngx_agent_clock;
        ngx_agent_clock.cancelable = 1;

        ngx_add_timer(&ngx_agent_clock, ngx_agent_tick);
    }

    ngx_queue_init(&ngx_agent_runs);

    ngx_memzero(&ngx_agent_ticker, sizeof(ngx_event_t));

    ngx_agent_ticker.handler = ngx_agent_run_tick;
    ngx_agent_ticker.log = cycle->log;
    ngx_agent_ticker.data = &ngx_agent_ticker;

    return NGX_OK;
}


/* the worker leaves at once: what still runs ends with it */

void
ngx_agent_run_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t      *q;
    agent_fault_t     fault;
    ngx_agent_run_t  *run;

    agent_fault_set(&fault, AGENT_CODE_WORKER_SHUTDOWN,
                    "the worker process was shut down");

    for (q = ngx_queue_head(&ngx_agent_runs);
         q != ngx_queue_sentinel(&ngx_agent_runs);
         q = ngx_queue_next(q))
    {
        run = ngx_queue_data(q, ngx_agent_run_t, queue);

        if (run->state != NGX_AGENT_OVER) {
            ngx_agent_run_fail(run, &fault);
        }
    }
}


ngx_uint_t
ngx_agent_draining(void)
{
    /*
     * A request that was accepted before a reload is served: its run holds the
     * worker.  Only when the runs of this worker have been ended by force there
     * is no time left for another.
     */

    return ngx_terminate || ngx_agent_shutdown_passed;
}


/* --- making a run ------------------------------------------------------- */

static u_char *
ngx_agent_run_log_handler(ngx_log_t *log, u_char *buf, size_t len)
{
    u_char           *p;
    ngx_agent_run_t  *run;

    p = buf;

    if (log->action) {
        p = ngx_snprintf(buf, len, " while %s", log->action);
        len -= p - buf;
    }

    run = log->data;

    return ngx_snprintf(p, len, ", agent: \"%V\", model: \"%V\", run: %V",
                        &run->agent->name, &run->model->name, &run->log_ids);
}


static ngx_int_t
ngx_agent_copy(ngx_pool_t *pool, ngx_str_t *dst, ngx_str_t *src)
{
    dst->len = src->len;
    dst->data = ngx_pstrdup(pool, src);

    return (dst->data || src->len == 0) ? NGX_OK : NGX_ERROR;
}


/* ids outside the grammar do not reach a log line */

static ngx_int_t
ngx_agent_run_log_ids(ngx_agent_run_t *run)
{
    if (agent_id_is_plain(ngx_agent_str(&run->id))) {
        run->log_ids = run->id;
        return NGX_OK;
    }

    run->log_ids.data = ngx_pnalloc(run->pool, 2 * NGX_AGENT_KEY_LEN + 1);
    if (run->log_ids.data == NULL) {
        return NGX_ERROR;
    }

    *run->log_ids.data = '#';
    ngx_hex_dump(run->log_ids.data + 1, run->feed.key, NGX_AGENT_KEY_LEN);
    run->log_ids.len = 2 * NGX_AGENT_KEY_LEN + 1;

    return NGX_OK;
}


ngx_agent_run_t *
ngx_agent_run_create(ngx_http_request_t *r, ngx_http_agent_ctx_t *ctx,
    ngx_http_agent_loc_conf_t *lcf, ngx_agent_log_t *log,
    agent_fault_t *fault)
{
    ngx_int_t                  rc;
    ngx_pool_t                *pool;
    ngx_agent_run_t           *run;
    agent_encoder_conf_t       conf;
    agent_answer_limits_t      limits;
    ngx_http_core_loc_conf_t  *clcf;

    if (ngx_agent_slots_low()) {
        agent_fault_set(fault, AGENT_CODE_TOO_BUSY,
                        "the server has no free connections, try again");

        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "agent: no free worker_connections for another run, "
                      "%ui of %ui are left", ngx_cycle->free_connection_n,
                      ngx_cycle->connection_n);
        return NULL;
    }

    agent_fault_set(fault, AGENT_CODE_INTERNAL,
                    "not enough memory for the run");

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    run = ngx_pcalloc(pool, sizeof(ngx_agent_run_t));
    if (run == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    run->pool = pool;
    run->agent = lcf->agent;
    run->model = lcf->agent->model;
    run->feed.run = run;
    run->feed.store = lcf->agent->store;
    run->feed.events = log;
    run->run_log = lcf->run_log;
    run->started = ngx_current_msec;
    run->resolver = clcf->resolver;
    run->resolver_timeout = clcf->resolver_timeout;

    ngx_memcpy(run->feed.key, ctx->key, NGX_AGENT_KEY_LEN);
    agent_buf_init(&run->body, &agent_alloc_libc);
    agent_buf_init(&run->input, &agent_alloc_libc);
    agent_buf_init(&run->last, &agent_alloc_libc);

    run->log = ngx_palloc(pool, sizeof(ngx_log_t));

    if (run->log == NULL
        || ngx_agent_copy(pool, &run->id, &ctx->run_id) != NGX_OK
        || ngx_agent_copy(pool, &run->thread, &ctx->thread_id) != NGX_OK
        || ngx_agent_run_log_ids(run) != NGX_OK
        || ngx_agent_random(run->seed, 8) != NGX_OK)
    {
        goto failed;
    }

    *run->log = *clcf->error_log;

    run->log->connection = 0;
    run->log->handler = ngx_agent_run_log_handler;
    run->log->data = run;
    run->log->action = "starting a run";

    rc = ngx_agent_run_request(run, r, &ctx->input, fault);

    if (rc != NGX_OK) {
        goto failed;
    }

    ngx_agent_run_keep_input(run, &ctx->input);

    ngx_memzero(&conf, sizeof(agent_encoder_conf_t));

    conf.thread_id = ngx_agent_str(&run->thread);
    conf.run_id = ngx_agent_str(&run->id);
    conf.parent_run_id = ctx->input.parent_run_id;
    conf.seed.data = (char *) run->seed;
    conf.seed.len = NGX_AGENT_RUN_SEED_CHARS;
    conf.provider = run->model->codec->name;
    conf.model = ngx_agent_str(&run->model->model);
    conf.legacy = ctx->input.legacy;
    conf.max_delta = NGX_AGENT_MAX_EVENT;

    run->encoder = agent_encoder_create(&conf, ngx_agent_run_event, run,
                                        &agent_alloc_libc);
    if (run->encoder == NULL) {
        goto failed;
    }

    ngx_memzero(&limits, sizeof(agent_answer_limits_t));

    limits.secret = ngx_agent_str(&run->model->secrets);

    run->answer = agent_answer_create(run->model->codec, ngx_agent_run_delta,
                                      run, conf.seed, &limits,
                                      &agent_alloc_libc);
    if (run->answer == NULL) {
        goto failed;
    }

    ngx_queue_insert_tail(&ngx_agent_runs, &run->queue);

    ngx_agent_stat_add(started, 1);

    ngx_agent_feed_add(&run->feed, run->log);

    /* not cancelable: a worker that is asked to quit drains its runs first */

    if (!ngx_agent_ticker.timer_set) {
        ngx_add_timer(&ngx_agent_ticker, ngx_agent_tick);
    }

    return run;

failed:

    if (run->encoder) {
        agent_encoder_destroy(run->encoder);
    }

    agent_buf_free(&run->body);
    ngx_destroy_pool(pool);

    return NULL;
}


/* --- running ------------------------------------------------------------ */

void
ngx_agent_run_start(ngx_agent_run_t *run)
{
    agent_fault_t       fault;
    ngx_agent_model_t  *model;

    if (run->sent.len) {
        run->feed.store->keep(run->feed.events, &run->sent);
    }

    if (agent_encoder_start(run->encoder) != AGENT_OK) {
        agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                        "not enough memory for the run");
        ngx_agent_run_fail(run, &fault);
        return;
    }

    model = run->model;

    if (model->max_inflight == 0 || model->inflight < model->max_inflight) {
        ngx_agent_run_call(run);
        return;
    }

    if (model->nwaiting >= model->queue) {
        agent_fault_set(&fault, AGENT_CODE_TOO_BUSY,
                        "the model is at its limit of %lu calls at a time",
                        (unsigned long) model->max_inflight);
        ngx_agent_run_fail(run, &fault);
        return;
    }

    run->state = NGX_AGENT_WAITING;
    run->queued = ngx_current_msec;
    run->in_queue = 1;

    ngx_queue_insert_tail(&model->waiting, &run->waiting);
    model->nwaiting++;
}


static void
ngx_agent_run_call(ngx_agent_run_t *run)
{
    agent_fault_t                 fault;
    ngx_agent_transfer_request_t  req;

    run->log->action = "calling the model";

    ngx_memzero(&req, sizeof(ngx_agent_transfer_request_t));

    req.model = run->model;
    req.body = run->body;
    req.resolver = run->resolver;
    req.resolver_timeout = run->resolver_timeout;
    req.handlers = &ngx_agent_run_handlers;
    req.data = run;

    run->transfer = run->model->transport->start(&req);

    if (run->transfer == NULL) {
        agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                        "not enough memory for the model call");
        ngx_agent_run_fail(run, &fault);
        return;
    }

    agent_buf_init(&run->body, &agent_alloc_libc);

    ngx_agent_stat_add(calls, 1);
    ngx_agent_stat_gauge(calls, 1);

    run->state = NGX_AGENT_CALLING;
    run->model->inflight++;
    run->inflight = 1;

    run->status = NGX_AGENT_RUN_RUNNING;
    run->feed.store->set_status(run->feed.events, NGX_AGENT_RUN_RUNNING);
}


static void
ngx_agent_run_head(void *data, ngx_uint_t status, ngx_str_t *type,
    ngx_uint_t retry_after)
{
    ngx_agent_run_t *run = data;

    run->log->action = "reading from the model";

    agent_answer_head(run->answer, (unsigned) status, ngx_agent_str(type),
                      (unsigned) retry_after);
}


static ngx_int_t
ngx_agent_run_body(void *data, u_char *p, size_t n)
{
    ngx_agent_run_t *run = data;

    agent_fault_t  fault;

    if (agent_answer_body(run->answer, (char *) p, n) == AGENT_NOMEM) {
        agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                        "not enough memory for the answer");
        ngx_agent_run_fail(run, &fault);
    }

    /* over: the terminal marker came or the run failed, the call was let go */

    return run->transfer ? NGX_OK : NGX_ERROR;
}


static void
ngx_agent_run_done(void *data, ngx_agent_transfer_e rc, const char *reason,
    const char *detail)
{
    ngx_agent_run_t *run = data;

    agent_fault_t  fault;

    run->transfer = NULL;

    switch (rc) {

    case NGX_AGENT_TRANSFER_OK:
    case NGX_AGENT_TRANSFER_CUT:

        if (agent_answer_end(run->answer, rc == NGX_AGENT_TRANSFER_OK)
            == AGENT_NOMEM)
        {
            agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                            "not enough memory for the answer");
            ngx_agent_run_fail(run, &fault);
        }

        if (run->state != NGX_AGENT_OVER) {
            agent_fault_set(&fault, AGENT_CODE_UPSTREAM_TRUNCATED,
                            "the model's answer ended early");
            ngx_agent_run_fail_detail(run, &fault, detail);
        }

        return;

    case NGX_AGENT_TRANSFER_UNREACHABLE:
        agent_fault_set(&fault, AGENT_CODE_UPSTREAM_UNREACHABLE,
                        "the model server cannot be reached: %s", reason);
        break;

    case NGX_AGENT_TRANSFER_TLS:
        agent_fault_set(&fault, AGENT_CODE_UPSTREAM_TLS,
                        "no trusted TLS connection to the model server: %s",
                        reason);
        break;

    case NGX_AGENT_TRANSFER_TIMEOUT:
        agent_fault_set(&fault, AGENT_CODE_UPSTREAM_TIMEOUT,
                        "the model server did not answer in time: %s",
                        reason);
        break;

    case NGX_AGENT_TRANSFER_PROTOCOL:
        agent_fault_set(&fault, AGENT_CODE_UPSTREAM_ERROR,
                        "the model server's answer cannot be read: %s",
                        reason);
        break;

    case NGX_AGENT_TRANSFER_BUSY:
        agent_fault_set(&fault, AGENT_CODE_TOO_BUSY,
                        "the server has no free connections, try again");
        break;

    default:
        agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                        "the model call failed: %s", reason);
        break;
    }

    ngx_agent_run_fail_detail(run, &fault, detail);
}


/* a neutral delta of the answer: to the encoder */

static agent_rc_t
ngx_agent_run_delta(void *data, const agent_delta_t *d)
{
    ngx_agent_run_t *run = data;

    agent_rc_t     rc;
    agent_fault_t  fault;

    if (run->state == NGX_AGENT_OVER) {
        return AGENT_ABORTED;
    }

    if (d->type == AGENT_DELTA_ERROR) {

        /* what a client may know is not all that an operator wants to know */

        fault = *d->fault;
        ngx_agent_run_log_fault(run, &fault, NULL);

    } else if (!run->has_first && d->type != AGENT_DELTA_FINISH) {
        run->has_first = 1;
        run->first_token = ngx_current_msec - run->started;
    }

    rc = agent_encoder_delta(run->encoder, d);

    if (rc == AGENT_OK || rc == AGENT_DONE) {
        return AGENT_OK;
    }

    return rc;
}


/* an event of the encoder: into the log */

static agent_rc_t
ngx_agent_run_event(void *data, const agent_event_t *ev)
{
    ngx_agent_run_t *run = data;

    ngx_agent_run_info_t  info;

    if (run->state == NGX_AGENT_OVER) {
        return AGENT_ABORTED;
    }

    if (!agent_event_is_terminal(ev->type)) {

        if (run->feed.store->append(run->feed.events, ev) != NGX_OK) {
            return AGENT_NOMEM;
        }

        ngx_agent_feed_wake(&run->feed);

        return AGENT_OK;
    }

    ngx_memzero(&info, sizeof(ngx_agent_run_info_t));

    switch (agent_encoder_outcome(run->encoder)) {

    case AGENT_RUN_FINISHED:
        info.status = NGX_AGENT_RUN_FINISHED;
        break;

    case AGENT_RUN_CANCELLED:
        info.status = NGX_AGENT_RUN_CANCELLED;
        break;

    default:
        info.status = NGX_AGENT_RUN_ERROR;
        info.code = agent_encoder_fault(run->encoder)->code;
    }

    info.usage = *agent_encoder_usage(run->encoder);
    info.content = run->has_first;

    /* nobody can tell later what was said before the oldest event kept */

    if (run->feed.store->publish(run->feed.events, run->has_first)
        || run->check_due
        || run->feed.store->incomplete(run->feed.events))
    {
        ngx_agent_prelude_checkpoint(run, 1);
    }

    /* an event that the log did not take has not happened */

    if (run->feed.store->finish(run->feed.events, &info, ev) != NGX_OK) {
        return AGENT_NOMEM;
    }

    run->status = info.status;
    run->code = info.code;

    /* a full zone may drop the log before the readers here have its end */

    if (run->feed.nsubscribers && run->feed.store != &ngx_agent_local_store) {
        agent_buf_add_str(&run->last, ev->body);
        run->last_type = ev->type;
    }

    ngx_agent_run_over(run);

    return AGENT_OK;
}


static void
ngx_agent_run_count_events(ngx_agent_run_t *run)
{
    uint64_t  n;

    n = run->feed.store->next_seq(run->feed.events);

    if (n != run->counted) {
        ngx_agent_stat_add(events, n - run->counted);
        run->counted = n;
    }
}


static void
ngx_agent_run_count(ngx_agent_run_t *run)
{
    ngx_agent_counters_t  *c;

    c = &ngx_agent_shared->counters;

    switch (run->status) {

    case NGX_AGENT_RUN_ERROR:
        ngx_agent_stat_add(errors[run->code], 1);

        if (ngx_strncmp(agent_code_name(run->code), "upstream_", 9) == 0) {
            ngx_agent_stat_add(failures, 1);
        }

        break;

    case NGX_AGENT_RUN_CANCELLED:
        ngx_agent_stat_add(cancelled, 1);
        break;

    default:
        ngx_agent_stat_add(finished, 1);
    }

    ngx_agent_run_count_events(run);

    if (run->has_first) {
        ngx_agent_stat_time(&c->first_token, run->first_token);
    }

    ngx_agent_stat_time(&c->run_time, ngx_current_msec - run->started);
}


static void
ngx_agent_run_over(ngx_agent_run_t *run)
{
    run->state = NGX_AGENT_OVER;

    ngx_agent_run_log_write(run);
    ngx_agent_run_count(run);

    ngx_agent_run_stop_call(run, run->status == NGX_AGENT_RUN_FINISHED);
    ngx_agent_feed_wake(&run->feed);
}


/* frees the place in the model's limit and lets the transfer go */

static void
ngx_agent_run_stop_call(ngx_agent_run_t *run, ngx_uint_t reuse)
{
    ngx_agent_transfer_t  *t;

    t = run->transfer;

    if (t) {
        run->transfer = NULL;

        if (reuse) {
            run->model->transport->release(t);

        } else {
            run->model->transport->cancel(t);
        }
    }

    if (run->in_queue) {
        ngx_queue_remove(&run->waiting);
        run->model->nwaiting--;
        run->in_queue = 0;
    }

    if (run->inflight) {
        ngx_agent_stat_gauge(calls, -1);

        run->inflight = 0;
        run->model->inflight--;

        ngx_agent_model_next(run->model);
    }
}


/* a place became free: the oldest waiting run gets it */

static void
ngx_agent_model_next(ngx_agent_model_t *model)
{
    ngx_queue_t      *q;
    ngx_agent_run_t  *run;

    while (!ngx_queue_empty(&model->waiting)
           && model->inflight < model->max_inflight)
    {
        q = ngx_queue_head(&model->waiting);
        run = ngx_queue_data(q, ngx_agent_run_t, waiting);

        ngx_queue_remove(q);
        model->nwaiting--;
        run->in_queue = 0;

        ngx_agent_run_call(run);
    }
}


static void
ngx_agent_run_log_fault(ngx_agent_run_t *run, const agent_fault_t *fault,
    const char *detail)
{
    ngx_uint_t  level;

    switch (fault->code) {

    case AGENT_CODE_TOO_BUSY:
    case AGENT_CODE_UPSTREAM_RATE_LIMITED:
    case AGENT_CODE_UPSTREAM_OVERLOADED:
    case AGENT_CODE_RUN_TIMEOUT:
    case AGENT_CODE_WORKER_SHUTDOWN:
        level = NGX_LOG_WARN;
        break;

    default:
        level = NGX_LOG_ERR;
    }

    ngx_log_error(level, run->log, 0, "agent run failed: %s: %s%s%s%s",
                  agent_code_name(fault->code), fault->message,
                  detail ? " (" : "", detail ? detail : "",
                  detail ? ")" : "");
}


void
ngx_agent_run_fail(ngx_agent_run_t *run, const agent_fault_t *fault)
{
    ngx_agent_run_fail_detail(run, fault, NULL);
}


static void
ngx_agent_run_fail_detail(ngx_agent_run_t *run, const agent_fault_t *fault,
    const char *detail)
{
    if (run->state == NGX_AGENT_OVER) {
        return;
    }

    ngx_agent_run_log_fault(run, fault, detail);

    (void) agent_encoder_error(run->encoder, fault);

    ngx_agent_run_last_resort(run, fault);
}


void
ngx_agent_run_cancel(ngx_agent_run_t *run)
{
    agent_fault_t  fault;

    if (run->state == NGX_AGENT_OVER) {
        return;
    }

    (void) agent_encoder_cancel(run->encoder);

    agent_fault_set(&fault, AGENT_CODE_INTERNAL,
                    "not enough memory for the run");

    ngx_agent_run_last_resort(run, &fault);
}


/*
 * The terminal event could not be written, not even its own memory was there.
 * The run is over all the same; readers see it by its state.
 */

static void
ngx_agent_run_last_resort(ngx_agent_run_t *run, const agent_fault_t *fault)
{
    ngx_agent_run_info_t  info;

    if (run->state == NGX_AGENT_OVER) {
        return;
    }

    ngx_memzero(&info, sizeof(ngx_agent_run_info_t));

    agent_usage_init(&info.usage);
    info.status = NGX_AGENT_RUN_ERROR;
    info.code = fault->code;
    info.content = run->has_first;

    run->status = NGX_AGENT_RUN_ERROR;
    run->code = fault->code;
    (void) run->feed.store->finish(run->feed.events, &info, NULL);

    ngx_agent_run_over(run);
}


const char *
ngx_agent_run_reason(ngx_agent_run_t *run)
{
    switch (run->status) {

    case NGX_AGENT_RUN_CANCELLED:
        return "cancelled";

    case NGX_AGENT_RUN_ERROR:
        return agent_code_name(run->code);

    default:
        return agent_finish_name(agent_encoder_finish(run->encoder));
    }
}


/* --- readers ------------------------------------------------------------ */

void
ngx_agent_run_publish(ngx_agent_run_t *run)
{
    ngx_agent_run_count_events(run);

    if (run->feed.store->publish(run->feed.events, run->has_first)) {
        ngx_agent_prelude_checkpoint(run, 0);
    }
}


void
ngx_agent_run_rung(ngx_agent_run_t *run)
{
    if (run->state != NGX_AGENT_OVER
        && run->feed.store->cancelled(run->feed.events))
    {
        ngx_agent_run_cancel(run);
    }
}


void
ngx_agent_run_read(ngx_agent_run_t *run)
{
    run->nreaders++;
    run->has_left = 0;
}


void
ngx_agent_run_unread(ngx_agent_run_t *run)
{
    if (run->state == NGX_AGENT_OVER) {
        ngx_agent_feed_wake(&run->feed);
        return;
    }

    if (run->agent->on_disconnect == NGX_AGENT_DISCONNECT_CONTINUE) {
        return;
    }

    if (run->agent->disconnect_after == 0) {
        ngx_log_error(NGX_LOG_INFO, run->log, 0,
                      "agent run cancelled: its client has gone");
        ngx_agent_run_cancel(run);
        return;
    }

    run->has_left = 1;
    run->left = ngx_current_msec;
}


/* only called by the feed's event: elsewhere the run may be on the stack */

void
ngx_agent_run_free(ngx_agent_run_t *run)
{
    ngx_agent_run_stop_call(run, 0);

    ngx_queue_remove(&run->queue);
    ngx_agent_feed_remove(&run->feed);

    run->feed.store->close(run->feed.events);

    agent_answer_destroy(run->answer);
    agent_encoder_destroy(run->encoder);
    agent_buf_free(&run->body);
    agent_buf_free(&run->input);
    agent_buf_free(&run->last);

    ngx_destroy_pool(run->pool);
}


/* --- the tick: deadlines, cancels from elsewhere, shutdown -------------- */

static void
ngx_agent_run_check(ngx_agent_run_t *run, ngx_uint_t shutdown)
{
    ngx_msec_t     now;
    agent_fault_t  fault;

    if (run->state == NGX_AGENT_OVER) {
        return;
    }

    now = ngx_current_msec;

    if (run->check_due) {
        ngx_agent_prelude_checkpoint(run, 0);
    }

    if (shutdown) {
        agent_fault_set(&fault, AGENT_CODE_WORKER_SHUTDOWN,
                        "the server was shut down");

    } else if (now - run->started >= run->agent->max_run_time) {
        agent_fault_set(&fault, AGENT_CODE_RUN_TIMEOUT,
                        "the run took longer than %lu ms",
                        (unsigned long) run->agent->max_run_time);

    } else if (run->in_queue
               && now - run->queued >= run->model->queue_timeout)
    {
        agent_fault_set(&fault, AGENT_CODE_TOO_BUSY,
                        "no place among the model's calls became free");

    } else if (run->has_left
               && now - run->left >= run->agent->disconnect_after)
    {
        ngx_log_error(NGX_LOG_INFO, run->log, 0,
                      "agent run cancelled: its client has gone");
        ngx_agent_run_cancel(run);
        return;

    } else {
        return;
    }

    ngx_agent_run_fail(run, &fault);
}


static void
ngx_agent_run_exiting(void)
{
    if (!ngx_exiting) {
        return;
    }

    /* it may have begun just after the last look */

    if (ngx_agent_exiting_since == 0) {
        ngx_agent_exiting_since = ngx_current_msec - ngx_agent_tick;
    }

    if (ngx_agent_shutdown
        && ngx_current_msec - ngx_agent_exiting_since >= ngx_agent_shutdown)
    {
        ngx_agent_shutdown_passed = 1;
    }
}


static void
ngx_agent_run_clock(ngx_event_t *ev)
{
    ngx_agent_run_exiting();

    ngx_add_timer(ev, ngx_agent_tick);
}


static void
ngx_agent_run_tick(ngx_event_t *ev)
{
    ngx_uint_t        shutdown;
    ngx_queue_t      *q, *next;
    ngx_agent_run_t  *run;

    ngx_agent_run_exiting();
    ngx_agent_bell_check();

    shutdown = ngx_agent_shutdown_passed;

    /* runs are only freed by their wake handler, so the list stays whole */

    for (q = ngx_queue_head(&ngx_agent_runs);
         q != ngx_queue_sentinel(&ngx_agent_runs);
         q = next)
    {
        next = ngx_queue_next(q);
        run = ngx_queue_data(q, ngx_agent_run_t, queue);

        ngx_agent_run_check(run, shutdown);
    }

    if (!ngx_queue_empty(&ngx_agent_runs)) {
        ngx_add_timer(ev, ngx_agent_tick);
    }
}
