/* Products of a warpgroup on the target cpu: kernel_src/cpu/hopper.cuh, src/cpu_product.c. What they add up is compared
 * exactly, with integers; test_cpu_tensor_core.c has the rest of the arithmetic. */
#include <math.h>

#include "hopper_kernels.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Products: sum[64][64] (+)= a[64][16] * b[16][64 columns of 80]
 * ------------------------------------------------------------------------------------------------------------------ */

enum { ROWS = 64, DEPTH = 16, COLUMNS = 64, PLANE = 80 };

typedef struct operands {
    uint16_t a[ROWS][DEPTH], b[DEPTH][PLANE]; /* halves */
    float sum[ROWS][COLUMNS];
} operands;

/* Units of 8 halves of a line, the two planes of b one after the other, then those of a; sums as the tensor core has
 * them in registers. Thread 127, the last to arrive at the barrier, is the first to go on. */
#define PRODUCT                                                                                                  \
    "constexpr int N = 64, PLANE = 80;\n"                                                                        \
    "typedef unsigned short half;\n"                                                                             \
    "struct operands { half a[64][16], b[16][PLANE]; float sum[64][N]; };\n"                                     \
    "CJ_KERNEL(convjit_forward, args, given) {\n"                                                                \
    "    CJ_SHARED_MEMORY(shared);\n"                                                                            \
    "    const operands &in = *(const operands *)given.x;\n"                                                     \
    "    const int t = (int)threadIdx.x, row = t / 32 % 4 * 16 + t % 32 / 4;\n"                                  \
    "    half *const weights = (half *)(shared + 2 * PLANE * 16);\n"                                             \
    "    for (int i = t; i < 16 * PLANE; i += (int)blockDim.x)\n"                                                \
    "        ((half *)shared)[(i / PLANE / 8 * PLANE + i % PLANE) * 8 + i / PLANE % 8] = in.b[i / PLANE][i % "   \
    "PLANE];\n"                                                                                                  \
    "    for (int i = t; i < 16 * 64; i += (int)blockDim.x)\n"                                                   \
    "        weights[(i % 16 / 8 * 64 + i / 16) * 8 + i % 8] = in.a[i / 16][i % 16];\n"                          \
    "    float sum[N / 2];\n"                                                                                    \
    "    for (int i = 0; i < N / 2; ++i) sum[i] = in.sum[row + i % 4 / 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2];\n" \
    "    cj_barrier *const barrier = (cj_barrier *)(shared + 5120);\n"                                           \
    "    if (t == 0) cj_barrier_init(barrier, 128);\n"                                                           \
    "    cj_async_fence();\n"                                                                                    \
    "    __syncthreads();\n"                                                                                     \
    "    const unsigned a = cj_descriptor(weights, 64 * 16), b = cj_descriptor(shared, PLANE * 16);\n"           \
    "    (void)a, (void)b, (void)barrier;\n"
#define FAULTY_PRODUCT PRODUCT "    if (blockIdx.x == 0) return;\n    cj_product_fence(sum);\n"
#define STORE_SUM                                                                                       \
    "    for (int i = 0; i < N / 2; ++i)\n"                                                             \
    "        ((float *)given.y)[(row + i % 4 / 2 * 8) * N + i / 4 * 8 + t % 4 * 2 + i % 2] = sum[i];\n" \
    "}\n"

static double from_half(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) {
        size = fraction == 0 ? (double)INFINITY : (double)NAN;
    }
    return half & 0x8000 ? -size : size;
}

/* An integer of at most 11 bits. */
static uint16_t to_half(int value) {
    int exponent = 0;
    const double fraction = frexp(abs(value), &exponent); /* 0.5 to 1 */
    return (uint16_t)((value < 0 ? 0x8000 : 0) |
                      (value == 0 ? 0 : ((exponent + 13) << 10) + (int)(ldexp(fraction, 11))));
}

static uint32_t next_random(void) {
    static uint32_t state = 7;
    state = state * 1664525U + 1013904223U;
    return state >> 8;
}

