/* family_tensor.c - convolutions on Hopper's tensor cores: kernel_src/tensor.cu.
 *
 * The plan is a search over tiles with a cost model in cycles of one multiprocessor (cost_of). */
#include <math.h>
#include <stdio.h>

#include "arithmetic.h"
#include "family.h"
#include "stamp.h"
#include "view.h"

/* Sizes of the kernel. */
enum {
    CONSUMERS = 2,
    THREADS = 512,
    MULTIPROCESSORS = 132,
    FILLERS = 128,
    MOST_SHARED = 227 * 1024,              /* of a block on sm_90 */
    PART_BYTES = 2048,                     /* one part of the weights of a product of slices, 64 x 16 */
    DEPTH = 8,                             /* of a slice */
    MOST_FOLD_CHANNELS = 16,               /* with more, channels alone fill slices */
    MOST_FOLD = 64,                        /* taps */
    MOST_SUM = 5,                          /* products of a sum: see "Numbers" in the kernel */
    LEAST_LONG_SUMS = 7,                   /* sums of so many, where one alone would lose too much */
    MOST_SLOT_SUMS = 3,                    /* sums of a slot, */
    MOST_SUMMED_SLOT = 12,                 /* ... and products */
    MOST_BLOCK_SUM = 6,                    /* products of a sum, and a slot, in math fp32_block */
    MOST_SLOTS = 64,                       /* of weights that stay */
    MOST_SLOT = 10,                        /* ... of a slot where nothing is summed apart (math tf32) */
    MOST_BLOCK_PLAIN_SUMS = 16,            /* of a tile, that plain float32 adds up well enough in math fp32_block */
    OUT_BYTES = 4 * CONSUMERS * 4,         /* shared memory for one output of each consumer warp */
    MOST_OUT_PITCH = 4096,                 /* of a row of them */
    SECTOR = 8,                            /* floats that memory writes at once */
    MOST_SHARED_CHANNELS = 256,            /* what is known of them lies in shared memory */
    CHANNEL_BYTES = 16,                    /* of what is known of an output channel */
    LINE_BYTES = 16,                       /* of a folded line in the table of them */
    SPAN_BYTES = 2 * 8 * 2 * FILLERS / 32, /* of two groups of filling warps */
};

/* ---- tiles ---- */

/* What follows from a configuration; the kernel derives the same. */
typedef struct tile {
    int64_t k, y, x;  /* outputs */
    int64_t pitch;    /* units of a row */
    int64_t chunks;   /* stages of a tile */
    int64_t units;    /* of a part of a buffer */
    int64_t jobs;     /* pieces of rows, of a stage */
    int64_t held;     /* units of a stage that a filling thread holds */
    int64_t products; /* of slices, of a stage, the filled up ones of the last slot included */
    int64_t shared_bytes;
} tile;

static int32_t parts_of(const cj_tensor_config *c) {
    return c->products == 1 ? 1 : 2;
}

/* Kernel taps of an axis that are not folded into lines. */
static int64_t taps_of(const cj_problem *p, const cj_tensor_config *c, int axis) {
    return c->fold == 2 || (c->fold == 1 && axis != CJ_X) ? 1 : p->kernel[axis];
}

static int64_t lines_of(const cj_problem *p, const cj_tensor_config *c) {
    int64_t lines = p->group_in;
    for (int d = 0; d < CJ_DIMS; ++d) {
        lines *= p->kernel[d] / taps_of(p, c, d);
    }
    return lines;
}

static int64_t slices_of(const cj_problem *p, const cj_tensor_config *c) {
    return (int64_t)(c->chunk_c / DEPTH) * c->chunk_y * taps_of(p, c, CJ_X);
}

/* Input columns from the first to the last unit of an output. */
static int64_t reach(const cj_problem *p, const cj_tensor_config *c) {
    return (taps_of(p, c, CJ_X) - 1) * p->dilation[CJ_X];
}

/* Output columns from a run to the next. */
static int64_t run_step(const cj_tensor_config *c) {
    return c->run_x - c->overlap;
}

/* Runs of a tile: consumers that do not differ in output channels have runs of their own. */
static int32_t runs_of(const cj_tensor_config *c) {
    return CONSUMERS / c->consumers_k * c->own_runs;
}

/* Rows and columns of units of a plane. */
static int64_t rows_of(const cj_problem *p, const cj_tensor_config *c, const tile *t) {
    const int64_t parities = c->chunk_y > 1 ? p->stride[CJ_Y] : 1;
    return parities * (t->y + (c->chunk_y - 1) * p->dilation[CJ_Y] / p->stride[CJ_Y]);
}
static int64_t columns_of(const cj_problem *p, const cj_tensor_config *c, const tile *t) {
    return t->pitch * (taps_of(p, c, CJ_X) > 1 ? p->stride[CJ_X] : 1);
}

