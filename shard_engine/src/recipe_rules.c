#include "recipe_rules.h"

#include "boundary.h"
#include "error.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    CONTEXT_STEP = 256, /* llama.cpp rounds a context up to a multiple of it */
    MAX_SESSIONS = 256, /* LLAMA_MAX_SEQ of the pinned library */
    MAX_THREADS = 512,  /* GGML_MAX_N_THREADS */
};

/* The ggml types that a KV cache can have. */
static const struct {
    const char *name;
    bool is_quantised;
} CACHE_TYPES[] = {
    {"f32", false}, {"f16", false}, {"bf16", false}, {"q8_0", true},   {"q5_1", true},
    {"q5_0", true}, {"q4_1", true}, {"q4_0", true},  {"iq4_nl", true},
};

enum { N_CACHE_TYPES = sizeof(CACHE_TYPES) / sizeof(CACHE_TYPES[0]) };

void recipe_rules_defaults(shard_params *params) {
    *params = (shard_params){
        .recipe = {.n_ctx = 4096,
                   .n_batch = 512,
                   .n_ubatch = 128,
                   .prefill_chunk = 0,
                   .n_threads = 0,
                   .flash_attn = true,
                   .repack = true,
                   .kv_unified = true,
                   .n_gpu_layers = 0,
                   .main_gpu = 0,
                   .split_mode = "layer",
                   .type_k = "f16",
                   .type_v = "f16",
                   .boundary = "f32",
                   .rope_scaling = "model",
                   .yarn_ext_factor = -1.0f,
                   .yarn_attn_factor = -1.0f,
                   .yarn_beta_fast = -1.0f,
                   .yarn_beta_slow = -1.0f},
        .max_sessions = 4,
        .use_mmap = true,
    };
}

static shard_status check_number(const char *field, uint32_t actual, uint32_t least, uint32_t most,
                                 const char *remark, shard_error *error) {
    if (actual >= least && actual <= most) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_ARGUMENT, "%s is %" PRIu32 "; choose %" PRIu32 " to %" PRIu32 "%s",
               field, actual, least, most, remark);
    shard_error_add(error, "field", "%s", field);
    shard_error_add(error, "actual", "%" PRIu32, actual);
    return error->status;
}

static shard_status check_context(uint32_t n_ctx, shard_error *error) {
    if (n_ctx != 0 && n_ctx % CONTEXT_STEP == 0 && n_ctx <= INT32_MAX) {
        return SHARD_OK;
    }
    /* Past the largest multiple that is allowed, the nearest one is below. */
    const uint32_t largest = INT32_MAX - INT32_MAX % CONTEXT_STEP;
    const uint32_t next = n_ctx >= largest ? largest : (n_ctx / CONTEXT_STEP + 1) * CONTEXT_STEP;
    shard_fail(error, SHARD_ERR_UNSUPPORTED,
               "recipe.n_ctx is %" PRIu32 ", which is not a multiple of %d up to %" PRIu32
               "; use %" PRIu32,
               n_ctx, CONTEXT_STEP, largest, next);
    shard_error_add(error, "field", "recipe.n_ctx");
    shard_error_add(error, "actual", "%" PRIu32, n_ctx);
    shard_error_add(error, "next", "%" PRIu32, next);
    return error->status;
}

static shard_status bad_name(const char *field, const char *actual, const char *remedy,
                             shard_error *error) {
    shard_fail(error, SHARD_ERR_UNSUPPORTED, "%s \"%.*s\" is not supported; %s", field,
               SHARD_NAME_SIZE, actual, remedy);
    shard_error_add(error, "field", "%s", field);
    shard_error_add(error, "actual", "%.*s", SHARD_NAME_SIZE, actual);
    return error->status;
}

