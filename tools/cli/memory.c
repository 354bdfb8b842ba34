/* memory.c - host memory and the monotonic clock, or device memory and events. */
#include "memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "target.h"

struct memory {
    const cj_driver_api *cuda; /* NULL: host */
    CUdevice device;
    cj_target target;
    char name[128];
    char error[256];
};

enum { ALIGNMENT = 256 }; /* what the driver gives */

/* Notes an error; returns false. */
static bool fail(memory *of, CUresult result, const char *what) {
    const char *name = NULL;
    const char *text = NULL;
    if (of->cuda->cuGetErrorName(result, &name) != CUDA_SUCCESS || name == NULL ||
        of->cuda->cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL) {
        (void)snprintf(of->error, sizeof of->error, "%s failed: CUDA error %d", what, (int)result);
    } else {
        (void)snprintf(of->error, sizeof of->error, "%s failed: %s, %s", what, name, text);
    }
    return false;
}

static bool check(memory *of, CUresult result, const char *what) {
    return result == CUDA_SUCCESS || fail(of, result, what);
}

/* ---------------------------------------------------------------- opening */

memory *memory_open_host(void) {
    memory *of = calloc(1, sizeof *of);
    if (of != NULL) {
        of->target.kind = CJ_TARGET_CPU;
        (void)snprintf(of->target.name, sizeof of->target.name, "cpu");
        (void)snprintf(of->name, sizeof of->name, "the host");
    }
    return of;
}

/* Device 0 and its primary context, which is the one the CUDA runtime would use. */
static bool open_device(memory *of) {
    const cj_driver_api *cuda = of->cuda;
    CUcontext context = NULL;
    int major = 0;
    int minor = 0;
    if (!check(of, cuda->cuDeviceGet(&of->device, 0), "looking for CUDA device 0") ||
        !check(of, cuda->cuDeviceGetName(of->name, (int)sizeof of->name, of->device), "naming CUDA device 0") ||
        !check(of, cuda->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, of->device),
               "asking CUDA device 0 for its compute capability") ||
        !check(of, cuda->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, of->device),
               "asking CUDA device 0 for its compute capability") ||
        !check(of, cuda->cuDevicePrimaryCtxRetain(&context, of->device), "making a context on CUDA device 0")) {
        return false;
    }
    cj_target_of_capability(10 * major + minor, &of->target);
    if (!check(of, cuda->cuCtxSetCurrent(context), "making the context of CUDA device 0 current")) {
        (void)cuda->cuDevicePrimaryCtxRelease(of->device);
        return false;
    }
    return true;
}

memory *memory_open_cuda(char *reason, size_t size) {
    memory *of = calloc(1, sizeof *of);
    if (of == NULL) {
        (void)snprintf(reason, size, "host memory is used up");
        return NULL;
    }
    if (cj_driver_open(&of->cuda) != CONVJIT_SUCCESS) {
        (void)snprintf(reason, size, "%.*s", (int)strcspn(convjit_last_error(), "\n"), convjit_last_error());
    } else if (open_device(of)) {
        return of;
    } else {
        (void)snprintf(reason, size, "%s", of->error);
    }
    free(of);
    return NULL;
}

void memory_close(memory *of) {
    if (of != NULL && of->cuda != NULL) {
        (void)of->cuda->cuCtxSetCurrent(NULL);
        (void)of->cuda->cuDevicePrimaryCtxRelease(of->device);
    }
    free(of);
}

bool memory_is_cuda(const memory *of) {
    return of->cuda != NULL;
}

const char *memory_target(const memory *of) {
    return of->target.name;
}

const char *memory_device(const memory *of) {
    return of->name;
}

const char *memory_error(const memory *of) {
    return of->error;
}

/* ---------------------------------------------------------------- buffers */

/* A CUdeviceptr is an integer with a pointer's value. */
static CUdeviceptr address_of(const void *buffer) {
    return (CUdeviceptr)(uintptr_t)buffer;
}

