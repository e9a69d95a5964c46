/*
 * The one vocabulary of failures (docs/errors.md): the same word in a JSON
 * error, in RUN_ERROR and in the log, each with its HTTP status.
 */

#ifndef AGENT_CODE_H
#define AGENT_CODE_H

#include "agent_base.h"

typedef enum {
    AGENT_CODE_OK = 0,
    AGENT_CODE_BAD_REQUEST,
    AGENT_CODE_NOTHING_NEW,
    AGENT_CODE_BAD_CURSOR,
    AGENT_CODE_UNAUTHORIZED,
    AGENT_CODE_CSRF,
    AGENT_CODE_NOT_FOUND,
    AGENT_CODE_METHOD_NOT_ALLOWED,
    AGENT_CODE_GONE,
    AGENT_CODE_THREAD_BUSY,
    AGENT_CODE_RUN_ID_IN_USE,
    AGENT_CODE_MEMORY_CONFLICT,
    AGENT_CODE_TOO_LARGE,
    AGENT_CODE_UNSUPPORTED_MEDIA_TYPE,
    AGENT_CODE_INPUT_REFUSED,
    AGENT_CODE_TURN_QUEUE_FULL,
    AGENT_CODE_UPSTREAM_RATE_LIMITED,
    AGENT_CODE_INTERNAL,
    AGENT_CODE_UPSTREAM_UNREACHABLE,
    AGENT_CODE_UPSTREAM_TLS,
    AGENT_CODE_UPSTREAM_AUTH,
    AGENT_CODE_UPSTREAM_REJECTED,
    AGENT_CODE_UPSTREAM_ERROR,
    AGENT_CODE_UPSTREAM_TRUNCATED,
    AGENT_CODE_TURN_TIMEOUT,
    AGENT_CODE_TOO_BUSY,
    AGENT_CODE_ZONE_FULL,
    AGENT_CODE_STORE_UNAVAILABLE,
    AGENT_CODE_DRAINING,
    AGENT_CODE_UPSTREAM_OVERLOADED,
    AGENT_CODE_UPSTREAM_QUOTA,
    AGENT_CODE_UPSTREAM_TIMEOUT,
    AGENT_CODE_RUN_TIMEOUT,
    AGENT_CODE_WORKER_LOST,
    AGENT_CODE_WORKER_SHUTDOWN,
    AGENT_CODE_MAX_STEPS,
    AGENT_CODE_GAP,
    AGENT_CODE_COUNT
} agent_code_t;

/* The word, e.g. "bad_request".  A literal, never NULL. */
const char *agent_code_name(agent_code_t code);

/* The HTTP status that goes with it; 500 for those of a stream only. */
unsigned agent_code_status(agent_code_t code);

/* Seconds for Retry-After when nobody named any: every 429 and 503 has one.
 * 0 for the other codes. */
unsigned agent_code_retry_after(agent_code_t code);

/*
 * A failure to report.  "message" is NUL-terminated UTF-8 for people, not yet
 * escaped, and never holds a secret.
 */
typedef struct {
    agent_code_t code;
    unsigned retry_after; /* seconds for Retry-After, 0: none */
    char message[256];
} agent_fault_t;

/* printf into a fault; a cut never splits a UTF-8 character. */
void agent_fault_set(agent_fault_t *f, agent_code_t code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* AGENT_CODE_H */
