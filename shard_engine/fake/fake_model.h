/* The fake engine's tensors and arithmetic. fake_engine.h documents the formulas. */
#ifndef FAKE_MODEL_H
#define FAKE_MODEL_H

#include "boundary.h"
#include "fake_spec.h"

/* How a model counts: chosen by the boundary, so that each residue is exact in its dtype. */
typedef struct fake_arithmetic {
    uint32_t modulus;     /* a prime, at most 2^16, so that a KV cell's residue fits 16 bits */
    uint32_t level_shift; /* bits of a residue that a logit leaves out: about 256 levels are left */
} fake_arithmetic;

typedef enum fake_tensor_kind {
    FAKE_TENSOR_MIX = 1,       /* per layer, [n_embd] */
    FAKE_TENSOR_MEMORY = 2,    /* per layer, [n_embd] */
    FAKE_TENSOR_BIAS = 3,      /* per layer, [n_embd] */
    FAKE_TENSOR_EMBEDDING = 4, /* first stage, [n_vocab][n_embd] */
    FAKE_TENSOR_HEAD = 5       /* last stage, [n_vocab][n_embd] */
} fake_tensor_kind;

enum { FAKE_TENSORS_PER_LAYER = 3 };

typedef struct fake_tensor {
    fake_tensor_kind kind;
    uint32_t layer; /* absolute; n_layer for the tensors that belong to no layer */
    uint64_t n_values;
    uint32_t *values;
} fake_tensor;

typedef struct fake_model {
    fake_spec spec;
    fake_arithmetic arithmetic;
    uint32_t layer_start;
    uint32_t layer_end;
    uint32_t n_tensors;
    fake_tensor *tensors; /* three of each layer in order, then embedding, then head, if owned */
    const fake_tensor *embedding; /* NULL where not owned */
    const fake_tensor *head;      /* NULL where not owned */
} fake_model;

uint64_t fake_layer_bytes(const fake_spec *spec);
uint64_t fake_embedding_bytes(const fake_spec *spec); /* the head has as many */

/* Allocates and fills the tensors of [start, end), reporting phase "load". On failure nothing is
 * held. `model` is released by fake_model_free, which may be called on a zeroed one. */
shard_status fake_model_load(fake_model *model, const fake_spec *spec, boundary_dtype boundary,
                             uint32_t start, uint32_t end, shard_progress_callback on_progress,
                             void *user_data, shard_error *error);
void fake_model_free(fake_model *model);

/* Bytes of the tensors of [start, end). */
uint64_t fake_model_bytes_of(const fake_spec *spec, uint32_t start, uint32_t end);

/* Counted from the tensors that are held. */
uint64_t fake_model_bytes(const fake_model *model);
uint32_t fake_model_layers(const fake_model *model);

/* The residue that a finite value of an incoming row stands for. */
uint32_t fake_residue(const fake_model *model, float value);

/* row[n_embd] = the embedding of `token`, which must be inside the vocabulary. */
void fake_model_embed(const fake_model *model, int32_t token, uint32_t *row);

/* One layer (absolute number) applied to one row in place. `before` is the layer's memory of the
 * session's row before this one, NULL for its first; `memory` receives the one of this row. */
void fake_model_layer(const fake_model *model, uint32_t layer, const uint16_t *before,
                      uint16_t *memory, uint32_t *row);

/* logits[n_vocab] of a row. */
void fake_model_logits(const fake_model *model, const uint32_t *row, float *logits);

#endif /* FAKE_MODEL_H */
