/* Memory that cannot be had: the fake engine is opened with its first allocation failing, then with
 * its second, until it opens. Every failure must say so and hold nothing.
 *
 * The linker sends every allocation of this program's objects here (see CMakeLists.txt). */
#include "check.h"
#include "shard_engine.h"

#include <stdbool.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void __real_free(void *pointer);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void __wrap_free(void *pointer);

static long n_until_failure = -1; /* allocations that still succeed; negative: all do */
static long n_live;

static bool fails_now(void) {
    return n_until_failure >= 0 && n_until_failure-- == 0;
}

void *__wrap_malloc(size_t size) {
    void *pointer = fails_now() ? NULL : __real_malloc(size);
    n_live += pointer != NULL;
    return pointer;
}

void *__wrap_calloc(size_t count, size_t size) {
    void *pointer = fails_now() ? NULL : __real_calloc(count, size);
    n_live += pointer != NULL;
    return pointer;
}

void __wrap_free(void *pointer) {
    n_live -= pointer != NULL;
    __real_free(pointer);
}

static const shard_engine_api *api;

/* Opens layers [start, end) with the allocation of index `n_allowed` failing. */
static shard_status open_failing(long n_allowed, uint32_t start, uint32_t end,
                                 shard_engine **engine) {
    shard_params params;
    shard_error error;
    api->default_params(&params);
    params.model_path = "fake:layers=4";
    params.layer_start = start;
    params.layer_end = end;
    n_until_failure = n_allowed;
    const shard_status status = api->open(&params, engine, &error);
    n_until_failure = -1;
    CHECK_EQUAL(status, error.status);
    CHECK((strlen(error.message) > 0) == (status != SHARD_OK));
    return status;
}

static void check_every_failure(uint32_t start, uint32_t end, int n_least) {
    shard_engine *engine;
    int n_failures = 0;
    while (open_failing(n_failures, start, end, &engine) != SHARD_OK) {
        CHECK(engine == NULL);
        CHECK_EQUAL(n_live, 0);
        n_failures++;
    }
    CHECK(n_failures >= n_least);
    CHECK(n_live > 0);
    api->close(engine);
    CHECK_EQUAL(n_live, 0);
}

static void test_open_without_memory_holds_nothing(void) {
    /* The record, the list of tensors, three tensors per layer, five arrays of cells and sessions,
     * five buffers; then embedding, head, and two buffers to draw in. */
    check_every_failure(1, 3, 1 + 1 + 6 + 5 + 5);
    check_every_failure(0, 4, 1 + 1 + 12 + 2 + 5 + 5 + 2);
}

/* A session that draws with a bias holds a copy of it, from when it is opened until it or the
 * engine is closed. */
static void test_session_without_memory_is_not_opened(void) {
    static const shard_logit_bias bias = {.token = 5, .bias = 1.0f};
    shard_engine *engine;
    shard_sampling sampling;
    shard_session_id session;
    shard_error error;
    uint32_t freed;
    CHECK_EQUAL(open_failing(-1, 0, 4, &engine), SHARD_OK);
    const long n_before = n_live;
    api->default_sampling(&sampling);
    sampling.logit_bias = &bias;
    sampling.n_logit_bias = 1;
    n_until_failure = 0;
    CHECK_EQUAL(api->session_open(engine, &sampling, &session, &error), SHARD_ERR_MEMORY);
    n_until_failure = -1;
    CHECK_EQUAL(n_live, n_before);
    for (int i = 0; i < 4; i++) {
        CHECK_EQUAL(api->session_open(engine, &sampling, &session, &error), SHARD_OK);
        CHECK_EQUAL(session, i);
    }
    CHECK_EQUAL(n_live, n_before + 4);
    CHECK_EQUAL(api->session_close(engine, session, &freed, &error), SHARD_OK);
    CHECK_EQUAL(n_live, n_before + 3);
    api->close(engine);
    CHECK_EQUAL(n_live, 0);
}

static void test_artifact_without_memory_holds_nothing(void) {
    shard_artifact *artifact;
    shard_error error;
    n_until_failure = 0;
    CHECK_EQUAL(api->artifact_open("fake:", NULL, NULL, NULL, &artifact, &error), SHARD_ERR_MEMORY);
    n_until_failure = -1;
    CHECK(artifact == NULL);
    CHECK_EQUAL(n_live, 0);
    CHECK_EQUAL(api->artifact_open("fake:", NULL, NULL, NULL, &artifact, &error), SHARD_OK);
    CHECK_EQUAL(n_live, 1);
    api->artifact_close(artifact);
    CHECK_EQUAL(n_live, 0);
}

int main(void) {
    api = shard_engine_find("fake");
    CHECK(api != NULL);
    test_open_without_memory_holds_nothing();
    test_session_without_memory_is_not_opened();
    test_artifact_without_memory_holds_nothing();
    return 0;
}
