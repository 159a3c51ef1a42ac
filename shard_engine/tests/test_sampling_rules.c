/* Sampling settings: the defaults are right, every bound holds on both sides, and a copy owns all
 * it points to. */
#include "check.h"
#include "sampling_rules.h"

#include <math.h>
#include <string.h>

static shard_sampling defaults(void) {
    shard_sampling sampling;
    sampling_rules_defaults(&sampling);
    return sampling;
}

static void check_allowed(const shard_sampling *sampling) {
    shard_error error;
    CHECK_EQUAL(sampling_rules_check(sampling, 100, &error), SHARD_OK);
}

static void check_refused(const shard_sampling *sampling, uint32_t n_vocab, const char *field,
                          const char *actual) {
    shard_error error;
    CHECK_EQUAL(sampling_rules_check(sampling, n_vocab, &error), SHARD_ERR_ARGUMENT);
    CHECK_EQUAL(error.n_fields, 2);
    CHECK(strcmp(error.fields[0].name, "field") == 0 && strcmp(error.fields[0].value, field) == 0);
    CHECK(strcmp(error.fields[1].name, "actual") == 0);
    CHECK(strcmp(error.fields[1].value, actual) == 0);
}

static void test_defaults_are_greedy_and_allowed(void) {
    const shard_sampling sampling = defaults();
    check_allowed(&sampling);
    CHECK(sampling.temperature == 0.0f && sampling.top_k == 0 && sampling.top_p == 1.0f);
    CHECK(!sampling_rules_has_penalties(&sampling));
}

/* One float field: what is allowed, and what is not. */
static void check_float(size_t offset, const char *field, float least, float most, float below,
                        float above) {
    shard_sampling sampling = defaults();
    float *value = (float *)(void *)((char *)&sampling + offset);
    char actual[32];
    const float allowed[2] = {least, most};
    const float refused[3] = {below, above, NAN};
    for (int i = 0; i < 2; i++) {
        *value = allowed[i];
        check_allowed(&sampling);
    }
    for (int i = 0; i < 3; i++) {
        *value = refused[i];
        snprintf(actual, sizeof(actual), "%.9g", (double)refused[i]);
        check_refused(&sampling, 100, field, actual);
    }
}

