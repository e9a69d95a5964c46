
/*
 * The module's own small zone: one record per run, seen by every worker, so
 * that status and cancel work from any of them.  Live records are never
 * evicted; ended ones go by age, then by need.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"

#include <openssl/rand.h>


#define NGX_AGENT_REGISTRY_SIZE     (16 * 1024 * 1024)
#define NGX_AGENT_REGISTRY_LAYOUT   1
#define NGX_AGENT_REGISTRY_BUCKETS  8192        /* a power of two */
#define NGX_AGENT_REGISTRY_RETAIN   (20 * 60 * 1000)
#define NGX_AGENT_REGISTRY_STEPS    4
#define NGX_AGENT_REGISTRY_TRIES    32
#define NGX_AGENT_RECORD_SIZE       256         /* a class of the slab */
#define NGX_AGENT_RECORD_THREAD     96
#define NGX_AGENT_REGISTRY_SWEEP    256         /* buckets in one lock */


typedef struct ngx_agent_more_s  ngx_agent_more_t;


struct ngx_agent_record_s {
    ngx_agent_record_t  *next;            /* of the bucket */
    ngx_queue_t          queue;           /* ended ones, oldest last */
    u_char               key[NGX_AGENT_KEY_LEN];
    uint64_t             generation;
    uint64_t             last_seq;
    uint64_t             started;
    uint64_t             finished;
    agent_usage_t        usage;
    uint64_t             owner;           /* of the slot, while it lives */
    ngx_atomic_t         cancel;
    uint16_t             slot;
    uint8_t              status;
    uint8_t              code;
    uint8_t              content;
    uint16_t             thread_len;
    ngx_agent_more_t    *more;            /* what "thread" has no room for */
    u_char               thread[NGX_AGENT_RECORD_THREAD];
};


/*
 * All allocations have one size, so that what is evicted makes room for what
 * comes: a long thread id goes on in further pieces.
 */

struct ngx_agent_more_s {
    ngx_agent_more_t    *next;
    u_char               data[NGX_AGENT_RECORD_SIZE - sizeof(void *)];
};


typedef struct {
    uint64_t             layout;
    uint64_t             generation;      /* never repeats, never goes back */
    uint64_t             secret[2];       /* of the buckets */
    uint64_t             owners;          /* worker processes so far */
    ngx_atomic_t         slots[NGX_MAX_PROCESSES];
                                          /* their number, by process slot */
    ngx_queue_t          ended;
    ngx_agent_record_t  *buckets[NGX_AGENT_REGISTRY_BUCKETS];
} ngx_agent_registry_t;


static ngx_int_t ngx_agent_registry_init_zone(ngx_shm_zone_t *shm_zone,
    void *data);

static ngx_agent_registry_t  *ngx_agent_registry;
static ngx_slab_pool_t       *ngx_agent_registry_pool;
static uint64_t               ngx_agent_registry_owner;   /* this process */


const char *
ngx_agent_status_name(ngx_uint_t status)
{
    static const char *const  names[] = {
        "queued", "running", "finishing", "finished", "cancelled", "error",
        "interrupted"
    };

    return status <= NGX_AGENT_RUN_INTERRUPTED ? names[status] : "error";
}


ngx_int_t
ngx_agent_registry_zone(ngx_conf_t *cf, ngx_http_agent_main_conf_t *amcf)
{
    ngx_str_t  name = ngx_string("ngx_agent_registry");

    amcf->zone = ngx_shared_memory_add(cf, &name, NGX_AGENT_REGISTRY_SIZE,
                                       &ngx_http_agent_module);
    if (amcf->zone == NULL) {
        return NGX_ERROR;
    }

    amcf->zone->init = ngx_agent_registry_init_zone;

    return NGX_OK;
}


static ngx_int_t
ngx_agent_registry_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    size_t                 len;
    ngx_slab_pool_t       *shpool;
    ngx_agent_registry_t  *reg;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data) {
        shm_zone->data = data;
        return NGX_OK;
    }

    if (shm_zone->shm.exists) {
        shm_zone->data = shpool->data;
        return NGX_OK;
    }

    reg = ngx_slab_calloc(shpool, sizeof(ngx_agent_registry_t));
    if (reg == NULL) {
        return NGX_ERROR;
    }

    if (RAND_bytes((u_char *) reg->secret, sizeof(reg->secret)) != 1) {
        return NGX_ERROR;
    }

    reg->secret[0] |= 1;
    reg->secret[1] |= 1;
    reg->layout = NGX_AGENT_REGISTRY_LAYOUT;
    reg->generation = ngx_agent_now();
    ngx_queue_init(&reg->ended);

    len = sizeof(" in agent registry \"\"") + shm_zone->shm.name.len;

    shpool->log_ctx = ngx_slab_alloc(shpool, len);
    if (shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(shpool->log_ctx, " in agent registry \"%V\"%Z",
                &shm_zone->shm.name);

    shpool->log_nomem = 0;
    shpool->data = reg;
    shm_zone->data = reg;

    return NGX_OK;
}




