
/*
 * The HTTP API below an agent_pass location: routes, bodies, and the start of
 * a run.  The routes without a body are in ngx_agent_status.c.
 *
 * All of it runs inside nginx's own handling of the request, whose caller runs
 * posted requests afterwards.  Running them here would free the request while
 * that code still works on it.  A store that answers later has to run them in
 * its own event.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_MAX_DEPTH    128
#define NGX_AGENT_MAX_VALUES   1000000


typedef enum {
    NGX_AGENT_ROUTE_NONE = 0,
    NGX_AGENT_ROUTE_RUN,            /* P */
    NGX_AGENT_ROUTE_CAPABILITIES,   /* P/capabilities */
    NGX_AGENT_ROUTE_STATUS,         /* P/runs/{id} */
    NGX_AGENT_ROUTE_STREAM,         /* P/runs/{id}/stream */
    NGX_AGENT_ROUTE_ROWS,           /* P/runs/{id}/events */
    NGX_AGENT_ROUTE_CANCEL          /* P/runs/{id}/cancel */
} ngx_agent_route_e;


typedef struct {
    ngx_agent_route_e  route;
    ngx_str_t          id;
} ngx_agent_route_t;


static ngx_int_t ngx_http_agent_owner_value(ngx_http_request_t *r,
    ngx_http_agent_loc_conf_t *alcf, ngx_http_agent_ctx_t *ctx);
static ngx_int_t ngx_http_agent_route(ngx_http_request_t *r,
    ngx_agent_route_t *route);
static ngx_int_t ngx_http_agent_run_route(ngx_str_t *s, ngx_str_t *last,
    ngx_agent_route_t *route);
static ngx_uint_t ngx_http_agent_allowed(ngx_http_request_t *r,
    ngx_agent_route_e route);
static const char *ngx_http_agent_media_type(ngx_http_request_t *r);
static ngx_uint_t ngx_http_agent_wants_json(ngx_http_request_t *r);
static void ngx_http_agent_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_agent_start(ngx_http_request_t *r);
static void ngx_http_agent_claimed(void *data, ngx_int_t rc,
    ngx_agent_log_t *log, ngx_agent_run_info_t *info);


ngx_int_t
ngx_http_agent_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    const char                 *message;
    ngx_agent_route_t           route;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    static ngx_str_t  methods[] = {
        ngx_null_string,
        ngx_string("POST"),
        ngx_string("GET, HEAD"),
        ngx_string("GET, HEAD, DELETE"),
        ngx_string("GET"),
        ngx_string("GET, HEAD"),
        ngx_string("POST")
    };

    /* a subrequest has passed no access phase of its own */

    if (r != r->main) {
        return NGX_HTTP_NOT_FOUND;
    }

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (alcf->agent == NULL) {
        return NGX_HTTP_NOT_FOUND;
    }

    ctx = ngx_http_agent_get_ctx(r);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* nothing here has an ETag or a date that a precondition could be about */

    r->disable_not_modified = 1;

    rc = ngx_http_agent_owner_value(r, alcf, ctx);

    if (rc == NGX_DECLINED) {
        return ngx_http_agent_code(r, AGENT_CODE_UNAUTHORIZED,
                                   "the request has no identity");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_agent_route(r, &route);

    if (rc == NGX_DECLINED) {
        return ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                   "there is nothing at this path");
    }

    if (rc == NGX_ABORT) {
        return ngx_http_agent_code(r, AGENT_CODE_BAD_REQUEST,
                                   "the path is ambiguous: escape \"/\" in "
                                   "ids as %2F and leave out \"//\", \".\" "
                                   "and \"..\" segments");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!ngx_http_agent_allowed(r, route.route)) {
        if (ngx_http_agent_add_header(r, "Allow", &methods[route.route])
            != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return ngx_http_agent_code(r, AGENT_CODE_METHOD_NOT_ALLOWED,
                                   "the method is not allowed here, see the "
                                   "Allow header");
    }

    if ((r->method & (NGX_HTTP_POST|NGX_HTTP_DELETE))
        && ngx_http_agent_check_origin(r) != NGX_OK)
    {
        return ngx_http_agent_code(r, AGENT_CODE_CSRF,
                                   "the request comes from another site; "
                                   "list its origin in \"agent_cors\" to "
                                   "allow it");
    }

    switch (route.route) {

    case NGX_AGENT_ROUTE_CAPABILITIES:
        return ngx_http_agent_capabilities(r);

    case NGX_AGENT_ROUTE_STATUS:
        if (r->method == NGX_HTTP_DELETE) {
            return ngx_http_agent_cancel(r, &route.id);
        }

        return ngx_http_agent_status(r, &route.id);

    case NGX_AGENT_ROUTE_STREAM:
        return ngx_http_agent_stream(r, &route.id);

    case NGX_AGENT_ROUTE_ROWS:
        return ngx_http_agent_rows(r, &route.id);

    case NGX_AGENT_ROUTE_CANCEL:
        return ngx_http_agent_cancel(r, &route.id);

    default:
        break;
    }

    message = ngx_http_agent_media_type(r);

    if (message) {
        return ngx_http_agent_code(r, AGENT_CODE_UNSUPPORTED_MEDIA_TYPE,
                                   message);
    }

    ctx->json = ngx_http_agent_wants_json(r);

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, ngx_http_agent_body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    return NGX_DONE;
}


