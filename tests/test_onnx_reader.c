/* test_onnx_reader.c - the ONNX reader on models that are written here, field by field: what the conformance cases do
 * not have, and what no file should have. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_reader.h"
#include "testing.h"

/* ------------------------------------------------------------------------------------- protobuf, as far as needed here
 */

typedef struct message {
    unsigned char bytes[4096];
    size_t size;
} message;

static void put_varint(message *to, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        to->bytes[to->size++] = (unsigned char)(value | 0x80);
    }
    to->bytes[to->size++] = (unsigned char)value;
}

static void put_int(message *to, unsigned field, int64_t value) {
    put_varint(to, field << 3);
    put_varint(to, (uint64_t)value);
}

static void put_float(message *to, unsigned field, float value) {
    put_varint(to, field << 3 | 5);
    memcpy(to->bytes + to->size, &value, sizeof value);
    to->size += sizeof value;
}

static void put_bytes(message *to, unsigned field, const void *bytes, size_t size) {
    put_varint(to, field << 3 | 2);
    put_varint(to, size);
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static void put_text(message *to, unsigned field, const char *text) {
    put_bytes(to, field, text, strlen(text));
}

static void put_message(message *to, unsigned field, const message *from) {
    put_bytes(to, field, from->bytes, from->size);
}

/* ---------------------------------------------------------------------------- ONNX's messages; numbers from onnx.proto
 */

enum { FLOAT = 1, DOUBLE = 11 };

/* A graph input; a size of -1 has a name instead, as exporters write an open batch. */
static void put_input(message *graph, const char *name, int type, int rank, const int64_t *dims) {
    message shape = {0}, tensor = {0}, kind = {0}, input = {0};
    for (int i = 0; i < rank; ++i) {
        message dim = {0};
        if (dims[i] < 0) {
            put_text(&dim, 2, "open");
        } else {
            put_int(&dim, 1, dims[i]);
        }
        put_message(&shape, 1, &dim);
    }
    put_int(&tensor, 1, type);
    put_message(&tensor, 2, &shape);
    put_message(&kind, 1, &tensor);
    put_text(&input, 1, name);
    put_message(&input, 2, &kind);
    put_message(graph, 11, &input);
}

/* An initialiser whose elements count up from 1. */
static void put_weights(message *graph, const char *name, int rank, const int64_t *dims) {
    message tensor = {0};
    float values[512];
    size_t count = 1;
    for (int i = 0; i < rank; ++i) {
        put_int(&tensor, 1, dims[i]);
        count *= (size_t)dims[i];
    }
    for (size_t i = 0; i < count; ++i) {
        values[i] = (float)(i + 1);
    }
    put_int(&tensor, 2, FLOAT);
    put_text(&tensor, 8, name);
    put_bytes(&tensor, 9, values, count * sizeof *values);
    put_message(graph, 5, &tensor);
}

static void put_scalar(message *graph, const char *name, float value) {
    message tensor = {0};
    put_int(&tensor, 2, FLOAT);
    put_text(&tensor, 8, name);
    put_bytes(&tensor, 9, &value, sizeof value);
    put_message(graph, 5, &tensor);
}

static void put_ints(message *node, const char *name, int count, const int64_t *values) {
    message attribute = {0};
    put_text(&attribute, 1, name);
    for (int i = 0; i < count; ++i) {
        put_int(&attribute, 8, values[i]);
    }
    put_message(node, 5, &attribute);
}

static void put_number(message *node, const char *name, int64_t value) {
    message attribute = {0};
    put_text(&attribute, 1, name);
    put_int(&attribute, 3, value);
    put_message(node, 5, &attribute);
}

static void put_string(message *node, const char *name, const char *value) {
    message attribute = {0};
    put_text(&attribute, 1, name);
    put_text(&attribute, 4, value);
    put_message(node, 5, &attribute);
}

/* Inputs and the output are names, up to NULL. */
static message make_node(const char *operator_type, const char *output, const char *const *inputs) {
    message node = {0};
    for (; *inputs != NULL; ++inputs) {
        put_text(&node, 1, *inputs);
    }
    put_text(&node, 2, output);
    put_text(&node, 4, operator_type);
    return node;
}

#define NODE(operator_type, output, ...) make_node(operator_type, output, (const char *const[]){__VA_ARGS__, NULL})
#define INTS(...)                                                                  \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                \
    }

static void write_file(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    cr_assert_eq(fclose(file), 0);
}

