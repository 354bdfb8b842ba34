/* same_desc.h - do two descriptors mean the same? Ignored fields and the sign of a zero do not count, NaN equals NaN.
 */
#ifndef SAME_DESC_H
#define SAME_DESC_H

#include <math.h>
#include <stdbool.h>

#include "convjit.h"

static inline bool same_float(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static inline bool same_desc(const convjit_desc *a, const convjit_desc *b) {
    bool same = a->struct_size == b->struct_size && a->operation == b->operation && a->rank == b->rank &&
                a->in_channels == b->in_channels && a->out_channels == b->out_channels && a->groups == b->groups &&
                a->batch_hint == b->batch_hint && a->data_type == b->data_type && a->weight_type == b->weight_type &&
                a->bias_type == b->bias_type && a->layout == b->layout && a->weight_layout == b->weight_layout &&
                a->math == b->math && a->activation == b->activation && same_float(a->alpha, b->alpha) &&
                same_float(a->beta, b->beta);
    for (int i = 0; same && i < a->rank; ++i) {
        same = a->in_size[i] == b->in_size[i] && a->kernel[i] == b->kernel[i] && a->stride[i] == b->stride[i] &&
               a->dilation[i] == b->dilation[i] && a->pad_begin[i] == b->pad_begin[i] &&
               a->pad_end[i] == b->pad_end[i] && a->output_padding[i] == b->output_padding[i];
    }
    const bool clamp = a->activation == CONVJIT_CLAMP;
    if (clamp || a->activation == CONVJIT_LEAKY_RELU) {
        same = same && same_float(a->activation_a, b->activation_a);
    }
    return same && (!clamp || same_float(a->activation_b, b->activation_b));
}

#endif
