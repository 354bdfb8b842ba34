/* tensor/outputs.cuh - outputs of tensor.cu to memory, and the plain loop for those that the halves cannot give. */

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

/* Rows of the run that end before column first + i; the compiler knows `first`, and i is less than 8. For place_of without
 * its divisions. */
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

/* A warp's outputs, finished and each channel's in a row: 16 bytes of memory at a time by bulk copies, which take no
 * instructions and no time of the unit that loads and stores, and what is cut off at both ends one by one. Four threads see to
 * a row, but one issues all copies, from values that are the same for the warp: threads that issue one each take ten times
 * as long. */
__device__ __forceinline__ void store_in_bulk(const float *out, float *y, const cj_forward_args &args, int channels, int count,
                                              bool first, int lane) {
    const int own_row = lane / 4, column = lane % 4;
    float *const to = y + own_row * args.y_channel_stride;
    const piece_of_row p = make_piece(to, count, first);
    const int begin = p.begin + p.head, middle = own_row < channels && p.middle > 0 ? p.middle : 0;
    const unsigned piece = (unsigned)(begin & 1023) | (unsigned)middle << 10 | (unsigned)bulk_shift(to) << 20;
    static_assert(OUT_PITCH < 1024, "piece holds two of its places");
    cj_async_fence();
    __syncwarp();
    unsigned pieces[OUT_ROWS];
#pragma unroll
    for (int row = 0; row < OUT_ROWS; ++row) {
        pieces[row] = __shfl_sync(0xffffffff, piece, row * 4);
    }
    if (cj_elect()) {
#pragma unroll
        for (int row = 0; row < OUT_ROWS; ++row) {
            const unsigned start = pieces[row] & 1023, length = pieces[row] >> 10 & 1023, shift = pieces[row] >> 20;
            if (length > 0) {
                cj_bulk_store(y + row * args.y_channel_stride + start, out + row * OUT_PITCH + shift + start,
                              length * (unsigned)sizeof(float));
            }
        }
    }
    cj_bulk_store_commit();
    const float *const from = out + own_row * OUT_PITCH + bulk_shift(to);
    if (own_row < channels) {
        if (column < p.head) {
            to[p.begin + column] = from[p.begin + column];
        }
        const int tail = begin + p.middle + column;
        if (tail < p.begin + p.count) {
            to[tail] = from[tail];
        }
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

/* A warp's outputs of half its channels, as they are finished, to `out`; `y` is where a thread's channel begins. True if any
 * must be computed anew: it is NaN or Inf there, and not activated. */
__device__ __forceinline__ bool stage_outputs(float *out, const float *y, float (&total)[OWN], int half, float factor,
                                              float threshold, float bias, int lane) {
    float *const own = out + lane / 4 * OUT_PITCH + bulk_shift(y) + lane % 4 * 2;
    if (__any_sync(0xffffffff, threshold > 0.0F)) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            float &sum = total[i];
            sum = i % 4 / 2 == half && fabsf(sum) < threshold ? __uint_as_float(0x7fffffff) : sum;
        }
    }
    float strange[2] = {0.0F, 0.0F}; /* NaN once any value was not finite */
#pragma unroll
    for (int j = 0; j < CJ_COLUMNS / 8; ++j) {
        const int outputs = outputs_of_eight(j * 8);
        float v[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            v[i] = fmaf(total[j * 4 + half * 2 + i], factor, bias);
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
    const int count = ROWS_JOINED && columns > 0 ? rows * RUN_X : columns; /* not positive past the end */
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int first_k = warp_k + half * OUT_ROWS;
        const float4 channel = channel_of_half[half]; /* bias, 1 / s, guard, hard */
        const long long first = t.group * CJ_GROUP_OUT + first_k;
        float *y = (float *)args.y + t.n * args.y_batch_stride + first * args.y_channel_stride + o;
        const float *z = (const float *)args.z + t.n * args.z_batch_stride + first * args.z_channel_stride + o;
        float *const out = shared.out + (warp * CJ_OUT_BUFFERS + (run % CJ_OWN_RUNS * 2 + half) % CJ_OUT_BUFFERS) *
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
