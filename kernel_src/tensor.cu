/* tensor.cu - convolution on Hopper's tensor cores: filter taps are shifted descriptors of one haloed input tile.
 *
 *   for n, group, block of 64 output channels, output z, tile of TILE_Y x TILE_X outputs:        parallel: blocks
 *     for chunk of CHUNK_C input channels, kernel z (and, if CHUNK_Y = 1, kernel y):             a stage
 *       for 8 input channels, kernel y, kernel x:
 *         sum[64 channels][COLUMNS pixels] += w[64][8] * x[8][pixels, shifted by the tap]        wgmma
 *
 * Roles. 384 threads: two consumer warpgroups, each with COLUMNS pixels or 64 channels of its own, and a producer
 * warpgroup that fills STAGES buffers in turn with the input under the tile, halo included and padding as zeros. Barriers
 * full[i] and empty[i] hand a buffer over and back.
 *
 * Shared memory holds 16-byte units: four channels of one pixel. A buffer is
 *   unit[PARTS][CHUNK_C / 4][PARITIES_Y][PARITIES_X][ROWS][PITCH]
 * with input row = row * stride + parity, and the same for columns: so a tap (ky, kx) is one constant distance, whatever
 * stride and dilation are. The columns of a product are consecutive units: pixel i of a run is output row i / PITCH and
 * column i % PITCH; columns from TILE_X on are computed and thrown away.
 *
 * Accuracy (PARTS = 2). x and w are split into hi = tf32(x) and lo = tf32(x - hi), and three products are added up: hi * lo,
 * lo * hi, hi * hi. The tensor core truncates as it adds, so sums of UNROLL_K x UNROLL_Y x KERNEL_X taps are closed and
 * added to float32 registers. PARTS = 1 is math tf32: one product, nothing closed.
 *
 * The surprising rule: a result that is not finite is looked at again, from packed weights and x, by the plain loop in
 * float64. 0 * Inf in the padding, Inf - Inf in a split, and a rounding up to Inf all end as NaN or Inf, and never hide one.
 */
#include "words.cuh"
#include "hopper.cuh"
#include "args.h"
#include "types.cuh"
#include "layer.cuh"
#include "epilogue.cuh"

/* ---- stamped constants (those of the layer: see direct.cu) ----------------------------------------------------------
 * name                      meaning                                                                      example
 * CJ_PARTS                  tf32 numbers a value is split into: 2 (math fp32) or 1 (tf32)                2
 * CJ_COLUMNS                N of a product: pixels of a run                                              128
 * CJ_CONSUMERS_K            consumers that differ in output channels: 1 or 2 (else in pixels)            1
 * CJ_TILE_X                 output columns of a tile                                                     128
 * CJ_RUN_ROWS               output rows of a run                                                         1
 * CJ_CHUNK_C                input channels of a stage, a multiple of 8                                   8
 * CJ_CHUNK_Y                kernel rows of a stage: KERNEL_Y or 1                                        5
 * CJ_STAGES                 buffers                                                                      2
 * CJ_UNROLL_K, CJ_UNROLL_Y  groups of 8 channels, and kernel rows, whose products form one sum           1, 1
 * CJ_SHARED_BYTES           dynamic shared memory                                                        150000
 * and those of hopper.cuh and epilogue.cuh */

constexpr int CONSUMERS = 2, WARPGROUP = 128, M = 64;
constexpr int RUNS = CONSUMERS / CJ_CONSUMERS_K;
constexpr int TILE_K = M * CJ_CONSUMERS_K, TILE_X = CJ_TILE_X, TILE_Y = RUNS * CJ_RUN_ROWS;
constexpr int K_TILES = (CJ_GROUP_OUT + TILE_K - 1) / TILE_K;
constexpr int PLANES = CJ_CHUNK_C / 4, K_STEPS = CJ_CHUNK_C / 8;
constexpr int CHUNKS_C = (CJ_GROUP_IN + CJ_CHUNK_C - 1) / CJ_CHUNK_C, CHUNKS_Y = CJ_KERNEL_Y / CJ_CHUNK_Y;
constexpr int CHUNKS = CHUNKS_C * CJ_KERNEL_Z * CHUNKS_Y; /* stages of a tile */

