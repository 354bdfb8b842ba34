/* CUDA's words for the target cpu, kernel_src/cpu/words.cuh: warp operations, copies and arithmetic. */
#include <math.h>

#include "cpu_kernels.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Warp operations
 * ------------------------------------------------------------------------------------------------------------------ */

Test(cpu_words, shuffles_as_CUDA_does) {
    enum { RESULTS = 9 };
    int y[64][RESULTS] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const int t = (int)threadIdx.x;\n"
        "    int *y = (int *)a.y + t * 9;\n"
        "    y[0] = __shfl_sync(0xffffffff, t, 3);\n"
        "    y[1] = __shfl_sync(0xffffffff, t, t + 1);\n"
        "    y[2] = __shfl_sync(0xffffffff, t, 2, 8);\n"
        "    y[3] = __shfl_up_sync(0xffffffff, t, 3);\n"
        "    y[4] = __shfl_up_sync(0xffffffff, t, 3, 8);\n"
        "    y[5] = __shfl_down_sync(0xffffffff, t, 3);\n"
        "    y[6] = __shfl_down_sync(0xffffffff, t, 3, 8);\n"
        "    y[7] = (int)__shfl_xor_sync(0xffffffff, (float)t, 5);\n"
        "    y[8] = (int)__shfl_xor_sync(0xffffffff, (unsigned)t, 9, 8);\n"
        "}\n",
        1, 64, NULL, y);
    for (int t = 0; t < 64; ++t) {
        const int lane = t % 32, warp = t - lane, part = t - t % 8;
        const int want[RESULTS] = {warp + 3,
                                   warp + (lane + 1) % 32,
                                   part + 2,
                                   lane >= 3 ? t - 3 : t,
                                   t % 8 >= 3 ? t - 3 : t,
                                   lane + 3 < 32 ? t + 3 : t,
                                   t % 8 + 3 < 8 ? t + 3 : t,
                                   t ^ 5,
                                   (t ^ 9) < part + 8 ? t ^ 9 : t};
        for (int i = 0; i < RESULTS; ++i) {
            cr_expect_eq(y[t][i], want[i], "thread %d, result %d: %d, want %d", t, i, y[t][i], want[i]);
        }
    }
}

Test(cpu_words, votes_and_sums_over_masks_that_run_apart) {
    uint32_t y[32][5] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned t = threadIdx.x;\n"
        "    unsigned *y = (unsigned *)a.y + t * 5;\n"
        "    if (t % 2 == 0) {\n"
        "        y[0] = __ballot_sync(0x55555555, t < 10);\n"
        "        y[1] = (unsigned)__any_sync(0x55555555, t == 30);\n"
        "        y[2] = (unsigned)__all_sync(0x55555555, t != 30);\n"
        "    } else {\n"
        "        y[0] = __reduce_add_sync(0xaaaaaaaa, t);\n"
        "        y[1] = (unsigned)__any_sync(0xaaaaaaaa, 0);\n"
        "        y[2] = (unsigned)__all_sync(0xaaaaaaaa, t);\n"
        "    }\n"
        "    __syncwarp();\n"
        "    y[3] = (unsigned)cj_warp_sum((double)t + 0.25) - 8;\n"
        "    y[4] = __ballot_sync(0xffffffff, 1);\n"
        "}\n",
        1, 32, NULL, y);
    for (uint32_t t = 0; t < 32; ++t) {
        const uint32_t even[5] = {0x155, 1, 0, 496, 0xffffffff}, odd[5] = {256, 0, 1, 496, 0xffffffff};
        cr_expect_arr_eq(y[t], t % 2 == 0 ? even : odd, sizeof(even), "thread %u", t);
    }
}

