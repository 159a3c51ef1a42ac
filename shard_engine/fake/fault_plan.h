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
 *     slow:MS         spend MS milliseconds more in every step; progress rises, cancel is honoured
 *     nan@N           put a NaN into the last row that every entry of step N makes
 *     stderr-flood@N  write 4 MiB of lines to stderr in step N, then go on
 *     allocate@N      allocate memory in step N until the process is killed; where the allocation
 * is refused instead, the step fails with SHARD_ERR_MEMORY load-slow:MS    spend MS milliseconds
 * more in `open`; progress is reported, cancel is honoured load-fail       fail `open` with
 * SHARD_ERR_BACKEND load-hang       never return from `open`, without progress load-crash abort()
 * in `open`
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
    FAULT_NAN,
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
    uint32_t value; /* exit status or milliseconds; 0 for kinds without one */
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

#endif /* FAULT_PLAN_H */
