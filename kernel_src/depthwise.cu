/* depthwise.cu - convolutions with one input channel a group, 1-D to 3-D: bound by memory, not by arithmetic.
 *
 *   for n, output channel k, output (z, y, x):                                     parallel: blocks, then threads
 *     for tap (jz, jy, jx):                                                        in turn
 *       y[n][k][z][y][x] += w[k][jz][jy][jx] * x[n][k / GROUP_OUT][z * STRIDE - PAD + jz * DILATION][...][...]
 *
 * Work. A tile is TILE_Z x TILE_Y x TILE_X outputs of TILE_K channels; a block computes one, then the next. A thread has
 * ROWS x COLUMNS neighbouring outputs of CHANNELS channels in registers. It goes down the input rows under them: each is
 * read once, and each of the thread's output rows takes its taps from it.
 *
 * Channels first (depthwise/planes.cuh): CHANNELS is 1. A tile's input and its outputs are pieces of memory that are as
 * long as can be, whatever the width of a row: they pass through shared memory in whole vectors of 16 bytes.
 * Or in strips (depthwise/strips.cuh), where there is much arithmetic: a thread goes down all of its output rows, of which only
 * those are in registers that the present input row reaches.
 * Channels last (depthwise/pixels.cuh): CHANNELS is 4, a vector; rows come straight from memory, and L1 keeps the overlaps.
 *
 * Accuracy. Up to 36 products are added up in turn; of longer sums, parts that long are added to a compensated total (Kahan).
 * In strips, such a sum is that of its first rows of taps, up to 36 products, to which those of each step's rows are added.
 *
 * The surprising rule: no product with padding is ever made, for a weight that is Inf or NaN would make it a NaN. So a tap
 * at the edge is a predicated instruction, not a zero in shared memory.
 */
#include "words.cuh"
#include "args.h"
#include "types.cuh"
#include "layer.cuh"
#include "epilogue.cuh"

/* ---- stamped constants ----------------------------------------------------------------------------------------------
 * name                      meaning                                                                      example
 * CJ_THREADS                threads of a block >= product of the lanes                                   224
 * CJ_MIN_BLOCKS             blocks a multiprocessor must hold: caps the registers                        3
 * CJ_DATA_TYPE, CJ_WEIGHT_TYPE, CJ_BIAS_TYPE   convjit_type of x y z, w, bias                            0
 * CJ_CHANNELS_LAST          1 = x y z are channels last                                                  0
 * CJ_GROUPS, CJ_GROUP_OUT   input channels, and output channels of each                                  64, 1
 * CJ_IN_d, CJ_OUT_d         spatial sizes, d = Z Y X                                                     512, 510
 * CJ_KERNEL_d, CJ_STRIDE_d, CJ_DILATION_d, CJ_PAD_d   of the layer; PAD is pad_begin                     3, 1, 1, 0
 * CJ_LANES_Z/_Y/_X/_K       threads along each axis of a tile                                            1, 3, 73, 1
 * CJ_ROWS, CJ_COLUMNS       outputs of a thread along y and x                                            5, 7
 * CJ_ROW_TAPS               taps along x whose inputs are in registers together; divides KERNEL_X        3
 * CJ_UNROLL_Y               1 = the rows under a thread are unrolled                                     1
 * CJ_HOLD_WEIGHTS           1 = a thread keeps its weights in registers; only if UNROLL_Y                1
 * CJ_CLOSE_ROWS             rows of taps after which the parts of a sum are closed; 0 = after each ROW_TAPS
 *                           taps (used if there are more than CJ_CLOSE_AFTER taps)                       12
 * CJ_CLOSE_AFTER            most products of a part                                                      36
 * CJ_RUN                    a tile's elements lie in memory as pieces of rows (1), as whole rows (2), or as whole
 *                           slices and planes (3); or it is computed in strips (4); channels first only  2
 * CJ_RING                   of strips: steps whose input rows are in shared memory                       8
 * CJ_TILE_BYTES             shared memory for the larger of a tile's input and its outputs; channels
 *                           first only                                                                   34832
 * CJ_STAGE_WEIGHTS          1 = weights pass through shared memory too; channels first only              1
 * and those of epilogue.cuh */

