#include "sampling.h"

#include "error.h"
#include "grammar_check.h"
#include "log.h"
#include "logprobs.h"
#include "sampling_rules.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

struct sampling_space {
    const lazy_vocabulary *vocabulary;
    uint32_t n_vocab;
    uint32_t session_cells;
    llama_token_data *candidates; /* n_vocab of them */
};

struct session_sampler {
    sampling_space *space;
    shard_sampling settings;
    struct llama_sampler *logit_bias; /* NULL where off, as the next two */
    struct llama_sampler *grammar;
    struct llama_sampler *penalties;
    struct llama_sampler *filters; /* top-k to temperature; NULL where the best token is taken */
    uint32_t penalties_fed;        /* rows up to here were given to the penalties */
    uint32_t grammar_start;        /* UINT32_MAX until the first draw settles it */
    uint32_t grammar_fed; /* rows from grammar_start up to here were given to the grammar */
    shard_candidate *top;
    text_buffer *texts;
};

/* ---- the space ---- */

uint64_t sampling_space_bytes(uint32_t n_vocab) {
    return n_vocab * sizeof(llama_token_data);
}

shard_status sampling_space_open(const lazy_vocabulary *vocabulary, uint32_t n_vocab,
                                 uint32_t session_cells, sampling_space **out, shard_error *error) {
    sampling_space *space = calloc(1, sizeof(*space));
    llama_token_data *candidates = malloc(sampling_space_bytes(n_vocab));
    if (space == NULL || candidates == NULL) {
        free(space);
        free(candidates);
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %" PRIu32 " candidates", n_vocab);
    }
    *space = (sampling_space){vocabulary, n_vocab, session_cells, candidates};
    *out = space;
    return shard_ok(error);
}

void sampling_space_close(sampling_space *space) {
    if (space != NULL) {
        free(space->candidates);
        free(space);
    }
}

/* ---- a session's samplers ---- */

/* The layouts are the same, so that an array of ours can be handed on as it is. */
_Static_assert(sizeof(shard_logit_bias) == sizeof(llama_logit_bias), "one array, two names");

static struct llama_sampler *make_logit_bias(const session_sampler *sampler) {
    const shard_sampling *settings = &sampler->settings;
    return llama_sampler_init_logit_bias((int32_t)sampler->space->n_vocab,
                                         (int32_t)settings->n_logit_bias,
                                         (const llama_logit_bias *)settings->logit_bias);
}

/* Rows that penalties look back; a session cannot have more than it has cells. */
static uint32_t rows_back(const session_sampler *sampler) {
    const int32_t asked = sampler->settings.repeat_last_n;
    const uint32_t most = sampler->space->session_cells;
    return asked < 0 || (uint32_t)asked > most ? most : (uint32_t)asked;
}

static struct llama_sampler *make_penalties(const session_sampler *sampler) {
    const shard_sampling *settings = &sampler->settings;
    return llama_sampler_init_penalties((int32_t)sampler->space->n_vocab,
                                        (int32_t)rows_back(sampler), settings->repeat_penalty,
                                        settings->frequency_penalty, settings->presence_penalty);
}

static struct llama_sampler *make_filters(const shard_sampling *settings) {
    struct llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    struct llama_sampler *chain = llama_sampler_chain_init(params);
    if (settings->top_k > 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_k(settings->top_k));
    }
    if (settings->typical_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_typical(settings->typical_p, 1));
    }
    if (settings->top_p < 1.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_top_p(settings->top_p, 1));
    }
    if (settings->min_p > 0.0f) {
        llama_sampler_chain_add(chain, llama_sampler_init_min_p(settings->min_p, 1));
    }
    llama_sampler_chain_add(chain, llama_sampler_init_temp(settings->temperature));
    return chain;
}

