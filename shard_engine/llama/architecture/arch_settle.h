/* Keys that a shard must carry because the library would otherwise work them out from the number of
 * layers, which a shard has fewer of. */
#ifndef SHARD_LLAMA_ARCH_SETTLE_H
#define SHARD_LLAMA_ARCH_SETTLE_H

#include <gguf.h>
#include <stdint.h>

/* Whether queries have a rank of their own, and how experts are scored. Also of mistral4. */
void arch_settle_deepseek2(struct gguf_context *shard, const struct gguf_context *whole,
                           uint32_t n_layer);

/* How much each layer adds. */
void arch_settle_minicpm(struct gguf_context *shard, const struct gguf_context *whole,
                         uint32_t n_layer);

#endif /* SHARD_LLAMA_ARCH_SETTLE_H */
