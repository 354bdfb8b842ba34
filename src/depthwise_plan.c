#include "depthwise_plan.h"

#include <math.h>

#include "arithmetic.h"

/* Limits of the kernel. */
enum {
    MOST_SUMS = 64,            /* of a thread */
    MOST_WINDOW = 48,          /* input columns of a thread in registers */
    MOST_ROW_TAPS = 32,        /* taps along x unrolled */
    MOST_UNROLLED_ROWS = 64,   /* input rows unrolled, */
    MOST_UNROLLED_TAPS = 128,  /* their taps */
    MOST_UNROLLED_LAST = 25,   /* (where channels come last: with more, ptxas spills) */
    MOST_PRODUCTS = 1100,      /* and multiply-adds: more outgrow the instruction caches, and compile long */
    MOST_PRODUCTS_LAST = 1800, /* (where channels come last: fewer were not tried) */
    MOST_REACH = 1 << 29,      /* of a tile's input along an axis, so that positions fit 32 bits */
    LEAST_REGISTERS = 56,      /* of a thread */
    MOST_HELD = 36,            /* weights in registers */
    LAST_CHANNELS = 4,         /* of a thread where channels come last */
    REGISTERS = 64 * 1024,     /* of a multiprocessor, */
    SHARED = 227 * 1024,       /* and its shared memory, of an H200, */
    MOST_STAGED = 8 * 1024,    /* bytes of weights that pass through shared memory */
    STRIPS = 4,                /* value of run */
    STRIP_COLUMNS = 7,         /* of a thread */
    STRIP_WARPS = 2,           /* of a block; each has its own planes */
    STRIP_REGISTERS = 168,     /* of a thread, at most: 3 warps for each quarter of a multiprocessor, */
    STRIP_OTHERS = 40,         /* of them those not for sums, windows and weights */
    LEAST_STRIP = 6,           /* rows */
    MOST_STRIP_PAD = 64,       /* rows above the input, so that places fit 32 bits */
    MOST_RING = 6,             /* with 8, the first rows come later */
    LEAST_RING = 3,
};

static int64_t element_bytes(const cj_problem *p) {
    return p->desc.data_type == CONVJIT_F32 ? 4 : 2;
}

/* Runs of `planes` boxes of z, y, x elements, and how many vectors a run may touch. */
static void runs_of(const cj_depthwise_config *c, int64_t planes, const int64_t box[CJ_DIMS], int64_t vector,
                    int64_t *runs, int64_t *vectors) {
    const int64_t all = planes * box[CJ_Z] * box[CJ_Y] * box[CJ_X];
    const int64_t size = c->run == 3 ? all : c->run == 2 ? box[CJ_Y] * box[CJ_X] : box[CJ_X];
    *runs = all / size;
    *vectors = (size + 2 * vector - 2) / vector;
}

static int64_t taps_of(const cj_problem *p) {
    return p->kernel[CJ_Z] * p->kernel[CJ_Y] * p->kernel[CJ_X];
}

int64_t cj_depthwise_channels(const cj_problem *p) {
    return p->channels_last ? LAST_CHANNELS : 1;
}

int64_t cj_depthwise_group_pitch(const cj_problem *p, const cj_depthwise_config *c) {
    return taps_of(p) / c->row_taps * cj_round_up(c->row_taps * cj_depthwise_channels(p), 4);
}

/* Words from a plane to the next in the shared memory of strips. */
static int64_t strip_pitch(const cj_depthwise_config *c, int64_t words) {
    return words + ((cj_round_up(c->lanes[CJ_X], 4) - words) % 32 + 32) % 32;
}

/* Each warp of a block has its own planes, as many as it has lanes for. */
static void lay_out_strips(const cj_problem *p, const cj_depthwise_config *c, cj_depthwise_tile *t) {
    const int64_t reach = ((int64_t)c->lanes[CJ_X] - 1) * c->columns * p->stride[CJ_X] + t->window - p->pad_begin[CJ_X];
    const int64_t margin = cj_most(p->pad_begin[CJ_X], reach - p->in_size[CJ_X]);
    t->lanes = t->k / (32 / c->lanes[CJ_X]) * 32;
    t->tile_bytes = t->k * 4 *
                    (strip_pitch(c, c->ring * cj_round_up(p->stride[CJ_Y] * p->in_size[CJ_X] + margin, 4)) +
                     strip_pitch(c, 2 * p->out_size[CJ_X] + margin));
    t->weight_bytes = 0;
}

