
/*
 * Cross-origin rules.  agent_cors answers a preflight before the access phase,
 * because browsers send it without credentials, and adds its headers to every
 * response of the location, nginx's own errors included.  Independent of it,
 * an unsafe method that a browser sends across sites is refused.
 */

#include "ngx_http_agent.h"


static ngx_int_t ngx_http_agent_origin(ngx_str_t *origin);
static ngx_int_t ngx_http_agent_preflight(ngx_http_request_t *r);
static ngx_int_t ngx_http_agent_cors_filter(ngx_http_request_t *r);

static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;


char *
ngx_http_agent_cors(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t   *value, *origin;
    ngx_uint_t   i;

    if (alcf->cors != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        alcf->cors = NULL;
        return NGX_CONF_OK;
    }

    alcf->cors = ngx_array_create(cf->pool, cf->args->nelts,
                                  sizeof(ngx_str_t));
    if (alcf->cors == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "*") == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"agent_cors *\" is refused, it would let "
                               "every site use its visitors' credentials; "
                               "list the origins");
            return NGX_CONF_ERROR;
        }

        if (ngx_http_agent_origin(&value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid origin \"%V\", write it as a browser "
                               "sends it: scheme://host[:port], without a "
                               "path or \"/\" at the end", &value[i]);
            return NGX_CONF_ERROR;
        }

        origin = ngx_array_push(alcf->cors);
        if (origin == NULL) {
            return NGX_CONF_ERROR;
        }

        *origin = value[i];
    }

    return NGX_CONF_OK;
}


/* browsers send scheme and host in lower case, and no default port */

static ngx_int_t
ngx_http_agent_origin(ngx_str_t *origin)
{
    u_char     *p, *end, *host;
    ngx_int_t   port;

    ngx_strlow(origin->data, origin->data, origin->len);

    end = origin->data + origin->len;

    host = ngx_strnstr(origin->data, "://", origin->len);

    if (host == NULL || host == origin->data) {
        return NGX_ERROR;
    }

    host += 3;
    p = host;

    if (p < end && *p == '[') {
        p = ngx_strlchr(p, end, ']');

        if (p == NULL) {
            return NGX_ERROR;
        }

        p++;
    }

    while (p < end
           && ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9')
               || *p == '-' || *p == '.' || *p == '_'))
    {
        p++;
    }

    if (p == host) {
        return NGX_ERROR;
    }

    if (p == end) {
        return NGX_OK;
    }

    port = ngx_atoi(p + 1, end - p - 1);

    if (*p != ':' || port < 1 || port > 65535) {
        return NGX_ERROR;
    }

    if ((port == 80 && ngx_strncmp(origin->data, "http:", 5) == 0)
        || (port == 443 && ngx_strncmp(origin->data, "https:", 6) == 0))
    {
        origin->len = p - origin->data;
    }

    return NGX_OK;
}


static ngx_str_t *
ngx_http_agent_find_header(ngx_http_request_t *r, const char *name)
{
    size_t            n;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    n = ngx_strlen(name);
    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                return NULL;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == n
            && ngx_strncasecmp(h[i].key.data, (u_char *) name, n) == 0)
        {
            return &h[i].value;
        }
    }
}


