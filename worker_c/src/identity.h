/* Identity: artifact, range and recipe. One table of its fields serves reading, comparing and
 * writing, so that a new recipe field is one line (docs/protocol.md, section 5). */
#ifndef WORKER_IDENTITY_H
#define WORKER_IDENTITY_H

#include "decode.h"
#include "encode.h"
#include "failure.h"
#include "shard_engine.h"

struct identity {
    char artifact[SHARD_SHA256_HEX_SIZE];
    uint32_t start;
    uint32_t end;
    shard_recipe recipe;
};

/* What somebody says that an identity is: fields may be missing. */
struct identity_claim {
    struct identity value;
    uint32_t present; /* bit i: field i of the table is there */
};

void identity_of(const shard_description *description, struct identity *identity);

/* Reads `identity` of an `open`. A missing field is not a failure, a wrong type is. */
void identity_claim_read(struct decode_fields *fields, struct identity_claim *claim);

/* Reads `recipe` of a `load` over the defaults that `recipe` holds. */
void identity_recipe_read(struct decode_fields *fields, shard_recipe *recipe);

void identity_recipe_write(struct encoder *encoder, const char *key, const shard_recipe *recipe);

/* Adds `<name>.expected` (what the claim says) and `<name>.actual` to the failure for each field
 * that differs, and for each that is missing where `report_missing` is set. Returns how many. */
uint32_t identity_differences(const struct identity_claim *claim, const struct identity *actual,
                              bool report_missing, struct failure *failure);

/* A claim that holds every field but, without an artifact, that one. */
void identity_claim_all(struct identity_claim *claim, const struct identity *identity);

#endif /* WORKER_IDENTITY_H */
