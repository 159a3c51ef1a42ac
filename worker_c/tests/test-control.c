/* The control thread, with nobody behind it who executes: what it answers by itself, what it
 * queues, and how each end of the stream ends it. */
#include "bounds.h"
#include "check.h"
#include "control.h"
#include "decode.h"
#include "exit_status.h"
#include "golden.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const shard_engine_api API = {.name = "test"};

static struct wake wake;
static struct transport transport;
static struct replies replies;
static struct state state;
static struct control control;
static pthread_t thread;
static int questions; /* the host's ends */
static int answers;
static int status;

static void *run_control(void *unused) {
    status = control_run(&control);
    return unused;
}

static void start(void) {
    int in[2];
    int out[2];
    if (pipe(in) != 0 || pipe(out) != 0 || !wake_open(&wake)) {
        abort();
    }
    questions = in[1];
    answers = out[0];
    memset(&transport, 0, sizeof(transport));
    transport.in = in[0];
    transport.out = out[1];
    transport.wake = &wake;
    pthread_mutex_init(&transport.lock, NULL);
    replies_init(&replies, &transport, FRAME_BYTES_DEFAULT);
    state_init(&state, &API, FRAME_BYTES_DEFAULT, 0);
    control = (struct control){
        .state = &state, .replies = &replies, .transport = &transport, .wake = &wake};
    pthread_create(&thread, NULL, run_control, NULL);
}

/* As the execution thread does when it has closed its engine. */
static void finish(void) {
    atomic_store(&state.is_finished, true);
    wake_ring(&wake);
}

static int end(void) {
    pthread_join(thread, NULL);
    struct job *job;
    while ((job = state.jobs.first) != NULL) {
        state_take(&state, job);
        job_free(job);
    }
    close(questions);
    close(answers);
    transport_close(&transport);
    state_free(&state);
    wake_close(&wake);
    return status;
}

/* ---- the host
 * ------------------------------------------------------------------------------------ */

static uint8_t body[1 << 16];
static struct decode_map map;

static void ask_bytes(const void *bytes, size_t size) {
    CHECK_INT(write(questions, bytes, size), size);
}

/* A request of a type, an id, and perhaps one more key with a small integer. */
static void ask(const char *type, uint8_t id, const char *key, uint8_t value) {
    struct encoder encoder;
    uint8_t storage[256];
    encode_start_fixed(&encoder, storage, sizeof(storage));
    encode_map(&encoder, NULL, key != NULL ? 3 : 2);
    encode_text(&encoder, "type", type);
    encode_uint(&encoder, "id", id);
    if (key != NULL) {
        encode_uint(&encoder, key, value);
    }
    CHECK(encode_finish(&encoder));
    ask_bytes(encoder.data, encoder.size);
}

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

/* `id` 0: nil. */
static void expect(uint64_t id, const char *type) {
    uint8_t header[FRAME_HEADER_SIZE];
    struct failure failure;
    failure_clear(&failure);
    read_exactly(header, sizeof(header));
    size_t size = (size_t)header[4] | (size_t)header[5] << 8;
    read_exactly(body, size);
    CHECK(decode_body(body, size, &map, &failure));
    CHECK(text_is("type", type));
    const struct decode_value *found = decode_find(&map, "id");
    CHECK_INT(found->kind, id == 0 ? DECODE_NIL : DECODE_UINT);
    CHECK_INT(found->integer, id);
}

static void expect_error(uint64_t id, const char *code) {
    expect(id, "error");
    CHECK(text_is("code", code));
}

/* ---- tests
 * --------------------------------------------------------------------------------------- */

