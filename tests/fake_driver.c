/* fake_driver.c - a small library in place of libcuda.so.1, opened through CONVJIT_DRIVER. It has one device whose
 * memory is host memory, loads what looks like a cubin or PTX, and notes launches instead of running them.
 *
 * It obeys these variables, read at every call; a CUresult is its number:
 *   FAKE_DRIVER_VERSION     13000 (default): what cuDriverGetVersion says
 *   FAKE_DRIVER_INIT        CUresult of cuInit
 *   FAKE_DRIVER_DEVICES     1 (default): how many devices there are
 *   FAKE_DRIVER_CAPABILITY  9.0 (default): theirs
 *   FAKE_DRIVER_CONTEXT     "none": threads start without a current context; else one is current from the start
 *   FAKE_DRIVER_LOAD        CUresult of cuModuleLoadDataEx
 *   FAKE_DRIVER_LOAD_LOG    what it then writes to its error log
 *   FAKE_DRIVER_WITHOUT     a kernel that no module has
 *   FAKE_DRIVER_ATTRIBUTE   CUresult of cuFuncSetAttribute
 *   FAKE_DRIVER_LAUNCH      CUresult of cuLaunchKernel
 *   FAKE_DRIVER_ALLOCATE    CUresult of cuMemAlloc
 * and exports fake_driver (fake_driver.h).
 *
 * -DFAKE_DRIVER_INCOMPLETE leaves cuLaunchKernel out. */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_driver.h"
#include "kernel_src/args.h"

struct CUctx_st {
    int unused;
};
struct CUfunc_st {
    char name[64];
};
struct CUmod_st {
    struct CUfunc_st functions[2];
    int function_count;
};

fake_driver_state fake_driver;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st first_context;
static _Thread_local CUcontext current_context;
static _Thread_local int current_is_set;

static const char *get(const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    return value != NULL ? value : otherwise;
}

static CUresult told(const char *variable) {
    return (CUresult)strtol(get(variable, "0"), NULL, 10);
}

/* Counts a call, and `what` with it if it is not NULL. */
static void count(int *what) {
    pthread_mutex_lock(&state_lock);
    fake_driver.calls++;
    if (what != NULL) {
        (*what)++;
    }
    pthread_mutex_unlock(&state_lock);
}

/* ---------------------------------------------------------------- start, errors, devices */

CUresult cuInit(unsigned int flags) {
    (void)flags;
    count(NULL);
    return told("FAKE_DRIVER_INIT");
}

CUresult cuDriverGetVersion(int *version) {
    count(NULL);
    *version = (int)strtol(get("FAKE_DRIVER_VERSION", "13000"), NULL, 10);
    return CUDA_SUCCESS;
}

typedef struct error_words {
    CUresult result;
    const char *name;
    const char *sentence;
} error_words;

