/* cpu_tensor_core.c - arithmetic of the tensor core on the target cpu: float32 sums of products of halves.
 *
 * The model. One sum and its 16 products, which float32 holds exactly, are added up at once: the largest of the 17 sets
 * a grid, EXTRA_BITS below its last bit in float32, that all are cut to before they are added, and the result is cut to
 * float32. On halves, worst and relative errors of sums of 3 to 9 products were 4 % below to 17 % above an H200's
 * ("accuracy of tensor" in tools/bench/results/kernels.md). Bits were not compared: in a model of others the exponents
 * of the factors set the grid, which then is never coarser for normal halves, and errors are the same.
 *
 * Nearly all the time that tests of tensor-core kernels take is spent here. So four columns are done at once, in
 * vectors of gcc and clang, and in 32 bits: on the grid the largest is below 2^26, and 17 of them below 2^31. That asks
 * for finite numbers, and for sums that are 0 or 2^-100 to 2^100; what is not so is done one by one, by the same model.
 */
#include <float.h>
#include <math.h>
#include <string.h>
#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "cpu_hopper.h"

enum { ROWS = CJ_PRODUCT_ROWS, DEPTH = CJ_PRODUCT_DEPTH, MOST_COLUMNS = CJ_MOST_COLUMNS };
enum { LANES = 4 };
typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ints __attribute__((vector_size(LANES * sizeof(int32_t)))); /* also conditions: -1 where true, 0 else */

/* float32 and double in bits. */
enum { FRACTION_BITS = 23, BIAS = 127, SIZE_MASK = 0x7fffffff, DOUBLE_FRACTION_BITS = 52, DOUBLE_BIAS = 1023 };
enum { EXTRA_BITS = 2, GRID_BELOW = FLT_MANT_DIG - 1 + EXTRA_BITS };
enum { SMALLEST_SUM = (BIAS - 100) << FRACTION_BITS, LARGEST_SUM = (BIAS + 100) << FRACTION_BITS };

/* Halves with 5 bits of exponent, 10 of fraction. */
enum { HALF_SIZE = 0x7fff, HALF_INFINITY = 0x7c00, HALF_FRACTION_BITS = 10 };

/* The columns of B, widened: numbers that are not finite are wrong, and `odd`. */
typedef struct columns {
    ints odd[MOST_COLUMNS / LANES];
    floats value[MOST_COLUMNS / LANES][DEPTH];
} columns;

/* ---------------------------------------------------------------------------------------------------------------------
 * One sum
 * ------------------------------------------------------------------------------------------------------------------ */

/* A half's exponent, moved to its place in float32, is too small by the difference of the biases: the multiplication
 * makes it right, and normal what was a subnormal half. Inf and NaN come out as 2^16 and more. */
static float widen_finite(uint16_t half) {
    const uint32_t bits =
        (uint32_t)(half & HALF_SIZE) << (FRACTION_BITS - HALF_FRACTION_BITS) | (uint32_t)(half & ~HALF_SIZE) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value * 0x1p112F;
}

static double widen(uint16_t half) {
    const int size = half & HALF_SIZE;
    if (size >= HALF_INFINITY) {
        return size > HALF_INFINITY ? (double)NAN : half == size ? (double)INFINITY : -(double)INFINITY;
    }
    return (double)widen_finite(half);
}

/* To float32 towards zero. */
static float cut_to_float(double value) {
    float rounded = (float)value;
    const double back = (double)rounded;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    bits -= fabs(back) > fabs(value) ? 1 : 0;
    memcpy(&rounded, &bits, sizeof(bits));
    return rounded;
}