#define FLOAT(field, least, most, below, above)                                                    \
    check_float(offsetof(shard_sampling, field), "sampling." #field, least, most, below, above)

static void test_floats_have_bounds(void) {
    FLOAT(temperature, 0.0f, 1e6f, 1e-7f, INFINITY);
    FLOAT(temperature, 1e-6f, 1e6f, -1.0f, 2e6f);
    FLOAT(top_p, 1e-6f, 1.0f, 0.0f, 1.5f);
    FLOAT(min_p, 0.0f, 1.0f, -0.5f, 1.5f);
    FLOAT(typical_p, 1e-6f, 1.0f, 0.0f, 1.5f);
    FLOAT(repeat_penalty, 1e-3f, 1e3f, 0.0f, 1e4f);
    FLOAT(presence_penalty, -1e3f, 1e3f, -INFINITY, 1e4f);
    FLOAT(frequency_penalty, -1e3f, 1e3f, -1e4f, INFINITY);
}

static void test_counts_have_bounds(void) {
    shard_sampling sampling = defaults();
    sampling.top_k = -1;
    check_refused(&sampling, 100, "sampling.top_k", "-1");
    sampling.top_k = INT32_MAX;
    sampling.repeat_last_n = -2;
    check_refused(&sampling, 100, "sampling.repeat_last_n", "-2");
    sampling.repeat_last_n = -1;
    sampling.top_logprobs = SHARD_MAX_TOP_LOGPROBS + 1;
    check_refused(&sampling, 100, "sampling.top_logprobs", "65");
    sampling.top_logprobs = SHARD_MAX_TOP_LOGPROBS;
    check_allowed(&sampling);
}

static void check_bias(int32_t token, float value, uint32_t n_vocab, const char *actual) {
    const shard_logit_bias bias = {token, value};
    shard_sampling sampling = defaults();
    shard_error error;
    sampling.logit_bias = &bias;
    sampling.n_logit_bias = 1;
    if (actual != NULL) {
        check_refused(&sampling, n_vocab, "sampling.logit_bias", actual);
    } else {
        CHECK_EQUAL(sampling_rules_check(&sampling, n_vocab, &error), SHARD_OK);
    }
}

static void test_biases_have_bounds(void) {
    check_bias(99, 1e6f, 100, NULL);
    check_bias(0, -INFINITY, 100, NULL);
    check_bias(100, 0.0f, 100, "100");
    check_bias(-1, 0.0f, 100, "-1");
    check_bias(INT32_MAX, 0.0f, 0, NULL); /* nobody knows the vocabulary */
    check_bias(-1, 0.0f, 0, "-1");
    check_bias(1, INFINITY, 100, "inf");
    check_bias(1, 2e6f, 100, "2000000");
    shard_sampling sampling = defaults();
    sampling.n_logit_bias = SAMPLING_MAX_LOGIT_BIAS + 1;
    check_refused(&sampling, 100, "sampling.logit_bias", "4097");
}

static void test_a_grammar_has_a_longest(void) {
    static char grammar[SAMPLING_MAX_GRAMMAR + 2];
    shard_sampling sampling = defaults();
    sampling.grammar = grammar;
    memset(grammar, '#', SAMPLING_MAX_GRAMMAR);
    check_allowed(&sampling);
    grammar[SAMPLING_MAX_GRAMMAR] = '#';
    check_refused(&sampling, 100, "sampling.grammar", "more than 65536 bytes");
}

static void test_a_copy_owns_what_it_points_to(void) {
    shard_logit_bias biases[2] = {{1, 2.0f}, {3, 4.0f}};
    char grammar[] = "root ::= \"a\"";
    shard_sampling sampling = defaults();
    shard_sampling copy;
    shard_error error;
    sampling.logit_bias = biases;
    sampling.n_logit_bias = 2;
    sampling.grammar = grammar;
    CHECK_EQUAL(sampling_rules_copy(&sampling, &copy, &error), SHARD_OK);
    biases[1].bias = 0.0f;
    grammar[0] = 'x';
    CHECK(copy.logit_bias[1].token == 3 && copy.logit_bias[1].bias == 4.0f);
    CHECK(strcmp(copy.grammar, "root ::= \"a\"") == 0);
    sampling_rules_free(&copy);
    CHECK(copy.grammar == NULL && copy.logit_bias == NULL);
}

static void test_nothing_is_copied_as_the_defaults(void) {
    shard_sampling sampling = defaults();
    shard_sampling copy;
    shard_error error;
    sampling.grammar = "";
    CHECK_EQUAL(sampling_rules_copy(&sampling, &copy, &error), SHARD_OK);
    CHECK(copy.grammar == NULL && copy.logit_bias == NULL);
    sampling_rules_free(&copy);
    CHECK_EQUAL(sampling_rules_copy(NULL, &copy, &error), SHARD_OK);
    CHECK(copy.repeat_last_n == 64 && copy.grammar_start == UINT32_MAX);
    sampling_rules_free(&copy);
}

static void test_penalties_need_rows_and_an_effect(void) {
    shard_sampling sampling = defaults();
    sampling.repeat_penalty = 1.1f;
    CHECK(sampling_rules_has_penalties(&sampling));
    sampling.repeat_last_n = 0;
    CHECK(!sampling_rules_has_penalties(&sampling));
    sampling = defaults();
    sampling.frequency_penalty = -0.5f;
    CHECK(sampling_rules_has_penalties(&sampling));
}

static void test_unknown_rows_are_found_in_the_window_alone(void) {
    const int32_t tokens[5] = {-1, 4, -1, 7, 0};
    shard_error error;
    CHECK_EQUAL(sampling_rules_check_history(tokens, 3, 5, &error), SHARD_OK);
    CHECK_EQUAL(sampling_rules_check_history(tokens, 1, 2, &error), SHARD_OK);
    CHECK_EQUAL(sampling_rules_check_history(tokens, 1, 5, &error), SHARD_ERR_ARGUMENT);
    CHECK(strcmp(error.fields[0].name, "row") == 0 && strcmp(error.fields[0].value, "2") == 0);
}

int main(void) {
    test_defaults_are_greedy_and_allowed();
    test_floats_have_bounds();
    test_counts_have_bounds();
    test_biases_have_bounds();
    test_a_grammar_has_a_longest();
    test_a_copy_owns_what_it_points_to();
    test_nothing_is_copied_as_the_defaults();
    test_penalties_need_rows_and_an_effect();
    test_unknown_rows_are_found_in_the_window_alone();
    return 0;
}
