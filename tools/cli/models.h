/* models.h - the convolutions of ONNX models as layers of a command. */
#ifndef MODELS_H
#define MODELS_H

#include "layers.h"

bool models_is_model(const char *path); /* by its name */

/* Adds every convolution of the model, those that cannot be served with their reason. False after a message. */
bool models_read(const char *path, layer_list *out);

#endif
