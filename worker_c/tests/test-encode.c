/* Answers: the bytes of every golden frame to the host, from the values in it. */
#include "allocations.h"
#include "answer.h"
#include "bounds.h"
#include "check.h"
#include "decode.h"
#include "frame.h"
#include "golden.h"
#include "replies.h"
#include "utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the values of make_golden.py ---- */

#define FOUR(text) text text text text
#define THIRTY_TWO(text) FOUR(FOUR(text)) FOUR(FOUR(text))

static const char ARTIFACT[] = THIRTY_TWO("a1");
static const char SHARD[] = THIRTY_TWO("b2");

static const float ROWS[] = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, 4.0f, -8.0f, 0.25f};

static shard_description description(void) {
    shard_description value = {
        .layer_start = 4,
        .layer_end = 8,
        .recipe = {.n_ctx = 4096,
                   .n_batch = 512,
                   .n_ubatch = 256,
                   .prefill_chunk = 128,
                   .n_threads = 3,
                   .flash_attn = true,
                   .kv_unified = true,
                   .n_gpu_layers = -1,
                   .main_gpu = 1,
                   .split_mode = "none",
                   .type_k = "f16",
                   .type_v = "q8_0",
                   .boundary = "f32",
                   .rope_scaling = "yarn",
                   .rope_freq_base = 10000.0f,
                   .rope_freq_scale = 0.25f,
                   .yarn_ext_factor = 1.0f,
                   .yarn_attn_factor = 1.5f,
                   .yarn_beta_fast = 32.0f,
                   .yarn_beta_slow = -1.0f,
                   .yarn_orig_ctx = 2048},
        .architecture = "llama",
        .model_name = "A model",
        .n_layer = 8,
        .n_embd = 576,
        .n_vocab = 49152,
        .n_ctx_train = 8192,
        .n_embd_out = 576,
        .pooling = "last",
        .owned_layers = 4,
        .owned_tensors = 36,
        .owned_bytes = 5000000000,
        .has_output_head = true,
        .has_vocabulary = true,
        .memory.weights_bytes = 5000000000,
        .memory.kv_bytes = 67108864,
        .memory.compute_bytes = 1048576,
        .max_sessions = 16,
        .kv_cells = 4096,
        .max_batch = 512,
        .session_cells = 2048,
        .can_trim = true,
    };
    memcpy(value.artifact_sha256, ARTIFACT, sizeof(ARTIFACT));
    memcpy(value.shard_sha256, SHARD, sizeof(SHARD));
    return value;
}

/* ---- one writer per frame ---- */

static void write_hello(struct encoder *encoder) {
    static const char *const ENGINES[] = {"llama", "fake"};
    const shard_build build = {
        .engine = "llama",
        .engine_version = "0.1.0",
        .pinned_package = "0.3.36",
        .pinned_commit = "0c1e57098",
        .library_commit = "0c1e57098",
        .library_version = "0.5.0",
        .features = "CPU : SSE3 = 1 | AVX2 = 1",
        .n_devices = 1,
        .devices = {{"CPU", "A processor", "cpu", 8589934592, 4294967296}},
    };
    answer_hello(encoder, &(struct hello_answer){.max_frame_bytes = FRAME_BYTES_DEFAULT,
                                                 .pid = 4711,
                                                 .worker_version = "0.1.0",
                                                 .engines = ENGINES,
                                                 .n_engines = 2,
                                                 .build = &build});
}

static void write_pong(struct encoder *encoder) {
    answer_pong(encoder, 1);
}

static struct health_answer idle_health(void) {
    return (struct health_answer){
        .state = "idle", .phase = "", .rss_bytes = 12582912, .uptime_us = 1500};
}

static void write_health_idle(struct encoder *encoder) {
    struct health_answer health = idle_health();
    answer_health(encoder, 2, &health);
}

static void write_health_loading(struct encoder *encoder) {
    struct health_answer health = idle_health();
    health.state = "loading";
    health.phase = "load";
    health.phase_done = 10;
    health.phase_total = 20;
    health.progress = 3;
    answer_health(encoder, 2, &health);
}

