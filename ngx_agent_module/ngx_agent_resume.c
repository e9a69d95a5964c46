
/*
 * P/runs/{id}/stream: the events of a run from a cursor on, or a snapshot and
 * what follows it.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


/* what the client asks for */

typedef struct {
    agent_cursor_t  cursor;
    unsigned        given:1;       /* there is a cursor */
    unsigned        header:1;      /* it came as Last-Event-ID */
    unsigned        join:1;
} ngx_agent_resume_t;


static ngx_table_elt_t *
ngx_agent_resume_header(ngx_http_request_t *r)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    static ngx_str_t  name = ngx_string("Last-Event-ID");

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

        if (h[i].key.len == name.len
            && ngx_strncasecmp(h[i].key.data, name.data, name.len) == 0)
        {
            return &h[i];
        }
    }
}


/*
 * NULL, or what is wrong; an empty cursor is none, as EventSource means it.  It
 * sends its cursor to the same URL again, so the header wins over all of that:
 * a client with a Last-Event-ID has not lost its state.
 */

static const char *
ngx_agent_resume_parse(ngx_http_request_t *r, ngx_agent_resume_t *resume)
{
    ngx_str_t         value;
    ngx_table_elt_t  *h;

    ngx_memzero(resume, sizeof(ngx_agent_resume_t));

    if (ngx_http_arg(r, (u_char *) "mode", 4, &value) == NGX_OK) {

        if (value.len != 4 || ngx_strncmp(value.data, "join", 4) != 0) {
            return "\"mode\" can only be \"join\"";
        }

        resume->join = 1;
    }

    ngx_str_null(&value);

    h = ngx_agent_resume_header(r);

    if (h && h->value.len) {
        value = h->value;
        resume->header = 1;
        resume->join = 0;

    } else if (ngx_http_arg(r, (u_char *) "after", 5, &value) != NGX_OK) {
        return NULL;
    }

    if (value.len == 0) {
        return NULL;
    }

    if (agent_cursor_parse(ngx_agent_str(&value), &resume->cursor)
        != AGENT_OK)
    {
        return resume->header
               ? "the Last-Event-ID is no cursor of this server"
               : "\"after\" is no cursor of this server";
    }

    resume->given = 1;

    return NULL;
}


/* the end of a stream that its reader has seen: EventSource stops */

static ngx_int_t
ngx_agent_resume_no_content(ngx_http_request_t *r)
{
    ngx_str_t              value = ngx_string("complete");
    ngx_http_agent_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    ctx->resume = "complete";

    if (ngx_http_agent_add_header(r, "X-Agent-Resume", &value) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_NO_CONTENT;
    r->header_only = 1;
    ngx_http_clear_content_length(r);

    return ngx_http_send_header(r);
}


/*
 * Where the stream begins.  NGX_OK with *start; NGX_DONE: nothing is left to
 * tell; NGX_DECLINED: a bare number that could mean two runs.
 */

static ngx_int_t
ngx_agent_resume_start(ngx_agent_resume_t *resume, agent_run_info_t *info,
    ngx_agent_start_t *start)
{
    uint64_t         seq;
    agent_cursor_t  *cursor;

    ngx_memzero(start, sizeof(ngx_agent_start_t));

    start->at_once = 1;
    start->resume = "complete";

    cursor = &resume->cursor;

    if (resume->join) {
        start->prelude = 1;
        return NGX_OK;
    }

    if (!resume->given) {
        seq = 0;

    } else if (cursor->bare && info->replaced) {
        return NGX_DECLINED;

    } else if ((!cursor->bare && cursor->generation != info->generation)
               || cursor->seq >= info->next_seq)
    {
        start->resume = "unknown";
        start->prelude = 1;
        return NGX_OK;

    } else {
        seq = cursor->seq + 1;
    }

    if (resume->given && seq == info->next_seq
        && ngx_agent_status_over(info->status))
    {
        if (resume->header) {
            return NGX_DONE;
        }

        seq--;                               /* the terminal event again */
    }

    if (seq < info->first_seq) {
        start->resume = "gap";
        start->prelude = 1;
        return NGX_OK;
    }

    start->seq = seq;

    return NGX_OK;
}


static void
ngx_agent_resume_info(void *data, ngx_int_t rc, ngx_agent_run_info_t *info)
{
    ngx_http_request_t *r = data;

    ngx_agent_feed_t           *feed;
    ngx_agent_start_t           start;
    ngx_agent_resume_t          resume;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    if (!ngx_http_agent_kept(r, info, &rc)) {
        goto done;
    }

    (void) ngx_agent_resume_parse(r, &resume);

    feed = ngx_agent_feed_of(alcf->agent->store, ctx->key, info->generation);

    if (feed && feed->run) {

        /* what is said and not yet published counts here */

        info->next_seq = feed->store->next_seq(feed->events);
        info->first_seq = feed->store->first_seq(feed->events);
    }

    if (feed == NULL && alcf->agent->store == &ngx_agent_local_store) {
        rc = ngx_http_agent_code(r, AGENT_CODE_NOT_FOUND,
                                 "without a replay zone the events of this "
                                 "run cannot be read here");
        goto done;
    }

    switch (ngx_agent_resume_start(&resume, info, &start)) {

    case NGX_OK:
        break;

    case NGX_DONE:
        rc = ngx_agent_resume_no_content(r);
        goto done;

    default:
        rc = ngx_http_agent_code(r, AGENT_CODE_BAD_CURSOR,
                                 "the run has begun anew, a bare number is no "
                                 "longer enough; use the whole id of an event");
        goto done;
    }

    ctx->thread_id.data = ngx_pnalloc(r->pool, info->thread_len + 1);
    if (ctx->thread_id.data == NULL) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        goto done;
    }

    ngx_memcpy(ctx->thread_id.data, info->thread, info->thread_len);
    ctx->thread_id.len = info->thread_len;

    if (feed == NULL) {
        feed = ngx_agent_feed_open(alcf->agent, ctx->key, &ctx->run_id, info);
    }

    if (feed == NULL) {
        rc = NGX_HTTP_INTERNAL_SERVER_ERROR;
        goto done;
    }

    ngx_agent_subscriber_attach(r, feed, &start);

    return;

done:

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_agent_stream(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t                   rc;
    const char                 *wrong;
    ngx_agent_resume_t          resume;
    ngx_http_agent_ctx_t       *ctx;
    ngx_http_agent_loc_conf_t  *alcf;

    wrong = ngx_agent_resume_parse(r, &resume);

    if (wrong) {
        return ngx_http_agent_code(r, AGENT_CODE_BAD_CURSOR, wrong);
    }

    if (!ngx_http_agent_ask(r, id, &rc)) {
        return rc;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);
    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    alcf->agent->store->status(alcf->agent->store, ctx->key,
                               ngx_agent_resume_info, r);

    return NGX_DONE;
}
