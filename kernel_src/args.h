/* args.h - what a launch hands to a kernel: one struct for every family, shared by host code (C) and kernels (C++).
 * Sizes and strides are in elements; spatial arrays are always (z, y, x), with leading 1s for lower ranks. */
#ifndef CJ_ARGS_H
#define CJ_ARGS_H

/* One forward launch. Kernels read a size from here only where the layer left it dynamic; else it is stamped. */
typedef struct cj_forward_args {
    const void *x;
    const void *z; /* residual, or NULL */
    void *y;
    const void *packed; /* what cj_pack_args made */
    long long batch;
    long long in_size[3];
    long long out_size[3];
    long long x_batch_stride, x_channel_stride, x_pixel_stride; /* pixel stride 1 for channels first ... */
    long long y_batch_stride, y_channel_stride, y_pixel_stride; /* ... channel stride 1 for channels last */
    long long z_batch_stride, z_channel_stride, z_pixel_stride;
    long long tiles; /* work items of the launch; a block takes blockIdx.x, + gridDim.x, ... */
    int x_aligned;   /* x, and every row of it that a tile may start at, is 16-byte aligned */
    int y_aligned;   /* the same of y and z */
} cj_forward_args;

/* One packing launch: w and bias to the family's own order. */
typedef struct cj_pack_args {
    const void *w;
    const void *bias; /* or NULL: zero */
    void *packed;
    long long work; /* elements to write */
} cj_pack_args;

#endif
