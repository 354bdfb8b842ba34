/* direct.cu - any convolution, 1-D to 3-D, on CUDA cores: the family that always applies.
 *
 *   for n, group, phase, output pixel q, output channel k:                   parallel: blocks, then threads
 *     for input channel c, tap (jz, jy, jx):                                 in turn
 *       y[n][k][q * PHASES + phase] += w[k][c][tap] * x[n][c][q * STEP + base(phase) + j * TAP_STEP]
 *
 * Both operations are this loop. A convolution has one phase, STEP = stride, TAP_STEP = dilation, base = -padding. A
 * transposed one of stride s has s phases an axis (output = q * s + phase); the taps that reach a phase are every
 * (s / gcd(s, dilation))-th one, and in rising order of input they form a convolution with STEP = 1 and TAP_STEP =
 * dilation / gcd. A phase that no tap reaches has only bias.
 *
 * Work. A tile is TILE_Z x TILE_Y x TILE_X values of q times TILE_K output channels of one group, phase and n. A thread
 * (lane_x fastest, then y, z, k) computes PIXELS_Y x PIXELS_X neighbouring pixels of CHANNELS neighbouring channels in
 * registers. A stage is CHUNK_C input channels of CHUNK_Z x CHUNK_Y x CHUNK_X taps: their weights and the input under
 * them, halo included, lie in shared memory:
 *   x_tile[CHUNK_C][IN_TILE_Z][IN_TILE_Y][PITCH]   zero outside the input
 *   w_tile[CHUNK_C][CHUNK_Z][CHUNK_Y][CHUNK_X][TILE_K]
 * and when all stages are done, in their place, the outputs on their way to memory.
 *
 * Accuracy. Sums of at most 36 products (or one row) are closed and added to a compensated total (Kahan), so that the error
 * does not grow with the length of the reduction.
 *
 * The surprising rule: a NaN at the end is looked at again. Multiplying padding (0 * Inf) and compensating an Inf (Inf -
 * Inf) both give a NaN that the convolution does not have, and both never hide one: so every NaN, and only a NaN, is
 * computed anew by the plain loop, which skips padding. The fast path needs no test for it.
 */
#include "words.cuh"
#include "args.h"
#include "types.cuh"
#include "layer.cuh"
#include "epilogue.cuh"

/* ---- stamped constants ----------------------------------------------------------------------------------------------
 * name                      meaning                                                                      example
 * CJ_THREADS                threads of a block = product of the lanes                                    128
 * CJ_MIN_BLOCKS             blocks a multiprocessor must hold: caps the registers                        4
 * CJ_DATA_TYPE, CJ_WEIGHT_TYPE, CJ_BIAS_TYPE   convjit_type of x y z, w, bias                            0
 * CJ_CHANNELS_LAST, CJ_WEIGHTS_LAST   layout of x y z, of w: 1 = channels last                           0
 * CJ_TRANSPOSED             1 = transposed convolution                                                   0
 * CJ_GROUPS, CJ_GROUP_IN, CJ_GROUP_OUT   groups, and input and output channels of one                    1, 32, 64
 * CJ_DYNAMIC                1 = spatial sizes come with the launch                                       0
 * CJ_IN_d, CJ_OUT_d         spatial sizes, d = Z Y X (only if not dynamic)                               512
 * CJ_KERNEL_d, CJ_STRIDE_d, CJ_DILATION_d, CJ_PAD_d   of the layer; PAD is pad_begin                     9, 1, 1, 0
 * CJ_TAPS_d                 most taps that reach a phase (convolution: KERNEL)                           9
 * CJ_TAP_STEP_d             input distance of neighbouring taps of a phase                               1
 * CJ_PERIOD_d, CJ_INVERSE_d stride / gcd, and the inverse of dilation / gcd modulo that (transposed)     1, 0
 * CJ_LANES_Z/_Y/_X/_K       threads along each axis of a tile                                            1, 8, 16, 1
 * CJ_PIXELS_Y, CJ_PIXELS_X, CJ_CHANNELS   outputs of a thread                                            1, 4, 8
 * CJ_CHUNK_C, CJ_CHUNK_d    input channels and taps of a stage; CHUNK_d divides TAPS_d                   2, 5, 9
 * CJ_ROW_TAPS               taps along x whose inputs are in registers together; divides CHUNK_X         9
 * CJ_CLOSE_ROWS             rows of ROW_TAPS taps, and the last of a plane, after which partial sums are
 *                           closed; if 0, they are closed after                                            3
 * CJ_CLOSE_PLANES           planes of CHUNK_Y x CHUNK_X taps                                               1
 * CJ_UNROLL_C, CJ_UNROLL_Y  input channels and rows of taps unrolled                                     1, 1
 * CJ_SHARED_BYTES           shared memory: the larger of x_tile with w_tile, and out_tile                34560
 * and those of epilogue.cuh */

