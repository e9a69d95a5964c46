
/*
 * agent_run_log: a line of JSON at the end of each run, also of one whose
 * clients are long gone.  The file is one of nginx's own, so USR1 opens it
 * anew; a line is one write(), so those of several workers never mix.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


struct ngx_agent_run_log_s {
    ngx_open_file_t             *file;
    time_t                       disk_full_time;
    time_t                       error_log_time;
};


static void ngx_agent_run_log_line(ngx_agent_run_t *run, agent_buf_t *b);
static void ngx_agent_run_log_text(agent_buf_t *b, const char *name,
    const char *text);
static void ngx_agent_run_log_str(agent_buf_t *b, const char *name,
    ngx_str_t *s);
static void ngx_agent_run_log_number(agent_buf_t *b, const char *name,
    int64_t n);
static void ngx_agent_run_log_seconds(agent_buf_t *b, const char *name,
    int64_t ms);


void
ngx_agent_run_log_write(ngx_agent_run_t *run)
{
    time_t                now;
    ssize_t               n;
    ngx_err_t             err;
    agent_buf_t           b;
    ngx_agent_run_log_t  *log;

    log = run->run_log;

    if (log == NULL) {
        return;
    }

    /* as in access_log: a full disk is not tried again in the same second */

    now = ngx_time();

    if (log->disk_full_time == now) {
        return;
    }

    agent_buf_init(&b, &agent_alloc_libc);

    ngx_agent_run_log_line(run, &b);

    if (!agent_buf_ok(&b)) {
        n = -1;
        err = NGX_ENOMEM;

    } else {
        n = ngx_write_fd(log->file->fd, b.data, b.len);
        err = (n == -1) ? ngx_errno : 0;
    }

    if (n == -1 && err == NGX_ENOSPC) {
        log->disk_full_time = now;
    }

    if ((n == -1 || (size_t) n != b.len) && now - log->error_log_time > 59) {
        log->error_log_time = now;

        if (n == -1) {
            ngx_log_error(NGX_LOG_ALERT, run->log, err,
                          ngx_write_fd_n " to \"%s\" failed",
                          log->file->name.data);

        } else {
            ngx_log_error(NGX_LOG_ALERT, run->log, 0,
                          ngx_write_fd_n " to \"%s\" was incomplete: "
                          "%z of %uz", log->file->name.data, n, b.len);
        }
    }

    agent_buf_free(&b);
}


/*
 * Always the same members: null is what there was not.  Neither the owner, who
 * is a person, nor anything that was said.
 */

static void
ngx_agent_run_log_line(ngx_agent_run_t *run, agent_buf_t *b)
{
    u_char                text[NGX_AGENT_TIME_LEN];
    ngx_agent_feed_t     *feed;
    const agent_usage_t  *usage;

    usage = agent_encoder_usage(run->encoder);

    agent_buf_add_lit(b, "{\"time\":\"");
    agent_buf_add(b, text, ngx_agent_time(text, ngx_agent_now()) - text);
    agent_buf_add_char(b, '"');

    ngx_agent_run_log_str(b, "agent", &run->agent->name);
    ngx_agent_run_log_str(b, "model", &run->model->name);
    ngx_agent_run_log_str(b, "runId", &run->id);
    ngx_agent_run_log_str(b, "threadId", &run->thread);

    ngx_agent_run_log_text(b, "status", ngx_agent_status_name(run->status));
    ngx_agent_run_log_text(b, "finishReason", ngx_agent_run_reason(run));
    ngx_agent_run_log_text(b, "code", (run->status == NGX_AGENT_RUN_ERROR)
                                      ? agent_code_name(run->code) : NULL);

    ngx_agent_run_log_number(b, "inputTokens", usage->input);
    ngx_agent_run_log_number(b, "outputTokens", usage->output);

    ngx_agent_run_log_seconds(b, "firstTokenTime",
                              run->has_first ? (int64_t) run->first_token : -1);
    ngx_agent_run_log_seconds(b, "runTime",
                              (int64_t) (ngx_current_msec - run->started));

    feed = &run->feed;

    ngx_agent_run_log_number(b, "events",
                             (int64_t) feed->store->next_seq(feed->events));
    ngx_agent_run_log_number(b, "readers", (int64_t) run->nreaders);

    if (feed->nsubscribers) {
        agent_buf_add_lit(b, ",\"detached\":false}\n");

    } else {
        agent_buf_add_lit(b, ",\"detached\":true}\n");
    }
}


static void
ngx_agent_run_log_name(agent_buf_t *b, const char *name)
{
    agent_buf_add_lit(b, ",\"");
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_lit(b, "\":");
}


static void
ngx_agent_run_log_text(agent_buf_t *b, const char *name, const char *text)
{
    ngx_str_t  s;

    if (text == NULL || *text == '\0') {
        ngx_agent_run_log_name(b, name);
        agent_buf_add_lit(b, "null");
        return;
    }

    s.data = (u_char *) text;
    s.len = ngx_strlen(text);

    ngx_agent_run_log_str(b, name, &s);
}


static void
ngx_agent_run_log_str(agent_buf_t *b, const char *name, ngx_str_t *s)
{
    ngx_agent_run_log_name(b, name);
    agent_json_quote(b, ngx_agent_str(s));
}


static void
ngx_agent_run_log_number(agent_buf_t *b, const char *name, int64_t n)
{
    ngx_agent_run_log_name(b, name);

    if (n < 0) {
        agent_buf_add_lit(b, "null");

    } else {
        agent_buf_add_uint(b, (uint64_t) n);
    }
}


static void
ngx_agent_run_log_seconds(agent_buf_t *b, const char *name, int64_t ms)
{
    u_char  *p, text[NGX_INT64_LEN + sizeof(".000")];

    if (ms < 0) {
        ngx_agent_run_log_number(b, name, -1);
        return;
    }

    p = ngx_sprintf(text, "%L.%03L", ms / 1000, ms % 1000);

    ngx_agent_run_log_name(b, name);
    agent_buf_add(b, text, p - text);
}


char *
ngx_http_agent_run_log(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t            *path;
    ngx_agent_run_log_t  *log;

    if (alcf->run_log != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    path = cf->args->elts;
    path++;

    if (ngx_strcmp(path->data, "off") == 0) {
        alcf->run_log = NULL;
        return NGX_CONF_OK;
    }

    if (path->len == 0 || ngx_strcmp(path->data, "on") == 0
        || ngx_strncmp(path->data, "syslog:", 7) == 0
        || ngx_strlchr(path->data, path->data + path->len, '$') != NULL)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"agent_run_log\" must be the path of a file, "
                           "without variables, or \"off\", not \"%V\"", path);
        return NGX_CONF_ERROR;
    }

    log = ngx_pcalloc(cf->pool, sizeof(ngx_agent_run_log_t));
    if (log == NULL) {
        return NGX_CONF_ERROR;
    }

    log->file = ngx_conf_open_file(cf->cycle, path);
    if (log->file == NULL) {
        return NGX_CONF_ERROR;
    }

    alcf->run_log = log;

    return NGX_CONF_OK;
}
