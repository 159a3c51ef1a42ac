/* What the fake engine does on purpose that no other engine does: its faults, seen from a parent.
 * The rules that all engines share are tested by tests/conformance. */
#include "check.h"
#include "shard_engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const shard_engine_api *api;

static shard_status try_open(const char *plan, shard_engine **engine, shard_error *error) {
    shard_params params;
    api->default_params(&params);
    params.model_path = "fake:";
    params.fault_plan = plan;
    return api->open(&params, engine, error);
}

static shard_engine *open_with(const char *plan) {
    shard_engine *engine;
    shard_error error;
    CHECK_EQUAL(try_open(plan, &engine, &error), SHARD_OK);
    return engine;
}

/* One row more for the session; returns the step's status and fills `entry`. */
static shard_status step(shard_engine *engine, shard_session_id session, shard_step_entry *entry) {
    static const int32_t token = 7;
    shard_error error;
    uint32_t length = 0;
    CHECK_EQUAL(api->session_length(engine, session, &length, &error), SHARD_OK);
    *entry = (shard_step_entry){.session = session,
                                .position = length,
                                .n_rows = 1,
                                .tokens = &token,
                                .output = SHARD_OUTPUT_LOGITS};
    return api->step(engine, entry, 1, &error);
}

static shard_session_id open_session(shard_engine *engine) {
    shard_session_id session;
    shard_error error;
    CHECK_EQUAL(api->session_open(engine, NULL, &session, &error), SHARD_OK);
    return session;
}

/* Opens with `plan` and makes `n_steps` steps in a child; returns how the child ended. */
static int status_of_child(const char *plan, int n_steps) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        shard_engine *engine = open_with(plan);
        const shard_session_id session = open_session(engine);
        for (int i = 0; i < n_steps; i++) {
            shard_step_entry entry;
            step(engine, session, &entry);
        }
        api->close(engine);
        _exit(42);
    }
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return status;
}

static void test_fatal_faults_end_the_process_in_their_step(void) {
    CHECK_EQUAL(WEXITSTATUS(status_of_child("crash@3", 2)), 42);
    CHECK_EQUAL(WTERMSIG(status_of_child("crash@3", 3)), SIGABRT);
    CHECK_EQUAL(WEXITSTATUS(status_of_child("segv@2", 1)), 42);
    CHECK_EQUAL(WTERMSIG(status_of_child("segv@2", 2)), SIGSEGV);
    CHECK_EQUAL(WEXITSTATUS(status_of_child("exit:3@2", 1)), 42);
    CHECK_EQUAL(WEXITSTATUS(status_of_child("exit:3@2", 2)), 3);
    CHECK_EQUAL(WTERMSIG(status_of_child("load-crash", 0)), SIGABRT);
}

static void *cancel_when_computing(void *argument) {
    api->cancel(argument);
    return NULL;
}

static void test_hang_ends_with_a_cancel_and_restores_the_session(void) {
    shard_engine *engine = open_with("hang@2");
    const shard_session_id session = open_session(engine);
    shard_step_entry entry;
    shard_error error;
    uint32_t length;
    pthread_t canceller;
    CHECK_EQUAL(step(engine, session, &entry), SHARD_OK);
    CHECK_EQUAL(pthread_create(&canceller, NULL, cancel_when_computing, engine), 0);
    CHECK_EQUAL(step(engine, session, &entry), SHARD_ERR_CANCELLED);
    CHECK_EQUAL(pthread_join(canceller, NULL), 0);
    CHECK_EQUAL(entry.status, SHARD_ERR_CANCELLED);
    CHECK_EQUAL(api->session_length(engine, session, &length, &error), SHARD_OK);
    CHECK_EQUAL(length, 1);
    CHECK_EQUAL(api->kv_cells_used(engine), 1);
    CHECK_EQUAL(step(engine, session, &entry), SHARD_OK);
    CHECK_EQUAL(entry.status, SHARD_OK);
    api->close(engine);
}

static void test_nan_is_caught_where_it_was_made(void) {
    shard_engine *engine = open_with("nan@1");
    const shard_session_id session = open_session(engine);
    shard_step_entry entry;
    CHECK_EQUAL(step(engine, session, &entry), SHARD_OK);
    CHECK_EQUAL(entry.status, SHARD_ERR_NON_FINITE);
    CHECK(entry.rows == NULL);
    CHECK(strcmp(entry.error.fields[1].name, "direction") == 0);
    CHECK(strcmp(entry.error.fields[1].value, "out") == 0);
    CHECK_EQUAL(api->kv_cells_used(engine), 0);
    CHECK_EQUAL(step(engine, session, &entry), SHARD_OK);
    CHECK_EQUAL(entry.status, SHARD_OK);
    api->close(engine);
}

/* Three sessions in one step: two of one row, which are the first call, and one of two rows, which
 * is the second. */
static shard_status step_of_two_calls(shard_engine *engine, const shard_session_id sessions[3],
                                      shard_step_entry entries[3], shard_error *error) {
    static const int32_t tokens[2] = {7, 9};
    for (int i = 0; i < 3; i++) {
        entries[i] = (shard_step_entry){.session = sessions[i],
                                        .n_rows = i == 1 ? 2 : 1,
                                        .tokens = tokens,
                                        .output = SHARD_OUTPUT_LOGITS};
    }
    return api->step(engine, entries, 3, error);
}

/* The entries of the first call are done, with their rows; the one of the second is not, and can be
 * sent again. */
