#include "log.h"

#include <ggml.h>
#include <llama.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t first_error_lock = PTHREAD_MUTEX_INITIALIZER;
static char first_error[512];

static void keep(const char *text) {
    pthread_mutex_lock(&first_error_lock);
    if (first_error[0] == '\0') {
        snprintf(first_error, sizeof(first_error), "%s", text);
        first_error[strcspn(first_error, "\r\n")] = '\0';
    }
    pthread_mutex_unlock(&first_error_lock);
}

/* Said of every shard without a vocabulary, because its vocabulary has one empty entry on purpose,
 * and of every model that names a pooling, because rows are given one by one. */
static bool is_expected(const char *text) {
    return strstr(text, "adding 1 dummy tokens") != NULL ||
           strstr(text, "model default pooling_type is") != NULL;
}

/* Of the thread itself, because a library that is loading elsewhere says its lines at the same
 * time.
 */
static _Thread_local struct {
    log_watcher function;
    void *user_data;
} watcher;

static void on_log(enum ggml_log_level level, const char *text, void *user_data) {
    (void)user_data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        keep(text);
    }
    if (watcher.function != NULL) {
        watcher.function(text, watcher.user_data);
    } else if (level == GGML_LOG_LEVEL_ERROR ||
               (level == GGML_LOG_LEVEL_WARN && !is_expected(text))) {
        fputs(text, stderr);
    }
}

void log_install(void) {
    llama_log_set(on_log, NULL);
}

void log_watch(log_watcher function, void *user_data) {
    watcher.function = function;
    watcher.user_data = user_data;
}

void log_forget(void) {
    pthread_mutex_lock(&first_error_lock);
    first_error[0] = '\0';
    pthread_mutex_unlock(&first_error_lock);
}

void log_first_error(char *out, size_t size) {
    pthread_mutex_lock(&first_error_lock);
    snprintf(out, size, "%s", first_error);
    pthread_mutex_unlock(&first_error_lock);
}
