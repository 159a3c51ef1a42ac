/* How often progress is reported: the first and the last figure of each phase, and in between ten
 * times a second at most. Pure: time is an argument. */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "shard_engine.h"

#include <stdbool.h>
#include <stdint.h>

enum { PROGRESS_INTERVAL_US = 100 * 1000 };

struct progress_report {
    char phase[SHARD_NAME_SIZE];
    uint64_t done, total;
};

/* Zero-filled at the start. */
struct progress {
    struct progress_report latest;
    bool has_unsent; /* `latest` was not reported */
    bool sent_last;  /* this phase's last figure was reported */
    uint64_t sent_at_us;
};

/* Takes a figure and fills what is to be reported now, in order: 0, 1 or 2 reports. */
uint32_t progress_offer(struct progress *progress, const char *phase, uint64_t done, uint64_t total,
                        uint64_t now_us, struct progress_report reports[2]);

/* No more figures come: 0 or 1 reports. */
uint32_t progress_end(struct progress *progress, struct progress_report *report);

#endif /* WORKER_PROGRESS_H */
