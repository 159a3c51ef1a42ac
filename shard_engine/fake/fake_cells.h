/*
 * The fake engine's KV cells and the sessions that hold them.
 *
 * All sessions share one pool of n_ctx cells. A cell keeps one row's memory of every owned layer.
 * The cells of a session form a chain from its last row back to its first, and the free cells form
 * one more chain, so taking and giving back a cell is one link and a trim is a walk.
 */
#ifndef FAKE_CELLS_H
#define FAKE_CELLS_H

#include "fake_vocabulary.h"
#include "shard_engine.h"

#define FAKE_NO_CELL UINT32_MAX

typedef struct fake_session {
    bool open;
    uint32_t length;                 /* rows, and so cells */
    uint32_t last_cell;              /* of row length - 1, or FAKE_NO_CELL */
    char text[FAKE_TOKEN_TEXT_SIZE]; /* of the token drawn last */
} fake_session;

typedef struct fake_cells {
    uint32_t n_cells;
    uint32_t n_used;
    uint32_t n_layers;
    uint32_t n_embd;
    uint32_t first_free; /* or FAKE_NO_CELL */
    uint32_t *before;    /* [n_cells]: the next cell of its chain */
    uint16_t *memory;    /* [n_cells][n_layers][n_embd] */
    uint32_t max_sessions;
    fake_session *sessions; /* [max_sessions] */
} fake_cells;

/* On failure nothing is held. `cells` is released by fake_cells_free, which may be called on a
 * zeroed one. */
shard_status fake_cells_init(fake_cells *cells, uint32_t n_cells, uint32_t n_layers,
                             uint32_t n_embd, uint32_t max_sessions, shard_error *error);
void fake_cells_free(fake_cells *cells);

/* Bytes allocated for the cells. */
uint64_t fake_cells_bytes(const fake_cells *cells);

shard_status fake_session_open(fake_cells *cells, shard_session_id *out, shard_error *error);

/* The open session of that id, or NULL and SHARD_ERR_NO_SESSION. */
fake_session *fake_session_find(const fake_cells *cells, shard_session_id id, shard_error *error);

/* Adds a cell for one more row; there must be a free one. Returns the cell. */
uint32_t fake_session_extend(fake_cells *cells, fake_session *session);

/* Gives back the cells of all rows from `length` on. Returns how many there were. */
uint32_t fake_session_trim(fake_cells *cells, fake_session *session, uint32_t length);

/* The memory of one cell for one owned layer, counted from 0: n_embd values. */
uint16_t *fake_cell_memory(const fake_cells *cells, uint32_t cell, uint32_t layer);

#endif /* FAKE_CELLS_H */
