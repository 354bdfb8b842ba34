/* tensor.cu - convolution on Hopper's tensor cores: filter taps are shifted descriptors of one haloed input tile.
 *
 *   for n, group, block of TILE_K output channels, output z, tile of TILE_Y x TILE_X outputs:     parallel: blocks
 *     for chunk of CHUNK_C input channels, kernel z (and, if CHUNK_Y = 1, kernel y):              a stage
 *       for two slices of K, eight lines of one tap each:
 *         sum[64 channels][COLUMNS pixels] += w[64][16] * x[16][pixels, shifted by the taps]      wgmma
 *
 * A line is an input channel or, with few channels (FOLD), an input channel and a kernel tap along z and y, or along x too:
 * what those taps read is then copied into lines of its own, and the taps along x that are left stay shifts.
 *
 * Roles. 512 threads: two consumer warpgroups, each with runs of COLUMNS pixels or 64 channels of its own; one group of four
 * filling warps, or two by turns, that bring the input under the tile, halo included and padding as zeros, to STAGES
 * buffers; and, beside one group, a thread that brings the weights to a ring of SLOTS slots. Barriers hand buffers and
 * slots over and back. The second consumer begins LAG slots late, so that one stores its outputs while the other multiplies.
 *
 * Shared memory holds 16-byte units: eight lines of one pixel in half precision. A buffer is
 *   unit[PARTS][CHUNK_C / 8][PARITIES_Y][PARITIES_X][ROWS][PITCH]
 * with input row = row * stride + parity, and the same for columns: so a slice is one constant distance, whatever stride
 * and dilation are (slice_distance). The columns of a product are consecutive units: pixel i of a run is output row
 * i / PITCH and column i % PITCH; columns from RUN_X on are computed and thrown away.
 *
 * Numbers. A value v is multiplied by a power of two s, one for a stage's input and one for an output channel's weights,
 * so that the largest |v| * s lies in [2^14, 2^15), and split: hi = half(v * s), lo = half((v * s - hi) * LO), 22 bits and
 * a sign. PRODUCTS = 4 (math fp32): lo * lo, the two mixed ones, hi * hi, with LO = 2^11 and the sum divided by it in
 * between, so that all |v| * s >= 2^-13 keep their bits; without lo * lo one product alone can be 1.06 * 2^-21 off.
 * PRODUCTS = 3 (fp32_block) leaves it out and has LO = 1, so that nothing comes in between: |v| * s >= 2^-1 keep their
 * bits. PRODUCTS = 1 (tf32) is hi * hi. With each product the tensor core cuts off what lies below the running
 * sum's last bits: so for PRODUCTS > 1 a sum is closed after SUM_PRODUCTS products, enlarged by what such sums
 * lose on average (LOSS), and added to a float32 total, compensated (Kahan) if there are many sums.
 *
 * The surprising rule: a result is computed anew by the plain loop, in float64, (1) if it is not finite: 0 * Inf in the
 * padding, Inf - Inf in a split, and a rounding up to Inf all end as NaN or Inf, and never hide one; (2) if GUARD and the
 * data of its tile, or the weights of its channel, span more than 2^27 and it is so small that the bits they lost could
 * be a 2^-23rd of it (tf32: a 2^-12th); (3) if all data of a stage is below 2^-90 and it is too, for then the total may
 * lose bits that the sums have. On other data nothing is computed twice.
 */
#include "words.cuh"
#include "hopper.cuh"
#include "args.h"
#include "types.cuh"
#include "layer.cuh"
#include "epilogue.cuh"

/* ---- stamped constants (those of the layer: see direct.cu) ----------------------------------------------------------
 * name                      meaning                                                                      example
 * CJ_PRODUCTS               of halves for one of numbers: 4 (math fp32), 3 (fp32_block), 1 (tf32)        4
 * CJ_GUARD                  1 = small results of data of a wide span are computed anew                   1
 * CJ_FOLD                   taps that are lines of their own: 0 none, 1 along z and y, 2 along x too     0
 * CJ_COLUMNS                N of a product: pixels of a run                                              128
 * CJ_CONSUMERS_K            consumers that differ in output channels: 1 or 2 (else in pixels)            1
 * CJ_OWN_RUNS               runs of a consumer: 1 or 2                                                   1
 * CJ_RUN_X                  output columns of a run                                                      128
 * CJ_OVERLAP                ... that the next one has too, so that stores can begin where a sector does  0
 * CJ_RUNS_X                 runs beside each other along x; more than 1 only with RUN_ROWS 1             1
 * CJ_RUN_ROWS               output rows of a run                                                         1
 * CJ_CHUNK_C                lines of a stage, a multiple of 8                                            16
 * CJ_CHUNK_Y                kernel rows of a stage: KERNEL_Y or 1; 1 if they are folded                  5
 * CJ_STAGES                 buffers                                                                      2
 * CJ_SLOTS                  of weights: all of a tile's, or STAGES stages', or a ring of 4 or 2          4
 * CJ_SLOT_PRODUCTS          products of slices whose weights a slot holds                                6
 * CJ_LAG                    slots that the second consumer begins after the first                        2
 * CJ_SUM_PRODUCTS           ... that form one sum; divides SLOT_PRODUCTS                                 3
 * CJ_LOSS                   what a sum loses of itself on average, in 2^-23rds: see kernels.md         1
 * CJ_COMPENSATED            1 = what is rounded off the total is where the next sum begins               1
 * CJ_OUT_BUFFERS            of eight channels' outputs, for each warp: divides 2 OWN_RUNS                2
 * CJ_FILL_GROUPS            groups of filling warps, each with every second stage: 2, or 1               1
 * CJ_LANES                  threads that fill a piece of a row: 8, 16 or 32                              32
 * CJ_JOB_ITEMS              units of such a piece for each of them                                       3
 * CJ_CONSUMER_REGISTERS     of a thread; with the next, 256 if there are two filling groups              168
 * CJ_FILLER_REGISTERS       ... of a filling warp's; else twice the former and this are at most 488      88
 * CJ_SHARED_BYTES           dynamic shared memory                                                        150000
 * and those of hopper.cuh and epilogue.cuh */

constexpr int CONSUMERS = 2, WARPGROUP = 128, M = 64, FILLERS = WARPGROUP, FILL_WARPS = FILLERS / 32;
constexpr int PARTS = CJ_PRODUCTS == 1 ? 1 : 2;
constexpr float LO = CJ_PRODUCTS == 4 ? 2048.0F : 1.0F; /* what lo parts are multiplied by */
constexpr int RUNS = CONSUMERS / CJ_CONSUMERS_K * CJ_OWN_RUNS;
constexpr int TILE_K = M * CJ_CONSUMERS_K, RUN_X = CJ_RUN_X, RUN_STEP = RUN_X - CJ_OVERLAP, TILE_X = RUN_STEP * CJ_RUNS_X;
constexpr int TILE_Y = RUNS / CJ_RUNS_X * CJ_RUN_ROWS;
constexpr int K_TILES = (CJ_GROUP_OUT + TILE_K - 1) / TILE_K;
constexpr int DEPTH = 8; /* lines of a slice: halves of a unit */
constexpr int PLANES = CJ_CHUNK_C / DEPTH;

/* Lines: folded taps change fastest. Kernel taps that are left for loops and shifts. */
constexpr int FOLD_Z = CJ_FOLD >= 1 ? CJ_KERNEL_Z : 1, FOLD_Y = CJ_FOLD >= 1 ? CJ_KERNEL_Y : 1;
constexpr int FOLD_X = CJ_FOLD == 2 ? CJ_KERNEL_X : 1;
constexpr int LINES = CJ_GROUP_IN * FOLD_Z * FOLD_Y * FOLD_X;
constexpr int TAPS_Z = CJ_KERNEL_Z / FOLD_Z, TAPS_Y = CJ_KERNEL_Y / FOLD_Y, TAPS_X = CJ_KERNEL_X / FOLD_X;
constexpr int CHUNKS_C = (LINES + CJ_CHUNK_C - 1) / CJ_CHUNK_C, CHUNKS_Y = TAPS_Y / CJ_CHUNK_Y;
constexpr int CHUNKS = CHUNKS_C * TAPS_Z * CHUNKS_Y; /* stages of a tile */

