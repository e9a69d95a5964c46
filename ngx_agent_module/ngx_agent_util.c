
#include "ngx_http_agent.h"

#include <openssl/rand.h>
#include <openssl/sha.h>


ngx_int_t
ngx_agent_random(u_char *dst, size_t n)
{
    u_char     raw[NGX_AGENT_RUN_SEED];
    ngx_str_t  src, out;

    if (n > sizeof(raw) || RAND_bytes(raw, (int) n) != 1) {
        return NGX_ERROR;
    }

    src.data = raw;
    src.len = n;
    out.data = dst;

    ngx_encode_base64url(&out, &src);

    return NGX_OK;
}


ngx_int_t
ngx_agent_random_id(ngx_pool_t *pool, const char *prefix, ngx_str_t *id)
{
    size_t   n;
    u_char  *p;

    n = ngx_strlen(prefix);

    p = ngx_pnalloc(pool, n + NGX_AGENT_SEED_CHARS + 4);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, prefix, n);

    if (ngx_agent_random(p + n, NGX_AGENT_RUN_SEED) != NGX_OK) {
        return NGX_ERROR;
    }

    id->data = p;
    id->len = n + NGX_AGENT_SEED_CHARS;

    return NGX_OK;
}


uint64_t
ngx_agent_now(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
}


u_char *
ngx_agent_time(u_char *dst, uint64_t ms)
{
    ngx_tm_t  tm;

    ngx_gmtime((time_t) (ms / 1000), &tm);

    return ngx_sprintf(dst, "%4d-%02d-%02dT%02d:%02d:%02d.%03uiZ",
                       tm.ngx_tm_year, tm.ngx_tm_mon, tm.ngx_tm_mday,
                       tm.ngx_tm_hour, tm.ngx_tm_min, tm.ngx_tm_sec,
                       (ngx_uint_t) (ms % 1000));
}


static u_char *
ngx_agent_key_part(u_char *p, const u_char *data, size_t len)
{
    uint32_t  n;

    n = (uint32_t) len;

    p = ngx_cpymem(p, &n, sizeof(uint32_t));

    return ngx_cpymem(p, data, len);
}


ngx_int_t
ngx_agent_key(ngx_pool_t *pool, u_char *key, const char *kind,
    ngx_str_t *agent, ngx_str_t *owner, ngx_str_t *id)
{
    size_t   n;
    u_char  *buf, *p, digest[SHA256_DIGEST_LENGTH];

    /* "agent_owner off" is a mode of its own and equals no string */

    n = 5 * sizeof(uint32_t) + ngx_strlen(kind) + agent->len + 1
        + (owner ? owner->len : 0) + id->len;

    buf = ngx_pnalloc(pool, n);
    if (buf == NULL) {
        return NGX_ERROR;
    }

    p = ngx_agent_key_part(buf, (u_char *) kind, ngx_strlen(kind));
    p = ngx_agent_key_part(p, agent->data, agent->len);

    if (owner) {
        p = ngx_agent_key_part(p, (u_char *) "1", 1);
        p = ngx_agent_key_part(p, owner->data, owner->len);

    } else {
        p = ngx_agent_key_part(p, (u_char *) "0", 1);
        p = ngx_agent_key_part(p, NULL, 0);
    }

    p = ngx_agent_key_part(p, id->data, id->len);

    SHA256(buf, p - buf, digest);

    ngx_memcpy(key, digest, NGX_AGENT_KEY_LEN);

    ngx_pfree(pool, buf);

    return NGX_OK;
}
