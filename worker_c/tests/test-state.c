/* What both threads share: who is admitted, and who resolves a request that is cancelled or
 * stopped. */
#include "bounds.h"
#include "check.h"
#include "memory.h"
#include "state.h"

#include <string.h>

static unsigned n_engine_cancels;

static void count_cancel(shard_engine *engine) {
    (void)engine;
    n_engine_cancels++;
}

static uint64_t read_progress(const shard_engine *engine) {
    (void)engine;
    return 7;
}

static const shard_engine_api API = {.cancel = count_cancel, .progress = read_progress};

static struct state state;
static struct failure failure;

static void start(uint32_t max_frame_bytes) {
    n_engine_cancels = 0;
    failure_clear(&failure);
    state_init(&state, &API, max_frame_bytes, 1000);
}

static struct job *job_of(enum request_type type, uint64_t id, size_t body_size) {
    struct request request = {.type = type, .id = id, .body_size = body_size};
    return job_new(&request, 0);
}

static struct job *admitted(enum request_type type, uint64_t id) {
    struct job *job = job_of(type, id, 10);
    CHECK(state_admit(&state, job, &failure));
    return job;
}

static void end(void) {
    struct job *job;
    while ((job = state.jobs.first) != NULL) {
        state_take(&state, job);
        job_free(job);
    }
    CHECK_INT(state.jobs.n_waiting, 0);
    CHECK_INT(state.jobs.waiting_bytes, 0);
    state_free(&state);
}

static void test_waiting_requests_are_limited(void) {
    check_subject("busy");
    start(1000);
    for (uint64_t id = 1; id <= LIMIT_WAITING; id++) {
        admitted(REQUEST_TOKENIZE, id);
    }
    struct job *late = job_of(REQUEST_TOKENIZE, 1000, 10);
    CHECK(!state_admit(&state, late, &failure));
    CHECK_TEXT(failure.code, "busy");
    CHECK(failure_is_retryable(&failure));
    failure_clear(&failure);
    state_set_phase(&state, state.jobs.first, JOB_RUNNING);
    CHECK(state_admit(&state, late, &failure));
    end();
}

static void test_waiting_bytes_are_limited(void) {
    check_subject("bytes");
    start(100);
    struct job *jobs[5];
    for (int i = 0; i < 5; i++) {
        jobs[i] = job_of(REQUEST_TOKENIZE, (uint64_t)i + 1, 100);
        CHECK_INT(state_admit(&state, jobs[i], &failure), i < LIMIT_WAITING_FRAMES);
    }
    CHECK_TEXT(failure.code, "busy");
    job_free(jobs[4]);
    end();
}

static void test_ids_in_use_are_known(void) {
    check_subject("ids");
    start(1000);
    struct job *job = admitted(REQUEST_TOKENIZE, 5);
    CHECK(state_has_request(&state, 5));
    CHECK(!state_has_request(&state, 6));
    state_take(&state, job);
    CHECK(!state_has_request(&state, 5));
    job_free(job);
    end();
}

static void test_cancel_of_a_waiting_request(void) {
    check_subject("cancel waiting");
    start(1000);
    struct job *job = admitted(REQUEST_FORWARD, 5);
    struct job *waiting;
    CHECK_INT(state_cancel(&state, 5, &waiting), CANCEL_QUEUED);
    CHECK(waiting == job);
    CHECK_INT(state_cancel(&state, 5, &waiting), CANCEL_UNKNOWN);
    CHECK(waiting == NULL);
    CHECK_INT(n_engine_cancels, 0);
    job_free(job);
    end();
}

