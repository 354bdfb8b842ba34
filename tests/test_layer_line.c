#include <criterion/criterion.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "convjit.h"
#include "same_desc.h"

/* Formats into `text` and checks the length that is returned. */
static const char *format(const convjit_desc *desc, int64_t batch, char text[CONVJIT_LAYER_LINE_MAX]) {
    const size_t length = convjit_layer_line_format(desc, batch, text, CONVJIT_LAYER_LINE_MAX);
    cr_assert_lt(length, CONVJIT_LAYER_LINE_MAX);
    cr_assert_eq(strlen(text), length);
    return text;
}

static void expect_round_trip(const convjit_desc *desc, int64_t batch) {
    char line[CONVJIT_LAYER_LINE_MAX], again[CONVJIT_LAYER_LINE_MAX];
    convjit_desc parsed;
    int64_t parsed_batch;
    format(desc, batch, line);
    cr_assert_eq(convjit_layer_line_parse(line, &parsed, &parsed_batch), CONVJIT_SUCCESS, "%s: %s", line,
                 convjit_last_error());
    cr_expect_eq(parsed_batch, batch);
    cr_expect(same_desc(desc, &parsed), "another layer came back from %s", line);
    cr_expect_str_eq(format(&parsed, parsed_batch, again), line);
}

/* ------------------------------------------------------------------------------------------------------ printing */

static const char *const canonical[] = {
    "conv2d n8 c32 k64 in512x512 f5x9 s1 p0 f32 nchw fp32",
    "conv1d c1 k1 f1 s1 p0 f32 nchw fp32",
    "conv2d n3 c1 k1 in5x7 hint=1 f1x1 s1 p0 f32 nchw fp32",
    "conv1d n0 c80 k512 in1000 f7 s1 p3 f32 nchw tf32 leaky_relu=0.1",
    "conv1d c1 k258 in576 filter=16 s8 p0 f16 nchw fp32",
    "conv1d c1 k258 filter=32 s16 p0:1 bf16 nhwc fp32",
    "conv2d c1 k1 f16x16 s16 p0 f16 nchw fp32",
    "conv2d c3 k24 in224x224 f3x3 s2 p0:1 f32 nhwc krsc fp32 relu",
    "conv3d c4 k8 g2 in8x56x57 f1x3x3 s1x2x2 p0x1x1:0x1x2 d1x2x2 f32 weights=bf16 bias=f16 nchw fp32_block silu",
    "convt1d c512 k256 in100 f8 s4 p2 f32 nchw fp32 tanh",
    "convt2d c24 k1 f2x2 s2x1 p0 op1x0 f16 bias=bf16 nhwc fp32 sigmoid",
    "convt3d c2 k2 f2x2x2 s2 p1 d3 op1 bf16 nchw fp32 hardswish",
    "conv2d c1 k1 f1x1 s1 p0 f32 nchw fp32 gelu",
    "conv2d c1 k1 f1x1 s1 p0 f32 nchw fp32 clamp=0:6 alpha=0.5 beta=1",
    "conv2d c1 k1 f1x1 s1 p0 f32 nchw fp32 clamp=-inf:1e-30 alpha=-1.1754944e-38 beta=0.33333334",
    "conv2d c1 k1 f1x1 s1 p0 f16 weights=f32 nchw fp32",
};

Test(layer_line, canonical_lines_print_as_they_were_read) {
    for (size_t i = 0; i < sizeof canonical / sizeof canonical[0]; ++i) {
        convjit_desc desc;
        int64_t batch;
        char line[CONVJIT_LAYER_LINE_MAX];
        cr_assert_eq(convjit_layer_line_parse(canonical[i], &desc, &batch), CONVJIT_SUCCESS, "%s",
                     convjit_last_error());
        cr_expect_str_eq(format(&desc, batch, line), canonical[i]);
    }
}

Test(layer_line, format_writes_what_fits_and_returns_the_whole_length) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(canonical[7], &desc, NULL), CONVJIT_SUCCESS);
    const size_t length = strlen(canonical[7]);
    cr_expect_eq(convjit_layer_line_format(&desc, -1, NULL, 0), length);
    for (size_t size = 0; size <= length + 1; ++size) {
        char text[CONVJIT_LAYER_LINE_MAX];
        memset(text, '#', sizeof text);
        cr_expect_eq(convjit_layer_line_format(&desc, -1, text, size), length);
        if (size > 0) {
            cr_expect_eq(strlen(text), size - 1);
            cr_expect_eq(strncmp(text, canonical[7], size - 1), 0);
        }
        cr_expect_eq(text[size], '#', "wrote behind %zu bytes", size);
    }
}

