/* Opening and closing: artifact, shard file, model, context, one row to see that it works, and the
 * count of what is really there. */
#include "engine.h"
#include "error.h"
#include "estimate.h"
#include "load_source.h"
#include "log.h"
#include "meta.h"
#include "pin.h"
#include "recipe.h"
#include "recipe_rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the library's model and context ---- */

static bool on_load_progress(float done, void *user_data) {
    load_source *source = user_data;
    source->cancelled = !load_report(
        source->params, "load", (uint64_t)((double)done * (double)source->bytes), source->bytes);
    return !source->cancelled;
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
    engine->model = load_source_model(source, params);
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
    return !engine->defers_cancel && atomic_load_explicit(&engine->cancel, memory_order_relaxed);
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

/* What is looked for in the graph: the layer whose output leaves this stage, and where rows go in.
 */
static observer_nodes nodes_of(const shard_engine *engine, const load_source *source) {
    const arch_rule *rule = source->artifact->rule;
    const char *output = rule->boundary_node != NULL ? rule->boundary_node : "l_out";
    const int32_t last_layer = (int32_t)(source->end - source->start) - 1;
    const bool is_first = source->start == 0;
    const bool has_hole = !is_first && rule->head_is_required && !source->artifact->info.tied_head;
    return (observer_nodes){
        .output = output,
        .has_number = !rule->boundary_is_last,
        .output_layer = engine->is_last ? -1 : last_layer,
        .input = engine->takes_tokens ? NULL : row_feed_node(rule, is_first),
        .no_embedding = !engine->is_last || has_hole,
        .no_head = !engine->is_last,
    };
}

static shard_status make_buffers(shard_engine *engine, const load_source *source,
                                 shard_error *error) {
    const step_shape shape = load_source_shape(source, engine->description.n_vocab);
    engine->observer = observer_new(nodes_of(engine, source), shape.n_batch, shape.n_embd);
    engine->sessions = calloc(shape.max_sessions, sizeof(kv_session));
    if (engine->observer != NULL && !engine->takes_tokens) {
        engine->feed = row_feed_new(source->artifact->rule, engine->model, source->start == 0,
                                    shape.n_batch, engine->observer);
    }
    if (engine->observer == NULL || engine->sessions == NULL ||
        (engine->feed == NULL && !engine->takes_tokens)) {
        return shard_fail(error, SHARD_ERR_MEMORY,
                          "no memory for %u rows of %u values and %u sessions", shape.n_batch,
                          shape.n_embd, shape.max_sessions);
    }
    return step_buffers_init(&engine->buffers, &shape, error);
}

/* What accounts for the sessions' rows, once there is a context. */
static shard_status make_memory(shard_engine *engine, const load_source *source,
                                shard_error *error) {
    shard_description *description = &engine->description;
    if (sequence_memory_init(&engine->memory, engine->context, source->artifact->rule,
                             &description->recipe, error) != SHARD_OK) {
        return error->status;
    }
    description->kv_cells = llama_n_ctx(engine->context);
    description->session_cells = description->recipe.n_ctx;
    description->max_batch = llama_n_batch(engine->context);
    description->can_trim = !engine->memory.has_state;
    return cell_chains_init(&engine->cells, description->kv_cells, error);
}

static shard_status open_ends(shard_engine *engine, const load_source *source, shard_error *error) {
    const bool is_first = source->start == 0;
    if (engine->is_last) {
        vocabulary_init(&engine->vocabulary, engine->model);
        return sampling_space_open(&engine->vocabulary, engine->description.n_vocab,
                                   engine->description.session_cells, &engine->sampling, error);
    }
    if (is_first) {
        vocabulary_init_lazy(&engine->vocabulary, source->artifact);
        return embedding_open(source->artifact, &engine->embedding, error);
    }
    return shard_ok(error);
}

/* ---- warm-up and description ---- */

/* Of the warm-up's session, whose state is as large as any. */
static shard_status make_snapshots(shard_engine *engine, const load_source *source,
                                   shard_error *error) {
    return engine->memory.has_state
               ? state_snapshots_init(&engine->snapshots, load_source_states_at_once(source),
                                      state_snapshots_bytes(engine->context, 0), error)
               : shard_ok(error);
}

static shard_status warm_up(shard_engine *engine, const load_source *source,
                            observer_counts *counts, shard_error *error) {
    struct llama_batch *batch = &engine->buffers.batch;
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
    observer_begin_count(engine->observer);
    const int32_t result = row_feed_decode(engine->feed, engine->context, *batch);
    llama_synchronize(engine->context);
    if (observer_end_count(engine->observer, counts, error) != SHARD_OK) {
        return error->status;
    }
    if (result != 0) {
        return shard_fail(error, SHARD_ERR_BACKEND, "the warm-up row failed with status %d",
                          result);
    }
    make_snapshots(engine, source, error);
    llama_memory_clear(llama_get_memory(engine->context), true);
    return error->status;
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

/* Bytes of the engine's own buffers. */
static uint64_t own_bytes(const shard_engine *engine, const load_source *source) {
    const step_shape shape = load_source_shape(source, engine->description.n_vocab);
    return step_buffers_bytes(&shape) + sampling_space_bytes(shape.n_vocab) +
           row_feed_bytes(engine->feed) + engine->snapshots.capacity;
}

/* Read here, because a model may come without a tokenizer, and the description must say so. */
static bool has_vocabulary(shard_engine *engine, bool is_first) {
    shard_error ignored;
    return (is_first || engine->is_last) &&
           vocabulary_need(&engine->vocabulary, &ignored) == SHARD_OK;
}

/* From what the library says and what the observer counted, not from the request. */
static shard_status describe_loaded(shard_engine *engine, const load_source *source,
                                    const observer_counts *counts, shard_error *error) {
    shard_description *description = &engine->description;
    const uint32_t layers = artifact_layers_held(source->artifact, source->start, source->end);
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
    description->memory.weights_bytes = counts->weights_in_memory;
    description->memory.kv_bytes = counts->kv_buffers;
    description->memory.compute_bytes = counts->compute_buffers + own_bytes(engine, source);
    if (engine->embedding != NULL) {
        description->owned_tensors++;
        description->owned_bytes += embedding_bytes(engine->embedding);
        description->n_vocab = embedding_n_vocab(engine->embedding);
    }
    return shard_ok(error);
}

/* The pooling that the file names by the library's number. */
static const char *pooling_of(const struct llama_model *model, const char *architecture) {
    static const char *const NAMES[] = {"none", "mean", "cls", "last", "rank"};
    char key[META_KEY_SIZE];
    char number[16] = "";
    meta_key(key, architecture, "pooling_type");
    llama_model_meta_val_str(model, key, number, sizeof(number));
    const unsigned long pooling = strtoul(number, NULL, 10);
    return pooling < sizeof(NAMES) / sizeof(NAMES[0]) ? NAMES[pooling] : NAMES[0];
}

/* The library would read embeddings of another length than the rows' past the end of what its graph
 * holds, and of layers behind the rows (dense_2, dense_3) a shard has none. */
static uint32_t embedding_columns(const struct llama_model *model, const shard_artifact *artifact) {
    const bool has_more_layers = artifact_find(artifact, "dense_2.weight") != NULL ||
                                 artifact_find(artifact, "dense_3.weight") != NULL;
    const uint32_t n_embd_out = (uint32_t)llama_model_n_embd_out(model);
    return has_more_layers || n_embd_out != artifact->info.n_embd ? 0 : n_embd_out;
}

/* What comes out: the head's rows are as long as the vocabulary that was loaded. */
static void describe_outputs(shard_engine *engine, const load_source *source) {
    shard_description *description = &engine->description;
    if (engine->is_last) {
        description->n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(engine->model));
    }
    description->n_embd_out = embedding_columns(engine->model, source->artifact);
    snprintf(description->pooling, sizeof(description->pooling), "%s",
             pooling_of(engine->model, description->architecture));
}

static shard_status check_model(const shard_engine *engine, const load_source *source,
                                shard_error *error) {
    const int32_t layers = llama_model_n_layer(engine->model);
    const int32_t n_embd = llama_model_n_embd(engine->model);
    /* A model that runs its layers several times over counts them as often, and is never cut. */
    if ((layers == (int32_t)(source->end - source->start) || source->is_whole) &&
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
    if (pin_build(&build, error) != SHARD_OK || load_source_find(source, error) != SHARD_OK) {
        return error->status;
    }
    engine->is_last = load_source_is_last(source);
    engine->takes_tokens = load_source_takes_tokens(source);
    describe_source(&engine->description, source);
    boundary_find(engine->description.recipe.boundary, &engine->boundary);
    if (estimate_admit(source, error) != SHARD_OK ||
        load_model(engine, source, error) != SHARD_OK ||
        check_model(engine, source, error) != SHARD_OK) {
        return error->status;
    }
    describe_outputs(engine, source);
    if (make_buffers(engine, source, error) != SHARD_OK ||
        make_context(engine, error) != SHARD_OK || make_memory(engine, source, error) != SHARD_OK ||
        open_ends(engine, source, error) != SHARD_OK) {
        return error->status;
    }
    if (!load_report(source->params, "warm-up", 0, 1)) {
        return shard_fail(error, SHARD_ERR_CANCELLED, "loading was cancelled before the warm-up");
    }
    if (warm_up(engine, source, &counts, error) != SHARD_OK ||
        describe_loaded(engine, source, &counts, error) != SHARD_OK ||
        load_source_check_unchanged(source, error) != SHARD_OK) {
        return error->status;
    }
    if (!load_report(source->params, "warm-up", 1, 1)) {
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
        if (recipe_apply_numa(params->numa, error) == SHARD_OK) {
            open_parts(engine, source, error);
        }
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
    for (uint32_t i = 0; engine->sessions != NULL && i < engine->description.max_sessions; i++) {
        session_sampler_close(engine->sessions[i].sampler);
        token_history_free(&engine->sessions[i].history);
        free(engine->sessions[i].text.data);
    }
    sampling_space_close(engine->sampling);
    vocabulary_free(&engine->vocabulary);
    embedding_close(engine->embedding);
    llama_free(engine->context);
    llama_model_free(engine->model);
    row_feed_free(engine->feed);
    observer_free(engine->observer);
    step_buffers_free(&engine->buffers);
    state_snapshots_free(&engine->snapshots);
    cell_chains_free(&engine->cells);
    free(engine->sessions);
    free(engine);
}
