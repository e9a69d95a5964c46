
/*
 * agent { }: what the endpoint of a location runs.
 */

#include "ngx_agent_conf.h"
#include "ngx_agent_replay.h"


#define NGX_AGENT_SYSTEM_MAX    (1024 * 1024)


char *
ngx_agent_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_main_conf_t *amcf = conf;

    char         *rv;
    ngx_str_t    *value;
    ngx_agent_t  *agent, **slot;

    value = cf->args->elts;

    if (ngx_agent_conf_name(cf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    agent = ngx_agent_find(amcf, &value[1]);

    if (agent) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate agent \"%V\", the first is in %V:%ui",
                           &value[1], &agent->where.file, agent->where.line);
        return NGX_CONF_ERROR;
    }

    agent = ngx_pcalloc(cf->pool, sizeof(ngx_agent_t));
    if (agent == NULL) {
        return NGX_CONF_ERROR;
    }

    agent->name = value[1];
    ngx_agent_where(cf, &agent->where);

    agent->client_tools = NGX_CONF_UNSET;
    agent->max_run_time = NGX_CONF_UNSET_MSEC;
    agent->on_disconnect = NGX_CONF_UNSET_UINT;

    slot = ngx_array_push(&amcf->agents);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = agent;

    rv = ngx_agent_block_parse(cf, NGX_AGENT_AGENT_CONF, agent);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    if (agent->model_name.len == 0) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &agent->where,
                             "agent \"%V\" has no \"model\"", &agent->name);
        return NGX_CONF_ERROR;
    }

    ngx_conf_init_value(agent->client_tools, 1);
    ngx_conf_init_msec_value(agent->max_run_time, 30 * 60 * 1000);

    if (agent->roles == 0) {
        agent->roles = AGENT_ROLE_BIT(AGENT_ROLE_USER)
                       | AGENT_ROLE_BIT(AGENT_ROLE_ASSISTANT)
                       | AGENT_ROLE_BIT(AGENT_ROLE_TOOL);
    }

    return NGX_CONF_OK;
}


ngx_agent_t *
ngx_agent_find(ngx_http_agent_main_conf_t *amcf, ngx_str_t *name)
{
    ngx_uint_t     i;
    ngx_agent_t  **agents;

    agents = amcf->agents.elts;

    for (i = 0; i < amcf->agents.nelts; i++) {
        if (agents[i]->name.len == name->len
            && ngx_strncmp(agents[i]->name.data, name->data, name->len) == 0)
        {
            return agents[i];
        }
    }

    return NULL;
}


char *
ngx_agent_agent_model(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t  *value;

    if (agent->model_name.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "must not be empty";
    }

    agent->model_name = value[1];
    ngx_agent_where(cf, &agent->model_where);

    return NGX_CONF_OK;
}


char *
ngx_agent_agent_replay(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t  *value;

    if (agent->replay_name.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "needs the name of an \"agent_replay_zone\"";
    }

    agent->replay_name = value[1];
    ngx_agent_where(cf, &agent->replay_where);

    return NGX_CONF_OK;
}


char *
ngx_agent_agent_system(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t        *value, path;
    agent_str_t       text;
    ngx_file_info_t   fi;

    if (agent->system.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len >= 5 && ngx_strncmp(value[1].data, "file:", 5) == 0) {
        path.data = value[1].data + 5;
        path.len = value[1].len - 5;

        if (path.len == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"file:\" needs a path behind it");
            return NGX_CONF_ERROR;
        }

        if (ngx_agent_read_file(cf, &path, NGX_AGENT_SYSTEM_MAX,
                                &agent->system, &fi)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }

    } else {
        agent->system = value[1];
    }

    text = ngx_agent_str(&agent->system);

    if (text.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the system prompt is empty, leave \"system\" out "
                           "where there is to be none");
        return NGX_CONF_ERROR;
    }

    if (agent_utf8_valid(text) != text.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the system prompt is not valid UTF-8");
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_agent_agent_memory(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t              *value;
    ngx_agent_block_ctx_t  *ctx;

    ctx = cf->ctx;

    if (ctx->memory) {
        return "is duplicate";
    }

    ctx->memory = 1;

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        return NGX_CONF_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"memory %V\" is not supported yet, only "
                       "\"memory off\" is", &value[1]);

    return NGX_CONF_ERROR;
}


char *
ngx_agent_agent_roles(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t     *value;
    ngx_uint_t     i;
    agent_role_t   role;

    if (agent->roles) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        role = agent_role_parse(ngx_agent_str(&value[i]));

        if (role == AGENT_ROLE_UNKNOWN || role == AGENT_ROLE_ACTIVITY) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "unknown role \"%V\", there are \"user\", "
                               "\"tool\", \"assistant\", \"reasoning\", "
                               "\"system\" and \"developer\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        agent->roles |= AGENT_ROLE_BIT(role);
    }

    if (!(agent->roles & AGENT_ROLE_BIT(AGENT_ROLE_USER))) {
        return "must list \"user\"";
    }

    return NGX_CONF_OK;
}


