/* desc.c - checks a descriptor and derives sizes.
 *
 * Everything after this file computes sizes, strides and offsets of one image without looking for overflow, so all of
 * these fit int64 here: every padded size and window, the output size, and the bytes of x, y (batch 1) and w. */
#include "desc.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "status.h"

#define INVALID CONVJIT_INVALID_LAYER

static const char *const type_names[] = {"f32", "f16", "bf16"};

int64_t cj_type_bytes(convjit_type type) {
    return type == CONVJIT_F32 ? 4 : 2;
}

/* ------------------------------------------------------------------------------------------------ single fields */

static convjit_status check_enums(const convjit_desc *desc) {
    const struct {
        const char *name;
        int value, last;
    } enums[] = {
        {"operation", (int)desc->operation, CONVJIT_TRANSPOSED},
        {"data_type", (int)desc->data_type, CONVJIT_BF16},
        {"weight_type", (int)desc->weight_type, CONVJIT_BF16},
        {"bias_type", (int)desc->bias_type, CONVJIT_BF16},
        {"layout", (int)desc->layout, CONVJIT_CHANNELS_LAST},
        {"weight_layout", (int)desc->weight_layout, CONVJIT_CHANNELS_LAST},
        {"math", (int)desc->math, CONVJIT_TF32},
        {"activation", (int)desc->activation, CONVJIT_CLAMP},
    };
    for (size_t i = 0; i < sizeof enums / sizeof enums[0]; ++i) {
        CJ_RETURN_IF(enums[i].value < 0 || enums[i].value > enums[i].last, INVALID, "%s %d is not one of 0 to %d",
                     enums[i].name, enums[i].value, enums[i].last);
    }
    return CONVJIT_SUCCESS;
}

static convjit_status check_channels(const convjit_desc *desc) {
    const int64_t c = desc->in_channels, k = desc->out_channels, groups = desc->groups;
    CJ_RETURN_IF(c < 1, INVALID, "in_channels %" PRId64 " is less than 1", c);
    CJ_RETURN_IF(k < 1, INVALID, "out_channels %" PRId64 " is less than 1", k);
    CJ_RETURN_IF(groups < 1, INVALID, "groups %" PRId64 " is less than 1", groups);
    CJ_RETURN_IF(desc->batch_hint < 0, INVALID, "batch_hint %" PRId64 " is less than 0", desc->batch_hint);
    CJ_RETURN_IF(c % groups != 0, INVALID, "in_channels %" PRId64 " is not a multiple of groups %" PRId64, c, groups);
    CJ_RETURN_IF(k % groups != 0, INVALID, "out_channels %" PRId64 " is not a multiple of groups %" PRId64, k, groups);
    return CONVJIT_SUCCESS;
}

static convjit_status check_output_padding(const convjit_desc *desc, int axis) {
    const int64_t padding = desc->output_padding[axis];
    if (desc->operation == CONVJIT_CONVOLUTION) {
        CJ_RETURN_IF(padding != 0, INVALID, "output_padding[%d] %" PRId64 " is not 0, as a convolution's must be", axis,
                     padding);
        return CONVJIT_SUCCESS;
    }
    const int64_t stride = desc->stride[axis], dilation = desc->dilation[axis];
    CJ_RETURN_IF(padding < 0, INVALID, "output_padding[%d] %" PRId64 " is less than 0", axis, padding);
    CJ_RETURN_IF(padding >= stride && padding >= dilation, INVALID,
                 "output_padding[%d] %" PRId64 " is not less than the larger of stride %" PRId64
                 " and dilation %" PRId64,
                 axis, padding, stride, dilation);
    return CONVJIT_SUCCESS;
}

static convjit_status check_axes(const convjit_desc *desc) {
    const struct {
        const char *name;
        const int64_t *values;
        int64_t least;
    } arrays[] = {
        {"in_size", desc->in_size, 0},   {"kernel", desc->kernel, 1},       {"stride", desc->stride, 1},
        {"dilation", desc->dilation, 1}, {"pad_begin", desc->pad_begin, 0}, {"pad_end", desc->pad_end, 0},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i) {
        for (int axis = 0; axis < desc->rank; ++axis) {
            CJ_RETURN_IF(arrays[i].values[axis] < arrays[i].least, INVALID, "%s[%d] %" PRId64 " is less than %" PRId64,
                         arrays[i].name, axis, arrays[i].values[axis], arrays[i].least);
        }
    }
    for (int axis = 0; axis < desc->rank; ++axis) {
        CJ_TRY(check_output_padding(desc, axis));
        CJ_RETURN_IF((desc->in_size[axis] == 0) != (desc->in_size[0] == 0), INVALID,
                     "in_size[%d] %" PRId64 " and in_size[0] %" PRId64 " are mixed, either all sizes or none are 0",
                     axis, desc->in_size[axis], desc->in_size[0]);
    }
    return CONVJIT_SUCCESS;
}

