#include "estimate.h"

#include "error.h"
#include "log.h"
#include "memory_rules.h"
#include "outline.h"
#include "pin.h"
#include "recipe.h"
#include "recipe_rules.h"
#include "repack.h"
#include "sampling.h"
#include "step_buffers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights, by the artifact ---- */

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Of tensors without a layer: a stage that is not the last has neither head nor, since the first
 * one reads its rows from the artifact, an embedding in memory; the rest (such as RoPE factors) is
 * small and goes to all. */
static bool is_held(const load_source *source, const artifact_tensor *tensor) {
    const bool is_last = load_source_is_last(source);
    if (tensor->layer != ARTIFACT_NO_LAYER) {
        return tensor->layer >= source->start && tensor->layer < source->end;
    }
    if (starts_with(tensor->name, "token_embd.")) {
        return load_source_takes_tokens(source) || (is_last && source->artifact->info.tied_head);
    }
    return is_last || !starts_with(tensor->name, "output");
}

/* A whole model reads a tied head as embedding and as matrix. Repacked, the matrix is a copy. */
static uint64_t head_copy_bytes(const load_source *source) {
    const artifact_tensor *tensor = artifact_find(source->artifact, "token_embd.weight");
    const bool reads_both = load_source_takes_tokens(source) && source->artifact->info.tied_head;
    if (!reads_both || !source->params->recipe.repack || tensor == NULL) {
        return 0;
    }
    const struct gguf_context *gguf = source->artifact->files[tensor->file].gguf;
    const int64_t *size = gguf_get_tensor_ne(gguf, tensor->id);
    return repack_takes(gguf_get_tensor_type(gguf, tensor->id), size[0], size[1]) ? tensor->bytes
                                                                                  : 0;
}

static uint64_t weights_bytes(const load_source *source) {
    const shard_artifact *artifact = source->artifact;
    uint64_t bytes = head_copy_bytes(source);
    for (uint32_t i = 0; i < artifact->n_tensors; i++) {
        bytes += is_held(source, &artifact->tensors[i]) ? artifact->tensors[i].bytes : 0;
    }
    return bytes;
}

/* ---- the rest, by the library ---- */

/* Bytes that the library said it would take. */
typedef struct reported {
    double kv;
    double state; /* recurrent */
    double compute;
} reported;

/* The number after `key`, which the library prints in MiB with two decimals. */
static double mebibytes_after(const char *line, const char *key) {
    const char *at = strstr(line, key);
    return at != NULL ? strtod(at + strlen(key), NULL) * 1024 * 1024 : 0.0;
}

/* Lines of the pinned library, each once per cache or backend:
 *   "...: size =   22.50 MiB (  1024 cells,  30 layers,  4/1 seqs), K (f16): ..."   KV cells
 *   "...: size =    1.12 MiB (     4 cells,   6 layers,  4 seqs  0 rs_seq), R (f32): ..."
 *   "...:        CPU compute buffer size =    48.10 MiB" */
static void read_line(const char *line, void *user_data) {
    reported *sizes = user_data;
    const bool is_memory = strstr(line, " cells, ") != NULL;
    const bool is_state = strstr(line, " rs_seq)") != NULL;
    if (is_memory && is_state) {
        sizes->state += mebibytes_after(line, ": size = ");
    } else if (is_memory) {
        sizes->kv += mebibytes_after(line, ": size = ");
    } else {
        sizes->compute += mebibytes_after(line, " compute buffer size = ");
    }
}

/* What the load that follows says again. */
static void ignore_line(const char *line, void *user_data) {
    (void)line;
    (void)user_data;
}

/* With the status that `open` would give it. */
static shard_status refuse(const load_source *source, shard_status status, const char *what,
                           shard_error *error) {
    char why[512];
    log_first_error(why, sizeof(why));
    shard_fail(error, status, "llama.cpp cannot make a %s to estimate %s: %s", what,
               source->params->model_path, why);
    shard_error_add(error, "path", "%s", source->params->model_path);
    return error->status;
}

static shard_status ask_context(const load_source *source, struct llama_model *model,
                                uint32_t n_ctx, reported *sizes, shard_error *error) {
    shard_recipe recipe = recipe_rules_settle(&source->params->recipe);
    recipe.n_ctx = n_ctx;
    *sizes = (reported){0};
    log_watch(read_line, sizes);
    struct llama_context *context =
        llama_init_from_model(model, recipe_context_params(&recipe, source->params->max_sessions));
    log_watch(ignore_line, NULL);
    if (context == NULL) {
        return refuse(source, SHARD_ERR_UNSUPPORTED, "context", error);
    }
    llama_free(context);
    return shard_ok(error);
}

/* The library keeps some 50 bytes of its own about each cell even so. Past this many cells it is
 * asked about as many and half as many, and the straight line through both answers goes on. */
enum { MOST_CELLS_ASKED = 1 << 20 };

static uint32_t context_to_ask(const shard_params *params) {
    const uint32_t streams = params->recipe.kv_unified ? 1 : params->max_sessions;
    const uint32_t most = MOST_CELLS_ASKED / streams / 512 * 512; /* halves are multiples of 256 */
    return params->recipe.n_ctx < most ? params->recipe.n_ctx : most;
}

static double along(double half, double full, double halves) {
    return full + (full - half) * halves;
}

