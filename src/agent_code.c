#include "agent_code.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned status;
} agent_codes[AGENT_CODE_COUNT] = {
    [AGENT_CODE_OK] = {"ok", 200},
    [AGENT_CODE_BAD_REQUEST] = {"bad_request", 400},
    [AGENT_CODE_NOTHING_NEW] = {"nothing_new", 400},
    [AGENT_CODE_BAD_CURSOR] = {"bad_cursor", 400},
    [AGENT_CODE_UNAUTHORIZED] = {"unauthorized", 401},
    [AGENT_CODE_CSRF] = {"csrf", 403},
    [AGENT_CODE_NOT_FOUND] = {"not_found", 404},
    [AGENT_CODE_METHOD_NOT_ALLOWED] = {"method_not_allowed", 405},
    [AGENT_CODE_GONE] = {"gone", 410},
    [AGENT_CODE_THREAD_BUSY] = {"thread_busy", 409},
    [AGENT_CODE_RUN_ID_IN_USE] = {"run_id_in_use", 409},
    [AGENT_CODE_MEMORY_CONFLICT] = {"memory_conflict", 409},
    [AGENT_CODE_TOO_LARGE] = {"too_large", 413},
    [AGENT_CODE_UNSUPPORTED_MEDIA_TYPE] = {"unsupported_media_type", 415},
    [AGENT_CODE_INPUT_REFUSED] = {"input_refused", 422},
    [AGENT_CODE_TURN_QUEUE_FULL] = {"turn_queue_full", 429},
    [AGENT_CODE_UPSTREAM_RATE_LIMITED] = {"upstream_rate_limited", 429},
    [AGENT_CODE_INTERNAL] = {"internal", 500},
    [AGENT_CODE_UPSTREAM_UNREACHABLE] = {"upstream_unreachable", 502},
    [AGENT_CODE_UPSTREAM_TLS] = {"upstream_tls", 502},
    [AGENT_CODE_UPSTREAM_AUTH] = {"upstream_auth", 502},
    [AGENT_CODE_UPSTREAM_REJECTED] = {"upstream_rejected", 502},
    [AGENT_CODE_UPSTREAM_ERROR] = {"upstream_error", 502},
    [AGENT_CODE_UPSTREAM_TRUNCATED] = {"upstream_truncated", 502},
    [AGENT_CODE_TURN_TIMEOUT] = {"turn_timeout", 503},
    [AGENT_CODE_TOO_BUSY] = {"too_busy", 503},
    [AGENT_CODE_ZONE_FULL] = {"zone_full", 503},
    [AGENT_CODE_STORE_UNAVAILABLE] = {"store_unavailable", 503},
    [AGENT_CODE_DRAINING] = {"draining", 503},
    [AGENT_CODE_UPSTREAM_OVERLOADED] = {"upstream_overloaded", 503},
    [AGENT_CODE_UPSTREAM_QUOTA] = {"upstream_quota", 503},
    [AGENT_CODE_UPSTREAM_TIMEOUT] = {"upstream_timeout", 504},
    [AGENT_CODE_RUN_TIMEOUT] = {"run_timeout", 504},
    [AGENT_CODE_WORKER_LOST] = {"worker_lost", 500},
    [AGENT_CODE_WORKER_SHUTDOWN] = {"worker_shutdown", 500},
    [AGENT_CODE_MAX_STEPS] = {"max_steps", 500},
    [AGENT_CODE_GAP] = {"gap", 500},
};

const char *
agent_code_name(agent_code_t code)
{
    if ((unsigned) code >= AGENT_CODE_COUNT) {
        return "internal";
    }

    return agent_codes[code].name;
}

unsigned
agent_code_status(agent_code_t code)
{
    if ((unsigned) code >= AGENT_CODE_COUNT) {
        return 500;
    }

    return agent_codes[code].status;
}

unsigned
agent_code_retry_after(agent_code_t code)
{
    switch (code) {
    case AGENT_CODE_UPSTREAM_QUOTA:
        return 60; /* until somebody has paid */

    case AGENT_CODE_UPSTREAM_RATE_LIMITED:
    case AGENT_CODE_UPSTREAM_OVERLOADED:
        return 5;

    default:
        break;
    }

    switch (agent_code_status(code)) {
    case 429:
    case 503:
        return 1;

    default:
        return 0;
    }
}

void
agent_fault_set(agent_fault_t *f, agent_code_t code, const char *fmt, ...)
{
    int n;
    size_t i;
    va_list args;

    f->code = code;
    f->retry_after = 0;

    va_start(args, fmt);
    n = vsnprintf(f->message, sizeof(f->message), fmt, args);
    va_end(args);

    if (n < (int) sizeof(f->message)) {
        return;
    }

    /* cut: step back over the bytes of an unfinished character */

    i = strlen(f->message);

    while (i > 0 && (f->message[i - 1] & 0xc0) == 0x80) {
        i--;
    }

    if (i > 0 && (unsigned char) f->message[i - 1] >= 0xc0) {
        i--;
    }

    f->message[i] = '\0';
}
