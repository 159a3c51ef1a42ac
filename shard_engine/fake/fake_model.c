#include "fake_model.h"

#include "error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { LOGIT_LEVELS_PER_UNIT = 16 };

/* The largest primes whose residues are all exact in the dtype (f32: in a KV cell). */
static const fake_arithmetic ARITHMETIC[] = {
    [BOUNDARY_F32] = {65521, 8},
    [BOUNDARY_F16] = {2039, 3},
    [BOUNDARY_BF16] = {251, 0},
};

/* ---- tensors ---- */

uint64_t fake_layer_bytes(const fake_spec *spec) {
    return (uint64_t)FAKE_TENSORS_PER_LAYER * spec->n_embd * sizeof(uint32_t);
}

uint64_t fake_embedding_bytes(const fake_spec *spec) {
    return (uint64_t)spec->n_vocab * spec->n_embd * sizeof(uint32_t);
}

static uint32_t mix(uint32_t hash, uint32_t word) {
    hash = (hash ^ word) * 0x9E3779B1u;
    return hash ^ (hash >> 15);
}

static void fill_tensor(const fake_tensor *tensor, uint32_t seed, uint32_t modulus) {
    const uint32_t origin = mix(mix(mix(0, seed), tensor->kind), tensor->layer);
    for (uint64_t i = 0; i < tensor->n_values; i++) {
        tensor->values[i] = mix(origin, (uint32_t)i) % modulus;
    }
}

static shard_status add_tensor(fake_model *model, fake_tensor_kind kind, uint32_t layer,
                               uint64_t n_values, shard_error *error) {
    fake_tensor *tensor = &model->tensors[model->n_tensors];
    *tensor = (fake_tensor){kind, layer, n_values, malloc(n_values * sizeof(uint32_t))};
    if (tensor->values == NULL) {
        shard_fail(error, SHARD_ERR_MEMORY,
                   "a tensor needs %" PRIu64
                   " bytes, which could not be had; make the model smaller",
                   n_values * sizeof(uint32_t));
        shard_error_add(error, "needed_bytes", "%" PRIu64, n_values * (uint64_t)sizeof(uint32_t));
        return error->status;
    }
    model->n_tensors++;
    fill_tensor(tensor, model->spec.seed, model->arithmetic.modulus);
    return SHARD_OK;
}

/* Where a load's progress goes to. */
typedef struct load_report {
    shard_progress_callback on_progress;
    void *user_data;
    uint64_t total;
} load_report;

static shard_status report(const load_report *to, uint64_t done, shard_error *error) {
    if (to->on_progress != NULL && !to->on_progress("load", done, to->total, to->user_data)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "the load was cancelled");
    }
    return SHARD_OK;
}

static shard_status load_layers(fake_model *model, const load_report *to, shard_error *error) {
    for (uint32_t layer = model->layer_start; layer < model->layer_end; layer++) {
        for (int kind = FAKE_TENSOR_MIX; kind <= FAKE_TENSOR_BIAS; kind++) {
            if (add_tensor(model, (fake_tensor_kind)kind, layer, model->spec.n_embd, error) !=
                SHARD_OK) {
                return error->status;
            }
        }
        if (report(to, fake_model_bytes(model), error) != SHARD_OK) {
            return error->status;
        }
    }
    return SHARD_OK;
}

/* Embedding or head: a tensor of the vocabulary's size that belongs to no layer. */
static shard_status load_vocabulary_tensor(fake_model *model, fake_tensor_kind kind,
                                           const fake_tensor **place, const load_report *to,
                                           shard_error *error) {
    const fake_spec *spec = &model->spec;
    const uint64_t n_values = (uint64_t)spec->n_vocab * spec->n_embd;
    if (add_tensor(model, kind, spec->n_layer, n_values, error) != SHARD_OK) {
        return error->status;
    }
    *place = &model->tensors[model->n_tensors - 1];
    return report(to, fake_model_bytes(model), error);
}

