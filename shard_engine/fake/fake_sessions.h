/* The session half of the fake engine's table; shard_engine.h documents each call. */
#ifndef FAKE_SESSIONS_H
#define FAKE_SESSIONS_H

#include "shard_engine.h"

uint32_t fake_sessions_cells_used(const shard_engine *engine);

shard_status fake_sessions_open(shard_engine *engine, const shard_sampling *sampling,
                                shard_session_id *out, shard_error *error);
shard_status fake_sessions_fork(shard_engine *engine, shard_session_id source, uint32_t position,
                                const shard_sampling *sampling, shard_session_id *out,
                                uint32_t *kv_cells_taken, shard_error *error);
shard_status fake_sessions_length(const shard_engine *engine, shard_session_id id, uint32_t *length,
                                  shard_error *error);
shard_status fake_sessions_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                uint32_t *kv_cells_freed, shard_error *error);
shard_status fake_sessions_close(shard_engine *engine, shard_session_id id,
                                 uint32_t *kv_cells_freed, shard_error *error);

#endif /* FAKE_SESSIONS_H */
