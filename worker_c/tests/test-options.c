/* The command line. */
#include "bounds.h"
#include "check.h"
#include "options.h"

#include <string.h>

enum { MOST_ARGUMENTS = 16 };

static struct options options;
static char message[256];

/* Reads a command line whose words are separated by blanks. */
static bool read_line(const char *line) {
    static char words[256];
    char *arguments[MOST_ARGUMENTS] = {"gguf-shard-worker"};
    int n_arguments = 1;
    check_subject(line);
    message[0] = '\0';
    strncpy(words, line, sizeof(words) - 1);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        arguments[n_arguments++] = word;
    }
    return options_read(&options, n_arguments, arguments, message, sizeof(message));
}

static void test_options_default(void) {
    CHECK(read_line(""));
    CHECK_TEXT(options.engine, "llama");
    CHECK(options.fault_plan == NULL);
    CHECK_INT(options.parent_pid, 0);
    CHECK_INT(options.max_frame_bytes, FRAME_BYTES_DEFAULT);
    CHECK_INT(options.compute_nice, 0);
    CHECK(!options.wants_version);
    CHECK(!options.wants_help);
}

static void test_options_all(void) {
    CHECK(
        read_line("--engine fake --parent-pid 4711 --max-frame-bytes 65536 --fault-plan crash@3"));
    CHECK_TEXT(options.engine, "fake");
    CHECK_TEXT(options.fault_plan, "crash@3");
    CHECK_INT(options.parent_pid, 4711);
    CHECK_INT(options.max_frame_bytes, 65536);
    CHECK(read_line("--compute-nice 10"));
    CHECK_INT(options.compute_nice, 10);
    CHECK(read_line("--version"));
    CHECK(options.wants_version);
    CHECK(read_line("--help"));
    CHECK(options.wants_help);
}

static void test_options_wrong(void) {
    static const struct {
        const char *line, *message;
    } CASES[] = {
        {"--loud", "unknown argument '--loud'; see --help"},
        {"model.gguf", "unknown argument 'model.gguf'; see --help"},
        {"-h", "unknown argument '-h'; see --help"},
        {"--engine", "--engine needs a value; see --help"},
        {"--version --fault-plan", "--fault-plan needs a value; see --help"},
        {"--parent-pid 0", "--parent-pid must be a number from 1 to 2147483647, not '0'"},
        {"--parent-pid x1", "--parent-pid must be a number from 1 to 2147483647, not 'x1'"},
        {"--parent-pid -1", "--parent-pid must be a number from 1 to 2147483647, not '-1'"},
        {"--parent-pid 99999999999999999999",
         "--parent-pid must be a number from 1 to 2147483647, not '99999999999999999999'"},
        {"--compute-nice 20", "--compute-nice must be a number from 0 to 19, not '20'"},
        {"--compute-nice -5", "--compute-nice must be a number from 0 to 19, not '-5'"},
        {"--max-frame-bytes 65535",
         "--max-frame-bytes must be a number from 65536 to 1073741824, not '65535'"},
        {"--max-frame-bytes 65536k",
         "--max-frame-bytes must be a number from 65536 to 1073741824, not '65536k'"},
        {"--max-frame-bytes 1073741825",
         "--max-frame-bytes must be a number from 65536 to 1073741824, not '1073741825'"},
    };
    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        CHECK(!read_line(CASES[i].line));
        CHECK_TEXT(message, CASES[i].message);
    }
}

int main(void) {
    test_options_default();
    test_options_all();
    test_options_wrong();
    return check_verdict();
}
