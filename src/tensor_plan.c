#include "tensor_plan.h"

#include <math.h>

#include "arithmetic.h"

/* Sizes of the kernel. */
enum {
    CONSUMERS = 2,
    FILLERS = 128,
    MOST_SHARED = 227 * 1024,              /* of a block on sm_90 */
    ROOMY_SHARED = 195 * 1024,             /* ... that leaves the L1, which loads pass, 60 KB; more leaves it 28 */
    DEPTH = 8,                             /* of a slice */
    MOST_CHUNK = 64,                       /* lines of a stage */
    MOST_FOLD_CHANNELS = 16,               /* with more, channels alone fill slices */
    MOST_FOLD = 64,                        /* taps */
    LEAST_LONG_SUMS = 7,                   /* sums of so many, where one alone would lose too much */
    MOST_SLOT_SUMS = 3,                    /* sums of a slot, */
    MOST_SUMMED_SLOT = 12,                 /* ... and products */
    MOST_BLOCK_SUM = 6,                    /* products of a sum in math fp32_block */
    MOST_SLOTS = 64,                       /* of weights that stay */
    MOST_SLOT = 10,                        /* ... of a slot where nothing is summed apart (math tf32) */
    MOST_BLOCK_PLAIN_SUMS = 16,            /* of a tile, that plain float32 adds up well enough in math fp32_block */
    OUT_BYTES = 4 * CONSUMERS * 4,         /* shared memory for one output of each consumer warp */
    MOST_OUT_PITCH = 4096,                 /* of a row of them */
    SECTOR = 8,                            /* floats that memory writes at once */
    MOST_SHARED_CHANNELS = 256,            /* what is known of them lies in shared memory */
    CHANNEL_BYTES = 16,                    /* of what is known of an output channel */
    LINE_BYTES = 16,                       /* of a folded line in the table of them */
    IMAGE_BYTES = 4 * 8 + 2 * 4,           /* of an image's scales, of four tiles and two stages */
    SPAN_BYTES = 2 * 8 * 2 * FILLERS / 32, /* of two groups of filling warps */
};

/* ---- tiles ---- */

