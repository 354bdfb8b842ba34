#include "desc.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "same_desc.h"

#define TOP "9223372036854775807"  /* 2^63 - 1 */
#define HALF "4611686018427387904" /* 2^62 */

static convjit_desc read_line(const char *line) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return desc;
}

static cj_problem make(const char *line) {
    const convjit_desc desc = read_line(line);
    cj_problem problem;
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s: %s", line, convjit_last_error());
    return problem;
}

static void expect_refused(const convjit_desc *desc, convjit_status status, const char *text) {
    cj_problem problem;
    cr_expect_eq(cj_problem_make(desc, &problem), status, "%s not refused as %s", text, convjit_status_name(status));
    cr_expect_str_eq(convjit_last_error(), text);
}

/* ----------------------------------------------------------------------------------------------------- refusals */

/* Every text about a shape, with the value and the rule. */
static const struct {
    const char *line, *text;
} refused[] = {
    {"conv2d c0 k1 f1", "in_channels 0 is less than 1"},
    {"conv2d c-4 k1 f1", "in_channels -4 is less than 1"},
    {"conv2d c1 k0 f1", "out_channels 0 is less than 1"},
    {"conv2d c1 k1 g0 f1", "groups 0 is less than 1"},
    {"conv2d c1 k1 g-1 f1", "groups -1 is less than 1"},
    {"conv2d c1 k1 f1 hint=-1", "batch_hint -1 is less than 0"},
    {"conv2d c30 k8 g4 f1", "in_channels 30 is not a multiple of groups 4"},
    {"conv2d c8 k30 g4 f1", "out_channels 30 is not a multiple of groups 4"},
    {"conv2d c1 k1 in5x-1 f1", "in_size[1] -1 is less than 0"},
    {"conv2d c1 k1 in5x0 f1", "in_size[1] 0 and in_size[0] 5 are mixed, either all sizes or none are 0"},
    {"conv3d c1 k1 in0x0x7 f1", "in_size[2] 7 and in_size[0] 0 are mixed, either all sizes or none are 0"},
    {"conv2d c1 k1 f1x0", "kernel[1] 0 is less than 1"},
    {"conv3d c1 k1 f1x1x-3", "kernel[2] -3 is less than 1"},
    {"conv2d c1 k1 f1 s0", "stride[0] 0 is less than 1"},
    {"conv2d c1 k1 f1 d1x0", "dilation[1] 0 is less than 1"},
    {"conv2d c1 k1 f1 p-1", "pad_begin[0] -1 is less than 0"},
    {"conv2d c1 k1 f1 p1:1x-2", "pad_end[1] -2 is less than 0"},
    {"conv2d c1 k1 f1 op0x1", "output_padding[1] 1 is not 0, as a convolution's must be"},
    {"convt2d c1 k1 f1 op-1", "output_padding[0] -1 is less than 0"},
    {"convt2d c1 k1 f2 s2 d3 op3", "output_padding[0] 3 is not less than the larger of stride 2 and dilation 3"},
    {"convt1d c1 k1 f1 op1", "output_padding[0] 1 is not less than the larger of stride 1 and dilation 1"},
    {"conv2d c1 k1 f1 alpha=nan", "alpha nan is not a number"},
    {"conv2d c1 k1 f1 beta=nan", "beta nan is not a number"},
    {"conv2d c1 k1 f1 leaky_relu=nan", "activation_a nan is not a number"},
    {"conv2d c1 k1 f1 clamp=nan:1", "activation_a nan is not a number"},
    {"conv2d c1 k1 f1 clamp=0:nan", "activation_b nan is not a number"},
    {"conv2d c1 k1 f1 clamp=6:0.5", "activation_a 6 is more than activation_b 0.5, a clamp's upper bound"},
    {"conv2d c1 k1 in4x9 f3x5 p0x1 d2",
     "kernel[0] 3 with dilation 2 spans 5, more than the padded input 4 (in_size 4 + padding 0)"},
    {"conv1d c1 k1 in4 f7 p1",
     "kernel[0] 7 with dilation 1 spans 7, more than the padded input 6 (in_size 4 + padding 2)"},
    {"conv1d c1 k1 in8 f3 d2147483647",
     "kernel[0] 3 with dilation 2147483647 spans 4294967295, more than the padded input 8 (in_size 8 + padding 0)"},
    {"convt2d c1 k1 in2 f2 p2:0x3",
     "pad_begin[1] 2 + pad_end[1] 3 is more than the 3 outputs there are to take it from"},
    {"conv1d c1 k1 f3 d" HALF, "dilation[0] " HALF " * (kernel[0] 3 - 1) + 1 is more than 2^63 - 1"},
    {"conv1d c1 k1 f2 d" TOP, "dilation[0] " TOP " * (kernel[0] 2 - 1) + 1 is more than 2^63 - 1"},
    {"conv2d c1 k1 f1 p0x" TOP ":0x1", "pad_begin[1] " TOP " + pad_end[1] 1 is more than 2^63 - 1"},
    {"conv1d c1 k1 in" HALF " f1 p" HALF ":0", "in_size[0] " HALF " + padding " HALF " is more than 2^63 - 1"},
    {"convt1d c1 k1 in3 f1 s" HALF,
     "(in_size[0] 3 - 1) * stride " HALF " + window 1 + output_padding 0 is more than 2^63 - 1"},
    {"convt1d c1 k1 in3 f1 s4611686018427387903 op4611686018427387902",
     "(in_size[0] 3 - 1) * stride 4611686018427387903 + window 1 + output_padding 4611686018427387902 is more than "
     "2^63 - 1"},
    {"conv2d c4 k1 in1073741824x1073741824 f1",
     "x of 4 channels and size 1x1073741824x1073741824 takes more than 2^63 - 1 bytes"},
    {"conv2d c1 k4 in1073741824x1073741824 f1",
     "y of 4 channels and size 1x1073741824x1073741824 takes more than 2^63 - 1 bytes"},
    {"conv1d c4294967296 k4294967296 f1",
     "w of out_channels 4294967296 * in_channels / groups 4294967296 and kernel 1x1x1 takes more than 2^63 - 1 bytes"},
    {"conv3d c1 k1 f4194304x4194304x4194304",
     "w of out_channels 1 * in_channels / groups 1 and kernel 4194304x4194304x4194304 takes more than 2^63 - 1 bytes"},
};

