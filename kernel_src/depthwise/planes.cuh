/* planes.cuh - tiles of channels first: from memory to shared memory, and back.
 *
 * A tile's elements lie in runs, each of them neighbours in memory: pieces of rows; or where the tile is as wide as the
 * image, all rows of a slice; or where it is as high too, all its slices and planes. A run begins anywhere, so it lies in
 * shared memory as far from a multiple of 16 bytes as it does in memory, and moves in vectors of 16 bytes. Shared memory
 * holds
 *   x_tile[runs][PITCH]          elements, as they are; then in its place
 *   y_tile[runs][PITCH]          float32, alpha * conv + bias
 *   w_tile[TILE_K][GROUP_PITCH]  packed weights, unless they are too many; behind the others */

typedef data::element element;
constexpr int VECTOR = data::vector;

/* To a multiple of a vector. */
__device__ __forceinline__ constexpr int round_up(int elements) {
    return (elements + VECTOR - 1) / VECTOR * VECTOR;
}

/* The planes of one tensor, from a tile's first one on; the next image follows the last channel. */
struct planes {
    const void *tensor;
    long long batch_stride, channel_stride, n;
    int channels, channel; /* of an image; of the first plane, whose image is n */

    /* Where plane i begins, in elements. */
    __device__ __forceinline__ long long operator[](int i) const {
        const int c = channel + i;
        return c < channels ? n * batch_stride + c * channel_stride
                            : (n + c / channels) * batch_stride + c % channels * channel_stride;
    }
    /* Distance of an element from the multiple of 16 bytes below it, in elements. */
    __device__ __forceinline__ int shift(long long at) const {
        return (int)(((unsigned)(unsigned long long)tensor / (unsigned)sizeof(element) + (unsigned)at) % VECTOR);
    }
};

/* A box of at most Z x Y x X elements of each of PLANES planes of PLANE_Y x PLANE_X, as runs. */
template <int PLANES, int Z, int Y, int X, int PLANE_Z, int PLANE_Y, int PLANE_X> struct runs {
    static constexpr int SIZE = CJ_RUN == 1 ? X : CJ_RUN == 2 ? Y * X : PLANES * Z * Y * X; /* most elements of a run */
    static constexpr int COUNT = PLANES * Z * Y * X / SIZE;
    static constexpr int PITCH = (SIZE + 2 * VECTOR - 2) / VECTOR * VECTOR; /* vectors that a run may touch */
    static constexpr int PLANE = PLANE_Z * PLANE_Y * PLANE_X;

    planes of;
    int count;                  /* planes that there are */
    int z, y, x;                /* the box's first element */
    int size_z, size_y, size_x; /* and how many it has */

    /* Of a run: its plane, and the place of its first row in the box. */
    static __device__ __forceinline__ int plane_of(int run) {
        return CJ_RUN == 1 ? run / (Z * Y) : CJ_RUN == 2 ? run / Z : 0;
    }
    static __device__ __forceinline__ int z_of(int run) {
        return CJ_RUN == 1 ? run / Y % Z : CJ_RUN == 2 ? run % Z : 0;
    }
    static __device__ __forceinline__ int y_of(int run) {
        return CJ_RUN == 1 ? run % Y : 0;
    }
    __device__ __forceinline__ int size(int run) const {
        if (plane_of(run) >= count || z_of(run) >= size_z || y_of(run) >= size_y) {
            return 0;
        }
        return size_x * (CJ_RUN > 1 ? size_y : 1) * (CJ_RUN > 2 ? count * size_z : 1);
    }
    /* Place of its first element in its plane. */
    __device__ __forceinline__ int first(int run) const {
        return ((z + z_of(run)) * PLANE_Y + y + y_of(run)) * PLANE_X + x;
    }
    /* Several planes are one run only if nothing lies between them. */
    __device__ __forceinline__ bool dense() const {
        return CJ_RUN < 3 || PLANES == 1 ||
               (of.channel_stride == PLANE && of.batch_stride == (long long)of.channels * PLANE);
    }
    /* Place in shared memory of column 0 of a plane's row; `shift` is that of the box's first element in the plane, or of the
     * only run. */
    __device__ __forceinline__ int place(int shift, int plane, int at_z, int at_y) const {
        const int dz = at_z - z, dy = at_y - y;
        if (CJ_RUN == 3) {
            return shift + plane * PLANE + (dz * PLANE_Y + dy) * PLANE_X;
        }
        const int run = CJ_RUN == 1 ? (plane * Z + dz) * Y + dy : plane * Z + dz;
        /* The run begins so many elements after the box, modulo VECTOR. */
        const int after = dz * (PLANE_Y * PLANE_X % VECTOR) + (CJ_RUN == 1 ? dy * (PLANE_X % VECTOR) : 0);
        return run * PITCH + (shift + after) % VECTOR + (CJ_RUN == 1 ? 0 : dy * PLANE_X) - x;
    }
    __device__ __forceinline__ int shift(int plane) const {
        return of.shift(of[CJ_RUN == 3 ? 0 : plane] + first(0));
    }
};

