#include "forward.h"

#include "execute.h"
#include "memory.h"

#include <inttypes.h>
#include <string.h>

/* Room in a frame for what a `result` says beside its rows. */
enum { RESULT_HEAD_BYTES = 512 };

/* ---- sizes ---- */

static const char F32[] = "f32";

static bool is_all_rows(shard_output output) {
    return output == SHARD_OUTPUT_HIDDEN || output == SHARD_OUTPUT_LOGITS_ALL ||
           output == SHARD_OUTPUT_EMBEDDING;
}

const char *forward_dtype(const shard_description *description, shard_output output) {
    return output == SHARD_OUTPUT_HIDDEN ? description->recipe.boundary : F32;
}

/* f16 and bf16 are the only dtypes beside f32. */
static size_t bytes_of(const char *dtype) {
    return strcmp(dtype, F32) == 0 ? sizeof(float) : sizeof(uint16_t);
}

static size_t hidden_row_bytes(const shard_description *description) {
    return description->n_embd * bytes_of(description->recipe.boundary);
}

static uint64_t row_bytes_out(const shard_description *description, shard_output output) {
    switch (output) {
    case SHARD_OUTPUT_HIDDEN:
        return hidden_row_bytes(description);
    case SHARD_OUTPUT_LOGITS:
    case SHARD_OUTPUT_LOGITS_ALL:
        return (uint64_t)description->n_vocab * sizeof(float);
    case SHARD_OUTPUT_EMBEDDING:
        return (uint64_t)description->n_embd_out * sizeof(float);
    default:
        return 0;
    }
}

static uint64_t bytes_out(const shard_description *description, shard_output output,
                          uint32_t n_rows) {
    return row_bytes_out(description, output) * (is_all_rows(output) ? n_rows : 1);
}

/* 0 where hidden rows are not whole. */
static uint32_t rows_of(const shard_description *description,
                        const struct forward_request *forward) {
    if (forward->after_draw) {
        return 1;
    }
    if (forward->hidden.data == NULL) {
        return forward->tokens.count;
    }
    size_t row_bytes = hidden_row_bytes(description);
    bool divides = row_bytes > 0 && forward->hidden.size % row_bytes == 0;
    return divides ? (uint32_t)(forward->hidden.size / row_bytes) : 0;
}

uint32_t forward_piece_rows(const shard_description *description, const struct job *job) {
    uint32_t n_rows = rows_of(description, &job->request.as.forward);
    uint32_t n_done = job->forward.rows_done;
    uint32_t n_left = n_rows > n_done ? n_rows - n_done : 1;
    uint32_t chunk = description->recipe.prefill_chunk;
    return n_left < chunk ? n_left : chunk;
}

/* ---- before anything is computed ---- */

static bool rows_are_right(const struct execution *execution, const struct forward_request *forward,
                           uint32_t n_rows, struct failure *failure) {
    const shard_description *description = &execution->description;
    if (n_rows == 0) {
        failure_set(failure, CODE_BAD_MESSAGE,
                    "the key 'hidden' has %zu bytes, which are no whole rows of %" PRIu32
                    " values of %s; send rows of that length",
                    forward->hidden.size, description->n_embd, description->recipe.boundary);
        failure_add(failure, "n_embd", "%" PRIu32, description->n_embd);
        return false;
    }
    if (forward->tokens.count != 0 && forward->tokens.count != n_rows) {
        failure_set(failure, CODE_BAD_MESSAGE,
                    "the key 'tokens' has %" PRIu32 " tokens for %" PRIu32
                    " hidden rows; send one for each",
                    forward->tokens.count, n_rows);
        failure_add(failure, "tokens", "%" PRIu32, forward->tokens.count);
        failure_add(failure, "rows", "%" PRIu32, n_rows);
        return false;
    }
    return true;
}

/* KV cells that the rows of a session can still take: those that forwards which were let in before
 * are yet to take are not free. */
static uint32_t cells_free(const struct execution *execution, uint32_t length) {
    const shard_description *description = &execution->description;
    uint32_t taken = execution->api->kv_cells_used(execution->engine) + execution->cells_promised;
    uint32_t of_all = description->kv_cells > taken ? description->kv_cells - taken : 0;
    uint32_t of_session = description->session_cells - length;
    return of_all < of_session ? of_all : of_session;
}

/* Keeps KV cells for all rows, or refuses before any is computed: the engine looks at one piece
 * after another. A wrong position is left to it. */
static bool rows_have_room(struct execution *execution, struct job *job, struct failure *failure) {
    struct forward_work *work = &job->forward;
    uint32_t length;
    shard_error error;
    if (execution->api->session_length(execution->engine, work->slot, &length, &error) !=
        SHARD_OK) {
        return failure_set_engine(failure, &error);
    }
    if (length != job->request.as.forward.position) {
        return true;
    }
    uint32_t n_free = cells_free(execution, length);
    if (work->n_rows <= n_free) {
        work->cells_promised = work->n_rows;
        execution->cells_promised += work->n_rows;
        return true;
    }
    failure_set(failure, shard_status_name(SHARD_ERR_CAPACITY),
                "the forward has %" PRIu32 " rows and %" PRIu32
                " KV cells are free for its session; send fewer, close or trim sessions, or load "
                "the shard with a larger n_ctx",
                work->n_rows, n_free);
    failure_add(failure, "needed", "%" PRIu32, work->n_rows);
    failure_add(failure, "available", "%" PRIu32, n_free);
    return false;
}

void forward_keep_promise(struct execution *execution, struct forward_work *work, uint32_t rows) {
    work->cells_promised -= rows;
    execution->cells_promised -= rows;
}

