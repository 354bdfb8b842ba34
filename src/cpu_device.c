/* cpu_device.c - runs the modules of the target cpu in this process, for development and verification: thread blocks
 * one after another, the threads of a block in turn on fibers, which change over only in barriers and warp operations.
 *
 * What the device would do silently or by hanging is an error here: a barrier or warp operation that not all its
 * threads reach. An access out of bounds is left to AddressSanitizer; an overflow of a thread's stack faults. A module
 * runs one launch at a time, the others wait. */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu_block.h"
#include "cpu_fiber.h"
#include "cpu_hopper.h"
#include "status.h"
#include "target.h"

typedef void (*kernel_fn)(const void *args);

struct cj_module {
    pthread_mutex_t lock; /* held by a launch */
    int file;             /* open as long as the module: its number is part of the name that dlopen knows it by */
    void *library;
    struct cj_cpu_host *host;
    kernel_fn kernels[CJ_ENTRY_POINTS];
};

static const char *const kernel_names[CJ_ENTRY_POINTS] = {CJ_FORWARD_NAME, CJ_PACK_NAME};

/* ---------------------------------------------------------------------------------------------------------------------
 * Loading
 * ------------------------------------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#elif defined(__riscv)
#define MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define MACHINE EM_PPC64
#else
#error "target cpu: add this processor's number from elf.h"
#endif
#define BYTE_ORDER_OF_HOST (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB)

static bool inside(size_t size, uint64_t offset, uint64_t length) {
    return offset <= size && length <= size - offset;
}

/* dlopen trusts what it opens, so what can be seen cheaply is looked at first: NULL, or why this is no module for this
 * processor. A linker puts the section table last, so a file that was cut anywhere is seen. */
static const char *check_elf(const unsigned char *data, size_t size) {
    Elf64_Ehdr header;
    if (size < sizeof(header) || memcmp(data, ELFMAG, SELFMAG) != 0) {
        return "not an ELF file";
    }
    memcpy(&header, data, sizeof(header));
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != BYTE_ORDER_OF_HOST ||
        header.e_machine != MACHINE) {
        return "built for another processor";
    }
    if (header.e_type != ET_DYN || header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0) {
        return "not a shared object";
    }
    if (!inside(size, header.e_phoff, (uint64_t)header.e_phnum * sizeof(Elf64_Phdr)) ||
        !inside(size, header.e_shoff, (uint64_t)header.e_shnum * sizeof(Elf64_Shdr))) {
        return "truncated";
    }
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment;
        memcpy(&segment, data + header.e_phoff + i * sizeof(segment), sizeof(segment));
        if (segment.p_type != PT_NULL && !inside(size, segment.p_offset, segment.p_filesz)) {
            return "truncated";
        }
    }
    return NULL;
}

/* A sanitizer's run-time library ends the process if it is not the first thing loaded. NULL, or the name of one that
 * the module needs and this program lacks. */
static const char *missing_sanitizer(const void *data, size_t size) {
    static const char *const sanitizers[][2] = {
        {"__asan_init", "AddressSanitizer"}, {"__tsan_init", "ThreadSanitizer"}, {"__msan_init", "MemorySanitizer"}};
    for (size_t i = 0; i < sizeof(sanitizers) / sizeof(sanitizers[0]); ++i) {
        const char *symbol = sanitizers[i][0];
        if (memmem(data, size, symbol, strlen(symbol) + 1) && !dlsym(RTLD_DEFAULT, symbol)) {
            return sanitizers[i][1];
        }
    }
    return NULL;
}

/* An anonymous file with these bytes, or -1 with errno. */
static int make_file(const unsigned char *data, size_t size) {
    const int file = memfd_create("convjit_cpu", MFD_CLOEXEC);
    for (size_t done = 0; file >= 0 && done < size;) {
        const ssize_t count = write(file, data + done, size - done);
        if (count > 0) {
            done += (size_t)count;
        } else if (count == 0 || errno != EINTR) {
            const int error = count == 0 ? ENOSPC : errno;
            close(file);
            errno = error;
            return -1;
        }
    }
    return file;
}

static convjit_status find_symbols(cj_module *module) {
    void *const *host = dlsym(module->library, "convjit_cpu_host");
    CJ_RETURN_IF(!host, CONVJIT_LOAD_FAILED, "load failed: the module does not export convjit_cpu_host");
    module->host = *host;
    CJ_RETURN_IF(module->host->size != sizeof(*module->host), CONVJIT_LOAD_FAILED,
                 "load failed: the module's host struct has %u bytes, this version of convjit has %zu",
                 module->host->size, sizeof(*module->host));
    for (int i = 0; i < CJ_ENTRY_POINTS; ++i) {
        void *kernel = dlsym(module->library, kernel_names[i]);
        CJ_RETURN_IF(!kernel, CONVJIT_LOAD_FAILED, "load failed: the module does not export %s", kernel_names[i]);
        memcpy(&module->kernels[i], &kernel, sizeof(kernel)); /* ISO C has no cast to a function pointer */
    }
    return CONVJIT_SUCCESS;
}

/* Fills an all-zero module; what was filled in stays there after an error. */
static convjit_status open_library(cj_module *module, const void *data, size_t size) {
    module->file = make_file(data, size);
    CJ_RETURN_IF(module->file < 0, CONVJIT_LOAD_FAILED, "load failed: anonymous file of %zu bytes: %s", size,
                 strerror(errno));
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", module->file);
    module->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CJ_RETURN_IF(!module->library, CONVJIT_LOAD_FAILED, "load failed: dlopen: %s", dlerror());
    return find_symbols(module);
}