/* One kernel row (column) needs only rows (columns) of one parity. REACH: input columns from the first to the last unit of
 * an output. */
constexpr int PARITIES_Y = CJ_CHUNK_Y > 1 ? CJ_STRIDE_Y : 1, PARITIES_X = TAPS_X > 1 ? CJ_STRIDE_X : 1;
constexpr int TAP_Y = CJ_CHUNK_Y > 1 ? CJ_DILATION_Y : 0, TAP_X = TAPS_X > 1 ? CJ_DILATION_X : 0;
constexpr int REACH = (TAPS_X - 1) * TAP_X;
constexpr int ROWS = TILE_Y + (CJ_CHUNK_Y - 1) * TAP_Y / CJ_STRIDE_Y;
constexpr int PITCH = TILE_X + CJ_OVERLAP + REACH / CJ_STRIDE_X;
constexpr int PLANE = PARITIES_Y * PARITIES_X * ROWS * PITCH; /* units */
constexpr int PART = PLANES * PLANE, BUFFER = PARTS * PART;

/* Slices of a stage, and products of two. The last slot is filled up with products that have weight 0. */
constexpr int SLICES = PLANES * CJ_CHUNK_Y * TAPS_X;
constexpr int STAGE_SLOTS = ((SLICES + 1) / 2 + CJ_SLOT_PRODUCTS - 1) / CJ_SLOT_PRODUCTS;
constexpr int STAGE_PRODUCTS = STAGE_SLOTS * CJ_SLOT_PRODUCTS;

/* Packed weights: uint4[group][k block of 64][chunk][product][PARTS][2][64], a slice of an output channel each, as the A
 * operand wants them; then float4 channel[group][K_BLOCKS * 64]: bias, 1 / s, guard, hard (see pack); then the weights as
 * floats, [group][GROUP_OUT][GROUP_IN][taps], for the surprising rule. */
constexpr int K_BLOCKS = K_TILES * CJ_CONSUMERS_K;
constexpr bool RESIDENT = CJ_SLOTS == CHUNKS * STAGE_SLOTS && K_TILES == 1 && CJ_GROUPS == 1; /* brought once, for all tiles */
constexpr int PART_WEIGHTS = 2 * M, PRODUCT_WEIGHTS = PARTS * PART_WEIGHTS;
constexpr long long BLOCK_WEIGHTS = (long long)CHUNKS * STAGE_PRODUCTS * PRODUCT_WEIGHTS;
constexpr long long PACKED_WEIGHTS = CJ_GROUPS * K_BLOCKS * BLOCK_WEIGHTS;
constexpr long long CHANNELS = (long long)CJ_GROUPS * K_BLOCKS * M;
constexpr int SLOT_WEIGHTS = CJ_SLOT_PRODUCTS * PRODUCT_WEIGHTS; /* of one k block */
constexpr int TAPS = CJ_KERNEL_Z * CJ_KERNEL_Y * CJ_KERNEL_X;

/* Filling. A job is a piece of a row of a plane, for a team of LANES threads with JOB_ITEMS units each; neighbours take
 * neighbouring units. */
constexpr int IN_ROWS = ROWS * PARITIES_Y, IN_COLUMNS = PITCH * PARITIES_X;
constexpr int STEP_Y = PARITIES_Y > 1 ? 1 : CJ_STRIDE_Y, STEP_X = PARITIES_X > 1 ? 1 : CJ_STRIDE_X;
constexpr int LANES = CJ_LANES, TEAMS = FILLERS / LANES, JOB_COLUMNS = LANES * CJ_JOB_ITEMS;
constexpr int PIECES = (IN_COLUMNS + JOB_COLUMNS - 1) / JOB_COLUMNS, JOBS = PLANES * IN_ROWS * PIECES;
constexpr int TEAM_JOBS = (JOBS + TEAMS - 1) / TEAMS;
typedef float items[CJ_JOB_ITEMS][DEPTH];

/* Shared memory. Outputs of a channel follow each other in memory if a run has one row, or whole rows: then they leave by
 * bulk copies, for which they lie here as they do there within their 16 bytes. Pitches are in floats; + 4 and + 8: rows
 * start in other banks. */
constexpr bool ROWS_JOINED = !CJ_DYNAMIC && RUN_X == CJ_OUT_X && CJ_OVERLAP == 0;
constexpr bool IN_BULK = !CJ_HAS_Z && (CJ_RUN_ROWS == 1 || ROWS_JOINED);
constexpr int OUT_ROWS = 8, OUT_COUNT = ROWS_JOINED ? CJ_RUN_ROWS * RUN_X : CJ_COLUMNS;
constexpr int OUT_PITCH = IN_BULK ? (3 + OUT_COUNT + 7) / 8 * 8 + 4 : (CJ_COLUMNS + 31) / 32 * 32 + 8;
constexpr int RING_OFFSET = 16 * (CJ_STAGES * BUFFER + CJ_COLUMNS); /* COLUMNS: what the last run may reach past a buffer */
constexpr int OUT_OFFSET = RING_OFFSET + 16 * CJ_SLOTS * CJ_CONSUMERS_K * SLOT_WEIGHTS;
constexpr int SCALE_OFFSET = OUT_OFFSET + 4 * CONSUMERS * 4 * CJ_OUT_BUFFERS * OUT_ROWS * OUT_PITCH;
constexpr int SPAN_OFFSET = SCALE_OFFSET + 8 * CJ_STAGES, LINES_OFFSET = SPAN_OFFSET + 8 * 2 * FILL_WARPS * CJ_FILL_GROUPS;
constexpr int FOLDED_LINES = CJ_FOLD > 0 ? CHUNKS_C * CJ_CHUNK_C : 0, CHANNELS_OFFSET = LINES_OFFSET + 16 * FOLDED_LINES;
constexpr bool CHANNELS_SHARED = CHANNELS <= 256;
constexpr int BARRIER_OFFSET = CHANNELS_OFFSET + (CHANNELS_SHARED ? 16 * (int)CHANNELS : 0);
constexpr int BARRIERS = 2 * CJ_STAGES + 2 * CJ_SLOTS + CJ_FILL_GROUPS + 1;
static_assert(BARRIER_OFFSET + 8 * BARRIERS <= CJ_SHARED_BYTES, "plan and kernel disagree");
static_assert((CJ_RUN_ROWS - 1) * PITCH + RUN_X <= CJ_COLUMNS, "plan and kernel disagree");

/* A line that holds kernel taps: its first unit's distance from channel 0's, and the taps. */
struct alignas(16) folded_line {
    long long distance;
    short z, y, x;
};
static_assert(LINES_OFFSET % sizeof(folded_line) == 0, "plan and kernel disagree");

struct shared_memory {
    uint4 *buffers, *ring;
    float *out;         /* [CONSUMERS * 4][OUT_BUFFERS][OUT_ROWS][OUT_PITCH]: outputs of each warp on their way to memory */
    float2 *scale;      /* [STAGES]: 1 / s of the buffer's input; the same if it spans more than 2^27, else 0 */
    uint2 *span;        /* [FILL_GROUPS][2][FILL_WARPS]: largest |x| and smallest but 0 of each warp's items */
    folded_line *lines; /* [FOLDED_LINES] */
    float4 *channels;   /* [CHANNELS] if they are few: see the packed weights */
    cj_barrier *full, *empty, *slot_full, *slot_empty, *filling, *start;
};

__device__ __forceinline__ shared_memory make_shared(unsigned char *base) {
    shared_memory s;
    s.buffers = (uint4 *)base, s.ring = (uint4 *)(base + RING_OFFSET);
    s.out = (float *)(base + OUT_OFFSET), s.scale = (float2 *)(base + SCALE_OFFSET), s.span = (uint2 *)(base + SPAN_OFFSET);
    s.lines = (folded_line *)(base + LINES_OFFSET), s.channels = (float4 *)(base + CHANNELS_OFFSET);
    s.full = (cj_barrier *)(base + BARRIER_OFFSET), s.empty = s.full + CJ_STAGES;
    s.slot_full = s.empty + CJ_STAGES, s.slot_empty = s.slot_full + CJ_SLOTS;
    s.filling = s.slot_empty + CJ_SLOTS, s.start = s.filling + CJ_FILL_GROUPS;
    return s;
}

