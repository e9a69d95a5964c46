
/*
 * The life of a run: not tied to any request.  It owns a model call, feeds the
 * answer through the encoder into its log, and wakes the subscribers.
 */

#ifndef _NGX_AGENT_RUN_H_INCLUDED_
#define _NGX_AGENT_RUN_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_transfer.h"


/* characters of 8 random bytes: they make the ids of a run's messages */
#define NGX_AGENT_RUN_SEED_CHARS  11


/*
 *   CREATED -> WAITING -> CALLING -> OVER
 *           \------------^------------^
 *
 * CREATED: claimed; WAITING: for one of the model's max_inflight places;
 * CALLING: a transfer is under way; OVER: the terminal event is in the log.
 */

typedef enum {
    NGX_AGENT_CREATED = 0,
    NGX_AGENT_WAITING,
    NGX_AGENT_CALLING,
    NGX_AGENT_OVER
} ngx_agent_run_state_e;


struct ngx_agent_run_s {
    ngx_queue_t                  queue;        /* the worker's runs */
    ngx_queue_t                  bucket;       /* the same, by key */
    ngx_queue_t                  waiting;      /* model->waiting */
    ngx_pool_t                  *pool;         /* the run's; holds the run */
    ngx_log_t                   *log;          /* with run and thread id */

    u_char                       key[NGX_AGENT_KEY_LEN];
    ngx_str_t                    id;
    ngx_str_t                    thread;
    ngx_str_t                    log_ids;      /* made ready for the log */

    ngx_agent_t                 *agent;
    ngx_agent_model_t           *model;
    ngx_agent_store_t           *store;
    ngx_agent_log_t             *events;

    ngx_uint_t                   state;
    ngx_uint_t                   status;       /* ngx_agent_status_e */
    agent_code_t                 code;         /* of an error */
    ngx_agent_run_log_t         *run_log;      /* NULL: off */

    agent_encoder_t             *encoder;
    agent_answer_t              *answer;
    agent_buf_t                  body;         /* until the call starts */
    ngx_agent_transfer_t        *transfer;
    ngx_resolver_t              *resolver;
    ngx_msec_t                   resolver_timeout;

    ngx_str_t                    sent;         /* the client's messages */
    agent_buf_t                  input;        /* the same, for preludes */
    u_char                       seed[NGX_AGENT_SEED_CHARS];

    ngx_queue_t                  subscribers;
    ngx_uint_t                   nsubscribers;
    ngx_uint_t                   nreaders;     /* that ever joined */
    ngx_event_t                  wake;         /* posted: tell them */
    size_t                       turn;         /* bytes told in this turn */

    ngx_msec_t                   started;      /* ngx_current_msec */
    ngx_msec_t                   first_token;  /* ms after started */
    ngx_msec_t                   queued;       /* since when waiting */
    ngx_msec_t                   left;         /* the last reader left */
    unsigned                     has_first:1;
    unsigned                     has_left:1;
    unsigned                     inflight:1;
    unsigned                     in_queue:1;   /* of model->waiting */
    unsigned                     news:1;       /* since the last wake */
    unsigned                     partial:1;    /* not all were told yet */
};


ngx_int_t ngx_agent_run_init_process(ngx_cycle_t *cycle);
void ngx_agent_run_exit_process(ngx_cycle_t *cycle);

/*
 * Makes a run of a parsed request that has been claimed; "log" becomes the
 * run's.  NULL with *fault set; the caller then gives the claim back.
 */
ngx_agent_run_t *ngx_agent_run_create(ngx_http_request_t *r,
    ngx_http_agent_ctx_t *ctx, ngx_http_agent_loc_conf_t *lcf,
    ngx_agent_log_t *log, agent_fault_t *fault);

/* RUN_STARTED, then the model call or its queue; call it when the first
 * subscriber is attached */
void ngx_agent_run_start(ngx_agent_run_t *run);

/* a live run, or one that still has readers, of this worker; NULL */
ngx_agent_run_t *ngx_agent_run_find(const u_char *key);

void ngx_agent_run_cancel(ngx_agent_run_t *run);
void ngx_agent_run_fail(ngx_agent_run_t *run, const agent_fault_t *fault);

/* of subscribers; a run is never freed inside a call, only by its own event */
void ngx_agent_run_join(ngx_agent_run_t *run, ngx_agent_subscriber_t *s);
void ngx_agent_run_leave(ngx_agent_run_t *run, ngx_agent_subscriber_t *s);

/* has the subscribers told, at the end of this turn of the loop */
void ngx_agent_run_wake(ngx_agent_run_t *run);

/* why a run that is over ended: a finish reason, "cancelled", an error's code;
 * empty when the model did not say */
const char *ngx_agent_run_reason(ngx_agent_run_t *run);

/* the worker is on its way out and takes no new run */
ngx_uint_t ngx_agent_draining(void);


/* ngx_agent_run_log.c: the line of a run that is over */

void ngx_agent_run_log_write(ngx_agent_run_t *run);


/* ngx_agent_run_input.c: what a run takes from the client's request */

/*
 * Fills run->body, which the run owns; "input" borrows from r.  NGX_DECLINED:
 * the request cannot be sent, *fault says why; NGX_ERROR: no memory.
 */
ngx_int_t ngx_agent_run_request(ngx_agent_run_t *run, ngx_http_request_t *r,
    agent_input_t *input, agent_fault_t *fault);

/* copies the messages of a request into run->sent, if they are small enough */
void ngx_agent_run_keep_input(ngx_agent_run_t *run, agent_input_t *input);

/*
 * The messages as a JSON array without its brackets, for a prelude; they are
 * run->input's.  NGX_DECLINED: they were not kept; NGX_ERROR: no memory.
 */
ngx_int_t ngx_agent_run_input(ngx_agent_run_t *run, agent_str_t *messages);


/* ngx_agent_subscriber.c: a request that reads a run */

struct ngx_agent_subscriber_s {
    ngx_queue_t                  queue;        /* run->subscribers */
    ngx_http_request_t          *request;
    ngx_agent_run_t             *run;          /* NULL: detached */
    ngx_http_agent_loc_conf_t   *lcf;
    ngx_http_agent_ctx_t        *ctx;          /* r->ctx may be forgotten */

    ngx_agent_reader_t           reader;
    agent_open_t                 open;         /* what its client has open */
    ngx_chain_t                 *free;
    ngx_chain_t                 *busy;
    ngx_event_t                  timer;        /* head, then heartbeat */
    ngx_event_t                  more;         /* posted: go on writing */
    ngx_msec_t                   sent;         /* when bytes last left */

    agent_buf_t                  prelude;      /* frames to go first */
    size_t                       prelude_sent;

    unsigned                     json:1;
    unsigned                     attached:1;   /* X-Agent-Attached */
    unsigned                     head:1;       /* has been sent */
    unsigned                     waited:1;     /* 1 s has passed */
    unsigned                     terminal:1;   /* the last event was read */
    unsigned                     dirty:1;      /* to be told of news */
    unsigned                     reading:1;    /* reader is subscribed */
    unsigned                     begun:1;      /* RUN_STARTED was sent */
    unsigned                     last_word:1;  /* prelude ends the stream */
};

/* attaches r to the run; takes over the caller's reference of the request */
void ngx_agent_subscriber_attach(ngx_http_request_t *r, ngx_agent_run_t *run,
    ngx_uint_t json, ngx_uint_t attached);

/* writes what can be written; may finalize the request and detach */
void ngx_agent_subscriber_pump(ngx_agent_subscriber_t *s);


#endif /* _NGX_AGENT_RUN_H_INCLUDED_ */
