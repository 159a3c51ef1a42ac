/* One forward: how many rows it has, what it needs before it can be computed, and its pieces. */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include "execution.h"

/* Rows of the next piece: the loaded recipe's `prefill_chunk`, or what is left where that is less;
 * at least 1. It depends on the forward alone, so that a row is computed in the same company
 * whatever else is asked for. */
uint32_t forward_piece_rows(const shard_description *description, const struct job *job);

/* The dtype of the values that an output gives back. */
const char *forward_dtype(const shard_description *description, shard_output output);

/* Checks all that can be checked before anything is computed and, the first time, gets what the
 * forward needs; `rows` are to be computed now. False with the failure set; the session is
 * untouched then. */
bool forward_prepare(struct execution *execution, struct job *job, uint32_t rows,
                     struct failure *failure);

/* The next `rows` rows as an entry of a step. */
void forward_fill_entry(const shard_description *description, const struct job *job, uint32_t rows,
                        shard_step_entry *entry);

/* Rows that were computed took the KV cells that were kept for them. */
void forward_keep_promise(struct execution *execution, struct forward_work *work, uint32_t rows);

/* Keeps the rows of one piece where the answer wants those of all. */
void forward_keep_values(const shard_description *description, struct forward_work *work,
                         const shard_step_entry *entry);

#endif /* WORKER_FORWARD_H */
