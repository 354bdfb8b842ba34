/* family_direct.c - any layer on CUDA cores: kernel_src/direct.cu.
 *
 * The plan is a search over small tiles with a cost model in cycles of one multiprocessor (cost_of). */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "arithmetic.h"
#include "family.h"
#include "stamp.h"

/* Limits of the kernel. */
enum {
    MOST_SHARED = 48 * 1024, /* what every GPU gives a block unasked */
    MOST_OUTPUTS = 32,       /* of a thread: each takes two registers */
    MOST_WINDOW = 40,        /* input registers of a thread: PIXELS_Y windows */
    MOST_ROW_TAPS = 16,      /* taps unrolled: keeps the compile short */
    MOST_UNROLLED = 49,      /* ... of a whole plane */
    CLOSE_AFTER = 36,        /* products in one open sum: see "Accuracy" in the kernel */
    MIN_BLOCKS = 4,          /* of 128 threads a multiprocessor: at most 128 registers a thread */
};

/* ---- applicable ---- */

static const char *refuses(const cj_problem *p, const cj_target *target) {
    (void)target;
    CJ_REFUSE_IF(p->group_in > INT_MAX, "more than 2147483647 input channels a group")
    CJ_REFUSE_IF(p->group_out > INT_MAX - 1024, "more than 2147482623 output channels a group")
    CJ_REFUSE_IF(p->kernel[CJ_Z] > INT_MAX / p->kernel[CJ_Y], "more than 2147483647 kernel taps")
    CJ_REFUSE_IF(p->kernel[CJ_Z] * p->kernel[CJ_Y] > INT_MAX / p->kernel[CJ_X], "more than 2147483647 kernel taps")
    CJ_REFUSE_IF(p->transposed && (p->stride[CJ_Z] > INT_MAX / p->stride[CJ_Y] / p->stride[CJ_X]),
                 "more than 2147483647 output phases")
    /* Packing makes up to 20 times as many: it fills up the channels of a tile and of a stage, and the taps of a phase.
     */
    const int64_t taps = p->kernel[CJ_Z] * p->kernel[CJ_Y] * p->kernel[CJ_X];
    CJ_REFUSE_IF(p->desc.out_channels * p->group_in > INT64_MAX / 256 / taps, "more than 36028797018963967 weights")
    return NULL;
}

/* ---- plan ---- */

/* One axis of the loop in direct.cu, which both operations share. */
typedef struct axis {
    int64_t step; /* input distance of neighbouring outputs of a phase */
    int64_t phases;
    int64_t taps;     /* most taps that reach a phase */
    int64_t tap_step; /* their input distance */
    int64_t period;   /* transposed: kernel distance of neighbouring taps of a phase */
    int64_t inverse;  /* transposed: inverse of dilation / gcd modulo period */
} axis;

/* gcd(a, b), and in *inverse that of a / gcd modulo b / gcd (0 if that is 1), by Euclid's algorithm. */
static int64_t common_divisor(int64_t a, int64_t b, int64_t *inverse) {
    int64_t r0 = b, r1 = a % b, t0 = 0, t1 = 1;
    while (r1) {
        const int64_t q = r0 / r1, r = r0 - q * r1, t = t0 - q * t1;
        r0 = r1, r1 = r, t0 = t1, t1 = t;
    }
    const int64_t modulus = b / r0;
    *inverse = modulus == 1 ? 0 : (t0 % modulus + modulus) % modulus;
    return r0;
}

static axis axis_of(const cj_problem *p, int d) {
    axis a = {.step = p->stride[d], .phases = 1, .taps = p->kernel[d], .tap_step = p->dilation[d], .period = 1};
    if (p->transposed) {
        const int64_t common = common_divisor(p->dilation[d], p->stride[d], &a.inverse);
        a.step = 1;
        a.phases = p->stride[d];
        a.period = p->stride[d] / common;
        a.taps = cj_divide_up(p->kernel[d], a.period);
        a.tap_step = p->dilation[d] / common;
    }
    return a;
}

/* What follows from a configuration; the kernel derives the same. -1 where a number is too large to be of use. */
typedef struct tile {
    int64_t out[CJ_DIMS];
    int64_t k;
    int64_t pitch, in_rows; /* of the input in shared memory: floats of a row, rows of a z plane */
    int64_t plane;          /* floats of one channel in shared memory */
    int64_t stage_weights;  /* floats */
    int64_t shared_bytes;
    int64_t stages, threads, window;
    int shift;
} tile;

