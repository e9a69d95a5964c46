
/*
 * libcurl's multi interface on nginx's event loop; only the curl transport
 * includes this.
 */

#ifndef _NGX_AGENT_CURL_H_INCLUDED_
#define _NGX_AGENT_CURL_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_transfer.h"

#include <curl/curl.h>


/*
 * A multi looks for a free connection to the same host one after the other,
 * so each takes a bounded number of transfers and there are as many multis as
 * are needed.
 */

#define NGX_AGENT_MULTI_MAX    512
#define NGX_AGENT_MULTI_CACHE  256


typedef struct {
    ngx_queue_t          queue;          /* of all multis */
    CURLM               *handle;
    ngx_event_t          timer;
    ngx_event_t          kick;           /* posted: the timer is due now */
    ngx_uint_t           active;         /* transfers added */
    unsigned             driving:1;
} ngx_agent_multi_t;


/* called for each finished transfer; it removes and frees the handle */
typedef void (*ngx_agent_multi_done_pt)(ngx_agent_multi_t *m, CURL *easy,
    CURLcode rc);

ngx_int_t ngx_agent_multi_init(ngx_agent_multi_done_pt done);
void ngx_agent_multi_cleanup(void);

/* a multi with room, made when there is none; NULL: no memory */
ngx_agent_multi_t *ngx_agent_multi_get(void);

/* lets curl do what is due; never called from inside one of its callbacks */
void ngx_agent_multi_drive(ngx_agent_multi_t *m, curl_socket_t fd, int mask);

/* the transfer whose socket found no free nginx connection; set by the socket
 * callback, which must not fail itself: that would end every transfer */
typedef void (*ngx_agent_multi_full_pt)(CURL *easy);
extern ngx_agent_multi_full_pt  ngx_agent_multi_full;


#endif /* _NGX_AGENT_CURL_H_INCLUDED_ */