static ngx_int_t
ngx_http_agent_owner_value(ngx_http_request_t *r,
    ngx_http_agent_loc_conf_t *alcf, ngx_http_agent_ctx_t *ctx)
{
    if (alcf->owner == NULL) {
        ctx->owner_off = 1;
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, alcf->owner, &ctx->owner) != NGX_OK) {
        return NGX_ERROR;
    }

    return ctx->owner.len ? NGX_OK : NGX_DECLINED;
}


/*
 * Splits a path at "/" and decodes each segment once.  Returns the number of
 * segments, or NGX_ERROR; "joined" is what nginx makes of the same path when
 * nothing had to be normalised.
 */

static ngx_int_t
ngx_http_agent_segments(ngx_http_request_t *r, u_char *p, u_char *end,
    ngx_array_t *segments, ngx_str_t *joined)
{
    u_char     *src, *dst, *start;
    ngx_str_t  *s;

    joined->data = ngx_pnalloc(r->pool, end - p + 1);
    if (joined->data == NULL) {
        return NGX_ERROR;
    }

    dst = joined->data;

    while (p < end) {

        /* p is at a "/" */

        *dst++ = *p++;
        start = p;

        while (p < end && *p != '/') {
            p++;
        }

        s = ngx_array_push(segments);
        if (s == NULL) {
            return NGX_ERROR;
        }

        s->data = dst;
        src = start;

        ngx_unescape_uri(&dst, &src, p - start, 0);

        s->len = dst - s->data;
    }

    joined->len = dst - joined->data;

    return NGX_OK;
}


/* NGX_OK, NGX_DECLINED: no such route, NGX_ABORT: ambiguous, NGX_ERROR */

