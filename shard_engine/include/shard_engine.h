/*
 * shard_engine.h: the seam between the worker and whatever executes a shard.
 *
 * Usage
 *
 *     const shard_engine_api *api = shard_engine_find("llama");
 *     shard_params params;
 *     api->default_params(&params);
 *     params.model_path = "model.gguf";
 *     params.layer_start = 0;
 *     params.layer_end = 16;
 *
 *     shard_error error;
 *     shard_engine *engine = NULL;
 *     if (api->open(&params, &engine, &error) != SHARD_OK) { ...error.message... }
 *     ...sessions and steps...
 *     api->close(engine);
 *
 * Contract
 *
 * - Every engine is one `shard_engine_api` table. A caller needs this header and nothing else, and
 * a new engine is a new table in registry.c.
 * - Lifetime: a successful `open` obliges one `close`; a failed `open` obliges nothing and leaves
 *   `*out` NULL. The same holds for `artifact_open` / `artifact_close`.
 * - Threads: one thread owns an engine and makes every call on it, except `cancel`, `progress` and
 *   `describe`, which any thread may call between `open` and `close`. `cancel` is also
 *   async-signal-safe.
 * - Errors: each fallible call returns a `shard_status` and, where it is not SHARD_OK, fills the
 *   `shard_error` it was given (never NULL). The message is one line that names the thing and the
 *   remedy. Each status says below what state it leaves the engine in.
 * - Numbers: sizes are bytes unless the name says otherwise; positions and rows count tokens; a
 * layer range is half open, `[start, end)`; hidden rows are `n_embd` values each of the recipe's
 * `boundary` dtype, row-major; logits and embeddings are float32.
 *
 * The header is also read by cffi, so declarations stay plain C without function-like macros.
 */
#ifndef SHARD_ENGINE_H
#define SHARD_ENGINE_H

#ifndef SHARD_ENGINE_CDEF
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
/* The functions of this header are what the shared library exports; all else in it is hidden. */
#pragma GCC visibility push(default)
#endif

/* Raised whenever a struct or the table changes; `shard_engine_api.abi_version` repeats it. */
enum { SHARD_ENGINE_ABI_VERSION = 3 };

/* Fixed sizes of this interface. Strings are NUL-terminated UTF-8 and truncated to fit. */
enum {
    SHARD_SHA256_HEX_SIZE = 65, /* 64 lower-case hexadecimal digits and the NUL */
    SHARD_NAME_SIZE = 64,       /* architectures, types, engines, error fields */
    SHARD_TEXT_SIZE = 256,      /* model names, device descriptions, error values */
    SHARD_MESSAGE_SIZE = 1024,  /* error messages */
    SHARD_FEATURES_SIZE = 2048, /* what a build can do */
    SHARD_MAX_ERROR_FIELDS = 6, /* named values an error can carry */
    SHARD_MAX_DEVICES = 16,     /* devices listed by `build` and `describe` */
    SHARD_MAX_TOP_LOGPROBS = 64 /* candidates that a drawn token can bring along */
};

/* ---- status ---- */

