
/*
 * agent_status: what operators look at, as JSON or for Prometheus.  Reading it
 * takes no walk over runs: counters, and what the zones' headers say.
 */

#include "ngx_http_agent.h"
#include "ngx_agent_zone.h"


#define NGX_AGENT_STAT_JSON        0
#define NGX_AGENT_STAT_PROMETHEUS  1


static const ngx_msec_t  ngx_agent_stat_bounds[NGX_AGENT_STAT_BOUNDS] = {
    50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 300000
};


/* the sum of what is there now in all live workers, runs by their zones */

typedef struct {
    uint64_t             runs;
    ngx_agent_gauges_t   now;
    ngx_uint_t           workers;
} ngx_agent_stat_now_t;


typedef struct {
    ngx_str_t           *name;
    const char          *kind;
    uint64_t             units;
    uint64_t             free;
    uint64_t             objects;
    uint64_t             live;
    uint64_t             evictions;
    uint64_t             recoveries;
    uint64_t             resets;
} ngx_agent_stat_zone_t;


void
ngx_agent_stat_time(ngx_agent_histogram_t *h, ngx_msec_t ms)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_AGENT_STAT_BOUNDS; i++) {
        if (ms <= ngx_agent_stat_bounds[i]) {
            break;
        }
    }

    (void) ngx_atomic_fetch_add(&h->buckets[i], 1);
    (void) ngx_atomic_fetch_add(&h->sum, (ngx_atomic_int_t) ms);
}


static void
ngx_agent_stat_zone(ngx_agent_zone_t *zone, const char *kind,
    ngx_agent_stat_zone_t *st)
{
    agent_zone_head_t  *h;

    h = zone->replay.zone.head;

    ngx_agent_zone_lock(zone);

    st->units = h->nunits - 1;
    st->free = h->nfree;
    st->objects = h->nobjects;
    st->live = h->lists[AGENT_LIST_LIVE].count;
    st->evictions = h->evictions;
    st->recoveries = h->recoveries;
    st->resets = h->resets;

    ngx_agent_zone_unlock(zone);

    st->name = &zone->name;
    st->kind = kind;
}


/* NULL: no memory */

static ngx_agent_stat_zone_t *
ngx_agent_stat_zones(ngx_http_request_t *r, ngx_uint_t *n)
{
    ngx_uint_t                   i;
    ngx_agent_zone_t           **zones;
    ngx_agent_stat_zone_t       *st;
    ngx_http_agent_main_conf_t  *amcf;

    amcf = ngx_http_get_module_main_conf(r, ngx_http_agent_module);

    *n = amcf->replay_zones.nelts + 1;

    st = ngx_palloc(r->pool, *n * sizeof(ngx_agent_stat_zone_t));
    if (st == NULL) {
        return NULL;
    }

    ngx_agent_stat_zone(amcf->registry, "core", &st[0]);

    zones = amcf->replay_zones.elts;

    for (i = 0; i < amcf->replay_zones.nelts; i++) {
        ngx_agent_stat_zone(zones[i], "replay", &st[i + 1]);
    }

    return st;
}


static void
ngx_agent_stat_now(ngx_agent_stat_now_t *now, ngx_agent_stat_zone_t *zones,
    ngx_uint_t nzones)
{
    ngx_uint_t           i;
    ngx_agent_gauges_t  *g;

    ngx_memzero(now, sizeof(ngx_agent_stat_now_t));

    for (i = 0; i < nzones; i++) {
        now->runs += zones[i].live;
    }

    for (i = 0; i < AGENT_REPLAY_SLOTS; i++) {

        if (ngx_agent_shared->slots[i] == 0) {
            continue;
        }

        g = &ngx_agent_shared->gauges[i];

        now->workers++;
        now->now.streams += g->streams;
        now->now.calls += g->calls;
        now->now.connections += g->connections;
    }
}


/* --- JSON --------------------------------------------------------------- */

