/* layers.h - the layers a command works on, from its words and from a file. */
#ifndef LAYERS_H
#define LAYERS_H

#include "arguments.h"
#include "convjit.h"

typedef struct named_layer {
    char name[64]; /* from "name: line", else "1", "2", ... by position */
    convjit_desc desc;
    int64_t batch; /* 1 where the line gives none */
} named_layer;

typedef struct layer_list {
    named_layer *layers;
    size_t count, capacity;
} layer_list;

/* Reads given->lines, then given->file (one layer a line; # starts a comment; empty lines are skipped), and applies
 * given->math. False, with a message naming place and word, where a line is bad, a file cannot be read, or there is no
 * layer at all. */
bool layers_read(const arguments *given, layer_list *out);
void layers_free(layer_list *list);

#endif
