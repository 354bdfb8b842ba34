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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../kernel_src/cpu/words.cuh"
#include "cpu_fiber.h"
#include "status.h"
#include "target.h"

enum { WARP = 32, MAX_THREADS = 1024 };

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
 * One block: threads that run, wait, or have ended
 * ------------------------------------------------------------------------------------------------------------------ */

typedef enum thread_state { RUNNABLE, AT_BARRIER, AT_WARP, ENDED, THREAD_STATES } thread_state;

typedef struct thread {
    thread_state state;
    enum cj_warp_operation operation; /* AT_WARP: what it waits for */
    unsigned mask, value, source;
    unsigned result;
} thread;

typedef struct run {
    struct cj_cpu_host *host;
    kernel_fn kernel;
    const void *args;
    cj_fibers *fibers;
    uint32_t threads;
    uint32_t at_barrier, ended;
    uint32_t current; /* the thread that runs */
    bool failed;
    char error[512];
    thread thread[MAX_THREADS];
} run;

static const char *operation_name(enum cj_warp_operation operation) {
    static const char *const names[] = {[CJ_WARP_SYNC] = "__syncwarp",
                                        [CJ_WARP_SHUFFLE] = "shuffle",
                                        [CJ_WARP_BALLOT] = "ballot",
                                        [CJ_WARP_ADD] = "warp sum"};
    return (unsigned)operation < sizeof(names) / sizeof(names[0]) ? names[operation] : "unknown warp operation";
}

static void add_error(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_error(run *r, const char *format, ...) {
    const size_t used = strlen(r->error);
    va_list values;
    va_start(values, format);
    vsnprintf(r->error + used, sizeof(r->error) - used, format, values);
    va_end(values);
    r->failed = true;
}

/* Threads of the warp that begins at thread `first`, as a mask of lanes. */
static unsigned lanes_of(const run *r, uint32_t first) {
    const uint32_t count = r->threads - first;
    return count >= WARP ? 0xffffffff : (1U << count) - 1;
}

/* On a fiber: waits until the host makes this thread runnable; never if the block has failed. */
static void wait_turn(run *r, thread *self, thread_state state) {
    self->state = state;
    do {
        cj_fiber_suspend(r->fibers);
    } while (self->state != RUNNABLE);
}

/* __syncthreads(): the last to arrive lets all go on. */
static void barrier(void *launch) {
    run *r = launch;
    if (++r->at_barrier < r->threads) {
        wait_turn(r, &r->thread[r->current], AT_BARRIER);
        return;
    }
    r->at_barrier = 0;
    for (uint32_t i = 0; i < r->threads; ++i) {
        r->thread[i].state = RUNNABLE;
    }
}

/* Do all these lanes wait for this operation with this mask? */
static bool warp_complete(const thread *lanes, enum cj_warp_operation operation, unsigned mask, unsigned these) {
    for (unsigned rest = these; rest != 0; rest &= rest - 1) {
        const thread *lane = &lanes[__builtin_ctz(rest)];
        if (lane->state != AT_WARP || lane->operation != operation || lane->mask != mask) {
            return false;
        }
    }
    return true;
}

static void warp_finish(thread *lanes, enum cj_warp_operation operation, unsigned mask) {
    unsigned ballot = 0, sum = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        ballot |= (unsigned)(lanes[lane].value != 0) << lane;
        sum += lanes[lane].value;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        thread *lane = &lanes[__builtin_ctz(rest)];
        lane->result = operation == CJ_WARP_SHUFFLE  ? lanes[lane->source].value
                       : operation == CJ_WARP_BALLOT ? ballot
                                                     : sum;
        lane->state = RUNNABLE;
    }
}

/* Every warp operation: leaves what the others need, waits for them, takes the result. */
static unsigned warp(void *launch, enum cj_warp_operation operation, unsigned mask, unsigned value, unsigned source) {
    run *r = launch;
    const uint32_t lane = r->current % WARP, first = r->current - lane;
    thread *lanes = &r->thread[first], *self = &lanes[lane];
    if (!(mask >> lane & 1)) {
        add_error(r, "thread %u: %s with mask 0x%08x, which does not name its own lane %u", r->current,
                  operation_name(operation), mask, lane);
    } else if (mask & ~lanes_of(r, first)) {
        add_error(r, "thread %u: %s with mask 0x%08x, but its warp has only lanes 0x%08x", r->current,
                  operation_name(operation), mask, lanes_of(r, first));
    } else if (operation == CJ_WARP_SHUFFLE && (source >= WARP || !(mask >> source & 1))) {
        add_error(r, "thread %u: shuffle reads lane %u, which is not in mask 0x%08x", r->current, source, mask);
    }
    self->operation = operation;
    self->mask = mask;
    self->value = value;
    self->source = source;
    self->state = AT_WARP;
    if (!r->failed && warp_complete(lanes, operation, mask, mask)) {
        warp_finish(lanes, operation, mask);
    } else {
        wait_turn(r, self, AT_WARP);
    }
    return self->result;
}

