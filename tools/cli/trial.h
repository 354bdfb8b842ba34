/* trial.h - one layer put to the test: created, run on random data, compared with float64, timed. */
#ifndef TRIAL_H
#define TRIAL_H

#include "memory.h"
#include "reference.h"
#include "session.h"

/* How to try, the same for every layer. */
typedef struct trial_setup {
    convjit_context *context;
    memory *memory;     /* where the context's layers run */
    int64_t in_size[3]; /* of layers whose descriptor gives none */
    reference_distribution distribution;
    uint64_t seed;
    int64_t check;  /* outputs compared at most */
    int64_t repeat; /* timed calls */
} trial_setup;

/* What came of it. Parts that were not reached are NULL or NaN. */
typedef struct trial {
    char line[CONVJIT_LAYER_LINE_MAX];
    convjit_layer *layer;
    convjit_layer_info info; /* valid where layer is not NULL */
    double forward_ms;       /* median */
    double predicted_ms;     /* on a GPU */
    double gflops;
    double over_sum;       /* worst |error| / S */
    double over_tolerance; /* worst |error| / tolerance */
    int64_t checked;
    bool passed;
    char *message; /* why it failed; NULL where it passed */
} trial;

/* Random data of a layer, and room for its outputs. */
typedef struct trial_data trial_data;

/* Tries a layer in a way. `data` NULL: makes its data and frees it; else they are made where *data is NULL, and left
 * there for further trials of the layer. */
trial trial_run(const trial_setup *setup, const named_layer *layer, const way *as, trial_data **data);
void trial_free(trial *of);                                     /* destroys the layer */
void trial_data_free(const trial_setup *setup, trial_data *of); /* NULL is ignored */

#endif
