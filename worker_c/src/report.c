#include "report.h"

#include "answer.h"
#include "clock.h"

#include <stdio.h>
#include <string.h>

void report_begin(struct report *report, struct execution *execution, struct job *job) {
    memset(report, 0, sizeof(*report));
    report->execution = execution;
    report->job = job;
}

static void send(const struct report *report, const struct progress_report *figure) {
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_progress(&encoder, report->job->request.id, figure->phase, figure->done, figure->total);
    reply_notice(report->execution->replies, &encoder);
}

/* Health shows the phase of a load; the counter rises in any long call. */
static void note_phase(const struct report *report, const char *phase, uint64_t done,
                       uint64_t total) {
    struct state *state = report->execution->state;
    pthread_mutex_lock(&state->lock);
    state->steps_reported++;
    if (state->is_loading) {
        snprintf(state->phase.phase, sizeof(state->phase.phase), "%s", phase);
        state->phase.done = done;
        state->phase.total = total;
    }
    pthread_mutex_unlock(&state->lock);
}

bool report_progress(const char *phase, uint64_t done, uint64_t total, void *user_data) {
    struct report *report = user_data;
    note_phase(report, phase, done, total);
    struct progress_report figures[2];
    uint32_t n_figures =
        progress_offer(&report->progress, phase, done, total, clock_now_us(), figures);
    for (uint32_t i = 0; i < n_figures; i++) {
        send(report, &figures[i]);
    }
    return !atomic_load(&report->job->is_cancelled) &&
           !atomic_load(&report->execution->state->is_stopping);
}

void report_end(struct report *report) {
    struct progress_report figure;
    if (progress_end(&report->progress, &figure) > 0) {
        send(report, &figure);
    }
}
