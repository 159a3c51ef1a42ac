#include "fake_cells.h"

#include "error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t fake_cells_bytes(const fake_cells *cells) {
    const uint64_t values = (uint64_t)cells->n_cells * cells->n_layers * cells->n_embd;
    return values * sizeof(uint16_t) + (uint64_t)cells->n_cells * sizeof(uint32_t);
}

static void link_all_free(fake_cells *cells) {
    for (uint32_t i = 0; i < cells->n_cells; i++) {
        cells->before[i] = i + 1 < cells->n_cells ? i + 1 : FAKE_NO_CELL;
    }
    cells->first_free = 0;
}

shard_status fake_cells_init(fake_cells *cells, uint32_t n_cells, uint32_t n_layers,
                             uint32_t n_embd, uint32_t max_sessions, shard_error *error) {
    *cells = (fake_cells){
        .n_cells = n_cells, .n_layers = n_layers, .n_embd = n_embd, .max_sessions = max_sessions};
    const uint64_t n_values = (uint64_t)n_cells * n_layers * n_embd;
    cells->before = malloc((size_t)n_cells * sizeof(uint32_t));
    cells->memory = malloc(n_values * sizeof(uint16_t));
    cells->sessions = calloc(max_sessions, sizeof(fake_session));
    if (cells->before == NULL || cells->memory == NULL || cells->sessions == NULL) {
        const uint64_t needed = fake_cells_bytes(cells);
        fake_cells_free(cells);
        shard_fail(error, SHARD_ERR_MEMORY,
                   "%" PRIu32 " KV cells need %" PRIu64
                   " bytes, which could not be had; lower n_ctx",
                   n_cells, needed);
        shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
        return error->status;
    }
    /* Written to, so that the memory that is reported is really taken. 0xffff is no residue. */
    memset(cells->memory, 0xff, n_values * sizeof(uint16_t));
    link_all_free(cells);
    return SHARD_OK;
}

void fake_cells_free(fake_cells *cells) {
    free(cells->before);
    free(cells->memory);
    free(cells->sessions);
    *cells = (fake_cells){0};
}

shard_status fake_session_open(fake_cells *cells, shard_session_id *out, shard_error *error) {
    for (uint32_t i = 0; i < cells->max_sessions; i++) {
        if (!cells->sessions[i].open) {
            cells->sessions[i] = (fake_session){.open = true, .last_cell = FAKE_NO_CELL};
            *out = (shard_session_id)i;
            return shard_ok(error);
        }
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

uint32_t fake_session_extend(fake_cells *cells, fake_session *session) {
    const uint32_t cell = cells->first_free;
    cells->first_free = cells->before[cell];
    cells->before[cell] = session->last_cell;
    session->last_cell = cell;
    session->length++;
    cells->n_used++;
    return cell;
}

uint32_t fake_session_trim(fake_cells *cells, fake_session *session, uint32_t length) {
    const uint32_t n_freed = session->length - length;
    for (; session->length > length; session->length--) {
        const uint32_t cell = session->last_cell;
        session->last_cell = cells->before[cell];
        cells->before[cell] = cells->first_free;
        cells->first_free = cell;
    }
    cells->n_used -= n_freed;
    return n_freed;
}

uint16_t *fake_cell_memory(const fake_cells *cells, uint32_t cell, uint32_t layer) {
    return &cells->memory[((uint64_t)cell * cells->n_layers + layer) * cells->n_embd];
}
