/* test_layer_cache.c - where the kernels of layers come from, and how long they stay: the compiler, the cache, memory,
 * a device that refuses one. */
#include "layer_fixture.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>

TestSuite(layer_cache, .init = enter_layer, .fini = leave);

static const char small[] = "conv2d c2 k8 in5x6 f3x3 s1 p1 f32 nchw fp32"; /* in full, as format writes it */
static const char other[] = "conv2d c2 k8 in5x7 f3x3 p1";

/* ---------------------------------------------------------------- where kernels come from */

Test(layer_cache, a_device_holds_its_kernels_until_the_context_closes) {
    convjit_context *context = open_for(NULL);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_layer_destroy(create_from(context, small, "memory"));
    convjit_layer_destroy(create_from(context, other, "compiler"));
    expect_counts(context, (convjit_counters){.memory_hits = 1, .misses = 2, .compiles = 2});
    cr_expect_geq(convjit_get_counters(context).compile_ms, 0.0);
    convjit_close(context);
    context = open_for(NULL);
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_layer_destroy(create_from(context, small, "memory"));
    expect_counts(context, (convjit_counters){.memory_hits = 1, .disk_hits = 1});
    convjit_close(context);
    cr_expect_eq(nvrtc_state()->compiles, 2);
}

Test(layer_cache, a_context_that_only_builds_holds_nothing) {
    convjit_context *context = open_for("sm_80");
    convjit_layer *layer = create_from(context, small, "compiler");
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_layer_destroy(layer);
    expect_counts(context, (convjit_counters){.disk_hits = 1, .misses = 1, .compiles = 1});
    convjit_close(context);
    cr_expect_null(dlopen(FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD));
}

Test(layer_cache, every_target_has_entries_of_its_own) {
    static const char *const targets[] = {"sm_80", "sm_90", "sm_90a"};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        convjit_context *context = open_for(targets[i]);
        convjit_layer_destroy(create_from(context, small, "compiler"));
        convjit_close(context);
    }
    convjit_context *context = open_for(NULL); /* the fake device is an sm_90a */
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_close(context);
}

Test(layer_cache, a_cache_that_cannot_be_written_fails_no_create) {
    write_file(below("file"), "no directory");
    convjit_options options = options_for(NULL);
    options.cache_directory = below("file/cache");
    convjit_context *context = NULL;
    ASSERT_OK(convjit_open(&options, &context));
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_layer_destroy(create_from(context, other, "compiler"));
    expect_counts(context, (convjit_counters){.misses = 2, .compiles = 2, .store_failures = 2});
    convjit_close(context);
    cr_expect_eq(line_count, 3); /* one for each layer, and the failure is said once */
    cr_expect_not_null(strstr(lines[0], "cache: binary not stored: "), "%s", lines[0]);
}

Test(layer_cache, layers_with_the_same_source_share_one_module) {
    convjit_context *context = open_for(NULL);
    convjit_layer *first = create(context, small), *second = create(context, small), *third = create(context, other);
    cr_expect_eq(driver_state()->loads, 2);
    convjit_layer_destroy(first);
    convjit_layer_destroy(second);
    convjit_layer_destroy(third);
    cr_expect_eq(driver_state()->unloads, 0); /* illegal while another thread captures */
    convjit_close(context);
    cr_expect_eq(driver_state()->unloads, 2);
}

Test(layer_cache, contexts_load_modules_of_their_own) {
    convjit_context *first = open_for(NULL), *second = open_for(NULL);
    convjit_layer *a = create_from(first, small, "compiler"), *b = create_from(second, small, "memory");
    cr_expect_eq(driver_state()->loads, 2);
    convjit_layer_destroy(a);
    convjit_close(first);
    cr_expect_eq(driver_state()->unloads, 1);
    convjit_layer_destroy(b);
    convjit_close(second);
    cr_expect_eq(driver_state()->unloads, 2);
}

Test(layer_cache, a_warm_cache_needs_no_compiler) {
    create_in_a_child(NULL, small);
    setenv("CONVJIT_NVRTC", "/nowhere/libnvrtc.so", 1);
    convjit_context *context = open_for(NULL);
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, other, &layer), CONVJIT_NO_COMPILER, "/nowhere/libnvrtc.so");
    cr_expect_null(layer);
    expect_counts(context, (convjit_counters){.disk_hits = 1, .misses = 1});
    convjit_close(context);
}

Test(layer_cache, a_home_that_cannot_be_written_is_said_and_the_temporary_directory_taken) {
    convjit_options options = options_for(NULL);
    convjit_context *context = NULL;
    options.cache_directory = NULL;
    setenv("HOME", below("absent"), 1);
    ASSERT_OK(convjit_open(&options, &context));
    cr_assert_eq(line_count, 1);
    cr_expect_not_null(
        strstr(lines[0], "cache: HOME cannot be written: No such file or directory, kernels are written to "), "%s",
        lines[0]);
    cr_expect_not_null(strstr(lines[0], below("convjit-")), "%s", lines[0]);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_close(context);
    ASSERT_OK(convjit_open(&options, &context));
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_close(context);
}

