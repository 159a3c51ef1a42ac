/* The scheduler: decode rows first, whole pieces, order within a session, nobody starves. */
#include "check.h"
#include "scheduler.h"

#include <string.h>

enum { MOST = 32 };

static uint32_t picks[MOST];

static uint32_t next_of(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                        uint32_t single_rows, bool last_was_step) {
    const struct schedule_room room = {.rows = max_batch, .single_rows = single_rows};
    return schedule_next(items, n_items, &room, last_was_step, picks);
}

static uint32_t next(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                     bool last_was_step) {
    return next_of(items, n_items, max_batch, max_batch, last_was_step);
}

static void check_picks(uint32_t n_picks, const uint32_t *expected, uint32_t n_expected) {
    CHECK_INT(n_picks, n_expected);
    for (uint32_t i = 0; i < n_picks && i < n_expected; i++) {
        CHECK_INT(picks[i], expected[i]);
    }
}

#define CHECK_PICKS(n_picks, ...)                                                                  \
    check_picks((n_picks), (const uint32_t[]){__VA_ARGS__},                                        \
                sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void test_nothing_to_do(void) {
    check_subject("nothing");
    CHECK_INT(next(NULL, 0, 8, false), 0);
}

static void test_decode_rows_come_first(void) {
    check_subject("decode first");
    struct schedule_item items[] = {{1, 6, 0}, {2, 1, 0}, {3, 5, 0}, {4, 1, 0}};
    CHECK_PICKS(next(items, 4, 8, false), 1, 3, 0);
}

static void test_pieces_are_taken_whole_or_not_at_all(void) {
    check_subject("whole pieces");
    struct schedule_item items[] = {{1, 3, 0}, {2, 4, 0}, {3, 4, 0}, {4, 1, 0}};
    CHECK_PICKS(next(items, 4, 8, false), 3, 0, 1);
    CHECK_INT(items[2].left_out, 1);
}

static void test_shorter_piece_takes_the_room_that_a_longer_one_leaves(void) {
    check_subject("shorter piece");
    struct schedule_item items[] = {{1, 4, 0}, {2, 8, 0}, {3, 4, 0}};
    CHECK_PICKS(next(items, 3, 8, false), 0, 2);
    CHECK_INT(items[1].left_out, 1);
}

static void test_piece_that_was_left_out_goes_first_in_the_next_step(void) {
    check_subject("left out");
    struct schedule_item items[] = {{1, 1, 0}, {2, 8, 0}, {3, 4, 0}};
    CHECK_PICKS(next(items, 3, 8, false), 0, 2);
    CHECK_PICKS(next(items, 3, 8, true), 1);
    CHECK_INT(items[0].left_out, 1);
    CHECK_PICKS(next(items, 3, 8, true), 0, 2);
}

static void test_session_order_is_kept(void) {
    check_subject("session order");
    /* A trim of session 1 waits for its forward, and the later forward for the trim. */
    struct schedule_item items[] = {{1, 7, 0}, {1, 0, 0}, {1, 1, 0}, {2, 1, 0}};
    CHECK_PICKS(next(items, 4, 8, true), 3, 0);
    CHECK_PICKS(next(items + 1, 3, 8, true), 0);
    CHECK_PICKS(next(items + 2, 2, 8, false), 0, 1);
}

static void test_requests_of_no_session_do_not_wait_for_each_other(void) {
    check_subject("no session");
    struct schedule_item items[] = {{0, 0, 0}, {0, 0, 0}};
    CHECK_PICKS(next(items, 2, 8, false), 0);
}

static void test_older_request_goes_before_a_step(void) {
    check_subject("older");
    struct schedule_item items[] = {{0, 0, 0}, {1, 1, 0}};
    CHECK_PICKS(next(items, 2, 8, false), 0);
}

static void test_younger_request_and_step_take_turns(void) {
    check_subject("turns");
    struct schedule_item items[] = {{1, 8, 0}, {0, 0, 0}};
    CHECK_PICKS(next(items, 2, 8, true), 1);
    CHECK_PICKS(next(items, 2, 8, false), 0);
}

static void test_waiting_behind_ones_own_session_is_not_being_left_out(void) {
    check_subject("not left out");
    struct schedule_item items[] = {{1, 8, 0}, {1, 1, 0}};
    next(items, 2, 8, true);
    CHECK_INT(items[0].left_out, 0);
    CHECK_INT(items[1].left_out, 0);
}

/* ---- a share of the single rows ---- */

static void test_oldest_single_rows_are_taken_up_to_the_share(void) {
    check_subject("share");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}, {4, 1, 0}, {5, 1, 0}};
    CHECK_PICKS(next_of(items, 5, 8, 2, false), 0, 1);
    /* Those that were taken come again, behind the others. */
    struct schedule_item later[] = {{3, 1, 0}, {4, 1, 0}, {5, 1, 0}, {1, 1, 0}, {2, 1, 0}};
    CHECK_PICKS(next_of(later, 5, 8, 2, true), 0, 1);
    CHECK_PICKS(next_of(later + 2, 3, 8, 2, true), 0, 1);
    CHECK_PICKS(next_of(later + 4, 1, 8, 2, true), 0);
}

