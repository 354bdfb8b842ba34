/* Hopper's barriers and bulk copies on the target cpu: kernel_src/cpu/hopper.cuh, src/cpu_hopper.c. */
#include "hopper_kernels.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Barriers
 * ------------------------------------------------------------------------------------------------------------------ */

#define BARRIERS                                                                    \
    "CJ_KERNEL(convjit_forward, args, a) {\n"                                       \
    "    CJ_SHARED_MEMORY(shared);\n"                                               \
    "    const int t = (int)threadIdx.x;\n"                                         \
    "    cj_barrier *const full = (cj_barrier *)shared, *const empty = full + 2;\n" \
    "    if (t == 0) {\n"                                                           \
    "        for (int i = 0; i < 2; ++i) {\n"                                       \
    "            cj_barrier_init(&full[i], 64);\n"                                  \
    "            cj_barrier_init(&empty[i], 64);\n"                                 \
    "        }\n"                                                                   \
    "        cj_barrier_init_fence();\n"                                            \
    "    }\n"                                                                       \
    "    __syncthreads();\n"
#define FAULTY_BARRIERS BARRIERS "    if (blockIdx.x == 0) return;\n"

Test(cpu_hopper, two_buffers_go_from_producers_to_consumers_and_back) {
    enum { ITEMS = 37 };
    int y[64] = {0};
    run_hopper(BARRIERS,
               "    int *const data = (int *)(shared + 256);\n"
               "    for (int i = 0; i < 37; ++i) {\n"
               "        int *const buffer = data + i % 2 * 64;\n"
               "        if (t < 64) {\n"
               "            cj_barrier_wait(&full[i % 2], i / 2 % 2);\n"
               "            ((int *)a.y)[t] += buffer[63 - t];\n"
               "            cj_barrier_arrive(&empty[i % 2]);\n"
               "        } else {\n"
               "            cj_barrier_wait(&empty[i % 2], i / 2 % 2 ^ 1);\n"
               "            buffer[t - 64] = i * 1000 + t - 64;\n"
               "            cj_barrier_arrive(&full[i % 2]);\n"
               "        }\n"
               "    }\n",
               "}\n", 128, NULL, y);
    for (int t = 0; t < 64; ++t) {
        cr_expect_eq(y[t], 3 * (1000 * ITEMS * (ITEMS - 1) / 2 + ITEMS * (63 - t)));
    }
}

Test(cpu_hopper, a_wait_that_can_never_end_is_an_error_that_says_who_waits_for_what) {
    expect_error(
        FAULTY_BARRIERS,
        "    if (t < 64) { if (t != 5) cj_barrier_arrive(&full[1]); cj_barrier_wait(&full[1], 0); }\n"
        "    else { cj_barrier_wait(&empty[0], 1); cj_barrier_wait(&empty[0], 0); }\n",
        "}\n", 65, NULL,
        "thread 0 and 63 others wait for the end of phase 0 of the barrier at byte 8 of shared memory, 63 of 64 "
        "arrived; thread 64 waits for the end of phase 0 of the barrier at byte 16 of shared memory, 0 of 64 "
        "arrived");
}

Test(cpu_hopper, a_wait_beside_a_barrier_that_lacks_threads_is_an_error) {
    expect_error(
        FAULTY_BARRIERS, "    if (t == 3) cj_barrier_wait(full, 0);\n    __syncthreads();\n", "}\n", 64, NULL,
        "barrier reached by 63 of 64 threads; thread 3 waits for the end of phase 0 of the barrier at byte 0 of "
        "shared memory, 0 of 64 arrived");
}

Test(cpu_hopper, a_barrier_that_was_not_initialised_in_this_block_is_an_error) {
    expect_error("CJ_KERNEL(convjit_forward, args, a) {\n"
                 "    CJ_SHARED_MEMORY(shared);\n"
                 "    if (blockIdx.x == 0) cj_barrier_init((cj_barrier *)shared, 1);\n",
                 "    cj_barrier_arrive((cj_barrier *)shared);\n", "}\n", 1, NULL,
                 "thread 0: cj_barrier_arrive at byte 0 of shared memory, where no barrier was initialised");
}

