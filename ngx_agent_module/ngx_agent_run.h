
/*
 * The life of a run: not tied to any request.  It owns a model call, feeds the
 * answer through the encoder into its log, and wakes the subscribers.
 */

#ifndef _NGX_AGENT_RUN_H_INCLUDED_
#define _NGX_AGENT_RUN_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_feed.h"
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
    ngx_queue_t                  waiting;      /* model->waiting */
    ngx_pool_t                  *pool;         /* the run's; holds the run */
    ngx_log_t                   *log;          /* with run and thread id */

    ngx_agent_feed_t             feed;         /* key, log, readers */
    ngx_str_t                    id;
    ngx_str_t                    thread;
    ngx_str_t                    log_ids;      /* made ready for the log */

    ngx_agent_t                 *agent;
    ngx_agent_model_t           *model;

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
    agent_buf_t                  last;         /* the terminal event's JSON */
    agent_event_type_t           last_type;
    u_char                       seed[NGX_AGENT_SEED_CHARS];

    ngx_uint_t                   nreaders;     /* that ever joined */
    ngx_msec_t                   started;      /* ngx_current_msec */
    ngx_msec_t                   first_token;  /* ms after started */
    ngx_msec_t                   queued;       /* since when waiting */
    ngx_msec_t                   left;         /* the last reader left */
    ngx_msec_t                   checked;      /* the last checkpoint */
    size_t                       check_len;    /* its size; 0: none yet */
    uint64_t                     counted;      /* events, for agent_status */
    unsigned                     has_first:1;
    unsigned                     has_left:1;
    unsigned                     inflight:1;
    unsigned                     in_queue:1;   /* of model->waiting */
    unsigned                     check_due:1;  /* another checkpoint */
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

void ngx_agent_run_cancel(ngx_agent_run_t *run);
void ngx_agent_run_fail(ngx_agent_run_t *run, const agent_fault_t *fault);

/* of its feed: the first reader came, the last one left, the log is to be made
 * visible, somebody rang, and it is over and without readers */
void ngx_agent_run_read(ngx_agent_run_t *run);
void ngx_agent_run_unread(ngx_agent_run_t *run);
void ngx_agent_run_publish(ngx_agent_run_t *run);
void ngx_agent_run_rung(ngx_agent_run_t *run);
void ngx_agent_run_free(ngx_agent_run_t *run);

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

/* the same from what a store has kept, added to "out" */
ngx_int_t ngx_agent_kept_input(agent_str_t kept, agent_buf_t *out);


/* ngx_agent_subscriber.c: a request that reads a run */

/* where a subscriber begins, and what its head says of it */

typedef struct {
    uint64_t                     seq;          /* the first event wanted */
    const char                  *resume;       /* X-Agent-Resume; NULL: none */
    unsigned                     json:1;
    unsigned                     attached:1;   /* X-Agent-Attached */
    unsigned                     prelude:1;    /* a snapshot first */
    unsigned                     at_once:1;    /* the head waits for nothing */
} ngx_agent_start_t;


struct ngx_agent_subscriber_s {
    ngx_queue_t                  queue;        /* feed->subscribers */
    ngx_http_request_t          *request;
    ngx_agent_feed_t            *feed;         /* NULL: detached */
    ngx_http_agent_loc_conf_t   *lcf;
    ngx_http_agent_ctx_t        *ctx;          /* r->ctx may be forgotten */

    ngx_agent_start_t            start;
    ngx_agent_reader_t           reader;
    agent_open_t                 open;         /* what its client has open */
    ngx_chain_t                 *free;
    ngx_chain_t                 *busy;
    ngx_event_t                  timer;        /* head, then heartbeat */
    ngx_event_t                  more;         /* posted, or a timer: go on */
    ngx_msec_t                   sent;         /* when bytes last left */
    ngx_msec_t                   waits;        /* since then for a prelude */

    agent_fold_t                *fold;         /* of a run elsewhere */
    agent_buf_t                  prelude;      /* frames to go first */
    size_t                       prelude_sent;
    ngx_agent_bytes_t           *snapshot;     /* and then; NULL: none */
    size_t                       snapshot_sent;
    agent_fault_t               *fault;        /* of a run elsewhere */
    uint64_t                     unheard;      /* event nobody rang for, + 1 */
    agent_finish_t               finish;       /* why it ended, as it said */

    unsigned                     head:1;       /* has been sent */
    unsigned                     head_kept:1;  /* and nothing after it */
    unsigned                     waited:1;     /* 1 s has passed */
    unsigned                     terminal:1;   /* the last event was read */
    unsigned                     dirty:1;      /* to be told of news */
    unsigned                     reading:1;    /* reader is subscribed */
    unsigned                     begun:1;      /* RUN_STARTED was sent */
    unsigned                     lost:1;       /* a prelude is to come */
    unsigned                     last_word:1;  /* prelude ends the stream */
    unsigned                     waiting:1;    /* for a prelude */
};

/* attaches r to the feed; takes over the caller's reference of the request */
void ngx_agent_subscriber_attach(ngx_http_request_t *r, ngx_agent_feed_t *feed,
    ngx_agent_start_t *start);

/* writes what can be written; may finalize the request and detach */
void ngx_agent_subscriber_pump(ngx_agent_subscriber_t *s);


/* ngx_agent_prelude.c: what a reader that lost its place is told first */

/*
 * Makes s->prelude and s->snapshot, which stand for the events before
 * s->reader.seq.  NGX_OK; NGX_AGAIN: not all is read yet, call it in the next
 * turn; NGX_BUSY: what it is made of will be there soon; NGX_DECLINED: a last
 * word was put there instead; NGX_ERROR.
 */
ngx_int_t ngx_agent_prelude(ngx_agent_subscriber_t *s);

/* s->fold gets what is new of a run elsewhere, as far as a turn allows: NGX_OK:
 * all, NGX_AGAIN, NGX_DECLINED: events are missing, NGX_ERROR */
ngx_int_t ngx_agent_prelude_answer(ngx_agent_subscriber_t *s);

/* a terminal event of this reader only, it is not in the log: NGX_DECLINED, or
 * NGX_ERROR when there is no memory for it */
ngx_int_t ngx_agent_prelude_last_word(ngx_agent_subscriber_t *s,
    agent_code_t code, const char *message);

void ngx_agent_prelude_drop(ngx_agent_subscriber_t *s);
void ngx_agent_prelude_forget(ngx_agent_feed_t *feed);

/* what readers elsewhere will need when the run's oldest events go; at once, or
 * when it is due */
void ngx_agent_prelude_checkpoint(ngx_agent_run_t *run, ngx_uint_t now);


#endif /* _NGX_AGENT_RUN_H_INCLUDED_ */
