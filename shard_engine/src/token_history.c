#include "token_history.h"

#include "error.h"

#include <inttypes.h>
#include <stdlib.h>

enum { LEAST_CAPACITY = 256 };

void token_history_free(token_history *history) {
    free(history->tokens);
    *history = (token_history){0};
}

shard_status token_history_reserve(token_history *history, uint32_t n_rows, shard_error *error) {
    const uint64_t needed = (uint64_t)history->length + n_rows;
    uint64_t capacity = history->capacity > 0 ? history->capacity : LEAST_CAPACITY;
    while (capacity < needed) {
        capacity *= 2;
    }
    if (capacity == history->capacity) {
        return shard_ok(error);
    }
    int32_t *tokens = realloc(history->tokens, capacity * sizeof(*tokens));
    if (tokens == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for the tokens of %" PRIu64 " rows",
                          needed);
    }
    history->tokens = tokens;
    history->capacity = (uint32_t)capacity;
    return shard_ok(error);
}

void token_history_append(token_history *history, const int32_t *tokens, uint32_t n_rows) {
    for (uint32_t i = 0; i < n_rows; i++) {
        history->tokens[history->length++] = tokens != NULL ? tokens[i] : TOKEN_UNKNOWN;
    }
}

void token_history_trim(token_history *history, uint32_t length) {
    history->length = length;
}

shard_status token_history_copy(token_history *history, const token_history *source,
                                uint32_t length, shard_error *error) {
    const uint32_t old_length = history->length;
    history->length = 0;
    if (token_history_reserve(history, length, error) != SHARD_OK) {
        history->length = old_length;
        return error->status;
    }
    token_history_append(history, source->tokens, length);
    return shard_ok(error);
}