static void write_health_ready(struct encoder *encoder) {
    struct health_answer health = idle_health();
    const shard_description loaded = description();
    health.state = "ready";
    health.progress = (uint64_t)1 << 40;
    health.description = &loaded;
    health.sessions = 2;
    health.kv_cells_used = 300;
    health.queued = 1;
    health.requests = 99;
    health.errors = 3;
    health.rows = 1000;
    health.tokens_sampled = 400;
    health.compute_us = 7000000;
    health.rss_before_load_bytes = 12000000;
    answer_health(encoder, 2, &health);
}

static void write_cancelled(struct encoder *encoder) {
    answer_cancelled(encoder, 3, 2, "running");
}

static void write_bye(struct encoder *encoder) {
    answer_bye(encoder, &(struct bye_answer){4, 2, 300, 5000000000, 67108864, 1048576});
}

static void write_bye_unasked(struct encoder *encoder) {
    answer_bye(encoder, &(struct bye_answer){.id = 0});
}

/* An artifact that is only said, for the writer of `inspected`. */
struct shard_artifact {
    bool is_slice;
};

static void artifact_info(const shard_artifact *artifact, shard_artifact_info *info) {
    *info = (shard_artifact_info){
        .architecture = "llama",
        .model_name = "A model",
        .quantization = "q4_1",
        .n_files = 2,
        .n_layer = 2,
        .n_embd = 576,
        .n_vocab = 49152,
        .n_ctx_train = 8192,
        .n_tensors = 21,
        .tensor_bytes = 3000060000,
        .embedding_bytes = 17694720,
        .head_bytes = 17697024,
        .tied_head = true,
        .is_slice = artifact->is_slice,
        .slice_end = 1,
        .supported = !artifact->is_slice,
        .cut_period = artifact->is_slice ? 0 : 1,
    };
    memcpy(info->artifact_sha256, ARTIFACT, sizeof(ARTIFACT));
    if (artifact->is_slice) {
        snprintf(info->reason, sizeof(info->reason), "architecture 'x' is not known here");
    }
}

static bool artifact_file(const shard_artifact *artifact, uint32_t index,
                          shard_artifact_file *file) {
    static const shard_artifact_file FILES[] = {
        {"/models/a-00001-of-00002.gguf", 3000000000, THIRTY_TWO("c3")},
        {"/models/a-00002-of-00002.gguf", 70000, THIRTY_TWO("d4")},
    };
    (void)artifact;
    *file = FILES[index];
    return true;
}

static uint64_t artifact_layer_bytes(const shard_artifact *artifact, uint32_t layer) {
    (void)artifact;
    return layer == 0 ? 1000000000 : 2000000000;
}

static const shard_engine_api ARTIFACT_API = {
    .artifact_info = artifact_info,
    .artifact_file = artifact_file,
    .artifact_layer_bytes = artifact_layer_bytes,
};

static void write_inspected(struct encoder *encoder) {
    answer_inspected(encoder, 5, &ARTIFACT_API, &(shard_artifact){.is_slice = false});
}

static void write_inspected_slice(struct encoder *encoder) {
    answer_inspected(encoder, 5, &ARTIFACT_API, &(shard_artifact){.is_slice = true});
}

static void write_sliced(struct encoder *encoder) {
    answer_sliced(encoder, 7, "/models/b.gguf", 1000000000);
}

static void write_loaded(struct encoder *encoder) {
    const shard_description loaded = description();
    answer_loaded(encoder, 9, &loaded, &(shard_vocabulary){49152, 1, 2, -1, 198, -1, true, false});
}

static void write_loaded_without_vocabulary(struct encoder *encoder) {
    const shard_description loaded = description();
    answer_loaded(encoder, 9, &loaded, NULL);
}

static void write_opened(struct encoder *encoder) {
    answer_opened(encoder, 11, 2, 0, 0);
}

static void write_opened_fork(struct encoder *encoder) {
    answer_opened(encoder, 27, 4, 200, 200);
}

static void write_estimated(struct encoder *encoder) {
    answer_estimated(encoder, 23, &(shard_memory){5000000000, 67108864, 1048576});
}

static struct result_answer result(shard_output output) {
    return (struct result_answer){.session = 2,
                                  .length = 5,
                                  .kv_cells = 2,
                                  .output = output,
                                  .queue_us = 40,
                                  .compute_us = 60000,
                                  .batch_rows = 3,
                                  .values = ROWS,
                                  .columns = 4,
                                  .value_bytes = 4,
                                  .dtype = "f32",
                                  .token = 198,
                                  .logprob = -0.5f,
                                  .text = " a\xc3",
                                  .n_text_bytes = 3};
}

