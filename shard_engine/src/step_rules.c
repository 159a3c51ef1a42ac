#include "step_rules.h"

#include "boundary.h"
#include "error.h"

#include <inttypes.h>
#include <string.h>

/* ---- single checks ---- */

static bool needs_head(shard_output output) {
    return output != SHARD_OUTPUT_NONE && output != SHARD_OUTPUT_HIDDEN;
}

static shard_status check_output(const shard_description *description, shard_step_entry *entry) {
    const bool is_last = description->has_output_head;
    if ((unsigned)entry->output > SHARD_OUTPUT_EMBEDDING) {
        return shard_fail(&entry->error, SHARD_ERR_ARGUMENT, "output %d is not a shard_output",
                          (int)entry->output);
    }
    if (needs_head(entry->output) && !is_last) {
        return shard_fail(&entry->error, SHARD_ERR_NOT_OWNED,
                          "layers %" PRIu32 ":%" PRIu32
                          " have no output head; ask the last stage for logits, tokens and "
                          "embeddings",
                          description->layer_start, description->layer_end);
    }
    if (entry->output == SHARD_OUTPUT_EMBEDDING && description->n_embd_out == 0) {
        return shard_fail(&entry->error, SHARD_ERR_UNSUPPORTED,
                          "a model of architecture %s gives no embeddings here; use another model",
                          description->architecture);
    }
    if (entry->output == SHARD_OUTPUT_HIDDEN && is_last) {
        return shard_fail(
            &entry->error, SHARD_ERR_NOT_OWNED,
            "the last stage gives no hidden rows; ask it for logits, a token or embeddings");
    }
    return SHARD_OK;
}

/* A shard in the middle knows no vocabulary, and takes any id but a negative one. */
static shard_status check_tokens(const shard_description *description, shard_step_entry *entry) {
    const uint32_t n_vocab = description->n_vocab > 0 ? description->n_vocab : INT32_MAX;
    for (uint32_t i = 0; i < entry->n_rows; i++) {
        if (entry->tokens[i] < 0 || (uint32_t)entry->tokens[i] >= n_vocab) {
            return shard_fail(&entry->error, SHARD_ERR_ARGUMENT,
                              "token %" PRId32 " (row %" PRIu32
                              ") is not in the vocabulary; ids are 0 to %" PRIu32,
                              entry->tokens[i], i, n_vocab - 1);
        }
    }
    return SHARD_OK;
}

static shard_status check_hidden(const shard_description *description, shard_step_entry *entry) {
    boundary_dtype dtype = BOUNDARY_F32;
    boundary_find(description->recipe.boundary, &dtype);
    return boundary_check(dtype, entry->hidden, entry->n_rows, description->n_embd, 0, "in",
                          &entry->error);
}

static shard_status check_input(const shard_description *description, shard_step_entry *entry) {
    const bool is_first = description->has_token_embedding;
    if (is_first && (entry->tokens == NULL || entry->hidden != NULL)) {
        return shard_fail(&entry->error, SHARD_ERR_ARGUMENT,
                          "the first stage takes tokens; give hidden rows to a later one");
    }
    if (!is_first && entry->hidden == NULL) {
        return shard_fail(&entry->error, SHARD_ERR_ARGUMENT,
                          "a stage that starts at layer %" PRIu32
                          " takes hidden rows; give tokens alone to the first stage",
                          description->layer_start);
    }
    if (entry->tokens != NULL && check_tokens(description, entry) != SHARD_OK) {
        return entry->error.status;
    }
    return is_first ? SHARD_OK : check_hidden(description, entry);
}

static shard_status check_position(shard_step_entry *entry) {
    if (entry->position == entry->length) {
        return SHARD_OK;
    }
    shard_fail(&entry->error, SHARD_ERR_POSITION,
               "the session is %" PRIu32 " rows long, so position %" PRIu32
               " would leave %s; send position %" PRIu32,
               entry->length, entry->position,
               entry->position > entry->length ? "a gap" : "an overlap", entry->length);
    shard_error_add(&entry->error, "expected", "%" PRIu32, entry->length);
    shard_error_add(&entry->error, "actual", "%" PRIu32, entry->position);
    return entry->error.status;
}

static shard_status check_room(shard_step_entry *entry, const char *what, const char *remedy,
                               uint32_t available) {
    if (entry->n_rows <= available) {
        return SHARD_OK;
    }
    shard_fail(&entry->error, SHARD_ERR_CAPACITY,
               "%" PRIu32 " %s are needed and %" PRIu32 " are left; %s", entry->n_rows, what,
               available, remedy);
    shard_error_add(&entry->error, "needed", "%" PRIu32, entry->n_rows);
    shard_error_add(&entry->error, "available", "%" PRIu32, available);
    return entry->error.status;
}

static bool is_repeated(const shard_step_entry *entries, uint32_t index) {
    uint32_t i = 0;
    while (i < index && entries[i].session != entries[index].session) {
        i++;
    }
    return i < index;
}

/* ---- admission ---- */

