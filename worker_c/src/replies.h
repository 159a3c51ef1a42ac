/*
 * Resolving requests: every answer and every error goes through here, is counted once, and always
 * gets out. A reply that needs no growing memory is written in a `reply_storage` on the caller's
 * stack, so that running out of memory cannot leave a request without an answer.
 */
#ifndef WORKER_REPLIES_H
#define WORKER_REPLIES_H

#include "bounds.h"
#include "encode.h"
#include "failure.h"
#include "transport.h"

#include <stdatomic.h>
#include <stdint.h>

/* Room for an error with every field, and for every answer but lists as long as the request makes
 * them. Rows and text are tails, which take none. */
enum { REPLY_STORAGE = 24 * 1024 };

typedef uint8_t reply_storage[REPLY_STORAGE];

struct replies {
    struct transport *transport;
    uint32_t max_frame_bytes;
    atomic_uint_fast64_t n_requests; /* resolved */
    atomic_uint_fast64_t n_errors;   /* of these, by an error */
};

void replies_init(struct replies *replies, struct transport *transport, uint32_t max_frame_bytes);

/* Sends the answer of request `id`; an error in its place when it was too long or had no memory.
 * Frees the encoder. */
void reply_answer(struct replies *replies, uint64_t id, struct encoder *encoder);

/* Sends the error of request `id`, 0 for an error that belongs to none. */
void reply_failure(struct replies *replies, uint64_t id, const struct failure *failure);

/* Sends what resolves nothing, such as progress. Frees the encoder. */
void reply_notice(struct replies *replies, struct encoder *encoder);

/* The last frame of this process, either kind. Frees the encoder. */
void reply_last(struct replies *replies, struct encoder *encoder);
void reply_last_failure(struct replies *replies, const struct failure *failure);

#endif /* WORKER_REPLIES_H */
