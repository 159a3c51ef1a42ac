/* Hyper-parameters over which the library would abort the process, crash, or compute nonsense. */
#include "arch_check.h"

#include "meta.h"

#include <stdio.h>
#include <string.h>

enum {
    LIBRARY_MAX_LAYERS = 512,   /* LLAMA_MAX_LAYERS of the pinned library */
    LIBRARY_MAX_EXPERTS = 1024, /* LLAMA_MAX_EXPERTS */
};

typedef struct checked_model {
    const arch_rule *rule;
    const struct gguf_context *gguf;
    uint32_t n_layer;
    char *reason;
    size_t reason_size;
} checked_model;

static uint32_t number(const checked_model *model, const char *suffix, uint32_t otherwise) {
    return meta_number(model->gguf, model->rule->architecture, suffix, otherwise);
}

static bool check_positive(const checked_model *model, const char *suffix) {
    if (number(model, suffix, 0) > 0) {
        return true;
    }
    snprintf(model->reason, model->reason_size, "the key %s.%s is missing or zero",
             model->rule->architecture, suffix);
    return false;
}

static bool check_layers(const checked_model *model) {
    const uint32_t n_next = number(model, "nextn_predict_layers", 0);
    if (model->n_layer == 0 || model->n_layer > LIBRARY_MAX_LAYERS) {
        snprintf(model->reason, model->reason_size, "%u layers; llama.cpp takes 1 to %d",
                 model->n_layer, LIBRARY_MAX_LAYERS);
        return false;
    }
    if ((uint64_t)model->n_layer * number(model, "num_loops", 1) > LIBRARY_MAX_LAYERS) {
        snprintf(model->reason, model->reason_size,
                 "%u layers that run %u times; llama.cpp takes %d together", model->n_layer,
                 number(model, "num_loops", 1), LIBRARY_MAX_LAYERS);
        return false;
    }
    if (n_next >= model->n_layer) {
        snprintf(
            model->reason, model->reason_size,
            "%u of its %u layers predict further tokens, which leaves none to compute the next "
            "one with",
            n_next, model->n_layer);
        return false;
    }
    return true;
}

/* Every layer's value of a key that may be one number or one number per layer. */
static bool in_bounds_per_layer(const checked_model *model, const char *key, uint32_t lowest,
                                uint32_t highest) {
    const int64_t array = meta_array(model->gguf, key);
    const uint64_t length = array >= 0 ? gguf_get_arr_n(model->gguf, array) : model->n_layer;
    for (uint32_t layer = 0; layer < model->n_layer && layer < length; layer++) {
        uint32_t value = 0;
        if (!meta_u32_at(model->gguf, key, layer, &value) || value < lowest || value > highest) {
            return false;
        }
    }
    return length > 0;
}

static bool check_heads(const checked_model *model) {
    const bool may_be_zero = model->rule->heads_may_be_zero || model->rule->memory != ARCH_KV;
    const uint32_t n_embd = number(model, "embedding_length", 0);
    const uint32_t lowest = may_be_zero ? 0 : 1;
    char key[META_KEY_SIZE];
    meta_key(key, model->rule->architecture, "attention.head_count");
    if (may_be_zero && gguf_find_key(model->gguf, key) < 0) {
        return true;
    }
    if (!in_bounds_per_layer(model, key, lowest, n_embd)) {
        snprintf(model->reason, model->reason_size,
                 "the key %s must be %u to %u for each of %u layers", key, lowest, n_embd,
                 model->n_layer);
        return false;
    }
    return true;
}

/* Lengths of keys and values, and the part of them that is rotated. */
static bool check_lengths(const checked_model *model) {
    char key[META_KEY_SIZE];
    uint32_t n_head = 0;
    meta_key(key, model->rule->architecture, "attention.head_count");
    if (!meta_u32_at(model->gguf, key, 0, &n_head) || n_head == 0) {
        return true;
    }
    const uint32_t usual = number(model, "embedding_length", 0) / n_head;
    const uint32_t n_key = number(model, "attention.key_length", usual);
    const uint32_t n_value = number(model, "attention.value_length", usual);
    const uint32_t n_rotated = number(model, "rope.dimension_count", n_key);
    if (model->rule->key_is_value && n_key != n_value) {
        snprintf(model->reason, model->reason_size,
                 "keys of %u values and values of %u; llama.cpp runs %s only where they are alike",
                 n_key, n_value, model->rule->architecture);
        return false;
    }
    if (model->rule->rotates_all && n_rotated != n_value) {
        snprintf(model->reason, model->reason_size,
                 "%u rotated values in heads of %u; llama.cpp runs %s only where they are alike",
                 n_rotated, n_value, model->rule->architecture);
        return false;
    }
    return true;
}

