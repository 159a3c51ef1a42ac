/* Reporting what goes on inside a long call of the engine: to the host as `progress`, to health,
 * and back to the engine whether to go on. */
#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "execution.h"
#include "progress.h"

struct report {
    struct execution *execution;
    struct job *job;
    struct progress progress;
};

void report_begin(struct report *report, struct execution *execution, struct job *job);

/* A `shard_progress_callback`; `user_data` is the report. False when the job was cancelled or the
 * worker stops. */
bool report_progress(const char *phase, uint64_t done, uint64_t total, void *user_data);

/* Sends the last figure, where that was held back. */
void report_end(struct report *report);

#endif /* WORKER_REPORT_H */
