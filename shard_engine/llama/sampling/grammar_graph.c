#include "grammar_graph.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = 0 }; /* no item, or the rule of what stands before any definition */

/* What an item stands for, where it is no rule. */
static const uint32_t TERMINAL = UINT32_MAX;
static const uint32_t ALTERNATIVE = UINT32_MAX - 1;

typedef struct item {
    uint32_t next; /* of the same rule */
    uint32_t target;
    bool may_be_absent;
    bool is_repeated;
} item;

typedef struct rule {
    const char *name; /* NULL: the rule of a pair of parentheses */
    size_t name_bytes;
    uint32_t first;
    uint32_t last;
    uint32_t parent; /* of parentheses */
    bool may_be_empty;
    bool is_on_a_cycle; /* or between two of them */
    bool begins;        /* with a rule that may be on a cycle */
    bool is_begun_with; /* by such a rule */
} rule;

struct grammar_graph {
    item *items; /* number 0 is none */
    rule *rules; /* number 0 takes what belongs to no rule */
    uint32_t n_items;
    uint32_t n_rules;
    uint32_t current;
};

grammar_graph *grammar_graph_new(size_t bytes) {
    grammar_graph *graph = calloc(1, sizeof(*graph));
    if (graph == NULL) {
        return NULL;
    }
    /* Each item and each rule takes at least one byte of the grammar. */
    graph->items = calloc(bytes + 1, sizeof(*graph->items));
    graph->rules = calloc(bytes + 1, sizeof(*graph->rules));
    graph->n_items = 1;
    graph->n_rules = 1;
    if (graph->items == NULL || graph->rules == NULL) {
        grammar_graph_free(graph);
        return NULL;
    }
    return graph;
}

void grammar_graph_free(grammar_graph *graph) {
    if (graph != NULL) {
        free(graph->items);
        free(graph->rules);
        free(graph);
    }
}

/* ---- reading ---- */

static uint32_t find_rule(grammar_graph *graph, const char *name, size_t bytes) {
    uint32_t id = 1;
    for (; id < graph->n_rules; id++) {
        const rule *known = &graph->rules[id];
        if (known->name != NULL && known->name_bytes == bytes &&
            memcmp(known->name, name, bytes) == 0) {
            return id;
        }
    }
    graph->rules[id].name = name;
    graph->rules[id].name_bytes = bytes;
    graph->n_rules++;
    return id;
}

static void add_item(grammar_graph *graph, uint32_t target) {
    rule *into = &graph->rules[graph->current];
    const uint32_t id = graph->n_items++;
    graph->items[id].target = target;
    if (into->first == NONE) {
        into->first = id;
    } else {
        graph->items[into->last].next = id;
    }
    into->last = id;
}

/* A second definition replaces the first, as in llama.cpp. */
void grammar_graph_define(grammar_graph *graph, const char *name, size_t bytes) {
    graph->current = find_rule(graph, name, bytes);
    graph->rules[graph->current].first = NONE;
    add_item(graph, ALTERNATIVE);
}

void grammar_graph_refer(grammar_graph *graph, const char *name, size_t bytes) {
    add_item(graph, find_rule(graph, name, bytes));
}

void grammar_graph_terminal(grammar_graph *graph) {
    add_item(graph, TERMINAL);
}

void grammar_graph_alternative(grammar_graph *graph) {
    add_item(graph, ALTERNATIVE);
}

void grammar_graph_open(grammar_graph *graph) {
    const uint32_t id = graph->n_rules++;
    add_item(graph, id);
    graph->rules[id].parent = graph->current;
    graph->current = id;
}

void grammar_graph_close(grammar_graph *graph) {
    graph->current = graph->rules[graph->current].parent;
}

void grammar_graph_repeat(grammar_graph *graph, bool may_be_absent, bool is_repeated) {
    item *last = &graph->items[graph->rules[graph->current].last];
    last->may_be_absent |= may_be_absent;
    last->is_repeated |= is_repeated;
}

/* ---- what may be empty ---- */

static bool is_rule(uint32_t target) {
    return target < ALTERNATIVE;
}