static shard_status make_grammar(session_sampler *sampler, shard_error *error) {
    const struct llama_vocab *vocab = sampler->space->vocabulary->vocab;
    const char *grammar = sampler->settings.grammar;
    char why[512];
    if (!vocabulary_is_real(vocab)) {
        return shard_fail(error, SHARD_ERR_NOT_OWNED,
                          "the model has no tokenizer, so a grammar cannot know its tokens' text; "
                          "open the session without one");
    }
    if (grammar_check(grammar, error) != SHARD_OK) {
        return error->status;
    }
    log_forget();
    sampler->grammar = llama_sampler_init_grammar(vocab, grammar, "root");
    if (sampler->grammar == NULL) {
        log_first_error(why, sizeof(why));
        shard_fail(error, SHARD_ERR_MALFORMED,
                   "llama.cpp refuses sampling.grammar: %s; where it is a matter of syntax, the "
                   "place is on the stderr of this process",
                   why);
        shard_error_add(error, "field", "sampling.grammar");
    }
    return error->status;
}

static shard_status make_samplers(session_sampler *sampler, shard_error *error) {
    const shard_sampling *settings = &sampler->settings;
    if (settings->n_logit_bias > 0) {
        sampler->logit_bias = make_logit_bias(sampler);
    }
    if (sampling_rules_has_penalties(settings)) {
        sampler->penalties = make_penalties(sampler);
    }
    if (settings->temperature > 0.0f) {
        sampler->filters = make_filters(settings);
    }
    return settings->grammar != NULL ? make_grammar(sampler, error) : shard_ok(error);
}

static shard_status make_top(session_sampler *sampler, shard_error *error) {
    const uint32_t n = sampler->settings.top_logprobs;
    if (n == 0) {
        return shard_ok(error);
    }
    sampler->top = calloc(n, sizeof(*sampler->top));
    sampler->texts = calloc(n, sizeof(*sampler->texts));
    return sampler->top != NULL && sampler->texts != NULL
               ? shard_ok(error)
               : shard_fail(error, SHARD_ERR_MEMORY, "no memory for %" PRIu32 " candidates", n);
}

shard_status session_sampler_open(sampling_space *space, const shard_sampling *sampling,
                                  session_sampler **out, shard_error *error) {
    *out = NULL;
    if (sampling != NULL && sampling_rules_check(sampling, space->n_vocab, error) != SHARD_OK) {
        return error->status;
    }
    session_sampler *sampler = calloc(1, sizeof(*sampler));
    if (sampler == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for the sampler of a session");
    }
    sampler->space = space;
    if (sampling_rules_copy(sampling, &sampler->settings, error) != SHARD_OK ||
        make_top(sampler, error) != SHARD_OK || make_samplers(sampler, error) != SHARD_OK) {
        session_sampler_close(sampler);
        return error->status;
    }
    sampler->grammar_start = sampler->settings.grammar_start;
    sampler->grammar_fed = sampler->grammar_start;
    *out = sampler;
    return shard_ok(error);
}

void session_sampler_close(session_sampler *sampler) {
    if (sampler == NULL) {
        return;
    }
    llama_sampler_free(sampler->logit_bias);
    llama_sampler_free(sampler->grammar);
    llama_sampler_free(sampler->penalties);
    llama_sampler_free(sampler->filters);
    for (uint32_t i = 0; sampler->texts != NULL && i < sampler->settings.top_logprobs; i++) {
        free(sampler->texts[i].data);
    }
    free(sampler->texts);
    free(sampler->top);
    sampling_rules_free(&sampler->settings);
    free(sampler);
}

/* ---- the rows so far ---- */

static void trim_grammar(session_sampler *sampler, uint32_t position) {
    if (sampler->grammar_fed > sampler->grammar_start && sampler->grammar_fed > position) {
        llama_sampler_reset(sampler->grammar);
        sampler->grammar_fed = sampler->grammar_start;
    }
    /* A start that the first draw settled is forgotten with the rows before it. */
    if (sampler->settings.grammar_start == UINT32_MAX && sampler->grammar_start > position) {
        sampler->grammar_start = UINT32_MAX;
        sampler->grammar_fed = UINT32_MAX;
    }
}

void session_sampler_trim(session_sampler *sampler, uint32_t position) {
    if (sampler->penalties_fed > position) {
        llama_sampler_reset(sampler->penalties);
        sampler->penalties_fed = 0;
    }
    trim_grammar(sampler, position);
}