static uint32_t most_experts_used(const checked_model *model) {
    char key[META_KEY_SIZE];
    uint32_t most = 0;
    meta_key(key, model->rule->architecture, "expert_used_count");
    for (uint32_t layer = 0; layer < model->n_layer; layer++) {
        uint32_t used = 0;
        meta_u32_at(model->gguf, key, layer, &used);
        most = used > most ? used : most;
    }
    return most;
}

static bool check_experts(const checked_model *model) {
    const uint32_t n_expert = number(model, "expert_count", 0);
    const uint32_t n_used = most_experts_used(model);
    const uint32_t n_groups = number(model, "expert_group_count", 0);
    const uint32_t n_groups_used = number(model, "expert_group_used_count", 0);
    if (model->rule->ignores_one_expert && n_expert <= 1) {
        return true;
    }
    if (n_expert > LIBRARY_MAX_EXPERTS || n_used > n_expert || (n_expert > 0) != (n_used > 0)) {
        snprintf(model->reason, model->reason_size, "%u experts of which %u are used cannot be",
                 n_expert, n_used);
        return false;
    }
    if ((n_groups > 0 && n_groups >= n_expert) ||
        (n_groups > 1 &&
         (n_expert % n_groups != 0 || n_groups_used == 0 || n_groups_used >= n_groups))) {
        snprintf(model->reason, model->reason_size,
                 "%u experts in %u groups of which %u are used cannot be", n_expert, n_groups,
                 n_groups_used);
        return false;
    }
    return true;
}

/* Sizes of recurrent states, which the library divides by and through. */
static bool check_states(const checked_model *model) {
    static const char *const SIZES[] = {"ssm.conv_kernel", "ssm.inner_size",     "ssm.state_size",
                                        "wkv.head_size",   "ssm.time_step_rank", "kda.head_dim"};
    if (model->rule->memory == ARCH_KV) {
        return true;
    }
    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        if (number(model, SIZES[i], 1) == 0) {
            snprintf(model->reason, model->reason_size, "the key %s.%s is zero",
                     model->rule->architecture, SIZES[i]);
            return false;
        }
    }
    const uint32_t n_inner = number(model, "ssm.inner_size", 0);
    const uint32_t n_rank = number(model, "ssm.time_step_rank", 1);
    const uint32_t n_group = number(model, "ssm.group_count", 1);
    if (model->rule->expands_twice && n_inner != 2 * number(model, "embedding_length", 0)) {
        snprintf(model->reason, model->reason_size,
                 "a state of %u inner values; llama.cpp runs %s only with twice its width", n_inner,
                 model->rule->architecture);
        return false;
    }
    if (model->rule->has_no_groups && number(model, "ssm.group_count", 0) != 0) {
        snprintf(model->reason, model->reason_size,
                 "states in %u groups; llama.cpp runs %s without groups only", n_group,
                 model->rule->architecture);
        return false;
    }
    if (model->rule->divides_states &&
        (n_group == 0 || n_inner % n_rank != 0 || n_inner % n_group != 0)) {
        snprintf(model->reason, model->reason_size,
                 "a state of %u inner values cannot be divided into %u ranks and %u groups",
                 n_inner, n_rank, n_group);
        return false;
    }
    return true;
}

static bool is_in_bounds(const arch_bound *bound, uint32_t value) {
    return value >= bound->least && (bound->most == 0 || value <= bound->most) &&
           (bound->multiple_of == 0 || value % bound->multiple_of == 0);
}

static bool check_bounds(const checked_model *model) {
    for (size_t i = 0; i < ARCH_MAX_BOUNDS && model->rule->bounds[i].key != NULL; i++) {
        const arch_bound *bound = &model->rule->bounds[i];
        const uint32_t value = number(model, bound->key, bound->otherwise);
        if (!is_in_bounds(bound, value)) {
            snprintf(model->reason, model->reason_size,
                     "the key %s.%s is %u; llama.cpp runs %s only with %s",
                     model->rule->architecture, bound->key, value, model->rule->architecture,
                     bound->words);
            return false;
        }
    }
    return true;
}

