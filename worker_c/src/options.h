/* The command line (docs/protocol.md, section 6). */
#ifndef WORKER_OPTIONS_H
#define WORKER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
    const char *engine;
    const char *fault_plan; /* NULL: none */
    uint64_t parent_pid;    /* 0: not said */
    uint32_t max_frame_bytes;
    uint64_t compute_nice; /* of the threads that compute; 0: as the process */
    bool wants_version;
    bool wants_help;
};

/* Reads the arguments, which the options then borrow. False with one line in `text` that says what
 * is wrong and what is right. */
bool options_read(struct options *options, int n_arguments, char *const *arguments, char *text,
                  size_t text_size);

/* The text of --help. */
extern const char OPTIONS_HELP[];

#endif /* WORKER_OPTIONS_H */
