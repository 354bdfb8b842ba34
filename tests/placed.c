#include "placed.h"

#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* Elements of poison before and behind a guarded tensor: 256 bytes of the smallest type, so alignment stays. */
enum { GUARD = 128 };

bool placed_make(memory *of, convjit_type type, bool last, const int64_t shape[3], placement how, placed *out) {
    const int64_t before = how.slice ? (how.even ? 16 : 2) : 0, behind = how.slice ? (how.even ? 16 : 1) : 0;
    const int64_t batch = shape[0], channels = shape[1], pixels = shape[2];
    *out = (placed){.type = type, .last = last, .batch = batch, .channels = channels, .pixels = pixels};
    out->strided = how.slice || how.even;
    if (last) {
        out->channel_stride = 1;
        out->pixel_stride = before + channels + behind;
        out->batch_stride = out->pixel_stride * (pixels + behind);
        out->first = before;
    } else {
        out->pixel_stride = 1;
        out->channel_stride = pixels + behind;
        out->batch_stride = out->channel_stride * (before + channels + behind);
        out->first = before * out->channel_stride;
    }
    const int64_t guard = how.guard ? GUARD : 0;
    out->first += guard + how.shift;
    out->total = out->first + batch * out->batch_stride + guard;
    if (!how.slice && !how.guard) {
        out->total = out->first + batch * channels * pixels;
    }
    const size_t bytes = (size_t)(out->total * reference_type_bytes(type));
    out->image = malloc(bytes + 1);
    out->buffer = memory_allocate(of, bytes);
    if (out->image == NULL || out->buffer == NULL) {
        placed_free(of, out);
        return false;
    }
    reference_poison(out->image, type, out->total);
    return true;
}

void placed_free(memory *of, placed *tensor) {
    free(tensor->image);
    if (tensor->buffer != NULL) {
        memory_release(of, tensor->buffer);
    }
    *tensor = (placed){0};
}

/* Place in the buffer of a dense index. */
static int64_t place_of(const placed *tensor, int64_t index) {
    const int64_t inner = tensor->last ? tensor->channels : tensor->pixels;
    const int64_t outer = tensor->last ? tensor->pixels : tensor->channels;
    const int64_t inner_stride = tensor->last ? tensor->channel_stride : tensor->pixel_stride;
    const int64_t outer_stride = tensor->last ? tensor->pixel_stride : tensor->channel_stride;
    return tensor->first + index / (inner * outer) * tensor->batch_stride + index / inner % outer * outer_stride +
           index % inner * inner_stride;
}

static int64_t count_of(const placed *tensor) {
    return tensor->batch * tensor->channels * tensor->pixels;
}

void placed_fill(placed *tensor, const void *dense) {
    const size_t bytes = (size_t)reference_type_bytes(tensor->type);
    for (int64_t i = 0; i < count_of(tensor); ++i) {
        memcpy((char *)tensor->image + (size_t)place_of(tensor, i) * bytes, (const char *)dense + (size_t)i * bytes,
               bytes);
    }
}

bool placed_send(memory *of, const placed *tensor) {
    return memory_write(of, tensor->buffer, tensor->image,
                        (size_t)(tensor->total * reference_type_bytes(tensor->type)));
}

int64_t placed_receive(memory *of, const placed *tensor, void *dense) {
    const size_t bytes = (size_t)reference_type_bytes(tensor->type);
    char *now = malloc((size_t)tensor->total * bytes + 1);
    if (now == NULL || !memory_read(of, tensor->buffer, now, (size_t)tensor->total * bytes)) {
        free(now);
        return -2;
    }
    for (int64_t i = 0; i < count_of(tensor); ++i) {
        const size_t offset = (size_t)place_of(tensor, i) * bytes;
        memcpy((char *)dense + (size_t)i * bytes, now + offset, bytes);
        memcpy(now + offset, (const char *)tensor->image + offset, bytes); /* leaves only the surroundings to compare */
    }
    int64_t touched = -1;
    for (int64_t i = 0; i < tensor->total && touched < 0; ++i) {
        const size_t offset = (size_t)i * bytes;
        touched = memcmp(now + offset, (const char *)tensor->image + offset, bytes) != 0 ? i : -1;
    }
    free(now);
    return touched;
}

convjit_tensor placed_argument(const placed *tensor, int64_t image) {
    const int64_t offset = tensor->first + image * tensor->batch_stride;
    convjit_tensor out = {.data = (char *)tensor->buffer + offset * reference_type_bytes(tensor->type)};
    if (tensor->strided) {
        out.batch_stride = tensor->batch_stride;
        out.channel_stride = tensor->last ? 0 : tensor->channel_stride;
        out.pixel_stride = tensor->last ? tensor->pixel_stride : 0;
    }
    return out;
}
