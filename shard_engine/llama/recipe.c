#include "recipe.h"

#include "error.h"
#include "recipe_rules.h"

#include <string.h>

/* The names were checked: they are those of recipe_rules.c, and ggml's own. */
static enum ggml_type cache_type(const char *name) {
    static const enum ggml_type CACHE_TYPES[] = {
        GGML_TYPE_F32,  GGML_TYPE_F16,    GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
    };
    size_t i = 0;
    while (strcmp(ggml_type_name(CACHE_TYPES[i]), name) != 0) {
        i++;
    }
    return CACHE_TYPES[i];
}

shard_status recipe_check(const shard_params *params, shard_error *error) {
    if (params->fault_plan != NULL && params->fault_plan[0] != '\0') {
        return shard_fail(
            error, SHARD_ERR_UNSUPPORTED,
            "a fault plan needs the fake engine: start the worker with --engine fake");
    }
    if (recipe_rules_check(params, error) != SHARD_OK) {
        return error->status;
    }
    return shard_ok(error);
}

struct llama_model_params recipe_model_params(const shard_params *params) {
    struct llama_model_params model = llama_model_default_params();
    model.n_gpu_layers = params->recipe.n_gpu_layers;
    model.use_extra_bufts = params->recipe.repack;
    if (params->use_mmap) {
        model.load_mode = params->use_mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP;
    } else {
        model.load_mode = params->use_mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE;
    }
    return model;
}

struct llama_context_params recipe_context_params(const shard_recipe *recipe,
                                                  uint32_t max_sessions) {
    struct llama_context_params context = llama_context_default_params();
    context.n_ctx = recipe->n_ctx;
    context.n_batch = recipe->n_batch;
    context.n_ubatch = recipe->n_ubatch;
    context.n_seq_max = max_sessions;
    context.n_threads = (int32_t)recipe->n_threads;
    context.n_threads_batch = context.n_threads;
    context.flash_attn_type =
        recipe->flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context.type_k = cache_type(recipe->type_k);
    context.type_v = cache_type(recipe->type_v);
    /* One buffer for all sequences keeps the rows of a batch in their order over its ubatches. */
    context.kv_unified = true;
    context.no_perf = true;
    return context;
}
