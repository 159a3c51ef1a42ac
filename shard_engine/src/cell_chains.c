#include "cell_chains.h"

#include "error.h"

#include <inttypes.h>
#include <stdlib.h>

shard_status cell_chains_init(cell_chains *chains, uint32_t n_cells, shard_error *error) {
    *chains = (cell_chains){.n_cells = n_cells, .first_free = n_cells > 0 ? 0 : CELL_NONE};
    chains->before = malloc((size_t)n_cells * sizeof(*chains->before));
    chains->owners = calloc(n_cells, sizeof(*chains->owners));
    if (chains->before == NULL || chains->owners == NULL) {
        cell_chains_free(chains);
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to count %" PRIu32 " KV cells",
                          n_cells);
    }
    for (uint32_t i = 0; i < n_cells; i++) {
        chains->before[i] = i + 1 < n_cells ? i + 1 : CELL_NONE;
    }
    return shard_ok(error);
}

void cell_chains_free(cell_chains *chains) {
    free(chains->before);
    free(chains->owners);
    *chains = (cell_chains){.first_free = CELL_NONE};
}

uint32_t cell_chains_extend(cell_chains *chains, uint32_t last) {
    const uint32_t cell = chains->first_free;
    chains->first_free = chains->before[cell];
    chains->before[cell] = last; /* the session's hold on `last` becomes this cell's */
    chains->owners[cell] = 1;
    chains->n_used++;
    return cell;
}

static uint32_t walk_back(const cell_chains *chains, uint32_t last, uint32_t n_rows) {
    for (uint32_t i = 0; i < n_rows; i++) {
        last = chains->before[last];
    }
    return last;
}

uint32_t cell_chains_share(cell_chains *chains, uint32_t last, uint32_t n_rows) {
    const uint32_t end = walk_back(chains, last, n_rows);
    if (end != CELL_NONE) {
        chains->owners[end]++;
    }
    return end;
}

/* Lets go of the end of a chain, and of all before it that nobody else holds. */
static uint32_t release(cell_chains *chains, uint32_t cell) {
    uint32_t freed = 0;
    while (cell != CELL_NONE && --chains->owners[cell] == 0) {
        const uint32_t before = chains->before[cell];
        chains->before[cell] = chains->first_free;
        chains->first_free = cell;
        cell = before;
        freed++;
    }
    chains->n_used -= freed;
    return freed;
}

uint32_t cell_chains_shorten(cell_chains *chains, uint32_t *last, uint32_t n_rows) {
    const uint32_t end = cell_chains_share(chains, *last, n_rows); /* held before `last` lets go */
    const uint32_t freed = release(chains, *last);
    *last = end;
    return freed;
}