static bool item_may_be_empty(const grammar_graph *graph, const item *of) {
    return of->may_be_absent || (is_rule(of->target) && graph->rules[of->target].may_be_empty);
}

static bool ends_alternative(const grammar_graph *graph, uint32_t id) {
    return id == NONE || graph->items[id].target == ALTERNATIVE;
}

/* Parentheses have no mark before their first alternative; definitions have one. */
static uint32_t first_item(const grammar_graph *graph, const rule *of) {
    return of->name != NULL && of->first != NONE ? graph->items[of->first].next : of->first;
}

static bool has_empty_alternative(const grammar_graph *graph, const rule *of) {
    bool is_empty = of->name == NULL || of->first != NONE; /* an undefined rule has none */
    for (uint32_t id = first_item(graph, of); id != NONE; id = graph->items[id].next) {
        if (graph->items[id].target != ALTERNATIVE) {
            is_empty &= item_may_be_empty(graph, &graph->items[id]);
        } else if (is_empty) {
            return true;
        } else {
            is_empty = true;
        }
    }
    return is_empty;
}

static void find_empty_rules(grammar_graph *graph) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t id = 1; id < graph->n_rules; id++) {
            rule *of = &graph->rules[id];
            if (!of->may_be_empty && has_empty_alternative(graph, of)) {
                of->may_be_empty = true;
                changed = true;
            }
        }
    }
}

/* ---- cycles of beginnings ---- */

/* Calls `visit` for each rule that `from` can begin with, until it returns true. `grows` says that
 * something is left to follow it. */
typedef bool (*visitor)(grammar_graph *graph, uint32_t from, uint32_t to, bool grows);

static bool visit_beginnings(grammar_graph *graph, uint32_t from, visitor visit) {
    bool at_beginning = true;
    for (uint32_t id = first_item(graph, &graph->rules[from]); id != NONE;) {
        const item *at = &graph->items[id];
        id = at->next;
        if (at->target == ALTERNATIVE) {
            at_beginning = true;
            continue;
        }
        if (at_beginning && is_rule(at->target) &&
            visit(graph, from, at->target, at->is_repeated || !ends_alternative(graph, id))) {
            return true;
        }
        at_beginning &= item_may_be_empty(graph, at);
    }
    return false;
}

static bool note_both_ends(grammar_graph *graph, uint32_t from, uint32_t to, bool grows) {
    (void)grows;
    if (graph->rules[from].is_on_a_cycle && graph->rules[to].is_on_a_cycle) {
        graph->rules[from].begins = true;
        graph->rules[to].is_begun_with = true;
    }
    return false;
}

static bool grows_on_a_cycle(grammar_graph *graph, uint32_t from, uint32_t to, bool grows) {
    return grows && graph->rules[from].is_on_a_cycle && graph->rules[to].is_on_a_cycle;
}

/* Drops the rules that begin with none of the rest, or with which none of the rest begins. */
static bool drop_loose_ends(grammar_graph *graph) {
    bool dropped = false;
    for (uint32_t id = 1; id < graph->n_rules; id++) {
        graph->rules[id].begins = false;
        graph->rules[id].is_begun_with = false;
    }
    for (uint32_t id = 1; id < graph->n_rules; id++) {
        visit_beginnings(graph, id, note_both_ends);
    }
    for (uint32_t id = 1; id < graph->n_rules; id++) {
        rule *of = &graph->rules[id];
        if (of->is_on_a_cycle && !(of->begins && of->is_begun_with)) {
            of->is_on_a_cycle = false;
            dropped = true;
        }
    }
    return dropped;
}

static void find_cycles(grammar_graph *graph) {
    for (uint32_t id = 1; id < graph->n_rules; id++) {
        graph->rules[id].is_on_a_cycle = true;
    }
    while (drop_loose_ends(graph)) {
    }
}

bool grammar_graph_grows(grammar_graph *graph) {
    find_empty_rules(graph);
    find_cycles(graph);
    for (uint32_t id = 1; id < graph->n_rules; id++) {
        if (visit_beginnings(graph, id, grows_on_a_cycle)) {
            return true;
        }
    }
    return false;
}
