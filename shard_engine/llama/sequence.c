#include "sequence.h"

#include "error.h"

#include <inttypes.h>

static bool has_state(const struct llama_model *model) {
    return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

shard_status sequence_memory_init(sequence_memory *memory, struct llama_context *context,
                                  const arch_rule *rule, const shard_recipe *recipe,
                                  shard_error *error) {
    const struct llama_model *model = llama_get_model(context);
    const int32_t window = llama_model_n_swa(model);
    *memory = (sequence_memory){.context = context, .has_state = has_state(model)};
    memory->can_fork = !memory->has_state || (window <= 0 && !rule->copies_states_late);
    /* A session's own stream is filled in order, so that no cell is ever taken from it. */
    memory->window = recipe->kv_unified && window > 0 ? (uint32_t)window : 0;
    if (memory->window > 0 && recipe->prefill_chunk > recipe->n_ubatch) {
        /* The later rows of an entry could take cells that its rollback needs. */
        shard_fail(error, SHARD_ERR_UNSUPPORTED,
                   "recipe.prefill_chunk is %" PRIu32
                   "; a model with sliding-window layers takes at most n_ubatch (%" PRIu32
                   ") where kv_unified is on",
                   recipe->prefill_chunk, recipe->n_ubatch);
        shard_error_add(error, "field", "recipe.prefill_chunk");
        shard_error_add(error, "actual", "%" PRIu32, recipe->prefill_chunk);
        return error->status;
    }
    return shard_ok(error);
}

shard_status sequence_check_cut(const sequence_memory *memory, shard_session_id id, uint32_t length,
                                uint32_t position, shard_error *error) {
    if (position == length || position == 0) {
        return shard_ok(error);
    }
    if (memory->has_state) {
        shard_fail(error, SHARD_ERR_UNSUPPORTED,
                   "this model keeps one state for all rows (can_trim is false), so that a session "
                   "of %" PRIu32 " rows cannot go back to %" PRIu32
                   "; open a new one and send the first rows again",
                   length, position);
        shard_error_add(error, "position", "%" PRIu32, position);
        shard_error_add(error, "length", "%" PRIu32, length);
        return error->status;
    }
    const llama_pos first = llama_memory_seq_pos_min(llama_get_memory(memory->context), id);
    if (memory->window > 0 && first > 0 && (uint32_t)first + memory->window > position + 1) {
        shard_fail(error, SHARD_ERR_UNSUPPORTED,
                   "the rows before position %" PRIu32
                   " have left the sliding window, and other sessions took their cells; open a new "
                   "session and send the rows again, or load with kv_unified off",
                   position);
        shard_error_add(error, "position", "%" PRIu32, position);
        shard_error_add(error, "length", "%" PRIu32, length);
        return error->status;
    }
    return shard_ok(error);
}

shard_status sequence_check_fork(const sequence_memory *memory, uint32_t position,
                                 shard_error *error) {
    if (memory->can_fork || position == 0) {
        return shard_ok(error);
    }
    shard_fail(
        error, SHARD_ERR_UNSUPPORTED,
        "a session of this architecture cannot be forked, because llama.cpp copies its state "
        "too late; open a new one and send its rows again");
    shard_error_add(error, "position", "%" PRIu32, position);
    return error->status;
}

void sequence_forget(const sequence_memory *memory, shard_session_id id, uint32_t position) {
    llama_memory_seq_rm(llama_get_memory(memory->context), id, (llama_pos)position, -1);
}

void sequence_fork(const sequence_memory *memory, shard_session_id source, shard_session_id id,
                   uint32_t position) {
    if (position > 0) {
        /* Whole sequences: the library asserts that nothing less is copied between streams. */
        llama_memory_seq_cp(llama_get_memory(memory->context), source, id, -1, -1);
        sequence_forget(memory, id, position);
    }
}
