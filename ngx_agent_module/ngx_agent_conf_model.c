
/*
 * agent_model { }: one model server, its address, secrets and limits.
 */

#include "ngx_agent_conf.h"
#include "ngx_agent_transfer.h"

#include <openssl/err.h>
#include <openssl/pem.h>


#define NGX_AGENT_PEM_MAX       (16 * 1024 * 1024)
#define NGX_AGENT_ECHO_RATE     "tokens_per_second"


static char *ngx_agent_model_done(ngx_conf_t *cf, ngx_agent_model_t *model);


char *
ngx_agent_model_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_main_conf_t *amcf = conf;

    char                *rv;
    ngx_str_t           *value;
    ngx_uint_t           i;
    ngx_agent_model_t  **models, *model, **slot;

    value = cf->args->elts;

    if (ngx_agent_conf_name(cf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    models = amcf->models.elts;

    for (i = 0; i < amcf->models.nelts; i++) {
        if (models[i]->name.len == value[1].len
            && ngx_strncmp(models[i]->name.data, value[1].data, value[1].len)
               == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate agent_model \"%V\", the first is "
                               "in %V:%ui", &value[1],
                               &models[i]->where.file, models[i]->where.line);
            return NGX_CONF_ERROR;
        }
    }

    model = ngx_pcalloc(cf->pool, sizeof(ngx_agent_model_t));
    if (model == NULL) {
        return NGX_CONF_ERROR;
    }

    model->name = value[1];
    ngx_agent_where(cf, &model->where);

    model->connect_timeout = NGX_CONF_UNSET_MSEC;
    model->first_byte_timeout = NGX_CONF_UNSET_MSEC;
    model->idle_timeout = NGX_CONF_UNSET_MSEC;
    model->max_inflight = NGX_CONF_UNSET_UINT;
    model->ssl_verify = NGX_CONF_UNSET;

    ngx_queue_init(&model->waiting);

    slot = ngx_array_push(&amcf->models);
    if (slot == NULL) {
        return NGX_CONF_ERROR;
    }

    *slot = model;

    rv = ngx_agent_block_parse(cf, NGX_AGENT_MODEL_CONF, model);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return ngx_agent_model_done(cf, model);
}


static char *
ngx_agent_model_done(ngx_conf_t *cf, ngx_agent_model_t *model)
{
    size_t              n;
    ngx_str_t          *lines;
    ngx_uint_t          i;
    const agent_str_t  *auth;

    if (model->codec == NULL) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->where,
                             "agent_model \"%V\" has no \"provider\"",
                             &model->name);
        return NGX_CONF_ERROR;
    }

    ngx_conf_init_msec_value(model->connect_timeout, 5000);
    ngx_conf_init_msec_value(model->first_byte_timeout, 300000);
    ngx_conf_init_msec_value(model->idle_timeout, 300000);
    ngx_conf_init_uint_value(model->max_inflight, 0);
    ngx_conf_init_value(model->ssl_verify, 1);

    if (model->model.len == 0) {
        model->model.data = (u_char *) model->codec->model.data;
        model->model.len = model->codec->model.len;
    }

    if (model->model.len == 0) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->where,
                             "agent_model \"%V\" has no \"model\"",
                             &model->name);
        return NGX_CONF_ERROR;
    }

    if (model->codec->url.len == 0) {

        /* a built-in model */

        if (model->url.len || model->key.len || model->headers
            || model->ssl_trusted_certificate.len
            || model->ssl_certificate.len || model->ssl_certificate_key.len)
        {
            ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->where,
                                 "agent_model \"%V\": the built-in provider "
                                 "takes no \"url\", \"key\", \"header\" or "
                                 "certificate", &model->name);
            return NGX_CONF_ERROR;
        }

        model->transport = &ngx_agent_echo_transport;

        return NGX_CONF_OK;
    }

    model->transport = &ngx_agent_curl_transport;

    if (model->url.len == 0) {
        model->url.data = (u_char *) model->codec->url.data;
        model->url.len = model->codec->url.len;
        model->url_where = model->where;

        if (model->key.len == 0) {
            ngx_agent_conf_error(cf, NGX_LOG_WARN, &model->where,
                                 "agent_model \"%V\" uses the provider's own "
                                 "\"url\" but has no \"key\"", &model->name);
        }
    }

    auth = &model->codec->auth;

    if (model->key.len && model->headers) {
        lines = model->headers->elts;

        for (n = 0; n < auth->len && auth->data[n] != ':'; n++) { /* void */ }

        for (i = 0; i < model->headers->nelts; i++) {
            if (ngx_strncasecmp(lines[i].data, (u_char *) auth->data, n) == 0
                && (lines[i].data[n] == ':' || lines[i].data[n] == ';'))
            {
                ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->where,
                                     "agent_model \"%V\": \"key\" and \"header "
                                     "%*s\" are the same, give one of them",
                                     &model->name, n, auth->data);
                return NGX_CONF_ERROR;
            }
        }
    }

    if ((model->ssl_certificate.len == 0)
        != (model->ssl_certificate_key.len == 0))
    {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->where,
                             "agent_model \"%V\": \"ssl_certificate\" and "
                             "\"ssl_certificate_key\" go together",
                             &model->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_agent_model_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    u_char      *p, names[256];
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (model->codec) {
        return "is duplicate";
    }

    value = cf->args->elts;

    model->codec = agent_codec_find(ngx_agent_str(&value[1]));

    if (model->codec) {
        return NGX_CONF_OK;
    }

    p = names;

    for (i = 0; agent_codecs[i]; i++) {
        p = ngx_slprintf(p, names + sizeof(names), "%s\"%*s\"",
                         i ? ", " : "", agent_codecs[i]->name.len,
                         agent_codecs[i]->name.data);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown provider \"%V\", there are %*s", &value[1],
                       (size_t) (p - names), names);

    return NGX_CONF_ERROR;
}


