/*
 * Failing allocations for the tests beside it, linked into the sanitizer build
 * of nginx: "-Wl,--wrap=malloc" and so on lead each call of nginx, the module
 * and the core here.  What shared libraries (libcurl, jansson, OpenSSL) allocate
 * does not come by.
 *
 * AGENT_FAULT names a file of six 64-bit numbers.  It is mapped before main(),
 * so it outlives nginx's clearing of the environment and its forks, and the
 * test talks to a running worker through it (t/lib/AgentFault.pm).  Without
 * the variable nothing fails.
 *
 * This file is compiled without sanitizers' instrumentation of its own.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>


typedef struct {
    uint64_t  pid;      /* only in this process; 0: in all */
    uint64_t  pass;     /* so many more succeed, */
    uint64_t  fail;     /* then so many fail; 0: not armed */
    uint64_t  seen;     /* allocations while armed */
    uint64_t  failed;
    uint64_t  trace;    /* print where */
} fault_t;


void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_memalign(size_t align, size_t size);
int __real_posix_memalign(void **p, size_t align, size_t size);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_memalign(size_t align, size_t size);
int __wrap_posix_memalign(void **p, size_t align, size_t size);

/* of libasan */
void __sanitizer_print_stack_trace(void) __attribute__((weak));


static fault_t  *fault;


__attribute__((constructor)) static void
fault_init(void)
{
    int          fd;
    void        *p;
    const char  *name;

    name = getenv("AGENT_FAULT");

    if (name == NULL) {
        return;
    }

    fd = open(name, O_RDWR | O_CLOEXEC);

    if (fd == -1) {
        return;
    }

    p = mmap(NULL, sizeof(fault_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    close(fd);

    if (p != MAP_FAILED) {
        fault = p;
    }
}


/* the test may write at the same time: never below 0 */

static int
fault_take(uint64_t *n)
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


static int
fault_now(void)
{
    if (fault == NULL || __atomic_load_n(&fault->fail, __ATOMIC_SEQ_CST) == 0
        || (fault->pid && fault->pid != (uint64_t) getpid()))
    {
        return 0;
    }

    fault->seen++;

    if (fault_take(&fault->pass) || !fault_take(&fault->fail)) {
        return 0;
    }

    fault->failed++;

    if (fault->trace && __sanitizer_print_stack_trace) {
        __sanitizer_print_stack_trace();
    }

    errno = ENOMEM;

    return 1;
}


void *
__wrap_malloc(size_t size)
{
    return fault_now() ? NULL : __real_malloc(size);
}


void *
__wrap_calloc(size_t n, size_t size)
{
    return fault_now() ? NULL : __real_calloc(n, size);
}


void *
__wrap_realloc(void *p, size_t size)
{
    return fault_now() ? NULL : __real_realloc(p, size);
}


void *
__wrap_memalign(size_t align, size_t size)
{
    return fault_now() ? NULL : __real_memalign(align, size);
}


int
__wrap_posix_memalign(void **p, size_t align, size_t size)
{
    return fault_now() ? ENOMEM : __real_posix_memalign(p, align, size);
}
