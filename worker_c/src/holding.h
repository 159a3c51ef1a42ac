/* The one identity that a worker holds for its life, from the moment a load is accepted. */
#ifndef WORKER_HOLDING_H
#define WORKER_HOLDING_H

#include "bounds.h"
#include "failure.h"
#include "identity.h"
#include "request.h"

#include <stdbool.h>

struct holding {
    bool is_held;   /* a load was accepted and has not failed */
    bool is_loaded; /* it has succeeded: `identity` is what the engine says */
    uint32_t n_layer;
    char model[LIMIT_PATH];
    struct identity identity;
};

/* False with code `identity`, and both values of each field that differs, when something is held.
 */
bool holding_accept(struct holding *holding, const struct load_request *load,
                    struct failure *failure);

/* The load failed or was cancelled: another may be asked for. */
void holding_release(struct holding *holding);

/* The load succeeded. */
void holding_settle(struct holding *holding, const shard_description *description);

#endif /* WORKER_HOLDING_H */
