#include "execution.h"

#include "clock.h"
#include "execute.h"
#include "forward.h"
#include "memory.h"
#include "process.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How long a step waits for another row to come. */
enum { PAUSES_OF_A_STEP = 32, MOST_PAUSE_US = 2000 };
/* Of how many steps for each stage the sessions are looked for whose rows may come. */
enum { STEPS_LOOKED_BACK = 2 };

void execution_init(struct execution *execution, struct state *state, struct replies *replies,
                    const struct wake *wake, const char *fault_plan) {
    memset(execution, 0, sizeof(*execution));
    execution->state = state;
    execution->replies = replies;
    execution->wake = wake;
    execution->api = state->api;
    execution->fault_plan = fault_plan;
}

/* ---- shared by the turns ---- */

static void take(struct execution *execution, struct job *job) {
    execution->cells_promised -= job->forward.cells_promised;
    state_take(execution->state, job);
}

void resolve_answer(struct execution *execution, struct job *job, struct encoder *encoder) {
    take(execution, job);
    reply_answer(execution->replies, job->request.id, encoder);
    job_free(job);
}

void resolve_failure(struct execution *execution, struct job *job, const struct failure *failure) {
    take(execution, job);
    reply_failure(execution->replies, job->request.id, failure);
    job_free(job);
}

void set_cancelled(struct failure *failure, uint32_t kv_cells_freed) {
    failure_set(failure, shard_status_name(SHARD_ERR_CANCELLED),
                "the request was cancelled; what it had done is undone");
    failure_add(failure, "kv_cells_freed", "%" PRIu32, kv_cells_freed);
}

void resolve_error(struct execution *execution, struct job *job, const shard_error *error) {
    struct failure failure;
    failure_clear(&failure);
    if (error->status == SHARD_ERR_CANCELLED) {
        set_cancelled(&failure, 0);
    } else {
        failure_set_engine(&failure, error);
    }
    resolve_failure(execution, job, &failure);
}

bool require_engine(const struct execution *execution, struct failure *failure) {
    if (execution->engine != NULL) {
        return true;
    }
    /* Only this thread writes `broken`, so it may be read here without the lock. */
    if (execution->state->broken[0] != '\0') {
        return failure_set(failure, shard_status_name(SHARD_ERR_BACKEND),
                           "the backend failed before and the shard was closed; start another "
                           "worker (%s)",
                           execution->state->broken);
    }
    return failure_set(failure, CODE_NOT_LOADED, "no shard is loaded; send a load first");
}

bool require_session(const struct execution *execution, uint64_t number, shard_session_id *slot,
                     struct failure *failure) {
    if (!require_engine(execution, failure)) {
        return false;
    }
    if (session_table_find(&execution->sessions, number, slot)) {
        return true;
    }
    failure_set(failure, shard_status_name(SHARD_ERR_NO_SESSION),
                "no session %" PRIu64 " is open here; open one", number);
    failure_add(failure, "session", "%" PRIu64, number);
    return false;
}

void note_usage(struct execution *execution) {
    uint32_t kv_cells = execution->api->kv_cells_used(execution->engine);
    pthread_mutex_lock(&execution->state->lock);
    execution->state->kv_cells_used = kv_cells;
    execution->state->sessions = execution->sessions.n_open;
    pthread_mutex_unlock(&execution->state->lock);
}

/* From here on the control thread does not touch the engine any more. */
static void withdraw_engine(struct execution *execution) {
    struct state *state = execution->state;
    pthread_mutex_lock(&state->lock);
    state->engine_progress = execution->api->progress(execution->engine);
    state->engine = NULL;
    state->has_description = false;
    state->sessions = 0;
    state->kv_cells_used = 0;
    pthread_mutex_unlock(&state->lock);
}

static void note_released(struct execution *execution) {
    struct bye_answer *released = &execution->released;
    released->sessions += execution->sessions.n_open;
    released->kv_cells += execution->api->kv_cells_used(execution->engine);
    released->weights_bytes += execution->description.memory.weights_bytes;
    released->kv_bytes += execution->description.memory.kv_bytes;
    released->compute_bytes += execution->description.memory.compute_bytes;
}

