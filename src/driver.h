/* driver.h - the CUDA driver, opened at run time. driver.c also holds cj_cuda_device (target.h), which runs on it. */
#ifndef CJ_DRIVER_H
#define CJ_DRIVER_H

#include <cuda.h>
#include <limits.h>

#include "convjit.h"

/* Every function used, and the name the driver exports it under. The names are those of CUDA 12.0, the oldest driver
 * accepted: cuda.h of a later toolkit may map a function to a later one (cuEventElapsedTime_v2), which old drivers
 * lack. The last two groups are for tools and tests. */
#define CJ_DRIVER_FUNCTIONS(X)                                   \
    X(cuInit, "cuInit")                                          \
    X(cuDriverGetVersion, "cuDriverGetVersion")                  \
    X(cuGetErrorName, "cuGetErrorName")                          \
    X(cuGetErrorString, "cuGetErrorString")                      \
    X(cuDeviceGetCount, "cuDeviceGetCount")                      \
    X(cuDeviceGet, "cuDeviceGet")                                \
    X(cuDeviceGetName, "cuDeviceGetName")                        \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute")              \
    X(cuCtxGetCurrent, "cuCtxGetCurrent")                        \
    X(cuCtxGetDevice, "cuCtxGetDevice")                          \
    X(cuModuleLoadDataEx, "cuModuleLoadDataEx")                  \
    X(cuModuleUnload, "cuModuleUnload")                          \
    X(cuModuleGetFunction, "cuModuleGetFunction")                \
    X(cuFuncSetAttribute, "cuFuncSetAttribute")                  \
    X(cuLaunchKernel, "cuLaunchKernel")                          \
    X(cuMemAlloc, "cuMemAlloc_v2")                               \
    X(cuMemFree, "cuMemFree_v2")                                 \
    /* a context of one's own */                                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")      \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2") \
    X(cuCtxSetCurrent, "cuCtxSetCurrent")                        \
    X(cuCtxSynchronize, "cuCtxSynchronize")                      \
    /* copies, streams and times */                              \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2")                           \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2")                           \
    X(cuMemsetD8, "cuMemsetD8_v2")                               \
    X(cuStreamCreate, "cuStreamCreate")                          \
    X(cuStreamDestroy, "cuStreamDestroy_v2")                     \
    X(cuStreamSynchronize, "cuStreamSynchronize")                \
    X(cuEventCreate, "cuEventCreate")                            \
    X(cuEventDestroy, "cuEventDestroy_v2")                       \
    X(cuEventRecord, "cuEventRecord")                            \
    X(cuEventSynchronize, "cuEventSynchronize")                  \
    X(cuEventElapsedTime, "cuEventElapsedTime")

typedef struct cj_driver_api {
#define CJ_DRIVER_FIELD(function, symbol) __typeof__(function) *function;
    CJ_DRIVER_FUNCTIONS(CJ_DRIVER_FIELD)
#undef CJ_DRIVER_FIELD
    int version; /* newest CUDA the driver supports, 1000 * major + 10 * minor */
    char path[PATH_MAX];
} cj_driver_api;

/* The driver, opened and initialised (cuInit) at the first call that finds it, and open from then on. NO_DRIVER: not
 * found, or too old, or it does not start; NO_DEVICE: it starts, and sees no device. The next call tries again.
 * Creates no context. Thread-safe. */
convjit_status cj_driver_open(const cj_driver_api **out);

/* Fails a call of `what` ("allocating 512 bytes") that gave `result`, with the driver's name and sentence for it.
 * `status` is for an error that is the call's own; others have theirs: OUT_OF_MEMORY, NO_DEVICE (no or a destroyed
 * context), INVALID_ARGUMENT (not allowed during stream capture), LAUNCH_FAILED (an earlier kernel left the context
 * broken). The driver must be open. */
convjit_status cj_driver_fail(convjit_status status, CUresult result, const char *what);

#endif