static void ngx_agent_registry_sweep(uint64_t owner);
static ngx_uint_t ngx_agent_registry_reap(void);
static void ngx_agent_registry_evict(ngx_uint_t steps, ngx_uint_t force);


ngx_int_t
ngx_agent_registry_init_process(ngx_http_agent_main_conf_t *amcf)
{
    uint64_t  before;

    ngx_agent_registry = amcf->zone->data;
    ngx_agent_registry_pool = (ngx_slab_pool_t *) amcf->zone->shm.addr;

    /* the lock first: who reads our number must find it */

    if (ngx_agent_slot_take(ngx_process_slot) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    before = ngx_agent_registry->slots[ngx_process_slot];

    ngx_agent_registry_owner = ++ngx_agent_registry->owners;
    ngx_agent_registry->slots[ngx_process_slot] = ngx_agent_registry_owner;

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);

    if (before) {
        ngx_agent_registry_sweep(before);
    }

    return NGX_OK;
}


static ngx_agent_record_t **
ngx_agent_registry_bucket(const u_char *key)
{
    uint64_t               n[2];
    ngx_agent_registry_t  *reg;

    reg = ngx_agent_registry;

    /* clients choose ids and so keys, but not what falls into one bucket */

    ngx_memcpy(n, key, sizeof(n));

    n[0] = (n[0] * reg->secret[0] + n[1] * reg->secret[1]) >> 32;

    return &reg->buckets[n[0] & (NGX_AGENT_REGISTRY_BUCKETS - 1)];
}


static ngx_agent_record_t *
ngx_agent_registry_lookup(const u_char *key)
{
    ngx_agent_record_t  *rec;

    for (rec = *ngx_agent_registry_bucket(key); rec; rec = rec->next) {
        if (ngx_memcmp(rec->key, key, NGX_AGENT_KEY_LEN) == 0) {
            return rec;
        }
    }

    return NULL;
}


/* the run's worker has died: the run is over, and says so */

static void
ngx_agent_registry_lost(ngx_agent_record_t *rec)
{
    rec->status = NGX_AGENT_RUN_ERROR;
    rec->code = AGENT_CODE_WORKER_LOST;
    rec->finished = ngx_agent_now();

    ngx_queue_insert_head(&ngx_agent_registry->ended, &rec->queue);
}


/* all runs of a worker that has gone */

static void
ngx_agent_registry_sweep(uint64_t owner)
{
    ngx_uint_t           i, n, lost;
    ngx_agent_record_t  *rec;

    lost = 0;

    for (i = 0; i < NGX_AGENT_REGISTRY_BUCKETS; /* void */ ) {

        ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

        for (n = 0; n < NGX_AGENT_REGISTRY_SWEEP; n++, i++) {
            for (rec = ngx_agent_registry->buckets[i]; rec; rec = rec->next) {
                if (rec->owner == owner
                    && !ngx_agent_status_over(rec->status))
                {
                    ngx_agent_registry_lost(rec);
                    lost++;
                }
            }
        }

        ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);
    }

    if (lost) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "agent: %ui runs were lost with their worker process",
                      lost);
    }
}


/*
 * The runs of workers that died while they were leaving: nobody takes their
 * slots.  Looked for at most once a second; returns how many workers it found.
 */

static ngx_uint_t
ngx_agent_registry_reap(void)
{
    uint64_t       owner;
    ngx_uint_t     i, n;
    static time_t  last;

    if (ngx_time() == last) {
        return 0;
    }

    last = ngx_time();
    n = 0;

    for (i = 0; i < NGX_MAX_PROCESSES; i++) {

        owner = ngx_agent_registry->slots[i];

        if (owner == 0 || owner == ngx_agent_registry_owner
            || ngx_agent_slot_alive(i))
        {
            continue;
        }

        ngx_agent_registry_sweep(owner);
        (void) ngx_atomic_cmp_set(&ngx_agent_registry->slots[i], owner, 0);
        n++;
    }

    return n;
}


/* a live record of a dead owner becomes one that is over */

static void
ngx_agent_registry_check(ngx_agent_record_t *rec)
{
    if (ngx_agent_status_over(rec->status)
        || rec->owner == ngx_agent_registry_owner)
    {
        return;
    }

    if (ngx_agent_registry->slots[rec->slot] == rec->owner
        && ngx_agent_slot_alive(rec->slot))
    {
        return;
    }

    ngx_agent_registry_lost(rec);
}


