#include "onnx_layer.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Sizes and attributes above this are refused, so that products of two fit int64. */
static const int64_t value_max = INT32_MAX;

/* Always false, so that a check can `return refuse(...)`. */
__attribute__((format(printf, 2, 3))) static bool refuse(onnx_layer *layer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(layer->refused, sizeof layer->refused, format, args);
    va_end(args);
    return false;
}

static const Onnx__AttributeProto *find(const Onnx__NodeProto *node, const char *name) {
    for (size_t i = 0; i < node->n_attribute; ++i) {
        const Onnx__AttributeProto *attribute = node->attribute[i];
        if (attribute->name != NULL && strcmp(attribute->name, name) == 0) {
            return attribute;
        }
    }
    return NULL;
}

static float find_float(const Onnx__NodeProto *node, const char *name, float otherwise) {
    const Onnx__AttributeProto *attribute = find(node, name);
    return attribute != NULL && attribute->has_f ? attribute->f : otherwise;
}

/* A list of `count` integers, each at least `least`; left as it is where the node has no such attribute. */
static bool read_list(const Onnx__NodeProto *node, const char *name, size_t count, int64_t least, int64_t *out,
                      onnx_layer *layer) {
    const Onnx__AttributeProto *attribute = find(node, name);
    if (attribute == NULL) {
        return true;
    }
    if (attribute->n_ints != count) {
        return refuse(layer, "%s has %zu values, must have %zu", name, attribute->n_ints, count);
    }
    for (size_t i = 0; i < count; ++i) {
        const int64_t value = attribute->ints[i];
        if (value < least || value > value_max) {
            return refuse(layer, "%s is %lld, must be %lld to 2^31-1", name, (long long)value, (long long)least);
        }
        out[i] = value;
    }
    return true;
}

typedef enum padding_rule { PADS_GIVEN, PADS_NONE, PADS_SAME_UPPER, PADS_SAME_LOWER } padding_rule;

static bool read_padding_rule(const Onnx__NodeProto *node, padding_rule *out, onnx_layer *layer) {
    static const char *const names[] = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
    const Onnx__AttributeProto *attribute = find(node, "auto_pad");
    *out = PADS_GIVEN;
    if (attribute == NULL || attribute->s.len == 0) {
        return true;
    }
    for (int i = 0; i < 4; ++i) {
        if (attribute->s.len == strlen(names[i]) && memcmp(attribute->s.data, names[i], attribute->s.len) == 0) {
            *out = (padding_rule)i;
            return true;
        }
    }
    return refuse(layer, "auto_pad is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER");
}

/* Halves a total padding; an odd one has its larger half at the end for SAME_UPPER, else at the beginning. */
static void split_padding(convjit_desc *desc, int axis, int64_t total, padding_rule rule) {
    const int64_t half = total / 2;
    desc->pad_begin[axis] = rule == PADS_SAME_UPPER ? half : total - half;
    desc->pad_end[axis] = total - desc->pad_begin[axis];
}

/* Conv with auto_pad SAME: as many outputs as ceil(input / stride). */
static bool pad_same(convjit_desc *desc, padding_rule rule, onnx_layer *layer) {
    for (int axis = 0; axis < desc->rank; ++axis) {
        const int64_t reach = desc->dilation[axis] * (desc->kernel[axis] - 1) + 1;
        const int64_t in = desc->in_size[axis], stride = desc->stride[axis];
        if (in == 0 && stride > 1) {
            return refuse(layer, "auto_pad SAME with stride %lld needs the input size, which the model leaves open",
                          (long long)stride);
        }
        const int64_t total = stride == 1 ? reach - 1 : ((in + stride - 1) / stride - 1) * stride + reach - in;
        split_padding(desc, axis, total > 0 ? total : 0, rule);
    }
    return true;
}

/* ConvTranspose with an output size that is given (output_shape) or follows from SAME (input * stride). What lies
 * between it and the unpadded size is padding; where the unpadded size is too small, output padding at the end. */
