#include "request.h"

#include "memory.h"

#include <string.h>

static const char *const OUTPUT_NAMES[] = {
    [SHARD_OUTPUT_NONE] = "none",     [SHARD_OUTPUT_HIDDEN] = "hidden",
    [SHARD_OUTPUT_LOGITS] = "logits", [SHARD_OUTPUT_LOGITS_ALL] = "logits_all",
    [SHARD_OUTPUT_TOKEN] = "token",   [SHARD_OUTPUT_EMBEDDING] = "embedding",
};

enum { N_OUTPUTS = sizeof(OUTPUT_NAMES) / sizeof(OUTPUT_NAMES[0]) };

const char *request_output_name(shard_output output) {
    return OUTPUT_NAMES[output];
}

static bool text_is(struct decode_text text, const char *wanted) {
    return text.data != NULL && text.size == strlen(wanted) &&
           memcmp(text.data, wanted, text.size) == 0;
}

/* ---- one reader per message ---- */

static void read_nothing(struct decode_fields *fields, struct request *request) {
    (void)fields;
    (void)request;
}

static void read_cancel(struct decode_fields *fields, struct request *request) {
    request->as.cancel.request = decode_uint(fields, "request", 1, UINT64_MAX);
}

static void read_inspect(struct decode_fields *fields, struct request *request) {
    struct inspect_request *inspect = &request->as.inspect;
    inspect->model = decode_path(fields, "model");
    inspect->engine = decode_optional_path(fields, "engine");
    inspect->cache_dir = decode_optional_path(fields, "cache_dir");
}

static void read_slice(struct decode_fields *fields, struct request *request) {
    struct slice_request *slice = &request->as.slice;
    slice->model = decode_path(fields, "model");
    slice->output = decode_path(fields, "output");
    decode_range(fields, "layers", &slice->start, &slice->end);
    slice->overwrite = decode_optional_bool(fields, "overwrite", false);
    slice->cache_dir = decode_optional_path(fields, "cache_dir");
}

/* `load.recipe` holds the defaults. */
static void read_load(struct decode_fields *fields, struct request *request) {
    struct load_request *load = &request->as.load;
    load->model = decode_path(fields, "model");
    decode_range(fields, "layers", &load->start, &load->end);
    identity_recipe_read(fields, &load->recipe);
    load->artifact = decode_optional_path(fields, "artifact");
    load->max_sessions = (uint32_t)decode_optional_uint(fields, "max_sessions", 1, INT32_MAX, 4);
    load->mmap = decode_optional_bool(fields, "mmap", true);
    load->mlock = decode_optional_bool(fields, "mlock", false);
    load->cache_dir = decode_optional_path(fields, "cache_dir");
    load->memory_available = decode_optional_uint(fields, "memory_available", 0, UINT64_MAX, 0);
    load->numa = decode_optional_name(fields, "numa", SHARD_NAME_SIZE - 1);
    load->n_stages = (uint32_t)decode_optional_uint(fields, "n_stages", 0, INT32_MAX, 0);
}

static void read_fork(struct decode_fields *fields, struct open_request *open) {
    if (!decode_is_there(fields, "fork")) {
        return;
    }
    struct decode_map map;
    decode_inner(fields, "fork", &map);
    struct decode_fields fork = {&map, fields->failure};
    open->source = decode_uint(&fork, "session", 1, UINT64_MAX);
    open->position = (uint32_t)decode_uint(&fork, "position", 0, UINT32_MAX);
}

static void read_open(struct decode_fields *fields, struct request *request) {
    struct open_request *open = &request->as.open;
    identity_claim_read(fields, &open->identity);
    sampling_request_read(fields, &open->sampling);
    read_fork(fields, open);
}

static shard_output read_output(struct decode_fields *fields) {
    struct decode_text name = decode_text(fields, "output", SHARD_NAME_SIZE);
    for (int i = 0; i < N_OUTPUTS; i++) {
        if (text_is(name, OUTPUT_NAMES[i])) {
            return (shard_output)i;
        }
    }
    failure_set(fields->failure, CODE_BAD_MESSAGE,
                "the key 'output' must be none, hidden, logits, logits_all, token or embedding");
    return SHARD_OUTPUT_NONE;
}

static void read_hidden(struct decode_fields *fields, struct decode_text *hidden) {
    const struct decode_value *value = decode_find(fields->map, "hidden");
    if (value->kind != DECODE_BIN) {
        failure_set(fields->failure, CODE_BAD_MESSAGE, "the key 'hidden' must be bin: rows");
        return;
    }
    *hidden = (struct decode_text){(const char *)value->data, value->size};
}

static void read_rows(struct decode_fields *fields, struct forward_request *forward) {
    const bool has_tokens = decode_find(fields->map, "tokens") != NULL;
    const bool has_hidden = decode_find(fields->map, "hidden") != NULL;
    forward->after_draw = decode_optional_bool(fields, "after_draw", false);
    if (forward->after_draw && (has_tokens || has_hidden)) {
        failure_set(fields->failure, CODE_BAD_MESSAGE,
                    "a forward with 'after_draw' takes the token that was drawn as its row; leave "
                    "out 'tokens' and 'hidden'");
    }
    if (!has_tokens && !has_hidden && !forward->after_draw) {
        failure_set(fields->failure, CODE_BAD_MESSAGE,
                    "a forward needs the key 'tokens' on a first stage, 'hidden' on others");
    }
    if (has_tokens) {
        forward->tokens = decode_tokens(fields, "tokens");
    }
    if (has_hidden) {
        read_hidden(fields, &forward->hidden);
    }
    if ((has_tokens && forward->tokens.count == 0) || (has_hidden && forward->hidden.size == 0)) {
        failure_set(fields->failure, CODE_BAD_MESSAGE, "a forward needs at least one row");
    }
}