/* One kernel row (column) needs only rows (columns) of one parity. */
constexpr int PARITIES_Y = CJ_CHUNK_Y > 1 ? CJ_STRIDE_Y : 1, PARITIES_X = CJ_KERNEL_X > 1 ? CJ_STRIDE_X : 1;
constexpr int TAP_Y = CJ_CHUNK_Y > 1 ? CJ_DILATION_Y : 0, TAP_X = CJ_KERNEL_X > 1 ? CJ_DILATION_X : 0;
constexpr int ROWS = TILE_Y + (CJ_CHUNK_Y - 1) * TAP_Y / CJ_STRIDE_Y;
constexpr int PITCH = TILE_X + (CJ_KERNEL_X - 1) * TAP_X / CJ_STRIDE_X;
constexpr int PLANE = PARITIES_Y * PARITIES_X * ROWS * PITCH; /* units */
constexpr int PART = PLANES * PLANE, BUFFER = CJ_PARTS * PART;

/* Shared memory: buffers, what the last run may reach past them, a piece of outputs a consumer warp, barriers. */
constexpr int OUT_COLUMNS = 32, OUT_PITCH = OUT_COLUMNS + 8; /* floats; 8: rows start in other banks */
constexpr int OUT_OFFSET = 16 * (CJ_STAGES * BUFFER + CJ_COLUMNS);
constexpr int BARRIER_OFFSET = OUT_OFFSET + 4 * CONSUMERS * 4 * 16 * OUT_PITCH;
static_assert(BARRIER_OFFSET + 16 * CJ_STAGES <= CJ_SHARED_BYTES, "plan and kernel disagree");
static_assert((CJ_RUN_ROWS - 1) * PITCH + TILE_X <= CJ_COLUMNS, "plan and kernel disagree");

/* Packed weights: uint4[group][k block of 64][chunk][k step][CHUNK_Y][KERNEL_X][PARTS][128 threads], each thread's A operand
 * (rows lane / 4 and + 8 of its warp's 16, channels lane % 4 and + 4), then bias[group][GROUP_OUT] as floats. */
constexpr int K_BLOCKS = K_TILES * CJ_CONSUMERS_K;
constexpr int STEP_WEIGHTS = CJ_PARTS * WARPGROUP;
constexpr long long CHUNK_WEIGHTS = (long long)K_STEPS * CJ_CHUNK_Y * CJ_KERNEL_X * STEP_WEIGHTS;
constexpr long long BLOCK_WEIGHTS = CHUNKS * CHUNK_WEIGHTS;
constexpr long long PACKED_WEIGHTS = CJ_GROUPS * K_BLOCKS * BLOCK_WEIGHTS;

struct tile {
    long long n, group, k_tile, z, y, x; /* z, y, x: first output */
};

/* Neighbouring tiles share input: channels change fastest. */
__device__ __forceinline__ tile make_tile(long long index, const sizes &size) {
    tile t;
    t.k_tile = take(index, K_TILES);
    t.x = take(index, (size.out_x + TILE_X - 1) / TILE_X) * TILE_X;
    t.y = take(index, (size.out_y + TILE_Y - 1) / TILE_Y) * TILE_Y;
    t.z = take(index, size.out_z);
    t.group = take(index, CJ_GROUPS);
    t.n = index;
    return t;
}

/* Which channels and kernel taps chunk i of a tile holds. */
struct chunk {
    int c, kernel_z, kernel_y;
};

__device__ __forceinline__ chunk make_chunk(int index) {
    chunk result;
    result.kernel_y = index % CHUNKS_Y * CJ_CHUNK_Y;
    result.kernel_z = index / CHUNKS_Y % CJ_KERNEL_Z;
    result.c = index / (CHUNKS_Y * CJ_KERNEL_Z) * CJ_CHUNK_C;
    return result;
}