static bool check_scaling(const checked_model *model) {
    static const char *const KNOWN[] = {"none", "linear", "yarn", "longrope"};
    char key[META_KEY_SIZE];
    meta_key(key, model->rule->architecture, "rope.scaling.type");
    const char *type = meta_string(model->gguf, key);
    for (size_t i = 0; type != NULL && i < sizeof(KNOWN) / sizeof(KNOWN[0]); i++) {
        if (strcmp(type, KNOWN[i]) == 0) {
            return true;
        }
    }
    if (type != NULL) {
        snprintf(model->reason, model->reason_size,
                 "the key %s is \"%.32s\"; llama.cpp knows none, linear, yarn and longrope", key,
                 type);
    }
    return type == NULL;
}

/* Each layer stands for a place in a cycle. */
static bool check_cycles(const checked_model *model) {
    const uint64_t n_stack = number(model, "hrm.layers_per_stack", 0);
    const uint64_t n_high = number(model, "hrm.h_cycles", 0);
    const uint64_t n_low = number(model, "hrm.l_cycles", 0);
    if (!model->rule->runs_in_cycles ||
        (n_stack > 0 && n_high > 0 && n_low > 0 && n_stack <= model->n_layer &&
         n_high <= model->n_layer && n_stack * n_high * (n_low + 1) == model->n_layer)) {
        return true;
    }
    snprintf(model->reason, model->reason_size, "its cycles do not make up its %u layers",
             model->n_layer);
    return false;
}

static bool check_gate(const checked_model *model) {
    char key[META_KEY_SIZE];
    float bound = -1.0f;
    meta_key(key, model->rule->architecture, "kda.gate_lower_bound");
    if (model->rule->needs_falling_gate && meta_f32(model->gguf, key, &bound) && !(bound < 0.0f)) {
        snprintf(model->reason, model->reason_size, "the key %s is %g, which must be below 0", key,
                 (double)bound);
        return false;
    }
    return true;
}

/* What norms add to a variance; written so that NaN is refused. */
static bool check_epsilons(const checked_model *model) {
    static const char *const KEYS[] = {"attention.layer_norm_epsilon",
                                       "attention.layer_norm_rms_epsilon",
                                       "attention.group_norm_epsilon"};
    for (size_t i = 0; i < sizeof(KEYS) / sizeof(KEYS[0]); i++) {
        char key[META_KEY_SIZE];
        float epsilon = 0.0f;
        meta_key(key, model->rule->architecture, KEYS[i]);
        if (meta_f32(model->gguf, key, &epsilon) && !(epsilon >= 0.0f)) {
            snprintf(model->reason, model->reason_size, "the key %s is %g, which must be 0 or more",
                     key, (double)epsilon);
            return false;
        }
    }
    return true;
}

static bool check_vocabulary(const checked_model *model) {
    const int64_t tokens = meta_array(model->gguf, "tokenizer.ggml.tokens");
    const uint32_t least = model->rule->least_vocabulary;
    const uint32_t listed = tokens >= 0 ? (uint32_t)gguf_get_arr_n(model->gguf, tokens) : 0;
    const uint32_t n_vocab = number(model, "vocab_size", listed);
    if (n_vocab < least) {
        snprintf(model->reason, model->reason_size, "%u tokens; llama.cpp runs %s with %u or more",
                 n_vocab, model->rule->architecture, least);
        return false;
    }
    return true;
}

bool arch_check(const arch_rule *rule, const struct gguf_context *gguf, uint32_t n_layer,
                char *reason, size_t reason_size) {
    const checked_model model = {.rule = rule,
                                 .gguf = gguf,
                                 .n_layer = n_layer,
                                 .reason = reason,
                                 .reason_size = reason_size};
    return check_layers(&model) && check_positive(&model, "embedding_length") &&
           check_positive(&model, "context_length") && check_heads(&model) &&
           check_lengths(&model) && check_experts(&model) && check_states(&model) &&
           check_bounds(&model) && check_scaling(&model) && check_cycles(&model) &&
           check_gate(&model) && check_epsilons(&model) && check_vocabulary(&model);
}
