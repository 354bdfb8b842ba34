/* test_reference_data.c - the data that layers are tried on is what tools/reference.h says. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

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

Test(reference_data, random_data_is_the_same_on_every_machine) {
    float first[3];
    reference_fill(first, CONVJIT_F32, 3, 1, REFERENCE_NORMAL);
    cr_expect(first[0] == -0x1.2907c2p-4F && first[1] == -0x1.099bf4p+1F && first[2] == -0x1.850fcp-1F, "got %a %a %a",
              (double)first[0], (double)first[1], (double)first[2]);
    float longer[64];
    reference_fill(longer, CONVJIT_F32, 64, 1, REFERENCE_NORMAL);
    float other[64];
    reference_fill(other, CONVJIT_F32, 64, 2, REFERENCE_NORMAL);
    for (int i = 0; i < 3; i++) {
        cr_expect(first[i] == longer[i], "an element does not depend on the count");
    }
    for (int i = 0; i < 64; i++) {
        cr_expect(other[i] != longer[i]);
    }
}

Test(reference_data, distributions_have_their_shape) {
    enum { COUNT = 100000 };
    float *data = allocate(COUNT);
    double sum = 0.0;
    double squares = 0.0;
    reference_fill(data, CONVJIT_F32, COUNT, 7, REFERENCE_NORMAL);
    for (int i = 0; i < COUNT; i++) {
        sum += data[i];
        squares += (double)data[i] * data[i];
    }
    cr_expect(fabs(sum / COUNT) < 0.015, "mean %g", sum / COUNT);
    cr_expect(fabs(squares / COUNT - 1.0) < 0.02, "variance %g", squares / COUNT);
    for (convjit_type type = CONVJIT_F32; type <= CONVJIT_BF16; type++) {
        reference_fill(data, type, COUNT, 7, REFERENCE_UNIFORM);
        sum = 0.0;
        for (int i = 0; i < COUNT; i++) {
            const double v = reference_get(data, type, i);
            cr_assert(v >= 0.0 && v < 1.0, "%g is not in [0, 1)", v);
            sum += v;
        }
        cr_expect(fabs(sum / COUNT - 0.5) < 0.005, "mean %g", sum / COUNT);
        reference_fill(data, type, COUNT, 7, REFERENCE_WIDE);
        int large = 0;
        for (int i = 0; i < COUNT; i++) {
            const double v = fabs(reference_get(data, type, i));
            cr_assert(isfinite(v));
            large += v > (type == CONVJIT_F16 ? 0x1p5 : 0x1p39);
        }
        cr_expect(large > COUNT / 400, "only %d large numbers", large);
    }
    free(data);
}

/* ---------------------------------------------------------------- data of layers */

typedef struct filled {
    reference_layer layer;
    float *x, *w;
} filled;

static filled fill(const char *line, reference_distribution distribution) {
    filled f = {.layer = layer_of(line)};
    f.x = allocate(f.layer.x_count);
    f.w = allocate(f.layer.w_count);
    reference_fill_tensor(f.x, &f.layer, REFERENCE_X, 5, distribution);
    reference_fill_tensor(f.w, &f.layer, REFERENCE_W, 5, distribution);
    return f;
}

static void free_filled(filled *f) {
    free(f->x);
    free(f->w);
}

Test(reference_data, every_distribution_has_a_word_and_gives_finite_numbers_and_results_of_every_type) {
    static const char *const lines[] = {"conv2d n2 c10 k4 g2 in9x8 f3x2 p1", "convt2d n2 c4 k6 g2 in5x6 f3x3 s2 krsc",
                                        "conv1d c3 k2 in20 f3 bf16 bias=bf16", "conv1d c3 k2 in20 f3 weights=f16"};
    for (int i = 0; i < REFERENCE_DISTRIBUTIONS; i++) {
        const char *word = reference_distribution_word((reference_distribution)i);
        reference_distribution found = REFERENCE_DISTRIBUTIONS;
        cr_expect(reference_distribution_find(word, &found) && (int)found == i, "%s", word);
        for (size_t j = 0; j < sizeof lines / sizeof lines[0]; j++) {
            filled f = fill(lines[j], (reference_distribution)i);
            const convjit_desc *d = &f.layer.desc;
            for (int64_t k = 0; k < f.layer.x_count; k++) {
                cr_assert(isfinite(reference_get(f.x, d->data_type, k)), "%s: %s", word, lines[j]);
            }
            for (int64_t k = 0; k < f.layer.y_count; k++) {
                const double value = reference_compute(&f.layer, f.x, f.w, NULL, NULL, k).value;
                cr_assert(fabs(value) < 0x1p127, "%s: %s: y[%d] is %g", word, lines[j], (int)k, value);
            }
            free_filled(&f);
        }
    }
    reference_distribution none = REFERENCE_NORMAL;
    cr_expect(!reference_distribution_find("odd", &none));
}

/* Mean over the outputs of |sum| / S. */
static double mean_over_sum(const filled *f) {
    double sum = 0.0;
    for (int64_t i = 0; i < f->layer.y_count; i++) {
        const reference_output out = reference_compute(&f->layer, f->x, f->w, NULL, NULL, i);
        sum += fabs(out.value) / out.sum_abs;
    }
    return sum / (double)f->layer.y_count;
}

