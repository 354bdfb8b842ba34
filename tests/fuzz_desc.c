/* fuzz_desc.c - libFuzzer: descriptors and layer lines of any bytes.
 *
 * The first byte of an input chooses what the rest is:
 *   0   a convjit_desc, byte for byte (struct_size is set right, else nothing would get past it)
 *   1   numbers for its fields (fuzz_fields in fuzz.h)
 *   2   a layer line
 * A descriptor must be accepted exactly if the rules of convjit.h, written down once more below in wider numbers,
 * accept it, with the same output size; a refusal must say something. A line that is read must come back from its
 * print. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "desc.h"
#include "fuzz.h"
#include "same_desc.h"

/* Sums and products of int64 numbers, exact below 2^100 and held there: more than any limit. */
__extension__ typedef __int128 wide;
#define WIDE_TOP ((wide)1 << 100)
#define INT64_TOP ((wide)INT64_MAX)

static wide times(wide a, wide b) { /* both >= 0 */
    return b != 0 && a > WIDE_TOP / b ? WIDE_TOP : a * b;
}

/* ---------------------------------------------------------------------------------- the rules, once more */

static bool enums_are_legal(const convjit_desc *d) {
    return d->operation <= 1 && d->data_type <= 2 && d->weight_type <= 2 && d->bias_type <= 2 && d->layout <= 1 &&
           d->weight_layout <= 1 && d->math <= 2 && d->activation <= 8;
}

static bool axis_is_legal(const convjit_desc *d, int i) {
    const int64_t spread = d->stride[i] > d->dilation[i] ? d->stride[i] : d->dilation[i];
    const int64_t padding_end = d->operation == CONVJIT_TRANSPOSED ? spread : 1;
    return d->kernel[i] >= 1 && d->stride[i] >= 1 && d->dilation[i] >= 1 && d->pad_begin[i] >= 0 &&
           d->pad_end[i] >= 0 && d->output_padding[i] >= 0 && d->output_padding[i] < padding_end &&
           d->in_size[i] >= 0 && (d->in_size[i] == 0) == (d->in_size[0] == 0);
}

static bool epilogue_is_legal(const convjit_desc *d) {
    const float a = d->activation_a, b = d->activation_b;
    return !isnan(d->alpha) && !isnan(d->beta) && (d->activation != CONVJIT_LEAKY_RELU || !isnan(a)) &&
           (d->activation != CONVJIT_CLAMP || a <= b);
}

/* Output size on one axis, -1 if there is none. */
static wide axis_output(const convjit_desc *d, int i, wide in) {
    const wide padding = (wide)d->pad_begin[i] + d->pad_end[i];
    const wide window = times(d->dilation[i], d->kernel[i] - 1) + 1;
    if (padding > INT64_TOP || window > INT64_TOP) {
        return -1;
    }
    if (d->operation == CONVJIT_CONVOLUTION) {
        const wide padded = in + padding;
        return padded > INT64_TOP || window > padded ? -1 : (padded - window) / d->stride[i] + 1;
    }
    const wide full = times(in - 1, d->stride[i]) + window + d->output_padding[i];
    return full > INT64_TOP || padding > full ? -1 : full - padding;
}

static bool sizes_are_legal(const convjit_desc *d, wide out[3]) {
    const bool dynamic = d->in_size[0] == 0;
    const wide data_bytes = d->data_type == CONVJIT_F32 ? 4 : 2;
    wide w = times(times(d->out_channels, d->in_channels / d->groups), d->weight_type == CONVJIT_F32 ? 4 : 2);
    wide x = times(d->in_channels, data_bytes), y = times(d->out_channels, data_bytes);
    for (int i = 0; i < d->rank; ++i) {
        const wide window = times(d->dilation[i], d->kernel[i] - 1) + 1;
        out[i] = dynamic ? 0 : axis_output(d, i, d->in_size[i]);
        if (out[i] < 0 || window > INT64_TOP || (wide)d->pad_begin[i] + d->pad_end[i] > INT64_TOP) {
            return false;
        }
        w = times(w, d->kernel[i]);
        x = times(x, d->in_size[i] > 0 ? d->in_size[i] : 1);
        y = times(y, out[i] > 0 ? out[i] : 1);
    }
    return w <= INT64_TOP && (dynamic || (x <= INT64_TOP && y <= INT64_TOP));
}