static bool pad_transposed(convjit_desc *desc, padding_rule rule, const int64_t *output_shape, onnx_layer *layer) {
    for (int axis = 0; axis < desc->rank; ++axis) {
        const int64_t reach = desc->dilation[axis] * (desc->kernel[axis] - 1) + 1;
        const int64_t in = desc->in_size[axis], stride = desc->stride[axis];
        int64_t total = reach + desc->output_padding[axis] - stride; /* SAME: the input size cancels */
        if (output_shape != NULL) {
            if (in == 0) {
                return refuse(layer, "output_shape needs the input size, which the model leaves open");
            }
            total += in * stride - output_shape[axis];
        }
        if (total < 0) {
            desc->output_padding[axis] -= total;
            total = 0;
        }
        split_padding(desc, axis, total, rule);
    }
    return true;
}

static bool read_padding(const Onnx__NodeProto *node, onnx_layer *layer) {
    convjit_desc *desc = &layer->desc;
    const size_t rank = (size_t)desc->rank;
    const bool transposed = desc->operation == CONVJIT_TRANSPOSED;
    padding_rule rule;
    int64_t pads[6] = {0}, output_shape[3] = {0};
    if (!read_padding_rule(node, &rule, layer) ||
        (transposed && (!read_list(node, "output_padding", rank, 0, desc->output_padding, layer) ||
                        !read_list(node, "output_shape", rank, 1, output_shape, layer)))) {
        return false;
    }
    if (transposed && output_shape[0] != 0) {
        return pad_transposed(desc, rule, output_shape, layer);
    }
    if (rule == PADS_SAME_UPPER || rule == PADS_SAME_LOWER) {
        return transposed ? pad_transposed(desc, rule, NULL, layer) : pad_same(desc, rule, layer);
    }
    if (rule == PADS_GIVEN && !read_list(node, "pads", 2 * rank, 0, pads, layer)) {
        return false;
    }
    memcpy(desc->pad_begin, pads, rank * sizeof *pads);
    memcpy(desc->pad_end, pads + rank, rank * sizeof *pads);
    return true;
}

/* Channels, kernel and types from the weights' shape; batch and input size from x's, as far as the model knows them. */
static bool read_shapes(const onnx_tensor *x, const onnx_tensor *w, const onnx_tensor *bias, onnx_layer *layer) {
    convjit_desc *desc = &layer->desc;
    if (w->rank < 3 || w->count == 0) {
        return refuse(layer, "the shape of the weights is not in the model, or not of rank 3 to 5");
    }
    if (x->rank >= 0 && x->rank != w->rank) {
        return refuse(layer, "x has rank %d and the weights %d, must be equal", (int)x->rank, (int)w->rank);
    }
    desc->rank = w->rank - 2;
    const bool transposed = desc->operation == CONVJIT_TRANSPOSED;
    const int64_t first = w->dims[0], second = w->dims[1] * desc->groups;
    desc->in_channels = transposed ? first : second;
    desc->out_channels = transposed ? second : first;
    desc->weight_type = w->type;
    desc->data_type = x->rank >= 0 ? x->type : w->type;
    desc->bias_type = bias != NULL ? bias->type : CONVJIT_F32;
    if (bias != NULL && bias->count > 0 && bias->count != desc->out_channels) {
        return refuse(layer, "the bias has %lld elements, the weights say %lld output channels", (long long)bias->count,
                      (long long)desc->out_channels);
    }
    bool fixed = x->rank >= 0;
    for (int axis = 0; axis < desc->rank; ++axis) {
        desc->kernel[axis] = w->dims[axis + 2];
        fixed = fixed && x->dims[axis + 2] > 0;
    }
    for (int axis = 0; axis < desc->rank && fixed; ++axis) {
        desc->in_size[axis] = x->dims[axis + 2];
    }
    if (x->rank >= 0) {
        layer->batch = x->dims[0];
        if (x->dims[1] > 0 && x->dims[1] != desc->in_channels) {
            return refuse(layer, "x has %lld channels, the weights say %lld", (long long)x->dims[1],
                          (long long)desc->in_channels);
        }
    }
    return true;
}

static bool small_enough(const onnx_tensor *tensor, const char *what, onnx_layer *layer) {
    for (int i = 0; i < tensor->rank; ++i) {
        if (tensor->dims[i] > value_max) {
            return refuse(layer, "a size of %s is %lld, must be at most 2^31-1", what, (long long)tensor->dims[i]);
        }
    }
    return true;
}

