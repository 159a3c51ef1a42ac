/* The boundary dtypes: every 16-bit value survives the way in and out, rounding is to nearest even,
 * and what is not finite is found where it is. */
#include "boundary.h"
#include "check.h"

#include <math.h>
#include <string.h>

static uint16_t pack(boundary_dtype dtype, float value) {
    uint16_t out = 0;
    boundary_pack(dtype, &value, 1, &out);
    return out;
}

static float unpack(boundary_dtype dtype, uint16_t value) {
    float out = 0.0f;
    boundary_unpack(dtype, &value, 1, &out);
    return out;
}

static void test_names_are_found(void) {
    boundary_dtype dtype;
    CHECK(boundary_find("f32", &dtype) && dtype == BOUNDARY_F32);
    CHECK(boundary_find("f16", &dtype) && dtype == BOUNDARY_F16);
    CHECK(boundary_find("bf16", &dtype) && dtype == BOUNDARY_BF16);
    CHECK(!boundary_find("f64", &dtype) && !boundary_find("", &dtype));
    CHECK_EQUAL(boundary_value_bytes(BOUNDARY_F32), 4);
    CHECK_EQUAL(boundary_value_bytes(BOUNDARY_F16), 2);
    CHECK_EQUAL(boundary_value_bytes(BOUNDARY_BF16), 2);
}

static void check_round_trip(boundary_dtype dtype) {
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        const float value = unpack(dtype, (uint16_t)bits);
        if (isnan(value)) {
            CHECK(isnan(unpack(dtype, pack(dtype, value))));
        } else {
            CHECK_EQUAL(pack(dtype, value), bits);
        }
    }
}

static void test_every_value_survives(void) {
    check_round_trip(BOUNDARY_F16);
    check_round_trip(BOUNDARY_BF16);
}

/* Between two neighbours: the middle goes to the even one, and a hair beside it to the nearer. */
static void check_rounding(boundary_dtype dtype, uint16_t infinity) {
    for (uint16_t lower = 0; lower + 1 < infinity; lower++) {
        const float below = unpack(dtype, lower);
        const float above = unpack(dtype, (uint16_t)(lower + 1));
        const float middle = (float)(((double)below + (double)above) / 2);
        const uint16_t even = (uint16_t)(lower + (lower & 1));
        CHECK_EQUAL(pack(dtype, middle), even);
        CHECK_EQUAL(pack(dtype, -middle), even | 0x8000);
        if (dtype == BOUNDARY_F16 || lower > 1) { /* the least bf16 have no float32 beside them */
            CHECK_EQUAL(pack(dtype, nextafterf(middle, below)), lower);
            CHECK_EQUAL(pack(dtype, nextafterf(middle, above)), lower + 1);
        }
    }
}

static void test_rounding_is_to_nearest_even(void) {
    check_rounding(BOUNDARY_F16, 0x7c00);
    check_rounding(BOUNDARY_BF16, 0x7f80);
}

static void test_known_values(void) {
    CHECK_EQUAL(pack(BOUNDARY_F16, 1.0f), 0x3c00);
    CHECK_EQUAL(pack(BOUNDARY_F16, -2.0f), 0xc000);
    CHECK_EQUAL(pack(BOUNDARY_F16, 65504.0f), 0x7bff);
    CHECK_EQUAL(pack(BOUNDARY_F16, 65519.996f), 0x7bff);
    CHECK_EQUAL(pack(BOUNDARY_F16, 65520.0f), 0x7c00);
    CHECK_EQUAL(pack(BOUNDARY_F16, 3.4e38f), 0x7c00);
    CHECK_EQUAL(pack(BOUNDARY_F16, 0x1p-24f), 0x0001);
    CHECK_EQUAL(pack(BOUNDARY_F16, 0x1p-25f), 0x0000);
    CHECK_EQUAL(pack(BOUNDARY_F16, -0x1p-149f), 0x8000);
    CHECK_EQUAL(pack(BOUNDARY_BF16, 1.0f), 0x3f80);
    CHECK_EQUAL(pack(BOUNDARY_BF16, 3.4028235e38f), 0x7f80);
}

static void test_rows_are_packed_in_place(void) {
    float rows[5] = {1.0f, -2.0f, 0.5f, 65504.0f, 0.0f};
    const uint16_t expected[5] = {0x3c00, 0xc000, 0x3800, 0x7bff, 0x0000};
    float copy[5];
    boundary_pack(BOUNDARY_F32, rows, 5, rows);
    boundary_unpack(BOUNDARY_F32, rows, 5, copy);
    CHECK(memcmp(copy, rows, sizeof(rows)) == 0);
    boundary_pack(BOUNDARY_F16, rows, 5, rows);
    CHECK(memcmp(rows, expected, sizeof(expected)) == 0);
}

static void check_found(boundary_dtype dtype, float bad) {
    float rows[6] = {1.0f, 2.0f, 3.0f, 4.0f, bad, 5.0f};
    shard_error error;
    boundary_pack(dtype, rows, 6, rows);
    CHECK_EQUAL(boundary_check(dtype, rows, 2, 2, 7, "out", &error), SHARD_OK);
    CHECK_EQUAL(boundary_check(dtype, rows, 3, 2, 7, "out", &error), SHARD_ERR_NON_FINITE);
    CHECK_EQUAL(error.n_fields, 2);
    CHECK(strcmp(error.fields[0].name, "row") == 0 && strcmp(error.fields[0].value, "9") == 0);
    CHECK(strcmp(error.fields[1].name, "direction") == 0);
    CHECK(strcmp(error.fields[1].value, "out") == 0);
}

static void test_rows_that_are_not_finite_are_found(void) {
    for (boundary_dtype dtype = BOUNDARY_F32; dtype <= BOUNDARY_BF16; dtype++) {
        check_found(dtype, NAN);
        check_found(dtype, -NAN);
        check_found(dtype, INFINITY);
        check_found(dtype, -INFINITY);
    }
    check_found(BOUNDARY_F16, -65520.0f);
    check_found(BOUNDARY_BF16, 3.4028235e38f);
}

int main(void) {
    test_names_are_found();
    test_every_value_survives();
    test_rounding_is_to_nearest_even();
    test_known_values();
    test_rows_are_packed_in_place();
    test_rows_that_are_not_finite_are_found();
    return 0;
}
