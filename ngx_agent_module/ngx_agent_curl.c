
/*
 * The curl transport.  curl never resolves a name itself (its lookup threads
 * can hold the loop for seconds): nginx's resolver or the configuration gives
 * the addresses, and the transfer is pinned to them.
 */

#include "ngx_agent_curl.h"


#define NGX_AGENT_LINGER        1000
#define NGX_AGENT_LINGER_BYTES  (64 * 1024)
#define NGX_AGENT_HEAD_MAX      (64 * 1024)
#define NGX_AGENT_CURL_BUFFER   2048
#define NGX_AGENT_TYPE_MAX      96
#define NGX_AGENT_ADDRS_MAX     16
#define NGX_AGENT_RETRY_MAX     32


/*
 *   NEW -> RESOLVING -> READY -> ACTIVE -> (freed)
 *     \-----------------^
 *
 * READY: waits in ngx_agent_starts for the deferred event.  A transfer that
 * was cancelled or has failed waits in ngx_agent_ends in any state.
 */

typedef enum {
    NGX_AGENT_TRANSFER_NEW = 0,
    NGX_AGENT_TRANSFER_RESOLVING,
    NGX_AGENT_TRANSFER_READY,
    NGX_AGENT_TRANSFER_ACTIVE
} ngx_agent_transfer_state_e;


struct ngx_agent_transfer_s {
    ngx_queue_t                          all;
    ngx_queue_t                          queue;   /* starts or ends */
    ngx_agent_model_t                   *model;
    agent_buf_t                          body;
    const ngx_agent_transfer_handlers_t *handlers;/* NULL: nobody listens */
    void                                *data;

    ngx_agent_multi_t                   *multi;
    CURL                                *easy;
    struct curl_slist                   *pinned;
    ngx_str_t                           *addrs;   /* one after the other */
    ngx_uint_t                           naddrs;
    ngx_uint_t                           tried;
    ngx_msec_t                           connecting;/* since */
    u_char                              *addr_text;/* NULL: the model's */
    ngx_resolver_ctx_t                  *resolve;

    ngx_event_t                          timer;
    ngx_msec_t                           last;    /* bytes came */

    ngx_agent_transfer_state_e           state;
    ngx_agent_transfer_e                 failed;
    const char                          *reason;

    size_t                               head_size;
    size_t                               lingered;
    ngx_str_t                            type;
    ngx_str_t                            retry_after;
    ngx_str_t                            retry_after_ms;
    u_char                               text[NGX_AGENT_TYPE_MAX
                                              + 2 * NGX_AGENT_RETRY_MAX];
    char                                 error[CURL_ERROR_SIZE];

    unsigned                             ending:1;/* in ngx_agent_ends */
    unsigned                             head:1;  /* has been reported */
    unsigned                             sent:1;  /* connected */
};


static ngx_int_t ngx_agent_curl_init_process(ngx_cycle_t *cycle);
static void ngx_agent_curl_exit_process(ngx_cycle_t *cycle);
static ngx_agent_transfer_t *ngx_agent_curl_start(
    ngx_agent_transfer_request_t *req);
static void ngx_agent_curl_cancel(ngx_agent_transfer_t *t);
static void ngx_agent_curl_release(ngx_agent_transfer_t *t);

static ngx_int_t ngx_agent_curl_resolve(ngx_agent_transfer_t *t,
    ngx_agent_transfer_request_t *req);
