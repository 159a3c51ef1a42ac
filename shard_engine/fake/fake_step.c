/* One step of the fake engine: admit the entries, and call by call take cells, compute layer by
 * layer, give outputs. An entry that drops out, and a call that fails, give back exactly the cells
 * that they took; the entries of calls before it are done. */
#include "error.h"
#include "fake_engine.h"
#include "fake_sessions.h"
#include "step_rules.h"
#include "token_history.h"

#include <math.h>
#include <string.h>

/* ---- computing ---- */

static fake_session *session_of(shard_engine *engine, const shard_step_entry *entry) {
    return &engine->cells.sessions[entry->session];
}

static float value_in(const shard_engine *engine, const void *hidden, uint64_t index) {
    const uint64_t offset = index * boundary_value_bytes(engine->boundary);
    float value;
    boundary_unpack(engine->boundary, (const char *)hidden + offset, 1, &value);
    return value;
}

static void start_row(const shard_engine *engine, const shard_step_entry *entry, uint32_t index,
                      uint32_t *row) {
    const uint32_t n_embd = engine->model.spec.n_embd;
    if (entry->hidden == NULL) {
        fake_model_embed(&engine->model, entry->tokens[index], row);
        return;
    }
    for (uint32_t i = 0; i < n_embd; i++) {
        const float value = value_in(engine, entry->hidden, (uint64_t)index * n_embd + i);
        row[i] = fake_residue(&engine->model, value);
    }
}

/* The entry of a call. */
static shard_step_entry *entry_of(const shard_engine *engine, shard_step_entry *entries,
                                  const decode_call *call, uint32_t index) {
    return &entries[engine->calls.order[call->first + index]];
}

/* Takes the cells of every entry of the call and puts its rows one after the other into the batch,
 * from `row` on. */
static void gather(shard_engine *engine, shard_step_entry *entries, const decode_call *call,
                   uint32_t row) {
    for (uint32_t i = 0; i < call->n_entries; i++) {
        const shard_step_entry *entry = entry_of(engine, entries, call, i);
        for (uint32_t k = 0; k < entry->n_rows; k++, row++) {
            const int32_t token = entry->tokens != NULL ? entry->tokens[k] : TOKEN_UNKNOWN;
            engine->row_cells[row] =
                fake_session_extend(&engine->cells, session_of(engine, entry), token);
            start_row(engine, entry, k, &engine->rows[(uint64_t)row * engine->model.spec.n_embd]);
        }
    }
}

static void compute_layer(shard_engine *engine, uint32_t layer, uint32_t first, uint32_t n_rows) {
    const fake_cells *cells = &engine->cells;
    const uint32_t owned = layer - engine->model.layer_start;
    for (uint32_t row = first; row < first + n_rows; row++) {
        const uint32_t cell = engine->row_cells[row];
        const uint32_t before = cells->chains.before[cell];
        fake_model_layer(&engine->model, layer,
                         before == CELL_NONE ? NULL : fake_cell_memory(cells, before, owned),
                         fake_cell_memory(cells, cell, owned),
                         &engine->rows[(uint64_t)row * engine->model.spec.n_embd]);
    }
}

static shard_status compute(shard_engine *engine, uint32_t first, uint32_t n_rows,
                            shard_error *error) {
    const uint32_t end = engine->model.layer_end;
    for (uint32_t layer = engine->model.layer_start; layer < end; layer++) {
        if (fake_signals_take_cancel(&engine->signals)) {
            return shard_fail(error, SHARD_ERR_CANCELLED, "the step was cancelled");
        }
        compute_layer(engine, layer, first, n_rows);
        atomic_fetch_add(&engine->signals.progress, 1);
    }
    return SHARD_OK;
}

/* ---- outputs ---- */

static void write_output_row(const shard_engine *engine, shard_output kind, const uint32_t *row,
                             float *output) {
    if (engine->model.head != NULL && kind != SHARD_OUTPUT_EMBEDDING) {
        fake_model_logits(&engine->model, row, output);
        return;
    }
    for (uint32_t i = 0; i < engine->model.spec.n_embd; i++) {
        output[i] = (float)row[i];
    }
}

static void write_output(const shard_engine *engine, const shard_step_entry *entry,
                         const uint32_t *rows, float *output) {
    const uint32_t n_columns = step_rules_columns_out(&engine->description, entry);
    const uint32_t n_rows = step_rules_rows_out(&engine->description, entry);
    const uint32_t first = entry->n_rows - n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        write_output_row(engine, entry->output,
                         &rows[(uint64_t)(first + i) * engine->model.spec.n_embd],
                         &output[(uint64_t)i * n_columns]);
    }
    if (n_rows > 0) {
        fault_actions_output(&engine->plan, engine->n_steps,
                             &output[(uint64_t)(n_rows - 1) * n_columns]);
    }
}

