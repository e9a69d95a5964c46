
/*
 * P/runs/{id}/events: the events of a run as typed rows, page by page.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_feed.h"
#include "ngx_agent_replay.h"
#include "agent_row.h"


#define NGX_AGENT_ROWS_LIMIT   100
#define NGX_AGENT_ROWS_MAX     1000
#define NGX_AGENT_ROWS_BYTES   (2 * 1024 * 1024)   /* of a page, about */
#define NGX_AGENT_ROWS_TURN    10000               /* events in one turn */


/* a page being made; the request's pool holds it */

typedef struct {
    ngx_http_request_t    *request;
    ngx_http_agent_ctx_t  *ctx;
    ngx_agent_store_t     *store;
    ngx_agent_log_t       *log;        /* to be closed, NULL: somebody else's */
    ngx_agent_reader_t     reader;
    ngx_event_t            more;       /* posted: go on reading */

    agent_rows_t           rows;
    agent_buf_t            out;
    uint64_t               generation;
    uint64_t               from;       /* the first event wanted */
    uint64_t               last;       /* of the page */
    ngx_uint_t             limit;
    ngx_uint_t             n;
    ngx_uint_t             seen;       /* in this turn */
    const char            *resume;     /* X-Agent-Resume; NULL: none */
    unsigned               next:1;     /* there are further rows */
    unsigned               again:1;
    unsigned               failed:1;
} ngx_agent_page_t;


static void ngx_agent_rows_more(ngx_event_t *ev);
static void ngx_agent_rows_cleanup(void *data);


/* --- what is asked for -------------------------------------------------- */

static ngx_int_t
ngx_agent_rows_arg(ngx_http_request_t *r, const char *name, ngx_str_t *value)
{
    return ngx_http_arg(r, (u_char *) name, ngx_strlen(name), value);
}


/* NULL, or what is wrong, with its code */

static const char *
ngx_agent_rows_parse(ngx_http_request_t *r, agent_cursor_t *after,
    ngx_uint_t *given, ngx_uint_t *limit, agent_code_t *code)
{
    ngx_int_t  n;
    ngx_str_t  value;

    *code = AGENT_CODE_BAD_REQUEST;
    *given = 0;
    *limit = NGX_AGENT_ROWS_LIMIT;

    if (ngx_agent_rows_arg(r, "format", &value) == NGX_OK
        && (value.len != 5 || ngx_strncmp(value.data, "typed", 5) != 0))
    {
        return "\"format\" can only be \"typed\"";
    }

    if (ngx_agent_rows_arg(r, "limit", &value) == NGX_OK) {

        n = ngx_atoi(value.data, value.len);

        if (n == NGX_ERROR || n == 0) {
            return "\"limit\" must be a number from 1 to 1000";
        }

        *limit = ngx_min((ngx_uint_t) n, NGX_AGENT_ROWS_MAX);
    }

    if (ngx_agent_rows_arg(r, "after", &value) == NGX_OK && value.len) {

        if (agent_cursor_parse(ngx_agent_str(&value), after) != AGENT_OK) {
            *code = AGENT_CODE_BAD_CURSOR;
            return "\"after\" is no cursor of this server";
        }

        *given = 1;
    }

    return NULL;
}


/* --- the page ----------------------------------------------------------- */

static agent_rc_t
ngx_agent_rows_event(void *data, uint64_t generation, uint64_t seq,
    const agent_event_t *ev)
{
    ngx_agent_page_t *page = data;

    u_char       text[NGX_AGENT_TIME_LEN];
    agent_str_t  created;

    if (page->n == page->limit
        || (page->n && page->out.len > NGX_AGENT_ROWS_BYTES))
    {
        page->next = 1;
        return AGENT_ABORTED;
    }

    if (page->seen++ == NGX_AGENT_ROWS_TURN) {
        page->again = 1;
        return AGENT_ABORTED;
    }

    if (agent_rows_note(&page->rows, ev) != AGENT_OK) {
        page->failed = 1;
        return AGENT_ABORTED;
    }

    if (seq < page->from) {
        return AGENT_OK;
    }

    if (page->n++) {
        agent_buf_add_char(&page->out, ',');
    }

    created.data = (char *) text;
    created.len = ngx_agent_time(text, ev->time) - text;

    agent_rows_add(&page->rows, &page->out, ngx_agent_str(&page->ctx->run_id),
                   seq, created, ev);

    page->last = seq;

    if (!agent_buf_ok(&page->out)) {
        page->failed = 1;
        return AGENT_ABORTED;
    }

    return AGENT_OK;
}


