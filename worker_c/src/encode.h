/*
 * Writing a frame. The one large value of a message may stay where it lies: it is put last, as a
 * tail that the transport writes without a copy.
 *
 *     struct encoder encoder;
 *     encode_start(&encoder);
 *     encode_map(&encoder, NULL, 2);
 *     encode_text(&encoder, "type", "pong");
 *     encode_uint(&encoder, "id", id);
 *     if (encode_finish(&encoder)) { ...write encoder.data, then encoder.tail... }
 *     encode_free(&encoder);
 *
 * An allocation that fails sticks: later calls do nothing, and encode_finish gives false.
 */
#ifndef WORKER_ENCODE_H
#define WORKER_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct encoder {
    uint8_t *data; /* the header, then the body but for its tail */
    size_t size;
    size_t capacity;
    bool is_fixed; /* `data` is the caller's and does not grow */
    bool has_failed;
    const void *tail; /* borrowed until the frame is written; NULL: none */
    size_t tail_size;
};

void encode_start(struct encoder *encoder);

/* The same in the caller's memory, for what must be said when there is no other. */
void encode_start_fixed(struct encoder *encoder, void *storage, size_t capacity);

/* Writes the frame's header. False when memory ran out or the body is too long for one. */
bool encode_finish(struct encoder *encoder);
size_t encode_body_size(const struct encoder *encoder);
void encode_free(struct encoder *encoder);

/* ---- values; `key` is written before the value, NULL inside an array or for the outer map ---- */

void encode_map(struct encoder *encoder, const char *key, uint32_t n_keys);
void encode_array(struct encoder *encoder, const char *key, uint32_t n_elements);
void encode_nil(struct encoder *encoder, const char *key);
void encode_bool(struct encoder *encoder, const char *key, bool value);
void encode_uint(struct encoder *encoder, const char *key, uint64_t value);
void encode_int(struct encoder *encoder, const char *key, int64_t value);
void encode_float(struct encoder *encoder, const char *key, float value);

/* A NUL-terminated text as `str`. Bytes that are not UTF-8 become '?', so that no path and no cut
 * message can make a frame that the host cannot read. */
void encode_text(struct encoder *encoder, const char *key, const char *text);

/* Bytes as `bin`, copied. */
void encode_bytes(struct encoder *encoder, const char *key, const void *bytes, size_t size);

/* Bytes as `bin`, borrowed until the frame is written. Nothing may be added afterwards. */
void encode_tail(struct encoder *encoder, const char *key, const void *bytes, size_t size);

#endif /* WORKER_ENCODE_H */
