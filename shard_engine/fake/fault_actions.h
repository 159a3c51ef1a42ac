/* What a due fault does to the process: the only place where the fake engine fails on purpose. */
#ifndef FAULT_ACTIONS_H
#define FAULT_ACTIONS_H

#include "fault_plan.h"

#include <stdatomic.h>

/* How the rest of the engine, and other threads, see a step: shared with `cancel` and `progress`.
 */
typedef struct fake_signals {
    atomic_bool cancelled;
    atomic_uint_fast64_t progress;
} fake_signals;

/* Whether a cancel came in; takes it, so that it stops one step and no more. */
bool fake_signals_take_cancel(fake_signals *signals);

/* Makes every fault happen that is due at the start of a call (from 1) of `step`; those of the step
 * itself are due in its first. SHARD_ERR_CANCELLED when the step was cancelled meanwhile,
 * SHARD_ERR_MEMORY when an `allocate` was refused, SHARD_ERR_BACKEND when the call is to fail. */
shard_status fault_actions_call(const fault_plan *plan, uint64_t step, uint32_t call,
                                fake_signals *signals, shard_error *error);

/* Spoils the last row that an entry of `step` made, where that is due. */
void fault_actions_output(const fault_plan *plan, uint64_t step, float *row);

/* A load whose bytes arrive as slowly as `load-slow` says, and at once without it: give
 * `slow_load_progress` and this to whatever loads, in place of the caller's own callback. */
typedef struct slow_load {
    uint32_t milliseconds;               /* of the whole load */
    uint64_t done;                       /* bytes reported so far */
    shard_progress_callback on_progress; /* of the caller; may be NULL */
    void *user_data;
} slow_load;

slow_load slow_load_init(const fault_plan *plan, shard_progress_callback on_progress,
                         void *user_data);
bool slow_load_progress(const char *phase, uint64_t done, uint64_t total, void *user_data);

/* Makes the other faults of `open` happen: those that end or fail it. */
shard_status fault_actions_load(const fault_plan *plan, shard_error *error);

#endif /* FAULT_ACTIONS_H */
