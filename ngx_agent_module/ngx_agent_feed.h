
/*
 * A feed: one run as it is read in this worker, with those who read it.  The
 * run may be here (then the feed is part of it), elsewhere, or over.
 */

#ifndef _NGX_AGENT_FEED_H_INCLUDED_
#define _NGX_AGENT_FEED_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"


typedef struct ngx_agent_feed_s  ngx_agent_feed_t;

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


#endif /* _NGX_AGENT_FEED_H_INCLUDED_ */
