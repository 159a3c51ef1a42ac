/* The engines of this build. A new engine adds one line here. */
#include "registry.h"

#include <string.h>

static const shard_engine_api *const ENGINES[] = {
    &shard_llama_engine,
    &shard_fake_engine,
};

enum { N_ENGINES = sizeof(ENGINES) / sizeof(ENGINES[0]) };

const shard_engine_api *shard_engine_find(const char *name) {
    for (size_t i = 0; i < N_ENGINES; i++) {
        if (strcmp(ENGINES[i]->name, name) == 0) {
            return ENGINES[i];
        }
    }
    return NULL;
}

const char *shard_engine_name(uint32_t index) {
    return index < N_ENGINES ? ENGINES[index]->name : NULL;
}