/* Derived constants. */
constexpr int TILE_Z = CJ_LANES_Z, TILE_Y = CJ_LANES_Y * CJ_PIXELS_Y, TILE_X = CJ_LANES_X * CJ_PIXELS_X;
constexpr int TILE_K = CJ_LANES_K * CJ_CHANNELS;
constexpr int K_TILES = (CJ_GROUP_OUT + TILE_K - 1) / TILE_K;
constexpr long long STEP_Z = CJ_TRANSPOSED ? 1 : CJ_STRIDE_Z, STEP_Y = CJ_TRANSPOSED ? 1 : CJ_STRIDE_Y;
constexpr long long STEP_X = CJ_TRANSPOSED ? 1 : CJ_STRIDE_X;
constexpr long long PHASES_Z = CJ_TRANSPOSED ? CJ_STRIDE_Z : 1, PHASES_Y = CJ_TRANSPOSED ? CJ_STRIDE_Y : 1;
constexpr long long PHASES_X = CJ_TRANSPOSED ? CJ_STRIDE_X : 1;
constexpr long long CHUNKS_C = (CJ_GROUP_IN + CJ_CHUNK_C - 1) / CJ_CHUNK_C;
constexpr long long CHUNKS_Z = CJ_TAPS_Z / CJ_CHUNK_Z, CHUNKS_Y = CJ_TAPS_Y / CJ_CHUNK_Y, CHUNKS_X = CJ_TAPS_X / CJ_CHUNK_X;
constexpr long long STAGES = CHUNKS_C * CHUNKS_Z * CHUNKS_Y * CHUNKS_X;

/* Input positions under a tile. A TAP_STEP that matters only between stages (one tap a chunk) may be huge. */
constexpr int STRIDE_Z = TILE_Z > 1 ? (int)STEP_Z : 1, STRIDE_Y = TILE_Y > 1 ? (int)STEP_Y : 1;
constexpr int STRIDE_X = TILE_X > 1 ? (int)STEP_X : 1;
constexpr int TAP_Z = CJ_CHUNK_Z > 1 ? (int)CJ_TAP_STEP_Z : 0, TAP_Y = CJ_CHUNK_Y > 1 ? (int)CJ_TAP_STEP_Y : 0;
constexpr int TAP_X = CJ_CHUNK_X > 1 ? (int)CJ_TAP_STEP_X : 0;
constexpr int IN_TILE_Z = (TILE_Z - 1) * STRIDE_Z + (CJ_CHUNK_Z - 1) * TAP_Z + 1;
constexpr int IN_TILE_Y = (TILE_Y - 1) * STRIDE_Y + (CJ_CHUNK_Y - 1) * TAP_Y + 1;
constexpr int IN_TILE_X = (TILE_X - 1) * STRIDE_X + (CJ_CHUNK_X - 1) * TAP_X + 1;

/* Rows can be read four elements at a time where every tile's first column is the same number modulo 4: the tile then
 * starts SHIFT columns early, on a multiple of 4. */
constexpr bool ROW_VECTORS = !CJ_CHANNELS_LAST && !CJ_TRANSPOSED && !CJ_DYNAMIC && CHUNKS_X == 1 &&
                             TILE_X * STRIDE_X % 4 == 0 && CJ_IN_X % 4 == 0;
constexpr int SHIFT = ROW_VECTORS ? (int)((4 - CJ_PAD_X % 4) % 4) : 0;
constexpr int PITCH = (SHIFT + IN_TILE_X + 3) / 4 * 4;
constexpr int PLANE = IN_TILE_Z * IN_TILE_Y * PITCH;
constexpr int STAGE_WEIGHTS = CJ_CHUNK_C * CJ_CHUNK_Z * CJ_CHUNK_Y * CJ_CHUNK_X * TILE_K;
/* Channels-last rows can be read four channels at a time. */
constexpr bool CHANNEL_VECTORS = CJ_CHANNELS_LAST && CJ_GROUP_IN % 4 == 0 && CJ_CHUNK_C % 4 == 0;
/* Outputs can be stored four at a time. */
constexpr bool STORE_VECTORS = CJ_CHANNELS_LAST ? TILE_K % 4 == 0 : TILE_X % 4 == 0 && PHASES_X == 1;
static_assert(4 * TILE_K * TILE_Z * TILE_Y * TILE_X <= CJ_SHARED_BYTES, "plan and kernel disagree");
static_assert(4 * (CJ_CHUNK_C * PLANE + (STAGE_WEIGHTS + 3) / 4 * 4) <= CJ_SHARED_BYTES, "plan and kernel disagree");

constexpr int UNROLL_C = CJ_UNROLL_C, UNROLL_Y = CJ_UNROLL_Y; /* #pragma unroll takes no macro */