cj_depthwise_tile cj_depthwise_tile_of(const cj_problem *p, const cj_depthwise_config *c) {
    const int64_t vector = 16 / element_bytes(p);
    cj_depthwise_tile t = {
        .k = (int64_t)c->lanes_k * (p->channels_last ? LAST_CHANNELS : 1),
        .out = {c->lanes[CJ_Z], (int64_t)c->lanes[CJ_Y] * c->rows, (int64_t)c->lanes[CJ_X] * c->columns}};
    const bool whole[CJ_DIMS] = {c->run == 3 && t.out[CJ_Z] >= p->out_size[CJ_Z], c->run == 3, c->run > 1};
    int64_t out[CJ_DIMS];
    t.planes = cj_divide_up(t.k, p->group_out);
    t.lanes = (int64_t)c->lanes[CJ_Z] * c->lanes[CJ_Y] * c->lanes[CJ_X] * c->lanes_k;
    for (int d = 0; d < CJ_DIMS; ++d) {
        t.under[d] = (t.out[d] - 1) * p->stride[d] + (p->kernel[d] - 1) * p->dilation[d] + 1;
        t.in[d] = whole[d] ? p->in_size[d] : cj_least(t.under[d], p->in_size[d]);
        out[d] = cj_least(t.out[d], cj_most(1, p->out_size[d]));
    }
    runs_of(c, t.planes, t.in, vector, &t.in_runs, &t.in_vectors);
    runs_of(c, t.k, out, vector, &t.out_runs, &t.out_vectors);
    t.tile_bytes = p->channels_last ? 0
                                    : cj_most(t.in_runs * t.in_vectors * 16,
                                              t.out_runs * t.out_vectors * vector * (int64_t)sizeof(float));
    const int64_t weight_bytes = t.k * cj_depthwise_group_pitch(p, c) * (int64_t)sizeof(float);
    const bool fits = weight_bytes <= MOST_STAGED && t.tile_bytes + weight_bytes <= CJ_DEPTHWISE_MOST_SHARED;
    t.weight_bytes = !p->channels_last && fits ? weight_bytes : 0;
    t.window = (c->columns - 1) * p->stride[CJ_X] + (c->row_taps - 1) * p->dilation[CJ_X] + 1;
    if (c->run == STRIPS) {
        lay_out_strips(p, c, &t);
    }
    return t;
}

cj_depthwise_config cj_depthwise_smallest(void) {
    return (cj_depthwise_config){
        .lanes = {1, 1, 1}, .lanes_k = 1, .rows = 1, .columns = 1, .row_taps = 1, .run = 1, .min_blocks = 1};
}

/* Where a lane's first input lies in shared memory, in words of 4 bytes. */
static int64_t word_of(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t, int64_t lane) {
    const int64_t bytes = element_bytes(p), pitch = t->in_vectors * 16 / bytes;
    const int64_t row = c->run > 1 ? p->in_size[CJ_X] : pitch;
    const int64_t slice = c->run == 2 ? pitch : t->in[CJ_Y] * row;
    const int64_t x = lane % c->lanes[CJ_X], y = lane / c->lanes[CJ_X] % c->lanes[CJ_Y];
    const int64_t rest = lane / c->lanes[CJ_X] / c->lanes[CJ_Y], z = rest % c->lanes[CJ_Z];
    const int64_t plane = rest / c->lanes[CJ_Z] / p->group_out;
    return (plane * t->in[CJ_Z] * slice + z * p->stride[CJ_Z] * slice + y * c->rows * p->stride[CJ_Y] * row +
            x * c->columns * p->stride[CJ_X]) *
           bytes / 4;
}

/* Cycles in which shared memory serves a load of a warp, in the mean of the first two: lanes that want different words
 * of one of the 32 banks wait for each other. */
