/* gguf-shard-worker: executes one GGUF shard behind a pipe. See docs/protocol.md. */
#include "answer.h"
#include "clock.h"
#include "control.h"
#include "execution.h"
#include "exit_status.h"
#include "failure.h"
#include "fault_transport.h"
#include "options.h"
#include "process.h"
#include "replies.h"
#include "shard_engine.h"
#include "state.h"
#include "transport.h"
#include "wake.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Everything that lives as long as the process. */
struct worker {
    struct options options;
    const shard_engine_api *api;
    struct wake wake;
    struct transport transport;
    struct replies replies;
    struct state state;
    struct execution execution;
    struct control control;
    struct fault_transport faults; /* fake engine only */
};

static int system_failed(const char *what) {
    fprintf(stderr, "gguf-shard-worker: %s: %s\n", what, strerror(errno));
    return STATUS_SYSTEM;
}

static int usage_failed(const char *message) {
    fprintf(stderr, "gguf-shard-worker: %s\n", message);
    return STATUS_USAGE;
}

static int engine_unknown(const char *name) {
    fprintf(stderr, "gguf-shard-worker: no engine is called '%s'; this build has:", name);
    for (uint32_t i = 0; shard_engine_name(i) != NULL; i++) {
        fprintf(stderr, " %s", shard_engine_name(i));
    }
    fprintf(stderr, "\n");
    return STATUS_USAGE;
}

/* ---- hello ---- */

enum { MAX_ENGINES = 16 };

static void say_hello(struct worker *worker, const shard_build *build) {
    const char *engines[MAX_ENGINES];
    uint32_t n_engines = 0;
    while (n_engines < MAX_ENGINES && shard_engine_name(n_engines) != NULL) {
        engines[n_engines] = shard_engine_name(n_engines);
        n_engines++;
    }
    const struct hello_answer hello = {
        .max_frame_bytes = worker->options.max_frame_bytes,
        .pid = (uint64_t)getpid(),
        .worker_version = GGUF_WORKER_VERSION,
        .engines = engines,
        .n_engines = n_engines,
        .build = build,
    };
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_hello(&encoder, &hello);
    reply_notice(&worker->replies, &encoder);
}

static int introduce(struct worker *worker) {
    shard_build build;
    shard_error error;
    if (worker->api->build(&build, &error) == SHARD_OK) {
        say_hello(worker, &build);
        return STATUS_DONE;
    }
    struct failure failure;
    failure_clear(&failure);
    failure_set_engine(&failure, &error);
    fprintf(stderr, "gguf-shard-worker: %s\n", failure.message);
    reply_last_failure(&worker->replies, &failure);
    return error.status == SHARD_ERR_IDENTITY ? STATUS_WRONG_BUILD : STATUS_SYSTEM;
}

/* ---- the life of the worker ---- */

static void say_bye(struct worker *worker) {
    struct bye_answer *bye = &worker->execution.released;
    bye->id = worker->control.shutdown_id;
    reply_storage storage;
    struct encoder encoder;
    encode_start_fixed(&encoder, storage, sizeof(storage));
    answer_bye(&encoder, bye);
    reply_last(&worker->replies, &encoder);
}

static int serve(struct worker *worker) {
    shard_params defaults;
    worker->api->default_params(&defaults);
    worker->control = (struct control){
        .state = &worker->state,
        .replies = &worker->replies,
        .transport = &worker->transport,
        .wake = &worker->wake,
        .default_recipe = defaults.recipe,
    };
    pthread_t thread;
    errno = pthread_create(&thread, NULL, execution_run, &worker->execution);
    if (errno != 0) {
        return system_failed("pthread_create");
    }
    int status = control_run(&worker->control);
    if (status != 0) {
        /* The stream is lost, and what the engine computes now nobody can get. It may hang, so it
         * is not waited for: the kernel takes back what it holds. */
        _exit(status);
    }
    pthread_join(thread, NULL);
    say_bye(worker);
    return STATUS_DONE;
}

/* ---- faults on purpose ---- */

static bool takes_faults(const struct worker *worker) {
    return worker->options.fault_plan != NULL && strcmp(worker->options.engine, "fake") == 0;
}

/* Hooks in what happens on the pipe, and gives the plan that is left for the engine. */
static const char *install_faults(struct worker *worker) {
    if (!takes_faults(worker)) {
        return worker->options.fault_plan;
    }
    fault_transport_install(&worker->faults, &worker->transport);
    return worker->faults.engine_plan;
}

static int run(struct worker *worker) {
    if (!transport_fill_standard_descriptors()) {
        return system_failed("/dev/null");
    }
    if (!process_prepare()) {
        return system_failed("setrlimit or setenv");
    }
    if (worker->options.parent_pid != 0 && !process_bind_to_parent(worker->options.parent_pid)) {
        fprintf(stderr, "gguf-shard-worker: the parent is not process %llu any more\n",
                (unsigned long long)worker->options.parent_pid);
        return STATUS_NO_PARENT;
    }
    if (worker->options.parent_pid != 0 && !process_watch_parent(worker->options.parent_pid)) {
        return system_failed("pthread_create");
    }
    if (!wake_open(&worker->wake)) {
        return system_failed("pipe");
    }
    if (!transport_open(&worker->transport, &worker->wake)) {
        return system_failed("moving stdin and stdout");
    }
    replies_init(&worker->replies, &worker->transport, worker->options.max_frame_bytes);
    state_init(&worker->state, worker->api, worker->options.max_frame_bytes, clock_now_us());
    execution_init(&worker->execution, &worker->state, &worker->replies, &worker->wake,
                   install_faults(worker));
    worker->execution.compute_nice = (int)worker->options.compute_nice;
    int status = introduce(worker);
    if (status == STATUS_DONE) {
        status = serve(worker);
    }
    state_free(&worker->state);
    transport_close(&worker->transport);
    wake_close(&worker->wake);
    return status;
}

int main(int n_arguments, char **arguments) {
    static struct worker worker;
    char message[256];
    if (!options_read(&worker.options, n_arguments, arguments, message, sizeof(message))) {
        return usage_failed(message);
    }
    if (worker.options.wants_help) {
        fputs(OPTIONS_HELP, stdout);
        return STATUS_DONE;
    }
    if (worker.options.wants_version) {
        printf("gguf-shard-worker %s\n", GGUF_WORKER_VERSION);
        return STATUS_DONE;
    }
    worker.api = shard_engine_find(worker.options.engine);
    if (worker.api == NULL) {
        return engine_unknown(worker.options.engine);
    }
    if (takes_faults(&worker) && !fault_transport_read(&worker.faults, worker.options.fault_plan,
                                                       message, sizeof(message))) {
        return usage_failed(message);
    }
    return run(&worker);
}
