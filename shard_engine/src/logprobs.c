#include "logprobs.h"

#include <math.h>
#include <string.h>

/* Rows go through in groups of LANES, each lane with a sum of its own: the compiler makes vector
 * instructions of that, of whatever width, and the order of the sums, and so every bit, stays the
 * same. Scalar calls of expf took 3 % of a decode step of a small model. */
enum { LANES = 16 };

/* The largest value; a row of fewer than LANES has -INFINITY in the rest. */
static float largest(const float *logits, uint32_t n_vocab) {
    float lanes[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        lanes[lane] = -INFINITY;
    }
    uint32_t i = 0;
    for (; i + LANES <= n_vocab; i += LANES) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
        }
    }
    float best = -INFINITY;
    for (; i < n_vocab; i++) {
        best = logits[i] > best ? logits[i] : best;
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        best = lanes[lane] > best ? lanes[lane] : best;
    }
    return best;
}

/* What lies as far below the largest logit as this, or farther, adds nothing to the sum. */
static const float LEAST = -87.0f;

/* values[lane] = exp(values[lane]) for values in [LEAST, 0], with an error of less than 2 ulp: 2^n
 * e^r with n = round(x / ln 2), in the way of Cody and Waite (Software Manual for the Elementary
 * Functions, 1980), and the Taylor polynomial of e^r. */
static void exponentials(float values[LANES]) {
    const float shifter = 12582912.0f; /* 1.5 * 2^23, which rounds what it is added to */
    int32_t exponents[LANES];
    float scales[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const float x = values[lane];
        const float n = (x * 1.44269504f + shifter) - shifter;
        const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
        float p = 1.0f / 5040.0f;
        p = p * r + 1.0f / 720.0f;
        p = p * r + 1.0f / 120.0f;
        p = p * r + 1.0f / 24.0f;
        p = p * r + 1.0f / 6.0f;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        values[lane] = p * r + 1.0f;
        exponents[lane] = ((int32_t)n + 127) << 23;
    }
    memcpy(scales, exponents, sizeof(scales));
    for (uint32_t lane = 0; lane < LANES; lane++) {
        values[lane] *= scales[lane];
    }
}

static void add_group(double sums[LANES], const float *logits, float best) {
    float values[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const float x = logits[lane] - best;
        values[lane] = x > LEAST ? x : LEAST;
    }
    exponentials(values);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        sums[lane] += (double)values[lane];
    }
}

static double sum_of_exponentials(const float *logits, uint32_t n_vocab, float best) {
    double sums[LANES] = {0};
    uint32_t i = 0;
    for (; i + LANES <= n_vocab; i += LANES) {
        add_group(sums, logits + i, best);
    }
    float rest[LANES];
    for (uint32_t lane = 0; lane < LANES; lane++) {
        rest[lane] = i + lane < n_vocab ? logits[i + lane] : -INFINITY;
    }
    add_group(sums, rest, best);
    double sum = 0.0;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    return sum;
}

logprob_scale logprobs_scale(const float *logits, uint32_t n_vocab) {
    logprob_scale scale = {.best_logit = largest(logits, n_vocab)};
    while (logits[scale.best] != scale.best_logit) {
        scale.best++;
    }
    scale.log_sum = log(sum_of_exponentials(logits, n_vocab, scale.best_logit));
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
