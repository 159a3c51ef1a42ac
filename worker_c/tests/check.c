#include "check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *subject = "";
static unsigned long n_held;
static unsigned long n_failed;

void check_subject(const char *text) {
    subject = text;
}

static bool note(bool holds, const char *file, int line, const char *text) {
    if (holds) {
        n_held++;
        return true;
    }
    n_failed++;
    fprintf(stderr, "%s:%d: %s%s%s", file, line, subject, *subject != '\0' ? ": " : "", text);
    return false;
}

bool check_true(const char *file, int line, const char *text, bool condition) {
    if (!note(condition, file, line, text)) {
        fprintf(stderr, " does not hold\n");
    }
    return condition;
}

bool check_int(const char *file, int line, const char *text, int64_t actual, int64_t expected) {
    bool holds = actual == expected;
    if (!note(holds, file, line, text)) {
        fprintf(stderr, " is %" PRId64 ", expected %" PRId64 "\n", actual, expected);
    }
    return holds;
}

bool check_text(const char *file, int line, const char *text, const char *actual,
                const char *expected) {
    const char *left = actual != NULL ? actual : "(null)";
    const char *right = expected != NULL ? expected : "(null)";
    bool holds = strcmp(left, right) == 0;
    if (!note(holds, file, line, text)) {
        fprintf(stderr, " is \"%s\", expected \"%s\"\n", left, right);
    }
    return holds;
}

static void print_bytes(const char *label, const uint8_t *bytes, size_t size) {
    fprintf(stderr, "  %s (%zu bytes): ", label, size);
    for (size_t i = 0; i < size; i++) {
        fprintf(stderr, "%02x", bytes[i]);
    }
    fprintf(stderr, "\n");
}

bool check_bytes(const char *file, int line, const char *name, const void *actual, size_t n_actual,
                 const void *expected, size_t n_expected) {
    bool holds = n_actual == n_expected && memcmp(actual, expected, n_actual) == 0;
    if (!note(holds, file, line, name)) {
        fprintf(stderr, " differs\n");
        print_bytes("actual", actual, n_actual);
        print_bytes("expected", expected, n_expected);
    }
    return holds;
}

int check_verdict(void) {
    printf("%lu checks held, %lu failed\n", n_held, n_failed);
    return n_failed == 0 && n_held > 0 ? 0 : 1;
}