static shard_status ask_contexts(const load_source *source, struct llama_model *model,
                                 reported *sizes, shard_error *error) {
    const uint32_t n_ctx = source->params->recipe.n_ctx;
    const uint32_t asked = context_to_ask(source->params);
    const double halves = (double)(n_ctx - asked) / (asked / 2);
    reported half;
    if (ask_context(source, model, asked, sizes, error) != SHARD_OK || asked == n_ctx) {
        return error->status;
    }
    if (ask_context(source, model, asked / 2, &half, error) != SHARD_OK) {
        return error->status;
    }
    sizes->kv = along(half.kv, sizes->kv, halves);
    sizes->compute = along(half.compute, sizes->compute, halves);
    return shard_ok(error);
}

enum { N_OVERRIDES = 3 }; /* with the empty one that ends them */

/* Of a vocabulary only the length counts here, and taking it in would take as long as the load. A
 * shard that is not the last has none in any case. */
static void leave_out_vocabulary(const load_source *source,
                                 struct llama_model_kv_override overrides[N_OVERRIDES]) {
    const shard_artifact_info *info = &source->artifact->info;
    memset(overrides, 0, N_OVERRIDES * sizeof(*overrides));
    if (load_source_is_last(source)) {
        overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
        snprintf(overrides[0].key, sizeof(overrides[0].key), "tokenizer.ggml.model");
        snprintf(overrides[0].val_str, sizeof(overrides[0].val_str), "none");
        overrides[1].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        snprintf(overrides[1].key, sizeof(overrides[1].key), "%s.vocab_size", info->architecture);
        overrides[1].val_i64 = info->n_vocab;
    }
}

/* The file that is loaded, without its vocabulary's lists, or NULL: a shard that is not the last
 * has none, and of a shard file that was cut from an artifact the metadata are not here yet. */
static FILE *outline_of(const load_source *source) {
    const bool is_artifact = source->is_whole || source->artifact->info.is_slice;
    return is_artifact && load_source_is_last(source)
               ? outline_open(source->artifact->files[0].gguf)
               : NULL;
}

/* What is wrong with a model is told of the file itself. */
static struct llama_model *load_weightless(const load_source *source,
                                           struct llama_model_params params) {
    FILE *outline = outline_of(source);
    struct llama_model *model = NULL;
    if (outline != NULL) {
        model = llama_model_load_from_file_ptr(outline, params);
        fclose(outline);
    }
    log_forget();
    return model != NULL ? model : load_source_model(source, params);
}

/* `n_vocab` is the length of the library's vocabulary. */
static shard_status ask_library(const load_source *source, reported *sizes, uint32_t *n_vocab,
                                shard_error *error) {
    struct llama_model_params params = recipe_model_params(source->params);
    params.no_alloc = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    struct llama_model_kv_override overrides[N_OVERRIDES];
    leave_out_vocabulary(source, overrides);
    params.kv_overrides = overrides;
    log_watch(ignore_line, NULL);
    struct llama_model *model = load_weightless(source, params);
    if (model == NULL) {
        refuse(source, SHARD_ERR_MALFORMED, "model", error);
    } else if (ask_contexts(source, model, sizes, error) == SHARD_OK) {
        *n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    }
    llama_model_free(model);
    log_watch(NULL, NULL);
    return error->status;
}

/* ---- together ---- */

/* `state` is that of all sessions. */
static double snapshot_bytes(const load_source *source, double state) {
    return state * load_source_states_at_once(source) / source->params->max_sessions;
}

static uint64_t own_bytes(const load_source *source, uint32_t n_vocab) {
    const step_shape shape = load_source_shape(source, n_vocab);
    return step_buffers_bytes(&shape) + sampling_space_bytes(shape.n_vocab);
}

static shard_status estimate_source(const load_source *source, shard_memory *memory,
                                    shard_error *error) {
    reported sizes;
    uint32_t n_vocab = 0;
    if (ask_library(source, &sizes, &n_vocab, error) != SHARD_OK) {
        return error->status;
    }
    *memory = (shard_memory){
        .weights_bytes = weights_bytes(source),
        .kv_bytes = (uint64_t)(sizes.kv + sizes.state),
        .compute_bytes = (uint64_t)(sizes.compute + snapshot_bytes(source, sizes.state)) +
                         own_bytes(source, n_vocab),
    };
    return shard_ok(error);
}

shard_status estimate_admit(const load_source *source, shard_error *error) {
    const shard_params *params = source->params;
    shard_memory needed;
    if (params->memory_available == 0 || params->recipe.n_gpu_layers != 0) {
        return shard_ok(error);
    }
    return estimate_source(source, &needed, error) == SHARD_OK
               ? memory_rules_check(&needed, params->memory_available, error)
               : error->status;
}

shard_status engine_estimate(const shard_params *params, shard_memory *memory, shard_error *error) {
    load_source source = {.params = params};
    shard_build build;
    *memory = (shard_memory){0};
    if (recipe_check(params, error) != SHARD_OK) {
        return error->status;
    }
    log_install();
    llama_backend_init();
    if (pin_build(&build, error) == SHARD_OK && load_source_find(&source, error) == SHARD_OK) {
        estimate_source(&source, memory, error);
    }
    artifact_close(source.artifact);
    return error->status;
}
