/* onnx_tensor.h - files and tensors of ONNX; inside the reader only. */
#ifndef ONNX_TENSOR_H
#define ONNX_TENSOR_H

#include "onnx.pb-c.h"
#include "onnx_reader.h"

/* Always false, so that a check can `return onnx_fail(...)`. */
bool onnx_fail(char reason[ONNX_REASON_MAX], const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Decodes a whole file as one message of the given kind; NULL with the reason. */
ProtobufCMessage *onnx_decode_file(const char *path, const ProtobufCMessageDescriptor *kind,
                                   char reason[ONNX_REASON_MAX]);

/* False for a type that convjit has not. */
bool onnx_type_from_proto(int32_t type, convjit_type *out);

/* Multiplies the sizes; 0 if one is not known, false if one is negative or the product passes 2^48 elements. */
bool onnx_count_elements(onnx_tensor *tensor);

/* A tensor whose data points into the message, or is its own. False with the reason. */
bool onnx_tensor_from_proto(const Onnx__TensorProto *proto, onnx_tensor *out, char reason[ONNX_REASON_MAX]);

#endif