static double bank_cycles(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t) {
    const int64_t lanes = cj_least(t->lanes, 64);
    int64_t cycles = 0, seen[32][32]; /* per bank: words wanted from it */
    for (int64_t first = 0; first < lanes; first += 32) {
        int count[32] = {0}, worst = 1;
        for (int64_t lane = first; lane < cj_least(first + 32, lanes); ++lane) {
            const int64_t word = word_of(p, c, t, lane);
            const int bank = (int)(word % 32);
            int i = 0;
            while (i < count[bank] && seen[bank][i] != word) {
                ++i;
            }
            if (i == count[bank]) {
                seen[bank][count[bank]++] = word;
                worst = count[bank] > worst ? count[bank] : worst;
            }
        }
        cycles += worst;
    }
    return (double)cycles / (double)cj_divide_up(lanes, 32);
}

/* Input rows under a thread that it looks at: with one output row, only those of its taps. */
static int64_t rows_under(const cj_problem *p, const cj_depthwise_config *c) {
    return c->rows == 1 ? p->kernel[CJ_Y]
                        : (c->rows - 1) * p->stride[CJ_Y] + (p->kernel[CJ_Y] - 1) * p->dilation[CJ_Y] + 1;
}

/* Multiply-adds of a thread with a slice's taps that it takes together. */
static int64_t products_of(const cj_problem *p, const cj_depthwise_config *c) {
    return p->kernel[CJ_Y] * c->row_taps * cj_depthwise_channels(p) * c->rows * c->columns;
}

/* Are the rows under a thread few enough to be unrolled? */
static bool has_few_rows(const cj_problem *p, const cj_depthwise_config *c) {
    return rows_under(p, c) <= MOST_UNROLLED_ROWS &&
           p->kernel[CJ_Y] * c->row_taps <= (p->channels_last ? MOST_UNROLLED_LAST : MOST_UNROLLED_TAPS);
}

bool cj_depthwise_unrolls(const cj_problem *p, const cj_depthwise_config *c) {
    return c->run != STRIPS && has_few_rows(p, c) &&
           products_of(p, c) <= (p->channels_last ? MOST_PRODUCTS_LAST : MOST_PRODUCTS);
}

bool cj_depthwise_holds(const cj_problem *p, const cj_depthwise_config *c) {
    return c->run == STRIPS || (cj_depthwise_unrolls(p, c) && taps_of(p) * cj_depthwise_channels(p) <= MOST_HELD);
}

/* Sums in registers: of outputs, and of those whose parts are closed but not all of their rows of taps added. */
static int64_t sums_of(const cj_problem *p, const cj_depthwise_config *c) {
    const int64_t between = p->kernel[CJ_Z] == 1 && cj_depthwise_unrolls(p, c)
                                ? cj_most(1, p->kernel[CJ_Y] - CJ_DEPTHWISE_CLOSE_AFTER / p->kernel[CJ_X])
                                : c->rows;
    return cj_depthwise_channels(p) * c->columns *
           (c->rows + (taps_of(p) > CJ_DEPTHWISE_CLOSE_AFTER ? cj_least(between, c->rows) : 0));
}

/* Registers that a thread wants: sums, a window, weights where they are unrolled, addresses. */
static int64_t registers_of(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t) {
    const int64_t others = p->channels_last ? 40 : cj_depthwise_holds(p, c) ? 20 : 24;
    const int64_t weights = cj_depthwise_holds(p, c) ? taps_of(p) : c->row_taps;
    const int64_t wanted = sums_of(p, c) + cj_depthwise_channels(p) * (t->window + weights) + others;
    return cj_least(255, cj_most(LEAST_REGISTERS, wanted));
}

int64_t cj_depthwise_threads(const cj_depthwise_tile *t) {
    return cj_round_up(t->lanes, 32);
}

/* What a thread and a tile do. */
typedef struct work {
    double issued; /* instructions of a tile's warps */
    double shared; /* cycles of shared memory, or L1 where channels come last */
    double rows;   /* input rows that a thread reads one after another */
} work;

