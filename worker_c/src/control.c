#include "control.h"

#include "answer.h"
#include "bounds.h"
#include "clock.h"
#include "exit_status.h"
#include "frame.h"
#include "process.h"
#include "resident.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* ---- stopping ---- */

static void refuse_waiting(struct control *control) {
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_SHUTTING_DOWN, "the worker is stopping; ask another worker");
    struct job *job;
    while ((job = state_take_waiting(control->state)) != NULL) {
        reply_failure(control->replies, job->request.id, &failure);
        job_free(job);
    }
}

static bool is_stopping(const struct control *control) {
    return atomic_load(&control->state->is_stopping);
}

static void stop(struct control *control, uint64_t shutdown_id) {
    if (!is_stopping(control)) {
        control->shutdown_id = shutdown_id;
        state_stop(control->state);
    }
    refuse_waiting(control);
}

/* Nobody is left who could kill a worker whose engine hangs, so it gets a time to close and no
 * more. */
static void stop_without_host(struct control *control) {
    process_exit_after(LIMIT_ORPHAN_S, STATUS_SYSTEM);
    stop(control, 0);
}

/* ---- what is answered at once ---- */

static void answer_ping(struct control *control, const struct request *request) {
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_pong(&encoder, request->id);
    reply_answer(control->replies, request->id, &encoder);
}

static void report_health(struct control *control, const struct request *request) {
    struct health_snapshot snapshot;
    state_health(control->state, &snapshot, clock_now_us());
    snapshot.answer.requests = atomic_load(&control->replies->n_requests);
    snapshot.answer.errors = atomic_load(&control->replies->n_errors);
    snapshot.answer.rss_bytes = resident_bytes();
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_health(&encoder, request->id, &snapshot.answer);
    reply_answer(control->replies, request->id, &encoder);
}

static void resolve_cancelled(struct control *control, struct job *job) {
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, shard_status_name(SHARD_ERR_CANCELLED),
                "the request was cancelled before it began");
    failure_add(&failure, "kv_cells_freed", "0");
    reply_failure(control->replies, job->request.id, &failure);
    job_free(job);
}

static void cancel(struct control *control, const struct request *request) {
    static const char *const NAMES[] = {
        [CANCEL_UNKNOWN] = "unknown",
        [CANCEL_QUEUED] = "queued",
        [CANCEL_RUNNING] = "running",
    };
    uint64_t target = request->as.cancel.request;
    struct job *waiting;
    enum cancel_state result = state_cancel(control->state, target, &waiting);
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_cancelled(&encoder, request->id, target, NAMES[result]);
    reply_answer(control->replies, request->id, &encoder);
    if (waiting != NULL) {
        resolve_cancelled(control, waiting);
    }
}

static void shut_down(struct control *control, const struct request *request) {
    if (!is_stopping(control)) {
        stop(control, request->id);
        return;
    }
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_SHUTTING_DOWN, "the worker is stopping already; wait for its bye");
    reply_failure(control->replies, request->id, &failure);
}

/* ---- what waits for the execution thread ---- */

static void queue(struct control *control, struct request *request) {
    struct failure failure;
    failure_clear(&failure);
    uint64_t id = request->id;
    struct job *job = job_new(request, clock_now_us());
    if (job == NULL) {
        failure_set_memory(&failure, sizeof(*job));
        reply_failure(control->replies, id, &failure);
    } else if (!state_admit(control->state, job, &failure)) {
        reply_failure(control->replies, id, &failure);
        job_free(job);
    }
}

/* An id that is in use: an error with it would resolve the request that has it, so the error
 * carries none. */
static bool id_is_free(struct control *control, const struct request *request) {
    bool is_used = state_has_request(control->state, request->id) ||
                   (is_stopping(control) && request->id == control->shutdown_id);
    if (!is_used) {
        return true;
    }
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_BAD_MESSAGE,
                "the id %" PRIu64 " belongs to a request that is not answered yet; use another",
                request->id);
    failure_add(&failure, "id", "%" PRIu64, request->id);
    reply_failure(control->replies, 0, &failure);
    return false;
}

