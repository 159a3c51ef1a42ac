/* One step: check every entry, build one batch of those that are right, let the library compute it,
 * and hand the rows back. Whatever goes wrong, the sessions are then as they were before. */
#include "engine.h"
#include "error.h"
#include "step_rules.h"

#include <string.h>

/* ---- the batch ---- */

static bool wants_output(const shard_engine *engine, const shard_step_entry *entry, uint32_t row) {
    return entry->n_rows - row <= step_rules_rows_out(&engine->description, entry);
}

static shard_status put_row(shard_engine *engine, const shard_step_entry *entry, uint32_t row,
                            shard_error *error) {
    struct llama_batch *batch = &engine->batch;
    const uint32_t n_embd = engine->description.n_embd;
    const int32_t at = batch->n_tokens;
    if (engine->takes_tokens) {
        batch->token[at] = entry->tokens[row];
    } else if (entry->hidden != NULL) {
        memcpy(batch->embd + (size_t)at * n_embd, entry->hidden + (size_t)row * n_embd,
               n_embd * sizeof(float));
    } else if (embedding_row(engine->embedding, entry->tokens[row],
                             batch->embd + (size_t)at * n_embd, error) != SHARD_OK) {
        return error->status;
    }
    batch->pos[at] = (llama_pos)(entry->position + row);
    batch->n_seq_id[at] = 1;
    batch->seq_id[at][0] = entry->session;
    batch->logits[at] = wants_output(engine, entry, row);
    batch->n_tokens++;
    return SHARD_OK;
}

static shard_status build_batch(shard_engine *engine, const shard_step_entry *entries,
                                uint32_t n_entries, shard_error *error) {
    engine->batch.n_tokens = 0;
    for (uint32_t i = 0; i < n_entries; i++) {
        for (uint32_t row = 0; entries[i].status == SHARD_OK && row < entries[i].n_rows; row++) {
            if (put_row(engine, &entries[i], row, error) != SHARD_OK) {
                return error->status;
            }
        }
    }
    return shard_ok(error);
}

static shard_status compute(shard_engine *engine, shard_error *error) {
    observer_begin_rows(engine->observer);
    const int32_t result = llama_decode(engine->context, engine->batch);
    llama_synchronize(engine->context);
    switch (result) {
    case 0:
        return shard_ok(error);
    case 1:
        shard_fail(error, SHARD_ERR_CAPACITY,
                   "llama.cpp found no KV slot for %d rows: send fewer rows in a step",
                   engine->batch.n_tokens);
        shard_error_add(error, "needed", "%d", engine->batch.n_tokens);
        shard_error_add(error, "available", "0");
        return error->status;
    case 2:
        return shard_fail(error, SHARD_ERR_CANCELLED, "the step was cancelled");
    default:
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "llama_decode failed with status %d: restart this worker", result);
    }
}

/* ---- results ---- */

static void forget(shard_engine *engine, const shard_step_entry *entry) {
    llama_memory_seq_rm(llama_get_memory(engine->context), entry->session,
                        (llama_pos)entry->position, -1);
}

static void fail_all(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                     const shard_error *error) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status == SHARD_OK) {
            forget(engine, &entries[i]);
            entries[i].status = error->status;
            entries[i].error = *error;
        }
    }
}

/* What the drawn token is. When it cannot be told, the entry has failed and keeps nothing. */
static shard_status describe_token(shard_engine *engine, shard_step_entry *entry) {
    text_buffer *text = &engine->sessions[entry->session].text;
    if (!engine->description.has_vocabulary) {
        return SHARD_OK;
    }
    entry->end_of_generation = llama_vocab_is_eog(engine->vocabulary.vocab, entry->token);
    entry->status = vocabulary_token_text(&engine->vocabulary, entry->token, text,
                                          &entry->n_text_bytes, &entry->error);
    if (entry->status != SHARD_OK) {
        entry->token = -1;
        entry->length -= entry->n_rows;
        entry->kv_cells_taken = 0;
        return entry->status;
    }
    entry->text = entry->n_text_bytes > 0 ? text->data : NULL;
    return SHARD_OK;
}

/* `rows` are the entry's own: the ones that step_rules_rows_out asks for. */
static void finish_entry(shard_engine *engine, shard_step_entry *entry, const float *rows) {
    const shard_description *description = &engine->description;
    const uint32_t n_rows = step_rules_rows_out(description, entry);
    entry->status = step_rules_check_finite(rows, n_rows, step_rules_columns_out(description),
                                            entry->n_rows - n_rows, "out", &entry->error);
    if (entry->status != SHARD_OK) {
        forget(engine, entry);
        return;
    }
    step_rules_deliver(description, rows, entry);
    if (entry->output == SHARD_OUTPUT_TOKEN && describe_token(engine, entry) != SHARD_OK) {
        forget(engine, entry);
        return;
    }
    engine->sessions[entry->session].length = entry->length;
    engine->kv_cells_used += entry->n_rows;
}

/* The rows lie one entry after the other, in the order of the batch. */
static void finish_entries(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                           const float *rows) {
    const uint64_t n_columns = step_rules_columns_out(&engine->description);
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status == SHARD_OK) {
            const uint32_t n_rows = step_rules_rows_out(&engine->description, &entries[i]);
            finish_entry(engine, &entries[i], rows);
            rows += n_rows * n_columns;
        }
    }
}

static shard_status find_rows(const shard_engine *engine, uint32_t n_rows, const float **rows,
                              shard_error *error) {
    if (engine->is_last) {
        *rows = llama_get_logits(engine->context);
        return shard_ok(error);
    }
    uint32_t collected = 0;
    *rows = observer_rows(engine->observer, &collected);
    if (collected != n_rows) {
        return shard_fail(
            error, SHARD_ERR_BACKEND,
            "the last layer gave %u rows where %u went in: this llama.cpp does not name "
            "its layer outputs as the pinned one does",
            collected, n_rows);
    }
    return shard_ok(error);
}

shard_status engine_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                         shard_error *error) {
    const step_view view = {
        .description = &engine->description,
        .kv_cells_used = engine->kv_cells_used,
        .session_length = engine_session_length,
        .engine = engine,
    };
    const float *rows = NULL;
    const uint32_t n_rows = step_rules_admit(&view, entries, n_entries);
    if (n_rows == 0) {
        return shard_ok(error);
    }
    if (build_batch(engine, entries, n_entries, error) == SHARD_OK &&
        compute(engine, error) == SHARD_OK) {
        find_rows(engine, n_rows, &rows, error);
    }
    atomic_store(&engine->cancel, false);
    if (error->status != SHARD_OK) {
        fail_all(engine, entries, n_entries, error);
        return error->status;
    }
    finish_entries(engine, entries, n_entries, rows);
    return SHARD_OK;
}
