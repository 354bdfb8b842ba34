/* onnx_reader.c - the convolutions of a model's graphs, with what is known of their inputs. */
#include "onnx_reader.h"

#include <stdlib.h>
#include <string.h>

#include "onnx_layer.h"
#include "onnx_tensor.h"

/* What is known of one value that is no initialiser. */
typedef struct value {
    onnx_tensor tensor; /* rank -1: unknown, or of a type that convjit has not */
    int32_t type;       /* ONNX's number; 0 if unknown */
} value;

/* State of the load of one graph. The graphs of an If, a Loop or a Scan are loaded within that of their node, and see
 * its names behind their own. */
typedef struct loader {
    const Onnx__GraphProto *graph;
    onnx_model *model;
    const struct loader *outer; /* NULL: the model's own graph */
    size_t first_weight;        /* of this graph among the model's, */
    size_t end_weight;
    value *values; /* inputs, value_info, outputs, then the outputs of layers as they are computed */
    size_t value_count;
    bool *fused; /* nodes */
} loader;

enum { DEPTH_MAX = 16 }; /* of graphs in graphs */

static value value_from_onnx(const Onnx__ValueInfoProto *info) {
    value out = {.tensor = {.name = info->name != NULL ? info->name : "", .rank = -1}};
    if (info->type == NULL || info->type->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE) {
        return out;
    }
    const Onnx__TypeProto__Tensor *type = info->type->tensor_type;
    out.type = type->elem_type;
    if (!onnx_type_from_proto(out.type, &out.tensor.type) || type->shape == NULL ||
        type->shape->n_dim > ONNX_RANK_MAX) {
        return out;
    }
    out.tensor.rank = (int32_t)type->shape->n_dim;
    for (int i = 0; i < out.tensor.rank; ++i) {
        const Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[i];
        const bool known =
            dim->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && dim->dim_value > 0;
        out.tensor.dims[i] = known ? dim->dim_value : -1; /* exporters write 0 for "not known" too */
    }
    if (!onnx_count_elements(&out.tensor)) {
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

/* The weights of this name in the graph or those around it. */
static const onnx_tensor *find_weight(const loader *state, const char *name) {
    for (const loader *at = state; at != NULL; at = at->outer) {
        for (size_t i = at->first_weight; i < at->end_weight; ++i) {
            if (strcmp(at->model->weights[i].name, name) == 0) {
                return &at->model->weights[i];
            }
        }
    }
    return NULL;
}

static const value *find_value(const loader *state, const char *name) {
    for (const loader *at = state; at != NULL; at = at->outer) {
        for (size_t i = at->value_count; i-- > 0;) { /* the latest first: computed shapes are the better ones */
            if (strcmp(at->values[i].tensor.name, name) == 0) {
                return &at->values[i];
            }
        }
    }
    return NULL;
}

/* What is known of a named value; false with the layer refused where it has a type that convjit has not. */
static bool describe(const loader *state, const char *name, onnx_tensor *out, onnx_layer *layer) {
    *out = (onnx_tensor){.name = name, .rank = -1};
    const onnx_tensor *weight = find_weight(state, name);
    const value *known = weight == NULL ? find_value(state, name) : NULL;
    convjit_type type;
    if (weight != NULL) {
        *out = *weight;
        return true;
    }
    if (known == NULL) {
        return !is_initialiser(state->graph, name) ||
               onnx_fail(layer->refused, "%s has a type or rank convjit has not", name);
    }
    if (known->type != 0 && !onnx_type_from_proto(known->type, &type)) {
        return onnx_fail(layer->refused, "%s has ONNX type %d, must be float, float16 or bfloat16", name,
                         (int)known->type);
    }
    *out = known->tensor;
    return true;
}

/* How often a node reads `name`, the graphs inside it included. */
static size_t count_reads(const Onnx__NodeProto *node, const char *name, int depth) {
    size_t reads = 0;
    for (size_t i = 0; i < node->n_input; ++i) {
        reads += node->input[i] != NULL && strcmp(node->input[i], name) == 0;
    }
    for (size_t i = 0; depth < DEPTH_MAX && i < node->n_attribute; ++i) {
        const Onnx__GraphProto *graph = node->attribute[i]->g;
        for (size_t k = 0; graph != NULL && k < graph->n_node; ++k) {
            reads += 2 * count_reads(graph->node[k], name, depth + 1); /* no activation behind the layer */
        }
    }
    return reads;
}

/* The only node that reads `name`; graph->n_node if there is none or more than one, or if the graph returns it. */
static size_t only_reader(const Onnx__GraphProto *graph, const char *name) {
    size_t reader = graph->n_node;
    size_t reads = 0;
    for (size_t i = 0; i < graph->n_output; ++i) {
        reads += graph->output[i]->name != NULL && strcmp(graph->output[i]->name, name) == 0 ? 2 : 0;
    }
    for (size_t i = 0; i < graph->n_node; ++i) {
        const size_t here = count_reads(graph->node[i], name, 0);
        reader = here > 0 ? i : reader;
        reads += here;
    }
    return reads == 1 ? reader : graph->n_node;
}

static void fuse_activation(loader *state, onnx_layer *layer) {
    const size_t next = only_reader(state->graph, layer->y);
    if (next == state->graph->n_node) {
        return;
    }
    const Onnx__NodeProto *node = state->graph->node[next];
    const char *low = input_name(node, 1), *high = input_name(node, 2);
    const onnx_tensor unknown = {.rank = -1};
    const onnx_tensor *low_bound = low != NULL ? find_weight(state, low) : NULL;
    const onnx_tensor *high_bound = high != NULL ? find_weight(state, high) : NULL;
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
        onnx_fail(layer->refused, "the node lacks an input or output");
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

static void add_weight(loader *state, const Onnx__TensorProto *proto, const char *name) {
    char ignored[ONNX_REASON_MAX];
    onnx_tensor tensor = {0};
    if (onnx_tensor_from_proto(proto, &tensor, ignored)) {
        tensor.name = name;
        state->model->weights[state->model->weight_count++] = tensor;
    } else {
        onnx_tensor_free(&tensor);
    }
}

/* The tensor of a node Constant; NULL for any other. Some exporters write all weights that way. */
static const Onnx__TensorProto *constant_of(const Onnx__NodeProto *node) {
    const bool constant = node->op_type != NULL && strcmp(node->op_type, "Constant") == 0 && node->n_output == 1;
    for (size_t i = 0; constant && i < node->n_attribute; ++i) {
        if (node->attribute[i]->t != NULL) {
            return node->attribute[i]->t;
        }
    }
    return NULL;
}

static void find_weights(loader *state) {
    state->first_weight = state->model->weight_count;
    for (size_t i = 0; i < state->graph->n_initializer; ++i) {
        const Onnx__TensorProto *proto = state->graph->initializer[i];
        add_weight(state, proto, proto->name != NULL ? proto->name : "");
    }
    for (size_t i = 0; i < state->graph->n_node; ++i) {
        const Onnx__TensorProto *proto = constant_of(state->graph->node[i]);
        if (proto != NULL) {
            add_weight(state, proto, state->graph->node[i]->output[0]);
        }
    }
    state->end_weight = state->model->weight_count;
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
        if (state->outer == NULL &&
            !is_initialiser(graph, input.tensor.name)) { /* files of old versions list those too */
            state->model->inputs[state->model->input_count++] = input.tensor.name;
        }
    }
}

static bool load_graph(const Onnx__GraphProto *graph, onnx_model *model, const loader *outer, int depth);

/* The graphs inside a node, such as the branches of an If. */
static bool load_inner(const loader *state, const Onnx__NodeProto *node, int depth) {
    bool memory = true;
    for (size_t i = 0; memory && depth < DEPTH_MAX && i < node->n_attribute; ++i) {
        if (node->attribute[i]->g != NULL) {
            memory = load_graph(node->attribute[i]->g, state->model, state, depth + 1);
        }
    }
    return memory;
}

static bool find_layers(loader *state, int depth) {
    onnx_model *model = state->model;
    bool memory = true;
    for (size_t i = 0; memory && i < state->graph->n_node; ++i) {
        const Onnx__NodeProto *node = state->graph->node[i];
        if (onnx_is_convolution(node)) {
            make_layer(state, node, &model->layers[model->layer_count++]);
        } else if (!state->fused[i] && constant_of(node) == NULL) {
            const char *operation = node->op_type != NULL ? node->op_type : "";
            model->other = model->other != NULL ? model->other : operation;
            model->other_count++;
            memory = load_inner(state, node, depth);
        }
    }
    return memory;
}

/* False when memory is used up. */
static bool load_graph(const Onnx__GraphProto *graph, onnx_model *model, const loader *outer, int depth) {
    loader state = {.graph = graph, .model = model, .outer = outer};
    state.values =
        calloc(graph->n_value_info + graph->n_output + graph->n_input + graph->n_node + 1, sizeof *state.values);
    state.fused = calloc(graph->n_node + 1, sizeof *state.fused);
    bool memory = state.values != NULL && state.fused != NULL;
    if (memory) {
        find_weights(&state);
        find_values(&state);
        memory = find_layers(&state, depth);
    }
    free(state.values);
    free(state.fused);
    return memory;
}

/* Nodes and initialisers of a graph and of those inside it: room for all layers and weights. */
static void count_parts(const Onnx__GraphProto *graph, size_t *nodes, size_t *initialisers, int depth) {
    *nodes += graph->n_node;
    *initialisers += graph->n_initializer;
    for (size_t i = 0; i < graph->n_node; ++i) {
        for (size_t k = 0; depth < DEPTH_MAX && k < graph->node[i]->n_attribute; ++k) {
            if (graph->node[i]->attribute[k]->g != NULL) {
                count_parts(graph->node[i]->attribute[k]->g, nodes, initialisers, depth + 1);
            }
        }
    }
}

bool onnx_model_load(const char *path, onnx_model *out, char reason[ONNX_REASON_MAX]) {
    size_t nodes = 0;
    size_t initialisers = 0;
    *out = (onnx_model){0};
    out->message = onnx_decode_file(path, &onnx__model_proto__descriptor, reason);
    if (out->message == NULL) {
        return false;
    }
    const Onnx__GraphProto *graph = ((const Onnx__ModelProto *)out->message)->graph;
    if (graph == NULL) {
        onnx_model_free(out);
        return onnx_fail(reason, "%s holds no graph", path);
    }
    count_parts(graph, &nodes, &initialisers, 0);
    out->layers = calloc(nodes + 1, sizeof *out->layers);
    out->weights = calloc(nodes + initialisers + 1, sizeof *out->weights);
    out->inputs = calloc(graph->n_input + 1, sizeof *out->inputs);
    if (out->layers == NULL || out->weights == NULL || out->inputs == NULL || !load_graph(graph, out, NULL, 0)) {
        onnx_model_free(out);
        return onnx_fail(reason, "no memory for %s", path);
    }
    return true;
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
