/* Why a request failed: what an `error` message says (docs/protocol.md, section 4). The first
 * failure sticks: setting one that is set changes nothing, so a caller may check once at the end.
 */
#ifndef WORKER_FAILURE_H
#define WORKER_FAILURE_H

#include "shard_engine.h"

#include <stdbool.h>
#include <stdint.h>

/* Two for each of the 25 fields of an identity, and two for a model. */
enum { FAILURE_MAX_FIELDS = 52 };

/* Codes that are the protocol's own; the others are names of a `shard_status`. */
#define CODE_BAD_FRAME "bad_frame"
#define CODE_BAD_MESSAGE "bad_message"
#define CODE_BUSY "busy"
#define CODE_NOT_LOADED "not_loaded"
#define CODE_NO_DRAW "no_draw"
#define CODE_SHUTTING_DOWN "shutting_down"

struct failure {
    const char *code; /* a string that is never freed; NULL: nothing failed */
    uint32_t n_fields;
    shard_error_field fields[FAILURE_MAX_FIELDS];
    char message[SHARD_MESSAGE_SIZE];
};

void failure_clear(struct failure *failure);
bool failure_is_set(const struct failure *failure);

/* Sets code and message (printf-style). Returns false, for `return failure_set(...)`. */
bool failure_set(struct failure *failure, const char *code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool failure_set_memory(struct failure *failure, uint64_t needed_bytes);

/* Adds a named value (printf-style); dropped past FAILURE_MAX_FIELDS. */
void failure_add(struct failure *failure, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends the fields to the message, as far as they fit: "... (recipe.n_ctx.expected 512, ...)". */
void failure_tell_fields(struct failure *failure);

/* Takes over what an engine said. Returns false. */
bool failure_set_engine(struct failure *failure, const shard_error *error);

/* Whether the same request may succeed later without any change. */
bool failure_is_retryable(const struct failure *failure);

#endif /* WORKER_FAILURE_H */
