/* Drawing a token with llama.cpp's own samplers, in the order that `shard_sampling` gives.
 *
 * A session's sampler is a function of the settings and of the session's tokens. Penalties and
 * grammar are kept up to date incrementally, and built again from the tokens once rows are
 * forgotten. With temperature 0 nothing but logit bias, grammar and penalties can change which
 * token is best, so the other samplers are left out. */
#ifndef SHARD_LLAMA_SAMPLING_H
#define SHARD_LLAMA_SAMPLING_H

#include "shard_engine.h"
#include "vocabulary.h"

/* What all sessions of an engine share: the vocabulary, and memory for the candidates of one draw.
 */
typedef struct sampling_space sampling_space;

/* Of a stage with a head. `vocabulary` outlives the space; `session_cells` is the longest that a
 * session can be. SHARD_ERR_MEMORY. */
shard_status sampling_space_open(const lazy_vocabulary *vocabulary, uint32_t n_vocab,
                                 uint32_t session_cells, sampling_space **out, shard_error *error);
void sampling_space_close(sampling_space *space);
/* Bytes that such a space takes. */
uint64_t sampling_space_bytes(uint32_t n_vocab);

typedef struct session_sampler session_sampler;

/* Checks and copies `sampling` (NULL: the defaults). SHARD_ERR_ARGUMENT for a value out of range;
 * SHARD_ERR_MALFORMED, SHARD_ERR_UNSUPPORTED or SHARD_ERR_NOT_OWNED for a grammar that cannot be
 * parsed, served, or has no vocabulary to act on; SHARD_ERR_MEMORY. */
shard_status session_sampler_open(sampling_space *space, const shard_sampling *sampling,
                                  session_sampler **out, shard_error *error);
void session_sampler_close(session_sampler *sampler);

/* The session forgot its rows from `position` on. */
void session_sampler_trim(session_sampler *sampler, uint32_t position);

/* Draws from the finite `logits` of the last of `n_history` rows, whose tokens are `history` (-1
 * where unknown). Fills the entry's token, logprob, top and n_top; the texts are borrowed until the
 * sampler's next draw. SHARD_ERR_ARGUMENT where a token that counts is unknown, does not fit the
 * grammar, or none fits; SHARD_ERR_MEMORY. After a failure the rows of the entry are to be
 * forgotten, here as well. */
shard_status session_sampler_draw(session_sampler *sampler, const float *logits,
                                  const int32_t *history, uint32_t n_history,
                                  shard_step_entry *entry);

#endif /* SHARD_LLAMA_SAMPLING_H */