static void write_rows(struct encoder *encoder, shard_output output, uint32_t rows) {
    struct result_answer answer = result(output);
    answer.rows = rows;
    answer_result(encoder, 14, &answer);
}

static void write_result_none(struct encoder *encoder) {
    write_rows(encoder, SHARD_OUTPUT_NONE, 0);
}

static void write_result_hidden(struct encoder *encoder) {
    write_rows(encoder, SHARD_OUTPUT_HIDDEN, 2);
}

static void write_halves(struct encoder *encoder, const char *dtype) {
    struct result_answer answer = result(SHARD_OUTPUT_HIDDEN);
    answer.rows = 2;
    answer.value_bytes = 2;
    answer.dtype = dtype;
    answer_result(encoder, 14, &answer);
}

static void write_result_hidden_f16(struct encoder *encoder) {
    write_halves(encoder, "f16");
}

static void write_result_hidden_bf16(struct encoder *encoder) {
    write_halves(encoder, "bf16");
}

static void write_result_logits(struct encoder *encoder) {
    write_rows(encoder, SHARD_OUTPUT_LOGITS, 1);
}

static void write_result_logits_all(struct encoder *encoder) {
    write_rows(encoder, SHARD_OUTPUT_LOGITS_ALL, 2);
}

static void write_result_embedding(struct encoder *encoder) {
    struct result_answer answer = result(SHARD_OUTPUT_EMBEDDING);
    answer.rows = 2;
    answer_result(encoder, 29, &answer);
}

static void write_result_token(struct encoder *encoder) {
    struct result_answer answer = result(SHARD_OUTPUT_TOKEN);
    answer_result(encoder, 15, &answer);
}

static void write_result_token_top(struct encoder *encoder) {
    static const char LONG[] = "long enough for a header of its own kind";
    const shard_candidate top[] = {{198, -0.5f, " a\xc3", 3},
                                   {7, -1.25f, NULL, 0},
                                   {70000, -INFINITY, LONG, sizeof(LONG) - 1}};
    struct result_answer answer = result(SHARD_OUTPUT_TOKEN);
    answer.top = top;
    answer.n_top = 3;
    answer_result(encoder, 15, &answer);
}

static void write_trimmed(struct encoder *encoder) {
    answer_trimmed(encoder, 16, 2, 2, 3);
}

static void write_closed(struct encoder *encoder) {
    answer_closed(encoder, 17, 2, 2);
}

static void write_tokenized(struct encoder *encoder) {
    static const int32_t TOKENS[] = {1, 300, 70000};
    answer_tokenized(encoder, 18, TOKENS, 3);
}

static void write_detokenized(struct encoder *encoder) {
    answer_detokenized(encoder, 20, "Hi\xc3", 3);
}

static void write_chat_template_text(struct encoder *encoder) {
    static const char TEXT[] = "{{ \xc3\xa4 }}";
    answer_chat_template(encoder, 30, TEXT, sizeof(TEXT) - 1);
}

static void write_chat_template_empty(struct encoder *encoder) {
    answer_chat_template(encoder, 31, "", 0);
}

static void write_token_infos(struct encoder *encoder) {
    static const shard_token_info INFOS[] = {{8, true, true}, {4, false, false}};
    answer_token_infos(encoder, 22, INFOS, 2);
}

static void write_progress(struct encoder *encoder) {
    answer_progress(encoder, 9, "digest", 65536, 4294967296);
}

static void write_error(struct encoder *encoder) {
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, "position", "the session has 2 rows; send position 2");
    failure_add(&failure, "expected", "%d", 2);
    failure_add(&failure, "actual", "%d", 5);
    answer_error(encoder, 14, &failure);
}

static void write_error_retryable(struct encoder *encoder) {
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_BUSY, "%d requests wait", 256);
    answer_error(encoder, 15, &failure);
}

static void write_error_of_no_request(struct encoder *encoder) {
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_BAD_FRAME, "no");
    answer_error(encoder, 0, &failure);
}

