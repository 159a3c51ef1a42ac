/* Sessions: their rows in the library's memory, the cells that these take, and their histories. */
#include "engine.h"
#include "error.h"
#include "sampling_rules.h"

#include <inttypes.h>

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

/* ---- rows ---- */

void engine_session_extend(shard_engine *engine, shard_session_id id, const int32_t *tokens,
                           uint32_t n_rows) {
    kv_session *session = &engine->sessions[id];
    for (uint32_t i = 0; i < n_rows; i++) {
        session->last_cell = cell_chains_extend(&engine->cells, session->last_cell);
    }
    token_history_append(&session->history, tokens, n_rows);
}

uint32_t engine_session_shorten(shard_engine *engine, shard_session_id id, uint32_t position) {
    kv_session *session = &engine->sessions[id];
    const uint32_t n_rows = session->history.length - position;
    token_history_trim(&session->history, position);
    if (session->sampler != NULL) {
        session_sampler_trim(session->sampler, position);
    }
    return cell_chains_shorten(&engine->cells, &session->last_cell, n_rows);
}

static shard_status check_position(const kv_session *session, uint32_t position,
                                   shard_error *error) {
    const uint32_t length = session->history.length;
    if (position <= length) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_POSITION,
               "the session is %" PRIu32 " rows long and has no position %" PRIu32
               "; name one of at most %" PRIu32,
               length, position, length);
    shard_error_add(error, "expected", "%" PRIu32, length);
    shard_error_add(error, "actual", "%" PRIu32, position);
    return error->status;
}

/* The open session, when it can go on from `position`; else NULL. */
static kv_session *find_cut(const shard_engine *engine, shard_session_id id, uint32_t position,
                            shard_error *error) {
    kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL || check_position(session, position, error) != SHARD_OK ||
        sequence_check_cut(&engine->memory, id, session->history.length, position, error) !=
            SHARD_OK) {
        return NULL;
    }
    return session;
}

/* ---- opening ---- */

static shard_status find_free(const shard_engine *engine, shard_session_id *id,
                              shard_error *error) {
    const uint32_t most = engine->description.max_sessions;
    for (uint32_t i = 0; i < most; i++) {
        if (!engine->sessions[i].is_open) {
            *id = (shard_session_id)i;
            return shard_ok(error);
        }
    }
    shard_fail(error, SHARD_ERR_CAPACITY,
               "all %" PRIu32 " sessions are open; close one, or load with more max_sessions",
               most);
    shard_error_add(error, "needed", "%" PRIu32, most + 1);
    shard_error_add(error, "available", "%" PRIu32, most);
    return error->status;
}

/* Only the last stage draws, but a wrong value is refused everywhere alike. */
static shard_status open_sampler(const shard_engine *engine, const shard_sampling *sampling,
                                 kv_session *session, shard_error *error) {
    if (engine->sampling != NULL) {
        return session_sampler_open(engine->sampling, sampling, &session->sampler, error);
    }
    return sampling != NULL ? sampling_rules_check(sampling, engine->description.n_vocab, error)
                            : shard_ok(error);
}

shard_status engine_session_open(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error) {
    shard_session_id id = -1;
    *out = -1;
    if (find_free(engine, &id, error) != SHARD_OK ||
        open_sampler(engine, sampling, &engine->sessions[id], error) != SHARD_OK) {
        return error->status;
    }
    engine->sessions[id].is_open = true;
    engine->sessions[id].last_cell = CELL_NONE;
    *out = id;
    return shard_ok(error);
}

/* With one cache for all sessions the first rows keep their cells and get one more owner. */
static uint32_t take_cells(shard_engine *engine, const kv_session *source, kv_session *session) {
    const uint32_t n_rows = session->history.length;
    if (engine->description.recipe.kv_unified) {
        session->last_cell =
            cell_chains_share(&engine->cells, source->last_cell, source->history.length - n_rows);
        return 0;
    }
    for (uint32_t i = 0; i < n_rows; i++) {
        session->last_cell = cell_chains_extend(&engine->cells, session->last_cell);
    }
    return n_rows;
}

shard_status engine_session_fork(shard_engine *engine, shard_session_id source, uint32_t position,
                                 const shard_sampling *sampling, shard_session_id *out,
                                 uint32_t *kv_cells_taken, shard_error *error) {
    shard_session_id id = -1;
    *out = -1;
    *kv_cells_taken = 0;
    const kv_session *from = find_cut(engine, source, position, error);
    if (from == NULL || sequence_check_fork(&engine->memory, position, error) != SHARD_OK ||
        engine_session_open(engine, sampling, &id, error) != SHARD_OK) {
        return error->status;
    }
    kv_session *session = &engine->sessions[id];
    if (token_history_copy(&session->history, &from->history, position, error) != SHARD_OK) {
        shard_error ignored;
        uint32_t none_freed = 0;
        engine_session_close(engine, id, &none_freed, &ignored);
        return error->status;
    }
    sequence_fork(&engine->memory, source, id, position);
    *kv_cells_taken = take_cells(engine, from, session);
    *out = id;
    return shard_ok(error);
}

/* ---- the rest ---- */

shard_status engine_session_length(const shard_engine *engine, shard_session_id id,
                                   uint32_t *length, shard_error *error) {
    const kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL) {
        return error->status;
    }
    *length = session->history.length;
    return shard_ok(error);
}

shard_status engine_session_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error) {
    if (find_cut(engine, id, position, error) == NULL) {
        return error->status;
    }
    sequence_forget(&engine->memory, id, position);
    *kv_cells_freed = engine_session_shorten(engine, id, position);
    return shard_ok(error);
}

shard_status engine_session_close(shard_engine *engine, shard_session_id id,
                                  uint32_t *kv_cells_freed, shard_error *error) {
    kv_session *session = engine_find_session(engine, id, error);
    if (session == NULL) {
        return error->status;
    }
    sequence_forget(&engine->memory, id, 0);
    *kv_cells_freed = engine_session_shorten(engine, id, 0);
    session_sampler_close(session->sampler);
    session->sampler = NULL;
    session->is_open = false;
    return shard_ok(error);
}
