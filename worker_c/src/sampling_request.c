#include "sampling_request.h"

#include "memory.h"

#include <float.h>
#include <string.h>

static const struct number {
    const char *key;
    size_t offset; /* of a float in shard_sampling */
    struct decode_span span;
    float otherwise;
} NUMBERS[] = {
    {"temperature", offsetof(shard_sampling, temperature), {0, FLT_MAX, false}, 0},
    {"top_p", offsetof(shard_sampling, top_p), {0, 1, true}, 1},
    {"min_p", offsetof(shard_sampling, min_p), {0, 1, false}, 0},
    {"typical_p", offsetof(shard_sampling, typical_p), {0, 1, true}, 1},
    {"repeat_penalty", offsetof(shard_sampling, repeat_penalty), {0, FLT_MAX, true}, 1},
    {"presence_penalty", offsetof(shard_sampling, presence_penalty), {-FLT_MAX, FLT_MAX, false}, 0},
    {"frequency_penalty",
     offsetof(shard_sampling, frequency_penalty),
     {-FLT_MAX, FLT_MAX, false},
     0},
};

static const char *const OTHER_KEYS[] = {
    "seed", "top_k", "repeat_last_n", "logit_bias", "grammar", "grammar_start", "top_logprobs",
};

enum {
    N_NUMBERS = sizeof(NUMBERS) / sizeof(NUMBERS[0]),
    N_OTHER_KEYS = sizeof(OTHER_KEYS) / sizeof(OTHER_KEYS[0])
};

static uint32_t count_known(const struct decode_map *map) {
    uint32_t n_known = 0;
    for (int i = 0; i < N_NUMBERS; i++) {
        n_known += decode_find(map, NUMBERS[i].key) != NULL;
    }
    for (int i = 0; i < N_OTHER_KEYS; i++) {
        n_known += decode_find(map, OTHER_KEYS[i]) != NULL;
    }
    return n_known;
}

static void read_numbers(struct decode_fields *fields, shard_sampling *sampling) {
    for (int i = 0; i < N_NUMBERS; i++) {
        const struct number *number = &NUMBERS[i];
        float value = decode_optional_float(fields, number->key, number->span, number->otherwise);
        memcpy((char *)sampling + number->offset, &value, sizeof(value));
    }
}

static void read_integers(struct decode_fields *fields, shard_sampling *sampling) {
    sampling->seed = (uint32_t)decode_optional_uint(fields, "seed", 0, UINT32_MAX, 0);
    sampling->top_k = (int32_t)decode_optional_int(fields, "top_k", 0, INT32_MAX, 0);
    sampling->repeat_last_n =
        (int32_t)decode_optional_int(fields, "repeat_last_n", -1, INT32_MAX, 64);
    sampling->top_logprobs =
        (uint32_t)decode_optional_uint(fields, "top_logprobs", 0, LIMIT_TOP, 0);
    sampling->grammar_start =
        decode_is_there(fields, "grammar_start")
            ? (uint32_t)decode_uint(fields, "grammar_start", 0, UINT32_MAX - 1)
            : UINT32_MAX;
}

void sampling_request_read(struct decode_fields *fields, struct sampling_request *request) {
    struct decode_map map;
    decode_optional_inner(fields, "sampling", &map);
    struct decode_fields inner = {&map, fields->failure};
    memset(request, 0, sizeof(*request));
    read_numbers(&inner, &request->numbers);
    read_integers(&inner, &request->numbers);
    request->logit_bias = decode_optional_biases(&inner, "logit_bias", LIMIT_LOGIT_BIAS);
    request->grammar = decode_optional_name(&inner, "grammar", LIMIT_GRAMMAR);
    decode_refuse_unknown(&inner, "sampling", count_known(&map));
}

/* ---- for the engine ---- */

static bool unpack_bias(const struct decode_biases *biases, struct sampling_unpacked *unpacked,
                        struct failure *failure) {
    if (biases->count == 0) {
        return true;
    }
    unpacked->logit_bias = memory_allocate_array(biases->count, sizeof(*unpacked->logit_bias));
    if (unpacked->logit_bias == NULL) {
        return failure_set_memory(failure, (uint64_t)biases->count * sizeof(*unpacked->logit_bias));
    }
    decode_biases_copy(biases, unpacked->logit_bias);
    unpacked->sampling.logit_bias = unpacked->logit_bias;
    unpacked->sampling.n_logit_bias = biases->count;
    return true;
}

static bool unpack_grammar(struct decode_text text, struct sampling_unpacked *unpacked,
                           struct failure *failure) {
    if (text.size == 0) {
        return true;
    }
    unpacked->grammar = memory_allocate(text.size + 1);
    if (unpacked->grammar == NULL) {
        return failure_set_memory(failure, text.size + 1);
    }
    memcpy(unpacked->grammar, text.data, text.size);
    unpacked->grammar[text.size] = '\0';
    unpacked->sampling.grammar = unpacked->grammar;
    return true;
}

bool sampling_unpack(const struct sampling_request *request, struct sampling_unpacked *unpacked,
                     struct failure *failure) {
    *unpacked = (struct sampling_unpacked){.sampling = request->numbers};
    return unpack_bias(&request->logit_bias, unpacked, failure) &&
           unpack_grammar(request->grammar, unpacked, failure);
}

void sampling_unpacked_free(struct sampling_unpacked *unpacked) {
    memory_release(unpacked->logit_bias);
    memory_release(unpacked->grammar);
    unpacked->logit_bias = NULL;
    unpacked->grammar = NULL;
}
