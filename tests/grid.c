/* grid.c - the generated layers.
 *
 * A case is one level of each factor below. Out of a few random candidates the generator takes the one that holds the
 * most pairs of levels not seen before (the greedy way to a pairwise covering array), until no pair is missing and
 * there are enough cases. Levels are then made a legal layer: what does not fit is cut or raised, not thrown away.
 *
 * A space says which levels are used: all of them, or those of the layers that are products of matrices. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grid_table.h"
#include "reference_types.h"

/* Most generated cases of a space. */
enum { GENERATED_MOST = 1000, CANDIDATES = 12 };

/* Multiply-adds and outputs of one case, so that the target cpu takes well under a second. */
static const int64_t work_max = 300000, outputs_max = 12000;

#define FACTOR_LIST(X)   \
    X(OPERATION, 2)      \
    X(RANK, 3)           \
    X(GROUPING, 7)       \
    X(IN_WIDTH, 9)       \
    X(OUT_WIDTH, 8)      \
    X(KERNEL_X, 7)       \
    X(KERNEL_Y, 5)       \
    X(KERNEL_Z, 3)       \
    X(STRIDE_X, 3)       \
    X(STRIDE_Y, 3)       \
    X(STRIDE_Z, 2)       \
    X(DILATION_X, 3)     \
    X(DILATION_Y, 3)     \
    X(DILATION_Z, 2)     \
    X(PADDING_X, 6)      \
    X(PADDING_Y, 6)      \
    X(PADDING_Z, 6)      \
    X(OUTPUT_PADDING, 3) \
    X(SIZE_X, 8)         \
    X(SIZE_Y, 6)         \
    X(SIZE_Z, 4)         \
    X(LAYOUT, 2)         \
    X(WEIGHT_LAYOUT, 2)  \
    X(TYPES, 5)          \
    X(BIAS, 4)           \
    X(MATH, 4)           \
    X(ACTIVATION, 9)     \
    X(SCALE, 6)          \
    X(DYNAMIC, 3)        \
    X(BATCH, 3)          \
    X(SLICE, 5)          \
    X(SHIFT, 6)          \
    X(DATA, 12)          \
    X(SPECIAL, 7)

enum {
#define FACTOR_ENUM(name, levels) name,
    FACTOR_LIST(FACTOR_ENUM)
#undef FACTOR_ENUM
        FACTORS
};

#define FACTOR_LEVELS(name, levels) levels,
static const int levels[FACTORS] = {FACTOR_LIST(FACTOR_LEVELS)};
#undef FACTOR_LEVELS

enum { LEVELS_MAX = 12 };
_Static_assert((int)REFERENCE_DISTRIBUTIONS == 12, "every distribution is a level of DATA");

typedef struct space {
    unsigned leave_out[FACTORS]; /* levels not used, as bits */
    bool wide;                   /* OUT_WIDTH is that of a group */
    size_t least;                /* cases; a pairwise cover alone would need about 130 */
    uint64_t first_seed;
} space;

static const space everything = {.least = 420};

/* Convolutions of f32, channels first, at least 16 outputs a group: few of the above are. */
static const space matrices = {.leave_out = {[OPERATION] = 1U << 1,
                                             [GROUPING] = 1U << 4 | 1U << 5 | 1U << 6,
                                             [OUT_WIDTH] = 0x1F,
                                             [LAYOUT] = 1U << 1,
                                             [TYPES] = 1U << 1 | 1U << 2},
                               .wide = true,
                               .first_seed = 10000};

static bool uses(const space *of, int factor, int level) {
    return (of->leave_out[factor] >> level & 1) == 0;
}

