/* Opening and closing: artifact, shard file, model, context, one row to see that it works, and the
 * count of what is really there. */
#include "artifact.h"
#include "cache.h"
#include "engine.h"
#include "error.h"
#include "log.h"
#include "pin.h"
#include "recipe.h"
#include "recipe_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the file that the library loads is, while an engine is being opened. */
typedef struct load_source {
    const shard_params *params;
    shard_artifact *artifact;
    uint32_t start;
    uint32_t end;
    bool is_whole; /* the artifact itself is loaded */
    char path[FILES_PATH_SIZE];
    char sha256[SHARD_SHA256_HEX_SIZE];
    uint64_t bytes;          /* of what is loaded */
    struct stat file_status; /* of `path`, when its digest was known */
    bool cancelled;
} load_source;

static bool report(const shard_params *params, const char *phase, uint64_t done, uint64_t total) {
    return params->on_progress == NULL ||
           params->on_progress(phase, done, total, params->user_data);
}

/* ---- the shard file ---- */

static shard_status check_expected(const load_source *source, shard_error *error) {
    const char *expected = source->params->expected_artifact;
    const char *actual = source->artifact->info.artifact_sha256;
    if (expected == NULL || strcmp(expected, actual) == 0) {
        return shard_ok(error);
    }
    shard_fail(error, SHARD_ERR_IDENTITY, "%s has sha256 %s, not %s: get the right artifact",
               source->params->model_path, actual, expected);
    shard_error_add(error, "field", "artifact");
    shard_error_add(error, "expected", "%s", expected);
    shard_error_add(error, "actual", "%s", actual);
    return error->status;
}

static shard_status find_shard_file(load_source *source, shard_error *error) {
    const shard_params *params = source->params;
    const shard_artifact_info *info = &source->artifact->info;
    source->is_whole = !info->is_slice && source->start == 0 && source->end == info->n_layer;
    if (source->is_whole || info->is_slice) {
        memcpy(source->path, source->artifact->files[0].path, sizeof(source->path));
        memcpy(source->sha256,
               source->is_whole ? info->artifact_sha256 : source->artifact->files[0].sha256,
               sizeof(source->sha256));
        return shard_ok(error);
    }
    if (params->cache_dir == NULL) {
        return shard_fail(
            error, SHARD_ERR_ARGUMENT,
            "layers %u:%u of %s need a shard file: set cache_dir, or open an exported "
            "slice",
            source->start, source->end, params->model_path);
    }
    return cache_shard_file(source->artifact, source->start, source->end, params->cache_dir,
                            params->on_progress, params->user_data, source->path, source->sha256,
                            error);
}

static shard_status look_at_file(load_source *source, shard_error *error) {
    int fd = -1;
    if (files_open(source->path, &fd, &source->file_status, error) == SHARD_OK) {
        close(fd);
        source->bytes = source->is_whole ? source->artifact->info.tensor_bytes
                                         : (uint64_t)source->file_status.st_size;
    }
    return error->status;
}

/* What was hashed must be what was loaded: neither the artifact nor the shard file may have changed
 * in between. */
static shard_status check_unchanged(const load_source *source, shard_error *error) {
    struct stat now;
    if (artifact_check_unchanged(source->artifact, error) != SHARD_OK) {
        return error->status;
    }
    if (stat(source->path, &now) != 0 || !files_are_same(&source->file_status, &now)) {
        shard_fail(error, SHARD_ERR_IDENTITY,
                   "the shard file %s changed while it was being loaded: load again", source->path);
        shard_error_add(error, "field", "shard");
        shard_error_add(error, "path", "%s", source->path);
    }
    return error->status;
}

static shard_status find_source(load_source *source, shard_error *error) {
    const shard_params *params = source->params;
    source->start = params->layer_start;
    source->end = params->layer_end;
    if (artifact_open(params->model_path, params->cache_dir, params->on_progress, params->user_data,
                      &source->artifact, error) != SHARD_OK ||
        check_expected(source, error) != SHARD_OK ||
        artifact_check_range(source->artifact, &source->start, &source->end, error) != SHARD_OK) {
        return error->status;
    }
    if (find_shard_file(source, error) != SHARD_OK) {
        return error->status;
    }
    return look_at_file(source, error);
}

