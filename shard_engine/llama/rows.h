/* How rows go into the library: what an architecture needs beside the rows themselves. */
#ifndef SHARD_LLAMA_ROWS_H
#define SHARD_LLAMA_ROWS_H

#include "arch_rules.h"
#include "observer.h"

#include <llama.h>

typedef struct row_feed row_feed;

/* For batches of up to `n_batch` rows of `n_embd` values into a stage that is fed with rows; NULL
 * when there is no memory. `observer` is borrowed. */
row_feed *row_feed_new(const arch_rule *rule, const struct llama_model *model, bool is_first,
                       uint32_t n_batch, graph_observer *observer);
void row_feed_free(row_feed *feed);

/* The name of the node into which the rows of this stage go, or NULL where they go into the batch.
 */
const char *row_feed_node(const arch_rule *rule, bool is_first);

/* llama_decode of a batch with `embd` and one position per row. `feed` may be NULL: the batch then
 * goes as it is. The rows are in the order of the batch as long as the library computes them so. */
int32_t row_feed_decode(row_feed *feed, struct llama_context *context, struct llama_batch batch);

/* Bytes of the buffers. */
uint64_t row_feed_bytes(const row_feed *feed);

#endif /* SHARD_LLAMA_ROWS_H */