static void ngx_agent_curl_resolved(ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_agent_curl_copy_addrs(ngx_agent_transfer_t *t,
    ngx_resolver_ctx_t *ctx);
static ngx_int_t ngx_agent_curl_pin(ngx_agent_transfer_t *t);
static ngx_int_t ngx_agent_curl_next_addr(ngx_agent_transfer_t *t,
    CURLcode rc);
static void ngx_agent_curl_ready(ngx_agent_transfer_t *t);
static void ngx_agent_curl_end(ngx_agent_transfer_t *t,
    ngx_agent_transfer_e rc, const char *reason);
static void ngx_agent_curl_free(ngx_agent_transfer_t *t);
static void ngx_agent_curl_deferred(ngx_event_t *ev);
static ngx_int_t ngx_agent_curl_setup(ngx_agent_transfer_t *t);
static void ngx_agent_curl_timer(ngx_event_t *ev);
static void ngx_agent_curl_full(CURL *easy);
static void ngx_agent_curl_finished(ngx_agent_multi_t *m, CURL *easy,
    CURLcode rc);
static size_t ngx_agent_curl_header(char *p, size_t size, size_t n,
    void *data);
static size_t ngx_agent_curl_write(char *p, size_t size, size_t n,
    void *data);
static int ngx_agent_curl_connected(void *data, char *primary_ip,
    char *local_ip, int primary_port, int local_port);


const ngx_agent_transport_t  ngx_agent_curl_transport = {
    ngx_agent_curl_init_process,
    ngx_agent_curl_exit_process,
    ngx_agent_curl_start,
    ngx_agent_curl_cancel,
    ngx_agent_curl_release
};


static ngx_queue_t  ngx_agent_transfers;
static ngx_queue_t  ngx_agent_starts;
static ngx_queue_t  ngx_agent_ends;
static ngx_event_t  ngx_agent_deferred;


static ngx_int_t
ngx_agent_curl_init_process(ngx_cycle_t *cycle)
{
    /* in the worker: nothing of curl or its TLS library crosses a fork */

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, 0,
                      "curl_global_init() failed");
        return NGX_ERROR;
    }

    ngx_queue_init(&ngx_agent_transfers);
    ngx_queue_init(&ngx_agent_starts);
    ngx_queue_init(&ngx_agent_ends);

    ngx_memzero(&ngx_agent_deferred, sizeof(ngx_event_t));

    ngx_agent_deferred.handler = ngx_agent_curl_deferred;
    ngx_agent_deferred.log = cycle->log;

    ngx_agent_multi_full = ngx_agent_curl_full;

    return ngx_agent_multi_init(ngx_agent_curl_finished);
}


static void
ngx_agent_curl_exit_process(ngx_cycle_t *cycle)
{
    ngx_queue_t           *q;
    ngx_agent_transfer_t  *t;

    while (!ngx_queue_empty(&ngx_agent_transfers)) {
        q = ngx_queue_head(&ngx_agent_transfers);
        t = ngx_queue_data(q, ngx_agent_transfer_t, all);

        ngx_agent_curl_free(t);
    }

    ngx_agent_multi_cleanup();
}


ngx_uint_t
ngx_agent_slots_low(void)
{
    return ngx_cycle->free_connection_n < ngx_cycle->connection_n / 16 + 8;
}


/* the list is made of the configuration's memory and never freed by curl */

ngx_int_t
ngx_agent_curl_headers(ngx_conf_t *cf, ngx_agent_model_t *model)
{
    u_char              *p;
    ngx_str_t           *lines;
    ngx_uint_t           i, n, auth;
    struct curl_slist   *list;
    const agent_str_t   *prefix;

    static char *const  fixed[] = {
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Expect:"
    };

    prefix = &model->codec->auth;
    auth = (model->key.len && prefix->len);

    n = sizeof(fixed) / sizeof(fixed[0]) + auth
        + (model->headers ? model->headers->nelts : 0);

    list = ngx_pcalloc(cf->pool, n * sizeof(struct curl_slist));
    if (list == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n - 1; i++) {
        list[i].next = &list[i + 1];
    }

    model->header_list = list;

    for (i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        (list++)->data = fixed[i];
    }

    if (auth) {
        p = ngx_pnalloc(cf->pool, prefix->len + model->key.len + 1);
        if (p == NULL) {
            return NGX_ERROR;
        }

        (list++)->data = (char *) p;
        ngx_sprintf(p, "%*s%V%Z", prefix->len, prefix->data, &model->key);
    }

    if (model->headers) {
        lines = model->headers->elts;

        for (i = 0; i < model->headers->nelts; i++) {
            (list++)->data = (char *) lines[i].data;
        }
    }

    return NGX_OK;
}


static ngx_agent_transfer_t *
ngx_agent_curl_start(ngx_agent_transfer_request_t *req)
{
    ngx_agent_transfer_t  *t;

    t = ngx_calloc(sizeof(ngx_agent_transfer_t), ngx_cycle->log);
    if (t == NULL) {
        return NULL;
    }

    t->model = req->model;
    t->handlers = req->handlers;
    t->data = req->data;

    t->timer.handler = ngx_agent_curl_timer;
    t->timer.data = t;
    t->timer.log = ngx_cycle->log;
    t->timer.cancelable = 1;

    if (ngx_agent_curl_resolve(t, req) != NGX_OK) {
        curl_slist_free_all(t->pinned);

        if (t->addr_text) {
            ngx_free(t->addr_text);
        }

        ngx_free(t);
        return NULL;
    }

    t->body = req->body;

    ngx_queue_insert_tail(&ngx_agent_transfers, &t->all);

    return t;
}


