/* The shard file: a normal GGUF that stock llama.cpp loads with mmap, holding layers [start, end).
 *
 * Blocks are renumbered from 0, `block_count` is the range's length and every per-layer array is
 * cut to the range. A shard that is not the last has no vocabulary and placeholders of one row for
 * embedding and head, so that no head is computed; the last one has its head under the name that
 * lets the library tie it, or, where the library does not tie, beside a hole in the file that
 * stands for the embedding. */
#ifndef SHARD_LLAMA_SHARD_FILE_H
#define SHARD_LLAMA_SHARD_FILE_H

#include "artifact.h"

typedef struct shard_file_options {
    /* Appends, for a first shard, a second GGUF with the token embedding and the vocabulary, so
     * that the artifact is not needed any more. */
    bool self_contained;
    bool keeps_existing;                 /* a file that has the name is kept: SHARD_ERR_IO */
    shard_progress_callback on_progress; /* phase "slice"; may be NULL */
    void *user_data;
} shard_file_options;

/* Writes the shard file to `target`, whole or not at all. `bytes_out` may be NULL. */
shard_status shard_file_write(const shard_artifact *artifact, uint32_t start, uint32_t end,
                              const char *target, const shard_file_options *options,
                              uint64_t *bytes_out, shard_error *error);

/* Raised when the same artifact and range would give other bytes; part of the cache's key. */
enum { SHARD_FILE_VERSION = 2 };

#endif /* SHARD_LLAMA_SHARD_FILE_H */