static int
ngx_agent_no_password(char *buf, int size, int rwflag, void *data)
{
    return 0;
}


char *
ngx_agent_model_pem(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    BIO              *bio;
    char             *rv;
    X509             *cert;
    EVP_PKEY         *key;
    ngx_str_t        *path, pem;
    ngx_uint_t        is_key, valid;
    ngx_file_info_t   fi;

    rv = ngx_agent_conf_text(cf, cmd, conf);

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    path = (ngx_str_t *) ((char *) conf + cmd->offset);
    is_key = (path == &model->ssl_certificate_key);

    if (ngx_agent_read_file(cf, path, NGX_AGENT_PEM_MAX, &pem, &fi) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    bio = BIO_new_mem_buf(pem.data, (int) pem.len);
    if (bio == NULL) {
        return NGX_CONF_ERROR;
    }

    if (is_key) {
        key = PEM_read_bio_PrivateKey(bio, NULL, ngx_agent_no_password, NULL);
        valid = (key != NULL);
        EVP_PKEY_free(key);
        ngx_explicit_memzero(pem.data, pem.len);

    } else {
        cert = PEM_read_bio_X509_AUX(bio, NULL, ngx_agent_no_password, NULL);
        valid = (cert != NULL);
        X509_free(cert);
    }

    BIO_free(bio);
    ERR_clear_error();

    if (!valid) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" holds no %s in PEM form", path,
                           is_key ? "private key without a password"
                                  : "certificate");
        return NGX_CONF_ERROR;
    }

    if (path == &model->ssl_trusted_certificate) {
        model->ca = pem;
    }

    return NGX_CONF_OK;
}


/* for messages: a query, or what stands before "@", may be a secret */

static ngx_str_t
ngx_agent_url_shown(ngx_str_t *url)
{
    u_char     *p;
    ngx_str_t   shown;

    if (ngx_strlchr(url->data, url->data + url->len, '@')) {
        ngx_str_set(&shown, "...");
        return shown;
    }

    shown = *url;
    p = ngx_strlchr(url->data, url->data + url->len, '?');

    if (p) {
        shown.len = p - url->data;
    }

    return shown;
}


