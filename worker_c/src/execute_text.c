/* Text to token ids and back, and the template that makes a text of a conversation. */
#include "execute.h"

#include "answer.h"
#include "memory.h"
#include "utf8.h"

/* Both directions give a list whose length is known only when it was made: a first guess, and when
 * that was too small, once more with the length that the engine named. */
struct list {
    void *items;
    uint32_t capacity;
    uint32_t n_items;
    size_t item_size;
};

static bool list_grow(struct list *list, uint32_t capacity, struct failure *failure) {
    memory_release(list->items);
    list->items = memory_allocate_array(capacity, list->item_size);
    list->capacity = capacity;
    return list->items != NULL || failure_set_memory(failure, (uint64_t)capacity * list->item_size);
}

typedef shard_status (*list_filler)(struct execution *execution, const void *request,
                                    struct list *list, shard_error *error);

static bool list_fill(struct execution *execution, struct list *list, uint32_t guess,
                      list_filler fill, const void *request, struct failure *failure) {
    shard_error error;
    if (!list_grow(list, guess, failure)) {
        return false;
    }
    shard_status status = fill(execution, request, list, &error);
    if (status == SHARD_ERR_CAPACITY && list->n_items > list->capacity) {
        if (!list_grow(list, list->n_items, failure)) {
            return false;
        }
        status = fill(execution, request, list, &error);
    }
    return status == SHARD_OK || failure_set_engine(failure, &error);
}

static uint32_t guess_of(uint64_t wanted) {
    return wanted < UINT32_MAX ? (uint32_t)wanted : UINT32_MAX;
}

/* ---- tokenize ---- */

static shard_status fill_tokens(struct execution *execution, const void *request, struct list *list,
                                shard_error *error) {
    const struct tokenize_request *tokenize = request;
    return execution->api->tokenize(execution->engine, tokenize->text.data,
                                    (uint32_t)tokenize->text.size, tokenize->add_special,
                                    tokenize->parse_special, list->items, list->capacity,
                                    &list->n_items, error);
}

void execute_tokenize(struct execution *execution, struct job *job) {
    const struct tokenize_request *tokenize = &job->request.as.tokenize;
    struct list list = {.item_size = sizeof(int32_t)};
    struct failure failure;
    failure_clear(&failure);
    /* A token stands for a byte at least, and some may be added at either end. */
    if (!require_engine(execution, &failure) ||
        !list_fill(execution, &list, guess_of((uint64_t)tokenize->text.size + 8), fill_tokens,
                   tokenize, &failure)) {
        resolve_failure(execution, job, &failure);
    } else {
        struct encoder encoder;
        encode_start(&encoder);
        answer_tokenized(&encoder, job->request.id, list.items, list.n_items);
        resolve_answer(execution, job, &encoder);
    }
    memory_release(list.items);
}

/* ---- detokenize ---- */

struct text_request {
    const int32_t *tokens;
    const struct detokenize_request *detokenize;
};

static shard_status fill_text(struct execution *execution, const void *request, struct list *list,
                              shard_error *error) {
    const struct text_request *text = request;
    return execution->api->detokenize(
        execution->engine, text->tokens, text->detokenize->tokens.count,
        text->detokenize->remove_special, text->detokenize->unparse_special, list->items,
        list->capacity, &list->n_items, error);
}

/* Unpacked token ids, or NULL with the failure set. The caller releases them. */
static int32_t *unpack(const struct decode_tokens *tokens, struct failure *failure) {
    int32_t *ids = memory_allocate_array(tokens->count, sizeof(*ids));
    if (ids == NULL) {
        failure_set_memory(failure, (uint64_t)tokens->count * sizeof(*ids));
    } else {
        decode_tokens_copy(tokens, ids);
    }
    return ids;
}

