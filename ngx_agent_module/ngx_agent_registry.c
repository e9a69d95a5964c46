
/*
 * The module's own zone, one record per run, so that status and cancel work
 * from any worker; and what all zones have in common: claims, and the runs of
 * workers that have died.
 */

#include "ngx_agent_zone.h"
#include "ngx_agent_replay.h"


#define NGX_AGENT_REGISTRY_SIZE    (20 * 1024 * 1024)
#define NGX_AGENT_REGISTRY_RETAIN  (20 * 60 * 1000)
#define NGX_AGENT_REGISTRY_SWEEP   256         /* buckets in one lock */
#define NGX_AGENT_REGISTRY_LOST    16          /* runs ended in one lock */


_Static_assert(sizeof(ngx_agent_shared_t) <= AGENT_ZONE_EXTRA,
               "a zone's header has room for what workers share");


ngx_agent_shared_t  *ngx_agent_shared;

static uint64_t                     ngx_agent_owner;      /* this process */
static ngx_http_agent_main_conf_t  *ngx_agent_main_conf;

static void ngx_agent_registry_sweep(uint64_t owner);


ngx_int_t
ngx_agent_registry_zone(ngx_conf_t *cf, ngx_http_agent_main_conf_t *amcf)
{
    ngx_agent_zone_t  *zone;

    zone = ngx_pcalloc(cf->pool, sizeof(ngx_agent_zone_t));
    if (zone == NULL) {
        return NGX_ERROR;
    }

    ngx_str_set(&zone->name, NGX_AGENT_REGISTRY_NAME);
    zone->size = NGX_AGENT_REGISTRY_SIZE;
    zone->replay.retain = NGX_AGENT_REGISTRY_RETAIN;
    zone->replay.max_units = 8;

    amcf->registry = zone;

    return ngx_agent_zone_add(cf, zone) == NGX_OK ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_agent_registry_init_process(ngx_http_agent_main_conf_t *amcf)
{
    uint64_t  before;

    ngx_agent_main_conf = amcf;
    ngx_agent_local_store.zone = amcf->registry;

    ngx_agent_shared = (ngx_agent_shared_t *)
                       amcf->registry->replay.zone.head->extra;

    /* the lock first: who reads our number must find it */

    if (ngx_agent_slot_take(ngx_process_slot) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_agent_zone_lock(amcf->registry);

    before = ngx_agent_shared->slots[ngx_process_slot];

    if ((ngx_uint_t) ngx_process_slot < AGENT_REPLAY_SLOTS) {
        ngx_memzero(&ngx_agent_shared->gauges[ngx_process_slot],
                    sizeof(ngx_agent_gauges_t));
    }

    ngx_agent_owner = ++ngx_agent_shared->owners;
    ngx_agent_shared->slots[ngx_process_slot] = ngx_agent_owner;

    ngx_agent_zone_unlock(amcf->registry);

    if (before) {
        ngx_agent_registry_sweep(before);
    }

    return NGX_OK;
}


/* regular exit: all runs have ended */

void
ngx_agent_registry_exit_process(void)
{
    if (ngx_agent_shared->bells_lost) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "agent: readers found events that nobody had told them "
                      "of, %uA times so far", ngx_agent_shared->bells_lost);
    }

    ngx_agent_shared->slots[ngx_process_slot] = 0;
}


uint64_t
ngx_agent_registry_owner(void)
{
    return ngx_agent_owner;
}


ngx_uint_t
ngx_agent_registry_alive(uint64_t owner, ngx_uint_t slot)
{
    if (owner == ngx_agent_owner) {
        return 1;
    }

    return slot < NGX_MAX_PROCESSES
           && ngx_agent_shared->slots[slot] == owner
           && ngx_agent_slot_alive(slot);
}


/* --- the runs of the dead ----------------------------------------------- */

/* what a run is told to have ended with, where its worker could not say it */

static void
ngx_agent_registry_last_words(agent_run_info_t *info, agent_event_t *ev)
{
    static const agent_str_t  lost = agent_str(
        "{\"type\":\"RUN_ERROR\",\"message\":\"the worker process that ran "
        "this has died\",\"code\":\"worker_lost\"}");

    ngx_memzero(info, sizeof(agent_run_info_t));
    agent_usage_init(&info->usage);

    info->status = NGX_AGENT_RUN_ERROR;
    info->code = AGENT_CODE_WORKER_LOST;

    ev->type = AGENT_EV_RUN_ERROR;
    ev->id.data = NULL;
    ev->id.len = 0;
    ev->body = lost;
}


/* with the lock held; gives it back and rings */

static ngx_int_t
ngx_agent_registry_bury(ngx_agent_zone_t *zone, agent_run_ref_t *ref)
{
    agent_rc_t        rc;
    agent_event_t     ev;
    agent_waiters_t   waiters;
    agent_run_info_t  info;

    ngx_agent_registry_last_words(&info, &ev);

    rc = agent_replay_lost(&zone->replay, ref, &info, &ev, ngx_agent_now());

    if (rc == AGENT_TOO_LARGE) {
        rc = agent_replay_lost(&zone->replay, ref, &info, NULL,
                               ngx_agent_now());
    }

    agent_replay_waiters(&zone->replay, ref, &waiters);

    ngx_agent_zone_unlock(zone);

    if (rc == AGENT_OK) {
        ngx_agent_stat_add(errors[AGENT_CODE_WORKER_LOST], 1);
        ngx_agent_bell_ring(ref->key, &waiters, NGX_ERROR);
    }

    return rc == AGENT_OK ? NGX_OK : NGX_DECLINED;
}


