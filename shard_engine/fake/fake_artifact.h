/* The artifact half of the fake engine's table; shard_engine.h documents each call. */
#ifndef FAKE_ARTIFACT_H
#define FAKE_ARTIFACT_H

#include "fake_spec.h"

shard_status fake_artifact_open(const char *model_path, const char *cache_dir,
                                shard_progress_callback on_progress, void *user_data,
                                shard_artifact **out, shard_error *error);
void fake_artifact_info(const shard_artifact *artifact, shard_artifact_info *info);
bool fake_artifact_file(const shard_artifact *artifact, uint32_t index, shard_artifact_file *file);
uint64_t fake_artifact_layer_bytes(const shard_artifact *artifact, uint32_t layer);
void fake_artifact_close(shard_artifact *artifact);

shard_status fake_slice(const char *model_path, const char *cache_dir, uint32_t layer_start,
                        uint32_t layer_end, const char *output_path, bool overwrite,
                        shard_progress_callback on_progress, void *user_data, uint64_t *bytes_out,
                        shard_error *error);

/* Reads a specification or slice file, reporting phase "digest". */
shard_status fake_artifact_digest(const char *model_path, shard_progress_callback on_progress,
                                  void *user_data, fake_spec *spec, shard_error *error);

#endif /* FAKE_ARTIFACT_H */
