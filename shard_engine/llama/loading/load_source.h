/* What a load starts from: the artifact, and the file of it that the library loads. */
#ifndef SHARD_LLAMA_LOAD_SOURCE_H
#define SHARD_LLAMA_LOAD_SOURCE_H

#include "artifact.h"
#include "shard_engine.h"
#include "step_buffers.h"

#include <llama.h>

typedef struct load_source {
    const shard_params *params;
    shard_artifact *artifact;
    uint32_t start;
    uint32_t end;
    bool is_whole; /* the artifact itself is loaded */
    char path[FILES_PATH_SIZE];
    char sha256[SHARD_SHA256_HEX_SIZE];
    uint64_t bytes;          /* of what is loaded */
    struct stat file_status; /* of `path`, when its digest was known */
    bool cancelled;
} load_source;

/* From `params` alone, which were checked: opens the artifact, and writes the shard file where it
 * is not there yet. The caller closes `artifact` in any case. */
shard_status load_source_find(load_source *source, shard_error *error);

/* Whether the shard is the model's last stage, and whether the library is fed with tokens (it is
 * then the first one too). */
bool load_source_is_last(const load_source *source);
bool load_source_takes_tokens(const load_source *source);

/* What the buffers of a step depend on; `n_vocab` counts on the last stage only. */
step_shape load_source_shape(const load_source *source, uint32_t n_vocab);

/* Recurrent states that one call of the library can change. */
uint32_t load_source_states_at_once(const load_source *source);

/* What was hashed must be what was loaded: SHARD_ERR_IDENTITY where the artifact or the shard file
 * has changed in between. */
shard_status load_source_check_unchanged(const load_source *source, shard_error *error);

/* The library's model, or NULL; the log says why. */
struct llama_model *load_source_model(const load_source *source, struct llama_model_params params);

/* Tells the caller of `open` how far it is; false where it wants to stop. */
bool load_report(const shard_params *params, const char *phase, uint64_t done, uint64_t total);

#endif /* SHARD_LLAMA_LOAD_SOURCE_H */
