/* tensor.cu - convolution on Hopper's tensor cores: filter taps are shifted descriptors of one haloed input tile.
 *
 *   for n, group, block of TILE_K rows of products, z, tile of TILE_Y x TILE_X positions:         parallel: blocks
 *     for chunk of CHUNK_C input channels, kernel z (and, if CHUNK_Y = 1, kernel y):              a stage
 *       for two slices of K, eight lines of one tap each:
 *         sum[64 channels][COLUMNS pixels] += w[64][16] * x[16][pixels, shifted by the taps]      wgmma
 *
 * A line is an input channel or, with few channels (FOLD), an input channel and a kernel tap along z and y, or along x too:
 * what those taps read is then copied into lines of its own, and the taps along x that are left stay shifts. If a few lines
 * are left over from slices of eight, their taps along x can be lines of their own, too (SPREAD).
 *
 * Output channels are rows of products, and outputs are positions of a grid, one each. But in a transposed layer, or one of
 * few output channels, a position has several outputs, its phases, and a row is a channel's phase: tensor/phases.cuh.
 *
 * Where the kernel is the whole input, positions are images (IMAGES): tensor/images.cuh.
 *
 * Roles. 512 threads: two consumer warpgroups, each with runs of COLUMNS pixels or blocks of 64 channels of its own; one
 * group of four filling warps, or two by turns (together, if positions are images), that bring the input under the tile,
 * halo included and padding as zeros, to STAGES buffers; and, beside one group, a thread that brings the weights to a ring of
 * SLOTS slots. Barriers hand buffers and slots over and back. The second consumer begins LAG slots late, so that one stores
 * its outputs while the other multiplies.
 * If STORING, consumers only bring outputs to shared memory; warps beside that thread, and its own where weights stay, send
 * them on: the copies of a tile wait longer for the memory than they take to issue. Or they store rows of outputs that are
 * bias alone.
 *
 * Shared memory holds 16-byte units: eight lines of one pixel in half precision. A buffer is
 *   unit[PARTS][CHUNK_C / 8][PARITIES_Y][PARITIES_X][ROWS][PITCH]
 * with input row = row * stride + parity, and the same for columns: so a slice is one constant distance, whatever stride
 * and dilation are (slice_distance). The columns of a product are consecutive units: pixel i of a run is output row
 * i / PITCH and column i % PITCH; columns from RUN_X on are computed and thrown away.
 *
 * Numbers. A value v is multiplied by a power of two s, one for a stage's input (where each image is a position, one for an
 * image's stages so far, for no result may depend on other images) and one for an output channel's weights, so that the
 * largest |v| * s lies in [2^14, 2^15), and split: hi = half(v * s), lo = half((v * s - hi) * LO), 22 bits and a sign.
 * PRODUCTS = 4 (math fp32): lo * lo, the two mixed ones, hi * hi, with LO = 2^11 and the sum divided by it in
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
 * CJ_SPREAD                 planes of a stage that hold the taps along x of the lines over a multiple of 8   0
 * CJ_IMAGE_TAPS             0, or each image is a position along x, and an input channel so many lines   0
 * CJ_ROWS                   rows of products for a group: output channels, and phases                    64
 * CJ_PHASES_d               outputs of a position of the grid along an axis; then those that taps reach  1
 * CJ_LEAD_d                 phases of the first position that lie before the first output                0
 * CJ_ACTIVE_d, _PHASE_LIST_d   ... how many these are, and which, and the number of all behind them      1, (0, 1)
 * CJ_TAPS_d, CJ_SPACING_d, CJ_SHIFT_d, CJ_UP_d, CJ_DOWN_d   see src/view.h; CJ_KERNEL_d, CJ_STRIDE_d, CJ_DILATION_d and
 *                           CJ_PAD_d are those of the convolution on the grid
 * CJ_COLUMNS                N of a product: pixels of a run                                              128
 * CJ_CONSUMERS_K            consumers that differ in output channels: 1 or 2 (else in pixels)            1
 * CJ_OWN_RUNS               runs of a consumer: 1 or 2                                                   1
 * CJ_OWN_BLOCKS             ... and blocks of 64 output channels of it: 1 or 2                           1
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
 * CJ_SUM_PRODUCTS           ... that form one sum; the last one of a slot may be shorter                 3
 * CJ_LOSS                   what a sum loses of itself on average, in 2^-23rds: see kernels.md         1
 * CJ_COMPENSATED            what is rounded off the total is where the next sum begins: 2, of a slot: 1    2
 * CJ_OUT_BUFFERS            of eight channels' outputs, for each warp: divides 2 OWN_SETS                2
 * CJ_FILL_GROUPS            groups of filling warps, each with every second stage or image: 2, or 1      1
 * CJ_STORING                1 = warps of their own send outputs; only beside one filling group           1
 * CJ_LANES                  threads that fill a piece of a row: 8, 16 or 32; an image: 1, 2, 4 or 8      32
 * CJ_JOB_ITEMS              units of such a piece for each of them                                       3
 * CJ_CONSUMER_REGISTERS     of a thread; with the next, 256 if there are two filling groups              168
 * CJ_FILLER_REGISTERS       ... of a filling warp's                                                      136
 * CJ_OTHER_REGISTERS        ... of a storing warp's; twice the first and these are at most 512           40
 * CJ_SHARED_BYTES           dynamic shared memory                                                        150000
 * and those of hopper.cuh and epilogue.cuh */

