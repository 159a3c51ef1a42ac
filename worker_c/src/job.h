/* One request from its arrival to its answer, and the list of all that are not answered yet. */
#ifndef WORKER_JOB_H
#define WORKER_JOB_H

#include "request.h"
#include "shard_engine.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum job_phase {
    JOB_WAITING, /* nothing was done; either thread may take it off the list */
    JOB_STARTED, /* a forward between two steps; the execution thread's */
    JOB_RUNNING  /* in the execution thread's hands */
};

/* What the execution thread knows of a forward. */
struct forward_work {
    bool is_prepared;
    shard_session_id slot;
    uint32_t n_rows;
    uint32_t rows_done;      /* earlier pieces; the session holds these rows */
    uint32_t cells_promised; /* KV cells kept for the other rows */
    int32_t *tokens;         /* owned; NULL where none came */
    const void *hidden;   /* aligned; borrowed from the body or from `aligned_hidden`; NULL: none */
    void *aligned_hidden; /* owned copy, where the body's rows do not lie on a value's boundary */
    void *values;         /* owned rows of earlier pieces, where the answer wants them */
    uint32_t left_out;    /* see scheduler.h */
    uint64_t started_us;  /* when its first step began; 0 before it */
    uint64_t compute_us;
    uint32_t batch_rows;
    uint32_t kv_cells;
};

struct job {
    struct job *previous, *next;
    struct request request;
    uint64_t arrived_us;
    enum job_phase phase;
    atomic_bool is_cancelled; /* somebody asked for it while it was started or running */
    struct forward_work forward;
};

/* Takes over the request, and sets its body to NULL. NULL when there is no memory. */
struct job *job_new(struct request *request, uint64_t now_us);
void job_free(struct job *job);

/* In order of arrival. Not locked. */
struct job_list {
    struct job *first, *last;
    uint32_t n_waiting;     /* in JOB_WAITING */
    uint64_t waiting_bytes; /* their bodies */
};

void job_list_append(struct job_list *list, struct job *job);
void job_list_remove(struct job_list *list, struct job *job);
void job_list_set_phase(struct job_list *list, struct job *job, enum job_phase phase);
struct job *job_list_find(const struct job_list *list, uint64_t id);

/* The first job in JOB_WAITING, taken off the list, or NULL. */
struct job *job_list_take_waiting(struct job_list *list);

#endif /* WORKER_JOB_H */
