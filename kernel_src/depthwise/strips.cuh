/* strips.cuh - channels first, float32, whole rows: warps that go down strips of planes.
 *
 * A warp has WARP_PLANES planes, a thread COLUMNS columns of one of them. It goes down the TILE_Y = ROWS output rows of a
 * strip; a step takes STRIDE_Y input rows. Only the output rows that these reach are in registers, AGES of them: the first
 * multiply-add of a step moves a sum to the next age, so that the code of all steps is the same, and short. No warp waits for
 * another: each brings its input RING - 1 steps ahead, and moves a row of outputs in the step after it was made.
 * Shared memory, for each warp
 *   y_tile[WARP_PLANES][Y_PITCH]   two rows of y
 *   x_tile[WARP_PLANES][X_PITCH]   RING slots, each a step's input rows */

constexpr int RING = CJ_RING, WARPS = CJ_THREADS / 32, WARP_PLANES = 32 / CJ_LANES_X;
constexpr int AGES = (CJ_KERNEL_Y + CJ_STRIDE_Y - 1) / CJ_STRIDE_Y;
constexpr int STEP_X = CJ_COLUMNS * CJ_STRIDE_X; /* input columns from a thread's window to the next one's */
constexpr int STEP_WORDS = CJ_STRIDE_Y * CJ_IN_X; /* of a step's input rows */

/* Words before a slot's rows, and behind them, that windows reach over, and nobody writes. */
constexpr int REACH = (CJ_LANES_X - 1) * STEP_X + WINDOW - CJ_PAD_X - CJ_IN_X;
constexpr int MARGIN = REACH > CJ_PAD_X ? REACH : CJ_PAD_X;
/* Words from a plane to the next one, whose lanes use the banks behind those of its lanes. */
__device__ __forceinline__ constexpr int pitch_of(int words) {
    return words + (((CJ_LANES_X + 3) / 4 * 4 - words) % 32 + 32) % 32;
}
constexpr int SLOT = (STEP_WORDS + MARGIN + 3) / 4 * 4;
constexpr int X_PITCH = pitch_of(RING * SLOT), Y_PITCH = pitch_of(2 * CJ_OUT_X + MARGIN);
constexpr int WARP_WORDS = WARP_PLANES * (Y_PITCH + X_PITCH);
static_assert(CJ_DATA_TYPE == CJ_F32 && CJ_KERNEL_Z == 1 && CJ_DILATION_Y == 1, "plan and kernel disagree");
static_assert(TILE_X >= CJ_OUT_X && TILE_K == WARP_PLANES * WARPS && CJ_GROUP_OUT == 1, "plan and kernel disagree");
static_assert(WARP_WORDS % 4 == 0 && WARPS * WARP_WORDS * 4 <= CJ_TILE_BYTES, "plan and kernel disagree");

/* Column e of a thread's window is inside the input for the lanes [first_lane, end_lane). */
__device__ __forceinline__ constexpr int first_lane(int e) {
    return e >= CJ_PAD_X ? 0 : (CJ_PAD_X - e + STEP_X - 1) / STEP_X;
}
__device__ __forceinline__ constexpr int end_lane(int e) {
    return least((CJ_IN_X + CJ_PAD_X - e + STEP_X - 1) / STEP_X, CJ_LANES_X);
}
__device__ __forceinline__ constexpr bool always_exists(int e) {
    return first_lane(e) == 0 && end_lane(e) == CJ_LANES_X;
}
__device__ __forceinline__ bool exists_at(int lane, int e) {
    return (first_lane(e) == 0 || lane >= first_lane(e)) && (end_lane(e) == CJ_LANES_X || lane < end_lane(e));
}

/* Adds to the output row of each age its rows of taps in this step's input rows, the first of which is in_y; `in` is the
 * thread's window of them. Bit a of `open`: that of age a is one of the strip's rows. `inside`: all input rows exist.
 * The branches cost less than what ptxas makes of a longer block: it mixes the ages, and reads most operands anew. */
