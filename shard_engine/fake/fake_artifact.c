#include "fake_artifact.h"

#include "error.h"
#include "fake_model.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct shard_artifact {
    fake_spec spec;
    char path[sizeof(((shard_artifact_file *)0)->path)]; /* of the slice file, else empty */
};

static shard_status report(const char *phase, uint64_t done, uint64_t total,
                           shard_progress_callback on_progress, void *user_data,
                           shard_error *error) {
    if (on_progress != NULL && !on_progress(phase, done, total, user_data)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "the %s was cancelled", phase);
    }
    return SHARD_OK;
}

/* ---- inspecting ---- */

shard_status fake_artifact_digest(const char *model_path, shard_progress_callback on_progress,
                                  void *user_data, fake_spec *spec, shard_error *error) {
    if (fake_spec_read(model_path, spec, error) != SHARD_OK) {
        return error->status;
    }
    char text[FAKE_TEXT_SIZE];
    const uint64_t total = fake_spec_text(spec, text);
    if (report("digest", 0, total, on_progress, user_data, error) != SHARD_OK) {
        return error->status;
    }
    return report("digest", total, total, on_progress, user_data, error);
}

shard_status fake_artifact_open(const char *model_path, const char *cache_dir,
                                shard_progress_callback on_progress, void *user_data,
                                shard_artifact **out, shard_error *error) {
    (void)cache_dir; /* A specification is cheaper to hash than to look up. */
    fake_spec spec;
    *out = NULL;
    if (fake_artifact_digest(model_path, on_progress, user_data, &spec, error) != SHARD_OK) {
        return error->status;
    }
    shard_artifact *artifact = calloc(1, sizeof(*artifact));
    if (artifact == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "the artifact's record could not be allocated");
    }
    artifact->spec = spec;
    if (spec.is_slice) {
        snprintf(artifact->path, sizeof(artifact->path), "%s", model_path);
    }
    *out = artifact;
    return shard_ok(error);
}

void fake_artifact_info(const shard_artifact *artifact, shard_artifact_info *info) {
    const fake_spec *spec = &artifact->spec;
    const bool first = spec->start == 0;
    const bool last = spec->end == spec->n_layer;
    const uint32_t n_layers = spec->end - spec->start;
    *info = (shard_artifact_info){
        .architecture = "fake",
        .quantization = "i32",
        .n_files = spec->is_slice ? 1 : 0,
        .n_layer = spec->n_layer,
        .n_embd = spec->n_embd,
        .n_vocab = spec->n_vocab,
        .n_ctx_train = UINT32_MAX,
        .n_tensors = FAKE_TENSORS_PER_LAYER * n_layers + first + last,
        .embedding_bytes = first ? fake_embedding_bytes(spec) : 0,
        .head_bytes = last ? fake_embedding_bytes(spec) : 0,
        .is_slice = spec->is_slice,
        .slice_start = spec->is_slice ? spec->start : 0,
        .slice_end = spec->is_slice ? spec->end : 0,
        .supported = true,
        .cut_period = 1,
    };
    info->tensor_bytes =
        fake_layer_bytes(spec) * n_layers + info->embedding_bytes + info->head_bytes;
    fake_artifact_sha256(spec, info->artifact_sha256);
    fake_spec_text(spec, info->model_name);
}

_Static_assert(sizeof(((shard_artifact_info *)0)->model_name) == FAKE_TEXT_SIZE,
               "the canonical specification is the model's name");

bool fake_artifact_file(const shard_artifact *artifact, uint32_t index, shard_artifact_file *file) {
    const fake_spec *spec = &artifact->spec;
    if (!spec->is_slice || index != 0) {
        return false;
    }
    char text[FAKE_TEXT_SIZE];
    *file = (shard_artifact_file){.bytes = fake_slice_text(spec, spec->start, spec->end, text)};
    snprintf(file->path, sizeof(file->path), "%s", artifact->path);
    fake_slice_sha256(spec, spec->start, spec->end, file->sha256);
    return true;
}

uint64_t fake_artifact_layer_bytes(const shard_artifact *artifact, uint32_t layer) {
    const fake_spec *spec = &artifact->spec;
    return layer >= spec->start && layer < spec->end ? fake_layer_bytes(spec) : 0;
}

void fake_artifact_close(shard_artifact *artifact) {
    free(artifact);
}

/* ---- slicing ---- */