static ngx_int_t
ngx_http_agent_route(ngx_http_request_t *r, ngx_agent_route_t *route)
{
    size_t                     prefix, n;
    u_char                    *p, *end;
    ngx_str_t                  joined, *s, *last;
    ngx_array_t                segments;
    ngx_uint_t                 raw;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_agent_loc_conf_t *alcf;

    ngx_memzero(route, sizeof(ngx_agent_route_t));

    route->route = NGX_AGENT_ROUTE_RUN;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (alcf->whole) {
        return NGX_OK;
    }

    prefix = clcf->name.len;

    while (prefix && clcf->name.data[prefix - 1] == '/') {
        prefix--;
    }

    if (r->uri.len < prefix
        || (r->uri.len > prefix && r->uri.data[prefix] != '/'))
    {
        return NGX_DECLINED;
    }

    /*
     * What follows P comes from the request line as long as nginx has not
     * rewritten it, so that an id may hold an escaped slash.  A path that
     * nginx had to normalise could mean two things.
     */

    if (ngx_array_init(&segments, r->pool, 8, sizeof(ngx_str_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    raw = 0;

    if (r->valid_unparsed_uri && r->unparsed_uri.len
        && r->unparsed_uri.data[0] == '/')
    {
        p = r->unparsed_uri.data;
        end = ngx_strlchr(p, p + r->unparsed_uri.len, '?');

        if (end == NULL) {
            end = p + r->unparsed_uri.len;
        }

        if (ngx_http_agent_segments(r, p, end, &segments, &joined)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (joined.len != r->uri.len
            || ngx_memcmp(joined.data, r->uri.data, joined.len) != 0)
        {
            return NGX_ABORT;
        }

        raw = 1;
    }

    if (!raw) {
        segments.nelts = 0;

        /* decoded already: a "%" here is a "%" */

        p = r->uri.data;
        end = p + r->uri.len;

        while (p < end) {
            p++;

            s = ngx_array_push(&segments);
            if (s == NULL) {
                return NGX_ERROR;
            }

            s->data = p;

            while (p < end && *p != '/') {
                p++;
            }

            s->len = p - s->data;
        }
    }

    /* leave out the segments of P */

    s = segments.elts;
    last = s + segments.nelts;
    n = 0;

    while (s < last && n < prefix) {
        n += 1 + s->len;
        s++;
    }

    if (n != prefix) {
        return NGX_ABORT;
    }

    /* a slash at the end */

    if (s < last && last[-1].len == 0) {
        last--;
    }

    if (alcf->only_runs) {
        return ngx_http_agent_run_route(s, last, route);
    }

    if (s == last) {
        return NGX_OK;
    }

    if (last - s == 1 && s->len == 12
        && ngx_strncmp(s->data, "capabilities", 12) == 0)
    {
        route->route = NGX_AGENT_ROUTE_CAPABILITIES;
        return NGX_OK;
    }

    if (s->len != 4 || ngx_strncmp(s->data, "runs", 4) != 0) {
        return NGX_DECLINED;
    }

    return ngx_http_agent_run_route(s + 1, last, route);
}


/* {id} and what may follow it */

static ngx_int_t
ngx_http_agent_run_route(ngx_str_t *s, ngx_str_t *last,
    ngx_agent_route_t *route)
{
    if (s >= last || s->len == 0) {
        return NGX_DECLINED;
    }

    route->id = s[0];

    if (last - s == 1) {
        route->route = NGX_AGENT_ROUTE_STATUS;
        return NGX_OK;
    }

    if (last - s > 2) {
        return NGX_DECLINED;
    }

    if (s[1].len == 6 && ngx_strncmp(s[1].data, "stream", 6) == 0) {
        route->route = NGX_AGENT_ROUTE_STREAM;
        return NGX_OK;
    }

    if (s[1].len == 6 && ngx_strncmp(s[1].data, "events", 6) == 0) {
        route->route = NGX_AGENT_ROUTE_ROWS;
        return NGX_OK;
    }

    if (s[1].len == 6 && ngx_strncmp(s[1].data, "cancel", 6) == 0) {
        route->route = NGX_AGENT_ROUTE_CANCEL;
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_uint_t
ngx_http_agent_allowed(ngx_http_request_t *r, ngx_agent_route_e route)
{
    switch (route) {

    case NGX_AGENT_ROUTE_CAPABILITIES:
    case NGX_AGENT_ROUTE_ROWS:
        return r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD);

    case NGX_AGENT_ROUTE_STATUS:
        return r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD|NGX_HTTP_DELETE);

    case NGX_AGENT_ROUTE_STREAM:
        return r->method & NGX_HTTP_GET;

    default:
        return r->method & NGX_HTTP_POST;
    }
}


/* NULL, or what is wrong: the type must be application/json, also with
 * parameters, and the body not encoded */

static const char *
ngx_http_agent_media_type(ngx_http_request_t *r)
{
    size_t            n;
    ngx_str_t        *type;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    static ngx_str_t   json = ngx_string("application/json");
    static const char  wrong_type[] =
                       "the body must say \"Content-Type: application/json\"";

    if (r->headers_in.content_type == NULL) {
        return wrong_type;
    }

    type = &r->headers_in.content_type->value;

    n = json.len;

    if (type->len < n || ngx_strncasecmp(type->data, json.data, n) != 0
        || (type->len > n && type->data[n] != ';' && type->data[n] != ' '
            && type->data[n] != '\t'))
    {
        return wrong_type;
    }

    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == sizeof("Content-Encoding") - 1
            && ngx_strncasecmp(h[i].key.data, (u_char *) "Content-Encoding",
                               h[i].key.len) == 0
            && h[i].value.len
            && !(h[i].value.len == 8
                 && ngx_strncasecmp(h[i].value.data, (u_char *) "identity", 8)
                    == 0))
        {
            return "a body with Content-Encoding is not supported";
        }
    }

    return NULL;
}


/* 1 when Accept names application/json and not text/event-stream */

static ngx_uint_t
ngx_http_agent_wants_json(ngx_http_request_t *r)
{
    size_t            n;
    u_char           *p, *end, *next;
    ngx_uint_t        i, json;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    json = 0;
    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                break;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len != 6
            || ngx_strncasecmp(h[i].key.data, (u_char *) "Accept", 6) != 0)
        {
            continue;
        }

        p = h[i].value.data;
        end = p + h[i].value.len;

        while (p < end) {
            while (p < end && (*p == ' ' || *p == ',' || *p == '\t')) {
                p++;
            }

            next = p;

            while (next < end && *next != ',' && *next != ';'
                   && *next != ' ' && *next != '\t')
            {
                next++;
            }

            n = next - p;

            if (n == 16
                && ngx_strncasecmp(p, (u_char *) "application/json", n) == 0)
            {
                json = 1;
            }

            if (n == 17
                && ngx_strncasecmp(p, (u_char *) "text/event-stream", n) == 0)
            {
                return 0;
            }

            /* its parameters */

            while (next < end && *next != ',') {
                next++;
            }

            p = next;
        }
    }

    return json;
}