/* ---------------------------------------------------------------- binaries that the device refuses */

Test(layer_cache, a_new_binary_that_the_device_refuses_is_not_built_again) {
    setenv("FAKE_DRIVER_LOAD", "200", 1);
    setenv("FAKE_DRIVER_LOAD_LOG", "ptxas: no such register", 1);
    convjit_context *context = open_for(NULL);
    convjit_layer *layer;
    EXPECT_FAILS(try_create(context, small, &layer), CONVJIT_LOAD_FAILED, "CUDA_ERROR_INVALID_IMAGE (200)");
    cr_expect_not_null(strstr(convjit_last_error(), small), "%s", convjit_last_error());
    cr_expect_not_null(strstr(convjit_last_error(), "\nptxas: no such register"), "%s", convjit_last_error());
    cr_expect_null(layer);
    expect_counts(context, (convjit_counters){.misses = 1, .compiles = 1});
    convjit_close(context);
}

Test(layer_cache, a_kept_binary_that_the_device_refuses_is_built_anew_once) {
    convjit_context *first = open_for(NULL), *second = open_for(NULL);
    convjit_layer *layer = create(first, small), *refused;
    setenv("FAKE_DRIVER_LOAD", "200", 1);
    EXPECT_FAILS(try_create(second, small, &refused), CONVJIT_LOAD_FAILED, "CUDA_ERROR_INVALID_IMAGE (200)");
    cr_expect_null(refused);
    expect_counts(second, (convjit_counters){.memory_hits = 1, .misses = 1, .compiles = 1, .corrupt = 1});
    unsetenv("FAKE_DRIVER_LOAD");
    convjit_layer_destroy(create_from(second, small, "disk")); /* what was built anew is in the cache */
    convjit_layer_destroy(create_from(first, small, "memory"));
    convjit_layer_destroy(layer);
    convjit_close(second);
    convjit_close(first);
    cr_expect_eq(driver_state()->loads, driver_state()->unloads);
}

/* Puts another binary into the one entry there is; its checksum is right. */
static void replace_binary(const cj_key *key, const void *binary, size_t size) {
    cj_store *store = open_store(below("cache"));
    cj_read read;
    cr_assert(read_file_of(below("cache"), key, &read));
    cj_entry entry = read.entry;
    entry.binary = binary, entry.binary_size = size;
    write_ok(store, &entry);
    free(read.bytes);
    cj_store_close(store);
}

static void expect_rebuilt(convjit_counters want, const char *reason) {
    line_count = 0;
    convjit_context *context = open_for(NULL);
    convjit_layer_destroy(create_from(context, small, "compiler"));
    convjit_layer_destroy(create_from(context, small, "memory"));
    want.memory_hits = 1;
    expect_counts(context, want);
    cr_expect_eq(line_count, 3);
    cr_expect_not_null(strstr(lines[0], reason), "\"%s\" is not in: %s", reason, lines[0]);
    convjit_close(context);
    context = open_for(NULL);
    convjit_layer_destroy(create_from(context, small, "disk")); /* the entry was replaced */
    convjit_close(context);
}

Test(layer_cache, a_whole_entry_of_a_wrong_binary_is_built_anew) {
    static const struct {
        const char *bytes;
        size_t size;
    } wrong[] = {{"no binary", 9}, {"\177ELF\2\1\1", 7}, {"\177ELF", 4}, {"", 1}};
    const cj_key key = make_and_close(small);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        replace_binary(&key, wrong[i].bytes, wrong[i].size);
        expect_rebuilt((convjit_counters){.disk_hits = 1, .misses = 1, .compiles = 1, .corrupt = 1},
                       "the device refused the binary");
    }
}

Test(layer_cache, a_damaged_entry_is_built_anew) {
    const cj_key key = make_and_close(small);
    const char *path = entry_file(below("cache"), &key);
    const convjit_counters rebuilt = {.misses = 1, .compiles = 1, .corrupt = 1};
    static const long lengths[] = {0, 1, 95, 300};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        cr_assert_eq(truncate(path, lengths[i]), 0);
        expect_rebuilt(rebuilt, "not used");
    }
    FILE *file = fopen(path, "r+b");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, -20, SEEK_END), 0); /* in the binary */
    fputs("\xff", file);
    fclose(file);
    expect_rebuilt(rebuilt, "checksum");
}