template <bool inside>
__device__ __forceinline__ void take_step(float (&sum)[AGES][CJ_COLUMNS], const float (&in)[CJ_STRIDE_Y][WINDOW],
                                          const weights &w, int lane, unsigned open, int in_y) {
#pragma unroll
    for (int a = AGES - 1; a >= 0; --a) {
        if (!(open >> a & 1)) {
            continue;
        }
        /* Its products are a part of the sum. */
        const bool apart = CLOSES && a > 0 && least((a + 1) * CJ_STRIDE_Y, CJ_KERNEL_Y) > CJ_CLOSE_ROWS;
        float part[CJ_COLUMNS];
#pragma unroll
        for (int c = 0; c < CJ_COLUMNS; ++c) {
            part[c] = a == 0 || apart ? 0.0F : sum[a - 1][c];
        }
#pragma unroll
        for (int i = 0; i < CJ_STRIDE_Y; ++i) {
            const int jy = a * CJ_STRIDE_Y + i;
            if (jy >= CJ_KERNEL_Y || (!inside && (in_y + i < 0 || in_y + i >= CJ_IN_Y))) {
                continue;
            }
#pragma unroll
            for (int j = 0; j < CJ_KERNEL_X; ++j) {
                const int jx = (CJ_KERNEL_X / 2 + j) % CJ_KERNEL_X; /* the middle one is seldom in the padding */
#pragma unroll
                for (int c = 0; c < CJ_COLUMNS; ++c) {
                    const int e = c * CJ_STRIDE_X + jx * CJ_DILATION_X;
                    if (always_exists(e)) {
                        part[c] = fmaf(w.held[jy][jx], in[i][e], part[c]);
                    } else {
                        cj_fma_if(part[c], w.held[jy][jx], in[i][e], exists_at(lane, e));
                    }
                }
            }
        }
#pragma unroll
        for (int c = 0; c < CJ_COLUMNS; ++c) {
            sum[a][c] = apart ? sum[a - 1][c] + part[c] : part[c];
        }
    }
}

/* Moves `words` neighbours by the lanes of a plane, each of which has pointers to its own first ones: `each` at a time. */
template <int words, int each> struct mover {
    static constexpr int STEP = CJ_LANES_X * each, UNROLL = each > 1 ? (words + STEP - 1) / STEP : 1;

    /* Starts to bring rows of the input, the first of which is in_y, as far as they exist. */
    static __device__ __forceinline__ void load(float *to, const float *from, int lane, int in_y) {
#pragma unroll UNROLL
        for (int i = 0; i < words; i += STEP) {
            const int row = in_y + (words == CJ_IN_X ? 0 : (i + lane * each) / CJ_IN_X);
            if (i + STEP <= words || lane * each < words - i) {
                if (each == 4) {
                    cj_copy16_if(to + i, from + i, row >= 0 && row < CJ_IN_Y);
                } else if (row >= 0 && row < CJ_IN_Y) {
                    to[i] = from[i];
                }
            }
        }
    }
    static __device__ __forceinline__ void store(float *to, const float *from, int lane) {
#pragma unroll UNROLL
        for (int i = 0; i < words; i += STEP) {
            if (i + STEP <= words || lane * each < words - i) {
                if (each == 4) {
                    data::store4(to, i, data::load4(from, i));
                } else {
                    to[i] = from[i];
                }
            }
        }
    }
};

/* A thread's way down its strip. */
struct walk {
    const float *x, *z; /* the thread's first element of the input rows that are brought next; its outputs in z */
    float *y;           /* its first element of the output row that leaves next */
    float *x_tile, *y_tile;
    float sum[AGES][CJ_COLUMNS], in[CJ_STRIDE_Y][WINDOW], bias;
    int lane, rows, first_y; /* output rows of the strip; the first input row under them, which may be in the padding */
    int step, next_y;        /* and the input row that is brought next, */
    int x_at, y_at;          /* the places of this step's input rows and output row */
    unsigned open;           /* of take_step */
    bool aligned, spare, works; /* rows are moved in vectors; the thread brings no input; it has outputs */

