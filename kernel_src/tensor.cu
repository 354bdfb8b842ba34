/* tensor.cu - convolution on Hopper's tensor cores: filter taps are shifted descriptors of one haloed input tile.
 *
 *   for n, group, block of 64 output channels, output z, tile of TILE_Y x TILE_X outputs:        parallel: blocks
 *     for chunk of CHUNK_C input channels, kernel z (and, if CHUNK_Y = 1, kernel y):             a stage
 *       for 8 input channels, kernel y, kernel x:
 *         sum[64 channels][COLUMNS pixels] += w[64][8] * x[8][pixels, shifted by the tap]        wgmma
 *
 * Roles. 384 threads: two consumer warpgroups, each with COLUMNS pixels or 64 channels of its own; three producer warps
 * that fill STAGES buffers in turn with the input under the tile, halo included and padding as zeros; and one thread that
 * brings the weights, SUM_TAPS taps at a time, to a ring of SLOTS slots. Barriers hand buffers and slots over and back.
 * The second consumer starts half a sum late, so that one adds up while the other multiplies.
 *
 * Shared memory holds 16-byte units: four channels of one pixel. A buffer is
 *   unit[PARTS][CHUNK_C / 4][PARITIES_Y][PARITIES_X][ROWS][PITCH]
 * with input row = row * stride + parity, and the same for columns: so a tap (ky, kx) is one constant distance, whatever
 * stride and dilation are. With few channels (WINDOWS = 1) a unit holds the four pixels of one channel that four
 * neighbouring taps along x read, and the eight taps of a product are two such units: unit[PARTS][CHUNK_C][PARITIES_Y]
 * [ROWS][PITCH], columns a stride apart; taps beyond the kernel have weight 0. The columns of a product are consecutive
 * units: pixel i of a run is output row i / PITCH and column i % PITCH; columns from RUN_X on are computed and thrown away.
 *
 * Accuracy (PARTS = 2). x and w are split into hi = tf32(x) and lo = tf32(x - hi), and four products are added up: lo * lo
 * too, for without it one product alone can be 1.06 * 2^-21 off. With each product the tensor core cuts off what lies
 * below the running sum's last bits: so the small products of CLOSE_TAPS taps come first, then the large ones, and then the
 * sum is closed and added to a compensated float32 total (Kahan). PARTS = 1 is math tf32: one product, nothing closed.
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
 * CJ_WINDOWS                1 = the K of a product is 8 taps along x of one channel, not 8 channels      0
 * CJ_COLUMNS                N of a product: pixels of a run                                              128
 * CJ_CONSUMERS_K            consumers that differ in output channels: 1 or 2 (else in pixels)            1
 * CJ_RUN_X                  output columns of a run                                                      128
 * CJ_RUNS_X                 runs beside each other along x: 1, or 2 with RUN_ROWS 1; else along y        1
 * CJ_RUN_ROWS               output rows of a run                                                         1
 * CJ_CHUNK_C                input channels of a stage, without windows a multiple of 8                   8
 * CJ_CHUNK_Y                kernel rows of a stage: KERNEL_Y or 1                                        5
 * CJ_STAGES                 buffers                                                                      2
 * CJ_SLOTS                  slots of the weights' ring                                                   2
 * CJ_SUM_K, CJ_SUM_Y        groups of 8 channels, and kernel rows, of a slot                             1, 1
 * CJ_CLOSE_TAPS             taps whose products form one sum                                             2
 * CJ_SHARED_BYTES           dynamic shared memory                                                        150000
 * and those of hopper.cuh and epilogue.cuh */

