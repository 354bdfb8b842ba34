/* family_depthwise.c - one input channel a group, at the speed of memory: kernel_src/depthwise.cu. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "arithmetic.h"
#include "depthwise_plan.h"
#include "stamp.h"

/* Limits of the kernel. */
enum {
    MOST_SIZE = 1 << 28,  /* of a padded axis, so that positions fit 32 bits */
    MOST_PLANE = 1 << 30, /* elements of a channel, likewise */
    LARGE_BATCH = 32,     /* a multiprocessor need not have room for more blocks than this batch has */
};

/* ---- applicable ---- */

static const char *refuses(const cj_problem *p, const cj_target *target) {
    (void)target;
    CJ_REFUSE_IF(p->transposed, "is for convolutions, not transposed ones")
    CJ_REFUSE_IF(p->group_in > 1, "more than one input channel a group")
    CJ_REFUSE_IF(p->dynamic, "is for input sizes that the layer gives")
    CJ_REFUSE_IF(p->desc.out_channels > INT_MAX / 2, "more than 1073741823 output channels")
    int64_t in = 1, out = 1, taps = 1;
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->in_size[d] > MOST_SIZE || p->pad_begin[d] > MOST_SIZE || p->pad_end[d] > MOST_SIZE ||
                         p->kernel[d] > MOST_SIZE || p->dilation[d] > MOST_SIZE / p->kernel[d],
                     "size, padding or reach of the kernel over 268435456")
        CJ_REFUSE_IF(p->stride[d] > MOST_SIZE / CJ_DEPTHWISE_MOST_THREADS, "stride over 1048576")
        in *= p->in_size[d], out *= p->out_size[d], taps *= p->kernel[d];
        CJ_REFUSE_IF(in > MOST_PLANE || out > MOST_PLANE || taps > MOST_PLANE,
                     "more than 1073741824 inputs, outputs or taps of a channel")
    }
    const cj_depthwise_config c = cj_depthwise_smallest();
    CJ_REFUSE_IF(cj_depthwise_tile_of(p, &c).tile_bytes > CJ_DEPTHWISE_MOST_SHARED,
                 "more than 49152 bytes of input under one output")
    return NULL;
}

/* ---- plan ---- */

static void describe(const cj_depthwise_config *c, char text[CJ_CONFIG_MAX]) {
    snprintf(text, CJ_CONFIG_MAX, "lanes %dx%dx%d k%d thread %dx%d run %d blocks %d row %d", c->lanes[CJ_Z],
             c->lanes[CJ_Y], c->lanes[CJ_X], c->lanes_k, c->rows, c->columns, c->run, c->min_blocks, c->row_taps);
}

static void plan_of(const cj_problem *p, const cj_depthwise_config *c, cj_plan *out) {
    const cj_depthwise_tile t = cj_depthwise_tile_of(p, c);
    const int64_t channels = cj_depthwise_channels(p), groups = cj_divide_up(p->desc.out_channels, channels);
    out->depthwise = *c;
    out->threads = (uint32_t)cj_depthwise_threads(&t);
    out->pack_work = groups * (cj_depthwise_group_pitch(p, c) + channels);
    out->packed_bytes = 4 * (size_t)out->pack_work;
    describe(c, out->config);
}

typedef struct choice {
    const char *wanted; /* or "" */
    cj_depthwise_candidate best;
} choice;

/* The first of equals stays. */
static void keep_cheapest(const cj_depthwise_candidate *c, void *state) {
    choice *to = state;
    if (!c->dropped && (to->best.dropped || c->cost < to->best.cost)) {
        char text[CJ_CONFIG_MAX] = "";
        if (to->wanted[0]) {
            describe(&c->config, text);
        }
        to->best = strcmp(text, to->wanted) == 0 ? *c : to->best;
    }
}

static bool plan(const cj_problem *p, const cj_target *target, cj_plan *out) {
    (void)target;
    choice made = {.wanted = out->config, .best = {.dropped = "none yet"}};
    cj_depthwise_search(p, keep_cheapest, &made);
    if (made.best.dropped) {
        return false;
    }
    plan_of(p, &made.best.config, out);
    return true;
}