static convjit_status expected_status(const convjit_desc *d, wide out[3]) {
    if (!enums_are_legal(d) || d->rank < 1 || d->rank > 3 || d->in_channels < 1 || d->out_channels < 1 ||
        d->groups < 1 || d->batch_hint < 0 || d->in_channels % d->groups != 0 || d->out_channels % d->groups != 0) {
        return CONVJIT_INVALID_LAYER;
    }
    for (int i = 0; i < d->rank; ++i) {
        if (!axis_is_legal(d, i)) {
            return CONVJIT_INVALID_LAYER;
        }
    }
    if (!epilogue_is_legal(d)) {
        return CONVJIT_INVALID_LAYER;
    }
    if (d->data_type != CONVJIT_F32 && d->weight_type != d->data_type) {
        return CONVJIT_UNSUPPORTED;
    }
    return sizes_are_legal(d, out) ? CONVJIT_SUCCESS : CONVJIT_INVALID_LAYER;
}

/* ------------------------------------------------------------------------------------------------- checks */

static void check_line_of(const convjit_desc *desc, bool readable) {
    char line[CONVJIT_LAYER_LINE_MAX], again[CONVJIT_LAYER_LINE_MAX];
    convjit_desc parsed;
    int64_t batch;
    CHECK(convjit_layer_line_format(desc, 3, line, sizeof line) < sizeof line);
    if (!readable) {
        return; /* it only had to be printed */
    }
    CHECK(convjit_layer_line_parse(line, &parsed, &batch) == CONVJIT_SUCCESS);
    CHECK(batch == 3 && same_desc(desc, &parsed));
    convjit_layer_line_format(&parsed, batch, again, sizeof again);
    CHECK(strcmp(line, again) == 0);
}

static void check_desc(const convjit_desc *desc) {
    wide want[3] = {0, 0, 0};
    const convjit_status expected = expected_status(desc, want);
    cj_problem problem;
    const convjit_status status = cj_problem_make(desc, &problem);
    CHECK(status == expected);
    CHECK(status == CONVJIT_SUCCESS || strlen(convjit_last_error()) > 10);
    check_line_of(desc, status == CONVJIT_SUCCESS);
    int64_t out[3] = {-1, -1, -1};
    const convjit_status size_status = convjit_output_size(desc, NULL, out);
    if (status != CONVJIT_SUCCESS) {
        CHECK(size_status == status);
        return;
    }
    CHECK(problem.dynamic ? size_status == CONVJIT_INVALID_LAYER : size_status == CONVJIT_SUCCESS);
    for (int i = 0; i < desc->rank && !problem.dynamic; ++i) {
        CHECK(out[i] == want[i] && problem.out_size[3 - desc->rank + i] == want[i]);
    }
    CHECK(cj_problem_weight_count(&problem) >= 1);
    const int64_t other[3] = {7, 1, desc->pad_begin[0]};
    convjit_output_size(desc, other, out); /* any answer, no crash */
}

static void fuzz_raw(const uint8_t *data, size_t size) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    memcpy(&desc, data, size < sizeof desc ? size : sizeof desc);
    desc.struct_size = sizeof desc;
    check_desc(&desc);
}

static void fuzz_small(const uint8_t *data, size_t size) {
    fuzz_bytes bytes = {data, size};
    convjit_desc desc = fuzz_fields(&bytes);
    desc.data_type = (convjit_type)(fuzz_next(&bytes) % 3), desc.weight_type = (convjit_type)(fuzz_next(&bytes) % 3);
    desc.activation = (convjit_activation)(fuzz_next(&bytes) % 9);
    desc.activation_a = (float)fuzz_next(&bytes), desc.activation_b = (float)fuzz_next(&bytes);
    check_desc(&desc);
}

static void fuzz_line(const uint8_t *data, size_t size) {
    char *line = malloc(size + 1); /* of exactly this size, so that AddressSanitizer sees a read behind it */
    convjit_desc desc;
    int64_t batch;
    CHECK(line != NULL);
    memcpy(line, data, size);
    line[size] = '\0';
    if (convjit_layer_line_parse(line, &desc, &batch) == CONVJIT_SUCCESS) {
        CHECK(batch >= -1);
        check_line_of(&desc, true);
        check_desc(&desc);
    } else {
        CHECK(strncmp(convjit_last_error(), "layer line: ", 12) == 0);
    }
    free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const kinds[])(const uint8_t *, size_t) = {fuzz_raw, fuzz_small, fuzz_line};
    if (size > 0 && data[0] < 3) {
        kinds[data[0]](data + 1, size - 1);
    }
    return 0;
}