static const struct writer {
    const char *name;
    void (*write)(struct encoder *encoder);
} WRITERS[] = {
    {"hello", write_hello},
    {"pong", write_pong},
    {"health_idle", write_health_idle},
    {"health_loading", write_health_loading},
    {"health_ready", write_health_ready},
    {"cancelled", write_cancelled},
    {"bye", write_bye},
    {"bye_unasked", write_bye_unasked},
    {"inspected", write_inspected},
    {"inspected_slice", write_inspected_slice},
    {"sliced", write_sliced},
    {"loaded", write_loaded},
    {"loaded_without_vocabulary", write_loaded_without_vocabulary},
    {"estimated", write_estimated},
    {"opened", write_opened},
    {"opened_fork", write_opened_fork},
    {"result_none", write_result_none},
    {"result_hidden", write_result_hidden},
    {"result_hidden_f16", write_result_hidden_f16},
    {"result_hidden_bf16", write_result_hidden_bf16},
    {"result_logits", write_result_logits},
    {"result_logits_all", write_result_logits_all},
    {"result_embedding", write_result_embedding},
    {"result_token", write_result_token},
    {"result_token_top", write_result_token_top},
    {"trimmed", write_trimmed},
    {"closed", write_closed},
    {"tokenized", write_tokenized},
    {"detokenized", write_detokenized},
    {"token_infos", write_token_infos},
    {"chat_template_text", write_chat_template_text},
    {"chat_template_empty", write_chat_template_empty},
    {"progress", write_progress},
    {"error", write_error},
    {"error_retryable", write_error_retryable},
    {"error_of_no_request", write_error_of_no_request},
};

enum { N_WRITERS = sizeof(WRITERS) / sizeof(WRITERS[0]) };

/* ---- the checks ---- */

static const struct writer *find_writer(const char *name) {
    for (int i = 0; i < N_WRITERS; i++) {
        if (strcmp(WRITERS[i].name, name) == 0) {
            return &WRITERS[i];
        }
    }
    return NULL;
}

/* The frame as the transport writes it: the encoder's bytes, then its tail. */
static void check_frame(struct encoder *encoder, const struct golden *golden) {
    size_t size = encoder->size + encoder->tail_size;
    uint8_t *bytes = malloc(size);
    memcpy(bytes, encoder->data, encoder->size);
    if (encoder->tail_size > 0) {
        memcpy(bytes + encoder->size, encoder->tail, encoder->tail_size);
    }
    CHECK_BYTES("frame", bytes, size, golden->bytes, golden->size);
    free(bytes);
}

static void check_in_fixed_storage(const struct golden *golden, const struct writer *writer) {
    static reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    writer->write(&encoder);
    if (CHECK(encode_finish(&encoder))) {
        check_frame(&encoder, golden);
    }
    encode_free(&encoder);
}

/* Grows the frame and lets each allocation fail in turn. */
static void check_in_growing_storage(const struct golden *golden, const struct writer *writer) {
    bool has_failed = true;
    for (size_t fail_at = 1; has_failed && fail_at < 100; fail_at++) {
        struct encoder encoder;
        allocations_watch(fail_at);
        encode_start(&encoder);
        writer->write(&encoder);
        bool is_finished = encode_finish(&encoder);
        has_failed = !is_finished;
        if (is_finished) {
            check_frame(&encoder, golden);
        }
        encode_free(&encoder);
        CHECK_INT(allocations_unwatch(), has_failed);
        CHECK_INT(allocations_live(), 0);
    }
    CHECK(!has_failed);
}

static int n_written;

static void check_golden(const struct golden *golden) {
    if (golden->is_to_worker) {
        return;
    }
    check_subject(golden->name);
    const struct writer *writer = find_writer(golden->name);
    if (CHECK(writer != NULL)) {
        n_written++;
        check_in_fixed_storage(golden, writer);
        check_in_growing_storage(golden, writer);
    }
}

static void test_fixed_storage_too_small(void) {
    check_subject("small storage");
    uint8_t storage[64];
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    write_hello(&encoder);
    CHECK(!encode_finish(&encoder));
    CHECK(encoder.size <= sizeof(storage));
}