static bool phased(const cj_tensor_config *c) {
    return c->phases[CJ_Z] * c->phases[CJ_Y] * c->phases[CJ_X] > 1;
}

/* Do pieces of outputs have whole rows, do they leave by bulk copies, how many floats of one lie in shared memory until
 * then, and how many pieces do eight rows of products have? */
static bool joined_rows(const cj_problem *p, const cj_tensor_config *c) {
    return !p->dynamic && c->run_x == p->out_size[CJ_X] && c->overlap == 0 &&
           CJ_ROWS / c->active[CJ_X] % c->active[CJ_Y] == 0;
}
static bool in_bulk(const cj_problem *p, const cj_tensor_config *c) {
    return p->desc.beta == 0.0F && (c->run_rows == 1 || joined_rows(p, c));
}
static int64_t out_pitch(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t rows = c->run_rows * c->phases[CJ_Y] * c->out_size[CJ_X], row = c->run_x * c->phases[CJ_X];
    const int64_t count = joined_rows(p, c) ? rows : phased(c) ? row : c->columns;
    return phased(c) || in_bulk(p, c) ? (3 + count + 7) / 16 * 16 + 8 : cj_round_up(c->columns, 32) + 8;
}
static int64_t out_pieces(const cj_problem *p, const cj_tensor_config *c) {
    return CJ_ROWS / (c->active[CJ_X] * (joined_rows(p, c) ? c->active[CJ_Y] : 1));
}

/* Blocks of 64 output channels of a group. */
static int64_t k_blocks_of(const cj_problem *p, const tile *t, const cj_tensor_config *c) {
    return cj_divide_up(p->group_out, t->k) * c->consumers_k;
}

/* Its outputs alone. */
static tile outputs_of(const cj_tensor_config *c) {
    return (tile){.k = (int64_t)64 * c->consumers_k,
                  .y = (int64_t)runs_of(c) / c->runs_x * c->run_rows,
                  .x = c->runs_x * run_step(c)};
}

static tile tile_of(const cj_problem *p, const cj_tensor_config *c) {
    tile t = outputs_of(c);
    t.pitch = t.x + c->overlap + reach(p, c) / p->stride[CJ_X];
    const int64_t rows = c->chunk_c / DEPTH * rows_of(p, c, &t), columns = columns_of(p, c, &t);
    t.units = rows * columns;
    t.jobs = rows * cj_divide_up(columns, (int64_t)c->lanes * c->job_items);
    t.held = cj_divide_up(t.jobs, FILLERS / c->lanes) * c->job_items;
    t.chunks = cj_divide_up(lines_of(p, c), c->chunk_c) * taps_of(p, c, CJ_Z) * (taps_of(p, c, CJ_Y) / c->chunk_y);
    t.products = cj_round_up((slices_of(p, c) + 1) / 2, c->slot_products);
    const int64_t stages = c->stages, slots = c->slots, buffers = c->out_buffers;
    const int64_t channels = p->desc.groups * k_blocks_of(p, &t, c) * 64;
    t.shared_bytes = 16 * (stages * parts_of(c) * t.units + c->columns) +
                     slots * c->consumers_k * c->slot_products * parts_of(c) * PART_BYTES +
                     OUT_BYTES * buffers * out_pieces(p, c) * out_pitch(p, c) + 8 * stages + SPAN_BYTES +
                     (c->fold ? LINE_BYTES * cj_round_up(lines_of(p, c), c->chunk_c) : 0) +
                     (channels <= MOST_SHARED_CHANNELS ? CHANNEL_BYTES * channels : 0) +
                     8 * (2 * stages + 2 * slots + 3);
    return t;
}

/* What is rounded off the total is kept: never, for the next sum of the slot, or always. In math fp32 as little of it
 * as keeps equal factors, the worst there are, within 0.93 * 2^-21 S (in a model: kernels.md). */
enum { PLAIN, IN_SLOT, ALWAYS };

static int32_t compensation(const cj_tensor_config *c, const tile *t) {
    static const int32_t most_plain[MOST_SUM + 1] = {0, 12, 12, 12, 8, 0};   /* sums, by their products */
    static const int32_t most_in_slot[MOST_SUM + 1] = {0, 10, 10, 10, 8, 0}; /* slots */
    const int64_t sums = t->chunks * t->products / c->sum_products, slots = t->chunks * t->products / c->slot_products;
    if (c->products < 4) {
        return c->products == 3 && sums > MOST_BLOCK_PLAIN_SUMS ? ALWAYS : PLAIN;
    }
    return sums <= most_plain[c->sum_products] ? PLAIN : slots <= most_in_slot[c->sum_products] ? IN_SLOT : ALWAYS;
}

