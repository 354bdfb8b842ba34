#include "onnx_reader.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnx_layer.h"

/* Always false, so that a check can `return fail(...)`. */
__attribute__((format(printf, 2, 3))) static bool fail(char reason[ONNX_REASON_MAX], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(reason, ONNX_REASON_MAX, format, args);
    va_end(args);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------- files
 */

static bool read_file(const char *path, uint8_t **bytes, size_t *size, char reason[ONNX_REASON_MAX]) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return fail(reason, "cannot open %s: %s", path, strerror(errno));
    }
    bool read = false;
    long length = -1;
    *bytes = NULL;
    if (fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        fail(reason, "cannot read %s: %s", path, strerror(errno));
    } else if ((*bytes = malloc((size_t)length + 1)) == NULL) {
        fail(reason, "cannot read %s: no memory for %ld bytes", path, length);
    } else if (fread(*bytes, 1, (size_t)length, file) != (size_t)length) {
        fail(reason, "cannot read %s: it ends early", path);
    } else {
        *size = (size_t)length;
        read = true;
    }
    fclose(file);
    if (!read) {
        free(*bytes);
    }
    return read;
}

/* Decodes a whole file as one message of the given kind; NULL with the reason. */
static ProtobufCMessage *decode_file(const char *path, const ProtobufCMessageDescriptor *kind,
                                     char reason[ONNX_REASON_MAX]) {
    uint8_t *bytes = NULL;
    size_t size = 0;
    if (!read_file(path, &bytes, &size, reason)) {
        return NULL;
    }
    ProtobufCMessage *message = protobuf_c_message_unpack(kind, NULL, size, bytes);
    free(bytes);
    if (message == NULL) {
        fail(reason, "%s is no %s of ONNX, or damaged", path, kind->short_name);
    }
    return message;
}

/* ----------------------------------------------------------------------------------------------------------- tensors
 */

static bool type_from_onnx(int32_t type, convjit_type *out) {
    switch (type) {
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT:
        *out = CONVJIT_F32;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT16:
        *out = CONVJIT_F16;
        return true;
    case ONNX__TENSOR_PROTO__DATA_TYPE__BFLOAT16:
        *out = CONVJIT_BF16;
        return true;
    default:
        return false;
    }
}

/* Multiplies the sizes; 0 if one is not known, false if one is negative or the product passes 2^48 elements. */
static bool count_elements(onnx_tensor *tensor) {
    tensor->count = 1;
    for (int i = 0; i < tensor->rank; ++i) {
        if (tensor->dims[i] < -1 || (tensor->dims[i] > 0 && tensor->count > (INT64_C(1) << 48) / tensor->dims[i])) {
            return false;
        }
        tensor->count *= tensor->dims[i] == -1 ? 0 : tensor->dims[i];
    }
    return true;
}

/* 16-bit elements are stored one in an int32 each where they are not raw. */
static bool narrow(const Onnx__TensorProto *proto, onnx_tensor *out) {
    uint16_t *narrowed = malloc(proto->n_int32_data * sizeof *narrowed + 1);
    if (narrowed == NULL) {
        return false;
    }
    for (size_t i = 0; i < proto->n_int32_data; ++i) {
        narrowed[i] = (uint16_t)proto->int32_data[i];
    }
    out->data = out->owned = narrowed;
    return true;
}

/* Finds the elements: raw, or in the list of their type. Their number must be the shape's. */
static bool find_elements(const Onnx__TensorProto *proto, onnx_tensor *out, char reason[ONNX_REASON_MAX]) {
    if (proto->has_data_location && proto->data_location == ONNX__TENSOR_PROTO__DATA_LOCATION__EXTERNAL) {
        return true; /* only the shape is of use here */
    }
    const size_t bytes = out->type == CONVJIT_F32 ? 4 : 2;
    size_t found;
    if (proto->has_raw_data) {
        out->data = proto->raw_data.data; /* little-endian by the format, as every machine convjit runs on */
        found = proto->raw_data.len % bytes == 0 ? proto->raw_data.len / bytes : SIZE_MAX;
    } else if (out->type == CONVJIT_F32) {
        out->data = proto->float_data;
        found = proto->n_float_data;
    } else {
        if (!narrow(proto, out)) {
            return fail(reason, "no memory for tensor %s", out->name);
        }
        found = proto->n_int32_data;
    }
    if (found != (size_t)out->count) {
        return fail(reason, "tensor %s has not the %lld elements of its shape", out->name, (long long)out->count);
    }
    return true;
}