static shard_status feed_penalties(session_sampler *sampler, const int32_t *history,
                                   uint32_t n_history, shard_error *error) {
    const uint32_t back = rows_back(sampler);
    const uint32_t window = n_history > back ? n_history - back : 0;
    const bool goes_on = sampler->penalties_fed >= window;
    const uint32_t first = goes_on ? sampler->penalties_fed : window;
    if (sampling_rules_check_history(history, first, n_history, error) != SHARD_OK) {
        return error->status;
    }
    if (!goes_on) {
        llama_sampler_reset(sampler->penalties);
    }
    for (uint32_t row = first; row < n_history; row++) {
        llama_sampler_accept(sampler->penalties, history[row]);
    }
    sampler->penalties_fed = n_history;
    return shard_ok(error);
}

/* Also asked before a token is given to the grammar, which throws or aborts at one that does not
 * fit. */
static bool fits_grammar(const session_sampler *sampler, int32_t token) {
    llama_token_data data = {.id = token};
    llama_token_data_array one = {.data = &data, .size = 1, .selected = -1};
    llama_sampler_apply(sampler->grammar, &one);
    return data.logit == 0.0f;
}

static shard_status refuse_row(uint32_t row, int32_t token, shard_error *error) {
    shard_fail(error, SHARD_ERR_ARGUMENT,
               "token %" PRId32 " of row %" PRIu32 " does not fit the grammar; set "
               "sampling.grammar_start to the position at which drawing began, or send what was "
               "drawn",
               token, row);
    shard_error_add(error, "row", "%" PRIu32, row);
    shard_error_add(error, "token", "%" PRId32, token);
    return error->status;
}

static shard_status feed_grammar(session_sampler *sampler, const int32_t *history,
                                 uint32_t n_history, shard_error *error) {
    if (sampler->grammar_start == UINT32_MAX) {
        sampler->grammar_start = n_history;
        sampler->grammar_fed = n_history;
    }
    if (sampling_rules_check_history(history, sampler->grammar_fed, n_history, error) != SHARD_OK) {
        return error->status;
    }
    for (; sampler->grammar_fed < n_history; sampler->grammar_fed++) {
        const int32_t token = history[sampler->grammar_fed];
        if (!fits_grammar(sampler, token)) {
            return refuse_row(sampler->grammar_fed, token, error);
        }
        llama_sampler_accept(sampler->grammar, token);
    }
    return shard_ok(error);
}

/* ---- the draw ---- */

static llama_token_data_array all_candidates(const sampling_space *space, const float *logits) {
    for (uint32_t i = 0; i < space->n_vocab; i++) {
        space->candidates[i] = (llama_token_data){.id = (llama_token)i, .logit = logits[i]};
    }
    return (llama_token_data_array){
        .data = space->candidates, .size = space->n_vocab, .selected = -1};
}

static shard_status change_logits(session_sampler *sampler, const int32_t *history,
                                  uint32_t n_history, llama_token_data_array *candidates,
                                  shard_error *error) {
    llama_sampler_apply(sampler->logit_bias, candidates);
    if (sampler->penalties != NULL) {
        if (feed_penalties(sampler, history, n_history, error) != SHARD_OK) {
            return error->status;
        }
        llama_sampler_apply(sampler->penalties, candidates);
    }
    return sampler->grammar != NULL ? feed_grammar(sampler, history, n_history, error)
                                    : shard_ok(error);
}

/* The candidates still lie in the order of their ids, so the first of the largest is the lowest. */
static size_t find_best(const llama_token_data_array *candidates) {
    size_t best = 0;
    for (size_t i = 1; i < candidates->size; i++) {
        best = candidates->data[i].logit > candidates->data[best].logit ? i : best;
    }
    return best;
}

/* A grammar forbids, and no penalty allows again, so it may come after the penalties; and where the
 * best token is taken anyway and fits, the others need not be asked, which takes long. */
static size_t find_best_that_fits(const session_sampler *sampler,
                                  llama_token_data_array *candidates) {
    const size_t best = find_best(candidates);
    if (sampler->grammar == NULL ||
        (sampler->filters == NULL && fits_grammar(sampler, candidates->data[best].id))) {
        return best;
    }
    llama_sampler_apply(sampler->grammar, candidates);
    return find_best(candidates);
}

