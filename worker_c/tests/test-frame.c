/* Frames: what the header says is checked before memory is asked for, however the bytes come. */
#include "allocations.h"
#include "bounds.h"
#include "check.h"
#include "frame.h"
#include "memory.h"
#include "stream.h"

#include <string.h>

static const uint8_t PING[] = {0x47, 0x57, 1, 0, 3, 0, 0, 0, 'a', 'b', 'c'};

static void test_frame_in_any_pieces(void) {
    check_subject("pieces");
    for (size_t step = 1; step <= sizeof(PING); step++) {
        struct frame_reader reader;
        struct failure failure;
        enum frame_verdict verdict;
        frame_reader_init(&reader, 16);
        failure_clear(&failure);
        CHECK_INT(stream_feed(&reader, PING, sizeof(PING), step, &verdict, &failure), sizeof(PING));
        CHECK_INT(verdict, FRAME_WHOLE);
        size_t size;
        uint8_t *body = frame_reader_take(&reader, &size);
        CHECK_BYTES("body", body, size, "abc", 3);
        memory_release(body);
        frame_reader_free(&reader);
    }
}

static void test_frame_after_frame(void) {
    check_subject("two frames");
    uint8_t both[2 * sizeof(PING)];
    memcpy(both, PING, sizeof(PING));
    memcpy(both + sizeof(PING), PING, sizeof(PING));
    struct frame_reader reader;
    struct failure failure;
    frame_reader_init(&reader, 16);
    failure_clear(&failure);
    size_t at = 0;
    for (int i = 0; i < 2; i++) {
        enum frame_verdict verdict;
        at += stream_feed(&reader, both + at, sizeof(both) - at, sizeof(both), &verdict, &failure);
        CHECK_INT(verdict, FRAME_WHOLE);
        CHECK_INT(at, (size_t)(i + 1) * sizeof(PING));
        size_t size;
        memory_release(frame_reader_take(&reader, &size));
        CHECK_INT(size, 3);
    }
    frame_reader_free(&reader);
}

/* The verdict on a header whose byte `index` was changed, and what was allocated for it. */
static enum frame_verdict verdict_on(size_t index, uint8_t byte, uint32_t limit,
                                     struct failure *failure) {
    uint8_t bytes[sizeof(PING)];
    memcpy(bytes, PING, sizeof(PING));
    bytes[index] = byte;
    struct frame_reader reader;
    enum frame_verdict verdict;
    frame_reader_init(&reader, limit);
    failure_clear(failure);
    allocations_watch(0);
    stream_feed(&reader, bytes, FRAME_HEADER_SIZE, 3, &verdict, failure);
    frame_reader_free(&reader);
    CHECK_INT(allocations_live(), 0);
    allocations_unwatch();
    return verdict;
}

static void test_frame_header_wrong(void) {
    static const struct {
        size_t index;
        uint8_t byte;
        const char *what;
    } CASES[] = {
        {0, 'X', "first byte"}, {1, 'X', "second byte"}, {2, 0, "version 0"}, {2, 2, "version 2"},
        {3, 1, "flags"},        {4, 17, "length 17"},    {7, 1, "16 MiB"},    {4, 0, "length 0"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        check_subject(CASES[i].what);
        struct failure failure;
        CHECK_INT(verdict_on(CASES[i].index, CASES[i].byte, 16, &failure), FRAME_BAD);
        CHECK_TEXT(failure.code, CODE_BAD_FRAME);
        CHECK_INT(allocations_largest(), 0);
    }
}

static void test_frame_length_at_the_limit(void) {
    check_subject("limit");
    struct failure failure;
    CHECK_INT(verdict_on(4, 16, 16, &failure), FRAME_PARTIAL);
    CHECK_INT(allocations_largest(), 16);
    CHECK_INT(verdict_on(4, 17, 16, &failure), FRAME_BAD);
}

static void test_frame_version_outside_the_range_names_both_ends(void) {
    check_subject("version");
    struct failure failure;
    verdict_on(2, 9, 16, &failure);
    CHECK_INT(failure.n_fields, 3);
    CHECK_TEXT(failure.fields[1].name, "protocol_min");
    CHECK_TEXT(failure.fields[1].value, "1");
    CHECK_TEXT(failure.fields[2].name, "protocol_max");
    CHECK_TEXT(failure.fields[2].value, "1");
}

static void test_frame_without_memory(void) {
    check_subject("no memory");
    struct frame_reader reader;
    struct failure failure;
    enum frame_verdict verdict;
    frame_reader_init(&reader, 16);
    failure_clear(&failure);
    allocations_watch(1);
    stream_feed(&reader, PING, sizeof(PING), 11, &verdict, &failure);
    frame_reader_free(&reader);
    CHECK(allocations_unwatch());
    CHECK_INT(allocations_live(), 0);
    CHECK_INT(verdict, FRAME_NO_MEMORY);
    CHECK_TEXT(failure.code, "memory");
}

int main(void) {
    test_frame_in_any_pieces();
    test_frame_after_frame();
    test_frame_header_wrong();
    test_frame_length_at_the_limit();
    test_frame_version_outside_the_range_names_both_ends();
    test_frame_without_memory();
    return check_verdict();
}
