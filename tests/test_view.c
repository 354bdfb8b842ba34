/* test_view.c - a layer as a convolution on a grid: which input each output reads with each tap, by the view and by the
 * definition of the two operations. */
#include "view.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "testing.h"

enum { NONE = -1, MANY = -2 };

static int64_t volume(const int64_t size[CJ_DIMS]) {
    return size[CJ_Z] * size[CJ_Y] * size[CJ_X];
}

/* Coordinates of an element, x fastest. */
static void split(int64_t index, const int64_t size[CJ_DIMS], int64_t at[CJ_DIMS]) {
    for (int d = CJ_DIMS - 1; d >= 0; --d) {
        at[d] = index % size[d];
        index /= size[d];
    }
}

static int64_t join(const int64_t at[CJ_DIMS], const int64_t size[CJ_DIMS]) {
    return (at[CJ_Z] * size[CJ_Y] + at[CJ_Y]) * size[CJ_X] + at[CJ_X];
}

/* The input that an output reads with a tap, by definition; NONE in the padding, or between inputs. */
static int64_t defined(const cj_problem *p, int64_t output, int64_t tap) {
    int64_t o[CJ_DIMS], t[CJ_DIMS], in[CJ_DIMS];
    split(output, p->out_size, o);
    split(tap, p->kernel, t);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t shift = t[d] * p->dilation[d] - p->pad_begin[d];
        const int64_t at = p->transposed ? o[d] - shift : o[d] * p->stride[d] + shift;
        if (at < 0 || (p->transposed && at % p->stride[d] != 0)) {
            return NONE;
        }
        in[d] = p->transposed ? at / p->stride[d] : at;
        if (in[d] >= p->in_size[d]) {
            return NONE;
        }
    }
    return join(in, p->in_size);
}

/* The layer's tap that a tap of the grid's convolution is for a phase, or NONE. */
static int64_t tap_of(const cj_view *v, int d, int64_t tap, int64_t phase) {
    const cj_axis *a = &v->axes[d];
    const int64_t at = a->up * (tap * v->grid.dilation[d] - v->grid.pad_begin[d]) + a->shift - a->down * phase;
    if (at < 0 || at % a->spacing != 0 || at / a->spacing >= a->taps) {
        return NONE;
    }
    return v->layer.transposed ? a->taps - 1 - at / a->spacing : at / a->spacing;
}

/* Writes down what the view's products read for an output: input[tap], NONE where it is nothing. */
static void view_output(const cj_view *v, int64_t output, int64_t *input) {
    const int64_t taps[CJ_DIMS] = {v->axes[CJ_Z].taps, v->axes[CJ_Y].taps, v->axes[CJ_X].taps};
    int64_t o[CJ_DIMS];
    split(output, v->layer.out_size, o);
    for (int64_t i = 0; i < volume(v->grid.kernel); ++i) {
        int64_t u[CJ_DIMS], t[CJ_DIMS], in[CJ_DIMS];
        bool there = true;
        split(i, v->grid.kernel, u);
        for (int d = 0; d < CJ_DIMS; ++d) {
            const int64_t from_first = o[d] + v->axes[d].lead, position = from_first / v->axes[d].phases;
            t[d] = tap_of(v, d, u[d], from_first % v->axes[d].phases);
            in[d] = position * v->grid.stride[d] + u[d] * v->grid.dilation[d] - v->grid.pad_begin[d];
            there = there && t[d] != NONE && in[d] >= 0 && in[d] < v->layer.in_size[d];
        }
        if (there) {
            int64_t *const found = &input[join(t, taps)];
            *found = *found == NONE ? join(in, v->layer.in_size) : MANY;
        }
    }
}

static void expect_same_reads(const cj_problem *p, const char *line) {
    const cj_view v = cj_view_of(p);
    const int64_t taps = volume(p->kernel), outputs = volume(p->out_size);
    int64_t *const input = malloc((size_t)taps * sizeof *input);
    cr_assert_not_null(input);
    cr_assert_eq(volume(v.layer.out_size), outputs, "%s", line);
    cr_assert_eq(volume(v.layer.in_size), volume(p->in_size), "%s", line);
    for (int64_t o = 0; o < outputs; ++o) {
        for (int64_t t = 0; t < taps; ++t) {
            input[t] = NONE;
        }
        view_output(&v, o, input);
        for (int64_t t = 0; t < taps; ++t) {
            cr_assert_eq(input[t], defined(p, o, t), "%s: output %lld, tap %lld: %lld, not %lld", line, (long long)o,
                         (long long)t, (long long)input[t], (long long)defined(p, o, t));
        }
    }
    free(input);
}

