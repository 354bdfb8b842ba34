/* reference.c - the exact answer, and how far float32 may be from it.
 *
 * Every sum is taken in double: products of two float32 values are exact there, and a sum of n of them is off by at
 * most n * 2^-53 S, thousands of times below the tightest promise for any window that fits in memory.
 */
#include "reference_place.h"
#include "reference_types.h"

#include <math.h>
#include <stdio.h>

static const double UNIT = 0x1p-24; /* half an ulp of float32, relative to the value: one rounding */

/* ---------------------------------------------------------------- sizes */

static int64_t floor_divide(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

/* The two formulas of convjit.h once more: the library's own answer is compared with them. */
static int64_t output_size(const convjit_desc *d, int axis, int64_t in) {
    const int64_t reach = d->dilation[axis] * (d->kernel[axis] - 1) + 1;
    const int64_t pads = d->pad_begin[axis] + d->pad_end[axis];
    if (d->operation == CONVJIT_TRANSPOSED) {
        return (in - 1) * d->stride[axis] - pads + reach + d->output_padding[axis];
    }
    return floor_divide(in + pads - reach, d->stride[axis]) + 1;
}

static bool product(int64_t *total, const int64_t *factors, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (__builtin_mul_overflow(*total, factors[i], total)) {
            return false;
        }
    }
    return true;
}

convjit_status reference_layer_make(const convjit_desc *desc, int64_t batch, const int64_t *in_size,
                                    reference_layer *out) {
    *out = (reference_layer){.desc = *desc, .batch = batch};
    const convjit_status status = convjit_output_size(desc, in_size, out->out_size);
    if (status != CONVJIT_SUCCESS) {
        return status;
    }
    for (int axis = 0; axis < desc->rank; axis++) {
        out->in_size[axis] = in_size != NULL ? in_size[axis] : desc->in_size[axis];
        if (out->out_size[axis] != output_size(desc, axis, out->in_size[axis])) {
            return CONVJIT_INTERNAL;
        }
    }
    out->bias_count = desc->out_channels;
    if (batch < 0 || __builtin_mul_overflow(batch, desc->in_channels, &out->x_count) ||
        __builtin_mul_overflow(batch, desc->out_channels, &out->y_count) ||
        __builtin_mul_overflow(desc->in_channels, desc->out_channels / desc->groups, &out->w_count) ||
        !product(&out->x_count, out->in_size, desc->rank) || !product(&out->y_count, out->out_size, desc->rank) ||
        !product(&out->w_count, desc->kernel, desc->rank)) {
        return CONVJIT_INVALID_ARGUMENT;
    }
    return CONVJIT_SUCCESS;
}

/* ---------------------------------------------------------------- one sum */

typedef struct shape {
    reference_extents in, out, kernel, stride, dilation, pad;
} shape;

static shape shape_of(const reference_layer *layer) {
    const convjit_desc *d = &layer->desc;
    return (shape){reference_widen(layer->in_size, d->rank, 1), reference_widen(layer->out_size, d->rank, 1),
                   reference_widen(d->kernel, d->rank, 1),      reference_widen(d->stride, d->rank, 1),
                   reference_widen(d->dilation, d->rank, 1),    reference_widen(d->pad_begin, d->rank, 0)};
}

/* The input position that output position `out` meets at tap `tap`; false where there is none (padding, or between the
 * strides of a transposed convolution). */
static bool meets(const convjit_desc *d, const shape *s, int axis, int64_t out, int64_t tap, int64_t *in) {
    const int64_t step = tap * s->dilation.of[axis];
    if (d->operation == CONVJIT_TRANSPOSED) {
        const int64_t spread = out + s->pad.of[axis] - step;
        *in = spread / s->stride.of[axis];
        return spread >= 0 && spread % s->stride.of[axis] == 0 && *in < s->in.of[axis];
    }
    *in = out * s->stride.of[axis] - s->pad.of[axis] + step;
    return *in >= 0 && *in < s->in.of[axis];
}

