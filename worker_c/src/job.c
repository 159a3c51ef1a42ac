#include "job.h"

#include "memory.h"

#include <string.h>

struct job *job_new(struct request *request, uint64_t now_us) {
    struct job *job = memory_allocate(sizeof(*job));
    if (job == NULL) {
        return NULL;
    }
    memset(job, 0, sizeof(*job));
    job->request = *request;
    request->body = NULL;
    job->arrived_us = now_us;
    job->phase = JOB_WAITING;
    atomic_init(&job->is_cancelled, false);
    return job;
}

void job_free(struct job *job) {
    request_free(&job->request);
    memory_release(job->forward.tokens);
    memory_release(job->forward.aligned_hidden);
    memory_release(job->forward.values);
    memory_release(job);
}

static void count(struct job_list *list, const struct job *job, bool is_added) {
    if (job->phase != JOB_WAITING) {
        return;
    }
    if (is_added) {
        list->n_waiting++;
        list->waiting_bytes += job->request.body_size;
    } else {
        list->n_waiting--;
        list->waiting_bytes -= job->request.body_size;
    }
}

void job_list_append(struct job_list *list, struct job *job) {
    job->previous = list->last;
    job->next = NULL;
    if (list->last != NULL) {
        list->last->next = job;
    } else {
        list->first = job;
    }
    list->last = job;
    count(list, job, true);
}

void job_list_remove(struct job_list *list, struct job *job) {
    if (job->previous != NULL) {
        job->previous->next = job->next;
    } else {
        list->first = job->next;
    }
    if (job->next != NULL) {
        job->next->previous = job->previous;
    } else {
        list->last = job->previous;
    }
    count(list, job, false);
}

void job_list_set_phase(struct job_list *list, struct job *job, enum job_phase phase) {
    count(list, job, false);
    job->phase = phase;
    count(list, job, true);
}

struct job *job_list_find(const struct job_list *list, uint64_t id) {
    struct job *job = list->first;
    while (job != NULL && job->request.id != id) {
        job = job->next;
    }
    return job;
}

struct job *job_list_take_waiting(struct job_list *list) {
    struct job *job = list->first;
    while (job != NULL && job->phase != JOB_WAITING) {
        job = job->next;
    }
    if (job != NULL) {
        job_list_remove(list, job);
    }
    return job;
}
