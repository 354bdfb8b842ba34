/* layers.h - the layers a command works on, from its words and from files. */
#ifndef LAYERS_H
#define LAYERS_H

#include "arguments.h"
#include "convjit.h"

typedef struct named_layer {
    char name[64]; /* from "name: line" or a model, else "1", "2", ... by position */
    convjit_desc desc;
    int64_t batch; /* 1 where the line gives none */
} named_layer;

/* A convolution of a model that convjit cannot serve. */
typedef struct refused_layer {
    char name[64];
    char reason[256];
} refused_layer;

typedef struct layer_list {
    named_layer *layers;
    size_t count, capacity;
    refused_layer *refused;
    size_t refused_count, refused_capacity;
    size_t other_nodes; /* of models, that are no convolutions */
} layer_list;

/* Reads given->lines, then given->file, and applies given->math and given->hint. A word with a space in it is a layer
 * line; another one is a file: an ONNX model (*.onnx), or layer lines, one a line (# starts a comment; empty lines are
 * skipped), of which given->suite takes those below "# suite NAME". False, with a message naming place and word, where
 * a line is bad, a file cannot be read, or there is no layer at all. */
bool layers_read(const arguments *given, layer_list *out);
void layers_free(layer_list *list);

/* For readers of files. NULL or false, after a message, when memory is used up. */
named_layer *layers_append(layer_list *list);
bool layers_add_refused(layer_list *list, const char *name, const char *reason);

/* Removes layers that are the same but for name and batch; the first stays. Returns how many went. */
size_t layers_unite(layer_list *list);

/* One line "NAME: REASON" each. */
void layers_print_refused(const layer_list *list, FILE *out);

#endif
