/* CHECK, which survives release builds: prints what failed and where, and ends the test. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(actual, expected)                                                              \
    do {                                                                                           \
        const long long actual_ = (long long)(actual), expected_ = (long long)(expected);          \
        if (actual_ != expected_) {                                                                \
            fprintf(stderr, "%s:%d: %s is %lld and not %lld\n", __FILE__, __LINE__, #actual,       \
                    actual_, expected_);                                                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif /* CHECK_H */