/* --- names -------------------------------------------------------------- */

static ngx_int_t
ngx_agent_curl_resolve(ngx_agent_transfer_t *t,
    ngx_agent_transfer_request_t *req)
{
    ngx_resolver_ctx_t  *ctx, temp;
    ngx_agent_model_t   *model;

    model = t->model;

    if (model->literal) {
        ngx_agent_curl_ready(t);
        return NGX_OK;
    }

    if (req->resolver == NULL || req->resolver->connections.nelts == 0) {

        /* the configuration has made sure that there are addresses */

        t->addrs = model->addrs->elts;
        t->naddrs = model->addrs->nelts;

        if (ngx_agent_curl_pin(t) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_agent_curl_ready(t);
        return NGX_OK;
    }

    ngx_memzero(&temp, sizeof(ngx_resolver_ctx_t));
    temp.name = model->host;

    ctx = ngx_resolve_start(req->resolver, &temp);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        return NGX_ERROR;
    }

    ctx->name = model->host;
    ctx->handler = ngx_agent_curl_resolved;
    ctx->data = t;
    ctx->timeout = req->resolver_timeout;

    /* the handler may be called, and the context freed, inside the call */

    t->state = NGX_AGENT_TRANSFER_RESOLVING;
    t->resolve = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        t->resolve = NULL;
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_FAILED,
                           "the resolver could not be asked");
    }

    return NGX_OK;
}


static void
ngx_agent_curl_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_agent_transfer_t *t = ctx->data;

    u_char      *p;
    ngx_int_t    rc;

    if (ctx->state) {
        p = ngx_slprintf((u_char *) t->error, (u_char *) t->error
                                              + sizeof(t->error) - 1,
                         "%V could not be resolved: %s", &ctx->name,
                         ngx_resolver_strerror(ctx->state));
        *p = '\0';

        rc = NGX_DECLINED;

    } else {
        rc = ngx_agent_curl_copy_addrs(t, ctx);

        if (rc == NGX_OK) {
            rc = ngx_agent_curl_pin(t);
        }
    }

    ngx_resolve_name_done(ctx);
    t->resolve = NULL;

    if (t->ending) {
        return;
    }

    switch (rc) {

    case NGX_OK:
        ngx_agent_curl_ready(t);
        break;

    case NGX_DECLINED:
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_UNREACHABLE,
                           "its name could not be resolved");
        break;

    default:
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_FAILED, "no memory");
    }
}


static ngx_int_t
ngx_agent_curl_copy_addrs(ngx_agent_transfer_t *t, ngx_resolver_ctx_t *ctx)
{
    u_char      *p;
    ngx_uint_t   i, n;

    n = ngx_min(ctx->naddrs, NGX_AGENT_ADDRS_MAX);

    p = ngx_alloc(n * (sizeof(ngx_str_t) + NGX_SOCKADDR_STRLEN),
                  ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    t->addr_text = p;
    t->addrs = (ngx_str_t *) p;
    t->naddrs = n;

    p += n * sizeof(ngx_str_t);

    for (i = 0; i < n; i++) {
        t->addrs[i].data = p;
        t->addrs[i].len = ngx_sock_ntop(ctx->addrs[i].sockaddr,
                                        ctx->addrs[i].socklen, p,
                                        NGX_SOCKADDR_STRLEN, 0);
        p += NGX_SOCKADDR_STRLEN;
    }

    return NGX_OK;
}


/*
 * "host:port:address": the name stays the one that is verified.  One address
 * for an attempt: curl's own change to the next does not tell us of the new
 * socket and is then only noticed at the end of its time.
 */

static ngx_int_t
ngx_agent_curl_pin(ngx_agent_transfer_t *t)
{
    u_char     *p, *end, text[512];
    ngx_str_t  *addr;

    addr = &t->addrs[t->tried++];
    end = text + sizeof(text) - 1;

    p = ngx_slprintf(text, end,
                     ngx_strlchr(addr->data, addr->data + addr->len, ':')
                     ? "%V:%ui:[%V]" : "%V:%ui:%V",
                     &t->model->host, (ngx_uint_t) t->model->port, addr);
    *p = '\0';

    curl_slist_free_all(t->pinned);
    t->pinned = curl_slist_append(NULL, (char *) text);

    return t->pinned ? NGX_OK : NGX_ERROR;
}


/* the next address, when this one could not be connected to */

static ngx_int_t
ngx_agent_curl_next_addr(ngx_agent_transfer_t *t, CURLcode rc)
{
    if (t->sent || t->tried >= t->naddrs || t->handlers == NULL
        || (rc != CURLE_COULDNT_CONNECT && rc != CURLE_OPERATION_TIMEDOUT))
    {
        return NGX_DECLINED;
    }

    curl_multi_remove_handle(t->multi->handle, t->easy);
    t->multi->active--;
    t->multi = NULL;

    curl_easy_cleanup(t->easy);
    t->easy = NULL;

    if (ngx_agent_curl_pin(t) != NGX_OK) {
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_FAILED, "no memory");
        return NGX_OK;
    }

    ngx_agent_curl_ready(t);

    return NGX_OK;
}


