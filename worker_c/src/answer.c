#include "answer.h"

#include "answer_parts.h"
#include "bounds.h"

void answer_hello(struct encoder *encoder, const struct hello_answer *hello) {
    encode_map(encoder, NULL, 8);
    encode_text(encoder, "type", "hello");
    encode_uint(encoder, "protocol_min", PROTOCOL_MIN);
    encode_uint(encoder, "protocol_max", PROTOCOL_MAX);
    encode_uint(encoder, "max_frame_bytes", hello->max_frame_bytes);
    encode_uint(encoder, "pid", hello->pid);
    encode_text(encoder, "worker_version", hello->worker_version);
    encode_array(encoder, "engines", hello->n_engines);
    for (uint32_t i = 0; i < hello->n_engines; i++) {
        encode_text(encoder, NULL, hello->engines[i]);
    }
    answer_build(encoder, hello->build);
}

void answer_pong(struct encoder *encoder, uint64_t id) {
    answer_begin(encoder, "pong", id, 0);
}

static void what_is_loaded(struct encoder *encoder, const shard_description *description) {
    if (description != NULL) {
        answer_identity(encoder, description);
        answer_ownership(encoder, description);
        answer_memory(encoder, &description->memory);
        answer_capacity(encoder, description);
        return;
    }
    encode_nil(encoder, "identity");
    encode_nil(encoder, "ownership");
    encode_nil(encoder, "memory");
    encode_nil(encoder, "capacity");
}

void answer_health(struct encoder *encoder, uint64_t id, const struct health_answer *health) {
    answer_begin(encoder, "health", id, 20);
    encode_text(encoder, "state", health->state);
    encode_text(encoder, "phase", health->phase);
    encode_uint(encoder, "phase_done", health->phase_done);
    encode_uint(encoder, "phase_total", health->phase_total);
    encode_uint(encoder, "progress", health->progress);
    what_is_loaded(encoder, health->description);
    encode_uint(encoder, "sessions", health->sessions);
    encode_uint(encoder, "kv_cells_used", health->kv_cells_used);
    encode_uint(encoder, "queued", health->queued);
    encode_uint(encoder, "requests", health->requests);
    encode_uint(encoder, "errors", health->errors);
    encode_uint(encoder, "rows", health->rows);
    encode_uint(encoder, "tokens_sampled", health->tokens_sampled);
    encode_uint(encoder, "compute_us", health->compute_us);
    encode_uint(encoder, "rss_bytes", health->rss_bytes);
    encode_uint(encoder, "rss_before_load_bytes", health->rss_before_load_bytes);
    encode_uint(encoder, "uptime_us", health->uptime_us);
}

void answer_cancelled(struct encoder *encoder, uint64_t id, uint64_t request, const char *state) {
    answer_begin(encoder, "cancelled", id, 2);
    encode_uint(encoder, "request", request);
    encode_text(encoder, "state", state);
}

void answer_bye(struct encoder *encoder, const struct bye_answer *bye) {
    answer_begin(encoder, "bye", bye->id, 5);
    encode_uint(encoder, "sessions", bye->sessions);
    encode_uint(encoder, "kv_cells", bye->kv_cells);
    encode_uint(encoder, "weights_bytes", bye->weights_bytes);
    encode_uint(encoder, "kv_bytes", bye->kv_bytes);
    encode_uint(encoder, "compute_bytes", bye->compute_bytes);
}

static void files(struct encoder *encoder, const shard_engine_api *api,
                  const shard_artifact *artifact, uint32_t n_files) {
    encode_array(encoder, "files", n_files);
    for (uint32_t i = 0; i < n_files; i++) {
        shard_artifact_file file;
        if (!api->artifact_file(artifact, i, &file)) {
            encode_nil(encoder, NULL);
            continue;
        }
        encode_map(encoder, NULL, 3);
        encode_text(encoder, "path", file.path);
        encode_uint(encoder, "bytes", file.bytes);
        encode_text(encoder, "sha256", file.sha256);
    }
}