constexpr int X_GROUPS = CJ_CHUNK_X / CJ_ROW_TAPS, PLANE_ROWS = CJ_CHUNK_Y * X_GROUPS;

/* What a thread reads from x_tile at a time, counted from its own first column, rounded down to a multiple of 4. */
constexpr int WINDOW = SHIFT + (CJ_PIXELS_X - 1) * STRIDE_X + (CJ_ROW_TAPS - 1) * TAP_X + 1;
constexpr bool WINDOW_VECTORS =
    CJ_PIXELS_X * STRIDE_X % 4 == 0 && (CJ_ROW_TAPS == CJ_CHUNK_X || CJ_ROW_TAPS * TAP_X % 4 == 0);

typedef cj_memory<CJ_DATA_TYPE> data;

/* Which taps reach one phase of one axis, and where: input = q * STEP + base + j * TAP_STEP, 0 <= j < taps. Transposed: j
 * runs against the kernel, from tap first + (taps - 1) * PERIOD down to tap first; phases that taps reach differ in
 * `first`, which so names the phase's weights. */
struct axis {
    long long base;
    int taps, first;
};

__device__ __forceinline__ int count_taps(long long first, long long kernel, long long period) {
    return first < kernel ? (int)((kernel - 1 - first) / period + 1) : 0;
}

__device__ __forceinline__ axis make_axis(long long phase, long long kernel, long long stride, long long dilation,
                                          long long pad, long long period, long long inverse, int taps) {
    if (!CJ_TRANSPOSED) {
        return {-pad, taps, 0};
    }
    /* Tap t reaches output o from input i if o + pad = i * stride + t * dilation. */
    const long long position = phase + pad, common = stride / period;
    const long long first = position % common ? kernel : position / common % period * inverse % period;
    const int reaching = count_taps(first, kernel, period);
    if (reaching == 0) {
        return {0, 0, (int)first}; /* where would-be taps lie may pass 2^63 */
    }
    return {(position - (first + (reaching - 1) * period) * dilation) / stride, reaching, (int)first};
}

__device__ __forceinline__ axis axis_z(long long phase) {
    return make_axis(phase, CJ_KERNEL_Z, CJ_STRIDE_Z, CJ_DILATION_Z, CJ_PAD_Z, CJ_PERIOD_Z, CJ_INVERSE_Z, CJ_TAPS_Z);
}
__device__ __forceinline__ axis axis_y(long long phase) {
    return make_axis(phase, CJ_KERNEL_Y, CJ_STRIDE_Y, CJ_DILATION_Y, CJ_PAD_Y, CJ_PERIOD_Y, CJ_INVERSE_Y, CJ_TAPS_Y);
}
__device__ __forceinline__ axis axis_x(long long phase) {
    return make_axis(phase, CJ_KERNEL_X, CJ_STRIDE_X, CJ_DILATION_X, CJ_PAD_X, CJ_PERIOD_X, CJ_INVERSE_X, CJ_TAPS_X);
}

/* One tile: what all threads of a block share. */
struct tile {
    long long n, group, k_tile, phase_z, phase_y, phase_x;
    long long q_z, q_y, q_x; /* first q */
};

/* Phases that have an output. */
__device__ __forceinline__ long long phases_of(long long phases, long long out) {
    return phases == 1 || phases < out ? phases : out;
}

/* Neighbouring tiles share input: channels change fastest, then phases. */
__device__ __forceinline__ tile make_tile(long long index, const sizes &size) {
    tile t;
    t.k_tile = take(index, K_TILES);
    t.phase_x = take(index, phases_of(PHASES_X, size.out_x));
    t.phase_y = take(index, phases_of(PHASES_Y, size.out_y));
    t.phase_z = take(index, phases_of(PHASES_Z, size.out_z));
    t.q_x = take(index, (size.out_x + PHASES_X * TILE_X - 1) / (PHASES_X * TILE_X)) * TILE_X;
    t.q_y = take(index, (size.out_y + PHASES_Y * TILE_Y - 1) / (PHASES_Y * TILE_Y)) * TILE_Y;
    t.q_z = take(index, (size.out_z + PHASES_Z * TILE_Z - 1) / (PHASES_Z * TILE_Z)) * TILE_Z;
    t.group = take(index, CJ_GROUPS);
    t.n = index;
    return t;
}

/* Packed weights: [group][k_tile][first tap z, y, x][stage][CHUNK_C][CHUNK_Z][CHUNK_Y][CHUNK_X][TILE_K], zero where a
 * channel or a tap does not exist, then bias[group][GROUP_OUT]; all float32. */
