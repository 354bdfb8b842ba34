/* types.cuh - elements in memory as floats in registers. Type numbers are those of convjit_type. */
#define CJ_F32 0
#define CJ_F16 1
#define CJ_BF16 2

template <int type> __device__ __forceinline__ float cj_decode16(unsigned bits) {
    return type == CJ_F16 ? cj_f16_to_f32((unsigned short)bits) : cj_bf16_to_f32((unsigned short)bits);
}

template <int type> __device__ __forceinline__ unsigned cj_encode16(float value) {
    return type == CJ_F16 ? cj_f32_to_f16(value) : cj_f32_to_bf16(value);
}

/* One element. */
template <int type> struct cj_memory {
    typedef unsigned short element;
    static __device__ __forceinline__ float load(const void *base, long long index) {
        return cj_decode16<type>(((const element *)base)[index]);
    }
    static __device__ __forceinline__ void store(void *base, long long index, float value) {
        ((element *)base)[index] = (element)cj_encode16<type>(value);
    }
    /* Four neighbours; the address must be 8-byte aligned. */
    static __device__ __forceinline__ float4 load4(const void *base, long long index) {
        const uint2 bits = *(const uint2 *)((const element *)base + index);
        return make_float4(cj_decode16<type>(bits.x & 0xffff), cj_decode16<type>(bits.x >> 16),
                           cj_decode16<type>(bits.y & 0xffff), cj_decode16<type>(bits.y >> 16));
    }
    static __device__ __forceinline__ void store4(void *base, long long index, float4 value) {
        *(uint2 *)((element *)base + index) =
            make_uint2(cj_encode16<type>(value.x) | cj_encode16<type>(value.y) << 16,
                       cj_encode16<type>(value.z) | cj_encode16<type>(value.w) << 16);
    }
};

template <> struct cj_memory<CJ_F32> {
    static __device__ __forceinline__ float load(const void *base, long long index) {
        return ((const float *)base)[index];
    }
    static __device__ __forceinline__ void store(void *base, long long index, float value) {
        ((float *)base)[index] = value;
    }
    /* Four neighbours; the address must be 16-byte aligned. */
    static __device__ __forceinline__ float4 load4(const void *base, long long index) {
        return *(const float4 *)((const float *)base + index);
    }
    static __device__ __forceinline__ void store4(void *base, long long index, float4 value) {
        *(float4 *)((float *)base + index) = value;
    }
};
