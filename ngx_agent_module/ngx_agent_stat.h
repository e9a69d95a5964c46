
/*
 * Counters for agent_status: in the module's zone, of all workers since nginx
 * was started; they survive reload.
 */

#ifndef _NGX_AGENT_STAT_H_INCLUDED_
#define _NGX_AGENT_STAT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>

#include "agent_code.h"


/* upper bounds in ms; one more bucket for what is longer */
#define NGX_AGENT_STAT_BOUNDS  11

typedef struct {
    ngx_atomic_t                 buckets[NGX_AGENT_STAT_BOUNDS + 1];
    ngx_atomic_t                 sum;          /* ms */
} ngx_agent_histogram_t;


typedef struct {
    ngx_atomic_t                 started;
    ngx_atomic_t                 finished;
    ngx_atomic_t                 cancelled;
    ngx_atomic_t                 errors[AGENT_CODE_COUNT];
    ngx_atomic_t                 refused[AGENT_CODE_COUNT];
    ngx_atomic_t                 streams;
    ngx_atomic_t                 resumed;      /* streams from a cursor */
    ngx_atomic_t                 unknown;      /* of them: X-Agent-Resume */
    ngx_atomic_t                 gaps;         /* snapshots, "gap" errors */
    ngx_atomic_t                 events;
    ngx_atomic_t                 bytes;
    ngx_atomic_t                 calls;        /* to models */
    ngx_atomic_t                 failures;     /* of them */
    ngx_agent_histogram_t        first_token;
    ngx_agent_histogram_t        run_time;
} ngx_agent_counters_t;


/* what is there now, by process slot: who dies takes his with him */

typedef struct {
    uint32_t                     streams;
    uint32_t                     calls;
    uint32_t                     connections;
} ngx_agent_gauges_t;


void ngx_agent_stat_time(ngx_agent_histogram_t *h, ngx_msec_t ms);

#define ngx_agent_stat_add(name, n)                                           \
    (void) ngx_atomic_fetch_add(&ngx_agent_shared->counters.name,             \
                                (ngx_atomic_int_t) (n))

/* of this worker; none beyond the last slot */
#define ngx_agent_stat_gauge(name, n)                                         \
    if ((ngx_uint_t) ngx_process_slot < AGENT_REPLAY_SLOTS) {                 \
        ngx_agent_shared->gauges[ngx_process_slot].name += (uint32_t) (n);    \
    }


#endif /* _NGX_AGENT_STAT_H_INCLUDED_ */
