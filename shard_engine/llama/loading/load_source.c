#include "load_source.h"

#include "cache.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool load_report(const shard_params *params, const char *phase, uint64_t done, uint64_t total) {
    return params->on_progress == NULL ||
           params->on_progress(phase, done, total, params->user_data);
}

static shard_status check_expected(const load_source *source, shard_error *error) {
    const char *expected = source->params->expected_artifact;
    const char *actual = source->artifact->info.artifact_sha256;
    if (expected == NULL || strcmp(expected, actual) == 0) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_IDENTITY, "%s has sha256 %s, not %s: get the right artifact",
               source->params->model_path, actual, expected);
    shard_error_add(error, "field", "artifact");
    shard_error_add(error, "expected", "%s", expected);
    shard_error_add(error, "actual", "%s", actual);
    return error->status;
}

static shard_status find_shard_file(load_source *source, shard_error *error) {
    const shard_params *params = source->params;
    const shard_artifact_info *info = &source->artifact->info;
    source->is_whole = !info->is_slice && source->start == 0 && source->end == info->n_layer;
    if (source->is_whole || info->is_slice) {
        memcpy(source->path, source->artifact->files[0].path, sizeof(source->path));
        memcpy(source->sha256,
               source->is_whole ? info->artifact_sha256 : source->artifact->files[0].sha256,
               sizeof(source->sha256));
        return shard_ok(error);
    }
    if (params->cache_dir == NULL) {
        return shard_fail(
            error, SHARD_ERR_ARGUMENT,
            "layers %u:%u of %s need a shard file: set cache_dir, or open an exported "
            "slice",
            source->start, source->end, params->model_path);
    }
    return cache_shard_file(source->artifact, source->start, source->end, params->cache_dir,
                            params->on_progress, params->user_data, source->path, source->sha256,
                            error);
}

static shard_status look_at_file(load_source *source, shard_error *error) {
    int fd = -1;
    if (files_open(source->path, &fd, &source->file_status, error) == SHARD_OK) {
        close(fd);
        source->bytes = source->is_whole ? source->artifact->info.tensor_bytes
                                         : (uint64_t)source->file_status.st_size;
    }
    return error->status;
}

shard_status load_source_check_unchanged(const load_source *source, shard_error *error) {
    struct stat now;
    if (artifact_check_unchanged(source->artifact, error) != SHARD_OK) {
        return error->status;
    }
    if (stat(source->path, &now) != 0 || !files_are_same(&source->file_status, &now)) {
        shard_fail(error, SHARD_ERR_IDENTITY,
                   "the shard file %s changed while it was being loaded: load again", source->path);
        shard_error_add(error, "field", "shard");
        shard_error_add(error, "path", "%s", source->path);
    }
    return error->status;
}

shard_status load_source_find(load_source *source, shard_error *error) {
    const shard_params *params = source->params;
    source->start = params->layer_start;
    source->end = params->layer_end;
    if (artifact_open(params->model_path, params->cache_dir, params->on_progress, params->user_data,
                      &source->artifact, error) != SHARD_OK ||
        check_expected(source, error) != SHARD_OK ||
        artifact_check_range(source->artifact, &source->start, &source->end, error) != SHARD_OK) {
        return error->status;
    }
    if (find_shard_file(source, error) != SHARD_OK) {
        return error->status;
    }
    return look_at_file(source, error);
}

bool load_source_is_last(const load_source *source) {
    return source->end == source->artifact->info.n_layer;
}

bool load_source_takes_tokens(const load_source *source) {
    return source->start == 0 && load_source_is_last(source);
}

step_shape load_source_shape(const load_source *source, uint32_t n_vocab) {
    return (step_shape){
        .n_batch = source->params->recipe.n_batch,
        .max_sessions = source->params->max_sessions,
        .n_embd = source->artifact->info.n_embd,
        .n_vocab = load_source_is_last(source) ? n_vocab : 0,
        .takes_tokens = load_source_takes_tokens(source),
    };
}

uint32_t load_source_states_at_once(const load_source *source) {
    const shard_params *params = source->params;
    const uint32_t n_ubatch = params->recipe.n_ubatch;
    return n_ubatch < params->max_sessions ? n_ubatch : params->max_sessions;
}

struct llama_model *load_source_model(const load_source *source, struct llama_model_params params) {
    const uint32_t count = source->artifact->info.n_files;
    if (!source->is_whole || count == 1) {
        return llama_model_load_from_file(source->path, params);
    }
    const char **paths = calloc(count, sizeof(*paths));
    if (paths == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        paths[i] = source->artifact->files[i].path;
    }
    struct llama_model *model = llama_model_load_from_splits(paths, count, params);
    free(paths);
    return model;
}
