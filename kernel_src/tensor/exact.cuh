/* tensor/exact.cuh - "the surprising rule" of tensor.cu: the plain loop, for outputs that the halves cannot give. Its loops
 * stay loops: they seldom run, and unrolled they took a twelfth of the time to compile the file. */

/* The plain loop, in float64: one output of a row anew, padding skipped. o_y and o_x are positions of the grid. */
__device__ __forceinline__ float exact_output(const cj_forward_args &args, const sizes &size, const tile &t,
                                              const product_row &row, const float *w, long long o_y, long long o_x) {
    double sum = 0.0;
#pragma unroll 1
    for (int c = 0; c < CJ_GROUP_IN; ++c) {
        const float *x = (const float *)args.x + t.n * args.x_batch_stride + t.group * distance_of(CJ_GROUP_IN, args) +
                         distance_of(c, args);
#pragma unroll 1
        for (int tap = 0; tap < TAPS; ++tap) {
            const int kx = tap % CJ_KERNEL_X, ky = tap / CJ_KERNEL_X % CJ_KERNEL_Y, kz = tap / (CJ_KERNEL_X * CJ_KERNEL_Y);
            const long long z = t.z * CJ_STRIDE_Z - CJ_PAD_Z + kz * CJ_DILATION_Z;
            const long long y = o_y * CJ_STRIDE_Y - CJ_PAD_Y + ky * CJ_DILATION_Y;
            const long long x_ = o_x * CJ_STRIDE_X - CJ_PAD_X + kx * CJ_DILATION_X;
            if (z >= 0 && z < size.in_z && y >= 0 && y < size.in_y && x_ >= 0 && x_ < size.in_x &&
                place_in_filter(row, tap) >= 0) {
                sum += (double)w[(long long)c * TAPS + tap] *
                       (double)x[((z * size.in_y + y) * size.in_x + x_) * pixel(args.x_pixel_stride)];
            }
        }
    }
    return (float)sum;
}

/* See "the surprising rule": one warp's outputs to be sent, of SENT_ROWS rows of products from first_k on. */
__device__ __noinline__ void replace_strange(float *out, const cj_forward_args &args, position index, int first_k, int run) {
    const sizes size = get_sizes(args);
    const tile t = make_tile(index, size);
#pragma unroll 1
    for (int i = 0; i < SENT_ROWS; ++i) {
        const product_row row = row_of(first_k + i);
        const long long row_index = t.group * CJ_ROWS + first_k + i;
        const float *w = (const float *)(channels_of(args) + CHANNELS) + row_index * CJ_GROUP_IN * TAPS;
        const float bias = channels_of(args)[t.group * K_BLOCKS * M + first_k + i].x;
        float *const staged =
            out + i / OUT_ROWS * OUT_BUFFER + i % OUT_ROWS / ROWS_OF_PIECE * OUT_PITCH +
            bulk_shift(address_of(make_phased_piece(row, size, t, run), args, size, t));
#pragma unroll 1
        for (int column = (int)threadIdx.x % 32; column < CJ_COLUMNS && row.exists; column += 32) {
            const position y = t.y + run_y(run) + column / PITCH, x = t.x + run_x(run) + column % PITCH;
            const output o = {t.z * CJ_PHASES_Z + phases_z[row.z] - CJ_LEAD_Z,
                              y * CJ_PHASES_Y + phases_y[row.y] - CJ_LEAD_Y, x * CJ_PHASES_X + phases_x[row.x] - CJ_LEAD_X};
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