bool onnx_is_convolution(const Onnx__NodeProto *node) {
    const bool standard = node->domain == NULL || node->domain[0] == '\0' || strcmp(node->domain, "ai.onnx") == 0;
    return standard && node->op_type != NULL &&
           (strcmp(node->op_type, "Conv") == 0 || strcmp(node->op_type, "ConvTranspose") == 0);
}

void onnx_layer_make(const Onnx__NodeProto *node, const onnx_tensor *x, const onnx_tensor *w, const onnx_tensor *bias,
                     onnx_layer *layer) {
    layer->desc = (convjit_desc)CONVJIT_DESC_INIT;
    layer->batch = -1;
    convjit_desc *desc = &layer->desc;
    desc->operation = strcmp(node->op_type, "Conv") == 0 ? CONVJIT_CONVOLUTION : CONVJIT_TRANSPOSED;
    const Onnx__AttributeProto *group = find(node, "group");
    desc->groups = group != NULL && group->has_i ? group->i : 1;
    if (desc->groups < 1 || desc->groups > value_max) {
        refuse(layer, "group is %lld, must be 1 to 2^31-1", (long long)desc->groups);
        return;
    }
    int64_t kernel_shape[3];
    if (!small_enough(x, "x", layer) || !small_enough(w, "the weights", layer) || !read_shapes(x, w, bias, layer)) {
        return;
    }
    const size_t rank = (size_t)desc->rank;
    memcpy(kernel_shape, desc->kernel, sizeof kernel_shape);
    if (!read_list(node, "kernel_shape", rank, 1, kernel_shape, layer) ||
        !read_list(node, "strides", rank, 1, desc->stride, layer) ||
        !read_list(node, "dilations", rank, 1, desc->dilation, layer) || !read_padding(node, layer)) {
        return;
    }
    if (memcmp(kernel_shape, desc->kernel, rank * sizeof *kernel_shape) != 0) {
        refuse(layer, "kernel_shape is not the kernel size of the weights");
        return;
    }
    const convjit_status status = convjit_supported(desc, "cpu");
    if (status != CONVJIT_SUCCESS && status != CONVJIT_UNSUPPORTED) { /* what computes it is not the reader's matter */
        refuse(layer, "%s", convjit_last_error());
    }
}

/* A bound of Clip; `otherwise` where it is absent. False where it is there but not known before run time. */
static bool read_bound(const onnx_tensor *tensor, float otherwise, float *out) {
    *out = otherwise;
    if (tensor == NULL) {
        return true;
    }
    if (tensor->data == NULL || tensor->count != 1 || tensor->type != CONVJIT_F32) {
        return false;
    }
    memcpy(out, tensor->data, sizeof *out);
    return true;
}

bool onnx_layer_fuse(const Onnx__NodeProto *node, const onnx_tensor *low, const onnx_tensor *high, onnx_layer *layer) {
    static const struct {
        const char *name;
        convjit_activation activation;
    } table[] = {
        {"Relu", CONVJIT_RELU}, {"LeakyRelu", CONVJIT_LEAKY_RELU}, {"Sigmoid", CONVJIT_SIGMOID},
        {"Tanh", CONVJIT_TANH}, {"HardSwish", CONVJIT_HARDSWISH},  {"Clip", CONVJIT_CLAMP},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; ++i) {
        if (node->op_type == NULL || strcmp(node->op_type, table[i].name) != 0) {
            continue;
        }
        float a = 0, b = 0;
        if (table[i].activation == CONVJIT_LEAKY_RELU) {
            a = find_float(node, "alpha", 0.01F); /* the operator's default */
        } else if (table[i].activation == CONVJIT_CLAMP &&
                   (!read_bound(low, find_float(node, "min", -FLT_MAX), &a) ||
                    !read_bound(high, find_float(node, "max", FLT_MAX), &b) || !(a <= b))) {
            return false;
        }
        layer->desc.activation = table[i].activation;
        layer->desc.activation_a = a;
        layer->desc.activation_b = b;
        return true;
    }
    return false;
}
