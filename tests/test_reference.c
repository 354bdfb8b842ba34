/* test_reference.c - the float64 reference against answers worked out by hand or in another way. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* The layer of a line; batch 1 where it has none. */
static reference_layer layer_of(const char *line) {
    convjit_desc desc;
    int64_t batch = 0;
    reference_layer layer;
    cr_assert(convjit_layer_line_parse(line, &desc, &batch) == CONVJIT_SUCCESS, "%s: %s", line, convjit_last_error());
    cr_assert(reference_layer_make(&desc, batch < 0 ? 1 : batch, NULL, &layer) == CONVJIT_SUCCESS, "%s: %s", line,
              convjit_last_error());
    return layer;
}

static void *allocate(int64_t count) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, sizeof(float));
    cr_assert(memory != NULL);
    return memory;
}

static float *random_floats(int64_t count, uint64_t seed) {
    float *data = allocate(count);
    reference_fill(data, CONVJIT_F32, count, seed, REFERENCE_NORMAL);
    return data;
}

static void expect_values(const char *line, const float *x, const float *w, const double *wanted, int64_t count) {
    const reference_layer layer = layer_of(line);
    cr_assert(layer.y_count == count, "%s: %d outputs, not %d", line, (int)layer.y_count, (int)count);
    for (int64_t i = 0; i < count; i++) {
        const double got = reference_compute(&layer, x, w, NULL, NULL, i).value;
        cr_expect(got == wanted[i], "%s: y[%d] is %g, not %g", line, (int)i, got, wanted[i]);
    }
}

/* ---------------------------------------------------------------- types */

Test(reference, every_f16_and_bf16_survives_the_way_to_double_and_back) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        for (convjit_type type = CONVJIT_F16; type <= CONVJIT_BF16; type++) {
            const uint16_t before = (uint16_t)bits;
            uint16_t after = 0;
            const double value = reference_get(&before, type, 0);
            reference_set(&after, type, 0, value);
            cr_assert(isnan(value) || after == before, "type %d: 0x%04x came back as 0x%04x", type, before, after);
        }
    }
}

Test(reference, bf16_is_the_upper_half_of_a_float) {
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const uint16_t upper = (uint16_t)bits;
        const uint32_t whole = bits << 16;
        float as_float = 0.0F;
        memcpy(&as_float, &whole, 4);
        const double value = reference_get(&upper, CONVJIT_BF16, 0);
        cr_assert(value == (double)as_float || (isnan(value) && isnan(as_float)), "0x%04x is %g, not %g", upper, value,
                  (double)as_float);
    }
}

Test(reference, rounding_is_to_nearest_even_with_overflow_and_subnormals) {
    static const struct {
        double value;
        uint16_t bits;
    } cases[] = {
        {0.0, 0x0000},
        {-0.0, 0x8000},
        {1.0, 0x3C00},
        {1.0 + 0x1p-11, 0x3C00},     /* tie, to even */
        {1.0 + 3 * 0x1p-11, 0x3C02}, /* tie, to even */
        {1.0 + 0x1.01p-11, 0x3C01},  /* just over a tie */
        {2.0 - 0x1p-12, 0x4000},     /* the carry reaches the exponent */
        {65519.0, 0x7BFF},           /* largest finite */
        {65520.0, 0x7C00},           /* Inf */
        {-1e30, 0xFC00},             /* far out */
        {0x1p-24, 0x0001},           /* least subnormal */
        {0x1p-25, 0x0000},           /* tie, to even */
        {0x1.8p-24, 0x0002},         /* tie, to even */
        {0x1p-14 - 0x1p-26, 0x0400}, /* subnormal to normal */
        {HUGE_VAL, 0x7C00},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint16_t got = 0;
        reference_set(&got, CONVJIT_F16, 0, cases[i].value);
        cr_expect(got == cases[i].bits, "%a became 0x%04x, not 0x%04x", cases[i].value, got, cases[i].bits);
    }
}

