/* reference_data.c - the data that layers are tried on. */
#include <math.h>
#include <string.h>

#include "reference_place.h"
#include "reference_types.h"

/* ---------------------------------------------------------------- words */

static const char *const WORDS[] = {
#define WORD(name, word) word,
    REFERENCE_DISTRIBUTION_LIST(WORD)
#undef WORD
};

const char *reference_distribution_word(reference_distribution distribution) {
    return WORDS[distribution];
}

bool reference_distribution_find(const char *word, reference_distribution *out) {
    for (int i = 0; i < REFERENCE_DISTRIBUTIONS; i++) {
        if (strcmp(word, WORDS[i]) == 0) {
            *out = (reference_distribution)i;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- random numbers */

/* The generator splitmix64 (Steele, Lea and Flood 2014), entered at any place of its sequence. */
uint64_t reference_random(uint64_t seed, uint64_t place) {
    uint64_t v = seed + (place + 1) * 0x9E3779B97F4A7C15U;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9U;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBU;
    return v ^ (v >> 31);
}

/* Places of the sequence an element may use: normal() takes the first six. */
enum { DRAWS = 8, DRAW_KIND = 6, DRAW_SIZE = 7 };

/* A tensor to be filled. */
typedef struct tensor {
    convjit_type type;
    reference_format format;
    reference_role role;
    int64_t count;
    int64_t channels;       /* w: of a filter, which is what shares its first index */
    int64_t group_channels; /* x, and w of a transposed layer: input channels a group */
    reference_extents size;
    convjit_layout layout;
    bool transposed;
    uint64_t start; /* seed of its numbers */
} tensor;

static uint64_t draw(const tensor *t, int64_t index, int place) {
    return reference_random(t->start, (uint64_t)index * DRAWS + (uint64_t)place);
}

/* Sum of 12 uniform numbers less 6: mean 0, deviation 1, tails to +-6. Integer arithmetic alone, so that it is the same
 * on every machine, which a logarithm and a cosine would not be; 32 bits a number, so that float32 mantissas are full.
 */
static double normal(const tensor *t, int64_t index) {
    int64_t sum = 0;
    for (int i = 0; i < 6; i++) {
        const uint64_t bits = draw(t, index, i);
        sum += (int64_t)(bits >> 32) + (int64_t)(bits & 0xFFFFFFFFU);
    }
    return ldexp((double)(sum - (6LL << 32)), -32);
}

/* [0, 1), as many bits as the type's mantissa has. */
static double uniform(const tensor *t, int64_t index) {
    const int digits = t->format.mantissa + 1;
    return ldexp((double)(draw(t, index, 0) >> (64 - digits)), -digits);
}

/* A whole number from low to high. */
static int between(uint64_t bits, int low, int high) {
    return low + (int)(bits % (uint64_t)(high - low + 1));
}

static bool is_f16(const tensor *t) {
    return t->type == CONVJIT_F16;
}

/* ---------------------------------------------------------------- distributions */

static double wide(const tensor *t, int64_t index) {
    const int widest = is_f16(t) ? 6 : 40;
    return ldexp(normal(t, index), between(draw(t, index, DRAW_KIND), -widest, widest));
}

static double outlier(const tensor *t, int64_t index) {
    const int larger =
        is_f16(t) ? between(draw(t, index, DRAW_SIZE), 4, 10) : between(draw(t, index, DRAW_SIZE), 20, 60);
    return ldexp(normal(t, index), draw(t, index, DRAW_KIND) % 200 == 0 ? larger : 0);
}

/* Neighbours of a filter (transposed: of two filters, for there an output sums over these) differ by their sign alone,
 * and one without a partner is small. x differs from 1 in the lower half of its bits. */
static double cancel(const tensor *t, int64_t index) {
    const int bits = t->format.mantissa / 2;
    if (t->role == REFERENCE_X) {
        return 1.0 + ldexp(uniform(t, index), -bits);
    }
    if (t->role != REFERENCE_W) {
        return ldexp(normal(t, index), -bits);
    }
    const int64_t filter = t->channels * t->size.of[0] * t->size.of[1] * t->size.of[2];
    const int64_t step = t->transposed ? filter : 1;
    const int64_t length = t->transposed ? t->group_channels : filter;
    const int64_t turn = index / step % length;
    if (turn % 2 == 1) {
        return -1.0 - uniform(t, index - step);
    }
    return ldexp(1.0 + uniform(t, index), turn + 1 == length ? -bits : 0);
}

static double integer(const tensor *t, int64_t index) {
    const double odd = 2.0 * between(draw(t, index, DRAW_SIZE), 1024, 2047) + 1.0;
    const double value = t->type == CONVJIT_F32 ? odd : ldexp(odd, -11);
    return draw(t, index, DRAW_KIND) % 2 == 0 ? value : -value;
}

/* Split in two of 11 bits, hi = 1 and lo is 2^-11 - 4 * 2^-23: lo * lo is 2^-22 and what lo has lost of the 3 * 2^-23
 * is half of its own last bit, 2^-23, from x and from w, with the same sign: without lo * lo, 2^-21 of each product.
 * One part alone loses 2^-11 of x and of w. */
static double split(void) {
    return 1.0 + 0x1p-11 - 3.0 * 0x1p-23;
}

/* Any of the type's subnormals, as many of each size. */
static double subnormal(const tensor *t, int64_t index) {
    const uint64_t bits = draw(t, index, DRAW_SIZE);
    const uint64_t steps = 1 + (bits >> 8) % ((1ULL << (1 + bits % (uint64_t)t->format.mantissa)) - 1);
    const double value = ldexp((double)steps, t->format.min_exponent - t->format.mantissa);
    return draw(t, index, DRAW_KIND) % 2 == 0 ? value : -value;
}

static double huge(const tensor *t, int64_t index) {
    const int larger =
        is_f16(t) ? between(draw(t, index, DRAW_KIND), 8, 10) : between(draw(t, index, DRAW_KIND), 100, 120);
    return ldexp(normal(t, index), larger);
}

/* x: pixels are zero in squares that hold whole windows, of every eighth channel all, and half of the others. w: every
 * eighth filter, and half of the others. */
static double sparse(const tensor *t, int64_t index) {
    enum { SQUARE = 8, DEAD = 5 };
    const reference_place at = reference_place_of(index, t->channels, t->size, t->layout);
    const double value = normal(t, index);
    if (t->role == REFERENCE_X) {
        const int64_t square = (at.outer * 64 + at.at[1] / SQUARE) * 64 + at.at[2] / SQUARE;
        const bool dead = at.channel % 8 == DEAD || reference_random(t->start, (uint64_t)square) % 2 == 0;
        return dead || value < 0.0 ? 0.0 : value;
    }
    if (t->role == REFERENCE_W) {
        return at.outer % 8 == DEAD || draw(t, index, DRAW_KIND) % 2 == 0 ? 0.0 : value;
    }
    return value;
}

/* Of 32 channels the first 16 are large and small in turn, so that a block of some holds both; the others are small, so
 * that a block follows that is small as a whole. */
static double mixed(const tensor *t, int64_t index) {
    const int half = is_f16(t) ? 5 : 30;
    const reference_place at = reference_place_of(index, t->channels, t->size, t->layout);
    const int64_t in = (t->role == REFERENCE_W && !t->transposed ? at.channel : at.outer) % t->group_channels;
    const int64_t c = t->role == REFERENCE_X ? at.channel % t->group_channels : in;
    const int64_t k = t->transposed ? at.channel : at.outer;
    const int exponent = c % 32 < 16 && c % 2 == 0 ? half : -half;
    if (t->role == REFERENCE_X) {
        return ldexp(normal(t, index), exponent);
    }
    return ldexp(normal(t, index), t->role == REFERENCE_W && k % 2 == 0 ? -exponent : 0);
}

static double value_at(const tensor *t, int64_t index, reference_distribution distribution) {
    const bool is_x = t->role == REFERENCE_X;
    const bool is_w = t->role == REFERENCE_W;
    const int product = is_f16(t) ? -6 : -16; /* exponent of a subnormal times a huge number */
    switch (distribution) {
    case REFERENCE_UNIFORM:
        return uniform(t, index);
    case REFERENCE_WIDE:
        return wide(t, index);
    case REFERENCE_OUTLIER:
        return outlier(t, index);
    case REFERENCE_CANCEL:
        return cancel(t, index);
    case REFERENCE_INTEGER:
        return integer(t, index);
    case REFERENCE_SPLIT:
        return split();
    case REFERENCE_SUBNORMAL:
        return is_w ? normal(t, index) : subnormal(t, index);
    case REFERENCE_HUGE:
        return is_x ? subnormal(t, index) : is_w ? huge(t, index) : ldexp(normal(t, index), product);
    case REFERENCE_TINY:
        return is_w ? subnormal(t, index) : is_x ? huge(t, index) : ldexp(normal(t, index), product);
    case REFERENCE_SPARSE:
        return sparse(t, index);
    case REFERENCE_MIXED:
        return mixed(t, index);
    case REFERENCE_NORMAL:
    case REFERENCE_DISTRIBUTIONS:
    default:
        return normal(t, index);
    }
}

/* ---------------------------------------------------------------- tensors */

static void fill(void *data, const tensor *t, reference_distribution distribution) {
    for (int64_t i = 0; i < t->count; i++) {
        reference_set(data, t->type, i, value_at(t, i, distribution));
    }
}

/* Neighbouring seeds must not give shifted copies. */
static uint64_t start_of(uint64_t seed) {
    return reference_random(seed, 0);
}

static tensor describe(const reference_layer *layer, reference_role role) {
    const convjit_desc *d = &layer->desc;
    const bool transposed = d->operation == CONVJIT_TRANSPOSED;
    const reference_extents one = {{1, 1, 1}};
    const int64_t group_in = d->in_channels / d->groups;
    tensor t = {.type = d->data_type, .role = role, .group_channels = group_in, .transposed = transposed};
    t.layout = d->layout;
    switch (role) {
    case REFERENCE_X:
        t.count = layer->x_count;
        t.channels = d->in_channels;
        t.size = reference_widen(layer->in_size, d->rank, 1);
        break;
    case REFERENCE_W:
        t.type = d->weight_type;
        t.count = layer->w_count;
        t.channels = transposed ? d->out_channels / d->groups : group_in;
        t.size = reference_widen(d->kernel, d->rank, 1);
        t.layout = d->weight_layout;
        break;
    case REFERENCE_BIAS:
        t.type = d->bias_type;
        t.count = t.channels = d->out_channels;
        t.size = one;
        break;
    case REFERENCE_Z:
    case REFERENCE_Y:
    default:
        t.count = layer->y_count;
        t.channels = d->out_channels;
        t.size = reference_widen(layer->out_size, d->rank, 1);
    }
    t.format = reference_format_of(t.type);
    return t;
}

void reference_fill_tensor(void *data, const reference_layer *layer, reference_role role, uint64_t seed,
                           reference_distribution distribution) {
    tensor t = describe(layer, role);
    t.start = start_of(seed * 8 + (uint64_t)role);
    fill(data, &t, distribution);
}

void reference_fill(void *data, convjit_type type, int64_t count, uint64_t seed, reference_distribution distribution) {
    const tensor t = {.type = type,
                      .format = reference_format_of(type),
                      .role = REFERENCE_X,
                      .count = count,
                      .channels = 1,
                      .group_channels = 1,
                      .size = {{1, 1, count}},
                      .layout = CONVJIT_CHANNELS_FIRST,
                      .start = start_of(seed)};
    fill(data, &t, distribution);
}