static ngx_uint_t
ngx_agent_registry_sweep_zone(ngx_agent_zone_t *zone, uint64_t owner)
{
    uint32_t           i, n;
    ngx_uint_t         lost;
    agent_zone_t      *z;
    agent_unit_t       unit;
    agent_run_ref_t    ref;
    agent_run_info_t   info;

    z = &zone->replay.zone;
    lost = 0;

    for (i = 0; i < z->head->nbuckets; /* void */ ) {

        ngx_agent_zone_lock(zone);

    again:

        for (n = 0;
             n < NGX_AGENT_REGISTRY_SWEEP && i < z->head->nbuckets;
             n++, i++)
        {
            for (unit = z->buckets[i];
                 unit;
                 unit = agent_zone_object(z, unit)->hash)
            {
                ngx_memcpy(ref.key, agent_zone_object(z, unit)->key,
                           NGX_AGENT_KEY_LEN);

                if (agent_replay_peek(&zone->replay, unit, &info) == AGENT_OK
                    && info.owner == owner
                    && !ngx_agent_status_over(info.status))
                {
                    ref.generation = info.generation;
                    ref.owner = owner;

                    if (ngx_agent_registry_bury(zone, &ref) == NGX_OK) {
                        lost++;
                    }

                    ngx_agent_zone_lock(zone);
                    goto again;
                }
            }
        }

        ngx_agent_zone_unlock(zone);
    }

    return lost;
}


/* all runs of a worker that has gone */

static void
ngx_agent_registry_sweep(uint64_t owner)
{
    ngx_uint_t          i, lost;
    ngx_agent_zone_t  **zones;

    lost = ngx_agent_registry_sweep_zone(ngx_agent_main_conf->registry, owner);

    zones = ngx_agent_main_conf->replay_zones.elts;

    for (i = 0; i < ngx_agent_main_conf->replay_zones.nelts; i++) {
        lost += ngx_agent_registry_sweep_zone(zones[i], owner);
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

        owner = ngx_agent_shared->slots[i];

        if (owner == 0 || owner == ngx_agent_owner || ngx_agent_slot_alive(i))
        {
            continue;
        }

        ngx_agent_registry_sweep(owner);
        (void) ngx_atomic_cmp_set(&ngx_agent_shared->slots[i], owner, 0);
        n++;
    }

    return n;
}


/* 1 when the run was that of a dead worker and has now ended */

static ngx_uint_t
ngx_agent_registry_check(ngx_agent_zone_t *zone, const u_char *key,
    agent_run_info_t *info)
{
    agent_run_ref_t  ref;

    if (ngx_agent_status_over(info->status)
        || ngx_agent_registry_alive(info->owner, info->slot))
    {
        return 0;
    }

    ngx_memcpy(ref.key, key, NGX_AGENT_KEY_LEN);
    ref.generation = info->generation;
    ref.owner = info->owner;

    ngx_agent_zone_lock(zone);

    return ngx_agent_registry_bury(zone, &ref) == NGX_OK;
}


/* --- claims ------------------------------------------------------------- */

ngx_int_t
ngx_agent_registry_claim(ngx_agent_zone_t *zone, agent_run_ref_t *ref,
    ngx_str_t *thread, agent_run_info_t *info)
{
    agent_rc_t  rc;
    ngx_uint_t  reaped;

    reaped = 0;
    ref->owner = ngx_agent_owner;

    for ( ;; ) {

        ngx_agent_zone_lock(zone);

        rc = agent_replay_claim(&zone->replay, ref,
                                (unsigned) ngx_process_slot,
                                ngx_agent_str(thread), ngx_agent_now(), info);

        ngx_agent_zone_unlock(zone);

        if (rc == AGENT_DECLINED
            && ngx_agent_registry_check(zone, ref->key, info))
        {
            continue;
        }

        /* full of runs that are not over: unless their workers have died */

        if (rc == AGENT_NOMEM && !reaped) {
            reaped = 1;

            if (ngx_agent_registry_reap()) {
                continue;
            }
        }

        break;
    }

    switch (rc) {

    case AGENT_OK:
        return NGX_OK;

    case AGENT_DECLINED:
        return ngx_agent_status_over(info->status) ? NGX_DONE : NGX_BUSY;

    case AGENT_NOMEM:
        ngx_agent_zone_full(zone, "new runs are refused");
        return NGX_DECLINED;

    default:
        return NGX_ERROR;
    }
}


ngx_int_t
ngx_agent_registry_info(ngx_agent_zone_t *zone, const u_char *key,
    agent_run_info_t *info)
{
    agent_rc_t  rc;

    do {
        ngx_agent_zone_lock(zone);

        rc = agent_replay_info(&zone->replay, key, ngx_agent_now(), info);

        ngx_agent_zone_unlock(zone);

    } while (rc == AGENT_OK && ngx_agent_registry_check(zone, key, info));

    return rc == AGENT_OK ? NGX_OK : NGX_DECLINED;
}


ngx_int_t
ngx_agent_registry_cancel(ngx_agent_zone_t *zone, const u_char *key)
{
    agent_rc_t        rc;
    agent_waiters_t   none;
    agent_run_info_t  info;

    do {
        ngx_agent_zone_lock(zone);

        rc = agent_replay_cancel(&zone->replay, key, ngx_agent_now(), &info);

        ngx_agent_zone_unlock(zone);

    } while (rc == AGENT_OK && ngx_agent_registry_check(zone, key, &info));

    switch (rc) {

    case AGENT_OK:
        ngx_memzero(&none, sizeof(agent_waiters_t));
        ngx_agent_bell_ring(key, &none, (ngx_int_t) info.slot);
        return NGX_OK;

    case AGENT_DONE:
        return NGX_DONE;

    case AGENT_ABORTED:
        return NGX_ABORT;

    default:
        return NGX_DECLINED;
    }
}