static void
ngx_agent_registry_free(ngx_agent_record_t *rec)
{
    ngx_agent_more_t     *more;
    ngx_agent_record_t  **p;

    for (p = ngx_agent_registry_bucket(rec->key); *p; p = &(*p)->next) {
        if (*p == rec) {
            *p = rec->next;
            break;
        }
    }

    if (ngx_agent_status_over(rec->status)) {
        ngx_queue_remove(&rec->queue);
    }

    while (rec->more) {
        more = rec->more;
        rec->more = more->next;
        ngx_slab_free_locked(ngx_agent_registry_pool, more);
    }

    ngx_slab_free_locked(ngx_agent_registry_pool, rec);
}


/* evicts what it must; NULL: nothing but live runs is left */

static void *
ngx_agent_registry_alloc(void)
{
    void        *p;
    ngx_uint_t   tries;

    for (tries = 0; /* void */ ; tries++) {

        p = ngx_slab_alloc_locked(ngx_agent_registry_pool,
                                  NGX_AGENT_RECORD_SIZE);

        if (p || tries == NGX_AGENT_REGISTRY_TRIES) {
            return p;
        }

        ngx_agent_registry_evict(NGX_AGENT_REGISTRY_STEPS, 1);
    }
}


static ngx_int_t
ngx_agent_registry_set_thread(ngx_agent_record_t *rec, ngx_str_t *thread)
{
    size_t              n, left;
    u_char             *p;
    ngx_agent_more_t   *more, **last;

    p = thread->data;
    left = thread->len;

    n = ngx_min(left, NGX_AGENT_RECORD_THREAD);
    ngx_memcpy(rec->thread, p, n);

    last = &rec->more;

    for ( ;; ) {
        p += n;
        left -= n;

        if (left == 0) {
            break;
        }

        more = ngx_agent_registry_alloc();
        if (more == NULL) {
            return NGX_ERROR;
        }

        n = ngx_min(left, sizeof(more->data));

        more->next = NULL;
        ngx_memcpy(more->data, p, n);

        *last = more;
        last = &more->next;
    }

    rec->thread_len = (uint16_t) thread->len;

    return NGX_OK;
}


/* at most "steps" ended records: those past their time or, forced, any */

static void
ngx_agent_registry_evict(ngx_uint_t steps, ngx_uint_t force)
{
    uint64_t             now;
    ngx_queue_t         *q;
    ngx_agent_record_t  *rec;

    now = ngx_agent_now();

    while (steps-- && !ngx_queue_empty(&ngx_agent_registry->ended)) {

        q = ngx_queue_last(&ngx_agent_registry->ended);
        rec = ngx_queue_data(q, ngx_agent_record_t, queue);

        if (!force && now < rec->finished + NGX_AGENT_REGISTRY_RETAIN) {
            break;
        }

        ngx_agent_registry_free(rec);
    }
}


static void
ngx_agent_registry_copy(ngx_agent_record_t *rec, ngx_agent_run_info_t *info)
{
    size_t             n, left;
    u_char            *p;
    ngx_agent_more_t  *more;

    info->status = rec->status;
    info->generation = rec->generation;
    info->last_seq = rec->last_seq;
    info->started = rec->started;
    info->finished = rec->finished;
    info->usage = rec->usage;
    info->code = rec->code;
    info->content = rec->content;
    info->thread_len = rec->thread_len;

    n = ngx_min(info->thread_len, NGX_AGENT_RECORD_THREAD);
    p = ngx_cpymem(info->thread, rec->thread, n);
    left = info->thread_len - n;

    for (more = rec->more; more; more = more->next) {
        n = ngx_min(left, sizeof(more->data));
        p = ngx_cpymem(p, more->data, n);
        left -= n;
    }
}


/* regular exit: all runs have ended */

void
ngx_agent_registry_exit_process(void)
{
    ngx_agent_registry->slots[ngx_process_slot] = 0;
}


