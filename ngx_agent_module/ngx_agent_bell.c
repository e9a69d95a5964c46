
/*
 * Doorbells: who appends to a run that others read wakes their workers, those
 * of older configurations too.
 *
 * Each process slot has an eventfd, made by the master before its first fork
 * and so known to all its workers; the only kind of descriptor that can neither
 * block nor lose a ring.  What rang is told by bits in shared memory, one for
 * each class of keys.  The order is: bits, flag, descriptor here; descriptor,
 * flag, bits there.  So a ring during the scan is followed by another one.
 */

#include "ngx_agent_zone.h"
#include "ngx_agent_replay.h"
#include "ngx_agent_run.h"

#include <sys/eventfd.h>


#define NGX_AGENT_BELL_POLL  50


static void ngx_agent_bell_handler(ngx_event_t *ev);
static void ngx_agent_bell_poll(ngx_event_t *ev);
static void ngx_agent_bell_scan(void);


#ifdef AGENT_ZONE_HOOK

/* a test may keep a bell from being heard, or end who rings it */

int   (*ngx_agent_bell_mute)(void);
void  (*ngx_agent_bell_ringing)(void);

#endif


/* of the master, inherited by all its workers, kept over reloads */

static int         ngx_agent_bells[AGENT_REPLAY_SLOTS];
static ngx_uint_t  ngx_agent_nbells;

/* of this worker process */

static ngx_connection_t  *ngx_agent_bell;
static ngx_event_t        ngx_agent_bell_timer;


ngx_int_t
ngx_agent_bell_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t        i, n;
    ngx_core_conf_t  *ccf;

    if (ngx_test_config || ngx_agent_nbells) {
        return NGX_OK;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(cycle->conf_ctx, ngx_core_module);

    /*
     * Workers know only the descriptors that were there when they were forked,
     * so there have to be enough from the start; those without one look
     * every 50 ms.
     */

    n = 4 * (ngx_uint_t) ngx_max(ccf->worker_processes, 1) + 16;
    n = ngx_min(n, AGENT_REPLAY_SLOTS);

    for (i = 0; i < n; i++) {
        ngx_agent_bells[i] = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

        if (ngx_agent_bells[i] == -1) {
            ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                          "eventfd() failed");
            return NGX_ERROR;
        }
    }

    ngx_agent_nbells = n;

    return NGX_OK;
}


ngx_int_t
ngx_agent_bell_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t         i, slot;
    ngx_connection_t  *c;

    slot = (ngx_uint_t) ngx_process_slot;

    ngx_memzero(&ngx_agent_bell_timer, sizeof(ngx_event_t));

    if (slot >= ngx_agent_nbells) {
        ngx_agent_bell_timer.handler = ngx_agent_bell_poll;
        ngx_agent_bell_timer.data = &ngx_agent_bell_timer;
        ngx_agent_bell_timer.log = cycle->log;
        ngx_agent_bell_timer.cancelable = 1;

        ngx_add_timer(&ngx_agent_bell_timer, NGX_AGENT_BELL_POLL);

        return NGX_OK;
    }

    /* what was rung for the one who had this slot before */

    for (i = 0; i < NGX_AGENT_BELL_WORDS; i++) {
        ngx_agent_shared->dirty[slot][i] = 0;
    }

    ngx_agent_shared->rung[slot] = 0;

    c = ngx_get_connection(ngx_agent_bells[slot], cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->pool = NULL;
    c->read->handler = ngx_agent_bell_handler;
    c->read->log = cycle->log;
    c->read->channel = 1;            /* no connection of a client */
    c->write->log = cycle->log;

    if (ngx_add_event(c->read, NGX_READ_EVENT, NGX_LEVEL_EVENT) != NGX_OK) {
        ngx_free_connection(c);
        return NGX_ERROR;
    }

    ngx_agent_bell = c;

    return NGX_OK;
}


void
ngx_agent_bell_exit_process(void)
{
    ngx_connection_t  *c;

    c = ngx_agent_bell;

    if (c == NULL) {
        return;
    }

    ngx_agent_bell = NULL;

    if (c->read->active) {
        ngx_del_event(c->read, NGX_READ_EVENT, 0);
    }

    ngx_free_connection(c);
    c->fd = (ngx_socket_t) -1;
}


