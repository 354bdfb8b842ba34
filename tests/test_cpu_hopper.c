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

/* ---------------------------------------------------------------------------------------------------------------------
 * Bulk stores
 * ------------------------------------------------------------------------------------------------------------------ */

/* Block 1 alone; a number a thread in shared memory. */
#define STORES                                                      \
    "CJ_KERNEL(convjit_forward, args, a) {\n"                       \
    "    CJ_SHARED_MEMORY(shared);\n"                               \
    "    const int t = (int)threadIdx.x;\n"                         \
    "    int *const data = (int *)shared, *const y = (int *)a.y;\n" \
    "    if (blockIdx.x != 1) return;\n"                            \
    "    data[t] = t * t + 1;\n"                                    \
    "    cj_async_fence();\n"                                       \
    "    __syncthreads();\n"
/* Every 16th thread stores 64 bytes. */
#define ISSUE "    if (t % 16 == 0) cj_bulk_store(y + t, data + t, 64);\n    cj_bulk_store_commit();\n"
#define WAIT "    cj_bulk_store_wait<0>();\n"

static int count_stored(const int *y) {
    int stored = 0;
    for (int i = 0; i < 64; ++i) {
        stored += y[i] == i * i + 1;
    }
    return stored;
}

Test(cpu_hopper, bulk_stores_have_read_shared_memory_when_they_are_waited_for) {
    _Alignas(16) int y[64] = {0};
    run_hopper(STORES, ISSUE WAIT, "    __syncthreads();\n    data[t] = -1;\n}\n", 64, NULL, y);
    cr_expect_eq(count_stored(y), 64);
}

Test(cpu_hopper, more_bulk_stores_on_their_way_than_are_remembered_arrive_too) {
    enum { EACH = 32 }; /* by each of 64 threads: 2048 */
    _Alignas(16) static int y[64 * EACH * 4];
    run_hopper(STORES,
               "    for (int i = 0; i < 32; ++i) cj_bulk_store(y + (t * 32 + i) * 4, data + t / 4 * 4, 16);\n"
               "    cj_bulk_store_commit();\n" WAIT,
               "}\n", 64, NULL, y);
    for (int i = 0; i < 64 * EACH * 4; ++i) {
        const int from = i / (EACH * 4) / 4 * 4 + i % 4;
        cr_assert_eq(y[i], from * from + 1, "element %d: %d", i, y[i]);
    }
}

Test(cpu_hopper, who_overwrites_what_a_bulk_store_reads_without_waiting_stores_something_else) {
    _Alignas(16) int y[64] = {0};
    run_hopper(STORES, ISSUE "    data[t] = -1;\n", WAIT "}\n", 64, NULL, y);
    cr_expect_lt(count_stored(y), 64);
}

Test(cpu_hopper, who_overwrites_what_another_threads_bulk_store_reads_during_its_wait_stores_something_else) {
    _Alignas(16) int y[64] = {0};
    run_hopper(STORES, ISSUE "    __syncthreads();\n    if (t % 16 != 0) data[t] = -1;\n", WAIT "}\n", 64, NULL, y);
    cr_expect_eq(count_stored(y), 32 + 2, "two pieces of 16 at once, of the others the first number; %d",
                 count_stored(y));
}

Test(cpu_hopper, who_reads_what_is_bulk_stored_before_its_wait_reads_something_else) {
    _Alignas(16) int y[128] = {0};
    run_hopper(STORES, ISSUE "    __syncthreads();\n    y[64 + t] = y[t];\n", WAIT "}\n", 64, NULL, y);
    cr_expect_eq(count_stored(y), 64);
    cr_expect_eq(count_stored(y + 64), 32, "two pieces of 16; %d", count_stored(y + 64));
}

