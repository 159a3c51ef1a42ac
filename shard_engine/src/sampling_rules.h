/* The rules of sampling, the same for every engine: defaults, allowed values, and a copy that
 * outlives the caller's. */
#ifndef SHARD_SAMPLING_RULES_H
#define SHARD_SAMPLING_RULES_H

#include "shard_engine.h"

/* Most entries of `logit_bias`, and most bytes of a grammar. */
enum { SAMPLING_MAX_LOGIT_BIAS = 4096, SAMPLING_MAX_GRAMMAR = 64 * 1024 };

/* The table's `default_sampling`. */
void sampling_rules_defaults(shard_sampling *sampling);

/* SHARD_ERR_ARGUMENT (fields: field, actual) for the first value that is out of its range; the
 * message gives the range. The ranges keep every intermediate value of llama.cpp's samplers inside
 * float32. `n_vocab` 0: nobody knows the vocabulary here, so any token id of at least 0 is taken.
 */
shard_status sampling_rules_check(const shard_sampling *sampling, uint32_t n_vocab,
                                  shard_error *error);

/* Copies all that is pointed to; NULL stands for the defaults, an empty grammar for none. After
 * SHARD_ERR_MEMORY there is nothing to free. */
shard_status sampling_rules_copy(const shard_sampling *sampling, shard_sampling *out,
                                 shard_error *error);
void sampling_rules_free(shard_sampling *copy);

/* True where penalties change any logit. */
bool sampling_rules_has_penalties(const shard_sampling *sampling);

/* SHARD_ERR_ARGUMENT where one of the rows [first, end) has no known token (-1). */
shard_status sampling_rules_check_history(const int32_t *tokens, uint32_t first, uint32_t end,
                                          shard_error *error);

#endif /* SHARD_SAMPLING_RULES_H */
