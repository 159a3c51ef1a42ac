#include "options.h"

#include "bounds.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NICE_MOST = 19 };

const char OPTIONS_HELP[] =
    "usage: gguf-shard-worker [--engine NAME] [--parent-pid PID] [--max-frame-bytes N]\n"
    "                         [--compute-nice N] [--fault-plan PLAN] [--version] [--help]\n"
    "\n"
    "Executes one GGUF shard. Reads requests from stdin and writes answers to stdout, as\n"
    "length-prefixed msgpack; gguf-worker starts it and speaks that protocol.\n"
    "\n"
    "  --engine NAME         what executes the shard (default llama)\n"
    "  --parent-pid PID      exit when the parent is not PID, and die with it\n"
    "  --max-frame-bytes N   most bytes in a frame's body (65536 to 1073741824, default 67108864)\n"
    "  --compute-nice N      let the threads that compute give way to others, as nice(1) says it\n"
    "                        (0 to 19, default 0); the one that answers pings does not\n"
    "  --fault-plan PLAN     faults that the fake engine makes\n"
    "  --version             print the version and exit\n"
    "  --help                print this and exit\n"
    "\n"
    "Exit status: 0 done, 76 the host broke the protocol, 78 wrong llama.cpp, 79 the parent is\n"
    "gone, 100 wrong command line, 111 a system call failed.\n";

struct message {
    char *text;
    size_t size;
};

static bool parse_number(const char *name, const char *value, uint64_t least, uint64_t most,
                         uint64_t *number, const struct message *message) {
    char *end;
    errno = 0;
    unsigned long long parsed = strtoull(value, &end, 10);
    bool is_number = value[0] >= '0' && value[0] <= '9' && *end == '\0' && errno == 0;
    if (!is_number || parsed < least || parsed > most) {
        snprintf(message->text, message->size,
                 "--%s must be a number from %" PRIu64 " to %" PRIu64 ", not '%s'", name, least,
                 most, value);
        return false;
    }
    *number = parsed;
    return true;
}

static bool set_flag(struct options *options, const char *name) {
    if (strcmp(name, "version") == 0) {
        options->wants_version = true;
    } else if (strcmp(name, "help") == 0) {
        options->wants_help = true;
    } else {
        return false;
    }
    return true;
}

static bool takes_value(const char *name) {
    static const char *const NAMES[] = {"engine", "fault-plan", "parent-pid", "max-frame-bytes",
                                        "compute-nice"};
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool set_value(struct options *options, const char *name, const char *value,
                      const struct message *message) {
    uint64_t number;
    if (strcmp(name, "engine") == 0) {
        options->engine = value;
        return true;
    }
    if (strcmp(name, "fault-plan") == 0) {
        options->fault_plan = value;
        return true;
    }
    if (strcmp(name, "parent-pid") == 0) {
        return parse_number(name, value, 1, INT_MAX, &options->parent_pid, message);
    }
    if (strcmp(name, "compute-nice") == 0) {
        return parse_number(name, value, 0, NICE_MOST, &options->compute_nice, message);
    }
    if (!parse_number(name, value, FRAME_BYTES_LEAST, FRAME_BYTES_MOST, &number, message)) {
        return false;
    }
    options->max_frame_bytes = (uint32_t)number;
    return true;
}

bool options_read(struct options *options, int n_arguments, char *const *arguments, char *text,
                  size_t text_size) {
    const struct message message = {text, text_size};
    *options = (struct options){.engine = "llama", .max_frame_bytes = FRAME_BYTES_DEFAULT};
    for (int i = 1; i < n_arguments; i++) {
        const char *name = strncmp(arguments[i], "--", 2) == 0 ? arguments[i] + 2 : "";
        if (set_flag(options, name)) {
            continue;
        }
        if (!takes_value(name)) {
            snprintf(text, text_size, "unknown argument '%s'; see --help", arguments[i]);
            return false;
        }
        if (i + 1 == n_arguments) {
            snprintf(text, text_size, "--%s needs a value; see --help", name);
            return false;
        }
        if (!set_value(options, name, arguments[++i], &message)) {
            return false;
        }
    }
    return true;
}