static bool tensor_from_onnx(const Onnx__TensorProto *proto, onnx_tensor *out, char reason[ONNX_REASON_MAX]) {
    *out = (onnx_tensor){.name = proto->name != NULL ? proto->name : "", .rank = -1};
    if (!type_from_onnx(proto->data_type, &out->type)) {
        return fail(reason, "tensor %s has ONNX type %d, must be float, float16 or bfloat16", out->name,
                    (int)proto->data_type);
    }
    if (proto->n_dims > ONNX_RANK_MAX) {
        return fail(reason, "tensor %s has rank %zu, must be at most %d", out->name, proto->n_dims, ONNX_RANK_MAX);
    }
    out->rank = (int32_t)proto->n_dims;
    for (int i = 0; i < out->rank; ++i) {
        out->dims[i] = proto->dims[i];
        if (out->dims[i] < 0) {
            return fail(reason, "tensor %s has a negative size", out->name);
        }
    }
    if (!count_elements(out)) {
        return fail(reason, "tensor %s has more than 2^48 elements", out->name);
    }
    return find_elements(proto, out, reason);
}

bool onnx_tensor_load(const char *path, onnx_tensor *out, char reason[ONNX_REASON_MAX]) {
    ProtobufCMessage *message = decode_file(path, &onnx__tensor_proto__descriptor, reason);
    if (message == NULL) {
        return false;
    }
    bool loaded = tensor_from_onnx((const Onnx__TensorProto *)message, out, reason);
    const size_t size = (size_t)out->count * (out->type == CONVJIT_F32 ? 4 : 2);
    if (loaded && out->owned == NULL && size > 0 && out->data != NULL) {
        void *copy = malloc(size); /* the message goes away */
        loaded = copy != NULL || fail(reason, "no memory for %s", path);
        if (copy != NULL) {
            out->data = out->owned = memcpy(copy, out->data, size);
        }
    }
    out->name = "";
    protobuf_c_message_free_unpacked(message, NULL);
    if (!loaded) {
        onnx_tensor_free(out);
    }
    return loaded;
}

void onnx_tensor_free(onnx_tensor *tensor) {
    free(tensor->owned);
    tensor->owned = NULL;
    tensor->data = NULL;
}

/* ------------------------------------------------------------------------------------------------------------- graph
 */

/* What is known of one value that is no initialiser. */
typedef struct value {
    onnx_tensor tensor; /* rank -1: unknown, or of a type that convjit has not */
    int32_t type;       /* ONNX's number; 0 if unknown */
} value;

/* State of a load. */
typedef struct loader {
    const Onnx__GraphProto *graph;
    onnx_model *model;
    value *values; /* inputs, value_info, outputs, then the outputs of layers as they are computed */
    size_t value_count;
    bool *fused; /* nodes */
} loader;

static value value_from_onnx(const Onnx__ValueInfoProto *info) {
    value out = {.tensor = {.name = info->name != NULL ? info->name : "", .rank = -1}};
    if (info->type == NULL || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        return out;
    }
    const Onnx__TypeProto__Tensor *type = info->type->tensor_type;
    out.type = type->elem_type;
    if (!type_from_onnx(out.type, &out.tensor.type) || type->shape == NULL || type->shape->n_dim > ONNX_RANK_MAX) {
        return out;
    }
    out.tensor.rank = (int32_t)type->shape->n_dim;
    for (int i = 0; i < out.tensor.rank; ++i) {
        const Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[i];
        const bool known =
            dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && dim->dim_value > 0;
        out.tensor.dims[i] = known ? dim->dim_value : -1; /* exporters write 0 for "not known" too */
    }
    if (!count_elements(&out.tensor)) {
        out.tensor.rank = -1;
    }
    return out;
}

static bool is_initialiser(const Onnx__GraphProto *graph, const char *name) {
    for (size_t i = 0; i < graph->n_initializer; ++i) {
        if (graph->initializer[i]->name != NULL && strcmp(graph->initializer[i]->name, name) == 0) {
            return true;
        }
    }
    return false;
}

