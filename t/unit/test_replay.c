/*
 * agent_zone.c, agent_replay.c: runs in shared memory against a model, and a
 * process that dies at every store it makes there.  The zone is compiled into
 * this test with the hook that makes that possible.
 */

#define _GNU_SOURCE
#define AGENT_ZONE_HOOK

#include "../../src/agent_zone.c"
#include "../../src/agent_replay.c"
#include "../../src/agent_log.c"
#include "../../src/agent_window.c"

#include "tap.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ZONE (512 * 1024)
#define NOW  UINT64_C(1764500000000)

static agent_replay_t replay;
static char *memory;
static int quiet_failures;

static unsigned long rnd = 1;

static unsigned
pick(unsigned n)
{
    rnd = rnd * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned) (rnd >> 33) % n;
}

/* counts only failures: thousands of checks that hold say nothing */
static void
check(int cond, const char *what, unsigned long n)
{
    if (!cond && quiet_failures++ < 10) {
        printf("# failed: %s (%lu)\n", what, n);
    }
}

static void
open_zone(size_t size, uint32_t max_units, uint32_t reserve)
{
    static const char secret[] = "0123456789abcdef";

    memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(&replay, 0, sizeof(replay));
    replay.retain = 600000;
    replay.max_units = max_units;
    replay.reserve = reserve;

    if (agent_zone_create(&replay.zone, memory, size, AGENT_REPLAY_LAYOUT,
                          secret, NOW) != AGENT_OK) {
        ok(0, "a zone of %zu bytes", size);
        exit(1);
    }
}

static void
close_zone(size_t size)
{
    munmap(memory, size);
}

static void
ref_of(agent_run_ref_t *ref, unsigned n)
{
    memset(ref, 0, sizeof(*ref));
    memcpy(ref->key, &n, sizeof(n));
    ref->key[9] = (unsigned char) (n * 7);
    ref->owner = 77;
}

/* --- what a run says is known from its number ----------------------------- */

static char *text;

static void
event_of(agent_event_t *ev, unsigned run, uint64_t seq, char *id, size_t limit)
{
    size_t i, n;
    unsigned long h = run * 7919u + seq * 104729u + 17;

    h ^= h >> 7;
    h *= 2654435761u;
    h ^= h >> 15;

    n = h % 11;

    if (h % 97 == 3) {
        n = 900 + h % 3000;
    }

    if (h % 971 == 5) {
        n = limit;
    }

    sprintf(id, "msg_%u_%u", run, (unsigned) (seq / 9));

    ev->type = AGENT_EV_TEXT_MESSAGE_CONTENT;
    ev->id.data = id;
    ev->id.len = strlen(id);

    if (seq == 0) {
        ev->type = AGENT_EV_RUN_STARTED;
        ev->id.len = 0;
    }

    for (i = 0; i < n; i++) {
        text[i] = (char) ('a' + (run + seq + i) % 26);
    }

    ev->body.data = text;
    ev->body.len = n;
}

static int
event_is(const agent_event_t *ev, unsigned run, uint64_t seq, size_t limit)
{
    char id[64];
    agent_event_t want;

    event_of(&want, run, seq, id, limit);

    return ev->type == want.type && agent_str_eq(ev->id, want.id) &&
           agent_str_eq(ev->body, want.body);
}

static const char last_words[] =
    "{\"type\":\"RUN_FINISHED\",\"threadId\":\"t\",\"runId\":\"r\"}";

/* longer than the reserve: the last words and blanks behind them */
#define LONG_END 9000

static char end_text[2 * AGENT_REPLAY_END];

static int
is_last(const agent_event_t *ev)
{
    return (ev->type == AGENT_EV_RUN_FINISHED ||
            ev->type == AGENT_EV_RUN_ERROR) &&
           (ev->body.len == strlen(last_words) || ev->body.len >= LONG_END) &&
           memcmp(ev->body.data, end_text, ev->body.len) == 0;
}

static void
end_of(agent_event_t *ev, agent_run_info_t *info)
{
    memset(info, 0, sizeof(*info));
    agent_usage_init(&info->usage);
    info->status = AGENT_STATUS_FINISHED;
    info->content = 1;
    ev->type = AGENT_EV_RUN_FINISHED;
    ev->id = AGENT_STR("");
    ev->body.data = end_text;
    ev->body.len = strlen(last_words);
}

/*
 * Reads a run from "seq" to its end.  Returns the number of events, -1: the
 * bytes are wrong; *gap: how often the place was gone; *over: the terminal
 * event was seen.
 */
