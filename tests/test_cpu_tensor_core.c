/* Arithmetic of the tensor core on the target cpu, src/cpu_tensor_core.c: bit by bit what its model says. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_hopper.h"

enum { ROWS = CJ_PRODUCT_ROWS, DEPTH = CJ_PRODUCT_DEPTH, COLUMNS = CJ_MOST_COLUMNS };
enum { HALF_ONE = 0x3c00, HALF_LARGEST = 0x7bff, HALF_INFINITY = 0x7c00, HALF_NAN = 0x7e00, HALF_SIGN = 0x8000 };

typedef struct product {
    cj_line a[ROWS], b[COLUMNS];
    float old[ROWS][COLUMNS], sum[ROWS][COLUMNS];
} product;

static product *new_product(void) {
    product *p = calloc(1, sizeof(*p));
    cr_assert(p);
    return p;
}

static void multiply(product *p, int columns) {
    memcpy(p->sum, p->old, sizeof(p->sum));
    cj_tensor_core(p->sum, p->a, p->b, columns);
}

/* Of a half, from its definition. */
static double value_of(uint16_t half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    if (exponent == 31) {
        size = fraction == 0 ? (double)INFINITY : (double)NAN;
    }
    return half & HALF_SIGN ? -size : size;
}

/* The model: terms are cut to a grid 2^-25 of the largest's power of two, their sum to 24 bits. */
static float model(const product *p, int row, int column) {
    double terms[DEPTH + 1] = {[DEPTH] = (double)p->old[row][column]}, largest = 0.0, plain = 0.0, total = 0.0;
    for (int k = 0; k < DEPTH; ++k) {
        terms[k] = value_of(p->a[row].half[k]) * value_of(p->b[column].half[k]);
    }
    for (int k = 0; k <= DEPTH; ++k) {
        largest = fmax(largest, fabs(terms[k]));
        plain += terms[k];
    }
    if (largest == 0.0 || !isfinite(plain)) {
        return (float)plain;
    }
    const int grid = ilogb(largest) - 25;
    for (int k = 0; k <= DEPTH; ++k) {
        total += trunc(ldexp(terms[k], -grid));
    }
    const int cut = total == 0.0 ? 0 : ilogb(total) - 23;
    total = ldexp(trunc(ldexp(total, -cut)), cut + grid);
    /* Products cannot take a sum beyond float32; nor below its normal numbers, unless it is there already. */
    return (float)total;
}

static void expect_model(const product *p, int columns) {
    for (int i = 0; i < ROWS * columns; ++i) {
        const int row = i / columns, column = i % columns;
        const float got = p->sum[row][column], want = model(p, row, column);
        cr_assert(isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(want),
                  "row %d, column %d: %a, want %a; was %a", row, column, (double)got, (double)want,
                  (double)p->old[row][column]);
    }
}

static uint32_t next_random(void) {
    static uint32_t state = 7;
    state = state * 1664525U + 1013904223U;
    return state >> 8;
}

static float to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Halves of either sign whose exponents are `lowest` and so many more. */
static void fill_lines(cj_line *lines, int count, uint32_t lowest, uint32_t more) {
    for (int i = 0; i < count * DEPTH; ++i) {
        const uint32_t exponent = lowest + next_random() % (more + 1);
        lines[i / DEPTH].half[i % DEPTH] = (uint16_t)((next_random() & 0x83ff) | exponent << 10);
    }
}

static void fill_sums(product *p, uint32_t lowest, uint32_t more) {
    for (int i = 0; i < ROWS * COLUMNS; ++i) {
        const uint32_t exponent = lowest + next_random() % (more + 1);
        p->old[i / COLUMNS][i % COLUMNS] =
            to_float((next_random() & 1) << 31 | exponent << 23 | (next_random() & 0x7fffff));
    }
}

Test(cpu_tensor_core, numbers_of_like_size_follow_the_model) {
    product *p = new_product();
    fill_lines(p->a, ROWS, 12, 4);
    fill_lines(p->b, COLUMNS, 12, 4);
    fill_sums(p, 118, 12);
    multiply(p, COLUMNS);
    expect_model(p, COLUMNS);
    free(p);
}

Test(cpu_tensor_core, all_finite_halves_follow_the_model) {
    product *p = new_product();
    fill_lines(p->a, ROWS, 0, 30);
    fill_lines(p->b, COLUMNS, 0, 30);
    fill_sums(p, 127 - 60, 120);
    multiply(p, COLUMNS);
    expect_model(p, COLUMNS);
    free(p);
}

