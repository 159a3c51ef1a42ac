/* Log-probabilities by the softmax over a whole row of finite logits: exponentials in float32,
 * their sum in double precision, in an order that depends on nothing but the row's length. */
#ifndef SHARD_LOGPROBS_H
#define SHARD_LOGPROBS_H

#include "shard_engine.h"

typedef struct logprob_scale {
    uint32_t best;    /* the most likely token, the lowest id among equals */
    float best_logit; /* its logit */
    double log_sum;   /* logarithm of the sum of exp(logit - best_logit) */
} logprob_scale;

/* `n_vocab` is at least 1. */
logprob_scale logprobs_scale(const float *logits, uint32_t n_vocab);

/* Natural logarithm of the probability of a token with that logit. */
float logprobs_of(const logprob_scale *scale, float logit);

/* The `n` most likely tokens, by logit descending and id ascending; without text. Returns how many
 * there are, which is less than `n` only for a smaller vocabulary. */
uint32_t logprobs_top(const float *logits, uint32_t n_vocab, const logprob_scale *scale, uint32_t n,
                      shard_candidate *out);

#endif /* SHARD_LOGPROBS_H */
