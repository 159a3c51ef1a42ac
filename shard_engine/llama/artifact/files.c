#include "files.h"

#include "error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

shard_status files_open(const char *path, int *fd, struct stat *status, shard_error *error) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) {
        const int number = errno;
        if (number == ENOENT || number == ENOTDIR) {
            shard_fail(error, SHARD_ERR_NOT_FOUND, "%s does not exist: check the path", path);
        } else {
            shard_fail(error, SHARD_ERR_IO, "cannot read %s: %s; check its permissions", path,
                       strerror(number));
        }
        shard_error_add(error, "path", "%s", path);
        return error->status;
    }
    if (fstat(*fd, status) != 0 || !S_ISREG(status->st_mode)) {
        close(*fd);
        *fd = -1;
        shard_fail(error, SHARD_ERR_IO, "%s is not a regular file: give the path of a GGUF file",
                   path);
        shard_error_add(error, "path", "%s", path);
        return error->status;
    }
    return shard_ok(error);
}

bool files_are_same(const struct stat *left, const struct stat *right) {
    return left->st_dev == right->st_dev && left->st_ino == right->st_ino &&
           left->st_size == right->st_size && left->st_mtime == right->st_mtime &&
           left->st_ctime == right->st_ctime &&
           FILES_NANOSECONDS(left, m) == FILES_NANOSECONDS(right, m) &&
           FILES_NANOSECONDS(left, c) == FILES_NANOSECONDS(right, c);
}

bool files_read_at(int fd, void *buffer, size_t size, uint64_t offset) {
    char *out = buffer;
    while (size > 0) {
        const ssize_t count = pread(fd, out, size, (off_t)offset);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            errno = count == 0 ? 0 : errno;
            return false;
        }
        out += count;
        size -= (size_t)count;
        offset += (uint64_t)count;
    }
    return true;
}

bool files_write(int fd, const void *buffer, size_t size) {
    const char *in = buffer;
    while (size > 0) {
        const ssize_t count = write(fd, in, size);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return false;
        }
        in += count;
        size -= (size_t)count;
    }
    return true;
}

shard_status files_make_folder(const char *path, shard_error *error) {
    char partial[FILES_PATH_SIZE];
    if (snprintf(partial, sizeof(partial), "%s", path) >= (int)sizeof(partial)) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "the path %.64s... is too long", path);
    }
    for (char *slash = partial + 1;; slash++) {
        const char kept = *slash;
        if (kept != '/' && kept != '\0') {
            continue;
        }
        *slash = '\0';
        if (mkdir(partial, 0777) != 0 && errno != EEXIST) {
            return files_write_error(partial, errno, 0, error);
        }
        if (kept == '\0') {
            return shard_ok(error);
        }
        *slash = kept;
    }
}

bool files_join(char *out, const char *folder, const char *name) {
    const int length = snprintf(out, FILES_PATH_SIZE, "%s/%s", folder, name);
    return length > 0 && length < FILES_PATH_SIZE;
}

/* The folder part of a path, "." where there is none. */
static void folder_of(char *out, const char *path) {
    snprintf(out, FILES_PATH_SIZE, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash == NULL) {
        snprintf(out, FILES_PATH_SIZE, ".");
    } else if (slash == out) {
        out[1] = '\0';
    } else {
        *slash = '\0';
    }
}

shard_status files_write_error(const char *path, int error_number, uint64_t needed,
                               shard_error *error) {
    if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) {
        shard_fail(error, SHARD_ERR_IO, "cannot write %s: %s; %s", path, strerror(error_number),
                   error_number == ENOENT ? "make its folder, or choose another"
                                          : "check permissions and disk, or choose another folder");
        shard_error_add(error, "path", "%s", path);
        return error->status;
    }
    char folder[FILES_PATH_SIZE];
    struct statvfs space = {0};
    folder_of(folder, path);
    const bool known = statvfs(folder, &space) == 0;
    const uint64_t available = known ? (uint64_t)space.f_bavail * space.f_frsize : 0;
    shard_fail(error, SHARD_ERR_NO_SPACE,
               "cannot write %s: %s (%" PRIu64 " bytes needed, %" PRIu64
               " free): free some space or choose another folder",
               path, strerror(error_number), needed, available);
    shard_error_add(error, "path", "%s", path);
    shard_error_add(error, "needed_bytes", "%" PRIu64, needed);
    shard_error_add(error, "free_bytes", "%" PRIu64, available);
    return error->status;
}

