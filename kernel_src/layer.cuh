/* layer.cuh - index arithmetic that every family needs. Stamped: CJ_DYNAMIC and, if that is 0, CJ_IN_d and CJ_OUT_d. */

/* Spatial sizes. */
struct sizes {
    long long in_z, in_y, in_x, out_z, out_y, out_x;
};

__device__ __forceinline__ sizes get_sizes(const cj_forward_args &args) {
#if CJ_DYNAMIC
    return {args.in_size[0], args.in_size[1], args.in_size[2], args.out_size[0], args.out_size[1], args.out_size[2]};
#else
    (void)args;
    return {CJ_IN_Z, CJ_IN_Y, CJ_IN_X, CJ_OUT_Z, CJ_OUT_Y, CJ_OUT_X};
#endif
}

/* Offsets inside one channel of x or y: 32 bits where they are known to suffice. */
template <bool small> struct offset_type {
    typedef long long type;
};
template <> struct offset_type<true> {
    typedef int type;
};
#if CJ_DYNAMIC
typedef long long in_offset, out_offset;
#else
constexpr long long MOST_OFFSET = 0x7fffffff;
typedef offset_type<(double)CJ_IN_Z * CJ_IN_Y * CJ_IN_X <= MOST_OFFSET>::type in_offset;
typedef offset_type<(double)CJ_OUT_Z * CJ_OUT_Y * CJ_OUT_X <= MOST_OFFSET>::type out_offset;
#endif

/* Takes the lowest digit, of base `count`, off `index`. */
template <class integer> __device__ __forceinline__ integer take(integer &index, long long count) {
    const integer base = (integer)count, result = count == 1 ? 0 : index % base;
    index = count == 1 ? index : index / base;
    return result;
}

/* Positions [low, high) of a tile that lie inside the input, for a tile that starts at `origin`. */
struct range {
    int low, high;
};

template <class integer> __device__ __forceinline__ range inside(integer origin, long long size, int count) {
    const integer low = origin < 0 ? -origin : 0, high = (integer)size - origin;
    range r;
    r.low = low > count ? count : (int)low;
    r.high = high < 0 ? 0 : high > count ? count : (int)high;
    return r;
}

/* How many of `count` values of q from q0 on are outputs of this phase. */
__device__ __forceinline__ int outputs_of(long long q0, long long phase, long long phases, long long out, int count) {
    const long long left = (out - phase + phases - 1) / phases - q0;
    return left < count ? (int)left : count;
}
