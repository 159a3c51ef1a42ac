/*
 * The descriptors of the protocol, and nothing else: where bytes come from and where frames go.
 *
 * The protocol moves off descriptors 0 and 1 before any library call: 0 becomes /dev/null and 1
 * becomes stderr, so whatever a library (or a debugger that it forks) prints cannot end up between
 * frames, and no child inherits the pipes.
 */
#ifndef WORKER_TRANSPORT_H
#define WORKER_TRANSPORT_H

#include "encode.h"
#include "wake.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct transport {
    int in;
    int out;
    pthread_mutex_t lock; /* held while one whole frame is written */
    bool is_sealed;       /* the last frame was written */
    atomic_int error;     /* errno of the write that failed; 0 */
    const struct wake *wake;
    /* Called with `lock` held before a frame is written; NULL but for fault plans. */
    void (*before_frame)(const void *context, int out, const struct encoder *encoder);
    const void *before_frame_context;
};

/* Opens /dev/null in place of standard descriptors that are closed. To be called before any other
 * descriptor is made: it would get such a number, and be taken for the protocol. */
bool transport_fill_standard_descriptors(void);

/* Moves the standard descriptors. `wake` is rung when a write fails. False with errno set. */
bool transport_open(struct transport *transport, const struct wake *wake);
void transport_close(struct transport *transport);

/* Writes a frame that encode_finish has finished; any thread may. False when the frame was not
 * written whole: the host is gone, or the last frame was written before. */
bool transport_send(struct transport *transport, const struct encoder *encoder);

/* The same, and afterwards no other frame is written. */
bool transport_send_last(struct transport *transport, const struct encoder *encoder);

/* Reads at most `size` bytes: how many, 0 at the end, -1 with errno set. Never interrupted. */
ptrdiff_t transport_read(const struct transport *transport, void *bytes, size_t size);

#endif /* WORKER_TRANSPORT_H */