/* A step may be near 2^63, so remainders are multiplied. */
static bool rows_are_vectors(const cj_problem *p, const axis *x, const cj_direct_config *c) {
    const int64_t out = (int64_t)c->lanes[CJ_X] * c->pixels_x;
    return !p->channels_last && !p->transposed && !p->dynamic && c->chunk_taps[CJ_X] == x->taps &&
           out % 4 * ((out > 1 ? x->step : 1) % 4) % 4 == 0 && p->in_size[CJ_X] % 4 == 0;
}

static bool tile_of(const cj_problem *p, const axis *axes, const cj_direct_config *c, tile *t) {
    *t = (tile){.k = (int64_t)c->lanes_k * c->channels, .plane = 1, .stages = cj_divide_up(p->group_in, c->chunk_c)};
    t->threads = (int64_t)c->lanes[CJ_Z] * c->lanes[CJ_Y] * c->lanes[CJ_X] * c->lanes_k;
    t->out[CJ_Z] = c->lanes[CJ_Z];
    t->out[CJ_Y] = (int64_t)c->lanes[CJ_Y] * c->pixels_y;
    t->out[CJ_X] = (int64_t)c->lanes[CJ_X] * c->pixels_x;
    t->stage_weights = c->chunk_c * t->k;
    t->shift = rows_are_vectors(p, &axes[CJ_X], c) ? (int)((4 - p->pad_begin[CJ_X] % 4) % 4) : 0;
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t step = t->out[d] > 1 ? axes[d].step : 1, taps = c->chunk_taps[d];
        const int64_t tap_step = taps > 1 ? axes[d].tap_step : 0;
        if (step > MOST_SHARED || tap_step > MOST_SHARED || taps > MOST_SHARED) {
            return false;
        }
        const int64_t extent = (t->out[d] - 1) * step + (taps - 1) * tap_step + 1;
        if (extent > MOST_SHARED) {
            return false;
        }
        t->pitch = cj_round_up(extent + t->shift, 4); /* of the last axis, x, in the end */
        t->in_rows = d == CJ_Y ? extent : t->in_rows;
        t->plane *= d == CJ_X ? t->pitch : extent;
        t->stage_weights *= taps;
        t->stages *= axes[d].taps / taps;
        if (t->plane > MOST_SHARED || t->stage_weights > MOST_SHARED) {
            return false;
        }
    }
    const int64_t step_x = t->out[CJ_X] > 1 ? axes[CJ_X].step : 1;
    t->window = t->shift + (c->pixels_x - 1) * step_x +
                (c->row_taps - 1) * (c->chunk_taps[CJ_X] > 1 ? axes[CJ_X].tap_step : 0) + 1;
    t->shared_bytes = cj_most(4 * (c->chunk_c * t->plane + cj_round_up(t->stage_weights, 4)),
                              4 * t->k * t->out[CJ_Z] * t->out[CJ_Y] * t->out[CJ_X]);
    return t->shared_bytes <= MOST_SHARED;
}

/* Chooses the stage: all taps if they fit, else the outer axes one tap at a time, then fewer taps along x; then as many
 * channels as fit, in even chunks. False if not even one channel and tap fits. */
static bool fit_stage(const cj_problem *p, const axis *axes, cj_direct_config *c, tile *t) {
    for (int step = 0;; ++step) {
        c->chunk_c = 1;
        for (int d = 0; d < CJ_DIMS; ++d) {
            c->chunk_taps[d] = d < step ? 1 : axes[d].taps;
        }
        if (step >= CJ_DIMS) {
            c->chunk_taps[CJ_X] = cj_largest_divisor(axes[CJ_X].taps, step == CJ_DIMS       ? 64
                                                                      : step == CJ_DIMS + 1 ? 8
                                                                                            : 1);
        }
        c->row_taps = (int32_t)cj_largest_divisor(c->chunk_taps[CJ_X], MOST_ROW_TAPS);
        if (tile_of(p, axes, c, t)) {
            break;
        }
        if (step > CJ_DIMS + 1) {
            return false;
        }
    }
    while (t->window * c->pixels_y > MOST_WINDOW && c->row_taps > 1) {
        c->row_taps = (int32_t)cj_largest_divisor(c->row_taps, c->row_taps - 1);
        tile_of(p, axes, c, t);
    }
    const int64_t one = 4 * (t->plane + cj_round_up(t->stage_weights, 4));
    const int64_t fits = cj_most(1, MOST_SHARED / one);
    const int64_t chunks = cj_divide_up(p->group_in, cj_least(fits, 16));
    c->chunk_c = (int32_t)cj_divide_up(p->group_in, chunks);
    if (p->channels_last && c->chunk_c > 4) {
        c->chunk_c = c->chunk_c / 4 * 4; /* four channels a load */
    }
    return tile_of(p, axes, c, t);
}