/* ---- cost: cycles of a multiprocessor. Fitted to 722 timed configurations of 23 layers in three maths on an H200, of
 * which it tells the time to 8.5 % (root mean square), at their own batches. Planning for one batch, it picks one that
 * takes 4 % longer than the best measured, where none leaves most multiprocessors idle. Fitted to two thirds of the
 * layers it tells the time of the others to 10 to 18 %. ---- */

/* Instructions of a filling warp for a stage. */
static double fill_cost(const cj_tensor_config *c, int64_t jobs, int64_t held) {
    return 21.0 + (double)held * (24.0 + 10.0 * parts_of(c)) + (double)cj_divide_up(jobs, FILLERS / c->lanes) * 22.0;
}

/* A thread's sums. */
static double sums_of(const cj_tensor_config *c) {
    return c->columns / 2.0 * c->own_runs;
}

/* Of the tensor cores for a consumer's slot: a product of 64 x N x 16 takes N / 2 and a little more. */
static double slot_cost(const cj_tensor_config *c) {
    return (double)c->slot_products * c->products * (sums_of(c) + 3.0 * c->own_runs);
}

/* Sums that a slot ends with. */
static double closed_sums(const cj_tensor_config *c) {
    return c->products > 1 ? (double)(c->slot_products / c->sum_products) : 0.0;
}

/* Instructions for a slot's sums: dividing, closing, and multiplying what is carried over. */
static double sum_cost(const cj_tensor_config *c, int32_t compensation) {
    const double closed = closed_sums(c);
    const double kept = compensation == ALWAYS ? closed : compensation == IN_SLOT ? closed - 1.0 : 0.0;
    const double scaled = c->products < 4 ? 0.0 : compensation == ALWAYS ? 3.0 : 2.0;
    return (scaled + closed + 2.0 * kept) * sums_of(c);
}

/* How much longer memory takes for outputs that begin within sectors, or within 16 bytes, or leave by lanes, not by
 * bulk copies. Overlapping runs begin with sectors, but what they share is stored twice in shared memory, and rows
 * differ. */
static double store_penalty(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t row = c->out_size[CJ_X], channel = row * c->out_size[CJ_Y] * c->out_size[CJ_Z];
    const int64_t run = c->run_x * c->phases[CJ_X];
    const int64_t step = joined_rows(p, c) ? c->run_rows * c->phases[CJ_Y] * row : run < row ? run | row : row;
    const int64_t places = step | channel | SECTOR, whole = p->dynamic ? 1 : places & -places; /* a power of two */
    return (in_bulk(p, c) ? 1.0 : 4.4) * (c->overlap > 0    ? (c->products == 1 ? 1.45 : 1.22)
                                          : whole == SECTOR ? 1.0
                                          : whole == 4      ? 1.3
                                                            : 1.8);
}

/* Of a tile. Each instruction, whoever issues it, takes the tensor cores a cycle; beside them a consumer, the filling
 * warps and the memory work, none of them perfectly. */
static double tile_cost(const cj_problem *p, const cj_tensor_config *c, const tile *t) {
    const int64_t k_tiles = cj_divide_up(p->group_out, t->k), slots = t->chunks * (t->products / c->slot_products);
    const bool resident = c->slots == slots && k_tiles == 1 && p->desc.groups == 1;
    const double outputs =
        (double)(p->desc.out_channels / p->desc.groups * c->phases[CJ_Z] * c->phases[CJ_Y] * c->phases[CJ_X]) /
        (double)p->group_out; /* of a sum */
    const double store = outputs * sums_of(c) * CONSUMERS * 128.0 * 4.0 / 19.4 * store_penalty(p, c);
    const double waited_for = in_bulk(p, c) ? 1.0 - c->out_buffers / (2.0 * c->own_runs) : 1.0; /* of the store */
    const double weights =
        resident ? 0.0 : (double)(t->chunks * t->products * parts_of(c) * PART_BYTES * c->consumers_k);
    const double consumer =
        (double)slots * (slot_cost(c) + sum_cost(c, compensation(c, t))) + (double)c->own_runs * 960.0;
    const double fill = (double)t->chunks * fill_cost(c, t->jobs, t->held);
    const double parts[] = {2.0 * consumer + fill, consumer + (double)t->chunks * 90.0 + store * waited_for,
                            fill * 8.8 / (c->fill_groups == 2 ? 1.15 : 1.0),
                            store + (double)(t->chunks * t->units * DEPTH * 4) / 50.0 + weights / 63.0};
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) {
        sum += parts[i] * parts[i] * parts[i];
    }
    return cbrt(sum);
}

