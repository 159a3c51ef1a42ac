#include "engine.h"
#include "error.h"

kv_session *engine_find_session(const shard_engine *engine, shard_session_id id,
                                shard_error *error) {
    if (id >= 0 && (uint32_t)id < engine->description.max_sessions &&
        engine->sessions[id].is_open) {
        return &engine->sessions[id];
    }
    shard_fail(error, SHARD_ERR_NO_SESSION, "session %d is not open; open one first", id);
    shard_error_add(error, "session", "%d", id);
    return NULL;
}

shard_status engine_session_open(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error) {
    const uint32_t most = engine->description.max_sessions;
    *out = -1;
    if (sampling != NULL && sampling->temperature != 0.0f) {
        return shard_fail(error, SHARD_ERR_UNSUPPORTED,
                          "temperature is %g; only 0 (greedy) is supported",
                          (double)sampling->temperature);
    }
    for (uint32_t id = 0; id < most; id++) {
        if (!engine->sessions[id].is_open) {
            engine->sessions[id].is_open = true;
            engine->sessions[id].length = 0;
            engine->sessions[id].sampling = sampling != NULL ? *sampling : (shard_sampling){0};
            *out = (shard_session_id)id;
            return shard_ok(error);
        }
    }
    shard_fail(error, SHARD_ERR_CAPACITY,
               "all %u sessions are open; close one, or load with more max_sessions", most);
    shard_error_add(error, "needed", "%u", most + 1);
    shard_error_add(error, "available", "%u", most);
    return error->status;
}

shard_status engine_session_length(const shard_engine *engine, shard_session_id id,
                                   uint32_t *length, shard_error *error) {
    const kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL) {
        return error->status;
    }
    *length = session->length;
    return shard_ok(error);
}

static void forget_from(shard_engine *engine, shard_session_id id, uint32_t position) {
    kv_session *session = &engine->sessions[id];
    llama_memory_seq_rm(llama_get_memory(engine->context), id, (llama_pos)position, -1);
    engine->kv_cells_used -= session->length - position;
    session->length = position;
}

shard_status engine_session_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error) {
    const kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL) {
        return error->status;
    }
    if (position > session->length) {
        shard_fail(error, SHARD_ERR_POSITION,
                   "the session is %u rows long and cannot be trimmed to %u; trim to at most %u",
                   session->length, position, session->length);
        shard_error_add(error, "expected", "%u", session->length);
        shard_error_add(error, "actual", "%u", position);
        return error->status;
    }
    *kv_cells_freed = session->length - position;
    forget_from(engine, id, position);
    return shard_ok(error);
}

shard_status engine_session_close(shard_engine *engine, shard_session_id id,
                                  uint32_t *kv_cells_freed, shard_error *error) {
    kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL) {
        return error->status;
    }
    *kv_cells_freed = session->length;
    forget_from(engine, id, 0);
    session->is_open = false;
    return shard_ok(error);
}