char *
ngx_agent_model_url(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    u_char      c;
    size_t      add, i;
    ngx_str_t  *value, url, authority, shown;

    value = cf->args->elts;
    url = value[1];
    shown = ngx_agent_url_shown(&url);

    if (model->url.data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate \"url\": several peers for one model "
                           "are not supported yet");
        return NGX_CONF_ERROR;
    }

    if (url.len > 7 && ngx_strncasecmp(url.data, (u_char *) "http://", 7) == 0)
    {
        add = 7;

    } else if (url.len > 8
               && ngx_strncasecmp(url.data, (u_char *) "https://", 8) == 0)
    {
        add = 8;
        model->ssl = 1;

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid url \"%V\", it must begin with "
                           "\"http://\" or \"https://\"", &shown);
        return NGX_CONF_ERROR;
    }

    authority.data = url.data + add;

    for (i = add; i < url.len; i++) {

        if (url.data[i] == '$') {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "variables are not supported in \"url\", write "
                               "a \"$\" of its own as \"%%24\"");
            return NGX_CONF_ERROR;
        }

        if (url.data[i] <= 0x20 || url.data[i] >= 0x7f || url.data[i] == '"'
            || url.data[i] == '<' || url.data[i] == '>'
            || url.data[i] == '\\' || url.data[i] == '#')
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid character in url, spaces, \"#\", "
                               "\"\\\" and non-ASCII characters must be "
                               "percent-encoded or left out");
            return NGX_CONF_ERROR;
        }
    }

    for (i = add; i < url.len; i++) {
        if (url.data[i] == '/' || url.data[i] == '?') {
            break;
        }

        if (url.data[i] == '@') {

            /* not repeated here: it may hold a password */

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "credentials in a url are refused, use \"key\" "
                               "or \"header\" with \"file:\" or \"env:\"");
            return NGX_CONF_ERROR;
        }
    }

    authority.len = i - add;

    if (authority.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no host in url \"%V\"", &shown);
        return NGX_CONF_ERROR;
    }

    if (authority.len >= 5
        && ngx_strncasecmp(authority.data, (u_char *) "unix:", 5) == 0)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unix sockets are not supported in \"url\"");
        return NGX_CONF_ERROR;
    }

    for (i = 0; i < authority.len; i++) {
        c = authority.data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_'
              || c == ':' || c == '[' || c == ']'))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid character \"%c\" in the host of url "
                               "\"%V\"", c, &shown);
            return NGX_CONF_ERROR;
        }
    }

    model->url = url;
    ngx_agent_where(cf, &model->url_where);

    return NGX_CONF_OK;
}


/* what a server may repeat and nobody is to see */

static ngx_int_t
ngx_agent_model_secret(ngx_conf_t *cf, ngx_agent_model_t *model,
    ngx_str_t *secret)
{
    u_char  *p;

    p = ngx_pnalloc(cf->pool, model->secrets.len + secret->len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, model->secrets.data, model->secrets.len);
    ngx_memcpy(p + model->secrets.len, secret->data, secret->len);
    p[model->secrets.len + secret->len] = LF;

    model->secrets.data = p;
    model->secrets.len += secret->len + 1;

    return NGX_OK;
}