constexpr int CONSUMERS = 2, WARPGROUP = 128, M = 64, FILLERS = WARPGROUP, FILL_WARPS = FILLERS / 32;
constexpr int PARTS = CJ_PRODUCTS == 1 ? 1 : 2;
constexpr float LO = CJ_PRODUCTS == 4 ? 2048.0F : 1.0F; /* what lo parts are multiplied by */
constexpr int RUNS = CONSUMERS / CJ_CONSUMERS_K * CJ_OWN_RUNS, TILE_BLOCKS = CJ_CONSUMERS_K * CJ_OWN_BLOCKS;
constexpr int OWN_SETS = CJ_OWN_RUNS * CJ_OWN_BLOCKS; /* of a consumer's sums: a run and a block each, the blocks last */
constexpr int TILE_K = M * TILE_BLOCKS, RUN_X = CJ_RUN_X, RUN_STEP = RUN_X - CJ_OVERLAP, TILE_X = RUN_STEP * CJ_RUNS_X;
constexpr int TILE_Y = RUNS / CJ_RUNS_X * CJ_RUN_ROWS;
constexpr int K_TILES = (CJ_ROWS + TILE_K - 1) / TILE_K;
constexpr int DEPTH = 8; /* lines of a slice: halves of a unit */
constexpr int PLANES = CJ_CHUNK_C / DEPTH, SHIFTED_PLANES = PLANES - CJ_SPREAD;
constexpr int OUT_ROWS = 8; /* of a product, that a warp stores at a time */
constexpr int SECTOR = 8;   /* floats that memory writes at once */

#include "tensor/phases.cuh"

/* Are images positions? Then lines are what an image consists of: neighbours in memory, but for strides of channels. */
constexpr bool IMAGES = CJ_IMAGE_TAPS > 0;
__device__ __forceinline__ long long distance_of(int line, const cj_forward_args &args) {
    constexpr int TAPS_OF_CHANNEL = IMAGES ? CJ_IMAGE_TAPS : 1;
    return line / TAPS_OF_CHANNEL * args.x_channel_stride + line % TAPS_OF_CHANNEL;
}

/* Elements from an image, or a position, to the next one along x. */
__device__ __forceinline__ long long pixel(long long given) {
    return IMAGES ? given : 1;
}

