#include "fake_spec.h"

#include "error.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char PREFIX[] = "fake:";
static const char SLICE_HEADER[] = "gguf-worker fake slice 1\n";

/* ---- the specification ---- */

typedef struct spec_key {
    const char *name;
    size_t offset; /* of the value in fake_spec */
    uint32_t initial;
    uint32_t min;
    uint32_t max;
} spec_key;

/* The order is that of the canonical text. */
static const spec_key KEYS[] = {
    {"layers", offsetof(fake_spec, n_layer), 12, 1, 4096},
    {"embd", offsetof(fake_spec, n_embd), 8, 1, 65536},
    {"vocab", offsetof(fake_spec, n_vocab), 64, 2, 1u << 20},
    {"seed", offsetof(fake_spec, seed), 1, 0, UINT32_MAX},
    {"recurrent", offsetof(fake_spec, recurrent), 0, 0, 1},
    {"pooling", offsetof(fake_spec, pooling), 0, 0, 4},
};

enum { N_KEYS = sizeof(KEYS) / sizeof(KEYS[0]) };

static uint32_t *value_of(fake_spec *spec, const spec_key *key) {
    return (uint32_t *)((char *)spec + key->offset);
}

static const spec_key *find_key(const char *name, size_t length) {
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strlen(KEYS[i].name) == length && memcmp(KEYS[i].name, name, length) == 0) {
            return &KEYS[i];
        }
    }
    return NULL;
}

/* Reads digits up to `end`; false where there are none, others, or the value is out of bounds. */
static bool parse_value(const char *digits, const char *end, const spec_key *key, uint32_t *value) {
    char *stop;
    errno = 0;
    const uint64_t number = strtoull(digits, &stop, 10);
    *value = (uint32_t)number;
    return digits[0] >= '0' && digits[0] <= '9' && stop == end && errno == 0 &&
           number >= key->min && number <= key->max;
}

static shard_status bad_pair(const char *pair, size_t length, const spec_key *key,
                             shard_error *error) {
    if (key == NULL) {
        shard_fail(
            error, SHARD_ERR_ARGUMENT,
            "\"%.*s\" is not part of a fake model; write layers, embd, vocab, seed, recurrent or "
            "pooling, then =, then a number",
            (int)length, pair);
    } else {
        shard_fail(error, SHARD_ERR_ARGUMENT,
                   "\"%.*s\" is out of bounds; %s takes a number from %" PRIu32 " to %" PRIu32,
                   (int)length, pair, key->name, key->min, key->max);
    }
    shard_error_add(error, "word", "%.*s", (int)length, pair);
    return error->status;
}

/* Parses key=value pairs up to the end of the string. */
static shard_status parse_pairs(const char *text, fake_spec *spec, shard_error *error) {
    while (*text != '\0') {
        const size_t length = strcspn(text, ",");
        const size_t name_length = strcspn(text, "=,");
        const spec_key *key = find_key(text, name_length);
        if (key == NULL || name_length == length ||
            !parse_value(text + name_length + 1, text + length, key, value_of(spec, key))) {
            return bad_pair(text, length, key, error);
        }
        text += length;
        /* A comma promises another pair, so one at the end is an empty, bad pair. */
        if (*text == ',' && *++text == '\0') {
            return bad_pair(text, 0, NULL, error);
        }
    }
    return SHARD_OK;
}

static shard_status parse_spec(const char *text, fake_spec *spec, shard_error *error) {
    *spec = (fake_spec){0};
    for (size_t i = 0; i < N_KEYS; i++) {
        *value_of(spec, &KEYS[i]) = KEYS[i].initial;
    }
    if (parse_pairs(text + strlen(PREFIX), spec, error) != SHARD_OK) {
        return error->status;
    }
    spec->end = spec->n_layer;
    return SHARD_OK;
}

size_t fake_spec_text(const fake_spec *spec, char text[FAKE_TEXT_SIZE]) {
    char pooling[32] = "";
    if (spec->pooling != 0) {
        snprintf(pooling, sizeof(pooling), ",pooling=%" PRIu32, spec->pooling);
    }
    return (size_t)snprintf(text, FAKE_TEXT_SIZE,
                            "fake:layers=%" PRIu32 ",embd=%" PRIu32 ",vocab=%" PRIu32
                            ",seed=%" PRIu32 "%s%s",
                            spec->n_layer, spec->n_embd, spec->n_vocab, spec->seed,
                            spec->recurrent ? ",recurrent=1" : "", pooling);
}

const char *fake_spec_pooling(const fake_spec *spec) {
    static const char *const NAMES[] = {"none", "mean", "cls", "last", "rank"};
    return NAMES[spec->pooling];
}

/* ---- slice files ---- */

size_t fake_slice_text(const fake_spec *spec, uint32_t start, uint32_t end,
                       char text[FAKE_TEXT_SIZE]) {
    char canonical[FAKE_TEXT_SIZE];
    fake_spec_text(spec, canonical);
    return (size_t)snprintf(text, FAKE_TEXT_SIZE, "%s%.128s\nlayers %" PRIu32 ":%" PRIu32 "\n",
                            SLICE_HEADER, canonical, start, end);
}

