/* Hyper-parameters over which the library would abort the process, crash, or compute nonsense. */
#ifndef SHARD_LLAMA_ARCH_CHECK_H
#define SHARD_LLAMA_ARCH_CHECK_H

#include "arch_rules.h"

/* True when the library can be shown the model; `n_layer` counts every layer in the file. On false,
 * `reason` says what is wrong. */
bool arch_check(const arch_rule *rule, const struct gguf_context *gguf, uint32_t n_layer,
                char *reason, size_t reason_size);

#endif /* SHARD_LLAMA_ARCH_CHECK_H */
