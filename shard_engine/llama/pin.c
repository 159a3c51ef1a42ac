#include "pin.h"

#include "error.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SHORTEST_COMMIT = 7 }; /* what `git rev-parse --short` gives at least */

bool pin_commit_matches(const char *pinned, const char *library) {
    /* "-dirty" says that the build's source folder differed from its git index, as it does for
     * every build from a source package; the commit before it is what was checked out. */
    const size_t length = strcspn(library, "-");
    return length >= SHORTEST_COMMIT && length <= strlen(pinned) &&
           strncmp(pinned, library, length) == 0;
}

static const char *device_kind(enum ggml_backend_dev_type type) {
    switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    default:
        return "accel";
    }
}

static void list_devices(shard_build *build) {
    const size_t count = ggml_backend_dev_count();
    for (size_t i = 0; i < count && build->n_devices < SHARD_MAX_DEVICES; i++) {
        const ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        shard_device *device = &build->devices[build->n_devices++];
        size_t memory_free = 0;
        size_t memory_total = 0;
        ggml_backend_dev_memory(dev, &memory_free, &memory_total);
        snprintf(device->name, sizeof(device->name), "%s", ggml_backend_dev_name(dev));
        snprintf(device->description, sizeof(device->description), "%s",
                 ggml_backend_dev_description(dev));
        snprintf(device->kind, sizeof(device->kind), "%s", device_kind(ggml_backend_dev_type(dev)));
        device->memory_free = memory_free;
        device->memory_total = memory_total;
    }
}

/* ---- features ---- */

static char features[SHARD_FEATURES_SIZE];

/* The library writes them into memory that all threads share, so they are asked for once. They end
 * in " | ", as every part of them does. */
static void find_features(void) {
    snprintf(features, sizeof(features), "%s", llama_print_system_info());
    size_t length = strlen(features);
    while (length > 0 && strchr(" |", features[length - 1]) != NULL) {
        features[--length] = '\0';
    }
}

static const char *library_features(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_features);
    return features;
}

/* ---- the build ---- */

shard_status pin_build(shard_build *build, shard_error *error) {
    memset(build, 0, sizeof(*build));
    snprintf(build->engine, sizeof(build->engine), "llama");
    snprintf(build->engine_version, sizeof(build->engine_version), "%s", GGUF_WORKER_VERSION);
    snprintf(build->pinned_package, sizeof(build->pinned_package), "%s",
             GGUF_WORKER_PINNED_PACKAGE);
    snprintf(build->pinned_commit, sizeof(build->pinned_commit), "%s", GGUF_WORKER_PINNED_COMMIT);
    snprintf(build->library_commit, sizeof(build->library_commit), "%s", ggml_commit());
    snprintf(build->library_version, sizeof(build->library_version), "%s", llama_version());
    snprintf(build->features, sizeof(build->features), "%s", library_features());
    list_devices(build);
    build->pin_matches = pin_commit_matches(build->pinned_commit, build->library_commit);
    if (build->pin_matches) {
        return shard_ok(error);
    }
    shard_fail(
        error, SHARD_ERR_IDENTITY,
        "the loaded llama.cpp is commit %s, but this worker was built for %s: install git and "
        "run `pip install --force-reinstall --no-cache-dir llama-cpp-python==%s`",
        build->library_commit, build->pinned_commit, build->pinned_package);
    shard_error_add(error, "field", "llama_commit");
    shard_error_add(error, "expected", "%s", build->pinned_commit);
    shard_error_add(error, "actual", "%s", build->library_commit);
    return SHARD_ERR_IDENTITY;
}
