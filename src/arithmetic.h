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

/* Largest divisor of n that is at most `most`; 1 where there is none. */
static inline int64_t cj_largest_divisor(int64_t n, int64_t most) {
    int64_t divisor = cj_most(1, cj_least(n, most));
    while (n % divisor != 0) {
        --divisor;
    }
    return divisor;
}

#endif