const onnx_tensor *onnx_model_weight(const onnx_model *model, const char *name) {
    for (size_t i = 0; i < model->weight_count; ++i) {
        if (model->weights[i].name != NULL && strcmp(model->weights[i].name, name) == 0) {
            return &model->weights[i];
        }
    }
    return NULL;
}

/* Input `index` of a node: its name, or NULL where it is left out. */
static const char *input_name(const Onnx__NodeProto *node, size_t index) {
    const bool given = index < node->n_input && node->input[index] != NULL && node->input[index][0] != '\0';
    return given ? node->input[index] : NULL;
}

/* What is known of a named value; false with the layer refused where it has a type that convjit has not. */
static bool describe(const loader *state, const char *name, onnx_tensor *out, onnx_layer *layer) {
    *out = (onnx_tensor){.name = name, .rank = -1};
    const onnx_tensor *weight = onnx_model_weight(state->model, name);
    if (weight != NULL) {
        *out = *weight;
        return true;
    }
    for (size_t i = state->value_count; i-- > 0;) { /* the latest first: computed shapes are the better ones */
        const value *candidate = &state->values[i];
        if (strcmp(candidate->tensor.name, name) == 0) {
            convjit_type type;
            if (candidate->type != 0 && !type_from_onnx(candidate->type, &type)) {
                return fail(layer->refused, "%s has ONNX type %d, must be float, float16 or bfloat16", name,
                            (int)candidate->type);
            }
            *out = candidate->tensor;
            return true;
        }
    }
    return !is_initialiser(state->graph, name) || fail(layer->refused, "%s has a type or rank convjit has not", name);
}

/* The only node that reads `name`; graph->n_node if there is none or more than one, or if the graph returns it. */
static size_t only_reader(const Onnx__GraphProto *graph, const char *name) {
    size_t reader = graph->n_node;
    for (size_t i = 0; i < graph->n_output; ++i) {
        if (graph->output[i]->name != NULL && strcmp(graph->output[i]->name, name) == 0) {
            return graph->n_node;
        }
    }
    for (size_t i = 0; i < graph->n_node; ++i) {
        for (size_t j = 0; j < graph->node[i]->n_input; ++j) {
            if (graph->node[i]->input[j] != NULL && strcmp(graph->node[i]->input[j], name) == 0) {
                if (reader != graph->n_node) {
                    return graph->n_node;
                }
                reader = i;
            }
        }
    }
    return reader;
}

static void fuse_activation(loader *state, onnx_layer *layer) {
    const size_t next = only_reader(state->graph, layer->y);
    if (next == state->graph->n_node) {
        return;
    }
    const Onnx__NodeProto *node = state->graph->node[next];
    const char *low = input_name(node, 1), *high = input_name(node, 2);
    const onnx_tensor unknown = {.rank = -1};
    const onnx_tensor *low_bound = low != NULL ? onnx_model_weight(state->model, low) : NULL;
    const onnx_tensor *high_bound = high != NULL ? onnx_model_weight(state->model, high) : NULL;
    low_bound = low != NULL && low_bound == NULL ? &unknown : low_bound;
    high_bound = high != NULL && high_bound == NULL ? &unknown : high_bound;
    if (node->n_output == 1 && onnx_layer_fuse(node, low_bound, high_bound, layer)) {
        layer->y = node->output[0];
        state->fused[next] = true;
    }
}

/* Notes the shape of a layer's output, so that the next layer knows its input. */
static void note_output(loader *state, const onnx_layer *layer) {
    const convjit_desc *desc = &layer->desc;
    value out = {.tensor = {.name = layer->y, .type = desc->data_type, .rank = desc->rank + 2}};
    int64_t size[3] = {-1, -1, -1};
    if (desc->in_size[0] > 0 && convjit_output_size(desc, NULL, size) != CONVJIT_SUCCESS) {
        return;
    }
    out.tensor.dims[0] = layer->batch;
    out.tensor.dims[1] = desc->out_channels;
    memcpy(&out.tensor.dims[2], size, (size_t)desc->rank * sizeof *size);
    state->values[state->value_count++] = out;
}

