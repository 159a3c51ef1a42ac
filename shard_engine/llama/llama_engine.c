/* The llama engine's table: stock llama.cpp behind shard_engine.h. */
#include "artifact.h"
#include "engine.h"
#include "error.h"
#include "estimate.h"
#include "log.h"
#include "pin.h"
#include "recipe_rules.h"
#include "registry.h"
#include "sampling_rules.h"
#include "shard_file.h"

#include <stdio.h>
#include <unistd.h>

static shard_status llama_artifact_open(const char *model_path, const char *cache_dir,
                                        shard_progress_callback on_progress, void *user_data,
                                        shard_artifact **out, shard_error *error) {
    log_install();
    return artifact_open(model_path, cache_dir, on_progress, user_data, out, error);
}

static void llama_artifact_info(const shard_artifact *artifact, shard_artifact_info *info) {
    *info = artifact->info;
}

static bool llama_artifact_file(const shard_artifact *artifact, uint32_t index,
                                shard_artifact_file *file) {
    if (index >= artifact->info.n_files) {
        return false;
    }
    const artifact_file *found = &artifact->files[index];
    file->bytes = (uint64_t)found->status.st_size;
    snprintf(file->path, sizeof(file->path), "%s", found->path);
    snprintf(file->sha256, sizeof(file->sha256), "%s", found->sha256);
    return true;
}

static shard_status llama_slice(const char *model_path, const char *cache_dir, uint32_t layer_start,
                                uint32_t layer_end, const char *output_path, bool overwrite,
                                shard_progress_callback on_progress, void *user_data,
                                uint64_t *bytes_out, shard_error *error) {
    const shard_file_options options = {.self_contained = true,
                                        .keeps_existing = !overwrite,
                                        .on_progress = on_progress,
                                        .user_data = user_data};
    shard_artifact *artifact = NULL;
    log_install();
    if (!overwrite && access(output_path, F_OK) == 0) {
        return files_exists_error(output_path, error);
    }
    if (artifact_open(model_path, cache_dir, on_progress, user_data, &artifact, error) !=
        SHARD_OK) {
        return error->status;
    }
    if (artifact->info.is_slice) {
        shard_fail(error, SHARD_ERR_UNSUPPORTED, "%s is a slice already: slice the whole artifact",
                   model_path);
    } else if (artifact_has_file(artifact, output_path)) {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "%s is a file of the artifact itself: choose another output", output_path);
    } else if (artifact_check_range(artifact, &layer_start, &layer_end, error) == SHARD_OK) {
        shard_file_write(artifact, layer_start, layer_end, output_path, &options, bytes_out, error);
    }
    artifact_close(artifact);
    return error->status;
}

static void llama_describe(const shard_engine *engine, shard_description *description) {
    *description = engine->description;
}

static uint32_t llama_kv_cells_used(const shard_engine *engine) {
    return engine->cells.n_used;
}

static shard_status llama_engine_tokenize(shard_engine *engine, const char *text, uint32_t n_bytes,
                                          bool add_special, bool parse_special, int32_t *tokens,
                                          uint32_t capacity, uint32_t *n_tokens,
                                          shard_error *error) {
    return vocabulary_tokenize(&engine->vocabulary, text, n_bytes, add_special, parse_special,
                               tokens, capacity, n_tokens, error);
}

static shard_status llama_engine_detokenize(shard_engine *engine, const int32_t *tokens,
                                            uint32_t n_tokens, bool remove_special,
                                            bool unparse_special, char *text, uint32_t capacity,
                                            uint32_t *n_bytes, shard_error *error) {
    return vocabulary_detokenize(&engine->vocabulary, tokens, n_tokens, remove_special,
                                 unparse_special, text, capacity, n_bytes, error);
}

static shard_status llama_engine_token_info(shard_engine *engine, int32_t token,
                                            shard_token_info *info, shard_error *error) {
    return vocabulary_token_info(&engine->vocabulary, token, info, error);
}

static shard_status llama_engine_vocabulary(shard_engine *engine, shard_vocabulary *out,
                                            shard_error *error) {
    return vocabulary_describe(&engine->vocabulary, out, error);
}

static shard_status llama_engine_chat_template(shard_engine *engine, const char *name, char *text,
                                               uint32_t capacity, uint32_t *n_bytes,
                                               shard_error *error) {
    return vocabulary_chat_template(&engine->vocabulary, name, text, capacity, n_bytes, error);
}

static void llama_cancel(shard_engine *engine) {
    atomic_store_explicit(&engine->cancel, true, memory_order_relaxed);
}

static uint64_t llama_progress(const shard_engine *engine) {
    return atomic_load_explicit(&engine->progress, memory_order_relaxed);
}

const shard_engine_api shard_llama_engine = {
    .abi_version = SHARD_ENGINE_ABI_VERSION,
    .name = "llama",
    .default_params = recipe_rules_defaults,
    .build = pin_build,
    .artifact_open = llama_artifact_open,
    .artifact_info = llama_artifact_info,
    .artifact_file = llama_artifact_file,
    .artifact_layer_bytes = artifact_layer_bytes,
    .artifact_close = artifact_close,
    .slice = llama_slice,
    .estimate = engine_estimate,
    .open = engine_open,
    .close = engine_close,
    .describe = llama_describe,
    .kv_cells_used = llama_kv_cells_used,
    .default_sampling = sampling_rules_defaults,
    .session_open = engine_session_open,
    .session_fork = engine_session_fork,
    .session_length = engine_session_length,
    .session_trim = engine_session_trim,
    .session_close = engine_session_close,
    .step = engine_step,
    .tokenize = llama_engine_tokenize,
    .detokenize = llama_engine_detokenize,
    .token_info = llama_engine_token_info,
    .vocabulary = llama_engine_vocabulary,
    .chat_template = llama_engine_chat_template,
    .cancel = llama_cancel,
    .progress = llama_progress,
};
