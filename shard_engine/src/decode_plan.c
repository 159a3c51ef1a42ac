#include "decode_plan.h"

static void add_call(decode_plan *plan, uint32_t first, uint32_t n_entries, uint32_t n_rows) {
    plan->calls[plan->n_calls++] =
        (decode_call){.first = first, .n_entries = n_entries, .n_rows = n_rows};
}

/* What is computed for the sake of embeddings gives every row back: the others would too. */
static bool goes_with_others(const shard_step_entry *entry) {
    return entry->n_rows == 1 && entry->output != SHARD_OUTPUT_EMBEDDING;
}

/* Keeps what is there in ascending order of sessions; a step has few of them. */
static void insert_by_session(decode_plan *plan, const shard_step_entry *entries, uint32_t index) {
    uint32_t at = plan->n_ordered++;
    while (at > 0 && entries[plan->order[at - 1]].session > entries[index].session) {
        plan->order[at] = plan->order[at - 1];
        at--;
    }
    plan->order[at] = index;
}

static void plan_single_rows(decode_plan *plan, const shard_step_entry *entries, uint32_t n_entries,
                             uint32_t n_ubatch) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status == SHARD_OK && goes_with_others(&entries[i])) {
            insert_by_session(plan, entries, i);
        }
    }
    for (uint32_t first = 0; first < plan->n_ordered; first += n_ubatch) {
        const uint32_t left = plan->n_ordered - first;
        const uint32_t n_together = left < n_ubatch ? left : n_ubatch;
        add_call(plan, first, n_together, n_together);
    }
}

static void plan_alone(decode_plan *plan, const shard_step_entry *entries, uint32_t n_entries) {
    for (uint32_t i = 0; i < n_entries; i++) {
        if (entries[i].status == SHARD_OK && !goes_with_others(&entries[i])) {
            plan->order[plan->n_ordered] = i;
            add_call(plan, plan->n_ordered++, 1, entries[i].n_rows);
        }
    }
}

void decode_plan_make(decode_plan *plan, const shard_step_entry *entries, uint32_t n_entries,
                      uint32_t n_ubatch) {
    plan->n_ordered = 0;
    plan->n_calls = 0;
    plan_single_rows(plan, entries, n_entries, n_ubatch);
    plan_alone(plan, entries, n_entries);
}
