/* The scheduler: decode rows first, pieces that fill the batch, order within a session, nobody
 * starves. */
#include "check.h"
#include "scheduler.h"

enum { MOST = 32 };

static struct schedule_pick picks[MOST];

static uint32_t next(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                     bool last_was_step) {
    return schedule_next(items, n_items, max_batch, last_was_step, picks);
}

static void check_pick(uint32_t at, uint32_t index, uint32_t rows) {
    CHECK_INT(picks[at].index, index);
    CHECK_INT(picks[at].rows, rows);
}

static void test_nothing_to_do(void) {
    check_subject("nothing");
    CHECK_INT(next(NULL, 0, 8, false), 0);
}

static void test_decode_rows_come_first(void) {
    check_subject("decode first");
    struct schedule_item items[] = {{1, 100, 0}, {2, 1, 0}, {3, 5, 0}, {4, 1, 0}};
    CHECK_INT(next(items, 4, 8, false), 3);
    check_pick(0, 1, 1);
    check_pick(1, 3, 1);
    check_pick(2, 0, 6);
}

static void test_prefill_fills_the_batch_in_order(void) {
    check_subject("prefill");
    struct schedule_item items[] = {{1, 3, 0}, {2, 4, 0}, {3, 9, 0}, {4, 9, 0}};
    CHECK_INT(next(items, 4, 8, false), 3);
    check_pick(0, 0, 3);
    check_pick(1, 1, 4);
    check_pick(2, 2, 1);
}

static void test_long_prefill_takes_the_whole_batch(void) {
    check_subject("long prefill");
    struct schedule_item items[] = {{1, 1000, 0}};
    CHECK_INT(next(items, 1, 512, true), 1);
    check_pick(0, 0, 512);
}

static void test_session_order_is_kept(void) {
    check_subject("session order");
    /* A trim of session 1 waits for its forward, and the later forward for the trim. */
    struct schedule_item items[] = {{1, 50, 0}, {1, 0, 0}, {1, 1, 0}, {2, 1, 0}};
    CHECK_INT(next(items, 4, 8, true), 2);
    check_pick(0, 3, 1);
    check_pick(1, 0, 7);
    CHECK_INT(next(items + 1, 3, 8, true), 1);
    check_pick(0, 0, 0);
    CHECK_INT(next(items + 2, 2, 8, false), 2);
    check_pick(0, 0, 1);
    check_pick(1, 1, 1);
}

static void test_requests_of_no_session_do_not_wait_for_each_other(void) {
    check_subject("no session");
    struct schedule_item items[] = {{0, 0, 0}, {0, 0, 0}};
    CHECK_INT(next(items, 2, 8, false), 1);
    check_pick(0, 0, 0);
}

static void test_older_request_goes_before_a_step(void) {
    check_subject("older");
    struct schedule_item items[] = {{0, 0, 0}, {1, 1, 0}};
    CHECK_INT(next(items, 2, 8, false), 1);
    check_pick(0, 0, 0);
}

static void test_younger_request_and_step_take_turns(void) {
    check_subject("turns");
    struct schedule_item items[] = {{1, 1000, 0}, {0, 0, 0}};
    CHECK_INT(next(items, 2, 8, true), 1);
    check_pick(0, 1, 0);
    CHECK_INT(next(items, 2, 8, false), 1);
    check_pick(0, 0, 8);
}

/* A batch of two rows, two sessions that decode without end, and one prefill. */
static void test_prefill_does_not_starve(void) {
    check_subject("starving");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {3, 4, 0}};
    int n_steps = 0;
    while (items[2].rows_left > 0 && n_steps < 100) {
        uint32_t n_picks = next(items, 3, 2, true);
        uint32_t rows = 0;
        for (uint32_t i = 0; i < n_picks; i++) {
            rows += picks[i].rows;
            if (picks[i].index == 2) {
                items[2].rows_left -= picks[i].rows;
            }
        }
        CHECK_INT(rows, 2);
        n_steps++;
    }
    CHECK_INT(items[2].rows_left, 0);
    CHECK_INT(n_steps, 2 * (SCHEDULE_PATIENCE + 1));
}

static void test_waiting_behind_ones_own_session_is_not_being_passed_over(void) {
    check_subject("not passed over");
    struct schedule_item items[] = {{1, 100, 0}, {1, 1, 0}};
    next(items, 2, 8, true);
    CHECK_INT(items[0].passed_over, 0);
    CHECK_INT(items[1].passed_over, 0);
}

/* Whatever waits: a batch is never too large, no session is in it twice, and every item ends. */
static void test_any_mix_ends(void) {
    check_subject("any mix");
    uint32_t seed = 1;
    for (int round = 0; round < 200; round++) {
        struct schedule_item items[MOST];
        uint32_t n_items = 0;
        for (; n_items < MOST; n_items++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t kind = seed >> 24 & 3;
            items[n_items] = (struct schedule_item){kind == 0 ? 0 : 1 + (seed >> 16 & 7),
                                                    kind == 0 ? 0 : (seed >> 8 & 15), 0};
        }
        bool last_was_step = false;
        uint32_t max_batch = 1 + (seed >> 20 & 7);
        for (int turn = 0; n_items > 0 && turn < 1000; turn++) {
            uint32_t n_picks = next(items, n_items, max_batch, last_was_step);
            uint32_t rows = 0;
            bool is_done[MOST] = {false};
            uint64_t sessions = 0;
            CHECK(n_picks > 0);
            for (uint32_t i = 0; i < n_picks; i++) {
                struct schedule_item *item = &items[picks[i].index];
                CHECK(item->session == 0 || (sessions >> item->session & 1) == 0);
                sessions |= (uint64_t)1 << item->session;
                CHECK(picks[i].rows <= item->rows_left);
                rows += picks[i].rows;
                item->rows_left -= picks[i].rows;
                is_done[picks[i].index] = item->rows_left == 0;
            }
            CHECK(rows <= max_batch);
            last_was_step = rows > 0;
            uint32_t n_kept = 0;
            for (uint32_t i = 0; i < n_items; i++) {
                if (!is_done[i]) {
                    items[n_kept++] = items[i];
                }
            }
            n_items = n_kept;
        }
        CHECK_INT(n_items, 0);
    }
}

int main(void) {
    test_nothing_to_do();
    test_decode_rows_come_first();
    test_prefill_fills_the_batch_in_order();
    test_long_prefill_takes_the_whole_batch();
    test_session_order_is_kept();
    test_requests_of_no_session_do_not_wait_for_each_other();
    test_older_request_goes_before_a_step();
    test_younger_request_and_step_take_turns();
    test_prefill_does_not_starve();
    test_waiting_behind_ones_own_session_is_not_being_passed_over();
    test_any_mix_ends();
    return check_verdict();
}
