/* One forward: how many rows it has, what it needs before it can be computed, and its pieces. */
#ifndef WORKER_FORWARD_H
#define WORKER_FORWARD_H

#include "execution.h"

/* Rows that come in. Hidden rows are counted with `n_embd` values each; 0 when they do not divide.
 */
uint32_t forward_rows(const struct forward_request *forward, uint32_t n_embd);

/* Checks all that can be checked before anything is computed and, the first time, gets what the
 * forward needs; `rows` are to be computed now. False with the failure set; the session is
 * untouched then. */
bool forward_prepare(const struct execution *execution, struct job *job, uint32_t rows,
                     struct failure *failure);

/* The next `rows` rows as an entry of a step. */
void forward_fill_entry(const struct job *job, uint32_t rows, const shard_description *description,
                        shard_step_entry *entry);

/* Keeps the rows of one piece where the answer wants those of all. */
void forward_keep_values(const shard_description *description, struct forward_work *work,
                         const shard_step_entry *entry);

#endif /* WORKER_FORWARD_H */
