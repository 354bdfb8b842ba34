/* tensor_plan.h - which tile family `tensor` computes a layer by: what follows from a configuration, what it costs, and
 * the search. A problem is the grid of a view (view.h) throughout: its output channels are rows of products. */
#ifndef CJ_TENSOR_PLAN_H
#define CJ_TENSOR_PLAN_H

#include "family.h"
#include "view.h"

/* Sizes of the kernel. */
enum { CJ_TENSOR_THREADS = 512, CJ_TENSOR_BLOCKS = 132, CJ_TENSOR_MOST_SUM = 5, CJ_TENSOR_PART_BYTES = 2048 };

/* What follows from a configuration; the kernel derives the same. */
typedef struct cj_tensor_tile {
    int64_t k, y, x;  /* outputs */
    int64_t pitch;    /* units of a row */
    int64_t chunks;   /* stages of a tile */
    int64_t rows;     /* of a part of a buffer */
    int64_t columns;  /* units of such a row */
    int64_t units;    /* of a part of a buffer */
    int64_t jobs;     /* pieces of rows of a stage that a filling thread takes, */
    int64_t held;     /* ... and their units, which it holds */
    int64_t products; /* of slices, of a stage, the filled up ones of the last slot included */
    int64_t shared_bytes;
} cj_tensor_tile;

/* Its outputs alone. */
cj_tensor_tile cj_tensor_outputs(const cj_tensor_config *config);

cj_tensor_tile cj_tensor_tile_of(const cj_problem *problem, const cj_tensor_config *config);

/* Parts that numbers are split in. */
int32_t cj_tensor_parts(const cj_tensor_config *config);

/* Blocks of 64 rows of products of a group. */
int64_t cj_tensor_k_blocks(const cj_problem *problem, const cj_tensor_tile *tile, const cj_tensor_config *config);

/* What is rounded off the total is kept: never, for the next sum of the slot, or always. In math fp32 as little of it
 * as keeps equal factors, the worst there are, within 0.93 * 2^-21 S (in a model: kernels.md). */
enum { CJ_TENSOR_PLAIN, CJ_TENSOR_IN_SLOT, CJ_TENSOR_ALWAYS };

int32_t cj_tensor_compensation(const cj_tensor_config *config, const cj_tensor_tile *tile);

/* Registers of a consumer's thread: its sums and totals, and what they are worked on with; of a thread that stores or
 * brings weights; and of a filling thread: what these leave. */
int32_t cj_tensor_consumer_registers(const cj_problem *problem, const cj_tensor_config *config,
                                     const cj_tensor_tile *tile);
int32_t cj_tensor_other_registers(const cj_problem *problem, const cj_tensor_config *config,
                                  const cj_tensor_tile *tile);
int32_t cj_tensor_filler_registers(const cj_problem *problem, const cj_tensor_config *config,
                                   const cj_tensor_tile *tile);

/* Cycles of a multiprocessor for a batch, 0: not known. */
double cj_tensor_cost(const cj_problem *problem, const cj_tensor_config *config, const cj_tensor_tile *tile,
                      int64_t batch);

typedef struct cj_tensor_candidate {
    cj_tensor_config config;
    const char *dropped; /* why; NULL: it can be used */
    double cost;         /* for the layer's batch_hint */
} cj_tensor_candidate;

typedef void (*cj_tensor_visitor)(const cj_tensor_candidate *c, void *state);

/* Shows tiles in a fixed order. False if none can be used. Without `visit`, stops soon after the first that can. */
bool cj_tensor_search(const cj_view *view, cj_tensor_visitor visit, void *state);

#endif
