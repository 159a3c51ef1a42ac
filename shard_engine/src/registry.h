/* The function tables that the engines export to the registry, and to nothing else. */
#ifndef SHARD_REGISTRY_H
#define SHARD_REGISTRY_H

#include "shard_engine.h"

extern const shard_engine_api shard_llama_engine;
extern const shard_engine_api shard_fake_engine;

#endif /* SHARD_REGISTRY_H */
