#include <criterion/criterion.h>
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake_nvrtc.h"
#include "nvrtc_library.h"
#include "testing.h"

#define ASSERT_TEXT_HAS(text, part) cr_assert_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text)

static void use_fake(void) {
    setenv("CONVJIT_NVRTC", FAKE_NVRTC_PATH, 1);
}

/* The state of the fake that the library under test has opened. */
static fake_nvrtc_state *fake(void) {
    void *library = dlopen(FAKE_NVRTC_PATH, RTLD_NOW | RTLD_NOLOAD);
    cr_assert_not_null(library);
    return dlsym(library, "fake_nvrtc");
}

static cj_target target_of(const char *name) {
    cj_target target;
    cr_assert_eq(cj_target_parse(name, &target), CONVJIT_SUCCESS);
    return target;
}

static convjit_status compile_for(const char *name, const char *source, cj_blob *binary) {
    const cj_target target = target_of(name);
    *binary = (cj_blob){NULL, 0};
    return cj_nvrtc.compile(&target, source, binary);
}

static const char kernel[] = "extern \"C\" __global__ void convjit_forward(float *y) { y[threadIdx.x] = 1.0f; }\n";

/* ---------------------------------------------------------------- opening */

Test(nvrtc, id_names_the_exact_build, .init = use_fake) {
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_nvrtc.open(id), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_str_eq(id, "nvrtc 13.0.88");
}

Test(nvrtc, id_is_major_and_minor_where_the_build_is_unknown, .init = use_fake) {
    setenv("FAKE_NVRTC_VERSION", "12.4", 1);
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_nvrtc.open(id), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_str_eq(id, "nvrtc 12.4");
}

Test(nvrtc, is_open_tells_and_never_opens, .init = use_fake) {
    char id[CJ_COMPILER_ID_MAX] = "";
    cr_assert_not(cj_nvrtc.is_open(id));
    cr_assert_null(dlopen(FAKE_NVRTC_PATH, RTLD_NOW | RTLD_NOLOAD));
    cr_assert_eq(cj_nvrtc.open(id), CONVJIT_SUCCESS);
    id[0] = '\0';
    cr_assert(cj_nvrtc.is_open(id));
    cr_assert_str_eq(id, "nvrtc 13.0.88");
}

static void assert_open_fails_with(const char *part) {
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_nvrtc.open(id), CONVJIT_NO_COMPILER);
    ASSERT_TEXT_HAS(convjit_last_error(), part);
    cr_assert_not(cj_nvrtc.is_open(id));
}