/* What the entries admitted so far leave for the next one. */
typedef struct room {
    uint32_t rows;
    uint32_t cells;
} room;

static void clear_results(shard_step_entry *entry) {
    entry->rows = NULL;
    entry->n_rows_out = 0;
    entry->n_columns_out = 0;
    entry->value_bytes = 0;
    entry->top = NULL;
    entry->n_top = 0;
    entry->token = -1;
    entry->logprob = 0.0f;
    entry->end_of_generation = false;
    entry->text = NULL;
    entry->n_text_bytes = 0;
    entry->length = 0;
    entry->kv_cells_taken = 0;
    shard_ok(&entry->error);
}

static shard_status check_entry(const step_view *view, shard_step_entry *entries, uint32_t index,
                                const room *left) {
    const shard_description *description = view->description;
    shard_step_entry *entry = &entries[index];
    if (view->session_length(view->engine, entry->session, &entry->length, &entry->error) !=
        SHARD_OK) {
        return entry->error.status;
    }
    if (is_repeated(entries, index)) {
        return shard_fail(&entry->error, SHARD_ERR_ARGUMENT,
                          "the session is in this step already; send its rows in one entry");
    }
    if (entry->n_rows == 0) {
        return shard_fail(&entry->error, SHARD_ERR_ARGUMENT,
                          "an entry without rows cannot be computed; send at least one");
    }
    if (check_position(entry) != SHARD_OK || check_output(description, entry) != SHARD_OK ||
        check_room(entry, "batch rows", "send fewer rows in one step", left->rows) != SHARD_OK ||
        check_room(entry, "rows of one session", "send fewer in one step (prefill_chunk)",
                   description->recipe.prefill_chunk) != SHARD_OK ||
        check_room(entry, "KV cells", "trim or close a session, or load with more n_ctx",
                   left->cells) != SHARD_OK ||
        check_room(entry, "KV cells of the session", "trim it, or load with more n_ctx",
                   description->session_cells - entry->length) != SHARD_OK) {
        return entry->error.status;
    }
    return check_input(description, entry);
}

uint32_t step_rules_admit(const step_view *view, shard_step_entry *entries, uint32_t n_entries) {
    const uint32_t max_batch = view->description->max_batch;
    room left = {max_batch, view->description->kv_cells - view->kv_cells_used};
    for (uint32_t i = 0; i < n_entries; i++) {
        clear_results(&entries[i]);
        entries[i].status = check_entry(view, entries, i, &left);
        if (entries[i].status == SHARD_OK) {
            left.rows -= entries[i].n_rows;
            left.cells -= entries[i].n_rows;
        }
    }
    return max_batch - left.rows;
}

/* ---- results ---- */

uint32_t step_rules_rows_out(const shard_description *description, const shard_step_entry *entry) {
    if (!description->has_output_head || entry->output == SHARD_OUTPUT_LOGITS_ALL ||
        entry->output == SHARD_OUTPUT_EMBEDDING) {
        return entry->n_rows;
    }
    return entry->output == SHARD_OUTPUT_NONE ? 0 : 1;
}

uint32_t step_rules_columns_out(const shard_description *description,
                                const shard_step_entry *entry) {
    if (!description->has_output_head) {
        return description->n_embd;
    }
    return entry->output == SHARD_OUTPUT_EMBEDDING ? description->n_embd_out : description->n_vocab;
}

/* What the last stage gives is float32 whatever the boundary is. */
static boundary_dtype dtype_out(const shard_description *description) {
    boundary_dtype dtype = BOUNDARY_F32;
    if (!description->has_output_head) {
        boundary_find(description->recipe.boundary, &dtype);
    }
    return dtype;
}

shard_status step_rules_deliver(const shard_description *description, float *rows,
                                shard_step_entry *entry) {
    const uint32_t n_rows = step_rules_rows_out(description, entry);
    const uint32_t n_columns = step_rules_columns_out(description, entry);
    const boundary_dtype dtype = dtype_out(description);
    boundary_pack(dtype, rows, (uint64_t)n_rows * n_columns, rows);
    entry->status = boundary_check(dtype, rows, n_rows, n_columns, entry->n_rows - n_rows, "out",
                                   &entry->error);
    if (entry->status == SHARD_OK && entry->output != SHARD_OUTPUT_TOKEN &&
        entry->output != SHARD_OUTPUT_NONE) {
        entry->rows = rows;
        entry->n_rows_out = n_rows;
        entry->n_columns_out = n_columns;
        entry->value_bytes = boundary_value_bytes(dtype);
    }
    return entry->status;
}

void step_rules_accept(shard_step_entry *entry) {
    entry->length += entry->n_rows;
    entry->kv_cells_taken = entry->n_rows;
}

void step_rules_fail(shard_step_entry *entry, const shard_error *error) {
    const shard_error why = *error; /* which may be the entry's own */
    const uint32_t length = entry->length;
    clear_results(entry);
    entry->length = length;
    entry->error = why;
    entry->status = why.status;
}
