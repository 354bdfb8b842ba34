/* pixels.cuh - tiles of channels last: every lane has four neighbouring channels, of which a pixel holds all. */

/* May four channels be moved as one vector? */
__device__ __forceinline__ bool together(const void *tensor, long long batch_stride, long long pixel_stride) {
    return (unsigned long long)tensor % (CHANNELS * sizeof(data::element)) == 0 && batch_stride % CHANNELS == 0 &&
           pixel_stride % CHANNELS == 0;
}

/* What add_taps asks for. Output channel k + i has input channel (k + i) / GROUP_OUT; those from `count` on do not exist. */
template <bool vectors> struct pixel_row {
    const void *x;
    long long first, pixel_stride; /* place of channel k's input in column 0 */
    int remainder, count;          /* k % GROUP_OUT */
    __device__ __forceinline__ void load(int column, float *to) const {
        const long long at = first + column * pixel_stride;
        if (vectors) {
            const float4 four = data::load4(x, at);
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
            return;
        }
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            to[i] = i < count ? data::load(x, at + (remainder + i) / CJ_GROUP_OUT) : 0.0F;
        }
    }
};

template <bool vectors> struct pixel_rows {
    pixel_row<vectors> origin; /* row 0 */
    __device__ __forceinline__ pixel_row<vectors> row(int z, int y) const {
        pixel_row<vectors> r = origin;
        r.first += ((long long)z * CJ_IN_Y + y) * CJ_IN_X * origin.pixel_stride;
        return r;
    }
};

__device__ __forceinline__ void store_pixel(const cj_forward_args &args, bool vectors, int count, const float *linear,
                                            long long y_at, long long z_at) {
    float residual[CHANNELS] = {}, value[CHANNELS];
#if CJ_HAS_Z
    if (vectors) {
        const float4 four = data::load4(args.z, z_at);
        residual[0] = four.x, residual[1] = four.y, residual[2] = four.z, residual[3] = four.w;
    } else {
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            residual[i] = i < count ? data::load(args.z, z_at + i) : 0.0F;
        }
    }
#else
    (void)z_at;
#endif
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        value[i] = cj_finish(linear[i], residual[i]);
    }
    if (vectors) {
        data::store4(args.y, y_at, make_float4(value[0], value[1], value[2], value[3]));
        return;
    }
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) {
        if (i < count) {
            data::store(args.y, y_at + i, value[i]);
        }
    }
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    const int lane_k = threadIdx.x % CJ_LANES_K, lane_x = threadIdx.x / CJ_LANES_K % CJ_LANES_X;
    const int lane_y = threadIdx.x / (CJ_LANES_K * CJ_LANES_X) % CJ_LANES_Y;
    const int lane_z = threadIdx.x / (CJ_LANES_K * CJ_LANES_X * CJ_LANES_Y);
    const bool x_together = CJ_GROUP_OUT == 1 && together(args.x, args.x_batch_stride, args.x_pixel_stride);
    const bool y_together = together(args.y, args.y_batch_stride, args.y_pixel_stride) &&
                            (!CJ_HAS_Z || together(args.z, args.z_batch_stride, args.z_pixel_stride));

    for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
        const tile t = make_tile(args, index);
        const int k = t.k + lane_k * CHANNELS;
        const int z = t.z + lane_z, y = t.y + lane_y * CJ_ROWS, x = t.x + lane_x * CJ_COLUMNS;
        if (lane_z >= CJ_LANES_Z || k >= OUT_CHANNELS || z >= CJ_OUT_Z || y >= CJ_OUT_Y || x >= CJ_OUT_X) {
            continue;
        }
        const int count = least(CHANNELS, (int)OUT_CHANNELS - k), remainder = k % CJ_GROUP_OUT;
        const int in_z = z * CJ_STRIDE_Z - CJ_PAD_Z, in_y = y * CJ_STRIDE_Y - CJ_PAD_Y, in_x = x * CJ_STRIDE_X - CJ_PAD_X;
        const long long first = t.n * args.x_batch_stride + k / CJ_GROUP_OUT;
        const weights w(weights_of(args, k));
        sums s = {};
        if (x_together && count == CHANNELS) {
            const pixel_rows<true> rows = {{args.x, first, args.x_pixel_stride, remainder, count}};
            add_taps(s, rows, w, in_z, in_y, in_x);
        } else {
            const pixel_rows<false> rows = {{args.x, first, args.x_pixel_stride, remainder, count}};
            add_taps(s, rows, w, in_z, in_y, in_x);
        }
        float bias[CHANNELS];
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i) {
            bias[i] = bias_of(args, k + i);
        }
#pragma unroll
        for (int r = 0; r < CJ_ROWS; ++r) {
#pragma unroll
            for (int c = 0; c < CJ_COLUMNS; ++c) {
                if (y + r < CJ_OUT_Y && x + c < CJ_OUT_X) {
                    const long long pixel = ((long long)z * CJ_OUT_Y + y + r) * CJ_OUT_X + x + c;
                    float linear[CHANNELS];
#pragma unroll
                    for (int i = 0; i < CHANNELS; ++i) {
                        linear[i] = finish_sum(s, r, c, i, bias[i]);
                    }
                    store_pixel(args, y_together && count == CHANNELS, count, linear,
                                t.n * args.y_batch_stride + k + pixel * args.y_pixel_stride,
                                t.n * args.z_batch_stride + k + pixel * args.z_pixel_stride);
                }
            }
        }
    }
}
