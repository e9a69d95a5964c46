
/*
 * A feed: one run as it is read in this worker, with those who read it.  The
 * run may be here (then the feed is part of it), elsewhere, or over.
 */

#ifndef _NGX_AGENT_FEED_H_INCLUDED_
#define _NGX_AGENT_FEED_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"


typedef struct ngx_agent_feed_s  ngx_agent_feed_t;

/*
 * Bytes that are sent to any number of readers; freed when the last reference
 * is released.
 */

typedef struct {
    ngx_uint_t                   refs;
    size_t                      *counter;      /* of bytes like these; NULL */
    size_t                       len;
    u_char                       data[1];
} ngx_agent_bytes_t;


/* the frames of the events from "first" on to where "after" stands */

typedef struct {
    ngx_agent_bytes_t           *bytes;        /* NULL: none */
    uint64_t                     first;
    ngx_agent_reader_t           after;
    agent_buf_t                  marks;        /* what opens and closes */
    agent_finish_t               finish;       /* as the last event says */
    unsigned                     terminal:1;
} ngx_agent_frames_t;


/* what stands for the events before "seq", for all who need it there */

typedef struct {
    ngx_agent_bytes_t           *bytes;        /* NULL: none */
    uint64_t                     seq;
    agent_buf_t                  marks;
} ngx_agent_snapshot_t;


/* what readers side by side have in common; made when there is a second one, or
 * one needs a snapshot */

#define NGX_AGENT_FRAMES  4

typedef struct {
    ngx_agent_frames_t           frames[NGX_AGENT_FRAMES];
    ngx_uint_t                   next;         /* of the frames, to be used */

    ngx_agent_snapshot_t         snapshot;
    agent_fold_t                *fold;         /* of a run elsewhere */
    ngx_agent_reader_t           reader;       /* where the fold stands */
    ngx_msec_t                   folded;       /* when it was last needed */
} ngx_agent_common_t;


/* an event without an envelope: this, the id, the body */

typedef struct {
    uint32_t                     type;
    uint32_t                     id_len;
    uint32_t                     body_len;
} ngx_agent_checked_t;


struct ngx_agent_feed_s {
    ngx_queue_t                  bucket;       /* by key, the newest first */
    u_char                       key[NGX_AGENT_KEY_LEN];

    ngx_agent_store_t           *store;
    ngx_agent_log_t             *events;
    ngx_agent_run_t             *run;          /* NULL: not of this worker */

    ngx_queue_t                  subscribers;
    ngx_uint_t                   nsubscribers;
    ngx_event_t                  wake;         /* posted: tell them */
    size_t                       turn;         /* bytes told in this turn */
    unsigned                     news:1;       /* since the last wake */
    unsigned                     partial:1;    /* not all were told yet */

    ngx_agent_common_t          *common;       /* NULL: not yet */

    /* of a run that is not of this worker */

    ngx_queue_t                  queue;        /* all such */
    ngx_agent_t                 *agent;
    ngx_str_t                    id;
    ngx_str_t                    thread;
    uint64_t                     owner;        /* who runs it */
    ngx_uint_t                   slot;
    ngx_pool_t                  *pool;         /* its own; holds it */
};


ngx_int_t ngx_agent_feed_init_process(ngx_cycle_t *cycle);

/* of a run: makes its feed known, and forgets it */
void ngx_agent_feed_add(ngx_agent_feed_t *feed, ngx_log_t *log);
void ngx_agent_feed_remove(ngx_agent_feed_t *feed);

/* the newest feed of a key; NULL */
ngx_agent_feed_t *ngx_agent_feed_find(const u_char *key);

/* the same if it is of that run: its id may have had another, still read */
ngx_agent_feed_t *ngx_agent_feed_of(ngx_agent_store_t *store,
    const u_char *key, uint64_t generation);

/*
 * The feed of a run that "info" tells of, found or made; freed when its last
 * subscriber leaves, or by the next wake if none comes.  NULL: no memory, or
 * the store's logs are not read here.
 */
ngx_agent_feed_t *ngx_agent_feed_open(ngx_agent_t *agent, const u_char *key,
    ngx_str_t *id, ngx_agent_run_info_t *info);

/* of subscribers; a feed is never freed inside a call, only by its own event */
void ngx_agent_feed_join(ngx_agent_feed_t *feed, ngx_agent_subscriber_t *s);
void ngx_agent_feed_leave(ngx_agent_feed_t *feed, ngx_agent_subscriber_t *s);

/* has the subscribers told, at the end of this turn of the loop */
void ngx_agent_feed_wake(ngx_agent_feed_t *feed);

/* somebody rang for the runs of this index (ngx_agent_bell_index()), or all */
void ngx_agent_feeds_rung(ngx_uint_t run, ngx_uint_t all);


/* ngx_agent_frames.c: bytes on their way */

/* one reference is the caller's; "counter" has their number added as long as
 * they live.  NULL: no memory */
ngx_agent_bytes_t *ngx_agent_bytes_create(const void *p, size_t n,
    size_t *counter);
void ngx_agent_bytes_release(ngx_agent_bytes_t *bytes);

/* a buffer of these bytes, with a reference of its own; when it was sent,
 * ngx_agent_bytes_done() gives that back */
ngx_chain_t *ngx_agent_bytes_chain(ngx_pool_t *pool, ngx_chain_t **free,
    ngx_agent_bytes_t *bytes);
void ngx_agent_bytes_done(ngx_buf_t *b);

/*
 * The frames that follow reader->seq: NGX_OK with a reference to *bytes, the
 * reader has moved and "open" knows what they open; with *terminal, *finish is
 * set; NGX_DONE: nothing new; else as of read().
 */
ngx_int_t ngx_agent_frames_read(ngx_agent_feed_t *feed,
    ngx_agent_reader_t *reader, agent_open_t *open,
    ngx_agent_bytes_t **bytes, ngx_uint_t *terminal, agent_finish_t *finish);

/* feed->common, made if need be; NULL: no memory */
ngx_agent_common_t *ngx_agent_common(ngx_agent_feed_t *feed);
void ngx_agent_common_free(ngx_agent_feed_t *feed);


#endif /* _NGX_AGENT_FEED_H_INCLUDED_ */