/* ---- the library's model and context ---- */

static bool on_load_progress(float done, void *user_data) {
    load_source *source = user_data;
    source->cancelled = !report(source->params, "load",
                                (uint64_t)((double)done * (double)source->bytes), source->bytes);
    return !source->cancelled;
}

static struct llama_model *load_files(const load_source *source, struct llama_model_params params) {
    const uint32_t count = source->artifact->info.n_files;
    if (!source->is_whole || count == 1) {
        return llama_model_load_from_file(source->path, params);
    }
    const char **paths = calloc(count, sizeof(*paths));
    if (paths == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++) {
        paths[i] = source->artifact->files[i].path;
    }
    struct llama_model *model = llama_model_load_from_splits(paths, count, params);
    free(paths);
    return model;
}

/* The library gives no reason but in words. */
static bool is_want_of_memory(const char *why) {
    static const char *const SIGNS[] = {"insufficient memory", "failed to allocate",
                                        "unable to allocate", "bad_alloc", "out of memory"};
    for (size_t i = 0; i < sizeof(SIGNS) / sizeof(SIGNS[0]); i++) {
        if (strstr(why, SIGNS[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static shard_status load_model(shard_engine *engine, load_source *source, shard_error *error) {
    char why[512];
    struct llama_model_params params = recipe_model_params(source->params);
    params.progress_callback = on_load_progress;
    params.progress_callback_user_data = source;
    log_forget();
    engine->model = load_files(source, params);
    if (source->cancelled) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "loading %s was cancelled", source->path);
    }
    if (engine->model == NULL) {
        log_first_error(why, sizeof(why));
        shard_fail(error, is_want_of_memory(why) ? SHARD_ERR_MEMORY : SHARD_ERR_MALFORMED,
                   "llama.cpp cannot load %s: %s", source->params->model_path, why);
        shard_error_add(error, "path", "%s", source->params->model_path);
        return error->status;
    }
    return shard_ok(error);
}

/* Called for every graph node on the CPU backend: both the cancel point and the sign of progress.
 */
static bool on_node(void *user_data) {
    shard_engine *engine = user_data;
    atomic_fetch_add_explicit(&engine->progress, 1, memory_order_relaxed);
    return atomic_load_explicit(&engine->cancel, memory_order_relaxed);
}

static shard_status make_context(shard_engine *engine, shard_error *error) {
    char why[512];
    struct llama_context_params params =
        recipe_context_params(&engine->description.recipe, engine->description.max_sessions);
    params.cb_eval = observer_callback;
    params.cb_eval_user_data = engine->observer;
    params.abort_callback = on_node;
    params.abort_callback_data = engine;
    log_forget();
    engine->context = llama_init_from_model(engine->model, params);
    if (engine->context == NULL) {
        log_first_error(why, sizeof(why));
        return shard_fail(error, is_want_of_memory(why) ? SHARD_ERR_MEMORY : SHARD_ERR_UNSUPPORTED,
                          "llama.cpp cannot make a context of %u cells: %s; try a smaller n_ctx or "
                          "n_ubatch, or other cache types",
                          params.n_ctx, why);
    }
    if (llama_n_ctx(engine->context) != params.n_ctx) {
        return shard_fail(error, SHARD_ERR_UNSUPPORTED,
                          "llama.cpp made a context of %u cells where recipe.n_ctx is %u",
                          llama_n_ctx(engine->context), params.n_ctx);
    }
    return shard_ok(error);
}

static shard_status make_buffers(shard_engine *engine, const load_source *source,
                                 shard_error *error) {
    const shard_recipe *recipe = &source->params->recipe;
    const int32_t n_embd = (int32_t)source->artifact->info.n_embd;
    const int32_t target = engine->is_last ? -1 : (int32_t)(source->end - source->start) - 1;
    engine->observer = observer_new(target, recipe->n_batch, (uint32_t)n_embd);
    engine->sessions = calloc(source->params->max_sessions, sizeof(kv_session));
    engine->batch =
        llama_batch_init((int32_t)recipe->n_batch, engine->takes_tokens ? 0 : n_embd, 1);
    const struct llama_batch *batch = &engine->batch;
    const bool has_batch = (batch->token != NULL || batch->embd != NULL) && batch->pos != NULL &&
                           batch->n_seq_id != NULL && batch->seq_id != NULL &&
                           batch->logits != NULL;
    if (engine->observer == NULL || engine->sessions == NULL || !has_batch) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %u rows of %d values",
                          recipe->n_batch, n_embd);
    }
    return shard_ok(error);
}

static shard_status open_ends(shard_engine *engine, const load_source *source, shard_error *error) {
    const bool is_first = source->start == 0;
    if (engine->is_last) {
        engine->vocabulary.vocab = llama_model_get_vocab(engine->model);
    } else if (is_first) {
        vocabulary_init_lazy(&engine->vocabulary, source->artifact);
        return embedding_open(source->artifact, &engine->embedding, error);
    }
    return shard_ok(error);
}

/* ---- warm-up and description ---- */

static shard_status warm_up(shard_engine *engine, observer_counts *counts, shard_error *error) {
    struct llama_batch *batch = &engine->batch;
    batch->n_tokens = 1;
    if (engine->takes_tokens) {
        batch->token[0] = 0;
    } else {
        for (uint32_t i = 0; i < engine->description.n_embd; i++) {
            batch->embd[i] = 1.0f;
        }
    }
    batch->pos[0] = 0;
    batch->n_seq_id[0] = 1;
    batch->seq_id[0][0] = 0;
    batch->logits[0] = 1;
    observer_begin_rows(engine->observer);
    observer_begin_count(engine->observer, !engine->is_last);
    const int32_t result = llama_decode(engine->context, *batch);
    llama_synchronize(engine->context);
    llama_memory_clear(llama_get_memory(engine->context), true);
    if (observer_end_count(engine->observer, counts, error) != SHARD_OK) {
        return error->status;
    }
    if (result != 0) {
        return shard_fail(error, SHARD_ERR_BACKEND, "the warm-up row failed with status %d",
                          result);
    }
    return shard_ok(error);
}

static void describe_source(shard_description *description, const load_source *source) {
    const shard_artifact_info *info = &source->artifact->info;
    memcpy(description->artifact_sha256, info->artifact_sha256, SHARD_SHA256_HEX_SIZE);
    memcpy(description->shard_sha256, source->sha256, SHARD_SHA256_HEX_SIZE);
    memcpy(description->architecture, info->architecture, sizeof(description->architecture));
    memcpy(description->model_name, info->model_name, sizeof(description->model_name));
    description->layer_start = source->start;
    description->layer_end = source->end;
    description->recipe = recipe_rules_settle(&source->params->recipe);
    description->n_layer = info->n_layer;
    description->n_embd = info->n_embd;
    description->n_ctx_train = info->n_ctx_train;
    description->max_sessions = source->params->max_sessions;
}

/* Bytes of the batch's hidden rows. */
static uint64_t input_bytes(const shard_engine *engine) {
    const uint64_t rows = llama_n_batch(engine->context);
    return engine->takes_tokens ? 0 : rows * engine->description.n_embd * sizeof(float);
}

/* Read here, because a model may come without a tokenizer, and the description must say so. */
static bool has_vocabulary(shard_engine *engine, bool is_first) {
    shard_error ignored;
    return (is_first || engine->is_last) &&
           vocabulary_need(&engine->vocabulary, &ignored) == SHARD_OK;
}

/* From what the library says and what the observer counted, not from the request. */
static shard_status describe_loaded(shard_engine *engine, const observer_counts *counts,
                                    shard_error *error) {
    shard_description *description = &engine->description;
    const uint32_t layers = description->layer_end - description->layer_start;
    const bool is_first = description->layer_start == 0;
    if (counts->layers != layers ||
        (engine->is_last && !counts->has_embedding && !counts->has_head)) {
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "%u of %u layers were found in the loaded graph", counts->layers, layers);
    }
    description->owned_layers = counts->layers;
    description->owned_tensors = counts->tensors;
    description->owned_bytes = counts->bytes;
    description->has_token_embedding = is_first;
    description->has_output_head = engine->is_last;
    description->has_vocabulary = has_vocabulary(engine, is_first);
    description->weights_bytes = counts->weights_buffers;
    description->kv_bytes = counts->kv_buffers;
    description->compute_bytes =
        counts->compute_buffers + observer_buffer_bytes(engine->observer) + input_bytes(engine);
    if (engine->embedding != NULL) {
        description->owned_tensors++;
        description->owned_bytes += embedding_bytes(engine->embedding);
        description->n_vocab = embedding_n_vocab(engine->embedding);
    } else if (engine->is_last) {
        description->n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(engine->model));
    }
    description->kv_cells = llama_n_ctx(engine->context);
    description->max_batch = llama_n_batch(engine->context);
    return shard_ok(error);
}

