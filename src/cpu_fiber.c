/* cpu_fiber.c - stack switching: a dozen instructions on x86-64 and aarch64, ucontext elsewhere.
 *
 * swapcontext saves the signal mask with a system call at each switch; the instructions below take about a twentieth of
 * its time. They keep the callee-saved registers of the ABI and nothing else: kernels do not touch the floating-point
 * control words or the signal mask. (A process that runs with x86 shadow stacks would need ucontext too; glibc turns
 * them on only on request.)
 *
 * Sanitizers follow stacks, so they are told of each switch. */
#include "cpu_fiber.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#define HAS_FEATURE(name) __has_feature(name)
#else
#define HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS_FEATURE(address_sanitizer)
#define ASAN 1
#include <sanitizer/asan_interface.h>
#else
#define ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || HAS_FEATURE(thread_sanitizer)
#define TSAN 1
#include <sanitizer/tsan_interface.h>
#else
#define TSAN 0
#endif

/* Functions around a switch: ThreadSanitizer keeps a list of the calls it is in for each fiber, and would enter such a
 * function in one list and take it from the other, or never. */
#if defined(__clang__)
#define NOT_SANITIZED __attribute__((disable_sanitizer_instrumentation))
#else
#define NOT_SANITIZED __attribute__((no_sanitize("address", "thread")))
#endif

/* AddressSanitizer puts red zones around each local array, so its frames are larger. Only touched pages cost memory. */
enum { STACK_BYTES = (ASAN ? 256 : 64) * 1024 };

/* ---------------------------------------------------------------------------------------------------------------------
 * Positions: where a suspended stack goes on
 * ------------------------------------------------------------------------------------------------------------------ */

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(CJ_FIBER_UCONTEXT)

typedef void *position; /* stack pointer, with the saved registers above it */

/* Saves the registers and the stack pointer in *from, goes on at `to`. */
void cj_fiber_switch(position *from, position to);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl cj_fiber_switch\n"
        ".hidden cj_fiber_switch\n"
        ".type cj_fiber_switch, @function\n"
        ".p2align 4\n"
        "cj_fiber_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size cj_fiber_switch, . - cj_fiber_switch\n");
/* 6 registers, the return address, and a zero where a return address would stand if `entry` had been called. */
enum { FRAME_WORDS = 8, RETURN_WORD = 6 };
#else
__asm__(".text\n"
        ".globl cj_fiber_switch\n"
        ".hidden cj_fiber_switch\n"
        ".type cj_fiber_switch, %function\n"
        ".p2align 4\n"
        "cj_fiber_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size cj_fiber_switch, . - cj_fiber_switch\n");
enum { FRAME_WORDS = 20, RETURN_WORD = 11 }; /* RETURN_WORD: x30 */
#endif

/* A frame as cj_fiber_switch leaves it, whose return address is `entry`. */
static void position_prepare(position *out, unsigned char *stack, void (*entry)(void)) {
    uintptr_t *frame = (uintptr_t *)(void *)(stack + STACK_BYTES) - FRAME_WORDS;
    memset(frame, 0, FRAME_WORDS * sizeof(*frame));
    frame[RETURN_WORD] = (uintptr_t)entry;
    *out = frame;
}

static inline NOT_SANITIZED void position_switch(position *from, position *to) {
    cj_fiber_switch(from, *to);
}

#else
#include <ucontext.h>

typedef ucontext_t position;

static void position_prepare(position *out, unsigned char *stack, void (*entry)(void)) {
    getcontext(out);
    out->uc_stack.ss_sp = stack;
    out->uc_stack.ss_size = STACK_BYTES;
    out->uc_link = NULL;
    makecontext(out, entry, 0);
}

static inline NOT_SANITIZED void position_switch(position *from, position *to) {
    swapcontext(from, to);
}
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Fibers
 * ------------------------------------------------------------------------------------------------------------------ */

typedef struct fiber {
    position position;
    void *fake_stack; /* AddressSanitizer's, of a suspended fiber */
    void *tsan;       /* ThreadSanitizer's fiber */
} fiber;

struct cj_fibers {
    cj_fibers *next; /* idle */
    cj_fiber_fn function;
    void *argument;
    uint32_t count;
    uint32_t current; /* the one that runs */
    unsigned char *stacks;
    size_t guard_bytes; /* below each stack, not accessible: an overflow faults instead of hitting a neighbour */
    position host;      /* of the OS thread's own stack */
    const void *host_stack;
    size_t host_stack_bytes;
    void *host_tsan;
    fiber fibers[];
};

/* How entry() gets its argument: set before each resume. */
static _Thread_local cj_fibers *resuming;

static size_t stacks_bytes(const cj_fibers *fibers) {
    return fibers->count * (fibers->guard_bytes + STACK_BYTES);
}