/* Lines: folded taps change fastest. Kernel taps that are left for loops and shifts. */
constexpr int FOLD_Z = CJ_FOLD >= 1 ? CJ_KERNEL_Z : 1, FOLD_Y = CJ_FOLD >= 1 ? CJ_KERNEL_Y : 1;
constexpr int FOLD_X = CJ_FOLD == 2 ? CJ_KERNEL_X : 1;
constexpr int LINES = CJ_GROUP_IN * FOLD_Z * FOLD_Y * FOLD_X;
constexpr int TAPS_Z = CJ_KERNEL_Z / FOLD_Z, TAPS_Y = CJ_KERNEL_Y / FOLD_Y, TAPS_X = CJ_KERNEL_X / FOLD_X;
constexpr int SPREAD_LINES = CJ_SPREAD > 0 ? LINES % DEPTH : 0, SHIFTED_LINES = LINES - SPREAD_LINES;
constexpr int CHUNKS_C = (SHIFTED_LINES + SHIFTED_PLANES * DEPTH - 1) / (SHIFTED_PLANES * DEPTH);
constexpr int CHUNKS_Y = TAPS_Y / CJ_CHUNK_Y;
constexpr int CHUNKS = CHUNKS_C * TAPS_Z * CHUNKS_Y; /* stages of a tile */

/* One kernel row (column) needs only rows (columns) of one parity. REACH: input columns from the first to the last unit of
 * an output. */
constexpr int PARITIES_Y = CJ_CHUNK_Y > 1 ? CJ_STRIDE_Y : 1, PARITIES_X = TAPS_X > 1 ? CJ_STRIDE_X : 1;
constexpr int TAP_Y = CJ_CHUNK_Y > 1 ? CJ_DILATION_Y : 0, TAP_X = TAPS_X > 1 ? CJ_DILATION_X : 0;
constexpr int REACH = (TAPS_X - 1) * TAP_X;
constexpr int ROWS = TILE_Y + (CJ_CHUNK_Y - 1) * TAP_Y / CJ_STRIDE_Y;
constexpr int PITCH = (TILE_X + CJ_OVERLAP + REACH / CJ_STRIDE_X) | (IMAGES ? 1 : 0); /* odd: see tensor/images.cuh */
constexpr int PLANE = PARITIES_Y * PARITIES_X * ROWS * PITCH; /* units */
constexpr int PART = PLANES * PLANE, BUFFER = PARTS * PART;

/* Slices of a stage, and products of two. The last slot is filled up with products that have weight 0. */
constexpr int SHIFTED_SLICES = SHIFTED_PLANES * CJ_CHUNK_Y * TAPS_X, SLICES = SHIFTED_SLICES + CJ_SPREAD;
constexpr int STAGE_SLOTS = ((SLICES + 1) / 2 + CJ_SLOT_PRODUCTS - 1) / CJ_SLOT_PRODUCTS;
constexpr int STAGE_PRODUCTS = STAGE_SLOTS * CJ_SLOT_PRODUCTS;

/* Packed weights: uint4[group][k block of 64][chunk][product][PARTS][2][64], a slice of an output channel each, as the A
 * operand wants them; then float4 channel[group][K_BLOCKS * 64]: bias, 1 / s, guard, hard (see pack); then the weights as
 * floats, [group][ROWS][GROUP_IN][taps], for the surprising rule. */
constexpr int K_BLOCKS = K_TILES * TILE_BLOCKS;
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
constexpr int PIECES = (IN_COLUMNS + JOB_COLUMNS - 1) / JOB_COLUMNS;
/* Planes that are spread have columns of one parity only, and come after the others. */
constexpr int PLANES_APART = PARITIES_X > 1 ? CJ_SPREAD : 0, PIECES_APART = (PITCH + JOB_COLUMNS - 1) / JOB_COLUMNS;
constexpr int PLANES_ALIKE = PLANES - PLANES_APART, JOBS_ALIKE = (PLANES_ALIKE * IN_ROWS * PIECES + TEAMS - 1) / TEAMS;
constexpr int TEAM_JOBS = JOBS_ALIKE + (PLANES_APART * IN_ROWS * PIECES_APART + TEAMS - 1) / TEAMS; /* of each */
typedef float items[CJ_JOB_ITEMS][DEPTH];

/* Shared memory. A piece of outputs is what follows each other in memory: a channel's, if a run has one row, or whole ones,
 * which then have all phases along y. Pieces leave by bulk copies, for which they lie here as they do there within their
 * sectors: copies ask for 16 bytes only, but then write five sectors where four would do. Pitches are in floats; with 8 more
 * than a multiple of 16, rows that threads write pairs to at once lie in different banks; two pieces that threads write every
 * second float of want 16. */
