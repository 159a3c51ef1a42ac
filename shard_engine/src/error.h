/* Filling a `shard_error`, the one way both engines do it. */
#ifndef SHARD_ERROR_H
#define SHARD_ERROR_H

#include "shard_engine.h"

/* Sets status and message (printf-style) and clears the fields. Returns `status`, so that a caller
 * can write `return shard_fail(...)`. */
shard_status shard_fail(shard_error *error, shard_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a named value (printf-style); silently dropped past SHARD_MAX_ERROR_FIELDS. */
void shard_error_add(shard_error *error, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Resets to SHARD_OK without message and fields. Returns SHARD_OK. */
shard_status shard_ok(shard_error *error);

#endif /* SHARD_ERROR_H */