/* Where a thread is in a ring of buffers: which one, and the parity of that phase of its barriers that comes next. One
 * register; the counter may wrap, for a ring has a power of two of them. */
template <int count> struct turn {
    unsigned steps;
    __device__ __forceinline__ int index() const {
        static_assert((count & (count - 1)) == 0, "plan and kernel disagree");
        return (int)(steps % count);
    }
    __device__ __forceinline__ unsigned parity() const {
        return steps / count % 2;
    }
    __device__ __forceinline__ void next() {
        ++steps;
    }
};

/* ---- tiles, chunks, slices ------------------------------------------------------------------------------------------- */

/* Positions along an axis, and numbers of tiles: without dynamic sizes the plan sees to the former, and a tile has at least
 * 64 bytes of outputs to itself, so 2^31 of them fit no memory. */
typedef offset_type<!CJ_DYNAMIC>::type position;

struct tile {
    position n, group, k_tile, z, y, x; /* z, y, x: first output */
};

/* First output row and column of a run in its tile. */
__device__ __forceinline__ int run_y(int run) {
    return run / CJ_RUNS_X * CJ_RUN_ROWS;
}
__device__ __forceinline__ int run_x(int run) {
    return run % CJ_RUNS_X * RUN_STEP;
}
constexpr int OWN_DISTANCE = CJ_RUNS_X > 1 ? RUN_STEP : CJ_RUN_ROWS * PITCH; /* units between a consumer's runs */

/* The first tile of a block, and how many it has. Neighbouring tiles go to neighbouring blocks, which are at work on them at
 * the same time: what they read twice, and lines of memory that both write to, are in the L2 then. */
struct tile_range {
    position first, count;
};

__device__ __forceinline__ tile_range own_tiles(const cj_forward_args &args) {
    const position tiles = (position)args.tiles, block = blockIdx.x;
    return {block, (position)(tiles / gridDim.x + (block < tiles % gridDim.x ? 1 : 0))};
}

__device__ __forceinline__ tile make_tile(position index, const sizes &size) {
    tile t;
    t.x = take(index, (size.out_x + TILE_X - 1) / TILE_X) * TILE_X;
    t.k_tile = take(index, K_TILES);
    t.y = take(index, (size.out_y + TILE_Y - 1) / TILE_Y) * TILE_Y;
    t.z = take(index, size.out_z);
    t.group = take(index, CJ_GROUPS);
    t.n = index;
    return t;
}

/* Which lines and kernel taps chunk i of a tile holds. */
struct chunk {
    int line, kernel_z, kernel_y;
};

__device__ __forceinline__ chunk make_chunk(int index) {
    chunk result;
    result.kernel_y = index % CHUNKS_Y * CJ_CHUNK_Y;
    result.kernel_z = index / CHUNKS_Y % TAPS_Z;
    result.line = index / (CHUNKS_Y * TAPS_Z) * CJ_CHUNK_C;
    return result;
}

/* Input channel and folded taps of a line. */
struct line_parts {
    int c, z, y, x;
};

__device__ __forceinline__ line_parts parts_of(int line) {
    unsigned rest = (unsigned)line; /* divisions of unsigned numbers take half as long */
    line_parts p;
    p.x = (int)take(rest, FOLD_X);
    p.y = (int)take(rest, FOLD_Y);
    p.z = (int)take(rest, FOLD_Z);
    p.c = (int)rest;
    return p;
}

/* Distance in units of slice i of a stage from slice 0: taps along x change fastest, then kernel rows, then planes. */
constexpr __host__ __device__ int slice_distance(int i) {
    const int x = i % TAPS_X * TAP_X, y = i / TAPS_X % CJ_CHUNK_Y * TAP_Y, plane = i / (TAPS_X * CJ_CHUNK_Y);
    return plane * PLANE + (y % CJ_STRIDE_Y * PARITIES_X * ROWS + y / CJ_STRIDE_Y) * PITCH +
           x % CJ_STRIDE_X * ROWS * PITCH + x / CJ_STRIDE_X;
}

/* The two slices of product i: the first in memory is the first half of K, for the distance between them must not be
 * negative. A missing one (which has weight 0) is its neighbour again. */
constexpr __host__ __device__ int slice_of(int product, int half) {
    const int first = 2 * product < SLICES ? 2 * product : 0, second = first + 1 < SLICES ? first + 1 : first;
    return (slice_distance(first) <= slice_distance(second)) == (half == 0) ? first : second;
}

/* What to add to the descriptor of a stage's input for product i: start, and distance along K. */
struct descriptor_steps {
    unsigned step[STAGE_PRODUCTS];
    constexpr __host__ __device__ descriptor_steps() : step() {
        for (int i = 0; i < STAGE_PRODUCTS; ++i) {
            const int start = slice_distance(slice_of(i, 0));
            step[i] = (unsigned)(start | (slice_distance(slice_of(i, 1)) - start) << 16);
        }
    }
};
__constant__ const descriptor_steps product_steps;

/* ---- filling --------------------------------------------------------------------------------------------------------- */

/* Where one stage's input lies: positions count from the first row and column of the buffer. */
struct source {
    const float *x;    /* of channel 0 */
    range zs, ys, xs;  /* that are inside the input */
    int line, lines;   /* first one, and how many there are; 0 past the last tile */
    bool whole;        /* no unit is padding */
};

__device__ __forceinline__ source make_source(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const chunk &piece) {
    const position z0 = t.z * CJ_STRIDE_Z - CJ_PAD_Z + piece.kernel_z * CJ_DILATION_Z;
    const position y0 = t.y * CJ_STRIDE_Y - CJ_PAD_Y + piece.kernel_y * CJ_DILATION_Y;
    const position x0 = t.x * CJ_STRIDE_X - CJ_PAD_X;
    source s;
    s.x = (const float *)args.x + t.n * args.x_batch_stride + t.group * CJ_GROUP_IN * args.x_channel_stride +
          ((in_offset)z0 * (in_offset)size.in_y + y0) * (in_offset)size.in_x + x0;
    constexpr int COUNT_Z = (FOLD_Z - 1) * CJ_DILATION_Z + 1, COUNT_Y = IN_ROWS * STEP_Y + (FOLD_Y - 1) * CJ_DILATION_Y,
                  COUNT_X = IN_COLUMNS * STEP_X + (FOLD_X - 1) * CJ_DILATION_X;
    s.zs = inside(z0, size.in_z, COUNT_Z);
    s.ys = inside(y0, size.in_y, COUNT_Y);
    s.xs = inside(x0, size.in_x, COUNT_X);
    s.line = piece.line;
    s.lines = t.n < args.batch ? LINES - piece.line : 0;
    s.whole = s.lines >= CJ_CHUNK_C && z0 >= 0 && z0 + COUNT_Z <= size.in_z && y0 >= 0 && y0 + COUNT_Y <= size.in_y &&
              x0 >= 0 && x0 + COUNT_X <= size.in_x; /* from s.zs and so on, ptxas 13.0 gets it wrong */
    return s;
}

/* Goes on to the next stage's input; behind the last tile there are no lines. */
__device__ __forceinline__ void next_stage(position &index, int &piece, tile &t, source &s, const cj_forward_args &args,
                                           const sizes &size) {
    piece = piece + 1 == CHUNKS ? 0 : piece + 1;
    if (piece == 0) {
        index += gridDim.x;
        t = make_tile(index, size);
    }
    s = make_source(args, size, t, make_chunk(piece));
}

__device__ __forceinline__ bool is_in(const range &r, int position) {
    return position >= r.low && position < r.high;
}

/* Where the team's i-th job lies. Its plane is the same for all i if the planes can be shared out evenly. */
constexpr bool OWN_PLANE = TEAMS % PLANES == 0;
struct place {
    int plane, row, column; /* column: of the team's first unit */
    bool exists;
};

/* Where many jobs lie is found anew for each stage: there are no registers to remember it. */
__device__ __forceinline__ int anew(int team) {
    return TEAM_JOBS > 2 ? cj_opaque(team) : team;
}

