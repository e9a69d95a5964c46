
#include "ngx_agent_feed.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_FEED_TICK     500
#define NGX_AGENT_FEED_FOLD     2000           /* ms that a fold is kept */
#define NGX_AGENT_WAKE_READERS  64
#define NGX_AGENT_WAKE_BYTES    (512 * 1024)


static void ngx_agent_feed_wake_handler(ngx_event_t *ev);
static void ngx_agent_feed_free(ngx_agent_feed_t *feed);
static void ngx_agent_feed_tick(ngx_event_t *ev);


/* of this worker process */

static ngx_queue_t  ngx_agent_feed_buckets[NGX_AGENT_BELL_RUNS];
static ngx_queue_t  ngx_agent_feeds;         /* those without a run */
static ngx_event_t  ngx_agent_feed_ticker;


ngx_int_t
ngx_agent_feed_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_AGENT_BELL_RUNS; i++) {
        ngx_queue_init(&ngx_agent_feed_buckets[i]);
    }

    ngx_queue_init(&ngx_agent_feeds);

    ngx_memzero(&ngx_agent_feed_ticker, sizeof(ngx_event_t));

    ngx_agent_feed_ticker.handler = ngx_agent_feed_tick;
    ngx_agent_feed_ticker.log = cycle->log;
    ngx_agent_feed_ticker.data = &ngx_agent_feed_ticker;

    return NGX_OK;
}


void
ngx_agent_feed_add(ngx_agent_feed_t *feed, ngx_log_t *log)
{
    ngx_queue_init(&feed->subscribers);

    feed->wake.handler = ngx_agent_feed_wake_handler;
    feed->wake.data = feed;
    feed->wake.log = log;

    /* at the head: the newest of one key is the one to be found */

    ngx_queue_insert_head(
                    &ngx_agent_feed_buckets[ngx_agent_bell_index(feed->key)],
                    &feed->bucket);
}


void
ngx_agent_feed_remove(ngx_agent_feed_t *feed)
{
    if (feed->wake.posted) {
        ngx_delete_posted_event(&feed->wake);
    }

    ngx_queue_remove(&feed->bucket);

    ngx_agent_common_free(feed);
}


ngx_agent_feed_t *
ngx_agent_feed_find(const u_char *key)
{
    ngx_queue_t       *q, *bucket;
    ngx_agent_feed_t  *feed;

    bucket = &ngx_agent_feed_buckets[ngx_agent_bell_index(key)];

    for (q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket);
         q = ngx_queue_next(q))
    {
        feed = ngx_queue_data(q, ngx_agent_feed_t, bucket);

        if (ngx_memcmp(feed->key, key, NGX_AGENT_KEY_LEN) == 0) {
            return feed;
        }
    }

    return NULL;
}


ngx_agent_feed_t *
ngx_agent_feed_of(ngx_agent_store_t *store, const u_char *key,
    uint64_t generation)
{
    ngx_agent_feed_t  *feed;

    feed = ngx_agent_feed_find(key);

    return feed && feed->store == store
           && store->generation(feed->events) == generation ? feed : NULL;
}