static void test_share_that_all_fit_in_changes_nothing(void) {
    check_subject("whole share");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}};
    CHECK_PICKS(next_of(items, 3, 8, 3, false), 0, 1, 2);
    CHECK_PICKS(next_of(items, 3, 2, 3, false), 0, 1);
    CHECK_INT(items[2].left_out, 1);
}

static void test_waiting_for_ones_share_is_not_being_left_out(void) {
    check_subject("beyond the share");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}};
    CHECK_PICKS(next_of(items, 3, 8, 2, false), 0, 1);
    CHECK_INT(items[2].left_out, 0);
    /* What a piece left out before stays so, and is among the oldest still. */
    struct schedule_item after_a_piece[] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}};
    CHECK_PICKS(next_of(after_a_piece, 3, 8, 2, true), 0, 1);
    CHECK_INT(after_a_piece[0].left_out, 0);
    CHECK_INT(after_a_piece[1].left_out, 0);
    CHECK_INT(after_a_piece[2].left_out, 1);
}

static void test_longer_pieces_are_not_counted(void) {
    check_subject("pieces beside a share");
    struct schedule_item items[] = {{1, 3, 0}, {2, 4, 0}, {3, 2, 0}};
    CHECK_PICKS(next_of(items, 3, 16, 1, false), 0, 1, 2);
}

static void test_longer_piece_lets_all_single_rows_go(void) {
    check_subject("share beside a piece");
    struct schedule_item items[] = {{1, 1, 0}, {2, 3, 0}, {3, 1, 0}, {4, 1, 0}};
    CHECK_PICKS(next_of(items, 4, 16, 1, false), 0, 2, 3, 1);
    /* One that waits behind its own session's row is none yet. */
    struct schedule_item behind[] = {{1, 1, 0}, {1, 3, 0}, {3, 1, 0}};
    CHECK_PICKS(next_of(behind, 3, 16, 1, false), 0);
}

static void test_other_requests_are_not_counted(void) {
    check_subject("others beside a share");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {2, 0, 0}, {0, 0, 0}};
    CHECK_PICKS(next_of(items, 4, 8, 1, false), 0);
    CHECK_PICKS(next_of(items, 4, 8, 1, true), 3);
    /* A trim waits for its session's row, also where that waits for its share. */
    CHECK_PICKS(next_of(items, 3, 8, 1, true), 0);
    CHECK_PICKS(next_of(items + 1, 2, 8, 1, true), 0);
    CHECK_PICKS(next_of(items + 2, 1, 8, 1, true), 0);
}

static void test_room_for_one_row_takes_one_after_the_other(void) {
    check_subject("room for one");
    struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {1, 1, 0}};
    CHECK_PICKS(next_of(items, 3, 1, 1, false), 0);
    CHECK_PICKS(next_of(items + 1, 2, 1, 1, true), 0);
    CHECK_PICKS(next_of(items + 2, 1, 1, 1, true), 0);
    CHECK_INT(items[1].left_out, 0);
    CHECK_INT(items[2].left_out, 0);
}

static void test_step_of_fewer_single_rows_than_expected_may_grow(void) {
    check_subject("may grow");
    const struct schedule_item items[] = {{1, 1, 0}, {2, 1, 0}, {3, 4, 0}};
    const struct schedule_item others[] = {{1, 1, 0}, {2, 0, 0}};
    CHECK(!schedule_may_grow(items, 0, 8));
    CHECK(schedule_may_grow(items, 1, 2));
    CHECK(!schedule_may_grow(items, 1, 1));
    CHECK(schedule_may_grow(items, 2, 3));
    CHECK(!schedule_may_grow(items, 2, 2));
    const struct schedule_item ahead[] = {{1, 1, 0}, {2, 1, 0}, {1, 1, 0}};
    CHECK(schedule_may_grow(ahead, 3, 3)); /* a session's second row goes into no step yet */
    CHECK(!schedule_may_grow(ahead, 3, 2));
    CHECK(!schedule_may_grow(items, 3, 8));     /* a longer piece is enough to do */
    CHECK(!schedule_may_grow(items + 2, 1, 8)); /* likewise */
    CHECK(!schedule_may_grow(others, 2, 8));    /* and another request waits for nobody */
}

