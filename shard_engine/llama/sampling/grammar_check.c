#include "grammar_check.h"

#include "error.h"
#include "grammar_graph.h"

#include <inttypes.h>
#include <string.h>

enum {
    MAX_DEPTH = 64,         /* parentheses in each other; the parser recurses for each */
    MAX_ELEMENTS = 1 << 18, /* that repetitions may unroll to; each takes some 100 bytes */
    MAX_REPETITIONS = 2000, /* past it the parser refuses a least number, and drops a most */
    UNLIMITED = UINT16_MAX,
};

typedef struct scanner {
    const char *grammar;
    const char *at;
    uint32_t depth;
    uint64_t symbol;   /* elements of the symbol before `at`, which a repetition would repeat */
    uint64_t elements; /* that repetitions unrolled to so far */
    grammar_graph *graph;
    shard_error *error;
} scanner;

static shard_status refuse(const scanner *scan, shard_status status, const char *what) {
    const uint64_t offset = (uint64_t)(scan->at - scan->grammar);
    shard_fail(scan->error, status, "sampling.grammar, byte %" PRIu64 ": %s", offset, what);
    shard_error_add(scan->error, "field", "sampling.grammar");
    shard_error_add(scan->error, "offset", "%" PRIu64, offset);
    return status;
}

/* Past one character of a literal or class, as the parser counts its bytes: by the first one. */
static void skip_character(scanner *scan) {
    static const uint8_t BYTES[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    const bool is_escape = scan->at[0] == '\\' && scan->at[1] != '\0';
    const uint8_t bytes = is_escape ? 2 : BYTES[(uint8_t)scan->at[0] >> 4];
    for (uint8_t i = 0; i < bytes && scan->at[0] != '\0'; i++) {
        scan->at++;
    }
    scan->symbol++;
}

static void skip_until(scanner *scan, char end) {
    scan->symbol = 0;
    scan->at++;
    while (*scan->at != '\0' && *scan->at != end) {
        skip_character(scan);
    }
    scan->at += *scan->at == end;
    if (scan->symbol > 0) {
        grammar_graph_terminal(scan->graph);
    }
}

static void skip_comment(scanner *scan) {
    while (*scan->at != '\0' && *scan->at != '\r' && *scan->at != '\n') {
        scan->at++;
    }
}

static void skip_space(scanner *scan) {
    while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r' || *scan->at == '\n' ||
           *scan->at == '#') {
        if (*scan->at == '#') {
            skip_comment(scan);
        } else {
            scan->at++;
        }
    }
}

/* `otherwise` where there are no digits; never more than UNLIMITED. */
static uint32_t read_number(scanner *scan, uint32_t otherwise) {
    const char *start = scan->at;
    uint32_t value = 0;
    for (; *scan->at >= '0' && *scan->at <= '9'; scan->at++) {
        value = value * 10 + (uint32_t)(*scan->at - '0');
        value = value < UNLIMITED ? value : UNLIMITED;
    }
    skip_space(scan);
    return scan->at != start ? value : otherwise;
}

static shard_status unroll(scanner *scan, uint32_t count) {
    scan->symbol *= count > 0 ? count : 1;
    scan->elements += scan->symbol;
    return scan->elements <= MAX_ELEMENTS
               ? SHARD_OK
               : refuse(scan, SHARD_ERR_MALFORMED,
                        "the repetitions unroll to too many elements; repeat less");
}

/* {m}, {m,} or {m,n}. The parser does not see that n is below m, and counts down from 2^64. */
static shard_status read_repetition(scanner *scan) {
    scan->at++;
    skip_space(scan);
    const uint32_t least = read_number(scan, 0);
    uint32_t most = least;
    if (*scan->at == ',') {
        scan->at++;
        skip_space(scan);
        most = read_number(scan, UNLIMITED);
    }
    if (most < least) {
        return refuse(scan, SHARD_ERR_MALFORMED,
                      "a repetition {m,n} has n below m; give the smaller number first");
    }
    grammar_graph_repeat(scan->graph, least == 0, most > 1);
    return unroll(scan, most <= MAX_REPETITIONS ? most : least);
}

static bool is_word_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* The name of a rule: of the one that is defined here, or of one that is meant. */
static void read_word(scanner *scan) {
    const char *name = scan->at;
    while (is_word_character(*scan->at)) {
        scan->at++;
    }
    const size_t bytes = (size_t)(scan->at - name);
    scan->at += strspn(scan->at, " \t");
    scan->symbol = 1;
    if (strncmp(scan->at, "::=", 3) == 0) {
        scan->at += 3;
        grammar_graph_define(scan->graph, name, bytes);
    } else {
        grammar_graph_refer(scan->graph, name, bytes);
    }
}

static shard_status open_parenthesis(scanner *scan) {
    if (++scan->depth > MAX_DEPTH) {
        return refuse(scan, SHARD_ERR_MALFORMED,
                      "more than 64 parentheses are open; name a part as a rule of its own");
    }
    scan->at++;
    grammar_graph_open(scan->graph);
    return SHARD_OK;
}
_Static_assert(MAX_DEPTH == 64, "the message above says so");

/* What is one character long and needs no look at what follows. */
static void read_sign(scanner *scan) {
    switch (*scan->at) {
    case ')':
        scan->depth -= scan->depth > 0;
        grammar_graph_close(scan->graph);
        scan->symbol = 1;
        break;
    case '|':
        grammar_graph_alternative(scan->graph);
        break;
    case '.':
        grammar_graph_terminal(scan->graph);
        scan->symbol = 1;
        break;
    case '*':
    case '+':
    case '?':
        grammar_graph_repeat(scan->graph, *scan->at != '+', *scan->at != '?');
        break;
    default: /* white space, and what the parser refuses */
        break;
    }
    scan->at++;
}

static shard_status read_symbol(scanner *scan) {
    switch (*scan->at) {
    case '"':
        skip_until(scan, '"');
        return SHARD_OK;
    case '[':
        skip_until(scan, ']');
        return SHARD_OK;
    case '#':
        skip_comment(scan);
        return SHARD_OK;
    case '{':
        return read_repetition(scan);
    case '<':
    case '!':
        return refuse(scan, SHARD_ERR_UNSUPPORTED,
                      "elements that name a token (<...>) are not supported, because llama.cpp may "
                      "draw a token there that it cannot accept; write the token's text as a "
                      "literal");
    case '(':
        return open_parenthesis(scan);
    default:
        break;
    }
    if (is_word_character(*scan->at)) {
        read_word(scan);
    } else {
        read_sign(scan);
    }
    return SHARD_OK;
}

static shard_status read_all(scanner *scan) {
    while (*scan->at != '\0') {
        if (read_symbol(scan) != SHARD_OK) {
            return scan->error->status;
        }
    }
    if (grammar_graph_grows(scan->graph)) {
        scan->at = scan->grammar;
        return refuse(scan, SHARD_ERR_MALFORMED,
                      "a rule begins with itself, perhaps behind what may be empty, so that there "
                      "is no end to it; let it end with itself");
    }
    return shard_ok(scan->error);
}

shard_status grammar_check(const char *grammar, shard_error *error) {
    scanner scan = {.grammar = grammar,
                    .at = grammar,
                    .graph = grammar_graph_new(strlen(grammar)),
                    .error = error};
    if (scan.graph == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to look at a grammar");
    }
    read_all(&scan);
    grammar_graph_free(scan.graph);
    return error->status;
}
