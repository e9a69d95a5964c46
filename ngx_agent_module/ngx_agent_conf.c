
/*
 * The blocks agent_model { } and agent { }: parsed through a command table of
 * a module type of their own, so that nginx itself checks names, places and
 * argument counts.
 */

#include "ngx_agent_conf.h"


static ngx_command_t  ngx_agent_block_commands[] = {

    /* agent_model { } */

    { ngx_string("provider"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_provider,
      0, 0, NULL },

    { ngx_string("url"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_url,
      0, 0, NULL },

    { ngx_string("model"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_conf_text,
      0, offsetof(ngx_agent_model_t, model), NULL },

    { ngx_string("key"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_key,
      0, 0, NULL },

    { ngx_string("header"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE2,
      ngx_agent_model_header,
      0, 0, NULL },

    { ngx_string("set"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE2,
      ngx_agent_model_set,
      0, 0, NULL },

    { ngx_string("connect_timeout"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_conf_time,
      0, offsetof(ngx_agent_model_t, connect_timeout), NULL },

    { ngx_string("first_byte_timeout"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_conf_time,
      0, offsetof(ngx_agent_model_t, first_byte_timeout), NULL },

    { ngx_string("idle_timeout"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_conf_time,
      0, offsetof(ngx_agent_model_t, idle_timeout), NULL },

    { ngx_string("max_inflight"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE123,
      ngx_agent_model_inflight,
      0, 0, NULL },

    { ngx_string("ssl_verify"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      0, offsetof(ngx_agent_model_t, ssl_verify), NULL },

    { ngx_string("ssl_trusted_certificate"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_pem,
      0, offsetof(ngx_agent_model_t, ssl_trusted_certificate), NULL },

    { ngx_string("ssl_certificate"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_pem,
      0, offsetof(ngx_agent_model_t, ssl_certificate), NULL },

    { ngx_string("ssl_certificate_key"),
      NGX_AGENT_MODEL_CONF|NGX_CONF_TAKE1,
      ngx_agent_model_pem,
      0, offsetof(ngx_agent_model_t, ssl_certificate_key), NULL },

    /* agent { } */

    { ngx_string("model"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_TAKE1,
      ngx_agent_agent_model,
      0, 0, NULL },

    { ngx_string("replay_zone"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_TAKE1,
      ngx_agent_agent_replay,
      0, 0, NULL },

    { ngx_string("system"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_TAKE1,
      ngx_agent_agent_system,
      0, 0, NULL },

    { ngx_string("memory"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_1MORE,
      ngx_agent_agent_memory,
      0, 0, NULL },

    { ngx_string("accept_roles"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_1MORE,
      ngx_agent_agent_roles,
      0, 0, NULL },

    { ngx_string("client_tools"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      0, offsetof(ngx_agent_t, client_tools), NULL },

    { ngx_string("max_run_time"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_TAKE1,
      ngx_agent_conf_time,
      0, offsetof(ngx_agent_t, max_run_time), NULL },

    { ngx_string("on_disconnect"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_TAKE12,
      ngx_agent_agent_disconnect,
      0, 0, NULL },

    { ngx_string("allow_override"),
      NGX_AGENT_AGENT_CONF|NGX_CONF_1MORE,
      ngx_agent_agent_override,
      0, 0, NULL },

      ngx_null_command
};


/*
 * ctx_index is fixed: nginx counts only modules of the types it knows, and the
 * context of a block has one slot, for the struct being filled.
 */

ngx_module_t  ngx_agent_block_module = {
    0,                                 /* ctx_index */
    NGX_MODULE_UNSET_INDEX,            /* index */
    NULL, 0, 0, nginx_version, NGX_MODULE_SIGNATURE,
    NULL,                              /* module context */
    ngx_agent_block_commands,          /* module directives */
    NGX_AGENT_BLOCK_MODULE,            /* module type */
    NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NGX_MODULE_V1_PADDING
};


void
ngx_agent_where(ngx_conf_t *cf, ngx_agent_where_t *where)
{
    where->file = cf->conf_file->file.name;
    where->line = cf->conf_file->line;
}


void
ngx_agent_conf_error(ngx_conf_t *cf, ngx_uint_t level,
    ngx_agent_where_t *where, const char *fmt, ...)
{
    u_char   *p, text[1024];
    va_list   args;

    va_start(args, fmt);
    p = ngx_vslprintf(text, text + sizeof(text), fmt, args);
    va_end(args);

    ngx_log_error(level, cf->log, 0, "%*s in %V:%ui",
                  (size_t) (p - text), text, &where->file, where->line);
}


ngx_int_t
ngx_agent_conf_name(ngx_conf_t *cf, ngx_str_t *name)
{
    size_t  i;
    u_char  c;

    if (name->len == 0 || name->len > 64) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "a name must have 1 to 64 characters");
        return NGX_ERROR;
    }

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.'))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid name \"%V\", use letters, digits, "
                               "\"_\", \"-\" and \".\"", name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


char *
ngx_agent_block_parse(ngx_conf_t *cf, ngx_uint_t cmd_type, void *conf)
{
    char                   *rv;
    void                   *slot[1];
    ngx_conf_t              save;
    ngx_agent_block_ctx_t   ctx;

    slot[0] = conf;

    ctx.conf = slot;
    ctx.memory = 0;

    save = *cf;

    cf->ctx = &ctx;
    cf->module_type = NGX_AGENT_BLOCK_MODULE;
    cf->cmd_type = cmd_type;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    return rv;
}


char *
ngx_agent_conf_text(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    size_t      i;
    ngx_str_t  *field, *value;

    field = (ngx_str_t *) (p + cmd->offset);

    if (field->data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "must not be empty";
    }

    for (i = 0; i < value[1].len; i++) {
        if (value[1].data[i] < 0x20 || value[1].data[i] == 0x7f) {
            return "must not contain control characters";
        }
    }

    *field = value[1];

    return NGX_CONF_OK;
}


char *
ngx_agent_conf_time(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_msec_t  *field, ms;
    ngx_str_t   *value;

    field = (ngx_msec_t *) (p + cmd->offset);

    if (*field != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ms = ngx_parse_time(&value[1], 0);

    if (ms == (ngx_msec_t) NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid time \"%V\" in \"%V\", use for example "
                           "\"500ms\", \"30s\" or \"5m\"", &value[1],
                           &value[0]);
        return NGX_CONF_ERROR;
    }

    if (ms == 0 || ms > 7 * 24 * 3600 * (ngx_msec_t) 1000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must be between 1ms and 7d, not \"%V\"",
                           &value[0], &value[1]);
        return NGX_CONF_ERROR;
    }

    *field = ms;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_agent_conf_finish(ngx_conf_t *cf, ngx_http_agent_main_conf_t *amcf)
{
    ngx_uint_t           i;
    ngx_agent_t        **agents;
    ngx_agent_model_t  **models;

    models = amcf->models.elts;

    for (i = 0; i < amcf->models.nelts; i++) {
        if (ngx_agent_model_finish(cf, models[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    agents = amcf->agents.elts;

    for (i = 0; i < amcf->agents.nelts; i++) {
        if (ngx_agent_agent_finish(cf, amcf, agents[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


void
ngx_agent_conf_check_env(ngx_cycle_t *cycle, ngx_http_agent_main_conf_t *amcf)
{
    size_t            n;
    ngx_str_t        *var;
    ngx_uint_t        i, j;
    ngx_agent_env_t  *env;
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    env = amcf->env.elts;
    var = ccf->env.elts;

    for (i = 0; i < amcf->env.nelts; i++) {

        n = env[i].name.len;

        for (j = 0; j < ccf->env.nelts; j++) {
            if (var[j].len >= n
                && ngx_strncmp(var[j].data, env[i].name.data, n) == 0
                && (var[j].len == n || var[j].data[n] == '='))
            {
                break;
            }
        }

        if (j < ccf->env.nelts) {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "\"env:%V\" is lost at a binary upgrade of nginx, add "
                      "\"env %V;\" at the top of the configuration, in %V:%ui",
                      &env[i].name, &env[i].name, &env[i].where.file,
                      env[i].where.line);
    }
}
