
/*
 * Shared by the files that parse agent_model { } and agent { }; nobody else
 * includes it.
 */

#ifndef _NGX_AGENT_CONF_H_INCLUDED_
#define _NGX_AGENT_CONF_H_INCLUDED_


#include "ngx_http_agent.h"


#define NGX_AGENT_BLOCK_MODULE  0x544E4741   /* "AGNT" */

#define NGX_AGENT_MODEL_CONF    0x02000000
#define NGX_AGENT_AGENT_CONF    0x04000000


/* cf->ctx within a block; lives as long as the parser is in it */

typedef struct {
    void     **conf;
    unsigned   memory:1;                     /* the directive was there */
} ngx_agent_block_ctx_t;


/* parses the block at hand into "conf"; "cmd_type" is one of the two above */
char *ngx_agent_block_parse(ngx_conf_t *cf, ngx_uint_t cmd_type, void *conf);

/* logs "... in file:line" of a place that was passed already */
void ngx_agent_conf_error(ngx_conf_t *cf, ngx_uint_t level,
    ngx_agent_where_t *where, const char *fmt, ...);

/* NGX_ERROR, and says why, if "name" cannot name a model or an agent */
ngx_int_t ngx_agent_conf_name(ngx_conf_t *cf, ngx_str_t *name);


/* directives of both blocks; cmd->offset is an ngx_str_t, an ngx_msec_t */
char *ngx_agent_conf_text(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_conf_time(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* ngx_agent_conf_model.c: agent_model { } */
char *ngx_agent_model_provider(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_url(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_header(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_inflight(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_model_pem(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* when all of the file is read: the url, the addresses, the headers */
ngx_int_t ngx_agent_model_finish(ngx_conf_t *cf, ngx_agent_model_t *model);

/* ngx_agent_conf_agent.c: agent { } */
char *ngx_agent_agent_model(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_agent_replay(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_agent_system(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_agent_memory(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_agent_roles(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_agent_disconnect(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_agent_agent_override(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* when all of the file is read: finds the agent's model and zone */
ngx_int_t ngx_agent_agent_finish(ngx_conf_t *cf,
    ngx_http_agent_main_conf_t *amcf, ngx_agent_t *agent);


#endif /* _NGX_AGENT_CONF_H_INCLUDED_ */
