#include "scheduler.h"

static bool is_forward(const struct schedule_item *item) {
    return item->rows_left > 0;
}

static bool is_ready(const struct schedule_item *items, uint32_t index) {
    for (uint32_t i = 0; i < index; i++) {
        if (items[i].session != 0 && items[i].session == items[index].session) {
            return false;
        }
    }
    return true;
}

/* The oldest ready item of a kind, or `n_items`. */
static uint32_t oldest(const struct schedule_item *items, uint32_t n_items, bool forward) {
    uint32_t i = 0;
    while (i < n_items && (is_forward(&items[i]) != forward || !is_ready(items, i))) {
        i++;
    }
    return i;
}

enum rank { RANK_PASSED_OVER, RANK_DECODE, RANK_PREFILL, N_RANKS };

static enum rank rank_of(const struct schedule_item *item) {
    if (item->passed_over >= SCHEDULE_PATIENCE) {
        return RANK_PASSED_OVER;
    }
    return item->rows_left == 1 ? RANK_DECODE : RANK_PREFILL;
}

struct step {
    struct schedule_pick *picks;
    uint32_t n_picks;
    uint32_t rows_free;
};

static void add_to_step(struct step *step, const struct schedule_item *item, uint32_t index) {
    uint32_t rows = item->rows_left < step->rows_free ? item->rows_left : step->rows_free;
    if (rows > 0) {
        step->picks[step->n_picks++] = (struct schedule_pick){index, rows};
        step->rows_free -= rows;
    }
}

static void note_passed_over(struct schedule_item *items, uint32_t n_items,
                             const struct step *step) {
    for (uint32_t i = 0; i < n_items; i++) {
        items[i].passed_over += is_forward(&items[i]) && is_ready(items, i);
    }
    for (uint32_t i = 0; i < step->n_picks; i++) {
        items[step->picks[i].index].passed_over = 0;
    }
}

static uint32_t fill_step(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                          struct schedule_pick *picks) {
    struct step step = {picks, 0, max_batch};
    for (int rank = 0; rank < N_RANKS; rank++) {
        for (uint32_t i = 0; i < n_items && step.rows_free > 0; i++) {
            if (is_forward(&items[i]) && (int)rank_of(&items[i]) == rank && is_ready(items, i)) {
                add_to_step(&step, &items[i], i);
            }
        }
    }
    note_passed_over(items, n_items, &step);
    return step.n_picks;
}

uint32_t schedule_next(struct schedule_item *items, uint32_t n_items, uint32_t max_batch,
                       bool last_was_step, struct schedule_pick *picks) {
    uint32_t other = oldest(items, n_items, false);
    uint32_t forward = oldest(items, n_items, true);
    bool other_goes_first = other < n_items && (other < forward || last_was_step);
    if (other_goes_first) {
        picks[0] = (struct schedule_pick){other, 0};
        return 1;
    }
    return forward < n_items ? fill_step(items, n_items, max_batch, picks) : 0;
}
