#include "identity.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum field_kind { FIELD_UINT, FIELD_INT, FIELD_BOOL, FIELD_FLOAT, FIELD_TEXT };

struct field {
    const char *name; /* as errors say it */
    const char *key;  /* in its map */
    enum field_kind kind;
    size_t offset; /* in struct identity */
    size_t size;   /* of a text, with its NUL */
};

#define IDENTITY_FIELD(kind, member)                                                               \
    {#member, #member, kind, offsetof(struct identity, member),                                    \
     sizeof(((struct identity *)0)->member)}
#define RECIPE_FIELD(kind, member)                                                                 \
    {"recipe." #member, #member, kind,                                                             \
     offsetof(struct identity, recipe) + offsetof(shard_recipe, member),                           \
     sizeof(((shard_recipe *)0)->member)}

static const struct field FIELDS[] = {
    IDENTITY_FIELD(FIELD_TEXT, artifact),
    IDENTITY_FIELD(FIELD_UINT, start),
    IDENTITY_FIELD(FIELD_UINT, end),
    RECIPE_FIELD(FIELD_UINT, n_ctx),
    RECIPE_FIELD(FIELD_UINT, n_batch),
    RECIPE_FIELD(FIELD_UINT, n_ubatch),
    RECIPE_FIELD(FIELD_UINT, prefill_chunk),
    RECIPE_FIELD(FIELD_UINT, n_threads),
    RECIPE_FIELD(FIELD_BOOL, flash_attn),
    RECIPE_FIELD(FIELD_BOOL, repack),
    RECIPE_FIELD(FIELD_BOOL, kv_unified),
    RECIPE_FIELD(FIELD_INT, n_gpu_layers),
    RECIPE_FIELD(FIELD_INT, main_gpu),
    RECIPE_FIELD(FIELD_TEXT, split_mode),
    RECIPE_FIELD(FIELD_TEXT, type_k),
    RECIPE_FIELD(FIELD_TEXT, type_v),
    RECIPE_FIELD(FIELD_TEXT, boundary),
    RECIPE_FIELD(FIELD_TEXT, rope_scaling),
    RECIPE_FIELD(FIELD_FLOAT, rope_freq_base),
    RECIPE_FIELD(FIELD_FLOAT, rope_freq_scale),
    RECIPE_FIELD(FIELD_FLOAT, yarn_ext_factor),
    RECIPE_FIELD(FIELD_FLOAT, yarn_attn_factor),
    RECIPE_FIELD(FIELD_FLOAT, yarn_beta_fast),
    RECIPE_FIELD(FIELD_FLOAT, yarn_beta_slow),
    RECIPE_FIELD(FIELD_UINT, yarn_orig_ctx),
};

enum {
    N_FIELDS = sizeof(FIELDS) / sizeof(FIELDS[0]),
    FIRST_RECIPE_FIELD = 3,
    ALL_FIELDS = (1 << N_FIELDS) - 1
};

/* Beside those of the identity, a refused load names two models. */
_Static_assert(2 * (N_FIELDS + 1) <= FAILURE_MAX_FIELDS, "a failure must hold every difference");
_Static_assert(N_FIELDS < 31, "a claim has a bit for each field");
_Static_assert(N_FIELDS - FIRST_RECIPE_FIELD <= LIMIT_KEYS, "a recipe is a map");

static void *member_of(struct identity *identity, const struct field *field) {
    return (char *)identity + field->offset;
}

static const struct decode_span FINITE = {-FLT_MAX, FLT_MAX, false};

static void read_field(struct decode_fields *fields, const struct field *field, void *member) {
    switch (field->kind) {
    case FIELD_UINT: {
        uint32_t *number = member;
        *number = (uint32_t)decode_optional_uint(fields, field->key, 0, UINT32_MAX, *number);
        break;
    }
    case FIELD_INT: {
        int32_t *number = member;
        *number = (int32_t)decode_optional_int(fields, field->key, INT32_MIN, INT32_MAX, *number);
        break;
    }
    case FIELD_BOOL: {
        bool *flag = member;
        *flag = decode_optional_bool(fields, field->key, *flag);
        break;
    }
    case FIELD_FLOAT: {
        float *number = member;
        *number = decode_optional_float(fields, field->key, FINITE, *number);
        break;
    }
    case FIELD_TEXT: {
        struct decode_text text = decode_optional_name(fields, field->key, field->size - 1);
        if (text.data != NULL) {
            snprintf(member, field->size, "%.*s", (int)text.size, text.data);
        }
        break;
    }
    }
}

static uint32_t read_fields(struct decode_fields *fields, uint32_t first, uint32_t end,
                            struct identity *identity) {
    uint32_t present = 0;
    for (uint32_t i = first; i < end; i++) {
        read_field(fields, &FIELDS[i], member_of(identity, &FIELDS[i]));
        present |= (uint32_t)(decode_find(fields->map, FIELDS[i].key) != NULL) << i;
    }
    return present;
}

static void refuse_unknown_fields(struct decode_fields *recipe, uint32_t present) {
    uint32_t n_known = 0;
    for (; present != 0; present &= present - 1) {
        n_known++;
    }
    decode_refuse_unknown(recipe, "recipe", n_known);
}

