/* The execution thread, over an engine that does as each test says: what becomes of the requests of
 * a step that is cancelled, fails in a later piece, or breaks the backend. */
#include "check.h"
#include "clock.h"
#include "decode.h"
#include "execution.h"
#include "frame.h"
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the engine ---- */

enum { N_SESSIONS = 4, MAX_BATCH = 4, N_VOCAB = 2 };

struct shard_engine {
    bool is_open[N_SESSIONS];
    uint32_t lengths[N_SESSIONS];
    float rows[MAX_BATCH * N_VOCAB];
};

static struct shard_engine the_engine;
static unsigned n_steps;
static unsigned n_closed;
static uint32_t n_entries_of_step[64];

/* What the test does to a step, by its number from 1; SHARD_OK lets it be computed. */
static shard_status (*step_fault)(unsigned step);

/* Rung when a step begins that waits for a cancel. */
static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static bool is_step_waiting;
static bool is_cancel_called;

static shard_status wait_for_cancel(void) {
    pthread_mutex_lock(&gate_lock);
    is_step_waiting = true;
    pthread_cond_broadcast(&gate_changed);
    while (!is_cancel_called) {
        pthread_cond_wait(&gate_changed, &gate_lock);
    }
    is_cancel_called = false;
    is_step_waiting = false;
    pthread_mutex_unlock(&gate_lock);
    return SHARD_ERR_CANCELLED;
}

static void wait_for_step(void) {
    pthread_mutex_lock(&gate_lock);
    while (!is_step_waiting) {
        pthread_cond_wait(&gate_changed, &gate_lock);
    }
    pthread_mutex_unlock(&gate_lock);
}

static void engine_cancel(shard_engine *engine) {
    (void)engine;
    pthread_mutex_lock(&gate_lock);
    is_cancel_called = true;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate_lock);
}

static shard_status say(shard_error *error, shard_status status) {
    memset(error, 0, sizeof(*error));
    error->status = status;
    snprintf(error->message, sizeof(error->message), "as the test says");
    return status;
}

static void engine_default_params(shard_params *params) {
    memset(params, 0, sizeof(*params));
}

static shard_status engine_open(const shard_params *params, shard_engine **out,
                                shard_error *error) {
    *out = NULL;
    if (!params->on_progress("load", 0, 1, params->user_data)) {
        return say(error, SHARD_ERR_CANCELLED);
    }
    memset(&the_engine, 0, sizeof(the_engine));
    *out = &the_engine;
    return SHARD_OK;
}

static void engine_close(shard_engine *engine) {
    (void)engine;
    n_closed++;
}

static void engine_describe(const shard_engine *engine, shard_description *description) {
    (void)engine;
    *description = (shard_description){
        .n_embd = 1,
        .n_vocab = N_VOCAB,
        .has_token_embedding = true,
        .has_output_head = true,
        .weights_bytes = 100,
        .max_sessions = N_SESSIONS,
        .kv_cells = 1000,
        .max_batch = MAX_BATCH,
    };
}

static uint32_t engine_kv_cells_used(const shard_engine *engine) {
    uint32_t n_cells = 0;
    for (int i = 0; i < N_SESSIONS; i++) {
        n_cells += engine->lengths[i];
    }
    return n_cells;
}

static shard_status engine_session_open(shard_engine *engine, const shard_sampling *sampling,
                                        shard_session_id *out, shard_error *error) {
    (void)sampling;
    for (*out = 0; *out < N_SESSIONS; ++*out) {
        if (!engine->is_open[*out]) {
            engine->is_open[*out] = true;
            engine->lengths[*out] = 0;
            return SHARD_OK;
        }
    }
    return say(error, SHARD_ERR_CAPACITY);
}

static shard_status engine_session_length(const shard_engine *engine, shard_session_id session,
                                          uint32_t *length, shard_error *error) {
    (void)error;
    *length = engine->lengths[session];
    return SHARD_OK;
}