static bool load_bytes(const void *bytes, size_t size, onnx_model *out, char reason[ONNX_REASON_MAX]) {
    char folder[TESTING_PATH_MAX], path[TESTING_PATH_MAX + 16];
    cr_assert(testing_folder_make(folder));
    snprintf(path, sizeof path, "%s/model.onnx", folder);
    write_file(path, bytes, size);
    const bool loaded = onnx_model_load(path, out, reason);
    testing_folder_remove(folder);
    return loaded;
}

static onnx_model load(const message *graph) {
    message file = {0};
    onnx_model model;
    char reason[ONNX_REASON_MAX] = "";
    put_message(&file, 7, graph);
    cr_assert(load_bytes(file.bytes, file.size, &model, reason), "%s", reason);
    return model;
}

/* A graph of one node over x [n 3 7 9] and w [4 3 3 3], or for ConvTranspose [3 4 3 3]. */
static onnx_model load_node(const message *node) {
    message graph = {0};
    const bool transposed = memmem(node->bytes, node->size, "ConvTranspose", 13) != NULL;
    put_input(&graph, "x", FLOAT, INTS(-1, 3, 7, 9));
    put_weights(&graph, "w", 4, transposed ? (int64_t[]){3, 4, 3, 3} : (int64_t[]){4, 3, 3, 3});
    put_message(&graph, 1, node);
    return load(&graph);
}

static void expect_line(const onnx_layer *layer, const char *want) {
    char line[CONVJIT_LAYER_LINE_MAX];
    cr_assert_str_empty(layer->refused, "%s", layer->refused);
    convjit_layer_line_format(&layer->desc, layer->batch, line, sizeof line);
    cr_expect_str_eq(line, want, "%s, want %s", line, want);
}

/* ------------------------------------------------------------------------------------------------------------ padding
 */

static void expect_padded(const char *operator_type, const char *rule, int64_t stride, int64_t dilation,
                          const int64_t *output_shape, const char *want) {
    message node = NODE(operator_type, "y", "x", "w");
    put_string(&node, "auto_pad", rule);
    put_ints(&node, "strides", INTS(stride, stride));
    put_ints(&node, "dilations", INTS(dilation, dilation));
    if (output_shape != NULL) {
        put_ints(&node, "output_shape", 2, output_shape);
    }
    onnx_model model = load_node(&node);
    cr_assert_eq(model.layer_count, 1);
    expect_line(&model.layers[0], want);
    onnx_model_free(&model);
}