/* ---- loads without end ---- */

/* A worker's sessions, each with a forward that waits: whoever is picked asks again at once, as the
 * youngest. */
struct load {
    struct schedule_item items[MOST];
    uint32_t waited[MOST]; /* by session: steps since it was picked last */
    uint32_t most_waited[MOST];
    uint32_t n_items;
    uint32_t max_batch;
    uint32_t single_rows;
};

static struct load load_with_share(uint32_t max_batch, uint32_t single_rows) {
    return (struct load){.n_items = 0, .max_batch = max_batch, .single_rows = single_rows};
}

static struct load load_of(uint32_t max_batch) {
    return load_with_share(max_batch, max_batch);
}

static void add(struct load *load, uint32_t rows) {
    load->items[load->n_items] = (struct schedule_item){load->n_items + 1, rows, 0};
    load->n_items++;
}

static void move_to_the_end(struct load *load, uint64_t session, uint32_t rows) {
    uint32_t at = 0;
    while (load->items[at].session != session) {
        at++;
    }
    memmove(&load->items[at], &load->items[at + 1],
            (load->n_items - at - 1) * sizeof(*load->items));
    load->items[load->n_items - 1] = (struct schedule_item){session, rows, 0};
}

/* One step; `next_rows` says what a session asks for after it was picked. */
static void step(struct load *load, uint32_t (*next_rows)(uint64_t session, uint32_t rows)) {
    uint64_t sessions[MOST];
    uint32_t asked[MOST];
    uint32_t rows = 0;
    uint32_t n_picks =
        next_of(load->items, load->n_items, load->max_batch, load->single_rows, true);
    CHECK(n_picks > 0);
    for (uint32_t i = 0; i < load->n_items; i++) {
        load->waited[load->items[i].session]++;
    }
    for (uint32_t i = 0; i < n_picks; i++) {
        sessions[i] = load->items[picks[i]].session;
        asked[i] = load->items[picks[i]].rows;
        rows += asked[i];
    }
    CHECK(rows <= load->max_batch);
    for (uint32_t i = 0; i < n_picks; i++) {
        uint32_t *waited = &load->waited[sessions[i]];
        uint32_t *most = &load->most_waited[sessions[i]];
        *most = *waited > *most ? *waited : *most;
        *waited = 0;
        move_to_the_end(load, sessions[i], next_rows(sessions[i], asked[i]));
    }
}

static uint32_t the_same(uint64_t session, uint32_t rows) {
    (void)session;
    return rows;
}

/* Steps between two picks of a session, at most; also what it waits for now. */
static uint32_t longest_wait(const struct load *load, uint64_t session) {
    uint32_t now = load->waited[session];
    return now > load->most_waited[session] ? now : load->most_waited[session];
}

/* Seven sessions decode without end beside a prefill that needs the whole batch. */
static void test_decode_does_not_starve_a_prefill(void) {
    check_subject("constant decode");
    struct load load = load_of(8);
    add(&load, 8);
    for (int i = 0; i < 7; i++) {
        add(&load, 1);
    }
    for (int i = 0; i < 1000; i++) {
        step(&load, the_same);
    }
    CHECK_INT(longest_wait(&load, 1), 2);
    for (uint64_t session = 2; session <= 8; session++) {
        CHECK_INT(longest_wait(&load, session), 2);
    }
}

/* Twelve sessions prefill without end, with pieces of every length, beside four that decode. */
static void test_prefill_does_not_delay_a_decode_row_by_more_than_one_step(void) {
    check_subject("constant prefill");
    struct load load = load_of(16);
    for (uint32_t i = 0; i < 12; i++) {
        add(&load, 5 + i);
    }
    for (int i = 0; i < 4; i++) {
        add(&load, 1);
    }
    for (int i = 0; i < 1000; i++) {
        step(&load, the_same);
    }
    for (uint64_t session = 13; session <= 16; session++) {
        CHECK(longest_wait(&load, session) <= 2);
    }
    /* Each waits for the others and for itself, two steps at most for each of the twelve. */
    for (uint64_t session = 1; session <= 12; session++) {
        CHECK(longest_wait(&load, session) <= 24);
    }
}

