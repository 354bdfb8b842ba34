/* placed.h - a tensor in a buffer of its own on the device: dense or a channel slice, aligned or not, with poison all
 * around it. */
#ifndef PLACED_H
#define PLACED_H

#include "convjit.h"
#include "memory.h"

typedef struct placed {
    convjit_type type;
    bool last; /* channels last */
    int64_t batch, channels, pixels;
    int64_t batch_stride, channel_stride, pixel_stride;
    int64_t first, total; /* elements before the tensor, and of the whole buffer */
    bool strided;         /* strides are given to the call, else left 0 */
    void *image;          /* the buffer as it should be, on the host */
    void *buffer;         /* on the device */
} placed;

/* How a tensor lies in its buffer. */
typedef struct placement {
    bool slice; /* channels of others around it, and unused elements behind each channel or image */
    bool shift; /* one element off the alignment of the buffer */
    bool guard; /* poison before and behind; else the buffer ends where the tensor ends */
    bool even;  /* a slice's neighbours take 16 elements, so that its alignment stays; dense: strides are given */
} placement;

/* Allocates and lays out; false where memory is used up. The image is all poison. */
bool placed_make(memory *of, convjit_type type, bool last, const int64_t shape[3], placement how, placed *out);
void placed_free(memory *of, placed *tensor);

/* Dense elements into the image, image to the device. */
void placed_fill(placed *tensor, const void *dense);
bool placed_send(memory *of, const placed *tensor);

/* Reads the buffer back, takes the dense elements out and compares all others with the image: -1 if they are untouched,
 * else the index of the first that is not; -2 where the device reports an error. */
int64_t placed_receive(memory *of, const placed *tensor, void *dense);

/* The tensor argument of a forward call, from image `image` of the batch on. */
convjit_tensor placed_argument(const placed *tensor, int64_t image);

#endif