static work work_of(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t) {
    const double warps = (double)cj_depthwise_threads(t) / 32.0, channels = (double)cj_depthwise_channels(p);
    const bool wide = element_bytes(p) == 4;
    const double rows = (double)(p->kernel[CJ_Z] * rows_under(p, c));
    const double loads = rows * (double)(t->window * (p->kernel[CJ_X] / c->row_taps));
    const double outputs = channels * c->rows * c->columns;
    const double weights = /* vectors of them that are not held */
        cj_depthwise_holds(p, c) || p->channels_last ? 0.0 : c->rows * (double)cj_depthwise_group_pitch(p, c) / 4.0;
    const double own =
        370.0 + rows * 12.0 + loads * channels * (wide ? 1.0 : 2.0) + weights + outputs * ((double)taps_of(p) + 3.0);
    if (p->channels_last) {
        return (work){.issued = warps * own, .shared = warps * loads * (wide ? 4.0 : 2.0), .rows = rows};
    }
    /* Moving a tile in and out: by a warp's 32 vectors, and by runs. */
    const double movers = c->run < 3 && (double)t->in_runs >= warps ? 1.0 : warps;
    const int64_t together = 32 * (int64_t)movers;
    const double in_steps = (double)(t->in_runs * cj_divide_up(t->in_vectors, together)) * movers;
    const double out_steps = (double)(t->out_runs * cj_divide_up(t->out_vectors, together)) * movers;
    return (work){.issued = warps * own + 2.5 * in_steps + (wide ? 3.5 : 7.0) * out_steps +
                            14.0 * movers * (double)(t->in_runs + t->out_runs),
                  .shared =
                      warps * (loads * bank_cycles(p, c, t) + weights + outputs) +
                      (double)(t->in_runs * t->in_vectors + 2 * t->out_runs * t->out_vectors * (wide ? 1 : 2)) / 8.0,
                  .rows = rows};
}

/* What the parts of a multiprocessor take: fitted on an H200 to 157 measurements of 16 layers, and where channels come
 * last to earlier ones. The root mean square of the model's error is 9 %, where channels come last 22 %; see
 * tools/bench/results/kernels.md. */
typedef struct rates {
    double issue;       /* cycles for a tile's instruction, */
    double shared;      /* for a cycle of shared memory or L1, */
    double memory;      /* and for a byte; */
    double idle;        /* so much longer do instructions and bytes take where a multiprocessor has only one block */
    double thread, row; /* latency of a tile: for a thread's instruction, and for an input row that it waits for; */
    double waiting;     /* the part of it that blocks do not hide from each other, */
    double tail;        /* and the part that the last tile adds */
} rates;

static const rates first_rates = {0.247, 0.88, 0.0416, 0.70, 3.95, 0.0, 1.0, 0.152};
static const rates last_rates = {0.049, 4.19, 0.0634, 0.0, 8.3, 186.0, 0.51, 1.0};

double cj_depthwise_tiles(const cj_problem *p, const cj_depthwise_tile *t, int64_t batch) {
    double tiles = ceil(cj_known_batch(batch) * (double)p->desc.out_channels / (double)t->k);
    for (int d = 0; d < CJ_DIMS; ++d) {
        tiles *= (double)cj_divide_up(cj_most(1, p->out_size[d]), t->out[d]);
    }
    return tiles;
}

static double cube(double x) {
    return x * x * x;
}

/* The same for strips, whose warps are few and long: those of a quarter of a multiprocessor, three at a time. Fitted by
 * hand on an H200 to 38 measurements of 12 layers; memory counts the rows that two strips share twice. */
static double strips_cost(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t,
                          int64_t batch) {
    const double warps = STRIP_WARPS * cj_depthwise_tiles(p, t, batch);
    const double own = ceil(warps / (4 * CJ_DEPTHWISE_MULTIPROCESSORS)), waves = ceil(own / 3.0);
    const double more = (double)cj_divide_up(p->kernel[CJ_Y], p->stride[CJ_Y]) - 1.0, steps = c->rows + more;
    const double loads = (double)(p->stride[CJ_Y] * t->window) * (c->columns * p->stride[CJ_X] % 2 ? 1.0 : 2.5);
    const double issued = 400.0 + steps * (45.0 + loads) + 60.0 * fmin(steps, 2.0 * more + 1.0) +
                          (double)(c->rows * c->columns) * ((double)taps_of(p) + 4.0);
    const double in = (double)(p->in_size[CJ_Y] * p->in_size[CJ_X]) * steps / c->rows;
    const double bytes = 4.0 * cj_known_batch(batch) * (double)p->desc.in_channels *
                         (in + (double)(p->out_size[CJ_Y] * p->out_size[CJ_X]));
    const double busy = (0.65 * own + 1.55 * waves - 0.9) * issued * (c->lanes[CJ_X] < 8 ? 1.1 : 1.0);
    return 1.04 * cbrt(cube(busy) + cube(bytes / 2450.0)) + CJ_LAUNCH_CYCLES; /* tiles stay where both are alike */
}

