/* words.cuh (cpu) - CUDA's words for a host C++ compiler: a kernel becomes an ordinary function that is called once for
 * each thread, on a fiber of its own. The threads of a block take turns on one OS thread and change over only inside
 * barriers and warp operations, so shared memory is plain static memory and atomics are plain arithmetic.
 *
 * No header is included: reading <cmath> alone would take longer than compiling a kernel. */

/* ---- between module and host (C as well: src/cpu_device.c includes this part) -------------------------------------- */

/* Warp operations. Each waits for all lanes of its mask, then gives every one of them its result. */
enum cj_warp_operation {
    CJ_WARP_SYNC,    /* 0 */
    CJ_WARP_SHUFFLE, /* the value of lane `source` */
    CJ_WARP_BALLOT,  /* bit i is set if lane i's value is not 0 */
    CJ_WARP_ADD,     /* sum of the values, modulo 2^32 */
    CJ_WARP_MAX,     /* the largest value, */
    CJ_WARP_MIN      /* and the smallest */
};

/* What a module shares with the host that runs it; the host fills it in before each turn of a thread. A module exports
 * its address as convjit_cpu_host. */
struct cj_cpu_host {
    unsigned int size; /* sizeof(struct cj_cpu_host), set by the module: a check that both mean the same struct */
    struct cj_cpu_index {
        unsigned int x, y, z;
    } thread, block, block_size, grid_size;
    void *dynamic_shared; /* of the launch; NULL if it asked for none */
    void *launch;         /* first argument of the calls below */
    void (*barrier)(void *launch);
    unsigned int (*warp)(void *launch, enum cj_warp_operation operation, unsigned int mask, unsigned int value,
                         unsigned int source);
    const struct cj_cpu_hopper *hopper; /* what hopper.cuh needs */
};

#ifdef __cplusplus

static cj_cpu_host cj_host = {sizeof(cj_cpu_host), {0, 0, 0}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}, 0, 0, 0, 0, 0};
extern "C" __attribute__((visibility("default"))) cj_cpu_host *const convjit_cpu_host;
cj_cpu_host *const convjit_cpu_host = &cj_host;

/* ---- kernels and qualifiers ---------------------------------------------------------------------------------------- */

#pragma GCC diagnostic ignored "-Wunknown-pragmas" /* #pragma unroll; needs GCC 13 or clang to be heard in C++ */

/* A kernel of one struct argument, which is passed by its address. */
#define CJ_KERNEL(name, args_type, args)                                                                               \
    extern "C" __attribute__((visibility("default"))) void name(const args_type &args)

#define __host__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static __attribute__((unused))
#define __launch_bounds__(...)

/* A module runs one block at a time. A static array also has AddressSanitizer's red zones around it. */
#define __shared__ static

/* Shared memory of the size that the launch asks for. */
#define CJ_DYNAMIC_SHARED(type, name) type *const name = (type *)cj_host.dynamic_shared

#define threadIdx (cj_host.thread)
#define blockIdx (cj_host.block)
#define blockDim (cj_host.block_size)
#define gridDim (cj_host.grid_size)

/* ---- vectors ------------------------------------------------------------------------------------------------------- */

/* Aligned as on the device, so that UBSan reports a wide access through a pointer that is not. */
#define CJ_VECTOR2(type, name)                                                                                         \
    struct alignas(2 * sizeof(type)) name {                                                                            \
        type x, y;                                                                                                     \
    };                                                                                                                 \
    inline name make_##name(type x, type y) {                                                                          \
        return {x, y};                                                                                                 \
    }
#define CJ_VECTOR4(type, name)                                                                                         \
    struct alignas(4 * sizeof(type)) name {                                                                            \
        type x, y, z, w;                                                                                               \
    };                                                                                                                 \
    inline name make_##name(type x, type y, type z, type w) {                                                          \
        return {x, y, z, w};                                                                                           \
    }
CJ_VECTOR2(float, float2)
CJ_VECTOR2(int, int2)
CJ_VECTOR2(unsigned int, uint2)
CJ_VECTOR4(float, float4)
CJ_VECTOR4(int, int4)
CJ_VECTOR4(unsigned int, uint4)

template <class T> __forceinline__ T __ldg(const T *address) {
    return *address;
}

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