static void
ngx_agent_stat_member(agent_buf_t *b, const char *name, uint64_t n)
{
    if (b->len && b->data[b->len - 1] != '{') {
        agent_buf_add_char(b, ',');
    }

    agent_buf_add_char(b, '"');
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_lit(b, "\":");
    agent_buf_add_uint(b, n);
}


static void
ngx_agent_stat_codes(agent_buf_t *b, const char *name, ngx_atomic_t *codes)
{
    ngx_uint_t  i;

    agent_buf_add_char(b, '"');
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_lit(b, "\":{");

    for (i = 1; i < AGENT_CODE_COUNT; i++) {
        if (codes[i]) {
            ngx_agent_stat_member(b, agent_code_name(i), codes[i]);
        }
    }

    agent_buf_add_char(b, '}');
}


static void
ngx_agent_stat_json_times(agent_buf_t *b, const char *name,
    ngx_agent_histogram_t *h)
{
    ngx_uint_t  i;
    uint64_t    count;

    agent_buf_add_char(b, '"');
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_lit(b, "\":{\"le\":[");

    count = 0;

    for (i = 0; i <= NGX_AGENT_STAT_BOUNDS; i++) {

        if (i) {
            agent_buf_add_char(b, ',');
        }

        agent_buf_add_lit(b, "{\"ms\":");

        if (i < NGX_AGENT_STAT_BOUNDS) {
            agent_buf_add_uint(b, ngx_agent_stat_bounds[i]);

        } else {
            agent_buf_add_lit(b, "null");
        }

        count += h->buckets[i];

        ngx_agent_stat_member(b, "count", count);
        agent_buf_add_char(b, '}');
    }

    agent_buf_add_lit(b, "]");
    ngx_agent_stat_member(b, "count", count);
    ngx_agent_stat_member(b, "sumMs", h->sum);
    agent_buf_add_char(b, '}');
}


static void
ngx_agent_stat_json(agent_buf_t *b, ngx_agent_stat_now_t *now,
    ngx_agent_stat_zone_t *zones, ngx_uint_t nzones)
{
    ngx_uint_t             i;
    ngx_agent_counters_t  *c;

    c = &ngx_agent_shared->counters;

    agent_buf_add_lit(b, "{");
    ngx_agent_stat_member(b, "workers", now->workers);

    agent_buf_add_lit(b, ",\"runs\":{");
    ngx_agent_stat_member(b, "started", c->started);
    ngx_agent_stat_member(b, "active", now->runs);
    ngx_agent_stat_member(b, "finished", c->finished);
    ngx_agent_stat_member(b, "cancelled", c->cancelled);
    agent_buf_add_char(b, ',');
    ngx_agent_stat_codes(b, "errors", c->errors);

    agent_buf_add_lit(b, "},\"streams\":{");
    ngx_agent_stat_member(b, "started", c->streams);
    ngx_agent_stat_member(b, "active", now->now.streams);
    ngx_agent_stat_member(b, "resumed", c->resumed);
    ngx_agent_stat_member(b, "unknown", c->unknown);
    ngx_agent_stat_member(b, "gaps", c->gaps);
    agent_buf_add_char(b, '}');

    ngx_agent_stat_member(b, "events", c->events);
    ngx_agent_stat_member(b, "bytes", c->bytes);
    ngx_agent_stat_member(b, "bells_lost", ngx_agent_shared->bells_lost);

    agent_buf_add_lit(b, ",\"zones\":[");

    for (i = 0; i < nzones; i++) {

        if (i) {
            agent_buf_add_char(b, ',');
        }

        agent_buf_add_lit(b, "{\"name\":");
        agent_json_quote(b, ngx_agent_str(zones[i].name));
        agent_buf_add_lit(b, ",\"kind\":\"");
        agent_buf_add(b, zones[i].kind, ngx_strlen(zones[i].kind));
        agent_buf_add_char(b, '"');

        ngx_agent_stat_member(b, "pages", zones[i].units);
        ngx_agent_stat_member(b, "free", zones[i].free);
        ngx_agent_stat_member(b, "runs", zones[i].objects);
        ngx_agent_stat_member(b, "evictions", zones[i].evictions);
        ngx_agent_stat_member(b, "recoveries", zones[i].recoveries);
        ngx_agent_stat_member(b, "resets", zones[i].resets);
        agent_buf_add_char(b, '}');
    }

    agent_buf_add_lit(b, "],\"upstream\":{");
    ngx_agent_stat_member(b, "started", c->calls);
    ngx_agent_stat_member(b, "active", now->now.calls);
    ngx_agent_stat_member(b, "failures", c->failures);
    ngx_agent_stat_member(b, "connections", now->now.connections);
    agent_buf_add_lit(b, "},");

    ngx_agent_stat_codes(b, "refused", c->refused);
    agent_buf_add_char(b, ',');
    ngx_agent_stat_json_times(b, "firstToken", &c->first_token);
    agent_buf_add_char(b, ',');
    ngx_agent_stat_json_times(b, "runTime", &c->run_time);
    agent_buf_add_char(b, '}');
}


