/* What a shard would take, known before it is loaded.
 *
 * Weights are counted from the artifact. For the rest the library loads the shard without taking
 * memory for weights, KV cells and graphs (`no_alloc`), and its log says what it would have taken,
 * which is the only public place where it does. Recurrent states are the exception: it takes them
 * for that moment. */
#ifndef SHARD_LLAMA_ESTIMATE_H
#define SHARD_LLAMA_ESTIMATE_H

#include "load_source.h"

/* The table's `estimate`. */
shard_status engine_estimate(const shard_params *params, shard_memory *memory, shard_error *error);

/* SHARD_ERR_MEMORY where the shard would not fit into the memory that its parameters call
 * available. Nothing is asked where nobody knows how much that is, nor where a device takes part
 * whose memory that figure does not cover. */
shard_status estimate_admit(const load_source *source, shard_error *error);

#endif /* SHARD_LLAMA_ESTIMATE_H */
