/* grid.h - the layers that every kernel is checked on: written-down ones that broke other libraries, and generated ones
 * in which every value of every parameter meets every value of every other. The same on every machine. */
#ifndef GRID_H
#define GRID_H

#include <stdbool.h>

#include "convjit.h"
#include "reference.h"

/* Values placed in the first and last element of a tensor, where a wrong mask or an added padding would spread them. */
typedef enum grid_special {
    GRID_PLAIN,
    GRID_NAN_IN_X,
    GRID_INF_IN_X,
    GRID_NAN_IN_W,
    GRID_INF_IN_W,
    GRID_HUGE_IN_X, /* 1e30, and the largest float */
    GRID_SPECIALS
} grid_special;

/* Where the residual is. */
typedef enum grid_residual { GRID_Z_APART, GRID_Z_IS_Y, GRID_Z_IS_X } grid_residual;

typedef struct grid_case {
    convjit_desc desc;
    int64_t batch;
    int64_t in_size[3]; /* also where desc leaves it open */
    uint64_t seed;      /* of the data */
    reference_distribution distribution;
    grid_special special;
    grid_residual residual;
    bool bias;                               /* else NULL */
    bool slice_x, slice_y, slice_z;          /* a channel slice of a larger buffer */
    bool shift_x, shift_y, shift_z, shift_w; /* one element off a 256-byte boundary; w with the bias */
} grid_case;

/* All cases, malloc'ed; NULL when memory is used up. */
grid_case *grid_make(size_t *count);

/* More generated cases, likewise, of the layers that families for tensor cores are for and the grid has few of:
 * convolutions of f32 data, channels first, at least 16 output channels a group. Numbered from 10000 on. */
grid_case *grid_make_matrices(size_t *count);

/* A case as one line: the layer line, then the rest. Returns the length, as snprintf. */
enum { GRID_TEXT_MAX = CONVJIT_LAYER_LINE_MAX + 256 };
size_t grid_describe(const grid_case *grid, char *text, size_t size);

#endif