constexpr long long FIRSTS_Z = CJ_KERNEL_Z < CJ_PERIOD_Z ? CJ_KERNEL_Z : CJ_PERIOD_Z;
constexpr long long FIRSTS_Y = CJ_KERNEL_Y < CJ_PERIOD_Y ? CJ_KERNEL_Y : CJ_PERIOD_Y;
constexpr long long FIRSTS_X = CJ_KERNEL_X < CJ_PERIOD_X ? CJ_KERNEL_X : CJ_PERIOD_X;
constexpr long long PACKED_WEIGHTS =
    (CJ_GROUPS * K_TILES * FIRSTS_Z * FIRSTS_Y * FIRSTS_X * STAGES * STAGE_WEIGHTS + 3) / 4 * 4;

__device__ __forceinline__ const float *packed_weights(const cj_forward_args &args, const tile &t, const axis &az,
                                                       const axis &ay, const axis &ax) {
    const long long tile = t.group * K_TILES + t.k_tile;
    const long long part = ((tile * FIRSTS_Z + az.first) * FIRSTS_Y + ay.first) * FIRSTS_X + ax.first;
    return (const float *)args.packed + part * STAGES * STAGE_WEIGHTS;
}

/* Fills x_tile with chunk `c0` of channels, from input position (z0, y0, x0) on. */
__device__ __forceinline__ void load_input(float *x_tile, const cj_forward_args &args, const sizes &size, const tile &t,
                                           int c0, long long z0, long long y0, long long x0) {
    const range zs = inside(z0, size.in_z, IN_TILE_Z), ys = inside(y0, size.in_y, IN_TILE_Y);
    const range xs = inside(x0, size.in_x, PITCH);
    const in_offset row = (in_offset)size.in_x, plane_rows = (in_offset)size.in_y;
    const long long channel = t.group * CJ_GROUP_IN + c0;
    const long long pixel = CJ_CHANNELS_LAST ? args.x_pixel_stride : 1;
    const long long plane = CJ_CHANNELS_LAST ? 1 : args.x_channel_stride;
    const long long origin = t.n * args.x_batch_stride + channel * plane + ((z0 * size.in_y + y0) * size.in_x + x0) * pixel;
    const int channels = CJ_GROUP_IN - c0 < CJ_CHUNK_C ? (int)(CJ_GROUP_IN - c0) : CJ_CHUNK_C;

    if ((ROW_VECTORS || CHANNEL_VECTORS) && args.x_aligned) {
        constexpr int COLUMNS = ROW_VECTORS ? PITCH / 4 : IN_TILE_X, CHANNELS = ROW_VECTORS ? CJ_CHUNK_C : (CJ_CHUNK_C + 3) / 4;
        for (int i = (int)threadIdx.x; i < CHANNELS * IN_TILE_Z * IN_TILE_Y * COLUMNS; i += CJ_THREADS) {
            /* Fastest index = the axis that is contiguous in memory. */
            const int c = ROW_VECTORS ? i / (COLUMNS * IN_TILE_Y * IN_TILE_Z) : i % CHANNELS * 4;
            const int place = ROW_VECTORS ? i % (COLUMNS * IN_TILE_Y * IN_TILE_Z) : i / CHANNELS;
            const int x = place % COLUMNS * (ROW_VECTORS ? 4 : 1), zy = place / COLUMNS;
            const int y = zy % IN_TILE_Y, z = zy / IN_TILE_Y;
            float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
            if (c < channels && z >= zs.low && z < zs.high && y >= ys.low && y < ys.high && x >= xs.low && x < xs.high) {
                v = data::load4(args.x, origin + c * plane + ((z * plane_rows + y) * row + x) * pixel);
            }
            float *to = x_tile + c * PLANE + zy * PITCH + x;
            if (ROW_VECTORS) {
                *(float4 *)to = v;
            } else {
                to[0] = v.x, to[PLANE] = v.y, to[2 * PLANE] = v.z, to[3 * PLANE] = v.w;
            }
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < CJ_CHUNK_C * IN_TILE_Z * IN_TILE_Y * (SHIFT + IN_TILE_X); i += CJ_THREADS) {
        constexpr int COLUMNS = SHIFT + IN_TILE_X;
        const int c = CJ_CHANNELS_LAST ? i % CJ_CHUNK_C : i / (COLUMNS * IN_TILE_Y * IN_TILE_Z);
        const int place = CJ_CHANNELS_LAST ? i / CJ_CHUNK_C : i % (COLUMNS * IN_TILE_Y * IN_TILE_Z);
        const int x = place % COLUMNS, zy = place / COLUMNS, y = zy % IN_TILE_Y, z = zy / IN_TILE_Y;
        float v = 0.0F;
        if (c < channels && z >= zs.low && z < zs.high && y >= ys.low && y < ys.high && x >= xs.low && x < xs.high) {
            v = data::load(args.x, origin + c * plane + ((z * plane_rows + y) * row + x) * pixel);
        }
        x_tile[c * PLANE + zy * PITCH + x] = v;
    }
}

__device__ __forceinline__ void load_weights(float *w_tile, const float *stage) {
    if (STAGE_WEIGHTS % 4 == 0) {
        for (int i = (int)threadIdx.x; i < STAGE_WEIGHTS / 4; i += CJ_THREADS) {
            ((float4 *)w_tile)[i] = ((const float4 *)stage)[i];
        }
    } else {
        for (int i = (int)threadIdx.x; i < STAGE_WEIGHTS; i += CJ_THREADS) {
            w_tile[i] = stage[i];
        }
    }
}

/* `count` neighbours from shared memory; `base` is 16-byte aligned if `vectors`. Values nobody uses are not loaded. */
template <int count, bool vectors> __device__ __forceinline__ void load_registers(float *to, const float *base) {
#pragma unroll
    for (int i = 0; i < count; i += 4) {
        if (vectors) {
            const float4 v = *(const float4 *)(base + i);
            to[i] = v.x;
            if (i + 1 < count) {
                to[i + 1] = v.y;
            }
            if (i + 2 < count) {
                to[i + 2] = v.z;
            }
            if (i + 3 < count) {
                to[i + 3] = v.w;
            }
        } else {
#pragma unroll
            for (int j = i; j < i + 4 && j < count; ++j) {
                to[j] = base[j];
            }
        }
    }
}

/* The plain loop, in float64: one output anew, padding skipped. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t, int k,
                                           long long q_z, long long q_y, long long q_x) {
    const axis az = axis_z(t.phase_z), ay = axis_y(t.phase_y), ax = axis_x(t.phase_x);
    const long long pixel = CJ_CHANNELS_LAST ? args.x_pixel_stride : 1;
    const long long plane = CJ_CHANNELS_LAST ? 1 : args.x_channel_stride;
    const float *w = packed_weights(args, t, az, ay, ax) + k;
    double sum = 0.0;
    for (int c = 0; c < CJ_GROUP_IN; ++c) {
        const long long channel = t.n * args.x_batch_stride + (t.group * CJ_GROUP_IN + c) * plane;
        for (int j = 0; j < az.taps * ay.taps * ax.taps; ++j) {
            const int jx = j % ax.taps, jy = j / ax.taps % ay.taps, jz = j / ax.taps / ay.taps;
            const long long z = q_z * STEP_Z + az.base + jz * CJ_TAP_STEP_Z;
            const long long y = q_y * STEP_Y + ay.base + jy * CJ_TAP_STEP_Y;
            const long long x = q_x * STEP_X + ax.base + jx * CJ_TAP_STEP_X;
            if (z < 0 || z >= size.in_z || y < 0 || y >= size.in_y || x < 0 || x >= size.in_x) {
                continue;
            }
            const long long stage = ((c / CJ_CHUNK_C * CHUNKS_Z + jz / CJ_CHUNK_Z) * CHUNKS_Y + jy / CJ_CHUNK_Y) * CHUNKS_X +
                                    jx / CJ_CHUNK_X;
            const int place = ((c % CJ_CHUNK_C * CJ_CHUNK_Z + jz % CJ_CHUNK_Z) * CJ_CHUNK_Y + jy % CJ_CHUNK_Y) * CJ_CHUNK_X +
                              jx % CJ_CHUNK_X;
            sum += (double)w[stage * STAGE_WEIGHTS + place * TILE_K] *
                   (double)data::load(args.x, channel + ((z * size.in_y + y) * size.in_x + x) * pixel);
        }
    }
    return (float)sum;
}

/* Sums of one thread: total[i] is compensated, part[i] holds the open sum, which starts at total's rounding error. */
constexpr int PIXELS = CJ_PIXELS_Y * CJ_PIXELS_X;
struct sums {
    float total[PIXELS][CJ_CHANNELS], part[PIXELS][CJ_CHANNELS];
};

__device__ __forceinline__ void close_parts(sums &s) {
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) {
#pragma unroll
        for (int k = 0; k < CJ_CHANNELS; ++k) {
            const float sum = s.total[p][k] + s.part[p][k];
            s.part[p][k] -= sum - s.total[p][k];
            s.total[p][k] = sum;
        }
    }
}

