/* Requests: every golden frame has its verdict, whole, byte by byte, with data behind it, cut short
 * at any byte, and when any allocation fails. */
#include "allocations.h"
#include "check.h"
#include "golden.h"
#include "job.h"
#include "memory.h"
#include "stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const TYPE_NAMES[] = {
    [REQUEST_PING] = "ping",
    [REQUEST_HEALTH] = "health",
    [REQUEST_CANCEL] = "cancel",
    [REQUEST_SHUTDOWN] = "shutdown",
    [REQUEST_INSPECT] = "inspect",
    [REQUEST_SLICE] = "slice",
    [REQUEST_LOAD] = "load",
    [REQUEST_ESTIMATE] = "estimate",
    [REQUEST_OPEN] = "open",
    [REQUEST_FORWARD] = "forward",
    [REQUEST_TRIM] = "trim",
    [REQUEST_CLOSE] = "close",
    [REQUEST_TOKENIZE] = "tokenize",
    [REQUEST_DETOKENIZE] = "detokenize",
    [REQUEST_TOKEN_INFO] = "token_info",
    [REQUEST_CHAT_TEMPLATE] = "chat_template",
};

enum { N_TYPES = sizeof(TYPE_NAMES) / sizeof(TYPE_NAMES[0]) };

static unsigned n_seen[N_TYPES];

/* "type": "ping" may also be written as a binary value. */
static bool json_has_type(const char *json, const char *type) {
    char text[64];
    snprintf(text, sizeof(text), "\"type\": \"%s\"", type);
    return strstr(json, text) != NULL || strstr(json, "\"type\": {\"$bin\"") != NULL;
}

static void check_accepted(const struct golden *golden, const struct request *request) {
    char id[64];
    snprintf(id, sizeof(id), "\"id\": %llu", (unsigned long long)request->id);
    CHECK(strstr(golden->json, id) != NULL);
    CHECK(json_has_type(golden->json, TYPE_NAMES[request->type]));
    n_seen[request->type]++;
}

static void check_whole_and_bytewise(const struct golden *golden) {
    struct request request = {.id = 0};
    const char *verdict = stream_verdict(golden->bytes, golden->size, golden->size, &request);
    if (CHECK_TEXT(verdict, golden->verdict) && strcmp(verdict, "ok") == 0) {
        check_accepted(golden, &request);
    }
    CHECK_TEXT(stream_verdict(golden->bytes, golden->size, 1, NULL), golden->verdict);
}

static void check_with_trailing_data(const struct golden *golden) {
    uint8_t *longer = malloc(golden->size + 3);
    memcpy(longer, golden->bytes, golden->size);
    memset(longer + golden->size, 0xC1, 3);
    CHECK_TEXT(stream_verdict(longer, golden->size + 3, golden->size + 3, NULL), golden->verdict);
    free(longer);
}

/* The stream ends early: nothing is taken for a request. The body ends early though its header is
 * right: never accepted. */
static void check_truncations(const struct golden *golden) {
    bool is_bad_frame = strcmp(golden->verdict, "bad_frame") == 0;
    for (size_t size = 0; size < golden->size; size++) {
        const char *verdict = stream_verdict(golden->bytes, size, golden->size, NULL);
        CHECK(strcmp(verdict, "partial") == 0 ||
              (is_bad_frame && strcmp(verdict, "bad_frame") == 0));
    }
    if (is_bad_frame) {
        return;
    }
    uint8_t *cut = malloc(golden->size);
    for (size_t size = FRAME_HEADER_SIZE; size < golden->size; size++) {
        memcpy(cut, golden->bytes, size);
        frame_write_header(cut, (uint32_t)(size - FRAME_HEADER_SIZE));
        CHECK_TEXT(stream_verdict(cut, size, size, NULL), "bad_frame");
    }
    free(cut);
}

static void check_failing_allocations(const struct golden *golden) {
    bool has_failed = true;
    for (size_t fail_at = 1; has_failed && fail_at < 100; fail_at++) {
        allocations_watch(fail_at);
        const char *verdict = stream_verdict(golden->bytes, golden->size, golden->size, NULL);
        has_failed = allocations_unwatch();
        CHECK_INT(allocations_live(), 0);
        CHECK_TEXT(verdict, has_failed ? "memory" : golden->verdict);
    }
    CHECK(!has_failed);
}

