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
            const bool in_row = !ROWS_JOINED || CJ_OUT_X % CJ_PHASES_X == 0 || column * CJ_PHASES_X + x < CJ_OUT_X;
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
            float *const to = piece + y * CJ_PHASES_Y * OUT_WIDTH + x * CJ_PHASES_X;
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

/* A warp's piece, of which all is bias if no tap reaches it, where bulk copies do not do it. */
__device__ __forceinline__ void store_piece(const float *staged, const cj_forward_args &args, const sizes &size, const tile &t,
                                            int channel, const output &first, int count, bool reached, float bias, int lane) {
    float *const y = (float *)args.y + t.n * args.y_batch_stride + offset_of(first, size, t, channel, args.y_channel_stride);
    const float *const z =
        (const float *)args.z + t.n * args.z_batch_stride + offset_of(first, size, t, channel, args.z_channel_stride);
    if (IN_BULK && !reached) {
        store_equal(y, cj_finish(bias, 0.0F), count, lane);
    }
    for (int i = lane; i < count && !IN_BULK; i += 32) {
        y[i] = cj_finish(reached ? staged[i] : bias, CJ_HAS_Z ? z[i] : 0.0F);
    }
}

/* Staged pieces to memory, and with them the phases along z, and y if rows are not joined, that no tap reaches. */
__device__ __forceinline__ void store_phases(const float *out, const cj_forward_args &args, const sizes &size, const tile &t,
                                             int first_k, int run, int lane) {
    constexpr bool ALL_REACHED = CJ_ACTIVE_Z * (ROWS_JOINED ? 1 : CJ_ACTIVE_Y) == CJ_PHASES_Z * (ROWS_JOINED ? 1 : CJ_PHASES_Y);
    if (IN_BULK) {
        const int own_k = first_k + min(lane / 4, OUT_PIECES - 1) * ROWS_OF_PIECE;
        const phased_piece own = make_phased_piece(row_of(own_k), size, t, run);
        float *const to = address_of(own, args, size, t);
        const piece_of_row p = make_piece(to, own.exists ? own.count : 0, own.first.x == 0);
        cj_async_fence();
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < OUT_PIECES; ++i) {
            const bulk_piece bulk = __shfl_sync(0xffffffff, bulk_piece_of(to, p).bits, i * 4);
            float *const target = (float *)__shfl_sync(0xffffffff, (unsigned long long)to, i * 4);
            if (bulk.bytes() > 0 && cj_elect()) {
                cj_bulk_store(target + bulk.start(), out + i * OUT_PITCH + bulk.place(), bulk.bytes());
            }
        }
        cj_bulk_store_commit();
        if (lane / 4 < OUT_PIECES) {
            store_ends(to, out + lane / 4 * OUT_PITCH + bulk_shift(to), p, lane % 4);
        }
    }
#pragma unroll 1
    for (int i = 0; i < OUT_PIECES && !(IN_BULK && ALL_REACHED); ++i) {
        const int k = first_k + i * ROWS_OF_PIECE;
        const product_row row = row_of(k);
        const phased_piece p = make_phased_piece(row, size, t, run);
        const float bias = channels_of(args)[t.group * K_BLOCKS * M + k].x;
        const int own_z = phases_z[row.z], begin_z = begin_of(phases_z, row.z), end_z = row.exists ? phases_z[row.z + 1] : 0;
        const int own_y = ROWS_JOINED ? 0 : phases_y[row.y], begin_y = ROWS_JOINED ? 0 : begin_of(phases_y, row.y);
        const int end_y = ROWS_JOINED ? 1 : phases_y[row.y + 1];
        for (int z = begin_z; z < end_z; ++z) {
            for (int y = begin_y; y < end_y; ++y) {
                const output o = {p.first.z + z - own_z, p.first.y + y - own_y, p.first.x};
                store_piece(out + i * OUT_PITCH, args, size, t, row.channel, o, is_there(o, size) ? p.count : 0,
                            z == own_z && y == own_y, bias, lane);
            }
        }
    }
}
