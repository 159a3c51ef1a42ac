/* One step: check every entry, plan the calls of the library, and make them one after the other.
 * The entries of a call are done when it is; whatever goes wrong later does not touch them, and the
 * sessions of all others are then as they were before. */
#include "engine.h"
#include "error.h"
#include "step_rules.h"

#include <string.h>

/* ---- one call's batch ---- */

/* A stage that is not the last gives every row back, because some graphs drop the others early. */
static bool wants_output(const shard_engine *engine, const shard_step_entry *entry, uint32_t row) {
    return entry->n_rows - row <= step_rules_rows_out(&engine->description, entry);
}

/* The row's values, where the library is not fed with tokens. */
static shard_status put_values(const shard_engine *engine, const shard_step_entry *entry,
                               uint32_t row, float *values, shard_error *error) {
    if (entry->hidden == NULL) {
        return embedding_row(engine->embedding, entry->tokens[row], values, error);
    }
    const uint32_t n_embd = engine->description.n_embd;
    const size_t row_bytes = (size_t)n_embd * boundary_value_bytes(engine->boundary);
    boundary_unpack(engine->boundary, (const char *)entry->hidden + row * row_bytes, n_embd,
                    values);
    return shard_ok(error);
}

static shard_status put_row(shard_engine *engine, const shard_step_entry *entry, uint32_t row,
                            shard_error *error) {
    struct llama_batch *batch = &engine->buffers.batch;
    const int32_t at = batch->n_tokens;
    if (engine->takes_tokens) {
        batch->token[at] = entry->tokens[row];
    } else if (put_values(engine, entry, row, batch->embd + (size_t)at * engine->description.n_embd,
                          error) != SHARD_OK) {
        return error->status;
    }
    batch->pos[at] = (llama_pos)(entry->position + row);
    batch->n_seq_id[at] = 1;
    batch->seq_id[at][0] = entry->session;
    batch->logits[at] = wants_output(engine, entry, row);
    batch->n_tokens++;
    return shard_ok(error);
}

/* The entries that are computed together now. */
typedef struct step_call {
    shard_step_entry *entries;
    const uint32_t *order; /* of this call alone */
    uint32_t n_entries;
    uint32_t n_rows;
    bool is_last; /* of the step: its rows stay where the library made them */
    bool gives_embeddings;
} step_call;

static shard_status build_batch(shard_engine *engine, const step_call *call, shard_error *error) {
    engine->buffers.batch.n_tokens = 0;
    for (uint32_t i = 0; i < call->n_entries; i++) {
        const shard_step_entry *entry = &call->entries[call->order[i]];
        for (uint32_t row = 0; row < entry->n_rows; row++) {
            if (put_row(engine, entry, row, error) != SHARD_OK) {
                return error->status;
            }
        }
    }
    return shard_ok(error);
}

/* ---- computing ---- */

/* Whether the call may be stopped in its middle. Where states lie beside each other, the library
 * moves some to make those of a call neighbours: others could be lost, and so the call, which has
 * one row of each session, is waited for. */
static bool can_be_aborted(const shard_engine *engine, const step_call *call) {
    return !engine->memory.has_state || call->n_entries == 1;
}

static shard_status cancelled(shard_error *error) {
    return shard_fail(error, SHARD_ERR_CANCELLED, "the step was cancelled");
}

/* Asked for embeddings, the library gives every row back; of any other call it must not. */
static int32_t decode(shard_engine *engine, const step_call *call) {
    if (!call->gives_embeddings) {
        return row_feed_decode(engine->feed, engine->context, engine->buffers.batch);
    }
    llama_set_embeddings(engine->context, true);
    const int32_t result = row_feed_decode(engine->feed, engine->context, engine->buffers.batch);
    llama_set_embeddings(engine->context, false);
    return result;
}

static shard_status compute(shard_engine *engine, const step_call *call, shard_error *error) {
    if (atomic_load(&engine->cancel)) {
        return cancelled(error);
    }
    engine->defers_cancel = !can_be_aborted(engine, call);
    const int32_t result = decode(engine, call);
    llama_synchronize(engine->context);
    switch (result) {
    case 0:
        return shard_ok(error);
    case 1:
        shard_fail(error, SHARD_ERR_CAPACITY,
                   "llama.cpp found no KV slot for %u rows: send fewer rows in a step",
                   call->n_rows);
        shard_error_add(error, "needed", "%u", call->n_rows);
        shard_error_add(error, "available", "0");
        return error->status;
    case 2:
        return cancelled(error);
    default:
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "llama_decode failed with status %d: restart this worker", result);
    }
}

