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

/* All keys of the artifact but those of its files: how they are split, and how their tensors are
 * aligned, for which a plan has its own way (a GGUF without the key means it). */
static void copy_keys(file_plan *plan) {
    gguf_set_kv(plan->gguf, plan->artifact->files[0].gguf);
    remove_keys_with_prefix(plan->gguf, "split.");
    gguf_remove_key(plan->gguf, "general.alignment");
}

/* True for an array with one value per layer, of those that are served or of all in the file. */
static bool is_per_layer(const file_plan *plan, int64_t id) {
    const shard_artifact *artifact = plan->artifact;
    const struct gguf_context *whole = artifact->files[0].gguf;
    const char *key = gguf_get_key(whole, id);
    char prefix[META_KEY_SIZE];
    char sections[META_KEY_SIZE];
    meta_key(prefix, artifact->info.architecture, "");
    meta_key(sections, artifact->info.architecture, "rope.dimension_sections");
    const bool has_prefix =
        strncmp(key, prefix, strlen(prefix)) == 0 || strncmp(key, "xielu.", strlen("xielu.")) == 0;
    if (gguf_get_kv_type(whole, id) != GGUF_TYPE_ARRAY || !has_prefix ||
        strcmp(key, sections) == 0) {
        return false;
    }
    const uint64_t length = gguf_get_arr_n(whole, id);
    return length == artifact->info.n_layer || length == artifact->n_file_layers;
}

