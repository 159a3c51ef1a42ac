#include "boundary.h"

#include "error.h"

#include <inttypes.h>
#include <string.h>

/* Exponent bits of each dtype: all set in NaN and the infinities, and in nothing else. */
enum { F32_EXPONENT = 0x7f800000, F16_EXPONENT = 0x7c00, BF16_EXPONENT = 0x7f80 };

static const struct {
    const char *name;
    uint32_t value_bytes;
} DTYPES[] = {
    [BOUNDARY_F32] = {"f32", 4},
    [BOUNDARY_F16] = {"f16", 2},
    [BOUNDARY_BF16] = {"bf16", 2},
};

enum { N_DTYPES = sizeof(DTYPES) / sizeof(DTYPES[0]) };

bool boundary_find(const char *name, boundary_dtype *dtype) {
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strncmp(name, DTYPES[i].name, SHARD_NAME_SIZE) == 0) {
            *dtype = (boundary_dtype)i;
            return true;
        }
    }
    return false;
}

uint32_t boundary_value_bytes(boundary_dtype dtype) {
    return DTYPES[dtype].value_bytes;
}

/* ---- bits ---- */

static uint32_t bits_of(float value) {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float value = 0.0f;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Adds what carries into the bit above `dropped` bits exactly when they are past the half, or at it
 * with that bit odd. */
static uint32_t round_to_even(uint32_t bits, uint32_t dropped) {
    const uint32_t odd = (bits >> dropped) & 1;
    return (bits + (UINT32_C(1) << (dropped - 1)) - 1 + odd) >> dropped;
}

/* ---- bf16: the upper half of a float32 ---- */

static uint16_t bf16_of(uint32_t bits) {
    if ((bits & 0x7fffffff) > F32_EXPONENT) {
        return (uint16_t)((bits >> 16) | 0x40); /* a NaN stays one when its lower half is cut off */
    }
    return (uint16_t)round_to_even(bits, 16);
}

static uint32_t bits_of_bf16(uint16_t value) {
    return (uint32_t)value << 16;
}

/* ---- f16: 5 bits of exponent with a bias of 15, 10 of mantissa ---- */

enum {
    F16_BIAS_STEP = (127 - 15) << 23, /* a float32's exponent above that of the same f16 */
    F16_LEAST_NORMAL = 0x38800000,    /* 2^-14 as float32 */
    F16_LEAST_ROUNDED = 0x33000000,   /* 2^-25: half of the least f16 */
};

/* Below 2^-14 an f16 counts units of 2^-24. */
static uint32_t f16_subnormal(uint32_t magnitude) {
    const uint32_t exponent = magnitude >> 23;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    return magnitude < F16_LEAST_ROUNDED ? 0 : round_to_even(mantissa, 126 - exponent);
}

static uint16_t f16_of(uint32_t bits) {
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > F32_EXPONENT) {
        return (uint16_t)(sign | F16_EXPONENT | 0x200);
    }
    if (magnitude < F16_LEAST_NORMAL) {
        return (uint16_t)(sign | f16_subnormal(magnitude));
    }
    const uint32_t rounded = round_to_even(magnitude - F16_BIAS_STEP, 13);
    return (uint16_t)(sign | (rounded < F16_EXPONENT ? rounded : F16_EXPONENT));
}

static uint32_t bits_of_f16(uint16_t value) {
    const uint32_t sign = (uint32_t)(value & 0x8000) << 16;
    const uint32_t magnitude = value & 0x7fff;
    if (magnitude >= F16_EXPONENT) {
        return sign | F32_EXPONENT | (magnitude & 0x3ff) << 13;
    }
    if (magnitude < 0x400) {
        return sign | bits_of((float)magnitude * 0x1p-24f);
    }
    return sign | ((magnitude << 13) + F16_BIAS_STEP);
}

/* ---- rows ---- */

/* Values are copied in and out, because `in` and `out` may be the same memory under two types. */
static void pack_16(uint16_t (*convert)(uint32_t), const float *in, uint64_t values, void *out) {
    for (uint64_t i = 0; i < values; i++) {
        uint32_t bits = 0;
        memcpy(&bits, in + i, sizeof(bits));
        const uint16_t value = convert(bits);
        memcpy((char *)out + i * sizeof(value), &value, sizeof(value));
    }
}

static void unpack_16(uint32_t (*convert)(uint16_t), const void *in, uint64_t values, float *out) {
    for (uint64_t i = 0; i < values; i++) {
        uint16_t value = 0;
        memcpy(&value, (const char *)in + i * sizeof(value), sizeof(value));
        out[i] = float_of(convert(value));
    }
}

void boundary_pack(boundary_dtype dtype, const float *in, uint64_t values, void *out) {
    switch (dtype) {
    case BOUNDARY_F16:
        pack_16(f16_of, in, values, out);
        break;
    case BOUNDARY_BF16:
        pack_16(bf16_of, in, values, out);
        break;
    case BOUNDARY_F32:
        if (out != in) { /* in place, which is where rows are packed, there is nothing to do */
            memmove(out, in, values * sizeof(float));
        }
    }
}

void boundary_unpack(boundary_dtype dtype, const void *in, uint64_t values, float *out) {
    switch (dtype) {
    case BOUNDARY_F16:
        unpack_16(bits_of_f16, in, values, out);
        break;
    case BOUNDARY_BF16:
        unpack_16(bits_of_bf16, in, values, out);
        break;
    case BOUNDARY_F32:
        memcpy(out, in, values * sizeof(float));
    }
}

/* ---- the check ---- */

static uint64_t first_non_finite_16(const void *rows, uint64_t values, uint16_t exponent) {
    uint64_t i = 0;
    uint16_t value = 0;
    for (; i < values; i++) {
        memcpy(&value, (const char *)rows + i * sizeof(value), sizeof(value));
        if ((value & exponent) == exponent) {
            break;
        }
    }
    return i;
}

static uint64_t first_non_finite_32(const void *rows, uint64_t values) {
    uint64_t i = 0;
    uint32_t bits = 0;
    for (; i < values; i++) {
        memcpy(&bits, (const char *)rows + i * sizeof(bits), sizeof(bits));
        if ((bits & F32_EXPONENT) == F32_EXPONENT) {
            break;
        }
    }
    return i;
}

static uint64_t first_non_finite(boundary_dtype dtype, const void *rows, uint64_t values) {
    switch (dtype) {
    case BOUNDARY_F16:
        return first_non_finite_16(rows, values, F16_EXPONENT);
    case BOUNDARY_BF16:
        return first_non_finite_16(rows, values, BF16_EXPONENT);
    default:
        return first_non_finite_32(rows, values);
    }
}

shard_status boundary_check(boundary_dtype dtype, const void *rows, uint32_t n_rows,
                            uint32_t n_columns, uint32_t first_row, const char *direction,
                            shard_error *error) {
    const uint64_t values = (uint64_t)n_rows * n_columns;
    const uint64_t at = first_non_finite(dtype, rows, values);
    if (at == values) {
        return SHARD_OK;
    }
    const uint32_t row = first_row + (uint32_t)(at / n_columns);
    shard_fail(error, SHARD_ERR_NON_FINITE, "row %" PRIu32 " coming %s holds NaN or an infinity%s",
               row, direction,
               dtype == BOUNDARY_F16 ? " (f16 ends at 65504; bf16 and f32 reach further)" : "");
    shard_error_add(error, "row", "%" PRIu32, row);
    shard_error_add(error, "direction", "%s", direction);
    return error->status;
}
