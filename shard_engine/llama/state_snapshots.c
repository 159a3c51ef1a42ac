#include "state_snapshots.h"

#include "error.h"

#include <stdlib.h>

/* What is left out of a snapshot are the KV cells, which a trim takes back. */
static const llama_state_seq_flags FLAGS = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

static shard_status no_memory(size_t bytes, shard_error *error) {
    shard_fail(error, SHARD_ERR_MEMORY, "no memory for %zu bytes of recurrent states", bytes);
    shard_error_add(error, "needed_bytes", "%zu", bytes);
    return error->status;
}

static shard_status reserve(state_snapshots *snapshots, size_t bytes, shard_error *error) {
    if (bytes <= snapshots->capacity) {
        return shard_ok(error);
    }
    uint8_t *data = realloc(snapshots->data, bytes);
    if (data == NULL) {
        return no_memory(bytes, error);
    }
    snapshots->data = data;
    snapshots->capacity = bytes;
    return shard_ok(error);
}

shard_status state_snapshots_init(state_snapshots *snapshots, uint32_t max_items, size_t item_bytes,
                                  shard_error *error) {
    *snapshots = (state_snapshots){.max_items = max_items};
    snapshots->ends = calloc(max_items, sizeof(*snapshots->ends));
    if (snapshots->ends == NULL) {
        return no_memory(max_items * sizeof(*snapshots->ends), error);
    }
    return reserve(snapshots, max_items * item_bytes, error);
}

void state_snapshots_free(state_snapshots *snapshots) {
    free(snapshots->data);
    free(snapshots->ends);
    *snapshots = (state_snapshots){0};
}

size_t state_snapshots_bytes(struct llama_context *context, shard_session_id id) {
    return llama_state_seq_get_size_ext(context, id, FLAGS);
}

void state_snapshots_clear(state_snapshots *snapshots) {
    snapshots->n_items = 0;
}

static size_t start_of(const state_snapshots *snapshots, uint32_t index) {
    return index > 0 ? snapshots->ends[index - 1] : 0;
}

shard_status state_snapshots_take(state_snapshots *snapshots, struct llama_context *context,
                                  shard_session_id id, shard_error *error) {
    const size_t start = start_of(snapshots, snapshots->n_items);
    const size_t bytes = state_snapshots_bytes(context, id);
    if (reserve(snapshots, start + bytes, error) != SHARD_OK) {
        return error->status;
    }
    if (bytes == 0 ||
        llama_state_seq_get_data_ext(context, snapshots->data + start, bytes, id, FLAGS) != bytes) {
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "llama.cpp gave no state of session %d: restart this worker", id);
    }
    snapshots->ends[snapshots->n_items++] = start + bytes;
    return shard_ok(error);
}

shard_status state_snapshots_restore(const state_snapshots *snapshots, uint32_t index,
                                     struct llama_context *context, shard_session_id id,
                                     shard_error *error) {
    const size_t start = start_of(snapshots, index);
    const size_t bytes = snapshots->ends[index] - start;
    if (llama_state_seq_set_data_ext(context, snapshots->data + start, bytes, id, FLAGS) != bytes) {
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "llama.cpp could not take the state of session %d back: restart this "
                          "worker",
                          id);
    }
    return shard_ok(error);
}