/* Cycles in which shared memory serves one warp's load of inputs: it has 32 banks of 4 bytes, a load of 16 bytes a lane
 * goes eight lanes at a time, and lanes that want different rows of one bank wait for each other. */
static int bank_cycles(const axis *axes, const cj_direct_config *c, const tile *t, bool vectors) {
    const int64_t lane_x = c->pixels_x * (t->out[CJ_X] > 1 ? axes[CJ_X].step : 1);
    const int64_t lane_y = c->pixels_y * (t->out[CJ_Y] > 1 ? axes[CJ_Y].step : 1) * t->pitch;
    const int64_t lane_z = (t->out[CJ_Z] > 1 ? axes[CJ_Z].step : 1) * t->in_rows * t->pitch;
    const int together = vectors ? 8 : 32, width = vectors ? 4 : 1;
    int cycles = 0;
    for (int first = 0; first < 32; first += together) {
        int64_t seen[32][32]; /* per bank: addresses wanted from it */
        int count[32] = {0}, worst = 0;
        for (int lane = first; lane < first + together; ++lane) {
            const int x = lane % c->lanes[CJ_X], y = lane / c->lanes[CJ_X] % c->lanes[CJ_Y];
            const int z = lane / c->lanes[CJ_X] / c->lanes[CJ_Y] % c->lanes[CJ_Z];
            const int64_t address = x * lane_x + y * lane_y + z * lane_z;
            const int bank = (int)(address % 32) / width;
            int i = 0;
            while (i < count[bank] && seen[bank][i] != address) {
                ++i;
            }
            if (i == count[bank]) {
                seen[bank][count[bank]++] = address;
                worst = count[bank] > worst ? count[bank] : worst;
            }
        }
        cycles += worst;
    }
    return cycles;
}

/* Cycles for a batch: work / P + span, with the 132 multiprocessors of a large GPU as P and one tile as span.
 * Depends on nothing of the machine, so that every machine plans alike. The model and tools/bench/results/h200.json (36
 * layers, 0.4 to 44 ms) agree so: measured / predicted is 0.88 to 1.11 for convolutions, 0.79 to 1.87 for transposed
 * ones (the test that ends a phase's taps is not in the model); rank correlation 0.99. */