static shard_status engine_session_trim(shard_engine *engine, shard_session_id session,
                                        uint32_t position, uint32_t *kv_cells_freed,
                                        shard_error *error) {
    if (position > engine->lengths[session]) {
        return say(error, SHARD_ERR_POSITION);
    }
    *kv_cells_freed = engine->lengths[session] - position;
    engine->lengths[session] = position;
    /* Rows of the last step are borrowed until the next call, which this is. */
    memset(engine->rows, 0xFF, sizeof(engine->rows));
    return SHARD_OK;
}

static shard_status engine_session_close(shard_engine *engine, shard_session_id session,
                                         uint32_t *kv_cells_freed, shard_error *error) {
    engine->is_open[session] = false;
    return engine_session_trim(engine, session, 0, kv_cells_freed, error);
}

/* A row's logits are its position and its token. */
static void compute_entry(shard_engine *engine, shard_step_entry *entry, float *rows) {
    for (uint32_t i = 0; i < entry->n_rows; i++) {
        rows[N_VOCAB * i] = (float)(entry->position + i);
        rows[N_VOCAB * i + 1] = (float)entry->tokens[i];
    }
    engine->lengths[entry->session] += entry->n_rows;
    entry->status = SHARD_OK;
    entry->rows = rows;
    entry->n_rows_out = entry->n_rows;
    entry->n_columns_out = N_VOCAB;
    entry->kv_cells_taken = entry->n_rows;
    entry->length = engine->lengths[entry->session];
}

static shard_status engine_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                                shard_error *error) {
    n_entries_of_step[n_steps++] = n_entries;
    shard_status status = step_fault != NULL ? step_fault(n_steps) : SHARD_OK;
    float *rows = engine->rows;
    for (uint32_t i = 0; i < n_entries; i++) {
        shard_step_entry *entry = &entries[i];
        if (status != SHARD_OK || entry->position != engine->lengths[entry->session]) {
            entry->status = say(&entry->error, status != SHARD_OK ? status : SHARD_ERR_POSITION);
            continue;
        }
        compute_entry(engine, entry, rows);
        rows += entry->n_rows * N_VOCAB;
    }
    return say(error, status);
}

static uint64_t engine_progress(const shard_engine *engine) {
    (void)engine;
    return n_steps;
}

static const shard_engine_api API = {
    .abi_version = SHARD_ENGINE_ABI_VERSION,
    .name = "test",
    .default_params = engine_default_params,
    .open = engine_open,
    .close = engine_close,
    .describe = engine_describe,
    .kv_cells_used = engine_kv_cells_used,
    .session_open = engine_session_open,
    .session_length = engine_session_length,
    .session_trim = engine_session_trim,
    .session_close = engine_session_close,
    .step = engine_step,
    .cancel = engine_cancel,
    .progress = engine_progress,
};

/* ---- the bench ---- */

static struct wake wake;
static struct transport transport;
static struct replies replies;
static struct state state;
static struct execution execution;
static pthread_t thread;
static int answers;
static uint64_t last_id;

static void post(enum request_type type, struct request request) {
    struct failure failure;
    failure_clear(&failure);
    request.type = type;
    request.id = ++last_id;
    struct job *job = job_new(&request, clock_now_us());
    CHECK(state_admit(&state, job, &failure));
}

static void post_load(void) {
    post(REQUEST_LOAD, (struct request){.as.load = {.model = {"test", 4}, .max_sessions = 4}});
}

static void post_open(void) {
    struct request request = {.id = 0};
    shard_description description;
    struct identity identity;
    engine_describe(NULL, &description);
    identity_of(&description, &identity);
    identity_claim_all(&request.as.open.identity, &identity);
    request.as.open.identity.present |= 1;
    post(REQUEST_OPEN, request);
}

