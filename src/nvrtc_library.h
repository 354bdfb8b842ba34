/* nvrtc_library.h - NVRTC, NVIDIA's run-time compiler: found, opened and proved to work.
 *
 * Named so because the toolkit has an nvrtc.h of its own. */
#ifndef CJ_NVRTC_LIBRARY_H
#define CJ_NVRTC_LIBRARY_H

#include <limits.h>
#include <nvrtc.h>
#include <stdbool.h>

#include "target.h"

/* Every function used; all are in NVRTC 12.0, the oldest version accepted. */
#define CJ_NVRTC_FUNCTIONS(X)    \
    X(nvrtcVersion)              \
    X(nvrtcGetErrorString)       \
    X(nvrtcGetNumSupportedArchs) \
    X(nvrtcGetSupportedArchs)    \
    X(nvrtcCreateProgram)        \
    X(nvrtcDestroyProgram)       \
    X(nvrtcCompileProgram)       \
    X(nvrtcGetProgramLogSize)    \
    X(nvrtcGetProgramLog)        \
    X(nvrtcGetCUBINSize)         \
    X(nvrtcGetCUBIN)             \
    X(nvrtcGetPTXSize)           \
    X(nvrtcGetPTX)

enum { CJ_NVRTC_ARCHS_MAX = 64 }; /* NVRTC 13.0 has 12 */

typedef struct cj_nvrtc_library {
#define CJ_NVRTC_FIELD(function) __typeof__(function) *function;
    CJ_NVRTC_FUNCTIONS(CJ_NVRTC_FIELD)
#undef CJ_NVRTC_FIELD
    int major, minor;
    char build[32]; /* "13.0.88"; "13.0" if the build number cannot be had */
    char path[PATH_MAX];
    int archs[CJ_NVRTC_ARCHS_MAX]; /* compute capabilities it compiles for, ascending: 75, 80, ... */
    int arch_count;
} cj_nvrtc_library;

/* NVRTC, opened at the first call that finds it and open from then on. NO_COMPILER: where it was looked for, and what
 * is wrong with what was found; the next call looks again. Thread-safe. */
convjit_status cj_nvrtc_library_open(const cj_nvrtc_library **out);

/* The same, or NULL where it is not open yet; never opens anything. */
const cj_nvrtc_library *cj_nvrtc_library_opened(void);

typedef enum cj_nvrtc_output {
    CJ_NVRTC_CUBIN,
    CJ_NVRTC_PTX /* text; its NUL is part of the output, for cuModuleLoadData wants one */
} cj_nvrtc_output;

/* One run: `source` under `options` to `binary` (malloc'ed), with NVRTC's words in `log`, also on success. */
nvrtcResult cj_nvrtc_library_run(const cj_nvrtc_library *library, const char *source, const char *const *options,
                                 int option_count, cj_nvrtc_output output, cj_blob *binary, cj_text *log);

/* nvrtc.c: what NVRTC said in this thread's last compile, also in a good one: warnings, and ptxas' report on registers
 * and spills. "" before the first. A long log is cut. Valid until this thread's next compile. */
const char *cj_nvrtc_last_log(void);

#endif