/* ROW_TAPS taps of one row of one channel; taps from `taps` on do not exist (transposed only). */
__device__ __forceinline__ void add_row(sums &s, const float *x, const float *w, int taps) {
    float in[CJ_PIXELS_Y][WINDOW];
#pragma unroll
    for (int p = 0; p < CJ_PIXELS_Y; ++p) {
        load_registers<WINDOW, WINDOW_VECTORS>(in[p], x + p * STRIDE_Y * PITCH);
    }
#pragma unroll
    for (int j = 0; j < CJ_ROW_TAPS; ++j) {
        if (!CJ_TRANSPOSED || j < taps) {
            float weight[CJ_CHANNELS];
            load_registers<CJ_CHANNELS, CJ_CHANNELS % 4 == 0>(weight, w + j * TILE_K);
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) {
                const float value = in[p / CJ_PIXELS_X][SHIFT + p % CJ_PIXELS_X * STRIDE_X + j * TAP_X];
#pragma unroll
                for (int k = 0; k < CJ_CHANNELS; ++k) {
                    s.part[p][k] = fmaf(weight[k], value, s.part[p][k]);
                }
            }
        }
    }
}

/* Outputs go through shared memory, so that neighbours in memory are stored by neighbouring threads:
 *   out_tile[TILE_K][TILE_Z][TILE_Y][TILE_X], or [TILE_Z][TILE_Y][TILE_X][TILE_K] if channels last
 * holds alpha * conv + bias. */