static uint32_t read_recipe(struct decode_fields *fields, struct identity *identity) {
    struct decode_map map;
    decode_optional_inner(fields, "recipe", &map);
    struct decode_fields inner = {&map, fields->failure};
    const uint32_t present = read_fields(&inner, FIRST_RECIPE_FIELD, N_FIELDS, identity);
    refuse_unknown_fields(&inner, present);
    return present;
}

void identity_claim_read(struct decode_fields *fields, struct identity_claim *claim) {
    memset(claim, 0, sizeof(*claim));
    struct decode_map map;
    decode_inner(fields, "identity", &map);
    struct decode_fields inner = {&map, fields->failure};
    claim->present = read_fields(&inner, 0, FIRST_RECIPE_FIELD, &claim->value);
    claim->present |= read_recipe(&inner, &claim->value);
}

void identity_recipe_read(struct decode_fields *fields, shard_recipe *recipe) {
    struct identity identity = {.recipe = *recipe};
    struct decode_map map;
    decode_inner(fields, "recipe", &map);
    struct decode_fields inner = {&map, fields->failure};
    refuse_unknown_fields(&inner, read_fields(&inner, FIRST_RECIPE_FIELD, N_FIELDS, &identity));
    *recipe = identity.recipe;
}

static void write_field(struct encoder *encoder, const struct field *field, const void *member) {
    switch (field->kind) {
    case FIELD_UINT:
        encode_uint(encoder, field->key, *(const uint32_t *)member);
        break;
    case FIELD_INT:
        encode_int(encoder, field->key, *(const int32_t *)member);
        break;
    case FIELD_BOOL:
        encode_bool(encoder, field->key, *(const bool *)member);
        break;
    case FIELD_FLOAT:
        encode_float(encoder, field->key, *(const float *)member);
        break;
    case FIELD_TEXT:
        encode_text(encoder, field->key, member);
        break;
    }
}

void identity_recipe_write(struct encoder *encoder, const char *key, const shard_recipe *recipe) {
    struct identity identity = {.recipe = *recipe};
    encode_map(encoder, key, N_FIELDS - FIRST_RECIPE_FIELD);
    for (uint32_t i = FIRST_RECIPE_FIELD; i < N_FIELDS; i++) {
        write_field(encoder, &FIELDS[i], member_of(&identity, &FIELDS[i]));
    }
}

static void print_field(const struct field *field, const void *member, char text[SHARD_TEXT_SIZE]) {
    switch (field->kind) {
    case FIELD_UINT:
        snprintf(text, SHARD_TEXT_SIZE, "%" PRIu32, *(const uint32_t *)member);
        break;
    case FIELD_INT:
        snprintf(text, SHARD_TEXT_SIZE, "%" PRId32, *(const int32_t *)member);
        break;
    case FIELD_BOOL:
        snprintf(text, SHARD_TEXT_SIZE, "%s", *(const bool *)member ? "true" : "false");
        break;
    case FIELD_FLOAT:
        /* Nine digits tell every float32 apart, and adding 0 makes the two zeros one. */
        snprintf(text, SHARD_TEXT_SIZE, "%.9g", (double)(*(const float *)member + 0.0f));
        break;
    case FIELD_TEXT:
        snprintf(text, SHARD_TEXT_SIZE, "%s", (const char *)member);
        break;
    }
}

uint32_t identity_differences(const struct identity_claim *claim, const struct identity *actual,
                              bool report_missing, struct failure *failure) {
    struct identity_claim left = *claim;
    struct identity right = *actual;
    uint32_t n_differences = 0;
    for (uint32_t i = 0; i < N_FIELDS; i++) {
        bool is_present = (left.present >> i & 1) != 0;
        char expected[SHARD_TEXT_SIZE] = "missing";
        char found[SHARD_TEXT_SIZE];
        if (is_present) {
            print_field(&FIELDS[i], member_of(&left.value, &FIELDS[i]), expected);
        }
        print_field(&FIELDS[i], member_of(&right, &FIELDS[i]), found);
        if (is_present ? strcmp(expected, found) == 0 : !report_missing) {
            continue;
        }
        char name[SHARD_NAME_SIZE];
        snprintf(name, sizeof(name), "%s.expected", FIELDS[i].name);
        failure_add(failure, name, "%s", expected);
        snprintf(name, sizeof(name), "%s.actual", FIELDS[i].name);
        failure_add(failure, name, "%s", found);
        n_differences++;
    }
    return n_differences;
}

void identity_of(const shard_description *description, struct identity *identity) {
    memset(identity, 0, sizeof(*identity));
    snprintf(identity->artifact, sizeof(identity->artifact), "%s", description->artifact_sha256);
    identity->start = description->layer_start;
    identity->end = description->layer_end;
    identity->recipe = description->recipe;
}

void identity_claim_all(struct identity_claim *claim, const struct identity *identity) {
    claim->value = *identity;
    claim->present = ALL_FIELDS;
    if (identity->artifact[0] == '\0') {
        claim->present &= ~1u;
    }
}
