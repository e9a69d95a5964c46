
/*
 * The narrow interface of model calls: start, head, body, done, cancel.
 * Nothing of libcurl shows above it.
 */

#ifndef _NGX_AGENT_TRANSFER_H_INCLUDED_
#define _NGX_AGENT_TRANSFER_H_INCLUDED_


#include "ngx_http_agent.h"


typedef struct ngx_agent_transfer_s  ngx_agent_transfer_t;


typedef enum {
    NGX_AGENT_TRANSFER_OK = 0,       /* the answer is complete */
    NGX_AGENT_TRANSFER_CUT,          /* closed or reset before its end */
    NGX_AGENT_TRANSFER_UNREACHABLE,  /* no address, no connection */
    NGX_AGENT_TRANSFER_TLS,
    NGX_AGENT_TRANSFER_TIMEOUT,      /* connect, first byte, idle */
    NGX_AGENT_TRANSFER_PROTOCOL,     /* not HTTP, or beyond its limits */
    NGX_AGENT_TRANSFER_BUSY,         /* no connection slot left */
    NGX_AGENT_TRANSFER_FAILED        /* our own fault: memory, library */
} ngx_agent_transfer_e;


typedef struct {
    /* once, before the first body; never for 1xx */
    void      (*head)(void *data, ngx_uint_t status, ngx_str_t *type,
                      ngx_uint_t retry_after);

    /* NGX_OK: go on; NGX_ERROR: the caller has cancelled or released it */
    ngx_int_t (*body)(void *data, u_char *p, size_t n);

    /* once, the last call; "reason" is for clients, "detail" (may be NULL) for
     * the log: it can name hosts and addresses; neither holds a secret */
    void      (*done)(void *data, ngx_agent_transfer_e rc,
                      const char *reason, const char *detail);
} ngx_agent_transfer_handlers_t;


typedef struct {
    ngx_agent_model_t                   *model;
    agent_buf_t                          body;   /* taken over */
    ngx_resolver_t                      *resolver;
    ngx_msec_t                           resolver_timeout;
    const ngx_agent_transfer_handlers_t *handlers;
    void                                *data;
} ngx_agent_transfer_request_t;


struct ngx_agent_transport_s {
    ngx_int_t  (*init_process)(ngx_cycle_t *cycle);
    void       (*exit_process)(ngx_cycle_t *cycle);

    /* NULL: no memory; req->body is then still the caller's.  No handler is
     * called before start() has returned. */
    ngx_agent_transfer_t *(*start)(ngx_agent_transfer_request_t *req);

    /* no handler is called any more; the connection is closed within this
     * turn of the loop */
    void       (*cancel)(ngx_agent_transfer_t *t);

    /* no handler is called any more; the rest of the answer may be read for a
     * moment so that its connection can be used again */
    void       (*release)(ngx_agent_transfer_t *t);
};


extern const ngx_agent_transport_t  ngx_agent_curl_transport;
extern const ngx_agent_transport_t  ngx_agent_echo_transport;

/* ngx_agent_curl.c: the header list of a model, made at configuration time */
ngx_int_t ngx_agent_curl_headers(ngx_conf_t *cf, ngx_agent_model_t *model);

/* 1 when a further upstream connection would leave too few for clients */
ngx_uint_t ngx_agent_slots_low(void);


#endif /* _NGX_AGENT_TRANSFER_H_INCLUDED_ */
