/* Typed access to the keys of a map. */
#include "decode.h"

#include "decode_token.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void missing(struct decode_fields *fields, const char *key) {
    failure_set(fields->failure, CODE_BAD_MESSAGE, "the key '%s' is missing; send it", key);
    failure_add(fields->failure, "key", "%s", key);
}

static void wrong(struct decode_fields *fields, const char *key, const char *wanted) {
    if (!failure_is_set(fields->failure)) {
        failure_set(fields->failure, CODE_BAD_MESSAGE, "the key '%s' must be %s", key, wanted);
        failure_add(fields->failure, "key", "%s", key);
    }
}

static const struct decode_value *required(struct decode_fields *fields, const char *key) {
    const struct decode_value *value = decode_find(fields->map, key);
    if (value == NULL && !failure_is_set(fields->failure)) {
        missing(fields, key);
    }
    return value;
}

static uint64_t uint_of(struct decode_fields *fields, const char *key,
                        const struct decode_value *value, uint64_t least, uint64_t most) {
    if (value->kind == DECODE_UINT && value->integer >= least && value->integer <= most) {
        return value->integer;
    }
    char wanted[96];
    snprintf(wanted, sizeof(wanted), "an integer from %" PRIu64 " to %" PRIu64, least, most);
    wrong(fields, key, wanted);
    return 0;
}

uint64_t decode_uint(struct decode_fields *fields, const char *key, uint64_t least, uint64_t most) {
    const struct decode_value *value = required(fields, key);
    return value != NULL ? uint_of(fields, key, value, least, most) : 0;
}

uint64_t decode_optional_uint(struct decode_fields *fields, const char *key, uint64_t least,
                              uint64_t most, uint64_t otherwise) {
    const struct decode_value *value = decode_find(fields->map, key);
    return value != NULL ? uint_of(fields, key, value, least, most) : otherwise;
}

/* False where the value is no integer that int64 holds. */
static bool integer_of(const struct decode_value *value, int64_t *out) {
    if (value->kind == DECODE_SINT || (value->kind == DECODE_UINT && value->integer <= INT64_MAX)) {
        *out = (int64_t)value->integer;
        return true;
    }
    return false;
}

int64_t decode_optional_int(struct decode_fields *fields, const char *key, int64_t least,
                            int64_t most, int64_t otherwise) {
    const struct decode_value *value = decode_find(fields->map, key);
    if (value == NULL) {
        return otherwise;
    }
    int64_t integer;
    if (integer_of(value, &integer) && integer >= least && integer <= most) {
        return integer;
    }
    char wanted[96];
    snprintf(wanted, sizeof(wanted), "an integer from %" PRId64 " to %" PRId64, least, most);
    wrong(fields, key, wanted);
    return 0;
}

bool decode_optional_bool(struct decode_fields *fields, const char *key, bool otherwise) {
    const struct decode_value *value = decode_find(fields->map, key);
    if (value == NULL) {
        return otherwise;
    }
    if (value->kind != DECODE_BOOL) {
        wrong(fields, key, "true or false");
    }
    return value->integer != 0;
}

/* The nearest float32; an infinity where it is too large for one, NaN where it is no number. */
static float float_of(const struct decode_value *value) {
    int64_t integer;
    double number = value->kind == DECODE_FLOAT   ? value->number
                    : integer_of(value, &integer) ? (double)integer
                                                  : NAN;
    return (float)number;
}

/* False for NaN, which every comparison fails. */
static bool is_in_span(float number, struct decode_span span) {
    return (span.above ? number > span.least : number >= span.least) && number <= span.most;
}

float decode_optional_float(struct decode_fields *fields, const char *key, struct decode_span span,
                            float otherwise) {
    const struct decode_value *value = decode_find(fields->map, key);
    if (value == NULL) {
        return otherwise;
    }
    float number = float_of(value);
    if (is_in_span(number, span)) {
        return number;
    }
    char wanted[96];
    snprintf(wanted, sizeof(wanted), "a number %s %.9g to %.9g", span.above ? "above" : "from",
             (double)span.least, (double)span.most);
    wrong(fields, key, wanted);
    return 0;
}