static shard_status load_tensors(fake_model *model, const load_report *to, shard_error *error) {
    const bool first = model->layer_start == 0;
    const bool last = model->layer_end == model->spec.n_layer;
    if (report(to, 0, error) != SHARD_OK || load_layers(model, to, error) != SHARD_OK) {
        return error->status;
    }
    if (first && load_vocabulary_tensor(model, FAKE_TENSOR_EMBEDDING, &model->embedding, to,
                                        error) != SHARD_OK) {
        return error->status;
    }
    if (last &&
        load_vocabulary_tensor(model, FAKE_TENSOR_HEAD, &model->head, to, error) != SHARD_OK) {
        return error->status;
    }
    return SHARD_OK;
}

shard_status fake_model_load(fake_model *model, const fake_spec *spec, boundary_dtype boundary,
                             uint32_t start, uint32_t end, shard_progress_callback on_progress,
                             void *user_data, shard_error *error) {
    const size_t room = (size_t)FAKE_TENSORS_PER_LAYER * (end - start) + 2;
    const load_report to = {on_progress, user_data, fake_model_bytes_of(spec, start, end)};
    *model = (fake_model){
        .spec = *spec, .arithmetic = ARITHMETIC[boundary], .layer_start = start, .layer_end = end};
    model->tensors = calloc(room, sizeof(fake_tensor));
    if (model->tensors == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "the list of tensors could not be allocated");
    }
    if (load_tensors(model, &to, error) != SHARD_OK) {
        fake_model_free(model);
        return error->status;
    }
    return SHARD_OK;
}

void fake_model_free(fake_model *model) {
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        free(model->tensors[i].values);
    }
    free(model->tensors);
    *model = (fake_model){0};
}

uint64_t fake_model_bytes_of(const fake_spec *spec, uint32_t start, uint32_t end) {
    const uint64_t n_ends = (start == 0) + (end == spec->n_layer);
    return fake_layer_bytes(spec) * (end - start) + fake_embedding_bytes(spec) * n_ends;
}

uint64_t fake_model_bytes(const fake_model *model) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        bytes += model->tensors[i].n_values * sizeof(uint32_t);
    }
    return bytes;
}

uint32_t fake_model_layers(const fake_model *model) {
    uint32_t n_layers = 0;
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        n_layers += model->tensors[i].kind == FAKE_TENSOR_MIX;
    }
    return n_layers;
}

/* ---- arithmetic ---- */

uint32_t fake_residue(const fake_model *model, float value) {
    return (uint32_t)fmodf(truncf(fabsf(value)), (float)model->arithmetic.modulus);
}

void fake_model_embed(const fake_model *model, int32_t token, uint32_t *row) {
    const uint32_t n_embd = model->spec.n_embd;
    for (uint32_t i = 0; i < n_embd; i++) {
        row[i] = model->embedding->values[(uint64_t)token * n_embd + i];
    }
}

void fake_model_layer(const fake_model *model, uint32_t layer, const uint16_t *before,
                      uint16_t *memory, uint32_t *row) {
    const fake_tensor *tensors =
        &model->tensors[(size_t)FAKE_TENSORS_PER_LAYER * (layer - model->layer_start)];
    const uint32_t *mixing = tensors[0].values, *remembering = tensors[1].values,
                   *bias = tensors[2].values;
    const uint32_t n_embd = model->spec.n_embd, modulus = model->arithmetic.modulus;
    const uint32_t wrapped = row[0]; /* the last value's neighbour, before it is overwritten */
    for (uint32_t i = 0; i < n_embd; i++) {
        const uint64_t neighbour = i + 1 < n_embd ? row[i + 1] : wrapped;
        const uint64_t past = before != NULL ? before[i] : 0;
        memory[i] = (uint16_t)((3 * past + row[i] + 1) % modulus);
        row[i] = (uint32_t)(((uint64_t)mixing[i] * row[i] + neighbour +
                             (uint64_t)remembering[i] * memory[i] + bias[i]) %
                            modulus);
    }
}

void fake_model_logits(const fake_model *model, const uint32_t *row, float *logits) {
    const uint32_t n_embd = model->spec.n_embd;
    for (uint32_t v = 0; v < model->spec.n_vocab; v++) {
        const uint32_t *weights = &model->head->values[(uint64_t)v * n_embd];
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n_embd; i++) {
            sum += (uint64_t)weights[i] * row[i];
        }
        const uint32_t residue = (uint32_t)(sum % model->arithmetic.modulus);
        const uint32_t level = residue >> model->arithmetic.level_shift;
        logits[v] = (float)level / LOGIT_LEVELS_PER_UNIT;
    }
}
