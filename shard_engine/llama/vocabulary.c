#include "vocabulary.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vocabulary_init(lazy_vocabulary *vocabulary, const struct llama_model *model) {
    vocabulary->holder = model;
    vocabulary->vocab = llama_model_get_vocab(model);
}

void vocabulary_init_lazy(lazy_vocabulary *vocabulary, const shard_artifact *artifact) {
    vocabulary->offset = artifact->source_offset;
    snprintf(vocabulary->path, sizeof(vocabulary->path), "%s", artifact->files[0].path);
}

void vocabulary_free(lazy_vocabulary *vocabulary) {
    llama_model_free(vocabulary->model);
    *vocabulary = (struct lazy_vocabulary){0};
}

static struct llama_model *load(const lazy_vocabulary *vocabulary) {
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    FILE *file = fopen(vocabulary->path, "rbe");
    struct llama_model *model = NULL;
    if (file == NULL) {
        return NULL;
    }
    if (fseeko(file, (off_t)vocabulary->offset, SEEK_SET) == 0) {
        model = llama_model_load_from_file_ptr(file, params);
    }
    fclose(file);
    return model;
}

bool vocabulary_is_real(const struct llama_vocab *vocab) {
    return llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
}

static shard_status check_kind(const lazy_vocabulary *vocabulary, shard_error *error) {
    return vocabulary_is_real(vocabulary->vocab)
               ? shard_ok(error)
               : shard_fail(error, SHARD_ERR_NOT_OWNED,
                            "this model has no tokenizer: give and take token ids");
}

shard_status vocabulary_need(lazy_vocabulary *vocabulary, shard_error *error) {
    if (vocabulary->vocab != NULL) {
        return check_kind(vocabulary, error);
    }
    if (vocabulary->path[0] == '\0') {
        return shard_fail(error, SHARD_ERR_NOT_OWNED,
                          "this shard has no vocabulary: ask the first or the last stage");
    }
    vocabulary->model = load(vocabulary);
    if (vocabulary->model == NULL) {
        shard_fail(error, SHARD_ERR_MALFORMED, "llama.cpp cannot read the vocabulary of %s",
                   vocabulary->path);
        shard_error_add(error, "path", "%s", vocabulary->path);
        return error->status;
    }
    vocabulary_init(vocabulary, vocabulary->model);
    return check_kind(vocabulary, error);
}

static shard_status too_small(uint32_t needed, uint32_t capacity, shard_error *error) {
    shard_fail(error, SHARD_ERR_CAPACITY, "the answer needs room for %u, but there is room for %u",
               needed, capacity);
    shard_error_add(error, "needed", "%u", needed);
    shard_error_add(error, "available", "%u", capacity);
    return error->status;
}

static shard_status check_tokens(const lazy_vocabulary *vocabulary, const int32_t *tokens,
                                 uint32_t n_tokens, shard_error *error) {
    const int32_t n_vocab = llama_vocab_n_tokens(vocabulary->vocab);
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            return shard_fail(error, SHARD_ERR_ARGUMENT,
                              "token %d is not in the vocabulary of %d tokens", tokens[i], n_vocab);
        }
    }
    return shard_ok(error);
}

/* llama.cpp answers with the negated size when the room is too small. */
static shard_status take_count(int32_t count, uint32_t capacity, uint32_t *out,
                               shard_error *error) {
    *out = (uint32_t)(count < 0 ? -(int64_t)count : count);
    return count < 0 ? too_small(*out, capacity, error) : shard_ok(error);
}

shard_status vocabulary_tokenize(lazy_vocabulary *vocabulary, const char *text, uint32_t n_bytes,
                                 bool add_special, bool parse_special, int32_t *tokens,
                                 uint32_t capacity, uint32_t *n_tokens, shard_error *error) {
    *n_tokens = 0;
    if (vocabulary_need(vocabulary, error) != SHARD_OK) {
        return error->status;
    }
    if (n_bytes > INT32_MAX || capacity > INT32_MAX) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "a text of %u bytes is too long to tokenize",
                          n_bytes);
    }
    const int32_t count = llama_tokenize(vocabulary->vocab, text, (int32_t)n_bytes, tokens,
                                         (int32_t)capacity, add_special, parse_special);
    if (count == INT32_MIN) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "a text of %u bytes has too many tokens",
                          n_bytes);
    }
    return take_count(count, capacity, n_tokens, error);
}

