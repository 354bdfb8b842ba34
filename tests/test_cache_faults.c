/* test_cache_faults.c - the system fails under the cache: no create may fail for it. A filter of system calls stands
 * for a bad disk, a network file system that lost its server, missing rights: in a child process, after all that a
 * create needs besides the cache is open, every call of one kind fails with one error. */
#include "layer_fixture.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

TestSuite(cache_faults, .init = enter_layer, .fini = leave);

static const char small[] = "conv2d c2 k8 in5x6 f3x3 p1";
static const char other[] = "conv2d c2 k8 in5x7 f3x3 p1";

/* Names of a call that differ from machine to machine. */
#ifdef SYS_rename
#define SYS_RENAME SYS_rename
#define SYS_MKDIR SYS_mkdir
#define SYS_UNLINK SYS_unlink
#else
#define SYS_RENAME SYS_renameat
#define SYS_MKDIR SYS_mkdirat
#define SYS_UNLINK SYS_unlinkat
#endif

typedef struct fault {
    const char *text;
    unsigned call;
    unsigned error;
} fault;

#define FAULT(call, error) \
    { #call " " #error, SYS_##call, error }
static const fault faults[] = {FAULT(openat, EIO),          FAULT(openat, ESTALE),     FAULT(openat, EACCES),
                               FAULT(openat, EMFILE),       FAULT(openat, ENOSPC),     FAULT(openat, EROFS),
                               FAULT(openat, ENAMETOOLONG), FAULT(openat, ELOOP),      FAULT(openat, EDQUOT),
                               FAULT(openat, ENOENT),       FAULT(read, EIO),          FAULT(read, ESTALE),
                               FAULT(read, EISDIR),         FAULT(write, ENOSPC),      FAULT(write, EIO),
                               FAULT(write, EDQUOT),        FAULT(write, EFBIG),       FAULT(close, EIO),
                               FAULT(close, ENOSPC),        FAULT(fstat, EIO),         FAULT(fstat, ESTALE),
                               FAULT(fstat, EACCES),        FAULT(newfstatat, EIO),    FAULT(newfstatat, ESTALE),
                               FAULT(newfstatat, EACCES),   FAULT(RENAME, EIO),        FAULT(RENAME, ESTALE),
                               FAULT(RENAME, EXDEV),        FAULT(RENAME, EBUSY),      FAULT(RENAME, ENOENT),
                               FAULT(RENAME, EACCES),       FAULT(RENAME, EISDIR),     FAULT(MKDIR, EACCES),
                               FAULT(MKDIR, EROFS),         FAULT(MKDIR, ENOSPC),      FAULT(MKDIR, EIO),
                               FAULT(UNLINK, EIO),          FAULT(UNLINK, EBUSY),      FAULT(fcntl, ENOLCK),
                               FAULT(fcntl, EINVAL),        FAULT(fcntl, EACCES),      FAULT(fcntl, EIO),
                               FAULT(flock, ENOLCK),        FAULT(flock, EWOULDBLOCK), FAULT(utimensat, EPERM),
                               FAULT(utimensat, EROFS),     FAULT(getdents64, EIO),    FAULT(getrandom, ENOSYS),
                               FAULT(pwrite64, ENOSPC)};
enum { FAULT_COUNT = sizeof faults / sizeof faults[0], NOT_PERMITTED = 77, NO_CONTEXT = 78 };

static bool make_calls_fail(const fault *with) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, with->call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | with->error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof program[0], program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/* Creates a layer that is stored, or damaged, or not there, and one that certainly is not. Exits with the number of
 * those that failed. */
static void create_under(const fault *with) {
    convjit_options options = CONVJIT_OPTIONS_INIT;
    convjit_environment ignored;
    convjit_context *context = NULL;
    options.target = "sm_90a";
    options.cache_directory = below("cache");
    options.cache_size = "1"; /* each write trims */
    options.record_file = below("record");
    setenv("CONVJIT_CXX", "/no/such/file", 1); /* looking for it takes longer than all the rest */
    if (convjit_open(&options, &context) != CONVJIT_SUCCESS) {
        _exit(NO_CONTEXT);
    }
    convjit_get_environment(context, &ignored); /* opens the compiler */
    if (!make_calls_fail(with)) {
        _exit(NOT_PERMITTED);
    }
    convjit_layer *layers[2] = {NULL, NULL};
    const int failed = (try_create(context, small, &layers[0]) != CONVJIT_SUCCESS) +
                       (try_create(context, other, &layers[1]) != CONVJIT_SUCCESS);
    for (int i = 0; i < 2; i++) {
        convjit_layer_destroy(layers[i]);
    }
    convjit_close(context);
    _exit(failed);
}

/* The cache as it is found: a folder for the key, with the entry, or with a part of it, or nothing at all. */
static void prepare(int situation) {
    testing_folder_remove(below("cache"));
    if (situation > 0) {
        const pid_t child = fork();
        if (child == 0) {
            convjit_context *context = open_for("sm_90a");
            convjit_layer *layer = create(context, small);
            char path[512];
            const char *hex = convjit_layer_get_info(layer).key;
            snprintf(path, sizeof path, "cache/%.2s/%s.entry", hex, hex + 2);
            _exit(situation == 2 && truncate(below(path), 100) != 0);
        }
        int status = -1;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(status, 0);
    }
}

/* No half-written entry, whatever failed. */
static void expect_sound(const char *text) {
    int exit_status = -1;
    const pid_t child = fork();
    if (child == 0) {
        convjit_context *context = open_for("sm_90a");
        convjit_layer *first = create(context, small), *second = create(context, other);
        convjit_layer_destroy(first);
        convjit_layer_destroy(second);
        const convjit_counters counters = convjit_get_counters(context);
        _exit(counters.corrupt > 0 || counters.store_failures > 0);
    }
    cr_assert_eq(waitpid(child, &exit_status, 0), child);
    cr_expect_eq(exit_status, 0, "after %s", text);
}

Test(cache_faults, no_error_of_the_system_fails_a_create_or_leaves_a_half_entry) {
    for (int situation = 0; situation < 3; situation++) {
        for (int i = 0; i < FAULT_COUNT; i++) {
            prepare(situation);
            const pid_t child = fork();
            if (child == 0) {
                create_under(&faults[i]);
            }
            int status = -1;
            cr_assert_eq(waitpid(child, &status, 0), child);
            if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_PERMITTED) {
                cr_skip_test("system calls cannot be filtered here");
            }
            cr_expect_eq(status, 0, "%s, situation %d: %d", faults[i].text, situation, status);
            if (situation < 2) { /* a damaged entry may still be there */
                expect_sound(faults[i].text);
            }
        }
    }
}
