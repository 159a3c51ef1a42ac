/* What an artifact is, by its metadata and its tensors. */
#include "artifact_parts.h"

#include "arch_check.h"
#include "error.h"
#include "meta.h"

#include <stdio.h>
#include <string.h>

/* ---- what it is ---- */

enum { MAX_LAYERS = 65536 };

static uint64_t tensor_bytes(const shard_artifact *artifact, const char *name) {
    const artifact_tensor *tensor = artifact_find(artifact, name);
    return tensor != NULL ? tensor->bytes : 0;
}

static void describe_quantization(shard_artifact *artifact) {
    uint64_t bytes_of[GGML_TYPE_COUNT] = {0};
    enum ggml_type most = GGML_TYPE_F32;
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        const artifact_tensor *tensor = &artifact->tensors[i];
        const enum ggml_type type =
            gguf_get_tensor_type(artifact->files[tensor->file].gguf, tensor->id);
        if ((unsigned)type < GGML_TYPE_COUNT) {
            bytes_of[type] += tensor->bytes;
            most = bytes_of[type] > bytes_of[most] ? type : most;
        }
        artifact->info.tensor_bytes += tensor->bytes;
    }
    snprintf(artifact->info.quantization, sizeof(artifact->info.quantization), "%s",
             ggml_type_name(most));
}

/* A slice may hold neither, so it records what the whole artifact has. */
static void describe_ends(shard_artifact *artifact) {
    const struct gguf_context *gguf = artifact->files[0].gguf;
    shard_artifact_info *info = &artifact->info;
    uint64_t tied = 0;
    if (meta_string(gguf, ARTIFACT_KEY_SHA256) != NULL &&
        meta_u64(gguf, ARTIFACT_KEY_EMBEDDING_BYTES, &info->embedding_bytes) &&
        meta_u64(gguf, ARTIFACT_KEY_HEAD_BYTES, &info->head_bytes) &&
        meta_u64(gguf, ARTIFACT_KEY_TIED_HEAD, &tied)) {
        info->tied_head = tied != 0;
        return;
    }
    info->embedding_bytes = tensor_bytes(artifact, "token_embd.weight");
    info->tied_head = artifact_find(artifact, "output.weight") == NULL;
    info->head_bytes =
        tensor_bytes(artifact, "output_norm.weight") +
        (info->tied_head ? info->embedding_bytes : tensor_bytes(artifact, "output.weight"));
}

static uint32_t vocabulary_size(const shard_artifact *artifact) {
    const struct gguf_context *gguf = artifact->files[0].gguf;
    const artifact_tensor *embedding = artifact_find(artifact, "token_embd.weight");
    uint32_t recorded = 0;
    if (meta_string(gguf, ARTIFACT_KEY_SHA256) != NULL &&
        meta_u32(gguf, ARTIFACT_KEY_N_VOCAB, &recorded)) {
        return recorded;
    }
    if (embedding == NULL) {
        return 0;
    }
    return (uint32_t)gguf_get_tensor_ne(artifact->files[embedding->file].gguf, embedding->id)[1];
}

/* Layers at the end that predict further tokens, and are not part of computing the next one. */
static uint32_t further_layers(const shard_artifact *artifact) {
    const arch_rule *rule = artifact->rule;
    char key[META_KEY_SIZE];
    char probe[GGML_MAX_NAME];
    uint32_t count = 0;
    if (rule == NULL) {
        return 0;
    }
    meta_key(key, rule->architecture, "nextn_predict_layers");
    if (!meta_u32(artifact->files[0].gguf, key, &count) || count >= artifact->n_file_layers) {
        return 0;
    }
    snprintf(probe, sizeof(probe), "blk.%u.nextn.eh_proj.weight", artifact->n_file_layers - count);
    return rule->may_lack_next_layers && artifact_find(artifact, probe) == NULL ? 0 : count;
}

static void describe_keys(shard_artifact *artifact, const char *architecture) {
    const struct gguf_context *gguf = artifact->files[0].gguf;
    shard_artifact_info *info = &artifact->info;
    const char *name = meta_string(gguf, "general.name");
    char key[META_KEY_SIZE];
    snprintf(info->architecture, sizeof(info->architecture), "%s", architecture);
    snprintf(info->model_name, sizeof(info->model_name), "%s", name != NULL ? name : "");
    meta_key(key, architecture, "block_count");
    meta_u32(gguf, key, &artifact->n_file_layers);
    info->n_layer = artifact->n_file_layers - further_layers(artifact);
    meta_key(key, architecture, "embedding_length");
    meta_u32(gguf, key, &info->n_embd);
    meta_key(key, architecture, "context_length");
    meta_u32(gguf, key, &info->n_ctx_train);
    meta_key(key, architecture, "expert_count");
    meta_u32(gguf, key, &info->n_expert);
    info->n_tensors = artifact->n_tensors;
    info->n_vocab = vocabulary_size(artifact);
}

