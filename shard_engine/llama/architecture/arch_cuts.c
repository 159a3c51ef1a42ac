#include "arch_cuts.h"

#include "meta.h"

#include <stdio.h>

/* ---- keys ---- */

static uint32_t number(const arch_model *model, const char *suffix, uint32_t otherwise) {
    return meta_number(model->gguf, model->rule->architecture, suffix, otherwise);
}

static bool is_present(const arch_model *model, const char *suffix) {
    char key[META_KEY_SIZE];
    meta_key(key, model->rule->architecture, suffix);
    return gguf_find_key(model->gguf, key) >= 0;
}

static bool number_of_layer(const arch_model *model, const char *suffix, uint32_t layer,
                            uint32_t *value) {
    char key[META_KEY_SIZE];
    meta_key(key, model->rule->architecture, suffix);
    return meta_u32_at(model->gguf, key, layer, value);
}

static bool is_array(const arch_model *model, const char *suffix) {
    char key[META_KEY_SIZE];
    meta_key(key, model->rule->architecture, suffix);
    return meta_array(model->gguf, key) >= 0;
}

/* ---- two kinds of layer ---- */

static bool has_pattern(const arch_model *model) {
    const arch_pattern *pattern = &model->rule->pattern;
    return (pattern->list != NULL || pattern->key != NULL) &&
           (pattern->only_if == NULL || number(model, pattern->only_if, 0) > 0);
}

static bool has_list(const arch_model *model) {
    const arch_pattern *pattern = &model->rule->pattern;
    return pattern->list != NULL && (pattern->key == NULL || is_array(model, pattern->list));
}

static bool is_listed(const arch_model *model, const char *list, uint32_t layer) {
    uint32_t value = 0;
    return list != NULL && number_of_layer(model, list, layer, &value) && value != 0;
}

static bool is_of_first_kind(const arch_model *model, uint32_t layer) {
    const arch_pattern *pattern = &model->rule->pattern;
    if (has_list(model)) {
        return is_listed(model, pattern->list, layer);
    }
    const uint32_t period = number(model, pattern->key, pattern->otherwise);
    if (period == 0) {
        return true;
    }
    return pattern->others_first ? layer % period != 0 : layer % period < period - 1;
}

static bool has_needed_kinds(const arch_model *model, uint32_t start, uint32_t end) {
    bool found[2] = {false, false};
    for (uint32_t layer = start; layer < end; layer++) {
        if (!is_listed(model, model->rule->pattern.neither, layer)) {
            found[is_of_first_kind(model, layer)] = true;
        }
    }
    return found[true] && (found[false] || !model->rule->pattern.needs_others);
}

static bool has_needed(const arch_model *model, uint32_t start, uint32_t end) {
    const char *list = model->rule->needs_one;
    if (list == NULL || !is_present(model, list)) {
        return true;
    }
    uint32_t layer = start;
    while (layer < end && !is_listed(model, list, layer)) {
        layer++;
    }
    return layer < end;
}

bool arch_cuts_are_mixed(const arch_model *model, uint32_t start, uint32_t end) {
    const uint32_t n_dense = number(model, "leading_dense_block_count", 0);
    return (!has_pattern(model) || has_needed_kinds(model, start, end)) &&
           has_needed(model, start, end) && (!model->rule->needs_more_than_dense || end > n_dense);
}

/* ---- the period ---- */

