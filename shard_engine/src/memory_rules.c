#include "memory_rules.h"

#include "error.h"

#include <inttypes.h>

shard_status memory_rules_check(const shard_memory *needed, uint64_t available,
                                shard_error *error) {
    const uint64_t total = needed->weights_bytes + needed->kv_bytes + needed->compute_bytes;
    if (available == 0 || total <= available) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_MEMORY,
               "the shard needs %" PRIu64 " bytes (weights %" PRIu64 ", KV %" PRIu64
               ", compute %" PRIu64 ") and %" PRIu64
               " are available; lower n_ctx, take a smaller type_k and type_v, or fewer layers",
               total, needed->weights_bytes, needed->kv_bytes, needed->compute_bytes, available);
    shard_error_add(error, "needed_bytes", "%" PRIu64, total);
    shard_error_add(error, "available_bytes", "%" PRIu64, available);
    shard_error_add(error, "weights_bytes", "%" PRIu64, needed->weights_bytes);
    shard_error_add(error, "kv_bytes", "%" PRIu64, needed->kv_bytes);
    shard_error_add(error, "compute_bytes", "%" PRIu64, needed->compute_bytes);
    return error->status;
}
