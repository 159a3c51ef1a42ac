#include "forward.h"

#include "execute.h"
#include "memory.h"

#include <inttypes.h>
#include <string.h>

/* Room in a frame for what a `result` says beside its rows. */
enum { RESULT_HEAD_BYTES = 512 };

uint32_t forward_rows(const struct forward_request *forward, uint32_t n_embd) {
    if (forward->has_tokens) {
        return forward->tokens.count;
    }
    size_t row_bytes = (size_t)n_embd * sizeof(float);
    bool divides = row_bytes > 0 && forward->hidden.size % row_bytes == 0;
    return divides ? (uint32_t)(forward->hidden.size / row_bytes) : 0;
}

static bool wants_all_rows(shard_output output) {
    return output == SHARD_OUTPUT_HIDDEN || output == SHARD_OUTPUT_LOGITS_ALL;
}

static uint64_t columns_of(const shard_description *description, shard_output output) {
    switch (output) {
    case SHARD_OUTPUT_HIDDEN:
        return description->n_embd;
    case SHARD_OUTPUT_LOGITS:
    case SHARD_OUTPUT_LOGITS_ALL:
        return description->n_vocab;
    default:
        return 0;
    }
}

static uint64_t value_bytes(const shard_description *description, shard_output output,
                            uint32_t n_rows) {
    uint64_t rows_out = wants_all_rows(output) ? n_rows : 1;
    return rows_out * columns_of(description, output) * sizeof(float);
}

static bool rows_are_right(const struct execution *execution, const struct forward_request *forward,
                           uint32_t n_rows, struct failure *failure) {
    const shard_description *description = &execution->description;
    if (n_rows == 0) {
        failure_set(failure, CODE_BAD_MESSAGE,
                    "the key 'hidden' has %zu bytes, which are no whole rows of %" PRIu32
                    " float32; send rows of that length",
                    forward->hidden.size, description->n_embd);
        failure_add(failure, "n_embd", "%" PRIu32, description->n_embd);
        return false;
    }
    if (n_rows > description->kv_cells) {
        failure_set(failure, shard_status_name(SHARD_ERR_CAPACITY),
                    "the forward has %" PRIu32 " rows and the shard %" PRIu32
                    " KV cells; send fewer, or load it with a larger n_ctx",
                    n_rows, description->kv_cells);
        failure_add(failure, "needed", "%" PRIu32, n_rows);
        failure_add(failure, "available", "%" PRIu32, description->kv_cells);
        return false;
    }
    return true;
}

static bool answer_fits(const struct execution *execution, const struct forward_request *forward,
                        uint32_t n_rows, struct failure *failure) {
    uint64_t n_bytes = value_bytes(&execution->description, forward->output, n_rows);
    uint32_t limit = execution->replies->max_frame_bytes;
    if (n_bytes + RESULT_HEAD_BYTES <= limit) {
        return true;
    }
    failure_set(failure, CODE_BAD_MESSAGE,
                "the answer to %" PRIu32 " rows has %" PRIu64 " bytes and a frame holds %" PRIu32
                "; send fewer rows at once, or start the worker with a larger --max-frame-bytes",
                n_rows, n_bytes, limit);
    failure_add(failure, "body_bytes", "%" PRIu64, n_bytes);
    failure_add(failure, "max_frame_bytes", "%" PRIu32, limit);
    return false;
}

static bool unpack_tokens(struct forward_work *work, const struct decode_tokens *tokens,
                          struct failure *failure) {
    work->tokens = memory_allocate_array(tokens->count, sizeof(*work->tokens));
    if (work->tokens == NULL) {
        return failure_set_memory(failure, (uint64_t)tokens->count * sizeof(*work->tokens));
    }
    decode_tokens_copy(tokens, work->tokens);
    return true;
}

/* Rows are used where they lie, unless msgpack put them across a float's boundary. */
static bool align_rows(struct forward_work *work, struct decode_text hidden,
                       struct failure *failure) {
    if ((uintptr_t)hidden.data % _Alignof(float) == 0) {
        work->hidden = (const float *)(const void *)hidden.data;
        return true;
    }
    work->aligned_hidden = memory_allocate(hidden.size);
    if (work->aligned_hidden == NULL) {
        return failure_set_memory(failure, hidden.size);
    }
    memcpy(work->aligned_hidden, hidden.data, hidden.size);
    work->hidden = work->aligned_hidden;
    return true;
}

/* Where the answer wants the rows of all pieces, they are kept until the last one. */
static bool make_room(const struct execution *execution, struct forward_work *work,
                      shard_output output, uint32_t rows, struct failure *failure) {
    if (rows == work->n_rows || !wants_all_rows(output)) {
        return true;
    }
    uint64_t n_bytes = value_bytes(&execution->description, output, work->n_rows);
    work->values = memory_allocate(n_bytes);
    return work->values != NULL || failure_set_memory(failure, n_bytes);
}

bool forward_prepare(const struct execution *execution, struct job *job, uint32_t rows,
                     struct failure *failure) {
    const struct forward_request *forward = &job->request.as.forward;
    struct forward_work *work = &job->forward;
    if (!require_session(execution, forward->session, &work->slot, failure)) {
        return false;
    }
    if (!work->is_prepared) {
        work->n_rows = forward_rows(forward, execution->description.n_embd);
        work->is_prepared = rows_are_right(execution, forward, work->n_rows, failure) &&
                            answer_fits(execution, forward, work->n_rows, failure) &&
                            (forward->has_tokens ? unpack_tokens(work, &forward->tokens, failure)
                                                 : align_rows(work, forward->hidden, failure));
    }
    if (work->is_prepared && work->values == NULL) {
        return make_room(execution, work, forward->output, rows, failure);
    }
    return work->is_prepared;
}

/* Of all pieces but the last, only those rows are asked for that the answer will hold. */
static shard_output output_of(const struct forward_work *work, uint32_t rows, shard_output output) {
    bool is_last = work->rows_done + rows == work->n_rows;
    return is_last || wants_all_rows(output) ? output : SHARD_OUTPUT_NONE;
}

void forward_fill_entry(const struct job *job, uint32_t rows, const shard_description *description,
                        shard_step_entry *entry) {
    const struct forward_request *forward = &job->request.as.forward;
    const struct forward_work *work = &job->forward;
    memset(entry, 0, sizeof(*entry));
    entry->session = work->slot;
    entry->position = forward->position + work->rows_done;
    entry->n_rows = rows;
    if (forward->has_tokens) {
        entry->tokens = work->tokens + work->rows_done;
    } else {
        entry->hidden = work->hidden + (size_t)work->rows_done * description->n_embd;
    }
    entry->output = output_of(work, rows, forward->output);
}

void forward_keep_values(const shard_description *description, struct forward_work *work,
                         const shard_step_entry *entry) {
    if (work->values == NULL) {
        return;
    }
    size_t columns = columns_of(description, entry->output);
    memcpy(work->values + work->rows_done * columns, entry->rows,
           entry->n_rows * columns * sizeof(float));
}
