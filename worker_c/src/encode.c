#include "encode.h"

#include "frame.h"
#include "memory.h"
#include "utf8.h"

#include <mpack.h>
#include <string.h>

/* Rows go onto the wire as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows must be little-endian");
_Static_assert(sizeof(float) == 4, "rows must be float32");

void encode_start(struct encoder *encoder) {
    memset(encoder, 0, sizeof(*encoder));
    encoder->size = FRAME_HEADER_SIZE;
}

void encode_start_fixed(struct encoder *encoder, void *storage, size_t capacity) {
    encode_start(encoder);
    encoder->data = storage;
    encoder->capacity = capacity;
    encoder->is_fixed = true;
}

size_t encode_body_size(const struct encoder *encoder) {
    return encoder->size - FRAME_HEADER_SIZE + encoder->tail_size;
}

bool encode_finish(struct encoder *encoder) {
    if (encoder->has_failed || encode_body_size(encoder) > UINT32_MAX) {
        return false;
    }
    frame_write_header(encoder->data, (uint32_t)encode_body_size(encoder));
    return true;
}

void encode_free(struct encoder *encoder) {
    if (!encoder->is_fixed) {
        memory_release(encoder->data);
    }
    encoder->data = NULL;
}

/* Makes room for `n_bytes` more. */
static bool reserve(struct encoder *encoder, size_t n_bytes) {
    size_t needed = encoder->size + n_bytes;
    if (encoder->has_failed || needed <= encoder->capacity) {
        return !encoder->has_failed;
    }
    size_t capacity = needed + needed / 2 + 256;
    uint8_t *data = encoder->is_fixed ? NULL : memory_resize(encoder->data, capacity);
    if (data == NULL) {
        encoder->has_failed = true;
        return false;
    }
    encoder->data = data;
    encoder->capacity = capacity;
    return true;
}

static void put_bytes(struct encoder *encoder, const void *bytes, size_t size) {
    if (reserve(encoder, size) && size > 0) {
        memcpy(encoder->data + encoder->size, bytes, size);
        encoder->size += size;
    }
}

static void put_token(struct encoder *encoder, mpack_token_t token) {
    if (!reserve(encoder, MPACK_MAX_TOKEN_LEN)) {
        return;
    }
    mpack_tokbuf_t writer;
    mpack_tokbuf_init(&writer);
    char *at = (char *)encoder->data + encoder->size;
    size_t left = MPACK_MAX_TOKEN_LEN;
    mpack_write(&writer, &at, &left, &token);
    encoder->size += MPACK_MAX_TOKEN_LEN - left;
}

static void put_key(struct encoder *encoder, const char *key) {
    if (key != NULL) {
        put_token(encoder, mpack_pack_str((uint32_t)strlen(key)));
        put_bytes(encoder, key, strlen(key));
    }
}

static void put(struct encoder *encoder, const char *key, mpack_token_t token) {
    put_key(encoder, key);
    put_token(encoder, token);
}

void encode_map(struct encoder *encoder, const char *key, uint32_t n_keys) {
    put(encoder, key, mpack_pack_map(n_keys));
}

void encode_array(struct encoder *encoder, const char *key, uint32_t n_elements) {
    put(encoder, key, mpack_pack_array(n_elements));
}

void encode_nil(struct encoder *encoder, const char *key) {
    put(encoder, key, mpack_pack_nil());
}

void encode_bool(struct encoder *encoder, const char *key, bool value) {
    put(encoder, key, mpack_pack_boolean(value));
}

void encode_uint(struct encoder *encoder, const char *key, uint64_t value) {
    put(encoder, key, mpack_pack_uint(value));
}

void encode_int(struct encoder *encoder, const char *key, int64_t value) {
    put(encoder, key, mpack_pack_sint(value));
}

void encode_float(struct encoder *encoder, const char *key, float value) {
    /* A float32 survives the way through double, so libmpack writes it as 4 bytes again. */
    put(encoder, key, mpack_pack_float((double)value));
}

void encode_text(struct encoder *encoder, const char *key, const char *text) {
    size_t size = strlen(text);
    put(encoder, key, mpack_pack_str((uint32_t)size));
    size_t start = encoder->size;
    put_bytes(encoder, text, size);
    if (!encoder->has_failed) {
        utf8_mend(encoder->data + start, size);
    }
}

void encode_bytes(struct encoder *encoder, const char *key, const void *bytes, size_t size) {
    put(encoder, key, mpack_pack_bin((uint32_t)size));
    put_bytes(encoder, bytes, size);
}

void encode_tail(struct encoder *encoder, const char *key, const void *bytes, size_t size) {
    put(encoder, key, mpack_pack_bin((uint32_t)size));
    encoder->tail = bytes;
    encoder->tail_size = size;
}