constexpr int CONSUMERS = 2, WARPGROUP = 128, M = 64, FILLERS = 96;
constexpr int RUNS = CONSUMERS / CJ_CONSUMERS_K;
constexpr int TILE_K = M * CJ_CONSUMERS_K, RUN_X = CJ_RUN_X, TILE_X = RUN_X * CJ_RUNS_X;
constexpr int TILE_Y = RUNS / CJ_RUNS_X * CJ_RUN_ROWS;
constexpr int K_TILES = (CJ_GROUP_OUT + TILE_K - 1) / TILE_K;
constexpr int DEPTH = 8; /* K of a product */
constexpr int STEP_C = CJ_WINDOWS ? 1 : DEPTH, K_STEPS = CJ_CHUNK_C / STEP_C, STEP_PLANES = CJ_WINDOWS ? 1 : 2;
constexpr int PLANES = K_STEPS * STEP_PLANES;
constexpr int TAPS_X = CJ_WINDOWS ? (CJ_KERNEL_X + DEPTH - 1) / DEPTH : CJ_KERNEL_X; /* products along x */
constexpr int CHUNKS_C = (CJ_GROUP_IN + CJ_CHUNK_C - 1) / CJ_CHUNK_C, CHUNKS_Y = CJ_KERNEL_Y / CJ_CHUNK_Y;
constexpr int CHUNKS = CHUNKS_C * CJ_KERNEL_Z * CHUNKS_Y; /* stages of a tile */

/* One kernel row (column) needs only rows (columns) of one parity; so do windows, of which 4 * dilation is a multiple of
 * the stride. REACH: input columns from the first to the last unit of an output. */
constexpr int PARITIES_Y = CJ_CHUNK_Y > 1 ? CJ_STRIDE_Y : 1, PARITIES_X = TAPS_X > 1 && !CJ_WINDOWS ? CJ_STRIDE_X : 1;
constexpr int TAP_Y = CJ_CHUNK_Y > 1 ? CJ_DILATION_Y : 0, TAP_X = (CJ_WINDOWS ? DEPTH : 1) * (CJ_KERNEL_X > 1 ? CJ_DILATION_X : 0);
constexpr int REACH = (TAPS_X - 1) * TAP_X + (CJ_WINDOWS ? 4 * CJ_DILATION_X : 0);
constexpr int ROWS = TILE_Y + (CJ_CHUNK_Y - 1) * TAP_Y / CJ_STRIDE_Y;
constexpr int PITCH = TILE_X + REACH / CJ_STRIDE_X;
static_assert(!CJ_WINDOWS || 4 * CJ_DILATION_X % CJ_STRIDE_X == 0, "plan and kernel disagree");
constexpr int PLANE = PARITIES_Y * PARITIES_X * ROWS * PITCH; /* units */
constexpr int K_DISTANCE = CJ_WINDOWS ? 4 * CJ_DILATION_X / CJ_STRIDE_X : PLANE; /* units between the halves of a product's K */
constexpr int PART = PLANES * PLANE, BUFFER = CJ_PARTS * PART;

/* Packed weights: float4[group][k block of 64][chunk][k step][CHUNK_Y][TAPS_X][PARTS][2][64], four channels (or taps along
 * x) of an output channel as the A operand wants them, hi and lo as float32, then bias[group][GROUP_OUT]. */
constexpr int K_BLOCKS = K_TILES * CJ_CONSUMERS_K;
constexpr int PART_WEIGHTS = 2 * M, TAP_WEIGHTS = CJ_PARTS * PART_WEIGHTS, CHUNK_TAPS = K_STEPS * CJ_CHUNK_Y * TAPS_X;
constexpr long long BLOCK_WEIGHTS = (long long)CHUNKS * CHUNK_TAPS * TAP_WEIGHTS;
constexpr long long PACKED_WEIGHTS = CJ_GROUPS * K_BLOCKS * BLOCK_WEIGHTS;
constexpr int SUM_TAPS = CJ_SUM_K * CJ_SUM_Y * TAPS_X;
constexpr int SLOT_WEIGHTS = SUM_TAPS * TAP_WEIGHTS; /* of one k block */

