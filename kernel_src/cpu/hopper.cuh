/* hopper.cuh (cpu) - the words of cuda/hopper.cuh, handed on to the host: src/cpu_hopper.c does the work and says what it
 * checks. To add a word: a line in struct cj_cpu_hopper, its function there, and the word below. */

/* ---- between module and host (C as well) ---------------------------------------------------------------------------- */

/* One thread's part of a product of its warpgroup. Its registers are given by their address: a product is computed some
 * time between its issue and the wait for its group, into what the address holds. */
struct cj_cpu_product {
    float *sum;        /* columns / 2 registers */
    unsigned int a, b; /* descriptors */
    int columns, add;
};

struct cj_cpu_hopper {
    void (*barrier_init)(void *launch, void *barrier, unsigned int count);
    void (*barrier_arrive)(void *launch, void *barrier);
    void (*barrier_expect)(void *launch, void *barrier, unsigned int bytes);
    void (*barrier_wait)(void *launch, void *barrier, unsigned int parity);
    void (*bulk_load)(void *launch, void *to, const void *from, unsigned int bytes, void *barrier);
    void (*bulk_store)(void *launch, void *to, const void *from, unsigned int bytes);
    void (*bulk_store_commit)(void *launch);
    void (*bulk_store_wait)(void *launch, unsigned int pending);
    void (*async_fence)(void *launch);
    unsigned int (*descriptor)(void *launch, const void *start, unsigned int k_stride);
    void (*product)(void *launch, const struct cj_cpu_product *product);
    void (*product_fence)(void *launch);
    void (*product_commit)(void *launch);
    void (*product_wait)(void *launch);
};

#ifdef __cplusplus

/* ---- barriers in shared memory -------------------------------------------------------------------------------------- */

typedef unsigned long long cj_barrier;

inline void cj_barrier_init(cj_barrier *barrier, unsigned int count) {
    cj_host.hopper->barrier_init(cj_host.launch, barrier, count);
}
inline void cj_barrier_init_fence() {
}
inline void cj_barrier_arrive(cj_barrier *barrier) {
    cj_host.hopper->barrier_arrive(cj_host.launch, barrier);
}
inline void cj_barrier_expect(cj_barrier *barrier, unsigned int bytes) {
    cj_host.hopper->barrier_expect(cj_host.launch, barrier, bytes);
}
inline void cj_bulk_load(void *to, const void *from, unsigned int bytes, cj_barrier *barrier) {
    cj_host.hopper->bulk_load(cj_host.launch, to, from, bytes, barrier);
}
inline void cj_bulk_store(void *to, const void *from, unsigned int bytes) {
    cj_host.hopper->bulk_store(cj_host.launch, to, from, bytes);
}
inline void cj_bulk_store_commit() {
    cj_host.hopper->bulk_store_commit(cj_host.launch);
}
template <int pending> inline void cj_bulk_store_wait() {
    cj_host.hopper->bulk_store_wait(cj_host.launch, pending);
}
inline void cj_barrier_wait(cj_barrier *barrier, unsigned int parity) {
    cj_host.hopper->barrier_wait(cj_host.launch, barrier, parity);
}
inline void cj_async_fence() {
    cj_host.hopper->async_fence(cj_host.launch);
}

/* ---- warpgroup products --------------------------------------------------------------------------------------------- */

template <int registers> inline void cj_product_fence(float (&)[registers]) {
    cj_host.hopper->product_fence(cj_host.launch);
}
inline void cj_product_commit() {
    cj_host.hopper->product_commit(cj_host.launch);
}
template <int registers> inline void cj_product_wait(float (&)[registers]) {
    cj_host.hopper->product_wait(cj_host.launch);
}
inline unsigned int cj_descriptor(const void *start, unsigned int k_stride) {
    return cj_host.hopper->descriptor(cj_host.launch, start, k_stride);
}

/* `sum` must live until the wait. */
template <int registers>
inline void cj_product_f16(float (&sum)[registers], unsigned int a, unsigned int b, int add) {
    const cj_cpu_product product = {sum, a, b, 2 * registers, add};
    cj_host.hopper->product(cj_host.launch, &product);
}

template <int registers, int begun_with> inline void cj_set_registers() {
}

inline float cj_load_if(const float *from, bool exists) {
    return exists ? *from : 0.0F;
}

inline float4 cj_load4_if(const float *from, bool exists) {
    return exists ? make_float4(from[0], from[1], from[2], from[3]) : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
}

inline void cj_store_if(float *to, float value, bool exists) {
    if (exists) {
        *to = value;
    }
}

/* Nothing, if that can be read. */
inline void cj_prefetch(const void *from) {
    (void)*(const volatile char *)from;
}
inline void cj_prefetch_l1(const void *from) {
    cj_prefetch(from);
}

/* As on the device, all take lane 0's value: who is wrong to say that it is theirs too sees it here as well. */
template <class T> inline T cj_uniform(T value) {
    return __shfl_sync(0xffffffff, value, 0);
}

inline bool cj_elect() {
    return threadIdx.x % 32 == 0;
}

inline unsigned int cj_max_u16x2(unsigned int a, unsigned int b) {
    return max(a >> 16, b >> 16) << 16 | max(a & 0xffff, b & 0xffff);
}

inline long long cj_opaque(long long value) {
    return value;
}
inline int cj_opaque(int value) {
    return value;
}
inline const float *cj_opaque(const float *value) {
    return value;
}

/* Of exactly the size that the launch asks for: AddressSanitizer sees its ends. */
#define CJ_SHARED_MEMORY(name) unsigned char *const name = (unsigned char *)cj_host.dynamic_shared

#endif