/* --- start and end, both from the deferred event ------------------------ */

static void
ngx_agent_curl_ready(ngx_agent_transfer_t *t)
{
    t->state = NGX_AGENT_TRANSFER_READY;

    ngx_queue_insert_tail(&ngx_agent_starts, &t->queue);

    if (!ngx_agent_deferred.posted) {
        ngx_post_event(&ngx_agent_deferred, &ngx_posted_events);
    }
}


/* the transfer ends from the deferred event, with this result if somebody
 * still listens then */

static void
ngx_agent_curl_end(ngx_agent_transfer_t *t, ngx_agent_transfer_e rc,
    const char *reason)
{
    if (t->ending) {
        return;
    }

    if (t->state == NGX_AGENT_TRANSFER_READY) {
        ngx_queue_remove(&t->queue);
    }

    t->ending = 1;
    t->failed = rc;
    t->reason = reason;

    ngx_queue_insert_tail(&ngx_agent_ends, &t->queue);

    if (!ngx_agent_deferred.posted) {
        ngx_post_event(&ngx_agent_deferred, &ngx_posted_events);
    }
}


static void
ngx_agent_curl_cancel(ngx_agent_transfer_t *t)
{
    t->handlers = NULL;

    ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_OK, NULL);
}


static void
ngx_agent_curl_release(ngx_agent_transfer_t *t)
{
    t->handlers = NULL;

    if (t->state != NGX_AGENT_TRANSFER_ACTIVE) {
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_OK, NULL);
        return;
    }

    if (t->timer.timer_set) {
        ngx_del_timer(&t->timer);
    }

    ngx_add_timer(&t->timer, NGX_AGENT_LINGER);
}


/* not inside a callback of curl */

static void
ngx_agent_curl_free(ngx_agent_transfer_t *t)
{
    if (t->resolve) {
        ngx_resolve_name_done(t->resolve);
    }

    if (t->state == NGX_AGENT_TRANSFER_READY || t->ending) {
        ngx_queue_remove(&t->queue);
    }

    if (t->timer.timer_set) {
        ngx_del_timer(&t->timer);
    }

    if (t->easy) {
        if (t->multi) {
            curl_multi_remove_handle(t->multi->handle, t->easy);
            t->multi->active--;
        }

        curl_easy_cleanup(t->easy);
    }

    curl_slist_free_all(t->pinned);
    agent_buf_free(&t->body);

    if (t->addr_text) {
        ngx_free(t->addr_text);
    }

    ngx_queue_remove(&t->all);
    ngx_free(t);
}