static struct decode_text text_of(struct decode_fields *fields, const char *key,
                                  const struct decode_value *value, size_t most) {
    bool is_text = value->kind == DECODE_STR || value->kind == DECODE_BIN;
    if (is_text && value->size <= most) {
        return (struct decode_text){(const char *)value->data, value->size};
    }
    char wanted[64];
    snprintf(wanted, sizeof(wanted), "text of at most %zu bytes", most);
    wrong(fields, key, wanted);
    return (struct decode_text){NULL, 0};
}

struct decode_text decode_text(struct decode_fields *fields, const char *key, size_t most) {
    const struct decode_value *value = required(fields, key);
    return value != NULL ? text_of(fields, key, value, most) : (struct decode_text){NULL, 0};
}

struct decode_text decode_optional_text(struct decode_fields *fields, const char *key,
                                        size_t most) {
    const struct decode_value *value = decode_find(fields->map, key);
    bool is_there = value != NULL && value->kind != DECODE_NIL;
    return is_there ? text_of(fields, key, value, most) : (struct decode_text){NULL, 0};
}

struct decode_text decode_optional_name(struct decode_fields *fields, const char *key,
                                        size_t most) {
    struct decode_text text = decode_optional_text(fields, key, most);
    if (text.data != NULL && memchr(text.data, 0, text.size) != NULL) {
        wrong(fields, key, "text without NUL");
    }
    return text;
}

static struct decode_text path_of(struct decode_fields *fields, const char *key,
                                  struct decode_text text) {
    if (text.data != NULL && (text.size == 0 || memchr(text.data, 0, text.size) != NULL)) {
        wrong(fields, key, "text of at least one byte and without NUL");
    }
    return text;
}

struct decode_text decode_path(struct decode_fields *fields, const char *key) {
    return path_of(fields, key, decode_text(fields, key, LIMIT_PATH - 1));
}

struct decode_text decode_optional_path(struct decode_fields *fields, const char *key) {
    return path_of(fields, key, decode_optional_text(fields, key, LIMIT_PATH - 1));
}

void decode_range(struct decode_fields *fields, const char *key, uint32_t *start, uint32_t *end) {
    *start = 0;
    *end = 0;
    const struct decode_value *value = required(fields, key);
    if (value == NULL) {
        return;
    }
    struct decode_value pair[2] = {{.kind = DECODE_NIL}, {.kind = DECODE_NIL}};
    if (value->kind == DECODE_ARRAY && value->count == 2) {
        struct decode_cursor cursor = {value->data, value->size};
        decode_token(&cursor, &pair[0]);
        decode_token(&cursor, &pair[1]);
    }
    for (int i = 0; i < 2; i++) {
        if (pair[i].kind != DECODE_UINT || pair[i].integer > UINT32_MAX) {
            wrong(fields, key, "an array of two integers, [start, end]");
            return;
        }
    }
    *start = (uint32_t)pair[0].integer;
    *end = (uint32_t)pair[1].integer;
}

static bool is_token(const struct decode_value *value) {
    int64_t integer;
    return integer_of(value, &integer) && integer >= INT32_MIN && integer <= INT32_MAX;
}

struct decode_tokens decode_tokens(struct decode_fields *fields, const char *key) {
    const struct decode_tokens none = {NULL, 0, 0};
    const struct decode_value *value = required(fields, key);
    if (value == NULL) {
        return none;
    }
    if (value->kind != DECODE_ARRAY) {
        wrong(fields, key, "an array of token ids");
        return none;
    }
    struct decode_cursor cursor = {value->data, value->size};
    for (uint32_t i = 0; i < value->count; i++) {
        struct decode_value element;
        if (!decode_token(&cursor, &element) || !is_token(&element)) {
            wrong(fields, key, "an array of token ids, each an integer of 32 bits");
            return none;
        }
    }
    return (struct decode_tokens){value->data, value->size, value->count};
}

