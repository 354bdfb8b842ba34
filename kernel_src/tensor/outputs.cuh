/* tensor/outputs.cuh - outputs of tensor.cu to memory. */

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

/* Can neighbouring outputs of a thread be stored together, where their rows begin at whole 8 bytes? In math tf32 that is
 * slower, why is not known. */
constexpr bool PAIRED = PARTS == 2 && (CJ_RUN_ROWS == 1 || (PITCH % 2 == 0 && RUN_X % 2 == 0));

/* Where columns lie in very short rows is found anew each time: there are no registers to remember it. */
__device__ __forceinline__ int lane_anew(int lane) {
    return PITCH < (PHASED ? 16 : 8) ? cj_opaque(lane) : lane;
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

/* A thread's outputs of half its rows of products, as they are finished, to shared memory, where its piece is. True if any
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
    return !(strange - strange == 0.0F);
}

/* The first row of products of a consumer warp in a block. */
__device__ __forceinline__ int first_row(const tile &t, int block, int warp) {
    return ((int)t.k_tile * TILE_BLOCKS + block) * M + warp % 4 * 16;
}

/* Can the unit of a total be part of the factor of its outputs, and the threshold be divided by it, without a loss of bits? */
__device__ __forceinline__ bool is_mild(float unit, float scale_a, float scale_b) {
    return unit >= 0x1p-50F && unit <= 0x1p50F && fminf(scale_a, scale_b) >= 0x1p-60F && fmaxf(scale_a, scale_b) <= 0x1p60F;
}

/* The sums of images: by the scale of each; NaN, to be computed anew, where the bits that it lost might matter. */
__device__ __forceinline__ void unscale(float (&total)[OWN], const shared_memory &shared, const cj_forward_args &args,
                                        position index, int tile_number, int block, int run) {
    const tile t = make_tile(index, get_sizes(args));
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const float4 *const channel_0 = (CHANNELS_SHARED ? shared.channels : channels_of(args)) + t.group * K_BLOCKS * M +
                                    first_row(t, block, warp) + lane / 4;
    const float4 channel_of_half[2] = {channel_0[0], channel_0[OUT_ROWS]};
    const float2 *const images = scales_of(shared, tile_number) + run_x(run);
    float lossy = fmaxf(channel_of_half[0].w, channel_of_half[1].w);
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const float2 scale = images[column_of(i)];
        total[i] *= scale.x;
        lossy = i % 4 < 2 ? fmaxf(lossy, scale.y) : lossy;
    }
    if (__any_sync(0xffffffff, lossy > 0.0F)) {
        const float2 *const again = (const float2 *)cj_opaque((const float *)images); /* for there are no registers */
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const float2 scale = again[column_of(i)];
            const float threshold = threshold_of({scale.x, scale.y, 1.0F}, channel_of_half[i % 4 / 2]);
            total[i] = fabsf(total[i]) < threshold ? __uint_as_float(0x7fffffff) : total[i];
        }
    }
}

/* Where a run's outputs are in memory if they have no phases. */
struct run_place {
    long long y, z;    /* offset of the first one of the group's first channel */
    int rows, columns; /* that exist; not positive past the end */
    bool first;        /* Does the run begin a row? */
};

__device__ __forceinline__ run_place make_run_place(const cj_forward_args &args, const sizes &size, const tile &t, int run) {
    const position o_y = t.y + run_y(run), o_x = t.x + run_x(run);
    const out_offset o = ((out_offset)t.z * (out_offset)size.out_y + o_y) * (out_offset)size.out_x + o_x;
    run_place p;
    p.y = t.n * args.y_batch_stride + t.group * CJ_GROUP_OUT * args.y_channel_stride + o * pixel(args.y_pixel_stride);
    p.z = t.n * args.z_batch_stride + t.group * CJ_GROUP_OUT * args.z_channel_stride + o * pixel(args.z_pixel_stride);
    p.rows = (int)(size.out_y - o_y < CJ_RUN_ROWS ? size.out_y - o_y : CJ_RUN_ROWS);
    p.columns = (int)(size.out_x - o_x < RUN_X ? size.out_x - o_x : RUN_X);
    p.first = o_x == 0;
    return p;
}

/* Outputs of a run of images as they are finished, but not activated, and from the threads to memory, not through shared
 * memory: lanes of the same columns have eight channels of an image, which are neighbours. False, and nothing is stored, if the
 * warp has any to be computed anew. */
__device__ __forceinline__ bool store_images(float (&v)[OWN], const float4 (&channel_of_half)[2], const cj_forward_args &args,
                                             const run_place &p, int first_k, int lane) {
    constexpr int AT_ONCE = 8; /* columns of a thread whose residuals are under way */
    const int first = lane % 4 * 2, k = first_k + lane / 4;
    float strange = 0.0F;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const float4 channel = channel_of_half[i % 4 / 2];
        v[i] = fmaf(v[i], CJ_ALPHA * channel.y, channel.x);
        strange = CJ_COLUMNS == RUN_X || i / 4 * 8 + first + i % 2 < RUN_X ? fmaf(v[i], 0.0F, strange) : strange;
    }
    if (__any_sync(0xffffffff, (int)!(strange - strange == 0.0F))) {
        return false;
    }
    const float *y = (const float *)args.y + p.y + k * args.y_channel_stride + first * args.y_pixel_stride;
    const float *z = (const float *)args.z + p.z + k * args.z_channel_stride + first * args.z_pixel_stride;
