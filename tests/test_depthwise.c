/* test_depthwise.c - numerics of the family depthwise on the target cpu, chosen by CONVJIT_FAMILY, beyond the grid's
 * layers; that its plans meet every way to compute one; what it refuses, and when it is chosen. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
} entry;

static const entry entries[] = {
    /* rows of every width modulo a vector, planes of a few elements, several planes a block and a last block of fewer
     */
    {.line = "conv2d n3 c50 k50 g50 in7x7 f3x3 p1", .special = GRID_INF_IN_X},
    {.line = "conv2d n2 c33 k33 g33 in14x14 f5x5 p2 silu", .special = GRID_NAN_IN_W},
    {.line = "conv2d n2 c7 k7 g7 in28x28 f3x3 s2 p1 relu", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c3 k3 g3 in56x56 f7x7 p3 beta=1", .residual = GRID_Z_IS_Y},
    {.line = "conv2d n1 c2 k2 g2 in30x112 f3x3 p1", .special = GRID_INF_IN_W, .shifts = true},
    {.line = "conv2d n2 c20 k20 g20 in1x1 f3x3 p1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n2 c9 k9 g9 in5x5 f5x5 bias=f16", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c300 k300 g300 in2x3 f2x3", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c5 k5 g5 in9x4 f4x4 s4", .special = GRID_NAN_IN_W},
    {.line = "conv2d n1 c4 k4 g4 in16x17 f2x3 s5x7 p1", .special = GRID_INF_IN_X},
    {.line = "conv2d n1300 c1 k1 g1 in4x5 f3x3 p1", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c1 k1 in70000x1 f3x1 p1x0", .special = GRID_NAN_IN_X},
    /* one output a row, whose rows are too long to be whole under it */
    {.line = "conv2d n1 c1 k3 in100x212 f8x5 s1x300 d9x1", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c1 k1 in1x70001 f1x3 s1x2 p0x1 f16", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c2 k2 g2 in20x1 f3x1 d2x1 p2x0", .special = GRID_INF_IN_X},
    /* padding at one end, wider than the kernel, and windows that lie in it */
    {.line = "conv2d n1 c3 k3 g3 in8x9 f3x3 p0x3:4x0", .special = GRID_NAN_IN_W},
    {.line = "conv2d n1 c3 k3 g3 in3x2 f2x3 p4x5", .special = GRID_INF_IN_W},
    {.line = "conv2d n1 c2 k2 g2 in10x40 f3x3 d3x9 p3x9", .special = GRID_INF_IN_X},
    /* long kernels: rows of taps in loops, sums in parts, data that only large numbers rule */
    {.line = "conv2d n1 c2 k2 g2 in1x1 f31x31 p15", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c2 k2 g2 in33x35 f31x31 p3", .special = GRID_INF_IN_W},
    {.line = "conv1d n1 c2 k2 g2 in700 f363 p7", .distribution = REFERENCE_UNIFORM},
    {.line = "conv1d n1 c3 k3 g3 in999 f363 s2 p50 nhwc", .special = GRID_INF_IN_X},
    {.line = "conv1d n2 c3 k3 g3 in500 f31 d3 p45", .special = GRID_NAN_IN_W},
    {.line = "conv1d n1 c2 k2 g2 in300 f37 p18", .distribution = REFERENCE_WIDE},
    {.line = "conv2d n1 c2 k2 g2 in20x30 f7x7 p3", .distribution = REFERENCE_OUTLIER},
    {.line = "conv2d n1 c2 k2 g2 in9x10 f7x7 p3", .special = GRID_HUGE_IN_X},
    {.line = "conv3d n1 c2 k2 g2 in9x10x9 f3x5x5 p1x2x2", .special = GRID_INF_IN_W},
    /* several outputs of an input channel, all of them or not in one block */
    {.line = "conv2d n2 c5 k10 g5 in7x7 f3x3 p1", .special = GRID_INF_IN_X, .slices = true},
    {.line = "conv2d n1 c2 k22 g2 in9x30 f3x3 p1", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c1 k40 in12x12 f3x3", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n2 c3 k9 g3 in6x7 f2x2 nhwc", .special = GRID_INF_IN_W, .slices = true},
    /* strips: lanes left over, a last warp of fewer planes, a last strip of fewer rows, both ends in the padding */
    {.line = "conv2d n2 c9 k9 g9 in56x56 f7x7 p3 hint=1500", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c5 k5 g5 in45x60 f7x7 p3 hint=1000 silu", .special = GRID_NAN_IN_W, .shifts = true},
    {.line = "conv2d n3 c5 k5 g5 in45x112 f7x7 s2 p3 hint=1500 beta=1", .residual = GRID_Z_IS_Y},
    {.line = "conv2d n2 c6 k6 g6 in28x28 f7x7 p3 hint=1500 beta=0.5", .residual = GRID_Z_APART, .slices = true},
    {.line = "conv2d n1 c7 k7 g7 in56x56 f5x5 p2 hint=1500 relu", .special = GRID_INF_IN_W, .slices = true},
    {.line = "conv2d n2 c3 k3 g3 in64x56 f7x7 p6x3:0x3 hint=1500", .distribution = REFERENCE_UNIFORM},
    {.line = "conv2d n1 c3 k3 g3 in30x44 f6x7 s3x1 p9x3 d1 hint=1500", .special = GRID_NAN_IN_X},
    {.line = "conv2d n1 c2 k2 g2 in56x56 f7x7 p3 hint=1500", .distribution = REFERENCE_OUTLIER},
    /* one and three axes */
    {.line = "conv1d n2 c3 k3 g3 in5000 f7 p3 gelu", .special = GRID_NAN_IN_X},
    {.line = "conv3d n2 c4 k4 g4 in5x6x7 f3x3x3 p1", .special = GRID_INF_IN_W},
    {.line = "conv3d n1 c2 k6 g2 in9x12x20 f3x1x5 s2x1x1 p1x0x2", .distribution = REFERENCE_UNIFORM},
    {.line = "conv3d n1 c2 k2 g2 in20x9x9 f2x2x2 s2x3x2 d2x1x1 p0x1x0:1x0x1 nhwc", .special = GRID_NAN_IN_W},
    /* channels last: counts that vectors do not divide */
    {.line = "conv2d n2 c35 k35 g35 in9x10 f3x3 p1 nhwc krsc", .special = GRID_INF_IN_X},
    {.line = "conv2d n1 c96 k96 g96 in9x10 f5x5 s2 p2 nhwc relu", .special = GRID_NAN_IN_W},
    {.line = "conv2d n1 c64 k64 g64 in7x7 f7x7 p3 nhwc beta=1", .residual = GRID_Z_IS_X},
    {.line = "conv2d n2 c8 k8 g8 in6x5 f3x3 p1 nhwc bf16 beta=1", .slices = true},
    /* 16-bit data, slices of larger buffers, tensors that start anywhere, residuals that lie otherwise */
    {.line = "conv2d n2 c12 k12 g12 in14x14 f3x3 p1 f16 beta=0.5", .slices = true, .shifts = true},
    {.line = "conv2d n2 c6 k6 g6 in7x7 f3x3 p1 bf16", .slices = true},
    {.line = "conv2d n1 c3 k3 g3 in9x64 f3x3 p1 f16 weights=f16", .special = GRID_INF_IN_X, .shifts = true},
    {.line = "conv2d n2 c10 k10 g10 in7x7 f3x3 p1 beta=1", .slices = true},
    {.line = "conv2d n2 c4 k4 g4 in9x10 f3x3 p1 beta=2 clamp=-1:1", .residual = GRID_Z_APART, .shifts = true},
    {.line = "conv2d n0 c8 k8 g8 in5x6 f3x3"},
};

enum { ENTRIES = sizeof entries / sizeof *entries, SHARDS = 8 };

static convjit_desc parse(const char *line, int64_t *batch) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, batch), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return desc;
}

static cj_problem problem_of(const char *line) {
    int64_t batch;
    const convjit_desc desc = parse(line, &batch);
    cj_problem problem;
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return problem;
}

static grid_case case_of(size_t index) {
    const entry *from = &entries[index];
    grid_case grid = {.seed = index,
                      .distribution = from->distribution,
                      .special = from->special,
                      .residual = from->residual,
                      .bias = index % 4 != 3,
                      .slice_x = from->slices,
                      .slice_y = from->slices,
                      .slice_z = from->slices,
                      .shift_x = from->shifts,
                      .shift_y = from->shifts,
                      .shift_z = from->shifts && from->residual == GRID_Z_APART && index % 2 == 0,
                      .shift_w = from->shifts};
    grid.desc = parse(from->line, &grid.batch);
    memcpy(grid.in_size, grid.desc.in_size, sizeof grid.in_size);
    return grid;
}

static void choose_depthwise(void) {
    cr_assert_eq(setenv("CONVJIT_FAMILY", "depthwise", 1), 0);
}

static void choose_any(void) {
    unsetenv("CONVJIT_FAMILY");
}

/* Criterion runs parameters in processes of their own, side by side; each takes every SHARDS-th case. */
ParameterizedTestParameters(depthwise, keeps_its_promise) {
    static int shards[SHARDS];
    for (int i = 0; i < SHARDS; ++i) {
        shards[i] = i;
    }
    return cr_make_param_array(int, shards, SHARDS);
}

ParameterizedTest(int *shard, depthwise, keeps_its_promise, .init = choose_depthwise) {
    numerics on;
    char text[4096], line[GRID_TEXT_MAX];
    cr_assert(numerics_open("cpu", &on, text, sizeof text), "%s", text);
    for (size_t i = (size_t)*shard * testing_stride(); i < ENTRIES; i += SHARDS * testing_stride()) {
        const grid_case grid = case_of(i);
        grid_describe(&grid, line, sizeof line);
        cr_expect(numerics_run_case(&on, &grid, text, sizeof text), "%s: %s", line, text);
    }
    numerics_close(&on);
}

/* ---------------------------------------------------------------- plans */

/* Of "#define NAME VALUE". */
static int64_t constant(const cj_text *constants, const char *name) {
    char head[64];
    const int length = snprintf(head, sizeof head, "#define %s ", name);
    const char *found = strstr(constants->data, head);
    cr_assert_not_null(found, "%s", head);
    return strtoll(found + length, NULL, 10);
}

enum { WAYS = 14 };
static const char *const way_names[WAYS] = {"pieces of rows",
                                            "rows",
                                            "slices",
                                            "several planes",
                                            "channels last",
                                            "all rows of taps unrolled",
                                            "a loop over them",
                                            "taps of a row in parts",
                                            "outputs of an input",
                                            "... in several blocks",
                                            "sums in parts",
                                            "weights through shared memory",
                                            "... too many for it",
                                            "strips"};

static void note_ways(const char *line, bool met[WAYS]) {
    const cj_problem p = problem_of(line);
    cj_target target;
    cj_plan plan = {.family = &cj_family_depthwise};
    cj_text constants = {0};
    cr_assert_eq(cj_target_parse("cpu", &target), CONVJIT_SUCCESS);
    cj_family_depthwise.plan(&p, &target, &plan);
    cj_family_depthwise.constants(&p, &plan, &constants);
    const cj_depthwise_config *c = &plan.depthwise;
    const bool first = !p.channels_last, unrolled = constant(&constants, "CJ_UNROLL_Y") != 0;
    const bool staged = constant(&constants, "CJ_STAGE_WEIGHTS") != 0;
    const bool parts = p.kernel[CJ_Z] * p.kernel[CJ_Y] * p.kernel[CJ_X] > constant(&constants, "CJ_CLOSE_AFTER");
    const bool ways[WAYS] = {
        first && c->run == 1,
        first && c->run == 2,
        first && c->run == 3,
        first && c->lanes_k > p.group_out,
        p.channels_last,
        unrolled,
        !unrolled,
        c->row_taps < p.kernel[CJ_X],
        first && p.group_out > 1 && c->lanes_k >= p.group_out,
        first && c->lanes_k < p.group_out,
        parts,
        staged,
        first && !staged,
        c->run == 4,
    };
    for (int way = 0; way < WAYS; ++way) {
        met[way] = met[way] || ways[way];
    }
    cj_text_free(&constants);
}

/* The plan chooses; if it comes to choose otherwise, layers must be added above for the ways that none meets any more.
 */
Test(depthwise, has_layers_for_every_way_to_compute_one) {
    bool met[WAYS] = {false};
    for (size_t i = 0; i < ENTRIES; ++i) {
        note_ways(entries[i].line, met);
    }
    for (int way = 0; way < WAYS; ++way) {
        cr_expect(met[way], "no layer above: %s", way_names[way]);
    }
}

/* Layers of networks and the benchmark, and what a search might take long for. */
static const char *const plan_lines[] = {
    "conv2d c64 k64 g64 in512x512 f3x3 p1",    "conv2d c96 k96 g96 in112x112 f3x3 s2 p1",
    "conv2d c672 k672 g672 in14x14 f5x5 p2",   "conv2d c96 k96 g96 in56x56 f7x7 p3",
    "conv2d c960 k960 g960 in7x7 f3x3 p1 f16", "conv2d c96 k96 g96 in56x56 f7x7 p3 nhwc",
    "conv3d c64 k64 g64 in32x64x64 f3x3x3 p1", "conv3d c64 k64 g64 in16384x1x16384 f3x1x3 p1x0x1 nhwc",
    "conv1d c8 k8 g8 in100000000 f31 p15",     "conv2d c128 k128 g128 in128x256 f3x7",
    "conv2d c192 k192 g192 in28x28 f7x7 p3",
};
enum { PLAN_LINES = sizeof plan_lines / sizeof *plan_lines };

Test(depthwise, plans_are_the_same_for_every_target_and_take_little_time) {
    cj_target cpu, cuda;
    cr_assert_eq(cj_target_parse("cpu", &cpu), CONVJIT_SUCCESS);
    cr_assert_eq(cj_target_parse("sm_90a", &cuda), CONVJIT_SUCCESS);
    for (int i = 0; i < PLAN_LINES; ++i) {
        const cj_problem p = problem_of(plan_lines[i]);
        cj_plan plan = {.family = &cj_family_depthwise}, again = plan;
        struct timespec start, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        cj_family_depthwise.plan(&p, &cpu, &plan);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        cj_family_depthwise.plan(&p, &cuda, &again);
        cr_expect_str_eq(again.config, plan.config, "%s", plan_lines[i]);
        const double ms = (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) * 1e-6;
        cr_expect_lt(ms, 50.0, "%s: %g ms", plan_lines[i], ms); /* a few, without sanitizers */
        cr_expect(plan.threads >= 1 && plan.threads <= 256 && plan.shared_bytes == 0, "%s", plan_lines[i]);
    }
}

Test(depthwise, a_launch_covers_every_output) {
    cj_target target;
    cr_assert_eq(cj_target_parse("cpu", &target), CONVJIT_SUCCESS);
    for (size_t i = 0; i < ENTRIES; ++i) {
        const cj_problem p = problem_of(entries[i].line);
        cj_plan plan = {.family = &cj_family_depthwise};
        cj_forward_args args = {.batch = 3};
        uint32_t blocks = 0;
        int64_t outputs = args.batch * p.desc.out_channels;
        memcpy(args.out_size, p.out_size, sizeof args.out_size);
        cj_family_depthwise.plan(&p, &target, &plan);
        cj_family_depthwise.launch(&p, &plan, &args, &blocks);
        const cj_depthwise_config *c = &plan.depthwise;
        int64_t tile = (int64_t)c->lanes_k * c->rows * c->columns * (p.channels_last ? 4 : 1);
        for (int d = 0; d < CJ_DIMS; ++d) {
            outputs *= p.out_size[d], tile *= c->lanes[d];
        }
        cr_expect_geq(args.tiles * tile, outputs, "%s", entries[i].line);
        cr_expect(blocks >= 1 && blocks <= args.tiles, "%s: %u blocks", entries[i].line, blocks);
    }
}

/* Registers in memory cost more than the multiply-adds; ptxas saves a few around a tile all the same. */
enum { MOST_SPILLED_BYTES = 32 };

Test(depthwise, compiles_for_a_gpu_without_spilling) {
    char id[CJ_COMPILER_ID_MAX];
    cj_target target;
    if (cj_nvrtc.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("%s", convjit_last_error());
    }
    cr_assert_eq(cj_target_parse("sm_90a", &target), CONVJIT_SUCCESS);
    for (size_t i = 0; i < PLAN_LINES; i += testing_stride()) {
        const cj_problem p = problem_of(plan_lines[i]);
        cj_plan plan = {.family = &cj_family_depthwise};
        cj_text source = {0};
        cj_blob binary = {0};
        cj_family_depthwise.plan(&p, &target, &plan);
        cr_assert_eq(cj_stamp(&p, &plan, &target, &source), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_expect_eq(cj_nvrtc.compile(&target, source.data, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
        expect_spilled(MOST_SPILLED_BYTES, plan_lines[i], cj_nvrtc_last_log());
        free(binary.data);
        cj_text_free(&source);
    }
}

/* ---------------------------------------------------------------- the choice */

Test(depthwise, refuses_other_layers_with_the_reason) {
    static const char *const cases[][2] = {
        {"conv2d c16 k16 g16 in7x7 f3x3", NULL},
        {"conv2d c1 k1 in1x1 f1x1", NULL},
        {"convt2d c16 k16 g16 in7x7 f3x3", "is for convolutions, not transposed ones"},
        {"conv2d c16 k16 g8 in7x7 f3x3", "more than one input channel a group"},
        {"conv2d c16 k16 g16 f3x3", "is for input sizes that the layer gives"},
        {"conv1d c1 k1073741823 in1 f1", NULL},
        {"conv1d c1 k1073741824 in1 f1", "more than 1073741823 output channels"},
        {"conv1d c1 k1 in268435456 f1", NULL},
        {"conv1d c1 k1 in268435457 f1", "size, padding or reach of the kernel over 268435456"},
        {"conv1d c1 k1 in9 f2 d268435457 p268435456", "size, padding or reach of the kernel over 268435456"},
        {"conv1d c1 k1 in9 f1 s1048576", NULL},
        {"conv1d c1 k1 in9 f1 s1048577", "stride over 1048576"},
        {"conv2d c1 k1 in32768x32768 f1x1", NULL},
        {"conv2d c1 k1 in32768x32769 f1x1", "more than 1073741824 inputs, outputs or taps of a channel"},
        {"conv1d c1 k1 in20000 f12280", NULL},
        {"conv1d c1 k1 in20000 f12290", "more than 49152 bytes of input under one output"},
        {"conv1d c1 k1 in20000 f12290 nhwc", NULL},
    };
    cj_target target;
    cr_assert_eq(cj_target_parse("sm_80", &target), CONVJIT_SUCCESS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const cj_problem p = problem_of(cases[i][0]);
        const char *reason = cj_family_depthwise.refuses(&p, &target);
        cr_expect_str_eq(reason ? reason : "none", cases[i][1] ? cases[i][1] : "none", "%s", cases[i][0]);
    }
}

Test(depthwise, is_chosen_for_layers_that_memory_holds_back, .init = choose_any) {
    cj_target target;
    cr_assert_eq(cj_target_parse("sm_90a", &target), CONVJIT_SUCCESS);
    for (int i = 0; i < PLAN_LINES; ++i) {
        const cj_problem p = problem_of(plan_lines[i]);
        cj_plan plan = {0};
        cr_assert_eq(cj_family_choose(&p, &target, &plan), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_expect_eq(plan.family, &cj_family_depthwise, "%s", plan_lines[i]);
    }
}
