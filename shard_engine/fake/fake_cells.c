#include "fake_cells.h"

#include "error.h"
#include "sampling_rules.h"
#include "token_history.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- cells ---- */

uint64_t fake_cells_bytes(uint32_t n_cells, uint32_t n_layers, uint32_t n_embd) {
    const uint64_t memory = (uint64_t)n_layers * n_embd * sizeof(uint16_t);
    const uint64_t links = 2 * sizeof(uint32_t); /* cell_chains: before, owners */
    return n_cells * (memory + links + sizeof(int32_t));
}

static shard_status cannot_allocate(const fake_cells *cells, uint32_t n_cells, shard_error *error) {
    const uint64_t needed = fake_cells_bytes(n_cells, cells->n_layers, cells->n_embd);
    shard_fail(error, SHARD_ERR_MEMORY,
               "%" PRIu32 " KV cells need %" PRIu64 " bytes, which could not be had; lower n_ctx",
               n_cells, needed);
    shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
    return error->status;
}

shard_status fake_cells_init(fake_cells *cells, uint32_t n_cells, uint32_t n_layers,
                             uint32_t n_embd, uint32_t max_sessions, shard_error *error) {
    *cells = (fake_cells){.n_layers = n_layers, .n_embd = n_embd, .max_sessions = max_sessions};
    const size_t memory_bytes = (size_t)n_cells * n_layers * n_embd * sizeof(uint16_t);
    const bool counted = cell_chains_init(&cells->chains, n_cells, error) == SHARD_OK;
    cells->tokens = malloc((size_t)n_cells * sizeof(int32_t));
    cells->memory = malloc(memory_bytes);
    cells->sessions = calloc(max_sessions, sizeof(fake_session));
    if (!counted || cells->tokens == NULL || cells->memory == NULL || cells->sessions == NULL) {
        cannot_allocate(cells, n_cells, error);
        fake_cells_free(cells);
        return error->status;
    }
    /* Written to, so that the memory that is reported is really taken. 0xffff is no residue. */
    memset(cells->memory, 0xff, memory_bytes);
    memset(cells->tokens, 0xff, (size_t)n_cells * sizeof(int32_t));
    return SHARD_OK;
}

void fake_cells_free(fake_cells *cells) {
    for (uint32_t i = 0; cells->sessions != NULL && i < cells->max_sessions; i++) {
        sampling_rules_free(&cells->sessions[i].sampler.sampling);
    }
    cell_chains_free(&cells->chains);
    free(cells->tokens);
    free(cells->memory);
    free(cells->sessions);
    *cells = (fake_cells){0};
}

uint16_t *fake_cell_memory(const fake_cells *cells, uint32_t cell, uint32_t layer) {
    return &cells->memory[((uint64_t)cell * cells->n_layers + layer) * cells->n_embd];
}

/* ---- sessions ---- */

static fake_session *free_session(fake_cells *cells, shard_session_id *id) {
    for (uint32_t i = 0; i < cells->max_sessions; i++) {
        if (!cells->sessions[i].open) {
            *id = (shard_session_id)i;
            return &cells->sessions[i];
        }
    }
    return NULL;
}

shard_status fake_session_open(fake_cells *cells, const shard_sampling *sampling,
                               shard_session_id *out, shard_error *error) {
    fake_session *session = free_session(cells, out);
    if (session != NULL) {
        session->open =
            sampling_rules_copy(sampling, &session->sampler.sampling, error) == SHARD_OK;
        session->length = 0;
        session->last_cell = CELL_NONE;
        return error->status;
    }
    shard_fail(error, SHARD_ERR_CAPACITY,
               "all %" PRIu32 " sessions are open; close one, or load with more max_sessions",
               cells->max_sessions);
    shard_error_add(error, "needed", "%" PRIu32, cells->max_sessions + 1);
    shard_error_add(error, "available", "%" PRIu32, cells->max_sessions);
    return error->status;
}

fake_session *fake_session_find(const fake_cells *cells, shard_session_id id, shard_error *error) {
    if (id >= 0 && (uint32_t)id < cells->max_sessions && cells->sessions[id].open) {
        return &cells->sessions[id];
    }
    shard_fail(error, SHARD_ERR_NO_SESSION, "session %" PRId32 " is not open; open one first", id);
    shard_error_add(error, "session", "%" PRId32, id);
    return NULL;
}

uint32_t fake_session_extend(fake_cells *cells, fake_session *session, int32_t token) {
    session->last_cell = cell_chains_extend(&cells->chains, session->last_cell);
    session->length++;
    cells->tokens[session->last_cell] = token;
    return session->last_cell;
}

uint32_t fake_session_trim(fake_cells *cells, fake_session *session, uint32_t length) {
    const uint32_t n_rows = session->length - length;
    session->length = length;
    return cell_chains_shorten(&cells->chains, &session->last_cell, n_rows);
}

uint32_t fake_session_close(fake_cells *cells, fake_session *session) {
    const uint32_t freed = fake_session_trim(cells, session, 0);
    sampling_rules_free(&session->sampler.sampling);
    session->open = false;
    return freed;
}

/* ---- forks ---- */

void fake_session_share(fake_cells *cells, const fake_session *from, uint32_t length,
                        fake_session *to) {
    to->last_cell = cell_chains_share(&cells->chains, from->last_cell, from->length - length);
    to->length = length;
}

/* The cell of a session's row. */
static uint32_t cell_of(const fake_cells *cells, const fake_session *session, uint32_t row) {
    uint32_t cell = session->last_cell;
    for (uint32_t i = session->length - 1; i > row; i--) {
        cell = cells->chains.before[cell];
    }
    return cell;
}

void fake_session_copy(fake_cells *cells, const fake_session *from, uint32_t length,
                       fake_session *to) {
    const size_t cell_bytes = (size_t)cells->n_layers * cells->n_embd * sizeof(uint16_t);
    for (uint32_t row = 0; row < length; row++) {
        fake_session_extend(cells, to, TOKEN_UNKNOWN);
    }
    /* Both chains are walked from their ends, so the rows are filled from the last one back. */
    uint32_t source = length > 0 ? cell_of(cells, from, length - 1) : CELL_NONE;
    for (uint32_t cell = to->last_cell; cell != CELL_NONE; cell = cells->chains.before[cell]) {
        cells->tokens[cell] = cells->tokens[source];
        memcpy(fake_cell_memory(cells, cell, 0), fake_cell_memory(cells, source, 0), cell_bytes);
        source = cells->chains.before[source];
    }
}

void fake_session_tokens(const fake_cells *cells, const fake_session *session, uint32_t first,
                         int32_t *tokens) {
    uint32_t cell = session->last_cell;
    for (uint32_t row = session->length; row > first; row--) {
        tokens[row - 1] = cells->tokens[cell];
        cell = cells->chains.before[cell];
    }
}
