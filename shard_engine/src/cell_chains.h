/* Which KV cells the sessions hold, counted exactly: the cells of a session form a chain from its
 * last row back to its first, and sessions that were forked share the cells of their common rows. A
 * cell is free again when the last session lets go of it. */
#ifndef SHARD_CELL_CHAINS_H
#define SHARD_CELL_CHAINS_H

#include "shard_engine.h"

#define CELL_NONE UINT32_MAX

typedef struct cell_chains {
    uint32_t n_cells;
    uint32_t n_used;
    uint32_t first_free; /* or CELL_NONE */
    uint32_t *before;    /* [n_cells]: the cell of the row before, or the next free cell */
    uint32_t *owners;    /* [n_cells]: cells that follow it, and sessions that end with it */
} cell_chains;

/* SHARD_ERR_MEMORY, after which nothing is held. Released by cell_chains_free, which may be called
 * on a zeroed one. */
shard_status cell_chains_init(cell_chains *chains, uint32_t n_cells, shard_error *error);
void cell_chains_free(cell_chains *chains);

/* Takes a cell for the row after `last` (CELL_NONE: for a first row) out of that chain's end and
 * returns it: the new end. There must be a free one. */
uint32_t cell_chains_extend(cell_chains *chains, uint32_t last);

/* Makes the rows up to `n_rows` before the end `last` a session of their own, which shares their
 * cells, and returns its end. */
uint32_t cell_chains_share(cell_chains *chains, uint32_t last, uint32_t n_rows);

/* Takes the last `n_rows` rows from the chain that ends in `*last`, which becomes the new end.
 * Returns how many cells are free again. */
uint32_t cell_chains_shorten(cell_chains *chains, uint32_t *last, uint32_t n_rows);

#endif /* SHARD_CELL_CHAINS_H */
