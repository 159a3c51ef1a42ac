/* Progress: the first and the last figure of each phase, and ten a second in between. */
#include "check.h"
#include "progress.h"

static struct progress progress;
static struct progress_report reports[2];

static uint32_t offer(const char *phase, uint64_t done, uint64_t total, uint64_t now_us) {
    return progress_offer(&progress, phase, done, total, now_us, reports);
}

static void test_progress_of_one_phase(void) {
    progress = (struct progress){.sent_at_us = 0};
    CHECK_INT(offer("load", 0, 100, 1000), 1);
    CHECK_TEXT(reports[0].phase, "load");
    CHECK_INT(offer("load", 1, 100, 2000), 0);
    CHECK_INT(offer("load", 2, 100, 1000 + PROGRESS_INTERVAL_US - 1), 0);
    CHECK_INT(offer("load", 3, 100, 1000 + PROGRESS_INTERVAL_US), 1);
    CHECK_INT(reports[0].done, 3);
    CHECK_INT(offer("load", 100, 100, 1001 + PROGRESS_INTERVAL_US), 1);
    CHECK_INT(reports[0].done, 100);
    CHECK_INT(progress_end(&progress, reports), 0);
}

static void test_progress_that_stays_complete_is_said_once(void) {
    progress = (struct progress){.sent_at_us = 0};
    CHECK_INT(offer("warm-up", 0, 0, 1000), 1);
    CHECK_INT(offer("warm-up", 0, 0, 1001), 0);
    CHECK_INT(offer("warm-up", 0, 0, 1002), 0);
}

static void test_progress_held_back_comes_before_the_next_phase(void) {
    progress = (struct progress){.sent_at_us = 0};
    offer("digest", 0, 10, 1000);
    CHECK_INT(offer("digest", 9, 10, 1001), 0);
    CHECK_INT(offer("load", 0, 20, 1002), 2);
    CHECK_TEXT(reports[0].phase, "digest");
    CHECK_INT(reports[0].done, 9);
    CHECK_TEXT(reports[1].phase, "load");
    CHECK_INT(offer("load", 19, 20, 1003), 0);
    CHECK_INT(progress_end(&progress, reports), 1);
    CHECK_INT(reports[0].done, 19);
    CHECK_INT(progress_end(&progress, reports), 0);
}

int main(void) {
    check_subject("progress");
    test_progress_of_one_phase();
    test_progress_that_stays_complete_is_said_once();
    test_progress_held_back_comes_before_the_next_phase();
    return check_verdict();
}