int32_t cj_tensor_parts(const cj_tensor_config *c) {
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

/* Planes of a stage whose lines have taps along x to shift by. */
static int64_t shifted_planes(const cj_tensor_config *c) {
    return c->chunk_c / DEPTH - c->spread;
}

/* Chunks of lines. */
static int64_t chunks_of(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t lines = lines_of(p, c), spread = c->spread > 0 ? lines % DEPTH : 0;
    return cj_divide_up(lines - spread, shifted_planes(c) * DEPTH);
}

/* Of a stage, each of two slices. */
static int64_t slice_products(const cj_problem *p, const cj_tensor_config *c) {
    return (shifted_planes(c) * c->chunk_y * taps_of(p, c, CJ_X) + c->spread + 1) / 2;
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

/* Blocks of 64 output channels of a tile. */
static int32_t blocks_of(const cj_tensor_config *c) {
    return c->consumers_k * c->own_blocks;
}

/* A consumer's sets of sums: for each of its runs and blocks one. */
static int32_t own_sets(const cj_tensor_config *c) {
    return c->own_runs * c->own_blocks;
}

/* Rows and columns of units of a plane. */
static int64_t rows_of(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
    const int64_t parities = c->chunk_y > 1 ? p->stride[CJ_Y] : 1;
    return parities * (t->y + (c->chunk_y - 1) * p->dilation[CJ_Y] / p->stride[CJ_Y]);
}
static int64_t columns_of(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
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
    return p->desc.beta == 0.0F && c->image_taps == 0 && (c->run_rows == 1 || joined_rows(p, c));
}
static int64_t out_pieces(const cj_problem *p, const cj_tensor_config *c) {
    return CJ_ROWS / (c->active[CJ_X] * (joined_rows(p, c) ? c->active[CJ_Y] : 1));
}
static int64_t out_pitch(const cj_problem *p, const cj_tensor_config *c) {
    const int64_t rows = c->run_rows * c->phases[CJ_Y] * c->out_size[CJ_X], row = c->run_x * c->phases[CJ_X];
    const int64_t count = joined_rows(p, c) ? rows : phased(c) ? row : c->columns;
    return out_pieces(p, c) == 2        ? (SECTOR - 1 + count + 15) / 32 * 32 + 16
           : phased(c) || in_bulk(p, c) ? (SECTOR - 1 + count + 7) / 16 * 16 + 8
                                        : cj_round_up(c->columns, 32) + 8;
}

/* What part of the outputs are rows or planes that no tap reaches? Do warps beside the filling ones store them? */
static double bias_rows(const cj_problem *p, const cj_tensor_config *c) {
    const double reached_y = joined_rows(p, c) ? 1.0 : (double)c->active[CJ_Y] / (double)c->phases[CJ_Y];
    return 1.0 - reached_y * (double)c->active[CJ_Z] / (double)c->phases[CJ_Z];
}
static bool bias_warps(const cj_problem *p, const cj_tensor_config *c) {
    return bias_rows(p, c) > 0.0 && p->desc.beta == 0.0F && c->fill_groups == 1;
}

int64_t cj_tensor_k_blocks(const cj_problem *p, const cj_tensor_tile *t, const cj_tensor_config *c) {
    return cj_divide_up(p->group_out, t->k) * blocks_of(c);
}

cj_tensor_tile cj_tensor_outputs(const cj_tensor_config *c) {
    return (cj_tensor_tile){.k = (int64_t)64 * blocks_of(c),
                            .y = (int64_t)runs_of(c) / c->runs_x * c->run_rows,
                            .x = c->runs_x * run_step(c)};
}

/* Planes that are spread have columns of one parity only: where the others have more, they are filled apart. */
static int64_t planes_apart(const cj_tensor_config *c, const cj_tensor_tile *t) {
    return t->columns > t->pitch ? c->spread : 0;
}

/* What follows from slot_products, from lanes and job_items, and from slots and out_buffers: the search tries many of
 * them for one tile. */
static void set_products(const cj_problem *p, const cj_tensor_config *c, cj_tensor_tile *t) {
    t->products = cj_round_up(slice_products(p, c), c->slot_products);
}
static void set_jobs(const cj_tensor_config *c, cj_tensor_tile *t) {
    if (c->image_taps > 0) {
        t->jobs = t->held = cj_divide_up(t->x, (int64_t)FILLERS * c->fill_groups / c->lanes);
        return;
    }
    const int64_t units = (int64_t)c->lanes * c->job_items, teams = FILLERS / c->lanes, apart = planes_apart(c, t);
    const int64_t rows = apart > 0 ? t->rows / (c->chunk_c / DEPTH) * apart : 0; /* that are filled apart */
    t->jobs = cj_divide_up((t->rows - rows) * cj_divide_up(t->columns, units), teams);
    if (rows > 0) {
        t->jobs += cj_divide_up(rows * cj_divide_up(t->pitch, units), teams);
    }
    t->held = t->jobs * c->job_items;
}
static void set_shared(const cj_problem *p, const cj_tensor_config *c, cj_tensor_tile *t) {
    const int64_t stages = c->stages, slots = c->slots, buffers = c->out_buffers;
    const int64_t channels = p->desc.groups * cj_tensor_k_blocks(p, t, c) * 64;
    t->shared_bytes =
        16 * (stages * cj_tensor_parts(c) * t->units + c->columns) +
        slots * blocks_of(c) * c->slot_products * cj_tensor_parts(c) * CJ_TENSOR_PART_BYTES +
        OUT_BYTES * buffers * out_pieces(p, c) * out_pitch(p, c) + 8 * stages + SPAN_BYTES +
        (c->fold ? LINE_BYTES * chunks_of(p, c) * c->chunk_c : 0) +
        (channels <= MOST_SHARED_CHANNELS ? CHANNEL_BYTES * channels : 0) +
        (c->image_taps > 0 ? (int64_t)IMAGE_BYTES * t->x : 0) +
        8 * (2 * stages + 2 * slots + 3 + (c->storing ? cj_divide_up(buffers, 2) * 2 * CONSUMERS * 4 : 0));
}

cj_tensor_tile cj_tensor_tile_of(const cj_problem *p, const cj_tensor_config *c) {
    cj_tensor_tile t = cj_tensor_outputs(c);
    t.pitch = (t.x + c->overlap + reach(p, c) / p->stride[CJ_X]) | (c->image_taps > 0 ? 1 : 0);
    t.rows = c->chunk_c / DEPTH * rows_of(p, c, &t);
    t.columns = columns_of(p, c, &t);
    t.units = t.rows * t.columns;
    t.chunks = chunks_of(p, c) * taps_of(p, c, CJ_Z) * (taps_of(p, c, CJ_Y) / c->chunk_y);
    set_products(p, c, &t);
    set_jobs(c, &t);
    set_shared(p, c, &t);
    return t;
}

/* The last sum of a slot may be shorter. */
static int64_t sums_of_tile(const cj_tensor_config *c, const cj_tensor_tile *t) {
    return t->chunks * (t->products / c->slot_products) * cj_divide_up(c->slot_products, c->sum_products);
}

int32_t cj_tensor_compensation(const cj_tensor_config *c, const cj_tensor_tile *t) {
    static const int32_t most_plain[CJ_TENSOR_MOST_SUM + 1] = {0, 12, 12, 12, 8, 0};   /* sums, by their products */
    static const int32_t most_in_slot[CJ_TENSOR_MOST_SUM + 1] = {0, 10, 10, 10, 8, 0}; /* slots */
    const int64_t sums = sums_of_tile(c, t), slots = t->chunks * t->products / c->slot_products;
    if (c->products < 4) {
        return c->products == 3 && sums > MOST_BLOCK_PLAIN_SUMS ? CJ_TENSOR_ALWAYS : CJ_TENSOR_PLAIN;
    }
    return sums <= most_plain[c->sum_products]      ? CJ_TENSOR_PLAIN
           : slots <= most_in_slot[c->sum_products] ? CJ_TENSOR_IN_SLOT
                                                    : CJ_TENSOR_ALWAYS;
}

/* ---- cost: cycles of a multiprocessor. Fitted to 1,333 results on an H200 (tools/bench/results/
 * tensor_configurations.tsv), 2 to 30 configurations of each of the benchmark's layers and maths at their own batches:
 * it tells the time to 9 % (root mean square), and of the configurations measured of a layer it picks one that takes 3
 * % longer than the best (geometric mean), of which much is noise. No layer was kept out of the fit; more terms, or a
 * forest of decision trees instead, come to 2.3 %. Spread lines, shorter last sums and runs cut at lines of the
 * cache are newer: with them the first choice takes 1.8 % longer than the best of 3 to 8. ---- */

/* Instructions of a filling warp for a stage; more if a team's plane is another one from job to job. */
static double fill_cost(const cj_tensor_config *c, const cj_tensor_tile *t) {
    if (c->image_taps > 0) {
        return 120.0 + (double)t->held * (70.0 + 25.0 * cj_tensor_parts(c));
    }
    const double planes = FILLERS / c->lanes % (c->chunk_c / DEPTH - planes_apart(c, t)) == 0 ? 0.0 : 5.6;
    return 21.0 + (double)t->held * (24.0 + 10.0 * cj_tensor_parts(c) + planes) + (double)t->jobs * 22.0;
}

/* A thread's sums. */
static double sums_of(const cj_tensor_config *c) {
    return c->columns / 2.0 * own_sets(c);
}

/* Of the tensor cores for a consumer's slot: a product of 64 x N x 16 takes them N / 2, but shared memory, from where
 * it reads (64 + N) x 16 halves, 128 bytes at a time, N / 4 + 16, and not all of these are to be had. */
static double slot_cost(const cj_tensor_config *c) {
    const double product = fmax(c->columns / 2.0, 1.12 * (c->columns / 4.0 + 16.0)) + 1.0;
    return (double)(c->slot_products * c->products * own_sets(c)) * product;
}

/* Sums that a slot ends with. */
static double closed_sums(const cj_tensor_config *c) {
    return c->products > 1 ? (double)cj_divide_up(c->slot_products, c->sum_products) : 0.0;
}

/* Instructions for a slot's sums: dividing, closing, and multiplying what is carried over. */
static double sum_cost(const cj_tensor_config *c, int32_t compensation) {
    const double closed = closed_sums(c);
    const double kept = compensation == CJ_TENSOR_ALWAYS    ? closed
                        : compensation == CJ_TENSOR_IN_SLOT ? closed - 1.0
                                                            : 0.0;
    const double scaled = c->products < 4 ? 0.0 : compensation == CJ_TENSOR_ALWAYS ? 3.0 : 2.0;
    return (scaled + closed + 2.0 * kept) * sums_of(c);
}

/* How much longer memory takes for outputs that do not begin where 512 bytes do, or sectors, or 16 bytes, or leave by
 * lanes, not by bulk copies. */
static double store_penalty(const cj_problem *p, const cj_tensor_config *c) {
    enum { WIDE = 128, HALF_LINE = 16 };
    const int64_t row = c->out_size[CJ_X], channel = row * c->out_size[CJ_Y] * c->out_size[CJ_Z];
    const int64_t run = c->run_x * c->phases[CJ_X];
    const int64_t step = joined_rows(p, c) ? c->run_rows * c->phases[CJ_Y] * row
                         : run < row       ? run | row | c->lead[CJ_X]
                                           : row;
    const int64_t places = step | channel | WIDE, whole = p->dynamic ? 1 : places & -places; /* a power of two */
    return (in_bulk(p, c)       ? 1.0
            : c->image_taps > 0 ? 1.6
                                : 4.4) *
           (c->overlap > 0       ? 1.17
            : whole == WIDE      ? 1.0
            : whole >= HALF_LINE ? 1.17
            : whole == SECTOR    ? 1.32
            : whole == 4         ? 1.46
                                 : 1.6);
}

/* Is input brought to the L2 ahead? See kernel_src/tensor/fill.cuh. */
static bool prefetched(const cj_problem *p, const cj_tensor_config *c) {
    return c->storing && c->fold == 0 && p->kernel[CJ_Z] * p->kernel[CJ_Y] == 1;
}

/* That a filling warp's instructions take, and the loads of stages, as far as nothing hides these. Images: all groups
 * fill each stage, with loads under way meanwhile; fitted apart, to 50 results of four layers, which it tells to 7 %.
 */
static double fill_time(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t, double fill) {
    if (c->image_taps > 0) {
        return fill * (c->fill_groups == 2 ? 2.2 : 2.5) + (double)t->chunks * 115.0;
    }
    const double of_one_group = (prefetched(p, c) ? 6.65 : 7.65) * (own_sets(c) > 1 ? 1.13 : 1.0);
    const bool small_l1 = t->shared_bytes > ROOMY_SHARED;
    const double rate = (c->fill_groups == 2 ? 5.7 : of_one_group) * (small_l1 ? 1.1 : 1.0);
    return fill * rate + (double)t->chunks * (c->fill_groups == 2 ? 370.0 : 585.0);
}

/* Of a tile. Each instruction, whoever issues it, takes the tensor cores a cycle; beside them a consumer, the filling
 * warps and the memory work, none of them perfectly. */
static double tile_cost(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
    const int64_t k_tiles = cj_divide_up(p->group_out, t->k), slots = t->chunks * (t->products / c->slot_products);
    const bool resident = c->slots == slots && k_tiles == 1 && p->desc.groups == 1;
    const double outputs =
        (double)(p->desc.out_channels / p->desc.groups * c->phases[CJ_Z] * c->phases[CJ_Y] * c->phases[CJ_X]) /
        (double)p->group_out; /* of a sum */
    const double store = outputs * sums_of(c) * CONSUMERS * 128.0 * 4.0 / 19.0 * store_penalty(p, c);
    const double waited_for = in_bulk(p, c) ? 1.0 - c->out_buffers / (2.0 * own_sets(c)) : 1.0; /* of the store */
    const double bias = bias_rows(p, c); /* of the outputs: others store it, or lanes, which wait for half of it */
    const double own_store = store * ((1.0 - bias) * waited_for + (bias_warps(p, c) ? 0.0 : 0.5 * bias));
    const double staging = c->storing ? 810.0 : 1185.0;
    const double input = (double)(t->chunks * t->units * DEPTH * 4),
                 strides = (double)p->stride[CJ_Y] * (double)p->stride[CJ_X];
    const double own = 4.0 * (double)p->group_in * (double)p->stride[CJ_Z] * strides * (double)(t->y * t->x);
    const double first = fmin(input, own / (double)k_tiles); /* that is not in the L2 yet */
    const double weights =
        resident ? 0.0 : (double)(t->chunks * t->products * cj_tensor_parts(c) * CJ_TENSOR_PART_BYTES * blocks_of(c));
    const double consumer =
        (double)slots * (slot_cost(c) + sum_cost(c, cj_tensor_compensation(c, t))) + (double)own_sets(c) * staging;
    const double fill = (double)t->chunks * fill_cost(c, t);
    const double all_fill = fill * (c->image_taps > 0 ? c->fill_groups : 1.0);
    const double parts[] = {2.0 * consumer + all_fill, consumer + own_store, fill_time(p, c, t, fill),
                            store + first / 19.0 + weights / 92.0};
    double sum = 0.0;
    for (int i = 0; i < 4; ++i) {
        sum += parts[i] * parts[i] * parts[i];
    }
    return cbrt(sum);
}

double cj_tensor_cost(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t, int64_t batch) {
    const double known = cj_known_batch(batch);
    const int64_t open_y = c->image_taps > 0 ? 1 : 128, open_x = c->image_taps > 0 ? (int64_t)fmin(known, 0x1p40) : 128;
    const int64_t out[CJ_DIMS] = {p->dynamic ? 1 : cj_most(1, p->out_size[CJ_Z]),
                                  p->dynamic ? open_y : cj_most(1, p->out_size[CJ_Y]),
                                  p->dynamic ? open_x : cj_most(1, p->out_size[CJ_X])};
    const double tiles = (c->image_taps > 0 ? 1.0 : known) * (double)p->desc.groups *
                         (double)cj_divide_up(p->group_out, t->k) * (double)out[CJ_Z] *
                         (double)cj_divide_up(out[CJ_Y], t->y) * (double)cj_divide_up(out[CJ_X], t->x);
    const double turns = tiles / CJ_TENSOR_BLOCKS;
    /* The last turn is seldom full; of a batch that is not known, most are larger. */
    const double waves = batch > 0 ? ceil(turns) : turns + 0.35 * fmin(turns, 1.0);
    return waves * tile_cost(p, c, t) + (c->storing ? 14200.0 : 11400.0);
}

/* ---- the search ---- */

/* Sums of more than one product for one of numbers: those of a slot that take the least time for a stage's products,
 * filled up ones included; of equals, of the smallest slot. The last sum of a slot may be shorter. */
static void choose_summed_slot(const cj_problem *p, cj_tensor_config *c, cj_tensor_tile *t) {
    const int32_t most_sum = c->products == 4 ? CJ_TENSOR_MOST_SUM : MOST_BLOCK_SUM;
    cj_tensor_config best = *c;
    double least = -1.0;
    const int64_t most_products = cj_least(MOST_SUMMED_SLOT, slice_products(p, c));
    for (c->slot_products = 1; c->slot_products <= most_products; ++c->slot_products) {
        const int64_t most_sums = cj_least(MOST_SLOT_SUMS, c->slot_products);
        for (int64_t sums = cj_divide_up(c->slot_products, most_sum); sums <= most_sums; ++sums) {
            c->sum_products = (int32_t)cj_divide_up(c->slot_products, sums);
            set_products(p, c, t);
            const double slots = (double)(t->products / c->slot_products);
            const double cost =
                slots * (slot_cost(c) + sum_cost(c, cj_tensor_compensation(c, t)) + closed_sums(c) * 100.0);
            const int64_t needed = c->products == 4 && c->sum_products == CJ_TENSOR_MOST_SUM ? LEAST_LONG_SUMS
                                   : c->sum_products > 1                                     ? 2
                                                                                             : 1;
            if (sums_of_tile(c, t) >= needed && (least < 0.0 || cost < least)) {
                least = cost;
                best = *c;
            }
        }
    }
    *c = best;
}

/* Of the counts up to the most allowed the one that leaves the fewest products of a stage to be filled up; of equals
 * the largest. */
static void choose_slot(const cj_problem *p, cj_tensor_config *c) {
    const int64_t products = slice_products(p, c), most = cj_least(MOST_SLOT, products);
    c->slot_products = (int32_t)most;
    for (int32_t count = (int32_t)most - 1; count > most / 2; --count) {
        if (cj_round_up(products, count) < cj_round_up(products, c->slot_products)) {
            c->slot_products = count;
        }
    }
    c->sum_products = c->slot_products;
}

/* A single sum would have its whole loss in the result, so there are at least two. */
static void choose_sum(const cj_problem *p, cj_tensor_config *c, cj_tensor_tile *t) {
    if (c->products == 1) {
        choose_slot(p, c);
    } else {
        choose_summed_slot(p, c, t);
    }
}

int32_t cj_tensor_consumer_registers(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
    const int32_t sums = c->columns / 2 * own_sets(c) * (c->products == 1 ? 1 : 2);
    /* The more for places in short rows, among phases, in many rows, in sizes that are open, and of a residual. */
    const bool residual = p->desc.beta != 0.0F, rows = c->run_rows > 1;
    const bool near = t->pitch < DEPTH || (rows && t->pitch < (int64_t)3 * DEPTH),
               wide = c->phases[CJ_X] > 1 && c->columns > 128;
    const int32_t least = phased(c) && residual ? 152 : near || wide || p->dynamic || residual ? 144 : 128;
    const bool kept = cj_tensor_compensation(c, t) != CJ_TENSOR_PLAIN;
    const bool more = (c->products == 1 && (rows || c->image_taps > 0)) || (c->products == 4 && c->run_rows > 3);
    const int32_t beside = kept ? (c->run_rows > 3 ? 72 : 64) : residual && own_sets(c) > 1 ? 68 : more ? 52 : 44;
    return (int32_t)cj_most(cj_round_up(sums + beside, 8), least);
}

int32_t cj_tensor_other_registers(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
    /* A warp whose rows of products may not all exist wants more, and gets it where consumers leave it. */
    const bool rest = p->group_out % ((int64_t)2 * CJ_ROWS) != 0, roomy = cj_tensor_consumer_registers(p, c, t) <= 128;
    return !c->storing && !bias_warps(p, c) ? 24 : p->dynamic ? 64 : rest && roomy ? 72 : 40;
}

int32_t cj_tensor_filler_registers(const cj_problem *p, const cj_tensor_config *c, const cj_tensor_tile *t) {
    const int32_t consumer = cj_tensor_consumer_registers(p, c, t);
    return (int32_t)cj_least(
        c->fill_groups == 2 ? 256 - consumer : 512 - cj_tensor_other_registers(p, c, t) - 2 * consumer, 232);
}

/* The cheapest way to fill a stage; of equals, the most lanes, then the longest pieces. False if a filling thread has
 * too few registers for the units of a stage and for what it knows of their jobs. */
static bool choose_jobs(const cj_problem *p, cj_tensor_config *c, cj_tensor_tile *t) {
    const int64_t registers = cj_tensor_filler_registers(p, c, t) - (c->fold ? 68 : 52);
    if (c->image_taps > 0) { /* beside each unit what is known of its image */
        c->lanes = 1;
        while (c->lanes < c->chunk_c / DEPTH) {
            c->lanes *= 2;
        }
        set_jobs(c, t);
        return t->held * (DEPTH + 2) <= registers + 14;
    }
    cj_tensor_config best = *c;
    double least = -1.0;
    for (c->lanes = 32; c->lanes >= 8; c->lanes /= 2) {
        for (c->job_items = 8; c->job_items >= 1; --c->job_items) {
            set_jobs(c, t);
            const double cost = fill_cost(c, t);
            if (t->held * DEPTH + t->jobs * 3 <= registers && (least < 0.0 || cost < least)) {
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
static bool choose_slots(const cj_problem *p, cj_tensor_config *c, cj_tensor_tile *t) {
    const int64_t stage = t->products / c->slot_products, all = t->chunks * stage;
    const bool alone = cj_divide_up(p->group_out, t->k) == 1 && p->desc.groups == 1;
    const bool ring = c->fill_groups == 1;
    const int64_t slots[] = {alone ? all : 0, ring ? 4 : c->stages * stage, ring ? 2 : 0};
    for (c->out_buffers = in_bulk(p, c) ? 2 * own_sets(c) : 1; c->out_buffers >= 1; c->out_buffers /= 2) {
        for (int i = 0; i < 3; ++i) {
            c->slots = (int32_t)cj_least(slots[i], MOST_SLOTS + 1);
            set_shared(p, c, t);
            if (c->slots > 0 && c->slots <= MOST_SLOTS && t->shared_bytes <= MOST_SHARED) {
                return true;
            }
        }
    }
    return false;
}

/* Completes the configuration and shows it: with two groups of filling warps, with one, and with one and warps that
 * store outputs, if bulk copies do (lanes need too many registers, and phases too many instructions). */
static bool consider(const cj_problem *p, cj_tensor_config c, cj_tensor_visitor visit, void *state) {
    bool found = false;
    for (int32_t roles = 0; roles < (in_bulk(p, &c) && !phased(&c) ? 3 : 2); ++roles) {
        c.fill_groups = roles == 0 ? 2 : 1;
        c.storing = roles == 2;
        c.slot_products = c.lanes = c.job_items = 1;
        cj_tensor_tile t = cj_tensor_tile_of(p, &c);
        choose_sum(p, &c, &t);
        set_products(p, &c, &t);
        cj_tensor_candidate result = {.config = c};
        if (!choose_slots(p, &c, &t)) { /* whoever fills it */
            result.dropped = "more than 232448 bytes of shared memory";
        } else if (out_pitch(p, &c) >= MOST_OUT_PITCH) {
            result.dropped = "rows of more than 4095 outputs";
        } else if (!choose_jobs(p, &c, &t)) {
            result.dropped = "more units of a stage than a filling thread has registers for";
        } else {
            set_jobs(&c, &t);
            result.config = c;
            result.cost = cj_tensor_cost(p, &c, &t, p->desc.batch_hint);
        }
        if (visit) {
            visit(&result, state);
        }
        found |= !result.dropped;
    }
    return found;
}

/* Runs of as many rows as a product has columns for, of half as many, and so on. */
static bool consider_rows(const cj_problem *p, cj_tensor_config c, int32_t most_columns, cj_tensor_visitor visit,
                          void *state) {
    const int64_t pitch = c.run_x + reach(p, &c) / p->stride[CJ_X];
    const int64_t rows = c.image_taps > 0 ? 1 : p->dynamic ? most_columns : cj_most(1, p->out_size[CJ_Y]);
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

/* Runs beside each other, or below. */
static bool consider_places(const cj_problem *p, cj_tensor_config c, int32_t most_columns, cj_tensor_visitor visit,
                            void *state) {
    bool found = false;
    for (c.runs_x = c.image_taps > 0 ? runs_of(&c) : 1; c.runs_x <= runs_of(&c); c.runs_x *= 2) {
        found |= consider_rows(p, c, most_columns, visit, state);
    }
    return found;
}

/* Rows that do not begin where sectors do are cut at sectors if runs overlap; other rows are cut there anyway. Long
 * rows are also cut where whole lines of the cache begin, which costs no more runs there; others at least at pairs. */
static bool consider_widths(const cj_problem *p, cj_tensor_config c, int32_t most_columns, cj_tensor_visitor visit,
                            void *state) {
    enum { MOST_SPLITS = 8, LONG = 8, LINE = 32 }; /* floats of a line */
    const int64_t images = p->desc.batch_hint > 0 ? p->desc.batch_hint : 128;
    const int64_t width = c.image_taps > 0 ? images : p->dynamic ? 128 : cj_most(1, p->out_size[CJ_X]);
    const bool aligned = c.out_size[CJ_X] % SECTOR == 0;
    bool found = false;
    for (c.overlap = 0; c.overlap < SECTOR; c.overlap += SECTOR - 1) {
        int64_t split = cj_divide_up(width, most_columns - c.overlap);
        int64_t last[2] = {0, 0};
        for (int i = 0; i < MOST_SPLITS && split <= width && (visit || !found);
             ++i, split = cj_most(split + 1, split * 9 / 8)) {
            if (c.overlap > 0 && (p->dynamic || aligned || split == 1 || p->desc.beta != 0.0F || /* z may be y */
                                  c.phases[CJ_X] > 1)) {
                continue;
            }
            const int64_t step = cj_divide_up(width, split), pairs = cj_round_up(step, 2);
            const bool as_cheap = cj_divide_up(pairs + c.overlap, 8) == cj_divide_up(step + c.overlap, 8);
            const int64_t cut[2] = {split == 1 ? width
                                    : aligned  ? cj_round_up(step, SECTOR)
                                    : as_cheap ? pairs
                                               : step,
                                    split >= LONG ? step / LINE * LINE : 0};
            for (int way = 0; way < 2; ++way) {
                if (cut[way] > 0 && cut[way] != last[0] && cut[way] != last[1]) {
                    c.run_x = (int32_t)cut[way] + c.overlap;
                    found |= consider_places(p, c, most_columns, visit, state);
                }
                last[way] = cut[way];
            }
        }
    }
    return found;
}

/* One consumer's channels or both's, and in math tf32 more runs or blocks than one. */
static bool consider_consumers(const cj_problem *p, cj_tensor_config c, cj_tensor_visitor visit, void *state) {
    /* ptxas wants 26 registers beside a product's sums, of the 128 that the kernel starts with. */
    enum { COLUMNS = 128, MOST_COLUMNS = 200 };
    bool found = false;
    for (c.consumers_k = p->group_out > 64 ? 2 : 1; c.consumers_k >= 1; --c.consumers_k) {
        if (c.products > 1) {
            found |= consider_widths(p, c, COLUMNS, visit, state);
            continue;
        }
        for (c.own_runs = 1; c.own_runs <= 2; ++c.own_runs) {
            found |= consider_widths(p, c, COLUMNS, visit, state);
        }
        c.own_runs = 1;
        found |= consider_widths(p, c, MOST_COLUMNS, visit, state);
        const int32_t most = c.consumers_k < 2 ? 1 : p->group_out > 256 ? 4 : p->group_out > 128 ? 2 : 1;
        for (c.own_blocks = 2; c.own_blocks <= most; c.own_blocks *= 2) {
            found |= consider_widths(p, c, 2 * COLUMNS / c.own_blocks, visit, state);
        }
        c.own_blocks = 1;
    }
    return found;
}

/* The lines over a multiple of 8 in planes of their own, where that makes fewer slices than one more plane with shifts.
 */
static bool consider_spread(const cj_problem *p, cj_tensor_config c, cj_tensor_visitor visit, void *state) {
    const int64_t lines = lines_of(p, &c), planes = lines / DEPTH, taps = p->kernel[CJ_X];
    const int64_t spread = cj_divide_up(lines % DEPTH * taps, DEPTH);
    bool found = false;
    for (int64_t chunks = planes; chunks >= 1 && spread > 0 && spread < taps && (visit || !found); --chunks) {
        c.spread = (int32_t)cj_divide_up(spread, chunks);
        c.chunk_c = (int32_t)(planes / chunks + c.spread) * DEPTH;
        if (planes % chunks == 0 && c.chunk_c <= MOST_CHUNK) {
            found |= consider_consumers(p, c, visit, state);
        }
    }
    return found;
}

bool cj_tensor_search(const cj_view *view, cj_tensor_visitor visit, void *state) {
    const cj_problem *const p = &view->grid;
    const int64_t taps_zy = p->kernel[CJ_Z] * p->kernel[CJ_Y], taps = taps_zy * p->kernel[CJ_X];
    const bool few = p->group_in < MOST_FOLD_CHANNELS;
    const bool fits[] = {true, few && taps_zy > 1 && taps_zy <= MOST_FOLD,
                         few && p->kernel[CJ_X] > 1 && taps <= MOST_FOLD};
    cj_tensor_config c = {.rows = p->group_out,
                          .image_taps = view->image_taps,
                          .products = p->desc.math == CONVJIT_TF32         ? 1
                                      : p->desc.math == CONVJIT_FP32_BLOCK ? 3
                                                                           : 4,
                          .own_runs = 1,
                          .own_blocks = 1,
                          .stages = 2};
    for (int d = 0; d < CJ_DIMS; ++d) {
        c.grid[d] = p->out_size[d];
        c.out_size[d] = view->layer.out_size[d];
        c.phases[d] = view->axes[d].phases;
        c.active[d] = view->axes[d].active;
        c.lead[d] = view->axes[d].lead;
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
            found |= consider_consumers(p, c, visit, state);
        }
        if (c.fold == 1 && fits[1]) {
            found |= consider_spread(p, c, visit, state);
        }
    }
    return found;
}