/* Each of four threads stores two pieces of 32 bytes, a group each, and overwrites both before it waits for all. */
#define TWO_GROUPS                                                              \
    "    if (t % 16 == 0) {\n"                                                  \
    "        for (int i = 0; i < 16; i += 8) {\n"                               \
    "            cj_bulk_store(y + t + i, data + t + i, 32);\n"                 \
    "            if (i == 0 && t % 32 == 0) cj_bulk_store(y + 64, data, 16);\n" \
    "            cj_bulk_store_commit();\n"                                     \
    "        }\n"

Test(cpu_hopper, waiting_for_all_but_the_newest_bulk_stores_frees_only_what_the_older_ones_read) {
    _Alignas(16) int y[68] = {0};
    run_hopper(STORES,
               TWO_GROUPS "        cj_bulk_store_wait<1>();\n        for (int i = 0; i < 8; ++i) data[t + i] = -1;\n",
               "        cj_bulk_store_wait<0>();\n    }\n}\n", 64, NULL, y);
    cr_expect_eq(count_stored(y), 64);
    run_hopper(STORES,
               TWO_GROUPS "        cj_bulk_store_wait<1>();\n        for (int i = 8; i < 16; ++i) data[t + i] = -1;\n",
               "        cj_bulk_store_wait<0>();\n    }\n}\n", 64, NULL, y);
    cr_expect_lt(count_stored(y), 64);
}

Test(cpu_hopper, a_bulk_store_that_its_thread_does_not_wait_for_is_an_error) {
    static const char one[] = "    if (t == 5) cj_bulk_store((int *)a.x, data, 64);\n";
    expect_error(STORES, one, "    cj_bulk_store_commit();\n}\n", 64, numbers,
                 "thread 5: ended with 1 bulk stores on their way");
    expect_error(STORES, one, "    cj_bulk_store_commit();\n    cj_bulk_store_wait<1>();\n}\n", 64, numbers,
                 "thread 5: ended with 1 bulk stores on their way");
    expect_error(STORES, "    for (int i = 0; i < 2 && t == 5; ++i) cj_bulk_store((int *)a.x, data, 64);\n",
                 "    cj_bulk_store_commit();\n}\n", 64, numbers, "thread 5: ended with 2 bulk stores on their way");
}

Test(cpu_hopper, a_bulk_store_whose_group_is_not_closed_is_not_waited_for) {
    expect_error(STORES, "    if (t == 5) cj_bulk_store((int *)a.x, data, 64);\n", WAIT "}\n", 64, numbers,
                 "thread 5: ended with 1 bulk stores on their way");
}

Test(cpu_hopper, a_bulk_store_of_what_no_fence_has_made_visible_is_an_error) {
    expect_error(STORES, ISSUE WAIT "    if (t == 5) data[3] = -1;\n    __syncthreads();\n" ISSUE, WAIT "}\n", 64,
                 numbers,
                 "thread 0: cj_bulk_store reads bytes 0 to 63 of shared memory, to which a thread has stored without "
                 "cj_async_fence");
}

Test(cpu_hopper, a_bulk_store_from_outside_shared_memory_is_an_error) {
    expect_error(STORES, "    cj_bulk_store((int *)a.x, shared + 8176, 32);\n", WAIT "}\n", 1, numbers,
                 "thread 0: cj_bulk_store at byte 8176 of shared memory, of which the block has 8192");
}

static void expect_misaligned(const char *body, unsigned bytes, unsigned from, unsigned to) {
    char text[256];
    snprintf(text, sizeof(text),
             "thread 0: cj_bulk_store of %u bytes from byte %u of shared memory to %p, must be multiples of 16", bytes,
             from, (void *)((char *)numbers + to));
    expect_error(STORES, body, WAIT "}\n", 1, numbers, text);
}

Test(cpu_hopper, a_bulk_store_of_broken_units_is_an_error) {
    expect_misaligned("    cj_bulk_store((char *)a.x, shared, 24);\n", 24, 0, 0);
    expect_misaligned("    cj_bulk_store((char *)a.x, shared + 4, 16);\n", 16, 4, 0);
    expect_misaligned("    cj_bulk_store((char *)a.x + 8, shared, 16);\n", 16, 0, 8);
}
