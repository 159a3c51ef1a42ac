/* Loading a shard, and telling beforehand what that would take. */
#include "execute.h"

#include "answer.h"
#include "memory.h"
#include "report.h"
#include "resident.h"

#include <string.h>

struct paths {
    char model[LIMIT_PATH], artifact[LIMIT_PATH], cache_dir[LIMIT_PATH], numa[LIMIT_PATH];
};

static void fill_params(const struct execution *execution, const struct load_request *load,
                        struct paths *paths, shard_params *params) {
    execution->api->default_params(params);
    params->model_path = copy_path(paths->model, load->model);
    params->expected_artifact = copy_path(paths->artifact, load->artifact);
    params->cache_dir = copy_path(paths->cache_dir, load->cache_dir);
    params->layer_start = load->start;
    params->layer_end = load->end;
    params->recipe = load->recipe;
    params->max_sessions = load->max_sessions;
    params->use_mmap = load->mmap;
    params->use_mlock = load->mlock;
    params->memory_available = load->memory_available;
    params->numa = copy_path(paths->numa, load->numa);
    params->fault_plan = execution->fault_plan;
}

static void note_begin(struct state *state) {
    uint64_t resident = resident_bytes();
    pthread_mutex_lock(&state->lock);
    state->is_loading = true;
    state->rss_before_load = resident;
    pthread_mutex_unlock(&state->lock);
}

static void note_failed(struct state *state) {
    pthread_mutex_lock(&state->lock);
    state->is_loading = false;
    memset(&state->phase, 0, sizeof(state->phase));
    holding_release(&state->holding);
    pthread_mutex_unlock(&state->lock);
}

static void note_loaded(struct execution *execution) {
    struct state *state = execution->state;
    pthread_mutex_lock(&state->lock);
    state->is_loading = false;
    memset(&state->phase, 0, sizeof(state->phase));
    state->engine = execution->engine;
    state->description = execution->description;
    state->has_description = true;
    holding_settle(&state->holding, &execution->description);
    pthread_mutex_unlock(&state->lock);
}

static bool open_engine(struct execution *execution, struct job *job, shard_engine **engine,
                        shard_error *error) {
    struct paths paths;
    shard_params params;
    fill_params(execution, &job->request.as.load, &paths, &params);
    struct report report;
    report_begin(&report, execution, job);
    params.on_progress = report_progress;
    params.user_data = &report;
    shard_status status = execution->api->open(&params, engine, error);
    report_end(&report);
    return status == SHARD_OK;
}

/* Room for a step of every session. */
static bool allocate_tables(struct execution *execution, uint32_t n_sessions) {
    execution->entries = memory_allocate_array(n_sessions, sizeof(*execution->entries));
    execution->pieces = memory_allocate_array(n_sessions, sizeof(*execution->pieces));
    return execution->entries != NULL && execution->pieces != NULL &&
           session_table_resize(&execution->sessions, n_sessions);
}

static void release_tables(struct execution *execution) {
    memory_release(execution->entries);
    memory_release(execution->pieces);
    session_table_free(&execution->sessions);
    execution->entries = NULL;
    execution->pieces = NULL;
}

/* Learns what was loaded. `vocabulary` is filled where the shard has one. */
static bool adopt_engine(struct execution *execution, shard_engine *engine,
                         shard_vocabulary *vocabulary, struct failure *failure) {
    shard_error error;
    execution->api->describe(engine, &execution->description);
    if (execution->description.has_vocabulary &&
        execution->api->vocabulary(engine, vocabulary, &error) != SHARD_OK) {
        return failure_set_engine(failure, &error);
    }
    uint32_t n_sessions = execution->description.max_sessions;
    if (!allocate_tables(execution, n_sessions)) {
        return failure_set_memory(failure, (uint64_t)n_sessions * sizeof(shard_step_entry));
    }
    execution->engine = engine;
    return true;
}

static void answer(struct execution *execution, struct job *job,
                   const shard_vocabulary *vocabulary) {
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_loaded(&encoder, job->request.id, &execution->description,
                  execution->description.has_vocabulary ? vocabulary : NULL);
    resolve_answer(execution, job, &encoder);
}

void execute_load(struct execution *execution, struct job *job) {
    struct failure failure;
    failure_clear(&failure);
    if (execution->state->broken[0] != '\0') {
        require_engine(execution, &failure);
        resolve_failure(execution, job, &failure);
        return;
    }
    note_begin(execution->state);
    shard_engine *engine = NULL;
    shard_error error;
    if (!open_engine(execution, job, &engine, &error)) {
        note_failed(execution->state);
        resolve_error(execution, job, &error);
        return;
    }
    shard_vocabulary vocabulary;
    if (!adopt_engine(execution, engine, &vocabulary, &failure)) {
        release_tables(execution);
        execution->api->close(engine);
        note_failed(execution->state);
        resolve_failure(execution, job, &failure);
        return;
    }
    execution->n_stages = job->request.as.load.n_stages;
    note_loaded(execution);
    answer(execution, job, &vocabulary);
}

static void answer_memory_needed(struct execution *execution, struct job *job,
                                 const shard_memory *memory) {
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_estimated(&encoder, job->request.id, memory);
    resolve_answer(execution, job, &encoder);
}

void execute_estimate(struct execution *execution, struct job *job) {
    struct paths paths;
    shard_params params;
    fill_params(execution, &job->request.as.load, &paths, &params);
    struct report report;
    report_begin(&report, execution, job);
    params.on_progress = report_progress;
    params.user_data = &report;
    shard_memory memory;
    shard_error error;
    shard_status status = execution->api->estimate(&params, &memory, &error);
    report_end(&report);
    if (status != SHARD_OK) {
        resolve_error(execution, job, &error);
        return;
    }
    answer_memory_needed(execution, job, &memory);
}
