#include "artifact_parts.h"

#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors ---- */

/* The N of "blk.N.", or ARTIFACT_NO_LAYER. */
static uint32_t layer_of(const char *name) {
    static const char PREFIX[] = "blk.";
    enum { MOST_DIGITS = 6 };
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0) {
        return ARTIFACT_NO_LAYER;
    }
    const char *digits = name + strlen(PREFIX);
    const size_t n_digits = strspn(digits, "0123456789");
    /* Without leading zeros, so that two names are never the same layer's tensor. */
    const bool is_number = n_digits > 0 && n_digits <= MOST_DIGITS && digits[n_digits] == '.' &&
                           (digits[0] != '0' || n_digits == 1);
    return is_number ? (uint32_t)strtoul(digits, NULL, 10) : ARTIFACT_NO_LAYER;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const artifact_tensor *)left)->name, ((const artifact_tensor *)right)->name);
}

static shard_status check_unique(const shard_artifact *artifact, shard_error *error) {
    for (uint32_t i = 1; i < artifact->n_tensors; i++) {
        if (strcmp(artifact->tensors[i - 1].name, artifact->tensors[i].name) == 0) {
            char what[128];
            snprintf(what, sizeof(what), "it holds the tensor %.64s twice",
                     artifact->tensors[i].name);
            return artifact_malformed(error, artifact->files[artifact->tensors[i].file].path, what);
        }
    }
    return shard_ok(error);
}

/* Lists all tensors of all files, sorted by name. */
static shard_status index_tensors(shard_artifact *artifact, shard_error *error) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < artifact->info.n_files; i++) {
        total += (uint64_t)gguf_get_n_tensors(artifact->files[i].gguf);
    }
    artifact->tensors = calloc(total + 1, sizeof(artifact_tensor));
    if (artifact->tensors == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %" PRIu64 " tensors", total);
    }
    for (uint32_t i = 0; i < artifact->info.n_files; i++) {
        const struct gguf_context *gguf = artifact->files[i].gguf;
        for (int64_t id = 0; id < gguf_get_n_tensors(gguf); id++) {
            const char *name = gguf_get_tensor_name(gguf, id);
            artifact->tensors[artifact->n_tensors++] = (artifact_tensor){
                .name = name,
                .file = i,
                .id = id,
                .layer = layer_of(name),
                .offset = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, id),
                .bytes = gguf_get_tensor_size(gguf, id),
            };
        }
    }
    qsort(artifact->tensors, artifact->n_tensors, sizeof(artifact_tensor), compare_names);
    return check_unique(artifact, error);
}

const artifact_tensor *artifact_find(const shard_artifact *artifact, const char *name) {
    const artifact_tensor key = {.name = name};
    return bsearch(&key, artifact->tensors, artifact->n_tensors, sizeof(artifact_tensor),
                   compare_names);
}

uint64_t artifact_layer_bytes(const shard_artifact *artifact, uint32_t layer) {
    /* In a slice the tensors are numbered from 0. */
    const uint32_t first = artifact->info.slice_start;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < artifact->n_tensors && layer >= first; i++) {
        bytes += artifact->tensors[i].layer == layer - first ? artifact->tensors[i].bytes : 0;
    }
    return bytes;
}

uint32_t artifact_layers_held(const shard_artifact *artifact, uint32_t start, uint32_t end) {
    uint32_t held = 0;
    for (uint32_t layer = start; layer < end; layer++) {
        held += artifact_layer_bytes(artifact, layer) > 0;
    }
    return held;
}

/* ---- digest ---- */

static shard_status hash_files(shard_artifact *artifact, const char *cache_dir,
                               digest_progress *progress, shard_error *error) {
    const uint32_t count = artifact->info.n_files;
    char(*hexes)[SHARD_SHA256_HEX_SIZE] = calloc(count, sizeof(*hexes));
    if (hexes == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %u digests", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        progress->total += (uint64_t)artifact->files[i].status.st_size;
    }
    shard_ok(error);
    if (!digest_advance(progress, 0)) {
        free(hexes);
        return shard_fail(error, SHARD_ERR_CANCELLED, "hashing %s was cancelled",
                          artifact->files[0].path);
    }
    for (uint32_t i = 0; i < count && error->status == SHARD_OK; i++) {
        artifact_file *file = &artifact->files[i];
        digest_file(file->path, cache_dir, progress, file->sha256, error);
        memcpy(hexes[i], file->sha256, sizeof(hexes[i]));
    }
    if (error->status == SHARD_OK && !artifact->info.is_slice) {
        char *hex = artifact->info.artifact_sha256;
        if (count == 1) {
            memcpy(hex, hexes[0], SHARD_SHA256_HEX_SIZE);
        } else {
            digest_of_digests((const char(*)[SHARD_SHA256_HEX_SIZE])hexes, count, hex, error);
        }
    }
    free(hexes);
    return error->status;
}

/* ---- opening and checking ---- */

