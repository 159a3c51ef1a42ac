#include "allocations.h"

#include "memory.h"

#include <stdlib.h>

static size_t n_live;
static size_t n_requests;
static size_t fails_at;
static size_t largest;
static bool has_failed;

static void *resize(void *block, size_t size) {
    if (size == 0) {
        free(block);
        n_live--;
        return NULL;
    }
    largest = size > largest ? size : largest;
    if (++n_requests == fails_at) {
        has_failed = true;
        return NULL;
    }
    void *resized = realloc(block, size);
    n_live += block == NULL && resized != NULL;
    return resized;
}

void allocations_watch(size_t fail_at) {
    n_live = 0;
    n_requests = 0;
    largest = 0;
    fails_at = fail_at;
    has_failed = false;
    memory_replace(resize);
}

bool allocations_unwatch(void) {
    memory_replace(NULL);
    return has_failed;
}

size_t allocations_live(void) {
    return n_live;
}

size_t allocations_largest(void) {
    return largest;
}
