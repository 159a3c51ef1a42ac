/* Identity: compared field by field, and what a worker holds it holds for its life. */
#include "check.h"
#include "holding.h"
#include "identity.h"

#include <stdio.h>
#include <string.h>

static struct identity loaded(void) {
    struct identity identity = {
        .start = 4,
        .end = 8,
        .recipe = {.n_ctx = 4096,
                   .n_batch = 512,
                   .n_ubatch = 512,
                   .prefill_chunk = 512,
                   .n_threads = 2,
                   .flash_attn = true,
                   .repack = true,
                   .split_mode = "layer",
                   .type_k = "f16",
                   .type_v = "f16",
                   .boundary = "f32",
                   .rope_scaling = "model",
                   .rope_freq_base = 10000.0f,
                   .yarn_ext_factor = -1.0f},
    };
    memset(identity.artifact, 'a', sizeof(identity.artifact) - 1);
    return identity;
}

enum { N_FIELDS = 25 };

static struct failure failure;

static uint32_t differences(const struct identity *asked, const struct identity *actual) {
    struct identity_claim claim;
    identity_claim_all(&claim, asked);
    failure_clear(&failure);
    return identity_differences(&claim, actual, true, &failure);
}

static void check_field(uint32_t at, const char *name, const char *value) {
    CHECK(at < failure.n_fields);
    CHECK_TEXT(failure.fields[at].name, name);
    CHECK_TEXT(failure.fields[at].value, value);
}

static void test_identity_equal(void) {
    check_subject("equal");
    struct identity actual = loaded();
    CHECK_INT(differences(&actual, &actual), 0);
    CHECK_INT(failure.n_fields, 0);
}

/* The two zeros are one number. */
static void test_identity_zeros_are_equal(void) {
    check_subject("zeros");
    struct identity actual = loaded();
    struct identity asked = actual;
    asked.recipe.rope_freq_scale = -0.0f;
    CHECK_INT(differences(&asked, &actual), 0);
}

/* One difference at a time, in each field: its name and both values are said. */
static void test_identity_differs_in_each_field(void) {
    struct identity actual = loaded();
    struct identity asked[N_FIELDS];
    for (int i = 0; i < N_FIELDS; i++) {
        asked[i] = actual;
    }
    asked[0].artifact[3] = 'b';
    asked[1].start = 3;
    asked[2].end = 9;
    asked[3].recipe.n_ctx = 512;
    asked[4].recipe.n_batch = 256;
    asked[5].recipe.n_ubatch = 128;
    asked[6].recipe.prefill_chunk = 64;
    asked[7].recipe.n_threads = 7;
    asked[8].recipe.flash_attn = false;
    asked[9].recipe.repack = false;
    asked[10].recipe.kv_unified = true;
    asked[11].recipe.n_gpu_layers = -1;
    asked[12].recipe.main_gpu = 1;
    snprintf(asked[13].recipe.split_mode, SHARD_NAME_SIZE, "row");
    snprintf(asked[14].recipe.type_k, SHARD_NAME_SIZE, "q8_0");
    snprintf(asked[15].recipe.type_v, SHARD_NAME_SIZE, "bf16");
    snprintf(asked[16].recipe.boundary, SHARD_NAME_SIZE, "f16");
    snprintf(asked[17].recipe.rope_scaling, SHARD_NAME_SIZE, "yarn");
    asked[18].recipe.rope_freq_base = 10000.001f; /* the next float32 */
    asked[19].recipe.rope_freq_scale = 0.1f;
    asked[20].recipe.yarn_ext_factor = 1.0f;
    asked[21].recipe.yarn_attn_factor = 1.0f;
    asked[22].recipe.yarn_beta_fast = 32.0f;
    asked[23].recipe.yarn_beta_slow = 1e-30f;
    asked[24].recipe.yarn_orig_ctx = 4096;
    static const struct {
        const char *name, *expected, *actual;
    } SAID[] = {
        {"artifact", NULL, NULL},
        {"start", "3", "4"},
        {"end", "9", "8"},
        {"recipe.n_ctx", "512", "4096"},
        {"recipe.n_batch", "256", "512"},
        {"recipe.n_ubatch", "128", "512"},
        {"recipe.prefill_chunk", "64", "512"},
        {"recipe.n_threads", "7", "2"},
        {"recipe.flash_attn", "false", "true"},
        {"recipe.repack", "false", "true"},
        {"recipe.kv_unified", "true", "false"},
        {"recipe.n_gpu_layers", "-1", "0"},
        {"recipe.main_gpu", "1", "0"},
        {"recipe.split_mode", "row", "layer"},
        {"recipe.type_k", "q8_0", "f16"},
        {"recipe.type_v", "bf16", "f16"},
        {"recipe.boundary", "f16", "f32"},
        {"recipe.rope_scaling", "yarn", "model"},
        {"recipe.rope_freq_base", "10000.001", "10000"},
        {"recipe.rope_freq_scale", "0.100000001", "0"},
        {"recipe.yarn_ext_factor", "1", "-1"},
        {"recipe.yarn_attn_factor", "1", "0"},
        {"recipe.yarn_beta_fast", "32", "0"},
        {"recipe.yarn_beta_slow", "1e-30", "0"},
        {"recipe.yarn_orig_ctx", "4096", "0"},
    };
    for (int i = 0; i < N_FIELDS; i++) {
        check_subject(SAID[i].name);
        CHECK_INT(differences(&asked[i], &actual), 1);
        CHECK_INT(failure.n_fields, 2);
        char name[SHARD_NAME_SIZE];
        snprintf(name, sizeof(name), "%s.expected", SAID[i].name);
        check_field(0, name, SAID[i].expected != NULL ? SAID[i].expected : asked[0].artifact);
        snprintf(name, sizeof(name), "%s.actual", SAID[i].name);
        check_field(1, name, SAID[i].actual != NULL ? SAID[i].actual : actual.artifact);
    }
}

