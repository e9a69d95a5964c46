
/* Variables for log_format and map. */

#include "ngx_http_agent.h"
#include "ngx_agent_run.h"


static ngx_int_t ngx_http_agent_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


enum {
    NGX_AGENT_VAR_RUN_ID = 0,
    NGX_AGENT_VAR_THREAD_ID,
    NGX_AGENT_VAR_NAME,
    NGX_AGENT_VAR_MODEL,
    NGX_AGENT_VAR_STATUS,
    NGX_AGENT_VAR_FINISH_REASON,
    NGX_AGENT_VAR_INPUT_TOKENS,
    NGX_AGENT_VAR_OUTPUT_TOKENS,
    NGX_AGENT_VAR_FIRST_TOKEN_TIME,
    NGX_AGENT_VAR_EVENTS,
    NGX_AGENT_VAR_RESUME
};


#define ngx_agent_variable(name, id)                                          \
    { ngx_string(name), NULL, ngx_http_agent_variable, id,                    \
      NGX_HTTP_VAR_NOCACHEABLE, 0 }

static ngx_http_variable_t  ngx_http_agent_vars[] = {
    ngx_agent_variable("agent_run_id", NGX_AGENT_VAR_RUN_ID),
    ngx_agent_variable("agent_thread_id", NGX_AGENT_VAR_THREAD_ID),
    ngx_agent_variable("agent_name", NGX_AGENT_VAR_NAME),
    ngx_agent_variable("agent_model", NGX_AGENT_VAR_MODEL),
    ngx_agent_variable("agent_status", NGX_AGENT_VAR_STATUS),
    ngx_agent_variable("agent_finish_reason", NGX_AGENT_VAR_FINISH_REASON),
    ngx_agent_variable("agent_input_tokens", NGX_AGENT_VAR_INPUT_TOKENS),
    ngx_agent_variable("agent_output_tokens", NGX_AGENT_VAR_OUTPUT_TOKENS),
    ngx_agent_variable("agent_first_token_time",
                       NGX_AGENT_VAR_FIRST_TOKEN_TIME),
    ngx_agent_variable("agent_events", NGX_AGENT_VAR_EVENTS),
    ngx_agent_variable("agent_resume", NGX_AGENT_VAR_RESUME),

      ngx_http_null_variable
};


static ngx_int_t
ngx_http_agent_variable_text(ngx_http_variable_value_t *v, const char *text)
{
    if (text == NULL || *text == '\0') {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = (u_char *) text;
    v->len = ngx_strlen(text);
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* ids outside the grammar for log lines are left out of them */

static ngx_int_t
ngx_http_agent_variable_id(ngx_http_variable_value_t *v, ngx_str_t *id)
{
    if (!agent_id_is_plain(ngx_agent_str(id))) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = id->data;
    v->len = id->len;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_agent_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, int64_t n, ngx_uint_t ms)
{
    if (n < 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->data = ngx_pnalloc(r->pool, NGX_INT64_LEN + 4);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    if (ms) {
        v->len = ngx_sprintf(v->data, "%L.%03L", n / 1000, n % 1000)
                 - v->data;

    } else {
        v->len = ngx_sprintf(v->data, "%L", n) - v->data;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_agent_variable(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    if (data == NGX_AGENT_VAR_NAME) {
        alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);
        ctx = ngx_http_agent_find_ctx(r->main);

        if (ctx) {
            alcf = ctx->lcf;
        }

        if (alcf->agent == NULL) {
            v->not_found = 1;
            return NGX_OK;
        }

        v->data = alcf->agent->name.data;
        v->len = alcf->agent->name.len;
        v->valid = 1;
        v->no_cacheable = 0;
        v->not_found = 0;

        return NGX_OK;
    }

    ctx = ngx_http_agent_find_ctx(r->main);

    if (ctx == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    switch (data) {

    case NGX_AGENT_VAR_RUN_ID:
        return ngx_http_agent_variable_id(v, &ctx->run_id);

    case NGX_AGENT_VAR_THREAD_ID:
        return ngx_http_agent_variable_id(v, &ctx->thread_id);

    case NGX_AGENT_VAR_MODEL:
        if (ctx->model == NULL) {
            break;
        }

        v->data = ctx->model->name.data;
        v->len = ctx->model->name.len;
        v->valid = 1;
        v->no_cacheable = 0;
        v->not_found = 0;

        return NGX_OK;

    case NGX_AGENT_VAR_STATUS:
        return ngx_http_agent_variable_text(v, ctx->status);

    case NGX_AGENT_VAR_FINISH_REASON:
        return ngx_http_agent_variable_text(v, ctx->finish_reason);

    case NGX_AGENT_VAR_INPUT_TOKENS:
        return ngx_http_agent_variable_number(r, v, ctx->input_tokens, 0);

    case NGX_AGENT_VAR_OUTPUT_TOKENS:
        return ngx_http_agent_variable_number(r, v, ctx->output_tokens, 0);

    case NGX_AGENT_VAR_FIRST_TOKEN_TIME:
        return ngx_http_agent_variable_number(r, v, ctx->first_token, 1);

    case NGX_AGENT_VAR_EVENTS:
        if (ctx->status == NULL) {
            break;
        }

        return ngx_http_agent_variable_number(r, v, (int64_t) ctx->events, 0);

    case NGX_AGENT_VAR_RESUME:
        return ngx_http_agent_variable_text(v, ctx->resume);
    }

    v->not_found = 1;

    return NGX_OK;
}


ngx_int_t
ngx_http_agent_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_agent_vars; v->name.len; v++) {

        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}
