/* The files of an artifact: opened, parsed, and checked to be whole. */
#include "artifact_parts.h"

#include "error.h"
#include "meta.h"

#include <inttypes.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_SPLITS = 4096 };

shard_status artifact_malformed(shard_error *error, const char *path, const char *what) {
    shard_fail(error, SHARD_ERR_MALFORMED,
               "%s is not a usable GGUF file: %s; download or convert it again", path, what);
    shard_error_add(error, "path", "%s", path);
    return error->status;
}

/* ---- one file ---- */

static shard_status check_magic(int fd, const char *path, shard_error *error) {
    unsigned char magic[4] = {0};
    if (!files_read_at(fd, magic, sizeof(magic), 0)) {
        return artifact_malformed(error, path, "it is shorter than a GGUF header");
    }
    if (memcmp(magic, GGUF_MAGIC, sizeof(magic)) != 0) {
        char what[96];
        snprintf(what, sizeof(what), "it starts with %02x %02x %02x %02x instead of \"GGUF\"",
                 magic[0], magic[1], magic[2], magic[3]);
        return artifact_malformed(error, path, what);
    }
    return shard_ok(error);
}

static shard_status check_not_truncated(const artifact_file *file, shard_error *error) {
    const uint64_t size = (uint64_t)file->status.st_size;
    const uint64_t data = gguf_get_data_offset(file->gguf);
    const int64_t count = gguf_get_n_tensors(file->gguf);
    for (int64_t id = 0; id < count; id++) {
        const uint64_t offset = gguf_get_tensor_offset(file->gguf, id);
        const uint64_t bytes = gguf_get_tensor_size(file->gguf, id);
        if (data > size || offset > size - data || bytes > size - data - offset) {
            char what[256];
            snprintf(what, sizeof(what),
                     "it is truncated: tensor %.64s ends at byte %" PRIu64
                     ", but the file has %" PRIu64,
                     gguf_get_tensor_name(file->gguf, id), data + offset + bytes, size);
            return artifact_malformed(error, file->path, what);
        }
    }
    return shard_ok(error);
}

/* gguf's reader takes an empty key and its writer aborts over one. */
static shard_status check_keys(const artifact_file *file, shard_error *error) {
    for (int64_t id = 0; id < gguf_get_n_kv(file->gguf); id++) {
        if (gguf_get_key(file->gguf, id)[0] == '\0') {
            return artifact_malformed(error, file->path, "it has a metadata key without a name");
        }
    }
    return shard_ok(error);
}

static shard_status open_file(artifact_file *file, const char *path, shard_error *error) {
    int fd = -1;
    if (strlen(path) >= sizeof(file->path)) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "the path %.64s... is too long", path);
    }
    snprintf(file->path, sizeof(file->path), "%s", path);
    if (files_open(path, &fd, &file->status, error) != SHARD_OK) {
        return error->status;
    }
    check_magic(fd, path, error);
    close(fd);
    if (error->status != SHARD_OK) {
        return error->status;
    }
    file->gguf = gguf_init_from_file(path, (struct gguf_init_params){.no_alloc = true});
    if (file->gguf == NULL) {
        return artifact_malformed(error, path, "its header is damaged or cut off");
    }
    if (check_keys(file, error) != SHARD_OK) {
        return error->status;
    }
    return check_not_truncated(file, error);
}

/* ---- a split set ---- */

static shard_status split_path(const char *first, uint32_t index, uint32_t count,
                               char out[FILES_PATH_SIZE], shard_error *error) {
    char prefix[FILES_PATH_SIZE];
    if (llama_split_prefix(prefix, sizeof(prefix), first, 0, (int32_t)count) <= 0 ||
        llama_split_path(out, FILES_PATH_SIZE, prefix, (int32_t)index, (int32_t)count) <= 0) {
        shard_fail(
            error, SHARD_ERR_MALFORMED,
            "%s is the first of %u files but is not named NAME-00001-of-%05u.gguf: rename the "
            "set",
            first, count, count);
        shard_error_add(error, "path", "%s", first);
    }
    return error->status;
}

static shard_status read_split(const artifact_file *file, uint32_t expected_index, uint32_t *count,
                               shard_error *error) {
    uint32_t index = 0;
    *count = 1;
    meta_u32(file->gguf, "split.count", count);
    meta_u32(file->gguf, "split.no", &index);
    if (*count == 0 || *count > MAX_SPLITS) {
        return artifact_malformed(error, file->path, "its key split.count is out of range");
    }
    if (*count > 1 && index != expected_index) {
        shard_fail(error, SHARD_ERR_MALFORMED,
                   "%s is file %u of a set of %u where file %u is needed: give the first file, and "
                   "keep the set's names",
                   file->path, index + 1, *count, expected_index + 1);
        shard_error_add(error, "path", "%s", file->path);
        return error->status;
    }
    return shard_ok(error);
}

static shard_status missing_member(const char *path, uint32_t index, uint32_t count,
                                   shard_error *error) {
    shard_fail(error, SHARD_ERR_NOT_FOUND,
               "%s is missing: it is file %u of a set of %u, which must lie in one folder", path,
               index + 1, count);
    shard_error_add(error, "path", "%s", path);
    return error->status;
}

shard_status artifact_open_files(shard_artifact *artifact, const char *path, shard_error *error) {
    artifact_file first = {0};
    uint32_t count = 1;
    if (open_file(&first, path, error) == SHARD_OK) {
        read_split(&first, 0, &count, error);
    }
    artifact->files = error->status == SHARD_OK ? calloc(count, sizeof(artifact_file)) : NULL;
    if (artifact->files == NULL) {
        gguf_free(first.gguf);
        return error->status != SHARD_OK
                   ? error->status
                   : shard_fail(error, SHARD_ERR_MEMORY, "no memory for a set of %u files", count);
    }
    artifact->files[0] = first;
    artifact->info.n_files = count;
    for (uint32_t i = 1; i < count; i++) {
        char member[FILES_PATH_SIZE];
        uint32_t same_count = 0;
        if (split_path(path, i, count, member, error) != SHARD_OK) {
            return error->status;
        }
        if (access(member, F_OK) != 0) {
            return missing_member(member, i, count, error);
        }
        if (open_file(&artifact->files[i], member, error) != SHARD_OK ||
            read_split(&artifact->files[i], i, &same_count, error) != SHARD_OK) {
            return error->status;
        }
        if (same_count != count) {
            return artifact_malformed(error, member, "it belongs to a set of another size");
        }
    }
    return shard_ok(error);
}