static bool detokenize(struct execution *execution, const struct detokenize_request *request,
                       struct list *list, struct failure *failure) {
    int32_t *ids = require_engine(execution, failure) ? unpack(&request->tokens, failure) : NULL;
    if (ids == NULL) {
        return false;
    }
    const struct text_request text = {ids, request};
    bool done = list_fill(execution, list, guess_of(8 * (uint64_t)request->tokens.count + 64),
                          fill_text, &text, failure);
    memory_release(ids);
    return done;
}

void execute_detokenize(struct execution *execution, struct job *job) {
    struct list list = {.item_size = 1};
    struct failure failure;
    failure_clear(&failure);
    if (!detokenize(execution, &job->request.as.detokenize, &list, &failure)) {
        resolve_failure(execution, job, &failure);
    } else {
        reply_storage storage;
        struct encoder encoder;
        encode_start_fixed(&encoder, storage, sizeof(storage));
        answer_detokenized(&encoder, job->request.id, list.items, list.n_items);
        resolve_answer(execution, job, &encoder);
    }
    memory_release(list.items);
}

/* ---- token_info ---- */

static bool describe_tokens(struct execution *execution, const int32_t *ids, uint32_t n_ids,
                            shard_token_info *infos, struct failure *failure) {
    for (uint32_t i = 0; i < n_ids; i++) {
        shard_error error;
        if (execution->api->token_info(execution->engine, ids[i], &infos[i], &error) != SHARD_OK) {
            return failure_set_engine(failure, &error);
        }
    }
    return true;
}

static bool collect_infos(struct execution *execution, const struct decode_tokens *tokens,
                          shard_token_info **infos, struct failure *failure) {
    int32_t *ids = require_engine(execution, failure) ? unpack(tokens, failure) : NULL;
    if (ids == NULL) {
        return false;
    }
    *infos = memory_allocate_array(tokens->count, sizeof(**infos));
    bool done = *infos != NULL
                    ? describe_tokens(execution, ids, tokens->count, *infos, failure)
                    : failure_set_memory(failure, (uint64_t)tokens->count * sizeof(**infos));
    memory_release(ids);
    return done;
}

void execute_token_info(struct execution *execution, struct job *job) {
    const struct decode_tokens *tokens = &job->request.as.token_info.tokens;
    shard_token_info *infos = NULL;
    struct failure failure;
    failure_clear(&failure);
    if (!collect_infos(execution, tokens, &infos, &failure)) {
        resolve_failure(execution, job, &failure);
    } else {
        struct encoder encoder;
        encode_start(&encoder);
        answer_token_infos(&encoder, job->request.id, infos, tokens->count);
        resolve_answer(execution, job, &encoder);
    }
    memory_release(infos);
}

/* ---- chat_template ---- */

/* Most templates are shorter. */
enum { TEMPLATE_GUESS = 8 * 1024 };

static shard_status fill_template(struct execution *execution, const void *request,
                                  struct list *list, shard_error *error) {
    return execution->api->chat_template(execution->engine, request, list->items, list->capacity,
                                         &list->n_items, error);
}

/* A host would make text of other bytes, each in its own way. */
static bool is_text(const struct list *list, struct failure *failure) {
    return utf8_is_valid(list->items, list->n_items) ||
           failure_set(failure, shard_status_name(SHARD_ERR_MALFORMED),
                       "the chat template of this artifact is not UTF-8; give one of your own");
}

void execute_chat_template(struct execution *execution, struct job *job) {
    char name[LIMIT_PATH];
    const char *wanted = copy_path(name, job->request.as.chat_template.name);
    struct list list = {.item_size = 1};
    struct failure failure;
    failure_clear(&failure);
    if (!require_engine(execution, &failure) ||
        !list_fill(execution, &list, TEMPLATE_GUESS, fill_template, wanted, &failure) ||
        !is_text(&list, &failure)) {
        resolve_failure(execution, job, &failure);
    } else {
        reply_storage storage;
        struct encoder encoder;
        encode_start_fixed(&encoder, storage, sizeof(storage));
        answer_chat_template(&encoder, job->request.id, list.items, list.n_items);
        resolve_answer(execution, job, &encoder);
    }
    memory_release(list.items);
}