/* Distance in units of tap (y, x) of a chunk from tap (0, 0): that of its row plus that of its column. */
constexpr __device__ __forceinline__ int row_distance(int y) {
    return (y * TAP_Y % CJ_STRIDE_Y * PARITIES_X * ROWS + y * TAP_Y / CJ_STRIDE_Y) * PITCH;
}
constexpr __device__ __forceinline__ int column_distance(int x) {
    return x * TAP_X % CJ_STRIDE_X * ROWS * PITCH + x * TAP_X / CJ_STRIDE_X;
}

/* hi and lo of a value; lo is 0 where hi is not finite. */
__device__ __forceinline__ void split(float value, unsigned &hi, unsigned &lo) {
    hi = cj_f32_to_tf32(value);
    lo = (hi & 0x7f800000) == 0x7f800000 ? 0 : cj_f32_to_tf32(value - __uint_as_float(hi));
}

/* The producer's part of one stage: four channels of a pixel at a time, neighbouring threads neighbouring columns. */
__device__ __forceinline__ void fill(uint4 *buffer, const cj_forward_args &args, const sizes &size, const tile &t,
                                     const chunk &piece, int thread) {
    constexpr int IN_ROWS = ROWS * PARITIES_Y, IN_COLUMNS = PITCH * PARITIES_X;
    constexpr int STEP_Y = PARITIES_Y > 1 ? 1 : CJ_STRIDE_Y, STEP_X = PARITIES_X > 1 ? 1 : CJ_STRIDE_X;
    const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + piece.kernel_z * CJ_DILATION_Z;
    const long long y0 = t.y * CJ_STRIDE_Y - CJ_PAD_Y + piece.kernel_y * CJ_DILATION_Y;
    const long long x0 = t.x * CJ_STRIDE_X - CJ_PAD_X;
    const bool inside_z = z >= 0 && z < size.in_z;
    const range ys = inside(y0, size.in_y, IN_ROWS * STEP_Y), xs = inside(x0, size.in_x, IN_COLUMNS * STEP_X);
    const int channels = inside_z ? (CJ_GROUP_IN - piece.c < CJ_CHUNK_C ? CJ_GROUP_IN - piece.c : CJ_CHUNK_C) : 0;
    const float *x = (const float *)args.x + t.n * args.x_batch_stride +
                     (t.group * CJ_GROUP_IN + piece.c) * args.x_channel_stride + (z * size.in_y + y0) * size.in_x + x0;
#pragma unroll 4
    for (int i = thread; i < PLANES * IN_ROWS * IN_COLUMNS; i += WARPGROUP) {
        const int column = i % IN_COLUMNS, row = i / IN_COLUMNS % IN_ROWS, plane = i / (IN_COLUMNS * IN_ROWS);
        const int in_y = row * STEP_Y, in_x = column * STEP_X;
        const bool in = in_y >= ys.low && in_y < ys.high && in_x >= xs.low && in_x < xs.high;
        const float *from = x + plane * 4 * args.x_channel_stride + in_y * (in_offset)size.in_x + in_x;
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            v[c] = in && plane * 4 + c < channels ? from[c * args.x_channel_stride] : 0.0F;
        }
        uint4 hi, lo;
        split(v[0], hi.x, lo.x), split(v[1], hi.y, lo.y), split(v[2], hi.z, lo.z), split(v[3], hi.w, lo.w);
        const int to = ((plane * PARITIES_Y + row % PARITIES_Y) * PARITIES_X + column % PARITIES_X) * ROWS * PITCH +
                       row / PARITIES_Y * PITCH + column / PARITIES_X;
        buffer[to] = hi;
        if (CJ_PARTS == 2) {
            buffer[PART + to] = lo;
        }
    }
}