/* Of a batch. */
static double cost_of(const cj_problem *p, const cj_tensor_config *c, const tile *t, int64_t batch) {
    const int64_t out[CJ_DIMS] = {p->dynamic ? 1 : cj_most(1, p->out_size[CJ_Z]),
                                  p->dynamic ? 128 : cj_most(1, p->out_size[CJ_Y]),
                                  p->dynamic ? 128 : cj_most(1, p->out_size[CJ_X])};
    const double tiles = (double)batch * (double)p->desc.groups * (double)cj_divide_up(p->group_out, t->k) *
                         (double)out[CJ_Z] * (double)cj_divide_up(out[CJ_Y], t->y) *
                         (double)cj_divide_up(out[CJ_X], t->x);
    const double waves = tiles / MULTIPROCESSORS + 0.08; /* the last one is seldom full; most batches are larger */
    return waves * tile_cost(p, c, t) + 12500.0;
}

/* ---- the search ---- */

typedef struct candidate {
    cj_tensor_config config;
    const char *dropped; /* why; NULL: it can be used */
    double cost;         /* for a batch of CJ_PLAN_BATCH */
} candidate;

typedef void (*visitor)(const candidate *c, void *state);

/* Sums of math fp32: those of a slot that take the least time for a stage's products, filled up ones included. */
static void choose_summed_slot(const cj_problem *p, cj_tensor_config *c) {
    cj_tensor_config best = *c;
    double least = -1.0;
    for (c->sum_products = MOST_SUM; c->sum_products >= 1; --c->sum_products) {
        for (int32_t sums = 1; sums <= MOST_SLOT_SUMS && sums * c->sum_products <= MOST_SUMMED_SLOT; ++sums) {
            c->slot_products = sums * c->sum_products;
            const tile t = tile_of(p, c);
            const double slots = (double)(t.products / c->slot_products);
            const double cost = slots * (slot_cost(c) + sum_cost(c, compensation(c, &t)) + closed_sums(c) * 100.0);
            const int64_t all = t.chunks * t.products / c->sum_products;
            const int64_t needed = c->sum_products == MOST_SUM ? LEAST_LONG_SUMS : c->sum_products > 1 ? 2 : 1;
            if (all >= needed && (least < 0.0 || cost < least)) {
                least = cost;
                best = *c;
            }
        }
    }
    *c = best;
}

/* Of the counts up to the most allowed the one that leaves the fewest products of a stage to be filled up; of equals
 * the largest. A single sum would have its whole loss in the result, so there are at least two. */
static void choose_sum(const cj_problem *p, cj_tensor_config *c) {
    c->slot_products = c->sum_products = c->lanes = c->job_items = 1;
    if (c->products == 4) {
        choose_summed_slot(p, c);
        return;
    }
    const int64_t chunks = tile_of(p, c).chunks, products = (slices_of(p, c) + 1) / 2;
    int64_t most = cj_least(c->products == 1 ? MOST_SLOT : MOST_BLOCK_SUM, products);
    if (c->products > 1 && chunks == 1) {
        most = cj_least(most, cj_divide_up(products, 2));
    }
    c->sum_products = (int32_t)most;
    for (int32_t count = (int32_t)most - 1; count > most / 2; --count) {
        if (cj_round_up(products, count) < cj_round_up(products, c->sum_products)) {
            c->sum_products = count;
        }
    }
    c->slot_products = c->sum_products;
}

/* Registers of a consumer's thread: its sums and totals, and what they are worked on with. */
static int32_t consumer_registers(const cj_problem *p, const cj_tensor_config *c) {
    const tile t = tile_of(p, c);
    const int32_t sums = c->columns / 2 * c->own_runs * (c->products == 1 ? 1 : 2);
    const int32_t least = t.pitch < DEPTH ? 144 : 128; /* the more for places in very short rows */
    return (int32_t)cj_most(cj_round_up(sums + (compensation(c, &t) != PLAIN ? 64 : 44), 8), least);
}

/* ... and of a filling thread: what the consumers and the warps beside it leave. */
static int32_t filler_registers(const cj_problem *p, const cj_tensor_config *c) {
    const int32_t left = c->fill_groups == 2 ? 256 - consumer_registers(p, c) : 488 - 2 * consumer_registers(p, c);
    return (int32_t)cj_least(left, 232);
}

/* Has a filling thread registers for the units of a stage, and for what it knows of their jobs? */
static bool fill_fits(const cj_problem *p, const cj_tensor_config *c) {
    const tile t = tile_of(p, c);
    const int64_t needed = t.held * DEPTH + cj_divide_up(t.jobs, FILLERS / c->lanes) * 3;
    return needed <= filler_registers(p, c) - (c->fold ? 68 : 52);
}

