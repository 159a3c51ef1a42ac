/* One step of the fake engine: admit the entries, take cells, compute layer by layer, give outputs.
 * An entry that drops out, and a step that fails, give back exactly the cells that they took. */
#include "error.h"
#include "fake_engine.h"
#include "fake_vocabulary.h"
#include "step_rules.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- computing ---- */

static fake_session *session_of(shard_engine *engine, const shard_step_entry *entry) {
    return &engine->cells.sessions[entry->session];
}

static void start_row(const shard_engine *engine, const shard_step_entry *entry, uint32_t index,
                      uint32_t *row) {
    const uint32_t n_embd = engine->model.spec.n_embd;
    if (entry->tokens != NULL) {
        fake_model_embed(&engine->model, entry->tokens[index], row);
        return;
    }
    for (uint32_t i = 0; i < n_embd; i++) {
        row[i] = fake_residue(entry->hidden[(uint64_t)index * n_embd + i]);
    }
}

/* Takes the cells of every admitted entry and puts its rows one after the other into the batch. */
static void gather(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries) {
    uint32_t row = 0;
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status != SHARD_OK) {
            continue;
        }
        for (uint32_t k = 0; k < entries[i].n_rows; k++, row++) {
            engine->row_cells[row] =
                fake_session_extend(&engine->cells, session_of(engine, &entries[i]));
            start_row(engine, &entries[i], k,
                      &engine->rows[(uint64_t)row * engine->model.spec.n_embd]);
        }
    }
}

/* Applies one layer to the rows of the batch, in order, so that each finds the memory of the one
 * before it. */
static void compute_layer(shard_engine *engine, uint32_t layer, uint32_t n_rows) {
    const fake_cells *cells = &engine->cells;
    const uint32_t owned = layer - engine->model.layer_start;
    for (uint32_t i = 0; i < n_rows; i++) {
        const uint32_t cell = engine->row_cells[i];
        const uint32_t before = cells->before[cell];
        fake_model_layer(&engine->model, layer,
                         before == FAKE_NO_CELL ? NULL : fake_cell_memory(cells, before, owned),
                         fake_cell_memory(cells, cell, owned),
                         &engine->rows[(uint64_t)i * engine->model.spec.n_embd]);
    }
}

static shard_status compute(shard_engine *engine, uint32_t n_rows, shard_error *error) {
    const uint32_t end = engine->model.layer_end;
    for (uint32_t layer = engine->model.layer_start; layer < end; layer++) {
        if (fake_signals_take_cancel(&engine->signals)) {
            return shard_fail(error, SHARD_ERR_CANCELLED, "the step was cancelled");
        }
        compute_layer(engine, layer, n_rows);
        atomic_fetch_add(&engine->signals.progress, 1);
    }
    return SHARD_OK;
}

/* ---- outputs ---- */

static void write_output_row(const shard_engine *engine, const uint32_t *row, float *output) {
    if (engine->model.head != NULL) {
        fake_model_logits(&engine->model, row, output);
        return;
    }
    for (uint32_t i = 0; i < engine->model.spec.n_embd; i++) {
        output[i] = (float)row[i];
    }
}

static void drop(shard_engine *engine, shard_step_entry *entry) {
    fake_session *session = session_of(engine, entry);
    fake_session_trim(&engine->cells, session, session->length - entry->n_rows);
    entry->status = entry->error.status;
}

/* Gives one entry its output from its rows of the batch; `output` has room for them. */
static void finish_entry(shard_engine *engine, const uint32_t *rows, bool poisoned, float *output,
                         shard_step_entry *entry) {
    const shard_description *description = &engine->description;
    const uint32_t n_columns = step_rules_columns_out(description);
    const uint32_t n_rows = step_rules_rows_out(description, entry);
    const uint32_t first = entry->n_rows - n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        write_output_row(engine, &rows[(uint64_t)(first + i) * engine->model.spec.n_embd],
                         &output[(uint64_t)i * n_columns]);
    }
    if (poisoned && n_rows > 0) {
        output[(uint64_t)(n_rows - 1) * n_columns] = NAN;
    }
    if (step_rules_check_finite(output, n_rows, n_columns, first, "out", &entry->error) !=
        SHARD_OK) {
        drop(engine, entry);
        return;
    }
    step_rules_deliver(description, output, entry);
    if (entry->output == SHARD_OUTPUT_TOKEN) {
        entry->end_of_generation = entry->token == FAKE_TOKEN_EOS;
        char *text = session_of(engine, entry)->text;
        entry->n_text_bytes = fake_token_text(entry->token, false, text);
        entry->text = entry->n_text_bytes > 0 ? text : NULL;
    }
}

static void finish_all(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries) {
    const bool poisoned = fault_plan_due(&engine->plan, FAULT_NAN, engine->n_steps) != NULL;
    const uint32_t *rows = engine->rows;
    float *output = engine->output;
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status != SHARD_OK) {
            continue;
        }
        finish_entry(engine, rows, poisoned, output, &entries[i]);
        rows += (uint64_t)entries[i].n_rows * engine->model.spec.n_embd;
        output += (uint64_t)entries[i].n_rows * step_rules_columns_out(&engine->description);
    }
}

/* ---- the step ---- */

/* The whole batch failed: every entry that was still in it drops out with the batch's error. */
static shard_status fail_all(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                             const shard_error *error) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status == SHARD_OK) {
            entries[i].error = *error;
            drop(engine, &entries[i]);
        }
    }
    return error->status;
}

shard_status fake_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                       shard_error *error) {
    const step_view view = {
        .description = &engine->description,
        .kv_cells_used = engine->cells.n_used,
        .session_length = fake_session_length,
        .engine = engine,
    };
    shard_ok(error);
    const uint32_t n_rows = step_rules_admit(&view, entries, n_entries);
    if (n_rows == 0) {
        return SHARD_OK;
    }
    gather(engine, entries, n_entries);
    engine->n_steps++;
    if (fault_actions_step(&engine->plan, engine->n_steps, &engine->signals, error) != SHARD_OK ||
        compute(engine, n_rows, error) != SHARD_OK) {
        return fail_all(engine, entries, n_entries, error);
    }
    finish_all(engine, entries, n_entries);
    return SHARD_OK;
}

void fake_warm_up(shard_engine *engine) {
    fake_session scratch = {.open = true, .last_cell = FAKE_NO_CELL};
    engine->row_cells[0] = fake_session_extend(&engine->cells, &scratch);
    memset(engine->rows, 0, engine->model.spec.n_embd * sizeof(uint32_t));
    for (uint32_t layer = engine->model.layer_start; layer < engine->model.layer_end; layer++) {
        compute_layer(engine, layer, 1);
        atomic_fetch_add(&engine->signals.progress, 1);
    }
    write_output_row(engine, engine->rows, engine->output);
    fake_session_trim(&engine->cells, &scratch, 0);
}
