/* A model file without its weights and its vocabulary's lists, as a file that the library can read.
 *
 * Reading 50,000 tokens and as many merges took the library most of the time of an estimate, and
 * of a vocabulary only its length counts there. */
#ifndef SHARD_LLAMA_OUTLINE_H
#define SHARD_LLAMA_OUTLINE_H

#include <gguf.h>

#include <stdio.h>

/* A file without a name, for the caller to close: the metadata but for the vocabulary's lists,
 * every tensor with its type and shape, and in place of their data a hole. NULL where it cannot be
 * made: for a file that is one of several, for one of a kind that no model is, and where such a
 * file is not allowed. */
FILE *outline_open(const struct gguf_context *gguf);

#endif /* SHARD_LLAMA_OUTLINE_H */