/* Input positions under a tile; of those, inside the input. */
constexpr int UNDER_Z = (TILE_Z - 1) * CJ_STRIDE_Z + (CJ_KERNEL_Z - 1) * CJ_DILATION_Z + 1;
constexpr int UNDER_Y = (TILE_Y - 1) * CJ_STRIDE_Y + (CJ_KERNEL_Y - 1) * CJ_DILATION_Y + 1;
constexpr int UNDER_X = (TILE_X - 1) * CJ_STRIDE_X + (CJ_KERNEL_X - 1) * CJ_DILATION_X + 1;
/* Several planes are taken whole. */
constexpr bool WHOLE_Z = CJ_RUN == 3 && TILE_Z >= CJ_OUT_Z, WHOLE_Y = CJ_RUN == 3, WHOLE_X = CJ_RUN > 1;
constexpr int IN_Z = WHOLE_Z ? CJ_IN_Z : least(UNDER_Z, CJ_IN_Z), IN_Y = WHOLE_Y ? CJ_IN_Y : least(UNDER_Y, CJ_IN_Y);
constexpr int IN_X = WHOLE_X ? CJ_IN_X : least(UNDER_X, CJ_IN_X);
/* Planes of input under a tile's TILE_K output channels: one divides the other. */
constexpr int IN_PLANES = (TILE_K + CJ_GROUP_OUT - 1) / CJ_GROUP_OUT;
typedef runs<IN_PLANES, IN_Z, IN_Y, IN_X, CJ_IN_Z, CJ_IN_Y, CJ_IN_X> in_runs;
typedef runs<TILE_K, least(TILE_Z, CJ_OUT_Z), least(TILE_Y, CJ_OUT_Y), least(TILE_X, CJ_OUT_X), CJ_OUT_Z, CJ_OUT_Y, CJ_OUT_X>
    out_runs;
static_assert(TILE_K % CJ_GROUP_OUT == 0 || CJ_GROUP_OUT % TILE_K == 0, "plan and kernel disagree");
static_assert(CJ_TILE_BYTES % 16 == 0, "w_tile would not be aligned");
static_assert(sizeof(element) * in_runs::COUNT * in_runs::PITCH <= CJ_TILE_BYTES, "plan and kernel disagree");
static_assert(sizeof(float) * out_runs::COUNT * out_runs::PITCH <= CJ_TILE_BYTES, "plan and kernel disagree");

/* Threads that move a run together: a warp where there are as many runs. */
constexpr int MOVERS = in_runs::COUNT >= CJ_THREADS / 32 && CJ_RUN < 3 ? 32 : CJ_THREADS;

/* [first, first + size) of the positions [from, from + under) that are inside the input. */
__device__ __forceinline__ void clip(int from, int under, int in, bool whole, int &first, int &size) {
    first = whole || from < 0 ? 0 : from;
    const int end = whole || from + under > in ? in : from + under;
    size = end > first ? end - first : 0;
}

__device__ __forceinline__ int planes_left(const cj_forward_args &args, const tile &t, int channel, int channels, int most) {
    const long long left = (args.batch - t.n) * channels - channel;
    return left < most ? (int)left : most;
}

__device__ __forceinline__ in_runs input_of(const cj_forward_args &args, const tile &t) {
    const int channel = t.k / CJ_GROUP_OUT;
    in_runs r;
    r.of = {args.x, args.x_batch_stride, args.x_channel_stride, t.n, CJ_GROUPS, channel};
    r.count = planes_left(args, t, channel, CJ_GROUPS, IN_PLANES);
    clip(t.z * CJ_STRIDE_Z - CJ_PAD_Z, UNDER_Z, CJ_IN_Z, WHOLE_Z, r.z, r.size_z);
    clip(t.y * CJ_STRIDE_Y - CJ_PAD_Y, UNDER_Y, CJ_IN_Y, WHOLE_Y, r.y, r.size_y);
    clip(t.x * CJ_STRIDE_X - CJ_PAD_X, UNDER_X, CJ_IN_X, WHOLE_X, r.x, r.size_x);
    return r;
}

__device__ __forceinline__ out_runs outputs_of(const cj_forward_args &args, const tile &t) {
    out_runs r;
    r.of = {args.y, args.y_batch_stride, args.y_channel_stride, t.n, (int)OUT_CHANNELS, t.k};
    r.count = planes_left(args, t, t.k, (int)OUT_CHANNELS, TILE_K);
    r.z = t.z, r.size_z = least(TILE_Z, CJ_OUT_Z - t.z);
    r.y = t.y, r.size_y = least(TILE_Y, CJ_OUT_Y - t.y);
    r.x = t.x, r.size_x = least(TILE_X, CJ_OUT_X - t.x);
    return r;
}

