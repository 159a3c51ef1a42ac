/* Computing rows of many sessions in one step, and what becomes of each forward in it. */
#include "execute.h"

#include "answer.h"
#include "clock.h"
#include "forward.h"
#include "memory.h"

#include <stdio.h>
#include <string.h>

/* What one step was, for all its entries. */
struct step_outcome {
    uint64_t started_us, compute_us;
    uint32_t batch_rows;
    bool may_run_again; /* it was aborted for the sake of another request */
};

uint32_t execute_rows_left(const struct execution *execution, const struct job *job) {
    uint32_t n_rows = forward_rows(&job->request.as.forward, execution->description.n_embd);
    uint32_t n_done = job->forward.rows_done;
    return n_rows > n_done ? n_rows - n_done : 1;
}

/* ---- the end of a forward that failed ---- */

/* Earlier pieces are taken back, so that the session is as it was before the request. */
static uint32_t undo(struct execution *execution, const struct job *job) {
    uint32_t kv_cells_freed = 0;
    if (job->forward.rows_done > 0 && execution->engine != NULL) {
        shard_error error;
        if (execution->api->session_trim(execution->engine, job->forward.slot,
                                         job->request.as.forward.position, &kv_cells_freed,
                                         &error) != SHARD_OK) {
            fprintf(stderr, "a forward could not be undone: %s\n", error.message);
        }
        note_usage(execution);
    }
    return kv_cells_freed;
}

void execute_abandon(struct execution *execution, struct job *job) {
    struct failure failure;
    failure_clear(&failure);
    set_cancelled(&failure, undo(execution, job));
    resolve_failure(execution, job, &failure);
}

static void fail(struct execution *execution, struct job *job, const shard_error *error) {
    struct failure failure;
    failure_clear(&failure);
    failure_set_engine(&failure, error);
    if (error->status != SHARD_ERR_BACKEND) {
        undo(execution, job);
    }
    resolve_failure(execution, job, &failure);
}

/* ---- before the step ---- */

/* Fills the pieces; a forward that cannot be computed is resolved here. */
static uint32_t prepare(struct execution *execution, uint32_t n_picks) {
    uint32_t n_pieces = 0;
    for (uint32_t i = 0; i < n_picks; i++) {
        struct job *job = execution->window[execution->picks[i].index];
        uint32_t rows = execution->picks[i].rows;
        struct failure failure;
        failure_clear(&failure);
        if (forward_prepare(execution, job, rows, &failure)) {
            execution->pieces[n_pieces++] = (struct piece){job, rows};
        } else {
            resolve_failure(execution, job, &failure);
        }
    }
    return n_pieces;
}

static uint32_t first_cancelled(struct execution *execution, uint32_t n_pieces) {
    uint32_t i = 0;
    while (i < n_pieces && !atomic_load(&execution->pieces[i].job->is_cancelled) &&
           !atomic_load(&execution->state->is_stopping)) {
        i++;
    }
    return i;
}

/* Leaves out what was cancelled since it was picked and marks the step as running, in one: see
 * interrupt_step in state.c. Returns how many pieces are left; with none nothing runs. */
static uint32_t begin(struct execution *execution, uint32_t n_pieces) {
    for (;;) {
        pthread_mutex_lock(&execution->state->lock);
        uint32_t cancelled = first_cancelled(execution, n_pieces);
        execution->state->is_computing = cancelled == n_pieces && n_pieces > 0;
        pthread_mutex_unlock(&execution->state->lock);
        if (cancelled == n_pieces) {
            return n_pieces;
        }
        struct piece *piece = &execution->pieces[cancelled];
        execute_abandon(execution, piece->job);
        n_pieces--;
        memmove(piece, piece + 1, (n_pieces - cancelled) * sizeof(*piece));
    }
}

/* ---- after the step ---- */

static void note_step(struct execution *execution, uint32_t n_entries,
                      struct step_outcome *outcome) {
    struct state *state = execution->state;
    uint32_t kv_cells = execution->api->kv_cells_used(execution->engine);
    bool is_aborted = false;
    pthread_mutex_lock(&state->lock);
    state->is_computing = false;
    state->kv_cells_used = kv_cells;
    state->compute_us += outcome->compute_us;
    for (uint32_t i = 0; i < n_entries; i++) {
        const shard_step_entry *entry = &execution->entries[i];
        bool is_done = entry->status == SHARD_OK;
        state->rows += is_done ? entry->n_rows : 0;
        state->tokens_sampled += is_done && entry->output == SHARD_OUTPUT_TOKEN;
        is_aborted = is_aborted || entry->status == SHARD_ERR_CANCELLED;
    }
    /* Each call of `cancel` can abort one step. An engine that aborts more than that would make its
     * innocent entries run for ever. */
    outcome->may_run_again = is_aborted && state->unspent_cancels > 0;
    state->unspent_cancels -= outcome->may_run_again;
    pthread_mutex_unlock(&state->lock);
}

