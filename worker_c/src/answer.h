/* What the worker says: one function per message of docs/protocol.md, section 4. Each writes a
 * whole body into an encoder that was started just before. */
#ifndef WORKER_ANSWER_H
#define WORKER_ANSWER_H

#include "encode.h"
#include "failure.h"
#include "request.h"
#include "shard_engine.h"

struct hello_answer {
    uint32_t max_frame_bytes;
    uint64_t pid;
    const char *worker_version;
    const char *const *engines;
    uint32_t n_engines;
    const shard_build *build;
};

struct health_answer {
    const char *state;
    const char *phase;
    uint64_t phase_done, phase_total;
    uint64_t progress;
    const shard_description *description; /* NULL before a load */
    uint64_t sessions, kv_cells_used, queued;
    uint64_t requests, errors, rows, tokens_sampled, compute_us;
    uint64_t rss_bytes, rss_before_load_bytes, uptime_us;
};

struct result_answer {
    uint64_t session;
    uint32_t length;
    uint64_t kv_cells;
    shard_output output;
    uint64_t queue_us, compute_us;
    uint32_t batch_rows;
    const void *values; /* rows x columns, borrowed until the frame is written */
    uint32_t rows, columns, value_bytes;
    const char *dtype;
    int32_t token;
    float logprob;
    bool end_of_generation;
    const char *text; /* of the token, borrowed until the frame is written */
    uint32_t n_text_bytes;
    const shard_candidate *top;
    uint32_t n_top;
};

struct bye_answer {
    uint64_t id; /* 0: nobody asked; the input ended */
    uint64_t sessions, kv_cells, weights_bytes, kv_bytes, compute_bytes;
};

void answer_hello(struct encoder *encoder, const struct hello_answer *hello);
void answer_pong(struct encoder *encoder, uint64_t id);
void answer_health(struct encoder *encoder, uint64_t id, const struct health_answer *health);
void answer_cancelled(struct encoder *encoder, uint64_t id, uint64_t request, const char *state);
void answer_bye(struct encoder *encoder, const struct bye_answer *bye);
void answer_inspected(struct encoder *encoder, uint64_t id, const shard_engine_api *api,
                      const shard_artifact *artifact);
void answer_sliced(struct encoder *encoder, uint64_t id, const char *output, uint64_t n_bytes);
/* `vocabulary` is NULL where the shard has none. */
void answer_loaded(struct encoder *encoder, uint64_t id, const shard_description *description,
                   const shard_vocabulary *vocabulary);
void answer_estimated(struct encoder *encoder, uint64_t id, const shard_memory *memory);
void answer_opened(struct encoder *encoder, uint64_t id, uint64_t session, uint32_t length,
                   uint32_t kv_cells);
void answer_result(struct encoder *encoder, uint64_t id, const struct result_answer *result);
void answer_trimmed(struct encoder *encoder, uint64_t id, uint64_t session, uint32_t length,
                    uint32_t kv_cells_freed);
void answer_closed(struct encoder *encoder, uint64_t id, uint64_t session, uint32_t kv_cells_freed);
void answer_tokenized(struct encoder *encoder, uint64_t id, const int32_t *tokens,
                      uint32_t n_tokens);
void answer_detokenized(struct encoder *encoder, uint64_t id, const char *text, uint32_t n_bytes);
void answer_chat_template(struct encoder *encoder, uint64_t id, const char *text, uint32_t n_bytes);
void answer_token_infos(struct encoder *encoder, uint64_t id, const shard_token_info *infos,
                        uint32_t n_infos);
void answer_progress(struct encoder *encoder, uint64_t id, const char *phase, uint64_t done,
                     uint64_t total);
/* `id` 0: the error belongs to no request. */
void answer_error(struct encoder *encoder, uint64_t id, const struct failure *failure);

#endif /* WORKER_ANSWER_H */