void close_engine(struct execution *execution) {
    if (execution->engine == NULL) {
        return;
    }
    note_released(execution);
    withdraw_engine(execution);
    execution->api->close(execution->engine);
    execution->engine = NULL;
    session_table_free(&execution->sessions);
    memory_release(execution->entries);
    memory_release(execution->pieces);
    execution->entries = NULL;
    execution->pieces = NULL;
}

const char *copy_path(char path[LIMIT_PATH], struct decode_text text) {
    if (text.data == NULL) {
        return NULL;
    }
    snprintf(path, LIMIT_PATH, "%.*s", (int)text.size, text.data);
    return path;
}

/* ---- turns ---- */

static void (*const EXECUTE[])(struct execution *, struct job *) = {
    [REQUEST_INSPECT] = execute_inspect,
    [REQUEST_SLICE] = execute_slice,
    [REQUEST_LOAD] = execute_load,
    [REQUEST_ESTIMATE] = execute_estimate,
    [REQUEST_OPEN] = execute_open,
    [REQUEST_TRIM] = execute_trim,
    [REQUEST_CLOSE] = execute_close,
    [REQUEST_TOKENIZE] = execute_tokenize,
    [REQUEST_DETOKENIZE] = execute_detokenize,
    [REQUEST_TOKEN_INFO] = execute_token_info,
    [REQUEST_CHAT_TEMPLATE] = execute_chat_template,
};

/* Waits until there is something to do; false when the worker stops. */
static bool wait_for_work(struct state *state) {
    pthread_mutex_lock(&state->lock);
    while (!atomic_load(&state->is_stopping) && state->jobs.first == NULL) {
        pthread_cond_wait(&state->work, &state->lock);
    }
    pthread_mutex_unlock(&state->lock);
    return !atomic_load(&state->is_stopping);
}

/* A forward that was cancelled between two steps. */
static struct job *take_up_cancelled(struct state *state) {
    pthread_mutex_lock(&state->lock);
    struct job *job = state->jobs.first;
    while (job != NULL && !(job->phase == JOB_STARTED && atomic_load(&job->is_cancelled))) {
        job = job->next;
    }
    if (job != NULL) {
        job_list_set_phase(&state->jobs, job, JOB_RUNNING);
    }
    pthread_mutex_unlock(&state->lock);
    return job;
}

/* Without an engine a forward is refused when its turn comes. */
static uint32_t piece_rows(const struct execution *execution, const struct job *job) {
    return execution->engine != NULL ? forward_piece_rows(&execution->description, job) : 1;
}

static uint32_t fill_window(struct execution *execution) {
    uint32_t n_jobs = 0;
    struct job *job = execution->state->jobs.first;
    for (; job != NULL && n_jobs < SCHEDULE_WINDOW; job = job->next, n_jobs++) {
        bool is_forward = job->request.type == REQUEST_FORWARD;
        execution->window[n_jobs] = job;
        execution->items[n_jobs] = (struct schedule_item){
            .session = request_session(&job->request),
            .rows = is_forward ? piece_rows(execution, job) : 0,
            .left_out = job->forward.left_out,
        };
    }
    return n_jobs;
}

/* If the others are about as long as this one: the longest of three has a little more than a third
 * of the layers, the shorter of two a little less than half. */
static uint32_t stages_like_this(const shard_description *description) {
    uint32_t n_here = description->layer_end - description->layer_start;
    if (n_here == 0 || n_here >= description->n_layer) {
        return 1;
    }
    uint32_t n_stages = (description->n_layer + n_here / 3) / n_here;
    return n_stages > 2 ? n_stages : 2;
}

/* Of the route; a guess where the host did not say. */
static uint32_t stages_of_route(const struct execution *execution) {
    return execution->n_stages > 0 ? execution->n_stages
                                   : stages_like_this(&execution->description);
}

/* A stage that took the rows of all sessions in one step would have nothing to do until the other
 * stages have computed them, and they nothing meanwhile. So a step takes as many as leave some for
 * each stage: with too many rows some stages wait, with too few a step computes less than it could.
 * Sessions that are open and ask for nothing are counted, which errs towards too many. */