/* ---------------------------------------------------------------- sums */

Test(reference, a_padded_convolution_worked_by_hand) {
    const float x[] = {1, 2, 3, 4};
    const float w[] = {1, 10, 100};
    expect_values("conv1d c1 k1 in4 f3 p1", x, w, (const double[]){210, 321, 432, 43}, 4);
    expect_values("conv1d c1 k1 in4 f3 s2 p1:0", x, w, (const double[]){210, 432}, 2);
    expect_values("conv1d c1 k1 in4 f2 d3", x, w, (const double[]){41}, 1);
}

Test(reference, a_transposed_convolution_worked_by_hand) {
    const float x[] = {1, 2};
    const float w[] = {1, 10, 100};
    expect_values("convt1d c1 k1 in2 f3 s2", x, w, (const double[]){1, 10, 102, 20, 200}, 5);
    expect_values("convt1d c1 k1 in2 f3 s2 p1:0 op1", x, w, (const double[]){10, 102, 20, 200, 0}, 5);
    expect_values("convt1d c1 k1 in2 f2 d2", x, w, (const double[]){1, 2, 10, 20}, 4);
}

Test(reference, groups_keep_their_channels_apart) {
    const float x[] = {1, 2, 3, 4};             /* 4 channels of one pixel */
    const float w[] = {1, 10, 100, 1000, 5, 7}; /* the first four are read */
    expect_values("conv1d c4 k2 g2 in1 f1", x, w, (const double[]){1 * 1 + 2 * 10, 3 * 100 + 4 * 1000}, 2);
    expect_values("convt1d c2 k4 g2 in1 f1", x, w, (const double[]){1 * 1, 1 * 10, 2 * 100, 2 * 1000}, 4);
}

/* <conv(x), y> = <x, transposed(y)> with the same w: both loops, all index rules, against each other. */
static void expect_transposes(const char *line, const char *transposed_line) {
    const reference_layer forward = layer_of(line);
    const reference_layer back = layer_of(transposed_line);
    cr_assert(forward.x_count == back.y_count && forward.y_count == back.x_count && forward.w_count == back.w_count,
              "%s: sizes of the two do not match", line);
    float *x = random_floats(forward.x_count, 1);
    float *w = random_floats(forward.w_count, 2);
    float *y = random_floats(forward.y_count, 3);
    double left = 0.0;
    double right = 0.0;
    for (int64_t i = 0; i < forward.y_count; i++) {
        left += reference_compute(&forward, x, w, NULL, NULL, i).value * y[i];
    }
    for (int64_t i = 0; i < back.y_count; i++) {
        right += reference_compute(&back, y, w, NULL, NULL, i).value * x[i];
    }
    cr_expect(fabs(left - right) < 1e-9 * fabs(left) + 1e-9, "%s: %.15g is not %.15g", line, left, right);
    free(x);
    free(w);
    free(y);
}

Test(reference, transposed_is_the_transpose) {
    expect_transposes("conv1d n2 c4 k6 g2 in13 f3 s2 p2:1", "convt1d n2 c6 k4 g2 in7 f3 s2 p2:1 op1");
    expect_transposes("conv2d n2 c3 k2 in9x8 f3x2 s2x3 p1x0 d2x1", "convt2d n2 c2 k3 in4x3 f3x2 s2x3 p1x0 d2x1");
    expect_transposes("conv2d n1 c4 k4 g4 in7x8 f3x3 s1x2 p1 nhwc krsc",
                      "convt2d n1 c4 k4 g4 in7x4 f3x3 s1x2 p1 op0x1 nhwc krsc");
    expect_transposes("conv3d n1 c2 k3 in5x6x7 f2x3x3 s1x2x2 p0x1x1",
                      "convt3d n1 c3 k2 in4x3x4 f2x3x3 s1x2x2 p0x1x1 op0x1x0");
}

