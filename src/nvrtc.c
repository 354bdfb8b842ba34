/* nvrtc.c - the compiler of CUDA targets: the options, and a cubin for a target that NVRTC knows.
 *
 * NVRTC may run in several threads at once, and nothing here keeps them apart. Its output is not the same bytes from
 * run to run (it holds names made at random), so nothing may hash it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvrtc_library.h"
#include "status.h"

/* The options that may change the code, and so stand in the key; NVRTC 12.0 knows them all. Rounding is NVRTC's
 * default, written out so that no version can change it. No -use_fast_math, no -lineinfo, no precompiled headers. */
static const char *const code_options[] = {
    "--std=c++17",
    "--device-as-default-execution-space", /* a function without a word is __device__ */
    "--no-source-include",                 /* a file in the working directory is no part of the source */
    "--ftz=false",                         /* subnormals are kept */
    "--prec-div=true",                     /* division and square root are rounded correctly */
    "--prec-sqrt=true",
    "--fmad=true", /* a * b + c is one operation; where that must not be, kernels say __fmul_rn */
};
enum { CODE_OPTIONS = sizeof code_options / sizeof code_options[0] };

/* ... and those that may not. */
static const char report_option[] = "--ptxas-options=-v"; /* registers and spills, into the log */
static const char no_cache_option[] = "--no-cache";       /* NVRTC 12.9 has a cache of its own: one is enough */

enum { OPTIONS_MAX = CODE_OPTIONS + 3 };

/* Longer logs are cut at the end; two kernels and a few warnings are 1 KiB. */
static _Thread_local char last_log[4096];

const char *cj_nvrtc_last_log(void) {
    return last_log;
}

static void write_id(const cj_nvrtc_library *library, char id[CJ_COMPILER_ID_MAX]) {
    snprintf(id, CJ_COMPILER_ID_MAX, "nvrtc %s", library->build);
}

static convjit_status open_compiler(char id[CJ_COMPILER_ID_MAX]) {
    const cj_nvrtc_library *library;
    CJ_TRY(cj_nvrtc_library_open(&library));
    write_id(library, id);
    return CONVJIT_SUCCESS;
}

static bool is_open(char id[CJ_COMPILER_ID_MAX]) {
    const cj_nvrtc_library *library = cj_nvrtc_library_opened();
    if (library != NULL) {
        write_id(library, id);
    }
    return library != NULL;
}

static void list_options(const cj_target *target, cj_text *out) {
    cj_text_printf(out, "--gpu-architecture=%s\n", target->name);
    for (int i = 0; i < CODE_OPTIONS; i++) {
        cj_text_printf(out, "%s\n", code_options[i]);
    }
}

/* ---------------------------------------------------------------- what to ask for */

typedef struct goal {
    char architecture[48]; /* the option */
    cj_nvrtc_output output;
} goal;

static bool is_plain(const cj_target *target) {
    const size_t length = strlen(target->name);
    return target->name[length - 1] >= '0' && target->name[length - 1] <= '9';
}

static convjit_status refuse_target(const cj_nvrtc_library *library, const cj_target *target) {
    cj_text known = {0};
    for (int i = 0; i < library->arch_count; i++) {
        cj_text_printf(&known, " sm_%d", library->archs[i]);
    }
    cj_fail(CONVJIT_COMPILE_FAILED, "compile failed for %s: NVRTC %s does not know this target, only%s; %s",
            target->name, library->build, known.data != NULL ? known.data : " others",
            is_plain(target) ? "use an older NVRTC" : "use a newer NVRTC, or the target without its last letter");
    cj_text_free(&known);
    return CONVJIT_COMPILE_FAILED;
}

/* A cubin where NVRTC knows the target. Else, for a plain target, PTX of the nearest older one, which the driver
 * finishes at load: PTX runs on every later device. Features of one chip ('a') or family ('f') have no such way. */
static convjit_status choose_goal(const cj_nvrtc_library *library, const cj_target *target, goal *out) {
    int older = 0;
    for (int i = 0; i < library->arch_count; i++) {
        const int arch = library->archs[i];
        if (arch == target->capability) {
            snprintf(out->architecture, sizeof out->architecture, "--gpu-architecture=%s", target->name);
            out->output = CJ_NVRTC_CUBIN;
            return CONVJIT_SUCCESS;
        }
        if (arch < target->capability && arch > older) {
            older = arch;
        }
    }
    if (older == 0 || !is_plain(target)) {
        return refuse_target(library, target);
    }
    snprintf(out->architecture, sizeof out->architecture, "--gpu-architecture=compute_%d", older);
    out->output = CJ_NVRTC_PTX;
    return CONVJIT_SUCCESS;
}

static int collect_options(const cj_nvrtc_library *library, const goal *wanted, const char *options[OPTIONS_MAX]) {
    int count = 0;
    options[count++] = wanted->architecture;
    for (int i = 0; i < CODE_OPTIONS; i++) {
        options[count++] = code_options[i];
    }
    options[count++] = report_option;
    if (library->major > 12 || library->minor >= 9) {
        options[count++] = no_cache_option;
    }
    return count;
}

/* ---------------------------------------------------------------- the compile */

static void keep_log(const cj_text *log) {
    const char *text = log->data != NULL ? log->data : "";
    if (snprintf(last_log, sizeof last_log, "%s", text) >= (int)sizeof last_log) {
        memcpy(last_log + sizeof last_log - sizeof "...", "...", sizeof "...");
    }
}

static convjit_status report(const cj_nvrtc_library *library, const cj_target *target, nvrtcResult result,
                             const cj_text *log) {
    convjit_status status = CONVJIT_COMPILE_FAILED;
    if (result == NVRTC_ERROR_OUT_OF_MEMORY) {
        status = CONVJIT_OUT_OF_MEMORY;
    } else if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) { /* a part of NVRTC is missing */
        status = CONVJIT_NO_COMPILER;
    }
    return cj_fail(status, "compile failed for %s: NVRTC %s says %s\n%s", target->name, library->build,
                   library->nvrtcGetErrorString(result), log->data != NULL ? log->data : "(no log)");
}

static convjit_status compile(const cj_target *target, const char *source, cj_blob *binary) {
    last_log[0] = '\0';
    const cj_nvrtc_library *library;
    CJ_TRY(cj_nvrtc_library_open(&library));
    goal wanted;
    CJ_TRY(choose_goal(library, target, &wanted));
    const char *options[OPTIONS_MAX];
    const int option_count = collect_options(library, &wanted, options);

    cj_text log = {0};
    if (wanted.output == CJ_NVRTC_PTX) {
        cj_text_printf(&log, "convjit: NVRTC %s does not know %s: PTX (%s), for the driver to finish\n", library->build,
                       target->name, wanted.architecture);
    }
    const nvrtcResult result =
        cj_nvrtc_library_run(library, source, options, option_count, wanted.output, binary, &log);
    keep_log(&log);
    const convjit_status status = result == NVRTC_SUCCESS ? CONVJIT_SUCCESS : report(library, target, result, &log);
    cj_text_free(&log);
    return status;
}

const cj_compiler cj_nvrtc = {
    .open = open_compiler,
    .is_open = is_open,
    .options = list_options,
    .compile = compile,
};