/* What fp32_block may read small values as: the largest finite |x| of the image and |w| of the output channel. No block
 * is known here, and an image holds all of its blocks. Zeros under the other maths, which read values as they are. */
typedef struct peaks {
    int64_t image, channel; /* that x and w are of; -1: of none yet */
    double x, w;
} peaks;

static const peaks NO_PEAKS = {-1, -1, 0.0, 0.0};

typedef struct window_sum {
    double sum, sum_abs; /* the latter is S */
    double sum_read;     /* S with small values read as the peaks */
    int64_t taps;
} window_sum;

/* Two halves of 11 bits hold what is up to 2^15 smaller than the largest to 22 bits. */
static double read_as(double magnitude, double peak) {
    return magnitude * 0x1p15 < peak ? peak : magnitude;
}

static void add_tap(window_sum *total, double x, double w, const peaks *peak) {
    total->sum += x * w;
    total->sum_abs += fabs(x * w);
    total->sum_read += read_as(fabs(x), peak->x) * read_as(fabs(w), peak->w);
    total->taps++;
}

/* One tap, all input channels of the group. */
static void add_channels(const reference_layer *layer, const shape *s, const void *x, const void *w,
                         reference_place out, reference_place from, reference_place tap, const peaks *peak,
                         window_sum *total) {
    const convjit_desc *d = &layer->desc;
    const int64_t group_in = d->in_channels / d->groups;
    const int64_t group_out = d->out_channels / d->groups;
    const int64_t group = out.channel / group_out;
    const bool transposed = d->operation == CONVJIT_TRANSPOSED;
    for (int64_t c = 0; c < group_in; c++) {
        from.channel = group * group_in + c;
        tap.outer = transposed ? from.channel : out.channel;
        tap.channel = transposed ? out.channel % group_out : c;
        add_tap(total, reference_get(x, d->data_type, reference_offset(from, d->in_channels, s->in, d->layout)),
                reference_get(w, d->weight_type,
                              reference_offset(tap, transposed ? group_out : group_in, s->kernel, d->weight_layout)),
                peak);
    }
}

static window_sum sum_window(const reference_layer *layer, const void *x, const void *w, reference_place out,
                             const peaks *peak) {
    const shape s = shape_of(layer);
    const convjit_desc *d = &layer->desc;
    window_sum total = {0};
    reference_place from = {.outer = out.outer};
    reference_place tap = {0};
    for (tap.at[0] = 0; tap.at[0] < s.kernel.of[0]; tap.at[0]++) {
        if (!meets(d, &s, 0, out.at[0], tap.at[0], &from.at[0])) {
            continue;
        }
        for (tap.at[1] = 0; tap.at[1] < s.kernel.of[1]; tap.at[1]++) {
            if (!meets(d, &s, 1, out.at[1], tap.at[1], &from.at[1])) {
                continue;
            }
            for (tap.at[2] = 0; tap.at[2] < s.kernel.of[2]; tap.at[2]++) {
                if (meets(d, &s, 2, out.at[2], tap.at[2], &from.at[2])) {
                    add_channels(layer, &s, x, w, out, from, tap, peak, &total);
                }
            }
        }
    }
    return total;
}

/* The largest finite magnitude among `count` elements, `step` apart. */
static double largest(const void *data, convjit_type type, int64_t first, int64_t count, int64_t step) {
    double most = 0.0;
    for (int64_t i = 0; i < count; i++) {
        const double value = fabs(reference_get(data, type, first + i * step));
        most = isfinite(value) && value > most ? value : most;
    }
    return most;
}