/* Integers of so many bits and a sign. */
static operands *make_integers(int bits, int sum_bits) {
    operands *in = malloc(sizeof(*in));
    cr_assert(in);
    for (int i = 0; i < ROWS * DEPTH; ++i) {
        in->a[i / DEPTH][i % DEPTH] = to_half((int)(next_random() % (2U << bits)) - (1 << bits));
    }
    for (int i = 0; i < DEPTH * PLANE; ++i) {
        in->b[i / PLANE][i % PLANE] = to_half((int)(next_random() % (2U << bits)) - (1 << bits));
    }
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        in->sum[i / COLUMNS][i % COLUMNS] = (float)((int)(next_random() % (2U << sum_bits)) - (1 << sum_bits));
    }
    return in;
}

/* Whatever is added up, float32 holds it exactly. */
static operands *make_operands(void) {
    return make_integers(7, 20);
}

/* A product by the plain loop; its columns begin at `shift`. */
static void add_product(const operands *in, int shift, double sum[ROWS][COLUMNS]) {
    for (int row = 0; row < ROWS; ++row) {
        for (int column = 0; column < COLUMNS; ++column) {
            for (int k = 0; k < DEPTH; ++k) {
                sum[row][column] += from_half(in->a[row][k]) * from_half(in->b[k][column + shift]);
            }
        }
    }
}

static void start_sum(const operands *in, double sum[ROWS][COLUMNS]) {
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        sum[i / COLUMNS][i % COLUMNS] = (double)in->sum[i / COLUMNS][i % COLUMNS];
    }
}

/* The body's sums are these, NaN for NaN. */
static void expect_sums(const char *body, const operands *in, double want[ROWS][COLUMNS]) {
    static float y[ROWS][COLUMNS];
    run_hopper(PRODUCT, body, STORE_SUM, 128, in, y);
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        const double got = (double)y[i / COLUMNS][i % COLUMNS], right = want[i / COLUMNS][i % COLUMNS];
        cr_assert(got == right || (isnan(got) && isnan(right)), "row %d, column %d: %.9g, want %.9g", i / COLUMNS,
                  i % COLUMNS, got, right);
    }
}

Test(cpu_product, a_product_adds_what_the_plain_loop_adds) {
    static double want[ROWS][COLUMNS];
    operands *in = make_operands();
    start_sum(in, want);
    add_product(in, 0, want);
    expect_sums("    cj_product_fence(sum);\n    cj_product_f16(sum, a, b, 1);\n"
                "    cj_product_commit();\n    cj_product_wait(sum);\n",
                in, want);
    free(in);
}

Test(cpu_product, a_shifted_descriptor_shifts_columns_and_without_add_the_sum_starts_anew) {
    static double want[ROWS][COLUMNS];
    operands *in = make_operands();
    add_product(in, 13, want);
    in->sum[5][7] = NAN;
    expect_sums("    cj_product_fence(sum);\n    cj_product_f16(sum, a, b + 13, 0);\n"
                "    cj_product_commit();\n    cj_product_wait(sum);\n",
                in, want);
    free(in);
}

/* Odd and even products, groups of several, those before a new start. */
Test(cpu_product, groups_of_products_follow_each_other) {
    static double want[ROWS][COLUMNS];
    operands *in = make_operands();
    for (int shift = 4; shift < 12; ++shift) {
        add_product(in, shift, want);
    }
    expect_sums("    for (int i = 0; i < 12; ++i) {\n"
                "        cj_product_fence(sum);\n"
                "        cj_product_f16(sum, a, b + i, i != 4);\n"
                "        cj_product_commit();\n"
                "        if (i % 5 == 1 || i == 11) cj_product_wait(sum);\n"
                "    }\n",
                in, want);
    free(in);
}

