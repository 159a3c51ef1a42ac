#include "repack.h"

#include <ggml-backend.h>
#include <stddef.h>

/* NULL-terminated, or NULL. */
static ggml_backend_buffer_type_t *extra_layouts(ggml_backend_dev_t cpu) {
    const ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
    return get != NULL ? get(cpu) : NULL;
}

/* Asks as llama.cpp's loader does: would the backend multiply with a matrix that lies in `layout`?
 */
static bool multiplies_from(ggml_backend_dev_t cpu, ggml_backend_buffer_type_t layout,
                            struct ggml_tensor *matrix, const struct ggml_tensor *product) {
    matrix->buffer = ggml_backend_buft_alloc_buffer(layout, 0);
    const bool does = matrix->buffer != NULL && ggml_backend_dev_supports_op(cpu, product);
    ggml_backend_buffer_free(matrix->buffer);
    return does;
}

bool repack_takes(enum ggml_type type, int64_t columns, int64_t rows) {
    const struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(),
                                            .no_alloc = true};
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_buffer_type_t *layout = extra_layouts(cpu);
    struct ggml_context *context = ggml_init(params);
    if (context == NULL) {
        return false;
    }
    struct ggml_tensor *matrix = ggml_new_tensor_2d(context, type, columns, rows);
    struct ggml_tensor *batch = ggml_new_tensor_2d(context, GGML_TYPE_F32, columns, 512);
    struct ggml_tensor *product = ggml_mul_mat(context, matrix, batch);
    bool takes = false;
    for (; !takes && layout != NULL && *layout != NULL; layout++) {
        takes = multiplies_from(cpu, *layout, matrix, product);
    }
    ggml_free(context);
    return takes;
}