/* Cycles for a batch: for a tile the cube root of the sum of the parts' cubes, for they overlap, but less where they
 * take alike; then the last tile. */
double cj_depthwise_cost(const cj_problem *p, const cj_depthwise_config *c, const cj_depthwise_tile *t, int64_t batch) {
    if (c->run == STRIPS) {
        return strips_cost(p, c, t, batch);
    }
    const rates r = p->channels_last ? last_rates : first_rates;
    double in = (double)p->desc.in_channels, out = (double)p->desc.out_channels;
    const double tiles = cj_depthwise_tiles(p, t, batch);
    for (int d = 0; d < CJ_DIMS; ++d) {
        in *= (double)p->in_size[d], out *= (double)p->out_size[d];
    }
    const work w = work_of(p, c, t);
    const double bytes = (double)element_bytes(p) * (in + out) * cj_known_batch(batch) / tiles;
    const double latency = r.thread * w.issued * 32.0 / (double)cj_depthwise_threads(t) + r.row * w.rows;
    const double idle = 1.0 + r.idle / c->min_blocks;
    const double busy = cbrt(cube(r.issue * idle * w.issued) + cube(r.shared * w.shared) +
                             cube(r.memory * idle * bytes) + cube(r.waiting * latency / c->min_blocks));
    return tiles / CJ_DEPTHWISE_MULTIPROCESSORS * busy + r.tail * latency + CJ_LAUNCH_CYCLES;
}

/* Completes the configuration by what follows from its lanes (but a run that is given stays), unless there is a reason
 * not to use it. */
static const char *drops(const cj_problem *p, cj_depthwise_config *c, cj_depthwise_tile *t) {
    const int64_t wide = (int64_t)c->lanes[CJ_X] * c->columns, high = (int64_t)c->lanes[CJ_Y] * c->rows;
    const bool parts_of_several = c->lanes_k > 1 && c->lanes[CJ_Z] < p->out_size[CJ_Z];
    c->row_taps = (int32_t)cj_largest_divisor(p->kernel[CJ_X], MOST_ROW_TAPS);
    c->run = c->run > 0                                     ? c->run
             : p->channels_last || wide < p->out_size[CJ_X] ? 1
             : high < p->out_size[CJ_Y] || parts_of_several ? 2
                                                            : 3;
    *t = cj_depthwise_tile_of(p, c);
    while (t->window > MOST_WINDOW && c->row_taps > 1) {
        c->row_taps = (int32_t)cj_largest_divisor(c->row_taps, c->row_taps - 1);
        *t = cj_depthwise_tile_of(p, c);
    }
    CJ_REFUSE_IF(cj_most(t->under[CJ_Z], cj_most(t->under[CJ_Y], t->under[CJ_X])) > MOST_REACH,
                 "input of a tile longer than 536870912")
    CJ_REFUSE_IF(t->lanes > CJ_DEPTHWISE_MOST_THREADS, "more than 256 threads")
    CJ_REFUSE_IF(t->window > MOST_WINDOW && c->columns > 1, "more than 48 input columns under a thread")
    CJ_REFUSE_IF(sums_of(p, c) > MOST_SUMS, "more than 64 sums a thread")
    CJ_REFUSE_IF(!p->channels_last && has_few_rows(p, c) && products_of(p, c) > MOST_PRODUCTS,
                 "more than 1100 multiply-adds of a thread in line")
    CJ_REFUSE_IF(t->tile_bytes > CJ_DEPTHWISE_MOST_SHARED, "more than 49152 bytes of shared memory")
    /* Each quarter of a multiprocessor has its own registers, for whole warps. */
    const int64_t warps = 4 * (REGISTERS / 4 / 32 / cj_round_up(registers_of(p, c, t), 8));
    const int64_t threads = cj_depthwise_threads(t), by_registers = warps * 32 / threads;
    const int64_t by_shared = SHARED / (t->tile_bytes + t->weight_bytes + 1024);
    c->min_blocks = (int32_t)cj_most(1, cj_least(cj_least(by_registers, by_shared), cj_least(32, 2048 / threads)));
    return NULL;
}

