#include <criterion/criterion.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "fake_driver.h"
#include "kernel_src/args.h"
#include "target.h"

#define ASSERT_TEXT_HAS(text, part) cr_assert_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text)

static void use_fake(void) {
    setenv("CONVJIT_DRIVER", FAKE_DRIVER_PATH, 1);
}

/* The state of the fake that the library under test has opened. */
static fake_driver_state *fake(void) {
    void *library = dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(library);
    return dlsym(library, "fake_driver");
}

static void *open_device(void) {
    cj_target target;
    void *opened = NULL;
    cr_assert_eq(cj_cuda_device.open(&target, &opened), CONVJIT_SUCCESS, "%s", convjit_last_error());
    return opened;
}

/* ---------------------------------------------------------------- opening */

static void assert_open_fails(convjit_status status, const char *part) {
    const cj_driver_api *api;
    cr_assert_eq(cj_driver_open(&api), status, "%s", convjit_last_error());
    cr_assert_null(api);
    ASSERT_TEXT_HAS(convjit_last_error(), part);
}

Test(driver, version_and_path_are_reported, .init = use_fake) {
    setenv("FAKE_DRIVER_VERSION", "12040", 1);
    const cj_driver_api *api;
    cr_assert_eq(cj_driver_open(&api), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_eq(api->version, 12040);
    char real[PATH_MAX];
    cr_assert_not_null(realpath(FAKE_DRIVER_PATH, real));
    cr_assert_str_eq(api->path, real);
}

Test(driver, a_wrong_path_is_no_driver_and_no_other_is_tried) {
    setenv("CONVJIT_DRIVER", "/nowhere/libcuda.so.1", 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "CONVJIT_DRIVER is \"/nowhere/libcuda.so.1\"");
}

Test(driver, a_file_that_is_no_library_is_refused_with_the_loaders_reason) {
    setenv("CONVJIT_DRIVER", "tests/test_driver.c", 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "invalid ELF header");
}

Test(driver, a_machine_without_driver_is_told_what_to_do) {
    unsetenv("CONVJIT_DRIVER");
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real != NULL || (real = dlopen("libcuda.so", RTLD_NOW)) != NULL) {
        dlclose(real);
        cr_skip_test("this machine has a CUDA driver");
    }
    assert_open_fails(CONVJIT_NO_DRIVER, "install the NVIDIA driver or set CONVJIT_DRIVER");
}

Test(driver, a_library_without_a_function_is_refused_and_the_function_named) {
    setenv("CONVJIT_DRIVER", INCOMPLETE_DRIVER_PATH, 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "has no function cuLaunchKernel");
}

Test(driver, an_old_driver_is_refused_with_both_versions, .init = use_fake) {
    setenv("FAKE_DRIVER_VERSION", "11080", 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "is for CUDA 11.8, must be for 12.0 or later");
}

Test(driver, the_age_of_an_old_driver_is_named_before_what_it_lacks) {
    setenv("CONVJIT_DRIVER", INCOMPLETE_DRIVER_PATH, 1);
    setenv("FAKE_DRIVER_VERSION", "11080", 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "is for CUDA 11.8");
}

Test(driver, a_machine_without_device_is_no_device, .init = use_fake) {
    setenv("FAKE_DRIVER_INIT", "100", 1);
    assert_open_fails(CONVJIT_NO_DEVICE, "CUDA_ERROR_NO_DEVICE (100), no CUDA-capable device is detected");
}