static void test_identity_missing_fields_are_differences(void) {
    check_subject("missing");
    struct identity actual = loaded();
    struct identity_claim claim;
    memset(&claim, 0, sizeof(claim));
    failure_clear(&failure);
    CHECK_INT(identity_differences(&claim, &actual, true, &failure), N_FIELDS);
    CHECK_INT(failure.n_fields, 2 * N_FIELDS);
    check_field(2, "start.expected", "missing");
    check_field(3, "start.actual", "4");
    failure_clear(&failure);
    CHECK_INT(identity_differences(&claim, &actual, false, &failure), 0);
}

/* ---- holding ---- */

static struct load_request load_of(const char *model, uint32_t start, uint32_t end) {
    struct load_request load = {.model = {model, strlen(model)}, .start = start, .end = end};
    load.recipe = loaded().recipe;
    return load;
}

static struct holding holding;

static bool accepts(const struct load_request *load) {
    failure_clear(&failure);
    return holding_accept(&holding, load, &failure);
}

static void test_holding_refuses_while_loading(void) {
    check_subject("loading");
    memset(&holding, 0, sizeof(holding));
    struct load_request first = load_of("a.gguf", 4, 8);
    struct load_request second = load_of("b.gguf", 4, 9);
    second.recipe.n_ctx = 512;
    CHECK(accepts(&first));
    CHECK(!accepts(&second));
    CHECK_TEXT(failure.code, "identity");
    CHECK_INT(failure.n_fields, 6);
    check_field(0, "model.expected", "b.gguf");
    check_field(1, "model.actual", "a.gguf");
    check_field(2, "end.expected", "9");
    check_field(3, "end.actual", "8");
    check_field(4, "recipe.n_ctx.expected", "512");
    check_field(5, "recipe.n_ctx.actual", "4096");
}

static void test_holding_refuses_the_same_again(void) {
    check_subject("the same");
    memset(&holding, 0, sizeof(holding));
    struct load_request load = load_of("a.gguf", 4, 0);
    load.recipe.n_threads = 0;
    load.recipe.prefill_chunk = 0;
    CHECK(accepts(&load));
    shard_description description = {
        .layer_start = 4, .layer_end = 8, .n_layer = 8, .recipe = loaded().recipe};
    holding_settle(&holding, &description);
    CHECK(!accepts(&load));
    CHECK_TEXT(failure.code, "identity");
    CHECK_INT(failure.n_fields, 0);
    CHECK_TEXT(failure.message, "this worker holds layers [4, 8) of a.gguf and keeps them for its "
                                "life; start another worker for another load");
}

static void test_holding_accepts_after_a_failed_load(void) {
    check_subject("after a failure");
    memset(&holding, 0, sizeof(holding));
    struct load_request load = load_of("a.gguf", 0, 0);
    CHECK(accepts(&load));
    holding_release(&holding);
    CHECK(accepts(&load));
}

int main(void) {
    test_identity_equal();
    test_identity_zeros_are_equal();
    test_identity_differs_in_each_field();
    test_identity_missing_fields_are_differences();
    test_holding_refuses_while_loading();
    test_holding_refuses_the_same_again();
    test_holding_accepts_after_a_failed_load();
    return check_verdict();
}
