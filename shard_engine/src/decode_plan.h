/* How one step is cut into calls of the library, so that the shapes in which a session's rows are
 * computed never depend on what else is in the step: the entries of one row together, in ascending
 * order of their sessions and at most n_ubatch at once, then each longer entry alone, and each one
 * that embeddings are asked of. */
#ifndef SHARD_DECODE_PLAN_H
#define SHARD_DECODE_PLAN_H

#include "shard_engine.h"

/* Entries that are computed together: those at order[first], order[first + 1], ... */
typedef struct decode_call {
    uint32_t first;
    uint32_t n_entries;
    uint32_t n_rows;
} decode_call;

typedef struct decode_plan {
    uint32_t *order;    /* indexes of the entries to be computed, in the order of computing */
    uint32_t n_ordered; /* at most one for each session */
    decode_call *calls;
    uint32_t n_calls; /* at most n_ordered */
} decode_plan;

/* Plans the entries whose status is SHARD_OK, in the caller's order where it does not matter.
 * `plan->order` and `plan->calls` have room for one item for each session. */
void decode_plan_make(decode_plan *plan, const shard_step_entry *entries, uint32_t n_entries,
                      uint32_t n_ubatch);

#endif /* SHARD_DECODE_PLAN_H */
