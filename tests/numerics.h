/* numerics.h - runs one layer on a target and holds every output to the float64 reference.
 *
 * Beside the outputs each run checks that nothing around a tensor is read into them or written, that the weights were
 * really packed, and that an image alone gives the same bits as in its batch. Used by the Criterion tests and by the
 * program convjit_numerics, so it knows neither. */
#ifndef NUMERICS_H
#define NUMERICS_H

#include "convjit.h"
#include "grid.h"
#include "memory.h"
#include "testing.h"

/* A target with everything that is needed to run on it. */
typedef struct numerics {
    memory *memory;
    convjit_context *context;
    char target[32];              /* its name: "sm_90a" */
    char cache[TESTING_PATH_MAX]; /* private folder; "" where CONVJIT_CACHE_DIR names one to share */
    double worst;                 /* of the latest run: the largest error over its bound, */
    char worst_at[256];           /* ... and where, as reference_describe says; "" where it did not come so far */
} numerics;

/* target NULL: CUDA device 0. False with the reason, and nothing to close. */
bool numerics_open(const char *target, numerics *out, char *text, size_t size);
void numerics_close(numerics *on);

/* One layer with dense host tensors, and how they are to be laid out on the device. */
typedef struct numerics_job {
    reference_layer layer;
    const void *x, *w, *bias, *z; /* bias and z may be NULL */
    void *y;                      /* result */
    grid_case place;              /* its residual, slice and shift fields */
} numerics_job;

/* Runs and compares; false with the failure. */
bool numerics_run(numerics *on, const numerics_job *job, char *text, size_t size);

/* The same with a case of the grid and its data. */
bool numerics_run_case(numerics *on, const grid_case *grid, char *text, size_t size);

#endif
