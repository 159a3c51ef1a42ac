/* Whether what a shard needs may be taken: the same refusal from every engine. */
#ifndef SHARD_MEMORY_RULES_H
#define SHARD_MEMORY_RULES_H

#include "shard_engine.h"

/* SHARD_ERR_MEMORY (fields: needed_bytes, available_bytes, weights_bytes, kv_bytes, compute_bytes)
 * where more is needed than available; `available` 0 is no check. */
shard_status memory_rules_check(const shard_memory *needed, uint64_t available, shard_error *error);

#endif /* SHARD_MEMORY_RULES_H */