Test(cpu_hopper, a_barrier_outside_shared_memory_is_an_error) {
    expect_error(FAULTY_BARRIERS, "    if (t == 1) cj_barrier_wait((cj_barrier *)(shared + 8192), 0);\n", "}\n", 2,
                 NULL, "thread 1: cj_barrier_wait at byte 8192 of shared memory, of which the block has 8192");
}

Test(cpu_hopper, a_barrier_for_nobody_is_an_error) {
    expect_error(FAULTY_BARRIERS, "    cj_barrier_init(full, 0);\n", "}\n", 1, NULL,
                 "thread 0: cj_barrier_init with 0 arrivals, must be 1 to 65535");
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Bulk copies
 * ------------------------------------------------------------------------------------------------------------------ */

/* Thread 0 loads four pieces of 64 bytes to shared memory, one a thread. */
#define COPIES                                                                        \
    "CJ_KERNEL(convjit_forward, args, a) {\n"                                         \
    "    CJ_SHARED_MEMORY(shared);\n"                                                 \
    "    cj_barrier *const full = (cj_barrier *)shared;\n"                            \
    "    int *const data = (int *)(shared + 64);\n"                                   \
    "    if (blockIdx.x == 0) return;\n"                                              \
    "    if (threadIdx.x == 0) {\n"                                                   \
    "        cj_barrier_init(full, 1);\n"                                             \
    "        for (int i = 0; i < 4; ++i)\n"                                           \
    "            cj_bulk_load(data + i * 16, (const int *)a.x + i * 16, 64, full);\n" \
    "        cj_barrier_expect(full, EXPECTED);\n"                                    \
    "    }\n"                                                                         \
    "    __syncthreads();\n"
#define STORE_COPY "    ((int *)a.y)[threadIdx.x] = data[threadIdx.x];\n}\n"

static _Alignas(16) int numbers[64];

static void fill_numbers(void) {
    for (int i = 0; i < 64; ++i) {
        numbers[i] = i * i + 1;
    }
}

Test(cpu_hopper, bulk_copies_are_there_when_their_bytes_have_come) {
    int y[64] = {0};
    fill_numbers();
    run_hopper("enum { EXPECTED = 256 };\n" COPIES, "    cj_barrier_wait(full, 0);\n", STORE_COPY, 64, numbers, y);
    cr_expect_arr_eq(y, numbers, sizeof(y));
}

Test(cpu_hopper, who_reads_a_bulk_copy_without_waiting_reads_something_else) {
    int y[64] = {0};
    fill_numbers();
    run_hopper("enum { EXPECTED = 256 };\n" COPIES, "",
               "    const int early = data[threadIdx.x];\n"
               "    cj_barrier_wait(full, 0);\n    ((int *)a.y)[threadIdx.x] = early;\n}\n",
               64, numbers, y);
    cr_expect(memcmp(y, numbers, sizeof(y)) != 0);
}

Test(cpu_hopper, waiting_for_bytes_that_nobody_copies_is_an_error) {
    expect_error("enum { EXPECTED = 272 };\n" COPIES, "    cj_barrier_wait(full, 0);\n", STORE_COPY, 64, numbers,
                 "thread 0 and 63 others wait for the end of phase 0 of the barrier at byte 0 of shared memory, 1 of 1 "
                 "arrived, 16 bytes missing");
}

Test(cpu_hopper, a_bulk_copy_that_nobody_waits_for_is_an_error) {
    expect_error("enum { EXPECTED = 256 };\n" COPIES, "", "}\n", 1, numbers,
                 "thread 0: the block ends with 2 bulk copies on their way");
}

Test(cpu_hopper, a_bulk_copy_to_outside_shared_memory_is_an_error) {
    expect_error("enum { EXPECTED = 256 };\n" COPIES, "    cj_bulk_load(shared + 8176, a.x, 32, full);\n", "}\n", 1,
                 numbers, "thread 0: cj_bulk_load at byte 8176 of shared memory, of which the block has 8192");
}
