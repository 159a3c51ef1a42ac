#include "sampling_rules.h"

#include "error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void sampling_rules_defaults(shard_sampling *sampling) {
    *sampling = (shard_sampling){
        .top_p = 1.0f,
        .typical_p = 1.0f,
        .repeat_penalty = 1.0f,
        .repeat_last_n = 64,
        .grammar_start = UINT32_MAX,
    };
}

/* ---- single checks ---- */

static shard_status bad_value(const char *field, double actual, const char *allowed,
                              shard_error *error) {
    shard_fail(error, SHARD_ERR_ARGUMENT, "%s is %.9g; choose %s", field, actual, allowed);
    shard_error_add(error, "field", "%s", field);
    shard_error_add(error, "actual", "%.9g", actual);
    return error->status;
}

typedef struct number_rule {
    const char *field;
    float actual;
    float least;
    float most;
    bool may_be_zero; /* though `least` is above it */
    const char *allowed;
} number_rule;

/* Written so that NaN, which compares false, is refused. */
static shard_status check_number(const number_rule *rule, shard_error *error) {
    const bool is_in_range = rule->actual >= rule->least && rule->actual <= rule->most;
    return is_in_range || (rule->may_be_zero && rule->actual == 0.0f)
               ? SHARD_OK
               : bad_value(rule->field, (double)rule->actual, rule->allowed, error);
}

static shard_status check_numbers(const shard_sampling *sampling, shard_error *error) {
    const number_rule rules[] = {
        {"sampling.temperature", sampling->temperature, 1e-6f, 1e6f, true,
         "1e-6 to 1e6, or 0 for the most likely token"},
        {"sampling.top_p", sampling->top_p, 1e-6f, 1.0f, false, "1e-6 to 1, where 1 is off"},
        {"sampling.min_p", sampling->min_p, 0.0f, 1.0f, false, "0 to 1, where 0 is off"},
        {"sampling.typical_p", sampling->typical_p, 1e-6f, 1.0f, false,
         "1e-6 to 1, where 1 is off"},
        {"sampling.repeat_penalty", sampling->repeat_penalty, 1e-3f, 1e3f, false,
         "0.001 to 1000, where 1 is off"},
        {"sampling.presence_penalty", sampling->presence_penalty, -1e3f, 1e3f, false,
         "-1000 to 1000, where 0 is off"},
        {"sampling.frequency_penalty", sampling->frequency_penalty, -1e3f, 1e3f, false,
         "-1000 to 1000, where 0 is off"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (check_number(&rules[i], error) != SHARD_OK) {
            return error->status;
        }
    }
    return SHARD_OK;
}

static shard_status check_counts(const shard_sampling *sampling, shard_error *error) {
    if (sampling->top_k < 0) {
        return bad_value("sampling.top_k", sampling->top_k, "0 or more, where 0 is off", error);
    }
    if (sampling->repeat_last_n < -1) {
        return bad_value("sampling.repeat_last_n", sampling->repeat_last_n,
                         "0 for none, a number of rows, or -1 for all", error);
    }
    if (sampling->top_logprobs > SHARD_MAX_TOP_LOGPROBS) {
        return bad_value("sampling.top_logprobs", sampling->top_logprobs, "0 to 64", error);
    }
    return SHARD_OK;
}
_Static_assert(SHARD_MAX_TOP_LOGPROBS == 64, "the message above says so");

static shard_status check_bias(const shard_logit_bias *bias, uint32_t n_vocab, shard_error *error) {
    if (bias->token < 0 || (n_vocab != 0 && (uint32_t)bias->token >= n_vocab)) {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "sampling.logit_bias has token %" PRId32 "; choose 0 to %" PRIu32, bias->token,
                   n_vocab != 0 ? n_vocab - 1 : INT32_MAX);
        shard_error_add(error, "field", "sampling.logit_bias");
        shard_error_add(error, "actual", "%" PRId32, bias->token);
        return error->status;
    }
    /* llama.cpp sorts logits into buckets numbered by an int, which larger ones would overflow. */
    if (bias->bias != -INFINITY && !(bias->bias >= -1e6f && bias->bias <= 1e6f)) {
        return bad_value("sampling.logit_bias", (double)bias->bias,
                         "-1e6 to 1e6, or minus infinity to forbid a token", error);
    }
    return SHARD_OK;
}

