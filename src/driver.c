/* driver.c - the device of CUDA targets: the caller's current context, through the CUDA driver.
 *
 * Order: open the driver, describe its errors, judge a binary, then the functions of cj_cuda_device. Nothing here makes
 * or switches a context, synchronises, or uses a stream that is not the caller's. */
#include "driver.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "settings.h"
#include "status.h"
#include "target.h"

enum {
    OLDEST_DRIVER = 12000,         /* CUDA 12.0 */
    SHARED_WITHOUT_ASKING = 49152, /* bytes of dynamic shared memory any kernel may use (CUDA programming guide) */
    LOG_SIZE = 4096,               /* of the driver's linker and PTX compiler */
};

static cj_driver_api driver; /* written once, before is_opened; every module came after that */
static atomic_bool is_opened;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- opening */

/* The version comes first: a driver that is too old may lack functions, and its age is the better message. */
static convjit_status resolve(void *library) {
    CUresult (*get_version)(int *) = NULL;
    void *address = dlsym(library, "cuDriverGetVersion");
    memcpy(&get_version, &address, sizeof address);
    CJ_RETURN_IF(get_version == NULL || get_version(&driver.version) != CUDA_SUCCESS, CONVJIT_NO_DRIVER,
                 "opening the CUDA driver failed: %s gives no driver version", driver.path);
    CJ_RETURN_IF(driver.version < OLDEST_DRIVER, CONVJIT_NO_DRIVER,
                 "opening the CUDA driver failed: %s is for CUDA %d.%d, must be for 12.0 or later; update the driver",
                 driver.path, driver.version / 1000, driver.version % 1000 / 10);
#define RESOLVE(function, symbol)                                                                                  \
    address = dlsym(library, symbol);                                                                              \
    CJ_RETURN_IF(address == NULL, CONVJIT_NO_DRIVER, "opening the CUDA driver failed: %s has no function " symbol, \
                 driver.path);                                                                                     \
    memcpy(&driver.function, &address, sizeof address);
    CJ_DRIVER_FUNCTIONS(RESOLVE)
#undef RESOLVE
    return CONVJIT_SUCCESS;
}

static convjit_status start(void) {
    const CUresult result = driver.cuInit(0);
    if (result == CUDA_SUCCESS) {
        return CONVJIT_SUCCESS;
    }
    const convjit_status status = result == CUDA_ERROR_NO_DEVICE ? CONVJIT_NO_DEVICE : CONVJIT_NO_DRIVER;
    return cj_driver_fail(status, result, "starting the CUDA driver");
}

/* The driver's library, in this order: CONVJIT_DRIVER alone if it is set; libcuda.so.1, which a driver installs;
 * libcuda.so, which some containers have instead. */
static void *find_library(const char *chosen, cj_text *why) {
    if (chosen != NULL) {
        return cj_library_open(chosen, why);
    }
    void *library = cj_library_open("libcuda.so.1", why);
    return library != NULL ? library : cj_library_open("libcuda.so", why);
}

static convjit_status open_driver(void) {
    const char *chosen = cj_setting_get(CJ_SETTING_DRIVER);
    cj_text why = {0};
    void *library = find_library(chosen, &why);
    convjit_status status = CONVJIT_SUCCESS;
    if (library != NULL) {
        cj_library_path(library, driver.path);
        status = resolve(library);
        if (status == CONVJIT_SUCCESS) {
            status = start();
        } else {
            dlclose(library); /* not after cuInit, whose threads may live */
        }
    } else if (chosen != NULL) {
        status = cj_fail(CONVJIT_NO_DRIVER,
                         "opening the CUDA driver failed: CONVJIT_DRIVER is \"%s\", which must be the "
                         "path of a libcuda.so.1%s",
                         chosen, why.data != NULL ? why.data : "\nno such file");
    } else {
        status = cj_fail(CONVJIT_NO_DRIVER,
                         "opening the CUDA driver failed: no libcuda.so.1 or libcuda.so in the "
                         "loader's path; install the NVIDIA driver or set CONVJIT_DRIVER to its path%s",
                         why.data != NULL ? why.data : "");
    }
    cj_text_free(&why);
    return status;
}

convjit_status cj_driver_open(const cj_driver_api **out) {
    convjit_status status = CONVJIT_SUCCESS;
    if (!atomic_load(&is_opened)) {
        pthread_mutex_lock(&open_lock);
        if (!atomic_load(&is_opened)) {
            status = open_driver();
            atomic_store(&is_opened, status == CONVJIT_SUCCESS);
        }
        pthread_mutex_unlock(&open_lock);
    }
    *out = status == CONVJIT_SUCCESS ? &driver : NULL;
    return status;
}

/* ---------------------------------------------------------------- errors */

/* Does the error belong to an earlier, asynchronous operation? Such an error stays: every later call in the context
 * gives it again. (cuda.h, CUresult: "the context is left in an inconsistent state".) */
