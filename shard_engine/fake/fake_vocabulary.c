#include "fake_vocabulary.h"

#include "error.h"

#include <inttypes.h>
#include <string.h>

/* Bits of llama.cpp's `llama_token_attr`. */
enum { ATTRIBUTE_UNUSED = 1 << 1, ATTRIBUTE_CONTROL = 1 << 3, ATTRIBUTE_BYTE = 1 << 5 };

/* How control tokens are written in text, by token. */
static const char *const CONTROL_TEXT[] = {
    [FAKE_TOKEN_EOS] = "<eos>",
    [FAKE_TOKEN_BOS] = "<bos>",
};

enum { N_CONTROL = sizeof(CONTROL_TEXT) / sizeof(CONTROL_TEXT[0]) };

shard_status fake_token_check(uint32_t n_vocab, int32_t token, shard_error *error) {
    if (token >= 0 && (uint32_t)token < n_vocab) {
        return SHARD_OK;
    }
    shard_fail(error, SHARD_ERR_ARGUMENT,
               "token %" PRId32 " is outside the vocabulary; ids go from 0 to %" PRIu32, token,
               n_vocab - 1);
    shard_error_add(error, "token", "%" PRId32, token);
    shard_error_add(error, "n_vocab", "%" PRIu32, n_vocab);
    return error->status;
}

/* The caller's buffer: counts everything, writes what fits. */
typedef struct token_sink {
    int32_t *tokens;
    uint32_t capacity;
    uint32_t n;
} token_sink;

static void put_token(token_sink *sink, int32_t token) {
    if (sink->n < sink->capacity) {
        sink->tokens[sink->n] = token;
    }
    sink->n++;
}

static shard_status too_small(const char *what, uint32_t needed, uint32_t capacity,
                              shard_error *error) {
    shard_fail(error, SHARD_ERR_CAPACITY,
               "%" PRIu32 " %s do not fit in a buffer for %" PRIu32
               "; call again with a larger one",
               needed, what, capacity);
    shard_error_add(error, "needed", "%" PRIu32, needed);
    shard_error_add(error, "available", "%" PRIu32, capacity);
    return error->status;
}

/* The control token whose text starts here, or -1. */
static int32_t match_control(const char *text, uint32_t n_bytes) {
    for (int32_t token = 0; token < N_CONTROL; token++) {
        const size_t length = strlen(CONTROL_TEXT[token]);
        if (length <= n_bytes && memcmp(text, CONTROL_TEXT[token], length) == 0) {
            return token;
        }
    }
    return -1;
}

/* Splits the text into `sink`. */
static shard_status split(uint32_t n_vocab, const char *text, uint32_t n_bytes, bool parse_special,
                          token_sink *sink, shard_error *error) {
    for (uint32_t i = 0; i < n_bytes;) {
        const int32_t control = parse_special ? match_control(text + i, n_bytes - i) : -1;
        const uint32_t byte = (unsigned char)text[i];
        if (control >= 0) {
            put_token(sink, control);
            i += (uint32_t)strlen(CONTROL_TEXT[control]);
        } else if (byte < n_vocab) {
            put_token(sink, (int32_t)byte);
            i++;
        } else {
            return shard_fail(error, SHARD_ERR_ARGUMENT,
                              "byte %" PRIu32 " at offset %" PRIu32
                              " is not in the fake vocabulary of %" PRIu32
                              " tokens; load \"fake:vocab=256\"",
                              byte, i, n_vocab);
        }
    }
    return SHARD_OK;
}

