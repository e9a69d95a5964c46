
/*
 * ngx_agent_module: what its files share.
 *
 * Who owns what:
 *   configuration structs   the cycle's pool
 *   ngx_agent_run_t         the worker's list of runs (ngx_agent_run.c)
 *   ngx_agent_subscriber_t  its request's pool; attached: in the run's list
 *   ngx_agent_transfer_t    the transport that made it, until "done" or cancel
 *   ngx_agent_feed_t        its run, or the worker's list (ngx_agent_feed.c)
 *   records and logs        their zone
 */

#ifndef _NGX_HTTP_AGENT_H_INCLUDED_
#define _NGX_HTTP_AGENT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include "ngx_agent_compat.h"

#include "agent_code.h"
#include "agent_codec.h"
#include "agent_encoder.h"
#include "agent_event.h"
#include "agent_fold.h"
#include "agent_json.h"
#include "agent_message.h"
#include "agent_replay.h"


typedef struct ngx_agent_model_s       ngx_agent_model_t;
typedef struct ngx_agent_s             ngx_agent_t;
typedef struct ngx_agent_run_s         ngx_agent_run_t;
typedef struct ngx_agent_subscriber_s  ngx_agent_subscriber_t;
typedef struct ngx_agent_transport_s   ngx_agent_transport_t;
typedef struct ngx_agent_store_s       ngx_agent_store_t;
typedef struct ngx_agent_run_log_s     ngx_agent_run_log_t;


/* where a directive stands, for messages that come after parsing */

typedef struct {
    ngx_str_t                    file;
    ngx_uint_t                   line;
} ngx_agent_where_t;


/* agent_model name { } */

struct ngx_agent_model_s {
    ngx_str_t                    name;
    ngx_agent_where_t            where;

    const agent_codec_t         *codec;
    const ngx_agent_transport_t *transport;

    ngx_str_t                    url;          /* as configured */
    ngx_agent_where_t            url_where;
    ngx_str_t                    endpoint;     /* NUL-terminated */
    ngx_str_t                    host;         /* of the url, no brackets */
    in_port_t                    port;
    ngx_array_t                 *addrs;        /* of ngx_str_t, "1.2.3.4" */
    unsigned                     ssl:1;
    unsigned                     literal:1;    /* host is an address */
    unsigned                     static_names:1;
                                 /* some location has no resolver */

    ngx_str_t                    model;
    ngx_str_t                    key;          /* the secret itself */
    ngx_str_t                    secrets;      /* all, a line each: masked */
    ngx_array_t                 *headers;      /* of ngx_str_t, "Name: value" */
    void                        *header_list;  /* struct curl_slist */
    ngx_array_t                 *set;          /* of agent_param_t */

    ngx_msec_t                   connect_timeout;
    ngx_msec_t                   first_byte_timeout;
    ngx_msec_t                   idle_timeout;

    ngx_uint_t                   max_inflight; /* 0: no limit */
    ngx_uint_t                   queue;
    ngx_msec_t                   queue_timeout;

    ngx_flag_t                   ssl_verify;
    ngx_str_t                    ssl_trusted_certificate;
    ngx_str_t                    ssl_certificate;
    ngx_str_t                    ssl_certificate_key;
    ngx_str_t                    ca;           /* content of the file */

    /* of this worker process */

    ngx_uint_t                   inflight;
    ngx_uint_t                   nwaiting;
    ngx_queue_t                  waiting;      /* of ngx_agent_run_t */
};


/* agent name { } */

typedef enum {
    NGX_AGENT_DISCONNECT_CONTINUE = 0,
    NGX_AGENT_DISCONNECT_CANCEL
} ngx_agent_disconnect_e;


struct ngx_agent_s {
    ngx_str_t                    name;
    ngx_agent_where_t            where;

    ngx_str_t                    model_name;
    ngx_agent_where_t            model_where;
    ngx_agent_model_t           *model;

    ngx_str_t                    replay_name;      /* "replay_zone" */
    ngx_agent_where_t            replay_where;
    ngx_agent_store_t           *store;            /* of its runs */

    ngx_str_t                    system;
    ngx_flag_t                   client_tools;
    ngx_uint_t                   roles;            /* AGENT_ROLE_BIT()s */
    ngx_msec_t                   max_run_time;
    ngx_uint_t                   on_disconnect;
    ngx_msec_t                   disconnect_after;
    ngx_array_t                 *allow_override;   /* of ngx_str_t */
};


