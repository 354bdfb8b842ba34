/* family.h - one way to compute a layer: family_NAME.c plans and launches it, kernel_src/NAME.cu is its kernel.
 *
 * family.c holds the table of families: of those that compute a layer, the one with the least predicted time is chosen,
 * and what speaks against the others can be told. */
#ifndef CJ_FAMILY_H
#define CJ_FAMILY_H

#include "../kernel_src/args.h"
#include "candidates.h"
#include "desc.h"
#include "target.h"

/* Configuration of the family `direct`; its meaning stands in family_direct.c. */
typedef struct cj_direct_config {
    int32_t lanes[CJ_DIMS];      /* threads of a block along z, y, x */
    int32_t lanes_k;             /* ... and along output channels */
    int32_t pixels_y;            /* outputs a thread computes along y, */
    int32_t pixels_x;            /* ... along x (neighbours), */
    int32_t channels;            /* ... and output channels (neighbours) */
    int32_t chunk_c;             /* input channels in shared memory at a time */
    int64_t chunk_taps[CJ_DIMS]; /* kernel taps in shared memory at a time; each divides the tap count */
    int32_t row_taps;            /* taps along x whose inputs are in registers at a time; divides chunk_taps[CJ_X] */
} cj_direct_config;

/* Configuration of the family `depthwise`; its meaning stands in kernel_src/depthwise.cu. */
typedef struct cj_depthwise_config {
    int32_t lanes[CJ_DIMS]; /* threads of a block along z, y, x */
    int32_t lanes_k;        /* ... and along output channels */
    int32_t rows;           /* outputs a thread computes along y, */
    int32_t columns;        /* ... and along x (neighbours) */
    int32_t row_taps;       /* taps along x whose inputs are in registers at a time */
    int32_t run;            /* how a tile's elements lie: pieces of rows (1), rows (2), slices (3), strips (4) */
    int32_t ring;           /* of strips: steps' input rows in shared memory */
    int32_t min_blocks;     /* blocks a multiprocessor must hold */
} cj_depthwise_config;

/* Configuration of the family `tensor`; its meaning stands in kernel_src/tensor.cu. */
typedef struct cj_tensor_config {
    /* Of the view (view.h): rows of products for a group, positions and outputs (0 if dynamic), phases. */
    int64_t rows, grid[CJ_DIMS], out_size[CJ_DIMS], phases[CJ_DIMS], active[CJ_DIMS], lead[CJ_DIMS];
    int64_t image_taps;    /* of the view, too: 0, or each image is a position */
    int32_t products;      /* of halves for one of numbers: 4, 3 or 1 */
    int32_t fold;          /* taps that are lines of their own: 0 none, 1 along z and y, 2 along x too */
    int32_t spread;        /* planes of a stage that hold taps along x of the lines over a multiple of 8 */
    int32_t columns;       /* pixels of a product */
    int32_t consumers_k;   /* consumers that differ in output channels */
    int32_t own_runs;      /* runs of a consumer */
    int32_t own_blocks;    /* ... and blocks of 64 output channels of it */
    int32_t overlap;       /* output columns that neighbouring runs share */
    int32_t run_x;         /* output columns of a run, */
    int32_t runs_x;        /* ... and runs beside each other along x */
    int32_t run_rows;      /* output rows of a run */
    int32_t chunk_c;       /* lines of a stage */
    int32_t chunk_y;       /* kernel rows of a stage */
    int32_t stages;        /* buffers in shared memory */
    int32_t slots;         /* of weights: all of a tile's, two stages', or a ring of 4 or 2 */
    int32_t slot_products; /* whose weights a slot holds */
    int32_t sum_products;  /* ... that form one sum; the last one of a slot may be shorter */
    bool storing;          /* warps of their own send outputs to memory */
    int32_t out_buffers;   /* of eight channels' outputs on their way to memory, for each warp */
    int32_t fill_groups;   /* groups of filling warps, each with every second stage if there are 2 */
    int32_t lanes;         /* threads that fill a piece of a row, */
    int32_t job_items;     /* ... and units of such a piece for each of them */
} cj_tensor_config;

typedef struct cj_family cj_family;

typedef struct cj_plan {
    const cj_family *family;
    char config[CJ_CONFIG_MAX]; /* the configuration as one line, for people */
    uint32_t threads;           /* of a forward block */
    uint32_t shared_bytes;      /* dynamic shared memory of forward */
    int64_t pack_work;          /* elements the packing kernel writes */
    size_t packed_bytes;
    union {
        cj_direct_config direct;
        cj_depthwise_config depthwise;
        cj_tensor_config tensor;
    };
} cj_plan;

