/* What we see of the library's graph, through its public eval callback.
 *
 * While counting (once, during the warm-up) every node is looked at before it is computed: the
 * weights it reads and the buffers they and the KV lie in are what ownership and memory are counted
 * from. While collecting, the node `l_out-<last>` alone is asked for, because asking splits the
 * graph after it; its rows are the shard's output. */
#ifndef SHARD_LLAMA_OBSERVER_H
#define SHARD_LLAMA_OBSERVER_H

#include "shard_engine.h"

#include <ggml-backend.h>
#include <ggml.h>

typedef struct observer_counts {
    uint32_t layers;  /* distinct layers whose weights were read */
    uint32_t tensors; /* distinct weight tensors */
    uint64_t bytes;   /* of these */
    bool has_embedding;
    bool has_head;
    uint64_t weights_buffers; /* bytes of the buffers by use */
    uint64_t kv_buffers;
    uint64_t compute_buffers;
} observer_counts;

typedef struct graph_observer graph_observer;

/* `target_layer` is the layer whose output is collected, -1 where none is; up to `max_rows` rows of
 * `n_embd` float32. NULL when there is no memory. */
graph_observer *observer_new(int32_t target_layer, uint32_t max_rows, uint32_t n_embd);
void observer_free(graph_observer *observer);

/* The callback for llama_context_params.cb_eval, with the observer as its user data. */
bool observer_callback(struct ggml_tensor *tensor, bool ask, void *user_data);

/* Starts counting; the placeholders that a shard file carries for the library's sake (embedding and
 * head of a shard that is not the last) are left out when `placeholders`. */
void observer_begin_count(graph_observer *observer, bool placeholders);
/* Stops. SHARD_ERR_MEMORY when something could not be noted down. */
shard_status observer_end_count(graph_observer *observer, observer_counts *counts,
                                shard_error *error);

/* Forgets the rows of the step before. */
void observer_begin_rows(graph_observer *observer);
/* The rows of all ubatches so far, in the order in which they were computed; `*n_rows` is how many.
 */
const float *observer_rows(const graph_observer *observer, uint32_t *n_rows);

/* Bytes of the row buffer. */
uint64_t observer_buffer_bytes(const graph_observer *observer);

#endif /* SHARD_LLAMA_OBSERVER_H */
