
/*
 * The routes about runs: status, cancel, capabilities.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


/* longer segments are no ids of ours: 128 characters of at most 4 bytes */
#define NGX_AGENT_SEGMENT_MAX  (AGENT_ID_MAX * 4)


ngx_int_t
ngx_http_agent_run_key(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (id->len > NGX_AGENT_SEGMENT_MAX) {
        return NGX_DECLINED;
    }

    ctx->run_id = *id;

    return ngx_agent_key(r->pool, ctx->key, "run", &alcf->agent->name,
                         ctx->owner_off ? NULL : &ctx->owner, id);
}


ngx_uint_t
ngx_http_agent_ask(ngx_http_request_t *r, ngx_str_t *id, ngx_int_t *rc)
{
    switch (ngx_http_agent_run_key(r, id)) {

    case NGX_OK:
        r->main->count++;
        *rc = NGX_DONE;
        return 1;

    case NGX_DECLINED:
        *rc = ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                  "there is no such run");
        return 0;

    default:
        *rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        return 0;
    }
}


ngx_uint_t
ngx_http_agent_kept(ngx_http_request_t *r, ngx_agent_run_info_t *info,
    ngx_int_t *rc)
{
    if (*rc == NGX_DECLINED) {
        *rc = ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                  "there is no such run");
        return 0;
    }

    if (*rc != NGX_OK) {
        *rc = ngx_http_agent_code(r, AGENT_CODE_STORE_UNAVAILABLE,
                                  "the store of runs cannot be reached");
        return 0;
    }

    if (info->gone) {
        *rc = ngx_http_agent_code(r, AGENT_CODE_GONE,
                                  "the events of this run are no longer kept");
        return 0;
    }

    return 1;
}


/* --- P/runs/{id} -------------------------------------------------------- */

static void
ngx_http_agent_add_time(agent_buf_t *b, const char *name, uint64_t ms)
{
    u_char  text[NGX_AGENT_TIME_LEN];

    if (ms == 0) {
        return;
    }

    agent_buf_add_lit(b, ",\"");
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_lit(b, "\":\"");
    agent_buf_add(b, text, ngx_agent_time(text, ms) - text);
    agent_buf_add_char(b, '"');
}


static void
ngx_http_agent_add_usage(agent_buf_t *b, const agent_usage_t *u)
{
    int64_t     value[6];
    ngx_uint_t  i, n;

    static const char *const  names[] = {
        "inputTokens", "outputTokens", "totalTokens", "reasoningTokens",
        "cachedInputTokens", "cacheWriteInputTokens"
    };

    if (!agent_usage_given(u)) {
        return;
    }

    value[0] = u->input;
    value[1] = u->output;
    value[2] = u->total;
    value[3] = u->reasoning;
    value[4] = u->cached;
    value[5] = u->cache_write;

    agent_buf_add_lit(b, ",\"usage\":{");

    n = 0;

    for (i = 0; i < 6; i++) {
        if (value[i] < 0) {
            continue;
        }

        if (n++) {
            agent_buf_add_char(b, ',');
        }

        agent_buf_add_char(b, '"');
        agent_buf_add(b, names[i], ngx_strlen(names[i]));
        agent_buf_add_lit(b, "\":");
        agent_buf_add_uint(b, (uint64_t) value[i]);
    }

    agent_buf_add_char(b, '}');
}