shard_status fake_tokenize(uint32_t n_vocab, const char *text, uint32_t n_bytes, bool add_special,
                           bool parse_special, int32_t *tokens, uint32_t capacity,
                           uint32_t *n_tokens, shard_error *error) {
    /* Counted first, because a buffer that is too small must stay untouched. */
    token_sink count = {NULL, 0, add_special ? 1 : 0};
    *n_tokens = 0;
    if (split(n_vocab, text, n_bytes, parse_special, &count, error) != SHARD_OK) {
        return error->status;
    }
    *n_tokens = count.n;
    if (count.n > capacity) {
        return too_small("tokens", count.n, capacity, error);
    }
    token_sink sink = {tokens, capacity, 0};
    if (add_special) {
        put_token(&sink, FAKE_TOKEN_BOS);
    }
    split(n_vocab, text, n_bytes, parse_special, &sink, error);
    return shard_ok(error);
}

uint32_t fake_token_text(int32_t token, bool unparse_special, char text[FAKE_TOKEN_TEXT_SIZE]) {
    if (token < N_CONTROL) {
        const size_t length = unparse_special ? strlen(CONTROL_TEXT[token]) : 0;
        memcpy(text, CONTROL_TEXT[token], length);
        return (uint32_t)length;
    }
    text[0] = (char)token;
    return token < FAKE_N_BYTES ? 1 : 0;
}

shard_status fake_detokenize(uint32_t n_vocab, const int32_t *tokens, uint32_t n_tokens,
                             bool remove_special, bool unparse_special, char *text,
                             uint32_t capacity, uint32_t *n_bytes, shard_error *error) {
    char piece[FAKE_TOKEN_TEXT_SIZE];
    const uint32_t first = remove_special && n_tokens > 0 && tokens[0] == FAKE_TOKEN_BOS ? 1 : 0;
    uint32_t end = n_tokens;
    if (remove_special && end > first && tokens[end - 1] == FAKE_TOKEN_EOS) {
        end--;
    }
    uint32_t needed = 0;
    *n_bytes = 0;
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (fake_token_check(n_vocab, tokens[i], error) != SHARD_OK) {
            return error->status;
        }
    }
    for (uint32_t i = first; i < end; i++) {
        needed += fake_token_text(tokens[i], unparse_special, piece);
    }
    *n_bytes = needed;
    if (needed > capacity) {
        return too_small("bytes", needed, capacity, error);
    }
    uint32_t offset = 0;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t length = fake_token_text(tokens[i], unparse_special, piece);
        for (uint32_t k = 0; k < length; k++) {
            text[offset++] = piece[k];
        }
    }
    return shard_ok(error);
}

shard_status fake_token_info(uint32_t n_vocab, int32_t token, shard_token_info *info,
                             shard_error *error) {
    if (fake_token_check(n_vocab, token, error) != SHARD_OK) {
        return error->status;
    }
    const bool control = token < N_CONTROL;
    *info = (shard_token_info){
        .attributes = control                ? ATTRIBUTE_CONTROL
                      : token < FAKE_N_BYTES ? ATTRIBUTE_BYTE
                                             : ATTRIBUTE_UNUSED,
        .is_control = control,
        .end_of_generation = token == FAKE_TOKEN_EOS,
    };
    return shard_ok(error);
}

void fake_vocabulary(uint32_t n_vocab, shard_vocabulary *vocabulary) {
    *vocabulary = (shard_vocabulary){
        .n_tokens = n_vocab,
        .bos = FAKE_TOKEN_BOS,
        .eos = FAKE_TOKEN_EOS,
        .eot = -1,
        .newline = n_vocab > FAKE_TOKEN_NEWLINE ? FAKE_TOKEN_NEWLINE : -1,
        .padding = -1,
        .add_bos = true,
        .add_eos = false,
    };
}

static const char CHAT_TEMPLATE[] =
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

shard_status fake_chat_template(const char *name, char *text, uint32_t capacity, uint32_t *n_bytes,
                                shard_error *error) {
    *n_bytes = name == NULL ? sizeof(CHAT_TEMPLATE) - 1 : 0;
    if (*n_bytes > capacity) {
        return too_small("bytes", *n_bytes, capacity, error);
    }
    memcpy(text, CHAT_TEMPLATE, *n_bytes);
    return shard_ok(error);
}