constexpr int TILE_PIXELS = TILE_Z * TILE_Y * TILE_X;
constexpr int OUT_TILE = TILE_K * TILE_PIXELS;

__device__ __forceinline__ const float *packed_bias(const cj_forward_args &args, const tile &t) {
    return (const float *)args.packed + PACKED_WEIGHTS + t.group * CJ_GROUP_OUT + t.k_tile * TILE_K;
}

/* Writes one thread's outputs, `k` and `pixel` its first; true if one of them is NaN. */
__device__ __forceinline__ bool stage_outputs(float *out_tile, const cj_forward_args &args, const tile &t, const sums &s,
                                              int k, int pixel) {
    const float *bias = packed_bias(args, t);
    bool nan = false;
#pragma unroll
    for (int c = 0; c < CJ_CHANNELS; ++c) {
        const float b = t.k_tile * TILE_K + k + c < CJ_GROUP_OUT ? bias[k + c] : 0.0F;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) {
            const int to = pixel + p / CJ_PIXELS_X * TILE_X + p % CJ_PIXELS_X;
            const float value = cj_linear(s.total[p][c] + s.part[p][c], b);
            nan |= value != value;
            out_tile[CJ_CHANNELS_LAST ? to * TILE_K + k + c : (k + c) * TILE_PIXELS + to] = value;
        }
    }
    return nan;
}

/* See "the surprising rule". Outputs that no tensor holds may be NaN too, and are left alone. */
__device__ __forceinline__ void replace_nans(float *out_tile, const cj_forward_args &args, const sizes &size, const tile &t) {
    for (int i = (int)threadIdx.x; i < OUT_TILE; i += CJ_THREADS) {
        const int k = CJ_CHANNELS_LAST ? i % TILE_K : i / TILE_PIXELS, pixel = CJ_CHANNELS_LAST ? i / TILE_K : i % TILE_PIXELS;
        if (out_tile[i] != out_tile[i] && t.k_tile * TILE_K + k < CJ_GROUP_OUT) {
            const float conv = exact_output(args, size, t, k, t.q_z + pixel / (TILE_X * TILE_Y),
                                            t.q_y + pixel / TILE_X % TILE_Y, t.q_x + pixel % TILE_X);
            out_tile[i] = cj_linear(conv, packed_bias(args, t)[k]);
        }
    }
}

