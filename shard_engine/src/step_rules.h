/* The rules of a step, the same for every engine: what is admitted, which rows come out, and what a
 * row of values must be. They need a description and the sessions' lengths, and change nothing but
 * the entries. */
#ifndef SHARD_STEP_RULES_H
#define SHARD_STEP_RULES_H

#include "shard_engine.h"

/* What the rules need to know of an engine. */
typedef struct step_view {
    const shard_description *description;
    uint32_t kv_cells_used;
    /* The length of an open session; SHARD_ERR_NO_SESSION for any other id. */
    shard_status (*session_length)(const shard_engine *engine, shard_session_id session,
                                   uint32_t *length, shard_error *error);
    const shard_engine *engine;
} step_view;

/* Clears the results of every entry and decides each: its status is SHARD_OK, or says why it is
 * left out. `length` is the session's in any case. Returns the rows to be computed. */
uint32_t step_rules_admit(const step_view *view, shard_step_entry *entries, uint32_t n_entries);

/* Rows that an engine must produce for the entry, the last ones of it: all of them on a stage that
 * is not the last, because a boundary is checked where it is made; otherwise as many as the output
 * needs. */
uint32_t step_rules_rows_out(const shard_description *description, const shard_step_entry *entry);

/* Values in each of these rows. */
uint32_t step_rules_columns_out(const shard_description *description,
                                const shard_step_entry *entry);

/* Hands the rows that an engine made for the entry, step_rules_rows_out of them in float32, to its
 * outputs: hidden rows become the recipe's boundary dtype in place. A token is not drawn here.
 * SHARD_ERR_NON_FINITE, which is also the entry's status then, for rows with NaN or an infinity, or
 * that the dtype makes infinite. */
shard_status step_rules_deliver(const shard_description *description, float *rows,
                                shard_step_entry *entry);

/* The entry is done: its rows belong to the session. */
void step_rules_accept(shard_step_entry *entry);

/* The entry failed after it was admitted: it gets the error, and keeps none of its results. */
void step_rules_fail(shard_step_entry *entry, const shard_error *error);

#endif /* SHARD_STEP_RULES_H */