/* --- Prometheus: text exposition format 0.0.4 ---------------------------- */

static void
ngx_agent_stat_head(agent_buf_t *b, const char *name, const char *type,
    const char *help)
{
    agent_buf_add_lit(b, "# HELP nginx_agent_");
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_char(b, ' ');
    agent_buf_add(b, help, ngx_strlen(help));
    agent_buf_add_lit(b, "\n# TYPE nginx_agent_");
    agent_buf_add(b, name, ngx_strlen(name));
    agent_buf_add_char(b, ' ');
    agent_buf_add(b, type, ngx_strlen(type));
    agent_buf_add_char(b, LF);
}


static void
ngx_agent_stat_sample(agent_buf_t *b, const char *name, const char *labels,
    uint64_t n)
{
    agent_buf_add_lit(b, "nginx_agent_");
    agent_buf_add(b, name, ngx_strlen(name));

    if (labels) {
        agent_buf_add_char(b, '{');
        agent_buf_add(b, labels, ngx_strlen(labels));
        agent_buf_add_char(b, '}');
    }

    agent_buf_add_char(b, ' ');
    agent_buf_add_uint(b, n);
    agent_buf_add_char(b, LF);
}


static void
ngx_agent_stat_one(agent_buf_t *b, const char *name, const char *type,
    const char *help, uint64_t n)
{
    ngx_agent_stat_head(b, name, type, help);
    ngx_agent_stat_sample(b, name, NULL, n);
}


static void
ngx_agent_stat_by_code(agent_buf_t *b, const char *name, const char *help,
    ngx_atomic_t *codes)
{
    u_char      labels[64];
    ngx_uint_t  i;

    ngx_agent_stat_head(b, name, "counter", help);

    for (i = 1; i < AGENT_CODE_COUNT; i++) {
        if (codes[i]) {
            ngx_sprintf(labels, "code=\"%s\"%Z", agent_code_name(i));
            ngx_agent_stat_sample(b, name, (char *) labels, codes[i]);
        }
    }
}


static void
ngx_agent_stat_times(agent_buf_t *b, const char *name, const char *help,
    ngx_agent_histogram_t *h)
{
    u_char      text[128], labels[64];
    uint64_t    count;
    ngx_uint_t  i;

    ngx_agent_stat_head(b, name, "histogram", help);
    ngx_sprintf(text, "%s_bucket%Z", name);

    count = 0;

    for (i = 0; i < NGX_AGENT_STAT_BOUNDS; i++) {
        count += h->buckets[i];

        ngx_sprintf(labels, "le=\"%M.%03M\"%Z",
                    ngx_agent_stat_bounds[i] / 1000,
                    ngx_agent_stat_bounds[i] % 1000);

        ngx_agent_stat_sample(b, (char *) text, (char *) labels, count);
    }

    count += h->buckets[i];

    ngx_agent_stat_sample(b, (char *) text, "le=\"+Inf\"", count);

    agent_buf_add_lit(b, "nginx_agent_");
    agent_buf_add(b, name, ngx_strlen(name));

    i = ngx_sprintf(text, "_sum %uA.%03uA\n", h->sum / 1000, h->sum % 1000)
        - text;
    agent_buf_add(b, text, i);

    ngx_sprintf(text, "%s_count%Z", name);
    ngx_agent_stat_sample(b, (char *) text, NULL, count);
}