/* The cheapest way to fill a stage; of equals, the most lanes, then the longest pieces. False if there are too few
 * registers for any. */
static bool choose_jobs(const cj_problem *p, cj_tensor_config *c) {
    cj_tensor_config best = *c;
    double least = -1.0;
    for (c->lanes = 32; c->lanes >= 8; c->lanes /= 2) {
        for (c->job_items = 8; c->job_items >= 1; --c->job_items) {
            const tile t = tile_of(p, c);
            const double cost = fill_cost(c, t.jobs, t.held);
            if (fill_fits(p, c) && (least < 0.0 || cost < least)) {
                least = cost;
                best = *c;
            }
        }
    }
    *c = best;
    return least >= 0.0;
}

/* Weights that stay; else slots for two stages if two groups fill, or a ring of 4 or 2. Above all as many buffers of
 * outputs as a tile has, then half. False if nothing fits. */
static bool choose_slots(const cj_problem *p, cj_tensor_config *c) {
    const tile t = tile_of(p, c);
    const int64_t stage = t.products / c->slot_products, all = t.chunks * stage;
    const bool alone = cj_divide_up(p->group_out, t.k) == 1 && p->desc.groups == 1;
    const bool ring = c->fill_groups == 1;
    const int64_t slots[] = {alone ? all : 0, ring ? 4 : c->stages * stage, ring ? 2 : 0};
    for (c->out_buffers = in_bulk(p, c) ? 2 * c->own_runs : 1; c->out_buffers >= 1; c->out_buffers /= 2) {
        for (int i = 0; i < 3; ++i) {
            c->slots = (int32_t)cj_least(slots[i], MOST_SLOTS + 1);
            if (c->slots > 0 && c->slots <= MOST_SLOTS && tile_of(p, c).shared_bytes <= MOST_SHARED) {
                return true;
            }
        }
    }
    return false;
}

/* Completes the configuration and shows it, with two groups of filling warps and with one. */
static bool consider(const cj_problem *p, cj_tensor_config c, visitor visit, void *state) {
    bool found = false;
    for (c.fill_groups = 2; c.fill_groups >= 1; --c.fill_groups) {
        c.slots = c.out_buffers = 1;
        choose_sum(p, &c);
        candidate result = {.config = c};
        if (!choose_slots(p, &c)) { /* whoever fills it */
            result.dropped = "more than 232448 bytes of shared memory";
        } else if (out_pitch(p, &c) >= MOST_OUT_PITCH) {
            result.dropped = "rows of more than 4095 outputs";
        } else if (!choose_jobs(p, &c)) {
            result.dropped = "more units of a stage than a filling thread has registers for";
        } else {
            const tile t = tile_of(p, &c);
            result.config = c;
            result.cost = cost_of(p, &c, &t, CJ_PLAN_BATCH);
        }
        if (visit) {
            visit(&result, state);
        }
        found |= !result.dropped;
    }
    return found;
}

/* Runs of as many rows as a product has columns for, of half as many, and so on. */
static bool consider_rows(const cj_problem *p, cj_tensor_config c, int32_t most_columns, visitor visit, void *state) {
    const int64_t pitch = c.run_x + reach(p, &c) / p->stride[CJ_X];
    const int64_t rows = p->dynamic ? most_columns : cj_most(1, p->out_size[CJ_Y]);
    const bool single = c.runs_x > 1 || c.overlap > 0 || (phased(&c) && !joined_rows(p, &c));
    int32_t most = single ? 1 : (int32_t)cj_least((most_columns - c.run_x) / pitch + 1, rows);
    bool found = false;
    for (; most >= 1 && c.run_x <= most_columns && (visit || !found); most /= 2) {
        c.run_rows = most;
        c.columns = (int32_t)cj_round_up((most - 1) * pitch + c.run_x, 8);
        c.chunk_y = (int32_t)taps_of(p, &c, CJ_Y);
        found |= consider(p, c, visit, state);
        if (c.chunk_y > 1) {
            c.chunk_y = 1;
            found |= consider(p, c, visit, state);
        }
    }
    return found;
}

