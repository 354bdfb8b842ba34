/* target.h - what a target offers: a name, a compiler, and (where a device is at hand) load, launch and memory.
 *
 * Two implementations: CUDA (nvrtc.c compiles, driver.c runs) and cpu (cpu_compiler.c, cpu_device.c). */
#ifndef CJ_TARGET_H
#define CJ_TARGET_H

#include <stdbool.h>

#include "convjit.h"
#include "text.h"

typedef enum cj_target_kind { CJ_TARGET_CUDA, CJ_TARGET_CPU } cj_target_kind;

typedef struct cj_target {
    cj_target_kind kind;
    int capability;    /* CUDA: 90 for sm_90 and sm_90a; cpu: 0 */
    bool has_features; /* CUDA: name ends in 'a': wgmma, setmaxnreg, ... may be used */
    char name[16];     /* "sm_90a", "cpu" */
} cj_target;

/* "sm_NN", "sm_NNa", "sm_NNf" or "cpu"; INVALID_ARGUMENT for anything else. Needs no device. */
convjit_status cj_target_parse(const char *name, cj_target *out);

/* The richest target of a device of this compute capability: "sm_90a" for 90, "sm_80" for 80; without 'a' where this
 * version of convjit does not know of one. */
void cj_target_of_capability(int capability, cj_target *out);

/* Bytes that were malloc'ed. */
typedef struct cj_blob {
    void *data;
    size_t size;
} cj_blob;

/* The two kernels of every binary. */
typedef enum cj_entry_point { CJ_FORWARD, CJ_PACK, CJ_ENTRY_POINTS } cj_entry_point;
#define CJ_FORWARD_NAME "convjit_forward"
#define CJ_PACK_NAME "convjit_pack"

/* Compilers. Both are opened at the first call and stay open; thread-safe. `id` names the exact build ("nvrtc 13.0.88",
 * "g++ (Debian 12.2.0-14) 12.2.0") and is what an entry records. */
enum { CJ_COMPILER_ID_MAX = 128 };
typedef struct cj_compiler {
    /* NO_COMPILER where it is missing. */
    convjit_status (*open)(char id[CJ_COMPILER_ID_MAX]);
    /* True, with the id, if open() has succeeded in this process before; never opens anything. */
    bool (*is_open)(char id[CJ_COMPILER_ID_MAX]);
    /* Options in one text, one a line, for the key; known without opening the compiler. */
    void (*options)(const cj_target *target, cj_text *out);
    /* source (NUL-terminated) to a binary. COMPILE_FAILED with the log in the error text; NO_COMPILER. */
    convjit_status (*compile)(const cj_target *target, const char *source, cj_blob *binary);
} cj_compiler;

extern const cj_compiler cj_nvrtc;        /* nvrtc.c */
extern const cj_compiler cj_cpu_compiler; /* cpu_compiler.c */
const cj_compiler *cj_target_compiler(const cj_target *target);

/* One loaded binary. */
typedef struct cj_module cj_module;

typedef struct cj_launch {
    cj_entry_point entry;
    uint32_t blocks;       /* gridDim.x; y and z are 1 */
    uint32_t threads;      /* blockDim.x */
    uint32_t shared_bytes; /* dynamic; 0 = none */
    const void *args;      /* cj_forward_args or cj_pack_args, copied by the call */
} cj_launch;

/* Devices. The CUDA one works on the caller's current context. */
typedef struct cj_device {
    /* Is the CUDA context of `opened` still the current one? NO_DEVICE if not. `opened` is what open returned. */
    convjit_status (*open)(cj_target *target, void **opened);
    convjit_status (*check_current)(void *opened);
    /* LOAD_FAILED with the device's own words. shared_bytes: the dynamic shared memory forward will ask for. */
    convjit_status (*load)(const void *data, size_t size, uint32_t shared_bytes, cj_module **out);
    void (*unload)(cj_module *module);
    convjit_status (*launch)(cj_module *module, const cj_launch *launch, convjit_stream stream);
    /* Device memory, at least 256-byte aligned. */
    convjit_status (*allocate)(size_t size, void **out);
    void (*release)(void *memory);
} cj_device;

extern const cj_device cj_cuda_device; /* driver.c */
extern const cj_device cj_cpu_device;  /* cpu_device.c */

#endif
