#include "memory.h"

#include <stdint.h>
#include <stdlib.h>

static void *library_resizer(void *block, size_t size) {
    if (size == 0) {
        free(block);
        return NULL;
    }
    return realloc(block, size);
}

static memory_resizer current = library_resizer;

void memory_replace(memory_resizer resizer) {
    current = resizer != NULL ? resizer : library_resizer;
}

void *memory_allocate(size_t size) {
    return current(NULL, size > 0 ? size : 1);
}

void *memory_allocate_array(size_t count, size_t size) {
    return count <= SIZE_MAX / size ? memory_allocate(count * size) : NULL;
}

void *memory_resize(void *block, size_t size) {
    return current(block, size > 0 ? size : 1);
}

void memory_release(void *block) {
    if (block != NULL) {
        current(block, 0);
    }
}
