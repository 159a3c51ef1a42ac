/* What a shard file will hold: metadata, and its tensors in file order. Nothing is read or written.
 */
#ifndef SHARD_LLAMA_SHARD_PLAN_H
#define SHARD_LLAMA_SHARD_PLAN_H

#include "artifact.h"

#include <ggml.h>

/* One tensor of the file to be written. */
typedef struct file_piece {
    const artifact_tensor *source; /* NULL: zeros, which are a hole in the file */
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    int64_t ne[GGML_MAX_DIMS];
    uint64_t bytes;
} file_piece;

/* One GGUF to be written: its metadata and its tensors in file order. */
typedef struct file_plan {
    const shard_artifact *artifact;
    struct gguf_context *gguf;
    struct ggml_context *tensors;
    file_piece *pieces;
    uint32_t n_pieces;
} file_plan;

/* The shard's own GGUF, with layers [start, end). */
shard_status shard_plan_layers(file_plan *plan, const shard_artifact *artifact, uint32_t start,
                               uint32_t end, shard_error *error);

/* The second GGUF of a self-contained first shard: all metadata of the artifact and its embedding.
 */
shard_status shard_plan_source(file_plan *plan, const shard_artifact *artifact, shard_error *error);

/* After a failure there is nothing to free. */
void shard_plan_free(file_plan *plan);

/* Bytes of the whole GGUF, padding included. */
uint64_t shard_plan_bytes(const file_plan *plan);

/* Bytes of these that are holes. */
uint64_t shard_plan_hole_bytes(const file_plan *plan);

/* `size` rounded up to a multiple of `alignment`. */
uint64_t shard_plan_padded(uint64_t size, uint64_t alignment);

#endif /* SHARD_LLAMA_SHARD_PLAN_H */
