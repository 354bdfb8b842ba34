/* hopper.cuh (CUDA) - one PTX instruction a word, for sm_90a: warpgroup products, barriers in shared memory, fences. */
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "hopper.cuh needs the target sm_90a"
#endif

/* ---- barriers in shared memory (mbarrier): a phase ends when `count` threads have arrived --------------------------- */
typedef unsigned long long cj_barrier;

__device__ __forceinline__ unsigned cj_shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void cj_barrier_init(cj_barrier *barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(cj_shared_address(barrier)), "r"(count) : "memory");
}

/* Makes the initialised barriers visible to the whole block and to the asynchronous proxy. */
__device__ __forceinline__ void cj_barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void cj_barrier_arrive(cj_barrier *barrier) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(cj_shared_address(barrier))
                 : "memory");
}

/* Arrives, and lets the phase end only when `bytes` more have come by cj_bulk_load. */
__device__ __forceinline__ void cj_barrier_expect(cj_barrier *barrier, unsigned bytes) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
                     cj_shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

/* Copies `bytes`, a multiple of 16, from global to shared memory, both 16-byte aligned; `barrier` counts what has come. */
__device__ __forceinline__ void cj_bulk_load(void *to, const void *from, unsigned bytes, cj_barrier *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     cj_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(cj_shared_address(barrier))
                 : "memory");
}

/* Copies `bytes`, a multiple of 16, from shared to global memory, both 16-byte aligned. */
__device__ __forceinline__ void cj_bulk_store(void *to, const void *from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(cj_shared_address(from)),
                 "r"(bytes)
                 : "memory");
}