static void
ngx_agent_curl_deferred(ngx_event_t *ev)
{
    ngx_queue_t           *q;
    ngx_agent_multi_t     *m;
    ngx_agent_transfer_t  *t;

    while (!ngx_queue_empty(&ngx_agent_ends)) {
        q = ngx_queue_head(&ngx_agent_ends);
        t = ngx_queue_data(q, ngx_agent_transfer_t, queue);

        if (t->handlers) {
            t->handlers->done(t->data, t->failed, t->reason,
                              t->error[0] ? t->error : NULL);
        }

        ngx_agent_curl_free(t);
    }

    while (!ngx_queue_empty(&ngx_agent_starts)) {
        q = ngx_queue_head(&ngx_agent_starts);
        t = ngx_queue_data(q, ngx_agent_transfer_t, queue);

        ngx_queue_remove(q);
        t->state = NGX_AGENT_TRANSFER_ACTIVE;

        if (ngx_agent_slots_low()) {
            ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_BUSY,
                               "no free worker_connections");
            continue;
        }

        m = ngx_agent_multi_get();

        if (m == NULL || ngx_agent_curl_setup(t) != NGX_OK) {
            ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_FAILED, "no memory");
            continue;
        }

        if (curl_multi_add_handle(m->handle, t->easy) != CURLM_OK) {
            ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_FAILED,
                               "the call could not be started");
            continue;
        }

        t->multi = m;
        m->active++;

        ngx_agent_multi_drive(m, CURL_SOCKET_TIMEOUT, 0);
    }
}


static ngx_int_t
ngx_agent_curl_setup(ngx_agent_transfer_t *t)
{
    CURL               *e;
    CURLcode            rc;
    ngx_msec_t          timeout;
    struct curl_blob    blob;
    ngx_agent_model_t  *model;

    model = t->model;

    /* each address but the last has half of the time that is left */

    if (t->tried <= 1) {
        t->connecting = ngx_current_msec;
    }

    timeout = ngx_current_msec - t->connecting;
    timeout = (timeout < model->connect_timeout)
              ? model->connect_timeout - timeout : 1;

    if (t->tried < t->naddrs) {
        timeout = ngx_max(timeout / 2, ngx_min(timeout, 1000));
    }

    e = curl_easy_init();
    if (e == NULL) {
        return NGX_ERROR;
    }

    t->easy = e;
    rc = CURLE_OK;

#define ngx_agent_set(opt, value)                                             \
    if (rc == CURLE_OK) {                                                     \
        rc = curl_easy_setopt(e, opt, value);                                 \
    }

    ngx_agent_set(CURLOPT_PRIVATE, t);
    ngx_agent_set(CURLOPT_URL, (char *) model->endpoint.data);
    ngx_agent_set(CURLOPT_PROTOCOLS_STR, "http,https");
    ngx_agent_set(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
    ngx_agent_set(CURLOPT_HTTPHEADER, (struct curl_slist *)
                                      model->header_list);
    ngx_agent_set(CURLOPT_POST, 1L);
    ngx_agent_set(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) t->body.len);
    ngx_agent_set(CURLOPT_POSTFIELDS, t->body.data);
    ngx_agent_set(CURLOPT_USERAGENT, "ngx_agent_module");

    ngx_agent_set(CURLOPT_WRITEFUNCTION, ngx_agent_curl_write);
    ngx_agent_set(CURLOPT_WRITEDATA, t);
    ngx_agent_set(CURLOPT_HEADERFUNCTION, ngx_agent_curl_header);
    ngx_agent_set(CURLOPT_HEADERDATA, t);
    ngx_agent_set(CURLOPT_PREREQFUNCTION, ngx_agent_curl_connected);
    ngx_agent_set(CURLOPT_PREREQDATA, t);
    ngx_agent_set(CURLOPT_ERRORBUFFER, t->error);

    /* a quiet stream holds this buffer, a busy one fills it often enough */

    ngx_agent_set(CURLOPT_BUFFERSIZE, (long) NGX_AGENT_CURL_BUFFER);

    ngx_agent_set(CURLOPT_NOSIGNAL, 1L);
    ngx_agent_set(CURLOPT_FOLLOWLOCATION, 0L);
    ngx_agent_set(CURLOPT_PROXY, "");
    ngx_agent_set(CURLOPT_QUICK_EXIT, 1L);
    ngx_agent_set(CURLOPT_TCP_NODELAY, 1L);
    ngx_agent_set(CURLOPT_TCP_KEEPALIVE, 1L);
    ngx_agent_set(CURLOPT_MAXAGE_CONN, 55L);
    ngx_agent_set(CURLOPT_CONNECTTIMEOUT_MS, (long) timeout);

    if (t->pinned) {
        ngx_agent_set(CURLOPT_RESOLVE, t->pinned);
    }

    if (model->ssl) {
        ngx_agent_set(CURLOPT_SSL_VERIFYPEER, (long) model->ssl_verify);
        ngx_agent_set(CURLOPT_SSL_VERIFYHOST, model->ssl_verify ? 2L : 0L);

        /* without a path curl keeps the system's certificates parsed */

        ngx_agent_set(CURLOPT_CAPATH, NULL);

        if (model->ca.len) {
            blob.data = model->ca.data;
            blob.len = model->ca.len;
            blob.flags = CURL_BLOB_NOCOPY;
            ngx_agent_set(CURLOPT_CAINFO_BLOB, &blob);
        }

        if (model->ssl_certificate.len) {
            ngx_agent_set(CURLOPT_SSLCERT,
                          (char *) model->ssl_certificate.data);
            ngx_agent_set(CURLOPT_SSLKEY,
                          (char *) model->ssl_certificate_key.data);
        }
    }

#undef ngx_agent_set

    return (rc == CURLE_OK) ? NGX_OK : NGX_ERROR;
}