/* What the kernel counts on. */
static void expect_consistent(const cj_view *v, const char *line) {
    int64_t phases = 1;
    for (int d = 0; d < CJ_DIMS; ++d) {
        const cj_axis *a = &v->axes[d];
        int64_t reached = 0;
        for (int64_t phase = 0; phase < a->phases; ++phase) {
            reached += cj_axis_reaches(a, phase);
        }
        cr_expect_eq(reached, a->active, "%s: axis %d: %lld phases reached, not %lld", line, d, (long long)reached,
                     (long long)a->active);
        cr_expect(a->lead == 0 || (a->lead > 0 && a->lead < a->phases && a->active == a->phases), "%s", line);
        int64_t size = v->layer.out_size[d] + a->lead; /* along z, positions behind all that taps reach are none */
        for (int64_t phase = 0; d == CJ_Z && !cj_axis_reaches(a, phase) && size > 1; ++phase) {
            --size;
        }
        cr_expect_eq(v->grid.out_size[d], (size + a->phases - 1) / a->phases, "%s", line);
        phases *= a->phases;
    }
    cr_expect_leq(v->axes[CJ_X].active, CJ_ROWS, "%s", line);
    cr_expect(phases > 1 ? v->grid.group_out % CJ_ROWS == 0 : v->grid.group_out == v->layer.group_out, "%s", line);
}

static int64_t pick(uint64_t *state, int64_t from, int64_t to) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return from + (int64_t)((*state >> 33) % (uint64_t)(to - from + 1));
}

/* A random layer of three axes, some of which are trivial; false if it is none. */
static bool make_layer(uint64_t *state, cj_problem *p, char *line, size_t size) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    desc.rank = 3;
    desc.operation = pick(state, 0, 1) ? CONVJIT_TRANSPOSED : CONVJIT_CONVOLUTION;
    desc.in_channels = 8;
    desc.out_channels = pick(state, 1, 3) == 1 ? 64 : pick(state, 1, 24);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const bool trivial = pick(state, 0, 2) == 0;
        desc.in_size[d] = pick(state, 1, trivial ? 5 : 9);
        desc.kernel[d] = trivial ? 1 : pick(state, 1, 5);
        desc.stride[d] = pick(state, 0, 2) ? 1 : pick(state, 1, 5);
        desc.dilation[d] = pick(state, 0, 1) ? 1 : pick(state, 1, 4);
        desc.pad_begin[d] = trivial && pick(state, 0, 3) ? 0 : pick(state, 0, 6);
        desc.pad_end[d] = trivial && pick(state, 0, 3) ? 0 : pick(state, 0, 6);
        desc.output_padding[d] =
            desc.operation == CONVJIT_TRANSPOSED && desc.stride[d] > 1 ? pick(state, 0, desc.stride[d] - 1) : 0;
    }
    convjit_layer_line_format(&desc, 1, line, size);
    return cj_problem_make(&desc, p) == CONVJIT_SUCCESS && volume(p->out_size) > 0 && cj_view_refuses(p) == NULL &&
           cj_view_of(p).image_taps == 0;
}

Test(view, reads_what_the_layer_reads) {
    uint64_t state = 1;
    int layers = 0, transposed = 0, phased = 0, joined = 0, folded = 0, skipping = 0, leading = 0;
    while (layers < 3000 / (int)testing_stride()) {
        cj_problem p;
        char line[CONVJIT_LAYER_LINE_MAX];
        if (!make_layer(&state, &p, line, sizeof line)) {
            continue;
        }
        const cj_view v = cj_view_of(&p);
        const cj_axis *x = &v.axes[CJ_X], *y = &v.axes[CJ_Y], *z = &v.axes[CJ_Z];
        expect_same_reads(&p, line);
        expect_consistent(&v, line);
        ++layers;
        transposed += p.transposed;
        phased += x->phases * y->phases * z->phases > 1;
        folded += x->phases > x->up || y->phases > y->up || z->phases > z->up;
        skipping += x->active < x->phases || y->active < y->phases || z->active < z->phases;
        leading += x->lead + y->lead + z->lead > 0;
        joined += v.layer.in_size[CJ_X] != p.in_size[CJ_X];
    }
    const int least = layers / 20;
    cr_expect(transposed > least && phased > least && folded > least && skipping > least && joined > least &&
                  leading > 0,
              "%d transposed, %d with phases, %d folded, %d with phases that no tap reaches, %d joined, %d with a lead",
              transposed, phased, folded, skipping, joined, leading);
}