static unsigned char *stack_of(const cj_fibers *fibers, uint32_t index) {
    return fibers->stacks + index * (fibers->guard_bytes + STACK_BYTES) + fibers->guard_bytes;
}

/* Sets that no launch uses: making one takes milliseconds, most of them for the guard pages. */
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static cj_fibers *idle;

static cj_fibers *take_idle(uint32_t count) {
    pthread_mutex_lock(&idle_lock);
    cj_fibers **link = &idle;
    while (*link && (*link)->count < count) {
        link = &(*link)->next;
    }
    cj_fibers *fibers = *link;
    if (fibers) {
        *link = fibers->next;
    }
    pthread_mutex_unlock(&idle_lock);
    return fibers;
}

static void free_fibers(cj_fibers *fibers) {
#if TSAN
    for (uint32_t i = 0; i < fibers->count; ++i) {
        if (fibers->fibers[i].tsan) {
            __tsan_destroy_fiber(fibers->fibers[i].tsan);
        }
    }
#endif
    munmap(fibers->stacks, stacks_bytes(fibers));
    free(fibers);
}

static cj_fibers *make_fibers(uint32_t count) {
    cj_fibers *fibers = calloc(1, sizeof(*fibers) + count * sizeof(fiber));
    if (!fibers) {
        return NULL;
    }
    fibers->count = count;
    fibers->guard_bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *stacks =
        mmap(NULL, stacks_bytes(fibers), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
        free(fibers);
        return NULL;
    }
    fibers->stacks = stacks;
    for (uint32_t i = 0; i < count; ++i) {
        if (mprotect(stack_of(fibers, i) - fibers->guard_bytes, fibers->guard_bytes, PROT_NONE)) {
            free_fibers(fibers);
            return NULL;
        }
#if TSAN
        fibers->fibers[i].tsan = __tsan_create_fiber(0);
#endif
    }
    return fibers;
}

cj_fibers *cj_fibers_acquire(uint32_t count, cj_fiber_fn function, void *argument) {
    cj_fibers *fibers = take_idle(count);
    if (!fibers) {
        fibers = make_fibers(count);
    }
    if (fibers) {
        fibers->function = function;
        fibers->argument = argument;
    }
    return fibers;
}

void cj_fibers_release(cj_fibers *fibers, bool all_ended) {
    if (!all_ended) {
#if ASAN
        /* Frames of abandoned calls are still marked, and the next mapping may be at the same place. */
        __asan_unpoison_memory_region(fibers->stacks, stacks_bytes(fibers));
#endif
        free_fibers(fibers);
        return;
    }
    pthread_mutex_lock(&idle_lock);
    fibers->next = idle;
    idle = fibers;
    pthread_mutex_unlock(&idle_lock);
}

void cj_fibers_free_idle(void) {
    for (cj_fibers *fibers = take_idle(0); fibers; fibers = take_idle(0)) {
        free_fibers(fibers);
    }
}

/* The two directions of a switch. */
static NOT_SANITIZED void to_fiber(cj_fibers *fibers, fiber *next) {
#if ASAN
    void *fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, stack_of(fibers, fibers->current), STACK_BYTES);
#endif
#if TSAN
    fibers->host_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(next->tsan, 0);
#endif
    position_switch(&fibers->host, &next->position);
#if ASAN
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#endif
}

static NOT_SANITIZED void to_host(cj_fibers *fibers, fiber *current, bool ended) {
#if ASAN
    __sanitizer_start_switch_fiber(ended ? NULL : &current->fake_stack, fibers->host_stack, fibers->host_stack_bytes);
#endif
    (void)ended;
#if TSAN
    __tsan_switch_to_fiber(fibers->host_tsan, 0);
#endif
    position_switch(&current->position, &fibers->host);
#if ASAN
    __sanitizer_finish_switch_fiber(current->fake_stack, &fibers->host_stack, &fibers->host_stack_bytes);
#endif
}

/* First function on a fiber's stack. */
static NOT_SANITIZED void entry(void) {
    cj_fibers *fibers = resuming;
#if ASAN
    __sanitizer_finish_switch_fiber(NULL, &fibers->host_stack, &fibers->host_stack_bytes);
#endif
    fibers->function(fibers->argument, fibers->current);
    to_host(fibers, &fibers->fibers[fibers->current], true);
    __builtin_unreachable();
}

void cj_fiber_start(cj_fibers *fibers, uint32_t index) {
    position_prepare(&fibers->fibers[index].position, stack_of(fibers, index), entry);
}

void cj_fiber_resume(cj_fibers *fibers, uint32_t index) {
    fibers->current = index;
    resuming = fibers;
    to_fiber(fibers, &fibers->fibers[index]);
}

void cj_fiber_suspend(cj_fibers *fibers) {
    to_host(fibers, &fibers->fibers[fibers->current], false);
}
