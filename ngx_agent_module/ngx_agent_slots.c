
/*
 * Who is alive, exactly.  Each worker locks the byte of its process slot in a
 * file that the master made and that has no name; the kernel gives the lock
 * back when the process ends, however it ends.  A pid alone would not do: it
 * may be somebody else's by now.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_replay.h"

#include <sys/mman.h>


/* of the master, inherited by all its workers, kept over reloads */

static int  ngx_agent_slots_fd = -1;


ngx_int_t
ngx_agent_slots_init_module(ngx_cycle_t *cycle)
{
    if (ngx_test_config || ngx_agent_slots_fd != -1) {
        return NGX_OK;
    }

    ngx_agent_slots_fd = memfd_create("ngx_agent_slots", MFD_CLOEXEC);

    if (ngx_agent_slots_fd == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                      "memfd_create(\"ngx_agent_slots\") failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
ngx_agent_slot_range(struct flock *fl, ngx_uint_t slot)
{
    ngx_memzero(fl, sizeof(struct flock));

    fl->l_type = F_WRLCK;
    fl->l_whence = SEEK_SET;
    fl->l_start = (off_t) slot;
    fl->l_len = 1;
}


ngx_int_t
ngx_agent_slot_take(ngx_uint_t slot)
{
    struct flock  fl;

    ngx_agent_slot_range(&fl, slot);

    if (fcntl(ngx_agent_slots_fd, F_SETLK, &fl) == -1) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "agent: locking process slot %ui failed", slot);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* of another process: one's own lock is not seen */

ngx_uint_t
ngx_agent_slot_alive(ngx_uint_t slot)
{
    struct flock  fl;

    ngx_agent_slot_range(&fl, slot);

    if (fcntl(ngx_agent_slots_fd, F_GETLK, &fl) == -1) {

        /* rather wait for a dead one than take a run from a live one */

        return 1;
    }

    return fl.l_type != F_UNLCK;
}
