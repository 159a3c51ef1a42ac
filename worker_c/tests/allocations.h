/* An allocator that counts what lives and can fail the Nth request. */
#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H

#include <stdbool.h>
#include <stddef.h>

/* From now on the worker allocates here; the `fail_at`th request from here on fails, 0: none does.
 */
void allocations_watch(size_t fail_at);

/* Back to the C library. Returns whether a request was failed. */
bool allocations_unwatch(void);

/* Blocks that were allocated while watched and not released. */
size_t allocations_live(void);

/* The largest single request since the watch began. */
size_t allocations_largest(void);

#endif /* TEST_ALLOCATIONS_H */