static void check_golden(const struct golden *golden) {
    if (!golden->is_to_worker) {
        return;
    }
    check_subject(golden->name);
    check_whole_and_bytewise(golden);
    check_with_trailing_data(golden);
    check_truncations(golden);
    check_failing_allocations(golden);
}

/* What a lying length costs: never more than the bytes that are there. */
static void check_cost(const struct golden *golden) {
    if (!golden->is_to_worker) {
        return;
    }
    check_subject(golden->name);
    allocations_watch(0);
    stream_verdict(golden->bytes, golden->size, golden->size, NULL);
    allocations_unwatch();
    CHECK(allocations_largest() <= golden->size);
}

/* ---- values ---- */

static struct request kept; /* of the golden frame that the test asked for; owns its body */

static const char *wanted_name;

static void keep(const struct golden *golden) {
    if (strcmp(golden->name, wanted_name) != 0) {
        return;
    }
    const shard_recipe defaults = {.n_ctx = 4096, .n_batch = 512, .type_k = "f16"};
    struct failure failure;
    failure_clear(&failure);
    size_t size = golden->size - FRAME_HEADER_SIZE;
    uint8_t *body = memory_allocate(size);
    memcpy(body, golden->bytes + FRAME_HEADER_SIZE, size);
    CHECK(request_read(&kept, body, size, &defaults, &failure));
}

static const struct request *request_of(const char *name) {
    request_free(&kept);
    memset(&kept, 0, sizeof(kept));
    wanted_name = name;
    check_subject(name);
    golden_each(keep);
    return &kept;
}

static void check_decoded_text(struct decode_text text, const char *expected) {
    CHECK_BYTES("text", text.data, text.size, expected, strlen(expected));
}

static void test_load_values(void) {
    const struct load_request *load = &request_of("load_full")->as.load;
    check_decoded_text(load->model, "/models/a.gguf");
    check_decoded_text(load->cache_dir, "/var/cache/gguf-worker");
    CHECK_INT(load->artifact.size, 64);
    CHECK_INT(load->start, 4);
    CHECK_INT(load->end, 8);
    CHECK_INT(load->recipe.n_ubatch, 256);
    CHECK_INT(load->recipe.prefill_chunk, 128);
    CHECK(load->recipe.kv_unified);
    CHECK_INT(load->recipe.main_gpu, 1);
    CHECK_TEXT(load->recipe.split_mode, "none");
    CHECK_TEXT(load->recipe.rope_scaling, "yarn");
    CHECK(load->recipe.rope_freq_base == 10000.0f);
    CHECK(load->recipe.rope_freq_scale == 0.25f);
    CHECK(load->recipe.yarn_ext_factor == 1.0f);
    CHECK(load->recipe.yarn_attn_factor == 1.5f);
    CHECK(load->recipe.yarn_beta_fast == 32.0f);
    CHECK(load->recipe.yarn_beta_slow == -1.0f);
    CHECK_INT(load->recipe.yarn_orig_ctx, 2048);
    CHECK_INT(load->memory_available, (int64_t)1 << 33);
    check_decoded_text(load->numa, "distribute");
    CHECK_INT(load->n_stages, 3);
    CHECK(load->recipe.flash_attn);
    CHECK(!load->recipe.repack);
    CHECK_INT(load->recipe.n_gpu_layers, -1);
    CHECK_TEXT(load->recipe.type_v, "q8_0");
    CHECK_TEXT(load->recipe.boundary, "f32");
    CHECK_INT(load->max_sessions, 16);
    CHECK_INT(load->recipe.n_threads, 3);
    CHECK(!load->mmap);
    CHECK(load->mlock);
}

static void test_load_defaults(void) {
    const struct load_request *load = &request_of("load")->as.load;
    CHECK(load->artifact.data == NULL);
    CHECK(load->cache_dir.data == NULL);
    CHECK(load->numa.data == NULL);
    CHECK_INT(load->n_stages, 0);
    CHECK_INT(load->memory_available, 0);
    CHECK_INT(load->recipe.n_ctx, 4096);
    CHECK_INT(load->recipe.n_batch, 512);
    CHECK_TEXT(load->recipe.type_k, "f16");
    CHECK_INT(load->max_sessions, 4);
    CHECK_INT(load->recipe.n_threads, 0);
    CHECK(load->mmap);
    CHECK(!load->mlock);
}