static long
read_all(unsigned run, const agent_run_ref_t *ref, uint64_t seq, size_t limit,
         int *gap, int *over)
{
    long n = 0;
    agent_rc_t rc;
    agent_event_t ev;
    agent_place_t place = {0}, after;
    agent_window_t w;
    agent_run_info_t info;

    *gap = 0;
    *over = 0;
    place.seq = seq;
    agent_window_init(&w, &agent_alloc_libc);
    agent_window_reserve(&w, 1 + pick(16));

    for (;;) {
        rc = agent_replay_read(&replay, ref, &place, &w, 0);

        if (rc == AGENT_DONE) {
            continue;
        }

        if (rc == AGENT_DECLINED) {
            (*gap)++;
            agent_replay_info(&replay, ref->key, NOW, &info);
            place.seq = info.first_seq;
            place.unit = 0;
            continue;
        }

        if (rc != AGENT_OK || w.n == 0) {
            break;
        }

        for (;;) {
            rc = agent_window_event(&w, &place, &after, &ev);

            if (rc == AGENT_TOO_LARGE ||
                (rc == AGENT_DONE && place.seq < w.end)) {
                size_t had = w.n;

                if (agent_window_reserve(&w, 4) != AGENT_OK ||
                    agent_replay_read(&replay, ref, &place, &w, 1) !=
                        AGENT_OK ||
                    w.n == had) {
                    rc = AGENT_INVALID;
                    break;
                }

                continue;
            }

            if (rc != AGENT_OK) {
                break;
            }

            if (is_last(&ev)) {
                *over = 1;
            } else if (!event_is(&ev, run, place.seq, limit)) {
                rc = AGENT_INVALID;
                break;
            }

            n++;
            place = after;

            if (pick(50) == 0) {
                rc = AGENT_DONE;
                break;
            }
        }

        if (rc != AGENT_DONE) {
            break;
        }
    }

    agent_window_free(&w);

    return rc == AGENT_OK ? n : -1;
}

/* --- one process ---------------------------------------------------------- */

static void
append_events(unsigned run, const agent_run_ref_t *ref, agent_stage_t *s,
              unsigned n, size_t limit)
{
    char id[64];
    agent_rc_t rc;
    agent_event_t ev;

    while (n--) {
        event_of(&ev, run, s->seq, id, limit);
        check(agent_stage_add(s, &ev, NOW + s->seq * 3) == AGENT_OK, "stage",
              (unsigned long) s->seq);
    }

    do {
        rc = agent_replay_append(&replay, ref, s);
    } while (rc == AGENT_OK);

    check(rc == AGENT_DONE, "append", run);
}

static void
test_one(size_t limit, unsigned events, uint32_t max_units)
{
    int gap, over;
    long n;
    unsigned i;
    uint64_t seq;
    uint32_t free_before;
    agent_event_t ev;
    agent_stage_t s;
    agent_run_ref_t ref;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(8 * 1024 * 1024, max_units, 4);
    free_before = replay.zone.head->nfree;

    ref_of(&ref, 1);
    agent_stage_init(&s, &agent_alloc_libc);

    ok(agent_replay_claim(&replay, &ref, 3, AGENT_STR("thread"), NOW, &info) ==
           AGENT_OK,
       "claim");

    for (i = 0; s.seq < events; i++) {
        append_events(1, &ref, &s, 1 + pick(i % 5 == 0 ? 200 : 3), limit);

        if (i % 20 == 0) {
            agent_replay_info(&replay, ref.key, NOW, &info);
            seq = info.first_seq +
                  pick((unsigned) (info.next_seq - info.first_seq));
            n = read_all(1, &ref, seq, limit, &gap, &over);
            check(n == (long) (s.seq - seq) && !gap && !over, "read from",
                  (unsigned long) seq);
        }
    }

    end_of(&ev, &info);
    ok(agent_replay_finish(&replay, &ref, &info, &ev, NOW) == AGENT_OK &&
           agent_replay_end(&replay, &ref, NOW) == AGENT_OK,
       "the end");
    ok(agent_replay_end(&replay, &ref, NOW) == AGENT_ABORTED, "only once");

    agent_replay_info(&replay, ref.key, NOW, &info);

    for (i = 0; i < 300; i++) {
        seq =
            info.first_seq + pick((unsigned) (info.next_seq - info.first_seq));
        n = read_all(1, &ref, seq, limit, &gap, &over);
        check(n == (long) (s.seq + 1 - seq) && !gap && over, "reread from",
              (unsigned long) seq);
    }

    ok(info.next_seq == s.seq + 1 && info.status == AGENT_STATUS_FINISHED,
       "%lu events, from %lu on kept in %u units",
       (unsigned long) info.next_seq, (unsigned long) info.first_seq,
       free_before - replay.zone.head->nfree);
    ok(agent_replay_forget(&replay, &ref) == AGENT_OK &&
           replay.zone.head->nfree == free_before,
       "all units came back");
    ok(quiet_failures == 0, "every event read back as it was");

    agent_stage_free(&s);
    close_zone(8 * 1024 * 1024);
}

