/* onnx_tensor.c - files and tensors. */
#include "onnx_tensor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool onnx_fail(char reason[ONNX_REASON_MAX], const char *format, ...) {
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
        return onnx_fail(reason, "cannot open %s: %s", path, strerror(errno));
    }
    bool read = false;
    long length = -1;
    *bytes = NULL;
    if (fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
        onnx_fail(reason, "cannot read %s: %s", path, strerror(errno));
    } else if ((*bytes = malloc((size_t)length + 1)) == NULL) {
        onnx_fail(reason, "cannot read %s: no memory for %ld bytes", path, length);
    } else if (fread(*bytes, 1, (size_t)length, file) != (size_t)length) {
        onnx_fail(reason, "cannot read %s: it ends early", path);
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

ProtobufCMessage *onnx_decode_file(const char *path, const ProtobufCMessageDescriptor *kind,
                                   char reason[ONNX_REASON_MAX]) {
    uint8_t *bytes = NULL;
    size_t size = 0;
    if (!read_file(path, &bytes, &size, reason)) {
        return NULL;
    }
    ProtobufCMessage *message = protobuf_c_message_unpack(kind, NULL, size, bytes);
    free(bytes);
    if (message == NULL) {
        onnx_fail(reason, "%s is no %s of ONNX, or damaged", path, kind->short_name);
    }
    return message;
}

/* ----------------------------------------------------------------------------------------------------------- tensors
 */

bool onnx_type_from_proto(int32_t type, convjit_type *out) {
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

bool onnx_count_elements(onnx_tensor *tensor) {
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
            return onnx_fail(reason, "no memory for tensor %s", out->name);
        }
        found = proto->n_int32_data;
    }
    if (found != (size_t)out->count) {
        return onnx_fail(reason, "tensor %s has not the %lld elements of its shape", out->name, (long long)out->count);
    }
    return true;
}

bool onnx_tensor_from_proto(const Onnx__TensorProto *proto, onnx_tensor *out, char reason[ONNX_REASON_MAX]) {
    *out = (onnx_tensor){.name = proto->name != NULL ? proto->name : "", .rank = -1};
    if (!onnx_type_from_proto(proto->data_type, &out->type)) {
        return onnx_fail(reason, "tensor %s has ONNX type %d, must be float, float16 or bfloat16", out->name,
                         (int)proto->data_type);
    }
    if (proto->n_dims > ONNX_RANK_MAX) {
        return onnx_fail(reason, "tensor %s has rank %zu, must be at most %d", out->name, proto->n_dims, ONNX_RANK_MAX);
    }
    out->rank = (int32_t)proto->n_dims;
    for (int i = 0; i < out->rank; ++i) {
        out->dims[i] = proto->dims[i];
        if (out->dims[i] < 0) {
            return onnx_fail(reason, "tensor %s has a negative size", out->name);
        }
    }
    if (!onnx_count_elements(out)) {
        return onnx_fail(reason, "tensor %s has more than 2^48 elements", out->name);
    }
    return find_elements(proto, out, reason);
}

bool onnx_tensor_load(const char *path, onnx_tensor *out, char reason[ONNX_REASON_MAX]) {
    ProtobufCMessage *message = onnx_decode_file(path, &onnx__tensor_proto__descriptor, reason);
    if (message == NULL) {
        return false;
    }
    bool loaded = onnx_tensor_from_proto((const Onnx__TensorProto *)message, out, reason);
    const size_t size = (size_t)out->count * (out->type == CONVJIT_F32 ? 4 : 2);
    if (loaded && out->owned == NULL && size > 0 && out->data != NULL) {
        void *copy = malloc(size); /* the message goes away */
        loaded = copy != NULL || onnx_fail(reason, "no memory for %s", path);
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
