/* tensor/pieces.cuh - where the outputs of tensor.cu lie: in a product, in shared memory and in memory; and bulk copies. */

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

/* Where a piece begins in its row of a buffer if it goes to y, and where in it the output of a column of a product lies. */
__device__ __forceinline__ int bulk_shift(const float *y) {
    return IN_BULK ? (int)((unsigned long long)y / sizeof(float) % SECTOR) : 0;
}
constexpr bool STAGED_JOINED = ROWS_JOINED && (PHASED || IN_BULK);
constexpr int OUT_WIDTH = ROWS_JOINED ? CJ_OUT_X : 0; /* of a row in a piece */
__device__ __forceinline__ int place_of(int column, const product_row &row) {
    const int y = STAGED_JOINED ? column / PITCH * CJ_PHASES_Y + phase_y(row.y) : 0;
    const int x = (STAGED_JOINED ? column % PITCH : column) * CJ_PHASES_X + phase_x(row.x);
    return y * OUT_WIDTH + x - (STAGED_JOINED ? CJ_LEAD_X : 0);
}

/* Rows of the run that end before column first + i; the compiler knows `first`, and i is less than 8. For place_of without
 * its divisions. */
__device__ __forceinline__ int rows_before(int first, int i) {
    const int rest = first % PITCH;
    if (CJ_RUN_ROWS == 1) {
        return 0;
    }
    return first / PITCH + (rest + 7 < PITCH ? 0 : PITCH >= 8 ? (rest + i >= PITCH ? 1 : 0) : (rest + i) / PITCH);
}

/* The output that is a position's phase. */
struct output {
    position z, y, x;
};

__device__ __forceinline__ bool is_there(const output &o, const sizes &size) {
    return o.z >= 0 && o.z < size.out_z && o.y >= 0 && o.y < size.out_y && o.x >= 0 && o.x < size.out_x;
}

/* A piece of outputs: of a run, with all its phases along x, and along y if rows are joined. */
struct phased_piece {
    int channel;
    output first;
    int count, skipped; /* outputs of it, of which the first ones are none; along y and z the others may lie outside too */
};

__device__ __forceinline__ phased_piece make_phased_piece(const product_row &row, const sizes &size, const tile &t, int run) {
    const position y = t.y + run_y(run), x = t.x + run_x(run), out_y = (position)size.out_y, out_x = (position)size.out_x;
    phased_piece p;
    p.channel = row.channel;
    p.first = {t.z * CJ_PHASES_Z + phase_z(row.z) - CJ_LEAD_Z,
               y * CJ_PHASES_Y + (ROWS_JOINED ? 0 : phase_y(row.y)) - CJ_LEAD_Y,
               x * CJ_PHASES_X - (ROWS_JOINED ? 0 : CJ_LEAD_X)}; /* beyond the end for a second run beside joined rows */
    const bool begun = p.first.z >= 0 && (ROWS_JOINED || p.first.y >= 0);
    const position count = ROWS_JOINED ? min((position)(CJ_RUN_ROWS * CJ_PHASES_Y), out_y - p.first.y) * out_x
                                       : min((position)(RUN_X * CJ_PHASES_X), out_x - p.first.x);
    p.count = row.exists && begun && p.first.x < out_x ? (int)max(count, (position)0) : 0;
    p.skipped = (int)(ROWS_JOINED ? max(-p.first.y, (position)0) * out_x : max(-p.first.x, (position)0));
    return p;
}

/* Offset in memory of an output, from the first of image t.n. */
__device__ __forceinline__ long long offset_of(const output &o, const sizes &size, const tile &t, int channel,
                                               long long channel_stride) {
    return (t.group * CJ_GROUP_OUT + channel) * channel_stride +
           ((out_offset)o.z * (out_offset)size.out_y + o.y) * (out_offset)size.out_x + o.x;
}

__device__ __forceinline__ float *address_of(const phased_piece &p, const cj_forward_args &args, const sizes &size,
                                             const tile &t) {
    return (float *)args.y + t.n * args.y_batch_stride + offset_of(p.first, size, t, p.channel, args.y_channel_stride);
}

__device__ __forceinline__ const float *z_of(const phased_piece &p, const cj_forward_args &args, const sizes &size,
                                             const tile &t) {
    return (const float *)args.z + t.n * args.z_batch_stride + offset_of(p.first, size, t, p.channel, args.z_channel_stride);
}

/* Floats from y to the next 32 bytes, a sector. */
__device__ __forceinline__ int to_sector(const float *y) {
    return (int)(-((unsigned long long)y / sizeof(float)) % SECTOR);
}

/* Which of its outputs, `count` of them from y on, a run stores for a channel: all but those skipped, from y + begin on `head`
 * until 16 bytes begin, `middle` that are whole ones, and the rest. Runs that overlap share their outputs out where sectors
 * begin. */
struct piece_of_row {
    int begin, count, head, middle;
};

__device__ __forceinline__ piece_of_row make_piece(const float *y, int count, bool first, int skipped) {
    piece_of_row p = {skipped, count - skipped, 0, 0};
    if (CJ_OVERLAP > 0) {
        p.begin = first ? 0 : to_sector(y);
        p.count = min(count, RUN_STEP + to_sector(y + RUN_STEP)) - p.begin;
    }
    p.head = min(to_sector(y + p.begin) % 4, p.count);
    p.middle = (p.count - p.head) / 4 * 4;
    return p;
}