ngx_int_t
ngx_agent_registry_claim(const u_char *key, ngx_str_t *thread,
    ngx_agent_record_t **result, ngx_agent_run_info_t *info)
{
    ngx_int_t             rc;
    ngx_uint_t            reaped;
    ngx_agent_record_t   *rec, **bucket;

    if (thread->len > sizeof(info->thread)) {
        return NGX_ERROR;
    }

    reaped = 0;

again:

    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    ngx_agent_registry_evict(NGX_AGENT_REGISTRY_STEPS, 0);

    rec = ngx_agent_registry_lookup(key);

    if (rec) {
        ngx_agent_registry_check(rec);
        ngx_agent_registry_copy(rec, info);

        if (!ngx_agent_status_over(rec->status)) {
            rc = NGX_BUSY;
            goto done;
        }

        if (rec->content || rec->status == NGX_AGENT_RUN_FINISHED) {
            rc = NGX_DONE;
            goto done;
        }

        /* it ended before it said anything: the next POST replaces it */

        ngx_agent_registry_free(rec);
    }

    rec = ngx_agent_registry_alloc();

    if (rec == NULL) {
        rc = NGX_DECLINED;
        goto done;
    }

    _Static_assert(sizeof(ngx_agent_record_t) <= NGX_AGENT_RECORD_SIZE,
                   "a record fits its size class");

    ngx_memzero(rec, sizeof(ngx_agent_record_t));

    if (ngx_agent_registry_set_thread(rec, thread) != NGX_OK) {

        /* not in a bucket yet, and not over */

        ngx_agent_registry_free(rec);

        rc = NGX_DECLINED;
        goto done;
    }

    ngx_memcpy(rec->key, key, NGX_AGENT_KEY_LEN);

    ngx_agent_registry->generation = ngx_max(ngx_agent_registry->generation + 1,
                                             ngx_agent_now());

    rec->generation = ngx_agent_registry->generation;
    rec->last_seq = (uint64_t) -1;
    rec->started = ngx_agent_now();
    rec->status = NGX_AGENT_RUN_QUEUED;
    rec->owner = ngx_agent_registry_owner;
    rec->slot = (uint16_t) ngx_process_slot;
    agent_usage_init(&rec->usage);

    bucket = ngx_agent_registry_bucket(key);
    rec->next = *bucket;
    *bucket = rec;

    *result = rec;
    rc = NGX_OK;

done:

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);

    /* full of runs that are not over: unless their workers have died */

    if (rc == NGX_DECLINED && !reaped) {
        reaped = 1;

        if (ngx_agent_registry_reap()) {
            goto again;
        }
    }

    return rc;
}


ngx_int_t
ngx_agent_registry_info(const u_char *key, ngx_agent_run_info_t *info)
{
    ngx_agent_record_t  *rec;

    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    ngx_agent_registry_evict(NGX_AGENT_REGISTRY_STEPS, 0);

    rec = ngx_agent_registry_lookup(key);

    if (rec) {
        ngx_agent_registry_check(rec);
        ngx_agent_registry_copy(rec, info);
    }

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);

    return rec ? NGX_OK : NGX_DECLINED;
}


ngx_int_t
ngx_agent_registry_cancel(const u_char *key)
{
    ngx_int_t            rc;
    ngx_agent_record_t  *rec;

    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    rec = ngx_agent_registry_lookup(key);

    if (rec) {
        ngx_agent_registry_check(rec);
    }

    if (rec == NULL) {
        rc = NGX_DECLINED;

    } else if (ngx_agent_status_over(rec->status)) {
        rc = NGX_DONE;

    } else {
        rec->cancel = 1;
        rc = NGX_OK;
    }

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);

    return rc;
}


void
ngx_agent_registry_status(ngx_agent_record_t *rec, ngx_uint_t status)
{
    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    if (!ngx_agent_status_over(rec->status)) {
        rec->status = (uint8_t) status;
    }

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);
}


void
ngx_agent_registry_finish(ngx_agent_record_t *rec, ngx_agent_run_info_t *info)
{
    ngx_shmtx_lock(&ngx_agent_registry_pool->mutex);

    if (!ngx_agent_status_over(rec->status)) {
        rec->status = (uint8_t) info->status;
        rec->code = (uint8_t) info->code;
        rec->usage = info->usage;
        rec->content = (uint8_t) info->content;
        rec->finished = ngx_agent_now();

        ngx_queue_insert_head(&ngx_agent_registry->ended, &rec->queue);
    }

    ngx_shmtx_unlock(&ngx_agent_registry_pool->mutex);
}


/*
 * Without the lock: the record is live and so ours; readers may see the two
 * words of one batch apart, which only tells them of an older state.
 */

void
ngx_agent_registry_publish(ngx_agent_record_t *rec, uint64_t last_seq,
    ngx_uint_t content)
{
    rec->last_seq = last_seq;
    rec->content = (uint8_t) content;
}


ngx_uint_t
ngx_agent_registry_cancelled(ngx_agent_record_t *rec)
{
    return rec->cancel;
}


uint64_t
ngx_agent_registry_generation(ngx_agent_record_t *rec)
{
    return rec->generation;
}
