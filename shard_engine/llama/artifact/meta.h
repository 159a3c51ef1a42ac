/* Reading GGUF metadata without trusting it: gguf.h aborts the process when a value is asked for in
 * another type than it has, so every read here checks the type first. */
#ifndef SHARD_LLAMA_META_H
#define SHARD_LLAMA_META_H

#include <gguf.h>
#include <stdbool.h>
#include <stdint.h>

enum { META_KEY_SIZE = 192 };

/* "<architecture>.<suffix>" */
void meta_key(char out[META_KEY_SIZE], const char *architecture, const char *suffix);

/* Any integer type that fits. False when the key is absent or of another kind. */
bool meta_u64(const struct gguf_context *gguf, const char *key, uint64_t *value);
bool meta_u32(const struct gguf_context *gguf, const char *key, uint32_t *value);

/* The value of "<architecture>.<suffix>", or `otherwise` when it is absent or of another kind. */
uint32_t meta_number(const struct gguf_context *gguf, const char *architecture, const char *suffix,
                     uint32_t otherwise);

/* A float32 or float64. */
bool meta_f32(const struct gguf_context *gguf, const char *key, float *value);

/* The string, or NULL when the key is absent or of another kind. Borrowed from `gguf`. */
const char *meta_string(const struct gguf_context *gguf, const char *key);

/* The key's index when it is an array, else -1. */
int64_t meta_array(const struct gguf_context *gguf, const char *key);

/* Element `index` of a numeric array (or the value itself when the key is a number). */
bool meta_u32_at(const struct gguf_context *gguf, const char *key, uint32_t index, uint32_t *value);

#endif /* SHARD_LLAMA_META_H */