Test(reference_data, sums_of_cancel_are_far_smaller_than_their_parts_where_no_tap_is_padded) {
    static const char *const lines[] = {"conv2d c6 k4 in9x8 f3x3", "conv1d c5 k2 in20 f3 krsc",
                                        "convt1d c6 k2 in20 f3 s3"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        filled f = fill(lines[i], REFERENCE_CANCEL);
        cr_expect(mean_over_sum(&f) < 0x1p-12, "%s: %g", lines[i], mean_over_sum(&f));
        free_filled(&f);
    }
}

/* x in two parts of 11 bits, as float32 exactly. */
static double lower_part(double x) {
    const double high = ldexp(nearbyint(ldexp(x, 10)), -10);
    return ldexp(nearbyint(ldexp(x - high, 22)), -22); /* x - high in [2^-12, 2^-11) */
}

Test(reference_data, split_needs_the_product_of_the_lower_parts) {
    filled f = fill("conv1d c2 k1 in4 f1", REFERENCE_SPLIT);
    const double x = f.x[0];
    const double low = lower_part(x);
    cr_expect(f.x[3] == f.x[0] && f.w[1] == f.x[0]);
    const double four = (1.0 + low) * (1.0 + low) - x * x;
    const double three = 1.0 + 2.0 * low - x * x;
    cr_expect(fabs(four) < 0x1.01p-22 * x * x, "off by %g", four);
    cr_expect(fabs(three) > 0x1.FEp-22 * x * x, "off by %g", three);
    free_filled(&f);
}

Test(reference_data, one_tensor_of_huge_and_of_tiny_is_subnormal_and_products_are_not) {
    for (reference_distribution kind = REFERENCE_SUBNORMAL; kind <= REFERENCE_TINY; kind++) {
        filled f = fill("conv1d c4 k4 in50 f1", kind);
        const float *small = kind == REFERENCE_TINY ? f.w : f.x;
        const float *other = kind == REFERENCE_TINY ? f.x : f.w;
        for (int i = 0; i < 16; i++) {
            cr_expect(fpclassify(small[i]) == FP_SUBNORMAL && isnormal(other[i]), "%a, %a", (double)small[i],
                      (double)other[i]);
            cr_expect((fabs((double)other[i] * small[i]) < 0x1p-120) == (kind == REFERENCE_SUBNORMAL));
        }
        free_filled(&f);
    }
}

Test(reference_data, integer_takes_all_twelve_bits) {
    filled f = fill("conv1d c4 k4 in50 f1", REFERENCE_INTEGER);
    for (int64_t i = 0; i < f.layer.x_count; i++) {
        const double v = fabs((double)f.x[i]);
        cr_expect(v >= 2049.0 && v <= 4095.0 && fmod(v, 2.0) == 1.0, "%g", v);
    }
    free_filled(&f);
}

Test(reference_data, sparse_has_windows_channels_and_filters_that_are_zero) {
    filled f = fill("conv2d n1 c16 k16 in40x40 f3x3", REFERENCE_SPARSE);
    int windows = 0, zeros = 0;
    for (int64_t i = 0; i < 38 * 38; i++) {
        windows += reference_compute(&f.layer, f.x, f.w, NULL, NULL, i).sum_abs == 0.0;
    }
    for (int64_t i = 0; i < f.layer.w_count; i++) {
        zeros += f.w[i] == 0.0F;
        cr_expect(f.w[i] == 0.0F || i / 144 % 8 != 5, "filters 5 and 13 are zero");
    }
    for (int64_t i = 0; i < 1600; i++) {
        cr_expect(f.x[5 * 1600 + i] == 0.0F && f.x[13 * 1600 + i] == 0.0F, "channels 5 and 13 are zero");
    }
    cr_expect(windows > 38 * 38 / 8 && windows < 38 * 38, "%d windows of 1444 are zero", windows);
    cr_expect(zeros > 1100 && zeros < 1500, "%d weights of 2304 are zero", zeros);
    free_filled(&f);
}

Test(reference_data, outlier_has_some_and_mixed_makes_small_channels_count) {
    filled f = fill("conv1d c50 k2 in400 f1", REFERENCE_OUTLIER);
    int large = 0;
    for (int64_t i = 0; i < f.layer.x_count; i++) {
        large += fabsf(f.x[i]) > 0x1p14F;
    }
    cr_expect(large > 50 && large < 200, "%d of 20000", large);
    free_filled(&f);
    f = fill("conv1d c4 k2 in400 f1", REFERENCE_MIXED);
    cr_expect(fabsf(f.x[0]) > 0x1p15F && fabsf(f.x[400]) < 0x1p-15F);
    for (int64_t i = 0; i < 4; i++) {
        cr_expect(fabsf(f.w[i] * f.x[i * 400]) < 0x1p8F, "output 0 takes all channels alike");
        cr_expect(fabsf(f.w[4 + i]) < 8.0F, "output 1 does not");
    }
    free_filled(&f);
}