/* A slice says which layers of which artifact it holds; the rest of `info` is about the whole. */
static shard_status describe_slice(shard_artifact *artifact, shard_error *error) {
    const struct gguf_context *gguf = artifact->files[0].gguf;
    shard_artifact_info *info = &artifact->info;
    const char *sha256 = meta_string(gguf, ARTIFACT_KEY_SHA256);
    if (sha256 == NULL) {
        return shard_ok(error);
    }
    const uint32_t held = info->n_layer;
    if (strlen(sha256) != SHARD_SHA256_HEX_SIZE - 1 ||
        !meta_u32(gguf, ARTIFACT_KEY_START, &info->slice_start) ||
        !meta_u32(gguf, ARTIFACT_KEY_END, &info->slice_end) ||
        !meta_u32(gguf, ARTIFACT_KEY_N_LAYER, &info->n_layer) || info->n_layer > MAX_LAYERS ||
        info->slice_end > info->n_layer || info->slice_start >= info->slice_end ||
        info->slice_end - info->slice_start != held) {
        return artifact_malformed(error, artifact->files[0].path,
                                  "its slice metadata is inconsistent");
    }
    meta_u64(gguf, ARTIFACT_KEY_SOURCE, &artifact->source_offset);
    if (artifact->source_offset >= (uint64_t)artifact->files[0].status.st_size) {
        return artifact_malformed(error, artifact->files[0].path,
                                  "it is truncated inside its vocabulary");
    }
    snprintf(info->artifact_sha256, sizeof(info->artifact_sha256), "%s", sha256);
    info->is_slice = true;
    return shard_ok(error);
}

static shard_status check_layers_present(const shard_artifact *artifact, shard_error *error) {
    const shard_artifact_info *info = &artifact->info;
    const uint32_t start = info->slice_start;
    const uint32_t end = info->is_slice ? info->slice_end : info->n_layer;
    for (uint32_t layer = start; layer < end; layer++) {
        if (artifact_layer_bytes(artifact, layer) == 0) {
            char what[96];
            snprintf(what, sizeof(what), "it has no tensor of layer %u of %u", layer,
                     info->n_layer);
            return artifact_malformed(error, artifact->files[0].path, what);
        }
    }
    return shard_ok(error);
}

/* False, with the reason, where a tensor is there that the library crashes over. */
static bool check_lacks(shard_artifact *artifact) {
    const char *end = artifact->rule->must_lack;
    for (uint32_t i = 0; end != NULL && i < artifact->n_tensors; i++) {
        const char *name = artifact->tensors[i].name;
        if (strlen(name) > strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0) {
            snprintf(artifact->info.reason, sizeof(artifact->info.reason),
                     "llama.cpp crashes over a %s with a tensor %.64s", artifact->info.architecture,
                     name);
            return false;
        }
    }
    return true;
}

/* False, with the reason, where the library's own buffers could not begin at the tensors. */
static bool check_alignment(shard_artifact *artifact) {
    for (uint32_t i = 0; i < artifact->info.n_files; i++) {
        const size_t alignment = gguf_get_alignment(artifact->files[i].gguf);
        if (alignment % GGUF_DEFAULT_ALIGNMENT != 0) {
            snprintf(artifact->info.reason, sizeof(artifact->info.reason),
                     "its tensors are aligned to %zu bytes (general.alignment), and llama.cpp "
                     "aborts unless that is a multiple of %d; convert it again",
                     alignment, GGUF_DEFAULT_ALIGNMENT);
            return false;
        }
    }
    return true;
}

static void judge(shard_artifact *artifact) {
    shard_artifact_info *info = &artifact->info;
    const arch_rule *rule = artifact->rule;
    const struct gguf_context *gguf = artifact->files[0].gguf;
    const uint32_t held = info->is_slice ? info->slice_end - info->slice_start : info->n_layer;
    const arch_model model = {.rule = rule, .gguf = gguf, .n_layer = held};
    if (rule == NULL) {
        snprintf(info->reason, sizeof(info->reason),
                 "architecture \"%s\" is not in this build's table", info->architecture);
        return;
    }
    if (!arch_check(rule, gguf, artifact->n_file_layers, info->reason, sizeof(info->reason))) {
        return;
    }
    if (!arch_cuts_are_mixed(&model, 0, held)) {
        snprintf(info->reason, sizeof(info->reason),
                 "all of its layers are of one kind, and llama.cpp aborts over that in a %s",
                 info->architecture);
        return;
    }
    if (!check_lacks(artifact) || !check_alignment(artifact)) {
        return;
    }
    artifact->can_be_served = rule->use != ARCH_REFUSED;
    info->cut_period =
        info->is_slice ? 1 : arch_cuts_period(&model, info->reason, sizeof(info->reason));
    info->supported = info->cut_period > 0;
}

shard_status artifact_describe(shard_artifact *artifact, shard_error *error) {
    const char *path = artifact->files[0].path;
    const char *architecture = meta_string(artifact->files[0].gguf, "general.architecture");
    if (architecture == NULL || strlen(architecture) >= SHARD_NAME_SIZE) {
        return artifact_malformed(error, path, "it does not name its architecture");
    }
    artifact->rule = arch_rule_find(architecture);
    describe_keys(artifact, architecture);
    if (artifact->info.n_layer > MAX_LAYERS) {
        return artifact_malformed(error, path, "it claims to have more layers than any model");
    }
    describe_quantization(artifact);
    describe_ends(artifact);
    if (describe_slice(artifact, error) != SHARD_OK) {
        return error->status;
    }
    judge(artifact);
    if (!artifact->can_be_served) {
        return shard_ok(error); /* still worth looking at */
    }
    if (artifact_find(artifact, "token_embd.weight") == NULL) {
        return artifact_malformed(error, path, "it has no token_embd.weight");
    }
    return artifact->rule->use == ARCH_CUT ? check_layers_present(artifact, error)
                                           : shard_ok(error);
}
