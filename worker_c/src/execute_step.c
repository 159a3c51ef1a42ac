/* Computing rows of many sessions in one step, and what becomes of each forward in it. */
#include "execute.h"

#include "answer.h"
#include "clock.h"
#include "forward.h"
#include "memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What one step was, for all its entries. */
struct step_outcome {
    uint64_t started_us, compute_us;
    uint32_t batch_rows;
    bool may_run_again; /* it was aborted for the sake of another request */
};

/* ---- the end of a forward that failed ---- */

/* What it took to make a session as it was before the request. */
struct undoing {
    uint32_t kv_cells_freed;
    bool is_closed; /* it could not be made so, and was closed */
};

/* A session of a model with recurrent state cannot go back to any position. It is closed then:
 * nobody could say what an open one holds. */
static void close_undone(struct execution *execution, const struct job *job,
                         struct undoing *undoing) {
    shard_error error;
    if (execution->api->session_close(execution->engine, job->forward.slot,
                                      &undoing->kv_cells_freed, &error) == SHARD_OK) {
        session_table_remove(&execution->sessions, job->forward.slot);
        undoing->is_closed = true;
    } else {
        fprintf(stderr, "a forward could not be undone: %s\n", error.message);
    }
}

/* Takes earlier pieces back. */
static struct undoing undo(struct execution *execution, const struct job *job) {
    struct undoing undoing = {0, false};
    if (job->forward.rows_done == 0 || execution->engine == NULL) {
        return undoing;
    }
    shard_error error;
    if (execution->api->session_trim(execution->engine, job->forward.slot,
                                     job->request.as.forward.position, &undoing.kv_cells_freed,
                                     &error) != SHARD_OK) {
        close_undone(execution, job, &undoing);
    }
    note_usage(execution);
    return undoing;
}

static void tell_closed(const struct job *job, const struct undoing *undoing,
                        struct failure *failure) {
    if (undoing->is_closed) {
        failure_add(failure, "session_closed", "%" PRIu64, job->request.as.forward.session);
    }
}

void execute_abandon(struct execution *execution, struct job *job) {
    struct failure failure;
    failure_clear(&failure);
    const struct undoing undoing = undo(execution, job);
    set_cancelled(&failure, undoing.kv_cells_freed);
    tell_closed(job, &undoing, &failure);
    resolve_failure(execution, job, &failure);
}

static void fail(struct execution *execution, struct job *job, const shard_error *error) {
    struct failure failure;
    failure_clear(&failure);
    failure_set_engine(&failure, error);
    if (error->status != SHARD_ERR_BACKEND) {
        const struct undoing undoing = undo(execution, job);
        tell_closed(job, &undoing, &failure);
    }
    resolve_failure(execution, job, &failure);
}

/* ---- before the step ---- */

/* Fills the pieces; a forward that cannot be computed is resolved here. */
static uint32_t prepare(struct execution *execution, uint32_t n_picks) {
    uint32_t n_pieces = 0;
    for (uint32_t i = 0; i < n_picks; i++) {
        struct job *job = execution->window[execution->picks[i]];
        uint32_t rows = execution->items[execution->picks[i]].rows;
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
        .value_bytes = entry->value_bytes,
        .dtype = forward_dtype(&execution->description, entry->output),
        .token = entry->token,
        .logprob = entry->logprob,
        .end_of_generation = entry->end_of_generation,
        .text = entry->text,
        .n_text_bytes = entry->n_text_bytes,
        .top = entry->top,
        .n_top = entry->n_top,
    };
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_result(&encoder, job->request.id, &result);
    resolve_answer(execution, job, &encoder);
}

static void note_draw(struct execution *execution, const shard_step_entry *entry) {
    struct session_draw draw = {0};
    if (entry->output == SHARD_OUTPUT_TOKEN) {
        draw = (struct session_draw){entry->length, entry->token, entry->end_of_generation,
                                     clock_now_us()};
    }
    session_table_set_draw(&execution->sessions, entry->session, draw);
}

static void settle_done(struct execution *execution, struct job *job, const shard_step_entry *entry,
                        const struct step_outcome *outcome) {
    struct forward_work *work = &job->forward;
    note_draw(execution, entry);
    forward_keep_values(&execution->description, work, entry);
    work->rows_done += entry->n_rows;
    forward_keep_promise(execution, work, entry->n_rows);
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

static void close_if_broken(struct execution *execution, uint32_t n_entries) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (execution->entries[i].status == SHARD_ERR_BACKEND) {
            close_broken(execution, &execution->entries[i].error);
            return;
        }
    }
}

void execute_step(struct execution *execution, uint32_t n_picks) {
    uint32_t n_entries = begin(execution, prepare(execution, n_picks));
    if (n_entries == 0) {
        return;
    }
    struct step_outcome outcome = {.started_us = clock_now_us()};
    session_table_count_step(&execution->sessions);
    for (uint32_t i = 0; i < n_entries; i++) {
        forward_fill_entry(&execution->description, execution->pieces[i].job,
                           execution->pieces[i].rows, &execution->entries[i]);
        session_table_note(&execution->sessions, execution->entries[i].session);
        outcome.batch_rows += execution->pieces[i].rows;
    }
    /* What it returns is said by the entries too: those of its earlier calls may be done. */
    shard_error error;
    execution->api->step(execution->engine, execution->entries, n_entries, &error);
    outcome.compute_us = clock_now_us() - outcome.started_us;
    if (outcome.batch_rows == n_entries) {
        execution->decode_step_us = outcome.compute_us;
    }
    note_step(execution, n_entries, &outcome);
    settle(execution, n_entries, &outcome);
    close_if_broken(execution, n_entries);
}