static shard_status draw(shard_engine *engine, const float *logits, shard_step_entry *entry) {
    fake_session *session = session_of(engine, entry);
    const fake_draw_input input = {
        .logits = logits,
        .n_vocab = engine->description.n_vocab,
        .length = session->length,
        .first_seen = fake_sampling_first_seen(&session->sampler.sampling, session->length),
        .tokens = engine->tokens,
        .choices = engine->choices,
    };
    fake_session_tokens(&engine->cells, session, input.first_seen, engine->tokens);
    return fake_sampler_draw(&session->sampler, &input, entry);
}

/* The entry failed: it gives back its cells. */
static void drop(shard_engine *engine, shard_step_entry *entry, const shard_error *error) {
    fake_session *session = session_of(engine, entry);
    fake_session_trim(&engine->cells, session, session->length - entry->n_rows);
    step_rules_fail(entry, error);
}

/* Gives one entry its output from its rows of the batch; `output` has room for them. */
static void finish_entry(shard_engine *engine, const uint32_t *rows, float *output,
                         shard_step_entry *entry) {
    write_output(engine, entry, rows, output);
    if (step_rules_deliver(&engine->description, output, entry) != SHARD_OK ||
        (entry->output == SHARD_OUTPUT_TOKEN && draw(engine, output, entry) != SHARD_OK)) {
        drop(engine, entry, &entry->error);
        return;
    }
    step_rules_accept(entry);
}

static void finish_call(shard_engine *engine, shard_step_entry *entries, const decode_call *call,
                        uint32_t row) {
    for (uint32_t i = 0; i < call->n_entries; i++) {
        shard_step_entry *entry = entry_of(engine, entries, call, i);
        finish_entry(engine, &engine->rows[(uint64_t)row * engine->model.spec.n_embd],
                     &engine->output[(uint64_t)row * engine->n_columns], entry);
        row += entry->n_rows;
    }
}

/* ---- the step ---- */

/* A call failed: its entries give back their cells, and those of later calls took none yet. */
static void fail_from(shard_engine *engine, shard_step_entry *entries, uint32_t call,
                      const shard_error *error) {
    for (uint32_t k = call; k < engine->calls.n_calls; k++) {
        for (uint32_t i = 0; i < engine->calls.calls[k].n_entries; i++) {
            shard_step_entry *entry = entry_of(engine, entries, &engine->calls.calls[k], i);
            if (k == call) {
                drop(engine, entry, error);
            } else {
                step_rules_fail(entry, error);
            }
        }
    }
}

static shard_status compute_calls(shard_engine *engine, shard_step_entry *entries,
                                  shard_error *error) {
    uint32_t row = 0;
    for (uint32_t k = 0; k < engine->calls.n_calls; k++) {
        const decode_call *call = &engine->calls.calls[k];
        gather(engine, entries, call, row);
        if (fault_actions_call(&engine->plan, engine->n_steps, k + 1, &engine->signals, error) !=
                SHARD_OK ||
            compute(engine, row, call->n_rows, error) != SHARD_OK) {
            fail_from(engine, entries, k, error);
            return error->status;
        }
        finish_call(engine, entries, call, row);
        row += call->n_rows;
    }
    return SHARD_OK;
}

shard_status fake_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                       shard_error *error) {
    const step_view view = {
        .description = &engine->description,
        .kv_cells_used = engine->cells.chains.n_used,
        .session_length = fake_sessions_length,
        .engine = engine,
    };
    shard_ok(error);
    if (step_rules_admit(&view, entries, n_entries) == 0) {
        return SHARD_OK;
    }
    decode_plan_make(&engine->calls, entries, n_entries, engine->description.recipe.n_ubatch);
    engine->n_steps++;
    return compute_calls(engine, entries, error);
}

void fake_warm_up(shard_engine *engine) {
    fake_session scratch = {.open = true, .last_cell = CELL_NONE};
    engine->row_cells[0] = fake_session_extend(&engine->cells, &scratch, TOKEN_UNKNOWN);
    memset(engine->rows, 0, engine->model.spec.n_embd * sizeof(uint32_t));
    for (uint32_t layer = engine->model.layer_start; layer < engine->model.layer_end; layer++) {
        compute_layer(engine, layer, 0, 1);
        atomic_fetch_add(&engine->signals.progress, 1);
    }
    write_output_row(engine, SHARD_OUTPUT_LOGITS, engine->rows, engine->output);
    fake_session_trim(&engine->cells, &scratch, 0);
}