static ngx_uint_t
ngx_http_agent_listed(ngx_http_agent_loc_conf_t *alcf, ngx_str_t *origin)
{
    ngx_str_t   *listed;
    ngx_uint_t   i;

    if (alcf->cors == NULL) {
        return 0;
    }

    listed = alcf->cors->elts;

    for (i = 0; i < alcf->cors->nelts; i++) {
        if (listed[i].len == origin->len
            && ngx_strncasecmp(listed[i].data, origin->data, origin->len)
               == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_int_t
ngx_http_agent_check_origin(ngx_http_request_t *r)
{
    u_char                     *p, *end;
    ngx_str_t                  *origin, *site, host;
    ngx_http_agent_loc_conf_t  *alcf;

    origin = ngx_http_agent_find_header(r, "Origin");

    if (origin == NULL) {
        site = ngx_http_agent_find_header(r, "Sec-Fetch-Site");

        if (site && site->len == 10
            && ngx_strncasecmp(site->data, (u_char *) "cross-site", 10) == 0)
        {
            return NGX_DECLINED;
        }

        return NGX_OK;
    }

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (ngx_http_agent_listed(alcf, origin)) {
        return NGX_OK;
    }

    /*
     * The host's own.  The scheme is not compared: in front of us TLS may end
     * at a proxy.
     */

    if (r->headers_in.host == NULL) {
        return NGX_DECLINED;
    }

    host = r->headers_in.host->value;
    end = origin->data + origin->len;
    p = ngx_strnstr(origin->data, "://", origin->len);

    if (p == NULL) {
        return NGX_DECLINED;
    }

    p += 3;

    if ((size_t) (end - p) == host.len
        && ngx_strncasecmp(p, host.data, host.len) == 0)
    {
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_agent_cors_header(ngx_http_request_t *r, const char *name,
    const char *text)
{
    ngx_str_t  value;

    value.data = (u_char *) text;
    value.len = ngx_strlen(text);

    return ngx_http_agent_add_header(r, name, &value);
}


/* header names as a browser lists them: tokens, commas, spaces */

static ngx_uint_t
ngx_http_agent_header_names(ngx_str_t *names)
{
    u_char  c;
    size_t  i;

    if (names->len > 1024) {
        return 0;
    }

    for (i = 0; i < names->len; i++) {
        c = names->data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == ','
              || c == ' '))
        {
            return 0;
        }
    }

    return names->len != 0;
}


static ngx_int_t
ngx_http_agent_preflight(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_str_t                  *origin, *names;
    ngx_http_agent_loc_conf_t  *alcf;

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (alcf->cors == NULL || alcf->agent == NULL || r != r->main) {
        return NGX_DECLINED;
    }

    /* from here on every answer gets the headers, also that of an error_page */

    if (ngx_http_agent_get_ctx(r) == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method != NGX_HTTP_OPTIONS) {
        return NGX_DECLINED;
    }

    origin = ngx_http_agent_find_header(r, "Origin");

    if (origin == NULL
        || ngx_http_agent_find_header(r, "Access-Control-Request-Method")
           == NULL)
    {
        return NGX_DECLINED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_agent_listed(alcf, origin)) {

        names = ngx_http_agent_find_header(r,
                                           "Access-Control-Request-Headers");

        if (ngx_http_agent_cors_header(r, "Access-Control-Allow-Methods",
                                       "GET, POST, DELETE, OPTIONS")
            != NGX_OK
            || ngx_http_agent_cors_header(r, "Access-Control-Max-Age", "7200")
               != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (names && ngx_http_agent_header_names(names)) {
            rc = ngx_http_agent_add_header(r, "Access-Control-Allow-Headers",
                                           names);

        } else {
            rc = ngx_http_agent_cors_header(r, "Access-Control-Allow-Headers",
                                            "Authorization, Content-Type, "
                                            "Accept, Last-Event-ID");
        }

        if (rc != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (ngx_http_agent_cors_header(r, "Vary",
                                   "Access-Control-Request-Headers")
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_NO_CONTENT;
    r->headers_out.content_length_n = 0;
    ngx_http_clear_content_length(r);
    r->header_only = 1;

    ngx_http_finalize_request(r, ngx_http_send_header(r));

    return NGX_DONE;
}


static ngx_int_t
ngx_http_agent_cors_filter(ngx_http_request_t *r)
{
    ngx_str_t                  *origin;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    if (r != r->main) {
        return ngx_http_next_header_filter(r);
    }

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (alcf->agent == NULL) {
        ctx = ngx_http_agent_find_ctx(r);

        if (ctx) {
            alcf = ctx->lcf;
        }
    }

    if (alcf->cors == NULL || alcf->agent == NULL) {
        return ngx_http_next_header_filter(r);
    }

    /* the answer depends on the origin even where there was none */

    if (ngx_http_agent_cors_header(r, "Vary", "Origin") != NGX_OK) {
        return NGX_ERROR;
    }

    origin = ngx_http_agent_find_header(r, "Origin");

    if (origin == NULL || !ngx_http_agent_listed(alcf, origin)) {
        return ngx_http_next_header_filter(r);
    }

    if (ngx_http_agent_add_header(r, "Access-Control-Allow-Origin", origin)
        != NGX_OK
        || ngx_http_agent_cors_header(r, "Access-Control-Allow-Credentials",
                                      "true")
           != NGX_OK
        || ngx_http_agent_cors_header(r, "Access-Control-Expose-Headers",
                                      "X-Agent-Run-Id, X-Agent-Thread-Id, "
                                      "X-Agent-Attached, X-Agent-Resume, "
                                      "X-Agent-Last-Event-ID, Retry-After")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_next_header_filter(r);
}


ngx_int_t
ngx_http_agent_cors_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_agent_preflight;

    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_agent_cors_filter;

    return NGX_OK;
}