static double power_of_two(uint64_t biased_exponent) {
    const uint64_t bits = biased_exponent << DOUBLE_FRACTION_BITS;
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static float add_products(float old, const cj_line *a, const cj_line *b) {
    double terms[DEPTH + 1] = {[DEPTH] = (double)old}, largest = 0.0, sum = 0.0;
    for (int k = 0; k < DEPTH; ++k) {
        terms[k] = widen(a->half[k]) * widen(b->half[k]);
    }
    for (int k = 0; k <= DEPTH; ++k) {
        largest = fmax(largest, fabs(terms[k]));
        sum += terms[k];
    }
    if (!(sum - sum == 0.0) || largest == 0.0) {
        return (float)sum;
    }
    /* The grid and its inverse, both far from the ends of double. */
    uint64_t bits;
    memcpy(&bits, &largest, sizeof(bits));
    const uint64_t exponent = (bits >> DOUBLE_FRACTION_BITS) - GRID_BELOW;
    const double grid = power_of_two(exponent), steps = power_of_two(2 * (uint64_t)DOUBLE_BIAS - exponent);
    int64_t total = 0;
    for (int k = 0; k <= DEPTH; ++k) {
        total += (int64_t)(terms[k] * steps);
    }
    return cut_to_float((double)total * grid);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * LANES sums
 * ------------------------------------------------------------------------------------------------------------------ */

static inline floats to_floats(ints bits) {
    floats value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline ints to_bits(floats value) {
    ints bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline ints select_ints(ints condition, ints yes, ints no) {
    return no ^ ((no ^ yes) & condition);
}

/* The larger, neither being a NaN. */
static inline floats larger(floats a, floats b) {
#ifdef __SSE__
    return _mm_max_ps(a, b);
#else
    return to_floats(select_ints(a > b, to_bits(a), to_bits(b)));
#endif
}

/* Where it cannot be done here, `odd` is set and the result is `old`. */
static inline floats add_four(floats old, const floats a[DEPTH], const floats b[DEPTH], ints *odd) {
    const ints old_size = to_bits(old) & SIZE_MASK;
    *odd |= ((old_size != 0) & (old_size < SMALLEST_SUM)) | (old_size >= LARGEST_SUM);
    const floats sum = to_floats(to_bits(old) & ~*odd);
    floats largest = to_floats(to_bits(sum) & SIZE_MASK);
    floats products[DEPTH];
    for (int k = 0; k < DEPTH; ++k) {
        products[k] = a[k] * b[k];
        largest = larger(largest, to_floats(to_bits(products[k]) & SIZE_MASK));
    }
    ints exponent = to_bits(largest) >> FRACTION_BITS; /* 27 to 227; 0 where all are 0 */
    exponent = select_ints(exponent == 0, exponent + BIAS, exponent);
    const floats grid = to_floats((exponent - GRID_BELOW) << FRACTION_BITS);
    const floats steps = to_floats((2 * BIAS + GRID_BELOW - exponent) << FRACTION_BITS);
    ints total = __builtin_convertvector(sum * steps, ints);
    for (int k = 0; k < DEPTH; ++k) {
        total += __builtin_convertvector(products[k] * steps, ints);
    }
    /* Rounded to nearest, and one step back where that was away from zero. */
    const ints negative = total >> 31, size = (total ^ negative) - negative;
    const floats rounded = __builtin_convertvector(size, floats);
    const ints cut = to_bits(rounded) + (__builtin_convertvector(rounded, ints) > size);
    const ints result = to_bits(to_floats(cut) * grid) | (negative & ~SIZE_MASK);
    return to_floats(select_ints(*odd, to_bits(old), result));
}

/* ---------------------------------------------------------------------------------------------------------------------
 * A product
 * ------------------------------------------------------------------------------------------------------------------ */

static bool is_finite(const cj_line *line) {
    int largest = 0;
    for (int k = 0; k < DEPTH; ++k) {
        const int size = line->half[k] & HALF_SIZE;
        largest = size > largest ? size : largest;
    }
    return largest < HALF_INFINITY;
}

static void widen_columns(columns *to, const cj_line *b, int count) {
    for (int column = 0; column < count; ++column) {
        const int i = column / LANES, lane = column % LANES;
        for (int k = 0; k < DEPTH; ++k) {
            to->value[i][k][lane] = widen_finite(b[column].half[k]);
        }
        to->odd[i][lane] = is_finite(&b[column]) ? 0 : -1;
    }
}

/* To each lane. */
static void widen_row(floats to[DEPTH], const cj_line *a) {
    for (int k = 0; k < DEPTH; ++k) {
        to[k] = (floats){0} + widen_finite(a->half[k]);
    }
}

/* What could not be done in vectors. */
static void add_odd(float *sum, const cj_line *a, const cj_line *b, const ints *odd, int count) {
    for (int column = 0; column < count; ++column) {
        if (odd[column / LANES][column % LANES]) {
            sum[column] = add_products(sum[column], a, &b[column]);
        }
    }
}

void cj_tensor_core(float (*sum)[MOST_COLUMNS], const cj_line *a, const cj_line *b, int count) {
    columns wide;
    widen_columns(&wide, b, count);
    for (int row = 0; row < ROWS; ++row) {
        const ints odd_row = (ints){0} - !is_finite(&a[row]);
        floats line[DEPTH];
        ints odd[MOST_COLUMNS / LANES], any = {0};
        widen_row(line, &a[row]);
        for (int column = 0; column < count; column += LANES) {
            const int i = column / LANES;
            floats four;
            memcpy(&four, &sum[row][column], sizeof(four));
            odd[i] = wide.odd[i] | odd_row;
            four = add_four(four, line, wide.value[i], &odd[i]);
            memcpy(&sum[row][column], &four, sizeof(four));
            any |= odd[i];
        }
        if (any[0] | any[1] | any[2] | any[3]) {
            add_odd(sum[row], &a[row], b, odd, count);
        }
    }
}
