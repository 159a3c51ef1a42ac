/*
 * Reading a body: one msgpack map, looked at where it lies. Nothing is allocated and nothing
 * copied; a view borrows the body's bytes.
 *
 *     struct decode_map map;
 *     if (!decode_body(body, size, &map, &failure)) { ...bad_frame... }
 *     struct decode_fields fields = {&map, &failure};
 *     uint64_t session = decode_uint(&fields, "session", 1, UINT64_MAX);
 *     bool mlock = decode_optional_bool(&fields, "mlock", false);
 *     if (failure_is_set(&failure)) { ...bad_message... }
 *
 * The first failure sticks, and what is read afterwards is zero, so a caller checks once.
 */
#ifndef WORKER_DECODE_H
#define WORKER_DECODE_H

#include "bounds.h"
#include "failure.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum decode_kind {
    DECODE_NIL,
    DECODE_BOOL,
    DECODE_UINT,
    DECODE_SINT, /* below zero */
    DECODE_FLOAT,
    DECODE_STR,
    DECODE_BIN,
    DECODE_EXT,
    DECODE_ARRAY,
    DECODE_MAP
};

struct decode_value {
    enum decode_kind kind;
    uint64_t integer;    /* UINT; SINT in two's complement; BOOL as 0 or 1 */
    double number;       /* FLOAT */
    const uint8_t *data; /* STR, BIN, EXT: the bytes; ARRAY: its first element; MAP: its header */
    size_t size;         /* bytes at `data` */
    uint32_t count;      /* elements of an ARRAY, keys of a MAP */
};

struct decode_entry {
    const uint8_t *key;
    size_t key_size;
    struct decode_value value;
};

struct decode_map {
    uint32_t n_entries;
    struct decode_entry entries[LIMIT_KEYS];
};

/* Reads a body and checks all of it: one map, nothing after it, string keys, no key twice, at most
 * LIMIT_KEYS keys in a map and LIMIT_DEPTH levels. A failure is `bad_frame`. */
bool decode_body(const uint8_t *body, size_t size, struct decode_map *map, struct failure *failure);

/* NULL where the map lacks the key. */
const struct decode_value *decode_find(const struct decode_map *map, const char *key);

/* ---- typed access; every failure is `bad_message` and names the key ---- */

struct decode_fields {
    const struct decode_map *map;
    struct failure *failure;
};

/* A string or binary value, borrowed from the body; `data` is NULL where an optional one is absent.
 */
struct decode_text {
    const char *data;
    size_t size;
};

/* Token ids, still encoded; decode_tokens_copy unpacks them. */
struct decode_tokens {
    const uint8_t *data;
    size_t size;
    uint32_t count;
};

/* Pairs of a token id and a float32, still encoded; decode_biases_copy unpacks them. */
struct decode_biases {
    const uint8_t *data;
    size_t size;
    uint32_t count;
};

/* The float32 numbers from `least` to `most`, `least` itself only where it is not `above`. */
struct decode_span {
    float least, most;
    bool above;
};

uint64_t decode_uint(struct decode_fields *fields, const char *key, uint64_t least, uint64_t most);
uint64_t decode_optional_uint(struct decode_fields *fields, const char *key, uint64_t least,
                              uint64_t most, uint64_t otherwise);
int64_t decode_optional_int(struct decode_fields *fields, const char *key, int64_t least,
                            int64_t most, int64_t otherwise);
bool decode_optional_bool(struct decode_fields *fields, const char *key, bool otherwise);

/* A number, integer or float, rounded to the nearest float32 before it is looked at. Never NaN. */
float decode_optional_float(struct decode_fields *fields, const char *key, struct decode_span span,
                            float otherwise);

/* Text of at most `most` bytes. */
struct decode_text decode_text(struct decode_fields *fields, const char *key, size_t most);

/* The same; absent and nil are alike. */
struct decode_text decode_optional_text(struct decode_fields *fields, const char *key, size_t most);

/* The same, without NUL among its bytes. */
struct decode_text decode_optional_name(struct decode_fields *fields, const char *key, size_t most);

/* A path or a name: at least one byte, none of them NUL, fewer than LIMIT_PATH. */
struct decode_text decode_path(struct decode_fields *fields, const char *key);
struct decode_text decode_optional_path(struct decode_fields *fields, const char *key);

/* An array [start, end] of two uint32. */
void decode_range(struct decode_fields *fields, const char *key, uint32_t *start, uint32_t *end);

/* An array of int32, checked element by element. */
struct decode_tokens decode_tokens(struct decode_fields *fields, const char *key);

/* An array of at most `most` arrays [token id, bias]; a bias may be minus infinity. Absent: empty.
 */
struct decode_biases decode_optional_biases(struct decode_fields *fields, const char *key,
                                            uint32_t most);

/* Whether the key is there and not nil. */
bool decode_is_there(const struct decode_fields *fields, const char *key);

/* The inner map of a key. An absent optional one is empty. */
void decode_inner(struct decode_fields *fields, const char *key, struct decode_map *inner);
void decode_optional_inner(struct decode_fields *fields, const char *key, struct decode_map *inner);

/* Refuses a map, called `name`, that holds more keys than the `n_known` which were found in it: to
 * pass over an unknown one could change what it means. */
void decode_refuse_unknown(struct decode_fields *fields, const char *name, uint32_t n_known);

/* Unpacks `tokens.count` ids into `ids`. */
void decode_tokens_copy(const struct decode_tokens *tokens, int32_t *ids);

/* Unpacks `biases.count` pairs into `pairs`. */
void decode_biases_copy(const struct decode_biases *biases, shard_logit_bias *pairs);

#endif /* WORKER_DECODE_H */