/* A piece of a row in one number: its first float and how many there are, to copy in bulk, and bulk_shift. */
struct bulk_piece {
    unsigned bits;
    __device__ __forceinline__ bulk_piece(unsigned given) : bits(given) {}
    __device__ __forceinline__ unsigned start() const {
        return bits & 4095;
    }
    __device__ __forceinline__ unsigned bytes() const {
        return (bits >> 12 & 4095) * (unsigned)sizeof(float);
    }
    __device__ __forceinline__ unsigned place() const { /* in `out` */
        return (bits >> 24) + start();
    }
};

__device__ __forceinline__ bulk_piece bulk_piece_of(const float *y, const piece_of_row &p) {
    static_assert(OUT_PITCH < 4096, "it holds two places of a row");
    const unsigned length = p.middle > 0 ? (unsigned)p.middle : 0;
    return (unsigned)((p.begin + p.head) & 4095) | length << 12 | (unsigned)bulk_shift(y) << 24;
}

/* Rows' pieces repeat after so many rows, for so do places in sectors. */
constexpr int period_of(long long plane) {
    int period = 1;
    while (period < OUT_ROWS && plane * period % SECTOR != 0) {
        period *= 2;
    }
    return period;
}
constexpr int PERIOD = CJ_DYNAMIC ? OUT_ROWS : period_of((long long)CJ_OUT_Z * CJ_OUT_Y * CJ_OUT_X);

/* Of the lanes of a warp so many see to each piece that it sends. */
constexpr int PIECE_LANES = 32 / SENT_ROWS;

/* One thread issues all copies of a warp, from values that are the same for the warp: threads that issue one each take ten
 * times as long. Lane PIECE_LANES * row has the row's piece. No branch but the election: behind others ptxas takes the warp
 * for divergent. */
__device__ __forceinline__ void copy_rows(const float *out, float *y, const cj_forward_args &args, bulk_piece own, int channels,
                                          int count, bool first, int lane) {
    unsigned pieces[PERIOD];
    const unsigned before = __shfl_sync(0xffffffff, own.bits, lane % (PERIOD * PIECE_LANES));
    const bool all_usual = __all_sync(0xffffffff, own.bits == before && own.bytes() > 0);
#pragma unroll
    for (int i = 0; i < PERIOD; ++i) {
        pieces[i] = __shfl_sync(0xffffffff, own.bits, i * PIECE_LANES);
    }
    if (cj_elect()) {
        if (all_usual) {
            constexpr int AT_ONCE = STORE_WARPS > 0 ? PERIOD : SENT_ROWS; /* storing warps have few registers */
#pragma unroll 1
            for (int i = 0; i < SENT_ROWS; i += AT_ONCE, y += AT_ONCE * args.y_channel_stride, out += AT_ONCE * OUT_PITCH) {
#pragma unroll
                for (int row = 0; row < AT_ONCE; ++row) {
                    const bulk_piece piece(pieces[row % PERIOD]);
                    cj_bulk_store(y + row * args.y_channel_stride + piece.start(), out + row * OUT_PITCH + piece.place(),
                                  piece.bytes());
                }
            }
        } else {
#pragma unroll 1
            for (int row = 0; row < channels; ++row, y += args.y_channel_stride, out += OUT_PITCH) {
                const bulk_piece piece = bulk_piece_of(y, make_piece(y, count, first, 0));
                if (piece.bytes() > 0) {
                    cj_bulk_store(y + piece.start(), out + piece.place(), piece.bytes());
                }
            }
        }
    }
}

/* What bulk copies leave at both ends of a piece, by its lanes. */
__device__ __forceinline__ void store_ends(float *to, const float *from, const piece_of_row &p, int lane) {
    const int tail = p.begin + p.head + p.middle;
#pragma unroll
    for (int step = 0; step < 3; step += PIECE_LANES) { /* an end has less than 16 bytes */
        const int i = step + lane % PIECE_LANES;
        if (i < p.head) {
            to[p.begin + i] = from[p.begin + i];
        }
        if (tail + i < p.begin + p.count) {
            to[tail + i] = from[tail + i];
        }
    }
}

/* A warp's outputs, finished and each channel's in a row: 16 bytes of memory at a time by bulk copies, which take no
 * instructions and no time of the unit that loads and stores, and what is cut off at both ends one by one. */
__device__ __forceinline__ void store_in_bulk(const float *out, float *y, const cj_forward_args &args, int channels, int count,
                                              bool first, int lane) {
    const int own_row = lane / PIECE_LANES;
    float *const to = y + own_row * args.y_channel_stride;
    const piece_of_row p = make_piece(to, count, first, 0);
    copy_rows(out, y, args, own_row < channels ? bulk_piece_of(to, p) : bulk_piece(0), min(channels, SENT_ROWS), count, first,
              lane);
    cj_bulk_store_commit();
    if (own_row < channels) {
        store_ends(to, out + own_row * OUT_PITCH + bulk_shift(to), p, lane);
    }
}