struct cj_family {
    const char *name; /* kernel_src/NAME.cu */
    /* NULL if the family computes the problem on the target, else the reason, with the limit in it. */
    const char *(*refuses)(const cj_problem *problem, const cj_target *target);
    /* Chooses the configuration that plan->config spells or, where that is "", the one with the least predicted time
     * (plan->family is set). False if none is spelt so. Deterministic, no timing, no device; depends on nothing but its
     * arguments. */
    bool (*plan)(const cj_problem *problem, const cj_target *target, cj_plan *plan);
    /* Optional. The problem whose sizes, kernel, stride, dilation and padding are stamped: the layer as the family sees
     * it. */
    cj_problem (*view)(const cj_problem *problem);
    /* Writes the constants of problem and plan as named #defines. */
    void (*constants)(const cj_problem *problem, const cj_plan *plan, cj_text *out);
    /* Blocks of a forward launch and the family's own fields of args (tiles); the rest of args is filled. */
    void (*launch)(const cj_problem *problem, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks);
    /* Optional (NULL: the family has no cost model). Milliseconds that a forward of `batch` images takes on an H200, to
     * which every family's model is fitted, whatever the target: so that every machine plans alike. A layer without a
     * size has one that the family thinks usual, a batch of 0 is CJ_USUAL_BATCH. */
    double (*predict_ms)(const cj_problem *problem, const cj_plan *plan, int64_t batch);
    /* Optional. Tells `out` of every candidate that `plan` looks at, with its predicted time for the layer's
     * batch_hint and its configuration, spelt as in cj_plan, or with the reason why it was dropped. */
    void (*explain)(const cj_problem *problem, const cj_target *target, cj_candidates *out);
};

/* The batch of a layer that has no batch_hint. */
enum { CJ_USUAL_BATCH = 8 };

static inline double cj_known_batch(int64_t batch) {
    return batch > 0 ? (double)batch : CJ_USUAL_BATCH;
}

/* Of an H200 under load: cost models count cycles of one of its multiprocessors. */
#define CJ_CYCLES_PER_MS 1.755e6

/* Of a launch, about 6 us. */
#define CJ_LAUNCH_CYCLES 10500.0

/* One line of a family's `refuses`. */
#define CJ_REFUSE_IF(condition, reason) \
    if (condition)                      \
        return reason;

/* Does any family compute the problem? UNSUPPORTED, with every family's reason, if none does. Takes microseconds. */
convjit_status cj_family_supports(const cj_problem *problem, const cj_target *target);

/* The plan of the family that computes the problem in the least predicted time; UNSUPPORTED as above. */
convjit_status cj_family_choose(const cj_problem *problem, const cj_target *target, cj_plan *out);

/* A way to compute a problem: as somebody wants it, or as it might be. */
typedef struct cj_way {
    const char *family;
    char config[CJ_CONFIG_MAX];
    double ms; /* predicted for the problem's batch_hint; 0 where the family has no cost model */
} cj_way;

/* The plan of a family and a configuration. False, and says why, where there is no such one. */
bool cj_family_find(const cj_problem *problem, const cj_target *target, const cj_way *way, cj_plan *out, cj_text *why);

/* The ways to compute a problem, the least predicted time first, which is the plan that cj_family_choose makes; returns
 * how many, 0 where no family computes the problem. */
enum { CJ_WAYS_MAX = 3 * CJ_CANDIDATES_BEST };
size_t cj_family_ways(const cj_problem *problem, const cj_target *target, cj_way out[CJ_WAYS_MAX]);

/* Writes every family with its candidates, or with the reason against it, as lines; times are those of the layer's
 * batch_hint, and of `batch` too for each family's plan. Returns what cj_family_choose returns. */
convjit_status cj_family_explain(const cj_problem *problem, const cj_target *target, int64_t batch, cj_text *out);

/* Milliseconds predicted for a plan and a batch (0: not known); 0 where its family has no cost model. */
double cj_family_predict_ms(const cj_problem *problem, const cj_plan *plan, int64_t batch);

extern const cj_family cj_family_depthwise; /* family_depthwise.c */
extern const cj_family cj_family_tensor;    /* family_tensor.c */
extern const cj_family cj_family_direct;    /* family_direct.c */

#endif
