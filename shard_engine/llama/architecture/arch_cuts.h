/* Where a model may be cut: what its architecture's rule says, applied to its metadata. */
#ifndef SHARD_LLAMA_ARCH_CUTS_H
#define SHARD_LLAMA_ARCH_CUTS_H

#include "arch_rules.h"

typedef struct arch_model {
    const arch_rule *rule;
    const struct gguf_context *gguf;
    uint32_t n_layer;
} arch_model;

/* Cuts must be multiples of it, and leave at least as many layers behind the last. 0 where no cut
 * is allowed: then `reason` says why. */
uint32_t arch_cuts_period(const arch_model *model, char *reason, size_t reason_size);

/* True when the range may be cut out of a model whose period is `period`, not 0. On false, `reason`
 * says why not. */
bool arch_cuts_allow(const arch_model *model, uint32_t period, uint32_t start, uint32_t end,
                     char *reason, size_t reason_size);

/* False where the library would abort the process because the layers in [start, end) are all of one
 * kind: its graph then leaves out inputs that it sets all the same. */
bool arch_cuts_are_mixed(const arch_model *model, uint32_t start, uint32_t end);

#endif /* SHARD_LLAMA_ARCH_CUTS_H */
