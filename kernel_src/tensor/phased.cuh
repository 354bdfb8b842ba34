/* tensor/phased.cuh - outputs of tensor.cu that have phases: to shared memory, and from there to memory. */

/* The phases along y and x that a thread writes: that of its row, and those behind it that no tap reaches. */
struct own_phases {
    int y, begin_y, end_y, x, begin_x, end_x;
};

__device__ __forceinline__ own_phases make_own_phases(const product_row &row) {
    own_phases own;
    own.y = phases_y[row.y], own.begin_y = begin_of(phases_y, row.y), own.end_y = row.exists ? phases_y[row.y + 1] : 0;
    own.x = phases_x[row.x], own.begin_x = begin_of(phases_x, row.x), own.end_x = phases_x[row.x + 1];
    return own;
}

/* ... of the position in column `column` of a row, which begin at `to`. */
__device__ __forceinline__ void store_own(float *to, float value, float nothing, const own_phases &own, int column) {
#pragma unroll
    for (int i = 0; i < (ROWS_JOINED ? SPAN_Y : 1); ++i) {
        const int y = ROWS_JOINED ? own.begin_y + i : own.y;
#pragma unroll
        for (int j = 0; j < SPAN_X; ++j) {
            const int x = own.begin_x + j;
            const int in_x = column * CJ_PHASES_X + x - CJ_LEAD_X; /* with rows joined */
            const bool in_row =
                !ROWS_JOINED || ((CJ_LEAD_X == 0 || in_x >= 0) &&
                                 ((CJ_LEAD_X + CJ_OUT_X) % CJ_PHASES_X == 0 || in_x < CJ_OUT_X));
            if (y < own.end_y && x < own.end_x && in_row) {
                to[y * OUT_WIDTH + x] = y == own.y && x == own.x ? value : nothing;
            }
        }
    }
}

/* A thread's outputs of half its row to the row's piece, with those of the phases that no tap reaches, which are `nothing`. */
__device__ __forceinline__ void write_phases(float *piece, const float (&total)[OWN], int half, const product_row &row,
                                             float nothing, int lane) {
    const own_phases phases = make_own_phases(row);
#pragma unroll
    for (int i = 0; i < CJ_COLUMNS / 4; ++i) {
        const int first = i / 2 * 8, column = first + lane % 4 * 2 + i % 2, outputs = outputs_of_eight(first);
        if (outputs == 8 || (outputs > 0 && is_output(column))) {
            const int y = rows_before(first, lane % 4 * 2 + i % 2), x = column - y * PITCH;
            float *const to = piece + y * CJ_PHASES_Y * OUT_WIDTH + x * CJ_PHASES_X - (ROWS_JOINED ? CJ_LEAD_X : 0);
            store_own(to, total[i / 2 * 4 + half * 2 + i % 2], nothing, phases, x);
        }
    }
}

/* A warp's `count` equal outputs, whole sectors where it can. */
__device__ __forceinline__ void store_equal(float *to, float value, int count, int lane) {
    const unsigned bits = __float_as_uint(value);
    const int head = min(to_sector(to), count), end = head + (count - head) / 4 * 4;
    if (lane < head) {
        to[lane] = value;
    }
    for (int i = head + lane * 4; i < end; i += 128) {
        cj_store16(to + i, make_uint4(bits, bits, bits, bits));
    }
    if (end + lane < count) {
        to[end + lane] = value;
    }
}

/* The piece that a lane has of those that its warp sends: where it is to go, and the phases along z, and y if rows are not
 * joined, that the row of products sees to: from low to high, of which 0 is its own and the others are bias. */
struct sent_piece {
    int row; /* of products */
    float *y;
    const float *z;
    int count, skipped, low_z, high_z, low_y, high_y;
    bool first;
};

__device__ __forceinline__ sent_piece make_sent_piece(const cj_forward_args &args, const sizes &size, const tile &t, int run,
                                                      int first_k, int lane) {
    const int i = lane / PIECE_LANES % OUT_ROWS;
    sent_piece p;
    p.row = first_k + lane / PIECE_LANES / OUT_ROWS * OUT_ROWS + i % OUT_PIECES * ROWS_OF_PIECE;
    const product_row row = row_of(p.row);
    const phased_piece piece = make_phased_piece(row, size, t, run);
    p.y = address_of(piece, args, size, t);
    p.z = CJ_HAS_Z ? (const float *)args.z + t.n * args.z_batch_stride +
                         offset_of(piece.first, size, t, row.channel, args.z_channel_stride)
                   : nullptr;
    p.count = i < OUT_PIECES ? piece.count : 0;
    p.skipped = piece.skipped;
    p.first = piece.first.x == 0;
    p.low_z = begin_of(phases_z, row.z) - phases_z[row.z];
    p.high_z = (int)min((long long)(phases_z[row.z + 1] - phases_z[row.z]), size.out_z - piece.first.z);
    p.low_y = ROWS_JOINED ? 0 : begin_of(phases_y, row.y) - phases_y[row.y];
    p.high_y = ROWS_JOINED ? 1 : (int)min((long long)(phases_y[row.y + 1] - phases_y[row.y]), size.out_y - piece.first.y);
    return p;
}