static shard_status check_cache_type(const char *field, const char *name, bool may_be_quantised,
                                     shard_error *error) {
    for (size_t i = 0; i < N_CACHE_TYPES; i++) {
        if (strncmp(name, CACHE_TYPES[i].name, SHARD_NAME_SIZE) == 0) {
            return may_be_quantised || !CACHE_TYPES[i].is_quantised
                       ? SHARD_OK
                       : bad_name(field, name, "turn flash_attn on, or use f16", error);
        }
    }
    return bad_name(field, name, "use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl",
                    error);
}

static shard_status check_boundary(const char *name, shard_error *error) {
    boundary_dtype dtype;
    return boundary_find(name, &dtype)
               ? SHARD_OK
               : bad_name("recipe.boundary", name, "use f32, f16 or bf16", error);
}

/* `names` ends with NULL. */
static shard_status check_name(const char *field, const char *actual, const char *const *names,
                               const char *remedy, shard_error *error) {
    for (; *names != NULL; names++) {
        if (strncmp(actual, *names, SHARD_NAME_SIZE) == 0) {
            return SHARD_OK;
        }
    }
    return bad_name(field, actual, remedy, error);
}

static shard_status check_devices(const shard_recipe *recipe, shard_error *error) {
    static const char *const SPLIT_MODES[] = {"none", "layer", "row", NULL};
    if (recipe->main_gpu < 0 || recipe->main_gpu >= SHARD_MAX_DEVICES) {
        shard_fail(error, SHARD_ERR_ARGUMENT, "recipe.main_gpu is %" PRId32 "; choose 0 to %d",
                   recipe->main_gpu, SHARD_MAX_DEVICES - 1);
        shard_error_add(error, "field", "recipe.main_gpu");
        shard_error_add(error, "actual", "%" PRId32, recipe->main_gpu);
        return error->status;
    }
    return check_name("recipe.split_mode", recipe->split_mode, SPLIT_MODES,
                      "use none, layer or row", error);
}

typedef struct float_rule {
    const char *field;
    float actual;
    float model; /* stands for what the model says */
    float least;
    float most;
    const char *allowed;
} float_rule;

/* Written so that NaN, which compares false, is refused. */
static shard_status check_float(const float_rule *rule, shard_error *error) {
    if (rule->actual == rule->model ||
        (rule->actual >= rule->least && rule->actual <= rule->most)) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_ARGUMENT, "%s is %.9g; choose %s", rule->field,
               (double)rule->actual, rule->allowed);
    shard_error_add(error, "field", "%s", rule->field);
    shard_error_add(error, "actual", "%.9g", (double)rule->actual);
    return error->status;
}

/* One value alone stands for "the model's", so that equal recipes are equal in their identities. */
static shard_status check_rope(const shard_recipe *recipe, shard_error *error) {
    static const char *const SCALINGS[] = {"model", "none", "linear", "yarn", "longrope", NULL};
    static const char *const YARN = "0 to 1000000, or -1 for the model's";
    const float_rule rules[] = {
        {"recipe.rope_freq_base", recipe->rope_freq_base, 0.0f, 1.0f, 1e12f,
         "1 to 1e12, or 0 for the model's"},
        {"recipe.rope_freq_scale", recipe->rope_freq_scale, 0.0f, 1e-6f, 1e3f,
         "1e-6 to 1000, or 0 for the model's"},
        {"recipe.yarn_ext_factor", recipe->yarn_ext_factor, -1.0f, 0.0f, 1e6f, YARN},
        {"recipe.yarn_attn_factor", recipe->yarn_attn_factor, -1.0f, 0.0f, 1e6f, YARN},
        {"recipe.yarn_beta_fast", recipe->yarn_beta_fast, -1.0f, 0.0f, 1e6f, YARN},
        {"recipe.yarn_beta_slow", recipe->yarn_beta_slow, -1.0f, 0.0f, 1e6f, YARN},
    };
    if (check_name("recipe.rope_scaling", recipe->rope_scaling, SCALINGS,
                   "use model, none, linear, yarn or longrope", error) != SHARD_OK) {
        return error->status;
    }
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (check_float(&rules[i], error) != SHARD_OK) {
            return error->status;
        }
    }
    return check_number("recipe.yarn_orig_ctx", recipe->yarn_orig_ctx, 0, INT32_MAX,
                        ", where 0 is the model's", error);
}

