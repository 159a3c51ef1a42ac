/* The turns of the execution thread. Each `execute_` function resolves the jobs that it is given.
 */
#ifndef WORKER_EXECUTE_H
#define WORKER_EXECUTE_H

#include "execution.h"

void execute_inspect(struct execution *execution, struct job *job);
void execute_slice(struct execution *execution, struct job *job);
void execute_load(struct execution *execution, struct job *job);
void execute_estimate(struct execution *execution, struct job *job);
void execute_open(struct execution *execution, struct job *job);
void execute_trim(struct execution *execution, struct job *job);
void execute_close(struct execution *execution, struct job *job);
void execute_tokenize(struct execution *execution, struct job *job);
void execute_detokenize(struct execution *execution, struct job *job);
void execute_token_info(struct execution *execution, struct job *job);
void execute_chat_template(struct execution *execution, struct job *job);

/* One step over the jobs that the picks name. A forward with rows left goes back to the list. */
void execute_step(struct execution *execution, uint32_t n_picks);

/* Resolves a forward that was cancelled: its session is made as it was before the request. */
void execute_abandon(struct execution *execution, struct job *job);

/* ---- shared by the turns ---- */

/* Takes the job off the list, answers it and frees it, and the encoder. */
void resolve_answer(struct execution *execution, struct job *job, struct encoder *encoder);
void resolve_failure(struct execution *execution, struct job *job, const struct failure *failure);
void resolve_error(struct execution *execution, struct job *job, const shard_error *error);

/* False, with the failure set, when there is no engine to ask. */
bool require_engine(const struct execution *execution, struct failure *failure);

/* The same, and when no session has that number. */
bool require_session(const struct execution *execution, uint64_t number, shard_session_id *slot,
                     struct failure *failure);

/* Makes the counters that health shows those of the engine. */
void note_usage(struct execution *execution);

/* Closes the engine, if there is one, and remembers what that released. */
void close_engine(struct execution *execution);

/* The failure of a request that was cancelled. */
void set_cancelled(struct failure *failure, uint32_t kv_cells_freed);

/* The text as a C string in `path`; NULL where it is absent. */
const char *copy_path(char path[LIMIT_PATH], struct decode_text text);

#endif /* WORKER_EXECUTE_H */
