/* Sessions as the protocol numbers them: from 1, never twice in a worker's life. An engine has
 * slots, which it uses again. */
#ifndef WORKER_SESSION_TABLE_H
#define WORKER_SESSION_TABLE_H

#include "shard_engine.h"

#include <stdbool.h>
#include <stdint.h>

/* The token that a session drew, as long as nothing else was done with it since. */
struct session_draw {
    uint32_t length; /* of the session, after the row that it was drawn for; 0: there is none */
    int32_t token;
    bool ends_generation;
    uint64_t at_us;
};

struct session_slot {
    uint64_t number;    /* 0: free */
    uint64_t last_step; /* that computed a row of it; 0: none */
    struct session_draw draw;
};

struct session_table {
    struct session_slot *slots;
    uint32_t n_slots;
    uint32_t n_open;
    uint64_t last_number;
    uint64_t n_steps; /* so far */
};

/* False when there is no memory. */
bool session_table_resize(struct session_table *table, uint32_t n_slots);
void session_table_free(struct session_table *table);

/* Numbers a session that the engine has opened in `slot`. */
uint64_t session_table_add(struct session_table *table, shard_session_id slot);

/* False when no session has that number. */
bool session_table_find(const struct session_table *table, uint64_t number, shard_session_id *slot);
void session_table_remove(struct session_table *table, shard_session_id slot);

/* Keeps what a session drew; without a draw, forgets it. */
void session_table_set_draw(struct session_table *table, shard_session_id slot,
                            struct session_draw draw);
const struct session_draw *session_table_draw(const struct session_table *table,
                                              shard_session_id slot);

/* Another step begins; `session_table_note` says whose rows it computes. */
void session_table_count_step(struct session_table *table);
void session_table_note(struct session_table *table, shard_session_id slot);

/* How many sessions had a row in one of the last `n_steps` steps. */
uint32_t session_table_n_active(const struct session_table *table, uint32_t n_steps);

#endif /* WORKER_SESSION_TABLE_H */
