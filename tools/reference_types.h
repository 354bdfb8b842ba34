/* reference_types.h - what reference.c needs of the types beside reference.h. */
#ifndef REFERENCE_TYPES_H
#define REFERENCE_TYPES_H

#include <stdbool.h>

#include "reference.h"

/* A type by its fields; float32 is the machine's own. */
typedef struct reference_format {
    int mantissa;     /* stored bits */
    int min_exponent; /* of the normal numbers; subnormals keep its spacing */
    uint32_t infinity;
    uint32_t poison; /* a quiet NaN with a payload */
} reference_format;

reference_format reference_format_of(convjit_type type);

/* Half of the spacing that the type has at `value`: how far rounding may move it. */
double reference_half_ulp(convjit_type type, double value);

/* Does rounding to the type make `value` infinite? */
bool reference_overflows(convjit_type type, double value);

/* Is this element still what reference_poison wrote? */
bool reference_is_poison(const void *data, convjit_type type, int64_t index);

/* A counter in, a number out: element i does not depend on how many came before. */
uint64_t reference_random(uint64_t seed, uint64_t place);

#endif