typedef enum shard_status {
    SHARD_OK = 0,
    /* The call broke the contract of this header. Nothing changed. */
    SHARD_ERR_ARGUMENT = 1,
    /* A file does not exist (fields: path). Nothing was opened. */
    SHARD_ERR_NOT_FOUND = 2,
    /* A file could not be read or written (fields: path). Nothing was opened, no file is left. */
    SHARD_ERR_IO = 3,
    /* The disk or quota is full (fields: path, needed_bytes, free_bytes). No file is left. */
    SHARD_ERR_NO_SPACE = 4,
    /* Not a GGUF, truncated, or inconsistent (fields: path). Nothing was opened. */
    SHARD_ERR_MALFORMED = 5,
    /* The architecture, tensor type, cut or option is known not to work. Nothing was opened. */
    SHARD_ERR_UNSUPPORTED = 6,
    /* The layer range is not inside the model (fields: layer_start, layer_end, n_layer). */
    SHARD_ERR_RANGE = 7,
    /* What was loaded is not what was asked for, or the library is not the pinned one (fields:
     * field, expected, actual). Nothing was opened. */
    SHARD_ERR_IDENTITY = 8,
    /* Memory could not be had, or would not suffice (fields: needed_bytes where known, and
     * available_bytes where it was compared). On open nothing was opened; on a step the sessions
     * are as they were before it. */
    SHARD_ERR_MEMORY = 9,
    /* No session has that id (fields: session). Nothing changed. */
    SHARD_ERR_NO_SESSION = 10,
    /* No free session, KV cell or batch row (fields: needed, available). Nothing changed. */
    SHARD_ERR_CAPACITY = 11,
    /* A position leaves a gap or an overlap (fields: expected, actual). Nothing changed. */
    SHARD_ERR_POSITION = 12,
    /* A row held NaN or an infinity, coming in or going out (fields: row, direction). The session
     * is as it was before the step. */
    SHARD_ERR_NON_FINITE = 13,
    /* `cancel`, or a progress callback that returned false. On open nothing was opened; on a step
     * every session whose entry has this status is as it was before. */
    SHARD_ERR_CANCELLED = 14,
    /* The backend failed. On open nothing was opened; on a step the sessions whose entries have
     * this status are as they were before, but the engine should be closed. */
    SHARD_ERR_BACKEND = 15,
    /* This shard lacks what the call needs: a vocabulary, a head, an embedding. Nothing changed. */
    SHARD_ERR_NOT_OWNED = 16
} shard_status;

/* One named value of an error, such as {"expected", "12"}. */
typedef struct shard_error_field {
    char name[SHARD_NAME_SIZE];
    char value[SHARD_TEXT_SIZE];
} shard_error_field;

typedef struct shard_error {
    shard_status status;
    uint32_t n_fields;
    shard_error_field fields[SHARD_MAX_ERROR_FIELDS];
    char message[SHARD_MESSAGE_SIZE];
} shard_error;

/* ---- artifact, recipe, identity ---- */

/* How a shard is executed: every setting that can change a result, and no other. */
typedef struct shard_recipe {
    uint32_t n_ctx;         /* rows that one session can reach, a multiple of 256; with kv_unified
                               also the KV cells that all sessions share */
    uint32_t n_batch;       /* most rows in one step; at least max_sessions */
    uint32_t n_ubatch;      /* most rows computed at once; at most n_batch */
    uint32_t prefill_chunk; /* most rows of one session in one step, at most n_batch; 0: n_ubatch */
    uint32_t n_threads;     /* threads that compute: their number decides in which order some sums
                               are made. 0 lets the engine choose; a description says what it took */
    bool flash_attn;        /* flash attention on or off; never "auto", so that it is exact */
    bool repack;            /* weight repacking into the backend's own layouts */
    bool kv_unified;        /* true: n_ctx KV cells are shared by all sessions. false: each session
                               has n_ctx cells of its own, and what others do with theirs cannot
                               change its results */
    int32_t n_gpu_layers;   /* layers offloaded; 0 is none, negative is all */
    int32_t main_gpu;       /* the device that holds the model where split_mode is none */
    char split_mode[SHARD_NAME_SIZE]; /* how layers are spread over devices: none, layer, row */
    char type_k[SHARD_NAME_SIZE];     /* ggml type of the K cache: f32, f16, bf16, q8_0, ... */
    char type_v[SHARD_NAME_SIZE];     /* the same of the V cache; quantised types need flash_attn */
    char boundary[SHARD_NAME_SIZE];   /* dtype of hidden rows between stages: f32, f16, bf16 */
    char rope_scaling[SHARD_NAME_SIZE]; /* model (what the file says), none, linear, yarn, longrope
                                         */
    float rope_freq_base;               /* base frequency of RoPE; 0: the model's */
    float rope_freq_scale;              /* frequency scale of RoPE; 0: the model's */
    float yarn_ext_factor;              /* YaRN extrapolation mix; negative: the model's */
    float yarn_attn_factor;             /* YaRN magnitude scale; negative: the model's */
    float yarn_beta_fast;               /* YaRN low correction dimension; negative: the model's */
    float yarn_beta_slow;               /* YaRN high correction dimension; negative: the model's */
    uint32_t yarn_orig_ctx;             /* context the model was trained with; 0: the model's */
} shard_recipe;