/* How many lanes wait for the operation that `index` waits for, and what the first that does not is doing. */
static void explain_warp(run *r, uint32_t index) {
    static const char *const doing[] = {
        [AT_BARRIER] = "waits at the barrier", [AT_WARP] = "waits at another operation or mask", [ENDED] = "has ended"};
    const thread *self = &r->thread[index], *lanes = &r->thread[index - index % WARP];
    unsigned missing = 0;
    for (unsigned rest = self->mask; rest != 0; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        if (!warp_complete(lanes, self->operation, self->mask, 1U << lane)) {
            missing |= 1U << lane;
        }
    }
    const int first = __builtin_ctz(missing);
    const int count = __builtin_popcount(self->mask);
    add_error(r, "warp %u: %s with mask 0x%08x reached by %d of %d lanes, lane %d %s", index / WARP,
              operation_name(self->operation), self->mask, count - __builtin_popcount(missing), count, first,
              doing[lanes[first].state]);
}

/* Why nobody can go on: the barrier's count, and the first warp operation that lacks lanes. */
static void explain_block(run *r) {
    uint32_t count[THREAD_STATES] = {0}, first_at_warp = r->threads;
    for (uint32_t i = r->threads; i-- > 0;) {
        ++count[r->thread[i].state];
        if (r->thread[i].state == AT_WARP) {
            first_at_warp = i;
        }
    }
    if (count[AT_BARRIER] > 0) {
        add_error(r, "barrier reached by %u of %u threads", count[AT_BARRIER], r->threads);
        if (count[ENDED] > 0) {
            add_error(r, ", %u have ended", count[ENDED]);
        }
        if (count[AT_WARP] > 0) {
            add_error(r, ", %u wait at a warp operation; ", count[AT_WARP]);
        }
    }
    if (count[AT_WARP] > 0) {
        explain_warp(r, first_at_warp);
    }
}

/* A fiber's call: one thread of one block. */
static void run_thread(void *argument, uint32_t index) {
    run *r = argument;
    r->kernel(r->args);
    r->thread[index].state = ENDED;
    ++r->ended;
}

/* Gives every thread that can run a turn, until all have ended, or none can go on. */
static void run_block(run *r) {
    for (uint32_t i = 0; i < r->threads; ++i) {
        r->thread[i].state = RUNNABLE;
        cj_fiber_start(r->fibers, i);
    }
    r->at_barrier = r->ended = 0;
    while (r->ended < r->threads && !r->failed) {
        bool moved = false;
        for (uint32_t i = 0; i < r->threads && !r->failed; ++i) {
            if (r->thread[i].state == RUNNABLE) {
                r->current = i;
                r->host->thread.x = i;
                cj_fiber_resume(r->fibers, i);
                moved = true;
            }
        }
        if (!moved) {
            explain_block(r);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Launch and memory
 * ------------------------------------------------------------------------------------------------------------------ */

static convjit_status run_blocks(run *r, const cj_launch *work) {
    struct cj_cpu_host *host = r->host;
    host->block = (struct cj_cpu_index){0, 0, 0};
    host->block_size = (struct cj_cpu_index){work->threads, 1, 1};
    host->grid_size = (struct cj_cpu_index){work->blocks, 1, 1};
    host->launch = r;
    host->barrier = barrier;
    host->warp = warp;
    for (uint32_t i = 0; i < work->blocks; ++i) {
        host->block.x = i;
        run_block(r);
        CJ_RETURN_IF(r->failed, CONVJIT_LAUNCH_FAILED, "%s failed: block %u of %u: %s", kernel_names[work->entry], i,
                     work->blocks, r->error);
    }
    return CONVJIT_SUCCESS;
}

static convjit_status run_launch(cj_module *module, const cj_launch *work, void *shared) {
    run *r = calloc(1, sizeof(*r));
    CJ_RETURN_IF(!r, CONVJIT_OUT_OF_MEMORY, "launch failed: no memory for the state of %u threads", work->threads);
    r->fibers = cj_fibers_acquire(work->threads, run_thread, r);
    if (!r->fibers) {
        free(r);
        return cj_fail(CONVJIT_OUT_OF_MEMORY, "launch failed: no memory for the stacks of %u threads", work->threads);
    }
    r->host = module->host;
    r->kernel = module->kernels[work->entry];
    r->args = work->args;
    r->threads = work->threads;
    pthread_mutex_lock(&module->lock);
    module->host->dynamic_shared = shared;
    const convjit_status status = run_blocks(r, work);
    pthread_mutex_unlock(&module->lock);
    cj_fibers_release(r->fibers, !r->failed);
    free(r);
    return status;
}

/* Blocks until the kernel has run, so the arguments are read where they are. */
static convjit_status launch(cj_module *module, const cj_launch *work, convjit_stream stream) {
    (void)stream;
    CJ_RETURN_IF(work->threads == 0 || work->threads > MAX_THREADS, CONVJIT_LAUNCH_FAILED,
                 "launch failed: %u threads a block, must be 1 to %d", work->threads, MAX_THREADS);
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
