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
    bool collects;
    bool counting;
    bool placeholders;
    bool failed; /* no memory for a set */
    pointer_set weights;
    pointer_set buffers;
    float *rows;
    uint32_t n_rows;
    uint32_t max_rows;
    uint32_t n_embd;
};

graph_observer *observer_new(int32_t target_layer, uint32_t max_rows, uint32_t n_embd) {
    graph_observer *observer = calloc(1, sizeof(*observer));
    if (observer == NULL || target_layer < 0) {
        return observer;
    }
    snprintf(observer->target, sizeof(observer->target), "l_out-%d", target_layer);
    observer->collects = true;
    observer->max_rows = max_rows;
    observer->n_embd = n_embd;
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

void observer_begin_count(graph_observer *observer, bool placeholders) {
    observer->counting = true;
    observer->placeholders = placeholders;
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
        if (((is_embedding || is_head) && observer->placeholders) ||
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

static void count_buffers(const graph_observer *observer, observer_counts *counts) {
    for (size_t i = 0; i < observer->buffers.count; i++) {
        ggml_backend_buffer_t buffer = (ggml_backend_buffer_t)observer->buffers.items[i];
        const uint64_t bytes = ggml_backend_buffer_get_size(buffer);
        switch (ggml_backend_buffer_get_usage(buffer)) {
        case GGML_BACKEND_BUFFER_USAGE_WEIGHTS:
            counts->weights_buffers += bytes;
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

const float *observer_rows(const graph_observer *observer, uint32_t *n_rows) {
    *n_rows = observer->n_rows;
    return observer->rows;
}

uint64_t observer_buffer_bytes(const graph_observer *observer) {
    return (uint64_t)observer->max_rows * observer->n_embd * sizeof(float);
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

bool observer_callback(struct ggml_tensor *tensor, bool ask, void *user_data) {
    graph_observer *observer = user_data;
    if (!ask) {
        return collect(observer, tensor);
    }
    if (observer->counting) {
        look_at_node(observer, tensor);
    }
    return observer->collects && strcmp(tensor->name, observer->target) == 0;
}
