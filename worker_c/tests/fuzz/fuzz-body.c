/* Invariant: any bytes as a body are either refused, or one map that a second reading finds the
 * same, with every key and value inside the bytes. */
#include "decode.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) {
        abort();
    }
}

static bool is_inside(const uint8_t *part, size_t part_size, const uint8_t *data, size_t size) {
    return part >= data && part_size <= size && part <= data + size - part_size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct decode_map first;
    struct decode_map second;
    struct failure failure;
    failure_clear(&failure);
    if (!decode_body(data, size, &first, &failure)) {
        require(failure_is_set(&failure));
        return 0;
    }
    require(!failure_is_set(&failure));
    require(decode_body(data, size, &second, &failure));
    require(first.n_entries == second.n_entries && first.n_entries <= LIMIT_KEYS);
    for (uint32_t i = 0; i < first.n_entries; i++) {
        const struct decode_entry *entry = &first.entries[i];
        require(is_inside(entry->key, entry->key_size, data, size));
        require(is_inside(entry->value.data, entry->value.size, data, size));
        require(entry->value.kind == second.entries[i].value.kind);
    }
    return 0;
}