Test(onnx_reader, auto_pad_of_a_convolution_gives_odd_padding_to_the_end_it_names) {
    expect_padded("Conv", "NOTSET", 2, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s2 p0 f32 nchw fp32");
    expect_padded("Conv", "VALID", 2, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s2 p0 f32 nchw fp32");
    expect_padded("Conv", "SAME_UPPER", 1, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s1 p1 f32 nchw fp32");
    /* stride 4: outputs ceil(7/4) = 2 and ceil(9/4) = 3; totals (2-1)*4 + 3 - 7 = 0 and (3-1)*4 + 3 - 9 = 2 */
    expect_padded("Conv", "SAME_UPPER", 4, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s4 p0x1 f32 nchw fp32");
    /* stride 3, dilation 2: totals (3-1)*3 + 5 - 7 = 4 and (3-1)*3 + 5 - 9 = 2 */
    expect_padded("Conv", "SAME_LOWER", 3, 2, NULL, "conv2d c3 k4 in7x9 f3x3 s3 p2x1 d2 f32 nchw fp32");
    /* stride 5: outputs 2 and 2; totals 5 + 3 - 7 = 1 and 5 + 3 - 9 = -1, which is none */
    expect_padded("Conv", "SAME_UPPER", 5, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s5 p0:1x0 f32 nchw fp32");
    expect_padded("Conv", "SAME_LOWER", 5, 1, NULL, "conv2d c3 k4 in7x9 f3x3 s5 p1x0:0 f32 nchw fp32");
}

Test(onnx_reader, auto_pad_and_output_shape_of_a_transposed_convolution_follow_the_operator) {
    /* SAME: output = input * stride; total = 3 - 2 = 1 for both axes */
    expect_padded("ConvTranspose", "SAME_UPPER", 2, 1, NULL, "convt2d c3 k4 in7x9 f3x3 s2 p0:1 f32 nchw fp32");
    expect_padded("ConvTranspose", "SAME_LOWER", 2, 1, NULL, "convt2d c3 k4 in7x9 f3x3 s2 p1:0 f32 nchw fp32");
    /* stride 4 is more than the kernel: one output too few, added at the end */
    expect_padded("ConvTranspose", "SAME_UPPER", 4, 1, NULL, "convt2d c3 k4 in7x9 f3x3 s4 p0 op1 f32 nchw fp32");
    /* unpadded 15 x 19; 12 x 20 wanted: total 3, the larger half first as the rule is not SAME_UPPER, and 1 too few */
    expect_padded("ConvTranspose", "NOTSET", 2, 1, (int64_t[]){12, 20},
                  "convt2d c3 k4 in7x9 f3x3 s2 p2x0:1x0 op0x1 f32 nchw fp32");
    expect_padded("ConvTranspose", "SAME_UPPER", 2, 1, (int64_t[]){12, 20},
                  "convt2d c3 k4 in7x9 f3x3 s2 p1x0:2x0 op0x1 f32 nchw fp32");
}

Test(onnx_reader, an_open_input_size_leaves_the_layer_dynamic_and_is_refused_where_padding_needs_it) {
    for (int64_t stride = 1; stride < 3; ++stride) {
        message graph = {0}, node = NODE("Conv", "y", "x", "w");
        put_input(&graph, "x", FLOAT, INTS(2, 3, -1, 9));
        put_weights(&graph, "w", INTS(4, 3, 3, 3));
        put_string(&node, "auto_pad", "SAME_UPPER");
        put_ints(&node, "strides", INTS(stride, stride));
        put_message(&graph, 1, &node);
        onnx_model model = load(&graph);
        cr_assert_eq(model.layer_count, 1);
        if (stride == 1) {
            expect_line(&model.layers[0], "conv2d n2 c3 k4 f3x3 s1 p1 f32 nchw fp32");
        } else {
            cr_expect_not_null(strstr(model.layers[0].refused, "needs the input size"), "%s", model.layers[0].refused);
        }
        onnx_model_free(&model);
    }
}

/* -------------------------------------------------------------------------------------------------------------- graph
 */

Test(onnx_reader, layers_pass_their_shape_on_and_take_the_activation_behind_them) {
    message graph = {0}, first = NODE("Conv", "a", "x", "w", "bias"), second = NODE("Conv", "c", "b", "v");
    const message relu = NODE("Relu", "b", "a"), clip = NODE("Clip", "y", "c", "low", "high");
    put_input(&graph, "x", FLOAT, INTS(5, 2, 6, 7));
    put_input(&graph, "w", FLOAT, INTS(4, 2, 3, 3)); /* as old versions list initialisers */
    put_weights(&graph, "w", INTS(4, 2, 3, 3));
    put_weights(&graph, "bias", INTS(4));
    put_weights(&graph, "v", INTS(8, 2, 1, 1));
    put_scalar(&graph, "low", -1.5F);
    put_scalar(&graph, "high", 6);
    put_ints(&first, "pads", INTS(0, 1, 2, 0));
    put_number(&second, "group", 2);
    put_message(&graph, 1, &first);
    put_message(&graph, 1, &relu);
    put_message(&graph, 1, &second);
    put_message(&graph, 1, &clip);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 2);
    expect_line(&model.layers[0], "conv2d n5 c2 k4 in6x7 f3x3 s1 p0x1:2x0 f32 nchw fp32 relu");
    expect_line(&model.layers[1], "conv2d n5 c4 k8 g2 in6x6 f1x1 s1 p0 f32 nchw fp32 clamp=-1.5:6");
    cr_expect_str_eq(model.layers[0].y, "b");
    cr_expect_str_eq(model.layers[0].bias, "bias");
    cr_expect_str_eq(model.layers[1].y, "y");
    cr_expect_null(model.layers[1].bias);
    cr_expect_null(model.other);
    cr_expect_eq(model.input_count, 1);
    const onnx_tensor *w = onnx_model_weight(&model, "w");
    cr_assert_not_null(w);
    cr_expect_eq(w->count, 72);
    cr_expect_eq(((const float *)w->data)[71], 72);
    onnx_model_free(&model);
}

Test(onnx_reader, a_slope_that_is_left_out_is_the_operators_own) {
    for (int given = 0; given < 2; ++given) {
        message graph = {0}, slope = {0}, leaky = NODE("LeakyRelu", "b", "a");
        const message conv = NODE("Conv", "a", "x", "w");
        put_text(&slope, 1, "alpha");
        put_float(&slope, 2, 0.25F);
        if (given) {
            put_message(&leaky, 5, &slope);
        }
        put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
        put_weights(&graph, "w", INTS(4, 3, 3, 3));
        put_message(&graph, 1, &conv);
        put_message(&graph, 1, &leaky);
        onnx_model model = load(&graph);
        cr_assert_eq(model.layer_count, 1);
        cr_expect_eq(model.layers[0].desc.activation, CONVJIT_LEAKY_RELU);
        cr_expect_eq(model.layers[0].desc.activation_a, given ? 0.25F : 0.01F);
        onnx_model_free(&model);
    }
}

Test(onnx_reader, an_activation_is_not_taken_from_a_value_that_others_read) {
    message graph = {0};
    const message conv = NODE("Conv", "a", "x", "w"), relu = NODE("Relu", "b", "a"), add = NODE("Add", "y", "a", "b");
    put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
    put_weights(&graph, "w", INTS(4, 3, 3, 3));
    put_message(&graph, 1, &conv);
    put_message(&graph, 1, &relu);
    put_message(&graph, 1, &add);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 1);
    expect_line(&model.layers[0], "conv2d n1 c3 k4 in7x9 f3x3 s1 p0 f32 nchw fp32");
    cr_expect_str_eq(model.layers[0].y, "a");
    cr_assert_not_null(model.other);
    cr_expect_str_eq(model.other, "Relu");
    onnx_model_free(&model);
}

/* ------------------------------------------------------------------------------------- what exporters do besides
 */

/* A node Constant that gives `weights` (made by put_weights, whose field it takes off). */
static message make_constant(const char *output, int rank, const int64_t *dims) {
    message weights = {0}, attribute = {0}, node = {0};
    put_weights(&weights, "", rank, dims);
    const size_t head = weights.bytes[1] >= 0x80 ? 3 : 2; /* of the field: its number, then its length */
    put_text(&attribute, 1, "value");
    put_bytes(&attribute, 5, weights.bytes + head, weights.size - head);
    put_text(&node, 2, output);
    put_text(&node, 4, "Constant");
    put_message(&node, 5, &attribute);
    return node;
}

Test(onnx_reader, weights_may_come_from_a_constant) {
    message graph = {0};
    const message conv = NODE("Conv", "y", "x", "w"), w = make_constant("w", INTS(4, 3, 3, 3));
    put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
    put_message(&graph, 1, &w);
    put_message(&graph, 1, &conv);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 1);
    expect_line(&model.layers[0], "conv2d n1 c3 k4 in7x9 f3x3 s1 p0 f32 nchw fp32");
    cr_expect_null(model.other, "a constant is no operation: %s", model.other);
    onnx_model_free(&model);
}

static void put_branch(message *node, const char *name, const message *graph) {
    message attribute = {0};
    put_text(&attribute, 1, name);
    put_message(&attribute, 6, graph);
    put_message(node, 5, &attribute);
}

/* The branches use names of the graph around them, and both have a w of their own. */
Test(onnx_reader, layers_inside_the_branches_of_an_if_are_found) {
    message graph = {0}, branches[2] = {{{0}, 0}}, choice = NODE("If", "y", "c");
    const message conv = NODE("Conv", "a", "x", "v"), inner = NODE("Conv", "z", "a", "w"),
                  relu = NODE("Relu", "z2", "z");
    put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
    put_weights(&graph, "v", INTS(4, 3, 3, 3));
    for (int i = 0; i < 2; ++i) {
        put_weights(&branches[i], "w", INTS(2 + i, 4, 1, 1));
        put_message(&branches[i], 1, &inner);
    }
    put_message(&branches[1], 1, &relu);
    put_branch(&choice, "then_branch", &branches[0]);
    put_branch(&choice, "else_branch", &branches[1]);
    put_message(&graph, 1, &conv);
    put_message(&graph, 1, &choice);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 3);
    expect_line(&model.layers[0], "conv2d n1 c3 k4 in7x9 f3x3 s1 p0 f32 nchw fp32");
    expect_line(&model.layers[1], "conv2d n1 c4 k2 in5x7 f1x1 s1 p0 f32 nchw fp32");
    expect_line(&model.layers[2], "conv2d n1 c4 k3 in5x7 f1x1 s1 p0 f32 nchw fp32 relu");
    cr_expect_eq(model.other_count, 1, "the If: %zu", model.other_count);
    onnx_model_free(&model);
}

/* An activation behind a layer is not taken into it if a branch reads the value in front of it too. */
Test(onnx_reader, an_activation_is_not_taken_from_a_value_that_a_branch_reads) {
    message graph = {0}, branch = {0}, choice = NODE("If", "y", "c");
    const message conv = NODE("Conv", "a", "x", "w"), relu = NODE("Relu", "b", "a"), inner = NODE("Neg", "z", "a");
    put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
    put_weights(&graph, "w", INTS(4, 3, 3, 3));
    put_message(&branch, 1, &inner);
    put_branch(&choice, "then_branch", &branch);
    put_message(&graph, 1, &conv);
    put_message(&graph, 1, &relu);
    put_message(&graph, 1, &choice);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 1);
    cr_expect_eq(model.layers[0].desc.activation, CONVJIT_NONE);
    cr_expect_eq(model.other_count, 3, "Relu, If, Neg: %zu", model.other_count);
    onnx_model_free(&model);
}