/* Tokens 1, 2, 3, ... as msgpack has them. */
static const uint8_t TOKENS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void post_forward(uint64_t session, uint32_t position, uint32_t n_rows,
                         shard_output output) {
    post(REQUEST_FORWARD, (struct request){.as.forward = {.session = session,
                                                          .position = position,
                                                          .has_tokens = true,
                                                          .tokens = {TOKENS, n_rows, n_rows},
                                                          .output = output}});
}

static void start(shard_status (*fault)(unsigned step)) {
    int ends[2];
    step_fault = fault;
    n_steps = 0;
    n_closed = 0;
    last_id = 0;
    if (pipe(ends) != 0 || !wake_open(&wake)) {
        abort();
    }
    answers = ends[0];
    memset(&transport, 0, sizeof(transport));
    transport.out = ends[1];
    transport.in = -1;
    transport.wake = &wake;
    pthread_mutex_init(&transport.lock, NULL);
    replies_init(&replies, &transport, 1 << 20);
    state_init(&state, &API, 1 << 20, clock_now_us());
    execution_init(&execution, &state, &replies, &wake, NULL);
}

static void run(void) {
    pthread_create(&thread, NULL, execution_run, &execution);
}

static void join(void) {
    state_stop(&state);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&state.is_finished));
    CHECK(state.jobs.first == NULL);
    CHECK_INT(n_closed, 1);
    state_free(&state);
    close(transport.out);
    char byte;
    CHECK_INT(read(answers, &byte, 1), 0);
    close(answers);
    pthread_mutex_destroy(&transport.lock);
    wake_close(&wake);
}

/* ---- answers ---- */

static uint8_t body[1 << 16];
static struct decode_map map;

static void read_exactly(void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n_bytes = read(answers, (char *)bytes + done, size - done);
        if (n_bytes <= 0) {
            fprintf(stderr, "no answer came\n");
            exit(1);
        }
        done += (size_t)n_bytes;
    }
}

static bool text_is(const char *key, const char *expected) {
    const struct decode_value *value = decode_find(&map, key);
    return value != NULL && value->size == strlen(expected) &&
           memcmp(value->data, expected, value->size) == 0;
}

static uint64_t number(const char *key) {
    const struct decode_value *value = decode_find(&map, key);
    return value != NULL ? value->integer : UINT64_MAX;
}

/* Reads the next answer but progress into `map`. */
static void next_answer(void) {
    do {
        uint8_t header[FRAME_HEADER_SIZE];
        struct failure failure;
        failure_clear(&failure);
        read_exactly(header, sizeof(header));
        size_t size = (size_t)header[4] | (size_t)header[5] << 8;
        read_exactly(body, size);
        CHECK(decode_body(body, size, &map, &failure));
    } while (text_is("type", "progress"));
}

static void expect(uint64_t id, const char *type) {
    next_answer();
    CHECK_INT(number("id"), id);
    CHECK(text_is("type", type));
}

static void expect_error(uint64_t id, const char *code) {
    expect(id, "error");
    CHECK(text_is("code", code));
}

static void expect_freed(const char *kv_cells) {
    struct failure failure;
    struct decode_map inner;
    failure_clear(&failure);
    struct decode_fields fields = {&map, &failure};
    decode_inner(&fields, "fields", &inner);
    const struct decode_value *value = decode_find(&inner, "kv_cells_freed");
    if (CHECK(value != NULL)) {
        CHECK_BYTES("kv_cells_freed", value->data, value->size, kv_cells, strlen(kv_cells));
    }
}

/* Loads and opens `n_sessions` sessions; the thread runs afterwards. */
static void start_with_sessions(shard_status (*fault)(unsigned step), int n_sessions) {
    start(fault);
    post_load();
    for (int i = 0; i < n_sessions; i++) {
        post_open();
    }
    run();
    expect(1, "loaded");
    for (int i = 0; i < n_sessions; i++) {
        expect(2 + (uint64_t)i, "opened");
        CHECK_INT(number("session"), i + 1);
    }
}

