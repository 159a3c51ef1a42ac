/* The tokens of a session's rows: kept in order, cut and copied, unknown where none were given. */
#include "check.h"
#include "token_history.h"

static void append(token_history *history, const int32_t *tokens, uint32_t n_rows) {
    shard_error error;
    CHECK_EQUAL(token_history_reserve(history, n_rows, &error), SHARD_OK);
    token_history_append(history, tokens, n_rows);
}

static void test_rows_are_kept_in_order(void) {
    token_history history = {0};
    for (int32_t i = 0; i < 1000; i++) {
        append(&history, &i, 1);
    }
    append(&history, NULL, 2);
    CHECK_EQUAL(history.length, 1002);
    CHECK_EQUAL(history.tokens[0], 0);
    CHECK_EQUAL(history.tokens[999], 999);
    CHECK_EQUAL(history.tokens[1000], TOKEN_UNKNOWN);
    CHECK_EQUAL(history.tokens[1001], TOKEN_UNKNOWN);
    token_history_trim(&history, 999);
    append(&history, (const int32_t[]){7}, 1);
    CHECK_EQUAL(history.tokens[999], 7);
    token_history_free(&history);
    CHECK_EQUAL(history.length, 0);
}

static void test_copy_is_independent(void) {
    token_history source = {0};
    token_history copy = {0};
    shard_error error;
    append(&source, (const int32_t[]){1, 2, 3, 4}, 4);
    append(&copy, (const int32_t[]){9, 9, 9, 9, 9, 9}, 6);
    CHECK_EQUAL(token_history_copy(&copy, &source, 3, &error), SHARD_OK);
    CHECK_EQUAL(copy.length, 3);
    CHECK_EQUAL(copy.tokens[2], 3);
    append(&copy, (const int32_t[]){5}, 1);
    CHECK_EQUAL(source.tokens[3], 4);
    CHECK_EQUAL(copy.tokens[3], 5);
    token_history_free(&source);
    token_history_free(&copy);
}

int main(void) {
    test_rows_are_kept_in_order();
    test_copy_is_independent();
    return 0;
}
