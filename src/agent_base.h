/*
 * Strings, memory and growable buffers of the agent core.
 *
 * The core does no I/O, reads no clock, keeps no globals and allocates only
 * through the agent_alloc_t it is handed (JSON trees of jansson excepted:
 * these use jansson's own allocator).
 */

#ifndef AGENT_BASE_H
#define AGENT_BASE_H

#include <stddef.h>
#include <stdint.h>

/* Return codes of the core.  Everything below zero is a failure. */
typedef enum {
    AGENT_OK = 0,
    AGENT_DONE = 1,       /* nothing more is wanted, not a failure */
    AGENT_DECLINED = 2,   /* not this shape, use the general path */
    AGENT_NOMEM = -1,     /* an allocation failed */
    AGENT_INVALID = -2,   /* the input breaks its format */
    AGENT_TOO_LARGE = -3, /* a limit of this call was passed */
    AGENT_ABORTED = -4    /* a callback asked to stop */
} agent_rc_t;

/* Bytes owned by somebody else.  Not NUL-terminated. */
typedef struct {
    const char *data;
    size_t len;
} agent_str_t;

#define agent_str(literal)                                                     \
    {                                                                          \
        (literal), sizeof(literal) - 1                                         \
    }
#define AGENT_STR(literal) ((agent_str_t){(literal), sizeof(literal) - 1})

/*
 * An allocator.  resize(ctx, NULL, n) allocates, resize(ctx, p, n) moves p as
 * realloc() does, resize(ctx, p, 0) frees p and returns NULL.
 */
typedef struct {
    void *(*resize)(void *ctx, void *p, size_t size);
    void *ctx;
} agent_alloc_t;

/* The allocator of libc. */
extern const agent_alloc_t agent_alloc_libc;

void *agent_alloc(const agent_alloc_t *a, size_t size);
void *agent_calloc(const agent_alloc_t *a, size_t size);
void agent_free(const agent_alloc_t *a, void *p);

/*
 * A growable byte buffer.  A failed allocation is remembered in "failed":
 * later additions do nothing, so a writer adds freely and checks once with
 * agent_buf_ok() at the end.  The owner calls agent_buf_free().
 */
typedef struct {
    char *data;
    size_t len;
    size_t cap;
    const agent_alloc_t *alloc;
    int failed;
} agent_buf_t;

void agent_buf_init(agent_buf_t *b, const agent_alloc_t *alloc);
void agent_buf_free(agent_buf_t *b);

/* Empties the buffer, keeps its memory and clears "failed". */
void agent_buf_reset(agent_buf_t *b);

/* Makes room for n more bytes.  AGENT_OK or AGENT_NOMEM. */
agent_rc_t agent_buf_reserve(agent_buf_t *b, size_t n);

void agent_buf_add(agent_buf_t *b, const void *p, size_t n);
void agent_buf_add_str(agent_buf_t *b, agent_str_t s);
void agent_buf_add_char(agent_buf_t *b, char c);
void agent_buf_add_uint(agent_buf_t *b, uint64_t n);

#define agent_buf_add_lit(b, literal)                                          \
    agent_buf_add((b), (literal), sizeof(literal) - 1)

static inline int
agent_buf_ok(const agent_buf_t *b)
{
    return !b->failed;
}

static inline agent_str_t
agent_buf_str(const agent_buf_t *b)
{
    agent_str_t s = {b->data, b->len};
    return s;
}

/* 1 when both hold the same bytes. */
int agent_str_eq(agent_str_t a, agent_str_t b);

#endif /* AGENT_BASE_H */