/* Derived constants. */
constexpr int CHANNELS = CJ_CHANNELS_LAST ? 4 : 1;
constexpr int TILE_Z = CJ_LANES_Z, TILE_Y = CJ_LANES_Y * CJ_ROWS, TILE_X = CJ_LANES_X * CJ_COLUMNS;
constexpr int TILE_K = CJ_LANES_K * CHANNELS;
constexpr int TILES_Z = (CJ_OUT_Z + TILE_Z - 1) / TILE_Z, TILES_Y = (CJ_OUT_Y + TILE_Y - 1) / TILE_Y;
constexpr int TILES_X = (CJ_OUT_X + TILE_X - 1) / TILE_X;
constexpr int TAPS = CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X;
constexpr long long OUT_CHANNELS = (long long)CJ_GROUPS * CJ_GROUP_OUT;

/* Input rows under a thread's outputs, and columns under them and ROW_TAPS taps. */
constexpr int SPAN_Y = (CJ_ROWS - 1) * CJ_STRIDE_Y + (CJ_KERNEL_Y - 1) * CJ_DILATION_Y + 1;
constexpr int WINDOW = (CJ_COLUMNS - 1) * CJ_STRIDE_X + (CJ_ROW_TAPS - 1) * CJ_DILATION_X + 1;
constexpr int X_GROUPS = CJ_KERNEL_X / CJ_ROW_TAPS;
/* A thread with one row meets only the rows of its taps. */
constexpr int STEP_Y = CJ_ROWS == 1 ? CJ_DILATION_Y : 1;
constexpr int UNROLL_Y = CJ_UNROLL_Y ? (SPAN_Y - 1) / STEP_Y + 1 : 1; /* #pragma unroll takes no expression */
constexpr bool CLOSES = TAPS > CJ_CLOSE_AFTER;

/* Which input positions may lie in the padding, of outputs that exist. */
constexpr bool PADDED_Z = CJ_PAD_Z > 0 || (CJ_OUT_Z - 1) * CJ_STRIDE_Z + (CJ_KERNEL_Z - 1) * CJ_DILATION_Z >= CJ_IN_Z;
constexpr int LAST_Y = (CJ_OUT_Y - 1) / CJ_ROWS * CJ_ROWS * CJ_STRIDE_Y - CJ_PAD_Y; /* the last thread's first input row */
constexpr int LAST_X = (CJ_OUT_X - 1) / CJ_COLUMNS * CJ_COLUMNS * CJ_STRIDE_X - CJ_PAD_X +
                       (CJ_KERNEL_X - CJ_ROW_TAPS) * CJ_DILATION_X; /* where a thread's last window begins */

/* Are y + i and x + e inside the input? Each end is looked at only for those i and e that may be beyond it. */
__device__ __forceinline__ bool exists_y(int y, int i) {
    return (i >= CJ_PAD_Y || y >= -i) && (LAST_Y + i < CJ_IN_Y || y < CJ_IN_Y - i);
}

__device__ __forceinline__ bool exists_x(int x, int e) {
    return (e >= CJ_PAD_X || x >= -e) && (LAST_X + e < CJ_IN_X || x < CJ_IN_X - e);
}

typedef cj_memory<CJ_DATA_TYPE> data;

__device__ __forceinline__ constexpr int least(long long a, long long b) {
    return (int)(a < b ? a : b);
}

/* One tile: its first output. */
struct tile {
    long long n;
    int k, z, y, x;
};

/* Neighbouring tiles share input. Channels first, the channels of the next image follow the last of one: then a tile may
 * have channels of both. */
template <class integer> __device__ __forceinline__ tile tile_at(integer index) {
    int place = (int)take(index, TILES_Z * TILES_Y * TILES_X);
    tile t;
    t.x = take(place, TILES_X) * TILE_X;
    t.y = take(place, TILES_Y) * TILE_Y;
    t.z = place * TILE_Z;
    if (CJ_CHANNELS_LAST) {
        t.k = (int)take(index, (OUT_CHANNELS + TILE_K - 1) / TILE_K) * TILE_K;
    } else {
        index *= TILE_K;
        t.k = (int)take(index, OUT_CHANNELS);
    }
    t.n = index;
    return t;
}

/* In 32 bits where that suffices: divisions are faster. */
__device__ __forceinline__ tile make_tile(const cj_forward_args &args, long long index) {
    return args.tiles < 0x7fffffff / TILE_K ? tile_at((int)index) : tile_at(index);
}

/* Sums of one thread: part is open; total is compensated, and part starts at its rounding error. */
struct sums {
    float part[CJ_ROWS][CJ_COLUMNS][CHANNELS], total[CJ_ROWS][CJ_COLUMNS][CHANNELS];
};