/* Reports bytes done of a total while something long goes on: `phase` is "digest", "slice",
 * "load" or "warm-up" and stays valid only during the call. Returning false cancels. */
typedef bool (*shard_progress_callback)(const char *phase, uint64_t done, uint64_t total,
                                        void *user_data);

typedef struct shard_params {
    const char *model_path; /* a GGUF file, the first file of a split set, or an exported slice;
                               the fake engine reads a specification such as "fake:" instead */
    const char *cache_dir;  /* where shard files and digests are kept; NULL: nothing is kept, and
                               only  a whole artifact or an exported slice can be opened */
    const char *expected_artifact; /* sha256 the artifact must have, or NULL */
    uint32_t layer_start;          /* first layer */
    uint32_t layer_end; /* one past the last layer; 0 means up to the model's last layer */
    shard_recipe recipe;
    uint32_t max_sessions; /* sessions that can be open at once */
    bool use_mmap;         /* map weights instead of reading them */
    bool use_mlock;        /* keep weights in memory */
    const char *numa;      /* NULL or "disabled", "distribute", "isolate", "numactl": how llama.cpp
                              places its threads; holds for the whole process, changes no result */
    uint64_t memory_available; /* bytes that may be taken; `open` refuses, before it takes any, what
                                  `estimate` says would not fit. 0: nobody knows, no check */
    const char *fault_plan;    /* fake engine only: see fake/fault_plan.h; NULL for none */
    shard_progress_callback on_progress; /* may be NULL */
    void *user_data;                     /* passed to on_progress */
} shard_params;

/* One device that the engine can compute on. */
typedef struct shard_device {
    char name[SHARD_NAME_SIZE];        /* such as "CPU" or "CUDA0" */
    char description[SHARD_TEXT_SIZE]; /* such as the processor's model name */
    char kind[SHARD_NAME_SIZE];        /* cpu, gpu, igpu or accel */
    uint64_t memory_total;
    uint64_t memory_free;
} shard_device;

/* What the engine is made of. `pinned_*` was compiled in, `library_*` is asked of the library that
 * is loaded now. */
typedef struct shard_build {
    char engine[SHARD_NAME_SIZE];
    char engine_version[SHARD_NAME_SIZE];
    char pinned_package[SHARD_NAME_SIZE]; /* llama-cpp-python version; empty for the fake engine */
    char pinned_commit[SHARD_NAME_SIZE];
    char library_commit[SHARD_NAME_SIZE];
    char library_version[SHARD_NAME_SIZE];
    char features[SHARD_FEATURES_SIZE]; /* what else decides the bits of its results: backends and
                                           the instructions that they use; empty: nothing */
    bool pin_matches;
    uint32_t n_devices;
    shard_device devices[SHARD_MAX_DEVICES];
} shard_build;

/* Bytes that a shard takes, or would take. */
typedef struct shard_memory {
    uint64_t weights_bytes; /* weights, read or mapped, each copy once */
    uint64_t kv_bytes;      /* buffers that hold KV cells or recurrent state */
    uint64_t compute_bytes; /* scratch buffers of the graph, and the engine's own row buffers */
} shard_memory;

/* Identity, ownership, memory and capacity of an open engine. Everything here is read from what was
 * loaded, never copied from the request. */
