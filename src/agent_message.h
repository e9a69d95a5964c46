/*
 * The neutral message and the input of a run.
 *
 * A message is kept as a normalised AG-UI 1.0 object (a jansson tree with only
 * known members, nulls removed, retired shapes converted), so that it can be
 * stored and sent back as it is, beside the few members that code looks at.
 */

#ifndef AGENT_MESSAGE_H
#define AGENT_MESSAGE_H

#include "agent_base.h"
#include "agent_code.h"

#include <jansson.h>

typedef enum {
    AGENT_ROLE_SYSTEM = 0,
    AGENT_ROLE_DEVELOPER,
    AGENT_ROLE_USER,
    AGENT_ROLE_ASSISTANT,
    AGENT_ROLE_TOOL,
    AGENT_ROLE_REASONING,
    AGENT_ROLE_ACTIVITY,
    AGENT_ROLE_UNKNOWN
} agent_role_t;

#define AGENT_ROLE_BIT(role) (1u << (role))

agent_str_t agent_role_name(agent_role_t role);
agent_role_t agent_role_parse(agent_str_t name); /* AGENT_ROLE_UNKNOWN */

typedef struct {
    agent_role_t role;
    agent_str_t id; /* borrowed from json; empty when the client gave none */
    json_t *json;   /* owned by the agent_input_t */
} agent_message_t;

/* A tool the client offers.  All borrowed from the body given to
 * agent_input_parse() or from the tree. */
typedef struct {
    agent_str_t name;
    agent_str_t description;
    agent_str_t parameters; /* raw JSON bytes as sent, empty: none */
} agent_tool_t;

typedef struct {
    agent_str_t description;
    agent_str_t value;
} agent_context_t;

/* Ids longer than this are refused (docs/http-api.md, "Ids"). */
#define AGENT_ID_MAX 128

/* 1 when the id may stand in a header or a log line as it is: 1 to
 * AGENT_ID_MAX characters of [A-Za-z0-9._:-]. */
int agent_id_is_plain(agent_str_t id);

typedef struct {
    const agent_alloc_t *alloc;
    json_t *root; /* owned */
    json_t *sent; /* owned: an array of all messages of known roles, normalised,
                     as the client holds them: also of roles not accepted, and
                     not touched by agent_input_pair() */
    unsigned refused;      /* AGENT_ROLE_BIT()s whose messages do not enter */
    agent_str_t thread_id; /* empty when absent */
    agent_str_t run_id;
    agent_str_t parent_run_id;
    agent_message_t *messages; /* owned; those of accepted roles, in order */
    size_t nmessages;
    agent_tool_t *tools; /* owned */
    size_t ntools;
    agent_context_t *context; /* owned */
    size_t ncontext;
    agent_str_t list;            /* raw JSON bytes of "messages" */
    agent_str_t state;           /* raw JSON bytes, empty when absent or null */
    agent_str_t forwarded_props; /* raw JSON bytes of an object, else empty */
    unsigned stripped;           /* unknown or refused members dropped */
    int legacy; /* a client of AG-UI 0.0.5x: it names no protocolVersion, and
                   sends the members that only those versions demand */
} agent_input_t;

typedef struct {
    unsigned roles;   /* AGENT_ROLE_BIT()s whose messages may enter */
    int client_tools; /* 0: tools are dropped (and counted as stripped) */
    size_t max_depth; /* of the whole body */
    size_t max_values;
    size_t max_messages; /* 0: no limit besides max_values */
} agent_input_rules_t;

/*
 * Parses the body of POST P: an AG-UI RunAgentInput of 1.0 or 0.0.5x, also
 * with messages in "parts" shape ({role, parts:[{type:"text",text}...]}) or
 * with plain string content.  The body must outlive *in.
 *
 * Known members of a wrong type are refused; unknown members, roles and parts
 * are dropped.  null counts as absent.  ids: strings of 1 to AGENT_ID_MAX
 * characters (Unicode) without control characters.  Empty "messages" (also
 * after dropping) is refused: memory is off.
 *
 * AGENT_OK; AGENT_INVALID or AGENT_TOO_LARGE with *fault naming the field, e.g.
 * "messages[2].content must be a string or an array"; AGENT_NOMEM.  In every
 * case the caller calls agent_input_free().
 */