#pragma unroll
    for (int begin = 0; begin < OWN / 2; begin += AT_ONCE) {
        float residual[AT_ONCE][2];
#pragma unroll
        for (int i = begin; i < OWN / 2 && i < begin + AT_ONCE; ++i) {
            const bool there = first + i / 2 * 8 + i % 2 < p.columns;
#pragma unroll
            for (int half = 0; half < 2 && CJ_HAS_Z; ++half) {
                residual[i - begin][half] = cj_load_if(z + half * OUT_ROWS * args.z_channel_stride,
                                                       there && k + half * OUT_ROWS < CJ_GROUP_OUT);
            }
            z = cj_opaque(z + (i % 2 == 0 ? 1 : 7) * args.z_pixel_stride);
        }
#pragma unroll
        for (int i = begin; i < OWN / 2 && i < begin + AT_ONCE; ++i) {
            const bool there = first + i / 2 * 8 + i % 2 < p.columns;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                cj_store_if((float *)y + half * OUT_ROWS * args.y_channel_stride,
                            cj_finish(v[i / 2 * 4 + half * 2 + i % 2], CJ_HAS_Z ? residual[i - begin][half] : 0.0F),
                            there && k + half * OUT_ROWS < CJ_GROUP_OUT);
            }
            y = cj_opaque(y + (i % 2 == 0 ? 1 : 7) * args.y_pixel_stride);
        }
    }
    return true;
}

/* Several channels' outputs of a run of images, from shared memory. */
__device__ __forceinline__ void send_images(const float *out, float *y, const float *z, const cj_forward_args &args,
                                             int channels, int images, int lane) {
#pragma unroll 1
    for (int i = lane; i < SENT_ROWS * images; i += 32) {
        const int k = i % SENT_ROWS, image = i / SENT_ROWS;
        if (k < channels) {
            y[image * args.y_pixel_stride + k * args.y_channel_stride] =
                cj_finish(out[k * OUT_PITCH + image],
                          CJ_HAS_Z ? z[image * args.z_pixel_stride + k * args.z_channel_stride] : 0.0F);
        }
    }
}

/* A warp's SENT_ROWS rows of products, from first_k on, from shared memory to there. */
__device__ __forceinline__ void send_rows(const float *out, const cj_forward_args &args, const sizes &size, const run_place &p,
                                          int first_k, int lane) {
    const bool all = CJ_GROUP_OUT % SENT_ROWS == 0 && first_k < CJ_GROUP_OUT;
    const int channels = all ? SENT_ROWS : min(SENT_ROWS, CJ_GROUP_OUT - first_k);
    float *y = (float *)args.y + p.y + first_k * args.y_channel_stride;
    const float *z = (const float *)args.z + p.z + first_k * args.z_channel_stride;
    if (IN_BULK) {
        const int count = ROWS_JOINED && p.columns > 0 ? p.rows * RUN_X : p.columns;
        store_in_bulk(out, y, args, p.rows > 0 ? channels : 0, count, p.first, lane);
    }
    if (IMAGES) {
        send_images(out, y, z, args, channels, p.rows > 0 ? p.columns : 0, lane);
    }
#pragma unroll
    for (int k = 0; k < (IN_BULK || IMAGES ? 0 : SENT_ROWS); ++k, y += args.y_channel_stride, z += args.z_channel_stride) {
        if (k < channels) {
            store_pieces(out + k * OUT_PITCH, y, z, size, p.rows, p.columns, lane);
        }
    }
}

/* The buffers of each consumer warp's outputs, which it uses by turns. */
typedef turn<SENDS> send_turn;
__device__ __forceinline__ int send_index(int warp, const send_turn &turn) {
    return warp * SENDS + turn.index();
}
__device__ __forceinline__ float *send_buffer(const shared_memory &shared, int index) {
    return shared.out + index * (SENT_ROWS / OUT_ROWS) * OUT_BUFFER;
}

/* The outputs of one run and block, finished, to shared memory: each warp its 16 rows of products, SENT_ROWS at a time. From
 * there the storing warps send them to memory or, if there are none, the warp itself. */