/* Closes the parts of output row r; `first`: nothing was closed before. */
__device__ __forceinline__ void close_row(sums &s, int r, bool first) {
#pragma unroll
    for (int i = 0; i < CJ_COLUMNS * CHANNELS; ++i) {
        float &part = (&s.part[r][0][0])[i], &total = (&s.total[r][0][0])[i];
        const float sum = first ? part : total + part, error = part - (sum - total);
        part = !first && fabsf(sum) < __int_as_float(0x7f800000) ? error : 0.0F; /* Inf - Inf is no error */
        total = sum;
    }
}

/* The row of taps by which input row i of those under the thread reaches its output row r; negative if there is none. */
__device__ __forceinline__ int tap_row(int i, int r) {
    const int distance = i - r * CJ_STRIDE_Y;
    return distance < 0 || distance % CJ_DILATION_Y != 0 || distance / CJ_DILATION_Y >= CJ_KERNEL_Y ? -1
                                                                                                     : distance / CJ_DILATION_Y;
}

/* After slice jz's taps on input row i. Rows in the padding come here too: they are the first ones or the last. */
__device__ __forceinline__ void close_rows(sums &s, int jz, int i) {
#pragma unroll
    for (int r = 0; r < CJ_ROWS; ++r) {
        const int jy = tap_row(i, r);
        const bool last = jy == CJ_KERNEL_Y - 1;
        if (CJ_KERNEL_Z == 1 && last) { /* so that the total's registers are free */
#pragma unroll
            for (int k = 0; k < CJ_COLUMNS * CHANNELS; ++k) {
                (&s.part[r][0][0])[k] += (&s.total[r][0][0])[k];
            }
        } else if (jy >= 0 && CJ_CLOSE_ROWS > 0 && (last || (jy + 1) % (CJ_CLOSE_ROWS > 0 ? CJ_CLOSE_ROWS : 1) == 0)) {
            close_row(s, r, jz == 0 && jy < CJ_CLOSE_ROWS);
        }
    }
}

/* Packed weights: [channels / CHANNELS][rows of ROW_TAPS taps][TAP_PITCH], where TAP_PITCH is [ROW_TAPS][CHANNELS] filled up
 * to a multiple of 4; then bias[channels], channels filled up to a multiple of CHANNELS. All float32, filled up with zeros. */
constexpr int TAP_ROWS = TAPS / CJ_ROW_TAPS, TAP_PITCH = (CJ_ROW_TAPS * CHANNELS + 3) / 4 * 4;
constexpr long long CHANNEL_GROUPS = (OUT_CHANNELS + CHANNELS - 1) / CHANNELS;
constexpr long long GROUP_PITCH = (long long)TAP_ROWS * TAP_PITCH;
constexpr long long PACKED_WEIGHTS = CHANNEL_GROUPS * GROUP_PITCH;
constexpr int UNROLL_Z = CJ_HOLD_WEIGHTS ? CJ_KERNEL_Z : 1;

/* Of a thread's channels, which lie in memory or in shared memory. */
struct weights {
    const float *packed;
    float held[CJ_HOLD_WEIGHTS ? TAP_ROWS : 1][TAP_PITCH];

    static __device__ __forceinline__ void load(float *to, const float *from) {
#pragma unroll
        for (int i = 0; i < TAP_PITCH; i += 4) {
            const float4 four = *(const float4 *)(from + i);
            to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
        }
    }
    __device__ __forceinline__ explicit weights(const float *from) : packed(from) {
        if (CJ_HOLD_WEIGHTS) {
#pragma unroll
            for (int row = 0; row < TAP_ROWS; ++row) {
                load(held[row], packed + row * TAP_PITCH);
            }
        }
    }
    __device__ __forceinline__ void get(int row, float *to) const {
        if (CJ_HOLD_WEIGHTS) {
#pragma unroll
            for (int i = 0; i < TAP_PITCH; ++i) {
                to[i] = held[row][i];
            }
        } else {
            load(to, packed + row * TAP_PITCH);
        }
    }
};

/* ROW_TAPS taps, the jx-th ones of slice jz, of all output rows that input row i reaches; x is the input column of the first
 * output's first one of these taps. */