__device__ __forceinline__ place job_of(int team, int i) {
    const int job = OWN_PLANE ? i * (TEAMS / PLANES) + team / PLANES : (i * TEAMS + team) / PLANES;
    place p;
    p.plane = OWN_PLANE ? team % PLANES : (i * TEAMS + team) % PLANES;
    p.column = job % PIECES * JOB_COLUMNS;
    p.row = job / PIECES;
    p.exists = JOBS % TEAMS == 0 || job < JOBS / PLANES;
    return p;
}

/* The lines of a plane in the input: where the buffer's first row and column of each is, and how it is shifted there. */
struct lines {
    const float *x[DEPTH];
    int y[DEPTH], x_shift[DEPTH];
    bool exist[DEPTH];
};

/* The table of lines that hold kernel taps. */
__device__ __forceinline__ void list_lines(folded_line *table, const cj_forward_args &args, const sizes &size) {
    for (int i = (int)threadIdx.x; i < FOLDED_LINES; i += CJ_THREADS) {
        const line_parts line = parts_of(i);
        folded_line &to = table[i];
        to.distance = line.c * args.x_channel_stride +
                      (line.z * CJ_DILATION_Z * size.in_y + line.y * CJ_DILATION_Y) * size.in_x + line.x * CJ_DILATION_X;
        to.z = (short)line.z, to.y = (short)line.y, to.x = (short)line.x;
    }
}

__device__ __forceinline__ void find_lines(lines &l, const shared_memory &shared, const cj_forward_args &args, const source &s,
                                           int plane) {
#pragma unroll
    for (int j = 0; j < DEPTH; ++j) {
        const int i = plane * DEPTH + j;
        const folded_line line =
            CJ_FOLD > 0 ? shared.lines[s.line + i] : folded_line{(s.line + i) * args.x_channel_stride, 0, 0, 0};
        l.x[j] = s.x + line.distance;
        l.y[j] = line.y * CJ_DILATION_Y, l.x_shift[j] = line.x * CJ_DILATION_X;
        l.exist[j] = (LINES % CJ_CHUNK_C == 0 ? s.lines > 0 : i < s.lines) && is_in(s.zs, line.z * CJ_DILATION_Z);
    }
}

/* Loads a stage's jobs of a team. `whole`: no unit of the stage is padding. */
template <bool whole>
__device__ __forceinline__ void load_jobs(items (&v)[TEAM_JOBS], const shared_memory &shared, const cj_forward_args &args,
                                          const sizes &size, const source &s, int team, int lane) {
    lines l;
    team = anew(team);
#pragma unroll
    for (int i = 0; i < TEAM_JOBS; ++i) {
        const place p = job_of(team, i);
        const int in_y = p.row * STEP_Y, in_x = (p.column + lane) * STEP_X;
        const in_offset offset = in_y * (in_offset)size.in_x + in_x;
        if (i == 0 || !OWN_PLANE) {
            find_lines(l, shared, args, s, p.plane);
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const bool there = p.exists && (whole || (l.exist[j] && is_in(s.ys, in_y + l.y[j])));
            const float *const row = cj_opaque(l.x[j] + offset); /* one address for all items */
#pragma unroll
            for (int k = 0; k < CJ_JOB_ITEMS; ++k) {
                const int step = k * LANES * STEP_X;
                const bool in_row = whole ? PIECES * JOB_COLUMNS == IN_COLUMNS || p.column + lane + k * LANES < IN_COLUMNS
                                          : is_in(s.xs, in_x + l.x_shift[j] + step);
                v[i][k][j] = cj_load_if(row + step, there && in_row);
            }
        }
    }
}

__device__ __forceinline__ void load_stage(items (&v)[TEAM_JOBS], const shared_memory &shared, const cj_forward_args &args,
                                           const sizes &size, const source &s, int team, int lane) {
    if (s.whole) {
        load_jobs<true>(v, shared, args, size, s, team, lane);
    } else {
        load_jobs<false>(v, shared, args, size, s, team, lane);
    }
}

/* 1 / s of a power of two. */
__device__ __forceinline__ float inverse(float s) {
    return __uint_as_float((254U << 23) - __float_as_uint(s));
}

/* The scale of a stage: s, 1 / s, and 1 / s or 0 for scale[].y. */
struct scaling {
    float up, down, lossy;
};

/* `most`: bits of the largest finite |x|; `least`: twice the bits of the smallest but 0, minus 1. s is at most 2^126, so
 * that 1 / s is normal; what is tiny enough for that has few bits to split. */
__device__ __forceinline__ scaling make_scaling(unsigned most, unsigned least) {
    const unsigned exponent = most >> 23, low = (least + 1) >> 24;
    const unsigned up = 268 - exponent < 253 ? 268 - exponent : 253;
    scaling s = {1.0F, 1.0F, 0.0F};
    if (most != 0) {
        s.up = __uint_as_float(up << 23);
        s.down = inverse(s.up);
        s.lossy = (CJ_GUARD && exponent > low + 27) || exponent < 37 ? s.down : 0.0F; /* 37: 2^-90 */
    }
    return s;
}

/* Largest and smallest of a filling group's items. Returns after all its threads came here. */
__device__ __forceinline__ scaling find_scaling(const items (&v)[TEAM_JOBS], const shared_memory &shared,
                                                int group, int thread, turn<1> &filling) {
    constexpr int COUNT = TEAM_JOBS * CJ_JOB_ITEMS * DEPTH, CHAINS = 4; /* a single chain would wait for itself */
    const float *const values = &v[0][0][0];
    float largest_of[CHAINS];
    unsigned least_of[CHAINS];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float size = fabsf(values[i]);
        const unsigned order = 2 * __float_as_uint(values[i]) - 1;
        largest_of[i % CHAINS] = i < CHAINS ? size : fmaxf(largest_of[i % CHAINS], size);
        least_of[i % CHAINS] = i < CHAINS ? order : min(least_of[i % CHAINS], order);
    }
    float largest = fmaxf(fmaxf(fmaxf(largest_of[0], largest_of[1]), fmaxf(largest_of[2], largest_of[3])), 0.0F); /* no NaN */
    unsigned least = min(min(least_of[0], least_of[1]), min(least_of[2], least_of[3]));
    if (largest > 3.4028235e38F) {
        largest = 0.0F;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float size = fabsf(values[i]);
            largest = size <= 3.4028235e38F ? fmaxf(largest, size) : largest;
        }
    }
    uint2 *const span = shared.span + (group * 2 + filling.steps % 2) * FILL_WARPS;
    const unsigned most = __reduce_max_sync(0xffffffff, __float_as_uint(largest));
    least = __reduce_min_sync(0xffffffff, least);
    __syncwarp(); /* all lanes have read what the next arrival lets others overwrite */
    if (thread % 32 == 0) {
        span[thread / 32] = make_uint2(most, least);
        cj_barrier_arrive(&shared.filling[group]);
    }
    cj_barrier_wait(&shared.filling[group], filling.parity());
    filling.next();
    uint2 all = span[0];
#pragma unroll
    for (int i = 1; i < FILL_WARPS; ++i) {
        all = make_uint2(max(all.x, span[i].x), min(all.y, span[i].y));
    }
    return make_scaling(all.x, all.y);
}

/* hi (x) and lo (y) of two numbers. */
__device__ __forceinline__ uint2 split(float a, float b, float up) {
    uint2 result = make_uint2(cj_pack_f16(a * up, b * up), 0);
    if (PARTS == 2) {
        const float2 hi = cj_unpack_f16(result.x);
        result.y = cj_pack_f16((a * up - hi.x) * LO, (b * up - hi.y) * LO);
    }
    return result;
}

__device__ __forceinline__ void store_job(uint4 *buffer, const items &v, float up, const place &p, int lane) {
    uint4 *const row =
        buffer + (p.plane * PARITIES_Y + p.row % PARITIES_Y) * PARITIES_X * ROWS * PITCH + p.row / PARITIES_Y * PITCH;
#pragma unroll
    for (int i = 0; i < CJ_JOB_ITEMS; ++i) {
        const int column = p.column + lane + i * LANES;
        const uint2 a = split(v[i][0], v[i][1], up), b = split(v[i][2], v[i][3], up), c = split(v[i][4], v[i][5], up),
                    d = split(v[i][6], v[i][7], up);
        if (p.exists && (PIECES * JOB_COLUMNS == IN_COLUMNS || column < IN_COLUMNS)) {
            uint4 *const unit = row + column % PARITIES_X * ROWS * PITCH + column / PARITIES_X;
            unit[0] = make_uint4(a.x, b.x, c.x, d.x);
            if (PARTS == 2) {
                unit[PART] = make_uint4(a.y, b.y, c.y, d.y);
            }
        }
    }
}

