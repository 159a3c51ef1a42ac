#include "digest.h"

#include "error.h"
#include "files.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, DIGEST_BYTES = 32 };

bool digest_advance(digest_progress *progress, uint64_t bytes) {
    progress->done += bytes;
    return progress->callback == NULL || progress->callback(progress->phase, progress->done,
                                                            progress->total, progress->user_data);
}

static void to_hex(const unsigned char *bytes, char hex[SHARD_SHA256_HEX_SIZE]) {
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    }
}

/* The name under which a file's digest is remembered. The change time is part of it because, unlike
 * the modification time, a program cannot set it back. */
static bool remembered_path(const struct stat *status, const char *cache_dir,
                            char out[FILES_PATH_SIZE]) {
    char name[192];
    snprintf(name, sizeof(name),
             "digests/%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 ".%09ld-%" PRIx64 ".%09ld",
             (uint64_t)status->st_dev, (uint64_t)status->st_ino, (uint64_t)status->st_size,
             (uint64_t)status->st_mtime, FILES_NANOSECONDS(status, m), (uint64_t)status->st_ctime,
             FILES_NANOSECONDS(status, c));
    return files_join(out, cache_dir, name);
}

/* A file that was written to while it was hashed must not be remembered under its old times. */
static bool is_unchanged(int fd, const char *cache_dir, const char *remembered) {
    struct stat status;
    char now[FILES_PATH_SIZE];
    return fstat(fd, &status) == 0 && remembered_path(&status, cache_dir, now) &&
           strcmp(now, remembered) == 0;
}

static bool is_hex_digest(const char *text) {
    return strspn(text, "0123456789abcdef") == SHARD_SHA256_HEX_SIZE - 1 &&
           text[SHARD_SHA256_HEX_SIZE - 1] == '\0';
}

bool digest_read(const char *path, char hex[SHARD_SHA256_HEX_SIZE]) {
    shard_error ignored;
    struct stat status;
    int fd = -1;
    char found[SHARD_SHA256_HEX_SIZE] = {0};
    if (files_open(path, &fd, &status, &ignored) != SHARD_OK) {
        return false;
    }
    const bool valid = status.st_size == SHARD_SHA256_HEX_SIZE - 1 &&
                       files_read_at(fd, found, SHARD_SHA256_HEX_SIZE - 1, 0) &&
                       is_hex_digest(found);
    close(fd);
    if (valid) {
        memcpy(hex, found, SHARD_SHA256_HEX_SIZE);
    }
    return valid;
}

shard_status digest_write(const char *path, const char *hex, shard_error *error) {
    files_new_file file;
    if (files_create(&file, path, error) != SHARD_OK) {
        return error->status;
    }
    if (!files_write(file.fd, hex, SHARD_SHA256_HEX_SIZE - 1)) {
        files_write_error(path, errno, SHARD_SHA256_HEX_SIZE - 1, error);
        files_discard(&file);
        return error->status;
    }
    return files_publish(&file, error);
}

/* Remembering is a convenience: when it fails, the next load hashes again. */
static void remember(const char *cache_dir, const char *path, const char *hex) {
    shard_error ignored;
    char folder[FILES_PATH_SIZE];
    if (files_join(folder, cache_dir, "digests") &&
        files_make_folder(folder, &ignored) == SHARD_OK) {
        digest_write(path, hex, &ignored);
    }
}

