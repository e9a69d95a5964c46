
/*
 * The module: its directives in http, server and location, what they inherit,
 * and the hooks into nginx.  From here: a POST enters in ngx_agent_endpoint.c,
 * becomes a run (ngx_agent_run.c) whose events a request reads as a subscriber
 * (ngx_agent_subscriber.c).
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"


static void *ngx_http_agent_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_agent_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_agent_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static ngx_int_t ngx_http_agent_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_agent_postconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_agent_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_agent_init_process(ngx_cycle_t *cycle);
static void ngx_http_agent_exit_process(ngx_cycle_t *cycle);

static char *ngx_http_agent_pass(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_agent_owner(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_agent_heartbeat(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static void ngx_http_agent_owner_warn(ngx_conf_t *cf,
    ngx_http_agent_loc_conf_t *conf);
static ngx_uint_t ngx_http_agent_word(u_char c);


static ngx_command_t  ngx_http_agent_commands[] = {

    { ngx_string("agent_model"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_agent_model_block,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_agent_block,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_replay_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE123,
      ngx_agent_replay_zone,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_HTTP_LMT_CONF|NGX_CONF_TAKE1,
      ngx_http_agent_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_resume"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_HTTP_LMT_CONF|NGX_CONF_TAKE1,
      ngx_http_agent_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_agent_stat,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_owner"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF
                        |NGX_CONF_TAKE1,
      ngx_http_agent_owner,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_thread"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF
                        |NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_agent_loc_conf_t, thread),
      NULL },

    { ngx_string("agent_heartbeat"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_agent_heartbeat,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_cors"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_agent_cors,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("agent_intercept_errors"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_agent_loc_conf_t, intercept_errors),
      NULL },

    { ngx_string("agent_run_log"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_agent_run_log,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_agent_module_ctx = {
    ngx_http_agent_preconfiguration,       /* preconfiguration */
    ngx_http_agent_postconfiguration,      /* postconfiguration */

    ngx_http_agent_create_main_conf,       /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_agent_create_loc_conf,        /* create location configuration */
    ngx_http_agent_merge_loc_conf          /* merge location configuration */
};


ngx_module_t  ngx_http_agent_module = {
    NGX_MODULE_V1,
    &ngx_http_agent_module_ctx,            /* module context */
    ngx_http_agent_commands,               /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_agent_init_module,            /* init module */
    ngx_http_agent_init_process,           /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_agent_exit_process,           /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


/*
 * nginx forgets the contexts of a request that it sends elsewhere; a cleanup of
 * the request's pool stays.
 */

static void
ngx_http_agent_ctx_cleanup(void *data)
{
    ngx_http_agent_ctx_t *ctx = data;

    if (ctx->input.alloc) {
        agent_input_free(&ctx->input);
    }
}


ngx_http_agent_ctx_t *
ngx_http_agent_find_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t    *cln;
    ngx_http_agent_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);

    if (ctx || !(r->internal || r->filter_finalize || r->error_page)) {
        return ctx;
    }

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_agent_ctx_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


ngx_http_agent_ctx_t *
ngx_http_agent_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t    *cln;
    ngx_http_agent_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_agent_module);

    if (ctx) {
        return ctx;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_agent_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;

    ngx_memzero(ctx, sizeof(ngx_http_agent_ctx_t));

    cln->handler = ngx_http_agent_ctx_cleanup;

    ctx->input_tokens = -1;
    ctx->output_tokens = -1;
    ctx->first_token = -1;
    ctx->lcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    ngx_http_set_ctx(r, ctx, ngx_http_agent_module);

    return ctx;
}


static ngx_int_t
ngx_http_agent_preconfiguration(ngx_conf_t *cf)
{
    return ngx_http_agent_add_variables(cf);
}