/* A slice file is exactly what fake_slice_text writes, so parsing reads the numbers and compares
 * the text that they give with the text that was read. */
static bool parse_slice(char *text, fake_spec *spec, shard_error *error) {
    char expected[FAKE_TEXT_SIZE];
    char *line = text + strlen(SLICE_HEADER);
    if (strncmp(text, SLICE_HEADER, strlen(SLICE_HEADER)) != 0 ||
        strncmp(line, PREFIX, strlen(PREFIX)) != 0) {
        return false;
    }
    char *newline = strchr(line, '\n');
    uint32_t start, end;
    if (newline == NULL || sscanf(newline, "\nlayers %" SCNu32 ":%" SCNu32, &start, &end) != 2) {
        return false;
    }
    *newline = '\0';
    const bool parsed = parse_spec(line, spec, error) == SHARD_OK;
    *newline = '\n';
    if (!parsed || start >= end || end > spec->n_layer) {
        return false;
    }
    spec->is_slice = true;
    spec->start = start;
    spec->end = end;
    fake_slice_text(spec, start, end, expected);
    return strcmp(text, expected) == 0;
}

static shard_status cannot_read(const char *path, int reason, shard_error *error) {
    if (reason == ENOENT) {
        shard_fail(error, SHARD_ERR_NOT_FOUND,
                   "%s does not exist; give \"fake:\" or the path of a slice file", path);
    } else {
        shard_fail(error, SHARD_ERR_IO, "%s cannot be read (%s); check its permissions", path,
                   strerror(reason));
    }
    shard_error_add(error, "path", "%s", path);
    return error->status;
}

static shard_status read_slice(const char *path, fake_spec *spec, shard_error *error) {
    char text[FAKE_TEXT_SIZE] = {0};
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return cannot_read(path, errno, error);
    }
    errno = 0;
    fread(text, 1, sizeof(text) - 1, file);
    const int reason = ferror(file) ? errno : 0;
    fclose(file);
    if (reason != 0) {
        return cannot_read(path, reason, error);
    }
    if (!parse_slice(text, spec, error)) {
        shard_fail(error, SHARD_ERR_MALFORMED,
                   "%s is not a slice file of the fake engine; write it again with slice", path);
        shard_error_add(error, "path", "%s", path);
        return error->status;
    }
    return SHARD_OK;
}

shard_status fake_spec_read(const char *model_path, fake_spec *spec, shard_error *error) {
    if (model_path == NULL) {
        return shard_fail(error, SHARD_ERR_ARGUMENT,
                          "model_path is NULL; give \"fake:\" or the path of a slice file");
    }
    return strncmp(model_path, PREFIX, strlen(PREFIX)) == 0 ? parse_spec(model_path, spec, error)
                                                            : read_slice(model_path, spec, error);
}

/* ---- ranges and digests ---- */

static shard_status bad_range(const fake_spec *spec, uint32_t start, uint32_t end,
                              shard_error *error) {
    shard_fail(error, SHARD_ERR_RANGE,
               "layers %" PRIu32 ":%" PRIu32 " cannot be served; %s %" PRIu32 ":%" PRIu32, start,
               end, spec->is_slice ? "this is a slice, which holds just" : "the model has",
               spec->start, spec->end);
    shard_error_add(error, "layer_start", "%" PRIu32, start);
    shard_error_add(error, "layer_end", "%" PRIu32, end);
    shard_error_add(error, "n_layer", "%" PRIu32, spec->n_layer);
    return error->status;
}

shard_status fake_spec_range(const fake_spec *spec, uint32_t *start, uint32_t *end,
                             shard_error *error) {
    if (*start == 0 && *end == 0) {
        *start = spec->start;
    }
    if (*end == 0) {
        *end = spec->end;
    }
    const bool inside = *start < *end && *end <= spec->n_layer;
    const bool whole = *start == spec->start && *end == spec->end;
    return inside && (whole || !spec->is_slice) ? SHARD_OK : bad_range(spec, *start, *end, error);
}

static void sha256_hex(const char *text, size_t length, char hex[SHARD_SHA256_HEX_SIZE]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_bytes = 0;
    EVP_Digest(text, length, digest, &n_bytes, EVP_sha256(), NULL);
    for (unsigned i = 0; i < n_bytes; i++) {
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
}

void fake_artifact_sha256(const fake_spec *spec, char hex[SHARD_SHA256_HEX_SIZE]) {
    char text[FAKE_TEXT_SIZE];
    const size_t length = fake_spec_text(spec, text);
    sha256_hex(text, length, hex);
}

void fake_slice_sha256(const fake_spec *spec, uint32_t start, uint32_t end,
                       char hex[SHARD_SHA256_HEX_SIZE]) {
    char text[FAKE_TEXT_SIZE];
    const size_t length = fake_slice_text(spec, start, end, text);
    sha256_hex(text, length, hex);
}

void fake_shard_sha256(const fake_spec *spec, uint32_t start, uint32_t end,
                       char hex[SHARD_SHA256_HEX_SIZE]) {
    if (start == 0 && end == spec->n_layer) {
        fake_artifact_sha256(spec, hex);
    } else {
        fake_slice_sha256(spec, start, end, hex);
    }
}