Test(layer_line, a_wrong_descriptor_still_prints) {
    char line[CONVJIT_LAYER_LINE_MAX];
    convjit_desc desc = CONVJIT_DESC_INIT;
    cr_expect_str_eq(format(NULL, 1, line), "no convjit_desc");
    desc.struct_size = 8;
    cr_expect_str_eq(format(&desc, 1, line), "no convjit_desc");
    desc = (convjit_desc)CONVJIT_DESC_INIT;
    desc.rank = 4, desc.kernel[2] = 2, desc.in_channels = -3;
    cr_expect_str_eq(format(&desc, 1, line), "conv4d n1 c-3 k0 f1x1x2 s1 p0 f32 nchw fp32");
    desc.rank = INT32_MIN, desc.data_type = (convjit_type)77, desc.activation = (convjit_activation)-2;
    cr_expect_str_eq(format(&desc, -9, line), "conv-2147483648d c-3 k0 f s p ?77 weights=f32 nchw fp32 ?-2");
}

Test(layer_line, the_longest_line_fits) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    int64_t *const arrays[] = {desc.in_size,   desc.kernel,  desc.stride,        desc.dilation,
                               desc.pad_begin, desc.pad_end, desc.output_padding};
    for (int axis = 0; axis < 3; ++axis) {
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i) {
            arrays[i][axis] = INT64_MIN + (int64_t)i + axis;
        }
    }
    const int wrong = INT32_MIN; /* prints longer than any word */
    desc.rank = 3, desc.operation = CONVJIT_TRANSPOSED;
    desc.in_channels = desc.out_channels = desc.groups = desc.batch_hint = INT64_MIN;
    desc.data_type = desc.bias_type = (convjit_type)wrong, desc.weight_type = (convjit_type)(wrong + 1);
    desc.layout = desc.weight_layout = (convjit_layout)wrong, desc.math = (convjit_math)wrong;
    desc.activation = CONVJIT_CLAMP;
    desc.activation_a = desc.activation_b = desc.alpha = desc.beta = -1.23456789e-38F;
    char line[CONVJIT_LAYER_LINE_MAX];
    cr_expect_gt(strlen(format(&desc, INT64_MAX, line)), 640);
}

/* ------------------------------------------------------------------------------------------------------- parsing */

Test(layer_line, words_may_come_in_any_order_and_defaults_be_left_out) {
    const char *const lines[] = {"conv2d c32 k64 f3", "\tconv2d  f3x3 k64\tc32 \r\n",
                                 "conv2d fp32 nchw f32 k64 c32 p0x0:0 f3",
                                 "conv2d g1 s1x1 d1 op0 in0 weights=f32 bias=f32 alpha=1 beta=0 filter=3 c032 k64"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; ++i) {
        convjit_desc desc;
        int64_t batch = 5;
        char line[CONVJIT_LAYER_LINE_MAX];
        cr_assert_eq(convjit_layer_line_parse(lines[i], &desc, &batch), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_expect_eq(batch, -1);
        cr_expect_str_eq(format(&desc, batch, line), "conv2d c32 k64 f3x3 s1 p0 f32 nchw fp32");
    }
}

Test(layer_line, every_word_reaches_its_field) {
    convjit_desc d;
    int64_t batch;
    cr_assert_eq(
        convjit_layer_line_parse("convt3d n9 c6 k4 g2 in7x8x9 hint=11 f1x2x3 s4x5x6 p1x0x2:3x4x5 d2x1x3 op1x2x0 bf16 "
                                 "weights=f16 bias=bf16 nhwc krsc tf32 clamp=-1.5:2.5 alpha=3 beta=-4",
                                 &d, &batch),
        CONVJIT_SUCCESS);
    cr_expect(batch == 9 && d.struct_size == sizeof d && d.operation == CONVJIT_TRANSPOSED && d.rank == 3);
    cr_expect(d.in_channels == 6 && d.out_channels == 4 && d.groups == 2 && d.batch_hint == 11);
    const int64_t want[7][3] = {{7, 8, 9}, {1, 2, 3}, {4, 5, 6}, {2, 1, 3}, {1, 0, 2}, {3, 4, 5}, {1, 2, 0}};
    const int64_t *const arrays[] = {d.in_size,   d.kernel,  d.stride,        d.dilation,
                                     d.pad_begin, d.pad_end, d.output_padding};
    for (int i = 0; i < 7; ++i) {
        cr_expect_arr_eq(arrays[i], want[i], sizeof want[i], "array %d", i);
    }
    cr_expect(d.data_type == CONVJIT_BF16 && d.weight_type == CONVJIT_F16 && d.bias_type == CONVJIT_BF16);
    cr_expect(d.layout == CONVJIT_CHANNELS_LAST && d.weight_layout == CONVJIT_CHANNELS_LAST && d.math == CONVJIT_TF32);
    cr_expect(d.activation == CONVJIT_CLAMP && d.activation_a == -1.5F && d.activation_b == 2.5F);
    cr_expect(d.alpha == 3.0F && d.beta == -4.0F);
}

Test(layer_line, weights_follow_the_data_type_unless_told) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse("conv1d c1 k1 f1 bf16", &desc, NULL), CONVJIT_SUCCESS);
    cr_expect_eq(desc.weight_type, CONVJIT_BF16);
    cr_expect_eq(desc.bias_type, CONVJIT_F32);
    cr_assert_eq(convjit_layer_line_parse("conv1d weights=f16 c1 k1 f1", &desc, NULL), CONVJIT_SUCCESS);
    cr_expect_eq(desc.data_type, CONVJIT_F32);
    cr_expect_eq(desc.weight_type, CONVJIT_F16);
}

