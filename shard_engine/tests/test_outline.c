/* What a model's outline keeps of it, read back as the library reads it. */
#include "check.h"
#include "outline.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- a model ---- */

static struct ggml_context *new_tensors(int count) {
    struct ggml_context *tensors = ggml_init((struct ggml_init_params){
        .mem_size = (size_t)count * ggml_tensor_overhead(), .no_alloc = true});
    CHECK(tensors != NULL);
    return tensors;
}

static void add_tensor(struct gguf_context *model, struct ggml_context *tensors, const char *name,
                       enum ggml_type type, int n_dims, const int64_t *ne) {
    struct ggml_tensor *tensor = ggml_new_tensor(tensors, type, n_dims, ne);
    ggml_set_name(tensor, name);
    gguf_add_tensor(model, tensor);
}

/* One of each kind of value. */
static void set_keys(struct gguf_context *model) {
    static const int32_t PER_LAYER[3] = {4, -5, 6};
    static const bool FLAGS[3] = {true, false, true};
    static const double WIDE[2] = {0.5, -2.25};
    const char *names[3] = {"one", "", "three"};
    gguf_set_val_str(model, "general.architecture", "llama");
    gguf_set_val_u8(model, "a.u8", 200);
    gguf_set_val_i8(model, "a.i8", -100);
    gguf_set_val_u16(model, "a.u16", 60000);
    gguf_set_val_i16(model, "a.i16", -30000);
    gguf_set_val_u32(model, "a.u32", 4000000000u);
    gguf_set_val_i32(model, "a.i32", -2000000000);
    gguf_set_val_f32(model, "a.f32", 1e-5f);
    gguf_set_val_bool(model, "a.bool", true);
    gguf_set_val_u64(model, "a.u64", UINT64_MAX);
    gguf_set_val_i64(model, "a.i64", INT64_MIN);
    gguf_set_val_f64(model, "a.f64", 1e-300);
    gguf_set_val_str(model, "a.empty", "");
    gguf_set_arr_data(model, "a.per_layer", GGUF_TYPE_INT32, PER_LAYER, 3);
    gguf_set_arr_data(model, "a.flags", GGUF_TYPE_BOOL, FLAGS, 3);
    gguf_set_arr_data(model, "a.wide", GGUF_TYPE_FLOAT64, WIDE, 2);
    gguf_set_arr_data(model, "a.none", GGUF_TYPE_UINT16, NULL, 0);
    gguf_set_arr_str(model, "a.names", names, 3);
    gguf_set_arr_str(model, "a.no_names", names, 0);
    gguf_set_val_u32(model, "tokenizer.ggml.token_type_count", 2);
    gguf_set_val_str(model, "tokenizer.chat_template", "{{ messages }}");
}

enum { N_TOKENS = 1000 };

static void set_vocabulary(struct gguf_context *model) {
    static const float SCORES[N_TOKENS];
    const char *tokens[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = "a token whose text is longer than most";
    }
    gguf_set_arr_str(model, "tokenizer.ggml.tokens", tokens, N_TOKENS);
    gguf_set_arr_str(model, "tokenizer.ggml.merges", tokens, N_TOKENS);
    gguf_set_arr_data(model, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, SCORES, N_TOKENS);
}

static struct gguf_context *new_model(void) {
    struct gguf_context *model = gguf_init_empty();
    struct ggml_context *tensors = new_tensors(4);
    set_keys(model);
    set_vocabulary(model);
    add_tensor(model, tensors, "token_embd.weight", GGML_TYPE_Q4_K, 2, (int64_t[]){256, N_TOKENS});
    add_tensor(model, tensors, "blk.0.odd.bias", GGML_TYPE_F32, 1, (int64_t[]){7});
    add_tensor(model, tensors, "blk.0.experts", GGML_TYPE_F16, 3, (int64_t[]){64, 32, 4});
    add_tensor(model, tensors, "a_first_by_name", GGML_TYPE_BF16, 4, (int64_t[]){3, 2, 1, 2});
    ggml_free(tensors);
    return model;
}

/* ---- the same ---- */

static const void *value_at(const struct gguf_context *gguf, int64_t id) {
    return gguf_get_kv_type(gguf, id) == GGUF_TYPE_ARRAY ? gguf_get_arr_data(gguf, id)
                                                         : gguf_get_val_data(gguf, id);
}

static size_t size_of(enum gguf_type type) {
    switch (type) {
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return 8;
    default:
        return 1;
    }
}

