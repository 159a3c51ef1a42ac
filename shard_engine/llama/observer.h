/* What we see of the library's graph, through its public eval callback.
 *
 * While counting (once, during the warm-up) every node is looked at before it is computed: the
 * weights it reads and the buffers they and the KV lie in are what ownership and memory are counted
 * from. While collecting, the last layer's output (`l_out-<last>`) alone is asked for, because
 * asking splits the graph after it; its rows are the shard's output. Where rows cannot go in
 * through the batch, they are written into a node near the graph's beginning, once it is computed.
 */
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
    /* Bytes of all weights that were read, each address once: a tied head that was repacked is a
     * second copy, and a mapped file may hold more between its tensors than is ever read. */
    uint64_t weights_in_memory;
    uint64_t kv_buffers; /* bytes of the buffers by use */
    uint64_t compute_buffers;
} observer_counts;

typedef struct graph_observer graph_observer;

/* What to look for in the graph. */
typedef struct observer_nodes {
    const char *output;   /* the name of a layer's output */
    bool has_number;      /* after which comes the layer */
    int32_t output_layer; /* whose output is collected; -1 where none is */
    const char *input;    /* the node that input rows go into, by its own name or by that of the
                             weight which is its second operand; NULL where none do */
    bool no_embedding;    /* the token embedding is a placeholder for the library's sake */
    bool no_head;         /* so is the head */
} observer_nodes;

/* For up to `max_rows` rows of `n_embd` float32. NULL when there is no memory. */
graph_observer *observer_new(observer_nodes nodes, uint32_t max_rows, uint32_t n_embd);
void observer_free(graph_observer *observer);

/* The callback for llama_context_params.cb_eval, with the observer as its user data. */
bool observer_callback(struct ggml_tensor *tensor, bool ask, void *user_data);

/* Starts counting; placeholders are left out. */
void observer_begin_count(graph_observer *observer);
/* Stops. SHARD_ERR_MEMORY when something could not be noted down. */
shard_status observer_end_count(graph_observer *observer, observer_counts *counts,
                                shard_error *error);

/* Forgets the rows of the step before. */
void observer_begin_rows(graph_observer *observer);
/* The rows of all ubatches so far, in the order in which they were computed; `*n_rows` is how many.
 */
float *observer_rows(graph_observer *observer, uint32_t *n_rows);

/* The rows that go into the input node, ubatch after ubatch; borrowed until the next call. */
void observer_begin_input(graph_observer *observer, const float *rows, uint32_t n_rows);

/* How many of them have not gone in. */
uint32_t observer_input_left(const graph_observer *observer);

#endif /* SHARD_LLAMA_OBSERVER_H */