char *
ngx_agent_agent_disconnect(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t  *value, s;

    if (agent->on_disconnect != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "continue") == 0) {
        agent->on_disconnect = NGX_AGENT_DISCONNECT_CONTINUE;

    } else if (ngx_strcmp(value[1].data, "cancel") == 0) {
        agent->on_disconnect = NGX_AGENT_DISCONNECT_CANCEL;

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\", use \"continue\" or "
                           "\"cancel [after=time]\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    if (agent->on_disconnect == NGX_AGENT_DISCONNECT_CANCEL
        && ngx_strncmp(value[2].data, "after=", 6) == 0)
    {
        s.data = value[2].data + 6;
        s.len = value[2].len - 6;

        agent->disconnect_after = ngx_parse_time(&s, 0);

        if (agent->disconnect_after != (ngx_msec_t) NGX_ERROR) {
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\", use "
                       "\"on_disconnect cancel after=time\"", &value[2]);

    return NGX_CONF_ERROR;
}


char *
ngx_agent_agent_override(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_t *agent = conf;

    ngx_str_t          *value, *name;
    ngx_uint_t          i, n;
    const char *const  *reserved;

    if (agent->allow_override) {
        return "is duplicate";
    }

    value = cf->args->elts;

    agent->allow_override = ngx_array_create(cf->pool, cf->args->nelts,
                                             sizeof(ngx_str_t));
    if (agent->allow_override == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        /* what one provider reserves is nothing for a client anywhere */

        for (n = 0; agent_codecs[n]; n++) {
            for (reserved = agent_codecs[n]->reserved; *reserved; reserved++) {
                if (ngx_strcmp(value[i].data, *reserved) == 0) {
                    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                       "\"%V\" is made by the module, "
                                       "\"allow_override\" cannot name it",
                                       &value[i]);
                    return NGX_CONF_ERROR;
                }
            }
        }

        name = ngx_array_push(agent->allow_override);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        *name = value[i];
    }

    return NGX_CONF_OK;
}


/* the zone that it names, or the only one there is */

static ngx_int_t
ngx_agent_agent_store(ngx_conf_t *cf, ngx_http_agent_main_conf_t *amcf,
    ngx_agent_t *agent)
{
    ngx_str_t          *name;
    ngx_uint_t          i;
    ngx_agent_zone_t  **zones;

    name = &agent->replay_name;
    zones = amcf->replay_zones.elts;

    agent->store = &ngx_agent_local_store;

    for (i = 0; i < amcf->replay_zones.nelts; i++) {
        if ((name->len == 0 && amcf->replay_zones.nelts == 1)
            || (zones[i]->name.len == name->len
                && ngx_strncmp(zones[i]->name.data, name->data, name->len)
                   == 0))
        {
            agent->store = zones[i]->store;
        }
    }

    if (name->len && agent->store == &ngx_agent_local_store) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &agent->replay_where,
                             "unknown replay zone \"%V\" of agent \"%V\", "
                             "there is no \"agent_replay_zone %V:size;\"",
                             name, &agent->name, name);
        return NGX_ERROR;
    }

    /* without a replay zone nobody can come back to a run */

    ngx_conf_init_uint_value(agent->on_disconnect,
                             agent->store == &ngx_agent_local_store
                             ? NGX_AGENT_DISCONNECT_CANCEL
                             : NGX_AGENT_DISCONNECT_CONTINUE);

    return NGX_OK;
}


ngx_int_t
ngx_agent_agent_finish(ngx_conf_t *cf, ngx_http_agent_main_conf_t *amcf,
    ngx_agent_t *agent)
{
    ngx_uint_t           i;
    ngx_agent_model_t  **models;

    if (agent->model) {
        return NGX_OK;
    }

    models = amcf->models.elts;

    for (i = 0; i < amcf->models.nelts; i++) {
        if (models[i]->name.len == agent->model_name.len
            && ngx_strncmp(models[i]->name.data, agent->model_name.data,
                           agent->model_name.len) == 0)
        {
            agent->model = models[i];
            break;
        }
    }

    if (agent->model == NULL) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &agent->model_where,
                             "unknown model \"%V\" of agent \"%V\", there is "
                             "no \"agent_model %V { }\"", &agent->model_name,
                             &agent->name, &agent->model_name);
        return NGX_ERROR;
    }

    return ngx_agent_agent_store(cf, amcf, agent);
}
