/* tensor/pack.cuh - the weights of tensor.cu as it wants them: a block an output channel. Its loops stay loops: it runs once,
 * and a sixth of the time to compile the file is its. */

/* Weight of a row of products, or 0 where the layer has none: w is [K][C / groups][taps], or [K][taps][C / groups], and
 * [C][K / groups][taps] or [C][taps][K / groups] if it is transposed. */
__device__ __forceinline__ float weight(const cj_pack_args &args, int group, const product_row &row, int c, int index) {
    constexpr int FILTER = CJ_TAPS_Z * CJ_TAPS_Y * CJ_TAPS_X, INNER = CJ_TRANSPOSED ? CJ_GROUP_OUT : CJ_GROUP_IN;
    const int tap = place_in_filter(row, index), inner = CJ_TRANSPOSED ? row.channel : c;
    const long long outer = CJ_TRANSPOSED ? (long long)group * CJ_GROUP_IN + c : (long long)group * CJ_GROUP_OUT + row.channel;
    return tap < 0 ? 0.0F
                   : cj_memory<CJ_WEIGHT_TYPE>::load(args.w, CJ_WEIGHTS_LAST ? (outer * FILTER + tap) * INNER + inner
                                                                             : (outer * INNER + inner) * FILTER + tap);
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
#pragma unroll 1
    for (int i = 1; i < CJ_THREADS / 32; ++i) {
        own.most = max(own.most, warps[i].most);
        own.lossy += warps[i].lossy;
        own.sum += warps[i].sum;
    }
    return own;
}

/* Eight halves of product `i`: a slice of an output channel, part hi or lo. */
__device__ uint4 pack_slice(const cj_pack_args &args, int group, const product_row &row, int piece_index, int product, int part,
                            int half, float up) {
    const chunk piece = make_chunk(piece_index);
    const int slice = slice_of(product, half), spread = slice - SHIFTED_SLICES;
    const int plane = spread < 0 ? slice / (TAPS_X * CJ_CHUNK_Y) : SHIFTED_PLANES + spread;
    const int x = spread < 0 ? slice % TAPS_X : 0, y = piece.kernel_y + (spread < 0 ? slice / TAPS_X % CJ_CHUNK_Y : 0);
    const bool twin = slice_of(product, 1 - half) == slice && half == 1; /* a slice that is its own neighbour counts once */
    unsigned words[4];
#pragma unroll 1
    for (int pair = 0; pair < 4; ++pair) {
        float w[2] = {0.0F, 0.0F};
        for (int j = 0; j < 2; ++j) {
            const int line = piece.line + plane * DEPTH + pair * 2 + j;
            const line_parts of = parts_of(line); /* a tap is either folded or left: one of the two is 0 */
            if (row.exists && !twin && 2 * product < SLICES && of.exists) {
                w[j] = weight(args, group, row, of.c,
                              ((piece.kernel_z + of.z) * CJ_KERNEL_Y + y + of.y) * CJ_KERNEL_X + x + of.x);
            }
        }
        const uint2 parts = split(w[0], w[1], up);
        words[pair] = part == 0 ? parts.x : parts.y;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

CJ_KERNEL(convjit_pack, cj_pack_args, args) {
    for (long long index = blockIdx.x; index < CHANNELS; index += gridDim.x) {
        const int k = (int)(index % (K_BLOCKS * M)), group = (int)(index / (K_BLOCKS * M)), thread = (int)threadIdx.x;
        const product_row row = row_of(k);
        const long long weights = row.exists ? (long long)CJ_GROUP_IN * TAPS : 0;
        float *const floats = (float *)((float4 *)args.packed + PACKED_WEIGHTS + CHANNELS) +
                              ((long long)group * CJ_ROWS + k) * CJ_GROUP_IN * TAPS;
        float4 *const channels = (float4 *)args.packed + PACKED_WEIGHTS;
        channel_span span = {0, 0, 0.0F};
#pragma unroll 1
        for (long long i = thread; i < weights; i += CJ_THREADS) {
            const float w = weight(args, group, row, (int)(i / TAPS), (int)(i % TAPS));
            const unsigned size = __float_as_uint(w) & 0x7fffffff;
            span.most = size < 0x7f800000 ? max(span.most, size) : span.most;
            floats[i] = w;
        }
        span = combine(span);
        const scaling scale = make_scaling(span.most, 2 * span.most - 1);
#pragma unroll 1
        for (long long i = thread; i < weights; i += CJ_THREADS) {
            const float size = fabsf(weight(args, group, row, (int)(i / TAPS), (int)(i % TAPS)) * scale.up);
            span.lossy += size > 0.0F && size < 0x1p-13F && scale.up < 0x1p126F;
            span.sum += size <= 32768.0F ? size : 0.0F;
        }
        span.most = 0;
        span = combine(span);
        if (thread == 0) { /* 2^-13 * sum and 4 * lossy: see threshold_of and the rule above */
            const float bias = row.exists && args.bias
                                   ? cj_memory<CJ_BIAS_TYPE>::load(args.bias, (long long)group * CJ_GROUP_OUT + row.channel)
                                   : 0.0F;
            channels[index] = make_float4(bias, scale.down, span.sum * 0x1p-13F, CJ_GUARD ? (float)span.lossy * 4.0F : 0.0F);
        }
        uint4 *const packed = (uint4 *)args.packed + (long long)(group * K_BLOCKS + k / M) * BLOCK_WEIGHTS + k % M;
#pragma unroll 1
        for (long long i = thread; i < BLOCK_WEIGHTS / M; i += CJ_THREADS) {
            const int half = (int)(i % 2), part = (int)(i / 2 % PARTS);
            const long long product = i / (2 * PARTS);
            packed[i * M] = pack_slice(args, group, row, (int)(product / STAGE_PRODUCTS), (int)(product % STAGE_PRODUCTS), part,
                                       half, scale.up);
        }
    }
}
