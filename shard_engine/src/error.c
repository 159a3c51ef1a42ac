#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const STATUS_NAMES[] = {
    [SHARD_OK] = "ok",
    [SHARD_ERR_ARGUMENT] = "argument",
    [SHARD_ERR_NOT_FOUND] = "not_found",
    [SHARD_ERR_IO] = "io",
    [SHARD_ERR_NO_SPACE] = "no_space",
    [SHARD_ERR_MALFORMED] = "malformed",
    [SHARD_ERR_UNSUPPORTED] = "unsupported",
    [SHARD_ERR_RANGE] = "range",
    [SHARD_ERR_IDENTITY] = "identity",
    [SHARD_ERR_MEMORY] = "memory",
    [SHARD_ERR_NO_SESSION] = "no_session",
    [SHARD_ERR_CAPACITY] = "capacity",
    [SHARD_ERR_POSITION] = "position",
    [SHARD_ERR_NON_FINITE] = "non_finite",
    [SHARD_ERR_CANCELLED] = "cancelled",
    [SHARD_ERR_BACKEND] = "backend",
    [SHARD_ERR_NOT_OWNED] = "not_owned",
};

enum { N_STATUS = sizeof(STATUS_NAMES) / sizeof(STATUS_NAMES[0]) };
_Static_assert(N_STATUS == SHARD_ERR_NOT_OWNED + 1, "every status needs a name");

const char *shard_status_name(shard_status status) {
    return (unsigned)status < N_STATUS ? STATUS_NAMES[status] : "backend";
}

/* Names out of a damaged file may hold anything; a message stays one line of text. */
static void keep_one_line(char *text) {
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f) {
            *text = '?';
        }
    }
}

shard_status shard_fail(shard_error *error, shard_status status, const char *format, ...) {
    va_list arguments;
    error->status = status;
    error->n_fields = 0;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof(error->message), format, arguments);
    va_end(arguments);
    keep_one_line(error->message);
    return status;
}

void shard_error_add(shard_error *error, const char *name, const char *format, ...) {
    if (error->n_fields == SHARD_MAX_ERROR_FIELDS) {
        return;
    }
    shard_error_field *field = &error->fields[error->n_fields++];
    snprintf(field->name, sizeof(field->name), "%s", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(field->value, sizeof(field->value), format, arguments);
    va_end(arguments);
    keep_one_line(field->value);
}

shard_status shard_ok(shard_error *error) {
    error->status = SHARD_OK;
    error->n_fields = 0;
    error->message[0] = '\0';
    return SHARD_OK;
}