/* --- many runs in little room --------------------------------------------- */

static void
test_full(void)
{
    int gap, over;
    long n;
    unsigned i, j, full = 0;
    agent_event_t ev;
    agent_run_info_t info;
    static agent_stage_t s[40];
    static agent_run_ref_t ref[40];

    quiet_failures = 0;
    open_zone(ZONE, 4096, 4);

    for (i = 0; i < 40; i++) {
        agent_stage_init(&s[i], &agent_alloc_libc);
        ref_of(&ref[i], i);
        check(agent_replay_claim(&replay, &ref[i], 1, AGENT_STR("t"), NOW,
                                 &info) == AGENT_OK,
              "claim", i);
    }

    for (j = 0; j < 3000; j++) {
        i = pick(40);
        append_events(i, &ref[i], &s[i], 1 + pick(20), 30000);
    }

    for (i = 0; i < 40; i++) {
        agent_replay_info(&replay, ref[i].key, NOW, &info);
        check(info.next_seq == s[i].seq, "next", i);
        n = read_all(i, &ref[i], 0, 30000, &gap, &over);
        check(n == (long) (info.next_seq - info.first_seq), "kept", i);
        full += gap != 0;
    }

    ok(full != 0, "%u of 40 live runs lost their oldest events", full);
    ok(replay.trimmed, "which was noted");

    /* no unit is left, but each has its last words */

    for (i = 0; i < 40; i++) {
        end_of(&ev, &info);
        check(agent_replay_finish(&replay, &ref[i], &info, &ev, NOW) ==
                  AGENT_OK,
              "finish", i);
        check(agent_replay_end(&replay, &ref[i], NOW) == AGENT_OK, "end", i);
        n = read_all(i, &ref[i], 0, 30000, &gap, &over);
        check(n >= 1 && over, "the terminal event is there", i);
    }

    /* ended ones make room */

    for (i = 100; i < 116; i++) {
        ref_of(&ref[i - 100], i);
        agent_stage_free(&s[i - 100]);
        agent_stage_init(&s[i - 100], &agent_alloc_libc);
        check(agent_replay_claim(&replay, &ref[i - 100], 1, AGENT_STR("t"), NOW,
                                 &info) == AGENT_OK,
              "claim", i);
        append_events(i, &ref[i - 100], &s[i - 100], 300, 3000);
    }

    ok(replay.zone.head->evictions > 0, "%lu runs were evicted",
       (unsigned long) replay.zone.head->evictions);

    for (n = 0; n < 1000; n++) {
        agent_run_ref_t more;

        ref_of(&more, (unsigned) (1000 + n));

        if (agent_replay_claim(&replay, &more, 1, AGENT_STR("t"), NOW, &info) !=
            AGENT_OK) {
            break;
        }
    }

    ok(n < 1000, "a zone full of live runs takes no more (%ld)", n);
    ok(quiet_failures == 0, "and all of it was right");

    for (i = 0; i < 40; i++) {
        agent_stage_free(&s[i]);
    }

    close_zone(ZONE);
}

/* --- last words that are longer than the reserve -------------------------- */

static void
test_long_end(void)
{
    int gap, over;
    long n;
    unsigned i;
    uint32_t nfree;
    agent_event_t ev;
    agent_stage_t s;
    agent_run_ref_t ref;
    agent_run_info_t info;
    const size_t sizes[] = {LONG_END, AGENT_REPLAY_END - 20};

    quiet_failures = 0;
    open_zone(ZONE, 4096, 4);
    nfree = replay.zone.head->nfree;

    /* with room, and where only the run's own oldest events can go */

    for (i = 0; i < 4; i++) {
        ref_of(&ref, i);
        agent_stage_init(&s, &agent_alloc_libc);
        check(agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW,
                                 &info) == AGENT_OK,
              "claim", i);
        append_events(i, &ref, &s, i < 2 ? 100 : 20000, 3000);
        end_of(&ev, &info);

        ev.body.len = AGENT_REPLAY_END + 1;
        check(agent_replay_finish(&replay, &ref, &info, &ev, NOW) ==
                  AGENT_TOO_LARGE,
              "too large", i);

        ev.body.len = sizes[i % 2];
        check(agent_replay_finish(&replay, &ref, &info, &ev, NOW) == AGENT_OK,
              "finish", i);
        check(agent_replay_end(&replay, &ref, NOW) == AGENT_OK, "end", i);

        n = read_all(i, &ref, 0, 3000, &gap, &over);
        agent_replay_info(&replay, ref.key, NOW, &info);
        check(over && n == (long) (info.next_seq - info.first_seq), "read", i);
        check(info.next_seq == s.seq + 1 && (info.first_seq != 0) == (i >= 2),
              "what is kept", i);
        check(agent_replay_forget(&replay, &ref) == AGENT_OK, "forget", i);
        agent_stage_free(&s);
    }

    ok(replay.zone.head->nfree == nfree, "all units came back");
    ok(quiet_failures == 0, "a long last event has its place");

    close_zone(ZONE);
}

