#include "view.h"

#include "arithmetic.h"
#include "family.h"

enum {
    MOST_STEP = 1 << 10,  /* stride or dilation */
    MOST_SIZE = 1 << 30,  /* of an axis */
    MOST_SPREAD = 16,     /* dilation that joining axes may bring about */
    MOST_PHASES = 64,     /* of an axis of a transposed layer */
    MOST_LINES = 1 << 20, /* of an image that is a position: the kernel counts them in 32 bits */
    MOST_FOLD = 8,        /* phases that an axis gets to make channels */
    FOLD_ROWS = 64,       /* channels of a product: more of them are enough */
};

/* ---- axes ---- */

/* Are rows of the next axis one after the other in memory, of inputs as of outputs, and do taps treat them so? */
static bool joins_next(const cj_problem *p, int d) {
    const int next = d + 1;
    const int64_t width = p->in_size[next];
    return p->kernel[next] == 1 && p->stride[next] == 1 && p->stride[d] == 1 && width == p->out_size[next] &&
           p->pad_begin[next] == 0 && (p->kernel[d] == 1 || p->dilation[d] * width <= MOST_SPREAD) &&
           cj_most(p->in_size[d], p->out_size[d]) <= MOST_SIZE / width && p->pad_begin[d] <= MOST_SIZE / width;
}

/* Axis `from` becomes axis `to`, its elements `width` apart. */
static void move_axis(cj_problem *p, int from, int to, int64_t width) {
    p->in_size[to] = p->in_size[from] * width;
    p->out_size[to] = p->out_size[from] * width;
    p->kernel[to] = p->kernel[from];
    p->stride[to] = p->stride[from];
    p->dilation[to] = p->kernel[from] > 1 ? p->dilation[from] * width : 1;
    p->pad_begin[to] = p->pad_begin[from] * width;
    p->in_size[from] = p->out_size[from] = p->kernel[from] = p->stride[from] = p->dilation[from] = 1;
    p->pad_begin[from] = 0;
}

static void join_axes(cj_problem *p) {
    for (int i = 0; i < CJ_DIMS - 1 && !p->dynamic; ++i) {
        if (joins_next(p, CJ_Y)) {
            move_axis(p, CJ_Y, CJ_X, p->in_size[CJ_X]);
        }
        if (p->in_size[CJ_Y] == 1 && p->out_size[CJ_Y] == 1 && p->kernel[CJ_Y] == 1 &&
            p->pad_begin[CJ_Y] == 0) { /* nothing along y, any more */
            move_axis(p, CJ_Z, CJ_Y, 1);
        }
    }
}

/* ---- images ---- */

/* Does the layer multiply whole images by its weights, in the order in which both lie in memory? */
static bool takes_whole_images(const cj_problem *p) {
    bool whole = !p->transposed && !p->dynamic && p->desc.weight_layout == CONVJIT_CHANNELS_FIRST;
    double lines = (double)p->group_in;
    for (int d = 0; d < CJ_DIMS; ++d) {
        whole = whole && p->out_size[d] == 1 && p->kernel[d] == p->in_size[d] && p->pad_begin[d] == 0 &&
                (p->dilation[d] == 1 || p->kernel[d] == 1);
        lines *= (double)p->kernel[d];
    }
    return whole && lines <= MOST_LINES;
}

static void make_images_positions(cj_problem *p) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        p->group_in *= p->kernel[d];
        p->kernel[d] = p->stride[d] = p->dilation[d] = 1;
        p->in_size[d] = p->out_size[d] = 0;
    }
    p->dynamic = true;
}

/* ---- phases ---- */

bool cj_axis_reaches(const cj_axis *a, int64_t phase) {
    for (int64_t t = 0; t < cj_least(a->taps, a->up); ++t) {
        if ((a->down * phase + a->spacing * t - a->shift) % a->up == 0) {
            return true;
        }
    }
    return false;
}

static int64_t remainder_of(int64_t a, int64_t b) {
    return (a % b + b) % b;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

static cj_axis axis_of(const cj_problem *p, int d, int64_t fold) {
    cj_axis a = {
        .taps = p->kernel[d], .spacing = p->dilation[d], .shift = p->pad_begin[d], .up = 1, .down = p->stride[d]};
    if (p->transposed) {
        a.shift = a.spacing * (a.taps - 1) - a.shift;
        a.up = p->stride[d];
        a.down = 1;
    }
    a.phases = a.up * fold;
    a.active = cj_least(a.taps, a.up / common_divisor(a.up, a.spacing)) * fold;
    return a;
}

const char *cj_view_refuses(const cj_problem *p) {
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->stride[d] > MOST_STEP || p->dilation[d] > MOST_STEP, "stride or dilation over 1024")
        CJ_REFUSE_IF(p->kernel[d] > MOST_STEP, "kernel longer than 1024")
        CJ_REFUSE_IF(p->in_size[d] > MOST_SIZE || p->out_size[d] > MOST_SIZE, "size over 1073741824")
        CJ_REFUSE_IF(p->pad_begin[d] > MOST_SIZE, "padding over 1073741824")
    }
    for (int d = 0; d < CJ_DIMS; ++d) {
        CJ_REFUSE_IF(p->transposed && p->stride[d] > MOST_PHASES, "stride of a transposed layer over 64")
    }
    CJ_REFUSE_IF(axis_of(p, CJ_X, 1).active > CJ_ROWS, "more than 8 phases along x that taps reach")
    return NULL;
}