static void
ngx_http_agent_status_info(void *data, ngx_int_t rc,
    ngx_agent_run_info_t *info)
{
    ngx_http_request_t *r = data;

    char                        cursor[AGENT_CURSOR_MAX];
    agent_str_t                 text;
    agent_buf_t                 b;
    ngx_agent_feed_t           *feed;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (!ngx_http_agent_kept(r, info, &rc)) {
        goto done;
    }

    /* of a run that is here its log knows more than the record */

    feed = ngx_agent_feed_of(alcf->agent->store, ctx->key, info->generation);

    if (feed && feed->run && feed->run->state != NGX_AGENT_OVER) {
        info->next_seq = feed->store->next_seq(feed->events);
    }

    ctx->thread_id.data = ngx_pnalloc(r->pool, info->thread_len + 1);
    if (ctx->thread_id.data == NULL) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        goto done;
    }

    ngx_memcpy(ctx->thread_id.data, info->thread, info->thread_len);
    ctx->thread_id.len = info->thread_len;

    agent_buf_init(&b, &agent_alloc_libc);

    agent_buf_add_lit(&b, "{\"runId\":");
    agent_json_quote(&b, ngx_agent_str(&ctx->run_id));
    agent_buf_add_lit(&b, ",\"threadId\":");
    agent_json_quote(&b, ngx_agent_str(&ctx->thread_id));
    agent_buf_add_lit(&b, ",\"status\":");

    text.data = ngx_agent_status_name(info->status);
    text.len = ngx_strlen(text.data);
    agent_json_quote(&b, text);

    if (info->next_seq) {
        text.data = cursor;
        text.len = agent_cursor_print(cursor, info->generation,
                                      info->next_seq - 1);
        agent_buf_add_lit(&b, ",\"lastEventId\":");
        agent_json_quote(&b, text);
    }

    ngx_http_agent_add_time(&b, "startedAt", info->started);
    ngx_http_agent_add_time(&b, "finishedAt", info->finished);
    ngx_http_agent_add_usage(&b, &info->usage);

    if (info->status == NGX_AGENT_RUN_ERROR) {
        text.data = agent_code_name(info->code);
        text.len = ngx_strlen(text.data);
        agent_buf_add_lit(&b, ",\"code\":");
        agent_json_quote(&b, text);
    }

    agent_buf_add_char(&b, '}');

    if (agent_buf_ok(&b)) {
        rc = ngx_http_agent_json(r, NGX_HTTP_OK, agent_buf_str(&b));

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    agent_buf_free(&b);

done:

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_agent_status(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t                   rc;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    if (!ngx_http_agent_ask(r, id, &rc)) {
        return rc;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    alcf->agent->store->status(alcf->agent->store, ctx->key,
                               ngx_http_agent_status_info, r);

    return NGX_DONE;
}


static void
ngx_http_agent_cancelled(void *data, ngx_int_t rc)
{
    ngx_http_request_t *r = data;

    switch (rc) {

    case NGX_OK:
        rc = ngx_http_agent_json(r, NGX_HTTP_ACCEPTED,
                                 AGENT_STR("{\"accepted\":true}"));
        break;

    case NGX_DONE:
        rc = ngx_http_discard_request_body(r);

        if (rc != NGX_OK) {
            break;
        }

        r->headers_out.status = NGX_HTTP_NO_CONTENT;
        r->header_only = 1;
        ngx_http_clear_content_length(r);

        rc = ngx_http_send_header(r);
        break;

    case NGX_ABORT:
        rc = ngx_http_agent_code(r, AGENT_CODE_GONE,
                                 "the run is over and no longer kept");
        break;

    case NGX_DECLINED:
        rc = ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                 "there is no such run");
        break;

    default:
        rc = ngx_http_agent_code(r, AGENT_CODE_STORE_UNAVAILABLE,
                                 "the store of runs cannot be reached");
    }

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_agent_cancel(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t                   rc;
    ngx_agent_feed_t           *feed;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    if (!ngx_http_agent_ask(r, id, &rc)) {
        return rc;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    /* a run of this worker stops at once, that of another is rung */

    feed = ngx_agent_feed_find(ctx->key);

    if (feed && feed->run && feed->run->state != NGX_AGENT_OVER) {
        ngx_agent_run_cancel(feed->run);
        ngx_http_agent_cancelled(r, NGX_OK);

        return NGX_DONE;
    }

    alcf->agent->store->cancel(alcf->agent->store, ctx->key,
                               ngx_http_agent_cancelled, r);

    return NGX_DONE;
}


/* --- P/capabilities ----------------------------------------------------- */

ngx_int_t
ngx_http_agent_capabilities(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    agent_buf_t                 b;
    ngx_http_agent_loc_conf_t  *alcf;

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    agent_buf_init(&b, &agent_alloc_libc);

    agent_buf_add_lit(&b, "{\"identity\":{\"name\":");
    agent_json_quote(&b, ngx_agent_str(&alcf->agent->name));
    agent_buf_add_lit(&b, ",\"type\":\"ngx_agent_module\"},"
                          "\"transport\":{\"streaming\":true,"
                          "\"websocket\":false,\"httpBinary\":false,"
                          "\"pushNotifications\":false,\"resumable\":");

    if (alcf->agent->store != &ngx_agent_local_store) {
        agent_buf_add_lit(&b, "true},\"tools\":{\"supported\":");

    } else {
        agent_buf_add_lit(&b, "false},\"tools\":{\"supported\":");
    }

    if (alcf->agent->client_tools) {
        agent_buf_add_lit(&b, "true,\"parallelCalls\":true,"
                              "\"clientProvided\":true}");

    } else {
        agent_buf_add_lit(&b, "false,\"clientProvided\":false}");
    }

    agent_buf_add_lit(&b, ",\"state\":{\"snapshots\":false,\"deltas\":false,"
                          "\"memory\":false,\"persistentState\":false},"
                          "\"reasoning\":{\"supported\":true,"
                          "\"streaming\":true,\"encrypted\":false},"
                          "\"humanInTheLoop\":{\"supported\":false,"
                          "\"interrupts\":false},"
                          "\"execution\":{\"maxExecutionTime\":");
    agent_buf_add_uint(&b, alcf->agent->max_run_time);
    agent_buf_add_lit(&b, "}}");

    if (agent_buf_ok(&b)) {
        rc = ngx_http_agent_json(r, NGX_HTTP_OK, agent_buf_str(&b));

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    agent_buf_free(&b);

    return rc;
}
