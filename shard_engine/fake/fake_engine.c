#include "fake_engine.h"

#include "error.h"
#include "fake_artifact.h"
#include "fake_vocabulary.h"
#include "recipe_rules.h"
#include "registry.h"

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

/* ---- opening and closing ---- */

static void fake_close(shard_engine *engine) {
    fake_model_free(&engine->model);
    fake_cells_free(&engine->cells);
    free(engine->rows);
    free(engine->row_cells);
    free(engine->output);
    free(engine);
}

/* Values in a row that comes out; the description is not there yet when buffers are made. */
static uint64_t columns_out(const fake_model *model) {
    return model->head != NULL ? model->spec.n_vocab : model->spec.n_embd;
}

static uint64_t buffer_bytes(const shard_engine *engine, uint64_t max_batch) {
    return max_batch * (engine->model.spec.n_embd * sizeof(uint32_t) + sizeof(uint32_t) +
                        columns_out(&engine->model) * sizeof(float));
}

static shard_status allocate_buffers(shard_engine *engine, uint64_t max_batch, shard_error *error) {
    engine->rows = malloc(max_batch * engine->model.spec.n_embd * sizeof(uint32_t));
    engine->row_cells = malloc(max_batch * sizeof(uint32_t));
    engine->output = malloc(max_batch * columns_out(&engine->model) * sizeof(float));
    if (engine->rows != NULL && engine->row_cells != NULL && engine->output != NULL) {
        return SHARD_OK;
    }
    const uint64_t needed = buffer_bytes(engine, max_batch);
    shard_fail(error, SHARD_ERR_MEMORY,
               "a batch of %" PRIu64 " rows needs %" PRIu64
               " bytes, which could not be had; lower n_batch",
               max_batch, needed);
    shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
    return error->status;
}

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

/* Everything here is read from what was allocated, except the recipe, whose every value was
 * honoured as it stands or refused. */
static void settle_description(shard_engine *engine, const shard_recipe *recipe) {
    const fake_model *model = &engine->model;
    const fake_spec *spec = &model->spec;
    const bool vocabulary = model->embedding != NULL || model->head != NULL;
    shard_description *description = &engine->description;
    description->layer_start = model->layer_start;
    description->layer_end = model->layer_end;
    description->recipe = recipe_rules_settle(recipe);
    snprintf(description->architecture, sizeof(description->architecture), "fake");
    fake_spec_text(spec, description->model_name);
    description->n_layer = spec->n_layer;
    description->n_embd = spec->n_embd;
    description->n_vocab = vocabulary ? spec->n_vocab : 0;
    description->n_ctx_train = UINT32_MAX;
    description->owned_layers = fake_model_layers(model);
    description->owned_tensors = model->n_tensors;
    description->owned_bytes = fake_model_bytes(model);
    description->has_token_embedding = model->embedding != NULL;
    description->has_output_head = model->head != NULL;
    description->has_vocabulary = vocabulary;
    description->weights_bytes = fake_model_bytes(model);
    description->kv_bytes = fake_cells_bytes(&engine->cells);
    description->compute_bytes = buffer_bytes(engine, recipe->n_batch);
    description->max_sessions = engine->cells.max_sessions;
    description->kv_cells = engine->cells.n_cells;
    description->max_batch = recipe->n_batch;
    fake_artifact_sha256(spec, description->artifact_sha256);
    fake_shard_sha256(spec, model->layer_start, model->layer_end, description->shard_sha256);
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

/* What the parameters say, once they are known to be good. */
typedef struct checked_params {
    fault_plan plan;
    fake_spec spec;
    uint32_t start;
    uint32_t end;
} checked_params;

/* Fills an engine that is zeroed; what it holds when it fails, fake_close releases. */
static shard_status load(shard_engine *engine, const shard_params *params,
                         const checked_params *checked, shard_error *error) {
    const fake_spec *spec = &checked->spec;
    const shard_recipe *recipe = &params->recipe;
    slow_load slow = slow_load_init(&engine->plan, params->on_progress, params->user_data);
    if (fake_model_load(&engine->model, spec, checked->start, checked->end, slow_load_progress,
                        &slow, error) != SHARD_OK ||
        fault_actions_load(&engine->plan, error) != SHARD_OK ||
        fake_cells_init(&engine->cells, recipe->n_ctx, checked->end - checked->start, spec->n_embd,
                        params->max_sessions, error) != SHARD_OK ||
        allocate_buffers(engine, recipe->n_batch, error) != SHARD_OK ||
        warm_up(engine, params, error) != SHARD_OK) {
        return error->status;
    }
    settle_description(engine, recipe);
    return shard_ok(error);
}

static shard_status check_all(const shard_params *params, checked_params *checked,
                              shard_error *error) {
    checked->start = params->layer_start;
    checked->end = params->layer_end;
    if (fault_plan_parse(params->fault_plan, &checked->plan, error) != SHARD_OK ||
        recipe_rules_check(params, error) != SHARD_OK ||
        fake_artifact_digest(params->model_path, params->on_progress, params->user_data,
                             &checked->spec, error) != SHARD_OK ||
        check_artifact(&checked->spec, params->expected_artifact, error) != SHARD_OK) {
        return error->status;
    }
    return fake_spec_range(&checked->spec, &checked->start, &checked->end, error);
}

static shard_status fake_open(const shard_params *params, shard_engine **out, shard_error *error) {
    checked_params checked;
    *out = NULL;
    if (check_all(params, &checked, error) != SHARD_OK) {
        return error->status;
    }
    shard_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "the engine's record could not be allocated");
    }
    engine->plan = checked.plan;
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

