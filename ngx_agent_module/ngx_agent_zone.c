
#include "ngx_agent_zone.h"

#include <openssl/rand.h>


#define NGX_AGENT_ZONE_SPIN  2048    /* pauses */
#define NGX_AGENT_ZONE_WAIT  100     /* microseconds */
#define NGX_AGENT_ZONE_LOOK  100     /* waits between looks at the holder */


static ngx_int_t ngx_agent_zone_init(ngx_shm_zone_t *shm_zone, void *data);
static void ngx_agent_zone_take_over(ngx_agent_zone_t *zone);


ngx_int_t
ngx_agent_zone_add(ngx_conf_t *cf, ngx_agent_zone_t *zone)
{
    zone->shm = ngx_shared_memory_add(cf, &zone->name, zone->size,
                                      &ngx_http_agent_module);
    if (zone->shm == NULL) {
        return NGX_ERROR;
    }

    if (zone->shm->data) {
        return NGX_DECLINED;
    }

    zone->shm->init = ngx_agent_zone_init;
    zone->shm->data = zone;

    return NGX_OK;
}


/* all of the zone but its lock and one page for the slab pool's own use */

static void *
ngx_agent_zone_memory(ngx_slab_pool_t *shpool, size_t *size)
{
    *size = (shpool->pfree - 1) * ngx_pagesize;

    return ngx_slab_alloc(shpool, *size);
}


static ngx_int_t
ngx_agent_zone_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_agent_zone_t *zone = shm_zone->data;
    ngx_agent_zone_t *old = data;

    size_t            size;
    void             *mem;
    u_char            secret[16];
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    zone->pool = shpool;

    if (old) {
        zone->replay.zone = old->replay.zone;
        return NGX_OK;
    }

    mem = ngx_agent_zone_memory(shpool, &size);

    if (mem == NULL || RAND_bytes(secret, sizeof(secret)) != 1) {
        return NGX_ERROR;
    }

    if (agent_zone_create(&zone->replay.zone, mem, size, AGENT_REPLAY_LAYOUT,
                          secret, ngx_agent_now())
        != AGENT_OK)
    {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "agent: zone \"%V\" is too small", &shm_zone->shm.name);
        return NGX_ERROR;
    }

    shpool->log_nomem = 0;
    shpool->data = mem;

    ngx_agent_zone_take_over(zone);

    return NGX_OK;
}


static agent_rc_t
ngx_agent_zone_over(agent_zone_t *z, agent_unit_t unit, void *ctx)
{
    return agent_zone_object(z, unit)->list == AGENT_LIST_LIVE
           ? AGENT_DECLINED : AGENT_OK;
}


/*
 * A zone of another size begins with the ended runs of the one it replaces.
 * Live ones go on in the old one, with the workers that have it.  We are in the
 * master, "ngx_cycle" is the old configuration.
 */

static void
ngx_agent_zone_take_over(ngx_agent_zone_t *zone)
{
    size_t             n;
    ngx_uint_t         i;
    ngx_shm_zone_t    *shm;
    ngx_list_part_t   *part;
    ngx_agent_zone_t  *old;

    part = (ngx_list_part_t *) &ngx_cycle->shared_memory.part;
    shm = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                return;
            }

            part = part->next;
            shm = part->elts;
            i = 0;
        }

        if (shm[i].tag == (void *) &ngx_http_agent_module
            && shm[i].shm.name.len == zone->name.len
            && ngx_strncmp(shm[i].shm.name.data, zone->name.data,
                           zone->name.len)
               == 0)
        {
            break;
        }
    }

    old = shm[i].data;

    if (old == NULL || old->pool == NULL) {
        return;
    }

    ngx_agent_zone_lock(old);

    n = agent_zone_copy(&zone->replay.zone, &old->replay.zone,
                        ngx_agent_zone_over, NULL);

    old->replay.zone.head->superseded = 1;

    ngx_agent_zone_unlock(old);

    ngx_log_error(NGX_LOG_NOTICE, zone->shm->shm.log, 0,
                  "agent: zone \"%V\" has another size, %uz ended runs were "
                  "copied into it", &zone->name, n);
}


/*
 * As ngx_shmtx_lock().  But the master gives back the lock of a worker that has
 * died only in zones of its current configuration: one that was resized or
 * removed lives on in workers that are leaving, and they would wait for ever.
 */

static void
ngx_agent_zone_take(ngx_shmtx_t *mtx)
{
    ngx_pid_t   pid;
    ngx_uint_t  i, n;

    if (ngx_shmtx_trylock(mtx)) {
        return;
    }

    /* held for microseconds */

    for (n = 1; ngx_ncpu > 1 && n < NGX_AGENT_ZONE_SPIN; n <<= 1) {

        for (i = 0; i < n; i++) {
            ngx_cpu_pause();
        }

        if (ngx_shmtx_trylock(mtx)) {
            return;
        }
    }

    /* unless its holder has to wait for a processor, was stopped, or is dead */

    for (n = 1; !ngx_shmtx_trylock(mtx); n++) {

        usleep(NGX_AGENT_ZONE_WAIT);

        if (n % NGX_AGENT_ZONE_LOOK) {
            continue;
        }

        pid = (ngx_pid_t) *mtx->lock;

        if (pid > 0 && kill(pid, 0) == -1 && ngx_errno == ESRCH) {
            (void) ngx_shmtx_force_unlock(mtx, pid);
        }
    }
}


void
ngx_agent_zone_lock(ngx_agent_zone_t *zone)
{
    ngx_agent_zone_take(&zone->pool->mutex);

    if (!agent_zone_enter(&zone->replay.zone, (uint64_t) ngx_pid)) {
        return;
    }

    /* the last holder died inside */

    zone->mended = 1;

    if (agent_zone_recover(&zone->replay.zone, agent_replay_check,
                           &zone->replay)
        != AGENT_OK)
    {
        zone->reset = 1;
        zone->replay.zone.head->resets++;
        agent_zone_reset(&zone->replay.zone, ngx_agent_now());
    }
}


void
ngx_agent_zone_unlock(ngx_agent_zone_t *zone)
{
    ngx_uint_t  mended, reset;

    mended = zone->mended;
    reset = zone->reset;

    zone->mended = 0;
    zone->reset = 0;

    agent_zone_leave(&zone->replay.zone);
    ngx_shmtx_unlock(&zone->pool->mutex);

    if (reset) {
        ngx_log_error(NGX_LOG_CRIT, ngx_cycle->log, 0,
                      "agent: zone \"%V\" was damaged by a process that died "
                      "in it and had to be emptied", &zone->name);

    } else if (mended) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "agent: zone \"%V\" was mended after a process died in "
                      "it", &zone->name);
    }
}


void
ngx_agent_zone_full(ngx_agent_zone_t *zone, const char *what)
{
    if (ngx_time() - zone->told < 60) {
        return;
    }

    zone->told = ngx_time();

    if (zone->store) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "agent: replay zone \"%V\" is full, %s; make it larger",
                      &zone->name, what);
        return;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "agent: the registry is full of live runs, %s", what);
}