/* Starts the copies. Vectors at a run's ends are read whole where the tensor has all of them. */
__device__ __forceinline__ void load_input(element *x_tile, const cj_forward_args &args, const in_runs &box) {
    const long long tensor_end =
        (args.batch - 1) * args.x_batch_stride + (CJ_GROUPS - 1) * args.x_channel_stride + in_runs::PLANE;
    const int mover = (int)threadIdx.x % MOVERS;
    for (int run = (int)threadIdx.x / MOVERS; run < in_runs::COUNT; run += CJ_THREADS / MOVERS) {
        const int size = box.size(run);
        if (size == 0) {
            continue; /* outside the input, and maybe outside of its memory */
        }
        const long long first = box.of[box.plane_of(run)] + box.first(run);
        const int begin = box.of.shift(first), end = begin + size;
        const element *from = (const element *)args.x + first - begin;
        element *to = x_tile + run * in_runs::PITCH;
        if (!box.dense()) {
            for (int i = begin + mover; i < end; i += MOVERS) {
                to[i] = ((const element *)args.x)[box.of[(i - begin) / in_runs::PLANE] + (i - begin) % in_runs::PLANE];
            }
            continue;
        }
        const int low = first < begin ? VECTOR : 0; /* whole vectors are those of [low, high) */
        const int high = first - begin + round_up(end) > tensor_end ? end / VECTOR * VECTOR : round_up(end);
        const int own = low + mover * VECTOR;
        const element *next = from + own;
#pragma unroll 4
        for (int i = own; i < high; i += MOVERS * VECTOR, next += MOVERS * VECTOR) {
            cj_copy16(to + i, next);
        }
        const int head = begin + mover, tail = high + mover;
        if (mover < VECTOR && head < least(low, end)) {
            to[head] = from[head];
        }
        if (mover < VECTOR && high >= low && tail >= begin && tail < end) {
            to[tail] = from[tail];
        }
    }
}

/* What add_taps asks for rows of one plane. */
struct plane_row {
    const element *at; /* column 0 */
    __device__ __forceinline__ void load(int x, float *to) const {
        *to = data::load(at, x);
    }
};

struct plane_rows {
    const element *x_tile;
    const in_runs &box;
    int shift, plane;
    __device__ __forceinline__ plane_row row(int z, int y) const {
        return {x_tile + box.place(shift, plane, z, y)};
    }
};

/* A thread's outputs to shared memory; z, y, x is its first one. */
__device__ __forceinline__ void stage_outputs(float *y_tile, const out_runs &box, const sums &s, float bias, int plane, int z,
                                              int y, int x) {
    const int shift = box.shift(plane);
#pragma unroll
    for (int r = 0; r < CJ_ROWS; ++r) {
        if (CJ_OUT_Y % CJ_ROWS == 0 || y + r < CJ_OUT_Y) {
            float *row = y_tile + box.place(shift, plane, z, y + r) + x;
#pragma unroll
            for (int c = 0; c < CJ_COLUMNS; ++c) {
                if (CJ_OUT_X % CJ_COLUMNS == 0 || x + c < CJ_OUT_X) {
                    row[c] = finish_sum(s, r, c, 0, bias);
                }
            }
        }
    }
}

/* One output; `z_at` is its place in z. */
__device__ __forceinline__ void store_one(const cj_forward_args &args, element *y, long long z_at, float linear) {
#if CJ_HAS_Z
    const float residual = data::load(args.z, z_at);
#else
    const float residual = 0.0F;
    (void)args, (void)z_at;
#endif
    data::store(y, 0, cj_finish(linear, residual));
}

/* A vector of y; z may lie otherwise. */
__device__ __forceinline__ void store_vector(const cj_forward_args &args, element *y, long long z_at, bool z_aligned,
                                             const float *linear) {
    float residual[VECTOR] = {}, value[VECTOR];
#if CJ_HAS_Z
    if (z_aligned) {
        data::load_vector(args.z, z_at, residual);
    } else {
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            residual[j] = data::load(args.z, z_at + j);
        }
    }
#else
    (void)args, (void)z_at, (void)z_aligned;
#endif
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
        value[j] = cj_finish(linear[j], residual[j]);
    }
    data::store_vector(y, 0, value);
}