Test(cpu_words, the_largest_and_the_smallest_of_a_mask_are_unsigned) {
    uint32_t y[64][2] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned t = threadIdx.x;\n"
        "    unsigned *y = (unsigned *)a.y + t * 2;\n"
        "    const unsigned value = t == 7 ? 0x80000000 : t == 40 ? 3 : 100 + t;\n"
        "    if (t < 32) {\n"
        "        y[0] = __reduce_max_sync(0xffffffff, value);\n"
        "        y[1] = __reduce_min_sync(0xffffffff, value);\n"
        "    } else if (t % 4 == 0) {\n"
        "        y[1] = __reduce_min_sync(0x11111111, value);\n"
        "        y[0] = __reduce_max_sync(0x11111111, value);\n"
        "    } else {\n"
        "        y[0] = __reduce_max_sync(0xeeeeeeee, value);\n"
        "        y[1] = __reduce_min_sync(0xeeeeeeee, value);\n"
        "    }\n"
        "}\n",
        1, 64, NULL, y);
    for (uint32_t t = 0; t < 64; ++t) {
        const uint32_t largest = t < 32 ? 0x80000000 : t % 4 == 0 ? 160 : 163;
        const uint32_t smallest = t < 32 ? 100 : t % 4 == 0 ? 3 : 133;
        cr_expect_eq(y[t][0], largest, "thread %u: %u", t, y[t][0]);
        cr_expect_eq(y[t][1], smallest, "thread %u: %u", t, y[t][1]);
    }
}

Test(cpu_words, a_warp_sum_crosses_blocks_of_several_warps) {
    float y[100] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned warp = threadIdx.x / 32;\n"
        "    float v = (float)threadIdx.x;\n"
        "    if (warp < 3) v = cj_warp_sum(v);\n"
        "    ((float *)a.y)[threadIdx.x] = v;\n"
        "}\n",
        2, 100, NULL, y);
    for (int t = 0; t < 100; ++t) {
        const int first = t / 32 * 32;
        cr_expect_float_eq(y[t], t < 96 ? (float)(32 * first + 496) : (float)t, 0.0F);
    }
}

Test(cpu_words, atomics_return_the_old_value) {
    uint32_t y[3] = {0, 0, 100};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    __shared__ unsigned count;\n"
        "    if (threadIdx.x == 0) count = 0;\n"
        "    __syncthreads();\n"
        "    atomicAdd(&count, 2);\n"
        "    unsigned *y = (unsigned *)a.y;\n"
        "    atomicOr(y, 1U << threadIdx.x);\n"
        "    y[2] = atomicAdd(y + 2, 1);\n"
        "    __syncthreads();\n"
        "    y[1] = count;\n"
        "}\n",
        1, 32, NULL, y);
    cr_expect_eq(y[0], 0xffffffff);
    cr_expect_eq(y[1], 64);
    cr_expect_eq(y[2], 100);
}

Test(cpu_words, copies_and_wide_stores_move_all_their_bytes_and_no_other) {
    _Alignas(16) uint32_t x[4 * 8], y[6 * 8 + 4];
    for (int i = 0; i < 4 * 8; ++i) {
        x[i] = 1000U + (uint32_t)i;
    }
    memset(y, 0, sizeof y);
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    alignas(16) __shared__ unsigned shared[4 * 8];\n"
        "    const int t = (int)threadIdx.x, other = 7 - t;\n"
        "    cj_copy16(shared + 4 * t, (const unsigned *)a.x + 4 * t);\n"
        "    cj_copy_wait();\n"
        "    __syncthreads();\n"
        "    cj_store16((unsigned *)a.y + 4 * t, *(uint4 *)(shared + 4 * other));\n"
        "    cj_store8((unsigned *)a.y + 32 + 2 * t, *(uint2 *)(shared + 4 * other + 2));\n"
        "}\n",
        1, 8, x, y);
    for (int t = 0; t < 8; ++t) {
        for (int i = 0; i < 4; ++i) {
            cr_expect_eq(y[4 * t + i], x[4 * (7 - t) + i], "thread %d, word %d", t, i);
        }
        for (int i = 0; i < 2; ++i) {
            cr_expect_eq(y[32 + 2 * t + i], x[4 * (7 - t) + 2 + i], "thread %d, word %d", t, i);
        }
    }
    for (int i = 48; i < 52; ++i) {
        cr_expect_eq(y[i], 0);
    }
}

