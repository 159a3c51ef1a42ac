/*
 * The execution thread: it owns the engine and every call on it. It takes one turn after another,
 * each chosen by the scheduler, until the worker stops; then it resolves what is left and closes
 * the engine.
 */
#ifndef WORKER_EXECUTION_H
#define WORKER_EXECUTION_H

#include "job.h"
#include "replies.h"
#include "scheduler.h"
#include "session_table.h"
#include "shard_engine.h"
#include "state.h"
#include "wake.h"

#include <stdbool.h>
#include <stdint.h>

/* The rows of one forward that a step computes. */
struct piece {
    struct job *job;
    uint32_t rows;
};

struct execution {
    struct state *state;
    struct replies *replies;
    const struct wake *wake; /* rung when the thread has finished */
    const shard_engine_api *api;
    const char *fault_plan; /* NULL: none */
    int compute_nice;       /* see process_give_way */

    shard_engine *engine; /* NULL: nothing is loaded */
    shard_description description;
    uint32_t n_stages; /* of the route, as the load says it; 0: it does not */
    struct session_table sessions;
    shard_step_entry *entries; /* one for each session */
    struct piece *pieces;      /* likewise */
    uint32_t cells_promised;   /* to rows of forwards that were let in and are not computed yet */

    /* Jobs that one turn looks at; later ones wait for the next. */
    struct job *window[SCHEDULE_WINDOW];
    struct schedule_item items[SCHEDULE_WINDOW];
    uint32_t picks[SCHEDULE_WINDOW]; /* indices of the window */
    bool last_was_step;
    uint64_t decode_step_us; /* of the last step of nothing but single rows */

    struct bye_answer released; /* by the end of the thread */
};

void execution_init(struct execution *execution, struct state *state, struct replies *replies,
                    const struct wake *wake, const char *fault_plan);

/* The thread's function; `argument` is the execution. */
void *execution_run(void *argument);

#endif /* WORKER_EXECUTION_H */