static const struct {
    const char *line, *text;
} refused[] = {
    {"", "layer line: it is empty"},
    {" \t\n", "layer line: it is empty"},
    {"conv2d", "layer line: word c (in_channels) is missing"},
    {"conv2d c1 f1", "layer line: word k (out_channels) is missing"},
    {"conv2d c1 k1", "layer line: word f (kernel) is missing"},
    {"conv1d c1 k1 f16", "layer line: word f (kernel) is missing"}, /* f16 is a type */
    {"conv4d c1 k1 f1",
     "layer line: word \"conv4d\": a layer starts with conv1d, conv2d, conv3d, convt1d, convt2d or convt3d"},
    {"c1 conv2d k1 f1",
     "layer line: word \"c1\": a layer starts with conv1d, conv2d, conv3d, convt1d, convt2d or convt3d"},
    {"conv2d c1 conv2d k1 f1", "layer line: word \"conv2d\": unknown"},
    {"conv2d c1 k1 f1 stride2", "layer line: word \"stride2\": unknown"},
    {"conv2d c1 k1 f1 none", "layer line: word \"none\": unknown"},
    {"conv2d c1 k1 f1 leaky_relu", "layer line: word \"leaky_relu\": unknown"},
    {"conv2d c1 k1 f1 C2", "layer line: word \"C2\": unknown"},
    {"conv2d c1 k1 f1 = 3", "layer line: word \"=\": unknown"},
    {"conv2d c1 k1 f1 # note", "layer line: word \"#\": unknown"},
    {"conv2d c1 k1 f1 c1", "layer line: word \"c1\": repeats an earlier word"},
    {"conv2d c1 k1 f1 filter=1", "layer line: word \"filter=1\": repeats an earlier word"},
    {"conv2d c1 k1 f1 relu gelu", "layer line: word \"gelu\": repeats an earlier word"},
    {"conv2d c1 k1 f1 nchw nhwc", "layer line: word \"nhwc\": repeats an earlier word"},
    {"conv1d c1 k1 f16 f32",
     "layer line: word \"f32\": a second data type (a filter of 16 or 32 is written filter=16)"},
    {"conv2d c k1 f1", "layer line: word \"c\": a number is missing"},
    {"conv2d c- k1 f1", "layer line: word \"c-\": a number is missing"},
    {"conv2d c1 k1 f1x", "layer line: word \"f1x\": a number is missing"},
    {"conv2d c1 k1 f1 px1", "layer line: word \"px1\": unknown"},
    {"conv2d c1 k1 f1 p1:", "layer line: word \"p1:\": a number is missing"},
    {"conv2d c1 k1 f1 alpha=", "layer line: word \"alpha=\": a number is missing"},
    {"conv2d c1 k1 f1 alpha=x", "layer line: word \"alpha=x\": a number is missing"},
    {"conv2d c1 k1 f1 clamp=0", "layer line: word \"clamp=0\": a clamp is written clamp=LOWER:UPPER"},
    {"conv2d c1 k1 f1 clamp=0:", "layer line: word \"clamp=0:\": a number is missing"},
    {"conv2d c9223372036854775808 k1 f1", "layer line: word \"c9223372036854775808\": a number does not fit int64"},
    {"conv2d c1 k1 f1x-9223372036854775809",
     "layer line: word \"f1x-9223372036854775809\": a number does not fit int64"},
    {"conv2d c1 k1 f1 beta=-1e39", "layer line: word \"beta=-1e39\": a number does not fit float"},
    {"conv2d c1 k1 f1 n-1", "layer line: word \"n-1\": a batch is not negative"},
    {"conv2d c1 k1 f1x1x1", "layer line: word \"f1x1x1\": more sizes than the layer has axes"},
    {"conv1d c1 k1 f1 p1:1x1", "layer line: word \"p1:1x1\": more sizes than the layer has axes"},
    {"conv3d c1 k1 f1x1", "layer line: word \"f1x1\": fewer sizes than the layer has axes"},
    {"conv2d c1x2 k1 f1", "layer line: word \"c1x2\": goes on after its end"},
    {"conv2d c1 k1 f1,2", "layer line: word \"f1,2\": goes on after its end"},
    {"conv2d c1 k1 f1 p1:2:3", "layer line: word \"p1:2:3\": goes on after its end"},
    {"conv2d c1 k1 f1 relu6", "layer line: word \"relu6\": goes on after its end"},
    {"conv2d c1 k1 f1 relu=", "layer line: word \"relu=\": unknown"},
    {"conv2d c1 k1 f1 beta=1.5.2", "layer line: word \"beta=1.5.2\": goes on after its end"},
    {"conv2d c1 k1 f1 weights=int8", "layer line: word \"weights=int8\": the type is none of f32, f16, bf16"},
    {"conv2d c1 k1 f1 bias=", "layer line: word \"bias=\": the type is none of f32, f16, bf16"},
};

