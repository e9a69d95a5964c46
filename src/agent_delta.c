#include "agent_delta.h"

const char *
agent_finish_name(agent_finish_t finish)
{
    switch (finish) {
    case AGENT_FINISH_STOP:
        return "stop";
    case AGENT_FINISH_LENGTH:
        return "length";
    case AGENT_FINISH_TOOL_CALLS:
        return "tool_calls";
    case AGENT_FINISH_CONTENT_FILTER:
        return "content_filter";
    case AGENT_FINISH_UNKNOWN:
    default:
        return "";
    }
}

void
agent_usage_init(agent_usage_t *u)
{
    u->input = -1;
    u->output = -1;
    u->total = -1;
    u->reasoning = -1;
    u->cached = -1;
    u->cache_write = -1;
}

int
agent_usage_given(const agent_usage_t *u)
{
    return u->input >= 0 || u->output >= 0 || u->total >= 0 ||
           u->reasoning >= 0 || u->cached >= 0 || u->cache_write >= 0;
}
