#include "stream.h"

#include "bounds.h"

#include <string.h>

size_t stream_feed(struct frame_reader *reader, const uint8_t *bytes, size_t size, size_t step,
                   enum frame_verdict *verdict, struct failure *failure) {
    size_t taken = 0;
    *verdict = FRAME_PARTIAL;
    while (*verdict == FRAME_PARTIAL && taken < size) {
        struct frame_span want = frame_reader_want(reader);
        size_t n_bytes = want.size < step ? want.size : step;
        n_bytes = n_bytes < size - taken ? n_bytes : size - taken;
        memcpy(want.data, bytes + taken, n_bytes);
        taken += n_bytes;
        *verdict = frame_reader_filled(reader, n_bytes, failure);
    }
    return taken;
}

static const char *read_request(struct frame_reader *reader, struct request *request,
                                struct failure *failure) {
    const shard_recipe defaults = {.n_ctx = 4096};
    size_t size;
    uint8_t *body = frame_reader_take(reader, &size);
    bool is_right = request_read(request, body, size, &defaults, failure);
    request_free(request);
    return is_right ? "ok" : failure->code;
}

const char *stream_verdict(const uint8_t *bytes, size_t size, size_t step,
                           struct request *request) {
    struct request scratch;
    struct frame_reader reader;
    struct failure failure;
    enum frame_verdict verdict;
    frame_reader_init(&reader, FRAME_BYTES_DEFAULT);
    failure_clear(&failure);
    stream_feed(&reader, bytes, size, step, &verdict, &failure);
    const char *result = verdict == FRAME_PARTIAL ? "partial" : failure.code;
    if (verdict == FRAME_WHOLE) {
        result = read_request(&reader, request != NULL ? request : &scratch, &failure);
    }
    frame_reader_free(&reader);
    return result;
}