/* Moves axis 1 of [outer][channels][pixels] to the end. */
static float *to_channels_last(const float *from, int64_t outer, int64_t channels, int64_t pixels) {
    float *to = allocate(outer * channels * pixels);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t c = 0; c < channels; c++) {
            for (int64_t p = 0; p < pixels; p++) {
                to[(o * pixels + p) * channels + c] = from[(o * channels + c) * pixels + p];
            }
        }
    }
    return to;
}

static void expect_same_in_both_layouts(const char *line, const char *last_line) {
    const reference_layer first = layer_of(line);
    const reference_layer last = layer_of(last_line);
    const bool transposed = first.desc.operation == CONVJIT_TRANSPOSED;
    const int64_t rows = transposed ? first.desc.in_channels : first.desc.out_channels;
    const int64_t columns = (transposed ? first.desc.out_channels : first.desc.in_channels) / first.desc.groups;
    const int64_t pixels = first.y_count / first.batch / first.desc.out_channels;
    float *x = random_floats(first.x_count, 1);
    float *w = random_floats(first.w_count, 2);
    float *x_last =
        to_channels_last(x, first.batch, first.desc.in_channels, first.x_count / first.batch / first.desc.in_channels);
    float *w_last = to_channels_last(w, rows, columns, first.w_count / rows / columns);
    for (int64_t i = 0; i < first.y_count; i++) {
        const int64_t channel = i / pixels % first.desc.out_channels;
        const int64_t n = i / pixels / first.desc.out_channels;
        const int64_t moved = (n * pixels + i % pixels) * first.desc.out_channels + channel;
        const double wanted = reference_compute(&first, x, w, NULL, NULL, i).value;
        const double got = reference_compute(&last, x_last, w_last, NULL, NULL, moved).value;
        cr_assert(got == wanted, "%s: output %d is %g, not %g", last_line, (int)i, got, wanted);
    }
    free(x);
    free(w);
    free(x_last);
    free(w_last);
}

Test(reference, channels_last_is_the_same_layer) {
    expect_same_in_both_layouts("conv2d n2 c4 k6 g2 in5x6 f2x3 s2x1 p1",
                                "conv2d n2 c4 k6 g2 in5x6 f2x3 s2x1 p1 nhwc krsc");
    expect_same_in_both_layouts("convt3d n2 c4 k6 g2 in3x2x3 f2x3x1 s2",
                                "convt3d n2 c4 k6 g2 in3x2x3 f2x3x1 s2 nhwc krsc");
}

Test(reference, padding_is_skipped_and_a_nan_reaches_exactly_its_windows) {
    const reference_layer layer = layer_of("conv1d c1 k1 in4 f3 p1");
    const float w[] = {INFINITY, 1, 1};
    const float x[] = {1, 2, 3, NAN};
    cr_expect(reference_compute(&layer, x, w, NULL, NULL, 0).value == 3.0, "the infinite tap lies in the padding");
    cr_expect(isinf(reference_compute(&layer, x, w, NULL, NULL, 1).value));
    const float plain[] = {1, 1, 1};
    cr_expect(reference_compute(&layer, x, plain, NULL, NULL, 1).value == 6.0);
    cr_expect(isnan(reference_compute(&layer, x, plain, NULL, NULL, 2).value));
    cr_expect(isnan(reference_compute(&layer, x, plain, NULL, NULL, 3).value));
}

/* ---------------------------------------------------------------- epilogue */

/* act(v), through a layer that computes nothing else: x = v, w = 1. */
static reference_output activate(const char *word, double v) {
    char line[128];
    (void)snprintf(line, sizeof line, "conv1d c1 k1 in1 f1 %s", word);
    const reference_layer layer = layer_of(line);
    const float x = (float)v;
    const float w = 1.0F;
    return reference_compute(&layer, &x, &w, NULL, NULL, 0);
}

