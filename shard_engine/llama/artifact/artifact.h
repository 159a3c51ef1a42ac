/* An artifact on disk: one GGUF file, a split set, or an exported slice; parsed, checked and
 * hashed. */
#ifndef SHARD_LLAMA_ARTIFACT_H
#define SHARD_LLAMA_ARTIFACT_H

#include "arch_cuts.h"
#include "digest.h"
#include "files.h"
#include "shard_engine.h"

#include <gguf.h>

/* Keys that an exported slice and a cached shard file carry. */
#define ARTIFACT_KEY_SHA256 "gguf_worker.artifact.sha256"
#define ARTIFACT_KEY_START "gguf_worker.layer_start"
#define ARTIFACT_KEY_END "gguf_worker.layer_end"
#define ARTIFACT_KEY_N_LAYER "gguf_worker.n_layer"
#define ARTIFACT_KEY_N_VOCAB "gguf_worker.n_vocab"
#define ARTIFACT_KEY_EMBEDDING_BYTES "gguf_worker.embedding_bytes"
#define ARTIFACT_KEY_HEAD_BYTES "gguf_worker.head_bytes"
#define ARTIFACT_KEY_TIED_HEAD "gguf_worker.tied_head"
#define ARTIFACT_KEY_SOURCE "gguf_worker.source.offset"

typedef struct artifact_file {
    char path[FILES_PATH_SIZE];
    struct stat status; /* when it was opened */
    struct gguf_context *gguf;
    char sha256[SHARD_SHA256_HEX_SIZE];
} artifact_file;

/* Where one tensor's bytes are. */
typedef struct artifact_tensor {
    const char *name; /* borrowed */
    uint32_t file;    /* index into files */
    int64_t id;       /* in that file's gguf */
    uint32_t layer;   /* of the whole model; ARTIFACT_NO_LAYER where it belongs to none */
    uint64_t offset;  /* from the start of the file */
    uint64_t bytes;
} artifact_tensor;

enum { ARTIFACT_NO_LAYER = 0xffffffff };

struct shard_artifact {
    artifact_file *files;
    artifact_tensor *tensors;
    uint32_t n_tensors;
    const arch_rule *rule; /* NULL where the architecture is not in the table */
    /* All layers in the file; more than info.n_layer where some predict further tokens, which are
     * not served. */
    uint32_t n_file_layers;
    bool can_be_served; /* whole, if not cut */
    uint64_t
        source_offset; /* of the GGUF inside a slice that holds embedding and vocabulary; 0: none */
    shard_artifact_info info;
};

/* Opens, checks and hashes (phase "digest"). See `shard_engine_api.artifact_open` for the errors.
 */
shard_status artifact_open(const char *path, const char *cache_dir,
                           shard_progress_callback on_progress, void *user_data,
                           shard_artifact **out, shard_error *error);
void artifact_close(shard_artifact *artifact);

/* The tensor of that name, or NULL. */
const artifact_tensor *artifact_find(const shard_artifact *artifact, const char *name);

/* Refuses architectures and ranges that cannot be cut. `*end` 0 becomes the last layer's end; a
 * slice's own range replaces 0:0. */
shard_status artifact_check_range(const shard_artifact *artifact, uint32_t *start, uint32_t *end,
                                  shard_error *error);

/* SHARD_ERR_IDENTITY when a file is no longer the one that was opened. */
shard_status artifact_check_unchanged(const shard_artifact *artifact, shard_error *error);

/* Whether `path` is one of the artifact's own files, under whatever name. */
bool artifact_has_file(const shard_artifact *artifact, const char *path);

/* Bytes of one layer's tensors. */
uint64_t artifact_layer_bytes(const shard_artifact *artifact, uint32_t layer);

/* Layers in [start, end) that have tensors: all, but where an architecture runs layers repeatedly.
 */
uint32_t artifact_layers_held(const shard_artifact *artifact, uint32_t start, uint32_t end);

#endif /* SHARD_LLAMA_ARTIFACT_H */
