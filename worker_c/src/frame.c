#include "frame.h"

#include "bounds.h"
#include "memory.h"

#include <inttypes.h>
#include <string.h>

static const uint8_t MAGIC[2] = {0x47, 0x57};

_Static_assert(PROTOCOL_MIN == PROTOCOL_MAX,
               "with two versions the writer must carry the one that the host chose");

void frame_reader_init(struct frame_reader *reader, uint32_t max_body) {
    memset(reader, 0, sizeof(*reader));
    reader->max_body = max_body;
}

struct frame_span frame_reader_want(struct frame_reader *reader) {
    if (reader->have < FRAME_HEADER_SIZE) {
        return (struct frame_span){reader->header + reader->have, FRAME_HEADER_SIZE - reader->have};
    }
    size_t done = reader->have - FRAME_HEADER_SIZE;
    return (struct frame_span){reader->body + done, reader->body_size - done};
}

static bool version_is_right(const struct frame_reader *reader, uint8_t version,
                             struct failure *failure) {
    bool fits = reader->version != 0 ? version == reader->version
                                     : version >= PROTOCOL_MIN && version <= PROTOCOL_MAX;
    if (fits) {
        return true;
    }
    failure_set(failure, CODE_BAD_FRAME,
                "a frame has protocol version %u, but this worker speaks %d to %d and keeps the "
                "version of the first frame; use a matching host",
                version, PROTOCOL_MIN, PROTOCOL_MAX);
    failure_add(failure, "version", "%u", version);
    failure_add(failure, "protocol_min", "%d", PROTOCOL_MIN);
    failure_add(failure, "protocol_max", "%d", PROTOCOL_MAX);
    return false;
}

static uint32_t little_endian(const uint8_t bytes[4]) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static bool header_is_right(struct frame_reader *reader, struct failure *failure) {
    const uint8_t *header = reader->header;
    if (memcmp(header, MAGIC, sizeof(MAGIC)) != 0) {
        return failure_set(
            failure, CODE_BAD_FRAME,
            "a frame starts with %02x %02x in place of %02x %02x; write whole frames", header[0],
            header[1], MAGIC[0], MAGIC[1]);
    }
    if (!version_is_right(reader, header[2], failure)) {
        return false;
    }
    if (header[3] != 0) {
        return failure_set(failure, CODE_BAD_FRAME,
                           "a frame has flags %02x; version %u knows none, so send 0", header[3],
                           header[2]);
    }
    uint32_t size = little_endian(header + 4);
    if (size > reader->max_body) {
        failure_set(failure, CODE_BAD_FRAME,
                    "a frame's body of %" PRIu32 " bytes is over the limit of %" PRIu32
                    "; send less, or start the worker with a larger --max-frame-bytes",
                    size, reader->max_body);
        failure_add(failure, "body_bytes", "%" PRIu32, size);
        failure_add(failure, "max_frame_bytes", "%" PRIu32, reader->max_body);
        return false;
    }
    if (size == 0) {
        return failure_set(failure, CODE_BAD_FRAME,
                           "a frame has no body; send exactly one msgpack map");
    }
    reader->version = header[2];
    reader->body_size = size;
    return true;
}

static enum frame_verdict start_body(struct frame_reader *reader, struct failure *failure) {
    if (!header_is_right(reader, failure)) {
        return FRAME_BAD;
    }
    reader->body = memory_allocate(reader->body_size);
    if (reader->body == NULL) {
        failure_set_memory(failure, reader->body_size);
        return FRAME_NO_MEMORY;
    }
    return FRAME_PARTIAL;
}

enum frame_verdict frame_reader_filled(struct frame_reader *reader, size_t n_bytes,
                                       struct failure *failure) {
    bool had_header = reader->have >= FRAME_HEADER_SIZE;
    reader->have += n_bytes;
    if (reader->have < FRAME_HEADER_SIZE) {
        return FRAME_PARTIAL;
    }
    if (!had_header) {
        return start_body(reader, failure);
    }
    return reader->have - FRAME_HEADER_SIZE == reader->body_size ? FRAME_WHOLE : FRAME_PARTIAL;
}

uint8_t *frame_reader_take(struct frame_reader *reader, size_t *size) {
    uint8_t *body = reader->body;
    *size = reader->body_size;
    reader->body = NULL;
    reader->body_size = 0;
    reader->have = 0;
    return body;
}

void frame_reader_free(struct frame_reader *reader) {
    memory_release(reader->body);
    reader->body = NULL;
}

void frame_write_header(uint8_t header[FRAME_HEADER_SIZE], uint32_t body_size) {
    memcpy(header, MAGIC, sizeof(MAGIC));
    header[2] = PROTOCOL_MIN;
    header[3] = 0;
    for (int i = 0; i < 4; i++) {
        header[4 + i] = (uint8_t)(body_size >> (8 * i));
    }
}
