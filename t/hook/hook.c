/*
 * Death inside a zone, for t/82-replay-storm.t: linked into builds of the
 * module with AGENT_ZONE_HOOK, where each store that other processes may see
 * calls here first.
 *
 * AGENT_HOOK names a file of 64-bit numbers.  It is mapped when the module is
 * loaded, so it outlives nginx's clearing of the environment and its forks
 * (t/lib/AgentHook.pm is the other side).  Without the variable nothing happens.
 */

#define _GNU_SOURCE

#include "agent_zone.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>


#define HOOK_ZONES  8


typedef struct {
    uint64_t  nunits;       /* tells zones apart */
    uint64_t  nfree;
    uint64_t  nobjects;
    uint64_t  evictions;
    uint64_t  recoveries;
    uint64_t  resets;
} hook_zone_t;


typedef struct {
    uint64_t     pid;       /* only in this process; 0: in all */
    uint64_t     pass;      /* so many more stores are made, */
    uint64_t     armed;     /* then one process dies */
    uint64_t     seen;      /* stores while armed */
    uint64_t     died;      /* who */
    uint64_t     mute;      /* so many bells are not heard */
    uint64_t     ring;      /* this process dies while it rings */
    hook_zone_t  zones[HOOK_ZONES];
} hook_t;


extern int (*ngx_agent_bell_mute)(void);
extern void (*ngx_agent_bell_ringing)(void);

/* configure links this to programs that have none of it */
#pragma weak agent_zone_hook
#pragma weak agent_zone_look
#pragma weak ngx_agent_bell_mute
#pragma weak ngx_agent_bell_ringing

static hook_t  *hook;


/* several processes may come at a time: never below 0 */

static int
hook_take(uint64_t *n)
{
    uint64_t  old;

    old = __atomic_load_n(n, __ATOMIC_SEQ_CST);

    while (old) {
        if (__atomic_compare_exchange_n(n, &old, old - 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
        {
            return 1;
        }
    }

    return 0;
}


static void
hook_store(void)
{
    if (__atomic_load_n(&hook->armed, __ATOMIC_SEQ_CST) == 0
        || (hook->pid && hook->pid != (uint64_t) getpid()))
    {
        return;
    }

    (void) __atomic_fetch_add(&hook->seen, 1, __ATOMIC_SEQ_CST);

    if (hook_take(&hook->pass) || !hook_take(&hook->armed)) {
        return;
    }

    hook->died = (uint64_t) getpid();

    kill(getpid(), SIGKILL);
}


static int
hook_mute(void)
{
    return hook_take(&hook->mute);
}


static void
hook_ringing(void)
{
    if (hook->ring != (uint64_t) getpid()) {
        return;
    }

    hook->ring = 0;
    hook->died = (uint64_t) getpid();

    kill(getpid(), SIGKILL);
}


/* called with the zone's lock held */

static void
hook_look(const agent_zone_head_t *h)
{
    int           i;
    uint64_t      none;
    hook_zone_t  *z;

    for (i = 0; i < HOOK_ZONES; i++) {

        z = &hook->zones[i];
        none = 0;

        if (z->nunits == h->nunits
            || __atomic_compare_exchange_n(&z->nunits, &none, h->nunits, 0,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
            || none == h->nunits)
        {
            z->nfree = h->nfree;
            z->nobjects = h->nobjects;
            z->evictions = h->evictions;
            z->recoveries = h->recoveries;
            z->resets = h->resets;
            return;
        }
    }
}


__attribute__((constructor)) static void
hook_init(void)
{
    int          fd;
    void        *p;
    const char  *name;

    name = getenv("AGENT_HOOK");

    if (name == NULL || &agent_zone_hook == NULL) {
        return;
    }

    fd = open(name, O_RDWR | O_CLOEXEC);

    if (fd == -1) {
        return;
    }

    p = mmap(NULL, sizeof(hook_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);

    if (p == MAP_FAILED) {
        return;
    }

    hook = p;

    agent_zone_hook = hook_store;
    agent_zone_look = hook_look;
    ngx_agent_bell_mute = hook_mute;
    ngx_agent_bell_ringing = hook_ringing;
}