Test(nvrtc, a_wrong_path_is_an_error_and_no_other_library_is_tried) {
    setenv("CONVJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
    assert_open_fails_with("CONVJIT_NVRTC is \"/nowhere/libnvrtc.so\"");
    ASSERT_TEXT_HAS(convjit_last_error(), "no such file");
}

Test(nvrtc, a_file_that_is_no_library_is_refused_with_the_loaders_reason) {
    setenv("CONVJIT_NVRTC", "tests/test_nvrtc.c", 1);
    assert_open_fails_with("invalid ELF header");
}

Test(nvrtc, a_library_without_a_function_is_refused_and_the_function_named) {
    setenv("CONVJIT_NVRTC", INCOMPLETE_NVRTC_FOLDER "/libnvrtc.so.13", 1);
    assert_open_fails_with("has no function nvrtcGetCUBIN");
}

Test(nvrtc, an_old_version_is_refused, .init = use_fake) {
    setenv("FAKE_NVRTC_VERSION", "11.8.89", 1);
    assert_open_fails_with("version 11.8, older than 12.0");
}

Test(nvrtc, missing_builtins_show_at_open_with_the_log, .init = use_fake) {
    setenv("FAKE_NVRTC_NO_BUILTINS", "1", 1);
    assert_open_fails_with("failed to open libnvrtc-builtins.so");
}

Test(nvrtc, a_failed_open_is_tried_again) {
    setenv("CONVJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
    assert_open_fails_with("/nowhere/libnvrtc.so");
    use_fake();
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_nvrtc.open(id), CONVJIT_SUCCESS, "%s", convjit_last_error());
}

/* Libraries with these sonames, loaded before, are what the loader gives for the searched names: so the machine's own
 * NVRTC, if it has one, is out of the way. */
static void block_names(void) {
    unsetenv("CONVJIT_NVRTC");
    unsetenv("CUDA_PATH");
    cr_assert_not_null(dlopen(INCOMPLETE_NVRTC_FOLDER "/libnvrtc.so.13", RTLD_NOW));
    cr_assert_not_null(dlopen(INCOMPLETE_NVRTC_FOLDER "/libnvrtc.so.12", RTLD_NOW));
    cr_assert_not_null(dlopen(INCOMPLETE_NVRTC_FOLDER "/libnvrtc.so", RTLD_NOW));
}

static void assert_variable_leads_to_the_fake(const char *variable) {
    char folder[TESTING_PATH_MAX];
    char path[TESTING_PATH_MAX + 32];
    cr_assert(testing_folder_make(folder));
    snprintf(path, sizeof path, "%s/lib64", folder);
    cr_assert_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/lib64/libnvrtc.so.12", folder);
    cr_assert_eq(symlink(FAKE_NVRTC_PATH, path), 0);
    setenv(variable, folder, 1);
    const cj_nvrtc_library *library;
    const convjit_status status = cj_nvrtc_library_open(&library);
    testing_folder_remove(folder);
    cr_assert_eq(status, CONVJIT_SUCCESS, "%s", convjit_last_error());
    char real[PATH_MAX];
    cr_assert_not_null(realpath(FAKE_NVRTC_PATH, real));
    cr_assert_str_eq(library->path, real);
}

Test(nvrtc, names_that_do_not_work_lead_on_to_cuda_home, .init = block_names) {
    assert_variable_leads_to_the_fake("CUDA_HOME");
}

Test(nvrtc, without_cuda_home_cuda_path_is_searched, .init = block_names) {
    unsetenv("CUDA_HOME");
    assert_variable_leads_to_the_fake("CUDA_PATH");
}

/* ---------------------------------------------------------------- options */

Test(nvrtc, options_are_known_without_opening_and_name_the_exact_target) {
    const cj_target target = target_of("sm_90a");
    cj_text options = {0};
    cj_nvrtc.options(&target, &options);
    cr_assert_str_eq(options.data,
                     "--gpu-architecture=sm_90a\n--std=c++17\n--device-as-default-execution-space\n"
                     "--no-source-include\n--ftz=false\n--prec-div=true\n--prec-sqrt=true\n--fmad=true\n");
    cj_text_free(&options);
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_not(cj_nvrtc.is_open(id));
}

static void assert_compiled_with(const char *more) {
    const cj_target target = target_of("sm_80");
    cj_text wanted = {0};
    cj_nvrtc.options(&target, &wanted);
    cj_text_printf(&wanted, "%s", more);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_80", kernel, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_str_eq(fake()->options, wanted.data);
    cj_text_free(&wanted);
    free(binary.data);
}

Test(nvrtc, the_options_of_the_key_are_those_of_the_compile, .init = use_fake) {
    assert_compiled_with("--ptxas-options=-v\n--no-cache\n");
}

Test(nvrtc, no_cache_is_kept_from_versions_that_do_not_know_it, .init = use_fake) {
    setenv("FAKE_NVRTC_VERSION", "12.8.61", 1);
    assert_compiled_with("--ptxas-options=-v\n");
}

Test(nvrtc, no_cache_is_given_from_12_9_on, .init = use_fake) {
    setenv("FAKE_NVRTC_VERSION", "12.9.41", 1);
    assert_compiled_with("--ptxas-options=-v\n--no-cache\n");
}

/* ---------------------------------------------------------------- compiling */

Test(nvrtc, a_known_target_gives_a_cubin, .init = use_fake) {
    cj_blob binary;
    cr_assert_eq(compile_for("sm_90a", kernel, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_assert_geq(binary.size, sizeof(Elf64_Ehdr));
    cr_assert_arr_eq(binary.data, ELFMAG, SELFMAG);
    cr_assert_str_eq(cj_nvrtc_last_log(), "");
    free(binary.data);
}

Test(nvrtc, a_compile_without_nvrtc_is_no_compiler) {
    setenv("CONVJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_90a", kernel, &binary), CONVJIT_NO_COMPILER);
}

Test(nvrtc, a_compile_error_shows_target_version_and_the_whole_log, .init = use_fake) {
    setenv("FAKE_NVRTC_FAIL", "convjit.cu(7): error: identifier \"q\" is undefined\nline two\n", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_80", kernel, &binary), CONVJIT_COMPILE_FAILED);
    cr_assert_null(binary.data);
    ASSERT_TEXT_HAS(convjit_last_error(), "compile failed for sm_80: NVRTC 13.0.88 says NVRTC_ERROR_COMPILATION");
    ASSERT_TEXT_HAS(convjit_last_error(), "convjit.cu(7): error: identifier \"q\" is undefined\nline two");
    ASSERT_TEXT_HAS(cj_nvrtc_last_log(), "identifier \"q\"");
}

Test(nvrtc, memory_used_up_in_the_compiler_is_out_of_memory, .init = use_fake) {
    setenv("FAKE_NVRTC_FAIL", "", 1);
    setenv("FAKE_NVRTC_RESULT", "1", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_80", kernel, &binary), CONVJIT_OUT_OF_MEMORY);
    ASSERT_TEXT_HAS(convjit_last_error(), "NVRTC_ERROR_OUT_OF_MEMORY");
    ASSERT_TEXT_HAS(convjit_last_error(), "(no log)");
}

Test(nvrtc, warnings_of_a_good_compile_are_kept_until_the_next, .init = use_fake) {
    setenv("FAKE_NVRTC_WARN", "ptxas info : (C7510) wgmma serialized\n", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_90a", kernel, &binary), CONVJIT_SUCCESS);
    free(binary.data);
    cr_assert_str_eq(cj_nvrtc_last_log(), "ptxas info : (C7510) wgmma serialized\n");
    unsetenv("FAKE_NVRTC_WARN");
    cr_assert_eq(compile_for("sm_90a", kernel, &binary), CONVJIT_SUCCESS);
    free(binary.data);
    cr_assert_str_eq(cj_nvrtc_last_log(), "");
}

Test(nvrtc, a_plain_target_newer_than_nvrtc_gets_ptx_of_the_nearest_older_one, .init = use_fake) {
    setenv("FAKE_NVRTC_ARCHS", "75 80 90 100", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_120", kernel, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    const char *text = binary.data;
    cr_assert_eq(memchr(text, '\0', binary.size), text + binary.size - 1, "the PTX ends with its only NUL");
    ASSERT_TEXT_HAS(text, ".target sm_100\n");
    ASSERT_TEXT_HAS(cj_nvrtc_last_log(), "does not know sm_120");
    ASSERT_TEXT_HAS(cj_nvrtc_last_log(), "compute_100");
    free(binary.data);
}

Test(nvrtc, a_feature_target_newer_than_nvrtc_is_refused_with_version_and_targets, .init = use_fake) {
    setenv("FAKE_NVRTC_ARCHS", "75 80 90", 1);
    cj_blob binary;
    cr_assert_eq(compile_for("sm_120a", kernel, &binary), CONVJIT_COMPILE_FAILED);
    ASSERT_TEXT_HAS(convjit_last_error(), "sm_120a: NVRTC 13.0.88 does not know this target, only sm_75 sm_80 sm_90");
    cr_assert_eq(fake()->compiles, 0);
}

Test(nvrtc, a_target_older_than_all_of_nvrtc_is_refused, .init = use_fake) {
    cj_blob binary;
    cr_assert_eq(compile_for("sm_70", kernel, &binary), CONVJIT_COMPILE_FAILED);
    ASSERT_TEXT_HAS(convjit_last_error(), "use an older NVRTC");
}

/* ---------------------------------------------------------------- threads */

typedef struct job {
    pthread_t thread;
    const char *target;
    convjit_status status;
    cj_blob binary;
    char log[64];
} job;

static void *run_job(void *argument) {
    job *const mine = argument;
    mine->status = compile_for(mine->target, kernel, &mine->binary);
    snprintf(mine->log, sizeof mine->log, "%s", cj_nvrtc_last_log());
    return NULL;
}

Test(nvrtc, two_threads_compile_at_the_same_time_with_logs_of_their_own, .init = use_fake) {
    setenv("FAKE_NVRTC_DELAY_MS", "400", 1);
    setenv("FAKE_NVRTC_ARCHS", "75 80", 1);
    job jobs[] = {{.target = "sm_80"}, {.target = "sm_90"}};
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(jobs[i].thread, NULL);
        cr_assert_eq(jobs[i].status, CONVJIT_SUCCESS);
        free(jobs[i].binary.data);
    }
    cr_assert_eq(fake()->compiles, 2);
    cr_assert_eq(fake()->most_running, 2);
    cr_assert_str_eq(jobs[0].log, "");
    ASSERT_TEXT_HAS(jobs[1].log, "sm_90");
    cr_assert_str_eq(cj_nvrtc_last_log(), "", "this thread compiled nothing");
}

/* ---------------------------------------------------------------- the real NVRTC */

static void need_real_nvrtc(void) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_nvrtc.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("%s", convjit_last_error());
    }
}

static void assert_real_cubin(const char *target) {
    cj_blob binary;
    cr_assert_eq(compile_for(target, kernel, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    Elf64_Ehdr header;
    cr_assert_geq(binary.size, sizeof header);
    memcpy(&header, binary.data, sizeof header);
    cr_assert_arr_eq(header.e_ident, ELFMAG, SELFMAG);
    cr_assert_eq(header.e_machine, EM_CUDA);
    ASSERT_TEXT_HAS(cj_nvrtc_last_log(), target);
    ASSERT_TEXT_HAS(cj_nvrtc_last_log(), "0 bytes spill stores");
    free(binary.data);
}

Test(real_nvrtc, compiles_for_sm_75_to_sm_120_without_a_gpu) {
    need_real_nvrtc();
    const cj_nvrtc_library *library = cj_nvrtc_library_opened();
    static const struct {
        int capability;
        const char *name;
    } targets[] = {{75, "sm_75"}, {80, "sm_80"}, {90, "sm_90a"}, {120, "sm_120"}};
    int compiled = 0;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        for (int k = 0; k < library->arch_count; k++) {
            if (library->archs[k] == targets[i].capability) {
                assert_real_cubin(targets[i].name);
                compiled++;
            }
        }
    }
    cr_assert_geq(compiled, 3, "NVRTC %s knows only %d of the targets", library->build, compiled);
}

Test(real_nvrtc, has_a_build_number) {
    need_real_nvrtc();
    char id[CJ_COMPILER_ID_MAX];
    int major, minor, build;
    cr_assert(cj_nvrtc.is_open(id));
    cr_assert_eq(sscanf(id, "nvrtc %d.%d.%d", &major, &minor, &build), 3, "%s", id);
}

Test(real_nvrtc, shows_the_log_of_a_compile_error) {
    need_real_nvrtc();
    cj_blob binary;
    cr_assert_eq(compile_for("sm_80", "__global__ void f(float *y) { y[0] = q; }\n", &binary), CONVJIT_COMPILE_FAILED);
    ASSERT_TEXT_HAS(convjit_last_error(), "convjit.cu(1): error: identifier \"q\" is undefined");
}

Test(real_nvrtc, ignores_files_of_the_working_directory) {
    need_real_nvrtc();
    cj_blob binary;
    cr_assert_eq(compile_for("sm_80", "#include \"include/convjit.h\"\n", &binary), CONVJIT_COMPILE_FAILED);
    ASSERT_TEXT_HAS(convjit_last_error(), "include/convjit.h");
}
