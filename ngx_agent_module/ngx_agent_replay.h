
/*
 * The replay store: the registry of runs and the logs of their events, behind
 * a small table of functions.  A store that must ask elsewhere answers through
 * the callback later, the one in this worker's memory answers at once; callers
 * do not know which they have.
 */

#ifndef _NGX_AGENT_REPLAY_H_INCLUDED_
#define _NGX_AGENT_REPLAY_H_INCLUDED_


#include "ngx_http_agent.h"
#include "ngx_agent_zone.h"


/* the core's words, in the style of this side */

typedef agent_run_info_t  ngx_agent_run_info_t;

#define NGX_AGENT_RUN_QUEUED       AGENT_STATUS_QUEUED
#define NGX_AGENT_RUN_RUNNING      AGENT_STATUS_RUNNING
#define NGX_AGENT_RUN_FINISHING    AGENT_STATUS_FINISHING
#define NGX_AGENT_RUN_FINISHED     AGENT_STATUS_FINISHED
#define NGX_AGENT_RUN_CANCELLED    AGENT_STATUS_CANCELLED
#define NGX_AGENT_RUN_ERROR        AGENT_STATUS_ERROR
#define NGX_AGENT_RUN_INTERRUPTED  AGENT_STATUS_INTERRUPTED

#define ngx_agent_status_over(s)   agent_status_over(s)
#define ngx_agent_status_name(s)   agent_status_name(s)


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

/* NGX_OK: asked to stop, NGX_DONE: already over, NGX_ABORT: over and no longer
 * kept, NGX_DECLINED: unknown */
typedef void (*ngx_agent_cancel_pt)(void *data, ngx_int_t rc);

/* an event read back; AGENT_OK to go on, anything else stops the read before
 * the event counts as read */
typedef agent_rc_t (*ngx_agent_read_pt)(void *data, uint64_t generation,
    uint64_t seq, const agent_event_t *ev);


struct ngx_agent_store_s {

    void       (*claim)(ngx_agent_store_t *store, const u_char *key,
                        ngx_str_t *thread, ngx_agent_claim_pt cb, void *data);

    void       (*status)(ngx_agent_store_t *store, const u_char *key,
                         ngx_agent_info_pt cb, void *data);

    void       (*cancel)(ngx_agent_store_t *store, const u_char *key,
                         ngx_agent_cancel_pt cb, void *data);

    /* the log of a run that is elsewhere, or over, to be read; NULL: no memory,
     * or this store's logs are read in their own worker only */
    ngx_agent_log_t *
               (*open)(ngx_agent_store_t *store, const u_char *key,
                       uint64_t generation);

    /* of the owner of a log */

    /* the client's messages, for readers elsewhere that need a snapshot; they
     * live as long as the log is open */
    void       (*keep)(ngx_agent_log_t *log, ngx_str_t *messages);

    ngx_int_t  (*append)(ngx_agent_log_t *log, const agent_event_t *ev);

    /* a change of status that is not the end */
    void       (*set_status)(ngx_agent_log_t *log, ngx_uint_t status);

    /* the end: status, usage and code, and the terminal event; NULL: there was
     * no memory for it.  NGX_ERROR: the log has no room, nothing has ended */
    ngx_int_t  (*finish)(ngx_agent_log_t *log, ngx_agent_run_info_t *info,
                         const agent_event_t *ev);

    /*
     * Makes what was appended and "content" visible to other workers.  Returns
     * 1 when a checkpoint is wanted: a prelude for those who will have missed
     * what is trimmed, as agent_stage_t bytes.
     */
    ngx_uint_t (*publish)(ngx_agent_log_t *log, ngx_uint_t content);
    ngx_int_t  (*checkpoint)(ngx_agent_log_t *log, agent_str_t events);

    /* before the end: 1 when what was trimmed has no checkpoint */
    ngx_uint_t (*incomplete)(ngx_agent_log_t *log);

    /* 1 when somebody asked this run to stop */
    ngx_uint_t (*cancelled)(ngx_agent_log_t *log);

    /* its user is done with the log; readers must have left */
    void       (*close)(ngx_agent_log_t *log);

    /*
     * of readers: subscribe at the oldest kept event at or after "seq";
     * reader->gap is set when older ones asked for are gone.  read() goes on
     * until the callback stops it or nothing is left and returns NGX_OK; on
     * NGX_DECLINED the reader was overtaken: seek it to what is kept; on
     * NGX_ABORT nothing is kept any more.
     */
    void       (*subscribe)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                            uint64_t seq);
    void       (*unsubscribe)(ngx_agent_log_t *log,
                              ngx_agent_reader_t *reader);
    ngx_int_t  (*read)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                       ngx_agent_read_pt cb, void *data);
    void       (*seek)(ngx_agent_log_t *log, ngx_agent_reader_t *reader,
                       uint64_t seq);

    /* adds what keep() or, at that seq, checkpoint() has stored: NGX_OK,
     * NGX_DECLINED: it is not there, NGX_ERROR: no memory */
    ngx_int_t  (*kept)(ngx_agent_log_t *log, uint64_t checkpoint,
                       agent_buf_t *out);

    /* frees what every reader has passed */
    void       (*trim)(ngx_agent_log_t *log);

    /* the oldest event kept, of a log that this worker owns */
    uint64_t   (*first_seq)(ngx_agent_log_t *log);
    uint64_t   (*next_seq)(ngx_agent_log_t *log);
    uint64_t   (*generation)(ngx_agent_log_t *log);

    ngx_agent_zone_t            *zone;
};


typedef struct ngx_agent_chunk_s  ngx_agent_chunk_t;

struct ngx_agent_reader_s {
    ngx_queue_t                  queue;     /* of the log's readers */
    uint64_t                     seq;       /* the next event to read */
    unsigned                     gap:1;

    /* the place in a worker's memory, or in a zone */

    ngx_agent_chunk_t           *chunk;     /* NULL: to be looked up */
    size_t                       offset;
    agent_place_t                place;
};


/* ngx_agent_local.c: records in the module's zone, events in this worker */

extern ngx_agent_store_t  ngx_agent_local_store;

void ngx_agent_local_exit_process(void);

/* ngx_agent_shared.c: all of it in a zone; to be copied, with a zone */

extern ngx_agent_store_t  ngx_agent_shared_store;

void ngx_agent_shared_exit_process(void);


#endif /* _NGX_AGENT_REPLAY_H_INCLUDED_ */
