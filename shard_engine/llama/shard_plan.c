#include "shard_plan.h"

#include "error.h"
#include "meta.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metadata ---- */

static void remove_keys_with_prefix(struct gguf_context *gguf, const char *prefix) {
    for (int64_t id = gguf_get_n_kv(gguf) - 1; id >= 0; id--) {
        char key[META_KEY_SIZE];
        snprintf(key, sizeof(key), "%s", gguf_get_key(gguf, id));
        if (strncmp(key, prefix, strlen(prefix)) == 0) {
            gguf_remove_key(gguf, key);
        }
    }
}

static size_t element_size(enum gguf_type type) {
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return 8;
    default:
        return 0;
    }
}

/* Cuts each array of the architecture that has one value per layer to the range. */
static shard_status cut_layer_arrays(file_plan *plan, uint32_t start, uint32_t end,
                                     shard_error *error) {
    const shard_artifact_info *info = &plan->artifact->info;
    const struct gguf_context *whole = plan->artifact->files[0].gguf;
    char prefix[META_KEY_SIZE];
    meta_key(prefix, info->architecture, "");
    for (int64_t id = 0; id < gguf_get_n_kv(whole); id++) {
        const char *key = gguf_get_key(whole, id);
        if (gguf_get_kv_type(whole, id) != GGUF_TYPE_ARRAY ||
            strncmp(key, prefix, strlen(prefix)) != 0 ||
            gguf_get_arr_n(whole, id) != info->n_layer) {
            continue;
        }
        const enum gguf_type type = gguf_get_arr_type(whole, id);
        const size_t size = element_size(type);
        if (size == 0) {
            return shard_fail(error, SHARD_ERR_UNSUPPORTED,
                              "%s has one %s per layer in %s, which cannot be cut",
                              plan->artifact->files[0].path, gguf_type_name(type), key);
        }
        const char *data = gguf_get_arr_data(whole, id);
        gguf_set_arr_data(plan->gguf, key, type, data + size * start, end - start);
    }
    return shard_ok(error);
}

static shard_status set_keys(file_plan *plan, uint32_t start, uint32_t end, shard_error *error) {
    const shard_artifact_info *info = &plan->artifact->info;
    char key[META_KEY_SIZE];
    gguf_set_kv(plan->gguf, plan->artifact->files[0].gguf);
    remove_keys_with_prefix(plan->gguf, "split.");
    meta_key(key, info->architecture, "block_count");
    gguf_set_val_u32(plan->gguf, key, end - start);
    if (cut_layer_arrays(plan, start, end, error) != SHARD_OK) {
        return error->status;
    }
    if (end < info->n_layer) {
        remove_keys_with_prefix(plan->gguf, "tokenizer.");
        gguf_set_val_str(plan->gguf, "tokenizer.ggml.model", "none");
        meta_key(key, info->architecture, "vocab_size");
        gguf_set_val_u32(plan->gguf, key, 1);
    }
    gguf_set_val_str(plan->gguf, ARTIFACT_KEY_SHA256, info->artifact_sha256);
    gguf_set_val_u32(plan->gguf, ARTIFACT_KEY_START, start);
    gguf_set_val_u32(plan->gguf, ARTIFACT_KEY_END, end);
    gguf_set_val_u32(plan->gguf, ARTIFACT_KEY_N_LAYER, info->n_layer);
    gguf_set_val_u32(plan->gguf, ARTIFACT_KEY_N_VOCAB, info->n_vocab);
    gguf_set_val_u64(plan->gguf, ARTIFACT_KEY_EMBEDDING_BYTES, info->embedding_bytes);
    gguf_set_val_u64(plan->gguf, ARTIFACT_KEY_HEAD_BYTES, info->head_bytes);
    gguf_set_val_bool(plan->gguf, ARTIFACT_KEY_TIED_HEAD, info->tied_head);
    gguf_set_val_u64(plan->gguf, ARTIFACT_KEY_SOURCE, 0);
    return shard_ok(error);
}

/* ---- tensors ---- */

