/* Log-probabilities of a row of logits: the best token, the softmax, and the order of the best. */
#include "check.h"
#include "logprobs.h"

#include <math.h>

static void check_near(float actual, double expected) {
    CHECK(fabs((double)actual - expected) < 1e-6);
}

static void test_probabilities_are_those_of_the_softmax(void) {
    const float logits[4] = {1.0f, 3.0f, -2.0f, 0.5f};
    const double sum = exp(1.0) + exp(3.0) + exp(-2.0) + exp(0.5);
    const logprob_scale scale = logprobs_scale(logits, 4);
    CHECK_EQUAL(scale.best, 1);
    for (int i = 0; i < 4; i++) {
        check_near(logprobs_of(&scale, logits[i]), logits[i] - log(sum));
    }
}

/* Of every length around the groups in which rows are looked through. */
static void test_rows_of_any_length(void) {
    float logits[4099];
    uint32_t state = 1;
    for (uint32_t i = 0; i < 4099; i++) {
        state = state * 1664525u + 1013904223u;
        logits[i] = (float)(state >> 8) / (float)(1 << 18) - 40.0f;
    }
    for (uint32_t n = 1; n <= 4099; n += n < 70 ? 1 : 1000) {
        uint32_t best = 0;
        double sum = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            best = logits[i] > logits[best] ? i : best;
        }
        for (uint32_t i = 0; i < n; i++) {
            sum += exp((double)logits[i] - (double)logits[best]);
        }
        const logprob_scale scale = logprobs_scale(logits, n);
        CHECK_EQUAL(scale.best, best);
        CHECK(fabs(scale.log_sum - log(sum)) < 1e-6);
    }
}

static void test_best_is_the_lowest_id_among_equals(void) {
    const float logits[5] = {-1.0f, 2.0f, 2.0f, 0.0f, 2.0f};
    CHECK_EQUAL(logprobs_scale(logits, 5).best, 1);
}

static void test_a_certain_token_has_probability_one(void) {
    const float alone[1] = {-1e30f};
    const float certain[3] = {0.0f, 1e30f, -1e30f};
    const logprob_scale scale = logprobs_scale(alone, 1);
    const logprob_scale other = logprobs_scale(certain, 3);
    CHECK(logprobs_of(&scale, alone[0]) == 0.0f);
    CHECK(logprobs_of(&other, certain[1]) == 0.0f);
}

static void check_top(const float *logits, uint32_t n_vocab, uint32_t n, const int32_t *expected,
                      uint32_t n_expected) {
    const logprob_scale scale = logprobs_scale(logits, n_vocab);
    shard_candidate top[8];
    CHECK_EQUAL(logprobs_top(logits, n_vocab, &scale, n, top), n_expected);
    for (uint32_t i = 0; i < n_expected; i++) {
        CHECK_EQUAL(top[i].token, expected[i]);
        CHECK(top[i].logprob == logprobs_of(&scale, logits[expected[i]]));
        CHECK(top[i].text == NULL && top[i].n_text_bytes == 0);
    }
}

static void test_top_is_by_logit_and_then_by_id(void) {
    const float logits[7] = {1.0f, 5.0f, 1.0f, 5.0f, 7.0f, 1.0f, 0.0f};
    const int32_t order[7] = {4, 1, 3, 0, 2, 5, 6};
    for (uint32_t n = 0; n <= 7; n++) {
        check_top(logits, 7, n, order, n);
    }
    check_top(logits, 7, 8, order, 7);
}

int main(void) {
    test_probabilities_are_those_of_the_softmax();
    test_rows_of_any_length();
    test_best_is_the_lowest_id_among_equals();
    test_a_certain_token_has_probability_one();
    test_top_is_by_logit_and_then_by_id();
    return 0;
}