/* --- time --------------------------------------------------------------- */

/* the connection stands, the request goes out now */

static int
ngx_agent_curl_connected(void *data, char *primary_ip, char *local_ip,
    int primary_port, int local_port)
{
    ngx_agent_transfer_t *t = data;

    t->sent = 1;

    if (t->handlers) {
        if (t->timer.timer_set) {
            ngx_del_timer(&t->timer);
        }

        ngx_add_timer(&t->timer, t->model->first_byte_timeout);
    }

    return CURL_PREREQFUNC_OK;
}


/* the first bytes end the wait for them; later ones only leave a mark, the
 * timer is set anew when it fires */

static void
ngx_agent_curl_alive(ngx_agent_transfer_t *t)
{
    ngx_uint_t  first;

    first = (t->head_size == 0);

    t->last = ngx_current_msec;

    if (!first || t->handlers == NULL) {
        return;
    }

    if (t->timer.timer_set) {
        ngx_del_timer(&t->timer);
    }

    ngx_add_timer(&t->timer, t->model->idle_timeout);
}


static void
ngx_agent_curl_timer(ngx_event_t *ev)
{
    ngx_agent_transfer_t *t = ev->data;

    ngx_msec_t  idle;

    if (t->handlers == NULL || t->ending) {

        /* lingered long enough */

        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_OK, NULL);
        return;
    }

    if (t->head_size == 0) {
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_TIMEOUT,
                           "no first byte within first_byte_timeout");
        return;
    }

    idle = ngx_current_msec - t->last;

    if (idle < t->model->idle_timeout) {
        ngx_add_timer(ev, t->model->idle_timeout - idle);
        return;
    }

    ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_TIMEOUT,
                       "nothing came for idle_timeout");
}


/* --- callbacks of curl: they never remove or free a handle -------------- */

static void
ngx_agent_curl_full(CURL *easy)
{
    char                  *p;
    ngx_agent_transfer_t  *t;

    p = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &p);

    if (p == NULL) {
        return;
    }

    t = (ngx_agent_transfer_t *) p;

    ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_BUSY,
                       "no free worker_connections");
}


/* a header's value, if the line is of that name; copied to "dst" */

static ngx_uint_t
ngx_agent_curl_value(u_char *p, u_char *end, const char *name, ngx_str_t *dst,
    u_char *buf, size_t size)
{
    size_t  n;

    n = ngx_strlen(name);

    if ((size_t) (end - p) <= n || p[n] != ':'
        || ngx_strncasecmp(p, (u_char *) name, n) != 0)
    {
        return 0;
    }

    p += n + 1;

    while (p < end && (*p == ' ' || *p == '\t')) {
        p++;
    }

    while (end > p && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }

    dst->len = ngx_min((size_t) (end - p), size);
    dst->data = buf;
    ngx_memcpy(buf, p, dst->len);

    return 1;
}


