/*
 * The fake engine: a model made of integer arithmetic, so that everything above the seam can be
 * tested exactly, without a file and without llama.cpp.
 *
 * Artifact
 *
 *   `model_path` is "fake:" followed by key=value pairs joined with commas; a key that is missing
 *   has its default, and of a key that appears twice the last counts:
 *
 *     layers     1 to 4096     (12)    n_layer
 *     embd       1 to 65536    (8)     n_embd
 *     vocab      2 to 1048576  (64)    n_vocab
 *     seed       32 bits       (1)     chooses the weights
 *     recurrent  0 or 1        (0)     a model with recurrent state, see Sessions
 *     pooling    0 to 4        (0)     none, mean, cls, last, rank: what the model says of itself
 *
 *   The artifact's name is the sha256 of the canonical text
 *   "fake:layers=12,embd=8,vocab=64,seed=1", which goes on with ",recurrent=1" for such a model and
 *   ends in ",pooling=1" (or another number but 0) where there is one. Any other `model_path` is
 * the path of a slice file, three lines that end in a newline each:
 *
 *     gguf-worker fake slice 1
 *     fake:layers=12,embd=8,vocab=64,seed=1
 *     layers 3:7
 *
 *   The sha256 of a shard is that of its slice file, or the artifact's where it is the whole model.
 *
 * Weights
 *
 *   Tensors hold unsigned 32-bit residues modulo P, a prime that the recipe's boundary chooses so
 *   that every residue is exact in its dtype:
 *
 *     boundary   P       S
 *     f32        65521   256
 *     f16        2039    8
 *     bf16       251     1
 *
 *   With 32-bit wrap-around arithmetic,
 *
 *     mix(h, w)           h := (h xor w) * 0x9E3779B1;  h xor (h >> 15)
 *     T(kind, layer)[i] = mix(mix(mix(mix(0, seed), kind), layer), i) mod P
 *
 *   where kind is 1 to 3 for a layer's tensors A, B and C of n_embd values; 4 for the embedding E
 *   and 5 for the head H, [n_vocab][n_embd] row-major, both with layer = n_layer. Layers are
 *   numbered in the whole model, from 0. The first stage owns E, the last one H.
 *
 * Arithmetic (all modulo P, i + 1 modulo n_embd)
 *
 *   A row x starts as E[token] on the first stage; on later ones each incoming value f stands for
 *   trunc(|f|) mod P. In each layer it meets the memory m of the session's row before (0 for the
 *   first row):
 *
 *     m'[i] = 3 * m[i] + x[i] + 1            kept as this row's KV cell
 *     y[i]  = A[i] * x[i] + x[i + 1] + B[i] * m'[i] + C[i]
 *
 *   so every row depends on every row before it. A hidden row is y as values of the boundary dtype,
 *   which are exact, and a chain of any cuts gives the very bits of the unsplit model with the same
 *   recipe. On the last stage
 *
 *     logits[v] = floor((sum over i of H[v][i] * y[i] mod P) / S) / 16
 *
 *   which has about 256 levels on purpose: equal maxima are common, and the lowest id must win.
 *   Tokens are drawn as fake_sampling.h says. A row of embeddings is y as float32.
 *
 * Sessions
 *
 *   With kv_unified there are n_ctx KV cells, one for each distinct row: a fork shares those of its
 *   source. Without it there are n_ctx for each session, and a fork copies. A recurrent model
 *   computes the same and refuses, as one must whose state cannot be cut, to trim or fork a session
 *   but at its end and at 0.
 *
 * Vocabulary (first and last stages)
 *
 *   Token t is the byte t; ids from 256 on have no text. Token 0 is the end of generation, written
 *   "<eos>", and token 1 begins a text, written "<bos>": both are control tokens, whose text is
 * parsed and given back only on request. A byte that is not below n_vocab cannot be tokenized.
 *
 *   The chat template without a name writes a line "role: content" for each message, and in the end
 *   "assistant:" where a generation is to follow; there is none with a name.
 *
 * Parameters that have nothing to act on here are accepted: use_mmap, use_mlock, numa, cache_dir,
 * and of the recipe n_threads, flash_attn, repack, the GPU and RoPE fields and the cache types (a
 * KV cell is 16-bit residues).
 *
 * Failing on purpose: fault_plan.h.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include "boundary.h"
#include "decode_plan.h"
#include "fake_cells.h"
#include "fake_model.h"
#include "fault_actions.h"

struct shard_engine {
    fake_model model;
    fake_cells cells;
    fault_plan plan;
    fake_signals signals;
    uint64_t n_steps; /* steps that computed something, for the fault plan */
    boundary_dtype boundary;
    decode_plan calls;             /* of the step, with room for every session */
    uint32_t *rows;                /* [max_batch][n_embd], the rows of a step between layers */
    uint32_t *row_cells;           /* [max_batch], the KV cell of each row */
    float *output;                 /* [max_batch][n_columns] */
    uint32_t n_columns;            /* values in the longest row that comes out */
    fake_choice *choices;          /* [n_vocab] on the last stage, to draw in */
    int32_t *tokens;               /* [n_ctx] on the last stage: of the session that is drawn for */
    shard_description description; /* settled at the end of `open`, so any thread may read it */
};

/* The table's `step`. */
shard_status fake_step(shard_engine *engine, shard_step_entry *entries, uint32_t n_entries,
                       shard_error *error);

/* Computes one row and forgets it again, as `open` must. */
void fake_warm_up(shard_engine *engine);

#endif /* FAKE_ENGINE_H */
