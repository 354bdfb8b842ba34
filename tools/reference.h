/* reference.h - the exact answer: float64 convolution on the host, random data, and the comparison every check uses.
 * Used by the command-line tool and by the tests; not part of the library. Slow on purpose: one plain loop per output.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdbool.h>

#include "convjit.h"

/* A layer with its batch and sizes; dynamic sizes filled in. */
typedef struct reference_layer {
    convjit_desc desc;
    int64_t batch;
    int64_t in_size[3], out_size[3];               /* first desc.rank entries */
    int64_t x_count, w_count, bias_count, y_count; /* elements of the dense tensors */
} reference_layer;

/* Fills in sizes and counts. Where the descriptor is dynamic, in_size must be given; else it may be NULL. */
convjit_status reference_layer_make(const convjit_desc *desc, int64_t batch, const int64_t *in_size,
                                    reference_layer *out);

/* Elements of every convjit_type as doubles. */
int64_t reference_type_bytes(convjit_type type);
double reference_get(const void *data, convjit_type type, int64_t index);
void reference_set(void *data, convjit_type type, int64_t index, double value); /* rounds to nearest even */

/* Data: the same seed gives the same numbers on every machine. Exponents are those of float32 and bfloat16; float16 has
 * few of them, and takes narrower ranges (reference_data.c). */
#define REFERENCE_DISTRIBUTION_LIST(X)                                                                           \
    X(NORMAL, "normal")       /* mean 0, deviation 1 */                                                          \
    X(UNIFORM, "uniform")     /* [0, 1): all of one sign, where rounding errors add up */                        \
    X(WIDE, "wide")           /* normal times 2^e, e uniform in -40..40 */                                       \
    X(OUTLIER, "outlier")     /* normal, one element in 200 larger by 2^20 to 2^60 */                            \
    X(CANCEL, "cancel")       /* x nearly 1, w in pairs of opposite sign: sums about 2^-15 S */                  \
    X(INTEGER, "integer")     /* odd integers of 12 bits, which 11 bits cannot hold (16-bit types: / 2^11) */    \
    X(SPLIT, "split")         /* all elements 1 + 2^-11 - 3 * 2^-23, the worst for a split in 11 + 11 bits */    \
    X(SUBNORMAL, "subnormal") /* x subnormal, w normal: so are the results */                                    \
    X(HUGE, "huge")           /* x subnormal, w normal times 2^100 to 2^120 */                                   \
    X(TINY, "tiny")           /* x normal times 2^100 to 2^120, w subnormal */                                   \
    X(SPARSE, "sparse")       /* as after ReLU and pruning: half zeros; pixels, channels and filters all zero */ \
    X(MIXED, "mixed")         /* channels of x 2^60 apart, which the weights of every second output make up for */

typedef enum reference_distribution {
#define REFERENCE_DISTRIBUTION_ENUM(name, word) REFERENCE_##name,
    REFERENCE_DISTRIBUTION_LIST(REFERENCE_DISTRIBUTION_ENUM)
#undef REFERENCE_DISTRIBUTION_ENUM
        REFERENCE_DISTRIBUTIONS
} reference_distribution;

/* The word of a distribution ("normal"); the distribution of a word, false where it is none. */
const char *reference_distribution_word(reference_distribution distribution);
bool reference_distribution_find(const char *word, reference_distribution *out);

/* Which tensor of a layer; REFERENCE_Y is what y holds before it is written. */
typedef enum reference_role { REFERENCE_X, REFERENCE_W, REFERENCE_BIAS, REFERENCE_Z, REFERENCE_Y } reference_role;

/* Fills a dense tensor of a layer. The tensors take different numbers from the same seed. */
void reference_fill_tensor(void *data, const reference_layer *layer, reference_role role, uint64_t seed,
                           reference_distribution distribution);

/* The same for elements that are no layer's, as an x of one row. */
void reference_fill(void *data, convjit_type type, int64_t count, uint64_t seed, reference_distribution distribution);

/* Fills with a pattern no kernel writes, so that an unwritten output is seen (a NaN with a payload). */
void reference_poison(void *data, convjit_type type, int64_t count);

/* One output, index in the dense order of y: the value of act(alpha * conv + bias + beta * z), and S. Padding is
 * skipped, NaN and Inf go where IEEE arithmetic takes them. bias and z may be NULL. */
typedef struct reference_output {
    double value;     /* exact, not yet rounded to y's type */
    double sum_abs;   /* S = sum of |x * w| over the window */
    double tolerance; /* how far y may be off: the promise of the math, the epilogue's roundings, y's type */
} reference_output;
reference_output reference_compute(const reference_layer *layer, const void *x, const void *w, const void *bias,
                                   const void *z, int64_t index);

typedef struct reference_comparison {
    int64_t checked, failed;
    double worst_over_tolerance; /* > 1 fails; NaN or Inf on one side only counts as infinite */
    double worst_over_sum;       /* worst |error| / S of the finite outputs with S > 0 */
    double relative_error;       /* Frobenius: sqrt(sum error^2 / sum value^2) over the finite outputs */
    int64_t worst_index;
    double worst_got, worst_want;
} reference_comparison;

/* Compares y with the reference: every output if there are at most `most`, else `most` of them, spread over the tensor
 * with its first and last elements among them. */
reference_comparison reference_compare(const reference_layer *layer, const void *x, const void *w, const void *bias,
                                       const void *z, const void *y, int64_t most);

/* "worst at [n=0 k=3 y=1 x=2]: got 1.25, want 1.5, 312 % of tolerance" */
void reference_describe(const reference_layer *layer, const reference_comparison *comparison, char *text, size_t size);

#endif