static double largest_weight(const reference_layer *layer, const void *w, int64_t channel) {
    const convjit_desc *d = &layer->desc;
    const int64_t group_in = d->in_channels / d->groups;
    const int64_t group_out = d->out_channels / d->groups;
    if (d->operation != CONVJIT_TRANSPOSED) {
        const int64_t filter = layer->w_count / d->out_channels;
        return largest(w, d->weight_type, channel * filter, filter, 1);
    }
    const bool last = d->weight_layout == CONVJIT_CHANNELS_LAST;
    const int64_t row = layer->w_count / d->in_channels; /* of an input channel: [group_out][taps], or the reverse */
    const int64_t taps = row / group_out;
    double most = 0.0;
    for (int64_t c = channel / group_out * group_in; c < (channel / group_out + 1) * group_in; c++) {
        const int64_t first = c * row + channel % group_out * (last ? 1 : taps);
        most = fmax(most, largest(w, d->weight_type, first, taps, last ? group_out : 1));
    }
    return most;
}

/* Finds the peaks of an output, unless the output before had the same. */
static void find_peaks(const reference_layer *layer, const void *x, const void *w, reference_place out, peaks *peak) {
    const convjit_desc *d = &layer->desc;
    if (d->math != CONVJIT_FP32_BLOCK || d->data_type != CONVJIT_F32) {
        return;
    }
    if (peak->image != out.outer) {
        const int64_t image = layer->x_count / layer->batch;
        peak->x = largest(x, d->data_type, out.outer * image, image, 1);
        peak->image = out.outer;
    }
    if (peak->channel != out.channel) {
        peak->w = largest_weight(layer, w, out.channel);
        peak->channel = out.channel;
    }
}

/* ---------------------------------------------------------------- epilogue and tolerance */

/* The formulas of convjit.h. Comparisons are written so that a NaN comes out as NaN. */
static double activate(const convjit_desc *d, double v) {
    const double a = d->activation_a;
    const double b = d->activation_b;
    double gate = 0.0;
    switch (d->activation) {
    case CONVJIT_RELU:
        return v < 0.0 ? 0.0 : v;
    case CONVJIT_LEAKY_RELU:
        return v < 0.0 ? a * v : v;
    case CONVJIT_SILU:
        return v / (1.0 + exp(-v));
    case CONVJIT_GELU: /* erfc keeps the digits that 1 + erf loses on the left */
        return v / 2.0 * erfc(-v / sqrt(2.0));
    case CONVJIT_SIGMOID:
        return 1.0 / (1.0 + exp(-v));
    case CONVJIT_TANH:
        return tanh(v);
    case CONVJIT_HARDSWISH:
        gate = v + 3.0 < 0.0 ? 0.0 : v + 3.0;
        return v * (gate > 6.0 ? 6.0 : gate) / 6.0;
    case CONVJIT_CLAMP:
        v = v < a ? a : v;
        return v > b ? b : v;
    case CONVJIT_NONE:
    default:
        return v;
    }
}

/* Where the activation stops falling and rises (every one has at most one such place); NaN if it is monotone. */
static double turning_point(const convjit_desc *d) {
    switch (d->activation) {
    case CONVJIT_LEAKY_RELU:
        return 0.0;
    case CONVJIT_SILU:
        return -1.2784645427610738;
    case CONVJIT_GELU:
        return -0.7517915246935645;
    case CONVJIT_HARDSWISH:
        return -1.5;
    default:
        return NAN;
    }
}

/* How far the activation moves when its argument moves by up to `error`: exact, because it is monotone on both sides of
 * its turning point. */
static double propagate(const convjit_desc *d, double v, double error) {
    const double middle = activate(d, v);
    const double turn = turning_point(d);
    double most = fmax(fabs(activate(d, v - error) - middle), fabs(activate(d, v + error) - middle));
    if (fabs(turn - v) < error) {
        most = fmax(most, fabs(activate(d, turn) - middle));
    }
    return most;
}

/* Error of evaluating the activation itself in float32 as written in convjit.h, with exp and tanh good to 2 ulp and erf
 * to 2 ulp of 1 (the CUDA math library promises that or better), and every other operation rounded once. */