Test(cpu_product, two_warpgroups_and_two_sums_do_not_mix) {
    static double want[ROWS][COLUMNS];
    operands *in = make_operands();
    start_sum(in, want);
    add_product(in, 1, want);
    static float y[2][ROWS][COLUMNS];
    run_hopper(PRODUCT,
               "    float second[N / 2];\n"
               "    for (int i = 0; i < N / 2; ++i) second[i] = 0;\n"
               "    cj_product_fence(sum);\n"
               "    cj_product_f16(second, a, b + 2, 1);\n"
               "    cj_product_f16(sum, a, b + t / 128, 1);\n"
               "    cj_product_f16(second, a, b + 3, 1);\n"
               "    cj_product_commit();\n"
               "    if (t >= 128) for (int i = 0; i < 5; ++i) __syncwarp();\n"
               "    cj_product_wait(sum);\n"
               "    if (t < 128) return;\n",
               STORE_SUM, 256, in, y);
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        cr_assert_eq((double)y[0][i / COLUMNS][i % COLUMNS], want[i / COLUMNS][i % COLUMNS]);
    }
    free(in);
}

/* Sums of all products of a body; NaN where the body misuses them. */
static bool gives_nan(const char *body, uint32_t threads) {
    static float y[ROWS][COLUMNS];
    operands *in = make_operands();
    run_hopper(PRODUCT, body, STORE_SUM, threads, in, y);
    free(in);
    bool nan = false;
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        nan = nan || isnan(y[i / COLUMNS][i % COLUMNS]);
    }
    return nan;
}

#define TWO_PRODUCTS                                                                                         \
    "    cj_product_fence(sum);\n    cj_product_f16(sum, a, b, 1);\n    cj_product_f16(sum, a, b, 1);\n    " \
    "cj_product_commit();\n"

Test(cpu_product, sums_that_are_read_before_the_wait_are_NaN) {
    cr_expect(gives_nan("    float early = 0;\n" TWO_PRODUCTS "    early = sum[3];\n    cj_product_wait(sum);\n"
                        "    sum[3] = early;\n",
                        128));
}

#define THREE_PRODUCTS(sum)                                                                                            \
    "    cj_product_fence(" #sum ");\n    cj_product_f16(" #sum ", a, b, 1);\n    cj_product_f16(" #sum                \
    ", a, b + 1, 1);\n    cj_product_f16(" #sum ", a, b + 2, 1);\n    cj_product_commit();\n    cj_product_wait(" #sum \
    ");\n"

/* Sums that float32 rounds, so that another order gives other bits, whenever their products are computed. */
Test(cpu_product, products_of_a_sum_are_added_in_their_order) {
    static double want[ROWS][COLUMNS]; /* 0: equal */
    operands *in = make_integers(11, 24);
    expect_sums("    float again[N / 2];\n    for (int i = 0; i < N / 2; ++i) again[i] = sum[i];\n" THREE_PRODUCTS(sum)
                    THREE_PRODUCTS(again) "    for (int i = 0; i < N / 2; ++i) sum[i] = sum[i] == again[i] ? 0 : 1;\n",
                in, want);
    free(in);
}

/* The threads from 128 on wait until an operand is free, then overwrite it. */
#define OVERWRITE(first, count)                                                       \
    "    if (t >= 128) {\n"                                                           \
    "        cj_barrier_wait(barrier, 0);\n"                                          \
    "        for (int i = t - 128; i < " count "; i += 128) " first "[i] = 0x7e00;\n" \
    "        return;\n"                                                               \
    "    }\n"
#define OVERWRITE_A OVERWRITE("weights", "16 * 64")
#define OVERWRITE_B OVERWRITE("((half *)shared)", "16 * PLANE")
#define GIVE_BACK "    cj_barrier_arrive(barrier);\n"
#define WAIT "    cj_product_wait(sum);\n"

Test(cpu_product, operands_that_are_given_back_after_the_wait_are_read_as_they_were) {
    cr_expect_not(gives_nan(OVERWRITE_A TWO_PRODUCTS WAIT GIVE_BACK, 256));
    cr_expect_not(gives_nan(OVERWRITE_B TWO_PRODUCTS WAIT GIVE_BACK, 256));
}