/* ---- constants ---- */

static void constants(const cj_problem *p, const cj_plan *plan, cj_text *out) {
    const cj_depthwise_config *c = &plan->depthwise;
    const cj_depthwise_tile t = cj_depthwise_tile_of(p, c);
    for (int d = 0; d < CJ_DIMS; ++d) {
        char name[24];
        snprintf(name, sizeof name, "CJ_LANES_%c", "ZYX"[d]);
        cj_stamp_int(out, name, c->lanes[d], "threads along this axis");
    }
    cj_stamp_int(out, "CJ_LANES_K", c->lanes_k, "threads along output channels");
    cj_stamp_int(out, "CJ_ROWS", c->rows, "rows of a thread");
    cj_stamp_int(out, "CJ_COLUMNS", c->columns, "columns of a thread");
    cj_stamp_int(out, "CJ_ROW_TAPS", c->row_taps, "taps along x in registers together");
    cj_stamp_int(out, "CJ_UNROLL_Y", cj_depthwise_unrolls(p, c), "rows under a thread are unrolled");
    cj_stamp_int(out, "CJ_HOLD_WEIGHTS", cj_depthwise_holds(p, c), "weights are in registers");
    cj_stamp_int(out, "CJ_CLOSE_ROWS", CJ_DEPTHWISE_CLOSE_AFTER / p->kernel[CJ_X],
                 "rows of taps after which sums are closed");
    cj_stamp_int(out, "CJ_CLOSE_AFTER", CJ_DEPTHWISE_CLOSE_AFTER, "most products of an open sum");
    const double blocks =
        p->channels_last ? c->min_blocks : ceil(cj_depthwise_tiles(p, &t, LARGE_BATCH) / CJ_DEPTHWISE_MULTIPROCESSORS);
    cj_stamp_int(out, "CJ_MIN_BLOCKS", (int64_t)fmin(c->min_blocks, blocks), "blocks a multiprocessor must hold");
    cj_stamp_int(out, "CJ_RUN", c->run, "runs of pieces of rows, of rows, or of slices; or strips");
    cj_stamp_int(out, "CJ_RING", c->ring, "steps' input rows of a strip");
    cj_stamp_int(out, "CJ_TILE_BYTES", t.tile_bytes, "shared memory of a tile");
    cj_stamp_int(out, "CJ_STAGE_WEIGHTS", t.weight_bytes > 0, "weights pass through shared memory");
}

/* ---- launch ---- */

static void launch(const cj_problem *p, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks) {
    const cj_depthwise_tile t = cj_depthwise_tile_of(p, &plan->depthwise);
    int64_t tiles = p->channels_last ? args->batch * cj_divide_up(p->desc.out_channels, t.k)
                                     : cj_divide_up(args->batch * p->desc.out_channels, t.k);
    for (int d = 0; d < CJ_DIMS; ++d) {
        tiles *= cj_divide_up(args->out_size[d], t.out[d]);
    }
    args->tiles = tiles;
    *blocks = (uint32_t)cj_least(tiles, INT_MAX);
}

/* ---- predict and explain ---- */

static double predict_ms(const cj_problem *p, const cj_plan *plan, int64_t batch) {
    const cj_depthwise_tile t = cj_depthwise_tile_of(p, &plan->depthwise);
    return cj_depthwise_cost(p, &plan->depthwise, &t, batch) / CJ_CYCLES_PER_MS;
}

static void list_candidate(const cj_depthwise_candidate *c, void *state) {
    char text[CJ_CONFIG_MAX];
    describe(&c->config, text);
    cj_candidates_note(state, c->dropped, c->cost / CJ_CYCLES_PER_MS, text);
}

static void explain(const cj_problem *p, const cj_target *target, cj_candidates *out) {
    (void)target;
    cj_depthwise_search(p, list_candidate, out);
}

const cj_family cj_family_depthwise = {.name = "depthwise",
                                       .refuses = refuses,
                                       .plan = plan,
                                       .constants = constants,
                                       .launch = launch,
                                       .predict_ms = predict_ms,
                                       .explain = explain};
