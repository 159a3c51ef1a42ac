#include "decode_token.h"

#include <mpack.h>

static uint64_t raw_bits(const mpack_token_t *token) {
    return (uint64_t)token->data.value.hi << 32 | token->data.value.lo;
}

/* libmpack keeps the bytes of a negative number as they came, 1 to 8 of them. */
static uint64_t sign_extended(const mpack_token_t *token) {
    uint64_t bits = raw_bits(token);
    return token->length >= 8 ? bits : bits | UINT64_MAX << (8 * token->length);
}

static bool pass_over(struct decode_cursor *cursor, uint32_t length, struct decode_value *value) {
    if (length > cursor->left) {
        return false;
    }
    value->data = cursor->at;
    value->size = length;
    cursor->at += length;
    cursor->left -= length;
    return true;
}

static bool take_token(struct decode_cursor *cursor, const mpack_token_t *token,
                       struct decode_value *value) {
    switch (token->type) {
    case MPACK_TOKEN_NIL:
        value->kind = DECODE_NIL;
        return true;
    case MPACK_TOKEN_BOOLEAN:
        value->kind = DECODE_BOOL;
        value->integer = mpack_unpack_boolean(*token) ? 1 : 0;
        return true;
    case MPACK_TOKEN_UINT:
        value->kind = DECODE_UINT;
        value->integer = raw_bits(token);
        return true;
    case MPACK_TOKEN_SINT:
        value->kind = DECODE_SINT;
        value->integer = sign_extended(token);
        return true;
    case MPACK_TOKEN_FLOAT:
        value->kind = DECODE_FLOAT;
        value->number = mpack_unpack_float(*token);
        return true;
    case MPACK_TOKEN_STR:
        value->kind = DECODE_STR;
        return pass_over(cursor, token->length, value);
    case MPACK_TOKEN_BIN:
        value->kind = DECODE_BIN;
        return pass_over(cursor, token->length, value);
    case MPACK_TOKEN_EXT:
        value->kind = DECODE_EXT;
        return pass_over(cursor, token->length, value);
    case MPACK_TOKEN_ARRAY:
        value->kind = DECODE_ARRAY;
        value->count = token->length;
        return true;
    case MPACK_TOKEN_MAP:
        value->kind = DECODE_MAP;
        value->count = token->length;
        return true;
    default:
        return false;
    }
}

bool decode_token(struct decode_cursor *cursor, struct decode_value *value) {
    if (cursor->left == 0) {
        return false;
    }
    const uint8_t *start = cursor->at;
    *value = (struct decode_value){.data = start};
    /* A fresh reader for every token: the bytes of a string lie in memory already and are passed
     * over by length, so the reader never has to carry them in pieces. */
    mpack_tokbuf_t reader;
    mpack_tokbuf_init(&reader);
    mpack_token_t token;
    const char *at = (const char *)cursor->at;
    if (mpack_read(&reader, &at, &cursor->left, &token) != MPACK_OK) {
        return false;
    }
    cursor->at = (const uint8_t *)at;
    return take_token(cursor, &token, value);
}
