/* What the host asks: each request of docs/protocol.md, section 4, as a struct. */
#ifndef WORKER_REQUEST_H
#define WORKER_REQUEST_H

#include "decode.h"
#include "failure.h"
#include "identity.h"
#include "sampling_request.h"

enum request_type {
    REQUEST_PING,
    REQUEST_HEALTH,
    REQUEST_CANCEL,
    REQUEST_SHUTDOWN,
    REQUEST_INSPECT,
    REQUEST_SLICE,
    REQUEST_LOAD,
    REQUEST_ESTIMATE,
    REQUEST_OPEN,
    REQUEST_FORWARD,
    REQUEST_TRIM,
    REQUEST_CLOSE,
    REQUEST_TOKENIZE,
    REQUEST_DETOKENIZE,
    REQUEST_TOKEN_INFO,
    REQUEST_CHAT_TEMPLATE
};

struct inspect_request {
    struct decode_text model, engine, cache_dir; /* the last two may be absent */
};

struct slice_request {
    struct decode_text model, output, cache_dir; /* the last may be absent */
    uint32_t start, end;
    bool overwrite;
};

/* A load, or an estimate of one. */
struct load_request {
    struct decode_text model, artifact, cache_dir, numa; /* all but the first may be absent */
    uint32_t start, end;
    shard_recipe recipe;
    uint32_t max_sessions;
    bool mmap, mlock;
    uint64_t memory_available; /* 0: nobody knows */
    uint32_t n_stages;         /* likewise */
};

struct open_request {
    struct identity_claim identity;
    struct sampling_request sampling;
    uint64_t source; /* the session to fork; 0: none */
    uint32_t position;
};

struct forward_request {
    uint64_t session;
    uint32_t position;
    struct decode_tokens tokens; /* either of the two may be absent, not both */
    struct decode_text hidden;
    bool after_draw; /* or both are: its row is the token that the session drew last */
    shard_output output;
};

struct trim_request {
    uint64_t session;
    uint32_t position;
};

struct close_request {
    uint64_t session;
};

struct cancel_request {
    uint64_t request;
};

struct tokenize_request {
    struct decode_text text;
    bool add_special, parse_special;
};

struct detokenize_request {
    struct decode_tokens tokens;
    bool remove_special, unparse_special;
};

struct token_info_request {
    struct decode_tokens tokens;
};

struct chat_template_request {
    struct decode_text name; /* may be absent */
};

/* Owns its body; every text and every token array above is borrowed from it. */
struct request {
    uint8_t *body;
    size_t body_size;
    enum request_type type;
    uint64_t id;
    union {
        struct cancel_request cancel;
        struct inspect_request inspect;
        struct slice_request slice;
        struct load_request load;
        struct open_request open;
        struct forward_request forward;
        struct trim_request trim;
        struct close_request close;
        struct tokenize_request tokenize;
        struct detokenize_request detokenize;
        struct token_info_request token_info;
        struct chat_template_request chat_template;
    } as;
};

/* Reads a body, which the request owns from here on, also when this fails. `defaults` fills the
 * recipe fields that a load leaves out. False with `bad_frame` when the body is not one map, with
 * `bad_message` when it is no valid request; `request->id` is then the request's id, or 0 where
 * that could not be read. */
bool request_read(struct request *request, uint8_t *body, size_t size, const shard_recipe *defaults,
                  struct failure *failure);
void request_free(struct request *request);

/* The session that the request names, as a fork names its source; 0 where it names none. */
uint64_t request_session(const struct request *request);

/* "none", "hidden", "logits", "logits_all", "token", "embedding". */
const char *request_output_name(shard_output output);

#endif /* WORKER_REQUEST_H */