static convjit_status check_epilogue(const convjit_desc *desc) {
    const float a = desc->activation_a, b = desc->activation_b;
    const bool clamp = desc->activation == CONVJIT_CLAMP;
    CJ_RETURN_IF(isnan(desc->alpha), INVALID, "alpha nan is not a number");
    CJ_RETURN_IF(isnan(desc->beta), INVALID, "beta nan is not a number");
    CJ_RETURN_IF((clamp || desc->activation == CONVJIT_LEAKY_RELU) && isnan(a), INVALID,
                 "activation_a nan is not a number");
    CJ_RETURN_IF(clamp && isnan(b), INVALID, "activation_b nan is not a number");
    CJ_RETURN_IF(clamp && a > b, INVALID, "activation_a %g is more than activation_b %g, a clamp's upper bound",
                 (double)a, (double)b);
    return CONVJIT_SUCCESS;
}

static convjit_status check_types(const convjit_desc *desc) {
    const convjit_type data = desc->data_type, weights = desc->weight_type;
    CJ_RETURN_IF(data != CONVJIT_F32 && weights != data, CONVJIT_UNSUPPORTED,
                 "weight_type %s does not go with data_type %s, which takes %s only", type_names[weights],
                 type_names[data], type_names[data]);
    return CONVJIT_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------- sizes */

/* What is added to the input on one axis, and what one output reads of it. */
typedef struct reach {
    int64_t padding; /* pad_begin + pad_end */
    int64_t window;  /* dilation * (kernel - 1) + 1 */
} reach;

static convjit_status axis_reach(const cj_problem *p, int axis, reach *out) {
    const int user_axis = axis - (CJ_DIMS - p->desc.rank);
    CJ_RETURN_IF(__builtin_add_overflow(p->pad_begin[axis], p->pad_end[axis], &out->padding), INVALID,
                 "pad_begin[%d] %" PRId64 " + pad_end[%d] %" PRId64 " is more than 2^63 - 1", user_axis,
                 p->pad_begin[axis], user_axis, p->pad_end[axis]);
    CJ_RETURN_IF(__builtin_mul_overflow(p->dilation[axis], p->kernel[axis] - 1, &out->window) ||
                     __builtin_add_overflow(out->window, 1, &out->window),
                 INVALID, "dilation[%d] %" PRId64 " * (kernel[%d] %" PRId64 " - 1) + 1 is more than 2^63 - 1",
                 user_axis, p->dilation[axis], user_axis, p->kernel[axis]);
    return CONVJIT_SUCCESS;
}

static convjit_status convolution_size(const cj_problem *p, int axis, int64_t in, int64_t *out) {
    const int user_axis = axis - (CJ_DIMS - p->desc.rank);
    reach r;
    CJ_TRY(axis_reach(p, axis, &r));
    int64_t padded;
    CJ_RETURN_IF(__builtin_add_overflow(in, r.padding, &padded), INVALID,
                 "in_size[%d] %" PRId64 " + padding %" PRId64 " is more than 2^63 - 1", user_axis, in, r.padding);
    CJ_RETURN_IF(r.window > padded, INVALID,
                 "kernel[%d] %" PRId64 " with dilation %" PRId64 " spans %" PRId64
                 ", more than the padded input %" PRId64 " (in_size %" PRId64 " + padding %" PRId64 ")",
                 user_axis, p->kernel[axis], p->dilation[axis], r.window, padded, in, r.padding);
    *out = (padded - r.window) / p->stride[axis] + 1;
    return CONVJIT_SUCCESS;
}

static convjit_status transposed_size(const cj_problem *p, int axis, int64_t in, int64_t *out) {
    const int user_axis = axis - (CJ_DIMS - p->desc.rank);
    reach r;
    CJ_TRY(axis_reach(p, axis, &r));
    int64_t full; /* before the padding is taken away */
    CJ_RETURN_IF(__builtin_mul_overflow(in - 1, p->stride[axis], &full) ||
                     __builtin_add_overflow(full, r.window, &full) ||
                     __builtin_add_overflow(full, p->output_padding[axis], &full),
                 INVALID,
                 "(in_size[%d] %" PRId64 " - 1) * stride %" PRId64 " + window %" PRId64 " + output_padding %" PRId64
                 " is more than 2^63 - 1",
                 user_axis, in, p->stride[axis], r.window, p->output_padding[axis]);
    CJ_RETURN_IF(r.padding > full, INVALID,
                 "pad_begin[%d] %" PRId64 " + pad_end[%d] %" PRId64 " is more than the %" PRId64
                 " outputs there are to take it from",
                 user_axis, p->pad_begin[axis], user_axis, p->pad_end[axis], full);
    *out = full - r.padding;
    return CONVJIT_SUCCESS;
}

/* channels * sizes, in elements, where its bytes fit int64. A size of 0 counts as 1: strides must fit as well. */
static bool count_elements(int64_t channels, const int64_t sizes[CJ_DIMS], convjit_type type, int64_t *count) {
    int64_t bytes;
    *count = channels;
    for (int axis = 0; axis < CJ_DIMS; ++axis) {
        if (__builtin_mul_overflow(*count, sizes[axis] > 0 ? sizes[axis] : 1, count)) {
            return false;
        }
    }
    return !__builtin_mul_overflow(*count, cj_type_bytes(type), &bytes);
}

static convjit_status check_tensor(const cj_problem *p, const char *name, int64_t channels,
                                   const int64_t sizes[CJ_DIMS]) {
    int64_t count;
    CJ_RETURN_IF(!count_elements(channels, sizes, p->desc.data_type, &count), INVALID,
                 "%s of %" PRId64 " channels and size %" PRId64 "x%" PRId64 "x%" PRId64
                 " takes more than 2^63 - 1 bytes",
                 name, channels, sizes[CJ_Z], sizes[CJ_Y], sizes[CJ_X]);
    return CONVJIT_SUCCESS;
}

/* w is [K][C/groups][taps] or [C][K/groups][taps]: the same count. */
static convjit_status check_weights(const cj_problem *p) {
    int64_t rows, count;
    CJ_RETURN_IF(__builtin_mul_overflow(p->desc.out_channels, p->group_in, &rows) ||
                     !count_elements(rows, p->kernel, p->desc.weight_type, &count),
                 INVALID,
                 "w of out_channels %" PRId64 " * in_channels / groups %" PRId64 " and kernel %" PRId64 "x%" PRId64
                 "x%" PRId64 " takes more than 2^63 - 1 bytes",
                 p->desc.out_channels, p->group_in, p->kernel[CJ_Z], p->kernel[CJ_Y], p->kernel[CJ_X]);
    return CONVJIT_SUCCESS;
}

convjit_status cj_problem_output_size(const cj_problem *problem, const int64_t in_size[CJ_DIMS],
                                      int64_t out_size[CJ_DIMS]) {
    for (int axis = 0; axis < CJ_DIMS; ++axis) {
        CJ_RETURN_IF(in_size[axis] < 1, INVALID, "in_size[%d] %" PRId64 " is less than 1",
                     axis - (CJ_DIMS - problem->desc.rank), in_size[axis]);
        CJ_TRY(problem->transposed ? transposed_size(problem, axis, in_size[axis], &out_size[axis])
                                   : convolution_size(problem, axis, in_size[axis], &out_size[axis]));
    }
    CJ_TRY(check_tensor(problem, "x", problem->desc.in_channels, in_size));
    return check_tensor(problem, "y", problem->desc.out_channels, out_size);
}

int64_t cj_problem_weight_count(const cj_problem *problem) {
    return problem->desc.out_channels * problem->group_in * problem->kernel[CJ_Z] * problem->kernel[CJ_Y] *
           problem->kernel[CJ_X];
}

/* --------------------------------------------------------------------------------------------------- the whole */

/* Ignored fields get their defaults, so that descriptors that mean the same layer become the same problem. */
static void clear_ignored(convjit_desc *desc) {
    const convjit_desc defaults = CONVJIT_DESC_INIT;
    for (int axis = desc->rank; axis < CJ_DIMS; ++axis) {
        desc->in_size[axis] = defaults.in_size[axis];
        desc->kernel[axis] = defaults.kernel[axis];
        desc->stride[axis] = defaults.stride[axis];
        desc->dilation[axis] = defaults.dilation[axis];
        desc->pad_begin[axis] = defaults.pad_begin[axis];
        desc->pad_end[axis] = defaults.pad_end[axis];
        desc->output_padding[axis] = defaults.output_padding[axis];
    }
    if (desc->activation != CONVJIT_CLAMP) {
        desc->activation_b = defaults.activation_b;
        if (desc->activation != CONVJIT_LEAKY_RELU) {
            desc->activation_a = defaults.activation_a;
        }
    }
}

/* User axis i of rank r becomes axis 3 - r + i; the leading axes have size 1 and a single tap. */
static void widen(const convjit_desc *desc, cj_problem *p) {
    const int missing = CJ_DIMS - desc->rank;
    for (int axis = 0; axis < CJ_DIMS; ++axis) {
        const int from = axis - missing;
        const bool given = from >= 0;
        p->in_size[axis] = given ? desc->in_size[from] : (p->dynamic ? 0 : 1);
        p->kernel[axis] = given ? desc->kernel[from] : 1;
        p->stride[axis] = given ? desc->stride[from] : 1;
        p->dilation[axis] = p->kernel[axis] > 1 ? desc->dilation[from] : 1; /* one tap has no spacing */
        p->pad_begin[axis] = given ? desc->pad_begin[from] : 0;
        p->pad_end[axis] = given ? desc->pad_end[from] : 0;
        p->output_padding[axis] = given ? desc->output_padding[from] : 0;
        p->out_size[axis] = 0;
    }
}

convjit_status cj_problem_make(const convjit_desc *desc, cj_problem *out) {
    CJ_RETURN_IF(desc == NULL, CONVJIT_INVALID_ARGUMENT, "desc is NULL");
    CJ_RETURN_IF(desc->struct_size != sizeof *desc, CONVJIT_INVALID_ARGUMENT,
                 "struct_size %zu of convjit_desc is not %zu, start from CONVJIT_DESC_INIT", desc->struct_size,
                 sizeof *desc);
    CJ_TRY(check_enums(desc));
    CJ_RETURN_IF(desc->rank < 1 || desc->rank > CJ_DIMS, INVALID, "rank %" PRId32 " is not one of 1 to %d", desc->rank,
                 CJ_DIMS);
    CJ_TRY(check_channels(desc));
    CJ_TRY(check_axes(desc));
    CJ_TRY(check_epilogue(desc));
    CJ_TRY(check_types(desc));
    cj_problem p = {.desc = *desc,
                    .transposed = desc->operation == CONVJIT_TRANSPOSED,
                    .channels_last = desc->layout == CONVJIT_CHANNELS_LAST,
                    .dynamic = desc->in_size[0] == 0,
                    .group_in = desc->in_channels / desc->groups,
                    .group_out = desc->out_channels / desc->groups};
    clear_ignored(&p.desc);
    widen(desc, &p);
    CJ_TRY(check_weights(&p));
    for (int axis = 0; axis < CJ_DIMS; ++axis) { /* also where no size is known yet */
        reach r;
        CJ_TRY(axis_reach(&p, axis, &r));
    }
    if (!p.dynamic) {
        CJ_TRY(cj_problem_output_size(&p, p.in_size, p.out_size));
    }
    *out = p;
    return CONVJIT_SUCCESS;
}

convjit_status convjit_output_size(const convjit_desc *desc, const int64_t *in_size, int64_t *out_size) {
    cj_problem p;
    CJ_RETURN_IF(out_size == NULL, CONVJIT_INVALID_ARGUMENT, "out_size is NULL");
    CJ_TRY(cj_problem_make(desc, &p));
    const int missing = CJ_DIMS - desc->rank;
    int64_t in[CJ_DIMS] = {1, 1, 1}, out[CJ_DIMS];
    CJ_RETURN_IF(in_size == NULL && p.dynamic, INVALID, "in_size is given neither by the descriptor nor by the call");
    for (int axis = 0; axis < desc->rank; ++axis) {
        in[missing + axis] = in_size != NULL ? in_size[axis] : desc->in_size[axis];
    }
    CJ_TRY(cj_problem_output_size(&p, in, out));
    for (int axis = 0; axis < desc->rank; ++axis) {
        out_size[axis] = out[missing + axis];
    }
    return CONVJIT_SUCCESS;
}
