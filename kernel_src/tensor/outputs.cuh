/* tensor/outputs.cuh - outputs of tensor.cu to memory, and the plain loop for those that the halves cannot give. */

/* The plain loop, in float64: one output of a row anew, padding skipped. o_y and o_x are positions of the grid. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const product_row &row, const float *w, long long o_y, long long o_x) {
    double sum = 0.0;
    for (int c = 0; c < CJ_GROUP_IN; ++c) {
        const float *x =
            (const float *)args.x + t.n * args.x_batch_stride + (t.group * CJ_GROUP_IN + c) * args.x_channel_stride;
        for (int tap = 0; tap < TAPS; ++tap) {
            const int kx = tap % CJ_KERNEL_X, ky = tap / CJ_KERNEL_X % CJ_KERNEL_Y, kz = tap / (CJ_KERNEL_X * CJ_KERNEL_Y);
            const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + kz * CJ_DILATION_Z;
            const long long y = o_y * CJ_STRIDE_Y - CJ_PAD_Y + ky * CJ_DILATION_Y;
            const long long x_ = o_x * CJ_STRIDE_X - CJ_PAD_X + kx * CJ_DILATION_X;
            if (z >= 0 && z < size.in_z && y >= 0 && y < size.in_y && x_ >= 0 && x_ < size.in_x &&
                place_in_filter(row, tap) >= 0) {
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

/* Where a piece begins in its row of a buffer if it goes to y, and where in it the output of a column of a product lies. */
__device__ __forceinline__ int bulk_shift(const float *y) {
    return IN_BULK ? (int)((unsigned long long)y / sizeof(float) % 4) : 0;
}
constexpr bool STAGED_JOINED = ROWS_JOINED && (PHASED || IN_BULK);
constexpr int OUT_WIDTH = ROWS_JOINED ? CJ_OUT_X : 0; /* of a row in a piece */
__device__ __forceinline__ int place_of(int column, const product_row &row) {
    const int y = STAGED_JOINED ? column / PITCH * CJ_PHASES_Y + phases_y[row.y] : 0;
    const int x = (STAGED_JOINED ? column % PITCH : column) * CJ_PHASES_X + phases_x[row.x];
    return y * OUT_WIDTH + x;
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

/* A piece of outputs: of a run, with all its phases along x, and along y if rows are joined. */
struct phased_piece {
    bool exists;
    int channel;
    output first;
    int count;
};

__device__ __forceinline__ phased_piece make_phased_piece(const product_row &row, const sizes &size, const tile &t, int run) {
    const long long z = t.z, y = t.y + run_y(run), x = t.x + run_x(run);
    phased_piece p;
    p.channel = row.channel;
    p.first = {z * CJ_PHASES_Z + phases_z[row.z], y * CJ_PHASES_Y + (ROWS_JOINED ? 0 : phases_y[row.y]), x * CJ_PHASES_X};
    p.exists = row.exists && is_there(p.first, size);
    p.count = (int)(ROWS_JOINED ? min((long long)CJ_RUN_ROWS * CJ_PHASES_Y, size.out_y - p.first.y) * size.out_x
                                : min((long long)RUN_X * CJ_PHASES_X, size.out_x - p.first.x));
    return p;
}

/* Offset in memory of an output, from the first of image t.n. */
__device__ __forceinline__ long long offset_of(const output &o, const sizes &size, const tile &t, int channel,
                                               long long channel_stride) {
    return (t.group * CJ_GROUP_OUT + channel) * channel_stride + (o.z * size.out_y + o.y) * size.out_x + o.x;
}

__device__ __forceinline__ float *address_of(const phased_piece &p, const cj_forward_args &args, const sizes &size,
                                             const tile &t) {
    return (float *)args.y + t.n * args.y_batch_stride + offset_of(p.first, size, t, p.channel, args.y_channel_stride);
}

/* See "the surprising rule": one warp's outputs in a buffer, of rows of products from first_k on. */
__device__ __noinline__ void replace_strange(float *out, const cj_forward_args &args, position index, int first_k, int run) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    for (int i = 0; i < OUT_ROWS; ++i) {
        const product_row row = row_of(first_k + i);
        const long long row_index = t.group * CJ_ROWS + first_k + i;
        const float *w = (const float *)(channels_of(args) + CHANNELS) + row_index * CJ_GROUP_IN * TAPS;
        const float bias = channels_of(args)[t.group * K_BLOCKS * M + first_k + i].x;
        float *const staged =
            out + i / ROWS_OF_PIECE * OUT_PITCH + bulk_shift(address_of(make_phased_piece(row, size, t, run), args, size, t));
        for (int column = (int)threadIdx.x % 32; column < CJ_COLUMNS && row.exists; column += 32) {
            const long long y = t.y + run_y(run) + column / PITCH, x = t.x + run_x(run) + column % PITCH;
            const output o = {(long long)t.z * CJ_PHASES_Z + phases_z[row.z], y * CJ_PHASES_Y + phases_y[row.y],
                              x * CJ_PHASES_X + phases_x[row.x]};
            float &value = staged[place_of(column, row)];
            if (is_output(column) && is_there(o, size) && !(value - value == 0.0F)) {
                value = cj_linear(exact_output(args, size, t, row, w, y, x), bias);
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

/* Which of its outputs, `count` of them from y on, a run stores for a channel: from y + begin on `head` until 16 bytes begin,
 * `middle` that are whole ones, and the rest. Runs that overlap share their outputs out where sectors begin. */
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

/* Rows' pieces repeat after so many rows, for so do places in 16 bytes or, if runs overlap, in sectors. */
constexpr int period_of(long long plane) {
    int period = 1;
    while (period < OUT_ROWS && plane * period % (CJ_OVERLAP > 0 ? 8 : 4) != 0) {
        period *= 2;
    }
    return period;
}
constexpr int PERIOD = CJ_DYNAMIC ? OUT_ROWS : period_of((long long)CJ_OUT_Z * CJ_OUT_Y * CJ_OUT_X);

/* One thread issues all copies of a warp, from values that are the same for the warp: threads that issue one each take ten
 * times as long. Lane 4 * row has the row's piece. No branch but the election: behind others ptxas takes the warp for
 * divergent. */
__device__ __forceinline__ void copy_rows(const float *out, float *y, const cj_forward_args &args, bulk_piece own, int channels,
                                          int count, bool first, int lane) {
    unsigned pieces[PERIOD];
    const unsigned before = __shfl_sync(0xffffffff, own.bits, lane % (PERIOD * 4));
    const bool all_usual = __all_sync(0xffffffff, own.bits == before && own.bytes() > 0);
#pragma unroll
    for (int i = 0; i < PERIOD; ++i) {
        pieces[i] = __shfl_sync(0xffffffff, own.bits, i * 4);
    }
    if (cj_elect()) {
        if (all_usual) {
#pragma unroll
            for (int row = 0; row < OUT_ROWS; ++row) {
                const bulk_piece piece(pieces[row % PERIOD]);
                cj_bulk_store(y + row * args.y_channel_stride + piece.start(), out + row * OUT_PITCH + piece.place(),
                              piece.bytes());
            }
        } else {
#pragma unroll 1
            for (int row = 0; row < channels; ++row, y += args.y_channel_stride, out += OUT_PITCH) {
                const bulk_piece piece = bulk_piece_of(y, make_piece(y, count, first));
                if (piece.bytes() > 0) {
                    cj_bulk_store(y + piece.start(), out + piece.place(), piece.bytes());
                }
            }
        }
    }
}

/* What bulk copies leave at both ends of a piece, by four threads. */
__device__ __forceinline__ void store_ends(float *to, const float *from, const piece_of_row &p, int thread) {
    if (thread < p.head) {
        to[p.begin + thread] = from[p.begin + thread];
    }
    const int tail = p.begin + p.head + p.middle + thread;
    if (tail < p.begin + p.count) {
        to[tail] = from[tail];
    }
}

/* A warp's outputs, finished and each channel's in a row: 16 bytes of memory at a time by bulk copies, which take no
 * instructions and no time of the unit that loads and stores, and what is cut off at both ends one by one. Four threads see to
 * a row. */
__device__ __forceinline__ void store_in_bulk(const float *out, float *y, const cj_forward_args &args, int channels, int count,
                                              bool first, int lane) {
    const int own_row = lane / 4, column = lane % 4;
    float *const to = y + own_row * args.y_channel_stride;
    const piece_of_row p = make_piece(to, count, first);
    cj_async_fence();
    __syncwarp();
    copy_rows(out, y, args, own_row < channels ? bulk_piece_of(to, p) : bulk_piece(0), min(channels, OUT_ROWS), count, first,
              lane);
    cj_bulk_store_commit();
    if (own_row < channels) {
        store_ends(to, out + own_row * OUT_PITCH + bulk_shift(to), p, column);
    }
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

/* Can neighbouring outputs of a thread be stored together, where their rows begin at whole 8 bytes? In math tf32 that is
 * slower, why is not known. */
constexpr bool PAIRED = PARTS == 2 && (CJ_RUN_ROWS == 1 || (PITCH % 2 == 0 && RUN_X % 2 == 0));

/* Where columns lie in very short rows is found anew each time: there are no registers to remember it. */
__device__ __forceinline__ int lane_anew(int lane) {
    return PITCH < 8 ? cj_opaque(lane) : lane;
}

/* A thread's outputs of half its channels to its row of `out`. */
__device__ __forceinline__ void write_outputs(float *own, const float (&total)[OWN], int half, int lane) {
    const bool paired = !IN_BULK || (PAIRED && !__any_sync(0xffffffff, (int)((unsigned long long)own / sizeof(float) % 2)));
    if (paired) {
#pragma unroll
        for (int j = 0; j < CJ_COLUMNS / 8; ++j) {
            const int passed = IN_BULK ? rows_before(j * 8, lane % 4 * 2) * (PITCH - RUN_X) : 0;
            if (!IN_BULK || outputs_of_eight(j * 8) == 8 || is_output(j * 8 + lane % 4 * 2)) {
                *(float2 *)&own[j * 8 - passed] = make_float2(total[j * 4 + half * 2], total[j * 4 + half * 2 + 1]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < CJ_COLUMNS / 4; ++i) {
            const int first = i / 2 * 8, column = first + lane % 4 * 2 + i % 2, outputs = outputs_of_eight(first);
            if (outputs == 8 || (outputs > 0 && is_output(column))) {
                own[first + i % 2 - rows_before(first, lane % 4 * 2 + i % 2) * (PITCH - RUN_X)] =
                    total[i / 2 * 4 + half * 2 + i % 2];
            }
        }
    }
}

/* ... to its piece, with those of the phases behind it that no tap reaches, which are `nothing`. */
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

/* A warp's outputs of half its rows of products, as they are finished, to shared memory, where a thread's piece is. True if any
 * must be computed anew: it is NaN or Inf there, and not activated. */
__device__ __forceinline__ bool stage_outputs(float *piece, const product_row &row, float (&total)[OWN], int half, float factor,
                                              float threshold, float bias, int lane) {
    if (__any_sync(0xffffffff, threshold > 0.0F)) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            float &sum = total[i];
            sum = i % 4 / 2 == half && fabsf(sum) < threshold ? __uint_as_float(0x7fffffff) : sum;
        }
    }
    float strange = 0.0F; /* NaN or Inf once any value was, or if a product of neighbours is too large */
#pragma unroll
    for (int j = 0; j < CJ_COLUMNS / 8; ++j) {
        float *const v = &total[j * 4 + half * 2];
        const int outputs = outputs_of_eight(j * 8), column = j * 8 + lane % 4 * 2;
        v[0] = fmaf(v[0], factor, bias), v[1] = fmaf(v[1], factor, bias);
        if (outputs == 8) {
            strange = fmaf(v[0], v[1], strange);
        } else if (outputs > 0) { /* no branches, or ptxas takes the warp for divergent from here on */
            strange = is_output(column) ? fmaf(v[0], 0.0F, strange) : strange;
            strange = is_output(column + 1) ? fmaf(v[1], 0.0F, strange) : strange;
        }
#pragma unroll
        for (int i = 0; i < 2 && IN_BULK && CJ_ACTIVATION != 0; ++i) {
            v[i] = !(v[i] - v[i] == 0.0F) ? v[i] : cj_finish(v[i], 0.0F);
        }
    }
    if (PHASED) {
        write_phases(piece, total, half, row, IN_BULK ? cj_finish(bias, 0.0F) : bias, lane_anew(lane));
    } else {
        write_outputs(piece + lane % 4 * 2, total, half, lane_anew(lane));
    }
    return __any_sync(0xffffffff, !(strange - strange == 0.0F));
}

/* Can the unit of a total be part of the factor of its outputs, and the threshold be divided by it, without a loss of bits? */
__device__ __forceinline__ bool is_mild(float unit, float scale_a, float scale_b) {
    return unit >= 0x1p-50F && unit <= 0x1p50F && fminf(scale_a, scale_b) >= 0x1p-60F && fmaxf(scale_a, scale_b) <= 0x1p60F;
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

/* The outputs of one run to memory: each warp its 16 rows of products, OUT_ROWS at a time through shared memory. */
__device__ __forceinline__ void store(float (&total)[OWN], const span &seen, const shared_memory &shared,
                                      const cj_forward_args &args, position index, int block, int run, int thread) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const int lane = thread % 32, warp = cj_uniform(thread / 32), row = lane / 4;
    const position o_y = t.y + run_y(run), o_x = t.x + run_x(run);
    const int rows = (int)(size.out_y - o_y < CJ_RUN_ROWS ? size.out_y - o_y : CJ_RUN_ROWS);
    const int columns = (int)(size.out_x - o_x < RUN_X ? size.out_x - o_x : RUN_X);
    const out_offset o = ((out_offset)t.z * (out_offset)size.out_y + o_y) * (out_offset)size.out_x + o_x;
    const int warp_k = ((int)t.k_tile * CJ_CONSUMERS_K + block) * M + warp % 4 * 16;
    const float4 *const channel_0 =
        (CHANNELS_SHARED ? shared.channels : channels_of(args)) + t.group * K_BLOCKS * M + warp_k + row;
    const float4 channel_of_half[2] = {channel_0[0], channel_0[OUT_ROWS]};
    float unit = seen.unit;
    if (SCALED && !__all_sync(0xffffffff, is_mild(unit, channel_of_half[0].y, channel_of_half[1].y))) {
        multiply(total, unit);
        unit = 1.0F;
    }
    const int count = ROWS_JOINED && columns > 0 ? rows * RUN_X : columns; /* not positive past the end */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int first_k = warp_k + half * OUT_ROWS;
        const float4 channel = channel_of_half[half]; /* bias, 1 / s, guard, hard */
        const long long first = t.group * CJ_GROUP_OUT + first_k; /* channel, if there are no phases */
        float *y = (float *)args.y + t.n * args.y_batch_stride + first * args.y_channel_stride + o;
        const float *z = (const float *)args.z + t.n * args.z_batch_stride + first * args.z_channel_stride + o;
        float *const out = shared.out + (warp * CJ_OUT_BUFFERS + (run % CJ_OWN_RUNS * 2 + half) % CJ_OUT_BUFFERS) * OUT_BUFFER;
        const product_row own = row_of(first_k + row);
        const float *const to =
            PHASED ? address_of(make_phased_piece(own, size, t, run), args, size, t) : y + row * args.y_channel_stride;
        cj_bulk_store_wait<CJ_OUT_BUFFERS - 1>(); /* for what lies there */
        __syncwarp();
        const bool strange = stage_outputs(out + row / ROWS_OF_PIECE * OUT_PITCH + bulk_shift(to), own, total, half,
                                           CJ_ALPHA * (channel.y * unit), threshold_of(seen, channel) * inverse(unit),
                                           channel.x, lane_anew(lane));
        __syncwarp();
        if (strange) {
            replace_strange(out, args, index, first_k, run);
            __syncwarp();
        }
        const int channels = CJ_GROUP_OUT % OUT_ROWS == 0 && first_k < CJ_GROUP_OUT ? OUT_ROWS : CJ_GROUP_OUT - first_k;
#pragma unroll
        for (int k = 0; k < (PHASED || IN_BULK ? 1 : OUT_ROWS); ++k, y += args.y_channel_stride, z += args.z_channel_stride) {
            if (PHASED) {
                store_phases(out, args, size, t, first_k, run, lane);
            } else if (IN_BULK) {
                store_in_bulk(out, y, args, rows > 0 ? channels : 0, count, o_x == 0, lane);
            } else if (k < channels) {
                store_pieces(out + k * OUT_PITCH, y, z, size, rows, columns, lane);
            }
        }
        __syncwarp();
    }
}
