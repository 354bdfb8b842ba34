/* tensor/phased.cuh - outputs of tensor.cu that have phases: to shared memory, and from there to memory. */

/* The phases along y and x that a thread writes: that of its row, and those behind it that no tap reaches. */
struct own_phases {
    int y, begin_y, end_y, x, begin_x, end_x;
};

__device__ __forceinline__ own_phases make_own_phases(const product_row &row) {
    own_phases own;
    own.y = phase_y(row.y), own.begin_y = begin_of(row.y, own.y), own.end_y = row.exists ? phase_y(row.y + 1) : 0;
    own.x = phase_x(row.x), own.begin_x = begin_of(row.x, own.x), own.end_x = phase_x(row.x + 1);
    return own;
}

/* Have any of eight columns of joined rows phases that lie before the first output or behind the last one? */
__host__ __device__ constexpr bool cut_in_eight(int first) {
    bool cut = false;
    for (int i = 0; i < 8; ++i) {
        const int x = (first + i) % PITCH;
        cut = cut || (CJ_LEAD_X > 0 && x == 0) || ((CJ_LEAD_X + CJ_OUT_X) % CJ_PHASES_X != 0 && x == RUN_X - 1);
    }
    return ROWS_JOINED && cut;
}

/* ... of the position in column `column` of a row, which begin at `to`. */
__device__ __forceinline__ void store_own(float *to, float value, float nothing, const own_phases &own, int column, bool cut) {
#pragma unroll
    for (int i = 0; i < (ROWS_JOINED ? SPAN_Y : 1); ++i) {
        const int y = ROWS_JOINED ? own.begin_y + i : own.y;
#pragma unroll
        for (int j = 0; j < SPAN_X; ++j) {
            const int x = own.begin_x + j, in_x = column * CJ_PHASES_X + x - CJ_LEAD_X;
            if (y < own.end_y && x < own.end_x && (!cut || (in_x >= 0 && in_x < CJ_OUT_X))) {
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
            store_own(to, total[i / 2 * 4 + half * 2 + i % 2], nothing, phases, x, cut_in_eight(first));
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

/* The phase behind those that the i-th reached one along z sees to. */
__device__ __forceinline__ int end_z(int i, const tile &t, const sizes &size) {
    return phase_z(i + 1) + (FIRST_Z > 0 && i == CJ_ACTIVE_Z - 1 && t.z + 1 == positions_z(size) ? FIRST_Z : 0);
}

/* Of a warp's eight rows of products ROWS_OF_PIECE share piece i, and the lanes of the first of these see to it. */
__device__ __forceinline__ int lane_of(int i) {
    return i * ROWS_OF_PIECE * PIECE_LANES;
}
__device__ __forceinline__ bool has_piece(int lane) {
    const int row = lane / PIECE_LANES;
    return row % ROWS_OF_PIECE == 0 && row / ROWS_OF_PIECE < OUT_PIECES;
}

/* Is a piece found anew when it is sent? In math tf32 there are not always registers to remember it. */
constexpr bool PIECE_ANEW = PARTS == 1 && (SPAN_X > 1 || RUN_X > 128);

/* Staged pieces to memory, that of each lane's row to own_y. */
__device__ __forceinline__ void send_pieces(const float *out, const phased_piece &own, float *own_y,
                                            const cj_forward_args &args, const sizes &size, const tile &t, int lane) {
    const bool there = has_piece(lane) && own.first.z < size.out_z && (ROWS_JOINED || own.first.y < size.out_y);
    const int count = there ? own.count : 0, skipped = count > 0 ? own.skipped : 0;
    if (IN_BULK) {
        const piece_of_row p = make_piece(own_y, count, own.first.x == 0, skipped);
        const unsigned own_bits = bulk_piece_of(own_y, p).bits;
#pragma unroll 1
        for (int i = 0; i < OUT_PIECES; ++i) {
            const bulk_piece bulk = __shfl_sync(0xffffffff, own_bits, lane_of(i));
            float *const to = (float *)__shfl_sync(0xffffffff, (unsigned long long)own_y, lane_of(i));
            if (bulk.bytes() > 0 && cj_elect()) {
                cj_bulk_store(to + bulk.start(), out + i * OUT_PITCH + bulk.place(), bulk.bytes());
            }
        }
        cj_bulk_store_commit();
        if (count > 0) {
            store_ends(own_y, out + lane / PIECE_LANES / ROWS_OF_PIECE * OUT_PITCH + bulk_shift(own_y), p, lane);
        }
    }
    const float *const own_z = CJ_HAS_Z ? z_of(own, args, size, t) : nullptr;
#pragma unroll 1
    for (int i = 0; i < (IN_BULK ? 0 : OUT_PIECES); ++i) {
        const int of_piece = __shfl_sync(0xffffffff, count, lane_of(i));
        const int begin = CJ_LEAD_X + CJ_LEAD_Y > 0 ? __shfl_sync(0xffffffff, skipped, lane_of(i)) : 0;
        float *const y = (float *)__shfl_sync(0xffffffff, (unsigned long long)own_y, lane_of(i));
        const float *const z = (const float *)__shfl_sync(0xffffffff, (unsigned long long)own_z, lane_of(i));
        for (int j = begin + lane; j < of_piece; j += 32) {
            y[j] = cj_finish(out[i * OUT_PITCH + j], CJ_HAS_Z ? z[j] : 0.0F);
        }
    }
}

/* The phases along z, and y if rows are not joined, that a row of products sees to beside its own: they are bias. */
__device__ __forceinline__ void send_bias(const product_row &row, const phased_piece &own, float *own_y, float own_bias,
                                          const cj_forward_args &args, const sizes &size, const tile &t, int lane) {
    const int own_count = has_piece(lane) ? own.count : 0;
    const int own_low_z = begin_of(row.z, phase_z(row.z)) - phase_z(row.z);
    const int own_high_z = (int)min((long long)(end_z(row.z, t, size) - phase_z(row.z)), size.out_z - own.first.z);
    const int own_low_y = ROWS_JOINED ? 0 : begin_of(row.y, phase_y(row.y)) - phase_y(row.y);
    const int own_high_y =
        ROWS_JOINED ? 1 : (int)min((long long)(phase_y(row.y + 1) - phase_y(row.y)), size.out_y - own.first.y);
    const float *const own_z = CJ_HAS_Z ? z_of(own, args, size, t) : nullptr;
#pragma unroll 1
    for (int i = 0; i < OUT_PIECES; ++i) {
        const int from = lane_of(i), count = __shfl_sync(0xffffffff, own_count, from);
        const int skipped = CJ_LEAD_X + CJ_LEAD_Y > 0 ? __shfl_sync(0xffffffff, own.skipped, from) : 0;
        const int low_z = __shfl_sync(0xffffffff, own_low_z, from), high_z = __shfl_sync(0xffffffff, own_high_z, from);
        const int low_y = __shfl_sync(0xffffffff, own_low_y, from), high_y = __shfl_sync(0xffffffff, own_high_y, from);
        const float bias = __shfl_sync(0xffffffff, own_bias, from);
        float *const y = (float *)__shfl_sync(0xffffffff, (unsigned long long)own_y, from);
        const float *const z = (const float *)__shfl_sync(0xffffffff, (unsigned long long)own_z, from);
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

/* Does any tap reach the phase along y? */
__device__ __forceinline__ bool is_reached_y(int phase) {
    bool reached = false;
#pragma unroll
    for (int i = 0; i < CJ_ACTIVE_Y; ++i) {
        reached = reached || phase == phase_y(i);
    }
    return reached;
}

/* A channel's outputs in a tile, which begin at y in plane z: the rows and planes of those that no tap reaches. */
__device__ __forceinline__ void store_bias_of(float *y, float value, const sizes &size, position z, int phases, int rows,
                                              int columns, int lane) {
#pragma unroll 1
    for (int phase = 0, i = 0; phase < phases; ++phase, y += (out_offset)size.out_y * (out_offset)size.out_x) {
        const bool reached = phase == phase_z(i);
        i += reached && i < CJ_ACTIVE_Z - 1 ? 1 : 0;
        if (z + phase < 0 || z + phase >= size.out_z) {
            continue;
        }
        if (ROWS_JOINED && !reached) {
            store_equal(y, value, rows * columns, lane);
        }
#pragma unroll 1
        for (int row = 0; row < (ROWS_JOINED ? 0 : rows); ++row) {
            if (!reached || !is_reached_y(row % CJ_PHASES_Y)) {
                store_equal(y + row * (out_offset)size.out_x, value, columns, lane);
            }
        }
    }
}

/* A channel's bias, that of its first row of products; 0 from `end` on. */
__device__ __forceinline__ float bias_of(const float4 *channels, int channel, int end) {
    const int piece = channel * CJ_ACTIVE_Z * CJ_ACTIVE_Y;
    return channel < end ? channels[piece / EIGHT * OUT_ROWS + piece % EIGHT * CJ_ACTIVE_X].x : 0.0F;
}

/* What a warp beside the filling ones does: it stores rows and planes that are bias, a share of a tile's with each of its
 * stages; all at once at the beginning, they would be in the way of its input. */
__device__ __forceinline__ void store_bias(const shared_memory &shared, const cj_forward_args &args, int own, int lane) {
    constexpr int OF_CHANNEL = CJ_ACTIVE_Z * CJ_ACTIVE_Y, OF_TILE = TILE_K / OUT_ROWS * EIGHT; /* of EIGHTs */
    constexpr int WARPS = BIAS_WARPS > 0 ? BIAS_WARPS : 1;
    const sizes size = get_sizes(args);
    turn<CJ_STAGES> buffer = {0};
    const tile_range tiles = own_tiles(args);
    position index = tiles.first;
#pragma unroll 1
    for (position left = tiles.count; left > 0; --left, index += gridDim.x) {
        const tile t = make_tile(index, size);
        const int channel = ((int)t.k_tile * OF_TILE + OF_CHANNEL - 1) / OF_CHANNEL + own;
        const int end = min((((int)t.k_tile + 1) * OF_TILE + OF_CHANNEL - 1) / OF_CHANNEL, CJ_GROUP_OUT);
        const position z = t.z * CJ_PHASES_Z - CJ_LEAD_Z, y = t.y * CJ_PHASES_Y - CJ_LEAD_Y, x = t.x * CJ_PHASES_X - CJ_LEAD_X;
        const position first_y = max(y, (position)0), first_x = max(x, (position)0);
        const int rows = (int)(min(y + TILE_Y * CJ_PHASES_Y, (position)size.out_y) - first_y);
        const int columns = (int)(min(x + TILE_X * CJ_PHASES_X, (position)size.out_x) - first_x);
        const int phases = CJ_PHASES_Z + (FIRST_Z > 0 && t.z + 1 == positions_z(size) ? FIRST_Z : 0);
        float *to = (float *)args.y + t.n * args.y_batch_stride +
                    offset_of({z, first_y, first_x}, size, t, channel, args.y_channel_stride);
        const float4 *const channels = channels_of(args) + t.group * K_BLOCKS * M;
        float own_bias = bias_of(channels, channel + lane * WARPS, end); /* of the next 32 channels, a lane each */
        const int count = max(end - channel + WARPS - 1, 0) / WARPS;
        int done = 0;
#pragma unroll 1
        for (int i = 1; i <= CHUNKS; ++i) {
            cj_barrier_wait(&shared.full[buffer.index()], buffer.parity());
#pragma unroll 1
            for (; done < count * i / CHUNKS; ++done, to += WARPS * args.y_channel_stride) {
                if (done > 0 && done % 32 == 0) {
                    own_bias = bias_of(channels, channel + (done + lane) * WARPS, end);
                }
                const float bias = __shfl_sync(0xffffffff, own_bias, done % 32);
                store_bias_of(to, cj_finish(bias, 0.0F), size, z, phases, rows, columns, lane);
            }
            __syncwarp();
            if (lane == 0) {
                cj_barrier_arrive(&shared.empty[buffer.index()]);
            }
            buffer.next();
        }
    }
}
