#include "fake_engine.h"

#include "error.h"
#include "fake_artifact.h"
#include "fake_sessions.h"
#include "fake_vocabulary.h"
#include "memory_rules.h"
#include "recipe_rules.h"
#include "registry.h"
#include "sampling_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- build ---- */

static void describe_cpu(shard_device *device) {
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    *device = (shard_device){.name = "CPU", .description = "integer arithmetic", .kind = "cpu"};
    if (pages > 0 && page_bytes > 0) {
        device->memory_total = (uint64_t)pages * (uint64_t)page_bytes;
    }
#ifdef _SC_AVPHYS_PAGES
    const long available = sysconf(_SC_AVPHYS_PAGES);
    if (available > 0 && page_bytes > 0) {
        device->memory_free = (uint64_t)available * (uint64_t)page_bytes;
    }
#endif
}

static shard_status fake_build(shard_build *build, shard_error *error) {
    *build = (shard_build){.engine = "fake",
                           .engine_version = GGUF_WORKER_VERSION,
                           .pin_matches = true,
                           .n_devices = 1};
    describe_cpu(&build->devices[0]);
    return shard_ok(error);
}

/* ---- what the parameters say ---- */

static shard_status check_artifact(const fake_spec *spec, const char *expected,
                                   shard_error *error) {
    char actual[SHARD_SHA256_HEX_SIZE];
    fake_artifact_sha256(spec, actual);
    if (expected == NULL || strcmp(expected, actual) == 0) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_IDENTITY,
               "the artifact is %s and not %.64s; give the right file, or the right digest", actual,
               expected);
    shard_error_add(error, "field", "artifact");
    shard_error_add(error, "expected", "%s", expected);
    shard_error_add(error, "actual", "%s", actual);
    return error->status;
}

/* The parameters once they are known to be good, and what follows from them. */
typedef struct checked_params {
    fault_plan plan;
    fake_spec spec;
    uint32_t start;
    uint32_t end;
    shard_recipe recipe; /* settled */
    boundary_dtype boundary;
    uint32_t n_cells;
    uint32_t n_columns; /* values in the longest row that comes out */
    shard_memory memory;
} checked_params;

static uint64_t buffer_bytes(const checked_params *checked, uint32_t max_sessions) {
    const bool is_last = checked->end == checked->spec.n_layer;
    const uint64_t n_embd = checked->spec.n_embd, n_columns = checked->n_columns;
    const uint64_t per_row =
        n_embd * sizeof(uint32_t) + sizeof(uint32_t) + n_columns * sizeof(float);
    const uint64_t per_session = sizeof(fake_session) + sizeof(uint32_t) + sizeof(decode_call);
    const uint64_t draw = is_last ? checked->spec.n_vocab * sizeof(fake_choice) +
                                        checked->recipe.n_ctx * sizeof(int32_t)
                                  : 0;
    return checked->recipe.n_batch * per_row + max_sessions * per_session + draw;
}

static void settle(const shard_params *params, checked_params *checked) {
    const fake_spec *spec = &checked->spec;
    checked->recipe = recipe_rules_settle(&params->recipe);
    boundary_find(checked->recipe.boundary, &checked->boundary);
    checked->n_cells =
        checked->recipe.n_ctx * (checked->recipe.kv_unified ? 1 : params->max_sessions);
    const bool has_logits = checked->end == spec->n_layer && spec->n_vocab > spec->n_embd;
    checked->n_columns = has_logits ? spec->n_vocab : spec->n_embd;
    checked->memory = (shard_memory){
        .weights_bytes = fake_model_bytes_of(spec, checked->start, checked->end),
        .kv_bytes = fake_cells_bytes(checked->n_cells, checked->end - checked->start, spec->n_embd),
        .compute_bytes = buffer_bytes(checked, params->max_sessions),
    };
}

static shard_status check_all(const shard_params *params, checked_params *checked,
                              shard_error *error) {
    checked->start = params->layer_start;
    checked->end = params->layer_end;
    if (fault_plan_parse(params->fault_plan, &checked->plan, error) != SHARD_OK ||
        recipe_rules_check(params, error) != SHARD_OK ||
        fake_artifact_digest(params->model_path, params->on_progress, params->user_data,
                             &checked->spec, error) != SHARD_OK ||
        check_artifact(&checked->spec, params->expected_artifact, error) != SHARD_OK ||
        fake_spec_range(&checked->spec, &checked->start, &checked->end, error) != SHARD_OK) {
        return error->status;
    }
    settle(params, checked);
    return SHARD_OK;
}

static shard_status fake_estimate(const shard_params *params, shard_memory *memory,
                                  shard_error *error) {
    checked_params checked;
    if (check_all(params, &checked, error) != SHARD_OK) {
        return error->status;
    }
    *memory = checked.memory;
    return shard_ok(error);
}

/* ---- opening and closing ---- */

