/*
 * What the execution thread does next: a pure function of the requests that wait.
 *
 * - A session's requests are taken in the order in which they came: a request is *ready* when no
 *   earlier one names its session.
 * - One turn is either one other request (open, trim, tokenize, ...) or one step that computes rows
 * of many forwards. The oldest ready request decides; but after a step, a younger other request
 * goes first, so that a long prefill does not hold up cheap requests and cheap requests do not stop
 *   computing.
 * - Into a step go forwards with one row left (decode), then longer ones (prefill) with as many
 * rows as the batch still takes, each in order of arrival. A ready forward that was passed over
 *   SCHEDULE_PATIENCE times goes before all others, so that none starves.
 */
#ifndef WORKER_SCHEDULER_H
#define WORKER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

enum { SCHEDULE_PATIENCE = 8 };

/* A request that waits, in order of arrival. */
struct schedule_item {
    uint64_t session;     /* 0: none */
    uint32_t rows_left;   /* rows of a forward that are still to be computed; 0: no forward */
    uint32_t passed_over; /* steps that left this ready forward out; kept up by schedule_next */
};

struct schedule_pick {
    uint32_t index; /* of the item */
    uint32_t rows;  /* to compute now; 0: the item is no forward, and the only pick */
};

/* Fills at most `n_items` picks and returns how many; 0 only when `n_items` is 0. `max_batch` is at
 * least 1. */
uint32_t schedule_next(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                       bool last_was_step, struct schedule_pick *picks);

#endif /* WORKER_SCHEDULER_H */
