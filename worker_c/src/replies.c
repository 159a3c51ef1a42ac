#include "replies.h"

#include "answer.h"

#include <inttypes.h>
#include <string.h>

_Static_assert(FAILURE_MAX_FIELDS *(SHARD_NAME_SIZE + SHARD_TEXT_SIZE + 16) + SHARD_MESSAGE_SIZE <
                   REPLY_STORAGE,
               "an error must fit");
_Static_assert(SHARD_MAX_DEVICES * (2 * SHARD_NAME_SIZE + SHARD_TEXT_SIZE + 128) +
                       SHARD_FEATURES_SIZE <
                   REPLY_STORAGE,
               "hello must fit");
/* A candidate's map takes 43 bytes beside its text, a result 512 beside its candidates. */
_Static_assert(512 + 48 * LIMIT_TOP + LIMIT_TOP_TEXT < REPLY_STORAGE, "a result must fit");
_Static_assert(REPLY_STORAGE < (int)FRAME_BYTES_LEAST, "a small answer fits in every frame");

void replies_init(struct replies *replies, struct transport *transport, uint32_t max_frame_bytes) {
    replies->transport = transport;
    replies->max_frame_bytes = max_frame_bytes;
    atomic_init(&replies->n_requests, 0);
    atomic_init(&replies->n_errors, 0);
}

void reply_failure(struct replies *replies, uint64_t id, const struct failure *failure) {
    if (id != 0) {
        /* A generation that ends by itself is nobody's error. */
        const bool is_error = strcmp(failure->code, CODE_NO_DRAW) != 0;
        atomic_fetch_add(&replies->n_requests, 1);
        atomic_fetch_add(&replies->n_errors, is_error);
    }
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_error(&encoder, id, failure);
    reply_notice(replies, &encoder);
}

static bool is_sendable(const struct replies *replies, struct encoder *encoder,
                        struct failure *failure) {
    if (!encode_finish(encoder)) {
        return failure_set_memory(failure, encode_body_size(encoder));
    }
    if (encode_body_size(encoder) > replies->max_frame_bytes) {
        failure_set(failure, CODE_BAD_MESSAGE,
                    "the answer has %zu bytes and a frame holds %" PRIu32
                    "; ask for less, or start the worker with a larger --max-frame-bytes",
                    encode_body_size(encoder), replies->max_frame_bytes);
        failure_add(failure, "body_bytes", "%zu", encode_body_size(encoder));
        failure_add(failure, "max_frame_bytes", "%" PRIu32, replies->max_frame_bytes);
        return false;
    }
    return true;
}

void reply_answer(struct replies *replies, uint64_t id, struct encoder *encoder) {
    struct failure failure;
    failure_clear(&failure);
    if (is_sendable(replies, encoder, &failure)) {
        atomic_fetch_add(&replies->n_requests, 1);
        transport_send(replies->transport, encoder);
    } else {
        reply_failure(replies, id, &failure);
    }
    encode_free(encoder);
}

void reply_notice(struct replies *replies, struct encoder *encoder) {
    if (encode_finish(encoder)) {
        transport_send(replies->transport, encoder);
    }
    encode_free(encoder);
}

void reply_last(struct replies *replies, struct encoder *encoder) {
    if (encode_finish(encoder)) {
        transport_send_last(replies->transport, encoder);
    }
    encode_free(encoder);
}

void reply_last_failure(struct replies *replies, const struct failure *failure) {
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_error(&encoder, 0, failure);
    reply_last(replies, &encoder);
}