/* Two filling groups leave no warp for the weights: then they stay, or those of a stage have slots of its buffer, which the
 * group that fills it has them brought to. Else they go through a ring. */
constexpr bool TIED = !RESIDENT && CJ_FILL_GROUPS == 2, RING = !RESIDENT && !TIED;
static_assert(!TIED || CJ_SLOTS == CJ_STAGES * STAGE_SLOTS, "plan and kernel disagree");
typedef turn<RING ? CJ_SLOTS : 1> slot_turn;

/* Has the weights of `count` slots brought, from the first of a chunk on. */
__device__ __forceinline__ void bring_slots(const shared_memory &shared, const uint4 *weights, int first, int count) {
    for (int i = first; i < first + count; ++i, weights += SLOT_WEIGHTS) {
        cj_barrier_expect(&shared.slot_full[i], 16 * CJ_CONSUMERS_K * SLOT_WEIGHTS);
        for (int block = 0; block < CJ_CONSUMERS_K; ++block) {
            cj_bulk_load(shared.ring + (i * CJ_CONSUMERS_K + block) * SLOT_WEIGHTS, weights + block * BLOCK_WEIGHTS,
                         16 * SLOT_WEIGHTS, &shared.slot_full[i]);
        }
    }
}

/* A tile's weights. */
__device__ __forceinline__ const uint4 *weights_of(const cj_forward_args &args, const tile &t) {
    return (const uint4 *)args.packed + (t.group * K_TILES + t.k_tile) * CJ_CONSUMERS_K * BLOCK_WEIGHTS;
}

/* One thread: the weights of all stages of all tiles, or of one if they stay. */
__device__ __forceinline__ void bring_weights(const shared_memory &shared, const cj_forward_args &args) {
    const sizes size = get_sizes(args);
    slot_turn slot = {0};
    const tile_range tiles = own_tiles(args);
    position index = tiles.first;
    for (position left = RESIDENT && tiles.count > 1 ? 1 : tiles.count; left > 0; --left, index += gridDim.x) {
        const uint4 *weights = weights_of(args, make_tile(index, size));
        for (int i = 0; i < CHUNKS * STAGE_SLOTS; ++i, weights += SLOT_WEIGHTS) {
            if (RING) {
                cj_barrier_wait(&shared.slot_empty[slot.index()], slot.parity() ^ 1);
            }
            bring_slots(shared, weights, RESIDENT ? i : slot.index(), 1);
            slot.next();
        }
    }
}

/* The stages of one group of filling warps, every FILL_GROUPS-th of all tiles. A stage lies in registers until its scale is
 * known and its buffer is empty; then they are loaded with the group's next one, while the other group works on its own. */
__device__ __forceinline__ void fill(const shared_memory &shared, const cj_forward_args &args, int group, int thread) {
    const sizes size = get_sizes(args);
    const int team = LANES == 32 ? cj_uniform(thread / LANES) : thread / LANES, lane = thread % LANES;
    turn<CJ_STAGES> buffer = {(unsigned)group};
    turn<1> filling = {0};
    const tile_range tiles = own_tiles(args);
    position index = tiles.first, left = (tiles.count * CHUNKS - group + CJ_FILL_GROUPS - 1) / CJ_FILL_GROUPS; /* stages */
    int piece = 0;
    tile t = make_tile(index, size);
    source s = make_source(args, size, t, make_chunk(0));
    if (group > 0) {
        next_stage(index, piece, t, s, args, size);
    }
    const uint4 *weights = nullptr; /* of the stage in registers */
    if (RESIDENT && CJ_FILL_GROUPS == 2 && group == 0 && thread == 0 && tiles.count > 0) {
        bring_weights(shared, args);
    }
    items v[TEAM_JOBS];
    for (bool loaded = false; left > 0; loaded = true) {
        if (loaded) {
            const scaling scale = find_scaling(v, shared, group, thread, filling);
            cj_barrier_wait(&shared.empty[buffer.index()], buffer.parity() ^ 1); /* ^ 1: all are empty at first */
            if (TIED && thread == 0) {
                bring_slots(shared, weights, buffer.index() * STAGE_SLOTS, STAGE_SLOTS);
            }
            uint4 *const units = shared.buffers + buffer.index() * BUFFER;
#pragma unroll
            for (int i = 0; i < TEAM_JOBS; ++i) {
                store_job(units, v[i], scale.up, job_of(anew(team), i), lane);
            }
            if (thread == 0) {
                shared.scale[buffer.index()] = make_float2(scale.down, scale.lossy);
            }
            cj_async_fence();
            __syncwarp();
            if (thread % 32 == 0) {
                cj_barrier_arrive(&shared.full[buffer.index()]);
            }
            buffer.steps += CJ_FILL_GROUPS;
            --left;
        }
        load_stage(v, shared, args, size, s, team, lane);
        weights = TIED ? weights_of(args, t) + (long long)piece * STAGE_SLOTS * SLOT_WEIGHTS : nullptr;
        for (int i = 0; i < CJ_FILL_GROUPS; ++i) {
            next_stage(index, piece, t, s, args, size);
        }
    }
}

/* ---- adding up ------------------------------------------------------------------------------------------------------- */

constexpr int OWN = CJ_COLUMNS / 2; /* sums of a thread for a run */
typedef float sums[CJ_OWN_RUNS][OWN];

__device__ __forceinline__ void clear(sums &sum) {
#pragma unroll
    for (int i = 0; i < CJ_OWN_RUNS * OWN; ++i) {
        sum[i / OWN][i % OWN] = 0.0F;
    }
}

__device__ __forceinline__ void multiply(sums &sum, float factor) {
#pragma unroll
    for (int i = 0; i < CJ_OWN_RUNS * OWN; ++i) {
        sum[i / OWN][i % OWN] *= factor;
    }
}

/* Which products of parts. */
enum { LO_LO = 1, MIXED = 2, HI_HI = 4 };

/* Adds `count` products of slices, the small ones first, and waits for them; without `add`, sum is overwritten. */
template <int which, int count>
__device__ __forceinline__ void add_products(sums &sum, unsigned a, unsigned b, const unsigned *steps, bool add) {
#pragma unroll
    for (int run = 0; run < CJ_OWN_RUNS; ++run) {
        cj_product_fence(sum[run]);
    }
#pragma unroll
    for (int parts = LO_LO; parts <= HI_HI; parts *= 2) {
#pragma unroll
        for (int i = 0; i < count * CJ_OWN_RUNS; ++i) {
            const int run = i % CJ_OWN_RUNS, product = i / CJ_OWN_RUNS;
            const unsigned w = a + product * PRODUCT_WEIGHTS, x = b + run * OWN_DISTANCE + steps[product];
            const bool begun = add || product > 0 || (which & (parts - 1)) != 0;
            if ((which & parts) == LO_LO) {
                cj_product_f16(sum[run], w + PART_WEIGHTS, x + PART, begun);
            } else if ((which & parts) == MIXED) {
                cj_product_f16(sum[run], w + PART_WEIGHTS, x, begun);
                cj_product_f16(sum[run], w, x + PART, 1);
            } else if ((which & parts) == HI_HI) {
                cj_product_f16(sum[run], w, x, begun);
            }
        }
    }
    cj_product_commit();
#pragma unroll
    for (int run = 0; run < CJ_OWN_RUNS; ++run) {
        cj_product_wait(sum[run]);
    }
}

/* What the sum begins with is multiplied by, beside the input's and the weights' scale. */
constexpr float FIRST = LO * LO;

/* Adds a closed sum, of numbers multiplied by 1 / down and their weights' scale, to the total. If COMPENSATED, what is
 * missing there stays in `sum`, times `up`. */