constexpr bool ROWS_JOINED = !CJ_DYNAMIC && RUN_X == (CJ_OUT_X + CJ_LEAD_X + CJ_PHASES_X - 1) / CJ_PHASES_X &&
                             CJ_OVERLAP == 0 && EIGHT % CJ_ACTIVE_Y == 0;
constexpr bool IN_BULK = !CJ_HAS_Z && !IMAGES && (CJ_RUN_ROWS == 1 || ROWS_JOINED);
constexpr int OUT_COUNT = ROWS_JOINED ? CJ_RUN_ROWS * CJ_PHASES_Y * CJ_OUT_X : PHASED ? RUN_X * CJ_PHASES_X : CJ_COLUMNS;
constexpr int ROWS_OF_PIECE = CJ_ACTIVE_X * (ROWS_JOINED ? CJ_ACTIVE_Y : 1), OUT_PIECES = OUT_ROWS / ROWS_OF_PIECE;
constexpr int OUT_PITCH = OUT_PIECES == 2     ? (SECTOR - 1 + OUT_COUNT + 15) / 32 * 32 + 16
                          : PHASED || IN_BULK ? (SECTOR - 1 + OUT_COUNT + 7) / 16 * 16 + 8
                                              : (CJ_COLUMNS + 31) / 32 * 32 + 8;
constexpr int OUT_BUFFER = OUT_PIECES * OUT_PITCH;
static_assert(!IN_BULK || OUT_PITCH % SECTOR == 0, "a row of a buffer begins where a sector may");
static_assert(!PHASED || CJ_RUN_ROWS == 1 || ROWS_JOINED, "plan and kernel disagree");
constexpr int RING_OFFSET = 16 * (CJ_STAGES * BUFFER + CJ_COLUMNS); /* COLUMNS: what the last run may reach past a buffer */
constexpr int OUT_OFFSET = RING_OFFSET + 16 * CJ_SLOTS * TILE_BLOCKS * SLOT_WEIGHTS;
static_assert(OUT_OFFSET % (4 * SECTOR) == 0, "plan and kernel disagree");
constexpr int SCALE_OFFSET = OUT_OFFSET + 4 * CONSUMERS * 4 * CJ_OUT_BUFFERS * OUT_BUFFER;
constexpr int SPAN_OFFSET = SCALE_OFFSET + 8 * CJ_STAGES, LINES_OFFSET = SPAN_OFFSET + 8 * 2 * FILL_WARPS * CJ_FILL_GROUPS;
constexpr int FOLDED_LINES = CJ_FOLD > 0 ? CHUNKS_C * CJ_CHUNK_C : 0, CHANNELS_OFFSET = LINES_OFFSET + 16 * FOLDED_LINES;
constexpr bool CHANNELS_SHARED = CHANNELS <= 256;
constexpr int IMAGES_OFFSET = CHANNELS_OFFSET + (CHANNELS_SHARED ? 16 * (int)CHANNELS : 0);
/* Tiles whose images' scales are kept: when those of a tile are found, the consumers are done with the fourth before it. */
constexpr int SCALED_TILES = 4, RATIOS_OFFSET = IMAGES_OFFSET + (IMAGES ? 8 * SCALED_TILES * TILE_X : 0);
constexpr int BARRIER_OFFSET = RATIOS_OFFSET + (IMAGES ? 4 * CJ_STAGES * TILE_X : 0);
constexpr int STORE_WARPS = !CJ_STORING ? 0 : RESIDENT ? 4 : 3; /* the fourth brings weights */
/* Are there rows or planes of outputs that no tap reaches? The warps that store them, if any are idle. */
constexpr bool BIAS_ROWS = CJ_ACTIVE_Z < CJ_PHASES_Z || (CJ_ACTIVE_Y < CJ_PHASES_Y && !ROWS_JOINED);
constexpr int BIAS_WARPS = BIAS_ROWS && !CJ_HAS_Z && CJ_FILL_GROUPS == 1 ? 3 : 0;
constexpr int SENT_ROWS = OUT_ROWS * (STORE_WARPS > 0 && CJ_OUT_BUFFERS > 1 ? 2 : 1); /* of products, that leave at once */
constexpr int SENDS = CJ_OUT_BUFFERS * OUT_ROWS / SENT_ROWS; /* of a warp: buffers for so many */
constexpr int ALL_SENDS = STORE_WARPS > 0 ? CONSUMERS * 4 * SENDS : 0;
constexpr int BARRIERS = 2 * CJ_STAGES + 2 * CJ_SLOTS + CJ_FILL_GROUPS + 1 + 2 * ALL_SENDS;
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
    float *out;         /* [CONSUMERS * 4][OUT_BUFFERS][OUT_BUFFER]: outputs of each warp on their way to memory */
    float2 *scale;      /* [STAGES]: 1 / s of the buffer's input; the same if it spans more than 2^27, else 0 */
    uint2 *span;        /* [FILL_GROUPS][2][FILL_WARPS]: largest |x| and smallest but 0 of each warp's items */
    folded_line *lines; /* [FOLDED_LINES] */
    float4 *channels;   /* [CHANNELS] if they are few: see the packed weights */
    float2 *images;     /* [SCALED_TILES][TILE_X] if images are positions: what scale holds, of each */
    float *ratios;      /* [STAGES][TILE_X]: 1, or what its total is to be multiplied by, for s has changed */
    uint4 *changed;     /* [STAGES][FILL_GROUPS]: has any, of the images of each warp? It lies where `span` else does */
    cj_barrier *full, *empty, *slot_full, *slot_empty, *filling, *start;
    cj_barrier *out_full, *out_empty; /* [CONSUMERS * 4][SENDS] if there are storing warps */
};

