/* The artifact's vocabulary: the loaded model's own on a shard that has the head; on a first shard,
 * whose model has none, it is read from the artifact beside the model when it is first needed,
 * which is at the end of the load: a shard's description says whether there is one. */
#ifndef SHARD_LLAMA_VOCABULARY_H
#define SHARD_LLAMA_VOCABULARY_H

#include "artifact.h"

#include <llama.h>

typedef struct lazy_vocabulary {
    const struct llama_vocab *vocab;  /* NULL until it is there */
    const struct llama_model *holder; /* the model that it belongs to */
    struct llama_model *model;        /* owned, where it was loaded on demand; holds nothing else */
    char path[FILES_PATH_SIZE];       /* where a lazy one comes from; empty: there is none */
    uint64_t offset;
} lazy_vocabulary;

/* Bytes that grow as needed and are kept for the next use. */
typedef struct text_buffer {
    char *data;
    int32_t capacity;
} text_buffer;

/* That of a model which is loaded, and borrowed. */
void vocabulary_init(lazy_vocabulary *vocabulary, const struct llama_model *model);
/* Names the place of a vocabulary that is loaded on demand. */
void vocabulary_init_lazy(lazy_vocabulary *vocabulary, const shard_artifact *artifact);
void vocabulary_free(lazy_vocabulary *vocabulary);

/* False for a model without a tokenizer: it has token ids, and no text for them. */
bool vocabulary_is_real(const struct llama_vocab *vocab);

/* Loads it where needed. SHARD_ERR_NOT_OWNED where this shard has none. */
shard_status vocabulary_need(lazy_vocabulary *vocabulary, shard_error *error);

shard_status vocabulary_tokenize(lazy_vocabulary *vocabulary, const char *text, uint32_t n_bytes,
                                 bool add_special, bool parse_special, int32_t *tokens,
                                 uint32_t capacity, uint32_t *n_tokens, shard_error *error);
shard_status vocabulary_detokenize(lazy_vocabulary *vocabulary, const int32_t *tokens,
                                   uint32_t n_tokens, bool remove_special, bool unparse_special,
                                   char *text, uint32_t capacity, uint32_t *n_bytes,
                                   shard_error *error);
/* The bytes that one token adds to a text, into `buffer`; `*n_bytes` is 0 for tokens that add none.
 * The vocabulary must be there. SHARD_ERR_MEMORY. */
shard_status vocabulary_token_text(const lazy_vocabulary *vocabulary, int32_t token,
                                   text_buffer *buffer, uint32_t *n_bytes, shard_error *error);
shard_status vocabulary_token_info(lazy_vocabulary *vocabulary, int32_t token,
                                   shard_token_info *info, shard_error *error);
/* The file's own chat template of that name; NULL: the one without a name. */
shard_status vocabulary_chat_template(lazy_vocabulary *vocabulary, const char *name, char *text,
                                      uint32_t capacity, uint32_t *n_bytes, shard_error *error);
shard_status vocabulary_describe(lazy_vocabulary *vocabulary, shard_vocabulary *out,
                                 shard_error *error);

#endif /* SHARD_LLAMA_VOCABULARY_H */
