#include "models.h"

#include <string.h>

#include "onnx_reader.h"

bool models_is_model(const char *path) {
    static const char suffix[] = ".onnx";
    const size_t length = strlen(path);
    return length >= sizeof suffix && strcmp(path + length - (sizeof suffix - 1), suffix) == 0;
}

static bool add_layer(const onnx_layer *layer, layer_list *out) {
    if (layer->refused[0] != '\0') {
        return layers_add_refused(out, layer->name, layer->refused);
    }
    named_layer *added = layers_append(out);
    if (added != NULL) {
        (void)snprintf(added->name, sizeof added->name, "%s", layer->name);
        added->desc = layer->desc;
        added->batch = layer->batch < 0 ? 1 : layer->batch;
    }
    return added != NULL;
}

bool models_read(const char *path, layer_list *out) {
    char reason[ONNX_REASON_MAX];
    onnx_model model;
    if (!onnx_model_load(path, &model, reason)) {
        (void)usage_error("%s", reason);
        return false;
    }
    bool fine = true;
    for (size_t i = 0; fine && i < model.layer_count; i++) {
        fine = add_layer(&model.layers[i], out);
    }
    out->other_nodes += model.other_count;
    onnx_model_free(&model);
    return fine;
}
