/* Bytes that may or may not be UTF-8. */
#ifndef WORKER_UTF8_H
#define WORKER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Replaces, in place, each byte that is no part of a well-formed UTF-8 sequence by '?' (RFC 3629:
 * no overlong form, no surrogate, nothing above U+10FFFF). */
void utf8_mend(uint8_t *bytes, size_t size);

/* Whether all bytes are parts of such sequences. */
bool utf8_is_valid(const uint8_t *bytes, size_t size);

#endif /* WORKER_UTF8_H */