static void
ngx_agent_stat_by_zone(agent_buf_t *b, const char *name, const char *type,
    const char *help, ngx_agent_stat_zone_t *zones, ngx_uint_t nzones,
    size_t offset)
{
    u_char      labels[256];
    uint64_t   *n;
    ngx_uint_t  i;

    ngx_agent_stat_head(b, name, type, help);

    for (i = 0; i < nzones; i++) {

        /* a name has at most 64 characters, none to be escaped */

        ngx_sprintf(labels, "zone=\"%V\",kind=\"%s\"%Z", zones[i].name,
                    zones[i].kind);

        n = (uint64_t *) ((u_char *) &zones[i] + offset);

        ngx_agent_stat_sample(b, name, (char *) labels, *n);
    }
}


static void
ngx_agent_stat_prometheus(agent_buf_t *b, ngx_agent_stat_now_t *now,
    ngx_agent_stat_zone_t *zones, ngx_uint_t nzones)
{
    ngx_agent_counters_t  *c;

    c = &ngx_agent_shared->counters;

    ngx_agent_stat_one(b, "workers", "gauge", "Worker processes.",
                       now->workers);
    ngx_agent_stat_one(b, "runs_started_total", "counter", "Runs started.",
                       c->started);
    ngx_agent_stat_one(b, "runs_active", "gauge", "Runs that are not over.",
                       now->runs);
    ngx_agent_stat_one(b, "runs_finished_total", "counter",
                       "Runs that ended well.", c->finished);
    ngx_agent_stat_one(b, "runs_cancelled_total", "counter",
                       "Runs that were stopped.", c->cancelled);
    ngx_agent_stat_by_code(b, "runs_failed_total",
                           "Runs that ended with an error, by its code.",
                           c->errors);
    ngx_agent_stat_by_code(b, "requests_refused_total",
                           "Requests answered with an error, by its code.",
                           c->refused);

    ngx_agent_stat_one(b, "streams_started_total", "counter",
                       "Streams opened.", c->streams);
    ngx_agent_stat_one(b, "streams_active", "gauge", "Streams being read.",
                       now->now.streams);
    ngx_agent_stat_one(b, "streams_resumed_total", "counter",
                       "Streams opened with a cursor.", c->resumed);
    ngx_agent_stat_one(b, "streams_unknown_total", "counter",
                       "Streams opened with a cursor that nobody knows.",
                       c->unknown);
    ngx_agent_stat_one(b, "gaps_total", "counter",
                       "Times a reader's place was gone.", c->gaps);
    ngx_agent_stat_one(b, "events_total", "counter", "Events of runs.",
                       c->events);
    ngx_agent_stat_one(b, "sent_bytes_total", "counter",
                       "Bytes of events sent to readers.", c->bytes);
    ngx_agent_stat_one(b, "bells_lost_total", "counter",
                       "Events found without a bell: should stay 0.",
                       ngx_agent_shared->bells_lost);

    ngx_agent_stat_one(b, "upstream_calls_total", "counter",
                       "Calls to models.", c->calls);
    ngx_agent_stat_one(b, "upstream_calls_active", "gauge",
                       "Calls to models under way.", now->now.calls);
    ngx_agent_stat_one(b, "upstream_failures_total", "counter",
                       "Calls to models that failed.", c->failures);
    ngx_agent_stat_one(b, "upstream_connections", "gauge",
                       "Connections to models that are in use.",
                       now->now.connections);

    ngx_agent_stat_by_zone(b, "zone_pages", "gauge", "Pages of a zone.",
                           zones, nzones,
                           offsetof(ngx_agent_stat_zone_t, units));
    ngx_agent_stat_by_zone(b, "zone_pages_free", "gauge",
                           "Free pages of a zone.", zones, nzones,
                           offsetof(ngx_agent_stat_zone_t, free));
    ngx_agent_stat_by_zone(b, "zone_runs", "gauge",
                           "Runs a zone knows of.", zones, nzones,
                           offsetof(ngx_agent_stat_zone_t, objects));
    ngx_agent_stat_by_zone(b, "zone_evictions_total", "counter",
                           "Ended runs that had to make room.", zones, nzones,
                           offsetof(ngx_agent_stat_zone_t, evictions));
    ngx_agent_stat_by_zone(b, "zone_recoveries_total", "counter",
                           "Times a zone was mended after a process died in "
                           "it.", zones, nzones,
                           offsetof(ngx_agent_stat_zone_t, recoveries));
    ngx_agent_stat_by_zone(b, "zone_resets_total", "counter",
                           "Times a damaged zone had to be emptied.", zones,
                           nzones, offsetof(ngx_agent_stat_zone_t, resets));

    ngx_agent_stat_times(b, "first_token_seconds",
                         "Time from the start of a run to what the model said "
                         "first.", &c->first_token);
    ngx_agent_stat_times(b, "run_seconds", "Time from start to end of a run.",
                         &c->run_time);
}


