/* words.cuh (CUDA) - the words kernels are written in that plain CUDA lacks. cpu/words.cuh gives the same words, and
 * those of CUDA, to a host compiler. */

/* A kernel of one struct argument, which stays in constant memory. */
#define CJ_KERNEL(name, args_type, args)                                                                               \
    extern "C" __global__ void __launch_bounds__(CJ_THREADS, CJ_MIN_BLOCKS)                                            \
        name(const __grid_constant__ args_type args)

/* 16-bit floats travel as raw bits, so that no header of CUDA's is needed. All conversions round to nearest even. */
__device__ __forceinline__ float cj_f16_to_f32(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ unsigned short cj_f32_to_f16(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/* Two at a time, the first in bits 0-15. */
__device__ __forceinline__ unsigned cj_pack_f16(float low, float high) {
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ float2 cj_unpack_f16(unsigned bits) {
    return make_float2(cj_f16_to_f32((unsigned short)bits), cj_f16_to_f32((unsigned short)(bits >> 16)));
}

__device__ __forceinline__ float cj_bf16_to_f32(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short cj_f32_to_bf16(float value) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    const unsigned bits = __float_as_uint(value);
    return value != value ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

/* One store to global memory, which is aligned to its size. NVRTC 13.0 makes four of
 * *(float4 *)to = value in most kernels here. */
__device__ __forceinline__ void cj_store16(void *to, uint4 value) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(value.x), "r"(value.y),
                 "r"(value.z), "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ void cj_store8(void *to, uint2 value) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(value.x), "r"(value.y) : "memory");
}

/* Adds a * b to the sum if `exists`, without a branch. */
__device__ __forceinline__ void cj_fma_if(float &sum, float a, float b, bool exists) {
    asm("{\n"
        ".reg .pred exists;\n"
        "setp.ne.b32 exists, %3, 0;\n"
        "@exists fma.rn.f32 %0, %1, %2, %0;\n"
        "}"
        : "+f"(sum)
        : "f"(a), "f"(b), "r"((int)exists));
}

/* Starts copying 16 bytes from global to shared memory, both aligned to 16. */
__device__ __forceinline__ void cj_copy16(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
                 : "memory");
#else
    *(uint4 *)to = *(const uint4 *)from;
#endif
}

/* The same if `exists`; else puts zeros there. */
__device__ __forceinline__ void cj_copy16_if(void *to, const void *from, bool exists) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)to = exists ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

/* Closes the group of the thread's copies since the last one; there may be none. */
__device__ __forceinline__ void cj_copy_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until all but the last `pending` of the thread's groups are there. */
template <int pending> __device__ __forceinline__ void cj_copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* Waits until the thread's own copies are there. */
__device__ __forceinline__ void cj_copy_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