/* --- a log that could not be mended --------------------------------------- */

/* Its reader was at the end, in a unit that is another run's by now. */
static void
test_hole(void)
{
    uint64_t seq;
    agent_event_t ev;
    agent_place_t place = {0}, after;
    agent_stage_t s, other;
    agent_window_t w;
    agent_run_ref_t ref, more;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(ZONE, 4096, 4);
    ref_of(&ref, 1);
    ref_of(&more, 2);
    agent_stage_init(&s, &agent_alloc_libc);
    agent_stage_init(&other, &agent_alloc_libc);
    agent_window_init(&w, &agent_alloc_libc);
    agent_window_reserve(&w, 16);
    agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);
    agent_replay_claim(&replay, &more, 1, AGENT_STR("t"), NOW, &info);
    append_events(1, &ref, &s, 400, 900);

    for (;;) {
        check(agent_replay_read(&replay, &ref, &place, &w, 0) == AGENT_OK,
              "read", place.seq);

        if (w.n == 0) {
            break;
        }

        while (agent_window_event(&w, &place, &after, &ev) == AGENT_OK) {
            check(event_is(&ev, 1, place.seq, 900), "event", place.seq);
            place = after;
        }
    }

    check(place.seq == s.seq, "at the end", place.seq);

    agent_replay_hole(&replay, agent_zone_find(&replay.zone, ref.key), s.seq);
    append_events(2, &more, &other, 400, 900);
    append_events(1, &ref, &s, 20, 900);

    seq = place.seq;
    check(agent_replay_read(&replay, &ref, &place, &w, 0) == AGENT_OK, "read",
          place.seq);

    while (agent_window_event(&w, &place, &after, &ev) == AGENT_OK) {
        check(event_is(&ev, 1, place.seq, 900), "event", place.seq);
        place = after;
    }

    ok(place.seq > seq, "a reader goes on behind a hole");
    ok(quiet_failures == 0, "and sees its own run only");

    agent_window_free(&w);
    agent_stage_free(&s);
    agent_stage_free(&other);
    close_zone(ZONE);
}

/* --- time ----------------------------------------------------------------- */

static void
test_expiry(void)
{
    agent_event_t ev;
    agent_run_ref_t ref, other;
    agent_run_info_t info;

    open_zone(ZONE, 4096, 4);
    ref_of(&ref, 1);

    agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);
    ok(agent_replay_cancel(&replay, ref.key, NOW, &info) == AGENT_OK &&
           agent_replay_cancelled(&replay, &ref),
       "a live run is asked to stop");
    ok(agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info) ==
           AGENT_DECLINED,
       "its id is taken");

    end_of(&ev, &info);
    agent_replay_finish(&replay, &ref, &info, &ev, NOW + 5);
    agent_replay_end(&replay, &ref, NOW + 5);

    ok(agent_replay_cancel(&replay, ref.key, NOW, &info) == AGENT_DONE,
       "an ended one is not");
    ok(agent_replay_info(&replay, ref.key, NOW + 600004, &info) == AGENT_OK &&
           !info.gone,
       "it is kept");
    ok(agent_replay_info(&replay, ref.key, NOW + 600005, &info) == AGENT_OK &&
           info.gone,
       "then remembered");
    ok(agent_replay_cancel(&replay, ref.key, NOW + 600005, &info) ==
           AGENT_ABORTED,
       "as gone");
    ok(agent_replay_info(&replay, ref.key, NOW + 1200005, &info) ==
           AGENT_DECLINED,
       "then forgotten");

    other = ref;
    ok(agent_replay_claim(&replay, &other, 1, AGENT_STR("t"), NOW + 2000000,
                          &info) == AGENT_OK &&
           other.generation > ref.generation,
       "the id begins anew with a later generation");
    ok(agent_replay_status(&replay, &ref, AGENT_STATUS_RUNNING) ==
           AGENT_ABORTED,
       "the old one cannot write to it");

    other.owner = 78;
    ok(agent_replay_status(&replay, &other, AGENT_STATUS_RUNNING) ==
           AGENT_ABORTED,
       "nor can another owner");

    other.owner = 77;
    end_of(&ev, &info);
    info.status = AGENT_STATUS_ERROR;
    info.content = 0;
    agent_replay_finish(&replay, &other, &info, &ev, NOW + 2000005);
    agent_replay_end(&replay, &other, NOW + 2000005);
    ok(agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW + 2000006,
                          &info) == AGENT_OK,
       "a run that ended before it said anything is replaced");
    agent_replay_info(&replay, ref.key, NOW + 2000006, &info);
    ok(info.replaced && ref.generation > other.generation,
       "and its id says so");

    close_zone(ZONE);
}

