/* Invariant: whatever bytes a host sends, every frame in them ends in a request or in one of the
 * two failures that the protocol has for it; nothing is read outside the bytes, nothing leaks, and
 * no single allocation is larger than the limit of a frame. */
#include "frame.h"
#include "memory.h"
#include "request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LIMIT = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static void *bounded(void *block, size_t size) {
    require(size <= LIMIT);
    if (size == 0) {
        free(block);
        return NULL;
    }
    return realloc(block, size);
}

/* Unpacks all that a request names, as the execution thread does. */
static void use_tokens(const struct decode_tokens *tokens) {
    int32_t *ids = malloc((size_t)tokens->count * sizeof(*ids) + 1);
    if (ids != NULL) {
        decode_tokens_copy(tokens, ids);
    }
    free(ids);
}

static void use_sampling(const struct sampling_request *sampling) {
    struct sampling_unpacked unpacked;
    struct failure failure;
    failure_clear(&failure);
    if (sampling_unpack(sampling, &unpacked, &failure)) {
        const char *grammar = unpacked.sampling.grammar;
        require(grammar == NULL || strlen(grammar) == sampling->grammar.size);
        require(unpacked.sampling.n_logit_bias <= LIMIT_LOGIT_BIAS);
        for (uint32_t i = 0; i < unpacked.sampling.n_logit_bias; i++) {
            require(unpacked.sampling.logit_bias[i].bias < INFINITY);
        }
    }
    sampling_unpacked_free(&unpacked);
}

static void use(const struct request *request) {
    if (request->type == REQUEST_OPEN) {
        use_sampling(&request->as.open.sampling);
    } else if (request->type == REQUEST_FORWARD) {
        use_tokens(&request->as.forward.tokens);
    } else if (request->type == REQUEST_DETOKENIZE) {
        use_tokens(&request->as.detokenize.tokens);
    } else if (request->type == REQUEST_TOKEN_INFO) {
        use_tokens(&request->as.token_info.tokens);
    }
}

/* False when the stream is lost. */
static bool read_request(struct frame_reader *reader) {
    const shard_recipe defaults = {.n_ctx = 4096};
    struct failure failure;
    struct request request;
    failure_clear(&failure);
    size_t size;
    uint8_t *body = frame_reader_take(reader, &size);
    bool is_right = request_read(&request, body, size, &defaults, &failure);
    if (is_right) {
        use(&request);
    }
    bool is_lost = !is_right && strcmp(failure.code, CODE_BAD_FRAME) == 0;
    require(is_right || is_lost || strcmp(failure.code, CODE_BAD_MESSAGE) == 0);
    request_free(&request);
    return !is_lost;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct frame_reader reader;
    struct failure failure;
    memory_replace(bounded);
    frame_reader_init(&reader, LIMIT);
    failure_clear(&failure);
    bool goes_on = true;
    while (goes_on && size > 0) {
        struct frame_span want = frame_reader_want(&reader);
        size_t n_bytes = want.size < size ? want.size : size;
        memcpy(want.data, data, n_bytes);
        data += n_bytes;
        size -= n_bytes;
        enum frame_verdict verdict = frame_reader_filled(&reader, n_bytes, &failure);
        goes_on = verdict == FRAME_PARTIAL || (verdict == FRAME_WHOLE && read_request(&reader));
    }
    frame_reader_free(&reader);
    return 0;
}
