#include "answer_parts.h"

#include "identity.h"

void answer_begin(struct encoder *encoder, const char *type, uint64_t id, uint32_t n_more) {
    encode_map(encoder, NULL, 2 + n_more);
    encode_text(encoder, "type", type);
    if (id != 0) {
        encode_uint(encoder, "id", id);
    } else {
        encode_nil(encoder, "id");
    }
}

void answer_range(struct encoder *encoder, const char *key, uint32_t start, uint32_t end) {
    encode_array(encoder, key, 2);
    encode_uint(encoder, NULL, start);
    encode_uint(encoder, NULL, end);
}

static void device(struct encoder *encoder, const shard_device *device) {
    encode_map(encoder, NULL, 5);
    encode_text(encoder, "name", device->name);
    encode_text(encoder, "description", device->description);
    encode_text(encoder, "kind", device->kind);
    encode_uint(encoder, "memory_total", device->memory_total);
    encode_uint(encoder, "memory_free", device->memory_free);
}

void answer_build(struct encoder *encoder, const shard_build *build) {
    encode_map(encoder, "build", 8);
    encode_text(encoder, "engine", build->engine);
    encode_text(encoder, "engine_version", build->engine_version);
    encode_text(encoder, "pinned_package", build->pinned_package);
    encode_text(encoder, "pinned_commit", build->pinned_commit);
    encode_text(encoder, "library_commit", build->library_commit);
    encode_text(encoder, "library_version", build->library_version);
    encode_array(encoder, "devices", build->n_devices);
    for (uint32_t i = 0; i < build->n_devices; i++) {
        device(encoder, &build->devices[i]);
    }
    encode_text(encoder, "features", build->features);
}

void answer_identity(struct encoder *encoder, const shard_description *description) {
    encode_map(encoder, "identity", 5);
    encode_text(encoder, "artifact", description->artifact_sha256);
    encode_uint(encoder, "start", description->layer_start);
    encode_uint(encoder, "end", description->layer_end);
    identity_recipe_write(encoder, "recipe", &description->recipe);
    encode_text(encoder, "shard", description->shard_sha256);
}

void answer_model(struct encoder *encoder, const shard_description *description) {
    encode_map(encoder, "model", 8);
    encode_text(encoder, "architecture", description->architecture);
    encode_text(encoder, "name", description->model_name);
    encode_uint(encoder, "n_layer", description->n_layer);
    encode_uint(encoder, "n_embd", description->n_embd);
    encode_uint(encoder, "n_vocab", description->n_vocab);
    encode_uint(encoder, "n_ctx_train", description->n_ctx_train);
    encode_uint(encoder, "n_embd_out", description->n_embd_out);
    encode_text(encoder, "pooling", description->pooling);
}

void answer_ownership(struct encoder *encoder, const shard_description *description) {
    encode_map(encoder, "ownership", 7);
    answer_range(encoder, "layers", description->layer_start, description->layer_end);
    encode_uint(encoder, "owned_layers", description->owned_layers);
    encode_uint(encoder, "tensors", description->owned_tensors);
    encode_uint(encoder, "bytes", description->owned_bytes);
    encode_bool(encoder, "token_embedding", description->has_token_embedding);
    encode_bool(encoder, "output_head", description->has_output_head);
    encode_bool(encoder, "vocabulary", description->has_vocabulary);
}

void answer_memory(struct encoder *encoder, const shard_memory *memory) {
    encode_map(encoder, "memory", 3);
    encode_uint(encoder, "weights_bytes", memory->weights_bytes);
    encode_uint(encoder, "kv_bytes", memory->kv_bytes);
    encode_uint(encoder, "compute_bytes", memory->compute_bytes);
}

void answer_capacity(struct encoder *encoder, const shard_description *description) {
    encode_map(encoder, "capacity", 5);
    encode_uint(encoder, "max_sessions", description->max_sessions);
    encode_uint(encoder, "kv_cells", description->kv_cells);
    encode_uint(encoder, "max_batch", description->max_batch);
    encode_uint(encoder, "session_cells", description->session_cells);
    encode_bool(encoder, "can_trim", description->can_trim);
}

void answer_vocabulary(struct encoder *encoder, const shard_vocabulary *vocabulary) {
    if (vocabulary == NULL) {
        encode_nil(encoder, "vocabulary");
        return;
    }
    encode_map(encoder, "vocabulary", 8);
    encode_uint(encoder, "n_tokens", vocabulary->n_tokens);
    encode_int(encoder, "bos", vocabulary->bos);
    encode_int(encoder, "eos", vocabulary->eos);
    encode_int(encoder, "eot", vocabulary->eot);
    encode_int(encoder, "newline", vocabulary->newline);
    encode_int(encoder, "padding", vocabulary->padding);
    encode_bool(encoder, "add_bos", vocabulary->add_bos);
    encode_bool(encoder, "add_eos", vocabulary->add_eos);
}