Test(reference, activations_have_their_textbook_values) {
    static const struct {
        const char *word;
        double v, value;
    } cases[] = {
        {"relu", -2, 0},
        {"relu", 2, 2},
        {"leaky_relu=0.25", -2, -0.5},
        {"leaky_relu=0.25", 2, 2},
        {"silu", 1, 0.7310585786300049},
        {"silu", -1, -0.2689414213699951},
        {"gelu", 1, 0.8413447460685429},
        {"gelu", -8, -4.9767684594174555e-15},
        {"sigmoid", 1, 0.7310585786300049},
        {"tanh", 1, 0.7615941559557649},
        {"hardswish", 1, 2.0 / 3.0},
        {"hardswish", -4, 0},
        {"hardswish", 4, 4},
        {"clamp=-1:2.5", -3, -1},
        {"clamp=-1:2.5", 3, 2.5},
        {"clamp=-1:2.5", 0.5, 0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double got = activate(cases[i].word, cases[i].v).value;
        cr_expect(fabs(got - cases[i].value) <= 1e-14 * fabs(cases[i].value), "%s(%g) is %.17g, not %.17g",
                  cases[i].word, cases[i].v, got, cases[i].value);
        cr_expect(isnan(activate(cases[i].word, NAN).value), "%s(NaN) must be NaN", cases[i].word);
    }
}

Test(reference, epilogue_adds_bias_and_residual_in_the_written_order) {
    const reference_layer layer = layer_of("conv1d c1 k2 in1 f1 alpha=2 beta=-3 relu bias=f16");
    const float x = 5.0F;
    const float w[] = {1.0F, 10.0F};
    const float z[] = {2.0F, 100.0F};
    uint16_t bias[2];
    reference_set(bias, CONVJIT_F16, 0, 0.5);
    reference_set(bias, CONVJIT_F16, 1, 1.5);
    cr_expect(reference_compute(&layer, &x, w, bias, z, 0).value == 2 * 5 + 0.5 - 3 * 2);
    cr_expect(reference_compute(&layer, &x, w, bias, z, 1).value == 0.0, "relu(100 + 1.5 - 300)");
    cr_expect(reference_compute(&layer, &x, w, NULL, NULL, 0).value == 10.0);
}

/* ---------------------------------------------------------------- tolerance */

static double tolerance_of(const char *line, float x, float bias) {
    const reference_layer layer = layer_of(line);
    uint32_t x_stored = 0;
    uint32_t w_stored = 0;
    reference_set(&x_stored, layer.desc.data_type, 0, x);
    reference_set(&w_stored, layer.desc.weight_type, 0, 1.0);
    return reference_compute(&layer, &x_stored, &w_stored, &bias, NULL, 0).tolerance;
}

static void expect_close(double got, double wanted, const char *what) {
    cr_expect(fabs(got - wanted) <= 1e-6 * wanted, "%s: tolerance is %g, not %g", what, got, wanted);
}

Test(reference, tolerance_is_the_promise_and_what_follows_from_it) {
    const double promise = 3.0 * 0x1p-21; /* S = 3 */
    expect_close(tolerance_of("conv1d c1 k1 in1 f1", 3, 0), promise, "fp32");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 fp32_block", 3, 0), 2 * promise, "fp32_block");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 f16 fp32_block", 3, 0), promise + 0x1p-10, "fp32_block of f16");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1", 0x1p-130F, 0), 0x1p-151 + 0x1p-150 + 0x1p-149, "subnormal");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 tf32", 3, 0), 3.0 * 0x1p-10, "tf32");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1", 3, 5), promise + 8.0 * 0x1p-24, "bias: the sum is rounded");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 alpha=-4", 3, 0), 4 * promise + 12.0 * 0x1p-24, "alpha");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 f16 tf32", 3, 0), promise + 0x1p-10, "f16: half an ulp of 3");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 bf16", 3, 0), promise + 0x1p-7, "bf16: half an ulp of 3");
    expect_close(tolerance_of("conv1d c1 k1 in1 f1 f16", 0x1p-20F, 0), 0x1p-41 + 0x1p-25, "f16: subnormal spacing");
    cr_expect(tolerance_of("conv1d c1 k1 in1 f1 relu", -3, 0) == 0.0, "relu far on the left: y is exactly 0");
    cr_expect(tolerance_of("conv1d c1 k1 in1 f1 sigmoid", 3, 0) < 0.05 * promise + 6 * 0x1p-24, "sigmoid is flat at 3");
}

