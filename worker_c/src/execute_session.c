/* Opening, trimming and closing sessions. */
#include "execute.h"

#include "answer.h"
#include "identity.h"

static bool require_identity(const struct execution *execution, const struct identity_claim *claim,
                             struct failure *failure) {
    struct identity actual;
    identity_of(&execution->description, &actual);
    struct failure differences;
    failure_clear(&differences);
    failure_set(&differences, shard_status_name(SHARD_ERR_IDENTITY),
                "the session asks for another identity than the loaded one; open it on a worker "
                "that holds it");
    if (identity_differences(claim, &actual, true, &differences) == 0) {
        return true;
    }
    failure_tell_fields(&differences);
    *failure = differences;
    return false;
}

struct open_outcome {
    shard_session_id slot;
    uint32_t kv_cells;
};

/* A new session, or one that begins with the rows of another. */
static bool ask_engine(const struct execution *execution, const struct open_request *open,
                       const shard_sampling *sampling, struct open_outcome *outcome,
                       struct failure *failure) {
    const shard_engine_api *api = execution->api;
    shard_session_id source = 0;
    shard_error error;
    if (open->source != 0 && !require_session(execution, open->source, &source, failure)) {
        return false;
    }
    outcome->kv_cells = 0;
    shard_status status =
        open->source != 0 ? api->session_fork(execution->engine, source, open->position, sampling,
                                              &outcome->slot, &outcome->kv_cells, &error)
                          : api->session_open(execution->engine, sampling, &outcome->slot, &error);
    return status == SHARD_OK || failure_set_engine(failure, &error);
}

static bool open_session(const struct execution *execution, const struct open_request *open,
                         struct open_outcome *outcome, struct failure *failure) {
    if (!require_engine(execution, failure) ||
        !require_identity(execution, &open->identity, failure)) {
        return false;
    }
    struct sampling_unpacked unpacked;
    bool is_open = sampling_unpack(&open->sampling, &unpacked, failure) &&
                   ask_engine(execution, open, &unpacked.sampling, outcome, failure);
    sampling_unpacked_free(&unpacked);
    return is_open;
}

void execute_open(struct execution *execution, struct job *job) {
    struct failure failure;
    failure_clear(&failure);
    const struct open_request *open = &job->request.as.open;
    struct open_outcome outcome;
    if (!open_session(execution, open, &outcome, &failure)) {
        resolve_failure(execution, job, &failure);
        return;
    }
    uint64_t number = session_table_add(&execution->sessions, outcome.slot);
    note_usage(execution);
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_opened(&encoder, job->request.id, number, open->position, outcome.kv_cells);
    resolve_answer(execution, job, &encoder);
}

struct trim_outcome {
    shard_session_id slot;
    uint32_t length, kv_cells_freed;
};

static bool trim_session(struct execution *execution, const struct trim_request *trim,
                         struct trim_outcome *outcome, struct failure *failure) {
    shard_error error;
    if (!require_session(execution, trim->session, &outcome->slot, failure)) {
        return false;
    }
    const shard_engine_api *api = execution->api;
    shard_engine *engine = execution->engine;
    if (api->session_trim(engine, outcome->slot, trim->position, &outcome->kv_cells_freed,
                          &error) != SHARD_OK ||
        api->session_length(engine, outcome->slot, &outcome->length, &error) != SHARD_OK) {
        return failure_set_engine(failure, &error);
    }
    return true;
}

void execute_trim(struct execution *execution, struct job *job) {
    const struct trim_request *trim = &job->request.as.trim;
    struct failure failure;
    failure_clear(&failure);
    struct trim_outcome outcome;
    if (!trim_session(execution, trim, &outcome, &failure)) {
        resolve_failure(execution, job, &failure);
        return;
    }
    session_table_set_draw(&execution->sessions, outcome.slot, (struct session_draw){0});
    note_usage(execution);
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_trimmed(&encoder, job->request.id, trim->session, outcome.length,
                   outcome.kv_cells_freed);
    resolve_answer(execution, job, &encoder);
}

static bool close_session(struct execution *execution, uint64_t number, uint32_t *kv_cells_freed,
                          struct failure *failure) {
    shard_session_id slot;
    shard_error error;
    if (!require_session(execution, number, &slot, failure)) {
        return false;
    }
    if (execution->api->session_close(execution->engine, slot, kv_cells_freed, &error) !=
        SHARD_OK) {
        return failure_set_engine(failure, &error);
    }
    session_table_remove(&execution->sessions, slot);
    return true;
}

void execute_close(struct execution *execution, struct job *job) {
    uint64_t number = job->request.as.close.session;
    struct failure failure;
    failure_clear(&failure);
    uint32_t kv_cells_freed;
    if (!close_session(execution, number, &kv_cells_freed, &failure)) {
        resolve_failure(execution, job, &failure);
        return;
    }
    note_usage(execution);
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_closed(&encoder, job->request.id, number, kv_cells_freed);
    resolve_answer(execution, job, &encoder);
}