/* Idle fibers are kept as long as any module is loaded. */
static pthread_mutex_t loaded_lock = PTHREAD_MUTEX_INITIALIZER;
static size_t loaded;

static void count_loaded(int change) {
    pthread_mutex_lock(&loaded_lock);
    loaded = change > 0 ? loaded + 1 : loaded - 1;
    if (loaded == 0) {
        cj_fibers_free_idle();
    }
    pthread_mutex_unlock(&loaded_lock);
}

static void unload(cj_module *module) {
    if (!module) {
        return;
    }
    if (module->library) {
        dlclose(module->library);
    }
    if (module->file >= 0) {
        close(module->file);
    }
    pthread_mutex_destroy(&module->lock);
    free(module);
    count_loaded(-1);
}

static convjit_status load(const void *data, size_t size, uint32_t shared_bytes, cj_module **out) {
    (void)shared_bytes;
    const char *problem = check_elf(data, size);
    CJ_RETURN_IF(problem, CONVJIT_LOAD_FAILED, "load failed: binary of %zu bytes for target cpu: %s", size, problem);
    const char *sanitizer = missing_sanitizer(data, size);
    CJ_RETURN_IF(sanitizer, CONVJIT_LOAD_FAILED,
                 "load failed: the module was built with %s, this program was not; build both alike or neither",
                 sanitizer);
    cj_module *module = calloc(1, sizeof(*module));
    CJ_RETURN_IF(!module, CONVJIT_OUT_OF_MEMORY, "load failed: no memory for a module");
    pthread_mutex_init(&module->lock, NULL);
    module->file = -1;
    count_loaded(1);
    const convjit_status status = open_library(module, data, size);
    if (status != CONVJIT_SUCCESS) {
        unload(module);
        return status;
    }
    *out = module;
    return CONVJIT_SUCCESS;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Launch and memory
 * ------------------------------------------------------------------------------------------------------------------ */

static convjit_status run_blocks(cj_block *block, cj_entry_point entry) {
    for (uint32_t i = 0; i < block->blocks; ++i) {
        CJ_RETURN_IF(!cj_block_run(block, i), CONVJIT_LAUNCH_FAILED, "%s failed: block %u of %u: %s",
                     kernel_names[entry], i, block->blocks, block->error);
    }
    return CONVJIT_SUCCESS;
}

static convjit_status run_launch(cj_module *module, const cj_launch *work, void *shared) {
    cj_block *block = calloc(1, sizeof(*block));
    CJ_RETURN_IF(!block, CONVJIT_OUT_OF_MEMORY, "launch failed: no memory for the state of %u threads", work->threads);
    block->host = module->host;
    block->kernel = module->kernels[work->entry];
    block->args = work->args;
    block->threads = work->threads;
    block->blocks = work->blocks;
    block->shared = shared;
    block->shared_bytes = work->shared_bytes;
    pthread_mutex_lock(&module->lock);
    const convjit_status status =
        cj_hopper_open(block) && cj_block_open(block)
            ? run_blocks(block, work->entry)
            : cj_fail(CONVJIT_OUT_OF_MEMORY, "launch failed: no memory for the stacks of %u threads", work->threads);
    cj_block_close(block);
    cj_hopper_close(block);
    pthread_mutex_unlock(&module->lock);
    free(block);
    return status;
}

/* Blocks until the kernel has run, so the arguments are read where they are. */
static convjit_status launch(cj_module *module, const cj_launch *work, convjit_stream stream) {
    (void)stream;
    CJ_RETURN_IF(work->threads == 0 || work->threads > CJ_MAX_THREADS, CONVJIT_LAUNCH_FAILED,
                 "launch failed: %u threads a block, must be 1 to %d", work->threads, CJ_MAX_THREADS);
    CJ_RETURN_IF(work->blocks == 0, CONVJIT_LAUNCH_FAILED, "launch failed: 0 blocks, must be at least 1");
    void *shared = NULL; /* of exactly the size asked for, so that AddressSanitizer sees its end */
    CJ_RETURN_IF(work->shared_bytes > 0 && posix_memalign(&shared, 128, work->shared_bytes), CONVJIT_OUT_OF_MEMORY,
                 "launch failed: no memory for %u bytes of shared memory", work->shared_bytes);
    const convjit_status status = run_launch(module, work, shared);
    free(shared);
    return status;
}

static convjit_status open_device(cj_target *target, void **opened) {
    static char the_host;
    *target = (cj_target){.kind = CJ_TARGET_CPU, .name = "cpu"};
    *opened = &the_host;
    return CONVJIT_SUCCESS;
}

static convjit_status check_current(void *opened) {
    (void)opened;
    return CONVJIT_SUCCESS;
}

/* posix_memalign and not aligned_alloc: the size stays what was asked for, and AddressSanitizer's red zone follows it.
 */
static convjit_status allocate(size_t size, void **out) {
    CJ_RETURN_IF(posix_memalign(out, 256, size > 0 ? size : 1), CONVJIT_OUT_OF_MEMORY,
                 "allocation failed: %zu bytes of host memory", size);
    return CONVJIT_SUCCESS;
}

const cj_device cj_cpu_device = {.open = open_device,
                                 .check_current = check_current,
                                 .load = load,
                                 .unload = unload,
                                 .launch = launch,
                                 .allocate = allocate,
                                 .release = free};
