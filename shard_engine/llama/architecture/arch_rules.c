#include "arch_rules.h"

#include "arch_table.h"

#include <string.h>

static const char *const ROPE_TENSORS[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                           "rope_factors_short.weight", NULL};

const arch_rule *arch_rule_find(const char *architecture) {
    for (size_t i = 0; i < ARCH_TABLE_SIZE; i++) {
        if (strcmp(ARCH_TABLE[i].architecture, architecture) == 0) {
            return &ARCH_TABLE[i];
        }
    }
    return NULL;
}

static bool lists(const char *const *names, const char *name) {
    for (; names != NULL && *names != NULL; names++) {
        if (strcmp(*names, name) == 0) {
            return true;
        }
    }
    return false;
}

bool arch_rule_shares(const arch_rule *rule, const char *name) {
    return lists(ROPE_TENSORS, name) || lists(rule->shared_tensors, name);
}