__device__ __forceinline__ void close_sum(sums &total, sums &sum, float down, float up) {
    const float restored = down * (1.0F + CJ_LOSS * 0x1p-23F);
#pragma unroll
    for (int i = 0; i < CJ_OWN_RUNS * OWN; ++i) {
        float &to = total[i / OWN][i % OWN], &closed = sum[i / OWN][i % OWN];
        const float before = to;
        to = fmaf(closed, restored, before);
        if (CJ_COMPENSATED) {
            closed = fmaf(closed, restored, before - to) * up;
        }
    }
}

/* The products of a slot, the small ones of all of them in its first sum. */
__device__ __forceinline__ void add_slot(sums &total, sums &sum, unsigned a, unsigned b, const unsigned *steps, float down) {
    if (CJ_PRODUCTS == 1) {
        add_products<HI_HI, CJ_SLOT_PRODUCTS>(total, a, b, steps, true);
    }
    if (CJ_PRODUCTS == 4) {
        add_products<LO_LO, CJ_SLOT_PRODUCTS>(sum, a, b, steps, CJ_COMPENSATED);
        multiply(sum, 1.0F / LO);
        add_products<MIXED, CJ_SLOT_PRODUCTS>(sum, a, b, steps, true);
        multiply(sum, 1.0F / LO);
    }
#pragma unroll
    for (int first = 0; first < CJ_SLOT_PRODUCTS && CJ_PRODUCTS > 1; first += CJ_SUM_PRODUCTS) {
        const bool begun = CJ_COMPENSATED || (CJ_PRODUCTS == 4 && first == 0);
        add_products<CJ_PRODUCTS == 4 ? HI_HI : MIXED | HI_HI, CJ_SUM_PRODUCTS>(sum, a + first * PRODUCT_WEIGHTS, b,
                                                                               steps + first, begun);
        close_sum(total, sum, down, inverse(down) * (first + CJ_SUM_PRODUCTS < CJ_SLOT_PRODUCTS ? 1.0F : FIRST));
    }
}

/* What a consumer knows of its tile's input beside the total: the largest 1 / s, and that of lossy stages only. */
struct span {
    float down, lossy;
};

/* Adds up one tile; the total is left multiplied by the weights' scale. */
__device__ __forceinline__ span add_up(sums &total, const shared_memory &shared, turn<CJ_STAGES> &buffer,
                                       slot_turn &slot, int block, int run, bool warp_leader) {
    sums sum;
    span seen = {0.0F, 0.0F};
    float down = 1.0F; /* of the stage before */
    clear(total);
    clear(sum);
#pragma unroll 1
    for (int i = 0; i < CHUNKS; ++i) {
        cj_barrier_wait(&shared.full[buffer.index()], buffer.parity());
        const float2 scale = shared.scale[buffer.index()];
        seen.down = fmaxf(seen.down, scale.x), seen.lossy = fmaxf(seen.lossy, scale.y);
        const unsigned b =
            cj_descriptor(shared.buffers + buffer.index() * BUFFER + run_y(run) * PITCH + run_x(run), 0); /* of its first run */
        if (scale.x != down) {
            if (PARTS == 1 || CJ_COMPENSATED) {
                multiply(PARTS == 1 ? total : sum, down * inverse(scale.x));
            }
            down = scale.x;
        }
#pragma unroll 1
        for (int j = 0; j < STAGE_SLOTS; ++j) {
            const int index = RESIDENT ? i * STAGE_SLOTS + j : TIED ? buffer.index() * STAGE_SLOTS + j : slot.index();
            cj_barrier_wait(&shared.slot_full[index], RESIDENT ? 0 : TIED ? buffer.parity() : slot.parity());
            const unsigned a = cj_descriptor(shared.ring + (index * CJ_CONSUMERS_K + block) * SLOT_WEIGHTS, M * 16);
            add_slot(total, sum, a, b, product_steps.step + j * CJ_SLOT_PRODUCTS, down);
            if (warp_leader && RING) {
                cj_barrier_arrive(&shared.slot_empty[index]);
            }
            if (warp_leader && slot.steps == CJ_LAG - 1 && block + run == 0) {
                cj_barrier_arrive(shared.start);
            }
            slot.next();
        }
        __syncwarp(); /* all lanes have read the scale */
        if (warp_leader) {
            cj_barrier_arrive(&shared.empty[buffer.index()]);
        }
        buffer.next();
    }
    if (PARTS == 1) {
        multiply(total, down);
    }
    return seen;
}

/* ---- outputs --------------------------------------------------------------------------------------------------------- */

/* The plain loop, in float64: one output anew, padding skipped. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t, const float *w,
                                              long long o_y, long long o_x) {
    double sum = 0.0;
    for (int c = 0; c < CJ_GROUP_IN; ++c) {
        const float *x =
            (const float *)args.x + t.n * args.x_batch_stride + (t.group * CJ_GROUP_IN + c) * args.x_channel_stride;
        for (int tap = 0; tap < TAPS; ++tap) {
            const int kx = tap % CJ_KERNEL_X, ky = tap / CJ_KERNEL_X % CJ_KERNEL_Y, kz = tap / (CJ_KERNEL_X * CJ_KERNEL_Y);
            const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + kz * CJ_DILATION_Z;
            const long long y = o_y * CJ_STRIDE_Y - CJ_PAD_Y + ky * CJ_DILATION_Y;
            const long long x_ = o_x * CJ_STRIDE_X - CJ_PAD_X + kx * CJ_DILATION_X;
            if (z >= 0 && z < size.in_z && y >= 0 && y < size.in_y && x_ >= 0 && x_ < size.in_x) {
                sum += (double)w[(long long)c * TAPS + tap] * (double)x[(z * size.in_y + y) * size.in_x + x_];
            }
        }
    }
    return (float)sum;
}

__device__ __forceinline__ const float4 *channels_of(const cj_forward_args &args) {
    return (const float4 *)args.packed + PACKED_WEIGHTS;
}

/* Is this column of a product an output? What lies between rows and behind the last one is whatever the buffer holds. */
__host__ __device__ constexpr bool is_output(int column) {
    return column / PITCH < CJ_RUN_ROWS && column % PITCH < RUN_X;
}
__host__ __device__ constexpr int outputs_of_eight(int first) {
    int count = 0;
    for (int i = 0; i < 8; ++i) {
        count += is_output(first + i);
    }
    return count;
}

/* Where a channel's row of `out` begins for outputs that go to y, and where in it a column of a product lies. */
__device__ __forceinline__ int bulk_shift(const float *y) {
    return IN_BULK ? (int)((unsigned long long)y / sizeof(float) % 4) : 0;
}
__device__ __forceinline__ int place_of(int column) {
    return IN_BULK && CJ_RUN_ROWS > 1 ? column / PITCH * RUN_X + column % PITCH : column;
}

/* Rows of the run that end before column first + i; the compiler knows `first`, and i is less than 8. */
__device__ __forceinline__ int rows_before(int first, int i) {
    const int rest = first % PITCH;
    if (CJ_RUN_ROWS == 1) {
        return 0;
    }
    return first / PITCH + (rest + 7 < PITCH ? 0 : PITCH >= 8 ? (rest + i >= PITCH ? 1 : 0) : (rest + i) / PITCH);
}

/* See "the surprising rule": one warp's outputs out[OUT_ROWS][OUT_PITCH], of channels from first_k on, that go to y. */
__device__ __noinline__ void replace_strange(float *out, const cj_forward_args &args, position index, int first_k, int run,
                                             const float *y) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const float4 *channel = channels_of(args) + t.group * K_BLOCKS * M + first_k;
    const float *w = (const float *)(channels_of(args) + CHANNELS) + (t.group * CJ_GROUP_OUT + first_k) * CJ_GROUP_IN * TAPS;
    for (int column = (int)threadIdx.x % 32; column < CJ_COLUMNS; column += 32) {
        const long long o_y = t.y + run_y(run) + column / PITCH, o_x = t.x + run_x(run) + column % PITCH;
        const bool exists = is_output(column) && o_y < size.out_y && o_x < size.out_x;
        for (int i = 0; i < OUT_ROWS && exists && first_k + i < CJ_GROUP_OUT; ++i) {
            float &value = out[i * OUT_PITCH + bulk_shift(y + i * args.y_channel_stride) + place_of(column)];
            if (!(value - value == 0.0F)) {
                value = cj_linear(exact_output(args, size, t, w + (long long)i * CJ_GROUP_IN * TAPS, o_y, o_x), channel[i].x);
                value = IN_BULK ? cj_finish(value, 0.0F) : value;
            }
        }
    }
}