static shard_status hash_descriptor(int fd, uint64_t size, const char *path, EVP_MD_CTX *context,
                                    digest_progress *progress, shard_error *error) {
    char *chunk = malloc(CHUNK);
    if (chunk == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory to hash %s", path);
    }
    shard_ok(error);
    for (uint64_t offset = 0; offset < size && error->status == SHARD_OK;) {
        const size_t count = size - offset < CHUNK ? (size_t)(size - offset) : CHUNK;
        if (!files_read_at(fd, chunk, count, offset)) {
            shard_fail(error, SHARD_ERR_IO, "cannot read %s at byte %" PRIu64 ": %s", path, offset,
                       errno == 0 ? "the file became shorter" : strerror(errno));
            shard_error_add(error, "path", "%s", path);
        } else if (EVP_DigestUpdate(context, chunk, count) != 1) {
            shard_fail(error, SHARD_ERR_BACKEND, "libcrypto could not hash %s", path);
        } else if (!digest_advance(progress, count)) {
            shard_fail(error, SHARD_ERR_CANCELLED, "hashing %s was cancelled", path);
        }
        offset += count;
    }
    free(chunk);
    return error->status;
}

static shard_status finish(EVP_MD_CTX *context, char hex[SHARD_SHA256_HEX_SIZE],
                           shard_error *error) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (EVP_DigestFinal_ex(context, bytes, &length) != 1 || length != DIGEST_BYTES) {
        return shard_fail(error, SHARD_ERR_BACKEND, "libcrypto could not finish a sha256");
    }
    to_hex(bytes, hex);
    return shard_ok(error);
}

static EVP_MD_CTX *begin(shard_error *error) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        shard_fail(error, SHARD_ERR_BACKEND,
                   "libcrypto offers no sha256: check the OpenSSL set-up");
        return NULL;
    }
    return context;
}

shard_status digest_file(const char *path, const char *cache_dir, digest_progress *progress,
                         char hex[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    struct stat status;
    int fd = -1;
    char remembered[FILES_PATH_SIZE];
    if (files_open(path, &fd, &status, error) != SHARD_OK) {
        return error->status;
    }
    const bool can_remember = cache_dir != NULL && remembered_path(&status, cache_dir, remembered);
    if (can_remember && digest_read(remembered, hex)) {
        close(fd);
        if (!digest_advance(progress, (uint64_t)status.st_size)) {
            return shard_fail(error, SHARD_ERR_CANCELLED, "hashing %s was cancelled", path);
        }
        return shard_ok(error);
    }
    EVP_MD_CTX *context = begin(error);
    if (context != NULL) {
        if (hash_descriptor(fd, (uint64_t)status.st_size, path, context, progress, error) ==
                SHARD_OK &&
            finish(context, hex, error) == SHARD_OK && can_remember &&
            is_unchanged(fd, cache_dir, remembered)) {
            remember(cache_dir, remembered, hex);
        }
        EVP_MD_CTX_free(context);
    }
    close(fd);
    return error->status;
}

static shard_status hash_bytes(const void *bytes, size_t size, char hex[SHARD_SHA256_HEX_SIZE],
                               shard_error *error) {
    EVP_MD_CTX *context = begin(error);
    if (context == NULL) {
        return error->status;
    }
    if (EVP_DigestUpdate(context, bytes, size) != 1) {
        shard_fail(error, SHARD_ERR_BACKEND, "libcrypto could not hash %zu bytes", size);
    } else {
        finish(context, hex, error);
    }
    EVP_MD_CTX_free(context);
    return error->status;
}

shard_status digest_of_digests(const char (*hexes)[SHARD_SHA256_HEX_SIZE], size_t count,
                               char hex[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    unsigned char *bytes = calloc(count, DIGEST_BYTES);
    if (bytes == NULL) {
        return shard_fail(error, SHARD_ERR_MEMORY, "no memory for %zu digests", count);
    }
    for (size_t i = 0; i < count * DIGEST_BYTES; i++) {
        unsigned value = 0;
        sscanf(hexes[i / DIGEST_BYTES] + 2 * (i % DIGEST_BYTES), "%2x", &value);
        bytes[i] = (unsigned char)value;
    }
    hash_bytes(bytes, count * DIGEST_BYTES, hex, error);
    free(bytes);
    return error->status;
}

shard_status digest_text(const char *text, char hex[SHARD_SHA256_HEX_SIZE], shard_error *error) {
    return hash_bytes(text, strlen(text), hex, error);
}