/* Rows that do not begin where sectors do are cut at sectors if runs overlap; other rows are cut there anyway. */
static bool consider_widths(const cj_problem *p, cj_tensor_config c, int32_t most_columns, visitor visit, void *state) {
    enum { MOST_SPLITS = 8 };
    const int64_t width = p->dynamic ? 128 : cj_most(1, p->out_size[CJ_X]);
    const bool aligned = c.out_size[CJ_X] % SECTOR == 0;
    bool found = false;
    for (c.overlap = 0; c.overlap < SECTOR; c.overlap += SECTOR - 1) {
        int64_t split = cj_divide_up(width, most_columns - c.overlap);
        for (int i = 0; i < MOST_SPLITS && split <= width && (visit || !found);
             ++i, split = cj_most(split + 1, split * 9 / 8)) {
            if (c.overlap > 0 && (p->dynamic || aligned || split == 1 || p->desc.beta != 0.0F || /* z may be y */
                                  c.phases[CJ_X] > 1)) {
                continue;
            }
            const int64_t step = cj_divide_up(width, split);
            c.run_x = (int32_t)(aligned && split > 1 ? cj_round_up(step, SECTOR) : step + c.overlap);
            for (c.runs_x = 1; c.runs_x <= runs_of(&c); c.runs_x *= 2) {
                found |= consider_rows(p, c, most_columns, visit, state);
            }
        }
    }
    return found;
}

/* Shows tiles in a fixed order. False if none can be used. Without `visit`, stops soon after the first that can. */
static bool search(const cj_view *view, visitor visit, void *state) {
    const cj_problem *const p = &view->grid;
    /* ptxas wants 26 registers beside a product's sums, of the 128 that the kernel starts with. */
    enum { MOST_CHUNK = 64, COLUMNS = 128, MOST_COLUMNS = 200 };
    const int64_t taps_zy = p->kernel[CJ_Z] * p->kernel[CJ_Y], taps = taps_zy * p->kernel[CJ_X];
    const bool few = p->group_in < MOST_FOLD_CHANNELS;
    const bool fits[] = {true, few && taps_zy > 1 && taps_zy <= MOST_FOLD,
                         few && p->kernel[CJ_X] > 1 && taps <= MOST_FOLD};
    cj_tensor_config c = {.rows = p->group_out,
                          .products = p->desc.math == CONVJIT_TF32         ? 1
                                      : p->desc.math == CONVJIT_FP32_BLOCK ? 3
                                                                           : 4,
                          .own_runs = 1,
                          .stages = 2};
    for (int d = 0; d < CJ_DIMS; ++d) {
        c.grid[d] = p->out_size[d];
        c.out_size[d] = view->layer.out_size[d];
        c.phases[d] = view->axes[d].phases;
        c.active[d] = view->axes[d].active;
    }
    bool found = false;
    for (c.fold = 0; c.fold <= 2; ++c.fold) {
        int32_t last = 0;
        for (int32_t size = DEPTH; size <= MOST_CHUNK && fits[c.fold] && (visit || !found); size += DEPTH) {
            const int64_t even = cj_divide_up(lines_of(p, &c), cj_divide_up(lines_of(p, &c), size));
            c.chunk_c = (int32_t)cj_round_up(even, DEPTH);
            if (c.chunk_c == last) {
                continue;
            }
            last = c.chunk_c;
            for (c.consumers_k = p->group_out > 64 ? 2 : 1; c.consumers_k >= 1; --c.consumers_k) {
                if (c.products == 1) {
                    for (c.own_runs = 1; c.own_runs <= 2; ++c.own_runs) {
                        found |= consider_widths(p, c, COLUMNS, visit, state);
                    }
                    c.own_runs = 1;
                    found |= consider_widths(p, c, MOST_COLUMNS, visit, state);
                } else {
                    found |= consider_widths(p, c, COLUMNS, visit, state);
                }
            }
        }
    }
    return found;
}

/* The first of equals stays. */
static void keep_cheapest(const candidate *c, void *state) {
    candidate *best = state;
    if (!c->dropped && (best->dropped || c->cost < best->cost)) {
        *best = *c;
    }
}

/* ---- applicable ---- */

static const char *refuses(const cj_problem *problem, const cj_target *target) {
    CJ_REFUSE_IF(target->kind == CJ_TARGET_CUDA && (target->capability != 90 || !target->has_features), "not sm_90a")
    CJ_REFUSE_IF(problem->desc.data_type != CONVJIT_F32, "is for f32 data")
    CJ_REFUSE_IF(problem->channels_last, "is for channels first")
    CJ_REFUSE_IF(problem->group_in > 1 << 20 || problem->group_out > 1 << 20, "more than 1048576 channels a group")
    const char *const refusal = cj_view_refuses(problem);
    CJ_REFUSE_IF(refusal, refusal)
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    CJ_REFUSE_IF(p->group_out < 16, "fewer than 16 output channels a group, and too few outputs to make channels of")
    CJ_REFUSE_IF(p->kernel[CJ_X] > 32, "kernel wider than 32")
    CJ_REFUSE_IF(p->kernel[CJ_Z] > 32, "kernel deeper than 32")
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->stride[d] > 1 << 10 || p->dilation[d] > 1 << 10, "stride or dilation over 1024")
    }
    CJ_REFUSE_IF(!search(&view, NULL, NULL), "no tile of it fits shared memory and registers")
    return NULL;
}