/* the place that was asked, with another query */

static void
ngx_agent_rows_url(agent_buf_t *b, ngx_agent_page_t *page, uint64_t from)
{
    char         cursor[AGENT_CURSOR_MAX];
    size_t       n;
    u_char      *p;
    agent_str_t  path;
    ngx_str_t   *uri;

    uri = &page->request->unparsed_uri;
    p = ngx_strlchr(uri->data, uri->data + uri->len, '?');

    path.data = (char *) uri->data;
    path.len = p ? (size_t) (p - uri->data) : uri->len;

    agent_buf_add_char(b, '"');
    agent_json_escape(b, path);
    agent_buf_add_lit(b, "?format=typed&limit=");
    agent_buf_add_uint(b, page->limit);

    if (from) {
        n = agent_cursor_print(cursor, page->generation, from - 1);

        agent_buf_add_lit(b, "&after=");
        agent_buf_add(b, cursor, n);
    }

    agent_buf_add_char(b, '"');
}


static void
ngx_agent_rows_answer(ngx_agent_page_t *page)
{
    ngx_int_t            rc;
    ngx_str_t            value;
    ngx_http_request_t  *r;

    r = page->request;

    agent_buf_add_lit(&page->out, "],\"page_info\":{\"self\":");
    ngx_agent_rows_url(&page->out, page, page->from);
    agent_buf_add_lit(&page->out, ",\"next\":");

    if (page->next) {
        ngx_agent_rows_url(&page->out, page, page->last + 1);

    } else {
        agent_buf_add_lit(&page->out, "null");
    }

    agent_buf_add_lit(&page->out, "}}");

    rc = NGX_OK;

    if (page->resume) {
        value.data = (u_char *) page->resume;
        value.len = ngx_strlen(page->resume);

        rc = ngx_http_agent_add_header(r, "X-Agent-Resume", &value);
    }

    if (rc == NGX_OK && agent_buf_ok(&page->out)) {
        rc = ngx_http_agent_json(r, NGX_HTTP_OK, agent_buf_str(&page->out));

    } else {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_finalize_request(r, rc);
}


static void
ngx_agent_rows_read(ngx_agent_page_t *page, ngx_agent_log_t *log)
{
    ngx_int_t            rc;
    agent_run_info_t     info;
    ngx_http_request_t  *r;

    r = page->request;
    page->seen = 0;
    page->again = 0;

    rc = page->store->read(log, &page->reader, ngx_agent_rows_event, page);

    if (rc == NGX_DECLINED) {

        /* the oldest events have gone meanwhile */

        if (ngx_agent_registry_info(page->store->zone, page->ctx->key, &info)
            == NGX_OK
            && info.first_seq > page->reader.seq)
        {
            page->store->seek(log, &page->reader, info.first_seq);

            if (info.first_seq > page->from) {
                page->resume = "gap";
            }

            page->again = 1;
            rc = NGX_OK;
        }
    }

    if (rc == NGX_ERROR || page->failed) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    if (rc != NGX_OK) {
        rc = ngx_http_agent_code(r, AGENT_CODE_GONE,
                                 "the events of this run are no longer kept");
        ngx_http_finalize_request(r, rc);
        return;
    }

    if (page->again && page->log) {
        ngx_post_event(&page->more, &ngx_posted_next_events);
        return;
    }

    if (page->again) {

        /* the log of a run without a zone is as short as its readers let it */

        ngx_agent_rows_read(page, log);
        return;
    }

    ngx_agent_rows_answer(page);
}


static void
ngx_agent_rows_more(ngx_event_t *ev)
{
    ngx_connection_t  *c;
    ngx_agent_page_t  *page = ev->data;

    c = page->request->connection;

    ngx_agent_rows_read(page, page->log);

    ngx_http_run_posted_requests(c);
}


static void
ngx_agent_rows_cleanup(void *data)
{
    ngx_agent_page_t *page = data;

    if (page->more.posted) {
        ngx_delete_posted_event(&page->more);
    }

    if (page->log) {
        page->store->close(page->log);
        page->log = NULL;
    }

    agent_rows_free(&page->rows);
    agent_buf_free(&page->out);
}


static void
ngx_agent_rows_info(void *data, ngx_int_t rc, ngx_agent_run_info_t *info)
{
    ngx_http_request_t *r = data;

    ngx_uint_t                  given, limit;
    agent_code_t                code;
    agent_cursor_t              after;
    ngx_agent_log_t            *log;
    ngx_agent_feed_t           *feed;
    ngx_agent_page_t           *page;
    ngx_pool_cleanup_t         *cln;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (!ngx_http_agent_kept(r, info, &rc)) {
        goto done;
    }

    (void) ngx_agent_rows_parse(r, &after, &given, &limit, &code);

    if (given && after.bare && info->replaced) {
        rc = ngx_http_agent_code(r, AGENT_CODE_BAD_CURSOR,
                                 "the run has begun anew, a bare number is no "
                                 "longer enough; use the whole id of an event");
        goto done;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_agent_page_t));
    if (cln == NULL) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        goto done;
    }

    page = cln->data;
    ngx_memzero(page, sizeof(ngx_agent_page_t));

    page->request = r;
    page->ctx = ctx;
    page->store = alcf->agent->store;
    page->limit = limit;
    page->generation = info->generation;
    page->more.handler = ngx_agent_rows_more;
    page->more.data = page;
    page->more.log = r->connection->log;

    agent_rows_init(&page->rows, &agent_alloc_libc);
    agent_buf_init(&page->out, &agent_alloc_libc);

    cln->handler = ngx_agent_rows_cleanup;

    /* a log of this worker's memory is its run's, others are opened */

    if (page->store == &ngx_agent_local_store) {

        feed = ngx_agent_feed_find(ctx->key);

        if (feed == NULL
            || page->store->generation(feed->events) != info->generation)
        {
            rc = ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                     "without a replay zone the events of "
                                     "this run cannot be read here");
            goto done;
        }

        log = feed->events;
        info->first_seq = page->store->first_seq(log);
        info->next_seq = page->store->next_seq(log);

    } else {
        page->log = page->store->open(page->store, ctx->key,
                                      info->generation);
        if (page->log == NULL) {
            rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
            goto done;
        }

        log = page->log;
    }

    if (given && ((!after.bare && after.generation != info->generation)
                  || after.seq >= info->next_seq))
    {
        page->resume = "unknown";

    } else if (given) {
        page->from = after.seq + 1;
    }

    if (page->from < info->first_seq) {
        page->from = info->first_seq;
        page->resume = page->resume ? page->resume : "gap";
    }

    /* from its start, for what calls belong to */

    page->store->seek(log, &page->reader, info->first_seq);

    r->read_event_handler = ngx_http_test_reading;

    agent_buf_add_lit(&page->out, "{\"data\":[");

    ngx_agent_rows_read(page, log);

    return;

done:

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_agent_rows(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t                   rc;
    ngx_uint_t                  given, limit;
    const char                 *wrong;
    agent_code_t                code;
    agent_cursor_t              after;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    wrong = ngx_agent_rows_parse(r, &after, &given, &limit, &code);

    if (wrong) {
        return ngx_http_agent_code(r, code, wrong);
    }

    if (!ngx_http_agent_ask(r, id, &rc)) {
        return rc;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    alcf->agent->store->status(alcf->agent->store, ctx->key,
                               ngx_agent_rows_info, r);

    return NGX_DONE;
}
