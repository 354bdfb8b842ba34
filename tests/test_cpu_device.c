/* The target cpu: blocks, modules and sanitizers. */
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu_kernels.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Blocks and barriers
 * ------------------------------------------------------------------------------------------------------------------ */

Test(cpu_device, sums_blocks_through_shared_memory) {
    check_block_sum(300, 128);
}

Test(cpu_device, runs_the_largest_block) {
    check_block_sum(2, 1024);
}

Test(cpu_device, runs_a_block_of_one_thread) {
    check_block_sum(7, 1);
}

Test(cpu_device, runs_many_blocks) {
    enum { BLOCKS = 100000 };
    uint32_t *y = calloc(BLOCKS, sizeof(*y));
    run("CJ_KERNEL(convjit_forward, args, a) { ((unsigned *)a.y)[blockIdx.x] += blockIdx.x + threadIdx.x; }\n", BLOCKS,
        2, NULL, y);
    for (uint32_t i = 0; i < BLOCKS; ++i) {
        cr_assert_eq(y[i], 2 * i + 1);
    }
    free(y);
}

Test(cpu_device, tells_threads_where_they_are) {
    uint32_t y[3][4][12] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    const unsigned values[12] = {threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z,\n"
        "                                 blockDim.x, blockDim.y, blockDim.z, gridDim.x, gridDim.y, gridDim.z};\n"
        "    __syncthreads();\n"
        "    unsigned *y = (unsigned *)a.y + (blockIdx.x * blockDim.x + threadIdx.x) * 12;\n"
        "    for (int i = 0; i < 12; ++i) y[i] = values[i];\n"
        "}\n",
        3, 4, NULL, y);
    for (uint32_t b = 0; b < 3; ++b) {
        for (uint32_t t = 0; t < 4; ++t) {
            const uint32_t want[12] = {t, 0, 0, b, 0, 0, 4, 1, 1, 3, 1, 1};
            cr_expect_arr_eq(y[b][t], want, sizeof(want));
        }
    }
}

Test(cpu_device, large_local_arrays_survive_barriers) {
    int y[256] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    volatile int local[4096];\n"
        "    for (int i = 0; i < 4096; ++i) local[i] = i * (int)threadIdx.x;\n"
        "    __syncthreads();\n"
        "    int wrong = 0;\n"
        "    for (int i = 0; i < 4096; ++i) wrong += local[i] != i * (int)threadIdx.x;\n"
        "    ((int *)a.y)[threadIdx.x] = wrong == 0;\n"
        "}\n",
        1, 256, NULL, y);
    for (int i = 0; i < 256; ++i) {
        cr_expect_eq(y[i], 1);
    }
}