/* False if the configuration cannot be used. */
static bool show(const cj_problem *p, cj_depthwise_config config, cj_depthwise_visitor visit, void *state) {
    cj_depthwise_candidate c = {.config = config};
    cj_depthwise_tile t;
    c.dropped = drops(p, &c.config, &t);
    c.cost = c.dropped ? 0.0 : cj_depthwise_cost(p, &c.config, &t, p->desc.batch_hint);
    visit(&c, state);
    return !c.dropped;
}

/* `all` lanes divided evenly into the fewest parts of at most `most`. */
static int32_t part(int64_t all, int64_t most) {
    return (int32_t)cj_divide_up(all, cj_divide_up(all, most));
}

static int64_t lanes_along(const cj_problem *p, int d, int64_t outputs) {
    return cj_divide_up(cj_most(1, p->out_size[d]), outputs);
}

/* Shows tiles of so many lanes along x, from the highest to the lowest; whole planes also several together. False if
 * none can be used. */
static bool visit_wide(const cj_problem *p, cj_depthwise_config c, cj_depthwise_visitor visit, void *state) {
    const int64_t y = lanes_along(p, CJ_Y, c.rows), z = lanes_along(p, CJ_Z, 1),
                  most = CJ_DEPTHWISE_MOST_THREADS / c.lanes[CJ_X];
    const int32_t k = (int32_t)cj_largest_divisor(p->group_out, cj_most(1, cj_least(8, most)));
    bool found = false;
    for (int32_t lanes_z = part(z, cj_least(8, most / k)); lanes_z > 0; lanes_z /= 2) {
        c.lanes[CJ_Z] = lanes_z;
        c.lanes_k = k;
        for (int32_t lanes_y = part(y, most / k / lanes_z); lanes_y > 0;
             lanes_y = lanes_y > 1 ? part(y, lanes_y - 1) : 0) {
            c.lanes[CJ_Y] = lanes_y;
            found |= show(p, c, visit, state);
        }
        c.lanes[CJ_Y] = (int32_t)y;
        const int64_t several =
            (int64_t)c.lanes[CJ_X] * c.columns >= p->out_size[CJ_X] && lanes_z == z && k == p->group_out
                ? most / lanes_z / y / k
                : 0;
        for (int32_t planes = 2; planes <= several; planes += planes < 8 ? 1 : planes / 4) {
            c.lanes_k = k * planes;
            found |= show(p, c, visit, state);
        }
    }
    return found;
}

/* Whole rows, or where they do not fit halves, quarters, ... of them. */
static void visit_planes(const cj_problem *p, cj_depthwise_config c, cj_depthwise_visitor visit, void *state) {
    const int64_t x = lanes_along(p, CJ_X, c.columns);
    for (int64_t most = cj_least(x, CJ_DEPTHWISE_MOST_THREADS); most > 0; most /= 2) {
        c.lanes[CJ_X] = part(x, most);
        if (visit_wide(p, c, visit, state) && (most < CJ_DEPTHWISE_MOST_THREADS || p->out_size[CJ_Y] > 1)) {
            return;
        }
    }
}

/* Strips: planes whole, or in halves, quarters, ... */
static void visit_strips(const cj_problem *p, cj_depthwise_visitor visit, void *state) {
    const int64_t lanes = lanes_along(p, CJ_X, STRIP_COLUMNS), ages = cj_divide_up(p->kernel[CJ_Y], p->stride[CJ_Y]);
    const int64_t window = (STRIP_COLUMNS - 1) * p->stride[CJ_X] + (p->kernel[CJ_X] - 1) * p->dilation[CJ_X] + 1;
    const int64_t registers = (ages + 1) * STRIP_COLUMNS + p->stride[CJ_Y] * window + taps_of(p) + STRIP_OTHERS;
    cj_depthwise_config c = {.lanes = {1, 1, (int32_t)lanes},
                             .lanes_k = (int32_t)(32 / lanes * STRIP_WARPS),
                             .columns = STRIP_COLUMNS,
                             .row_taps = (int32_t)p->kernel[CJ_X],
                             .run = STRIPS,
                             .min_blocks =
                                 (int32_t)(4 * (REGISTERS / 4 / 32 / cj_round_up(registers, 8)) / STRIP_WARPS)};
    if (lanes > 32 || registers > STRIP_REGISTERS || (lanes < 8 && p->stride[CJ_X] % 2 == 0)) {
        return; /* few lanes of an even stride meet in the same banks */
    }
    for (c.rows = (int32_t)p->out_size[CJ_Y]; c.rows >= LEAST_STRIP; c.rows = (c.rows + 1) / 2) {
        cj_depthwise_candidate candidate = {.dropped = "more shared memory than its blocks have"};
        for (c.ring = MOST_RING; candidate.dropped && c.ring >= LEAST_RING; --c.ring) {
            const cj_depthwise_tile t = cj_depthwise_tile_of(p, &c);
            candidate.config = c;
            if (t.tile_bytes + 1024 <= SHARED / c.min_blocks) {
                candidate.dropped = NULL;
                candidate.cost = cj_depthwise_cost(p, &c, &t, p->desc.batch_hint);
            }
        }
        visit(&candidate, state);
    }
}

