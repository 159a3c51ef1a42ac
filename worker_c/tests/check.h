/* Checks that print both operands, hold in release builds and do not end the test: a program
 * returns check_verdict() from main. */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECK(condition) check_true(__FILE__, __LINE__, #condition, (condition))
#define CHECK_INT(actual, expected)                                                                \
    check_int(__FILE__, __LINE__, #actual, (int64_t)(actual), (int64_t)(expected))
#define CHECK_TEXT(actual, expected) check_text(__FILE__, __LINE__, #actual, (actual), (expected))
#define CHECK_BYTES(name, actual, n_actual, expected, n_expected)                                  \
    check_bytes(__FILE__, __LINE__, (name), (actual), (n_actual), (expected), (n_expected))

/* What the following checks are about; printed with each that fails. Borrowed. */
void check_subject(const char *subject);

bool check_true(const char *file, int line, const char *text, bool condition);
bool check_int(const char *file, int line, const char *text, int64_t actual, int64_t expected);
bool check_text(const char *file, int line, const char *text, const char *actual,
                const char *expected);
bool check_bytes(const char *file, int line, const char *name, const void *actual, size_t n_actual,
                 const void *expected, size_t n_expected);

/* Prints how many checks held; 0 when all did and there were some. */
int check_verdict(void);

#endif /* TEST_CHECK_H */