/* --- beside the log ------------------------------------------------------- */

static void
test_kept(void)
{
    char out[40000];
    size_t n, got = 0;
    uint64_t seq;
    unsigned i, checks = 0;
    agent_stage_t s;
    agent_run_ref_t ref;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(ZONE, 64, 4);
    ref_of(&ref, 1);
    agent_stage_init(&s, &agent_alloc_libc);

    agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);

    for (i = 0; i < 26000; i++) {
        text[i] = (char) ('A' + i % 57);
    }

    ok(agent_replay_keep(&replay, &ref, 0, text, 13000) == AGENT_OK &&
           agent_replay_keep(&replay, &ref, 0, text + 13000, 13000) == AGENT_OK,
       "messages are kept");

    do {
        check(agent_replay_kept(&replay, &ref, 0, 0, got, out + got, 7000,
                                &n) == AGENT_OK,
              "kept", got);
        got += n;
    } while (n != 0);

    ok(got == 26000 && memcmp(out, text, got) == 0, "and read back");

    for (i = 0; i < 3000; i++) {
        append_events(1, &ref, &s, 10, 900);

        if (agent_replay_wants_check(&replay, &ref)) {
            checks++;
            check(agent_replay_keep(&replay, &ref, 1, "check", 5) == AGENT_OK &&
                      agent_replay_checked(&replay, &ref, s.seq) == AGENT_OK,
                  "checkpoint", i);
        }

        agent_replay_info(&replay, ref.key, NOW, &info);
        check(info.first_seq == 0 || (info.check_seq >= info.first_seq &&
                                      info.check_seq <= info.next_seq),
              "what is gone is before a checkpoint", i);
    }

    ok(checks > 2 && info.first_seq > 0, "%u checkpoints", checks);
    ok(agent_replay_kept(&replay, &ref, 1, info.check_seq, 0, out, 100, &n) ==
               AGENT_OK &&
           n == 5 && memcmp(out, "check", 5) == 0,
       "one is read");
    ok(agent_replay_kept(&replay, &ref, 1, info.check_seq - 1, 0, out, 100,
                         &n) == AGENT_DECLINED,
       "but not as another");
    ok(!agent_replay_needs_check(&replay, &ref), "it will do");

    /* a run that goes on without another one */

    for (i = 0; i < 30; i++) {
        append_events(1, &ref, &s, 100, 900);
    }

    seq = info.check_seq;
    agent_replay_info(&replay, ref.key, NOW, &info);
    ok(info.first_seq > seq && info.check_seq == 0 &&
           agent_replay_kept(&replay, &ref, 1, seq, 0, out, 100, &n) ==
               AGENT_DECLINED,
       "a checkpoint goes with the events that follow it");
    ok(agent_replay_needs_check(&replay, &ref), "another one is missing");
    ok(quiet_failures == 0, "and all of it was right");

    agent_stage_free(&s);
    close_zone(ZONE);
}

/* --- a log that begins anew ----------------------------------------------- */

/* A place in a unit that has gone, and may be another run's by now. */
static void
test_stale(void)
{
    unsigned i;
    uint64_t seq;
    agent_rc_t rc;
    agent_event_t ev;
    agent_stage_t s, other;
    agent_window_t w;
    agent_place_t place = {0}, after;
    agent_run_ref_t ref, thief;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(ZONE, 4096, 4);
    ref_of(&ref, 1);
    ref_of(&thief, 2);
    agent_stage_init(&s, &agent_alloc_libc);
    agent_stage_init(&other, &agent_alloc_libc);
    agent_window_init(&w, &agent_alloc_libc);
    agent_window_reserve(&w, 16);

    agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);
    agent_replay_claim(&replay, &thief, 1, AGENT_STR("t"), NOW, &info);
    append_events(1, &ref, &s, 400, 900);

    /* a reader that has all there is */

    while (agent_replay_read(&replay, &ref, &place, &w, 0) == AGENT_OK &&
           w.n != 0) {
        while ((rc = agent_window_event(&w, &place, &after, &ev)) == AGENT_OK) {
            place = after;
        }

        if (rc == AGENT_TOO_LARGE) {
            agent_window_reserve(&w, 16);
        }
    }

    ok(place.seq == 400 && place.number > 1, "a reader at the end of a log");

    /* its log was damaged, the other takes the units */

    agent_replay_hole(&replay, agent_replay_find(&replay, &ref), s.seq);
    append_events(2, &thief, &other, 500, 900);
    append_events(1, &ref, &s, 40, 900);

    for (i = 0; i < 40; i++) {
        seq = place.seq;
        w.n = 0;
        rc = agent_replay_read(&replay, &ref, &place, &w, 0);

        if (rc == AGENT_OK && w.n != 0) {
            rc = agent_window_event(&w, &place, &after, &ev);
        }

        if (rc != AGENT_OK) {
            check(rc == AGENT_TOO_LARGE, "reading on", (unsigned long) seq);
            break;
        }

        check(event_is(&ev, 1, seq, 900), "its own event", (unsigned long) seq);
        place = after;
    }

    ok(i > 0 && quiet_failures == 0, "reads nothing of another run (%u)", i);

    agent_window_free(&w);
    agent_stage_free(&s);
    agent_stage_free(&other);
    close_zone(ZONE);
}