/* Closes the group of the thread's copies since the last one; there may be none. */
__device__ __forceinline__ void cj_bulk_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of the thread's groups still read shared memory. */
template <int pending> __device__ __forceinline__ void cj_bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* Waits until the phase of this parity (0 for the first) has ended. */
__device__ __forceinline__ void cj_barrier_wait(cj_barrier *barrier, unsigned parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(cj_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Ordinary stores to shared memory before it are seen by warpgroup products issued after it. */
__device__ __forceinline__ void cj_async_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- warpgroup products (wgmma) -------------------------------------------------------------------------------------- */

/* Keeps what is done with the registers of a sum where it stands in the text: no other word mentions them. */
template <int registers> __device__ __forceinline__ void cj_hold(float (&sum)[registers]) {
#pragma unroll
    for (int i = 0; i < registers; ++i) {
        asm volatile("" : "+f"(sum[i])::"memory");
    }
}

/* The registers of a sum, read or written before, are about to be used by products. */
template <int registers> __device__ __forceinline__ void cj_product_fence(float (&sum)[registers]) {
    cj_hold(sum);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes the group of the products issued since the last one. */
__device__ __forceinline__ void cj_product_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until all groups are finished, so that the registers of their sum may be used again. */
template <int registers> __device__ __forceinline__ void cj_product_wait(float (&sum)[registers]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    cj_hold(sum);
}

/* Low word of the descriptor of an operand in shared memory, K-major, without swizzle: core matrices of 8 rows (of A;
 * columns of B) x 16 bytes, each 128 bytes in one piece, 128 bytes apart along M or N and k_stride bytes apart along K.
 * Bits 0-13 start address / 16, 16-29 k_stride / 16; the high word is always the same: bits 32-45 128 / 16, 62-63 layout 0.
 * Adding n moves the start by 16 n bytes, adding n << 16 the halves of K apart. */
__device__ __forceinline__ unsigned cj_descriptor(const void *start, unsigned k_stride) {
    return (cj_shared_address(start) >> 4 & 0x3fff) | (k_stride >> 4) << 16;
}

/* sum[64 x N] (+)= a[64 x 16] * b[16 x N] of halves; without `add`, sum is overwritten. Thread t of the warpgroup holds
 * rows t / 32 * 16 + t % 32 / 4 (+ 8 in every second pair), columns 8 j + t % 4 * 2 (+ 1). The stamp writes out sum's
 * N / 2 registers, for asm cannot count: CJ_SUM_REGISTERS "{%0, ...}", CJ_SUM_OPERANDS(sum) "+f"(sum[0]), ..., and
 * CJ_SUM_NEXT_i "%" with the number of the i-th operand behind them. */
__device__ __forceinline__ void cj_product_f16(float (&sum)[CJ_COLUMNS / 2], unsigned a, unsigned b, int add) {
    asm volatile("{\n"
                 ".reg .pred add;\n"
                 ".reg .b64 a, b;\n"
                 "mov.b64 a, {" CJ_SUM_NEXT_0 ", 8};\n"
                 "mov.b64 b, {" CJ_SUM_NEXT_1 ", 8};\n"
                 "setp.ne.b32 add, " CJ_SUM_NEXT_2 ", 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n" CJ_COLUMNS_TEXT "k16.f32.f16.f16 " CJ_SUM_REGISTERS
                 ", a, b, add, 1, 1, 0, 0;\n"
                 "}"
                 : CJ_SUM_OPERANDS(sum)
                 : "r"(a), "r"(b), "r"(add));
}

/* Gives the warps of a warpgroup that many registers, a multiple of 8, instead of those that the kernel has begun with. All
 * threads of the warpgroup come here. The compiler counts with that from here on. */
template <int registers, int begun_with> __device__ __forceinline__ void cj_set_registers() {
    if (registers > begun_with) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
    }
}

/* *from, or 0 if that does not exist. Issued where it stands in the text. */
__device__ __forceinline__ float cj_load_if(const float *from, bool exists) {
    float value;
    asm volatile("{\n"
                 ".reg .pred exists;\n"
                 "setp.ne.b32 exists, %2, 0;\n"
                 "mov.b32 %0, 0;\n"
                 "@exists ld.global.f32 %0, [%1];\n"
                 "}"
                 : "=&f"(value)
                 : "l"(from), "r"((int)exists));
    return value;
}

/* The same with the three behind it, all 16 bytes aligned. */
__device__ __forceinline__ float4 cj_load4_if(const float *from, bool exists) {
    float4 v;
    asm volatile("{\n"
                 ".reg .pred exists;\n"
                 "setp.ne.b32 exists, %5, 0;\n"
                 "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
                 "@exists ld.global.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w)
                 : "l"(from), "r"((int)exists));
    return v;
}

/* Stores a value there if that exists. */
__device__ __forceinline__ void cj_store_if(float *to, float value, bool exists) {
    asm volatile("{\n"
                 ".reg .pred exists;\n"
                 "setp.ne.b32 exists, %2, 0;\n"
                 "@exists st.global.f32 [%0], %1;\n"
                 "}" ::"l"(to), "f"(value), "r"((int)exists)
                 : "memory");
}

/* Has what lies there brought to the L2. */
__device__ __forceinline__ void cj_prefetch(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
__device__ __forceinline__ void cj_prefetch_l1(const void *from) {
    asm volatile("prefetch.global.L1 [%0];" ::"l"(from) : "memory");
}

/* A value that is the same for a whole warp, said so. */
template <class T> __device__ __forceinline__ T cj_uniform(T value) {
    return __shfl_sync(0xffffffff, value, 0);
}

/* True for one thread of the warp, always the same one. The compiler knows that it is one: it then does with the registers
 * of a warp what it else does in a loop over threads. */
__device__ __forceinline__ bool cj_elect() {
    unsigned elected;
    asm volatile("{\n"
                 ".reg .pred elected;\n"
                 "elect.sync _|elected, 0xffffffff;\n"
                 "selp.b32 %0, 1, 0, elected;\n"
                 "}"
                 : "=r"(elected));
    return elected != 0;
}

/* The larger ones of two numbers of 16 bits each. Not for a constant 0: where a half of the result is compared with 0 as well,
 * ptxas 13.0 takes a predicate of the same instruction for that, and the wrong one. */
__device__ __forceinline__ unsigned cj_max_u16x2(unsigned a, unsigned b) {
    unsigned result;
    asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

/* Hides where a value comes from, so that what follows from it is computed again instead of kept in registers. */
__device__ __forceinline__ long long cj_opaque(long long value) {
    asm volatile("" : "+l"(value));
    return value;
}
__device__ __forceinline__ int cj_opaque(int value) {
    asm volatile("" : "+r"(value));
    return value;
}
__device__ __forceinline__ const float *cj_opaque(const float *value) {
    asm volatile("" : "+l"(value));
    return value;
}

/* Dynamic shared memory of CJ_SHARED_BYTES. */
#define CJ_SHARED_MEMORY(name) extern __shared__ __align__(128) unsigned char name[]