static double cost_of(const cj_problem *p, const axis *axes, const cj_direct_config *c, const tile *t, int64_t batch) {
    const double multiprocessors = 132.0;
    double tiles = cj_known_batch(batch) * (double)(p->desc.groups * cj_divide_up(p->group_out, t->k));
    double rows = (double)p->group_in, reached = 1.0; /* part of the phases that any tap reaches */
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t out = p->dynamic ? (p->desc.rank + d >= CJ_DIMS ? 100 : 1) : cj_most(1, p->out_size[d]);
        tiles *= (double)(cj_divide_up(out, axes[d].phases * t->out[d]) * axes[d].phases);
        rows *= (double)(d == CJ_X ? axes[d].taps / c->row_taps : axes[d].taps);
        reached *= (double)cj_least(p->kernel[d], axes[d].period) / (double)axes[d].phases;
    }
    const double outputs = (double)c->pixels_y * c->pixels_x * c->channels, warps = (double)t->threads / 32.0;
    const int64_t step_x = t->out[CJ_X] > 1 ? axes[CJ_X].step : 1;
    /* One thread, one row: multiply-adds, loads of weights and inputs, loop, and its share of closing the sums. */
    const double weight_loads = c->row_taps * (c->channels % 4 ? (double)c->channels : c->channels / 4.0);
    const bool vectors = c->pixels_x * step_x % 4 == 0;
    const double input_loads = c->pixels_y * (vectors ? (double)cj_divide_up(t->window, 4) : (double)t->window);
    const double issued = c->row_taps * outputs * (1.0 + 3.0 / CLOSE_AFTER) + weight_loads + input_loads + 8.0;
    const double shared = weight_loads + input_loads * bank_cycles(axes, c, t, vectors);
    const double compute = rows * warps * (issued / 4.0 + 0.1 * shared > shared ? issued / 4.0 + 0.1 * shared : shared);
    /* Filling: 12 instructions an element moved (its place has to be worked out), and what four blocks a multiprocessor
     * leave of a load's latency. Storing: 20 instructions an output, 8 where four go together. */
    const double elements = (double)(c->chunk_c * t->plane + t->stage_weights / 4);
    const double fill = (double)t->stages * (elements * 12.0 / 128.0 + 300.0);
    const bool four = p->channels_last ? c->channels % 4 == 0
                                       : c->pixels_x % 4 == 0 && axes[CJ_X].phases == 1 && p->out_size[CJ_X] % 4 == 0;
    const double store = outputs * warps / 4.0 * (four ? 8.0 : 20.0) + 200.0;
    /* Memory moves sectors of 32 bytes: 64 bytes a cycle in, mostly from the L2, 16 bytes out. Rows that may start
     * anywhere touch one sector more; the outputs of a phase lie apart. */
    const double in_sectors = (double)(t->stages * c->chunk_c * (t->plane / t->pitch)) * ((double)t->pitch / 8.0 + 1.0);
    const double wide = (double)(p->channels_last ? cj_least(t->k, p->group_out) : t->out[CJ_X]);
    const double span = wide * (double)(p->channels_last ? 1 : cj_least(axes[CJ_X].phases, 8));
    const double out_sectors =
        outputs * (double)t->threads / wide * (span < 8.0 ? 1.0 : span / 8.0 + (four ? 0.0 : 1.0));
    const double move = reached * in_sectors * 32.0 / 64.0 + out_sectors * 32.0 / 16.0;
    const double tile_cycles = reached * (compute + fill) + store + move;
    return tiles / multiprocessors * tile_cycles + tile_cycles + CJ_LAUNCH_CYCLES;
}

/* A configuration that the search looks at. */
typedef struct candidate {
    cj_direct_config config;
    const char *dropped; /* why; NULL: it can be used */
    double cost;         /* for the layer's batch_hint */
} candidate;

/* Completes the configuration by its stage, unless there is a reason not to use it. */
static const char *drops(const cj_problem *p, const axis *axes, cj_direct_config *c, tile *t) {
    const int64_t wanted[CJ_DIMS] = {c->lanes[CJ_Z], (int64_t)c->lanes[CJ_Y] * c->pixels_y,
                                     (int64_t)c->lanes[CJ_X] * c->pixels_x};
    CJ_REFUSE_IF(c->channels * c->pixels_y * c->pixels_x > MOST_OUTPUTS, "more than 32 outputs a thread")
    CJ_REFUSE_IF(c->lanes_k > 1 && (int64_t)c->lanes_k / 2 * c->channels >= p->group_out,
                 "at least twice as many channels as the layer has")
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t there = p->dynamic ? (CJ_DIMS - d <= p->desc.rank ? 1 << 20 : 1)
                                         : cj_divide_up(cj_most(1, p->out_size[d]), axes[d].phases);
        CJ_REFUSE_IF(wanted[d] >= 2 * there && wanted[d] > 1 && !(d == CJ_X && c->pixels_x == wanted[d]),
                     "at least twice as large as the output")
        /* Rows of one plane are neighbours in memory. */
        CJ_REFUSE_IF(d == CJ_Y && c->lanes[CJ_Z] > 1 && wanted[CJ_Y] < there, "several planes, but not all rows of one")
    }
    CJ_REFUSE_IF(!fit_stage(p, axes, c, t), "more than 49152 bytes of shared memory, even for one channel and tap")
    return NULL;
}

typedef void (*visitor)(const candidate *c, void *state);