typedef struct shard_description {
    /* identity */
    char artifact_sha256[SHARD_SHA256_HEX_SIZE]; /* of the file; of a split set, see docs */
    char shard_sha256[SHARD_SHA256_HEX_SIZE];    /* of the file that the library mapped */
    uint32_t layer_start;
    uint32_t layer_end;
    shard_recipe recipe;
    /* model */
    char architecture[SHARD_NAME_SIZE];
    char model_name[SHARD_TEXT_SIZE];
    uint32_t n_layer; /* layers of the whole model */
    uint32_t n_embd;  /* values in a hidden row */
    uint32_t n_vocab; /* values in a row of logits; 0 where this shard has neither head nor
                         vocabulary */
    uint32_t n_ctx_train;
    uint32_t n_embd_out;           /* values in a row of embeddings; 0 where the model gives none */
    char pooling[SHARD_NAME_SIZE]; /* how the file says that one vector is made of such rows: none,
                                      mean, cls, last, rank; the caller does it */
    /* ownership, counted from the loaded tensors */
    uint32_t owned_layers;    /* distinct layers found */
    uint32_t owned_tensors;   /* distinct tensors found */
    uint64_t owned_bytes;     /* their bytes, each counted once */
    bool has_token_embedding; /* takes tokens (the first stage) */
    bool has_output_head;     /* gives logits and tokens (the last stage) */
    bool has_vocabulary;      /* can tokenize and detokenize */
    shard_memory memory;
    /* capacity */
    uint32_t max_sessions;
    uint32_t kv_cells;      /* of all sessions together */
    uint32_t session_cells; /* most that one session can take */
    uint32_t max_batch;     /* rows in one step */
    bool can_trim; /* sessions can be trimmed and forked at any position; false where the model has
                      recurrent state: then only at their end, or at 0 */
} shard_description;

/* ---- inspecting an artifact without loading it ---- */

typedef struct shard_artifact shard_artifact; /* opaque */

typedef struct shard_artifact_file {
    char path[4096];
    uint64_t bytes;
    char sha256[SHARD_SHA256_HEX_SIZE];
} shard_artifact_file;

typedef struct shard_artifact_info {
    char artifact_sha256[SHARD_SHA256_HEX_SIZE];
    char architecture[SHARD_NAME_SIZE];
    char model_name[SHARD_TEXT_SIZE];
    char quantization[SHARD_NAME_SIZE]; /* the tensor type that holds most bytes */
    uint32_t n_files;
    uint32_t n_layer;
    uint32_t n_embd;
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_expert; /* 0 for a dense model */
    uint32_t n_tensors;
    uint64_t tensor_bytes;    /* all tensors */
    uint64_t embedding_bytes; /* token embedding */
    uint64_t head_bytes;      /* output norm and head; a tied head counts the embedding again */
    bool tied_head;
    bool is_slice; /* an exported slice: only [slice_start, slice_end) is there */
    uint32_t slice_start;
    uint32_t slice_end;
    bool supported;                  /* it may be cut */
    uint32_t cut_period;             /* cuts must be multiples of this, and leave at least as many
                                        layers behind the last; 0 where no cut is allowed */
    char reason[SHARD_MESSAGE_SIZE]; /* why not, where supported is false; it says "serve it whole"
                                        where that is possible */
} shard_artifact_info;

/* ---- sessions and steps ---- */

typedef int32_t shard_session_id; /* 0 <= id < max_sessions; reused after session_close */

/* Added to the logit of one token. */
typedef struct shard_logit_bias {
    int32_t token;
    float bias; /* -INFINITY bans the token */
} shard_logit_bias;

/* How the last stage draws tokens. The names and meanings are those of llama.cpp's samplers,
 * applied in this order: logit bias, grammar, penalties, top-k, typical, top-p, min-p, temperature,
 * draw.
 *
 * A draw is a function of (logits, seed, position, tokens of the session's rows): the same session,
 * closed, opened again and given the same rows, draws the same tokens. The random number of a draw
 * comes from llama.cpp's `dist` sampler seeded with `shard_draw_seed(seed, position)`, where
 * `position` is the session's length after the row whose logits are drawn from.
 *
 * Penalties and grammar look at the tokens of earlier rows, so a stage that takes hidden rows must
 * be given the tokens too. Everything that is pointed to is copied by `session_open`. */