/* The next element of an array of pairs; false where it is no pair. */
static bool read_bias(struct decode_cursor *cursor, shard_logit_bias *bias) {
    const struct decode_span span = {-INFINITY, FLT_MAX, false};
    struct decode_value pair, token, number;
    if (!decode_token(cursor, &pair) || pair.kind != DECODE_ARRAY || pair.count != 2 ||
        !decode_token(cursor, &token) || !is_token(&token) || !decode_token(cursor, &number) ||
        !is_in_span(float_of(&number), span)) {
        return false;
    }
    *bias = (shard_logit_bias){(int32_t)(int64_t)token.integer, float_of(&number)};
    return true;
}

struct decode_biases decode_optional_biases(struct decode_fields *fields, const char *key,
                                            uint32_t most) {
    const struct decode_biases none = {NULL, 0, 0};
    const struct decode_value *value = decode_find(fields->map, key);
    if (value == NULL) {
        return none;
    }
    char wanted[96];
    snprintf(wanted, sizeof(wanted), "an array of at most %" PRIu32 " pairs [token, bias]", most);
    if (value->kind != DECODE_ARRAY || value->count > most) {
        wrong(fields, key, wanted);
        return none;
    }
    struct decode_cursor cursor = {value->data, value->size};
    for (uint32_t i = 0; i < value->count; i++) {
        shard_logit_bias bias;
        if (!read_bias(&cursor, &bias)) {
            wrong(fields, key, wanted);
            return none;
        }
    }
    return (struct decode_biases){value->data, value->size, value->count};
}

void decode_biases_copy(const struct decode_biases *biases, shard_logit_bias *pairs) {
    struct decode_cursor cursor = {biases->data, biases->size};
    for (uint32_t i = 0; i < biases->count; i++) {
        read_bias(&cursor, &pairs[i]);
    }
}

void decode_tokens_copy(const struct decode_tokens *tokens, int32_t *ids) {
    struct decode_cursor cursor = {tokens->data, tokens->size};
    struct decode_value element = {.kind = DECODE_NIL};
    for (uint32_t i = 0; i < tokens->count; i++) {
        decode_token(&cursor, &element);
        ids[i] = (int32_t)(int64_t)element.integer;
    }
}

static void inner_of(struct decode_fields *fields, const char *key,
                     const struct decode_value *value, struct decode_map *inner) {
    if (value->kind != DECODE_MAP) {
        wrong(fields, key, "a map");
        return;
    }
    /* The whole body was checked before, so this cannot fail. */
    decode_body(value->data, value->size, inner, fields->failure);
}

void decode_inner(struct decode_fields *fields, const char *key, struct decode_map *inner) {
    inner->n_entries = 0;
    const struct decode_value *value = required(fields, key);
    if (value != NULL) {
        inner_of(fields, key, value, inner);
    }
}

void decode_optional_inner(struct decode_fields *fields, const char *key,
                           struct decode_map *inner) {
    inner->n_entries = 0;
    if (decode_is_there(fields, key)) {
        inner_of(fields, key, decode_find(fields->map, key), inner);
    }
}

bool decode_is_there(const struct decode_fields *fields, const char *key) {
    const struct decode_value *value = decode_find(fields->map, key);
    return value != NULL && value->kind != DECODE_NIL;
}

void decode_refuse_unknown(struct decode_fields *fields, const char *name, uint32_t n_known) {
    if (!failure_is_set(fields->failure) && fields->map->n_entries > n_known) {
        failure_set(fields->failure, CODE_BAD_MESSAGE,
                    "the %s has %" PRIu32 " keys, of which this worker knows %" PRIu32
                    "; leave the others out, or take a worker that knows them",
                    name, fields->map->n_entries, n_known);
        failure_add(fields->failure, "key", "%s", name);
    }
}