/* Channels last: 128 threads, powers of two along each axis. */
static void visit_pixels(const cj_problem *p, cj_depthwise_config c, cj_depthwise_visitor visit, void *state) {
    for (int k = 3; k <= 5; ++k) {
        for (int z = 0; z <= (p->out_size[CJ_Z] > 1 ? 2 : 0); ++z) {
            for (int y = 0; k + z + y <= 7; ++y) {
                c.lanes_k = 1 << k;
                if (k > 3 && (int64_t)c.lanes_k * LAST_CHANNELS >= 2 * p->desc.out_channels) {
                    continue;
                }
                c.lanes[CJ_Z] = 1 << z, c.lanes[CJ_Y] = 1 << y, c.lanes[CJ_X] = 1 << (7 - k - z - y);
                show(p, c, visit, state);
            }
        }
    }
}

/* Odd numbers of columns, so that lanes meet different banks of shared memory. */
static const int32_t first_columns[] = {21, 15, 7, 5, 3, 1, 0}, first_rows[] = {8, 7, 6, 5, 4, 3, 2, 1, 0};
static const int32_t last_columns[] = {4, 2, 1, 0}, last_rows[] = {8, 4, 2, 1, 0};

/* Two axes of float32, whose rows are whole vectors; taps of a step that need not be closed among each other. */
static bool has_strips(const cj_problem *p) {
    const int64_t taps = cj_least(p->kernel[CJ_Y], p->stride[CJ_Y]) * p->kernel[CJ_X];
    return !p->channels_last && p->desc.data_type == CONVJIT_F32 && p->group_out == 1 && p->in_size[CJ_X] % 4 == 0 &&
           p->out_size[CJ_X] % 4 == 0 && p->out_size[CJ_X] > 0 && p->in_size[CJ_Z] == 1 && p->out_size[CJ_Z] == 1 &&
           p->kernel[CJ_Z] == 1 && p->dilation[CJ_Y] == 1 && taps <= CJ_DEPTHWISE_CLOSE_AFTER &&
           p->pad_begin[CJ_Y] <= MOST_STRIP_PAD;
}

/* Would most outputs of a thread not exist, or were they better spread over rows? */
static bool is_odd_shape(const cj_problem *p, int32_t rows, int32_t columns) {
    return (columns > 1 && columns >= 2 * p->out_size[CJ_X]) || (rows > 1 && rows >= 2 * p->out_size[CJ_Y]) ||
           (columns > 7 && p->out_size[CJ_Y] > 1);
}

void cj_depthwise_search(const cj_problem *p, cj_depthwise_visitor visit, void *state) {
    cj_depthwise_config least = cj_depthwise_smallest();
    least.run = 0;
    if (!show(p, least, visit, state)) { /* of whole rows, which are longer than what is under an output */
        show(p, cj_depthwise_smallest(), visit, state);
    }
    for (const int32_t *columns = p->channels_last ? last_columns : first_columns; *columns; ++columns) {
        for (const int32_t *rows = p->channels_last ? last_rows : first_rows; *rows; ++rows) {
            const cj_depthwise_config c = {.columns = *columns, .rows = *rows};
            if (!is_odd_shape(p, *rows, *columns)) {
                (p->channels_last ? visit_pixels : visit_planes)(p, c, visit, state);
            }
        }
    }
    if (has_strips(p)) {
        visit_strips(p, visit, state);
    }
}
