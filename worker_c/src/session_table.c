#include "session_table.h"

#include "memory.h"

#include <string.h>

bool session_table_resize(struct session_table *table, uint32_t n_slots) {
    uint64_t *numbers = memory_allocate_array(n_slots, sizeof(*numbers));
    if (numbers == NULL) {
        return false;
    }
    memset(numbers, 0, n_slots * sizeof(*numbers));
    session_table_free(table);
    table->numbers = numbers;
    table->n_slots = n_slots;
    return true;
}

void session_table_free(struct session_table *table) {
    memory_release(table->numbers);
    table->numbers = NULL;
    table->n_slots = 0;
    table->n_open = 0;
}

uint64_t session_table_add(struct session_table *table, shard_session_id slot) {
    table->numbers[slot] = ++table->last_number;
    table->n_open++;
    return table->last_number;
}

bool session_table_find(const struct session_table *table, uint64_t number,
                        shard_session_id *slot) {
    for (uint32_t i = 0; i < table->n_slots; i++) {
        if (table->numbers[i] == number) {
            *slot = (shard_session_id)i;
            return true;
        }
    }
    return false;
}

void session_table_remove(struct session_table *table, shard_session_id slot) {
    table->numbers[slot] = 0;
    table->n_open--;
}