/* Totals smaller than this may have lost bits that matter. */
__device__ __forceinline__ float threshold_of(const span &seen, const float4 &channel) {
    const float lossy = seen.lossy > 0.0F ? fmaxf(seen.lossy * channel.z, 0x1p-90F) : 0.0F;
    return fmaxf(lossy, seen.down * channel.w);
}

/* Floats from y to the next 32 bytes, a sector. */
__device__ __forceinline__ int to_sector(const float *y) {
    return (int)(-((unsigned long long)y / sizeof(float)) % 8);
}

/* Which of its outputs, `count` of them from y on, a run stores for a channel: `middle` in 16 bytes from to + head on, and
 * what is cut off at both ends. Runs that overlap share their outputs out where sectors begin. */
struct piece_of_row {
    int begin, count, head, middle;
};

__device__ __forceinline__ piece_of_row make_piece(const float *y, int count, bool first) {
    piece_of_row p = {0, count, 0, 0};
    if (CJ_OVERLAP > 0) {
        p.begin = first ? 0 : to_sector(y);
        p.count = min(count, RUN_STEP + to_sector(y + RUN_STEP)) - p.begin;
    }
    p.head = min((4 - bulk_shift(y + p.begin)) % 4, p.count);
    p.middle = (p.count - p.head) / 4 * 4;
    return p;
}

/* A warp's outputs, finished and each channel's in a row: 16 bytes of memory at a time by bulk copies, which take no
 * instructions and no time of the unit that loads and stores, and what is cut off at both ends one by one. */
__device__ __forceinline__ void store_in_bulk(const float *out, float *y, const cj_forward_args &args, int channels, int count,
                                              bool first, int lane) {
    cj_async_fence();
    __syncwarp();
    const int row = lane / 4, column = lane % 4;
    float *const to = y + row * args.y_channel_stride;
    const piece_of_row p = make_piece(to, count, first);
    const float *const from = out + row * OUT_PITCH + bulk_shift(to);
    if (row < channels) {
        if (column == 0 && p.middle > 0) {
            cj_bulk_store(to + p.begin + p.head, from + p.begin + p.head, p.middle * (unsigned)sizeof(float));
        }
        if (column < p.head) {
            to[p.begin + column] = from[p.begin + column];
        }
        const int tail = p.head + p.middle + column;
        if (tail < p.count) {
            to[p.begin + tail] = from[p.begin + tail];
        }
    }
    cj_bulk_store_commit();
}

/* One channel's outputs of several pieces of rows. */
__device__ __forceinline__ void store_pieces(const float *out, float *y, const float *z, const sizes &size, int rows,
                                             int columns, int lane) {
    constexpr int PIECES = (CJ_COLUMNS + 31) / 32;
    float v[PIECES];
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        const int i = piece * 32 + lane, o_y = i / PITCH, o_x = i % PITCH;
        const bool exists = o_y < rows && o_x < columns;
        v[piece] = cj_finish(out[i], CJ_HAS_Z && exists ? z[o_y * (out_offset)size.out_x + o_x] : 0.0F);
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        const int i = piece * 32 + lane, o_y = i / PITCH, o_x = i % PITCH;
        if (o_y < rows && o_x < columns) {
            y[o_y * (out_offset)size.out_x + o_x] = v[piece];
        }
    }
}

/* A warp's outputs of half its channels, as they are finished, to `out`; `y` is where a thread's channel begins. True if any
 * must be computed anew: it is NaN or Inf there, and not activated. */
__device__ __forceinline__ bool stage_outputs(float *out, const float *y, const float (&total)[OWN], int half, float factor,
                                              float threshold, float bias, int lane) {
    float *const own = out + lane / 4 * OUT_PITCH + bulk_shift(y) + lane % 4 * 2;
    const bool guarded = __any_sync(0xffffffff, threshold > 0.0F);
    float strange[2] = {0.0F, 0.0F}; /* NaN once any value was not finite */
#pragma unroll
    for (int j = 0; j < CJ_COLUMNS / 8; ++j) {
        const int outputs = outputs_of_eight(j * 8);
        float v[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float sum = total[j * 4 + half * 2 + i];
            v[i] = fmaf(sum, factor, bias);
            if (guarded) {
                v[i] = fabsf(sum) < threshold ? __uint_as_float(0x7fffffff) : v[i];
            }
            if (outputs == 8 || (outputs > 0 && is_output(j * 8 + lane % 4 * 2 + i))) {
                strange[i] = fmaf(v[i], 0.0F, strange[i]);
                if (IN_BULK) {
                    own[j * 8 + i - rows_before(j * 8, lane % 4 * 2 + i) * (PITCH - RUN_X)] =
                        CJ_ACTIVATION == 0 || !(v[i] - v[i] == 0.0F) ? v[i] : cj_finish(v[i], 0.0F);
                }
            }
        }
        if (!IN_BULK) {
            *(float2 *)&own[j * 8] = make_float2(v[0], v[1]);
        }
    }
    const float both = strange[0] + strange[1];
    return __any_sync(0xffffffff, both != both);
}

/* The outputs of one run to memory: each warp its 16 channels, OUT_ROWS at a time through shared memory. */
__device__ __forceinline__ void store(const float (&total)[OWN], const span &seen, const shared_memory &shared,
                                      const cj_forward_args &args, position index, int block, int run, int thread) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const int lane = thread % 32, warp = thread % WARPGROUP / 32, row = lane / 4;
    const position o_y = t.y + run_y(run), o_x = t.x + run_x(run);
    const int rows = (int)(size.out_y - o_y < CJ_RUN_ROWS ? size.out_y - o_y : CJ_RUN_ROWS);
    const int columns = (int)(size.out_x - o_x < RUN_X ? size.out_x - o_x : RUN_X);
    const out_offset o = ((out_offset)t.z * (out_offset)size.out_y + o_y) * (out_offset)size.out_x + o_x;
    const int warp_k = ((int)t.k_tile * CJ_CONSUMERS_K + block) * M + warp * 16;
    const float4 *const channel_0 =
        (CHANNELS_SHARED ? shared.channels : channels_of(args)) + t.group * K_BLOCKS * M + warp_k + row;
    const float4 channel_of_half[2] = {channel_0[0], channel_0[OUT_ROWS]};
    const int count = ROWS_JOINED && columns > 0 ? rows * RUN_X : columns; /* not positive past the end */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int first_k = warp_k + half * OUT_ROWS;
        const float4 channel = channel_of_half[half]; /* bias, 1 / s, guard, hard */
        const long long first = t.group * CJ_GROUP_OUT + first_k;
        float *y = (float *)args.y + t.n * args.y_batch_stride + first * args.y_channel_stride + o;
        const float *z = (const float *)args.z + t.n * args.z_batch_stride + first * args.z_channel_stride + o;
        float *const out = shared.out + (thread / 32 * CJ_OUT_BUFFERS + (run % CJ_OWN_RUNS * 2 + half) % CJ_OUT_BUFFERS) *
                                            OUT_ROWS * OUT_PITCH;
        cj_bulk_store_wait<CJ_OUT_BUFFERS - 1>(); /* for what lies there */
        __syncwarp();
        const bool strange = stage_outputs(out, y + row * args.y_channel_stride, total, half, CJ_ALPHA * channel.y,
                                           threshold_of(seen, channel), channel.x, lane);
        __syncwarp();
        if (strange) {
            replace_strange(out, args, index, first_k, run, y);
            __syncwarp();
        }
        const int channels = CJ_GROUP_OUT % OUT_ROWS == 0 && first_k < CJ_GROUP_OUT ? OUT_ROWS : CJ_GROUP_OUT - first_k;
#pragma unroll
        for (int k = 0; k < (IN_BULK ? 1 : OUT_ROWS); ++k, y += args.y_channel_stride, z += args.z_channel_stride) {
            if (IN_BULK) {
                store_in_bulk(out, y, args, rows > 0 ? channels : 0, count, o_x == 0, lane);
            } else if (k < channels) {
                store_pieces(out + k * OUT_PITCH, y, z, size, rows, columns, lane);
            }
        }
        __syncwarp();
    }
}

