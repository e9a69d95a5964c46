
/* JSON answers, errors and the headers they share. */

#include "ngx_http_agent.h"
#include "ngx_agent_zone.h"


ngx_int_t
ngx_http_agent_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;
    ngx_agent_header_init(h);

    return NGX_OK;
}


static ngx_int_t
ngx_http_agent_header(ngx_http_request_t *r, const char *name,
    const char *text)
{
    ngx_str_t  value;

    value.data = (u_char *) text;
    value.len = ngx_strlen(text);

    return ngx_http_agent_add_header(r, name, &value);
}


ngx_int_t
ngx_http_agent_id_headers(ngx_http_request_t *r)
{
    ngx_http_agent_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);

    if (ctx == NULL) {
        return NGX_OK;
    }

    /* an id outside the grammar must not reach a header */

    if (agent_id_is_plain(ngx_agent_str(&ctx->run_id))
        && ngx_http_agent_add_header(r, "X-Agent-Run-Id", &ctx->run_id)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (agent_id_is_plain(ngx_agent_str(&ctx->thread_id))
        && ngx_http_agent_add_header(r, "X-Agent-Thread-Id", &ctx->thread_id)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_agent_json(ngx_http_request_t *r, ngx_uint_t status,
    agent_str_t body)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    /* the body of a refused request is read and thrown away */

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    b = ngx_create_temp_buf(r->pool, body.len + 1);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_cpymem(b->last, body.data, body.len);
    *b->last++ = LF;

    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    r->headers_out.status = status;
    r->headers_out.content_length_n = b->last - b->pos;

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (ngx_http_agent_header(r, "Cache-Control", "private, no-store")
        != NGX_OK
        || ngx_http_agent_header(r, "Vary", "Accept") != NGX_OK
        || ngx_http_agent_id_headers(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, &out);
}


ngx_int_t
ngx_http_agent_error(ngx_http_request_t *r, const agent_fault_t *fault)
{
    ngx_int_t                   rc;
    ngx_str_t                   value;
    ngx_uint_t                  status, retry_after;
    agent_str_t                 text;
    agent_buf_t                 body;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    status = agent_code_status(fault->code);

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);

    if (ctx && ctx->status == NULL && ngx_agent_shared) {
        ngx_agent_stat_add(refused[fault->code], 1);
    }

    if (ctx && ctx->finish_reason == NULL) {
        ctx->finish_reason = agent_code_name(fault->code);
    }

    retry_after = fault->retry_after;

    if (retry_after == 0) {
        retry_after = agent_code_retry_after(fault->code);
    }

    if (retry_after) {
        value.data = ngx_pnalloc(r->pool, NGX_INT_T_LEN);
        if (value.data == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        value.len = ngx_sprintf(value.data, "%ui", retry_after) - value.data;

        if (ngx_http_agent_add_header(r, "Retry-After", &value) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (alcf->intercept_errors) {
        return status;
    }

    agent_buf_init(&body, &agent_alloc_libc);

    text.data = agent_code_name(fault->code);
    text.len = ngx_strlen(text.data);

    agent_buf_add_lit(&body, "{\"error\":{\"code\":");
    agent_json_quote(&body, text);
    agent_buf_add_lit(&body, ",\"message\":");

    text.data = fault->message;
    text.len = ngx_strlen(fault->message);

    agent_json_quote(&body, text);
    agent_buf_add_lit(&body, "}}");

    if (!agent_buf_ok(&body)) {
        agent_buf_free(&body);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_agent_json(r, status, agent_buf_str(&body));

    agent_buf_free(&body);

    return rc;
}


ngx_int_t
ngx_http_agent_code(ngx_http_request_t *r, agent_code_t code,
    const char *message)
{
    agent_fault_t  fault;

    agent_fault_set(&fault, code, "%s", message);

    return ngx_http_agent_error(r, &fault);
}