/* The rows that the call made, one entry after the other. */
static shard_status find_rows(const shard_engine *engine, const step_call *call,
                              uint32_t rows_before, float **rows, shard_error *error) {
    if (engine->is_last) {
        *rows = call->gives_embeddings ? llama_get_embeddings(engine->context)
                                       : llama_get_logits(engine->context);
        return shard_ok(error);
    }
    uint32_t collected = 0;
    float *all = observer_rows(engine->observer, &collected);
    *rows = all + (size_t)rows_before * engine->description.n_embd;
    if (collected - rows_before != call->n_rows) {
        return shard_fail(
            error, SHARD_ERR_BACKEND,
            "the last layer gave %u rows where %u went in: this llama.cpp does not name "
            "its layer outputs as the pinned one does",
            collected - rows_before, call->n_rows);
    }
    return shard_ok(error);
}

/* ---- undoing ---- */

static shard_status take_snapshots(shard_engine *engine, const step_call *call,
                                   shard_error *error) {
    shard_ok(error);
    state_snapshots_clear(&engine->snapshots);
    for (uint32_t i = 0; engine->memory.has_state && i < call->n_entries; i++) {
        const shard_step_entry *entry = &call->entries[call->order[i]];
        if (state_snapshots_take(&engine->snapshots, engine->context, entry->session, error) !=
            SHARD_OK) {
            return error->status;
        }
    }
    return error->status;
}

/* Makes the session of the call's entry number `index` what it was before, and fails the entry. */
static void undo(shard_engine *engine, const step_call *call, uint32_t index,
                 const shard_error *why) {
    shard_step_entry *entry = &call->entries[call->order[index]];
    shard_error failure = *why;
    if (index < engine->snapshots.n_items && entry->position > 0) {
        shard_error not_restored;
        if (state_snapshots_restore(&engine->snapshots, index, engine->context, entry->session,
                                    &not_restored) != SHARD_OK) {
            failure = not_restored;
        }
    }
    sequence_forget(&engine->memory, entry->session, entry->position);
    step_rules_fail(entry, &failure);
}

/* ---- results ---- */

/* What the drawn token is. */
static shard_status describe_token(shard_engine *engine, shard_step_entry *entry) {
    text_buffer *text = &engine->sessions[entry->session].text;
    if (!engine->description.has_vocabulary) {
        return SHARD_OK;
    }
    entry->end_of_generation = llama_vocab_is_eog(engine->vocabulary.vocab, entry->token);
    if (vocabulary_token_text(&engine->vocabulary, entry->token, text, &entry->n_text_bytes,
                              &entry->error) == SHARD_OK) {
        entry->text = entry->n_text_bytes > 0 ? text->data : NULL;
    }
    return entry->error.status;
}

/* The session has its new rows by now: the sampler looks at all of them. */
static shard_status draw(shard_engine *engine, const float *logits, shard_step_entry *entry) {
    const kv_session *session = &engine->sessions[entry->session];
    if (session_sampler_draw(session->sampler, logits, session->history.tokens,
                             session->history.length, entry) != SHARD_OK) {
        return entry->error.status;
    }
    return describe_token(engine, entry);
}

/* Values that the call makes for the entry. */
static uint64_t values_out(const shard_engine *engine, const shard_step_entry *entry) {
    return (uint64_t)step_rules_rows_out(&engine->description, entry) *
           step_rules_columns_out(&engine->description, entry);
}

static void keep_rows(shard_engine *engine, const step_call *call, shard_step_entry *entry) {
    if (engine->is_last && !call->is_last && entry->rows != NULL) {
        entry->rows = step_buffers_keep(&engine->buffers, entry->rows, values_out(engine, entry));
    }
}

/* `rows` are the entry's own: the ones that step_rules_rows_out asks for. */
static void finish_entry(shard_engine *engine, const step_call *call, uint32_t index, float *rows) {
    shard_step_entry *entry = &call->entries[call->order[index]];
    if (step_rules_deliver(&engine->description, rows, entry) != SHARD_OK) {
        undo(engine, call, index, &entry->error);
        return;
    }
    engine_session_extend(engine, entry->session, entry->tokens, entry->n_rows);
    if (entry->output == SHARD_OUTPUT_TOKEN && draw(engine, rows, entry) != SHARD_OK) {
        engine_session_shorten(engine, entry->session, entry->position);
        undo(engine, call, index, &entry->error);
        return;
    }
    keep_rows(engine, call, entry);
    step_rules_accept(entry);
}