typedef struct shard_sampling {
    float temperature;       /* 0: the most likely token (the lowest id among equals) */
    uint32_t seed;           /* any */
    int32_t top_k;           /* keep the k most likely; 0: off */
    float top_p;             /* keep the least set with this probability, above 0; 1: off */
    float min_p;             /* drop what is less likely than this part of the best; 0: off */
    float typical_p;         /* locally typical sampling, above 0; 1: off */
    float repeat_penalty;    /* divides or multiplies logits of seen tokens, above 0; 1: off */
    float presence_penalty;  /* subtracted once for a seen token; 0: off */
    float frequency_penalty; /* subtracted for each time a token was seen; 0: off */
    int32_t repeat_last_n;   /* rows back that count as seen; 0: none, -1: all */
    const shard_logit_bias *logit_bias;
    uint32_t n_logit_bias;
    const char *grammar;    /* GBNF with a rule "root", NUL-terminated; NULL: none */
    uint32_t grammar_start; /* position of the first row that the grammar governs; UINT32_MAX: the
                               session's length at its first draw. A session that is opened again
                               gives the position at which the first one began to draw */
    uint32_t top_logprobs;  /* most likely tokens that a drawn one brings along, at most
                               SHARD_MAX_TOP_LOGPROBS */
} shard_sampling;

/* One token that could have been drawn. */
typedef struct shard_candidate {
    int32_t token;
    float logprob;    /* natural logarithm of its probability, of the logits as computed */
    const char *text; /* as in shard_step_entry */
    uint32_t n_text_bytes;
} shard_candidate;

typedef enum shard_output {
    SHARD_OUTPUT_NONE = 0,       /* compute and keep KV, give nothing back */
    SHARD_OUTPUT_HIDDEN = 1,     /* n_rows hidden rows (any stage but the last) */
    SHARD_OUTPUT_LOGITS = 2,     /* one row of logits, of the last row (last stage) */
    SHARD_OUTPUT_LOGITS_ALL = 3, /* n_rows rows of logits (last stage) */
    SHARD_OUTPUT_TOKEN = 4,      /* one sampled token and its log-probability (last stage) */
    SHARD_OUTPUT_EMBEDDING = 5 /* n_rows rows of embeddings, the last layer's after the output norm:
                                  what llama.cpp gives without pooling (last stage) */
} shard_output;

/* The rows of one session in a step. The caller fills the first part; the engine the second. */
typedef struct shard_step_entry {
    /* in */
    shard_session_id session;
    uint32_t position;     /* of the first row: must equal the session's length */
    uint32_t n_rows;       /* at least 1 */
    const int32_t *tokens; /* n_rows token ids. The first stage computes from them; elsewhere NULL,
                              or what the hidden rows stand for, which sampling may look at */
    const void *hidden;    /* n_rows hidden rows on every stage but the first, else NULL */
    shard_output output;
    /* out */
    shard_status status;    /* of this entry alone; others in the step are not disturbed */
    const void *rows;       /* hidden rows, logits or embeddings; borrowed until the engine's next
                               call */
    uint32_t n_rows_out;    /* rows in `rows` */
    uint32_t n_columns_out; /* values per row: n_embd, n_vocab or n_embd_out */
    uint32_t value_bytes;   /* bytes of one value: 4, or 2 where the boundary is a 16-bit dtype */
    int32_t token;          /* sampled token, else -1 */
    float logprob;          /* natural logarithm of its probability over the whole vocabulary, of
                               the logits as computed, before any sampler */
    const shard_candidate *top; /* the most likely tokens, best first; borrowed likewise */
    uint32_t n_top;
    bool end_of_generation; /* the sampled token ends a generation */
    const char *text;       /* the bytes that the sampled token adds to a text, which may end inside
                               a UTF-8 sequence; borrowed until the engine's next call */
    uint32_t n_text_bytes;  /* 0 where it adds none, as control tokens do */
    uint32_t length;        /* the session's length afterwards */
    uint32_t kv_cells_taken; /* KV cells that this entry took */
    shard_error error;       /* filled where status is not SHARD_OK */
} shard_step_entry;

