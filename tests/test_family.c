/* test_family.c - which family computes a layer, and the plans of family direct for layers of all kinds and extremes.
 */
#include "family.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPECT_TEXT_HAS(part) \
    cr_expect_not_null(strstr(convjit_last_error(), part), "\"%s\" is not in: %s", part, convjit_last_error())

static void forget_family(void) {
    unsetenv("CONVJIT_FAMILY");
}

TestSuite(family, .init = forget_family);

static convjit_desc desc_of(const char *line) {
    convjit_desc desc;
    cr_assert_eq(convjit_layer_line_parse(line, &desc, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return desc;
}

static cj_problem problem_of(const char *line) {
    const convjit_desc desc = desc_of(line);
    cj_problem problem;
    cr_assert_eq(cj_problem_make(&desc, &problem), CONVJIT_SUCCESS, "%s: %s", line, convjit_last_error());
    return problem;
}

static cj_target target_of(const char *name) {
    cj_target target;
    cr_assert_eq(cj_target_parse(name, &target), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return target;
}

/* ---------------------------------------------------------------- the choice */

Test(family, one_is_chosen_for_every_layer_of_every_target) {
    static const char *const targets[] = {"cpu", "sm_70", "sm_80", "sm_90", "sm_90a", "sm_120f"};
    static const char *const lines[] = {"conv2d c32 k64 in50x50 f5x9", "convt3d c2 k2 f2x2x2 s2",
                                        "conv1d c1 k1 f1 f16"};
    for (size_t t = 0; t < sizeof targets / sizeof targets[0]; t++) {
        for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
            const cj_target target = target_of(targets[t]);
            const cj_problem problem = problem_of(lines[i]);
            cj_plan plan;
            cr_assert_eq(cj_family_choose(&problem, &target, &plan), CONVJIT_SUCCESS, "%s", convjit_last_error());
            cr_expect_null(plan.family->refuses(&problem, &target));
            cr_expect_gt(plan.threads, 0);
            cr_expect_null(cj_family_direct.refuses(&problem, &target), "%s must take %s", targets[t], lines[i]);
            const convjit_desc desc = desc_of(lines[i]);
            cr_expect_eq(convjit_supported(&desc, targets[t]), CONVJIT_SUCCESS);
        }
    }
}

Test(family, the_reasons_of_all_are_told_in_one_text) {
    const cj_problem problem = problem_of("convt2d c2 k8 f1x1 s50000x50000");
    const cj_target target = target_of("sm_80");
    cj_plan plan = {.family = &cj_family_direct};
    cr_expect_eq(cj_family_supports(&problem, &target), CONVJIT_UNSUPPORTED);
    cr_expect_eq(cj_family_choose(&problem, &target, &plan), CONVJIT_UNSUPPORTED);
    cr_expect_eq(plan.family, &cj_family_direct); /* left alone */
    cr_expect_eq(strncmp(convjit_last_error(), "no family computes this layer on sm_80: ", 40), 0);
    EXPECT_TEXT_HAS("direct: more than 2147483647 output phases");
    EXPECT_TEXT_HAS("tensor: ");
    EXPECT_TEXT_HAS("; ");
}

/* The reference layers are far from where the families' predicted times meet; the target cpu has no tensor cores. */
Test(family, the_fastest_is_chosen_for_the_target) {
    static const struct {
        const char *line, *target;
        const cj_family *family;
    } cases[] = {
        {"conv2d n8 c32 k64 in512x512 f5x9", "sm_90a", &cj_family_tensor},
        {"conv3d n16 c3 k64 in64x64x64 f3x5x7 tf32", "sm_90a", &cj_family_tensor},
        {"conv2d n8 c32 k64 in512x512 f5x9", "sm_80", &cj_family_direct},
        {"conv2d n8 c32 k64 in512x512 f5x9", "sm_90", &cj_family_direct},
        {"conv2d n8 c32 k64 in512x512 f5x9", "cpu", &cj_family_direct},
        {"conv2d c64 k64 g64 in56x56 f3x3", "sm_90a", &cj_family_depthwise},
        {"conv2d c64 k64 g64 in56x56 f3x3", "sm_70", &cj_family_depthwise},
        {"conv2d c64 k64 g64 in56x56 f3x3", "cpu", &cj_family_depthwise},
        {"conv2d c64 k64 g64 f3x3", "sm_90a", &cj_family_direct},
        {"convt2d c64 k64 in56x56 f3x3", "sm_90a", &cj_family_tensor},
        {"convt2d c64 k64 in56x56 f3x3", "sm_90", &cj_family_direct},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const cj_problem problem = problem_of(cases[i].line);
        const cj_target target = target_of(cases[i].target);
        cj_plan plan = {0};
        cr_expect_eq(cj_family_choose(&problem, &target, &plan), CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_expect_eq(plan.family, cases[i].family, "%s on %s", cases[i].line, cases[i].target);
    }
}

Test(family, convjit_family_picks_one_and_the_others_say_so) {
    const cj_target target = target_of("sm_90a");
    const cj_problem taken = problem_of("conv2d c32 k64 in50x50 f5x9"),
                     refused = problem_of("conv2d c32 k8 in9x9 f1x1");
    cj_plan plan = {0};
    setenv("CONVJIT_FAMILY", "tensor", 1);
    cr_expect_eq(cj_family_choose(&taken, &target, &plan), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(plan.family, &cj_family_tensor);
    cr_expect_eq(cj_family_choose(&refused, &target, &plan), CONVJIT_UNSUPPORTED);
    EXPECT_TEXT_HAS("direct: CONVJIT_FAMILY is tensor");
    EXPECT_TEXT_HAS("tensor: fewer than 16 output channels");
    setenv("CONVJIT_FAMILY", "direct", 1);
    cr_expect_eq(cj_family_choose(&taken, &target, &plan), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(plan.family, &cj_family_direct);
    setenv("CONVJIT_FAMILY", "Direct", 1); /* as it is spelt */
    cr_expect_eq(cj_family_choose(&taken, &target, &plan), CONVJIT_UNSUPPORTED);
    EXPECT_TEXT_HAS("direct: CONVJIT_FAMILY is Direct");
}

Test(family, supported_refuses_what_is_no_layer_and_no_target) {
    const convjit_desc desc = desc_of("conv2d c2 k8 in5x6 f3x3");
    const convjit_desc illegal = CONVJIT_DESC_INIT;
    cr_expect_eq(convjit_supported(NULL, "cpu"), CONVJIT_INVALID_ARGUMENT);
    EXPECT_TEXT_HAS("desc is NULL");
    cr_expect_eq(convjit_supported(&illegal, "cpu"), CONVJIT_INVALID_LAYER);
    EXPECT_TEXT_HAS("in_channels 0 is less than 1");
    cr_expect_eq(convjit_supported(&desc, NULL), CONVJIT_INVALID_ARGUMENT);
    EXPECT_TEXT_HAS("target is NULL, must be cpu or one of");
    cr_expect_eq(convjit_supported(&desc, "sm_1"), CONVJIT_INVALID_ARGUMENT);
}

/* ---------------------------------------------------------------- direct: refusals */

Test(family, direct_takes_what_lies_on_its_limits_and_refuses_what_passes_them) {
    static const struct {
        const char *line, *reason;
    } cases[] = {
        {"conv1d c2147483647 k1 f1", NULL},
        {"conv1d c2147483648 k1 f1", "more than 2147483647 input channels a group"},
        {"conv1d c4294967294 k2 g2 f1", NULL},
        {"conv1d c1 k2147482623 f1", NULL},
        {"conv1d c1 k2147482624 f1", "more than 2147482623 output channels a group"},
        {"conv1d c1 k1 f2147483647", NULL},
        {"conv1d c1 k1 f2147483648", "more than 2147483647 kernel taps"},
        {"conv2d c1 k1 f46341x46341", "more than 2147483647 kernel taps"},
        {"conv3d c1 k1 f65536x65536x1", "more than 2147483647 kernel taps"},
        {"conv2d c1 k1 f1x1 s2147483648x2147483648", NULL},
        {"convt1d c1 k1 f1 s2147483647", NULL},
        {"convt1d c1 k1 f1 s2147483648", "more than 2147483647 output phases"},
        {"convt2d c1 k1 f1x1 s46341x46341", "more than 2147483647 output phases"},
        {"conv1d c2147483647 k16777216 f1", NULL},
        {"conv1d c2147483647 k16777217 f1", "more than 36028797018963967 weights"},
    };
    const cj_target target = target_of("sm_80");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const cj_problem problem = problem_of(cases[i].line);
        const char *reason = cj_family_direct.refuses(&problem, &target);
        cr_expect_str_eq(reason ? reason : "none", cases[i].reason ? cases[i].reason : "none", "%s", cases[i].line);
    }
}

/* ---------------------------------------------------------------- direct: plans */

/* Of "#define NAME VALUE". */
static int64_t constant(const cj_text *constants, const char *name, char axis) {
    char head[64];
    const int length = snprintf(head, sizeof head, axis ? "#define %s_%c " : "#define %s ", name, axis);
    const char *found = strstr(constants->data, head);
    cr_assert_not_null(found, "%s", head);
    return strtoll(found + length, NULL, 10);
}

/* A lower bound of what the kernel puts into shared memory, worked out from the constants alone. */
static void expect_shared_memory_fits(const cj_problem *p, const cj_text *constants, const char *line) {
    int64_t plane = 1, taps = 1, pixels = 1;
    for (int d = 0; d < CJ_DIMS; d++) {
        const char axis = "ZYX"[d];
        const int64_t chunk = constant(constants, "CJ_CHUNK", axis);
        const int64_t tile = constant(constants, "CJ_LANES", axis) *
                             (d == CJ_Y ? constant(constants, "CJ_PIXELS_Y", 0) : 1) *
                             (d == CJ_X ? constant(constants, "CJ_PIXELS_X", 0) : 1);
        cr_assert(chunk >= 1 && constant(constants, "CJ_TAPS", axis) % chunk == 0, "%s", line);
        int64_t extent = 1;
        if (tile > 1) {
            extent += (tile - 1) * (p->transposed ? 1 : p->stride[d]);
        }
        if (chunk > 1) {
            extent += (chunk - 1) * constant(constants, "CJ_TAP_STEP", axis);
        }
        plane *= extent, taps *= chunk, pixels *= tile;
    }
    const int64_t tile_k = constant(constants, "CJ_LANES_K", 0) * constant(constants, "CJ_CHANNELS", 0);
    const int64_t chunk_c = constant(constants, "CJ_CHUNK_C", 0), stated = constant(constants, "CJ_SHARED_BYTES", 0);
    cr_expect_leq(4 * chunk_c * (plane + taps * tile_k), stated, "%s", line);
    cr_expect_leq(4 * pixels * tile_k, stated, "%s", line);
    cr_expect_leq(stated, 48 * 1024, "%s", line);
}

static void expect_config_is_sound(const cj_problem *p, const cj_plan *plan, const char *line) {
    const cj_direct_config *c = &plan->direct;
    const int64_t lanes = (int64_t)c->lanes[CJ_Z] * c->lanes[CJ_Y] * c->lanes[CJ_X] * c->lanes_k;
    cr_expect(plan->threads >= 1 && plan->threads <= 128, "%s: %u threads", line, plan->threads);
    cr_expect_eq(lanes, plan->threads, "%s", line);
    cr_expect_eq(plan->shared_bytes, 0, "%s", line); /* all of it is static */
    cr_expect(c->chunk_c >= 1 && c->chunk_c <= p->group_in, "%s: %d channels of a stage", line, c->chunk_c);
    cr_expect(c->row_taps >= 1 && c->chunk_taps[CJ_X] % c->row_taps == 0, "%s: %d taps in a row", line, c->row_taps);
    cr_expect_leq(c->pixels_y * c->pixels_x * c->channels, 32, "%s", line);
    cr_expect(plan->config[0] != '\0' && strlen(plan->config) < sizeof plan->config - 1, "%s", plan->config);
    cr_expect_geq(plan->pack_work, cj_problem_weight_count(p) + p->desc.out_channels, "%s", line);
    cr_expect_eq(plan->packed_bytes, 4 * (uint64_t)plan->pack_work, "%s", line);
}

/* Plans into memory that held something else, so that what is not written shows. */
static double plan_ms(const cj_problem *p, const cj_target *target, int filler, cj_plan *plan, cj_text *constants) {
    struct timespec start, end;
    memset(plan, filler, sizeof *plan);
    plan->config[0] = '\0';
    plan->family = &cj_family_direct;
    plan->shared_bytes = 0; /* as layer.c gives it: all zero */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    cj_family_direct.plan(p, target, plan);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    cj_family_direct.constants(p, plan, constants);
    cr_assert_not(constants->failed);
    return (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) * 1e-6;
}

/* A launch of a batch of 2 covers every output: the tiles are at least as many as the tile's size tells. */
static void expect_launch_covers(const cj_problem *p, const cj_plan *plan, const char *line) {
    cj_forward_args args = {.batch = 2};
    double pixels = 1.0, tile = 1.0;
    const cj_direct_config *c = &plan->direct;
    for (int d = 0; d < CJ_DIMS; d++) {
        const int64_t phases = p->transposed ? p->stride[d] : 1;
        args.in_size[d] = p->dynamic ? 50 : p->in_size[d];
        args.out_size[d] = p->dynamic ? 40 : p->out_size[d];
        pixels *= (double)(args.out_size[d] > phases ? args.out_size[d] : phases);
        tile *= c->lanes[d];
        if (args.out_size[d] == 0) {
            return; /* never launched */
        }
    }
    tile *= (double)c->pixels_y * c->pixels_x * c->lanes_k * c->channels;
    const double outputs = 2.0 * pixels * (double)p->desc.out_channels;
    if (outputs * 64.0 > 9e18) {
        return; /* more tiles than any memory holds outputs */
    }
    uint32_t blocks = 0;
    cj_family_direct.launch(p, plan, &args, &blocks);
    cr_expect_geq((double)args.tiles * tile,
                  2.0 * (double)p->desc.out_channels * (double)args.out_size[CJ_Z] * (double)args.out_size[CJ_Y] *
                      (double)args.out_size[CJ_X] * 0.999,
                  "%s", line);
    cr_expect(blocks >= 1 && blocks <= INT32_MAX && blocks <= args.tiles, "%s: %u blocks", line, blocks);
}

/* All that is asked of a plan; returns the time it took. */
static double expect_sound_plan(const cj_problem *p, const char *line) {
    const cj_target cpu = target_of("cpu"), cuda = target_of("sm_120f");
    cj_plan plan, again;
    cj_text constants = {0}, constants_again = {0};
    const double ms = plan_ms(p, &cpu, 0x55, &plan, &constants);
    plan_ms(p, &cuda, 0xAA, &again, &constants_again);
    cr_expect_str_eq(constants_again.data, constants.data, "%s", line);
    cr_expect_str_eq(again.config, plan.config, "%s", line);
    cr_expect(again.threads == plan.threads && again.pack_work == plan.pack_work, "%s", line);
    expect_config_is_sound(p, &plan, line);
    expect_shared_memory_fits(p, &constants, line);
    expect_launch_covers(p, &plan, line);
    cj_text_free(&constants);
    cj_text_free(&constants_again);
    return ms;
}

Test(family, direct_plans_layers_of_odd_shapes) {
    static const char *const lines[] = {
        /* one wide, one tap, one channel */
        "conv1d c1 k1 in1 f1",
        "conv2d c1 k1 in1x1 f1x1",
        "conv3d c1 k1 in1x1x1 f1x1x1",
        "conv2d c3 k8 in1x500 f1x9",
        "conv2d c3 k8 in500x1 f9x1",
        "conv2d c1 k1 in1x1 f31x31 p15",
        "convt2d c7 k1 in1x1 f1x1 s7",
        /* many taps, a prime count of them too */
        "conv1d c2 k4 in2000 f31",
        "conv1d c2 k4 in2000 f363",
        "conv1d c2 k4 in2000 f1021",
        "conv2d c3 k8 f31x31",
        "conv2d c3 k8 f363x363",
        "conv2d c1 k1 f1021x1021",
        "conv3d c3 k8 f31x31x31",
        "conv1d c9 k9 f1048573 d7",
        "conv1d c1 k1 f2147483647",
        "convt1d c2 k4 in50 f1021 s7 d3",
        "convt2d c2 k4 f363x31 s64x3",
        /* distances that no tile spans */
        "conv2d c3 k8 f3x3 s2147483648x4611686018427387904",
        "conv1d c3 k8 f3 d4611686018427387903",
        "conv1d c3 k8 f2 d9223372036854775806",
        "conv2d c2 k2 f3x3 d12289x12288",
        "convt1d c3 k8 f5 s2147483647",
        "convt1d c3 k8 f5 s2147483647 d2147483646",
        "convt1d c3 k8 f2 s2147483647 d9223372036854775806",
        "convt3d c3 k8 f3x3x3 s1290x1290x1290 d1291x1x4611686018427387903",
        "conv1d c1 k1 in1 f1 s4611686018427387904 p4611686018427387904:0",
        /* many channels, many groups */
        "conv1d c2147483647 k1 f1",
        "conv1d c1 k2147482623 f1",
        "conv2d c65536 k65536 g65536 in9x9 f3x3 p1",
        "conv2d c96 k200 g8 f3x3 f16 nhwc krsc",
        "conv2d c5 k5 g5 f3x3 bf16 nhwc",
        "convt3d c6800000 k2000000 g400000 f1001x1001x1001 s1000x1000x1000",
        "convt3d c6800000 k2000000 g400000 f1001x1001x1001 s1000x1000x1000 nhwc",
        /* large, and empty, outputs */
        "conv1d c1 k1 in2305843009213693951 f1",
        "conv2d c1 k1 in1073741824x1073741824 f1x1 f16",
        "convt1d c1 k1 in1 f1 p1:0",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        const cj_problem problem = problem_of(lines[i]);
        expect_sound_plan(&problem, lines[i]);
    }
}

/* ---------------------------------------------------------------- direct: random layers */

static uint64_t state = 0x9E3779B97F4A7C15U;

static uint64_t next(void) { /* xorshift64* (Vigna) */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717U >> 1;
}

static int64_t up_to(int64_t most) {
    return 1 + (int64_t)(next() % (uint64_t)most);
}

/* Mostly ordinary; rarely around a power of two at which 32 or 64 bits end. */
static int64_t distance(int64_t ordinary) {
    static const int bits[] = {15, 16, 31, 32, 48, 61, 62};
    if (next() % 8 != 0) {
        return up_to(ordinary);
    }
    return ((int64_t)1 << bits[next() % 7]) + (int64_t)(next() % 5) - 2;
}

static void random_axis(convjit_desc *desc, int axis, bool dynamic) {
    static const int64_t kernels[] = {1, 1, 2, 3, 3, 4, 5, 7, 9, 11, 16, 31, 49, 64, 127, 363, 1021, 4096};
    desc->kernel[axis] = kernels[next() % (desc->rank == 3 ? 12 : 18)];
    desc->stride[axis] = next() % 2 ? 1 : distance(9);
    desc->dilation[axis] = next() % 2 ? 1 : distance(9);
    desc->pad_begin[axis] = next() % 2 ? 0 : distance(40) - 1;
    desc->pad_end[axis] = next() % 2 ? 0 : distance(40) - 1;
    if (desc->operation == CONVJIT_TRANSPOSED && next() % 4 == 0) {
        desc->output_padding[axis] = up_to(8) - 1;
    }
    const int64_t window =
        desc->dilation[axis] > INT64_MAX / desc->kernel[axis] ? INT64_MAX : desc->dilation[axis] * desc->kernel[axis];
    desc->in_size[axis] = dynamic ? 0 : next() % 4 == 0 ? up_to(3) : up_to(next() % 2 ? 600 : window);
}

static convjit_desc random_desc(void) {
    convjit_desc desc = CONVJIT_DESC_INIT;
    const bool dynamic = next() % 4 == 0;
    desc.operation = next() % 3 == 0 ? CONVJIT_TRANSPOSED : CONVJIT_CONVOLUTION;
    desc.rank = (int32_t)up_to(3);
    desc.groups = next() % 3 ? 1 : up_to(40);
    desc.in_channels = desc.groups * up_to(next() % 8 ? 300 : 100000);
    desc.out_channels = desc.groups * up_to(next() % 8 ? 300 : 100000);
    desc.data_type = desc.weight_type = (convjit_type)(next() % 3);
    desc.layout = (convjit_layout)(next() % 2);
    desc.weight_layout = (convjit_layout)(next() % 2);
    for (int axis = 0; axis < desc.rank; axis++) {
        random_axis(&desc, axis, dynamic);
    }
    return desc;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

Test(family, direct_plans_3000_random_layers_each_in_a_millisecond) {
    enum { LAYERS = 3000, TRIES = 100 * LAYERS };
    static double times[LAYERS];
    const cj_target target = target_of("sm_80");
    int layers = 0, extreme = 0, transposed = 0, dynamic = 0;
    for (int tries = 0; layers < LAYERS && tries < TRIES; tries++) {
        const convjit_desc desc = random_desc();
        char line[CONVJIT_LAYER_LINE_MAX];
        cj_problem problem;
        if (cj_problem_make(&desc, &problem) != CONVJIT_SUCCESS || cj_family_direct.refuses(&problem, &target)) {
            continue;
        }
        convjit_layer_line_format(&desc, -1, line, sizeof line);
        times[layers++] = expect_sound_plan(&problem, line);
        transposed += problem.transposed, dynamic += problem.dynamic;
        for (int d = 0; d < CJ_DIMS; d++) {
            if (problem.stride[d] > INT32_MAX || problem.dilation[d] > INT32_MAX || problem.pad_begin[d] > INT32_MAX) {
                extreme++;
                break;
            }
        }
    }
    cr_assert_eq(layers, LAYERS);
    cr_expect(extreme > 100 && transposed > 300 && dynamic > 300, "%d extreme, %d transposed, %d dynamic", extreme,
              transposed, dynamic);
    qsort(times, LAYERS, sizeof times[0], by_value);
    cr_expect(SANITIZED || times[LAYERS / 2] < 1.0, "median %g ms, worst %g ms", times[LAYERS / 2], times[LAYERS - 1]);
}

Test(family, supported_answers_in_microseconds) {
    enum { CALLS = 501 };
    static double times[CALLS];
    const convjit_desc desc = desc_of("conv3d c32 k64 in64x64x64 f3x5x7 p1x2x3");
    setenv("CONVJIT_FAMILY", "direct", 1);
    for (int i = 0; i < CALLS; i++) {
        struct timespec start, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
        cr_assert_eq(convjit_supported(&desc, "sm_80"), CONVJIT_SUCCESS);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        times[i] = (double)(end.tv_sec - start.tv_sec) * 1e6 + (double)(end.tv_nsec - start.tv_nsec) * 1e-3;
    }
    qsort(times, CALLS, sizeof times[0], by_value);
    cr_expect(SANITIZED || times[CALLS / 2] < 50.0, "median %g us", times[CALLS / 2]);
}