static void finish_call(shard_engine *engine, const step_call *call, float *rows) {
    for (uint32_t i = 0; i < call->n_entries; i++) {
        const shard_step_entry *entry = &call->entries[call->order[i]];
        const uint64_t n_values = values_out(engine, entry);
        finish_entry(engine, call, i, rows);
        rows += n_values;
    }
}

static shard_status run_call(shard_engine *engine, const step_call *call, shard_error *error) {
    float *rows = NULL;
    uint32_t rows_before = 0;
    observer_rows(engine->observer, &rows_before);
    if (take_snapshots(engine, call, error) != SHARD_OK ||
        build_batch(engine, call, error) != SHARD_OK) {
        return error->status;
    }
    if (compute(engine, call, error) != SHARD_OK ||
        find_rows(engine, call, rows_before, &rows, error) != SHARD_OK) {
        for (uint32_t i = 0; i < call->n_entries; i++) {
            undo(engine, call, i, error);
        }
        return error->status;
    }
    finish_call(engine, call, rows);
    return SHARD_OK;
}

/* ---- the step ---- */

static void reserve_histories(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries) {
    for (uint32_t i = 0; i < n_entries; i++) {
        shard_step_entry *entry = &entries[i];
        if (entry->status == SHARD_OK) {
            entry->status = token_history_reserve(&engine->sessions[entry->session].history,
                                                  entry->n_rows, &entry->error);
        }
    }
}

/* Values that calls before the last one give to their callers. */
static uint64_t values_to_keep(const shard_engine *engine, const shard_step_entry *entries) {
    const decode_plan *plan = &engine->buffers.plan;
    const uint32_t end = plan->calls[plan->n_calls - 1].first;
    uint64_t n_values = 0;
    for (uint32_t i = 0; engine->is_last && i < end; i++) {
        const shard_step_entry *entry = &entries[plan->order[i]];
        if (entry->output != SHARD_OUTPUT_TOKEN) {
            n_values += values_out(engine, entry);
        }
    }
    return n_values;
}

/* The entries from `first` on in the order of the plan, which nothing was computed for. */
static void fail_rest(const decode_plan *plan, shard_step_entry *entries, uint32_t first,
                      const shard_error *error) {
    for (uint32_t i = first; i < plan->n_ordered; i++) {
        if (entries[plan->order[i]].status == SHARD_OK) {
            step_rules_fail(&entries[plan->order[i]], error);
        }
    }
}

static shard_status run_plan(shard_engine *engine, shard_step_entry *entries, shard_error *error) {
    const decode_plan *plan = &engine->buffers.plan;
    if (step_buffers_reserve(&engine->buffers, values_to_keep(engine, entries), error) !=
        SHARD_OK) {
        fail_rest(plan, entries, 0, error);
        return error->status;
    }
    observer_begin_rows(engine->observer);
    for (uint32_t i = 0; i < plan->n_calls; i++) {
        const uint32_t first = plan->order[plan->calls[i].first];
        const step_call call = {.entries = entries,
                                .order = plan->order + plan->calls[i].first,
                                .n_entries = plan->calls[i].n_entries,
                                .n_rows = plan->calls[i].n_rows,
                                .is_last = i + 1 == plan->n_calls,
                                .gives_embeddings =
                                    entries[first].output == SHARD_OUTPUT_EMBEDDING};
        if (run_call(engine, &call, error) != SHARD_OK) {
            fail_rest(plan, entries, plan->calls[i].first, error);
            return error->status;
        }
    }
    return shard_ok(error);
}

shard_status engine_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                         shard_error *error) {
    const step_view view = {
        .description = &engine->description,
        .kv_cells_used = engine->cells.n_used,
        .session_length = engine_session_length,
        .engine = engine,
    };
    decode_plan *plan = &engine->buffers.plan;
    step_rules_admit(&view, entries, n_entries);
    reserve_histories(engine, entries, n_entries);
    decode_plan_make(plan, entries, n_entries, engine->description.recipe.n_ubatch);
    if (plan->n_calls == 0) {
        return shard_ok(error);
    }
    run_plan(engine, entries, error);
    atomic_store(&engine->cancel, false);
    return error->status;
}
