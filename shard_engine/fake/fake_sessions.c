#include "fake_sessions.h"

#include "error.h"
#include "fake_engine.h"
#include "sampling_rules.h"

#include <inttypes.h>

uint32_t fake_sessions_cells_used(const shard_engine *engine) {
    return engine->cells.chains.n_used;
}

/* ---- rules ---- */

static shard_status check_sampling(const shard_engine *engine, const shard_sampling *sampling,
                                   shard_error *error) {
    if (sampling == NULL) {
        return SHARD_OK;
    }
    if (sampling_rules_check(sampling, engine->description.n_vocab, error) != SHARD_OK) {
        return error->status;
    }
    return fake_sampling_check(sampling, error);
}

/* Whether a session may be cut at `position`, as a trim and a fork do; `verb` is for the message.
 */
static shard_status check_cut(const shard_engine *engine, const fake_session *session,
                              uint32_t position, const char *verb, shard_error *error) {
    if (position > session->length) {
        shard_fail(error, SHARD_ERR_POSITION,
                   "the session is %" PRIu32 " rows long and cannot be %s %" PRIu32
                   "; choose at most %" PRIu32,
                   session->length, verb, position, session->length);
        shard_error_add(error, "expected", "%" PRIu32, session->length);
        shard_error_add(error, "actual", "%" PRIu32, position);
        return error->status;
    }
    if (position == 0 || position == session->length || engine->description.can_trim) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_UNSUPPORTED,
               "the model has recurrent state (can_trim is false), so a session of %" PRIu32
               " rows cannot be %s %" PRIu32 "; choose 0 or %" PRIu32,
               session->length, verb, position, session->length);
    shard_error_add(error, "position", "%" PRIu32, position);
    shard_error_add(error, "length", "%" PRIu32, session->length);
    return error->status;
}

/* ---- the calls ---- */

shard_status fake_sessions_open(shard_engine *engine, const shard_sampling *sampling,
                                shard_session_id *out, shard_error *error) {
    *out = -1;
    if (check_sampling(engine, sampling, error) != SHARD_OK) {
        return error->status;
    }
    return fake_session_open(&engine->cells, sampling, out, error);
}

shard_status fake_sessions_fork(shard_engine *engine, shard_session_id source, uint32_t position,
                                const shard_sampling *sampling, shard_session_id *out,
                                uint32_t *kv_cells_taken, shard_error *error) {
    *out = -1;
    *kv_cells_taken = 0;
    const fake_session *from = fake_session_find(&engine->cells, source, error);
    if (from == NULL || check_cut(engine, from, position, "forked at", error) != SHARD_OK ||
        check_sampling(engine, sampling, error) != SHARD_OK ||
        fake_session_open(&engine->cells, sampling, out, error) != SHARD_OK) {
        return error->status;
    }
    fake_session *to = &engine->cells.sessions[*out];
    if (engine->description.recipe.kv_unified) {
        fake_session_share(&engine->cells, from, position, to);
    } else {
        fake_session_copy(&engine->cells, from, position, to);
        *kv_cells_taken = position;
    }
    return shard_ok(error);
}

shard_status fake_sessions_length(const shard_engine *engine, shard_session_id id, uint32_t *length,
                                  shard_error *error) {
    const fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL) {
        return error->status;
    }
    *length = session->length;
    return shard_ok(error);
}

shard_status fake_sessions_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                uint32_t *kv_cells_freed, shard_error *error) {
    *kv_cells_freed = 0;
    fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL || check_cut(engine, session, position, "trimmed to", error) != SHARD_OK) {
        return error->status;
    }
    *kv_cells_freed = fake_session_trim(&engine->cells, session, position);
    return shard_ok(error);
}

shard_status fake_sessions_close(shard_engine *engine, shard_session_id id,
                                 uint32_t *kv_cells_freed, shard_error *error) {
    *kv_cells_freed = 0;
    fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL) {
        return error->status;
    }
    *kv_cells_freed = fake_session_close(&engine->cells, session);
    return shard_ok(error);
}