shard_status vocabulary_detokenize(lazy_vocabulary *vocabulary, const int32_t *tokens,
                                   uint32_t n_tokens, bool remove_special, bool unparse_special,
                                   char *text, uint32_t capacity, uint32_t *n_bytes,
                                   shard_error *error) {
    *n_bytes = 0;
    if (vocabulary_need(vocabulary, error) != SHARD_OK ||
        check_tokens(vocabulary, tokens, n_tokens, error) != SHARD_OK) {
        return error->status;
    }
    if (n_tokens > INT32_MAX || capacity > INT32_MAX) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "%u tokens are too many to detokenize",
                          n_tokens);
    }
    return take_count(llama_detokenize(vocabulary->vocab, tokens, (int32_t)n_tokens, text,
                                       (int32_t)capacity, remove_special, unparse_special),
                      capacity, n_bytes, error);
}

static shard_status grow(text_buffer *buffer, int32_t capacity, shard_error *error) {
    char *data = realloc(buffer->data, (size_t)capacity);
    if (data == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for a token's text of %d bytes",
                          capacity);
    }
    *buffer = (text_buffer){data, capacity};
    return SHARD_OK;
}

shard_status vocabulary_token_text(const lazy_vocabulary *vocabulary, int32_t token,
                                   text_buffer *buffer, uint32_t *n_bytes, shard_error *error) {
    int32_t count =
        llama_token_to_piece(vocabulary->vocab, token, buffer->data, buffer->capacity, 0, false);
    *n_bytes = 0;
    if (count < 0) { /* the negated size that it needs */
        if (grow(buffer, -count, error) != SHARD_OK) {
            return error->status;
        }
        count = llama_token_to_piece(vocabulary->vocab, token, buffer->data, buffer->capacity, 0,
                                     false);
    }
    *n_bytes = (uint32_t)count;
    return SHARD_OK;
}

shard_status vocabulary_token_info(lazy_vocabulary *vocabulary, int32_t token,
                                   shard_token_info *info, shard_error *error) {
    if (vocabulary_need(vocabulary, error) != SHARD_OK ||
        check_tokens(vocabulary, &token, 1, error) != SHARD_OK) {
        return error->status;
    }
    info->attributes = (uint32_t)llama_vocab_get_attr(vocabulary->vocab, token);
    info->is_control = llama_vocab_is_control(vocabulary->vocab, token);
    info->end_of_generation = llama_vocab_is_eog(vocabulary->vocab, token);
    return shard_ok(error);
}

/* The library names one of its own for some models that have none; what the file says, it says in
 * the model's metadata. */
static const char *find_template(const struct llama_model *model, const char *name) {
    static const char KEY[] = "tokenizer.chat_template";
    char key[sizeof(KEY) + 1 + SHARD_NAME_SIZE];
    snprintf(key, sizeof(key), "%s%s%s", KEY, name != NULL ? "." : "", name != NULL ? name : "");
    const bool is_there = llama_model_meta_val_str(model, key, NULL, 0) >= 0;
    const char *found = is_there ? llama_model_chat_template(model, name) : NULL;
    return found != NULL ? found : "";
}

shard_status vocabulary_chat_template(lazy_vocabulary *vocabulary, const char *name, char *text,
                                      uint32_t capacity, uint32_t *n_bytes, shard_error *error) {
    *n_bytes = 0;
    if (vocabulary_need(vocabulary, error) != SHARD_OK) {
        return error->status;
    }
    const char *found = find_template(vocabulary->holder, name);
    const size_t length = strlen(found);
    *n_bytes = (uint32_t)length;
    if (length > capacity) {
        return too_small(*n_bytes, capacity, error);
    }
    memcpy(text, found, length);
    return shard_ok(error);
}

shard_status vocabulary_describe(lazy_vocabulary *vocabulary, shard_vocabulary *out,
                                 shard_error *error) {
    if (vocabulary_need(vocabulary, error) != SHARD_OK) {
        return error->status;
    }
    const struct llama_vocab *vocab = vocabulary->vocab;
    *out = (shard_vocabulary){
        .n_tokens = (uint32_t)llama_vocab_n_tokens(vocab),
        .bos = llama_vocab_bos(vocab),
        .eos = llama_vocab_eos(vocab),
        .eot = llama_vocab_eot(vocab),
        .newline = llama_vocab_nl(vocab),
        .padding = llama_vocab_pad(vocab),
        .add_bos = llama_vocab_get_add_bos(vocab),
        .add_eos = llama_vocab_get_add_eos(vocab),
    };
    return shard_ok(error);
}