static void check_second_call_failed(const char *plan, shard_status expected,
                                     void *(*meanwhile)(void *)) {
    shard_engine *engine = open_with(plan);
    const shard_session_id sessions[3] = {open_session(engine), open_session(engine),
                                          open_session(engine)};
    shard_step_entry entries[3];
    shard_error error;
    pthread_t other;
    CHECK_EQUAL(pthread_create(&other, NULL, meanwhile, engine), 0);
    CHECK_EQUAL(step_of_two_calls(engine, sessions, entries, &error), expected);
    CHECK_EQUAL(pthread_join(other, NULL), 0);
    CHECK_EQUAL(error.status, expected);
    for (int i = 0; i < 3; i += 2) {
        CHECK_EQUAL(entries[i].status, SHARD_OK);
        CHECK_EQUAL(entries[i].length, 1);
        CHECK_EQUAL(entries[i].n_rows_out, 1);
        CHECK(entries[i].rows != NULL);
    }
    CHECK(entries[0].rows != entries[2].rows);
    CHECK_EQUAL(entries[1].status, expected);
    CHECK_EQUAL(entries[1].length, 0);
    CHECK(entries[1].rows == NULL);
    CHECK(strcmp(entries[1].error.message, error.message) == 0);
    CHECK_EQUAL(api->kv_cells_used(engine), 2);
    CHECK_EQUAL(api->step(engine, &entries[1], 1, &error), SHARD_OK);
    CHECK_EQUAL(entries[1].status, SHARD_OK);
    CHECK_EQUAL(entries[1].length, 2);
    api->close(engine);
}

/* A cancel that comes before the step would end it in its first call: this one waits until that is
 * computed. */
static void *cancel_in_second_call(void *argument) {
    const uint64_t layers_of_warm_up_and_first_call = 12 + 12;
    while (api->progress(argument) < layers_of_warm_up_and_first_call) {
        sched_yield();
    }
    api->cancel(argument);
    return NULL;
}

static void *do_nothing(void *argument) {
    return argument;
}

static void test_failed_call_leaves_earlier_ones_done(void) {
    check_second_call_failed("hang-call:2@1", SHARD_ERR_CANCELLED, cancel_in_second_call);
    check_second_call_failed("fail-call:2@1", SHARD_ERR_BACKEND, do_nothing);
}

static void test_overflow_is_an_error_where_the_boundary_cannot_hold_it(void) {
    static const struct {
        const char *boundary;
        shard_status status;
    } CASES[] = {{"f32", SHARD_OK}, {"bf16", SHARD_OK}, {"f16", SHARD_ERR_NON_FINITE}};
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        shard_params params;
        shard_engine *engine;
        shard_error error;
        shard_step_entry entry;
        api->default_params(&params);
        params.model_path = "fake:";
        params.layer_end = 6;
        params.fault_plan = "overflow@1";
        strcpy(params.recipe.boundary, CASES[i].boundary);
        CHECK_EQUAL(api->open(&params, &engine, &error), SHARD_OK);
        const int32_t token = 7;
        entry = (shard_step_entry){.session = open_session(engine),
                                   .n_rows = 1,
                                   .tokens = &token,
                                   .output = SHARD_OUTPUT_HIDDEN};
        CHECK_EQUAL(api->step(engine, &entry, 1, &error), SHARD_OK);
        CHECK_EQUAL(entry.status, CASES[i].status);
        CHECK_EQUAL(api->kv_cells_used(engine), entry.status == SHARD_OK ? 1 : 0);
        api->close(engine);
    }
}

static void test_slow_step_shows_progress(void) {
    shard_engine *plain = open_with(NULL);
    shard_engine *slow = open_with("slow:30");
    shard_step_entry entry;
    const uint64_t plain_before = api->progress(plain), slow_before = api->progress(slow);
    CHECK_EQUAL(step(plain, open_session(plain), &entry), SHARD_OK);
    CHECK_EQUAL(step(slow, open_session(slow), &entry), SHARD_OK);
    CHECK(api->progress(plain) > plain_before);
    CHECK(api->progress(slow) - slow_before > api->progress(plain) - plain_before);
    api->close(plain);
    api->close(slow);
}

static void test_flood_goes_to_stderr_whole(void) {
    int ends[2];
    CHECK_EQUAL(pipe(ends), 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        shard_engine *engine = open_with("stderr-flood@1");
        shard_step_entry entry;
        CHECK_EQUAL(step(engine, open_session(engine), &entry), SHARD_OK);
        api->close(engine);
        _exit(0);
    }
    close(ends[1]);
    static char buffer[65536];
    long long total = 0;
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
        total += n;
    }
    close(ends[0]);
    int status;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    CHECK_EQUAL(total, 4 << 20);
}

static void test_bad_plan_opens_nothing(void) {
    shard_engine *engine;
    shard_error error;
    CHECK_EQUAL(try_open("explode@1", &engine, &error), SHARD_ERR_ARGUMENT);
    CHECK(engine == NULL);
    CHECK_EQUAL(try_open("load-fail", &engine, &error), SHARD_ERR_BACKEND);
    CHECK(engine == NULL);
}

int main(void) {
    api = shard_engine_find("fake");
    CHECK(api != NULL);
    test_fatal_faults_end_the_process_in_their_step();
    test_hang_ends_with_a_cancel_and_restores_the_session();
    test_nan_is_caught_where_it_was_made();
    test_failed_call_leaves_earlier_ones_done();
    test_overflow_is_an_error_where_the_boundary_cannot_hold_it();
    test_slow_step_shows_progress();
    test_flood_goes_to_stderr_whole();
    test_bad_plan_opens_nothing();
    return 0;
}
