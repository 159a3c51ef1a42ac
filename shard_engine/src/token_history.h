/* The token id of each row of a session, where the caller gave it. */
#ifndef SHARD_TOKEN_HISTORY_H
#define SHARD_TOKEN_HISTORY_H

#include "shard_engine.h"

#define TOKEN_UNKNOWN (-1)

/* Zeroed, it is an empty one. */
typedef struct token_history {
    int32_t *tokens; /* [length] */
    uint32_t length;
    uint32_t capacity;
} token_history;

void token_history_free(token_history *history);

/* Makes room for `n_rows` more rows. SHARD_ERR_MEMORY; nothing changed then. */
shard_status token_history_reserve(token_history *history, uint32_t n_rows, shard_error *error);

/* Adds rows for which there is room; `tokens` NULL: unknown ones. */
void token_history_append(token_history *history, const int32_t *tokens, uint32_t n_rows);

/* Forgets every row from `length` on. */
void token_history_trim(token_history *history, uint32_t length);

/* Makes `history` the first `length` rows of `source`. SHARD_ERR_MEMORY; nothing changed then. */
shard_status token_history_copy(token_history *history, const token_history *source,
                                uint32_t length, shard_error *error);

#endif /* SHARD_TOKEN_HISTORY_H */