Test(cpu_words, a_shuffle_that_an_ended_lane_misses_is_an_error) {
    expect_failure(
        FAULTY "if (t == 37) return; __shfl_sync(0xffffffff, t, 0); }\n", 64,
        "convjit_forward failed: block 3 of 5: warp 1: shuffle with mask 0xffffffff reached by 31 of 32 lanes, "
        "lane 5 has ended");
}

Test(cpu_words, lanes_at_different_operations_are_an_error) {
    expect_failure(
        FAULTY "if (t < 16) __ballot_sync(0xffffffff, 1); else __shfl_sync(0xffffffff, t, 0); }\n", 32,
        "convjit_forward failed: block 3 of 5: warp 0: ballot with mask 0xffffffff reached by 16 of 32 lanes, "
        "lane 16 waits at another operation or mask");
}

Test(cpu_words, lanes_at_the_largest_and_the_smallest_are_an_error) {
    expect_failure(
        FAULTY "if (t == 0) __reduce_min_sync(0xffffffff, t); else __reduce_max_sync(0xffffffff, t); }\n", 32,
        "convjit_forward failed: block 3 of 5: warp 0: warp minimum with mask 0xffffffff reached by 1 of 32 lanes, "
        "lane 1 waits at another operation or mask");
}

Test(cpu_words, a_mask_without_the_calling_lane_is_an_error) {
    expect_failure(
        FAULTY "__syncwarp(0x0000000f); }\n", 32,
        "convjit_forward failed: block 3 of 5: thread 4: __syncwarp with mask 0x0000000f, which does not name "
        "its own lane 4");
}

Test(cpu_words, a_mask_with_lanes_that_do_not_exist_is_an_error) {
    expect_failure(FAULTY "__syncwarp(); }\n", 40,
                   "convjit_forward failed: block 3 of 5: thread 32: __syncwarp with mask 0xffffffff, but its warp has "
                   "only lanes 0x000000ff");
}

Test(cpu_words, a_shuffle_from_outside_the_mask_is_an_error) {
    expect_failure(
        FAULTY "if (t < 4) __shfl_sync(0x0000000f, t, 9); }\n", 32,
        "convjit_forward failed: block 3 of 5: thread 0: shuffle reads lane 9, which is not in mask 0x0000000f");
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Arithmetic
 * ------------------------------------------------------------------------------------------------------------------ */

/* Value of a 16-bit float with so many exponent bits, from its definition. */
static double half_value(uint32_t bits, int exponent_bits) {
    const int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double fraction = (double)(bits & ((1U << fraction_bits) - 1));
    double size;
    if (exponent == (1 << exponent_bits) - 1) {
        size = fraction != 0 ? (double)NAN : (double)INFINITY;
    } else if (exponent == 0) {
        size = ldexp(fraction, 1 - bias - fraction_bits);
    } else {
        size = ldexp(ldexp(1.0, fraction_bits) + fraction, exponent - bias - fraction_bits);
    }
    return bits & 0x8000 ? -size : size;
}

static bool same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

Test(cpu_words, all_16_bit_floats_widen_exactly_and_come_back) {
    enum { ALL = 65536 };
    float *wide = calloc(2 * ALL, sizeof(*wide));
    uint16_t *back = calloc(2 * ALL, sizeof(*back));
    cr_assert(wide && back);
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    float *wide = (float *)a.x;\n"
        "    unsigned short *back = (unsigned short *)a.y;\n"
        "    wide[i] = cj_f16_to_f32((unsigned short)i);\n"
        "    wide[65536 + i] = cj_bf16_to_f32((unsigned short)i);\n"
        "    back[i] = cj_f32_to_f16(wide[i]);\n"
        "    back[65536 + i] = cj_f32_to_bf16(wide[65536 + i]);\n"
        "}\n",
        ALL / 64, 64, wide, back);
    for (uint32_t i = 0; i < 2 * ALL; ++i) {
        const uint32_t bits = i % ALL;
        const double want = half_value(bits, i < ALL ? 5 : 8);
        cr_assert(same((double)wide[i], want), "%s 0x%04x: %g", i < ALL ? "f16" : "bf16", bits, (double)wide[i]);
        cr_assert(isnan(want) ? isnan(half_value(back[i], i < ALL ? 5 : 8)) : back[i] == bits,
                  "%s 0x%04x came back 0x%04x", i < ALL ? "f16" : "bf16", bits, (unsigned)back[i]);
    }
    free(wide);
    free(back);
}

