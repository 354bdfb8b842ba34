/* onnx_absent.c - in place of the reader, in a build without what it needs: reads no model, and says why. */
#include <stdio.h>

#include "onnx_reader.h"

bool onnx_model_load(const char *path, onnx_model *out, char reason[ONNX_REASON_MAX]) {
    *out = (onnx_model){0};
    (void)snprintf(
        reason, ONNX_REASON_MAX,
        "%.60s cannot be read: convjit was built without libonnx-dev, protobuf-c-compiler, libprotobuf-c-dev", path);
    return false;
}

void onnx_model_free(onnx_model *model) {
    *model = (onnx_model){0};
}
