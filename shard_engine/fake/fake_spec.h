/* The fake engine's artifacts: a specification such as "fake:layers=24", or a slice file that one
 * was written to. fake_engine.h documents both. */
#ifndef FAKE_SPEC_H
#define FAKE_SPEC_H

#include "shard_engine.h"

enum { FAKE_TEXT_SIZE = 256 };

typedef struct fake_spec {
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t seed;
    uint32_t recurrent;  /* 1: sessions behave as those of a model with recurrent state */
    uint32_t pooling;    /* index of fake_spec_pooling */
    bool is_slice;       /* read from a slice file, which has only [start, end) */
    uint32_t start, end; /* the layers that are there; all of them in a specification */
} fake_spec;

/* Reads `model_path`: a specification, or else the path of a slice file. */
shard_status fake_spec_read(const char *model_path, fake_spec *spec, shard_error *error);

/* Settles the range asked for and checks that it can be had. `*end` 0 means the last layer that is
 * there; of a slice, which is served whole or not at all, 0:0 means all of it. */
shard_status fake_spec_range(const fake_spec *spec, uint32_t *start, uint32_t *end,
                             shard_error *error);

/* Writes the canonical specification: all keys, in the fixed order, but `recurrent` and `pooling`
 * only where they are not 0. Returns its length. */
size_t fake_spec_text(const fake_spec *spec, char text[FAKE_TEXT_SIZE]);

/* none, mean, cls, last or rank. */
const char *fake_spec_pooling(const fake_spec *spec);

/* Writes the content of the slice file of [start, end). Returns its length. */
size_t fake_slice_text(const fake_spec *spec, uint32_t start, uint32_t end,
                       char text[FAKE_TEXT_SIZE]);

/* sha256 of the canonical specification, the name of the artifact. */
void fake_artifact_sha256(const fake_spec *spec, char hex[SHARD_SHA256_HEX_SIZE]);

/* sha256 of the slice file of [start, end). */
void fake_slice_sha256(const fake_spec *spec, uint32_t start, uint32_t end,
                       char hex[SHARD_SHA256_HEX_SIZE]);

/* sha256 of the shard [start, end): the artifact's own where it is the whole model, else that of
 * its slice file. */
void fake_shard_sha256(const fake_spec *spec, uint32_t start, uint32_t end,
                       char hex[SHARD_SHA256_HEX_SIZE]);

#endif /* FAKE_SPEC_H */
