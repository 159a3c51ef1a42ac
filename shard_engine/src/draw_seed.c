#include "shard_engine.h"

/* What llama.cpp's `dist` sampler takes for "seed yourself at random" (LLAMA_DEFAULT_SEED). */
static const uint32_t NOT_A_SEED = UINT32_MAX;

uint32_t shard_draw_seed(uint32_t seed, uint32_t position) {
    uint64_t z = ((uint64_t)seed << 32 | position) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    const uint32_t upper = (uint32_t)((z ^ (z >> 31)) >> 32);
    return upper != NOT_A_SEED ? upper : 0;
}