    /* `middle`: rows are aligned. */
    template <bool middle> __device__ __forceinline__ void bring() {
        if (!spare) {
            if (middle || aligned) {
                mover<STEP_WORDS, 4>::load(x_tile + lane * 4 + x_at, x, lane, next_y);
            } else {
                mover<STEP_WORDS, 1>::load(x_tile + lane + x_at, x, lane, next_y);
            }
        }
        cj_copy_commit();
        next_y += CJ_STRIDE_Y, x += STEP_WORDS;
    }
    template <bool middle> __device__ __forceinline__ void store_row() {
        if (works) {
            if (middle || aligned) {
                mover<CJ_OUT_X, 4>::store(y, y_tile + lane * 4 + (CJ_OUT_X - y_at), lane);
            } else {
                mover<CJ_OUT_X, 1>::store(y, y_tile + lane + (CJ_OUT_X - y_at), lane);
            }
        }
        y += CJ_OUT_X;
    }
    __device__ __forceinline__ void load_window() {
        const float *const row = x_tile + lane * STEP_X - CJ_PAD_X + x_at;
#pragma unroll
        for (int i = 0; i < CJ_STRIDE_Y; ++i) {
#pragma unroll
            for (int e = 0; e < WINDOW; ++e) {
                in[i][e] = row[i * CJ_IN_X + e];
            }
        }
    }
    /* After a step's multiply-adds. `middle`: it made a row, and so did the one before. */
    template <bool middle> __device__ __forceinline__ void end_step() {
        cj_copy_wait<RING - 2>();
        __syncwarp();
        bring<middle>();
        x_at = x_at == (RING - 1) * SLOT ? 0 : x_at + SLOT;
        load_window();
        if (middle || step >= AGES) {
            store_row<middle>();
        }
        [[maybe_unused]] const bool made = middle || step >= AGES - 1;
#pragma unroll
        for (int c = 0; c < CJ_COLUMNS; ++c) {
            if (CJ_OUT_X % CJ_COLUMNS == 0 || lane * CJ_COLUMNS + c < CJ_OUT_X) {
                float residual = 0.0F;
#if CJ_HAS_Z
                residual = made ? z[c] : 0.0F;
#endif
                y_tile[lane * CJ_COLUMNS + y_at + c] = cj_finish(cj_linear(sum[AGES - 1][c], bias), residual);
            }
        }
#if CJ_HAS_Z
        z += made ? CJ_OUT_X : 0;
#endif
        y_at = CJ_OUT_X - y_at, ++step;
    }
    __device__ __forceinline__ void go(const weights &w) {
        /* Steps above the input have nothing to add. */
        const int steps = rows + AGES - 1, above = least(first_y < 0 ? -first_y / CJ_STRIDE_Y : 0, AGES - 1);
        /* In the middle all input rows exist, and all output rows are the strip's. */
        const int middle = aligned ? least(rows, (CJ_IN_Y - first_y) / CJ_STRIDE_Y) : 0;
        int stop = AGES * CJ_STRIDE_Y >= CJ_PAD_Y && middle > AGES ? AGES : steps;
        step = above, open = (1U << above) - 1, next_y = first_y + above * CJ_STRIDE_Y, x += above * STEP_WORDS, y_at = 0;
#pragma unroll
        for (int i = 0; i < AGES * CJ_COLUMNS; ++i) {
            (&sum[0][0])[i] = 0.0F;
        }
#pragma unroll 1
        for (x_at = 0; x_at < RING * SLOT; x_at += SLOT) {
            bring<false>();
        }
        x_at = 0;
        cj_copy_wait<RING - 1>();
        __syncwarp();
        load_window();
        for (;;) {
#pragma unroll 1
            while (step < stop) {
                const int in_y = first_y + step * CJ_STRIDE_Y;
                open = (open << 1 | (step < rows)) & ((1U << AGES) - 1);
                if (in_y >= 0 && in_y + CJ_STRIDE_Y <= CJ_IN_Y) {
                    take_step<true>(sum, in, w, lane, open, in_y);
                } else {
                    take_step<false>(sum, in, w, lane, open, in_y);
                }
                end_step<false>();
            }
            if (step == steps) {
                break;
            }
#pragma unroll 1
            while (step < middle) {
                open = open << 1 | 1; /* has all bits that count; that the compiler must not know */
                take_step<true>(sum, in, w, lane, open, 0);
                end_step<true>();
            }
            stop = steps;
        }
        __syncwarp();
        store_row<false>();
        cj_copy_wait<0>();
        __syncwarp();
    }
};

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    alignas(16) __shared__ unsigned char shared[CJ_TILE_BYTES];
    const int warp = (int)threadIdx.x / 32, thread = (int)threadIdx.x % 32;
    walk s;
    s.lane = thread % CJ_LANES_X;
    s.spare = thread >= WARP_PLANES * CJ_LANES_X; /* does as the last plane's lanes do, but moves nothing */
    const int on = s.spare ? WARP_PLANES - 1 : thread / CJ_LANES_X;
    s.y_tile = (float *)shared + warp * WARP_WORDS + on * Y_PITCH;
    s.x_tile = (float *)shared + warp * WARP_WORDS + WARP_PLANES * Y_PITCH + on * X_PITCH;
    s.aligned = args.x_aligned && args.y_aligned;

    for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
        const tile t = make_tile(args, index);
        const int channel = t.k + warp * WARP_PLANES + on, k = channel % (int)OUT_CHANNELS;
        const int own = s.lane * (s.aligned ? 4 : 1);
        long long n = t.n + channel / (int)OUT_CHANNELS;
        s.works = !s.spare && n < args.batch;
        n = n < args.batch ? n : args.batch - 1;
        s.rows = least(TILE_Y, CJ_OUT_Y - t.y), s.first_y = t.y * CJ_STRIDE_Y - CJ_PAD_Y;
        s.x = (const float *)args.x + n * args.x_batch_stride + k * args.x_channel_stride + s.first_y * CJ_IN_X + own;
        s.y = (float *)args.y + n * args.y_batch_stride + k * args.y_channel_stride + t.y * CJ_OUT_X + own;
#if CJ_HAS_Z
        s.z = (const float *)args.z + n * args.z_batch_stride + k * args.z_channel_stride + t.y * CJ_OUT_X +
              s.lane * CJ_COLUMNS;
#endif
        s.bias = bias_of(args, k);
        s.go(weights(weights_of(args, k)));
    }
}
