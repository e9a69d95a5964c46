
/*
 * Zones on nginx's side: shared memory, the lock, and who is alive.  What is in
 * them is agent_zone.h and agent_replay.h of the core.
 */

#ifndef _NGX_AGENT_ZONE_H_INCLUDED_
#define _NGX_AGENT_ZONE_H_INCLUDED_


#include "ngx_http_agent.h"
#include "agent_replay.h"
#include "ngx_agent_stat.h"


typedef struct ngx_agent_zone_s  ngx_agent_zone_t;

struct ngx_agent_zone_s {
    ngx_str_t                    name;
    ngx_agent_where_t            where;
    size_t                       size;
    ngx_shm_zone_t              *shm;
    ngx_slab_pool_t             *pool;      /* its mutex is the zone's lock */
    agent_replay_t               replay;    /* this process's view */
    ngx_agent_store_t           *store;
    time_t                       told;      /* when "full" was last logged */
    unsigned                     mended:1;  /* of this holding of the lock */
    unsigned                     reset:1;
};


#define NGX_AGENT_REGISTRY_NAME      "ngx_agent_registry"
#define NGX_AGENT_REGISTRY_NAME_LEN  (sizeof(NGX_AGENT_REGISTRY_NAME) - 1)


/* adds the zone to nginx's; "zone" lives in the configuration's pool */
ngx_int_t ngx_agent_zone_add(ngx_conf_t *cf, ngx_agent_zone_t *zone);

/*
 * The lock.  A holder that finds that the last one died inside mends the zone
 * first; unlock() logs it.  Nothing is logged, waited for or allocated between.
 */
void ngx_agent_zone_lock(ngx_agent_zone_t *zone);
void ngx_agent_zone_unlock(ngx_agent_zone_t *zone);

/* one line a minute that a zone is full, and what for */
void ngx_agent_zone_full(ngx_agent_zone_t *zone, const char *what);


/*
 * ngx_agent_registry.c: the module's own zone, and what all zones have in
 * common: claims, who owns a run, and what becomes of the runs of the dead.
 */

/* the number of this worker process; never used twice in a zone's life */
uint64_t ngx_agent_registry_owner(void);

/* at the end of the configuration, when an agent_pass exists */
ngx_int_t ngx_agent_registry_zone(ngx_conf_t *cf,
    ngx_http_agent_main_conf_t *amcf);
ngx_int_t ngx_agent_registry_init_process(ngx_http_agent_main_conf_t *amcf);
void ngx_agent_registry_exit_process(void);

/*
 * As of ngx_agent_claim_pt, _info_pt and _cancel_pt; the run of a worker that
 * has died is ended first.
 */
ngx_int_t ngx_agent_registry_claim(ngx_agent_zone_t *zone,
    agent_run_ref_t *ref, ngx_str_t *thread, agent_run_info_t *info);
ngx_int_t ngx_agent_registry_info(ngx_agent_zone_t *zone, const u_char *key,
    agent_run_info_t *info);
ngx_int_t ngx_agent_registry_cancel(ngx_agent_zone_t *zone,
    const u_char *key);

/* the worker numbered "owner" in process slot "slot" is alive */
ngx_uint_t ngx_agent_registry_alive(uint64_t owner, ngx_uint_t slot);

/* what is shared by all workers beside runs */

#define NGX_AGENT_BELL_WORDS  8

typedef struct {
    uint64_t                     owners;       /* worker processes so far */
    ngx_atomic_t                 slots[NGX_MAX_PROCESSES];
                                               /* their number, by slot */
    ngx_atomic_t                 bells_lost;
    ngx_atomic_t                 rung[AGENT_REPLAY_SLOTS];
    uint64_t                     dirty[AGENT_REPLAY_SLOTS]
                                      [NGX_AGENT_BELL_WORDS];
    ngx_agent_counters_t         counters;
    ngx_agent_gauges_t           gauges[AGENT_REPLAY_SLOTS];
} ngx_agent_shared_t;

extern ngx_agent_shared_t  *ngx_agent_shared;


/* ngx_agent_slots.c: which worker processes are alive */

ngx_int_t ngx_agent_slots_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_agent_slot_take(ngx_uint_t slot);
ngx_uint_t ngx_agent_slot_alive(ngx_uint_t slot);


/* ngx_agent_bell.c: waking other workers */

ngx_int_t ngx_agent_bell_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_agent_bell_init_process(ngx_cycle_t *cycle);
void ngx_agent_bell_exit_process(void);

/* runs are told apart by this many bits of their keys */
#define NGX_AGENT_BELL_RUNS  (NGX_AGENT_BELL_WORDS * 64)

ngx_uint_t ngx_agent_bell_index(const u_char *key);

/* rings the workers in "w", and the one in "slot" if it has one; not oneself.
 * Not under a lock. */
void ngx_agent_bell_ring(const u_char *key, const agent_waiters_t *w,
    ngx_int_t slot);

/* who rings may die between its flag and the descriptor, and the flag keeps
 * all others quiet: to be called now and then while somebody waits */
void ngx_agent_bell_check(void);

/* somebody has rung and that was not looked into yet */
ngx_uint_t ngx_agent_bell_pending(void);


#endif /* _NGX_AGENT_ZONE_H_INCLUDED_ */