static void add_piece(file_plan *plan, const artifact_tensor *source, const char *name) {
    const struct gguf_context *gguf = plan->artifact->files[source->file].gguf;
    file_piece *added = &plan->pieces[plan->n_pieces++];
    added->source = source;
    added->type = gguf_get_tensor_type(gguf, source->id);
    added->bytes = source->bytes;
    memcpy(added->ne, gguf_get_tensor_ne(gguf, source->id), sizeof(added->ne));
    snprintf(added->name, sizeof(added->name), "%s", name);
}

/* A tensor of zeros, float32, of `n_rows` rows. It stands where the library insists on a tensor
 * whose values are never used. */
static void add_placeholder(file_plan *plan, const char *name, int64_t n_rows) {
    file_piece *added = &plan->pieces[plan->n_pieces++];
    const int64_t n_embd = plan->artifact->info.n_embd;
    *added = (file_piece){.type = GGML_TYPE_F32, .ne = {n_embd, n_rows, 1, 1}};
    added->bytes = (uint64_t)(n_embd * n_rows) * sizeof(float);
    snprintf(added->name, sizeof(added->name), "%s", name);
}

static const char *const END_TENSORS[] = {"token_embd.weight", "output_norm.weight",
                                          "output_norm.bias", "output.weight"};

static bool is_end(const char *name) {
    size_t i = 0;
    while (i < sizeof(END_TENSORS) / sizeof(END_TENSORS[0]) && strcmp(END_TENSORS[i], name) != 0) {
        i++;
    }
    return i < sizeof(END_TENSORS) / sizeof(END_TENSORS[0]);
}

/* A tensor whose place is not known must not be left out of a shard, nor put into it. */
static shard_status check_places(const shard_artifact *artifact, shard_error *error) {
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        if (tensor->layer == ARTIFACT_NO_LAYER && !is_end(tensor->name) &&
            !arch_rule_shares(artifact->rule, tensor->name)) {
            shard_fail(
                error, SHARD_ERR_UNSUPPORTED,
                "%s has a tensor \"%.64s\" that no rule for architecture %s knows, so it cannot "
                "be cut; serve it whole",
                artifact->files[tensor->file].path, tensor->name, artifact->info.architecture);
            shard_error_add(error, "tensor", "%s", tensor->name);
            return error->status;
        }
    }
    return shard_ok(error);
}

static void add_layers(file_plan *plan, uint32_t start, uint32_t end) {
    const shard_artifact *artifact = plan->artifact;
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        if (tensor->layer == ARTIFACT_NO_LAYER) {
            if (arch_rule_shares(artifact->rule, tensor->name)) {
                add_piece(plan, tensor, tensor->name);
            }
        } else if (tensor->layer >= start && tensor->layer < end) {
            char name[GGML_MAX_NAME];
            const char *rest = strchr(tensor->name + strlen("blk."), '.');
            snprintf(name, sizeof(name), "blk.%u%s", tensor->layer - start, rest);
            add_piece(plan, tensor, name);
        }
    }
}

static void add_if_present(file_plan *plan, const char *name) {
    const artifact_tensor *tensor = artifact_find(plan->artifact, name);
    if (tensor != NULL) {
        add_piece(plan, tensor, name);
    }
}

/* The embedding's and the head's tensors. */
static void add_ends(file_plan *plan, uint32_t start, uint32_t end) {
    const shard_artifact *artifact = plan->artifact;
    if (end < artifact->info.n_layer) {
        add_placeholder(plan, "token_embd.weight", 1);
        add_placeholder(plan, "output_norm.weight", 1);
        return;
    }
    add_if_present(plan, "output_norm.weight");
    add_if_present(plan, "output_norm.bias");
    if (start == 0 || artifact->info.tied_head) {
        add_if_present(plan, "token_embd.weight");
        add_if_present(plan, "output.weight");
        return;
    }
    /* Without output.weight the library takes token_embd.weight as the head, so the head alone,
     * under that name, is all that a last shard needs. */
    add_piece(plan, artifact_find(artifact, "output.weight"), "token_embd.weight");
}

