#include "meta.h"

#include <stdio.h>
#include <string.h>

void meta_key(char out[META_KEY_SIZE], const char *architecture, const char *suffix) {
    snprintf(out, META_KEY_SIZE, "%s.%s", architecture, suffix);
}

static bool not_negative(int64_t number, uint64_t *value) {
    *value = (uint64_t)number;
    return number >= 0;
}

/* Reads one integer of any width from memory that may be unaligned. */
static bool integer_at(enum gguf_type type, const void *data, size_t index, uint64_t *value) {
    switch (type) {
    case GGUF_TYPE_BOOL:
    case GGUF_TYPE_UINT8:
        *value = ((const uint8_t *)data)[index];
        return true;
    case GGUF_TYPE_INT8:
        return not_negative(((const int8_t *)data)[index], value);
    case GGUF_TYPE_UINT16: {
        uint16_t number;
        memcpy(&number, (const char *)data + index * sizeof(number), sizeof(number));
        *value = number;
        return true;
    }
    case GGUF_TYPE_INT16: {
        int16_t number;
        memcpy(&number, (const char *)data + index * sizeof(number), sizeof(number));
        return not_negative(number, value);
    }
    case GGUF_TYPE_UINT32: {
        uint32_t number;
        memcpy(&number, (const char *)data + index * sizeof(number), sizeof(number));
        *value = number;
        return true;
    }
    case GGUF_TYPE_INT32: {
        int32_t number;
        memcpy(&number, (const char *)data + index * sizeof(number), sizeof(number));
        return not_negative(number, value);
    }
    case GGUF_TYPE_UINT64:
        memcpy(value, (const char *)data + index * sizeof(*value), sizeof(*value));
        return true;
    case GGUF_TYPE_INT64: {
        int64_t number;
        memcpy(&number, (const char *)data + index * sizeof(number), sizeof(number));
        return not_negative(number, value);
    }
    default:
        return false;
    }
}

static bool is_scalar(enum gguf_type type) {
    return type != GGUF_TYPE_ARRAY && type != GGUF_TYPE_STRING;
}

bool meta_u64(const struct gguf_context *gguf, const char *key, uint64_t *value) {
    const int64_t id = gguf_find_key(gguf, key);
    if (id < 0 || !is_scalar(gguf_get_kv_type(gguf, id))) {
        return false;
    }
    return integer_at(gguf_get_kv_type(gguf, id), gguf_get_val_data(gguf, id), 0, value);
}

bool meta_u32(const struct gguf_context *gguf, const char *key, uint32_t *value) {
    uint64_t wide = 0;
    if (!meta_u64(gguf, key, &wide) || wide > UINT32_MAX) {
        return false;
    }
    *value = (uint32_t)wide;
    return true;
}

uint32_t meta_number(const struct gguf_context *gguf, const char *architecture, const char *suffix,
                     uint32_t otherwise) {
    char key[META_KEY_SIZE];
    uint32_t value = otherwise;
    meta_key(key, architecture, suffix);
    return meta_u32(gguf, key, &value) ? value : otherwise;
}

bool meta_f32(const struct gguf_context *gguf, const char *key, float *value) {
    const int64_t id = gguf_find_key(gguf, key);
    const enum gguf_type type = id >= 0 ? gguf_get_kv_type(gguf, id) : GGUF_TYPE_STRING;
    if (type == GGUF_TYPE_FLOAT32) {
        *value = gguf_get_val_f32(gguf, id);
    } else if (type == GGUF_TYPE_FLOAT64) {
        *value = (float)gguf_get_val_f64(gguf, id);
    }
    return type == GGUF_TYPE_FLOAT32 || type == GGUF_TYPE_FLOAT64;
}

const char *meta_string(const struct gguf_context *gguf, const char *key) {
    const int64_t id = gguf_find_key(gguf, key);
    if (id < 0 || gguf_get_kv_type(gguf, id) != GGUF_TYPE_STRING) {
        return NULL;
    }
    return gguf_get_val_str(gguf, id);
}

int64_t meta_array(const struct gguf_context *gguf, const char *key) {
    const int64_t id = gguf_find_key(gguf, key);
    return id >= 0 && gguf_get_kv_type(gguf, id) == GGUF_TYPE_ARRAY ? id : -1;
}

bool meta_u32_at(const struct gguf_context *gguf, const char *key, uint32_t index,
                 uint32_t *value) {
    const int64_t id = meta_array(gguf, key);
    if (id < 0) {
        return meta_u32(gguf, key, value);
    }
    uint64_t wide = 0;
    const enum gguf_type type = gguf_get_arr_type(gguf, id);
    if (!is_scalar(type) || index >= gguf_get_arr_n(gguf, id) ||
        !integer_at(type, gguf_get_arr_data(gguf, id), index, &wide) || wide > UINT32_MAX) {
        return false;
    }
    *value = (uint32_t)wide;
    return true;
}
