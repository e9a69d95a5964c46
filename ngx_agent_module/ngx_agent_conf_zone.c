
/*
 * agent_replay_zone name:size [retain=time] [max_run=size];
 */

#include "ngx_agent_conf.h"
#include "ngx_agent_replay.h"


#define NGX_AGENT_ZONE_MIN      (256 * 1024)
#define NGX_AGENT_ZONE_RESERVE  2               /* units for last words */
#define NGX_AGENT_RUN_MIN       (32 * 1024)


/* "name:size" */

static ngx_int_t
ngx_agent_zone_name(ngx_conf_t *cf, ngx_str_t *value, ngx_agent_zone_t *zone)
{
    u_char     *p;
    ssize_t     size;
    ngx_str_t   s;

    p = ngx_strlchr(value->data, value->data + value->len, ':');

    if (p == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" has no size, use for example "
                           "\"%V:64m\"", value, value);
        return NGX_ERROR;
    }

    zone->name.data = value->data;
    zone->name.len = p - value->data;

    if (ngx_agent_conf_name(cf, &zone->name) != NGX_OK) {
        return NGX_ERROR;
    }

    if (zone->name.len == NGX_AGENT_REGISTRY_NAME_LEN
        && ngx_strncmp(zone->name.data, NGX_AGENT_REGISTRY_NAME,
                       NGX_AGENT_REGISTRY_NAME_LEN)
           == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is the module's own zone, use another name",
                           &zone->name);
        return NGX_ERROR;
    }

    s.data = p + 1;
    s.len = value->data + value->len - s.data;

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR || size < NGX_AGENT_ZONE_MIN) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid size of zone \"%V\", use at least 256k, "
                           "for example \"%V:64m\"", value, &zone->name);
        return NGX_ERROR;
    }

    zone->size = (size_t) size;

    return NGX_OK;
}


static ngx_int_t
ngx_agent_zone_retain(ngx_conf_t *cf, ngx_str_t *value,
    ngx_agent_zone_t *zone)
{
    ngx_str_t   s;
    ngx_msec_t  ms;

    s.data = value->data + sizeof("retain=") - 1;
    s.len = value->len - (sizeof("retain=") - 1);

    ms = ngx_parse_time(&s, 0);

    if (ms == (ngx_msec_t) NGX_ERROR || ms == 0
        || ms > 30 * 24 * 3600 * (ngx_msec_t) 1000)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must be a time between 1ms and 30d", value);
        return NGX_ERROR;
    }

    zone->replay.retain = ms;

    return NGX_OK;
}


static ngx_int_t
ngx_agent_zone_max_run(ngx_conf_t *cf, ngx_str_t *value,
    ngx_agent_zone_t *zone)
{
    ssize_t    size;
    ngx_str_t  s;

    s.data = value->data + sizeof("max_run=") - 1;
    s.len = value->len - (sizeof("max_run=") - 1);

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR || size < NGX_AGENT_RUN_MIN) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must be a size of at least 32k", value);
        return NGX_ERROR;
    }

    zone->replay.max_units = (uint32_t) (size / AGENT_ZONE_UNIT);

    return NGX_OK;
}


char *
ngx_agent_replay_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_main_conf_t *amcf = conf;

    ngx_str_t          *value;
    ngx_int_t           rc;
    ngx_uint_t          i;
    ngx_agent_zone_t   *zone, **slot;

    value = cf->args->elts;

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_agent_zone_t));
    if (zone == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_agent_where(cf, &zone->where);

    zone->replay.reserve = NGX_AGENT_ZONE_RESERVE;

    if (ngx_agent_zone_name(cf, &value[1], zone) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "retain=", 7) == 0
            && zone->replay.retain == 0)
        {
            rc = ngx_agent_zone_retain(cf, &value[i], zone);

        } else if (ngx_strncmp(value[i].data, "max_run=", 8) == 0
                   && zone->replay.max_units == 0)
        {
            rc = ngx_agent_zone_max_run(cf, &value[i], zone);

        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\", there are "
                               "\"retain=time\" and \"max_run=size\"",
                               &value[i]);
            rc = NGX_ERROR;
        }

        if (rc != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    if (zone->replay.retain == 0) {
        zone->replay.retain = 10 * 60 * 1000;
    }

    if (zone->replay.max_units == 0) {
        zone->replay.max_units = 4 * 1024 * 1024 / AGENT_ZONE_UNIT;
    }

    zone->store = ngx_palloc(cf->pool, sizeof(ngx_agent_store_t));
    if (zone->store == NULL) {
        return NGX_CONF_ERROR;
    }

    *zone->store = ngx_agent_shared_store;
    zone->store->zone = zone;

    rc = ngx_agent_zone_add(cf, zone);

    if (rc == NGX_DECLINED) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate zone \"%V\"", &zone->name);
        return NGX_CONF_ERROR;
    }

    if (rc != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    slot = ngx_array_push(&amcf->replay_zones);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = zone;

    return NGX_CONF_OK;
}
