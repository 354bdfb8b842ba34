/* view.h - a layer as family `tensor` computes it: a convolution on a grid, whose channels are channels and phases.
 *
 * Along an axis a position q of the grid is `phases` neighbouring outputs, of which phase r is output
 * phases * q + r - lead: `lead` phases of the first position lie before the axis. Phase r reads, with each tap t for
 * which that is a whole number, input phases * down / up * q + (down * r + spacing * t - shift) / up A convolution has
 * up = 1, down = stride, shift = padding. A transposed one has up = stride, down = 1, its taps in reverse order and
 * shift = dilation * (kernel - 1) - padding + lead. So a layer is a convolution on the grid, of stride phases * down /
 * up: its output channels are pairs of a channel and a phase that taps reach, and a tap that only other phases have is
 * 0. More phases than `up` make many channels of few, for a few more products with zeros. The lead is what makes the
 * taps fewest: with kernel 4, stride 2 and padding 1 two instead of three, for both phases read the same inputs then.
 */
#ifndef CJ_VIEW_H
#define CJ_VIEW_H

#include "desc.h"

typedef struct cj_axis {
    int64_t phases, active; /* active: those that taps reach */
    int64_t lead;           /* less than phases; 0 where taps do not reach all of them */
    int64_t taps, spacing, shift, up, down;
} cj_axis;

/* Rows of a product come in eights, each of a whole number of channels' phases along x; the last rows of an eight that
 * is not full are no outputs. */
enum { CJ_ROWS = 8 };

typedef struct cj_view {
    cj_problem layer; /* the layer, axes that memory does not tell apart joined; kernel, stride, dilation and padding
                         those of the grid's convolution */
    cj_problem grid;  /* the same with the grid as out_size, and group_out rows of products */
    cj_axis axes[CJ_DIMS];
    /* Of a layer whose kernel is its whole input, each image is a position along x: the sizes of layer and grid are
     * open, and an input channel and tap is an input channel, of which `taps` are neighbours in memory. Else 0. */
    int64_t image_taps;
} cj_view;

/* NULL, or why there is no view: what is not refused has no number above 2^30. */
const char *cj_view_refuses(const cj_problem *problem);

cj_view cj_view_of(const cj_problem *problem);

/* Does any tap reach the phase? */
bool cj_axis_reaches(const cj_axis *axis, int64_t phase);

/* Positions of a grid along an axis of `size` outputs. Along z the last one has an output that taps reach, unless sizes
 * are open: it sees to what is behind. */
int64_t cj_view_positions(const cj_view *view, int axis, int64_t size);

#endif
