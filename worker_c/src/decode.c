/* The token reader and the check of a whole body. Typed access lies in decode_fields.c. */
#include "decode.h"

#include "decode_token.h"

#include <string.h>

struct walk {
    struct decode_cursor cursor;
    struct failure *failure;
};

static bool bad(struct walk *walk, const char *what) {
    return failure_set(walk->failure, CODE_BAD_FRAME,
                       "a body is not one msgpack map of at most %d levels and %d keys: %s",
                       LIMIT_DEPTH, LIMIT_KEYS, what);
}

static bool walk_value(struct walk *walk, uint32_t depth, struct decode_value *value);

static bool walk_array(struct walk *walk, uint32_t depth, struct decode_value *value) {
    /* Every element takes a byte at least, so a count that lies ends here and not in a long loop.
     */
    if (value->count > walk->cursor.left) {
        return bad(walk, "an array ends early");
    }
    value->data = walk->cursor.at;
    for (uint32_t i = 0; i < value->count; i++) {
        struct decode_value element;
        if (!walk_value(walk, depth + 1, &element)) {
            return false;
        }
    }
    value->size = (size_t)(walk->cursor.at - value->data);
    return true;
}

static bool key_is_new(const struct decode_map *map, const struct decode_value *key) {
    for (uint32_t i = 0; i < map->n_entries; i++) {
        const struct decode_entry *entry = &map->entries[i];
        if (entry->key_size == key->size && memcmp(entry->key, key->data, key->size) == 0) {
            return false;
        }
    }
    return true;
}

static bool walk_key(struct walk *walk, uint32_t depth, struct decode_map *map) {
    struct decode_value key;
    if (!walk_value(walk, depth, &key)) {
        return false;
    }
    if (key.kind != DECODE_STR && key.kind != DECODE_BIN) {
        return bad(walk, "a key is not a string");
    }
    if (!key_is_new(map, &key)) {
        return bad(walk, "a key appears twice");
    }
    map->entries[map->n_entries].key = key.data;
    map->entries[map->n_entries].key_size = key.size;
    return true;
}

/* Reads the entries of a map whose header was read just now. */
static bool walk_entries(struct walk *walk, uint32_t depth, uint32_t count,
                         struct decode_map *map) {
    map->n_entries = 0;
    if (count > LIMIT_KEYS) {
        return bad(walk, "a map has too many keys");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!walk_key(walk, depth + 1, map) ||
            !walk_value(walk, depth + 1, &map->entries[i].value)) {
            return false;
        }
        map->n_entries++;
    }
    return true;
}

static bool walk_map(struct walk *walk, uint32_t depth, struct decode_value *value) {
    const uint8_t *header = value->data;
    struct decode_map map;
    if (!walk_entries(walk, depth, value->count, &map)) {
        return false;
    }
    value->size = (size_t)(walk->cursor.at - header);
    return true;
}

/* `depth` counts the containers around the value. */
static bool walk_value(struct walk *walk, uint32_t depth, struct decode_value *value) {
    if (!decode_token(&walk->cursor, value)) {
        return bad(walk, "it ends early or holds a byte that starts nothing");
    }
    if (value->kind != DECODE_ARRAY && value->kind != DECODE_MAP) {
        return true;
    }
    if (depth == LIMIT_DEPTH) {
        return bad(walk, "it is nested too deep");
    }
    return value->kind == DECODE_ARRAY ? walk_array(walk, depth, value)
                                       : walk_map(walk, depth, value);
}

bool decode_body(const uint8_t *body, size_t size, struct decode_map *map,
                 struct failure *failure) {
    struct walk walk = {{body, size}, failure};
    struct decode_value outer;
    map->n_entries = 0;
    if (!decode_token(&walk.cursor, &outer) || outer.kind != DECODE_MAP) {
        return bad(&walk, "it is something else");
    }
    if (!walk_entries(&walk, 0, outer.count, map)) {
        return false;
    }
    return walk.cursor.left == 0 || bad(&walk, "bytes follow the map");
}

const struct decode_value *decode_find(const struct decode_map *map, const char *key) {
    size_t size = strlen(key);
    for (uint32_t i = 0; i < map->n_entries; i++) {
        const struct decode_entry *entry = &map->entries[i];
        if (entry->key_size == size && memcmp(entry->key, key, size) == 0) {
            return &entry->value;
        }
    }
    return NULL;
}
