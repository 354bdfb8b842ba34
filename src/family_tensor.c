/* family_tensor.c - convolutions on Hopper's tensor cores: kernel_src/tensor.cu.
 *
 * The plan is a search over tiles with a cost model in cycles of one multiprocessor (cost_of). */
#include <stdio.h>

#include "arithmetic.h"
#include "family.h"
#include "stamp.h"

/* Sizes of the kernel. */
enum {
    CONSUMERS = 2,
    THREADS = 384,
    MOST_SHARED = 227 * 1024,    /* of a block on sm_90 */
    OUT_BYTES = 4 * 8 * 16 * 40, /* pieces of outputs on their way to memory */
    TAP_BYTES = 2048,            /* weights of 64 x 8 */
    DEPTH = 8,                   /* K of a product */
    MOST_WINDOW_CHANNELS = 16,   /* with more, eight channels always fill a product */
    SUM_TAPS = 9,                /* about as many taps of 8 channels in a slot of weights */
    CLOSE_TAPS = 2,              /* ... in one sum: see "Accuracy" in the kernel */
};

/* ---- tiles ---- */

/* What follows from a configuration; the kernel derives the same. */
typedef struct tile {
    int64_t k, y, x; /* outputs */
    int64_t chunks;  /* stages of a tile */
    int64_t units;   /* of 16 bytes in one buffer */
    int64_t shared_bytes;
} tile;

/* Products along x, input channels of one, and input columns from the first to the last unit of an output. */
static int64_t taps_x(const cj_problem *p, const cj_tensor_config *c) {
    return c->windows ? cj_divide_up(p->kernel[CJ_X], DEPTH) : p->kernel[CJ_X];
}

static int32_t step_c(const cj_tensor_config *c) {
    return c->windows ? 1 : DEPTH;
}

static int64_t reach(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t between = p->kernel[CJ_X] > 1 ? p->dilation[CJ_X] * (c->windows ? DEPTH : 1) : 0;
    return (taps_x(p, c) - 1) * between + (c->windows ? 4 * p->dilation[CJ_X] : 0);
}

/* One slot of the weights' ring: the taps of one sum. */
static int64_t slot_bytes(const cj_problem *p, const cj_tensor_config *c) {
    return (int64_t)c->consumers_k * c->parts * c->sum_k * c->sum_y * taps_x(p, c) * TAP_BYTES;
}

static tile tile_of(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t parities_y = c->chunk_y > 1 ? p->stride[CJ_Y] : 1;
    const int64_t parities_x = taps_x(p, c) > 1 && !c->windows ? p->stride[CJ_X] : 1;
    tile t = {.k = (int64_t)64 * c->consumers_k,
              .y = (int64_t)CONSUMERS / c->consumers_k / c->runs_x * c->run_rows,
              .x = (int64_t)c->runs_x * c->run_x};
    const int64_t in_rows = t.y + (c->chunk_y > 1 ? (c->chunk_y - 1) * p->dilation[CJ_Y] / p->stride[CJ_Y] : 0);
    const int64_t pitch = t.x + reach(p, c) / p->stride[CJ_X];
    const int64_t planes = c->windows ? c->chunk_c : c->chunk_c / 4;
    t.units = c->parts * planes * parities_y * parities_x * in_rows * pitch;
    t.chunks = cj_divide_up(p->group_in, c->chunk_c) * p->kernel[CJ_Z] * (p->kernel[CJ_Y] / c->chunk_y);
    t.shared_bytes = 16 * (c->stages * t.units + c->columns) + OUT_BYTES + (int64_t)16 * (c->stages + c->slots) +
                     c->slots * slot_bytes(p, c);
    return t;
}

/* Cycles for a batch of eight on 132 multiprocessors, plus one tile alone. A product of 64 x N x 8 takes N / 2 cycles
 * in tf32; the producers move about one unit in 1.2 cycles. */
static double cost_of(const cj_problem *p, const cj_tensor_config *c, const tile *t) {
    const int64_t out[CJ_DIMS] = {p->dynamic ? 1 : cj_most(1, p->out_size[CJ_Z]),
                                  p->dynamic ? 128 : cj_most(1, p->out_size[CJ_Y]),
                                  p->dynamic ? 128 : cj_most(1, p->out_size[CJ_X])};
    const double tiles = 8.0 * (double)p->desc.groups * (double)cj_divide_up(p->group_out, t->k) * (double)out[CJ_Z] *
                         (double)cj_divide_up(out[CJ_Y], t->y) * (double)cj_divide_up(out[CJ_X], t->x);
    const double taps = (double)((int64_t)(c->chunk_c / step_c(c)) * c->chunk_y * taps_x(p, c));
    const double products = taps * CONSUMERS * (c->parts == 2 ? 4.0 : 1.0) * c->columns / 2.0;
    const double fill = (double)t->units / c->parts * 1.2 + 1000.0;
    const double tile_cycles = (double)t->chunks * ((products > fill ? products : fill) + 200.0) + 3000.0;
    return tiles / 132.0 * tile_cycles + tile_cycles;
}

