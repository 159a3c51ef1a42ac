#include "fault_actions.h"

#include "error.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SLICE_MS = 1,                      /* how often a waiting step looks at its cancel flag */
    REPORT_MS = 50,                    /* between the reports of a slow load, at the least */
    FLOOD_BYTES = 4 << 20,             /* more than any pipe holds */
    ALLOCATION_PIECE_BYTES = 16 << 20, /* small enough that a limit is met, not jumped over */
};

static const float PAST_F16 = 100000.0f; /* f16 ends at 65504 */

bool fake_signals_take_cancel(fake_signals *signals) {
    return atomic_load(&signals->cancelled) && atomic_exchange(&signals->cancelled, false);
}

static void sleep_ms(uint32_t milliseconds) {
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The default action is restored first: a sanitizer's own handler would turn the signal into an
 * exit status. */
static void die_of_segv(void) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void hang_forever(void) {
    for (;;) {
        pause();
    }
}

static shard_status cancelled(shard_error *error) {
    return shard_fail(error, SHARD_ERR_CANCELLED, "the step was cancelled");
}

static shard_status hang_until_cancelled(fake_signals *signals, shard_error *error) {
    while (!fake_signals_take_cancel(signals)) {
        sleep_ms(SLICE_MS);
    }
    return cancelled(error);
}

static shard_status spend(uint32_t milliseconds, fake_signals *signals, shard_error *error) {
    const uint64_t end = now_ms() + milliseconds;
    while (now_ms() < end) {
        if (fake_signals_take_cancel(signals)) {
            return cancelled(error);
        }
        sleep_ms(SLICE_MS);
        atomic_fetch_add(&signals->progress, 1);
    }
    return SHARD_OK;
}

static void flood_stderr(void) {
    char line[128];
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (size_t written = 0; written < FLOOD_BYTES; written += sizeof(line)) {
        fwrite(line, 1, sizeof(line), stderr);
    }
}

/* A piece of memory that is held until the process is killed; pieces form a list so that they can
 * be given back where the allocation is refused instead. */
typedef struct piece {
    struct piece *next;
} piece;

static shard_status allocate_until_killed(shard_error *error) {
    piece *pieces = NULL;
    uint64_t held = 0;
    for (piece *next; (next = malloc(ALLOCATION_PIECE_BYTES)) != NULL; pieces = next) {
        /* Written to, because memory that nobody touches is not taken from the machine. */
        memset(next, 0xA5, ALLOCATION_PIECE_BYTES);
        next->next = pieces;
        held += ALLOCATION_PIECE_BYTES;
    }
    while (pieces != NULL) {
        piece *next = pieces->next;
        free(pieces);
        pieces = next;
    }
    shard_fail(error, SHARD_ERR_MEMORY,
               "the fault plan's allocation was refused after %llu bytes; give the process more "
               "memory",
               (unsigned long long)held);
    shard_error_add(error, "needed_bytes", "%llu",
                    (unsigned long long)held + ALLOCATION_PIECE_BYTES);
    return error->status;
}

/* Faults that end the process or never return. */
static void fire_fatal(const fault_plan *plan, uint64_t step) {
    const fault *leave = fault_plan_due(plan, FAULT_EXIT, step);
    if (leave != NULL) {
        _exit((int)leave->value);
    }
    if (fault_plan_due(plan, FAULT_CRASH, step) != NULL) {
        abort();
    }
    if (fault_plan_due(plan, FAULT_SEGV, step) != NULL) {
        die_of_segv();
    }
    if (fault_plan_due(plan, FAULT_HANG_HARD, step) != NULL) {
        hang_forever();
    }
}

static shard_status fire_step(const fault_plan *plan, uint64_t step, fake_signals *signals,
                              shard_error *error) {
    if (fault_plan_due(plan, FAULT_STDERR_FLOOD, step) != NULL) {
        flood_stderr();
    }
    fire_fatal(plan, step);
    if (fault_plan_due(plan, FAULT_ALLOCATE, step) != NULL) {
        return allocate_until_killed(error);
    }
    if (fault_plan_due(plan, FAULT_HANG, step) != NULL) {
        return hang_until_cancelled(signals, error);
    }
    const fault *slow = fault_plan_due(plan, FAULT_SLOW, step);
    return slow == NULL ? SHARD_OK : spend(slow->value, signals, error);
}

shard_status fault_actions_call(const fault_plan *plan, uint64_t step, uint32_t call,
                                fake_signals *signals, shard_error *error) {
    if (call == 1 && fire_step(plan, step, signals, error) != SHARD_OK) {
        return error->status;
    }
    if (fault_plan_due_in_call(plan, FAULT_FAIL_CALL, step, call)) {
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "the fault plan fails call %u of step %llu; close the engine", call,
                          (unsigned long long)step);
    }
    return fault_plan_due_in_call(plan, FAULT_HANG_CALL, step, call)
               ? hang_until_cancelled(signals, error)
               : SHARD_OK;
}

void fault_actions_output(const fault_plan *plan, uint64_t step, float *row) {
    if (fault_plan_due(plan, FAULT_NAN, step) != NULL) {
        row[0] = NAN;
    }
    if (fault_plan_due(plan, FAULT_OVERFLOW, step) != NULL) {
        row[0] = PAST_F16;
    }
}

slow_load slow_load_init(const fault_plan *plan, shard_progress_callback on_progress,
                         void *user_data) {
    const fault *slow = fault_plan_due(plan, FAULT_LOAD_SLOW, 0);
    return (slow_load){.milliseconds = slow == NULL ? 0 : slow->value,
                       .on_progress = on_progress,
                       .user_data = user_data};
}

static bool tell(const slow_load *load, const char *phase, uint64_t total) {
    return load->on_progress == NULL ||
           load->on_progress(phase, load->done, total, load->user_data);
}

bool slow_load_progress(const char *phase, uint64_t done, uint64_t total, void *user_data) {
    slow_load *load = user_data;
    const uint64_t wanted = ((uint64_t)load->milliseconds + REPORT_MS - 1) / REPORT_MS;
    const uint64_t n_pieces = wanted < total ? wanted : total;
    while (n_pieces > 0 && done - load->done >= total / n_pieces) {
        load->done += total / n_pieces;
        sleep_ms((uint32_t)(load->milliseconds / n_pieces));
        if (!tell(load, phase, total)) {
            return false;
        }
    }
    /* What is left is less than a piece: it waits for the next one, or ends the load. */
    if (n_pieces == 0 || done == total) {
        load->done = done;
    }
    return tell(load, phase, total);
}

shard_status fault_actions_load(const fault_plan *plan, shard_error *error) {
    if (fault_plan_due(plan, FAULT_LOAD_CRASH, 0) != NULL) {
        abort();
    }
    if (fault_plan_due(plan, FAULT_LOAD_HANG, 0) != NULL) {
        hang_forever();
    }
    if (fault_plan_due(plan, FAULT_LOAD_FAIL, 0) != NULL) {
        return shard_fail(error, SHARD_ERR_BACKEND,
                          "the fault plan fails this load; start the worker without load-fail");
    }
    return SHARD_OK;
}
