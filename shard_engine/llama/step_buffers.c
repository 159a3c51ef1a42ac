#include "step_buffers.h"

#include "error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool has_batch(const struct llama_batch *batch) {
    return (batch->token != NULL || batch->embd != NULL) && batch->pos != NULL &&
           batch->n_seq_id != NULL && batch->seq_id != NULL && batch->logits != NULL;
}

shard_status step_buffers_init(step_buffers *buffers, const step_shape *shape, shard_error *error) {
    const int32_t n_embd = shape->takes_tokens ? 0 : (int32_t)shape->n_embd;
    buffers->batch = llama_batch_init((int32_t)shape->n_batch, n_embd, 1);
    buffers->plan.order = calloc(shape->max_sessions, sizeof(*buffers->plan.order));
    buffers->plan.calls = calloc(shape->max_sessions, sizeof(*buffers->plan.calls));
    if (!has_batch(&buffers->batch) || buffers->plan.order == NULL || buffers->plan.calls == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY,
                          "no memory for %" PRIu32 " rows of %" PRIu32 " values", shape->n_batch,
                          shape->n_embd);
    }
    return step_buffers_reserve(buffers, (uint64_t)shape->max_sessions * shape->n_vocab, error);
}

void step_buffers_free(step_buffers *buffers) {
    if (buffers->batch.pos != NULL) {
        llama_batch_free(buffers->batch);
    }
    free(buffers->plan.order);
    free(buffers->plan.calls);
    free(buffers->kept);
    *buffers = (step_buffers){0};
}

uint64_t step_buffers_bytes(const step_shape *shape) {
    const uint64_t hidden = (uint64_t)shape->n_batch * shape->n_embd * sizeof(float);
    const uint64_t logits = (uint64_t)shape->max_sessions * shape->n_vocab * sizeof(float);
    return (shape->takes_tokens ? 0 : hidden) + (shape->n_vocab == 0 ? hidden : logits);
}

shard_status step_buffers_reserve(step_buffers *buffers, uint64_t n_values, shard_error *error) {
    buffers->n_kept = 0;
    if (n_values <= buffers->max_kept) {
        return shard_ok(error);
    }
    const uint64_t bytes = n_values * sizeof(float);
    float *kept = realloc(buffers->kept, bytes);
    if (kept == NULL) {
        shard_fail(error, SHARD_ERR_MEMORY, "no memory for the rows of a step: %" PRIu64 " values",
                   n_values);
        shard_error_add(error, "needed_bytes", "%" PRIu64, bytes);
        return error->status;
    }
    buffers->kept = kept;
    buffers->max_kept = n_values;
    return shard_ok(error);
}

const float *step_buffers_keep(step_buffers *buffers, const float *rows, uint64_t n_values) {
    float *kept = buffers->kept + buffers->n_kept;
    memcpy(kept, rows, n_values * sizeof(float));
    buffers->n_kept += n_values;
    return kept;
}
