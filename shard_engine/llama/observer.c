#include "observer.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A growing set of pointers; small enough that a linear search is the simplest thing that works. */
typedef struct pointer_set {
    const void **items;
    size_t count;
    size_t capacity;
} pointer_set;

struct graph_observer {
    char target[GGML_MAX_NAME];
    const char *input_node;
    bool collects;
    bool counting;
    bool no_embedding;
    bool no_head;
    bool failed; /* no memory for a set */
    pointer_set weights;
    pointer_set buffers;
    float *rows;
    uint32_t n_rows;
    uint32_t max_rows;
    uint32_t n_embd;
    const float *input; /* rows that have not gone in yet */
    uint32_t n_input;
};

graph_observer *observer_new(observer_nodes nodes, uint32_t max_rows, uint32_t n_embd) {
    graph_observer *observer = calloc(1, sizeof(*observer));
    if (observer == NULL) {
        return NULL;
    }
    observer->input_node = nodes.input;
    observer->no_embedding = nodes.no_embedding;
    observer->no_head = nodes.no_head;
    observer->n_embd = n_embd;
    if (nodes.output_layer < 0) {
        return observer;
    }
    if (nodes.has_number) {
        snprintf(observer->target, sizeof(observer->target), "%s-%d", nodes.output,
                 nodes.output_layer);
    } else {
        snprintf(observer->target, sizeof(observer->target), "%s", nodes.output);
    }
    observer->collects = true;
    observer->max_rows = max_rows;
    observer->rows = malloc((size_t)max_rows * n_embd * sizeof(float));
    if (observer->rows == NULL) {
        free(observer);
        return NULL;
    }
    return observer;
}

static void set_clear(pointer_set *set) {
    free(set->items);
    *set = (pointer_set){0};
}

void observer_free(graph_observer *observer) {
    if (observer == NULL) {
        return;
    }
    set_clear(&observer->weights);
    set_clear(&observer->buffers);
    free(observer->rows);
    free(observer);
}

/* ---- counting ---- */

static bool set_add(pointer_set *set, const void *item) {
    for (size_t i = 0; i < set->count; i++) {
        if (set->items[i] == item) {
            return true;
        }
    }
    if (set->count == set->capacity) {
        const size_t capacity = set->capacity == 0 ? 64 : 2 * set->capacity;
        const void **items = realloc(set->items, capacity * sizeof(*items));
        if (items == NULL) {
            return false;
        }
        set->items = items;
        set->capacity = capacity;
    }
    set->items[set->count++] = item;
    return true;
}

static void look_at(graph_observer *observer, const struct ggml_tensor *tensor) {
    const struct ggml_tensor *owner = tensor->view_src != NULL ? tensor->view_src : tensor;
    if (owner->buffer == NULL) {
        return;
    }
    const bool is_weight =
        ggml_backend_buffer_get_usage(owner->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    if (!set_add(&observer->buffers, owner->buffer) ||
        (is_weight && !set_add(&observer->weights, owner))) {
        observer->failed = true;
    }
}

static void look_at_node(graph_observer *observer, const struct ggml_tensor *node) {
    look_at(observer, node);
    for (size_t i = 0; i < GGML_MAX_SRC; i++) {
        if (node->src[i] != NULL) {
            look_at(observer, node->src[i]);
        }
    }
}

void observer_begin_count(graph_observer *observer) {
    observer->counting = true;
    observer->failed = false;
}

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* A tied head is the embedding's tensor once more, in another buffer, under the same name. */
static bool is_repeated(const pointer_set *weights, size_t index) {
    const struct ggml_tensor *tensor = weights->items[index];
    for (size_t i = 0; i < index; i++) {
        if (strcmp(((const struct ggml_tensor *)weights->items[i])->name, tensor->name) == 0) {
            return true;
        }
    }
    return false;
}

static void count_weights(const graph_observer *observer, observer_counts *counts) {
    bool layers[1024] = {false};
    for (size_t i = 0; i < observer->weights.count; i++) {
        const struct ggml_tensor *tensor = observer->weights.items[i];
        unsigned layer = 0;
        const bool in_layer = sscanf(tensor->name, "blk.%4u.", &layer) == 1 && layer < 1024;
        const bool is_embedding = starts_with(tensor->name, "token_embd.");
        const bool is_head = starts_with(tensor->name, "output");
        if ((is_embedding && observer->no_embedding) || (is_head && observer->no_head) ||
            is_repeated(&observer->weights, i)) {
            continue;
        }
        if (in_layer && !layers[layer]) {
            layers[layer] = true;
            counts->layers++;
        }
        counts->has_embedding |= is_embedding;
        counts->has_head |= is_head;
        counts->tensors++;
        counts->bytes += ggml_nbytes(tensor);
    }
}

static bool shares_memory(const pointer_set *weights, size_t index) {
    const struct ggml_tensor *tensor = weights->items[index];
    size_t i = 0;
    while (i < index && ((const struct ggml_tensor *)weights->items[i])->data != tensor->data) {
        i++;
    }
    return i < index;
}

static void count_memory(const graph_observer *observer, observer_counts *counts) {
    for (size_t i = 0; i < observer->weights.count; i++) {
        counts->weights_in_memory +=
            shares_memory(&observer->weights, i) ? 0 : ggml_nbytes(observer->weights.items[i]);
    }
}

static void count_buffers(const graph_observer *observer, observer_counts *counts) {
    for (size_t i = 0; i < observer->buffers.count; i++) {
        ggml_backend_buffer_t buffer = (ggml_backend_buffer_t)observer->buffers.items[i];
        const uint64_t bytes = ggml_backend_buffer_get_size(buffer);
        switch (ggml_backend_buffer_get_usage(buffer)) {
        case GGML_BACKEND_BUFFER_USAGE_WEIGHTS:
            break;
        case GGML_BACKEND_BUFFER_USAGE_COMPUTE:
            counts->compute_buffers += bytes;
            break;
        default:
            counts->kv_buffers += bytes;
        }
    }
}

shard_status observer_end_count(graph_observer *observer, observer_counts *counts,
                                shard_error *error) {
    *counts = (observer_counts){0};
    observer->counting = false;
    count_weights(observer, counts);
    count_memory(observer, counts);
    count_buffers(observer, counts);
    set_clear(&observer->weights);
    set_clear(&observer->buffers);
    if (observer->failed) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to count the loaded tensors");
    }
    return shard_ok(error);
}