Test(cpu_tensor_core, subnormal_halves_and_sums_of_any_size_follow_the_model) {
    product *p = new_product();
    fill_lines(p->a, ROWS, 0, 0);
    fill_lines(p->b, COLUMNS, 0, 1);
    memset(&p->a[ROWS / 2], 0, ROWS / 2 * sizeof(*p->a));
    fill_sums(p, 0, 254);
    multiply(p, COLUMNS);
    expect_model(p, COLUMNS);
    free(p);
}

Test(cpu_tensor_core, numbers_that_are_not_finite_reach_the_sums_they_belong_to) {
    product *p = new_product();
    fill_lines(p->a, ROWS, 0, 30);
    fill_lines(p->b, COLUMNS, 0, 30);
    fill_sums(p, 100, 50);
    p->a[3].half[5] = HALF_INFINITY;
    p->a[7].half[0] = HALF_NAN;
    p->b[0].half[5] = 0;
    p->b[9].half[15] = HALF_INFINITY | HALF_SIGN;
    p->b[130].half[2] = HALF_INFINITY | 1;
    p->old[20][1] = INFINITY;
    p->old[20][2] = NAN;
    p->old[21][9] = INFINITY;
    multiply(p, COLUMNS);
    expect_model(p, COLUMNS);
    cr_expect(isnan(p->sum[3][0]) && isinf(p->sum[3][1]) && isnan(p->sum[7][77]) && isinf(p->sum[10][9]));
    cr_expect(isnan(p->sum[10][130]) && isfinite(p->sum[10][131]) && isfinite(p->sum[4][1]));
    cr_expect(isinf(p->sum[20][1]) && isnan(p->sum[20][2]) && isfinite(p->sum[20][3]));
    free(p);
}

Test(cpu_tensor_core, columns_beyond_the_count_are_left_alone) {
    product *p = new_product();
    fill_lines(p->a, ROWS, 12, 4);
    fill_lines(p->b, COLUMNS, 12, 4);
    fill_sums(p, 120, 10);
    multiply(p, 24);
    expect_model(p, 24);
    for (int row = 0; row < ROWS; ++row) {
        cr_expect_arr_eq(&p->sum[row][24], &p->old[row][24], (COLUMNS - 24) * sizeof(float));
    }
    free(p);
}

/* One sum with 16 times the same product. */
static double add_same(float old, uint16_t a, uint16_t b) {
    product *p = new_product();
    for (int k = 0; k < DEPTH; ++k) {
        p->a[63].half[k] = a;
        p->b[5].half[k] = b;
    }
    p->old[63][5] = old;
    multiply(p, 8);
    const double result = (double)p->sum[63][5];
    free(p);
    return result;
}

Test(cpu_tensor_core, what_lies_below_the_grid_is_lost_and_results_are_cut) {
    enum { MINUS = HALF_SIGN, P8 = (15 - 8) << 10, P12 = (15 - 12) << 10, P13 = (15 - 13) << 10 }; /* 2^-8, ... */
    cr_expect_eq(add_same(1.0F, P13, P13), 1.0);                   /* 16 * 2^-26: each below 2^-25 */
    cr_expect_eq(add_same(1.0F, P12, P13), 1.0 + 0x1p-21);         /* 16 * 2^-25 */
    cr_expect_eq(add_same(1.0F, P12, MINUS | P13), 1.0 - 0x1p-21); /* the other way */
    cr_expect_eq(add_same(2.0F, P12, P13), 2.0);                   /* the grid follows the largest */
    cr_expect_eq(add_same(-1.0F - 0x1p-23F, P8, P8), -1.0 + 0x1p-12 - 0x1p-23);
    cr_expect_eq(add_same(0x1.fffffep0F, P12, P12), 0x1.fffffep0 + 0x1p-20 - 0x1p-23); /* 25 bits: cut, not rounded */
}

Test(cpu_tensor_core, the_largest_halves_do_not_overflow) {
    cr_expect_eq(add_same(0.0F, HALF_LARGEST, HALF_LARGEST), 16.0 * 65504 * 65504);
    cr_expect_eq(add_same(0.0F, HALF_LARGEST, HALF_LARGEST | HALF_SIGN), -16.0 * 65504 * 65504);
    cr_expect_eq(add_same(0.0F, 1, 1), 0x1p-44);
}

Test(cpu_tensor_core, a_sum_of_nothing_is_plus_zero) {
    const double zero = add_same(-0.0F, HALF_ONE | HALF_SIGN, 0);
    cr_expect(zero == 0.0 && !signbit(zero));
}
