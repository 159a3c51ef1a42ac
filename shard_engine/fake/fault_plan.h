/*
 * Fault plans: failures that the fake engine makes happen on purpose.
 *
 * A plan is words joined with commas. A word is `name`, `name:value`, `name@step` or
 * `name:value@step`; values and steps are decimal, and step 1 is the first step after `open`
 * (the warm-up row is not counted, nor is a step whose entries were all refused).
 *
 *     crash@N         abort() in step N
 *     segv@N          die of SIGSEGV in step N
 *     exit:C@N        leave the process with exit status C (0 to 255) in step N
 *     hang@N          make no progress in step N until it is cancelled
 *     hang-hard@N     make no progress in step N, and ignore cancel
 *     hang-call:K@N   make no progress in the K-th call of step N until it is cancelled; the
 *                     entries of calls before it are done (a step computes its entries of one row
 *                     together, then each longer entry in a call of its own)
 *     fail-call:K@N   fail the K-th call of step N with SHARD_ERR_BACKEND
 *     slow:MS         spend MS milliseconds more in every step; progress rises, cancel is honoured
 *     nan@N           put a NaN into the last row that every entry of step N makes
 *     overflow@N      put 100000 there, which f16 cannot hold
 *     stderr-flood@N  write 4 MiB of lines to stderr in step N, then go on
 *     allocate@N      allocate memory in step N until the process is killed; where an allocation
 *                     is refused instead, the step fails with SHARD_ERR_MEMORY
 *     load-slow:MS    spend MS milliseconds more in `open`; progress is reported, cancel honoured
 *     load-fail       fail `open` with SHARD_ERR_BACKEND
 *     load-hang       never return from `open`, without progress
 *     load-crash      abort() in `open`
 *
 * A plan given to the worker may also have words for what happens on the pipe: see
 * worker_c/src/fault_transport.h. The engine never sees those.
 */
#ifndef FAULT_PLAN_H
#define FAULT_PLAN_H

#include "shard_engine.h"

typedef enum fault_kind {
    FAULT_CRASH,
    FAULT_SEGV,
    FAULT_EXIT,
    FAULT_HANG,
    FAULT_HANG_HARD,
    FAULT_SLOW,
    FAULT_HANG_CALL,
    FAULT_FAIL_CALL,
    FAULT_NAN,
    FAULT_OVERFLOW,
    FAULT_STDERR_FLOOD,
    FAULT_ALLOCATE,
    FAULT_LOAD_SLOW,
    FAULT_LOAD_FAIL,
    FAULT_LOAD_HANG,
    FAULT_LOAD_CRASH
} fault_kind;

enum { FAULT_PLAN_MAX = 16 };

typedef struct fault {
    fault_kind kind;
    uint32_t value; /* exit status, milliseconds or call; 0 for kinds without one */
    uint64_t step;  /* 0 for kinds that do not wait for a step */
} fault;

typedef struct fault_plan {
    uint32_t n_faults;
    fault faults[FAULT_PLAN_MAX];
} fault_plan;

/* Parses `text`; NULL and "" are the empty plan. SHARD_ERR_ARGUMENT names the bad word (fields:
 * word), and leaves `plan` empty. */
shard_status fault_plan_parse(const char *text, fault_plan *plan, shard_error *error);

/* The fault of that kind that is due in `step` (or in every step), or NULL. Outside a step, `step`
 * is 0. */
const fault *fault_plan_due(const fault_plan *plan, fault_kind kind, uint64_t step);

/* Whether a fault of that kind is due in the call of that number (from 1) of `step`. */
bool fault_plan_due_in_call(const fault_plan *plan, fault_kind kind, uint64_t step, uint32_t call);

#endif /* FAULT_PLAN_H */