static double evaluation_error(const convjit_desc *d, double v) {
    const double value = fabs(activate(d, v));
    const double least = 0x1p-128; /* 1 / (1 + exp(-v)) below this comes out as 0, because exp(-v) is Inf */
    switch (d->activation) {
    case CONVJIT_LEAKY_RELU:
        return UNIT * value;
    case CONVJIT_SILU:
        return isinf(v) ? 0.0 : 7.0 * UNIT * value + least * fabs(v);
    case CONVJIT_GELU: /* 1 + erf is off by 4 units, absolutely */
        return isinf(v) ? 0.0 : 2.0 * UNIT * fabs(v) + 2.0 * UNIT * value;
    case CONVJIT_SIGMOID:
        return 6.0 * UNIT * value + least;
    case CONVJIT_TANH:
    case CONVJIT_HARDSWISH:
        return isinf(v) ? 0.0 : 4.0 * UNIT * value;
    default:
        return 0.0;
    }
}

/* What convjit.h promises for the sum alone. Only float32 x is cut to fewer bits. fp32_block leaves out the product of
 * the lower halves, 2^-22 of S at most; their own roundings are another 2^-22 (the distribution "split" has both), and
 * adding up has to have a part too: so twice the 2^-21 of fp32. */
static double promise(const convjit_desc *d, const window_sum *window) {
    if (d->data_type == CONVJIT_F32 && d->math == CONVJIT_TF32) {
        return 0x1p-10 * window->sum_abs;
    }
    if (d->data_type == CONVJIT_F32 && d->math == CONVJIT_FP32_BLOCK) {
        return 0x1p-20 * window->sum_read;
    }
    return 0x1p-21 * window->sum_abs;
}

/* Error of the argument of the activation: the promise, then every step of the epilogue may round the whole sum once
 * (in any order), then subnormals: their products are off by half of float32's least spacing, and so small a result by
 * all of it. */
static double argument_error(const convjit_desc *d, const window_sum *window, double bias, double z) {
    const double alpha = fabs((double)d->alpha);
    const int roundings = (d->alpha != 1.0F) + (bias != 0.0) + 2 * (z != 0.0); /* beta * z, then the addition */
    const double magnitude = alpha * fabs(window->sum) + fabs(bias) + fabs(z);
    const double tiny = fabs(alpha * window->sum) < 0x1p-126 ? 0x1p-149 : 0.0;
    return alpha * promise(d, window) + roundings * UNIT * magnitude + alpha * (double)window->taps * 0x1p-150 +
           roundings * 0x1p-150 + tiny;
}

/* As reference_compute; `reach` is the largest magnitude that may be rounded to y's type, `peak` is kept for the next.
 */
static reference_output compute(const reference_layer *layer, const void *x, const void *w, const void *bias,
                                const void *z, int64_t index, peaks *peak, double *reach) {
    const convjit_desc *d = &layer->desc;
    const reference_place out =
        reference_place_of(index, d->out_channels, reference_widen(layer->out_size, d->rank, 1), d->layout);
    find_peaks(layer, x, w, out, peak);
    const window_sum window = sum_window(layer, x, w, out, peak);
    const double bias_term = bias != NULL ? reference_get(bias, d->bias_type, out.channel) : 0.0;
    const double z_term = d->beta != 0.0F && z != NULL ? d->beta * reference_get(z, d->data_type, index) : 0.0;
    const double argument = d->alpha * window.sum + bias_term + z_term;
    reference_output result = {activate(d, argument), window.sum_abs, 0.0};
    *reach = fabs(result.value);
    if (isnan(result.value)) {
        return result;
    }
    if (isfinite(argument)) { /* else Inf must stay Inf until the activation bounds it */
        result.tolerance = propagate(d, argument, argument_error(d, &window, bias_term, z_term));
    }
    if (isfinite(result.value)) {
        result.tolerance += evaluation_error(d, argument);
        *reach += result.tolerance;
        result.tolerance += d->data_type == CONVJIT_F32 ? 0.0 : reference_half_ulp(d->data_type, *reach);
    }
    return result;
}