/* ---- collecting ---- */

void observer_begin_rows(graph_observer *observer) {
    observer->n_rows = 0;
}

float *observer_rows(graph_observer *observer, uint32_t *n_rows) {
    *n_rows = observer->n_rows;
    return observer->rows;
}

/* False, which ends the step with too few rows, when the tensor is not what a boundary must be. */
static bool collect(graph_observer *observer, const struct ggml_tensor *tensor) {
    const uint64_t n_rows = (uint64_t)ggml_nrows(tensor);
    if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != observer->n_embd ||
        !ggml_is_contiguous(tensor) || n_rows > observer->max_rows - observer->n_rows) {
        return false;
    }
    ggml_backend_tensor_get(tensor, observer->rows + (size_t)observer->n_rows * observer->n_embd, 0,
                            ggml_nbytes(tensor));
    observer->n_rows += (uint32_t)n_rows;
    return true;
}

/* ---- input ---- */

void observer_begin_input(graph_observer *observer, const float *rows, uint32_t n_rows) {
    observer->input = rows;
    observer->n_input = n_rows;
}

uint32_t observer_input_left(const graph_observer *observer) {
    return observer->n_input;
}

/* A node without a name of its own is known by the weight that it reads. */
static bool is_input(const graph_observer *observer, const struct ggml_tensor *tensor) {
    const char *name = observer->input_node;
    const struct ggml_tensor *operand = tensor->src[1];
    return name != NULL &&
           (strcmp(tensor->name, name) == 0 ||
            (operand != NULL && operand->op == GGML_OP_NONE && strcmp(operand->name, name) == 0));
}

/* False, which ends the step, when the tensor is not what rows could go into. */
static bool put_input(graph_observer *observer, struct ggml_tensor *tensor) {
    const uint64_t n_rows = (uint64_t)ggml_nrows(tensor);
    if (tensor->type != GGML_TYPE_F32 || tensor->ne[0] != observer->n_embd ||
        !ggml_is_contiguous(tensor) || n_rows > observer->n_input) {
        return false;
    }
    ggml_backend_tensor_set(tensor, observer->input, 0, ggml_nbytes(tensor));
    observer->input += n_rows * observer->n_embd;
    observer->n_input -= (uint32_t)n_rows;
    return true;
}

/* ---- the callback ---- */

bool observer_callback(struct ggml_tensor *tensor, bool ask, void *user_data) {
    graph_observer *observer = user_data;
    if (!ask) {
        return is_input(observer, tensor) ? put_input(observer, tensor) : collect(observer, tensor);
    }
    if (observer->counting) {
        look_at_node(observer, tensor);
    }
    return (observer->collects && strcmp(tensor->name, observer->target) == 0) ||
           is_input(observer, tensor);
}