/* Products of one sum: kernel rows, then steps of channels, until there are about SUM_TAPS taps. */
static void choose_sum(const cj_problem *p, cj_tensor_config *c) {
    const int32_t steps = c->chunk_c / step_c(c);
    c->sum_y = c->sum_k = 1;
    for (int32_t y = 1; y <= c->chunk_y; ++y) {
        if (c->chunk_y % y == 0 && y * taps_x(p, c) <= SUM_TAPS) {
            c->sum_y = y;
        }
    }
    for (int32_t k = 1; k <= steps; ++k) {
        if (c->sum_y == c->chunk_y && steps % k == 0 && (int64_t)k * c->chunk_y * taps_x(p, c) <= SUM_TAPS) {
            c->sum_k = k;
        }
    }
}

/* Completes the configuration and keeps it if it fits and costs less than the best so far. */
static void consider(const cj_problem *p, cj_tensor_config c, cj_tensor_config *best, double *best_cost) {
    c.parts = p->desc.math == CONVJIT_TF32 ? 1 : 2;
    c.stages = c.slots = 2;
    if (c.runs_x == 1) {
        c.run_rows = (int32_t)((c.columns - c.run_x) / (c.run_x + reach(p, &c) / p->stride[CJ_X]) + 1);
    }
    choose_sum(p, &c);
    const tile t = tile_of(p, &c);
    const double cost = cost_of(p, &c, &t);
    if (t.shared_bytes <= MOST_SHARED && (*best_cost < 0.0 || cost < *best_cost)) {
        *best_cost = cost;
        *best = c;
    }
}

/* Tries tiles in a fixed order; the first of equals stays. False if none fits shared memory. */
static bool search(const cj_problem *p, cj_tensor_config *best) {
    enum { COLUMNS = 128, MOST_SPLITS = 8, MOST_CHUNK = 64 };
    const int64_t width = p->dynamic ? COLUMNS : cj_most(1, p->out_size[CJ_X]), splits = cj_divide_up(width, COLUMNS);
    const bool windows_fit = 4 * p->dilation[CJ_X] % p->stride[CJ_X] == 0 && p->group_in < MOST_WINDOW_CHANNELS;
    double best_cost = -1.0;
    for (int32_t windows = 0; windows <= windows_fit; ++windows) {
        for (int32_t consumers_k = p->group_out > 64 ? 2 : 1; consumers_k >= 1; --consumers_k) {
            for (int64_t split = splits; split < splits + MOST_SPLITS; ++split) {
                for (int32_t size = windows ? 1 : DEPTH; size <= (windows ? DEPTH : MOST_CHUNK); size *= 2) {
                    const int32_t step = windows ? 1 : DEPTH;
                    const int64_t even = cj_divide_up(p->group_in, cj_divide_up(p->group_in, size));
                    cj_tensor_config c = {.windows = windows, .columns = COLUMNS, .consumers_k = consumers_k};
                    c.run_x = (int32_t)cj_divide_up(width, split);
                    c.chunk_c = (int32_t)cj_divide_up(even, step) * step;
                    for (c.runs_x = 1; c.runs_x <= CONSUMERS / consumers_k; ++c.runs_x) {
                        c.run_rows = 1;
                        c.chunk_y = (int32_t)p->kernel[CJ_Y];
                        consider(p, c, best, &best_cost);
                        c.chunk_y = 1;
                        consider(p, c, best, &best_cost);
                    }
                }
            }
        }
    }
    return best_cost >= 0.0;
}

/* ---- applicable ---- */

static const char *refuses(const cj_problem *p, const cj_target *target) {
    CJ_REFUSE_IF(target->kind == CJ_TARGET_CUDA && (target->capability != 90 || !target->has_features), "not sm_90a")
    CJ_REFUSE_IF(p->transposed, "is for convolutions, not transposed ones")
    CJ_REFUSE_IF(p->desc.data_type != CONVJIT_F32, "is for f32 data")
    CJ_REFUSE_IF(p->channels_last, "is for channels first")
    CJ_REFUSE_IF(p->group_out < 16, "fewer than 16 output channels a group")
    CJ_REFUSE_IF(p->group_in > 1 << 20 || p->group_out > 1 << 20, "more than 1048576 channels a group")
    CJ_REFUSE_IF(p->kernel[CJ_X] > 32, "kernel wider than 32")
    CJ_REFUSE_IF(p->kernel[CJ_Z] > 32 || p->kernel[CJ_Y] > 1 << 10, "kernel deeper than 32 or higher than 1024")
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->stride[d] > 1 << 10 || p->dilation[d] > 1 << 10, "stride or dilation over 1024")
        CJ_REFUSE_IF(p->in_size[d] > 1 << 30 || p->out_size[d] > 1 << 30, "size over 1073741824")
    }
    cj_tensor_config config;
    CJ_REFUSE_IF(!search(p, &config), "no tile of it fits shared memory")
    return NULL;
}

