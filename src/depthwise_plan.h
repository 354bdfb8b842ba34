/* depthwise_plan.h - which tile family `depthwise` computes a layer by: what follows from a configuration, what it
 * costs, and the search. */
#ifndef CJ_DEPTHWISE_PLAN_H
#define CJ_DEPTHWISE_PLAN_H

#include "family.h"

/* Limits of the kernel. */
enum {
    CJ_DEPTHWISE_MOST_SHARED = 48 * 1024, /* what every GPU gives a block unasked */
    CJ_DEPTHWISE_MOST_THREADS = 256,
    CJ_DEPTHWISE_MULTIPROCESSORS = 132, /* of an H200 */
    CJ_DEPTHWISE_CLOSE_AFTER = 36,      /* products in one open sum: see "Accuracy" in the kernel */
};

/* What follows from a configuration; the kernel derives the same. */
typedef struct cj_depthwise_tile {
    int64_t out[CJ_DIMS];                               /* outputs, */
    int64_t under[CJ_DIMS];                             /* the input positions under them, */
    int64_t in[CJ_DIMS];                                /* and those inside the input, at most */
    int64_t k, planes;                                  /* channels of output and input */
    int64_t in_runs, in_vectors, out_runs, out_vectors; /* runs, and vectors that one may touch */
    int64_t lanes;
    int64_t tile_bytes, weight_bytes; /* in shared memory; no weights if they are not staged */
    int64_t window;                   /* input columns under a thread and the taps that it takes together */
} cj_depthwise_tile;

cj_depthwise_tile cj_depthwise_tile_of(const cj_problem *problem, const cj_depthwise_config *config);

/* Threads of a tile, whole warps. */
int64_t cj_depthwise_threads(const cj_depthwise_tile *tile);

/* Tiles of a batch, 0: not known. */
double cj_depthwise_tiles(const cj_problem *problem, const cj_depthwise_tile *tile, int64_t batch);

/* Output channels of a thread, and floats of their weights: "Packed weights" in the kernel. */
int64_t cj_depthwise_channels(const cj_problem *problem);
int64_t cj_depthwise_group_pitch(const cj_problem *problem, const cj_depthwise_config *config);

/* Are the rows under a thread unrolled? Are its weights in registers? */
bool cj_depthwise_unrolls(const cj_problem *problem, const cj_depthwise_config *config);
bool cj_depthwise_holds(const cj_problem *problem, const cj_depthwise_config *config);

/* Cycles of a multiprocessor for a batch, 0: not known. */
double cj_depthwise_cost(const cj_problem *problem, const cj_depthwise_config *config, const cj_depthwise_tile *tile,
                         int64_t batch);

/* The tile of one output, which the search falls back to. */
cj_depthwise_config cj_depthwise_smallest(void);

/* A configuration that the search looks at. */
typedef struct cj_depthwise_candidate {
    cj_depthwise_config config;
    const char *dropped; /* why; NULL: it can be used */
    double cost;         /* for the layer's batch_hint */
} cj_depthwise_candidate;

typedef void (*cj_depthwise_visitor)(const cj_depthwise_candidate *c, void *state);

/* Shows tiles in a fixed order. */
void cj_depthwise_search(const cj_problem *problem, cj_depthwise_visitor visit, void *state);

#endif