__device__ __forceinline__ void store_outputs(const float *y_tile, const cj_forward_args &args, const out_runs &box) {
    out_runs z = box;
    z.of.tensor = args.z, z.of.batch_stride = args.z_batch_stride, z.of.channel_stride = args.z_channel_stride;
    const bool dense = CJ_RUN < 3 || (box.dense() && (!CJ_HAS_Z || z.dense()));
    const int mover = (int)threadIdx.x % MOVERS;
    for (int run = (int)threadIdx.x / MOVERS; run < out_runs::COUNT; run += CJ_THREADS / MOVERS) {
        const int plane = box.plane_of(run);
        const long long first = box.of[plane] + box.first(run), z_first = z.of[plane] + box.first(run);
        const int begin = box.of.shift(first), end = begin + box.size(run);
        const float *from = y_tile + run * out_runs::PITCH;
        element *const y = (element *)args.y + first - begin;
        const long long z_at = z_first - begin;
        if (!dense) {
            for (int i = begin + mover; i < end; i += MOVERS) {
                const int on = (i - begin) / out_runs::PLANE, rest = (i - begin) % out_runs::PLANE;
                store_one(args, (element *)args.y + box.of[on] + rest, z.of[on] + rest, from[i]);
            }
            continue;
        }
        const bool z_aligned = z.of.shift(z_first) == begin;
        const int low = round_up(begin), high = end / VECTOR * VECTOR; /* whole vectors are those of [low, high) */
        const int own = low + mover * VECTOR;
        element *next = y + own;
#pragma unroll 4
        for (int i = own; i < high; i += MOVERS * VECTOR, next += MOVERS * VECTOR) {
            store_vector(args, next, z_at + i, z_aligned, from + i);
        }
        const int head = begin + mover, tail = high + mover;
        if (mover < VECTOR && head < least(low, end)) {
            store_one(args, y + head, z_at + head, from[head]);
        }
        if (mover < VECTOR && high >= low && tail < end) {
            store_one(args, y + tail, z_at + tail, from[tail]);
        }
    }
}

/* Starts copying the weights of the tile's first `count` channels. */
__device__ __forceinline__ void load_weights(float *w_tile, const cj_forward_args &args, const tile &t, int count) {
    constexpr int PITCH = CJ_STAGE_WEIGHTS ? (int)GROUP_PITCH : 1;
    for (int i = (int)threadIdx.x * 4; i < count * PITCH; i += CJ_THREADS * 4) {
        cj_copy16(w_tile + i, weights_of(args, (t.k + i / PITCH) % (int)OUT_CHANNELS) + i % PITCH);
    }
}

CJ_KERNEL(convjit_forward, cj_forward_args, args) {
    alignas(16) __shared__ unsigned char shared[CJ_TILE_BYTES + (CJ_STAGE_WEIGHTS ? TILE_K * GROUP_PITCH * sizeof(float) : 0)];
    element *const x_tile = (element *)shared;
    float *const y_tile = (float *)shared, *const w_tile = (float *)(shared + CJ_TILE_BYTES);
    const int lane_x = threadIdx.x % CJ_LANES_X, lane_y = threadIdx.x / CJ_LANES_X % CJ_LANES_Y;
    const int lane_z = threadIdx.x / (CJ_LANES_X * CJ_LANES_Y) % CJ_LANES_Z;
    const int lane_k = threadIdx.x / (CJ_LANES_X * CJ_LANES_Y * CJ_LANES_Z);

    for (long long index = blockIdx.x; index < args.tiles; index += gridDim.x) {
        const tile t = make_tile(args, index);
        const in_runs in = input_of(args, t);
        const out_runs out = outputs_of(args, t);
        load_input(x_tile, args, in);
        if (CJ_STAGE_WEIGHTS) {
            load_weights(w_tile, args, t, out.count);
        }

        const int z = t.z + lane_z, y = t.y + lane_y * CJ_ROWS, x = t.x + lane_x * CJ_COLUMNS;
        const bool works = lane_k < out.count && z < CJ_OUT_Z && y < CJ_OUT_Y && x < CJ_OUT_X;
        const int k = (t.k + lane_k) % (int)OUT_CHANNELS, plane = lane_k / CJ_GROUP_OUT;
        const float bias = bias_of(args, k);
        sums s = {};
        cj_copy_wait();
        __syncthreads();
        if (works) {
            const weights w(CJ_STAGE_WEIGHTS ? w_tile + lane_k * GROUP_PITCH : weights_of(args, k));
            const plane_rows rows = {x_tile, in, in.shift(plane), plane};
            add_taps(s, rows, w, z * CJ_STRIDE_Z - CJ_PAD_Z, y * CJ_STRIDE_Y - CJ_PAD_Y, x * CJ_STRIDE_X - CJ_PAD_X);
        }
        __syncthreads();
        if (works) {
            stage_outputs(y_tile, out, s, bias, lane_k, z, y, x);
        }
        __syncthreads();
        store_outputs(y_tile, args, out);
        __syncthreads();
    }
}
