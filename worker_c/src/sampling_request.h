/* The `sampling` map of an `open`: closed, like a recipe, since every key can change a result. */
#ifndef WORKER_SAMPLING_REQUEST_H
#define WORKER_SAMPLING_REQUEST_H

#include "decode.h"
#include "failure.h"
#include "shard_engine.h"

#include <stdbool.h>

struct sampling_request {
    shard_sampling numbers; /* every field but the two below, which point to nothing yet */
    struct decode_biases logit_bias;
    struct decode_text grammar; /* empty: none */
};

/* Reads `sampling`; absent keys take the defaults that docs/protocol.md states. */
void sampling_request_read(struct decode_fields *fields, struct sampling_request *request);

/* What an engine takes; frees with sampling_unpacked_free, also where unpacking failed. */
struct sampling_unpacked {
    shard_sampling sampling;
    shard_logit_bias *logit_bias;
    char *grammar;
};

/* False with the failure set when there is no memory. */
bool sampling_unpack(const struct sampling_request *request, struct sampling_unpacked *unpacked,
                     struct failure *failure);
void sampling_unpacked_free(struct sampling_unpacked *unpacked);

#endif /* WORKER_SAMPLING_REQUEST_H */