Test(layer_line, every_refusal_names_the_word) {
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        convjit_desc desc = {.rank = 77};
        int64_t batch = 77;
        cr_expect_eq(convjit_layer_line_parse(refused[i].line, &desc, &batch), CONVJIT_INVALID_ARGUMENT, "%s",
                     refused[i].line);
        cr_expect_str_eq(convjit_last_error(), refused[i].text);
        cr_expect(desc.rank == 77 && batch == 77, "a refused line changed its outputs: %s", refused[i].line);
    }
}

Test(layer_line, a_word_too_long_is_cut_in_the_text) {
    char line[4096] = "conv2d c";
    memset(line + 8, '1', 4000);
    convjit_desc desc;
    cr_expect_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_INVALID_ARGUMENT);
    cr_expect_not_null(strstr(convjit_last_error(), "\"c111111"));
    cr_expect_not_null(strstr(convjit_last_error(), "...\": too long"));
    cr_expect_lt(strlen(convjit_last_error()), 120);
}

Test(layer_line, null_pointers_are_refused) {
    convjit_desc desc;
    cr_expect_eq(convjit_layer_line_parse(NULL, &desc, NULL), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(convjit_last_error(), "line is NULL");
    cr_expect_eq(convjit_layer_line_parse("conv2d c1 k1 f1", NULL, NULL), CONVJIT_INVALID_ARGUMENT);
    cr_expect_str_eq(convjit_last_error(), "desc is NULL");
}

/* --------------------------------------------------------------------------------------------------- round trips */

static uint64_t state = 1;

/* splitmix64 */
static uint64_t next_random(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* Mostly small numbers, so that equal and default sizes are met; sometimes any int64. */
static int64_t random_size(void) {
    const uint64_t kind = next_random() % 16;
    return kind == 0 ? (int64_t)next_random() : (int64_t)(next_random() % (kind < 8 ? 2 : 40));
}

/* Any finite float: all exponents and digits. */
static float random_float(void) {
    const uint32_t bits = (uint32_t)next_random();
    float value;
    memcpy(&value, &bits, sizeof value);
    return isfinite(value) ? value : 0.5F;
}

static convjit_desc random_desc(void) {
    convjit_desc d = CONVJIT_DESC_INIT;
    d.operation = (convjit_operation)(next_random() % 2);
    d.rank = (int32_t)(1 + next_random() % 3);
    d.in_channels = random_size(), d.out_channels = random_size(), d.groups = random_size();
    d.batch_hint = next_random() % 2 == 0 ? 0 : random_size();
    int64_t *const arrays[] = {d.in_size, d.kernel, d.stride, d.dilation, d.pad_begin, d.pad_end, d.output_padding};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; ++i) {
        const bool equal = next_random() % 2 == 0;
        for (int axis = 0; axis < d.rank; ++axis) {
            arrays[i][axis] = equal && axis > 0 ? arrays[i][0] : random_size();
        }
    }
    d.data_type = (convjit_type)(next_random() % 3), d.weight_type = (convjit_type)(next_random() % 3);
    d.bias_type = (convjit_type)(next_random() % 3);
    d.layout = (convjit_layout)(next_random() % 2), d.weight_layout = (convjit_layout)(next_random() % 2);
    d.math = (convjit_math)(next_random() % 3);
    d.activation = (convjit_activation)(next_random() % 9);
    d.activation_a = random_float(), d.activation_b = random_float();
    d.alpha = next_random() % 2 == 0 ? 1.0F : random_float();
    d.beta = next_random() % 2 == 0 ? 0.0F : random_float();
    return d;
}

Test(layer_line, random_descriptors_come_back) {
    for (int i = 0; i < 2000; ++i) {
        const convjit_desc desc = random_desc();
        expect_round_trip(&desc, (int64_t)(next_random() % 100) - 1);
    }
}

Test(layer_line, filters_that_look_like_types_come_back) {
    for (int32_t rank = 1; rank <= 3; ++rank) {
        for (int type = 0; type < 3; ++type) {
            for (int64_t taps = 15; taps <= 33; ++taps) {
                convjit_desc desc = CONVJIT_DESC_INIT;
                desc.rank = rank, desc.in_channels = desc.out_channels = 1;
                desc.data_type = desc.weight_type = (convjit_type)type;
                desc.kernel[0] = desc.kernel[1] = desc.kernel[2] = taps;
                expect_round_trip(&desc, -1);
            }
        }
    }
}

Test(layer_line, infinite_and_nan_parameters_come_back) {
    const float values[] = {INFINITY, -INFINITY, NAN, 1e-45F, -0.0F, 3.40282347e38F};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; ++i) {
        convjit_desc desc = CONVJIT_DESC_INIT;
        desc.in_channels = desc.out_channels = 1;
        desc.activation = CONVJIT_CLAMP;
        desc.activation_a = desc.activation_b = desc.alpha = desc.beta = values[i];
        expect_round_trip(&desc, 1);
    }
}