void answer_inspected(struct encoder *encoder, uint64_t id, const shard_engine_api *api,
                      const shard_artifact *artifact) {
    shard_artifact_info info;
    api->artifact_info(artifact, &info);
    answer_begin(encoder, "inspected", id, 20);
    encode_text(encoder, "artifact", info.artifact_sha256);
    files(encoder, api, artifact, info.n_files);
    encode_text(encoder, "architecture", info.architecture);
    encode_text(encoder, "model_name", info.model_name);
    encode_text(encoder, "quantization", info.quantization);
    encode_uint(encoder, "n_layer", info.n_layer);
    encode_uint(encoder, "n_embd", info.n_embd);
    encode_uint(encoder, "n_vocab", info.n_vocab);
    encode_uint(encoder, "n_ctx_train", info.n_ctx_train);
    encode_uint(encoder, "n_expert", info.n_expert);
    encode_uint(encoder, "n_tensors", info.n_tensors);
    encode_uint(encoder, "tensor_bytes", info.tensor_bytes);
    encode_uint(encoder, "embedding_bytes", info.embedding_bytes);
    encode_uint(encoder, "head_bytes", info.head_bytes);
    encode_bool(encoder, "tied_head", info.tied_head);
    encode_array(encoder, "layer_bytes", info.n_layer);
    for (uint32_t i = 0; i < info.n_layer; i++) {
        encode_uint(encoder, NULL, api->artifact_layer_bytes(artifact, i));
    }
    if (info.is_slice) {
        answer_range(encoder, "slice", info.slice_start, info.slice_end);
    } else {
        encode_nil(encoder, "slice");
    }
    encode_bool(encoder, "supported", info.supported);
    encode_uint(encoder, "cut_period", info.cut_period);
    encode_text(encoder, "reason", info.reason);
}

void answer_sliced(struct encoder *encoder, uint64_t id, const char *output, uint64_t n_bytes) {
    answer_begin(encoder, "sliced", id, 2);
    encode_text(encoder, "output", output);
    encode_uint(encoder, "bytes", n_bytes);
}

void answer_loaded(struct encoder *encoder, uint64_t id, const shard_description *description,
                   const shard_vocabulary *vocabulary) {
    answer_begin(encoder, "loaded", id, 6);
    answer_identity(encoder, description);
    answer_model(encoder, description);
    answer_ownership(encoder, description);
    answer_memory(encoder, &description->memory);
    answer_capacity(encoder, description);
    answer_vocabulary(encoder, vocabulary);
}

void answer_estimated(struct encoder *encoder, uint64_t id, const shard_memory *memory) {
    answer_begin(encoder, "estimated", id, 1);
    answer_memory(encoder, memory);
}

void answer_opened(struct encoder *encoder, uint64_t id, uint64_t session, uint32_t length,
                   uint32_t kv_cells) {
    answer_begin(encoder, "opened", id, 3);
    encode_uint(encoder, "session", session);
    encode_uint(encoder, "length", length);
    encode_uint(encoder, "kv_cells", kv_cells);
}

static const char *rows_key(shard_output output) {
    switch (output) {
    case SHARD_OUTPUT_HIDDEN:
        return "hidden";
    case SHARD_OUTPUT_EMBEDDING:
        return "embedding";
    default:
        return "logits";
    }
}

static void result_values(struct encoder *encoder, const struct result_answer *result) {
    encode_uint(encoder, "rows", result->rows);
    encode_uint(encoder, "columns", result->columns);
    encode_text(encoder, "dtype", result->dtype);
    encode_tail(encoder, rows_key(result->output), result->values,
                (size_t)result->rows * result->columns * result->value_bytes);
}

/* The best candidates whose texts take no more than LIMIT_TOP_TEXT together: a token may be of any
 * length, and an answer to a computed row must not fail for want of room. */
static uint32_t candidates_that_fit(const struct result_answer *result) {
    size_t n_bytes = 0;
    uint32_t n_fit = 0;
    while (n_fit < result->n_top && n_fit < LIMIT_TOP &&
           n_bytes + result->top[n_fit].n_text_bytes <= LIMIT_TOP_TEXT) {
        n_bytes += result->top[n_fit++].n_text_bytes;
    }
    return n_fit;
}

static void result_top(struct encoder *encoder, const struct result_answer *result) {
    const uint32_t n_candidates = candidates_that_fit(result);
    encode_array(encoder, "top", n_candidates);
    for (uint32_t i = 0; i < n_candidates; i++) {
        const shard_candidate *candidate = &result->top[i];
        encode_map(encoder, NULL, 3);
        encode_int(encoder, "token", candidate->token);
        encode_float(encoder, "logprob", candidate->logprob);
        encode_bytes(encoder, "text", candidate->text, candidate->n_text_bytes);
    }
}