Test(cpu_device, arguments_arrive_intact) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("no host C++ compiler");
    }
    struct {
        void *y;
        unsigned char bytes[301];
    } a;
    cj_text source = {0};
    cj_text_printf(&source,
                   "%s\nstruct args { void *y; unsigned char bytes[301]; };\n"
                   "CJ_KERNEL(convjit_forward, args, a) { (void)a; }\n"
                   "CJ_KERNEL(convjit_pack, args, a) { ((unsigned char *)a.y)[threadIdx.x] = a.bytes[threadIdx.x]; }\n",
                   words());
    cj_blob binary;
    cr_assert_eq(cj_cpu_compiler.compile(&cpu, source.data, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cj_module *module;
    cr_assert_eq(cj_cpu_device.load(binary.data, binary.size, 0, &module), CONVJIT_SUCCESS, "%s", convjit_last_error());
    unsigned char y[301] = {0};
    a.y = y;
    for (int i = 0; i < 301; ++i) {
        a.bytes[i] = (unsigned char)(i * 7 + 1);
    }
    const cj_launch work = {.entry = CJ_PACK, .blocks = 1, .threads = 301, .args = &a};
    cr_assert_eq(cj_cpu_device.launch(module, &work, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_arr_eq(y, a.bytes, sizeof(y));
    cj_cpu_device.unload(module);
    cj_text_free(&source);
    free(binary.data);
}

Test(cpu_device, gives_dynamic_shared_memory) {
    cj_module *module = load("CJ_KERNEL(convjit_forward, args, a) {\n"
                             "    CJ_DYNAMIC_SHARED(int, values);\n"
                             "    values[threadIdx.x] = (int)threadIdx.x;\n"
                             "    __syncthreads();\n"
                             "    ((int *)a.y)[threadIdx.x] = values[a.n - 1 - threadIdx.x];\n"
                             "}\n");
    int y[64] = {0};
    const args a = {NULL, y, 64};
    const cj_launch work = {.entry = CJ_FORWARD, .blocks = 2, .threads = 64, .shared_bytes = sizeof(y), .args = &a};
    cr_assert_eq(cj_cpu_device.launch(module, &work, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    for (int i = 0; i < 64; ++i) {
        cr_expect_eq(y[i], 63 - i);
    }
    cj_cpu_device.unload(module);
}

Test(cpu_device, a_barrier_that_ended_threads_miss_is_an_error) {
    expect_failure(FAULTY "if (t % 4 == 0) return; __syncthreads(); }\n", 128,
                   "convjit_forward failed: block 3 of 5: barrier reached by 96 of 128 threads, 32 have ended");
}

Test(cpu_device, a_barrier_that_threads_at_a_shuffle_miss_is_an_error) {
    expect_failure(
        FAULTY "if (t < 32) __shfl_sync(0xffffffff, 1, 0); else __syncthreads();\n"
               "if (t == 5) return; if (t < 32) __shfl_sync(0xffffffff, 1, 0); __syncthreads(); }\n",
        64,
        "convjit_forward failed: block 3 of 5: barrier reached by 32 of 64 threads, 1 have ended, 31 wait at "
        "a warp operation; warp 0: shuffle with mask 0xffffffff reached by 31 of 32 lanes, lane 5 has ended");
}

Test(cpu_device, barriers_at_different_places_are_the_same_barrier) {
    int y[2] = {0};
    run("CJ_KERNEL(convjit_forward, args, a) {\n"
        "    __shared__ int value;\n"
        "    if (threadIdx.x == 0) { value = 7; __syncthreads(); } else { __syncthreads(); ((int *)a.y)[1] = value; }\n"
        "}\n",
        1, 2, NULL, y);
    cr_expect_eq(y[1], 7);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Modules
 * ------------------------------------------------------------------------------------------------------------------ */

static void write_constant(char *source, size_t size, int value) {
    snprintf(source, size, "CJ_KERNEL(convjit_forward, args, a) { *(int *)a.y = %d; }\n", value);
}

Test(cpu_device, modules_loaded_one_after_another_keep_their_own_code) {
    cj_module *modules[6];
    for (int i = 0; i < 6; ++i) {
        char source[128];
        write_constant(source, sizeof(source), i);
        modules[i] = load(source);
        if (i % 2 == 1) {
            cj_cpu_device.unload(modules[i - 1]);
        }
        for (int j = i % 2 == 0 ? i : 1; j <= i; j += 2) {
            int y = -1;
            cr_assert_eq(launch(modules[j], 1, 1, NULL, &y), CONVJIT_SUCCESS);
            cr_expect_eq(y, j);
        }
    }
    for (int i = 1; i < 6; i += 2) {
        cj_cpu_device.unload(modules[i]);
    }
    cj_cpu_device.unload(NULL);
}

typedef struct job {
    cj_module *module;
    int failures;
} job;

static void *run_sums(void *argument) {
    job *j = argument;
    float x[4][256], y[4];
    for (int round = 0; round < 25; ++round) {
        for (int i = 0; i < 1024; ++i) {
            x[i / 256][i % 256] = (float)(i / 256 + round);
        }
        const convjit_status status = launch(j->module, 4, 256, x, y);
        for (int b = 0; b < 4; ++b) {
            j->failures += status != CONVJIT_SUCCESS || y[b] != (float)(256 * (b + round));
        }
    }
    return NULL;
}

Test(cpu_device, threads_launch_two_modules_and_share_one) {
    cj_module *first = load(block_sum), *second = load(block_sum);
    job jobs[3] = {{first, 0}, {second, 0}, {second, 0}};
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) {
        cr_assert_eq(pthread_create(&threads[i], NULL, run_sums, &jobs[i]), 0);
    }
    for (int i = 0; i < 3; ++i) {
        pthread_join(threads[i], NULL);
        cr_expect_eq(jobs[i].failures, 0, "thread %d", i);
    }
    cj_cpu_device.unload(first);
    cj_cpu_device.unload(second);
}

static void expect_not_loaded(const void *data, size_t size, const char *why) {
    cj_module *module = NULL;
    cr_expect_eq(cj_cpu_device.load(data, size, 0, &module), CONVJIT_LOAD_FAILED, "%zu bytes were loaded", size);
    cr_expect_null(module);
    cr_expect_not_null(strstr(convjit_last_error(), why), "\"%s\" is not in: %s", why, convjit_last_error());
}

Test(cpu_device, garbage_is_not_loaded) {
    unsigned char garbage[4096];
    for (size_t i = 0; i < sizeof(garbage); ++i) {
        garbage[i] = (unsigned char)(i * 31 + 7);
    }
    expect_not_loaded(garbage, 0, "not an ELF file");
    expect_not_loaded(garbage, 3, "not an ELF file");
    expect_not_loaded(garbage, sizeof(garbage), "not an ELF file");
    memcpy(garbage, ELFMAG, SELFMAG);
    expect_not_loaded(garbage, sizeof(garbage), "another processor");
}

Test(cpu_device, a_truncated_module_is_not_loaded) {
    cj_blob binary = build(block_sum);
    for (size_t size = 0; size < binary.size; size += size < 64 || size > binary.size - 64 ? 1 : 61) {
        expect_not_loaded(binary.data, size, size < sizeof(Elf64_Ehdr) ? "not an ELF file" : "truncated");
    }
    free(binary.data);
}

/* Changes one field of the ELF header of a good module. */
static void expect_header_refused(size_t offset, unsigned char value, const char *why) {
    cj_blob binary = build(block_sum);
    ((unsigned char *)binary.data)[offset] = value;
    expect_not_loaded(binary.data, binary.size, why);
    free(binary.data);
}

Test(cpu_device, a_module_for_another_processor_is_not_loaded) {
    expect_header_refused(offsetof(Elf64_Ehdr, e_machine), EM_S390, "another processor");
    expect_header_refused(EI_CLASS, ELFCLASS32, "another processor");
    expect_header_refused(EI_DATA, ELFDATANONE, "another processor");
}

Test(cpu_device, what_is_no_shared_object_is_not_loaded) {
    expect_header_refused(offsetof(Elf64_Ehdr, e_type), ET_REL, "not a shared object");
    expect_header_refused(offsetof(Elf64_Ehdr, e_phentsize), 1, "not a shared object");
    expect_header_refused(offsetof(Elf64_Ehdr, e_phoff) + 7, 0xff, "truncated");
    expect_header_refused(offsetof(Elf64_Ehdr, e_shoff) + 7, 0xff, "truncated");
}

static void expect_source_refused(const char *source, const char *why) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("no host C++ compiler");
    }
    cj_blob binary;
    cr_assert_eq(cj_cpu_compiler.compile(&cpu, source, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    expect_not_loaded(binary.data, binary.size, why);
    free(binary.data);
}

Test(cpu_device, a_module_without_the_expected_symbols_is_not_loaded) {
#define EXPORT "extern \"C\" __attribute__((visibility(\"default\"))) "
    expect_source_refused(EXPORT "int f() { return 1; }\n", "does not export convjit_cpu_host");
    expect_source_refused("static unsigned host[100] = {4};\n" EXPORT "unsigned *convjit_cpu_host;\n"
                          "unsigned *convjit_cpu_host = host;\n",
                          "host struct has 4 bytes");
    cj_text source = {0};
    cj_text_printf(&source, "%s\nstruct args { int i; };\n" EMPTY_PACK, words());
    expect_source_refused(source.data, "does not export convjit_forward");
    cj_text_free(&source);
}

Test(cpu_device, a_module_with_an_unresolved_symbol_is_not_loaded) {
    cj_blob binary = build("extern \"C\" void no_such_function();\n"
                           "CJ_KERNEL(convjit_forward, args, a) { (void)a; no_such_function(); }\n");
    expect_not_loaded(binary.data, binary.size, "no_such_function");
    free(binary.data);
}

Test(cpu_device, launches_outside_the_limits_are_refused) {
    cj_module *module = load(block_sum);
    cr_expect_eq(launch(module, 0, 32, NULL, NULL), CONVJIT_LAUNCH_FAILED);
    cr_expect_not_null(strstr(convjit_last_error(), "0 blocks"));
    cr_expect_eq(launch(module, 1, 0, NULL, NULL), CONVJIT_LAUNCH_FAILED);
    cr_expect_eq(launch(module, 1, 1025, NULL, NULL), CONVJIT_LAUNCH_FAILED);
    cr_expect_not_null(strstr(convjit_last_error(), "1025 threads a block, must be 1 to 1024"));
    cj_cpu_device.unload(module);
}

Test(cpu_device, opens_and_allocates) {
    cj_target target;
    void *opened = NULL;
    cr_assert_eq(cj_cpu_device.open(&target, &opened), CONVJIT_SUCCESS);
    cr_expect_str_eq(target.name, "cpu");
    cr_expect_eq(target.kind, CJ_TARGET_CPU);
    cr_expect_not_null(opened);
    cr_expect_eq(cj_cpu_device.check_current(opened), CONVJIT_SUCCESS);
    for (size_t size = 0; size < 5000; size += 1249) {
        void *memory = NULL;
        cr_assert_eq(cj_cpu_device.allocate(size, &memory), CONVJIT_SUCCESS);
        cr_expect_eq((uintptr_t)memory % 256, 0);
        memset(memory, 1, size);
        cj_cpu_device.release(memory);
    }
    cj_cpu_device.release(NULL);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Sanitizers
 * ------------------------------------------------------------------------------------------------------------------ */

static bool has_asan(void) {
    return dlsym(RTLD_DEFAULT, "__asan_init") != NULL;
}

/* Builds with these flags, launches in a child of this process and expects that it ends with a report of these words.
 */
static void expect_report(const char *flags, const char *forward, const char *words_of_report) {
    setenv("CONVJIT_CXXFLAGS", flags, 1);
    cj_module *module = load(forward);
    FILE *report = tmpfile();
    cr_assert_not_null(report);
    float *x = NULL;
    cr_assert_eq(cj_cpu_device.allocate(64 * sizeof(float), (void **)&x), CONVJIT_SUCCESS);
    memset(x, 0, 64 * sizeof(float));
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        dup2(fileno(report), 2);
        const args a = {x, x, 64};
        const cj_launch work = {.entry = CJ_FORWARD, .blocks = 2, .threads = 64, .shared_bytes = 256, .args = &a};
        cj_cpu_device.launch(module, &work, NULL);
        _exit(0);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    char text[4096] = "";
    rewind(report);
    text[fread(text, 1, sizeof(text) - 1, report)] = '\0';
    fclose(report);
    cr_expect(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "the launch went through");
    cr_expect_not_null(strstr(text, words_of_report), "\"%s\" is not in: %s", words_of_report, text);
    cj_cpu_device.release(x);
    cj_cpu_device.unload(module);
}

/* UBSan would report the first cases below before AddressSanitizer sees them. */
static const char asan_flags[] = "-g -fsanitize=address";
static const char both_flags[] = "-g -fsanitize=address,undefined -fno-sanitize-recover";

Test(cpu_device, AddressSanitizer_sees_past_the_end_of_shared_memory) {
    if (!has_asan()) {
        cr_skip_test("this program is built without AddressSanitizer");
    }
    expect_report(asan_flags,
                  "CJ_KERNEL(convjit_forward, args, a) {\n"
                  "    __shared__ float tile[63];\n"
                  "    volatile float *p = tile;\n"
                  "    p[threadIdx.x] = 1.0F;\n"
                  "    __syncthreads();\n"
                  "    *(float *)a.y = p[0];\n"
                  "}\n",
                  "global-buffer-overflow");
}

Test(cpu_device, AddressSanitizer_sees_past_the_end_of_device_memory) {
    if (!has_asan()) {
        cr_skip_test("this program is built without AddressSanitizer");
    }
    expect_report(asan_flags,
                  "CJ_KERNEL(convjit_forward, args, a) {\n"
                  "    __syncthreads();\n"
                  "    ((float *)a.y)[blockIdx.x * 64 + threadIdx.x] = 1.0F;\n"
                  "}\n",
                  "heap-buffer-overflow");
}

Test(cpu_device, AddressSanitizer_sees_past_the_end_of_dynamic_shared_memory) {
    if (!has_asan()) {
        cr_skip_test("this program is built without AddressSanitizer");
    }
    expect_report(asan_flags,
                  "CJ_KERNEL(convjit_forward, args, a) {\n"
                  "    CJ_DYNAMIC_SHARED(float, tile);\n"
                  "    tile[threadIdx.x + 1] = 1.0F;\n"
                  "}\n",
                  "heap-buffer-overflow");
}

Test(cpu_device, AddressSanitizer_sees_past_the_end_of_locals_after_a_barrier) {
    if (!has_asan()) {
        cr_skip_test("this program is built without AddressSanitizer");
    }
    expect_report(asan_flags,
                  "CJ_KERNEL(convjit_forward, args, a) {\n"
                  "    volatile float local[63];\n"
                  "    __syncthreads();\n"
                  "    local[threadIdx.x] = 1.0F;\n"
                  "}\n",
                  "stack-buffer-overflow");
}

Test(cpu_device, AddressSanitizer_is_content_with_correct_kernels_and_with_failed_ones) {
    if (!has_asan()) {
        cr_skip_test("this program is built without AddressSanitizer");
    }
    setenv("CONVJIT_CXXFLAGS", both_flags, 1);
    expect_failure(FAULTY "volatile int local[100]; local[t] = 1; if (local[t] == 1 && t == 5) return;\n"
                          "__syncthreads(); }\n",
                   64, "convjit_forward failed: block 3 of 5: barrier reached by 63 of 64 threads, 1 have ended");
    check_block_sum(50, 128);
}

Test(cpu_device, a_module_with_AddressSanitizer_is_refused_by_a_program_without) {
    if (has_asan()) {
        cr_skip_test("this program is built with AddressSanitizer");
    }
    setenv("CONVJIT_CXXFLAGS", "-fsanitize=address", 1);
    cj_blob binary = build(block_sum);
    expect_not_loaded(binary.data, binary.size, "built with AddressSanitizer");
    free(binary.data);
}

Test(cpu_device, UBSan_sees_a_misaligned_vector) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) == CONVJIT_SUCCESS && strstr(id, "clang")) {
        cr_skip_test("clang links UBSan's run-time library into programs only");
    }
    expect_report("-fsanitize=undefined -fno-sanitize-recover",
                  "CJ_KERNEL(convjit_forward, args, a) {\n"
                  "    *(float *)a.y = ((const float4 *)((const float *)a.x + 1))->y;\n"
                  "}\n",
                  "misaligned address");
}
