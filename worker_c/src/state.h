/*
 * What the control thread and the execution thread share. One mutex guards everything here but the
 * atomics; it is held for moments only, never while the engine computes or a frame is written.
 *
 * Who may resolve a request is settled by the list of jobs: whoever takes a job off the list, under
 * the lock, answers it, and nobody else can. It is taken off *before* its answer is written, so
 * that a host which has the answer may use the id again.
 */
#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include "answer.h"
#include "failure.h"
#include "holding.h"
#include "job.h"
#include "progress.h"
#include "shard_engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct state {
    const shard_engine_api *api;
    uint64_t started_us;
    uint64_t max_waiting_bytes;
    atomic_bool is_stopping; /* set once; read by progress callbacks without the lock */
    atomic_bool is_finished; /* the execution thread has closed the engine */

    pthread_mutex_t lock;
    pthread_cond_t work; /* a job came, or a stop */
    struct job_list jobs;
    struct holding holding;

    /* The engine is the execution thread's. The control thread uses this pointer only under the
     * lock, for `cancel` and `progress`; it is NULL before the engine is closed. */
    shard_engine *engine;
    bool is_loading;
    bool is_computing;
    uint32_t unspent_cancels; /* calls of `cancel` that no aborted step is accounted to yet */
    bool has_description;
    shard_description description;
    char broken[SHARD_MESSAGE_SIZE]; /* what the backend said when it failed for good; else empty */

    struct progress_report phase; /* of the load that goes on; else empty */
    uint64_t steps_reported;      /* calls of progress callbacks */
    uint64_t engine_progress;     /* the engine's counter when it was closed */
    uint64_t sessions, kv_cells_used;
    uint64_t rows, tokens_sampled, compute_us;
    uint64_t rss_before_load;
};

void state_init(struct state *state, const shard_engine_api *api, uint32_t max_frame_bytes,
                uint64_t now_us);
void state_free(struct state *state);

/* ---- for the control thread ---- */

/* Queues a job. False when it is refused: the worker stops, too many wait, or a load where
 * something is held. */
bool state_admit(struct state *state, struct job *job, struct failure *failure);

/* Whether an unanswered request has that id. */
bool state_has_request(struct state *state, uint64_t id);

enum cancel_state { CANCEL_UNKNOWN, CANCEL_QUEUED, CANCEL_RUNNING };

/* Cancels a request. One that waits is handed over in `*waiting`, for the caller to resolve. One
 * that runs is told to stop, and the execution thread resolves it. */
enum cancel_state state_cancel(struct state *state, uint64_t id, struct job **waiting);

/* From now on nothing is admitted, and what runs is told to stop. */
void state_stop(struct state *state);

/* A job that waits, for the caller to resolve; NULL when there is none. */
struct job *state_take_waiting(struct state *state);

/* What state_health copies, so that the answer can be written without the lock. */
struct health_snapshot {
    struct health_answer answer;
    shard_description description;
    struct progress_report phase;
};

/* Fills all but the counters of replies and the resident memory. */
void state_health(struct state *state, struct health_snapshot *snapshot, uint64_t now_us);

/* ---- for the execution thread ---- */

/* Takes a job off the list, for the caller to resolve. */
void state_take(struct state *state, struct job *job);
void state_set_phase(struct state *state, struct job *job, enum job_phase phase);

/* Returns when a job came or the worker stops, at the latest after so many microseconds, less than
 * a second; perhaps for no reason. The caller has the lock, which others get meanwhile. */
void state_await_work(struct state *state, uint32_t at_most_us);

#endif /* WORKER_STATE_H */
