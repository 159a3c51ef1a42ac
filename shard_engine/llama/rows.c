#include "rows.h"

#include <stdlib.h>
#include <string.h>

enum {
    MROPE_POSITIONS = 4, /* positions per row of models with M-RoPE: time, height, width, 0 */
    ROWS_NOT_TAKEN = -4  /* beside the negative statuses of llama_decode */
};

struct row_feed {
    graph_observer *observer;
    uint32_t n_batch;
    bool by_node;
    llama_pos *positions; /* MROPE_POSITIONS for each row; NULL where one is enough */
    llama_token *tokens;  /* zeros, which stand for rows that go into a node */
};

const char *row_feed_node(const arch_rule *rule, bool is_first) {
    const bool by_node =
        rule->input == ARCH_INPUT_NODE || (rule->input == ARCH_INPUT_NODE_LATER && !is_first);
    return by_node ? rule->input_node : NULL;
}

static bool needs_positions(const struct llama_model *model) {
    const enum llama_rope_type type = llama_model_rope_type(model);
    return type == LLAMA_ROPE_TYPE_MROPE || type == LLAMA_ROPE_TYPE_IMROPE;
}

row_feed *row_feed_new(const arch_rule *rule, const struct llama_model *model, bool is_first,
                       uint32_t n_batch, graph_observer *observer) {
    row_feed *feed = calloc(1, sizeof(*feed));
    if (feed == NULL) {
        return NULL;
    }
    feed->observer = observer;
    feed->n_batch = n_batch;
    feed->by_node = row_feed_node(rule, is_first) != NULL;
    const bool expands = !feed->by_node && needs_positions(model);
    feed->tokens = feed->by_node ? calloc(n_batch, sizeof(*feed->tokens)) : NULL;
    feed->positions =
        expands ? calloc((size_t)MROPE_POSITIONS * n_batch, sizeof(*feed->positions)) : NULL;
    if ((feed->by_node && feed->tokens == NULL) || (expands && feed->positions == NULL)) {
        row_feed_free(feed);
        return NULL;
    }
    return feed;
}

void row_feed_free(row_feed *feed) {
    if (feed != NULL) {
        free(feed->positions);
        free(feed->tokens);
        free(feed);
    }
}

/* A text moves on in time, height and width alike; for tokens the library does this itself. */
static llama_pos *expand_positions(row_feed *feed, const struct llama_batch *batch) {
    const size_t n_rows = (size_t)batch->n_tokens;
    for (size_t i = 0; i < MROPE_POSITIONS - 1; i++) {
        memcpy(feed->positions + i * n_rows, batch->pos, n_rows * sizeof(llama_pos));
    }
    memset(feed->positions + (MROPE_POSITIONS - 1) * n_rows, 0, n_rows * sizeof(llama_pos));
    return feed->positions;
}

/* Rows that found no node mean that the library built another graph than the rule knows. */
static int32_t decode_by_node(row_feed *feed, struct llama_context *context,
                              struct llama_batch batch) {
    const int32_t result = llama_decode(context, batch);
    return result == 0 && observer_input_left(feed->observer) > 0 ? ROWS_NOT_TAKEN : result;
}

int32_t row_feed_decode(row_feed *feed, struct llama_context *context, struct llama_batch batch) {
    if (feed != NULL && feed->by_node) {
        observer_begin_input(feed->observer, batch.embd, (uint32_t)batch.n_tokens);
        batch.embd = NULL;
        batch.token = feed->tokens;
        return decode_by_node(feed, context, batch);
    }
    if (feed != NULL && feed->positions != NULL) {
        batch.pos = expand_positions(feed, &batch);
    }
    return llama_decode(context, batch);
}

uint64_t row_feed_bytes(const row_feed *feed) {
    if (feed == NULL) {
        return 0;
    }
    return (feed->tokens != NULL ? sizeof(llama_token) : 0) * (uint64_t)feed->n_batch +
           (feed->positions != NULL ? sizeof(llama_pos) * MROPE_POSITIONS : 0) *
               (uint64_t)feed->n_batch;
}
