/*
 * How the fake engine draws a token. The steps are those of shard_engine.h, in doubles, and each is
 * said here so that a few lines of another language repeat it.
 *
 *   bias         logit += bias; a token with -infinity is out
 *   penalties    of a token that is n times among the last repeat_last_n rows (those whose logits
 *                are drawn from included): logit is divided by repeat_penalty where it is above 0
 *                and multiplied by it elsewhere, then less n * frequency_penalty, then less
 *                presence_penalty
 *   order        by logit, the largest first; among equals by id, the lowest first
 *   greedy       temperature 0 takes the first
 *   top-k        keeps the first top_k
 *   typical      with H the entropy of what is left, orders by |-ln p - H| (among equals as
 * before), keeps tokens until their probabilities sum to more than typical_p, and puts these in
 * their order again top-p        keeps tokens until their probabilities sum to top_p or more min-p
 * keeps tokens with p >= min_p * the first one's draw         weights exp((logit - first logit) /
 * temperature); takes the first token with which the sum of weights exceeds all of it *
 * (shard_draw_seed(seed, length) + 1/2) / 2^32
 *
 * Probabilities are exp(logit - first logit), divided by their sum over what is left; sums run from
 * the first token on. A filter that is off does nothing. Log-probabilities are of the logits as
 * computed. There are no grammars here.
 */
#ifndef FAKE_SAMPLING_H
#define FAKE_SAMPLING_H

#include "fake_vocabulary.h"
#include "shard_engine.h"

/* One token on its way through the steps. */
typedef struct fake_choice {
    int32_t token;
    uint32_t n_seen; /* among the rows that penalties look at */
    double logit;
    double weight;   /* its probability before it is divided by the sum */
    double surprise; /* what the typical filter orders by */
} fake_choice;

/* What a session draws with, and what its last draw gave. */
typedef struct fake_sampler {
    shard_sampling sampling; /* owned */
    char text[FAKE_TOKEN_TEXT_SIZE];
    shard_candidate top[SHARD_MAX_TOP_LOGPROBS];
    char top_texts[SHARD_MAX_TOP_LOGPROBS][FAKE_TOKEN_TEXT_SIZE];
} fake_sampler;

/* A draw's input besides its session's sampling. */
typedef struct fake_draw_input {
    const float *logits; /* [n_vocab] */
    uint32_t n_vocab;
    uint32_t length;       /* of the session, with the row whose logits these are */
    uint32_t first_seen;   /* the first row that penalties look at; `length` where they do not */
    const int32_t *tokens; /* of the rows [first_seen, length), by row */
    fake_choice *choices;  /* [n_vocab], to work in */
} fake_draw_input;

/* SHARD_ERR_UNSUPPORTED for what only other engines have: a grammar. */
shard_status fake_sampling_check(const shard_sampling *sampling, shard_error *error);

/* The first of a session's rows that penalties look at; `length` where they do not. */
uint32_t fake_sampling_first_seen(const shard_sampling *sampling, uint32_t length);

/* Draws a token and fills the results of `entry` that belong to it, which are borrowed from
 * `sampler`. SHARD_ERR_ARGUMENT, which is in the entry then, where a token that penalties look at
 * is not known, or the bias leaves none. */
shard_status fake_sampler_draw(fake_sampler *sampler, const fake_draw_input *input,
                               shard_step_entry *entry);

#endif /* FAKE_SAMPLING_H */
