#include "shard_file.h"

#include "error.h"
#include "shard_plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { COPY_CHUNK = 1 << 20 };

/* ---- writing ---- */

typedef struct file_writer {
    files_new_file file;
    digest_progress progress;
    uint64_t needed;
    char *chunk;
} file_writer;

static shard_status put(file_writer *writer, const void *bytes, size_t size, shard_error *error) {
    if (!files_write(writer->file.fd, bytes, size)) {
        return files_write_error(writer->file.target, errno, writer->needed, error);
    }
    if (!digest_advance(&writer->progress, size)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "writing %s was cancelled",
                          writer->file.target);
    }
    return shard_ok(error);
}

static shard_status put_zeros(file_writer *writer, uint64_t size, shard_error *error) {
    memset(writer->chunk, 0, COPY_CHUNK);
    shard_ok(error);
    while (size > 0 && error->status == SHARD_OK) {
        const size_t count = size < COPY_CHUNK ? (size_t)size : COPY_CHUNK;
        put(writer, writer->chunk, count, error);
        size -= count;
    }
    return error->status;
}

/* Zeros that take no room on the disk, where the file system has files with holes. */
static shard_status put_hole(file_writer *writer, uint64_t size, shard_error *error) {
    if (lseek(writer->file.fd, (off_t)size, SEEK_CUR) < 0) {
        return files_write_error(writer->file.target, errno, writer->needed, error);
    }
    if (!digest_advance(&writer->progress, size)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "writing %s was cancelled",
                          writer->file.target);
    }
    return shard_ok(error);
}

/* A hole at the end of the file is not there yet. */
static shard_status end_file(file_writer *writer, shard_error *error) {
    const off_t end = lseek(writer->file.fd, 0, SEEK_CUR);
    if (end < 0 || ftruncate(writer->file.fd, end) != 0) {
        return files_write_error(writer->file.target, errno, writer->needed, error);
    }
    return shard_ok(error);
}

static shard_status put_copy(file_writer *writer, const artifact_file *file,
                             const artifact_tensor *tensor, shard_error *error) {
    struct stat status;
    int fd = -1;
    if (files_open(file->path, &fd, &status, error) != SHARD_OK) {
        return error->status;
    }
    for (uint64_t done = 0; done < tensor->bytes && error->status == SHARD_OK;) {
        const uint64_t left = tensor->bytes - done;
        const size_t count = left < COPY_CHUNK ? (size_t)left : COPY_CHUNK;
        if (!files_read_at(fd, writer->chunk, count, tensor->offset + done)) {
            shard_fail(error, SHARD_ERR_IO, "cannot read %s at byte %" PRIu64 ": %s", file->path,
                       tensor->offset + done,
                       errno == 0 ? "the file became shorter" : strerror(errno));
            shard_error_add(error, "path", "%s", file->path);
        } else {
            put(writer, writer->chunk, count, error);
        }
        done += count;
    }
    close(fd);
    return error->status;
}

static shard_status put_plan(file_writer *writer, const file_plan *plan, shard_error *error) {
    const uint64_t alignment = gguf_get_alignment(plan->gguf);
    const size_t meta_size = gguf_get_meta_size(plan->gguf);
    void *meta = malloc(meta_size);
    if (meta == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %zu bytes of metadata",
                          meta_size);
    }
    gguf_get_meta_data(plan->gguf, meta);
    put(writer, meta, meta_size, error);
    free(meta);
    for (uint32_t i = 0; i < plan->n_pieces && error->status == SHARD_OK; i++) {
        const file_piece *piece = &plan->pieces[i];
        if (piece->source == NULL) {
            put_hole(writer, piece->bytes, error);
        } else {
            put_copy(writer, &plan->artifact->files[piece->source->file], piece->source, error);
        }
        if (error->status == SHARD_OK) {
            put_zeros(writer, shard_plan_padded(piece->bytes, alignment) - piece->bytes, error);
        }
    }
    return error->status;
}

/* Says so before gigabytes are written, where the file system knows. */
static shard_status check_space(const char *target, int fd, uint64_t needed, shard_error *error) {
    struct statvfs space;
    if (fstatvfs(fd, &space) == 0 && (uint64_t)space.f_bavail * space.f_frsize < needed) {
        return files_write_error(target, ENOSPC, needed, error);
    }
    return shard_ok(error);
}

static uint64_t hole_bytes(const file_plan *layers, const file_plan *source) {
    return shard_plan_hole_bytes(layers) + (source == NULL ? 0 : shard_plan_hole_bytes(source));
}

static shard_status write_plans(const file_plan *layers, const file_plan *source,
                                uint64_t source_offset, const char *target,
                                const shard_file_options *options, uint64_t *bytes_out,
                                shard_error *error) {
    const uint64_t layers_bytes = shard_plan_bytes(layers);
    file_writer writer = {
        .needed = source == NULL ? layers_bytes : source_offset + shard_plan_bytes(source),
        .chunk = malloc(COPY_CHUNK),
        .progress = {.callback = options->on_progress,
                     .user_data = options->user_data,
                     .phase = "slice"},
    };
    writer.progress.total = writer.needed;
    if (writer.chunk == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to copy tensors");
    }
    if (files_create(&writer.file, target, error) == SHARD_OK) {
        writer.file.keeps_existing = options->keeps_existing;
        if (check_space(target, writer.file.fd, writer.needed - hole_bytes(layers, source),
                        error) == SHARD_OK &&
            put_plan(&writer, layers, error) == SHARD_OK && source != NULL &&
            put_zeros(&writer, source_offset - layers_bytes, error) == SHARD_OK) {
            put_plan(&writer, source, error);
        }
        if (error->status == SHARD_OK) {
            end_file(&writer, error);
        }
        /* The bytes that were copied must be those that the digest speaks of. */
        if (error->status == SHARD_OK &&
            artifact_check_unchanged(layers->artifact, error) == SHARD_OK) {
            files_publish(&writer.file, error);
        }
        files_discard(&writer.file);
    }
    if (error->status == SHARD_OK && bytes_out != NULL) {
        *bytes_out = writer.needed;
    }
    free(writer.chunk);
    return error->status;
}

shard_status shard_file_write(const shard_artifact *artifact, uint32_t start, uint32_t end,
                              const char *target, const shard_file_options *options,
                              uint64_t *bytes_out, shard_error *error) {
    file_plan layers;
    file_plan source;
    if (shard_plan_layers(&layers, artifact, start, end, error) != SHARD_OK) {
        return error->status;
    }
    if (!options->self_contained || start > 0 || end == artifact->info.n_layer) {
        write_plans(&layers, NULL, 0, target, options, bytes_out, error);
    } else if (shard_plan_source(&source, artifact, error) == SHARD_OK) {
        /* The key's width is fixed, so setting it does not move what it points to. */
        const uint64_t offset =
            shard_plan_padded(shard_plan_bytes(&layers), gguf_get_alignment(source.gguf));
        gguf_set_val_u64(layers.gguf, ARTIFACT_KEY_SOURCE, offset);
        write_plans(&layers, &source, offset, target, options, bytes_out, error);
        shard_plan_free(&source);
    }
    shard_plan_free(&layers);
    return error->status;
}
