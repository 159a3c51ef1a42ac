#include "failure.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void failure_clear(struct failure *failure) {
    failure->code = NULL;
    failure->n_fields = 0;
    failure->message[0] = '\0';
}

bool failure_is_set(const struct failure *failure) {
    return failure->code != NULL;
}

/* A message is one line, whatever a path or a key in it holds. */
static void make_one_line(char *text) {
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ') {
            *text = ' ';
        }
    }
}

bool failure_set(struct failure *failure, const char *code, const char *format, ...) {
    if (failure_is_set(failure)) {
        return false;
    }
    failure->code = code;
    failure->n_fields = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->message, sizeof(failure->message), format, arguments);
    va_end(arguments);
    make_one_line(failure->message);
    return false;
}

void failure_tell_fields(struct failure *failure) {
    size_t size = strlen(failure->message);
    for (uint32_t i = 0; i < failure->n_fields && size + 1 < sizeof(failure->message); i++) {
        const shard_error_field *field = &failure->fields[i];
        const bool is_last = i + 1 == failure->n_fields;
        snprintf(failure->message + size, sizeof(failure->message) - size, "%s%s %s%s",
                 i == 0 ? " (" : ", ", field->name, field->value, is_last ? ")" : "");
        size += strlen(failure->message + size);
    }
    make_one_line(failure->message);
}

bool failure_set_memory(struct failure *failure, uint64_t needed_bytes) {
    if (!failure_is_set(failure)) {
        failure_set(failure, shard_status_name(SHARD_ERR_MEMORY),
                    "no memory for %" PRIu64 " bytes; free some and ask again", needed_bytes);
        failure_add(failure, "needed_bytes", "%" PRIu64, needed_bytes);
    }
    return false;
}

void failure_add(struct failure *failure, const char *name, const char *format, ...) {
    if (failure->n_fields == FAILURE_MAX_FIELDS) {
        return;
    }
    shard_error_field *field = &failure->fields[failure->n_fields++];
    snprintf(field->name, sizeof(field->name), "%s", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(field->value, sizeof(field->value), format, arguments);
    va_end(arguments);
}

bool failure_set_engine(struct failure *failure, const shard_error *error) {
    if (failure_is_set(failure)) {
        return false;
    }
    failure_set(failure, shard_status_name(error->status), "%s", error->message);
    for (uint32_t i = 0; i < error->n_fields && i < SHARD_MAX_ERROR_FIELDS; i++) {
        failure_add(failure, error->fields[i].name, "%s", error->fields[i].value);
    }
    return false;
}

bool failure_is_retryable(const struct failure *failure) {
    const char *const retryable[] = {
        CODE_BUSY,
        shard_status_name(SHARD_ERR_NO_SPACE),
        shard_status_name(SHARD_ERR_MEMORY),
        shard_status_name(SHARD_ERR_CAPACITY),
    };
    for (size_t i = 0; i < sizeof(retryable) / sizeof(retryable[0]); i++) {
        if (failure_is_set(failure) && strcmp(failure->code, retryable[i]) == 0) {
            return true;
        }
    }
    return false;
}
