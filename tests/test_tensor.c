/* test_tensor.c - numerics of the family tensor on the target cpu, chosen by CONVJIT_FAMILY: many layers, and a few on
 * all kinds of data, in the three maths. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "family.h"
#include "numerics.h"
#include "nvrtc_library.h"
#include "ptxas_log.h"
#include "stamp.h"

typedef struct entry {
    const char *line;
    reference_distribution distribution;
    grid_special special;
    grid_residual residual;
    bool slices, shifts;
    int64_t size[3]; /* where the line leaves it open */
} entry;

static const entry entries[] = {
    /* the widths of a tile: short rows, several runs, rows longer than a product */
    {.line = "conv2d n2 c9 k17 in7x7 f3x3 p1", .special = GRID_INF_IN_X},
    {.line = "conv2d n2 c40 k140 in7x7 f1x1 beta=1", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c16 k64 in7x7 f7x7 p3 relu", .special = GRID_NAN_IN_W},
    {.line = "conv2d n1 c8 k16 in1x300 f1x3 p0x1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c13 k40 in1x300 f1x7 s1x2 p0x3", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c11 k70 in3x140 f3x3 p1", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c8 k16 in40x3 f3x3 p1", .special = GRID_HUGE_IN_X},
    {.line = "conv2d n3 c8 k16 in1x1 f3x3 p1", .special = GRID_INF_IN_W},
    {.line = "conv2d n2 c12 k16 in5x5 f5x5", .distribution = REFERENCE_UNIFORM},
    /* kernels, strides and dilations that share no factor, and padding on one side */
    {.line = "conv2d n1 c32 k64 in10x24 f5x9", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c32 k64 in9x24 f5x9 p4x8:0x0", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c16 k32 in15x17 f3x3 s2 p1", .special = GRID_NAN_IN_W},
    {.line = "conv2d n1 c16 k32 in15x17 f3x3 s3 p0x1:2x0", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c19 k33 in13x16 f3x3 s2x3 d3x2 p2x1:0x3", .special = GRID_INF_IN_W},
    {.line = "conv2d n1 c25 k48 in9x33 f3x5 s1x2 d2x3 p2x6", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c10 k129 in10x10 f4x4 d2 p3", .special = GRID_HUGE_IN_X},
    {.line = "conv2d n1 c8 k16 in30x5 f7x1 p3x0", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c17 k20 in6x9 f2x4 s3x1 p1x2:0x1", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n2 c24 k24 in9x9 f1x1 s2", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c8 k16 in5x40 f1x13 p0x6", .distribution = REFERENCE_UNIFORM},
    /* channels: odd counts, several stages, more than one block of outputs */
    {.line = "conv2d n1 c33 k131 in14x14 f3x3 p1 relu", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c15 k65 in6x10 f3x3 p1", .special = GRID_INF_IN_W},
    {.line = "conv2d n1 c35 k16 in5x9 f3x2", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c300 k24 in3x5 f3x3 p1", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c8 k128 in12x12 f5x5 s2 p2 beta=0.5 relu", .residual = GRID_Z_IS_Y},
    {.line = "conv2d n2 c32 k64 g2 in9x10 f3x3 p1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c60 k75 g3 in8x9 f2x4 p1x2:0x1 alpha=0.5", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n2 c17 k17 in6x8 f3x3 p1 beta=1", .residual = GRID_Z_IS_X},
    /* few channels: windows of eight taps along x, whose last ones may not exist */
    {.line = "conv2d n2 c3 k64 in20x30 f5x7", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c3 k24 in23x31 f11x11 s4 p2", .special = GRID_INF_IN_W},
    {.line = "conv2d n2 c1 k16 in13x40 f3x3 d2 p1 relu", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c4 k33 in14x21 f7x7 s2 p3", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c6 k64 g2 in11x20 f3x9 p1x0:1x5", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c2 k80 in1x300 f1x8 p0x3", .special = GRID_HUGE_IN_X},
    {.line = "conv1d n2 c2 k40 in150 f20 s1 p3 d3 beta=1", .special = GRID_NAN_IN_W},
    {.line = "conv3d n2 c3 k64 in6x11x15 f3x5x7", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n2 c3 k20 f3x5 p1x2", .distribution = REFERENCE_UNIFORM, .size = {9, 140}},
    {.line = "conv2d n1 c4 k33 in9x40 f3x3 s2x3 d2 p1", .special = GRID_HUGE_IN_X},
    {.line = "conv2d n1 c2 k20 in7x9 f3x2 p0x1", .distribution = REFERENCE_WIDE, .slices = true, .shifts = true},
    {.line = "conv1d n2 c5 k70 f4 d3 p2", .special = GRID_INF_IN_X, .size = {61}},
    {.line = "conv3d n1 c7 k16 in4x5x9 f2x3x3 s1x2x2 p1", .distribution = REFERENCE_UNIFORM},
    /* sums so long that adding them up in plain float32 breaks the promise, and data that only large numbers rule */
    {.line = "conv1d n1 c4096 k16 in20 f3", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c8192 k16 in2x10 f1x1", .distribution = REFERENCE_WIDE},
    /* one and three axes */
    {.line = "conv1d n2 c24 k32 in77 f5 p2 silu", .special = GRID_INF_IN_X},
    {.line = "conv1d n1 c8 k20 in130 f7 s3 p3:2", .distribution = REFERENCE_UNIFORM},
    {.line = "conv1d n1 c17 k65 in200 f3 d3 p3", .distribution = REFERENCE_WIDE},
    {.line = "conv3d n1 c8 k16 in4x6x9 f3x3x3 p1", .special = GRID_NAN_IN_W},
    {.line = "conv3d n2 c11 k23 in5x7x7 f3x1x5 s2x1x1 p1x0x2", .distribution = REFERENCE_UNIFORM},
    {.line = "conv3d n1 c16 k64 in3x9x11 f2x3x3 d1x2x1 p1x0x2:0x1x1", .special = GRID_HUGE_IN_X},
    {.line = "conv3d n1 c9 k18 in5x4x4 f2x2x2 s2x3x2 p0x1x0:1x0x1", .special = GRID_INF_IN_W},
    /* slices of larger buffers, other types, sizes that are open until forward, all that the epilogue has */
    {.line = "conv2d n2 c16 k24 in7x9 f3x3 p1 beta=1 gelu", .slices = true, .shifts = true},
    {.line = "conv2d n1 c20 k36 in6x11 f3x3 p1 weights=f16 bias=bf16",
     .distribution = REFERENCE_UNIFORM,
     .slices = true},
    {.line = "conv2d n1 c16 k20 in6x11 f2x3 krsc leaky_relu=0.1", .shifts = true},
    {.line = "conv2d n2 c8 k17 f3x3 p1", .special = GRID_INF_IN_X, .size = {9, 150}},
    {.line = "conv2d n2 c12 k80 f3x5 s2 p1x2", .distribution = REFERENCE_UNIFORM, .size = {7, 1}},
    {.line = "conv2d n0 c8 k16 in5x6 f3x3"},
    /* transposed: taps in reverse order, phases that several, one and no tap reaches, along one axis and along all */
    {.line = "convt2d n2 c16 k32 in7x9 f3x5", .special = GRID_NAN_IN_X},
    {.line = "convt2d n1 c9 k70 in6x8 f3x4 p1x2:0x1 d2x1 alpha=0.5 beta=1", .special = GRID_INF_IN_W},
    {.line = "convt1d n2 c12 k24 in150 f5 d3 krsc", .distribution = REFERENCE_WIDE, .shifts = true},
    {.line = "convt2d n2 c8 k8 in6x7 f3x3 s2 p1 op1 relu", .special = GRID_INF_IN_X},
    {.line = "convt3d n1 c32 k32 g4 in3x4x6 f3x5x7 s2 p1x2x3 op1", .distribution = REFERENCE_UNIFORM},
    {.line = "convt2d n1 c16 k32 g2 in9x13 f3x5 s2x3 p1x2 d2x1 silu", .special = GRID_NAN_IN_X},
    {.line = "convt3d n1 c8 k20 in3x4x5 f3x3x3 s2 p1 d2 clamp=-1:2 krsc", .special = GRID_HUGE_IN_X},
    {.line = "convt2d n1 c10 k17 in4x70 f3x3 s5 p1 d2 beta=1", .residual = GRID_Z_IS_Y},
    {.line = "convt2d n1 c10 k18 in5x6 f1x1 s3x2 op2x0 sigmoid", .special = GRID_INF_IN_W, .slices = true},
    {.line = "convt1d n1 c20 k6 in9 filter=16 s8 p4", .distribution = REFERENCE_WIDE},
    {.line = "convt2d n1 c8 k16 in3x150 f2x3 s1x2 weights=f16", .distribution = REFERENCE_UNIFORM},
    {.line = "convt2d n2 c8 k12 f3x4 s2 p1 beta=1", .special = GRID_NAN_IN_X, .size = {9, 80}},
    {.line = "convt1d n1 c9 k30 f4 s3 d2 p2", .distribution = REFERENCE_UNIFORM, .size = {61}},
    /* few output channels: rows of outputs, or columns, become channels */
    {.line = "conv2d n1 c24 k3 in17x19 f3x3 p1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n2 c17 k5 in14x150 f5x7 s2x1 p2x3 gelu beta=0.5", .special = GRID_INF_IN_W},
    {.line = "conv3d n1 c9 k16 in6x7x8 f3x3x3 p1 d1x2x1", .distribution = REFERENCE_WIDE},
    {.line = "convt2d n1 c9 k3 in7x9 f4x4 s2 p1", .special = GRID_HUGE_IN_X},
    {.line = "conv1d n1 c40 k32 g2 in5 f6 s3 p0:15 d3 krsc alpha=-0.5", .special = GRID_INF_IN_W, .slices = true},
    {.line = "conv1d n2 c16 k2 f9 p4 tanh", .special = GRID_INF_IN_X, .size = {200}},
    /* kernels as large as the input and as their stride, of 363 and 961 taps; strides longer than the kernel; one
       output */
    {.line = "conv3d n5 c3 k40 in2x6x6 f2x6x6 s2x6x6", .special = GRID_INF_IN_X},
    {.line = "conv3d n1 c2 k17 in4x13x14 f3x11x11", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c3 k16 in33x35 f31x31", .special = GRID_NAN_IN_X},
    {.line = "convt2d n1 c9 k20 in5x6 f2x2 s3 op2x0", .special = GRID_INF_IN_W},
    {.line = "convt2d n2 c24 k18 in1x1 f1x1", .distribution = REFERENCE_WIDE},
    /* axes that memory does not tell apart */
    {.line = "conv3d n2 c3 k20 in9x8x5 f3x3x1 p1x1x0", .special = GRID_NAN_IN_X},
    {.line = "conv3d n1 c20 k24 in4x5x6 f2x1x1 s2x1x1 beta=1", .special = GRID_INF_IN_X},
    {.line = "convt3d n1 c10 k18 in4x5x6 f3x3x1 p1x0x0", .distribution = REFERENCE_UNIFORM},
    /* images that are positions: a few, many tiles of them for a block, with channels that are apart, and a residual;
       of many stages, so that scales change */
    {.line = "conv2d n4500 c2 k16 in2x2 f2x2", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n140 c36 k33 in1x1 hint=140 f1x1 silu", .special = GRID_NAN_IN_X, .slices = true},
    {.line = "conv1d n70 c12 k140 g2 in8 hint=4096 f8 beta=1", .special = GRID_INF_IN_W, .shifts = true},
    {.line = "conv2d n33 c5 k20 in3x3 hint=33 f3x3 relu", .special = GRID_HUGE_IN_X},
    {.line = "conv3d n100 c3 k150 in2x14x14 hint=4096 f2x14x14 s2x14x14", .distribution = REFERENCE_WIDE},
    /* tiles of a single image, as small as they get */
    {.line = "conv2d n2 c24 k70 in14x14 hint=1 f3x3 p1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c40 k140 in7x7 hint=1 f1x1 beta=1", .distribution = REFERENCE_WIDE},
    {.line = "convt2d n1 c16 k20 in6x9 hint=1 f4x4 s2 p1 relu", .special = GRID_INF_IN_W},
    /* warps that store outputs, as many images need them */
    {.line = "conv1d n1 c48 k66 in150 hint=4096 f3", .special = GRID_NAN_IN_X, .slices = true, .shifts = true},
    {.line = "conv2d n1 c32 k128 in9x30 hint=4096 f7x7", .special = GRID_INF_IN_W, .slices = true},
    {.line = "conv2d n1 c16 k128 in4x210 hint=4096 f3x3", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c24 k140 in3x75 hint=4096 f3x3 relu", .distribution = REFERENCE_WIDE, .shifts = true},
    /* many channels, of which a consumer has several blocks in math tf32 */
    {.line = "conv2d n1 c16 k200 in6x8 hint=4096 f1x1", .special = GRID_NAN_IN_X, .shifts = true},
    {.line = "conv2d n2 c40 k500 in4x28 hint=4096 f1x1 s2", .special = GRID_INF_IN_W},
    {.line = "convt1d n1 c16 k90 in30 hint=4096 f8 s8 silu", .distribution = REFERENCE_WIDE, .slices = true},
    /* many phases that no tap reaches */
    {.line = "convt3d n1 c32 k64 in3x6x32 hint=4096 f3x3x3 s2 p1 d2", .special = GRID_INF_IN_X, .slices = true},
    /* two runs a consumer; rows that are joined */
    {.line = "conv2d n1 c32 k66 in24x104 f3x3", .distribution = REFERENCE_UNIFORM},
    {.line = "conv3d n2 c3 k64 in7x9x10 f3x3x1 s2x1x1 p1x2x0 beta=1", .special = GRID_INF_IN_X, .slices = true},
    /* few channels whose lines are over a multiple of 8 */
    {.line = "conv2d n1 c3 k64 in12x300 f3x3", .special = GRID_INF_IN_X},
    {.line = "conv2d n2 c3 k96 in40x227 f11x11 s4", .special = GRID_NAN_IN_W},
};

/* Layers that see every distribution: channels by eights and windows of few, strides, groups with an epilogue. */
static const char *const data_lines[] = {
    "conv2d n2 c35 k20 in7x9 f3x3 p1",
    "conv2d n2 c3 k24 in9x20 f5x7 p2x3",
    "conv2d n1 c19 k33 in11x14 f3x3 s2x3 p1",
    "conv2d n1 c4 k17 in19x23 f7x7 s2 p3",
    "conv2d n1 c32 k64 g2 in6x8 f2x3 p0x1 alpha=0.5 beta=1",
};

enum {
    ENTRIES = sizeof entries / sizeof *entries,
    DATA_LINES = sizeof data_lines / sizeof *data_lines,
    MATHS = CONVJIT_TF32 + 1,
    SHARDS = 8
};

static convjit_desc parse(const char *line, int64_t *batch) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, batch), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return desc;
}

/* For time each layer is computed in two of the maths. */
static bool is_computed(size_t index, int math) {
    return (index + (size_t)math) % MATHS != 0;
}

static grid_case case_of(size_t index, convjit_math math) {
    const entry *from = &entries[index];
    grid_case grid = {.seed = MATHS * index + math, /* also says how memory is laid out */
                      .distribution = from->distribution,
                      .special = from->special,
                      .residual = from->residual,
                      .bias = index % 4 != 3,
                      .slice_x = from->slices,
                      .slice_y = from->slices,
                      .slice_z = from->slices,
                      .shift_x = from->shifts,
                      .shift_y = from->shifts,
                      .shift_z = from->shifts,
                      .shift_w = from->shifts};
    grid.desc = parse(from->line, &grid.batch);
    grid.desc.math = math;
    memcpy(grid.in_size, grid.desc.in_size[0] != 0 ? grid.desc.in_size : from->size, sizeof grid.in_size);
    return grid;
}

static void choose_tensor(void) {
    cr_assert_eq(setenv("CONVJIT_FAMILY", "tensor", 1), 0);
}

static void expect_promise(numerics *on, const grid_case *grid) {
    char text[4096], line[GRID_TEXT_MAX];
    grid_describe(grid, line, sizeof line);
    cr_expect(numerics_run_case(on, grid, text, sizeof text), "%s: %s", line, text);
}

/* Criterion runs parameters in processes of their own, side by side; each takes every SHARDS-th case. */
static struct criterion_test_params shards(void) {
    static int numbers[SHARDS];
    for (int i = 0; i < SHARDS; ++i) {
        numbers[i] = i;
    }
    return cr_make_param_array(int, numbers, SHARDS);
}

ParameterizedTestParameters(tensor, keeps_its_promise_in_every_math) {
    return shards();
}

ParameterizedTest(int *shard, tensor, keeps_its_promise_in_every_math, .init = choose_tensor) {
    numerics on;
    char text[4096];
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    for (size_t i = (size_t)*shard * testing_stride(); i < ENTRIES; i += SHARDS * testing_stride()) {
        for (int math = 0; math < MATHS; ++math) {
            if (is_computed(i, math)) {
                const grid_case grid = case_of(i, (convjit_math)math);
                expect_promise(&on, &grid);
            }
        }
    }
    numerics_close(&on);
}

ParameterizedTestParameters(tensor, keeps_its_promise_on_every_kind_of_data) {
    static int layers[DATA_LINES];
    for (int i = 0; i < DATA_LINES; ++i) {
        layers[i] = i;
    }
    return cr_make_param_array(int, layers, DATA_LINES);
}

ParameterizedTest(int *layer, tensor, keeps_its_promise_on_every_kind_of_data, .init = choose_tensor) {
    numerics on;
    char text[4096];
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    for (size_t i = 0; i < REFERENCE_DISTRIBUTIONS * MATHS; i += testing_stride()) {
        grid_case grid = {.seed = i, .distribution = (reference_distribution)(i / MATHS)};
        grid.desc = parse(data_lines[*layer], &grid.batch);
        grid.desc.math = (convjit_math)(i % MATHS);
        memcpy(grid.in_size, grid.desc.in_size, sizeof grid.in_size);
        expect_promise(&on, &grid);
    }
    numerics_close(&on);
}

/* Registers in memory that some layers of the benchmark have today, of the state around a tile; no more are let in. */
enum { MOST_SPILLED_BYTES = 144 };

/* ptxas tells of products that wait for each other because it lacks registers (C75xx), and of registers in memory. */
static void expect_good_code(const char *line, convjit_desc desc, convjit_math math, long spilled,
                             const cj_target *target) {
    cj_problem problem;
    cj_plan plan = {.family = &cj_family_tensor};
    cj_text source = {0};
    cj_blob binary = {0};
    desc.math = math;
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
    if (cj_family_tensor.refuses(&problem, target)) {
        return;
    }
    cj_family_tensor.plan(&problem, target, &plan);
    cr_assert_eq(cj_stamp(&problem, &plan, target, &source), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(cj_nvrtc.compile(target, source.data, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_null(strstr(cj_nvrtc_last_log(), "C75"), "%s: %s", line, cj_nvrtc_last_log());
    expect_spilled(spilled, line, cj_nvrtc_last_log());
    free(binary.data);
    cj_text_free(&source);
}

/* Skips the test where there is no compiler. */
static cj_target open_compiler(void) {
    char id[CJ_COMPILER_ID_MAX];
    cj_target target;
    if (cj_nvrtc.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("%s", convjit_last_error());
    }
    cr_assert_eq(cj_target_parse("sm_90a", &target), CONVJIT_SUCCESS);
    return target;
}

/* As numerics, but every third case: a compile takes a second. */
ParameterizedTestParameters(tensor, compiles_for_sm_90a_without_spills_or_serialised_products) {
    return shards();
}

ParameterizedTest(int *shard, tensor, compiles_for_sm_90a_without_spills_or_serialised_products) {
    const cj_target target = open_compiler();
    for (size_t i = 3 * (size_t)*shard * testing_stride(); i < ENTRIES; i += 3 * SHARDS * testing_stride()) {
        const convjit_math math = (convjit_math)(i / 3 % MATHS);
        expect_good_code(entries[i].line, case_of(i, math).desc, math, 0, &target);
    }
}

/* ... and all layers of the benchmark, each in one of the maths. */
ParameterizedTestParameters(tensor, compiles_the_benchmarks_layers_without_serialised_products) {
    return shards();
}

ParameterizedTest(int *shard, tensor, compiles_the_benchmarks_layers_without_serialised_products) {
    const cj_target target = open_compiler();
    FILE *file = fopen("tools/bench/layers.txt", "r");
    char line[CONVJIT_LAYER_LINE_MAX + 64];
    size_t layers = 0;
    cr_assert_not_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        convjit_desc desc;
        int64_t batch;
        const char *layer = strstr(line, ": ");
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#' || layer == NULL || convjit_layer_line_parse(layer + 2, &desc, &batch) != CONVJIT_SUCCESS) {
            continue;
        }
        desc.batch_hint = batch; /* as the benchmark does */
        if (layers % (SHARDS * testing_stride()) == (size_t)*shard * testing_stride()) {
            expect_good_code(line, desc, (convjit_math)(layers % MATHS), MOST_SPILLED_BYTES, &target);
        }
        ++layers;
    }
    cr_expect_geq(layers, 72);
    fclose(file);
}

/* Layers of ResNet-50 for one image: a plan for it keeps most multiprocessors busy, one for any batch does not. */
Test(tensor, plans_for_the_batch_that_is_hinted_at) {
    static const char *const lines[] = {"conv2d c64 k64 in56x56 f3x3 p1", "conv2d c256 k256 in14x14 f3x3 p1",
                                        "conv2d c512 k2048 in7x7 f1x1"};
    cj_target target;
    cr_assert_eq(cj_target_parse("sm_90a", &target), CONVJIT_SUCCESS);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; ++i) {
        for (int math = 0; math < MATHS; ++math) {
            cj_problem any, one;
            cj_plan for_any = {.family = &cj_family_tensor}, for_one = for_any;
            convjit_desc desc = parse(lines[i], NULL);
            desc.math = (convjit_math)math;
            cr_assert_eq(cj_problem_make(&desc, &any), CONVJIT_SUCCESS, "%s", convjit_last_error());
            desc.batch_hint = 1;
            cr_assert_eq(cj_problem_make(&desc, &one), CONVJIT_SUCCESS, "%s", convjit_last_error());
            cj_family_tensor.plan(&any, &target, &for_any);
            cj_family_tensor.plan(&one, &target, &for_one);
            cr_expect_lt(1.05 * cj_family_predict_ms(&one, &for_one, 1), cj_family_predict_ms(&any, &for_any, 1), "%s",
                         lines[i]);
            cr_expect_leq(cj_family_predict_ms(&any, &for_any, 0), cj_family_predict_ms(&one, &for_one, 0), "%s",
                          lines[i]);
        }
    }
}

/* The plan chooses; if it comes to choose otherwise, layers must be added above for the ways that none meets any more.
 */
Test(tensor, has_layers_for_every_way_to_compute_one) {
    enum { WAYS = 31 };
    static const char *const names[WAYS] = {"no fold",
                                            "fold along z and y",
                                            "fold along x too",
                                            "lines over a multiple of 8 spread",
                                            "... and filled apart",
                                            "a last sum that is shorter",
                                            "a kernel row a stage",
                                            "runs that overlap",
                                            "runs side by side",
                                            "runs of rows",
                                            "a run a consumer",
                                            "two runs a consumer",
                                            "consumers of pixels",
                                            "consumers of K",
                                            "one filling group",
                                            "two of them",
                                            "staying weights",
                                            "a ring of them",
                                            "weights of stages",
                                            "outputs in buffers of their own",
                                            "one filling group, storing warps beside staying weights",
                                            "... beside a ring of them",
                                            "... with input brought ahead",
                                            "... with two runs a consumer",
                                            "... with a buffer a warp",
                                            "one filling group, phases that no tap reaches",
                                            "two blocks a consumer",
                                            "... and storing warps",
                                            "four blocks a consumer",
                                            "images as positions, one filling group",
                                            "... two of them"};
    cj_target target;
    bool met[WAYS] = {false};
    if (testing_stride() > 1) {
        cr_skip_test("a minute of planning that each build does alike");
    }
    cr_assert_eq(cj_target_parse("cpu", &target), CONVJIT_SUCCESS);
    for (size_t i = 0; i < ENTRIES * MATHS; ++i) {
        const grid_case grid = case_of(i / MATHS, (convjit_math)(i % MATHS));
        cj_problem problem;
        cj_plan plan = {.family = &cj_family_tensor};
        if (!is_computed(i / MATHS, (int)(i % MATHS))) {
            continue;
        }
        cr_assert_eq(cj_problem_make(&grid.desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cj_family_tensor.plan(&problem, &target, &plan);
        const cj_tensor_config *c = &plan.tensor;
        const bool alone = problem.group_out <= 64 * c->consumers_k * c->own_blocks && problem.desc.groups == 1;
        const bool ways[WAYS] = {c->fold == 0,
                                 c->fold == 1,
                                 c->fold == 2,
                                 c->spread > 0,
                                 c->spread > 0 && problem.stride[CJ_X] > 1,
                                 c->slot_products % c->sum_products > 0,
                                 c->fold == 0 && c->chunk_y<problem.kernel[CJ_Y], c->overlap> 0,
                                 c->runs_x > 1,
                                 c->run_rows > 1,
                                 c->own_runs == 1,
                                 c->own_runs == 2,
                                 c->consumers_k == 1,
                                 c->consumers_k == 2,
                                 c->fill_groups == 1,
                                 c->fill_groups == 2,
                                 alone && c->slots != 2 && c->slots != 4,
                                 !alone && c->fill_groups == 1,
                                 !alone && c->fill_groups == 2,
                                 c->out_buffers > 1,
                                 c->storing && alone && c->slots != 2 && c->slots != 4,
                                 c->storing && !alone,
                                 c->storing && c->fold == 0 && problem.kernel[CJ_Y] == 1,
                                 c->storing && c->own_runs == 2,
                                 c->storing && c->out_buffers == 1,
                                 c->fill_groups == 1 && c->active[CJ_Z] < c->phases[CJ_Z],
                                 c->own_blocks == 2,
                                 c->own_blocks == 2 && c->storing,
                                 c->own_blocks == 4,
                                 c->image_taps > 0 && c->fill_groups == 1,
                                 c->image_taps > 0 && c->fill_groups == 2};
        for (int way = 0; way < WAYS; ++way) {
            met[way] = met[way] || ways[way];
        }
    }
    for (int way = 0; way < WAYS; ++way) {
        cr_expect(met[way], "no layer above: %s", names[way]);
    }
}

Test(tensor, refuses_other_layers_with_the_reason, .init = choose_tensor) {
    static const char *const refused[][2] = {
        {"convt2d c16 k16 in7x7 f3x3 s65", "tensor: stride of a transposed layer over 64"},
        {"convt2d c16 k16 in7x7 f9x9 s9", "tensor: more than 8 phases along x that taps reach"},
        {"conv2d c16 k16 in7x7 f3x3 f16", "tensor: is for f32 data"},
        {"conv2d c16 k16 in7x7 f3x3 bf16", "tensor: is for f32 data"},
        {"conv2d c16 k16 in7x7 f3x3 nhwc", "tensor: is for channels first"},
        {"conv2d c16 k1 in2x2 f2x2", "tensor: fewer than 16 output channels a group"},
        {"conv2d c16 k16 in7x70 f1x33", "tensor: kernel wider than 32"},
        {"conv2d c16 k16 in7x7 f3x3 s1025", "tensor: stride or dilation over 1024"},
        {"conv2d c16 k16 in7x32000 f1x32 d1024", "tensor: no tile of it fits shared memory"},
        {"conv1d c16777216 k268435456 g16777216 in9 f3", "tensor: more than 2147483647 rows of products"},
        {"conv2d c1048576 k1048576 in1024x32 f1024x32", "tensor: more than 1099511627776 weights"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        int64_t batch;
        const convjit_desc desc = parse(refused[i][0], &batch);
        cr_expect_eq(convjit_supported(&desc, "cpu"), CONVJIT_UNSUPPORTED, "%s", refused[i][0]);
        cr_expect_not_null(strstr(convjit_last_error(), refused[i][1]), "%s: %s", refused[i][0], convjit_last_error());
    }
}

Test(tensor, takes_the_smallest_layer_it_does_not_refuse, .init = choose_tensor) {
    int64_t batch;
    const convjit_desc desc = parse("conv2d c1 k16 in1x1 f1x1", &batch);
    cr_expect_eq(convjit_supported(&desc, "cpu"), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(convjit_supported(&desc, "sm_90a"), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(convjit_supported(&desc, "sm_80"), CONVJIT_UNSUPPORTED);
    cr_expect_not_null(strstr(convjit_last_error(), "tensor: not sm_90a"), "%s", convjit_last_error());
}
