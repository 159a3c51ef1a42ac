/* The rules of a recipe, the same for every engine, and its defaults. */
#ifndef SHARD_RECIPE_RULES_H
#define SHARD_RECIPE_RULES_H

#include "shard_engine.h"

/* The table's `default_params`. */
void recipe_rules_defaults(shard_params *params);

/* SHARD_ERR_ARGUMENT or SHARD_ERR_UNSUPPORTED (fields: field, actual) for the first parameter that
 * cannot be honoured exactly; the message gives the allowed values. */
shard_status recipe_rules_check(const shard_params *params, shard_error *error);

/* The recipe as it is executed: what was left to the engine is settled. */
shard_recipe recipe_rules_settle(const shard_recipe *recipe);

#endif /* SHARD_RECIPE_RULES_H */
