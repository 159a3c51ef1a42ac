/* Bytes of a stream through the frame reader and the request reader, as the control thread does it.
 */
#ifndef TEST_STREAM_H
#define TEST_STREAM_H

#include "failure.h"
#include "frame.h"
#include "request.h"

/* Feeds at most `step` bytes at a time, until a frame has a verdict or the bytes end. Returns how
 * many bytes were taken. */
size_t stream_feed(struct frame_reader *reader, const uint8_t *bytes, size_t size, size_t step,
                   enum frame_verdict *verdict, struct failure *failure);

/* The whole way of one request: "ok", "bad_frame", "bad_message", "memory", or "partial" when the
 * bytes end early. Nothing stays allocated. `request` may be NULL; the type and id in it stay
 * valid. */
const char *stream_verdict(const uint8_t *bytes, size_t size, size_t step, struct request *request);

#endif /* TEST_STREAM_H */
