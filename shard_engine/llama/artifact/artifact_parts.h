/* The steps of opening an artifact, shared by its files and by nothing else. */
#ifndef SHARD_LLAMA_ARTIFACT_PARTS_H
#define SHARD_LLAMA_ARTIFACT_PARTS_H

#include "artifact.h"

/* SHARD_ERR_MALFORMED: `path` is no usable GGUF, because of `what`. */
shard_status artifact_malformed(shard_error *error, const char *path, const char *what);

/* Opens the file, or all files of the set it begins; whatever the outcome, artifact_close releases
 * what is there. */
shard_status artifact_open_files(shard_artifact *artifact, const char *path, shard_error *error);

/* Fills `info`, `rule` and `source_offset`; the tensors must be indexed. */
shard_status artifact_describe(shard_artifact *artifact, shard_error *error);

#endif /* SHARD_LLAMA_ARTIFACT_PARTS_H */