/* Shared memory: buffers, what the last run may reach past them, the ring, a piece of outputs a consumer warp, barriers. */
constexpr int OUT_COLUMNS = 32, OUT_PITCH = OUT_COLUMNS + 8; /* floats; 8: rows start in other banks */
constexpr int RING_OFFSET = 16 * (CJ_STAGES * BUFFER + CJ_COLUMNS);
constexpr int OUT_OFFSET = RING_OFFSET + 16 * CJ_SLOTS * CJ_CONSUMERS_K * SLOT_WEIGHTS;
constexpr int BARRIER_OFFSET = OUT_OFFSET + 4 * CONSUMERS * 4 * 16 * OUT_PITCH;
static_assert(BARRIER_OFFSET + 16 * (CJ_STAGES + CJ_SLOTS) <= CJ_SHARED_BYTES, "plan and kernel disagree");
static_assert((CJ_RUN_ROWS - 1) * PITCH + RUN_X <= CJ_COLUMNS, "plan and kernel disagree");

/* Where a thread is in a ring of buffers: which one, and the parity of that phase of its barriers that comes next. One
 * register; the counter may wrap, for counts are powers of two. */
template <int count> struct turn {
    unsigned steps;
    __device__ __forceinline__ int index() const {
        return (int)(steps % count);
    }
    __device__ __forceinline__ unsigned parity() const {
        return steps / count % 2;
    }
    __device__ __forceinline__ void next() {
        ++steps;
    }
};
static_assert((CJ_STAGES & (CJ_STAGES - 1)) == 0 && (CJ_SLOTS & (CJ_SLOTS - 1)) == 0, "plan and kernel disagree");

struct tile {
    long long n, group, k_tile, z, y, x; /* z, y, x: first output */
};

/* First output row and column of a run in its tile. */
__device__ __forceinline__ int run_y(int run) {
    return CJ_RUNS_X > 1 ? 0 : run * CJ_RUN_ROWS;
}
__device__ __forceinline__ int run_x(int run) {
    return CJ_RUNS_X > 1 ? run * RUN_X : 0;
}

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

/* Filling. A job is one row of one plane for LANES threads: UNITS units each, neighbouring threads neighbouring columns. */
constexpr int IN_ROWS = ROWS * PARITIES_Y, IN_COLUMNS = PITCH * PARITIES_X, JOBS = PLANES * IN_ROWS;
constexpr int STEP_Y = PARITIES_Y > 1 ? 1 : CJ_STRIDE_Y, STEP_X = PARITIES_X > 1 ? 1 : CJ_STRIDE_X;
constexpr int LANES = IN_COLUMNS > 16 ? 32 : IN_COLUMNS > 8 ? 16 : 8, TEAMS = FILLERS / LANES;
constexpr int UNITS = (IN_COLUMNS + LANES - 1) / LANES;
constexpr int WINDOW_STEP = CJ_WINDOWS ? CJ_DILATION_X : 0; /* input columns between the numbers of a unit */

/* Where one stage's input lies. */
struct source {
    const float *x;  /* channel 0 of the chunk, first row and column of the buffer */
    range ys, xs;    /* of the buffer, that are inside the input */
    int channels;    /* 0 if kernel z lies outside the input */
};

__device__ __forceinline__ source make_source(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const chunk &piece) {
    const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + piece.kernel_z * CJ_DILATION_Z;
    const long long y0 = t.y * CJ_STRIDE_Y - CJ_PAD_Y + piece.kernel_y * CJ_DILATION_Y;
    const long long x0 = t.x * CJ_STRIDE_X - CJ_PAD_X;
    source s;
    s.x = (const float *)args.x + t.n * args.x_batch_stride + (t.group * CJ_GROUP_IN + piece.c) * args.x_channel_stride +
          (z * size.in_y + y0) * size.in_x + x0;
    s.ys = inside(y0, size.in_y, IN_ROWS * STEP_Y);
    s.xs = inside(x0, size.in_x, IN_COLUMNS * STEP_X + 3 * WINDOW_STEP);
    s.channels = z >= 0 && z < size.in_z ? CJ_GROUP_IN - piece.c : 0;
    return s;
}

