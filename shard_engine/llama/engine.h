/* The llama engine's insides, shared by its files and by nothing else. */
#ifndef SHARD_LLAMA_ENGINE_H
#define SHARD_LLAMA_ENGINE_H

#include "embedding.h"
#include "observer.h"
#include "shard_engine.h"
#include "vocabulary.h"

#include <llama.h>
#include <stdatomic.h>

typedef struct kv_session {
    bool is_open;
    uint32_t length;
    shard_sampling sampling;
    text_buffer text; /* of the token drawn last */
} kv_session;

struct shard_engine {
    shard_description description; /* fixed once `open` has returned */
    bool takes_tokens;             /* the library itself is fed with tokens: the whole model */
    bool is_last;
    struct llama_model *model;
    struct llama_context *context;
    graph_observer *observer;
    token_embedding *embedding; /* of a first stage that is not the last */
    lazy_vocabulary vocabulary;
    struct llama_batch batch;
    kv_session *sessions;
    uint32_t kv_cells_used;
    atomic_bool cancel;
    atomic_uint_fast64_t progress;
};

/* load.c */
shard_status engine_open(const shard_params *params, shard_engine **out, shard_error *error);
void engine_close(shard_engine *engine);

/* sessions.c */
shard_status engine_session_open(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error);
shard_status engine_session_length(const shard_engine *engine, shard_session_id id,
                                   uint32_t *length, shard_error *error);
shard_status engine_session_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error);
shard_status engine_session_close(shard_engine *engine, shard_session_id id,
                                  uint32_t *kv_cells_freed, shard_error *error);
/* The session, or NULL with SHARD_ERR_NO_SESSION. */
kv_session *engine_find_session(const shard_engine *engine, shard_session_id id,
                                shard_error *error);

/* step.c */
shard_status engine_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                         shard_error *error);

#endif /* SHARD_LLAMA_ENGINE_H */