__device__ __forceinline__ shared_memory make_shared(unsigned char *base) {
    shared_memory s;
    s.buffers = (uint4 *)base, s.ring = (uint4 *)(base + RING_OFFSET);
    s.out = (float *)(base + OUT_OFFSET), s.scale = (float2 *)(base + SCALE_OFFSET), s.span = (uint2 *)(base + SPAN_OFFSET);
    s.lines = (folded_line *)(base + LINES_OFFSET), s.channels = (float4 *)(base + CHANNELS_OFFSET);
    s.images = (float2 *)(base + IMAGES_OFFSET), s.ratios = (float *)(base + RATIOS_OFFSET);
    s.changed = (uint4 *)s.span;
    s.full = (cj_barrier *)(base + BARRIER_OFFSET), s.empty = s.full + CJ_STAGES;
    s.slot_full = s.empty + CJ_STAGES, s.slot_empty = s.slot_full + CJ_SLOTS;
    s.filling = s.slot_empty + CJ_SLOTS, s.start = s.filling + CJ_FILL_GROUPS;
    s.out_full = s.start + 1, s.out_empty = s.out_full + ALL_SENDS;
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
    position n, group, k_tile, z, y, x; /* z, y, x: first position of the grid, which is the output if there are no phases */
};

/* The first block of channels, and the first run, of a consumer. */
__device__ __forceinline__ int first_block(int consumer) {
    return consumer % CJ_CONSUMERS_K * CJ_OWN_BLOCKS;
}
__device__ __forceinline__ int first_run(int consumer) {
    return consumer / CJ_CONSUMERS_K * CJ_OWN_RUNS;
}

/* First row and column of a run in its tile. */
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
    t.x = take(index, ((size.out_x + CJ_LEAD_X + CJ_PHASES_X - 1) / CJ_PHASES_X + TILE_X - 1) / TILE_X) * TILE_X;
    t.k_tile = take(index, K_TILES);
    t.y = take(index, ((size.out_y + CJ_LEAD_Y + CJ_PHASES_Y - 1) / CJ_PHASES_Y + TILE_Y - 1) / TILE_Y) * TILE_Y;
    t.z = take(index, positions_z(size));
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

/* Input channel and folded taps of the i-th line of all stages. */
struct line_parts {
    int c, z, y, x;
    bool exists;
};