__device__ __forceinline__ void load_row(float (&v)[UNITS][4], const cj_forward_args &args, const sizes &size,
                                         const source &s, int job, int lane) {
    const int plane = job / IN_ROWS, in_y = job % IN_ROWS * STEP_Y;
    const bool in_row = job < JOBS && in_y >= s.ys.low && in_y < s.ys.high;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const int channel = CJ_WINDOWS ? plane : plane * 4 + c;
        const bool there = in_row && channel < s.channels;
        const float *from = s.x + channel * args.x_channel_stride + in_y * (in_offset)size.in_x;
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int in_x = (i * LANES + lane) * STEP_X + c * WINDOW_STEP;
            v[i][c] = there && in_x >= s.xs.low && in_x < s.xs.high ? from[in_x] : 0.0F;
        }
    }
}

__device__ __forceinline__ void store_row(uint4 *buffer, const float (&v)[UNITS][4], int job, int lane) {
    const int plane = job / IN_ROWS, row = job % IN_ROWS;
    float4 *const to = (float4 *)buffer + (plane * PARITIES_Y + row % PARITIES_Y) * PARITIES_X * ROWS * PITCH +
                       row / PARITIES_Y * PITCH;
#pragma unroll
    for (int i = 0; i < UNITS; ++i) {
        const int column = i * LANES + lane;
        float hi[4], lo[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            hi[c] = cj_round_tf32(v[i][c]);
            lo[c] = cj_round_tf32(v[i][c] - hi[c]); /* NaN if v is not finite, which the surprising rule mends */
        }
        if (job < JOBS && (IN_COLUMNS % LANES == 0 || column < IN_COLUMNS)) {
            float4 *const unit = to + column % PARITIES_X * ROWS * PITCH + column / PARITIES_X;
            unit[0] = make_float4(hi[0], hi[1], hi[2], hi[3]);
            if (CJ_PARTS == 2) {
                unit[PART] = make_float4(lo[0], lo[1], lo[2], lo[3]);
            }
        }
    }
}

/* All stages of all tiles. A row is loaded before the one before it is stored, so that loads are always under way, also
 * while the buffer is waited for. */
__device__ __forceinline__ void fill(uint4 *buffers, cj_barrier *full, cj_barrier *empty, const cj_forward_args &args,
                                     int thread) {
    const sizes size = get_sizes(args);
    const int team = thread / LANES, lane = thread % LANES;
    turn<CJ_STAGES> buffer = {0};
    long long index = blockIdx.x;
    int piece = 0, job = team;
    tile t = make_tile(index, size);
    source s = make_source(args, size, t, make_chunk(0));
    float v[2][UNITS][4];
    load_row(v[0], args, size, s, job, lane);
    while (index < args.tiles) {
#pragma unroll
        for (int now = 0; now < 2; ++now) {
            if (index < args.tiles) {
                const int this_job = job;
                const bool first = job < TEAMS, last = job + TEAMS >= JOBS;
                job = last ? team : job + TEAMS;
                if (last) {
                    piece = piece + 1 == CHUNKS ? 0 : piece + 1;
                    if (piece == 0) {
                        index += gridDim.x;
                        t = make_tile(index, size);
                    }
                    s = make_source(args, size, t, make_chunk(piece));
                }
                if (index < args.tiles) {
                    load_row(v[1 - now], args, size, s, job, lane);
                }
                if (first) {
                    cj_barrier_wait(&empty[buffer.index()], buffer.parity() ^ 1); /* ^ 1: all are empty at first */
                }
                store_row(buffers + buffer.index() * BUFFER, v[now], this_job, lane);
                if (last) {
                    cj_async_fence();
                    cj_barrier_arrive(&full[buffer.index()]);
                    buffer.next();
                }
            }
        }
    }
}

