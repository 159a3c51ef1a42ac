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

enum { N_SESSIONS = 4, MAX_BATCH = 6, CHUNK = 4, N_VOCAB = 2, TOKEN_THAT_ENDS = 9 };

struct shard_engine {
    bool is_open[N_SESSIONS];
    uint32_t lengths[N_SESSIONS];
    float rows[MAX_BATCH * N_VOCAB];
};

/* What a test changes in the description. */
static const char *boundary;
static uint32_t all_cells, session_cells;
static bool can_trim;
static uint32_t layers_here, layers_of_all; /* 0: as a whole model */

/* What the last open asked for, and what was copied of it. */
static shard_sampling asked;
static char asked_grammar[64];
static shard_logit_bias asked_bias[4];
static shard_params load_params;
static char load_numa[SHARD_NAME_SIZE];

static struct shard_engine the_engine;
static unsigned n_steps;
static unsigned n_closed;
static uint32_t n_entries_of_step[64];
static uint32_t stages_told;

/* What the test does to a step, by its number from 1; SHARD_OK lets it be computed. The first
 * `n_done_before` entries are computed in any case, as those of earlier calls are. */
static shard_status (*step_fault)(unsigned step);
static uint32_t n_done_before;

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
    load_params = *params;
    snprintf(load_numa, sizeof(load_numa), "%s", params->numa != NULL ? params->numa : "none");
    memset(&the_engine, 0, sizeof(the_engine));
    *out = &the_engine;
    return SHARD_OK;
}

static shard_status engine_estimate(const shard_params *params, shard_memory *memory,
                                    shard_error *error) {
    if (!params->on_progress("slice", 0, 1, params->user_data)) {
        return say(error, SHARD_ERR_CANCELLED);
    }
    *memory = (shard_memory){1000, 100, params->max_sessions};
    return SHARD_OK;
}

static void engine_close(shard_engine *engine) {
    (void)engine;
    n_closed++;
}

static void engine_describe(const shard_engine *engine, shard_description *description) {
    (void)engine;
    *description = (shard_description){
        .layer_end = layers_here,
        .recipe.prefill_chunk = CHUNK,
        .n_layer = layers_of_all,
        .n_embd = 1,
        .n_vocab = N_VOCAB,
        .n_embd_out = N_VOCAB,
        .has_token_embedding = true,
        .has_output_head = true,
        .memory.weights_bytes = 100,
        .max_sessions = N_SESSIONS,
        .kv_cells = all_cells,
        .session_cells = session_cells,
        .max_batch = MAX_BATCH,
        .can_trim = can_trim,
    };
    snprintf(description->recipe.boundary, SHARD_NAME_SIZE, "%s", boundary);
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
    asked = *sampling;
    snprintf(asked_grammar, sizeof(asked_grammar), "%s",
             sampling->grammar != NULL ? sampling->grammar : "");
    for (uint32_t i = 0; i < sampling->n_logit_bias; i++) {
        asked_bias[i] = sampling->logit_bias[i];
    }
    for (*out = 0; *out < N_SESSIONS; ++*out) {
        if (!engine->is_open[*out]) {
            engine->is_open[*out] = true;
            engine->lengths[*out] = 0;
            return SHARD_OK;
        }
    }
    return say(error, SHARD_ERR_CAPACITY);
}