/* --- death at every store ------------------------------------------------- */

static long hook_left;

static void
hook(void)
{
    if (hook_left-- == 0) {
        _exit(9);
    }
}

static void
lock(void)
{
    if (agent_zone_enter(&replay.zone, 42)) {
        check(agent_zone_recover(&replay.zone, agent_replay_check, &replay) ==
                  AGENT_OK,
              "recover", 0);
    }
}

static void
unlock(void)
{
    agent_zone_leave(&replay.zone);
}

#define RUNS 6

/* to fork is slow with the address sanitizer */
#ifdef __SANITIZE_ADDRESS__
#define STRIDE 11
#else
#define STRIDE 1
#endif

static agent_run_ref_t *refs; /* shared with the child */
static uint64_t *said;

/* what the child does until it dies; each step locks */
static void
scenario(void)
{
    char id[64];
    unsigned i, step;
    agent_rc_t rc;
    agent_event_t ev;
    agent_run_info_t info;
    static agent_stage_t s[RUNS];

    for (i = 0; i < RUNS; i++) {
        agent_stage_init(&s[i], &agent_alloc_libc);
        lock();
        agent_replay_claim(&replay, &refs[i], 1, AGENT_STR("t"), NOW, &info);
        agent_replay_keep(&replay, &refs[i], 0, text, 2500);
        unlock();
    }

    for (step = 0; step < 60; step++) {
        i = step * 7 % RUNS;

        for (unsigned k = 0; k < step % 13 + 1; k++) {
            event_of(&ev, i, s[i].seq, id, 20000);
            agent_stage_add(&s[i], &ev, NOW + step);
        }

        said[i] = s[i].seq;

        do {
            lock();
            rc = agent_replay_append(&replay, &refs[i], &s[i]);
            unlock();
        } while (rc == AGENT_OK);

        if (step % 9 == 4) {
            lock();
            agent_replay_keep(&replay, &refs[i], 1, text, 1500);
            agent_replay_checked(&replay, &refs[i], s[i].seq);
            unlock();
        }

        if (step % 20 == 19) {
            end_of(&ev, &info);
            lock();
            agent_replay_finish(&replay, &refs[i], &info, &ev, NOW);
            unlock();
            lock();
            agent_replay_end(&replay, &refs[i], NOW);
            unlock();
            lock();
            agent_replay_forget(&replay, &refs[i]);
            unlock();
            said[i] = 0;
            agent_stage_free(&s[i]);
            agent_stage_init(&s[i], &agent_alloc_libc);
            lock();
            agent_replay_claim(&replay, &refs[i], 1, AGENT_STR("t"), NOW,
                               &info);
            unlock();
        }
    }

    for (i = 0; i < RUNS; i++) {
        end_of(&ev, &info);
        ev.body.len = i % 2 == 0 ? LONG_END : ev.body.len;
        lock();
        rc = agent_replay_finish(&replay, &refs[i], &info, &ev, NOW);

        if (rc == AGENT_TOO_LARGE) {
            end_of(&ev, &info);
            agent_replay_finish(&replay, &refs[i], &info, &ev, NOW);
        }

        unlock();
        lock();
        agent_replay_end(&replay, &refs[i], NOW);
        unlock();
        agent_stage_free(&s[i]);
    }
}

