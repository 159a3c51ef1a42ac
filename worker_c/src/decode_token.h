/* One msgpack token at a time, through libmpack. */
#ifndef WORKER_DECODE_TOKEN_H
#define WORKER_DECODE_TOKEN_H

#include "decode.h"

struct decode_cursor {
    const uint8_t *at;
    size_t left;
};

/* Reads the next token and moves on. Strings, binaries and extensions are passed over whole; of
 * arrays and maps only the header is read, and `data` is where that header lies. False when the
 * bytes end early or start nothing. */
bool decode_token(struct decode_cursor *cursor, struct decode_value *value);

#endif /* WORKER_DECODE_TOKEN_H */