/* ---- plan ---- */

static void describe(const cj_problem *p, const cj_tensor_config *c, char text[CJ_CONFIG_MAX]) {
    const tile t = tile_of(p, c);
    snprintf(text, CJ_CONFIG_MAX, "tile %lldx%lld k%lld run %dx%dx%d stage c%d f%d x%d slots %d sum %dx%d%s",
             (long long)t.y, (long long)t.x, (long long)t.k, c->own_runs, c->run_rows, c->columns, c->chunk_c,
             c->chunk_y, c->stages, c->slots, c->sum_products, c->products,
             (const char *[]){"", " fold zy", " fold zyx"}[c->fold]);
}

static void plan(const cj_problem *problem, const cj_target *target, cj_plan *out) {
    (void)target;
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    candidate best = {.dropped = "none yet"};
    search(&view, keep_cheapest, &best);
    cj_tensor_config *c = &out->tensor;
    *c = best.config;
    const tile t = tile_of(p, c);
    const int64_t channels = p->desc.groups * k_blocks_of(p, &t, c) * 64;
    const int64_t weights =
        p->desc.groups * p->group_out * p->group_in * p->kernel[CJ_Z] * p->kernel[CJ_Y] * p->kernel[CJ_X];
    out->threads = THREADS;
    out->shared_bytes = (uint32_t)t.shared_bytes;
    out->pack_work = channels * THREADS; /* a block a channel */
    out->packed_bytes =
        (size_t)(channels * (t.chunks * t.products * parts_of(c) * (PART_BYTES / 64) + 16) + 4 * weights);
    describe(p, c, out->config);
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

/* No more than the first consumer can do without a slot or buffer that the second has given back. */
static int64_t lag_of(const cj_tensor_config *c, const tile *t) {
    const int64_t stage_slots = t->products / c->slot_products;
    return cj_least(cj_least(cj_most(1, c->slots / 2), c->stages * stage_slots), t->chunks * stage_slots);
}

/* Measured on a model of the tensor core: kernels.md, "accuracy of tensor". What suits data of one sign enlarges the
 * results of others, so math fp32 takes half of it where that is enough. */
static int32_t loss_of(const cj_tensor_config *c) {
    const bool half = c->products == 4 && c->sum_products < MOST_SUM;
    return half ? c->sum_products >= 3 : c->sum_products / 2;
}

static cj_problem seen(const cj_problem *problem) {
    return cj_view_of(problem).layer;
}

/* The layer behind the convolution: see view.h. */
static void stamp_axes(const cj_view *view, cj_text *out) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        const cj_axis *const a = &view->axes[d];
        const struct {
            const char *name;
            int64_t value;
        } constants[] = {{"CJ_PHASES", a->phases},   {"CJ_ACTIVE", a->active}, {"CJ_TAPS", a->taps},
                         {"CJ_SPACING", a->spacing}, {"CJ_SHIFT", a->shift},   {"CJ_UP", a->up},
                         {"CJ_DOWN", a->down}};
        for (size_t i = 0; i < sizeof constants / sizeof *constants; ++i) {
            char name[24];
            snprintf(name, sizeof name, "%s_%c", constants[i].name, "ZYX"[d]);
            cj_stamp_int(out, name, constants[i].value, "of the layer's axis");
        }
        cj_text_printf(out, "#define CJ_PHASE_LIST_%c ", "ZYX"[d]);
        for (int64_t phase = 0; phase < a->phases; ++phase) {
            cj_text_printf(out, cj_axis_reaches(a, phase) ? "%lld, " : "", (long long)phase);
        }
        cj_text_printf(out, "%lld /* that taps reach, and one past the last */\n", (long long)a->phases);
    }
}