static void test_control_answers_while_others_wait(void) {
    check_subject("answers");
    start();
    ask("close", 1, "session", 1);
    ask("ping", 2, NULL, 0);
    expect(2, "pong");
    ask("health", 3, NULL, 0);
    expect(3, "health");
    CHECK(text_is("state", "idle"));
    CHECK_INT(decode_find(&map, "queued")->integer, 1);
    CHECK_INT(decode_find(&map, "requests")->integer, 1);
    ask("cancel", 4, "request", 1);
    expect(4, "cancelled");
    CHECK(text_is("state", "queued"));
    expect_error(1, "cancelled");
    ask("cancel", 5, "request", 1);
    expect(5, "cancelled");
    CHECK(text_is("state", "unknown"));
    finish();
    CHECK_INT(end(), 0);
}

static void test_control_refuses_an_id_in_use(void) {
    check_subject("id in use");
    start();
    ask("close", 1, "session", 1);
    ask("ping", 1, NULL, 0);
    expect_error(0, "bad_message");
    CHECK(state_has_request(&state, 1));
    finish();
    CHECK_INT(end(), 0);
}

static void test_control_shuts_down(void) {
    check_subject("shutdown");
    start();
    ask("close", 1, "session", 1);
    ask("shutdown", 2, NULL, 0);
    expect_error(1, "shutting_down");
    ask("close", 3, "session", 1);
    expect_error(3, "shutting_down");
    ask("shutdown", 4, NULL, 0);
    expect_error(4, "shutting_down");
    ask("ping", 5, NULL, 0);
    expect(5, "pong");
    ask("health", 6, NULL, 0);
    expect(6, "health");
    CHECK(text_is("state", "draining"));
    finish();
    CHECK_INT(end(), 0);
    CHECK_INT(control.shutdown_id, 2);
}

static void test_control_at_the_end_of_input(void) {
    static const uint8_t HALF[] = {0x47, 0x57, 1, 0, 9, 0, 0, 0, 0x81};
    for (int is_inside = 0; is_inside < 2; is_inside++) {
        check_subject(is_inside ? "end inside a frame" : "end between frames");
        start();
        ask("close", 1, "session", 1);
        ask_bytes(HALF, is_inside ? sizeof(HALF) : 0);
        close(questions);
        questions = dup(answers);
        expect_error(1, "shutting_down");
        CHECK(atomic_load(&state.is_stopping));
        finish();
        CHECK_INT(end(), 0);
        CHECK_INT(control.shutdown_id, 0);
    }
}

/* The host stops reading and says nothing: poll tells, without a frame to write. */
static void test_control_when_nobody_reads(void) {
    check_subject("nobody reads");
    start();
    close(answers);
    answers = dup(questions);
    pthread_mutex_lock(&state.lock);
    while (!atomic_load(&state.is_stopping)) {
        pthread_cond_wait(&state.work, &state.lock);
    }
    pthread_mutex_unlock(&state.lock);
    finish();
    CHECK_INT(end(), 0);
}

static unsigned n_bad;

static void check_bad(const struct golden *golden) {
    if (!golden->is_to_worker || strcmp(golden->verdict, "ok") == 0) {
        return;
    }
    check_subject(golden->name);
    n_bad++;
    start();
    ask_bytes(golden->bytes, golden->size);
    bool is_lost = strcmp(golden->verdict, "bad_frame") == 0;
    if (is_lost) {
        expect_error(0, "bad_frame");
        CHECK_INT(end(), STATUS_BAD_FRAME);
        return;
    }
    expect_error(strstr(golden->json, "\"id\": 1,") != NULL ||
                         strstr(golden->json, "\"id\": 1}") != NULL
                     ? 1
                     : 0,
                 "bad_message");
    ask("ping", 9, NULL, 0);
    expect(9, "pong");
    finish();
    CHECK_INT(end(), 0);
}

int main(void) {
    alarm(50); /* a wait that never ends fails the test */
    signal(SIGPIPE, SIG_IGN);
    test_control_answers_while_others_wait();
    test_control_refuses_an_id_in_use();
    test_control_shuts_down();
    test_control_at_the_end_of_input();
    test_control_when_nobody_reads();
    CHECK(golden_each(check_bad) > 0);
    CHECK(n_bad > 50);
    return check_verdict();
}
