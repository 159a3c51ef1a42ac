#include "fault_transport.h"

#include "frame.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum action {
    ACTION_HOLD,
    ACTION_HALF_FRAME,
    ACTION_HUGE_LENGTH,
    ACTION_GARBAGE,
    ACTION_EXIT,
    ACTION_STDERR_FLOOD,
    ACTION_IGNORE_TERM,
    ACTION_GRANDCHILD,
    ACTION_GRANDCHILD_AWAY,
};

/* What a word of this name must look like, in the order of the actions. Those without a frame
 * happen at the start. */
struct known_word {
    const char *name;
    enum action action;
    bool takes_status;
    bool takes_frame;
};

static const struct known_word WORDS[] = {
    {"hold", ACTION_HOLD, false, true},
    {"half-frame", ACTION_HALF_FRAME, false, true},
    {"huge-length", ACTION_HUGE_LENGTH, false, true},
    {"garbage", ACTION_GARBAGE, false, true},
    {"exit", ACTION_EXIT, true, true},
    {"stderr-flood", ACTION_STDERR_FLOOD, false, true},
    {"ignore-term", ACTION_IGNORE_TERM, false, false},
    {"grandchild", ACTION_GRANDCHILD, false, false},
    {"grandchild-away", ACTION_GRANDCHILD_AWAY, false, false},
};

static const char *const FRAMES[] = {
    "hello",  "pong",   "health",    "cancelled", "bye",         "inspected",
    "sliced", "loaded", "estimated", "opened",    "result",      "trimmed",
    "closed", "error",  "progress",  "tokenized", "detokenized", "token_infos",
};

enum {
    N_WORDS = sizeof(WORDS) / sizeof(WORDS[0]),
    N_FRAMES = sizeof(FRAMES) / sizeof(FRAMES[0]),
    FLOOD_BYTES = 4 << 20,   /* more than any pipe holds */
    GRANDCHILD_SECONDS = 60, /* so that no test leaves one behind for good */
    MAX_EXIT_STATUS = 255,
};

/* ---- reading a plan ---- */

static bool is_text(const char *start, size_t length, const char *text) {
    return strlen(text) == length && memcmp(start, text, length) == 0;
}

static const char *find_frame(const char *name, size_t length) {
    for (size_t i = 0; i < N_FRAMES; i++) {
        if (is_text(name, length, FRAMES[i])) {
            return FRAMES[i];
        }
    }
    return NULL;
}

static const struct known_word *find_word(const char *name, size_t length) {
    for (size_t i = 0; i < N_WORDS; i++) {
        if (is_text(name, length, WORDS[i].name)) {
            return &WORDS[i];
        }
    }
    return NULL;
}

static bool read_status(const char *digits, size_t length, int *status) {
    *status = 0;
    for (size_t i = 0; i < length && *status <= MAX_EXIT_STATUS; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return false;
        }
        *status = *status * 10 + (digits[i] - '0');
    }
    return length > 0 && *status <= MAX_EXIT_STATUS;
}

enum reading { READING_OURS, READING_NOT_OURS, READING_WRONG };

/* A word with a frame is ours, one with a number of a step is the engine's. */
static enum reading read_word(const char *text, size_t length, struct transport_fault_word *out) {
    const char *at = memchr(text, '@', length);
    size_t head = at == NULL ? length : (size_t)(at - text);
    const char *colon = memchr(text, ':', head);
    const struct known_word *word = find_word(text, colon == NULL ? head : (size_t)(colon - text));
    bool has_step = at != NULL && at + 1 < text + length && at[1] >= '0' && at[1] <= '9';
    if (has_step || (at == NULL && (word == NULL || word->takes_frame))) {
        return READING_NOT_OURS;
    }
    if (word == NULL || word->takes_frame != (at != NULL) ||
        word->takes_status != (colon != NULL)) {
        return READING_WRONG;
    }
    *out = (struct transport_fault_word){.action = (int)word->action};
    if (at != NULL) {
        out->frame = find_frame(at + 1, length - head - 1);
    }
    bool frame_is_right = at == NULL || out->frame != NULL;
    bool status_is_right =
        colon == NULL ||
        read_status(colon + 1, (size_t)(text + head - colon - 1), &out->exit_status);
    return frame_is_right && status_is_right ? READING_OURS : READING_WRONG;
}

static void leave_to_engine(struct fault_transport *faults, const char *text, size_t length) {
    size_t used = strlen(faults->engine_plan);
    if (used > 0) {
        faults->engine_plan[used++] = ',';
    }
    memcpy(faults->engine_plan + used, text, length);
    faults->engine_plan[used + length] = '\0';
}