static void constants(const cj_problem *problem, const cj_plan *plan, cj_text *out) {
    const cj_view view = cj_view_of(problem);
    const cj_problem *const p = &view.grid;
    const cj_tensor_config *c = &plan->tensor;
    const tile t = tile_of(p, c);
    cj_stamp_int(out, "CJ_MIN_BLOCKS", 1, "blocks a multiprocessor must hold");
    cj_stamp_int(out, "CJ_ROWS", c->rows, "of products for a group");
    stamp_axes(&view, out);
    cj_stamp_int(out, "CJ_PRODUCTS", c->products, "of halves for one of numbers");
    cj_stamp_int(out, "CJ_GUARD", p->desc.math != CONVJIT_FP32_BLOCK, "small results of wide data are computed anew");
    cj_stamp_int(out, "CJ_FOLD", c->fold, "taps that are lines of their own: none, along z and y, along x too");
    cj_stamp_int(out, "CJ_COLUMNS", c->columns, "pixels of a product");
    cj_stamp_int(out, "CJ_CONSUMERS_K", c->consumers_k, "consumers that differ in output channels");
    cj_stamp_int(out, "CJ_OWN_RUNS", c->own_runs, "runs of a consumer");
    cj_stamp_int(out, "CJ_RUN_X", c->run_x, "output columns of a run");
    cj_stamp_int(out, "CJ_OVERLAP", c->overlap, "output columns that neighbouring runs share");
    cj_stamp_int(out, "CJ_RUNS_X", c->runs_x, "runs beside each other along x");
    cj_stamp_int(out, "CJ_RUN_ROWS", c->run_rows, "output rows of a run");
    cj_stamp_int(out, "CJ_CHUNK_C", c->chunk_c, "lines of a stage");
    cj_stamp_int(out, "CJ_CHUNK_Y", c->chunk_y, "kernel rows of a stage");
    cj_stamp_int(out, "CJ_STAGES", c->stages, "buffers");
    cj_stamp_int(out, "CJ_SLOTS", c->slots, "slots of weights");
    cj_stamp_int(out, "CJ_LAG", lag_of(c, &t), "slots that the second consumer begins after the first");
    cj_stamp_int(out, "CJ_SLOT_PRODUCTS", c->slot_products, "products whose weights a slot holds");
    cj_stamp_int(out, "CJ_SUM_PRODUCTS", c->sum_products, "products of one sum");
    cj_stamp_int(out, "CJ_LOSS", loss_of(c), "what a sum loses of itself on average, in 2^-23rds");
    cj_stamp_int(out, "CJ_COMPENSATED", compensation(c, &t), "what is rounded off the total is kept");
    cj_stamp_int(out, "CJ_OUT_BUFFERS", c->out_buffers, "of eight channels' outputs, for each warp");
    cj_stamp_int(out, "CJ_FILL_GROUPS", c->fill_groups, "groups of filling warps");
    cj_stamp_int(out, "CJ_LANES", c->lanes, "threads that fill a piece of a row");
    cj_stamp_int(out, "CJ_JOB_ITEMS", c->job_items, "units of such a piece for each of them");
    const int32_t registers = consumer_registers(p, c);
    cj_stamp_int(out, "CJ_CONSUMER_REGISTERS", registers, "of a thread");
    cj_stamp_int(out, "CJ_FILLER_REGISTERS", filler_registers(p, c), "of a filling thread");
    cj_stamp_int(out, "CJ_SHARED_BYTES", plan->shared_bytes, "dynamic shared memory");
    stamp_sum(c->columns, out);
}

/* ---- launch ---- */

static void launch(const cj_problem *p, const cj_plan *plan, cj_forward_args *args, uint32_t *blocks) {
    const cj_tensor_config *const c = &plan->tensor;
    const tile t = outputs_of(c);
    args->tiles = args->batch * p->desc.groups * cj_divide_up(c->rows, t.k);
    for (int d = 0; d < CJ_DIMS; ++d) {
        const int64_t of_tile[CJ_DIMS] = {1, t.y, t.x};
        const int64_t positions = p->dynamic ? cj_divide_up(args->out_size[d], c->phases[d]) : c->grid[d];
        args->tiles *= cj_divide_up(positions, of_tile[d]);
    }
    *blocks = (uint32_t)cj_least(args->tiles, MULTIPROCESSORS);
}

/* ---- predict and explain ---- */

static double predict_ms(const cj_problem *problem, const cj_plan *plan, int64_t batch) {
    const cj_view view = cj_view_of(problem);
    const tile t = tile_of(&view.grid, &plan->tensor);
    return cost_of(&view.grid, &plan->tensor, &t, batch) / CJ_CYCLES_PER_MS;
}

typedef struct listing {
    const cj_problem *problem;
    cj_candidates *out;
} listing;

static void list_candidate(const candidate *c, void *state) {
    const listing *to = state;
    char text[CJ_CONFIG_MAX];
    describe(to->problem, &c->config, text);
    if (c->dropped) {
        cj_candidates_drop(to->out, c->dropped, text);
    } else {
        cj_candidates_add(to->out, c->cost / CJ_CYCLES_PER_MS, text);
    }
}

static void explain(const cj_problem *problem, const cj_target *target, cj_candidates *out) {
    (void)target;
    const cj_view view = cj_view_of(problem);
    search(&view, list_candidate, &(listing){.problem = &view.grid, .out = out});
}

const cj_family cj_family_tensor = {.name = "tensor",
                                    .refuses = refuses,
                                    .plan = plan,
                                    .view = seen,
                                    .constants = constants,
                                    .launch = launch,
                                    .predict_ms = predict_ms,
                                    .explain = explain};
