/* The cache folder: shard files under names made of what they hold.
 *
 *     CACHE/shards/<key>.gguf     key = sha256 of artifact, range and the writer's version
 *     CACHE/shards/<key>.sha256   the digest that the file had when it was written; its time of
 *                                 modification is that of the last use
 *     CACHE/locks/<key>           held while a shard file is written
 *     CACHE/digests/              see digest.h
 */
#ifndef SHARD_LLAMA_CACHE_H
#define SHARD_LLAMA_CACHE_H

#include "artifact.h"

/* Gives the path of the shard file for the range and the digest of its bytes; writes the file first
 * where it is not there yet or is no longer what was written. Of two processes one writes and the
 * other waits. */
shard_status cache_shard_file(const shard_artifact *artifact, uint32_t start, uint32_t end,
                              const char *cache_dir, shard_progress_callback on_progress,
                              void *user_data, char path[FILES_PATH_SIZE],
                              char sha256[SHARD_SHA256_HEX_SIZE], shard_error *error);

#endif /* SHARD_LLAMA_CACHE_H */