/* A positive float, rounded to nearest even by looking at both neighbours among the 16-bit floats. */
static uint32_t round_half(float value, int exponent_bits) {
    const uint32_t infinity = ((1U << exponent_bits) - 1) << (15 - exponent_bits);
    uint32_t low = 0, high = infinity; /* low <= value < high */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        *(half_value(middle, exponent_bits) <= (double)value ? &low : &high) = middle;
    }
    /* Infinity takes part as the number that would follow the largest one. */
    const double below = half_value(low, exponent_bits);
    const double above =
        high == infinity ? 2 * below - half_value(low - 1, exponent_bits) : half_value(high, exponent_bits);
    const double down = (double)value - below, up = above - (double)value;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

/* Every 16-bit float, the point halfway to the next, and the floats beside both; and a sample of all. */
Test(cpu_words, floats_round_to_16_bits_to_nearest_even) {
    enum { CASES = 5 * 0x7f80 * 2 + 20000 };
    float *x = calloc(CASES, sizeof(*x));
    uint16_t *y = calloc(2 * CASES, sizeof(*y));
    cr_assert(x && y);
    int count = 0;
    for (int type = 0; type < 2; ++type) {
        const int exponent_bits = type == 0 ? 5 : 8;
        for (uint32_t bits = 0; bits < (type == 0 ? 0x7c00U : 0x7f7fU); ++bits) {
            const float exact = (float)half_value(bits, exponent_bits);
            const double next = bits == 0x7bff && type == 0 ? 65536.0 : half_value(bits + 1, exponent_bits);
            const float halfway = (float)(((double)exact + next) / 2);
            x[count++] = exact;
            x[count++] = nextafterf(exact, INFINITY);
            x[count++] = nextafterf(halfway, 0.0F);
            x[count++] = halfway;
            x[count++] = nextafterf(halfway, INFINITY);
        }
    }
    for (uint32_t i = 0; i < 19000; ++i) {
        const uint32_t bits = i * 0x1b873593U % 0x7f800000U;
        memcpy(&x[count++], &bits, sizeof(bits));
    }
    cr_assert_leq(count, CASES);
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    const float x = ((const float *)a.x)[i];\n"
        "    unsigned short *y = (unsigned short *)a.y + 2 * i;\n"
        "    y[0] = cj_f32_to_f16(x);\n"
        "    y[1] = cj_f32_to_bf16(x);\n"
        "    if (cj_f32_to_f16(-x) != (y[0] | 0x8000)) y[0] = 0x7fff;\n"
        "    if (cj_f32_to_bf16(-x) != (y[1] | 0x8000)) y[1] = 0x7fff;\n"
        "}\n",
        (uint32_t)(count / 64), 64, x, y);
    for (int i = 0; i < count / 64 * 64; ++i) {
        const uint32_t f16 = x[i] < 65536.0F ? round_half(x[i], 5) : 0x7c00, bf16 = round_half(x[i], 8);
        cr_assert_eq(y[2 * i], f16, "%a: f16 0x%04x, want 0x%04x", (double)x[i], (unsigned)y[2 * i], f16);
        cr_assert_eq(y[2 * i + 1], bf16, "%a: bf16 0x%04x, want 0x%04x", (double)x[i], (unsigned)y[2 * i + 1], bf16);
    }
    free(x);
    free(y);
}