__device__ __forceinline__ void consume(const shared_memory &shared, const cj_forward_args &args) {
    turn<CJ_STAGES> buffer = {0};
    slot_turn slot = {0};
    const int group = cj_uniform((int)threadIdx.x / WARPGROUP);
    const int block = group % CJ_CONSUMERS_K, run = group / CJ_CONSUMERS_K * CJ_OWN_RUNS; /* its first one */
    if (group == 1) {
        cj_barrier_wait(shared.start, 0);
    }
    const tile_range tiles = own_tiles(args);
    position index = tiles.first;
    for (position left = tiles.count; left > 0; --left, index += gridDim.x) {
        sums total;
        const span seen = add_up(total, shared, buffer, slot, block, run, threadIdx.x % 32 == 0);
#pragma unroll
        for (int i = 0; i < CJ_OWN_RUNS; ++i) { /* opaque: nothing of this is worth registers while products run */
            store(total[i], seen, shared, args, cj_opaque(index), block, run + i, cj_opaque((int)threadIdx.x));
        }
    }
    cj_bulk_store_wait<0>();
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    CJ_SHARED_MEMORY(memory);
    const shared_memory shared = make_shared(memory);
    list_lines(shared.lines, args, get_sizes(args));
    for (int i = (int)threadIdx.x; CHANNELS_SHARED && i < CHANNELS; i += CJ_THREADS) {
        shared.channels[i] = channels_of(args)[i];
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < CJ_STAGES; ++i) {
            cj_barrier_init(&shared.full[i], FILL_WARPS);
            cj_barrier_init(&shared.empty[i], CONSUMERS * 4); /* warps */
        }
        for (int i = 0; i < CJ_SLOTS; ++i) {
            cj_barrier_init(&shared.slot_full[i], 1);
            cj_barrier_init(&shared.slot_empty[i], CONSUMERS * 4);
        }
        for (int i = 0; i < CJ_FILL_GROUPS; ++i) {
            cj_barrier_init(&shared.filling[i], FILL_WARPS);
        }
        cj_barrier_init(shared.start, 4);
        cj_barrier_init_fence();
    }
    __syncthreads();
    constexpr int BEGUN_WITH = 65536 / CJ_THREADS;
    const int role = (int)threadIdx.x / WARPGROUP, thread = (int)threadIdx.x % WARPGROUP;
    if (role < CONSUMERS) {
        cj_set_registers<CJ_CONSUMER_REGISTERS, BEGUN_WITH>();
        consume(shared, args);
    } else if (role < CONSUMERS + CJ_FILL_GROUPS) {
        cj_set_registers<CJ_FILLER_REGISTERS, BEGUN_WITH>();
        fill(shared, args, role - CONSUMERS, thread);
    } else {
        cj_set_registers<24, BEGUN_WITH>();
        if (thread == 0) {
            bring_weights(shared, args);
        }
    }
}

/* ---- packing: a block an output channel ------------------------------------------------------------------------------- */

/* Weight of an output channel (of all groups), or 0 where there is none. */
__device__ __forceinline__ float weight(const cj_pack_args &args, long long channel, int c, int tap) {
    return cj_memory<CJ_WEIGHT_TYPE>::load(args.w, CJ_WEIGHTS_LAST ? (channel * TAPS + tap) * CJ_GROUP_IN + c
                                                                   : (channel * CJ_GROUP_IN + c) * TAPS + tap);
}

/* What convjit_pack finds out about an output channel. */
struct channel_span {
    unsigned most, lossy; /* bits of the largest finite |w|; weights that the split makes inexact */
    float sum;            /* of |w * s| */
};

/* Combines the threads' values, most by max, the others by sum. */
__device__ channel_span combine(channel_span own) {
    __shared__ channel_span warps[CJ_THREADS / 32];
    own.most = __reduce_max_sync(0xffffffff, own.most);
    own.lossy = __reduce_add_sync(0xffffffff, own.lossy);
    for (int bits = 16; bits > 0; bits /= 2) {
        own.sum += __shfl_xor_sync(0xffffffff, own.sum, bits);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = own;
    }
    __syncthreads();
    own = warps[0];
    for (int i = 1; i < CJ_THREADS / 32; ++i) {
        own.most = max(own.most, warps[i].most);
        own.lossy += warps[i].lossy;
        own.sum += warps[i].sum;
    }
    return own;
}

/* Eight halves of product `i`: a slice of an output channel, part hi or lo. */
__device__ uint4 pack_slice(const cj_pack_args &args, long long channel, bool exists, int piece_index, int product, int part,
                            int half, float up) {
    const chunk piece = make_chunk(piece_index);
    const int slice = slice_of(product, half), plane = slice / (TAPS_X * CJ_CHUNK_Y);
    const int x = slice % TAPS_X, y = piece.kernel_y + slice / TAPS_X % CJ_CHUNK_Y;
    const bool twin = slice_of(product, 1 - half) == slice && half == 1; /* a slice that is its own neighbour counts once */
    unsigned words[4];
    for (int pair = 0; pair < 4; ++pair) {
        float w[2] = {0.0F, 0.0F};
        for (int j = 0; j < 2; ++j) {
            const int line = piece.line + plane * DEPTH + pair * 2 + j;
            const line_parts of = parts_of(line); /* a tap is either folded or left: one of the two is 0 */
            if (exists && !twin && 2 * product < SLICES && line < LINES) {
                w[j] = weight(args, channel, of.c,
                              ((piece.kernel_z + of.z) * CJ_KERNEL_Y + y + of.y) * CJ_KERNEL_X + x + of.x);
            }
        }
        const uint2 parts = split(w[0], w[1], up);
        words[pair] = part == 0 ? parts.x : parts.y;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    for (long long row = blockIdx.x; row < CHANNELS; row += gridDim.x) {
        const int k = (int)(row % (K_BLOCKS * M)), group = (int)(row / (K_BLOCKS * M)), thread = (int)threadIdx.x;
        const bool exists = k < CJ_GROUP_OUT;
        const long long channel = (long long)group * CJ_GROUP_OUT + k;
        const long long weights = exists ? (long long)CJ_GROUP_IN * TAPS : 0;
        float4 *const channels = (float4 *)args.packed + PACKED_WEIGHTS;
        channel_span span = {0, 0, 0.0F};
        for (long long i = thread; i < weights; i += CJ_THREADS) {
            const float w = weight(args, channel, (int)(i / TAPS), (int)(i % TAPS));
            const unsigned size = __float_as_uint(w) & 0x7fffffff;
            span.most = size < 0x7f800000 ? max(span.most, size) : span.most;
            ((float *)(channels + CHANNELS))[channel * CJ_GROUP_IN * TAPS + i] = w;
        }
        span = combine(span);
        const scaling scale = make_scaling(span.most, 2 * span.most - 1);
        for (long long i = thread; i < weights; i += CJ_THREADS) {
            const float size = fabsf(weight(args, channel, (int)(i / TAPS), (int)(i % TAPS)) * scale.up);
            span.lossy += size > 0.0F && size < 0x1p-13F && scale.up < 0x1p126F;
            span.sum += size <= 32768.0F ? size : 0.0F;
        }
        span.most = 0;
        span = combine(span);
        if (thread == 0) { /* 2^-13 * sum and 4 * lossy: see threshold_of and the rule above */
            const float bias = exists && args.bias ? cj_memory<CJ_BIAS_TYPE>::load(args.bias, channel) : 0.0F;
            channels[row] = make_float4(bias, scale.down, span.sum * 0x1p-13F, CJ_GUARD ? (float)span.lossy * 4.0F : 0.0F);
        }
        uint4 *const packed = (uint4 *)args.packed + (long long)(group * K_BLOCKS + k / M) * BLOCK_WEIGHTS + k % M;
        for (long long i = thread; i < BLOCK_WEIGHTS / M; i += CJ_THREADS) {
            const int half = (int)(i % 2), part = (int)(i / 2 % PARTS);
            const long long product = i / (2 * PARTS);
            packed[i * M] = pack_slice(args, channel, exists, (int)(product / STAGE_PRODUCTS), (int)(product % STAGE_PRODUCTS),
                                       part, half, scale.up);
        }
    }
}