/* Cancels a request that is in the execution thread's hands. */
static void cancel(uint64_t id) {
    struct job *waiting;
    CHECK_INT(state_cancel(&state, id, &waiting), CANCEL_RUNNING);
}

/* ---- tests ---- */

static shard_status first_two_wait(unsigned step) {
    return step <= 2 ? wait_for_cancel() : SHARD_OK;
}

static void test_cancelled_step_runs_again_for_the_innocent(void) {
    check_subject("innocent");
    start_with_sessions(first_two_wait, 3);
    post_forward(3, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    /* These two wait for the first step to end, and then share the second. */
    post_forward(1, 0, 1, SHARD_OUTPUT_LOGITS);
    post_forward(2, 0, 2, SHARD_OUTPUT_LOGITS_ALL);
    cancel(5);
    expect_error(5, "cancelled");
    expect_freed("0");
    wait_for_step();
    CHECK_INT(n_entries_of_step[1], 2);
    cancel(6);
    expect_error(6, "cancelled");
    expect(7, "result");
    CHECK_INT(number("length"), 2);
    CHECK_INT(number("rows"), 2);
    CHECK_INT(n_entries_of_step[2], 1);
    CHECK_INT(the_engine.lengths[0], 0);
    join();
}

static shard_status always_cancelled(unsigned step) {
    (void)step;
    return SHARD_ERR_CANCELLED;
}

static void test_step_that_nobody_cancelled_does_not_run_for_ever(void) {
    check_subject("stray cancel");
    start_with_sessions(always_cancelled, 1);
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    expect_error(3, "cancelled");
    CHECK_INT(n_steps, 1);
    join();
}

static void test_long_forward_is_computed_in_pieces(void) {
    check_subject("pieces");
    start_with_sessions(NULL, 1);
    post_forward(1, 0, 10, SHARD_OUTPUT_LOGITS_ALL);
    expect(3, "result");
    CHECK_INT(n_steps, 3);
    CHECK_INT(number("length"), 10);
    CHECK_INT(number("kv_cells"), 10);
    CHECK_INT(number("rows"), 10);
    CHECK_INT(number("batch_rows"), 4);
    float expected[10 * N_VOCAB];
    for (int i = 0; i < 10; i++) {
        expected[N_VOCAB * i] = (float)i;
        expected[N_VOCAB * i + 1] = (float)(i + 1);
    }
    const struct decode_value *rows = decode_find(&map, "logits");
    CHECK_BYTES("rows", rows->data, rows->size, expected, sizeof(expected));
    CHECK_INT(state.rows, 10);
    CHECK_INT(state.kv_cells_used, 10);
    CHECK_INT(state.sessions, 1);
    join();
    CHECK_INT(atomic_load(&replies.n_requests), 3);
    CHECK_INT(atomic_load(&replies.n_errors), 0);
}

static shard_status third_is_not_finite(unsigned step) {
    return step == 3 ? SHARD_ERR_NON_FINITE : SHARD_OK;
}

static void test_failure_of_a_later_piece_undoes_the_earlier_ones(void) {
    check_subject("later piece");
    start_with_sessions(third_is_not_finite, 1);
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    expect_error(3, "non_finite");
    CHECK_INT(the_engine.lengths[0], 0);
    CHECK_INT(state.kv_cells_used, 0);
    post_forward(1, 0, 2, SHARD_OUTPUT_NONE);
    expect(4, "result");
    CHECK_INT(number("length"), 2);
    join();
    CHECK_INT(atomic_load(&replies.n_requests), 4);
    CHECK_INT(atomic_load(&replies.n_errors), 1);
}

static shard_status third_waits(unsigned step) {
    return step == 3 ? wait_for_cancel() : SHARD_OK;
}

static void test_cancel_of_a_later_piece_says_what_it_freed(void) {
    check_subject("cancelled piece");
    start_with_sessions(third_waits, 1);
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    wait_for_step();
    cancel(3);
    expect_error(3, "cancelled");
    expect_freed("8");
    CHECK_INT(the_engine.lengths[0], 0);
    join();
}

/* Its entry fails alone, and undoing it must not spoil the rows that another entry has borrowed. */
static void test_failed_entry_leaves_the_rows_of_others(void) {
    check_subject("rows of others");
    start_with_sessions(first_two_wait, 3);
    post_forward(3, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    post_forward(1, 7, 1, SHARD_OUTPUT_LOGITS); /* a gap */
    post_forward(2, 0, 1, SHARD_OUTPUT_LOGITS_ALL);
    n_steps = 2; /* the next step is computed */
    cancel(5);
    expect_error(5, "cancelled");
    expect(7, "result");
    const float expected[] = {0, 1};
    const struct decode_value *rows = decode_find(&map, "logits");
    CHECK_BYTES("rows", rows->data, rows->size, expected, sizeof(expected));
    expect_error(6, "position");
    join();
}

static shard_status second_breaks(unsigned step) {
    return step == 2 ? SHARD_ERR_BACKEND : SHARD_OK;
}

static void test_broken_backend_is_closed_and_refuses_all(void) {
    check_subject("backend");
    start_with_sessions(second_breaks, 2);
    post_forward(1, 0, 4, SHARD_OUTPUT_NONE);
    expect(4, "result");
    post_forward(2, 0, 1, SHARD_OUTPUT_NONE);
    expect_error(5, "backend");
    post_forward(1, 4, 1, SHARD_OUTPUT_NONE);
    expect_error(6, "backend");
    CHECK_INT(n_closed, 1);
    post_load();
    expect_error(7, "backend");
    CHECK_INT(execution.released.sessions, 2);
    CHECK_INT(execution.released.kv_cells, 4);
    join();
}

static shard_status second_waits(unsigned step) {
    return step == 2 ? wait_for_cancel() : SHARD_OK;
}

static void test_stop_resolves_a_forward_between_its_pieces(void) {
    check_subject("stop");
    start_with_sessions(second_waits, 1);
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    wait_for_step();
    state_stop(&state);
    expect_error(3, "cancelled");
    expect_freed("4");
    join();
    CHECK_INT(execution.released.sessions, 1);
    CHECK_INT(execution.released.weights_bytes, 100);
}

static void test_requests_before_a_load(void) {
    check_subject("before a load");
    start(NULL);
    post_open();
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    post_load();
    run();
    expect_error(1, "not_loaded");
    expect_error(2, "not_loaded");
    expect(3, "loaded");
    join();
}

static void test_session_numbers_are_never_used_twice(void) {
    check_subject("numbers");
    start_with_sessions(NULL, 1);
    post(REQUEST_CLOSE, (struct request){.as.close = {.session = 1}});
    expect(3, "closed");
    post_open();
    expect(4, "opened");
    CHECK_INT(number("session"), 2);
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    expect_error(5, "no_session");
    post(REQUEST_TRIM, (struct request){.as.trim = {.session = 2, .position = 1}});
    expect_error(6, "position");
    join();
}

int main(void) {
    alarm(50); /* a wait that never ends fails the test */
    test_cancelled_step_runs_again_for_the_innocent();
    test_step_that_nobody_cancelled_does_not_run_for_ever();
    test_long_forward_is_computed_in_pieces();
    test_failure_of_a_later_piece_undoes_the_earlier_ones();
    test_cancel_of_a_later_piece_says_what_it_freed();
    test_failed_entry_leaves_the_rows_of_others();
    test_broken_backend_is_closed_and_refuses_all();
    test_stop_resolves_a_forward_between_its_pieces();
    test_requests_before_a_load();
    test_session_numbers_are_never_used_twice();
    return check_verdict();
}