/* Tolerances in units of 2^-20 under fp32_block. */
static double block_units(const reference_layer *layer, const float *x, const float *w, int64_t index) {
    return reference_compute(layer, x, w, NULL, NULL, index).tolerance * 0x1p20;
}

Test(reference, fp32_block_reads_what_is_far_smaller_as_the_largest_of_its_image_and_of_its_output_channel) {
    const reference_layer layer = layer_of("conv1d n2 c1 k2 in3 f1 fp32_block");
    const float x[] = {1, 0x1p-15F, -0x1.8p-16F, 0, 0x1p-40F, INFINITY}; /* two images */
    const float w[] = {3, 5};
    cr_expect(block_units(&layer, x, w, 0) == 3.0);
    cr_expect(block_units(&layer, x, w, 1) == 3.0 * 0x1p-15, "2^-15 of the largest is read as it is");
    cr_expect(block_units(&layer, x, w, 2) == 3.0, "less is read as the largest, 1");
    cr_expect(block_units(&layer, x, w, 5) == 5.0);
    cr_expect(block_units(&layer, x, w, 6) == 3.0 * 0x1p-40, "zero; of the other image, in which Inf is no largest");
    static const char *const lines[] = {"conv1d c1 k2 in2 f2 d2 p1 fp32_block", "convt1d c2 k1 in1 f2 fp32_block"};
    static const int64_t outputs[2][2] = {{0, 2}, {0, 1}}; /* which meet w[0] and w[2], or w[1] and w[3] */
    const float ones[] = {1, 1};
    const float filters[] = {0x1p-30F, 1, 4, 2};
    const reference_layer plain = layer_of(lines[0]);
    cr_expect(plain.y_count == 4);
    cr_expect(block_units(&plain, ones, filters, outputs[0][0]) == 1.0);
    cr_expect(block_units(&plain, ones, filters, 1) == 1.0, "2^-30 beside 1 in its filter is read as 1");
    cr_expect(block_units(&plain, ones, filters, outputs[0][1]) == 2.0);
    const reference_layer back = layer_of(lines[1]);
    cr_expect(block_units(&back, ones, filters, outputs[1][0]) == 8.0,
              "2^-30 is read as 4, of the other input channel");
    cr_expect(block_units(&back, ones, filters, outputs[1][1]) == 3.0);
}

/* At the lowest place of an activation both neighbours are higher: the slope there is no measure. */
Test(reference, tolerance_covers_a_turning_point) {
    static const struct {
        const char *word;
        double at;
    } cases[] = {{"silu", -1.278}, {"gelu", -0.7518}, {"hardswish", -1.5001}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "%s tf32", cases[i].word);
        const reference_output out = activate(line, cases[i].at);
        const double error = 0x1p-10 * out.sum_abs;
        for (int step = -50; step <= 50; step++) {
            const double moved = activate(line, (double)(float)(cases[i].at) + error * step / 51.0).value;
            cr_assert(fabs(moved - out.value) <= out.tolerance, "%s: moving by %g gives %g off, tolerance %g", line,
                      error * step / 51.0, moved - out.value, out.tolerance);
        }
    }
}

/* What a float32 kernel does, in plain C. */
static float in_float(const convjit_desc *d, float v) {
    switch (d->activation) {
    case CONVJIT_SILU:
        return v / (1.0F + expf(-v));
    case CONVJIT_GELU:
        return v / 2.0F * (1.0F + erff(v * 0.70710678F));
    case CONVJIT_SIGMOID:
        return 1.0F / (1.0F + expf(-v));
    case CONVJIT_TANH:
        return tanhf(v);
    case CONVJIT_HARDSWISH:
        return v * fminf(fmaxf(v + 3.0F, 0.0F), 6.0F) / 6.0F;
    default:
        return v;
    }
}

