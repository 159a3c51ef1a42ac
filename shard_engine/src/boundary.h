/* Hidden rows between stages: float32 inside an engine, the recipe's boundary dtype at the seam.
 *
 * Rounding is to nearest even, done with integers, so that every machine makes the same bits; a
 * processor's own instructions may flush subnormal values. What is too large for the dtype becomes
 * infinite, which `boundary_check` finds. */
#ifndef SHARD_BOUNDARY_H
#define SHARD_BOUNDARY_H

#include "shard_engine.h"

typedef enum boundary_dtype { BOUNDARY_F32, BOUNDARY_F16, BOUNDARY_BF16 } boundary_dtype;

/* The dtype of a recipe's `boundary`; false where the name is none. */
bool boundary_find(const char *name, boundary_dtype *dtype);

/* Bytes of one value: 4 or 2. */
uint32_t boundary_value_bytes(boundary_dtype dtype);

/* `values` float32 become `values` of the dtype. `out` may be `in`: a value never grows. */
void boundary_pack(boundary_dtype dtype, const float *in, uint64_t values, void *out);

/* The reverse, exact. `out` and `in` are apart. */
void boundary_unpack(boundary_dtype dtype, const void *in, uint64_t values, float *out);

/* SHARD_ERR_NON_FINITE (fields: row, direction) where a row of the dtype holds NaN or an infinity.
 * `first_row` is what the first one is called in the error, `direction` is "in" or "out". */
shard_status boundary_check(boundary_dtype dtype, const void *rows, uint32_t n_rows,
                            uint32_t n_columns, uint32_t first_row, const char *direction,
                            shard_error *error);

#endif /* SHARD_BOUNDARY_H */