/* The plain loop, in float64: one output anew, padding skipped. k counts within the k block. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const float4 *weights, int k, long long o_y, long long o_x) {
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
            const int step = (c % CJ_CHUNK_C / STEP_C * CJ_CHUNK_Y + ky % CJ_CHUNK_Y) * TAPS_X + (CJ_WINDOWS ? kx / DEPTH : kx);
            const int depth = CJ_WINDOWS ? kx % DEPTH : c % DEPTH;
            const float4 *w = weights + ((long long)piece * CHUNK_TAPS + step) * TAP_WEIGHTS + depth / 4 * M + k;
            double value = (double)((const float *)w)[depth % 4];
            if (CJ_PARTS == 2) {
                value += (double)((const float *)(w + PART_WEIGHTS))[depth % 4];
            }
            sum += value * (double)x[(z * size.in_y + y) * size.in_x + x_];
        }
    }
    return (float)sum;
}

/* See "the surprising rule": one warp's outputs out[16][OUT_COLUMNS], of which lane `lane` looks at one column. */
__device__ __noinline__ void replace_strange(float *out, const cj_forward_args &args, long long index, int k_block, int k,
                                             int column, int run) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const long long o_y = t.y + run_y(run) + column / PITCH, o_x = t.x + run_x(run) + column % PITCH;
    const float4 *weights = (const float4 *)args.packed + (t.group * K_BLOCKS + k_block) * BLOCK_WEIGHTS;
    const float *bias = (const float *)((const float4 *)args.packed + PACKED_WEIGHTS) + t.group * CJ_GROUP_OUT + k_block * M;
    if (column / PITCH >= CJ_RUN_ROWS || column % PITCH >= RUN_X || o_y >= size.out_y || o_x >= size.out_x) {
        return;
    }
    for (int i = 0; i < 16 && k_block * M + k + i < CJ_GROUP_OUT; ++i) {
        float &value = out[i * OUT_PITCH + column % OUT_COLUMNS];
        if (!(value - value == 0.0F)) {
            value = cj_linear(exact_output(args, size, t, weights, k + i, o_y, o_x), bias[k + i]);
        }
    }
}

/* One consumer's outputs to memory: each warp its 16 channels, OUT_COLUMNS columns at a time through shared memory. */
__device__ __forceinline__ void store(const float (&sum)[CJ_COLUMNS / 2], unsigned char *shared, const cj_forward_args &args,
                                      long long index, int thread) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const int group = thread / WARPGROUP, run = group % RUNS, block = group / RUNS;
    const int lane = thread % 32, warp = thread % WARPGROUP / 32, row = lane / 4;
    float *const out = (float *)(shared + OUT_OFFSET) + thread / 32 * 16 * OUT_PITCH;
    const int k_block = (int)t.k_tile * CJ_CONSUMERS_K + block, first_k = k_block * M + warp * 16;
    const int channels = CJ_GROUP_OUT - first_k < 16 ? CJ_GROUP_OUT - first_k : 16;
    const long long channel = t.group * CJ_GROUP_OUT + first_k;
    const float *bias = (const float *)((const float4 *)args.packed + PACKED_WEIGHTS) + channel;
    const float b[2] = {row < channels ? bias[row] : 0.0F, row + 8 < channels ? bias[row + 8] : 0.0F};
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
                const float2 v = make_float2(cj_linear(s[0], b[half]), cj_linear(s[1], b[half]));
                strange |= !(v.x - v.x == 0.0F && v.y - v.y == 0.0F);
                *(float2 *)&out[(row + half * 8) * OUT_PITCH + j * 8 + lane % 4 * 2] = v;
            }
        }
        __syncwarp();
        const int i = piece * OUT_COLUMNS + lane;
        if (__any_sync(0xffffffff, strange)) {
            replace_strange(out, args, index, k_block, warp * 16, i, run);
            __syncwarp();
        }
        const long long o_y = t.y + run_y(run) + i / PITCH, o_x = t.x + run_x(run) + i % PITCH;
        const long long o = (t.z * size.out_y + o_y) * size.out_x + o_x;
        if (i / PITCH < CJ_RUN_ROWS && i % PITCH < RUN_X && o_y < size.out_y && o_x < size.out_x) {
#pragma unroll 4
            for (int k = 0; k < channels; ++k) {
                const float residual = CJ_HAS_Z ? z[k * args.z_channel_stride + o] : 0.0F;
                y[k * args.y_channel_stride + o] = cj_finish(out[k * OUT_PITCH + lane], residual);
            }
        }
    }
}

