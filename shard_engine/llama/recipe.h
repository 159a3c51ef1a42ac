/* Recipes and parameters in llama.cpp's terms. */
#ifndef SHARD_LLAMA_RECIPE_H
#define SHARD_LLAMA_RECIPE_H

#include "shard_engine.h"

#include <llama.h>

/* recipe_rules_check, and what only this engine refuses. */
shard_status recipe_check(const shard_params *params, shard_error *error);

struct llama_model_params recipe_model_params(const shard_params *params);

/* `recipe` is checked and settled. */
struct llama_context_params recipe_context_params(const shard_recipe *recipe,
                                                  uint32_t max_sessions);

#endif /* SHARD_LLAMA_RECIPE_H */