ngx_uint_t
ngx_agent_bell_index(const u_char *key)
{
    return (key[0] | (key[1] << 8)) & (NGX_AGENT_BELL_RUNS - 1);
}


static void
ngx_agent_bell_ring_slot(ngx_uint_t slot, ngx_uint_t run)
{
    uint64_t  one = 1;

#ifdef AGENT_ZONE_HOOK
    if (ngx_agent_bell_mute && ngx_agent_bell_mute()) {
        return;
    }
#endif

    (void) __atomic_fetch_or(&ngx_agent_shared->dirty[slot][run / 64],
                             (uint64_t) 1 << (run % 64), __ATOMIC_SEQ_CST);

    if (__atomic_exchange_n(&ngx_agent_shared->rung[slot], 1, __ATOMIC_SEQ_CST)
        || slot >= ngx_agent_nbells)
    {
        return;
    }

#ifdef AGENT_ZONE_HOOK
    if (ngx_agent_bell_ringing) {
        ngx_agent_bell_ringing();
    }
#endif

    /* it cannot fill up: the flag lets one ring at a time through */

    if (write(ngx_agent_bells[slot], &one, sizeof(one)) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "agent: ringing process slot %ui failed", slot);
    }
}


void
ngx_agent_bell_ring(const u_char *key, const agent_waiters_t *w,
    ngx_int_t slot)
{
    uint64_t    bits;
    ngx_uint_t  i, n, run;

    run = ngx_agent_bell_index(key);

    if (slot >= 0 && slot < AGENT_REPLAY_SLOTS && slot != ngx_process_slot) {
        ngx_agent_bell_ring_slot((ngx_uint_t) slot, run);
    }

    for (i = 0; i < AGENT_REPLAY_SLOTS / 64; i++) {
        for (bits = w->bits[i]; bits; bits &= bits - 1) {

            n = i * 64 + (ngx_uint_t) __builtin_ctzll(bits);

            if (n == (ngx_uint_t) ngx_process_slot) {
                ngx_agent_feeds_rung(run, 0);

            } else {
                ngx_agent_bell_ring_slot(n, run);
            }
        }
    }
}


static void
ngx_agent_bell_handler(ngx_event_t *ev)
{
    ssize_t            n;
    uint64_t           count;
    ngx_connection_t  *c;

    c = ev->data;

    n = read(c->fd, &count, sizeof(count));

    if (n == -1 && ngx_errno != NGX_EAGAIN) {
        ngx_log_error(NGX_LOG_ALERT, ev->log, ngx_errno,
                      "agent: reading the bell failed");
    }

    ngx_agent_bell_scan();
}


static void
ngx_agent_bell_poll(ngx_event_t *ev)
{
    if ((ngx_uint_t) ngx_process_slot < AGENT_REPLAY_SLOTS) {
        ngx_agent_bell_scan();

    } else {
        ngx_agent_feeds_rung(0, 1);
    }

    ngx_add_timer(ev, NGX_AGENT_BELL_POLL);
}


void
ngx_agent_bell_check(void)
{
    ngx_uint_t  slot;

    slot = (ngx_uint_t) ngx_process_slot;

    if (slot < ngx_agent_nbells && ngx_agent_shared->rung[slot]) {
        ngx_agent_bell_scan();
    }
}


ngx_uint_t
ngx_agent_bell_pending(void)
{
    return ngx_process_slot < AGENT_REPLAY_SLOTS
           && ngx_agent_shared->rung[ngx_process_slot] != 0;
}


static void
ngx_agent_bell_scan(void)
{
    uint64_t    bits;
    ngx_uint_t  i, slot;

    slot = (ngx_uint_t) ngx_process_slot;

    (void) __atomic_exchange_n(&ngx_agent_shared->rung[slot], 0,
                               __ATOMIC_SEQ_CST);

    for (i = 0; i < NGX_AGENT_BELL_WORDS; i++) {

        bits = __atomic_exchange_n(&ngx_agent_shared->dirty[slot][i], 0,
                                   __ATOMIC_SEQ_CST);

        for ( /* void */ ; bits; bits &= bits - 1) {
            ngx_agent_feeds_rung(i * 64 + (ngx_uint_t) __builtin_ctzll(bits),
                                 0);
        }
    }
}