/* Adds up one tile. */
__device__ __forceinline__ void add_up(float (&total)[CJ_COLUMNS / 2], const uint4 *buffers, const float4 *ring,
                                       cj_barrier *full, cj_barrier *empty, cj_barrier *slot_full, cj_barrier *slot_empty,
                                       turn<CJ_STAGES> &buffer, turn<CJ_SLOTS> &slot, int block, int run) {
    float sum[CJ_COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < CJ_COLUMNS / 2; ++i) {
        total[i] = sum[i] = 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < CHUNKS; ++i) {
        cj_barrier_wait(&full[buffer.index()], buffer.parity());
        const unsigned long long start =
            cj_descriptor(buffers + buffer.index() * BUFFER + run_y(run) * PITCH + run_x(run), K_DISTANCE * 16);
#pragma unroll 1
        for (int k = 0; k < K_STEPS; k += CJ_SUM_K) {
#pragma unroll 1
            for (int y = 0; y < CJ_CHUNK_Y; y += CJ_SUM_Y) {
                cj_barrier_wait(&slot_full[slot.index()], slot.parity());
                const unsigned long long weights =
                    cj_descriptor(ring + (slot.index() * CJ_CONSUMERS_K + block) * SLOT_WEIGHTS, M * 16);
#pragma unroll
                for (int first = 0; first < SUM_TAPS; first += CJ_CLOSE_TAPS) {
                    const int end = first + CJ_CLOSE_TAPS < SUM_TAPS ? first + CJ_CLOSE_TAPS : SUM_TAPS;
                    cj_product_fence();
#pragma unroll
                    for (int pass = 0; pass < CJ_PARTS; ++pass) { /* the small products, then the large ones */
#pragma unroll
                        for (int tap = first; tap < end; ++tap) {
                            const int x = tap % TAPS_X, dy = tap / TAPS_X % CJ_SUM_Y, dk = tap / (TAPS_X * CJ_SUM_Y);
                            const unsigned long long a = weights + tap * TAP_WEIGHTS;
                            const unsigned long long b =
                                start + (k + dk) * STEP_PLANES * PLANE + row_distance(y + dy) + column_distance(x);
                            if (CJ_PARTS == 1) {
                                cj_product_tf32(total, a, b, 1);
                            } else if (pass == 0) {
                                cj_product_tf32(sum, a + PART_WEIGHTS, b + PART, 1);
                                cj_product_tf32(sum, a, b + PART, 1);
                                cj_product_tf32(sum, a + PART_WEIGHTS, b, 1);
                            } else {
                                cj_product_tf32(sum, a, b, 1);
                            }
                        }
                    }
                    cj_product_commit();
                    cj_product_wait<0>();
                    if (end == SUM_TAPS) {
                        cj_barrier_arrive(&slot_empty[slot.index()]);
                        slot.next();
                    }
                    if (CJ_PARTS == 2) { /* what is rounded off is where the next sum begins */
#pragma unroll
                        for (int j = 0; j < CJ_COLUMNS / 2; ++j) {
                            const float before = total[j];
                            total[j] = before + sum[j];
                            sum[j] -= total[j] - before;
                        }
                    }
                }
            }
        }
        cj_barrier_arrive(&empty[buffer.index()]);
        buffer.next();
    }
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    CJ_SHARED_MEMORY(shared);
    uint4 *const buffers = (uint4 *)shared;
    float4 *const ring = (float4 *)(shared + RING_OFFSET);
    cj_barrier *const full = (cj_barrier *)(shared + BARRIER_OFFSET), *const empty = full + CJ_STAGES;
    cj_barrier *const slot_full = empty + CJ_STAGES, *const slot_empty = slot_full + CJ_SLOTS;
    const int thread = (int)threadIdx.x % WARPGROUP, group = (int)threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < CJ_STAGES; ++i) {
            cj_barrier_init(&full[i], FILLERS);
            cj_barrier_init(&empty[i], CONSUMERS * WARPGROUP);
        }
        for (int i = 0; i < CJ_SLOTS; ++i) {
            cj_barrier_init(&slot_full[i], 1);
            cj_barrier_init(&slot_empty[i], CONSUMERS * WARPGROUP);
        }
        cj_barrier_init_fence();
    }
    __syncthreads();

    turn<CJ_SLOTS> slot = {0};
    if (group < CONSUMERS) {
        turn<CJ_STAGES> buffer = {0};
        const int run = group % RUNS, block = group / RUNS;
        if (group == 1) {
            cj_sleep(16 * SUM_TAPS * CJ_COLUMNS / 128 * (CJ_PARTS == 2 ? 4 : 1)); /* 32 cycles of 0.55 ns a product */
        }
        for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
            float total[CJ_COLUMNS / 2];
            add_up(total, buffers, ring, full, empty, slot_full, slot_empty, buffer, slot, block, run);
            /* Nothing of this is worth registers while products run. */
            store(total, shared, args, cj_opaque(index), (int)cj_opaque(threadIdx.x));
        }
    } else if (thread < FILLERS) {
        fill(buffers, full, empty, args, thread);
    } else if (thread == FILLERS) {
        const sizes size = get_sizes(args);
        for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
            const tile t = make_tile(index, size);
            const float4 *weights = (const float4 *)args.packed + (t.group * K_TILES + t.k_tile) * CJ_CONSUMERS_K * BLOCK_WEIGHTS;
            for (int i = 0; i < CHUNKS * CHUNK_TAPS / SUM_TAPS; ++i, weights += SLOT_WEIGHTS) {
                cj_barrier_wait(&slot_empty[slot.index()], slot.parity() ^ 1);
                cj_barrier_expect(&slot_full[slot.index()], 16 * CJ_CONSUMERS_K * SLOT_WEIGHTS);
                for (int block = 0; block < CJ_CONSUMERS_K; ++block) {
                    cj_bulk_load(ring + (slot.index() * CJ_CONSUMERS_K + block) * SLOT_WEIGHTS, weights + block * BLOCK_WEIGHTS,
                                 16 * SLOT_WEIGHTS, &slot_full[slot.index()]);
                }
                slot.next();
            }
        }
    }
}

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    for (long long i = (long long)blockIdx.x * CJ_THREADS + threadIdx.x; i < args.work; i += (long long)gridDim.x * CJ_THREADS) {
        if (i >= PACKED_WEIGHTS) {
            const long long k = i - PACKED_WEIGHTS;
            ((float *)((float4 *)args.packed + PACKED_WEIGHTS))[k] =
                args.bias ? cj_memory<CJ_BIAS_TYPE>::load(args.bias, k) : 0.0F;
            continue;
        }
        long long index = i;
        const int row = (int)take(index, M), half = (int)take(index, 2), part = (int)take(index, CJ_PARTS);
        const int x = (int)take(index, TAPS_X), y = (int)take(index, CJ_CHUNK_Y), step = (int)take(index, K_STEPS);
        const chunk piece = make_chunk((int)take(index, CHUNKS));
        const int k = (int)take(index, K_BLOCKS) * M + row, group = (int)index;
        float value[4];
        for (int j = 0; j < 4; ++j) {
            const int depth = half * 4 + j, c = piece.c + (CJ_WINDOWS ? step : step * DEPTH + depth);
            const int kx = CJ_WINDOWS ? x * DEPTH + depth : x;
            float w = 0.0F;
            if (k < CJ_GROUP_OUT && c < CJ_GROUP_IN && kx < CJ_KERNEL_X) {
                const long long tap = (piece.kernel_z * CJ_KERNEL_Y + piece.kernel_y + y) * CJ_KERNEL_X + kx;
                const long long taps = CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X, outer = (long long)group * CJ_GROUP_OUT + k;
                w = cj_memory<CJ_WEIGHT_TYPE>::load(args.w, CJ_WEIGHTS_LAST ? (outer * taps + tap) * CJ_GROUP_IN + c
                                                                            : (outer * CJ_GROUP_IN + c) * taps + tap);
            }
            const float hi = cj_round_tf32(w), rest = w - hi;
            value[j] = part == 0 ? hi : rest == rest ? cj_round_tf32(rest) : 0.0F;
        }
        ((float4 *)args.packed)[i] = make_float4(value[0], value[1], value[2], value[3]);
    }
}
