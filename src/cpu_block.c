/* cpu_block.c - turns of threads: round and round, each until it waits. A thread waits at the block's barrier, at a
 * warp operation, or for a condition that is asked for at each of its turns. */
#include "cpu_block.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WARP = 32 };

static void add_error(cj_block *block, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_error_list(cj_block *block, const char *format, va_list values) __attribute__((format(printf, 2, 0)));
static void add_error_list(cj_block *block, const char *format, va_list values) {
    const size_t used = strlen(block->error);
    vsnprintf(block->error + used, sizeof(block->error) - used, format, values);
    block->failed = true;
}

static void add_error(cj_block *block, const char *format, ...) {
    va_list values;
    va_start(values, format);
    add_error_list(block, format, values);
    va_end(values);
}

/* On a fiber: waits until the host makes this thread runnable; never if the block has failed. */
static void wait_turn(cj_block *block, cj_thread_state state) {
    cj_thread *self = &block->thread[block->current];
    self->state = state;
    do {
        cj_fiber_suspend(block->fibers);
    } while (self->state != CJ_RUNNABLE || block->failed);
}

void cj_block_wait(cj_block *block, const cj_wait *wait) {
    if (!wait->ready(block, wait)) {
        block->thread[block->current].wait = wait;
        wait_turn(block, CJ_AT_WAIT);
    }
}

void cj_block_yield(cj_block *block) {
    wait_turn(block, CJ_RUNNABLE);
}

_Noreturn void cj_block_fail(cj_block *block, const char *format, ...) {
    add_error(block, "thread %u: ", block->current);
    va_list values;
    va_start(values, format);
    add_error_list(block, format, values);
    va_end(values);
    wait_turn(block, CJ_RUNNABLE);
    __builtin_unreachable();
}

uint32_t cj_block_shared_offset(cj_block *block, const void *pointer, uint32_t bytes, const char *word) {
    const uintptr_t offset = (uintptr_t)pointer - (uintptr_t)block->shared;
    if (offset > block->shared_bytes || bytes > block->shared_bytes - offset) {
        cj_block_fail(block, "%s at byte %td of shared memory, of which the block has %u", word,
                      (const char *)pointer - (const char *)block->shared, block->shared_bytes);
    }
    return (uint32_t)offset;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Barrier and warp operations
 * ------------------------------------------------------------------------------------------------------------------ */

static const char *operation_name(enum cj_warp_operation operation) {
    static const char *const names[] = {
        [CJ_WARP_SYNC] = "__syncwarp", [CJ_WARP_SHUFFLE] = "shuffle",  [CJ_WARP_BALLOT] = "ballot",
        [CJ_WARP_ADD] = "warp sum",    [CJ_WARP_MAX] = "warp maximum", [CJ_WARP_MIN] = "warp minimum"};
    return (unsigned)operation < sizeof(names) / sizeof(names[0]) ? names[operation] : "unknown warp operation";
}

/* Threads of the warp that begins at thread `first`, as a mask of lanes. */
static unsigned lanes_of(const cj_block *block, uint32_t first) {
    const uint32_t count = block->threads - first;
    return count >= WARP ? 0xffffffff : (1U << count) - 1;
}

/* __syncthreads(): the last to arrive lets all go on. */
static void barrier(void *launch) {
    cj_block *block = launch;
    if (++block->at_barrier < block->threads) {
        wait_turn(block, CJ_AT_BARRIER);
        return;
    }
    block->at_barrier = 0;
    for (uint32_t i = 0; i < block->threads; ++i) {
        block->thread[i].state = CJ_RUNNABLE;
    }
}

/* Do all these lanes wait for this operation with this mask? */
static bool warp_complete(const cj_thread *lanes, enum cj_warp_operation operation, unsigned mask, unsigned these) {
    for (unsigned rest = these; rest != 0; rest &= rest - 1) {
        const cj_thread *lane = &lanes[__builtin_ctz(rest)];
        if (lane->state != CJ_AT_WARP || lane->operation != operation || lane->mask != mask) {
            return false;
        }
    }
    return true;
}

static void warp_finish(cj_thread *lanes, enum cj_warp_operation operation, unsigned mask) {
    unsigned ballot = 0, sum = 0, largest = 0, smallest = UINT_MAX;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        ballot |= (unsigned)(lanes[lane].value != 0) << lane;
        sum += lanes[lane].value;
        largest = lanes[lane].value > largest ? lanes[lane].value : largest;
        smallest = lanes[lane].value < smallest ? lanes[lane].value : smallest;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        cj_thread *lane = &lanes[__builtin_ctz(rest)];
        lane->result = operation == CJ_WARP_SHUFFLE  ? lanes[lane->source].value
                       : operation == CJ_WARP_BALLOT ? ballot
                       : operation == CJ_WARP_MAX    ? largest
                       : operation == CJ_WARP_MIN    ? smallest
                                                     : sum;
        lane->state = CJ_RUNNABLE;
    }
}

/* Every warp operation: leaves what the others need, waits for them, takes the result. */
static unsigned warp(void *launch, enum cj_warp_operation operation, unsigned mask, unsigned value, unsigned source) {
    cj_block *block = launch;
    const uint32_t lane = block->current % WARP, first = block->current - lane;
    cj_thread *lanes = &block->thread[first], *self = &lanes[lane];
    if (!(mask >> lane & 1)) {
        add_error(block, "thread %u: %s with mask 0x%08x, which does not name its own lane %u", block->current,
                  operation_name(operation), mask, lane);
    } else if (mask & ~lanes_of(block, first)) {
        add_error(block, "thread %u: %s with mask 0x%08x, but its warp has only lanes 0x%08x", block->current,
                  operation_name(operation), mask, lanes_of(block, first));
    } else if (operation == CJ_WARP_SHUFFLE && (source >= WARP || !(mask >> source & 1))) {
        add_error(block, "thread %u: shuffle reads lane %u, which is not in mask 0x%08x", block->current, source, mask);
    }
    self->operation = operation;
    self->mask = mask;
    self->value = value;
    self->source = source;
    self->state = CJ_AT_WARP;
    if (!block->failed && warp_complete(lanes, operation, mask, mask)) {
        warp_finish(lanes, operation, mask);
    } else {
        wait_turn(block, CJ_AT_WARP);
    }
    return self->result;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Why nobody can go on
 * ------------------------------------------------------------------------------------------------------------------ */

/* How many lanes wait for the operation that `index` waits for, and what the first that does not is doing. */
static void explain_warp(cj_block *block, uint32_t index) {
    static const char *const doing[] = {[CJ_AT_BARRIER] = "waits at the barrier",
                                        [CJ_AT_WARP] = "waits at another operation or mask",
                                        [CJ_AT_WAIT] = "waits for something else",
                                        [CJ_ENDED] = "has ended"};
    const cj_thread *self = &block->thread[index], *lanes = &block->thread[index - index % WARP];
    unsigned missing = 0;
    for (unsigned rest = self->mask; rest != 0; rest &= rest - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(rest);
        if (!warp_complete(lanes, self->operation, self->mask, 1U << lane)) {
            missing |= 1U << lane;
        }
    }
    const int first = __builtin_ctz(missing);
    const int count = __builtin_popcount(self->mask);
    add_error(block, "warp %u: %s with mask 0x%08x reached by %d of %d lanes, lane %d %s", index / WARP,
              operation_name(self->operation), self->mask, count - __builtin_popcount(missing), count, first,
              doing[lanes[first].state]);
}

static bool waits_alike(const cj_thread *a, const cj_thread *b) {
    return a->state == CJ_AT_WAIT && b->state == CJ_AT_WAIT && a->wait->describe == b->wait->describe &&
           a->wait->at == b->wait->at && a->wait->number == b->wait->number;
}

/* Every condition that is waited for, once, with who waits. */
static void explain_waits(cj_block *block) {
    const char *separator = block->failed ? "; " : "";
    for (uint32_t i = 0; i < block->threads; ++i) {
        const cj_thread *self = &block->thread[i];
        uint32_t first = 0, others = 0;
        while (!waits_alike(&block->thread[first], self) && first < i) {
            ++first;
        }
        if (self->state != CJ_AT_WAIT || first < i) {
            continue;
        }
        for (uint32_t j = i + 1; j < block->threads; ++j) {
            others += waits_alike(&block->thread[j], self);
        }
        char what[256] = "";
        self->wait->describe(block, self->wait, what, sizeof(what));
        add_error(block, "%sthread %u", separator, i);
        if (others > 0) {
            add_error(block, " and %u other%s", others, others > 1 ? "s" : "");
        }
        add_error(block, " wait%s %s", others > 0 ? "" : "s", what);
        separator = "; ";
    }
}

static void explain_block(cj_block *block) {
    uint32_t count[CJ_THREAD_STATES] = {0}, first_at_warp = block->threads;
    for (uint32_t i = block->threads; i-- > 0;) {
        ++count[block->thread[i].state];
        if (block->thread[i].state == CJ_AT_WARP) {
            first_at_warp = i;
        }
    }
    if (count[CJ_AT_BARRIER] > 0) {
        add_error(block, "barrier reached by %u of %u threads", count[CJ_AT_BARRIER], block->threads);
        if (count[CJ_ENDED] > 0) {
            add_error(block, ", %u have ended", count[CJ_ENDED]);
        }
        if (count[CJ_AT_WARP] > 0) {
            add_error(block, ", %u wait at a warp operation; ", count[CJ_AT_WARP]);
        }
    }
    if (count[CJ_AT_WARP] > 0) {
        explain_warp(block, first_at_warp);
    }
    explain_waits(block);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Running
 * ------------------------------------------------------------------------------------------------------------------ */

/* A fiber's call: one thread of one block. */
static void run_thread(void *argument, uint32_t index) {
    cj_block *block = argument;
    block->kernel(block->args);
    block->thread_ends(block);
    block->thread[index].state = CJ_ENDED;
    ++block->ended;
}

bool cj_block_open(cj_block *block) {
    block->fibers = cj_fibers_acquire(block->threads, run_thread, block);
    struct cj_cpu_host *host = block->host;
    host->block_size = (struct cj_cpu_index){block->threads, 1, 1};
    host->grid_size = (struct cj_cpu_index){block->blocks, 1, 1};
    host->dynamic_shared = block->shared;
    host->launch = block;
    host->barrier = barrier;
    host->warp = warp;
    return block->fibers != NULL;
}

void cj_block_close(cj_block *block) {
    if (block->fibers) {
        cj_fibers_release(block->fibers, !block->failed);
    }
}

/* Can this thread be given a turn? */
static bool can_run(cj_block *block, cj_thread *thread) {
    if (thread->state == CJ_AT_WAIT && thread->wait->ready(block, thread->wait)) {
        thread->state = CJ_RUNNABLE;
    }
    return thread->state == CJ_RUNNABLE;
}

/* A warp on a GPU may stay behind the others for any time, so a kernel that leaves out a wait must not be right by
 * luck: after the first rounds one warp, for some time always the same, has a turn only if nobody else has. */
static uint32_t warp_behind(const cj_block *block, uint32_t round) {
    enum { FIRST = 16 };
    const uint32_t index = block->host->block.x, rounds = index % 2 == 0 ? 64 : 512;
    uint32_t hash = round / rounds * 0x9e3779b9 + index * 0xc2b2ae35;
    hash = (hash ^ hash >> 15) * 0x2c1b3c6d;
    return round < FIRST ? CJ_MAX_THREADS : (hash >> 16) % ((block->threads + WARP - 1) / WARP);
}

/* A turn for each thread that can go on, but those of warp `behind`; false if there was none. */
static bool give_turns(cj_block *block, uint32_t behind) {
    bool moved = false;
    for (uint32_t i = 0; i < block->threads && !block->failed; ++i) {
        if (i / WARP != behind && can_run(block, &block->thread[i])) {
            block->current = i;
            block->host->thread.x = i;
            cj_fiber_resume(block->fibers, i);
            moved = true;
        }
    }
    return moved;
}

/* Rounds until all have ended, or none can go on. */
bool cj_block_run(cj_block *block, uint32_t index) {
    block->host->block = (struct cj_cpu_index){index, 0, 0};
    for (uint32_t i = 0; i < block->threads; ++i) {
        block->thread[i].state = CJ_RUNNABLE;
        cj_fiber_start(block->fibers, i);
    }
    block->at_barrier = block->ended = 0;
    if (block->shared_bytes > 0) {
        memset(block->shared, CJ_BLOCK_POISON, block->shared_bytes);
    }
    for (uint32_t round = 0; block->ended < block->threads && !block->failed; ++round) {
        if (!give_turns(block, warp_behind(block, round)) && !block->nobody_runs(block) &&
            !give_turns(block, CJ_MAX_THREADS) && !block->failed) {
            explain_block(block);
        }
    }
    return !block->failed;
}