shard_status artifact_open(const char *path, const char *cache_dir,
                           shard_progress_callback on_progress, void *user_data,
                           shard_artifact **out, shard_error *error) {
    digest_progress progress = {.callback = on_progress, .user_data = user_data, .phase = "digest"};
    shard_artifact *artifact = calloc(1, sizeof(*artifact));
    *out = NULL;
    if (artifact == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to open %s", path);
    }
    if (artifact_open_files(artifact, path, error) != SHARD_OK ||
        index_tensors(artifact, error) != SHARD_OK ||
        artifact_describe(artifact, error) != SHARD_OK ||
        hash_files(artifact, cache_dir, &progress, error) != SHARD_OK ||
        artifact_check_unchanged(artifact, error) != SHARD_OK) {
        artifact_close(artifact);
        return error->status;
    }
    *out = artifact;
    return SHARD_OK;
}

void artifact_close(shard_artifact *artifact) {
    if (artifact == NULL) {
        return;
    }
    for (uint32_t i = 0; artifact->files != NULL && i < artifact->info.n_files; i++) {
        gguf_free(artifact->files[i].gguf);
    }
    free(artifact->files);
    free(artifact->tensors);
    free(artifact);
}

static shard_status refuse_range(const shard_artifact *artifact, uint32_t start, uint32_t end,
                                 shard_status status, const char *why, shard_error *error) {
    shard_fail(error, status, "layers %u:%u of %s cannot be served: %s", start, end,
               artifact->files[0].path, why);
    shard_error_add(error, "layer_start", "%u", start);
    shard_error_add(error, "layer_end", "%u", end);
    shard_error_add(error, "n_layer", "%u", artifact->info.n_layer);
    return status;
}

static shard_status check_can_be_served(const shard_artifact *artifact, shard_error *error) {
    const shard_artifact_info *info = &artifact->info;
    if (artifact->can_be_served) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_UNSUPPORTED, "%s cannot be served: %s", artifact->files[0].path,
               info->reason);
    shard_error_add(error, "architecture", "%s", info->architecture);
    return error->status;
}

/* A slice was cut where it might be; all others are judged by the rule. */
static shard_status check_cut(const shard_artifact *artifact, uint32_t start, uint32_t end,
                              shard_error *error) {
    const shard_artifact_info *info = &artifact->info;
    const arch_model model = {
        .rule = artifact->rule, .gguf = artifact->files[0].gguf, .n_layer = info->n_layer};
    char why[SHARD_MESSAGE_SIZE];
    if (info->is_slice || (start == 0 && end == info->n_layer)) {
        return shard_ok(error);
    }
    if (!info->supported) {
        return refuse_range(artifact, start, end, SHARD_ERR_UNSUPPORTED, info->reason, error);
    }
    if (!arch_cuts_allow(&model, info->cut_period, start, end, why, sizeof(why))) {
        return refuse_range(artifact, start, end, SHARD_ERR_UNSUPPORTED, why, error);
    }
    return shard_ok(error);
}

shard_status artifact_check_range(const shard_artifact *artifact, uint32_t *start, uint32_t *end,
                                  shard_error *error) {
    const shard_artifact_info *info = &artifact->info;
    char why[256];
    if (check_can_be_served(artifact, error) != SHARD_OK) {
        return error->status;
    }
    if (info->is_slice && *start == 0 && *end == 0) {
        *start = info->slice_start;
    }
    if (*end == 0) {
        *end = info->is_slice ? info->slice_end : info->n_layer;
    }
    if (info->is_slice && (*start != info->slice_start || *end != info->slice_end)) {
        snprintf(why, sizeof(why), "it is a slice that holds layers %u:%u only", info->slice_start,
                 info->slice_end);
        return refuse_range(artifact, *start, *end, SHARD_ERR_RANGE, why, error);
    }
    if (*start >= *end || *end > info->n_layer) {
        snprintf(why, sizeof(why),
                 "the model has %u layers, so a range START:END needs 0 <= START < END <= %u",
                 info->n_layer, info->n_layer);
        return refuse_range(artifact, *start, *end, SHARD_ERR_RANGE, why, error);
    }
    return check_cut(artifact, *start, *end, error);
}

shard_status artifact_check_unchanged(const shard_artifact *artifact, shard_error *error) {
    for (uint32_t i = 0; i < artifact->info.n_files; i++) {
        const artifact_file *file = &artifact->files[i];
        struct stat now;
        if (stat(file->path, &now) != 0 || !files_are_same(&file->status, &now)) {
            shard_fail(error, SHARD_ERR_IDENTITY,
                       "%s changed while it was being read: let the copy finish and try again",
                       file->path);
            shard_error_add(error, "field", "artifact");
            shard_error_add(error, "path", "%s", file->path);
            return error->status;
        }
    }
    return shard_ok(error);
}

bool artifact_has_file(const shard_artifact *artifact, const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < artifact->info.n_files; i++) {
        const struct stat *file = &artifact->files[i].status;
        if (file->st_dev == status.st_dev && file->st_ino == status.st_ino) {
            return true;
        }
    }
    return false;
}