/* The plain loop, in float64: one output anew, padding skipped. k counts within the k block. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const uint4 *weights, int k, long long o_y, long long o_x) {
    double sum = 0.0;
    for (int c = 0; c < CJ_GROUP_IN; ++c) {
        const float *x = (const float *)args.x + t.n * args.x_batch_stride + (t.group * CJ_GROUP_IN + c) * args.x_channel_stride;
        for (int tap = 0; tap < CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X; ++tap) {
            const int kx = tap % CJ_KERNEL_X, ky = tap / CJ_KERNEL_X % CJ_KERNEL_Y, kz = tap / (CJ_KERNEL_X * CJ_KERNEL_Y);
            const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + kz * CJ_DILATION_Z;
            const long long y = o_y * CJ_STRIDE_Y - CJ_PAD_Y + ky * CJ_DILATION_Y;
            const long long x_ = o_x * CJ_STRIDE_X - CJ_PAD_X + kx * CJ_DILATION_X;
            if (z < 0 || z >= size.in_z || y < 0 || y >= size.in_y || x_ < 0 || x_ >= size.in_x) {
                continue;
            }
            const int piece = (c / CJ_CHUNK_C * CJ_KERNEL_Z + kz) * CHUNKS_Y + ky / CJ_CHUNK_Y;
            const int step = (c % CJ_CHUNK_C / 8 * CJ_CHUNK_Y + ky % CJ_CHUNK_Y) * CJ_KERNEL_X + kx;
            const uint4 *a = weights + piece * CHUNK_WEIGHTS + step * STEP_WEIGHTS + k / 16 * 32 + k % 8 * 4 + c % 4;
            const int word = k % 16 / 8 + c % 8 / 4 * 2;
            double w = (double)((const float *)a)[word];
            if (CJ_PARTS == 2) {
                w += (double)((const float *)(a + WARPGROUP))[word];
            }
            sum += w * (double)x[(z * size.in_y + y) * size.in_x + x_];
        }
    }
    return (float)sum;
}

/* One consumer's outputs to memory: each warp its 16 channels, 32 columns at a time through shared memory. */
__device__ __forceinline__ void store(const float (&sum)[CJ_COLUMNS / 2], float *out, const cj_forward_args &args,
                                      const sizes &size, const tile &t, const uint4 *weights, int k_block, int run, int thread) {
    const int lane = thread % 32, warp = thread / 32, row = lane / 4;
    const long long first_k = (long long)k_block * M + warp * 16, channel = t.group * CJ_GROUP_OUT + first_k;
    const float *bias = (const float *)((const uint4 *)args.packed + PACKED_WEIGHTS) + channel;
    const float b[2] = {first_k + row < CJ_GROUP_OUT ? bias[row] : 0.0F, first_k + row + 8 < CJ_GROUP_OUT ? bias[row + 8] : 0.0F};
    const int channels = CJ_GROUP_OUT - first_k < 16 ? (int)(CJ_GROUP_OUT - first_k) : 16;
    float *y = (float *)args.y + t.n * args.y_batch_stride + channel * args.y_channel_stride;
    const float *z = (const float *)args.z + t.n * args.z_batch_stride + channel * args.z_channel_stride;
#pragma unroll
    for (int piece = 0; piece < CJ_COLUMNS / OUT_COLUMNS; ++piece) {
        bool strange = false;
        __syncwarp();
#pragma unroll
        for (int j = 0; j < OUT_COLUMNS / 8; ++j) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float *s = &sum[(piece * (OUT_COLUMNS / 8) + j) * 4 + half * 2];
                strange |= !(s[0] - s[0] == 0.0F && s[1] - s[1] == 0.0F);
                *(float2 *)&out[(row + half * 8) * OUT_PITCH + j * 8 + lane % 4 * 2] =
                    make_float2(cj_linear(s[0], b[half]), cj_linear(s[1], b[half]));
            }
        }
        const bool any_strange = __any_sync(0xffffffff, strange);
        const int i = piece * OUT_COLUMNS + lane;
        const long long o_y = t.y + run * CJ_RUN_ROWS + i / PITCH, o_x = t.x + i % PITCH;
        const bool there = i / PITCH < CJ_RUN_ROWS && i % PITCH < TILE_X && o_y < size.out_y && o_x < size.out_x;
        const long long o = (t.z * size.out_y + o_y) * size.out_x + o_x;
        if (there) {
#pragma unroll 4
            for (int k = 0; k < channels; ++k) {
                float value = out[k * OUT_PITCH + lane];
                if (any_strange && !(value - value == 0.0F)) { /* see "the surprising rule" */
                    value = cj_linear(exact_output(args, size, t, weights, warp * 16 + k, o_y, o_x), bias[k]);
                }
                y[k * args.y_channel_stride + o] = cj_finish(value, CJ_HAS_Z ? z[k * args.z_channel_stride + o] : 0.0F);
            }
        }
    }
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    CJ_SHARED_MEMORY(shared);
    uint4 *const buffers = (uint4 *)shared;
    cj_barrier *const full = (cj_barrier *)(shared + BARRIER_OFFSET), *const empty = full + CJ_STAGES;
    const int thread = (int)threadIdx.x % WARPGROUP, group = (int)threadIdx.x / WARPGROUP;
    const sizes size = get_sizes(args);
    if (threadIdx.x == 0) {
        for (int i = 0; i < CJ_STAGES; ++i) {
            cj_barrier_init(&full[i], WARPGROUP);
            cj_barrier_init(&empty[i], CONSUMERS * WARPGROUP);
        }
        cj_barrier_init_fence();
    }
    __syncthreads();

    int buffer = 0;
    unsigned parity = 0; /* of the phases of full[buffer] and empty[buffer] that come next */
    if (group == CONSUMERS) { /* producer */
        for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
            const tile t = make_tile(index, size);
            for (int i = 0; i < CHUNKS; ++i) {
                cj_barrier_wait(&empty[buffer], parity ^ 1); /* the first time round all buffers are empty */
                fill(buffers + buffer * BUFFER, args, size, t, make_chunk(i), thread);
                cj_async_fence();
                cj_barrier_arrive(&full[buffer]);
                buffer = buffer + 1 == CJ_STAGES ? 0 : buffer + 1;
                parity ^= buffer == 0;
            }
        }
    } else {
        const int run = group % RUNS, block = group / RUNS;
        float *const out = (float *)(shared + OUT_OFFSET) + (group * 4 + thread / 32) * 16 * OUT_PITCH;
        for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
            const tile t = make_tile(index, size);
            const int k_block = (int)t.k_tile * CJ_CONSUMERS_K + block;
            const uint4 *const weights = (const uint4 *)args.packed + (t.group * K_BLOCKS + k_block) * BLOCK_WEIGHTS;
            const uint4 *next = weights + thread;
            float sum[CJ_COLUMNS / 2], total[CJ_PARTS == 2 ? CJ_COLUMNS / 2 : 1];
#pragma unroll
            for (int i = 0; i < CJ_COLUMNS / 2; ++i) {
                sum[i] = 0.0F;
                total[CJ_PARTS == 2 ? i : 0] = 0.0F;
            }
            uint4 a[2][CJ_PARTS];
#pragma unroll
            for (int part = 0; part < CJ_PARTS; ++part) {
                a[0][part] = next[part * WARPGROUP];
            }
            for (int i = 0; i < CHUNKS; ++i) {
                cj_barrier_wait(&full[buffer], parity);
                const unsigned long long start =
                    cj_descriptor(buffers + buffer * BUFFER + run * CJ_RUN_ROWS * PITCH, PLANE * 16);
#pragma unroll 1
                for (int k = 0; k < K_STEPS; k += CJ_UNROLL_K) {
#pragma unroll 1
                    for (int y = 0; y < CJ_CHUNK_Y; y += CJ_UNROLL_Y) {
                        const unsigned long long b = start + k * 2 * PLANE;
                        /* One sum: every product of these taps. */
                        constexpr int TAPS = CJ_UNROLL_K * CJ_UNROLL_Y * CJ_KERNEL_X;
#pragma unroll
                        for (int tap = 0; tap < TAPS; ++tap) {
                            const int x = tap % CJ_KERNEL_X, dy = tap / CJ_KERNEL_X % CJ_UNROLL_Y;
                            const int dk = tap / (CJ_KERNEL_X * CJ_UNROLL_Y);
                            const unsigned long long at = b + dk * 2 * PLANE + row_distance(y + dy) + column_distance(x);
                            const int add = CJ_PARTS == 1 || tap > 0;
                            cj_product_fence();
                            if (CJ_PARTS == 2) {
                                cj_product_tf32(sum, a[tap % 2][0], at + PART, add);
                                cj_product_tf32(sum, a[tap % 2][CJ_PARTS - 1], at, 1);
                                cj_product_tf32(sum, a[tap % 2][0], at, 1);
                            } else {
                                cj_product_tf32(sum, a[tap % 2][0], at, 1);
                            }
                            cj_product_commit();
                            next += STEP_WEIGHTS; /* the last load of a block reads past it, but not past packed */
                            cj_product_wait<1>();
#pragma unroll
                            for (int part = 0; part < CJ_PARTS; ++part) {
                                a[(tap + 1) % 2][part] = next[part * WARPGROUP];
                            }
                        }
                        if (CJ_PARTS == 2 || TAPS % 2) {
                            cj_product_wait<0>();
                        }
                        if (TAPS % 2) {
#pragma unroll
                            for (int part = 0; part < CJ_PARTS; ++part) {
                                a[0][part] = a[1][part];
                            }
                        }
                        if (CJ_PARTS == 2) {
#pragma unroll
                            for (int j = 0; j < CJ_COLUMNS / 2; ++j) {
                                total[CJ_PARTS == 2 ? j : 0] += sum[j];
                            }
                        }
                    }
                }
                cj_product_wait<0>();
                cj_barrier_arrive(&empty[buffer]);
                buffer = buffer + 1 == CJ_STAGES ? 0 : buffer + 1;
                parity ^= buffer == 0;
            }
            if (CJ_PARTS == 2) {
#pragma unroll
                for (int j = 0; j < CJ_COLUMNS / 2; ++j) {
                    sum[j] = total[CJ_PARTS == 2 ? j : 0];
                }
            }
            store(sum, out, args, size, t, weights, k_block, run, thread);
        }
    }
}

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    for (long long i = (long long)blockIdx.x * CJ_THREADS + threadIdx.x; i < args.work; i += (long long)gridDim.x * CJ_THREADS) {
        if (i >= PACKED_WEIGHTS) {
            const long long k = i - PACKED_WEIGHTS;
            const bool there = args.bias && k < (long long)CJ_GROUPS * CJ_GROUP_OUT;
            ((float *)((uint4 *)args.packed + PACKED_WEIGHTS))[k] = there ? cj_memory<CJ_BIAS_TYPE>::load(args.bias, k) : 0.0F;
            continue;
        }
        long long index = i;
        const int thread = (int)take(index, WARPGROUP), lane = thread % 32;
        const int part = (int)take(index, CJ_PARTS), kx = (int)take(index, CJ_KERNEL_X), y = (int)take(index, CJ_CHUNK_Y);
        const int step = (int)take(index, K_STEPS);
        const chunk piece = make_chunk((int)take(index, CHUNKS));
        const int block = (int)take(index, K_BLOCKS), group = (int)index;
        unsigned word[4];
        for (int j = 0; j < 4; ++j) {
            const int k = block * M + thread / 32 * 16 + lane / 4 + j % 2 * 8, c = piece.c + step * 8 + lane % 4 + j / 2 * 4;
            float value = 0.0F;
            if (k < CJ_GROUP_OUT && c < CJ_GROUP_IN) {
                const long long tap = (piece.kernel_z * CJ_KERNEL_Y + piece.kernel_y + y) * CJ_KERNEL_X + kx;
                const long long taps = CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X, outer = (long long)group * CJ_GROUP_OUT + k;
                value = cj_memory<CJ_WEIGHT_TYPE>::load(args.w, CJ_WEIGHTS_LAST ? (outer * taps + tap) * CJ_GROUP_IN + c
                                                                                : (outer * CJ_GROUP_IN + c) * taps + tap);
            }
            unsigned hi, lo;
            split(value, hi, lo);
            word[j] = part ? lo : hi;
        }
        ((uint4 *)args.packed)[i] = make_uint4(word[0], word[1], word[2], word[3]);
    }
}