/* Candidates may have texts of any length: as many come along as fit, the best first. */
static void check_candidates(uint32_t n_text_bytes, uint32_t n_expected) {
    static reply_storage storage;
    static char text[LIMIT_TOP_TEXT + 1];
    shard_candidate top[LIMIT_TOP];
    memset(text, 'x', sizeof(text));
    for (int i = 0; i < LIMIT_TOP; i++) {
        top[i] = (shard_candidate){INT32_MIN + i, -0.1f, text, n_text_bytes};
    }
    struct result_answer answer = result(SHARD_OUTPUT_TOKEN);
    answer.session = answer.kv_cells = answer.queue_us = answer.compute_us = UINT64_MAX;
    answer.top = top;
    answer.n_top = LIMIT_TOP;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_result(&encoder, UINT64_MAX, &answer);
    if (!CHECK(encode_finish(&encoder))) {
        return;
    }
    uint8_t *bytes = malloc(encode_body_size(&encoder));
    size_t head = encoder.size - FRAME_HEADER_SIZE;
    memcpy(bytes, encoder.data + FRAME_HEADER_SIZE, head);
    memcpy(bytes + head, encoder.tail, encoder.tail_size);
    struct decode_map map;
    struct failure failure;
    failure_clear(&failure);
    CHECK(decode_body(bytes, encode_body_size(&encoder), &map, &failure));
    CHECK_INT(decode_find(&map, "top")->count, n_expected);
    free(bytes);
}

static void test_longest_candidates_fit(void) {
    check_subject("candidates");
    check_candidates(0, LIMIT_TOP);
    check_candidates(LIMIT_TOP_TEXT / LIMIT_TOP, LIMIT_TOP);
    check_candidates(LIMIT_TOP_TEXT / LIMIT_TOP + 1, LIMIT_TOP - 1);
    check_candidates(LIMIT_TOP_TEXT, 1);
    check_candidates(LIMIT_TOP_TEXT + 1, 0);
}

/* The longest error and the longest hello fit in a reply's storage. */
static void test_largest_replies_fit(void) {
    check_subject("largest replies");
    static reply_storage storage;
    struct encoder encoder;
    struct failure failure;
    char text[SHARD_MESSAGE_SIZE];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = '\0';
    failure_clear(&failure);
    failure_set(&failure, CODE_BAD_MESSAGE, "%s", text);
    for (int i = 0; i < FAILURE_MAX_FIELDS + 1; i++) {
        failure_add(&failure, text, "%s", text);
    }
    CHECK_INT(failure.n_fields, FAILURE_MAX_FIELDS);
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_error(&encoder, UINT64_MAX, &failure);
    CHECK(encode_finish(&encoder));

    static shard_build build = {.n_devices = SHARD_MAX_DEVICES};
    for (int i = 0; i < SHARD_MAX_DEVICES; i++) {
        memset(&build.devices[i], 'x', sizeof(build.devices[i]));
        build.devices[i].name[SHARD_NAME_SIZE - 1] = '\0';
        build.devices[i].description[SHARD_TEXT_SIZE - 1] = '\0';
        build.devices[i].kind[SHARD_NAME_SIZE - 1] = '\0';
    }
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_hello(&encoder, &(struct hello_answer){.worker_version = "0.1.0", .build = &build});
    CHECK(encode_finish(&encoder));
}

static void test_text_is_mended(void) {
    static const struct {
        const char *bytes, *mended;
    } CASES[] = {
        {"plain", "plain"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"cut \xe2\x82", "cut ??"},
        {"\xff\xfe", "??"},
        {"\xc0\xaf", "??"},           /* overlong */
        {"\xed\xa0\x80", "???"},      /* surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* above U+10FFFF */
        {"a\x80"
         "b\xc3",
         "a?b?"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        check_subject(CASES[i].mended);
        char text[32];
        snprintf(text, sizeof(text), "%s", CASES[i].bytes);
        CHECK_INT(utf8_is_valid((uint8_t *)text, strlen(text)),
                  strcmp(CASES[i].bytes, CASES[i].mended) == 0);
        utf8_mend((uint8_t *)text, strlen(text));
        CHECK_TEXT(text, CASES[i].mended);
    }
}

static void test_message_is_one_line(void) {
    check_subject("one line");
    struct failure failure;
    failure_clear(&failure);
    failure_set(&failure, CODE_BAD_MESSAGE, "the path '%s'", "a\nb\tc\x1b[0m");
    CHECK_TEXT(failure.message, "the path 'a b c [0m'");
}

int main(void) {
    CHECK(golden_each(check_golden) > 0);
    check_subject("writers");
    CHECK_INT(n_written, N_WRITERS);
    test_fixed_storage_too_small();
    test_longest_candidates_fit();
    test_largest_replies_fit();
    test_text_is_mended();
    test_message_is_one_line();
    return check_verdict();
}