static const error_words *words_of(CUresult result) {
    static const error_words words[] = {
        {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
        {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
        {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
        {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
        {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
        {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
        {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
        {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
         "operation not permitted when stream is capturing"},
        {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported driver"},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (words[i].result == result) {
            return &words[i];
        }
    }
    return NULL;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
    const error_words *words = words_of(result);
    *name = words != NULL ? words->name : NULL;
    return words != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **sentence) {
    const error_words *words = words_of(result);
    *sentence = words != NULL ? words->sentence : NULL;
    return words != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *devices) {
    count(NULL);
    *devices = (int)strtol(get("FAKE_DRIVER_DEVICES", "1"), NULL, 10);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    int devices;
    cuDeviceGetCount(&devices);
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    count(NULL);
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    count(NULL);
    int major = 0;
    int minor = 0;
    sscanf(get("FAKE_DRIVER_CAPABILITY", "9.0"), "%d.%d", &major, &minor);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = major;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = minor;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* ---------------------------------------------------------------- contexts */

CUresult cuCtxGetCurrent(CUcontext *context) {
    count(NULL);
    const int none = strcmp(get("FAKE_DRIVER_CONTEXT", ""), "none") == 0;
    *context = current_is_set ? current_context : none ? NULL : &first_context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    count(NULL);
    current_context = context;
    current_is_set = 1;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    CUcontext context;
    cuCtxGetCurrent(&context);
    *device = 0;
    return context != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    count(NULL);
    *context = &first_context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    count(NULL);
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    count(NULL);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- modules and launches */

static void write_log(unsigned int option_count, const CUjit_option *options, void **values) {
    char *buffer = NULL;
    size_t size = 0;
    for (unsigned int i = 0; i < option_count; i++) {
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
            buffer = values[i];
        } else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
            size = (size_t)(uintptr_t)values[i];
        }
    }
    if (buffer != NULL && size > 0) {
        snprintf(buffer, size, "%s", get("FAKE_DRIVER_LOAD_LOG", ""));
    }
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int option_count, CUjit_option *options,
                            void **values) {
    const CUresult result = told("FAKE_DRIVER_LOAD");
    if (result != CUDA_SUCCESS) {
        count(NULL);
        write_log(option_count, options, values);
        return result;
    }
    if (memcmp(image, "\177ELF", 4) != 0 && strstr(image, ".version") == NULL) {
        count(NULL);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    count(&fake_driver.loads);
    *module = calloc(1, sizeof **module);
    return *module != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuModuleUnload(CUmodule module) {
    count(&fake_driver.unloads);
    free(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    count(NULL);
    if (strcmp(get("FAKE_DRIVER_WITHOUT", ""), name) == 0 || module->function_count == 2) {
        return CUDA_ERROR_NOT_FOUND;
    }
    *function = &module->functions[module->function_count++];
    snprintf((*function)->name, sizeof(*function)->name, "%s", name);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    count(NULL);
    const CUresult result = told("FAKE_DRIVER_ATTRIBUTE");
    if (result == CUDA_SUCCESS && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        fake_driver.max_shared = value;
    }
    return result;
}

#ifndef FAKE_DRIVER_INCOMPLETE
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
                        CUstream stream, void **parameters, void **extra) {
    (void)extra;
    const int is_legal = grid_x > 0 && block_x > 0 && block_x <= 1024;
    const CUresult result = is_legal ? told("FAKE_DRIVER_LAUNCH") : CUDA_ERROR_INVALID_VALUE;
    count(result == CUDA_SUCCESS ? &fake_driver.launches : NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&state_lock);
    snprintf(fake_driver.kernel, sizeof fake_driver.kernel, "%s", function->name);
    memcpy(fake_driver.grid, (unsigned int[]){grid_x, grid_y, grid_z}, sizeof fake_driver.grid);
    memcpy(fake_driver.block, (unsigned int[]){block_x, block_y, block_z}, sizeof fake_driver.block);
    fake_driver.shared = shared;
    fake_driver.stream = stream;
    const int is_pack = strcmp(function->name, "convjit_pack") == 0;
    memcpy(fake_driver.args, parameters[0], is_pack ? sizeof(cj_pack_args) : sizeof(cj_forward_args));
    pthread_mutex_unlock(&state_lock);
    return CUDA_SUCCESS;
}
#endif

/* ---------------------------------------------------------------- memory */

CUresult cuMemAlloc(CUdeviceptr *memory, size_t size) {
    const CUresult result = size == 0 ? CUDA_ERROR_INVALID_VALUE : told("FAKE_DRIVER_ALLOCATE");
    void *bytes = NULL;
    count(result == CUDA_SUCCESS ? &fake_driver.allocations : NULL);
    if (result != CUDA_SUCCESS || posix_memalign(&bytes, 256, size) != 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (CUdeviceptr)(uintptr_t)bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr memory) {
    count(&fake_driver.frees);
    free((void *)(uintptr_t)memory);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    count(NULL);
    memcpy((void *)(uintptr_t)to, from, size);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
    count(NULL);
    memcpy(to, (const void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr memory, unsigned char value, size_t size) {
    count(NULL);
    memset((void *)(uintptr_t)memory, value, size);
    return CUDA_SUCCESS;
}

/* ---------------------------------------------------------------- streams and events: everything is done at once */

static int handle; /* its address is every stream and event */

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    (void)flags;
    count(NULL);
    *stream = (CUstream)&handle;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
    (void)stream;
    count(NULL);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    count(NULL);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    (void)flags;
    count(NULL);
    *event = (CUevent)&handle;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    (void)event;
    count(NULL);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)event, (void)stream;
    count(NULL);
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
    (void)event;
    count(NULL);
    return CUDA_SUCCESS;
}

#undef cuEventElapsedTime /* cuda.h may map it to a later one; see src/driver.h */
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    count(NULL);
    *milliseconds = 1.0F;
    return CUDA_SUCCESS;
}
