/* The compiler of the target cpu. Each test has a TMPDIR of its own, which must be empty afterwards. Fake compilers are
 * shell scripts: a first branch answers --version, the rest is the behaviour under test. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "convjit.h"
#include "embedded.h"
#include "target.h"
#include "testing.h"

static char home[TESTING_PATH_MAX];          /* of this test */
static char temporary[TESTING_PATH_MAX + 8]; /* TMPDIR, inside it */

static const cj_target cpu = {.kind = CJ_TARGET_CPU, .name = "cpu"};

static void set_up(void) {
    cr_assert(testing_folder_make(home));
    snprintf(temporary, sizeof(temporary), "%s/tmp", home);
    cr_assert_eq(mkdir(temporary, 0700), 0);
    setenv("TMPDIR", temporary, 1);
    unsetenv("CONVJIT_CXX");
    unsetenv("CONVJIT_CXXFLAGS");
}

static int entries_of(const char *path) {
    DIR *folder = opendir(path);
    int count = 0;
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    if (folder) {
        closedir(folder);
    }
    return folder ? count : -1;
}

static void tear_down(void) {
    cr_expect_eq(entries_of(temporary), 0, "files are left in TMPDIR");
    cr_expect(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "a child process is left");
    testing_folder_remove(home);
}

TestSuite(cpu_compiler, .init = set_up, .fini = tear_down);

static void need_compiler(void) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) != CONVJIT_SUCCESS) {
        cr_skip_test("no host C++ compiler");
    }
}

