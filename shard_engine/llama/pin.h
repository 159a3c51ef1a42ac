/* The pin: which llama.cpp this build was made for, and which one is loaded. */
#ifndef SHARD_LLAMA_PIN_H
#define SHARD_LLAMA_PIN_H

#include "shard_engine.h"

/* Fills `build`. SHARD_ERR_IDENTITY, with both commits, when the loaded library is another one. */
shard_status pin_build(shard_build *build, shard_error *error);

/* True when `library`, a short hash that may end in "-dirty", names the commit `pinned`. */
bool pin_commit_matches(const char *pinned, const char *library);

#endif /* SHARD_LLAMA_PIN_H */
