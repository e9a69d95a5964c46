
/* Differences between nginx versions; nowhere else is a version compared. */

#ifndef _NGX_AGENT_COMPAT_H_INCLUDED_
#define _NGX_AGENT_COMPAT_H_INCLUDED_


/* since 1.23.0 headers of one name are linked */

#if (nginx_version >= 1023000)
#define ngx_agent_header_init(h)  (h)->next = NULL
#else
#define ngx_agent_header_init(h)  /* void */
#endif


/* 1 when the request is a stream of a connection shared with others */

static ngx_inline ngx_uint_t
ngx_agent_is_multiplexed(ngx_http_request_t *r)
{
#if (NGX_HTTP_V2)
    if (r->stream) {
        return 1;
    }
#endif

    return (r->http_version > NGX_HTTP_VERSION_20);
}


/*
 * 1 when auth_basic is on in the location being merged.  Its configuration is
 * private to it; all versions from 1.3.15 on begin it with the realm.  That
 * the module is found by name keeps builds without it loadable.
 */

static ngx_inline ngx_uint_t
ngx_agent_auth_basic(ngx_conf_t *cf)
{
    void                       **conf;
    ngx_uint_t                   i;
    ngx_http_conf_ctx_t         *ctx;
    ngx_http_complex_value_t    *realm;

    ctx = cf->ctx;

    for (i = 0; cf->cycle->modules[i]; i++) {

        if (ngx_strcmp(cf->cycle->modules[i]->name,
                       "ngx_http_auth_basic_module")
            != 0)
        {
            continue;
        }

        conf = ctx->loc_conf[cf->cycle->modules[i]->ctx_index];
        realm = *conf;

        if (realm == NULL || realm == NGX_CONF_UNSET_PTR) {
            return 0;
        }

        /* its second member: without a user file nothing is checked */

        if (conf[1] == NULL || conf[1] == NGX_CONF_UNSET_PTR) {
            return 0;
        }

        return realm->lengths != NULL || realm->value.len != 3
               || ngx_strncmp(realm->value.data, "off", 3) != 0;
    }

    return 0;
}


#endif /* _NGX_AGENT_COMPAT_H_INCLUDED_ */
