#include "embedding.h"

#include "error.h"

#include <errno.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct token_embedding {
    char path[FILES_PATH_SIZE];
    int fd;
    enum ggml_type type;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint64_t offset; /* of the first row, from the start of the file */
    uint64_t bytes;
    size_t row_bytes;
    float scale; /* of every value; 0: none */
    void *raw;   /* one row as stored */
};

/* Takes shape and place of token_embd.weight from a parsed GGUF. */
static bool take_tensor(token_embedding *embedding, const struct gguf_context *gguf) {
    const int64_t id = gguf_find_tensor(gguf, "token_embd.weight");
    if (id < 0) {
        return false;
    }
    const int64_t *ne = gguf_get_tensor_ne(gguf, id);
    if (ne[0] > INT32_MAX || ne[1] > INT32_MAX || ne[2] != 1 || ne[3] != 1) {
        return false;
    }
    embedding->type = gguf_get_tensor_type(gguf, id);
    embedding->n_embd = (uint32_t)ne[0];
    embedding->n_vocab = (uint32_t)ne[1];
    embedding->offset = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, id);
    embedding->bytes = gguf_get_tensor_size(gguf, id);
    embedding->row_bytes = ggml_row_size(embedding->type, ne[0]);
    return true;
}

/* The GGUF that a self-contained slice carries behind its own. */
static bool take_from_slice(token_embedding *embedding, const shard_artifact *artifact) {
    FILE *file = fopen(embedding->path, "rbe");
    bool found = false;
    if (file == NULL) {
        return false;
    }
    if (fseeko(file, (off_t)artifact->source_offset, SEEK_SET) == 0) {
        struct gguf_context *gguf =
            gguf_init_from_file_ptr(file, (struct gguf_init_params){.no_alloc = true});
        found = gguf != NULL && take_tensor(embedding, gguf);
        gguf_free(gguf);
    }
    fclose(file);
    const uint64_t size = (uint64_t)artifact->files[0].status.st_size;
    return found && embedding->offset <= size && embedding->bytes <= size - embedding->offset;
}

static bool find_tensor(token_embedding *embedding, const shard_artifact *artifact) {
    if (artifact->info.is_slice) {
        snprintf(embedding->path, sizeof(embedding->path), "%s", artifact->files[0].path);
        return artifact->source_offset > 0 && take_from_slice(embedding, artifact);
    }
    const artifact_tensor *tensor = artifact_find(artifact, "token_embd.weight");
    const artifact_file *file = &artifact->files[tensor->file];
    snprintf(embedding->path, sizeof(embedding->path), "%s", file->path);
    return take_tensor(embedding, file->gguf);
}

static bool can_convert(const token_embedding *embedding) {
    return embedding->type == GGML_TYPE_F32 ||
           ggml_get_type_traits(embedding->type)->to_float != NULL;
}

shard_status embedding_open(const shard_artifact *artifact, token_embedding **out,
                            shard_error *error) {
    struct stat status;
    token_embedding *opened = calloc(1, sizeof(*opened));
    *out = NULL;
    if (opened == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for the token embedding");
    }
    opened->fd = -1;
    if (artifact->rule->input == ARCH_INPUT_ROOT) {
        opened->scale = sqrtf((float)artifact->info.n_embd);
    }
    if (!find_tensor(opened, artifact) || opened->n_embd != artifact->info.n_embd) {
        shard_fail(error, SHARD_ERR_MALFORMED, "%s has no usable token embedding; convert it again",
                   artifact->files[0].path);
        shard_error_add(error, "path", "%s", artifact->files[0].path);
    } else if (!can_convert(opened)) {
        shard_fail(error, SHARD_ERR_UNSUPPORTED,
                   "the token embedding of %s has type %s, which ggml cannot read row by row",
                   opened->path, ggml_type_name(opened->type));
    } else if ((opened->raw = malloc(opened->row_bytes)) == NULL) {
        shard_fail(error, SHARD_ERR_MEMORY, "no memory for a row of the token embedding");
    } else {
        files_open(opened->path, &opened->fd, &status, error);
    }
    if (error->status != SHARD_OK) {
        embedding_close(opened);
        return error->status;
    }
    *out = opened;
    return SHARD_OK;
}

void embedding_close(token_embedding *embedding) {
    if (embedding == NULL) {
        return;
    }
    if (embedding->fd >= 0) {
        close(embedding->fd);
    }
    free(embedding->raw);
    free(embedding);
}

uint32_t embedding_n_vocab(const token_embedding *embedding) {
    return embedding->n_vocab;
}

uint64_t embedding_bytes(const token_embedding *embedding) {
    return embedding->bytes;
}

shard_status embedding_row(const token_embedding *embedding, int32_t token, float *row,
                           shard_error *error) {
    const uint64_t offset = embedding->offset + (uint64_t)token * embedding->row_bytes;
    if (!files_read_at(embedding->fd, embedding->raw, embedding->row_bytes, offset)) {
        shard_fail(error, SHARD_ERR_IO, "cannot read the embedding of token %d from %s: %s", token,
                   embedding->path, errno == 0 ? "the file became shorter" : strerror(errno));
        shard_error_add(error, "path", "%s", embedding->path);
        return error->status;
    }
    if (embedding->type == GGML_TYPE_F32) {
        memcpy(row, embedding->raw, embedding->row_bytes);
    } else {
        ggml_get_type_traits(embedding->type)->to_float(embedding->raw, row, embedding->n_embd);
    }
    for (uint32_t i = 0; embedding->scale != 0.0f && i < embedding->n_embd; i++) {
        row[i] *= embedding->scale;
    }
    return shard_ok(error);
}