static void dispatch(struct control *control, struct request *request) {
    if (!id_is_free(control, request)) {
        return;
    }
    switch (request->type) {
    case REQUEST_PING:
        answer_ping(control, request);
        break;
    case REQUEST_HEALTH:
        report_health(control, request);
        break;
    case REQUEST_CANCEL:
        cancel(control, request);
        break;
    case REQUEST_SHUTDOWN:
        shut_down(control, request);
        break;
    default:
        queue(control, request);
        break;
    }
}

/* ---- frames ---- */

static void give_up(struct control *control, int status, const struct failure *failure) {
    fprintf(stderr, "gguf-shard-worker: %s\n", failure->message);
    process_exit_after(LIMIT_LAST_WORD_S, status);
    reply_last_failure(control->replies, failure);
    control->status = status;
}

static void serve_body(struct control *control) {
    struct failure failure;
    failure_clear(&failure);
    size_t size;
    uint8_t *body = frame_reader_take(control->reader, &size);
    struct request request;
    if (request_read(&request, body, size, &control->default_recipe, &failure)) {
        dispatch(control, &request);
    } else if (strcmp(failure.code, CODE_BAD_FRAME) == 0) {
        give_up(control, STATUS_BAD_FRAME, &failure);
    } else if (request.id == 0 || id_is_free(control, &request)) {
        reply_failure(control->replies, request.id, &failure);
    }
    request_free(&request);
}

static void take_bytes(struct control *control, size_t n_bytes) {
    struct failure failure;
    failure_clear(&failure);
    switch (frame_reader_filled(control->reader, n_bytes, &failure)) {
    case FRAME_PARTIAL:
        break;
    case FRAME_WHOLE:
        serve_body(control);
        break;
    case FRAME_BAD:
        give_up(control, STATUS_BAD_FRAME, &failure);
        break;
    case FRAME_NO_MEMORY:
        give_up(control, STATUS_SYSTEM, &failure);
        break;
    }
}

static void read_input(struct control *control) {
    struct frame_span want = frame_reader_want(control->reader);
    ptrdiff_t n_bytes = transport_read(control->transport, want.data, want.size);
    if (n_bytes > 0) {
        take_bytes(control, (size_t)n_bytes);
    } else if (n_bytes == 0) {
        /* In the middle of a frame it is the same: the host is gone. */
        control->input_is_open = false;
        stop_without_host(control);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK) {
        fprintf(stderr, "gguf-shard-worker: read: %s\n", strerror(errno));
        control->status = STATUS_SYSTEM;
    }
}

/* ---- the loop ---- */

/* A broken pipe is a host that is gone, which is an end like end of file. */
static void check_output(struct control *control) {
    int error = atomic_load(&control->transport->error);
    if (error == EPIPE || error == ECONNRESET) {
        stop_without_host(control);
    } else if (error != 0) {
        fprintf(stderr, "gguf-shard-worker: write: %s\n", strerror(error));
        control->status = STATUS_SYSTEM;
    }
}

static bool wait_for_event(struct control *control) {
    struct pollfd events[] = {
        {.fd = control->wake->heard, .events = POLLIN},
        {.fd = control->input_is_open ? control->transport->in : -1, .events = POLLIN},
        /* Without events poll still tells that nobody reads any more. */
        {.fd = is_stopping(control) ? -1 : control->transport->out, .events = 0},
    };
    if (poll(events, sizeof(events) / sizeof(events[0]), -1) < 0) {
        return errno == EINTR;
    }
    if (events[0].revents != 0) {
        wake_clear(control->wake);
        check_output(control);
    }
    if (events[1].revents != 0) {
        read_input(control);
    }
    if ((events[2].revents & (POLLERR | POLLHUP)) != 0) {
        stop_without_host(control);
    }
    return true;
}

int control_run(struct control *control) {
    struct frame_reader reader;
    frame_reader_init(&reader, control->replies->max_frame_bytes);
    control->reader = &reader;
    control->input_is_open = true;
    control->shutdown_id = 0;
    control->status = 0;
    while (control->status == 0 && !atomic_load(&control->state->is_finished)) {
        if (!wait_for_event(control)) {
            fprintf(stderr, "gguf-shard-worker: poll: %s\n", strerror(errno));
            control->status = STATUS_SYSTEM;
        }
    }
    frame_reader_free(&reader);
    return control->status;
}