typedef struct {
    ngx_array_t                  models;           /* of ngx_agent_model_t * */
    ngx_array_t                  agents;           /* of ngx_agent_t * */
    ngx_array_t                  env;              /* of ngx_agent_env_t */
    ngx_array_t                  replay_zones;     /* ngx_agent_zone_t * */
    struct ngx_agent_zone_s     *registry;
    ngx_uint_t                   used;             /* an agent_pass exists */
} ngx_http_agent_main_conf_t;


typedef struct {
    ngx_str_t                    name;
    ngx_agent_where_t            where;
} ngx_agent_env_t;


typedef struct {
    ngx_agent_t                 *agent;
    ngx_str_t                    agent_name;
    ngx_agent_where_t            where;
    ngx_uint_t                   only_runs;        /* agent_resume */
    ngx_uint_t                   stat;             /* format of agent_status */

    ngx_http_complex_value_t    *owner;            /* NULL: off */
    ngx_str_t                    owner_text;
    ngx_agent_where_t            owner_where;

    ngx_http_complex_value_t    *thread;
    ngx_msec_t                   heartbeat;        /* 0: off */
    ngx_array_t                 *cors;             /* of ngx_str_t, or NULL */
    ngx_flag_t                   intercept_errors;
    ngx_agent_run_log_t         *run_log;          /* NULL: off */
    ngx_uint_t                   whole;            /* P is the whole path */
} ngx_http_agent_loc_conf_t;


/*
 * The request's context; also what the variables show, kept when the run is
 * over or goes on without this request.
 */

#define NGX_AGENT_KEY_LEN  16

typedef struct {
    ngx_agent_subscriber_t      *subscriber;       /* while attached */
    u_char                       key[NGX_AGENT_KEY_LEN];

    agent_input_t                input;
    ngx_str_t                    body;
    ngx_str_t                    owner;
    unsigned                     owner_off:1;
    unsigned                     thread_named:1;   /* by the request */
    unsigned                     json:1;           /* a JSON answer is wanted */

    ngx_str_t                    run_id;
    ngx_str_t                    thread_id;
    const char                  *status;           /* NULL: no run */
    const char                  *finish_reason;
    int64_t                      input_tokens;     /* -1: not given */
    int64_t                      output_tokens;
    ngx_msec_int_t               first_token;      /* -1: none came */
    uint64_t                     events;
    const char                  *resume;
    ngx_agent_model_t           *model;

    void                        *lcf;              /* of its location */
} ngx_http_agent_ctx_t;


/*
 * Blocks that are freed are kept for the next use; not where nginx's pools are
 * made of separate allocations, so that a sanitizer sees them come and go.
 */

#if (NGX_DEBUG_PALLOC)
#define NGX_AGENT_KEEP_FREE  0
#else
#define NGX_AGENT_KEEP_FREE  1
#endif


#define ngx_agent_str(s)                                                      \
    ((agent_str_t) { (const char *) (s)->data, (s)->len })


/* ngx_http_agent_module.c */

extern ngx_module_t  ngx_http_agent_module;
extern ngx_module_t  ngx_agent_block_module;

/* makes the context of a request that has come to a location of ours */
ngx_http_agent_ctx_t *ngx_http_agent_get_ctx(ngx_http_request_t *r);

/* finds it, also when error_page has sent the request elsewhere; NULL */
ngx_http_agent_ctx_t *ngx_http_agent_find_ctx(ngx_http_request_t *r);

/* ngx_agent_status.c: routes about runs; each returns like a content handler */

ngx_int_t ngx_http_agent_status(ngx_http_request_t *r, ngx_str_t *id);
ngx_int_t ngx_http_agent_cancel(ngx_http_request_t *r, ngx_str_t *id);
ngx_int_t ngx_http_agent_capabilities(ngx_http_request_t *r);

/*
 * Sets ctx->run_id and ctx->key for a run of this request's owner;
 * NGX_DECLINED: no id of ours; NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_agent_run_key(ngx_http_request_t *r, ngx_str_t *id);

/*
 * Before the store is asked about a run: its key, and a reference of the
 * request, which the store's callback gives back when it finalizes.  0 when the
 * store is not to be asked: the handler returns *rc then.
 */
ngx_uint_t ngx_http_agent_ask(ngx_http_request_t *r, ngx_str_t *id,
    ngx_int_t *rc);