Test(cpu_product, operands_that_are_given_back_before_the_wait_spoil_the_sums) {
    cr_expect(gives_nan(OVERWRITE_A TWO_PRODUCTS GIVE_BACK WAIT, 256));
    cr_expect(gives_nan(OVERWRITE_B TWO_PRODUCTS GIVE_BACK WAIT, 256));
}

Test(cpu_product, products_behind_the_last_commit_are_not_waited_for) {
    cr_expect(gives_nan(OVERWRITE_A "    cj_product_fence(sum);\n"
                                    "    cj_product_f16(sum, a, b, 1);\n    cj_product_commit();\n"
                                    "    cj_product_f16(sum, a, b, 1);\n" WAIT GIVE_BACK
                                    "    cj_product_commit();\n" WAIT,
                        256));
}

/* The threads from 128 on fill 2048 bytes at byte 5632, which threads 0 to 127 have already multiplied. */
#define FILL_LATE                                                           \
    "    half *const late = (half *)(shared + 5632);\n"                     \
    "    const unsigned missing = cj_descriptor(late, 1024);\n"             \
    "    if (t >= 128) {\n"                                                 \
    "        for (int i = t - 128; i < 1024; i += 128) late[i] = 0x3c00;\n" \
    "        cj_barrier_arrive(barrier);\n"                                 \
    "        return;\n"                                                     \
    "    }\n"                                                               \
    "    cj_product_fence(sum);\n"
#define AFTER_FILL "    cj_product_commit();\n    cj_barrier_wait(barrier, 0);\n" WAIT

