/* What llama.cpp's grammar parser takes and must not be given: it would loop for ever, take all
 * memory or stack, or throw a C++ exception at a later draw. Everything else that is wrong with a
 * grammar its parser finds itself. */
#ifndef SHARD_LLAMA_GRAMMAR_CHECK_H
#define SHARD_LLAMA_GRAMMAR_CHECK_H

#include "shard_engine.h"

/* SHARD_ERR_MALFORMED, or SHARD_ERR_UNSUPPORTED for token elements (fields: field, offset of the
 * byte); SHARD_ERR_MEMORY. */
shard_status grammar_check(const char *grammar, shard_error *error);

#endif /* SHARD_LLAMA_GRAMMAR_CHECK_H */