static size_t
ngx_agent_curl_header(char *line, size_t size, size_t n, void *data)
{
    ngx_agent_transfer_t *t = data;

    long     status;
    u_char  *p, *to, *end;

    ngx_agent_curl_alive(t);

    if (t->ending) {
        return 0;
    }

    t->head_size += n;

    if (t->head) {
        return n;                        /* trailers */
    }

    if (t->head_size > NGX_AGENT_HEAD_MAX) {
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_PROTOCOL,
                           "its response header is too large");
        return 0;
    }

    p = (u_char *) line;
    end = p + n;

    while (end > p && (end[-1] == LF || end[-1] == CR)) {
        end--;
    }

    if (end - p >= 5 && ngx_strncmp(p, "HTTP/", 5) == 0) {

        /* each response of a 1xx chain begins anew */

        t->type.len = 0;
        t->retry_after.len = 0;
        t->retry_after_ms.len = 0;

        return n;
    }

    if (end != p) {
        to = t->text + NGX_AGENT_TYPE_MAX;

        (void) (ngx_agent_curl_value(p, end, "Content-Type", &t->type,
                                     t->text, NGX_AGENT_TYPE_MAX)
                || ngx_agent_curl_value(p, end, "Retry-After",
                                        &t->retry_after, to,
                                        NGX_AGENT_RETRY_MAX)
                || ngx_agent_curl_value(p, end, "Retry-After-Ms",
                                        &t->retry_after_ms,
                                        to + NGX_AGENT_RETRY_MAX,
                                        NGX_AGENT_RETRY_MAX));
        return n;
    }

    status = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);

    if (status < 200) {
        return n;
    }

    t->head = 1;

    if (t->handlers) {
        t->handlers->head(t->data, (ngx_uint_t) status, &t->type,
                          agent_retry_after(ngx_agent_str(&t->retry_after),
                                            ngx_agent_str(&t->retry_after_ms)));
    }

    return n;
}


static size_t
ngx_agent_curl_write(char *p, size_t size, size_t n, void *data)
{
    ngx_agent_transfer_t *t = data;

    ngx_agent_curl_alive(t);

    if (t->ending) {
        return 0;
    }

    if (t->handlers) {
        (void) t->handlers->body(t->data, (u_char *) p, n);

        return t->ending ? 0 : n;
    }

    t->lingered += n;

    if (t->lingered > NGX_AGENT_LINGER_BYTES) {
        ngx_agent_curl_end(t, NGX_AGENT_TRANSFER_OK, NULL);
        return 0;
    }

    return n;
}


/* --- a transfer is done ------------------------------------------------- */

static ngx_agent_transfer_e
ngx_agent_curl_result(ngx_agent_transfer_t *t, CURLcode rc,
    const char **reason)
{
    switch (rc) {

    case CURLE_OK:
        *reason = "";
        return NGX_AGENT_TRANSFER_OK;

    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
        *reason = "the connection was refused or failed";
        return NGX_AGENT_TRANSFER_UNREACHABLE;

    case CURLE_OPERATION_TIMEDOUT:
        *reason = "no connection within connect_timeout";
        return NGX_AGENT_TRANSFER_TIMEOUT;

    case CURLE_PEER_FAILED_VERIFICATION:
        *reason = "its certificate is not trusted or is for another name";
        return NGX_AGENT_TRANSFER_TLS;

    case CURLE_SSL_CERTPROBLEM:
        *reason = "the client certificate cannot be used";
        return NGX_AGENT_TRANSFER_TLS;

    case CURLE_SSL_CACERT_BADFILE:
        *reason = "the trusted certificates cannot be read";
        return NGX_AGENT_TRANSFER_TLS;

    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
        *reason = "the TLS handshake failed";
        return NGX_AGENT_TRANSFER_TLS;

    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE:
        *reason = "the connection was closed early";
        return NGX_AGENT_TRANSFER_CUT;

    case CURLE_OUT_OF_MEMORY:

        /* also what curl says of a header line beyond its limit */

        if (t->head_size && !t->head) {
            *reason = "its response header is too large";
            return NGX_AGENT_TRANSFER_PROTOCOL;
        }

        *reason = "no memory";
        return NGX_AGENT_TRANSFER_FAILED;

    default:
        *reason = curl_easy_strerror(rc);
        return NGX_AGENT_TRANSFER_PROTOCOL;
    }
}


static void
ngx_agent_curl_finished(ngx_agent_multi_t *m, CURL *easy, CURLcode rc)
{
    char                  *p;
    const char            *reason;
    ngx_agent_transfer_e   result;
    ngx_agent_transfer_t  *t;

    p = NULL;
    curl_easy_getinfo(easy, CURLINFO_PRIVATE, &p);

    t = (ngx_agent_transfer_t *) p;

    if (t->ending) {

        /* its end is on the way; what curl says of it is our own doing */

        return;
    }

    if (ngx_agent_curl_next_addr(t, rc) == NGX_OK) {
        return;
    }

    result = ngx_agent_curl_result(t, rc, &reason);

    ngx_agent_curl_end(t, result, reason);
}
