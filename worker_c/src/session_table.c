#include "session_table.h"

#include "memory.h"

#include <string.h>

bool session_table_resize(struct session_table *table, uint32_t n_slots) {
    struct session_slot *slots = memory_allocate_array(n_slots, sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    memset(slots, 0, n_slots * sizeof(*slots));
    session_table_free(table);
    table->slots = slots;
    table->n_slots = n_slots;
    return true;
}

void session_table_free(struct session_table *table) {
    memory_release(table->slots);
    table->slots = NULL;
    table->n_slots = 0;
    table->n_open = 0;
}

uint64_t session_table_add(struct session_table *table, shard_session_id slot) {
    table->slots[slot] = (struct session_slot){.number = ++table->last_number};
    table->n_open++;
    return table->last_number;
}

bool session_table_find(const struct session_table *table, uint64_t number,
                        shard_session_id *slot) {
    for (uint32_t i = 0; i < table->n_slots; i++) {
        if (table->slots[i].number == number) {
            *slot = (shard_session_id)i;
            return true;
        }
    }
    return false;
}

void session_table_remove(struct session_table *table, shard_session_id slot) {
    table->slots[slot] = (struct session_slot){.number = 0};
    table->n_open--;
}

void session_table_set_draw(struct session_table *table, shard_session_id slot,
                            struct session_draw draw) {
    table->slots[slot].draw = draw;
}

const struct session_draw *session_table_draw(const struct session_table *table,
                                              shard_session_id slot) {
    return &table->slots[slot].draw;
}

void session_table_count_step(struct session_table *table) {
    table->n_steps++;
}

void session_table_note(struct session_table *table, shard_session_id slot) {
    table->slots[slot].last_step = table->n_steps;
}

uint32_t session_table_n_active(const struct session_table *table, uint32_t n_steps) {
    uint32_t n_active = 0;
    for (uint32_t i = 0; i < table->n_slots; i++) {
        const uint64_t last_step = table->slots[i].last_step;
        n_active += last_step != 0 && table->n_steps - last_step < n_steps;
    }
    return n_active;
}