/* ---- sessions ---- */

static uint32_t fake_kv_cells_used(const shard_engine *engine) {
    return engine->cells.n_used;
}

static shard_status open_session(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error) {
    *out = -1;
    /* Written so that NaN is refused too. */
    if (sampling != NULL && !(sampling->temperature == 0)) {
        shard_fail(error, SHARD_ERR_UNSUPPORTED,
                   "temperature %g is not supported; only greedy sampling is, temperature 0",
                   (double)sampling->temperature);
        shard_error_add(error, "field", "temperature");
        shard_error_add(error, "actual", "%g", (double)sampling->temperature);
        return error->status;
    }
    return fake_session_open(&engine->cells, out, error);
}

shard_status fake_session_length(const shard_engine *engine, shard_session_id id, uint32_t *length,
                                 shard_error *error) {
    const fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL) {
        return error->status;
    }
    *length = session->length;
    return shard_ok(error);
}

static shard_status session_trim(shard_engine *engine, shard_session_id id, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error) {
    *kv_cells_freed = 0;
    fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL) {
        return error->status;
    }
    if (position > session->length) {
        shard_fail(error, SHARD_ERR_POSITION,
                   "the session is %" PRIu32 " rows long and cannot be trimmed to %" PRIu32
                   "; trim to at most %" PRIu32,
                   session->length, position, session->length);
        shard_error_add(error, "expected", "%" PRIu32, session->length);
        shard_error_add(error, "actual", "%" PRIu32, position);
        return error->status;
    }
    *kv_cells_freed = fake_session_trim(&engine->cells, session, position);
    return shard_ok(error);
}

static shard_status session_close(shard_engine *engine, shard_session_id id,
                                  uint32_t *kv_cells_freed, shard_error *error) {
    *kv_cells_freed = 0;
    fake_session *session = fake_session_find(&engine->cells, id, error);
    if (session == NULL) {
        return error->status;
    }
    *kv_cells_freed = fake_session_trim(&engine->cells, session, 0);
    session->open = false;
    return shard_ok(error);
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
    .open = fake_open,
    .close = fake_close,
    .describe = fake_describe,
    .kv_cells_used = fake_kv_cells_used,
    .session_open = open_session,
    .session_length = fake_session_length,
    .session_trim = session_trim,
    .session_close = session_close,
    .step = fake_step,
    .tokenize = tokenize,
    .detokenize = detokenize,
    .token_info = token_info,
    .vocabulary = vocabulary,
    .cancel = fake_cancel,
    .progress = fake_progress,
};