bool fault_transport_read(struct fault_transport *faults, const char *plan, char *text,
                          size_t text_size) {
    memset(faults, 0, sizeof(*faults));
    if (strlen(plan) >= sizeof(faults->engine_plan)) {
        snprintf(text, text_size, "a fault plan has at most %d bytes",
                 FAULT_TRANSPORT_MAX_PLAN - 1);
        return false;
    }
    while (plan != NULL && *plan != '\0') {
        const char *comma = strchr(plan, ',');
        size_t length = comma == NULL ? strlen(plan) : (size_t)(comma - plan);
        struct transport_fault_word word;
        enum reading reading = read_word(plan, length, &word);
        if (reading == READING_NOT_OURS) {
            leave_to_engine(faults, plan, length);
        } else if (reading == READING_WRONG || faults->n_words == FAULT_TRANSPORT_MAX_WORDS) {
            snprintf(text, text_size,
                     "'%.*s' is not a fault of the transport, or one too many; write words such as "
                     "hold@hello, exit:3@result or ignore-term",
                     (int)length, plan);
            return false;
        } else {
            faults->words[faults->n_words++] = word;
        }
        plan = comma == NULL ? NULL : comma + 1;
    }
    return true;
}

/* ---- making it happen ---- */

static _Noreturn void hold(void) {
    for (;;) {
        pause();
    }
}

/* What goes out here is wrong in any case; whether all of it does is no matter. */
static void write_some(int fd, const void *bytes, size_t size) {
    if (write(fd, bytes, size) < 0) {
        perror("gguf-shard-worker: the fault plan's write");
    }
}

static void send_huge_length(int out) {
    uint8_t header[FRAME_HEADER_SIZE];
    frame_write_header(header, UINT32_MAX);
    write_some(out, header, sizeof(header));
}

static void flood_stderr(void) {
    char line[128];
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (size_t written = 0; written < FLOOD_BYTES; written += sizeof(line)) {
        fwrite(line, 1, sizeof(line), stderr);
    }
}

/* Whoever made the plan can wait for this line, and then knows where the worker is. */
static void announce(const struct transport_fault_word *word) {
    fprintf(stderr, "gguf-shard-worker: fault plan: %s in place of %s\n", WORDS[word->action].name,
            word->frame);
}

static void act(const struct transport_fault_word *word, int out, const struct encoder *encoder) {
    static const char TEXT[] = "a library printed this into the protocol\n";
    if (word->action == ACTION_STDERR_FLOOD) {
        flood_stderr();
        return;
    }
    announce(word);
    switch ((enum action)word->action) {
    case ACTION_EXIT:
        _exit(word->exit_status);
    case ACTION_HALF_FRAME:
        write_some(out, encoder->data, encoder->size / 2);
        break;
    case ACTION_HUGE_LENGTH:
        send_huge_length(out);
        break;
    case ACTION_GARBAGE:
        write_some(out, TEXT, sizeof(TEXT) - 1);
        break;
    default:
        break;
    }
    hold();
}

/* The type is the first value of every map that the worker writes: a map's head of one or three
 * bytes, the key, then a short text. */
static bool is_of_type(const struct encoder *encoder, const char *type) {
    static const uint8_t KEY[] = {0xa4, 't', 'y', 'p', 'e'};
    const uint8_t *body = encoder->data + FRAME_HEADER_SIZE;
    const uint8_t *key = body + ((body[0] & 0xf0) == 0x80 ? 1 : 3);
    const uint8_t *value = key + sizeof(KEY);
    size_t length = strlen(type);
    return memcmp(key, KEY, sizeof(KEY)) == 0 && value[0] == (0xa0 | length) &&
           memcmp(value + 1, type, length) == 0;
}

static void before_frame(const void *context, int out, const struct encoder *encoder) {
    const struct fault_transport *faults = context;
    for (size_t i = 0; i < faults->n_words; i++) {
        const struct transport_fault_word *word = &faults->words[i];
        if (word->frame != NULL && is_of_type(encoder, word->frame)) {
            act(word, out, encoder);
        }
    }
}

static void start_grandchild(bool away) {
    if (fork() == 0) {
        if (away) {
            setsid();
        }
        signal(SIGALRM, SIG_DFL);
        alarm(GRANDCHILD_SECONDS);
        hold();
    }
}

void fault_transport_install(const struct fault_transport *faults, struct transport *transport) {
    for (size_t i = 0; i < faults->n_words; i++) {
        switch ((enum action)faults->words[i].action) {
        case ACTION_IGNORE_TERM:
            signal(SIGTERM, SIG_IGN);
            break;
        case ACTION_GRANDCHILD:
            start_grandchild(false);
            break;
        case ACTION_GRANDCHILD_AWAY:
            start_grandchild(true);
            break;
        default:
            break;
        }
    }
    transport->before_frame = before_frame;
    transport->before_frame_context = faults;
}