Test(reference, float_arithmetic_stays_within_the_tolerance_of_every_activation) {
    static const char *const words[] = {"silu", "gelu", "sigmoid", "tanh", "hardswish"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char line[64];
        (void)snprintf(line, sizeof line, "conv1d c1 k1 in4001 f1 %s", words[i]);
        const reference_layer layer = layer_of(line);
        const float w = 1.0F;
        float *x = allocate(layer.x_count);
        float *y = allocate(layer.y_count);
        for (int64_t j = 0; j < layer.x_count; j++) {
            x[j] = ((float)j - 2000.0F) * 0.05F; /* -100 to 100 */
            y[j] = in_float(&layer.desc, x[j]);
        }
        const reference_comparison found = reference_compare(&layer, x, &w, NULL, NULL, y, layer.y_count);
        char text[256];
        reference_describe(&layer, &found, text, sizeof text);
        cr_expect(found.failed == 0, "%s: %d fail, %s", words[i], (int)found.failed, text);
        free(x);
        free(y);
    }
}

/* ---------------------------------------------------------------- comparison */

typedef struct compared {
    reference_layer layer;
    float *x, *w, *y;
} compared;

/* A layer with its exact answer in y, rounded to its type. */
static compared make_compared(const char *line) {
    compared c = {.layer = layer_of(line)};
    const convjit_desc *d = &c.layer.desc;
    c.x = allocate(c.layer.x_count);
    c.w = allocate(c.layer.w_count);
    c.y = allocate(c.layer.y_count);
    reference_fill(c.x, d->data_type, c.layer.x_count, 1, REFERENCE_NORMAL);
    reference_fill(c.w, d->weight_type, c.layer.w_count, 2, REFERENCE_NORMAL);
    for (int64_t i = 0; i < c.layer.y_count; i++) {
        reference_set(c.y, d->data_type, i, reference_compute(&c.layer, c.x, c.w, NULL, NULL, i).value);
    }
    return c;
}

static reference_comparison compare(const compared *c, int64_t most) {
    return reference_compare(&c->layer, c->x, c->w, NULL, NULL, c->y, most);
}

static void free_compared(compared *c) {
    free(c->x);
    free(c->w);
    free(c->y);
}

Test(reference, one_wrong_output_is_found_and_described) {
    compared c = make_compared("conv2d n2 c3 k4 in6x5 f3x3");
    cr_expect(compare(&c, 1000).failed == 0);
    cr_expect(compare(&c, 1000).checked == c.layer.y_count);
    const int64_t index = ((1 * 4 + 3) * 4 + 2) * 3 + 1;
    const reference_output want = reference_compute(&c.layer, c.x, c.w, NULL, NULL, index);
    c.y[index] = (float)(want.value + 2.0 * want.tolerance);
    const reference_comparison found = compare(&c, 1000);
    char text[256];
    reference_describe(&c.layer, &found, text, sizeof text);
    cr_expect(found.failed == 1 && found.worst_index == index);
    cr_expect(found.worst_over_tolerance > 1.8 && found.worst_over_tolerance < 2.2);
    cr_expect(fabs(found.worst_over_sum / 0x1p-20 - 1.0) < 0.1, "twice the promise of 2^-21, not %g",
              found.worst_over_sum);
    cr_expect(strstr(text, "worst at [n=1 k=3 y=2 x=1]: got ") == text, "%s", text);
    free_compared(&c);
}

Test(reference, unwritten_outputs_fail_even_where_a_nan_is_wanted) {
    compared c = make_compared("conv1d c1 k1 in8 f1");
    c.x[3] = NAN;
    c.y[3] = NAN;
    cr_expect(compare(&c, 8).failed == 0);
    reference_poison(c.y, CONVJIT_F32, c.layer.y_count);
    cr_expect(compare(&c, 8).failed == 8);
    cr_expect(isinf(compare(&c, 8).worst_over_tolerance));
    free_compared(&c);
}

