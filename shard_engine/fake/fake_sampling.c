#include "fake_sampling.h"

#include "error.h"
#include "logprobs.h"
#include "sampling_rules.h"

#include <math.h>
#include <stdlib.h>

/* ---- the rules ---- */

shard_status fake_sampling_check(const shard_sampling *sampling, shard_error *error) {
    if (sampling->grammar == NULL || sampling->grammar[0] == '\0') {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_UNSUPPORTED,
               "the fake engine has no grammars; draw without one, or use the llama engine");
    shard_error_add(error, "field", "sampling.grammar");
    return error->status;
}

uint32_t fake_sampling_first_seen(const shard_sampling *sampling, uint32_t length) {
    if (!sampling_rules_has_penalties(sampling)) {
        return length;
    }
    const bool all = sampling->repeat_last_n < 0 || (uint32_t)sampling->repeat_last_n > length;
    return all ? 0 : length - (uint32_t)sampling->repeat_last_n;
}

/* ---- logits ---- */

static void start_choices(const fake_draw_input *input) {
    for (uint32_t i = 0; i < input->n_vocab; i++) {
        input->choices[i] = (fake_choice){.token = (int32_t)i, .logit = (double)input->logits[i]};
    }
}

static void add_bias(const shard_sampling *sampling, fake_choice *choices) {
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++) {
        choices[sampling->logit_bias[i].token].logit += (double)sampling->logit_bias[i].bias;
    }
}

static void count_seen(const fake_draw_input *input) {
    for (uint32_t row = input->first_seen; row < input->length; row++) {
        input->choices[input->tokens[row]].n_seen++;
    }
}

static void penalise(const shard_sampling *sampling, fake_choice *choices, uint32_t n_vocab) {
    for (uint32_t i = 0; i < n_vocab; i++) {
        fake_choice *choice = &choices[i];
        if (choice->n_seen == 0) {
            continue;
        }
        choice->logit = choice->logit > 0 ? choice->logit / (double)sampling->repeat_penalty
                                          : choice->logit * (double)sampling->repeat_penalty;
        choice->logit -= choice->n_seen * (double)sampling->frequency_penalty;
        choice->logit -= (double)sampling->presence_penalty;
    }
}

/* ---- order ---- */

static int by_logit(const void *left, const void *right) {
    const fake_choice *a = left, *b = right;
    if (a->logit != b->logit) {
        return a->logit > b->logit ? -1 : 1;
    }
    return a->token < b->token ? -1 : 1;
}

static int by_surprise(const void *left, const void *right) {
    const fake_choice *a = left, *b = right;
    if (a->surprise != b->surprise) {
        return a->surprise < b->surprise ? -1 : 1;
    }
    return by_logit(left, right);
}

static uint32_t sort_choices(fake_choice *choices, uint32_t n) {
    qsort(choices, n, sizeof(*choices), by_logit);
    while (n > 0 && choices[n - 1].logit == -INFINITY) {
        n--;
    }
    return n;
}

/* ---- filters: each leaves the first choices, and says how many ---- */

/* Weighs the choices and returns the sum. */
static double weigh(fake_choice *choices, uint32_t n, double temperature) {
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        choices[i].weight = exp((choices[i].logit - choices[0].logit) / temperature);
        sum += choices[i].weight;
    }
    return sum;
}

static uint32_t keep_top_k(uint32_t n, int32_t top_k) {
    return top_k > 0 && (uint32_t)top_k < n ? (uint32_t)top_k : n;
}

static double self_information(double probability) {
    return probability > 0 ? -log(probability) : INFINITY;
}

static uint32_t keep_typical(fake_choice *choices, uint32_t n, double typical_p) {
    const double all = weigh(choices, n, 1.0);
    double entropy = 0.0, sum = 0.0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = choices[i].weight / all;
        entropy += p > 0 ? p * self_information(p) : 0.0;
    }
    for (uint32_t i = 0; i < n; i++) {
        choices[i].surprise = fabs(self_information(choices[i].weight / all) - entropy);
    }
    qsort(choices, n, sizeof(*choices), by_surprise);
    while (kept < n && sum <= typical_p) {
        sum += choices[kept++].weight / all;
    }
    qsort(choices, kept, sizeof(*choices), by_logit);
    return kept;
}

