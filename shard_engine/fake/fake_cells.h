/*
 * The fake engine's KV cells and the sessions that hold them.
 *
 * All cells lie in one pool, and cell_chains.h counts who holds which. A cell keeps one row: its
 * token, and its memory of every owned layer.
 */
#ifndef FAKE_CELLS_H
#define FAKE_CELLS_H

#include "cell_chains.h"
#include "fake_sampling.h"
#include "shard_engine.h"

typedef struct fake_session {
    bool open;
    uint32_t length;    /* rows, and so cells */
    uint32_t last_cell; /* of row length - 1, or CELL_NONE */
    fake_sampler sampler;
} fake_session;

typedef struct fake_cells {
    cell_chains chains;
    uint32_t n_layers;
    uint32_t n_embd;
    int32_t *tokens;  /* [n_cells]: of the row, or TOKEN_UNKNOWN */
    uint16_t *memory; /* [n_cells][n_layers][n_embd] */
    uint32_t max_sessions;
    fake_session *sessions; /* [max_sessions] */
} fake_cells;

/* On failure nothing is held. `cells` is released by fake_cells_free, which may be called on a
 * zeroed one. */
shard_status fake_cells_init(fake_cells *cells, uint32_t n_cells, uint32_t n_layers,
                             uint32_t n_embd, uint32_t max_sessions, shard_error *error);
void fake_cells_free(fake_cells *cells);

/* Bytes that so many cells take. */
uint64_t fake_cells_bytes(uint32_t n_cells, uint32_t n_layers, uint32_t n_embd);

/* Opens an empty session that draws with a copy of `sampling`. */
shard_status fake_session_open(fake_cells *cells, const shard_sampling *sampling,
                               shard_session_id *out, shard_error *error);

/* The open session of that id, or NULL and SHARD_ERR_NO_SESSION. */
fake_session *fake_session_find(const fake_cells *cells, shard_session_id id, shard_error *error);

/* Adds a cell for one more row; there must be a free one. Returns the cell. */
uint32_t fake_session_extend(fake_cells *cells, fake_session *session, int32_t token);

/* Lets go of the cells of all rows from `length` on. Returns how many are free again. */
uint32_t fake_session_trim(fake_cells *cells, fake_session *session, uint32_t length);

/* Lets go of all cells and ends the session. Returns how many are free again. */
uint32_t fake_session_close(fake_cells *cells, fake_session *session);

/* Gives the empty session `to` the first `length` rows of `from`: the very cells, or copies of
 * them, for which there must be free ones. */
void fake_session_share(fake_cells *cells, const fake_session *from, uint32_t length,
                        fake_session *to);
void fake_session_copy(fake_cells *cells, const fake_session *from, uint32_t length,
                       fake_session *to);

/* Writes the tokens of the rows [first, length) of a session to tokens[first], ... */
void fake_session_tokens(const fake_cells *cells, const fake_session *session, uint32_t first,
                         int32_t *tokens);

/* The memory of one cell for one owned layer, counted from 0: n_embd values. */
uint16_t *fake_cell_memory(const fake_cells *cells, uint32_t cell, uint32_t layer);

#endif /* FAKE_CELLS_H */