static cj_view view_of(const char *line) {
    convjit_desc desc;
    cj_problem p;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_eq(cj_problem_make(&desc, &p), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_null(cj_view_refuses(&p), "%s: %s", line, cj_view_refuses(&p));
    return cj_view_of(&p);
}

Test(view, of_stride_1_has_no_phases) {
    const cj_view v = view_of("convt2d c16 k64 in7x9 f3x5 p1x0 d2x1");
    cr_expect_eq(v.grid.group_out, 64);
    cr_expect_eq(v.grid.kernel[CJ_X], 5);
    cr_expect_eq(v.grid.pad_begin[CJ_X], 4);
    cr_expect_eq(v.grid.dilation[CJ_Y], 2);
    cr_expect_eq(v.grid.pad_begin[CJ_Y], 3);
}

/* One phase of eight has taps: its rows alone are computed. */
Test(view, leaves_out_phases_that_no_tap_reaches) {
    const cj_view v = view_of("convt3d c32 k64 in16x32x32 f3x3x3 s2 p1 d2");
    cr_expect_eq(v.grid.group_out, 64);
    cr_expect_eq(v.axes[CJ_Y].phases, 2);
    cr_expect_eq(v.axes[CJ_Y].active, 1);
    cr_expect_eq(v.grid.kernel[CJ_Y], 3);
    cr_expect_eq(v.grid.out_size[CJ_X], 33);
}

/* A kernel of twice the stride has two taps an output: the grid has no more where phases begin before the axis. */
Test(view, begins_where_phases_share_their_taps) {
    const cj_view upsampling = view_of("convt2d c32 k64 in16x20 f4x4 s2 p1"),
                  longer = view_of("convt1d c8 k16 in9 filter=16 s8 p4");
    cr_expect_eq(upsampling.grid.kernel[CJ_Y] * upsampling.grid.kernel[CJ_X], 4);
    cr_expect_eq(upsampling.axes[CJ_X].lead, 1);
    cr_expect_eq(upsampling.grid.out_size[CJ_X], 21);
    cr_expect_eq(longer.grid.kernel[CJ_X], 2);
    cr_expect_eq(longer.axes[CJ_X].lead, 4);
    cr_expect_eq(view_of("convt2d c32 k64 in16x20 f3x3 s2 p1").axes[CJ_X].lead, 0);
}

/* Weights of an output channel, and the images, lie in memory as the lines of a convolution of one tap. */
Test(view, makes_positions_of_whole_images) {
    const cj_view v = view_of("conv3d c6 k40 g2 in2x5x6 f2x5x6 s2x5x6");
    cr_expect_eq(v.image_taps, 60);
    cr_expect_eq(v.grid.group_in, 180);
    cr_expect_eq(v.grid.kernel[CJ_X], 1);
    cr_expect_eq(view_of("conv2d c32 k64 in1x1 f1x1").image_taps, 1);
    cr_expect_eq(view_of("conv2d c6 k40 in5x6 f5x6 p0x0:0x1").image_taps, 0);
    cr_expect_eq(view_of("conv2d c6 k40 in5x6 f5x6 krsc").image_taps, 0);
    cr_expect_eq(view_of("convt2d c6 k40 in1x1 f1x1").image_taps, 0);
    cr_expect_eq(view_of("conv2d c1024 k40 in32x32 f32x32").image_taps, 1024);
    cr_expect_eq(view_of("conv2d c1025 k40 in32x32 f32x32").image_taps, 0); /* more than 1048576 lines */
}

Test(view, makes_channels_of_rows_where_they_are_few) {
    cr_expect_eq(view_of("conv2d c32 k64 in64x64 f3x3").grid.group_out, 64);
    cr_expect_eq(view_of("conv2d c32 k32 in64x64 f3x3").grid.group_out, 64);
    cr_expect_geq(view_of("conv2d c32 k3 in64x64 f3x3").grid.group_out, 32);
}

Test(view, joins_axes_that_memory_does_not_tell_apart) {
    cr_expect_eq(view_of("conv2d c32 k64 in7x9 f1x1").grid.out_size[CJ_X], 63);
    cr_expect_eq(view_of("conv3d c3 k64 in8x9x10 f3x3x1").grid.out_size[CJ_X], 70);
    cr_expect_eq(view_of("conv2d c32 k64 in7x9 f1x1 p0x1").grid.out_size[CJ_X], 11);
    cr_expect_eq(view_of("conv2d c32 k64 in7x9 f1x1 s2").grid.out_size[CJ_X], 5);
}
