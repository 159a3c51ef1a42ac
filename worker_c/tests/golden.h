/* The golden frames of docs/protocol.md, as tests/golden/frames.tsv has them. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden {
    char name[64];
    bool is_to_worker; /* else to the host */
    char verdict[16];  /* ok, bad_frame or bad_message */
    uint8_t *bytes;    /* the whole frame */
    size_t size;
    char *json; /* the message, or "null" */
};

/* Calls `visit` with each line in turn and returns how many there were; 0 when the file is not
 * there or a line is not as it must be, which is printed. */
size_t golden_each(void (*visit)(const struct golden *golden));

#endif /* TEST_GOLDEN_H */
