/* Copies of recurrent states, taken before a call that changes them: a state cannot be trimmed, so
 * that a step which fails is undone by putting the old one back. */
#ifndef SHARD_LLAMA_STATE_SNAPSHOTS_H
#define SHARD_LLAMA_STATE_SNAPSHOTS_H

#include "shard_engine.h"

#include <llama.h>

typedef struct state_snapshots {
    uint8_t *data;
    size_t capacity; /* bytes of `data` */
    size_t *ends;    /* [max_items]: where each one ends in `data` */
    uint32_t max_items;
    uint32_t n_items;
} state_snapshots;

/* Room for `max_items` snapshots of `item_bytes`, in which the first ones then lie; larger ones
 * make it grow. SHARD_ERR_MEMORY. */
shard_status state_snapshots_init(state_snapshots *snapshots, uint32_t max_items, size_t item_bytes,
                                  shard_error *error);
void state_snapshots_free(state_snapshots *snapshots);

/* Bytes of one snapshot of that session. */
size_t state_snapshots_bytes(struct llama_context *context, shard_session_id id);

/* Forgets all of them. */
void state_snapshots_clear(state_snapshots *snapshots);

/* Adds one of the session, which may be empty. SHARD_ERR_MEMORY, or SHARD_ERR_BACKEND. */
shard_status state_snapshots_take(state_snapshots *snapshots, struct llama_context *context,
                                  shard_session_id id, shard_error *error);

/* Puts the state back that was taken as number `index`, of that session. SHARD_ERR_BACKEND. */
shard_status state_snapshots_restore(const state_snapshots *snapshots, uint32_t index,
                                     struct llama_context *context, shard_session_id id,
                                     shard_error *error);

#endif /* SHARD_LLAMA_STATE_SNAPSHOTS_H */
