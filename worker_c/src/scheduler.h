/*
 * What the execution thread does next: a pure function of the requests that wait.
 *
 * - A session's requests are taken in the order in which they came: a request is *ready* when no
 *   earlier one names its session.
 * - One turn is either one other request (open, trim, tokenize, ...) or one step that computes rows
 *   of many forwards. The oldest ready request decides; but after a step, a younger other request
 *   goes first, so that a long prefill does not hold up cheap requests and cheap requests do not
 *   stop computing.
 * - A step takes the next piece of a forward whole or not at all, so that the shape in which a
 *   session's rows are computed does not depend on what others ask for.
 * - Into a step go, in order of arrival and as long as they fit:
 *     1. single rows (decode) that the last step left out,
 *     2. one longer piece (prefill): the one that was left out of most steps, if any was,
 *     3. the other single rows,
 *     4. the other longer pieces.
 * - Where no longer piece is ready, a step takes the oldest `single_rows` single rows at most, and
 *   the others do not count as ready. Sessions that were all in one step would go through the
 *   stages of a route together, and only one stage would compute at a time. A longer piece gives
 *   all stages enough to do, and rows that have waited for one go all at once.
 *
 * Nobody starves, as long as a step has room for a single row of each session and for any one
 * piece. Where pieces are ready, a single row is left out only for a piece under 2, and goes first
 * in the next step, where all of its kind fit: it waits for one step at most. In a step after one
 * that left no single row out, the piece under 2 goes first and so fits; in any other, nothing
 * displaces a single row, for pieces come last there: so it goes within two steps. What waits
 * longer gets ahead of what waits less long, so that every piece gets there. Where none is ready, a
 * step takes the oldest single rows, so that one waits for no more steps than there are older ones.
 */
#ifndef WORKER_SCHEDULER_H
#define WORKER_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

/* Requests that one call looks at. */
enum { SCHEDULE_WINDOW = 512 };

/* A request that waits, in order of arrival. */
struct schedule_item {
    uint64_t session;  /* 0: none */
    uint32_t rows;     /* of the next piece of a forward, at most `max_batch`; 0: no forward */
    uint32_t left_out; /* steps in a row that left this ready forward out; schedule_next counts */
};

/* What one step takes at most. */
struct schedule_room {
    uint32_t rows;
    uint32_t single_rows; /* of these, single ones where no longer piece is ready; at least 1 */
};

/* Whether nothing but single rows waits, and of fewer sessions than are expected. */
bool schedule_may_grow(const struct schedule_item *items, uint32_t n_items, uint32_t n_expected);

/* Fills `picks` with indices of items, at most `n_items`, and returns how many: the pieces of one
 * step, or one item that is no forward. 0 only when `n_items` is 0, which SCHEDULE_WINDOW bounds.
 */
uint32_t schedule_next(struct schedule_item *items, uint32_t n_items,
                       const struct schedule_room *room, bool last_was_step, uint32_t *picks);

#endif /* WORKER_SCHEDULER_H */