/* ---- plan ---- */

static void plan(const cj_problem *p, const cj_target *target, cj_plan *out) {
    (void)target;
    cj_tensor_config *c = &out->tensor;
    search(p, c);
    const tile t = tile_of(p, c);
    out->threads = THREADS;
    out->shared_bytes = (uint32_t)t.shared_bytes;
    const int64_t k_blocks = cj_divide_up(p->group_out, t.k) * c->consumers_k;
    const int64_t weights =
        p->desc.groups * k_blocks * t.chunks * (c->chunk_c / step_c(c)) * c->chunk_y * taps_x(p, c) * c->parts * 128;
    out->pack_work = weights + p->desc.out_channels; /* behind the weights, the bias */
    out->packed_bytes = (size_t)(weights * 16 + p->desc.out_channels * 4);
    snprintf(out->config, sizeof out->config, "tile %lldx%lld k%lld run %dx%d stage c%d f%d x%d sum %dx%dx%lld%s",
             (long long)t.y, (long long)t.x, (long long)t.k, c->run_rows, c->columns, c->chunk_c, c->chunk_y, c->stages,
             c->sum_k, c->sum_y, (long long)taps_x(p, c), c->windows ? " windows" : "");
}

/* ---- constants ---- */

/* The registers of a product's sum: asm cannot count, so the stamp writes them out. */
static void stamp_sum(int columns, cj_text *out) {
    const int registers = columns / 2;
    cj_text_printf(out, "#define CJ_COLUMNS_TEXT \"%d\"\n#define CJ_SUM_REGISTERS \"{", columns);
    for (int i = 0; i < registers; ++i) {
        cj_text_printf(out, "%s%%%d", i ? ", " : "", i);
    }
    cj_text_printf(out, "}\"\n#define CJ_SUM_OPERANDS(sum)");
    for (int i = 0; i < registers; ++i) {
        cj_text_printf(out, "%s \"+f\"(sum[%d])", i ? "," : "", i);
    }
    for (int i = 0; i < 3; ++i) {
        cj_text_printf(out, "\n#define CJ_SUM_NEXT_%d \"%%%d\"", i, registers + i);
    }
    cj_text_printf(out, "\n");
}

static void constants(const cj_problem *p, const cj_plan *plan, cj_text *out) {
    const cj_tensor_config *c = &plan->tensor;
    cj_stamp_int(out, "CJ_MIN_BLOCKS", 1, "blocks a multiprocessor must hold");
    cj_stamp_int(out, "CJ_PARTS", c->parts, "tf32 numbers a value is split into");
    cj_stamp_int(out, "CJ_WINDOWS", c->windows, "a product's K is 8 taps along x of one channel, not 8 channels");
    cj_stamp_int(out, "CJ_COLUMNS", c->columns, "pixels of a product");
    cj_stamp_int(out, "CJ_CONSUMERS_K", c->consumers_k, "consumers that differ in output channels");
    cj_stamp_int(out, "CJ_RUN_X", c->run_x, "output columns of a run");
    cj_stamp_int(out, "CJ_RUNS_X", c->runs_x, "runs beside each other along x");
    cj_stamp_int(out, "CJ_RUN_ROWS", c->run_rows, "output rows of a consumer");
    cj_stamp_int(out, "CJ_CHUNK_C", c->chunk_c, "input channels of a stage");
    cj_stamp_int(out, "CJ_CHUNK_Y", c->chunk_y, "kernel rows of a stage");
    cj_stamp_int(out, "CJ_STAGES", c->stages, "buffers");
    cj_stamp_int(out, "CJ_SLOTS", c->slots, "slots of weights");
    const int64_t taps = (int64_t)c->sum_k * c->sum_y * taps_x(p, c);
    cj_stamp_int(out, "CJ_CLOSE_TAPS", c->parts == 2 ? CLOSE_TAPS : taps, "taps of one sum");
    cj_stamp_int(out, "CJ_SUM_K", c->sum_k, "groups of 8 channels in a slot of weights");
    cj_stamp_int(out, "CJ_SUM_Y", c->sum_y, "kernel rows in a slot of weights");
    cj_stamp_int(out, "CJ_SHARED_BYTES", plan->shared_bytes, "dynamic shared memory");
    stamp_sum(c->columns, out);
}

/* ---- launch ---- */

static void launch(const cj_problem *p, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks) {
    const tile t = tile_of(p, &plan->tensor);
    args->tiles = args->batch * p->desc.groups * cj_divide_up(p->group_out, t.k) * args->out_size[CJ_Z] *
                  cj_divide_up(args->out_size[CJ_Y], t.y) * cj_divide_up(args->out_size[CJ_X], t.x);
    *blocks = (uint32_t)cj_least(args->tiles, 132);
}

const cj_family cj_family_tensor = {
    .name = "tensor", .refuses = refuses, .plan = plan, .constants = constants, .launch = launch};