static void answer(struct execution *execution, struct job *job, const shard_step_entry *entry) {
    const struct forward_work *work = &job->forward;
    const bool is_whole = work->values != NULL;
    const struct result_answer result = {
        .session = job->request.as.forward.session,
        .length = entry->length,
        .kv_cells = work->kv_cells,
        .output = job->request.as.forward.output,
        .queue_us = work->started_us - job->arrived_us,
        .compute_us = work->compute_us,
        .batch_rows = work->batch_rows,
        .values = is_whole ? work->values : entry->rows,
        .rows = is_whole ? work->n_rows : entry->n_rows_out,
        .columns = entry->n_columns_out,
        .token = entry->token,
        .logprob = entry->logprob,
        .end_of_generation = entry->end_of_generation,
        .text = entry->text,
        .n_text_bytes = entry->n_text_bytes,
    };
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_result(&encoder, job->request.id, &result);
    resolve_answer(execution, job, &encoder);
}

static void settle_done(struct execution *execution, struct job *job, const shard_step_entry *entry,
                        const struct step_outcome *outcome) {
    struct forward_work *work = &job->forward;
    forward_keep_values(&execution->description, work, entry);
    work->rows_done += entry->n_rows;
    work->kv_cells += entry->kv_cells_taken;
    work->compute_us += outcome->compute_us;
    work->started_us = work->started_us != 0 ? work->started_us : outcome->started_us;
    if (work->batch_rows < outcome->batch_rows) {
        work->batch_rows = outcome->batch_rows;
    }
    if (work->rows_done < work->n_rows) {
        state_set_phase(execution->state, job, JOB_STARTED);
    } else {
        answer(execution, job, entry);
    }
}

static void settle_failed(struct execution *execution, struct job *job,
                          const shard_step_entry *entry, const struct step_outcome *outcome) {
    bool is_asked_for =
        atomic_load(&job->is_cancelled) || atomic_load(&execution->state->is_stopping);
    if (entry->status != SHARD_ERR_CANCELLED) {
        fail(execution, job, &entry->error);
    } else if (is_asked_for || !outcome->may_run_again) {
        execute_abandon(execution, job);
    } else {
        /* It was in the step of a request that was cancelled: it runs again, as if nothing had
         * been. It does not go back to those that wait: a stop may have resolved them all just now,
         * and nobody would look for it there. */
        state_set_phase(execution->state, job, JOB_STARTED);
    }
}

/* Entries that were computed come first: their rows are borrowed from the engine until its next
 * call, and undoing the others is one. */
static void settle(struct execution *execution, uint32_t n_entries,
                   const struct step_outcome *outcome) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (execution->entries[i].status == SHARD_OK) {
            settle_done(execution, execution->pieces[i].job, &execution->entries[i], outcome);
        }
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        if (execution->entries[i].status != SHARD_OK) {
            settle_failed(execution, execution->pieces[i].job, &execution->entries[i], outcome);
        }
    }
}

/* After a failure of the backend the engine is closed, as its contract says; the worker then
 * refuses every request that needs one, so that the host starts another worker. */
static void close_broken(struct execution *execution, const shard_error *error) {
    struct state *state = execution->state;
    pthread_mutex_lock(&state->lock);
    snprintf(state->broken, sizeof(state->broken), "%s", error->message);
    pthread_mutex_unlock(&state->lock);
    close_engine(execution);
}

void execute_step(struct execution *execution, uint32_t n_picks) {
    uint32_t n_entries = begin(execution, prepare(execution, n_picks));
    if (n_entries == 0) {
        return;
    }
    struct step_outcome outcome = {.started_us = clock_now_us()};
    for (uint32_t i = 0; i < n_entries; i++) {
        forward_fill_entry(execution->pieces[i].job, execution->pieces[i].rows,
                           &execution->description, &execution->entries[i]);
        outcome.batch_rows += execution->pieces[i].rows;
    }
    shard_error error;
    shard_status status =
        execution->api->step(execution->engine, execution->entries, n_entries, &error);
    outcome.compute_us = clock_now_us() - outcome.started_us;
    note_step(execution, n_entries, &outcome);
    settle(execution, n_entries, &outcome);
    if (status == SHARD_ERR_BACKEND) {
        close_broken(execution, &error);
    }
}
