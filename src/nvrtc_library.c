/* nvrtc_library.c - where NVRTC is looked for, and how a library that was found is tried.
 *
 * A candidate counts only after it has compiled an empty source: that proves that its builtins library is there too,
 * whose absence NVRTC otherwise reports at the first real compile, and the PTX names the exact build, for which NVRTC
 * has no function. It costs about 30 ms once a process; of them the first real compile saves what NVRTC sets up once.
 */
#include "nvrtc_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"
#include "settings.h"
#include "status.h"

enum { OLDEST_MAJOR = 12 }; /* the first that knows sm_90a, and gives all of CJ_NVRTC_FUNCTIONS */

/* Newest first: it knows most targets. */
static const char *const library_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
enum { LIBRARY_NAMES = sizeof library_names / sizeof library_names[0] };

static cj_nvrtc_library opened_library;
static atomic_bool is_opened;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- one run of the compiler */

static void read_log(const cj_nvrtc_library *library, nvrtcProgram program, cj_text *log) {
    size_t size = 0; /* with the NUL: 1 for an empty log */
    if (library->nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) {
        return;
    }
    char *text = calloc(size, 1);
    if (text != NULL && library->nvrtcGetProgramLog(program, text) == NVRTC_SUCCESS) {
        cj_text_add(log, text, strnlen(text, size - 1));
    }
    free(text);
}

