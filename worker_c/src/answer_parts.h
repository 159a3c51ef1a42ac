/* Maps that more than one answer holds. */
#ifndef WORKER_ANSWER_PARTS_H
#define WORKER_ANSWER_PARTS_H

#include "encode.h"
#include "shard_engine.h"

/* Starts an answer: the outer map, its type and its id (0: nil). `n_more` keys must follow. */
void answer_begin(struct encoder *encoder, const char *type, uint64_t id, uint32_t n_more);

void answer_range(struct encoder *encoder, const char *key, uint32_t start, uint32_t end);
void answer_build(struct encoder *encoder, const shard_build *build);
void answer_identity(struct encoder *encoder, const shard_description *description);
void answer_model(struct encoder *encoder, const shard_description *description);
void answer_ownership(struct encoder *encoder, const shard_description *description);
void answer_memory(struct encoder *encoder, const shard_memory *memory);
void answer_capacity(struct encoder *encoder, const shard_description *description);
void answer_vocabulary(struct encoder *encoder, const shard_vocabulary *vocabulary);

#endif /* WORKER_ANSWER_PARTS_H */