static void fake_close(shard_engine *engine) {
    fake_model_free(&engine->model);
    fake_cells_free(&engine->cells);
    free(engine->rows);
    free(engine->row_cells);
    free(engine->output);
    free(engine->calls.order);
    free(engine->calls.calls);
    free(engine->choices);
    free(engine->tokens);
    free(engine);
}

static bool allocate_step(shard_engine *engine, const checked_params *checked,
                          uint32_t max_sessions) {
    const size_t max_batch = checked->recipe.n_batch;
    engine->rows = malloc(max_batch * checked->spec.n_embd * sizeof(uint32_t));
    engine->row_cells = malloc(max_batch * sizeof(uint32_t));
    engine->output = malloc(max_batch * checked->n_columns * sizeof(float));
    engine->n_columns = checked->n_columns;
    engine->calls.order = malloc(max_sessions * sizeof(uint32_t));
    engine->calls.calls = malloc(max_sessions * sizeof(decode_call));
    return engine->rows != NULL && engine->row_cells != NULL && engine->output != NULL &&
           engine->calls.order != NULL && engine->calls.calls != NULL;
}

/* Only the last stage draws. */
static bool allocate_draw(shard_engine *engine, const checked_params *checked) {
    if (engine->model.head == NULL) {
        return true;
    }
    engine->choices = malloc(checked->spec.n_vocab * sizeof(fake_choice));
    engine->tokens = malloc(checked->recipe.n_ctx * sizeof(int32_t));
    return engine->choices != NULL && engine->tokens != NULL;
}

static shard_status allocate_buffers(shard_engine *engine, const checked_params *checked,
                                     uint32_t max_sessions, shard_error *error) {
    const bool stepping = allocate_step(engine, checked, max_sessions);
    if (stepping && allocate_draw(engine, checked)) {
        return SHARD_OK;
    }
    const uint64_t needed = checked->memory.compute_bytes;
    shard_fail(error, SHARD_ERR_MEMORY,
               "a batch of %" PRIu32 " rows needs %" PRIu64
               " bytes, which could not be had; lower n_batch",
               checked->recipe.n_batch, needed);
    shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
    return error->status;
}

/* What a shard is and owns is read from what was allocated; every value of the recipe was honoured
 * as it stands or refused. */
static void settle_description(shard_engine *engine, const checked_params *checked) {
    const fake_model *model = &engine->model;
    const fake_spec *spec = &model->spec;
    const bool vocabulary = model->embedding != NULL || model->head != NULL;
    engine->description = (shard_description){
        .layer_start = model->layer_start,
        .layer_end = model->layer_end,
        .recipe = checked->recipe,
        .architecture = "fake",
        .n_layer = spec->n_layer,
        .n_embd = spec->n_embd,
        .n_vocab = vocabulary ? spec->n_vocab : 0,
        .n_ctx_train = UINT32_MAX,
        .n_embd_out = spec->n_embd,
        .owned_layers = fake_model_layers(model),
        .owned_tensors = model->n_tensors,
        .owned_bytes = fake_model_bytes(model),
        .has_token_embedding = model->embedding != NULL,
        .has_output_head = model->head != NULL,
        .has_vocabulary = vocabulary,
        .memory = {.weights_bytes = fake_model_bytes(model),
                   .kv_bytes = checked->memory.kv_bytes,
                   .compute_bytes = checked->memory.compute_bytes},
        .max_sessions = engine->cells.max_sessions,
        .kv_cells = engine->cells.chains.n_cells,
        .session_cells = checked->recipe.n_ctx,
        .max_batch = checked->recipe.n_batch,
        .can_trim = spec->recurrent == 0,
    };
    fake_spec_text(spec, engine->description.model_name);
    snprintf(engine->description.pooling, sizeof(engine->description.pooling), "%s",
             fake_spec_pooling(spec));
    fake_artifact_sha256(spec, engine->description.artifact_sha256);
    fake_shard_sha256(spec, model->layer_start, model->layer_end, engine->description.shard_sha256);
}

static shard_status warm_up(shard_engine *engine, const shard_params *params, shard_error *error) {
    const uint64_t total = (uint64_t)engine->model.spec.n_embd * sizeof(float);
    const shard_progress_callback report = params->on_progress;
    if (report != NULL && !report("warm-up", 0, total, params->user_data)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "the load was cancelled");
    }
    fake_warm_up(engine);
    if (report != NULL && !report("warm-up", total, total, params->user_data)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "the load was cancelled");
    }
    return SHARD_OK;
}

/* Fills an engine that is zeroed; what it holds when it fails, fake_close releases. */
static shard_status load(shard_engine *engine, const shard_params *params,
                         const checked_params *checked, shard_error *error) {
    const fake_spec *spec = &checked->spec;
    slow_load slow = slow_load_init(&engine->plan, params->on_progress, params->user_data);
    if (fake_model_load(&engine->model, spec, checked->boundary, checked->start, checked->end,
                        slow_load_progress, &slow, error) != SHARD_OK ||
        fault_actions_load(&engine->plan, error) != SHARD_OK ||
        fake_cells_init(&engine->cells, checked->n_cells, checked->end - checked->start,
                        spec->n_embd, params->max_sessions, error) != SHARD_OK ||
        allocate_buffers(engine, checked, params->max_sessions, error) != SHARD_OK ||
        warm_up(engine, params, error) != SHARD_OK) {
        return error->status;
    }
    settle_description(engine, checked);
    return shard_ok(error);
}

