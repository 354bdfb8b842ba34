/* cpu_compiler.c - source to a shared object with the host's C++ compiler. The source goes in as standard input, so
 * that no path of it ends up in the binary or the log. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_process.h"
#include "settings.h"
#include "status.h"
#include "target.h"

/* A hung compiler must not hang its caller; these are far beyond what a working one takes on a busy machine. */
enum { VERSION_SECONDS = 10, COMPILE_SECONDS = 300 };

enum { LOG_BYTES = 64 * 1024 };

/* Arithmetic as written (a multiply-add is fused only where the kernel says fmaf), no aliasing rules that CUDA code
 * does not keep, no symbol that could be shared between modules, and nothing that asks for more than the oldest
 * processor of this kind. -O2 would compile a quarter longer, and most kernels here run once. */
static const char fixed_options[] = "-std=c++17\n"
                                    "-O1\n"
                                    "-fPIC\n"
                                    "-shared\n"
                                    "-fvisibility=hidden\n"
                                    "-ffp-contract=off\n"
                                    "-fno-exceptions\n"
                                    "-fno-rtti\n"
                                    "-fno-math-errno\n"
                                    "-fno-strict-aliasing\n"
                                    "-Wno-unknown-pragmas\n";

static void options(const cj_target *target, cj_text *out) {
    (void)target;
    cj_text_add(out, fixed_options, sizeof(fixed_options) - 1);
    const char *flags = cj_setting_get(CJ_SETTING_CXXFLAGS);
    while (flags && *(flags += strspn(flags, " \t\n"))) {
        const size_t length = strcspn(flags, " \t\n");
        cj_text_printf(out, "%.*s\n", (int)length, flags);
        flags += length;
    }
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Finding the compiler
 * ------------------------------------------------------------------------------------------------------------------ */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;
static char program[CJ_PATH_BYTES];
static char program_id[CJ_COMPILER_ID_MAX];

/* Runs `name --version` and keeps the first line; false with the reason. */
static bool probe(const char *name, const cj_workspace *w, char reason[CJ_REASON_BYTES]) {
    char *argv[] = {(char *)(uintptr_t)name, (char[]){"--version"}, NULL};
    const cj_outcome result = cj_process_run(argv, "/dev/null", w, VERSION_SECONDS, reason);
    if (result == CJ_ENDED_BADLY || result == CJ_NOT_STARTED) {
        return false;
    }
    size_t size = 0;
    char *text = cj_read_file(w->output, LOG_BYTES, &size);
    const size_t line = text ? strcspn(text, "\r\n") : 0;
    if (line > 0) {
        snprintf(program_id, sizeof(program_id), "%.*s", (int)(line < LOG_BYTES ? line : LOG_BYTES), text);
        snprintf(program, sizeof(program), "%s", name);
    } else {
        snprintf(reason, CJ_REASON_BYTES, "printed no version");
    }
    free(text);
    return line > 0;
}

static convjit_status find(const cj_workspace *w) {
    const char *chosen = cj_setting_get(CJ_SETTING_CXX);
    char reason[CJ_REASON_BYTES] = "";
    if (chosen) {
        CJ_RETURN_IF(strlen(chosen) >= sizeof(program) || !probe(chosen, w, reason), CONVJIT_NO_COMPILER,
                     "no host C++ compiler: %s (%s): %s --version %s", chosen, cj_setting_variable(CJ_SETTING_CXX),
                     chosen, *reason ? reason : "has too long a name");
        return CONVJIT_SUCCESS;
    }
    static const char *const names[] = {"c++", "g++", "clang++"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        if (probe(names[i], w, reason)) {
            return CONVJIT_SUCCESS;
        }
    }
    return cj_fail(CONVJIT_NO_COMPILER,
                   "no host C++ compiler: c++, g++ and clang++ were searched in PATH; install one or name it in %s "
                   "(clang++ --version: %s)",
                   cj_setting_variable(CJ_SETTING_CXX), reason);
}

static bool is_open(char id[CJ_COMPILER_ID_MAX]) {
    pthread_mutex_lock(&opening);
    const bool result = opened;
    if (result) {
        memcpy(id, program_id, CJ_COMPILER_ID_MAX);
    }
    pthread_mutex_unlock(&opening);
    return result;
}

/* A failed search is not remembered. */
static convjit_status open_compiler(char id[CJ_COMPILER_ID_MAX]) {
    if (is_open(id)) {
        return CONVJIT_SUCCESS;
    }
    cj_workspace w;
    CJ_RETURN_IF(!cj_workspace_make(&w), CONVJIT_COMPILE_FAILED, "temporary folder %s: %s", w.folder, strerror(errno));
    pthread_mutex_lock(&opening);
    const convjit_status status = opened ? CONVJIT_SUCCESS : find(&w);
    if (status == CONVJIT_SUCCESS) {
        opened = true;
        memcpy(id, program_id, CJ_COMPILER_ID_MAX);
    }
    pthread_mutex_unlock(&opening);
    cj_workspace_remove(&w);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Compiling
 * ------------------------------------------------------------------------------------------------------------------ */

/* The command line: program, options (one a line, split in place), what goes in and out. NULL: no memory. */
static char **make_arguments(char *lines, char *binary) {
    static char input[] = "-", language[] = "-x", cxx[] = "c++", output[] = "-o";
    size_t count = 8; /* all but the options */
    for (const char *c = lines; *c; ++c) {
        count += *c == '\n';
    }
    char **arguments = malloc(count * sizeof(*arguments));
    if (!arguments) {
        return NULL;
    }
    size_t used = 0;
    arguments[used++] = program;
    char *rest = NULL;
    for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        arguments[used++] = line;
    }
    char *const files[] = {output, binary, language, cxx, input, NULL};
    memcpy(arguments + used, files, sizeof(files));
    return arguments;
}

/* COMPILE_FAILED with the log, or as much of it as is kept. */
static convjit_status fail_with_log(const cj_workspace *w, const char *reason) {
    size_t size = 0;
    char *log = cj_read_file(w->log, LOG_BYTES, &size);
    const convjit_status status =
        cj_fail(CONVJIT_COMPILE_FAILED, "compile failed: %s (%s): %s%s%s%s", program, program_id, reason,
                size > 0 ? "\n" : "", log ? log : "", size == LOG_BYTES ? "\n(the rest of the log is left out)" : "");
    free(log);
    return status;
}

static convjit_status run_compiler(const cj_workspace *w, char **arguments, cj_blob *binary) {
    char reason[CJ_REASON_BYTES] = "";
    const cj_outcome outcome = cj_process_run(arguments, w->source, w, COMPILE_SECONDS, reason);
    if (outcome == CJ_ENDED_BADLY || outcome == CJ_NOT_STARTED) {
        return fail_with_log(w, reason);
    }
    binary->data = cj_read_file(w->binary, SIZE_MAX - 1, &binary->size);
    if (!binary->data || binary->size == 0) {
        free(binary->data);
        *binary = (cj_blob){NULL, 0};
        return fail_with_log(w, "left no binary");
    }
    return CONVJIT_SUCCESS;
}

static convjit_status compile_in(cj_workspace *w, const char *source, char *lines, cj_blob *binary) {
    CJ_RETURN_IF(!cj_write_file(w->source, source), CONVJIT_COMPILE_FAILED, "compile failed: %s: %s", w->source,
                 strerror(errno));
    char **arguments = make_arguments(lines, w->binary);
    CJ_RETURN_IF(!arguments, CONVJIT_OUT_OF_MEMORY, "compile failed: no memory for the command line");
    const convjit_status status = run_compiler(w, arguments, binary);
    free(arguments);
    return status;
}

static convjit_status compile(const cj_target *target, const char *source, cj_blob *binary) {
    char id[CJ_COMPILER_ID_MAX];
    CJ_TRY(open_compiler(id));
    cj_text lines = {0};
    options(target, &lines);
    cj_workspace w;
    convjit_status status = CONVJIT_SUCCESS;
    if (lines.failed) {
        status = cj_fail(CONVJIT_OUT_OF_MEMORY, "compile failed: no memory for the options");
    } else if (!cj_workspace_make(&w)) {
        status = cj_fail(CONVJIT_COMPILE_FAILED, "compile failed: temporary folder %s: %s", w.folder, strerror(errno));
    } else {
        status = compile_in(&w, source, lines.data, binary);
        cj_workspace_remove(&w);
    }
    cj_text_free(&lines);
    return status;
}

const cj_compiler cj_cpu_compiler = {.open = open_compiler, .is_open = is_open, .options = options, .compile = compile};
