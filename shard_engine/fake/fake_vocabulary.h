/* The vocabulary half of the fake engine. fake_engine.h says what its tokens are. */
#ifndef FAKE_VOCABULARY_H
#define FAKE_VOCABULARY_H

#include "shard_engine.h"

enum { FAKE_TOKEN_EOS = 0, FAKE_TOKEN_BOS = 1, FAKE_TOKEN_NEWLINE = '\n', FAKE_N_BYTES = 256 };

/* SHARD_ERR_ARGUMENT (fields: token, n_vocab) where `token` is outside the vocabulary. */
shard_status fake_token_check(uint32_t n_vocab, int32_t token, shard_error *error);

enum { FAKE_TOKEN_TEXT_SIZE = 8 };

/* Writes the bytes that a token adds to a text and returns how many: none for control tokens
 * (unless unparsed) and for ids past the bytes. */
uint32_t fake_token_text(int32_t token, bool unparse_special, char text[FAKE_TOKEN_TEXT_SIZE]);

/* These have the shape of the table's calls, for a vocabulary of `n_vocab` tokens. */
shard_status fake_tokenize(uint32_t n_vocab, const char *text, uint32_t n_bytes, bool add_special,
                           bool parse_special, int32_t *tokens, uint32_t capacity,
                           uint32_t *n_tokens, shard_error *error);
shard_status fake_detokenize(uint32_t n_vocab, const int32_t *tokens, uint32_t n_tokens,
                             bool remove_special, bool unparse_special, char *text,
                             uint32_t capacity, uint32_t *n_bytes, shard_error *error);
shard_status fake_token_info(uint32_t n_vocab, int32_t token, shard_token_info *info,
                             shard_error *error);
void fake_vocabulary(uint32_t n_vocab, shard_vocabulary *vocabulary);
shard_status fake_chat_template(const char *name, char *text, uint32_t capacity, uint32_t *n_bytes,
                                shard_error *error);

#endif /* FAKE_VOCABULARY_H */
