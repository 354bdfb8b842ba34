/* onnx_layer.h - one ONNX node as a convjit descriptor; inside the reader only. */
#ifndef ONNX_LAYER_H
#define ONNX_LAYER_H

#include "onnx.pb-c.h"
#include "onnx_reader.h"

/* Is this a node that onnx_layer_make takes? */
bool onnx_is_convolution(const Onnx__NodeProto *node);

/* Fills desc and batch, or `refused`. x, w and bias are what the model says of the node's inputs; bias may be NULL. */
void onnx_layer_make(const Onnx__NodeProto *node, const onnx_tensor *x, const onnx_tensor *w, const onnx_tensor *bias,
                     onnx_layer *layer);

/* Fuses an activation node behind the layer; false if convjit has no such activation. low and high are the second and
 * third input (the bounds of Clip since opset 11), NULL where there is none. */
bool onnx_layer_fuse(const Onnx__NodeProto *node, const onnx_tensor *low, const onnx_tensor *high, onnx_layer *layer);

#endif
