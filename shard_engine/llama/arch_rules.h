/* What each architecture needs in order to be cut, as a table. An architecture that is not in it is
 * refused: never a guess. */
#ifndef SHARD_LLAMA_ARCH_RULES_H
#define SHARD_LLAMA_ARCH_RULES_H

#include "shard_engine.h"

#include <gguf.h>

typedef struct arch_rule {
    const char *architecture;
    uint32_t cut_period;   /* cuts must be multiples of it */
    bool head_may_be_tied; /* the library ties the head when output.weight is absent */
    /* Tensors outside the layers that every shard needs, NULL-terminated. */
    const char *const *shared_tensors;
} arch_rule;

/* The rule, or NULL. */
const arch_rule *arch_rule_find(const char *architecture);

/* "llama, ..." for messages. */
const char *arch_rule_names(void);

/* True when the range may be cut out of a model of `n_layer` layers. */
bool arch_rule_allows(const arch_rule *rule, uint32_t start, uint32_t end, uint32_t n_layer);

/* True when `name` is one of the rule's shared tensors. */
bool arch_rule_shares(const arch_rule *rule, const char *name);

/* Checks the hyper-parameters that the library would otherwise abort the process over. On false,
 * `reason` says what is wrong. */
bool arch_rule_check(const arch_rule *rule, const struct gguf_context *gguf, uint32_t n_layer,
                     char *reason, size_t reason_size);

#endif /* SHARD_LLAMA_ARCH_RULES_H */