/* the whole body in one piece of memory */

static ngx_int_t
ngx_http_agent_read_body(ngx_http_request_t *r, ngx_str_t *body)
{
    off_t         size;
    size_t        n;
    ssize_t       rc;
    u_char       *p;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    body->len = 0;
    body->data = (u_char *) "";

    if (r->request_body == NULL || r->request_body->bufs == NULL) {
        return NGX_OK;
    }

    size = 0;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    cl = r->request_body->bufs;

    if (cl->next == NULL && !cl->buf->in_file) {
        body->data = cl->buf->pos;
        body->len = cl->buf->last - cl->buf->pos;

        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, (size_t) size + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;

    for ( /* void */ ; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        if (!b->in_file) {
            continue;
        }

        n = (size_t) (b->file_last - b->file_pos);

        rc = ngx_read_file(b->file, p, n, b->file_pos);

        if (rc == NGX_ERROR || (size_t) rc != n) {
            ngx_log_error(NGX_LOG_ERR, r->connection->log, ngx_errno,
                          "agent: reading the body's temporary file failed");
            return NGX_ERROR;
        }

        p += n;
    }

    body->len = p - body->data;

    return NGX_OK;
}


static void
ngx_http_agent_body_handler(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_agent_start(r);

    if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }
}


/* the parsed body goes when the run has begun, its ids stay */