static nvrtcResult read_output(const cj_nvrtc_library *library, nvrtcProgram program, cj_nvrtc_output output,
                               cj_blob *binary) {
    const bool cubin = output == CJ_NVRTC_CUBIN;
    size_t size = 0;
    nvrtcResult result = (cubin ? library->nvrtcGetCUBINSize : library->nvrtcGetPTXSize)(program, &size);
    if (result != NVRTC_SUCCESS) {
        return result;
    }
    if (size == 0) {
        return NVRTC_ERROR_INTERNAL_ERROR;
    }
    char *data = malloc(size);
    if (data == NULL) {
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    result = (cubin ? library->nvrtcGetCUBIN : library->nvrtcGetPTX)(program, data);
    if (result != NVRTC_SUCCESS) {
        free(data);
        return result;
    }
    *binary = (cj_blob){data, size};
    return NVRTC_SUCCESS;
}

nvrtcResult cj_nvrtc_library_run(const cj_nvrtc_library *library, const char *source, const char *const *options,
                                 int option_count, cj_nvrtc_output output, cj_blob *binary, cj_text *log) {
    *binary = (cj_blob){NULL, 0};
    nvrtcProgram program = NULL;
    nvrtcResult result = library->nvrtcCreateProgram(&program, source, "convjit.cu", 0, NULL, NULL);
    if (result != NVRTC_SUCCESS) {
        return result;
    }
    result = library->nvrtcCompileProgram(program, option_count, options);
    read_log(library, program, log);
    if (result == NVRTC_SUCCESS) {
        result = read_output(library, program, output, binary);
    }
    library->nvrtcDestroyProgram(&program);
    return result;
}

/* ---------------------------------------------------------------- trying one candidate */

static bool resolve(void *handle, cj_nvrtc_library *library, const char *name, cj_text *why) {
    void *address;
#define RESOLVE(function)                                              \
    address = dlsym(handle, #function);                                \
    if (address == NULL) {                                             \
        cj_text_printf(why, "\n%s: has no function " #function, name); \
        return false;                                                  \
    }                                                                  \
    memcpy(&library->function, &address, sizeof address);
    CJ_NVRTC_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return true;
}

static bool read_version(cj_nvrtc_library *library, const char *name, cj_text *why) {
    if (library->nvrtcVersion(&library->major, &library->minor) != NVRTC_SUCCESS || library->major < OLDEST_MAJOR) {
        cj_text_printf(why, "\n%s: version %d.%d, older than %d.0", name, library->major, library->minor, OLDEST_MAJOR);
        return false;
    }
    int count = 0;
    if (library->nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count < 1 || count > CJ_NVRTC_ARCHS_MAX ||
        library->nvrtcGetSupportedArchs(library->archs) != NVRTC_SUCCESS) {
        cj_text_printf(why, "\n%s: does not say what it compiles for", name);
        return false;
    }
    library->arch_count = count;
    return true;
}

/* NVRTC asks the loader for its builtins by their bare name, which a toolkit outside the loader's path cannot answer.
 * Once loaded by their full path, they are found under that name. Not an error here: where they are missing NVRTC says
 * so itself. */
static void *preload_builtins(const cj_nvrtc_library *library, cj_text *why) {
    const char *slash = strrchr(library->path, '/');
    char path[PATH_MAX];
    const int length = slash == NULL
                           ? -1
                           : snprintf(path, sizeof path, "%.*s/libnvrtc-builtins.so.%d.%d",
                                      (int)(slash - library->path), library->path, library->major, library->minor);
    return length > 0 && length < PATH_MAX ? cj_library_open(path, why) : NULL;
}

/* The head of every PTX text holds "// Cuda compilation tools, release 13.0, V13.0.88". */
static void read_build(cj_nvrtc_library *library, const char *ptx) {
    snprintf(library->build, sizeof library->build, "%d.%d", library->major, library->minor);
    const char *found = strstr(ptx, ", V");
    int major, minor, build;
    if (found != NULL && sscanf(found, ", V%d.%d.%d", &major, &minor, &build) == 3 && major == library->major &&
        minor == library->minor) {
        snprintf(library->build, sizeof library->build, "%d.%d.%d", major, minor, build);
    }
}

static bool compile_nothing(cj_nvrtc_library *library, const char *name, cj_text *why) {
    char architecture[48];
    snprintf(architecture, sizeof architecture, "--gpu-architecture=compute_%d", library->archs[0]);
    const char *const options[] = {architecture};
    cj_blob ptx;
    cj_text log = {0};
    const nvrtcResult result = cj_nvrtc_library_run(library, "\n", options, 1, CJ_NVRTC_PTX, &ptx, &log);
    if (result == NVRTC_SUCCESS) {
        read_build(library, ptx.data);
        free(ptx.data);
    } else {
        cj_text_printf(why, "\n%s: cannot compile an empty source: %s", name, library->nvrtcGetErrorString(result));
        cj_text_printf(why, "\n%s", log.data != NULL ? log.data : "(no log)");
    }
    cj_text_free(&log);
    return result == NVRTC_SUCCESS;
}

static bool try_candidate(const char *name, cj_nvrtc_library *library, cj_text *why) {
    void *handle = cj_library_open(name, why);
    if (handle == NULL) {
        return false;
    }
    *library = (cj_nvrtc_library){0};
    cj_library_path(handle, library->path);
    void *builtins = NULL;
    if (resolve(handle, library, name, why) && read_version(library, name, why)) {
        builtins = preload_builtins(library, why);
        if (compile_nothing(library, name, why)) {
            return true;
        }
    }
    if (builtins != NULL) {
        dlclose(builtins);
    }
    dlclose(handle);
    return false;
}

/* ---------------------------------------------------------------- the search */

/* Tries the names of the library in `root``below`; a file that is not there is passed over in silence. */
static bool try_folder(const char *root, const char *below, cj_nvrtc_library *library, cj_text *why) {
    for (int i = 0; root != NULL && i < LIBRARY_NAMES; i++) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s%s/%s", root, below, library_names[i]);
        if (length > 0 && length < PATH_MAX && access(path, F_OK) == 0 && try_candidate(path, library, why)) {
            return true;
        }
    }
    return false;
}

/* The first candidate that works, in this order. Not searched: Python's site-packages (nvidia/cu13/lib,
 * nvidia/cuda_nvrtc/lib), for a process may see several; CONVJIT_NVRTC names such a library. */
static bool search(cj_nvrtc_library *library, cj_text *why) {
    for (int i = 0; i < LIBRARY_NAMES; i++) { /* the loader's own path: already loaded, LD_LIBRARY_PATH, ld.so.cache */
        if (try_candidate(library_names[i], library, why)) {
            return true;
        }
    }
    return try_folder(cj_setting_get(CJ_SETTING_CUDA_HOME), "/lib64", library, why) ||
           try_folder(cj_setting_get(CJ_SETTING_CUDA_PATH), "/lib64", library, why) ||
           try_folder("/usr/local/cuda", "/lib64", library, why) ||
           try_folder("/usr/lib/x86_64-linux-gnu", "", library, why) ||
           try_folder("/usr/lib/aarch64-linux-gnu", "", library, why);
}

static convjit_status open_library(void) {
    cj_text why = {0};
    const char *chosen = cj_setting_get(CJ_SETTING_NVRTC);
    const bool found = chosen != NULL ? try_candidate(chosen, &opened_library, &why) : search(&opened_library, &why);
    convjit_status status = CONVJIT_SUCCESS;
    if (found) {
        atomic_store(&is_opened, true);
    } else if (chosen != NULL) {
        status = cj_fail(CONVJIT_NO_COMPILER,
                         "opening NVRTC failed: CONVJIT_NVRTC is \"%s\", which must be the path of "
                         "a working libnvrtc.so%s",
                         chosen, why.data != NULL ? why.data : "\nno such file");
    } else {
        status = cj_fail(CONVJIT_NO_COMPILER,
                         "opening NVRTC failed: no working libnvrtc.so.13, .12 or .so in the "
                         "loader's path, CUDA_HOME, CUDA_PATH, /usr/local/cuda/lib64 or /usr/lib; install it or set "
                         "CONVJIT_NVRTC to its path%s",
                         why.data != NULL ? why.data : "");
    }
    cj_text_free(&why);
    return status;
}

convjit_status cj_nvrtc_library_open(const cj_nvrtc_library **out) {
    convjit_status status = CONVJIT_SUCCESS;
    if (!atomic_load(&is_opened)) {
        pthread_mutex_lock(&open_lock);
        if (!atomic_load(&is_opened)) {
            status = open_library();
        }
        pthread_mutex_unlock(&open_lock);
    }
    *out = status == CONVJIT_SUCCESS ? &opened_library : NULL;
    return status;
}

const cj_nvrtc_library *cj_nvrtc_library_opened(void) {
    return atomic_load(&is_opened) ? &opened_library : NULL;
}