Test(driver, a_driver_that_does_not_start_is_no_driver, .init = use_fake) {
    setenv("FAKE_DRIVER_INIT", "803", 1);
    assert_open_fails(CONVJIT_NO_DRIVER, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
}

Test(driver, a_failed_open_is_tried_again, .init = use_fake) {
    setenv("FAKE_DRIVER_INIT", "100", 1);
    assert_open_fails(CONVJIT_NO_DEVICE, "starting the CUDA driver failed");
    unsetenv("FAKE_DRIVER_INIT");
    open_device();
}

/* ---------------------------------------------------------------- the device */

Test(driver, without_a_current_context_the_text_says_how_to_get_one, .init = use_fake) {
    setenv("FAKE_DRIVER_CONTEXT", "none", 1);
    cj_target target;
    void *opened = NULL;
    cr_assert_eq(cj_cuda_device.open(&target, &opened), CONVJIT_NO_DEVICE);
    ASSERT_TEXT_HAS(convjit_last_error(), "no CUDA context is current in this thread");
    ASSERT_TEXT_HAS(convjit_last_error(), "cuCtxSetCurrent");
}

Test(driver, the_target_is_the_richest_of_the_device, .init = use_fake) {
    static const struct {
        const char *capability, *name;
        bool has_features;
    } cases[] = {{"7.5", "sm_75", false},   {"8.0", "sm_80", false},   {"8.9", "sm_89", false},
                 {"9.0", "sm_90a", true},   {"10.0", "sm_100a", true}, {"10.3", "sm_103a", true},
                 {"12.0", "sm_120a", true}, {"12.1", "sm_121a", true}, {"14.3", "sm_143", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv("FAKE_DRIVER_CAPABILITY", cases[i].capability, 1);
        cj_target target;
        void *opened = NULL;
        cr_assert_eq(cj_cuda_device.open(&target, &opened), CONVJIT_SUCCESS);
        cr_assert_str_eq(target.name, cases[i].name);
        cr_assert_eq(target.kind, CJ_TARGET_CUDA);
        cr_assert_eq(target.has_features, cases[i].has_features);
        cr_assert_eq(target.capability, (int)(strtod(cases[i].capability, NULL) * 10 + 0.5));
    }
}

Test(driver, only_the_context_of_open_counts_as_current, .init = use_fake) {
    void *opened = open_device();
    const cj_driver_api *api;
    cj_driver_open(&api);
    cr_assert_eq(cj_cuda_device.check_current(opened), CONVJIT_SUCCESS);
    int other;
    api->cuCtxSetCurrent((CUcontext)(void *)&other);
    cr_assert_eq(cj_cuda_device.check_current(opened), CONVJIT_NO_DEVICE);
    ASSERT_TEXT_HAS(convjit_last_error(), "another one is");
    api->cuCtxSetCurrent(NULL);
    cr_assert_eq(cj_cuda_device.check_current(opened), CONVJIT_NO_DEVICE);
    ASSERT_TEXT_HAS(convjit_last_error(), "none is");
}

/* ---------------------------------------------------------------- loading */

/* As NVIDIA's own: a header, some bytes, and the section header table at the end. */
typedef struct small_cubin {
    Elf64_Ehdr header;
    unsigned char code[40];
    Elf64_Shdr sections[2];
} small_cubin;

static small_cubin make_cubin(void) {
    return (small_cubin){
        .header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
                   .e_machine = EM_CUDA,
                   .e_shoff = offsetof(small_cubin, sections),
                   .e_shentsize = sizeof(Elf64_Shdr),
                   .e_shnum = 2}};
}

static const char ptx[] = "//\n.version 8.0\n.target sm_75\n.address_size 64\n";

static cj_module *load(uint32_t shared_bytes) {
    const small_cubin cubin = make_cubin();
    cj_module *module = NULL;
    open_device();
    cr_assert_eq(cj_cuda_device.load(&cubin, sizeof cubin, shared_bytes, &module), CONVJIT_SUCCESS, "%s",
                 convjit_last_error());
    cr_assert_not_null(module);
    return module;
}

static void assert_load_fails(const void *data, size_t size, convjit_status status, const char *part) {
    cj_module *module = NULL;
    cr_assert_eq(cj_cuda_device.load(data, size, 0, &module), status, "%s", convjit_last_error());
    cr_assert_null(module);
    ASSERT_TEXT_HAS(convjit_last_error(), part);
}

Test(driver, a_cubin_loads_with_both_kernels_and_unloads, .init = use_fake) {
    cj_module *module = load(0);
    cr_assert_eq(fake()->loads, 1);
    cr_assert_eq(fake()->unloads, 0);
    cj_cuda_device.unload(module);
    cr_assert_eq(fake()->unloads, 1);
    cj_cuda_device.unload(NULL);
    cr_assert_eq(fake()->unloads, 1);
}

Test(driver, ptx_loads, .init = use_fake) {
    open_device();
    cj_module *module = NULL;
    cr_assert_eq(cj_cuda_device.load(ptx, sizeof ptx, 0, &module), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cj_cuda_device.unload(module);
}

Test(driver, what_is_no_whole_binary_never_reaches_the_driver, .init = use_fake) {
    open_device();
    const small_cubin cubin = make_cubin();
    small_cubin other = cubin;
    other.header.e_machine = EM_X86_64;
    small_cubin far = cubin;
    far.header.e_phoff = UINT64_MAX - 8;
    far.header.e_phnum = 1;
    far.header.e_phentsize = sizeof(Elf64_Phdr);
    const int calls = fake()->calls;
    assert_load_fails(NULL, 0, CONVJIT_LOAD_FAILED, "0 bytes, empty");
    assert_load_fails("hello", sizeof "hello", CONVJIT_LOAD_FAILED, "neither a cubin nor PTX");
    assert_load_fails(ptx, sizeof ptx - 1, CONVJIT_LOAD_FAILED, "whole PTX text");
    assert_load_fails("\0.version .target", 18, CONVJIT_LOAD_FAILED, "whole PTX text");
    assert_load_fails(&other, sizeof other, CONVJIT_LOAD_FAILED, "not of the machine CUDA");
    assert_load_fails(&far, sizeof far, CONVJIT_LOAD_FAILED, "truncated ELF file");
    cr_assert_eq(fake()->calls, calls);
}

Test(driver, a_cubin_cut_at_any_length_never_reaches_the_driver, .init = use_fake) {
    open_device();
    const small_cubin cubin = make_cubin();
    const int calls = fake()->calls;
    for (size_t size = 0; size < sizeof cubin; size++) {
        void *cut = malloc(size > 0 ? size : 1); /* exactly so long: a read past it shows under AddressSanitizer */
        memcpy(cut, &cubin, size);
        assert_load_fails(cut, size, CONVJIT_LOAD_FAILED, "loading a binary failed");
        free(cut);
    }
    cr_assert_eq(fake()->calls, calls);
}

Test(driver, a_refused_binary_shows_the_drivers_words_and_log, .init = use_fake) {
    open_device();
    setenv("FAKE_DRIVER_LOAD", "200", 1);
    setenv("FAKE_DRIVER_LOAD_LOG", "ptxas fatal : Unsupported .version 9.9", 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_LOAD_FAILED, "CUDA_ERROR_INVALID_IMAGE (200), device kernel image");
    ASSERT_TEXT_HAS(convjit_last_error(), "driver for CUDA 13.0");
    ASSERT_TEXT_HAS(convjit_last_error(), "\nptxas fatal : Unsupported .version 9.9");
}

Test(driver, a_binary_without_a_kernel_is_refused_and_unloaded, .init = use_fake) {
    open_device();
    setenv("FAKE_DRIVER_WITHOUT", CJ_PACK_NAME, 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_LOAD_FAILED, CJ_PACK_NAME);
    cr_assert_eq(fake()->loads, 1);
    cr_assert_eq(fake()->unloads, 1);
}

/* A LOAD_FAILED has the binary rebuilt, so it must not stand for what is not the binary's fault. */
Test(driver, errors_that_are_not_the_binarys_have_other_statuses, .init = use_fake) {
    open_device();
    setenv("FAKE_DRIVER_LOAD", "2", 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_OUT_OF_MEMORY, "out of memory");
    setenv("FAKE_DRIVER_LOAD", "700", 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_LAUNCH_FAILED, "an earlier error of this CUDA context");
    setenv("FAKE_DRIVER_LOAD", "900", 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_INVALID_ARGUMENT, "while a stream is being captured");
    setenv("FAKE_DRIVER_LOAD", "201", 1);
    assert_load_fails(ptx, sizeof ptx, CONVJIT_NO_DEVICE, "make the CUDA context of convjit_open current");
}

Test(driver, shared_memory_is_asked_for_only_above_48_kib, .init = use_fake) {
    cj_module *module = load(49152);
    cr_assert_eq(fake()->max_shared, 0);
    cj_cuda_device.unload(module);
    module = load(49153);
    cr_assert_eq(fake()->max_shared, 49153);
    cj_cuda_device.unload(module);
}

Test(driver, more_shared_memory_than_the_device_has_is_refused_with_the_number, .init = use_fake) {
    open_device();
    setenv("FAKE_DRIVER_ATTRIBUTE", "1", 1);
    cj_module *module = NULL;
    cr_assert_eq(cj_cuda_device.load(ptx, sizeof ptx, 300000, &module), CONVJIT_LOAD_FAILED);
    ASSERT_TEXT_HAS(convjit_last_error(), "300000 bytes of dynamic shared memory");
    cr_assert_eq(fake()->unloads, 1);
}

/* ---------------------------------------------------------------- launching */

Test(driver, a_launch_is_one_driver_call_with_the_args_by_value, .init = use_fake) {
    cj_module *module = load(0);
    cj_forward_args args = {.batch = 3, .tiles = 77, .y_aligned = 1};
    int stream;
    const cj_launch launch = {
        .entry = CJ_FORWARD, .blocks = 2147483647U, .threads = 256, .shared_bytes = 1024, .args = &args};
    const int calls = fake()->calls;
    cr_assert_eq(cj_cuda_device.launch(module, &launch, (convjit_stream)(void *)&stream), CONVJIT_SUCCESS);
    cr_assert_eq(fake()->calls, calls + 1);
    cr_assert_eq(fake()->launches, 1);
    cr_assert_str_eq(fake()->kernel, CJ_FORWARD_NAME);
    cr_assert_arr_eq(fake()->grid, ((unsigned int[]){2147483647U, 1, 1}), sizeof fake()->grid);
    cr_assert_arr_eq(fake()->block, ((unsigned int[]){256, 1, 1}), sizeof fake()->block);
    cr_assert_eq(fake()->shared, 1024);
    cr_assert_eq(fake()->stream, &stream);
    cr_assert_arr_eq(fake()->args, &args, sizeof args);
    cj_cuda_device.unload(module);
}

Test(driver, the_packing_kernel_is_launched_by_its_own_entry, .init = use_fake) {
    cj_module *module = load(0);
    cj_pack_args args = {.work = 12345};
    const cj_launch launch = {.entry = CJ_PACK, .blocks = 1, .threads = 32, .args = &args};
    cr_assert_eq(cj_cuda_device.launch(module, &launch, NULL), CONVJIT_SUCCESS);
    cr_assert_str_eq(fake()->kernel, CJ_PACK_NAME);
    cr_assert_null(fake()->stream);
    cr_assert_arr_eq(fake()->args, &args, sizeof args);
    cj_cuda_device.unload(module);
}

static void assert_launch_fails(const char *result, convjit_status status, const char *part) {
    cj_module *module = load(0);
    cj_forward_args args = {.batch = 1};
    const cj_launch launch = {.entry = CJ_FORWARD, .blocks = 8, .threads = 128, .shared_bytes = 64, .args = &args};
    setenv("FAKE_DRIVER_LAUNCH", result, 1);
    cr_assert_eq(cj_cuda_device.launch(module, &launch, NULL), status);
    ASSERT_TEXT_HAS(convjit_last_error(), part);
    cj_cuda_device.unload(module);
}

Test(driver, a_refused_launch_names_kernel_shape_and_error, .init = use_fake) {
    assert_launch_fails(
        "1", CONVJIT_LAUNCH_FAILED,
        "launching convjit_forward (8 blocks of 128 threads, 64 bytes of dynamic shared memory) failed: "
        "CUDA_ERROR_INVALID_VALUE (1), invalid argument");
}

Test(driver, an_error_left_by_an_earlier_kernel_is_called_that, .init = use_fake) {
    assert_launch_fails("700", CONVJIT_LAUNCH_FAILED, "an earlier error of this CUDA context");
}

Test(driver, an_error_the_driver_does_not_know_keeps_its_number, .init = use_fake) {
    assert_launch_fails("4711", CONVJIT_LAUNCH_FAILED, "an unknown error (4711)");
}

/* ---------------------------------------------------------------- memory */

Test(driver, memory_is_aligned_and_given_back, .init = use_fake) {
    open_device();
    void *memory = NULL;
    cr_assert_eq(cj_cuda_device.allocate(1000, &memory), CONVJIT_SUCCESS);
    cr_assert_not_null(memory);
    cr_assert_eq((uintptr_t)memory % 256, 0);
    cj_cuda_device.release(memory);
    cj_cuda_device.release(NULL);
    cr_assert_eq(fake()->allocations, 1);
    cr_assert_eq(fake()->frees, 1);
}

Test(driver, no_memory_is_out_of_memory_with_the_number_of_bytes, .init = use_fake) {
    open_device();
    setenv("FAKE_DRIVER_ALLOCATE", "2", 1);
    void *memory = &memory;
    cr_assert_eq(cj_cuda_device.allocate(123456, &memory), CONVJIT_OUT_OF_MEMORY);
    cr_assert_null(memory);
    ASSERT_TEXT_HAS(convjit_last_error(), "allocating 123456 bytes of device memory failed");
}

/* ---------------------------------------------------------------- real cubins */

Test(driver, a_real_cubin_is_taken_and_a_cut_one_refused, .init = use_fake) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_nvrtc.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("%s", convjit_last_error());
    }
    open_device();
    static const char *const names[] = {"sm_80", "sm_90a", "sm_90"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cj_target target;
        cj_blob cubin;
        cj_module *module = NULL;
        cr_assert_eq(cj_target_parse(names[i], &target), CONVJIT_SUCCESS);
        cr_assert_eq(cj_nvrtc.compile(&target, "extern \"C\" __global__ void f(int *y) { *y = 1; }\n", &cubin),
                     CONVJIT_SUCCESS, "%s", convjit_last_error());
        cr_assert_eq(cj_cuda_device.load(cubin.data, cubin.size, 0, &module), CONVJIT_SUCCESS, "%s",
                     convjit_last_error());
        cj_cuda_device.unload(module);
        for (size_t cut = 1; cut <= cubin.size; cut++) {
            cr_assert_eq(cj_cuda_device.load(cubin.data, cubin.size - cut, 0, &module), CONVJIT_LOAD_FAILED);
        }
        free(cubin.data);
    }
}
