/* cpu_block.h - one thread block of the target cpu: its threads take turns on fibers, and change over only where they
 * wait for each other. A block that can never end is an error that says who waits for what. */
#ifndef CJ_CPU_BLOCK_H
#define CJ_CPU_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../kernel_src/cpu/words.cuh"
#include "cpu_fiber.h"

enum { CJ_MAX_THREADS = 1024 };

typedef struct cj_block cj_block;
typedef struct cj_wait cj_wait;

/* What a thread waits for, besides the barrier and warp operations of CUDA. */
struct cj_wait {
    bool (*ready)(const cj_block *block, const cj_wait *wait);
    /* "for ..."; appended to the error where nobody can go on. */
    void (*describe)(const cj_block *block, const cj_wait *wait, char *text, size_t size);
    const void *at;  /* what is waited for, */
    uint64_t number; /* and which phase, group, ... of it: threads that agree in both are counted together */
};

typedef enum cj_thread_state {
    CJ_RUNNABLE,
    CJ_AT_BARRIER, /* __syncthreads() */
    CJ_AT_WARP,    /* a warp operation */
    CJ_AT_WAIT,    /* a cj_wait */
    CJ_ENDED,
    CJ_THREAD_STATES
} cj_thread_state;

typedef struct cj_thread {
    cj_thread_state state;
    enum cj_warp_operation operation; /* CJ_AT_WARP: what it waits for */
    unsigned mask, value, source;
    unsigned result;
    const cj_wait *wait; /* CJ_AT_WAIT */
} cj_thread;

/* Given: what a launch of blocks runs. The rest belongs to the functions below. */
struct cj_block {
    struct cj_cpu_host *host;
    void (*kernel)(const void *args);
    const void *args;
    uint32_t threads, blocks;
    void *shared; /* dynamic shared memory */
    uint32_t shared_bytes;
    struct cj_hopper *hopper;
    void (*thread_ends)(cj_block *block); /* on its fiber, when its kernel has returned */
    bool (*nobody_runs)(cj_block *block); /* nobody can go on; true if now somebody may */

    cj_fibers *fibers;
    uint32_t at_barrier, ended;
    uint32_t current; /* the thread that runs */
    bool failed;
    char error[1024];
    cj_thread thread[CJ_MAX_THREADS];
};

/* Each byte of shared memory when a block begins: NaN in every type, so that nothing is left of the one before. */
enum { CJ_BLOCK_POISON = 0xff };

/* Before the first block: takes fibers, tells the module where it runs. False: no memory. */
bool cj_block_open(cj_block *block);

/* Runs block `index` to its end; false with the reason in block->error. After an error no other block can be run. */
bool cj_block_run(cj_block *block, uint32_t index);

void cj_block_close(cj_block *block);

/* ---- on the fiber of the thread that runs ---- */

/* Waits until wait->ready. */
void cj_block_wait(cj_block *block, const cj_wait *wait);

/* Which byte of dynamic shared memory a pointer points to. An error, in the name of `word`, if not all of the `bytes`
 * from there are in it. */
uint32_t cj_block_shared_offset(cj_block *block, const void *pointer, uint32_t bytes, const char *word);

/* Lets every other thread that can go on have a turn. */
void cj_block_yield(cj_block *block);

/* Ends the block with an error: "thread N: ...". Does not return. */
_Noreturn void cj_block_fail(cj_block *block, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
