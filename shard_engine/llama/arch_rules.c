#include "arch_rules.h"

#include "meta.h"

#include <stdio.h>
#include <string.h>

static const char *const ROPE_TENSORS[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                           "rope_factors_short.weight", NULL};

static const arch_rule RULES[] = {
    {
        .architecture = "llama",
        .cut_period = 1,
        .head_may_be_tied = true,
        .shared_tensors = ROPE_TENSORS,
    },
};

enum {
    N_RULES = sizeof(RULES) / sizeof(RULES[0]),
    LIBRARY_MAX_LAYERS = 512,   /* LLAMA_MAX_LAYERS of the pinned library */
    LIBRARY_MAX_EXPERTS = 1024, /* LLAMA_MAX_EXPERTS */
};

const arch_rule *arch_rule_find(const char *architecture) {
    for (size_t i = 0; i < N_RULES; i++) {
        if (strcmp(RULES[i].architecture, architecture) == 0) {
            return &RULES[i];
        }
    }
    return NULL;
}

const char *arch_rule_names(void) {
    return "llama";
}

bool arch_rule_allows(const arch_rule *rule, uint32_t start, uint32_t end, uint32_t n_layer) {
    const bool start_allowed = start % rule->cut_period == 0;
    const bool end_allowed = end == n_layer || end % rule->cut_period == 0;
    return start < end && end <= n_layer && start_allowed && end_allowed;
}

bool arch_rule_shares(const arch_rule *rule, const char *name) {
    for (const char *const *shared = rule->shared_tensors; *shared != NULL; shared++) {
        if (strcmp(*shared, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Every layer's value of a key that may be one number or one number per layer. */
static bool in_bounds_per_layer(const struct gguf_context *gguf, const char *key, uint32_t n_layer,
                                uint32_t lowest, uint32_t highest) {
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        uint32_t value = 0;
        if (!meta_u32_at(gguf, key, layer, &value) || value < lowest || value > highest) {
            return false;
        }
    }
    return true;
}

static bool check_experts(const arch_rule *rule, const struct gguf_context *gguf, char *reason,
                          size_t reason_size) {
    char key[META_KEY_SIZE];
    uint32_t n_expert = 0;
    uint32_t n_used = 0;
    meta_key(key, rule->architecture, "expert_count");
    meta_u32(gguf, key, &n_expert);
    meta_key(key, rule->architecture, "expert_used_count");
    meta_u32(gguf, key, &n_used);
    if (n_expert > LIBRARY_MAX_EXPERTS || n_used > n_expert || (n_expert > 0) != (n_used > 0)) {
        snprintf(reason, reason_size, "%u experts of which %u are used cannot be", n_expert,
                 n_used);
        return false;
    }
    return true;
}

bool arch_rule_check(const arch_rule *rule, const struct gguf_context *gguf, uint32_t n_layer,
                     char *reason, size_t reason_size) {
    char key[META_KEY_SIZE];
    uint32_t n_embd = 0;
    uint32_t n_ctx = 0;
    if (n_layer == 0 || n_layer > LIBRARY_MAX_LAYERS) {
        snprintf(reason, reason_size, "%u layers; llama.cpp takes 1 to %d", n_layer,
                 LIBRARY_MAX_LAYERS);
        return false;
    }
    meta_key(key, rule->architecture, "embedding_length");
    if (!meta_u32(gguf, key, &n_embd) || n_embd == 0) {
        snprintf(reason, reason_size, "the key %s is missing or zero", key);
        return false;
    }
    meta_key(key, rule->architecture, "context_length");
    if (!meta_u32(gguf, key, &n_ctx) || n_ctx == 0) {
        snprintf(reason, reason_size, "the key %s is missing or zero", key);
        return false;
    }
    meta_key(key, rule->architecture, "attention.head_count");
    if (!in_bounds_per_layer(gguf, key, n_layer, 1, n_embd)) {
        snprintf(reason, reason_size, "the key %s must be 1 to %u for each of %u layers", key,
                 n_embd, n_layer);
        return false;
    }
    return check_experts(rule, gguf, reason, reason_size);
}