static shard_status check_recipe(const shard_recipe *recipe, shard_error *error) {
    if (check_context(recipe->n_ctx, error) != SHARD_OK ||
        check_number("recipe.n_batch", recipe->n_batch, 1, recipe->n_ctx, " (n_ctx)", error) !=
            SHARD_OK ||
        check_number("recipe.n_ubatch", recipe->n_ubatch, 1, recipe->n_batch, " (n_batch)",
                     error) != SHARD_OK ||
        check_number("recipe.prefill_chunk", recipe->prefill_chunk, 0, recipe->n_batch,
                     " (n_batch), where 0 is n_ubatch", error) != SHARD_OK ||
        check_number("recipe.n_threads", recipe->n_threads, 0, MAX_THREADS,
                     ", where 0 is one for each processor", error) != SHARD_OK ||
        check_devices(recipe, error) != SHARD_OK ||
        check_cache_type("recipe.type_k", recipe->type_k, true, error) != SHARD_OK ||
        check_cache_type("recipe.type_v", recipe->type_v, recipe->flash_attn, error) != SHARD_OK ||
        check_boundary(recipe->boundary, error) != SHARD_OK) {
        return error->status;
    }
    return check_rope(recipe, error);
}

/* llama.cpp numbers KV cells with 32 bits. */
static shard_status check_cells(const shard_params *params, shard_error *error) {
    const uint64_t cells = (uint64_t)params->recipe.n_ctx * params->max_sessions;
    if (params->recipe.kv_unified || cells <= INT32_MAX) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_ARGUMENT,
               "recipe.n_ctx is %" PRIu32 " for each of %" PRIu32 " sessions, which is %" PRIu64
               " KV cells; choose at most %" PRId32
               " together, or turn kv_unified on so that the sessions share them",
               params->recipe.n_ctx, params->max_sessions, cells, INT32_MAX);
    shard_error_add(error, "field", "recipe.n_ctx");
    shard_error_add(error, "actual", "%" PRIu32, params->recipe.n_ctx);
    return error->status;
}

static shard_status check_numa(const char *numa, shard_error *error) {
    static const char *const STRATEGIES[] = {"disabled", "distribute", "isolate", "numactl", NULL};
    return numa == NULL ? SHARD_OK
                        : check_name("numa", numa, STRATEGIES,
                                     "use disabled, distribute, isolate or numactl", error);
}

shard_status recipe_rules_check(const shard_params *params, shard_error *error) {
    if (params->model_path == NULL || params->model_path[0] == '\0') {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "no model was given; set model_path");
    }
    if (check_number("max_sessions", params->max_sessions, 1, MAX_SESSIONS, "", error) !=
        SHARD_OK) {
        return error->status;
    }
    if (check_recipe(&params->recipe, error) != SHARD_OK ||
        check_cells(params, error) != SHARD_OK || check_numa(params->numa, error) != SHARD_OK) {
        return error->status;
    }
    /* A step must have a row for each session; llama.cpp insists on it. */
    return check_number("recipe.n_batch", params->recipe.n_batch, params->max_sessions,
                        params->recipe.n_ctx, " (max_sessions to n_ctx)", error);
}

/* Processors that this process may run on. */
static uint32_t usable_processors(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

shard_recipe recipe_rules_settle(const shard_recipe *recipe) {
    shard_recipe settled = *recipe;
    if (settled.n_threads == 0) {
        const uint32_t processors = usable_processors();
        settled.n_threads = processors < MAX_THREADS ? processors : MAX_THREADS;
    }
    if (settled.prefill_chunk == 0) {
        settled.prefill_chunk = settled.n_ubatch;
    }
    return settled;
}