/* out_tile to memory, `count` (1 or 4) neighbours at a time. */
template <int count>
__device__ __forceinline__ void store_outputs(const float *out_tile, const cj_forward_args &args, const sizes &size,
                                              const tile &t) {
    const long long channel = t.group * CJ_GROUP_OUT + t.k_tile * TILE_K;
    const long long first = ((t.q_z * PHASES_Z + t.phase_z) * size.out_y + t.q_y * PHASES_Y + t.phase_y) * size.out_x +
                            t.q_x * PHASES_X + t.phase_x;
    const long long y_channel = CJ_CHANNELS_LAST ? 1 : args.y_channel_stride, y_pixel = CJ_CHANNELS_LAST ? args.y_pixel_stride : 1;
    const long long y_first = t.n * args.y_batch_stride + channel * y_channel + first * y_pixel;
#if CJ_HAS_Z
    const long long z_channel = CJ_CHANNELS_LAST ? 1 : args.z_channel_stride, z_pixel = CJ_CHANNELS_LAST ? args.z_pixel_stride : 1;
    const long long z_first = t.n * args.z_batch_stride + channel * z_channel + first * z_pixel;
#endif
    const int end_k = CJ_GROUP_OUT - t.k_tile * TILE_K < TILE_K ? (int)(CJ_GROUP_OUT - t.k_tile * TILE_K) : TILE_K;
    const int end_z = outputs_of(t.q_z, t.phase_z, PHASES_Z, size.out_z, TILE_Z);
    const int end_y = outputs_of(t.q_y, t.phase_y, PHASES_Y, size.out_y, TILE_Y);
    const int end_x = outputs_of(t.q_x, t.phase_x, PHASES_X, size.out_x, TILE_X);

#pragma unroll 4
    for (int i = (int)threadIdx.x * count; i < OUT_TILE; i += CJ_THREADS * count) {
        const int k = CJ_CHANNELS_LAST ? i % TILE_K : i / TILE_PIXELS, pixel = CJ_CHANNELS_LAST ? i / TILE_K : i % TILE_PIXELS;
        const int x = pixel % TILE_X, y = pixel / TILE_X % TILE_Y, z = pixel / (TILE_X * TILE_Y);
        if (k < end_k && z < end_z && y < end_y && x < end_x) {
            const out_offset o = (z * (out_offset)(PHASES_Z * size.out_y) + y * (out_offset)PHASES_Y) * (out_offset)size.out_x +
                                 x * (out_offset)PHASES_X;
            float value[count], residual[count] = {};
#if CJ_HAS_Z
            const long long from = z_first + k * z_channel + o * z_pixel;
            if (count == 4) {
                *(float4 *)residual = data::load4(args.z, from);
            } else {
                residual[0] = data::load(args.z, from);
            }
#endif
#pragma unroll
            for (int j = 0; j < count; ++j) {
                value[j] = cj_finish(out_tile[i + j], residual[j]);
            }
            const long long to = y_first + k * y_channel + o * y_pixel;
            if (count == 4) {
                data::store4(args.y, to, make_float4(value[0], value[1 % count], value[2 % count], value[3 % count]));
            } else {
                data::store(args.y, to, value[0]);
            }
        }
    }
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    alignas(16) __shared__ float shared[CJ_SHARED_BYTES / 4];
    float *const x_tile = shared, *const w_tile = shared + CJ_CHUNK_C * PLANE, *const out_tile = shared;
    const int lane_x = threadIdx.x % CJ_LANES_X, lane_y = threadIdx.x / CJ_LANES_X % CJ_LANES_Y;
    const int lane_z = threadIdx.x / (CJ_LANES_X * CJ_LANES_Y) % CJ_LANES_Z;
    const int lane_k = threadIdx.x / (CJ_LANES_X * CJ_LANES_Y * CJ_LANES_Z);
    const sizes size = get_sizes(args);

    for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
        const tile t = make_tile(index, size);
        const axis az = axis_z(t.phase_z), ay = axis_y(t.phase_y), ax = axis_x(t.phase_x);
        const float *weights = packed_weights(args, t, az, ay, ax);
        const float *x_thread = x_tile + (lane_z * STRIDE_Z * IN_TILE_Y + lane_y * CJ_PIXELS_Y * STRIDE_Y) * PITCH +
                                lane_x * CJ_PIXELS_X * STRIDE_X;
        const float *w_thread = w_tile + lane_k * CJ_CHANNELS;
        sums s = {};
        int planes = 0; /* since the parts were closed */

        for (long long stage = 0; stage < STAGES; ++stage) {
            long long chunk = stage;
            const int j_x = (int)take(chunk, CHUNKS_X) * CJ_CHUNK_X, j_y = (int)take(chunk, CHUNKS_Y) * CJ_CHUNK_Y;
            const int j_z = (int)take(chunk, CHUNKS_Z) * CJ_CHUNK_Z, c0 = (int)chunk * CJ_CHUNK_C;
            if (CJ_TRANSPOSED && (j_z >= az.taps || j_y >= ay.taps || j_x >= ax.taps)) {
                continue; /* the same for the whole block */
            }
            __syncthreads();
            load_input(x_tile, args, size, t, c0, t.q_z * STEP_Z + az.base + j_z * CJ_TAP_STEP_Z,
                       t.q_y * STEP_Y + ay.base + j_y * CJ_TAP_STEP_Y,
                       t.q_x * STEP_X + ax.base + j_x * CJ_TAP_STEP_X - SHIFT);
            load_weights(w_tile, weights + stage * STAGE_WEIGHTS);
            __syncthreads();

            const int channels = CJ_GROUP_IN - c0 < CJ_CHUNK_C ? (int)(CJ_GROUP_IN - c0) : CJ_CHUNK_C;
            const int taps_z = CJ_TRANSPOSED && az.taps - j_z < CJ_CHUNK_Z ? az.taps - j_z : CJ_CHUNK_Z;
            const int taps_y = CJ_TRANSPOSED && ay.taps - j_y < CJ_CHUNK_Y ? ay.taps - j_y : CJ_CHUNK_Y;
#pragma unroll UNROLL_C
            for (int c = 0; c < (CJ_GROUP_IN % CJ_CHUNK_C ? channels : CJ_CHUNK_C); ++c) {
#pragma unroll 1
                for (int z = 0; z < taps_z; ++z) {
#pragma unroll UNROLL_Y
                    for (int y = 0; y < CJ_CHUNK_Y; ++y) {
#pragma unroll 1
                        for (int x = 0; x < CJ_CHUNK_X; x += CJ_ROW_TAPS) {
                            if (!CJ_TRANSPOSED || y < taps_y) {
                                add_row(s, x_thread + c * PLANE + (z * TAP_Z * IN_TILE_Y + y * TAP_Y) * PITCH + x * TAP_X,
                                        w_thread + (((c * CJ_CHUNK_Z + z) * CJ_CHUNK_Y + y) * CJ_CHUNK_X + x) * TILE_K,
                                        ax.taps - j_x - x);
                            }
                            const int row = y * X_GROUPS + x / CJ_ROW_TAPS + 1;
                            if (CJ_CLOSE_ROWS && (row % (CJ_CLOSE_ROWS ? CJ_CLOSE_ROWS : 1) == 0 || row == PLANE_ROWS)) {
                                close_parts(s);
                            }
                        }
                    }
                    if (!CJ_CLOSE_ROWS && ++planes == CJ_CLOSE_PLANES) {
                        close_parts(s);
                        planes = 0;
                    }
                }
            }
        }
        __syncthreads();
        const bool nan = stage_outputs(out_tile, args, t, s, lane_k * CJ_CHANNELS,
                                       (lane_z * TILE_Y + lane_y * CJ_PIXELS_Y) * TILE_X + lane_x * CJ_PIXELS_X);
        if (__syncthreads_or(nan)) {
            replace_nans(out_tile, args, size, t);
            __syncthreads();
        }
        if (STORE_VECTORS && args.y_aligned) {
            store_outputs<4>(out_tile, args, size, t);
        } else {
            store_outputs<1>(out_tile, args, size, t);
        }
    }
}

