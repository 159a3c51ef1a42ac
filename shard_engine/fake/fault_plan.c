#include "fault_plan.h"

#include "error.h"

#include <string.h>

/* What a word of this name must look like. A name without value or step may not carry one. */
typedef struct fault_word {
    const char *name;
    fault_kind kind;
    bool takes_value;
    bool takes_step;
    uint32_t min_value;
    uint32_t max_value;
} fault_word;

enum {
    MAX_EXIT_STATUS = 255,
    MAX_MILLISECONDS = 3600 * 1000,
    MAX_STEP = 1000000000,
    MAX_CALL = 256, /* a call has at least one session's rows */
};

static const fault_word WORDS[] = {
    {"crash", FAULT_CRASH, false, true, 0, 0},
    {"segv", FAULT_SEGV, false, true, 0, 0},
    {"exit", FAULT_EXIT, true, true, 0, MAX_EXIT_STATUS},
    {"hang", FAULT_HANG, false, true, 0, 0},
    {"hang-hard", FAULT_HANG_HARD, false, true, 0, 0},
    {"hang-call", FAULT_HANG_CALL, true, true, 1, MAX_CALL},
    {"fail-call", FAULT_FAIL_CALL, true, true, 1, MAX_CALL},
    {"slow", FAULT_SLOW, true, false, 0, MAX_MILLISECONDS},
    {"nan", FAULT_NAN, false, true, 0, 0},
    {"overflow", FAULT_OVERFLOW, false, true, 0, 0},
    {"stderr-flood", FAULT_STDERR_FLOOD, false, true, 0, 0},
    {"allocate", FAULT_ALLOCATE, false, true, 0, 0},
    {"load-slow", FAULT_LOAD_SLOW, true, false, 0, MAX_MILLISECONDS},
    {"load-fail", FAULT_LOAD_FAIL, false, false, 0, 0},
    {"load-hang", FAULT_LOAD_HANG, false, false, 0, 0},
    {"load-crash", FAULT_LOAD_CRASH, false, false, 0, 0},
};

enum { N_WORDS = sizeof(WORDS) / sizeof(WORDS[0]) };

/* A piece of the plan's text, not NUL-terminated. */
typedef struct span {
    const char *start;
    size_t length;
} span;

/* Cuts `text` at the first `separator`: returns what is before it and leaves what is after it.
 * `*found` says whether there was one. */
static span cut(span *text, char separator, bool *found) {
    const char *at = memchr(text->start, separator, text->length);
    span head = *text;
    *found = at != NULL;
    if (at != NULL) {
        head.length = (size_t)(at - text->start);
        text->start = at + 1;
        text->length -= head.length + 1;
    } else {
        text->start += text->length;
        text->length = 0;
    }
    return head;
}

static bool parse_number(span digits, uint32_t min, uint32_t max, uint32_t *number) {
    uint64_t value = 0;
    for (size_t i = 0; i < digits.length; i++) {
        if (digits.start[i] < '0' || digits.start[i] > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(digits.start[i] - '0');
        if (value > max) {
            return false;
        }
    }
    *number = (uint32_t)value;
    return digits.length > 0 && value >= min;
}

static const fault_word *find_word(span name) {
    for (size_t i = 0; i < N_WORDS; i++) {
        if (strlen(WORDS[i].name) == name.length &&
            memcmp(WORDS[i].name, name.start, name.length) == 0) {
            return &WORDS[i];
        }
    }
    return NULL;
}

/* Parses one word; false where it is not one of the words in the header. */
static bool parse_word(span text, fault *out) {
    bool has_step, has_value;
    span before_step = cut(&text, '@', &has_step);
    span step_digits = text;
    span name = cut(&before_step, ':', &has_value);
    span value_digits = before_step;

    const fault_word *word = find_word(name);
    if (word == NULL || word->takes_value != has_value || word->takes_step != has_step) {
        return false;
    }
    uint32_t step = 0;
    *out = (fault){.kind = word->kind};
    if (has_value && !parse_number(value_digits, word->min_value, word->max_value, &out->value)) {
        return false;
    }
    if (has_step && !parse_number(step_digits, 1, MAX_STEP, &step)) {
        return false;
    }
    out->step = step;
    return true;
}

shard_status fault_plan_parse(const char *text, fault_plan *plan, shard_error *error) {
    plan->n_faults = 0;
    if (text == NULL || text[0] == '\0') {
        return shard_ok(error);
    }
    span rest = {text, strlen(text)};
    bool more = true;
    while (more) {
        span word = cut(&rest, ',', &more);
        fault parsed;
        if (!parse_word(word, &parsed)) {
            plan->n_faults = 0;
            shard_fail(error, SHARD_ERR_ARGUMENT,
                       "\"%.*s\" is not a fault; write words such as crash@3, exit:3@2, slow:20 or "
                       "load-fail, joined with commas",
                       (int)word.length, word.start);
            shard_error_add(error, "word", "%.*s", (int)word.length, word.start);
            return error->status;
        }
        if (plan->n_faults == FAULT_PLAN_MAX) {
            plan->n_faults = 0;
            shard_fail(error, SHARD_ERR_ARGUMENT, "a fault plan holds at most %d words",
                       FAULT_PLAN_MAX);
            shard_error_add(error, "word", "%.*s", (int)word.length, word.start);
            return error->status;
        }
        plan->faults[plan->n_faults++] = parsed;
    }
    return shard_ok(error);
}

const fault *fault_plan_due(const fault_plan *plan, fault_kind kind, uint64_t step) {
    for (uint32_t i = 0; i < plan->n_faults; i++) {
        const fault *candidate = &plan->faults[i];
        if (candidate->kind == kind && (candidate->step == 0 || candidate->step == step)) {
            return candidate;
        }
    }
    return NULL;
}

bool fault_plan_due_in_call(const fault_plan *plan, fault_kind kind, uint64_t step, uint32_t call) {
    for (uint32_t i = 0; i < plan->n_faults; i++) {
        const fault *candidate = &plan->faults[i];
        if (candidate->kind == kind && candidate->step == step && candidate->value == call) {
            return true;
        }
    }
    return false;
}