/* Shows all blocks of 2^threads threads in a fixed order. False if none can be used. */
static bool visit_blocks(const cj_problem *p, const axis *axes, int threads, visitor visit, void *state) {
    int32_t most_channels = 8;
    while (most_channels > 1 && most_channels / 2 >= p->group_out) {
        most_channels /= 2;
    }
    bool found = false;
    /* log2 of the lanes along k, z and y; x takes the rest */
    for (int k = 0; k <= 4; ++k) {
        for (int z = 0; z <= (p->desc.rank == 3 ? 3 : 0); ++z) {
            for (int y = 0; y <= (p->desc.rank >= 2 ? 5 : 0) && k + z + y <= threads; ++y) {
                for (int pixels = 0; pixels < 9; ++pixels) {
                    for (int32_t channels = most_channels; channels >= most_channels / 2 && channels; channels /= 2) {
                        candidate c = {.config = {.lanes = {1 << z, 1 << y, 1 << (threads - k - z - y)},
                                                  .lanes_k = 1 << k,
                                                  .pixels_y = 1 << pixels / 3,
                                                  .pixels_x = (int[]){1, 4, 8}[pixels % 3],
                                                  .channels = channels}};
                        tile t;
                        c.dropped = drops(p, axes, &c.config, &t);
                        c.cost = c.dropped ? 0.0 : cost_of(p, axes, &c.config, &t, p->desc.batch_hint);
                        found |= !c.dropped;
                        visit(&c, state);
                    }
                }
            }
        }
    }
    return found;
}

/* Fewer threads for less work; one thread with one output and one tap can always be used. */
static void search(const cj_problem *p, const axis *axes, visitor visit, void *state) {
    for (int threads = 7; !visit_blocks(p, axes, threads, visit, state); --threads) {
    }
}

/* The stage is left out where the search dropped the configuration before it came to that. */
static void describe(const cj_direct_config *c, char text[CJ_CONFIG_MAX]) {
    const int length = snprintf(text, CJ_CONFIG_MAX, "tile %dx%dx%d k%d thread %dx%d k%d", c->lanes[CJ_Z],
                                c->lanes[CJ_Y] * c->pixels_y, c->lanes[CJ_X] * c->pixels_x, c->lanes_k * c->channels,
                                c->pixels_y, c->pixels_x, c->channels);
    if (c->chunk_c > 0) {
        snprintf(text + length, CJ_CONFIG_MAX - (size_t)length, " stage c%d f%lldx%lldx%lld row %d", c->chunk_c,
                 (long long)c->chunk_taps[CJ_Z], (long long)c->chunk_taps[CJ_Y], (long long)c->chunk_taps[CJ_X],
                 c->row_taps);
    }
}

typedef struct choice {
    const char *wanted; /* or "" */
    candidate best;
} choice;

/* The first of equals stays. */
static void keep_cheapest(const candidate *c, void *state) {
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
    const axis axes[CJ_DIMS] = {axis_of(p, CJ_Z), axis_of(p, CJ_Y), axis_of(p, CJ_X)};
    cj_direct_config *c = &out->direct;
    choice made = {.wanted = out->config, .best = {.dropped = "none yet"}};
    tile t;
    search(p, axes, keep_cheapest, &made);
    if (made.best.dropped) {
        return false;
    }
    *c = made.best.config;
    tile_of(p, axes, c, &t);
    out->threads = (uint32_t)t.threads;
    int64_t firsts = 1; /* phases that have weights of their own: see "Packed weights" in the kernel */
    for (int d = 0; d < CJ_DIMS; ++d) {
        firsts *= cj_least(p->kernel[d], axes[d].period);
    }
    const int64_t weights =
        cj_round_up(p->desc.groups * cj_divide_up(p->group_out, t.k) * firsts * t.stages * t.stage_weights, 4);
    out->pack_work = weights + p->desc.out_channels;
    out->packed_bytes = 4 * (size_t)out->pack_work;
    describe(c, out->config);
    return true;
}

/* ---- constants ---- */

