/*
 * The control thread: it reads frames, answers `ping`, `health`, `cancel` and `shutdown` at once,
 * and queues the rest. It never waits for the engine: all that it calls of it is `cancel` and
 * `progress`.
 */
#ifndef WORKER_CONTROL_H
#define WORKER_CONTROL_H

#include "frame.h"
#include "replies.h"
#include "state.h"
#include "transport.h"
#include "wake.h"

struct control {
    struct state *state;
    struct replies *replies;
    struct transport *transport;
    const struct wake *wake;
    shard_recipe default_recipe;
    struct frame_reader *reader;
    bool input_is_open;
    uint64_t shutdown_id; /* of the request that began the stop; 0: none did */
    int status;           /* exit status of an end that cannot be in order; 0 */
};

/* Serves the host until the execution thread has finished, or until the stream is broken. Returns
 * the exit status; `shutdown_id` says whose `bye` is due. With a status other than 0 the execution
 * thread may still run, and the process should end at once. */
int control_run(struct control *control);

#endif /* WORKER_CONTROL_H */