template <class To, class From> __forceinline__ To cj_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits are kept, so sizes are equal");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
__forceinline__ float __int_as_float(int bits) {
    return cj_bits<float>(bits);
}
__forceinline__ float __uint_as_float(unsigned int bits) {
    return cj_bits<float>(bits);
}
__forceinline__ int __float_as_int(float value) {
    return cj_bits<int>(value);
}
__forceinline__ unsigned int __float_as_uint(float value) {
    return cj_bits<unsigned int>(value);
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

extern "C" {
float erfcf(float);
float erff(float);
float expf(float);
float fabsf(float);
float sqrtf(float);
float tanhf(float);
double fma(double, double, double);
}

inline bool isnan(float value) {
    return __builtin_isnan(value);
}
inline bool isnan(double value) {
    return __builtin_isnan(value);
}
inline bool isinf(float value) {
    return __builtin_isinf(value);
}
inline bool isinf(double value) {
    return __builtin_isinf(value);
}

/* libm's, correctly rounded everywhere; out of line. */
static __attribute__((noinline, cold, unused)) float cj_fmaf_slow(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}

/* fmaf, rounded once, without asking for a processor that has it: a * b is exact in double, so only rounding the sum
 * twice can go wrong. That takes a double halfway between two floats (its low 29 bits are 1000...0) or a result below
 * float's normal range, and both are rare. A call of libm's fmaf takes three times as long, even where that is the
 * processor's instruction; -mfma in CONVJIT_CXXFLAGS makes it a third. */
__forceinline__ float cj_fmaf(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    const double sum = (double)a * (double)b + (double)c;
    const unsigned long long bits = cj_bits<unsigned long long>(sum);
    const bool halfway = (bits & 0x1fffffff) == 0x10000000;
    const bool subnormal = (bits << 1) - 1 < (0x381ULL << 53) - 1; /* 0 < |sum| < 2^-126; 0 itself is exact */
    return __builtin_expect(halfway | subnormal, 0) ? cj_fmaf_slow(a, b, c) : (float)sum;
#endif
}
#define fmaf cj_fmaf

__forceinline__ void cj_fma_if(float &sum, float a, float b, bool exists) {
    sum = exists ? fmaf(a, b, sum) : sum;
}

/* As on the device: a NaN gives way to the other operand, and -0 is less than +0. */
__forceinline__ float cj_fminf(float a, float b) {
    return a < b || b != b ? a : a == b ? __uint_as_float(__float_as_uint(a) | __float_as_uint(b)) : b;
}
__forceinline__ float cj_fmaxf(float a, float b) {
    return a > b || b != b ? a : a == b ? __uint_as_float(__float_as_uint(a) & __float_as_uint(b)) : b;
}
#define fminf cj_fminf
#define fmaxf cj_fmaxf

#define CJ_MIN_MAX(type)                                                                                               \
    __forceinline__ type min(type a, type b) {                                                                         \
        return b < a ? b : a;                                                                                          \
    }                                                                                                                  \
    __forceinline__ type max(type a, type b) {                                                                         \
        return a < b ? b : a;                                                                                          \
    }
CJ_MIN_MAX(int)
CJ_MIN_MAX(unsigned int)
CJ_MIN_MAX(long long)
CJ_MIN_MAX(unsigned long long)

/* ---- 16-bit floats as raw bits; to nearest, ties to even; a NaN stays one -------------------------------------------- */

inline float cj_f16_to_f32(unsigned short half) {
    const unsigned int sign = (unsigned int)(half & 0x8000) << 16, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0) { /* zero or subnormal: the fraction counts 2^-24s */
        return __uint_as_float(sign | __float_as_uint((float)fraction * 0x1p-24F));
    }
    const unsigned int wide = exponent == 0x1f ? 0xff : exponent + 127 - 15;
    return __uint_as_float(sign | wide << 23 | fraction << 13);
}

