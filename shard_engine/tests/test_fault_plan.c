/* The fault plan parser: every word of fault_plan.h is read, and nothing else is. */
#include "check.h"
#include "fault_plan.h"

#include <string.h>

static fault_plan parse(const char *text) {
    fault_plan plan;
    shard_error error;
    CHECK_EQUAL(fault_plan_parse(text, &plan, &error), SHARD_OK);
    CHECK_EQUAL(error.status, SHARD_OK);
    return plan;
}

static void test_empty_plan_has_no_faults(void) {
    CHECK_EQUAL(parse(NULL).n_faults, 0);
    CHECK_EQUAL(parse("").n_faults, 0);
}

static void check_word(const char *text, fault_kind kind, uint32_t value, uint64_t step) {
    const fault_plan plan = parse(text);
    CHECK_EQUAL(plan.n_faults, 1);
    CHECK_EQUAL(plan.faults[0].kind, kind);
    CHECK_EQUAL(plan.faults[0].value, value);
    CHECK_EQUAL(plan.faults[0].step, step);
}

static void test_every_word_is_read(void) {
    check_word("crash@3", FAULT_CRASH, 0, 3);
    check_word("segv@2", FAULT_SEGV, 0, 2);
    check_word("exit:3@2", FAULT_EXIT, 3, 2);
    check_word("exit:0@1000000000", FAULT_EXIT, 0, 1000000000);
    check_word("hang@2", FAULT_HANG, 0, 2);
    check_word("hang-hard@2", FAULT_HANG_HARD, 0, 2);
    check_word("hang-call:2@3", FAULT_HANG_CALL, 2, 3);
    check_word("fail-call:256@1", FAULT_FAIL_CALL, 256, 1);
    check_word("slow:20", FAULT_SLOW, 20, 0);
    check_word("nan@2", FAULT_NAN, 0, 2);
    check_word("overflow@2", FAULT_OVERFLOW, 0, 2);
    check_word("stderr-flood@1", FAULT_STDERR_FLOOD, 0, 1);
    check_word("allocate@2", FAULT_ALLOCATE, 0, 2);
    check_word("load-slow:500", FAULT_LOAD_SLOW, 500, 0);
    check_word("load-fail", FAULT_LOAD_FAIL, 0, 0);
    check_word("load-hang", FAULT_LOAD_HANG, 0, 0);
    check_word("load-crash", FAULT_LOAD_CRASH, 0, 0);
}

static void test_words_are_joined_with_commas(void) {
    const fault_plan plan = parse("slow:5,nan@2,crash@9");
    CHECK_EQUAL(plan.n_faults, 3);
    CHECK_EQUAL(plan.faults[0].kind, FAULT_SLOW);
    CHECK_EQUAL(plan.faults[1].kind, FAULT_NAN);
    CHECK_EQUAL(plan.faults[2].kind, FAULT_CRASH);
}

static void check_refused(const char *text, const char *word) {
    fault_plan plan;
    shard_error error;
    CHECK_EQUAL(fault_plan_parse(text, &plan, &error), SHARD_ERR_ARGUMENT);
    CHECK_EQUAL(error.status, SHARD_ERR_ARGUMENT);
    CHECK_EQUAL(plan.n_faults, 0);
    CHECK_EQUAL(error.n_fields, 1);
    CHECK(strcmp(error.fields[0].name, "word") == 0);
    CHECK(strcmp(error.fields[0].value, word) == 0);
}

static void test_bad_words_are_named(void) {
    check_refused("explode", "explode");
    check_refused("crash", "crash");
    check_refused("crash@", "crash@");
    check_refused("crash@0", "crash@0");
    check_refused("crash@-1", "crash@-1");
    check_refused("crash@1x", "crash@1x");
    check_refused("crash@1000000001", "crash@1000000001");
    check_refused("crash@99999999999999999999999", "crash@99999999999999999999999");
    check_refused("crash:1@1", "crash:1@1");
    check_refused("exit@1", "exit@1");
    check_refused("exit:@1", "exit:@1");
    check_refused("exit:256@1", "exit:256@1");
    check_refused("hang-call@1", "hang-call@1");
    check_refused("hang-call:0@1", "hang-call:0@1");
    check_refused("hang-call:257@1", "hang-call:257@1");
    check_refused("fail-call:1", "fail-call:1");
    check_refused("slow", "slow");
    check_refused("slow:", "slow:");
    check_refused("slow:20@1", "slow:20@1");
    check_refused("load-fail@1", "load-fail@1");
    check_refused("slow:1,,nan@1", "");
    check_refused("slow:1,", "");
    check_refused(",", "");
    check_refused("slow:1,bad,nan@1", "bad");
    check_refused(" slow:1", " slow:1");
}

static void test_plan_is_bounded(void) {
    char text[FAULT_PLAN_MAX * 8 + 8] = "nan@1";
    for (int i = 1; i < FAULT_PLAN_MAX; i++) {
        strcat(text, ",nan@1");
    }
    CHECK_EQUAL(parse(text).n_faults, FAULT_PLAN_MAX);
    strcat(text, ",nan@2");
    check_refused(text, "nan@2");
}

static void test_faults_are_due_in_their_step_only(void) {
    const fault_plan plan = parse("nan@2,slow:5");
    CHECK(fault_plan_due(&plan, FAULT_NAN, 1) == NULL);
    CHECK(fault_plan_due(&plan, FAULT_NAN, 2) == &plan.faults[0]);
    CHECK(fault_plan_due(&plan, FAULT_NAN, 3) == NULL);
    CHECK(fault_plan_due(&plan, FAULT_SLOW, 1) == &plan.faults[1]);
    CHECK(fault_plan_due(&plan, FAULT_SLOW, 7) == &plan.faults[1]);
    CHECK(fault_plan_due(&plan, FAULT_CRASH, 2) == NULL);
}

static void test_faults_are_due_in_their_call_only(void) {
    const fault_plan plan = parse("hang-call:2@5,hang-call:3@5,fail-call:1@5");
    CHECK(!fault_plan_due_in_call(&plan, FAULT_HANG_CALL, 5, 1));
    CHECK(fault_plan_due_in_call(&plan, FAULT_HANG_CALL, 5, 2));
    CHECK(fault_plan_due_in_call(&plan, FAULT_HANG_CALL, 5, 3));
    CHECK(!fault_plan_due_in_call(&plan, FAULT_HANG_CALL, 4, 2));
    CHECK(fault_plan_due_in_call(&plan, FAULT_FAIL_CALL, 5, 1));
    CHECK(!fault_plan_due_in_call(&plan, FAULT_FAIL_CALL, 5, 2));
}

int main(void) {
    test_empty_plan_has_no_faults();
    test_every_word_is_read();
    test_words_are_joined_with_commas();
    test_bad_words_are_named();
    test_plan_is_bounded();
    test_faults_are_due_in_their_step_only();
    test_faults_are_due_in_their_call_only();
    return 0;
}
