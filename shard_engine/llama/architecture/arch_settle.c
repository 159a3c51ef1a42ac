#include "arch_settle.h"

#include "meta.h"

#include <math.h>

/* As the library counts: the key, or the tokens of the vocabulary. */
static uint32_t vocabulary_size(const struct gguf_context *gguf, const char *architecture) {
    char key[META_KEY_SIZE];
    uint32_t n_vocab = 0;
    meta_key(key, architecture, "vocab_size");
    const int64_t tokens = meta_array(gguf, "tokenizer.ggml.tokens");
    if (!meta_u32(gguf, key, &n_vocab) && tokens >= 0) {
        n_vocab = (uint32_t)gguf_get_arr_n(gguf, tokens);
    }
    return n_vocab;
}

void arch_settle_deepseek2(struct gguf_context *shard, const struct gguf_context *whole,
                           uint32_t n_layer) {
    enum { SOFTMAX = 1, SIGMOID = 2 }; /* llama.cpp's numbers for how experts are scored */
    const char *architecture = meta_string(whole, "general.architecture");
    const uint32_t n_vocab = vocabulary_size(whole, architecture);
    uint32_t gating = 0;
    char key[META_KEY_SIZE];
    if (n_layer == 26 || n_layer == 27 || (n_layer == 48 && n_vocab == 128256)) {
        meta_key(key, architecture, "attention.q_lora_rank");
        gguf_set_val_u32(shard, key, 0);
    }
    meta_key(key, architecture, "expert_gating_func");
    if (!meta_u32(whole, key, &gating) || gating == 0) {
        const bool is_sigmoid = (n_layer == 47 || n_layer == 48) && n_vocab == 154880;
        gguf_set_val_u32(shard, key, is_sigmoid ? SIGMOID : SOFTMAX);
    }
}

void arch_settle_minicpm(struct gguf_context *shard, const struct gguf_context *whole,
                         uint32_t n_layer) {
    char key[META_KEY_SIZE];
    meta_key(key, "minicpm", "residual_scale");
    if (gguf_find_key(whole, key) < 0) {
        gguf_set_val_f32(shard, key, 1.4f / sqrtf((float)n_layer));
    }
}
