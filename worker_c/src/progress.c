#include "progress.h"

#include <stdio.h>
#include <string.h>

uint32_t progress_end(struct progress *progress, struct progress_report *report) {
    if (!progress->has_unsent) {
        return 0;
    }
    progress->has_unsent = false;
    progress->sent_last = progress->latest.done >= progress->latest.total;
    *report = progress->latest;
    return 1;
}

static bool is_due(const struct progress *progress, bool is_new_phase, uint64_t now_us) {
    bool is_last = progress->latest.done >= progress->latest.total && !progress->sent_last;
    return is_new_phase || is_last || now_us - progress->sent_at_us >= PROGRESS_INTERVAL_US;
}

uint32_t progress_offer(struct progress *progress, const char *phase, uint64_t done, uint64_t total,
                        uint64_t now_us, struct progress_report reports[2]) {
    uint32_t n_reports = 0;
    bool is_new_phase = strcmp(progress->latest.phase, phase) != 0;
    if (is_new_phase) {
        n_reports = progress_end(progress, reports);
    }
    snprintf(progress->latest.phase, sizeof(progress->latest.phase), "%s", phase);
    progress->latest.done = done;
    progress->latest.total = total;
    progress->has_unsent = true;
    if (is_due(progress, is_new_phase, now_us)) {
        progress->sent_at_us = now_us;
        n_reports += progress_end(progress, &reports[n_reports]);
    }
    return n_reports;
}
