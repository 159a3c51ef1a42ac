/* The compiler's view of the header's structs, for bindings that lay them out themselves. */
#include "shard_engine.h"

#include <string.h>

#define STRUCT(name) {#name, sizeof(name)}

static const struct {
    const char *name;
    size_t size;
} STRUCTS[] = {
    STRUCT(shard_error_field), STRUCT(shard_error),         STRUCT(shard_recipe),
    STRUCT(shard_params),      STRUCT(shard_device),        STRUCT(shard_build),
    STRUCT(shard_description), STRUCT(shard_artifact_file), STRUCT(shard_artifact_info),
    STRUCT(shard_memory),      STRUCT(shard_logit_bias),    STRUCT(shard_sampling),
    STRUCT(shard_candidate),   STRUCT(shard_step_entry),    STRUCT(shard_token_info),
    STRUCT(shard_vocabulary),  STRUCT(shard_engine_api),
};

enum { N_STRUCTS = sizeof(STRUCTS) / sizeof(STRUCTS[0]) };

size_t shard_struct_size(const char *name) {
    for (size_t i = 0; i < N_STRUCTS; i++) {
        if (strcmp(STRUCTS[i].name, name) == 0) {
            return STRUCTS[i].size;
        }
    }
    return 0;
}