template <class input_row>
__device__ __forceinline__ void add_row(sums &s, const input_row &row, const weights &w, int jz, int i, int jx, int x) {
    float in[WINDOW][CHANNELS];
    bool exists[WINDOW];
#pragma unroll
    for (int e = 0; e < WINDOW; ++e) {
        exists[e] = exists_x(x, e);
        if (exists[e]) {
            row.load(x + e, in[e]);
        }
    }
#pragma unroll
    for (int r = 0; r < CJ_ROWS; ++r) {
        const int jy = tap_row(i, r);
        if (jy < 0) {
            continue;
        }
        float weight[TAP_PITCH];
        w.get((jz * CJ_KERNEL_Y + jy) * X_GROUPS + jx, weight);
#pragma unroll
        for (int j = 0; j < CJ_ROW_TAPS; ++j) {
#pragma unroll
            for (int c = 0; c < CJ_COLUMNS; ++c) {
                const int e = c * CJ_STRIDE_X + j * CJ_DILATION_X;
                if (exists[e]) {
#pragma unroll
                    for (int k = 0; k < CHANNELS; ++k) {
                        s.part[r][c][k] = fmaf(weight[j * CHANNELS + k], in[e][k], s.part[r][c][k]);
                    }
                }
            }
        }
        if (CLOSES && CJ_CLOSE_ROWS == 0) {
            close_row(s, r, false);
        }
    }
}

/* All taps; (z, y, x) is the input position of the first output's first one. `input` gives its rows. */
template <class input_rows>
__device__ __forceinline__ void add_taps(sums &s, const input_rows &input, const weights &w, int z, int y, int x) {
#pragma unroll UNROLL_Z
    for (int jz = 0; jz < CJ_KERNEL_Z; ++jz) {
        const int in_z = z + jz * CJ_DILATION_Z;
        if (PADDED_Z && (in_z < 0 || in_z >= CJ_IN_Z)) {
            continue;
        }
#pragma unroll UNROLL_Y
        for (int i = 0; i < SPAN_Y; i += STEP_Y) {
            if (exists_y(y, i)) {
                const auto row = input.row(in_z, y + i);
#pragma unroll 1
                for (int jx = 0; jx < X_GROUPS; ++jx) {
                    add_row(s, row, w, jz, i, jx, x + jx * (CJ_ROW_TAPS * CJ_DILATION_X));
                }
            }
            if (CLOSES) {
                close_rows(s, jz, i);
            }
        }
    }
}

/* Those of channel k, and of the CHANNELS - 1 after it. */
__device__ __forceinline__ const float *weights_of(const cj_forward_args &args, int k) {
    return (const float *)args.packed + (long long)(k / CHANNELS) * GROUP_PITCH;
}

__device__ __forceinline__ float bias_of(const cj_forward_args &args, long long k) {
    return ((const float *)args.packed)[PACKED_WEIGHTS + k];
}

/* alpha * conv + bias of the sums' row r and column c. */
__device__ __forceinline__ float finish_sum(const sums &s, int r, int c, int channel, float bias) {
    return cj_linear(CLOSES && CJ_KERNEL_Z > 1 ? s.total[r][c][channel] + s.part[r][c][channel] : s.part[r][c][channel], bias);
}

#if CJ_CHANNELS_LAST
#include "depthwise/pixels.cuh"
#elif CJ_RUN == 4
#include "depthwise/strips.cuh"
#else
#include "depthwise/planes.cuh"
#endif

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    const long long step = (long long)gridDim.x * CJ_THREADS;
    for (long long i = (long long)blockIdx.x * CJ_THREADS + threadIdx.x; i < args.work; i += step) {
        float value = 0.0F;
        if (i < PACKED_WEIGHTS) {
            long long index = i;
            const int place = (int)take(index, TAP_PITCH), row = (int)take(index, TAP_ROWS);
            const long long k = index * CHANNELS + place % CHANNELS;
            /* Channels last or not: one input channel a group makes w the same, [k][taps]. */
            if (place < CJ_ROW_TAPS * CHANNELS && k < OUT_CHANNELS) {
                value = cj_memory<CJ_WEIGHT_TYPE>::load(args.w, k * TAPS + row * CJ_ROW_TAPS + place / CHANNELS);
            }
        } else if (args.bias && i - PACKED_WEIGHTS < OUT_CHANNELS) {
            value = cj_memory<CJ_BIAS_TYPE>::load(args.bias, i - PACKED_WEIGHTS);
        }
        ((float *)args.packed)[i] = value;
    }
}