/* a bystander's run must come through it all */
static void
survivors(unsigned long at, const agent_run_ref_t *bystander, uint64_t events)
{
    int gap, over;
    long n;
    unsigned i;
    agent_unit_t unit;
    agent_event_t ev;
    agent_run_ref_t ref;
    agent_run_info_t info;

    lock();
    n = read_all(99, bystander, 0, 20000, &gap, &over);
    check(n == (long) events && !gap && over, "the bystander's run", at);

    for (i = 0; i < RUNS; i++) {
        if (agent_replay_info(&replay, refs[i].key, NOW, &info) != AGENT_OK) {
            continue;
        }

        ref = refs[i];
        ref.generation = info.generation;
        n = read_all(i, &ref, 0, 20000, &gap, &over);
        check(n == (long) (info.next_seq - info.first_seq), "what is kept", at);
        check(info.next_seq <= said[i] + 1, "no more than was said", at);

        if (!agent_status_over(info.status)) {
            check(!over || info.status == AGENT_STATUS_FINISHING,
                  "no terminal event yet", at);
            end_of(&ev, &info);
            info.status = AGENT_STATUS_ERROR;
            ev.type = AGENT_EV_RUN_ERROR;
            check(agent_replay_lost(&replay, &ref, &info, &ev, NOW) == AGENT_OK,
                  "lost", at);
            n = read_all(i, &ref, 0, 20000, &gap, &over);
        }

        check(over, "the terminal event", at);
        check(agent_replay_forget(&replay, &ref) == AGENT_OK, "forget", at);
    }

    unit = agent_zone_find(&replay.zone, bystander->key);
    check(replay.zone.head->nobjects == 1 && unit != 0, "objects", at);

    i = 1;

    for (n = 0; n < AGENT_ZONE_CHAINS; n++) {
        i += agent_zone_object(&replay.zone, unit)->count[n];
    }

    check(replay.zone.head->nfree + i == replay.zone.head->nunits - 1,
          "units are lost", at);
    unlock();
}

static void
test_deaths(size_t size)
{
    int status;
    unsigned long at, died = 0;
    pid_t pid;
    agent_event_t ev;
    agent_stage_t s;
    agent_run_ref_t bystander;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(size, 64, 4);
    refs = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    said = (void *) (refs + RUNS);

    ref_of(&bystander, 99);
    agent_stage_init(&s, &agent_alloc_libc);
    lock();
    agent_replay_claim(&replay, &bystander, 1, AGENT_STR("t"), NOW, &info);
    append_events(99, &bystander, &s, 150, 20000);
    end_of(&ev, &info);
    agent_replay_finish(&replay, &bystander, &info, &ev, NOW);
    agent_replay_end(&replay, &bystander, NOW);
    unlock();

    for (at = 0;; at += STRIDE) {
        for (unsigned i = 0; i < RUNS; i++) {
            ref_of(&refs[i], i);
            said[i] = 0;
        }

        pid = fork();

        if (pid == 0) {
            hook_left = (long) at;
            agent_zone_hook = hook;
            scenario();
            _exit(quiet_failures ? 3 : 0);
        }

        waitpid(pid, &status, 0);

        if (WIFEXITED(status) && WEXITSTATUS(status) == 9) {
            died++;
        }

        check(WIFEXITED(status) &&
                  (WEXITSTATUS(status) == 9 || WEXITSTATUS(status) == 0),
              "the child", at);
        survivors(at, &bystander, s.seq + 1);

        if (!WIFEXITED(status) || WEXITSTATUS(status) != 9 ||
            quiet_failures > 10) {
            break;
        }
    }

    ok(died > 500 / STRIDE, "%lu deaths, one at each store, %lu recoveries",
       died, (unsigned long) replay.zone.head->recoveries);
    ok(quiet_failures == 0, "nobody else lost anything, no unit was lost");

    agent_stage_free(&s);
    munmap(refs, 4096);
    close_zone(size);
}

/* --- another size --------------------------------------------------------- */

static agent_rc_t
want_over(agent_zone_t *z, agent_unit_t unit, void *ctx)
{
    (void) ctx;

    return agent_zone_object(z, unit)->list == AGENT_LIST_OVER ? AGENT_OK
                                                               : AGENT_DECLINED;
}

static void
test_copy(void)
{
    int gap, over;
    long n = 0;
    unsigned i;
    size_t copied;
    agent_event_t ev;
    agent_stage_t s;
    agent_run_ref_t ref[20];
    agent_run_info_t info;
    agent_zone_t old;
    char *old_memory;

    quiet_failures = 0;
    open_zone(ZONE, 4096, 4);

    for (i = 0; i < 20; i++) {
        agent_stage_init(&s, &agent_alloc_libc);
        ref_of(&ref[i], i);
        agent_replay_claim(&replay, &ref[i], 1, AGENT_STR("t"), NOW, &info);
        append_events(i, &ref[i], &s, 40, 900);
        agent_stage_free(&s);

        if (i != 19) {
            end_of(&ev, &info);
            agent_replay_finish(&replay, &ref[i], &info, &ev, NOW);
            agent_replay_end(&replay, &ref[i], NOW);
        }
    }

    old = replay.zone;
    old_memory = memory;
    open_zone(ZONE / 8, 4096, 4);
    copied = agent_zone_copy(&replay.zone, &old, want_over, NULL);

    for (i = 0; i < 20; i++) {
        if (read_all(i, &ref[i], 0, 900, &gap, &over) == 41 && over) {
            n++;
        }
    }

    ok(copied > 1 && copied < 19 && n == (long) copied,
       "%zu ended runs found room in a smaller zone", copied);
    ok(read_all(18, &ref[18], 0, 900, &gap, &over) == 41 &&
           read_all(19, &ref[19], 0, 900, &gap, &over) == -1,
       "the newest first, no live one");
    ok(agent_zone_generation(&replay.zone, 1) > ref[19].generation,
       "generations go on");

    munmap(old_memory, ZONE);
    close_zone(ZONE / 8);
}

