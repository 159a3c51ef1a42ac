/* Recipes and parameters in llama.cpp's terms. */
#ifndef SHARD_LLAMA_RECIPE_H
#define SHARD_LLAMA_RECIPE_H

#include "shard_engine.h"

#include <llama.h>

/* recipe_rules_check, and what only this engine refuses. */
shard_status recipe_check(const shard_params *params, shard_error *error);

/* Places the threads of this process as llama.cpp's `--numa` does; NULL and "disabled" leave them
 * as they are. SHARD_ERR_UNSUPPORTED where another strategy is in force already. After
 * llama_backend_init. */
shard_status recipe_apply_numa(const char *numa, shard_error *error);

struct llama_model_params recipe_model_params(const shard_params *params);

/* `recipe` is checked and settled. */
struct llama_context_params recipe_context_params(const shard_recipe *recipe,
                                                  uint32_t max_sessions);

#endif /* SHARD_LLAMA_RECIPE_H */
