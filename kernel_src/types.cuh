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
        cj_store8((element *)base + index, encode4(value.x, value.y, value.z, value.w));
    }
    static __device__ __forceinline__ uint2 encode4(float a, float b, float c, float d) {
        return make_uint2(cj_encode16<type>(a) | cj_encode16<type>(b) << 16, cj_encode16<type>(c) | cj_encode16<type>(d) << 16);
    }
    /* 16 bytes of neighbours; the address must be 16-byte aligned. */
    static constexpr int vector = 8;
    static __device__ __forceinline__ void load_vector(const void *base, long long index, float *value) {
        const uint4 bits = *(const uint4 *)((const element *)base + index);
        const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < vector; ++i) {
            value[i] = cj_decode16<type>(words[i / 2] >> i % 2 * 16 & 0xffff);
        }
    }
    static __device__ __forceinline__ void store_vector(void *base, long long index, const float *value) {
        const uint2 low = encode4(value[0], value[1], value[2], value[3]);
        const uint2 high = encode4(value[4], value[5], value[6], value[7]);
        cj_store16((element *)base + index, make_uint4(low.x, low.y, high.x, high.y));
    }
};

template <> struct cj_memory<CJ_F32> {
    typedef float element;
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
        cj_store16((float *)base + index, make_uint4(__float_as_uint(value.x), __float_as_uint(value.y),
                                                     __float_as_uint(value.z), __float_as_uint(value.w)));
    }
    /* The same, by an array. */
    static constexpr int vector = 4;
    static __device__ __forceinline__ void load_vector(const void *base, long long index, float *value) {
        const float4 four = load4(base, index);
        value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
    }
    static __device__ __forceinline__ void store_vector(void *base, long long index, const float *value) {
        store4(base, index, make_float4(value[0], value[1], value[2], value[3]));
    }
};