static shard_status check_model(const shard_engine *engine, const load_source *source,
                                shard_error *error) {
    const int32_t layers = llama_model_n_layer(engine->model);
    const int32_t n_embd = llama_model_n_embd(engine->model);
    if (layers == (int32_t)(source->end - source->start) &&
        n_embd == (int32_t)source->artifact->info.n_embd) {
        return shard_ok(error);
    }
    return shard_fail(error, SHARD_ERR_BACKEND,
                      "llama.cpp loaded %d layers of width %d where %u of width %u were meant",
                      layers, n_embd, source->end - source->start, source->artifact->info.n_embd);
}

static shard_status open_parts(shard_engine *engine, load_source *source, shard_error *error) {
    observer_counts counts;
    shard_build build;
    if (pin_build(&build, error) != SHARD_OK || find_source(source, error) != SHARD_OK) {
        return error->status;
    }
    engine->is_last = source->end == source->artifact->info.n_layer;
    engine->takes_tokens = engine->is_last && source->start == 0;
    describe_source(&engine->description, source);
    if (load_model(engine, source, error) != SHARD_OK ||
        check_model(engine, source, error) != SHARD_OK ||
        make_buffers(engine, source, error) != SHARD_OK ||
        make_context(engine, error) != SHARD_OK || open_ends(engine, source, error) != SHARD_OK) {
        return error->status;
    }
    if (!report(source->params, "warm-up", 0, 1)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "loading was cancelled before the warm-up");
    }
    if (warm_up(engine, &counts, error) != SHARD_OK ||
        describe_loaded(engine, &counts, error) != SHARD_OK ||
        check_unchanged(source, error) != SHARD_OK) {
        return error->status;
    }
    if (!report(source->params, "warm-up", 1, 1)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "loading was cancelled after the warm-up");
    }
    return shard_ok(error);
}