/* --- the handler -------------------------------------------------------- */

ngx_int_t
ngx_http_agent_stat_handler(ngx_http_request_t *r)
{
    ngx_int_t                   rc;
    ngx_uint_t                  nzones;
    ngx_buf_t                  *buf;
    ngx_chain_t                 out;
    agent_buf_t                 b;
    ngx_agent_stat_now_t        now;
    ngx_agent_stat_zone_t      *zones;
    ngx_http_agent_loc_conf_t  *alcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    alcf = ngx_http_get_module_loc_conf(r, ngx_http_agent_module);

    zones = ngx_agent_stat_zones(r, &nzones);
    if (zones == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_agent_stat_now(&now, zones, nzones);

    agent_buf_init(&b, &agent_alloc_libc);

    if (alcf->stat == NGX_AGENT_STAT_PROMETHEUS) {
        ngx_str_set(&r->headers_out.content_type,
                    "text/plain; version=0.0.4; charset=utf-8");

        ngx_agent_stat_prometheus(&b, &now, zones, nzones);

    } else {
        ngx_str_set(&r->headers_out.content_type, "application/json");

        ngx_agent_stat_json(&b, &now, zones, nzones);
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (!agent_buf_ok(&b)) {
        agent_buf_free(&b);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    buf = ngx_create_temp_buf(r->pool, b.len + 1);

    if (buf == NULL) {
        agent_buf_free(&b);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    buf->last = ngx_cpymem(buf->last, b.data, b.len);

    if (alcf->stat == NGX_AGENT_STAT_JSON) {
        *buf->last++ = LF;
    }

    agent_buf_free(&b);

    buf->last_buf = (r == r->main) ? 1 : 0;
    buf->last_in_chain = 1;

    out.buf = buf;
    out.next = NULL;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = buf->last - buf->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, &out);
}


char *
ngx_http_agent_stat(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_agent_loc_conf_t *alcf = conf;

    ngx_str_t                   *value;
    ngx_http_core_loc_conf_t    *clcf;
    ngx_http_agent_main_conf_t  *amcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    value = cf->args->elts;

    if (clcf->handler == ngx_http_agent_stat_handler) {
        return "is duplicate";
    }

    if (clcf->handler) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "a directive before \"agent_status\" answers in "
                           "this location already, only one can");
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 1 || ngx_strcmp(value[1].data, "json") == 0) {
        alcf->stat = NGX_AGENT_STAT_JSON;

    } else if (ngx_strcmp(value[1].data, "prometheus") == 0) {
        alcf->stat = NGX_AGENT_STAT_PROMETHEUS;

    } else {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown format \"%V\", there are \"json\" and "
                           "\"prometheus\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    clcf->handler = ngx_http_agent_stat_handler;

    amcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_agent_module);
    amcf->used = 1;

    return NGX_CONF_OK;
}
