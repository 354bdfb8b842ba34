/* reference.h - the exact answer: float64 convolution on the host, random data, and the comparison every check uses.
 * Used by the command-line tool and by the tests; not part of the library. Slow on purpose: one plain loop per output.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

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

/* Deterministic data: the same seed gives the same numbers on every machine. */
typedef enum reference_distribution {
    REFERENCE_NORMAL,  /* mean 0, deviation 1 */
    REFERENCE_UNIFORM, /* [0, 1): all of one sign, where rounding errors add up */
    REFERENCE_WIDE     /* normal times 2^e, e uniform in -40..40 (f16: -6..6) */
} reference_distribution;
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
