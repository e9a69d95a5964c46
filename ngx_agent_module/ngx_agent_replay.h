
/*
 * The replay store: the registry of runs and the logs of their events, behind
 * a small table of functions.  A store that must ask elsewhere answers through
 * the callback later, the one in this worker's memory answers at once; callers
 * do not know which they have.
 */

#ifndef _NGX_AGENT_REPLAY_H_INCLUDED_
#define _NGX_AGENT_REPLAY_H_INCLUDED_


#include "ngx_http_agent.h"


typedef enum {
    NGX_AGENT_RUN_QUEUED = 0,
    NGX_AGENT_RUN_RUNNING,
    NGX_AGENT_RUN_FINISHING,
    NGX_AGENT_RUN_FINISHED,        /* from here on the run is over */
    NGX_AGENT_RUN_CANCELLED,
    NGX_AGENT_RUN_ERROR,
    NGX_AGENT_RUN_INTERRUPTED
} ngx_agent_status_e;

#define ngx_agent_status_over(s)  ((s) >= NGX_AGENT_RUN_FINISHED)

const char *ngx_agent_status_name(ngx_uint_t status);


/* what the registry knows of a run */

typedef struct {
    ngx_uint_t                   status;
    uint64_t                     generation;
    uint64_t                     last_seq;       /* (uint64_t) -1: no event */
    uint64_t                     started;        /* ms since the epoch */
    uint64_t                     finished;       /* 0: not yet */
    agent_usage_t                usage;
    ngx_uint_t                   code;           /* agent_code_t of an error */
    unsigned                     content:1;      /* something was said */
    size_t                       thread_len;
    u_char                       thread[AGENT_ID_MAX * 4];
} ngx_agent_run_info_t;


typedef struct ngx_agent_log_s     ngx_agent_log_t;
typedef struct ngx_agent_reader_s  ngx_agent_reader_t;


/*
 * A claim's result: NGX_OK, the run is ours and "log" is open; NGX_BUSY, a run
 * of that key is alive, NGX_DONE, one ended (both: "info" tells of it);
 * NGX_DECLINED, the store is full; NGX_ERROR.
 */

typedef void (*ngx_agent_claim_pt)(void *data, ngx_int_t rc,
    ngx_agent_log_t *log, ngx_agent_run_info_t *info);

/* NGX_OK with info, NGX_DECLINED: unknown, NGX_ERROR */
typedef void (*ngx_agent_info_pt)(void *data, ngx_int_t rc,
    ngx_agent_run_info_t *info);

/* NGX_OK: asked to stop, NGX_DONE: already over, NGX_DECLINED: unknown */
typedef void (*ngx_agent_cancel_pt)(void *data, ngx_int_t rc);

/* an event read back; AGENT_OK to go on, anything else stops the read before
 * the event counts as read */
typedef agent_rc_t (*ngx_agent_read_pt)(void *data, uint64_t generation,
    uint64_t seq, const agent_event_t *ev);


struct ngx_agent_store_s {
    ngx_str_t                    name;

    void       (*claim)(ngx_agent_store_t *store, const u_char *key,
                        ngx_str_t *thread, ngx_agent_claim_pt cb, void *data);

    void       (*status)(ngx_agent_store_t *store, const u_char *key,
                         ngx_agent_info_pt cb, void *data);

    void       (*cancel)(ngx_agent_store_t *store, const u_char *key,
                         ngx_agent_cancel_pt cb, void *data);

    /* of the owner of a log */

    ngx_int_t  (*append)(ngx_agent_log_t *log, const agent_event_t *ev);

    /* a change of status that is not the end */
    void       (*set_status)(ngx_agent_log_t *log, ngx_uint_t status);

    /* the end: status, usage and code; the terminal event has been appended,
     * unless there was no memory for it */
    void       (*finish)(ngx_agent_log_t *log, ngx_agent_run_info_t *info);

    /* makes the end of the log and "content" visible to other workers */
    void       (*publish)(ngx_agent_log_t *log, ngx_uint_t content);

    /* 1 when somebody asked this run to stop */
    ngx_uint_t (*cancelled)(ngx_agent_log_t *log);

    /* the owner is done with the log; readers must have left */
    void       (*close)(ngx_agent_log_t *log);

    /*
     * of readers: subscribe at the oldest kept event at or after "seq";
     * reader->gap is set when older ones asked for are gone.  read() goes on
     * until the callback stops it or nothing is left and returns NGX_OK; on
     * NGX_DECLINED the reader was overtaken: seek it to what is kept.
     */
    void       (*subscribe)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                            uint64_t seq);
    void       (*unsubscribe)(ngx_agent_log_t *log,
                              ngx_agent_reader_t *reader);
    ngx_int_t  (*read)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                       ngx_agent_read_pt cb, void *data);
    void       (*seek)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                       uint64_t seq);

    /* frees what every reader has passed */
    void       (*trim)(ngx_agent_log_t *log);

    uint64_t   (*next_seq)(ngx_agent_log_t *log);
    uint64_t   (*generation)(ngx_agent_log_t *log);
};


typedef struct ngx_agent_chunk_s  ngx_agent_chunk_t;

struct ngx_agent_reader_s {
    ngx_queue_t                  queue;     /* of the log's readers */
    uint64_t                     seq;       /* the next event to read */
    ngx_agent_chunk_t           *chunk;     /* NULL: to be looked up */
    size_t                       offset;
    unsigned                     gap:1;
};


/* ngx_agent_local.c: registry in the module's zone, events in this worker */

extern ngx_agent_store_t  ngx_agent_local_store;

void ngx_agent_local_exit_process(void);


/* ngx_agent_slots.c: which worker processes are alive */

ngx_int_t ngx_agent_slots_init_module(ngx_cycle_t *cycle);
ngx_int_t ngx_agent_slot_take(ngx_uint_t slot);
ngx_uint_t ngx_agent_slot_alive(ngx_uint_t slot);


/* ngx_agent_registry.c: the module's own zone, seen by every worker */

typedef struct ngx_agent_record_s  ngx_agent_record_t;

ngx_int_t ngx_agent_registry_zone(ngx_conf_t *cf,
    ngx_http_agent_main_conf_t *amcf);
ngx_int_t ngx_agent_registry_init_process(ngx_http_agent_main_conf_t *amcf);
void ngx_agent_registry_exit_process(void);

/* as ngx_agent_claim_pt */
ngx_int_t ngx_agent_registry_claim(const u_char *key, ngx_str_t *thread,
    ngx_agent_record_t **rec, ngx_agent_run_info_t *info);
ngx_int_t ngx_agent_registry_info(const u_char *key,
    ngx_agent_run_info_t *info);
ngx_int_t ngx_agent_registry_cancel(const u_char *key);

/* of the owner */
void ngx_agent_registry_status(ngx_agent_record_t *rec, ngx_uint_t status);
void ngx_agent_registry_finish(ngx_agent_record_t *rec,
    ngx_agent_run_info_t *info);
void ngx_agent_registry_publish(ngx_agent_record_t *rec, uint64_t last_seq,
    ngx_uint_t content);
ngx_uint_t ngx_agent_registry_cancelled(ngx_agent_record_t *rec);
uint64_t ngx_agent_registry_generation(ngx_agent_record_t *rec);


#endif /* _NGX_AGENT_REPLAY_H_INCLUDED_ */