static void constants(const cj_problem *p, const cj_plan *plan, cj_text *out) {
    const cj_direct_config *c = &plan->direct;
    const axis axes[CJ_DIMS] = {axis_of(p, CJ_Z), axis_of(p, CJ_Y), axis_of(p, CJ_X)};
    tile t;
    tile_of(p, axes, c, &t);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const struct {
            const char *name;
            int64_t value;
            const char *meaning;
        } list[] = {
            {"CJ_TAPS", axes[d].taps, "most taps that reach a phase"},
            {"CJ_TAP_STEP", axes[d].tap_step, "input distance of neighbouring taps"},
            {"CJ_PERIOD", axes[d].period, "kernel distance of neighbouring taps of a phase"},
            {"CJ_INVERSE", axes[d].inverse, "of dilation / gcd modulo the period"},
            {"CJ_LANES", c->lanes[d], "threads along this axis"},
            {"CJ_CHUNK", c->chunk_taps[d], "taps of a stage"},
        };
        for (size_t i = 0; i < sizeof list / sizeof *list; ++i) {
            char name[24];
            snprintf(name, sizeof name, "%s_%c", list[i].name, "ZYX"[d]);
            cj_stamp_int(out, name, list[i].value, list[i].meaning);
        }
    }
    cj_stamp_int(out, "CJ_LANES_K", c->lanes_k, "threads along output channels");
    cj_stamp_int(out, "CJ_PIXELS_Y", c->pixels_y, "rows of a thread");
    cj_stamp_int(out, "CJ_PIXELS_X", c->pixels_x, "columns of a thread");
    cj_stamp_int(out, "CJ_CHANNELS", c->channels, "output channels of a thread");
    cj_stamp_int(out, "CJ_CHUNK_C", c->chunk_c, "input channels of a stage");
    cj_stamp_int(out, "CJ_ROW_TAPS", c->row_taps, "taps along x in registers together");
    const int64_t plane = c->chunk_taps[CJ_Y] * c->chunk_taps[CJ_X], rows = plane / c->row_taps;
    const int64_t close_rows = plane > CLOSE_AFTER / 2 ? cj_divide_up(rows, cj_divide_up(plane, CLOSE_AFTER)) : 0;
    cj_stamp_int(out, "CJ_CLOSE_ROWS", close_rows, "rows after which open sums are closed");
    cj_stamp_int(out, "CJ_CLOSE_PLANES", cj_most(1, CLOSE_AFTER / plane), "planes after which, if rows is 0");
    const bool rows_unrolled = c->row_taps == c->chunk_taps[CJ_X] && plane <= MOST_UNROLLED;
    cj_stamp_int(out, "CJ_UNROLL_Y", rows_unrolled ? c->chunk_taps[CJ_Y] : 1, "rows of taps unrolled");
    cj_stamp_int(out, "CJ_UNROLL_C", c->chunk_taps[CJ_Z] * plane <= 2 ? 4 : 1, "input channels unrolled");
    cj_stamp_int(out, "CJ_MIN_BLOCKS", MIN_BLOCKS, "blocks a multiprocessor must hold");
    cj_stamp_int(out, "CJ_SHARED_BYTES", t.shared_bytes, "shared memory of a block");
}

/* ---- launch ---- */

static void launch(const cj_problem *p, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks) {
    const cj_direct_config *c = &plan->direct;
    const int64_t out[CJ_DIMS] = {c->lanes[CJ_Z], (int64_t)c->lanes[CJ_Y] * c->pixels_y,
                                  (int64_t)c->lanes[CJ_X] * c->pixels_x};
    const int64_t tile_k = (int64_t)c->lanes_k * c->channels;
    int64_t tiles = args->batch * p->desc.groups * cj_divide_up(p->group_out, tile_k);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t phases = p->transposed ? p->stride[d] : 1;
        tiles *= cj_divide_up(args->out_size[d], phases * out[d]) * cj_least(phases, args->out_size[d]);
    }
    args->tiles = tiles;
    *blocks = (uint32_t)cj_least(tiles, INT_MAX);
}

/* ---- predict and explain ---- */

static double predict_ms(const cj_problem *p, const cj_plan *plan, int64_t batch) {
    const axis axes[CJ_DIMS] = {axis_of(p, CJ_Z), axis_of(p, CJ_Y), axis_of(p, CJ_X)};
    tile t;
    tile_of(p, axes, &plan->direct, &t);
    return cost_of(p, axes, &plan->direct, &t, batch) / CJ_CYCLES_PER_MS;
}

static void list_candidate(const candidate *c, void *state) {
    char text[CJ_CONFIG_MAX];
    describe(&c->config, text);
    cj_candidates_note(state, c->dropped, c->cost / CJ_CYCLES_PER_MS, text);
}

static void explain(const cj_problem *p, const cj_target *target, cj_candidates *out) {
    (void)target;
    const axis axes[CJ_DIMS] = {axis_of(p, CJ_Z), axis_of(p, CJ_Y), axis_of(p, CJ_X)};
    search(p, axes, list_candidate, out);
}

const cj_family cj_family_direct = {.name = "direct",
                                    .refuses = refuses,
                                    .plan = plan,
                                    .constants = constants,
                                    .launch = launch,
                                    .predict_ms = predict_ms,
                                    .explain = explain};
