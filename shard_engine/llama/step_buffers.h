/* The engine's own buffers of a step, made when a shard is opened: the rows that go in, the plan,
 * and the rows of calls before the last one, because the library keeps those of one call only. */
#ifndef SHARD_LLAMA_STEP_BUFFERS_H
#define SHARD_LLAMA_STEP_BUFFERS_H

#include "decode_plan.h"
#include "shard_engine.h"

#include <llama.h>

/* What the sizes depend on. */
typedef struct step_shape {
    uint32_t n_batch;
    uint32_t max_sessions;
    uint32_t n_embd;
    uint32_t n_vocab;  /* 0 on a stage that is not the last */
    bool takes_tokens; /* the library is fed with tokens, not rows */
} step_shape;

typedef struct step_buffers {
    struct llama_batch batch;
    decode_plan plan;
    float *kept;       /* [max_kept] */
    uint64_t max_kept; /* one row of logits for each session, and more once they were asked for */
    uint64_t n_kept;   /* values kept in this step */
} step_buffers;

/* SHARD_ERR_MEMORY. Released by step_buffers_free in any case. */
shard_status step_buffers_init(step_buffers *buffers, const step_shape *shape, shard_error *error);
void step_buffers_free(step_buffers *buffers);

/* Bytes of the rows in them, and of the hidden rows that come out of a stage that is not the last.
 */
uint64_t step_buffers_bytes(const step_shape *shape);

/* Begins a step that will keep `n_values` values. SHARD_ERR_MEMORY. */
shard_status step_buffers_reserve(step_buffers *buffers, uint64_t n_values, shard_error *error);

/* Keeps the values of some rows, and returns where they are until the next step. */
const float *step_buffers_keep(step_buffers *buffers, const float *rows, uint64_t n_values);

#endif /* SHARD_LLAMA_STEP_BUFFERS_H */