static ngx_int_t
ngx_http_agent_copy_id(ngx_http_request_t *r, ngx_str_t *dst, agent_str_t *src)
{
    if (src->len == 0) {
        ngx_str_null(dst);
        return NGX_OK;
    }

    dst->data = ngx_pnalloc(r->pool, src->len);
    if (dst->data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(dst->data, src->data, src->len);
    dst->len = src->len;

    return NGX_OK;
}


/* NGX_DONE: somebody else finalizes the request now */

static ngx_int_t
ngx_http_agent_start(ngx_http_request_t *r)
{
    agent_rc_t                  rc;
    agent_str_t                 body;
    ngx_str_t                   thread;
    agent_fault_t               fault;
    agent_input_rules_t         rules;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (ngx_agent_draining()) {
        return ngx_http_agent_code(r, AGENT_CODE_DRAINING,
                                   "this worker is shutting down, try again");
    }

    if (ngx_http_agent_read_body(r, &ctx->body) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memzero(&rules, sizeof(agent_input_rules_t));

    rules.roles = alcf->agent->roles;
    rules.client_tools = alcf->agent->client_tools;
    rules.max_depth = NGX_AGENT_MAX_DEPTH;
    rules.max_values = NGX_AGENT_MAX_VALUES;

    body = ngx_agent_str(&ctx->body);

    rc = agent_input_parse(&ctx->input, body, &rules, &agent_alloc_libc,
                           &fault);

    if (rc == AGENT_OK) {
        rc = agent_input_pair(&ctx->input, &fault);
    }

    if (rc == AGENT_NOMEM) {
        return ngx_http_agent_code(r, AGENT_CODE_INTERNAL,
                                   "not enough memory for the request");
    }

    if (rc != AGENT_OK) {
        return ngx_http_agent_error(r, &fault);
    }

    if (ctx->input.stripped) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "agent \"%V\": %ui unknown or refused members of the "
                      "input were left out", &alcf->agent->name,
                      (ngx_uint_t) ctx->input.stripped);
    }

    /* the thread: a place in the URL wins, another one in the body is a
     * mistake */

    if (ngx_http_agent_copy_id(r, &ctx->thread_id, &ctx->input.thread_id)
        != NGX_OK
        || ngx_http_agent_copy_id(r, &ctx->run_id, &ctx->input.run_id)
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (alcf->thread) {
        if (ngx_http_complex_value(r, alcf->thread, &thread) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (thread.len) {
            if (agent_id_check(ngx_agent_str(&thread)) != NULL) {
                ngx_str_null(&ctx->thread_id);

                return ngx_http_agent_code(r, AGENT_CODE_BAD_REQUEST,
                                           "the thread id of \"agent_thread\" "
                                           "must be UTF-8, 1 to 128 "
                                           "characters, none of them a "
                                           "control character");
            }

            if (ctx->thread_id.len
                && (ctx->thread_id.len != thread.len
                    || ngx_memcmp(ctx->thread_id.data, thread.data,
                                  thread.len) != 0))
            {
                return ngx_http_agent_code(r, AGENT_CODE_BAD_REQUEST,
                                           "threadId differs from the thread "
                                           "named by the URL");
            }

            ctx->thread_id = thread;
        }
    }

    ctx->thread_named = (ctx->thread_id.len != 0);

    if (ctx->thread_id.len == 0
        && ngx_agent_random_id(r->pool, "", &ctx->thread_id) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->run_id.len == 0
        && ngx_agent_random_id(r->pool, "", &ctx->run_id) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_agent_run_key(r, &ctx->run_id) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    alcf->agent->store->claim(alcf->agent->store, ctx->key, &ctx->thread_id,
                              ngx_http_agent_claimed, r);

    return NGX_DONE;
}


static ngx_int_t
ngx_http_agent_attach(ngx_http_request_t *r, ngx_http_agent_ctx_t *ctx,
    ngx_int_t rc, ngx_agent_run_info_t *info)
{
    ngx_agent_feed_t           *feed;
    ngx_agent_start_t           start;
    ngx_http_agent_loc_conf_t  *alcf;

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (info->thread_len != ctx->thread_id.len
        || ngx_memcmp(info->thread, ctx->thread_id.data, info->thread_len)
           != 0)
    {
        if (ctx->thread_named) {
            return ngx_http_agent_code(r, AGENT_CODE_RUN_ID_IN_USE,
                                       "runId belongs to a run of another "
                                       "thread");
        }

        /* it named no thread, so it means the run's own */

        ctx->thread_id.data = ngx_pnalloc(r->pool, info->thread_len);
        if (ctx->thread_id.data == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ngx_memcpy(ctx->thread_id.data, info->thread, info->thread_len);
        ctx->thread_id.len = info->thread_len;
    }

    if (alcf->agent->store == &ngx_agent_local_store) {
        feed = ngx_agent_feed_of(alcf->agent->store, ctx->key,
                                 info->generation);

    } else if (info->gone) {
        feed = NULL;

    } else {
        feed = ngx_agent_feed_open(alcf->agent, ctx->key, &ctx->run_id, info);

        if (feed == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    if (feed) {
        agent_input_free(&ctx->input);

        ngx_memzero(&start, sizeof(ngx_agent_start_t));

        start.json = ctx->json;
        start.attached = 1;

        ngx_agent_subscriber_attach(r, feed, &start);

        return NGX_DONE;
    }

    if (rc == NGX_DONE) {
        return ngx_http_agent_code(r, AGENT_CODE_GONE,
                                   "the run is over and its events are no "
                                   "longer kept; start another with a new "
                                   "runId");
    }

    return ngx_http_agent_code(r, AGENT_CODE_RUN_ID_IN_USE,
                               "the run is alive in another worker process; "
                               "without a replay zone it cannot be joined "
                               "from here");
}


static void
ngx_http_agent_claimed(void *data, ngx_int_t rc, ngx_agent_log_t *log,
    ngx_agent_run_info_t *info)
{
    ngx_http_request_t *r = data;

    agent_fault_t               fault;
    ngx_agent_run_t            *run;
    ngx_agent_start_t           start;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    switch (rc) {

    case NGX_OK:
        break;

    case NGX_BUSY:
    case NGX_DONE:
        rc = ngx_http_agent_attach(r, ctx, rc, info);
        goto done;

    case NGX_DECLINED:
        rc = ngx_http_agent_code(r, AGENT_CODE_ZONE_FULL,
                                 "no room for another run, try again later");
        goto done;

    default:
        rc = ngx_http_agent_code(r, AGENT_CODE_STORE_UNAVAILABLE,
                                 "the store of runs cannot be reached");
        goto done;
    }

    run = ngx_agent_run_create(r, ctx, alcf, log, &fault);

    if (run == NULL) {
        alcf->agent->store->close(log);
        rc = ngx_http_agent_error(r, &fault);
        goto done;
    }

    agent_input_free(&ctx->input);

    ngx_memzero(&start, sizeof(ngx_agent_start_t));

    start.json = ctx->json;

    ngx_agent_subscriber_attach(r, &run->feed, &start);

    if (run->feed.nsubscribers) {
        ngx_agent_run_start(run);

    } else {

        /* there was no memory for its reader: nobody waits for a model call */

        ngx_agent_run_cancel(run);
    }

    return;

done:

    if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }
}
