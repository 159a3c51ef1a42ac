/* Fault plans of the transport: which words are ours, and what is left for the engine. */
#include "check.h"
#include "fault_transport.h"

#include <string.h>

static struct fault_transport faults;
static char message[256];

static bool read_plan(const char *plan) {
    check_subject(plan);
    message[0] = '\0';
    return fault_transport_read(&faults, plan, message, sizeof(message));
}

static void test_faults_are_told_apart(void) {
    static const struct {
        const char *plan, *engine_plan;
        size_t n_ours;
    } CASES[] = {
        {"", "", 0},
        {"crash@3", "crash@3", 0},
        {"hold@hello", "", 1},
        {"exit:3@2", "exit:3@2", 0},
        {"exit:3@result", "", 1},
        {"load-fail,garbage@bye,slow:20,ignore-term", "load-fail,slow:20", 2},
        {"nonsense", "nonsense", 0},
        {"hold", "hold", 0},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        CHECK(read_plan(CASES[i].plan));
        CHECK_TEXT(faults.engine_plan, CASES[i].engine_plan);
        CHECK_INT(faults.n_words, CASES[i].n_ours);
    }
}

static void test_fault_keeps_its_values(void) {
    CHECK(read_plan("exit:255@token_infos,grandchild-away"));
    CHECK_INT(faults.words[0].exit_status, 255);
    CHECK_TEXT(faults.words[0].frame, "token_infos");
    CHECK(faults.words[1].frame == NULL);
}

static void test_faults_that_are_wrong(void) {
    static const char *const PLANS[] = {
        "hold@nothing",
        "hodl@result",
        "exit@result",
        "exit:@result",
        "exit:256@result",
        "exit:1x@result",
        "hold:1@result",
        "hold@",
        "ignore-term@hello",
        "grandchild:1@bye",
        "exit:99999999999999999999@bye",
    };
    for (size_t i = 0; i < sizeof(PLANS) / sizeof(PLANS[0]); i++) {
        CHECK(!read_plan(PLANS[i]));
        CHECK(strstr(message, PLANS[i]) != NULL);
    }
}

static void test_plan_that_is_too_long(void) {
    char plan[2 * FAULT_TRANSPORT_MAX_PLAN];
    memset(plan, 'x', sizeof(plan) - 1);
    plan[sizeof(plan) - 1] = '\0';
    CHECK(!read_plan(plan));
    CHECK_TEXT(message, "a fault plan has at most 1023 bytes");
    plan[0] = '\0';
    for (int i = 0; i <= FAULT_TRANSPORT_MAX_WORDS; i++) {
        strcat(plan, i == 0 ? "hold@bye" : ",hold@bye");
    }
    CHECK(!read_plan(plan));
}

int main(void) {
    test_faults_are_told_apart();
    test_fault_keeps_its_values();
    test_faults_that_are_wrong();
    test_plan_that_is_too_long();
    return check_verdict();
}