/* Eight sessions decode without end, three at a time: each is in every third step at the latest. */
static void test_shares_of_single_rows_take_turns(void) {
    check_subject("constant shares");
    struct load load = load_with_share(16, 3);
    for (int i = 0; i < 8; i++) {
        add(&load, 1);
    }
    for (int i = 0; i < 1000; i++) {
        step(&load, the_same);
    }
    for (uint64_t session = 1; session <= 8; session++) {
        CHECK_INT(longest_wait(&load, session), 3);
    }
}

static uint32_t any_seed;

static uint32_t any_rows(uint64_t session, uint32_t rows) {
    (void)session;
    (void)rows;
    any_seed = any_seed * 1664525u + 1013904223u;
    return (any_seed >> 28 & 1) != 0 ? 1 : 1 + (any_seed >> 16) % 8;
}

/* Whatever sessions ask for after each answer, and whatever share of them a step takes. */
static void test_any_load_starves_nobody(void) {
    check_subject("any load");
    for (uint32_t round = 0; round < 400; round++) {
        struct load load = load_with_share(8, 1 + round / 8 % 8);
        any_seed = round;
        uint32_t n_sessions = 1 + round % 8; /* a step has a row for each */
        for (uint32_t i = 0; i < n_sessions; i++) {
            add(&load, any_rows(0, 0));
        }
        for (int i = 0; i < 500; i++) {
            step(&load, any_rows);
        }
        for (uint64_t session = 1; session <= n_sessions; session++) {
            CHECK(longest_wait(&load, session) <= 2 * n_sessions);
        }
    }
}

/* Whatever waits: a batch is never too large, no session is in it twice, and every item ends. */
static void test_any_mix_ends(void) {
    check_subject("any mix");
    uint32_t seed = 1;
    for (int round = 0; round < 200; round++) {
        struct schedule_item items[MOST];
        uint32_t max_batch = 8 + (seed >> 20 & 7);
        uint32_t single_rows = 1 + (seed >> 12 & 7);
        uint32_t n_items = 0;
        for (; n_items < MOST; n_items++) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t kind = seed >> 24 & 3;
            items[n_items] = (struct schedule_item){kind == 0 ? 0 : 1 + (seed >> 16 & 7),
                                                    kind == 0 ? 0 : 1 + (seed >> 8 & 7), 0};
        }
        bool last_was_step = false;
        for (int turn = 0; n_items > 0 && turn < 1000; turn++) {
            uint32_t n_picks = next_of(items, n_items, max_batch, single_rows, last_was_step);
            uint32_t rows = 0;
            bool is_done[MOST] = {false};
            uint64_t sessions = 0;
            CHECK(n_picks > 0);
            for (uint32_t i = 0; i < n_picks; i++) {
                const struct schedule_item *item = &items[picks[i]];
                CHECK(item->session == 0 || (sessions >> item->session & 1) == 0);
                sessions |= (uint64_t)1 << item->session;
                rows += item->rows;
                is_done[picks[i]] = true;
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
    test_pieces_are_taken_whole_or_not_at_all();
    test_shorter_piece_takes_the_room_that_a_longer_one_leaves();
    test_piece_that_was_left_out_goes_first_in_the_next_step();
    test_session_order_is_kept();
    test_requests_of_no_session_do_not_wait_for_each_other();
    test_older_request_goes_before_a_step();
    test_younger_request_and_step_take_turns();
    test_waiting_behind_ones_own_session_is_not_being_left_out();
    test_oldest_single_rows_are_taken_up_to_the_share();
    test_share_that_all_fit_in_changes_nothing();
    test_waiting_for_ones_share_is_not_being_left_out();
    test_longer_pieces_are_not_counted();
    test_longer_piece_lets_all_single_rows_go();
    test_other_requests_are_not_counted();
    test_room_for_one_row_takes_one_after_the_other();
    test_step_of_fewer_single_rows_than_expected_may_grow();
    test_decode_does_not_starve_a_prefill();
    test_prefill_does_not_delay_a_decode_row_by_more_than_one_step();
    test_shares_of_single_rows_take_turns();
    test_any_load_starves_nobody();
    test_any_mix_ends();
    return check_verdict();
}
