#include "environment.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "nvrtc_library.h"
#include "status.h"

/* A long path is cut at its end, which comes last. */
__attribute__((format(printf, 3, 4))) static void write_text(char *out, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, size, format, arguments);
    va_end(arguments);
}

/* The first line of this thread's error text: why something is missing. */
static void write_reason(char *out, size_t size) {
    const char *text = convjit_last_error();
    write_text(out, size, "%.*s", (int)strcspn(text, "\n"), text);
}

/* The device of the current CUDA context, else device 0. False with an error text. */
static bool find_device(const cj_driver_api *api, CUdevice *device, bool *is_current) {
    CUcontext context = NULL;
    *is_current = api->cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL;
    int count = 0;
    CUresult result = api->cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS && count == 0) {
        result = CUDA_ERROR_NO_DEVICE;
    }
    if (result == CUDA_SUCCESS) {
        result = *is_current ? api->cuCtxGetDevice(device) : api->cuDeviceGet(device, 0);
    }
    if (result != CUDA_SUCCESS) {
        cj_driver_fail(CONVJIT_NO_DEVICE, result, "looking for a device");
    }
    return result == CUDA_SUCCESS;
}

static void fill_device(const cj_driver_api *api, convjit_environment *out) {
    CUdevice device = 0;
    bool is_current = false;
    if (!find_device(api, &device, &is_current)) {
        write_reason(out->device, sizeof out->device);
        return;
    }
    char name[64] = "?";
    int major = 0;
    int minor = 0;
    api->cuDeviceGetName(name, (int)sizeof name, device);
    api->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    api->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    cj_target target;
    cj_target_of_capability(10 * major + minor, &target);
    write_text(out->device, sizeof out->device, "%s, %s, driver for CUDA %d.%d%s", name, target.name,
               api->version / 1000, api->version % 1000 / 10, is_current ? "" : " (no context is current)");
}

static void fill_driver(convjit_environment *out) {
    const cj_driver_api *api;
    if (cj_driver_open(&api) != CONVJIT_SUCCESS) {
        write_reason(out->driver, sizeof out->driver);
        write_reason(out->device, sizeof out->device);
        return;
    }
    write_text(out->driver, sizeof out->driver, "for CUDA %d.%d, %s", api->version / 1000, api->version % 1000 / 10,
               api->path);
    fill_device(api, out);
}

/* Adds " sm_90" and, where convjit knows of one, " sm_90a". */
static void add_targets(int capability, cj_text *list) {
    cj_target target;
    cj_target_of_capability(capability, &target);
    cj_text_printf(list, "%ssm_%d", list->size > 0 ? " " : "", capability);
    if (target.has_features) {
        cj_text_printf(list, " %s", target.name);
    }
}

static void fill_nvrtc(convjit_environment *out) {
    const cj_nvrtc_library *library;
    if (cj_nvrtc_library_open(&library) != CONVJIT_SUCCESS) {
        write_reason(out->nvrtc, sizeof out->nvrtc);
        return;
    }
    write_text(out->nvrtc, sizeof out->nvrtc, "%s, %s", library->build, library->path);
    cj_text targets = {0};
    for (int i = 0; i < library->arch_count; i++) {
        add_targets(library->archs[i], &targets);
    }
    write_text(out->nvrtc_targets, sizeof out->nvrtc_targets, "%s", targets.data != NULL ? targets.data : "");
    cj_text_free(&targets);
}

static void fill_host_compiler(convjit_environment *out) {
    char id[CJ_COMPILER_ID_MAX];
    if (cj_cpu_compiler.open(id) == CONVJIT_SUCCESS) {
        write_text(out->host_compiler, sizeof out->host_compiler, "%s", id);
    } else {
        write_reason(out->host_compiler, sizeof out->host_compiler);
    }
}

void cj_environment_fill(const cj_target *target_or_null, const char *cache_description, convjit_environment *out) {
    char *error = strdup(convjit_last_error());
    memset(out, 0, sizeof *out);
    write_text(out->version, sizeof out->version, "%s", convjit_version());
    write_text(out->target, sizeof out->target, "%s", target_or_null != NULL ? target_or_null->name : "");
    write_text(out->cache_directory, sizeof out->cache_directory, "%s", cache_description);
    fill_driver(out);
    fill_nvrtc(out);
    fill_host_compiler(out);
    cj_fail(CONVJIT_SUCCESS, "%s", error != NULL ? error : "");
    free(error);
}