/*
 * In the store's callback: its *rc and info; 0 when there is no run to speak
 * of, and the request is finalized with *rc, the JSON error that says why.
 */
ngx_uint_t ngx_http_agent_kept(ngx_http_request_t *r,
    agent_run_info_t *info, ngx_int_t *rc);

/* ngx_agent_resume.c: the same */

ngx_int_t ngx_http_agent_stream(ngx_http_request_t *r, ngx_str_t *id);

/* ngx_agent_rows.c: the same */

ngx_int_t ngx_http_agent_rows(ngx_http_request_t *r, ngx_str_t *id);

/* ngx_agent_conf*.c: the agent_model and agent blocks */

char *ngx_agent_model_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_block(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
char *ngx_agent_replay_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
ngx_agent_t *ngx_agent_find(ngx_http_agent_main_conf_t *amcf,
    ngx_str_t *name);

void ngx_agent_where(ngx_conf_t *cf, ngx_agent_where_t *where);

/* resolves what can only be checked when all blocks are known */
ngx_int_t ngx_agent_conf_finish(ngx_conf_t *cf,
    ngx_http_agent_main_conf_t *amcf);

/* warns of "env:" names that a binary upgrade would lose */
void ngx_agent_conf_check_env(ngx_cycle_t *cycle,
    ngx_http_agent_main_conf_t *amcf);

/* ngx_agent_secret.c: "file:path" and "env:NAME" values */

#define NGX_AGENT_SECRET_ONLY   1    /* a plain value is refused */

ngx_int_t ngx_agent_secret(ngx_conf_t *cf, ngx_str_t *value,
    ngx_uint_t flags, ngx_str_t *secret);
ngx_int_t ngx_agent_read_file(ngx_conf_t *cf, ngx_str_t *path, size_t max,
    ngx_str_t *content, ngx_file_info_t *fi);

/* ngx_agent_endpoint.c */

ngx_int_t ngx_http_agent_handler(ngx_http_request_t *r);

/* ngx_agent_stat.c: agent_status */

char *ngx_http_agent_stat(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* ngx_agent_response.c */

/* answers with the fault as JSON, or with its bare status where
 * agent_intercept_errors is on; returns what the handler is to return, or
 * what ngx_http_finalize_request() is to be given */
ngx_int_t ngx_http_agent_error(ngx_http_request_t *r,
    const agent_fault_t *fault);
ngx_int_t ngx_http_agent_code(ngx_http_request_t *r, agent_code_t code,
    const char *message);

/* answers with a JSON text */
ngx_int_t ngx_http_agent_json(ngx_http_request_t *r, ngx_uint_t status,
    agent_str_t body);

ngx_int_t ngx_http_agent_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);

/* adds X-Agent-Run-Id and X-Agent-Thread-Id where the ids may stand there */
ngx_int_t ngx_http_agent_id_headers(ngx_http_request_t *r);

/* ngx_agent_cors.c */

ngx_int_t ngx_http_agent_cors_init(ngx_conf_t *cf);
char *ngx_http_agent_cors(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* NGX_OK, or NGX_DECLINED when a browser sent this across sites */
ngx_int_t ngx_http_agent_check_origin(ngx_http_request_t *r);

/* ngx_agent_run_log.c */

char *ngx_http_agent_run_log(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);

/* ngx_agent_variables.c */

ngx_int_t ngx_http_agent_add_variables(ngx_conf_t *cf);

/* ngx_agent_util.c */

/* n random bytes as base64url; "dst" takes the characters, no NUL */
#define NGX_AGENT_RUN_SEED    16
#define NGX_AGENT_SEED_CHARS  22

ngx_int_t ngx_agent_random(u_char *dst, size_t n);
ngx_int_t ngx_agent_random_id(ngx_pool_t *pool, const char *prefix,
    ngx_str_t *id);

/* milliseconds since the epoch, of the cached time */
uint64_t ngx_agent_now(void);

/* prints such a time as ISO 8601 with milliseconds, UTC; returns its end */
#define NGX_AGENT_TIME_LEN    64

u_char *ngx_agent_time(u_char *dst, uint64_t ms);

/* the first 16 bytes of SHA-256 over the length-prefixed parts */
ngx_int_t ngx_agent_key(ngx_pool_t *pool, u_char *key, const char *kind,
    ngx_str_t *agent, ngx_str_t *owner, ngx_str_t *id);


#endif /* _NGX_HTTP_AGENT_H_INCLUDED_ */