static shard_status check_biases(const shard_sampling *sampling, uint32_t n_vocab,
                                 shard_error *error) {
    if (sampling->n_logit_bias > SAMPLING_MAX_LOGIT_BIAS) {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "sampling.logit_bias has %" PRIu32 " entries; give at most %d",
                   sampling->n_logit_bias, SAMPLING_MAX_LOGIT_BIAS);
        shard_error_add(error, "field", "sampling.logit_bias");
        shard_error_add(error, "actual", "%" PRIu32, sampling->n_logit_bias);
        return error->status;
    }
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++) {
        if (check_bias(&sampling->logit_bias[i], n_vocab, error) != SHARD_OK) {
            return error->status;
        }
    }
    return SHARD_OK;
}

static shard_status check_grammar(const char *grammar, shard_error *error) {
    const size_t bytes = grammar != NULL ? strnlen(grammar, SAMPLING_MAX_GRAMMAR + 1) : 0;
    if (bytes <= SAMPLING_MAX_GRAMMAR) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_ARGUMENT, "sampling.grammar is longer than %d bytes; shorten it",
               SAMPLING_MAX_GRAMMAR);
    shard_error_add(error, "field", "sampling.grammar");
    shard_error_add(error, "actual", "more than %d bytes", SAMPLING_MAX_GRAMMAR);
    return error->status;
}

shard_status sampling_rules_check(const shard_sampling *sampling, uint32_t n_vocab,
                                  shard_error *error) {
    if (check_numbers(sampling, error) != SHARD_OK || check_counts(sampling, error) != SHARD_OK ||
        check_biases(sampling, n_vocab, error) != SHARD_OK) {
        return error->status;
    }
    return check_grammar(sampling->grammar, error);
}

/* ---- the copy ---- */

static bool copy_biases(shard_sampling *out) {
    const size_t bytes = out->n_logit_bias * sizeof(shard_logit_bias);
    shard_logit_bias *copy = bytes > 0 ? malloc(bytes) : NULL;
    if (copy != NULL) {
        memcpy(copy, out->logit_bias, bytes);
    }
    out->logit_bias = copy;
    return bytes == 0 || copy != NULL;
}

static bool copy_grammar(shard_sampling *out) {
    const bool has_grammar = out->grammar != NULL && out->grammar[0] != '\0';
    out->grammar = has_grammar ? strdup(out->grammar) : NULL;
    return !has_grammar || out->grammar != NULL;
}

shard_status sampling_rules_copy(const shard_sampling *sampling, shard_sampling *out,
                                 shard_error *error) {
    if (sampling == NULL) {
        sampling_rules_defaults(out);
        return shard_ok(error);
    }
    *out = *sampling;
    const bool has_biases = copy_biases(out);
    const bool has_grammar = copy_grammar(out);
    if (!has_biases || !has_grammar) {
        sampling_rules_free(out);
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for the sampling of a session");
    }
    return shard_ok(error);
}

void sampling_rules_free(shard_sampling *copy) {
    free((void *)copy->logit_bias);
    free((void *)copy->grammar);
    *copy = (shard_sampling){0};
}

/* ---- history ---- */

bool sampling_rules_has_penalties(const shard_sampling *sampling) {
    return sampling->repeat_last_n != 0 &&
           (sampling->repeat_penalty != 1.0f || sampling->presence_penalty != 0.0f ||
            sampling->frequency_penalty != 0.0f);
}

shard_status sampling_rules_check_history(const int32_t *tokens, uint32_t first, uint32_t end,
                                          shard_error *error) {
    for (uint32_t row = first; row < end; row++) {
        if (tokens[row] < 0) {
            shard_fail(error, SHARD_ERR_ARGUMENT,
                       "row %" PRIu32 " came without its token, which penalties and grammars look "
                       "at: send the tokens with the hidden rows",
                       row);
            shard_error_add(error, "row", "%" PRIu32, row);
            return error->status;
        }
    }
    return shard_ok(error);
}
