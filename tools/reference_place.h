/* reference_place.h - where an element lies: places of a tensor, and their index in its dense order. */
#ifndef REFERENCE_PLACE_H
#define REFERENCE_PLACE_H

#include "reference.h"

enum { REFERENCE_AXES = 3 };

/* Place of an element: batch or output channel of w, channel, then three spatial axes (leading zeros). */
typedef struct reference_place {
    int64_t outer, channel, at[REFERENCE_AXES];
} reference_place;

/* Extents of the spatial axes, always three: leading ones (of a padding, zeros) where the rank is lower. */
typedef struct reference_extents {
    int64_t of[REFERENCE_AXES];
} reference_extents;

reference_extents reference_widen(const int64_t *array, int32_t rank, int64_t missing);

int64_t reference_offset(reference_place place, int64_t channels, reference_extents size, convjit_layout layout);
reference_place reference_place_of(int64_t index, int64_t channels, reference_extents size, convjit_layout layout);

#endif