Test(desc, every_refusal_names_value_and_rule) {
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        const convjit_desc desc = read_line(refused[i].line);
        expect_refused(&desc, CONVJIT_INVALID_LAYER, refused[i].text);
    }
}

Test(desc, a_refused_descriptor_leaves_the_problem_alone) {
    const convjit_desc desc = read_line("conv2d c1 k1 in2 f3");
    cj_problem problem = {.group_in = 77};
    cr_expect_eq(cj_problem_make(&desc, &problem), CONVJIT_INVALID_LAYER);
    cr_expect_eq(problem.group_in, 77);
}

Test(desc, null_and_other_struct_sizes_are_refused) {
    char text[128];
    expect_refused(NULL, CONVJIT_INVALID_ARGUMENT, "desc is NULL");
    const size_t sizes[] = {0, sizeof(convjit_desc) - 8, sizeof(convjit_desc) + 8, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        convjit_desc desc = read_line("conv2d c1 k1 f1");
        desc.struct_size = sizes[i];
        snprintf(text, sizeof text, "struct_size %zu of convjit_desc is not %zu, start from CONVJIT_DESC_INIT",
                 sizes[i], sizeof desc);
        expect_refused(&desc, CONVJIT_INVALID_ARGUMENT, text);
    }
}

Test(desc, a_zeroed_struct_is_refused) {
    const convjit_desc desc = {.struct_size = sizeof desc};
    expect_refused(&desc, CONVJIT_INVALID_LAYER, "rank 0 is not one of 1 to 3");
}