static void *
ngx_http_agent_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_agent_main_conf_t  *amcf;

    amcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_agent_main_conf_t));
    if (amcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&amcf->models, cf->pool, 4, sizeof(void *)) != NGX_OK
        || ngx_array_init(&amcf->agents, cf->pool, 4, sizeof(void *))
           != NGX_OK
        || ngx_array_init(&amcf->replay_zones, cf->pool, 4, sizeof(void *))
           != NGX_OK
        || ngx_array_init(&amcf->env, cf->pool, 4, sizeof(ngx_agent_env_t))
           != NGX_OK)
    {
        return NULL;
    }

    return amcf;
}


static void *
ngx_http_agent_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_agent_loc_conf_t  *conf;

    /* set by ngx_pcalloc(): agent, agent_name, where, owner_text */

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_agent_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->owner = NGX_CONF_UNSET_PTR;
    conf->thread = NGX_CONF_UNSET_PTR;
    conf->heartbeat = NGX_CONF_UNSET_MSEC;
    conf->cors = NGX_CONF_UNSET_PTR;
    conf->intercept_errors = NGX_CONF_UNSET;
    conf->run_log = NGX_CONF_UNSET_PTR;

    return conf;
}


static const char *
ngx_http_agent_directive(ngx_http_agent_loc_conf_t *conf)
{
    return conf->only_runs ? "agent_resume" : "agent_pass";
}


static char *
ngx_http_agent_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_agent_loc_conf_t *prev = parent;
    ngx_http_agent_loc_conf_t *conf = child;

    ngx_uint_t                   i;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_agent_main_conf_t  *amcf;
    ngx_agent_model_t          **models;

    if (conf->owner == NGX_CONF_UNSET_PTR) {
        conf->owner = prev->owner;
        conf->owner_text = prev->owner_text;
        conf->owner_where = prev->owner_where;
    }

    ngx_conf_merge_ptr_value(conf->thread, prev->thread, NULL);
    ngx_conf_merge_msec_value(conf->heartbeat, prev->heartbeat, 15000);
    ngx_conf_merge_ptr_value(conf->cors, prev->cors, NULL);
    ngx_conf_merge_value(conf->intercept_errors, prev->intercept_errors, 0);
    ngx_conf_merge_ptr_value(conf->run_log, prev->run_log, NULL);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (conf->agent_name.data && clcf->handler != ngx_http_agent_handler) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "a directive behind \"%s\" takes its location "
                      "over, only one can answer in %V:%ui",
                      ngx_http_agent_directive(conf), &conf->where.file,
                      conf->where.line);
        return NGX_CONF_ERROR;
    }

    /*
     * In a regex or named location P is the whole path, also inside an "if" of
     * it, whose own configuration does not know what it stands in.
     */

    if (clcf->noname) {
        conf->whole = prev->whole;

    } else {
        conf->whole = clcf->named;
#if (NGX_PCRE)
        conf->whole |= (clcf->regex != NULL);
#endif
    }

    /* inherited into "if" and "limit_except" as proxy_pass is */

    if (clcf->noname && conf->agent_name.data == NULL) {
        conf->agent_name = prev->agent_name;
        conf->agent = prev->agent;
        conf->only_runs = prev->only_runs;
        conf->where = prev->where;
    }

    if (clcf->lmt_excpt && clcf->handler == NULL && conf->agent_name.data) {
        clcf->handler = ngx_http_agent_handler;
    }

    /* an "if" without a handler of its own keeps the location's */

    if (conf->agent_name.data == NULL
        || (clcf->handler != ngx_http_agent_handler && clcf->handler))
    {
        return NGX_CONF_OK;
    }

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_agent_module);
    amcf->used = 1;

    conf->agent = ngx_agent_find(amcf, &conf->agent_name);

    if (conf->agent == NULL) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "unknown agent \"%V\" in \"%s\", http has no "
                      "\"agent %V { }\" in %V:%ui", &conf->agent_name,
                      ngx_http_agent_directive(conf), &conf->agent_name,
                      &conf->where.file, conf->where.line);
        return NGX_CONF_ERROR;
    }

    if (conf->owner == NGX_CONF_UNSET_PTR) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"%s\" needs \"agent_owner\": the identity that "
                      "runs and threads belong to, e.g. \"agent_owner "
                      "$remote_user;\", or \"agent_owner off;\" where all "
                      "callers may share them, in %V:%ui",
                      ngx_http_agent_directive(conf), &conf->where.file,
                      conf->where.line);
        return NGX_CONF_ERROR;
    }

    ngx_http_agent_owner_warn(cf, conf);

    if (conf->only_runs
        && (conf->whole || (clcf->exact_match && !clcf->noname)))
    {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"agent_resume\" needs a prefix location, the id of a "
                      "run comes behind the prefix, in %V:%ui",
                      &conf->where.file, conf->where.line);
        return NGX_CONF_ERROR;
    }

    if (clcf->exact_match && !clcf->noname) {
        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"location = %V\" reaches only the start of runs, use "
                      "\"location %V\" so that their status and cancel routes "
                      "work too, in %V:%ui", &clcf->name, &clcf->name,
                      &conf->where.file, conf->where.line);
    }

    if (clcf->resolver && clcf->resolver->connections.nelts) {
        return NGX_CONF_OK;
    }

    /* models are looked up when all is known, see ngx_agent_conf_finish() */

    models = amcf->models.elts;

    for (i = 0; i < amcf->models.nelts; i++) {
        if (models[i]->name.len == conf->agent->model_name.len
            && ngx_strncmp(models[i]->name.data, conf->agent->model_name.data,
                           models[i]->name.len) == 0)
        {
            models[i]->static_names = 1;
        }
    }

    return NGX_CONF_OK;
}