/* The lane that has piece i. */
__device__ __forceinline__ int lane_of(int i) {
    return (i / OUT_PIECES * OUT_ROWS + i % OUT_PIECES) * PIECE_LANES;
}
constexpr int SENT_PIECES = SENT_ROWS / OUT_ROWS * OUT_PIECES;

/* Staged pieces to memory. */
__device__ __forceinline__ void send_pieces(const float *out, const sent_piece &own, const sizes &size, int lane) {
    const int count = own.high_z > 0 && own.high_y > 0 ? own.count : 0;
    if (IN_BULK) {
        const piece_of_row p = make_piece(own.y, count, own.first, count > 0 ? own.skipped : 0);
        const unsigned own_bits = bulk_piece_of(own.y, p).bits;
#pragma unroll 1
        for (int i = 0; i < SENT_PIECES; ++i) {
            const bulk_piece bulk = __shfl_sync(0xffffffff, own_bits, lane_of(i));
            float *const target = (float *)__shfl_sync(0xffffffff, (unsigned long long)own.y, lane_of(i));
            if (bulk.bytes() > 0 && cj_elect()) {
                cj_bulk_store(target + bulk.start(), out + i * OUT_PITCH + bulk.place(), bulk.bytes());
            }
        }
        cj_bulk_store_commit();
        if (count > 0) {
            const int i = lane / PIECE_LANES;
            store_ends(own.y, out + (i / OUT_ROWS * OUT_PIECES + i % OUT_ROWS) * OUT_PITCH + bulk_shift(own.y), p, lane);
        }
    }
#pragma unroll 1
    for (int i = 0; i < (IN_BULK ? 0 : SENT_PIECES); ++i) {
        const int of_piece = __shfl_sync(0xffffffff, count, lane_of(i));
        const int skipped = CJ_LEAD_X + CJ_LEAD_Y > 0 ? __shfl_sync(0xffffffff, own.skipped, lane_of(i)) : 0;
        float *const y = (float *)__shfl_sync(0xffffffff, (unsigned long long)own.y, lane_of(i));
        const float *const z = (const float *)__shfl_sync(0xffffffff, (unsigned long long)own.z, lane_of(i));
        for (int j = skipped + lane; j < of_piece; j += 32) {
            y[j] = cj_finish(out[i * OUT_PITCH + j], CJ_HAS_Z ? z[j] : 0.0F);
        }
    }
}

/* The phases beside the pieces', which are bias. */
__device__ __forceinline__ void send_bias(const sent_piece &own, const cj_forward_args &args, const sizes &size, const tile &t,
                                          int lane) {
    constexpr bool NONE = CJ_ACTIVE_Z * (ROWS_JOINED ? 1 : CJ_ACTIVE_Y) == CJ_PHASES_Z * (ROWS_JOINED ? 1 : CJ_PHASES_Y);
    const float own_bias = NONE || own.count == 0 ? 0.0F : channels_of(args)[t.group * K_BLOCKS * M + own.row].x;
#pragma unroll 1
    for (int i = 0; i < (NONE ? 0 : SENT_PIECES); ++i) {
        const int from = lane_of(i), count = __shfl_sync(0xffffffff, own.count, from);
        const int skipped = CJ_LEAD_X + CJ_LEAD_Y > 0 ? __shfl_sync(0xffffffff, own.skipped, from) : 0;
        const int low_z = __shfl_sync(0xffffffff, own.low_z, from), high_z = __shfl_sync(0xffffffff, own.high_z, from);
        const int low_y = __shfl_sync(0xffffffff, own.low_y, from), high_y = __shfl_sync(0xffffffff, own.high_y, from);
        const float bias = __shfl_sync(0xffffffff, own_bias, from);
        float *const y = (float *)__shfl_sync(0xffffffff, (unsigned long long)own.y, from);
        const float *const z = (const float *)__shfl_sync(0xffffffff, (unsigned long long)own.z, from);
        for (int plane = low_z; plane < high_z; ++plane) {
            for (int row = low_y; row < high_y; ++row) {
                const long long distance = (plane * (long long)size.out_y + row) * size.out_x;
                if (plane == 0 && row == 0) {
                    continue;
                }
                if (!CJ_HAS_Z) {
                    store_equal(y + distance + skipped, cj_finish(bias, 0.0F), count - skipped, lane);
                }
                for (int j = skipped + lane; j < count && CJ_HAS_Z; j += 32) {
                    y[distance + j] = cj_finish(bias, z[distance + j]);
                }
            }
        }
    }
}