__device__ __forceinline__ line_parts parts_of(int i) {
    constexpr int SHIFTED = SHIFTED_PLANES * DEPTH;
    const unsigned piece = (unsigned)i / CJ_CHUNK_C, in_stage = (unsigned)i % CJ_CHUNK_C; /* unsigned divisions are shorter */
    const bool spread = in_stage >= SHIFTED;
    unsigned rest = piece * SHIFTED + in_stage, x = 0;
    if (spread) {
        x = piece * (CJ_CHUNK_C - SHIFTED) + in_stage - SHIFTED;
        rest = SHIFTED_LINES + x / TAPS_X, x %= TAPS_X;
    }
    line_parts p;
    p.exists = (int)rest < (spread ? LINES : SHIFTED_LINES);
    p.x = (int)(take(rest, FOLD_X) + x);
    p.y = (int)take(rest, FOLD_Y);
    p.z = (int)take(rest, FOLD_Z);
    p.c = (int)rest;
    return p;
}

/* Distance in units of slice i of a stage from slice 0: taps along x change fastest, then kernel rows, then planes. Those that
 * are spread come last. */
constexpr __host__ __device__ int slice_distance(int i) {
    if (i >= SHIFTED_SLICES) {
        return (SHIFTED_PLANES + i - SHIFTED_SLICES) * PLANE;
    }
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

#include "tensor/fill.cuh"
#include "tensor/images.cuh"
#include "tensor/add.cuh"
#include "tensor/pieces.cuh"
#include "tensor/exact.cuh"
#include "tensor/phased.cuh"
#include "tensor/outputs.cuh"

/* ---- the roles ------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void consume(const shared_memory &shared, const cj_forward_args &args) {
    turn<CJ_STAGES> buffer = {0};
    slot_turn slot = {0};
    send_turn out = {0};
    const int group = cj_uniform((int)threadIdx.x / WARPGROUP);
    const int block = first_block(group), run = first_run(group);
    if (group == 1) {
        cj_barrier_wait(shared.start, 0);
    }
    const tile_range tiles = own_tiles(args);
    position index = tiles.first;
    for (position left = tiles.count; left > 0; --left, index += gridDim.x) {
        sums total;
        const span seen = add_up(total, shared, buffer, slot, block, run, threadIdx.x % 32 == 0);
#pragma unroll
        for (int i = 0; i < OWN_SETS; ++i) { /* nothing of this is worth registers while products run */
            if (IMAGES) {
                unscale(total[i], shared, args, index, (int)(tiles.count - left), block + i / CJ_OWN_RUNS,
                        run + i % CJ_OWN_RUNS);
            }
            store(total[i], seen, shared, args, cj_uniform(index), out, block + i / CJ_OWN_RUNS, run + i % CJ_OWN_RUNS,
                  cj_opaque((int)threadIdx.x));
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
            cj_barrier_init(&shared.full[i], IMAGES ? IMAGE_FILLERS : FILLERS);
            cj_barrier_init(&shared.empty[i], CONSUMERS * WARPGROUP + BIAS_WARPS);
        }
#pragma unroll 1
        for (int i = 0; i < CJ_SLOTS; ++i) {
            cj_barrier_init(&shared.slot_full[i], 1);
            cj_barrier_init(&shared.slot_empty[i], CONSUMERS * 4); /* warps */
        }
        for (int i = 0; i < CJ_FILL_GROUPS; ++i) {
            cj_barrier_init(&shared.filling[i], FILLERS);
        }
        cj_barrier_init(shared.start, 4);
#pragma unroll 1
        for (int i = 0; i < ALL_SENDS; ++i) {
            cj_barrier_init(&shared.out_full[i], 32);
            cj_barrier_init(&shared.out_empty[i], 32);
        }
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
        if (IMAGES) {
            fill_images(shared, args, (int)threadIdx.x - CONSUMERS * WARPGROUP);
        } else {
            fill(shared, args, role - CONSUMERS, thread);
        }
    } else {
        cj_set_registers<CJ_OTHER_REGISTERS, BEGUN_WITH>();
        const int warp = cj_uniform(thread / 32), lane = thread % 32;
        if (BIAS_WARPS > 0 && warp < BIAS_WARPS) {
            store_bias(shared, args, warp, lane);
        } else if (warp == 3 && lane == 0) {
            bring_weights(shared, args);
        }
        if (STORE_WARPS > 0 && warp < STORE_WARPS) {
            __syncwarp();
            send_all(shared, args, warp, lane);
        }
    }
}

#include "tensor/pack.cuh"