static bool is_sticky(CUresult result) {
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

static bool is_capture(CUresult result) {
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
           result != CUDA_ERROR_CAPTURED_EVENT;
}

convjit_status cj_driver_fail(convjit_status status, CUresult result, const char *what) {
    const char *name = NULL;
    const char *sentence = NULL;
    const char *hint = "";
    driver.cuGetErrorName(result, &name); /* leaves NULL for a number it does not know */
    driver.cuGetErrorString(result, &sentence);
    if (is_sticky(result)) {
        status = CONVJIT_LAUNCH_FAILED;
        hint = "; an earlier error of this CUDA context, which stands until the context is destroyed";
    } else if (is_capture(result)) {
        status = CONVJIT_INVALID_ARGUMENT;
        hint = "; not allowed while a stream is being captured";
    } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        status = CONVJIT_OUT_OF_MEMORY;
    } else if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
               result == CUDA_ERROR_DEINITIALIZED) {
        status = CONVJIT_NO_DEVICE;
        hint = "; make the CUDA context of convjit_open current";
    }
    return cj_fail(status, "%s failed: %s (%d), %s%s", what, name != NULL ? name : "an unknown error", (int)result,
                   sentence != NULL ? sentence : "which this driver does not explain", hint);
}

/* ---------------------------------------------------------------- binaries */

/* The driver is not told a binary's size, so a short one would have it read past the end. NVIDIA's ELF files end with
 * their header tables: a cut file lacks them. */
static const char *elf_defect(const unsigned char *data, size_t size) {
    Elf64_Ehdr header;
    if (size < sizeof header) {
        return "a truncated ELF header";
    }
    memcpy(&header, data, sizeof header); /* cache entries align nothing */
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != EM_CUDA) {
        return "an ELF file, but not of the machine CUDA";
    }
    const size_t sections = (size_t)header.e_shnum * header.e_shentsize;
    const size_t segments = (size_t)header.e_phnum * header.e_phentsize;
    if (header.e_shoff > size || sections > size - header.e_shoff || header.e_phoff > size ||
        segments > size - header.e_phoff) {
        return "a truncated ELF file";
    }
    return NULL;
}

/* NULL for a cubin or a PTX text, else what the bytes are instead. */
static const char *binary_defect(const void *data, size_t size) {
    if (data == NULL || size == 0) {
        return "empty";
    }
    if (size >= SELFMAG && memcmp(data, ELFMAG, SELFMAG) == 0) {
        return elf_defect(data, size);
    }
    const char *text = data;
    if (memchr(text, '\0', size) != text + size - 1) {
        return "neither a cubin nor a whole PTX text";
    }
    return strstr(text, ".version") != NULL && strstr(text, ".target") != NULL ? NULL : "neither a cubin nor PTX";
}

/* ---------------------------------------------------------------- the device */

/* What open returns is the context itself: check_current compares with it. */
static convjit_status open_device(cj_target *target, void **opened) {
    const cj_driver_api *api;
    CJ_TRY(cj_driver_open(&api));
    CUcontext context = NULL;
    CUdevice device = 0;
    int major = 0;
    int minor = 0;
    CUresult result = api->cuCtxGetCurrent(&context);
    CJ_RETURN_IF(result == CUDA_SUCCESS && context == NULL, CONVJIT_NO_DEVICE,
                 "opening the device failed: no CUDA context is current in this thread; make one current first "
                 "(cuCtxSetCurrent, or cudaSetDevice and cudaFree(0))");
    result = result != CUDA_SUCCESS ? result : api->cuCtxGetDevice(&device);
    result = result != CUDA_SUCCESS
                 ? result
                 : api->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    result = result != CUDA_SUCCESS
                 ? result
                 : api->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result != CUDA_SUCCESS) {
        return cj_driver_fail(CONVJIT_NO_DEVICE, result, "asking for the device of the current CUDA context");
    }
    cj_target_of_capability(10 * major + minor, target);
    *opened = context;
    return CONVJIT_SUCCESS;
}

static convjit_status check_current(void *opened) {
    CUcontext current = NULL;
    const CUresult result = driver.cuCtxGetCurrent(&current);
    if (result != CUDA_SUCCESS) {
        return cj_driver_fail(CONVJIT_NO_DEVICE, result, "asking for the current CUDA context");
    }
    CJ_RETURN_IF(current != opened, CONVJIT_NO_DEVICE,
                 "the CUDA context of convjit_open is not current: %s; make it current, or open a convjit context for "
                 "each CUDA context",
                 current == NULL ? "none is" : "another one is");
    return CONVJIT_SUCCESS;
}

struct cj_module {
    CUmodule module;
    CUfunction functions[CJ_ENTRY_POINTS];
};