static void test_forward_values(void) {
    const struct forward_request *forward = &request_of("forward_tokens")->as.forward;
    CHECK_INT(forward->session, 1);
    CHECK(forward->hidden.data == NULL);
    CHECK_INT(forward->tokens.count, 3);
    CHECK_INT(forward->output, SHARD_OUTPUT_HIDDEN);
    int32_t ids[3] = {0};
    decode_tokens_copy(&forward->tokens, ids);
    CHECK_INT(ids[0], 1);
    CHECK_INT(ids[1], 300);
    CHECK_INT(ids[2], 70000);

    forward = &request_of("forward_hidden")->as.forward;
    CHECK_INT(forward->tokens.count, 0);
    CHECK_INT(forward->position, 3);
    CHECK_INT(forward->output, SHARD_OUTPUT_TOKEN);
    const float rows[] = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, 4.0f, -8.0f, 0.25f};
    CHECK_BYTES("rows", forward->hidden.data, forward->hidden.size, rows, sizeof(rows));

    CHECK(!forward->after_draw);

    forward = &request_of("forward_after_draw")->as.forward;
    CHECK(forward->after_draw);
    CHECK_INT(forward->tokens.count, 0);
    CHECK(forward->hidden.data == NULL);
    CHECK_INT(forward->position, 4);

    forward = &request_of("forward_hidden_and_tokens")->as.forward;
    CHECK_INT(forward->tokens.count, 2);
    CHECK_BYTES("rows", forward->hidden.data, forward->hidden.size, rows, sizeof(rows));
}

/* ---- sampling ---- */

static void test_sampling_values(void) {
    const struct sampling_request *request = &request_of("open_sampling_full")->as.open.sampling;
    struct sampling_unpacked unpacked;
    struct failure failure;
    failure_clear(&failure);
    CHECK(sampling_unpack(request, &unpacked, &failure));
    const shard_sampling *sampling = &unpacked.sampling;
    CHECK(sampling->temperature == 0.75f);
    CHECK_INT(sampling->seed, UINT32_MAX);
    CHECK_INT(sampling->top_k, 40);
    CHECK(sampling->top_p == 0.9375f);
    CHECK(sampling->min_p == 0.0625f);
    CHECK(sampling->typical_p == 0.5f);
    CHECK(sampling->repeat_penalty == 1.25f);
    CHECK(sampling->presence_penalty == 0.5f);
    CHECK(sampling->frequency_penalty == -0.5f);
    CHECK_INT(sampling->repeat_last_n, -1);
    CHECK_TEXT(sampling->grammar, "root ::= \"ja\" | \"nein\"");
    CHECK_INT(sampling->grammar_start, 7);
    CHECK_INT(sampling->top_logprobs, 64);
    CHECK_INT(sampling->n_logit_bias, 3);
    CHECK_INT(sampling->logit_bias[0].token, 1);
    CHECK(sampling->logit_bias[0].bias == -INFINITY);
    CHECK_INT(sampling->logit_bias[1].token, 300);
    CHECK(sampling->logit_bias[1].bias == 2.0f);
    CHECK_INT(sampling->logit_bias[2].token, 70000);
    CHECK(sampling->logit_bias[2].bias == -0.5f);
    sampling_unpacked_free(&unpacked);
}

/* What is absent, empty or nil means the same: greedy, and everything else off. */
static void test_sampling_defaults(void) {
    static const char *const NAMES[] = {"open", "open_sampling_nothing"};
    for (int i = 0; i < 2; i++) {
        const struct sampling_request *request = &request_of(NAMES[i])->as.open.sampling;
        struct sampling_unpacked unpacked;
        struct failure failure;
        failure_clear(&failure);
        CHECK(sampling_unpack(request, &unpacked, &failure));
        const shard_sampling *sampling = &unpacked.sampling;
        CHECK(sampling->temperature == 0.0f);
        CHECK_INT(sampling->seed, 0);
        CHECK_INT(sampling->top_k, 0);
        CHECK(sampling->top_p == 1.0f);
        CHECK(sampling->min_p == 0.0f);
        CHECK(sampling->typical_p == 1.0f);
        CHECK(sampling->repeat_penalty == 1.0f);
        CHECK(sampling->presence_penalty == 0.0f);
        CHECK(sampling->frequency_penalty == 0.0f);
        CHECK_INT(sampling->repeat_last_n, 64);
        CHECK(sampling->logit_bias == NULL);
        CHECK_INT(sampling->n_logit_bias, 0);
        CHECK(sampling->grammar == NULL);
        CHECK_INT(sampling->grammar_start, UINT32_MAX);
        CHECK_INT(sampling->top_logprobs, 0);
        sampling_unpacked_free(&unpacked);
    }
}