/* Creates a layer whose entry was spoiled. Returns the number of warnings. */
static int expect_spoiled(convjit_context *context, const char *what, size_t at) {
    const convjit_counters before = convjit_get_counters(context);
    convjit_layer *layer;
    line_count = 0;
    ASSERT_OK(try_create(context, small, &layer));
    const convjit_counters after = convjit_get_counters(context);
    cr_assert_str_eq(convjit_layer_get_info(layer).origin, "compiler", "%s %zu", what, at);
    cr_expect_eq(after.corrupt - before.corrupt, 1, "%s %zu", what, at);
    cr_expect_eq(after.compiles - before.compiles, 1, "%s %zu", what, at);
    convjit_layer_destroy(layer);
    int warnings = 0;
    for (int i = 0; i < line_count; i++) {
        warnings += strstr(lines[i], "not used") != NULL;
    }
    return warnings;
}

/* The context only builds, so it holds no kernel from create to create. */
Test(layer_cache, an_entry_with_any_byte_changed_or_cut_off_is_built_anew) {
    static unsigned char bytes[4096];
    convjit_context *context = open_for("sm_90a");
    const cj_key key = make_and_close(small);
    const char *path = entry_file(below("cache"), &key);
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    cr_assert(size > 200 && size < sizeof bytes);
    int warnings = 0;
    for (size_t i = 0; i < size; i++) {
        file = fopen(path, "r+b");
        cr_assert_not_null(file);
        cr_assert_eq(fseek(file, (long)i, SEEK_SET), 0);
        fputc(bytes[i] ^ (1 << i % 8), file);
        fclose(file);
        warnings += expect_spoiled(context, "byte", i);
        cr_assert_eq(truncate(path, (off_t)i), 0);
        warnings += expect_spoiled(context, "length", i);
    }
    cr_expect_eq(warnings, 1, "once a key");
    convjit_layer_destroy(create_from(context, small, "disk"));
    convjit_close(context);
}

/* ---------------------------------------------------------------- what a hit does */

/* Ends the process that lists a directory, takes a lock or changes a directory. */
static bool forbid_listing_and_locks(void) {
#define FORBID(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define FORBID_FCNTL(command) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, command, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FORBID(SYS_getdents64),
        FORBID(SYS_flock),
        FORBID(SYS_mkdirat),
        FORBID(SYS_renameat2),
        FORBID(SYS_unlinkat),
#ifdef SYS_rename
        FORBID(SYS_getdents),
        FORBID(SYS_mkdir),
        FORBID(SYS_rename),
        FORBID(SYS_unlink),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        FORBID_FCNTL(F_SETLK),
        FORBID_FCNTL(F_SETLKW),
        FORBID_FCNTL(F_OFD_SETLK),
        FORBID_FCNTL(F_OFD_SETLKW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof program[0], program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* A child's exit status, or minus the signal that ended it. */
static int create_guarded(const char *line) {
    enum { NOT_PERMITTED = 77 };
    const pid_t child = fork();
    if (child == 0) {
        convjit_context *context = open_for(NULL);
        if (!forbid_listing_and_locks()) {
            _exit(NOT_PERMITTED);
        }
        convjit_layer *layer;
        _exit(try_create(context, line, &layer) == CONVJIT_SUCCESS ? 0 : 1);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_PERMITTED) {
        cr_skip_test("system calls cannot be filtered here");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Test(layer_cache, a_hit_lists_no_directory_and_takes_no_lock_of_a_file) {
    make_and_close(small);
    cr_expect_eq(create_guarded(small), 0);
    cr_expect_eq(create_guarded(other), -SIGSYS, "and a miss does");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 10 };
#else
enum { SLOWER = 1 };
#endif

/* Milliseconds of the fastest of several creates; the others were disturbed. */
static double fastest_create(convjit_context *context, const char *line, const char *origin) {
    double fastest = 1e9;
    for (int i = 0; i < 50; i++) {
        line_count = 0;
        convjit_layer *layer = create_from(context, line, origin);
        const double ms = convjit_layer_get_info(layer).create_ms;
        fastest = ms < fastest ? ms : fastest;
        convjit_layer_destroy(layer);
    }
    return fastest;
}

Test(layer_cache, a_create_takes_2_ms_from_disk_and_20_us_from_memory_at_most) {
    const char *lines_of_families[] = {small, "conv2d c32 k64 in512x512 f5x9"};
    for (int i = 0; i < 2; i++) {
        const char *line = lines_of_families[i];
        convjit_context *context = open_for("sm_90a"); /* holds no kernel from create to create */
        convjit_layer_destroy(create_from(context, line, "compiler"));
        const double disk = fastest_create(context, line, "disk");
        convjit_close(context);
        context = open_for(NULL);
        convjit_layer_destroy(create_from(context, line, "disk"));
        const double memory = fastest_create(context, line, "memory");
        convjit_close(context);
        cr_expect_leq(disk, 2.0 * SLOWER, "%f ms for %s", disk, line);
        cr_expect_leq(memory, 0.02 * SLOWER, "%f ms for %s", memory, line);
    }
}