void *memory_allocate(memory *of, size_t size) {
    char what[80];
    const size_t rounded = size > 0 ? (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    (void)snprintf(what, sizeof what, "allocating %zu bytes", size);
    if (of->cuda != NULL) {
        CUdeviceptr address = 0;
        return check(of, of->cuda->cuMemAlloc(&address, rounded), what) ? (void *)(uintptr_t)address : NULL;
    }
    void *buffer = aligned_alloc(ALIGNMENT, rounded);
    if (buffer == NULL) {
        (void)snprintf(of->error, sizeof of->error, "%s failed: host memory is used up", what);
    }
    return buffer;
}

void memory_release(memory *of, void *buffer) {
    if (of->cuda != NULL) {
        (void)of->cuda->cuMemFree(address_of(buffer));
    } else {
        free(buffer);
    }
}

/* Both copies are on the legacy default stream, and so behind all work of the tool. */
bool memory_write(memory *of, void *buffer, const void *from, size_t size) {
    if (of->cuda != NULL) {
        return size == 0 || check(of, of->cuda->cuMemcpyHtoD(address_of(buffer), from, size), "copying to the device");
    }
    memcpy(buffer, from, size);
    return true;
}

bool memory_read(memory *of, const void *buffer, void *to, size_t size) {
    if (of->cuda != NULL) {
        return check(of, of->cuda->cuCtxSynchronize(), "running the kernels") &&
               (size == 0 ||
                check(of, of->cuda->cuMemcpyDtoH(to, address_of(buffer), size), "copying from the device"));
    }
    memcpy(to, buffer, size);
    return true;
}

/* ---------------------------------------------------------------- time */

static double now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static bool time_on_host(bool (*work)(void *state), void *state, int repeat, double *milliseconds) {
    for (int i = 0; i < repeat; i++) {
        const double start = now_ms();
        if (!work(state)) {
            return false;
        }
        milliseconds[i] = now_ms() - start;
    }
    return true;
}

/* The calls follow each other without a pause: each event ends one and starts the next, and the host waits only after
 * the last, so its own time stays out of the numbers while the device is the slower one. */
static bool time_on_device(memory *of, bool (*work)(void *state), void *state, int repeat, const CUevent *events) {
    if (!check(of, of->cuda->cuEventRecord(events[0], NULL), "recording an event")) {
        return false;
    }
    for (int i = 0; i < repeat; i++) {
        if (!work(state) || !check(of, of->cuda->cuEventRecord(events[i + 1], NULL), "recording an event")) {
            return false;
        }
    }
    return check(of, of->cuda->cuEventSynchronize(events[repeat]), "running the kernels");
}

bool memory_time(memory *of, bool (*work)(void *state), void *state, int repeat, double *milliseconds) {
    if (of->cuda == NULL) {
        return time_on_host(work, state, repeat, milliseconds);
    }
    CUevent *events = calloc((size_t)repeat + 1, sizeof(CUevent));
    bool fine = events != NULL;
    if (!fine) {
        (void)snprintf(of->error, sizeof of->error, "host memory is used up");
    }
    for (int i = 0; fine && i <= repeat; i++) {
        fine = check(of, of->cuda->cuEventCreate(&events[i], CU_EVENT_DEFAULT), "creating an event");
    }
    fine = fine && time_on_device(of, work, state, repeat, events);
    for (int i = 0; fine && i < repeat; i++) {
        float elapsed = 0.0F;
        fine = check(of, of->cuda->cuEventElapsedTime(&elapsed, events[i], events[i + 1]), "reading an event");
        milliseconds[i] = elapsed;
    }
    for (int i = 0; events != NULL && i <= repeat; i++) {
        if (events[i] != NULL) {
            (void)of->cuda->cuEventDestroy(events[i]);
        }
    }
    free(events);
    return fine;
}