char *
ngx_agent_model_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    ngx_str_t  *value;

    if (model->key.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_agent_secret(cf, &value[1], NGX_AGENT_SECRET_ONLY, &model->key)
        != NGX_OK
        || ngx_agent_model_secret(cf, model, &model->key) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_agent_model_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    u_char       c, *p;
    size_t       i;
    ngx_str_t   *value, *line, secret;
    ngx_uint_t   n;

    static const char *const  refused[] = {
        "host", "content-length", "transfer-encoding", "connection",
        "content-type", "content-encoding", "accept", "accept-encoding",
        "expect", "upgrade", "te", "trailer", NULL
    };

    value = cf->args->elts;

    for (i = 0; i < value[1].len; i++) {
        c = value[1].data[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
              || (c >= '0' && c <= '9') || c == '-' || c == '_'))
        {
            break;
        }
    }

    if (value[1].len == 0 || i != value[1].len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid header name \"%V\", give name and value "
                           "as two words: header Name value;", &value[1]);
        return NGX_CONF_ERROR;
    }

    for (n = 0; refused[n]; n++) {
        if (ngx_strlen(refused[n]) == value[1].len
            && ngx_strncasecmp(value[1].data, (u_char *) refused[n],
                               value[1].len) == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "header \"%V\" is made by the module and "
                               "cannot be set", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    if (ngx_agent_secret(cf, &value[2], 0, &secret) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    /* a value that does not stand in the configuration itself */

    if (secret.data != value[2].data
        && ngx_agent_model_secret(cf, model, &secret) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (model->headers == NULL) {
        model->headers = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
        if (model->headers == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    line = ngx_array_push(model->headers);
    if (line == NULL) {
        return NGX_CONF_ERROR;
    }

    line->data = ngx_pnalloc(cf->pool, value[1].len + secret.len + 3);
    if (line->data == NULL) {
        return NGX_CONF_ERROR;
    }

    /* libcurl sends a header without a value when it ends with ";" */

    if (secret.len) {
        p = ngx_sprintf(line->data, "%V: %V", &value[1], &secret);

    } else {
        p = ngx_sprintf(line->data, "%V;", &value[1]);
    }

    *p = '\0';
    line->len = p - line->data;

    return NGX_CONF_OK;
}


char *
ngx_agent_model_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    u_char         *p;
    json_t         *json;
    ngx_str_t      *value;
    ngx_uint_t      i;
    agent_buf_t     quoted;
    agent_param_t  *param;

    if (model->codec == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"provider\" must come before \"set\"");
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"set\" needs a member's name");
        return NGX_CONF_ERROR;
    }

    for (i = 0; model->codec->reserved[i]; i++) {
        if (ngx_strlen(model->codec->reserved[i]) == value[1].len
            && ngx_strncmp(model->codec->reserved[i], value[1].data,
                           value[1].len) == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" is made by the module and cannot be "
                               "set", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    if (model->set == NULL) {
        model->set = ngx_array_create(cf->pool, 4, sizeof(agent_param_t));
        if (model->set == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    param = model->set->elts;

    for (i = 0; i < model->set->nelts; i++) {
        if (param[i].key.len == value[1].len
            && ngx_strncmp(param[i].key.data, value[1].data, value[1].len)
               == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate \"set %V\"", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    param = ngx_array_push(model->set);
    if (param == NULL) {
        return NGX_CONF_ERROR;
    }

    param->key = ngx_agent_str(&value[1]);

    json = json_loadb((char *) value[2].data, value[2].len,
                      JSON_DECODE_ANY|JSON_REJECT_DUPLICATES, NULL);

    if (model->codec->url.len == 0
        && ngx_strcmp(value[1].data, NGX_AGENT_ECHO_RATE) == 0
        && !(json_is_number(json) && json_number_value(json) >= 0))
    {
        json_decref(json);
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"set " NGX_AGENT_ECHO_RATE "\" must be a number "
                           "from 0, not \"%V\"", &value[2]);
        return NGX_CONF_ERROR;
    }

    if (json) {
        json_decref(json);
        param->value = ngx_agent_str(&value[2]);

        return NGX_CONF_OK;
    }

    /* a bare word is a string; what was meant as JSON and is not is a fault */

    if (value[2].len == 0 || ngx_strchr("{[\"-0123456789", value[2].data[0])) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the value of \"set %V\" is not valid JSON, put "
                           "JSON in single quotes: set stop '[\"a\"]';",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    agent_buf_init(&quoted, &agent_alloc_libc);
    agent_json_quote(&quoted, ngx_agent_str(&value[2]));

    if (!agent_buf_ok(&quoted)) {
        agent_buf_free(&quoted);
        return NGX_CONF_ERROR;
    }

    p = ngx_pnalloc(cf->pool, quoted.len);

    if (p) {
        ngx_memcpy(p, quoted.data, quoted.len);
        param->value.data = (char *) p;
        param->value.len = quoted.len;
    }

    agent_buf_free(&quoted);

    return p ? NGX_CONF_OK : NGX_CONF_ERROR;
}


char *
ngx_agent_model_inflight(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_agent_model_t *model = conf;

    ngx_int_t    n;
    ngx_str_t   *value, s;
    ngx_uint_t   i;

    if (model->max_inflight != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n < 1) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"max_inflight\" must be a number from 1, not "
                           "\"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    model->max_inflight = n;
    model->queue = 0;
    model->queue_timeout = 30000;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "queue=", 6) == 0) {
            n = ngx_atoi(value[i].data + 6, value[i].len - 6);

            if (n == NGX_ERROR || n < 0) {
                goto invalid;
            }

            model->queue = n;

            continue;
        }

        if (ngx_strncmp(value[i].data, "timeout=", 8) == 0) {
            s.data = value[i].data + 8;
            s.len = value[i].len - 8;

            model->queue_timeout = ngx_parse_time(&s, 0);

            if (model->queue_timeout == (ngx_msec_t) NGX_ERROR
                || model->queue_timeout == 0)
            {
                goto invalid;
            }

            continue;
        }

        goto invalid;
    }

    return NGX_CONF_OK;

invalid:

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%V\", use \"queue=N\" or "
                       "\"timeout=time\"", &value[i]);

    return NGX_CONF_ERROR;
}


/* splits the url; makes endpoint, host, port */

static ngx_int_t
ngx_agent_model_endpoint(ngx_conf_t *cf, ngx_agent_model_t *model)
{
    u_char     *p, *end, *path, *query;
    size_t      add;
    ngx_str_t   shown;
    ngx_url_t   u;

    model->ssl = (ngx_strncasecmp(model->url.data, (u_char *) "https://", 8)
                  == 0);
    add = model->ssl ? 8 : 7;

    path = model->url.data + add;
    end = model->url.data + model->url.len;

    while (path < end && *path != '/' && *path != '?') {
        path++;
    }

    query = path;

    while (query < end && *query != '?') {
        query++;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url.data = model->url.data + add;
    u.url.len = path - u.url.data;
    u.default_port = model->ssl ? 443 : 80;
    u.no_resolve = 1;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        shown = ngx_agent_url_shown(&model->url);

        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->url_where,
                             "%s in url \"%V\"", u.err ? u.err : "error",
                             &shown);
        return NGX_ERROR;
    }

    model->port = u.port;
    model->literal = (u.naddrs > 0);

    if (u.host.len > 2 && u.host.data[0] == '[') {
        u.host.data++;
        u.host.len -= 2;
    }

    /* a copy: nginx's resolver lowers the letters of a name in place, and a
     * default url stands in memory that cannot be written */

    model->host.len = u.host.len;
    model->host.data = ngx_pstrdup(cf->pool, &u.host);
    if (model->host.data == NULL) {
        return NGX_ERROR;
    }

    ngx_strlow(model->host.data, model->host.data, model->host.len);

    if (model->host.len > 253) {
        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->url_where,
                             "the host in url is longer than 253 characters");
        return NGX_ERROR;
    }

    p = query;

    while (p > path && p[-1] == '/') {
        p--;
    }

    model->endpoint.data = ngx_pnalloc(cf->pool, model->url.len
                                       + model->codec->path.len + 1);
    if (model->endpoint.data == NULL) {
        return NGX_ERROR;
    }

    end = ngx_sprintf(model->endpoint.data, "%*s%*s%*s%Z",
                      (size_t) (p - model->url.data), model->url.data,
                      model->codec->path.len, model->codec->path.data,
                      (size_t) (end - query), query);

    model->endpoint.len = end - model->endpoint.data - 1;

    return NGX_OK;
}


/*
 * Names are looked up here only for locations without a resolver; with one,
 * each run asks it, and a name that is unknown today is no mistake.
 */

static ngx_int_t
ngx_agent_model_resolve(ngx_conf_t *cf, ngx_agent_model_t *model)
{
    ngx_str_t   *addr, shown;
    ngx_url_t    u;
    ngx_uint_t   i;

    if (model->literal || !model->static_names) {
        return NGX_OK;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = model->host;
    u.default_port = model->port;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        shown = ngx_agent_url_shown(&model->url);

        ngx_agent_conf_error(cf, NGX_LOG_EMERG, &model->url_where,
                             "%s in url \"%V\", and a location that uses "
                             "agent_model \"%V\" has no \"resolver\" to ask "
                             "later,", u.err ? u.err : "error", &shown,
                             &model->name);
        return NGX_ERROR;
    }

    model->addrs = ngx_array_create(cf->pool, u.naddrs, sizeof(ngx_str_t));
    if (model->addrs == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < u.naddrs; i++) {
        addr = ngx_array_push(model->addrs);
        if (addr == NULL) {
            return NGX_ERROR;
        }

        addr->data = ngx_pnalloc(cf->pool, NGX_SOCKADDR_STRLEN);
        if (addr->data == NULL) {
            return NGX_ERROR;
        }

        addr->len = ngx_sock_ntop(u.addrs[i].sockaddr, u.addrs[i].socklen,
                                  addr->data, NGX_SOCKADDR_STRLEN, 0);
    }

    return NGX_OK;
}


ngx_int_t
ngx_agent_model_finish(ngx_conf_t *cf, ngx_agent_model_t *model)
{
    if (model->transport != &ngx_agent_curl_transport) {
        return NGX_OK;
    }

    if (ngx_agent_model_endpoint(cf, model) != NGX_OK
        || ngx_agent_model_resolve(cf, model) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_agent_curl_headers(cf, model);
}