static uint32_t common_multiple(uint32_t a, uint32_t b) {
    uint32_t x = a;
    uint32_t y = b;
    while (y != 0) {
        const uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    const uint64_t multiple = (uint64_t)a / x * b;
    return multiple > UINT32_MAX ? UINT32_MAX : (uint32_t)multiple;
}

/* What comes again by its distance from layer 0 must find the same distance in a shard. */
static uint32_t step_period(const arch_model *model) {
    const arch_rule *rule = model->rule;
    uint32_t period = 1;
    for (uint32_t i = 0; i < ARCH_MAX_STEPS; i++) {
        const arch_step *step = &rule->steps[i];
        uint32_t every = step->key != NULL ? number(model, step->key, 0) : 0;
        every = every == 0 ? step->otherwise : every;
        period = every == 0 ? period : common_multiple(period, every);
    }
    if (has_pattern(model) && !has_list(model)) {
        const uint32_t every = number(model, rule->pattern.key, rule->pattern.otherwise);
        period = every == 0 ? period : common_multiple(period, every);
    }
    return period;
}

static bool is_size(const arch_rule *rule, uint32_t n_layer) {
    for (uint32_t i = 0; i < ARCH_MAX_SIZES; i++) {
        if (rule->sizes[i] == n_layer) {
            return true;
        }
    }
    return false;
}

static bool is_good_piece(const arch_model *model, uint32_t start, uint32_t end) {
    return !is_size(model->rule, end - start) && arch_cuts_are_mixed(model, start, end);
}

/* Layers that are left over at the end belong to the last piece. */
static bool are_good_pieces(const arch_model *model, uint32_t period) {
    const uint32_t n_pieces = model->n_layer / period;
    for (uint32_t piece = 0; piece < n_pieces; piece++) {
        const uint32_t end = piece + 1 == n_pieces ? model->n_layer : (piece + 1) * period;
        if (!is_good_piece(model, piece * period, end)) {
            return false;
        }
    }
    return true;
}

static bool is_beyond(const arch_model *model, const arch_limit *limit) {
    if (limit->unless != NULL && is_present(model, limit->unless)) {
        return false;
    }
    return limit->zero ? number(model, limit->key, 1) == 0
                       : number(model, limit->key, 0) > limit->most;
}

static const char *why_not_at_all(const arch_model *model) {
    const arch_rule *rule = model->rule;
    if (rule->use != ARCH_CUT) {
        return rule->reason;
    }
    if (gguf_find_key(model->gguf, "general.tensor_extra.name") >= 0) {
        return "it names tensors by their layers in its metadata (general.tensor_extra.name)";
    }
    for (uint32_t i = 0; i < ARCH_MAX_LIMITS && rule->limits[i].key != NULL; i++) {
        if (is_beyond(model, &rule->limits[i])) {
            return rule->limits[i].reason;
        }
    }
    return NULL;
}

uint32_t arch_cuts_period(const arch_model *model, char *reason, size_t reason_size) {
    const arch_rule *rule = model->rule;
    const char *why = why_not_at_all(model);
    if (why != NULL) {
        snprintf(reason, reason_size, "%s%s", why,
                 rule->use == ARCH_REFUSED ? "" : "; serve it whole");
        return 0;
    }
    if (is_size(rule, model->n_layer) && rule->settle == NULL) {
        snprintf(
            reason, reason_size,
            "llama.cpp recognises this size of %s by its %u layers and computes it in a way of "
            "its own, which a shard with fewer layers would not have; serve it whole",
            rule->architecture, model->n_layer);
        return 0;
    }
    const uint32_t step = step_period(model);
    uint32_t period = step;
    while (period <= model->n_layer / 2 && !are_good_pieces(model, period)) {
        period += step;
    }
    return period;
}

/* ---- one range ---- */

/* The library takes the size of a head from the first layer of what it loads. */
static bool starts_like_the_model(const arch_model *model, uint32_t start) {
    uint32_t first = 0;
    uint32_t here = 0;
    if (!number_of_layer(model, "attention.head_count", 0, &first) ||
        !number_of_layer(model, "attention.head_count", start, &here)) {
        return true; /* an architecture without heads */
    }
    const bool has_lengths =
        is_present(model, "attention.key_length") && is_present(model, "attention.value_length");
    return first == here ||
           (model->rule->memory == ARCH_KV && has_lengths && first > 0 && here > 0);
}

static bool starts_with_an_index(const arch_model *model, uint32_t start) {
    uint32_t indexes = 1;
    return !model->rule->indexes || !is_present(model, "attention.indexer.types") ||
           (number_of_layer(model, "attention.indexer.types", start, &indexes) && indexes != 0);
}

static bool is_cut(const arch_model *model, uint32_t period, uint32_t layer) {
    const uint32_t n_layer = model->n_layer;
    return layer == 0 || layer == n_layer ||
           (layer < n_layer && layer % period == 0 && n_layer - layer >= period);
}

bool arch_cuts_allow(const arch_model *model, uint32_t period, uint32_t start, uint32_t end,
                     char *reason, size_t reason_size) {
    const arch_rule *rule = model->rule;
    const uint32_t n_layer = model->n_layer;
    if (start == 0 && end == n_layer) {
        return true;
    }
    if (!is_cut(model, period, start) || !is_cut(model, period, end)) {
        snprintf(reason, reason_size,
                 "this model of %u layers can be cut at multiples of %u only, the last of which "
                 "leaves at least %u layers",
                 n_layer, period, period);
    } else if (is_size(rule, end - start)) {
        snprintf(reason, reason_size,
                 "llama.cpp takes %u layers of %s for a size that it computes in a way of its own; "
                 "choose a longer or shorter range",
                 end - start, rule->architecture);
    } else if (!arch_cuts_are_mixed(model, start, end)) {
        snprintf(reason, reason_size,
                 "these layers are all of one kind (all with or all without a sliding window, "
                 "attention, a recurrent state, rotation or experts), and llama.cpp aborts over "
                 "that; choose another range");
    } else if (!starts_like_the_model(model, start)) {
        snprintf(reason, reason_size,
                 "layer %u has another number of attention heads than layer 0, from which "
                 "llama.cpp takes the size of a head; start at another layer",
                 start);
    } else if (!starts_with_an_index(model, start)) {
        snprintf(reason, reason_size,
                 "layer %u reuses the index of a layer before it; start at a layer with an index "
                 "of its own",
                 start);
    } else {
        return true;
    }
    return false;
}