/* Cuts each array of the architecture that has one value per layer to the range. */
static shard_status cut_layer_arrays(file_plan *plan, uint32_t start, uint32_t end,
                                     shard_error *error) {
    const struct gguf_context *whole = plan->artifact->files[0].gguf;
    for (int64_t id = 0; id < gguf_get_n_kv(whole); id++) {
        const char *key = gguf_get_key(whole, id);
        if (!is_per_layer(plan, id)) {
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

static void set_u32_if_present(file_plan *plan, const char *suffix, uint32_t value) {
    char key[META_KEY_SIZE];
    meta_key(key, plan->artifact->info.architecture, suffix);
    if (gguf_find_key(plan->gguf, key) >= 0) {
        gguf_set_val_u32(plan->gguf, key, value);
    }
}

/* Keys that count layers from the model's first or last one, or that speak of what a shard has not.
 */
static void set_layer_keys(file_plan *plan, uint32_t start, uint32_t end) {
    const shard_artifact *artifact = plan->artifact;
    const struct gguf_context *whole = artifact->files[0].gguf;
    const char *architecture = artifact->info.architecture;
    char key[META_KEY_SIZE];
    uint32_t n_dense = 0;
    meta_key(key, architecture, "block_count");
    gguf_set_val_u32(plan->gguf, key, end - start);
    meta_key(key, architecture, "leading_dense_block_count");
    meta_u32(whole, key, &n_dense);
    set_u32_if_present(plan, "leading_dense_block_count", n_dense > start ? n_dense - start : 0);
    /* Layers that predict further tokens are not served. */
    set_u32_if_present(plan, "nextn_predict_layers", 0);
    /* Images would add rows of their own to the first layers; texts add zeros. */
    set_u32_if_present(plan, "n_deepstack_layers", 0);
    meta_key(key, architecture, "deepstack_mapping");
    gguf_remove_key(plan->gguf, key);
    if (artifact->rule->settle != NULL) {
        artifact->rule->settle(plan->gguf, whole, artifact->info.n_layer);
    }
}

/* The first stage's graph multiplies its rows; after that they must stay as they are. */
static void set_input_scale(file_plan *plan, uint32_t start) {
    const arch_rule *rule = plan->artifact->rule;
    char key[META_KEY_SIZE];
    meta_key(key, rule->architecture, "embedding_scale");
    if (start > 0 && rule->input == ARCH_INPUT_SCALE_KEY &&
        (rule->input_scale != 0.0f || gguf_find_key(plan->gguf, key) >= 0)) {
        gguf_set_val_f32(plan->gguf, key, 1.0f);
    }
}

static shard_status set_keys(file_plan *plan, uint32_t start, uint32_t end, shard_error *error) {
    const shard_artifact_info *info = &plan->artifact->info;
    char key[META_KEY_SIZE];
    copy_keys(plan);
    if (cut_layer_arrays(plan, start, end, error) != SHARD_OK) {
        return error->status;
    }
    set_layer_keys(plan, start, end);
    set_input_scale(plan, start);
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

static bool is_embedding(const char *name) {
    return strcmp(name, "token_embd.weight") == 0;
}

/* Zeros instead of `source`, for the library insists on tensors whose values are never used, with
 * their shapes: all rows, or only one where it takes a vocabulary of one token. */
static void add_zeros(file_plan *plan, const artifact_tensor *source, bool one_row) {
    add_piece(plan, source, source->name);
    file_piece *added = &plan->pieces[plan->n_pieces - 1];
    added->source = NULL;
    if (one_row) {
        added->ne[added->ne[1] > 1 ? 1 : 0] = 1;
    }
    /* A whole embedding is a hole in the file. Where it is not mapped it takes memory, so it is of
     * a type that takes little. */
    const bool can_be_small = added->ne[0] % ggml_blck_size(GGML_TYPE_Q4_0) == 0;
    added->type =
        is_embedding(source->name) && can_be_small && !one_row ? GGML_TYPE_Q4_0 : GGML_TYPE_F32;
    added->bytes = ggml_row_size(added->type, added->ne[0]) * (uint64_t)added->ne[1];
}

/* Of the tensors that belong to no layer: those of the head. */
static bool is_head(const char *name) {
    return strncmp(name, "output.", strlen("output.")) == 0 ||
           strncmp(name, "output_norm.", strlen("output_norm.")) == 0;
}

/* Positions are added once, to the embedding. */
static bool is_positions(const char *name) {
    return strcmp(name, "position_embd.weight") == 0;
}

/* What is made of the last rows instead of a next token: embeddings and classes. */
static bool is_not_served(const char *name) {
    static const char *const PREFIXES[] = {"cls.", "dense_2.", "dense_3."};
    for (size_t i = 0; i < sizeof(PREFIXES) / sizeof(PREFIXES[0]); i++) {
        if (strncmp(name, PREFIXES[i], strlen(PREFIXES[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* A tensor whose place is not known must not be left out of a shard, nor put into it. */
static shard_status check_places(const shard_artifact *artifact, shard_error *error) {
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        if (tensor->layer == ARTIFACT_NO_LAYER && !is_head(tensor->name) &&
            !is_embedding(tensor->name) && !is_positions(tensor->name) &&
            !is_not_served(tensor->name) && !arch_rule_shares(artifact->rule, tensor->name)) {
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

/* What a shard without a head holds instead: a vocabulary of one token. */
static void add_empty_ends(file_plan *plan) {
    const shard_artifact *artifact = plan->artifact;
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        if (tensor->layer != ARTIFACT_NO_LAYER) {
            continue;
        }
        if (is_head(tensor->name)) {
            add_zeros(plan, tensor, strncmp(tensor->name, "output.", strlen("output.")) == 0);
        } else if (is_embedding(tensor->name)) {
            add_zeros(plan, tensor, true);
        }
    }
}

/* True where output.weight can take the place of token_embd.weight: without the former the library
 * ties the head to the latter. What else there is beside the head is found under the head's name.
 */
static bool head_can_be_tied(const shard_artifact *artifact) {
    return !artifact->rule->head_is_required && artifact_find(artifact, "output.scale") == NULL &&
           artifact_find(artifact, "output.input_scale") == NULL;
}

/* The head with all that belongs to it. Only the first stage or a tied head uses the embedding. */
static void add_head(file_plan *plan, bool uses_embedding) {
    const shard_artifact *artifact = plan->artifact;
    const bool is_renamed = !uses_embedding && head_can_be_tied(artifact);
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        if (tensor->layer != ARTIFACT_NO_LAYER) {
            continue;
        }
        if (is_embedding(tensor->name) && uses_embedding) {
            add_piece(plan, tensor, tensor->name);
        } else if (is_embedding(tensor->name) && !is_renamed) {
            add_zeros(plan, tensor, false);
        } else if (is_head(tensor->name)) {
            const bool takes_place = is_renamed && strcmp(tensor->name, "output.weight") == 0;
            add_piece(plan, tensor, takes_place ? "token_embd.weight" : tensor->name);
        }
    }
}

/* The embedding's and the head's tensors. */
static void add_ends(file_plan *plan, uint32_t start, uint32_t end) {
    const shard_artifact *artifact = plan->artifact;
    const artifact_tensor *positions = artifact_find(artifact, "position_embd.weight");
    if (positions != NULL && start == 0) {
        add_piece(plan, positions, positions->name);
    } else if (positions != NULL) {
        add_zeros(plan, positions, false);
    }
    if (end < artifact->info.n_layer) {
        add_empty_ends(plan);
    } else {
        add_head(plan, start == 0 || artifact->info.tied_head);
    }
}

/* Quantised matrices may be repacked by a backend, which then maps them no longer; the embedding
 * (or tied head) and everything else stays mapped. */
static bool may_be_repacked(const file_piece *piece) {
    return ggml_is_quantized(piece->type) && !is_embedding(piece->name);
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
    plan->pieces = calloc(artifact->n_tensors, sizeof(file_piece));
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
        copy_keys(plan);
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

uint64_t shard_plan_hole_bytes(const file_plan *plan) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        bytes += plan->pieces[i].source == NULL ? plan->pieces[i].bytes : 0;
    }
    return bytes;
}

uint64_t shard_plan_bytes(const file_plan *plan) {
    const uint64_t alignment = gguf_get_alignment(plan->gguf);
    uint64_t bytes = gguf_get_meta_size(plan->gguf);
    for (uint32_t i = 0; i < plan->n_pieces; i++) {
        bytes += shard_plan_padded(plan->pieces[i].bytes, alignment);
    }
    return bytes;
}
