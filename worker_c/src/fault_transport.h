/*
 * Fault plans of the transport: failures that happen on the pipe and not in an engine, made on
 * purpose. Only with the fake engine; shard_engine/fake/fault_plan.h has the words of the engine,
 * and both kinds may stand in one plan.
 *
 *     hold@FRAME          never send that frame, nor any after it; the process lives on
 *     half-frame@FRAME    send half of that frame, then hold
 *     huge-length@FRAME   send a header that claims 4 GiB in place of that frame, then hold
 *     garbage@FRAME       send text in place of that frame, then hold
 *     exit:C@FRAME        leave the process with exit status C (0 to 255) in place of that frame
 *     stderr-flood@FRAME  write 4 MiB of lines to stderr before that frame, then go on
 *     ignore-term         ignore SIGTERM
 *     grandchild          start a process that holds the pipes open, for a minute at most
 *     grandchild-away     the same in a session of its own, which no signal to our group reaches
 *
 * FRAME is the type of a message of the worker: hello, progress, loaded, result, pong, bye, ...
 * What happens in place of a frame is announced by a line on stderr.
 */
#ifndef WORKER_FAULT_TRANSPORT_H
#define WORKER_FAULT_TRANSPORT_H

#include "transport.h"

#include <stdbool.h>
#include <stddef.h>

enum { FAULT_TRANSPORT_MAX_WORDS = 16, FAULT_TRANSPORT_MAX_PLAN = 1024 };

struct transport_fault_word {
    int action;
    int exit_status;
    const char *frame; /* a type; NULL: at the start */
};

struct fault_transport {
    size_t n_words;
    struct transport_fault_word words[FAULT_TRANSPORT_MAX_WORDS];
    char engine_plan[FAULT_TRANSPORT_MAX_PLAN]; /* the words that are not ours */
};

/* Takes the transport's words out of `plan`. False with one line in `text` that says which word is
 * wrong. Words that are nobody's are left to the engine, which refuses them. */
bool fault_transport_read(struct fault_transport *faults, const char *plan, char *text,
                          size_t text_size);

/* Does what happens at the start, and hooks the rest into an open transport. */
void fault_transport_install(const struct fault_transport *faults, struct transport *transport);

#endif /* WORKER_FAULT_TRANSPORT_H */