/* Quantised matrices may be repacked by a backend, which then maps them no longer; the embedding
 * (or tied head) and everything else stays mapped. */
static bool may_be_repacked(const file_piece *piece) {
    return ggml_is_quantized(piece->type) && strcmp(piece->name, "token_embd.weight") != 0;
}

/* What may be repacked lies together at the end: the library unmaps what it does not use before the
 * first and behind the last tensor that it keeps mapped, but not in between. */
static int compare_pieces(const void *left, const void *right) {
    const file_piece *a = left;
    const file_piece *b = right;
    if (may_be_repacked(a) != may_be_repacked(b)) {
        return may_be_repacked(a) ? 1 : -1;
    }
    if (may_be_repacked(a) && a->type != b->type) {
        return a->type < b->type ? -1 : 1;
    }
    return strcmp(a->name, b->name);
}

static shard_status register_pieces(file_plan *plan, shard_error *error) {
    qsort(plan->pieces, plan->n_pieces, sizeof(file_piece), compare_pieces);
    plan->tensors = ggml_init((struct ggml_init_params){
        .mem_size = (plan->n_pieces + 1) * ggml_tensor_overhead(), .no_alloc = true});
    if (plan->tensors == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %u tensors", plan->n_pieces);
    }
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        const file_piece *piece = &plan->pieces[i];
        int n_dims = GGML_MAX_DIMS;
        while (n_dims > 1 && piece->ne[n_dims - 1] == 1) {
            n_dims--;
        }
        struct ggml_tensor *tensor = ggml_new_tensor(plan->tensors, piece->type, n_dims, piece->ne);
        ggml_set_name(tensor, piece->name);
        gguf_add_tensor(plan->gguf, tensor);
    }
    return shard_ok(error);
}

/* ---- plans ---- */

void shard_plan_free(file_plan *plan) {
    gguf_free(plan->gguf);
    ggml_free(plan->tensors);
    free(plan->pieces);
    *plan = (struct file_plan){0};
}

static shard_status plan_begin(file_plan *plan, const shard_artifact *artifact,
                               shard_error *error) {
    *plan = (struct file_plan){.artifact = artifact, .gguf = gguf_init_empty()};
    plan->pieces = calloc(artifact->n_tensors + 4, sizeof(file_piece));
    if (plan->gguf == NULL || plan->pieces == NULL) {
        shard_plan_free(plan);
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to plan a shard file");
    }
    return shard_ok(error);
}

shard_status shard_plan_layers(file_plan *plan, const shard_artifact *artifact, uint32_t start,
                               uint32_t end, shard_error *error) {
    if (plan_begin(plan, artifact, error) == SHARD_OK &&
        check_places(artifact, error) == SHARD_OK &&
        set_keys(plan, start, end, error) == SHARD_OK) {
        add_layers(plan, start, end);
        add_ends(plan, start, end);
        register_pieces(plan, error);
    }
    if (error->status != SHARD_OK) {
        shard_plan_free(plan);
    }
    return error->status;
}

/* The second GGUF of a self-contained first shard: all metadata of the artifact and its embedding.
 */
shard_status shard_plan_source(file_plan *plan, const shard_artifact *artifact,
                               shard_error *error) {
    if (plan_begin(plan, artifact, error) == SHARD_OK) {
        gguf_set_kv(plan->gguf, artifact->files[0].gguf);
        remove_keys_with_prefix(plan->gguf, "split.");
        add_piece(plan, artifact_find(artifact, "token_embd.weight"), "token_embd.weight");
        register_pieces(plan, error);
    }
    if (error->status != SHARD_OK) {
        shard_plan_free(plan);
    }
    return error->status;
}

uint64_t shard_plan_padded(uint64_t size, uint64_t alignment) {
    return (size + alignment - 1) / alignment * alignment;
}

uint64_t shard_plan_bytes(const file_plan *plan) {
    const uint64_t alignment = gguf_get_alignment(plan->gguf);
    uint64_t bytes = gguf_get_meta_size(plan->gguf);
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        bytes += shard_plan_padded(plan->pieces[i].bytes, alignment);
    }
    return bytes;
}