shard_status engine_open(const shard_params *params, shard_engine **out, shard_error *error) {
    load_source *source = calloc(1, sizeof(*source));
    shard_engine *engine = calloc(1, sizeof(*engine));
    *out = NULL;
    if (source == NULL || engine == NULL) {
        shard_fail(error, SHARD_ERR_MEMORY, "no memory for an engine");
    } else if (recipe_check(params, error) == SHARD_OK) {
        log_install();
        llama_backend_init();
        source->params = params;
        open_parts(engine, source, error);
    }
    if (error->status == SHARD_OK) {
        *out = engine;
    } else {
        engine_close(engine);
    }
    if (source != NULL) {
        artifact_close(source->artifact);
    }
    free(source);
    return error->status;
}

void engine_close(shard_engine *engine) {
    if (engine == NULL) {
        return;
    }
    if (engine->batch.pos != NULL) {
        llama_batch_free(engine->batch);
    }
    vocabulary_free(&engine->vocabulary);
    embedding_close(engine->embedding);
    llama_free(engine->context);
    llama_model_free(engine->model);
    observer_free(engine->observer);
    for (uint32_t i = 0; engine->sessions != NULL && i < engine->description.max_sessions; i++) {
        free(engine->sessions[i].text.data);
    }
    free(engine->sessions);
    free(engine);
}
