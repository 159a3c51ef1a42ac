/* The llama engine's insides, shared by its files and by nothing else. */
#ifndef SHARD_LLAMA_ENGINE_H
#define SHARD_LLAMA_ENGINE_H

#include "boundary.h"
#include "cell_chains.h"
#include "embedding.h"
#include "observer.h"
#include "rows.h"
#include "sampling.h"
#include "sequence.h"
#include "shard_engine.h"
#include "state_snapshots.h"
#include "step_buffers.h"
#include "token_history.h"
#include "vocabulary.h"

#include <llama.h>
#include <stdatomic.h>

typedef struct kv_session {
    bool is_open;
    uint32_t last_cell;       /* the end of its chain of cells */
    token_history history;    /* as long as the session */
    session_sampler *sampler; /* NULL on a stage that is not the last */
    text_buffer text;         /* of the token drawn last */
} kv_session;

struct shard_engine {
    shard_description description; /* fixed once `open` has returned */
    bool takes_tokens;             /* the library itself is fed with tokens: the whole model */
    bool is_last;
    boundary_dtype boundary;
    struct llama_model *model;
    struct llama_context *context;
    graph_observer *observer;
    row_feed *feed;             /* NULL where the library is fed with tokens */
    token_embedding *embedding; /* of a first stage that is not the last */
    lazy_vocabulary vocabulary;
    sampling_space *sampling; /* NULL on a stage that is not the last */
    sequence_memory memory;
    step_buffers buffers;
    state_snapshots snapshots; /* of the call that is made now, where the memory has states */
    cell_chains cells;
    kv_session *sessions;
    bool defers_cancel; /* the call that is made now must not be aborted */
    atomic_bool cancel;
    atomic_uint_fast64_t progress;
};

/* load.c */
shard_status engine_open(const shard_params *params, shard_engine **out, shard_error *error);
void engine_close(shard_engine *engine);

/* sessions.c */
shard_status engine_session_open(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error);
shard_status engine_session_fork(shard_engine *engine, shard_session_id source, uint32_t position,
                                 const shard_sampling *sampling, shard_session_id *out,
                                 uint32_t *kv_cells_taken, shard_error *error);
shard_status engine_session_length(const shard_engine *engine, shard_session_id id,
                                   uint32_t *length, shard_error *error);
shard_status engine_session_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error);
shard_status engine_session_close(shard_engine *engine, shard_session_id id,
                                  uint32_t *kv_cells_freed, shard_error *error);
/* Gives the session `n_rows` more rows, which the library's memory holds: their cells, and the room
 * in its history that was reserved for them. `tokens` may be NULL. */
void engine_session_extend(shard_engine *engine, shard_session_id id, const int32_t *tokens,
                           uint32_t n_rows);
/* Takes the rows from `position` on from the session alone, not from the library's memory. Returns
 * the cells that are free again. */
uint32_t engine_session_shorten(shard_engine *engine, shard_session_id id, uint32_t position);
/* The session, or NULL with SHARD_ERR_NO_SESSION. */
kv_session *engine_find_session(const shard_engine *engine, shard_session_id id,
                                shard_error *error);

/* step.c */
shard_status engine_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                         shard_error *error);

#endif /* SHARD_LLAMA_ENGINE_H */