static void test_cancel_of_a_running_request(void) {
    check_subject("cancel running");
    start(1000);
    struct job *job = admitted(REQUEST_FORWARD, 5);
    struct job *waiting;
    /* Picked, but its step has not begun: the flag alone must do, since there is no step to stop.
     */
    state_set_phase(&state, job, JOB_RUNNING);
    CHECK_INT(state_cancel(&state, 5, &waiting), CANCEL_RUNNING);
    CHECK(atomic_load(&job->is_cancelled));
    CHECK_INT(n_engine_cancels, 0);
    state.is_computing = true;
    CHECK_INT(state_cancel(&state, 5, &waiting), CANCEL_RUNNING);
    CHECK_INT(n_engine_cancels, 1);
    CHECK_INT(state.unspent_cancels, 1);
    /* Between two pieces, while the step of others runs: those are not disturbed. */
    state_set_phase(&state, job, JOB_STARTED);
    CHECK_INT(state_cancel(&state, 5, &waiting), CANCEL_RUNNING);
    CHECK_INT(n_engine_cancels, 1);
    CHECK(waiting == NULL);
    end();
}

static void test_cancelled_load_can_be_asked_for_again(void) {
    check_subject("cancel load");
    start(1000);
    struct job *waiting;
    admitted(REQUEST_LOAD, 5);
    struct job *second = job_of(REQUEST_LOAD, 6, 10);
    CHECK(!state_admit(&state, second, &failure));
    CHECK_TEXT(failure.code, "identity");
    failure_clear(&failure);
    state_cancel(&state, 5, &waiting);
    job_free(waiting);
    CHECK(state_admit(&state, second, &failure));
    end();
}

static void test_stop_refuses_and_hands_over(void) {
    check_subject("stop");
    start(1000);
    struct job *running = admitted(REQUEST_FORWARD, 1);
    struct job *waiting = admitted(REQUEST_FORWARD, 2);
    state_set_phase(&state, running, JOB_RUNNING);
    state.is_computing = true;
    state_stop(&state);
    CHECK_INT(n_engine_cancels, 1);
    struct job *late = job_of(REQUEST_TOKENIZE, 3, 10);
    CHECK(!state_admit(&state, late, &failure));
    CHECK_TEXT(failure.code, "shutting_down");
    CHECK(state_take_waiting(&state) == waiting);
    CHECK(state_take_waiting(&state) == NULL);
    CHECK(state.jobs.first == running);
    job_free(late);
    job_free(waiting);
    end();
}

static void test_health_names_the_state(void) {
    check_subject("health");
    start(1000);
    struct health_snapshot snapshot;
    state_health(&state, &snapshot, 1500);
    CHECK_TEXT(snapshot.answer.state, "idle");
    CHECK(snapshot.answer.description == NULL);
    CHECK_INT(snapshot.answer.uptime_us, 500);
    state.is_loading = true;
    strcpy(state.phase.phase, "load");
    state.steps_reported = 3;
    state_health(&state, &snapshot, 1500);
    CHECK_TEXT(snapshot.answer.state, "loading");
    CHECK_TEXT(snapshot.answer.phase, "load");
    CHECK_INT(snapshot.answer.progress, 3);
    state.is_loading = false;
    int engine;
    state.engine = (shard_engine *)(void *)&engine;
    state.has_description = true;
    state_health(&state, &snapshot, 1500);
    CHECK_TEXT(snapshot.answer.state, "ready");
    CHECK(snapshot.answer.description != NULL);
    CHECK_INT(snapshot.answer.progress, 10);
    state.is_computing = true;
    state_health(&state, &snapshot, 1500);
    CHECK_TEXT(snapshot.answer.state, "computing");
    state_stop(&state);
    state_health(&state, &snapshot, 1500);
    CHECK_TEXT(snapshot.answer.state, "draining");
    end();
}

int main(void) {
    test_waiting_requests_are_limited();
    test_waiting_bytes_are_limited();
    test_ids_in_use_are_known();
    test_cancel_of_a_waiting_request();
    test_cancel_of_a_running_request();
    test_cancelled_load_can_be_asked_for_again();
    test_stop_refuses_and_hands_over();
    test_health_names_the_state();
    return check_verdict();
}