Test(layer_line, floats_print_with_the_fewest_digits) {
    const float values[] = {0.1F, 0.2F, 1e-3F, 6.0F, 1.0F / 3.0F, 16777216.0F, 1e10F};
    const char *const texts[] = {"0.1", "0.2", "0.001", "6", "0.33333334", "16777216", "1e+10"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; ++i) {
        convjit_desc desc = CONVJIT_DESC_INIT;
        char line[CONVJIT_LAYER_LINE_MAX];
        desc.activation = CONVJIT_LEAKY_RELU, desc.activation_a = values[i];
        format(&desc, -1, line);
        cr_expect_str_eq(strchr(line, '=') + 1, texts[i]);
    }
}

/* German writes 0,1. */
Test(layer_line, the_locale_does_not_matter) {
    const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof locales / sizeof locales[0] && found == NULL; ++i) {
        found = setlocale(LC_ALL, locales[i]);
    }
    if (found == NULL) {
        cr_skip_test("no locale with a decimal comma is installed");
    }
    char text[16], line[CONVJIT_LAYER_LINE_MAX];
    snprintf(text, sizeof text, "%.1f", 0.5);
    cr_assert_str_eq(text, "0,5", "this locale should have a decimal comma");
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(canonical[2], &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(desc.activation_a, 0.1F);
    cr_expect_str_eq(format(&desc, 0, line), canonical[2]);
    snprintf(text, sizeof text, "%.1f", 0.5);
    cr_expect_str_eq(text, "0,5", "the caller's locale must stand as it was");
}