static shard_status engine_session_fork(shard_engine *engine, shard_session_id source,
                                        uint32_t position, const shard_sampling *sampling,
                                        shard_session_id *out, uint32_t *kv_cells_taken,
                                        shard_error *error) {
    if (position > engine->lengths[source]) {
        return say(error, SHARD_ERR_POSITION);
    }
    shard_status status = engine_session_open(engine, sampling, out, error);
    if (status == SHARD_OK) {
        engine->lengths[*out] = position;
        *kv_cells_taken = position;
    }
    return status;
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
    if (!can_trim && position != 0 && position != engine->lengths[session]) {
        return say(error, SHARD_ERR_UNSUPPORTED);
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
static void give_logits(shard_step_entry *entry, float *rows) {
    for (uint32_t i = 0; i < entry->n_rows; i++) {
        rows[N_VOCAB * i] = (float)(entry->position + i);
        rows[N_VOCAB * i + 1] = (float)entry->tokens[i];
    }
    entry->rows = rows;
    entry->n_columns_out = N_VOCAB;
    entry->value_bytes = sizeof(float);
}

/* What follows a token is the next one. */
static void draw(shard_step_entry *entry) {
    if (entry->output == SHARD_OUTPUT_TOKEN) {
        entry->token = entry->tokens[entry->n_rows - 1] + 1;
        entry->end_of_generation = entry->token == TOKEN_THAT_ENDS;
    }
}

/* A hidden row goes out as it came in: two bytes, to which its token is added where there is one.
 */
static void give_hidden(shard_step_entry *entry, uint16_t *rows) {
    const uint16_t *values = entry->hidden;
    CHECK((uintptr_t)values % sizeof(*values) == 0);
    for (uint32_t i = 0; i < entry->n_rows; i++) {
        rows[i] = (uint16_t)(values[i] + (entry->tokens != NULL ? entry->tokens[i] : 0));
    }
    entry->rows = rows;
    entry->n_columns_out = 1;
    entry->value_bytes = sizeof(*values);
}

static void compute_entry(shard_engine *engine, shard_step_entry *entry, float *rows) {
    if (entry->hidden != NULL) {
        give_hidden(entry, (uint16_t *)(void *)rows);
    } else {
        give_logits(entry, rows);
        draw(entry);
    }
    engine->lengths[entry->session] += entry->n_rows;
    entry->status = SHARD_OK;
    entry->n_rows_out = entry->n_rows;
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
        bool is_lost = status != SHARD_OK && i >= n_done_before;
        CHECK(entry->n_rows <= CHUNK);
        if (is_lost || entry->position != engine->lengths[entry->session]) {
            entry->status = say(&entry->error, is_lost ? status : SHARD_ERR_POSITION);
            continue;
        }
        compute_entry(engine, entry, rows);
        rows += entry->n_rows * N_VOCAB;
    }
    return say(error, status);
}

/* What the test wants the template to be: so many bytes, all the same. */
static uint32_t template_bytes;
static char template_byte;
static char template_name[SHARD_NAME_SIZE];

static shard_status engine_chat_template(shard_engine *engine, const char *name, char *text,
                                         uint32_t capacity, uint32_t *n_bytes, shard_error *error) {
    (void)engine;
    snprintf(template_name, sizeof(template_name), "%s", name != NULL ? name : "none");
    *n_bytes = template_bytes;
    if (template_bytes > capacity) {
        return say(error, SHARD_ERR_CAPACITY);
    }
    memset(text, template_byte, template_bytes);
    return SHARD_OK;
}

static uint64_t engine_progress(const shard_engine *engine) {
    (void)engine;
    return n_steps;
}

static const shard_engine_api API = {
    .abi_version = SHARD_ENGINE_ABI_VERSION,
    .name = "test",
    .default_params = engine_default_params,
    .estimate = engine_estimate,
    .open = engine_open,
    .close = engine_close,
    .describe = engine_describe,
    .kv_cells_used = engine_kv_cells_used,
    .session_open = engine_session_open,
    .session_fork = engine_session_fork,
    .session_length = engine_session_length,
    .session_trim = engine_session_trim,
    .session_close = engine_session_close,
    .step = engine_step,
    .chat_template = engine_chat_template,
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
    post(REQUEST_LOAD, (struct request){.as.load = {.model = {"test", 4},
                                                    .numa = {"isolate", 7},
                                                    .max_sessions = 4,
                                                    .memory_available = 1000,
                                                    .n_stages = stages_told}});
}

/* A request whose sampling, fork and so on are the caller's. */
static void post_open_as(struct request request) {
    shard_description description;
    struct identity identity;
    engine_describe(NULL, &description);
    identity_of(&description, &identity);
    identity_claim_all(&request.as.open.identity, &identity);
    request.as.open.identity.present |= 1;
    post(REQUEST_OPEN, request);
}

static void post_open(void) {
    post_open_as((struct request){.id = 0});
}

static void post_fork(uint64_t source, uint32_t position) {
    post_open_as((struct request){.as.open = {.source = source, .position = position}});
}

/* Tokens 1, 2, 3, ... as msgpack has them. */
static const uint8_t TOKENS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static void post_forward(uint64_t session, uint32_t position, uint32_t n_rows,
                         shard_output output) {
    post(REQUEST_FORWARD, (struct request){.as.forward = {.session = session,
                                                          .position = position,
                                                          .tokens = {TOKENS, n_rows, n_rows},
                                                          .output = output}});
}

static void post_after_draw(uint64_t session, uint32_t position, shard_output output) {
    post(REQUEST_FORWARD, (struct request){.as.forward = {.session = session,
                                                          .position = position,
                                                          .after_draw = true,
                                                          .output = output}});
}

static void post_trim(uint64_t session, uint32_t position) {
    post(REQUEST_TRIM, (struct request){.as.trim = {session, position}});
}

static void start(shard_status (*fault)(unsigned step)) {
    int ends[2];
    step_fault = fault;
    n_done_before = 0;
    boundary = "f32";
    all_cells = 1000;
    session_cells = 1000;
    can_trim = true;
    layers_here = layers_of_all = 0;
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
    CHECK_INT(execution.cells_promised, 0);
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

/* `expected` NULL: the error has no such field. */
static void expect_field(const char *key, const char *expected) {
    struct failure failure;
    struct decode_map inner;
    failure_clear(&failure);
    struct decode_fields fields = {&map, &failure};
    decode_inner(&fields, "fields", &inner);
    const struct decode_value *value = decode_find(&inner, key);
    if (expected == NULL) {
        CHECK(value == NULL);
    } else if (CHECK(value != NULL)) {
        CHECK_BYTES(key, value->data, value->size, expected, strlen(expected));
    }
}

static void expect_freed(const char *kv_cells) {
    expect_field("kv_cells_freed", kv_cells);
}

/* Loads and opens `n_sessions` sessions; the thread runs afterwards. */
static void load_with_sessions(int n_sessions) {
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

static void start_with_sessions(shard_status (*fault)(unsigned step), int n_sessions) {
    start(fault);
    load_with_sessions(n_sessions);
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

/* The engine computes a step in several calls; the cancel falls into the second of them. */
static void test_cancel_leaves_the_entries_of_earlier_calls(void) {
    check_subject("earlier calls");
    start_with_sessions(first_two_wait, 3);
    post_forward(3, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    post_forward(1, 0, 1, SHARD_OUTPUT_LOGITS);
    post_forward(2, 0, 4, SHARD_OUTPUT_NONE);
    cancel(5);
    expect_error(5, "cancelled");
    wait_for_step();
    n_done_before = 1;
    cancel(7);
    expect(6, "result");
    CHECK_INT(number("length"), 1);
    expect_error(7, "cancelled");
    expect_freed("0");
    CHECK_INT(the_engine.lengths[0], 1);
    CHECK_INT(the_engine.lengths[1], 0);
    join();
}

/* The cancel comes too late for the request that it names, and hits another of the step. */
static void test_cancel_of_an_entry_that_is_done_hits_nobody(void) {
    check_subject("done already");
    start_with_sessions(first_two_wait, 3);
    post_forward(3, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    post_forward(1, 0, 1, SHARD_OUTPUT_LOGITS);
    post_forward(2, 0, 4, SHARD_OUTPUT_NONE);
    cancel(5);
    expect_error(5, "cancelled");
    wait_for_step();
    n_done_before = 1;
    cancel(6);
    expect(6, "result");
    expect(7, "result");
    CHECK_INT(number("length"), 4);
    CHECK_INT(n_steps, 3);
    CHECK_INT(n_entries_of_step[2], 1);
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

static void check_long_forward(shard_output output, const char *key) {
    start_with_sessions(NULL, 1);
    post_forward(1, 0, 10, output);
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
    const struct decode_value *rows = decode_find(&map, key);
    if (CHECK(rows != NULL)) {
        CHECK_BYTES("rows", rows->data, rows->size, expected, sizeof(expected));
    }
    CHECK_INT(state.rows, 10);
    CHECK_INT(state.kv_cells_used, 10);
    CHECK_INT(state.sessions, 1);
    join();
    CHECK_INT(atomic_load(&replies.n_requests), 3);
    CHECK_INT(atomic_load(&replies.n_errors), 0);
}

static shard_status first_waits(unsigned step) {
    return step == 1 ? wait_for_cancel() : SHARD_OK;
}

/* Four sessions decode in a shard of some layers; `expected` are the rows of each step. */
static void check_steps(uint32_t n_layers, uint32_t of, const uint32_t *expected) {
    start(first_waits);
    layers_here = n_layers;
    layers_of_all = of;
    load_with_sessions(4);
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    /* These wait for the first step to end. */
    for (uint64_t session = 2; session <= 4; session++) {
        post_forward(session, 0, 1, SHARD_OUTPUT_NONE);
    }
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    cancel(6);
    expect_error(6, "cancelled");
    for (uint64_t id = 7; id <= 10; id++) {
        expect(id, "result");
    }
    join();
    uint32_t n_rows = 0;
    for (unsigned step = 1; step < n_steps; step++) {
        CHECK_INT(n_entries_of_step[step], expected[step - 1]);
        n_rows += n_entries_of_step[step];
    }
    CHECK_INT(n_rows, 4);
}

static void test_stage_leaves_rows_for_the_other_stages(void) {
    check_subject("whole model");
    check_steps(12, 12, (const uint32_t[]){4});
    check_subject("most of the layers");
    check_steps(11, 12, (const uint32_t[]){2, 2});
    check_subject("half of the layers");
    check_steps(6, 12, (const uint32_t[]){2, 2});
    check_subject("rather one of three than of four");
    check_steps(4, 14, (const uint32_t[]){2, 2});
    check_subject("rather one of four than of three");
    check_steps(4, 15, (const uint32_t[]){1, 1, 1, 1});
    check_subject("a layer");
    check_steps(1, 12, (const uint32_t[]){1, 1, 1, 1});
}

static void test_stage_that_is_told_of_how_many_does_not_guess(void) {
    check_subject("a layer, one of two stages");
    stages_told = 2;
    check_steps(1, 12, (const uint32_t[]){2, 2});
    check_subject("half of the layers, and no other stage");
    stages_told = 1;
    check_steps(6, 12, (const uint32_t[]){4});
    stages_told = 0;
}

/* Three sessions had a row in the last step and ask for nothing more. */
static void test_row_waits_for_others_in_vain_and_not_for_long(void) {
    check_subject("sessions that ask for nothing more");
    start(NULL);
    execution.decode_step_us = UINT64_MAX; /* so that the wait is as long as one can be */
    load_with_sessions(4);
    for (uint64_t session = 1; session <= 4; session++) {
        post_forward(session, 0, 1, SHARD_OUTPUT_NONE);
    }
    for (uint64_t id = 6; id <= 9; id++) {
        expect(id, "result");
    }
    post_forward(1, 1, 1, SHARD_OUTPUT_NONE);
    expect(10, "result");
    CHECK_INT(n_entries_of_step[n_steps - 1], 1);
    join();
}

static void test_long_forward_is_computed_in_pieces(void) {
    check_subject("pieces");
    check_long_forward(SHARD_OUTPUT_LOGITS_ALL, "logits");
    check_subject("pieces of embeddings");
    check_long_forward(SHARD_OUTPUT_EMBEDDING, "embedding");
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

/* Recurrent state cannot go back to the middle of a session. */
static void test_undoing_what_cannot_be_trimmed_closes_the_session(void) {
    check_subject("not undone");
    start(third_waits);
    can_trim = false;
    load_with_sessions(1);
    post_forward(1, 0, 2, SHARD_OUTPUT_NONE);
    expect(3, "result");
    post_forward(1, 2, 8, SHARD_OUTPUT_NONE);
    wait_for_step();
    cancel(4);
    expect_error(4, "cancelled");
    expect_freed("6");
    expect_field("session_closed", "1");
    CHECK_INT(state.sessions, 0);
    CHECK_INT(state.kv_cells_used, 0);
    post_forward(1, 2, 1, SHARD_OUTPUT_NONE);
    expect_error(5, "no_session");
    join();
}

static void test_undoing_to_the_start_needs_no_trim(void) {
    check_subject("undone to 0");
    start(third_waits);
    can_trim = false;
    load_with_sessions(1);
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    wait_for_step();
    cancel(3);
    expect_error(3, "cancelled");
    expect_freed("8");
    expect_field("session_closed", NULL);
    CHECK_INT(state.sessions, 1);
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

static shard_status first_waits_and_second_breaks_late(unsigned step) {
    n_done_before = step == 2 ? 1 : 0;
    return step == 1 ? wait_for_cancel() : step == 2 ? SHARD_ERR_BACKEND : SHARD_OK;
}

/* Only the last call of the step breaks: what came before is answered. */
static void test_broken_backend_leaves_the_entries_of_earlier_calls(void) {
    check_subject("backend, later call");
    start_with_sessions(first_waits_and_second_breaks_late, 3);
    post_forward(3, 0, 1, SHARD_OUTPUT_NONE);
    wait_for_step();
    post_forward(1, 0, 1, SHARD_OUTPUT_LOGITS);
    post_forward(2, 0, 4, SHARD_OUTPUT_NONE);
    cancel(5);
    expect_error(5, "cancelled");
    expect(6, "result");
    expect_error(7, "backend");
    post_forward(1, 1, 1, SHARD_OUTPUT_NONE);
    expect_error(8, "backend");
    CHECK_INT(n_closed, 1);
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

/* ---- what a forward brings and takes ---- */

/* Six rows of one 16-bit value, at an odd address. */
static const uint8_t ODD_ROWS[] = {0, 10, 0, 20, 0, 30, 0, 40, 0, 50, 0, 60, 0};

static void post_hidden(uint64_t session, uint32_t n_tokens, size_t n_bytes) {
    const struct decode_text rows = {(const char *)ODD_ROWS + 1, n_bytes};
    post(REQUEST_FORWARD, (struct request){.as.forward = {.session = session,
                                                          .tokens = {TOKENS, n_tokens, n_tokens},
                                                          .hidden = rows,
                                                          .output = SHARD_OUTPUT_HIDDEN}});
}

static void expect_halves(const uint16_t expected[6]) {
    const struct decode_value *rows = decode_find(&map, "hidden");
    CHECK_INT(number("rows"), 6);
    CHECK_INT(number("columns"), 1);
    CHECK(text_is("dtype", "f16"));
    CHECK_BYTES("rows", rows->data, rows->size, expected, 6 * sizeof(*expected));
}

static void test_rows_of_two_bytes_and_their_tokens(void) {
    check_subject("two bytes");
    start(NULL);
    boundary = "f16";
    load_with_sessions(2);
    post_hidden(1, 0, 12);
    expect(4, "result");
    expect_halves((const uint16_t[]){10, 20, 30, 40, 50, 60});
    post_hidden(2, 6, 12);
    expect(5, "result");
    expect_halves((const uint16_t[]){11, 22, 33, 44, 55, 66});
    CHECK_INT(n_steps, 4);
    join();
}

static void test_rows_that_are_wrong_are_refused(void) {
    check_subject("wrong rows");
    start(NULL);
    boundary = "f16";
    load_with_sessions(1);
    post_hidden(1, 0, 11);
    expect_error(3, "bad_message");
    expect_field("n_embd", "1");
    post_hidden(1, 5, 12);
    expect_error(4, "bad_message");
    expect_field("tokens", "5");
    expect_field("rows", "6");
    CHECK_INT(n_steps, 0);
    join();
}

static void test_forward_that_would_not_fit_is_refused_before_its_first_piece(void) {
    check_subject("no room");
    start(NULL);
    session_cells = 8;
    load_with_sessions(1);
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    expect_error(3, "capacity");
    expect_field("needed", "10");
    expect_field("available", "8");
    CHECK_INT(n_steps, 0);
    post_forward(1, 5, 10, SHARD_OUTPUT_NONE); /* a gap is told as one */
    expect_error(4, "position");
    post_forward(1, 0, 8, SHARD_OUTPUT_NONE);
    expect(5, "result");
    join();
}

/* Of a forward in pieces, the rows that are not computed yet have their KV cells already. */
static void test_cells_of_later_pieces_are_kept(void) {
    check_subject("kept cells");
    start(NULL);
    all_cells = 12;
    post_load();
    post_open();
    post_open();
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    post_forward(2, 0, 4, SHARD_OUTPUT_NONE); /* its turn is between the pieces of the other */
    run();
    expect(1, "loaded");
    expect(2, "opened");
    expect(3, "opened");
    expect_error(5, "capacity");
    expect_field("needed", "4");
    expect_field("available", "2");
    expect(4, "result");
    post_forward(2, 0, 2, SHARD_OUTPUT_NONE);
    expect(6, "result");
    join();
}

/* ---- opening ---- */

static void expect_token(uint64_t id, int32_t token, uint32_t length) {
    expect(id, "result");
    CHECK_INT(number("token"), token);
    CHECK_INT(number("length"), length);
}

/* They came before anybody knew the tokens. */
static void test_rows_after_a_draw(void) {
    check_subject("after a draw");
    start_with_sessions(NULL, 2);
    post_forward(2, 0, 2, SHARD_OUTPUT_TOKEN);
    post_forward(1, 0, 5, SHARD_OUTPUT_TOKEN); /* in two pieces */
    post_after_draw(1, 5, SHARD_OUTPUT_TOKEN);
    post_after_draw(2, 2, SHARD_OUTPUT_TOKEN);
    post_after_draw(1, 6, SHARD_OUTPUT_LOGITS);
    static const int32_t tokens[] = {3, 6, 7, 4};
    static const uint32_t lengths[] = {2, 5, 6, 3};
    for (uint64_t done = 0; done < 4; done++) {
        next_answer();
        CHECK(text_is("type", "result"));
        const uint64_t request = number("id") - 4;
        if (CHECK(request < 4)) {
            CHECK_INT(number("token"), tokens[request]);
            CHECK_INT(number("length"), lengths[request]);
            CHECK(number("queue_us") < 60000000);
        }
    }
    expect(8, "result");
    const struct decode_value *logits = decode_find(&map, "logits");
    static const float expected[] = {6, 7};
    if (CHECK(logits != NULL)) {
        CHECK_BYTES("the row", logits->data, logits->size, expected, sizeof(expected));
    }
    join();
}

static void test_row_without_a_draw_is_refused(void) {
    check_subject("no draw");
    start_with_sessions(NULL, 1);
    post_after_draw(1, 0, SHARD_OUTPUT_TOKEN);
    expect_error(3, "no_draw");
    expect_field("session", "1");
    expect_field("position", "0");
    post_forward(1, 0, 3, SHARD_OUTPUT_NONE);
    expect(4, "result");
    post_after_draw(1, 3, SHARD_OUTPUT_TOKEN);
    expect_error(5, "no_draw");
    post_forward(1, 3, 3, SHARD_OUTPUT_TOKEN);
    expect_token(6, 4, 6);
    post_after_draw(1, 7, SHARD_OUTPUT_TOKEN);
    expect_error(7, "no_draw");
    expect_field("position", "7");
    post_trim(1, 6);
    expect(8, "trimmed");
    post_after_draw(1, 6, SHARD_OUTPUT_TOKEN);
    expect_error(9, "no_draw");
    CHECK_INT(n_steps, 2);
    join();
}

static void test_row_after_a_draw_that_ends_is_refused(void) {
    check_subject("a draw that ends");
    start_with_sessions(NULL, 1);
    post_forward(1, 0, TOKEN_THAT_ENDS - 1, SHARD_OUTPUT_TOKEN);
    expect_token(3, TOKEN_THAT_ENDS, TOKEN_THAT_ENDS - 1);
    post_after_draw(1, TOKEN_THAT_ENDS - 1, SHARD_OUTPUT_TOKEN);
    expect_error(4, "no_draw");
    CHECK_INT(n_steps, 2);
    join();
}

/* The session is as it was before the request, what it drew included. */
static void test_draw_outlives_a_forward_that_was_cancelled(void) {
    check_subject("a draw and a cancel");
    start_with_sessions(second_waits, 1);
    post_forward(1, 0, 2, SHARD_OUTPUT_TOKEN);
    expect_token(3, 3, 2);
    post_after_draw(1, 2, SHARD_OUTPUT_TOKEN);
    wait_for_step();
    post_after_draw(1, 3, SHARD_OUTPUT_TOKEN);
    cancel(4);
    expect_error(4, "cancelled");
    expect_error(5, "no_draw");
    post_after_draw(1, 2, SHARD_OUTPUT_TOKEN);
    expect_token(6, 4, 3);
    join();
}

static void test_sampling_reaches_the_engine(void) {
    check_subject("sampling");
    start(NULL);
    static const uint8_t BIASES[] = {0x92, 7, 1, 0x92, 9, 0xFF};
    struct request request = {
        .as.open.sampling = {.numbers = {.temperature = 0.5f, .seed = 3, .top_logprobs = 2},
                             .logit_bias = {BIASES, sizeof(BIASES), 2},
                             .grammar = {"root ::= x.", 10}}};
    post_load();
    post_open_as(request);
    post_open();
    run();
    expect(1, "loaded");
    expect(2, "opened");
    expect(3, "opened");
    join();
    CHECK(asked.temperature == 0.0f);
    CHECK_TEXT(asked_grammar, "");
    CHECK_INT(asked.n_logit_bias, 0);
    CHECK_INT(asked_bias[0].token, 7);
    CHECK(asked_bias[0].bias == 1.0f);
    CHECK_INT(asked_bias[1].token, 9);
    CHECK(asked_bias[1].bias == -1.0f);
}

static void test_grammar_reaches_the_engine_as_a_string(void) {
    check_subject("grammar");
    start(NULL);
    struct request request = {.as.open.sampling = {.grammar = {"root ::= x.", 10}}};
    post_load();
    post_open_as(request);
    run();
    expect(1, "loaded");
    expect(2, "opened");
    join();
    CHECK_TEXT(asked_grammar, "root ::= x");
}

static void test_fork_begins_with_the_rows_of_its_source(void) {
    check_subject("fork");
    start_with_sessions(NULL, 1);
    /* It waits for the forward before it, and the forward behind it waits for the fork. */
    post_forward(1, 0, 10, SHARD_OUTPUT_NONE);
    post_fork(1, 9);
    post_forward(1, 10, 1, SHARD_OUTPUT_NONE);
    expect(3, "result");
    expect(4, "opened");
    CHECK_INT(number("session"), 2);
    CHECK_INT(number("length"), 9);
    CHECK_INT(number("kv_cells"), 9);
    expect(5, "result");
    post_forward(2, 9, 1, SHARD_OUTPUT_LOGITS);
    expect(6, "result");
    CHECK_INT(number("length"), 10);
    post_fork(1, 12);
    expect_error(7, "position");
    post_fork(9, 0);
    expect_error(8, "no_session");
    expect_field("session", "9");
    CHECK_INT(state.sessions, 2);
    join();
}

/* ---- estimating ---- */

static void post_estimate(void) {
    post(REQUEST_ESTIMATE, (struct request){.as.load = {.model = {"test", 4}, .max_sessions = 7}});
}

static void expect_estimate(uint64_t id) {
    struct decode_map memory;
    struct failure failure;
    expect(id, "estimated");
    failure_clear(&failure);
    struct decode_fields fields = {&map, &failure};
    decode_inner(&fields, "memory", &memory);
    CHECK_INT(decode_find(&memory, "weights_bytes")->integer, 1000);
    CHECK_INT(decode_find(&memory, "kv_bytes")->integer, 100);
    CHECK_INT(decode_find(&memory, "compute_bytes")->integer, 7);
}

/* ---- chat templates ---- */

static void post_chat_template(struct decode_text name, uint32_t n_bytes, char byte) {
    template_bytes = n_bytes;
    template_byte = byte;
    post(REQUEST_CHAT_TEMPLATE, (struct request){.as.chat_template = {name}});
}

static void expect_template(uint64_t id, uint32_t n_bytes) {
    expect(id, "chat_template");
    const struct decode_value *text = decode_find(&map, "template");
    CHECK_INT(text->size, n_bytes);
    for (uint32_t i = 0; i < n_bytes; i++) {
        CHECK(text->data[i] == 'x');
    }
}

static void test_chat_template_of_any_length(void) {
    check_subject("chat template");
    start(NULL);
    post_chat_template((struct decode_text){NULL, 0}, 1, 'x');
    run();
    expect_error(1, "not_loaded");
    post_load();
    expect(2, "loaded");
    post_chat_template((struct decode_text){NULL, 0}, 0, 'x');
    expect_template(3, 0);
    CHECK_TEXT(template_name, "none");
    post_chat_template((struct decode_text){"tool_use and more", 8}, 20000, 'x');
    expect_template(4, 20000);
    CHECK_TEXT(template_name, "tool_use");
    post_chat_template((struct decode_text){NULL, 0}, 1 << 20, 'x'); /* as long as a frame */
    expect_error(5, "bad_message");
    post_chat_template((struct decode_text){NULL, 0}, 5, '\xff');
    expect_error(6, "malformed");
    join();
}

static void test_estimate_disturbs_nothing(void) {
    check_subject("estimate");
    start(NULL);
    post_estimate();
    post_load();
    post_open();
    post_estimate();
    post_forward(1, 0, 1, SHARD_OUTPUT_NONE);
    run();
    expect_estimate(1);
    expect(2, "loaded");
    expect(3, "opened");
    expect_estimate(4);
    expect(5, "result");
    CHECK_INT(load_params.memory_available, 1000);
    CHECK_TEXT(load_numa, "isolate");
    join();
}

int main(void) {
    alarm(50); /* a wait that never ends fails the test */
    test_cancelled_step_runs_again_for_the_innocent();
    test_cancel_leaves_the_entries_of_earlier_calls();
    test_cancel_of_an_entry_that_is_done_hits_nobody();
    test_step_that_nobody_cancelled_does_not_run_for_ever();
    test_stage_leaves_rows_for_the_other_stages();
    test_stage_that_is_told_of_how_many_does_not_guess();
    test_row_waits_for_others_in_vain_and_not_for_long();
    test_long_forward_is_computed_in_pieces();
    test_failure_of_a_later_piece_undoes_the_earlier_ones();
    test_cancel_of_a_later_piece_says_what_it_freed();
    test_undoing_what_cannot_be_trimmed_closes_the_session();
    test_undoing_to_the_start_needs_no_trim();
    test_failed_entry_leaves_the_rows_of_others();
    test_broken_backend_is_closed_and_refuses_all();
    test_broken_backend_leaves_the_entries_of_earlier_calls();
    test_stop_resolves_a_forward_between_its_pieces();
    test_requests_before_a_load();
    test_session_numbers_are_never_used_twice();
    test_rows_of_two_bytes_and_their_tokens();
    test_rows_that_are_wrong_are_refused();
    test_forward_that_would_not_fit_is_refused_before_its_first_piece();
    test_cells_of_later_pieces_are_kept();
    test_rows_after_a_draw();
    test_row_without_a_draw_is_refused();
    test_row_after_a_draw_that_ends_is_refused();
    test_draw_outlives_a_forward_that_was_cancelled();
    test_sampling_reaches_the_engine();
    test_grammar_reaches_the_engine_as_a_string();
    test_fork_begins_with_the_rows_of_its_source();
    test_chat_template_of_any_length();
    test_estimate_disturbs_nothing();
    return check_verdict();
}