Test(reference, nan_and_inf_on_one_side_only_fail) {
    static const float got[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        compared c = make_compared("conv1d c1 k1 in8 f1");
        c.y[5] = got[i];
        cr_expect(compare(&c, 8).failed == 1, "%g where a finite number is wanted", (double)got[i]);
        c.x[5] = c.w[0] > 0.0F ? INFINITY : -INFINITY; /* now Inf is wanted */
        cr_expect(compare(&c, 8).failed == (got[i] > 0.0F ? 0 : 1), "%g where Inf is wanted", (double)got[i]);
        c.y[5] = 1.0F;
        cr_expect(compare(&c, 8).failed == 1, "1 where Inf is wanted");
        free_compared(&c);
    }
}

Test(reference, an_f16_that_overflows_is_inf) {
    compared c = make_compared("conv1d c1 k1 in2 f1 f16");
    reference_set(c.x, CONVJIT_F16, 0, 300.0);
    reference_set(c.x, CONVJIT_F16, 1, -100.0);
    reference_set(c.w, CONVJIT_F16, 0, 300.0); /* 90000 and -30000 */
    reference_set(c.y, CONVJIT_F16, 0, INFINITY);
    reference_set(c.y, CONVJIT_F16, 1, -30000.0);
    cr_expect(compare(&c, 2).failed == 0);
    reference_set(c.y, CONVJIT_F16, 1, -INFINITY);
    cr_expect(compare(&c, 2).failed == 1, "-30000 does not overflow");
    reference_set(c.y, CONVJIT_F16, 0, 65504.0);
    cr_expect(compare(&c, 2).failed == 2, "90000 is no finite f16");
    free_compared(&c);
}

Test(reference, a_sample_holds_the_first_and_the_last_output) {
    compared c = make_compared("conv2d c1 k16 in32x32 f1");
    const int64_t ends[] = {0, c.layer.y_count - 1};
    for (size_t i = 0; i < 2; i++) {
        const float right = c.y[ends[i]];
        c.y[ends[i]] = right + 1.0F;
        const reference_comparison found = compare(&c, 100);
        cr_expect(found.checked == 100 && found.failed == 1 && found.worst_index == ends[i]);
        c.y[ends[i]] = right;
    }
    for (int64_t i = 1000; i < 1600; i++) { /* 600 neighbours among 16384: a spread sample of 100 meets some */
        c.y[i] += 1.0F;
    }
    cr_expect(compare(&c, 100).failed >= 2);
    free_compared(&c);
}

/* ---------------------------------------------------------------- sizes */

Test(reference, sizes_are_counted_and_missing_ones_refused) {
    convjit_desc desc;
    reference_layer layer;
    cr_assert(convjit_layer_line_parse("convt2d c6 k4 g2 f3x5 s2", &desc, NULL) == CONVJIT_SUCCESS);
    cr_expect(reference_layer_make(&desc, 3, (const int64_t[]){7, 8}, &layer) == CONVJIT_SUCCESS);
    cr_expect(layer.out_size[0] == 15 && layer.out_size[1] == 19);
    cr_expect(layer.x_count == 1008 && layer.y_count == 3420, "3*6*7*8 and 3*4*15*19");
    cr_expect(layer.w_count == 180 && layer.bias_count == 4, "6*2*3*5");
    cr_expect(reference_layer_make(&desc, 3, NULL, &layer) != CONVJIT_SUCCESS, "the line gives no size");
    cr_expect(reference_layer_make(&desc, -1, (const int64_t[]){7, 8}, &layer) != CONVJIT_SUCCESS);
    cr_expect(reference_layer_make(&desc, INT64_MAX / 2, (const int64_t[]){7, 8}, &layer) != CONVJIT_SUCCESS);
}
