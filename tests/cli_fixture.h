/* cli_fixture.h - the command-line tool in a private folder: what its tests share. */
#ifndef CLI_FIXTURE_H
#define CLI_FIXTURE_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "testing.h"

static char folder[TESTING_PATH_MAX];

/* A PATH with `convjit`, an empty cache, and neither driver nor NVRTC, on every machine. */
static inline void set_up(void) {
    char path[2 * TESTING_PATH_MAX + 4096];
    cr_assert(testing_folder_make(folder), "%s: %s", folder, strerror(errno));
    (void)snprintf(path, sizeof path, "%s/convjit", folder);
    cr_assert(symlink(CLI_PROGRAM, path) == 0, "%s: %s", path, strerror(errno));
    (void)snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("FOLDER", folder, 1); /* for the commands */
    (void)snprintf(path, sizeof path, "%s/cache", folder);
    setenv("CONVJIT_CACHE_DIR", path, 1);
    setenv("CONVJIT_DRIVER", "/no/such/file", 1);
    setenv("CONVJIT_NVRTC", "/no/such/file", 1);
    setenv("LC_ALL", "C", 1);
    static const char *const unset[] = {"CONVJIT_LOG",          "CONVJIT_CACHE_MODE", "CONVJIT_CACHE_SIZE",
                                        "CONVJIT_CACHE_FIELDS", "CONVJIT_RECORD",     "CONVJIT_PLANS"};
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++) {
        unsetenv(unset[i]);
    }
}

static inline void tear_down(void) {
    testing_folder_remove(folder);
}

/* What a shell command prints, standard output first; to be freed. Not inlined: gcc 12 then takes what open_memstream
 * gives for the address of a local. */
__attribute__((noinline, unused)) static char *run(const char *command, int *exit_status) {
    char *line = NULL;
    char *text = NULL;
    size_t size = 0;
    cr_assert(asprintf(&line, "{ %s\n} 2>$FOLDER/errors; status=$?; cat $FOLDER/errors; exit $status", command) > 0);
    FILE *pipe = popen(line, "r"); /* NOLINT(cert-env33-c): transcripts are lines for the shell */
    FILE *out = open_memstream(&text, &size);
    cr_assert(pipe != NULL && out != NULL);
    for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) {
        (void)fputc(c, out);
    }
    const int status = pclose(pipe);
    *exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    (void)fclose(out);
    free(line);
    return text;
}

static inline void skip_without_host_compiler(void) {
    int exit_status = 0;
    free(run("${CONVJIT_CXX:-c++} --version", &exit_status));
    if (exit_status != 0) {
        cr_skip_test("no host C++ compiler");
    }
}

/* Runs a command that must exit with `wanted`; its text is to be freed. */
static inline char *expect_exit(int wanted, const char *command) {
    int exit_status = 0;
    char *text = run(command, &exit_status);
    cr_assert(exit_status == wanted, "%s: exit status %d, not %d:\n%s", command, exit_status, wanted, text);
    return text;
}

static inline void expect_part(const char *text, const char *part) {
    cr_expect(strstr(text, part) != NULL, "\"%s\" is missing in:\n%s", part, text);
}

#endif
