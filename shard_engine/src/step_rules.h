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

/* Values in a row that comes out. */
uint32_t step_rules_columns_out(const shard_description *description);

/* SHARD_ERR_NON_FINITE for rows with NaN or an infinity. `first_row` is what the first one is
 * called in the error, `direction` is "in" or "out". */
shard_status step_rules_check_finite(const float *rows, uint32_t n_rows, uint32_t n_columns,
                                     uint32_t first_row, const char *direction, shard_error *error);

/* Fills the results of an entry whose rows were made and are finite: rows, or the token drawn from
 * the last one. Greedy takes the most likely token, the lowest id among equals; its log-probability
 * is by the softmax over the whole row, summed in double precision. */
void step_rules_deliver(const shard_description *description, const float *rows,
                        shard_step_entry *entry);

#endif /* SHARD_STEP_RULES_H */