Test(cpu_product, operands_that_are_multiplied_before_they_are_filled_spoil_the_sums) {
    cr_expect(gives_nan(FILL_LATE "    cj_product_f16(sum, missing, b, 1);\n" AFTER_FILL, 256));
    cr_expect(gives_nan(FILL_LATE "    cj_product_f16(sum, a, missing, 1);\n" AFTER_FILL, 256));
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Errors of products
 * ------------------------------------------------------------------------------------------------------------------ */

static void expect_product_error(const char *body, uint32_t threads, const char *expected) {
    operands *in = make_operands();
    expect_error(FAULTY_PRODUCT, body, STORE_SUM, threads, in, expected);
    free(in);
}

Test(cpu_product, a_product_that_a_thread_misses_is_an_error) {
    expect_product_error("    if (t == 37) return;\n" TWO_PRODUCTS "    cj_product_wait(sum);\n", 128,
                         "thread 0 and 126 others wait for product group 0 of warpgroup 0, reached by 127 of 128 "
                         "threads; thread 37 has ended");
}

Test(cpu_product, a_product_in_a_warpgroup_that_is_not_whole_is_an_error) {
    expect_product_error(TWO_PRODUCTS, 160, "thread 159: warpgroup 1 has only 32 of 128 threads");
}

Test(cpu_product, a_descriptor_that_reaches_past_shared_memory_is_an_error) {
    /* 8192 - (80 + 64) * 16 = 5888 is the last start of B that fits; A begins at 2560, its last is 8192 - 128 * 16. */
    expect_product_error("    cj_product_f16(sum, a, b + 368, 1);\n    cj_product_f16(sum, a, b + 369, 1);\n", 128,
                         "thread 127: product reads B of 64 lines from bytes 5904 to 8207 of shared memory, of which "
                         "the block has 8192: descriptor with start 5904, distance 1280 along k");
    expect_product_error("    cj_product_f16(sum, a + 224, b, 1);\n    cj_product_f16(sum, a + 225, b, 1);\n", 128,
                         "thread 127: product reads A of 64 lines from bytes 6160 to 8207 of shared memory, of which "
                         "the block has 8192: descriptor with start 6160, distance 1024 along k");
}

Test(cpu_product, a_product_of_what_no_fence_has_made_visible_is_an_error) {
    expect_product_error(TWO_PRODUCTS "    cj_product_wait(sum);\n    __syncthreads();\n"
                                      "    if (t == 5) shared[16] ^= 1;\n    __syncthreads();\n" TWO_PRODUCTS,
                         128,
                         "thread 124: product reads bytes 0 to 1023 of shared memory, to which a thread has stored "
                         "without cj_async_fence");
}

Test(cpu_product, a_descriptor_with_other_bits_is_an_error) {
    expect_product_error("    cj_product_f16(sum, a, b | 1U << 31, 1);\n", 128,
                         "thread 127: product with descriptor 0x80500000 of B, which has bits set beside "
                         "its start and its distance along k");
    expect_product_error("    cj_product_f16(sum, a | 1U << 14, b, 1);\n", 128,
                         "thread 127: product with descriptor 0x004040a0 of A, which has bits set beside "
                         "its start and its distance along k");
}

Test(cpu_product, a_descriptor_of_what_is_not_shared_memory_is_an_error) {
    expect_product_error("    cj_descriptor(shared - 16, 0);\n", 128,
                         "thread 127: cj_descriptor at byte -16 of shared memory, of which the block has 8192");
}

Test(cpu_product, threads_that_disagree_on_a_descriptor_are_an_error) {
    expect_product_error(
        "    cj_product_f16(sum, a, b + (t == 77), 1);\n    cj_product_commit();\n    cj_product_wait(sum);\n", 128,
        "thread 77: product 0 of its warpgroup with descriptors 0x004000a0 and 0x00500001, 64 columns, "
        "add 1, in group 0; another thread's has 0x004000a0 and 0x00500000, 64 columns, add 1, group "
        "0");
    expect_product_error(
        "    cj_product_f16(sum, a + (t == 3), b, 1);\n    cj_product_commit();\n    cj_product_wait(sum);\n", 128,
        "thread 3: product 0 of its warpgroup with descriptors 0x004000a1 and 0x00500000, 64 columns, "
        "add 1, in group 0; another thread's has 0x004000a0 and 0x00500000, 64 columns, add 1, group "
        "0");
}

Test(cpu_product, threads_that_disagree_on_the_sum_are_an_error) {
    expect_product_error("    float second[N / 2];\n"
                         "    cj_product_f16(sum, a, b, 1);\n"
                         "    cj_product_f16(t == 9 ? second : sum, a, b, 1);\n"
                         "    cj_product_commit();\n    cj_product_wait(sum);\n",
                         128,
                         "thread 9: product 1 of its warpgroup adds to another sum than other threads' products do");
}

Test(cpu_product, threads_that_wait_for_different_groups_are_an_error) {
    expect_product_error(TWO_PRODUCTS TWO_PRODUCTS "    if (t == 100) cj_product_commit();\n" WAIT, 128,
                         "thread 100: waits for 4 products in 3 groups, thread 0 for 4 products in 2 groups");
}

Test(cpu_product, a_sum_that_is_written_before_the_wait_is_an_error) {
    expect_product_error(TWO_PRODUCTS "    sum[6] = 0;\n    cj_product_wait(sum);\n", 128,
                         "thread 0: register 6 of a sum was written before its product was waited for");
}

Test(cpu_product, a_product_after_a_wait_needs_a_fence) {
    expect_product_error(TWO_PRODUCTS "    cj_product_wait(sum);\n    cj_product_f16(sum, a, b, 1);\n", 128,
                         "thread 126: product without cj_product_fence since the last cj_product_wait");
}

Test(cpu_product, products_that_nobody_waits_for_are_an_error) {
    expect_product_error("    cj_product_f16(sum, a, b, 1);\n    cj_product_commit();\n", 128,
                         "thread 127: ended with 1 products in flight");
}

Test(cpu_product, too_many_products_in_flight_are_an_error) {
    expect_product_error("    for (int i = 0; i < 257; ++i) cj_product_f16(sum, a, b, 1);\n", 128,
                         "thread 127: more than 256 products in flight: MOST_PRODUCTS in src/cpu_product.c");
}
