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
    buffers->n_vocab = shape->n_vocab;
    if (!has_batch(&buffers->batch) || buffers->plan.order == NULL || buffers->plan.calls == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY,
                          "no memory for %" PRIu32 " rows of %" PRIu32 " values", shape->n_batch,
                          shape->n_embd);
    }
    return step_buffers_reserve(buffers, shape->max_sessions, error);
}

void step_buffers_free(step_buffers *buffers) {
    if (buffers->batch.pos != NULL) {
        llama_batch_free(buffers->batch);
    }
    free(buffers->plan.order);
    free(buffers->plan.calls);
    free(buffers->logits);
    *buffers = (step_buffers){0};
}

uint64_t step_buffers_bytes(const step_shape *shape) {
    const uint64_t hidden = (uint64_t)shape->n_batch * shape->n_embd * sizeof(float);
    const uint64_t logits = (uint64_t)shape->max_sessions * shape->n_vocab * sizeof(float);
    return (shape->takes_tokens ? 0 : hidden) + (shape->n_vocab == 0 ? hidden : logits);
}

shard_status step_buffers_reserve(step_buffers *buffers, uint32_t n_rows, shard_error *error) {
    buffers->n_logits = 0;
    if (buffers->n_vocab == 0 || n_rows <= buffers->max_logits) {
        return shard_ok(error);
    }
    const uint64_t bytes = (uint64_t)n_rows * buffers->n_vocab * sizeof(float);
    float *logits = realloc(buffers->logits, bytes);
    if (logits == NULL) {
        shard_fail(error, SHARD_ERR_MEMORY, "no memory for %" PRIu32 " rows of logits", n_rows);
        shard_error_add(error, "needed_bytes", "%" PRIu64, bytes);
        return error->status;
    }
    buffers->logits = logits;
    buffers->max_logits = n_rows;
    return shard_ok(error);
}

const float *step_buffers_keep(step_buffers *buffers, const float *rows, uint32_t n_rows) {
    float *kept = buffers->logits + (size_t)buffers->n_logits * buffers->n_vocab;
    memcpy(kept, rows, (size_t)n_rows * buffers->n_vocab * sizeof(float));
    buffers->n_logits += n_rows;
    return kept;
}
