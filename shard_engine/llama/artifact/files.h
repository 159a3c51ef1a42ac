/* The few file operations that the engine needs, each with an error that names path and remedy. */
#ifndef SHARD_LLAMA_FILES_H
#define SHARD_LLAMA_FILES_H

#include "shard_engine.h"

#include <sys/stat.h>

enum { FILES_PATH_SIZE = 4096 };

/* Nanoseconds of a file's time of modification (m) or change (c). */
#ifdef __APPLE__
#define FILES_NANOSECONDS(status, which) ((long)(status)->st_##which##timespec.tv_nsec)
#else
#define FILES_NANOSECONDS(status, which) ((long)(status)->st_##which##tim.tv_nsec)
#endif

/* Whether both are the same file in the same state: device, inode, size and both times. A program
 * cannot set the time of change back, so a file that was written to is another one. */
bool files_are_same(const struct stat *left, const struct stat *right);

/* Opens a regular file for reading. SHARD_ERR_NOT_FOUND or SHARD_ERR_IO; -1 in `*fd` then. */
shard_status files_open(const char *path, int *fd, struct stat *status, shard_error *error);

/* Reads exactly `size` bytes at `offset`. False at end of file or on an error (see errno; 0 at
 * end). */
bool files_read_at(int fd, void *buffer, size_t size, uint64_t offset);

/* Writes exactly `size` bytes. False on an error (see errno). */
bool files_write(int fd, const void *buffer, size_t size);

/* Makes a folder and its parents. */
shard_status files_make_folder(const char *path, shard_error *error);

/* Joins folder and name; false when the result does not fit in FILES_PATH_SIZE. */
bool files_join(char *out, const char *folder, const char *name);

/* The errno of a failed write at `path` as a status: SHARD_ERR_NO_SPACE where the disk, the quota
 * or the file size limit is the reason, else SHARD_ERR_IO. */
shard_status files_write_error(const char *path, int error_number, uint64_t needed,
                               shard_error *error);
/* SHARD_ERR_IO: there is a file of that name already. */
shard_status files_exists_error(const char *path, shard_error *error);

/* A file that has no name until it is published, so that nothing is left of it whatever happens to
 * the process. Where the file system cannot do that, a temporary name beside the target is used. */
typedef struct files_new_file {
    int fd;
    char target[FILES_PATH_SIZE];
    char temporary[FILES_PATH_SIZE]; /* empty while unnamed */
    bool keeps_existing; /* files_publish refuses to replace a file; false after files_create */
} files_new_file;

shard_status files_create(files_new_file *file, const char *target, shard_error *error);
/* Syncs and gives the file its name, replacing what has it unless `keeps_existing`. Closes it in
 * any case. */
shard_status files_publish(files_new_file *file, shard_error *error);
/* Forgets the file. Harmless after files_publish. */
void files_discard(files_new_file *file);

#endif /* SHARD_LLAMA_FILES_H */