Test(cpu_words, pairs_of_halves_have_the_first_in_the_low_bits) {
    static const float x[][2] = {{1.0F, -2.0F},           {65504.0F, 65520.0F},   {-65520.0F, 65519.9F},
                                 {-0.0F, 0x1p-24F},       {0x1p-25F, 0x1.8p-24F}, {INFINITY, -INFINITY},
                                 {0x1.002p0F, 0x1.006p0F}};
    static const uint32_t want[] = {0xc0003c00, 0x7c007bff, 0x7bfffc00, 0x00018000, 0x00020000, 0xfc007c00, 0x3c023c00};
    enum { PAIRS = sizeof(want) / sizeof(want[0]) };
    struct {
        uint32_t pair[PAIRS + 1];
        float back[PAIRS][2];
    } y = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const float *x = (const float *)a.x;\n"
        "    unsigned *pair = (unsigned *)a.y;\n"
        "    float *back = (float *)(pair + a.n + 1);\n"
        "    const unsigned t = threadIdx.x;\n"
        "    pair[t] = cj_pack_f16(x[2 * t], x[2 * t + 1]);\n"
        "    const float2 unpacked = cj_unpack_f16(pair[t]);\n"
        "    back[2 * t] = unpacked.x;\n"
        "    back[2 * t + 1] = unpacked.y;\n"
        "    if (t == 0) pair[a.n] = cj_pack_f16(__int_as_float(0x7fc00000), 1.0F);\n"
        "}\n",
        1, PAIRS, x, &y);
    for (int i = 0; i < PAIRS; ++i) {
        cr_expect_eq(y.pair[i], want[i], "%g and %g: 0x%08x", (double)x[i][0], (double)x[i][1], y.pair[i]);
        for (int j = 0; j < 2; ++j) {
            cr_expect(same((double)y.back[i][j], half_value(want[i] >> 16 * j & 0xffff, 5)), "pair %d: %g", i,
                      (double)y.back[i][j]);
        }
    }
    cr_expect(isnan(half_value(y.pair[PAIRS] & 0xffff, 5)) && y.pair[PAIRS] >> 16 == 0x3c00);
}

/* Against the C library, on operands whose sums lie at and beside halfway points, cancel, overflow and underflow. */
Test(cpu_words, fmaf_rounds_once) {
    enum { CASES = 64 * 4000 };
    float(*x)[3] = calloc(CASES, sizeof(*x)), *y = calloc(CASES, sizeof(*y));
    cr_assert(x && y);
    const float special[] = {
        0.0F,      -0.0F,          1.0F,      -1.0F,           INFINITY,      -INFINITY,      NAN,
        0x1p-149F, -0x1.8p-140F,   0x1p-126F, 0x1.fffffep127F, 0x1.000002p0F, 0x1.fffffep-1F, 0x1p-24F,
        -0x1p-25F, 0x1.000002p-60F};
    uint32_t state = 1;
    for (int i = 0; i < CASES; ++i) {
        for (int j = 0; j < 3; ++j) {
            state = state * 1664525U + 1013904223U;
            const uint32_t bits = state;
            if (i < 4096) {
                x[i][j] = special[i >> 4 * j & 15];
            } else if (i % 3 == 0) { /* any bits at all */
                memcpy(&x[i][j], &bits, sizeof(bits));
            } else { /* few significant bits, exponents near each other: exact halves are frequent */
                x[i][j] = ldexpf((float)((int)(bits >> 20) - 2048), (int)(bits >> 10 & 31) - (i % 3 == 1 ? 16 : 84));
            }
        }
    }
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    const float *x = (const float *)a.x + 3 * i;\n"
        "    ((float *)a.y)[i] = fmaf(x[0], x[1], x[2]);\n"
        "}\n",
        CASES / 64, 64, x, y);
    for (int i = 0; i < CASES; ++i) {
        const float want = fmaf(x[i][0], x[i][1], x[i][2]);
        cr_assert(same((double)y[i], (double)want), "fmaf(%a, %a, %a): %a, want %a", (double)x[i][0], (double)x[i][1],
                  (double)x[i][2], (double)y[i], (double)want);
    }
    free(x);
    free(y);
}

