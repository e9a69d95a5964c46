#include "agent_base.h"

#include <stdlib.h>
#include <string.h>

static void *
agent_libc_resize(void *ctx, void *p, size_t size)
{
    (void) ctx;

    if (size == 0) {
        free(p);
        return NULL;
    }

    return realloc(p, size);
}

const agent_alloc_t agent_alloc_libc = {agent_libc_resize, NULL};

void *
agent_alloc(const agent_alloc_t *a, size_t size)
{
    return a->resize(a->ctx, NULL, size ? size : 1);
}

void *
agent_calloc(const agent_alloc_t *a, size_t size)
{
    void *p = agent_alloc(a, size);

    if (p != NULL) {
        memset(p, 0, size);
    }

    return p;
}

void
agent_free(const agent_alloc_t *a, void *p)
{
    if (p != NULL) {
        (void) a->resize(a->ctx, p, 0);
    }
}

void
agent_buf_init(agent_buf_t *b, const agent_alloc_t *alloc)
{
    memset(b, 0, sizeof(agent_buf_t));
    b->alloc = alloc;
}

void
agent_buf_free(agent_buf_t *b)
{
    agent_free(b->alloc, b->data);
    agent_buf_init(b, b->alloc);
}

void
agent_buf_reset(agent_buf_t *b)
{
    b->len = 0;
    b->failed = 0;
}

agent_rc_t
agent_buf_reserve(agent_buf_t *b, size_t n)
{
    char *p;
    size_t cap;

    if (b->failed) {
        return AGENT_NOMEM;
    }

    if (b->cap - b->len >= n) {
        return AGENT_OK;
    }

    if (n > SIZE_MAX / 4 || b->len > SIZE_MAX / 4) {
        b->failed = 1;
        return AGENT_NOMEM;
    }

    cap = b->cap ? b->cap : 64;

    while (cap - b->len < n) {
        cap *= 2;
    }

    p = b->alloc->resize(b->alloc->ctx, b->data, cap);
    if (p == NULL) {
        b->failed = 1;
        return AGENT_NOMEM;
    }

    b->data = p;
    b->cap = cap;

    return AGENT_OK;
}

void
agent_buf_add(agent_buf_t *b, const void *p, size_t n)
{
    if (n == 0 || agent_buf_reserve(b, n) != AGENT_OK) {
        return;
    }

    memcpy(b->data + b->len, p, n);
    b->len += n;
}

void
agent_buf_add_str(agent_buf_t *b, agent_str_t s)
{
    agent_buf_add(b, s.data, s.len);
}

void
agent_buf_add_char(agent_buf_t *b, char c)
{
    agent_buf_add(b, &c, 1);
}

void
agent_buf_add_uint(agent_buf_t *b, uint64_t n)
{
    char tmp[20], *p = tmp + sizeof(tmp);

    do {
        *--p = (char) ('0' + n % 10);
        n /= 10;
    } while (n != 0);

    agent_buf_add(b, p, (size_t) (tmp + sizeof(tmp) - p));
}

int
agent_str_eq(agent_str_t a, agent_str_t b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}