/* What one token is. The bits of `attributes` follow llama.cpp's `llama_token_attr`. */
typedef struct shard_token_info {
    uint32_t attributes;
    bool is_control;
    bool end_of_generation;
} shard_token_info;

/* Special tokens of a vocabulary; -1 where there is none. */
typedef struct shard_vocabulary {
    uint32_t n_tokens;
    int32_t bos;
    int32_t eos;
    int32_t eot;
    int32_t newline;
    int32_t padding;
    bool add_bos;
    bool add_eos;
} shard_vocabulary;

typedef struct shard_engine shard_engine; /* opaque */

/* ---- the table ---- */

typedef struct shard_engine_api {
    uint32_t abi_version; /* SHARD_ENGINE_ABI_VERSION */
    const char *name;     /* such as "llama" or "fake" */

    /* Fills every field with a safe default. `model_path` is NULL afterwards. */
    void (*default_params)(shard_params *params);

    /* Names the build. SHARD_ERR_IDENTITY when the loaded library is not the pinned one; `build` is
     * filled in any case. */
    shard_status (*build)(shard_build *build, shard_error *error);

    /* Parses an artifact and hashes its files. No weights are loaded. `cache_dir` may be NULL. */
    shard_status (*artifact_open)(const char *model_path, const char *cache_dir,
                                  shard_progress_callback on_progress, void *user_data,
                                  shard_artifact **out, shard_error *error);
    void (*artifact_info)(const shard_artifact *artifact, shard_artifact_info *info);
    /* `index` < n_files; false when out of range. */
    bool (*artifact_file)(const shard_artifact *artifact, uint32_t index,
                          shard_artifact_file *file);
    /* Bytes of all tensors of one layer; 0 when out of range or not in this slice. */
    uint64_t (*artifact_layer_bytes)(const shard_artifact *artifact, uint32_t layer);
    void (*artifact_close)(shard_artifact *artifact);

    /* Writes layers [start, end) as one self-contained GGUF. Atomic: `output_path` appears whole or
     * not at all. An existing file is replaced only with `overwrite`. `bytes_out` may be NULL. */
    shard_status (*slice)(const char *model_path, const char *cache_dir, uint32_t layer_start,
                          uint32_t layer_end, const char *output_path, bool overwrite,
                          shard_progress_callback on_progress, void *user_data, uint64_t *bytes_out,
                          shard_error *error);

    /* Bytes that `open` with these parameters would take, known before any is taken. The shard file
     * is written where it is not there yet. */
    shard_status (*estimate)(const shard_params *params, shard_memory *memory, shard_error *error);

    /* Loads a shard. Computes one row to see that it works and to count what is there. */
    shard_status (*open)(const shard_params *params, shard_engine **out, shard_error *error);
    void (*close)(shard_engine *engine);
    void (*describe)(const shard_engine *engine, shard_description *description);

    /* KV cells in use, over all sessions. */
    uint32_t (*kv_cells_used)(const shard_engine *engine);

    /* Fills every field with greedy sampling and everything else off. */
    void (*default_sampling)(shard_sampling *sampling);

    /* `sampling` NULL: the default. SHARD_ERR_ARGUMENT or SHARD_ERR_MALFORMED (a grammar that
     * cannot be parsed) names the field. */
    shard_status (*session_open)(shard_engine *engine, const shard_sampling *sampling,
                                 shard_session_id *out, shard_error *error);
    /* Opens a session whose first `position` rows are those of `source`, without computing them
     * again. With kv_unified their KV cells are shared until one of the two lets go of them
     * (`*kv_cells_taken` is 0), otherwise they are copied. */
    shard_status (*session_fork)(shard_engine *engine, shard_session_id source, uint32_t position,
                                 const shard_sampling *sampling, shard_session_id *out,
                                 uint32_t *kv_cells_taken, shard_error *error);
    shard_status (*session_length)(const shard_engine *engine, shard_session_id session,
                                   uint32_t *length, shard_error *error);
    /* Forgets every row from `position` on; `position` may not be past the length. A KV cell that
     * another session shares is not freed. SHARD_ERR_UNSUPPORTED, and nothing changed, where the
     * model's memory cannot be taken back to that position: see `can_trim`; with kv_unified a model
     * with a sliding window may have lost rows behind it too. */
    shard_status (*session_trim)(shard_engine *engine, shard_session_id session, uint32_t position,
                                 uint32_t *kv_cells_freed, shard_error *error);
    shard_status (*session_close)(shard_engine *engine, shard_session_id session,
                                  uint32_t *kv_cells_freed, shard_error *error);

    /* Computes one batch of rows of many sessions: each session at most once, at most max_batch
     * rows together. An entry that cannot be computed gets its own status and is left out. The
     * others may be computed one part after the other: when a part fails or is cancelled, its
     * status is returned and written to every entry of it and of those after it, while entries of
     * earlier parts stay done. SHARD_OK: all parts were computed, whatever single entries say. */
    shard_status (*step)(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                         shard_error *error);

    /* Writes at most `capacity` token ids; `*n_tokens` is how many there are, also when that is
     * more than fits (then nothing is written and SHARD_ERR_CAPACITY is returned). */
    shard_status (*tokenize)(shard_engine *engine, const char *text, uint32_t n_bytes,
                             bool add_special, bool parse_special, int32_t *tokens,
                             uint32_t capacity, uint32_t *n_tokens, shard_error *error);
    /* The same shape, for bytes of text. They may end inside a UTF-8 sequence. */
    shard_status (*detokenize)(shard_engine *engine, const int32_t *tokens, uint32_t n_tokens,
                               bool remove_special, bool unparse_special, char *text,
                               uint32_t capacity, uint32_t *n_bytes, shard_error *error);
    shard_status (*token_info)(shard_engine *engine, int32_t token, shard_token_info *info,
                               shard_error *error);
    shard_status (*vocabulary)(shard_engine *engine, shard_vocabulary *vocabulary,
                               shard_error *error);
    /* The artifact's own chat template of that name (GGUF `tokenizer.chat_template.<name>`), NULL:
     * the one without a name. The same shape as `detokenize`; no bytes where there is none. The
     * text is as the file has it. */
    shard_status (*chat_template)(shard_engine *engine, const char *name, char *text,
                                  uint32_t capacity, uint32_t *n_bytes, shard_error *error);

    /* Asks the step that is running now to stop. Without one, the next step may stop at once; the
     * caller runs again what it did not mean to cancel. */
    void (*cancel)(shard_engine *engine);

    /* A counter that rises with every graph node computed. Compare two readings; the value itself
     * means nothing. */
    uint64_t (*progress)(const shard_engine *engine);
} shard_engine_api;

/* The seed of the random number that is drawn at a position: the upper half of the SplitMix64
 * output (Steele, Lea, Flood 2014) for the state `seed * 2^32 + position`; 0 in place of
 * 0xffffffff, which llama.cpp takes for a seed of its own choice. */
uint32_t shard_draw_seed(uint32_t seed, uint32_t position);

/* The engine of that name, or NULL. */
const shard_engine_api *shard_engine_find(const char *name);

/* The names of all engines in this build: `index` from 0, NULL past the last. */
const char *shard_engine_name(uint32_t index);

/* "argument", "not_found", ...: the code that the pipe protocol uses for a status. */
const char *shard_status_name(shard_status status);

/* sizeof of a struct of this header, by its name; 0 where there is none of that name. A binding
 * that lays the structs out itself compares before it trusts them. */
size_t shard_struct_size(const char *name);

#ifndef SHARD_ENGINE_CDEF
#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif

#endif /* SHARD_ENGINE_H */