Test(desc, ranks_other_than_1_to_3_are_refused) {
    const int32_t ranks[] = {0, -1, 4, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; ++i) {
        convjit_desc desc = read_line("conv2d c1 k1 f1");
        desc.rank = ranks[i];
        char text[64];
        snprintf(text, sizeof text, "rank %d is not one of 1 to 3", ranks[i]);
        expect_refused(&desc, CONVJIT_INVALID_LAYER, text);
    }
}

static void expect_enum_refused(const convjit_desc *desc, const char *name, int value, int last) {
    char text[64];
    snprintf(text, sizeof text, "%s %d is not one of 0 to %d", name, value, last);
    expect_refused(desc, CONVJIT_INVALID_LAYER, text);
}

Test(desc, numbers_that_are_no_enumerator_are_refused) {
#define EXPECT_REFUSED(field, type, last)                      \
    for (int i = 0; i < 3; ++i) {                              \
        const int value = (int[]){-1, (last) + 1, INT_MAX}[i]; \
        convjit_desc desc = read_line("conv2d c1 k1 f1");      \
        desc.field = (type)value;                              \
        expect_enum_refused(&desc, #field, value, last);       \
    }
    EXPECT_REFUSED(operation, convjit_operation, 1)
    EXPECT_REFUSED(data_type, convjit_type, 2)
    EXPECT_REFUSED(weight_type, convjit_type, 2)
    EXPECT_REFUSED(bias_type, convjit_type, 2)
    EXPECT_REFUSED(layout, convjit_layout, 1)
    EXPECT_REFUSED(weight_layout, convjit_layout, 1)
    EXPECT_REFUSED(math, convjit_math, 2)
    EXPECT_REFUSED(activation, convjit_activation, 8)
#undef EXPECT_REFUSED
}

/* float32 data takes weights of any type, 16-bit data those of its own; bias and math are free. */
Test(desc, types_that_go_together) {
    static const char *const names[] = {"f32", "f16", "bf16"};
    for (int data = 0; data < 3; ++data) {
        for (int weights = 0; weights < 3; ++weights) {
            for (int free = 0; free < 9; ++free) {
                convjit_desc desc = read_line("conv2d c1 k1 f1");
                desc.data_type = (convjit_type)data;
                desc.weight_type = (convjit_type)weights;
                desc.bias_type = (convjit_type)(free / 3);
                desc.math = (convjit_math)(free % 3);
                cj_problem problem;
                if (data == CONVJIT_F32 || data == weights) {
                    cr_expect_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
                    continue;
                }
                char text[96];
                snprintf(text, sizeof text, "weight_type %s does not go with data_type %s, which takes %s only",
                         names[weights], names[data], names[data]);
                expect_refused(&desc, CONVJIT_UNSUPPORTED, text);
            }
        }
    }
}

Test(desc, infinite_parameters_are_legal) {
    make("conv2d c1 k1 f1 clamp=-inf:inf");
    make("conv2d c1 k1 f1 clamp=1:1 alpha=inf beta=-inf");
    make("conv2d c1 k1 f1 leaky_relu=inf");
}

/* -------------------------------------------------------------------------------------------------- ignored fields */

Test(desc, fields_that_mean_nothing_are_ignored) {
    convjit_desc desc = read_line("conv1d c3 k4 in9 f3 relu");
    const cj_problem plain = make("conv1d c3 k4 in9 f3 relu");
    for (int axis = 1; axis < 3; ++axis) {
        desc.in_size[axis] = axis == 1 ? INT64_MIN : 0;
        desc.kernel[axis] = desc.stride[axis] = desc.dilation[axis] = INT64_MIN;
        desc.pad_begin[axis] = desc.pad_end[axis] = desc.output_padding[axis] = INT64_MAX;
    }
    desc.activation_a = desc.activation_b = NAN;
    cj_problem problem;
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect(same_desc(&problem.desc, &plain.desc));
    cr_expect_eq(problem.desc.kernel[2], 1, "ignored entries hold their defaults");
    cr_expect_eq(problem.desc.activation_a, 0.0F, "and so do ignored parameters");
    cr_expect_eq(problem.desc.activation_b, 0.0F);
    cr_expect_arr_eq(problem.in_size, plain.in_size, sizeof plain.in_size);
    cr_expect_arr_eq(problem.kernel, plain.kernel, sizeof plain.kernel);
    cr_expect_arr_eq(problem.out_size, plain.out_size, sizeof plain.out_size);
}

Test(desc, one_tap_has_no_dilation) {
    const cj_problem problem = make("conv2d c1 k1 in9 f1x3 d4");
    cr_expect_arr_eq(problem.dilation, ((int64_t[]){1, 1, 4}), 3 * sizeof(int64_t));
}

/* --------------------------------------------------------------------------------------------------------- sizes */

Test(desc, axes_of_lower_ranks_are_the_last_ones) {
    const cj_problem p = make("convt2d c6 k4 g2 in5x7 f3x2 s2x3 p1x0:0x1 d1x2 op1x2 f16 nhwc");
    cr_expect(p.transposed && p.channels_last && !p.dynamic);
    cr_expect_eq(p.group_in, 3);
    cr_expect_eq(p.group_out, 2);
    const size_t bytes = 3 * sizeof(int64_t);
    cr_expect_arr_eq(p.in_size, ((int64_t[]){1, 5, 7}), bytes);
    cr_expect_arr_eq(p.kernel, ((int64_t[]){1, 3, 2}), bytes);
    cr_expect_arr_eq(p.stride, ((int64_t[]){1, 2, 3}), bytes);
    cr_expect_arr_eq(p.dilation, ((int64_t[]){1, 1, 2}), bytes);
    cr_expect_arr_eq(p.pad_begin, ((int64_t[]){0, 1, 0}), bytes);
    cr_expect_arr_eq(p.pad_end, ((int64_t[]){0, 0, 1}), bytes);
    cr_expect_arr_eq(p.output_padding, ((int64_t[]){0, 1, 2}), bytes);
    cr_expect_arr_eq(p.out_size, ((int64_t[]){1, 11, 22}), bytes);
    cr_expect_eq(cj_problem_weight_count(&p), INT64_C(6) * 2 * 3 * 2);
}

Test(desc, a_dynamic_problem_has_no_sizes) {
    const cj_problem p = make("conv2d c6 k4 g2 f3");
    const size_t bytes = 3 * sizeof(int64_t);
    cr_expect(p.dynamic && !p.transposed && !p.channels_last);
    cr_expect_arr_eq(p.in_size, ((int64_t[]){0, 0, 0}), bytes);
    cr_expect_arr_eq(p.out_size, ((int64_t[]){0, 0, 0}), bytes);
    cr_expect_eq(cj_problem_weight_count(&p), INT64_C(4) * 3 * 9);
}

Test(desc, type_sizes) {
    cr_expect_eq(cj_type_bytes(CONVJIT_F32), 4);
    cr_expect_eq(cj_type_bytes(CONVJIT_F16), 2);
    cr_expect_eq(cj_type_bytes(CONVJIT_BF16), 2);
}

/* Sizes as PyTorch gives them; the first transposed two are bugs that other runtimes had (the wrong size was 95;
 * refused because output_padding >= stride). */
static const struct {
    const char *line;
    int64_t out[3];
} sized[] = {
    {"conv2d c1 k1 in512x512 f5x9", {508, 504}},
    {"conv1d c1 k1 in7 f1 s2", {4}},
    {"conv1d c1 k1 in8 f3 s3 p1", {3}},
    {"conv1d c1 k1 in8 f8", {1}},
    {"conv1d c1 k1 in1 f3 p1", {1}},
    {"conv2d c3 k8 in225x225 f3 s2 p0:1", {112, 112}},
    {"conv3d c1 k1 in4x240x416 f3 p1 d1x2x3", {4, 238, 412}},
    {"conv1d c1 k1 in8 f3 s3 p2147483647", {1431655767}},
    {"conv1d c1 k1 in5 f1 d9223372036854775807", {5}},
    {"conv1d c1 k1 in1 f2 d4611686018427387904 p4611686018427387904:0", {1}},
    {"conv1d c1 k1 in5 f1 s9223372036854775807", {1}},
    {"conv1d c1 k1 in2305843009213693951 f1", {2305843009213693951}},
    {"convt2d c1 k1 in50x50 f3x5 d3x1 p4x2 s2x1", {97, 50}},
    {"convt2d c1 k3 in8x8 f2 s1 p3 d2 op1", {5, 5}},
    {"convt1d c1 k1 in10 f20 s10 p5", {100}},
    {"convt1d c1 k1 in1 f2 p1", {0}},
    {"convt3d c1 k1 in2x3x4 f3 s2x1x3 p1x1x0 op1x0x2", {4, 3, 14}},
    {"convt1d c1 k1 in1 f1 s9223372036854775807 op5", {6}},
};

Test(desc, output_sizes_are_those_of_the_frameworks) {
    for (size_t i = 0; i < sizeof sized / sizeof sized[0]; ++i) {
        const convjit_desc desc = read_line(sized[i].line);
        int64_t out[3] = {-7, -7, -7};
        cr_assert_eq(convjit_output_size(&desc, NULL, out), CONVJIT_SUCCESS, "%s: %s", sized[i].line,
                     convjit_last_error());
        for (int axis = 0; axis < 3; ++axis) {
            const int64_t want = axis < desc.rank ? sized[i].out[axis] : -7; /* entries beyond the rank stay */
            cr_expect_eq(out[axis], want, "%s: size %lld, not %lld", sized[i].line, (long long)out[axis],
                         (long long)want);
        }
        cr_expect_arr_eq(make(sized[i].line).out_size + 3 - desc.rank, out, (size_t)desc.rank * sizeof out[0]);
    }
}

/* Counts windows one by one instead of dividing. */
static int64_t count_windows(int64_t padded, int64_t window, int64_t stride) {
    int64_t count = 0;
    for (int64_t start = 0; start + window <= padded; start += stride) {
        ++count;
    }
    return count;
}

/* The largest output position any input reaches, plus one; then padding off and output padding on. */
static int64_t count_reached(const convjit_desc *d) {
    int64_t last = 0;
    for (int64_t i = 0; i < d->in_size[0]; ++i) {
        for (int64_t tap = 0; tap < d->kernel[0]; ++tap) {
            const int64_t position = i * d->stride[0] + tap * d->dilation[0];
            last = position > last ? position : last;
        }
    }
    return last + 1 - d->pad_begin[0] - d->pad_end[0] + d->output_padding[0];
}

/* The next digit of a number whose digits have different bases. */
static int take(int *rest, int base) {
    const int digit = *rest % base;
    *rest /= base;
    return digit;
}

Test(desc, output_sizes_are_what_counting_gives) {
    int64_t legal = 0, illegal = 0;
    for (int code = 0; code < 2 * 5 * 4 * 3 * 3 * 3 * 3; ++code) {
        convjit_desc d = read_line("conv1d c1 k1 f1");
        int rest = code;
        d.operation = take(&rest, 2) ? CONVJIT_TRANSPOSED : CONVJIT_CONVOLUTION;
        d.in_size[0] = 1 + take(&rest, 5), d.kernel[0] = 1 + take(&rest, 4), d.stride[0] = 1 + take(&rest, 3),
        d.dilation[0] = 1 + take(&rest, 3);
        d.pad_begin[0] = take(&rest, 3), d.pad_end[0] = take(&rest, 3);
        const int64_t window = d.dilation[0] * (d.kernel[0] - 1) + 1;
        const bool transposed = d.operation == CONVJIT_TRANSPOSED;
        d.output_padding[0] = transposed ? (d.stride[0] > d.dilation[0] ? d.stride[0] : d.dilation[0]) - 1 : 0;
        const int64_t want = transposed
                                 ? count_reached(&d)
                                 : count_windows(d.in_size[0] + d.pad_begin[0] + d.pad_end[0], window, d.stride[0]);
        int64_t out = -7;
        if (want < (transposed ? 0 : 1)) {
            cr_expect_eq(convjit_output_size(&d, NULL, &out), CONVJIT_INVALID_LAYER);
            ++illegal;
        } else {
            cr_assert_eq(convjit_output_size(&d, NULL, &out), CONVJIT_SUCCESS, "%s", convjit_last_error());
            cr_expect_eq(out, want);
            ++legal;
        }
    }
    cr_expect_gt(legal, 2000);
    cr_expect_gt(illegal, 100);
}

Test(desc, a_given_input_size_goes_before_the_descriptors) {
    const convjit_desc fixed = read_line("conv2d c1 k1 in9x9 f3"), dynamic = read_line("conv2d c1 k1 f3");
    const int64_t in[2] = {5, 6};
    int64_t out[2];
    cr_expect_eq(convjit_output_size(&fixed, in, out), CONVJIT_SUCCESS);
    cr_expect(out[0] == 3 && out[1] == 4);
    cr_expect_eq(convjit_output_size(&dynamic, in, out), CONVJIT_SUCCESS);
    cr_expect(out[0] == 3 && out[1] == 4);
}

Test(desc, bad_calls_of_output_size_are_refused) {
    const convjit_desc dynamic = read_line("conv2d c4 k1 f3");
    int64_t out[2];
    cr_expect_eq(convjit_output_size(&dynamic, NULL, out), CONVJIT_INVALID_LAYER);
    cr_expect_str_eq(convjit_last_error(), "in_size is given neither by the descriptor nor by the call");
    cr_expect_eq(convjit_output_size(&dynamic, (int64_t[]){5, 5}, NULL), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(convjit_last_error(), "out_size is NULL");
    cr_expect_eq(convjit_output_size(NULL, (int64_t[]){5, 5}, out), CONVJIT_INVALID_ARGUMENT);
    const struct {
        int64_t in[2];
        const char *text;
    } cases[] = {
        {{5, 0}, "in_size[1] 0 is less than 1"},
        {{-5, 5}, "in_size[0] -5 is less than 1"},
        {{5, 2}, "kernel[1] 3 with dilation 1 spans 3, more than the padded input 2 (in_size 2 + padding 0)"},
        {{1LL << 31, 1LL << 30}, "x of 4 channels and size 1x2147483648x1073741824 takes more than 2^63 - 1 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        cr_expect_eq(convjit_output_size(&dynamic, cases[i].in, out), CONVJIT_INVALID_LAYER);
        cr_expect_str_eq(convjit_last_error(), cases[i].text);
    }
}

/* A size of 0 must not hide that the others make strides overflow. */
Test(desc, an_empty_output_still_has_strides_that_fit) {
    const convjit_desc desc = read_line("convt2d c1 k8 in1x1152921504606846976 f2x1 p1x0");
    expect_refused(&desc, CONVJIT_INVALID_LAYER,
                   "y of 8 channels and size 1x0x1152921504606846976 takes more than 2^63 - 1 bytes");
}

Test(desc, the_largest_tensors_that_fit_are_legal) {
    make("conv1d c1 k1 in2305843009213693951 f1");         /* 2^63 - 4 bytes of f32 */
    make("conv1d c1 k1 in4611686018427387903 f1 bf16");    /* 2^63 - 2 bytes of bf16 */
    make("conv1d c2147483647 k1073741824 f1");             /* w just below 2^63 bytes */
    make("conv1d c2147483648 k2147483647 f1 weights=f16"); /* the same with 16-bit weights */
    const convjit_desc x = read_line("conv1d c1 k1 in2305843009213693952 f1");
    expect_refused(&x, CONVJIT_INVALID_LAYER,
                   "x of 1 channels and size 1x1x2305843009213693952 takes more than 2^63 - 1 bytes");
    const convjit_desc w = read_line("conv1d c2147483648 k1073741824 f1");
    expect_refused(&w, CONVJIT_INVALID_LAYER,
                   "w of out_channels 1073741824 * in_channels / groups 2147483648 and kernel 1x1x1 takes more than "
                   "2^63 - 1 bytes");
}