static void check_same_array(const struct gguf_context *actual, int64_t id,
                             const struct gguf_context *expected, int64_t expected_id) {
    const enum gguf_type type = gguf_get_arr_type(expected, expected_id);
    const size_t count = gguf_get_arr_n(expected, expected_id);
    CHECK_EQUAL(gguf_get_arr_type(actual, id), type);
    CHECK_EQUAL(gguf_get_arr_n(actual, id), count);
    for (size_t i = 0; type == GGUF_TYPE_STRING && i < count; i++) {
        CHECK(strcmp(gguf_get_arr_str(actual, id, i), gguf_get_arr_str(expected, expected_id, i)) ==
              0);
    }
    if (type != GGUF_TYPE_STRING && count > 0) {
        CHECK(memcmp(value_at(actual, id), value_at(expected, expected_id),
                     count * size_of(type)) == 0);
    }
}

static void check_same_key(const struct gguf_context *actual, const struct gguf_context *expected,
                           int64_t expected_id) {
    const int64_t id = gguf_find_key(actual, gguf_get_key(expected, expected_id));
    const enum gguf_type type = gguf_get_kv_type(expected, expected_id);
    CHECK(id >= 0);
    CHECK_EQUAL(gguf_get_kv_type(actual, id), type);
    if (type == GGUF_TYPE_ARRAY) {
        check_same_array(actual, id, expected, expected_id);
    } else if (type == GGUF_TYPE_STRING) {
        CHECK(strcmp(gguf_get_val_str(actual, id), gguf_get_val_str(expected, expected_id)) == 0);
    } else {
        CHECK(memcmp(value_at(actual, id), value_at(expected, expected_id), size_of(type)) == 0);
    }
}

static void check_same_tensors(const struct gguf_context *actual,
                               const struct gguf_context *expected) {
    CHECK_EQUAL(gguf_get_n_tensors(actual), gguf_get_n_tensors(expected));
    for (int64_t id = 0; id < gguf_get_n_tensors(expected); id++) {
        CHECK(strcmp(gguf_get_tensor_name(actual, id), gguf_get_tensor_name(expected, id)) == 0);
        CHECK_EQUAL(gguf_get_tensor_type(actual, id), gguf_get_tensor_type(expected, id));
        CHECK(memcmp(gguf_get_tensor_ne(actual, id), gguf_get_tensor_ne(expected, id),
                     GGML_MAX_DIMS * sizeof(int64_t)) == 0);
    }
}

/* ---- tests ---- */

/* As a model's file is read: the same gguf, without the data. */
static struct gguf_context *read_outline(const struct gguf_context *model, struct stat *status) {
    FILE *file = outline_open(model);
    CHECK(file != NULL);
    CHECK_EQUAL(fstat(fileno(file), status), 0);
    struct gguf_context *outline =
        gguf_init_from_file_ptr(file, (struct gguf_init_params){.no_alloc = true});
    CHECK(outline != NULL);
    fclose(file);
    return outline;
}

static void test_all_is_kept_but_the_lists_of_the_vocabulary(void) {
    enum { N_LISTS = 3 };
    struct stat status;
    struct gguf_context *model = new_model();
    struct gguf_context *outline = read_outline(model, &status);
    int n_same = 0;
    for (int64_t id = 0; id < gguf_get_n_kv(model); id++) {
        const char *key = gguf_get_key(model, id);
        const bool is_list = gguf_get_kv_type(model, id) == GGUF_TYPE_ARRAY;
        if (is_list && strncmp(key, "tokenizer.", strlen("tokenizer.")) == 0) {
            CHECK_EQUAL(gguf_find_key(outline, key), -1);
        } else {
            check_same_key(outline, model, id);
            n_same++;
        }
    }
    CHECK_EQUAL(n_same, gguf_get_n_kv(model) - N_LISTS);
    CHECK_EQUAL(gguf_get_n_kv(outline), n_same);
    check_same_tensors(outline, model);
    gguf_free(outline);
    gguf_free(model);
}

/* The library refuses a tensor that ends behind the end of its file. */
static void test_data_are_a_hole(void) {
    struct stat status;
    struct gguf_context *model = new_model();
    struct gguf_context *outline = read_outline(model, &status);
    const size_t begin = gguf_get_data_offset(outline);
    for (int64_t id = 0; id < gguf_get_n_tensors(outline); id++) {
        CHECK(begin + gguf_get_tensor_offset(outline, id) + gguf_get_tensor_size(outline, id) <=
              (size_t)status.st_size);
    }
    CHECK((size_t)status.st_size > begin + (size_t)N_TOKENS * 144); /* of Q4_K */
#ifdef __linux__
    CHECK((size_t)status.st_blocks * 512 < begin + 8192);
#endif
    gguf_free(outline);
    gguf_free(model);
}

