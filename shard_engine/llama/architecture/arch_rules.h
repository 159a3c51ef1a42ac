/* What each architecture needs in order to be cut, as a table. An architecture that is not in it is
 * refused: never a guess. The facts come from llama.cpp's own source (src/models) at the pin, and
 * each line of the table is shown to be exact by tests/architectures. */
#ifndef SHARD_LLAMA_ARCH_RULES_H
#define SHARD_LLAMA_ARCH_RULES_H

#include "shard_engine.h"

#include <gguf.h>

/* What may be done with a model of the architecture. */
typedef enum arch_use {
    ARCH_CUT = 0, /* serve it, whole or cut */
    ARCH_WHOLE,   /* serve it, but not cut; `reason` says why */
    ARCH_REFUSED  /* neither: it is no causal decoder that llama_decode runs; `reason` says what */
} arch_use;

/* What a session keeps. */
typedef enum arch_memory {
    ARCH_KV = 0,    /* cells, which can be trimmed at any position */
    ARCH_RECURRENT, /* one state, which cannot be taken back to an earlier position */
    ARCH_HYBRID     /* both, so that the state decides */
} arch_memory;

/* How rows go into the first of the layers that a stage runs. */
typedef enum arch_input {
    ARCH_INPUT_ROWS = 0, /* as they are, through the batch */
    /* The graph multiplies token rows by sqrt(n_embd) and leaves other rows alone, so the first
     * stage multiplies the rows that it looks up. */
    ARCH_INPUT_ROOT,
    /* The graph multiplies all rows by the key embedding_scale: 1 on every stage but the first. */
    ARCH_INPUT_SCALE_KEY,
    /* The graph changes all rows in a way that no key undoes. Stages after the first put their rows
     * into the graph behind that, at `input_node`. */
    ARCH_INPUT_NODE_LATER,
    /* The graph cannot take rows, or treats them as something else. Every stage is fed with tokens
     * and puts its rows into the graph at `input_node`. */
    ARCH_INPUT_NODE
} arch_input;

/* Something that comes again every so many layers, counted from layer 0. */
typedef struct arch_step {
    const char *key;    /* how many; NULL where it is always `otherwise` */
    uint32_t otherwise; /* where the key is absent or zero */
} arch_step;

/* Two kinds of layer, such as those with a sliding window and those without. The library makes
 * memory for both, and aborts the process over a model, or a shard, without any layer of the first
 * kind. */
typedef struct arch_pattern {
    const char *list;   /* an array with one number per layer, not zero for the first kind */
    const char *key;    /* where `list` is no array, the number of layers in a period; NULL: none */
    uint32_t otherwise; /* that number where the key is absent */
    bool others_first;  /* the other kind is first in a period instead of last */
    bool needs_others;  /* it aborts, or fails, without any layer of the other kind too */
    const char *only_if; /* there are two kinds only where this key is not zero; NULL: always */
    const char *neither; /* a list of which layers are of neither kind; NULL: all are */
} arch_pattern;

/* A value of a key under which a model cannot be cut. */
typedef struct arch_limit {
    const char *key;    /* NULL ends a list */
    uint32_t most;      /* larger values ... */
    bool zero;          /* ... or, instead, zero, where the key is present ... */
    const char *unless; /* ... cannot be cut unless this key is there; NULL: in any case */
    const char *reason;
} arch_limit;

/* The values of a key that the library's own assertions let pass. */
typedef struct arch_bound {
    const char *key;    /* NULL ends a list */
    uint32_t otherwise; /* the library's value where the key is absent */
    uint32_t least;
    uint32_t most;        /* 0: without end */
    uint32_t multiple_of; /* 0: of anything */
    const char *words;    /* what passes, for messages */
} arch_bound;

enum { ARCH_MAX_STEPS = 2, ARCH_MAX_LIMITS = 3, ARCH_MAX_SIZES = 4, ARCH_MAX_BOUNDS = 2 };

typedef struct arch_rule {
    const char *architecture;
    arch_use use;
    const char *reason; /* of any use but ARCH_CUT */
    arch_memory memory;

    /* how rows go in and come out */
    arch_input input;
    const char *input_node;    /* a graph node by its name, or by that of the weight which is its
                                  second    operand */
    float input_scale;         /* of ARCH_INPUT_SCALE_KEY where the key is absent; 0: no scale */
    const char *boundary_node; /* the name of a layer's output; NULL: "l_out" */
    bool boundary_is_last;     /* the name is the last layer's alone, and has no number */
    bool head_is_required;     /* the library does not tie the head when output.weight is absent */
    /* Tensors outside the layers that every shard carries, besides those of RoPE; NULL-terminated.
     */
    const char *const *shared_tensors;

    /* where it can be cut */
    arch_step steps[ARCH_MAX_STEPS];
    arch_pattern pattern;
    const char *needs_one; /* a list of which one layer of a shard at least must not be zero, or the
                              process aborts */
    bool needs_more_than_dense; /* it aborts too where all layers are leading dense ones */
    bool indexes;               /* layers reuse an index that the last indexing layer made */
    arch_limit limits[ARCH_MAX_LIMITS];
    /* Numbers of layers by which the library recognises a model and changes its arithmetic: neither
     * a model of that size may be cut (unless `settle` undoes it) nor a shard have it. */
    uint32_t sizes[ARCH_MAX_SIZES];
    /* Writes into the shard what the library would work out from the number of layers. */
    void (*settle)(struct gguf_context *shard, const struct gguf_context *whole, uint32_t n_layer);
    bool copies_states_late;   /* a fork has its state only once the library computes again */
    bool may_lack_next_layers; /* without their tensors, nextn_predict_layers counts for nothing */

    /* what must hold, or the library aborts or crashes: see arch_check.h */
    bool heads_may_be_zero;    /* layers without attention heads exist */
    bool key_is_value;         /* keys and values are of one length */
    bool rotates_all;          /* no part of a head is left unrotated */
    bool ignores_one_expert;   /* a single expert counts for none */
    bool expands_twice;        /* a recurrent state is twice as wide as the model */
    bool divides_states;       /* it is divided by ranks and groups */
    bool has_no_groups;        /* ssm.group_count is zero */
    bool needs_falling_gate;   /* kda.gate_lower_bound is negative */
    bool runs_in_cycles;       /* the number of layers follows from the hrm.* keys */
    const char *must_lack;     /* the end of a tensor's name that must not be there */
    uint32_t least_vocabulary; /* tokens */
    arch_bound bounds[ARCH_MAX_BOUNDS];
} arch_rule;

/* The rule, or NULL. */
const arch_rule *arch_rule_find(const char *architecture);

/* True when every shard carries the tensor `name`, which belongs to no layer. */
bool arch_rule_shares(const arch_rule *rule, const char *name);

#endif /* SHARD_LLAMA_ARCH_RULES_H */
