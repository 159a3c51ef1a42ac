#include "recipe.h"

#include "error.h"
#include "recipe_rules.h"

#include <pthread.h>
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

/* How llama.cpp names a choice. The names were checked; an unknown one would read past the end. */
typedef struct named_value {
    const char *name;
    int value;
} named_value;

static int value_of(const named_value *values, const char *name) {
    while (strcmp(values->name, name) != 0) {
        values++;
    }
    return values->value;
}

static enum llama_split_mode split_mode(const char *name) {
    static const named_value MODES[] = {
        {"none", LLAMA_SPLIT_MODE_NONE},
        {"layer", LLAMA_SPLIT_MODE_LAYER},
        {"row", LLAMA_SPLIT_MODE_ROW},
    };
    return (enum llama_split_mode)value_of(MODES, name);
}

static enum llama_rope_scaling_type rope_scaling(const char *name) {
    static const named_value SCALINGS[] = {
        {"model", LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED}, {"none", LLAMA_ROPE_SCALING_TYPE_NONE},
        {"linear", LLAMA_ROPE_SCALING_TYPE_LINEAR},     {"yarn", LLAMA_ROPE_SCALING_TYPE_YARN},
        {"longrope", LLAMA_ROPE_SCALING_TYPE_LONGROPE},
    };
    return (enum llama_rope_scaling_type)value_of(SCALINGS, name);
}

static enum ggml_numa_strategy numa_strategy(const char *name) {
    static const named_value STRATEGIES[] = {
        {"disabled", GGML_NUMA_STRATEGY_DISABLED},
        {"distribute", GGML_NUMA_STRATEGY_DISTRIBUTE},
        {"isolate", GGML_NUMA_STRATEGY_ISOLATE},
        {"numactl", GGML_NUMA_STRATEGY_NUMACTL},
    };
    return (enum ggml_numa_strategy)value_of(STRATEGIES, name);
}

/* llama.cpp would warn and compute on the CPU, which is not what the recipe says. */
static shard_status check_offload(const shard_recipe *recipe, shard_error *error) {
    if (recipe->n_gpu_layers == 0 || llama_supports_gpu_offload()) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_UNSUPPORTED,
               "recipe.n_gpu_layers is %d, and this llama.cpp finds no GPU: use 0, or a "
               "llama-cpp-python that is built for the GPU of this machine",
               recipe->n_gpu_layers);
    shard_error_add(error, "field", "recipe.n_gpu_layers");
    shard_error_add(error, "actual", "%d", recipe->n_gpu_layers);
    return error->status;
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
    return check_offload(&params->recipe, error);
}

shard_status recipe_apply_numa(const char *numa, shard_error *error) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static enum ggml_numa_strategy applied = GGML_NUMA_STRATEGY_DISABLED;
    const enum ggml_numa_strategy wanted =
        numa != NULL ? numa_strategy(numa) : GGML_NUMA_STRATEGY_DISABLED;
    pthread_mutex_lock(&lock);
    const bool may_apply = applied == GGML_NUMA_STRATEGY_DISABLED || applied == wanted;
    if (may_apply && applied != wanted) {
        llama_numa_init(wanted);
        applied = wanted;
    }
    pthread_mutex_unlock(&lock);
    if (may_apply || wanted == GGML_NUMA_STRATEGY_DISABLED) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_UNSUPPORTED,
               "numa is \"%s\", and this process was started with another one, which llama.cpp "
               "cannot change: load in a new worker",
               numa);
    shard_error_add(error, "field", "numa");
    shard_error_add(error, "actual", "%s", numa);
    return error->status;
}

struct llama_model_params recipe_model_params(const shard_params *params) {
    static ggml_backend_dev_t no_devices[] = {NULL};
    struct llama_model_params model = llama_model_default_params();
    /* A device that holds no layer would still be given the large products of a prefill. */
    model.devices = params->recipe.n_gpu_layers == 0 ? no_devices : NULL;
    model.n_gpu_layers = params->recipe.n_gpu_layers;
    model.main_gpu = params->recipe.main_gpu;
    model.split_mode = split_mode(params->recipe.split_mode);
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
    context.n_ctx = recipe->kv_unified ? recipe->n_ctx : recipe->n_ctx * max_sessions;
    context.n_batch = recipe->n_batch;
    context.n_ubatch = recipe->n_ubatch;
    context.n_seq_max = max_sessions;
    context.n_threads = (int32_t)recipe->n_threads;
    context.n_threads_batch = context.n_threads;
    context.flash_attn_type =
        recipe->flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    context.type_k = cache_type(recipe->type_k);
    context.type_v = cache_type(recipe->type_v);
    context.kv_unified = recipe->kv_unified;
    context.pooling_type = LLAMA_POOLING_TYPE_NONE; /* embeddings are given row by row */
    context.rope_scaling_type = rope_scaling(recipe->rope_scaling);
    context.rope_freq_base = recipe->rope_freq_base;
    context.rope_freq_scale = recipe->rope_freq_scale;
    context.yarn_ext_factor = recipe->yarn_ext_factor;
    context.yarn_attn_factor = recipe->yarn_attn_factor;
    context.yarn_beta_fast = recipe->yarn_beta_fast;
    context.yarn_beta_slow = recipe->yarn_beta_slow;
    context.yarn_orig_ctx = recipe->yarn_orig_ctx;
    context.no_perf = true;
    return context;
}