agent_rc_t agent_input_parse(agent_input_t *in, agent_str_t body,
                             const agent_input_rules_t *rules,
                             const agent_alloc_t *alloc, agent_fault_t *fault);
void agent_input_free(agent_input_t *in);

/*
 * Checks what every provider demands of a conversation: each tool call of an
 * assistant message is answered by tool messages right after it, each tool
 * message answers such a call, the last message (but for system and developer
 * messages) is a user or tool message.
 * Repairs what can be: a call without an answer that is followed by another
 * turn, or by answers to its siblings, gets a synthetic tool result ("No
 * result: the call was not answered.", no id); a tool message that answers
 * nothing and what follows the last user or tool message are dropped (counted
 * in "stripped"); what stands between a call and its result moves before the
 * call.  Consecutive results are accepted in any order.  AGENT_OK,
 * AGENT_NOMEM, or AGENT_INVALID with *fault when no user or tool message is
 * left.
 */
agent_rc_t agent_input_pair(agent_input_t *in, agent_fault_t *fault);

/*
 * For agent_message.c and agent_input.c: a request is checked against tables
 * of members, and a refusal names the place.
 */

/* NULL, or why this is no id: "must not be empty" and so on. */
const char *agent_id_check(agent_str_t id);

typedef struct agent_where_s {
    const struct agent_where_s *up; /* NULL: the request itself */
    const char *key;                /* a member; NULL: element "index" */
    size_t index;
} agent_where_t;

typedef enum {
    AGENT_MEMBER_ANY,
    AGENT_MEMBER_STRING,
    AGENT_MEMBER_NAME, /* a string that is not empty */
    AGENT_MEMBER_ID,
    AGENT_MEMBER_TEXT, /* a string or an array */
    AGENT_MEMBER_ARRAY,
    AGENT_MEMBER_OBJECT
} agent_member_type_t;

typedef struct {
    const char *key;
    agent_member_type_t type;
    int required;
    const char *alias; /* stands in when "key" is absent */
} agent_member_t;

#define AGENT_MAY(key, type)                                                   \
    {                                                                          \
        key, AGENT_MEMBER_##type, 0, NULL                                      \
    }
#define AGENT_MUST(key, type)                                                  \
    {                                                                          \
        key, AGENT_MEMBER_##type, 1, NULL                                      \
    }
#define AGENT_END                                                              \
    {                                                                          \
        NULL, AGENT_MEMBER_ANY, 0, NULL                                        \
    }

typedef struct {
    agent_input_t *in;
    const agent_input_rules_t *rules;
    agent_fault_t *fault;
} agent_reader_t;

/* AGENT_INVALID with "<where>.<key> <what>"; key may be NULL. */
agent_rc_t agent_reader_refuse(const agent_reader_t *r,
                               const agent_where_t *where, const char *key,
                               const char *what);

/* Removes nulls and unknown members, checks the known ones; "members" ends
 * with a NULL key. */
agent_rc_t agent_reader_members(const agent_reader_t *r, json_t *json,
                                const agent_where_t *where,
                                const agent_member_t *members);

/* Normalises one message in place and adds it.  key: "content", or "parts"
 * when its content came under that name, with parts as AI SDKs send them. */
agent_rc_t agent_reader_message(const agent_reader_t *r, json_t *json,
                                agent_role_t role, const agent_where_t *where,
                                const char *key);

/* The same for a message in "parts" shape (agent_parts.c). */
agent_rc_t agent_reader_parts(const agent_reader_t *r, json_t *json,
                              agent_role_t role, const agent_where_t *where);

/* Adds a message and takes over the reference, which may be NULL: the
 * AGENT_NOMEM of the call that made it. */
agent_rc_t agent_input_add(agent_input_t *in, agent_role_t role, json_t *json);

#endif /* AGENT_MESSAGE_H */
