#include "holding.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_text(char *text, size_t size, struct decode_text from) {
    snprintf(text, size, "%.*s", (int)from.size, from.data != NULL ? from.data : "");
}

static void identity_asked(const struct load_request *load, struct identity *identity) {
    memset(identity, 0, sizeof(*identity));
    copy_text(identity->artifact, sizeof(identity->artifact), load->artifact);
    identity->start = load->start;
    identity->end = load->end;
    identity->recipe = load->recipe;
}

static bool refuse(const struct holding *holding, const struct load_request *load,
                   struct failure *failure) {
    struct identity_claim claim;
    struct identity asked;
    identity_asked(load, &asked);
    if (asked.end == 0 && holding->is_loaded) {
        asked.end = holding->n_layer;
    }
    if (asked.recipe.n_threads == 0) {
        asked.recipe.n_threads = holding->identity.recipe.n_threads;
    }
    if (asked.recipe.prefill_chunk == 0) {
        asked.recipe.prefill_chunk = holding->identity.recipe.prefill_chunk;
    }
    identity_claim_all(&claim, &asked);
    failure_set(failure, shard_status_name(SHARD_ERR_IDENTITY),
                "this worker %s layers [%" PRIu32 ", %" PRIu32
                ") of %s and keeps them for its life; start another worker for another load",
                holding->is_loaded ? "holds" : "is loading", holding->identity.start,
                holding->identity.end, holding->model);
    char model[LIMIT_PATH];
    copy_text(model, sizeof(model), load->model);
    if (strcmp(model, holding->model) != 0) {
        failure_add(failure, "model.expected", "%s", model);
        failure_add(failure, "model.actual", "%s", holding->model);
    }
    identity_differences(&claim, &holding->identity, false, failure);
    failure_tell_fields(failure);
    return false;
}

bool holding_accept(struct holding *holding, const struct load_request *load,
                    struct failure *failure) {
    if (holding->is_held) {
        return refuse(holding, load, failure);
    }
    holding->is_held = true;
    holding->is_loaded = false;
    copy_text(holding->model, sizeof(holding->model), load->model);
    identity_asked(load, &holding->identity);
    return true;
}

void holding_release(struct holding *holding) {
    holding->is_held = false;
}

void holding_settle(struct holding *holding, const shard_description *description) {
    holding->is_loaded = true;
    holding->n_layer = description->n_layer;
    identity_of(description, &holding->identity);
}