static void make_layer(loader *state, const Onnx__NodeProto *node, onnx_layer *layer) {
    const char *x = input_name(node, 0), *w = input_name(node, 1);
    const bool complete = x != NULL && w != NULL && node->n_output == 1 && node->output[0] != NULL;
    layer->y = complete ? node->output[0] : "";
    layer->name = node->name != NULL && node->name[0] != '\0' ? node->name : layer->y;
    if (!complete) {
        fail(layer->refused, "the node lacks an input or output");
        return;
    }
    layer->x = x;
    layer->w = w;
    layer->bias = input_name(node, 2);
    onnx_tensor x_shape, w_shape, bias_shape = {.rank = -1};
    if (!describe(state, x, &x_shape, layer) || !describe(state, w, &w_shape, layer) ||
        (layer->bias != NULL && !describe(state, layer->bias, &bias_shape, layer))) {
        return;
    }
    onnx_layer_make(node, &x_shape, &w_shape, layer->bias != NULL ? &bias_shape : NULL, layer);
    if (layer->refused[0] == '\0') {
        fuse_activation(state, layer);
        note_output(state, layer);
    }
}

static void find_weights(loader *state) {
    char ignored[ONNX_REASON_MAX];
    for (size_t i = 0; i < state->graph->n_initializer; ++i) {
        onnx_tensor tensor = {0};
        if (tensor_from_onnx(state->graph->initializer[i], &tensor, ignored)) {
            state->model->weights[state->model->weight_count++] = tensor;
        } else {
            onnx_tensor_free(&tensor);
        }
    }
}

static void find_values(loader *state) {
    const Onnx__GraphProto *graph = state->graph;
    for (size_t i = 0; i < graph->n_value_info; ++i) {
        state->values[state->value_count++] = value_from_onnx(graph->value_info[i]);
    }
    for (size_t i = 0; i < graph->n_output; ++i) {
        state->values[state->value_count++] = value_from_onnx(graph->output[i]);
    }
    for (size_t i = 0; i < graph->n_input; ++i) {
        const value input = value_from_onnx(graph->input[i]);
        state->values[state->value_count++] = input;
        if (!is_initialiser(graph, input.tensor.name)) { /* files of old versions list those too */
            state->model->inputs[state->model->input_count++] = input.tensor.name;
        }
    }
}

static void find_layers(loader *state) {
    for (size_t i = 0; i < state->graph->n_node; ++i) {
        const Onnx__NodeProto *node = state->graph->node[i];
        if (onnx_is_convolution(node)) {
            make_layer(state, node, &state->model->layers[state->model->layer_count++]);
        } else if (!state->fused[i] && state->model->other == NULL) {
            state->model->other = node->op_type != NULL ? node->op_type : "";
        }
    }
}

bool onnx_model_load(const char *path, onnx_model *out, char reason[ONNX_REASON_MAX]) {
    *out = (onnx_model){0};
    out->message = decode_file(path, &onnx__model_proto__descriptor, reason);
    if (out->message == NULL) {
        return false;
    }
    const Onnx__GraphProto *graph = ((const Onnx__ModelProto *)out->message)->graph;
    if (graph == NULL) {
        onnx_model_free(out);
        return fail(reason, "%s holds no graph", path);
    }
    loader state = {.graph = graph, .model = out};
    out->layers = calloc(graph->n_node + 1, sizeof *out->layers);
    out->weights = calloc(graph->n_initializer + 1, sizeof *out->weights);
    out->inputs = calloc(graph->n_input + 1, sizeof *out->inputs);
    state.values =
        calloc(graph->n_value_info + graph->n_output + graph->n_input + graph->n_node + 1, sizeof *state.values);
    state.fused = calloc(graph->n_node + 1, sizeof *state.fused);
    const bool memory = out->layers && out->weights && out->inputs && state.values && state.fused;
    if (memory) {
        find_weights(&state);
        find_values(&state);
        find_layers(&state);
    } else {
        onnx_model_free(out);
        fail(reason, "no memory for %s", path);
    }
    free(state.values);
    free(state.fused);
    return memory;
}

void onnx_model_free(onnx_model *model) {
    for (size_t i = 0; model->weights != NULL && i < model->weight_count; ++i) {
        onnx_tensor_free(&model->weights[i]);
    }
    free(model->layers);
    free(model->weights);
    free(model->inputs);
    if (model->message != NULL) {
        protobuf_c_message_free_unpacked(model->message, NULL);
    }
    *model = (onnx_model){0};
}
