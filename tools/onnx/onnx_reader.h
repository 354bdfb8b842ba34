/* onnx_reader.h - the convolutions of an ONNX model file, as convjit layers.
 *
 * Reads Conv and ConvTranspose nodes with all their attributes, and an activation that directly follows one. Any other
 * node is stepped over: this is no runtime. Not part of the library. */
#ifndef ONNX_READER_H
#define ONNX_READER_H

#include <stdbool.h>

#include "convjit.h"

enum {
    ONNX_RANK_MAX = 5, /* batch, channels, three spatial axes */
    ONNX_REASON_MAX = 200
};

/* A tensor, or what the model says of one. */
typedef struct onnx_tensor {
    const char *name; /* "" in a file of its own */
    convjit_type type;
    int32_t rank;                /* -1: nothing is known of the shape */
    int64_t dims[ONNX_RANK_MAX]; /* -1: not known before run time */
    int64_t count;               /* elements; 0 if any size is not known */
    const void *data;            /* dense; NULL where only the shape is known (or the data is in another file) */
    void *owned;                 /* what onnx_tensor_free frees */
} onnx_tensor;

/* One Conv or ConvTranspose node. */
typedef struct onnx_layer {
    const char *name;              /* of the node, else of its output */
    char refused[ONNX_REASON_MAX]; /* why this is no convjit layer, with value and rule; "" if it is one */
    convjit_desc desc;             /* in_size 0 where the model does not fix it */
    int64_t batch;                 /* -1: not in the model */
    const char *x, *w, *bias, *y;  /* names of the values; bias may be NULL; y is behind the activation, if any */
} onnx_layer;

/* A model. Strings and tensors live as long as it does. */
typedef struct onnx_model {
    onnx_layer *layers; /* in the order of the file, refused ones among them */
    size_t layer_count;
    onnx_tensor *weights; /* the initialisers of a type and rank that convjit has */
    size_t weight_count;
    const char **inputs; /* of the graph, in order, without initialisers */
    size_t input_count;
    const char *other;  /* operator of the first node that is neither a layer nor fused into one; NULL if none */
    size_t other_count; /* such nodes */
    void *message;      /* the decoded file, which all the above points into */
} onnx_model;

/* Reads a model file (.onnx). False with a reason for a file that cannot be read or is no ONNX model. */
bool onnx_model_load(const char *path, onnx_model *out, char reason[ONNX_REASON_MAX]);
void onnx_model_free(onnx_model *model);

/* The initialiser of this name; NULL if there is none. */
const onnx_tensor *onnx_model_weight(const onnx_model *model, const char *name);

/* Reads a file of one tensor (.pb, as the ONNX conformance data has). */
bool onnx_tensor_load(const char *path, onnx_tensor *out, char reason[ONNX_REASON_MAX]);
void onnx_tensor_free(onnx_tensor *tensor);

#endif