/* ---------------------------------------------------------------------------------------------------------- bad input
 */

static void expect_refused(const message *node, const char *reason) {
    onnx_model model = load_node(node);
    cr_assert_eq(model.layer_count, 1);
    cr_expect_not_null(strstr(model.layers[0].refused, reason), "'%s', want '%s'", model.layers[0].refused, reason);
    onnx_model_free(&model);
}

Test(onnx_reader, a_bad_attribute_is_refused_with_its_value_and_rule) {
    static const struct {
        const char *name;
        int64_t values[4];
        int count;
        const char *reason;
    } bad[] = {
        {"strides", {1, 0}, 2, "strides is 0, must be 1 to"},
        {"strides", {1, 1, 1}, 3, "strides has 3 values, must have 2"},
        {"dilations", {1, INT64_MAX}, 2, "dilations is 9223372036854775807, must be 1 to"},
        {"pads", {0, -1, 0, 0}, 4, "pads is -1, must be 0 to"},
        {"pads", {0, 0}, 2, "pads has 2 values, must have 4"},
        {"kernel_shape", {3, 2}, 2, "kernel_shape is not the kernel size of the weights"},
        {"dilations", {9, 9}, 2, "kernel[0] 3 with dilation 9"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        message node = NODE("Conv", "y", "x", "w");
        put_ints(&node, bad[i].name, bad[i].count, bad[i].values);
        expect_refused(&node, bad[i].reason);
    }
    message group = NODE("Conv", "y", "x", "w"), rule = group, missing = NODE("Conv", "y", "x");
    put_number(&group, "group", -2);
    put_string(&rule, "auto_pad", "SAME");
    expect_refused(&group, "group is -2, must be 1 to");
    expect_refused(&rule, "auto_pad is none of");
    expect_refused(&missing, "lacks an input");
}

Test(onnx_reader, a_type_that_convjit_has_not_is_refused_by_its_number) {
    message graph = {0};
    const message node = NODE("Conv", "y", "x", "w");
    put_input(&graph, "x", DOUBLE, INTS(1, 3, 7, 9));
    put_weights(&graph, "w", INTS(4, 3, 3, 3));
    put_message(&graph, 1, &node);
    onnx_model model = load(&graph);
    cr_assert_eq(model.layer_count, 1);
    cr_expect_str_eq(model.layers[0].refused, "x has ONNX type 11, must be float, float16 or bfloat16");
    onnx_model_free(&model);
}

Test(onnx_reader, a_damaged_file_never_crashes_and_what_is_refused_has_a_reason) {
    message graph = {0}, file = {0};
    message node = NODE("ConvTranspose", "y", "x", "w");
    put_ints(&node, "output_shape", INTS(12, 20));
    put_input(&graph, "x", FLOAT, INTS(1, 3, 7, 9));
    put_weights(&graph, "w", INTS(3, 4, 1, 1));
    put_message(&graph, 1, &node);
    put_message(&file, 7, &graph);
    for (size_t damaged = 0; damaged < 2 * file.size; ++damaged) {
        message copy = file;
        onnx_model model;
        char reason[ONNX_REASON_MAX] = "";
        if (damaged < file.size) {
            copy.size = damaged;
        } else {
            copy.bytes[damaged - file.size] ^= (unsigned char)(1 + damaged % 255);
        }
        if (load_bytes(copy.bytes, copy.size, &model, reason)) {
            onnx_model_free(&model);
        } else {
            cr_expect_str_not_empty(reason, "damage %zu", damaged);
        }
    }
}

Test(onnx_reader, a_file_that_is_not_there_is_refused_by_its_name) {
    onnx_model model;
    onnx_tensor tensor;
    char reason[ONNX_REASON_MAX];
    cr_expect_not(onnx_model_load("/nowhere/model.onnx", &model, reason));
    cr_expect_not_null(strstr(reason, "/nowhere/model.onnx"));
    cr_expect_not(onnx_tensor_load("/nowhere/input.pb", &tensor, reason));
    cr_expect_not_null(strstr(reason, "/nowhere/input.pb"));
}