/*
 * An owner that the client can choose is no owner.  $remote_user is what the
 * client claims unless auth_basic has checked the password; with "satisfy any"
 * an address may have let it in instead.
 */

static void
ngx_http_agent_owner_warn(ngx_conf_t *cf, ngx_http_agent_loc_conf_t *conf)
{
    u_char                    *p, *end;
    ngx_str_t                 *text;
    ngx_uint_t                 i, user;
    const char                *why;
    ngx_http_core_loc_conf_t  *clcf;

    static const char *const  forged[] = {
        "http_", "arg_", "cookie_", NULL
    };

    text = &conf->owner_text;
    end = text->data + text->len;
    user = 0;
    why = NULL;

    if (conf->owner == NULL || text->len == 0) {
        return;
    }

    for (p = text->data; p < end; p++) {

        if (*p != '$') {
            continue;
        }

        p += (p[1] == '{') ? 2 : 1;

        for (i = 0; forged[i]; i++) {
            if (ngx_strncasecmp(p, (u_char *) forged[i],
                                ngx_strlen(forged[i]))
                == 0)
            {
                why = "the client sends it, use an identity that nginx has "
                      "checked,";
            }
        }

        if (ngx_strncasecmp(p, (u_char *) "remote_user", 11) == 0
            && !ngx_http_agent_word(p[11]))
        {
            user = 1;
        }
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (why == NULL && user) {

        if (!ngx_agent_auth_basic(cf)) {
            why = "\"auth_basic\" does not check it";

        } else if (clcf->satisfy == NGX_HTTP_SATISFY_ANY) {
            why = "\"satisfy any\" lets it pass unchecked";
        }
    }

    if (why == NULL) {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "\"agent_owner %V\" can be forged: %s in location \"%V\" in "
                  "%V:%ui", text, why, &clcf->name, &conf->owner_where.file,
                  conf->owner_where.line);

    /* once is enough: the blocks inside inherit it without its text */

    text->len = 0;
}


static ngx_uint_t
ngx_http_agent_word(u_char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
           || (c >= '0' && c <= '9') || c == '_';
}


static ngx_int_t
ngx_http_agent_postconfiguration(ngx_conf_t *cf)
{
    ngx_http_agent_main_conf_t  *amcf;

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_agent_module);

    if (ngx_agent_conf_finish(cf, amcf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!amcf->used) {
        return NGX_OK;
    }

    if (ngx_agent_registry_zone(cf, amcf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_agent_cors_init(cf);
}


static ngx_int_t
ngx_http_agent_init_module(ngx_cycle_t *cycle)
{
    ngx_http_agent_main_conf_t  *amcf;

    amcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_agent_module);

    if (amcf == NULL) {
        return NGX_OK;
    }

    ngx_agent_conf_check_env(cycle, amcf);

    if (!amcf->used) {
        return NGX_OK;
    }

    if (ngx_agent_slots_init_module(cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_agent_bell_init_module(cycle);
}


static ngx_int_t
ngx_http_agent_init_process(ngx_cycle_t *cycle)
{
    ngx_http_agent_main_conf_t  *amcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    amcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_agent_module);

    if (amcf == NULL || !amcf->used) {
        return NGX_OK;
    }

    if (ngx_agent_feed_init_process(cycle) != NGX_OK
        || ngx_agent_registry_init_process(amcf) != NGX_OK
        || ngx_agent_bell_init_process(cycle) != NGX_OK
        || ngx_agent_run_init_process(cycle) != NGX_OK
        || ngx_agent_echo_transport.init_process(cycle) != NGX_OK
        || ngx_agent_curl_transport.init_process(cycle) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_http_agent_exit_process(ngx_cycle_t *cycle)
{
    ngx_http_agent_main_conf_t  *amcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return;
    }

    amcf = ngx_http_cycle_get_module_main_conf(cycle, ngx_http_agent_module);

    if (amcf == NULL || !amcf->used) {
        return;
    }

    ngx_agent_run_exit_process(cycle);
    ngx_agent_echo_transport.exit_process(cycle);
    ngx_agent_curl_transport.exit_process(cycle);
    ngx_agent_local_exit_process();
    ngx_agent_shared_exit_process();
    ngx_agent_bell_exit_process();
    ngx_agent_registry_exit_process();
}


static char *
ngx_http_agent_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    if (alcf->agent_name.data) {
        return alcf->only_runs == (cmd->name.len == sizeof("agent_resume") - 1)
               ? "is duplicate"
               : "cannot stand beside the other of \"agent_pass\" and "
                 "\"agent_resume\"";
    }

    value = cf->args->elts;

    alcf->only_runs = (cmd->name.len == sizeof("agent_resume") - 1);

    if (value[1].len == 0) {
        return "needs the name of an agent";
    }

    alcf->agent_name = value[1];
    ngx_agent_where(cf, &alcf->where);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "a directive before \"%V\" answers in this "
                           "location already, only one can", &value[0]);
        return NGX_CONF_ERROR;
    }

    clcf->handler = ngx_http_agent_handler;

    return NGX_CONF_OK;
}


static char *
ngx_http_agent_owner(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t                         *value;
    ngx_http_compile_complex_value_t   ccv;

    if (alcf->owner != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_agent_where(cf, &alcf->owner_where);

    if (ngx_strcmp(value[1].data, "off") == 0) {
        alcf->owner = NULL;
        return NGX_CONF_OK;
    }

    if (value[1].len == 0) {
        return "must not be empty, use \"off\" where all callers may share "
               "their data";
    }

    alcf->owner = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (alcf->owner == NULL) {
        return NGX_CONF_ERROR;
    }

    alcf->owner_text = value[1];

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = &value[1];
    ccv.complex_value = alcf->owner;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_agent_heartbeat(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t  *value;

    if (alcf->heartbeat != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        alcf->heartbeat = 0;
        return NGX_CONF_OK;
    }

    alcf->heartbeat = ngx_parse_time(&value[1], 0);

    if (alcf->heartbeat == (ngx_msec_t) NGX_ERROR
        || alcf->heartbeat < 100
        || alcf->heartbeat > 3600 * 1000)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"agent_heartbeat\" must be a time between 100ms "
                           "and 1h, or \"off\", not \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}