static int count_levels(const space *of, int factor) {
    int count = 0;
    for (int level = 0; level < levels[factor]; ++level) {
        count += uses(of, factor, level);
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------- levels to a layer
 */

/* In the tables of sizes: the smallest input that the window fits, which without padding is kernel = input. */
enum { FIT = -1 };

static const int64_t kernels[3][7] = {{1, 2, 3}, {1, 2, 3, 5, 7}, {1, 2, 3, 4, 5, 6, 7}};
static const int64_t sizes[3][8] = {{1, FIT, 2, 5}, {1, FIT, 3, 6, 9, 14}, {1, FIT, 2, 5, 8, 13, 16, 33}};
static const int64_t in_widths[] = {1, 3, 4, 7, 8, 16, 17, 32, 40};
static const int64_t out_widths[] = {1, 2, 5, 8, 13, 16, 31, 40};

static void set_channels(const space *of, const int *level, convjit_desc *desc) {
    static const int64_t groups[] = {1, 1, 2, 3};
    const int64_t in = in_widths[level[IN_WIDTH]];
    const int64_t out = out_widths[level[OUT_WIDTH]] * (of->wide ? groups[level[GROUPING]] : 1);
    static const int64_t multipliers[] = {1, 2, 3};
    const int grouping = level[GROUPING];
    if (grouping < 4) { /* widths rounded up to whole groups */
        desc->groups = groups[grouping];
        desc->in_channels = (in + desc->groups - 1) / desc->groups * desc->groups;
        desc->out_channels = (out + desc->groups - 1) / desc->groups * desc->groups;
    } else { /* depthwise; transposed with the multiplier on the output's side too */
        desc->groups = desc->in_channels = in;
        desc->out_channels = in * multipliers[grouping - 4];
    }
}

/* Padding at the beginning and end of an axis whose window spans `span` inputs. */
static void set_padding(int level, int64_t span, int64_t *begin, int64_t *end) {
    const int64_t begins[] = {0, span / 2, span - 1, 0, span / 2 + 1, span + 1};
    const int64_t ends[] = {0, span / 2, 0, span - 1, span / 3, span}; /* the last: windows wholly in the padding */
    *begin = begins[level];
    *end = ends[level];
}

/* A transposed layer loses outputs to padding: leaves at least one. */
static void cut_padding(const convjit_desc *desc, int axis, int64_t size, int64_t *begin, int64_t *end) {
    const int64_t full = (size - 1) * desc->stride[axis] + desc->dilation[axis] * (desc->kernel[axis] - 1) +
                         desc->output_padding[axis] + 1;
    if (*begin > full - 1) {
        *begin = full - 1;
    }
    if (*end > full - 1 - *begin) {
        *end = full - 1 - *begin;
    }
}

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* One axis; `from` is the axis of the factor tables (z, y, x), `axis` that of the descriptor. */
static void set_axis(const int *level, int from, int axis, grid_case *grid) {
    convjit_desc *desc = &grid->desc;
    desc->kernel[axis] = kernels[from][level[KERNEL_X - from + 2]];
    desc->stride[axis] = 1 + level[STRIDE_X - from + 2];
    desc->dilation[axis] = 1 + level[DILATION_X - from + 2];
    const int64_t span = desc->dilation[axis] * (desc->kernel[axis] - 1) + 1;
    int64_t size = sizes[from][level[SIZE_X - from + 2]];
    set_padding(level[PADDING_X - from + 2], span, &desc->pad_begin[axis], &desc->pad_end[axis]);
    if (desc->operation == CONVJIT_TRANSPOSED) {
        const int64_t most = max_of(desc->stride[axis], desc->dilation[axis]) - 1;
        const int64_t paddings[] = {0, most > 0, most};
        desc->output_padding[axis] = paddings[level[OUTPUT_PADDING]];
        size = size == FIT ? 2 : size;
        cut_padding(desc, axis, size, &desc->pad_begin[axis], &desc->pad_end[axis]);
    } else {
        const int64_t least = max_of(1, span - desc->pad_begin[axis] - desc->pad_end[axis]);
        size = size == FIT || size < least ? least : size;
    }
    grid->in_size[axis] = size;
}

static void set_types(const int *level, grid_case *grid) {
    static const convjit_type types[][2] = {{CONVJIT_F32, CONVJIT_F32},
                                            {CONVJIT_F16, CONVJIT_F16},
                                            {CONVJIT_BF16, CONVJIT_BF16},
                                            {CONVJIT_F32, CONVJIT_F16},
                                            {CONVJIT_F32, CONVJIT_BF16}};
    static const convjit_math maths[] = {CONVJIT_FP32, CONVJIT_FP32, CONVJIT_FP32_BLOCK, CONVJIT_TF32};
    convjit_desc *desc = &grid->desc;
    desc->data_type = types[level[TYPES]][0];
    desc->weight_type = types[level[TYPES]][1];
    grid->bias = level[BIAS] > 0;
    desc->bias_type = grid->bias ? (convjit_type)(level[BIAS] - 1) : CONVJIT_F32;
    desc->math = maths[level[MATH]];
    desc->layout = (convjit_layout)level[LAYOUT];
    desc->weight_layout = (convjit_layout)level[WEIGHT_LAYOUT];
}

static void set_epilogue(const int *level, grid_case *grid) {
    static const float scales[6][2] = {{1, 0}, {-0.5F, 0}, {1, 1}, {0.75F, -1.5F}, {1, 1}, {1.25F, 0.5F}};
    convjit_desc *desc = &grid->desc;
    desc->activation = (convjit_activation)level[ACTIVATION];
    desc->activation_a = desc->activation == CONVJIT_LEAKY_RELU ? 0.1F : desc->activation == CONVJIT_CLAMP ? -0.75F : 0;
    desc->activation_b = desc->activation == CONVJIT_CLAMP ? 1.5F : 0;
    desc->alpha = scales[level[SCALE]][0];
    desc->beta = scales[level[SCALE]][1];
    grid->residual = level[SCALE] >= 4 ? GRID_Z_IS_Y : GRID_Z_APART;
}

static void set_place(const int *level, grid_case *grid) {
    const int slice = level[SLICE], shift = level[SHIFT];
    const bool separate = grid->residual == GRID_Z_APART && grid->desc.beta != 0;
    grid->slice_x = slice == 1 || slice == 4;
    grid->slice_y = slice == 2 || slice == 4;
    grid->slice_z = separate && (slice == 3 || slice == 4);
    grid->shift_x = shift == 1 || shift == 5;
    grid->shift_y = shift == 2 || shift == 5;
    grid->shift_z = separate && (shift == 3 || shift == 5);
    grid->shift_w = shift == 4 || shift == 5;
}

static int64_t product(const int64_t *values, int rank) {
    int64_t all = 1;
    for (int i = 0; i < rank; ++i) {
        all *= values[i];
    }
    return all;
}

static bool too_much(const grid_case *grid) {
    const convjit_desc *desc = &grid->desc;
    int64_t out_size[3];
    if (convjit_output_size(desc, grid->in_size, out_size) != CONVJIT_SUCCESS) {
        return false; /* whoever runs the case says why */
    }
    const int64_t outputs = grid->batch * desc->out_channels * product(out_size, desc->rank);
    const int64_t taps = desc->in_channels / desc->groups * product(desc->kernel, desc->rank);
    return outputs > outputs_max || outputs * taps > work_max;
}

static grid_case case_of(const space *of, const int *level) {
    static const grid_special specials[] = {GRID_PLAIN,    GRID_PLAIN,    GRID_PLAIN,   GRID_NAN_IN_X,
                                            GRID_INF_IN_X, GRID_NAN_IN_W, GRID_INF_IN_W};
    grid_case grid = {.desc = CONVJIT_DESC_INIT,
                      .batch = 1 + level[BATCH],
                      .distribution = (reference_distribution)level[DATA],
                      .special = specials[level[SPECIAL]]};
    grid.desc.operation = (convjit_operation)level[OPERATION];
    grid.desc.rank = 1 + level[RANK];
    set_channels(of, level, &grid.desc);
    for (int axis = 0; axis < grid.desc.rank; ++axis) {
        set_axis(level, axis + 3 - grid.desc.rank, axis, &grid);
    }
    set_types(level, &grid);
    set_epilogue(level, &grid);
    set_place(level, &grid);
    if (level[DYNAMIC] < 2) {
        memcpy(grid.desc.in_size, grid.in_size, sizeof grid.in_size);
    }
    return grid;
}

/* ---------------------------------------------------------------------------------------------------- choosing levels
 */

typedef struct pair_cover {
    bool seen[FACTORS][LEVELS_MAX][FACTORS][LEVELS_MAX]; /* the first factor is the lower one */
    int missing;
} pair_cover;

static void cover_clear(pair_cover *cover, const space *of) {
    memset(cover, 0, sizeof *cover);
    for (int a = 0; a < FACTORS; ++a) {
        for (int b = a + 1; b < FACTORS; ++b) {
            cover->missing += count_levels(of, a) * count_levels(of, b);
        }
    }
}

static int cover_gain(const pair_cover *cover, const int *level) {
    int gain = 0;
    for (int a = 0; a < FACTORS; ++a) {
        for (int b = a + 1; b < FACTORS; ++b) {
            gain += !cover->seen[a][level[a]][b][level[b]];
        }
    }
    return gain;
}

static void cover_add(pair_cover *cover, const int *level) {
    cover->missing -= cover_gain(cover, level);
    for (int a = 0; a < FACTORS; ++a) {
        for (int b = a + 1; b < FACTORS; ++b) {
            cover->seen[a][level[a]][b][level[b]] = true;
        }
    }
}

/* Forces the first missing pair into the levels; `forced` gets its factors, -1 where no pair is missing. */
static void force_missing(const pair_cover *cover, const space *of, int *level, int forced[2]) {
    forced[0] = forced[1] = -1;
    for (int a = 0; a < FACTORS; ++a) {
        for (int b = a + 1; b < FACTORS; ++b) {
            for (int pair = 0; pair < levels[a] * levels[b]; ++pair) {
                const int in_a = pair % levels[a], in_b = pair / levels[a];
                if (uses(of, a, in_a) && uses(of, b, in_b) && !cover->seen[a][in_a][b][in_b]) {
                    level[a] = in_a;
                    level[b] = in_b;
                    forced[0] = a;
                    forced[1] = b;
                    return;
                }
            }
        }
    }
}

/* Steps the factors that cost time down, one after another, until the case is small enough. */
static void make_small(const space *of, int *level, const int forced[2]) {
    static const int costly[] = {SIZE_Y, SIZE_X, SIZE_Z, OUT_WIDTH, IN_WIDTH, PADDING_Y, PADDING_X, KERNEL_Y, KERNEL_X};
    const int count = sizeof costly / sizeof *costly;
    for (int step = 0; step < LEVELS_MAX * count; ++step) {
        const grid_case grid = case_of(of, level);
        if (!too_much(&grid)) {
            return;
        }
        const int factor = costly[step % count];
        if (factor != forced[0] && factor != forced[1] && level[factor] > 0 && uses(of, factor, level[factor] - 1)) {
            --level[factor];
        }
    }
}

static int draw_level(const space *of, int factor, uint64_t random) {
    int chosen = (int)(random % (uint64_t)count_levels(of, factor)), level = 0;
    while (!uses(of, factor, level) || chosen-- > 0) {
        ++level;
    }
    return level;
}

static void choose(const pair_cover *cover, const space *of, uint64_t *random, int *best) {
    int best_gain = -1;
    for (int candidate = 0; candidate < CANDIDATES; ++candidate) {
        int level[FACTORS], forced[2];
        for (int factor = 0; factor < FACTORS; ++factor) {
            level[factor] = draw_level(of, factor, reference_random(1, (*random)++));
        }
        force_missing(cover, of, level, forced);
        make_small(of, level, forced);
        const int gain = cover_gain(cover, level);
        if (gain > best_gain) {
            best_gain = gain;
            memcpy(best, level, sizeof level);
        }
    }
}

/* Fills in the cases of a space; returns how many, 0 when memory is used up. */
static size_t generate(const space *of, grid_case *cases) {
    pair_cover *pairs = malloc(sizeof *pairs);
    if (pairs == NULL) {
        return 0;
    }
    cover_clear(pairs, of);
    uint64_t random = 0;
    size_t count = 0;
    for (; count < of->least || (pairs->missing > 0 && count < GENERATED_MOST); ++count) {
        int level[FACTORS];
        choose(pairs, of, &random, level);
        cover_add(pairs, level);
        cases[count] = case_of(of, level);
    }
    free(pairs);
    return count;
}

static grid_case *make(const space *of, size_t written, size_t *count) {
    grid_case *cases = malloc((written + GENERATED_MOST) * sizeof *cases);
    const size_t generated = cases != NULL ? generate(of, cases + written) : 0;
    if (generated == 0) {
        free(cases);
        return NULL;
    }
    if (written > 0) {
        grid_table_get(cases);
    }
    *count = written + generated;
    for (size_t i = 0; i < *count; ++i) {
        cases[i].seed = of->first_seed + i;
    }
    return cases;
}

grid_case *grid_make(size_t *count) {
    return make(&everything, grid_table_count(), count);
}

grid_case *grid_make_matrices(size_t *count) {
    return make(&matrices, 0, count);
}

size_t grid_describe(const grid_case *grid, char *text, size_t size) {
    static const char *const specials[] = {"", ", nan in x", ", inf in x", ", nan in w", ", inf in w", ", huge in x"};
    static const char *const residuals[] = {"", ", z is y", ", z is x"};
    char line[CONVJIT_LAYER_LINE_MAX], in[64] = "";
    convjit_layer_line_format(&grid->desc, grid->batch, line, sizeof line);
    if (grid->desc.in_size[0] == 0) {
        int length = snprintf(in, sizeof in, ", at forward %lld", (long long)grid->in_size[0]);
        for (int i = 1; i < grid->desc.rank; ++i) {
            length += snprintf(in + length, sizeof in - (size_t)length, "x%lld", (long long)grid->in_size[i]);
        }
    }
    return (size_t)snprintf(
        text, size, "%s | case %llu, %s%s%s%s%s%s%s%s%s%s%s%s", line, (unsigned long long)grid->seed,
        reference_distribution_word(grid->distribution), in, specials[grid->special], grid->bias ? ", bias" : "",
        residuals[grid->residual], grid->slice_x ? ", x slice" : "", grid->slice_y ? ", y slice" : "",
        grid->slice_z ? ", z slice" : "", grid->shift_x ? ", x + 1" : "", grid->shift_y ? ", y + 1" : "",
        grid->shift_z ? ", z + 1" : "", grid->shift_w ? ", w + 1" : "");
}
