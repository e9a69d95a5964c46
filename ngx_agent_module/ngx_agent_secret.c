
/* Values that may come from "file:path" or "env:NAME". */

#include "ngx_http_agent.h"


#define NGX_AGENT_SECRET_MAX  8192


ngx_int_t
ngx_agent_read_file(ngx_conf_t *cf, ngx_str_t *path, size_t max,
    ngx_str_t *content, ngx_file_info_t *fi)
{
    off_t       size;
    ssize_t     n;
    ngx_fd_t    fd;
    ngx_str_t   full;
    ngx_file_t  file;

    full = *path;

    if (ngx_conf_full_name(cf->cycle, &full, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    /* a pipe is refused below, not waited for */

    fd = ngx_open_file(full.data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                       NGX_FILE_OPEN, 0);

    if (fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed", &full);
        return NGX_ERROR;
    }

    if (ngx_fd_info(fd, fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" failed", &full);
        goto failed;
    }

    if (!ngx_is_file(fi)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is not a regular file", &full);
        goto failed;
    }

    size = ngx_file_size(fi);

    if (size > (off_t) max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is larger than %uz bytes", &full, max);
        goto failed;
    }

    content->len = (size_t) size;
    content->data = ngx_pnalloc(cf->pool, content->len + 1);
    if (content->data == NULL) {
        goto failed;
    }

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.fd = fd;
    file.name = full;
    file.log = cf->log;

    n = ngx_read_file(&file, content->data, content->len, 0);

    if (n == NGX_ERROR || (size_t) n != content->len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_read_file_n " \"%V\" failed", &full);
        goto failed;
    }

    content->data[content->len] = '\0';

    if (ngx_close_file(fd) == NGX_FILE_ERROR) {
        ngx_log_error(NGX_LOG_ALERT, cf->log, ngx_errno,
                      ngx_close_file_n " \"%V\" failed", &full);
    }

    *path = full;

    return NGX_OK;

failed:

    (void) ngx_close_file(fd);

    return NGX_ERROR;
}


static ngx_int_t
ngx_agent_secret_file(ngx_conf_t *cf, ngx_str_t *path, ngx_str_t *secret)
{
    ngx_file_info_t  fi;

    if (path->len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"file:\" needs a path behind it");
        return NGX_ERROR;
    }

    if (ngx_agent_read_file(cf, path, NGX_AGENT_SECRET_MAX, secret, &fi)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_file_access(&fi) & S_IROTH) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "the secret in \"%V\" can be read by everybody, "
                           "make it \"chmod 600\"", path);
    }

    /* one line: an editor's line end does not belong to the secret */

    while (secret->len
           && (secret->data[secret->len - 1] == LF
               || secret->data[secret->len - 1] == CR
               || secret->data[secret->len - 1] == ' '
               || secret->data[secret->len - 1] == '\t'))
    {
        secret->len--;
    }

    secret->data[secret->len] = '\0';

    if (secret->len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the secret in \"%V\" is empty", path);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_agent_secret_env(ngx_conf_t *cf, ngx_str_t *name, ngx_str_t *secret)
{
    char                        *value;
    ngx_agent_env_t             *env;
    ngx_http_agent_main_conf_t  *amcf;

    if (name->len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"env:\" needs a variable's name behind it");
        return NGX_ERROR;
    }

    /* tokens of the configuration end with NUL */

    value = getenv((char *) name->data);

    if (value == NULL || *value == '\0') {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the environment variable \"%V\" is %s, set it "
                           "for the nginx master process", name,
                           value ? "empty" : "not set");
        return NGX_ERROR;
    }

    secret->len = ngx_strlen(value);

    if (secret->len > NGX_AGENT_SECRET_MAX) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the environment variable \"%V\" is longer than "
                           "%d bytes", name, NGX_AGENT_SECRET_MAX);
        return NGX_ERROR;
    }

    secret->data = ngx_pnalloc(cf->pool, secret->len + 1);
    if (secret->data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(secret->data, value, secret->len + 1);

    amcf = ngx_http_cycle_get_module_main_conf(cf->cycle,
                                               ngx_http_agent_module);
    if (amcf == NULL) {
        return NGX_OK;
    }

    env = ngx_array_push(&amcf->env);
    if (env == NULL) {
        return NGX_ERROR;
    }

    env->name = *name;
    ngx_agent_where(cf, &env->where);

    return NGX_OK;
}


ngx_int_t
ngx_agent_secret(ngx_conf_t *cf, ngx_str_t *value, ngx_uint_t flags,
    ngx_str_t *secret)
{
    size_t     i;
    ngx_int_t  rc;
    ngx_str_t  rest;

    if (value->len >= 5 && ngx_strncmp(value->data, "file:", 5) == 0) {
        rest.data = value->data + 5;
        rest.len = value->len - 5;

        rc = ngx_agent_secret_file(cf, &rest, secret);

    } else if (value->len >= 4 && ngx_strncmp(value->data, "env:", 4) == 0) {
        rest.data = value->data + 4;
        rest.len = value->len - 4;

        rc = ngx_agent_secret_env(cf, &rest, secret);

    } else if (flags & NGX_AGENT_SECRET_ONLY) {

        /* do not repeat the value: it may be the secret itself */

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "a secret must be given as \"file:path\" or "
                           "\"env:NAME\", not in the configuration itself");
        return NGX_ERROR;

    } else {
        *secret = *value;
        rc = NGX_OK;
    }

    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < secret->len; i++) {
        if (secret->data[i] < 0x20 || secret->data[i] == 0x7f) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "control characters are not allowed in a "
                               "secret or header value, it must be one line");
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