static shard_status check_best(const session_sampler *sampler, float logit, shard_error *error) {
    const float temperature = sampler->settings.temperature;
    if (logit == -INFINITY) {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "logit_bias and grammar leave no token to draw; allow one");
        shard_error_add(error, "field", "sampling.%s",
                        sampler->grammar != NULL ? "grammar" : "logit_bias");
        return error->status;
    }
    if (!isfinite(logit) || !isfinite(logit / (temperature > 0.0f ? temperature : 1.0f))) {
        return shard_fail(error, SHARD_ERR_ARGUMENT,
                          "logit_bias, penalties and temperature take the logits out of float32; "
                          "choose values nearer to 0 and 1");
    }
    return shard_ok(error);
}

/* What was forbidden has no probability, of whose logarithm typical sampling would make NaN. */
static void drop_forbidden(llama_token_data_array *candidates) {
    size_t kept = 0;
    for (size_t i = 0; i < candidates->size; i++) {
        if (candidates->data[i].logit != -INFINITY) {
            candidates->data[kept++] = candidates->data[i];
        }
    }
    candidates->size = kept;
}

static int32_t draw_one(const session_sampler *sampler, uint32_t position,
                        llama_token_data_array *candidates) {
    struct llama_sampler *dist =
        llama_sampler_init_dist(shard_draw_seed(sampler->settings.seed, position));
    drop_forbidden(candidates);
    llama_sampler_apply(sampler->filters, candidates);
    llama_sampler_apply(dist, candidates);
    llama_sampler_free(dist);
    return candidates->data[candidates->selected].id;
}

static shard_status choose(session_sampler *sampler, const float *logits, const int32_t *history,
                           uint32_t n_history, int32_t *token, shard_error *error) {
    llama_token_data_array candidates = all_candidates(sampler->space, logits);
    if (change_logits(sampler, history, n_history, &candidates, error) != SHARD_OK) {
        return error->status;
    }
    const size_t best = find_best_that_fits(sampler, &candidates);
    if (check_best(sampler, candidates.data[best].logit, error) != SHARD_OK) {
        return error->status;
    }
    *token = sampler->filters == NULL ? candidates.data[best].id
                                      : draw_one(sampler, n_history, &candidates);
    return shard_ok(error);
}

static shard_status add_texts(session_sampler *sampler, uint32_t n_top, shard_error *error) {
    const lazy_vocabulary *vocabulary = sampler->space->vocabulary;
    for (uint32_t i = 0; vocabulary_is_real(vocabulary->vocab) && i < n_top; i++) {
        shard_candidate *candidate = &sampler->top[i];
        if (vocabulary_token_text(vocabulary, candidate->token, &sampler->texts[i],
                                  &candidate->n_text_bytes, error) != SHARD_OK) {
            return error->status;
        }
        candidate->text = candidate->n_text_bytes > 0 ? sampler->texts[i].data : NULL;
    }
    return SHARD_OK;
}

shard_status session_sampler_draw(session_sampler *sampler, const float *logits,
                                  const int32_t *history, uint32_t n_history,
                                  shard_step_entry *entry) {
    const uint32_t n_vocab = sampler->space->n_vocab;
    const logprob_scale scale = logprobs_scale(logits, n_vocab);
    const bool takes_best = sampler->logit_bias == NULL && sampler->grammar == NULL &&
                            sampler->penalties == NULL && sampler->filters == NULL;
    int32_t token = (int32_t)scale.best;
    if (!takes_best &&
        choose(sampler, logits, history, n_history, &token, &entry->error) != SHARD_OK) {
        return entry->error.status;
    }
    const uint32_t n_top =
        logprobs_top(logits, n_vocab, &scale, sampler->settings.top_logprobs, sampler->top);
    if (add_texts(sampler, n_top, &entry->error) != SHARD_OK) {
        return entry->error.status;
    }
    entry->token = token;
    entry->logprob = logprobs_of(&scale, logits[token]);
    entry->top = n_top > 0 ? sampler->top : NULL;
    entry->n_top = n_top;
    return SHARD_OK;
}
