/* Which rules of a grammar can begin with which others.
 *
 * llama.cpp refuses a rule that begins with itself, but does not see it where what stands before is
 * empty only by way of another rule: `root ::= space root "x"`. Its stacks then grow without end,
 * and the exception that ends them would end the process. */
#ifndef SHARD_LLAMA_GRAMMAR_GRAPH_H
#define SHARD_LLAMA_GRAMMAR_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct grammar_graph grammar_graph;

/* For a grammar of that many bytes. NULL when there is no memory. */
grammar_graph *grammar_graph_new(size_t bytes);
void grammar_graph_free(grammar_graph *graph);

/* What a grammar is read as, from its start to its end. `name` is borrowed. */
void grammar_graph_define(grammar_graph *graph, const char *name, size_t bytes);
void grammar_graph_refer(grammar_graph *graph, const char *name, size_t bytes);
void grammar_graph_terminal(grammar_graph *graph);
void grammar_graph_alternative(grammar_graph *graph);
void grammar_graph_open(grammar_graph *graph);
void grammar_graph_close(grammar_graph *graph);
/* Of what was read last: it may be absent, or be there more than once. */
void grammar_graph_repeat(grammar_graph *graph, bool may_be_absent, bool is_repeated);

/* True where a rule can begin with itself and something is left to follow, again and again. */
bool grammar_graph_grows(grammar_graph *graph);

#endif /* SHARD_LLAMA_GRAMMAR_GRAPH_H */