static void test_sampling_without_memory(void) {
    const struct sampling_request *request = &request_of("open_sampling_full")->as.open.sampling;
    for (size_t fail_at = 1; fail_at <= 2; fail_at++) {
        struct sampling_unpacked unpacked;
        struct failure failure;
        failure_clear(&failure);
        allocations_watch(fail_at);
        CHECK(!sampling_unpack(request, &unpacked, &failure));
        sampling_unpacked_free(&unpacked);
        CHECK(allocations_unwatch());
        CHECK_INT(allocations_live(), 0);
        CHECK_TEXT(failure.code, "memory");
    }
}

/* A value that msgpack says with a long header, at its limit and one past it. */
static void check_limit(const char *key, uint8_t kind, uint32_t count, const uint8_t *unit,
                        size_t unit_size, bool is_allowed) {
    check_subject(key);
    size_t head = 1 + 9 + 1 + 1 + strlen(key) + 5;
    size_t size = head + count * unit_size;
    uint8_t *bytes = malloc(size);
    snprintf((char *)bytes, head, "\x81\xa8sampling\x81%c%s", (int)(0xA0 | strlen(key)), key);
    const uint8_t header[] = {kind, (uint8_t)(count >> 24), (uint8_t)(count >> 16),
                              (uint8_t)(count >> 8), (uint8_t)count};
    memcpy(bytes + head - sizeof(header), header, sizeof(header));
    for (uint32_t i = 0; i < count; i++) {
        memcpy(bytes + head + i * unit_size, unit, unit_size);
    }
    struct decode_map map;
    struct failure failure;
    failure_clear(&failure);
    CHECK(decode_body(bytes, size, &map, &failure));
    struct decode_fields fields = {&map, &failure};
    struct sampling_request request;
    sampling_request_read(&fields, &request);
    CHECK_INT(!failure_is_set(&failure), is_allowed);
    free(bytes);
}

static void test_sampling_limits(void) {
    static const uint8_t PAIR[] = {0x92, 7, 1};
    static const uint8_t LETTER[] = {'a'};
    check_limit("logit_bias", 0xDD, LIMIT_LOGIT_BIAS, PAIR, sizeof(PAIR), true);
    check_limit("logit_bias", 0xDD, LIMIT_LOGIT_BIAS + 1, PAIR, sizeof(PAIR), false);
    check_limit("grammar", 0xDB, LIMIT_GRAMMAR, LETTER, sizeof(LETTER), true);
    check_limit("grammar", 0xDB, LIMIT_GRAMMAR + 1, LETTER, sizeof(LETTER), false);
}

/* A float32 is what a double of the host becomes; a range is held by what it became. */
static void test_floats_are_rounded_before_they_are_looked_at(void) {
    check_subject("floats");
    static const uint8_t BODY[] = "\x86"
                                  "\xa1"
                                  "a\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a" /* 0.1 */
                                  "\xa1"
                                  "b\xcb\x00\x00\x00\x00\x00\x00\x00\x01" /* rounds to 0 */
                                  "\xa1"
                                  "c\xcb\x7f\xef\xff\xff\xff\xff\xff\xff" /* rounds to infinity */
                                  "\xa1"
                                  "d\xff" /* -1 */
                                  "\xa1"
                                  "e\xca\x7f\xc0\x00\x00" /* NaN */
                                  "\xa1"
                                  "f\xc3";
    struct decode_map map;
    struct failure failure;
    failure_clear(&failure);
    CHECK(decode_body(BODY, sizeof(BODY) - 1, &map, &failure));
    struct decode_fields fields = {&map, &failure};
    const struct decode_span any = {-INFINITY, INFINITY, false};
    const struct decode_span positive = {0, 1, true};
    CHECK(decode_optional_float(&fields, "a", any, 0) == 0.1f);
    CHECK(decode_optional_float(&fields, "c", any, 0) == INFINITY);
    CHECK(decode_optional_float(&fields, "d", any, 0) == -1.0f);
    CHECK(decode_optional_float(&fields, "z", any, 7) == 7.0f);
    CHECK(!failure_is_set(&failure));
    decode_optional_float(&fields, "b", positive, 0);
    CHECK_TEXT(failure.message, "the key 'b' must be a number above 0 to 1");
    failure_clear(&failure);
    decode_optional_float(&fields, "e", any, 0);
    CHECK_TEXT(failure.message, "the key 'e' must be a number from -inf to inf");
    failure_clear(&failure);
    decode_optional_float(&fields, "f", any, 0);
    CHECK(failure_is_set(&failure));
}

