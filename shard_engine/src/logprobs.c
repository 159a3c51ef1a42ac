#include "logprobs.h"

#include <math.h>

logprob_scale logprobs_scale(const float *logits, uint32_t n_vocab) {
    logprob_scale scale = {.best = 0};
    double sum = 0.0;
    for (uint32_t i = 1; i < n_vocab; i++) {
        scale.best = logits[i] > logits[scale.best] ? i : scale.best;
    }
    scale.best_logit = logits[scale.best];
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += (double)expf(logits[i] - scale.best_logit);
    }
    scale.log_sum = log(sum);
    return scale;
}

float logprobs_of(const logprob_scale *scale, float logit) {
    return (float)((double)logit - (double)scale->best_logit - scale->log_sum);
}

/* Puts a token among the `last` sorted ones before it; what lies at `last` is given up. */
static void insert(shard_candidate *out, uint32_t last, const float *logits, uint32_t token) {
    uint32_t at = last;
    for (; at > 0 && logits[out[at - 1].token] < logits[token]; at--) {
        out[at] = out[at - 1];
    }
    out[at] = (shard_candidate){.token = (int32_t)token};
}

uint32_t logprobs_top(const float *logits, uint32_t n_vocab, const logprob_scale *scale, uint32_t n,
                      shard_candidate *out) {
    uint32_t count = 0;
    for (uint32_t token = 0; token < n_vocab && n > 0; token++) {
        if (count < n) {
            insert(out, count++, logits, token);
        } else if (logits[token] > logits[out[n - 1].token]) {
            insert(out, n - 1, logits, token);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        out[i].logprob = logprobs_of(scale, logits[out[i].token]);
    }
    return count;
}