__device__ __forceinline__ void store(float (&total)[OWN], const span &seen, const shared_memory &shared,
                                      const cj_forward_args &args, position index, send_turn &buffer, int block, int run,
                                      int thread) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
    const int lane = thread % 32, warp = cj_uniform(thread / 32), row = lane / 4, warp_k = first_row(t, block, warp);
    const float4 *const channel_0 =
        (CHANNELS_SHARED ? shared.channels : channels_of(args)) + t.group * K_BLOCKS * M + warp_k + row;
    const float4 channel_of_half[2] = {channel_0[0], channel_0[OUT_ROWS]};
    float unit = seen.unit;
    if (SCALED && !__all_sync(0xffffffff, is_mild(unit, channel_of_half[0].y, channel_of_half[1].y))) {
        multiply(total, unit);
        unit = 1.0F;
    }
    const run_place place = make_run_place(args, size, t, run);
    if (IMAGES && store_images(total, channel_of_half, args, place, warp_k, lane)) {
        return;
    }
    bool strange = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own_send = send_index(warp, buffer), in_send = half * OUT_ROWS % SENT_ROWS;
        const int first_k = warp_k + half * OUT_ROWS;
        const float4 channel = channel_of_half[half]; /* bias, 1 / s, guard, hard */
        float *const sent = send_buffer(shared, own_send), *const out = sent + in_send / OUT_ROWS * OUT_BUFFER;
        const product_row own = row_of(first_k + row);
        const float *const to = PHASED ? address_of(make_phased_piece(own, size, t, run), args, size, t)
                                       : (const float *)args.y + place.y + (first_k + row) * args.y_channel_stride;
        if (in_send == 0 && STORE_WARPS > 0) {
            cj_barrier_wait(&shared.out_empty[own_send], buffer.parity() ^ 1);
        } else if (in_send == 0) {
            cj_bulk_store_wait<SENDS - 1>(); /* for what lies there */
            __syncwarp();
        }
        strange |= stage_outputs(out + row / ROWS_OF_PIECE * OUT_PITCH + bulk_shift(to), own, total, half,
                                 IMAGES ? 1.0F : CJ_ALPHA * (channel.y * unit), threshold_of(seen, channel) * inverse(unit),
                                 IMAGES ? -0.0F : channel.x, lane_anew(lane)); /* -0 for it keeps the sign of 0 */
        if (in_send + OUT_ROWS < SENT_ROWS) {
            continue;
        }
        __syncwarp();
        if (__any_sync(0xffffffff, (int)strange)) {
            replace_strange(sent, args, index, first_k - in_send, run);
        }
        cj_async_fence();
        if (STORE_WARPS > 0) {
            cj_barrier_arrive(&shared.out_full[own_send]);
        } else {
            __syncwarp();
            if (PHASED) {
                const tile sent_tile = make_tile(PIECE_ANEW ? cj_opaque(index) : index, size);
                const product_row sent_row = row_of(PIECE_ANEW ? cj_opaque(first_k + row) : first_k + row);
                const phased_piece piece = make_phased_piece(sent_row, size, sent_tile, run);
                float *const y = address_of(piece, args, size, sent_tile);
                send_pieces(sent, piece, y, args, size, sent_tile, lane);
                if (BIAS_ROWS && BIAS_WARPS == 0) {
                    send_bias(sent_row, piece, y, channel.x, args, size, sent_tile, lane);
                }
            } else {
                send_rows(sent, args, size, place, first_k - in_send, lane);
            }
            __syncwarp();
        }
        buffer.next();
    }
}

/* What a storing warp does: it sends every STORE_WARPS-th consumer warp's outputs. A buffer is given back when the next part's
 * place is known: by then its copies have read it. */
__device__ __forceinline__ void send_all(const shared_memory &shared, const cj_forward_args &args, int own, int lane) {
    static_assert(!CJ_STORING || (IN_BULK && !PHASED), "plan and kernel disagree");
    constexpr int PARTS_OF_SET = 16 / SENT_ROWS, OWN_PARTS = OWN_SETS * PARTS_OF_SET;
    constexpr int WARPS = STORE_WARPS > 0 ? STORE_WARPS : 1;
    const sizes size = get_sizes(args);
    const tile_range tiles = own_tiles(args);
    send_turn buffer = {0};
    int sent = -1;
    position index = tiles.first;
#pragma unroll 1
    for (position left = tiles.count; left > 0; --left, index += gridDim.x) {
        const tile t = make_tile(index, size);
#pragma unroll 1
        for (int i = 0; i < CONSUMERS * OWN_PARTS; ++i) {
            const int consumer = i / OWN_PARTS, of_tile = i % OWN_PARTS, set = of_tile / PARTS_OF_SET;
            const int block = first_block(consumer) + set / CJ_OWN_RUNS, run = first_run(consumer) + set % CJ_OWN_RUNS;
            const send_turn turn = {buffer.steps + of_tile};
            const run_place place = make_run_place(args, size, t, run);
#pragma unroll 1
            for (int warp = consumer * 4; warp < consumer * 4 + 4; ++warp) {
                if (warp % WARPS != own) {
                    continue;
                }
                const int first_k = first_row(t, block, warp) + of_tile % PARTS_OF_SET * SENT_ROWS;
                const int from = send_index(warp, turn);
                cj_bulk_store_wait<0>();
                if (sent >= 0) {
                    cj_barrier_arrive(&shared.out_empty[sent]);
                }
                cj_barrier_wait(&shared.out_full[from], turn.parity());
                sent = from;
                send_rows(send_buffer(shared, from), args, size, place, first_k, lane);
            }
        }
        buffer.steps += OWN_PARTS;
    }
    cj_bulk_store_wait<0>();
}