/* Kernel, stride, dilation and padding of the grid's convolution along an axis. */
static void see_axis(const cj_axis *a, cj_problem *p, int d) {
    int64_t first = 0, last = 0, step = 0;
    bool any = false;
    for (int64_t t = 0; t < a->taps; ++t) {
        const int64_t at = a->spacing * t - a->shift;
        for (int64_t r = remainder_of(-at, a->up); r < a->phases; r += a->up) { /* up or down is 1 */
            const int64_t distance = (a->down * r + at) / a->up;
            step = any ? common_divisor(step, distance > first ? distance - first : first - distance) : 0;
            first = any ? cj_least(first, distance) : distance;
            last = any ? cj_most(last, distance) : distance;
            any = true;
        }
    }
    p->dilation[d] = cj_most(1, step);
    p->kernel[d] = (last - first) / p->dilation[d] + 1;
    p->stride[d] = a->phases / a->up * a->down;
    p->pad_begin[d] = -first;
}

/* Gives the axis the lead that leaves the fewest taps; of equals, the least. */
static void choose_lead(cj_axis *axis, const cj_problem *joined, int d) {
    cj_axis a = *axis;
    cj_problem seen = *joined;
    int64_t least = 0;
    for (a.lead = 0; a.lead < (a.active == a.phases ? a.up : 1); ++a.lead, ++a.shift) { /* transposed: down is 1 */
        see_axis(&a, &seen, d);
        if (a.lead == 0 || seen.kernel[d] < least) {
            least = seen.kernel[d];
            *axis = a;
        }
    }
}

/* The view with phases for `fold` times the outputs along each axis. */
static cj_view view_with(const cj_problem *joined, const int64_t fold[CJ_DIMS]) {
    cj_view v = {.layer = *joined};
    bool plain = true;
    for (int d = 0; d < CJ_DIMS; ++d) {
        v.axes[d] = axis_of(joined, d, fold[d]);
        choose_lead(&v.axes[d], joined, d);
        see_axis(&v.axes[d], &v.layer, d);
        plain = plain && v.axes[d].phases == 1;
    }
    v.grid = v.layer;
    const int64_t eight =
        cj_most(1, CJ_ROWS / v.axes[CJ_X].active); /* channels, or phases along z and y, of an eight */
    const int64_t others = joined->group_out * v.axes[CJ_Z].active * v.axes[CJ_Y].active;
    v.grid.group_out = plain ? joined->group_out : cj_divide_up(others, eight) * CJ_ROWS;
    for (int d = 0; d < CJ_DIMS; ++d) {
        v.grid.out_size[d] = cj_view_positions(&v, d, joined->out_size[d]);
    }
    return v;
}

/* Multiply-adds for a position of the grid, rows of products that are not outputs included, per output. */
static double work_of(const cj_view *v) {
    double work = (double)cj_round_up(v->grid.group_out, FOLD_ROWS);
    for (int d = 0; d < CJ_DIMS; ++d) {
        work *= (double)v->grid.kernel[d] / (double)v->axes[d].phases;
    }
    return work;
}

cj_view cj_view_of(const cj_problem *problem) {
    cj_problem p = *problem;
    int64_t fold[CJ_DIMS] = {1, 1, 1};
    if (takes_whole_images(&p)) {
        const int64_t taps = p.kernel[CJ_Z] * p.kernel[CJ_Y] * p.kernel[CJ_X];
        make_images_positions(&p);
        cj_view images = view_with(&p, fold);
        images.image_taps = taps;
        return images;
    }
    join_axes(&p);
    cj_view best = view_with(&p, fold);
    const int64_t rows = best.grid.group_out; /* channels along x last: their outputs interleave */
    const double enough = 0.9 * work_of(&best);
    for (fold[CJ_X] = 1; fold[CJ_X] <= MOST_FOLD; fold[CJ_X] *= 2) {
        for (fold[CJ_Z] = 1; fold[CJ_Z] <= MOST_FOLD; fold[CJ_Z] *= 2) {
            for (fold[CJ_Y] = 1; fold[CJ_Y] <= MOST_FOLD; fold[CJ_Y] *= 2) {
                const int64_t all = fold[CJ_Z] * fold[CJ_Y] * fold[CJ_X];
                const cj_view v = all > 1 && rows * all <= FOLD_ROWS ? view_with(&p, fold) : best;
                bool fits = v.axes[CJ_X].active <= CJ_ROWS;
                for (int d = 0; d < CJ_DIMS; ++d) {
                    fits =
                        fits && (fold[d] == 1 || (p.dynamic ? d >= CJ_DIMS - p.desc.rank : fold[d] <= p.out_size[d]));
                }
                if (fits && work_of(&v) < enough && work_of(&v) < work_of(&best)) {
                    best = v;
                }
            }
        }
    }
    return best;
}

int64_t cj_view_positions(const cj_view *view, int axis, int64_t size) {
    const cj_axis *const a = &view->axes[axis];
    int64_t first = 0; /* phase that taps reach */
    while (axis == CJ_Z && !view->layer.dynamic && !cj_axis_reaches(a, first)) {
        ++first;
    }
    return cj_most(first > 0, cj_divide_up(size + a->lead - first, a->phases));
}