/* --- a zone that had to be emptied ---------------------------------------- */

static void
test_reopen(void)
{
    int gap, over;
    agent_event_t ev;
    agent_stage_t s;
    agent_run_ref_t ref, old;
    agent_run_info_t info;

    quiet_failures = 0;
    open_zone(ZONE, 64, 4);
    agent_stage_init(&s, &agent_alloc_libc);
    ref_of(&ref, 1);
    agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);
    append_events(1, &ref, &s, 100, 900);
    old = ref;

    agent_zone_reset(&replay.zone, NOW);
    ok(agent_replay_append(&replay, &ref, &s) == AGENT_ABORTED,
       "after a reset a run has lost its log");

    event_of(&ev, 1, s.seq, text + 500000, 900);
    agent_stage_add(&s, &ev, NOW);
    agent_stage_drop(&s);
    ok(agent_replay_reopen(&replay, &ref, 1, AGENT_STR("t"), s.seq, NOW) ==
               AGENT_OK &&
           ref.generation > old.generation,
       "it opens it anew under a later generation");

    append_events(1, &ref, &s, 50, 900);
    agent_replay_info(&replay, ref.key, NOW, &info);
    ok(info.first_seq == 101 && info.next_seq == 151 && info.replaced &&
           info.status == AGENT_STATUS_RUNNING,
       "its numbers go on");
    ok(read_all(1, &ref, 101, 900, &gap, &over) == 50 && !gap,
       "its events are read");
    ok(read_all(1, &ref, 100, 900, &gap, &over) == 50 && gap,
       "those of before are a gap");
    ok(read_all(1, &old, 101, 900, &gap, &over) == -1,
       "the old generation is gone");
    ok(quiet_failures == 0, "and all of it was right");

    agent_stage_free(&s);
    close_zone(ZONE);
}

/* --- damage --------------------------------------------------------------- */

static void
test_damage(void)
{
    unsigned i, mended = 0, reset = 0;
    agent_rc_t rc;
    agent_stage_t s;
    agent_run_ref_t ref;
    agent_run_info_t info;
    char *copy = malloc(ZONE);

    open_zone(ZONE, 64, 4);
    agent_stage_init(&s, &agent_alloc_libc);

    for (i = 0; i < 10; i++) {
        ref_of(&ref, i);
        agent_replay_claim(&replay, &ref, 1, AGENT_STR("t"), NOW, &info);
        agent_stage_free(&s);
        agent_stage_init(&s, &agent_alloc_libc);
        append_events(i, &ref, &s, 100, 900);
    }

    memcpy(copy, memory, ZONE);

    /* whatever stands there, recovery ends and says whether it is sound */

    for (i = 0; i < 3000; i++) {
        unsigned k;
        size_t from = (size_t) ((char *) replay.zone.buckets - memory);

        memcpy(memory, copy, ZONE);

        for (k = 0; k < 1 + pick(4); k++) {
            memory[from + pick((unsigned) (200 * 1024 - from))] =
                (char) pick(256);
        }

        rc = agent_zone_recover(&replay.zone, agent_replay_check, &replay);

        if (rc == AGENT_OK) {
            mended++;

            for (k = 0; k < 10; k++) {
                ref_of(&ref, k);

                if (agent_replay_info(&replay, ref.key, NOW, &info) ==
                    AGENT_OK) {
                    int gap, over;

                    ref.generation = info.generation;
                    (void) read_all(k, &ref, info.first_seq, 900, &gap, &over);
                }
            }

        } else {
            reset++;
            agent_zone_reset(&replay.zone, NOW);
        }
    }

    ok(mended != 0 && reset != 0, "of 3000 damaged zones %u mended, %u reset",
       mended, reset);

    agent_stage_free(&s);
    free(copy);
    close_zone(ZONE);
}

int
main(void)
{
    text = malloc(1 << 20);
    memset(text, 'x', 1 << 20);
    memset(end_text, ' ', sizeof(end_text));
    memcpy(end_text, last_words, strlen(last_words));

    test_one(900, 5000, 8000);
    test_one(200000, 5000, 8000);
    test_one(20000, 20000, 100);
    test_full();
    test_long_end();
    test_hole();
    test_expiry();
    test_kept();
    test_stale();
    test_copy();
    test_reopen();
    test_damage();
    test_deaths(ZONE);
    test_deaths(160 * 1024);

    free(text);

    return done_testing();
}