static struct schedule_room room_of_step(const struct execution *execution) {
    if (execution->engine == NULL) {
        return (struct schedule_room){.rows = 1, .single_rows = 1};
    }
    uint32_t n_open = execution->sessions.n_open;
    uint32_t n_stages = stages_of_route(execution);
    uint32_t share = (n_open + n_stages - 1) / n_stages;
    return (struct schedule_room){.rows = execution->description.max_batch,
                                  .single_rows = share > 0 ? share : 1};
}

/* Rows that a step may take and that may be about to come: of sessions that lately had some. */
static uint32_t rows_expected(const struct execution *execution, const struct schedule_room *room) {
    const uint32_t n_steps = STEPS_LOOKED_BACK * stages_of_route(execution);
    const uint32_t n_active = session_table_n_active(&execution->sessions, n_steps);
    return n_active < room->single_rows ? n_active : room->single_rows;
}

/* The rows of sessions that were in one step come back one after the other, as fast as the host can
 * send them. A step that began with the first of them would leave the others to a second one, and
 * so would all that follow. So it waits while they keep coming, for each no longer than a small
 * part of what a step takes. */
static uint32_t gather(struct execution *execution, const struct schedule_room *room) {
    const uint64_t part_us = execution->decode_step_us / PAUSES_OF_A_STEP;
    const uint32_t pause_us = part_us < MOST_PAUSE_US ? (uint32_t)part_us : MOST_PAUSE_US;
    const uint32_t n_expected = rows_expected(execution, room);
    uint32_t n_before = 0;
    uint32_t n_jobs = fill_window(execution);
    while (pause_us > 0 && n_jobs > n_before &&
           schedule_may_grow(execution->items, n_jobs, n_expected)) {
        state_await_work(execution->state, pause_us);
        n_before = n_jobs;
        n_jobs = fill_window(execution);
    }
    return n_jobs;
}

static uint32_t choose(struct execution *execution) {
    const struct schedule_room room = room_of_step(execution);
    struct state *state = execution->state;
    pthread_mutex_lock(&state->lock);
    uint32_t n_jobs = gather(execution, &room);
    uint32_t n_picks =
        schedule_next(execution->items, n_jobs, &room, execution->last_was_step, execution->picks);
    for (uint32_t i = 0; i < n_jobs; i++) {
        execution->window[i]->forward.left_out = execution->items[i].left_out;
    }
    for (uint32_t i = 0; i < n_picks; i++) {
        job_list_set_phase(&state->jobs, execution->window[execution->picks[i]], JOB_RUNNING);
    }
    pthread_mutex_unlock(&state->lock);
    return n_picks;
}

static void take_turn(struct execution *execution) {
    struct job *cancelled = take_up_cancelled(execution->state);
    if (cancelled != NULL) {
        execute_abandon(execution, cancelled);
        return;
    }
    uint32_t n_picks = choose(execution);
    if (n_picks == 0) {
        return;
    }
    struct job *first = execution->window[execution->picks[0]];
    execution->last_was_step = first->request.type == REQUEST_FORWARD;
    if (execution->last_was_step) {
        execute_step(execution, n_picks);
    } else {
        EXECUTE[first->request.type](execution, first);
    }
}

/* Resolves what is left when the worker stops: forwards that had started. Those that wait are
 * resolved by the control thread. */
static void abandon_started(struct execution *execution) {
    struct state *state = execution->state;
    for (;;) {
        pthread_mutex_lock(&state->lock);
        struct job *job = state->jobs.first;
        while (job != NULL && job->phase != JOB_STARTED) {
            job = job->next;
        }
        if (job != NULL) {
            job_list_set_phase(&state->jobs, job, JOB_RUNNING);
        }
        pthread_mutex_unlock(&state->lock);
        if (job == NULL) {
            return;
        }
        execute_abandon(execution, job);
    }
}

void *execution_run(void *argument) {
    struct execution *execution = argument;
    process_give_way(execution->compute_nice);
    while (wait_for_work(execution->state)) {
        take_turn(execution);
    }
    abandon_started(execution);
    close_engine(execution);
    atomic_store(&execution->state->is_finished, true);
    wake_ring(execution->wake);
    return NULL;
}