static uint32_t keep_top_p(fake_choice *choices, uint32_t n, double top_p) {
    const double all = weigh(choices, n, 1.0);
    double sum = 0.0;
    uint32_t kept = 0;
    while (kept < n && sum < top_p) {
        sum += choices[kept++].weight / all;
    }
    return kept;
}

static uint32_t keep_min_p(fake_choice *choices, uint32_t n, double min_p) {
    weigh(choices, n, 1.0);
    uint32_t kept = 1;
    while (kept < n && choices[kept].weight >= min_p) {
        kept++;
    }
    return kept;
}

static uint32_t filter(const shard_sampling *sampling, fake_choice *choices, uint32_t n) {
    n = keep_top_k(n, sampling->top_k);
    if (sampling->typical_p < 1) {
        n = keep_typical(choices, n, (double)sampling->typical_p);
    }
    if (sampling->top_p < 1) {
        n = keep_top_p(choices, n, (double)sampling->top_p);
    }
    return sampling->min_p > 0 ? keep_min_p(choices, n, (double)sampling->min_p) : n;
}

/* ---- the draw ---- */

static int32_t draw(const shard_sampling *sampling, fake_choice *choices, uint32_t n,
                    uint32_t length) {
    const double all = weigh(choices, n, (double)sampling->temperature);
    const double limit = all * (((double)shard_draw_seed(sampling->seed, length) + 0.5) * 0x1p-32);
    double sum = choices[0].weight;
    uint32_t i = 0;
    while (sum <= limit && i + 1 < n) {
        sum += choices[++i].weight;
    }
    return choices[i].token;
}

static shard_status choose(const shard_sampling *sampling, const fake_draw_input *input,
                           int32_t *token, shard_error *error) {
    fake_choice *choices = input->choices;
    if (sampling_rules_check_history(input->tokens, input->first_seen, input->length, error) !=
        SHARD_OK) {
        return error->status;
    }
    start_choices(input);
    add_bias(sampling, choices);
    count_seen(input);
    penalise(sampling, choices, input->n_vocab);
    uint32_t n = sort_choices(choices, input->n_vocab);
    if (n == 0) {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "sampling.logit_bias bans every token; leave at least one to be drawn");
        shard_error_add(error, "field", "sampling.logit_bias");
        return error->status;
    }
    *token = choices[0].token;
    if (sampling->temperature > 0) {
        n = filter(sampling, choices, n);
        *token = draw(sampling, choices, n, input->length);
    }
    return SHARD_OK;
}

static bool is_plain_greedy(const shard_sampling *sampling, const fake_draw_input *input) {
    return sampling->temperature == 0 && sampling->n_logit_bias == 0 &&
           input->first_seen == input->length;
}

/* ---- results ---- */

static void put_top(fake_sampler *sampler, const fake_draw_input *input, const logprob_scale *scale,
                    shard_step_entry *entry) {
    entry->n_top = logprobs_top(input->logits, input->n_vocab, scale,
                                sampler->sampling.top_logprobs, sampler->top);
    entry->top = entry->n_top > 0 ? sampler->top : NULL;
    for (uint32_t i = 0; i < entry->n_top; i++) {
        shard_candidate *candidate = &sampler->top[i];
        candidate->n_text_bytes = fake_token_text(candidate->token, false, sampler->top_texts[i]);
        candidate->text = candidate->n_text_bytes > 0 ? sampler->top_texts[i] : NULL;
    }
}

shard_status fake_sampler_draw(fake_sampler *sampler, const fake_draw_input *input,
                               shard_step_entry *entry) {
    const shard_sampling *sampling = &sampler->sampling;
    const logprob_scale scale = logprobs_scale(input->logits, input->n_vocab);
    int32_t token = (int32_t)scale.best;
    if (!is_plain_greedy(sampling, input) &&
        choose(sampling, input, &token, &entry->error) != SHARD_OK) {
        return entry->error.status;
    }
    entry->token = token;
    entry->logprob = logprobs_of(&scale, input->logits[token]);
    entry->end_of_generation = token == FAKE_TOKEN_EOS;
    entry->n_text_bytes = fake_token_text(token, false, sampler->text);
    entry->text = entry->n_text_bytes > 0 ? sampler->text : NULL;
    put_top(sampler, input, &scale, entry);
    return SHARD_OK;
}