/* Kernel tap of the j-th tap of a phase; negative if it has fewer. */
__device__ __forceinline__ long long kernel_tap(long long first, long long kernel, long long period, int j) {
    return CJ_TRANSPOSED ? first + (count_taps(first, kernel, period) - 1 - j) * period : j;
}

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    constexpr long long KERNEL_TAPS = (long long)CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X;
    for (long long i = (long long)blockIdx.x * CJ_THREADS + threadIdx.x; i < args.work; i += (long long)gridDim.x * CJ_THREADS) {
        float value = 0.0F;
        if (i >= PACKED_WEIGHTS) {
            if (args.bias) {
                value = cj_memory<CJ_BIAS_TYPE>::load(args.bias, i - PACKED_WEIGHTS);
            }
        } else {
            long long index = i;
            long long k = take(index, TILE_K);
            int j_x = (int)take(index, CJ_CHUNK_X), j_y = (int)take(index, CJ_CHUNK_Y), j_z = (int)take(index, CJ_CHUNK_Z);
            long long c = take(index, CJ_CHUNK_C);
            j_x += (int)take(index, CHUNKS_X) * CJ_CHUNK_X;
            j_y += (int)take(index, CHUNKS_Y) * CJ_CHUNK_Y;
            j_z += (int)take(index, CHUNKS_Z) * CJ_CHUNK_Z;
            c += take(index, CHUNKS_C) * CJ_CHUNK_C;
            const long long tap_x = kernel_tap(take(index, FIRSTS_X), CJ_KERNEL_X, CJ_PERIOD_X, j_x);
            const long long tap_y = kernel_tap(take(index, FIRSTS_Y), CJ_KERNEL_Y, CJ_PERIOD_Y, j_y);
            const long long tap_z = kernel_tap(take(index, FIRSTS_Z), CJ_KERNEL_Z, CJ_PERIOD_Z, j_z);
            k += take(index, K_TILES) * TILE_K;
            const long long group = index;
            if (group < CJ_GROUPS && c < CJ_GROUP_IN && k < CJ_GROUP_OUT && tap_z >= 0 && tap_y >= 0 && tap_x >= 0) {
                const long long tap = (tap_z * CJ_KERNEL_Y + tap_y) * CJ_KERNEL_X + tap_x;
                /* w is [outer][inner][taps], or [outer][taps][inner] if channels last. */
                const long long outer = CJ_TRANSPOSED ? group * CJ_GROUP_IN + c : group * CJ_GROUP_OUT + k;
                const long long inner = CJ_TRANSPOSED ? k : c, inners = CJ_TRANSPOSED ? CJ_GROUP_OUT : CJ_GROUP_IN;
                value = cj_memory<CJ_WEIGHT_TYPE>::load(args.w, CJ_WEIGHTS_LAST
                                                                    ? (outer * KERNEL_TAPS + tap) * inners + inner
                                                                    : (outer * inners + inner) * KERNEL_TAPS + tap);
            }
        }
        ((float *)args.packed)[i] = value;
    }
}