static void test_other_values(void) {
    CHECK(request_of("open_sampling")->as.open.sampling.numbers.temperature == 0.5f);
    CHECK_INT(request_of("open")->as.open.source, 0);
    CHECK_INT(request_session(request_of("open")), 0);
    CHECK_INT(request_of("open_fork")->as.open.source, 3);
    CHECK_INT(request_of("open_fork")->as.open.position, 200);
    CHECK_INT(request_session(request_of("open_fork")), 3);
    CHECK_INT(request_of("estimate_full")->as.load.recipe.n_threads, 3);
    CHECK_INT(request_of("open_identity_missing")->as.open.identity.present, 0);
    CHECK_INT(request_of("cancel")->as.cancel.request, 2);
    CHECK_INT(request_of("trim")->as.trim.position, 2);
    CHECK(request_of("slice_full")->as.slice.overwrite);
    CHECK(request_of("slice_full")->as.slice.cache_dir.data == NULL);
    CHECK(request_of("tokenize")->as.tokenize.add_special);
    CHECK(!request_of("tokenize_full")->as.tokenize.add_special);
    CHECK_INT(request_of("tokenize_full")->as.tokenize.text.size, 6);
    CHECK_INT(request_of("detokenize_full")->as.detokenize.tokens.count, 0);
    CHECK(request_of("id_largest")->id == UINT64_MAX);
}

static void test_negative_tokens_keep_their_sign(void) {
    check_subject("negative tokens");
    static const uint8_t BODY[] = "\x81\xa6tokens\x94\xff\xd0\x80\xd1\xff\x00\xd2\x80\x00\x00\x00";
    struct decode_map map;
    struct failure failure;
    failure_clear(&failure);
    CHECK(decode_body(BODY, sizeof(BODY) - 1, &map, &failure));
    struct decode_fields fields = {&map, &failure};
    struct decode_tokens tokens = decode_tokens(&fields, "tokens");
    int32_t ids[4] = {0};
    CHECK_INT(tokens.count, 4);
    decode_tokens_copy(&tokens, ids);
    CHECK_INT(ids[0], -1);
    CHECK_INT(ids[1], -128);
    CHECK_INT(ids[2], -256);
    CHECK_INT(ids[3], INT32_MIN);
}

static void test_first_failure_sticks(void) {
    check_subject("first failure");
    static const uint8_t BODY[] = "\x81\xa1"
                                  "a\xc0";
    struct decode_map map;
    struct failure failure;
    failure_clear(&failure);
    CHECK(decode_body(BODY, sizeof(BODY) - 1, &map, &failure));
    struct decode_fields fields = {&map, &failure};
    CHECK_INT(decode_uint(&fields, "b", 0, 9), 0);
    CHECK_INT(decode_uint(&fields, "a", 0, 9), 0);
    CHECK_TEXT(failure.message, "the key 'b' is missing; send it");
    CHECK_INT(failure.n_fields, 1);
}

int main(void) {
    CHECK(golden_each(check_golden) > 0);
    CHECK(golden_each(check_cost) > 0);
    for (int i = 0; i < N_TYPES; i++) {
        check_subject(TYPE_NAMES[i]);
        CHECK(n_seen[i] > 0);
    }
    test_load_values();
    test_load_defaults();
    test_forward_values();
    test_sampling_values();
    test_sampling_defaults();
    test_sampling_without_memory();
    test_sampling_limits();
    test_floats_are_rounded_before_they_are_looked_at();
    test_other_values();
    test_negative_tokens_keep_their_sign();
    test_first_failure_sticks();
    request_free(&kept);
    return check_verdict();
}
