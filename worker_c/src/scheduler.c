#include "scheduler.h"

static bool is_forward(const struct schedule_item *item) {
    return item->rows > 0;
}

struct queue {
    struct schedule_item *items;
    uint32_t n_items;
    bool is_ready[SCHEDULE_WINDOW]; /* no earlier item names its session; and it may be taken now */
};

static bool has_earlier(const struct schedule_item *items, uint32_t index) {
    uint64_t session = items[index].session;
    for (uint32_t i = 0; i < index && session != 0; i++) {
        if (items[i].session == session) {
            return true;
        }
    }
    return false;
}

static void find_ready(struct queue *queue) {
    for (uint32_t i = 0; i < queue->n_items; i++) {
        queue->is_ready[i] = !has_earlier(queue->items, i);
    }
}

static bool has_ready_piece(const struct queue *queue) {
    uint32_t i = 0;
    while (i < queue->n_items && !(queue->items[i].rows > 1 && queue->is_ready[i])) {
        i++;
    }
    return i < queue->n_items;
}

/* The others are then looked at as if they had not come yet. */
static void keep_single_rows(struct queue *queue, uint32_t n_kept) {
    uint32_t n_single = 0;
    for (uint32_t i = 0; i < queue->n_items; i++) {
        if (queue->items[i].rows == 1 && queue->is_ready[i]) {
            queue->is_ready[i] = n_single++ < n_kept;
        }
    }
}

/* The oldest ready item of a kind, or `n_items`. */
static uint32_t oldest(const struct queue *queue, bool forward) {
    uint32_t i = 0;
    while (i < queue->n_items && (is_forward(&queue->items[i]) != forward || !queue->is_ready[i])) {
        i++;
    }
    return i;
}

/* ---- one step ---- */

struct step {
    const struct queue *queue;
    uint32_t *picks;
    uint32_t n_picks;
    uint32_t rows_free;
};

static void take_if_it_fits(struct step *step, uint32_t index) {
    uint32_t rows = step->queue->items[index].rows;
    if (rows <= step->rows_free) {
        step->picks[step->n_picks++] = index;
        step->rows_free -= rows;
    }
}

static void take_single_rows(struct step *step, bool were_left_out) {
    for (uint32_t i = 0; i < step->queue->n_items && step->rows_free > 0; i++) {
        const struct schedule_item *item = &step->queue->items[i];
        if (item->rows == 1 && (item->left_out > 0) == were_left_out && step->queue->is_ready[i]) {
            take_if_it_fits(step, i);
        }
    }
}

/* The oldest of those longer pieces that were left out of most steps; `n_items` where none was. */
static uint32_t longest_waiting(const struct queue *queue) {
    uint32_t found = queue->n_items;
    uint32_t most = 0;
    for (uint32_t i = 0; i < queue->n_items; i++) {
        const struct schedule_item *item = &queue->items[i];
        if (item->rows > 1 && item->left_out > most && queue->is_ready[i]) {
            found = i;
            most = item->left_out;
        }
    }
    return found;
}

static void take_longer_pieces(struct step *step, uint32_t but_for) {
    for (uint32_t i = 0; i < step->queue->n_items && step->rows_free > 1; i++) {
        if (step->queue->items[i].rows > 1 && i != but_for && step->queue->is_ready[i]) {
            take_if_it_fits(step, i);
        }
    }
}

static void note_left_out(const struct step *step) {
    for (uint32_t i = 0; i < step->queue->n_items; i++) {
        step->queue->items[i].left_out +=
            is_forward(&step->queue->items[i]) && step->queue->is_ready[i];
    }
    for (uint32_t i = 0; i < step->n_picks; i++) {
        step->queue->items[step->picks[i]].left_out = 0;
    }
}

static uint32_t fill_step(const struct queue *queue, uint32_t max_batch, uint32_t *picks) {
    struct step step = {queue, picks, 0, max_batch};
    uint32_t first_piece = longest_waiting(queue);
    take_single_rows(&step, true);
    if (first_piece < queue->n_items) {
        take_if_it_fits(&step, first_piece);
    }
    take_single_rows(&step, false);
    take_longer_pieces(&step, first_piece);
    note_left_out(&step);
    return step.n_picks;
}

bool schedule_may_grow(const struct schedule_item *items, uint32_t n_items, uint32_t n_expected) {
    uint32_t n_sessions = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        if (items[i].rows != 1) {
            return false;
        }
        n_sessions += !has_earlier(items, i);
    }
    return n_items > 0 && n_sessions < n_expected;
}

uint32_t schedule_next(struct schedule_item *items, uint32_t n_items,
                       const struct schedule_room *room, bool last_was_step, uint32_t *picks) {
    struct queue queue = {.items = items, .n_items = n_items};
    find_ready(&queue);
    if (!has_ready_piece(&queue)) {
        keep_single_rows(&queue, room->single_rows);
    }
    uint32_t other = oldest(&queue, false);
    uint32_t forward = oldest(&queue, true);
    bool other_goes_first = other < n_items && (other < forward || last_was_step);
    if (other_goes_first) {
        picks[0] = other;
        return 1;
    }
    return forward < n_items ? fill_step(&queue, room->rows, picks) : 0;
}
