/* cpu_kernels.h - builds and launches kernels that the tests of the target cpu give as source. */
#ifndef CPU_KERNELS_H
#define CPU_KERNELS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convjit.h"
#include "embedded.h"
#include "target.h"

static const cj_target cpu = {.kind = CJ_TARGET_CPU, .name = "cpu"};

/* What the kernels are given. */
typedef struct args {
    const void *x;
    void *y;
    long long n;
} args;
#define ARGS "struct args { const void *x; void *y; long long n; };\n"
#define EMPTY_PACK "CJ_KERNEL(convjit_pack, args, a) { (void)a; }\n"

static inline const char *words(void) {
    for (const cj_embedded_file *file = cj_embedded_files; file->name; ++file) {
        if (strcmp(file->name, "cpu/words.cuh") == 0) {
            return file->text;
        }
    }
    cr_assert_fail("cpu/words.cuh is not embedded");
    return NULL;
}

/* Compiles `forward`, the text of convjit_forward and what it needs. Skips the test where there is no compiler. */
static inline cj_blob build(const char *forward) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("no host C++ compiler");
    }
    cj_text source = {0};
    cj_text_printf(&source, "%s\n" ARGS "#line 1 \"kernel.cu\"\n%s\n" EMPTY_PACK, words(), forward);
    cr_assert_not(source.failed);
    cj_blob binary = {NULL, 0};
    cr_assert_eq(cj_cpu_compiler.compile(&cpu, source.data, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cj_text_free(&source);
    return binary;
}

static inline cj_module *load(const char *forward) {
    cj_blob binary = build(forward);
    cj_module *module = NULL;
    cr_assert_eq(cj_cpu_device.load(binary.data, binary.size, 0, &module), CONVJIT_SUCCESS, "%s", convjit_last_error());
    free(binary.data);
    return module;
}

static inline convjit_status launch(cj_module *module, uint32_t blocks, uint32_t threads, const void *x, void *y) {
    const args a = {x, y, threads};
    return cj_cpu_device.launch(
        module, &(cj_launch){.entry = CJ_FORWARD, .blocks = blocks, .threads = threads, .args = &a}, NULL);
}

static inline void run(const char *forward, uint32_t blocks, uint32_t threads, const void *x, void *y) {
    cj_module *module = load(forward);
    cr_assert_eq(launch(module, blocks, threads, x, y), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cj_cpu_device.unload(module);
}

/* The launch fails with these words, and the module can be used again. */
static inline void expect_failure(const char *forward, uint32_t threads, const char *expected) {
    cj_module *module = load(forward);
    for (int again = 0; again < 2; ++again) {
        long long fine = 0;
        cr_expect_eq(launch(module, 5, threads, &fine, NULL), CONVJIT_LAUNCH_FAILED);
        cr_expect_str_eq(convjit_last_error(), expected);
        fine = 1;
        cr_expect_eq(launch(module, 5, threads, &fine, NULL), CONVJIT_SUCCESS, "%s", convjit_last_error());
    }
    cj_cpu_device.unload(module);
}
/* Head of a kernel for expect_failure: nothing happens if *x is 1, nor before block 3. */
#define FAULTY                                                          \
    "CJ_KERNEL(convjit_forward, args, a) {\n"                           \
    "    if (*(const long long *)a.x != 0 || blockIdx.x < 3) return;\n" \
    "    const unsigned t = threadIdx.x; (void)t;\n"

/* Sums the blocks of x into y; at most 1024 threads. */
static const char block_sum[] = "CJ_KERNEL(convjit_forward, args, a) {\n"
                                "    __shared__ float sums[1024];\n"
                                "    const unsigned t = threadIdx.x;\n"
                                "    sums[t] = ((const float *)a.x)[blockIdx.x * blockDim.x + t];\n"
                                "    __syncthreads();\n"
                                "    for (unsigned d = blockDim.x / 2; d > 0; d /= 2) {\n"
                                "        if (t < d) sums[t] += sums[t + d];\n"
                                "        __syncthreads();\n"
                                "    }\n"
                                "    if (t == 0) ((float *)a.y)[blockIdx.x] = sums[0];\n"
                                "}\n";

static inline void check_block_sum(uint32_t blocks, uint32_t threads) {
    float *x = malloc(blocks * threads * sizeof(float)), *y = calloc(blocks, sizeof(float));
    cr_assert(x && y);
    for (uint32_t i = 0; i < blocks * threads; ++i) {
        x[i] = (float)(i % 1009);
    }
    run(block_sum, blocks, threads, x, y);
    for (uint32_t b = 0; b < blocks; ++b) {
        float sum = 0.0F;
        for (uint32_t t = 0; t < threads; ++t) {
            sum += x[b * threads + t];
        }
        cr_assert_float_eq(y[b], sum, 0.0F, "block %u: %g, want %g", b, (double)y[b], (double)sum);
    }
    free(x);
    free(y);
}

#endif