static bool answer_fits(const struct execution *execution, const struct forward_request *forward,
                        uint32_t n_rows, struct failure *failure) {
    uint64_t n_bytes = bytes_out(&execution->description, forward->output, n_rows);
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

/* ---- what a forward needs ---- */

static bool make_room_for_tokens(struct forward_work *work, uint32_t count,
                                 struct failure *failure) {
    work->tokens = memory_allocate_array(count, sizeof(*work->tokens));
    return work->tokens != NULL ||
           failure_set_memory(failure, (uint64_t)count * sizeof(*work->tokens));
}

static bool unpack_tokens(struct forward_work *work, const struct decode_tokens *tokens,
                          struct failure *failure) {
    if (tokens->count == 0) {
        return true;
    }
    if (!make_room_for_tokens(work, tokens->count, failure)) {
        return false;
    }
    decode_tokens_copy(tokens, work->tokens);
    return true;
}

static bool has_draw(const struct session_draw *draw, const struct forward_request *forward,
                     struct failure *failure) {
    if (draw->length != forward->position || draw->length == 0) {
        failure_set(failure, CODE_NO_DRAW,
                    "session %" PRIu64 " has drawn no token for its row %" PRIu32
                    " to go on from; send it in 'tokens'",
                    forward->session, forward->position);
    } else if (draw->ends_generation) {
        failure_set(failure, CODE_NO_DRAW,
                    "the token that session %" PRIu64 " drew for its row %" PRIu32
                    " ends the generation; to go on all the same, send it in 'tokens'",
                    forward->session, forward->position);
    } else {
        return true;
    }
    failure_add(failure, "session", "%" PRIu64, forward->session);
    failure_add(failure, "position", "%" PRIu32, forward->position);
    return false;
}

/* The row of a forward that came before its token was known. It has waited since then. */
static bool take_draw(const struct execution *execution, struct job *job, struct failure *failure) {
    const struct forward_request *forward = &job->request.as.forward;
    struct forward_work *work = &job->forward;
    const struct session_draw *draw = session_table_draw(&execution->sessions, work->slot);
    if (!has_draw(draw, forward, failure) || !make_room_for_tokens(work, 1, failure)) {
        return false;
    }
    work->tokens[0] = draw->token;
    job->arrived_us = job->arrived_us > draw->at_us ? job->arrived_us : draw->at_us;
    return true;
}

static bool take_tokens(const struct execution *execution, struct job *job,
                        struct failure *failure) {
    const struct forward_request *forward = &job->request.as.forward;
    return forward->after_draw ? take_draw(execution, job, failure)
                               : unpack_tokens(&job->forward, &forward->tokens, failure);
}

/* Rows are used where they lie, unless msgpack put them across a value's boundary. */
static bool align_rows(struct forward_work *work, struct decode_text hidden, size_t value_bytes,
                       struct failure *failure) {
    if (hidden.data == NULL || (uintptr_t)hidden.data % value_bytes == 0) {
        work->hidden = hidden.data;
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
static bool keep_room(const struct execution *execution, struct forward_work *work,
                      shard_output output, struct failure *failure) {
    if (!is_all_rows(output)) {
        return true;
    }
    uint64_t n_bytes = bytes_out(&execution->description, output, work->n_rows);
    work->values = memory_allocate(n_bytes);
    return work->values != NULL || failure_set_memory(failure, n_bytes);
}

static bool get_ready(struct execution *execution, struct job *job, uint32_t rows,
                      struct failure *failure) {
    const struct forward_request *forward = &job->request.as.forward;
    const shard_description *description = &execution->description;
    struct forward_work *work = &job->forward;
    work->n_rows = rows_of(description, forward);
    bool is_whole = rows == work->n_rows;
    return rows_are_right(execution, forward, work->n_rows, failure) &&
           answer_fits(execution, forward, work->n_rows, failure) &&
           take_tokens(execution, job, failure) &&
           align_rows(work, forward->hidden, bytes_of(description->recipe.boundary), failure) &&
           (is_whole || keep_room(execution, work, forward->output, failure)) &&
           rows_have_room(execution, job, failure);
}

bool forward_prepare(struct execution *execution, struct job *job, uint32_t rows,
                     struct failure *failure) {
    struct forward_work *work = &job->forward;
    if (!require_session(execution, job->request.as.forward.session, &work->slot, failure)) {
        return false;
    }
    work->is_prepared = work->is_prepared || get_ready(execution, job, rows, failure);
    return work->is_prepared;
}

/* ---- pieces ---- */

/* Of all pieces but the last, only those rows are asked for that the answer will hold. */
static shard_output output_of(const struct forward_work *work, uint32_t rows, shard_output output) {
    bool is_last = work->rows_done + rows == work->n_rows;
    return is_last || is_all_rows(output) ? output : SHARD_OUTPUT_NONE;
}

void forward_fill_entry(const shard_description *description, const struct job *job, uint32_t rows,
                        shard_step_entry *entry) {
    const struct forward_request *forward = &job->request.as.forward;
    const struct forward_work *work = &job->forward;
    memset(entry, 0, sizeof(*entry));
    entry->session = work->slot;
    entry->position = forward->position + work->rows_done;
    entry->n_rows = rows;
    entry->output = output_of(work, rows, forward->output);
    if (work->tokens != NULL) {
        entry->tokens = work->tokens + work->rows_done;
    }
    if (work->hidden != NULL) {
        entry->hidden =
            (const char *)work->hidden + work->rows_done * hidden_row_bytes(description);
    }
}

void forward_keep_values(const shard_description *description, struct forward_work *work,
                         const shard_step_entry *entry) {
    if (work->values == NULL) {
        return;
    }
    uint64_t row_bytes = row_bytes_out(description, entry->output);
    memcpy((char *)work->values + work->rows_done * row_bytes, entry->rows,
           entry->n_rows * row_bytes);
}
