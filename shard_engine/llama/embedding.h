/* Token rows for a first stage that is not the last: looked up in the artifact's embedding matrix
 * and turned into float32 with ggml's public type traits, the same conversion that the library's
 * own row lookup makes. */
#ifndef SHARD_LLAMA_EMBEDDING_H
#define SHARD_LLAMA_EMBEDDING_H

#include "artifact.h"

typedef struct token_embedding token_embedding;

/* Opens the matrix of an artifact, or of a self-contained slice. */
shard_status embedding_open(const shard_artifact *artifact, token_embedding **out,
                            shard_error *error);
void embedding_close(token_embedding *embedding);

/* Tokens in the matrix, and the bytes of its tensor. */
uint32_t embedding_n_vocab(const token_embedding *embedding);
uint64_t embedding_bytes(const token_embedding *embedding);

/* Writes the row of `token` (n_embd float32) to `row`, scaled where the library would scale it.
 * `token` must be in range. */
shard_status embedding_row(const token_embedding *embedding, int32_t token, float *row,
                           shard_error *error);

#endif /* SHARD_LLAMA_EMBEDDING_H */