reference_output reference_compute(const reference_layer *layer, const void *x, const void *w, const void *bias,
                                   const void *z, int64_t index) {
    peaks peak = NO_PEAKS;
    double reach = 0.0;
    return compute(layer, x, w, bias, z, index, &peak, &reach);
}

/* ---------------------------------------------------------------- comparison */

/* |got - want| over the tolerance; 0 where both are the same NaN or Inf, infinite where only one is. */
static double over_tolerance(double got, const reference_output *want, bool may_overflow) {
    if (isnan(got) || isnan(want->value)) {
        return isnan(got) && isnan(want->value) ? 0.0 : INFINITY;
    }
    if (isinf(got)) {
        const bool same_sign = (got > 0.0) == (want->value > 0.0);
        return same_sign && may_overflow ? 0.0 : INFINITY;
    }
    const double error = fabs(got - want->value);
    return error > 0.0 ? error / want->tolerance : 0.0; /* x / 0 is infinite */
}

/* The i-th of `most` outputs: one of each equal part of the tensor, at a place that is not a multiple of anything. */
static int64_t pick(int64_t i, int64_t most, int64_t count) {
    if (count <= most) {
        return i;
    }
    if (i == 0 || i == most - 1) {
        return i == 0 ? 0 : count - 1;
    }
    const int64_t begin = count / most * i + count % most * i / most;
    return begin + (int64_t)(reference_random(0, (uint64_t)i) % (uint64_t)(count / most));
}

reference_comparison reference_compare(const reference_layer *layer, const void *x, const void *w, const void *bias,
                                       const void *z, const void *y, int64_t most) {
    const convjit_type type = layer->desc.data_type;
    reference_comparison all = {.checked = layer->y_count < most ? layer->y_count : most};
    peaks peak = NO_PEAKS;
    double sum_error = 0.0;
    double sum_value = 0.0;
    for (int64_t i = 0; i < all.checked; i++) {
        const int64_t index = pick(i, most, layer->y_count);
        double reach = 0.0;
        const reference_output want = compute(layer, x, w, bias, z, index, &peak, &reach);
        const double got = reference_get(y, type, index);
        const bool written = !reference_is_poison(y, type, index);
        const double over = written ? over_tolerance(got, &want, reference_overflows(type, reach)) : INFINITY;
        all.failed += !(over <= 1.0);
        if (i == 0 || over > all.worst_over_tolerance) {
            all.worst_over_tolerance = over;
            all.worst_index = index;
            all.worst_got = got;
            all.worst_want = want.value;
        }
        if (isfinite(got) && isfinite(want.value)) {
            const double error = fabs(got - want.value);
            sum_error += error * error;
            sum_value += want.value * want.value;
            all.worst_over_sum =
                want.sum_abs > 0.0 ? fmax(all.worst_over_sum, error / want.sum_abs) : all.worst_over_sum;
        }
    }
    all.relative_error = sum_value > 0.0 ? sqrt(sum_error / sum_value) : 0.0;
    return all;
}

void reference_describe(const reference_layer *layer, const reference_comparison *comparison, char *text, size_t size) {
    static const char NAMES[] = "zyx";
    const convjit_desc *d = &layer->desc;
    char where[80] = "";
    if (comparison->checked == 0) {
        (void)snprintf(text, size, "no outputs to compare");
        return;
    }
    const reference_place p = reference_place_of(comparison->worst_index, d->out_channels,
                                                 reference_widen(layer->out_size, d->rank, 1), d->layout);
    int length = 0;
    for (int axis = REFERENCE_AXES - d->rank; axis < REFERENCE_AXES; axis++) {
        length +=
            snprintf(where + length, sizeof where - (size_t)length, " %c=%lld", NAMES[axis], (long long)p.at[axis]);
    }
    (void)snprintf(text, size, "worst at [n=%lld k=%lld%s]: got %.9g, want %.9g, %.3g %% of tolerance",
                   (long long)p.outer, (long long)p.channel, where, comparison->worst_got, comparison->worst_want,
                   100.0 * comparison->worst_over_tolerance);
}