static void read_forward(struct decode_fields *fields, struct request *request) {
    struct forward_request *forward = &request->as.forward;
    forward->session = decode_uint(fields, "session", 1, UINT64_MAX);
    forward->position = (uint32_t)decode_uint(fields, "position", 0, UINT32_MAX);
    forward->output = read_output(fields);
    read_rows(fields, forward);
}

static void read_trim(struct decode_fields *fields, struct request *request) {
    request->as.trim.session = decode_uint(fields, "session", 1, UINT64_MAX);
    request->as.trim.position = (uint32_t)decode_uint(fields, "position", 0, UINT32_MAX);
}

static void read_close(struct decode_fields *fields, struct request *request) {
    request->as.close.session = decode_uint(fields, "session", 1, UINT64_MAX);
}

static void read_tokenize(struct decode_fields *fields, struct request *request) {
    struct tokenize_request *tokenize = &request->as.tokenize;
    tokenize->text = decode_text(fields, "text", UINT32_MAX);
    tokenize->add_special = decode_optional_bool(fields, "add_special", true);
    tokenize->parse_special = decode_optional_bool(fields, "parse_special", false);
}

static void read_detokenize(struct decode_fields *fields, struct request *request) {
    struct detokenize_request *detokenize = &request->as.detokenize;
    detokenize->tokens = decode_tokens(fields, "tokens");
    detokenize->remove_special = decode_optional_bool(fields, "remove_special", false);
    detokenize->unparse_special = decode_optional_bool(fields, "unparse_special", false);
}

static void read_token_info(struct decode_fields *fields, struct request *request) {
    request->as.token_info.tokens = decode_tokens(fields, "tokens");
}

static void read_chat_template(struct decode_fields *fields, struct request *request) {
    request->as.chat_template.name = decode_optional_name(fields, "name", SHARD_NAME_SIZE - 1);
}

static const struct reader {
    const char *type;
    void (*read)(struct decode_fields *fields, struct request *request);
} READERS[] = {
    [REQUEST_PING] = {"ping", read_nothing},
    [REQUEST_HEALTH] = {"health", read_nothing},
    [REQUEST_CANCEL] = {"cancel", read_cancel},
    [REQUEST_SHUTDOWN] = {"shutdown", read_nothing},
    [REQUEST_INSPECT] = {"inspect", read_inspect},
    [REQUEST_SLICE] = {"slice", read_slice},
    [REQUEST_LOAD] = {"load", read_load},
    [REQUEST_ESTIMATE] = {"estimate", read_load},
    [REQUEST_OPEN] = {"open", read_open},
    [REQUEST_FORWARD] = {"forward", read_forward},
    [REQUEST_TRIM] = {"trim", read_trim},
    [REQUEST_CLOSE] = {"close", read_close},
    [REQUEST_TOKENIZE] = {"tokenize", read_tokenize},
    [REQUEST_DETOKENIZE] = {"detokenize", read_detokenize},
    [REQUEST_TOKEN_INFO] = {"token_info", read_token_info},
    [REQUEST_CHAT_TEMPLATE] = {"chat_template", read_chat_template},
};

enum { N_READERS = sizeof(READERS) / sizeof(READERS[0]) };

/* ---- the whole ---- */

static const struct reader *find_reader(struct decode_fields *fields) {
    struct decode_text type = decode_text(fields, "type", SHARD_NAME_SIZE);
    for (int i = 0; i < N_READERS; i++) {
        if (text_is(type, READERS[i].type)) {
            return &READERS[i];
        }
    }
    if (!failure_is_set(fields->failure)) {
        failure_set(fields->failure, CODE_BAD_MESSAGE,
                    "the type '%.*s' is unknown; see docs/protocol.md, section 4", (int)type.size,
                    type.data);
    }
    return NULL;
}

bool request_read(struct request *request, uint8_t *body, size_t size, const shard_recipe *defaults,
                  struct failure *failure) {
    memset(request, 0, sizeof(*request));
    request->body = body;
    request->body_size = size;
    struct decode_map map;
    if (!decode_body(body, size, &map, failure)) {
        return false;
    }
    struct decode_fields fields = {&map, failure};
    request->id = decode_uint(&fields, "id", 1, UINT64_MAX);
    const struct reader *reader = find_reader(&fields);
    if (failure_is_set(failure)) {
        return false;
    }
    request->type = (enum request_type)(reader - READERS);
    if (request->type == REQUEST_LOAD || request->type == REQUEST_ESTIMATE) {
        request->as.load.recipe = *defaults;
    }
    reader->read(&fields, request);
    return !failure_is_set(failure);
}

void request_free(struct request *request) {
    memory_release(request->body);
    request->body = NULL;
}

uint64_t request_session(const struct request *request) {
    switch (request->type) {
    case REQUEST_OPEN:
        return request->as.open.source;
    case REQUEST_FORWARD:
        return request->as.forward.session;
    case REQUEST_TRIM:
        return request->as.trim.session;
    case REQUEST_CLOSE:
        return request->as.close.session;
    default:
        return 0;
    }
}
