/* The rows of one session in the library's memory: which of them can be given up, giving them up,
 * and lending them to another session. The library aborts the process, or silently goes on with
 * wrong rows, where it is asked for what its memory cannot do; these functions ask for nothing of
 * that kind. */
#ifndef SHARD_LLAMA_SEQUENCE_H
#define SHARD_LLAMA_SEQUENCE_H

#include "arch_rules.h"
#include "shard_engine.h"

#include <llama.h>

typedef struct sequence_memory {
    struct llama_context *context;
    /* One state stands for all rows of a session, and cannot be taken back to an earlier one. */
    bool has_state;
    /* False where a fork's snapshot could be taken before the library has copied what is in it. */
    bool can_fork;
    /* Rows that a sliding-window layer looks back, where the cells behind that may be taken by
     * other sessions; else 0. */
    uint32_t window;
} sequence_memory;

/* Looks at the model behind the context, whose architecture is that of `rule`.
 * SHARD_ERR_UNSUPPORTED where a failed step could not be undone with this recipe. */
shard_status sequence_memory_init(sequence_memory *memory, struct llama_context *context,
                                  const arch_rule *rule, const shard_recipe *recipe,
                                  shard_error *error);

/* Whether a session of `length` rows can go on from `position`, at most `length`, as if it had
 * never been longer. SHARD_ERR_UNSUPPORTED (fields: position). */
shard_status sequence_check_cut(const sequence_memory *memory, shard_session_id id, uint32_t length,
                                uint32_t position, shard_error *error);

/* Whether the first `position` rows of a session can be lent to another one, besides the above.
 * SHARD_ERR_UNSUPPORTED (fields: position). */
shard_status sequence_check_fork(const sequence_memory *memory, uint32_t position,
                                 shard_error *error);

/* Gives up all rows from `position` on; it must be a cut that the check above allows. */
void sequence_forget(const sequence_memory *memory, shard_session_id id, uint32_t position);

/* Gives the empty session `id` the first `position` rows of `source`, a cut that the checks allow.
 * With streams the library copies the cells when it computes next. */
void sequence_fork(const sequence_memory *memory, shard_session_id source, shard_session_id id,
                   uint32_t position);

#endif /* SHARD_LLAMA_SEQUENCE_H */
