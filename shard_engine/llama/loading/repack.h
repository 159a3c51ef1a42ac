/* Whether the CPU backend keeps a matrix in a layout of its own. */
#ifndef SHARD_LLAMA_REPACK_H
#define SHARD_LLAMA_REPACK_H

#include <ggml.h>

/* True where llama.cpp, given the choice (`use_extra_bufts`), repacks a matrix of that type with
 * rows of `columns` values. */
bool repack_takes(enum ggml_type type, int64_t columns, int64_t rows);

#endif /* SHARD_LLAMA_REPACK_H */
