
/*
 * What a run takes from the client's request: the body of the model call, and
 * the messages that a snapshot repeats.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_run.h"


#define NGX_AGENT_INPUT_KEPT    (256 * 1024)


/* what forwardedProps says of the members it may override */

static ngx_int_t
ngx_agent_run_overrides(ngx_agent_run_t *run, ngx_http_request_t *r,
    agent_input_t *input, ngx_array_t *overrides)
{
    ngx_str_t      *names;
    ngx_uint_t      i;
    agent_str_t     value;
    agent_param_t  *param;

    if (ngx_array_init(overrides, r->pool, 4, sizeof(agent_param_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (run->agent->allow_override == NULL || input->forwarded_props.len == 0)
    {
        return NGX_OK;
    }

    names = run->agent->allow_override->elts;

    for (i = 0; i < run->agent->allow_override->nelts; i++) {

        if (agent_json_find(input->forwarded_props, ngx_agent_str(&names[i]),
                            &value)
            != AGENT_OK)
        {
            continue;
        }

        param = ngx_array_push(overrides);
        if (param == NULL) {
            return NGX_ERROR;
        }

        param->key = ngx_agent_str(&names[i]);
        param->value = value;
    }

    return NGX_OK;
}


ngx_int_t
ngx_agent_run_request(ngx_agent_run_t *run, ngx_http_request_t *r,
    agent_input_t *input, agent_fault_t *fault)
{
    agent_rc_t       rc;
    ngx_array_t      overrides;
    agent_request_t  req;

    if (ngx_agent_run_overrides(run, r, input, &overrides) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&req, sizeof(agent_request_t));

    req.model = ngx_agent_str(&run->model->model);
    req.system = ngx_agent_str(&run->agent->system);
    req.messages = input->messages;
    req.nmessages = input->nmessages;
    req.tools = input->tools;
    req.ntools = input->ntools;
    req.context = input->context;
    req.ncontext = input->ncontext;

    if (run->model->set) {
        req.set = run->model->set->elts;
        req.nset = run->model->set->nelts;
    }

    req.overrides = overrides.elts;
    req.noverrides = overrides.nelts;

    rc = run->model->codec->request(&run->body, &req, fault);

    if (rc == AGENT_OK) {
        return NGX_OK;
    }

    return (rc == AGENT_INVALID) ? NGX_DECLINED : NGX_ERROR;
}


/*
 * A reader that has lost its place needs the request's messages once more, so
 * they are kept, as they came, as long as they are small.  They are the ones
 * that the client sent, not the ones that the model got: what a snapshot lacks,
 * the client deletes.
 */

void
ngx_agent_run_keep_input(ngx_agent_run_t *run, agent_input_t *input)
{
    agent_str_t  messages;

    messages = input->list;

    if (messages.len == 0 || messages.len > NGX_AGENT_INPUT_KEPT) {
        return;
    }

    run->sent.data = ngx_pnalloc(run->pool,
                                 NGX_AGENT_RUN_SEED_CHARS + messages.len);

    if (run->sent.data == NULL) {
        return;
    }

    /* the seed is for the ids of messages that have none */

    ngx_memcpy(run->sent.data, run->seed, NGX_AGENT_RUN_SEED_CHARS);
    ngx_memcpy(run->sent.data + NGX_AGENT_RUN_SEED_CHARS, messages.data,
               messages.len);
    run->sent.len = NGX_AGENT_RUN_SEED_CHARS + messages.len;
}


/* messages of a snapshot must have an id; it is the same in each snapshot */

static ngx_int_t
ngx_agent_run_message_id(const char *seed, json_t *message, size_t i)
{
    u_char  *p, id[64];

    if (json_object_get(message, "id")) {
        return NGX_OK;
    }

    p = ngx_sprintf(id, "in_%*s_%uz", (size_t) NGX_AGENT_RUN_SEED_CHARS,
                    seed, i);

    if (json_object_set_new(message, "id",
                            json_stringn((char *) id, p - id))
        != 0)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static int
ngx_agent_run_dump(const char *p, size_t n, void *data)
{
    agent_buf_t *b = data;

    agent_buf_add(b, p, n);

    return agent_buf_ok(b) ? 0 : -1;
}


ngx_int_t
ngx_agent_kept_input(agent_str_t kept, agent_buf_t *out)
{
    size_t                i, start;
    json_t               *message;
    ngx_int_t             rc;
    agent_buf_t           b;
    agent_input_t         input;
    agent_fault_t         fault;
    agent_input_rules_t   rules;

    if (kept.len < NGX_AGENT_RUN_SEED_CHARS) {
        return NGX_DECLINED;
    }

    ngx_memzero(&input, sizeof(agent_input_t));
    agent_buf_init(&b, &agent_alloc_libc);

    agent_buf_add_lit(&b, "{\"messages\":");
    agent_buf_add(&b, kept.data + NGX_AGENT_RUN_SEED_CHARS,
                  kept.len - NGX_AGENT_RUN_SEED_CHARS);
    agent_buf_add_char(&b, '}');

    /* it was accepted once; every role is the client's to hold */

    ngx_memzero(&rules, sizeof(agent_input_rules_t));

    rules.roles = ~0u;

    rc = NGX_ERROR;
    start = out->len;

    if (agent_buf_ok(&b)
        && agent_input_parse(&input, agent_buf_str(&b), &rules,
                             &agent_alloc_libc, &fault)
           == AGENT_OK)
    {
        rc = NGX_OK;

        json_array_foreach(input.sent, i, message) {

            if (i) {
                agent_buf_add_char(out, ',');
            }

            if (ngx_agent_run_message_id(kept.data, message, i) != NGX_OK
                || json_dump_callback(message, ngx_agent_run_dump, out,
                                      JSON_COMPACT)
                   != 0)
            {
                rc = NGX_ERROR;
                break;
            }
        }
    }

    agent_input_free(&input);
    agent_buf_free(&b);

    if (rc != NGX_OK) {
        out->len = start;
    }

    return rc;
}


/* made when the first reader needs it, kept for the next */

ngx_int_t
ngx_agent_run_input(ngx_agent_run_t *run, agent_str_t *messages)
{
    ngx_int_t  rc;

    if (run->input.len == 0) {
        rc = ngx_agent_kept_input(ngx_agent_str(&run->sent), &run->input);

        if (rc != NGX_OK) {
            agent_buf_free(&run->input);
            return rc;
        }
    }

    *messages = agent_buf_str(&run->input);

    return NGX_OK;
}