/* What is free on the disk that holds, or would hold, `path`. */
static uint64_t free_bytes_beside(const char *path) {
    struct statvfs disk;
    char folder[sizeof(((shard_artifact_file *)0)->path)];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
    return statvfs(slash != NULL ? folder : ".", &disk) == 0
               ? (uint64_t)disk.f_bavail * disk.f_frsize
               : 0;
}

static shard_status cannot_write(const char *path, uint64_t needed, int reason,
                                 shard_error *error) {
    if (reason != ENOSPC && reason != EDQUOT && reason != EFBIG) {
        shard_fail(error, SHARD_ERR_IO, "%s cannot be written (%s); check the folder", path,
                   strerror(reason));
        shard_error_add(error, "path", "%s", path);
        return error->status;
    }
    const uint64_t free_bytes = free_bytes_beside(path);
    shard_fail(error, SHARD_ERR_NO_SPACE,
               "%s needs %" PRIu64 " bytes and %" PRIu64 " are free; make room", path, needed,
               free_bytes);
    shard_error_add(error, "path", "%s", path);
    shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
    shard_error_add(error, "free_bytes", "%" PRIu64, free_bytes);
    return error->status;
}

static shard_status already_exists(const char *path, shard_error *error) {
    shard_fail(error, SHARD_ERR_IO, "%s exists already; choose another name, or allow overwriting",
               path);
    shard_error_add(error, "path", "%s", path);
    return error->status;
}

/* Writes and syncs `text` into the open file; an errno value, 0 where all went well. */
static int write_synced(int fd, const char *text, size_t length) {
    while (length > 0) {
        const ssize_t n = write(fd, text, length);
        if (n < 0 && errno != EINTR) {
            return errno;
        }
        if (n > 0) {
            text += n;
            length -= (size_t)n;
        }
    }
    return fsync(fd) == 0 ? 0 : errno;
}

/* Gives the finished file its name. Without `overwrite` a link is made, because a rename would
 * replace a file that appeared since the check. */
static int publish(const char *temporary, const char *path, bool overwrite) {
    if (overwrite) {
        return rename(temporary, path) == 0 ? 0 : errno;
    }
    const int reason = link(temporary, path) == 0 ? 0 : errno;
    unlink(temporary);
    return reason;
}

static shard_status write_atomically(const char *path, bool overwrite, const char *text,
                                     size_t length, shard_error *error) {
    char temporary[sizeof(((shard_artifact_file *)0)->path)];
    const int wanted = snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    if (wanted < 0 || (size_t)wanted >= sizeof(temporary)) {
        return cannot_write(path, length, ENAMETOOLONG, error);
    }
    const int fd = mkstemp(temporary);
    if (fd < 0) {
        return cannot_write(path, length, errno, error);
    }
    int reason = write_synced(fd, text, length);
    if (reason == 0 && fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) != 0) {
        reason = errno;
    }
    close(fd);
    if (reason == 0) {
        reason = publish(temporary, path, overwrite);
    }
    if (reason == 0) {
        return shard_ok(error);
    }
    unlink(temporary);
    return reason == EEXIST ? already_exists(path, error)
                            : cannot_write(path, length, reason, error);
}

shard_status fake_slice(const char *model_path, const char *cache_dir, uint32_t layer_start,
                        uint32_t layer_end, const char *output_path, bool overwrite,
                        shard_progress_callback on_progress, void *user_data, uint64_t *bytes_out,
                        shard_error *error) {
    (void)cache_dir;
    fake_spec spec;
    if (output_path == NULL) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "output_path is NULL; name a file to write");
    }
    if (!overwrite && access(output_path, F_OK) == 0) {
        return already_exists(output_path, error);
    }
    if (fake_artifact_digest(model_path, on_progress, user_data, &spec, error) != SHARD_OK) {
        return error->status;
    }
    if (spec.is_slice) {
        return shard_fail(error, SHARD_ERR_UNSUPPORTED,
                          "%s is a slice already; slice the whole artifact", model_path);
    }
    if (fake_spec_range(&spec, &layer_start, &layer_end, error) != SHARD_OK) {
        return error->status;
    }
    char text[FAKE_TEXT_SIZE];
    const size_t length = fake_slice_text(&spec, layer_start, layer_end, text);
    if (report("slice", 0, length, on_progress, user_data, error) != SHARD_OK ||
        write_atomically(output_path, overwrite, text, length, error) != SHARD_OK) {
        return error->status;
    }
    if (bytes_out != NULL) {
        *bytes_out = length;
    }
    if (on_progress != NULL) {
        on_progress("slice", length, length, user_data);
    }
    return shard_ok(error);
}
