#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif

#include "outline.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- metadata ---- */

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Not those of the vocabulary's lists, nor how the file's own data are aligned. Of two keys that
 * are the same up to a zero byte the library sees the first. */
static bool is_copied(const struct gguf_context *to, const struct gguf_context *from, int64_t id) {
    const char *key = gguf_get_key(from, id);
    const bool is_list = gguf_get_kv_type(from, id) == GGUF_TYPE_ARRAY;
    return !(is_list && starts_with(key, "tokenizer.")) && strcmp(key, "general.alignment") != 0 &&
           gguf_find_key(to, key) < 0;
}

static bool copy_strings(struct gguf_context *to, const struct gguf_context *from, int64_t id) {
    const size_t count = gguf_get_arr_n(from, id);
    const char **strings = calloc(count + 1, sizeof(*strings));
    if (strings == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        strings[i] = gguf_get_arr_str(from, id, i);
    }
    gguf_set_arr_str(to, gguf_get_key(from, id), strings, count);
    free(strings);
    return true;
}

static bool copy_array(struct gguf_context *to, const struct gguf_context *from, int64_t id) {
    const enum gguf_type type = gguf_get_arr_type(from, id);
    if (type == GGUF_TYPE_STRING) {
        return copy_strings(to, from, id);
    }
    gguf_set_arr_data(to, gguf_get_key(from, id), type, gguf_get_arr_data(from, id),
                      gguf_get_arr_n(from, id));
    return true;
}

static bool copy_key(struct gguf_context *to, const struct gguf_context *from, int64_t id) {
    const char *key = gguf_get_key(from, id);
    switch (gguf_get_kv_type(from, id)) {
    case GGUF_TYPE_UINT8:
        gguf_set_val_u8(to, key, gguf_get_val_u8(from, id));
        return true;
    case GGUF_TYPE_INT8:
        gguf_set_val_i8(to, key, gguf_get_val_i8(from, id));
        return true;
    case GGUF_TYPE_UINT16:
        gguf_set_val_u16(to, key, gguf_get_val_u16(from, id));
        return true;
    case GGUF_TYPE_INT16:
        gguf_set_val_i16(to, key, gguf_get_val_i16(from, id));
        return true;
    case GGUF_TYPE_UINT32:
        gguf_set_val_u32(to, key, gguf_get_val_u32(from, id));
        return true;
    case GGUF_TYPE_INT32:
        gguf_set_val_i32(to, key, gguf_get_val_i32(from, id));
        return true;
    case GGUF_TYPE_FLOAT32:
        gguf_set_val_f32(to, key, gguf_get_val_f32(from, id));
        return true;
    case GGUF_TYPE_BOOL:
        gguf_set_val_bool(to, key, gguf_get_val_bool(from, id));
        return true;
    case GGUF_TYPE_STRING:
        gguf_set_val_str(to, key, gguf_get_val_str(from, id));
        return true;
    case GGUF_TYPE_UINT64:
        gguf_set_val_u64(to, key, gguf_get_val_u64(from, id));
        return true;
    case GGUF_TYPE_INT64:
        gguf_set_val_i64(to, key, gguf_get_val_i64(from, id));
        return true;
    case GGUF_TYPE_FLOAT64:
        gguf_set_val_f64(to, key, gguf_get_val_f64(from, id));
        return true;
    case GGUF_TYPE_ARRAY:
        return copy_array(to, from, id);
    default:
        return false; /* a kind that this was not written for */
    }
}

static bool copy_keys(struct gguf_context *to, const struct gguf_context *from) {
    for (int64_t id = 0; id < gguf_get_n_kv(from); id++) {
        if (is_copied(to, from, id) && !copy_key(to, from, id)) {
            return false;
        }
    }
    return true;
}

/* ---- tensors ---- */

static bool add_tensors(struct gguf_context *to, const struct gguf_context *from) {
    const int64_t count = gguf_get_n_tensors(from);
    struct ggml_context *tensors = ggml_init((struct ggml_init_params){
        .mem_size = (size_t)(count + 1) * ggml_tensor_overhead(), .no_alloc = true});
    if (tensors == NULL) {
        return false;
    }
    for (int64_t id = 0; id < count; id++) {
        struct ggml_tensor *tensor = ggml_new_tensor(tensors, gguf_get_tensor_type(from, id),
                                                     GGML_MAX_DIMS, gguf_get_tensor_ne(from, id));
        ggml_set_name(tensor, gguf_get_tensor_name(from, id));
        gguf_add_tensor(to, tensor); /* a copy */
    }
    ggml_free(tensors);
    return true;
}

/* Bytes of all of it, data included. */
static uint64_t bytes_of(const struct gguf_context *gguf) {
    const int64_t last = gguf_get_n_tensors(gguf) - 1;
    const uint64_t data =
        last < 0 ? 0 : gguf_get_tensor_offset(gguf, last) + gguf_get_tensor_size(gguf, last);
    return gguf_get_meta_size(gguf) + data;
}

/* ---- the file ---- */

static FILE *open_nameless(void) {
#ifdef __linux__
    const int fd = memfd_create("outline", MFD_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w+b");
    if (file == NULL && fd >= 0) {
        close(fd);
    }
    return file;
#else
    return tmpfile();
#endif
}

/* More than the limit on the size of files would end this process by a signal. */
static bool is_allowed(uint64_t bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

static bool write_outline(const struct gguf_context *gguf, uint64_t bytes, FILE *file) {
    return gguf_write_to_file_ptr(gguf, file, true) && fflush(file) == 0 &&
           ftruncate(fileno(file), (off_t)bytes) == 0 && fseek(file, 0, SEEK_SET) == 0;
}

static FILE *written(const struct gguf_context *gguf) {
    const uint64_t bytes = bytes_of(gguf);
    FILE *file = is_allowed(bytes) ? open_nameless() : NULL;
    if (file != NULL && !write_outline(gguf, bytes, file)) {
        fclose(file);
        return NULL;
    }
    return file;
}

/* gguf's writer gives tensors without an element another shape. */
static bool has_empty_tensor(const struct gguf_context *gguf) {
    for (int64_t id = 0; id < gguf_get_n_tensors(gguf); id++) {
        if (gguf_get_tensor_size(gguf, id) == 0) {
            return true;
        }
    }
    return false;
}

/* gguf takes as long to add an entry as it has entries, and no model has nearly as many. */
enum { MOST_ENTRIES = 4096 };

static bool is_one_model(const struct gguf_context *gguf) {
    return gguf_find_key(gguf, "split.count") < 0 && gguf_get_n_kv(gguf) <= MOST_ENTRIES &&
           gguf_get_n_tensors(gguf) <= MOST_ENTRIES && !has_empty_tensor(gguf);
}

FILE *outline_open(const struct gguf_context *gguf) {
    struct gguf_context *outline = is_one_model(gguf) ? gguf_init_empty() : NULL;
    if (outline == NULL) {
        return NULL;
    }
    const bool is_made = copy_keys(outline, gguf) && add_tensors(outline, gguf);
    FILE *file = is_made ? written(outline) : NULL;
    gguf_free(outline);
    return file;
}
