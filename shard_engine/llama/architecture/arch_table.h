/* The table of arch_rules.h as it lies in arch_table.c. */
#ifndef SHARD_LLAMA_ARCH_TABLE_H
#define SHARD_LLAMA_ARCH_TABLE_H

#include "arch_rules.h"

extern const arch_rule ARCH_TABLE[];
extern const size_t ARCH_TABLE_SIZE;

#endif /* SHARD_LLAMA_ARCH_TABLE_H */
