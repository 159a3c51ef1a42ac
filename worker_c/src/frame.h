/*
 * Frames: an 8-byte header and a body (docs/protocol.md, section 2). No I/O happens here:
 *
 *     struct frame_span want = frame_reader_want(&reader);
 *     n = read(fd, want.data, want.size);
 *     switch (frame_reader_filled(&reader, n, &failure)) {
 *     case FRAME_WHOLE: body = frame_reader_take(&reader, &size); ...
 *
 * Magic, version, flags and length are checked when the header is whole, before memory for the body
 * is asked for.
 */
#ifndef WORKER_FRAME_H
#define WORKER_FRAME_H

#include "failure.h"

#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEADER_SIZE = 8 };

struct frame_reader {
    uint32_t max_body;
    uint8_t version; /* chosen by the host's first frame; 0 before it */
    uint8_t header[FRAME_HEADER_SIZE];
    size_t have; /* bytes of the current frame that are here, header included */
    uint8_t *body;
    uint32_t body_size;
};

/* Where the next bytes of the stream belong; `size` is never 0. */
struct frame_span {
    uint8_t *data;
    size_t size;
};

enum frame_verdict {
    FRAME_PARTIAL,  /* more bytes are wanted */
    FRAME_WHOLE,    /* take the body */
    FRAME_BAD,      /* the stream cannot be trusted any more; the failure says why */
    FRAME_NO_MEMORY /* the body does not fit in memory; the stream is lost as well */
};

void frame_reader_init(struct frame_reader *reader, uint32_t max_body);
struct frame_span frame_reader_want(struct frame_reader *reader);
enum frame_verdict frame_reader_filled(struct frame_reader *reader, size_t n_bytes,
                                       struct failure *failure);

/* Hands the body to the caller, who releases it with memory_release, and starts the next frame. */
uint8_t *frame_reader_take(struct frame_reader *reader, size_t *size);

/* Releases a body that was not taken. */
void frame_reader_free(struct frame_reader *reader);

void frame_write_header(uint8_t header[FRAME_HEADER_SIZE], uint32_t body_size);

#endif /* WORKER_FRAME_H */