/* Its own tensors lie elsewhere, so it does not say what the model's file says. */
static void test_alignment_is_the_outlines_own(void) {
    struct stat status;
    struct gguf_context *model = new_model();
    gguf_set_val_u32(model, "general.alignment", 4096);
    struct gguf_context *outline = read_outline(model, &status);
    CHECK_EQUAL(gguf_get_alignment(outline), GGUF_DEFAULT_ALIGNMENT);
    CHECK_EQUAL(gguf_find_key(outline, "general.alignment"), -1);
    check_same_tensors(outline, model);
    gguf_free(outline);
    gguf_free(model);
}

static void test_a_model_without_tensors(void) {
    struct stat status;
    struct gguf_context *model = gguf_init_empty();
    gguf_set_val_str(model, "general.architecture", "llama");
    struct gguf_context *outline = read_outline(model, &status);
    CHECK_EQUAL(gguf_get_n_tensors(outline), 0);
    CHECK_EQUAL(gguf_get_n_kv(outline), 1);
    gguf_free(outline);
    gguf_free(model);
}

/* gguf's reader takes keys that its writer would end the process over: of those that are the same
 * up to a zero byte the library sees the first. */
static void test_first_of_keys_with_a_zero_byte_counts(void) {
    static const char BYTES[] = "GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0"
                                "\x01\0\0\0\0\0\0\0k\x07\0\0\0\0"      /* false */
                                "\x03\0\0\0\0\0\0\0k\0k\x07\0\0\0\x01" /* true */
                                "\x11\0\0\0\0\0\0\0general.alignment\x04\0\0\0\x40\0\0\0" /* 64 */
                                "\x12\0\0\0\0\0\0\0general.alignment\0\x07\0\0\0\x01";    /* true */
    struct stat status;
    struct gguf_context *model = gguf_init_from_buffer(BYTES, sizeof(BYTES) - 1,
                                                       (struct gguf_init_params){.no_alloc = true});
    CHECK(model != NULL);
    CHECK_EQUAL(gguf_get_n_kv(model), 4);
    struct gguf_context *outline = read_outline(model, &status);
    CHECK_EQUAL(gguf_get_n_kv(outline), 1);
    CHECK(!gguf_get_val_bool(outline, gguf_find_key(outline, "k")));
    gguf_free(outline);
    gguf_free(model);
}

static void test_one_of_several_files_has_none(void) {
    struct gguf_context *model = new_model();
    gguf_set_val_u16(model, "split.count", 3);
    CHECK(outline_open(model) == NULL);
    gguf_free(model);
}

static void test_a_model_with_an_empty_tensor_has_none(void) {
    struct gguf_context *model = new_model();
    struct ggml_context *tensors = new_tensors(1);
    add_tensor(model, tensors, "blk.0.empty", GGML_TYPE_F32, 2, (int64_t[]){8, 0});
    CHECK(outline_open(model) == NULL);
    ggml_free(tensors);
    gguf_free(model);
}

static void test_more_tensors_than_any_model_has_have_none(void) {
    enum { N_TENSORS = 5000 };
    struct gguf_context *model = gguf_init_empty();
    struct ggml_context *tensors = new_tensors(N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "blk.%d.weight", i);
        add_tensor(model, tensors, name, GGML_TYPE_F32, 1, (int64_t[]){1});
    }
    CHECK(outline_open(model) == NULL);
    ggml_free(tensors);
    gguf_free(model);
}

/* In a child, whose limit cannot disturb the other tests: it would die of SIGXFSZ. */
static void test_a_file_that_is_not_allowed_is_not_made(void) {
    struct gguf_context *model = new_model();
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit small = {.rlim_cur = 16384, .rlim_max = 16384};
        _exit(setrlimit(RLIMIT_FSIZE, &small) == 0 && outline_open(model) == NULL ? 0 : 1);
    }
    int status = 0;
    CHECK(child > 0);
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    gguf_free(model);
}

int main(void) {
    test_all_is_kept_but_the_lists_of_the_vocabulary();
    test_data_are_a_hole();
    test_alignment_is_the_outlines_own();
    test_a_model_without_tensors();
    test_first_of_keys_with_a_zero_byte_counts();
    test_one_of_several_files_has_none();
    test_a_model_with_an_empty_tensor_has_none();
    test_more_tensors_than_any_model_has_have_none();
    test_a_file_that_is_not_allowed_is_not_made();
    return 0;
}