Test(cpu_words, other_float_words_have_their_CUDA_meaning) {
    float y[18] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    float *y = (float *)a.y;\n"
        "    const float nan = __int_as_float(0x7fc00000), inf = __uint_as_float(0x7f800000), x = 0.5F;\n"
        "    const float4 v = make_float4(1.0F, 2.0F, 3.0F, 4.0F);\n"
        "    int i = 0;\n"
        "    y[i++] = fminf(nan, 1.0F) == 1.0F && fminf(1.0F, nan) == 1.0F && isnan(fminf(nan, nan));\n"
        "    y[i++] = fmaxf(nan, 1.0F) == 1.0F && fmaxf(1.0F, nan) == 1.0F && isnan(fmaxf(nan, nan));\n"
        "    y[i++] = __float_as_int(fminf(0.0F, -0.0F)) < 0 && __float_as_int(fminf(-0.0F, 0.0F)) < 0;\n"
        "    y[i++] = __float_as_int(fmaxf(0.0F, -0.0F)) == 0 && __float_as_int(fmaxf(-0.0F, 0.0F)) == 0;\n"
        "    y[i++] = fminf(1.0F, 2.0F) == 1.0F && fminf(2.0F, 1.0F) == 1.0F && fminf(-inf, 1.0F) == -inf;\n"
        "    y[i++] = fmaxf(1.0F, 2.0F) == 2.0F && fmaxf(2.0F, 1.0F) == 2.0F && fmaxf(inf, 1.0F) == inf;\n"
        "    y[i++] = isnan(nan) && isnan((double)nan) && !isnan(inf) && !isnan(1.0);\n"
        "    y[i++] = isinf(inf) && isinf((double)-inf) && !isinf(nan) && !isinf(1.0);\n"
        "    y[i++] = __float_as_uint(1.0F) == 0x3f800000 && __float_as_int(-0.0F) < 0;\n"
        "    y[i++] = v.x + 10 * v.y + 100 * v.z + 1000 * v.w == 4321.0F && alignof(float4) == 16 && alignof(uint2) == "
        "8;\n"
        "    y[i++] = min(1, 2) == 1 && max(1U, 2U) == 2 && min(-1LL, 2LL) == -1;\n"
        "    y[i++] = fma(2.0, 3.0, 4.0) == 10.0 && fabsf(-x) == x && sqrtf(4.0F) == 2.0F;\n"
        "    y[i++] = __ldg(&x) == 0.5F && make_uint4(1, 2, 3, 4).w == 4 && make_int4(1, 2, 3, -4).w == -4;\n"
        "    y[i++] = expf(x); y[i++] = erff(x); y[i++] = erfcf(x); y[i++] = tanhf(x);\n"
        "}\n",
        1, 1, NULL, y);
    for (int i = 0; i < 13; ++i) {
        cr_expect_float_eq(y[i], 1.0F, 0.0F, "check %d", i);
    }
    cr_expect_float_eq(y[13], 1.6487213F, 1e-6F);
    cr_expect_float_eq(y[14], 0.5204999F, 1e-6F);
    cr_expect_float_eq(y[15], 0.4795001F, 1e-6F);
    cr_expect_float_eq(y[16], 0.4621172F, 1e-6F);
}
