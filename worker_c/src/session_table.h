/* Sessions as the protocol numbers them: from 1, never twice in a worker's life. An engine has
 * slots, which it uses again. */
#ifndef WORKER_SESSION_TABLE_H
#define WORKER_SESSION_TABLE_H

#include "shard_engine.h"

#include <stdbool.h>
#include <stdint.h>

struct session_table {
    uint64_t *numbers; /* by slot; 0: free */
    uint32_t n_slots;
    uint32_t n_open;
    uint64_t last_number;
};

/* False when there is no memory. */
bool session_table_resize(struct session_table *table, uint32_t n_slots);
void session_table_free(struct session_table *table);

/* Numbers a session that the engine has opened in `slot`. */
uint64_t session_table_add(struct session_table *table, shard_session_id slot);

/* False when no session has that number. */
bool session_table_find(const struct session_table *table, uint64_t number, shard_session_id *slot);
void session_table_remove(struct session_table *table, shard_session_id slot);

#endif /* WORKER_SESSION_TABLE_H */
