/* Requests: every golden frame has its verdict, whole, byte by byte, with data behind it, cut short
 * at any byte, and when any allocation fails. */
#include "allocations.h"
#include "check.h"
#include "golden.h"
#include "job.h"
#include "memory.h"
#include "stream.h"

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
    [REQUEST_OPEN] = "open",
    [REQUEST_FORWARD] = "forward",
    [REQUEST_TRIM] = "trim",
    [REQUEST_CLOSE] = "close",
    [REQUEST_TOKENIZE] = "tokenize",
    [REQUEST_DETOKENIZE] = "detokenize",
    [REQUEST_TOKEN_INFO] = "token_info",
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
    CHECK(forward->has_tokens);
    CHECK_INT(forward->tokens.count, 3);
    CHECK_INT(forward->output, SHARD_OUTPUT_HIDDEN);
    int32_t ids[3] = {0};
    decode_tokens_copy(&forward->tokens, ids);
    CHECK_INT(ids[0], 1);
    CHECK_INT(ids[1], 300);
    CHECK_INT(ids[2], 70000);

    forward = &request_of("forward_hidden")->as.forward;
    CHECK(!forward->has_tokens);
    CHECK_INT(forward->position, 3);
    CHECK_INT(forward->output, SHARD_OUTPUT_TOKEN);
    const float rows[] = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, 4.0f, -8.0f, 0.25f};
    CHECK_BYTES("rows", forward->hidden.data, forward->hidden.size, rows, sizeof(rows));
}

static void test_other_values(void) {
    CHECK(request_of("open_sampling")->as.open.temperature == 0.5f);
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
    test_other_values();
    test_negative_tokens_keep_their_sign();
    test_first_failure_sticks();
    request_free(&kept);
    return check_verdict();
}
