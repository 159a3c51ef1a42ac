/* Numbers of sessions, and which of them are active. */
#include "check.h"
#include "session_table.h"

static void step_of(struct session_table *table, const shard_session_id *slots, uint32_t n_slots) {
    session_table_count_step(table);
    for (uint32_t i = 0; i < n_slots; i++) {
        session_table_note(table, slots[i]);
    }
}

static void test_numbers_are_never_used_again(void) {
    check_subject("numbers");
    struct session_table table = {0};
    CHECK(session_table_resize(&table, 2));
    CHECK_INT(session_table_add(&table, 0), 1);
    CHECK_INT(session_table_add(&table, 1), 2);
    session_table_remove(&table, 0);
    CHECK_INT(session_table_add(&table, 0), 3);
    shard_session_id slot = 9;
    CHECK(session_table_find(&table, 3, &slot));
    CHECK_INT(slot, 0);
    CHECK(!session_table_find(&table, 1, &slot));
    CHECK_INT(table.n_open, 2);
    session_table_free(&table);
}

/* Eight are open; who asks for nothing is active for no longer than one looks back. */
static void test_active_are_those_of_the_last_steps(void) {
    check_subject("active");
    struct session_table table = {0};
    CHECK(session_table_resize(&table, 8));
    for (shard_session_id slot = 0; slot < 8; slot++) {
        session_table_add(&table, slot);
    }
    CHECK_INT(session_table_n_active(&table, 2), 0);
    step_of(&table, (const shard_session_id[]){0}, 1);
    CHECK_INT(session_table_n_active(&table, 2), 1);
    step_of(&table, (const shard_session_id[]){1, 2, 3, 4, 5, 6, 7}, 7);
    CHECK_INT(session_table_n_active(&table, 1), 7);
    CHECK_INT(session_table_n_active(&table, 2), 8);
    step_of(&table, (const shard_session_id[]){3}, 1);
    CHECK_INT(session_table_n_active(&table, 2), 7);
    step_of(&table, (const shard_session_id[]){3}, 1);
    CHECK_INT(session_table_n_active(&table, 2), 1);
    CHECK_INT(session_table_n_active(&table, 100), 8);
    session_table_remove(&table, 3);
    CHECK_INT(session_table_n_active(&table, 2), 0);
    session_table_add(&table, 3);
    CHECK_INT(session_table_n_active(&table, 2), 0);
    session_table_free(&table);
}

int main(void) {
    test_numbers_are_never_used_again();
    test_active_are_those_of_the_last_steps();
    return check_verdict();
}
