/* arithmetic.h - whole numbers of sizes and counts; all arguments are >= 0, divisors > 0. */
#ifndef CJ_ARITHMETIC_H
#define CJ_ARITHMETIC_H

#include <stdint.h>

static inline int64_t cj_divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static inline int64_t cj_round_up(int64_t a, int64_t b) {
    return cj_divide_up(a, b) * b;
}

static inline int64_t cj_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t cj_most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
