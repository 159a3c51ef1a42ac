/* The library's log: warnings and errors go to stderr as lines, and the first error is kept,
 * because llama.cpp says only there why a load failed; the errors after it say no more than that it
 * did. */
#ifndef SHARD_LLAMA_LOG_H
#define SHARD_LLAMA_LOG_H

#include <stddef.h>

/* Installs the log callback. Idempotent. */
void log_install(void);

/* From now on gives every line that the library says on this thread, whatever its level, to
 * `function` in place of stderr; NULL ends it. */
typedef void (*log_watcher)(const char *line, void *user_data);
void log_watch(log_watcher function, void *user_data);

/* Forgets the error that was kept. */
void log_forget(void);

/* The first error line since then, without its line end; empty when there was none. */
void log_first_error(char *out, size_t size);

#endif /* SHARD_LLAMA_LOG_H */