ngx_agent_feed_t *
ngx_agent_feed_open(ngx_agent_t *agent, const u_char *key, ngx_str_t *id,
    ngx_agent_run_info_t *info)
{
    ngx_str_t          thread;
    ngx_pool_t        *pool;
    ngx_agent_feed_t  *feed;

    feed = ngx_agent_feed_of(agent->store, key, info->generation);

    if (feed) {
        return feed;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    feed = ngx_pcalloc(pool, sizeof(ngx_agent_feed_t));
    if (feed == NULL) {
        goto failed;
    }

    thread.data = info->thread;
    thread.len = info->thread_len;

    feed->pool = pool;
    feed->agent = agent;
    feed->store = agent->store;
    feed->owner = info->owner;
    feed->slot = info->slot;
    feed->id.data = ngx_pstrdup(pool, id);
    feed->id.len = id->len;
    feed->thread.data = ngx_pstrdup(pool, &thread);
    feed->thread.len = thread.len;

    ngx_memcpy(feed->key, key, NGX_AGENT_KEY_LEN);

    if ((feed->id.data == NULL && id->len)
        || (feed->thread.data == NULL && thread.len))
    {
        goto failed;
    }

    feed->events = agent->store->open(agent->store, key, info->generation);
    if (feed->events == NULL) {
        goto failed;
    }

    ngx_agent_feed_add(feed, ngx_cycle->log);
    ngx_queue_insert_tail(&ngx_agent_feeds, &feed->queue);

    /* not cancelable: a worker that is asked to quit lets its readers finish */

    if (!ngx_agent_feed_ticker.timer_set) {
        ngx_add_timer(&ngx_agent_feed_ticker, NGX_AGENT_FEED_TICK);
    }

    ngx_agent_feed_wake(feed);

    return feed;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


/* only called by the wake handler: elsewhere the feed may be on the stack */

static void
ngx_agent_feed_free(ngx_agent_feed_t *feed)
{
    ngx_agent_feed_remove(feed);
    ngx_queue_remove(&feed->queue);

    feed->store->close(feed->events);

    ngx_destroy_pool(feed->pool);
}


void
ngx_agent_feed_join(ngx_agent_feed_t *feed, ngx_agent_subscriber_t *s)
{
    ngx_queue_insert_tail(&feed->subscribers, &s->queue);
    feed->nsubscribers++;

    if (feed->run) {
        ngx_agent_run_read(feed->run);
    }
}


void
ngx_agent_feed_leave(ngx_agent_feed_t *feed, ngx_agent_subscriber_t *s)
{
    ngx_queue_remove(&s->queue);

    if (--feed->nsubscribers) {
        return;
    }

    if (feed->run) {
        ngx_agent_run_unread(feed->run);

    } else {
        ngx_agent_feed_wake(feed);
    }
}


void
ngx_agent_feed_wake(ngx_agent_feed_t *feed)
{
    feed->news = 1;

    if (!feed->wake.posted) {
        ngx_post_event(&feed->wake, &ngx_posted_events);
    }
}


/*
 * Tells a bounded number of subscribers in one turn of the loop; "partial"
 * feeds go on in the next, news of meanwhile are told to all once more.
 */

static void
ngx_agent_feed_wake_handler(ngx_event_t *ev)
{
    ngx_uint_t               n;
    ngx_queue_t             *q;
    ngx_agent_feed_t        *feed;
    ngx_agent_subscriber_t  *s;

    feed = ev->data;

    if (!feed->partial) {
        feed->news = 0;

        if (feed->run) {
            ngx_agent_run_publish(feed->run);
        }

        for (q = ngx_queue_head(&feed->subscribers);
             q != ngx_queue_sentinel(&feed->subscribers);
             q = ngx_queue_next(q))
        {
            s = ngx_queue_data(q, ngx_agent_subscriber_t, queue);
            s->dirty = 1;
        }
    }

    feed->partial = 0;
    feed->turn = 0;

    /* a pump may take any subscriber out of the list and put new ones in */

    for (n = 0; !ngx_queue_empty(&feed->subscribers); n++) {
        q = ngx_queue_head(&feed->subscribers);
        s = ngx_queue_data(q, ngx_agent_subscriber_t, queue);

        if (!s->dirty) {
            break;
        }

        if (n == NGX_AGENT_WAKE_READERS || feed->turn > NGX_AGENT_WAKE_BYTES) {
            feed->partial = 1;
            break;
        }

        s->dirty = 0;

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&feed->subscribers, q);

        ngx_agent_subscriber_pump(s);
    }

    if (feed->nsubscribers == 0) {

        if (feed->run == NULL) {
            ngx_agent_feed_free(feed);
            return;
        }

        if (feed->run->state == NGX_AGENT_OVER) {
            ngx_agent_run_free(feed->run);
            return;
        }
    }

    if ((feed->partial || feed->news) && !feed->wake.posted) {
        ngx_post_event(&feed->wake, &ngx_posted_next_events);
    }

    feed->store->trim(feed->events);
}


void
ngx_agent_feeds_rung(ngx_uint_t run, ngx_uint_t all)
{
    ngx_uint_t         i, last;
    ngx_queue_t       *q, *bucket;
    ngx_agent_feed_t  *feed;

    last = all ? NGX_AGENT_BELL_RUNS - 1 : run;

    for (i = run; i <= last; i++) {

        bucket = &ngx_agent_feed_buckets[i];

        for (q = ngx_queue_head(bucket);
             q != ngx_queue_sentinel(bucket);
             q = ngx_queue_next(q))
        {
            feed = ngx_queue_data(q, ngx_agent_feed_t, bucket);

            if (feed->run) {
                ngx_agent_run_rung(feed->run);

            } else {
                ngx_agent_feed_wake(feed);
            }
        }
    }
}


/* --- runs elsewhere whose worker has died ------------------------------- */

static void
ngx_agent_feed_tick(ngx_event_t *ev)
{
    ngx_uint_t             alive;
    ngx_queue_t           *q;
    ngx_agent_feed_t      *feed;
    ngx_agent_run_info_t   info;

    static uint64_t        owner;
    static ngx_uint_t      known;

    owner = 0;
    known = 0;

    ngx_agent_bell_check();

    /* feeds are only freed by their wake handler, so the list stays whole */

    for (q = ngx_queue_head(&ngx_agent_feeds);
         q != ngx_queue_sentinel(&ngx_agent_feeds);
         q = ngx_queue_next(q))
    {
        feed = ngx_queue_data(q, ngx_agent_feed_t, queue);

        if (feed->common && feed->common->fold
            && ngx_current_msec - feed->common->folded > NGX_AGENT_FEED_FOLD)
        {
            ngx_agent_prelude_forget(feed);
        }

        if (feed->owner == 0) {
            continue;
        }

        if (feed->owner == owner) {
            alive = known;

        } else {
            alive = ngx_agent_registry_alive(feed->owner, feed->slot);
            owner = feed->owner;
            known = alive;
        }

        if (alive) {
            continue;
        }

        /* to ask is to end it; its readers are told by a bell */

        (void) ngx_agent_registry_info(feed->store->zone, feed->key, &info);

        feed->owner = 0;

        ngx_agent_feed_wake(feed);
    }

    if (!ngx_queue_empty(&ngx_agent_feeds)) {
        ngx_add_timer(ev, NGX_AGENT_FEED_TICK);
    }
}
