/* The seed of a draw: published outputs of SplitMix64, and the one value that llama.cpp would not
 * take as a seed. */
#include "check.h"
#include "shard_engine.h"

/* SplitMix64 started at 0 gives 0xe220a8397b1dcdaf first; the others are by the same definition, in
 * Python. */
static void test_known_values(void) {
    CHECK_EQUAL(shard_draw_seed(0, 0), 0xe220a839);
    CHECK_EQUAL(shard_draw_seed(0, 1), 0x910a2dec);
    CHECK_EQUAL(shard_draw_seed(1, 0), 0xc42c5a1a);
    CHECK_EQUAL(shard_draw_seed(42, 7), 0x2c582b9e);
    CHECK_EQUAL(shard_draw_seed(UINT32_MAX, UINT32_MAX), 0xe4d97177);
}

/* Found by running SplitMix64 backwards from 0xffffffff00000000. */
static void test_a_draw_is_never_seeded_at_random(void) {
    CHECK_EQUAL(shard_draw_seed(1444595419, 2209028004), 0);
}

int main(void) {
    test_known_values();
    test_a_draw_is_never_seeded_at_random();
    return 0;
}
