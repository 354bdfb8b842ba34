/* cpu_hopper.h - the words of kernel_src/cpu/hopper.cuh for the blocks of a launch. */
#ifndef CJ_CPU_HOPPER_H
#define CJ_CPU_HOPPER_H

#include "cpu_block.h"

/* Before and after the blocks. False: no memory. */
bool cj_hopper_open(cj_block *block);
void cj_hopper_close(cj_block *block);

/* ---- between cpu_hopper.c and cpu_product.c ---- */

enum { CJ_WARPGROUP = 128, CJ_WARPGROUPS = CJ_MAX_THREADS / CJ_WARPGROUP, CJ_LATE_COPIES = 256, CJ_OPEN_STORES = 1024 };

typedef struct cj_copy {
    void *to;
    const void *from;
    uint32_t bytes;
    void *barrier;
} cj_copy;

typedef struct cj_store {
    uint32_t thread; /* that issued it */
    uint64_t group;  /* of that thread */
    void *to;
    const void *from;
    uint32_t bytes;
    bool done;
} cj_store;

/* State of the block that runs. */
typedef struct cj_hopper {
    char *seen;                                     /* shared memory as bulk stores and products see it */
    bool fenced;                                    /* a thread has come to cj_async_fence since that is so */
    struct cj_warpgroup *warpgroups[CJ_WARPGROUPS]; /* NULL before their first product */
    uint64_t copies_issued;
    uint32_t copies_late;
    cj_copy copies[CJ_LATE_COPIES]; /* not done yet, oldest first */
    uint64_t stores_issued;
    uint32_t stores_open;
    cj_store stores[CJ_OPEN_STORES];       /* not waited for yet, oldest first */
    uint64_t store_groups[CJ_MAX_THREADS]; /* closed by each thread */
} cj_hopper;

struct cj_cpu_product;
uint32_t cj_product_descriptor(void *launch, const void *start, unsigned k_stride);
void cj_product_issue(void *launch, const struct cj_cpu_product *given);
void cj_product_fence(void *launch);
void cj_product_commit(void *launch);
void cj_product_wait(void *launch);

/* A bulk store or a product, `what`, reads shared memory: an error if it does not see what is there. */
void cj_hopper_expect_seen(cj_block *block, size_t offset, size_t bytes, const char *what);

/* When a thread ends; when all have ended. */
void cj_product_thread_ends(cj_block *block);
void cj_product_block_ends(cj_block *block);

/* ---- between cpu_product.c and cpu_tensor_core.c ---- */

enum { CJ_PRODUCT_ROWS = 64, CJ_PRODUCT_DEPTH = 16, CJ_MOST_COLUMNS = 256 };

/* A row of A or a column of B. */
typedef struct cj_line {
    uint16_t half[CJ_PRODUCT_DEPTH];
} cj_line;

/* sum[64][count] += a[64][16] * b[count][16]; `count` is a multiple of 8 up to 256. */
void cj_tensor_core(float (*sum)[CJ_MOST_COLUMNS], const cj_line *a, const cj_line *b, int count);

#endif
