#include "cache.h"

#include "error.h"
#include "shard_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOCK_POLL_MS = 50 };

typedef struct cache_entry {
    char shard[FILES_PATH_SIZE];
    char digest[FILES_PATH_SIZE];
    char lock[FILES_PATH_SIZE];
} cache_entry;

static shard_status make_key(const shard_artifact *artifact, uint32_t start, uint32_t end,
                             char key[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    char text[256];
    snprintf(text, sizeof(text), "gguf-worker shard file %d\n%s\n%u:%u\n", SHARD_FILE_VERSION,
             artifact->info.artifact_sha256, start, end);
    return digest_text(text, key, error);
}

static shard_status make_entry(const char *cache_dir, const char *key, cache_entry *entry,
                               shard_error *error) {
    char folder[FILES_PATH_SIZE];
    char name[128];
    const char *const folders[] = {"shards", "locks"};
    for (size_t i = 0; i < 2; i++) {
        if (!files_join(folder, cache_dir, folders[i])) {
            return shard_fail(error, SHARD_ERR_ARGUMENT, "the cache folder %.64s... is too long",
                              cache_dir);
        }
        if (files_make_folder(folder, error) != SHARD_OK) {
            return error->status;
        }
    }
    snprintf(name, sizeof(name), "shards/%s.gguf", key);
    bool fits = files_join(entry->shard, cache_dir, name);
    snprintf(name, sizeof(name), "shards/%s.sha256", key);
    fits = fits && files_join(entry->digest, cache_dir, name);
    snprintf(name, sizeof(name), "locks/%s", key);
    fits = fits && files_join(entry->lock, cache_dir, name);
    return fits ? shard_ok(error)
                : shard_fail(error, SHARD_ERR_ARGUMENT, "the cache folder %.64s... is too long",
                             cache_dir);
}

/* Waits for the lock, listening to the caller meanwhile. The lock ends with the process, so a
 * writer that dies does not block the next one. */
static shard_status lock(const char *path, shard_progress_callback on_progress, void *user_data,
                         int *fd, shard_error *error) {
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) {
        return files_write_error(path, errno, 0, error);
    }
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        const bool busy = errno == EWOULDBLOCK || errno == EINTR;
        if (!busy) {
            files_write_error(path, errno, 0, error);
        } else if (on_progress != NULL && !on_progress("slice", 0, 0, user_data)) {
            shard_fail(error, SHARD_ERR_CANCELLED, "waiting for %s was cancelled", path);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOCK_POLL_MS * 1000000L}, NULL);
            continue;
        }
        close(*fd);
        *fd = -1;
        return error->status;
    }
    return shard_ok(error);
}

/* True when the file is there and still has the digest that it was written with. A missing or
 * changed file is no error, for it is written again; SHARD_ERR_CANCELLED is. */
static bool is_intact(const cache_entry *entry, const char *cache_dir,
                      shard_progress_callback on_progress, void *user_data,
                      char sha256[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    char recorded[SHARD_SHA256_HEX_SIZE];
    digest_progress progress = {.callback = on_progress, .user_data = user_data, .phase = "digest"};
    struct stat status;
    shard_ok(error);
    if (!digest_read(entry->digest, recorded) || stat(entry->shard, &status) != 0) {
        return false;
    }
    progress.total = (uint64_t)status.st_size;
    return digest_file(entry->shard, cache_dir, &progress, sha256, error) == SHARD_OK &&
           strcmp(recorded, sha256) == 0;
}

/* Tells `cache prune` that the file is in use. The time of the digest beside it is set, because a
 * shard file whose own times change would have to be hashed again. */
static void note_use(const cache_entry *entry) {
    utimensat(AT_FDCWD, entry->digest, NULL, 0);
}

static shard_status write_entry(const shard_artifact *artifact, uint32_t start, uint32_t end,
                                const cache_entry *entry, const char *cache_dir,
                                shard_progress_callback on_progress, void *user_data,
                                char sha256[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    const shard_file_options options = {.on_progress = on_progress, .user_data = user_data};
    digest_progress progress = {.callback = on_progress, .user_data = user_data, .phase = "digest"};
    uint64_t bytes = 0;
    if (shard_file_write(artifact, start, end, entry->shard, &options, &bytes, error) != SHARD_OK) {
        return error->status;
    }
    progress.total = bytes;
    if (digest_file(entry->shard, cache_dir, &progress, sha256, error) != SHARD_OK) {
        return error->status;
    }
    return digest_write(entry->digest, sha256, error);
}

shard_status cache_shard_file(const shard_artifact *artifact, uint32_t start, uint32_t end,
                              const char *cache_dir, shard_progress_callback on_progress,
                              void *user_data, char path[FILES_PATH_SIZE],
                              char sha256[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    char key[SHARD_SHA256_HEX_SIZE];
    cache_entry entry;
    int fd = -1;
    if (make_key(artifact, start, end, key, error) != SHARD_OK ||
        make_entry(cache_dir, key, &entry, error) != SHARD_OK ||
        lock(entry.lock, on_progress, user_data, &fd, error) != SHARD_OK) {
        return error->status;
    }
    if (is_intact(&entry, cache_dir, on_progress, user_data, sha256, error)) {
        note_use(&entry);
    } else if (error->status != SHARD_ERR_CANCELLED) {
        write_entry(artifact, start, end, &entry, cache_dir, on_progress, user_data, sha256, error);
    }
    close(fd);
    memcpy(path, entry.shard, sizeof(entry.shard));
    return error->status;
}
