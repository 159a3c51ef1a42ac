/* How a step is cut into calls: what a session is computed beside never changes its shapes. */
#include "check.h"
#include "decode_plan.h"

enum { MOST = 8 };

typedef struct wanted_entry {
    shard_session_id session;
    uint32_t n_rows;
    shard_status status;
} wanted_entry;

typedef struct planned {
    uint32_t order[MOST];
    decode_call calls[MOST];
    decode_plan plan;
} planned;

static void make(planned *made, const wanted_entry *wanted, uint32_t n_entries, uint32_t n_ubatch) {
    shard_step_entry entries[MOST] = {{0}};
    for (uint32_t i = 0; i < n_entries; i++) {
        entries[i].session = wanted[i].session;
        entries[i].n_rows = wanted[i].n_rows;
        entries[i].status = wanted[i].status;
    }
    made->plan = (decode_plan){.order = made->order, .calls = made->calls};
    decode_plan_make(&made->plan, entries, n_entries, n_ubatch);
}

static void check_call(const planned *made, uint32_t index, uint32_t first, uint32_t n_entries,
                       uint32_t n_rows) {
    CHECK_EQUAL(made->calls[index].first, first);
    CHECK_EQUAL(made->calls[index].n_entries, n_entries);
    CHECK_EQUAL(made->calls[index].n_rows, n_rows);
}

static void test_single_rows_go_together_by_session(void) {
    const wanted_entry wanted[] = {{5, 1, SHARD_OK}, {0, 1, SHARD_OK}, {3, 1, SHARD_OK}};
    planned made;
    make(&made, wanted, 3, 512);
    CHECK_EQUAL(made.plan.n_calls, 1);
    CHECK_EQUAL(made.plan.n_ordered, 3);
    check_call(&made, 0, 0, 3, 3);
    CHECK_EQUAL(made.order[0], 1);
    CHECK_EQUAL(made.order[1], 2);
    CHECK_EQUAL(made.order[2], 0);
}

static void test_single_rows_beyond_a_ubatch_make_another_call(void) {
    const wanted_entry wanted[] = {
        {4, 1, SHARD_OK}, {3, 1, SHARD_OK}, {2, 1, SHARD_OK}, {1, 1, SHARD_OK}, {0, 1, SHARD_OK}};
    planned made;
    make(&made, wanted, 5, 2);
    CHECK_EQUAL(made.plan.n_calls, 3);
    check_call(&made, 0, 0, 2, 2);
    check_call(&made, 1, 2, 2, 2);
    check_call(&made, 2, 4, 1, 1);
    CHECK_EQUAL(made.order[0], 4);
    CHECK_EQUAL(made.order[4], 0);
}

static void test_longer_entries_are_alone_and_in_their_order(void) {
    const wanted_entry wanted[] = {
        {7, 20, SHARD_OK}, {1, 1, SHARD_OK}, {2, 300, SHARD_OK}, {0, 1, SHARD_OK}};
    planned made;
    make(&made, wanted, 4, 16);
    CHECK_EQUAL(made.plan.n_calls, 3);
    check_call(&made, 0, 0, 2, 2);
    check_call(&made, 1, 2, 1, 20);
    check_call(&made, 2, 3, 1, 300);
    CHECK_EQUAL(made.order[0], 3);
    CHECK_EQUAL(made.order[1], 1);
    CHECK_EQUAL(made.order[2], 0);
    CHECK_EQUAL(made.order[3], 2);
}

static void test_entries_that_were_left_out_are_not_planned(void) {
    const wanted_entry wanted[] = {
        {9, 1, SHARD_ERR_NO_SESSION}, {1, 1, SHARD_OK}, {2, 8, SHARD_ERR_CAPACITY}};
    planned made;
    make(&made, wanted, 3, 16);
    CHECK_EQUAL(made.plan.n_calls, 1);
    CHECK_EQUAL(made.plan.n_ordered, 1);
    check_call(&made, 0, 0, 1, 1);
    CHECK_EQUAL(made.order[0], 1);
    make(&made, wanted, 1, 16);
    CHECK_EQUAL(made.plan.n_calls, 0);
}

static void test_embeddings_are_alone_however_few_rows_they_are_of(void) {
    const shard_step_entry entries[] = {
        {.session = 3, .n_rows = 1, .output = SHARD_OUTPUT_EMBEDDING},
        {.session = 2, .n_rows = 1, .output = SHARD_OUTPUT_TOKEN},
        {.session = 1, .n_rows = 4, .output = SHARD_OUTPUT_EMBEDDING},
        {.session = 0, .n_rows = 1, .output = SHARD_OUTPUT_LOGITS},
    };
    planned made = {.plan = {.order = made.order, .calls = made.calls}};
    decode_plan_make(&made.plan, entries, 4, 16);
    CHECK_EQUAL(made.plan.n_calls, 3);
    check_call(&made, 0, 0, 2, 2);
    check_call(&made, 1, 2, 1, 1);
    check_call(&made, 2, 3, 1, 4);
    CHECK_EQUAL(made.order[0], 3);
    CHECK_EQUAL(made.order[1], 1);
    CHECK_EQUAL(made.order[2], 0);
    CHECK_EQUAL(made.order[3], 2);
}

int main(void) {
    test_single_rows_go_together_by_session();
    test_single_rows_beyond_a_ubatch_make_another_call();
    test_longer_entries_are_alone_and_in_their_order();
    test_entries_that_were_left_out_are_not_planned();
    test_embeddings_are_alone_however_few_rows_they_are_of();
    return 0;
}
