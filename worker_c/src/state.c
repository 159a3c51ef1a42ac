#include "state.h"

#include "bounds.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

/* Whoever sets the machine's clock neither shortens nor prolongs a wait for it. */
static void init_work(pthread_cond_t *work) {
#ifdef __APPLE__
    pthread_cond_init(work, NULL);
#else
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(work, &attributes);
    pthread_condattr_destroy(&attributes);
#endif
}

void state_init(struct state *state, const shard_engine_api *api, uint32_t max_frame_bytes,
                uint64_t now_us) {
    memset(state, 0, sizeof(*state));
    state->api = api;
    state->started_us = now_us;
    state->max_waiting_bytes = (uint64_t)LIMIT_WAITING_FRAMES * max_frame_bytes;
    atomic_init(&state->is_stopping, false);
    atomic_init(&state->is_finished, false);
    pthread_mutex_init(&state->lock, NULL);
    init_work(&state->work);
}

void state_free(struct state *state) {
    pthread_cond_destroy(&state->work);
    pthread_mutex_destroy(&state->lock);
}

/* ---- admission ---- */

static bool has_room(const struct state *state, const struct job *job, struct failure *failure) {
    const struct job_list *jobs = &state->jobs;
    if (jobs->n_waiting >= LIMIT_WAITING) {
        return failure_set(failure, CODE_BUSY,
                           "%" PRIu32 " requests wait already; ask again when some are answered",
                           jobs->n_waiting);
    }
    /* A single request is never too large: its frame was within the limit. */
    if (jobs->n_waiting > 0 &&
        jobs->waiting_bytes + job->request.body_size > state->max_waiting_bytes) {
        return failure_set(failure, CODE_BUSY,
                           "the requests that wait hold %" PRIu64 " of %" PRIu64
                           " bytes; ask again when some are answered",
                           jobs->waiting_bytes, state->max_waiting_bytes);
    }
    return true;
}

static bool may_enter(struct state *state, const struct job *job, struct failure *failure) {
    if (atomic_load(&state->is_stopping)) {
        return failure_set(failure, CODE_SHUTTING_DOWN,
                           "the worker is stopping; ask another worker");
    }
    if (!has_room(state, job, failure)) {
        return false;
    }
    /* A broken engine refuses every request by itself, a load too. */
    return job->request.type != REQUEST_LOAD || state->broken[0] != '\0' ||
           holding_accept(&state->holding, &job->request.as.load, failure);
}

bool state_admit(struct state *state, struct job *job, struct failure *failure) {
    pthread_mutex_lock(&state->lock);
    bool is_admitted = may_enter(state, job, failure);
    if (is_admitted) {
        job_list_append(&state->jobs, job);
        pthread_cond_signal(&state->work);
    }
    pthread_mutex_unlock(&state->lock);
    return is_admitted;
}

bool state_has_request(struct state *state, uint64_t id) {
    pthread_mutex_lock(&state->lock);
    bool is_there = job_list_find(&state->jobs, id) != NULL;
    pthread_mutex_unlock(&state->lock);
    return is_there;
}

/* ---- cancelling and stopping ---- */

/* A job that leaves the list without having run gives back what its admission took. */
static void give_back(struct state *state, const struct job *job) {
    if (job->request.type == REQUEST_LOAD) {
        holding_release(&state->holding);
    }
}

/* The execution thread sets `is_computing` under the lock after it has looked at `is_cancelled` and
 * `is_stopping`. So either it sees the flag and never starts the step, or the step is known to run
 * and is told to stop here: no cancel falls in between. */
static void interrupt_step(struct state *state) {
    if (state->is_computing) {
        state->unspent_cancels++;
        state->api->cancel(state->engine);
    }
}

static enum cancel_state cancel_job(struct state *state, struct job *job, struct job **waiting) {
    if (job == NULL) {
        return CANCEL_UNKNOWN;
    }
    if (job->phase == JOB_WAITING) {
        job_list_remove(&state->jobs, job);
        give_back(state, job);
        *waiting = job;
        return CANCEL_QUEUED;
    }
    atomic_store(&job->is_cancelled, true);
    if (job->phase == JOB_RUNNING) {
        interrupt_step(state);
    }
    return CANCEL_RUNNING;
}

enum cancel_state state_cancel(struct state *state, uint64_t id, struct job **waiting) {
    *waiting = NULL;
    pthread_mutex_lock(&state->lock);
    enum cancel_state result = cancel_job(state, job_list_find(&state->jobs, id), waiting);
    pthread_mutex_unlock(&state->lock);
    return result;
}

void state_stop(struct state *state) {
    pthread_mutex_lock(&state->lock);
    atomic_store(&state->is_stopping, true);
    interrupt_step(state);
    pthread_cond_signal(&state->work);
    pthread_mutex_unlock(&state->lock);
}

struct job *state_take_waiting(struct state *state) {
    pthread_mutex_lock(&state->lock);
    struct job *job = job_list_take_waiting(&state->jobs);
    if (job != NULL) {
        give_back(state, job);
    }
    pthread_mutex_unlock(&state->lock);
    return job;
}

/* ---- health ---- */

static const char *name_of_state(struct state *state) {
    if (atomic_load(&state->is_stopping)) {
        return "draining";
    }
    if (state->is_loading) {
        return "loading";
    }
    if (state->is_computing) {
        return "computing";
    }
    return state->engine != NULL ? "ready" : "idle";
}

static uint64_t progress_of(struct state *state) {
    uint64_t engine =
        state->engine != NULL ? state->api->progress(state->engine) : state->engine_progress;
    return state->steps_reported + engine;
}

void state_health(struct state *state, struct health_snapshot *snapshot, uint64_t now_us) {
    struct health_answer *health = &snapshot->answer;
    memset(snapshot, 0, sizeof(*snapshot));
    pthread_mutex_lock(&state->lock);
    snapshot->phase = state->phase;
    snapshot->description = state->description;
    health->description = state->has_description ? &snapshot->description : NULL;
    health->state = name_of_state(state);
    health->progress = progress_of(state);
    health->sessions = state->sessions;
    health->kv_cells_used = state->kv_cells_used;
    health->queued = state->jobs.n_waiting;
    health->rows = state->rows;
    health->tokens_sampled = state->tokens_sampled;
    health->compute_us = state->compute_us;
    health->rss_before_load_bytes = state->rss_before_load;
    pthread_mutex_unlock(&state->lock);
    health->phase = snapshot->phase.phase;
    health->phase_done = snapshot->phase.done;
    health->phase_total = snapshot->phase.total;
    health->uptime_us = now_us - state->started_us;
}

/* ---- jobs ---- */

void state_take(struct state *state, struct job *job) {
    pthread_mutex_lock(&state->lock);
    job_list_remove(&state->jobs, job);
    pthread_mutex_unlock(&state->lock);
}

void state_set_phase(struct state *state, struct job *job, enum job_phase phase) {
    pthread_mutex_lock(&state->lock);
    job_list_set_phase(&state->jobs, job, phase);
    pthread_mutex_unlock(&state->lock);
}

void state_await_work(struct state *state, uint32_t at_most_us) {
#ifdef __APPLE__
    const struct timespec pause = {.tv_nsec = (long)at_most_us * 1000};
    pthread_cond_timedwait_relative_np(&state->work, &state->lock, &pause);
#else
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)at_most_us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&state->work, &state->lock, &until);
#endif
}
