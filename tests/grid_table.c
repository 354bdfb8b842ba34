/* grid_table.c - layers written down one by one. Reports of other libraries are named by their tracker; channels,
 * sizes and batches are cut to what the target cpu computes in well under a second, and everything else is kept. */
#include "grid_table.h"

#include <string.h>

typedef struct entry {
    const char *line;
    int64_t dynamic[3]; /* input size where the line leaves it open */
    grid_special special;
    grid_residual residual;
    bool slices, shifts;
    bool uniform; /* data of one sign, where the roundings of a long sum add up */
} entry;

static const entry entries[] = {
    /* pytorch 53178: wide dilated kernel */
    {.line = "conv2d n4 c2 k64 in16x8 f5x5 s1 p4 d2 f32"},
    /* pytorch 55381: stride larger than the kernel */
    {.line = "conv2d n1 c64 k32 in9x9 f1x1 s2 f32"},
    {.line = "conv2d n1 c5 k8 in17x14 f1x2 s3x4 f32"},
    {.line = "conv1d n2 c8 k4 in23 f1 s2 f32"},
    /* pytorch 40275: 3-D with a kernel along one axis only, channels a multiple of 8 and not */
    {.line = "conv3d n1 c16 k16 in5x7x13 f3x1x1 p1x0x0 f16"},
    {.line = "conv3d n1 c9 k8 in5x7x13 f3x1x1 p1x0x0 f16 nhwc"},
    /* modular 6712: a row kernel padded by its whole reach */
    {.line = "conv2d n1 c6 k5 in1x19 f1x4 p0x3 f32 nhwc", .slices = true},
    {.line = "conv2d n1 c6 k5 in3x19 f1x4 p0x3:0x0 f32 nhwc"},
    /* iree 16175: first layer of a network, odd size, channels last */
    {.line = "conv2d n1 c3 k32 in33x33 f3x3 s2 f32 nhwc"},
    {.line = "conv2d n1 c3 k32 in33x33 f3x3 s2 p0:1 f16 nhwc krsc"},
    /* ggml 993, 1323: batch of a 1-D layer, and 1-D depthwise */
    {.line = "conv1d n3 c7 k9 in31 f3 p1 f32 weights=f16"},
    {.line = "conv1d n3 c18 k18 g18 in31 f5 p2 f32 weights=f16"},
    /* tensorflow 39054, pytorch 21462, ggml's own test: kernels that are larger than any tile */
    {.line = "conv2d n1 c1 k1 in32x32 f27x27 p13 f32", .uniform = true},
    {.line = "conv2d n1 c1 k2 in40x40 f37x38 f32", .uniform = true},
    {.line = "conv1d n1 c2 k2 in1100 f1024 f32", .uniform = true},
    {.line = "convt1d n1 c3 k2 in1 f1337 f32"},
    {.line = "convt1d n1 c3 k2 in2 f1337 s3 f32"},
    {.line = "convt1d n1 c3 k2 in13 f1337 s2 f32", .uniform = true},
    /* sums long enough that adding them up in plain float32 breaks the promise */
    {.line = "conv1d n1 c4 k2 in4103 filter=4096 f32", .uniform = true},
    {.line = "conv2d n1 c8209 k3 in3x3 f1x1 f32 nhwc", .uniform = true},
    {.line = "conv2d n1 c1031 k2 in3x5 f3x3 f32 weights=f16", .uniform = true},
    {.line = "convt2d n1 c2053 k2 in2x2 f3x3 s1 p1 f16", .uniform = true},
    /* onnxruntime 2518: transposed, dilated, asymmetric kernel and pads */
    {.line = "convt2d n1 c1 k1 in50x50 f3x5 s2x1 p4x2 d3x1 f32"},
    /* onnxruntime 14208: output padding not less than the stride, but than the dilation */
    {.line = "convt2d n1 c1 k3 in6x7 f2x2 s1 p3 d2 op1 f32"},
    {.line = "convt3d n1 c2 k3 in3x2x4 f2x3x2 s1 p1 d2x3x2 op1x2x0 bf16 nhwc"},
    /* onnxruntime 11312: transposed with padding on one side */
    {.line = "convt2d n2 c3 k4 in5x6 f3x4 s2 p0x1:1x2 f32"},
    /* transformers 45750: kernel = stride = input (patch embedding) */
    {.line = "conv3d n5 c3 k12 in2x7x7 f2x7x7 s2x7x7 bf16"},
    {.line = "conv2d n2 c3 k24 in8x16 f8x8 s8 f32"},
    {.line = "conv2d n3 c4 k5 in6x5 f6x5 f16 nhwc"},
    /* ggml's grid of its 2-D operator: sizes and kernels that mix 1 with odd numbers, stride 5 along y */
    {.line = "conv2d n2 c1 k1 in1x1 f1x1 s5x1 p2x5 d4x2 f32 weights=f16"},
    {.line = "conv2d n2 c25 k1 in1x33 f1x2 s5x3 p5x5 d4x2 f32 weights=f16"},
    {.line = "conv2d n2 c1 k12 in35x1 f3x1 s5x1 p2x5 d4x2 f32 weights=f16"},
    {.line = "conv2d n2 c25 k12 in35x33 f3x3 s5x3 p2x5 d4x2 f32 weights=f16"},
    {.line = "conv2d n2 c25 k12 in35x33 f2x11 s5x3 p5x5 d4x2 f32", .uniform = true},
    {.line = "conv2d n2 c1 k12 in41x33 f11x11 s5x1 p5x5 d4x2 f32"},
    {.line = "conv2d n2 c25 k1 in41x33 f11x2 s5x3 p2x5 d4x2 f32 weights=bf16"},
    {.line = "conv2d n2 c25 k12 in1x33 f1x3 s5x1 p2x5 d4x2 f32"},
    /* burn 5626: two channel counts that one candidate of an autotuner got wrong */
    {.line = "conv2d n1 c104 k208 in3x3 f1x1 f32"},
    {.line = "conv2d n1 c440 k440 in1x2 f1x1 f32", .uniform = true},
    /* pytorch 117736, 17930, 87354: one output channel, uneven kernels */
    {.line = "conv2d n1 c130 k1 in9x11 f3x3 p1 f16", .uniform = true},
    {.line = "conv3d n2 c1 k4 in4x6x14 f3x3x10 p1x1x0 f32"},
    {.line = "conv3d n1 c32 k1 in3x9x7 f1x1x1 f32"},
    /* llama.cpp 22944: more outputs in a row than a grid dimension of 65535 */
    {.line = "conv1d n1 c1 k1 in66001 f3 p1 f32"},
    /* cudnn.torch 262, cutlass 651: channel counts that no vector width divides */
    {.line = "conv2d n1 c41 k16 in3x13 f1x3 p0x1 f32"},
    {.line = "conv2d n1 c90 k6 in5x5 f3x3 p1 f16 nhwc krsc"},
    /* pytorch 84171: large finite inputs are the wide data of the generated cases; 44, 45: groups of half, depthwise */
    {.line = "conv2d n1 c32 k32 g2 in7x9 f3x3 p1 f16"},
    {.line = "conv2d n2 c32 k32 g32 in15x17 f3x3 p1 f32"},
    /* real models: OCR, voice activity, face and line detectors, pitch, spectrogram */
    {.line = "convt2d n1 c24 k24 in5x6 f2x2 s2 f32 relu"},
    {.line = "convt2d n1 c24 k1 in5x6 f2x2 s2 f32 sigmoid"},
    {.line = "conv2d n1 c16 k16 g16 in12x13 f5x5 s2x1 p2 f32 hardswish"},
    {.line = "conv1d n1 c1 k58 in512 f256 s128 f32"},
    {.line = "conv2d n1 c24 k24 g24 in16x16 f3x3 s2 p0:1 f32"},
    {.line = "conv2d n1 c24 k24 g24 in16x16 f5x5 s2 p1:2 f32"},
    {.line = "conv2d n1 c4 k8 in18x17 f3x3 s2 p0:1 f32 relu"},
    {.line = "conv2d n1 c8 k8 in12x13 f3x3 p5 d5 f32"},
    {.line = "conv1d n1 c1 k6 in700 f256 s256 f32"},
    {.line = "conv2d n1 c8 k8 in9x43 f3x39 p1x19 f32"},
    {.line = "conv2d n1 c1 k8 in15x18 f7x7 s1x3 p3x2:3x3 f32"},
    {.line = "convt1d n1 c24 k12 in9 f20 s10 p5 f32 leaky_relu=0.1"},
    /* a batch of 0 and outputs of size 0 */
    {.line = "conv2d n0 c3 k4 in5x6 f3x3 f32"},
    {.line = "convt3d n0 c3 k4 in5x6x2 f3x3x2 bf16 nhwc"},
    {.line = "convt1d n2 c3 k4 in1 f2 p1 f32"},
    {.line = "convt2d n2 c3 k4 in3x1 f3x2 s2x1 p0x1 f16"},
    {.line = "convt2d n2 c3 k4 f3x2 s2x1 p0x1 f32", .dynamic = {3, 1}},
    /* the residual is the input; the residual is the output inside a larger buffer */
    {.line = "conv2d n2 c8 k8 in9x7 f3x3 p1 f32 relu beta=1", .residual = GRID_Z_IS_X},
    {.line = "conv2d n2 c8 k8 in9x7 f3x3 p1 f16 nhwc silu beta=0.5", .residual = GRID_Z_IS_X, .slices = true},
    {.line = "conv2d n2 c12 k8 in9x7 f3x3 p1 f32 beta=1", .residual = GRID_Z_IS_Y, .slices = true, .shifts = true},
    {.line = "convt2d n2 c12 k7 in4x5 f3x3 s2 p1 bf16 nhwc beta=1", .residual = GRID_Z_IS_Y, .slices = true},
    /* Inf and NaN in weights whose taps fall into the padding must not reach the output there */
    {.line = "conv2d n1 c3 k4 in6x7 f3x3 p1 f32", .special = GRID_INF_IN_W},
    {.line = "conv2d n1 c3 k4 in6x7 f5x5 p4 d2 f32 nhwc", .special = GRID_INF_IN_W},
    {.line = "conv2d n1 c3 k4 in6x7 f5x5 p4 f16 nhwc krsc", .special = GRID_NAN_IN_W},
    {.line = "convt2d n1 c3 k4 in4x3 f3x4 s2 p1 f32", .special = GRID_INF_IN_W},
    {.line = "convt2d n1 c3 k4 in4x3 f3x4 s3 p1 bf16 nhwc", .special = GRID_NAN_IN_W},
    {.line = "conv3d n1 c2 k3 in3x4x5 f3x3x3 p2 f32", .special = GRID_INF_IN_W},
    /* the same in x reaches exactly the windows that hold it: neighbours in the tile, other images, other groups */
    {.line = "conv2d n2 c4 k6 g2 in9x19 f3x3 p1 f32", .special = GRID_INF_IN_X},
    {.line = "conv2d n2 c4 k6 g2 in9x19 f3x3 p1 bf16 nhwc", .special = GRID_NAN_IN_X},
    {.line = "conv2d n2 c4 k4 g4 in9x19 f5x3 p2x1 f32 relu", .special = GRID_NAN_IN_X},
    {.line = "convt2d n2 c4 k6 g2 in5x7 f3x3 s2 p1 f32", .special = GRID_INF_IN_X},
    {.line = "conv1d n2 c3 k5 in40 f7 s3 p3 f16", .special = GRID_NAN_IN_X},
    /* only sizes that are given at forward: one kernel for the smallest and for odd ones */
    {.line = "conv2d n2 c5 k9 f3x3 p1 f32", .dynamic = {1, 1}},
    {.line = "conv2d n2 c5 k9 f3x3 p1 f32", .dynamic = {13, 19}},
    {.line = "conv2d n2 c5 k9 f3x3 p1 f16 nhwc", .dynamic = {7, 1}, .shifts = true},
    {.line = "convt2d n2 c5 k9 f3x3 s2 p1 op1 f32", .dynamic = {5, 9}, .slices = true},
    {.line = "conv3d n1 c2 k3 f3x3x3 s2 p1 f32", .dynamic = {3, 6, 9}},
};

size_t grid_table_count(void) {
    return sizeof entries / sizeof *entries;
}

static grid_case case_of(const entry *from) {
    grid_case grid = {.distribution = from->uniform ? REFERENCE_UNIFORM : REFERENCE_NORMAL,
                      .special = from->special,
                      .residual = from->residual,
                      .bias = true,
                      .slice_x = from->slices,
                      .slice_y = from->slices,
                      .shift_x = from->shifts,
                      .shift_y = from->shifts,
                      .shift_w = from->shifts};
    if (convjit_layer_line_parse(from->line, &grid.desc, &grid.batch) != CONVJIT_SUCCESS) {
        grid.desc = (convjit_desc)CONVJIT_DESC_INIT;
        grid.desc.rank = 0;
        return grid;
    }
    memcpy(grid.in_size, grid.desc.in_size[0] != 0 ? grid.desc.in_size : from->dynamic, sizeof grid.in_size);
    return grid;
}

void grid_table_get(grid_case *cases) {
    for (size_t i = 0; i < grid_table_count(); ++i) {
        cases[i] = case_of(&entries[i]);
    }
}
