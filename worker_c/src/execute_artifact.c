/* Looking at an artifact and cutting one: neither needs a loaded shard, and neither touches it. */
#include "execute.h"

#include "answer.h"
#include "report.h"

/* The engine that `inspect` names, or the worker's own. */
static const shard_engine_api *engine_asked(const struct execution *execution,
                                            struct decode_text name, struct failure *failure) {
    char text[LIMIT_PATH];
    if (copy_path(text, name) == NULL) {
        return execution->api;
    }
    const shard_engine_api *api = shard_engine_find(text);
    if (api == NULL) {
        failure_set(failure, shard_status_name(SHARD_ERR_ARGUMENT),
                    "no engine is called '%s'; hello lists those of this build", text);
        failure_add(failure, "engine", "%s", text);
    }
    return api;
}

static void answer_artifact(struct execution *execution, struct job *job,
                            const shard_engine_api *api, shard_artifact *artifact) {
    struct encoder encoder;
    encode_start(&encoder);
    answer_inspected(&encoder, job->request.id, api, artifact);
    api->artifact_close(artifact);
    resolve_answer(execution, job, &encoder);
}

void execute_inspect(struct execution *execution, struct job *job) {
    const struct inspect_request *inspect = &job->request.as.inspect;
    struct failure failure;
    failure_clear(&failure);
    const shard_engine_api *api = engine_asked(execution, inspect->engine, &failure);
    if (api == NULL) {
        resolve_failure(execution, job, &failure);
        return;
    }
    char model[LIMIT_PATH];
    char cache_dir[LIMIT_PATH];
    struct report report;
    report_begin(&report, execution, job);
    shard_artifact *artifact = NULL;
    shard_error error;
    shard_status status = api->artifact_open(copy_path(model, inspect->model),
                                             copy_path(cache_dir, inspect->cache_dir),
                                             report_progress, &report, &artifact, &error);
    report_end(&report);
    if (status != SHARD_OK) {
        resolve_error(execution, job, &error);
        return;
    }
    answer_artifact(execution, job, api, artifact);
}

void execute_slice(struct execution *execution, struct job *job) {
    const struct slice_request *slice = &job->request.as.slice;
    char model[LIMIT_PATH];
    char output[LIMIT_PATH];
    char cache_dir[LIMIT_PATH];
    struct report report;
    report_begin(&report, execution, job);
    uint64_t n_bytes = 0;
    shard_error error;
    shard_status status = execution->api->slice(
        copy_path(model, slice->model), copy_path(cache_dir, slice->cache_dir), slice->start,
        slice->end, copy_path(output, slice->output), slice->overwrite, report_progress, &report,
        &n_bytes, &error);
    report_end(&report);
    if (status != SHARD_OK) {
        resolve_error(execution, job, &error);
        return;
    }
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_sliced(&encoder, job->request.id, output, n_bytes);
    resolve_answer(execution, job, &encoder);
}