static const char *const function_names[CJ_ENTRY_POINTS] = {[CJ_FORWARD] = CJ_FORWARD_NAME, [CJ_PACK] = CJ_PACK_NAME};

static convjit_status load_image(const void *data, CUmodule *module) {
    char log[LOG_SIZE] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)}; /* the last byte stays NUL */
    const CUresult result = driver.cuModuleLoadDataEx(module, data, 2, options, values);
    if (result == CUDA_SUCCESS) {
        return CONVJIT_SUCCESS;
    }
    char what[96];
    snprintf(what, sizeof what, "loading a binary (driver for CUDA %d.%d)", driver.version / 1000,
             driver.version % 1000 / 10);
    const convjit_status status = cj_driver_fail(CONVJIT_LOAD_FAILED, result, what);
    return log[0] == '\0' ? status : cj_fail(status, "%s\n%s", convjit_last_error(), log);
}

/* Looking a function up also loads its code (CUDA programming guide, "Lazy Loading"), so that no launch has to. */
static convjit_status find_functions(cj_module *module, uint32_t shared_bytes) {
    char what[96];
    for (int i = 0; i < CJ_ENTRY_POINTS; i++) {
        const CUresult result = driver.cuModuleGetFunction(&module->functions[i], module->module, function_names[i]);
        if (result != CUDA_SUCCESS) {
            snprintf(what, sizeof what, "looking for the kernel %s in a binary", function_names[i]);
            return cj_driver_fail(CONVJIT_LOAD_FAILED, result, what);
        }
    }
    if (shared_bytes > SHARED_WITHOUT_ASKING) {
        const CUresult result = driver.cuFuncSetAttribute(
            module->functions[CJ_FORWARD], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)shared_bytes);
        if (result != CUDA_SUCCESS) {
            snprintf(what, sizeof what, "asking for %u bytes of dynamic shared memory", shared_bytes);
            return cj_driver_fail(CONVJIT_LOAD_FAILED, result, what);
        }
    }
    return CONVJIT_SUCCESS;
}

static void unload(cj_module *module) {
    if (module != NULL) {
        driver.cuModuleUnload(module->module); /* fails only where the context is gone, and the module with it */
        free(module);
    }
}

static convjit_status load(const void *data, size_t size, uint32_t shared_bytes, cj_module **out) {
    *out = NULL;
    const char *defect = binary_defect(data, size);
    CJ_RETURN_IF(defect != NULL, CONVJIT_LOAD_FAILED, "loading a binary failed: %zu bytes, %s", size, defect);
    cj_module *module = calloc(1, sizeof *module);
    CJ_RETURN_IF(module == NULL, CONVJIT_OUT_OF_MEMORY, "loading a binary failed: no host memory");
    convjit_status status = load_image(data, &module->module);
    if (status != CONVJIT_SUCCESS) {
        free(module);
        return status;
    }
    status = find_functions(module, shared_bytes);
    if (status != CONVJIT_SUCCESS) {
        unload(module);
        return status;
    }
    *out = module;
    return CONVJIT_SUCCESS;
}

/* The hot path: one driver call. Both kernels have one parameter, the args struct by value; the driver copies it. */
static convjit_status launch(cj_module *module, const cj_launch *launch, convjit_stream stream) {
    void *parameters[] = {(void *)(uintptr_t)launch->args};
    const CUresult result =
        driver.cuLaunchKernel(module->functions[launch->entry], launch->blocks, 1, 1, launch->threads, 1, 1,
                              launch->shared_bytes, stream, parameters, NULL);
    if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
        return CONVJIT_SUCCESS;
    }
    char what[160];
    snprintf(what, sizeof what, "launching %s (%u blocks of %u threads, %u bytes of dynamic shared memory)",
             function_names[launch->entry], launch->blocks, launch->threads, launch->shared_bytes);
    return cj_driver_fail(CONVJIT_LAUNCH_FAILED, result, what);
}

static convjit_status allocate(size_t size, void **out) {
    CUdeviceptr memory = 0;
    const CUresult result = driver.cuMemAlloc(&memory, size > 0 ? size : 1); /* aligned to 256 at least */
    *out = (void *)(uintptr_t)memory;
    if (result == CUDA_SUCCESS) {
        return CONVJIT_SUCCESS;
    }
    *out = NULL;
    char what[96];
    snprintf(what, sizeof what, "allocating %zu bytes of device memory", size);
    return cj_driver_fail(CONVJIT_LAUNCH_FAILED, result, what);
}

static void release(void *memory) {
    if (memory != NULL) {
        driver.cuMemFree((CUdeviceptr)(uintptr_t)memory);
    }
}

const cj_device cj_cuda_device = {
    .open = open_device,
    .check_current = check_current,
    .load = load,
    .unload = unload,
    .launch = launch,
    .allocate = allocate,
    .release = release,
};