inline unsigned short cj_f32_to_f16(float value) {
    const unsigned int bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    unsigned int half;
    if (size > 0x7f800000) { /* NaN: quiet, with what fits of its payload */
        half = 0x7e00 | (size >> 13 & 0x3ff);
    } else if (size >= 0x477ff000) { /* 65520 = halfway from the largest half, 65504, to 2^16 */
        half = 0x7c00;
    } else if (size < 0x38800000) { /* below 2^-14: adding 0.5 rounds to a multiple of 2^-24 */
        half = __float_as_uint(__uint_as_float(size) + 0.5F) - 0x3f000000;
    } else {
        half = (size - ((127U - 15U) << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    }
    return (unsigned short)(sign | half);
}

/* Two of them in a word, `low` in bits 0-15. */
inline unsigned int cj_pack_f16(float low, float high) {
    return (unsigned int)cj_f32_to_f16(high) << 16 | cj_f32_to_f16(low);
}
inline float2 cj_unpack_f16(unsigned int pair) {
    return {cj_f16_to_f32((unsigned short)pair), cj_f16_to_f32((unsigned short)(pair >> 16))};
}

inline float cj_bf16_to_f32(unsigned short half) {
    return __uint_as_float((unsigned int)half << 16);
}

inline unsigned short cj_f32_to_bf16(float value) {
    const unsigned int bits = __float_as_uint(value);
    if (value != value) {
        return (unsigned short)(bits >> 16 | 0x40);
    }
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- wide stores to global memory, copies to shared memory ---------------------------------------------------------- */

/* As vectors, so that UBSan reports an address that is not aligned. */
inline void cj_store16(void *to, uint4 value) {
    *(uint4 *)to = value;
}
inline void cj_store8(void *to, uint2 value) {
    *(uint2 *)to = value;
}
inline void cj_copy16(void *to, const void *from) {
    *(uint4 *)to = *(const uint4 *)from;
}
inline void cj_copy16_if(void *to, const void *from, bool exists) {
    *(uint4 *)to = exists ? *(const uint4 *)from : uint4{0, 0, 0, 0};
}
inline void cj_copy_commit() {}
template <int pending> inline void cj_copy_wait() {}
inline void cj_copy_wait() {}

/* ---- block and warp ------------------------------------------------------------------------------------------------- */

inline void __syncthreads() {
    cj_host.barrier(cj_host.launch);
}

/* One vote for the block that runs; the first barrier keeps it from being cleared under a reader of the vote before. */
inline int __syncthreads_or(int predicate) {
    static int vote;
    __syncthreads();
    vote = 0;
    __syncthreads();
    vote |= predicate != 0;
    __syncthreads();
    return vote;
}

inline unsigned int cj_warp(cj_warp_operation operation, unsigned int mask, unsigned int value, unsigned int source = 0) {
    return cj_host.warp(cj_host.launch, operation, mask, value, source);
}

inline void __syncwarp(unsigned int mask = 0xffffffff) {
    cj_warp(CJ_WARP_SYNC, mask, 0);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
    return cj_warp(CJ_WARP_BALLOT, mask, predicate != 0);
}
inline int __any_sync(unsigned int mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned int mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}
inline unsigned int __reduce_add_sync(unsigned int mask, unsigned int value) {
    return cj_warp(CJ_WARP_ADD, mask, value);
}
inline unsigned int __reduce_max_sync(unsigned int mask, unsigned int value) {
    return cj_warp(CJ_WARP_MAX, mask, value);
}
inline unsigned int __reduce_min_sync(unsigned int mask, unsigned int value) {
    return cj_warp(CJ_WARP_MIN, mask, value);
}

/* Shuffles of values of 32 or 64 bits. A warp counts as 32 / width segments; who would read beyond its segment reads
 * itself. */
template <class T> inline T cj_shuffle(unsigned int mask, T value, unsigned int source) {
    struct words {
        unsigned int word[sizeof(T) / 4];
    };
    words all = cj_bits<words>(value);
    for (unsigned int &word : all.word) {
        word = cj_warp(CJ_WARP_SHUFFLE, mask, word, source);
    }
    return cj_bits<T>(all);
}
template <class T> inline T __shfl_sync(unsigned int mask, T value, int source, int width = 32) {
    const unsigned int lane = threadIdx.x % 32, last = (unsigned int)width - 1;
    return cj_shuffle(mask, value, (lane & ~last) | ((unsigned int)source & last));
}
template <class T> inline T __shfl_up_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const unsigned int lane = threadIdx.x % 32, last = (unsigned int)width - 1;
    return cj_shuffle(mask, value, (lane & last) >= delta ? lane - delta : lane);
}
template <class T> inline T __shfl_down_sync(unsigned int mask, T value, unsigned int delta, int width = 32) {
    const unsigned int lane = threadIdx.x % 32, last = (unsigned int)width - 1;
    return cj_shuffle(mask, value, last - (lane & last) >= delta ? lane + delta : lane);
}
template <class T> inline T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32) {
    const unsigned int lane = threadIdx.x % 32, source = lane ^ (unsigned int)bits;
    return cj_shuffle(mask, value, source <= (lane | ((unsigned int)width - 1)) ? source : lane);
}

/* Sum over a whole warp, in the same order on every lane. */
template <class T> inline T cj_warp_sum(T value) {
    for (int bits = 16; bits > 0; bits /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, bits);
    }
    return value;
}

inline unsigned int atomicAdd(unsigned int *address, unsigned int value) {
    const unsigned int old = *address;
    *address = old + value;
    return old;
}
inline unsigned int atomicOr(unsigned int *address, unsigned int value) {
    const unsigned int old = *address;
    *address = old | value;
    return old;
}

#endif