/* Makes the script and names it in CONVJIT_CXX. */
static const char *fake_compiler(const char *body) {
    static char path[TESTING_PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/fake-c++", home);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fprintf(file, "#!/bin/sh\n%s\n", body);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(chmod(path, 0700), 0);
    setenv("CONVJIT_CXX", path, 1);
    return path;
}

#define ANSWER_VERSION "[ \"$1\" = --version ] && echo 'fake c++ 1.0' && exit\n"

static convjit_status compile(const char *source, cj_blob *binary) {
    *binary = (cj_blob){NULL, 0};
    return cj_cpu_compiler.compile(&cpu, source, binary);
}

static void expect_failure(convjit_status status, const char *source, const char *words) {
    cj_blob binary;
    cr_expect_eq(compile(source, &binary), status, "%s", convjit_last_error());
    cr_expect_null(binary.data);
    cr_expect_not_null(strstr(convjit_last_error(), words), "\"%s\" is not in: %.2000s", words, convjit_last_error());
}

Test(cpu_compiler, makes_a_shared_object) {
    need_compiler();
    cj_blob binary;
    cr_assert_eq(compile("extern \"C\" int f() { return 1; }\n", &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_gt(binary.size, 64);
    cr_expect_arr_eq(binary.data, "\177ELF", 4);
    free(binary.data);
}

Test(cpu_compiler, makes_the_same_bytes_from_the_same_source) {
    need_compiler();
    const char *source = "extern \"C\" int f(int x) { return x + 1; }\n";
    cj_blob first, second;
    cr_assert_eq(compile(source, &first), CONVJIT_SUCCESS);
    cr_assert_eq(compile(source, &second), CONVJIT_SUCCESS);
    cr_expect_eq(first.size, second.size);
    cr_expect_arr_eq(first.data, second.data, first.size);
    free(first.data);
    free(second.data);
}

Test(cpu_compiler, is_open_only_after_open_and_with_the_same_id) {
    char before[CJ_COMPILER_ID_MAX], id[CJ_COMPILER_ID_MAX], after[CJ_COMPILER_ID_MAX];
    cr_expect_not(cj_cpu_compiler.is_open(before));
    fake_compiler("echo 'fake c++ 1.0'\necho 'second line'");
    cr_assert_eq(cj_cpu_compiler.open(id), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_str_eq(id, "fake c++ 1.0");
    cr_expect(cj_cpu_compiler.is_open(after));
    cr_expect_str_eq(after, id);
}

Test(cpu_compiler, a_long_version_line_is_cut) {
    fake_compiler("printf '%0300d\\n' 7");
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_cpu_compiler.open(id), CONVJIT_SUCCESS);
    cr_expect_eq(strlen(id), CJ_COMPILER_ID_MAX - 1);
}

Test(cpu_compiler, options_are_known_without_a_compiler_one_a_line) {
    setenv("CONVJIT_CXX", "/nonexistent/c++", 1);
    cj_text plain = {0}, flags = {0};
    cj_cpu_compiler.options(&cpu, &plain);
    cr_assert_not(plain.failed);
    cr_expect_not_null(strstr(plain.data, "-ffp-contract=off\n"));
    setenv("CONVJIT_CXXFLAGS", "  -g\t-fsanitize=address  ", 1);
    cj_cpu_compiler.options(&cpu, &flags);
    cr_assert_not(flags.failed);
    cr_expect_eq(strncmp(flags.data, plain.data, plain.size), 0);
    cr_expect_str_eq(flags.data + plain.size, "-g\n-fsanitize=address\n");
    cj_text_free(&plain);
    cj_text_free(&flags);
}

Test(cpu_compiler, flags_reach_the_compiler_word_by_word_and_no_shell) {
    need_compiler();
    char file[TESTING_PATH_MAX + 16], flags[TESTING_PATH_MAX + 64];
    snprintf(file, sizeof(file), "%s/touched", home);
    snprintf(flags, sizeof(flags), "-DANSWER=42 -DSHELL=$(touch${IFS}%s)", file);
    setenv("CONVJIT_CXXFLAGS", flags, 1);
    cj_blob binary;
    cr_expect_eq(compile("static_assert(ANSWER == 42, \"\");\n", &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    free(binary.data);
    cr_expect_neq(access(file, F_OK), 0, "a shell has read the flags");
}

Test(cpu_compiler, the_embedded_words_compile_without_a_warning) {
    need_compiler();
    setenv("CONVJIT_CXXFLAGS", "-Wall -Wextra -Werror", 1);
    const cj_embedded_file *file = cj_embedded_files;
    while (file->name && strcmp(file->name, "cpu/words.cuh") != 0) {
        ++file;
    }
    cr_assert_not_null(file->name);
    cj_blob binary;
    cr_expect_eq(compile(file->text, &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    free(binary.data);
}

Test(cpu_compiler, an_error_in_the_source_is_reported_with_line_and_log) {
    need_compiler();
    expect_failure(CONVJIT_COMPILE_FAILED, "#line 7 \"kernel.cu\"\nint f() { return no_such_name; }\n", "kernel.cu:7:");
    cr_expect_not_null(strstr(convjit_last_error(), "no_such_name"));
    cr_expect_null(strstr(convjit_last_error(), temporary), "the log names a private path");
}

Test(cpu_compiler, a_long_log_is_cut_and_says_so) {
    fake_compiler(ANSWER_VERSION "i=0; while [ $i -lt 3000 ]; do echo 'error: 0123456789012345678901234567890' >&2; "
                                 "i=$((i+1)); done; exit 1");
    expect_failure(CONVJIT_COMPILE_FAILED, "", "the rest of the log is left out");
    cr_expect_geq(strlen(convjit_last_error()), 64 * 1024);
    cr_expect_lt(strlen(convjit_last_error()), 66 * 1024);
}

Test(cpu_compiler, a_missing_compiler_names_the_setting_and_the_path) {
    setenv("CONVJIT_CXX", "/nonexistent/c++", 1);
    expect_failure(CONVJIT_NO_COMPILER, "", "/nonexistent/c++ (CONVJIT_CXX)");
}

Test(cpu_compiler, without_any_compiler_the_searched_names_are_told) {
    setenv("PATH", home, 1);
    expect_failure(CONVJIT_NO_COMPILER, "", "c++, g++ and clang++");
    cr_expect_not_null(strstr(convjit_last_error(), "CONVJIT_CXX"));
}

Test(cpu_compiler, a_failed_search_is_not_remembered) {
    setenv("CONVJIT_CXX", "/nonexistent/c++", 1);
    char id[CJ_COMPILER_ID_MAX];
    cr_expect_eq(cj_cpu_compiler.open(id), CONVJIT_NO_COMPILER);
    cr_expect_not(cj_cpu_compiler.is_open(id));
    fake_compiler(ANSWER_VERSION);
    cr_expect_eq(cj_cpu_compiler.open(id), CONVJIT_SUCCESS);
}

Test(cpu_compiler, a_program_that_fails_at_version_is_no_compiler) {
    const char *path = fake_compiler("exit 3");
    expect_failure(CONVJIT_NO_COMPILER, "", "ended with exit status 3");
    cr_expect_not_null(strstr(convjit_last_error(), path));
}

Test(cpu_compiler, a_program_that_prints_no_version_is_no_compiler) {
    fake_compiler("exit 0");
    expect_failure(CONVJIT_NO_COMPILER, "", "printed no version");
}

Test(cpu_compiler, a_compiler_that_crashes_is_reported_with_its_signal) {
    fake_compiler(ANSWER_VERSION "echo 'about to crash' >&2; kill -SEGV $$");
    expect_failure(CONVJIT_COMPILE_FAILED, "", "signal 11");
    cr_expect_not_null(strstr(convjit_last_error(), "about to crash"));
}

Test(cpu_compiler, a_compiler_that_writes_nothing_is_an_error) {
    fake_compiler(ANSWER_VERSION "exit 0");
    expect_failure(CONVJIT_COMPILE_FAILED, "", "left no binary");
}

Test(cpu_compiler, a_compiler_that_vanishes_after_open_is_an_error) {
    const char *path = fake_compiler(ANSWER_VERSION);
    char id[CJ_COMPILER_ID_MAX];
    cr_assert_eq(cj_cpu_compiler.open(id), CONVJIT_SUCCESS);
    cr_assert_eq(unlink(path), 0);
    expect_failure(CONVJIT_COMPILE_FAILED, "", "No such file");
}

Test(cpu_compiler, temporary_files_of_the_compiler_are_removed_too) {
    fake_compiler(ANSWER_VERSION "mkdir -p \"$TMPDIR/a/b\"; echo x > \"$TMPDIR/a/b/c\"; exit 1");
    expect_failure(CONVJIT_COMPILE_FAILED, "", "ended with exit status 1");
}

Test(cpu_compiler, the_source_is_standard_input_and_the_folder_private) {
    fake_compiler(ANSWER_VERSION "stat -c 'mode %a' \"$TMPDIR\" >&2; echo \"got $(cat)\" >&2; exit 1");
    expect_failure(CONVJIT_COMPILE_FAILED, "the source text", "mode 700");
    cr_expect_not_null(strstr(convjit_last_error(), "got the source text"));
}

Test(cpu_compiler, a_slow_compiler_is_waited_for) {
    fake_compiler(ANSWER_VERSION "sleep 1\n"
                                 "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo 'a binary' > \"$2\"; shift; done");
    cj_blob binary;
    cr_assert_eq(compile("", &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    cr_expect_eq(binary.size, 9);
    free(binary.data);
}

/* A zombie, which only its new parent can reap, does not run. */
static bool runs(int pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file) {
        cr_expect_eq(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
    }
    return state != 'Z' && state != 'X';
}

/* Runs until the time limit for --version, 10 seconds. */
Test(cpu_compiler, a_hung_compiler_is_ended_with_what_it_started, .timeout = 60) {
    fake_compiler("sleep 1000 &\necho $! > \"${0%/*}/pid\"\nwait");
    expect_failure(CONVJIT_NO_COMPILER, "", "did not end within 10 seconds");
    char path[TESTING_PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/pid", home);
    FILE *file = fopen(path, "r");
    int pid = 0;
    cr_assert_not_null(file);
    cr_assert_eq(fscanf(file, "%d", &pid), 1);
    fclose(file);
    for (int i = 0; i < 100 && runs(pid); ++i) {
        usleep(10000);
    }
    cr_expect_not(runs(pid), "the compiler's child still runs");
}

Test(cpu_compiler, works_where_SIGCHLD_is_ignored_or_signals_are_blocked) {
    signal(SIGCHLD, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    need_compiler();
    cj_blob binary;
    cr_expect_eq(compile("extern \"C\" int f() { return 1; }\n", &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    free(binary.data);
    expect_failure(CONVJIT_COMPILE_FAILED, "error", "left no binary");
}

Test(cpu_compiler, works_with_standard_streams_closed) {
    need_compiler();
    close(0);
    cj_blob binary;
    cr_expect_eq(compile("extern \"C\" int f() { return 1; }\n", &binary), CONVJIT_SUCCESS, "%s", convjit_last_error());
    free(binary.data);
}

Test(cpu_compiler, a_temporary_folder_that_is_missing_is_named) {
    need_compiler();
    setenv("TMPDIR", "/nonexistent/folder", 1);
    expect_failure(CONVJIT_COMPILE_FAILED, "", "/nonexistent/folder/convjit-");
    cr_expect_not_null(strstr(convjit_last_error(), "No such file"));
}

static void *compile_one(void *unused) {
    (void)unused;
    cj_blob binary;
    const convjit_status status = compile("extern \"C\" int f() { return 1; }\n", &binary);
    free(binary.data);
    return status == CONVJIT_SUCCESS ? NULL : &home;
}

Test(cpu_compiler, compiles_on_several_threads_at_once) {
    pthread_t threads[4];
    need_compiler();
    for (int i = 0; i < 4; ++i) {
        cr_assert_eq(pthread_create(&threads[i], NULL, compile_one, NULL), 0);
    }
    for (int i = 0; i < 4; ++i) {
        void *failed;
        pthread_join(threads[i], &failed);
        cr_expect_null(failed);
    }
}