shard_status files_exists_error(const char *path, shard_error *error) {
    shard_fail(error, SHARD_ERR_IO, "%s exists: choose another name, or ask for it to be replaced",
               path);
    shard_error_add(error, "path", "%s", path);
    return error->status;
}

shard_status files_create(files_new_file *file, const char *target, shard_error *error) {
    char folder[FILES_PATH_SIZE];
    file->fd = -1;
    file->temporary[0] = '\0';
    file->keeps_existing = false;
    if (snprintf(file->target, sizeof(file->target), "%s", target) >= (int)sizeof(file->target)) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "the path %.64s... is too long", target);
    }
    folder_of(folder, target);
#ifdef O_TMPFILE
    file->fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (file->fd >= 0) {
        return shard_ok(error);
    }
#endif
    const int length =
        snprintf(file->temporary, sizeof(file->temporary), "%s.XXXXXX.partial", target);
    if (length >= (int)sizeof(file->temporary)) {
        return shard_fail(error, SHARD_ERR_ARGUMENT, "the path %.64s... is too long", target);
    }
    file->fd = mkostemps(file->temporary, 8, O_CLOEXEC);
    if (file->fd < 0) {
        file->temporary[0] = '\0';
        return files_write_error(target, errno, 0, error);
    }
    return shard_ok(error);
}

#ifdef O_TMPFILE
/* An unnamed file can only be linked to a name that is free, so it takes a free one first and is
 * then renamed over the target in one step. */
static bool name_unnamed_file(files_new_file *file) {
    char descriptor[64];
    snprintf(descriptor, sizeof(descriptor), "/proc/self/fd/%d", file->fd);
    for (unsigned attempt = 0; attempt < 64; attempt++) {
        const int length = snprintf(file->temporary, sizeof(file->temporary), "%s.%ld-%u.partial",
                                    file->target, (long)getpid(), attempt);
        if (length >= (int)sizeof(file->temporary)) {
            errno = ENAMETOOLONG;
            break;
        }
        if (linkat(AT_FDCWD, descriptor, AT_FDCWD, file->temporary, AT_SYMLINK_FOLLOW) == 0) {
            return true;
        }
        if (errno != EEXIST) {
            break;
        }
    }
    file->temporary[0] = '\0';
    return false;
}
#endif

/* A rename replaces what has the name, also what got it since somebody looked; a link does not. */
static bool give_name(const files_new_file *file) {
    if (!file->keeps_existing) {
        return rename(file->temporary, file->target) == 0;
    }
    if (link(file->temporary, file->target) != 0) {
        return false;
    }
    unlink(file->temporary);
    return true;
}

shard_status files_publish(files_new_file *file, shard_error *error) {
    bool done = fsync(file->fd) == 0;
#ifdef O_TMPFILE
    if (done && file->temporary[0] == '\0') {
        done = name_unnamed_file(file);
    }
#endif
    done = done && give_name(file);
    if (!done) {
        if (errno == EEXIST) {
            files_exists_error(file->target, error);
        } else {
            files_write_error(file->target, errno, 0, error);
        }
        files_discard(file);
        return error->status;
    }
    /* The name itself survives a power cut only once its folder is synced. */
    char folder[FILES_PATH_SIZE];
    folder_of(folder, file->target);
    const int folder_fd = open(folder, O_RDONLY | O_CLOEXEC);
    if (folder_fd >= 0) {
        fsync(folder_fd);
        close(folder_fd);
    }
    file->temporary[0] = '\0';
    files_discard(file);
    return shard_ok(error);
}

void files_discard(files_new_file *file) {
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
    if (file->temporary[0] != '\0') {
        unlink(file->temporary);
        file->temporary[0] = '\0';
    }
}