static void result_token(struct encoder *encoder, const struct result_answer *result) {
    encode_int(encoder, "token", result->token);
    encode_float(encoder, "logprob", result->logprob);
    encode_bool(encoder, "end_of_generation", result->end_of_generation);
    if (result->n_top > 0) {
        result_top(encoder, result);
    }
    encode_tail(encoder, "text", result->text, result->n_text_bytes);
}

static uint32_t result_keys(const struct result_answer *result) {
    switch (result->output) {
    case SHARD_OUTPUT_NONE:
        return 7;
    case SHARD_OUTPUT_TOKEN:
        return result->n_top > 0 ? 12 : 11;
    default:
        return 11;
    }
}

void answer_result(struct encoder *encoder, uint64_t id, const struct result_answer *result) {
    answer_begin(encoder, "result", id, result_keys(result));
    encode_uint(encoder, "session", result->session);
    encode_uint(encoder, "length", result->length);
    encode_uint(encoder, "kv_cells", result->kv_cells);
    encode_text(encoder, "output", request_output_name(result->output));
    encode_uint(encoder, "queue_us", result->queue_us);
    encode_uint(encoder, "compute_us", result->compute_us);
    encode_uint(encoder, "batch_rows", result->batch_rows);
    if (result->output == SHARD_OUTPUT_TOKEN) {
        result_token(encoder, result);
    } else if (result->output != SHARD_OUTPUT_NONE) {
        result_values(encoder, result);
    }
}

void answer_trimmed(struct encoder *encoder, uint64_t id, uint64_t session, uint32_t length,
                    uint32_t kv_cells_freed) {
    answer_begin(encoder, "trimmed", id, 3);
    encode_uint(encoder, "session", session);
    encode_uint(encoder, "length", length);
    encode_uint(encoder, "kv_cells_freed", kv_cells_freed);
}

void answer_closed(struct encoder *encoder, uint64_t id, uint64_t session,
                   uint32_t kv_cells_freed) {
    answer_begin(encoder, "closed", id, 2);
    encode_uint(encoder, "session", session);
    encode_uint(encoder, "kv_cells_freed", kv_cells_freed);
}

void answer_tokenized(struct encoder *encoder, uint64_t id, const int32_t *tokens,
                      uint32_t n_tokens) {
    answer_begin(encoder, "tokenized", id, 1);
    encode_array(encoder, "tokens", n_tokens);
    for (uint32_t i = 0; i < n_tokens; i++) {
        encode_int(encoder, NULL, tokens[i]);
    }
}

void answer_detokenized(struct encoder *encoder, uint64_t id, const char *text, uint32_t n_bytes) {
    answer_begin(encoder, "detokenized", id, 1);
    encode_tail(encoder, "text", text, n_bytes);
}

void answer_chat_template(struct encoder *encoder, uint64_t id, const char *text,
                          uint32_t n_bytes) {
    answer_begin(encoder, "chat_template", id, 1);
    encode_tail(encoder, "template", text, n_bytes);
}

void answer_token_infos(struct encoder *encoder, uint64_t id, const shard_token_info *infos,
                        uint32_t n_infos) {
    answer_begin(encoder, "token_infos", id, 1);
    encode_array(encoder, "tokens", n_infos);
    for (uint32_t i = 0; i < n_infos; i++) {
        encode_map(encoder, NULL, 3);
        encode_uint(encoder, "attributes", infos[i].attributes);
        encode_bool(encoder, "control", infos[i].is_control);
        encode_bool(encoder, "end_of_generation", infos[i].end_of_generation);
    }
}

void answer_progress(struct encoder *encoder, uint64_t id, const char *phase, uint64_t done,
                     uint64_t total) {
    answer_begin(encoder, "progress", id, 3);
    encode_text(encoder, "phase", phase);
    encode_uint(encoder, "done", done);
    encode_uint(encoder, "total", total);
}

void answer_error(struct encoder *encoder, uint64_t id, const struct failure *failure) {
    answer_begin(encoder, "error", id, 4);
    encode_text(encoder, "code", failure->code);
    encode_text(encoder, "message", failure->message);
    encode_bool(encoder, "retryable", failure_is_retryable(failure));
    encode_map(encoder, "fields", failure->n_fields);
    for (uint32_t i = 0; i < failure->n_fields; i++) {
        encode_text(encoder, failure->fields[i].name, failure->fields[i].value);
    }
}