static shard_status fake_open(const shard_params *params, shard_engine **out, shard_error *error) {
    checked_params checked;
    *out = NULL;
    if (check_all(params, &checked, error) != SHARD_OK ||
        memory_rules_check(&checked.memory, params->memory_available, error) != SHARD_OK) {
        return error->status;
    }
    shard_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "the engine's record could not be allocated");
    }
    engine->plan = checked.plan;
    engine->boundary = checked.boundary;
    if (load(engine, params, &checked, error) != SHARD_OK) {
        fake_close(engine);
        return error->status;
    }
    *out = engine;
    return SHARD_OK;
}

static void fake_describe(const shard_engine *engine, shard_description *description) {
    *description = engine->description;
}

/* ---- vocabulary ---- */

static shard_status check_vocabulary(const shard_engine *engine, shard_error *error) {
    if (engine->description.has_vocabulary) {
        return SHARD_OK;
    }
    return shard_fail(error, SHARD_ERR_NOT_OWNED,
                      "layers %" PRIu32 ":%" PRIu32
                      " have no vocabulary; ask the first or the last stage",
                      engine->model.layer_start, engine->model.layer_end);
}

static shard_status tokenize(shard_engine *engine, const char *text, uint32_t n_bytes,
                             bool add_special, bool parse_special, int32_t *tokens,
                             uint32_t capacity, uint32_t *n_tokens, shard_error *error) {
    *n_tokens = 0;
    if (check_vocabulary(engine, error) != SHARD_OK) {
        return error->status;
    }
    return fake_tokenize(engine->model.spec.n_vocab, text, n_bytes, add_special, parse_special,
                         tokens, capacity, n_tokens, error);
}

static shard_status detokenize(shard_engine *engine, const int32_t *tokens, uint32_t n_tokens,
                               bool remove_special, bool unparse_special, char *text,
                               uint32_t capacity, uint32_t *n_bytes, shard_error *error) {
    *n_bytes = 0;
    if (check_vocabulary(engine, error) != SHARD_OK) {
        return error->status;
    }
    return fake_detokenize(engine->model.spec.n_vocab, tokens, n_tokens, remove_special,
                           unparse_special, text, capacity, n_bytes, error);
}

static shard_status token_info(shard_engine *engine, int32_t token, shard_token_info *info,
                               shard_error *error) {
    if (check_vocabulary(engine, error) != SHARD_OK) {
        return error->status;
    }
    return fake_token_info(engine->model.spec.n_vocab, token, info, error);
}

static shard_status vocabulary(shard_engine *engine, shard_vocabulary *out, shard_error *error) {
    if (check_vocabulary(engine, error) != SHARD_OK) {
        return error->status;
    }
    fake_vocabulary(engine->model.spec.n_vocab, out);
    return shard_ok(error);
}

static shard_status chat_template(shard_engine *engine, const char *name, char *text,
                                  uint32_t capacity, uint32_t *n_bytes, shard_error *error) {
    *n_bytes = 0;
    if (check_vocabulary(engine, error) != SHARD_OK) {
        return error->status;
    }
    return fake_chat_template(name, text, capacity, n_bytes, error);
}

/* ---- other threads ---- */

static void fake_cancel(shard_engine *engine) {
    atomic_store(&engine->signals.cancelled, true);
}

static uint64_t fake_progress(const shard_engine *engine) {
    return atomic_load(&engine->signals.progress);
}

const shard_engine_api shard_fake_engine = {
    .abi_version = SHARD_ENGINE_ABI_VERSION,
    .name = "fake",
    .default_params = recipe_rules_defaults,
    .build = fake_build,
    .artifact_open = fake_artifact_open,
    .artifact_info = fake_artifact_info,
    .artifact_file = fake_artifact_file,
    .artifact_layer_bytes = fake_artifact_layer_bytes,
    .artifact_close = fake_artifact_close,
    .slice = fake_slice,
    .estimate = fake_estimate,
    .open = fake_open,
    .close = fake_close,
    .describe = fake_describe,
    .kv_cells_used = fake_sessions_cells_used,
    .default_sampling = sampling_rules_defaults,
    .session_open = fake_sessions_open,
    .session_fork = fake_sessions_fork,
    .session_length = fake_sessions_length,
    .session_trim = fake_sessions_trim,
    .session_close = fake_sessions_close,
    .step = fake_step,
    .tokenize = tokenize,
    .detokenize = detokenize,
    .token_info = token_info,
    .vocabulary = vocabulary,
    .chat_template = chat_template,
    .cancel = fake_cancel,
    .progress = fake_progress,
};
