/* Every allocation of the worker goes through here, so that a test can make any of them fail. */
#ifndef WORKER_MEMORY_H
#define WORKER_MEMORY_H

#include <stddef.h>

/* Resizes `block` (NULL: a new one) to `size` bytes; size 0 releases it and gives NULL. NULL with a
 * size above 0 means that there is no memory and that `block` is as it was. */
typedef void *(*memory_resizer)(void *block, size_t size);

/* Replaces the allocator; NULL restores the C library's. For tests, before any other thread runs.
 */
void memory_replace(memory_resizer resizer);

/* NULL when there is no memory. The caller releases what it gets with memory_release. */
void *memory_allocate(size_t size);
void *memory_allocate_array(size_t count, size_t size);
void *memory_resize(void *block, size_t size);
void memory_release(void *block);

#endif /* WORKER_MEMORY_H */
