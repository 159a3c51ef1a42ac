/* sha256 of files (FIPS 180-4, by libcrypto), remembered in the cache folder as long as the file is
 * the same one by device, inode, size and both times. */
#ifndef SHARD_LLAMA_DIGEST_H
#define SHARD_LLAMA_DIGEST_H

#include "shard_engine.h"

/* What a caller hears while bytes are hashed or copied. */
typedef struct digest_progress {
    shard_progress_callback callback; /* may be NULL */
    void *user_data;
    const char *phase;
    uint64_t done;
    uint64_t total;
} digest_progress;

/* Adds `bytes` to what is done and tells the caller; false when the caller wants to stop. */
bool digest_advance(digest_progress *progress, uint64_t bytes);

/* The digest of a file as hexadecimal. `cache_dir` may be NULL. Advances `progress` by the file's
 * size. SHARD_ERR_NOT_FOUND, SHARD_ERR_IO, SHARD_ERR_CANCELLED. */
shard_status digest_file(const char *path, const char *cache_dir, digest_progress *progress,
                         char hex[SHARD_SHA256_HEX_SIZE], shard_error *error);

/* A file that holds a digest and nothing else. Reading is false where there is no such file;
 * writing replaces what is there in one step. */
bool digest_read(const char *path, char hex[SHARD_SHA256_HEX_SIZE]);
shard_status digest_write(const char *path, const char *hex, shard_error *error);

/* The digest of a split set: sha256 over its files' digests (32 bytes each) in order. */
shard_status digest_of_digests(const char (*hexes)[SHARD_SHA256_HEX_SIZE], size_t count,
                               char hex[SHARD_SHA256_HEX_SIZE], shard_error *error);

/* The digest of a string. */
shard_status digest_text(const char *text, char hex[SHARD_SHA256_HEX_SIZE], shard_error *error);

#endif /* SHARD_LLAMA_DIGEST_H */
